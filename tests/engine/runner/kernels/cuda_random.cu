/* The random numbers of the kernels, laid bare. */
#include "cuda_random.h"

/* words  uint32 [n, 6] in: counter, key; the first four are replaced by the result */
extern "C" __global__ void philox_words(unsigned int *words) {
    unsigned int *own = words + 6 * threadIdx.x;
    Words drawn = philox4x32(Words{{own[0], own[1], own[2], own[3]}}, own[4], own[5]);
    for (int i = 0; i < 4; i++) own[i] = drawn.word[i];
}

extern "C" __global__ void noise_of_indices(double *noise, unsigned long long seed, int position, int tag) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    noise[index] = gumbel_noise(seed, position, tag, index);
}
