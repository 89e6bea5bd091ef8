"""The trees are LightGBM's, they stop where the validation lists are best, and they pass what every ranker passes."""

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from seq2slate.data.files import read
from seq2slate.data.lists import FloatArray, ItemLists
from seq2slate.data.ranker import RandomOrder, Ranker, rank_lists, slates_from_scores
from seq2slate.errors import DataError
from seq2slate.metrics import ndcg
from seq2slate.saving import SavedRanker, load_saved
from tests.checks import check_ranker, mixed_lists

pytest.importorskip("lightgbm", reason="LightGBM is not installed")

import lightgbm

from seq2slate.baselines.trees import LambdaMart, Mart, RandomForest

Trees: TypeAlias = type[LambdaMart] | type[Mart] | type[RandomForest]
ALL: list[Trees] = [LambdaMart, Mart, RandomForest]
BOOSTED = {"num_leaves": 15, "learning_rate": 0.05, "min_data_in_leaf": 50, "feature_fraction": 0.5}
PARAMETERS: dict[Trees, dict[str, Any]] = {
    LambdaMart: BOOSTED | {"objective": "lambdarank", "label_gain": list(range(32))},
    Mart: BOOSTED | {"objective": "regression"},
    RandomForest: {
        "objective": "regression",
        "boosting": "rf",
        "num_leaves": 100,
        "bagging_fraction": 0.632,
        "bagging_freq": 1,
        "feature_fraction_bynode": 0.3,
    },
}
"""What each ranker asks of LightGBM."""
PATIENCE = {LambdaMart: 50, Mart: 50, RandomForest: 100}
"""After how many trees without a better NDCG@10 each of them stops, of 100."""
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def lists_with_an_order(n_lists: int, seed: int, *, noise: float = 0.0) -> ItemLists:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_lists * 10, 4))
    labels = features[:, 2] + noise * rng.normal(size=len(features)) > 1
    return ItemLists(features, np.arange(n_lists + 1) * 10, labels=labels)


def mean_ndcg(ranker: Ranker, lists: ItemLists) -> float:
    batch = lists.batch()
    return float(np.nanmean(ndcg(rank_lists(ranker, lists, 10), batch.labels, mask=batch.mask, k=10)))


def best_round(values: list[float], patience: int) -> int:
    """The round, from 1, with the highest of the values before one was not passed `patience` times."""
    best = 0
    for number, value in enumerate(values):
        if number - best > patience:
            break
        if value > values[best]:
            best = number
    return best + 1


@pytest.mark.parametrize("kind", ALL)
def test_they_learn_which_column_matters(kind: Trees) -> None:
    train, valid, test = (lists_with_an_order(count, seed) for seed, count in enumerate((200, 50, 50)))
    batch = test.batch()
    best = batch.features[:, :, 2].argmax(1)
    assert (kind().fit(train, valid).rank(batch, 1)[:, 0] == best)[batch.labels.any(1)].mean() > 0.7


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("base_position", [True, False])
def test_they_are_lightgbm_stopped_at_the_best_round(kind: Trees, base_position: bool) -> None:
    train, valid = lists_with_an_order(120, 44, noise=2.0), lists_with_an_order(40, 45, noise=2.0)
    ranker = kind(trees=100, base_position=base_position, seed=3).fit(train, valid)

    def columns(lists: ItemLists) -> FloatArray:
        positions = np.tile(np.arange(10, dtype=np.float32), len(lists))
        return np.column_stack([lists.features, positions]) if base_position else lists.features

    settings = {"seed": 3, "verbosity": -1, "deterministic": True, "force_row_wise": True, "num_threads": 1}
    dataset = lightgbm.Dataset(columns(train), train.labels, group=train.lengths)
    direct = lightgbm.train(PARAMETERS[kind] | settings, dataset, num_boost_round=100)
    batch = valid.batch()
    by_round = []
    for n_trees in range(1, 101):
        scores = np.asarray(direct.predict(columns(valid), num_iteration=n_trees))
        slates = slates_from_scores(batch.pad(scores), batch.mask)
        by_round.append(float(np.nanmean(ndcg(slates, batch.labels, mask=batch.mask, k=10))))
    best = best_round(by_round, PATIENCE[kind])
    assert 1 < best < 100
    expected = direct.predict(columns(valid), num_iteration=best)
    np.testing.assert_allclose(ranker.score(valid), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("base_position", [True, False])
def test_they_pass_the_battery_and_survive_saving(kind: Trees, base_position: bool, tmp_path: Path) -> None:
    lists = mixed_lists(seed=0)
    ranker = kind(trees=5, base_position=base_position).fit(lists, lists)

    def save_load(_: Ranker) -> Ranker:
        ranker.save(tmp_path / "trees")
        return kind.from_saved(load_saved(tmp_path / "trees"))

    check_ranker(ranker, lists, save_load=save_load)
    assert load_saved(tmp_path / "trees").kind == {
        LambdaMart: "lambdamart", Mart: "mart", RandomForest: "random-forest",
    }[kind]  # fmt: skip


@pytest.mark.parametrize("base_position", [True, False])
def test_a_folder_holds_lightgbm_text_and_an_option_that_it_does_not_name_has_its_default(base_position: bool) -> None:
    lists = lists_with_an_order(30, 0)
    ranker = LambdaMart(trees=3, base_position=base_position).fit(lists, lists)
    text = np.frombuffer(ranker.booster_.model_to_string().encode(), dtype=np.uint8)
    options = {} if base_position else {"base_position": False}
    config = {"options": options, "learned": {}}
    opened = LambdaMart.from_saved(SavedRanker("lambdamart", config, {"trees": text}, ranker.transform_.to_json()))
    np.testing.assert_array_equal(opened.score(lists), ranker.score(lists))
    assert opened.get_params() == LambdaMart(base_position=base_position).get_params()


@pytest.mark.parametrize("kind", ALL)
def test_the_seed_decides(kind: Trees) -> None:
    lists = lists_with_an_order(100, 0, noise=2.0)
    scores = [kind(trees=10, seed=seed).fit(lists, lists).score(lists) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert (scores[0] != scores[2]).any()


@pytest.mark.parametrize("kind", ALL)
def test_they_say_what_is_missing(kind: Trees) -> None:
    lists = lists_with_an_order(20, 0)
    with pytest.raises(DataError, match="validation lists have no labels"):
        kind().fit(lists, ItemLists(lists.features, lists.offsets))
    with pytest.raises(DataError, match="no training list has a positive"):
        kind().fit(ItemLists(lists.features, lists.offsets, labels=np.zeros(lists.n_items)), lists)
    halves = np.where(np.arange(lists.n_items) == 13, 0.5, 1)
    with pytest.raises(DataError, match=r"list '1', item 3: label 0.5 is not a whole number"):
        kind().fit(lists, ItemLists(lists.features, lists.offsets, labels=halves))
    bare = ItemLists(np.zeros((lists.n_items, 0)), lists.offsets, labels=lists.labels)
    with pytest.raises(DataError, match="no dense column"):
        kind(base_position=False).fit(bare, bare)
    with pytest.raises(DataError, match="feature"):
        kind(trees=2).fit(lists, lists).rank(ItemLists(np.zeros((2, 3)), [0, 2]).batch())


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the real data are not here: {DATA}")
def test_they_beat_a_random_order_on_web30k() -> None:
    train, valid, test = read(DATA / "mslr_sample.txt.gz").split(0.6, 0.2, seed=0)
    by_chance = mean_ndcg(RandomOrder(), test)
    for kind in ALL:
        ranker = kind(trees=20, base_position=False).fit(train, valid)  # its order is not that of a ranker
        assert mean_ndcg(ranker, test) > by_chance + 0.1
