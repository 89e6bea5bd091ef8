"""Linear rankers over the normalised columns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import Batch, FloatArray, IntArray, ItemLists
from seq2slate.data.ranker import slates_from_scores
from seq2slate.errors import DataError
from seq2slate.saving import SavedRanker


@dataclass(frozen=True, eq=False)
class RidgeRanker:
    """Least squares of the labels on the normalised dense columns, with an L2 penalty: trained in one pass.

    A plain pointwise ranker, good enough to order lists before a slate model sees them.

    >>> import numpy as np
    >>> features = np.random.default_rng(0).normal(size=(40, 3))
    >>> lists = ItemLists(features, np.arange(0, 41, 4), labels=features[:, 1] > 0)
    >>> slates = RidgeRanker.fit(lists).rank(lists.batch())
    >>> bool((slates[:, 0] == lists.batch().features[:, :, 1].argmax(1)).mean() > 0.8)
    True
    """

    weights: FloatArray
    """(F,) one a dense column."""
    transform: FeatureTransform

    @classmethod
    def fit(
        cls, lists: ItemLists, valid: ItemLists | None = None, *, penalty: float = 1.0, seed: int = 0
    ) -> RidgeRanker:
        """Learn from labels or grades; `penalty` counts as so many items that pull every weight to 0.

        There is nothing to choose or to draw: validation lists and seed are taken, as by every ranker, and not used.
        """
        if lists.labels is None:
            raise DataError("a ridge ranker learns from labels, and these lists have none")
        transform = FeatureTransform.fit(lists)
        dense = transform.apply(lists).dense
        moments = (dense.T @ dense).astype(np.float64) + penalty * np.eye(dense.shape[1])
        weights = np.linalg.solve(moments, (dense.T @ (lists.labels - lists.labels.mean())).astype(np.float64))
        return cls(weights.astype(np.float32), transform)

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Sort by the predicted label."""
        return slates_from_scores(batch.pad(self.score(batch.lists)), batch.mask, k)

    def score(self, lists: ItemLists) -> FloatArray:
        """Return the predicted label (T,) of each item, up to a constant."""
        return weighted_sum(self.transform.apply(lists).dense, self.weights)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the ranker to a folder of its own."""
        SavedRanker("ridge", {}, {"weights": self.weights}, self.transform).save(folder)

    @classmethod
    def from_saved(cls, saved: SavedRanker) -> RidgeRanker:
        """Build the ranker from what its folder holds."""
        return cls(saved.weights["weights"], saved.transform)


@dataclass(frozen=True, eq=False)
class WeightedColumns:
    """Sorts by a weighted sum of the `scaled_columns`; the rankers made of it say how the weights are found."""

    kind: ClassVar[str]
    """The name under which the ranker is saved."""

    weights: FloatArray
    """(F + 1,) one for each of the `scaled_columns`."""
    transform: FeatureTransform

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Sort by the weighted sum of the columns."""
        return slates_from_scores(batch.pad(self.score(batch.lists)), batch.mask, k)

    def score(self, lists: ItemLists) -> FloatArray:
        """Return the weighted sum (T,) of the columns of each item."""
        return weighted_sum(scaled_columns(self.transform, lists), self.weights)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the ranker to a folder of its own."""
        SavedRanker(self.kind, {}, {"weights": self.weights}, self.transform).save(folder)

    @classmethod
    def from_saved(cls, saved: SavedRanker) -> Self:
        """Build the ranker from what its folder holds."""
        return cls(saved.weights["weights"], saved.transform)


def scaled_columns(transform: FeatureTransform, lists: ItemLists) -> FloatArray:
    """Return (T, F + 1) the scaled dense columns and, last, −log(1 + base position), which spreads about as wide."""
    return np.column_stack([transform.apply(lists).dense, -np.log1p(lists.positions.astype(np.float32))])


def weighted_sum(columns: FloatArray, weights: npt.NDArray[np.floating]) -> FloatArray:
    """Return (T,) the columns times the weights: unlike BLAS, the same for an item in whatever company it stands."""
    scores: FloatArray = (columns * weights.astype(np.float32)).sum(axis=1, dtype=np.float32)
    return scores
