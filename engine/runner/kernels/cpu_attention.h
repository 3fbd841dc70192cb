/* Attention over the paged KV cache: some rows of one sequence and the query heads that share a KV head, together.
 *
 * The cache lies as the arithmetic wants it (cpu_model.h): one vector holds two dimensions of sixteen keys, or sixteen
 * dimensions of two values, so that nothing is turned and what is read next lies behind what is read now. Two runs of
 * sixteen positions at a time meet every query, with a running maximum and sum. A query skips positions behind its own, so that
 * its arithmetic does not depend on the rows beside it. Queries and weights are bfloat16, as keys and values are.
 */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "cpu_model.h"
#include "cpu_vector.h"

#define STRETCH_ROWS 8
#define MOST_QUERIES 8 /* that meet the same positions at once */
#define RUNS 2
#define REACH (RUNS * LANES)

/* Weights are powers of two of scores less a peak, which need not be the very highest: it is raised when a score is this
 * much above it.
 */
#define SLACK 8.0f
#define TWO_ONES 0x3f803f80u /* as bfloat16 */

/* Up to STRETCH_ROWS rows of one sequence, at positions start, start + 1, ... */
struct stretch {
    int32_t first_row, num_rows, start;
    const int32_t *table;
};

/* A thread's working memory; `width` is the head's size rounded up to whole vectors, N = STRETCH_ROWS * heads. */
struct attention_memory {
    int32_t width, most; /* most: N */
    uint32_t *queries; /* [width / 2, N]: scaled for powers of two, two dimensions a word */
    uint32_t *weights; /* [N, 16]: of the positions at hand, two a word */
    float *sums;       /* [N, width]: values weighted so far */
    float *totals;     /* [N, 16]: sums of weights, a lane each */
    float *peaks;      /* [N]: what scores are taken against */
};

/* Positions that lie in the cache, at most REACH of them, and where those behind them lie: memory is slow to answer, so
 * they are asked for line by line between the arithmetic. Where there is no second run, the first stands for it.
 */
struct reach {
    int32_t start, count;
    int64_t runs[RUNS], next[RUNS];
};

INLINE int32_t whole_vectors(int32_t n) { return (n + LANES - 1) / LANES * LANES; }

/* Where sixteen positions of a head lie in a layer's keys, and likewise in its values; `position` is in them. */
INLINE int64_t run_offset(const struct model *m, const int32_t *table, int32_t position, int32_t head) {
    const int64_t runs = m->block_size / LANES, block = table[position / m->block_size];
    return ((block * runs + position % m->block_size / LANES) * m->kv_heads + head) * m->head_dim * LANES;
}

/* A head's key and value take their place; both are whole in bfloat16. */
INLINE void place_key(uint16_t *run, int32_t position, const uint16_t *key, int32_t head_dim) {
    uint16_t *to = run + position % LANES * 2;
    for (int32_t d = 0; d < head_dim; d += 2) memcpy(to + d * LANES, key + d, 2 * sizeof *key);
}

INLINE void place_value(uint16_t *run, int32_t position, const uint16_t *value, int32_t head_dim) {
    uint16_t *to = run + position % LANES / 2 * 2 * head_dim + position % 2;
    for (int32_t d = 0; d < head_dim; d++) to[2 * d] = value[d];
}

/* The runs of REACH positions from `start` on; those behind the last position are the first. */
INLINE void find_runs(const struct model *m, const struct stretch *s, int32_t start, int64_t *runs) {
    const int32_t end = s->start + s->num_rows;
    for (int r = 0; r < RUNS; r++)
        runs[r] = !r || start + r * LANES < end ? run_offset(m, s->table, start + r * LANES, 0) : runs[0];
}

INLINE void reach_for(const struct model *m, const struct stretch *s, int32_t start, struct reach *reach) {
    const int32_t end = s->start + s->num_rows, left = end - start;
    reach->start = start;
    reach->count = left < REACH ? left : REACH;
    find_runs(m, s, start, reach->runs);
    find_runs(m, s, start + REACH < end ? start + REACH : start, reach->next);
}

/* out[count, RUNS]: scores of `count` queries at the positions at hand. */
INLINE void score(
    const struct attention_memory *memory, int32_t words, const uint16_t *keys, const struct reach *reach,
    int32_t first, const int count, f32x16 *out) {
    const uint32_t *queries = memory->queries + first;
    f32x16 sums[MOST_QUERIES * RUNS];
    UNROLL for (int i = 0; i < count * RUNS; i++) sums[i] = splat(0);
    for (int32_t w = 0; w < words; w++) {
        u32x16 run[RUNS];
        UNROLL for (int r = 0; r < RUNS; r++) {
            run[r] = load_words(keys + reach->runs[r] + w * 2 * LANES);
            __builtin_prefetch(keys + reach->next[r] + w * 2 * LANES, 0, 2);
        }
        UNROLL for (int q = 0; q < count; q++)
            UNROLL for (int r = 0; r < RUNS; r++)
                sums[q * RUNS + r] = dot_bfloats(sums[q * RUNS + r], run[r], queries[q]);
        queries += memory->most;
    }
    UNROLL for (int i = 0; i < count * RUNS; i++) out[i] = sums[i];
}

/* What was summed before shrinks to fit a new peak. */
static void raise_peak(struct attention_memory *memory, int32_t q, float new_peak) {
    const f32x16 shrink = power_of_two(splat(memory->peaks[q] - new_peak));
    float *sums = memory->sums + q * memory->width, *totals = memory->totals + q * LANES;
    for (int32_t d = 0; d < memory->width; d += LANES) store_floats(sums + d, load_floats(sums + d) * shrink);
    store_floats(totals, load_floats(totals) * shrink);
    memory->peaks[q] = new_peak;
}

/* Scores -> weights of query `q`, which sees `visible` of the positions, or all of them. */
INLINE void weigh(
    struct attention_memory *memory, int32_t q, const f32x16 scores[RUNS], int32_t visible, const int all) {
    static const i32x16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    uint32_t *weights = memory->weights + q * REACH / 2;
    f32x16 seen[RUNS], highest = splat(-3e38f);
    UNROLL for (int r = 0; r < RUNS; r++) {
        seen[r] = all ? scores[r] : choose(lanes < splat_int(visible - r * LANES), scores[r], splat(-3e38f));
        highest = largest(highest, seen[r]);
    }
    if (any_above(highest, memory->peaks[q] + SLACK)) raise_peak(memory, q, largest_of_lanes(highest));
    UNROLL for (int r = 0; r < RUNS; r++) {
        const u16x16 rounded = floats_to_bfloats(power_of_two(seen[r] - memory->peaks[q]));
        memcpy(weights + r * LANES / 2, &rounded, sizeof rounded);
    }
    float *totals = memory->totals + q * LANES;
    store_floats(totals, dot_bfloats(load_floats(totals), load_words(weights), TWO_ONES));
}

/* Sixteen dimensions of two values, or `left` where they are fewer; the second is nobody's where `single`. */
INLINE u32x16 load_values(const uint16_t *from, const int whole, int32_t left, int single) {
    u32x16 words = {0};
    if (whole) words = load_words(from);
    else memcpy(&words, from, 4 * left);
    return words & (single ? 0xffffu : 0xffffffffu);
}

/* Add the weighted values of the positions at hand to `vectors` vectors, from dimension `d` on, of `count` queries. */
INLINE void add_dimensions(
    struct attention_memory *memory, int32_t head_dim, const uint16_t *values, const struct reach *reach, int32_t first,
    const int count, int32_t d, const int vectors, const int whole) {
    float *to = memory->sums + first * memory->width + d;
    const uint32_t *weights = memory->weights + first * REACH / 2;
    f32x16 sums[MOST_QUERIES * 2];
    UNROLL for (int i = 0; i < count * vectors; i++)
        sums[i] = load_floats(to + i / vectors * memory->width + i % vectors * LANES);
    for (int32_t r = 0; r * LANES < reach->count; r++) {
        const uint16_t *from = values + reach->runs[r] + 2 * d, *next = values + reach->next[r] + 2 * d;
        const int32_t left = reach->count - r * LANES, positions = left < LANES ? left : LANES;
        for (int32_t t = 0; t < positions; t += 2) {
            UNROLL for (int v = 0; v < vectors; v++) {
                const int64_t at = t * head_dim + 2 * v * LANES;
                const u32x16 words = load_values(from + at, whole, head_dim - d, t + 1 == positions);
                __builtin_prefetch(next + at, 0, 2);
                UNROLL for (int q = 0; q < count; q++)
                    sums[q * vectors + v] = dot_bfloats(sums[q * vectors + v], words, weights[q * REACH / 2 + t / 2]);
            }
        }
        weights += LANES / 2;
    }
    UNROLL for (int i = 0; i < count * vectors; i++)
        store_floats(to + i / vectors * memory->width + i % vectors * LANES, sums[i]);
}

INLINE void add_values(
    struct attention_memory *memory, int32_t head_dim, const uint16_t *values, const struct reach *reach, int32_t first,
    const int count) {
    const int most = count > 4 ? 2 : 4; /* vectors for whose sums there are registers */
    int32_t d = 0;
    for (; d + most * LANES <= head_dim; d += most * LANES)
        add_dimensions(memory, head_dim, values, reach, first, count, d, most, 1);
    for (; d + LANES <= head_dim; d += LANES) add_dimensions(memory, head_dim, values, reach, first, count, d, 1, 1);
    if (d < head_dim) add_dimensions(memory, head_dim, values, reach, first, count, d, 1, 0);
}

/* `count` queries of a head, from query `first` of row `first / group` on, meet the positions at hand; `keys` and
 * `values` begin with the head, and its queries begin at `base` in memory.
 */
INLINE void meet(
    const struct model *m, const struct stretch *s, const uint16_t *keys, const uint16_t *values,
    const struct reach *reach, int32_t base, int32_t first, const int count, struct attention_memory *memory) {
    const int32_t group = m->heads / m->kv_heads;
    f32x16 scores[MOST_QUERIES * RUNS];
    score(memory, m->head_dim / 2, keys, reach, base + first, count, scores);
    const int32_t behind = s->start - reach->start + 1; /* positions that row 0 of the stretch sees of these */
    if (reach->count == REACH && behind + first / group >= REACH) {
        UNROLL for (int q = 0; q < count; q++) weigh(memory, base + first + q, scores + q * RUNS, REACH, 1);
    } else {
        for (int q = 0; q < count; q++) {
            const int32_t visible = behind + (first + q) / group;
            weigh(memory, base + first + q, scores + q * RUNS, visible < reach->count ? visible : reach->count, 0);
        }
    }
    add_values(memory, m->head_dim, values, reach, base + first, count);
}

/* All queries of a head that see any of the positions at hand. */
static void meet_all(
    const struct model *m, const struct layer *layer, const struct stretch *s, const struct reach *reach, int32_t head,
    int32_t base, struct attention_memory *memory) {
    const int32_t group = m->heads / m->kv_heads, num_queries = s->num_rows * group;
    const int64_t offset = (int64_t)head * m->head_dim * LANES;
    const uint16_t *keys = layer->keys + offset, *values = layer->values + offset;
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

/* A query as bfloat16, scaled, its words `stride` apart; zero past its dimensions. */
static void place_query(const float *from, int32_t head_dim, float scale, uint32_t *to, int32_t stride) {
    for (int32_t d = 0; d < head_dim; d += LANES) {
        f32x16 part = splat(0);
        memcpy(&part, from + d, (head_dim - d < LANES ? head_dim - d : LANES) * sizeof(float));
        const u16x16 rounded = floats_to_bfloats(part * scale);
        for (int32_t w = 0; w < LANES / 2; w++)
            memcpy(to + (d / 2 + w) * stride, (const char *)&rounded + w * sizeof *to, sizeof *to);
    }
}

static void start_queries(
    const struct model *m, const struct stretch *s, int32_t head, int32_t base, const float *queries, int64_t stride,
    struct attention_memory *memory) {
    const int32_t num_queries = s->num_rows * (m->heads / m->kv_heads);
    for (int32_t q = 0; q < num_queries; q++) {
        place_query(queries + query_offset(m, s, head, q, stride), m->head_dim, m->scale * LOG2_E,
                    memory->queries + base + q, memory->most);
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
    for (int32_t h = 0; h < num_heads; h++)
        start_queries(m, s, first_head + h, h * a_head, queries, query_stride, memory);
    for (int32_t position = 0; position < end; position += REACH) {
        struct reach reach;
        reach_for(m, s, position, &reach);
        for (int32_t h = 0; h < num_heads; h++) meet_all(m, layer, s, &reach, first_head + h, h * a_head, memory);
    }
    for (int32_t h = 0; h < num_heads; h++)
        finish_queries(m, s, first_head + h, h * a_head, out, out_stride, memory);
}

#endif
