/* Products of packed matrices with rows of activations: the sums of two tiles, a few rows at a time.
 *
 * For quantised weights the activations are quantised too, to int8 in groups of 32 with a scale each; a group's
 * products are summed exactly, in integers. Some groups of a row hold numbers much larger than the others, and would
 * bring in most of its error: what they lose is quantised again and added. For bfloat16 weights activations are
 * bfloat16 where the machine multiplies that, else float32. Two tiles share every number of the right side: a number
 * takes as long to load as its product takes. The columns are taken block by block: what two tiles hold of one stays in
 * the first cache while all rows are multiplied with it.
 */
#ifndef CPU_PRODUCT_H
#define CPU_PRODUCT_H

#include <math.h>

#include "cpu_model.h"
#include "cpu_vector.h"

/* Rows that two tiles are multiplied with at once: as many as there are registers for their sums. */
#if defined(__AVX512F__)
#define MOST_ROWS 4
#else
#define MOST_ROWS 2
#endif

#define ROW_BLOCK 8
#define PAIR 2

/* A group with a peak this many times the root mean square of its row has a second part. */
#define LARGE_PEAK 7.0f

/* Groups in a block of columns, at most. */
#define MOST_GROUPS 18

/* Groups as int8: [rows / 8, stride / 32, 8] of them. */
struct part {
    int8_t *codes;      /* [..., 32] */
    float *scales;      /* value = scale * code */
    float *sums;        /* the sum of a group's scale * code */
    int32_t *half_sums; /* [..., 2]: sums of codes */
};

/* Rows of a product's right side, each `stride` numbers long; a stride is a multiple of 32. What products read lies by
 * blocks of 8 rows, in them by groups of columns, in a group row by row: the rows of a block are neighbours.
 */
struct activations {
    int32_t stride;
    float *values;     /* [rows, stride], zero past the columns */
    uint16_t *bfloats; /* [rows / 8, stride / 4, 8, 4] */
    struct part first, second;
    uint32_t *with_second; /* [rows, blocks]: bit g is set where group g of the block has a second part */
};

/* Some groups of columns, `count` from `first` on. */
struct block {
    int32_t index, first, count;
};

/* A thread's working memory for products. */
struct product_memory {
    f32x16 *sums, *other; /* [rows, 2] */
};

typedef int8_t i8x16 __attribute__((vector_size(16)));

/* Where group `group` of row `row` lies, counted in rows of a group. */
INLINE int64_t place_of(int64_t row, int64_t group, int64_t groups) {
    return (row / ROW_BLOCK * groups + group) * ROW_BLOCK + row % ROW_BLOCK;
}

INLINE int32_t num_blocks(int32_t groups) { return (groups + MOST_GROUPS - 1) / MOST_GROUPS; }

INLINE int32_t block_groups(int32_t groups) { return (groups + num_blocks(groups) - 1) / num_blocks(groups); }

INLINE int32_t sum_of_codes(i32x16 v) { return (int32_t)sum_of_lanes(to_floats(v)); }

/* One part of a group, whose values are at most `peak`; what it loses stays in `values`. */
INLINE void quantise_part(const struct part *part, int64_t place, float peak, f32x16 values[2]) {
    const float inverse = peak > 1e-30f ? 127.0f / peak : 0.0f, scale = peak / 127.0f;
    int32_t *sums = part->half_sums + 2 * place;
    for (int half = 0; half < 2; half++) {
        const i32x16 codes = nearest(values[half] * inverse);
        const i8x16 bytes = __builtin_convertvector(codes, i8x16);
        memcpy(part->codes + place * GROUP + half * LANES, &bytes, sizeof bytes);
        sums[half] = sum_of_codes(codes);
        values[half] -= to_floats(codes) * scale;
    }
    part->scales[place] = scale;
    part->sums[place] = scale * (float)(sums[0] + sums[1]);
}

INLINE float peak_of(const f32x16 values[2]) {
    return largest_of_lanes(largest(magnitude(values[0]), magnitude(values[1])));
}

/* The peaks of a row's groups become their scales for the time being; the row's root mean square. */
static float find_peaks(struct activations *x, int64_t row) {
    const int32_t groups = x->stride / GROUP;
    f32x16 squares = splat(0);
    for (int32_t group = 0; group < groups; group++) {
        const float *from = x->values + row * x->stride + group * GROUP;
        const f32x16 values[2] = {load_floats(from), load_floats(from + LANES)};
        x->first.scales[place_of(row, group, groups)] = peak_of(values);
        squares = multiply_add(values[0], values[0], multiply_add(values[1], values[1], squares));
    }
    return sqrtf(sum_of_lanes(squares) / (float)x->stride);
}

static void quantise_row(struct activations *x, int64_t row) {
    const int32_t groups = x->stride / GROUP, size = block_groups(groups);
    const float large = LARGE_PEAK * find_peaks(x, row);
    uint32_t *with_second = x->with_second + row * num_blocks(groups);
    memset(with_second, 0, num_blocks(groups) * sizeof *with_second);
    for (int32_t group = 0; group < groups; group++) {
        const int64_t place = place_of(row, group, groups);
        const float *from = x->values + row * x->stride + group * GROUP, peak = x->first.scales[place];
        f32x16 values[2] = {load_floats(from), load_floats(from + LANES)};
        quantise_part(&x->first, place, peak, values);
        if (peak <= large) continue;
        quantise_part(&x->second, place, peak_of(values), values);
        with_second[group / size] |= 1u << group % size;
    }
}

static void round_row(struct activations *x, int64_t row) {
    for (int32_t i = 0; i < x->stride; i += LANES) {
        const u16x16 rounded = floats_to_bfloats(load_floats(x->values + row * x->stride + i));
        for (int32_t four = 0; four < 4; four++)
            memcpy(x->bfloats + 4 * place_of(row, i / 4 + four, x->stride / 4), (const char *)&rounded + 8 * four, 8);
    }
}

/* Derive the forms that products need from `values` of one row. */
static void prepare_row(struct activations *x, int64_t row, int quantised, int bfloats) {
    if (quantised) quantise_row(x, row);
    if (bfloats) round_row(x, row);
}

INLINE int has_half_scales(const int kind) { return kind == NIBBLES_HALF || kind == BYTES_HALF; }
INLINE int has_nibbles(const int kind) { return kind == NIBBLES_HALF || kind == NIBBLES_FLOAT; }

/* Columns 4j .. 4j + 3 of the group, of 16 rows. */
INLINE u32x16 load_codes(const int kind, const uint8_t *group, const int j) {
    if (!has_nibbles(kind)) return load_words(group + 64 * j);
    return (j < 4 ? load_words(group + 64 * j) : load_words(group + 64 * (j - 4)) >> 4) & 0x0f0f0f0f;
}

INLINE void load_scales(const int kind, const uint8_t *group, f32x16 *first, f32x16 *second) {
    const uint8_t *at = group + (has_nibbles(kind) ? 256 : 512);
    *first = has_half_scales(kind) ? halves_to_floats(load_halves(at)) : load_floats((const float *)at);
    *second = has_half_scales(kind) ? halves_to_floats(load_halves(at + 32)) : load_floats((const float *)(at + 64));
}

INLINE int32_t four_bytes(const void *p) { int32_t v; memcpy(&v, p, sizeof v); return v; }

/* What a group is worth to a few rows' sums: [2 tiles, count]. */
INLINE void add_products(
    const int kind, const int count, const int tile, const int half, const uint8_t *group, const i32x16 *products,
    const struct part *x, int64_t place, f32x16 *sums) {
    f32x16 first, second;
    load_scales(kind, group, &first, &second);
    UNROLL for (int b = 0; b < count; b++) {
        f32x16 *sum = sums + tile * count + b;
        const f32x16 scale = (kind == BYTES_PAIR && half ? second : first) * x->scales[place + b];
        *sum = multiply_add(to_floats(products[tile * count + b]), scale, *sum);
        if (kind != BYTES_PAIR) *sum = multiply_add(second, splat(x->sums[place + b]), *sum);
    }
}

/* Add the products of a group of two tiles with `count` rows, whose groups lie at `place` of `x`. */
INLINE void add_group(
    const int kind, const int count, const uint8_t *const groups[PAIR], const struct part *x, int64_t place,
    f32x16 *sums) {
    const int halves = kind == BYTES_PAIR ? 2 : 1; /* with scales of their own */
    const int8_t *values = x->codes + place * GROUP;
    UNROLL for (int half = 0; half < halves; half++) {
        i32x16 products[PAIR * MOST_ROWS];
        UNROLL for (int b = 0; b < PAIR * count; b++)
            products[b] = splat_int(kind == BYTES_PAIR ? -32 * x->half_sums[2 * (place + b % count) + half] : 0);
        UNROLL for (int j = half * 4; j < half * 4 + 8 / halves; j++) {
            const u32x16 codes[PAIR] = {load_codes(kind, groups[0], j), load_codes(kind, groups[1], j)};
            UNROLL for (int b = 0; b < count; b++) {
                const int32_t four = four_bytes(values + b * GROUP + 4 * j);
                products[b] = dot_bytes(products[b], codes[0], four);
                products[count + b] = dot_bytes(products[count + b], codes[1], four);
            }
        }
        UNROLL for (int tile = 0; tile < PAIR; tile++)
            add_products(kind, count, tile, half, groups[tile], products, x, place, sums);
    }
}

/* Add the second parts of a row in a block; its groups lie at `place` and every 8 from there. */
INLINE void add_second_parts(
    const int kind, const uint8_t *const tiles[PAIR], uint32_t groups, const struct part *second, int64_t place,
    f32x16 *sums) {
    f32x16 local[PAIR] = {sums[0], sums[1]};
    for (; groups; groups &= groups - 1) {
        const int g = __builtin_ctz(groups);
        const uint8_t *const pair[PAIR] = {tiles[0] + g * GROUP_BYTES[kind], tiles[1] + g * GROUP_BYTES[kind]};
        add_group(kind, 1, pair, second, place + g * ROW_BLOCK, local);
    }
    sums[0] = local[0];
    sums[1] = local[1];
}

/* Have memory bring what lies `ahead` bytes behind both pointers: the next tiles, while these are computed. */
INLINE void ask_for(const uint8_t *const pair[PAIR], int64_t ahead, const int bytes) {
    UNROLL for (int tile = 0; tile < PAIR; tile++)
        UNROLL for (int line = 0; line < bytes; line += 64) __builtin_prefetch(pair[tile] + ahead + line, 0, 2);
}

/* `tiles` begin with the block; the rows from `row` on lie in one block of rows. A single row is done with a tile
 * before it would help to ask for the next.
 */
INLINE void quantised_sums(
    const int kind, const int count, const uint8_t *const tiles[PAIR], const struct block *block,
    const struct activations *x, int64_t row, f32x16 *sums) {
    const int32_t groups = x->stride / GROUP;
    const int64_t first_place = place_of(row, block->first, groups);
    f32x16 local[PAIR * MOST_ROWS];
    UNROLL for (int b = 0; b < count; b++)
        UNROLL for (int tile = 0; tile < PAIR; tile++)
            local[tile * count + b] = block->first ? sums[PAIR * b + tile] : splat(0);
    int64_t place = first_place;
    for (int32_t g = 0; g < block->count; g++, place += ROW_BLOCK) {
        const uint8_t *const pair[PAIR] = {tiles[0] + g * GROUP_BYTES[kind], tiles[1] + g * GROUP_BYTES[kind]};
        if (count > 1 && !row) ask_for(pair, groups * GROUP_BYTES[kind], GROUP_BYTES[kind]);
        add_group(kind, count, pair, &x->first, place, local);
    }
    UNROLL for (int b = 0; b < count; b++)
        UNROLL for (int tile = 0; tile < PAIR; tile++) sums[PAIR * b + tile] = local[tile * count + b];
    for (int b = 0; b < count; b++)
        add_second_parts(kind, tiles, x->with_second[(row + b) * num_blocks(groups) + block->index], &x->second,
                         first_place + b, sums + PAIR * b);
}

INLINE void bfloat_sums(
    const int count, const uint8_t *const tiles[PAIR], const struct block *block, const struct activations *x,
    int64_t row, f32x16 *sums) {
    const int32_t pairs = block->count;
    f32x16 local[PAIR * MOST_ROWS];
    UNROLL for (int b = 0; b < PAIR * count; b++) local[b] = splat(0);
#if defined(__AVX512BF16__)
    const uint16_t *values = x->bfloats + 4 * place_of(row, 0, x->stride / 4);
    for (int32_t p = 0; p < pairs; p++) {
        const u32x16 first = load_words(tiles[0] + p * 64), second = load_words(tiles[1] + p * 64);
        UNROLL for (int b = 0; b < count; b++) {
            const uint32_t two = (uint32_t)four_bytes(values + 4 * b + p % 2 * 2);
            local[b] = dot_bfloats(local[b], first, two);
            local[count + b] = dot_bfloats(local[count + b], second, two);
        }
        values += p % 2 * 4 * ROW_BLOCK;
    }
#else
    const float *values = x->values + row * x->stride;
    for (int32_t p = 0; p < pairs; p++) {
        UNROLL for (int tile = 0; tile < PAIR; tile++) {
            const u32x16 words = load_words(tiles[tile] + p * 64);
            const f32x16 first = (f32x16)(words << 16), second = (f32x16)(words & 0xffff0000);
            UNROLL for (int b = 0; b < count; b++) {
                const float *value = values + b * (int64_t)x->stride + 2 * p;
                f32x16 *sum = local + tile * count + b;
                *sum = multiply_add(second, splat(value[1]), multiply_add(first, splat(value[0]), *sum));
            }
        }
    }
#endif
    UNROLL for (int b = 0; b < count; b++)
        UNROLL for (int tile = 0; tile < PAIR; tile++) sums[PAIR * b + tile] = local[tile * count + b];
}

/* sums[count, 2] of both tiles, for `count` rows from `row` on; but for the first block they go on from there. */
typedef void (*pair_function)(
    const uint8_t *const tiles[PAIR], const struct block *block, const struct activations *x, int64_t row,
    f32x16 *sums);

#define QUANTISED_PAIR(KIND, COUNT)                                                                                    \
    static void KIND##_##COUNT(                                                                                        \
        const uint8_t *const tiles[PAIR], const struct block *block, const struct activations *x, int64_t row,         \
        f32x16 *sums) {                                                                                                \
        quantised_sums(KIND, COUNT, tiles, block, x, row, sums);                                                       \
    }
#define BFLOAT_PAIR(KIND, COUNT)                                                                                       \
    static void KIND##_##COUNT(                                                                                        \
        const uint8_t *const tiles[PAIR], const struct block *block, const struct activations *x, int64_t row,         \
        f32x16 *sums) {                                                                                                \
        bfloat_sums(COUNT, tiles, block, x, row, sums);                                                                \
    }
#if MOST_ROWS == 4
#define EACH_COUNT(MAKE, KIND) MAKE(KIND, 1) MAKE(KIND, 2) MAKE(KIND, 4)
#define ALL_COUNTS(KIND) {KIND##_1, KIND##_2, KIND##_4}
#else
#define EACH_COUNT(MAKE, KIND) MAKE(KIND, 1) MAKE(KIND, 2)
#define ALL_COUNTS(KIND) {KIND##_1, KIND##_2}
#endif

EACH_COUNT(QUANTISED_PAIR, NIBBLES_HALF)
EACH_COUNT(QUANTISED_PAIR, BYTES_HALF)
EACH_COUNT(QUANTISED_PAIR, NIBBLES_FLOAT)
EACH_COUNT(QUANTISED_PAIR, BYTES_FLOAT)
EACH_COUNT(QUANTISED_PAIR, BYTES_PAIR)
EACH_COUNT(BFLOAT_PAIR, BFLOATS)

static const pair_function PAIR_FUNCTIONS[NUM_KINDS][3] = {
    [NIBBLES_HALF] = ALL_COUNTS(NIBBLES_HALF), [BYTES_HALF] = ALL_COUNTS(BYTES_HALF),
    [NIBBLES_FLOAT] = ALL_COUNTS(NIBBLES_FLOAT), [BYTES_FLOAT] = ALL_COUNTS(BYTES_FLOAT),
    [BYTES_PAIR] = ALL_COUNTS(BYTES_PAIR), [BFLOATS] = ALL_COUNTS(BFLOATS),
};

/* A tile of a matrix. */
struct tile {
    const struct matrix *matrix;
    int32_t index;
};

/* sums[rows, 2] of two tiles of one kind. */
static void sum_tiles(const struct tile pair[PAIR], const struct activations *x, int32_t rows, f32x16 *sums) {
    const struct matrix *m = pair[0].matrix;
    const int32_t groups = num_groups(m), size = m->kind == BFLOATS ? groups : block_groups(groups);
    for (struct block block = {0, 0, size}; block.first < groups; block.index++, block.first += size) {
        const uint8_t *tiles[PAIR];
        for (int i = 0; i < PAIR; i++)
            tiles[i] = tile_of(pair[i].matrix, pair[i].index) + (int64_t)block.first * GROUP_BYTES[m->kind];
        if (block.count > groups - block.first) block.count = groups - block.first;
        for (int32_t row = 0, power = MOST_ROWS / 2; row < rows; row += 1 << power) {
            while (1 << power > rows - row) power--;
            PAIR_FUNCTIONS[m->kind][power](tiles, &block, x, row, sums + PAIR * row);
        }
    }
}

/* sums[rows, 2] of two tiles with as many columns; they last until the next call with this memory. */
static const f32x16 *pair_sums(
    const struct tile pair[PAIR], const struct activations *x, int32_t rows, const struct product_memory *memory) {
    const struct tile twice[2][PAIR] = {{pair[0], pair[0]}, {pair[1], pair[1]}};
    const int same = pair[0].matrix->kind == pair[1].matrix->kind;
    sum_tiles(same ? pair : twice[0], x, rows, memory->sums);
    if (same) return memory->sums;
    sum_tiles(twice[1], x, rows, memory->other);
    for (int32_t row = 0; row < rows; row++) memory->sums[PAIR * row + 1] = memory->other[PAIR * row + 1];
    return memory->sums;
}

/* Row `row` of a matrix as float32 [columns]. */
static void unpack_row(const struct matrix *m, int32_t row, float *out) {
    const int kind = m->kind, lane = row % TILE_ROWS;
    const uint8_t *group = tile_of(m, row / TILE_ROWS);
    for (int32_t g = 0; g < num_groups(m); g++, group += GROUP_BYTES[kind]) {
        if (kind == BFLOATS) {
            uint32_t pair;
            memcpy(&pair, group + 4 * lane, sizeof pair);
            const uint32_t bits[2] = {pair << 16, pair & 0xffff0000};
            memcpy(out + 2 * g, bits, (2 * g + 1 < m->columns ? 2 : 1) * sizeof(float));
            continue;
        }
        f32x16 first, second;
        load_scales(kind, group, &first, &second);
        for (int i = 0; i < GROUP; i++) {
            const int j = has_nibbles(kind) ? i / 4 % 4 : i / 4, high = has_nibbles(kind) && i >= 16;
            const int code = group[64 * j + 4 * lane + i % 4];
            const int value = has_nibbles(kind) ? (high ? code >> 4 : code & 15) : code;
            out[g * GROUP + i] = kind == BYTES_PAIR ? (i < 16 ? first : second)[lane] * (float)(value - 32)
                                                    : first[lane] * (float)value + second[lane];
        }
    }
}

#endif
