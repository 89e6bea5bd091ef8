"""Boosted and bagged trees by LightGBM, which the extra `baselines` brings.

All of them read the dense columns, raw, since trees do not mind their scale, and the base position as one column more
unless it is left out. NDCG@10 of the validation lists, whose gain is the label itself, says how many trees are kept;
boosting stops when it has not risen for 50 of them. Labels are whole numbers from 0 to 31, as LightGBM wants them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import FloatArray, IntArray, ItemLists
from seq2slate.errors import DataError, UsageError
from seq2slate.estimator import PointwiseEstimator, check_labels
from seq2slate.progress import track

_PATIENCE = 50
"""After so many trees without a better NDCG@10 boosting has begun to overfit."""
_HIGHEST_LABEL = 31


@dataclass(eq=False, kw_only=True)
class Trees(PointwiseEstimator):
    """What the rankers of this module share: everything but the parameters that their trees are grown with."""

    base_position: bool = True
    """Whether the base position is an input."""

    booster_: Any = field(init=False, repr=False)
    """A LightGBM Booster."""

    def _grow(self, train: ItemLists, valid: ItemLists, *, trees: int, patience: int, **parameters: Any) -> None:
        lightgbm = _lightgbm()
        for name, lists in (("training", train), ("validation", valid)):
            _check_whole_labels(lists, name)
        if not train.n_features and not self.base_position:
            raise DataError("the lists have no dense column, and without the base position there is nothing to read")
        parameters |= {
            "metric": "ndcg",
            "eval_at": [10],
            "label_gain": list(range(_HIGHEST_LABEL + 1)),
            "deterministic": True,
            "force_row_wise": True,
            "seed": self.seed,
            "verbosity": -1,
            "num_threads": int(os.environ.get("OMP_NUM_THREADS") or 0),
        }
        self.transform_ = FeatureTransform.fit(train[:1], categorical=[], context=[])  # names only
        grow = lightgbm.Dataset(self._columns(train), train.labels, group=_groups(train))
        check = lightgbm.Dataset(self._columns(valid), valid.labels, group=_groups(valid), reference=grow)
        stop = lightgbm.early_stopping(patience, verbose=False)
        bar = track(range(trees), f"growing trees ({self.kind})")
        callbacks = [stop, lambda _: next(bar, None)]
        self.booster_ = lightgbm.train(parameters, grow, num_boost_round=trees, valid_sets=[check], callbacks=callbacks)

    def score(self, lists: ItemLists) -> FloatArray:
        """Return the score (T,) of each item."""
        columns = self._columns(lists)
        if not lists.n_items:
            return np.zeros(0, np.float32)
        return np.asarray(self.booster_.predict(columns), dtype=np.float32)

    def _columns(self, lists: ItemLists) -> FloatArray:
        features = self.transform_.raw_features(lists)
        if not self.base_position:
            return features
        return np.column_stack([features, lists.positions.astype(np.float32)])

    def _state(self) -> dict[str, Any]:
        return {"trees": np.frombuffer(self.booster_.model_to_string().encode(), dtype=np.uint8)}

    def _restore(self, state: dict[str, Any]) -> None:
        self.booster_ = _lightgbm().Booster(model_str=state["trees"].tobytes().decode())


@dataclass(eq=False, kw_only=True)
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
            learning_rate=self.learning_rate, min_data_in_leaf=50, feature_fraction=0.5,
        )  # fmt: skip


class LambdaMart(BoostedTrees):
    """LambdaMART (Burges 2010): each tree follows the gradient of NDCG over the pairs of a list."""

    kind = "lambdamart"
    objective = "lambdarank"


class Mart(BoostedTrees):
    """MART (Friedman 2001): gradient-boosted regression of the labels, item by item, as RankLib has it."""

    kind = "mart"
    objective = "regression"


@dataclass(eq=False, kw_only=True)
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


def _check_whole_labels(lists: ItemLists, name: str) -> None:
    labels = check_labels(lists, name)
    strange = (labels != np.floor(labels)) | (labels < 0) | (labels > _HIGHEST_LABEL)
    if strange.any():
        row = int(strange.argmax())
        raise DataError(
            f"the {name} lists, {lists.describe_item(row)}: label {labels[row]:g} is not a whole number from 0 to "
            f"{_HIGHEST_LABEL}, the only ones that LightGBM's NDCG takes"
        )


def _groups(lists: ItemLists) -> IntArray:
    return lists.lengths[lists.lengths > 0]
