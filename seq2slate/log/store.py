"""The log as a service uses it: writes that are acknowledged after their commit, and reads beside them.

One thread writes. It takes everything that is waiting, writes it in one transaction, commits, and only then resolves
the futures: a commit costs the same for one row as for a hundred, so the more is waiting, the less each write costs.

- What fails rejects the futures of its group alone. A connection that failed is opened anew for the next group; while
  that does not succeed, groups are rejected at once and the database is asked again after growing pauses.
- Nothing is written again by itself once its fate is unknown. Whoever gets a StoreError may send the same again: an
  impression stands in the log once for its `slate_id`, a click once for its slate and item.
- A value that the database refuses fails its own write only: the group is halved until that row is alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from time import monotonic, sleep
from types import TracebackType
from typing import Self, get_args

from seq2slate.errors import UsageError
from seq2slate.log.backend import (
    Backend,
    ConflictError,
    Connection,
    Durability,
    StoreBusyError,
    StoreError,
)
from seq2slate.log.counts import (
    ArmCounts,
    Counts,
    Definition,
    MinuteCounts,
    PositionCounts,
    read_counts,
    read_definition,
    read_experiments,
    read_minutes,
)
from seq2slate.log.impressions import ClickOutcome, Columns, Impression, LoggedImpression, is_storable
from seq2slate.log.reading import (
    Range,
    read_column_sets,
    read_contexts,
    read_latencies,
    read_range,
    read_some,
)
from seq2slate.log.schema import migrate
from seq2slate.log.sqlite import SqliteBackend
from seq2slate.log.writer import Writer
from seq2slate.log.writing import NewClick, NewImpression, Probe

__all__ = [
    "ArmCounts",
    "ClickOutcome",
    "Counts",
    "Durability",
    "Impression",
    "LoggedImpression",
    "PositionCounts",
    "Store",
    "StoreBusyError",
    "StoreError",
    "open_store",
]

_CONTEXTS_AT_ONCE = 4096
_FIRST_PRUNED, _MOST_PRUNED = 20, 2000  # slates in one transaction: as many as take the time below,
_SECONDS_OF_PRUNING = 0.01  # so that the writer, who waits for it, is not late
_PRUNE = """DELETE FROM impressions WHERE slate_id IN (
    SELECT slate_id FROM impressions WHERE at < ? ORDER BY at, slate_id LIMIT ?
) RETURNING slate_id"""


def open_store(
    url: str | os.PathLike[str], *, durability: Durability = "process", capacity: int = 2048, create: bool = True
) -> Store:
    """Open a log: a path or `sqlite:///path` is a SQLite file, `postgresql://…` a database of that server.

    `durability` says what an acknowledged write survives: the end of any process ("process"), or the end of the
    machine's power as well ("power"), which costs SQLite a wait for the disk at every commit; PostgreSQL waits anyway.
    `capacity` is how many writes may wait. Without `create` there must be a log already.

    >>> import numpy as np, tempfile, time
    >>> with open_store(f"{tempfile.mkdtemp()}/log.db") as store:
    ...     slate = Impression("s1", time.time(), "user 7", "new model", "base", ["a", "b"], [1], np.ones((2, 3)), 0.8)
    ...     store.add_impression(slate).result()
    ...     print([store.add_click("s1", item, time.time()).result().name for item in "bba"])
    ['NEW', 'DUPLICATE', 'NOT_SHOWN']
    """
    if durability not in get_args(Durability):
        raise UsageError(f'durability must be "process" or "power", got {durability!r}')
    if capacity < 1:
        raise UsageError(f"capacity must be at least 1, got {capacity}")
    return Store(_backend(os.fspath(url), durability, create), capacity=capacity, create=create)


def _backend(url: str, durability: Durability, create: bool) -> Backend:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return SqliteBackend(url, durability=durability, create=create)
    if scheme == "sqlite":
        if not rest.startswith("/") or rest == "/":
            raise UsageError("expected sqlite:///relative/path or sqlite:////absolute/path")
        return SqliteBackend(rest[1:], durability=durability, create=create)
    if scheme in ("postgresql", "postgres"):
        try:
            from seq2slate.log.postgres import PostgresBackend
        except ImportError:
            raise UsageError("a log in PostgreSQL needs psycopg: pip install 'seq2slate[serve]'") from None
        return PostgresBackend(url)
    raise UsageError(f"no log at {scheme}://…; expected a path, sqlite:///path or postgresql://…")


class Store:
    """A log that is open. All methods may be called from any thread; close it, or use it in a `with` block."""

    def __init__(self, backend: Backend, *, capacity: int = 2048, create: bool = True):
        self._backend = backend
        self._create = create
        self._writer = Writer(backend.name, self._connect_to_write, capacity=capacity)

    @property
    def name(self) -> str:
        """Where the log is, without a password."""
        return self._backend.name

    # Writing

    def add_impression(self, impression: Impression) -> Future[None]:
        """Write an impression; the future is resolved after the commit, or fails with a StoreError.

        If its `slate_id` is in the log already, nothing changes and the future is resolved all the same. A full queue
        is a StoreBusyError at once. `asyncio.wrap_future` makes the future one to await.
        """
        return self._writer.add(NewImpression.of(impression))

    def add_click(self, slate_id: str, item_id: str, at: float) -> Future[ClickOutcome]:
        """Write a click on an item of a slate; the future is resolved after the commit."""
        if not is_storable(slate_id):
            unknown: Future[ClickOutcome] = Future()
            unknown.set_result(ClickOutcome.UNKNOWN_SLATE)
            return unknown
        return self._writer.add(NewClick(slate_id, item_id, at))

    def note(self, definition: Definition) -> Future[None]:
        """Keep what has to be known of an experiment to read its counts; the latest note counts."""
        return self._writer.add(definition)

    def check_writable(self) -> Future[None]:
        """Write without changing anything; the future is resolved after the commit, or fails with a StoreError."""
        return self._writer.add(Probe())

    def give_up_after(self, seconds: float) -> None:
        """Cut the connection if what is being written has taken longer: those who wait get a StoreError."""
        self._writer.give_up_after(seconds)

    def prune(self, before: float) -> int:
        """Delete the impressions before a time, with their clicks, and return how many there were.

        Counts keep what they counted. A click on a slate that is gone is UNKNOWN_SLATE.
        """
        connection = self._connect_to_write()
        try:
            total, at_once = 0, _FIRST_PRUNED
            while True:
                started = monotonic()
                deleted = self._prune_some(connection, before, at_once)
                if not deleted:
                    return total
                total += deleted
                took = monotonic() - started
                at_once = max(1, min(_MOST_PRUNED, int(at_once * _SECONDS_OF_PRUNING / max(took, 1e-4))))
                sleep(took)  # a service that writes has half of the time
        finally:
            connection.close()

    def _prune_some(self, connection: Connection, before: float, at_once: int) -> int:
        while True:
            try:
                with connection.transaction():
                    return len(connection.rows(_PRUNE, (before, at_once)))
            except ConflictError:  # a click came to one of these slates at that moment
                continue

    # Reading

    def counts(self, experiment: str) -> Counts:
        """Return the running counts of an experiment."""
        with self._reading() as connection:
            return read_counts(connection, experiment)

    def minutes(self, experiment: str, since: int) -> list[MinuteCounts]:
        """Return what an experiment showed in each minute, from a minute since 1970 on, the earliest first."""
        with self._reading() as connection:
            return list(read_minutes(connection, experiment, since))

    def definition(self, experiment: str) -> Definition | None:
        """Return what was noted of an experiment; None if nothing was."""
        with self._reading() as connection:
            return read_definition(connection, experiment)

    def experiments(self) -> list[str]:
        """Return the names of all experiments that showed anything."""
        with self._reading() as connection:
            return read_experiments(connection)

    def latencies(self, experiment: str, n: int) -> dict[str, list[float]]:
        """Return the milliseconds of an experiment's slates among the last n of the log, by arm."""
        with self._reading() as connection:
            return read_latencies(connection, experiment, n)

    def impressions(
        self,
        since: float | None = None,
        until: float | None = None,
        *,
        arm: str | None = None,
        batch: int = 512,
    ) -> Iterator[LoggedImpression]:
        """Yield impressions by time, from `since` on and before `until`; no more than `batch` are in memory."""
        for page in self.pages(Range(since, until, arm), batch=batch):
            yield from page

    def pages(self, chosen: Range, *, batch: int = 512) -> Iterator[list[LoggedImpression]]:
        """Yield the impressions of a range by time, `batch` at once."""
        if batch < 1:
            raise UsageError(f"batch must be at least 1, got {batch}")
        return read_range(self._reading, chosen, batch)

    def contexts(self, chosen: Range) -> Iterator[str | None]:
        """Yield the context of each impression of a range, as JSON."""
        return read_contexts(self._reading, chosen, _CONTEXTS_AT_ONCE)

    def column_sets(self, chosen: Range) -> list[tuple[Columns, float, float]]:
        """Return the different sets of columns of a range, each with the first and the last time it occurs."""
        with self._reading() as connection:
            return read_column_sets(connection, chosen)

    def recent(self, n: int) -> list[LoggedImpression]:
        """Return the last n impressions, the latest first."""
        with self._reading() as connection:
            return read_some(connection, "ORDER BY at DESC, slate_id DESC LIMIT ?", [n])

    def get(self, slate_id: str) -> LoggedImpression | None:
        """Return one impression, or None if the log does not have it."""
        with self._reading() as connection:
            return next(iter(read_some(connection, "WHERE slate_id = ?", [slate_id])), None)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Open a connection for one read: it sees one moment of the log, and none is left over to go stale."""
        connection = self._backend.connect(read_only=True)
        try:
            with connection.transaction():
                yield connection
        finally:
            connection.close()

    # Opening and closing

    def _connect_to_write(self) -> Connection:
        connection = self._backend.connect()
        try:
            migrate(connection, create=self._create)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Write what is waiting, then let go of the database."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
