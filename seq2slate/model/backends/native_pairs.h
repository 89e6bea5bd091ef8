#pragma once
/* Pairs of the items of one list: where their distances lie between the quantiles of the list, and what a click on one does to
 * the other. The formulas are those of `model/interactions.py`. The pairs i < k of a list of n items are stored row by row,
 * n (n - 1) / 2 of them. */
#include "native.h"

#define LANES 16 /* pairs handled at once */
#define MOST_KNOTS LANES

#define BLOCK_SIDE 16 /* of the squares in which a matrix is transposed: every row of one is a line of the cache */

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float))));
typedef int32_t indices __attribute__((vector_size(LANES * sizeof(int32_t))));

enum { RAW, SCALED, ANGLE, DISTANCES };

/* The dense columns, the first ones of an item, and the quantiles of distances: `PairColumns` in Python. */
typedef struct {
    int64_t columns, knots, median;
    float largest_log, least_gap, least, shortest;
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

/* Where row i of the pairs of n items begins. */
static inline int64_t pair_row(int64_t n, int64_t i) { return i * (2 * n - i - 1) / 2; }

/* The length of a transposed column of n items, with room for LANES more: an odd number of lines of the cache, since columns at even
 * distances would drive each other out of it. */
static inline int64_t column_stride(int64_t n) { return (((n + LANES - 1) / LANES + 1) | 1) * LANES; }

static inline int64_t coordinate_memory(const pair_columns *by, int64_t n) { return (by->columns + 6) * column_stride(n); }

/* The first columns of x (n, width), transposed, with zeros behind each. */
static inline void transpose(int64_t n, int64_t columns, int64_t width, const float *restrict x, float *restrict out) {
    const int64_t stride = column_stride(n);
    for (int64_t block = 0; block < columns; block += BLOCK_SIDE)
        for (int64_t i = 0; i < n; i++)
            for (int64_t f = block; f < columns && f < block + BLOCK_SIDE; f++) out[f * stride + i] = x[i * width + f];
    for (int64_t f = 0; f < columns; f++) memset(out + f * stride + n, 0, (size_t)(stride - n) * sizeof(float));
}

/* The coordinates (DISTANCES, pairs of `room` items) of the pairs of n > 1 items x (n, width). memory has coordinate_memory
 * floats, pairs 2 pairs_of(n). Returns whether all distances were finite. */
int coordinates_of_list(const pair_columns *by, int64_t n, int64_t room, int64_t width, const float *x, float *memory,
                        float *pairs, float *coordinates);

/* The places (heads * head_width, column_stride(n)) of n items by the heads: centred, and in every head with a mean squared distance
 * of 1, from (n, heads * head_width). */
void place_heads(const pair_weights *weights, int64_t n, const float *unplaced, float *places);

/* The effects (room, room) of the pairs of n items, 0 for an item and itself, and crowding (column_stride(n)), by coordinates, if
 * any, and by the places of heads. */
void effects_of_list(const pair_weights *weights, int64_t n, int64_t room, const float *coordinates, const float *places,
                     float *effects, float *crowding);

/* Gradients list by list, 0 at first: `PairGradients` in Python. effects and crowding (lists, DISTANCES, knots), strengths
 * (lists, heads), constant (lists), places (lists, heads, n, head_width). */
typedef struct {
    float *effects, *crowding, *strengths, *constant, *places;
} pair_gradients;

/* What a placed item k adds to the score of i: strengths (n) times the effect, less the part `scanned` of that if it is negative and k
 * is above i in base order. effects and added (n, n) may be the same. */
static inline void add_when_placed(int64_t n, float scanned, const float *strengths, const float *effects, float *added) {
    for (int64_t k = 0; k < n; k++) {
        const float above = strengths[k], below = above - scanned * above;
        const float *effect = effects + k * n;
        float *row = added + k * n;
#pragma omp simd
        for (int64_t i = 0; i <= k; i++) row[i] = above * effect[i];
#pragma omp simd
        for (int64_t i = k + 1; i < n; i++) row[i] = (effect[i] < 0.0f ? below : above) * effect[i];
    }
}
