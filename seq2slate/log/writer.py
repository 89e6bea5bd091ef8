"""The one thread that writes: group commit, the rows that a group becomes, and what it adds to the running counts.

The writer takes everything that is waiting, writes it in one transaction, commits, and only then resolves the futures:
a commit costs the same for one row as for a hundred, so the longer the queue, the cheaper each write.

- A failure rejects the futures of its group alone. The connection is then reopened for the next group; while that
  fails, groups are rejected at once and the database is retried with exponential backoff.
- Rows are made here, too: JSON in the thread of the caller would be JSON in a service's event loop.
- A value that the database refuses fails its own write only: the group is halved until that row is alone.
- A transaction that another one rolled back is retried. Nothing else is: once a commit fails in any other way, its
  outcome is unknown, and whoever sent the write decides.

The counts are those of `experiments.counts`. They change in the transaction of the rows that they count.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

from seq2slate.data.impressions import Draft, Impression, ItemColumns
from seq2slate.errors import DataError, Seq2SlateError
from seq2slate.experiments.counts import Definition
from seq2slate.log.backend import BadRowError, ConflictError, Connection, LogBusyError, LogError, Row
from seq2slate.log.schema import COUNTS, DRAFT_SUMS, IMPRESSION, checksum

GROUPS = 64
"""Groups of units, by a hash of the unit, in which the slots are counted."""
_LARGEST_GROUP = 256  # writes in a transaction; more would save nothing and make the first wait for the last
_GATHER_SECONDS = 0.002  # a row in a group of eight takes half the CPU of a row alone
_MAX_CONFLICTS = 5  # attempts at a transaction that others roll back
_CLOSE_TIMEOUT = 5.0  # seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts to reconnect
_ROWS_PER_STATEMENT = 500  # a statement takes only so many values
_FEATURES = IMPRESSION.split(", ").index("features")


class ClickOutcome(StrEnum):
    """What became of a click."""

    NEW = "new"
    DUPLICATE = "duplicate"
    """The item of this slate was clicked before: only the first click counts."""
    UNKNOWN_SLATE = "unknown-slate"
    NOT_SHOWN = "not-shown"
    """The slate does not have the item, or had it only among the candidates."""


# What can be written


@dataclass(frozen=True)
class NewImpression:
    """An impression to write; later changes of its arrays do not reach it."""

    impression: Impression
    columns: ItemColumns
    features: bytes

    @classmethod
    def of(cls, impression: Impression) -> NewImpression:
        """Check its texts, and copy its features; the rest of the row is made where it is written."""
        one = impression
        if not one.has_storable_texts:
            raise DataError(f"impression {one.slate_id!r}: some text has a NUL or half a surrogate pair")
        return cls(one, one.columns, one.features.astype("<f4", copy=False).tobytes())

    @cached_property
    def row(self) -> Row:
        """The row of `impressions`: JSON, which takes as long as the impression is large."""
        return to_row(self.impression, self.columns, self.features)


@dataclass(frozen=True)
class NewClick:
    """A click to write."""

    slate_id: str
    item_id: str
    at: float


@dataclass(frozen=True)
class Probe:
    """A write as large as an impression that is deleted at once: it tests whether the log has room."""


Entry: TypeAlias = NewImpression | NewClick | Probe | Definition


def to_row(impression: Impression, columns: ItemColumns, features: bytes) -> Row:
    """Return an impression as a row of `impressions`, which `reading.from_row` reads."""
    one = impression
    try:
        return (
            one.slate_id,
            float(one.at),
            one.unit,
            one.experiment,
            one.arm,
            one.model,
            _to_json(list(one.items)),
            _to_json([int(item) for item in one.shown]),
            None if one.log_propensities is None else _to_json([float(value) for value in one.log_propensities]),
            _columns_row(columns)[0],
            features,
            # One column at a time: other threads run in between, and the parts of one only are in memory.
            f"[{','.join([_to_json(list(values)) for values in one.categorical.values()])}]"
            if one.categorical
            else None,
            None if one.context is None else _to_json(dict(one.context)),
            one.fallback,
            float(one.latency_ms),
            None if one.draft is None else one.draft.to_json(),
            None if one.titles is None else _to_json(list(one.titles)),
            one.fallback_detail,
        )
    except (TypeError, ValueError) as error:
        raise BadRowError(f"impression {one.slate_id!r}: {error}") from error


def impression_checksum(row: Row, sequence: int) -> int:
    """Return the checksum of a row of `impressions` and its number in the commit sequence."""
    return checksum((*row[:_FEATURES], *row[_FEATURES + 1 :], sequence), row[_FEATURES])


_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@lru_cache(maxsize=64)
def _columns_row(columns: ItemColumns) -> tuple[str, str]:
    """Return a row of `column_sets`: a key, the same everywhere, and the names."""
    text = json.dumps({"features": columns.features, "categorical": columns.categorical})
    return columns_key(text), text


def columns_key(text: str) -> str:
    """Return the key of a set of columns: a hash of its JSON."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# The queue and its thread


class _Waiting(NamedTuple):
    entry: Entry
    done: Future[Any]


class Writer:
    """A bounded queue and the thread that empties it."""

    def __init__(
        self, name: str, connect: Callable[[], Connection], prepare: Callable[[Connection], None], *, capacity: int
    ):
        self._name = name
        self._connect, self._prepare = connect, prepare
        self._capacity = capacity
        self._connection: Connection | None = None
        self._known_columns: set[ItemColumns] = set()  # those of the last group on this connection: surely in the log
        self._started: float | None = None
        self._pause, self._retry_at = _FIRST_PAUSE, 0.0
        self._waiting: SimpleQueue[_Waiting | None] = SimpleQueue()
        """None is the last one."""
        self._is_busy = False
        self._adding = threading.Lock()
        self._closing = False
        self._open()  # in the caller's thread: a wrong URL fails at once
        self._thread = threading.Thread(target=self._run, name="seq2slate-log", daemon=True)
        self._thread.start()

    def add(self, entry: Entry) -> Future[Any]:
        """Enqueue an entry; the future is resolved when it is committed or refused."""
        waiting = _Waiting(entry, Future())
        with self._adding:
            if self._closing:
                raise LogError(f"{self._name}: the log is closed")
            if self._waiting.qsize() >= self._capacity:
                raise LogBusyError(f"{self._name}: {self._capacity} writes are waiting already")
            self._waiting.put(waiting)
        return waiting.done

    def give_up_after(self, seconds: float) -> None:
        """Interrupt the connection if the group that is being written has taken longer."""
        started, connection = self._started, self._connection
        if started is not None and connection is not None and monotonic() - started > seconds:
            connection.interrupt()

    def has_its_files(self) -> bool:
        """Say whether the files of the connection are as they should be; without a connection, none can be lost."""
        connection = self._connection
        return connection is None or connection.has_its_files()

    def close(self) -> None:
        """Write what is waiting, then stop; a database that does not respond is given up."""
        with self._adding:
            self._closing = True
            self._waiting.put(None)
        self._thread.join(_CLOSE_TIMEOUT)
        if self._thread.is_alive():
            self.give_up_after(0)
            self._thread.join(_CLOSE_TIMEOUT)

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
        """Return what is waiting, as soon as there is something, and whether more may come.

        After a group of several, more are on their way: waiting for them a little saves commits.
        """
        group: list[_Waiting] = []
        if self._is_busy and not self._closing:
            sleep(_GATHER_SECONDS)
        while waiting := self._waiting.get():
            group.append(waiting)
            if len(group) == _LARGEST_GROUP or self._waiting.empty():
                self._is_busy = len(group) > 1
                return group, True
        return group, False

    def _write(self, group: Sequence[_Waiting]) -> None:
        try:
            outcomes = self._commit([waiting.entry for waiting in group])
        except BadRowError as error:
            self._known_columns = set()  # perhaps it was they that the row lacked
            if len(group) == 1:
                group[0].done.set_exception(error)
            else:
                middle = len(group) // 2
                self._write(group[:middle])
                self._write(group[middle:])
        except Exception as error:  # of any kind: the futures must be resolved and the thread must live
            self._disconnect()
            for waiting in group:
                waiting.done.set_exception(_as_log_error(error, self._name))
        else:
            for waiting, outcome in zip(group, outcomes, strict=True):
                waiting.done.set_result(outcome)

    def _commit(self, entries: Sequence[Entry]) -> Sequence[ClickOutcome | None]:
        connection = self._connected()
        for entry in entries:
            if isinstance(entry, NewImpression):
                _ = entry.row  # now, since others wait while the transaction holds its locks
        for _attempt in range(_MAX_CONFLICTS):
            try:
                with connection.transaction():
                    outcomes = write_group(connection, entries, self._known_columns)
                self._known_columns = _columns_in(entries)
                return outcomes
            except ConflictError as error:  # surely rolled back: a retry cannot write twice
                conflict = error
        raise conflict

    def _connected(self) -> Connection:
        if self._connection is None:
            if monotonic() < self._retry_at:
                raise LogError(f"{self._name}: cannot be reached; trying again soon")
            try:
                self._open()
            except (Seq2SlateError, OSError):
                self._retry_at = monotonic() + self._pause
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                raise
            self._pause = _FIRST_PAUSE
        assert self._connection is not None, "it was opened"
        return self._connection

    def _open(self) -> None:
        """Connect and prepare the connection, which may be interrupted from then on: a server may freeze here, too."""
        self._connection = self._connect()
        try:
            self._prepare(self._connection)
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._known_columns = set()


def _as_log_error(error: Exception, name: str) -> LogError:
    """Return a new error for each future: an exception that several threads raise mixes their tracebacks."""
    failure = LogError(str(error) if isinstance(error, Seq2SlateError) else f"{name}: {error}")
    failure.__cause__ = error
    return failure


# One group in one transaction


_INSERT_COLUMNS = "INSERT INTO column_sets (key, columns) VALUES (?, ?) ON CONFLICT (key) DO NOTHING RETURNING key"
_INSERT_IMPRESSION = (
    f"INSERT INTO impressions ({IMPRESSION}, sequence, checksum) "
    f"VALUES ({', '.join('?' * len(IMPRESSION.split(',')))}, ?, ?) "
    "ON CONFLICT (slate_id) DO NOTHING RETURNING slate_id"
)
_NEXT_SEQUENCE = "UPDATE commit_sequence SET last = last + ? RETURNING last"
_INSERT_CLICK = (
    "INSERT INTO clicks (slate_id, item, at, checksum) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (slate_id, item) DO NOTHING RETURNING item"
)
_UPSERT_DEFINITION = (
    "INSERT INTO definitions (experiment, control, weights, models, checksum) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (experiment) DO UPDATE SET control = excluded.control, weights = excluded.weights, "
    "models = excluded.models, checksum = excluded.checksum"
)


class _Slate(NamedTuple):
    """What the counts need to know of a slate."""

    experiment: str
    arm: str
    unit: str
    at: float
    draft: Draft | None


class _ShownClick(NamedTuple):
    """A click on an item that was shown; `number` is that of its entry in the group."""

    number: int
    click: NewClick
    slate: _Slate
    item: int
    slot: int


def write_group(
    connection: Connection, entries: Sequence[Entry], known: Set[ItemColumns] = frozenset()
) -> list[ClickOutcome | None]:
    """Write a group; return the outcome of every click, and None for every other entry.

    `known` are sets of columns that the log has already. Impressions come before clicks, and each kind is in the order
    of its key: two writers that lock rows in the same order cannot deadlock.
    """
    tally = _Tally()
    impressions = [entry for entry in entries if isinstance(entry, NewImpression)]
    if unknown := _columns_in(entries) - known:
        connection.each(_INSERT_COLUMNS, sorted(map(_columns_row, unknown)))
    _write_impressions(connection, sorted(impressions, key=lambda new: new.impression.slate_id), tally)
    clicks = {number: entry for number, entry in enumerate(entries) if isinstance(entry, NewClick)}
    outcomes = _write_clicks(connection, clicks, tally) if clicks else {}
    tally.save(connection)
    for entry in entries:
        if isinstance(entry, Definition):
            row = entry.experiment, entry.control, _to_json(dict(entry.weights)), _to_json(dict(entry.models))
            connection.rows(_UPSERT_DEFINITION, (*row, checksum(row)))
    if any(isinstance(entry, Probe) for entry in entries):
        connection.each(_INSERT_COLUMNS, [("probe", " " * 65_536)])
        connection.rows("DELETE FROM column_sets WHERE key = 'probe'")
    return [outcomes.get(number) for number in range(len(entries))]


def _columns_in(entries: Iterable[Entry]) -> set[ItemColumns]:
    return {entry.columns for entry in entries if isinstance(entry, NewImpression)}


def _write_impressions(connection: Connection, impressions: Sequence[NewImpression], tally: _Tally) -> None:
    """Write impressions with the next numbers of the commit sequence.

    Whoever takes a number keeps the others waiting until its transaction ends, so impressions are committed in the
    order of their numbers: a reader that sees one sees all before it. A number may be missing.
    """
    if not impressions:
        return
    last = int(connection.rows(_NEXT_SEQUENCE, (len(impressions),))[0][0])
    numbers = range(last - len(impressions) + 1, last + 1)
    rows = [
        (*new.row, number, impression_checksum(new.row, number))
        for new, number in zip(impressions, numbers, strict=True)
    ]
    inserted = connection.each(_INSERT_IMPRESSION, rows)
    for new, is_new in zip(impressions, inserted, strict=True):
        if is_new:
            one = new.impression
            slate = _Slate(one.experiment, one.arm, one.unit, one.at, one.draft)
            tally.add_impression(slate, len(one.shown), one.fallback)


def _write_clicks(connection: Connection, clicks: Mapping[int, NewClick], tally: _Tally) -> dict[int, ClickOutcome]:
    slates = _find_slates(connection, {click.slate_id for click in clicks.values()})
    outcomes: dict[int, ClickOutcome] = {}
    shown_clicks: list[_ShownClick] = []
    for number, click in clicks.items():
        if click.slate_id not in slates:
            outcomes[number] = ClickOutcome.UNKNOWN_SLATE
            continue
        slate, items, shown = slates[click.slate_id]
        item = items.index(click.item_id) if click.item_id in items else -1
        if item not in shown:
            outcomes[number] = ClickOutcome.NOT_SHOWN
            continue
        shown_clicks.append(_ShownClick(number, click, slate, item, shown.index(item)))
    shown_clicks.sort(key=lambda one: (one.click.slate_id, one.item))
    rows = [(one.click.slate_id, one.item, float(one.click.at)) for one in shown_clicks]
    inserted = connection.each(_INSERT_CLICK, [(*row, checksum(row)) for row in rows])
    for one, is_new in zip(shown_clicks, inserted, strict=True):
        outcomes[one.number] = ClickOutcome.NEW if is_new else ClickOutcome.DUPLICATE
        if is_new:
            tally.add_click(one.slate, one.slot)
    return outcomes


def _find_slates(connection: Connection, slate_ids: Set[str]) -> dict[str, tuple[_Slate, list[str], list[int]]]:
    """Return the slates that are in the log, each with its item ids and the indices of those shown."""
    rows = connection.rows(
        "SELECT slate_id, experiment, arm, unit, at, draft, items, shown FROM impressions "
        f"WHERE slate_id IN ({', '.join('?' * len(slate_ids))})",
        tuple(slate_ids),
    )
    found = {}
    for slate_id, experiment, arm, unit, at, draft, items, shown in rows:
        slate = _Slate(experiment, arm, unit, at, None if draft is None else Draft.from_json(draft))
        found[slate_id] = slate, json.loads(items), json.loads(shown)
    return found


# The running counts


class _Tally:
    """What a group adds to the running counts."""

    def __init__(self) -> None:
        self._units: dict[tuple[str, str, str], list[int]] = {}
        self._slots: dict[tuple[str, str, int, int], list[int]] = {}
        self._minutes: dict[tuple[str, int, str], list[int]] = {}
        self._reasons: Counter[tuple[str, str, str]] = Counter()
        self._drafts: Counter[tuple[str, str, str]] = Counter()
        self._credits: dict[tuple[str, str, str, str], list[int]] = {}

    def add_impression(self, slate: _Slate, n_shown: int, fallback: str | None) -> None:
        """Count a slate that was not in the log before."""
        self._count(slate, impressions=1)
        if n_shown:  # one row for the last slot, instead of one for each
            self._slots.setdefault(_slot_key(slate, n_shown - 1), [0, 0])[0] += 1
        if fallback is not None:
            self._reasons[slate.experiment, slate.arm, fallback] += 1
        if slate.draft is not None:
            self._drafts[slate.experiment, slate.draft.a, slate.draft.b] += 1

    def add_click(self, slate: _Slate, slot: int) -> None:
        """Count a click that was not in the log before."""
        self._count(slate, clicks=1)
        self._slots.setdefault(_slot_key(slate, slot), [0, 0])[1] += 1
        if slate.draft is not None:
            key = (slate.experiment, slate.draft.a, slate.draft.b, slate.unit)
            self._credits.setdefault(key, [0, 0])[slate.draft.teams[slot] == "b"] += 1

    def _count(self, slate: _Slate, *, impressions: int = 0, clicks: int = 0) -> None:
        for counts in (
            self._units.setdefault((slate.experiment, slate.arm, slate.unit), [0, 0]),
            self._minutes.setdefault((slate.experiment, int(slate.at // 60), slate.arm), [0, 0]),
        ):
            counts[0] += impressions
            counts[1] += clicks

    def save(self, connection: Connection) -> None:
        """Add to the counts.

        The database adds, so that several writers cannot overwrite each other; rows are locked in one order, so that
        writers cannot deadlock; and the few rows that all writers share come last, so that they wait little.
        """
        arms = _changes(connection, _ADD_TO_UNIT, self._units, _unit_sums)
        for (experiment, arm, _), n_slates in self._reasons.items():
            arms[experiment, arm][-1] += n_slates
        drafts = _changes(connection, _ADD_TO_CREDITS, self._credits, _credit_sums)
        for pair, n_slates in self._drafts.items():
            drafts.setdefault(pair, [0] * len(DRAFT_SUMS))[0] += n_slates
        reasons = {key: [n_slates] for key, n_slates in self._reasons.items()}
        add_counts(connection, "slot_counts", self._slots)
        add_counts(connection, "fallback_counts", reasons)
        add_counts(connection, "minute_counts", self._minutes)
        add_counts(connection, "draft_counts", drafts)
        add_counts(connection, "arm_counts", arms)


def _changes(
    connection: Connection,
    add: str,
    of_units: Mapping[Any, Sequence[int]],
    sums: Callable[[int, int], tuple[int, ...]],
) -> dict[Any, list[int]]:
    """Add to the rows of units; return the change of the sums over units: those of each unit after, less before."""
    if not of_units:
        return {}
    rows = sorted(of_units.items())
    changes: dict[Any, list[int]] = {}
    for (key, added), total in zip(rows, connection.each(add, [(*key, *more) for key, more in rows]), strict=True):
        assert total is not None, "an upsert with RETURNING returns its row"
        now, before = sums(*total), sums(*(n - more for n, more in zip(total, added, strict=True)))
        change = changes.setdefault(key[:-1], [0] * len(now))
        for index in range(len(now)):
            change[index] += now[index] - before[index]
    return changes


def _unit_sums(impressions: int, clicks: int) -> tuple[int, ...]:
    """Return what a unit adds to its arm, in the order of `ARM_SUMS`; fallbacks are counted by slate."""
    return int(impressions > 0), impressions, clicks, impressions**2, clicks**2, impressions * clicks, 0


def _credit_sums(a: int, b: int) -> tuple[int, ...]:
    """Return what a unit adds to a pair, in the order of `DRAFT_SUMS`; impressions are counted by slate."""
    return 0, int(a + b > 0), a, b, (b - a) ** 2, (a + b) ** 2, (b - a) * (a + b)


def count_again(connection: Connection, impressions: Iterable[Impression]) -> None:
    """Add impressions and their clicks to the counts as if they were new."""
    tally = _Tally()
    for one in impressions:
        slate, shown = _Slate(one.experiment, one.arm, one.unit, one.at, one.draft), list(one.shown)
        tally.add_impression(slate, len(shown), one.fallback)
        for item in one.clicks:
            tally.add_click(slate, shown.index(item))
    tally.save(connection)


def add_counts(connection: Connection, table: str, added: Mapping[Any, Sequence[int]]) -> None:
    """Add to many rows in one statement: with one row each, the writer would release the GIL as many times."""
    rows = sorted(added.items())
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        some = rows[start : start + _ROWS_PER_STATEMENT]
        connection.rows(_add_to(table, len(some)), [part for row in some for part in (*row[0], *row[1])])


def _slot_key(slate: _Slate, slot: int) -> tuple[str, str, int, int]:
    return slate.experiment, slate.arm, crc32(slate.unit.encode()) % GROUPS, slot


@lru_cache(maxsize=256)
def _add_to(table: str, n_rows: int = 1) -> str:
    """Return the SQL that adds to the values of some rows, and inserts those that are missing."""
    key, values = COUNTS[table]
    added = ", ".join(f"{value} = {table}.{value} + excluded.{value}" for value in values)
    row = f"({', '.join('?' * (len(key) + len(values)))})"
    return (
        f"INSERT INTO {table} ({', '.join([*key, *values])}) VALUES {', '.join([row] * n_rows)} "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {added}"
    )


_ADD_TO_UNIT = f"{_add_to('unit_counts')} RETURNING impressions, clicks"
_ADD_TO_CREDITS = f"{_add_to('unit_credits')} RETURNING a_clicks, b_clicks"
