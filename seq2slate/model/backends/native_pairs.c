/* What a click on one item of a list does to the others, by their coordinates and by learned heads, and the gradients of that. */
#include "native_pairs.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

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

/* As fast_exp. */
static inline lanes exp_of_lanes(lanes x) {
    const float shift = 12583039.0f;
    const lanes rounded = x * 1.44269504088896341f + shift, n = rounded - shift;
    const lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    lanes p = 8.2975834687e-3f * r + 4.1915877655e-2f;
    p = p * r + 1.6667578369e-1f;
    p = p * r + 4.9998890459e-1f;
    p = p * r + 9.9999969014e-1f;
    p = p * r + 1.0000000721e+0f;
    return p * (lanes)((indices)rounded << 23);
}

static inline float squares_of(int64_t count, const float *restrict x) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < count; k++) sum += x[k] * x[k];
    return sum;
}

/* A piecewise linear function: its values at the knots, and what it grows by from each to the next. */
typedef struct {
    lanes values, steps;
} polyline;

static polyline new_polyline(int64_t knots, const float *weights) {
    polyline line = {{0}, {0}};
    for (int64_t j = 0; j < knots; j++) line.values[j] = weights[j];
    for (int64_t j = 0; j + 1 < knots; j++) line.steps[j] = weights[j + 1] - weights[j];
    return line;
}

/* The values of a polyline at whole + part. */
static inline lanes on_polyline(const polyline *line, indices whole, lanes part) {
    return looked_up(line->values, whole) + looked_up(line->steps, whole) * part;
}

/* What the heads do to the pairs of an item with LANES others. */
static inline lanes head_effects(const pair_weights *weights, int64_t stride, const float *own, const float *others) {
    lanes effect = {0};
    for (int64_t h = 0; h < weights->heads; h++) {
        lanes distance = {0};
        for (int64_t w = 0; w < weights->head_width; w++, own += stride, others += stride) {
            const lanes gap = *(const lanes *)others - own[0];
            distance += gap * gap;
        }
        effect += weights->strengths[h] * exp_of_lanes(-least_of(weights->sharpness * distance, 87.0f - (lanes){0}));
    }
    return effect;
}

static inline lanes load_lanes(const float *from, int64_t count) {
    lanes found = {0};
    if (count >= LANES) return *(const lanes *)from;
    memcpy(&found, from, (size_t)count * sizeof(float));
    return found;
}

/* Copy the upper half of (n, n) to the lower, block by block, since every row of a block is a line of the cache. */
static void mirror(int64_t n, int64_t room, float *effects) {
    for (int64_t first = 0; first < n; first += BLOCK_SIDE)
        for (int64_t block = first; block < n; block += BLOCK_SIDE)
            for (int64_t k = block; k < n && k < block + BLOCK_SIDE; k++)
                for (int64_t i = first; i < k && i < first + BLOCK_SIDE; i++) effects[k * room + i] = effects[i * room + k];
}

void effects_of_list(const pair_weights *weights, int64_t n, int64_t room, const float *coordinates, const float *places,
                     float *effects, float *crowding) {
    const int64_t stride = column_stride(n), knots = weights->knots;
    polyline effect_lines[DISTANCES], crowd_lines[DISTANCES];
    for (int64_t d = 0; d < DISTANCES; d++) {
        effect_lines[d] = new_polyline(knots, weights->effects + d * knots);
        crowd_lines[d] = new_polyline(knots, weights->crowding + d * knots);
    }
    memset(crowding, 0, (size_t)stride * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        lanes own = {0};
        effects[i * room + i] = 0.0f;
        for (int64_t k = i + 1; k < n; k += LANES) {
            const int64_t count = n - k < LANES ? n - k : LANES;
            lanes effect = weights->constant + head_effects(weights, stride, places + i, places + k), crowd = {0};
            for (int64_t d = 0; coordinates && d < DISTANCES; d++) {
                const lanes place = load_lanes(coordinates + d * pairs_of(room) + pair_row(room, i) + k - i - 1, count);
                const indices whole = __builtin_convertvector(place, indices);
                const lanes part = place - __builtin_convertvector(whole, lanes);
                effect += on_polyline(effect_lines + d, whole, part);
                crowd += on_polyline(crowd_lines + d, whole, part);
            }
            memcpy(effects + i * room + k, &effect, (size_t)count * sizeof(float));
            for (int64_t l = count; l < LANES; l++) crowd[l] = 0.0f;
            *(lanes *)(crowding + k) += crowd;
            own += crowd;
        }
        for (int64_t l = 0; l < LANES; l++) crowding[i] += own[l];
    }
    for (int64_t i = 0; i < n; i++) crowding[i] /= (float)(n > 1 ? n - 1 : 1);
    mirror(n, room, effects);
}

void place_heads(const pair_weights *weights, int64_t n, const float *unplaced, float *places) {
    const int64_t stride = column_stride(n), width = weights->head_width, all = weights->heads * width;
    transpose(n, all, all, unplaced, places);
    for (int64_t h = 0; h < weights->heads; h++) {
        float *own = places + h * width * stride, variance = 0.0f;
        for (int64_t w = 0; w < width; w++) {
            float *restrict row = own + w * stride;
            const float mean = sum_of(n, row) / (float)n;
            for (int64_t i = 0; i < n; i++) row[i] -= mean;
            variance += squares_of(n, row) / (float)n;
        }
        const float scale = 1.0f / sqrtf(2.0f * variance < weights->least ? weights->least : 2.0f * variance);
        for (int64_t w = 0; w < width; w++)
            for (int64_t i = 0; i < n; i++) own[w * stride + i] *= scale;
    }
}

/* Gradients */

/* The gradients of one list while it is read; the sums are over LANES pairs apart. */
typedef struct {
    lanes effects[DISTANCES][MOST_KNOTS], crowding[DISTANCES][MOST_KNOTS], constant;
    lanes *strengths, *own; /* (heads), and (heads * head_width) of the item at hand */
    float *places; /* (heads * head_width, column_stride(n)) */
} sums;

static inline float sum_of_lanes(lanes x) {
    float sum = 0.0f;
    for (int l = 0; l < LANES; l++) sum += x[l];
    return sum;
}

/* Add the gradients of the weights at the knots: each has the share 1 - |place - knot| of a place next to it. */
static inline void distance_gradient(int64_t knots, lanes place, lanes deffect, lanes dcrowd, lanes *effects, lanes *crowding) {
    const lanes one = 1.0f - (lanes){0};
    for (int64_t j = 0; j < knots; j++) {
        const lanes away = place - (float)j;
        const lanes share = one - least_of((lanes)((indices)away & INT32_MAX), one);
        effects[j] += deffect * share;
        crowding[j] += dcrowd * share;
    }
}

static inline void head_gradient(const pair_weights *weights, int64_t stride, const float *own, const float *others, float *dothers,
                                 lanes deffect, sums *into) {
    const int64_t width = weights->head_width;
    lanes *down = into->own;
    for (int64_t h = 0; h < weights->heads; h++) {
        lanes distance = {0};
        for (int64_t w = 0; w < width; w++) {
            const lanes gap = *(const lanes *)(others + w * stride) - own[w * stride];
            distance += gap * gap;
        }
        const lanes value = deffect * exp_of_lanes(-least_of(weights->sharpness * distance, 87.0f - (lanes){0}));
        const lanes slope = -2.0f * weights->sharpness * weights->strengths[h] * value;
        into->strengths[h] += value;
        for (int64_t w = 0; w < width; w++, own += stride, others += stride, dothers += stride, down++) {
            const lanes pull = slope * (*(const lanes *)others - own[0]);
            *(lanes *)dothers += pull;
            *down -= pull;
        }
    }
}

/* Put deffects (n of `room`, twice) of both directions of a pair into the upper half of out (n, n). */
static void both_directions(int64_t n, int64_t room, const float *restrict deffects, float *restrict out) {
    for (int64_t first = 0; first < n; first += BLOCK_SIDE)
        for (int64_t block = first; block < n; block += BLOCK_SIDE)
            for (int64_t i = first; i < n && i < first + BLOCK_SIDE; i++)
                for (int64_t k = block; k < n && k < block + BLOCK_SIDE; k++)
                    out[i * n + k] = deffects[i * room + k] + deffects[k * room + i];
}

/* Add the gradients of the pairs of item i. */
static void gradient_of_row(const pair_weights *weights, int64_t n, int64_t room, int64_t i, const float *coordinates,
                            const float *places, const float *deffects, const float *dcrowding, sums *into) {
    const int64_t stride = column_stride(n), all = weights->heads * weights->head_width;
    memset(into->own, 0, (size_t)all * sizeof(lanes));
    for (int64_t k = i + 1; k < n; k += LANES) {
        const int64_t count = n - k < LANES ? n - k : LANES;
        const lanes deffect = load_lanes(deffects + i * n + k, count);
        lanes dcrowd = load_lanes(dcrowding + k, count) + dcrowding[i];
        for (int64_t l = count; l < LANES; l++) dcrowd[l] = 0.0f;
        into->constant += deffect;
        head_gradient(weights, stride, places + i, places + k, into->places + k, deffect, into);
        for (int64_t d = 0; coordinates && d < DISTANCES; d++) {
            const float *row = coordinates + d * pairs_of(room) + pair_row(room, i) + k - i - 1;
            distance_gradient(weights->knots, load_lanes(row, count), deffect, dcrowd, into->effects[d], into->crowding[d]);
        }
    }
    for (int64_t w = 0; w < all; w++) into->places[w * stride + i] += sum_of_lanes(into->own[w]);
}

/* The places (heads, room, head_width) of one list, transposed. */
static void transpose_places(const pair_weights *weights, int64_t n, int64_t room, const float *given, float *places) {
    const int64_t stride = column_stride(n), width = weights->head_width;
    for (int64_t h = 0; h < weights->heads; h++) transpose(n, width, width, given + h * room * width, places + h * width * stride);
}

static void write_gradients(const pair_weights *weights, int64_t n, int64_t room, const sums *from, const pair_gradients *out,
                            int64_t b) {
    const int64_t stride = column_stride(n), knots = weights->knots, heads = weights->heads, width = weights->head_width;
    for (int64_t d = 0; d < DISTANCES; d++)
        for (int64_t j = 0; j < knots; j++) {
            out->effects[(b * DISTANCES + d) * knots + j] = sum_of_lanes(from->effects[d][j]);
            out->crowding[(b * DISTANCES + d) * knots + j] = sum_of_lanes(from->crowding[d][j]);
        }
    out->constant[b] = sum_of_lanes(from->constant);
    for (int64_t h = 0; h < heads; h++) {
        out->strengths[b * heads + h] = sum_of_lanes(from->strengths[h]);
        for (int64_t i = 0; i < n; i++)
            for (int64_t w = 0; w < width; w++)
                out->places[((b * heads + h) * room + i) * width + w] = from->places[(h * width + w) * stride + i];
    }
}

static int gradients_of_list(const pair_weights *weights, int64_t n, int64_t room, const float *coordinates, const float *given,
                             const float *deffects, const float *dcrowding, const pair_gradients *out, int64_t b) {
    const int64_t stride = column_stride(n), heads = weights->heads, all = heads * weights->head_width;
    float *memory = calloc((size_t)(2 * all * stride + n * n + stride + (heads + all) * LANES), sizeof(float));
    if (!memory) return 1;
    float *places = memory, *both = places + 2 * all * stride, *dcrowd = both + n * n, *rest = dcrowd + stride;
    sums into = {.strengths = (lanes *)rest, .own = (lanes *)rest + heads, .places = places + all * stride};
    transpose_places(weights, n, room, given, places);
    both_directions(n, room, deffects, both);
    for (int64_t i = 0; i < n; i++) dcrowd[i] = dcrowding[i] / (float)(n > 1 ? n - 1 : 1);
    for (int64_t i = 0; i < n; i++) gradient_of_row(weights, n, room, i, coordinates, places, both, dcrowd, &into);
    write_gradients(weights, n, room, &into, out, b);
    free(memory);
    return 0;
}

/* Batches */

int pair_effects_forward(const pair_weights *weights, int64_t lists, int64_t n, const int64_t *lengths, const float *coordinates,
                         const float *places, float *effects, float *crowding) {
    const int64_t all = weights->heads * weights->head_width, pairs = DISTANCES * pairs_of(n);
    int failed = 0;
#pragma omp parallel for schedule(dynamic) reduction(| : failed)
    for (int64_t b = 0; b < lists; b++) {
        const int64_t own = lengths[b], stride = column_stride(own);
        float *memory = malloc((size_t)((all + 1) * stride) * sizeof(float));
        failed |= !memory;
        if (!memory) continue;
        transpose_places(weights, own, n, places + b * all * n, memory);
        effects_of_list(weights, own, n, coordinates ? coordinates + b * pairs : NULL, memory, effects + b * n * n,
                        memory + all * stride);
        memcpy(crowding + b * n, memory + all * stride, (size_t)own * sizeof(float));
        free(memory);
    }
    return failed;
}

int pair_effects_backward(const pair_weights *weights, int64_t lists, int64_t n, const int64_t *lengths, const float *coordinates,
                          const float *places, const float *deffects, const float *dcrowding, const pair_gradients *gradients) {
    const int64_t all = weights->heads * weights->head_width, pairs = DISTANCES * pairs_of(n);
    int failed = 0;
#pragma omp parallel for schedule(dynamic) reduction(| : failed)
    for (int64_t b = 0; b < lists; b++)
        failed |= gradients_of_list(weights, lengths[b], n, coordinates ? coordinates + b * pairs : NULL, places + b * all * n,
                                    deffects + b * n * n, dcrowding + b * n, gradients, b);
    return failed;
}

void placed_forward(int64_t lists, int64_t n, float scanned, const float *strengths, const float *effects, float *added) {
#pragma omp parallel for
    for (int64_t b = 0; b < lists; b++)
        add_when_placed(n, scanned, strengths + b * n, effects + b * n * n, added + b * n * n);
}

void placed_backward(int64_t lists, int64_t n, float scanned, const float *strengths, const float *effects, const float *dadded,
                     float *dstrengths, float *deffects) {
#pragma omp parallel for
    for (int64_t b = 0; b < lists; b++)
        for (int64_t k = 0; k < n; k++) {
            const int64_t start = (b * n + k) * n;
            const float *restrict effect = effects + start, *restrict given = dadded + start, strength = strengths[b * n + k];
            float *restrict deffect = deffects + start;
            float total = dot(k + 1, given, effect);
            for (int64_t i = 0; i <= k; i++) deffect[i] = strength * given[i];
#pragma omp simd reduction(+ : total)
            for (int64_t i = k + 1; i < n; i++) {
                const float counted = effect[i] < 0.0f ? given[i] - scanned * given[i] : given[i];
                total += counted * effect[i];
                deffect[i] = strength * counted;
            }
            dstrengths[b * n + k] = total;
        }
}
