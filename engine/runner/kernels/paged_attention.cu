/* Attention of one new token a sequence over the paged KV cache, in parts that many blocks work on at once.

   A block takes one KV head of one sequence and one part of its context, for all query heads that share the KV head, so
   that no key is read twice. It goes through the part in tiles: keys and values into shared memory, scores, weights,
   then the weighted values, each thread one element of some heads. Sums are kept relative to the largest score so far.
   A second kernel puts the parts together; with one part, the first writes the result itself.

   The compiler is told HEAD_DIM (64, 80, 96 or 128), GROUP (query heads a KV head), and BFLOAT16 (else the numbers are float16).
   Both kernels run with THREADS threads. */
#include "cuda_block.h"
#include "cuda_tiles.h"

#define THREADS 128
#define TILE WARP                      /* tokens; one for each lane when weights are computed */
#define PIECES (HEAD_DIM / 8)          /* loads of 16 bytes that a head is made of */
#define HEADS_AT_ONCE (THREADS / HEAD_DIM)
#define WORKERS (HEADS_AT_ONCE * HEAD_DIM)  /* threads with an element; of 80 or 96 some have none */
#define SLOTS ((GROUP + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE)

/* One more piece a row, so that the lanes of a warp read from different banks. */
__shared__ Piece tile_keys[TILE][PIECES + 1];
__shared__ Piece tile_values[TILE][PIECES + 1];
__shared__ float queries[GROUP][HEAD_DIM];
__shared__ float weights[GROUP][TILE];
__shared__ float largest[GROUP], total[GROUP], rescale[GROUP];

__device__ inline void load_tile(const Piece *keys, const Piece *values, const int *table, int block_size,
                                 int kv_heads, int begin, int count) {
    for (int i = threadIdx.x; i < TILE * PIECES; i += THREADS) {
        int row = i / PIECES, piece = i % PIECES;
        Piece key = {}, value = {};
        if (row < count) {
            int place = begin + row;
            long long slot = (long long)table[place / block_size] * block_size + place % block_size;
            long long at = (slot * kv_heads + blockIdx.x) * PIECES + piece;
            key = keys[at];
            value = values[at];
        }
        tile_keys[row][piece] = key;
        tile_values[row][piece] = value;
    }
    __syncthreads();
}

__device__ inline void score_tile(float scale, int count) {
    for (int i = threadIdx.x; i < GROUP * TILE; i += THREADS) {
        int head = i / TILE, row = i % TILE;
        float sum = 0.0f;
        for (int piece = 0; piece < PIECES; piece++) {
            Piece key = tile_keys[row][piece];
            for (int j = 0; j < 8; j++) sum += queries[head][piece * 8 + j] * to_float(key.number[j]);
        }
        weights[head][row] = row < count ? sum * scale : -infinity();
    }
    __syncthreads();
}

/* Scores into weights relative to the largest so far; `rescale` is what older sums have to be multiplied by. */
__device__ inline void weigh_tile() {
    int lane = threadIdx.x % WARP;
    for (int head = threadIdx.x / WARP; head < GROUP; head += THREADS / WARP) {
        float score = weights[head][lane], before = largest[head];
        float now = fmaxf(before, warp_reduce<Largest>(score));
        float weight = expf(score - now);
        float sum = warp_reduce<Sum>(weight);
        weights[head][lane] = weight;
        if (lane == 0) {
            rescale[head] = expf(before - now);
            total[head] = total[head] * rescale[head] + sum;
            largest[head] = now;
        }
    }
    __syncthreads();
}

__device__ inline void add_tile(float *sums) {
    int element = threadIdx.x % HEAD_DIM;
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        int head = threadIdx.x / HEAD_DIM + slot * HEADS_AT_ONCE;
        if (head >= GROUP || threadIdx.x >= WORKERS) continue;
        float sum = sums[slot] * rescale[head];
        for (int row = 0; row < TILE; row++)
            sum += weights[head][row] * to_float(tile_values[row][element / 8].number[element % 8]);
        sums[slot] = sum;
    }
    __syncthreads();
}

/* out            [B, heads, HEAD_DIM]
   query          [B, heads, HEAD_DIM], rows `query_stride` numbers apart
   keys, values   [blocks, block_size, kv_heads, HEAD_DIM]
   tables         int32 [B, table_width]: the blocks of each sequence
   begins, ends   int32 [B]: the tokens looked at, from and up to
   parts          float32 [B, heads, gridDim.z, HEAD_DIM + 2]: sums, largest score, total weight; not used for one part
   The grid is (kv_heads, B, number of parts); `heads` is GROUP times as many. */
extern "C" __global__ void __launch_bounds__(THREADS)
attend_parts(Number *out, const Number *query, int query_stride, const Piece *keys, const Piece *values,
             const int *tables, int table_width, const int *begins, const int *ends, int block_size, float scale,
             float *parts, int heads) {
    int kv_heads = gridDim.x, row = blockIdx.y, first_head = blockIdx.x * GROUP;
    int length = ends[row] - begins[row];
    int share = (length + gridDim.z * TILE - 1) / (gridDim.z * TILE) * TILE;
    int begin = begins[row] + blockIdx.z * share, end = min(begin + share, ends[row]);
    for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS)
        queries[i / HEAD_DIM][i % HEAD_DIM] = to_float(query[(long long)row * query_stride + first_head * HEAD_DIM + i]);
    for (int head = threadIdx.x; head < GROUP; head += THREADS) largest[head] = -infinity(), total[head] = 0.0f;
    __syncthreads();
    float sums[SLOTS] = {};
    for (; begin < end; begin += TILE) {
        int count = min(TILE, end - begin);
        load_tile(keys, values, tables + (long long)row * table_width, block_size, kv_heads, begin, count);
        score_tile(scale, count);
        weigh_tile();
        add_tile(sums);
    }
    int element = threadIdx.x % HEAD_DIM;
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        int head = threadIdx.x / HEAD_DIM + slot * HEADS_AT_ONCE;
        if (head >= GROUP || threadIdx.x >= WORKERS) continue;
        long long at = (long long)row * heads + first_head + head;
        if (gridDim.z == 1) {
            out[at * HEAD_DIM + element] = from_float(sums[slot] / total[head]);
            continue;
        }
        float *part = parts + (at * gridDim.z + blockIdx.z) * (HEAD_DIM + 2);
        part[element] = sums[slot];
        if (element == 0) part[HEAD_DIM] = largest[head], part[HEAD_DIM + 1] = total[head];
    }
}

/* Puts `num_parts` parts of each head together. The grid is (heads, B); HEAD_DIM of the threads work. */
extern "C" __global__ void combine_parts(Number *out, const float *parts, int num_parts) {
    long long at = (long long)blockIdx.y * gridDim.x + blockIdx.x;
    int element = threadIdx.x;
    if (element >= HEAD_DIM) return;
    parts += at * num_parts * (HEAD_DIM + 2);
    float best = -infinity(), sum = 0.0f, weight = 0.0f;
    for (int i = 0; i < num_parts; i++) best = fmaxf(best, parts[i * (HEAD_DIM + 2) + HEAD_DIM]);
    for (int i = 0; i < num_parts; i++) {
        const float *part = parts + i * (HEAD_DIM + 2);
        float factor = expf(part[HEAD_DIM] - best);  /* 0 for a part without tokens */
        sum += part[element] * factor;
        weight += part[HEAD_DIM + 1] * factor;
    }
    out[at * HEAD_DIM + element] = from_float(sum / weight);
}
