/* A pool of threads that compute one job together, the caller among them.
 *
 * Inside a job the threads go through the same phases: each phase hands out items by an atomic counter, and a barrier
 * ends it. Between jobs the workers watch for the next one a few microseconds, then sleep: the rest of the process
 * needs the cores too.
 */
#ifndef CPU_POOL_H
#define CPU_POOL_H

#include <stdint.h>

struct pool;
typedef void (*job_function)(void *context, int32_t thread);

struct pool *pool_create(int32_t num_threads); /* NULL without memory or threads */
void pool_destroy(struct pool *pool);
int32_t pool_size(const struct pool *pool);

/* Run `job` on every thread and wait for all; one call at a time. */
void pool_run(struct pool *pool, job_function job, void *context);

/* The next `step` items of the phase: the first of them, at or past the phase's end when there are none left. */
int32_t pool_take(struct pool *pool, int32_t step);

/* Wait until every thread of the job is here, and start handing out items from zero again. */
void pool_barrier(struct pool *pool);

#endif
