"""What people see of a run: one live line, a line for each epoch, and TensorBoard scalars."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from seq2slate.errors import UsageError
from seq2slate.training.config import TrainingConfig


class Watch:
    """Shows a run on standard error, and writes it for TensorBoard if asked to."""

    def __init__(self, config: TrainingConfig, tensorboard: Path | None, *, quiet: bool) -> None:
        self._config = config
        self._aim = "reward" if config.policy == "reinforce" else "loss"
        self._console = Console(stderr=True, quiet=quiet)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[state]}"))
        self._bar = Progress(
            *columns, TextColumn("left"), TimeRemainingColumn(), console=self._console, transient=True,
            disable=quiet or not self._console.is_terminal,
        )  # fmt: skip
        self._task: TaskID | None = None
        self._writer = None if tensorboard is None else _summary_writer(tensorboard)
        self._began = time.monotonic()
        self._lists_seen = 0
        self._value = float("nan")

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._writer is not None:
            self._writer.close()

    def say(self, message: str) -> None:
        """Print a line of its own."""
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def epoch_begins(self, epoch: int, n_lists: int, done: int) -> None:
        """Begin to count the lists of an epoch, of which some may be done already."""
        self._began, self._lists_seen = time.monotonic(), 0
        if self._task is None:
            self._task = self._bar.add_task("", total=n_lists * self._config.epochs, state="")
        self._bar.update(
            self._task, completed=n_lists * epoch + done, description=f"epoch {epoch + 1}/{self._config.epochs}"
        )

    def step(self, step: int, loss: float, n_lists: int, rate: float, norm: float) -> None:
        """Show one step."""
        self._lists_seen += n_lists
        speed = self._lists_seen / max(1e-9, time.monotonic() - self._began)
        state = f"{self._aim} {loss:.4f} · {self._config.measure} {self._value:.4f} · {speed:,.0f} lists/s"
        if self._task is not None:
            self._bar.update(self._task, advance=n_lists, state=state)
        if self._writer is not None:
            self._writer.add_scalar(f"train/{self._aim}", loss, step)
            self._writer.add_scalar("train/learning_rate", rate, step)
            self._writer.add_scalar("train/gradient_norm", norm, step)
            self._writer.add_scalar("train/lists_per_second", speed, step)

    def epoch_ends(self, epoch: int, step: int, loss: float, value: float, *, better: bool) -> None:
        """Print the epoch's line."""
        self._value = value
        speed = self._lists_seen / max(1e-9, time.monotonic() - self._began)
        mark = "  best so far" if better else ""
        self.say(
            f"epoch {epoch + 1:3d}  {self._aim} {loss:8.4f}  {self._config.measure} {value:.4f}"
            f"  {speed:7,.0f} lists/s{mark}"
        )
        if self._writer is not None:
            self._writer.add_scalar(f"valid/{self._config.measure}", value, step)


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("TensorBoard is not installed: pip install 'seq2slate[tensorboard]'") from error
    return SummaryWriter(str(folder))
