"""The one thread that writes: it takes all that is waiting, commits it together, and only then acknowledges it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple

from seq2slate.errors import Seq2SlateError
from seq2slate.log.backend import (
    BadRowError,
    ConflictError,
    Connection,
    StoreBusyError,
    StoreError,
)
from seq2slate.log.impressions import Columns
from seq2slate.log.writing import Entry, columns_in, write

_LARGEST_GROUP = 256  # more in one transaction saves nothing and makes the first of them wait for the last
_CONFLICTS = 5  # how often a transaction that another one undid is tried again
_SECONDS_TO_CLOSE = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds before a database that is away is asked again


class _Waiting(NamedTuple):
    entry: Entry
    done: Future[Any]


class Writer:
    """A queue and the thread that empties it."""

    def __init__(self, name: str, connect: Callable[[], Connection], *, capacity: int):
        self._name = name
        self._connect = connect
        self._capacity = capacity
        self._connection: Connection | None = connect()  # in the caller's thread: a wrong URL is found at once
        self._known_columns: set[Columns] = set()  # those of the last group on this connection: in the log for sure
        self._started: float | None = None
        self._pause, self._closed_until = _FIRST_PAUSE, 0.0
        self._waiting: SimpleQueue[_Waiting | None] = SimpleQueue()
        """None is the last one."""
        self._adding = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="seq2slate-log", daemon=True)
        self._thread.start()

    def add(self, entry: Entry) -> Future[Any]:
        """Hand over an entry; the future is resolved when it is committed or refused."""
        waiting = _Waiting(entry, Future())
        with self._adding:
            if self._closing:
                raise StoreError(f"{self._name}: the log is closed")
            if self._waiting.qsize() >= self._capacity:
                raise StoreBusyError(f"{self._name}: {self._capacity} writes are waiting already")
            self._waiting.put(waiting)
        return waiting.done

    def give_up_after(self, seconds: float) -> None:
        """Cut the connection if the group that is being written has taken longer."""
        started, connection = self._started, self._connection
        if started is not None and connection is not None and monotonic() - started > seconds:
            connection.interrupt()

    def close(self) -> None:
        """Write what is waiting, then stop; a database that says nothing is not waited for for ever."""
        with self._adding:
            self._closing = True
            self._waiting.put(None)
        self._thread.join(_SECONDS_TO_CLOSE)
        if self._thread.is_alive():
            self.give_up_after(0)
            self._thread.join(_SECONDS_TO_CLOSE)

    def _run(self) -> None:
        is_open = True
        while is_open:
            group, is_open = self._next_group()
            accepted = [waiting for waiting in group if waiting.done.set_running_or_notify_cancel()]
            if accepted:
                self._started = monotonic()
                self._write(accepted)
                self._started = None
        self._disconnect()

    def _next_group(self) -> tuple[list[_Waiting], bool]:
        """Return what is waiting, as soon as there is something, and whether more may come."""
        group: list[_Waiting] = []
        while waiting := self._waiting.get():
            group.append(waiting)
            if len(group) == _LARGEST_GROUP or self._waiting.empty():
                return group, True
        return group, False

    def _write(self, group: Sequence[_Waiting]) -> None:
        try:
            outcomes = self._commit([waiting.entry for waiting in group])
        except BadRowError as error:
            self._known_columns = set()  # in case it was they that the row missed
            if len(group) == 1:
                group[0].done.set_exception(error)
            else:
                middle = len(group) // 2
                self._write(group[:middle])
                self._write(group[middle:])
        except Exception as error:  # whatever it is, those who wait must hear of it and the thread must live
            self._disconnect()
            for waiting in group:
                waiting.done.set_exception(_as_store_error(error, self._name))
        else:
            for waiting, outcome in zip(group, outcomes, strict=True):
                waiting.done.set_result(outcome)

    def _commit(self, entries: Sequence[Entry]) -> Sequence[Any]:
        connection = self._connected()
        for _ in range(_CONFLICTS):
            try:
                with connection.transaction():
                    outcomes = write(connection, entries, self._known_columns)
                self._known_columns = columns_in(entries)
                return outcomes
            except ConflictError as error:  # surely undone: to try again cannot write twice
                conflict = error
        raise conflict

    def _connected(self) -> Connection:
        if self._connection is None:
            if monotonic() < self._closed_until:
                raise StoreError(f"{self._name}: cannot be reached; trying again soon")
            try:
                self._connection = self._connect()
            except (Seq2SlateError, OSError):
                self._closed_until = monotonic() + self._pause
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                raise
            self._pause = _FIRST_PAUSE
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._known_columns = set()


def _as_store_error(error: Exception, name: str) -> StoreError:
    """Return an error of its own for each who waits: an exception that several threads raise mixes their tracebacks."""
    failure = StoreError(str(error) if isinstance(error, Seq2SlateError) else f"{name}: {error}")
    failure.__cause__ = error
    return failure
