"""A mixture of users in one log: every visit is that of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seq2slate.data.lists import BoolArray, IntArray, ItemLists
from seq2slate.errors import UsageError
from seq2slate.simulation.visits import Arrays, ClickModel, DependsOn, Doubles, Facts


@dataclass(frozen=True)
class Mixture(ClickModel):
    """Several users: every visit is that of one of them, drawn by their weights.

    The types of a visit are those of all users, one after the other. The state says who it is, and holds the states of
    all. Where nobody needs it, a user's part of facts and state is empty.

    >>> from seq2slate.simulation.click_models import CascadeModel, DiverseClicks, shown_clicks
    >>> lists = ItemLists(features=[[0], [1], [9], [10]], offsets=[0, 4], labels=[2, 4, 3, 3])
    >>> user = Mixture((DiverseClicks(), CascadeModel(eta=0)), weights=(3, 1))
    >>> shown_clicks(user, lists, np.array([[0, 1, 2, 3]]), repeats=8, seed=0).tolist()
    [[1.0, 0.25, 1.0, 0.25]]
    """

    users: tuple[ClickModel, ...]
    weights: tuple[float, ...] = ()
    """Relative to each other; equal if not given."""

    def __post_init__(self) -> None:
        if len(self.users) < 2 or len(self.weights) not in (0, len(self.users)):
            raise UsageError(f"a mixture takes two or more users and a weight for each or none, got {self}")
        if not all(0 < weight < np.inf for weight in self.weights):
            raise UsageError(f"the weights of a mixture must be above 0, got {self.weights}")
        if len({user.relevant_from for user in self.users}) > 1:
            raise UsageError("the users of a mixture must agree on the lowest relevant grade (relevant_from)")

    @property
    def eta(self) -> float:
        """The largest of the users: above 0 if anybody has position bias."""
        return max(user.eta for user in self.users)

    @property
    def relevant_from(self) -> float:
        """The same for all users."""
        return self.users[0].relevant_from

    @property
    def depends_on(self) -> DependsOn:
        """Who it is, which nobody sees."""
        return "clicks"

    @property
    def is_stochastic(self) -> bool:
        """Visits are those of different users."""
        return True

    @property
    def n_types(self) -> int:
        """The types of all users."""
        return sum(user.n_types for user in self.users)

    def facts(self, lists: ItemLists, relevance: Doubles) -> Facts:
        """Return the facts of every user."""
        parts = [user.facts(lists, relevance) for user in self.users]
        weights = np.array(self.weights or [1.0] * len(parts))
        one = np.ones((len(lists), 1))
        types = [
            weight * (one if part.types is None else part.types)
            for part, weight in zip(parts, weights / weights.sum(), strict=True)
        ]
        items, pairs = tuple(part.items for part in parts), tuple(part.pairs for part in parts)
        return Facts(relevance, items, pairs, np.concatenate(types, axis=1))

    def examination(self, n_slots: int) -> Doubles:
        """Return (T, K) the examination probabilities of every user."""
        return np.concatenate([user.examination(n_slots) for user in self.users])

    def start(self, kind: IntArray) -> Arrays:
        """Return who it is, and where every user starts."""
        ends = np.cumsum([user.n_types for user in self.users])
        states = [
            user.start(np.clip(kind - (end - user.n_types), 0, user.n_types - 1))
            for user, end in zip(self.users, ends.tolist(), strict=True)
        ]
        return np.searchsorted(ends, kind, side="right"), *states

    def click_probability(self, candidates: Facts, state: Arrays) -> Doubles:
        """Return that of the visitor."""
        found = [user.click_probability(facts, own) for user, facts, own in self._parts(candidates, state)]
        return _of_visitor(state, found)

    def factor_below(self, below: Facts, state: Arrays) -> Doubles | None:
        """Return that of the visitor; 1 for a user who does not look below."""
        factors = [user.factor_below(facts, own) for user, facts, own in self._parts(below, state)]
        if all(factor is None for factor in factors):
            return None
        return _of_visitor(state, [np.ones(1) if factor is None else factor for factor in factors])

    def leaving(self, item: Facts, state: Arrays) -> Doubles | None:
        """Return that of the visitor; 0 for a user who does not leave."""
        found = [user.leaving(facts, own) for user, facts, own in self._parts(item, state)]
        if all(leaving is None for leaving in found):
            return None
        return _of_visitor(state, [np.zeros(1) if leaving is None else leaving for leaving in found])

    def after(self, item: Facts, state: Arrays, clicked: BoolArray) -> Arrays:
        """Return who it is, and the next state of every user."""
        return state[0], *(user.after(facts, own, clicked) for user, facts, own in self._parts(item, state))

    def _parts(self, facts: Facts, state: Arrays) -> Iterator[tuple[ClickModel, Facts, Arrays]]:
        """Yield every user with the facts and the state that are its own."""
        for user, items, pairs, own in zip(self.users, facts.items, facts.pairs, state[1:], strict=True):
            yield user, Facts(facts.relevance, items, pairs), own


def _of_visitor(state: Arrays, values: list[Doubles]) -> Doubles:
    """Return the values of the user who it is."""
    chosen = values[0]
    for number, other in enumerate(values[1:], start=1):
        chosen = np.where(state[0] == number, other, chosen)
    return chosen
