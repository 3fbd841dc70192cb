/* Attention over the paged KV cache: some rows of one sequence and the query heads that share a KV head, together.
 *
 * Sixteen positions at a time are brought into float32, the keys turned so that a lane is a position; then every query
 * meets them, with a running maximum and sum. A query skips positions behind its own, so that its arithmetic does not
 * depend on the rows beside it.
 */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include <stdlib.h>

#include "cpu_model.h"
#include "cpu_vector.h"

#define STRETCH_ROWS 8

/* Up to STRETCH_ROWS rows of one sequence, at positions start, start + 1, ... */
struct stretch {
    int32_t first_row, num_rows, start;
    const int32_t *table;
};

/* A thread's working memory; `width` is the head's size rounded up to whole vectors, N = STRETCH_ROWS * group. */
struct attention_memory {
    int32_t width;
    float *queries;              /* [N, width], scaled */
    float *sums;                 /* [N, width]: values weighted so far */
    float *weights;              /* [N, 16]: of the positions at hand */
    float *totals;               /* [N, 16]: sums of weights, a lane each */
    float *peaks;                /* [N]: largest score so far */
    float *turned_keys, *values; /* [width, 16] and [16, width] */
};

INLINE int32_t whole_vectors(int32_t n) { return (n + LANES - 1) / LANES * LANES; }

INLINE int64_t slot_offset(const struct model *m, const int32_t *table, int32_t position, int32_t head) {
    const int64_t slot = (int64_t)table[position / m->block_size] * m->block_size + position % m->block_size;
    return (slot * m->kv_heads + head) * m->head_dim;
}

/* `count` positions from `position` on -> turned keys and values, zero for the rest of the sixteen. */
INLINE void fetch_positions(
    const struct model *m, const struct layer *layer, const int32_t *table, int32_t position, int32_t count,
    int32_t head, struct attention_memory *memory) {
    const uint16_t *keys[LANES], *values[LANES];
    for (int32_t t = 0; t < count; t++) {
        const int64_t offset = slot_offset(m, table, position + t, head);
        keys[t] = layer->keys + offset;
        values[t] = layer->values + offset;
    }
    for (int32_t d = 0; d < m->head_dim; d += 2 * LANES) { /* a word is two dimensions */
        const int32_t words = m->head_dim - d < 2 * LANES ? (m->head_dim - d) / 2 : LANES;
        u32x16 rows[LANES];
        for (int32_t t = 0; t < LANES; t++) rows[t] = (u32x16){0};
        if (words == LANES) for (int32_t t = 0; t < count; t++) rows[t] = load_words(keys[t] + d);
        else for (int32_t t = 0; t < count; t++) memcpy(&rows[t], keys[t] + d, 4 * words);
        transpose(rows);
        for (int32_t w = 0; w < words; w++) {
            store_floats(memory->turned_keys + (d + 2 * w) * LANES, (f32x16)(rows[w] << 16));
            store_floats(memory->turned_keys + (d + 2 * w + 1) * LANES, (f32x16)(rows[w] & 0xffff0000));
        }
    }
    for (int32_t t = 0; t < count; t++)
        for (int32_t d = 0; d < m->head_dim; d += LANES) {
            u16x16 part = {0};
            if (m->head_dim - d >= LANES) part = load_halves(values[t] + d);
            else memcpy(&part, values[t] + d, 2 * (m->head_dim - d));
            store_floats(memory->values + t * memory->width + d, bfloats_to_floats(part));
        }
}

/* Scores of `count` queries at the positions at hand; even and odd dimensions apart. */
INLINE void score(const struct attention_memory *memory, int32_t head_dim, int32_t first, const int count, f32x16 *out) {
    const float *queries = memory->queries + first * memory->width;
    f32x16 even[4], odd[4];
    for (int q = 0; q < count; q++) even[q] = odd[q] = splat(0);
    for (int32_t d = 0; d < head_dim; d += 2) {
        const f32x16 a = load_floats(memory->turned_keys + d * LANES);
        const f32x16 b = load_floats(memory->turned_keys + (d + 1) * LANES);
        for (int q = 0; q < count; q++) {
            even[q] = multiply_add(splat(queries[q * memory->width + d]), a, even[q]);
            odd[q] = multiply_add(splat(queries[q * memory->width + d + 1]), b, odd[q]);
        }
    }
    for (int q = 0; q < count; q++) out[q] = even[q] + odd[q];
}

/* Scores -> weights of query `q`, which sees `visible` of the positions; what was summed before shrinks to fit. */
INLINE void weigh(struct attention_memory *memory, int32_t q, f32x16 scores, int32_t visible) {
    static const i32x16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const i32x16 seen = lanes < splat_int(visible);
    const float peak = memory->peaks[q];
    const float seen_peak = largest_of_lanes(choose(seen, scores, splat(-3e38f)));
    const float new_peak = seen_peak > peak ? seen_peak : peak;
    const f32x16 weights = (f32x16)((i32x16)exponential(scores - new_peak) & seen);
    const f32x16 totals = load_floats(memory->totals + q * LANES);
    store_floats(memory->weights + q * LANES, weights);
    if (new_peak > peak) {
        const f32x16 shrink = exponential(splat(peak - new_peak));
        float *sums = memory->sums + q * memory->width;
        for (int32_t d = 0; d < memory->width; d += LANES) store_floats(sums + d, load_floats(sums + d) * shrink);
        store_floats(memory->totals + q * LANES, totals * shrink + weights);
        memory->peaks[q] = new_peak;
    } else {
        store_floats(memory->totals + q * LANES, totals + weights);
    }
}

/* Add the weighted values of `positions` positions to the sums of `count` queries. */
INLINE void add_values(struct attention_memory *memory, int32_t positions, int32_t first, const int count) {
    for (int32_t d = 0; d < memory->width; d += LANES) {
        f32x16 sums[4];
        for (int q = 0; q < count; q++) sums[q] = load_floats(memory->sums + (first + q) * memory->width + d);
        for (int32_t t = 0; t < positions; t++) {
            const f32x16 value = load_floats(memory->values + t * memory->width + d);
            for (int q = 0; q < count; q++)
                sums[q] = multiply_add(splat(memory->weights[(first + q) * LANES + t]), value, sums[q]);
        }
        for (int q = 0; q < count; q++) store_floats(memory->sums + (first + q) * memory->width + d, sums[q]);
    }
}

/* `count` queries against the positions from `position` on, of which `positions` are at hand. */
INLINE void meet(
    const struct model *m, const struct stretch *s, int32_t position, int32_t positions, int32_t first,
    const int count, struct attention_memory *memory) {
    const int32_t group = m->heads / m->kv_heads;
    f32x16 scores[4];
    score(memory, m->head_dim, first, count, scores);
    for (int q = 0; q < count; q++) {
        const int32_t behind = s->start + (first + q) / group - position + 1;
        weigh(memory, first + q, scores[q], behind < positions ? behind : positions);
    }
    add_values(memory, positions, first, count);
}

static void start_queries(
    const struct model *m, const struct stretch *s, int32_t head, const float *queries, int64_t stride,
    struct attention_memory *memory) {
    const int32_t group = m->heads / m->kv_heads;
    for (int32_t q = 0; q < s->num_rows * group; q++) {
        const float *from = queries + (s->first_row + q / group) * stride + (head * group + q % group) * m->head_dim;
        float *to = memory->queries + q * memory->width;
        for (int32_t d = 0; d < m->head_dim; d++) to[d] = from[d] * m->scale;
        memset(memory->sums + q * memory->width, 0, memory->width * sizeof(float));
        memset(memory->totals + q * LANES, 0, LANES * sizeof(float));
        memory->peaks[q] = -3e38f;
    }
}

/* Rows of `s` in the query heads of KV head `head`: `queries` and `out` are float32 [rows, stride]. */
static void attend(
    const struct model *m, const struct layer *layer, const struct stretch *s, int32_t head, const float *queries,
    int64_t query_stride, float *out, int64_t out_stride, struct attention_memory *memory) {
    const int32_t group = m->heads / m->kv_heads, num_queries = s->num_rows * group, end = s->start + s->num_rows;
    start_queries(m, s, head, queries, query_stride, memory);
    for (int32_t position = 0; position < end; position += LANES) {
        const int32_t positions = end - position < LANES ? end - position : LANES;
        fetch_positions(m, layer, s->table, position, positions, head, memory);
        int32_t q = position > s->start ? (position - s->start) * group : 0;
        for (; q + 4 <= num_queries; q += 4) meet(m, s, position, positions, q, 4, memory);
        if (num_queries - q == 3) meet(m, s, position, positions, q, 3, memory);
        if (num_queries - q == 2) meet(m, s, position, positions, q, 2, memory);
        if (num_queries - q == 1) meet(m, s, position, positions, q, 1, memory);
    }
    for (int32_t q = 0; q < num_queries; q++) {
        const float total = sum_of_lanes(load_floats(memory->totals + q * LANES));
        float *to = out + (s->first_row + q / group) * out_stride + (head * group + q % group) * m->head_dim;
        for (int32_t d = 0; d < m->head_dim; d++) to[d] = memory->sums[q * memory->width + d] / total;
    }
}

#endif
