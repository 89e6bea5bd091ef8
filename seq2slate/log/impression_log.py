"""The log as a service uses it: writes that are acknowledged after their commit, and reads beside them.

An impression is in the log once for its `slate_id`, a click once for its slate and item: whoever gets a LogError may
send the same again. `log.writer` says how writes are grouped and what happens when they fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from math import isfinite
from time import monotonic, sleep
from typing import Self, get_args

from seq2slate.data.impressions import Impression, is_storable
from seq2slate.errors import DataError, UsageError
from seq2slate.experiments.counts import Definition
from seq2slate.log.backend import Backend, ConflictError, Connection, Durability
from seq2slate.log.reading import LogReader
from seq2slate.log.schema import migrate
from seq2slate.log.sqlite import SqliteBackend
from seq2slate.log.writer import ClickOutcome, NewClick, NewImpression, Probe, Writer

_FIRST_PRUNED, _MOST_PRUNED = 20, 2000  # slates in one transaction: as many as take the time below,
_PRUNE_SECONDS = 0.01  # so that the writer, which waits for it, is not late
_PRUNE = """DELETE FROM impressions WHERE slate_id IN (
    SELECT slate_id FROM impressions WHERE at < ? ORDER BY at, slate_id LIMIT ?
) RETURNING slate_id"""
_COUNT_PRUNED = "UPDATE pruned SET slates = slates + ?"  # `log check` compares the counts with the rows that are left


CAPACITY = 2048
"""Writes that may wait for their commit; one more is refused at once."""


def open_log(
    url: str | os.PathLike[str],
    *,
    durability: Durability = "process",
    capacity: int = CAPACITY,
    create: bool = True,
    turns: int | None = None,
) -> ImpressionLog:
    """Open a log: a path or `sqlite:///path` is a SQLite file, `postgresql://…` a database of that server.

    Args:
        url: Where the log is.
        durability: What an acknowledged write survives: the end of any process ("process"), or a power failure as well
            ("power"), for which SQLite waits for the disk at every commit; PostgreSQL always does.
        capacity: How many writes may wait.
        create: Make the log if there is none.
        turns: A file, open for writing, that processes inherit which write to one SQLite file: they take turns then, so
            that none waits long. PostgreSQL has a queue of its own.

    >>> import numpy as np, tempfile, time
    >>> with open_log(f"{tempfile.mkdtemp()}/log.db") as log:
    ...     slate = Impression("s1", time.time(), "user 7", "new model", "base", ["a", "b"], [1], np.ones((2, 3)), 0.8)
    ...     log.add_impression(slate).result()
    ...     print([log.add_click("s1", item, time.time()).result().name for item in "bba"])
    ['NEW', 'DUPLICATE', 'NOT_SHOWN']
    """
    if durability not in get_args(Durability):
        raise UsageError(f'durability must be "process" or "power", got {durability!r}')
    if capacity < 1:
        raise UsageError(f"capacity must be at least 1, got {capacity}")
    backend = backend_for(os.fspath(url), durability, create)
    if isinstance(backend, SqliteBackend):
        backend.turns = turns
    return ImpressionLog(backend, capacity=capacity, create=create)


def backend_for(url: str, durability: Durability = "process", create: bool = True) -> Backend:
    """Return the database that a URL names; nothing is opened yet."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return SqliteBackend(url, durability=durability, create=create)
    if scheme not in DATABASES:
        raise UsageError(f"no log at {scheme}://…; expected a path, sqlite:///path or postgresql://…")
    return DATABASES[scheme](url, durability, create)


def _sqlite(url: str, durability: Durability, create: bool) -> Backend:
    path = url.removeprefix("sqlite://")
    if not path.startswith("/") or path == "/":
        raise UsageError("expected sqlite:///relative/path or sqlite:////absolute/path")
    return SqliteBackend(path[1:], durability=durability, create=create)


def _postgres(url: str, durability: Durability, create: bool) -> Backend:
    try:
        from seq2slate.log.postgres import PostgresBackend
    except ImportError:
        raise UsageError("a log in PostgreSQL needs psycopg: pip install 'seq2slate[serve]'") from None
    return PostgresBackend(url)


DATABASES: dict[str, Callable[[str, Durability, bool], Backend]] = {
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
}
"""What opens a log, by the scheme of its URL: called with the URL, the durability, and whether to create it."""


class ImpressionLog(LogReader):
    """An open log. All methods may be called from any thread; close it, or use it in a `with` block."""

    def __init__(self, backend: Backend, *, capacity: int = CAPACITY, create: bool = True):
        super().__init__(backend)
        self._prepare = partial(migrate, create=create)
        self._writer = Writer(backend.name, backend.connect, self._prepare, capacity=capacity)

    def add_impression(self, impression: Impression) -> Future[None]:
        """Write an impression without clicks; the future is resolved after the commit, or fails with a LogError.

        If its `slate_id` is in the log already, nothing changes and the future is resolved all the same. A full queue
        is a LogBusyError at once. `asyncio.wrap_future` makes the future awaitable.
        """
        if impression.clicks:
            raise DataError(f"impression {impression.slate_id!r} has clicks; log them with add_click")
        return self._writer.add(NewImpression.of(impression))

    def add_click(self, slate_id: str, item_id: str, at: float) -> Future[ClickOutcome]:
        """Write a click on an item of a slate; the future is resolved after the commit."""
        if not isfinite(at):
            raise DataError(f"click on {item_id!r} of slate {slate_id!r}: the time must be finite, got {at}")
        if not is_storable(slate_id):
            unknown: Future[ClickOutcome] = Future()
            unknown.set_result(ClickOutcome.UNKNOWN_SLATE)
            return unknown
        return self._writer.add(NewClick(slate_id, item_id, at))

    def note(self, definition: Definition) -> Future[None]:
        """Record the settings of an experiment that an analysis needs; the latest replace earlier ones."""
        return self._writer.add(definition)

    def check_writable(self) -> Future[None]:
        """Write without changing anything; the future is resolved after the commit, or fails with a LogError."""
        return self._writer.add(Probe())

    def has_its_files(self) -> bool:
        """Say, in microseconds, whether the files look as at the last commit; if not, `check_writable` tells more."""
        return self._writer.has_its_files()

    @property
    def damage(self) -> str | None:
        """What happened to the files of the log, if it takes no more writes until it is opened again."""
        return getattr(self._backend, "damage", None)

    def give_up_after(self, seconds: float) -> None:
        """Interrupt a transaction that has taken longer: those who wait for it get a LogError."""
        self._writer.give_up_after(seconds)

    def prune(self, before: float) -> int:
        """Delete the impressions before a time, with their clicks, and return their number.

        The running counts stay. A click on a deleted slate is UNKNOWN_SLATE.
        """
        connection = self._backend.connect()
        try:
            self._prepare(connection)
            total, at_once = 0, _FIRST_PRUNED
            while True:
                started = monotonic()
                deleted = _prune_some(connection, before, at_once)
                if not deleted:
                    return total
                total += deleted
                took = monotonic() - started
                at_once = max(1, min(_MOST_PRUNED, int(at_once * _PRUNE_SECONDS / max(took, 1e-4))))
                sleep(took)  # leaves half of the time to a service that writes
        finally:
            connection.close()

    def close(self) -> None:
        """Write what is waiting, then close the connection."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _prune_some(connection: Connection, before: float, at_once: int) -> int:
    while True:
        try:
            with connection.transaction():
                deleted = len(connection.rows(_PRUNE, (before, at_once)))
                connection.rows(_COUNT_PRUNED, (deleted,))
                return deleted
        except ConflictError:  # a click on one of these slates was committed at that moment
            continue
