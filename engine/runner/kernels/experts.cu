/* Products of a few rows with the matrices of their experts: each row goes through some of many, known on the GPU alone.

   Rows are sorted by expert. A block takes some columns of the result for one expert, and goes through the expert's rows
   by ROWS at a time: the rows, in tiles, into shared memory as floats, then each warp multiplies them with its own rows
   of the matrix, which are read once for all ROWS, each lane every 32nd piece. A result is added up in the same order
   whatever else is in the batch.

   multiply_gated   silu(x G) * (x U), where G and U lie below each other in the matrix of an expert
   multiply         x D, back to the order that the rows had before they were sorted

   The compiler is told BFLOAT16 (else the numbers are float16). Both kernels run with THREADS threads. */
#include "cuda_block.h"
#include "cuda_tiles.h"

#define THREADS 128
#define WARPS (THREADS / WARP)
#define ROWS 8                 /* of the input, at a time */
#define COLUMNS 4              /* rows of the matrix that a warp multiplies with */
#define TILE 64                /* pieces of a row */

struct __align__(16) Four {
    float number[4];
};

/* A piece in two halves, so that the lanes of a warp read from different banks. */
__shared__ Four low[ROWS][TILE], high[ROWS][TILE];

__device__ inline void store_piece(int row, int piece, Piece found) {
    Four first, last;
    for (int j = 0; j < 4; j++) {
        first.number[j] = to_float(found.number[j]);
        last.number[j] = to_float(found.number[j + 4]);
    }
    low[row][piece] = first;
    high[row][piece] = last;
}

__device__ inline void add_piece(float (*sums)[ROWS], const Piece *weights, int piece, int count) {
    float numbers[COLUMNS][8];
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
#pragma unroll
        for (int j = 0; j < 8; j++) numbers[column][j] = to_float(weights[column].number[j]);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        if (row >= count) continue;
        Four first = low[row][piece], last = high[row][piece];
#pragma unroll
        for (int column = 0; column < COLUMNS; column++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                sums[column][row] += numbers[column][j] * first.number[j] + numbers[column][j + 4] * last.number[j];
    }
}

/* What the rows at `places`, some of the sorted ones, give with COLUMNS rows of the matrix. Every thread takes part. */
__device__ inline void multiply_rows(float (*sums)[ROWS], const Piece *x, const Piece *const *weights, int pieces,
                                     const long long *places, int count, int share) {
    for (int first = 0; first < pieces; first += TILE) {
        int width = min(TILE, pieces - first);
        for (int i = threadIdx.x; i < count * width; i += THREADS) {
            int row = i / width, piece = i % width;
            store_piece(row, piece, x[places[row] / share * pieces + first + piece]);
        }
        __syncthreads();
        for (int piece = threadIdx.x % WARP; piece < width; piece += WARP) {
            Piece found[COLUMNS];
#pragma unroll
            for (int column = 0; column < COLUMNS; column++) found[column] = weights[column][first + piece];
            add_piece(sums, found, piece, count);
        }
        __syncthreads();
    }
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            if (row < count) sums[column][row] = warp_reduce<Sum>(sums[column][row]);
}

/* Of a block, the rows of the matrix that its warp multiplies with: with gates half of them gates, the rest their ups. */
template <bool GATED>
__device__ inline void choose_weights(const Piece **weights, const Piece *matrix, int pieces, int size, int first) {
#pragma unroll
    for (int column = 0; column < COLUMNS; column++) {
        int at = min(first + (GATED ? column % (COLUMNS / 2) : column), size - 1);
        if (GATED && column >= COLUMNS / 2) at += size;
        weights[column] = matrix + (long long)at * pieces;
    }
}

template <bool GATED>
__device__ inline void write_rows(Number *out, float (*sums)[ROWS], int size, int first, const long long *places,
                                  int count) {
    if (threadIdx.x % WARP) return;
#pragma unroll
    for (int column = 0; column < (GATED ? COLUMNS / 2 : COLUMNS); column++)
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            if (row >= count || first + column >= size) continue;
            float value = sums[column][row];
            if (GATED) value = value / (1.0f + expf(-value)) * sums[column + (GATED ? COLUMNS / 2 : 0)][row];
            out[places[row] * size + first + column] = from_float(value);
        }
}

template <bool GATED>
__device__ inline void multiply_experts(Number *out, const Piece *x, const Piece *matrices, int in_size, int size,
                                        const long long *experts, const int *starts, const long long *order,
                                        int share) {
    long long expert = experts[blockIdx.y];
    if (blockIdx.y > 0 && experts[blockIdx.y - 1] == expert) return;  /* another block does the work */
    int pieces = in_size / 8, first = (blockIdx.x * WARPS + threadIdx.x / WARP) * (GATED ? COLUMNS / 2 : COLUMNS);
    const Piece *weights[COLUMNS];
    const Piece *matrix = matrices + expert * (GATED ? 2 : 1) * size * pieces;
    choose_weights<GATED>(weights, matrix, pieces, size, first);
    __shared__ long long from[ROWS], to[ROWS];
    for (int begin = starts[expert], end = starts[expert + 1]; begin < end; begin += ROWS) {
        int count = min(ROWS, end - begin);
        if (threadIdx.x < count) {
            from[threadIdx.x] = GATED ? order[begin + threadIdx.x] : begin + threadIdx.x;
            to[threadIdx.x] = GATED ? begin + threadIdx.x : order[begin + threadIdx.x];
        }
        __syncthreads();
        float sums[COLUMNS][ROWS] = {};
        multiply_rows(sums, x, weights, pieces, from, count, GATED ? share : 1);
        write_rows<GATED>(out, sums, size, first, to, count);
        __syncthreads();
    }
}

/* out       [A, size]: of A assignments of rows to experts; sorted for `multiply_gated`, as they were for `multiply`
   x         [A / share, in_size] as the rows were, or [A, in_size] sorted; in_size is a multiple of 8
   matrices  [E, 2 * size or size, in_size]
   experts   int64 [gridDim.y]: where one is named several times in a row, the first block does the work
   starts    int32 [E + 1]: where the assignments of each expert lie, sorted
   order     int64 [A]: which assignments those are
   The grid is (size / (WARPS * columns a warp) rounded up, number of `experts`). */
extern "C" __global__ void __launch_bounds__(THREADS)
multiply_gated(Number *out, const Piece *x, const Piece *matrices, int in_size, int size, const long long *experts,
               const int *starts, const long long *order, int share) {
    multiply_experts<true>(out, x, matrices, in_size, size, experts, starts, order, share);
}

extern "C" __global__ void __launch_bounds__(THREADS)
multiply(Number *out, const Piece *x, const Piece *matrices, int in_size, int size, const long long *experts,
         const int *starts, const long long *order, int share) {
    multiply_experts<false>(out, x, matrices, in_size, size, experts, starts, order, share);
}
