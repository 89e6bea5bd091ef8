"""The folder of a model is whole or absent: damage is found, replacing is atomic, a kill leaves the old or the new."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from seq2slate import atomic
from seq2slate.config import NetworkConfig
from seq2slate.data.lists import ItemLists
from seq2slate.errors import DataError, UsageError
from seq2slate.estimator import load
from seq2slate.model.backends import onnx_export
from seq2slate.model.backends.onnx import OnnxRanker
from seq2slate.model.backends.onnx_export import export_onnx
from seq2slate.model.backends.parity import compare
from seq2slate.model.slate_model import SlateModel
from seq2slate.saving import MANIFEST, load_saved
from seq2slate.serving.deployment import load_deployment

CORE = ["config.json", "features.json", "manifest.json", "weights.safetensors"]
FLIPS = 80
TWO_RANKERS = """
import os, signal, sys
import numpy as np
from seq2slate.saving import SavedRanker, load_saved
folder = sys.argv[1]
rankers = [SavedRanker("ridge", {"number": n}, {"w": np.full(1000, float(n))}, str(n)) for n in (1, 2)]
def check():
    saved = load_saved(folder)
    numbers = {saved.config["number"], int(saved.features), *map(int, saved.weights["w"])}
    assert len(numbers) == 1, numbers
    return numbers.pop()
"""


def lists() -> ItemLists:
    features = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    return ItemLists(features, np.arange(0, 61, 6), labels=(features[:, 0] > 0.3))


def network(folder: Path, seed: int = 0) -> SlateModel:
    model = SlateModel.create(lists(), NetworkConfig(hidden=4), seed=seed)
    model.save(folder)
    return model


def python(program: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", TWO_RANKERS + program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]", timeout: float = 120) -> str:
    out, error = process.communicate(timeout=timeout)
    assert process.returncode == 0, error
    return out


@pytest.fixture(autouse=True)
def few_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare few lists in an export: these tests are about files."""
    monkeypatch.setattr(onnx_export, "compare", partial(compare, lengths=np.array([3])))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    network(folder)
    export_onnx(folder, folder / "model.onnx")
    assert sorted(os.listdir(folder)) == sorted([*CORE, "model.onnx"])
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "model"))


# Damage


@pytest.mark.parametrize("name", [*CORE, "model.onnx"])
def test_a_flipped_byte_anywhere_in_any_file_is_refused_with_its_name(folder: Path, name: str) -> None:
    """By `load`, by the service, and by whoever runs the exported file."""
    good, rng = (folder / name).read_bytes(), np.random.default_rng(0)
    places = {0, len(good) - 1, *rng.integers(0, len(good), FLIPS).tolist()}
    readers: list[Callable[[], object]] = [lambda: load(folder), lambda: OnnxRanker(folder / "model.onnx")]
    for place in places:
        damaged = bytearray(good)
        damaged[place] ^= int(rng.integers(1, 256))
        (folder / name).write_bytes(damaged)
        for reader in readers:
            with pytest.raises(DataError, match=f"model/{name} (is damaged|does not match its checksum)"):
                reader()
    with pytest.raises(DataError, match=f"model/{name} "):
        load_deployment(folder)
    (folder / name).write_bytes(good)
    assert load_deployment(folder).models


@pytest.mark.parametrize("name", [*CORE, "model.onnx"])
def test_a_missing_or_short_file_is_refused_with_its_name(folder: Path, name: str) -> None:
    file = folder / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"model/{name} (is damaged|does not match its checksum)"):
        load(folder)
    file.unlink()
    with pytest.raises(DataError, match=f"model/{name} is missing"):
        load(folder)


def test_a_folder_of_format_2_without_a_manifest_still_opens(tmp_path: Path) -> None:
    """As seq2slate 0.2 wrote it; an export into it adds the manifest."""
    folder = tmp_path / "model"
    model = network(folder)
    head = json.loads((folder / "config.json").read_text())
    weights = hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps({**head, "format": 2, "weights_sha256": weights}))
    (folder / MANIFEST).unlink()
    batch = lists().batch()
    np.testing.assert_array_equal(load(folder).rank(batch), model.rank(batch))
    export_onnx(folder, folder / "model.onnx")
    assert sorted(json.loads((folder / MANIFEST).read_text())["files"]) == [
        "config.json",
        "features.json",
        "model.onnx",
        "weights.safetensors",
    ]
    np.testing.assert_array_equal(load(folder).rank(batch), OnnxRanker(folder / "model.onnx").rank(batch))
    (folder / MANIFEST).unlink()
    (folder / "weights.safetensors").write_bytes((folder / "weights.safetensors").read_bytes()[:-1] + b"\0")
    with pytest.raises(DataError, match=r"does not match its checksum in config\.json"):
        load(folder)


# Exports into the folder


def test_an_export_keeps_what_else_is_in_the_folder(tmp_path: Path) -> None:
    network(tmp_path / "model")
    (tmp_path / "model" / "notes").mkdir()
    (tmp_path / "model" / "notes" / "why.txt").write_text("because")
    for _ in range(2):
        export_onnx(tmp_path / "model", tmp_path / "model" / "model.onnx")
    assert (tmp_path / "model" / "notes" / "why.txt").read_text() == "because"
    assert os.listdir(tmp_path) == ["model"]
    (tmp_path / "model" / "notes" / "why.txt").write_text("no reason")  # not a file of the model
    assert load(tmp_path / "model")


def test_an_export_of_a_model_that_was_replaced_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network(tmp_path / "model")
    few = partial(compare, lengths=np.array([3]))

    def replace_and_compare(model: SlateModel, ranker: OnnxRanker) -> object:
        network(tmp_path / "model", seed=1)
        return few(model, ranker)

    monkeypatch.setattr(onnx_export, "compare", replace_and_compare)
    with pytest.raises(DataError, match="model was replaced meanwhile: nothing was written"):
        export_onnx(tmp_path / "model", tmp_path / "model" / "model.onnx")
    assert sorted(os.listdir(tmp_path / "model")) == CORE
    assert os.listdir(tmp_path) == ["model"]


def test_an_export_does_not_damage_a_model(tmp_path: Path) -> None:
    network(tmp_path / "model")
    network(tmp_path / "other")
    for name in CORE:
        with pytest.raises(UsageError, match="a file of the ranker itself"):
            export_onnx(tmp_path / "model", tmp_path / "model" / name)
    with pytest.raises(UsageError, match="other holds another model"):
        export_onnx(tmp_path / "model", tmp_path / "other" / "model.onnx")
    assert load(tmp_path / "model")
    (tmp_path / "model" / "stray.onnx").write_bytes(b"")
    with pytest.raises(DataError, match=r"stray.onnx is not in manifest.json"):
        OnnxRanker(tmp_path / "model" / "stray.onnx")


# Replacing


def test_a_link_leads_to_the_new_model(tmp_path: Path) -> None:
    network(tmp_path / "version-1")
    (tmp_path / "current").symlink_to("version-1")
    network(tmp_path / "current", seed=1)
    assert (tmp_path / "current").is_symlink()
    assert load_saved(tmp_path / "current").checksums == load_saved(tmp_path / "version-1").checksums
    assert sorted(os.listdir(tmp_path)) == ["current", "version-1"]


def test_a_file_system_that_cannot_exchange_gets_two_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network(tmp_path / "model")
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    network(tmp_path / "model", seed=1)
    assert os.listdir(tmp_path) == ["model"]
    assert load(tmp_path / "model")


def test_weights_are_as_readable_as_the_files_beside_them(tmp_path: Path) -> None:
    network(tmp_path / "model")
    assert len({path.stat().st_mode for path in (tmp_path / "model").iterdir()}) == 1


@pytest.mark.slow
def test_a_model_that_is_replaced_all_the_time_is_never_mixed_and_never_missing(tmp_path: Path) -> None:
    rounds = 200
    writers = [
        python("for n in range(int(sys.argv[2])): rankers[n % 2].save(folder)", tmp_path / "model", rounds)
        for _ in range(2)
    ]
    while not (tmp_path / "model").exists():
        assert writers[0].poll() is None
    reader = python(
        "import time\nn, until = [0, 0, 0], time.monotonic() + 600\n"
        "while not os.path.exists(sys.argv[2]) and time.monotonic() < until: n[check()] += 1\nprint(*n)",
        tmp_path / "model",
        tmp_path / "stop",
    )
    for writer in writers:
        finish(writer)
    (tmp_path / "stop").touch()
    _, ones, twos = map(int, finish(reader).split())
    assert min(ones, twos) > 10, "the reader has seen both models"
    assert sorted(os.listdir(tmp_path)) == ["model", "stop"]


KILLED_AT_EVERY_LINE = """
rankers[0].save(folder)
modules = ("atomic.py", "saving.py", "manifest.py", "tempfile.py", "shutil.py")
def killed_at(number):
    left = [number]
    def trace(frame, event, _):
        if os.path.basename(frame.f_code.co_filename) not in modules: return None
        if event == "line":
            left[0] -= 1
            if not left[0]: os.kill(os.getpid(), signal.SIGKILL)
        return trace
    child = os.fork()
    if not child:
        sys.settrace(trace)
        rankers[1].save(folder)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])
number, found, left_behind = 1, [], 0
while killed_at(number):
    found.append(check())
    left_behind += len(os.listdir(os.path.dirname(folder))) > 1
    rankers[0].save(folder)
    assert os.listdir(os.path.dirname(folder)) == [os.path.basename(folder)]
    number += 1
print(number - 1, found.count(1), found.count(2), left_behind)
"""


@pytest.mark.slow
def test_a_kill_at_any_line_leaves_the_old_model_or_the_new_one(tmp_path: Path) -> None:
    out = finish(python(KILLED_AT_EVERY_LINE, tmp_path / "models" / "model"))
    kills, old, new, left_behind = map(int, out.split())
    assert kills == old + new
    assert min(old, new) > 10, "kills before and after the exchange"
    assert left_behind > 10, "and the next writer deleted it"
