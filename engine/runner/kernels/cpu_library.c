/* The choice of the instruction set, and the life of an engine. */
#include "cpu_library.h"

#include <stdlib.h>
#include <string.h>

struct instruction_set {
    int64_t (*bytes)(const struct model *model, int32_t threads);
    void (*prepare)(struct engine *engine);
    void (*step)(struct engine *engine, const struct batch *batch);
    job_function sample;
};

#define SET_OF(NAME) {step_bytes_##NAME, step_prepare_##NAME, step_##NAME, sample_##NAME}

/* Those that were compiled: the build defines HAS_... for each. */
static const struct instruction_set SETS[NUM_SETS] = {
#if defined(HAS_PLAIN)
    [SET_PLAIN] = SET_OF(plain),
#endif
#if defined(HAS_AVX2)
    [SET_AVX2] = SET_OF(avx2),
#endif
#if defined(HAS_AVX512)
    [SET_AVX512] = SET_OF(avx512),
#endif
#if defined(HAS_AVX512BF16)
    [SET_AVX512BF16] = SET_OF(avx512bf16),
#endif
};

static int32_t best_of_machine(void) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return SET_PLAIN;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512vnni"))
        return SET_AVX2;
    return __builtin_cpu_supports("avx512bf16") ? SET_AVX512BF16 : SET_AVX512;
#else
    return SET_PLAIN;
#endif
}

int32_t best_set(void) {
    int32_t set = best_of_machine();
    while (set >= 0 && !SETS[set].step) set--;
    return set;
}

static void *zeroed(int64_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

struct engine *engine_create(const struct model *model, int32_t num_threads, const int32_t *cpus, int32_t set) {
    struct engine *engine = NULL;
    if (set >= 0 && set <= best_set() && SETS[set].step) engine = calloc(1, sizeof *engine);
    if (!engine) return NULL;
    const int64_t layer_bytes = model->num_layers * (int64_t)sizeof(struct layer);
    struct layer *layers = malloc(layer_bytes);
    engine->model = *model;
    engine->model.layers = layers;
    engine->step = SETS[set].step;
    engine->sample = SETS[set].sample;
    engine->pool = pool_create(num_threads, model->num_layers * PHASES_A_LAYER + PHASES_BESIDE, cpus);
    engine->memory = zeroed(SETS[set].bytes(model, num_threads));
    engine->candidates = malloc(num_threads * CANDIDATE_FLOATS(model->head.rows) * sizeof(float));
    if (!layers || !engine->pool || !engine->memory || !engine->candidates) {
        engine_destroy(engine);
        return NULL;
    }
    memcpy(layers, model->layers, layer_bytes);
    SETS[set].prepare(engine);
    return engine;
}

void engine_destroy(struct engine *engine) {
    if (!engine) return;
    pool_destroy(engine->pool);
    free(engine->memory);
    free(engine->candidates);
    free((void *)engine->model.layers);
    free(engine);
}

void engine_step(struct engine *engine, const struct batch *batch) { engine->step(engine, batch); }

void engine_sample(struct engine *engine, const struct draws *draws) {
    engine->draws = *draws;
    atomic_store(&engine->num_draws, draws->num_rows);
    pool_run(engine->pool, engine->sample, engine);
}

void engine_times(const struct engine *engine, int64_t out[NUM_PHASES]) {
    memcpy(out, engine->nanoseconds, sizeof engine->nanoseconds);
}
