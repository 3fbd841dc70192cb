/* Sets the logits of tokens whose bit is 0 to -inf. One block a row and 1,024 columns.

   logits   float32 [R, vocab], in place
   bitmask  int32 [R, ceil(vocab / 32)], bit 1 = allowed; bits past the vocabulary are not looked at */
#include "cuda_block.h"

extern "C" __global__ void apply_bitmask(float *logits, int vocab, const unsigned int *bitmask) {
    int token = blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= vocab) return;
    long long row = blockIdx.y;
    unsigned int word = bitmask[row * ((vocab + 31) / 32) + token / 32];
    if (!(word >> token % 32 & 1)) logits[row * vocab + token] -= infinity();
}
