"""Every world keeps the promises of `make_synthetic_lists`: shapes, lengths, streams and calibrated probabilities."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from seq2slate.data.lists import FloatArray, IntArray, ItemLists
from seq2slate.errors import UsageError
from seq2slate.simulation import synthetic
from seq2slate.simulation.synthetic import WORLDS, make_synthetic_lists
from seq2slate.simulation.world import Relevance

each_world = pytest.mark.parametrize("world", WORLDS)


@cache
def many_lists(world: str) -> ItemLists:
    """Short lists, so that their number makes shares sharp."""
    return make_synthetic_lists(12_000, items=10, world=world, seed=1)


def grades_of(lists: ItemLists) -> npt.NDArray[np.int64]:
    assert lists.labels is not None
    return lists.labels.astype(np.int64)


def probability_of(lists: ItemLists) -> npt.NDArray[np.float64]:
    assert lists.relevance_probability is not None
    return lists.relevance_probability.astype(np.float64)


def same_arrays(a: ItemLists, b: ItemLists) -> bool:
    return all(
        getattr(a, name).equals(getattr(b, name))
        if name in ("list_ids", "item_ids")
        else np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("features", "offsets", "labels", "list_ids", "item_ids", "relevance_probability")
    )


@each_world
def test_lists_have_the_shape_of_web30k_and_show_nothing_but_their_features(world: str) -> None:
    lists = make_synthetic_lists(200, items=30, world=world, seed=0)
    assert len(lists) == 200
    assert lists.feature_names == tuple(f"f{number}" for number in range(1, 137))
    assert lists.features.dtype == np.float32
    assert np.isfinite(lists.features).all()
    assert set(grades_of(lists)) == {0, 1, 2, 3, 4}
    assert len(np.unique(lists.item_ids.to_numpy(zero_copy_only=False))) == lists.n_items
    assert lists.checked() is lists
    assert not lists.categorical
    assert not lists.context
    assert lists.impressions is None
    assert lists.relevance is None


@each_world
@pytest.mark.parametrize("mean", [1, 2, 3.5, 25])
def test_lengths_have_the_mean_that_was_asked_for(world: str, mean: float) -> None:
    lengths = make_synthetic_lists(1500, items=mean, world=world, seed=2).lengths
    assert lengths.min() >= 1
    rounding_error = 0.5 / np.sqrt(len(lengths))  # the standard deviation of a rounding is at most 1/2
    assert lengths.mean() == pytest.approx(mean, rel=0.005, abs=4 * rounding_error * (mean > 1))


@each_world
@pytest.mark.parametrize("n_lists", [0, 1])
def test_few_lists(world: str, n_lists: int) -> None:
    lists = make_synthetic_lists(n_lists, items=1, world=world, seed=0)
    assert len(lists) == n_lists
    assert lists.features.shape == (n_lists, 136)


@each_world
def test_a_seed_gives_the_same_arrays_and_another_seed_others(world: str) -> None:
    one, again, other = (make_synthetic_lists(20, items=8, world=world, seed=seed) for seed in (5, 5, 6))
    assert same_arrays(one, again)
    assert not np.isin(probability_of(one), probability_of(other)).any()
    assert not (one.features[:, None] == other.features).all(axis=2).any()
    assert not set(one.item_ids.to_pylist()) & set(other.item_ids.to_pylist())


@each_world
@pytest.mark.parametrize("block_items", [1, 50])
def test_the_size_of_the_blocks_does_not_matter(world: str, block_items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = make_synthetic_lists(60, items=30, world=world, seed=7)
    monkeypatch.setattr(synthetic, "_BLOCK_CELLS", 136 * block_items)
    assert same_arrays(make_synthetic_lists(60, items=30, world=world, seed=7), at_once)


@each_world
def test_every_quantity_has_a_stream_of_its_own(world: str) -> None:
    """What is drawn once a list does not depend on how many items are drawn."""
    columns_of_lists = []
    for items in (20, 60):
        lists = make_synthetic_lists(50, items=items, world=world, seed=3)
        starts = lists.offsets[:-1]
        largest, smallest = (extreme.reduceat(lists.features, starts) for extreme in (np.maximum, np.minimum))
        same, varies = (largest == smallest).all(axis=0), np.ptp(largest, axis=0) > 0
        columns_of_lists.append(largest[:, same & varies])
    assert columns_of_lists[0].shape[1] >= 5
    np.testing.assert_array_equal(columns_of_lists[0], columns_of_lists[1])


@each_world
def test_probabilities_are_calibrated(world: str) -> None:
    """Given the probabilities, relevances are independent: the error of a share is that of independent draws."""
    lists = many_lists(world)
    relevant, probability = grades_of(lists) >= 2, probability_of(lists)
    assert ((probability >= 0) & (probability <= 1)).all()
    edges = np.quantile(probability, np.linspace(0, 1, 21)[1:-1])
    bins = np.searchsorted(edges, probability)
    counts = np.bincount(bins)
    observed, expected = (np.bincount(bins, values) / counts for values in (relevant, probability))
    error = np.sqrt(np.bincount(bins, probability * (1 - probability))) / counts
    assert (np.abs(observed - expected) < 4 * error).all()
    assert expected[-1] > 10 * expected[0]


@each_world
def test_relevances_of_a_list_are_independent_given_their_probabilities(world: str) -> None:
    """The number of relevant items of a list varies as much as independent draws do, and no more."""
    lists = many_lists(world)
    relevant, probability = grades_of(lists) >= 2, probability_of(lists)
    surprise = np.add.reduceat(relevant - probability, lists.offsets[:-1])
    variance = np.add.reduceat(probability * (1 - probability), lists.offsets[:-1])
    assert np.mean(surprise**2) / variance.mean() == pytest.approx(1, abs=4 * np.sqrt(2 / len(lists)))


@pytest.mark.parametrize(
    ("request_options", "message"),
    [
        ({"world": "topics", "features": 3}, "at least 4 features .* got 3"),
        ({"features": 12}, r'web30k has the 136 columns .* got features=12: .*world="topics"'),
        ({"world": "web10k"}, "there is no world 'web10k'; choose one of web30k, topics"),
        ({"items": 0.5}, "mean must be 1 or more, got 0.5"),
        ({"items": float("nan")}, "mean must be 1 or more"),
        ({"n_lists": -1}, "must not be negative, got -1"),
        ({"seed": -1}, "seed must not be negative"),
    ],
)
def test_what_cannot_be_generated_is_refused(request_options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_synthetic_lists(**{"n_lists": 1, "seed": 0} | request_options)


def test_the_number_of_features_that_a_world_has_may_be_named() -> None:
    assert make_synthetic_lists(2, items=3, features=136, seed=0).n_features == 136


class CoinWorld:
    """One column, and a grade of 2 that it shows for certain: a world as small as one can be."""

    def __init__(self, features: int | None, seed: int) -> None:
        self.n_features = features or 1
        self._rng = np.random.default_rng(seed)

    def draw_lengths(self, n_lists: int, mean: float) -> IntArray:
        return np.full(n_lists, round(mean))

    def draw_items(self, lengths: IntArray, table: FloatArray) -> Relevance:
        heads = self._rng.random(len(table)) < 0.5
        table[:] = heads[:, None]
        return Relevance(2.0 * heads, 1.0 * heads)


def test_a_world_is_added_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "WORLDS", {**WORLDS, "coin": CoinWorld})
    lists = make_synthetic_lists(40, items=5, world="coin", seed=0)
    assert (len(lists), lists.n_items, lists.n_features) == (40, 200, 1)
    np.testing.assert_array_equal(grades_of(lists), 2 * probability_of(lists))
    np.testing.assert_array_equal(lists.features[:, 0], probability_of(lists))
