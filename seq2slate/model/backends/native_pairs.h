#pragma once
/* Pairs of the items of one list: where their distances lie between the quantiles of the list, and what a click on one does to
 * the other. The formulas are those of `model/interactions.py`. The pairs i > k of a list are stored row by row, n (n - 1) / 2 of them:
 * where a pair lies does not depend on n, and a longer array has padding at its end alone. */
#include "native.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LANES 16 /* pairs handled at once */
#define MOST_KNOTS LANES
#define MOST_WIDTH 16 /* of a head */
#define FIXED_POINT 11 /* binary places of a coordinate that is stored in 16 bits */

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float))));
typedef int32_t indices __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(sizeof(int32_t))));
typedef int16_t shorts __attribute__((vector_size(LANES * sizeof(int16_t)), aligned(sizeof(int16_t))));

enum { RAW, NORMALISED, ANGLE, DISTANCES };

/* The dense columns, the first ones of an item, and the quantiles of distances: `PairColumns` in Python. */
typedef struct {
    int64_t columns, knots, median;
    float largest_log, least_gap, least, shortest, least_spread;
    const float *levels, *spreads;
    const uint8_t *are_logarithms;
    const double *quantiles;
} pair_columns;

/* What pairs do: `PairWeights` in Python. effects and crowding (DISTANCES, knots). */
typedef struct {
    int64_t knots, heads, head_width;
    float sharpness, constant, least;
    const float *effects, *crowding, *strengths;
} pair_weights;

static inline int64_t pairs_of(int64_t n) { return n * (n - 1) / 2; }

/* Coordinates (DISTANCES, apart) of the pairs of one list: floats, or in fixed point; both are null if there are none. */
typedef struct {
    const float *floats;
    const int16_t *fixed;
    int64_t apart;
} pair_coordinates_of_list;

/* The length of a transposed column of n items, with room for LANES more: an odd number of lines of the cache, since columns at even
 * distances would drive each other out of it. */
static inline int64_t column_stride(int64_t n) { return (((n + LANES - 1) / LANES + 1) | 1) * LANES; }

static inline int64_t coordinate_memory(const pair_columns *by, int64_t n) { return (by->columns + 6) * column_stride(n); }

static inline lanes least_of(lanes a, lanes b) {
#ifdef __AVX512F__
    return (lanes)_mm512_min_ps((__m512)a, (__m512)b);
#else
    for (int l = 0; l < LANES; l++) a[l] = a[l] < b[l] ? a[l] : b[l];
    return a;
#endif
}

static inline lanes looked_up(lanes table, indices at) {
#ifdef __AVX512F__
    return (lanes)_mm512_permutexvar_ps((__m512i)at, (__m512)table);
#else
    lanes found;
    for (int l = 0; l < LANES; l++) found[l] = table[at[l]];
    return found;
#endif
}

/* The first `count` of some numbers, no more than LANES, and zeros behind them. */
static inline lanes load_lanes(const float *from, int64_t count) {
    if (count >= LANES) return *(const lanes *)from;
#ifdef __AVX512F__
    return (lanes)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#else
    lanes found = {0};
    memcpy(&found, from, (size_t)count * sizeof(float));
    return found;
#endif
}

/* Store the first `count` of them. */
static inline void store_lanes(float *to, lanes values, int64_t count) {
    if (count >= LANES) {
        *(lanes *)to = values;
        return;
    }
#ifdef __AVX512F__
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)values);
#else
    memcpy(to, &values, (size_t)count * sizeof(float));
#endif
}

/* Numbers of a, and behind these of b, at some places. */
static inline lanes chosen(lanes a, lanes b, indices at) {
#ifdef __AVX512F__
    return (lanes)_mm512_permutex2var_ps((__m512)a, (__m512i)at, (__m512)b);
#else
    lanes found;
    for (int l = 0; l < LANES; l++) found[l] = at[l] < LANES ? a[at[l]] : b[at[l] - LANES];
    return found;
#endif
}

/* Exchange what lies `step` apart, in rows and in columns. */
static inline __attribute__((always_inline)) void exchange(lanes *row, const int step) {
    indices left, right;
    for (int l = 0; l < LANES; l++) left[l] = l & step ? LANES + l - step : l, right[l] = l & step ? LANES + l : l + step;
    for (int r = 0; r < LANES; r++) {
        if (r & step) continue;
        const lanes first = chosen(row[r], row[r + step], left);
        row[r + step] = chosen(row[r], row[r + step], right), row[r] = first;
    }
}

/* A square of LANES rows, `width` and `stride` apart, transposed. */
static inline void transpose_square(int64_t width, const float *x, int64_t stride, float *out) {
    lanes row[LANES];
    for (int r = 0; r < LANES; r++) row[r] = *(const lanes *)(x + r * width);
    exchange(row, 8), exchange(row, 4), exchange(row, 2), exchange(row, 1);
    for (int r = 0; r < LANES; r++) *(lanes *)(out + r * stride) = row[r];
}

/* The first columns of x (n, width), transposed, with zeros behind each. */
static inline void transpose(int64_t n, int64_t columns, int64_t width, const float *restrict x, float *restrict out) {
    const int64_t stride = column_stride(n), rows = n / LANES * LANES, whole = columns / LANES * LANES;
    for (int64_t i = 0; i < rows; i += LANES)
        for (int64_t f = 0; f < whole; f += LANES) transpose_square(width, x + i * width + f, stride, out + f * stride + i);
    for (int64_t i = 0; i < n; i++)
        for (int64_t f = i < rows ? whole : 0; f < columns; f++) out[f * stride + i] = x[i * width + f];
    for (int64_t f = 0; f < columns; f++) memset(out + f * stride + n, 0, (size_t)(stride - n) * sizeof(float));
}

/* The next address at which a line of the cache begins, less than LANES floats on. */
static inline float *aligned(float *memory) { return (float *)(((uintptr_t)memory + 63) / 64 * 64); }

/* The coordinates (DISTANCES, apart) of the pairs of n > 1 items x (n, width). memory has coordinate_memory floats, pairs
 * 2 pairs_of(n) + 2 LANES. Returns whether all distances were finite. */
int coordinates_of_list(const pair_columns *by, int64_t n, int64_t apart, int64_t width, const float *x, float *memory,
                        float *pairs, float *coordinates);

/* The places (heads * head_width, column_stride(n)) of n items by the heads: centred, and in every head with a mean squared distance
 * of 1, from (n, heads * head_width). */
void place_heads(const pair_weights *weights, int64_t n, const float *unplaced, float *places);

/* The effects (pairs) of n items, and crowding (column_stride(n)), by coordinates, if any, and by the places of heads. */
void effects_of_list(const pair_weights *weights, int64_t n, const pair_coordinates_of_list *coordinates, const float *places,
                     float *effects, float *crowding);

/* Gradients list by list, 0 at first: `PairGradients` in Python. effects and crowding (lists, DISTANCES, knots), strengths
 * (lists, heads), constant (lists), places (lists, heads, n, head_width). */
typedef struct {
    float *effects, *crowding, *strengths, *constant, *places;
} pair_gradients;

static inline float sum_of_lanes(lanes x) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)x);
#else
    for (int step = LANES / 2; step; step /= 2)
        for (int l = 0; l < step; l++) x[l] += x[l + step];
    return x[0];
#endif
}

/* The sum of products of `count` numbers, without a loop for the last few. */
static inline float dot_of_lanes(int64_t count, const float *a, const float *b) {
    lanes sum = {0};
    for (int64_t k = 0; k < count; k += LANES) sum += load_lanes(a + k, count - k) * load_lanes(b + k, count - k);
    return sum_of_lanes(sum);
}

/* The log-odds of a click on each item of a list for a user who scans from the top: logits (n), without clicks above, grow by what the
 * items above each add in the mean, by their own log-odds and the effects of the pairs. ramps (n) are overwritten. */
static inline void expect_clicks(int64_t n, const float *effects, float *restrict logits, float *restrict ramps) {
    for (int64_t i = 0; i < n; i++) {
        const float *restrict effect = effects + pair_row(i);
        float added = 0.0f;
#pragma omp simd reduction(+ : added)
        for (int64_t k = 0; k < i; k++) added += mixed_effect(logits[k], effect[k], ramps[k]);
        logits[i] += added;
        ramps[i] = above_ramp(logits[i]);
    }
}
