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
#define MOST_QUERIES 8 /* that meet the same positions at once */

/* Up to STRETCH_ROWS rows of one sequence, at positions start, start + 1, ... */
struct stretch {
    int32_t first_row, num_rows, start;
    const int32_t *table;
};

/* A thread's working memory; `width` is the head's size rounded up to whole vectors, N = STRETCH_ROWS * heads. */
struct attention_memory {
    int32_t width;
    float *queries;     /* [N, width], scaled */
    float *sums;        /* [N, width]: values weighted so far */
    float *weights;     /* [N, 16]: of the positions at hand */
    float *totals;      /* [N, 16]: sums of weights, a lane each */
    float *peaks;       /* [N]: largest score so far */
    float *turned_keys; /* [width, 16] */
    int32_t *lines;     /* [width / 2]: cache lines of sixteen positions of a head, as offsets from its first vector */
};

/* Sixteen positions or fewer that lie in the cache, and where: the offset of KV head 0 of each. `next` is that of the
 * positions behind them: memory is slow to answer, so they are asked for line by line between the arithmetic.
 */
struct reach {
    int32_t start, count;
    int64_t offsets[LANES], next;
};

INLINE int32_t whole_vectors(int32_t n) { return (n + LANES - 1) / LANES * LANES; }

/* Where a position's vector of a head lies in a layer's keys, and likewise in its values. */
INLINE int64_t slot_offset(const struct model *m, const int32_t *table, int32_t position, int32_t head) {
    const int64_t slot = (int64_t)table[position / m->block_size] * m->block_size + position % m->block_size;
    return (slot * m->kv_heads + head) * m->head_dim;
}

/* Up to sixteen positions of `s` from `start` on; those in one block follow each other. */
INLINE void reach_for(const struct model *m, const struct stretch *s, int32_t start, struct reach *reach) {
    const int64_t stride = (int64_t)m->kv_heads * m->head_dim;
    const int32_t left = s->start + s->num_rows - start;
    reach->start = start;
    reach->count = left < 0 ? 0 : left < LANES ? left : LANES;
    for (int32_t t = 0; t < reach->count;) {
        const int64_t first = slot_offset(m, s->table, start + t, 0);
        const int32_t room = m->block_size - (start + t) % m->block_size, rest = reach->count - t;
        const int32_t run = room < rest ? room : rest;
        for (int32_t i = 0; i < run; i++) reach->offsets[t + i] = first + i * stride;
        t += run;
    }
}

/* What `lines` holds: sixteen tokens after each other, each in pieces of 64 bytes. */
static void fill_lines(const struct model *m, int32_t *lines) {
    const int32_t pieces = (m->head_dim + 31) / 32;
    for (int32_t i = 0; i < m->head_dim / 2; i++)
        lines[i] = i / pieces * m->kv_heads * m->head_dim + i % pieces * 32;
}

INLINE void store_turned(u32x16 rows[LANES], int32_t words, float *turned) {
    transpose(rows);
    UNROLL for (int32_t w = 0; w < LANES; w++) {
        if (w >= words) break;
        store_floats(turned + 2 * w * LANES, (f32x16)(rows[w] << 16));
        store_floats(turned + (2 * w + 1) * LANES, (f32x16)(rows[w] & 0xffff0000));
    }
}

/* Keys of a head -> [head_dim, 16], zero for positions that are not there. A word holds two dimensions. */
INLINE void turn_keys(const struct model *m, const uint16_t *keys, const struct reach *reach, float *turned) {
    int32_t d = 0;
    u32x16 rows[LANES];
    if (reach->count == LANES)
        for (; d + 2 * LANES <= m->head_dim; d += 2 * LANES) {
            UNROLL for (int32_t t = 0; t < LANES; t++) rows[t] = load_words(keys + reach->offsets[t] + d);
            store_turned(rows, LANES, turned + d * LANES);
        }
    for (; d < m->head_dim; d += 2 * LANES) {
        const int32_t words = m->head_dim - d < 2 * LANES ? (m->head_dim - d) / 2 : LANES;
        memset(rows, 0, sizeof rows);
        for (int32_t t = 0; t < reach->count; t++) memcpy(&rows[t], keys + reach->offsets[t] + d, 4 * words);
        store_turned(rows, words, turned + d * LANES);
    }
}

/* Scores of `count` queries at the positions at hand; even and odd dimensions apart. */
INLINE void score(
    const struct attention_memory *memory, int32_t head_dim, const uint16_t *next_keys, int32_t first, const int count,
    f32x16 *out) {
    const float *queries = memory->queries + first * memory->width;
    f32x16 even[MOST_QUERIES], odd[MOST_QUERIES];
    UNROLL for (int q = 0; q < count; q++) even[q] = odd[q] = splat(0);
    for (int32_t d = 0; d < head_dim; d += 2) {
        __builtin_prefetch(next_keys + memory->lines[d / 2], 0, 2);
        const f32x16 a = load_floats(memory->turned_keys + d * LANES);
        const f32x16 b = load_floats(memory->turned_keys + (d + 1) * LANES);
        UNROLL for (int q = 0; q < count; q++) {
            even[q] = multiply_add(splat(queries[q * memory->width + d]), a, even[q]);
            odd[q] = multiply_add(splat(queries[q * memory->width + d + 1]), b, odd[q]);
        }
    }
    UNROLL for (int q = 0; q < count; q++) out[q] = even[q] + odd[q];
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

/* Add the weighted values of the positions at hand to the sums of `count` queries. */
INLINE void add_values(
    struct attention_memory *memory, int32_t head_dim, const uint16_t *values, const struct reach *reach, int32_t first,
    const int count) {
    for (int32_t d = 0; d < head_dim; d += LANES) {
        float *to = memory->sums + first * memory->width + d;
        const float *weights = memory->weights + first * LANES;
        f32x16 sums[MOST_QUERIES];
        UNROLL for (int q = 0; q < count; q++) sums[q] = load_floats(to + q * memory->width);
        const int32_t *lines = memory->lines + d / (2 * LANES) * LANES;
        for (int32_t t = 0; t < reach->count; t++) {
            u16x16 part = {0};
            if (d % (2 * LANES) == 0) __builtin_prefetch(values + reach->next + lines[t], 0, 2);
            if (head_dim - d >= LANES) part = load_halves(values + reach->offsets[t] + d);
            else memcpy(&part, values + reach->offsets[t] + d, 2 * (head_dim - d));
            const f32x16 value = bfloats_to_floats(part);
            UNROLL for (int q = 0; q < count; q++)
                sums[q] = multiply_add(splat(weights[q * LANES + t]), value, sums[q]);
        }
        UNROLL for (int q = 0; q < count; q++) store_floats(to + q * memory->width, sums[q]);
    }
}

/* `count` queries of a head, from query `first` of row `first / group` on, meet the positions at hand; `keys` and
 * `values` begin with the head, and its queries begin at `base` in memory.
 */
INLINE void meet(
    const struct model *m, const struct stretch *s, const uint16_t *keys, const uint16_t *values,
    const struct reach *reach, int32_t base, int32_t first, const int count, struct attention_memory *memory) {
    const int32_t group = m->heads / m->kv_heads;
    f32x16 scores[MOST_QUERIES];
    score(memory, m->head_dim, keys + reach->next, base + first, count, scores);
    for (int q = 0; q < count; q++) {
        const int32_t behind = s->start + (first + q) / group - reach->start + 1;
        weigh(memory, base + first + q, scores[q], behind < reach->count ? behind : reach->count);
    }
    add_values(memory, m->head_dim, values, reach, base + first, count);
}

/* All queries of a head that see any of the positions at hand. */
static void meet_all(
    const struct model *m, const struct layer *layer, const struct stretch *s, const struct reach *reach, int32_t head,
    int32_t base, struct attention_memory *memory) {
    const int32_t group = m->heads / m->kv_heads, num_queries = s->num_rows * group;
    const uint16_t *keys = layer->keys + head * m->head_dim, *values = layer->values + head * m->head_dim;
    turn_keys(m, keys, reach, memory->turned_keys);
    int32_t q = reach->start > s->start ? (reach->start - s->start) * group : 0;
    for (; q + 8 <= num_queries; q += 8) meet(m, s, keys, values, reach, base, q, 8, memory);
    if (num_queries - q >= 4) meet(m, s, keys, values, reach, base, q, 4, memory), q += 4;
    if (num_queries - q == 3) meet(m, s, keys, values, reach, base, q, 3, memory);
    if (num_queries - q == 2) meet(m, s, keys, values, reach, base, q, 2, memory);
    if (num_queries - q == 1) meet(m, s, keys, values, reach, base, q, 1, memory);
}

/* Query `q` of the stretch in KV head `head`: its row, and where it begins in that row. */
INLINE int64_t query_offset(const struct model *m, const struct stretch *s, int32_t head, int32_t q, int64_t stride) {
    const int32_t group = m->heads / m->kv_heads;
    return (s->first_row + q / group) * stride + (head * group + q % group) * m->head_dim;
}

static void start_queries(
    const struct model *m, const struct stretch *s, int32_t head, int32_t base, const float *queries, int64_t stride,
    struct attention_memory *memory) {
    const int32_t num_queries = s->num_rows * (m->heads / m->kv_heads);
    for (int32_t q = 0; q < num_queries; q++) {
        const float *from = queries + query_offset(m, s, head, q, stride);
        float *to = memory->queries + (base + q) * memory->width;
        for (int32_t d = 0; d < m->head_dim; d++) to[d] = from[d] * m->scale;
        memset(memory->sums + (base + q) * memory->width, 0, memory->width * sizeof(float));
        memset(memory->totals + (base + q) * LANES, 0, LANES * sizeof(float));
        memory->peaks[base + q] = -3e38f;
    }
}

static void finish_queries(
    const struct model *m, const struct stretch *s, int32_t head, int32_t base, float *out, int64_t stride,
    const struct attention_memory *memory) {
    const int32_t num_queries = s->num_rows * (m->heads / m->kv_heads);
    for (int32_t q = 0; q < num_queries; q++) {
        const float factor = 1.0f / sum_of_lanes(load_floats(memory->totals + (base + q) * LANES));
        const float *from = memory->sums + (base + q) * memory->width;
        float *to = out + query_offset(m, s, head, q, stride);
        for (int32_t d = 0; d < m->head_dim; d++) to[d] = from[d] * factor;
    }
}

/* Rows of `s` in the query heads of some KV heads: `queries` and `out` are float32 [rows, stride]. */
static void attend(
    const struct model *m, const struct layer *layer, const struct stretch *s, int32_t first_head, int32_t num_heads,
    const float *queries, int64_t query_stride, float *out, int64_t out_stride, struct attention_memory *memory) {
    const int32_t a_head = s->num_rows * (m->heads / m->kv_heads), end = s->start + s->num_rows;
    struct reach reaches[2]; /* at hand, and next */
    for (int32_t h = 0; h < num_heads; h++)
        start_queries(m, s, first_head + h, h * a_head, queries, query_stride, memory);
    reach_for(m, s, 0, &reaches[0]);
    for (int32_t position = 0, turn = 0; position < end; position += LANES, turn = !turn) {
        reach_for(m, s, position + LANES, &reaches[!turn]);
        reaches[turn].next = reaches[reaches[!turn].count ? !turn : turn].offsets[0];
        for (int32_t h = 0; h < num_heads; h++)
            meet_all(m, layer, s, &reaches[turn], first_head + h, h * a_head, memory);
    }
    for (int32_t h = 0; h < num_heads; h++)
        finish_queries(m, s, first_head + h, h * a_head, out, out_stride, memory);
}

#endif
