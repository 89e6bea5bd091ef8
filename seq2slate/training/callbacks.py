"""Callbacks of a training run, and ready ones for TensorBoard and MLflow.

A callback is a `Callback`, or a plain function that is called after every epoch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from seq2slate.errors import UsageError

if TYPE_CHECKING:
    from seq2slate.training.fit import History


@dataclass(frozen=True)
class StepReport:
    """One training step."""

    step: int
    """Steps so far, from 1."""
    aim: str
    """What is reported: `loss`, or `reward` for REINFORCE."""
    loss: float
    """Mean of the epoch so far."""
    learning_rate: float
    gradient_norm: float
    lists_per_second: float


@dataclass(frozen=True)
class EpochReport:
    """One epoch, after the validation lists were ranked."""

    epoch: int
    """From 1."""
    step: int
    """Steps so far."""
    aim: str
    """What is reported: `loss`, or `reward` for REINFORCE."""
    loss: float
    measure: str
    """The validation measure, such as `NDCG@10`."""
    value: float
    """Its mean over the validation lists."""
    base: float
    """The same of the base order."""
    is_best: bool
    """Whether no epoch before was better."""
    learning_rate: float


class Callback:
    """What a callback may have: every method does nothing."""

    def begin(self, options: Mapping[str, Any]) -> None:
        """Before the first step; `options` are those of network and training."""

    def step(self, report: StepReport) -> None:
        """After every step."""

    def epoch(self, report: EpochReport) -> bool | None:
        """After every epoch; True ends the run."""

    def end(self, history: History | None) -> None:
        """After the run; `history` is None if it failed or was interrupted."""


EpochFunction: TypeAlias = Callable[[EpochReport], object]


class _EpochCallback(Callback):
    def __init__(self, function: EpochFunction) -> None:
        self._function = function

    def epoch(self, report: EpochReport) -> bool | None:
        return ends_run(self._function(report))


def ends_run(wish: object) -> bool:
    """Say whether what `Callback.epoch` returned ends the run: True does, of Python or NumPy, and nothing else."""
    return isinstance(wish, bool | np.bool_) and bool(wish)


def as_callback(one: Callback | EpochFunction) -> Callback:
    """Return a callback as it is, and a function as one."""
    if isinstance(one, Callback):
        return one
    if callable(one) and not isinstance(one, type):
        return _EpochCallback(one)
    raise UsageError(f"a callback is a Callback or a function of an EpochReport, not {one!r}")


class TensorBoardCallback(Callback):
    """Writes scalars for TensorBoard: `train/…` after every step, `valid/…` after every epoch.

    Args:
        folder: Where the event file is written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError("TensorBoard is not installed: pip install 'seq2slate[tensorboard]'") from error
        self._writer = SummaryWriter(os.fspath(folder))

    def step(self, report: StepReport) -> None:
        """Write loss, learning rate, gradient norm and speed."""
        values = {
            report.aim: report.loss,
            "learning_rate": report.learning_rate,
            "gradient_norm": report.gradient_norm,
            "lists_per_second": report.lists_per_second,
        }
        for name, value in values.items():
            self._writer.add_scalar(f"train/{name}", value, report.step)

    def epoch(self, report: EpochReport) -> None:
        """Write the validation measure, of the model and of the base order."""
        self._writer.add_scalar(f"valid/{report.measure}", report.value, report.step)
        self._writer.add_scalar(f"valid/{report.measure} of the base order", report.base, report.step)

    def end(self, history: History | None) -> None:
        """Close the event file."""
        self._writer.close()


class MLflowCallback(Callback):
    """Logs options and metrics to MLflow: to the active run or, without one, to a run of its own.

    Metrics are logged after every epoch. The tracking server is MLflow's own setting (`mlflow.set_tracking_uri`).
    """

    def __init__(self) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise UsageError("MLflow is not installed: pip install 'seq2slate[mlflow]'") from error
        self._mlflow: Any = mlflow
        self._owns_run = False

    def begin(self, options: Mapping[str, Any]) -> None:
        """Log the options; start a run if none is active."""
        if self._mlflow.active_run() is None:
            self._mlflow.start_run()
            self._owns_run = True
        self._mlflow.log_params(dict(options))

    def epoch(self, report: EpochReport) -> None:
        """Log the loss and the validation measure, of the model and of the base order."""
        measure = report.measure.replace("@", "_at_")  # MLflow allows no @ in a name
        metrics = {report.aim: report.loss, f"valid_{measure}": report.value, f"valid_{measure}_base": report.base}
        self._mlflow.log_metrics(metrics, step=report.epoch)

    def end(self, history: History | None) -> None:
        """End the run, if it was started here."""
        if self._owns_run:
            self._mlflow.end_run("FINISHED" if history is not None else "FAILED")
            self._owns_run = False
