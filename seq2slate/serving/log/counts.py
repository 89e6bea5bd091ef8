"""Running counts of an experiment: exact, written with the rows they count, and read without reading those.

For a unit u of an arm let i_u be its impressions and c_u its clicks. An arm keeps Σ i_u, Σ c_u, Σ i_u², Σ c_u² and
Σ i_u c_u over its units: what the variance of clicks per impression needs when the impressions of a unit are not
independent (the delta method for a ratio of means over units).

For each slot of the slates a row for every unit would be too much. There the units are put into `GROUPS` groups by a
hash, each slot is counted by group, and the same sums are over groups: a few dozen independent clusters of whole units
are all that a variance needs.

Counts say what happened since an experiment began. Pruning old impressions does not change them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeAlias
from zlib import crc32

from seq2slate.serving.log.backend import Connection

Arm: TypeAlias = tuple[str, str]
"""An experiment and one of its arms."""
GROUPS = 64
_ROWS_AT_ONCE = 500  # of one statement, which takes only so many values


@dataclass(frozen=True)
class PositionCounts:
    """One slot of an arm's slates; the sums of squares are over groups of units."""

    impressions: int
    """Slates that had an item in this slot."""
    clicks: int
    groups: int = 0
    """Groups of units that saw such a slate."""
    impressions_squared: int = 0
    clicks_squared: int = 0
    impressions_times_clicks: int = 0


@dataclass(frozen=True)
class ArmCounts:
    """One arm of an experiment."""

    units: int
    impressions: int
    """Slates, Σ i_u."""
    clicks: int
    """Σ c_u."""
    impressions_squared: int
    """Σ i_u²."""
    clicks_squared: int
    """Σ c_u²."""
    impressions_times_clicks: int
    """Σ i_u c_u."""
    fallbacks: int
    """Slates that showed the base order because the model failed or was late."""
    positions: tuple[PositionCounts, ...]
    """(K,) from the top slot down, as long as the longest slate."""
    fallback_reasons: Mapping[str, int] = field(default_factory=dict)
    """How many slates fell back for which reason."""


@dataclass(frozen=True)
class Counts:
    """An experiment as it stands; one that nobody has seen has no arms."""

    experiment: str
    arms: Mapping[str, ArmCounts]


@dataclass(frozen=True)
class MinuteCounts:
    """What an arm showed in one minute, and the clicks on that, whenever they came."""

    minute: int
    """Since 1970."""
    arm: str
    impressions: int
    clicks: int


def group_of(unit: str) -> int:
    """Return the group that a unit is counted in."""
    return crc32(unit.encode()) % GROUPS


def minute_of(at: float) -> int:
    """Return the minute of a time in seconds."""
    return int(at // 60)


_SUMS = tuple(one.name for one in fields(ArmCounts) if one.name not in ("positions", "fallback_reasons"))


@lru_cache(maxsize=256)
def _add_to(table: str, key: tuple[str, ...], values: tuple[str, ...], n_rows: int = 1) -> str:
    """Return the SQL that adds to the values of some rows, and makes those that are missing."""
    added = ", ".join(f"{value} = {table}.{value} + excluded.{value}" for value in values)
    row = f"({', '.join('?' * (len(key) + len(values)))})"
    return (
        f"INSERT INTO {table} ({', '.join([*key, *values])}) VALUES {', '.join([row] * n_rows)} "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {added}"
    )


_BOTH = ("impressions", "clicks")
_ADD_TO_UNIT = _add_to("unit_counts", ("experiment", "arm", "unit"), _BOTH) + " RETURNING impressions, clicks"
_ARM_KEY = ("experiment", "arm")
_SLOT_KEY = ("experiment", "arm", "unit_group", "position")
_MINUTE_KEY = ("experiment", "minute", "arm")
_REASON_KEY = ("experiment", "arm", "reason")


class Tally:
    """What a group of writes adds to the counts."""

    def __init__(self) -> None:
        self._units: dict[tuple[str, str, str], list[int]] = {}
        self._slots: dict[tuple[str, str, int, int], list[int]] = {}
        self._minutes: dict[tuple[str, int, str], list[int]] = {}
        self._reasons: Counter[tuple[str, str, str]] = Counter()

    def add_impression(self, arm: Arm, unit: str, at: float, n_shown: int, fallback: str | None) -> None:
        """Count a slate that was not in the log before."""
        group = group_of(unit)
        self._units.setdefault((*arm, unit), [0, 0])[0] += 1
        self._minutes.setdefault((arm[0], minute_of(at), arm[1]), [0, 0])[0] += 1
        for position in range(n_shown):
            self._slots.setdefault((*arm, group, position), [0, 0])[0] += 1
        if fallback is not None:
            self._reasons[*arm, fallback] += 1

    def add_click(self, arm: Arm, unit: str, at: float, position: int) -> None:
        """Count a click that was not in the log before; `at` is when its slate was shown."""
        self._units.setdefault((*arm, unit), [0, 0])[1] += 1
        self._minutes.setdefault((arm[0], minute_of(at), arm[1]), [0, 0])[1] += 1
        self._slots.setdefault((*arm, group_of(unit), position), [0, 0])[1] += 1

    def save(self, connection: Connection) -> None:
        """Add to the counts, within the transaction of the rows.

        The database adds, so that several writers cannot overwrite each other; rows are taken in one order, so that
        they cannot block each other; and the few rows that all of them share come last, so that they wait little.
        """
        units = sorted(self._units.items())
        totals = connection.each(_ADD_TO_UNIT, [(*key, *added) for key, added in units])
        arms: dict[Arm, list[int]] = {}
        for (key, added), total in zip(units, totals, strict=True):
            sums = arms.setdefault(key[:2], [0] * len(_SUMS))
            for index, change in enumerate(_change(added, total or ())):
                sums[index] += change
        for (experiment, arm, _), n_slates in self._reasons.items():
            arms[experiment, arm][-1] += n_slates
        reasons = {key: [n_slates] for key, n_slates in self._reasons.items()}
        _add(connection, "slot_counts", _SLOT_KEY, _BOTH, self._slots)
        _add(connection, "fallback_counts", _REASON_KEY, ("impressions",), reasons)
        _add(connection, "minute_counts", _MINUTE_KEY, _BOTH, self._minutes)
        _add(connection, "arm_counts", _ARM_KEY, _SUMS, arms)


def _add(
    connection: Connection,
    table: str,
    key: tuple[str, ...],
    values: tuple[str, ...],
    added: Mapping[Any, Sequence[int]],
) -> None:
    """Add to many rows in one statement: for one row each, a writer would let go of Python's lock as many times."""
    rows = sorted(added.items())
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        connection.rows(_add_to(table, key, values, len(some)), [part for row in some for part in (*row[0], *row[1])])


def _change(added: Sequence[int], total: Sequence[int]) -> Iterable[int]:
    """Return what a unit's change does to the sums of its arm: those of the unit now, less those before."""
    before = [now - more for now, more in zip(total, added, strict=True)]
    return (now - then for now, then in zip(_unit_sums(*total), _unit_sums(*before), strict=True))


def _unit_sums(impressions: int, clicks: int) -> tuple[int, ...]:
    return (
        int(impressions > 0),
        impressions,
        clicks,
        impressions**2,
        clicks**2,
        impressions * clicks,
    )


def read_counts(connection: Connection, experiment: str) -> Counts:
    """Return the counts of an experiment."""
    positions, reasons = _read_positions(connection, experiment), _read_reasons(connection, experiment)
    arms = connection.rows(
        f"SELECT arm, {', '.join(_SUMS)} FROM arm_counts WHERE experiment = ? ORDER BY arm", (experiment,)
    )
    return Counts(
        experiment,
        {
            arm: ArmCounts(
                **dict(zip(_SUMS, sums, strict=True)),
                positions=tuple(positions.get(arm, ())),
                fallback_reasons=reasons.get(arm, {}),
            )
            for arm, *sums in arms
        },
    )


def _read_positions(connection: Connection, experiment: str) -> dict[str, list[PositionCounts]]:
    positions: dict[str, list[PositionCounts]] = {}
    for arm, _, *sums in connection.rows(
        "SELECT arm, position, SUM(impressions), SUM(clicks), COUNT(*), SUM(impressions * impressions), "
        "SUM(clicks * clicks), SUM(impressions * clicks) FROM slot_counts WHERE experiment = ? "
        "GROUP BY arm, position ORDER BY arm, position",
        (experiment,),
    ):
        positions.setdefault(arm, []).append(PositionCounts(*map(int, sums)))
    return positions


def _read_reasons(connection: Connection, experiment: str) -> dict[str, dict[str, int]]:
    reasons: dict[str, dict[str, int]] = {}
    for arm, reason, n_slates in connection.rows(
        "SELECT arm, reason, impressions FROM fallback_counts WHERE experiment = ? ORDER BY arm, reason", (experiment,)
    ):
        reasons.setdefault(arm, {})[reason] = n_slates
    return reasons


def read_minutes(connection: Connection, experiment: str, since: int) -> Iterator[MinuteCounts]:
    """Yield the minutes in which an experiment showed anything, from `since` on, the earliest first."""
    for row in connection.rows(
        "SELECT minute, arm, impressions, clicks FROM minute_counts WHERE experiment = ? AND minute >= ? "
        "ORDER BY minute, arm",
        (experiment, since),
    ):
        yield MinuteCounts(*row)


def read_experiments(connection: Connection) -> list[str]:
    """Return the names of all experiments that showed anything."""
    return [name for (name,) in connection.rows("SELECT DISTINCT experiment FROM arm_counts ORDER BY experiment")]
