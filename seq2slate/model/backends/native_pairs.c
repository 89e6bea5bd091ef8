/* What a click on one item of a list does to the others, by their coordinates and by learned heads, and the gradients of that. */
#include "native_pairs.h"

/* 2^x for x <= 0: as fast_exp, with a whole number of halvings. */
static inline lanes power_of_two(lanes x) {
#ifdef __AVX512F__
    const lanes n = (lanes)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = x - n;
#else
    const float shift = 12583039.0f;
    for (int l = 0; l < LANES; l++) x[l] = x[l] < -126.0f ? -126.0f : x[l];
    const lanes rounded = x + shift, r = x - (rounded - shift);
#endif
    lanes p = 1.3276357399e-3f * r + 9.6756557507e-3f;
    p = p * r + 5.5507144858e-2f;
    p = p * r + 2.4022117614e-1f;
    p = p * r + 6.9314696578e-1f;
    p = p * r + 1.0000000721f;
#ifdef __AVX512F__
    return (lanes)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    return p * (lanes)((indices)rounded << 23);
#endif
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

static inline indices load_shorts(const int16_t *from, int64_t count) {
    shorts found = {0};
    if (count >= LANES)
        found = *(const shorts *)from;
    else
#if defined(__AVX512BW__) && defined(__AVX512VL__)
        found = (shorts)_mm256_maskz_loadu_epi16((__mmask16)((1u << count) - 1), from);
#else
        memcpy(&found, from, (size_t)count * sizeof(int16_t));
#endif
    return __builtin_convertvector(found, indices);
}

static inline lanes first_lanes(lanes values, int64_t count) {
    if (count >= LANES) return values;
#ifdef __AVX512F__
    return (lanes)_mm512_maskz_mov_ps((__mmask16)((1u << count) - 1), (__m512)values);
#else
    for (int64_t l = count; l < LANES; l++) values[l] = 0.0f;
    return values;
#endif
}

/* Coordinates from pair `at` on, `count` of them: their whole parts, and the rest. */
static inline void coordinate_parts(const pair_coordinates_of_list *from, int64_t distance, int64_t at, int64_t count,
                                    indices *whole, lanes *part) {
    if (from->fixed) {
        const indices found = load_shorts(from->fixed + distance * from->apart + at, count);
        *whole = found >> FIXED_POINT;
        *part = __builtin_convertvector(found & ((1 << FIXED_POINT) - 1), lanes) * (1.0f / (1 << FIXED_POINT));
    } else {
        const lanes place = load_lanes(from->floats + distance * from->apart + at, count);
        *whole = __builtin_convertvector(place, indices);
        *part = place - __builtin_convertvector(*whole, lanes);
    }
}

/* What the heads do to the pairs of an item with LANES others; `rate` is that of the exponential, by powers of two. */
static inline __attribute__((always_inline)) lanes head_effects(const pair_weights *weights, int64_t stride, float rate,
                                                                const float *own, const float *others, const int64_t heads,
                                                                const int64_t width) {
    lanes effect = {0};
    for (int64_t h = 0; h < heads; h++) {
        lanes distance = {0};
        for (int64_t w = 0; w < width; w++, own += stride, others += stride) {
            const lanes gap = *(const lanes *)others - own[0];
            distance += gap * gap;
        }
        effect += weights->strengths[h] * power_of_two(rate * distance);
    }
    return effect;
}

static inline float halvings(const pair_weights *weights) { return -1.44269504088896341f * weights->sharpness; }

static inline __attribute__((always_inline)) void effects_by_row(const pair_weights *weights, int64_t n,
                                                                 const pair_coordinates_of_list *coordinates, const float *places,
                                                                 float *effects, float *crowding, const int64_t heads,
                                                                 const int64_t width) {
    const int64_t stride = column_stride(n), knots = weights->knots, distances = coordinates ? DISTANCES : 0;
    const float rate = halvings(weights);
    polyline effect_lines[DISTANCES], crowd_lines[DISTANCES];
    for (int64_t d = 0; d < DISTANCES; d++) {
        effect_lines[d] = new_polyline(knots, weights->effects + d * knots);
        crowd_lines[d] = new_polyline(knots, weights->crowding + d * knots);
    }
    memset(crowding, 0, (size_t)stride * sizeof(float));
    for (int64_t i = 1; i < n; i++) {
        lanes own = {0};
        for (int64_t k = 0; k < i; k += LANES) {
            const int64_t count = i - k, at = pair_row(i) + k;
            lanes effect = weights->constant + head_effects(weights, stride, rate, places + i, places + k, heads, width);
            lanes crowd = {0}, part;
            indices whole;
            for (int64_t d = 0; d < distances; d++) {
                coordinate_parts(coordinates, d, at, count, &whole, &part);
                effect += on_polyline(effect_lines + d, whole, part);
                crowd += on_polyline(crowd_lines + d, whole, part);
            }
            store_lanes(effects + at, effect, count);
            crowd = first_lanes(crowd, count);
            *(lanes *)(crowding + k) += crowd;
            own += crowd;
        }
        crowding[i] += sum_of_lanes(own);
    }
    for (int64_t i = 0; i < n; i++) crowding[i] /= (float)(n > 1 ? n - 1 : 1);
}

void effects_of_list(const pair_weights *weights, int64_t n, const pair_coordinates_of_list *coordinates, const float *places,
                     float *effects, float *crowding) {
    if (weights->heads == 6 && weights->head_width == 4) /* constants let the compiler keep all in registers */
        effects_by_row(weights, n, coordinates, places, effects, crowding, 6, 4);
    else
        effects_by_row(weights, n, coordinates, places, effects, crowding, weights->heads, weights->head_width);
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

/* Add the gradients of the weights at the knots, from those of the pairs: each has the share 1 - |place - knot| of a place next to
 * it. The sums over LANES pairs apart stay in registers if `knots` is a constant. */
static inline __attribute__((always_inline)) void knot_gradients(const pair_coordinates_of_list *coordinates, int64_t distance,
                                                                 int64_t pairs, const float *deffects, const float *dcrowds,
                                                                 float *effects, float *crowding, const int64_t knots) {
    const lanes one = 1.0f - (lanes){0};
    lanes by_effect[MOST_KNOTS] = {{0}}, by_crowd[MOST_KNOTS] = {{0}}, part;
    indices whole;
    for (int64_t at = 0; at < pairs; at += LANES) {
        const lanes deffect = load_lanes(deffects + at, pairs - at), dcrowd = load_lanes(dcrowds + at, pairs - at);
        coordinate_parts(coordinates, distance, at, pairs - at, &whole, &part);
        const lanes place = part + __builtin_convertvector(whole, lanes);
        for (int64_t j = 0; j < knots; j++) {
            const lanes share = one - least_of((lanes)((indices)(place - (float)j) & INT32_MAX), one);
            by_effect[j] += deffect * share;
            by_crowd[j] += dcrowd * share;
        }
    }
    for (int64_t j = 0; j < knots; j++) effects[j] = sum_of_lanes(by_effect[j]), crowding[j] = sum_of_lanes(by_crowd[j]);
}

/* Add the gradients of head h, whose places (width, column_stride(n)) these are, and return that of its strength. */
static inline __attribute__((always_inline)) float head_gradient(int64_t n, float strength, float rate, float sharpness,
                                                                 const float *places, const float *deffects, float *dplaces,
                                                                 const int64_t width) {
    const int64_t stride = column_stride(n);
    lanes total = {0};
    for (int64_t i = 1; i < n; i++) {
        lanes own[MOST_WIDTH] = {{0}};
        for (int64_t k = 0; k < i; k += LANES) {
            const lanes deffect = load_lanes(deffects + pair_row(i) + k, i - k);
            lanes gap[MOST_WIDTH], distance = {0};
            for (int64_t w = 0; w < width; w++) {
                gap[w] = *(const lanes *)(places + w * stride + k) - places[w * stride + i];
                distance += gap[w] * gap[w];
            }
            const lanes value = deffect * power_of_two(rate * distance), slope = -2.0f * sharpness * strength * value;
            total += value;
            for (int64_t w = 0; w < width; w++) {
                const lanes pull = slope * gap[w];
                *(lanes *)(dplaces + w * stride + k) += pull;
                own[w] -= pull;
            }
        }
        for (int64_t w = 0; w < width; w++) dplaces[w * stride + i] += sum_of_lanes(own[w]);
    }
    return sum_of_lanes(total);
}

/* The places (heads, room, head_width) of one list, transposed. */
static void transpose_places(const pair_weights *weights, int64_t n, int64_t room, const float *given, float *places) {
    const int64_t stride = column_stride(n), width = weights->head_width;
    for (int64_t h = 0; h < weights->heads; h++) transpose(n, width, width, given + h * room * width, places + h * width * stride);
}

/* The gradients of list b, from those of its effects (pairs) and of its crowding (n). */
static int gradients_of_list(const pair_weights *weights, int64_t n, int64_t room, const pair_coordinates_of_list *coordinates,
                             const float *given, const float *deffects, const float *dcrowding, const pair_gradients *out,
                             int64_t b) {
    const int64_t stride = column_stride(n), heads = weights->heads, width = weights->head_width, knots = weights->knots;
    const int64_t size = width * stride, pairs = pairs_of(n);
    const float scale = 1.0f / (float)(n > 1 ? n - 1 : 1), rate = halvings(weights);
    float *memory = calloc((size_t)(2 * heads * size + (coordinates ? pairs : 0) + LANES), sizeof(float));
    if (!memory) return 1;
    float *places = aligned(memory), *dplaces = places + heads * size, *dcrowds = dplaces + heads * size;
    transpose_places(weights, n, room, given, places);
    out->constant[b] = sum_of(pairs, deffects);
    for (int64_t h = 0; h < heads; h++) {
        const float strength = weights->strengths[h], *own = places + h * size;
        out->strengths[b * heads + h] =
            width == 4 ? head_gradient(n, strength, rate, weights->sharpness, own, deffects, dplaces + h * size, 4)
                       : head_gradient(n, strength, rate, weights->sharpness, own, deffects, dplaces + h * size, width);
        for (int64_t i = 0; i < n; i++)
            for (int64_t w = 0; w < width; w++)
                out->places[((b * heads + h) * room + i) * width + w] = dplaces[h * size + w * stride + i];
    }
    for (int64_t i = 0; coordinates && i < n; i++)
        for (int64_t k = 0; k < i; k++) dcrowds[pair_row(i) + k] = (dcrowding[i] + dcrowding[k]) * scale;
    for (int64_t d = 0; coordinates && d < DISTANCES; d++) {
        float *effects = out->effects + (b * DISTANCES + d) * knots, *crowding = out->crowding + (b * DISTANCES + d) * knots;
        if (knots == 11)
            knot_gradients(coordinates, d, pairs, deffects, dcrowds, effects, crowding, 11);
        else
            knot_gradients(coordinates, d, pairs, deffects, dcrowds, effects, crowding, knots);
    }
    free(memory);
    return 0;
}

/* Batches */

/* Coordinates of all lists, of which one pointer or both are null. */
static pair_coordinates_of_list coordinates_at(const float *floats, const int16_t *fixed, int64_t n, int64_t b) {
    const int64_t apart = pairs_of(n), start = b * DISTANCES * apart;
    return (pair_coordinates_of_list){floats ? floats + start : NULL, fixed ? fixed + start : NULL, apart};
}

int pair_effects_forward(const pair_weights *weights, int64_t lists, int64_t n, const int64_t *lengths, const float *floats,
                         const int16_t *fixed, const float *places, float *effects, float *crowding) {
    const int64_t all = weights->heads * weights->head_width;
    int failed = 0;
#pragma omp parallel for schedule(dynamic) reduction(| : failed)
    for (int64_t b = 0; b < lists; b++) {
        const pair_coordinates_of_list coordinates = coordinates_at(floats, fixed, n, b);
        const int64_t own = lengths[b], stride = column_stride(own);
        float *memory = malloc((size_t)((all + 1) * stride + LANES) * sizeof(float)), *at = aligned(memory);
        failed |= !memory;
        if (!memory) continue;
        transpose_places(weights, own, n, places + b * all * n, at);
        effects_of_list(weights, own, floats || fixed ? &coordinates : NULL, at, effects + b * pairs_of(n), at + all * stride);
        memcpy(crowding + b * n, at + all * stride, (size_t)own * sizeof(float));
        free(memory);
    }
    return failed;
}

int pair_effects_backward(const pair_weights *weights, int64_t lists, int64_t n, const int64_t *lengths, const float *floats,
                          const int16_t *fixed, const float *places, const float *deffects, const float *dcrowding,
                          const pair_gradients *gradients) {
    const int64_t all = weights->heads * weights->head_width;
    int failed = 0;
#pragma omp parallel for schedule(dynamic) reduction(| : failed)
    for (int64_t b = 0; b < lists; b++) {
        const pair_coordinates_of_list coordinates = coordinates_at(floats, fixed, n, b);
        failed |= gradients_of_list(weights, lengths[b], n, floats || fixed ? &coordinates : NULL, places + b * all * n,
                                    deffects + b * pairs_of(n), dcrowding + b * n, gradients, b);
    }
    return failed;
}

/* `expect_clicks` of each list; returns 1 if there is no memory. */
int expected_logits(int64_t lists, int64_t n, const float *effects, float *logits) {
    int failed = 0;
#pragma omp parallel for if (lists * n * n > ENOUGH_WORK) reduction(| : failed)
    for (int64_t b = 0; b < lists; b++) {
        float *ramps = malloc((size_t)(n + 1) * sizeof(float));
        failed |= !ramps;
        if (ramps) expect_clicks(n, effects + b * pair_row(n), logits + b * n, ramps);
        free(ramps);
    }
    return failed;
}

/* Add to logits (lists, n) the effects of the clicks above each item, clicked (lists, n) 0 or 1. */
void clicks_above_forward(int64_t lists, int64_t n, const float *clicked, const float *effects, float *logits) {
#pragma omp parallel for
    for (int64_t b = 0; b < lists; b++)
        for (int64_t i = 0; i < n; i++) logits[b * n + i] += dot_of_lanes(i, effects + b * pair_row(n) + pair_row(i), clicked + b * n);
}

void clicks_above_backward(int64_t lists, int64_t n, const float *clicked, const float *dlogits, float *deffects) {
#pragma omp parallel for
    for (int64_t b = 0; b < lists; b++)
        for (int64_t i = 0; i < n; i++) {
            float *restrict deffect = deffects + b * pair_row(n) + pair_row(i);
            const float *restrict click = clicked + b * n, dlogit = dlogits[b * n + i];
#pragma omp simd
            for (int64_t k = 0; k < i; k++) deffect[k] = dlogit * click[k];
        }
}

/* What the items of slates (lists, steps), -1 for none, add once they are placed: (lists, steps, n), 0 at first. */
void placed_rows(int64_t lists, int64_t n, int64_t steps, const placed_pairs *placed, const int64_t *slates, float *added) {
#pragma omp parallel for if (lists * steps * n > ENOUGH_WORK)
    for (int64_t b = 0; b < lists; b++)
        for (int64_t j = b * steps; j < (b + 1) * steps; j++)
            if (slates[j] >= 0)
                add_when_placed(n, slates[j], placed->logits[b * n + slates[j]], placed->weight, placed->effects + b * pair_row(n),
                                added + j * n);
}

/* What heads and relevance see of the items, seen (n, lists, heads * head_width + 1), becomes places (lists, heads, n, head_width), as
 * `place_heads` makes them, and relevance (lists, n); both are 0 at first, for padding. scales (lists, heads) are what places were
 * multiplied by, less than 0 where the variance was too small to matter. */
void places_forward(const pair_weights *weights, int64_t lists, int64_t n, const int64_t *lengths, const float *seen, float *places,
                    float *relevance, float *scales) {
    const int64_t heads = weights->heads, width = weights->head_width, columns = heads * width + 1;
#pragma omp parallel for
    for (int64_t b = 0; b < lists; b++) {
        const float share = 1.0f / (float)(lengths[b] > 0 ? lengths[b] : 1);
        for (int64_t i = 0; i < lengths[b]; i++) relevance[b * n + i] = seen[(i * lists + b + 1) * columns - 1];
        for (int64_t h = 0; h < heads; h++) {
            const float *from = seen + b * columns + h * width;
            float *own = places + (b * heads + h) * n * width, mean[MOST_WIDTH] = {0}, variance = 0.0f;
            for (int64_t i = 0; i < lengths[b]; i++)
                for (int64_t w = 0; w < width; w++) mean[w] += share * from[i * lists * columns + w];
            for (int64_t i = 0; i < lengths[b]; i++)
                for (int64_t w = 0; w < width; w++) own[i * width + w] = from[i * lists * columns + w] - mean[w];
            variance = 2.0f * share * squares_of(lengths[b] * width, own);
            const float scale = 1.0f / sqrtf(variance < weights->least ? weights->least : variance);
            for (int64_t k = 0; k < lengths[b] * width; k++) own[k] *= scale;
            scales[b * heads + h] = variance < weights->least ? -scale : scale;
        }
    }
}

/* Its gradient: with y = s (x - mean) and s² n = 1 / 2 sum (x - mean)², that of x is s (dy - 2 / n y sum(y dy)), centred. dseen is 0 at
 * first. */
void places_backward(const pair_weights *weights, int64_t lists, int64_t n, const int64_t *lengths, const float *places,
                     const float *scales, const float *dplaces, const float *drelevance, float *dseen) {
    const int64_t heads = weights->heads, width = weights->head_width, columns = heads * width + 1;
#pragma omp parallel for
    for (int64_t b = 0; b < lists; b++) {
        const float share = 1.0f / (float)(lengths[b] > 0 ? lengths[b] : 1);
        for (int64_t i = 0; i < lengths[b]; i++) dseen[(i * lists + b + 1) * columns - 1] = drelevance[b * n + i];
        for (int64_t h = 0; h < heads; h++) {
            const float *own = places + (b * heads + h) * n * width, *down = dplaces + (b * heads + h) * n * width;
            const float scale = fabsf(scales[b * heads + h]);
            const float turn = scales[b * heads + h] < 0.0f ? 0.0f : 2.0f * share * dot(lengths[b] * width, own, down);
            float *into = dseen + b * columns + h * width, mean[MOST_WIDTH] = {0};
            for (int64_t i = 0; i < lengths[b]; i++)
                for (int64_t w = 0; w < width; w++) {
                    const float change = scale * (down[i * width + w] - turn * own[i * width + w]);
                    into[i * lists * columns + w] = change;
                    mean[w] += share * change;
                }
            for (int64_t i = 0; i < lengths[b]; i++)
                for (int64_t w = 0; w < width; w++) into[i * lists * columns + w] -= mean[w];
        }
    }
}
