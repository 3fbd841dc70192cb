/* What the library exports; cpu_library.py mirrors it. */
#ifndef CPU_LIBRARY_H
#define CPU_LIBRARY_H

#include "cpu_engine.h"
#include "cpu_pack.h"

enum { SET_PLAIN, SET_AVX2, SET_AVX512, SET_AVX512BF16, NUM_SETS };

/* The best instruction set that this machine has and the library was built for, -1 for none. */
int32_t best_set(void);

/* An engine for `model`, whose tensors must outlive it; `cpus` as for `pool_create`. NULL when memory or threads are
 * lacking, when they cannot be pinned, or for a set that this machine does not have. */
struct engine *engine_create(const struct model *model, int32_t num_threads, const int32_t *cpus, int32_t set);
void engine_destroy(struct engine *engine);

/* Compute a batch: its keys and values go to the KV cache, logits where the batch says. One call at a time. */
void engine_step(struct engine *engine, const struct batch *batch);

/* Draw a token for each row of logits. One call at a time, and none while a batch is computed. */
void engine_sample(struct engine *engine, const struct draws *draws);

/* Nanoseconds of every phase so far, in the order of `enum phase`. */
void engine_times(const struct engine *engine, int64_t out[NUM_PHASES]);

#endif
