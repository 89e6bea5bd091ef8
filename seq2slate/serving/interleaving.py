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
from math import log
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from seq2slate.errors import UsageError

Team: TypeAlias = Literal["a", "b"]
Item = TypeVar("Item", bound=Hashable)


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


def log_propensities(slate_a: Sequence[Item], slate_b: Sequence[Item], slate: Sequence[Item]) -> list[float]:
    """Return, slot by slot, the log-probability of an interleaved slate's item given the items above it.

    In a round whose first picks differ the coin decides about the first slot, and the second is the other team's. If
    they agree the coin decides about the second: the next best of b if a was first, and of a if b was.

    >>> [round(2.718281828**log, 3) for log in log_propensities(["x", "y", "z"], ["x", "z", "y"], ["x", "z", "y"])]
    [1.0, 0.5, 1.0]
    """
    logs: list[float] = []
    for start in range(0, len(slate), 2):
        first_a, first_b = (_best(ranking, slate[:start]) for ranking in (slate_a, slate_b))
        agree = first_a == first_b
        logs.append(0.0 if agree else -log(2))
        if start + 1 < len(slate):
            next_a, next_b = (_best(ranking, slate[: start + 1]) for ranking in (slate_a, slate_b))
            logs.append(-log(2) if agree and next_a != next_b else 0.0)
    return logs


def _best(ranking: Sequence[Item], placed: Sequence[Item]) -> Item:
    return next(item for item in ranking if item not in placed)
