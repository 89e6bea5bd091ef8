"""World `web30k` has the columns, correlations, lengths and grades of the sample that its figures were fitted to."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata

from benchmarks.worlds import effective_columns
from seq2slate.data.files import read
from seq2slate.data.lists import ItemLists
from seq2slate.simulation.synthetic import make_synthetic_lists
from seq2slate.simulation.web30k import FIGURES, NODES, Web30kFigures, Web30kWorld, _Quantiles
from tests.test_shared_data import DATA
from tests.test_synthetic import grades_of, probability_of
from tools.fit_web30k import GRADE_FACTOR, constant_in_lists, covariances, fit_figures, normal_scores

SAMPLE = DATA / "mslr_sample.txt.gz"
with_sample = pytest.mark.skipif(not SAMPLE.exists(), reason=f"the real data are not here: {SAMPLE}")
FIGURES_OF_WORLD = Web30kFigures.read()


@cache
def lists_of_world() -> ItemLists:
    """About 33,000 items."""
    return make_synthetic_lists(300, seed=0)


@cache
def sample() -> ItemLists:
    return read(SAMPLE)


def within_lists(lists: ItemLists, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Deviations from the means of the lists."""
    means = np.add.reduceat(values, lists.offsets[:-1]) / lists.lengths[:, None]
    return values - means[lists.list_index]


# The figures


def test_the_figures_are_a_copula() -> None:
    figures, variance = FIGURES_OF_WORLD, np.zeros(137)
    for factor in (figures.between, figures.within):
        np.testing.assert_array_equal(factor, np.tril(factor))
        variance += (factor.astype(np.float64) ** 2).sum(axis=1)
    np.testing.assert_allclose(variance, 1, atol=1e-5)
    assert (np.diff(figures.quantiles, axis=1) >= 0).all()
    assert figures.quantiles.shape == (136, len(NODES))
    assert figures.grade_shares.sum() == pytest.approx(1)
    assert FIGURES.stat().st_size < 500_000


@with_sample
def test_the_fit_gives_the_shipped_figures(tmp_path: Path) -> None:
    figures = fit_figures(sample())
    for name, shipped in vars(FIGURES_OF_WORLD).items():
        np.testing.assert_allclose(getattr(figures, name), shipped, rtol=1e-4, atol=1e-4, err_msg=name)
    for name in ("a.npz", "b.npz"):
        figures.write(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@with_sample
def test_the_factors_are_those_of_the_normal_scores_of_the_sample() -> None:
    """Within lists all but the grade's are as they are; between lists the covariance is shrunk, but still close."""
    scores = normal_scores(np.column_stack([sample().features.astype(np.float64), grades_of(sample())]))
    own = within_lists(sample(), scores)
    covariance = own.T @ own / (sample().n_items - len(sample()))
    factor = FIGURES_OF_WORLD.within.astype(np.float64)
    varies = np.flatnonzero(factor.any(axis=1))[:-1]
    np.testing.assert_allclose(
        (factor @ factor.T)[np.ix_(varies, varies)], covariance[np.ix_(varies, varies)], atol=1e-4
    )
    np.testing.assert_allclose((factor @ factor.T)[-1, varies], GRADE_FACTOR * covariance[-1, varies], atol=1e-4)
    between, _ = covariances(scores, sample(), constant_in_lists(sample()))
    means = scores - own
    assert np.abs(between - means.T @ means / len(means)).mean() < 0.03
    assert np.linalg.eigvalsh(between).min() > 1e-4


# The lists


def test_normal_scores_of_the_lists_have_the_covariance_of_the_factors() -> None:
    lengths = np.full(400, 60)
    scores = Web30kWorld(None, seed=1)._draw_scores(lengths).astype(np.float64)
    lists = ItemLists(np.zeros((24_000, 1)), np.arange(0, 24_001, 60))
    own = within_lists(lists, scores)
    factor = FIGURES_OF_WORLD.within[:, :-1].astype(np.float64)
    expected = factor @ factor.T
    error = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / (24_000 - 400))
    assert (np.abs(own.T @ own / (24_000 - 400) - expected) < 6 * error + 1e-6).all()
    means = (scores - own)[::60]
    between = FIGURES_OF_WORLD.between.astype(np.float64)
    expected = between @ between.T + factor @ factor.T / 60
    error = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / 400)
    assert (np.abs(means.T @ means / 400 - expected) < 6 * error).all()


@with_sample
def test_columns_have_the_quantiles_of_the_sample() -> None:
    """Normal scores that are spread evenly give back the columns of the sample, tails and shared values included."""
    real = np.sort(sample().features, axis=0)
    scores = np.repeat(ndtri((np.arange(len(real)) + 0.5) / len(real))[:, None], 136, axis=1).astype(np.float32)
    drawn = np.empty_like(real)
    _Quantiles(FIGURES_OF_WORLD).write(scores, drawn)
    np.testing.assert_array_equal(drawn[0], real[0])
    np.testing.assert_allclose(drawn[-1], real[-1], rtol=0.02)  # the largest lies between two nodes
    deviation = real.std(axis=0, dtype=np.float64)
    np.testing.assert_allclose(drawn.std(axis=0, dtype=np.float64), deviation, rtol=0.02)
    distance = np.array([_largest_difference(a, b) for a, b in zip(drawn.T, real.T, strict=True)])
    assert distance.max() < 0.005  # the share of items between two nodes is 0.3% at most


def _largest_difference(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """The largest distance of two distribution functions (Kolmogorov-Smirnov)."""
    values = np.union1d(a, b)
    return float(np.abs(np.searchsorted(a, values, "right") - np.searchsorted(b, values, "right")).max() / len(a))


@with_sample
def test_columns_of_generated_lists_are_distributed_as_in_the_sample() -> None:
    """Items of a list go together, so the number of lists, not of items, says how close shares must be."""
    lists, real = make_synthetic_lists(2000, items=20, seed=4), sample()
    real_zeros, zeros = ((one.features == 0).mean(axis=0) for one in (real, lists))
    np.testing.assert_allclose(zeros, real_zeros, atol=0.04)
    for level in (0.1, 0.5, 0.9, 0.99, 0.999):
        cut = np.quantile(real.features, level, axis=0, method="inverted_cdf")
        share, real_share = ((one.features <= cut).mean(axis=0) for one in (lists, real))
        np.testing.assert_allclose(share, real_share, atol=4 * np.sqrt(level * (1 - level) / len(lists)) + 0.003)


@with_sample
def test_whole_numbers_stay_whole_and_columns_of_queries_the_same_in_a_list() -> None:
    lists, real = lists_of_world(), sample()
    for whole in ((one.features == np.floor(one.features)).all(axis=0) for one in (lists, real)):
        np.testing.assert_array_equal(whole, FIGURES_OF_WORLD.whole)
    np.testing.assert_array_equal(constant_in_lists(lists), constant_in_lists(real))


@with_sample
def test_few_columns_decide_the_distances_as_in_the_sample() -> None:
    assert effective_columns(sample()).mean() == pytest.approx(1.9, abs=0.05)
    assert 1.5 < effective_columns(lists_of_world()).mean() < 1.9


@with_sample
def test_ranks_correlate_within_lists_as_in_the_sample() -> None:
    """What a reader of the columns sees, not the scores behind them; ties at 0 weaken the correlations of the world."""
    dense = ((sample().features == 0).mean(axis=0) < 0.15) & ~constant_in_lists(sample())[:-1]
    assert dense.sum() > 40
    correlations = []
    for lists in (lists_of_world()[:200], sample()):
        ranks = within_lists(lists, rankdata(lists.features[:, dense], axis=0))
        correlations.append(np.asarray(np.corrcoef(ranks, rowvar=False))[np.triu_indices(dense.sum(), 1)])
    generated, real = correlations
    assert np.corrcoef(generated, real)[0, 1] > 0.95
    assert np.abs(generated - real).mean() < 0.06


@with_sample
def test_lengths_are_those_of_the_sample() -> None:
    lengths = make_synthetic_lists(300, items=float(sample().lengths.mean()), seed=5).lengths
    levels = [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1]
    np.testing.assert_allclose(np.quantile(lengths, levels), np.quantile(sample().lengths, levels), rtol=0.06, atol=4)


def test_grades_have_the_shares_of_the_sample() -> None:
    lists = make_synthetic_lists(8000, items=10, seed=6)
    for grade, share in enumerate(FIGURES_OF_WORLD.grade_shares):
        in_list = np.add.reduceat(grades_of(lists) == grade, lists.offsets[:-1], dtype=float)
        error = np.std(in_list - share * lists.lengths) * np.sqrt(len(lists)) / lists.n_items
        assert in_list.sum() / lists.n_items == pytest.approx(share, abs=4 * error)
        assert error < 0.06 * share


def test_the_probability_is_the_normal_tail_of_the_score_that_the_columns_and_the_list_give() -> None:
    lists = make_synthetic_lists(20, items=15, seed=8)
    known = Web30kWorld(None, seed=8)._draw_scores(lists.lengths)[:, -1].astype(np.float64)
    cut = ndtri(FIGURES_OF_WORLD.grade_shares[:2].sum())
    noise = float(FIGURES_OF_WORLD.within[-1, -1])
    np.testing.assert_allclose(probability_of(lists), ndtr((known - cut) / noise), rtol=1e-5)
