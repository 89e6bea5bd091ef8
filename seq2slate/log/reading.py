"""Reading the log: impressions with their clicks, page by page, and the running counts of experiments.

Memory is bounded, and no read takes long enough to get in the writer's way. Counts are read as they stand: the
impressions that they count are not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from seq2slate.data.impressions import ContextValue, Draft, Impression, ItemColumns
from seq2slate.data.lists import IntArray
from seq2slate.errors import UsageError
from seq2slate.experiments.counts import ArmCounts, Counts, Definition, DraftCounts, MinuteCounts, PositionCounts
from seq2slate.log.backend import Backend, Connection, Row
from seq2slate.log.schema import ARM_SUMS, DRAFT_SUMS, IMPRESSION

Found = TypeVar("Found")

_COLUMNS = IMPRESSION.split(", ").index("columns")
_SLATES_PER_STATEMENT = 1000  # a statement takes only so many values
_CONTEXTS_PER_PAGE = 4096


@dataclass(frozen=True)
class ImpressionFilter:
    """Which impressions are meant; None for any."""

    since: float | None = None
    """Shown at this time or later, in seconds since 1970."""
    until: float | None = None
    """Shown before this time."""
    arm: str | None = None
    without_fallback: str | None = None
    """Not those that fell back for this reason."""
    after: int | None = None
    """Committed after the impression with this number of the commit sequence."""
    through: int | None = None
    """Committed no later than the impression with this number."""

    def where(self) -> tuple[str, list[Any]]:
        """Return the SQL condition and its values."""
        conditions = {
            "at >= ?": self.since,
            "at < ?": self.until,
            "arm = ?": self.arm,
            "COALESCE(fallback, '') <> ?": self.without_fallback,
            "sequence > ?": self.after,
            "+sequence <= ?": self.through,  # the plus: for the whole log, the index by time is the better one
        }
        given = {text: value for text, value in conditions.items() if value is not None}
        return " AND ".join(["1 = 1", *given]), list(given.values())


class ColumnSet(NamedTuple):
    """The columns of the items of some impressions."""

    columns: ItemColumns
    first: float
    """When the first of the impressions was shown."""
    last: float
    slates: int


class LogReader:
    """The reading half of a log. Every read has a connection of its own and sees one snapshot of the log."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def name(self) -> str:
        """Where the log is, without a password."""
        return self._backend.name

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Open a connection for one read: none is kept that could go stale."""
        connection = self._backend.connect(read_only=True)
        try:
            with connection.transaction():
                yield connection
        finally:
            connection.close()

    # Impressions

    def get(self, slate_id: str) -> Impression | None:
        """Return one impression, or None if the log does not have it."""
        with self._reading() as connection:
            return next(iter(_select(connection, "WHERE slate_id = ?", [slate_id])), None)

    def recent(self, n: int) -> list[Impression]:
        """Return the last n impressions, the latest first."""
        with self._reading() as connection:
            return _select(connection, "ORDER BY at DESC, slate_id DESC LIMIT ?", [n])

    def impressions(
        self, since: float | None = None, until: float | None = None, *, arm: str | None = None, batch: int = 512
    ) -> Iterator[Impression]:
        """Yield impressions by time, from `since` on and before `until`; no more than `batch` are in memory."""
        for page in self.pages(ImpressionFilter(since, until, arm), batch=batch):
            yield from page

    def pages(self, chosen: ImpressionFilter, *, batch: int = 512) -> Iterator[list[Impression]]:
        """Yield the chosen impressions, `batch` at a time, by time; with `after`, as they were committed."""
        if batch < 1:
            raise UsageError(f"batch must be at least 1, got {batch}")
        return self._pages(chosen, batch, IMPRESSION, _with_clicks)

    def last_sequence(self) -> int:
        """Return the number of the impression that was committed last; all with a lower one are committed too."""
        with self._reading() as connection:
            return int(connection.rows("SELECT last FROM commit_sequence")[0][0])

    def contexts(self, chosen: ImpressionFilter) -> Iterator[Mapping[str, ContextValue] | None]:
        """Yield the context of each chosen impression, by time."""

        def convert(_: Connection, rows: Sequence[Row]) -> list[Mapping[str, ContextValue] | None]:
            return [None if context is None else json.loads(context) for (context,) in rows]

        for page in self._pages(chosen, _CONTEXTS_PER_PAGE, "context", convert):
            yield from page

    def _pages(
        self,
        chosen: ImpressionFilter,
        batch: int,
        columns: str,
        convert: Callable[[Connection, Sequence[Row]], list[Found]],
    ) -> Iterator[list[Found]]:
        """Yield pages of what `convert` makes of some columns; each begins after the last row of the one before.

        They are in the order of an index that finds the rows: by time, or by the commit sequence.
        """
        where, values = chosen.where()
        key = "at" if chosen.after is None else "sequence"
        after: tuple[Any, ...] = ()
        while True:
            beyond = f" AND ({key}, slate_id) > (?, ?)" if after else ""
            with self._reading() as connection:
                rows = connection.rows(
                    f"SELECT {key}, slate_id, {columns} FROM impressions WHERE {where}{beyond} "
                    f"ORDER BY {key}, slate_id LIMIT ?",
                    [*values, *after, batch],
                )
                page = convert(connection, [row[2:] for row in rows])
            if page:
                yield page
            if len(rows) < batch:
                return
            after = rows[-1][:2]

    def column_sets(self, chosen: ImpressionFilter) -> list[ColumnSet]:
        """Return the different columns that the chosen impressions have, in the order of their first time."""
        where, values = chosen.where()
        with self._reading() as connection:
            known = _read_columns(connection)
            rows = connection.rows(
                f"SELECT columns, MIN(at), MAX(at), COUNT(*) FROM impressions WHERE {where} "
                "GROUP BY columns ORDER BY MIN(at)",
                values,
            )
        return [ColumnSet(known[key], *rest) for key, *rest in rows]

    def count(self, chosen: ImpressionFilter) -> int:
        """Return the number of chosen impressions."""
        where, values = chosen.where()
        with self._reading() as connection:
            return int(connection.rows(f"SELECT COUNT(*) FROM impressions WHERE {where}", values)[0][0])

    # Experiments

    def experiments(self) -> list[str]:
        """Return the names of all experiments that have impressions."""
        with self._reading() as connection:
            rows = connection.rows("SELECT DISTINCT experiment FROM arm_counts ORDER BY experiment")
        return [name for (name,) in rows]

    def definition(self, experiment: str) -> Definition | None:
        """Return the recorded settings of an experiment; None if there are none."""
        with self._reading() as connection:
            rows = connection.rows(
                "SELECT control, weights, models FROM definitions WHERE experiment = ?", (experiment,)
            )
        for control, weights, models in rows:
            return Definition(experiment, control, json.loads(weights), json.loads(models or "{}"))
        return None

    def counts(self, experiment: str) -> Counts:
        """Return the running counts of an experiment."""
        with self._reading() as connection:
            positions, reasons = _read_positions(connection, experiment), _read_reasons(connection, experiment)
            arms = connection.rows(
                f"SELECT arm, {', '.join(ARM_SUMS)} FROM arm_counts WHERE experiment = ? ORDER BY arm", (experiment,)
            )
            drafts = connection.rows(
                f"SELECT arm_a, arm_b, {', '.join(DRAFT_SUMS)} FROM draft_counts WHERE experiment = ? "
                "ORDER BY arm_a, arm_b",
                (experiment,),
            )
        return Counts(
            experiment,
            {
                arm: ArmCounts(
                    **dict(zip(ARM_SUMS, sums, strict=True)),
                    positions=tuple(positions.get(arm, ())),
                    fallback_reasons=reasons.get(arm, {}),
                )
                for arm, *sums in arms
            },
            {(a, b): DraftCounts(*sums) for a, b, *sums in drafts},
        )

    def minutes(self, experiment: str, since: int) -> list[MinuteCounts]:
        """Return the counts of each minute with impressions, from a minute since 1970 on, the earliest first."""
        with self._reading() as connection:
            rows = connection.rows(
                "SELECT minute, arm, impressions, clicks FROM minute_counts WHERE experiment = ? AND minute >= ? "
                "ORDER BY minute, arm",
                (experiment, since),
            )
        return [MinuteCounts(*row) for row in rows]

    def latencies(self, experiment: str, n: int) -> dict[str, list[float]]:
        """Return, by arm, the milliseconds of the experiment's slates among the last n of the log."""
        latencies: dict[str, list[float]] = {}
        with self._reading() as connection:
            rows = connection.rows(
                "SELECT arm, latency_ms FROM (SELECT experiment, arm, latency_ms FROM impressions "
                "ORDER BY at DESC, slate_id DESC LIMIT ?) AS latest WHERE experiment = ?",
                (n, experiment),
            )
        for arm, milliseconds in rows:
            latencies.setdefault(arm, []).append(milliseconds)
        return latencies


def from_row(row: Row, columns: ItemColumns, clicks: Mapping[int, float]) -> Impression:
    """Return what `writer.to_row` wrote, with its clicks."""
    slate_id, at, unit, experiment, arm, model, items, shown, propensities, _, features, categorical, *rest = row
    context, fallback, latency_ms, draft, titles, fallback_detail = rest
    ids = json.loads(items)
    return Impression(
        slate_id=slate_id,
        at=at,
        unit=unit,
        experiment=experiment,
        arm=arm,
        model=model,
        items=ids,
        shown=json.loads(shown),
        log_propensities=None if propensities is None else json.loads(propensities),
        features=np.frombuffer(features, "<f4").reshape(len(ids), len(columns.features)),
        feature_names=columns.features,
        categorical=dict(zip(columns.categorical, json.loads(categorical or "[]"), strict=True)),
        context=None if context is None else json.loads(context),
        fallback=fallback,
        latency_ms=latency_ms,
        draft=None if draft is None else Draft.from_json(draft),
        titles=None if titles is None else json.loads(titles),
        fallback_detail=fallback_detail,
        clicks=clicks,
    )


def _select(connection: Connection, which: str, values: Sequence[Any]) -> list[Impression]:
    """Return the impressions that the end of a SELECT names, with their clicks."""
    return _with_clicks(connection, connection.rows(f"SELECT {IMPRESSION} FROM impressions {which}", values))


def _with_clicks(connection: Connection, rows: Sequence[Row]) -> list[Impression]:
    """Return rows of `IMPRESSION` as impressions, with their clicks."""
    if not rows:
        return []
    columns = _read_columns(connection)
    clicks: dict[str, dict[int, float]] = {row[0]: {} for row in rows}
    for start in range(0, len(rows), _SLATES_PER_STATEMENT):
        slate_ids = [row[0] for row in rows[start : start + _SLATES_PER_STATEMENT]]
        marks = ", ".join("?" * len(slate_ids))
        for slate_id, item, at in connection.rows(
            f"SELECT slate_id, item, at FROM clicks WHERE slate_id IN ({marks}) ORDER BY item", slate_ids
        ):
            clicks[slate_id][item] = at
    return [from_row(row, columns[row[_COLUMNS]], clicks[row[0]]) for row in rows]


def parse_columns(text: str) -> ItemColumns:
    """Return the names in a row of `column_sets`."""
    names = json.loads(text)
    return ItemColumns(tuple(names["features"]), tuple(names["categorical"]))


def _read_columns(connection: Connection) -> dict[str, ItemColumns]:
    """Return every set of columns in the log by its key."""
    found = {}
    for key, text in connection.rows("SELECT key, columns FROM column_sets"):
        found[key] = parse_columns(text)
    return found


def _read_positions(connection: Connection, experiment: str) -> dict[str, list[PositionCounts]]:
    rows = connection.rows(
        "SELECT arm, unit_group, position, ends, clicks FROM slot_counts WHERE experiment = ? ORDER BY arm",
        (experiment,),
    )
    return {
        arm: _positions(np.array([row[1:] for row in of_arm], np.int64)) for arm, of_arm in groupby(rows, itemgetter(0))
    }


def _positions(rows: IntArray) -> list[PositionCounts]:
    """Return the counts of each slot, of rows (R, 4): group of units, slot, slates that end there, clicks."""
    groups, group = np.unique(rows[:, 0], return_inverse=True)
    ends, clicks = np.zeros((2, len(groups), rows[:, 1].max() + 1), np.int64)
    ends[group, rows[:, 1]], clicks[group, rows[:, 1]] = rows[:, 2], rows[:, 3]
    shown = ends[:, ::-1].cumsum(1)[:, ::-1]  # a slate shows its last slot and all above it
    sums = (shown, clicks, shown > 0, shown * shown, clicks * clicks, shown * clicks)
    return [PositionCounts(*one) for one in np.stack([each.sum(0) for each in sums], 1).tolist()]


def _read_reasons(connection: Connection, experiment: str) -> dict[str, dict[str, int]]:
    reasons: dict[str, dict[str, int]] = {}
    for arm, reason, n_slates in connection.rows(
        "SELECT arm, reason, impressions FROM fallback_counts WHERE experiment = ? ORDER BY arm, reason", (experiment,)
    ):
        reasons.setdefault(arm, {})[reason] = n_slates
    return reasons
