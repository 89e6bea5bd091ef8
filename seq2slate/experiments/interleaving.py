"""Interleaving: two rankers share one slate, and the clicks say which of them people prefer.

Team-draft interleaving (Radlinski, Kurup and Joachims, 2008): in every round a coin decides who picks first, and each
ranker puts its best item that is not yet on the slate. A click is credited to the team that placed the item. Everybody
sees both rankers side by side, so what differs between people and between queries cancels, and a preference shows after
far fewer impressions than in a comparison of two arms. In return it says only which ranker is preferred item by item,
not how much the click-through rate would change, and an item is judged beside the other ranker's items: what a slate
does as a whole, such as diversity, is diluted. docs/experiments.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Set
from math import log
from typing import Generic, Literal, TypeAlias, TypeVar

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
    for name, ranking in {"a": slate_a, "b": slate_b}.items():
        if len(set(ranking)) < len(ranking):
            raise UsageError(f"an item stands twice on the slate of {name}")
    best: dict[Team, _BestLeft[Item]] = {"a": _BestLeft(slate_a), "b": _BestLeft(slate_b)}
    n_slots = min(k, len(slate_a), len(slate_b))
    slate: dict[Item, Team] = {}
    for b_is_first in rng.integers(2, size=(n_slots + 1) // 2):
        order: tuple[Team, Team] = ("b", "a") if b_is_first else ("a", "b")
        for team in order[: n_slots - len(slate)]:
            slate[best[team].find(slate.keys())] = team
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
    best_of_a, best_of_b = _BestLeft(slate_a), _BestLeft(slate_b)
    placed: set[Item] = set()
    logs: list[float] = []
    agreed = False
    for slot, item in enumerate(slate):
        differ = best_of_a.find(placed) != best_of_b.find(placed)
        starts_round = slot % 2 == 0
        logs.append(-log(2) if differ and (starts_round or agreed) else 0.0)
        agreed = starts_round and not differ
        placed.add(item)
    return logs


class _BestLeft(Generic[Item]):
    """The best item of a ranking that is not placed yet; it never has to look back."""

    def __init__(self, ranking: Sequence[Item]) -> None:
        self._ranking, self._reached = ranking, 0

    def find(self, placed: Set[Item]) -> Item:
        while self._ranking[self._reached] in placed:
            self._reached += 1
        return self._ranking[self._reached]
