"""What people see of a training run: a live bar, a line for each epoch, and TensorBoard scalars."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from seq2slate.errors import UsageError
from seq2slate.progress import ProgressBar
from seq2slate.training.config import TrainingConfig


class Watch(ProgressBar):
    """Shows a run on standard error and, given a folder, writes its scalars for TensorBoard."""

    def __init__(self, config: TrainingConfig, tensorboard: Path | None, *, quiet: bool) -> None:
        super().__init__(None, quiet=quiet)
        self._config = config
        self._aim = "reward" if config.policy == "reinforce" else "loss"
        self._writer = None if tensorboard is None else _summary_writer(tensorboard)
        self._began, self._lists_seen = time.monotonic(), 0
        self._value = float("nan")

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._writer is not None:
            self._writer.close()

    def epoch_begins(self, epoch: int, n_lists: int, done: int) -> None:
        """Begin to count the lists of an epoch, of which some may be done already."""
        self._began, self._lists_seen = time.monotonic(), 0
        epochs = self._config.epochs
        self.update(total=n_lists * epochs, completed=n_lists * epoch + done, description=f"epoch {epoch + 1}/{epochs}")

    def step(self, step: int, loss: float, n_lists: int, rate: float, norm: float) -> None:
        """Show one training step: the mean loss of the epoch so far, the learning rate and the gradient norm."""
        self._lists_seen += n_lists
        state = f"{self._aim} {loss:.4f} · {self._config.measure} {self._value:.4f} · {self._speed:,.0f} lists/s"
        self.update(advance=n_lists, state=state)
        self._write(step, f"train/{self._aim}", loss)
        self._write(step, "train/learning_rate", rate)
        self._write(step, "train/gradient_norm", norm)
        self._write(step, "train/lists_per_second", self._speed)

    def epoch_ends(self, epoch: int, step: int, loss: float, value: float, *, better: bool) -> None:
        """Print the epoch's line."""
        self._value = value
        self.say(
            f"epoch {epoch + 1:3d}  {self._aim} {loss:8.4f}  {self._config.measure} {value:.4f}"
            f"  {self._speed:7,.0f} lists/s{'  best so far' if better else ''}"
        )
        self._write(step, f"valid/{self._config.measure}", value)

    @property
    def _speed(self) -> float:
        return self._lists_seen / max(1e-9, time.monotonic() - self._began)

    def _write(self, step: int, name: str, value: float) -> None:
        if self._writer is not None:
            self._writer.add_scalar(name, value, step)


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("TensorBoard is not installed: pip install 'seq2slate[tensorboard]'") from error
    return SummaryWriter(str(folder))
