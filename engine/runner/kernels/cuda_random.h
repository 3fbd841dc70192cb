/* Philox4x32-10 and the Gumbel noise made from it: the same bits as engine/runner/philox.py gives. */
#pragma once

struct Words {
    unsigned int word[4];
};

__device__ inline Words philox4x32(Words counter, unsigned int key0, unsigned int key1) {
    for (int turn = 0; turn < 10; turn++) {
        unsigned long long even = (unsigned long long)counter.word[0] * 0xD2511F53u;
        unsigned long long odd = (unsigned long long)counter.word[2] * 0xCD9E8D57u;
        Words next = {{(unsigned int)(odd >> 32) ^ counter.word[1] ^ key0, (unsigned int)odd,
                       (unsigned int)(even >> 32) ^ counter.word[3] ^ key1, (unsigned int)even}};
        counter = next;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

/* Gumbel(0, 1) noise of one index; it is finite, as the uniform below it lies strictly inside (0, 1). */
__device__ inline double gumbel_noise(unsigned long long seed, unsigned int position, unsigned int tag,
                                      unsigned int index) {
    Words counter = {{index >> 2, position, tag, 0u}};
    Words words = philox4x32(counter, (unsigned int)seed, (unsigned int)(seed >> 32));
    unsigned int low = index & 1 ? words.word[1] : words.word[0];
    unsigned int high = index & 1 ? words.word[3] : words.word[2];
    double uniform = ((double)(index & 2 ? high : low) + 0.5) * (1.0 / 4294967296.0);
    return -log(-log(uniform));
}
