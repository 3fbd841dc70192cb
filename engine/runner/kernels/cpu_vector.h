/* Sixteen lanes of everything, as vector extensions of the compiler: on any machine the same sums in the same order.
 *
 * Where an instruction set has what plain C cannot say (a fused multiply-add, a dot product of bytes), a function here
 * uses it; nothing outside this file looks at the instruction set. No result depends on how rows are batched: every
 * row's arithmetic is the same sequence of operations wherever the row stands.
 */
#ifndef CPU_VECTOR_H
#define CPU_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LANES 16
#define LOG2_E 1.44269504f
#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

INLINE f32x16 splat(float x) { return (f32x16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
INLINE i32x16 splat_int(int32_t x) { return (i32x16){0} + x; }

INLINE f32x16 load_floats(const float *p) { f32x16 v; memcpy(&v, p, sizeof v); return v; }
INLINE void store_floats(float *p, f32x16 v) { memcpy(p, &v, sizeof v); }

/* A whole line past the caches, for what is not read soon; `p` is 64-byte aligned. Others see it after the fence. */
INLINE void stream_floats(float *p, f32x16 v) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, (__m512)v);
#else
    store_floats(p, v);
#endif
}
INLINE void stream_fence(void) {
#if defined(__AVX512F__)
    _mm_sfence();
#endif
}

INLINE u32x16 load_words(const void *p) { u32x16 v; memcpy(&v, p, sizeof v); return v; }
INLINE u16x16 load_halves(const void *p) { u16x16 v; memcpy(&v, p, sizeof v); return v; }

/* Lane i of `mask` is all ones or zero: a there, b elsewhere. */
INLINE f32x16 choose(i32x16 mask, f32x16 a, f32x16 b) { return (f32x16)((mask & (i32x16)a) | (~mask & (i32x16)b)); }

/* a * b + c: fused where the machine can, and always in the same way. */
INLINE f32x16 multiply_add(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    union { f32x16 v; __m256 half[2]; } x = {a}, y = {b}, z = {c};
    for (int i = 0; i < 2; i++) z.half[i] = _mm256_fmadd_ps(x.half[i], y.half[i], z.half[i]);
    return z.v;
#else
    return a * b + c;
#endif
}

INLINE f32x16 largest(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return choose(a > b, a, b);
#endif
}

INLINE f32x16 smallest(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return choose(a < b, a, b);
#endif
}

/* Whether any lane is above `limit`. */
INLINE int any_above(f32x16 a, float limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
#else
    int any = 0;
    for (int i = 0; i < LANES; i++) any |= a[i] > limit;
    return any;
#endif
}

INLINE f32x16 magnitude(f32x16 a) { return (f32x16)((i32x16)a & 0x7fffffff); }

INLINE float sum_of_lanes(f32x16 v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float lanes[LANES];
    store_floats(lanes, v);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
#endif
}

INLINE float largest_of_lanes(f32x16 v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float lanes[LANES];
    store_floats(lanes, v);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
#endif
}

/* sums + the dot product of four bytes a lane: `codes` unsigned, `values` signed, exact. */
INLINE i32x16 dot_bytes(i32x16 sums, u32x16 codes, int32_t values) {
#if defined(__AVX512VNNI__)
    return (i32x16)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, _mm512_set1_epi32(values));
#elif defined(__AVX2__)
    union { i32x16 v; u32x16 u; __m256i half[2]; } total = {sums}, code = {.u = codes};
    const __m256i low = _mm256_set1_epi32(0x00ff00ff), four = _mm256_set1_epi32(values);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8), odd = _mm256_srai_epi16(four, 8);
    for (int i = 0; i < 2; i++) {
        const __m256i a = _mm256_madd_epi16(_mm256_and_si256(code.half[i], low), even);
        const __m256i b = _mm256_madd_epi16(_mm256_srli_epi16(code.half[i], 8), odd);
        total.half[i] = _mm256_add_epi32(total.half[i], _mm256_add_epi32(a, b));
    }
    return total.v;
#else
    for (int i = 0; i < 4; i++) sums += (i32x16)((codes >> (8 * i)) & 255) * (int32_t)(int8_t)(values >> (8 * i));
    return sums;
#endif
}

INLINE f32x16 to_floats(i32x16 v) { return __builtin_convertvector(v, f32x16); }

/* The nearest integers, ties to even, for magnitudes below 2^22. */
INLINE i32x16 nearest(f32x16 v) {
#if defined(__AVX512F__)
    return (i32x16)_mm512_cvtps_epi32((__m512)v);
#else
    const float magic = 12582912.0f; /* 1.5 * 2^23: its last bit is worth one */
    return (i32x16)(v + magic) - splat_int(0x4b400000);
#endif
}

/* IEEE half precision, infinities and NaN excepted: they stand in no scale. */
INLINE f32x16 halves_to_floats(u16x16 h) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_cvtph_ps((__m256i)h);
#else
    const u32x16 wide = __builtin_convertvector(h, u32x16);
    const f32x16 size = (f32x16)((wide & 0x7fff) << 13) * 0x1p112f;
    return (f32x16)((u32x16)size | (wide & 0x8000) << 16);
#endif
}

/* sums + the dot product of a lane's two bfloat16 with those of `pair`, the lower half first. */
INLINE f32x16 dot_bfloats(f32x16 sums, u32x16 words, uint32_t pair) {
#if defined(__AVX512BF16__)
    return (f32x16)_mm512_dpbf16_ps((__m512)sums, (__m512bh)words, (__m512bh)_mm512_set1_epi32((int32_t)pair));
#else
    const uint32_t low = pair << 16, high = pair & 0xffff0000;
    float first, second;
    memcpy(&first, &low, sizeof first);
    memcpy(&second, &high, sizeof second);
    sums = multiply_add((f32x16)(words << 16), splat(first), sums);
    return multiply_add((f32x16)(words & 0xffff0000), splat(second), sums);
#endif
}

INLINE f32x16 bfloats_to_floats(u16x16 b) {
#if defined(__AVX512F__)
    return (f32x16)((u32x16)_mm512_cvtepu16_epi32((__m256i)b) << 16);
#else
    return (f32x16)(__builtin_convertvector(b, u32x16) << 16);
#endif
}

/* Rounded to nearest, ties to even. */
INLINE u16x16 floats_to_bfloats(f32x16 v) {
#if defined(__AVX512BF16__)
    return (u16x16)_mm512_cvtneps_pbh((__m512)v);
#endif
    const u32x16 bits = (u32x16)v;
    return __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, u16x16);
}

/* e^x to 2 units in the last place, exactly 1 at 0; x is cut to what float32 can hold. */
INLINE f32x16 exponential(f32x16 x) {
    x = smallest(largest(x, splat(-87.0f)), splat(88.0f));
    const i32x16 n = nearest(x * LOG2_E);
    const f32x16 whole = to_floats(n);
    f32x16 r = multiply_add(whole, splat(-0.693359375f), x);
    r = multiply_add(whole, splat(2.12194440e-4f), r);
    f32x16 p = splat(1.9875691500e-4f);
    p = multiply_add(p, r, splat(1.3981999507e-3f));
    p = multiply_add(p, r, splat(8.3334519073e-3f));
    p = multiply_add(p, r, splat(4.1665795894e-2f));
    p = multiply_add(p, r, splat(1.6666665459e-1f));
    p = multiply_add(p, r, splat(5.0000001201e-1f));
    p = multiply_add(p, r * r, r) + 1.0f;
    return p * (f32x16)((n + 127) << 23);
}

/* 2^x to 2^-18 of it, exactly 1 at 0, for x below 127; far below it is 0, or next to that. */
INLINE f32x16 power_of_two(f32x16 x) {
#if defined(__AVX512F__)
    const f32x16 whole = (f32x16)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    x = largest(x, splat(-126.0f));
    const f32x16 whole = to_floats(nearest(x));
#endif
    const f32x16 r = x - whole;
    f32x16 p = splat(0.00958277f);
    p = multiply_add(p, r, splat(0.055906229f));
    p = multiply_add(p, r, splat(0.24024099f));
    p = multiply_add(p, r, splat(0.69312422f));
    p = multiply_add(p, r, splat(1.0f));
#if defined(__AVX512F__)
    return (f32x16)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    return p * (f32x16)((nearest(whole) + 127) << 23);
#endif
}

/* 1 / (1 + e^-x) to 2^-17 of it. */
INLINE f32x16 sigmoid(f32x16 x) {
    const f32x16 below = 1.0f + power_of_two(smallest(x * -LOG2_E, splat(126.0f)));
#if defined(__AVX512F__)
    const f32x16 rough = (f32x16)_mm512_rcp14_ps((__m512)below);
    return multiply_add(multiply_add(-below, rough, splat(1.0f)), rough, rough);
#else
    return 1.0f / below;
#endif
}

#endif
