"""Running counts of an experiment: exact, written with the rows they count, and read without reading those.

For a unit u of an arm let i_u be its impressions and c_u its clicks. An arm keeps Σ i_u, Σ c_u, Σ i_u², Σ c_u² and
Σ i_u c_u over its units: what the variance of clicks per impression needs when the impressions of a unit are not
independent (the delta method for a ratio of means over units).

Counts say what happened since an experiment began. Pruning old impressions does not change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

from seq2slate.serving.log.backend import Connection

Arm: TypeAlias = tuple[str, str]
"""An experiment and one of its arms."""


@dataclass(frozen=True)
class PositionCounts:
    """One slot of an arm's slates."""

    impressions: int
    """Slates that had an item in this slot."""
    clicks: int


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


@dataclass(frozen=True)
class Counts:
    """An experiment as it stands; one that nobody has seen has no arms."""

    experiment: str
    arms: Mapping[str, ArmCounts]


_SUMS = tuple(field.name for field in fields(ArmCounts) if field.name != "positions")


def _add_to(table: str, key: Sequence[str], values: Sequence[str]) -> str:
    """Return the SQL that adds to the values of a row, and makes the row if there is none."""
    added = ", ".join(f"{value} = {table}.{value} + excluded.{value}" for value in values)
    marks = ", ".join("?" * (len(key) + len(values)))
    return (
        f"INSERT INTO {table} ({', '.join([*key, *values])}) VALUES ({marks}) "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {added} RETURNING {', '.join(values)}"
    )


_ADD_TO_UNIT = _add_to("unit_counts", ("experiment", "arm", "unit"), ("impressions", "clicks"))
_ADD_TO_ARM = _add_to("arm_counts", ("experiment", "arm"), _SUMS)
_ADD_TO_POSITION = _add_to("position_counts", ("experiment", "arm", "position"), ("impressions", "clicks"))


class Tally:
    """What a group of writes adds to the counts."""

    def __init__(self) -> None:
        self._units: dict[tuple[str, str, str], list[int]] = {}
        self._positions: dict[tuple[str, str, int], list[int]] = {}
        self._fallbacks: dict[Arm, int] = {}

    def add_impression(self, arm: Arm, unit: str, n_shown: int, *, is_fallback: bool) -> None:
        """Count a slate that was not in the log before."""
        self._units.setdefault((*arm, unit), [0, 0])[0] += 1
        for position in range(n_shown):
            self._positions.setdefault((*arm, position), [0, 0])[0] += 1
        self._fallbacks[arm] = self._fallbacks.get(arm, 0) + is_fallback

    def add_click(self, arm: Arm, unit: str, position: int) -> None:
        """Count a click that was not in the log before."""
        self._units.setdefault((*arm, unit), [0, 0])[1] += 1
        self._positions.setdefault((*arm, position), [0, 0])[1] += 1

    def save(self, connection: Connection) -> None:
        """Add to the counts, within the transaction of the rows.

        The database adds, so that several writers cannot overwrite each other; rows are taken in one order, so that
        they cannot block each other; and the few rows that all of them share come last, so that they wait little.
        """
        units = sorted(self._units.items())
        totals = connection.each(_ADD_TO_UNIT, [(*key, *added) for key, added in units])
        arms: dict[Arm, list[int]] = {}
        for (key, added), total in zip(units, totals, strict=True):
            sums = arms.setdefault(key[:2], [0] * (len(_SUMS) - 1))
            for index, change in enumerate(_change(added, total or ())):
                sums[index] += change
        connection.each(_ADD_TO_ARM, [(*arm, *sums, self._fallbacks.get(arm, 0)) for arm, sums in sorted(arms.items())])
        connection.each(_ADD_TO_POSITION, [(*key, *added) for key, added in sorted(self._positions.items())])


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
    positions: dict[str, list[PositionCounts]] = {}
    for arm, impressions, clicks in connection.rows(
        "SELECT arm, impressions, clicks FROM position_counts WHERE experiment = ? ORDER BY arm, position",
        (experiment,),
    ):
        positions.setdefault(arm, []).append(PositionCounts(impressions, clicks))
    arms = connection.rows(
        f"SELECT arm, {', '.join(_SUMS)} FROM arm_counts WHERE experiment = ? ORDER BY arm", (experiment,)
    )
    return Counts(
        experiment,
        {
            arm: ArmCounts(positions=tuple(positions.get(arm, ())), **dict(zip(_SUMS, sums, strict=True)))
            for arm, *sums in arms
        },
    )
