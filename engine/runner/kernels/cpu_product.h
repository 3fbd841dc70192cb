/* Products of packed matrices with rows of activations, as the sums of one tile for a few rows at a time.
 *
 * For quantised weights the activations are quantised too, to int8 in groups of 32 with a scale each; a group's
 * products are summed exactly, in integers. Where that is too coarse, what it loses is quantised again and added. For
 * bfloat16 weights they are bfloat16 where the machine multiplies that, else float32.
 */
#ifndef CPU_PRODUCT_H
#define CPU_PRODUCT_H

#include "cpu_model.h"
#include "cpu_vector.h"

/* Rows that a tile is multiplied with while its weights are in registers: as many as there is room for. */
#if defined(__AVX512F__)
#define MOST_ROWS 8
#else
#define MOST_ROWS 2
#endif

#define ROW_BLOCK 8

/* Rows of a product's right side, each `stride` numbers long; a stride is a multiple of 32. What products read lies by
 * blocks of 8 rows, in them by groups of columns, in a group row by row: the rows of a tile are neighbours. Where int8
 * is too coarse, a row has two parts, the second being what the first lost; the parts lie as rows of their own.
 */
struct activations {
    int32_t stride, parts;
    float *values;      /* [rows, stride], zero past the columns */
    uint16_t *bfloats;  /* [rows / 8, stride / 4, 8, 4] */
    int8_t *codes;      /* [rows * parts / 8, stride / 32, 8, 32] */
    float *scales;      /* [rows * parts / 8, stride / 32, 8]: value = scale * code */
    float *sums;        /* [rows * parts / 8, stride / 32, 8]: the sum of a group's scale * code */
    int32_t *half_sums; /* [rows * parts / 8, stride / 32, 8, 2]: sums of codes */
};

typedef int8_t i8x16 __attribute__((vector_size(16)));

/* Where group `group` of row `row` lies, counted in rows of a group. */
INLINE int64_t place_of(int64_t row, int64_t group, int64_t groups) {
    return (row / ROW_BLOCK * groups + group) * ROW_BLOCK + row % ROW_BLOCK;
}

INLINE int32_t sum_of_codes(i32x16 v) { return (int32_t)sum_of_lanes(to_floats(v)); }

/* One part of a group; what it loses stays in `values`. */
INLINE void quantise_part(struct activations *x, int64_t place, f32x16 values[2]) {
    const float peak = largest_of_lanes(largest(magnitude(values[0]), magnitude(values[1])));
    const float inverse = peak > 1e-30f ? 127.0f / peak : 0.0f, scale = peak / 127.0f;
    for (int half = 0; half < 2; half++) {
        const i32x16 codes = nearest(values[half] * inverse);
        const i8x16 bytes = __builtin_convertvector(codes, i8x16);
        memcpy(x->codes + place * GROUP + half * LANES, &bytes, sizeof bytes);
        x->half_sums[2 * place + half] = sum_of_codes(codes);
        values[half] -= to_floats(codes) * scale;
    }
    x->scales[place] = scale;
    x->sums[place] = scale * (float)(x->half_sums[2 * place] + x->half_sums[2 * place + 1]);
}

static void quantise_row(struct activations *x, int64_t row) {
    for (int32_t group = 0; group < x->stride / GROUP; group++) {
        const float *from = x->values + row * x->stride + group * GROUP;
        f32x16 values[2] = {load_floats(from), load_floats(from + LANES)};
        for (int32_t part = 0; part < x->parts; part++)
            quantise_part(x, place_of(row * x->parts + part, group, x->stride / GROUP), values);
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

/* codes[j]: columns 4j .. 4j + 3 of the group, of 16 rows. */
INLINE void load_codes(const int kind, const uint8_t *group, u32x16 codes[8]) {
    UNROLL for (int j = 0; j < 8; j++) {
        if (!has_nibbles(kind)) codes[j] = load_words(group + 64 * j);
        else if (j < 4) codes[j] = load_words(group + 64 * j) & 0x0f0f0f0f;
        else codes[j] = (load_words(group + 64 * (j - 4)) >> 4) & 0x0f0f0f0f;
    }
}

INLINE void load_scales(const int kind, const uint8_t *group, f32x16 *first, f32x16 *second) {
    const uint8_t *at = group + (has_nibbles(kind) ? 256 : 512);
    *first = has_half_scales(kind) ? halves_to_floats(load_halves(at)) : load_floats((const float *)at);
    *second = has_half_scales(kind) ? halves_to_floats(load_halves(at + 32)) : load_floats((const float *)(at + 64));
}

INLINE int32_t four_bytes(const void *p) { int32_t v; memcpy(&v, p, sizeof v); return v; }

INLINE i32x16 dot_half(i32x16 sums, const u32x16 *codes, const int8_t *x) {
    UNROLL for (int j = 0; j < 4; j++) sums = dot_bytes(sums, codes[j], four_bytes(x + 4 * j));
    return sums;
}

/* The rows from `row` on lie in one block. */
INLINE void quantised_sums(
    const int kind, const int count, const uint8_t *tile, int32_t groups, const struct activations *x, int64_t row,
    f32x16 *sums) {
    const int64_t place = place_of(row, 0, x->stride / GROUP);
    const int8_t *values = x->codes + place * GROUP;
    const float *scales = x->scales + place, *totals = x->sums + place;
    const int32_t *halves = x->half_sums + 2 * place;
    UNROLL for (int b = 0; b < count; b++) sums[b] = splat(0);
    for (int32_t g = 0; g < groups; g++, tile += GROUP_BYTES[kind]) {
        u32x16 codes[8];
        f32x16 first, second;
        load_codes(kind, tile, codes);
        load_scales(kind, tile, &first, &second);
        UNROLL for (int b = 0; b < count; b++) {
            const int8_t *value = values + b * GROUP;
            if (kind == BYTES_PAIR) {
                const i32x16 low = dot_half(splat_int(-32 * halves[2 * b]), codes, value);
                const i32x16 high = dot_half(splat_int(-32 * halves[2 * b + 1]), codes + 4, value + LANES);
                sums[b] = multiply_add(to_floats(low), first * scales[b], sums[b]);
                sums[b] = multiply_add(to_floats(high), second * scales[b], sums[b]);
            } else {
                i32x16 products = dot_half(splat_int(0), codes, value);
                if (count > 2) products = dot_half(products, codes + 4, value + LANES);
                else products += dot_half(splat_int(0), codes + 4, value + LANES); /* few rows: shorter chains */
                sums[b] = multiply_add(to_floats(products), first * scales[b], sums[b]);
                sums[b] = multiply_add(second, splat(totals[b]), sums[b]);
            }
        }
        values += ROW_BLOCK * GROUP;
        scales += ROW_BLOCK;
        totals += ROW_BLOCK;
        halves += ROW_BLOCK * 2;
    }
}

/* Two sums a row, of even and odd columns or pairs: one alone would wait for itself. */
INLINE void bfloat_sums(
    const int count, const uint8_t *tile, int32_t pairs, const struct activations *x, int64_t row, f32x16 *sums) {
    f32x16 even[MOST_ROWS], odd[MOST_ROWS];
    UNROLL for (int b = 0; b < count; b++) even[b] = odd[b] = splat(0);
#if defined(__AVX512BF16__)
    const uint16_t *values = x->bfloats + 4 * place_of(row, 0, x->stride / 4);
    for (int32_t p = 0; p < pairs; p += 2, tile += 2 * 64, values += 4 * ROW_BLOCK) {
        const __m512bh first = (__m512bh)load_words(tile);
        const __m512bh second = (__m512bh)(p + 1 < pairs ? load_words(tile + 64) : (u32x16){0});
        UNROLL for (int b = 0; b < count; b++) {
            const __m512bh two = (__m512bh)_mm512_set1_epi32(four_bytes(values + 4 * b));
            const __m512bh next = (__m512bh)_mm512_set1_epi32(four_bytes(values + 4 * b + 2));
            even[b] = (f32x16)_mm512_dpbf16_ps((__m512)even[b], first, two);
            odd[b] = (f32x16)_mm512_dpbf16_ps((__m512)odd[b], second, next);
        }
    }
#else
    const float *values = x->values + row * x->stride;
    for (int32_t p = 0; p < pairs; p++, tile += 64) {
        const u32x16 words = load_words(tile);
        const f32x16 first = (f32x16)(words << 16), second = (f32x16)(words & 0xffff0000);
        UNROLL for (int b = 0; b < count; b++) {
            const float *value = values + b * (int64_t)x->stride + 2 * p;
            even[b] = multiply_add(first, splat(value[0]), even[b]);
            odd[b] = multiply_add(second, splat(value[1]), odd[b]);
        }
    }
#endif
    UNROLL for (int b = 0; b < count; b++) sums[b] = even[b] + odd[b];
}

typedef void (*tile_function)(
    const uint8_t *tile, int32_t groups, const struct activations *x, int64_t row, f32x16 *sums);

#define QUANTISED_TILE(KIND, COUNT)                                                                                    \
    static void KIND##_##COUNT(                                                                                        \
        const uint8_t *tile, int32_t groups, const struct activations *x, int64_t row, f32x16 *sums) {                 \
        f32x16 local[COUNT];                                                                                           \
        quantised_sums(KIND, COUNT, tile, groups, x, row, local);                                                      \
        memcpy(sums, local, sizeof local);                                                                             \
    }
#define BFLOAT_TILE(KIND, COUNT)                                                                                       \
    static void KIND##_##COUNT(                                                                                        \
        const uint8_t *tile, int32_t groups, const struct activations *x, int64_t row, f32x16 *sums) {                 \
        f32x16 local[COUNT];                                                                                           \
        bfloat_sums(COUNT, tile, groups, x, row, local);                                                               \
        memcpy(sums, local, sizeof local);                                                                             \
    }
#if MOST_ROWS == 8
#define EACH_COUNT(MAKE, KIND) MAKE(KIND, 1) MAKE(KIND, 2) MAKE(KIND, 4) MAKE(KIND, 8)
#define ALL_COUNTS(KIND) {KIND##_1, KIND##_2, KIND##_4, KIND##_8}
#else
#define EACH_COUNT(MAKE, KIND) MAKE(KIND, 1) MAKE(KIND, 2)
#define ALL_COUNTS(KIND) {KIND##_1, KIND##_2}
#endif

EACH_COUNT(QUANTISED_TILE, NIBBLES_HALF)
EACH_COUNT(QUANTISED_TILE, BYTES_HALF)
EACH_COUNT(QUANTISED_TILE, NIBBLES_FLOAT)
EACH_COUNT(QUANTISED_TILE, BYTES_FLOAT)
EACH_COUNT(QUANTISED_TILE, BYTES_PAIR)
EACH_COUNT(BFLOAT_TILE, BFLOATS)

static const tile_function TILE_FUNCTIONS[NUM_KINDS][4] = {
    [NIBBLES_HALF] = ALL_COUNTS(NIBBLES_HALF), [BYTES_HALF] = ALL_COUNTS(BYTES_HALF),
    [NIBBLES_FLOAT] = ALL_COUNTS(NIBBLES_FLOAT), [BYTES_FLOAT] = ALL_COUNTS(BYTES_FLOAT),
    [BYTES_PAIR] = ALL_COUNTS(BYTES_PAIR), [BFLOATS] = ALL_COUNTS(BFLOATS),
};

/* Sums of `tile` for rows from `row` on, as many as fit one call, all in one block of rows; how many were done. */
INLINE int32_t tile_sums(
    const struct matrix *m, int32_t tile, const struct activations *x, int64_t row, int64_t rows, f32x16 *sums) {
    const int parts = m->kind == BFLOATS ? 1 : x->parts;
    int power = 0;
    while (2 << power <= MOST_ROWS && 2 << power <= rows * parts) power++;
    TILE_FUNCTIONS[m->kind][power](tile_of(m, tile), num_groups(m), x, row * parts, sums);
    for (int b = 0; parts == 2 && b < 1 << (power - 1); b++) sums[b] = sums[2 * b] + sums[2 * b + 1];
    return (1 << power) / parts;
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
