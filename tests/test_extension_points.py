"""A toy loss, baseline, log database and command, each added in the one place where its kind is added.

The parts of the network and backends are in test_components.py, click models, metrics and file formats in
test_click_models.py, test_metrics.py and test_files.py, HTTP routes in test_rerank_service.py.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from seq2slate.cli import app, learning
from seq2slate.config import TrainingConfig
from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import FloatArray, ItemLists
from seq2slate.errors import UsageError
from seq2slate.estimator import ESTIMATORS, PointwiseEstimator, load, make_estimator
from seq2slate.log.backend import Backend, Durability
from seq2slate.log.impression_log import DATABASES, open_log
from seq2slate.log.sqlite import SqliteBackend
from seq2slate.options import options_of
from seq2slate.reranker import Reranker
from seq2slate.simulation.click_models import click_model, simulate_clicks
from seq2slate.simulation.synthetic import make_synthetic_lists
from seq2slate.training.losses import LOSSES


@pytest.fixture(scope="module")
def log() -> ItemLists:
    return simulate_clicks(
        click_model("diverse"), make_synthetic_lists(60, items=8, world="topics", features=5, seed=1), seed=1
    )


def squared_error(scores: Tensor, labels: Tensor, *, mask: Tensor) -> Tensor:
    gaps = torch.where(mask, scores - labels, 0.0)
    return (gaps**2).sum(-1) * ((labels > 0) & mask).any(-1)


def test_a_new_loss_is_a_function_and_a_name(log: ItemLists, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no loss 'squared-error'"):
        TrainingConfig(loss="squared-error")
    monkeypatch.setitem(LOSSES, "squared-error", squared_error)
    reranker = Reranker("paper", hidden=4, epochs=2, loss="squared-error", policy="greedy").fit(log, quiet=True)
    assert len(reranker.history_.epochs) == 2
    choices = next(option for option in options_of(TrainingConfig) if option.name == "loss").choices
    assert choices is not None
    assert "squared-error" in choices()


@dataclass(eq=False, kw_only=True, repr=False)
class FirstColumn(PointwiseEstimator):
    """Sorts by the column with the largest covariance with the labels."""

    sign: float = 1.0
    """The direction to sort in."""
    column_: int = field(init=False, repr=False)

    kind = "first-column"

    def _fit(self, train: ItemLists, valid: ItemLists) -> None:
        assert train.labels is not None
        centred = train.features - train.features.mean(axis=0)
        self.column_ = int((centred.T @ train.labels).argmax())
        self.transform_ = FeatureTransform.fit(train, categorical=[], context=[])

    def score_items(self, lists: ItemLists) -> FloatArray:
        return self.sign * lists.features[:, self.column_]


def test_a_new_baseline_is_a_class_and_a_name(log: ItemLists, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("toy_baselines")
    module.FirstColumn = FirstColumn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_baselines", module)
    monkeypatch.setitem(ESTIMATORS, "first-column", "toy_baselines:FirstColumn")
    ranker = make_estimator("first-column", sign=-1.0).fit(log)
    ranker.save(tmp_path / "toy")
    opened = load(tmp_path / "toy")
    assert repr(opened) == "FirstColumn(sign=-1.0)"
    np.testing.assert_array_equal(opened.predict(log), ranker.predict(log))


def test_a_new_log_database_is_a_backend_and_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def toy(url: str, durability: Durability, create: bool) -> Backend:
        return SqliteBackend(tmp_path / url.removeprefix("toy://"), durability=durability, create=create)

    with pytest.raises(UsageError, match="no log at toy"):
        open_log("toy://shop")
    monkeypatch.setitem(DATABASES, "toy", toy)
    with open_log("toy://shop") as opened:
        opened.check_writable().result()
    assert (tmp_path / "shop").is_file()


def test_a_new_command_is_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning.app, "registered_commands", [*learning.app.registered_commands])

    @learning.app.command()
    def greet(name: str) -> None:
        """Greet somebody."""
        print(f"good morning, {name}")

    result = CliRunner().invoke(app, ["greet", "Ada"])
    assert result.output == "good morning, Ada\n"
    assert "Greet somebody." in CliRunner().invoke(app, ["--help"]).output
