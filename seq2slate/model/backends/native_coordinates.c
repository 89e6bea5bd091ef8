/* Where the distances of the items of one list lie between their quantiles. Columns are transposed, so that neighbours in memory are
 * the same number of neighbouring items: distances of many pairs are then summed at once, and every pair in the same order. */
#include "native_pairs.h"

#define ROWS 4 /* items whose distances to the same others are summed at once */
#define MOST_BINS 4096
#define CHUNK 256 /* values whose bins are found at once */
#define FEW 32 /* values that are sorted at once */
#define OCTAVES 20 /* below the largest of some values which have bins of their own; the rest shares one */
#define CANCELLED 0.1f /* the part of a distance below which what is left of a difference has lost too many digits */
#define LONG 0.03f /* rows so long that the rounding of their lengths, about 1e-7 of them, is 1e-5 of what is left */

/* Distances */

static inline __attribute__((always_inline)) void distances_of_tile(int64_t columns, int64_t stride, const float *rows,
                                                                    const float *others, float *out, const int vectors) {
    lanes sum[ROWS][4] = {{{0}}};
    for (int64_t f = 0; f < columns; f++, rows += stride, others += stride)
        for (int v = 0; v < vectors; v++) {
            const lanes other = *(const lanes *)(others + v * LANES);
            for (int r = 0; r < ROWS; r++) {
                const lanes gap = other - rows[r];
                sum[r][v] += gap * gap;
            }
        }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++) *(lanes *)(out + r * stride + v * LANES) = sum[r][v];
}

/* The squared distances of the pairs of n items, from transposed columns, with room for LANES more; buffer has room for ROWS of their
 * rows. */
static void squared_distances(int64_t n, int64_t columns, const float *transposed, float *buffer, float *distances) {
    const int64_t stride = column_stride(n);
    for (int64_t i = 0; i < n; i += ROWS) {
        const int64_t stop = i + ROWS < n ? i + ROWS : n;
        int64_t k = 0;
        for (; k + 3 * LANES < stop - 1; k += 4 * LANES)
            distances_of_tile(columns, stride, transposed + i, transposed + k, buffer + k, 4);
        for (; k + LANES < stop - 1; k += 2 * LANES)
            distances_of_tile(columns, stride, transposed + i, transposed + k, buffer + k, 2);
        for (; k < stop - 1; k += LANES) distances_of_tile(columns, stride, transposed + i, transposed + k, buffer + k, 1);
        for (int64_t row = i; row < stop; row++) /* what is written beyond its end is overwritten by the next row */
            for (k = 0; k < row; k += LANES)
                *(lanes *)(distances + pair_row(row) + k) = *(const lanes *)(buffer + (row - i) * stride + k);
    }
}

/* Raw values of transposed scaled columns, in place. Of a logarithm the digits count that a float has no room for: the exponentials of
 * two neighbours are far apart. */
static void recover_raw(const pair_columns *by, int64_t n, float *transposed) {
    const int64_t stride = column_stride(n);
    for (int64_t f = 0; f < by->columns; f++) {
        float *restrict column = transposed + f * stride;
        const float level = by->levels[f], spread = by->spreads[f], limit = by->largest_log;
        if (!by->are_logarithms[f]) {
            for (int64_t i = 0; i < stride; i++) column[i] = level + spread * column[i];
            continue;
        }
#pragma omp simd
        for (int64_t i = 0; i < stride; i++) {
            const double size = fabs((double)level + (double)spread * (double)column[i]);
            const double clamped = size < (double)limit ? size : (double)limit;
            const float high = (float)clamped, low = (float)(clamped - (double)high), grown = exp_minus_one(high);
            column[i] = copysignf(grown + (grown + 1.0f) * low, level + spread * column[i]);
        }
    }
}

/* The lengths (n) of the rows of transposed columns, once these are centred. */
static void centred_lengths(int64_t n, int64_t columns, const float *transposed, float *restrict lengths) {
    const int64_t stride = column_stride(n);
    memset(lengths, 0, (size_t)stride * sizeof(float));
    for (int64_t f = 0; f < columns; f++) {
        const float *restrict column = transposed + f * stride;
        const float mean = sum_of(n, column) / (float)n;
#pragma omp simd
        for (int64_t i = 0; i < stride; i++) lengths[i] += (column[i] - mean) * (column[i] - mean);
    }
    for (int64_t i = 0; i < stride; i++) lengths[i] = sqrtf(lengths[i]);
}

/* No length is smaller than this when rows are divided by it. */
static float shortest_length(const pair_columns *by, int64_t n, const float *lengths) {
    const float shortest = by->shortest * sqrtf(dot(n, lengths, lengths) / (float)n);
    return shortest < by->least ? by->least : shortest;
}

/* Turn the squared distances of rows with these lengths into 1 - the cosine: (d - (a - b)²) / 2ab. Returns 0 if that has lost
 * its digits for some pair, and it has to be done by differences. */
static int angles_from_distances(int64_t n, const float *restrict lengths, float least, float *restrict distances) {
    int lost = 0;
    for (int64_t i = 1; i < n; i++) {
        float *restrict row = distances + pair_row(i);
        const float own = lengths[i];
#pragma omp simd reduction(| : lost)
        for (int64_t k = 0; k < i; k++) {
            const float gap = own - lengths[k], left = row[k] - gap * gap;
            lost |= left < CANCELLED * row[k] || left < LONG * own * fabsf(gap) || own < least || lengths[k] < least;
            row[k] = left / (2.0f * own * lengths[k]);
        }
    }
    return !lost;
}

/* The same by differences of centred rows of length 1, which take the place of the transposed columns. */
static void angles_by_differences(const pair_columns *by, int64_t n, float least, float *transposed, float *restrict lengths,
                                  float *buffer, float *distances) {
    const int64_t stride = column_stride(n);
    for (int64_t i = 0; i < stride; i++) lengths[i] = lengths[i] < least ? least : lengths[i];
    for (int64_t f = 0; f < by->columns; f++) {
        float *restrict column = transposed + f * stride;
        const float mean = sum_of(n, column) / (float)n;
        for (int64_t i = 0; i < stride; i++) column[i] = (column[i] - mean) / lengths[i];
    }
    squared_distances(n, by->columns, transposed, buffer, distances);
    for (int64_t k = 0; k < pairs_of(n); k++) distances[k] *= 0.5f;
}

/* Quantiles */

static inline int32_t bits_of(float x) {
    float_bits value;
    value.value = x;
    return value.bits;
}

static void range_of_bits(int64_t count, const float *values, int32_t *lowest, int32_t *highest) {
    int32_t low = INT32_MAX, high = 0;
#pragma omp simd reduction(min : low) reduction(max : high)
    for (int64_t k = 0; k < count; k++) {
        const int32_t bits = bits_of(values[k]) & INT32_MAX;
        low = bits < low ? bits : low;
        high = bits > high ? bits : high;
    }
    *lowest = low, *highest = high;
}

static void sort_few(int64_t count, float *values) {
    for (int64_t k = 1; k < count; k++) {
        const float value = values[k];
        int64_t at = k;
        for (; at > 0 && values[at - 1] > value; at--) values[at] = values[at - 1];
        values[at] = value;
    }
}

typedef struct {
    int32_t floor, shift;
    int64_t count;
} binning;

/* The bins of up to CHUNK values. */
static inline void bins_of(const binning *by, int64_t count, const float *restrict values, int32_t *restrict found) {
    const int32_t floor = by->floor, shift = by->shift;
#pragma omp simd
    for (int64_t k = 0; k < count; k++) {
        const int32_t above = (bits_of(values[k]) & INT32_MAX) - floor;
        found[k] = (above < 0 ? 0 : above) >> shift;
    }
}

static binning new_binning(int64_t count, int32_t lowest, int32_t highest) {
    const int32_t below = highest - ((int32_t)OCTAVES << 23), bins = count < 4 * MOST_BINS ? MOST_BINS / 4 : MOST_BINS;
    binning by = {.floor = lowest > below ? lowest : below};
    while ((highest - by.floor) >> by.shift >= bins) by.shift++;
    by.count = ((highest - by.floor) >> by.shift) + 1;
    return by;
}

/* found[r] becomes the value of rank ranks[r], which rise, among `count` values >= 0, were they sorted. The bits of such floats are
 * in the order of their values: they are counted into bins by these, and the few bins that matter looked at again. values and
 * room (count) are overwritten, bins have space for MOST_BINS. */
static void values_of_ranks(int64_t count, float *values, int64_t wanted, const int64_t *ranks, float *found, float *room,
                            int64_t *bins) {
    int32_t lowest, highest;
    range_of_bits(count, values, &lowest, &highest);
    if (lowest == highest || count <= FEW) {
        if (count <= FEW) sort_few(count, values);
        for (int64_t r = 0; r < wanted; r++) found[r] = values[count <= FEW ? ranks[r] : 0];
        return;
    }
    const binning by = new_binning(count, lowest, highest);
    memset(bins, 0, (size_t)by.count * sizeof(int64_t));
    int32_t bin[CHUNK];
    for (int64_t start = 0; start < count; start += CHUNK) {
        const int64_t size = count - start < CHUNK ? count - start : CHUNK;
        bins_of(&by, size, values + start, bin);
        for (int64_t k = 0; k < size; k++) bins[bin[k]]++;
    }
    struct {
        int64_t first, size, start, stop;
    } group[2 * MOST_KNOTS]; /* of values in a bin, and of the ranks of these */
    int64_t groups = 0, taken = 0, next = 0, before = 0, own_ranks[2 * MOST_KNOTS];
    for (int64_t b = 0; b < by.count; b++) {
        const int64_t size = bins[b], start = next;
        for (; next < wanted && ranks[next] < before + size; next++) own_ranks[next] = ranks[next] - before;
        bins[b] = next > start ? taken : -1;
        if (next > start) {
            group[groups].first = taken, group[groups].size = size, group[groups].start = start, group[groups++].stop = next;
            taken += size;
        }
        before += size;
    }
    for (int64_t start = 0; start < count; start += CHUNK) {
        const int64_t size = count - start < CHUNK ? count - start : CHUNK;
        bins_of(&by, size, values + start, bin);
        for (int64_t k = 0; k < size; k++)
            if (bins[bin[k]] >= 0) room[bins[bin[k]]++] = values[start + k];
    }
    /* What was copied out of `values` may be overwritten there: the next level finds its room in it. */
    for (int64_t g = 0; g < groups; g++)
        values_of_ranks(group[g].size, room + group[g].first, group[g].stop - group[g].start, own_ranks + group[g].start,
                        found + group[g].start, values + group[g].first, bins);
}

/* The knots of a list, moved apart where they are equal. values (count) and room (count) are overwritten. */
static void knots_of(const pair_columns *by, int64_t count, float *values, float *room, float *knots) {
    int64_t ranks[2 * MOST_KNOTS] = {0}, bins[MOST_BINS], wanted = 0;
    float found[2 * MOST_KNOTS];
    for (int64_t j = 0; j < by->knots; j++)
        for (int64_t side = 0; side < 2; side++) {
            int64_t rank = (int64_t)(by->quantiles[j] * (double)(count - 1)) + side, at = wanted++;
            for (rank = rank < count ? rank : count - 1; at > 0 && ranks[at - 1] > rank; at--) ranks[at] = ranks[at - 1];
            ranks[at] = rank;
        }
    values_of_ranks(count, values, wanted, ranks, found, room, bins);
    for (int64_t j = 0; j < by->knots; j++) {
        const double place = by->quantiles[j] * (double)(count - 1);
        const int64_t below = (int64_t)place;
        int64_t at = 0;
        while (ranks[at] < below) at++;
        const float low = found[at];
        while (at + 1 < wanted && ranks[at] <= below) at++;
        knots[j] = low + (float)(place - (double)below) * (found[at] - low);
    }
    const float median = knots[by->median] < by->least ? by->least : knots[by->median];
    for (int64_t j = 1; j < by->knots; j++) {
        const float before = knots[j - 1], least = before + by->least_gap * (before < median ? median : before);
        knots[j] = knots[j] < least ? least : knots[j];
    }
}

static inline float clamped(float x) {
    x = x < 0.0f ? 0.0f : x;
    return x > 1.0f ? 1.0f : x;
}

/* Where distances lie between the knots: the sum of what lies behind them of every segment. */
static inline __attribute__((always_inline)) void between_knots(int64_t count, const float *restrict distances,
                                                                const float *restrict knots, const float *restrict per,
                                                                float *restrict out, const int64_t segments) {
#pragma omp simd
    for (int64_t k = 0; k < count; k++) {
        float place = 0.0f;
        for (int64_t j = 0; j < segments; j++) place += clamped((distances[k] - knots[j]) * per[j]);
        out[k] = place;
    }
}

/* The coordinates of finite distances; `spare` is overwritten. Returns whether they are finite. */
static int coordinates_from(const pair_columns *by, int64_t n, const float *distances, float *spare, float *coordinates) {
    const int64_t count = pairs_of(n), segments = by->knots - 1;
    float knots[MOST_KNOTS], per[MOST_KNOTS];
    int32_t lowest, highest;
    range_of_bits(count, distances, &lowest, &highest);
    if (highest >= 0x7F800000) return 0;
    memcpy(spare, distances, (size_t)count * sizeof(float));
    knots_of(by, count, spare, coordinates, knots);
    for (int64_t j = 0; j < segments; j++) { /* so that no product is infinite, even if two knots are equal by rounding */
        const float gap = knots[j + 1] - knots[j], least = 1e-30f * knots[segments];
        per[j] = 1.0f / (gap > least ? gap : least);
    }
    if (segments == 10) /* a constant lets the compiler handle many pairs at once */
        between_knots(count, distances, knots, per, coordinates, 10);
    else
        between_knots(count, distances, knots, per, coordinates, segments);
    return 1;
}

int coordinates_of_list(const pair_columns *by, int64_t n, int64_t apart, int64_t width, const float *x, float *memory,
                        float *pairs, float *coordinates) {
    const int64_t stride = column_stride(n), columns = by->columns;
    float *transposed = aligned(memory), *lengths = transposed + columns * stride, *buffer = lengths + stride;
    float *distances = pairs, *spare = pairs + pairs_of(n) + LANES;
    transpose(n, columns, width, x, transposed);
    squared_distances(n, columns, transposed, buffer, distances);
    if (!coordinates_from(by, n, distances, spare, coordinates + SCALED * apart)) return 0;
    centred_lengths(n, columns, transposed, lengths);
    const float least = shortest_length(by, n, lengths);
    if (!angles_from_distances(n, lengths, least, distances)) {
        angles_by_differences(by, n, least, transposed, lengths, buffer, distances);
        transpose(n, columns, width, x, transposed);
    }
    if (!coordinates_from(by, n, distances, spare, coordinates + ANGLE * apart)) return 0;
    recover_raw(by, n, transposed);
    squared_distances(n, columns, transposed, buffer, distances);
    return coordinates_from(by, n, distances, spare, coordinates + RAW * apart);
}

int pair_coordinates(const pair_columns *by, int64_t lists, int64_t n, int64_t width, const int64_t *lengths, const float *items,
                     float *coordinates) {
    const int64_t needed = coordinate_memory(by, n);
    int failed = 0;
#pragma omp parallel reduction(| : failed)
    {
        float *memory = malloc((size_t)(needed + 2 * pairs_of(n) + 2 * LANES) * sizeof(float));
        failed |= !memory;
#pragma omp for schedule(dynamic)
        for (int64_t b = 0; b < lists; b++)
            if (memory && lengths[b] > 1)
                coordinates_of_list(by, lengths[b], pairs_of(n), lists * width, items + b * width, memory, memory + needed,
                                    coordinates + b * DISTANCES * pairs_of(n));
        free(memory);
    }
    return failed;
}
