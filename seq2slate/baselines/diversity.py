"""What a user would pick instead of a learned slate: the base order made diverse, by MMR or by a greedy DPP.

Both place items one by one and trade the relevance r of an item for its difference from what is placed already:

- **MMR** (Carbonell and Goldstein 1998) takes the item with the largest λ r_i − (1 − λ) max_j S_ij over the placed j;
  the maximum over nothing is 0.
- **DPP** (Chen, Zhang and Zhou 2018) takes the item that adds most to θ Σ r + (1 − θ) log det S, which is the log
  determinant of the kernel q_i S_ij q_j with q_i = exp(θ r_i / 2(1 − θ)), up to a factor. The quality q scales rows and
  columns, so the Cholesky factor that grows by a row a slot is that of S alone: nothing overflows as θ goes to 1. What
  is left of an item's variance ends at `_FLOOR`, so that duplicates of placed items come last but still in order.

Relevance lies in [0, 1]. Logs seldom hold the base ranker's scores, so by default it falls in equal steps with the base
position, 1 − p/n for p = 0 … n − 1. With `score_column` it is that dense column, scaled to run from 0 to 1 over the
list. Similarity is S_ij = exp(−|x_i − x_j|² / m) on the dense columns, where m is the mean of |x_i − x_j|² over the
pairs of that list: positive definite, 1 for duplicates, and 1/e at a typical distance. A missing value is the mean of
its column in the training lists; indicators of missing values do not count.

Two things are chosen by NDCG@10 on the validation lists: the trade-off (λ or θ; 1 is relevance alone), and whether the
distances are those of the raw columns or of the normalised ones, since neither is better on all data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from seq2slate.baselines.columns import fit_numbers
from seq2slate.data.features import FeatureTransform, Scaling
from seq2slate.data.lists import Batch, FloatArray, IntArray, ItemLists
from seq2slate.data.ranker import empty_slates
from seq2slate.errors import DataError, UsageError
from seq2slate.estimator import Estimator
from seq2slate.metrics import Measure

Doubles: TypeAlias = npt.NDArray[np.float64]

MEASURE = Measure("NDCG", 10)
"""Chooses trade-off and scaling, on the validation lists."""

_FLOOR = 1e-9  # far above the rounding of a Cholesky factor of similarities, far below what a distinct item keeps
_CELLS_AT_ONCE = 1 << 21  # similarities of one group of lists: 16 MB


class Trial(NamedTuple):
    """What a scaling and a trade-off are worth."""

    scaling: Scaling
    trade_off: float
    value: float
    """NDCG@10 of the validation lists."""


class _Group(NamedTuple):
    """Lists of one length, so that nothing is padded and no list depends on its company."""

    members: IntArray
    """(B,) their numbers."""
    relevance: Doubles
    """(B, n)"""
    similarity: Doubles
    """(B, n, n)"""


class _Slates(Protocol):
    """Growing slates: what each item would add to its slate, given what was placed."""

    def gains(self) -> Doubles:
        """Return (B, n) what each item would add; those of placed items do not matter."""
        ...

    def place(self, items: IntArray) -> None:
        """Put the items (B,) into the next slot."""
        ...


@dataclass(eq=False, kw_only=True, repr=False)
class Diversifier(Estimator):
    """What MMR and the DPP share: all but the gains."""

    trade_offs: Sequence[float] = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
    """Trade-offs to try, from 0, diversity alone, to 1, relevance alone."""
    scalings: Sequence[Scaling] = ("signed-log", "none")
    """Scales of the columns to try."""
    score_column: str | None = None
    """The dense column with the base ranker's scores; without one the base position stands for them."""

    trade_off_: float = field(init=False, repr=False)
    """The best of `trade_offs` on the validation lists; of equal ones the largest, closest to relevance alone."""
    trials_: tuple[Trial, ...] = field(init=False, repr=False)
    """What was tried."""

    @staticmethod
    def _empty(group: _Group, trade_off: float, n_slots: int) -> _Slates:
        """Return slates with nothing on them."""
        raise NotImplementedError

    def _fit(self, train: ItemLists, valid: ItemLists) -> None:
        if not self.trade_offs or not self.scalings:
            raise UsageError("fit needs at least one trade-off and one scaling to choose from")
        if self.score_column is not None and self.score_column not in train.feature_names:
            raise DataError(f"there is no dense column {self.score_column!r} to take the base scores from")
        for trade_off in self.trade_offs:
            if not 0 <= trade_off <= 1:
                raise UsageError(
                    f"a trade-off lies between 0, diversity alone, and 1, relevance alone: got {trade_off}"
                )
        trials: list[Trial] = []
        transforms = {}
        for scaling in self.scalings:
            transforms[scaling] = fit_numbers(self.kind, train, scaling=scaling)
            values = self._validate(valid, transforms[scaling])
            trials += [Trial(scaling, *pair) for pair in zip(self.trade_offs, values, strict=True)]
        best = max(trials, key=lambda trial: (trial.value, trial.trade_off))
        self.trade_off_, self.transform_, self.trials_ = best.trade_off, transforms[best.scaling], tuple(trials)

    def _validate(self, valid: ItemLists, transform: FeatureTransform) -> list[float]:
        """Return, for each trade-off, the mean NDCG@10 over the lists that have a positive label."""
        values = np.full((len(self.trade_offs), len(valid)), np.nan)
        for group in self._groups(valid, transform):
            batch = valid.batch(group.members)
            for number, trade_off in enumerate(self.trade_offs):
                slates = self._fill(group, trade_off, MEASURE.k)
                values[number, group.members] = MEASURE(slates, batch.labels, mask=batch.mask)
        means: list[float] = np.nanmean(values, axis=1).tolist()
        return means

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Place items one by one, each time the one that adds most."""
        slates = empty_slates(batch.lists.lengths, k)
        for group in self._groups(batch.lists, self.transform_):
            placed = self._fill(group, self.trade_off_, k)
            slates[group.members, : placed.shape[1]] = placed
        return slates

    def _groups(self, lists: ItemLists, transform: FeatureTransform) -> Iterator[_Group]:
        """Yield all lists but the empty ones, by length, and not too many at once."""
        dense = transform.apply(lists).dense[:, : len(transform.dense.names)]  # without indicators
        scores = None if self.score_column is None else _base_scores(lists, self.score_column)
        for length in np.unique(lists.lengths[lists.lengths > 0]).tolist():
            members = np.flatnonzero(lists.lengths == length)
            n_at_once = max(1, _CELLS_AT_ONCE // length**2)
            for start in range(0, len(members), n_at_once):
                chunk = members[start : start + n_at_once]
                rows = lists.offsets[chunk, None] + np.arange(length)
                relevance = _of_positions(*rows.shape) if scores is None else _of_scores(scores[rows])
                yield _Group(chunk, relevance, _similarity(dense[rows].astype(np.float64)))

    def _fill(self, group: _Group, trade_off: float, k: int | None) -> IntArray:
        n_lists, n_items = group.relevance.shape
        slates = np.zeros((n_lists, n_items if k is None else min(k, n_items)), dtype=np.int64)
        everywhere = np.arange(n_lists)
        placed = np.zeros(group.relevance.shape, dtype=bool)
        growing = self._empty(group, trade_off, slates.shape[1])
        for slot in range(slates.shape[1]):
            items = np.where(placed, -np.inf, growing.gains()).argmax(axis=1)  # the first of equals
            growing.place(items)
            placed[everywhere, items] = True
            slates[:, slot] = items
        return slates

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state | {"trials_": tuple(Trial(*trial) for trial in state["trials_"])})


class Mmr(Diversifier):
    """Maximal marginal relevance: the base order, moved away from items similar to one placed already.

    >>> twins = ItemLists(np.array([[0.0], [0.0], [5.0]]), [0, 3], labels=[1, 0, 1])
    >>> Mmr().fit(twins, twins).rank(twins.batch()).tolist()
    [[0, 2, 1]]
    >>> Mmr(trade_offs=[1.0]).fit(twins, twins).rank(twins.batch()).tolist()
    [[0, 1, 2]]
    """

    kind = "mmr"

    @staticmethod
    def _empty(group: _Group, trade_off: float, n_slots: int) -> _Slates:
        return _MmrSlates(group, trade_off)


class GreedyDpp(Diversifier):
    """A determinantal point process: greedily, the slate whose items are relevant and span the largest volume.

    >>> twins = ItemLists(np.array([[0.0], [0.0], [5.0]]), [0, 3], labels=[1, 0, 1])
    >>> GreedyDpp().fit(twins, twins).rank(twins.batch(), 2).tolist()
    [[0, 2]]
    """

    kind = "dpp"

    @staticmethod
    def _empty(group: _Group, trade_off: float, n_slots: int) -> _Slates:
        return _DppSlates(group, trade_off, n_slots)


class _MmrSlates:
    def __init__(self, group: _Group, trade_off: float) -> None:
        self._similarity = group.similarity
        self._relevance = trade_off * group.relevance
        self._diversity_weight = 1 - trade_off
        self._nearest = np.zeros_like(group.relevance)

    def gains(self) -> Doubles:
        return self._relevance - self._diversity_weight * self._nearest

    def place(self, items: IntArray) -> None:
        np.maximum(self._nearest, _rows_of(self._similarity, items), out=self._nearest)


class _DppSlates:
    """Keeps the Cholesky rows of the placed items against all others, and what they leave of each item's variance."""

    def __init__(self, group: _Group, trade_off: float, n_slots: int) -> None:
        self._similarity = group.similarity
        self._relevance = trade_off * group.relevance
        self._diversity_weight = 1 - trade_off
        self._left = np.ones_like(group.relevance)
        n_lists, n_items = group.relevance.shape
        self._rows = np.empty((n_lists, n_slots, n_items))
        self._n_placed = 0

    def gains(self) -> Doubles:
        gains: Doubles = self._relevance + self._diversity_weight * np.log(self._left)
        return gains

    def place(self, items: IntArray) -> None:
        everywhere = np.arange(len(items))
        rows = self._rows[:, : self._n_placed]
        explained = rows[everywhere, :, items][:, None] @ rows  # (B, 1, n)
        row = _rows_of(self._similarity, items) - explained[:, 0]
        row /= np.sqrt(self._left[everywhere, items])[:, None]
        self._rows[:, self._n_placed] = row
        self._n_placed += 1
        self._left = np.maximum(self._left - row**2, _FLOOR)


def _rows_of(similarity: Doubles, items: IntArray) -> Doubles:
    """Return (B, n) how similar every item is to the given one of its list."""
    return similarity[np.arange(len(items)), items]


def _of_positions(n_lists: int, n_items: int) -> Doubles:
    return np.broadcast_to(1 - np.arange(n_items) / n_items, (n_lists, n_items))


def _base_scores(lists: ItemLists, column: str) -> FloatArray:
    """Return (T,) the scores of the base ranker."""
    scores: FloatArray = lists.features[:, lists.feature_names.index(column)]
    if np.isnan(scores).any():
        item = lists.describe_item(int(np.isnan(scores).argmax()))
        raise DataError(f"{item}: the base score {column!r} is missing: give every item one, or leave out score_column")
    return scores


def _of_scores(scores: npt.NDArray[np.floating]) -> Doubles:
    """Return scores (B, n) from 0 for the lowest of a list to 1 for the highest; all 0 where they are equal."""
    above = scores.astype(np.float64) - scores.min(axis=1, keepdims=True)
    span = above.max(axis=1, keepdims=True)
    relevance: Doubles = above / np.where(span > 0, span, 1)
    return relevance


def _similarity(dense: Doubles) -> Doubles:
    """Return (B, n, n) the similarities of items with the columns (B, n, F)."""
    n_items = dense.shape[1]
    centred = dense - dense.mean(axis=1, keepdims=True)  # or the inner products would cancel more than they need
    products = centred @ centred.transpose(0, 2, 1)
    norms = np.einsum("bii->bi", products)
    squares = np.maximum(norms[:, :, None] + norms[:, None] - 2 * products, 0)
    squares[:, np.arange(n_items), np.arange(n_items)] = 0
    mean = squares.sum(axis=(1, 2), keepdims=True) / max(n_items * (n_items - 1), 1)
    similarity: Doubles = np.exp(-squares / np.where(mean > 0, mean, 1))
    return similarity
