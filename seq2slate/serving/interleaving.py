"""Interleaving: two rankers share one slate, and the clicks say which of them people prefer.

Team-draft interleaving (Radlinski, Kurup and Joachims, 2008): in every round a coin decides who picks first, and each
ranker puts its best item that is not yet on the slate. A click is credited to the team that placed the item. Everybody
sees both rankers side by side, so what differs between people and between queries cancels, and a preference shows after
far fewer impressions than in a comparison of two arms. In return it says only which ranker is preferred item by item,
not how much the click-through rate would change, and an item is judged beside the other ranker's items: what a slate
does as a whole, such as diversity, is diluted. docs/experiments.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from seq2slate.errors import UsageError
from seq2slate.serving.analysis import LEVEL, ratio_variance, two_sided_p

Team: TypeAlias = Literal["a", "b"]
Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True)
class Preference:
    """How much b is preferred to a: from -1, where all clicks go to a, to 1, where all go to b."""

    estimate: float | None
    """(clicks of b − clicks of a) / all clicks; None without clicks."""
    low: float | None
    high: float | None
    """The 95% interval for one planned look; None if the units show no spread, as fewer than two of them do."""
    p_value: float | None
    """Of no preference, two-sided."""
    units: int


def interleave(
    slate_a: Sequence[Item], slate_b: Sequence[Item], k: int, rng: np.random.Generator
) -> tuple[list[Item], list[Team]]:
    """Return one slate of k items and, slot by slot, the team that placed the item.

    The slate is no longer than the shorter of the two: so both teams always have an item left to pick.

    >>> interleave(["x", "y", "z"], ["z", "x", "y"], 3, np.random.default_rng(1))
    (['x', 'z', 'y'], ['a', 'b', 'b'])
    """
    if k < 0:
        raise UsageError(f"a slate cannot have {k} slots")
    rankings: dict[Team, Sequence[Item]] = {"a": slate_a, "b": slate_b}
    for name, ranking in rankings.items():
        if len(set(ranking)) < len(ranking):
            raise UsageError(f"an item stands twice on the slate of {name}")
    n_slots = min(k, len(slate_a), len(slate_b))
    slate: dict[Item, Team] = {}
    reached: dict[Team, int] = {"a": 0, "b": 0}
    for b_is_first in rng.integers(2, size=(n_slots + 1) // 2):
        order: tuple[Team, Team] = ("b", "a") if b_is_first else ("a", "b")
        for team in order[: n_slots - len(slate)]:
            ranking, best = rankings[team], reached[team]
            while ranking[best] in slate:
                best += 1
            slate[ranking[best]] = team
            reached[team] = best + 1
    return list(slate), list(slate.values())


def credit(teams: Sequence[Team], clicked: Iterable[int]) -> tuple[int, int]:
    """Return how many of the clicked slots were placed by a and by b.

    >>> credit(["a", "b", "b"], clicked=[0, 2])
    (1, 1)
    """
    winners = [teams[slot] for slot in clicked]
    return winners.count("a"), winners.count("b")


def preference(credits_of_units: npt.ArrayLike) -> Preference:
    """Return how much b is preferred, from (U, 2) the clicks that each unit gave to a and to b over all its slates.

    A ratio of sums over units, with the variance of `seq2slate.serving.analysis`: the slates of a unit need not be
    independent. A unit without clicks has no say.

    >>> preference([(0, 2), (1, 1), (0, 1), (2, 1), (0, 2)]).estimate
    0.4
    """
    table = np.asarray(credits_of_units)
    if table.size == 0:
        table = np.zeros((0, 2), dtype=np.int64)
    if table.ndim != 2 or table.shape[1] != 2 or not np.issubdtype(table.dtype, np.integer) or (table < 0).any():
        raise UsageError("credits are two counts for each unit: clicks of a, clicks of b")
    table = table[table.sum(axis=1) > 0].astype(np.int64)
    n_units = len(table)
    if not n_units:
        return Preference(None, None, None, None, 0)
    lead, total = table[:, 1] - table[:, 0], table.sum(axis=1)
    y, x, yy, xx, xy = (int(sums.sum()) for sums in (lead, total, lead**2, total**2, lead * total))
    variance = ratio_variance(n_units, y, x, yy, xx, xy)
    if variance is None:
        return Preference(y / x, None, None, None, n_units)
    half = float(ndtri((1 + LEVEL) / 2)) * sqrt(variance)
    return Preference(y / x, max(-1.0, y / x - half), min(1.0, y / x + half), two_sided_p(y / x, variance), n_units)
