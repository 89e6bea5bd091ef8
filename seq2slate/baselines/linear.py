"""Linear rankers over the normalised columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from seq2slate.baselines.columns import fit_numbers
from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import FloatArray, ItemLists
from seq2slate.estimator import PointwiseEstimator, check_labels


@dataclass(eq=False, kw_only=True, repr=False)
class RidgeRanker(PointwiseEstimator):
    """Ridge regression of the labels on the normalised dense columns: w = (XᵀX + penalty · I)⁻¹ Xᵀ(y - mean y).

    A plain pointwise ranker, trained in one pass: good enough to order lists before a slate model sees them.

    >>> import numpy as np
    >>> features = np.random.default_rng(0).normal(size=(40, 3))
    >>> lists = ItemLists(features, np.arange(0, 41, 4), labels=features[:, 1] + features[:, 0] / 3 > 0)
    >>> slates = RidgeRanker().fit(lists).rank(lists.batch())
    >>> bool((slates[:, 0] == lists.batch().features[:, :, 1].argmax(1)).mean() > 0.8)
    True
    """

    penalty: float = 1.0
    """L2 penalty: it counts as so many items that pull every weight to 0."""

    weights_: FloatArray = field(init=False, repr=False)
    """(F + M,) one a dense column, and one an indicator of missing values."""

    kind = "ridge"
    reads_validation = reports_validation = False

    def _fit(self, train: ItemLists, valid: ItemLists) -> None:
        labels = check_labels(train, "training")
        self.transform_ = fit_numbers(self.kind, train)
        dense = self.transform_.apply(train).dense
        moments = (dense.T @ dense).astype(np.float64) + self.penalty * np.eye(dense.shape[1])
        weights = np.linalg.solve(moments, (dense.T @ (labels - labels.mean())).astype(np.float64))
        self.weights_ = weights.astype(np.float32)

    def score_items(self, lists: ItemLists) -> FloatArray:
        """Return the predicted label (T,) of each item, up to a constant."""
        return weighted_sum(self.transform_.apply(lists).dense, self.weights_)


@dataclass(eq=False, kw_only=True, repr=False)
class WeightedColumns(PointwiseEstimator):
    """Sorts by a weighted sum of the `scaled_columns`; subclasses say how the weights are found."""

    weights_: FloatArray = field(init=False, repr=False)
    """(F + M + 1,) one for each of the `scaled_columns`."""

    def score_items(self, lists: ItemLists) -> FloatArray:
        """Return the weighted sum (T,) of the columns of each item."""
        return weighted_sum(scaled_columns(self.transform_, lists), self.weights_)


def scaled_columns(transform: FeatureTransform, lists: ItemLists) -> FloatArray:
    """Return (T, F + M + 1) the scaled dense columns, the indicators of missing values and, last, the base position.

    The last one is -log(1 + base position), which spreads about as wide as the others.
    """
    return np.column_stack([transform.apply(lists).dense, -np.log1p(lists.positions.astype(np.float32))])


def weighted_sum(columns: FloatArray, weights: npt.NDArray[np.floating]) -> FloatArray:
    """Return (T,) the columns times the weights: unlike BLAS, the same for an item in whatever batch it stands."""
    scores: FloatArray = (columns * weights.astype(np.float32)).sum(axis=1, dtype=np.float32)
    return scores
