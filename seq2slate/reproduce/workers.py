"""Worker processes that do cells, and the bar that shows them: an error or a crash costs one cell and no other.

Workers are spawned, so that none inherits threads or locks, and each has its share of the cores. Ctrl-C reaches the
main process alone. Workers end when it ends, in whatever way.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from seq2slate.errors import Seq2SlateError, TrainingInterruptedError
from seq2slate.progress import ProgressBar
from seq2slate.reproduce.plan import Cell
from seq2slate.reproduce.sizes import RunSettings
from seq2slate.reproduce.work import do_cell


@dataclass(frozen=True)
class Failure:
    """Why a cell has no result."""

    reason: str
    """In a line."""
    details: str
    """With the place in the code."""


class CellBar(ProgressBar):
    """A bar over the cells of a run, the cells that are running, and a line for each that has ended."""

    def __init__(self, total: int, *, done: int) -> None:
        super().__init__(total, "cells", completed=done)
        self._began: dict[Cell, float] = {}
        self.failures: dict[Cell, Failure] = {}
        """The cells without a result."""
        if done:
            self.say(f"{done} of {total} cells are there already")

    def begins(self, cell: Cell) -> None:
        """Show that a cell is running."""
        self._began[cell] = time.monotonic()
        self._show()

    def ends(self, cell: Cell, failure: Failure | None) -> None:
        """Print how long a cell took, or why it failed."""
        seconds = time.monotonic() - self._began.pop(cell)
        if failure is not None:
            self.failures[cell] = failure
        self.say(f"{cell}: {seconds:.1f} s" if failure is None else f"{cell}: failed: {failure.reason}")
        self._show(advance=1)

    def _show(self, advance: int = 0) -> None:
        self.update(advance=advance, state=" · ".join(map(str, self._began)))


def do_cells(cells: Sequence[Cell], out: Path, settings: RunSettings, *, jobs: int, bar: CellBar) -> None:
    """Do all cells, `jobs` at a time in worker processes; a single job runs in this process."""
    if jobs == 1:
        for cell in cells:
            bar.begins(cell)
            bar.ends(cell, _attempt(cell, out, settings))
        return
    waiting = list(reversed(cells))
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.cell for worker in workers):
            while waiting and len(workers) < jobs:
                workers.append(_Worker(out, settings, threads=max(1, (os.cpu_count() or 1) // jobs)))
            for worker in workers:
                if worker.cell is None and waiting:
                    bar.begins(waiting[-1])
                    worker.begin(waiting.pop())
            ready = wait([worker.connection for worker in workers if worker.cell])
            for worker in [worker for worker in workers if worker.connection in ready]:
                cell, failure, is_alive = worker.end()
                bar.ends(cell, failure)
                if not is_alive:
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()


class _Worker:
    """A process, and the cell that it is doing."""

    def __init__(self, out: Path, settings: RunSettings, *, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, out, settings), daemon=True)
        with _environment(OMP_NUM_THREADS=str(threads)):  # read when the libraries are loaded, and never again
            self.process.start()
        theirs.close()  # so that its end is seen here
        self.cell: Cell | None = None

    def begin(self, cell: Cell) -> None:
        self.cell = cell
        with suppress(OSError):  # it died while it had nothing to do: `end` will find out
            self.connection.send(cell)

    def end(self) -> tuple[Cell, Failure | None, bool]:
        """Return the cell, what went wrong with it, and whether the process can do more."""
        assert self.cell is not None, "a worker that answers has a cell"
        cell, self.cell = self.cell, None
        try:
            return cell, self.connection.recv(), True
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            reason = f"its process ended with code {code}" + (
                ": was memory short? Try fewer --jobs" if code == -9 else ""
            )
            return cell, Failure(reason, reason), False


def _serve(connection: Connection, out: Path, settings: RunSettings) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        connection.send(_attempt(connection.recv(), out, settings))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _attempt(cell: Cell, out: Path, settings: RunSettings) -> Failure | None:
    try:
        do_cell(cell, out, settings)
    except TrainingInterruptedError as interruption:
        raise KeyboardInterrupt from interruption
    except Exception as error:  # whatever it is, the other cells have nothing to do with it
        name = "" if isinstance(error, Seq2SlateError) else f"{type(error).__name__}: "
        return Failure(f"{name}{error}", traceback.format_exc())
    return None


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables for the processes that are started inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
