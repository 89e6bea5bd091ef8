"""Ranking metrics, one value a list: MAP, NDCG, precision, MRR, rank-gain and clicks.

Every metric is `f(slates, labels, *, mask, k=None)`:

- `slates` (B, K) are indices into each list, -1 in a slot without an item.
- `labels` (B, N) are clicks or grades, of any numeric type. An item is positive when its label is above 0.
- `mask` (B, N) is True for a real item, and a slate names no others.
- `k` is the cut-off: only the first k slots count.

In the formulas, slots count from 1, y_j is the label of the item in slot j (0 for an empty slot) and R is the number of
positives of the list. An item that is not on the slate was not retrieved: it still counts in R and in the ideal DCG, as
in trec_eval, whose MAP, NDCG, P and MRR these are.

MAP, NDCG, P and MRR are undefined for a list without positives (an empty list is one). Their option `no_positives` says
what stands in: "skip" is NaN, which every mean leaves out, "zero" and "one" are the numbers. Rank-gain and clicks are
defined and 0: the paper averages rank-gain over all lists, and a slate that nobody clicked is a result.

The paper (section 4) does not say which gain its NDCG has. Here it is linear unless "exponential" is asked for; for
clicks the two are the same.

To add a metric, write such a function and name it in `METRICS`. One with an option `no_positives` is undefined without
positives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from inspect import signature
from math import ceil
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from seq2slate.data.lists import BoolArray, IntArray, ItemLists
from seq2slate.data.ranker import Ranker, complete_slates, slot_of_item
from seq2slate.errors import UsageError
from seq2slate.progress import track

Values: TypeAlias = npt.NDArray[np.float64]
"""One number a list, or one an item."""
Labels: TypeAlias = npt.NDArray[Any]
"""(B, N) clicks or grades, of any numeric type."""
NoPositives: TypeAlias = Literal["skip", "zero", "one"]
"""The value of a list without positives: NaN, 0 or 1."""
Gain: TypeAlias = Literal["linear", "exponential"]
"""The gain g(y) of a label y in the DCG: y, or 2^y − 1."""

_BATCH_SIZE = 256
_STAND_IN = {"skip": np.nan, "zero": 0.0, "one": 1.0}


def average_precision(
    slates: IntArray, labels: Labels, *, mask: BoolArray, k: int | None = None, no_positives: NoPositives = "skip"
) -> Values:
    """Return the average precision of each list: AP = 1/R Σ_j≤k [y_j > 0] P@j. Its mean over lists is MAP.

    >>> import numpy as np
    >>> mask = np.ones((1, 4), dtype=bool)
    >>> float(average_precision(np.array([[2, 0, 1, 3]]), np.array([[0, 1, 1, 0]]), mask=mask)[0]) == (1/1 + 2/3) / 2
    True
    """
    hits = _at_slots(labels, slates, k) > 0
    precision_at_slot = hits.cumsum(axis=1) / np.arange(1, hits.shape[1] + 1)
    n_positives = _count_positives(labels, mask)
    total = (precision_at_slot * hits).sum(axis=1)
    return _with_stand_in(total / np.maximum(n_positives, 1), n_positives, no_positives)


def ndcg(
    slates: IntArray,
    labels: Labels,
    *,
    mask: BoolArray,
    k: int | None = None,
    gain: Gain = "linear",
    no_positives: NoPositives = "skip",
) -> Values:
    """Return DCG = Σ_j≤k g(y_j) / log2(j + 1) of each list, divided by that of its ideal order (all items by label).

    The gain g(y) is y, or 2^y − 1 with `gain="exponential"`.

    >>> import numpy as np
    >>> mask = np.ones((1, 3), dtype=bool)
    >>> ndcg(np.array([[0, 1, 2]]), np.array([[0, 1, 0]]), mask=mask, k=2) == 1 / np.log2(3)
    array([ True])
    """
    n_positives = _count_positives(labels, mask)
    gains = _gains(np.where(mask, labels, 0), gain)
    ideal = _dcg(-np.sort(-gains, axis=1)[:, :k])
    dcg = _dcg(_at_slots(gains, slates, k))
    return _with_stand_in(dcg / np.where(n_positives > 0, ideal, 1), n_positives, no_positives)


def precision(
    slates: IntArray, labels: Labels, *, mask: BoolArray, k: int | None = None, no_positives: NoPositives = "skip"
) -> Values:
    """Return P@k = 1/k Σ_j≤k [y_j > 0], where an empty slot is a miss. Without k, the mean is over the items shown.

    >>> import numpy as np
    >>> float(precision(np.array([[1, 0]]), np.array([[0, 1]]), mask=np.ones((1, 2), dtype=bool), k=5)[0])
    0.2
    """
    n_hits = (_at_slots(labels, slates, k) > 0).sum(axis=1)
    n_slots = np.maximum((slates >= 0).sum(axis=1), 1) if k is None else k
    return _with_stand_in(n_hits / n_slots, _count_positives(labels, mask), no_positives)


def reciprocal_rank(
    slates: IntArray, labels: Labels, *, mask: BoolArray, k: int | None = None, no_positives: NoPositives = "skip"
) -> Values:
    """Return RR = 1 / min {j ≤ k : y_j > 0}, and 0 if no positive is on the slate. Its mean over lists is MRR.

    >>> import numpy as np
    >>> float(reciprocal_rank(np.array([[0, 1]]), np.array([[0, 1]]), mask=np.ones((1, 2), dtype=bool))[0])
    0.5
    """
    hits = _at_slots(labels, slates, k) > 0
    inverse_slots = 1 / np.arange(1, hits.shape[1] + 1)
    return _with_stand_in((hits * inverse_slots).max(axis=1, initial=0), _count_positives(labels, mask), no_positives)


def rank_gain(slates: IntArray, labels: Labels, *, mask: BoolArray, k: int | None = None) -> Values:
    """Return Σ over positives of (base position − new position): how far they moved up together (paper, section 4.1).

    The items that are not on the slate, or beyond its first k slots, follow in base order.

    >>> import numpy as np
    >>> float(rank_gain(np.array([[2]]), np.array([[1, 0, 1]]), mask=np.ones((1, 3), dtype=bool))[0])  # +2 and -1
    1.0
    """
    new_positions = slot_of_item(complete_slates(_first(slates, k), mask), mask)
    moved_up = np.arange(mask.shape[1]) - new_positions
    gained: Values = (moved_up * _positives(labels, mask)).sum(axis=1, dtype=np.float64)
    return gained


def clicks(slates: IntArray, labels: Labels, *, mask: BoolArray, k: int | None = None) -> Values:
    """Return Σ_j≤k y_j: the number of clicks on the slate, or the sum of its grades.

    >>> import numpy as np
    >>> float(clicks(np.array([[1, 0, 2]]), np.array([[1, 0, 1]]), mask=np.ones((1, 3), dtype=bool), k=2)[0])
    1.0
    """
    total: Values = _at_slots(labels, slates, k).sum(axis=1)
    return total


METRICS: dict[str, Callable[..., Values]] = {
    "MAP": average_precision,
    "MRR": reciprocal_rank,
    "NDCG": partial(ndcg, gain="linear"),
    "NDCG-exp": partial(ndcg, gain="exponential"),
    "P": precision,
    "rank-gain": rank_gain,
    "clicks": clicks,
}
"""Every metric, by the name that a `Measure` has."""


@dataclass(frozen=True)
class Measure:
    """A metric with its cut-off, as a value: it parses, prints, hashes, and measures slates.

    >>> measure = Measure.parse("ndcg@10")
    >>> print(measure, measure == Measure("NDCG", 10))
    NDCG@10 True
    >>> import numpy as np
    >>> measure(np.array([[1, 0]]), np.array([[0, 1]]), mask=np.ones((1, 2), dtype=bool))
    array([1.])
    """

    name: str
    """A name in `METRICS`."""
    k: int | None = None
    """The cut-off: how many slots count; all if None."""

    def __post_init__(self) -> None:
        if self.name not in METRICS:
            raise UsageError(_unknown(self.name))
        if self.k is not None and self.k < 1:
            raise UsageError(f"{self}: a measure needs at least one slot")

    @classmethod
    def parse(cls, text: str) -> Measure:
        """Read "NDCG@10" or "map"; case does not matter."""
        match = re.fullmatch(r"\s*([^\s@]+)(?:@([0-9]+))?\s*", text)
        names = {name.lower(): name for name in METRICS}
        if match is None or match[1].lower() not in names:
            raise UsageError(_unknown(text))
        return cls(names[match[1].lower()], None if match[2] is None else int(match[2]))

    def __str__(self) -> str:
        return self.name if self.k is None else f"{self.name}@{self.k}"

    @property
    def needs_positives(self) -> bool:
        """Whether the metric is undefined for a list without positives, so that `no_positives` decides."""
        return _takes_no_positives(METRICS[self.name])

    def __call__(
        self, slates: IntArray, labels: Labels, *, mask: BoolArray, no_positives: NoPositives = "skip"
    ) -> Values:
        """Return the value of each list (B,)."""
        options = {"no_positives": no_positives} if self.needs_positives else {}
        return METRICS[self.name](slates, labels, mask=mask, k=self.k, **options)


DEFAULT_MEASURES = (Measure("MAP"), Measure("NDCG", 5), Measure("NDCG", 10), Measure("rank-gain"))
"""The columns of the paper's tables."""


def measure_ranker(
    ranker: Ranker,
    lists: ItemLists,
    measures: Iterable[Measure],
    *,
    k: int | None = None,
    no_positives: NoPositives = "skip",
    description: str | None = None,
) -> dict[Measure, Values]:
    """Rank lists in batches and return the value of every measure for each list.

    Args:
        ranker: Anything with `rank(batch, k)`.
        lists: Labelled lists in base order.
        measures: What to compute; several measures share one ranking.
        k: How many slots to fill, at most; all if None. A measure with a cut-off needs no more slots than that.
        no_positives: The value of a list without positives.
        description: Shows a progress bar of this name; None shows none.

    Returns:
        {measure: values (Q,)}, in the order of the lists.

    >>> from seq2slate.data.ranker import BaseOrder
    >>> lists = ItemLists(np.zeros((4, 1)), [0, 2, 4], labels=[0, 1, 1, 0])
    >>> measure_ranker(BaseOrder(), lists, [Measure("MRR")])
    {Measure(name='MRR', k=None): array([0.5, 1. ])}
    """
    values = {measure: np.full(len(lists), np.nan) for measure in measures}
    batches = lists.batches(_BATCH_SIZE)  # of similar length, so that one long list does not pad all the others
    if description is not None:
        batches = track(batches, description, total=ceil(len(lists) / _BATCH_SIZE))
    for batch in batches:
        slates = ranker.rank(batch, k)
        for measure, of_lists in values.items():
            of_lists[batch.index] = measure(slates, batch.labels, mask=batch.mask, no_positives=no_positives)
    return values


@cache
def _takes_no_positives(metric: Callable[..., Values]) -> bool:
    return "no_positives" in signature(metric).parameters


def _unknown(measure: str) -> str:
    known = ", ".join(METRICS)
    return f"unknown measure {measure!r}; known are {known}, each with or without a cut-off, as in NDCG@10"


def _positives(labels: Labels, mask: BoolArray) -> BoolArray:
    return (labels > 0) & mask


def _count_positives(labels: Labels, mask: BoolArray) -> IntArray:
    counts: IntArray = _positives(labels, mask).sum(axis=1)
    return counts


def _at_slots(values: Labels, slates: IntArray, k: int | None) -> Values:
    """Return the values (B, N) of the items in the first k slots; 0 in a slot without an item."""
    with_nothing = np.pad(values.astype(np.float64), ((0, 0), (0, 1)))  # NO_ITEM, -1, reads the last column: 0
    return np.take_along_axis(with_nothing, _first(slates, k), axis=1)


def _first(slates: IntArray, k: int | None) -> IntArray:
    """Return the first k slots, or all."""
    if k is not None and k < 1:
        raise UsageError(f"k must be at least 1, got {k}")
    return slates[:, :k]


def _gains(labels: Labels, gain: Gain) -> Values:
    """Return the gain of each item (B, N), up to a factor for each list that cancels in NDCG."""
    if gain not in get_args(Gain):
        raise UsageError(f"gain must be one of {', '.join(get_args(Gain))}; got {gain!r}")
    values = labels.astype(np.float64)
    if gain == "linear":
        return values
    highest = values.max(axis=1, keepdims=True, initial=0)
    gains: Values = np.exp2(values - highest) - np.exp2(-highest)  # divided by 2^highest, so that none overflows
    return gains


def discounts(n_slots: int) -> Values:
    """Return (K,) the discount of DCG at each slot: 1 / log2(j + 1) for slot j, from 1.

    >>> discounts(1)
    array([1.])
    """
    return np.asarray(1 / np.log2(np.arange(2, n_slots + 2)))


def _dcg(gains_at_slot: Values) -> Values:
    return gains_at_slot @ discounts(gains_at_slot.shape[1])


def _with_stand_in(values: Values, n_positives: IntArray, no_positives: NoPositives) -> Values:
    if no_positives not in _STAND_IN:
        raise UsageError(f"no_positives must be one of {', '.join(_STAND_IN)}; got {no_positives!r}")
    return np.where(n_positives > 0, values, _STAND_IN[no_positives])
