/* Draws the next token of every row: what engine/runner/sampler.py does with tensors, a thread a row.
 *
 * edits -> mask -> largest logit -> thresholds of top_k, top_p, min_p -> a group of tokens -> a token in it
 *
 * Thresholds are found without sorting a vocabulary: values near the largest are put aside (all of them where those do
 * not suffice), a histogram tells in which bin the threshold lies, and only that bin is sorted. A row's result depends on
 * the row alone: no thread and no other row has a say.
 */
#include <math.h>
#include <stdlib.h>

#include "cpu_engine.h"
#include "cpu_vector.h"

enum { GROUP_TOKENS = 256, TOKEN_NOISE = 0, GROUP_NOISE = 1 }; /* as in sampler.py, like the two tags of the noise */
enum { BINS = 2048, ROUNDS = 10 };
#define BINS_PER_UNIT 32.0f /* a bin is 1/32 of a scaled logit wide; the last one has all the rest */
#define NEARBY -8.0f        /* e^-8 of the largest weight: what lies lower matters in flat distributions only */
#define LEAST_EXPONENT -80.0f

#define JOINED(a, b) a##b
#define NAMED(a, b) JOINED(a, b)

/* Logits relative to the largest, by temperature. */
struct scaled {
    const float *logits;
    int32_t vocabulary;
    float best, temperature;
};

/* Values put aside, with their weights. */
struct candidates {
    float *values, *weights;
    int32_t count;
};

/* ---- rows of logits, sixteen at a time ---- */

/* Lanes from `first` on; past `end` they are `rest`. */
INLINE f32x16 load_part(const float *row, int32_t first, int32_t end, float rest) {
    if (first + LANES <= end) return load_floats(row + first);
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = first + i < end ? row[first + i] : rest;
    return load_floats(lanes);
}

INLINE int32_t whole_lanes(int32_t count) { return (count + LANES - 1) / LANES * LANES; }

INLINE int any(i32x16 mask) {
    int64_t words[LANES / 2], all = 0;
    memcpy(words, &mask, sizeof mask);
    for (int i = 0; i < LANES / 2; i++) all |= words[i];
    return all != 0;
}

INLINE f32x16 scaled_part(const struct scaled *row, int32_t first, int32_t end) {
    return (load_part(row->logits, first, end, -INFINITY) - row->best) / row->temperature + 0.0f;
}

INLINE float scaled_at(const struct scaled *row, int32_t token) {
    return (row->logits[token] - row->best) / row->temperature + 0.0f;
}

/* The largest logit, NaN where there is any; in `token` the first place where it is. */
static float find_largest(const float *logits, int32_t vocabulary, int64_t *token) {
    f32x16 most = splat(-INFINITY);
    i32x16 strange = splat_int(0);
    for (int32_t i = 0; i < vocabulary; i += LANES) {
        const f32x16 part = load_part(logits, i, vocabulary, -INFINITY);
        strange |= part != part;
        most = choose(part > most, part, most);
    }
    if (any(strange)) return NAN;
    const float best = largest_of_lanes(most);
    for (int32_t i = 0; i < vocabulary; i++)
        if (logits[i] == best) return *token = i, best;
    return best;
}

static float log_sum_exp(const float *logits, int32_t vocabulary) {
    int64_t token;
    const float best = find_largest(logits, vocabulary, &token);
    double sum = 0;
    for (int32_t i = 0; i < vocabulary; i += LANES) {
        const f32x16 part = load_part(logits, i, vocabulary, -INFINITY) - best;
        sum += sum_of_lanes(choose(part > splat(LEAST_EXPONENT), exponential(part), splat(0)));
    }
    return best + (float)log(sum);
}

/* ---- before the draw ---- */

static void apply_edits(float *logits, struct edit *edits, int32_t begin, int32_t end) {
    for (struct edit *edit = edits + begin; edit < edits + end; edit++) {
        const float value = edit->before = logits[edit->token];
        const float penalised = value > 0 ? value / edit->factor : value * edit->factor;
        logits[edit->token] = edit->subtracted == INFINITY ? -INFINITY : penalised - edit->subtracted;
    }
}

/* What `token` had before any edit: the first edit that touched it knows. */
static float raw_logit(const float *logits, const struct edit *edits, int32_t begin, int32_t end, int64_t token) {
    for (int32_t i = begin; i < end; i++)
        if (edits[i].token == token) return edits[i].before;
    return logits[token];
}

static void apply_mask(float *logits, int32_t vocabulary, const uint32_t *words) {
    for (int32_t first = 0; first < vocabulary; first += 32) {
        const uint32_t word = words[first / 32];
        if (word == UINT32_MAX) continue;
        const int32_t end = first + 32 < vocabulary ? first + 32 : vocabulary;
        for (int32_t i = first; i < end; i++)
            if (!(word >> (i - first) & 1)) logits[i] -= INFINITY;
    }
}

/* ---- thresholds ---- */

/* The values from `least` on, in the order of their tokens. */
static struct candidates put_aside(const struct scaled *row, float least, float *room) {
    struct candidates found = {room, room + whole_lanes(row->vocabulary), 0};
    for (int32_t i = 0; i < row->vocabulary; i += LANES) {
        const f32x16 part = scaled_part(row, i, row->vocabulary);
        if (!any(part >= splat(least))) continue;
        const int32_t lanes = row->vocabulary - i < LANES ? row->vocabulary - i : LANES;
        for (int32_t lane = 0; lane < lanes; lane++)
            if (part[lane] >= least) found.values[found.count++] = part[lane];
    }
    for (int32_t i = 0; i < found.count; i += LANES) {
        const f32x16 part = load_part(found.values, i, found.count, -INFINITY);
        store_floats(found.weights + i, choose(part > splat(LEAST_EXPONENT), exponential(part), splat(0)));
    }
    return found;
}

static void keep_above(struct candidates *found, float least) {
    int32_t kept = 0;
    for (int32_t i = 0; i < found->count; i++)
        if (found->values[i] >= least) {
            found->values[kept] = found->values[i];
            found->weights[kept++] = found->weights[i];
        }
    found->count = kept;
}

static int descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static int32_t bin_of(float scaled) { return (int32_t)fminf(-scaled * BINS_PER_UNIT, BINS - 1.0f); }

static double weight_of(const struct candidates *found) {
    double sum = 0;
    for (int32_t i = 0; i < found->count; i++) sum += found->weights[i];
    return sum;
}

/* The last bin before which less than `target` is tallied, tokens or their weights, and in `before` that tally. */
static int32_t last_bin_below(const struct candidates *found, int by_weight, double target, double *before) {
    double bins[BINS] = {0}, seen = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < found->count; i++) bins[bin_of(found->values[i])] += by_weight ? found->weights[i] : 1;
    *before = 0;
    for (int32_t bin = 0; bin < BINS && seen < target; bin++)
        if (bins[bin] > 0) {
            last = bin, *before = seen;
            seen += bins[bin];
        }
    return last;
}

/* The least value above which less than `target` lies; `room` is for as many values as there are. */
static float bound_of(const struct candidates *found, int by_weight, double target, float *room) {
    double before;
    const int32_t bin = last_bin_below(found, by_weight, target, &before);
    int32_t count = 0;
    for (int32_t i = 0; i < found->count; i++)
        if (bin_of(found->values[i]) == bin) room[count++] = found->values[i];
    qsort(room, count, sizeof(float), descending);
    float bound = count ? room[0] : -INFINITY;
    for (int32_t i = 0; i < count && before < target; i++) {
        bound = room[i];
        before += by_weight ? exp(bound) : 1;
    }
    return bound;
}

/* Weights of groups, summed as everywhere: what a token weighs that survives `least`. */
static float group_weight(const struct scaled *row, float least, int32_t first) {
    const int32_t end = first + GROUP_TOKENS < row->vocabulary ? first + GROUP_TOKENS : row->vocabulary;
    f32x16 sums = splat(0);
    for (int32_t i = first; i < end; i += LANES) {
        const f32x16 part = scaled_part(row, i, end);
        const f32x16 weights = exponential(choose(part > splat(LEAST_EXPONENT), part, splat(LEAST_EXPONENT)));
        sums += choose((part >= splat(least)) & (part > splat(-INFINITY)), weights, splat(0));
    }
    return sum_of_lanes(sums);
}

static double total_weight(const struct scaled *row) {
    double sum = 0;
    for (int32_t first = 0; first < row->vocabulary; first += GROUP_TOKENS) sum += group_weight(row, -INFINITY, first);
    return sum;
}

/* The least scaled logit that survives top_k, then top_p, of the candidates; *enough says whether these decide. */
static float bound_among(struct candidates *found, const struct draw_settings *settings, int32_t top_k, double total,
                         float *room, int *enough) {
    float least = -INFINITY;
    *enough = found->count >= top_k;
    if (top_k && *enough) {
        least = bound_of(found, 0, top_k, room);
        keep_above(found, least);
    }
    if (settings->top_p >= 1 || !*enough) return least;
    const double held = weight_of(found), target = (top_k ? held : total) * settings->top_p;
    *enough = held >= target;
    return bound_of(found, 1, target, room);
}

/* The least scaled logit that survives top_k, then top_p, then min_p. */
static float find_threshold(const struct scaled *row, const struct draw_settings *settings, float *room) {
    const int32_t top_k = settings->top_k < row->vocabulary ? settings->top_k : 0;
    float least = -INFINITY;
    if (top_k || settings->top_p < 1) {
        const double total = top_k ? 0 : total_weight(row);
        float *sorted = room + 2 * whole_lanes(row->vocabulary);
        int enough;
        struct candidates found = put_aside(row, NEARBY, room);
        least = bound_among(&found, settings, top_k, total, sorted, &enough);
        if (!enough) {
            found = put_aside(row, -INFINITY, room);
            least = bound_among(&found, settings, top_k, total, sorted, &enough);
        }
    }
    return fmaxf(least, settings->log_min_p);
}

/* ---- the draw ---- */

/* Philox4x32-10: the bits that engine/runner/philox.py gives. */
static void philox(uint32_t words[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t even = (uint64_t)words[0] * 0xD2511F53u, odd = (uint64_t)words[2] * 0xCD9E8D57u;
        const uint32_t next[4] = {(uint32_t)(odd >> 32) ^ words[1] ^ key0, (uint32_t)odd,
                                  (uint32_t)(even >> 32) ^ words[3] ^ key1, (uint32_t)even};
        memcpy(words, next, sizeof next);
        key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
}

/* Gumbel(0, 1) noise of four indices, the first a multiple of 4; finite, as the uniform below it is inside (0, 1). */
static void gumbel_noise(const struct draw_settings *settings, uint32_t tag, uint32_t index, double noise[4]) {
    uint32_t words[4] = {index >> 2, settings->position, tag, 0};
    philox(words, (uint32_t)settings->seed, (uint32_t)(settings->seed >> 32));
    for (int i = 0; i < 4; i++) noise[i] = -log(-log((words[i] + 0.5) * 0x1p-32));
}

/* The group whose summed weight, with a noise, is largest. */
static int32_t draw_group(const struct scaled *row, const struct draw_settings *settings, float least) {
    const int32_t groups = (row->vocabulary + GROUP_TOKENS - 1) / GROUP_TOKENS;
    double most = -INFINITY, noise[4] = {0};
    int32_t best = 0;
    for (int32_t group = 0; group < groups; group++) {
        if (group % 4 == 0) gumbel_noise(settings, GROUP_NOISE, group, noise);
        const double chance = log(group_weight(row, least, group * GROUP_TOKENS)) + noise[group % 4];
        if (chance > most) most = chance, best = group;
    }
    return best;
}

/* The token of `group` whose scaled logit, with a noise, is largest. */
static int64_t draw_token(const struct scaled *row, const struct draw_settings *settings, float least, int32_t group) {
    const int32_t first = group * GROUP_TOKENS;
    const int32_t end = first + GROUP_TOKENS < row->vocabulary ? first + GROUP_TOKENS : row->vocabulary;
    double most = -INFINITY, noise[4] = {0};
    int64_t best = first;
    for (int32_t token = first; token < end; token++) {
        if (token % 4 == 0) gumbel_noise(settings, TOKEN_NOISE, token, noise);
        const float value = scaled_at(row, token);
        if (value >= least && value + noise[token % 4] > most) most = value + noise[token % 4], best = token;
    }
    return best;
}

static const struct draw_settings GREEDY = {.temperature = 0};

static void sample_row(const struct draws *draws, int32_t index, float *room) {
    const struct draw_settings *settings = draws->settings ? &draws->settings[index] : &GREEDY;
    const int32_t vocabulary = draws->vocabulary, *starts = draws->edit_starts ? draws->edit_starts + 2 * index : NULL;
    float *logits = draws->logits + (int64_t)index * vocabulary;
    const float normaliser = settings->wants_logprob ? log_sum_exp(logits, vocabulary) : 0;
    if (starts) apply_edits(logits, draws->edits, starts[0], starts[2]);
    if (draws->bitmask) apply_mask(logits, vocabulary, draws->bitmask + (int64_t)index * ((vocabulary + 31) / 32));
    int64_t token = -1;
    const float best = find_largest(logits, vocabulary, &token);
    if (!isfinite(best)) token = -1;
    else if (settings->temperature > 0) {
        const struct scaled row = {logits, vocabulary, best, settings->temperature};
        const float least = find_threshold(&row, settings, room);
        token = draw_token(&row, settings, least, draw_group(&row, settings, least));
    }
    draws->token_ids[index] = token;
    if (!settings->wants_logprob) return;
    const float raw = token < 0 ? 0 : starts ? raw_logit(logits, draws->edits, starts[0], starts[2], token) : logits[token];
    draws->logprobs[2 * index] = raw - normaliser;
    draws->logprobs[2 * index + 1] = normaliser;
}

/* Rows are handed out one by one. Who comes late finds the phase of another job, and takes nothing. */
void NAMED(sample_, SET)(void *context, int32_t thread, uint32_t job) {
    struct engine *engine = context;
    const int32_t rows = atomic_load(&engine->num_draws);
    float *room = engine->candidates + (int64_t)thread * CANDIDATE_FLOATS(engine->model.head.rows);
    for (int32_t row; (row = pool_take(engine->pool, job, 0, 1)) >= 0 && row < rows;) {
        sample_row(&engine->draws, row, room);
        pool_complete(engine->pool, 0, 1);
    }
    pool_wait(engine->pool, job, 0, rows);
}
