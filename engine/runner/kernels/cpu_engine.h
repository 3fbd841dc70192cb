/* A model with a thread pool and the memory of a step; the step itself is compiled once for each instruction set. */
#ifndef CPU_ENGINE_H
#define CPU_ENGINE_H

#include <stdatomic.h>

#include "cpu_model.h"
#include "cpu_pool.h"
#include "cpu_sample.h"

#define SLICE_ROWS 128 /* rows that go through the layers together */

enum { PHASES_A_LAYER = 10, PHASES_BESIDE = 4 };
enum phase { EMBED, NORM, QKV, ROPE, ATTENTION, OUTPUT, GATE_UP, DOWN, HEAD, NUM_PHASES };

struct engine {
    struct model model;
    struct pool *pool;
    void (*step)(struct engine *engine, const struct batch *batch);
    void *memory;                    /* a step's working memory, as the step lays it out */
    int64_t nanoseconds[NUM_PHASES]; /* spent so far, as the calling thread saw it */
    job_function sample;
    struct draws draws; /* at hand */
    _Atomic int32_t num_draws;
    float *candidates; /* of each thread, CANDIDATE_FLOATS */
};

/* For each instruction set: the bytes of working memory that a model needs, its layout, the step, and the draws. */
#define DECLARE_STEP(SET)                                                                                              \
    int64_t step_bytes_##SET(const struct model *model, int32_t threads);                                              \
    void step_prepare_##SET(struct engine *engine);                                                                    \
    void step_##SET(struct engine *engine, const struct batch *batch);                                                 \
    void sample_##SET(void *engine, int32_t thread, uint32_t job);

DECLARE_STEP(plain)
DECLARE_STEP(avx2)
DECLARE_STEP(avx512)
DECLARE_STEP(avx512bf16)

#endif
