/* Draws the next token of every row: the whole of engine/runner/sampler.py in one launch, one block a row.

   edits -> mask -> largest logit -> thresholds of top_k, top_p, min_p -> a group of tokens -> a token in it

   Thresholds are found without a sort: a histogram of the values finds the bin in which the threshold lies, then
   histograms of the values' bits, inside that bin alone, find the value itself. What is tallied are integers (tokens,
   or weights in fixed point), so that no order of additions shows in the result. Atomic additions would queue if bins
   were exponents of floats, where most of a vocabulary shares a few; bins of equal width spread it.

   Given equal logits the draw is a function of the row's settings alone, never of the slot, the batch or the number of
   threads. blockDim.x is a power of two, 32 to 1,024. */
#include "cuda_block.h"
#include "cuda_random.h"

#define GROUP 256        /* tokens that share a noise in the first stage; as in sampler.py, like the two tags */
#define GROUP_NOISE 1
#define TOKEN_NOISE 0
#define LEAST_EXPONENT -80.0f
#define BINS 2048
#define BINS_PER_UNIT 32.0f          /* bins of the first histogram: 1/32 of a scaled logit wide */
#define ONE 17592186044416.0f        /* 2^44: weight 1 in fixed point; 2^18 of them fit into 64 bits */
#define MAX_GROUPS (2 * BINS)        /* what the sums of groups find room for in the histogram's place */

struct Row {
    unsigned long long seed;
    double top_p;        /* >= 1: off */
    unsigned int position;
    int top_k;           /* 0: off */
    float temperature;   /* 0: the most likely token */
    float log_min_p;     /* -inf: off */
    int wants_logprob;
    int mask_row;        /* of the bitmask; -1: none */
};

/* One change of a logit: (above 0 ? x / factor : x * factor) - subtracted. `before` is what the kernel found. */
struct Edit {
    int token;
    float factor;
    float subtracted;
    float before;
};

/* Logits relative to the largest, by temperature. */
struct Scaled {
    const float *logits;
    int vocab;
    float best;
    float temperature;

    __device__ float at(int token) const { return (logits[token] - best) / temperature + 0.0f; }
};

__device__ inline float weight_of(float scaled) { return expf(scaled > LEAST_EXPONENT ? scaled : LEAST_EXPONENT); }

struct Tokens {
    typedef unsigned int Tally;
    __device__ static Tally of(float) { return 1u; }
};

struct Weights {
    typedef unsigned long long Tally;
    __device__ static Tally of(float scaled) { return (Tally)(expf(scaled) * ONE); }
};

__shared__ unsigned long long room[BINS];  /* histograms, then the sums of groups */

__device__ inline void edit(float *logits, Edit *edits, int begin, int end) {
    for (int place = begin + threadIdx.x; place < end; place += blockDim.x) {
        Edit change = edits[place];
        float value = logits[change.token];
        edits[place].before = value;
        value = value > 0.0f ? value / change.factor : value * change.factor;
        logits[change.token] = change.subtracted == infinity() ? -infinity() : value - change.subtracted;
    }
    __syncthreads();
}

/* What `token` had before any edit: the first edit that touched it knows. */
__device__ inline float raw_logit(const float *logits, const Edit *edits, int begin, int end, int token) {
    for (int place = begin; place < end; place++)
        if (edits[place].token == token) return edits[place].before;
    return logits[token];
}

/* The largest logit's key, and in `token` the first place where it is. */
__device__ inline unsigned int largest(const float *logits, int vocab, int *token) {
    unsigned int key = 0;
    int place = -1;
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
        unsigned int other = order_key(logits[i] + 0.0f);
        if (other > key) key = other, place = i;
    }
    *token = block_best(key, place);
    return block_reduce<Largest>(key, 0u);
}

__device__ inline float log_sum_exp(const float *logits, int vocab) {
    int token;
    float best = value_of_key(largest(logits, vocab, &token));
    float sum = 0.0f;
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) sum += expf(logits[i] - best);
    return best + logf((float)block_reduce<Sum>((double)sum, 0.0));
}

__device__ inline void mask(float *logits, int vocab, const unsigned int *words) {
    for (int i = threadIdx.x; i < vocab; i += blockDim.x)
        if (!(words[i / 32] >> i % 32 & 1)) logits[i] -= infinity();
    __syncthreads();
}

/* A value's bin at each level, 0 for the largest values: equal widths at level 0, then 11, 11 and 10 of its bits. */
__device__ inline unsigned int bin_at(int level, float scaled) {
    if (level == 0) return (unsigned int)fminf(-scaled * BINS_PER_UNIT, BINS - 1.0f);
    return ~order_key(scaled) >> (level == 1 ? 21 : level == 2 ? 10 : 0) & (level == 3 ? 1023u : 2047u);
}

/* The last bin before which less than `target` is tallied, and in `before` that tally. */
template <typename Tally> __device__ inline int last_bin_below(const Tally *bins, double target, Tally *before) {
    __shared__ Tally found;
    int each = BINS / blockDim.x, first = threadIdx.x * each;
    Tally sum = 0;
    for (int i = 0; i < each; i++) sum += bins[first + i];
    Tally seen = block_sum_before(sum) + *before, at_last = 0;
    int last = -1;
    for (int i = 0; i < each; i++) {
        if (bins[first + i] && (double)seen < target) last = first + i, at_last = seen;
        seen += bins[first + i];
    }
    int bin = block_reduce<Largest>(last, -1);
    if (bin >= 0 && bin == last) found = at_last;
    __syncthreads();
    if (bin >= 0) *before = found;
    __syncthreads();
    return bin;
}

/* The least value above which less than `target` lies; values below `least` are not there. */
template <typename Measure> __device__ inline float bound(Scaled row, double target, float least) {
    typedef typename Measure::Tally Tally;
    Tally *bins = (Tally *)room;
    Tally before = 0;
    unsigned int path[4] = {0, 0, 0, 0};
    for (int level = 0; level < 4; level++) {
        for (int i = threadIdx.x; i < BINS; i += blockDim.x) bins[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < row.vocab; i += blockDim.x) {
            float value = row.at(i);
            bool inside = value >= least;
            for (int upper = 0; upper < level; upper++) inside = inside && bin_at(upper, value) == path[upper];
            if (inside) atomicAdd(&bins[bin_at(level, value)], Measure::of(value));
        }
        __syncthreads();
        int bin = last_bin_below(bins, target, &before);
        if (bin < 0) return least;
        path[level] = bin;
    }
    return value_of_key(~(path[1] << 21 | path[2] << 10 | path[3]));
}

__device__ inline unsigned long long total_weight(Scaled row, float least) {
    unsigned long long sum = 0;
    for (int i = threadIdx.x; i < row.vocab; i += blockDim.x) {
        float value = row.at(i);
        if (value >= least) sum += Weights::of(value);
    }
    return block_reduce<Sum>(sum, 0ull);
}

/* The least scaled logit that survives top_k, then top_p, then min_p. */
__device__ inline float threshold(Scaled row, const Row &settings) {
    float least = -infinity();
    if (settings.top_k > 0 && settings.top_k < row.vocab) least = bound<Tokens>(row, settings.top_k, least);
    if (settings.top_p < 1.0) {
        double target = fmax((double)total_weight(row, least) * settings.top_p, 1.0);  /* the largest, at least */
        least = bound<Weights>(row, target, least);
    }
    return fmaxf(least, settings.log_min_p);
}

/* The group whose summed weight, with a noise, is largest. */
__device__ inline int draw_group(Scaled row, const Row &settings, float least) {
    float *sums = (float *)room;
    int groups = (row.vocab + GROUP - 1) / GROUP, lane = threadIdx.x % WARP;
    for (int group = threadIdx.x / WARP; group < groups; group += blockDim.x / WARP) {
        float sum = 0.0f;
        for (int i = group * GROUP + lane; i < min((group + 1) * GROUP, row.vocab); i += WARP) {
            float value = row.at(i);
            if (value >= least) sum += weight_of(value);
        }
        sum = warp_reduce<Sum>(sum);
        if (lane == 0) sums[group] = sum;
    }
    __syncthreads();
    unsigned long long key = 0;
    int best = -1;
    for (int group = threadIdx.x; group < groups; group += blockDim.x) {
        double noise = gumbel_noise(settings.seed, settings.position, GROUP_NOISE, group);
        unsigned long long other = order_key(log((double)sums[group]) + noise);
        if (other > key) key = other, best = group;
    }
    return block_best(key, best);
}

/* The token of `group` whose scaled logit, with a noise, is largest. */
__device__ inline int draw_token(Scaled row, const Row &settings, float least, int group) {
    unsigned long long key = 0;
    int best = -1;
    for (int i = group * GROUP + threadIdx.x; i < min((group + 1) * GROUP, row.vocab); i += blockDim.x) {
        float value = row.at(i);
        if (value < least) continue;
        double noise = gumbel_noise(settings.seed, settings.position, TOKEN_NOISE, i);
        unsigned long long other = order_key((double)value + noise);
        if (other > key) key = other, best = i;
    }
    return block_best(key, best);
}

/* logits       float32 [R, vocab], overwritten; vocab <= GROUP * MAX_GROUPS
   edit_starts  int32 [2 * R + 1]: edits of row r lie from 2r (penalties) and from 2r + 1 (additions); may be null
   bitmask      int32 [rows, ceil(vocab / 32)], bit 1 = allowed; may be null where no row has a mask
   token_ids    int64 [R]: -1 where a row has no finite largest logit
   logprobs     float32 [R, 2]: the token's log probability, and log sum exp, of the raw logits, where wanted */
extern "C" __global__ void __launch_bounds__(1024)
sample_rows(float *logits, int vocab, const Row *rows, const int *edit_starts, Edit *edits,
            const unsigned int *bitmask, long long *token_ids, float *logprobs) {
    long long row = blockIdx.x;
    Row settings = rows[row];
    logits += row * vocab;
    float normaliser = settings.wants_logprob ? log_sum_exp(logits, vocab) : 0.0f;
    const int *starts = edit_starts ? edit_starts + 2 * row : edit_starts;
    if (starts) {
        edit(logits, edits, starts[0], starts[1]);
        edit(logits, edits, starts[1], starts[2]);
    }
    if (settings.mask_row >= 0) mask(logits, vocab, bitmask + settings.mask_row * (long long)((vocab + 31) / 32));
    int token;
    float best = value_of_key(largest(logits, vocab, &token));
    bool allowed = is_finite(best);
    if (allowed && settings.temperature > 0.0f) {
        Scaled scaled = {logits, vocab, best, settings.temperature};
        float least = threshold(scaled, settings);
        token = draw_token(scaled, settings, least, draw_group(scaled, settings, least));
    }
    if (threadIdx.x) return;
    token_ids[row] = allowed ? token : -1;
    if (!settings.wants_logprob) return;
    float raw = !allowed ? 0.0f : starts ? raw_logit(logits, edits, starts[0], starts[2], token) : logits[token];
    logprobs[2 * row] = raw - normaliser;
    logprobs[2 * row + 1] = normaliser;
}
