"""What people see while cells are done: a bar, what is running, and a line for each cell that is done."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from seq2slate.reproduce.cells import Cell
from seq2slate.reproduce.workers import Failure


class CellBar:
    """Watches the cells of a run, on standard error."""

    def __init__(self, total: int, *, done: int) -> None:
        console = Console(stderr=True)
        columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=total, completed=done)
        self._began: dict[Cell, float] = {}
        self.failures: dict[Cell, Failure] = {}
        """The cells without a result."""
        if done:
            self._say(f"{done} of {total} cells are there already")

    def __enter__(self) -> CellBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begins(self, cell: Cell) -> None:
        """Show that a cell is running."""
        self._began[cell] = time.monotonic()
        self._show_running()

    def ends(self, cell: Cell, failure: Failure | None) -> None:
        """Print how long a cell took, or why it failed."""
        seconds = time.monotonic() - self._began.pop(cell)
        if failure is not None:
            self.failures[cell] = failure
        self._say(f"{cell}: {seconds:.1f} s" if failure is None else f"{cell}: failed: {failure.reason}")
        self._bar.advance(self._task)
        self._show_running()

    def _show_running(self) -> None:
        self._bar.update(self._task, description=" · ".join(map(str, self._began)))

    def _say(self, message: str) -> None:
        self._bar.console.print(message, highlight=False, markup=False, soft_wrap=True)
