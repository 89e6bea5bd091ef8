"""Progress on standard error: a bar in a terminal, and nothing but plain lines in a log or a pipe.

A training run also prints a line for each epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")
_PATIENCE = 1.0  # seconds before `track` shows a bar: quick work should not flicker
_SPEED_PERIOD = 600.0  # seconds over which the time left is estimated: a step may take minutes


class ProgressBar:
    """A bar with a description, a state text and the time left; lines of text go above it.

    >>> with ProgressBar(3, "counting", quiet=True) as bar:
    ...     bar.update(advance=1, state="one")
    """

    def __init__(self, total: int | None, description: str = "", *, completed: int = 0, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self.is_visible = self._console.is_terminal and not quiet
        state = TextColumn("{task.fields[state]}")
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), state, TimeRemainingColumn(),
            console=self._console, transient=True, disable=not self.is_visible, speed_estimate_period=_SPEED_PERIOD,
        )  # fmt: skip
        self._task = self._bar.add_task(description, total=total, completed=completed, state="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_visible:  # older versions of Rich end a bar that was not shown with an empty line
            self._bar.stop()

    def update(
        self,
        *,
        advance: int | None = None,
        completed: int | None = None,
        total: int | None = None,
        description: str | None = None,
        state: str | None = None,
    ) -> None:
        """Change what the bar shows; None leaves a part as it is."""
        if self.is_visible:
            fields: dict[str, Any] = {} if state is None else {"state": state}
            self._bar.update(
                self._task, advance=advance, completed=completed, total=total, description=description, **fields
            )

    def say(self, line: str) -> None:
        """Print a line above the bar, unless `quiet`."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def say(text: str) -> None:
    """Print text as it is on standard error."""
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)


def track(steps: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the steps and show how many are done, if they take longer than a second.

    Args:
        steps: What to iterate over.
        description: The text before the bar.
        total: The number of steps, for an iterator without a length.

    >>> sum(track([1, 2, 3], "adding"))
    6
    """
    if total is None and isinstance(steps, Sized):
        total = len(steps)
    bar = ProgressBar(total, description)
    if not bar.is_visible:
        yield from steps
        return
    began, shown = time.monotonic(), False
    try:
        for step in steps:
            yield step
            if not shown and time.monotonic() - began > _PATIENCE:
                bar.__enter__()
                shown = True
            bar.update(advance=1)
    finally:
        if shown:
            bar.__exit__()


class TrainingProgress(ProgressBar):
    """Shows a training run on standard error: a line for the base order, one for each epoch, and one for the result.

    Args:
        epochs: The most epochs that the run can take.
        aim: What a step reports: `loss` or `reward`.
        measure: The validation measure.
        base: Its value for the base order.
        quiet: Show nothing.
    """

    def __init__(self, epochs: int, aim: str, measure: str, base: float, *, quiet: bool = False) -> None:
        super().__init__(None, quiet=quiet)
        self._epochs, self._aim, self._measure, self._base = epochs, aim, measure, base
        self._began, self._lists_seen = time.monotonic(), 0
        self._value = base

    def run_begins(self, n_lists: int, n_valid: int) -> None:
        """Print how many lists there are, and the score of the base order."""
        self.say(f"training on {n_lists:,} lists, validating on {n_valid:,}")
        self.say(f"base order {'':{len(self._aim) + 8}}{self._measure} {self._base:.4f}")

    def epoch_begins(self, epoch: int, n_lists: int, done: int) -> None:
        """Begin to count the lists of an epoch, of which some may be done already."""
        self._began, self._lists_seen = time.monotonic(), 0
        epochs = self._epochs
        self.update(total=n_lists * epochs, completed=n_lists * epoch + done, description=f"epoch {epoch + 1}/{epochs}")

    def step(self, loss: float, n_lists: int) -> None:
        """Show one training step: the mean loss of the epoch so far."""
        self._lists_seen += n_lists
        state = f"{self._aim} {loss:.4f} · {self._measure} {self._value:.4f} · {self.speed:,.0f} lists/s"
        self.update(advance=n_lists, state=state)

    def epoch_ends(self, epoch: int, loss: float, value: float, *, better: bool) -> None:
        """Print the epoch's line."""
        self._value = value
        self.say(
            f"epoch {epoch + 1:3d}  {self._aim} {loss:8.4f}  {self._measure} {value:.4f} {value - self._base:+.4f}"
            f"  {self.speed:7,.0f} lists/s{'  best so far' if better else ''}"
        )

    @property
    def speed(self) -> float:
        """Lists per second in this epoch."""
        return self._lists_seen / max(1e-9, time.monotonic() - self._began)
