"""Worker processes that do cells: what one of them runs into, or dies of, costs one cell and no other.

Workers are spawned, so that none inherits threads or locks, and each has its share of the cores. They are out of reach
of Ctrl-C, which is for the main process to answer, and end when it ends, however it does.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Protocol

from seq2slate.errors import Seq2SlateError, TrainingInterruptedError
from seq2slate.reproduce.cells import Cell
from seq2slate.reproduce.settings import Settings
from seq2slate.reproduce.work import do_cell


@dataclass(frozen=True)
class Failure:
    """Why a cell has no result."""

    reason: str
    """In a line."""
    details: str
    """With the place in the code."""


class Watcher(Protocol):
    """Somebody who wants to know how far the work is."""

    def begins(self, cell: Cell) -> None:
        """Take note that a cell is begun."""

    def ends(self, cell: Cell, failure: Failure | None) -> None:
        """Take note that a cell is done, or given up."""


def do_cells(cells: Sequence[Cell], out: Path, settings: Settings, *, jobs: int, watcher: Watcher) -> None:
    """Do all cells, several at a time; one at a time is done in this process."""
    if jobs == 1:
        for cell in cells:
            watcher.begins(cell)
            watcher.ends(cell, _attempt(cell, out, settings))
        return
    waiting = list(reversed(cells))
    workers: list[_Worker] = []
    try:
        while waiting or any(worker.cell for worker in workers):
            while waiting and len(workers) < jobs:
                workers.append(_Worker(out, settings, threads=max(1, (os.cpu_count() or 1) // jobs)))
            for worker in workers:
                if worker.cell is None and waiting:
                    watcher.begins(waiting[-1])
                    worker.begin(waiting.pop())
            ready = wait([worker.connection for worker in workers if worker.cell])
            for worker in [worker for worker in workers if worker.connection in ready]:
                cell, failure, is_alive = worker.end()
                watcher.ends(cell, failure)
                if not is_alive:
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.process.terminate()
            worker.process.join()


class _Worker:
    """A process, and what it is doing."""

    def __init__(self, out: Path, settings: Settings, *, threads: int) -> None:
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
        assert self.cell is not None, "asked only when there is an answer"
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


def _serve(connection: Connection, out: Path, settings: Settings) -> None:
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


def _attempt(cell: Cell, out: Path, settings: Settings) -> Failure | None:
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
