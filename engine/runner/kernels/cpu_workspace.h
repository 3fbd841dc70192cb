/* The working memory of a step: carved once from one piece, when the engine is made. */
#ifndef CPU_WORKSPACE_H
#define CPU_WORKSPACE_H

#include "cpu_attention.h"
#include "cpu_engine.h"
#include "cpu_product.h"

struct workspace;

#define FEW_ROWS 8 /* that every thread prepares for itself */

/* The right sides of a layer's products. */
struct inputs {
    struct activations attention, mixed, mlp, inner;
};

/* A batch on its way. It lies in the workspace: threads that were left behind may still look. */
struct step {
    struct engine *engine;
    const struct model *model;
    struct workspace *space;
    const struct batch *batch;
    _Atomic int32_t first_row, num_rows, num_stretches; /* the slice at hand */
    _Atomic int32_t first_sampling, num_sampling, num_sampling_stretches;
    int64_t clock;
};

/* A step's memory: everything has SLICE_ROWS rows. */
struct workspace {
    float *hidden, *queries, *keys, *values, *cosines, *sines;
    int64_t hidden_stride, query_stride, key_stride;
    struct inputs inputs;
    char *of_threads; /* what each thread has for itself, `thread_bytes` of it */
    int64_t thread_bytes;
    struct stretch stretches[SLICE_ROWS], sampling_stretches[SLICE_ROWS];
    int32_t stretch_of[SLICE_ROWS];
    struct step step;
};

static int64_t whole_groups(int64_t n) { return (n + GROUP - 1) / GROUP * GROUP; }

/* Advance *cursor by `bytes`, in cache lines, and return where it was. */
static void *carve(char **cursor, int64_t bytes) {
    void *at = *cursor;
    *cursor += (bytes + 63) / 64 * 64;
    return at;
}

static struct part carve_part(char **cursor, int64_t size) {
    struct part part = {.codes = carve(cursor, size)};
    part.scales = carve(cursor, size / GROUP * sizeof(float));
    part.sums = carve(cursor, size / GROUP * sizeof(float));
    part.half_sums = carve(cursor, size / GROUP * 2 * sizeof(int32_t));
    return part;
}

static struct activations carve_activations(char **cursor, int32_t columns, int32_t rows) {
    const int64_t stride = whole_groups(columns), size = rows * stride;
    struct activations x = {.stride = (int32_t)stride};
    x.values = carve(cursor, size * sizeof(float));
    x.bfloats = carve(cursor, size * sizeof(uint16_t));
    x.first = carve_part(cursor, size);
    x.second = carve_part(cursor, size);
    x.with_second = carve(cursor, rows * num_blocks((int32_t)stride / GROUP) * sizeof(uint32_t));
    return x;
}

static struct inputs carve_inputs(char **cursor, const struct model *m, int32_t rows) {
    struct inputs inputs;
    inputs.attention = carve_activations(cursor, m->hidden, rows);
    inputs.mixed = carve_activations(cursor, m->heads * m->head_dim, rows);
    inputs.mlp = carve_activations(cursor, m->hidden, rows);
    inputs.inner = carve_activations(cursor, m->inner, rows);
    return inputs;
}

static struct attention_memory carve_attention(char **cursor, const struct model *m) {
    const int64_t most = STRETCH_ROWS * m->heads, width = whole_vectors(m->head_dim);
    struct attention_memory memory = {.width = (int32_t)width, .most = (int32_t)most};
    memory.queries = carve(cursor, most * width / 2 * sizeof(uint32_t));
    memory.weights = carve(cursor, most * REACH / 2 * sizeof(uint32_t));
    memory.sums = carve(cursor, most * width * sizeof(float));
    memory.totals = carve(cursor, most * LANES * sizeof(float));
    memory.peaks = carve(cursor, most * sizeof(float));
    return memory;
}

static struct product_memory carve_product(char **cursor) {
    struct product_memory memory;
    memory.sums = carve(cursor, SLICE_ROWS * PAIR * sizeof(f32x16));
    memory.other = carve(cursor, SLICE_ROWS * PAIR * sizeof(f32x16));
    return memory;
}

/* What a thread has for itself; its inputs are of FEW_ROWS rows, and read the values of all threads where these are of
 * several.
 */
struct thread_memory {
    struct attention_memory attention;
    struct product_memory product;
    struct inputs inputs;
};

static struct thread_memory carve_thread(char **cursor, const struct model *m) {
    struct thread_memory memory = {.attention = carve_attention(cursor, m)};
    memory.product = carve_product(cursor);
    memory.inputs = carve_inputs(cursor, m, FEW_ROWS);
    return memory;
}

/* Lays the workspace out from *cursor on; `space` may be scratch when only the size is wanted. */
static void lay_out(struct workspace *space, const struct model *m, int32_t threads, char **cursor) {
    const int64_t turned = SLICE_ROWS * (m->head_dim / 2) * sizeof(float);
    space->hidden_stride = whole_groups(m->hidden);
    space->query_stride = whole_groups(m->heads * m->head_dim);
    space->key_stride = whole_groups(m->kv_heads * m->head_dim);
    space->hidden = carve(cursor, SLICE_ROWS * space->hidden_stride * sizeof(float));
    space->queries = carve(cursor, SLICE_ROWS * space->query_stride * sizeof(float));
    space->keys = carve(cursor, SLICE_ROWS * space->key_stride * sizeof(float));
    space->values = carve(cursor, SLICE_ROWS * space->key_stride * sizeof(float));
    space->cosines = carve(cursor, turned);
    space->sines = carve(cursor, turned);
    space->inputs = carve_inputs(cursor, m, SLICE_ROWS);
    space->of_threads = *cursor;
    carve_thread(cursor, m);
    space->thread_bytes = *cursor - space->of_threads;
    *cursor += (threads - 1) * space->thread_bytes;
}

static struct thread_memory memory_of(const struct workspace *space, const struct model *m, int32_t thread) {
    char *cursor = space->of_threads + thread * space->thread_bytes;
    struct thread_memory memory = carve_thread(&cursor, m);
    memory.inputs.mixed.values = space->inputs.mixed.values;
    memory.inputs.inner.values = space->inputs.inner.values;
    return memory;
}

#endif
