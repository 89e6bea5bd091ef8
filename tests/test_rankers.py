"""Every ranker that needs no fitting through the battery, and broken ones to see that the battery finds them out."""

from dataclasses import dataclass, field, replace
from itertools import count
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.baselines.columns import READS_CATEGORIES
from seq2slate.data.lists import Batch, IntArray, ItemLists
from seq2slate.data.ranker import (
    NO_ITEM,
    BaseOrder,
    RandomOrder,
    Ranker,
    base_slates,
    complete_slates,
    empty_slates,
    slates_from_scores,
    slot_of_item,
)
from seq2slate.errors import DataError
from seq2slate.estimator import ESTIMATORS, make_estimator
from seq2slate.simulation.click_models import CLICK_MODELS, click_model
from tests.checks import check_ranker, mixed_lists

pytestmark = pytest.mark.filterwarnings("ignore::seq2slate.errors.DataWarning")  # odd labels, and leaks to be learned


def rankers() -> dict[str, Ranker]:
    found: dict[str, Ranker] = {"base": BaseOrder(), "random": RandomOrder(seed=3)}
    for name in CLICK_MODELS:
        user = click_model(name)
        found[f"logged {name}"] = LoggedCeiling(user, repeats=40)
        found[f"shown {name}"] = ShownCeiling(user, k=4, exact_slates=60)
        found[f"shown {name}, sampled states"] = ShownCeiling(user, k=6, states=4, beam=3, exact_slates=1)
    return found


@pytest.mark.parametrize("name", rankers())
def test_battery(name: str) -> None:
    check_ranker(rankers()[name], mixed_lists(seed=1))


def test_battery_takes_the_default_ceiling() -> None:
    check_ranker(ShownCeiling(click_model("diverse")), mixed_lists(seed=2))


# Lists without a dense column


def ids_only(n_lists: int, seed: int) -> ItemLists:
    """Clicks on one of three colours; the lists have text columns alone."""
    colours = np.random.default_rng(seed).choice(["red", "green", "blue"], size=n_lists * 6)
    clicks = colours == "red"
    context = {"device": ["phone", "desk"] * (n_lists // 2)}
    offsets = np.arange(n_lists + 1) * 6
    no_numbers = np.zeros((n_lists * 6, 0))
    return ItemLists(no_numbers, offsets, labels=clicks, categorical={"colour": colours}, context=context)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_every_estimator_learns_from_categories_or_says_that_it_does_not_read_them(kind: str) -> None:
    train, test = ids_only(300, 0), ids_only(60, 1)
    if kind in READS_CATEGORIES:
        if kind != "seq2slate":
            pytest.importorskip("lightgbm", reason="LightGBM is not installed")
        options = {"epochs": 5, "learning_rate": 0.01} if kind == "seq2slate" else {}
        slates = make_estimator(kind, **options).fit(train, test).rank(test.batch())
        labels = np.take_along_axis(test.batch().labels, slates, axis=1)
        assert (np.diff(labels, axis=1) <= 0).all(axis=1).mean() > 0.95  # red first
        return
    with pytest.raises(
        DataError, match=rf"^{kind} reads numbers only: .* not read 'colour', 'device'\); .* use .*mart"
    ):
        make_estimator(kind).fit(train, test)


def test_lists_without_any_column_are_refused_by_rankers_of_numbers() -> None:
    bare = ItemLists(np.zeros((4, 0)), [0, 2, 4], labels=[1, 0, 0, 1])
    with pytest.raises(DataError, match=r"^ridge reads numbers only: the lists have no dense column; give features"):
        make_estimator("ridge").fit(bare)


@pytest.mark.parametrize("kind", [kind for kind in ESTIMATORS if kind not in ("seq2slate", "ranklib")])
def test_baselines_take_labels_that_are_no_grades(kind: str) -> None:
    if kind in READS_CATEGORIES:
        pytest.importorskip("lightgbm", reason="LightGBM is not installed")
    lists = ItemLists.concat([mixed_lists(seed) for seed in range(6)])
    rng = np.random.default_rng(0)
    assert lists.labels is not None
    seconds = np.where(lists.labels > 0, rng.gamma(2, 20, lists.n_items), 0)
    timed = replace(lists, labels=seconds.astype(np.float32))
    check_ranker(make_estimator(kind).fit(timed, timed), mixed_lists(9))


# The random order


def test_random_order_changes_with_the_seed_and_the_list() -> None:
    lists = ItemLists(np.zeros((40, 1)), [0, 20, 40])
    first, second = RandomOrder(seed=0).rank(lists.batch())
    other, _ = RandomOrder(seed=1).rank(lists.batch())
    assert (first != second).any()
    assert (first != other).any()


def test_random_order_is_fair() -> None:
    lists = ItemLists(np.zeros((6000, 1)), np.arange(0, 6001, 3))
    slates = RandomOrder(seed=0).rank(lists.batch())
    orders, counts = np.unique(slates, axis=0, return_counts=True)
    assert len(orders) == 6
    np.testing.assert_allclose(counts / 2000, 1 / 6, atol=4 * np.sqrt(1 / 6 * 5 / 6 / 2000))


# Slates


@settings(max_examples=100)
@given(
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=5),
    k=st.integers(0, 9),
    cut=st.none() | st.integers(0, 9),
    seed=st.integers(0, 2**32),
)
def test_slates_are_those_of_plain_python(lengths: list[int], k: int, cut: int | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    widest = max(lengths)
    mask = np.arange(widest) < np.array(lengths)[:, None]
    scores = rng.integers(0, 4, mask.shape).astype(np.float64)  # with ties
    slates = slates_from_scores(rng.random(mask.shape), mask, k)

    def padded(rows: list[list[int]]) -> list[list[int]]:
        return [(row + [NO_ITEM] * widest)[:widest][:cut] for row in rows]

    placed = [[item for item in row if item >= 0] for row in slates.tolist()]
    others = [[item for item in range(n) if item not in row] for n, row in zip(lengths, placed, strict=True)]
    by_score = [sorted(row, key=lambda item: -own[item]) for row, own in zip(others, scores, strict=True)]
    in_base_order = [first + rest for first, rest in zip(placed, others, strict=True)]
    sorted_by_score = [first + rest for first, rest in zip(placed, by_score, strict=True)]
    assert complete_slates(slates, mask, k=cut).tolist() == padded(in_base_order)
    assert complete_slates(slates, mask, scores, cut).tolist() == padded(sorted_by_score)
    assert base_slates(mask, cut).tolist() == padded([list(range(n)) for n in lengths])
    assert empty_slates(np.array(lengths), cut).tolist() == padded([[] for _ in lengths])
    slots = [[row.index(item) if item in row else widest for item in range(widest)] for row in placed]
    assert slot_of_item(slates, mask).tolist() == slots


# The battery itself


Doubles = npt.NDArray[np.float64]


class Broken:
    """Sorts by the first feature; subclasses get one thing wrong."""

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        return slates_from_scores(self.scores(batch), batch.mask, k)

    def scores(self, batch: Batch) -> Doubles:
        return cast(Doubles, batch.features[:, :, 0].astype(np.float64))


class IgnoresK(Broken):
    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        return super().rank(batch)


class RanksPadding(Broken):
    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        return np.argsort(-self.scores(batch), axis=1, kind="stable")[:, :k]


class RepeatsAnItem(Broken):
    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        slates = super().rank(batch, k)
        slates[:, 1:2] = np.where(slates[:, 1:2] >= 0, slates[:, :1], -1)
        return slates


class StopsEarly(Broken):
    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        slates = super().rank(batch, k)
        slates[:, 2:] = -1
        return slates


class WritesSmallNumbers(Broken):
    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        return cast(IntArray, super().rank(batch, k).astype(np.int32))


class LooksAtItsNeighbours(Broken):
    def scores(self, batch: Batch) -> Doubles:
        return cast(Doubles, np.abs(super().scores(batch) - batch.features[:, :, 0].sum()))


class CountsPadding(Broken):
    def scores(self, batch: Batch) -> Doubles:
        return cast(Doubles, super().scores(batch) * (-1) ** batch.n_slots)


class LooksAtThePlaceInTheBatch(Broken):
    def scores(self, batch: Batch) -> Doubles:
        return cast(Doubles, super().scores(batch) * (-1.0) ** np.arange(len(batch))[:, None])


class ChangesTheFeatures(Broken):
    def scores(self, batch: Batch) -> Doubles:
        batch.lists.features[:, 1] = 0
        return super().scores(batch)


class ChangesThePadding(Broken):
    def scores(self, batch: Batch) -> Doubles:
        batch.features[:, :, 1] = 0
        return super().scores(batch)


@dataclass
class ForgetsItsSeed(Broken):
    calls: "count[int]" = field(default_factory=count)

    def scores(self, batch: Batch) -> Doubles:
        return cast(Doubles, super().scores(batch) * (-1) ** next(self.calls))


class PlansForK(Broken):
    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        return slates_from_scores(self.scores(batch) * (1 if k is None else -1), batch.mask, k)


class DiesOfAnEmptyList(Broken):
    def scores(self, batch: Batch) -> Doubles:
        return cast(Doubles, super().scores(batch) - batch.features[:, :, 0].max(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (IgnoresK, "must have shape"),
        (RanksPadding, "slots after the last item must be -1; list 'empty' of 0 items"),
        (RepeatsAnItem, "an item stands twice; list 'no positives'"),
        (StopsEarly, "slots must hold real items; list 'no positives'"),
        (WritesSmallNumbers, "must be int64, got int32"),
        (LooksAtItsNeighbours, "alone, k=.*is ranked"),
        (CountsPadding, "(alone|with less padding), k=.*is ranked"),
        (LooksAtThePlaceInTheBatch, "(alone|in another order), k=.*is ranked"),
        (ChangesTheFeatures, "rank changed its input: features"),
        (ChangesThePadding, "rank changed its input: batch.features"),
        (ForgetsItsSeed, "a second call: list .* is ranked"),
        (PlansForK, "k=1 instead of all slots: list 'no positives' of 5 items is ranked"),
    ],
)
def test_battery_finds_out(broken: type[Broken], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_ranker(broken(), mixed_lists(seed=4))


def test_battery_tries_an_empty_list_alone() -> None:
    with pytest.raises(ValueError, match="zero-size array"):
        check_ranker(DiesOfAnEmptyList(), mixed_lists(seed=4))


def test_battery_takes_the_unbroken_and_those_that_plan_for_k() -> None:
    check_ranker(Broken(), mixed_lists(seed=4))
    check_ranker(PlansForK(), mixed_lists(seed=4), prefix=False)


def test_battery_compares_what_was_saved() -> None:
    check_ranker(RandomOrder(seed=1), mixed_lists(seed=4), save_load=lambda ranker: RandomOrder(seed=1))
    with pytest.raises(AssertionError, match=r"save and load: list .* is ranked"):
        check_ranker(RandomOrder(seed=1), mixed_lists(seed=4), save_load=lambda ranker: RandomOrder(seed=2))


def test_battery_asks_for_the_hard_lists() -> None:
    with pytest.raises(AssertionError, match="need an empty one"):
        check_ranker(BaseOrder(), ItemLists(np.zeros((3, 1)), [0, 1, 3]))
