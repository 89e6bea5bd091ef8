"""How good a slate can get on generated lists: two rankers that know the true relevance probabilities.

They are references, not competitors. Quality is read on a scale from 0, the base order, to 1, the ceiling, and each
view of a simulated user's data has its own:

- `LoggedCeiling` for the labels of the log: no order can be expected to score better on the clicks that the base order
  got than the one that sorts by their expectation.
- `ShownCeiling` for a user who is shown the new slate: the slate with the most expected clicks in its first k slots. It
  is exact where trying all of them is cheap, and found by beam search elsewhere: good, but not a bound.

Items are relevant independently of each other, given their probabilities. So a user who knows the probability instead
of the relevance behaves the same on average, and nothing here draws a relevance. Where visits differ (by intent, or by
the user of a mixture), expectations are over these types too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seq2slate.data.lists import Batch, BoolArray, IntArray
from seq2slate.data.ranker import NO_ITEM, base_slates, complete_slates, empty_slates, list_keys, slates_from_scores
from seq2slate.errors import DataError, UsageError
from seq2slate.simulation.clicks import bounded_batches
from seq2slate.simulation.visits import (
    Arrays,
    ClickModel,
    Doubles,
    Facts,
    below_factor,
    draw,
    each,
    scan,
    without_first,
)


@dataclass(frozen=True)
class LoggedCeiling:
    """Sorts by the expected clicks of each item in base order, by Monte Carlo over what was clicked above it.

    A list of n items costs `repeats` scans of n slots, about repeats · n² steps: 2 ms for n = 25, 8 ms for n = 110. For
    a user who depends neither on earlier clicks nor on the type of the visit it is exact and costs one scan.
    """

    user: ClickModel
    repeats: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise UsageError(f"repeats must be at least 1, got {self.repeats}")

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return slates (B, K), the items with the most expected clicks first."""
        return slates_from_scores(self.expected_clicks(batch), batch.mask, k)

    def expected_clicks(self, batch: Batch) -> Doubles:
        """Return (B, N) the expected clicks of each item where the base order shows it; padding is 0."""
        expected = np.zeros(batch.mask.shape)
        user = self.user
        repeats = self.repeats if user.depends_on == "clicks" else 1
        for part in bounded_batches(batch.lists, repeats):
            draws = draw([(self.seed, key) for key in list_keys(part.lists)], part.n_slots, repeats, user.n_types)
            facts = user.facts(part.lists, _relevance_probability(part))
            scans = scan(user, base_slates(part.mask), facts, draws)
            expected[part.index, : part.n_slots] = scans.probability.mean(axis=0)
        return expected


@dataclass(frozen=True)
class ShownCeiling:
    """The slate with the most expected clicks in its first k slots; after them, items by relevance probability.

    For a user who looks at one item at a time that is the order by relevance probability. For the others, a list
    with at most `exact_slates` different slates (at k = 10: up to 6 items) gets the best of all, and longer ones the
    best that a beam search finds. It fills the slots from the top and keeps the `beam` slates with the most
    expected clicks so far, of slates with the same items (and the same last item, for a user who looks at neighbours)
    only the best; a beam of 1 is the greedy choice.

    Expectations are over all types of visits and all the ways in which the slots above may have been clicked. These
    double with every slot; once there are `states` of them, each goes on in one random way. At k = 10 a list of 25
    items costs 2 ms and one of 110 costs 7, in proportion to beam and states. On such lists the greedy choice misses
    about a tenth of the clicks of the diverse user, so the beam is worth its price.
    """

    user: ClickModel
    k: int = 10
    beam: int = 16
    states: int = 128
    exact_slates: int = 720
    seed: int = 0

    def __post_init__(self) -> None:
        for option in ("k", "beam", "states", "exact_slates"):
            if getattr(self, option) < 1:
                raise UsageError(f"{option} must be at least 1, got {getattr(self, option)}")

    def describe(self) -> str:
        """Say in words what this ceiling is, for tables and figures.

        >>> from seq2slate.simulation.click_models import DiverseClicks
        >>> ShownCeiling(DiverseClicks()).describe()
        'most expected clicks in the top 10: exact up to 6 items, a beam search (16) and no bound for longer lists'
        """
        goal = f"most expected clicks in the top {self.k}"
        if self.user.depends_on == "item":
            return f"{goal}: exact"
        longest = 1
        while self._is_exact(longest + 1):
            longest += 1
        return f"{goal}: exact up to {longest} items, a beam search ({self.beam}) and no bound for longer lists"

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return slates (B, K); the first `self.k` slots do not depend on how many are asked for."""
        probability = _relevance_probability(batch)
        if self.user.depends_on == "item":
            return slates_from_scores(probability, batch.mask, k)
        slates = empty_slates(batch.lists.lengths, self.k)
        is_exact = np.array([self._is_exact(length) for length in batch.lists.lengths.tolist()], dtype=bool)
        for fill, chosen in ((self._best, is_exact), (self._search, ~is_exact)):
            numbers = np.flatnonzero(chosen)
            for part in bounded_batches(batch.lists[numbers], self.beam * self.states):
                filled = fill(part, self.user.facts(part.lists, _relevance_probability(part)))
                slates[numbers[part.index], : filled.shape[1]] = filled
        return complete_slates(slates, batch.mask, probability, k)

    def _is_exact(self, length: int) -> bool:
        return math.perm(length, min(self.k, length)) <= self.exact_slates

    def _best(self, part: Batch, facts: Facts) -> IntArray:
        """Return the best of all slates (B, K) of each list."""
        slates = empty_slates(part.lists.lengths, self.k)
        for number, length in enumerate(part.lists.lengths.tolist()):
            candidates = np.array(list(permutations(range(length), min(self.k, length))), dtype=np.int64)
            clicks = expected_clicks(self.user, candidates, facts.take(slice(number, number + 1)))
            best = clicks.round(12).argmax()  # rounded: of equal slates the first, not the one with the luckier sum
            slates[number, : candidates.shape[1]] = candidates[best]
        return slates

    def _search(self, part: Batch, facts: Facts) -> IntArray:
        """Return the best slates (B, K) that a beam search finds."""
        user, rows = self.user, np.arange(len(part))[:, None]
        n_slots = min(self.k, part.n_slots)
        examination = user.examination(n_slots)
        every = facts.take(np.s_[:, None])  # (B, 1, N), for all slates of a beam
        beam = _Beam.at_start(part.mask, _States.at_start(user, facts, (len(part), 1)))
        for slot in range(n_slots):
            gains = beam.states.expected_clicks(user, every, examination[:, slot])
            if beam.last is not None:
                gains = gains - beam.last.lost_clicks(user, every)
            beam = beam.extend(gains, self.beam, tell_last=beam.last is not None)
            item = facts.placed((rows, np.maximum(beam.slates[:, :, slot], 0)))
            beam = self._after(beam, item, examination[:, slot], part, slot)
        return beam.slates[:, 0]

    def _after(self, beam: _Beam, item: Facts, examination: Doubles, part: Batch, slot: int) -> _Beam:
        """Return the beam after a slot: all states as long as they are few, one successor of each from then on."""
        states, user = beam.states, self.user
        here = states.at_items(beam.slates[:, :, slot])
        chance = here.chance(examination, user.click_probability(item, here.state))
        last = None
        if user.factor_below(item, here.state) is not None:
            last = here._replace(probability=here.probability * chance)
        if 2 * len(chance) <= self.states:
            return beam._replace(states=states.branch(user, item, chance, here.leaving(user, item)), last=last)
        keys = [(self.seed, key, slot) for key in list_keys(part.lists)]
        uniform = draw(keys, 1, len(chance)).click[..., None]  # (S, B, 1, 1)
        return beam._replace(states=states.go_on(user, item, uniform < chance, here.leaving(user, item)), last=last)


def expected_clicks(user: ClickModel, slates: IntArray, facts: Facts) -> Doubles:
    """Return (P,) the exact expected clicks on slates (P, K) of one list, in time and memory of order P · K · T · 2^K.

    `facts` are those of the list, with the relevance probability (1, N) of each item.
    """
    clicks = np.zeros(len(slates))
    shown = facts.at(slates)
    is_item = np.ones(slates.shape, dtype=bool)
    states = _States.at_start(user, facts, (len(slates),))
    for slot, examination in enumerate(user.examination(slates.shape[1]).T):
        here = states.first()
        item = shown.placed((slice(None), slot), below=slot + 1)
        factor = below_factor(user, shown, is_item, slot, here.state)
        probability = user.click_probability(item, here.state)
        chance = here.chance(examination, probability if factor is None else probability * factor)
        clicks += (here.probability * chance).sum(axis=0)[:, 0]
        states = states.rest().branch(user, item, chance, here.leaving(user, item))
    return clicks


class _States(NamedTuple):
    """The ways in which a visit may have gone so far, for slates of any shape (…), but for those that have ended."""

    probability: Doubles
    """(S, …, 1) of each state."""
    kind: IntArray
    """(S, …, 1) the type of the visit."""
    state: Arrays
    """(S, …, N), or (S, …, 1) where all candidates share it: the state of the user."""

    @classmethod
    def at_start(cls, user: ClickModel, facts: Facts, shape: tuple[int, ...]) -> _States:
        """Return one state for each type of visit, for slates (B, …) of lists (B, N), or slates (P,) of one list."""
        types = np.ones((len(facts.relevance), 1)) if facts.types is None else facts.types
        n_lists, n_types = types.shape
        kind = np.broadcast_to(np.arange(n_types).reshape(-1, *[1] * (len(shape) + 1)), (n_types, *shape, 1))
        probability = np.broadcast_to(types.T.reshape(n_types, n_lists, *[1] * len(shape)), kind.shape)
        return cls(probability, kind, user.start(kind))

    def first(self) -> _States:
        """Return the states as the first candidate has them."""
        return self._replace(state=each(self.state, lambda values: values[..., :1]))

    def rest(self) -> _States:
        """Return the states without the first candidate."""
        return self._replace(state=each(self.state, without_first))

    def at_items(self, items: IntArray) -> _States:
        """Return the states as one item (…) has them."""
        index = np.maximum(items, 0)[None, ..., None]

        def pick(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.take_along_axis(values, index, axis=-1) if values.shape[-1] > 1 else values

        return self._replace(state=each(self.state, pick))

    def of_slates(self, rows: IntArray, slates: IntArray) -> _States:
        """Return the states of some of the slates (B, W) of each list."""
        probability, kind, *state = each((self.probability, self.kind, *self.state), lambda v: v[:, rows, slates])
        return _States(probability, kind, tuple(state))

    def chance(self, examination: Doubles, click_probability: Doubles) -> Doubles:
        """Return (S, …, 1) the probability of a click, given examination probabilities (T,) of the slot."""
        return np.broadcast_to(self._examined(examination) * click_probability, self.probability.shape)

    def leaving(self, user: ClickModel, item: Facts) -> Doubles | float:
        """Return the probability that the visit ends after a click."""
        leaving = user.leaving(item, self.state)
        return 0.0 if leaving is None else leaving

    def expected_clicks(self, user: ClickModel, candidates: Facts, examination: Doubles) -> Doubles:
        """Return (…, N) the expected clicks on each candidate in the next slot."""
        if len(examination) == 1:
            return examination * user.mean_click_probability(candidates, self.state, self.probability)
        return user.mean_click_probability(candidates, self.state, self.probability * self._examined(examination))

    def lost_clicks(self, user: ClickModel, candidates: Facts) -> Doubles:
        """Return (…, N) the clicks that each candidate directly below takes away; `probability` is that of a click."""
        factor = user.factor_below(candidates, self.state)
        lost: Doubles = (self.probability * (1 - (np.ones(1) if factor is None else factor))).sum(axis=0)
        return lost

    def branch(self, user: ClickModel, item: Facts, chance: Doubles, leaving: Doubles | float) -> _States:
        """Return every state twice: without a click on the item, and with one after which the user stays."""
        stays = self.probability * chance * (1 - leaving)
        clicked = np.repeat([False, True], len(chance)).reshape(-1, *[1] * (chance.ndim - 1))
        state = each(self.state, lambda values: np.concatenate([values, values]))
        return _States(
            np.concatenate([self.probability * (1 - chance), stays]),
            np.concatenate([self.kind, self.kind]),
            user.after(item, state, np.broadcast_to(clicked, (2 * len(chance), *chance.shape[1:]))),
        )

    def go_on(self, user: ClickModel, item: Facts, clicked: BoolArray, leaving: Doubles | float) -> _States:
        """Return every state once, with or without a click (S, …, 1) on the item."""
        stays = np.where(clicked, self.probability * (1 - leaving), self.probability)
        return _States(stays, self.kind, user.after(item, self.state, clicked))

    def _examined(self, examination: Doubles) -> Doubles:
        probability: Doubles = examination[self.kind] if len(examination) > 1 else examination
        return probability


class _Beam(NamedTuple):
    """The W best slates found so far for each list, the best first."""

    slates: IntArray
    """(B, W, slots so far)"""
    clicks: Doubles
    """(B, W) their expected clicks; -inf for a slate that does not exist, in a list with fewer."""
    left: BoolArray
    """(B, W, N) the items that are not yet placed."""
    states: _States
    last: _States | None = None
    """Before the last slot, with the probability of a click there; None if the item below it does not matter."""

    @classmethod
    def at_start(cls, mask: BoolArray, states: _States) -> _Beam:
        """Return the empty slate of each list (B, N)."""
        slates = np.zeros((len(mask), 1, 0), dtype=np.int64)
        return cls(slates, np.zeros((len(mask), 1)), mask[:, None], states)

    def extend(self, gains: Doubles, width: int, *, tell_last: bool) -> _Beam:
        """Return the best `width` slates with one more item; it adds its gains (B, W, N) to the expected clicks."""
        n_lists, _, n_items = self.left.shape
        totals = np.where(self.left, self.clicks[..., None] + gains, -np.inf)
        totals = _best_of_each_set(totals, self.left, tell_last).reshape(n_lists, -1)
        top = np.argsort(-totals, axis=1, kind="stable")[:, :width]
        parents, items = np.divmod(top, n_items)
        rows = np.arange(n_lists)[:, None]
        clicks = totals[rows, top]
        left = self.left[rows, parents]
        left[rows, np.arange(top.shape[1]), items] = False
        placed = np.where(np.isfinite(clicks), items, NO_ITEM)
        slates = np.concatenate([self.slates[rows, parents], placed[..., None]], axis=-1)
        return _Beam(slates, clicks, left, self.states.of_slates(rows, parents))


def _best_of_each_set(totals: Doubles, left: BoolArray, tell_last: bool) -> Doubles:
    """Return totals (B, W, N) with -inf for every slate that holds the same items as a better one.

    With `tell_last`, only among slates with the same last item.
    """
    # Each item gets a random number; slates hold the same items when their sums (modulo 2^64) are equal.
    numbers = np.random.default_rng(0).integers(1 << 63, size=left.shape[-1], dtype=np.uint64)
    weight = np.uint64(3 if tell_last else 1)  # of the last item
    sums = (np.where(left, np.uint64(0), numbers).sum(axis=-1, keepdims=True) + weight * numbers).reshape(len(left), -1)
    flat = totals.reshape(len(left), -1)
    order = np.lexsort((-flat, sums), axis=-1)
    sorted_sums = np.take_along_axis(sums, order, axis=-1)
    is_best = np.ones(sums.shape, dtype=bool)
    np.put_along_axis(is_best, order[:, 1:], sorted_sums[:, 1:] != sorted_sums[:, :-1], axis=-1)
    return np.where(is_best, flat, -np.inf).reshape(totals.shape)


def _relevance_probability(batch: Batch) -> Doubles:
    """Return the true relevance probabilities (B, N); padding is 0."""
    probability = batch.lists.relevance_probability
    if probability is None:
        raise DataError("a ceiling needs the true relevance probabilities, and these lists have none: generate them")
    padded: Doubles = batch.pad(probability.astype(np.float64))
    return padded
