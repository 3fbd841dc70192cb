/* What a draw of tokens is told, mirrored by sampling_rows.py and cpu_sampler.py. */
#ifndef CPU_SAMPLE_H
#define CPU_SAMPLE_H

#include <stdint.h>

/* A row's settings. */
struct draw_settings {
    uint64_t seed;
    double top_p; /* >= 1: off */
    uint32_t position;
    int32_t top_k;     /* 0: off */
    float temperature; /* 0: the most likely token */
    float log_min_p;   /* -inf: off */
    int32_t wants_logprob, unused;
};

/* One change of a logit: (above 0 ? x / factor : x * factor) - subtracted. `before` is what was found there. */
struct edit {
    int32_t token;
    float factor, subtracted, before;
};

/* Room in which one thread looks for thresholds: values, their weights, and those of one bin to be sorted. */
#define CANDIDATE_FLOATS(VOCABULARY) (3 * (((int64_t)(VOCABULARY) + 15) / 16 * 16))

struct draws {
    float *logits; /* [num_rows, vocabulary], overwritten */
    const struct draw_settings *settings; /* NULL: the most likely token of every row, and nothing else */
    const int32_t *edit_starts; /* [2 * num_rows + 1]: row r's penalties from 2r on, then its additions; may be NULL */
    struct edit *edits;
    const uint32_t *bitmask; /* [num_rows, whole words of the vocabulary], bit 1 = allowed; may be NULL */
    int64_t *token_ids;      /* -1 where a row has no finite largest logit */
    float *logprobs;         /* [num_rows, 2]: the token's log probability, and log sum exp, of the raw logits */
    int32_t num_rows, vocabulary;
};

#endif
