"""Intervals hold the mean as often as they say, and the paired test agrees with enumeration and with SciPy."""

import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from seq2slate.errors import UsageError
from seq2slate.evaluation.statistics import (
    bootstrap_interval,
    mean_over_lists,
    randomisation_test,
    two_way_interval,
)


def with_nans(values: np.ndarray, seed: int = 0) -> np.ndarray:
    places = np.random.default_rng(seed).integers(len(values), size=5)
    return np.insert(values, places, np.nan)


# Means


def test_the_mean_leaves_out_lists_without_a_value() -> None:
    assert mean_over_lists([np.nan, 1.0, 4.0]) == (1 + 4) / 2
    assert np.isnan(mean_over_lists([np.nan]))
    assert np.isnan(mean_over_lists([]))


# The interval


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_holds_the_true_mean_as_often_as_it_says(level: float) -> None:
    rng = np.random.default_rng(1)
    n_trials, truth = 1000, 2 / (2 + 3)
    trials = rng.beta(2, 3, size=(n_trials, 100))
    intervals = [bootstrap_interval(trial, seed=seed, samples=500, level=level) for seed, trial in enumerate(trials)]
    covered = sum(low <= truth <= high for low, high in intervals)
    # The percentile interval is a little narrow at n = 100 (about 1%), hence the room below.
    assert stats.binom.ppf(0.001, n_trials, level - 0.015) <= covered <= stats.binom.ppf(0.999, n_trials, level)


def test_the_interval_is_that_of_scipy() -> None:
    values, samples = np.random.default_rng(2).exponential(size=300), 20_000
    reference = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=samples, rng=np.random.default_rng(3)
    ).confidence_interval
    found = bootstrap_interval(values, samples=samples)
    # Each end is a 2.5% quantile of random means: its standard error is sqrt(p (1 - p) / samples) over the density.
    density = stats.norm.pdf(stats.norm.ppf(0.025)) / (values.std() / np.sqrt(len(values)))
    standard_error = np.sqrt(0.025 * 0.975 / samples) / density
    np.testing.assert_allclose(found, reference, rtol=0, atol=5 * np.sqrt(2) * standard_error)


def test_lists_without_a_value_do_not_change_the_interval() -> None:
    values = np.random.default_rng(4).random(50)
    assert bootstrap_interval(with_nans(values), seed=7) == bootstrap_interval(values, seed=7)


def test_the_seed_decides_the_interval() -> None:
    values = np.random.default_rng(5).random(50)
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values, seed=2)


def test_fewer_than_two_values_show_no_spread() -> None:
    for values in ([], [0.5], [np.nan, 0.5], [np.nan]):
        assert np.isnan(bootstrap_interval(values)).all()
    assert bootstrap_interval([0.5, 0.5]) == (0.5, 0.5)


@pytest.mark.parametrize("options", [{"samples": 0}, {"level": 0.0}, {"level": 1.0}, {"level": 95}])
def test_impossible_intervals_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        bootstrap_interval([0.0, 1.0], **options)  # type: ignore[arg-type]


# The paired test


def enumerated_p_value(differences: list[int]) -> float:
    """The share of all sign vectors whose sum is at least as far from 0 as the sum observed, in whole numbers."""
    observed = abs(sum(differences))
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return sum(total >= observed for total in sums) / len(sums)


@settings(max_examples=40)
@given(st.lists(st.integers(-6, 6), min_size=1, max_size=8))
def test_the_p_value_is_that_of_all_sign_flips(tenths: list[int]) -> None:
    samples = 4000
    exact = enumerated_p_value(tenths)
    found = randomisation_test(np.array(tenths) / 10, np.zeros(len(tenths)), samples=samples)  # 0.1 + 0.2 is not 0.3
    assert abs(found - exact) <= 5 * np.sqrt(exact * (1 - exact) / samples) + 1 / samples


def test_the_p_value_is_that_of_scipy() -> None:
    rng = np.random.default_rng(6)
    a = rng.random(12)
    b = a + rng.normal(0.15, 0.3, size=12)
    exact = stats.permutation_test(
        (a, b),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=5000,
    ).pvalue
    samples = 20_000
    assert 0.01 < exact < 0.5
    assert abs(randomisation_test(a, b, samples=samples) - exact) <= 5 * np.sqrt(exact * (1 - exact) / samples)


def test_p_values_are_uniform_when_there_is_no_difference() -> None:
    rng = np.random.default_rng(7)
    p_values = [
        randomisation_test(*rng.random((2, 40)), seed=seed, samples=400)  # every trial has its own flips
        for seed in range(600)
    ]
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_a_clear_difference_has_the_smallest_p_value_there_is() -> None:
    a = np.random.default_rng(8).random(100)
    assert randomisation_test(a + 1, a, samples=999) == 1 / 1000


@given(st.integers(0, 2**32), st.integers(0, 30))
def test_the_paired_test_is_symmetrical(seed: int, n: int) -> None:
    a, b = np.random.default_rng(seed).random((2, n))
    assert randomisation_test(a, b, seed=seed, samples=200) == randomisation_test(b, a, seed=seed, samples=200)


def test_pairs_with_a_missing_side_and_equal_pairs_change_nothing() -> None:
    a, b = np.random.default_rng(9).random((2, 20))
    expected = randomisation_test(a, b, seed=3)
    left = np.concatenate([a, [np.nan, 5.0, np.nan, 0.25]])
    right = np.concatenate([b, [5.0, np.nan, np.nan, 0.25]])
    assert randomisation_test(left, right, seed=3) == expected


def test_one_pair_or_none_proves_nothing() -> None:
    assert randomisation_test([], []) == 1
    assert randomisation_test([np.nan], [1.0]) == 1
    assert randomisation_test([2.0], [1.0]) == 1


def test_unpaired_values_are_refused() -> None:
    with pytest.raises(UsageError, match=r"got \(2,\) and \(3,\)"):
        randomisation_test([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(UsageError, match="samples"):
        randomisation_test([1.0], [2.0], samples=0)


# Size


def test_ten_thousand_lists_stay_within_bounds() -> None:
    a, b = np.random.default_rng(10).random((2, 10_000))
    tracemalloc.start()
    try:
        bootstrap_interval(a)
        randomisation_test(a, b)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20  # all draws at once would be 160 MB and 800 MB


# Seeds and lists


def every_two_way_mean(values: np.ndarray) -> list[float]:
    """The means of all equally likely draws of seeds and lists."""
    n_seeds, n_lists = values.shape
    return [
        float(np.nanmean(values[np.ix_(seeds, lists)]))
        for seeds in product(range(n_seeds), repeat=n_seeds)
        for lists in product(range(n_lists), repeat=n_lists)
        if not np.isnan(values[np.ix_(seeds, lists)]).all()
    ]


@pytest.mark.parametrize("shape", [(1, 4), (2, 3), (3, 3), (2, 4)])
@pytest.mark.parametrize("missing", [False, True])
def test_the_two_way_interval_is_that_of_all_draws(shape: tuple[int, int], missing: bool) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    if missing:
        values[:, 1] = np.nan
    expected = np.quantile(every_two_way_mean(values), [0.1, 0.9], method="median_unbiased")
    found = two_way_interval(values, samples=100_000, level=0.8)
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_leading_axes_share_their_draws() -> None:
    values = np.random.default_rng(1).normal(size=(2, 3, 20))
    values[0, :, 5] = np.nan
    together = two_way_interval(values, samples=500, seed=3)
    assert together.shape == (2, 2)
    for one, interval in zip(values, together, strict=True):
        np.testing.assert_allclose(two_way_interval(one, samples=500, seed=3), interval)


def test_seeds_that_differ_widen_the_interval() -> None:
    lists = np.random.default_rng(2).normal(size=200)
    same, different = np.stack([lists] * 3), np.stack([lists - 1, lists, lists + 1])
    widths = [float(np.diff(two_way_interval(values))[0]) for values in (same, different)]
    assert widths[1] > 3 * widths[0]


def test_too_few_lists_have_no_two_way_interval() -> None:
    values = np.full((3, 2, 4), np.nan)
    values[1, :, 0] = 1.0
    values[2, :, :2] = 1.0
    found = two_way_interval(values)
    assert np.isnan(found[:2]).all()
    assert found[2].tolist() == [1, 1]
    assert np.isnan(two_way_interval(np.zeros((0, 0)))).all()
    with pytest.raises(UsageError, match="level"):
        two_way_interval([[1.0, 2.0]], level=1.5)
