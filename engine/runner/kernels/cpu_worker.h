/* A thread on its way through the phases of a slice: it takes items, computes them, and waits for the others' last. */
#ifndef CPU_WORKER_H
#define CPU_WORKER_H

#include <time.h>

#include "cpu_workspace.h"

struct worker {
    struct step *step;
    struct thread_memory memory;
    uint32_t job;
    int32_t thread, phase, run, first, end; /* first .. end: the items in hand, of a run */
    int32_t rows, num_stretches;            /* of the slice, that are computed further */
    const struct stretch *stretches;
    struct inputs *inputs;
    int32_t prepared; /* the phase that the inputs of few rows are for */
};

static int32_t parts_of(int32_t count, int32_t size) { return (count + size - 1) / size; }

/* How many items the busiest thread has when runs of `size` are dealt out. */
static int32_t most_items(int32_t count, int32_t size, int32_t threads) {
    return parts_of(parts_of(count, size), threads) * size;
}

/* The items of a run: a thread gets a phase in two or three, whichever is fairer. Memory reads long ones best, and who
 * was held up leaves its last to others.
 */
static int32_t run_size(int32_t count, int32_t threads) {
    if (count < 2 * threads) return 1;
    const int32_t two = parts_of(count, 2 * threads), three = parts_of(count, 3 * threads);
    const int32_t size = most_items(count, two, threads) <= most_items(count, three, threads) ? two : three;
    return size > 64 ? 64 : size;
}

/* Report the items in hand as computed and take the next ones; whether there are any. */
static int next_items(struct worker *w, int32_t count) {
    struct pool *pool = w->step->engine->pool;
    if (w->end > w->first) pool_complete(pool, w->phase, w->end - w->first);
    w->first = pool_take(pool, w->job, w->phase, w->run);
    if (w->first < 0 || w->first >= count) return w->first = w->end = 0;
    w->end = w->first + w->run < count ? w->first + w->run : count;
    return 1;
}

#define EACH_ITEM_BY(size, item, worker, count)                                                                        \
    for ((worker)->run = (size); next_items(worker, count);)                                                           \
        for (int32_t item = (worker)->first; item < (worker)->end; item++)

#define EACH_ITEM(item, worker, count)                                                                                 \
    EACH_ITEM_BY(run_size(count, pool_size((worker)->step->engine->pool)), item, worker, count)

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

/* Wait until all `count` items of the phase are computed; the caller's thread keeps the time. */
static void finish_phase(struct worker *w, enum phase phase, int32_t count) {
    struct step *step = w->step;
    pool_wait(step->engine->pool, w->job, w->phase++, count);
    if (w->thread) return;
    const int64_t time = now();
    step->engine->nanoseconds[phase] += time - step->clock;
    step->clock = time;
}

/* From here on the first `rows` rows of the slice are computed. */
static void take_rows(struct worker *w, int32_t rows) {
    w->rows = rows;
    w->inputs = rows <= FEW_ROWS ? &w->memory.inputs : &w->step->space->inputs;
}

static void start_worker(struct worker *w, struct step *step, int32_t thread, uint32_t job) {
    *w = (struct worker){.step = step, .job = job, .thread = thread, .prepared = -1};
    w->memory = memory_of(step->space, step->model, thread);
    w->stretches = step->space->stretches;
    w->num_stretches = step->num_stretches;
    take_rows(w, step->num_rows);
}

#endif
