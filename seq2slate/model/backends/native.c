/* The inner loops of the network, for batches, on the CPU: the functions of `Kernels` in Python. */
#include "native.h"
#ifdef _OPENMP
#include <omp.h>
#endif

#define BLOCK 64 /* units handled at once: few enough that the sums over items stay in registers */
#define FEWEST_LISTS 16 /* encoded or decoded together: enough for fast products, */
#define MOST_LISTS 64
#define CACHE (1 << 21) /* and few enough for the keys of all of them, in bytes, to stay near */

/* One LSTM step: gates (rows, 4d) hold the arguments of i, f, g, o without bias and are overwritten with their values. */
void lstm_forward(int64_t rows, int64_t d, float *gates, const float *bias, const float *before, float *c, float *h) {
#pragma omp parallel for if (rows * d > ENOUGH_WORK)
    for (int64_t b = 0; b < rows; b++) {
        float *gate = gates + b * 4 * d;
        lstm_row(d, gate, gate + d, gate + 2 * d, gate + 3 * d, bias, before + b * d, c + b * d, h + b * d);
    }
}

static inline void lstm_gradient(int64_t d, const float *restrict gates, const float *restrict before,
                                 const float *restrict c, const float *restrict dh, float *restrict dc,
                                 float *restrict dgates) {
#pragma omp simd
    for (int64_t u = 0; u < d; u++) {
        float in = gates[u], forget = gates[d + u], cell = gates[2 * d + u], out = gates[3 * d + u];
        float squashed = hyperbolic_tangent(c[u]);
        float dstate = dc[u] + dh[u] * out * (1.0f - squashed * squashed);
        dgates[u] = dstate * cell * in * (1.0f - in);
        dgates[d + u] = dstate * before[u] * forget * (1.0f - forget);
        dgates[2 * d + u] = dstate * in * (1.0f - cell * cell);
        dgates[3 * d + u] = dh[u] * squashed * out * (1.0f - out);
        dc[u] = dstate * forget;
    }
}

/* Its gradient: dgates (rows, 4d) of the arguments; dc is overwritten with that of the state before. */
void lstm_backward(int64_t rows, int64_t d, const float *gates, const float *before, const float *c, const float *dh,
                   float *dc, float *dgates) {
#pragma omp parallel for if (rows * d > ENOUGH_WORK)
    for (int64_t b = 0; b < rows; b++)
        lstm_gradient(d, gates + b * 4 * d, before + b * d, c + b * d, dh + b * d, dc + b * d, dgates + b * 4 * d);
}

/* The factors of arguments of the pointer, in place. */
void pointer_factors(int64_t count, float limit, float *x) {
#pragma omp parallel for if (count > ENOUGH_WORK)
    for (int64_t start = 0; start < count; start += ENOUGH_WORK / 8) {
        const int64_t rest = count - start, width = rest < ENOUGH_WORK / 8 ? rest : ENOUGH_WORK / 8;
        for (int64_t k = start; k < start + width; k++) x[k] = pointer_factor(x[k], limit);
    }
}

/* One step for the lists of `rows`, with factors queries (rows, d). */
void pointer_step(const decoding *now, int64_t step, int64_t rows, const int64_t *lists, const float *queries) {
    const float total = sum_of(now->d, now->v);
#pragma omp parallel for if (rows * now->n * now->d > ENOUGH_WORK)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t width = now->n * now->d;
        place_next(now, lists[row], step, total, largest(width, now->keys + lists[row] * width), queries + row * now->d);
    }
}

/* How many lists to take at once, with so many bytes of keys each: no more than leave every thread its share. */
static int64_t lists_at_once(int64_t lists, int64_t bytes) {
#ifdef _OPENMP
    const int64_t threads = omp_get_max_threads();
#else
    const int64_t threads = 1;
#endif
    const int64_t share = (lists + threads - 1) / threads, fitting = bytes ? CACHE / bytes : MOST_LISTS;
    const int64_t most = share < fitting ? share : fitting;
    return most < FEWEST_LISTS ? FEWEST_LISTS : most > MOST_LISTS ? MOST_LISTS : most;
}

static void lstm_step(gemm_function *gemm, const lstm *layer, int64_t rows, const float *x, const float *h_before,
                      const float *c_before, float *gates, float *c, float *h) {
    const int64_t d = layer->d;
    product(gemm, rows, 4 * d, layer->inputs, x, layer->weight_input, 0.0f, gates);
    product(gemm, rows, 4 * d, d, h_before, layer->weight_hidden, 1.0f, gates);
    for (int64_t r = 0; r < rows; r++) {
        float *gate = gates + r * 4 * d;
        lstm_row(d, gate, gate + d, gate + 2 * d, gate + 3 * d, layer->bias, c_before + r * d, c + r * d, h + r * d);
    }
}

/* All steps of a layer, with what its gradient needs: `LstmScan` in Python. The first rows[t] lists take part in step t. x (steps,
 * lists, inputs) is read from the second step on if there is a `start` (inputs), which all lists read first. c and h (steps + 1,
 * lists, d) hold the state before each step, gates are (steps, lists, 4d). */
typedef struct {
    lstm layer;
    int64_t steps, lists;
    const int64_t *rows;
    const float *x, *start;
    float *gates, *c, *h;
} lstm_scan;

/* What all lists that take part in a step read; null in the first step if that is `start`. */
static const float *read_in_step(const lstm_scan *scan, int64_t t) {
    if (!scan->start) return scan->x + t * scan->lists * scan->layer.inputs;
    return t ? scan->x + (t - 1) * scan->lists * scan->layer.inputs : NULL;
}

void lstm_scan_forward(gemm_function *gemm, const lstm_scan *scan) {
    const lstm *layer = &scan->layer;
    const int64_t d = layer->d, state = scan->lists * d;
    for (int64_t t = 0; t < scan->steps && scan->rows[t]; t++) {
        const float *read = read_in_step(scan, t);
        float *gates = scan->gates + 4 * t * state;
        product(gemm, read ? scan->rows[t] : 1, 4 * d, layer->inputs, read ? read : scan->start, layer->weight_input, 0.0f, gates);
        for (int64_t b = 1; !read && b < scan->rows[t]; b++) memcpy(gates + b * 4 * d, gates, 4 * (size_t)d * sizeof(float));
        product(gemm, scan->rows[t], 4 * d, d, scan->h + t * state, layer->weight_hidden, 1.0f, gates);
        lstm_forward(scan->rows[t], d, gates, layer->bias, scan->c + t * state, scan->c + (t + 1) * state, scan->h + (t + 1) * state);
    }
}

/* out (rows, columns) = a (rows, inner) times the transpose of b (columns, inner) */
static void product_with_transpose(gemm_function *gemm, int64_t rows, int64_t columns, int64_t inner, const float *a, const float *b,
                                   float *out) {
    const int m = (int)columns, n = (int)rows, k = (int)inner;
    const float one = 1.0f, zero = 0.0f;
    gemm("T", "N", &m, &n, &k, &one, b, &k, a, &k, &zero, out, &m);
}

/* out (inner, columns) += the transpose of a (rows, inner) times b (rows, columns) */
static void add_transposed_product(gemm_function *gemm, int64_t rows, int64_t columns, int64_t inner, const float *a, const float *b,
                                   float *out) {
    const int m = (int)columns, n = (int)inner, k = (int)rows;
    const float one = 1.0f;
    gemm("N", "T", &m, &n, &k, &one, b, &m, a, &n, &one, out, &m);
}

/* Gradients of `lstm_scan_forward`: `LstmScanGradients` in Python. Those of the outputs (steps, lists, d) and of the state after step
 * last[list] are given; dh and dc (lists, d) end as those of the first state. dx and dstart may be null; dgates (lists + 1, 4d) are
 * overwritten, all others are 0 at first. */
typedef struct {
    const int64_t *last;
    const float *doutputs, *dh_last, *dc_last;
    float *dgates, *dh, *dc, *dweight_input, *dweight_hidden, *dbias, *dx, *dstart;
} lstm_scan_gradients;

/* Add the gradient of what arrives at the outputs of a step, and at the states of the lists that end with it. */
static void add_outer_gradients(const lstm_scan *scan, const lstm_scan_gradients *by, int64_t t) {
    const int64_t d = scan->layer.d;
    for (int64_t k = 0; k < scan->rows[t] * d; k++) by->dh[k] += by->doutputs[t * scan->lists * d + k];
    for (int64_t b = 0; b < scan->lists; b++) {
        if (by->last[b] != t) continue;
        for (int64_t k = b * d; k < (b + 1) * d; k++) by->dh[k] += by->dh_last[k], by->dc[k] += by->dc_last[k];
    }
}

void lstm_scan_backward(gemm_function *gemm, const lstm_scan *scan, const lstm_scan_gradients *by) {
    const lstm *layer = &scan->layer;
    const int64_t d = layer->d, f = layer->inputs, state = scan->lists * d;
    float *dgates = by->dgates, *summed = dgates + 4 * state;
    for (int64_t t = scan->steps - 1; t >= 0; t--) {
        const int64_t rows = scan->rows[t];
        const float *read = read_in_step(scan, t), *h = scan->h + t * state, *c = scan->c + t * state;
        add_outer_gradients(scan, by, t);
        if (!rows) continue;
        lstm_backward(rows, d, scan->gates + 4 * t * state, c, c + state, by->dh, by->dc, dgates);
        product_with_transpose(gemm, rows, d, 4 * d, dgates, layer->weight_hidden, by->dh);
        add_transposed_product(gemm, rows, 4 * d, d, h, dgates, by->dweight_hidden);
        memset(summed, 0, 4 * (size_t)d * sizeof(float));
        for (int64_t b = 0; b < rows; b++)
            for (int64_t u = 0; u < 4 * d; u++) summed[u] += dgates[b * 4 * d + u];
        for (int64_t u = 0; u < 4 * d; u++) by->dbias[u] += summed[u];
        add_transposed_product(gemm, read ? rows : 1, 4 * d, f, read ? read : scan->start, read ? dgates : summed, by->dweight_input);
        if (!read)
            product_with_transpose(gemm, 1, f, 4 * d, summed, layer->weight_input, by->dstart);
        else if (by->dx)
            product_with_transpose(gemm, rows, f, 4 * d, dgates, layer->weight_input, by->dx + (read - scan->x));
    }
}

/* An encoder of one LSTM layer, without what a gradient would need: reads x (steps, lists, inputs) from a state of zeros and
 * writes the factors e^{2 W_enc e_i} (lists, steps, d) of the keys, and the state after step last[list]. Nothing but the
 * factors is kept of a step. Returns 0, or 1 if there is no memory. */
int lstm_encode(gemm_function *gemm, const lstm *layer, int64_t steps, int64_t lists, float limit, const float *x,
                const int64_t *last, const float *w_enc, float *factors, float *h_last, float *c_last) {
    const int64_t d = layer->d, f = layer->inputs;
    const int64_t at_once = lists_at_once(lists, 0), n_blocks = (lists + at_once - 1) / at_once;
    int failed = 0;
#pragma omp parallel for if (n_blocks > 1) reduction(| : failed)
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t first = block * at_once, rest = lists - first, rows = rest < at_once ? rest : at_once;
        float *memory = calloc((size_t)(rows * d * 9), sizeof(float));
        if (!memory) {
            failed = 1;
            continue;
        }
        float *h[2] = {memory, memory + rows * d}, *c[2] = {memory + 2 * rows * d, memory + 3 * rows * d};
        float *key = memory + 4 * rows * d, *gates = memory + 5 * rows * d;
        for (int64_t t = 0; t < steps; t++) {
            float *h_now = h[(t + 1) % 2], *c_now = c[(t + 1) % 2];
            lstm_step(gemm, layer, rows, x + (t * lists + first) * f, h[t % 2], c[t % 2], gates, c_now, h_now);
            product(gemm, rows, d, d, h_now, w_enc, 0.0f, key);
            for (int64_t r = 0; r < rows; r++) {
                float *factor = factors + ((first + r) * steps + t) * d;
                for (int64_t u = 0; u < d; u++) factor[u] = pointer_factor(key[r * d + u], limit);
                if (last[first + r] != t) continue;
                memcpy(h_last + (first + r) * d, h_now + r * d, d * sizeof(float));
                memcpy(c_last + (first + r) * d, c_now + r * d, d * sizeof(float));
            }
        }
        free(memory);
    }
    return failed;
}

/* The decoder of one LSTM layer: `LstmDecoder` in Python. `keep` (lists, d) may be null. What its gradient would need of each step,
 * gates (steps, lists, 4d) and states after it (steps, lists, d), is kept if there is room for it. */
typedef struct {
    lstm layer;
    float limit; /* of the arguments of the pointer */
    const float *items, *go, *w_dec, *keep, *h, *c;
    const uint8_t *wanted; /* (lists, n): a list ends when none of these is left */
    float *kept_gates, *kept_c, *kept_h;
} decoder;

static void keep_step(const decoder *net, int64_t d, int64_t place, const float *gates, const float *c, const float *h) {
    memcpy(net->kept_gates + place * 4 * d, gates, 4 * (size_t)d * sizeof(float));
    memcpy(net->kept_c + place * d, c, (size_t)d * sizeof(float));
    memcpy(net->kept_h + place * d, h, (size_t)d * sizeof(float));
}

/* Some lists, from the first step until each has ended; `memory` holds 9 d + inputs floats a list. */
static void decode_block(gemm_function *gemm, const decoding *now, const decoder *net, int64_t first, int64_t rows,
                         float *memory) {
    const int64_t n = now->n, d = now->d, f = net->layer.inputs;
    const float total = sum_of(d, now->v);
    float *h = memory, *c = h + rows * d, *h_next = c + rows * d, *c_next = h_next + rows * d, *gates = c_next + rows * d;
    float *query = gates + rows * 4 * d, *x = query + rows * d;
    int64_t list[MOST_LISTS], pending[MOST_LISTS], active = 0;
    float top[MOST_LISTS];
    for (int64_t b = first; b < first + rows; b++) {
        int64_t count = 0;
        for (int64_t i = 0; i < n; i++) count += net->wanted[b * n + i];
        if (!count) continue;
        memcpy(h + active * d, net->h + b * d, d * sizeof(float));
        memcpy(c + active * d, net->c + b * d, d * sizeof(float));
        memcpy(x + active * f, net->go, f * sizeof(float));
        top[active] = largest(n * d, now->keys + b * n * d);
        pending[active] = count, list[active++] = b;
    }
    for (int64_t step = 0; step < now->steps && active; step++) {
        lstm_step(gemm, &net->layer, active, x, h, c, gates, c_next, h_next);
        for (int64_t r = 0; net->kept_gates && r < active; r++)
            keep_step(net, d, step * now->lists + list[r], gates + r * 4 * d, c_next + r * d, h_next + r * d);
        const float *output = h_next;
        if (net->keep) {
            for (int64_t r = 0; r < active; r++)
                for (int64_t u = 0; u < d; u++) gates[r * d + u] = h_next[r * d + u] * net->keep[list[r] * d + u];
            output = gates;
        }
        product(gemm, active, d, d, output, net->w_dec, 0.0f, query);
        for (int64_t k = 0; k < active * d; k++) query[k] = pointer_factor(query[k], net->limit);
        int64_t going_on = 0;
        for (int64_t r = 0; r < active; r++) {
            const int64_t b = list[r], choice = place_next(now, b, step, total, top[r], query + r * d);
            pending[r] -= choice < 0 || net->wanted[b * n + choice];
            if (choice < 0 || pending[r] <= 0) continue;
            if (going_on < r) { /* a list before it has ended */
                memcpy(h_next + going_on * d, h_next + r * d, d * sizeof(float));
                memcpy(c_next + going_on * d, c_next + r * d, d * sizeof(float));
            }
            memcpy(x + going_on * f, net->items + (choice * now->lists + b) * f, f * sizeof(float));
            top[going_on] = top[r], pending[going_on] = pending[r], list[going_on++] = b;
        }
        active = going_on;
        float *h_done = h, *c_done = c;
        h = h_next, c = c_next, h_next = h_done, c_next = c_done;
    }
}

/* All steps of all lists. Returns 0, or 1 if there is no memory. */
int lstm_decode(gemm_function *gemm, const decoding *now, const decoder *net) {
    const int64_t at_once = lists_at_once(now->lists, now->n * now->d * (int64_t)sizeof(float));
    const int64_t n_blocks = (now->lists + at_once - 1) / at_once;
    int failed = 0;
#pragma omp parallel for if (n_blocks > 1) reduction(| : failed)
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t first = block * at_once, rest = now->lists - first, rows = rest < at_once ? rest : at_once;
        float *memory = malloc((size_t)(rows * (9 * now->d + net->layer.inputs)) * sizeof(float));
        failed |= !memory;
        if (memory) decode_block(gemm, now, net, first, rows, memory);
        free(memory);
    }
    return failed;
}

/* The scores of all steps of given slates: queries (steps, rows, d), of which list lists[r] has the first stops[r] steps;
 * slots (lists, n) says where an item was placed, and an item is scored up to and including that step. Returns 0, or 1 if
 * there is no memory. */
int pointer_forward(int64_t rows, int64_t n, int64_t d, int64_t steps, const int64_t *lists, const int64_t *stops,
                    const int64_t *slots, const float *keys, const float *queries, const float *v, float *scores) {
    const float total = sum_of(d, v);
    int failed = 0;
#pragma omp parallel for schedule(dynamic) reduction(| : failed)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t b = lists[row];
        const float top = largest(n * d, keys + b * n * d);
        uint8_t *left = malloc((size_t)n);
        failed |= !left;
        for (int64_t j = 0; left && j < stops[row]; j++) {
            for (int64_t i = 0; i < n; i++) left[i] = slots[b * n + i] >= j;
            const float *query = queries + (j * rows + row) * d;
            scores_of_list(n, d, total, top, keys + b * n * d, query, v, NULL, left, scores + (b * steps + j) * n);
        }
        free(left);
    }
    return failed;
}

static inline void pointer_gradient(int64_t width, float dscore, const float *restrict key, const float *restrict query,
                                    float *restrict dkey, float *restrict dquery, float *restrict dv) {
#pragma omp simd
    for (int64_t u = 0; u < width; u++) {
        float r = reciprocal(one_plus(key[u], query[u], 1e30f)), slope = dscore * r * (1.0f - r);
        dkey[u] += slope;
        dquery[u] += slope;
        dv[u] += dscore * (1.0f - 2.0f * r);
    }
}

/* Their gradients. A score's derivative by either argument of the tanh is 4 v r (1 - r); r is computed again, not stored.
 * dkeys (lists, n, d) and dv (lists, d) come in as zeros. */
void pointer_backward(int64_t rows, int64_t n, int64_t d, int64_t steps, const int64_t *lists, const int64_t *stops,
                      const float *keys, const float *queries, const float *v, const float *dscores, float *dkeys,
                      float *dqueries, float *dv) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t b = lists[row];
        for (int64_t start = 0; start < d; start += BLOCK) {
            const int64_t width = d - start < BLOCK ? d - start : BLOCK;
            float sum_v[BLOCK] = {0};
            for (int64_t j = 0; j < stops[row]; j++) {
                const float *query = queries + (j * rows + row) * d + start;
                float sum_query[BLOCK] = {0};
                for (int64_t i = 0; i < n; i++) {
                    const float dscore = dscores[(b * steps + j) * n + i];
                    const float *key = keys + (b * n + i) * d + start;
                    float *dkey = dkeys + (b * n + i) * d + start;
                    if (dscore == 0.0f) continue;
                    if (width == BLOCK) /* a constant width lets the compiler keep the sums in registers */
                        pointer_gradient(BLOCK, dscore, key, query, dkey, sum_query, sum_v);
                    else
                        pointer_gradient(width, dscore, key, query, dkey, sum_query, sum_v);
                }
                for (int64_t u = 0; u < width; u++)
                    dqueries[(j * rows + row) * d + start + u] = 4.0f * v[start + u] * sum_query[u];
            }
            for (int64_t u = 0; u < width; u++) dv[b * d + start + u] = sum_v[u];
            for (int64_t i = 0; i < n; i++)
                for (int64_t u = 0; u < width; u++) dkeys[(b * n + i) * d + start + u] *= 4.0f * v[start + u];
        }
    }
}
