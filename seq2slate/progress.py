"""Progress on standard error: a bar in a terminal, and nothing but plain lines in a log or a pipe."""

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
