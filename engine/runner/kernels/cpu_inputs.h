/* What the products of a layer read: rows normalised, and quantised or rounded as the weights want them. */
#ifndef CPU_INPUTS_H
#define CPU_INPUTS_H

#include <math.h>

#include "cpu_worker.h"

/* Whole vectors: rows are zero past their columns. */
static void normalise(const float *x, const float *weight, int32_t columns, float eps, float *out) {
    f32x16 squares = splat(0);
    int32_t i = 0;
    for (; i + LANES <= columns; i += LANES)
        squares = multiply_add(load_floats(x + i), load_floats(x + i), squares);
    float sum = sum_of_lanes(squares);
    for (int32_t rest = i; rest < columns; rest++) sum += x[rest] * x[rest];
    const float factor = 1.0f / sqrtf(sum / (float)columns + eps);
    for (i = 0; i + LANES <= columns; i += LANES)
        store_floats(out + i, load_floats(x + i) * factor * load_floats(weight + i));
    for (; i < columns; i++) out[i] = x[i] * factor * weight[i];
}

static void prepare_for(
    struct activations *x, int64_t row, const struct matrix *a, const struct matrix *b, const struct matrix *c) {
    const int bfloats = (a->kind == BFLOATS) + (b->kind == BFLOATS) + (c->kind == BFLOATS);
    prepare_row(x, row, bfloats < 3, bfloats > 0);
}

/* The row of `x` that products read: of the hidden state, normalised. */
static void normalise_into(struct worker *w, const float *weight, struct activations *x, int32_t row) {
    const struct workspace *space = w->step->space;
    normalise(space->hidden + row * space->hidden_stride, weight, w->step->model->hidden, w->step->model->eps,
              x->values + (int64_t)row * x->stride);
}

static void prepare_attention(struct worker *w, const struct layer *layer, int32_t row) {
    normalise_into(w, layer->input_norm, &w->inputs->attention, row);
    prepare_for(&w->inputs->attention, row, &layer->query, &layer->key, &layer->value);
}

static void prepare_mixed(struct worker *w, const struct layer *layer, int32_t row) {
    prepare_for(&w->inputs->mixed, row, &layer->output, &layer->output, &layer->output);
}

static void prepare_mlp(struct worker *w, const struct layer *layer, int32_t row) {
    normalise_into(w, layer->mlp_norm, &w->inputs->mlp, row);
    prepare_for(&w->inputs->mlp, row, &layer->gate, &layer->up, &layer->up);
}

static void prepare_inner(struct worker *w, const struct layer *layer, int32_t row) {
    prepare_for(&w->inputs->inner, row, &layer->down, &layer->down, &layer->down);
}

static void prepare_head(struct worker *w, const struct layer *layer, int32_t row) {
    const struct model *m = w->step->model;
    (void)layer;
    normalise_into(w, m->final_norm, &w->inputs->mlp, row);
    prepare_for(&w->inputs->mlp, row, &m->head, &m->head, &m->head);
}

typedef void (*prepare_function)(struct worker *w, const struct layer *layer, int32_t row);

/* Many rows are prepared for the next product by all threads together. */
static void prepare_many(struct worker *w, prepare_function prepare, const struct layer *layer) {
    if (w->rows <= FEW_ROWS) return;
    EACH_ITEM(row, w, w->rows) prepare(w, layer, row);
    finish_phase(w, NORM, w->rows);
}

/* Few rows every thread prepares for itself, which is quicker than to wait for each other; when it has an item of the
 * product in hand, so that nothing changes what it reads.
 */
static void prepare_few(struct worker *w, prepare_function prepare, const struct layer *layer) {
    if (w->rows > FEW_ROWS || w->prepared == w->phase) return;
    for (int32_t row = 0; row < w->rows; row++) prepare(w, layer, row);
    w->prepared = w->phase;
}

#endif
