/* One list at a time, from raw columns to a slate, for a service that answers one request after another: here the overhead of
 * many small calls would take longer than the work. Products are of a single row with a matrix where they can be, and take as
 * long as reading the matrix does. */
#include "native_pairs.h"

#define REGISTER 16 /* floats handled at once where nothing is kept between them */
#define ROWS_AT_ONCE 8 /* of a matrix that meets a single row */

enum { PLACED, NO_MEMORY, NOT_FINITE };
const int no_memory = NO_MEMORY, not_finite = NOT_FINITE; /* what place_list returns if it fails, for Python to read */

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

/* The scale that was fitted to the columns, and what a missing value, NaN, becomes: `NumberColumns` in Python. The indicators are
 * of the columns `places`; with `imputes` 0 a missing value is refused. */
typedef struct {
    int64_t columns, indicators, scales, takes_logarithm, imputes;
    float clip;
    const float *mean, *inverse_std, *imputed;
    const int64_t *places;
} scaling;

/* `PairwiseInteraction` in Python; heads (inputs, heads * head_width). */
typedef struct {
    pair_columns columns;
    pair_weights weights;
    const float *relevance, *heads;
    float offset, scanned;
} pairwise;

/* A network with one LSTM layer as its encoder and one as its decoder. prior (positions) and pairwise may be null; arguments of
 * the pointer are clamped to ±limit. v has been multiplied by the strength. */
typedef struct {
    lstm encoder, decoder;
    const float *w_enc, *w_dec, *go, *v, *prior;
    int64_t positions;
    float limit, strength;
    const pairwise *pairwise;
    const scaling *scaling;
} list_network;

/* By its bits, since the compiler is told that there is no infinity and no NaN. */
static int is_finite(int64_t count, const float *x) {
    uint32_t failed = 0;
    for (int64_t k = 0; k < count; k++) {
        float_bits value;
        value.value = x[k];
        failed |= ((uint32_t)value.bits & 0x7F800000u) == 0x7F800000u;
    }
    return !failed;
}

/* By its bits, too. */
static inline int is_nan(float x) {
    float_bits value;
    value.value = x;
    return ((uint32_t)value.bits & 0x7FFFFFFFu) > 0x7F800000u;
}

static int has_infinity(int64_t count, const float *x) {
    for (int64_t k = 0; k < count; k++)
        if (!is_finite(1, x + k) && !is_nan(x[k])) return 1;
    return 0;
}

/* Put what `NumberColumns` makes of x (n, columns) into out (n, columns + indicators), which holds zeros. */
static void scale(const scaling *by, int64_t n, int has_missing, const float *restrict x, float *restrict out) {
    const int64_t f = by->columns, width = f + by->indicators;
    for (int64_t i = 0; i < n; i++) {
        const float *restrict row = x + i * f;
        float *restrict scaled = out + i * width;
        if (by->takes_logarithm)
            for (int64_t k = 0; k < f; k++) scaled[k] = copysignf(log_of_one_plus(fabsf(row[k])), row[k]);
        else
            memcpy(scaled, row, f * sizeof(float));
        for (int64_t k = 0; by->scales && k < f; k++)
            scaled[k] = limited((scaled[k] - by->mean[k]) * by->inverse_std[k], by->clip);
        if (!has_missing) continue;
        for (int64_t k = 0; k < f; k++)
            if (is_nan(row[k])) scaled[k] = by->imputed[k];
        for (int64_t k = 0; k < by->indicators; k++) scaled[f + k] = (float)is_nan(row[by->places[k]]);
    }
}

/* What the interaction gives to the scores of one list of n items: logits (n), of clicks on those placed, and the effects of pairs. */
typedef struct {
    float *memory, *logits, *effects;
} comparison;

/* The terms of the score that compare items x (n, f): bias (n), which holds the prior, and what placed items add. Returns PLACED,
 * NO_MEMORY, or NOT_FINITE if some distance is too large; in any case the memory is the caller's to free. */
static int compare_items(gemm_function *gemm, const pairwise *net, int64_t n, int64_t f, const float *x, float *bias,
                         comparison *out) {
    const int has_distances = net->columns.columns > 0 && n > 1;
    const int64_t stride = column_stride(n), places = net->weights.heads * net->weights.head_width, pairs = pairs_of(n);
    const int64_t scratch = has_distances ? coordinate_memory(&net->columns, n) : 0, apart = has_distances ? pairs : 0;
    out->memory = malloc((size_t)(LANES + 2 * places * stride + 3 * stride + 2 * pairs + 2 * LANES + DISTANCES * apart + scratch) *
                         sizeof(float));
    if (!out->memory) return NO_MEMORY;
    float *own = aligned(out->memory), *unplaced = own + places * stride, *crowding = unplaced + places * stride;
    float *logits = crowding + stride, *ramps = logits + stride, *effects = ramps + stride;
    float *coordinates = effects + 2 * pairs + 2 * LANES; /* the effects come last: distances are found in their place */
    if (has_distances &&
        !coordinates_of_list(&net->columns, n, apart, f, x, coordinates + DISTANCES * apart, effects, coordinates))
        return NOT_FINITE;
    const pair_coordinates_of_list found = {.floats = coordinates, .apart = apart};
    product(gemm, n, places, f, x, net->heads, 0.0f, unplaced);
    place_heads(&net->weights, n, unplaced, own);
    effects_of_list(&net->weights, n, has_distances ? &found : NULL, own, effects, crowding);
    for (int64_t i = 0; i < n; i++) bias[i] += net->offset + crowding[i] + dot(f, x + i * f, net->relevance), logits[i] = bias[i];
    expect_clicks(n, effects, logits, ramps);
    for (int64_t i = 0; i < n; i++) bias[i] += net->scanned * (logits[i] < bias[i] ? logits[i] - bias[i] : 0.0f);
    out->logits = logits, out->effects = effects;
    return PLACED;
}

/* Read x (n, inputs): outputs (n + 1, d) after a first row of zeros, c (2, d) with the last state in row n % 2, and the factors
 * of the keys (n, d). gates (n, 4d) are overwritten. */
static void encode_list(gemm_function *gemm, const list_network *net, int64_t n, const float *x, float *gates, float *outputs,
                        float *c, float *keys) {
    const int64_t d = net->encoder.d;
    product(gemm, n, 4 * d, net->encoder.inputs, x, net->encoder.weight_input, 0.0f, gates);
    for (int64_t t = 0; t < n; t++) {
        float *h = outputs + t * d;
        advance(&net->encoder, gates + t * 4 * d, h, c + t % 2 * d, h + d, c + (t + 1) % 2 * d);
    }
    product(gemm, n, d, d, outputs + d, net->w_enc, 0.0f, keys);
    for (int64_t k = 0; k < n * d; k++) keys[k] = pointer_factor(keys[k], net->limit);
}

/* Take the steps of one list: keys (n, d) and the last state, h and c (2, d) in row n % 2. memory has room for n * 4d + 5d
 * floats. Returns PLACED, or NOT_FINITE if some score is NaN or infinite. */
static int decode_list(gemm_function *gemm, const list_network *net, const decoding *now, const float *x,
                       float *memory, float *h, float *c, float *log_probabilities) {
    const int64_t n = now->n, d = now->d, f = net->decoder.inputs;
    float *read = memory, *query = read + n * 4 * d, *gates = query + d;
    const int all_at_once = 4 * now->steps > n; /* a row costs a quarter then, of what it costs alone */
    if (all_at_once) product(gemm, n, 4 * d, f, x, net->decoder.weight_input, 0.0f, read);
    const float total = sum_of(d, now->v), top = largest(n * d, now->keys);
    for (int64_t step = 0, item = -1; step < now->steps; step++) {
        const int64_t before = (n + step) % 2, after = 1 - before;
        memset(gates, 0, 4 * d * sizeof(float));
        if (step && all_at_once)
            memcpy(gates, read + item * 4 * d, 4 * d * sizeof(float));
        else
            add_row_product(f, 4 * d, step ? x + item * f : net->go, net->decoder.weight_input, gates);
        advance(&net->decoder, gates, h + before * d, c + before * d, h + after * d, c + after * d);
        memset(query, 0, d * sizeof(float));
        add_row_product(d, d, h + after * d, net->w_dec, query);
        for (int64_t u = 0; u < d; u++) query[u] = pointer_factor(query[u], net->limit);
        item = place_next(now, 0, step, total, top, query);
        if (item < 0) return NOT_FINITE;
        log_probabilities[step] = log_probability(n, now->left, now->scores + step * n, now->sharpness, item);
    }
    return is_finite(now->steps, log_probabilities) ? PLACED : NOT_FINITE;
}

/* Place the first items of one list of n > 0 items, and say with what log-probability each was placed. features are raw,
 * (n, columns), if `is_raw`, or else (n, inputs); draws (steps) may be null. Returns PLACED, NO_MEMORY, or NOT_FINITE if a number is
 * infinite, or NaN where it does not stand for a missing value. */
int place_list(gemm_function *gemm, const list_network *net, int64_t n, int64_t steps, int is_raw, float sharpness,
               const float *features, const float *draws, int64_t *slate, float *log_probabilities) {
    const int64_t d = net->encoder.d, f = net->encoder.inputs;
    const int64_t given = n * (is_raw ? net->scaling->columns : f);
    const int has_missing = !is_finite(given, features);
    if (has_missing && !(is_raw && net->scaling->imputes && !has_infinity(given, features))) return NOT_FINITE;
    float *memory = calloc((size_t)(n * f + n + (2 * n + 1) * d + 4 * d + steps * n + n * 4 * d + 5 * d), sizeof(float));
    uint8_t *left = malloc((size_t)n);
    if (!memory || !left) {
        free(memory), free(left);
        return NO_MEMORY;
    }
    comparison compared = {0};
    float *scaled = memory, *bias = scaled + n * f, *outputs = bias + n, *keys = outputs + (n + 1) * d, *c = keys + n * d;
    float *h = c + 2 * d, *scores = h + 2 * d, *rest = scores + steps * n;
    const float *x = features;
    int outcome = PLACED;
    if (is_raw) scale(net->scaling, n, has_missing, features, scaled), x = scaled;
    for (int64_t i = 0; net->prior && i < n; i++) bias[i] = net->prior[i < net->positions ? i : net->positions - 1];
    if (net->pairwise) outcome = compare_items(gemm, net->pairwise, n, f, x, bias, &compared);
    for (int64_t i = 0; net->strength != 1.0f && i < n; i++)
        bias[i] = net->strength * bias[i] - (1.0f - net->strength) * log1pf((float)i);
    if (outcome == PLACED) {
        encode_list(gemm, net, n, x, rest, outputs, c, keys);
        memcpy(h + n % 2 * d, outputs + n * d, d * sizeof(float));
        memset(left, 1, (size_t)n);
        const placed_pairs placed = {net->strength, compared.logits, compared.effects};
        const decoding now = {.lists = 1, .n = n, .d = d, .steps = steps, .sharpness = sharpness, .keys = keys, .v = net->v,
                              .draws = draws, .placed = placed, .bias = bias, .left = left, .scores = scores, .slates = slate};
        outcome = decode_list(gemm, net, &now, x, rest, h, c, log_probabilities);
    }
    free(memory), free(compared.memory), free(left);
    return outcome;
}
