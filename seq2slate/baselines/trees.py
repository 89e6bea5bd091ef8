"""Boosted and bagged trees by LightGBM, which the extra `baselines` brings.

All of them read the dense columns, raw, since trees do not mind their scale, and the base position as one column more
unless it is left out. NDCG@10 of the validation lists, whose gain is the label itself, says how many trees are kept;
boosting stops when it has not risen for 50 of them. Labels are whole numbers from 0 to 31, as LightGBM wants them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import Batch, FloatArray, IntArray, ItemLists
from seq2slate.data.ranker import slates_from_scores
from seq2slate.errors import DataError, UsageError
from seq2slate.progress import track
from seq2slate.saving import SavedRanker

_PATIENCE = 50
"""After so many trees without a better NDCG@10 boosting has begun to overfit."""
_HIGHEST_LABEL = 31


@dataclass(frozen=True, eq=False)
class _Trees:
    """What the rankers of this module share: everything but the parameters that their trees are grown with."""

    booster: Any
    """A LightGBM Booster."""
    transform: FeatureTransform
    """Says which columns the trees were grown on; its scales are not used."""
    base_position: bool = True
    """Whether the trees look at the base position too."""

    kind: ClassVar[str]
    """The name under which the ranker is saved."""

    @classmethod
    def _grow(
        cls,
        train: ItemLists,
        valid: ItemLists,
        *,
        trees: int,
        base_position: bool,
        seed: int,
        patience: int = _PATIENCE,
        **parameters: Any,
    ) -> Self:
        lightgbm = _lightgbm()
        _check_labels(train, valid)
        if not train.n_features and not base_position:
            raise DataError("the lists have no dense column, and without the base position there is nothing to read")
        parameters |= {
            "metric": "ndcg",
            "eval_at": [10],
            "label_gain": list(range(_HIGHEST_LABEL + 1)),
            "deterministic": True,
            "force_row_wise": True,
            "seed": seed,
            "verbosity": -1,
            "num_threads": int(os.environ.get("OMP_NUM_THREADS") or 0),
        }
        grow = lightgbm.Dataset(_columns(train, base_position), train.labels, group=_groups(train))
        check = lightgbm.Dataset(_columns(valid, base_position), valid.labels, group=_groups(valid), reference=grow)
        stop = lightgbm.early_stopping(patience, verbose=False)
        bar = track(range(trees), f"growing trees ({cls.kind})")
        callbacks = [stop, lambda _: next(bar, None)]
        booster = lightgbm.train(parameters, grow, num_boost_round=trees, valid_sets=[check], callbacks=callbacks)
        known = FeatureTransform.fit(train[:1], categorical=[], context=[])  # names the columns; trees take them raw
        return cls(booster, known, base_position)

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Sort by the score of the trees."""
        return slates_from_scores(batch.pad(self.score(batch.lists)), batch.mask, k)

    def score(self, lists: ItemLists) -> FloatArray:
        """Return the score (T,) of each item."""
        self.transform.apply(lists[:0])  # checks the columns
        if not lists.n_items:
            return np.zeros(0, np.float32)
        return np.asarray(self.booster.predict(_columns(lists, self.base_position)), dtype=np.float32)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the ranker to a folder of its own: the trees as LightGBM's text."""
        text = np.frombuffer(self.booster.model_to_string().encode(), dtype=np.uint8)
        config = {"base_position": self.base_position}
        SavedRanker(self.kind, config, {"trees": text}, self.transform).save(folder)

    @classmethod
    def from_saved(cls, saved: SavedRanker) -> Self:
        """Build the ranker from what its folder holds."""
        booster = _lightgbm().Booster(model_str=saved.weights["trees"].tobytes().decode())
        return cls(booster, saved.transform, saved.config.get("base_position", True))  # older folders do not say


class _Boosted(_Trees):
    """Small trees, each of which mends what those before it got wrong; the objective says what that is."""

    objective: ClassVar[str]

    @classmethod
    def fit(
        cls,
        train: ItemLists,
        valid: ItemLists,
        *,
        trees: int = 500,
        leaves: int = 15,
        learning_rate: float = 0.05,
        base_position: bool = True,
        seed: int = 0,
    ) -> Self:
        """Grow at most so many trees; `base_position` says whether they look at the base position too."""
        return cls._grow(
            train, valid, trees=trees, base_position=base_position, seed=seed, objective=cls.objective,
            num_leaves=leaves, learning_rate=learning_rate, min_data_in_leaf=50, feature_fraction=0.5,
        )  # fmt: skip


class LambdaMart(_Boosted):
    """LambdaMART (Burges 2010): each tree follows the gradient of NDCG over the pairs of a list."""

    kind = "lambdamart"
    objective = "lambdarank"


class Mart(_Boosted):
    """MART (Friedman 2001): gradient-boosted regression of the labels, item by item, as RankLib has it."""

    kind = "mart"
    objective = "regression"


class RandomForest(_Trees):
    """Random forest (Breiman 2001): the mean of large regression trees, each grown on a part of the items.

    The defaults are RankLib's: 300 trees of 100 leaves, and at each split 0.3 of the columns to choose from. RankLib
    draws as many lists as there are, with replacement, for each tree. LightGBM draws items without replacement, and
    0.632 of them is how many different ones a draw with replacement would give.

    A forest does not overfit as it grows, and NDCG wavers while there are few trees: all of them are grown before the
    validation lists say how many to keep.
    """

    kind = "random-forest"

    @classmethod
    def fit(
        cls,
        train: ItemLists,
        valid: ItemLists,
        *,
        trees: int = 300,
        leaves: int = 100,
        base_position: bool = True,
        seed: int = 0,
    ) -> Self:
        """Grow so many trees; `base_position` says whether they look at the base position too."""
        return cls._grow(
            train, valid, trees=trees, base_position=base_position, seed=seed, objective="regression",
            patience=trees, boosting="rf", num_leaves=leaves, bagging_fraction=0.632, bagging_freq=1,
            feature_fraction_bynode=0.3,
        )  # fmt: skip


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise UsageError("LightGBM is not installed: pip install 'seq2slate[baselines]'") from error
    return lightgbm


def _check_labels(train: ItemLists, valid: ItemLists) -> None:
    for name, lists in (("training", train), ("validation", valid)):
        labels = lists.labels
        if labels is None:
            raise DataError(f"the {name} lists have no labels")
        if not (labels > 0).any():
            raise DataError(f"no {name} list has a positive, so NDCG@10 cannot tell how many trees are best")
        strange = (labels != np.floor(labels)) | (labels < 0) | (labels > _HIGHEST_LABEL)
        if strange.any():
            row = int(strange.argmax())
            raise DataError(
                f"the {name} lists, {lists.describe_item(row)}: label {labels[row]:g} is not a whole number from 0 to "
                f"{_HIGHEST_LABEL}, the only ones that LightGBM's NDCG takes"
            )


def _columns(lists: ItemLists, base_position: bool) -> FloatArray:
    if not base_position:
        return lists.features
    return np.column_stack([lists.features, lists.positions.astype(np.float32)])


def _groups(lists: ItemLists) -> IntArray:
    return lists.lengths[lists.lengths > 0]
