/* Where the distances of the items of one list lie between their quantiles. Columns are transposed, so that neighbours in memory are
 * the same number of neighbouring items: distances of many pairs are then summed at once, and every pair in the same order. */
#include "native_pairs.h"

#define ROWS 4 /* items whose distances to the same others are summed at once */
#define MOST_BINS 1024
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
        int64_t k = 0, left = (stop - 1 + LANES - 1) / LANES;
        for (; left > 5 || left == 4; k += 4 * LANES, left -= 4)
            distances_of_tile(columns, stride, transposed + i, transposed + k, buffer + k, 4);
        for (; left > 2; k += 3 * LANES, left -= 3)
            distances_of_tile(columns, stride, transposed + i, transposed + k, buffer + k, 3);
        if (left == 2) distances_of_tile(columns, stride, transposed + i, transposed + k, buffer + k, 2);
        if (left == 1) distances_of_tile(columns, stride, transposed + i, transposed + k, buffer + k, 1);
        for (int64_t row = i; row < stop; row++) /* what is written beyond its end is overwritten by the next row */
            for (k = 0; k < row; k += LANES)
                *(lanes *)(distances + pair_row(row) + k) = *(const lanes *)(buffer + (row - i) * stride + k);
    }
}

/* Raw values of transposed scaled columns, in place. Of a logarithm the digits count that a float has no room for: the exponentials of
 * two neighbours are far apart. */
static void recover_raw(const pair_columns *by, int64_t n, float *transposed) {
    const int64_t stride = column_stride(n), stop = (n + LANES - 1) / LANES * LANES;
    for (int64_t f = 0; f < by->columns; f++) {
        float *restrict column = transposed + f * stride;
        const float level = by->levels[f], spread = by->spreads[f], limit = by->largest_log;
        if (!by->are_logarithms[f]) {
            for (int64_t i = 0; i < stop; i++) column[i] = level + spread * column[i];
            continue;
        }
#pragma omp simd
        for (int64_t i = 0; i < stop; i++) {
            const double size = fabs((double)level + (double)spread * (double)column[i]);
            const double clamped = size < (double)limit ? size : (double)limit;
            const float high = (float)clamped, low = (float)(clamped - (double)high), grown = exp_minus_one(high);
            column[i] = copysignf(grown + (grown + 1.0f) * low, level + spread * column[i]);
        }
    }
}

/* Give transposed columns mean 0 and variance 1, in place; in double precision, as outliers leave few digits to the others. */
static void normalise(const pair_columns *by, int64_t n, float *transposed) {
    const int64_t stride = column_stride(n);
    for (int64_t f = 0; f < by->columns; f++) {
        float *restrict column = transposed + f * stride;
        double sum = 0.0, squares = 0.0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) sum += (double)column[i];
        const double mean = sum / (double)n;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < n; i++) squares += ((double)column[i] - mean) * ((double)column[i] - mean);
        const double spread = sqrt(squares / (double)n), least = (double)by->least_spread, scale = 1.0 / (spread < least ? least : spread);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) column[i] = (float)(((double)column[i] - mean) * scale);
    }
}

/* The lengths (n) of the rows of transposed columns. */
static void lengths_of_rows(int64_t n, int64_t columns, const float *transposed, float *restrict lengths) {
    const int64_t stride = column_stride(n);
    memset(lengths, 0, (size_t)stride * sizeof(float));
    for (int64_t f = 0; f < columns; f++) {
        const float *restrict column = transposed + f * stride;
#pragma omp simd
        for (int64_t i = 0; i < stride; i++) lengths[i] += column[i] * column[i];
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

/* The same by differences of rows of length 1, which take the place of the transposed columns. */
static void angles_by_differences(const pair_columns *by, int64_t n, float least, float *transposed, float *restrict lengths,
                                  float *buffer, float *distances) {
    const int64_t stride = column_stride(n);
    for (int64_t i = 0; i < stride; i++) lengths[i] = lengths[i] < least ? least : lengths[i];
    for (int64_t f = 0; f < by->columns; f++) {
        float *restrict column = transposed + f * stride;
        for (int64_t i = 0; i < stride; i++) column[i] /= lengths[i];
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
    int32_t floor, shift, count;
} binning;

static binning new_binning(int32_t lowest, int32_t highest) {
    const int32_t below = highest - ((int32_t)OCTAVES << 23);
    binning by = {.floor = lowest > below ? lowest : below};
    while ((highest - by.floor) >> by.shift >= MOST_BINS) by.shift++;
    by.count = ((highest - by.floor) >> by.shift) + 1;
    return by;
}

static inline int32_t bin_of(const binning *by, float value) {
    const int32_t above = (bits_of(value) & INT32_MAX) - by->floor;
    return (above < 0 ? 0 : above) >> by->shift;
}

/* The bins of up to CHUNK values. */
static inline void bins_of(const binning *by, int64_t count, const float *restrict values, int32_t *restrict found) {
#pragma omp simd
    for (int64_t k = 0; k < count; k++) found[k] = bin_of(by, values[k]);
}

static void count_bins(const binning *by, int64_t count, const float *values, int32_t *bins) {
    int32_t bin[CHUNK];
    memset(bins, 0, (size_t)(by->count + LANES) * sizeof(int32_t));
    for (int64_t start = 0; start < count; start += CHUNK) {
        const int64_t size = count - start < CHUNK ? count - start : CHUNK;
        bins_of(by, size, values + start, bin);
        for (int64_t k = 0; k < size; k++) bins[bin[k]]++;
    }
}

/* A bin in which some ranks lie: where its values go, how many they are, and these ranks among all. */
typedef struct {
    int32_t bin;
    int64_t first, size, start, stop;
} wanted_bin;

/* Find the bins in which ranks lie, which rise; the others become -1, and these their number. own[r] is the rank inside of its bin. */
static int64_t find_bins(const binning *by, int32_t *bins, int64_t wanted, const int64_t *ranks, int64_t *own, wanted_bin *found) {
    int64_t number = 0, next = 0, before = 0, taken = 0;
    for (int32_t block = 0; block < by->count; block += LANES) {
        int32_t total = 0;
        for (int l = 0; l < LANES; l++) total += bins[block + l];
        if (next == wanted || ranks[next] >= before + total) {
            before += total;
            for (int l = 0; l < LANES; l++) bins[block + l] = -1;
            continue;
        }
        for (int32_t b = block; b < block + LANES; b++) {
            const int64_t size = bins[b], start = next;
            for (; next < wanted && ranks[next] < before + size; next++) own[next] = ranks[next] - before;
            bins[b] = next > start ? (int32_t)number : -1;
            before += size;
            if (next == start) continue;
            found[number++] = (wanted_bin){b, taken, size, start, next};
            taken += size;
        }
    }
    return number;
}

/* Copy the values of wanted bins, those that are not -1, to `few`, which has room for all and LANES more. Returns how many. */
static int64_t take_wanted(const binning *by, int64_t count, const float *values, const int32_t *bins, int64_t number,
                           const wanted_bin *wanted, float *few) {
    int64_t taken = 0;
#ifdef __AVX512F__
    (void)bins;
    uint32_t bits[MOST_BINS / 32] = {0}; /* one for each bin: all of them fit into two registers */
    for (int64_t w = 0; w < number; w++) bits[wanted[w].bin / 32] |= 1u << wanted[w].bin % 32;
    const __m512i low = _mm512_loadu_si512(bits), high = _mm512_loadu_si512(bits + 16);
    const __m512i floor = _mm512_set1_epi32(by->floor), positive = _mm512_set1_epi32(INT32_MAX);
    for (int64_t k = 0; k < count; k += LANES) {
        const __mmask16 there = count - k >= LANES ? 0xFFFF : (__mmask16)((1u << (count - k)) - 1);
        const __m512 value = _mm512_maskz_loadu_ps(there, values + k);
        const __m512i above = _mm512_sub_epi32(_mm512_and_si512(_mm512_castps_si512(value), positive), floor);
        const __m512i bin = _mm512_srl_epi32(_mm512_max_epi32(above, _mm512_setzero_si512()), _mm_cvtsi32_si128(by->shift));
        const __m512i word = _mm512_permutex2var_epi32(low, _mm512_srli_epi32(bin, 5), high);
        const __m512i bit = _mm512_srlv_epi32(word, _mm512_and_si512(bin, _mm512_set1_epi32(31)));
        const __mmask16 found = _mm512_mask_test_epi32_mask(there, bit, _mm512_set1_epi32(1));
        _mm512_storeu_ps(few + taken, _mm512_maskz_compress_ps(found, value));
        taken += __builtin_popcount(found);
    }
#else
    (void)number, (void)wanted;
    int32_t bin[CHUNK];
    for (int64_t start = 0; start < count; start += CHUNK) {
        const int64_t size = count - start < CHUNK ? count - start : CHUNK;
        bins_of(by, size, values + start, bin);
        for (int64_t k = 0; k < size; k++) few[taken] = values[start + k], taken += bins[bin[k]] >= 0; /* no branch */
    }
#endif
    return taken;
}

/* found[r] becomes the value of rank ranks[r], which rise, among `count` values >= 0, were they sorted. The bits of such floats are
 * in the order of their values: they are counted into bins by these, and the few bins that matter looked at again. few (count +
 * LANES) and room (count) are overwritten; room may be the values. */
static void values_of_ranks(int64_t count, const float *values, int64_t wanted, const int64_t *ranks, float *found, float *few,
                            float *room) {
    int32_t lowest, highest, bins[MOST_BINS + LANES];
    if (count <= FEW) {
        if (room != values) memcpy(room, values, (size_t)count * sizeof(float));
        sort_few(count, room);
        for (int64_t r = 0; r < wanted; r++) found[r] = room[ranks[r]];
        return;
    }
    range_of_bits(count, values, &lowest, &highest);
    if (lowest == highest) {
        for (int64_t r = 0; r < wanted; r++) found[r] = values[0];
        return;
    }
    const binning by = new_binning(lowest, highest);
    wanted_bin bin[2 * MOST_KNOTS];
    int64_t own_ranks[2 * MOST_KNOTS], at[2 * MOST_KNOTS];
    count_bins(&by, count, values, bins);
    const int64_t number = find_bins(&by, bins, wanted, ranks, own_ranks, bin);
    const int64_t taken = take_wanted(&by, count, values, bins, number, bin, few);
    for (int64_t b = 0; b < number; b++) at[b] = bin[b].first;
    for (int64_t k = 0; k < taken; k++) room[at[bins[bin_of(&by, few[k])]]++] = few[k];
    for (int64_t b = 0; b < number; b++)
        values_of_ranks(bin[b].size, room + bin[b].first, bin[b].stop - bin[b].start, own_ranks + bin[b].start,
                        found + bin[b].start, few + bin[b].first, room + bin[b].first);
}

/* The knots of a list, moved apart where they are equal. few (count + LANES) and room (count) are overwritten. */
static void knots_of(const pair_columns *by, int64_t count, const float *values, float *few, float *room, float *knots) {
    int64_t ranks[2 * MOST_KNOTS] = {0}, wanted = 0;
    float found[2 * MOST_KNOTS];
    for (int64_t j = 0; j < by->knots; j++)
        for (int64_t side = 0; side < 2; side++) {
            int64_t rank = (int64_t)(by->quantiles[j] * (double)(count - 1)) + side, at = wanted++;
            for (rank = rank < count ? rank : count - 1; at > 0 && ranks[at - 1] > rank; at--) ranks[at] = ranks[at - 1];
            ranks[at] = rank;
        }
    values_of_ranks(count, values, wanted, ranks, found, few, room);
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

/* Where distances lie between the knots, of which there is one more than segments: how many lie below, and the part of the segment
 * behind the last of these. */
static inline __attribute__((always_inline)) void between_knots(int64_t count, const float *distances, const float *knots,
                                                                float *out, const int64_t segments) {
    const float most = (float)segments;
    lanes low = {0}, per = {0};
    for (int64_t j = 0; j <= segments; j++) {
        const float gap = j < segments ? knots[j + 1] - knots[j] : 1.0f, least = 1e-30f * knots[segments];
        low[j] = knots[j], per[j] = 1.0f / (gap > least ? gap : least);
    }
    for (int64_t k = 0; k < count; k += LANES) {
        const lanes distance = *(const lanes *)(distances + k);
        indices whole = {0};
        for (int64_t j = 1; j < segments; j++) whole -= distance >= low[j];
        const lanes part = (distance - looked_up(low, whole)) * looked_up(per, whole);
        const lanes place = __builtin_convertvector(whole, lanes) + least_of(part, 1.0f - (lanes){0});
        store_lanes(out + k, least_of(place, most - (lanes){0}), count - k);
    }
}

/* The coordinates of finite distances; `spare` is overwritten. Returns whether they are finite. */
static int coordinates_from(const pair_columns *by, int64_t n, const float *distances, float *spare, float *coordinates) {
    const int64_t count = pairs_of(n), segments = by->knots - 1;
    float knots[MOST_KNOTS];
    int32_t lowest, highest;
    range_of_bits(count, distances, &lowest, &highest);
    if (highest >= 0x7F800000) return 0;
    knots_of(by, count, distances, spare, coordinates, knots);
    if (segments == 10) /* a constant lets the compiler keep the knots in registers */
        between_knots(count, distances, knots, coordinates, 10);
    else
        between_knots(count, distances, knots, coordinates, segments);
    return 1;
}

int coordinates_of_list(const pair_columns *by, int64_t n, int64_t apart, int64_t width, const float *x, float *memory,
                        float *pairs, float *coordinates) {
    const int64_t stride = column_stride(n), columns = by->columns;
    float *transposed = aligned(memory), *lengths = transposed + columns * stride, *buffer = lengths + stride;
    float *distances = pairs, *spare = pairs + pairs_of(n) + LANES;
    transpose(n, columns, width, x, transposed);
    normalise(by, n, transposed);
    squared_distances(n, columns, transposed, buffer, distances);
    if (!coordinates_from(by, n, distances, spare, coordinates + NORMALISED * apart)) return 0;
    lengths_of_rows(n, columns, transposed, lengths);
    const float least = shortest_length(by, n, lengths);
    if (!angles_from_distances(n, lengths, least, distances))
        angles_by_differences(by, n, least, transposed, lengths, buffer, distances);
    if (!coordinates_from(by, n, distances, spare, coordinates + ANGLE * apart)) return 0;
    transpose(n, columns, width, x, transposed);
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
