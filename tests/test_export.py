"""The exported file gives the network's slates, and is not written when it does not."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import torch
from scipy.special import expit
from typer.testing import CliRunner

from seq2slate.baselines.linear import RidgeRanker
from seq2slate.cli import app
from seq2slate.config import NetworkConfig
from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import Ranker
from seq2slate.errors import DataError, UsageError
from seq2slate.model.backends import onnx_export as export
from seq2slate.model.backends.onnx import ITEM_CODES, OnnxRanker
from seq2slate.model.backends.onnx_export import export_onnx, onnx_model
from seq2slate.model.backends.onnx_graph import FLOAT, Graph, Value
from seq2slate.model.backends.parity import LENGTHS, TIE, compare, random_batches
from seq2slate.model.slate_model import SlateModel
from tests.checks import check_ranker, mixed_lists
from tests.reference_network import VARIANTS, randomise
from tests.served_models import lists_for, model_for

FEW = np.array([1, 2, 3, 20, 30, 200] * 5)
"""Lengths to compare on, where the thousand of a real export would take too long."""


def exported(model: SlateModel) -> OnnxRanker:
    return OnnxRanker(onnx_model(model))


# The same as the network


@pytest.mark.parametrize("variant", VARIANTS)
def test_slates_and_log_probabilities_are_the_network_s(variant: str) -> None:
    lists = lists_for(variant)
    model = model_for(variant, lists)
    ranker = exported(model)
    for k in (None, 1, 7, 500):
        decoded = model.decode(lists, k)
        slates, logs = ranker.slates(lists.batch(), k)
        assert slates.tolist() == decoded.slates.tolist()
        np.testing.assert_allclose(logs, decoded.log_probabilities, rtol=0, atol=3e-5)
        assert slates.dtype == np.int64
        assert logs.dtype == np.float32


@pytest.mark.parametrize("variant", ["paper", "everything", "everything, attention, gru"])
def test_a_comparison_passes(variant: str) -> None:
    lists = lists_for(variant)
    model = model_for(variant, lists)
    parity = compare(model, exported(model), lengths=FEW)
    assert parity.n_lists == len(FEW)
    assert 0 <= parity.largest_gap < 1e-4
    assert parity.near_ties < 10


def test_items_may_have_no_numeric_column() -> None:
    colours = ["red", "green", "blue", "red", "grey", "green", "blue", "red", "red", "green"]
    lists = ItemLists(np.zeros((10, 0)), [0, 4, 9, 10], categorical={"colour": colours})
    model = SlateModel.create(lists, NetworkConfig(hidden=4, interaction="pairwise"))
    randomise(model.network, 1)
    assert compare(model, exported(model), lengths=FEW).largest_gap < 1e-4


@pytest.mark.parametrize("variant", ["paper", "everything", "attention"])
def test_padding_may_hold_anything(variant: str) -> None:
    lists = lists_for(variant, lengths=(2, 0, 9, 1))
    ranker = exported(model_for(variant, lists))
    inputs = ranker.inputs(lists.batch())
    slates, logs = ranker.run(inputs, 9)
    there = lists.batch().mask
    spoiled = inputs | {"features": np.where(there[:, :, None], inputs["features"], np.float32(np.nan))}
    spoiled |= {name: np.where(there, codes, 1) for name, codes in inputs.items() if name.startswith(ITEM_CODES)}
    again, logs_again = ranker.run(spoiled, 9)
    assert again.tolist() == slates.tolist()
    assert logs_again.tolist() == logs.tolist()


@pytest.mark.parametrize("scaling", ["signed-log", "standardise", "none"])
def test_every_scaling_is_in_the_file(scaling: Any) -> None:
    lists = lists_for("paper")
    plain = model_for("paper", lists)
    model = SlateModel(FeatureTransform.fit(lists, scaling=scaling), plain.network)
    assert (exported(model).rank(lists.batch()) == model.rank(lists.batch())).all()


@pytest.mark.parametrize(
    ("name", "function", "low"),
    [("log1p", np.log1p, -0.999), ("expm1", np.expm1, -12.0), ("exact_sigmoid", expit, -80.0)],
)
def test_functions_keep_their_digits_where_they_are_small(name: str, function: Any, low: float) -> None:
    tiny = np.logspace(-30, -1, 200)
    x = np.concatenate([tiny, -tiny, np.linspace(low, 40, 1000)]).astype(np.float32)
    graph = Graph()
    value = getattr(Value, name)(graph.input("features", FLOAT, ["n"]))
    content = graph.model({"y": (value, FLOAT, ["n"])}, {})
    (found,) = onnxruntime.InferenceSession(content).run(None, {"features": x})
    expected: npt.NDArray[np.float64] = function(x.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)


# What a comparison is worth


def test_a_thousand_lists_of_1_to_200_items_are_compared() -> None:
    assert len(LENGTHS) >= 1000
    assert set(LENGTHS.tolist()) == set(range(1, 201))


def test_the_lists_are_in_the_range_of_the_columns_with_duplicates_and_unknown_words() -> None:
    lists = lists_for("everything")
    model = model_for("everything", lists)
    batches = list(random_batches(model.transform, LENGTHS[:300], 0))
    encoded = [model.transform.apply(batch.lists) for batch in batches]
    dense = np.concatenate([one.dense for one in encoded])
    assert (dense.min(), dense.max()) == (-10, 10)  # the ends of the range, and not many
    assert 0.0001 < (np.abs(dense) == 10).mean() < 0.05
    assert 1 < dense.std() < 3
    for name, vocabulary in model.transform.categorical.items():
        codes = np.concatenate([one.categorical[name] for one in encoded])
        assert set(codes.tolist()) == set(range(vocabulary.n_codes))
    distinct = [len(np.unique(one.features, axis=0)) / len(one.features) for b in batches for one in b.lists]
    assert sum(share < 1 for share in distinct) > 60
    assert sum(share <= 0.5 for share in distinct) > 20


@pytest.mark.parametrize("variant", ["paper", "one-step", "everything"])
def test_other_weights_are_refused_with_the_list_and_the_slot(variant: str) -> None:
    lists = lists_for(variant)
    other = exported(model_for(variant, lists, seed=1))
    with pytest.raises(
        DataError,
        match=r"random list \d+ of \d+ items, slot \d+: (.* no tie; the network.s slate is \[|the log-probability is)",
    ):
        compare(model_for(variant, lists), other, lengths=FEW)


@torch.no_grad()
def test_other_log_probabilities_are_refused_though_the_slates_are_equal() -> None:
    lists = lists_for("base prior")
    model = model_for("base prior", lists)
    assert model.network.prior is not None
    model.network.strength.fill_(1.0)
    model.network.v.zero_()
    model.network.prior.copy_(-torch.arange(64.0) / 30)
    other = exported(model)
    model.network.prior.mul_(1.01)
    with pytest.raises(DataError, match=r"random list \d+ of 2 items, slot 0: the log-probability is -0.31"):
        compare(model, other, lengths=np.array([1, 2]))


@pytest.mark.parametrize("variant", ["paper", "one-step"])
@torch.no_grad()
def test_slates_that_differ_in_ties_pass_and_are_counted(variant: str) -> None:
    lists = lists_for(variant)
    model = model_for(variant, lists)
    model.network.v.mul_(TIE / 100)  # no two scores differ by more
    other = exported(model)
    model.network.v.neg_()
    parity = compare(model, other, lengths=FEW)
    differing = sum(length > 1 for length in FEW)
    assert 0.5 * differing < parity.near_ties <= differing
    assert f"but for {parity.near_ties} with scores so near each other" in str(parity)


# The file


def saved_model(folder: Path, config: NetworkConfig | None = None) -> SlateModel:
    lists = mixed_lists(0)
    model = SlateModel.create(lists, config or NetworkConfig(hidden=8, base_prior=True, interaction="pairwise"))
    randomise(model.network, 0)
    model.save(folder)
    return model


def test_the_command_writes_a_file_that_says_what_it_was_made_from(tmp_path: Path) -> None:
    model = saved_model(tmp_path / "model")
    result = CliRunner().invoke(app, ["export", str(tmp_path / "model")])
    assert result.exit_code == 0, result.output
    assert "model.onnx: slates equal on 1,000 random lists" in result.output
    ranker = OnnxRanker(tmp_path / "model" / "model.onnx", threads=2)
    weights = (tmp_path / "model" / "weights.safetensors").read_bytes()
    assert ranker.weights_sha256 == hashlib.sha256(weights).hexdigest()
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert ranker.weights_sha256 == manifest["files"]["weights.safetensors"]
    lists = mixed_lists(1)
    assert (ranker.rank(lists.batch()) == model.rank(lists.batch())).all()
    onnx.checker.check_model(onnx.load(tmp_path / "model" / "model.onnx"), full_check=True)


def test_nothing_is_written_when_the_slates_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = saved_model(tmp_path / "model", NetworkConfig(hidden=8))
    randomise(model.network, 1)
    content = onnx_model(model)
    monkeypatch.setattr(export, "onnx_model", lambda *_, **__: content)
    with pytest.raises(DataError, match="nothing was written"):
        export_onnx(tmp_path / "model", tmp_path / "out" / "model.onnx")
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "seq2slate.model.backends.onnx_export",
        "seq2slate.model.backends.onnx_graph",
    ):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = CliRunner().invoke(app, ["export", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == "onnx is not installed: pip install 'seq2slate[serve]'"


def test_what_is_no_network_is_refused(tmp_path: Path) -> None:
    RidgeRanker().fit(mixed_lists(0)).save(tmp_path / "ridge")
    with pytest.raises(UsageError, match="'ridge' ranker, and only a network"):
        export_onnx(tmp_path / "ridge", tmp_path / "model.onnx")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(DataError, match=r"model\.onnx cannot be opened"):
        OnnxRanker(tmp_path / "model.onnx")
    graph = Graph()
    content = graph.model({"y": (graph.input("x", FLOAT, ["n"]).tanh(), FLOAT, ["n"])}, {})
    with pytest.raises(DataError, match="not made by `seq2slate export`"):
        OnnxRanker(content)


# A ranker


@pytest.mark.parametrize("variant", ["paper", "one-step", "pairwise and prior", "attention"])
def test_battery(variant: str, tmp_path: Path) -> None:
    lists = mixed_lists(0)
    content = onnx_model(model_for(variant, lists))
    (tmp_path / "model.onnx").write_bytes(content)

    def save_load(_: Ranker) -> Ranker:
        return OnnxRanker(tmp_path / "model.onnx")

    check_ranker(OnnxRanker(content), lists, save_load=save_load)


def test_an_exported_model_does_not_need_pytorch(tmp_path: Path) -> None:
    lists = mixed_lists(0)
    (tmp_path / "model.onnx").write_bytes(onnx_model(model_for("paper", lists)))
    program = (
        "import sys, numpy as np; from seq2slate import ItemLists;"
        "from seq2slate.model.backends.onnx import OnnxRanker;"
        "ranker = OnnxRanker(sys.argv[1]); print(ranker.rank(ItemLists(np.eye(4), [0, 4]).batch(), 2).shape);"
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "model.onnx")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert output.split("\n")[:2] == ["(1, 2)", "False"]


def test_the_columns_of_the_training_are_asked_for() -> None:
    lists = lists_for("paper")
    ranker = exported(model_for("paper", lists))
    with pytest.raises(DataError, match="missing: 'f3'; there are 2 where the training had 3"):
        ranker.rank(ItemLists(np.zeros((2, 2)), [0, 2]).batch())
    with pytest.raises(UsageError, match="k must be at least 1"):
        ranker.rank(lists.batch(), 0)
