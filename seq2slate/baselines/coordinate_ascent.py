"""Coordinate Ascent (Metzler and Croft, "Linear feature-based models for information retrieval", 2007).

A linear ranker whose weights climb the measure itself, NDCG@10: one weight at a time is moved to the best of many steps
while the others stand still, in a random sequence, until a whole sweep gains next to nothing. Because it may end on a
low hill, it starts again from random weights; the validation lists choose among starts and sweeps.

Departures from the paper and from RankLib:

- All steps of a line search are measured at once. Along one column every pair of items changes places at most once, so
  the slots of a positive item at all steps are a running sum over the steps at which others overtake it. Only pairs
  with a positive item count; where there are more of them than `max_pairs`, training sees a random part of the lists.
- Weights may be negative and are not normalised, since only the order counts; the steps grow with the weights instead.
- The base position is one of the columns, and the first start is the base order, because what is trained here ranks
  again what another ranker has ranked. The others are scaled by a `FeatureTransform`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from seq2slate.baselines.columns import fit_numbers
from seq2slate.baselines.linear import WeightedColumns, scaled_columns, weighted_sum
from seq2slate.data.lists import BoolArray, FloatArray, IntArray, ItemLists, batch_indices
from seq2slate.errors import UsageError
from seq2slate.estimator import check_labels
from seq2slate.metrics import Values, discounts
from seq2slate.progress import track

CUT = 10
"""The slots that count in the measure: NDCG@10."""

_DISCOUNTS = discounts(CUT)
_SMALLEST_STEP, _STEP_RATIO, _STEPS_EACH_WAY = 0.005, 1.5, 16
_LEAST_GAIN = 1e-4  # of a sweep; less is not worth another one
_BLOCK_PAIRS = 1 << 15  # worked on at once, so that temporary arrays stay in the cache


@dataclass(eq=False, kw_only=True, repr=False)
class CoordinateAscent(WeightedColumns):
    """Linear weights that climb NDCG@10, one at a time.

    >>> features = np.random.default_rng(0).normal(size=(200, 3))
    >>> lists = ItemLists(features, np.arange(0, 201, 5), labels=features[:, 1] + features[:, 0] / 9 > 1)
    >>> ranker = CoordinateAscent().fit(lists, lists)
    >>> int(np.abs(ranker.weights_).argmax())
    1
    """

    starts: int = 3
    """Ascents: the first from the base order, the others from random weights."""
    sweeps: int = 10
    """Passes over all columns in each ascent, at most."""
    max_pairs: int = 1_000_000
    """Pairs of a positive and another item to train on, at most: lists are sampled down to this."""

    kind = "coordinate-ascent"

    def _fit(self, train: ItemLists, valid: ItemLists) -> None:
        if self.starts < 1 or self.sweeps < 1:
            raise UsageError(f"starts and sweeps must be at least 1, got {self.starts} and {self.sweeps}")
        rng = np.random.default_rng(self.seed)
        judge = ScoredNdcg.of(valid, "validation")
        climbed = _some_lists(train, self.max_pairs, rng)
        transform = fit_numbers(self.kind, train)
        climb = Climb(scaled_columns(transform, climbed), LineSearch.of(climbed), ScoredNdcg.of(climbed, "training"))
        columns = scaled_columns(transform, valid)
        best, best_value = np.zeros(columns.shape[1]), -np.inf
        ascents = climb.ascents(self.starts, self.sweeps, rng)
        for weights in track(ascents, "coordinate ascent", total=self.starts * self.sweeps):
            value = judge.mean(weighted_sum(columns, weights))
            if value > best_value:
                best, best_value = weights, value
        self.weights_, self.transform_ = best.astype(np.float32), transform


@dataclass(frozen=True, eq=False)
class ScoredNdcg:
    """NDCG@10 of lists sorted by scores, for those who ask a thousand times; ties keep the base order.

    Lists without positives are left out, as they are from every mean of NDCG.
    """

    blocks: tuple[tuple[IntArray, BoolArray, Values], ...]
    """Lists of similar length: the item (b, n) in each place, whether there is one, and its gain over the ideal DCG."""
    n_lists: int

    @classmethod
    def of(cls, lists: ItemLists, what: str) -> ScoredNdcg:
        """Prepare the lists; `what` names them where they have nothing to measure."""
        gains = normalised_gains(lists, what)
        has_positives = np.flatnonzero(np.bincount(lists.list_index, gains, minlength=len(lists)))
        blocks = []
        for members in batch_indices(lists.lengths[has_positives], 512):
            numbers = has_positives[members]
            lengths = lists.lengths[numbers][:, None]
            places = np.arange(lengths.max())
            mask = places < lengths
            items = np.where(mask, lists.offsets[numbers][:, None] + places, 0)
            blocks.append((items, mask, np.where(mask, gains[items], 0)))
        return cls(tuple(blocks), len(has_positives))

    def __call__(self, scores: npt.NDArray[np.floating]) -> Values:
        """Return the NDCG@10 of each list that has positives, for scores (T,): the shorter lists come first."""
        values = []
        for items, mask, gains in self.blocks:
            order = np.argsort(np.where(mask, -scores[items], np.inf), axis=1, kind="stable")[:, :CUT]
            values.append(np.take_along_axis(gains, order, axis=1) @ _DISCOUNTS[: order.shape[1]])
        return np.concatenate(values)

    def mean(self, scores: npt.NDArray[np.floating]) -> float:
        """Return the mean NDCG@10 over the lists that have positives."""
        return float(self(scores).mean())


def normalised_gains(lists: ItemLists, what: str) -> Values:
    """Return (T,) what each item adds to the NDCG@10 of its list before the discount: its label over the ideal DCG."""
    labels = check_labels(lists, what).astype(np.float64)
    best_first = np.lexsort((-labels, lists.list_index))
    discounts = np.append(_DISCOUNTS, 0)[np.minimum(lists.positions, CUT)]
    ideal = np.bincount(lists.list_index, labels[best_first] * discounts, minlength=len(lists))
    return labels / np.where(ideal > 0, ideal, 1)[lists.list_index]


@dataclass(frozen=True, eq=False)
class PairBlock:
    """Some positive items, each paired with all the items of its list, itself included."""

    gains: Values
    """(P,) what each positive item adds to the NDCG before the discount."""
    number: IntArray
    """(M,) which of the positive items each pair is of."""
    positive: IntArray
    """(M,) that item among all items."""
    other: IntArray
    """(M,) the item that may stand ahead of it."""
    is_earlier: BoolArray
    """(M,) whether the other item comes first in the base order."""


@dataclass(frozen=True, eq=False)
class LineSearch:
    """The sum of NDCG@10 over lists when a multiple of a column is added to the scores, for many multiples at once."""

    blocks: tuple[PairBlock, ...]
    multiples: Values
    """(S,) the steps for weights of length 1, rising, with 0 in the middle."""

    @classmethod
    def of(cls, lists: ItemLists) -> LineSearch:
        """Find the pairs of lists with labels."""
        gains = normalised_gains(lists, "training")
        positives = np.flatnonzero(gains)
        n_pairs = lists.lengths[lists.list_index[positives]].cumsum()
        cuts = np.searchsorted(n_pairs, np.arange(_BLOCK_PAIRS, n_pairs[-1], _BLOCK_PAIRS))
        parts = [part for part in np.split(positives, cuts) if len(part)]
        one_way = _SMALLEST_STEP * _STEP_RATIO ** np.arange(_STEPS_EACH_WAY)
        multiples = np.concatenate([-one_way[::-1], [0], one_way])
        return cls(tuple(_pair_block(lists, part, gains[part]) for part in parts), multiples)

    def values(self, scores: Values, column: FloatArray, length: float) -> Values:
        """Return (S,) the sum of NDCG@10 at scores + step · column (T,), for the steps `multiples` · `length`.

        Where two items tie at a step other than 0, either may stand first.
        """
        total = np.zeros(len(self.multiples))
        discounts = np.append(_DISCOUNTS, 0)
        narrow = scores.astype(np.float32)
        for block in self.blocks:
            slots = self._slots(block, narrow, column, length)
            total += block.gains @ discounts.take(np.minimum(slots, CUT, out=slots))
        return total

    def _slots(self, block: PairBlock, scores: FloatArray, column: FloatArray, length: float) -> IntArray:
        """Return (P, S) the slot of some positive items at every step: how many others are then ahead."""
        n_positives, n_steps = len(block.gains), len(self.multiples)
        lead = scores.take(block.other) - scores.take(block.positive)
        slope = column.take(block.other) - column.take(block.positive)
        is_tied, is_level = lead == 0, slope == 0
        ahead_far_left = (slope < 0) | (is_level & ((lead > 0) | (is_tied & block.is_earlier)))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            overtaken_at = _steps_until(-lead / slope, length)
        # Items that tie at step 0 stand there in base order, which may already be the order of the steps after it.
        overtaken_at -= is_tied & (block.is_earlier == (slope > 0))
        cells = block.number * (n_steps + 1) + overtaken_at
        changes = np.bincount(cells, np.sign(slope), n_positives * (n_steps + 1)).reshape(n_positives, -1)
        changes[:, 0] += np.bincount(block.number, ahead_far_left, n_positives)
        return np.asarray(changes[:, :n_steps].cumsum(axis=1), dtype=np.int64)


def _pair_block(lists: ItemLists, positives: IntArray, gains: Values) -> PairBlock:
    list_numbers = lists.list_index[positives]
    lengths = lists.lengths[list_numbers]
    number = np.repeat(np.arange(len(positives)), lengths)
    positive = positives[number]
    first_pair = np.cumsum(lengths) - lengths
    other = (lists.offsets[list_numbers] - first_pair)[number] + np.arange(len(number))
    return PairBlock(gains, number, positive, other, other < positive)


def _steps_until(crossing: FloatArray, length: float) -> IntArray:
    """Return how many steps are at or before each crossing, from the logarithm, which is faster than a search.

    A crossing that is not a number, of items that never change places, gets any number of steps.
    """
    exponent = np.log(np.abs(crossing) / np.float32(_SMALLEST_STEP * length)) / np.float32(np.log(_STEP_RATIO))
    outward = np.fmin(np.fmax(np.floor(exponent) + 1, 0), _STEPS_EACH_WAY)
    # Counted from between step 0 and the one before it; adding 0 makes a negative zero positive.
    from_middle = np.copysign(outward + np.float32(0.5), crossing + np.float32(0))
    return np.asarray(from_middle + np.float32(_STEPS_EACH_WAY + 0.5), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Climb:
    """One ascent after another over the same lists."""

    columns: FloatArray
    line: LineSearch
    measure: ScoredNdcg

    def ascents(self, starts: int, sweeps: int, rng: np.random.Generator) -> Iterator[Values]:
        """Yield the weights after each sweep of each ascent: the first begins with the base order, others anywhere."""
        base_order = np.eye(self.columns.shape[1])[-1]
        for start in range(starts):
            weights = rng.normal(size=len(base_order)) if start else base_order
            yield from islice(self.sweeps(weights, rng), sweeps)

    def sweeps(self, weights: Values, rng: np.random.Generator) -> Iterator[Values]:
        """Yield the weights after each sweep over all columns, until one gains next to nothing."""
        by_column = np.ascontiguousarray(self.columns.T)
        weights = weights.copy()
        scores = self.columns @ weights
        value, gain = self.measure.mean(scores), np.inf
        while gain > _LEAST_GAIN:
            before = value
            for number in rng.permutation(len(weights)):
                length = float(np.linalg.norm(weights)) or 1.0
                step = self._best_step(scores, by_column[number], length)
                moved = scores + step * by_column[number]
                if step and (moved_value := self.measure.mean(moved)) > value:
                    scores, value = moved, moved_value
                    weights[number] += step
            gain = value - before
            yield weights.copy()

    def _best_step(self, scores: Values, column: FloatArray, length: float) -> float:
        """Return the step with the highest value; of equal ones the shortest."""
        values = self.line.values(scores, column, length)
        best = np.lexsort((-np.abs(self.line.multiples), values))[-1]
        return float(self.line.multiples[best] * length)


def _some_lists(lists: ItemLists, max_pairs: int, rng: np.random.Generator) -> ItemLists:
    """Return the lists, or as many, drawn at random, as have `max_pairs` pairs of a positive and any item."""
    positive = normalised_gains(lists, "training") > 0
    n_pairs = np.bincount(lists.list_index, positive, minlength=len(lists)) * lists.lengths
    if n_pairs.sum() <= max_pairs:
        return lists
    order = rng.permutation(np.flatnonzero(n_pairs))
    n_drawn = np.searchsorted(n_pairs[order].cumsum(), max_pairs)
    return lists[np.sort(order[: max(1, n_drawn)])]
