"""One shape for everything that learns: `X(**options).fit(train, valid=None)` returns the ranker itself.

Then `rank`, `predict` and `rerank` order lists, `save` writes a folder, and `seq2slate.load` opens it. Options are the
fields of a dataclass that the constructor takes, so `get_params`, `set_params`, the `repr` and the command line are
derived from them. What `fit` has learned stands in fields whose names end in an underscore, as in scikit-learn.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import Batch, FloatArray, IntArray, ItemLists
from seq2slate.data.ranker import rank_lists, slates_from_scores, slot_of_item
from seq2slate.errors import DataError, NotFittedError, UsageError
from seq2slate.saving import SavedRanker, load_saved


@dataclass(frozen=True)
class Slate:
    """What to show for one list."""

    list_id: str
    item_ids: list[str]
    """Best first."""
    log_probabilities: list[float] | None = None
    """The log-probability of each choice given those before it; None if the ranker has no probabilities."""


@dataclass(eq=False, kw_only=True)
class Estimator:
    """A ranker that learns. Subclasses are dataclasses whose fields are options, and implement `_fit` and `rank`."""

    seed: int = 0
    """Seed of everything random."""

    transform_: FeatureTransform = field(init=False, repr=False)
    """The columns that were seen in training, and their scales."""

    kind: ClassVar[str]
    """The name on the command line and in a saved folder."""
    local_options: ClassVar[tuple[str, ...]] = ()
    """Options that belong to this machine, such as paths, and are not saved."""

    def fit(self, train: ItemLists, valid: ItemLists | None = None) -> Self:
        """Learn from labelled lists in base order. A `fit` that fails leaves the ranker unfitted.

        Args:
            train: Training lists, with clicks or grades as labels.
            valid: The lists that choose rounds, epochs or trade-offs. If None, a tenth of `train` is held out, drawn
                with the option `seed`.

        Returns:
            The ranker itself.

        Raises:
            DataError: Labels are missing, or no list has a positive.

        """
        self._forget()
        if valid is None:
            train, valid = hold_out(train, seed=self.seed)
        check_labels(train, "training")
        check_labels(valid, "validation")
        self._fit(train, valid)
        return self

    def _forget(self) -> None:
        """Remove what was learned, so that a `fit` that fails leaves nothing half done."""
        for name in self._learned_fields():
            vars(self).pop(name, None)

    def _fit(self, train: ItemLists, valid: ItemLists) -> None:
        """Set the learned fields from lists with labels and positives."""
        raise NotImplementedError

    # Ordering

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return slates (B, K), K = min(k, N): indices into each list as given, best first, -1 where it has no more."""
        raise NotImplementedError

    def predict(self, lists: ItemLists) -> IntArray:
        """Return the slot (T,) of each item, in the order of `lists`; 1 is the top slot."""
        mask = lists.batch().mask
        return slot_of_item(rank_lists(self, lists), mask)[mask] + 1

    def rerank(self, lists: ItemLists, k: int | None = None) -> list[Slate]:
        """Return a slate of at most k items for every list, in their order."""
        slates = rank_lists(self, lists, k)
        return [
            Slate(name, one.item_ids.take(pa.array(slate[slate >= 0])).to_pylist())
            for name, one, slate in zip(lists.list_ids.to_pylist(), lists, slates, strict=True)
        ]

    # Options

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name; `deep` is there for scikit-learn, and changes nothing."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.init}

    def set_params(self, **options: Any) -> Self:
        """Change options, all of them or none; what was learned stays as it is until the next `fit`.

        Raises:
            UsageError: There is no such option.

        """
        known = self.get_params()
        if unknown := [name for name in options if name not in known]:
            raise UsageError(f"{self.kind} has no option {unknown[0]!r}; its options are {', '.join(known)}")
        for name, value in options.items():
            setattr(self, name, value)
        return self

    # Saving

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the ranker to a folder of its own, which appears whole or not at all."""
        state = self._state()
        weights = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        learned = {name: value for name, value in state.items() if name not in weights}
        config = {"options": self._saved_options(), "learned": learned}
        SavedRanker(self.kind, config, weights, self.transform_.to_json()).save(folder)

    @classmethod
    def from_saved(cls, saved: SavedRanker) -> Self:
        """Build the ranker from what its folder holds."""
        try:
            ranker = cls(**as_tuples(saved.config["options"]))
            ranker.transform_ = FeatureTransform.from_json(saved.features)
            ranker._restore({**saved.config["learned"], **saved.weights})
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"the files of this {saved.kind} ranker do not belong together: {error}") from error
        return ranker

    def _state(self) -> dict[str, Any]:
        """Return what was learned: NumPy arrays, and values that JSON can hold."""
        return {name: getattr(self, name) for name in self._learned_fields() if name != "transform_"}

    def _restore(self, state: dict[str, Any]) -> None:
        """Take back what `_state` returned."""
        for name, value in state.items():
            setattr(self, name, value)

    def _saved_options(self) -> dict[str, Any]:
        return {name: value for name, value in self.get_params().items() if name not in self.local_options}

    @classmethod
    def _learned_fields(cls) -> list[str]:
        return [one.name for one in fields(cls) if not one.init]

    if not TYPE_CHECKING:  # a type checker would take every misspelt name for an attribute

        def __getattr__(self, name: str) -> Any:
            """Raise a NotFittedError for a learned field that is not there yet."""
            if name.endswith("_") and name in self._learned_fields():
                raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@dataclass(eq=False, kw_only=True)
class PointwiseEstimator(Estimator):
    """A ranker that scores every item by itself, and sorts. Subclasses implement `score`."""

    def score(self, lists: ItemLists) -> npt.NDArray[np.floating]:
        """Return the score (T,) of each item; higher is better."""
        raise NotImplementedError

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return slates (B, K) sorted by score; ties keep the base order."""
        return slates_from_scores(batch.pad(self.score(batch.lists)), batch.mask, k)


def check_labels(lists: ItemLists, name: str) -> FloatArray:
    """Return the labels (T,) of lists in which something can be learned; `name` says which lists they are."""
    if lists.labels is None:
        raise DataError(f"the {name} lists have no labels: give clicks or grades")
    if not (lists.labels > 0).any():
        raise DataError(f"no {name} list has a positive: give lists with a click, or a grade above 0")
    return lists.labels


def hold_out(lists: ItemLists, *, seed: int) -> tuple[ItemLists, ItemLists]:
    """Return training lists, and a tenth of the lists, at least one, for validation."""
    check_labels(lists, "training")
    if len(lists) < 2:
        raise DataError("one list cannot be both trained and validated on: give validation lists")
    train, valid = lists.split(1 - max(0.1, 1 / len(lists)), seed=seed)
    check_labels(valid, "held-out validation")
    return train, valid


def as_tuples(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as they are given in Python: JSON knows tuples as lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


# Every kind of estimator

ESTIMATORS: dict[str, str] = {
    "seq2slate": "seq2slate.reranker:Reranker",
    "ridge": "seq2slate.baselines.linear:RidgeRanker",
    "coordinate-ascent": "seq2slate.baselines.coordinate_ascent:CoordinateAscent",
    "adarank": "seq2slate.baselines.boosting:AdaRank",
    "rankboost": "seq2slate.baselines.boosting:RankBoost",
    "mart": "seq2slate.baselines.trees:Mart",
    "lambdamart": "seq2slate.baselines.trees:LambdaMart",
    "random-forest": "seq2slate.baselines.trees:RandomForest",
    "ranknet": "seq2slate.baselines.neural:RankNet",
    "listnet": "seq2slate.baselines.neural:ListNet",
    "mmr": "seq2slate.baselines.diversity:Mmr",
    "dpp": "seq2slate.baselines.diversity:GreedyDpp",
    "ranklib": "seq2slate.baselines.ranklib:RankLibRanker",
}
"""Every kind of estimator, and where its class is; it is imported when somebody asks for it."""

NETWORK_PRESETS = ("dlcm", "prm", "setrank")
"""Presets of the network that have names of their own in the literature, and may stand where a kind does."""


def estimator_class(kind: str) -> type[Estimator]:
    """Return the class of a kind of estimator."""
    if kind not in ESTIMATORS:
        raise UsageError(f"there is no ranker {kind!r} to train; choose one of {', '.join(ESTIMATORS)}")
    module, name = ESTIMATORS[kind].split(":")
    found: type[Estimator] = getattr(import_module(module), name)
    return found


def make_estimator(kind: str, **options: Any) -> Estimator:
    """Return an estimator with these options, by the name of its kind or of one of the `NETWORK_PRESETS`.

    >>> make_estimator("mart", trees=20)
    Mart(seed=0, base_position=True, trees=20, leaves=15, learning_rate=0.05)
    """
    if kind in NETWORK_PRESETS:
        kind, options = "seq2slate", {"preset": kind, **options}
    return estimator_class(kind)().set_params(**options)


def load(folder: str | os.PathLike[str]) -> Estimator:
    """Open the ranker that a folder holds, whatever its kind.

    Raises:
        DataError: The folder holds no ranker, is damaged, or was written by another version.

    """
    saved = load_saved(folder)
    if saved.kind not in ESTIMATORS:
        raise DataError(f"{folder} holds a {saved.kind!r} ranker; this seq2slate knows {', '.join(ESTIMATORS)}")
    try:
        return estimator_class(saved.kind).from_saved(saved)
    except DataError as error:
        raise DataError(f"{folder}: {error}") from error
