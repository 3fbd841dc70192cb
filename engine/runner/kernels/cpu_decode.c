/* One step of a Llama-shaped model: embeddings, layers, logits, for all rows of a batch, in one call.
 *
 * Every thread runs `compute_slice` from top to bottom; the phases hand out their rows, tiles or heads, and the next
 * one begins when all of them are computed. Compiled once for each instruction set, SET being its name.
 */
#include "cpu_engine.h"

#include <math.h>

#include "cpu_inputs.h"

#define JOINED(a, b) a##b
#define NAMED(a, b) JOINED(a, b)

int64_t NAMED(step_bytes_, SET)(const struct model *model, int32_t threads) {
    struct workspace scratch;
    char *cursor = (char *)((sizeof scratch + 63) / 64 * 64);
    lay_out(&scratch, model, threads, &cursor);
    return (int64_t)cursor;
}

void NAMED(step_prepare_, SET)(struct engine *engine) {
    struct workspace *space = engine->memory;
    char *cursor = (char *)engine->memory + (sizeof *space + 63) / 64 * 64;
    lay_out(space, &engine->model, pool_size(engine->pool), &cursor);
    space->step.engine = engine;
    space->step.model = &engine->model;
    space->step.space = space;
}

/* ---- items of the phases ---- */

static const struct stretch *stretch_at(const struct step *step, int32_t row) {
    return &step->space->stretches[step->space->stretch_of[row]];
}

static int32_t position_of(const struct step *step, int32_t row) {
    const struct stretch *s = stretch_at(step, row);
    return s->start + row - s->first_row;
}

/* The slice's row `index` of those whose logits are wanted. */
static int32_t sampling_row(const struct step *step, int32_t index) {
    return step->batch->sampling_rows[step->first_sampling + index] - step->first_row;
}

static void embed(struct step *step, int32_t row) {
    const struct model *m = step->model;
    struct workspace *space = step->space;
    const int32_t position = position_of(step, row), half = m->head_dim / 2;
    const int32_t token_id = step->batch->token_ids[step->first_row + row];
    unpack_row(&m->embedding, token_id, space->hidden + row * space->hidden_stride);
    for (int32_t i = 0; i < half; i++) {
        const float angle = (float)position * m->frequencies[i];
        space->cosines[row * half + i] = cosf(angle);
        space->sines[row * half + i] = sinf(angle);
    }
}

static f32x16 bias_of(const struct matrix *m, int32_t tile) {
    f32x16 bias = splat(0);
    const int32_t first = tile * TILE_ROWS, count = m->rows - first < TILE_ROWS ? m->rows - first : TILE_ROWS;
    if (m->bias) memcpy(&bias, m->bias + first, count * sizeof(float));
    return bias;
}

/* So many rows of logits would push everything else out of the caches, and themselves as well. */
#define STREAMED_ROWS 64

/* Where a product goes: float32 [rows, stride]. */
struct target {
    float *out;
    int64_t stride;
    int adds;    /* to what is there */
    int streams; /* past the caches; out and stride are whole lines */
};

/* out[row, tile] = sums[row, 2] + bias, or that added to what is there. */
INLINE void store_sums(
    const struct matrix *m, int32_t tile, const f32x16 *sums, int32_t rows, const struct target *to) {
    const int32_t first = tile * TILE_ROWS, count = m->rows - first < TILE_ROWS ? m->rows - first : TILE_ROWS;
    const f32x16 bias = bias_of(m, tile);
    for (int32_t row = 0; row < rows; row++) {
        float *at = to->out + row * to->stride + first;
        f32x16 before = splat(0);
        if (to->adds) memcpy(&before, at, count * sizeof(float));
        const f32x16 sum = before + (sums[PAIR * row] + bias);
        if (to->streams) stream_floats(at, sum);
        else if (count == TILE_ROWS) store_floats(at, sum);
        else memcpy(at, &sum, count * sizeof(float));
    }
    if (to->streams) stream_fence();
}

static int32_t num_pairs(const struct matrix *m) { return (num_tiles(m) + 1) / PAIR; }

/* Two tiles of a product, one of each half, so that whoever takes pair after pair reads two pieces of memory from
 * their beginning on; without a partner, a tile goes with itself.
 */
static void multiply_pair(
    const struct matrix *m, int32_t pair, const struct activations *x, int32_t rows, const struct target *to,
    const struct product_memory *memory) {
    const int32_t second = pair + num_pairs(m) < num_tiles(m) ? pair + num_pairs(m) : pair;
    const struct tile tiles[PAIR] = {{m, pair}, {m, second}};
    const f32x16 *sums = pair_sums(tiles, x, rows, memory);
    store_sums(m, pair, sums, rows, to);
    if (second != pair) store_sums(m, second, sums + 1, rows, to);
}

static void project(struct worker *w, const struct layer *layer, int32_t item) {
    struct workspace *space = w->step->space;
    const struct matrix *matrices[] = {&layer->query, &layer->key, &layer->value};
    const struct target targets[] = {{space->queries, space->query_stride, 0, 0},
                                     {space->keys, space->key_stride, 0, 0},
                                     {space->values, space->key_stride, 0, 0}};
    int i = 0;
    for (; item >= num_pairs(matrices[i]); i++) item -= num_pairs(matrices[i]);
    multiply_pair(matrices[i], item, &w->inputs->attention, w->rows, &targets[i], &w->memory.product);
}

/* Element i turns with element i + head_dim / 2. */
static void turn(float *head, const float *cosines, const float *sines, int32_t half) {
    for (int32_t i = 0; i < half; i++) {
        const float low = head[i], high = head[i + half];
        head[i] = low * cosines[i] - high * sines[i];
        head[i + half] = high * cosines[i] + low * sines[i];
    }
}

static void store_bfloats(uint16_t *to, const float *from, int32_t count) {
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const u16x16 rounded = floats_to_bfloats(load_floats(from + i));
        memcpy(to + i, &rounded, sizeof rounded);
    }
    f32x16 rest = splat(0);
    memcpy(&rest, from + i, (count - i) * sizeof(float));
    const u16x16 rounded = floats_to_bfloats(rest);
    memcpy(to + i, &rounded, (count - i) * sizeof(uint16_t));
}

/* Norms of heads, rope, and the row's place in the KV cache. */
static void place_row(struct step *step, const struct layer *layer, int32_t row) {
    const struct model *m = step->model;
    struct workspace *space = step->space;
    const int32_t half = m->head_dim / 2;
    const int32_t position = position_of(step, row), *table = stretch_at(step, row)->table;
    uint16_t rounded[m->head_dim];
    const float *cosines = space->cosines + row * half, *sines = space->sines + row * half;
    for (int32_t h = 0; h < m->heads; h++) {
        float *query = space->queries + row * space->query_stride + h * m->head_dim;
        if (layer->query_norm) normalise(query, layer->query_norm, m->head_dim, m->eps, query);
        turn(query, cosines, sines, half);
    }
    for (int32_t h = 0; h < m->kv_heads; h++) {
        float *key = space->keys + row * space->key_stride + h * m->head_dim;
        if (layer->key_norm) normalise(key, layer->key_norm, m->head_dim, m->eps, key);
        turn(key, cosines, sines, half);
        const int64_t run = run_offset(m, table, position, h);
        store_bfloats(rounded, key, m->head_dim);
        place_key(layer->keys + run, position, rounded, m->head_dim);
        store_bfloats(rounded, space->values + row * space->key_stride + h * m->head_dim, m->head_dim);
        place_value(layer->values + run, position, rounded, m->head_dim);
    }
}

static void gate_and_up(struct worker *w, const struct layer *layer, int32_t tile) {
    const struct activations *inner = &w->inputs->inner;
    const int32_t rows = w->rows;
    const f32x16 gate_bias = bias_of(&layer->gate, tile), up_bias = bias_of(&layer->up, tile);
    const struct tile pair[PAIR] = {{&layer->gate, tile}, {&layer->up, tile}};
    const f32x16 *sums = pair_sums(pair, &w->inputs->mlp, rows, &w->memory.product);
    for (int32_t row = 0; row < rows; row++) {
        const f32x16 gate = sums[PAIR * row] + gate_bias, up = sums[PAIR * row + 1] + up_bias;
        float *to = inner->values + (int64_t)row * inner->stride + tile * TILE_ROWS;
        store_floats(to, gate * sigmoid(gate) * up);
    }
}

/* The slice's rows whose logits are wanted come to the front. */
static void gather_sampling_rows(struct step *step) {
    struct workspace *space = step->space;
    for (int32_t i = 0; i < step->num_sampling; i++) {
        const int64_t row = sampling_row(step, i);
        memmove(space->hidden + i * space->hidden_stride, space->hidden + row * space->hidden_stride,
                space->hidden_stride * sizeof(float));
        memmove(space->queries + i * space->query_stride, space->queries + row * space->query_stride,
                space->query_stride * sizeof(float));
    }
}

/* ---- the way through the model ---- */

static void compute_projections(struct worker *w, const struct layer *layer) {
    const int32_t pairs = num_pairs(&layer->query) + num_pairs(&layer->key) + num_pairs(&layer->value);
    prepare_many(w, prepare_attention, layer);
    EACH_ITEM(pair, w, pairs) {
        prepare_few(w, prepare_attention, layer);
        project(w, layer, pair);
    }
    finish_phase(w, QKV, pairs);
    EACH_ITEM(row, w, w->rows) place_row(w->step, layer, row);
    finish_phase(w, ROPE, w->rows);
}

/* Behind the last layer's keys and values only the rows whose logits are wanted matter. */
static void keep_sampling_rows(struct worker *w) {
    struct step *step = w->step;
    if (step->num_sampling == w->rows) return;
    EACH_ITEM(item, w, 1) gather_sampling_rows(step);
    finish_phase(w, ROPE, 1);
    w->stretches = step->space->sampling_stretches;
    w->num_stretches = step->num_sampling_stretches;
    take_rows(w, step->num_sampling);
}

/* Add what `m` makes of `x`, as `prepare` leaves it, to the hidden state. */
static void add_product(
    struct worker *w, const struct layer *layer, prepare_function prepare, const struct matrix *m,
    const struct activations *x, enum phase phase) {
    const struct workspace *space = w->step->space;
    const struct target to = {space->hidden, space->hidden_stride, 1, 0};
    prepare_many(w, prepare, layer);
    EACH_ITEM(pair, w, num_pairs(m)) {
        prepare_few(w, prepare, layer);
        multiply_pair(m, pair, x, w->rows, &to, &w->memory.product);
    }
    finish_phase(w, phase, num_pairs(m));
}

static void compute_attention(struct worker *w, const struct layer *layer) {
    const struct model *m = w->step->model;
    const struct workspace *space = w->step->space;
    /* With many stretches a thread takes all heads of one: what lies together in the cache is read together. */
    const int32_t shares = w->num_stretches < 4 * pool_size(w->step->engine->pool) ? m->kv_heads : 1;
    const int32_t share = m->kv_heads / shares, items = w->num_stretches * shares;
    EACH_ITEM_BY(1, item, w, items)
        attend(m, layer, &w->stretches[item / shares], item % shares * share, share, space->queries,
               space->query_stride, w->inputs->mixed.values, w->inputs->mixed.stride, &w->memory.attention);
    finish_phase(w, ATTENTION, items);
    add_product(w, layer, prepare_mixed, &layer->output, &w->inputs->mixed, OUTPUT);
}

static void compute_mlp(struct worker *w, const struct layer *layer) {
    const int32_t gate_tiles = num_tiles(&layer->gate);
    prepare_many(w, prepare_mlp, layer);
    EACH_ITEM(tile, w, gate_tiles) {
        prepare_few(w, prepare_mlp, layer);
        gate_and_up(w, layer, tile);
    }
    finish_phase(w, GATE_UP, gate_tiles);
    add_product(w, layer, prepare_inner, &layer->down, &w->inputs->inner, DOWN);
}

/* The batch is the caller's: only who has an item in hand may look at it. */
static void multiply_head(struct worker *w, int32_t pair) {
    const struct step *step = w->step;
    const struct matrix *head = &step->model->head;
    float *logits = step->batch->logits + (int64_t)step->first_sampling * head->rows;
    const int whole_lines = (uintptr_t)logits % 64 == 0 && head->rows % TILE_ROWS == 0;
    const struct target to = {logits, head->rows, 0, w->rows >= STREAMED_ROWS && whole_lines};
    multiply_pair(head, pair, &w->inputs->mlp, w->rows, &to, &w->memory.product);
}

static void compute_logits(struct worker *w) {
    const int32_t pairs = num_pairs(&w->step->model->head);
    prepare_many(w, prepare_head, NULL);
    EACH_ITEM(pair, w, pairs) {
        prepare_few(w, prepare_head, NULL);
        multiply_head(w, pair);
    }
    finish_phase(w, HEAD, pairs);
}

/* PHASES_A_LAYER and PHASES_BESIDE count what happens here. */
static void compute_slice(void *context, int32_t thread, uint32_t job) {
    struct step *step = context;
    struct worker worker, *w = &worker;
    start_worker(w, step, thread, job);
    EACH_ITEM(row, w, w->rows) embed(step, row);
    finish_phase(w, EMBED, w->rows);
    for (int32_t i = 0; i < step->model->num_layers; i++) {
        const struct layer *layer = &step->model->layers[i];
        compute_projections(w, layer);
        if (i == step->model->num_layers - 1) keep_sampling_rows(w);
        if (!w->rows) return;
        compute_attention(w, layer);
        compute_mlp(w, layer);
    }
    compute_logits(w);
}

/* The next stretch: up to STRETCH_ROWS rows of `span` from `row` of the batch on; how many. */
static int32_t add_stretch(struct step *step, const struct span *span, int32_t row, int32_t rows) {
    struct workspace *space = step->space;
    if (rows > STRETCH_ROWS) rows = STRETCH_ROWS;
    for (int32_t i = 0; i < rows; i++) space->stretch_of[row - step->first_row + i] = step->num_stretches;
    space->stretches[step->num_stretches++] = (struct stretch){
        row - step->first_row, rows, span->start + row - span->first_row, step->batch->tables + span->table};
    return rows;
}

/* The stretches of the slice's rows; spans are cut at its borders. */
static void cut_stretches(struct step *step) {
    const struct batch *batch = step->batch;
    step->num_stretches = 0;
    for (int32_t i = 0; i < batch->num_spans; i++) {
        const struct span *span = &batch->spans[i];
        const int32_t span_end = span->first_row + span->num_rows, slice_end = step->first_row + step->num_rows;
        const int32_t end = span_end < slice_end ? span_end : slice_end;
        int32_t row = span->first_row > step->first_row ? span->first_row : step->first_row;
        while (row < end) row += add_stretch(step, span, row, end - row);
    }
}

/* The stretches of the rows whose logits are wanted, once they are at the front. */
static void cut_sampling_stretches(struct step *step) {
    struct workspace *space = step->space;
    struct stretch *last = space->sampling_stretches - 1;
    for (int32_t i = 0, before = -2; i < step->num_sampling; i++) {
        const int32_t row = sampling_row(step, i);
        if (row == before + 1 && space->stretch_of[row] == space->stretch_of[before]) last->num_rows++;
        else *++last = (struct stretch){i, 1, position_of(step, row), stretch_at(step, row)->table};
        before = row;
    }
    step->num_sampling_stretches = (int32_t)(last + 1 - space->sampling_stretches);
}

/* The next rows of the batch, at most a slice; whether there are any. */
static int next_slice(struct step *step) {
    const struct batch *batch = step->batch;
    step->first_row += step->num_rows;
    step->first_sampling += step->num_sampling;
    const int32_t left = batch->num_rows - step->first_row, sampling = step->first_sampling;
    const int32_t rows = left < SLICE_ROWS ? left : SLICE_ROWS, end = step->first_row + rows;
    int32_t count = 0;
    while (sampling + count < batch->num_sampling && batch->sampling_rows[sampling + count] < end) count++;
    step->num_rows = rows;
    step->num_sampling = count;
    cut_stretches(step);
    cut_sampling_stretches(step);
    return rows > 0;
}

void NAMED(step_, SET)(struct engine *engine, const struct batch *batch) {
    struct step *step = &((struct workspace *)engine->memory)->step;
    step->batch = batch;
    step->first_row = step->num_rows = step->first_sampling = step->num_sampling = 0;
    step->clock = now();
    while (next_slice(step)) pool_run(engine->pool, compute_slice, step);
}
