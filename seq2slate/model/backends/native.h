#pragma once
/* What native.c, for batches, and native_list.c, for single lists, share. All arrays are float32 (indices int64, flags uint8)
 * and contiguous. The constants of the score come from Python, as arguments and in structs; what is defined here concerns
 * rounding and speed alone. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS_AT_ONCE 64 /* items whose numbers are gathered before they are scored */
#define ENOUGH_WORK 65536 /* elements below which a second thread costs more than it brings */
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

/* log(1 + y) for y >= 0: with 1 + y = m 2^e and m between sqrt(1/2) and sqrt(2), e log(2) + 2 artanh((m - 1) / (m + 1)), and
 * what the sum 1 + y has lost to rounding. Relative error 2.3e-7. */
static inline float log_of_one_plus(float y) {
    float_bits sum;
    sum.value = 1.0f + y;
    const float u = sum.value, lost = (y - (u - 1.0f)) / u;
    const int32_t exponent = (sum.bits - 0x3F3504F3) >> 23; /* 0x3F3504F3 are the bits of sqrt(1/2) */
    sum.bits -= (int32_t)((uint32_t)exponent << 23);
    const float s = (sum.value - 1.0f) / (sum.value + 1.0f), t = s * s;
    const float series = 1.0f + t * (1.0f / 3 + t * (1.0f / 5 + t * (1.0f / 7 + t * (1.0f / 9))));
    return (float)exponent * 0.693147181f + (2.0f * s * series + lost);
}

/* e^x - 1 for |x| <= 87, and what it is there beyond: as fast_exp, with 2^n (e^r - 1) + (2^n - 1), so that small values keep
 * their digits. Relative error 1.2e-7. */
static inline float exp_minus_one(float x) {
    const float shift = 12583039.0f;
    float_bits power;
    x = limited(x, 87.0f);
    power.value = x * 1.44269504088896341f + shift;
    const float n = power.value - shift, r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    const float high = 1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720 + r * (1.0f / 5040)));
    power.bits = (int32_t)((uint32_t)power.bits << 23);
    return power.value * (r + r * r * (1.0f / 2 + r * (1.0f / 6 + r * high))) + (power.value - 1.0f);
}

/* e^{2x} of an argument of the pointer, clamped to ±limit <= 43: a product of two is at worst infinite or 0, and both are
 * right. */
static inline float pointer_factor(float x, float limit) { return fast_exp(2.0f * limited(x, limit)); }

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

static inline float sum_of(int64_t d, const float *restrict v) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t u = 0; u < d; u++) sum += v[u];
    return sum;
}

static inline float dot(int64_t count, const float *restrict a, const float *restrict b) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < count; k++) sum += a[k] * b[k];
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

/* Where the pairs of item i with the items above it, k < i, begin among the pairs of a list. */
static inline int64_t pair_row(int64_t i) { return i * (i - 1) / 2; }

/* log(1 + e^-|x|), which is softplus(x) - max(x, 0). */
static inline float above_ramp(float x) { return log_of_one_plus(fast_exp(-(fabsf(x) < 87.0f ? fabsf(x) : 87.0f))); }

/* log(1 - p + p e^effect) for p = sigmoid(l), which is softplus(l + effect) - softplus(l): what an item does to the log-odds of another.
 * The difference of the maxima, max(l + effect, 0) - max(l, 0), keeps all the digits of the effect, however large l is. */
static inline float mixed_effect(float logit, float effect, float above_ramp_at_logit) {
    const float step = (effect > -logit ? effect : -logit) + (logit < 0.0f ? logit : 0.0f);
    return step + (above_ramp(logit + effect) - above_ramp_at_logit);
}

/* What placed items add to the scores of others: `PlacedPairs` in Python. logits (lists, n), effects (lists, pairs of n items). */
typedef struct {
    float weight;
    const float *logits, *effects;
} placed_pairs;

/* Add to row (n) what item k of a list, with logit l, adds to the scores of all others once it is placed: mixed effects times the
 * weight. */
static inline void add_when_placed(int64_t n, int64_t k, float logit, float weight, const float *effects, float *restrict row) {
    const float *restrict upwards = effects + pair_row(k), *effect = effects + pair_row(k + 1) + k, above = above_ramp(logit);
#pragma omp simd
    for (int64_t i = 0; i < k; i++) row[i] += weight * mixed_effect(logit, upwards[i], above);
    for (int64_t i = k + 1; i < n; effect += i++) row[i] += weight * mixed_effect(logit, *effect, above);
}

/* What decoding reads and writes: `Decoding` in Python. All but keys, v, left, scores and slates may be null. Placed items add
 * interaction (lists, n, n) to the bias of the others, or what `placed` says. */
typedef struct {
    int64_t lists, n, d, steps;
    float sharpness;
    const float *keys, *v, *draws, *interaction;
    placed_pairs placed;
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
    if (now->placed.effects)
        add_when_placed(n, choice, now->placed.logits[b * n + choice], now->placed.weight,
                        now->placed.effects + b * pair_row(n), now->bias + b * n);
    return choice;
}

/* BLAS's sgemm, which PyTorch and SciPy bring along. */
typedef void gemm_function(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                           const int *, const float *, const int *, const float *, float *, const int *);

/* out (rows, columns) = a (rows, inner) b (inner, columns) + keep * out. BLAS stores columns, so it is told the transposes. */
static inline void product(gemm_function *gemm, int64_t rows, int64_t columns, int64_t inner, const float *a, const float *b,
                           float keep, float *out) {
    const int m = (int)columns, n = (int)rows, k = (int)inner;
    const float one = 1.0f;
    gemm("N", "N", &m, &n, &k, &one, b, &m, a, &k, &keep, out, &m);
}

/* An LSTM layer: `LstmWeights` in Python. */
typedef struct {
    int64_t inputs, d;
    const float *weight_input, *weight_hidden, *bias;
} lstm;
