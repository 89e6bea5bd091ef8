"""Boosted trees by LightGBM, which the extra `baselines` brings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import Batch, FloatArray, IntArray, ItemLists
from seq2slate.data.ranker import slates_from_scores
from seq2slate.errors import DataError, UsageError
from seq2slate.model.saving import SavedRanker


@dataclass(frozen=True, eq=False)
class LambdaMart:
    """LambdaMART on the dense columns, the raw ones, since trees do not mind their scale, and the base position."""

    booster: Any
    """A LightGBM Booster."""
    transform: FeatureTransform
    """Says which columns the trees were grown on; its scales are not used."""

    @classmethod
    def fit(
        cls,
        train: ItemLists,
        valid: ItemLists,
        *,
        trees: int = 500,
        leaves: int = 15,
        learning_rate: float = 0.05,
        seed: int = 0,
    ) -> LambdaMart:
        """Grow trees until NDCG@10 of the validation lists has not risen for 50 of them."""
        lightgbm = _lightgbm()
        for name, lists in (("training", train), ("validation", valid)):
            if lists.labels is None:
                raise DataError(f"the {name} lists have no labels")
        parameters = {
            "objective": "lambdarank",
            "metric": "ndcg",
            "eval_at": [10],
            "num_leaves": leaves,
            "learning_rate": learning_rate,
            "min_data_in_leaf": 50,
            "feature_fraction": 0.5,
            "label_gain": list(range(32)),
            "deterministic": True,
            "force_row_wise": True,
            "seed": seed,
            "verbosity": -1,
            "num_threads": int(os.environ.get("OMP_NUM_THREADS", "0")),
        }
        grow = lightgbm.Dataset(_columns(train), train.labels, group=_groups(train))
        check = lightgbm.Dataset(_columns(valid), valid.labels, group=_groups(valid), reference=grow)
        stop = lightgbm.early_stopping(50, verbose=False)
        booster = lightgbm.train(parameters, grow, num_boost_round=trees, valid_sets=[check], callbacks=[stop])
        return cls(booster, FeatureTransform.fit(train, categorical=[], context=[]))

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Sort by the score of the trees."""
        return slates_from_scores(batch.pad(self.score(batch.lists)), batch.mask, k)

    def score(self, lists: ItemLists) -> FloatArray:
        """Return the score (T,) of each item."""
        self.transform.apply(lists[:0])  # checks the columns
        if not lists.n_items:
            return np.zeros(0, np.float32)
        return np.asarray(self.booster.predict(_columns(lists)), dtype=np.float32)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the ranker to a folder of its own: the trees as LightGBM's text."""
        text = np.frombuffer(self.booster.model_to_string().encode(), dtype=np.uint8)
        SavedRanker("lambdamart", {}, {"trees": text}, self.transform).save(folder)

    @classmethod
    def from_saved(cls, saved: SavedRanker) -> LambdaMart:
        """Build the ranker from what its folder holds."""
        booster = _lightgbm().Booster(model_str=saved.weights["trees"].tobytes().decode())
        return cls(booster, saved.transform)


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise UsageError("LightGBM is not installed: pip install 'seq2slate[baselines]'") from error
    return lightgbm


def _columns(lists: ItemLists) -> FloatArray:
    return np.column_stack([lists.features, lists.positions.astype(np.float32)])


def _groups(lists: ItemLists) -> IntArray:
    return lists.lengths[lists.lengths > 0]
