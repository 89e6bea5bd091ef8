"""A saved ranker opens as it was, and a damaged or newer folder is refused."""

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from seq2slate.baselines.linear import RidgeRanker
from seq2slate.baselines.parsing import parse_ranker, parse_rankers
from seq2slate.data.lists import ItemLists
from seq2slate.errors import DataError, UsageError
from seq2slate.estimator import ESTIMATORS, NETWORK_PRESETS, load, make_estimator
from seq2slate.saving import FORMAT, write_manifest
from seq2slate.simulation.synthetic import make_synthetic_lists

pytestmark = pytest.mark.filterwarnings("ignore::seq2slate.errors.DataWarning")  # odd labels, and leaks to be learned


FILES = ["config.json", "features.json", "weights.safetensors"]


def rewrite(folder: Path, name: str, text: str) -> None:
    """Write a file that is wrong and not damaged: its checksum is right."""
    (folder / name).write_text(text)
    write_manifest(folder, FILES)


@pytest.fixture
def lists() -> ItemLists:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 4))
    return ItemLists(features, np.arange(0, 61, 6), labels=(features[:, 0] > 0.3))


@pytest.fixture
def folder(lists: ItemLists, tmp_path: Path) -> Path:
    RidgeRanker().fit(lists).save(tmp_path / "ridge")
    return tmp_path / "ridge"


def test_save_and_load_give_the_same_slates(lists: ItemLists, folder: Path) -> None:
    batch = lists.batch()
    np.testing.assert_array_equal(load(folder).rank(batch), RidgeRanker().fit(lists).rank(batch))
    assert sorted(os.listdir(folder)) == sorted([*FILES, "manifest.json"])


def test_saving_again_replaces_the_folder_and_leaves_nothing_else(lists: ItemLists, folder: Path) -> None:
    RidgeRanker().fit(lists[:5]).save(folder)
    assert os.listdir(folder.parent) == ["ridge"]
    assert load(folder)


@pytest.mark.parametrize(("mask", "of_files", "of_folder"), [(0o022, 0o644, 0o755), (0o027, 0o640, 0o750)])
def test_others_may_read_every_file_as_the_umask_says(
    lists: ItemLists, tmp_path: Path, mask: int, of_files: int, of_folder: int
) -> None:
    before = os.umask(mask)
    try:
        RidgeRanker().fit(lists).save(tmp_path / "ridge")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "ridge").iterdir()}
    assert modes == dict.fromkeys(["config.json", "features.json", "manifest.json", "weights.safetensors"], of_files)
    assert stat.S_IMODE((tmp_path / "ridge").stat().st_mode) == of_folder


def test_saving_does_not_touch_a_folder_of_something_else(lists: ItemLists, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"meow")
    with pytest.raises(DataError, match="photos is not empty and not a saved ranker"):
        RidgeRanker().fit(lists).save(tmp_path / "photos")
    assert os.listdir(tmp_path) == ["photos"]
    assert os.listdir(tmp_path / "photos") == ["cat.png"]


def test_a_newer_format_is_refused_with_its_version(folder: Path) -> None:
    head = json.loads((folder / "config.json").read_text())
    rewrite(folder, "config.json", json.dumps(head | {"format": FORMAT + 1}))
    with pytest.raises(DataError, match=f"format {FORMAT + 1}.*reads {FORMAT}: update seq2slate"):
        load(folder)


def test_the_format_of_the_first_version_is_refused_with_what_to_do(folder: Path) -> None:
    head = json.loads((folder / "config.json").read_text())
    rewrite(folder, "config.json", json.dumps(head | {"format": 1, "config": {}}))
    with pytest.raises(
        DataError, match=rf"{folder} has format 1, of an older seq2slate, .* train it again, or open it with"
    ):
        load(folder)


@pytest.mark.parametrize("damage", ['{"version": 1', '{"version": 1}', "[]"])
def test_damaged_features_are_an_error_that_names_the_folder(folder: Path, damage: str) -> None:
    rewrite(folder, "features.json", damage)
    with pytest.raises(DataError, match=rf"{folder}: the saved features: damaged"):
        load(folder)
    (folder / "features.json").unlink()
    with pytest.raises(DataError, match=rf"{folder}/features\.json is missing"):
        load(folder)


def test_files_that_do_not_belong_together_are_an_error_that_names_the_folder(folder: Path) -> None:
    head = json.loads((folder / "config.json").read_text())
    configs: list[dict[str, object]] = [
        {},
        {"options": {"trees": 3}, "learned": {}},
        {"options": [], "learned": {}},
    ]
    for config in configs:
        rewrite(folder, "config.json", json.dumps(head | {"config": config}))
        with pytest.raises(DataError, match=rf"{folder}: the files of this ridge ranker do not belong together"):
            load(folder)


def test_damage_is_noticed(folder: Path) -> None:
    good = (folder / "config.json").read_text()
    weights = bytearray((folder / "weights.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "weights.safetensors").write_bytes(weights)
    with pytest.raises(DataError, match="checksum"):
        load(folder)
    for damage in ('{"format": 1', '{"format": "1", "ranker": "", "config": {}}', "[]"):
        (folder / "weights.safetensors").write_bytes(b"")
        rewrite(folder, "config.json", damage)
        with pytest.raises(DataError, match=r"config\.json is damaged"):
            load(folder)
    rewrite(folder, "config.json", good)
    with pytest.raises(DataError, match="ridge cannot be read"):
        load(folder)
    for name in ("manifest.json", "config.json"):
        (folder / name).unlink()
    with pytest.raises(DataError, match="not a saved ranker"):
        load(folder)
    with pytest.raises(DataError, match="not a folder"):
        load(folder / "features.json")


def test_a_name_is_taken_from_the_text_or_the_folder(folder: Path) -> None:
    assert parse_ranker(f"mine={folder}")[0] == "mine"
    assert parse_ranker(str(folder))[0] == "ridge"
    assert parse_ranker("first=base")[0] == "first"
    with pytest.raises(UsageError, match="neither a folder nor"):
        parse_ranker("nothing=here")
    with pytest.raises(UsageError, match="name the user"):
        parse_ranker("ceiling-shown")


@pytest.mark.parametrize("kind", [kind for kind in (*ESTIMATORS, *NETWORK_PRESETS) if kind != "ranklib"])
def test_every_estimator_is_fitted_saved_and_opened_by_its_name(kind: str, tmp_path: Path) -> None:
    if kind in ("mart", "lambdamart", "random-forest"):
        pytest.importorskip("lightgbm", reason="LightGBM is not installed")
    lists = make_synthetic_lists(40, items=8, world="topics", features=6, seed=0)
    ranker = make_estimator(kind, seed=1).fit(lists, lists)
    ranker.save(tmp_path / kind)
    np.testing.assert_array_equal(load(tmp_path / kind).rank(lists.batch()), ranker.rank(lists.batch()))


def test_an_estimator_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no ranker 'oracle' to train; choose one of seq2slate, ridge"):
        make_estimator("oracle")


def test_two_rankers_need_two_names(folder: Path) -> None:
    assert list(parse_rankers(["base", f"mine={folder}"])) == ["base", "mine"]
    with pytest.raises(UsageError, match="two rankers are called 'base'"):
        parse_rankers(["base", "base=random"])


def test_an_unknown_kind_is_named(folder: Path) -> None:
    head = json.loads((folder / "config.json").read_text())
    rewrite(folder, "config.json", json.dumps(head | {"ranker": "oracle"}))
    with pytest.raises(DataError, match=r"'oracle'.*ridge"):
        load(folder)
