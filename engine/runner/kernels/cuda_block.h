/* What the threads of a block compute together: reductions, sums of all before, and keys that sort like numbers.

   Every thread of the block must call these together; blockDim.x is a multiple of 32. Results are the same whatever
   order the threads run in. */
#pragma once

#define ALL_LANES 0xffffffffu
#define WARP 32

__device__ inline float infinity() { return __uint_as_float(0x7f800000u); }

__device__ inline bool is_finite(float value) { return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u; }

/* Unsigned numbers in the order of the floats; every NaN above all of them. */
__device__ inline unsigned int order_key(float value) {
    unsigned int bits = __float_as_uint(value);
    if (value != value) return 0xffffffffu;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline float value_of_key(unsigned int key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ inline unsigned long long order_key(double value) {
    unsigned long long bits = (unsigned long long)__double_as_longlong(value);
    return bits >> 63 ? ~bits : bits | (1ull << 63);
}

struct Sum {
    template <typename T> __device__ static T of(T a, T b) { return a + b; }
};

struct Largest {
    template <typename T> __device__ static T of(T a, T b) { return a > b ? a : b; }
};

/* The result in every lane, which adds in the same order in each. */
template <typename Operation, typename T> __device__ inline T warp_reduce(T value) {
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        value = Operation::of(value, __shfl_xor_sync(ALL_LANES, value, offset));
    return value;
}

/* The result in every thread; `nothing` is what changes no result. */
template <typename Operation, typename T> __device__ inline T block_reduce(T value, T nothing) {
    __shared__ T of_warps[WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    value = warp_reduce<Operation>(value);
    if (lane == 0) of_warps[warp] = value;
    __syncthreads();
    value = warp_reduce<Operation>(lane < (int)blockDim.x / WARP ? of_warps[lane] : nothing);
    __syncthreads();
    return value;
}

/* The sum over all threads before this one. */
template <typename T> __device__ inline T block_sum_before(T value) {
    __shared__ T of_warps[WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    T upto = value;
    for (int offset = 1; offset < WARP; offset *= 2) {
        T other = __shfl_up_sync(ALL_LANES, upto, offset);
        if (lane >= offset) upto += other;
    }
    if (lane == WARP - 1) of_warps[warp] = upto;
    __syncthreads();
    T before = upto - value;
    for (int other = 0; other < warp; other++) before += of_warps[other];
    __syncthreads();
    return before;
}

/* The least index among the threads' candidates with the largest score; -1 is no candidate. */
__device__ inline int block_best(unsigned long long key, int index) {
    unsigned long long best = block_reduce<Largest>(key, 0ull);
    unsigned int candidate = key == best && index >= 0 ? 0x7fffffffu - (unsigned int)index : 0u;
    return (int)(0x7fffffffu - block_reduce<Largest>(candidate, 0u));
}
