/* Attention of one new token a sequence over a paged cache of latent vectors, which are keys and values at once.

   All heads look at the same vectors: RANK numbers, which are the value, and ROPE_DIM more, which only the scores see.
   A block takes HEADS heads of one sequence and one part of its context, in tiles. Of a tile each warp computes the
   scores and weights of its own heads, a lane a token; then each thread adds up some elements of the weighted values for
   all heads. Sums are kept relative to the largest score so far. A second kernel puts the parts together; with one part,
   the first writes the result itself.

   The compiler is told RANK and ROPE_DIM (multiples of 8, together at most 576), and BFLOAT16 (else the numbers are
   float16). Both kernels run with THREADS threads. */
#include "cuda_block.h"
#include "cuda_tiles.h"

#define THREADS 128
#define WARPS (THREADS / WARP)
#define TILE WARP                      /* tokens */
#define HEADS 8                        /* of a block */
#define HEADS_A_WARP (HEADS / WARPS)
#define SIZE (RANK + ROPE_DIM)
#define PIECES (SIZE / 8)
#define SLOTS ((RANK + THREADS - 1) / THREADS)

/* One more piece a row, so that the lanes of a warp read from different banks. */
__shared__ Piece tile[TILE][PIECES + 1];
__shared__ Number queries[HEADS][SIZE];
__shared__ float weights[TILE][HEADS];
__shared__ float largest[HEADS], total[HEADS], rescale[HEADS];

__device__ inline void load_queries(const Number *query, int first_head, int heads) {
    for (int i = threadIdx.x; i < HEADS * SIZE; i += THREADS) {
        int head = i / SIZE;
        queries[head][i % SIZE] = first_head + head < heads ? query[first_head * SIZE + i] : from_float(0.0f);
    }
    for (int head = threadIdx.x; head < HEADS; head += THREADS) largest[head] = -infinity(), total[head] = 0.0f;
    __syncthreads();
}

__device__ inline void load_tile(const Piece *stored, const int *table, int block_size, int begin, int count) {
    for (int i = threadIdx.x; i < TILE * PIECES; i += THREADS) {
        int row = i / PIECES, piece = i % PIECES;
        Piece found = {};
        if (row < count) {
            int place = begin + row;
            long long slot = (long long)table[place / block_size] * block_size + place % block_size;
            found = stored[slot * PIECES + piece];
        }
        tile[row][piece] = found;
    }
    __syncthreads();
}

/* Weights relative to the largest score so far; `rescale` is what older sums have to be multiplied by. */
__device__ inline void weigh_tile(float scale, int count) {
    int lane = threadIdx.x % WARP, first = threadIdx.x / WARP * HEADS_A_WARP;
    float scores[HEADS_A_WARP] = {};
    for (int piece = 0; piece < PIECES; piece++) {
        Piece key = tile[lane][piece];
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int head = 0; head < HEADS_A_WARP; head++)
                scores[head] += to_float(queries[first + head][piece * 8 + j]) * to_float(key.number[j]);
    }
#pragma unroll
    for (int head = 0; head < HEADS_A_WARP; head++) {
        float score = lane < count ? scores[head] * scale : -infinity(), before = largest[first + head];
        float now = fmaxf(before, warp_reduce<Largest>(score));
        float weight = expf(score - now);
        float sum = warp_reduce<Sum>(weight);
        weights[lane][first + head] = weight;
        if (lane == 0) {
            rescale[first + head] = expf(before - now);
            total[first + head] = total[first + head] * rescale[first + head] + sum;
            largest[first + head] = now;
        }
    }
    __syncthreads();
}

__device__ inline void add_tile(float (*sums)[HEADS]) {
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        int element = threadIdx.x + slot * THREADS;
        if (element >= RANK) continue;
#pragma unroll
        for (int head = 0; head < HEADS; head++) sums[slot][head] *= rescale[head];
        for (int row = 0; row < TILE; row++) {
            float value = to_float(tile[row][element / 8].number[element % 8]);
#pragma unroll
            for (int head = 0; head < HEADS; head++) sums[slot][head] += weights[row][head] * value;
        }
    }
    __syncthreads();
}

/* out            [B, heads, RANK]
   query          [B, heads, SIZE], rows `query_stride` numbers apart
   stored         [blocks, block_size, SIZE]
   tables         int32 [B, table_width]: the blocks of each sequence
   begins, ends   int32 [B]: the tokens looked at, from and up to
   parts          float32 [B, heads, gridDim.z, RANK + 2]: sums, largest score, total weight; not used for one part
   The grid is (heads / HEADS rounded up, B, number of parts). The values are told for the sake of a common signature:
   they lie in `stored`. */
extern "C" __global__ void __launch_bounds__(THREADS)
attend_parts(Number *out, const Number *query, int query_stride, const Piece *stored, const Piece *, const int *tables,
             int table_width, const int *begins, const int *ends, int block_size, float scale, float *parts, int heads) {
    int row = blockIdx.y, first_head = blockIdx.x * HEADS;
    int length = ends[row] - begins[row];
    int share = (length + gridDim.z * TILE - 1) / (gridDim.z * TILE) * TILE;
    int begin = begins[row] + blockIdx.z * share, end = min(begin + share, ends[row]);
    load_queries(query + (long long)row * query_stride, first_head, heads);
    float sums[SLOTS][HEADS] = {};
    for (; begin < end; begin += TILE) {
        int count = min(TILE, end - begin);
        load_tile(stored, tables + (long long)row * table_width, block_size, begin, count);
        weigh_tile(scale, count);
        add_tile(sums);
    }
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        int element = threadIdx.x + slot * THREADS;
        if (element >= RANK) continue;
#pragma unroll
        for (int head = 0; head < HEADS; head++) {
            if (first_head + head >= heads) continue;
            long long at = (long long)row * heads + first_head + head;
            if (gridDim.z == 1) {
                out[at * RANK + element] = from_float(sums[slot][head] / total[head]);
                continue;
            }
            float *part = parts + (at * gridDim.z + blockIdx.z) * (RANK + 2);
            part[element] = sums[slot][head];
            if (element == 0) part[RANK] = largest[head], part[RANK + 1] = total[head];
        }
    }
}

/* Puts `num_parts` parts of each head together. The grid is (heads, B). */
extern "C" __global__ void combine_parts(Number *out, const float *parts, int num_parts) {
    long long at = (long long)blockIdx.y * gridDim.x + blockIdx.x;
    parts += at * num_parts * (RANK + 2);
    float best = -infinity(), weight = 0.0f;
    for (int i = 0; i < num_parts; i++) best = fmaxf(best, parts[i * (RANK + 2) + RANK]);
    for (int i = 0; i < num_parts; i++)  /* a part without tokens counts for nothing */
        weight += parts[i * (RANK + 2) + RANK + 1] * expf(parts[i * (RANK + 2) + RANK] - best);
    for (int element = threadIdx.x; element < RANK; element += THREADS) {
        float sum = 0.0f;
        for (int i = 0; i < num_parts; i++)
            sum += parts[i * (RANK + 2) + element] * expf(parts[i * (RANK + 2) + RANK] - best);
        out[at * RANK + element] = from_float(sum / weight);
    }
}
