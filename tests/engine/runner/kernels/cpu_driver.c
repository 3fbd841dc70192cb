/* Drives the CPU kernels from tests: as a library, one kernel at a time; as a program, whole steps of a random model on
 * many threads, for the sanitizers. Compiled with SET for the instruction set and SET_ID for its number.
 */
#include "cpu_decode.c"

#include <stdio.h>

#include "cpu_library.h"

/* out[rows, m->rows] = x[rows, m->columns] times the matrix, plus its bias. */
void drive_product(const struct matrix *m, const float *x, int32_t rows, float *out) {
    char *memory = calloc(1, 1 << 26), *cursor = memory + 64 - (uintptr_t)memory % 64;
    struct activations a = carve_activations(&cursor, m->columns, SLICE_ROWS);
    const struct product_memory sums = carve_product(&cursor);
    const struct target to = {out, m->rows, 0, 0};
    for (int32_t row = 0; row < rows; row++) {
        memcpy(a.values + row * a.stride, x + (int64_t)row * m->columns, m->columns * sizeof(float));
        prepare_for(&a, row, m, m, m);
    }
    for (int32_t pair = 0; pair < num_pairs(m); pair++) multiply_pair(m, pair, &a, rows, &to, &sums);
    free(memory);
}

void drive_unpack(const struct matrix *m, int32_t row, float *out) { unpack_row(m, row, out); }

/* Keys and values are [slots, kv_heads, head_dim]; they go where the layer's cache wants them. */
void drive_cache(
    const struct model *m, const struct layer *layer, int32_t slots, const uint16_t *keys, const uint16_t *values) {
    int32_t table[slots];
    for (int32_t i = 0; i < slots; i++) table[i] = i;
    for (int32_t slot = 0; slot < slots; slot++)
        for (int32_t head = 0; head < m->kv_heads; head++) {
            const int64_t run = run_offset(m, table, slot, head), from = (slot * m->kv_heads + head) * m->head_dim;
            place_key(layer->keys + run, slot, keys + from, m->head_dim);
            place_value(layer->values + run, slot, values + from, m->head_dim);
        }
}

/* Queries and out are [rows, heads * head_dim]; the rows stand at start, start + 1, ... */
void drive_attention(
    const struct model *m, const struct layer *layer, const int32_t *table, int32_t start, int32_t rows, int32_t share,
    const float *queries, float *out) {
    const int64_t stride = m->heads * m->head_dim;
    char *memory = aligned_alloc(64, 1 << 22), *cursor = memory;
    struct attention_memory space = carve_attention(&cursor, m);
    for (int32_t row = 0; row < rows; row += STRETCH_ROWS) {
        const struct stretch s = {row, rows - row < STRETCH_ROWS ? rows - row : STRETCH_ROWS, start + row, table};
        for (int32_t head = 0; head < m->kv_heads; head += share)
            attend(m, layer, &s, head, share, queries, stride, out, stride, &space);
    }
    free(memory);
}

/* Draws on threads of their own; their engine has nothing but what a draw needs. */
void drive_draws(const struct draws *draws, int32_t threads) {
    struct engine *engine = calloc(1, sizeof *engine);
    engine->model.head.rows = draws->vocabulary;
    engine->pool = pool_create(threads, 1, NULL);
    engine->candidates = malloc(threads * CANDIDATE_FLOATS(draws->vocabulary) * sizeof(float));
    engine->sample = NAMED(sample_, SET);
    engine_sample(engine, draws);
    engine_destroy(engine);
}

/* ---- the program ---- */

enum { LAYERS = 2, HIDDEN = 256, INNER = 512, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 64, VOCABULARY = 100, BLOCK = 16 };
enum { BLOCKS = 64, TABLE = 16, KV_WIDTH = KV_HEADS * HEAD_DIM };

static uint32_t state = 12345;
static uint32_t random_bits(void) { return state = state * 1664525u + 1013904223u; }
static float random_number(void) { return (float)(random_bits() >> 8) / (1 << 24) - 0.5f; }

static float *random_vector(int32_t count, float middle) {
    float *out = malloc(count * sizeof(float));
    for (int32_t i = 0; i < count; i++) out[i] = middle + 0.1f * random_number();
    return out;
}

/* Random bytes with sane scales: a file's blocks, packed. */
static struct matrix random_matrix(int32_t type, int32_t rows, int32_t columns, int with_bias) {
    static const int32_t bytes[31] = {[Q4_0] = 18, [Q4_1] = 20, [Q8_0] = 34, [Q4_K] = 144, [Q6_K] = 210, [BF16] = 64};
    static const int32_t parts[31] = {[Q4_0] = 1, [Q4_1] = 1, [Q8_0] = 1, [Q4_K] = 8, [Q6_K] = 8, [BF16] = 1};
    const int32_t blocks = rows * columns / (GROUP * parts[type]);
    uint8_t *source = malloc((size_t)blocks * bytes[type]);
    for (int32_t i = 0; i < blocks * bytes[type]; i++) source[i] = (uint8_t)(random_bits() >> 24);
    const uint16_t scale = 0x1800, bfloat = 0x3c00; /* 0.002 */
    for (int32_t i = 0; i < blocks; i++) {
        uint8_t *block = source + i * bytes[type];
        if (type == BF16) for (int j = 1; j < 64; j += 2) block[j] = (block[j] & 0x80) | (bfloat >> 8);
        else if (type == Q6_K) memcpy(block + 208, &scale, 2);
        else memcpy(block, &scale, 2);
        if (type == Q4_1 || type == Q4_K) memcpy(block + 2, &scale, 2);
    }
    const int64_t size = packed_bytes(type, rows, columns);
    uint8_t *tiles = aligned_alloc(64, size);
    memset(tiles, 0, size);
    if (pack_matrix(type, source, rows, columns, 0, tiles)) exit(2);
    free(source);
    return (struct matrix){tiles, with_bias ? random_vector(rows, 0) : NULL, packed_kind(type), rows, columns};
}

static void free_matrix(struct matrix m) { free((void *)m.tiles), free((void *)m.bias); }

static struct layer random_layer(int index) {
    const int32_t first = index ? Q4_K : Q4_1, second = index ? Q6_K : Q8_0;
    return (struct layer){
        .input_norm = random_vector(HIDDEN, 1), .mlp_norm = random_vector(HIDDEN, 1),
        .query_norm = index ? random_vector(HEAD_DIM, 1) : NULL, .key_norm = index ? random_vector(HEAD_DIM, 1) : NULL,
        .query = random_matrix(first, HEADS * HEAD_DIM, HIDDEN, 1), .key = random_matrix(BF16, KV_WIDTH, HIDDEN, 1),
        .value = random_matrix(second, KV_WIDTH, HIDDEN, 1), .output = random_matrix(first, HIDDEN, HEADS * HEAD_DIM, 0),
        .gate = random_matrix(Q4_0, INNER, HIDDEN, 0), .up = random_matrix(BF16, INNER, HIDDEN, 0),
        .down = random_matrix(second, HIDDEN, INNER, 0),
        .keys = calloc(BLOCKS * BLOCK * KV_WIDTH, 2), .values = calloc(BLOCKS * BLOCK * KV_WIDTH, 2),
    };
}

static void free_layer(struct layer l) {
    const float *vectors[] = {l.input_norm, l.mlp_norm, l.query_norm, l.key_norm};
    const struct matrix matrices[] = {l.query, l.key, l.value, l.output, l.gate, l.up, l.down};
    for (int i = 0; i < 4; i++) free((void *)vectors[i]);
    for (int i = 0; i < 7; i++) free_matrix(matrices[i]);
    free(l.keys), free(l.values);
}

/* Logits of every row of sequences of `lengths` tokens, in blocks of their own; the last row of each, in order. */
static void run_batch(struct engine *engine, const int32_t *lengths, int32_t count, int32_t seed, float *logits) {
    int32_t rows = 0, tokens[2048], tables[BLOCKS], sampling[16];
    struct span spans[16];
    for (int32_t i = 0; i < BLOCKS; i++) tables[i] = BLOCKS - 1 - i;
    for (int32_t i = 0; i < count; i++) {
        spans[i] = (struct span){rows, lengths[i], 0, i * TABLE};
        for (int32_t t = 0; t < lengths[i]; t++) tokens[rows + t] = (seed + i * 7 + t * 13) % VOCABULARY;
        rows += lengths[i];
        sampling[i] = rows - 1;
    }
    const struct batch batch = {rows, count, count, tokens, spans, tables, sampling, logits};
    engine_step(engine, &batch);
}

/* A token for each row of logits, with settings that need every part of a draw. */
static void draw_tokens(struct engine *engine, float *logits, int32_t count, int64_t *tokens) {
    struct draw_settings settings[16];
    float logprobs[2 * 16];
    for (int32_t i = 0; i < count; i++)
        settings[i] = (struct draw_settings){
            .seed = 7, .top_p = 0.9, .top_k = 50, .temperature = 0.7f, .log_min_p = -9, .wants_logprob = 1};
    const struct draws draws = {logits, settings, NULL, NULL, NULL, tokens, logprobs, count, VOCABULARY};
    engine_sample(engine, &draws);
}

int main(int argc, char **argv) {
    const int32_t threads = argc > 1 ? atoi(argv[1]) : 4, lengths[] = {1, 9, 180, 100};
    struct layer layers[LAYERS] = {random_layer(0), random_layer(1)};
    float *frequencies = random_vector(HEAD_DIM / 2, 0.5f), *norm = random_vector(HIDDEN, 1);
    const struct matrix embedding = random_matrix(Q8_0, VOCABULARY, HIDDEN, 0);
    const struct model model = {LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, BLOCK, 1e-5f, 0.125f,
                                frequencies, norm, embedding, embedding, layers};
    struct engine *engine = engine_create(&model, threads, NULL, SET_ID);
    if (!engine) return 3;
    float together[4 * VOCABULARY], alone[VOCABULARY];
    int64_t tokens[4], token;
    int different = 0;
    for (int32_t round = 0; round < 3; round++) {
        run_batch(engine, lengths, 4, round, together);
        draw_tokens(engine, together, 4, tokens);
        for (int32_t i = 0; i < 4; i++) {
            run_batch(engine, &lengths[i], 1, round + i * 7, alone);
            draw_tokens(engine, alone, 1, &token);
            different += memcmp(alone, together + i * VOCABULARY, sizeof alone) || token != tokens[i];
        }
    }
    engine_destroy(engine);
    for (int32_t i = 0; i < LAYERS; i++) free_layer(layers[i]);
    free_matrix(embedding), free(frequencies), free(norm);
    printf("%d of 12 rows differ\n", different);
    return different != 0;
}
