"""Coordinate Ascent: its line search equals ranking at every step, it only climbs, and it learns a sum of columns."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from seq2slate.baselines.coordinate_ascent import Climb, CoordinateAscent, LineSearch, ScoredNdcg
from seq2slate.baselines.linear import scaled_columns
from seq2slate.data.features import FeatureTransform
from seq2slate.data.letor import read_letor
from seq2slate.data.lists import FloatArray, ItemLists
from seq2slate.data.ranker import Ranker, slates_from_scores
from seq2slate.errors import DataError, UsageError
from seq2slate.metrics import Values, ndcg
from seq2slate.saving import load_saved
from tests.checks import check_ranker, mixed_lists

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def lists_with_an_order(n_lists: int, seed: int) -> ItemLists:
    """Clicks on what is high in column 0 and low in column 2; neither alone says enough."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_lists * 10, 4))
    return ItemLists(features, np.arange(n_lists + 1) * 10, labels=features[:, 0] - features[:, 2] > 2)


def graded_lists(seed: int) -> ItemLists:
    lists = mixed_lists(seed, longest=30)
    return replace(lists, labels=lists.relevance)


def obvious_ndcg(lists: ItemLists, scores: npt.NDArray[Any]) -> Values:
    """NDCG@10 of the lists with positives, as reports have it."""
    batch = lists.batch()
    values = ndcg(slates_from_scores(batch.pad(scores), batch.mask), batch.labels, mask=batch.mask, k=10)
    return values[~np.isnan(values)]


@pytest.mark.parametrize("make", [graded_lists, mixed_lists])
def test_the_quick_ndcg_equals_the_metric_ties_included(make: Callable[[int], ItemLists]) -> None:
    lists = make(3)
    rng = np.random.default_rng(0)
    for scores in (np.zeros(lists.n_items), rng.integers(0, 3, lists.n_items) / 2, rng.normal(size=lists.n_items)):
        quick = ScoredNdcg.of(lists, "training")
        expected = obvious_ndcg(lists, scores)
        np.testing.assert_allclose(np.sort(quick(scores)), np.sort(expected), rtol=1e-12)
        assert quick.mean(scores) == pytest.approx(expected.mean(), rel=1e-12)


def test_a_line_search_by_hand() -> None:
    """The second item overtakes the first when more than 1 of the column is added: from then on NDCG is 1."""
    line = LineSearch.of(ItemLists(np.zeros((2, 1)), [0, 2], labels=[0, 1]))
    values = line.values(np.array([1.0, 0.0]), np.array([0, 1], np.float32), 1.0)
    np.testing.assert_allclose(values, np.where(line.multiples > 1, 1, 1 / np.log2(3)))
    assert line.multiples.max() > 1


@pytest.mark.parametrize("scale", [0.3, 40.0])
@pytest.mark.parametrize("start", ["random", "all the same"])
def test_a_line_search_equals_ranking_at_every_step(start: str, scale: float) -> None:
    lists = ItemLists.concat([graded_lists(seed) for seed in range(20)])
    rng = np.random.default_rng(1)
    scores = rng.normal(size=lists.n_items) if start == "random" else np.zeros(lists.n_items)
    scores = scores.astype(np.float32).astype(np.float64)
    for column in (rng.normal(size=lists.n_items), rng.integers(0, 2, lists.n_items) * np.pi):
        narrow = column.astype(np.float32)
        line = LineSearch.of(lists)
        expected = [obvious_ndcg(lists, scores + step * scale * narrow).sum() for step in line.multiples]
        np.testing.assert_allclose(line.values(scores, narrow, scale), expected, rtol=1e-9)


def test_many_blocks_of_pairs_are_as_good_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = graded_lists(0)
    rng = np.random.default_rng(1)
    scores, column = rng.normal(size=lists.n_items), rng.normal(size=lists.n_items).astype(np.float32)
    line = LineSearch.of(lists)
    whole = line.values(scores, column, 1.0)
    monkeypatch.setattr("seq2slate.baselines.coordinate_ascent._BLOCK_PAIRS", 7)
    np.testing.assert_allclose(line.values(scores, column, 1.0), whole, rtol=1e-12)


def test_it_only_climbs() -> None:
    lists = lists_with_an_order(60, 0)
    was_seen = np.random.default_rng(2).random(lists.n_items) < 0.5
    noisy = ItemLists(lists.features, lists.offsets, labels=was_seen * np.asarray(lists.labels))
    columns = scaled_columns(FeatureTransform.fit(noisy), noisy)
    climb = Climb(columns, LineSearch.of(noisy), ScoredNdcg.of(noisy, "training"))
    start = np.random.default_rng(3).normal(size=(1, columns.shape[1]))[0]
    path = [start, *islice(climb.sweeps(start, np.random.default_rng(4)), 5)]
    heights = [obvious_ndcg(noisy, columns @ weights).mean() for weights in path]
    assert len(path) > 2
    assert (np.diff(heights) >= 0).all()
    assert heights[-1] > heights[0] + 0.1


class WrongWay(LineSearch):
    """Says that the longest step is the best."""

    def values(self, scores: Values, column: FloatArray, length: float) -> Values:
        return self.multiples


def test_no_step_is_taken_that_does_not_climb() -> None:
    lists = lists_with_an_order(60, 0)
    columns = scaled_columns(FeatureTransform.fit(lists), lists)
    climb = Climb(columns, WrongWay.of(lists), ScoredNdcg.of(lists, "training"))
    best = np.array([1.0, 0, -1, 0, 0])
    np.testing.assert_array_equal(next(climb.sweeps(best, np.random.default_rng(0))), best)


def test_it_learns_a_sum_of_columns() -> None:
    train, valid, test = (lists_with_an_order(count, seed) for seed, count in enumerate((200, 50, 100)))
    ranker = CoordinateAscent(starts=2).fit(train, valid)
    assert obvious_ndcg(test, ranker.score_items(test)).mean() > 0.95
    assert max(obvious_ndcg(test, sign * column).mean() for column in test.features.T for sign in (1, -1)) < 0.9
    assert ranker.weights_[0] > 0 > ranker.weights_[2]


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not there")
def test_it_learns_from_real_grades() -> None:
    train, valid, test = (
        read_letor(SHARED / f"mq2008.fold{fold}.txt.gz").shuffle_items(seed=fold) for fold in (1, 2, 3)
    )
    ranker = CoordinateAscent().fit(train, valid)
    learned, random = (
        obvious_ndcg(test, scores).mean() for scores in (ranker.score_items(test), np.zeros(test.n_items))
    )
    assert learned > random + 0.15


def test_some_of_the_lists_are_enough_and_a_seed_repeats() -> None:
    train, valid = lists_with_an_order(200, 0), lists_with_an_order(50, 1)
    first, again, other = (CoordinateAscent(max_pairs=500, seed=seed).fit(train, valid) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.weights_, again.weights_)
    assert (first.weights_ != other.weights_).any()
    assert obvious_ndcg(valid, first.score_items(valid)).mean() > 0.9


@pytest.mark.parametrize("make", [graded_lists, mixed_lists])
def test_it_passes_the_battery_and_survives_saving(make: Callable[[int], ItemLists], tmp_path: Path) -> None:
    lists = make(0)
    ranker = CoordinateAscent(starts=2, sweeps=2).fit(lists, lists)

    def save_load(_: Ranker) -> Ranker:
        ranker.save(tmp_path / "ascent")
        return CoordinateAscent.from_saved(load_saved(tmp_path / "ascent"))

    check_ranker(ranker, lists, save_load=save_load)


def test_it_says_what_is_missing() -> None:
    lists = lists_with_an_order(20, 0)
    with pytest.raises(DataError, match="validation lists have no labels"):
        CoordinateAscent().fit(lists, replace(lists, labels=None))
    with pytest.raises(DataError, match="no training list has a positive"):
        CoordinateAscent().fit(ItemLists(lists.features, lists.offsets, labels=np.zeros(lists.n_items)), lists)
    with pytest.raises(UsageError, match="at least 1"):
        CoordinateAscent(starts=0).fit(lists, lists)
    with pytest.raises(DataError, match="feature"):
        CoordinateAscent(starts=1, sweeps=1).fit(lists, lists).rank(ItemLists(np.zeros((2, 3)), [0, 2]).batch())
