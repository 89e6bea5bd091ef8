"""The trees are LightGBM's, they stop where the validation lists are best, and they pass what every ranker passes."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow
import pytest

from seq2slate.data.features import Vocabulary
from seq2slate.data.files import read
from seq2slate.data.lists import FloatArray, ItemLists
from seq2slate.data.ranker import RandomOrder, Ranker, rank_lists, slates_from_scores
from seq2slate.errors import DataError
from seq2slate.estimator import load
from seq2slate.metrics import ndcg
from seq2slate.saving import SavedRanker, load_saved
from tests.checks import check_ranker, mixed_lists

pytest.importorskip("lightgbm", reason="LightGBM is not installed")

import lightgbm

from seq2slate.baselines.trees import LambdaMart, Mart, RandomForest, as_grades

pytestmark = pytest.mark.filterwarnings("ignore::seq2slate.errors.DataWarning")  # odd labels, and leaks to be learned

Trees: TypeAlias = type[LambdaMart] | type[Mart] | type[RandomForest]
ALL: list[Trees] = [LambdaMart, Mart, RandomForest]
BOOSTED = {"num_leaves": 15, "learning_rate": 0.05, "min_data_in_leaf": 50}
PARAMETERS: dict[Trees, dict[str, Any]] = {
    LambdaMart: BOOSTED | {"objective": "lambdarank", "label_gain": [0, 1]},
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
SETTINGS: dict[str, Any] = {"verbosity": -1, "deterministic": True, "force_row_wise": True}
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
    train, valid = lists_with_an_order(120, 40, noise=2.0), lists_with_an_order(40, 41, noise=2.0)
    ranker = kind(trees=100, base_position=base_position, seed=3).fit(train, valid)

    def columns(lists: ItemLists) -> FloatArray:
        positions = np.tile(np.arange(10, dtype=np.float32), len(lists))
        return np.column_stack([lists.features, positions]) if base_position else lists.features

    settings = SETTINGS | {"seed": 3, "num_threads": 1}
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
    np.testing.assert_allclose(ranker.score_items(valid), expected, rtol=1e-6, atol=1e-7)


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
    np.testing.assert_array_equal(opened.score_items(lists), ranker.score_items(lists))
    assert opened.get_params() == LambdaMart(base_position=base_position).get_params()


def test_the_seed_of_a_forest_decides() -> None:
    lists = lists_with_an_order(100, 0, noise=2.0)
    scores = [RandomForest(trees=10, seed=seed).fit(lists, lists).score_items(lists) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert (scores[0] != scores[2]).any()


@pytest.mark.parametrize("kind", ALL)
def test_they_say_what_is_missing(kind: Trees) -> None:
    lists = lists_with_an_order(20, 0)
    with pytest.raises(DataError, match="validation lists have no labels"):
        kind().fit(lists, ItemLists(lists.features, lists.offsets))
    with pytest.raises(DataError, match="no training list has a positive"):
        kind().fit(ItemLists(lists.features, lists.offsets, labels=np.zeros(lists.n_items)), lists)
    bare = ItemLists(np.zeros((lists.n_items, 0)), lists.offsets, labels=lists.labels)
    with pytest.raises(DataError, match="no column, and without the base position"):
        kind(base_position=False).fit(bare, bare)
    with pytest.raises(DataError, match="feature"):
        kind(trees=2).fit(lists, lists).rank(ItemLists(np.zeros((2, 3)), [0, 2]).batch())


# Categorical, context and missing values


def shop_lists(n_lists: int, seed: int, *, unseen: bool = False) -> ItemLists:
    """Clicks that follow from brand, price, and whether the item's colour is the one asked for; with gaps in all."""
    rng = np.random.default_rng(seed)
    n_items = n_lists * 8
    of_list = np.repeat(np.arange(n_lists), 8)
    brand, colour, wanted = rng.integers(60, size=n_items), rng.integers(4, size=n_items), rng.integers(4, size=n_lists)
    price, hour = rng.gamma(2, 10, size=(n_items, 1)), rng.integers(24, size=n_lists).astype(float)
    logit = (brand % 7 == 3) + 1.5 * (colour == wanted[of_list]) - price[:, 0] / 20 - 2
    labels = rng.random(n_items) < 1 / (1 + np.exp(-logit))
    price[rng.random(n_items) < 0.2] = np.nan
    names = [f"new {number}" if unseen and number % 5 == 0 else f"brand {number}" for number in brand]
    return ItemLists(
        price,
        np.arange(n_lists + 1) * 8,
        labels=labels,
        feature_names=["price"],
        categorical={
            "brand": [None if gap else name for gap, name in zip(rng.random(n_items) < 0.1, names, strict=True)],
            "colour": [str(number) for number in colour],
        },
        context={"hour": hour, "wanted": [str(number) for number in wanted]},
    )


def as_frame(lists: ItemLists, vocabularies: Mapping[str, Vocabulary] | None = None) -> Any:
    """The same lists as a pandas user has them: one row an item, text as categories."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    wanted = lists.context["wanted"].take(pyarrow.array(lists.list_index))
    columns: dict[str, Any] = {
        "price": lists.features[:, 0],
        "hour": lists.context["hour"][lists.list_index].astype(np.float32),
    }
    for name, values in {**lists.categorical, "wanted": wanted}.items():
        known = None if vocabularies is None else vocabularies[name].values
        columns[name] = pandas.Categorical(values.to_pylist(), categories=known)
    return pandas.DataFrame({**columns, "position": lists.positions.astype(np.float32)})


@pytest.mark.parametrize("kind", ALL)
def test_categories_context_and_gaps_are_those_of_lightgbm_with_pandas(kind: Trees) -> None:
    train, valid, test = shop_lists(300, 0), shop_lists(100, 1), shop_lists(100, 2, unseen=True)
    ranker = kind(trees=40).fit(train, valid)
    frame = as_frame(train, {**ranker.transform_.categorical, **ranker.transform_.context_categorical})
    best = ranker.booster_.best_iteration
    assert best > 1
    parameters = PARAMETERS[kind] | SETTINGS | {"n_estimators": best, "n_jobs": 1, "random_state": 0}
    if kind is LambdaMart:
        direct = lightgbm.LGBMRanker(**parameters)
        direct.fit(frame, train.labels, group=train.lengths)
    else:
        direct = lightgbm.LGBMRegressor(**parameters)
        direct.fit(frame, train.labels)
    for lists in (train, valid, test):
        expected = direct.predict(as_frame(lists))
        np.testing.assert_allclose(ranker.score_items(lists), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ALL)
def test_categories_alone_are_enough_to_learn_from(kind: Trees) -> None:
    def ids_only(lists: ItemLists) -> ItemLists:
        categorical = {"brand": lists.categorical["brand"], "colour": lists.categorical["colour"]}
        context = {"wanted": lists.context["wanted"]}
        no_numbers = np.zeros((lists.n_items, 0))
        return ItemLists(no_numbers, lists.offsets, labels=lists.labels, categorical=categorical, context=context)

    train, valid, test = (ids_only(shop_lists(count, seed)) for seed, count in enumerate((2000, 300, 500)))
    by_chance = mean_ndcg(RandomOrder(), test)
    for base_position in (True, False):
        ranker = kind(trees=60, base_position=base_position).fit(train, valid)
        assert mean_ndcg(ranker, test) > by_chance + 0.05


@pytest.mark.parametrize("kind", ALL)
def test_an_unseen_category_is_a_missing_one(kind: Trees) -> None:
    lists = shop_lists(200, 0)
    ranker = kind(trees=20).fit(lists, lists)
    brands = lists.categorical["brand"].to_pylist()

    def scores(brand: str | None) -> FloatArray:
        changed = lists.categorical | {"brand": [brand] * len(brands)}  # type: ignore[operator]
        return ranker.score_items(replace(lists, categorical=changed))

    np.testing.assert_array_equal(scores("never seen"), scores(None))
    assert (scores("brand 3") != scores(None)).any()


@pytest.mark.parametrize("kind", ALL)
def test_vocabularies_are_saved_with_the_trees(kind: Trees, tmp_path: Path) -> None:
    train, test = shop_lists(100, 0), shop_lists(30, 1, unseen=True)
    ranker = kind(trees=10).fit(train, train)
    ranker.save(tmp_path / "trees")
    opened = load(tmp_path / "trees")
    assert isinstance(opened, kind)
    np.testing.assert_array_equal(opened.score_items(test), ranker.score_items(test))


@pytest.mark.parametrize("kind", ALL)
def test_other_columns_are_ignored_and_missing_ones_named(kind: Trees) -> None:
    lists = shop_lists(50, 0)
    ranker = kind(trees=5).fit(lists, lists)
    more = replace(
        lists,
        categorical={"size": ["L"] * lists.n_items, **lists.categorical},
        context={"day": np.zeros(len(lists)), **lists.context},
    )
    np.testing.assert_array_equal(ranker.score_items(more), ranker.score_items(lists))
    with pytest.raises(DataError, match="categorical column 'brand' is missing"):
        ranker.score_items(replace(lists, categorical={"colour": lists.categorical["colour"]}))
    with pytest.raises(DataError, match="context column 'hour' is missing"):
        ranker.score_items(replace(lists, context={"wanted": lists.context["wanted"]}))
    with pytest.raises(DataError, match="context column 'wanted' was text in training and is a number"):
        ranker.score_items(replace(lists, context={"hour": lists.context["hour"], "wanted": lists.context["hour"]}))


# Labels


@pytest.mark.parametrize("kind", ALL)
def test_labels_may_be_any_numbers_from_0_up(kind: Trees) -> None:
    rng = np.random.default_rng(0)
    lists = lists_with_an_order(200, 0)
    seconds = np.where(lists.features[:, 2] > 0, rng.gamma(2, 20, lists.n_items), 0)  # more than 256 different ones
    timed = replace(lists, labels=seconds.astype(np.float32))
    assert mean_ndcg(kind().fit(timed, timed), timed) > mean_ndcg(RandomOrder(), timed) + 0.2


def test_lambdamart_takes_the_labels_themselves_as_gains() -> None:
    lists = lists_with_an_order(100, 0, noise=2.0)
    values = np.array([0, 0.25, 1.5, 70], dtype=np.float32)
    grades = np.random.default_rng(0).integers(4, size=lists.n_items)
    graded = replace(lists, labels=values[grades])
    ranker = LambdaMart(trees=10, base_position=False).fit(graded, graded)
    parameters = PARAMETERS[LambdaMart] | SETTINGS | {"label_gain": values.tolist(), "num_threads": 1}
    dataset = lightgbm.Dataset(lists.features, grades, group=lists.lengths)
    direct = lightgbm.train(parameters, dataset, num_boost_round=ranker.booster_.best_iteration)
    np.testing.assert_allclose(ranker.score_items(graded), direct.predict(lists.features), rtol=1e-6, atol=1e-7)


def test_grades_keep_the_order_of_labels_and_are_close_to_them() -> None:
    for labels in (np.arange(256), np.random.default_rng(0).gamma(2, 20, size=5000)):
        grades, gains = as_grades(labels.astype(np.float32))
        assert len(gains) <= 256
        assert gains == sorted(set(gains))
        by_label = np.argsort(labels, kind="stable")
        assert (np.diff(grades[by_label]) >= 0).all()
        nearest = np.abs(labels[:, None] - np.array(gains)).min(axis=1)
        np.testing.assert_allclose(np.abs(labels - np.array(gains)[grades]), nearest, atol=1e-4)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("label", [-1, np.nan, np.inf])
def test_labels_that_are_no_gains_are_refused(kind: Trees, label: float) -> None:
    lists = lists_with_an_order(20, 0)
    broken = replace(lists, labels=np.where(np.arange(lists.n_items) == 13, label, 1).astype(np.float32))
    with pytest.raises(DataError, match=rf"the validation lists, list '1', item 3: label {label:g}, but"):
        kind().fit(lists, broken)
    with pytest.raises(DataError, match=r"the training lists, list '1', item 3"):
        kind().fit(broken, lists)


# The base position


def lists_of_a_good_ranker(n_lists: int, seed: int, *, n_noise: int = 40) -> ItemLists:
    """Clicks that follow from the base position alone, beside columns of noise."""
    rng = np.random.default_rng(seed)
    positions = np.tile(np.arange(10), n_lists)
    labels = rng.random(len(positions)) < 0.5 / (1 + positions)
    return ItemLists(rng.normal(size=(len(positions), n_noise)), np.arange(n_lists + 1) * 10, labels=labels)


@pytest.mark.parametrize("kind", [LambdaMart, Mart])
def test_every_tree_of_boosting_can_read_the_base_position(kind: Trees) -> None:
    lists = lists_of_a_good_ranker(300, 0)
    booster = kind(trees=10).fit(lists, lists).booster_
    roots = [tree["tree_structure"]["split_feature"] for tree in booster.dump_model()["tree_info"]]
    assert roots == [lists.n_features] * len(roots)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the real data are not here: {DATA}")
def test_they_beat_a_random_order_on_web30k() -> None:
    train, valid, test = read(DATA / "mslr_sample.txt.gz").split(0.6, 0.2, seed=0)
    by_chance = mean_ndcg(RandomOrder(), test)
    for kind in ALL:
        ranker = kind(trees=20, base_position=False).fit(train, valid)  # its order is not that of a ranker
        assert mean_ndcg(ranker, test) > by_chance + 0.1
