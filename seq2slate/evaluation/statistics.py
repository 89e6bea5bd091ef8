"""How sure a mean over lists is, and whether two rankers differ: nothing is assumed about how the values are spread.

The lists are the sample: they are what is drawn again, and what is paired. Where a ranker was trained several times,
its seeds are drawn again, too. A NaN is a list without a value and is left out. All functions
work through the draws in blocks, so that memory stays small for any number of lists.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from seq2slate.errors import UsageError

_BLOCK = 1 << 21  # draws in memory at a time


def mean_over_lists(values: npt.ArrayLike) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none.

    >>> mean_over_lists([1.0, float("nan"), 2.0])
    1.5
    """
    known = _known(values)
    return float(known.mean()) if len(known) else float("nan")


def bootstrap_interval(
    values: npt.ArrayLike, *, seed: int = 0, samples: int = 2000, level: float = 0.95
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean; (NaN, NaN) for fewer than two values, which show no spread.

    >>> low, high = bootstrap_interval([0.0, 1.0] * 200)
    >>> 0.44 < low < 0.47 and 0.53 < high < 0.56  # 0.5 ± 1.96 * 0.5 / sqrt(400)
    True
    """
    _check_samples(samples)
    _check_level(level)
    known = _known(values)
    if len(known) < 2:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    means = [
        known[rng.integers(len(known), size=(rows, len(known)), dtype=np.uint32)].mean(axis=1)
        for rows in _blocks(samples, len(known))
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def two_way_interval(
    values: npt.ArrayLike, *, seed: int = 0, samples: int = 2000, level: float = 0.95
) -> npt.NDArray[np.float64]:
    """Return (…, 2) the percentile bootstrap intervals of the means of values (…, S, Q): S seeds by Q lists.

    Seeds and lists are both drawn anew, so that the intervals hold for other lists and for other runs; with one seed
    they are about the lists alone. Leading axes share their draws. Fewer than two lists with a value give NaN.

    >>> low, high = two_way_interval([[0.0, 1.0] * 200])
    >>> bool(0.44 < low < 0.47 and 0.53 < high < 0.56)  # 0.5 ± 1.96 * 0.5 / sqrt(400)
    True
    """
    _check_samples(samples)
    _check_level(level)
    array = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(array)
    n_seeds, n_lists = array.shape[-2:]
    if not n_seeds or not n_lists:
        return np.full((*array.shape[:-2], 2), np.nan)
    rng = np.random.default_rng(seed)
    filled = np.where(known, array, 0.0)
    means = [
        _two_way_means(filled, known, _counts(rng, rows, n_seeds), _counts(rng, rows, n_lists))
        for rows in _blocks(samples, n_lists)
    ]
    drawn = np.concatenate(means, axis=-1)
    enough = known.any(axis=-2).sum(axis=-1) >= 2
    drawn[~enough] = 0.0
    ends = np.nanquantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=-1)
    return np.where(enough[..., None], np.moveaxis(ends, 0, -1), np.nan)


def _two_way_means(
    filled: npt.NDArray[np.float64],
    known: npt.NDArray[np.bool_],
    seed_counts: npt.NDArray[np.float64],
    list_counts: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return (…, rows) the means of values (…, S, Q) in which seeds and lists count (rows, S) and (rows, Q) times."""
    sums = ((filled @ list_counts.T) * seed_counts.T).sum(axis=-2)
    weights = ((known @ list_counts.T) * seed_counts.T).sum(axis=-2)
    return np.where(weights > 0, sums / np.maximum(weights, 1), np.nan)


def _counts(rng: np.random.Generator, rows: int, n: int) -> npt.NDArray[np.float64]:
    """Return (rows, n) how often each of n is drawn in n draws with replacement."""
    drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def randomisation_test(a: npt.ArrayLike, b: npt.ArrayLike, *, seed: int = 0, samples: int = 10_000) -> float:
    """Return the two-sided p-value of the paired test that the labels "a" and "b" of each list could be swapped.

    Under that hypothesis every difference is as likely with the other sign. The p-value is the share of random sign
    flips whose mean difference is at least as far from 0 as the one observed, which counts as one of the flips: p is
    never 0, and the test never rejects too often. Without any difference p is 1. The order of a and b does not matter.

    >>> randomisation_test([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    1.0
    """
    _check_samples(samples)
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise UsageError(f"a paired test needs one value a list on both sides, got {first.shape} and {second.shape}")
    differences = _known(first - second)
    differences = differences[differences != 0]  # their sign changes nothing
    if not len(differences):
        return 1.0
    rng = np.random.default_rng(seed)
    total = differences.sum()
    # Sums that are equal on paper differ in the last bits: such a tie counts as "at least as far".
    threshold = abs(total) - 1e-12 * np.abs(differences).sum()
    at_least_as_far = 0
    for rows in _blocks(samples, len(differences)):
        flipped = _random_bits(rng, rows, len(differences)) @ differences
        at_least_as_far += int((np.abs(total - 2 * flipped) >= threshold).sum())
    return (at_least_as_far + 1) / (samples + 1)


def _known(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]


def _check_samples(samples: int) -> None:
    if samples < 1:
        raise UsageError(f"samples must be at least 1, got {samples}")


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise UsageError(f"level must be between 0 and 1, got {level}")


def _blocks(samples: int, n: int) -> Iterator[int]:
    """Yield how many samples of n draws to make at a time."""
    rows = max(1, _BLOCK // n)
    for start in range(0, samples, rows):
        yield min(rows, samples - start)


def _random_bits(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.float64]:
    """Return (rows, columns) zeros and ones, each with probability one half."""
    packed = rng.integers(256, size=(rows, -(-columns // 8)), dtype=np.uint8)
    return np.unpackbits(packed, axis=1, count=columns).astype(np.float64)
