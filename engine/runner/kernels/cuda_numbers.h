/* bfloat16 (with BFLOAT16 defined) or float16 in 16 bits, to and from float; no header of the toolkit is needed. */
#pragma once

struct Number {
    unsigned short bits;
};

#ifdef BFLOAT16

__device__ inline float to_float(Number number) { return __uint_as_float((unsigned int)number.bits << 16); }

/* To the nearest, ties to even. */
__device__ inline Number from_float(float value) {
    unsigned int bits = __float_as_uint(value);
    if (value != value) return Number{0x7fc0};
    return Number{(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

#else

#ifdef __CUDACC__

__device__ inline float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

/* To the nearest, ties to even. */
__device__ inline unsigned short float_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

#endif

__device__ inline float to_float(Number number) { return half_to_float(number.bits); }

__device__ inline Number from_float(float value) { return Number{float_to_half(value)}; }

#endif
