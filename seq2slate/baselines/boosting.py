"""Boosting of simple rankers: AdaRank on single columns and RankBoost on thresholds.

**AdaRank** (Xu and Li, "AdaRank: a boosting algorithm for information retrieval", 2007). A weak ranker sorts by one
column. Each round takes the one with the best NDCG@10 over weighted lists, adds it with the weight
½ ln(Σ P(1 + E) / Σ P(1 − E)), and gives each list a weight in proportion to exp(−E), where E is then the NDCG@10 of the
sum. Departures:

- A column may be used in both directions, rising and falling.
- A weak ranker that does not raise the training measure is not added. The paper would add it and then, because the
  weights of the lists hardly change, often the same one for ever; here it is passed over until another one helped, and
  when none is left training is over.

**RankBoost** (Freund, Iyer, Schapire and Singer, "An efficient boosting algorithm for combining preferences", 2003). A
weak ranker says 1 above a threshold of a column and 0 below. Each round takes the one that agrees most, |r|, with the
weighted pairs, and adds it with the weight ½ ln((1 + r) / (1 − r)). Every two items of a list whose labels differ are a
pair, so grades need no conversion: a pair of grades 2 and 1 weighs as much at first as one of 4 and 0. The weight of a
pair is always exp(score of the worse item) · exp(−score of the better one) over a constant, for grades as for clicks,
so it is kept as two numbers an item and a round never looks at pairs. Departure: thresholds are quantiles of a column
(RankLib: equal distances), so that long tails do not waste them. A missing value is below every other, so that the
lowest threshold of a column may tell the missing values from all others.

In both, the base position is one of the columns, as what is trained here ranks again what another ranker has ranked;
and training keeps the round with the best NDCG@10 on the validation lists. Both are deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seq2slate.baselines.columns import fit_numbers
from seq2slate.baselines.coordinate_ascent import ScoredNdcg
from seq2slate.baselines.linear import WeightedColumns, scaled_columns, weighted_sum
from seq2slate.data.lists import BoolArray, FloatArray, IntArray, ItemLists
from seq2slate.errors import DataError, UsageError
from seq2slate.estimator import PointwiseEstimator, check_labels
from seq2slate.metrics import Values
from seq2slate.progress import track

PATIENCE = 50
"""Rounds without a better NDCG@10 on the validation lists before training ends."""

Codes: TypeAlias = npt.NDArray[np.uint8]

_MOST_THRESHOLDS = 255
_LEAST_AGREEMENT = 1e-9  # less is rounding
_NEARLY_ONE = 1 - 1e-9  # a weak ranker without a fault would get an infinite weight


@dataclass(eq=False, kw_only=True, repr=False)
class AdaRank(WeightedColumns):
    """A weighted sum of scaled columns, added one by one for the lists that are still ordered badly.

    >>> features = np.random.default_rng(0).normal(size=(200, 3))
    >>> lists = ItemLists(features, np.arange(0, 201, 5), labels=features[:, 1] + features[:, 0] / 9 < -1)
    >>> AdaRank().fit(lists, lists).weights_.argmin()  # the lower, the better
    np.int64(1)
    """

    rounds: int = 500
    """Boosting rounds, at most; training ends when NDCG@10 of the validation lists has not risen for 50 of them."""

    kind = "adarank"

    def _fit(self, train: ItemLists, valid: ItemLists) -> None:
        check_rounds(self.rounds)
        judge, measure = ScoredNdcg.of(valid, "validation"), ScoredNdcg.of(train, "training")
        transform = fit_numbers(self.kind, train)
        additions = added_columns(scaled_columns(transform, train), measure)
        columns = scaled_columns(transform, valid)
        best, best_round, best_value = np.zeros(columns.shape[1]), 0, -np.inf
        for number, weights in enumerate(track(islice(additions, self.rounds), "AdaRank", total=self.rounds)):
            value = judge.mean(weighted_sum(columns, weights))
            if value > best_value:
                best, best_round, best_value = weights, number, value
            if number - best_round >= PATIENCE:
                break
        self.weights_, self.transform_ = best.astype(np.float32), transform


def added_columns(columns: FloatArray, measure: ScoredNdcg) -> Iterator[Values]:
    """Yield the weights (F + 1,) of the columns after each addition, until no column raises the measure."""
    weak = weak_measures(columns, measure)
    weights, scores = np.zeros(columns.shape[1]), np.zeros(len(columns))
    of_lists, mean = np.zeros(measure.n_lists), -np.inf
    passed_over = np.zeros(len(weak), dtype=bool)
    while not passed_over.all():
        chosen, weight = choose_weak_ranker(weak, of_lists, passed_over)
        column, falling = divmod(chosen, 2)
        signed = -weight if falling else weight
        new_scores = scores + signed * columns[:, column]
        new_of_lists = measure(new_scores)
        if new_of_lists.mean() <= mean:
            passed_over[chosen] = True
            continue
        scores, of_lists, mean = new_scores, new_of_lists, new_of_lists.mean()
        passed_over[:] = False
        weights[column] += signed
        yield weights.copy()


def weak_measures(columns: FloatArray, measure: ScoredNdcg) -> Values:
    """Return (2 (F + 1), Q) the NDCG@10 of each list by each column, rising and falling in turn."""
    return np.stack([measure(sign * column) for column in columns.T for sign in (1, -1)])


def choose_weak_ranker(weak: Values, of_lists: Values, passed_over: BoolArray) -> tuple[int, float]:
    """Return the weak ranker that is best for lists of which those with a low measure weigh more, and its weight."""
    list_weights = np.exp(-of_lists)
    weighted = weak @ (list_weights / list_weights.sum())
    chosen = int(np.where(passed_over, -np.inf, weighted).argmax())
    return chosen, log_odds(weighted[chosen])


def log_odds(agreement: float) -> float:
    """Return ½ ln((1 + r) / (1 − r)) for r from −1 to 1, kept finite: the weight of a weak ranker in both methods."""
    return float(np.arctanh(np.clip(agreement, -_NEARLY_ONE, _NEARLY_ONE)))


@dataclass(eq=False, kw_only=True, repr=False)
class RankBoost(PointwiseEstimator):
    """A sum of weights, each for a column above a threshold, of raw columns, since thresholds do not mind their scale.

    >>> features = np.random.default_rng(0).normal(size=(200, 3))
    >>> lists = ItemLists(features, np.arange(0, 201, 5), labels=features[:, 1] + features[:, 0] / 9 > 1)
    >>> RankBoost().fit(lists, lists).stump_columns_[0]
    np.int64(1)
    """

    rounds: int = 300
    """Boosting rounds, at most; training ends when NDCG@10 of the validation lists has not risen for 50 of them."""
    thresholds: int = 32
    """Thresholds to try for each column, at its quantiles."""

    stump_columns_: IntArray = field(init=False, repr=False)
    """(R,) the column of each round; column F is the base position."""
    thresholds_: FloatArray = field(init=False, repr=False)
    """(R,) above which an item gets the weight."""
    weights_: FloatArray = field(init=False, repr=False)
    """(R,) of the rounds; negative where less is better."""

    kind = "rankboost"

    def _fit(self, train: ItemLists, valid: ItemLists) -> None:
        check_rounds(self.rounds)
        if not 1 <= self.thresholds <= _MOST_THRESHOLDS:
            raise UsageError(f"thresholds must be from 1 to {_MOST_THRESHOLDS}, got {self.thresholds}")
        judge = ScoredNdcg.of(valid, "validation")
        self.transform_ = fit_numbers(self.kind, train)
        additions = added_thresholds(self._columns(train), PairWeights.of(train), self.thresholds)
        columns, scores = self._columns(valid), np.zeros(valid.n_items, np.float32)
        chosen: list[tuple[int, float, float]] = []
        n_best, best_value = 0, -np.inf
        for column, threshold, weight in track(islice(additions, self.rounds), "RankBoost", total=self.rounds):
            chosen.append((column, threshold, weight))
            scores += np.float32(weight) * (columns[:, column] > np.float32(threshold))
            value = judge.mean(scores)
            if value > best_value:
                n_best, best_value = len(chosen), value
            if len(chosen) - n_best >= PATIENCE:
                break
        kept = np.array(chosen[:n_best]).reshape(-1, 3)
        self.stump_columns_ = kept[:, 0].astype(np.int64)
        self.thresholds_, self.weights_ = kept[:, 1].astype(np.float32), kept[:, 2].astype(np.float32)

    def score_items(self, lists: ItemLists) -> FloatArray:
        """Return the sum (T,) of the weights of the thresholds that each item is above."""
        columns, scores = self._columns(lists), np.zeros(lists.n_items, np.float32)
        for column, threshold, weight in zip(self.stump_columns_, self.thresholds_, self.weights_, strict=True):
            scores += weight * (columns[:, column] > threshold)
        return scores

    def _columns(self, lists: ItemLists) -> FloatArray:
        features, names = self.transform_.raw_features(lists), self.transform_.dense.names
        return raw_columns(replace(lists, features=features, feature_names=names))


def raw_columns(lists: ItemLists) -> FloatArray:
    """Return (T, F + 1) the dense columns as they are, with −∞ where a value is missing, and last the base position."""
    there = np.where(np.isnan(lists.features), np.float32(-np.inf), lists.features)
    return np.column_stack([there, lists.positions.astype(np.float32)])


@dataclass(frozen=True, eq=False)
class PairWeights:
    """The weights of all pairs of items of a list with different labels, kept as two numbers an item."""

    list_index: IntArray
    """(T,) the list of each item."""
    levels: IntArray
    """(T,) how many lower labels its list has."""
    lengths: IntArray
    """(Q,) the number of items of each list."""

    @classmethod
    def of(cls, lists: ItemLists) -> PairWeights:
        """Find the levels of lists with labels."""
        labels = check_labels(lists, "training")
        order = np.lexsort((labels, lists.list_index))
        is_higher = np.append(False, np.diff(labels[order]) > 0)[: lists.n_items] & (lists.positions > 0)
        running = is_higher.cumsum()
        levels = np.empty_like(order)
        levels[order] = running - running[lists.offsets[lists.list_index]]
        if not levels.any():
            raise DataError("no training list has two items with different labels: give lists with clicks or grades")
        return cls(lists.list_index, levels, lists.lengths)

    def potentials(self, scores: Values) -> Values:
        """Return (T,) the weights of the pairs in which an item is the better minus those in which it is the worse.

        All weights together are 1, so the agreement r of a weak ranker h with the pairs is the sum of h · potential.
        """
        totals = np.bincount(self.list_index, scores, len(self.lengths))
        means = totals / np.maximum(self.lengths, 1)
        centred = scores - means[self.list_index]  # of the differences, which alone count, none is infinite
        as_worse, as_better = np.exp(centred), np.exp(-centred)
        up_to = self._by_level(as_worse).cumsum(axis=1)
        down_to = self._by_level(as_better)[:, ::-1].cumsum(axis=1)[:, ::-1]
        better = as_better * np.pad(up_to, ((0, 0), (1, 0)))[self.list_index, self.levels]
        worse = as_worse * np.pad(down_to, ((0, 0), (0, 1)))[self.list_index, self.levels + 1]
        potentials: Values = (better - worse) / better.sum()
        return potentials

    def _by_level(self, values: Values) -> Values:
        """Return (Q, L) the sums over the items of each list with the same label."""
        n_levels = int(self.levels.max()) + 1
        cells = self.list_index * n_levels + self.levels
        sums = np.bincount(cells, values, len(self.lengths) * n_levels)
        return np.asarray(sums, dtype=np.float64).reshape(-1, n_levels)


def added_thresholds(columns: FloatArray, pairs: PairWeights, n_thresholds: int) -> Iterator[tuple[int, float, float]]:
    """Yield column, threshold and weight of one round after the other, until none agrees with the pairs at all."""
    thresholds = quantile_thresholds(columns, n_thresholds)
    codes = np.stack([_codes(column, of_column) for column, of_column in zip(columns.T, thresholds, strict=True)])
    scores = np.zeros(len(columns))
    while True:
        agreement = threshold_agreement(codes, pairs.potentials(scores), n_thresholds)
        column, place = np.unravel_index(np.abs(agreement).argmax(), agreement.shape)
        if abs(agreement[column, place]) < _LEAST_AGREEMENT:
            return
        weight = log_odds(agreement[column, place])
        scores += weight * (codes[column] > place)
        yield int(column), float(thresholds[column, place]), weight


def quantile_thresholds(columns: FloatArray, n_thresholds: int) -> FloatArray:
    """Return (F + 1, B) values that cut each column into parts of about one size; infinite where there are fewer."""
    levels = np.arange(1, n_thresholds + 1) / (n_thresholds + 1)
    ranks = np.quantile(np.arange(len(columns)), levels, method="inverted_cdf").astype(np.int64)
    thresholds = np.full((columns.shape[1], n_thresholds), np.inf, dtype=np.float32)
    for row, column in zip(thresholds, columns.T, strict=True):
        cuts = np.unique(np.sort(column)[ranks])
        row[: len(cuts)] = cuts
    return thresholds


def threshold_agreement(codes: Codes, potentials: Values, n_thresholds: int) -> Values:
    """Return (F + 1, B) r, from −1 to 1: the weight of the pairs that each threshold orders right minus wrong."""
    sums = np.stack([np.bincount(column, potentials, n_thresholds + 1) for column in codes])
    above: Values = sums[:, :0:-1].cumsum(axis=1)[:, ::-1]
    return above


def check_rounds(rounds: int) -> None:
    """Refuse to train without a round."""
    if rounds < 1:
        raise UsageError(f"rounds must be at least 1, got {rounds}")


def _codes(column: FloatArray, thresholds: FloatArray) -> Codes:
    """Return (T,) how many thresholds each value is above."""
    return np.searchsorted(thresholds, column, side="left").astype(np.uint8)
