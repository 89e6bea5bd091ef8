"""Boosted and bagged trees by LightGBM, which the extra `baselines` brings.

All of them read every column of the lists, raw, since trees do not mind their scale:

- Dense columns and numeric context columns. NaN is LightGBM's missing value: each split learns where it goes.
- Categorical columns and text context columns, split into sets of values. The vocabularies are those of the training
  lists and are saved with the model; a value that is missing or was not seen in training is LightGBM's missing
  category. LightGBM's own defaults treat ids with thousands of values well: at most 32 values on one side of a split
  (`max_cat_threshold`), none of them with fewer than `cat_smooth` = 10 items.
- The base position, unless it is left out. Columns are not sampled by boosting, which would hide the base position, the
  strongest column of most logs, from part of the trees.

NDCG@10 of the validation lists, whose gain is the label itself, says how many trees are kept; boosting stops when it
has not risen for 50 of them. Labels are clicks, grades or any numbers from 0 up. Lists and items have no weights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from seq2slate.baselines.coordinate_ascent import ScoredNdcg
from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import FloatArray, IntArray, ItemLists
from seq2slate.errors import DataError, UsageError
from seq2slate.estimator import PointwiseEstimator, check_labels
from seq2slate.progress import track

_PATIENCE = 50
"""After so many trees without a better NDCG@10 boosting has begun to overfit."""
_MOST_GRADES = 256
"""Different labels that LambdaMART tells apart: LightGBM's time for a list grows with their number."""


@dataclass(eq=False, kw_only=True, repr=False)
class Trees(PointwiseEstimator):
    """What the rankers of this module share: everything but the parameters that their trees are grown with."""

    base_position: bool = True
    """Whether the base position is an input."""

    booster_: Any = field(init=False, repr=False)
    """A LightGBM Booster."""

    def _grow(self, train: ItemLists, valid: ItemLists, *, trees: int, patience: int, **parameters: Any) -> None:
        lightgbm = _lightgbm()
        targets, of_targets = self._targets(_check_labels(train, "training"))
        _check_labels(valid, "validation")
        judge = ScoredNdcg.of(valid, "validation")
        self.transform_ = FeatureTransform.fit(train, scaling="none", min_count=1)
        columns = self._columns(train)
        if not columns.shape[1]:
            raise DataError("the lists have no column, and without the base position there is nothing to read")
        parameters |= of_targets | {
            "metric": "None",
            "deterministic": True,
            "force_row_wise": True,
            "seed": self.seed,
            "verbosity": -1,
            "num_threads": int(os.environ.get("OMP_NUM_THREADS") or 0),
        }
        codes = self._categorical_columns()
        grow = lightgbm.Dataset(columns, targets, group=_groups(train), categorical_feature=codes)
        check = lightgbm.Dataset(self._columns(valid), valid.labels, group=_groups(valid), reference=grow)
        bar = track(range(trees), f"growing trees ({self.kind})")
        self.booster_ = lightgbm.train(
            parameters,
            grow,
            num_boost_round=trees,
            valid_sets=[check],
            feval=lambda scores, _: ("NDCG@10", judge.mean(scores), True),
            callbacks=[lightgbm.early_stopping(patience, verbose=False), lambda _: next(bar, None)],
        )

    def _targets(self, labels: FloatArray) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        """Return what the trees are grown for (T,), and the parameters that describe it."""
        return labels, {}

    def score_items(self, lists: ItemLists) -> FloatArray:
        """Return the score (T,) of each item."""
        columns = self._columns(lists)
        if not lists.n_items:
            return np.zeros(0, np.float32)
        return np.asarray(self.booster_.predict(columns), dtype=np.float32)

    def _columns(self, lists: ItemLists) -> FloatArray:
        """Return (T, C) all columns: numbers, then codes of categories from 0 (NaN: none), then the base position."""
        transform, list_index = self.transform_, lists.list_index
        encoded = transform.apply(lists)  # for the codes: the numbers stay raw
        columns = [transform.raw_features(lists), transform.raw_context(lists)[list_index]]
        columns += [_codes(codes) for codes in encoded.categorical.values()]
        columns += [_codes(codes)[list_index] for codes in encoded.context_categorical.values()]
        if self.base_position:
            columns.append(lists.positions.astype(np.float32))
        return np.column_stack(columns)

    def _categorical_columns(self) -> list[int]:
        """Return the numbers of the columns that hold codes."""
        transform = self.transform_
        first = len(transform.dense.names) + len(transform.context.names)
        return list(range(first, first + len(transform.categorical) + len(transform.context_categorical)))

    def _state(self) -> dict[str, Any]:
        return {"trees": np.frombuffer(self.booster_.model_to_string().encode(), dtype=np.uint8)}

    def _restore(self, state: dict[str, Any]) -> None:
        self.booster_ = _lightgbm().Booster(model_str=state["trees"].tobytes().decode())


@dataclass(eq=False, kw_only=True, repr=False)
class BoostedTrees(Trees):
    """Small trees, each of which corrects the errors of those before it; the objective says what an error is."""

    trees: int = 500
    """Trees to grow, at most; boosting stops when NDCG@10 of the validation lists has not risen for 50 of them."""
    leaves: int = 15
    """Leaves of a tree."""
    learning_rate: float = 0.05
    """Shrinkage of each tree."""

    objective: ClassVar[str]
    """LightGBM's name of what is minimised."""

    def _fit(self, train: ItemLists, valid: ItemLists) -> None:
        self._grow(
            train, valid, trees=self.trees, patience=_PATIENCE, objective=self.objective, num_leaves=self.leaves,
            learning_rate=self.learning_rate, min_data_in_leaf=50,
        )  # fmt: skip


class LambdaMart(BoostedTrees):
    """LambdaMART (Burges 2010): each tree follows the gradient of NDCG over the pairs of a list."""

    kind = "lambdamart"
    objective = "lambdarank"

    def _targets(self, labels: FloatArray) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        grades, gains = as_grades(labels)
        return grades, {"label_gain": gains}


class Mart(BoostedTrees):
    """MART (Friedman 2001): gradient-boosted regression of the labels, item by item, as RankLib has it."""

    kind = "mart"
    objective = "regression"


@dataclass(eq=False, kw_only=True, repr=False)
class RandomForest(Trees):
    """Random forest (Breiman 2001): the mean of large regression trees, each grown on a part of the items.

    The defaults are RankLib's: 300 trees of 100 leaves, and at each split 0.3 of the columns to choose from. RankLib
    draws as many lists as there are, with replacement, for each tree. LightGBM draws items without replacement, and
    0.632 of them is how many different ones a draw with replacement would give.

    A forest does not overfit as it grows, and NDCG wavers while there are few trees: all of them are grown before the
    validation lists say how many to keep.
    """

    trees: int = 300
    """Trees to grow; NDCG@10 of the validation lists says how many are kept."""
    leaves: int = 100
    """Leaves of a tree."""

    kind = "random-forest"

    def _fit(self, train: ItemLists, valid: ItemLists) -> None:
        self._grow(
            train, valid, trees=self.trees, patience=self.trees, objective="regression", boosting="rf",
            num_leaves=self.leaves, bagging_fraction=0.632, bagging_freq=1, feature_fraction_bynode=0.3,
        )  # fmt: skip


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise UsageError("LightGBM is not installed: pip install 'seq2slate[baselines]'") from error
    return lightgbm


def as_grades(labels: FloatArray) -> tuple[IntArray, list[float]]:
    """Return labels as LightGBM's NDCG takes them: grades (T,) from 0, and the gain of each grade, which is the label.

    More than 256 different labels are rounded to the nearest of 256 of their quantiles.

    >>> as_grades(np.array([0.5, 0, 2, 0.5], dtype=np.float32))
    (array([1, 0, 2, 1]), [0.0, 0.5, 2.0])
    """
    levels = np.unique(labels)
    if len(levels) > _MOST_GRADES:
        levels = np.unique(np.quantile(labels, np.linspace(0, 1, _MOST_GRADES), method="inverted_cdf"))
    middles = (levels[1:].astype(np.float64) + levels[:-1]) / 2
    return np.searchsorted(middles, labels), levels.tolist()


def _check_labels(lists: ItemLists, name: str) -> FloatArray:
    labels = check_labels(lists, name)
    strange = ~(np.isfinite(labels) & (labels >= 0))
    if strange.any():
        row = int(strange.argmax())
        raise DataError(
            f"the {name} lists, {lists.describe_item(row)}: label {labels[row]:g}, but the gain of NDCG is the label: "
            "give finite labels from 0 up"
        )
    return labels


def _codes(codes: npt.NDArray[np.int32]) -> FloatArray:
    """Return codes from 0, and NaN, LightGBM's missing category, for those out of vocabulary."""
    return np.where(codes > 0, codes - 1, np.nan).astype(np.float32)


def _groups(lists: ItemLists) -> IntArray:
    return lists.lengths[lists.lengths > 0]
