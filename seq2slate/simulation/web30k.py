"""World `web30k`: the columns, correlations and grades of a sample of WEB30K, by a Gaussian copula.

A copula separates how each column is distributed from how the columns go together. Every column and the grade have a
normal score: the normal quantile of their rank. List q has an effect b_q on all scores, item i an effect w_i:

    scores     (z_i, g_i) = b_q + w_i        b_q ~ N(0, B), w_i ~ N(0, W); the variances of B and W sum to 1
    column j   x_ij = Q_j(z_ij)              Q_j maps normal scores to the quantiles of the column in the sample
    grade      number of cuts t_1 < … < t_4 below g_i
    relevance  P(grade ≥ 2 | b_q and the effect of item i on the columns)

B = L_B L_Bᵀ is the covariance between the queries of the sample and W = L_W L_Wᵀ the one within its queries, both with
the grade in the last row. So w = L_W e for independent normals e: all but the last of them decide the columns, and the
last, times the last entry σ of L_W, is the noise of the grade, which shows in no column. With a the rest of that last
row, P(grade ≥ 2) = Φ((b_q,grade + a·e_i − t_2) / σ), and given b_q the relevances of a list are independent.

The figures are in web30k.npz beside this file; `python -m tools.fit_web30k` computes them. Q_j is stored at equally
spaced normal scores, so that the tails, which decide Euclidean distances, are resolved down to single items of the
sample, and interpolated in between, except next to a value that many items share.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from seq2slate.data.lists import BoolArray, FloatArray, IntArray
from seq2slate.errors import UsageError
from seq2slate.simulation.world import Doubles, Relevance, normals, stratified_lengths

FIGURES = Path(__file__).with_name("web30k.npz")
"""The figures that the package ships."""
NODES_PER_UNIT = 128
"""Normal scores between 0 and 1 at which quantiles are stored."""
NODES = np.arange(-4.0625, 4.0625 + 0.5 / NODES_PER_UNIT, 1 / NODES_PER_UNIT)
"""(M,) these normal scores: from the smallest of 20,000 items to the largest."""

_STREAMS_KEY = 30_000  # apart from the streams of other worlds


@dataclass(frozen=True, eq=False)
class Web30kFigures:
    """What lists are drawn from. The grade is the last row of the factors, after F columns."""

    between: FloatArray
    """(F + 1, F + 1) L_B, lower triangular."""
    within: FloatArray
    """(F + 1, F + 1) L_W, lower triangular; 0 in the rows of columns that are the same for all items of a list."""
    quantiles: FloatArray
    """(F, M) the value of each column at the normal scores NODES."""
    whole: BoolArray
    """(F,) True for a column of whole numbers."""
    grade_shares: Doubles
    """(5,) of grades 0 to 4."""
    lengths: Doubles
    """Equally spaced quantiles of the length of a list after its first item, shortest first; their mean is 1."""

    @classmethod
    def read(cls, path: str | os.PathLike[str] = FIGURES) -> Web30kFigures:
        """Read the figures from a file."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(**{field.name: arrays[field.name] for field in fields(cls)})

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the figures to a file; the same figures give the same bytes."""
        np.savez_compressed(path, **{field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def grade_cuts(self) -> Doubles:
        """(4,) t_1 to t_4."""
        from scipy.special import ndtri

        cuts: Doubles = ndtri(np.cumsum(self.grade_shares)[:-1])
        return cuts


class _Streams(NamedTuple):
    """A random stream for every quantity, so that none depends on how much of another was drawn before."""

    stratum: Generator
    length: Generator
    rounding: Generator
    query: Generator
    item: Generator
    grade_noise: Generator

    @classmethod
    def from_seed(cls, seed: int) -> _Streams:
        return cls(*(np.random.default_rng([seed, _STREAMS_KEY + number]) for number in range(len(cls._fields))))


class Web30kWorld:
    """The world with the random streams of a seed, as `World` describes it."""

    def __init__(self, features: int | None, seed: int) -> None:
        self._figures = _shipped_figures()
        self.n_features = len(self._figures.whole)
        if features not in (None, self.n_features):
            raise UsageError(
                f"world web30k has the {self.n_features} columns of WEB30K, got features={features}: leave it out, or "
                'choose world="topics", which has any number of features'
            )
        self._streams = _Streams.from_seed(seed)

    def draw_lengths(self, n_lists: int, mean: float) -> IntArray:
        """Return lengths (Q,) distributed like those of the sample."""
        stratum, length, rounding = self._streams[:3]
        return stratified_lengths(n_lists, mean, self._relative, stratum=stratum, length=length, rounding=rounding)

    def _relative(self, from_top: Doubles) -> Doubles:
        lengths = self._figures.lengths
        return np.interp(1 - from_top, np.linspace(0, 1, len(lengths)), lengths)

    def draw_items(self, lengths: IntArray, table: FloatArray) -> Relevance:
        """Write the features of the next lists into the table (T, F)."""
        from scipy.special import ndtr  # a tenth of a second, which `import seq2slate` and `--help` need not take

        scores = self._draw_scores(lengths)
        _shipped_quantiles().write(scores[:, :-1], table)
        known, noise = scores[:, -1].astype(np.float64), self._figures.within[-1, -1].astype(np.float64)
        cuts = self._figures.grade_cuts
        grade = np.searchsorted(cuts, known + noise * self._streams.grade_noise.standard_normal(len(known)))
        return Relevance(grade.astype(np.float32), ndtr((known - cuts[1]) / noise))

    def _draw_scores(self, lengths: IntArray) -> FloatArray:
        """Return (T, F + 1) the normal scores of the columns and, last, that of the grade before its noise."""
        figures = self._figures
        queries = normals(self._streams.query, len(lengths), self.n_features + 1)
        items = normals(self._streams.item, int(lengths.sum()), self.n_features)
        within = np.ascontiguousarray(figures.within[:, :-1].T)
        scores = np.empty((len(items), self.n_features + 1), dtype=np.float32)
        last = np.cumsum(lengths)
        # List by list: a matrix product may round differently for other numbers of rows, and blocks must not matter.
        for query, start, stop in zip(queries, last - lengths, last, strict=True):
            np.matmul(items[start:stop], within, out=scores[start:stop])
            scores[start:stop] += figures.between @ query
        return scores


class _Quantiles:
    """The functions Q_j of all columns, interpolated between NODES."""

    def __init__(self, figures: Web30kFigures) -> None:
        values = figures.quantiles
        steps = np.diff(values, axis=1)
        # A value that many items share stays exact: no slope leads away from it or towards it.
        shared = steps == 0
        steps[:, 1:][shared[:, :-1]] = 0
        steps[:, :-1][shared[:, 1:]] = 0
        self._values = np.ascontiguousarray(values[:, :-1]).ravel()
        self._steps = steps.ravel()
        self._starts = (np.arange(len(values)) * steps.shape[1]).astype(np.int32)
        self._last = steps.shape[1]
        self._whole = figures.whole

    def write(self, scores: FloatArray, table: FloatArray) -> None:
        """Write the values of normal scores (T, F) into the table (T, F)."""
        place = (scores - np.float32(NODES[0])) * np.float32(NODES_PER_UNIT)
        np.clip(place, 0, np.nextafter(np.float32(self._last), np.float32(0)), out=place)
        node = place.astype(np.int32)
        place -= node
        node += self._starts
        np.take(self._steps, node, out=table, mode="clip")  # which writes without a buffer
        table *= place
        table += self._values.take(node, mode="clip")
        table[:, self._whole] = np.rint(table[:, self._whole])


@cache
def _shipped_figures() -> Web30kFigures:
    return Web30kFigures.read()


@cache
def _shipped_quantiles() -> _Quantiles:
    return _Quantiles(_shipped_figures())
