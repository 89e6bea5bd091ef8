#pragma once
/* Pairs of the items of one list: where their distances lie between the quantiles of the list, and what a click on one does to
 * the other. The formulas are those of `model/interactions.py`. The pairs i > k of a list are stored row by row, n (n - 1) / 2 of them:
 * where a pair lies does not depend on n, and a longer array has padding at its end alone. */
#include "native.h"

#define LANES 16 /* pairs handled at once */
#define MOST_KNOTS LANES
#define MOST_WIDTH 16 /* of a head */
#define FIXED_POINT 11 /* binary places of a coordinate that is stored in 16 bits */

#define BLOCK_SIDE 16 /* of the squares in which a matrix is transposed: every row of one is a line of the cache */

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float))));
typedef int32_t indices __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(sizeof(int32_t))));
typedef int16_t shorts __attribute__((vector_size(LANES * sizeof(int16_t)), aligned(sizeof(int16_t))));

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

/* The first columns of x (n, width), transposed, with zeros behind each. */
static inline void transpose(int64_t n, int64_t columns, int64_t width, const float *restrict x, float *restrict out) {
    const int64_t stride = column_stride(n);
    for (int64_t block = 0; block < columns; block += BLOCK_SIDE)
        for (int64_t i = 0; i < n; i++)
            for (int64_t f = block; f < columns && f < block + BLOCK_SIDE; f++) out[f * stride + i] = x[i * width + f];
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
