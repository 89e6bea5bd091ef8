"""Uncertainty of a mean over lists, and tests of the difference between two rankers, by resampling.

Nothing is assumed about the distribution of the values. The lists are the sample: they are resampled, and they are
paired. Where a ranker was trained with several seeds, the seeds are resampled too. A NaN is a list without a value and
is left out. All functions work in blocks of resamples, so that memory stays small for any number of lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from seq2slate.errors import UsageError

T = TypeVar("T")
_BLOCK = 1 << 21  # draws in memory at a time


def mean_over_lists(values: npt.ArrayLike) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none.

    >>> mean_over_lists([1.0, float("nan"), 2.0])
    1.5
    """
    known = _known(values)
    return float(known.mean()) if len(known) else float("nan")


def none_if_nan(value: T) -> T | None:
    """Return None for NaN, which JSON does not have, and any other value as it is."""
    return None if isinstance(value, float) and isnan(value) else value


def share_of_gap(mean: float, base: float, ceiling: float) -> float | None:
    """Return the share of the gap between base order and ceiling that a ranker closes.

    It is (mean - base) / (ceiling - base): 0 for the base order, 1 for the ceiling, and negative below the base order.

    Returns:
        The share; None if the ceiling is not above the base order, so that there is no gap.

    >>> share_of_gap(0.6, base=0.5, ceiling=0.9)
    0.25
    """
    return (mean - base) / (ceiling - base) if ceiling > base else None


def bootstrap_interval(
    values: npt.ArrayLike, *, seed: int = 0, samples: int = 2000, level: float = 0.95
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean.

    The values are resampled with replacement `samples` times. The interval runs from the (1 - level) / 2 quantile to
    the (1 + level) / 2 quantile of the means of the resamples.

    Args:
        values: (Q,) one value a list; NaN for a list without one.
        seed: Of the resamples.
        samples: The number of resamples.
        level: The coverage of the interval.

    Returns:
        The two ends; (NaN, NaN) for fewer than two values, which show no spread.

    >>> low, high = bootstrap_interval([0.0, 1.0] * 200)
    >>> 0.44 < low < 0.47 and 0.53 < high < 0.56  # 0.5 ± 1.96 * 0.5 / sqrt(400)
    True
    """
    ends = _quantiles_of_interval(samples, level)
    known = _known(values)
    if len(known) < 2:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    means = [
        known[rng.integers(len(known), size=(rows, len(known)), dtype=np.uint32)].mean(axis=1)
        for rows in _blocks(samples, len(known))
    ]
    low, high = np.quantile(np.concatenate(means), ends)
    return float(low), float(high)


def two_way_interval(
    values: npt.ArrayLike, *, seed: int = 0, samples: int = 2000, level: float = 0.95
) -> npt.NDArray[np.float64]:
    """Return percentile bootstrap intervals of means over seeds and lists, both of which are resampled.

    The intervals hold for other lists and for other training runs (Owen's pigeonhole bootstrap). With one seed they
    are about the lists alone.

    Args:
        values: (…, S, Q) values of S seeds by Q lists; NaN for a list without one. Leading axes share their resamples.
        seed: Of the resamples.
        samples: The number of resamples.
        level: The coverage of the intervals.

    Returns:
        (…, 2) the ends of the intervals; NaN where fewer than two lists have a value.

    >>> low, high = two_way_interval([[0.0, 1.0] * 200])
    >>> bool(0.44 < low < 0.47 and 0.53 < high < 0.56)  # 0.5 ± 1.96 * 0.5 / sqrt(400)
    True
    """
    ends = _quantiles_of_interval(samples, level)
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
    found = np.nanquantile(drawn, ends, axis=-1)
    return np.where(enough[..., None], np.moveaxis(found, 0, -1), np.nan)


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
    """Return the two-sided p-value of the paired randomisation test.

    Under the null hypothesis the two values of a list could be swapped: every difference a_q - b_q is as likely with
    the other sign. With M random sign flips, of which m have a mean difference at least as far from 0 as the observed
    one, p = (m + 1) / (M + 1). The observed difference counts as one of the flips, so that p is never 0 and the test
    is valid for every M.

    Args:
        a: (Q,) the values of one ranker; NaN for a list without one.
        b: (Q,) the values of the other on the same lists. The order of a and b does not matter.
        seed: Of the sign flips.
        samples: M, the number of random sign flips.

    Returns:
        The p-value; 1 if there is no difference.

    Raises:
        UsageError: a and b do not have one value a list each.

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


def _quantiles_of_interval(samples: int, level: float) -> list[float]:
    """Return the quantiles at which an interval of this level ends, after checking both options."""
    _check_samples(samples)
    if not 0 < level < 1:
        raise UsageError(f"level must be between 0 and 1, got {level}")
    return [(1 - level) / 2, (1 + level) / 2]


def _blocks(samples: int, n: int) -> Iterator[int]:
    """Yield how many samples of n draws to make at a time."""
    rows = max(1, _BLOCK // n)
    for start in range(0, samples, rows):
        yield min(rows, samples - start)


def _random_bits(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.float64]:
    """Return (rows, columns) zeros and ones, each with probability one half."""
    packed = rng.integers(256, size=(rows, -(-columns // 8)), dtype=np.uint8)
    return np.unpackbits(packed, axis=1, count=columns).astype(np.float64)
