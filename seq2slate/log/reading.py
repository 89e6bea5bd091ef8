"""Read impressions with their clicks, page by page: memory is bounded, and no read is long enough to be in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from seq2slate.log.backend import Connection, Row
from seq2slate.log.impressions import ROW, Columns, LoggedImpression, from_row

Reading: TypeAlias = Callable[[], AbstractContextManager[Connection]]
"""Opens a transaction that reads."""
Found = TypeVar("Found")

_COLUMNS = ROW.split(", ").index("columns")
_SLATES_AT_ONCE = 1000  # a statement takes only so many values


@dataclass(frozen=True)
class Range:
    """Which impressions are meant: from `since` on, before `until`, of one arm, without a fallback; None for any."""

    since: float | None = None
    until: float | None = None
    arm: str | None = None
    without_fallback: str | None = None

    def where(self) -> tuple[str, list[Any]]:
        """Return the SQL condition and its values."""
        conditions = {
            "at >= ?": self.since,
            "at < ?": self.until,
            "arm = ?": self.arm,
            "COALESCE(fallback, '') <> ?": self.without_fallback,
        }
        given = {text: value for text, value in conditions.items() if value is not None}
        return " AND ".join(["1 = 1", *given]), list(given.values())


def read_range(reading: Reading, chosen: Range, batch: int) -> Iterator[list[LoggedImpression]]:
    """Yield the impressions of a range by time, up to `batch` at once."""
    return _pages(reading, chosen, batch, read_some, lambda logged: (logged.impression.at, logged.impression.slate_id))


def read_contexts(reading: Reading, chosen: Range, batch: int) -> Iterator[str | None]:
    """Yield the context of each impression of a range by time, as JSON."""

    def select(connection: Connection, which: str, values: Sequence[Any]) -> list[Row]:
        return connection.rows(f"SELECT at, slate_id, context FROM impressions {which}", values)

    for page in _pages(reading, chosen, batch, select, lambda row: row[:2]):
        yield from (context for _, _, context in page)


def _pages(
    reading: Reading,
    chosen: Range,
    batch: int,
    select: Callable[[Connection, str, Sequence[Any]], list[Found]],
    place: Callable[[Found], tuple[Any, ...]],
) -> Iterator[list[Found]]:
    """Yield what `select` finds in a range; each page begins after the place of the last row of the one before."""
    where, values = chosen.where()
    after: tuple[Any, ...] = ()
    while True:
        beyond = " AND (at, slate_id) > (?, ?)" if after else ""
        with reading() as connection:
            page = select(connection, f"WHERE {where}{beyond} ORDER BY at, slate_id LIMIT ?", [*values, *after, batch])
        if page:
            yield page
        if len(page) < batch:
            return
        after = place(page[-1])


def read_column_sets(connection: Connection, chosen: Range) -> list[tuple[Columns, float, float]]:
    """Return each set of columns that occurs in a range, with the first and last time it does."""
    where, values = chosen.where()
    known = _read_columns(connection)
    rows = connection.rows(
        f"SELECT columns, MIN(at), MAX(at) FROM impressions WHERE {where} GROUP BY columns ORDER BY MIN(at)", values
    )
    return [(known[key], first, last) for key, first, last in rows]


def read_some(connection: Connection, which: str, values: Sequence[Any]) -> list[LoggedImpression]:
    """Return the impressions that the end of a SELECT names, with their clicks."""
    rows = connection.rows(f"SELECT {ROW} FROM impressions {which}", values)
    if not rows:
        return []
    columns = _read_columns(connection)
    clicks: dict[str, dict[int, float]] = {row[0]: {} for row in rows}
    for start in range(0, len(rows), _SLATES_AT_ONCE):
        slate_ids = [row[0] for row in rows[start : start + _SLATES_AT_ONCE]]
        marks = ", ".join("?" * len(slate_ids))
        for slate_id, item, at in connection.rows(
            f"SELECT slate_id, item, at FROM clicks WHERE slate_id IN ({marks}) ORDER BY item", slate_ids
        ):
            clicks[slate_id][item] = at
    return [LoggedImpression(from_row(row, columns[row[_COLUMNS]]), clicks[row[0]]) for row in rows]


def _read_columns(connection: Connection) -> dict[str, Columns]:
    return {key: Columns.from_json(text) for key, text in connection.rows("SELECT key, columns FROM column_sets")}


def read_latencies(connection: Connection, experiment: str, n: int) -> dict[str, list[float]]:
    """Return the milliseconds of an experiment's slates among the last n of the log, by arm."""
    latencies: dict[str, list[float]] = {}
    for arm, milliseconds in connection.rows(
        "SELECT arm, latency_ms FROM (SELECT experiment, arm, latency_ms FROM impressions "
        "ORDER BY at DESC, slate_id DESC LIMIT ?) AS latest WHERE experiment = ?",
        (n, experiment),
    ):
        latencies.setdefault(arm, []).append(milliseconds)
    return latencies
