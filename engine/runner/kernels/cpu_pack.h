/* From the blocks of a GGUF file, or from bfloat16 rows, to tiles. See cpu_model.h for the layout. */
#ifndef CPU_PACK_H
#define CPU_PACK_H

#include <stdint.h>

/* The types of the file that have a place here, by their GGUF numbers; BF16 is that of plain rows too. */
enum { Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30 };

/* The kind of tile for a type of the file, -1 for a type that has none. */
int32_t packed_kind(int32_t type);

/* Bytes of a packed matrix. */
int64_t packed_bytes(int32_t type, int32_t rows, int32_t columns);

/* Pack `rows` of `columns` numbers from `source` into `tiles` (zeroed, 64-byte aligned); 0, or 1 for what cannot be
 * kept exactly. With `head_dim`, the rows of each head lie as pairs in the file and are put in order for the half-split
 * rope.
 */
int32_t pack_matrix(
    int32_t type, const uint8_t *source, int32_t rows, int32_t columns, int32_t head_dim, uint8_t *tiles);

#endif
