/* What a model, a batch and a matrix are, as the caller lays them out (cpu_library.py mirrors these structs).
 *
 * A matrix [rows, columns] lies in tiles of 16 rows; a tile holds its groups of columns one after another, and in a
 * group the 16 rows lie interleaved, so that one vector holds the same columns of 16 rows:
 *
 *   NIBBLES_HALF    32 columns  256 B codes, two a byte   16 float16 d   16 float16 m    w = d * code + m
 *   BYTES_HALF      32 columns  512 B codes               16 float16 d   16 float16 m    w = d * code + m
 *   NIBBLES_FLOAT   32 columns  256 B codes, two a byte   16 float32 d   16 float32 m    w = d * code + m
 *   BYTES_FLOAT     32 columns  512 B codes               16 float32 d   16 float32 m    w = d * code + m
 *   BYTES_PAIR      32 columns  512 B codes               16 float32 d for each half     w = d * (code - 32)
 *   BFLOATS          2 columns   64 B bfloat16
 *
 * Codes and scales are those of the file: nothing is quantised again. Rows past the last are zero.
 *
 * The KV cache holds bfloat16 in runs of 16 positions, of which a block has one or more:
 *
 *   keys    [blocks, block_size / 16, kv_heads, head_dim / 2, 16 positions, 2 dimensions]
 *   values  [blocks, block_size / 16, kv_heads, 8, head_dim, 2 positions]
 */
#ifndef CPU_MODEL_H
#define CPU_MODEL_H

#include <stdint.h>

#define TILE_ROWS 16
#define GROUP 32

enum { NIBBLES_HALF, BYTES_HALF, NIBBLES_FLOAT, BYTES_FLOAT, BYTES_PAIR, BFLOATS, NUM_KINDS };

static const int32_t GROUP_COLUMNS[NUM_KINDS] = {GROUP, GROUP, GROUP, GROUP, GROUP, 2};
static const int32_t GROUP_BYTES[NUM_KINDS] = {256 + 64, 512 + 64, 256 + 128, 512 + 128, 512 + 128, 64};

struct matrix {
    const uint8_t *tiles; /* 64-byte aligned; NULL for a matrix that the model does not have */
    const float *bias;    /* [rows], or NULL */
    int32_t kind, rows, columns;
};

struct layer {
    const float *input_norm, *mlp_norm;  /* [hidden] */
    const float *query_norm, *key_norm;  /* [head_dim], or NULL */
    struct matrix query, key, value, output, gate, up, down;
    uint16_t *keys, *values;             /* KV cache */
};

struct model {
    int32_t num_layers, hidden, inner, heads, kv_heads, head_dim, block_size;
    float eps, scale;
    const float *frequencies; /* radians a position, [head_dim / 2] */
    const float *final_norm;  /* [hidden] */
    struct matrix embedding, head;
    const struct layer *layers;
};

/* Rows of one sequence at positions start, start + 1, ...; its block table begins at tables[table]. */
struct span {
    int32_t first_row, num_rows, start, table;
};

struct batch {
    int32_t num_rows, num_spans, num_sampling;
    const int32_t *token_ids;     /* [num_rows] */
    const struct span *spans;     /* in row order */
    const int32_t *tables;        /* block tables, one after another */
    const int32_t *sampling_rows; /* ascending: whose logits are wanted */
    float *logits;                /* [num_sampling, vocabulary] */
};

static inline int32_t num_tiles(const struct matrix *m) { return (m->rows + TILE_ROWS - 1) / TILE_ROWS; }
static inline int32_t num_groups(const struct matrix *m) {
    return (m->columns + GROUP_COLUMNS[m->kind] - 1) / GROUP_COLUMNS[m->kind];
}
static inline const uint8_t *tile_of(const struct matrix *m, int32_t tile) {
    return m->tiles + (int64_t)tile * num_groups(m) * GROUP_BYTES[m->kind];
}

#endif
