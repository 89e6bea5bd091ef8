/* The inner loops of the network, for the CPU. native.py compiles this file once with the machine's own C compiler;
 * kernels.py holds the same functions in PyTorch, which run where there is no compiler and check these in the tests.
 * All arrays are float32 (indices int64, flags uint8) and contiguous. */
#include <float.h>
#include <stdint.h>

#define BLOCK 64 /* units handled at once: few enough that the sums over items stay in registers */
#define ENOUGH_WORK 65536 /* elements below which a second thread costs more than it brings */

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

/* 1 + e^{2a} e^{2b}, so that tanh(a + b) = 1 - 2 / that; limited so that a product of two of them is finite. */
static inline float one_plus(float key, float query) {
    float product = key * query;
    return 1.0f + (product < 1e15f ? product : 1e15f);
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

/* v^T tanh(a + b) = total - 2 sum(v / (1 + e^{2a} e^{2b})), total = sum(v). Units go in pairs: p/x + q/y = (py + qx) / xy. */
static inline float score_of(int64_t d, float total, const float *restrict key, const float *restrict query,
                             const float *restrict v) {
    const int64_t half = d / 2;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t u = 0; u < half; u++) {
        float x = one_plus(key[u], query[u]), y = one_plus(key[half + u], query[half + u]);
        sum += (v[u] * y + v[half + u] * x) * reciprocal(x * y);
    }
    if (d % 2) sum += v[d - 1] * reciprocal(one_plus(key[d - 1], query[d - 1]));
    return total - 2.0f * sum;
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

/* One step of decoding, for rows of which row r is list lists[r]: the scores of the items left go to scores[list, step, :],
 * which come in as -inf, and the best of them, or with draws (lists, steps) a sample, to slates[list, step]. `bias` (lists, n)
 * is added to the scores and grows by interaction[list, choice, :] after a choice; draws, interaction, bias may be null. */
void pointer_step(int64_t rows, int64_t n, int64_t d, int64_t steps, int64_t step, float sharpness, const int64_t *lists,
                  const float *keys, const float *queries, const float *v, const float *draws, const float *interaction,
                  float *bias, uint8_t *left, float *scores, int64_t *slates) {
    const float total = sum_of(d, v);
#pragma omp parallel for if (rows * n * d > ENOUGH_WORK)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t b = lists[row];
        float *score = scores + (b * steps + step) * n, best = -FLT_MAX;
        int64_t choice = -1;
        for (int64_t i = 0; i < n; i++) {
            if (!left[b * n + i]) continue;
            score[i] = score_of(d, total, keys + (b * n + i) * d, queries + row * d, v) + (bias ? bias[b * n + i] : 0.0f);
            if (choice < 0 || score[i] > best) best = score[i], choice = i;
        }
        if (draws && choice >= 0) choice = sampled(n, left + b * n, score, sharpness, best, draws[b * steps + step]);
        slates[b * steps + step] = choice;
        if (choice < 0) continue;
        left[b * n + choice] = 0;
        if (interaction)
            for (int64_t i = 0; i < n; i++) bias[b * n + i] += interaction[(b * n + choice) * n + i];
    }
}

/* The scores of all steps of given slates: queries (steps, rows, d), of which list lists[r] has the first stops[r] steps;
 * slots (lists, n) says where an item was placed, and an item is scored up to and including that step. */
void pointer_forward(int64_t rows, int64_t n, int64_t d, int64_t steps, const int64_t *lists, const int64_t *stops,
                     const int64_t *slots, const float *keys, const float *queries, const float *v, float *scores) {
    const float total = sum_of(d, v);
#pragma omp parallel for schedule(dynamic)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t b = lists[row];
        for (int64_t j = 0; j < stops[row]; j++)
            for (int64_t i = 0; i < n; i++)
                if (slots[b * n + i] >= j)
                    scores[(b * steps + j) * n + i] =
                        score_of(d, total, keys + (b * n + i) * d, queries + (j * rows + row) * d, v);
    }
}

static inline void pointer_gradient(int64_t width, float dscore, const float *restrict key, const float *restrict query,
                                    float *restrict dkey, float *restrict dquery, float *restrict dv) {
#pragma omp simd
    for (int64_t u = 0; u < width; u++) {
        float r = reciprocal(one_plus(key[u], query[u])), slope = dscore * r * (1.0f - r);
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
