"""How good a slate can get on generated lists: two rankers that know the true relevance probabilities.

They are references, not competitors. Quality is read on a scale from 0, the base order, to 1, the ceiling, and each
view of a simulated user's data has its own:

- `LoggedCeiling` for the labels of the log: no order can be expected to score better on the clicks that the base order
  got than the one that sorts by their expectation.
- `ShownCeiling` for a user who is shown the new slate: the slate with the most expected clicks in its first k slots. It
  is exact where trying all of them is cheap, and found by beam search elsewhere: good, but not a bound.

Items are relevant independently of each other, given their probabilities. So a user who knows the probability instead
of the relevance behaves the same on average, and nothing here draws a relevance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np

from seq2slate.data.lists import Batch, BoolArray, IntArray
from seq2slate.data.ranker import NO_ITEM, base_slates, complete_slates, empty_slates, list_keys, slates_from_scores
from seq2slate.errors import DataError, UsageError
from seq2slate.simulation.click_models import (
    ClickModel,
    Doubles,
    bounded_batches,
    draw,
    examination_probability,
    scan,
    similar_items,
)


@dataclass(frozen=True)
class LoggedCeiling:
    """Sorts by the expected clicks of each item in base order, by Monte Carlo over what was clicked above it.

    A list of n items costs `repeats` scans of n slots, about repeats · n² steps: 2 ms for n = 25, 8 ms for n = 110. For
    a user who does not look at earlier clicks it is exact and costs one scan.
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
        repeats = 1 if self.user.q is None else self.repeats
        for part in bounded_batches(batch.lists, repeats):
            draws = draw([(self.seed, key) for key in list_keys(part.lists)], part.n_slots, repeats)
            similar = None if self.user.q is None else similar_items(part.lists, self.user.q)
            scans = scan(self.user, base_slates(part.mask), _relevance_probability(part), similar, draws)
            expected[part.index, : part.n_slots] = scans.probability.mean(axis=0)
        return expected


@dataclass(frozen=True)
class ShownCeiling:
    """The slate with the most expected clicks in its first k slots; after them, items by relevance probability.

    For a user who does not look at earlier clicks that is the order by relevance probability. For the others, a list
    with at most `exact_slates` different slates (at k = 10: up to 6 items) gets the best of all, and longer ones the
    best that a beam search finds. It fills the slots from the top and keeps the `beam` slates with the most
    expected clicks so far, of slates with the same items only the best; a beam of 1 is the greedy choice.

    Expectations are over all the ways in which the slots above may have been clicked. These double with every slot;
    once there are `states` of them, each goes on in one random way. At k = 10 a list of 25 items costs 2 ms and one of
    110 costs 7, in proportion to beam and states. On such lists the greedy choice misses about a tenth of the
    clicks of the diverse user, so the beam is worth its price.
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
        'most expected clicks in the top 10: exact for lists of up to 6 items, beam search (16) for longer ones'
        """
        goal = f"most expected clicks in the top {self.k}"
        if self.user.q is None:
            return f"{goal}: exact"
        longest = 1
        while self._is_exact(longest + 1):
            longest += 1
        return f"{goal}: exact for lists of up to {longest} items, beam search ({self.beam}) for longer ones"

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return slates (B, K); the first `self.k` slots do not depend on how many are asked for."""
        probability = _relevance_probability(batch)
        q = self.user.q
        if q is None:
            return slates_from_scores(probability, batch.mask, k)
        slates = empty_slates(batch.lists.lengths, self.k)
        is_exact = np.array([self._is_exact(length) for length in batch.lists.lengths.tolist()], dtype=bool)
        for fill, chosen in ((self._best, is_exact), (self._search, ~is_exact)):
            numbers = np.flatnonzero(chosen)
            for part in bounded_batches(batch.lists[numbers], self.beam * self.states):
                filled = fill(part, similar_items(part.lists, q))
                slates[numbers[part.index], : filled.shape[1]] = filled
        return complete_slates(slates, batch.mask, probability, k)

    def _is_exact(self, length: int) -> bool:
        return math.perm(length, min(self.k, length)) <= self.exact_slates

    def _best(self, part: Batch, similar: BoolArray) -> IntArray:
        """Return the best of all slates (B, K) of each list."""
        slates = empty_slates(part.lists.lengths, self.k)
        probability = _relevance_probability(part)
        for number, length in enumerate(part.lists.lengths.tolist()):
            candidates = np.array(list(permutations(range(length), min(self.k, length))), dtype=np.int64)
            clicks = expected_clicks(self.user, candidates, probability[number], similar[number])
            best = clicks.round(12).argmax()  # rounded: of equal slates the first, not the one with the luckier sum
            slates[number, : candidates.shape[1]] = candidates[best]
        return slates

    def _search(self, part: Batch, similar: BoolArray) -> IntArray:
        """Return the best slates (B, K) that a beam search finds."""
        user, rows = self.user, np.arange(len(part))[:, None]
        probability = _relevance_probability(part)
        attention = examination_probability(min(self.k, part.n_slots), user.eta)
        beam = _Beam.at_start(part.mask)
        for slot, seen in enumerate(attention):
            beam = beam.extend(seen * beam.states.click_probability(user, probability[:, None]), self.beam)
            items = np.maximum(beam.slates[:, :, slot], 0)
            near_clicked = np.take_along_axis(beam.states.near_clicked, items[:, :, None, None], axis=-1)[..., 0]
            chance = seen * user.click_probability(probability[rows, items][..., None], near_clicked)
            beam = beam._replace(states=self._after(beam.states, chance, similar[rows, items], part, slot))
        return beam.slates[:, 0]

    def _after(self, states: _States, chance: Doubles, similar: BoolArray, part: Batch, slot: int) -> _States:
        """Return the states after a slot: all of them as long as they are few, one successor of each from then on."""
        n_states = chance.shape[-1]
        if 2 * n_states <= self.states:
            return states.branch(chance, similar)
        uniform = draw([(self.seed, key, slot) for key in list_keys(part.lists)], 1, n_states).click[:, :, 0].T
        return states.sample(uniform[:, None] < chance, similar)


def expected_clicks(user: ClickModel, slates: IntArray, probability: Doubles, similar: BoolArray) -> Doubles:
    """Return (P,) the exact expected clicks on slates (P, K) of one list, in time and memory of order P · K · 2^K.

    `probability` (N,) is the relevance probability of each item, `similar` (N, N) which items are similar.
    """
    clicks = np.zeros(len(slates))
    states = _States.at_start(len(slates), slates.shape[1])  # over slots here, not over items
    for slot, seen in enumerate(examination_probability(slates.shape[1], user.eta)):
        items = slates[:, slot, None]
        chance = seen * user.click_probability(probability[items], states.near_clicked[..., slot])
        clicks += (states.probability * chance).sum(axis=-1)
        states = states.branch(chance, similar[items, slates])
    return clicks


class _States(NamedTuple):
    """The ways in which the slots so far may have been clicked, for slates of any shape (…)."""

    probability: Doubles
    """(…, S) of each state; they sum to 1."""
    near_clicked: BoolArray
    """(…, S, N) which items are similar to a clicked one."""

    @classmethod
    def at_start(cls, *shape: int) -> _States:
        """Return the one state of each slate before the first slot, for a shape (…, N)."""
        *slates, n_items = shape
        return cls(np.ones((*slates, 1)), np.zeros((*slates, 1, n_items), dtype=bool))

    def click_probability(self, user: ClickModel, relevance: Doubles) -> Doubles:
        """Return (…, N) the probability that each item is clicked if it is observed next."""
        near = (self.probability[..., None] * self.near_clicked).sum(axis=-2)
        nowhere = np.zeros(near.shape, dtype=bool)
        if_far, if_near = (user.click_probability(relevance, where) for where in (nowhere, ~nowhere))
        probability: Doubles = if_far + near * (if_near - if_far)
        return probability

    def branch(self, chance: Doubles, similar: BoolArray) -> _States:
        """Return every state twice: without a click, and with one (…, S) on an item with these similar ones (…, N)."""
        probability = np.concatenate([self.probability * (1 - chance), self.probability * chance], axis=-1)
        near_clicked = np.concatenate([self.near_clicked, self.near_clicked | similar[..., None, :]], axis=-2)
        return _States(probability, near_clicked)

    def sample(self, clicked: BoolArray, similar: BoolArray) -> _States:
        """Return every state once, with or without a click (…, S) on an item with these similar ones (…, N)."""
        return _States(self.probability, self.near_clicked | (clicked[..., None] & similar[..., None, :]))


class _Beam(NamedTuple):
    """The W best slates found so far for each list, the best first."""

    slates: IntArray
    """(B, W, slots so far)"""
    clicks: Doubles
    """(B, W) their expected clicks; -inf for a slate that does not exist, in a list with fewer."""
    left: BoolArray
    """(B, W, N) the items that are not yet placed."""
    states: _States

    @classmethod
    def at_start(cls, mask: BoolArray) -> _Beam:
        """Return the empty slate of each list (B, N)."""
        n_lists, n_items = mask.shape
        slates = np.zeros((n_lists, 1, 0), dtype=np.int64)
        return cls(slates, np.zeros((n_lists, 1)), mask[:, None], _States.at_start(n_lists, 1, n_items))

    def extend(self, gains: Doubles, width: int) -> _Beam:
        """Return the best `width` slates with one more item; its expected clicks are the gains (B, W, N)."""
        n_lists, _, n_items = gains.shape
        totals = np.where(self.left, self.clicks[..., None] + gains, -np.inf)
        totals = _best_of_each_set(totals, self.left).reshape(n_lists, -1)
        top = np.argsort(-totals, axis=1, kind="stable")[:, :width]
        parents, items = np.divmod(top, n_items)
        rows = np.arange(n_lists)[:, None]
        clicks = totals[rows, top]
        left = self.left[rows, parents]
        left[rows, np.arange(top.shape[1]), items] = False
        placed = np.where(np.isfinite(clicks), items, NO_ITEM)
        slates = np.concatenate([self.slates[rows, parents], placed[..., None]], axis=-1)
        states = _States(self.states.probability[rows, parents], self.states.near_clicked[rows, parents])
        return _Beam(slates, clicks, left, states)


def _best_of_each_set(totals: Doubles, left: BoolArray) -> Doubles:
    """Return totals (B, W, N) with -inf for every slate that holds the same items as a better one."""
    # Each item gets a random number; slates hold the same items when their sums (modulo 2^64) are equal.
    numbers = np.random.default_rng(0).integers(1 << 63, size=left.shape[-1], dtype=np.uint64)
    sums = (np.where(left, np.uint64(0), numbers).sum(axis=-1, keepdims=True) + numbers).reshape(len(left), -1)
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
