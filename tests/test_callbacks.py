"""Callbacks: what they are told, how they end a run, and the ready ones for TensorBoard and MLflow."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seq2slate.data.ranker import BaseOrder
from seq2slate.errors import TrainingStoppedError, UsageError
from seq2slate.metrics import Measure, measure_ranker
from seq2slate.model.slate_model import SlateModel
from seq2slate.training.callbacks import Callback, EpochReport, MLflowCallback, StepReport, TensorBoardCallback
from seq2slate.training.fit import History, advice, run_training
from tests.test_fit import QUICK, SMALL, TRAIN, VALID


class Notes(Callback):
    def __init__(self) -> None:
        self.options: Mapping[str, Any] = {}
        self.steps: list[StepReport] = []
        self.epochs: list[EpochReport] = []
        self.ends: list[History | None] = []

    def begin(self, options: Mapping[str, Any]) -> None:
        self.options = options

    def step(self, report: StepReport) -> None:
        self.steps.append(report)

    def epoch(self, report: EpochReport) -> None:
        self.epochs.append(report)

    def end(self, history: History | None) -> None:
        self.ends.append(history)


def run(*callbacks: Any, **options: Any) -> History:
    config = replace(QUICK, **options)
    return run_training(SlateModel.create(TRAIN, SMALL), TRAIN, VALID, config, callbacks=callbacks, quiet=True)


def test_a_callback_sees_every_step_and_epoch() -> None:
    notes = Notes()
    history = run(notes)
    assert notes.options.items() >= {"hidden": 16, "epochs": 3, "learning_rate": 3e-3}.items()
    assert [report.step for report in notes.steps] == list(range(1, len(notes.steps) + 1))
    assert [(report.epoch, report.loss, report.value) for report in notes.epochs] == [
        (number, entry["loss"], entry["NDCG@10"]) for number, entry in enumerate(history.epochs, start=1)
    ]
    assert notes.epochs[-1].step == notes.steps[-1].step
    assert notes.ends == [history]


def test_the_base_order_stands_beside_the_model() -> None:
    notes = Notes()
    history = run(notes)
    measure = Measure("NDCG", 10)
    base = float(np.nanmean(measure_ranker(BaseOrder(), VALID, [measure])[measure]))
    assert history.base == base
    assert {report.base for report in notes.epochs} == {base}


def test_a_function_is_called_after_every_epoch_and_true_ends_the_run() -> None:
    values: list[float] = []
    assert len(run(lambda report: values.append(report.value)).epochs) == len(values) == 3
    assert len(run(lambda report: report.epoch == 2).epochs) == 2
    assert len(run(lambda report: "not True").epochs) == 3


def test_all_callbacks_are_called_even_if_the_first_ends_the_run() -> None:
    notes = Notes()
    run(lambda report: True, notes)
    assert len(notes.epochs) == 1


def test_a_single_function_and_a_bool_of_numpy_will_do() -> None:
    history = run_training(
        SlateModel.create(TRAIN, SMALL), TRAIN, VALID, QUICK, callbacks=lambda report: np.bool_(True), quiet=True
    )
    assert len(history.epochs) == 1


def test_what_is_no_callback_is_refused() -> None:
    with pytest.raises(UsageError, match="a callback is a Callback or a function"):
        run("tensorboard")


def test_a_run_that_fails_ends_its_callbacks() -> None:
    notes = Notes()
    with pytest.raises(TrainingStoppedError, match="the loss is nan"):
        run(notes, learning_rate=1e30, clip_norm=1e30)
    assert notes.ends == [None]


def test_tensorboard_gets_its_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = run(TensorBoardCallback(tmp_path), epochs=2)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.value for event in events.Scalars("valid/NDCG@10")] == pytest.approx(
        [entry["NDCG@10"] for entry in history.epochs]
    )
    assert {"train/loss", "train/learning_rate", "train/gradient_norm"} <= set(events.Tags()["scalars"])


def test_mlflow_gets_options_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder instead of a server
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    history = run(MLflowCallback(), epochs=2)
    assert mlflow.active_run() is None
    client = mlflow.MlflowClient()
    (logged,) = client.search_runs(["0"])
    assert logged.info.status == "FINISHED"
    assert logged.data.params["hidden"] == "16"
    values = [one.value for one in client.get_metric_history(logged.info.run_id, "valid_NDCG_at_10")]
    assert values == pytest.approx([entry["NDCG@10"] for entry in history.epochs])


# What a run says


def test_a_run_prints_the_base_order_every_epoch_and_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    model = SlateModel.create(TRAIN, SMALL)
    history = run_training(model, TRAIN, VALID, replace(QUICK, learning_rate=1e-2))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("training on ")
    assert lines[1].split() == ["base", "order", "NDCG@10", f"{history.base:.4f}"]
    gain = history.epochs[0]["NDCG@10"] - history.base
    assert f"{history.epochs[0]['NDCG@10']:.4f} {gain:+.4f}" in lines[2]
    assert lines[-1] == str(history)
    assert f"base order {history.base:.4f} → {history.best:.4f} ({history.best / history.base - 1:+.1%})" in lines[-1]


def history_of(*values: float, base: float = 0.5) -> History:
    best = max(range(len(values)), key=values.__getitem__)
    return History([{"NDCG@10": value, "loss": 1.0, "learning_rate": 0.1} for value in values], best, "NDCG@10", base)


def test_a_model_that_is_not_better_than_the_base_order_comes_with_advice() -> None:
    config = replace(QUICK, epochs=3, learning_rate=3e-3)
    assert advice(history_of(0.4, 0.6, 0.5), config, 5000) is None
    said = advice(history_of(0.3, 0.4, 0.5), config, 200) or ""
    assert said.startswith("warning: the model is not better than the base order")
    assert "200 with a positive and a second item are few" in said
    assert "epochs=6" in said
    said = advice(history_of(0.5, 0.5), config, 5000) or ""
    assert "no list changed yet (epochs=12)" in said
    said = advice(history_of(0.4, 0.3), config, 5000) or ""
    assert "learning_rate=0.001" in said
    assert "few" not in said


def test_the_history_is_a_table_in_a_notebook() -> None:
    page = history_of(0.4, 0.6)._repr_html_()
    assert page.count("<tr>") == 4
    assert "2 (best)" in page
    assert "base order" in page
