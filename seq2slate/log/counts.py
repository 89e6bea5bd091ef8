"""Running counts of an experiment: exact, written with the rows they count, and read without reading those.

For a unit u of an arm let i_u be its impressions and c_u its clicks. An arm keeps Σ i_u, Σ c_u, Σ i_u², Σ c_u² and
Σ i_u c_u over its units: what the variance of clicks per impression needs when the impressions of a unit are not
independent (the delta method for a ratio of means over units).

For each slot of the slates a row for every unit would be too much. There the units are put into `GROUPS` groups by a
hash, each slot is counted by group, and the same sums are over groups: a few dozen independent clusters of whole units
are all that a variance needs.

Two arms that share their slates are credited with the clicks on what each has placed. For a unit with a_u and b_u such
clicks, the lead is b_u − a_u, and the sums are Σ over units of its square, of (a_u + b_u)², and of their product.

Counts say what happened since an experiment began. Pruning old impressions does not change them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from seq2slate.log.backend import Connection

GROUPS = 64


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
class DraftCounts:
    """Slates that two arms, a and b, shared."""

    impressions: int
    units: int
    """Those that clicked."""
    a_clicks: int
    b_clicks: int
    lead_squared: int
    clicks_squared: int
    lead_times_clicks: int


@dataclass(frozen=True)
class Counts:
    """An experiment as it stands; one that nobody has seen has no arms."""

    experiment: str
    arms: Mapping[str, ArmCounts]
    drafts: Mapping[tuple[str, str], DraftCounts] = field(default_factory=dict)
    """By a and b, the two arms that shared slates."""


@dataclass(frozen=True)
class MinuteCounts:
    """What an arm showed in one minute, and the clicks on that, whenever they came."""

    minute: int
    """Since 1970."""
    arm: str
    impressions: int
    clicks: int


@dataclass(frozen=True)
class Definition:
    """What has to be known of an experiment to read its counts, as the service noted it."""

    experiment: str
    control: str
    """The arm that the others are compared with."""
    weights: Mapping[str, float]
    """How units were shared out, by arm."""


def minute_of(at: float) -> int:
    """Return the minute of a time in seconds."""
    return int(at // 60)


ARM_SUMS = tuple(one.name for one in fields(ArmCounts) if one.name not in ("positions", "fallback_reasons"))
DRAFT_SUMS = tuple(one.name for one in fields(DraftCounts))
"""The columns of the two tables of sums, in their order."""


def read_counts(connection: Connection, experiment: str) -> Counts:
    """Return the counts of an experiment."""
    positions, reasons = _read_positions(connection, experiment), _read_reasons(connection, experiment)
    arms = connection.rows(
        f"SELECT arm, {', '.join(ARM_SUMS)} FROM arm_counts WHERE experiment = ? ORDER BY arm", (experiment,)
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
        _read_drafts(connection, experiment),
    )


def _read_drafts(connection: Connection, experiment: str) -> dict[tuple[str, str], DraftCounts]:
    rows = connection.rows(
        f"SELECT arm_a, arm_b, {', '.join(DRAFT_SUMS)} FROM draft_counts WHERE experiment = ? ORDER BY arm_a, arm_b",
        (experiment,),
    )
    return {(a, b): DraftCounts(*sums) for a, b, *sums in rows}


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


def read_definition(connection: Connection, experiment: str) -> Definition | None:
    """Return what was noted of an experiment; None if nothing was."""
    rows = connection.rows("SELECT control, weights FROM definitions WHERE experiment = ?", (experiment,))
    return Definition(experiment, rows[0][0], json.loads(rows[0][1])) if rows else None
