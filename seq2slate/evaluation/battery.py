"""The battery of users: the same rankers with many users in several worlds, and what one of them gains with each.

Rows are {"world", "user", "ranker", "metric", "mean", "low", "high", "lists", "seeds"}, and differences {"world",
"user", "metric", "ranker", "against", "mean", "low", "high"}, list by list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from seq2slate.evaluation.comparison import (
    BASE_ORDER,
    Comparison,
    Rows,
    TableCell,
    is_ceiling,
    percent_text,
    share_text,
)
from seq2slate.evaluation.sheets import Sheet

HARM, LOW_END, ROOM = 0.005, 0.015, 0.05
"""Shares of the base order: a mean so far below it, a lower end so far below it, a ceiling so far above it."""


class Gain(NamedTuple):
    """What a ranker gains with one user by one metric."""

    world: str
    user: str
    metric: str
    base: float
    gain: TableCell
    """The difference to the base order."""
    rival: TableCell | None
    """The best pointwise ranker."""
    lead: TableCell | None
    """The difference to it."""
    ceiling: float | None
    share: float | None
    """Of the gap between base order and ceiling."""

    @property
    def has_room(self) -> bool:
        """Whether the ceiling is clearly above the base order."""
        return self.ceiling is not None and self.ceiling >= (1 + ROOM) * self.base


@dataclass(frozen=True)
class Battery:
    """The same rankers with many users, in several worlds."""

    rows: Rows
    differences: Rows
    mine: str
    """The ranker whose differences are shown."""
    pointwise: Sequence[str]
    """Rankers that score every item alone. The best of them on the test lists is the bar, metric by metric."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Battery:
        """Return the battery that a JSON file holds."""
        return cls(content["rows"], content["differences"], content["mine"], content["pointwise"])

    @property
    def views(self) -> list[tuple[str, str]]:
        """Every world with each of its metrics."""
        return list(dict.fromkeys((row["world"], row["metric"]) for row in self.rows))

    def users(self, world: str) -> list[str]:
        """Return the users of a world."""
        return list(dict.fromkeys(row["user"] for row in self.rows if row["world"] == world))

    def comparison(self, world: str, user: str) -> Comparison:
        """Return the rows of one user."""
        return Comparison([row for row in self.rows if (row["world"], row["user"]) == (world, user)])

    def difference(self, world: str, user: str, metric: str, against: str) -> TableCell | None:
        """Return the difference of `mine` to a ranker, list by list."""
        wanted = (world, user, metric, self.mine, against)
        for row in self.differences:
            if tuple(row[name] for name in ("world", "user", "metric", "ranker", "against")) == wanted:
                return None if row["mean"] is None else TableCell(self.mine, row["mean"], row["low"], row["high"])
        return None

    def gains(self, world: str, metric: str) -> list[Gain]:
        """Return what `mine` gains with every user; one without a base order or without it is left out."""
        found = []
        for user in self.users(world):
            comparison = self.comparison(world, user)
            base, gain = comparison.base(metric), self.difference(world, user, metric, BASE_ORDER)
            if base is None or gain is None or base.mean <= 0:
                continue
            ceiling, share = comparison.ceiling(metric), comparison.gap_closed(self.mine, metric)
            scored = [cell for name in self.pointwise if (cell := comparison.cell(name, metric)) is not None]
            rival = max(scored, key=lambda cell: cell.mean, default=None)
            lead = None if rival is None else self.difference(world, user, metric, rival.ranker)
            highest = None if ceiling is None else ceiling.mean
            found.append(Gain(world, user, metric, base.mean, gain, rival, lead, highest, share))
        return found


def summary(gains: Sequence[Gain], mine: str) -> str:
    """Count the cells with harm, and say how much of the gap is closed where it is worth closing."""
    below = sum(one.gain.mean < -HARM * one.base for one in gains)
    low_end = sum(one.gain.low is not None and one.gain.low < -LOW_END * one.base for one in gains)
    behind = sum(one.lead is not None and one.lead.high is not None and one.lead.high < 0 for one in gains)
    shares = [one.share for one in gains if one.has_room and one.share is not None]
    mean = f"{sum(shares) / len(shares):.0%}" if shares else "nothing"
    return (
        f"{mine}, {len(gains)} cells: {below} below the base order by more than {HARM:.1%}; {low_end} with a lower end "
        f"below {-LOW_END:.1%}; {mean} of the gap closed on average over the {len(shares)} whose ceiling is at least "
        f"{ROOM:.0%} above the base order; {behind} behind the best pointwise ranker outside the interval."
    )


def battery_notes(battery: Battery) -> Iterator[str]:
    """Yield the summary by each metric, over all worlds."""
    for metric in dict.fromkeys(metric for _, metric in battery.views):
        worlds = [world for world, other in battery.views if other == metric]
        gains = [gain for world in worlds for gain in battery.gains(world, metric)]
        yield f"Battery of users, {metric}, {' and '.join(worlds)}: {summary(gains, battery.mine)}"


def battery_sheets(battery: Battery) -> Iterator[Sheet]:
    """Yield a table for every world and metric: the means of all rankers, and what `mine` gains."""
    rankers = [name for name in dict.fromkeys(row["ranker"] for row in battery.rows) if not is_ceiling(name)]
    against = [f"{battery.mine} against base order", "against best pointwise", "gap closed"]
    for world, metric in battery.views:
        gains = {one.user: one for one in battery.gains(world, metric)}
        rows = []
        for user in battery.users(world):
            comparison = battery.comparison(world, user)
            cells = [*(comparison.cell(name, metric) for name in rankers), comparison.ceiling(metric)]
            rows.append([user, *("" if cell is None else f"{cell.mean:.3f}" for cell in cells)])
            rows[-1] += _gain_cells(gains.get(user))
        notes = [summary(list(gains.values()), battery.mine), _sizes_note(battery, world)]
        yield Sheet(f"Battery of users, world {world}: {metric}", ["user", *rankers, "ceiling", *against], rows, notes)


def _gain_cells(gain: Gain | None) -> list[str]:
    if gain is None:
        return ["", "", ""]
    rival = None if gain.rival is None else gain.rival.mean
    return [percent_text(gain.gain, gain.base), percent_text(gain.lead, rival), share_text(gain.share)]


def _sizes_note(battery: Battery, world: str) -> str:
    comparisons = [battery.comparison(world, user) for user in battery.users(world)]
    sizes = {
        ranker: dict.fromkeys(filter(None, (one.trained_on(ranker) for one in comparisons)))
        for ranker in dict.fromkeys(name for one in comparisons for name in one.rankers)
    }
    said = "; ".join(f"{ranker} {', '.join(found)}" for ranker, found in sizes.items() if found)
    return f"Trained on (lists × seeds): {said}. Differences are paired; 95% intervals over lists and seeds."
