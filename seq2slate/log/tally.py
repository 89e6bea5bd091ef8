"""What a group of writes adds to the running counts of `log.counts`, within the transaction of the rows it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zlib import crc32

from seq2slate.log.backend import Connection
from seq2slate.log.counts import ARM_SUMS, DRAFT_SUMS, GROUPS, minute_of
from seq2slate.log.impressions import Draft

_ROWS_AT_ONCE = 500  # of one statement, which takes only so many values


@dataclass(frozen=True)
class ShownSlate:
    """What the counts need to know of a slate."""

    experiment: str
    arm: str
    unit: str
    at: float
    draft: Draft | None


class Tally:
    """What a group of writes adds to the counts."""

    def __init__(self) -> None:
        self._units: dict[tuple[str, str, str], list[int]] = {}
        self._slots: dict[tuple[str, str, int, int], list[int]] = {}
        self._minutes: dict[tuple[str, int, str], list[int]] = {}
        self._reasons: Counter[tuple[str, str, str]] = Counter()
        self._drafts: Counter[tuple[str, str, str]] = Counter()
        self._credits: dict[tuple[str, str, str, str], list[int]] = {}

    def add_impression(self, slate: ShownSlate, n_shown: int, fallback: str | None) -> None:
        """Count a slate that was not in the log before."""
        arm, group = (slate.experiment, slate.arm), group_of(slate.unit)
        self._units.setdefault((*arm, slate.unit), [0, 0])[0] += 1
        self._minutes.setdefault((slate.experiment, minute_of(slate.at), slate.arm), [0, 0])[0] += 1
        for position in range(n_shown):
            self._slots.setdefault((*arm, group, position), [0, 0])[0] += 1
        if fallback is not None:
            self._reasons[*arm, fallback] += 1
        if slate.draft is not None:
            self._drafts[slate.experiment, slate.draft.a, slate.draft.b] += 1

    def add_click(self, slate: ShownSlate, position: int) -> None:
        """Count a click that was not in the log before."""
        arm = (slate.experiment, slate.arm)
        self._units.setdefault((*arm, slate.unit), [0, 0])[1] += 1
        self._minutes.setdefault((slate.experiment, minute_of(slate.at), slate.arm), [0, 0])[1] += 1
        self._slots.setdefault((*arm, group_of(slate.unit), position), [0, 0])[1] += 1
        if slate.draft is not None:
            key = (slate.experiment, slate.draft.a, slate.draft.b, slate.unit)
            self._credits.setdefault(key, [0, 0])[slate.draft.teams[position] == "b"] += 1

    def save(self, connection: Connection) -> None:
        """Add to the counts, within the transaction of the rows.

        The database adds, so that several writers cannot overwrite each other; rows are taken in one order, so that
        they cannot block each other; and the few rows that all of them share come last, so that they wait little.
        """
        arms = _changes(connection, _ADD_TO_UNIT, self._units, _unit_sums)
        for (experiment, arm, _), n_slates in self._reasons.items():
            arms[experiment, arm][-1] += n_slates
        drafts = _changes(connection, _ADD_TO_CREDITS, self._credits, _credit_sums)
        for pair, n_slates in self._drafts.items():
            drafts.setdefault(pair, [0] * len(DRAFT_SUMS))[0] += n_slates
        reasons = {key: [n_slates] for key, n_slates in self._reasons.items()}
        _add(connection, "slot_counts", _SLOT_KEY, _BOTH, self._slots)
        _add(connection, "fallback_counts", _REASON_KEY, ("impressions",), reasons)
        _add(connection, "minute_counts", _MINUTE_KEY, _BOTH, self._minutes)
        _add(connection, "draft_counts", _PAIR_KEY, DRAFT_SUMS, drafts)
        _add(connection, "arm_counts", _ARM_KEY, ARM_SUMS, arms)


def _changes(
    connection: Connection,
    add: str,
    of_units: Mapping[Any, Sequence[int]],
    sums: Callable[[int, int], tuple[int, ...]],
) -> dict[Any, list[int]]:
    """Add to the rows of units; return what that does to the sums over them: those of the unit now, less before."""
    if not of_units:
        return {}
    rows = sorted(of_units.items())
    changes: dict[Any, list[int]] = {}
    for (key, added), total in zip(rows, connection.each(add, [(*key, *more) for key, more in rows]), strict=True):
        assert total is not None, "the statement returns the row"
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


def group_of(unit: str) -> int:
    """Return the group that a unit is counted in."""
    return crc32(unit.encode()) % GROUPS


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
_PAIR_KEY = ("experiment", "arm_a", "arm_b")
_CREDITS = ("a_clicks", "b_clicks")
_ADD_TO_CREDITS = _add_to("unit_credits", (*_PAIR_KEY, "unit"), _CREDITS) + " RETURNING a_clicks, b_clicks"
_SLOT_KEY = ("experiment", "arm", "unit_group", "position")
_MINUTE_KEY = ("experiment", "minute", "arm")
_REASON_KEY = ("experiment", "arm", "reason")
