"""Interleaving: two rankers share one slate, and the clicks say which of them users prefer.

Team-draft interleaving (Radlinski, Kurup and Joachims, 2008): in every round a coin decides which ranker picks first,
and each ranker places its best item that is not yet on the slate. A click is credited to the team that placed the item.
Everybody sees both rankers side by side, so what differs between users and between queries cancels, and a preference
becomes significant after far fewer impressions than in an A/B test. In return it says only which ranker is preferred
item by item, not by how much the click-through rate would change, and an item is judged beside the other ranker's
items: effects of the slate as a whole, such as diversity, are diluted. docs/experiments.md has the numbers.

For a unit u with a_u and b_u clicks on items that a and b placed, the preference for b is
Σ(b_u − a_u) / Σ(a_u + b_u): a ratio of sums over units, with the variance of `statistics.ratio_variance`. A unit
without clicks does not count.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass
from math import log
from typing import Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from seq2slate.errors import UsageError
from seq2slate.experiments.counts import DraftCounts
from seq2slate.experiments.statistics import Interval, infer, ratio_variance

Team: TypeAlias = Literal["a", "b"]
_Item = TypeVar("_Item", bound=Hashable)
EXPECTED_PREFERENCE = 0.05
"""The preference that one hopes to find: it tunes the always-valid interval."""


def interleave(
    slate_a: Sequence[_Item], slate_b: Sequence[_Item], k: int, rng: np.random.Generator
) -> tuple[list[_Item], list[Team]]:
    """Interleave two slates by team draft.

    Args:
        slate_a: The items of ranker a, best first, without repetition.
        slate_b: The items of ranker b.
        k: Slots of the interleaved slate; it is no longer than the shorter of the two, so that both teams always have
            an item left to pick.
        rng: Source of the coin flips.

    Returns:
        The interleaved slate and, slot by slot, the team that placed the item.

    >>> interleave(["x", "y", "z"], ["z", "x", "y"], 3, np.random.default_rng(1))
    (['x', 'z', 'y'], ['a', 'b', 'b'])
    """
    if k < 0:
        raise UsageError(f"a slate cannot have {k} slots")
    for name, ranking in {"a": slate_a, "b": slate_b}.items():
        if len(set(ranking)) < len(ranking):
            raise UsageError(f"the slate of {name} repeats an item")
    best: dict[Team, _BestLeft[_Item]] = {"a": _BestLeft(slate_a), "b": _BestLeft(slate_b)}
    n_slots = min(k, len(slate_a), len(slate_b))
    slate: dict[_Item, Team] = {}
    for b_is_first in rng.integers(2, size=(n_slots + 1) // 2):
        order: tuple[Team, Team] = ("b", "a") if b_is_first else ("a", "b")
        for team in order[: n_slots - len(slate)]:
            slate[best[team].find(slate.keys())] = team
    return list(slate), list(slate.values())


def log_propensities(slate_a: Sequence[_Item], slate_b: Sequence[_Item], slate: Sequence[_Item]) -> list[float]:
    """Return, slot by slot, the log-probability of an interleaved slate's item given the items above it.

    In a round whose first picks differ the coin decides about the first slot, and the second is the other team's. If
    they agree the coin decides about the second: the next best of b if a was first, and of a if b was.

    >>> [round(2.718281828**log, 3) for log in log_propensities(["x", "y", "z"], ["x", "z", "y"], ["x", "z", "y"])]
    [1.0, 0.5, 1.0]
    """
    best_of_a, best_of_b = _BestLeft(slate_a), _BestLeft(slate_b)
    placed: set[_Item] = set()
    logs: list[float] = []
    agreed = False
    for slot, item in enumerate(slate):
        differ = best_of_a.find(placed) != best_of_b.find(placed)
        starts_round = slot % 2 == 0
        logs.append(-log(2) if differ and (starts_round or agreed) else 0.0)
        agreed = starts_round and not differ
        placed.add(item)
    return logs


class _BestLeft(Generic[_Item]):
    """The best item of a ranking that is not placed yet; items once placed stay placed, so it only moves on."""

    def __init__(self, ranking: Sequence[_Item]) -> None:
        self._ranking, self._reached = ranking, 0

    def find(self, placed: Set[_Item]) -> _Item:
        while self._ranking[self._reached] in placed:
            self._reached += 1
        return self._ranking[self._reached]


def credit_clicks(teams: Sequence[Team], clicked: Iterable[int]) -> tuple[int, int]:
    """Return how many of the clicked slots were placed by a and by b.

    >>> credit_clicks(["a", "b", "b"], clicked=[0, 2])
    (1, 1)
    """
    winners = [teams[slot] for slot in clicked]
    return winners.count("a"), winners.count("b")


# Preference


@dataclass(frozen=True)
class Preference:
    """How much b is preferred to a: from -1, where all clicks go to a, to 1, where all go to b."""

    a: str
    b: str
    impressions: int
    """Interleaved slates."""
    units: int
    """Units that clicked."""
    a_clicks: int
    b_clicks: int
    estimate: float | None
    """(clicks of b − clicks of a) / all clicks; None without clicks."""
    fixed_horizon: Interval | None = None
    """None, like the others, if the units show no spread, as fewer than two of them do."""
    fixed_horizon_p: float | None = None
    always_valid: Interval | None = None
    """None before `MIN_UNITS` units have clicked."""
    always_valid_p: float | None = None


def preference_from_counts(a: str, b: str, counts: DraftCounts, expected: float = EXPECTED_PREFERENCE) -> Preference:
    """Return the preference between two arms from their running counts.

    Args:
        a: Name of the first arm.
        b: Name of the second arm, whose preference is estimated.
        counts: Sums over the units that saw their slates.
        expected: The preference that one hopes to find; tunes the always-valid interval.
    """
    lead, clicks = counts.b_clicks - counts.a_clicks, counts.a_clicks + counts.b_clicks
    counted = (a, b, counts.impressions, counts.units, counts.a_clicks, counts.b_clicks)
    if not clicks:
        return Preference(*counted, None)
    squares = (counts.lead_squared, counts.clicks_squared, counts.lead_times_clicks)
    value, variance = lead / clicks, ratio_variance(counts.units, lead, clicks, *squares)
    if variance is None:
        return Preference(*counted, value)
    fixed, fixed_p, always_valid, always_valid_p = infer(value, variance, expected, units=counts.units)
    limited = None if always_valid is None else always_valid.clipped(-1.0, 1.0)
    return Preference(*counted, value, fixed.clipped(-1.0, 1.0), fixed_p, limited, always_valid_p)


def preference_from_clicks(clicks_of_units: npt.ArrayLike) -> Preference:
    """Return the preference for b from the clicks of each unit.

    Args:
        clicks_of_units: (U, 2) the clicks that each unit gave to a and to b, over all its slates.

    >>> preference_from_clicks([(0, 2), (1, 1), (0, 1), (2, 1), (0, 2)]).estimate
    0.4
    """
    table = np.asarray(clicks_of_units)
    if table.size == 0:
        table = np.zeros((0, 2), dtype=np.int64)
    if table.ndim != 2 or table.shape[1] != 2 or not np.issubdtype(table.dtype, np.integer) or (table < 0).any():
        raise UsageError("expected two counts for each unit: clicks of a, clicks of b")
    a, b = table.astype(np.int64).T
    lead, total = b - a, a + b
    sums = (a, b, lead**2, total**2, lead * total)
    counts = DraftCounts(len(table), int((total > 0).sum()), *(int(one.sum()) for one in sums))
    return preference_from_counts("a", "b", counts)
