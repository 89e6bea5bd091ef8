/* The inner loops of the network, for the CPU. native.py compiles this file once with the machine's own C compiler;
 * kernels.py holds the same functions in PyTorch, which run where there is no compiler and check these in the tests.
 * All arrays are float32 (indices int64, flags uint8) and contiguous. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 64 /* units handled at once: few enough that the sums over items stay in registers */
#define REGISTER 16 /* floats handled at once where nothing is kept between them */
#define ROWS_AT_ONCE 8 /* of a matrix that meets a single row */
#define ITEMS_AT_ONCE 64 /* items whose numbers are gathered before they are scored */
#define ENOUGH_WORK 65536 /* elements below which a second thread costs more than it brings */
#define LISTS_AT_ONCE 16 /* lists decoded together: enough for fast products, few enough for their keys to stay in the cache */

#define PRODUCT_LIMIT 1e9f /* of e^{2a} e^{2b} in scores, where four are multiplied; tanh is 1 to within 2e-9 there */

typedef union {
    int32_t bits;
    float value;
} float_bits;

/* e^x for |x| <= 87: 2^n e^r with |r| <= ln(2)/2, and a polynomial of relative error 8e-8 for e^r. Adding
 * 1.5 * 2^23 + 127 rounds to a whole number and leaves n + 127, the exponent of 2^n, in the lowest bits. */
static inline float fast_exp(float x) {
    const float shift = 12583039.0f;
    float_bits rounded;
    rounded.value = x * 1.44269504088896341f + shift;
    float n = rounded.value - shift;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 8.2975834687e-3f;
    p = p * r + 4.1915877655e-2f;
    p = p * r + 1.6667578369e-1f;
    p = p * r + 4.9998890459e-1f;
    p = p * r + 9.9999969014e-1f;
    p = p * r + 1.0000000721e+0f;
    rounded.bits = (int32_t)((uint32_t)rounded.bits << 23);
    return p * rounded.value;
}

/* 1 / x for x in [1, 1e38], to the last bit or two: three Newton steps cost a quarter of a vector division. */
static inline float reciprocal(float x) {
    float_bits guess;
    guess.value = x;
    guess.bits = 0x7EF311C7 - guess.bits;
    float y = guess.value;
    y = y * (2.0f - x * y);
    y = y * (2.0f - x * y);
    return y + y * (1.0f - x * y);
}

static inline float limited(float x, float limit) {
    x = x < -limit ? -limit : x;
    return x > limit ? limit : x;
}

/* Beyond ±10 it is ±1 to within 5e-9. */
static inline float hyperbolic_tangent(float x) { return 1.0f - 2.0f * reciprocal(1.0f + fast_exp(2.0f * limited(x, 10.0f))); }

/* 1 + e^{2a} e^{2b}, so that tanh(a + b) = 1 - 2 / that, and no more than 1 + limit. */
static inline float one_plus(float key, float query, float limit) {
    float product = key * query;
    return 1.0f + (product < limit ? product : limit);
}

/* Gates beyond ±20 are 0 or 1 to within 2e-9; so limited, one reciprocal of a product does for all four of them. */
static inline void lstm_row(int64_t d, float *restrict i, float *restrict f, float *restrict g, float *restrict o,
                            const float *restrict bias, const float *restrict before, float *restrict c, float *restrict h) {
#pragma omp simd
    for (int64_t u = 0; u < d; u++) {
        float ei = 1.0f + fast_exp(-limited(i[u] + bias[u], 20.0f));
        float ef = 1.0f + fast_exp(-limited(f[u] + bias[d + u], 20.0f));
        float eg = 1.0f + fast_exp(-2.0f * limited(g[u] + bias[2 * d + u], 10.0f));
        float eo = 1.0f + fast_exp(-limited(o[u] + bias[3 * d + u], 20.0f));
        float left = ei * ef, right = eg * eo, all = reciprocal(left * right);
        float in = all * ef * right, forget = all * ei * right, cell = (2.0f - eg) * (all * left * eo), out = all * left * eg;
        float state = forget * before[u] + in * cell;
        i[u] = in, f[u] = forget, g[u] = cell, o[u] = out;
        c[u] = state;
        h[u] = out * hyperbolic_tangent(state);
    }
}

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

/* e^{2x} with x clamped to ±40, in place: a product of two of them is at worst infinite or 0, and both are right. */
void pointer_factors(int64_t count, float *x) {
#pragma omp parallel for if (count > ENOUGH_WORK)
    for (int64_t start = 0; start < count; start += ENOUGH_WORK / 8) {
        const int64_t rest = count - start, width = rest < ENOUGH_WORK / 8 ? rest : ENOUGH_WORK / 8;
        for (int64_t k = start; k < start + width; k++) x[k] = fast_exp(2.0f * limited(x[k], 40.0f));
    }
}

static inline float sum_of(int64_t d, const float *restrict v) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t u = 0; u < d; u++) sum += v[u];
    return sum;
}

/* v^T tanh(a + b) = total - 2 sum(v / (1 + e^{2a} e^{2b})), total = sum(v), for the query of a step and the keys of four
 * items at once, which share what is loaded. Units go in fours, with one reciprocal for all of them:
 * p/w + q/x + r/y + s/z = ((px + qw) yz + (rz + sy) wx) / wxyz. */
#define SUM_OF_FOUR(key, sum, PLUS)                                                                                       \
    {                                                                                                                     \
        float w = PLUS(key[u], query[u]), x = PLUS(key[quarter + u], query[quarter + u]);                                 \
        float y = PLUS(key[2 * quarter + u], query[2 * quarter + u]), z = PLUS(key[3 * quarter + u], query[3 * quarter + u]); \
        float wx = w * x, yz = y * z;                                                                                     \
        float left = v[u] * x + v[quarter + u] * w, right = v[2 * quarter + u] * z + v[3 * quarter + u] * y;              \
        sum += (left * yz + right * wx) * reciprocal(wx * yz);                                                            \
    }
#define SUM_LOOP(PLUS)                                                                                                    \
    _Pragma("omp simd reduction(+ : sum0, sum1, sum2, sum3)") for (int64_t u = 0; u < quarter; u++) {                     \
        SUM_OF_FOUR(key0, sum0, PLUS)                                                                                     \
        SUM_OF_FOUR(key1, sum1, PLUS)                                                                                     \
        SUM_OF_FOUR(key2, sum2, PLUS)                                                                                     \
        SUM_OF_FOUR(key3, sum3, PLUS)                                                                                     \
    }
#define PLUS_SAFE(key, query) (1.0f + (key) * (query))
#define PLUS_LIMITED(key, query) one_plus(key, query, PRODUCT_LIMIT)

static inline void scores_of_four(int64_t d, float total, int safe, const float *const keys[4], const float *restrict query,
                                  const float *restrict v, float scores[4]) {
    const float *restrict key0 = keys[0], *restrict key1 = keys[1], *restrict key2 = keys[2], *restrict key3 = keys[3];
    const int64_t quarter = d / 4;
    float sum0 = 0.0f, sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;
    if (safe)
        SUM_LOOP(PLUS_SAFE)
    else
        SUM_LOOP(PLUS_LIMITED)
    scores[0] = total - 2.0f * sum0, scores[1] = total - 2.0f * sum1;
    scores[2] = total - 2.0f * sum2, scores[3] = total - 2.0f * sum3;
    for (int64_t u = 4 * quarter; u < d; u++)
        for (int64_t k = 0; k < 4; k++) scores[k] -= 2.0f * v[u] * reciprocal(PLUS_LIMITED(keys[k][u], query[u]));
}

static inline float largest(int64_t count, const float *restrict x) {
    float most = 0.0f;
#pragma omp simd reduction(max : most)
    for (int64_t k = 0; k < count; k++) most = x[k] > most ? x[k] : most;
    return most;
}

/* The scores of the items of a list (n, d) that are left, with their bias if there is one; what stood in the place of the
 * others stays. Returns the item with the largest score, the first of them, or -1 if none is left. `top` is the largest of the
 * keys: if no product with the query can reach the limit, it need not be looked for. */
static inline int64_t scores_of_list(int64_t n, int64_t d, float total, float top, const float *keys, const float *query,
                                     const float *v, const float *bias, const uint8_t *left, float *scores) {
    const int safe = top * largest(d, query) < PRODUCT_LIMIT;
    int64_t item[ITEMS_AT_ONCE + 4], count = 0, best = -1;
    for (int64_t start = 0; start < n; start += ITEMS_AT_ONCE) {
        const int64_t stop = start + ITEMS_AT_ONCE < n ? start + ITEMS_AT_ONCE : n;
        for (int64_t i = start; i < stop; i++) item[count] = i, count += left[i]; /* no branch: nobody can predict it */
        int64_t at = 0;
        for (; at + 4 <= count || (stop == n && at < count); at += 4) {
            const int64_t real = count - at < 4 ? count - at : 4; /* at the end some are scored again */
            const float *four[4];
            float values[4];
            for (int64_t k = 0; k < 4; k++) four[k] = keys + item[at + (k < real ? k : 0)] * d;
            scores_of_four(d, total, safe, four, query, v, values);
            for (int64_t k = 0; k < real; k++) {
                const int64_t i = item[at + k];
                scores[i] = values[k] + (bias ? bias[i] : 0.0f);
                if (best < 0 || scores[i] > scores[best]) best = i;
            }
        }
        for (int64_t k = at; k < count; k++) item[k - at] = item[k];
        count = at < count ? count - at : 0;
    }
    return best;
}

/* Draw from the softmax of score * sharpness: the first item at which the running sum of e^... passes draw * total. */
static inline int64_t sampled(int64_t n, const uint8_t *left, const float *score, float sharpness, float best, float draw) {
    float total = 0.0f, sum = 0.0f;
    int64_t choice = -1;
    for (int64_t i = 0; i < n; i++)
        if (left[i]) total += fast_exp(limited((score[i] - best) * sharpness, 87.0f));
    for (int64_t i = 0; i < n && sum <= draw * total; i++)
        if (left[i]) sum += fast_exp(limited((score[i] - best) * sharpness, 87.0f)), choice = i;
    return choice;
}

/* What decoding reads and writes; see kernels.Decoding. All but keys, v, left, scores and slates may be null. */
typedef struct {
    int64_t lists, n, d, steps;
    float sharpness;
    const float *keys, *v, *draws, *interaction;
    float *bias;
    uint8_t *left;
    float *scores;
    int64_t *slates;
} decoding;

/* Score the items left of list b, with the factors of its query, and place the best of them or a sample. */
static inline int64_t place_next(const decoding *now, int64_t b, int64_t step, float total, float top, const float *query) {
    const int64_t n = now->n, d = now->d;
    const uint8_t *left = now->left + b * n;
    const float *bias = now->bias ? now->bias + b * n : NULL;
    float *score = now->scores + (b * now->steps + step) * n;
    int64_t choice = scores_of_list(n, d, total, top, now->keys + b * n * d, query, now->v, bias, left, score);
    if (now->draws && choice >= 0)
        choice = sampled(n, left, score, now->sharpness, score[choice], now->draws[b * now->steps + step]);
    now->slates[b * now->steps + step] = choice;
    if (choice < 0) return choice;
    now->left[b * n + choice] = 0;
    if (now->interaction)
        for (int64_t i = 0; i < n; i++) now->bias[b * n + i] += now->interaction[(b * n + choice) * n + i];
    return choice;
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

/* BLAS's sgemm, which PyTorch and SciPy bring along. */
typedef void gemm_function(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                           const int *, const float *, const int *, const float *, float *, const int *);

/* out (rows, columns) = a (rows, inner) b (inner, columns) + keep * out. BLAS stores columns, so it is told the transposes. */
static void product(gemm_function *gemm, int64_t rows, int64_t columns, int64_t inner, const float *a, const float *b,
                    float keep, float *out) {
    const int m = (int)columns, n = (int)rows, k = (int)inner;
    const float one = 1.0f;
    gemm("N", "N", &m, &n, &k, &one, b, &m, a, &k, &keep, out, &m);
}

/* An LSTM layer; see recurrent.LstmLayer. */
typedef struct {
    int64_t inputs, d;
    const float *weight_input, *weight_hidden, *bias;
} lstm;

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

/* An encoder of one LSTM layer, without what a gradient would need: reads x (steps, lists, inputs) from a state of zeros and
 * writes the factors e^{2 W_enc e_i} (lists, steps, d) of the keys, and the state after step last[list]. Nothing but the
 * factors is kept of a step. Returns 0, or 1 if there is no memory. */
int lstm_encode(gemm_function *gemm, const lstm *layer, int64_t steps, int64_t lists, const float *x, const int64_t *last,
                const float *w_enc, float *factors, float *h_last, float *c_last) {
    const int64_t d = layer->d, f = layer->inputs, n_blocks = (lists + LISTS_AT_ONCE - 1) / LISTS_AT_ONCE;
    int failed = 0;
#pragma omp parallel for if (n_blocks > 1) reduction(| : failed)
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t first = block * LISTS_AT_ONCE, rest = lists - first, rows = rest < LISTS_AT_ONCE ? rest : LISTS_AT_ONCE;
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
                for (int64_t u = 0; u < d; u++) factor[u] = fast_exp(2.0f * limited(key[r * d + u], 40.0f));
                if (last[first + r] != t) continue;
                memcpy(h_last + (first + r) * d, h_now + r * d, d * sizeof(float));
                memcpy(c_last + (first + r) * d, c_now + r * d, d * sizeof(float));
            }
        }
        free(memory);
    }
    return failed;
}

/* The decoder of one LSTM layer; see network.SlateNetwork. `keep` (lists, d) may be null. */
typedef struct {
    lstm layer;
    const float *items, *go, *w_dec, *keep, *h, *c;
    const uint8_t *wanted; /* (lists, n): a list ends when none of these is left */
} decoder;

/* Some lists, from the first step until each has ended; `memory` holds 9 d + inputs floats a list. */
static void decode_block(gemm_function *gemm, const decoding *now, const decoder *net, int64_t first, int64_t rows,
                         float *memory) {
    const int64_t n = now->n, d = now->d, f = net->layer.inputs;
    const float total = sum_of(d, now->v);
    float *h = memory, *c = h + rows * d, *h_next = c + rows * d, *c_next = h_next + rows * d, *gates = c_next + rows * d;
    float *query = gates + rows * 4 * d, *x = query + rows * d;
    int64_t list[LISTS_AT_ONCE], pending[LISTS_AT_ONCE], active = 0;
    float top[LISTS_AT_ONCE];
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
        const float *output = h_next;
        if (net->keep) {
            for (int64_t r = 0; r < active; r++)
                for (int64_t u = 0; u < d; u++) gates[r * d + u] = h_next[r * d + u] * net->keep[list[r] * d + u];
            output = gates;
        }
        product(gemm, active, d, d, output, net->w_dec, 0.0f, query);
        for (int64_t k = 0; k < active * d; k++) query[k] = fast_exp(2.0f * limited(query[k], 40.0f));
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
    const int64_t n_blocks = (now->lists + LISTS_AT_ONCE - 1) / LISTS_AT_ONCE;
    int failed = 0;
#pragma omp parallel for if (n_blocks > 1) reduction(| : failed)
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t first = block * LISTS_AT_ONCE, rest = now->lists - first;
        const int64_t rows = rest < LISTS_AT_ONCE ? rest : LISTS_AT_ONCE;
        float *memory = malloc((size_t)(rows * (9 * now->d + net->layer.inputs)) * sizeof(float));
        failed |= !memory;
        if (memory) decode_block(gemm, now, net, first, rows, memory);
        free(memory);
    }
    return failed;
}

/* One list at a time: the products are of a single row with a matrix, and take as long as reading the matrix does. */

/* out (columns) += x (inner) times matrix (inner, columns), which is read once, in order, and fetched ahead. */
static void add_row_product(int64_t inner, int64_t columns, const float *restrict x, const float *restrict matrix,
                            float *restrict out) {
    const int64_t whole = columns - columns % REGISTER;
    int64_t k = 0;
    for (; k + ROWS_AT_ONCE <= inner; k += ROWS_AT_ONCE) {
        const float *restrict rows = matrix + k * columns;
        for (int64_t start = 0; start < whole; start += REGISTER) {
            for (int64_t r = 0; r < ROWS_AT_ONCE; r++) __builtin_prefetch(rows + (ROWS_AT_ONCE + r) * columns + start);
            for (int64_t u = start; u < start + REGISTER; u++) {
                float sum = out[u];
                for (int64_t r = 0; r < ROWS_AT_ONCE; r++) sum += x[k + r] * rows[r * columns + u];
                out[u] = sum;
            }
        }
        for (int64_t u = whole; u < columns; u++)
            for (int64_t r = 0; r < ROWS_AT_ONCE; r++) out[u] += x[k + r] * rows[r * columns + u];
    }
    for (; k < inner; k++)
        for (int64_t u = 0; u < columns; u++) out[u] += x[k] * matrix[k * columns + u];
}

/* From one state to the next; gates (4d) hold the input times weight_input. */
static void advance(const lstm *layer, float *gates, const float *h_before, const float *c_before, float *h, float *c) {
    const int64_t d = layer->d;
    add_row_product(d, 4 * d, h_before, layer->weight_hidden, gates);
    lstm_row(d, gates, gates + d, gates + 2 * d, gates + 3 * d, layer->bias, c_before, c, h);
}

/* The log-probability of a choice over the items still left after it, under the softmax of score * sharpness. */
static float log_probability(int64_t n, const uint8_t *left, const float *score, float sharpness, int64_t choice) {
    float best = score[choice];
    for (int64_t i = 0; i < n; i++)
        if (left[i] && score[i] > best) best = score[i];
    float total = fast_exp(limited((score[choice] - best) * sharpness, 87.0f));
    for (int64_t i = 0; i < n; i++)
        if (left[i]) total += fast_exp(limited((score[i] - best) * sharpness, 87.0f));
    return (score[choice] - best) * sharpness - logf(total);
}

/* A network with one LSTM layer as its encoder and one as its decoder. */
typedef struct {
    lstm encoder, decoder;
    const float *w_enc, *w_dec, *go, *v;
} lstm_network;

/* Read x (n, inputs): outputs (n + 1, d) after a first row of zeros, c (2, d) with the last state in row n % 2, and the factors
 * of the keys (n, d). gates (n, 4d) are overwritten. */
static void encode_list(gemm_function *gemm, const lstm_network *net, int64_t n, const float *x, float *gates, float *outputs,
                        float *c, float *keys) {
    const int64_t d = net->encoder.d;
    product(gemm, n, 4 * d, net->encoder.inputs, x, net->encoder.weight_input, 0.0f, gates);
    for (int64_t t = 0; t < n; t++) {
        float *h = outputs + t * d;
        advance(&net->encoder, gates + t * 4 * d, h, c + t % 2 * d, h + d, c + (t + 1) % 2 * d);
    }
    product(gemm, n, d, d, outputs + d, net->w_enc, 0.0f, keys);
    for (int64_t k = 0; k < n * d; k++) keys[k] = fast_exp(2.0f * limited(keys[k], 40.0f));
}

/* Place the first items of one list of n > 0 items x (n, inputs), and say with what log-probability each was placed. bias (n),
 * which is overwritten, interaction (n, n) and draws (steps) may be null. Returns 0, or 1 if there is no memory. */
int place_list(gemm_function *gemm, const lstm_network *net, int64_t n, int64_t steps, float sharpness, const float *x,
               float *bias, const float *interaction, const float *draws, int64_t *slate, float *log_probabilities) {
    const int64_t d = net->decoder.d, f = net->decoder.inputs;
    float *memory = calloc((size_t)(n * 4 * d + (n + 1) * d + n * d + 9 * d + steps * n), sizeof(float));
    uint8_t *left = malloc((size_t)n);
    if (!memory || !left) {
        free(memory), free(left);
        return 1;
    }
    float *read = memory, *outputs = read + n * 4 * d, *keys = outputs + (n + 1) * d, *c = keys + n * d;
    float *h = c + 2 * d, *query = h + 2 * d, *gates = query + d, *scores = gates + 4 * d;
    encode_list(gemm, net, n, x, read, outputs, c, keys);
    memcpy(h + n % 2 * d, outputs + n * d, d * sizeof(float));
    memset(left, 1, (size_t)n);
    const int all_at_once = 4 * steps > n; /* a row costs a quarter then, of what it costs alone */
    if (all_at_once) product(gemm, n, 4 * d, f, x, net->decoder.weight_input, 0.0f, read);
    const decoding now = {1, n, d, steps, sharpness, keys, net->v, draws, interaction, bias, left, scores, slate};
    const float total = sum_of(d, net->v), top = largest(n * d, keys);
    for (int64_t step = 0, item = -1; step < steps; step++) {
        const int64_t before = (n + step) % 2, after = 1 - before;
        memset(gates, 0, 4 * d * sizeof(float));
        if (item < 0 || !all_at_once)
            add_row_product(f, 4 * d, item < 0 ? net->go : x + item * f, net->decoder.weight_input, gates);
        else
            memcpy(gates, read + item * 4 * d, 4 * d * sizeof(float));
        advance(&net->decoder, gates, h + before * d, c + before * d, h + after * d, c + after * d);
        memset(query, 0, d * sizeof(float));
        add_row_product(d, d, h + after * d, net->w_dec, query);
        for (int64_t u = 0; u < d; u++) query[u] = fast_exp(2.0f * limited(query[u], 40.0f));
        item = place_next(&now, 0, step, total, top, query);
        log_probabilities[step] = log_probability(n, left, scores + step * n, sharpness, item);
    }
    free(memory), free(left);
    return 0;
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

#define NEARLY_ONE (1.0f - 1e-6f) /* as in kernels.py */

static inline float apart(float click, float similar) {
    float both = click * similar;
    return 1.0f - (both < NEARLY_ONE ? both : NEARLY_ONE);
}

/* The clicks (lists, n) of a user who scans from the top: alone if no click above was similar, nearby if one was. far,
 * 1 at first, becomes the probability that none was. */
void cascade_forward(int64_t lists, int64_t n, const float *alone, const float *nearby, const float *similar, float *far,
                     float *clicks) {
#pragma omp parallel for if (lists * n * n > ENOUGH_WORK)
    for (int64_t b = 0; b < lists; b++) {
        float *restrict none = far + b * n;
        for (int64_t k = 0; k < n; k++) {
            const float *restrict like = similar + (b * n + k) * n;
            float click = nearby[b * n + k] + none[k] * (alone[b * n + k] - nearby[b * n + k]);
            clicks[b * n + k] = click;
#pragma omp simd
            for (int64_t i = k + 1; i < n; i++) none[i] *= apart(click, like[i]);
        }
    }
}

/* From the last item up, so that the gradient of every click below is whole when it is used. */
void cascade_backward(int64_t lists, int64_t n, const float *alone, const float *nearby, const float *similar,
                      const float *far, const float *clicks, float *dclicks, float *dsimilar) {
#pragma omp parallel for if (lists * n * n > ENOUGH_WORK)
    for (int64_t b = 0; b < lists; b++) {
        const float *restrict if_far = alone + b * n, *restrict if_near = nearby + b * n, *restrict none = far + b * n;
        float *restrict dclick = dclicks + b * n;
        for (int64_t k = n - 1; k >= 0; k--) {
            const float *restrict like = similar + (b * n + k) * n;
            float *restrict dlike = dsimilar + (b * n + k) * n;
            float click = clicks[b * n + k], total = 0.0f;
#pragma omp simd reduction(+ : total)
            for (int64_t i = k + 1; i < n; i++) {
                float dproduct = -dclick[i] * (if_far[i] - if_near[i]) * none[i] / apart(click, like[i]);
                dlike[i] = dproduct * click;
                total += dproduct * like[i];
            }
            dclick[k] += total;
        }
    }
}
