/* A pool of threads that compute one job together, the caller among them.
 *
 * A job is a row of phases that every thread goes through. A phase hands out items by a counter and is over when all of
 * them are computed, whoever did it: a thread that wakes late, or lost its core to others, holds up nobody unless it
 * has an item in hand. It may even be left behind by the end of the job: counters carry the job's number, so that it
 * finds nothing to do in the next one. Between jobs the workers watch for work a few microseconds, then sleep: the rest
 * of the process needs the cores too.
 */
#ifndef CPU_POOL_H
#define CPU_POOL_H

#include <stdint.h>

struct pool;
typedef void (*job_function)(void *context, int32_t thread, uint32_t number);

/* For jobs of up to `num_phases` phases. With `cpus`, thread i stays on CPU cpus[i]; thread 0 is the caller's, and is for
 * the caller to pin. NULL without memory or threads, or where threads cannot be pinned.
 */
struct pool *pool_create(int32_t num_threads, int32_t num_phases, const int32_t *cpus);
void pool_destroy(struct pool *pool);
int32_t pool_size(const struct pool *pool);

/* Run `job` on every thread that comes in time, surely the caller's; one call at a time. A thread that was left behind
 * may still read `context`, which must live as long as the pool.
 */
void pool_run(struct pool *pool, job_function job, void *context);

/* The next `step` items of a phase of job `number`: the first of them, at or past the phase's end when there are none
 * left; -1 when the job is over.
 */
int32_t pool_take(struct pool *pool, uint32_t number, int32_t phase, int32_t step);

/* `count` items that were taken are computed. */
void pool_complete(struct pool *pool, int32_t phase, int32_t count);

/* Wait until `count` items of a phase are computed, or the job is over. */
void pool_wait(struct pool *pool, uint32_t number, int32_t phase, int32_t count);

#endif
