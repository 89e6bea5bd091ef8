"""AdaRank and RankBoost against exhaustive search and explicit pairs, and what every ranker passes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from seq2slate.baselines.boosting import (
    AdaRank,
    PairWeights,
    RankBoost,
    added_columns,
    added_thresholds,
    choose_weak_ranker,
    quantile_thresholds,
    raw_columns,
    weak_measures,
)
from seq2slate.baselines.coordinate_ascent import ScoredNdcg
from seq2slate.baselines.linear import scaled_columns
from seq2slate.data.features import FeatureTransform
from seq2slate.data.letor import read_letor
from seq2slate.data.lists import FloatArray, ItemLists
from seq2slate.data.ranker import Ranker, slates_from_scores
from seq2slate.errors import DataError, UsageError
from seq2slate.metrics import Values, ndcg
from seq2slate.saving import SavedRanker, load_saved
from tests.checks import check_ranker, mixed_lists

pytestmark = pytest.mark.filterwarnings("ignore::seq2slate.errors.DataWarning")  # odd labels, and leaks to be learned

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def lists_with_an_order(n_lists: int, seed: int) -> ItemLists:
    """Clicks on what is high in column 0 and low in column 2."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_lists * 10, 4))
    return ItemLists(features, np.arange(n_lists + 1) * 10, labels=features[:, 0] - features[:, 2] > 2)


def graded_lists(seed: int) -> ItemLists:
    lists = mixed_lists(seed, longest=30)
    return replace(lists, labels=lists.relevance)


def pairs_by_hand() -> ItemLists:
    """Four lists of two items: the only column puts the positive first in three, the base order in two."""
    return ItemLists([[1], [0], [0], [1], [1], [0], [1], [0]], [0, 2, 4, 6, 8], labels=[1, 0, 0, 1, 1, 0, 0, 1])


def obvious_ndcg(lists: ItemLists, scores: npt.NDArray[Any]) -> Values:
    """NDCG@10 of each list, as reports have it; NaN without positives."""
    batch = lists.batch()
    return ndcg(slates_from_scores(batch.pad(scores), batch.mask), batch.labels, mask=batch.mask, k=10)


def mean_ndcg(lists: ItemLists, scores: npt.NDArray[Any]) -> float:
    return float(np.nanmean(obvious_ndcg(lists, scores)))


def training(lists: ItemLists) -> tuple[FloatArray, ScoredNdcg]:
    return scaled_columns(FeatureTransform.fit(lists), lists), ScoredNdcg.of(lists, "training")


# AdaRank


def test_adarank_by_hand() -> None:
    """The column has NDCG 1 in three lists of four and 1 / log2(3) in the last; nothing can be added to it."""
    agreement = (3 + 1 / np.log2(3)) / 4
    weights = AdaRank().fit(pairs_by_hand(), pairs_by_hand()).weights_
    np.testing.assert_allclose(weights, [np.log((1 + agreement) / (1 - agreement)) / 2, 0], rtol=1e-6)


@pytest.mark.parametrize("make", [graded_lists, mixed_lists])
def test_adarank_takes_what_an_exhaustive_search_takes(make: Callable[[int], ItemLists]) -> None:
    lists = ItemLists.concat([make(seed) for seed in range(5)])
    columns, measure = training(lists)
    scores = np.random.default_rng(0).normal(size=lists.n_items)
    of_lists = obvious_ndcg(lists, scores)
    list_weights = np.exp(-of_lists) / np.nansum(np.exp(-of_lists))
    values = {
        (column, sign): float(np.nansum(list_weights * obvious_ndcg(lists, sign * columns[:, column])))
        for column in range(columns.shape[1])
        for sign in (1, -1)
    }
    best = max(values, key=lambda key: values[key])
    weak = weak_measures(columns, measure)
    chosen, weight = choose_weak_ranker(weak, measure(scores), np.zeros(len(weak), dtype=bool))
    assert (chosen // 2, -1 if chosen % 2 else 1) == best
    assert weight == pytest.approx(np.log((1 + values[best]) / (1 - values[best])) / 2)


def test_adarank_climbs_until_nothing_helps() -> None:
    columns, measure = training(lists_with_an_order(100, 0))
    path = list(added_columns(columns, measure))
    values = [measure.mean(columns @ weights) for weights in path]
    assert len(values) > 2
    assert (np.diff(values) > 0).all()
    weak, scores = weak_measures(columns, measure), columns @ path[-1]
    for number in range(len(weak)):
        _, weight = choose_weak_ranker(weak, measure(scores), np.arange(len(weak)) != number)
        signed = -weight if number % 2 else weight
        assert measure.mean(scores + signed * columns[:, number // 2]) <= values[-1]


def test_adarank_keeps_the_best_round_for_validation() -> None:
    train, valid = lists_with_an_order(100, 0), lists_with_an_order(5, 1)
    transform = FeatureTransform.fit(train)
    path = list(added_columns(*training(train)))
    values = [mean_ndcg(valid, scaled_columns(transform, valid) @ weights) for weights in path]
    best = int(np.argmax(values))
    assert best < len(path) - 1
    np.testing.assert_allclose(AdaRank().fit(train, valid).weights_, path[best], rtol=1e-6)


# RankBoost


def explicit_pairs(lists: ItemLists) -> list[tuple[int, int]]:
    """The better and the worse item of every pair."""
    labels = np.asarray(lists.labels)
    rows = range(lists.n_items)
    return [(a, b) for a in rows for b in rows if lists.list_index[a] == lists.list_index[b] and labels[a] > labels[b]]


def obvious_rankboost(lists: ItemLists, n_thresholds: int) -> Iterator[tuple[int, float, float]]:
    """RankBoost with a weight for every pair."""
    columns = raw_columns(lists)
    better, worse = np.array(explicit_pairs(lists)).T
    weights = np.full(len(better), 1 / len(better))
    thresholds = quantile_thresholds(columns, n_thresholds)
    while True:
        best = (0.0, 0, 0.0)
        for column, of_column in enumerate(thresholds):
            for threshold in of_column:
                above = (columns[:, column] > threshold).astype(float)
                agreement = float(weights @ (above[better] - above[worse]))
                if abs(agreement) > abs(best[0]) + 1e-12:
                    best = (agreement, column, float(threshold))
        agreement, column, threshold = best
        alpha = np.log((1 + agreement) / (1 - agreement)) / 2
        above = (columns[:, column] > threshold).astype(float)
        weights *= np.exp(alpha * (above[worse] - above[better]))
        weights /= weights.sum()
        yield column, threshold, alpha


def test_rankboost_by_hand() -> None:
    """The column orders three pairs of four right: r is 1/2, and afterwards right and wrong pairs weigh the same."""
    pairs = PairWeights.of(pairs_by_hand())
    column, threshold, weight = next(added_thresholds(raw_columns(pairs_by_hand()), pairs, 4))
    assert (column, threshold) == (0, 0.0)
    assert weight == pytest.approx(np.log(3) / 2)
    potentials = pairs.potentials(weight * raw_columns(pairs_by_hand())[:, 0].astype(float))
    right, wrong = 1 / 6, 1 / 2
    np.testing.assert_allclose(potentials, [right, -right, -right, right, right, -right, -wrong, wrong])


@pytest.mark.parametrize("make", [graded_lists, mixed_lists])
def test_two_numbers_an_item_equal_a_weight_for_every_pair(make: Callable[[int], ItemLists]) -> None:
    lists = make(1)
    scores = np.random.default_rng(0).normal(size=lists.n_items) * 5
    expected, total = np.zeros(lists.n_items), 0.0
    for better, worse in explicit_pairs(lists):
        weight = np.exp(scores[worse] - scores[better])
        expected[better] += weight
        expected[worse] -= weight
        total += weight
    np.testing.assert_allclose(PairWeights.of(lists).potentials(scores), expected / total, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("make", [graded_lists, mixed_lists])
def test_rankboost_takes_the_rounds_of_explicit_pairs(make: Callable[[int], ItemLists]) -> None:
    lists = ItemLists.concat([make(seed) for seed in range(3)])
    rounds = islice(added_thresholds(raw_columns(lists), PairWeights.of(lists), 5), 12)
    expected = islice(obvious_rankboost(lists, 5), 12)
    np.testing.assert_allclose(np.array(list(rounds)), np.array(list(expected)), rtol=1e-9)


def test_rankboost_keeps_the_best_round_for_validation() -> None:
    train, valid = lists_with_an_order(100, 0), lists_with_an_order(5, 1)
    columns, scores, values = raw_columns(valid), np.zeros(valid.n_items), []
    for column, threshold, weight in islice(added_thresholds(raw_columns(train), PairWeights.of(train), 32), 30):
        scores += weight * (columns[:, column] > threshold)
        values.append(mean_ndcg(valid, scores))
    n_best = int(np.argmax(values)) + 1
    assert n_best < 30
    assert len(RankBoost(rounds=30).fit(train, valid).stump_columns_) == n_best


def test_scores_far_apart_do_not_overflow() -> None:
    lists = graded_lists(0)
    scores = 1e4 * lists.list_index + np.random.default_rng(0).normal(size=lists.n_items)
    moved = PairWeights.of(lists).potentials(scores)
    np.testing.assert_allclose(moved, PairWeights.of(lists).potentials(scores - 1e4 * lists.list_index), rtol=1e-9)


def test_thresholds_are_quantiles_that_occur() -> None:
    columns = np.column_stack([np.arange(10), np.repeat([3, 7], 5)]).astype(np.float32)
    np.testing.assert_array_equal(quantile_thresholds(columns, 4), [[1, 3, 5, 7], [3, 7, np.inf, np.inf]])


# Both

BOTH: dict[str, type[AdaRank] | type[RankBoost]] = {"adarank": AdaRank, "rankboost": RankBoost}
OPEN: dict[str, Callable[[SavedRanker], Ranker]] = {"adarank": AdaRank.from_saved, "rankboost": RankBoost.from_saved}


@pytest.mark.parametrize("name", BOTH)
def test_they_learn_a_sum_of_columns(name: str) -> None:
    train, valid, test = (lists_with_an_order(count, seed) for seed, count in enumerate((300, 80, 100)))
    ranker = BOTH[name]().fit(train, valid)
    single = [mean_ndcg(test, sign * column) for column in test.features.T for sign in (1, -1)]
    assert mean_ndcg(test, ranker.score_items(test)) > max(0.9, max(single) + 0.05)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not there")
@pytest.mark.parametrize("name", BOTH)
def test_they_learn_from_real_grades(name: str) -> None:
    train, valid, test = (
        read_letor(SHARED / f"mq2008.fold{fold}.txt.gz").shuffle_items(seed=fold) for fold in (1, 2, 3)
    )
    ranker = BOTH[name]().fit(train, valid)
    assert mean_ndcg(test, ranker.score_items(test)) > mean_ndcg(test, np.zeros(test.n_items)) + 0.15


@pytest.mark.parametrize("name", BOTH)
def test_a_repeat_is_the_same_and_more_rounds_are_better(name: str) -> None:
    train, valid = lists_with_an_order(60, 0), lists_with_an_order(30, 1)
    long, again, short = (BOTH[name](rounds=rounds).fit(train, valid) for rounds in (60, 60, 1))
    np.testing.assert_array_equal(long.score_items(valid), again.score_items(valid))
    assert mean_ndcg(valid, long.score_items(valid)) > mean_ndcg(valid, short.score_items(valid))


@pytest.mark.parametrize("make", [graded_lists, mixed_lists])
@pytest.mark.parametrize("name", BOTH)
def test_they_pass_the_battery_and_survive_saving(name: str, make: Callable[[int], ItemLists], tmp_path: Path) -> None:
    lists = make(0)
    ranker = BOTH[name](rounds=20).fit(lists, lists)

    def save_load(_: Ranker) -> Ranker:
        ranker.save(tmp_path / name)
        saved = load_saved(tmp_path / name)
        return OPEN[saved.kind](saved)

    check_ranker(ranker, lists, save_load=save_load)


@pytest.mark.parametrize("name", BOTH)
def test_they_say_what_is_missing(name: str) -> None:
    lists = lists_with_an_order(20, 0)
    kind = BOTH[name]
    bare, empty = replace(lists, labels=None), ItemLists(lists.features, lists.offsets, labels=np.zeros(lists.n_items))
    with pytest.raises(DataError, match="validation lists have no labels"):
        kind().fit(lists, bare)
    with pytest.raises(DataError, match="training lists have no labels"):
        kind().fit(bare, lists)
    with pytest.raises(DataError, match="no training list has a positive: give lists with a click, or a grade above 0"):
        kind().fit(empty, lists)
    with pytest.raises(UsageError, match="at least 1"):
        kind(rounds=0).fit(lists, lists)
    with pytest.raises(DataError, match="feature"):
        kind(rounds=2).fit(lists, lists).rank(ItemLists(np.zeros((2, 3)), [0, 2]).batch())


def test_rankboost_needs_pairs() -> None:
    lists = lists_with_an_order(20, 0)
    with pytest.raises(DataError, match="two items with different labels: give lists with clicks or grades"):
        RankBoost().fit(replace(lists, labels=np.ones(lists.n_items, np.float32)), lists)


def test_rankboost_needs_thresholds_that_fit_a_byte() -> None:
    with pytest.raises(UsageError, match="1 to 255"):
        RankBoost(thresholds=256).fit(pairs_by_hand(), pairs_by_hand())


def test_columns_that_say_nothing_leave_the_base_order() -> None:
    """The columns are constant, and the base position is right in one list and wrong in the other: r is 0 for all."""
    lists = ItemLists(np.ones((4, 2)), [0, 2, 4], labels=[1, 0, 0, 1])
    ranker = RankBoost().fit(lists, lists)
    assert len(ranker.stump_columns_) == 0
    np.testing.assert_array_equal(ranker.rank(lists.batch()), [[0, 1], [0, 1]])
