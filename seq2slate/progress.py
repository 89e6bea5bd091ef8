"""A progress bar for anything that takes longer than a moment; silent where nobody is looking."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")
_PATIENCE = 1.0  # seconds without a bar: quick work should not flicker


def track(steps: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the steps and show how far they are, on standard error and only in a terminal.

    >>> sum(track([1, 2, 3], "adding"))
    6
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from steps
        return
    if total is None and isinstance(steps, Sized):
        total = len(steps)
    started = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(description, total=total)
    shown = False
    try:
        for step in steps:
            yield step
            if not shown and time.monotonic() - started > _PATIENCE:
                bar.start()
                shown = True
            bar.advance(task)
    finally:
        if shown:
            bar.stop()
