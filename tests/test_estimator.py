"""One battery for everything that learns: the estimator shape, its options, and the command line made of them."""

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from sklearn.base import clone

import seq2slate as package
from seq2slate import NetworkConfig, TrainingConfig
from seq2slate.baselines.linear import RidgeRanker
from seq2slate.config import PRESETS
from seq2slate.data.files import write
from seq2slate.data.lists import ItemLists
from seq2slate.errors import DataError, NotFittedError, UsageError
from seq2slate.estimator import ESTIMATORS, NETWORK_PRESETS, Estimator, estimator_class, hold_out, load, make_estimator
from seq2slate.options import check_choices, named_in, options_of, registry_names
from seq2slate.reranker import Reranker
from tests.checks import check_ranker, mixed_lists, snapshot
from tests.test_cli import seq2slate
from tests.test_ranklib import build_stand_in

SMALL: dict[str, dict[str, Any]] = {
    "seq2slate": {"preset": "paper", "hidden": 8, "epochs": 1},
    "ridge": {"penalty": 2.0},
    "coordinate-ascent": {"starts": 1, "sweeps": 2},
    "adarank": {"rounds": 5},
    "rankboost": {"rounds": 5, "thresholds": 8},
    "mart": {"trees": 5},
    "lambdamart": {"trees": 5, "base_position": False},
    "random-forest": {"trees": 5},
    "ranknet": {"epochs": 2, "hidden_layers": (5,)},
    "listnet": {"epochs": 2},
    "mmr": {"trade_offs": (0.5, 1.0)},
    "dpp": {"score_column": "f3"},
    "ranklib": {"method": "mart", "arguments": ("-tree", "7")},
}
"""Options with which each kind of estimator is fitted at once."""
HEAVY = ("torch", "lightgbm", "sklearn", "scipy", "pandas", "starlette", "altair", "onnxruntime")
CONFIGS = [estimator_class(kind) for kind in ESTIMATORS] + [NetworkConfig, TrainingConfig]
LISTS = ItemLists.concat([mixed_lists(seed) for seed in range(6)])
TEST = mixed_lists(9)


@pytest.fixture(scope="module")
def stand_in_jar(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_stand_in(tmp_path_factory.mktemp("stand-in")))


@pytest.fixture(scope="module", params=ESTIMATORS)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of each kind in turn, with a seed, and its kind."""
    kind = request.param
    if kind in ("mart", "lambdamart", "random-forest"):
        pytest.importorskip("lightgbm", reason="LightGBM is not installed")
    local = {"jar": request.getfixturevalue("stand_in_jar")} if kind == "ranklib" else {}
    return {"kind": kind, "seed": 1, **SMALL[kind], **local}


@pytest.fixture
def estimator(options: dict[str, Any]) -> Estimator:
    return make_estimator(**options)


@pytest.fixture(scope="module")
def fitted(options: dict[str, Any]) -> Estimator:
    return make_estimator(**options).fit(LISTS, LISTS)


def learned_fields(estimator: Estimator) -> dict[str, Any]:
    return {one.name: getattr(estimator, one.name) for one in fields(estimator) if not one.init}


# fit


def test_fit_returns_the_estimator_itself_and_leaves_lists_and_options_as_they_are(estimator: Estimator) -> None:
    before, options = snapshot(LISTS.batch()), repr(estimator.get_params())
    assert estimator.fit(LISTS, LISTS) is estimator
    assert snapshot(LISTS.batch()) == before
    assert repr(estimator.get_params()) == options


def test_what_is_learned_stands_in_fields_whose_names_end_in_an_underscore(fitted: Estimator) -> None:
    assert learned_fields(fitted).keys() > {"transform_"}
    assert all(name.endswith("_") for name in learned_fields(fitted))
    assert not any(name.endswith("_") for name in fitted.get_params())


def test_without_validation_lists_a_tenth_is_held_out(estimator: Estimator) -> None:
    other = clone(estimator)
    estimator.fit(LISTS)
    if isinstance(estimator, RidgeRanker):  # which has nothing to choose, and learns from all lists
        other.fit(LISTS, LISTS)
    else:
        other.fit(*hold_out(LISTS, seed=1))
    np.testing.assert_array_equal(estimator.rank(TEST.batch()), other.rank(TEST.batch()))


def test_a_tenth_of_the_lists_is_held_out_at_random() -> None:
    lists = ItemLists(np.zeros((42, 1)), np.arange(43), labels=np.ones(42))
    train, valid = hold_out(lists, seed=1)
    assert (len(train), len(valid)) == (38, 4)
    assert {*train.list_ids.to_pylist(), *valid.list_ids.to_pylist()} == set(lists.list_ids.to_pylist())
    assert hold_out(lists, seed=1)[1].list_ids == valid.list_ids
    assert hold_out(lists, seed=2)[1].list_ids != valid.list_ids


def test_what_cannot_be_held_out_is_told() -> None:
    with pytest.raises(DataError, match="give validation lists"):
        hold_out(TEST[6], seed=0)
    with pytest.raises(DataError, match="the training lists have no labels"):
        hold_out(ItemLists(np.zeros((2, 1)), [0, 1, 2]), seed=0)
    one_positive = ItemLists(np.zeros((20, 1)), np.arange(21), labels=np.arange(20) == 0)
    with pytest.raises(DataError, match="no held-out validation list has a positive"):
        hold_out(one_positive, seed=0)


def test_fitting_again_forgets_what_was_learned_before(estimator: Estimator, fitted: Estimator) -> None:
    estimator.fit(LISTS[:20], LISTS[20:]).fit(LISTS, LISTS)
    np.testing.assert_array_equal(estimator.rank(TEST.batch()), fitted.rank(TEST.batch()))


def test_a_fit_that_fails_leaves_the_ranker_unfitted() -> None:
    ranker = make_estimator("ranknet", epochs=1).fit(LISTS, LISTS)
    with pytest.raises(UsageError, match="epochs must be at least 1"):
        ranker.set_params(epochs=0).fit(LISTS, LISTS)
    with pytest.raises(NotFittedError):
        ranker.rank(TEST.batch())


def test_labels_are_asked_for(estimator: Estimator) -> None:
    bare = ItemLists(LISTS.features, LISTS.offsets)
    with pytest.raises(DataError, match="the training lists have no labels: give clicks or grades"):
        estimator.fit(bare, LISTS)
    with pytest.raises(DataError, match="the training lists have no labels: give clicks or grades"):
        estimator.fit(bare)


# Before fit


def test_before_fit_it_says_to_call_fit(estimator: Estimator, tmp_path: Path) -> None:
    message = f"this {type(estimator).__name__} is not fitted yet: call fit first"
    with pytest.raises(NotFittedError, match=message):
        estimator.rank(TEST.batch())
    with pytest.raises(NotFittedError, match=message):
        estimator.predict(TEST)
    with pytest.raises(NotFittedError, match=message):
        estimator.rerank(TEST)
    with pytest.raises(UsageError, match=message):  # which the command line prints in one line
        estimator.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    assert not hasattr(estimator, "transform_")
    with pytest.raises(AttributeError, match="has no attribute 'transfrom_'"):
        estimator.transfrom_  # type: ignore[attr-defined]  # noqa: B018


# Ordering


def test_predict_gives_the_slots_of_rank_from_1(fitted: Estimator) -> None:
    slots, slates = fitted.predict(TEST), fitted.rank(TEST.batch())
    assert slots.shape == (TEST.n_items,)
    for number, length in enumerate(TEST.lengths.tolist()):
        of_list = slots[TEST.offsets[number] : TEST.offsets[number + 1]]
        assert sorted(of_list.tolist()) == list(range(1, length + 1))
        assert np.argsort(of_list).tolist() == slates[number, :length].tolist()


@pytest.mark.parametrize("k", [None, 3])
def test_rerank_gives_the_ids_of_rank(fitted: Estimator, k: int | None) -> None:
    slates = fitted.rerank(TEST, k)
    assert [slate.list_id for slate in slates] == TEST.list_ids.to_pylist()
    for slate, indices, one in zip(slates, fitted.rank(TEST.batch(), k), TEST, strict=True):
        ids = one.item_ids.to_pylist()
        assert slate.item_ids == [ids[index] for index in indices if index >= 0]
        if slate.log_probabilities is not None:
            assert len(slate.log_probabilities) == len(slate.item_ids)


# Missing values and other columns


def with_missing(lists: ItemLists, seed: int, share: float = 0.2) -> ItemLists:
    """Return lists in which some numbers are missing, but for column f3."""
    missing = np.random.default_rng(seed).random(lists.features.shape) < share
    missing[:, 2] = False
    return replace(lists, features=np.where(missing, np.nan, lists.features))


def test_missing_values_are_learned_from_and_ranked(options: dict[str, Any], tmp_path: Path) -> None:
    train, valid, test = (with_missing(lists, seed) for seed, lists in enumerate((LISTS, LISTS, TEST)))
    ranker = make_estimator(**options).fit(train, valid)
    ranker.save(tmp_path / "ranker")
    local = {name: value for name, value in options.items() if name in ranker.local_options}
    check_ranker(ranker, test, save_load=lambda _: load(tmp_path / "ranker").set_params(**local))
    if options["kind"] != "mmr":  # its trade-off may be relevance alone
        assert (ranker.rank(test.batch()) != ranker.rank(TEST.batch())).any()


def test_columns_are_found_by_name_and_others_ignored(fitted: Estimator) -> None:
    order = [2, 0, 4, 3, 1]
    wider = np.column_stack([TEST.features, np.full(TEST.n_items, np.nan)])[:, order]
    other = replace(TEST, features=wider, feature_names=tuple(f"f{place + 1}" for place in order))
    np.testing.assert_array_equal(fitted.rank(other.batch()), fitted.rank(TEST.batch()))
    narrow = replace(TEST, features=TEST.features[:, [0, 2]], feature_names=("f1", "f3"))
    with pytest.raises(DataError, match=r"columns of the training are missing: 'f2', 'f4'; .* there are 'f1', 'f3'"):
        fitted.rank(narrow.batch())


# Options


def test_params_build_the_same_estimator(estimator: Estimator) -> None:
    built = type(estimator)(**estimator.get_params())
    assert repr(built) == repr(estimator)
    assert built.get_params() == estimator.get_params() == clone(estimator).get_params()


def test_options_show_in_the_repr(options: dict[str, Any], estimator: Estimator) -> None:
    given = {name: value for name, value in options.items() if name != "kind"}
    assert estimator.get_params().items() >= given.items()
    defaults = type(estimator)().get_params()
    shown = {name: value for name, value in given.items() if defaults.get(name, ...) != value}
    assert all(f"{name}={value!r}" in repr(estimator) for name, value in shown.items())
    assert repr(type(estimator)()) == f"{type(estimator).__name__}()"
    assert eval(repr(estimator), {type(estimator).__name__: type(estimator)}).get_params() == estimator.get_params()


def test_clones_are_unfitted_and_copies_are_not(fitted: Estimator) -> None:
    with pytest.raises(NotFittedError):
        clone(fitted).rank(TEST.batch())
    np.testing.assert_array_equal(copy.deepcopy(fitted).rank(TEST.batch()), fitted.rank(TEST.batch()))


def test_an_unknown_option_is_refused_with_those_that_there_are(estimator: Estimator) -> None:
    before = estimator.get_params()
    with pytest.raises(UsageError, match="no option 'sauce'") as refused:
        estimator.set_params(seed=99, sauce="tartare")
    configs = (NetworkConfig, TrainingConfig) if isinstance(estimator, Reranker) else (type(estimator),)
    said = str(refused.value).split(";")[1]
    assert all(option.name in said for option in options_of(*configs))
    assert estimator.get_params() == before  # neither of the two was set
    assert estimator.set_params(seed=99) is estimator
    assert estimator.get_params() == before | {"seed": 99}


def test_the_defaults_are_those_of_the_fields(estimator: Estimator) -> None:
    defaults = {option.name: option.default for option in options_of(type(estimator))}
    assert type(estimator)().get_params() == defaults


def test_a_network_checks_its_options_together() -> None:
    with pytest.raises(UsageError, match="no preset 'large'; choose one of default"):
        Reranker().set_params(preset="large")
    with pytest.raises(UsageError, match="no loss 'huber'; choose one of cross-entropy"):
        make_estimator("seq2slate", loss="huber")
    with pytest.raises(UsageError, match="hidden"):
        Reranker(hiden=64).fit(LISTS, LISTS)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_configuration_and_some_stand_where_a_kind_does(preset: str) -> None:
    config = Reranker(preset, seed=3, epochs=2).config
    assert (config.training.seed, config.training.epochs) == (3, 2)
    if preset in NETWORK_PRESETS:
        assert repr(make_estimator(preset, epochs=2)) == f"Reranker(preset={preset!r}, epochs=2)"


# Saving


def test_a_saved_estimator_opens_as_it_was(
    fitted: Estimator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    fitted.save(tmp_path / "saved")
    if "jar" in options:
        monkeypatch.setenv("RANKLIB_JAR", options["jar"])
    opened = load(tmp_path / "saved")
    assert type(opened) is type(fitted)
    assert opened.kind == fitted.kind == options["kind"]
    np.testing.assert_array_equal(opened.rank(TEST.batch()), fitted.rank(TEST.batch()))
    assert learned_fields(opened).keys() == learned_fields(fitted).keys()
    saved = {name: value for name, value in fitted.get_params().items() if name not in fitted.local_options}
    of_this_machine = {name: type(fitted)().get_params()[name] for name in fitted.local_options}
    assert opened.get_params() == saved | of_this_machine


def test_what_belongs_to_this_machine_is_not_saved(fitted: Estimator, tmp_path: Path) -> None:
    fitted.save(tmp_path / "saved")
    content = json.loads((tmp_path / "saved" / "config.json").read_text())["config"]["options"]
    assert not content.keys() & set(fitted.local_options)
    assert {"ranklib": {"jar", "timeout"}, "seq2slate": {"device"}}.get(fitted.kind, set()) == set(fitted.local_options)


def test_lists_of_options_come_back_as_tuples(tmp_path: Path) -> None:
    make_estimator("mmr", trade_offs=[0.5, 1.0], scalings=["none"]).fit(LISTS, LISTS).save(tmp_path / "mmr")
    assert load(tmp_path / "mmr").get_params()["trade_offs"] == (0.5, 1.0)
    Reranker("paper", hidden=4, epochs=1).fit(LISTS, LISTS, quiet=True).save(tmp_path / "network")
    opened = load(tmp_path / "network")
    assert isinstance(opened, Reranker)
    assert len(opened.history_.epochs) == 1


# The command line


@pytest.fixture(scope="module")
def train_help() -> str:
    return seq2slate("train", "--help").out


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_every_option_has_a_help_text_and_is_on_the_command_line(config: type, train_help: str) -> None:
    not_derived = {"columns", "device"}  # each role of a column is an option of its own
    for option in options_of(config):
        assert option.help.endswith("."), f"{config.__name__}.{option.name} has no docstring"
        if option.name not in not_derived:
            assert f"  --{option.name.replace('_', '-')} " in train_help


def test_help_texts_say_whose_option_it_is(train_help: str) -> None:
    words = " ".join(train_help.split())
    assert "--trees <int> mart, lambdamart: Trees to grow, at most; boosting stops" in words
    assert "--epochs <int> Passes over the training lists, at most. Also for ranknet, listnet." in words
    assert "--seed <int> Seed of everything random. --" in words  # everyone's
    assert "--hidden <int> Units of the encoder" in words  # the network's alone


@pytest.fixture
def log(tmp_path: Path) -> Path:
    write(LISTS, tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


def test_an_option_of_a_baseline_is_given_on_the_command_line(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightgbm", reason="LightGBM is not installed")
    flags = ["--ranker", "mart", "--trees", 3, "--no-base-position", "--learning-rate", 0.2, "--seed", 5]
    seq2slate("train", log, "--out", tmp_path / "mart", *flags)
    assert repr(load(tmp_path / "mart")) == "Mart(seed=5, base_position=False, trees=3, learning_rate=0.2)"
    done = seq2slate("train", log, "--out", tmp_path / "x", "--ranker", "mart", "--hidden", 3, code=2)
    options = "seed, columns, base_position, trees, leaves, learning_rate"
    assert done.err == f"error: mart has no option 'hidden'; its options are {options}\n"
    assert not (tmp_path / "x").exists()


def test_an_option_with_several_values_is_given_several_times(log: Path, tmp_path: Path) -> None:
    flags = ["--ranker", "mmr", "--trade-offs", 0.25, "--trade-offs", 1, "--scalings", "none", "--score-column", "f3"]
    seq2slate("train", log, "--out", tmp_path / "mmr", *flags)
    assert repr(load(tmp_path / "mmr")) == "Mmr(trade_offs=(0.25, 1.0), scalings=('none',), score_column='f3')"


def test_options_of_a_network_are_given_on_the_command_line(log: Path, tmp_path: Path) -> None:
    flags = ["--preset", "paper", "--hidden", 6, "--epochs", 1, "--base-prior", "--loss", "hinge", "--seed", 4]
    seq2slate("train", log, "--out", tmp_path / "network", *flags)
    opened = load(tmp_path / "network")
    assert opened.get_params().items() >= {"preset": "paper", "hidden": 6, "base_prior": True, "seed": 4}.items()
    said = seq2slate("train", log, "--out", tmp_path / "x", "--trees", 3, code=2).err
    assert "no option 'trees'; there are" in said
    assert "hidden" in said
    assert "huber" in seq2slate("train", log, "--out", tmp_path / "x", "--loss", "huber", code=2).err
    assert "no ranker 'oracle'" in seq2slate("train", log, "--out", tmp_path / "x", "--ranker", "oracle", code=2).err


# Options of dataclasses


def registries() -> Iterator[str]:
    for config in CONFIGS:
        for one in fields(config):
            if "registry" in one.metadata:
                yield one.metadata["registry"]


@pytest.mark.parametrize("registry", sorted({*registries(), "seq2slate.config:PRESETS"}))
def test_names_read_from_the_source_are_those_of_the_registry(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    live = registry_names(registry)
    assert live
    module = registry.split(":")[0]
    if module in sys.modules:
        monkeypatch.delitem(sys.modules, module)
    assert registry_names(registry) == live
    assert module not in sys.modules


def test_a_registry_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "seq2slate.training.losses", raising=False)
    with pytest.raises(LookupError, match=r"seq2slate\.training\.losses has no dict GAINS"):
        registry_names("seq2slate.training.losses:GAINS")


def test_options_are_read_from_fields_and_the_docstrings_below_them() -> None:
    @dataclass
    class Drink:
        size: float | None = None
        """In litres;
        any if not given."""

    @dataclass
    class Tea(Drink):
        kind: Literal["green", "black"] = "green"
        """Its colour."""
        gain: str = named_in("seq2slate.metrics:METRICS", "NDCG")
        cold: bool = False

    size, kind, gain, cold = options_of(Tea)
    assert (size.name, size.type, size.default, size.help) == ("size", float, None, "In litres; any if not given.")
    assert (kind.type, kind.help) == (str, "Its colour.")
    assert kind.choices is not None
    assert kind.choices() == ("green", "black")
    assert gain.choices is not None
    assert "MAP" in gain.choices()
    assert (cold.help, cold.choices) == ("", None)
    check_choices(Tea())
    with pytest.raises(UsageError, match="no kind 'white'; choose one of green, black"):
        check_choices(Tea(kind="white"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no gain 'tannin'; choose one of MAP"):
        check_choices(Tea(gain="tannin"))


# What is loaded when


def loaded(statement: str) -> set[str]:
    """The heavy packages that a fresh interpreter has loaded after a statement."""
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    return set(done.stdout.split()) & set(HEAVY)


def test_import_seq2slate_loads_nothing_heavy() -> None:
    assert loaded("import seq2slate") == set()
    assert "torch" in loaded("from seq2slate import Reranker")  # so that the test above can fail


def test_only_the_network_loads_something_heavy() -> None:
    names = [name for name in dir(package) if name != "Reranker"]
    assert "ItemLists" in names
    assert loaded(f"from seq2slate import {', '.join(names)}") == set()


def test_the_baselines_load_what_they_need_when_they_need_it() -> None:
    modules = sorted({path.split(":")[0] for path in ESTIMATORS.values() if ".baselines." in path})
    assert loaded(f"import {', '.join(modules)}") == set()


def test_the_command_line_starts_without_pytorch_and_the_web() -> None:
    assert loaded("import seq2slate.cli") == set()
