"""One shape for everything that learns: `X(**options).fit(train, valid=None)` returns the ranker itself.

Then `rank`, `predict` and `rerank` order lists, `evaluate` compares with the base order, `save` writes a folder, and
`seq2slate.load` opens it. Options are the fields of a dataclass that the constructor takes, so `get_params`,
`set_params`, the `repr` and the command line are derived from them. What `fit` has learned stands in fields whose names
end in an underscore, as in scikit-learn.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seq2slate.data.checks import find_problems
from seq2slate.data.features import FeatureTransform
from seq2slate.data.inputs import as_lists, as_lists_with_rows, is_table
from seq2slate.data.lists import ITEM_ID, Batch, FloatArray, IntArray, ItemLists
from seq2slate.data.ranker import BaseOrder, Ranker, rank_lists, slates_from_scores, slot_of_item
from seq2slate.data.roles import Columns, as_columns, explain_missing_labels
from seq2slate.errors import DataError, NotFittedError, Seq2SlateError, UsageError, warn_of_data
from seq2slate.evaluation.evaluate import Evaluation, evaluate
from seq2slate.html import table
from seq2slate.metrics import Measure, measure_ranker
from seq2slate.options import convert_options
from seq2slate.progress import say
from seq2slate.saving import SavedRanker, load_saved

_NDCG = Measure("NDCG", 10)
_SPLITS = 100  # tries to hold out lists of which some have a positive


@dataclass(frozen=True)
class Slate:
    """What to show for one list."""

    list_id: Any
    """In the type in which it came."""
    item_ids: list[Any]
    """Best first."""
    log_probabilities: list[float] | None = None
    """The log-probability of each choice given those before it; None if the ranker has no probabilities."""


@dataclass(eq=False, kw_only=True, repr=False)
class Estimator:
    """A ranker that learns. Subclasses are dataclasses whose fields are options, and implement `_fit` and `rank`.

    `fit`, `predict`, `rerank`, `evaluate` and `score` take lists in any form that `as_lists` knows: ItemLists, a pandas
    or polars DataFrame, an Arrow table, a path, or arrays `(X, y, group)`.
    """

    seed: int = 0
    """Seed of everything random."""
    columns: Columns | Mapping[str, Any] | None = None
    """Roles of the columns of tables and files, such as `Columns(list_id="query")`."""

    transform_: FeatureTransform = field(init=False, repr=False)
    """The columns that were seen in training, and their scales."""
    columns_: Columns = field(init=False, repr=False)
    """The roles with which tables are read after training."""

    kind: ClassVar[str]
    """The name on the command line and in a saved folder."""
    local_options: ClassVar[tuple[str, ...]] = ()
    """Options that belong to this machine, such as paths, and are not saved."""
    reads_validation: ClassVar[bool] = True
    """Whether validation lists choose anything; if not, none are held out."""
    reports_validation: ClassVar[bool] = True
    """Whether `fit` ends with the measure on the validation lists: not if ranking is costly, or they are trained on."""

    def fit(self, train: Any, valid: Any | None = None, *, group: Any | None = None, quiet: bool = False) -> Self:
        """Learn from labelled lists in base order. A `fit` that fails leaves the ranker unfitted.

        Args:
            train: Training lists, with clicks or grades as labels.
            valid: The lists that choose rounds, epochs or trade-offs. If None, a tenth of `train` is held out, drawn
                with the option `seed`.
            group: As in LightGBM, `fit(X, y, group=group)` is `fit((X, y, group))`.
            quiet: Print nothing.

        Returns:
            The ranker itself.

        Raises:
            DataError: Labels are missing, or no list has a positive.

        """
        train_lists, valid_lists = self._training_lists(train, valid, group=group, quiet=quiet)
        try:
            self._fit(train_lists, valid_lists)
        except BaseException:
            self._forget()
            raise
        self._pin_columns()
        if self.reports_validation and not quiet:
            base, value = (_mean_ndcg(ranker, valid_lists) for ranker in (BaseOrder(), self))
            say(f"{self.name}: {_NDCG} on the validation lists: base order {base:.4f} → {value:.4f}")
        return self

    def _training_lists(
        self, train: Any, valid: Any | None, *, group: Any | None, quiet: bool
    ) -> tuple[ItemLists, ItemLists]:
        """Return training and validation lists, and say what their columns are taken for."""
        self._forget()
        self._convert_options()
        if group is not None:
            train, valid = (train, valid, group), None
        if len(getattr(valid, "shape", ())) == 1:
            raise UsageError(
                "the second argument of fit is validation lists, not labels: name the label column in columns=, or "
                "say which rows make a list, fit(X, y, group=group)"
            )
        lists = as_lists(train, self.columns, name="train")
        columns = as_columns(self.columns) if lists.roles is None else lists.roles.for_prediction()
        if lists.roles is not None and not quiet:
            say(str(lists.roles))
        for problem in find_problems(lists):
            warn_of_data(problem)
        if valid is not None:
            held_out = as_lists(valid, columns, name="valid")
        elif self.reads_validation:
            lists, held_out = hold_out(lists, seed=self.seed)
        else:
            held_out = lists
        check_labels(lists, "training")
        check_labels(held_out, "validation")
        self.columns_ = columns
        return lists, held_out

    def _pin_columns(self) -> None:
        """Leave out of the roles for prediction what the ranker does not read."""
        transform, columns = self.transform_, self.columns_
        read = {
            *transform.dense.names,
            *transform.categorical,
            *transform.context.names,
            *transform.context_categorical,
        }
        if ITEM_ID in transform.categorical:
            read.add(columns.item_id)

        def kept(names: Sequence[str]) -> tuple[str, ...]:
            return tuple(name for name in names if name in read)

        self.columns_ = replace(
            columns,
            features=None if columns.features is None else kept(columns.features),
            categorical=kept(columns.categorical),
            context=kept(columns.context),
        )

    def _convert_options(self) -> None:
        """Bring the options into the types of their fields."""
        vars(self).update(convert_options({name: vars(self)[name] for name in self._own_options()}, type(self)))

    @classmethod
    def _own_options(cls) -> list[str]:
        return [one.name for one in fields(cls) if one.init]

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

    def predict(self, data: Any) -> Any:
        """Return the slot of each item, in the order of the rows; 1 is the top slot.

        Returns:
            A Series with the index of a pandas DataFrame, a polars Series, or a NumPy array (T,) for anything else. If
            a row is a list, an entry holds the slots of its items. A row that stands for an empty list has slot 0.

        """
        lists, rows = as_lists_with_rows(data, self.columns_, name="data", labelled=False)
        self._warn_of_unseen(lists)
        mask = lists.batch().mask
        rows_are_lists = is_table(data) and lists.roles is not None and lists.roles.rows_are_lists
        n_rows = len(data) if is_table(data) and hasattr(data, "__len__") else 0
        slots = np.zeros(max(n_rows if not rows_are_lists else 0, lists.n_items), dtype=np.int64)
        slots[rows] = slot_of_item(rank_lists(self, lists), mask)[mask] + 1
        by_list = [slots[start:stop] for start, stop in pairwise(lists.offsets)] if rows_are_lists else slots
        return like_input(data, by_list, "slot")

    def rerank(self, data: Any, k: int | None = None) -> list[Slate]:
        """Return a slate of at most k items for every list, in their order."""
        lists = as_lists(data, self.columns_, name="data", labelled=False)
        slates = rank_lists(self, lists, k)
        items = lists.original_item_ids()
        return [
            Slate(name, items.take(pa.array(start + slate[slate >= 0])).to_pylist())
            for name, start, slate in zip(
                lists.original_list_ids().to_pylist(), lists.offsets[:-1], slates, strict=True
            )
        ]

    def evaluate(self, data: Any, **options: Any) -> Evaluation:
        """Compare with the base order on labelled lists: means, 95% intervals and a paired test.

        Args:
            data: Labelled lists in base order that were not trained on.
            **options: Those of `seq2slate.evaluate`, such as `measures=["NDCG@5"]`.

        """
        lists = as_lists(data, self.columns_, name="data")
        self._warn_of_unseen(lists)
        return evaluate({self.name: self}, lists, **options)

    def score(self, data: Any, y: None = None) -> float:
        """Return the mean NDCG@10 over labelled lists, for scikit-learn's model selection; `y` is not used."""
        lists = as_lists(data, self.columns_, name="data")
        check_labels(lists, "given")
        return _mean_ndcg(self, lists)

    def _warn_of_unseen(self, lists: ItemLists) -> None:
        for name in self.transform_.unseen_columns(lists):
            warn_of_data(
                f"no value of the categorical column {name!r} was seen in training: is it spelled in another way?"
            )

    @property
    def name(self) -> str:
        """What a table of results calls it."""
        return self.kind

    # Options of scikit-learn's shape

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name; `deep` is there for scikit-learn, and changes nothing."""
        return {name: getattr(self, name) for name in self._own_options()}

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

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn's model selection asks for."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __sklearn_is_fitted__(self) -> bool:
        return "transform_" in vars(self)

    def _changed_options(self) -> dict[str, Any]:
        defaults = {one.name: one.default for one in fields(self)}
        return {name: value for name, value in self.get_params().items() if defaults.get(name, ...) != value}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._changed_options().items())
        return f"{type(self).__name__}({shown})"

    def _repr_html_(self) -> str:
        state = "fitted" if self.__sklearn_is_fitted__() else "not fitted"
        options = [[name, repr(value)] for name, value in self._changed_options().items()]
        return table([type(self).__name__, state], options or [["options", "defaults"]])

    # Saving

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the ranker to a folder of its own, which appears whole or not at all."""
        state = self._state()
        weights = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        learned = {name: value for name, value in state.items() if name not in weights}
        config = {"options": self._saved_options(), "learned": learned, "columns": self.columns_.to_dict()}
        SavedRanker(self.kind, config, weights, self.transform_.to_json()).save(folder)

    @classmethod
    def from_saved(cls, saved: SavedRanker) -> Self:
        """Build the ranker from what its folder holds."""
        try:
            ranker = cls(**as_tuples(saved.config["options"]))
            ranker.transform_ = FeatureTransform.from_json(saved.features)
            ranker.columns_ = Columns.from_dict(saved.config.get("columns", {}))
            ranker._restore({**saved.config["learned"], **saved.weights})
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"the files of this {saved.kind} ranker do not belong together: {error}") from error
        return ranker

    def _state(self) -> dict[str, Any]:
        """Return what was learned: NumPy arrays, and values that JSON can hold."""
        not_state = ("transform_", "columns_")
        return {name: getattr(self, name) for name in self._learned_fields() if name not in not_state}

    def _restore(self, state: dict[str, Any]) -> None:
        """Take back what `_state` returned."""
        for name, value in state.items():
            setattr(self, name, value)

    def _saved_options(self) -> dict[str, Any]:
        """Return the options but those of this machine; the roles of columns are saved as `columns_`."""
        return {
            name: value for name, value in self.get_params().items() if name not in (*self.local_options, "columns")
        }

    @classmethod
    def _learned_fields(cls) -> list[str]:
        return [one.name for one in fields(cls) if not one.init]

    if not TYPE_CHECKING:  # a type checker would take every misspelt name for an attribute

        def __getattr__(self, name: str) -> Any:
            """Raise a NotFittedError for a learned field that is not there yet."""
            if name.endswith("_") and name in self._learned_fields():
                raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@dataclass(eq=False, kw_only=True, repr=False)
class PointwiseEstimator(Estimator):
    """A ranker that scores every item by itself, and sorts. Subclasses implement `score_items`."""

    def score_items(self, lists: ItemLists) -> npt.NDArray[np.floating]:
        """Return the score (T,) of each item; higher is better."""
        raise NotImplementedError

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return slates (B, K) sorted by score; ties keep the base order."""
        return slates_from_scores(batch.pad(self.score_items(batch.lists)), batch.mask, k)


def like_input(data: Any, values: Any, name: str) -> Any:
    """Return values of the rows as a Series of the library that the data came in; as they are for anything else."""
    library = type(data).__module__.partition(".")[0]
    if library not in ("pandas", "polars"):
        return values
    series = getattr(import_module(library), "Series")  # noqa: B009 (mypy knows neither library)
    return series(values, index=data.index, name=name) if library == "pandas" else series(name, values)


def _mean_ndcg(ranker: Ranker, lists: ItemLists) -> float:
    return float(np.nanmean(measure_ranker(ranker, lists, [_NDCG], k=_NDCG.k)[_NDCG]))


def check_labels(lists: ItemLists, name: str) -> FloatArray:
    """Return the labels (T,) of lists in which something can be learned; `name` says which lists they are."""
    if lists.labels is None:
        raise DataError(f"the {name} lists have no labels: {explain_missing_labels(lists)}")
    if not (lists.labels > 0).any():
        raise DataError(f"no {name} list has a positive: give lists with a click, or a grade above 0")
    return lists.labels


def hold_out(lists: ItemLists, *, seed: int) -> tuple[ItemLists, ItemLists]:
    """Return training lists, and a tenth of the lists, at least one, for validation."""
    check_labels(lists, "training")
    if len(lists) < 2:
        raise DataError("one list cannot be both trained and validated on: give validation lists")
    for attempt in range(_SPLITS):
        train, valid = lists.split(1 - max(0.1, 1 / len(lists)), seed=seed + attempt)
        if _has_positive(train) and _has_positive(valid):
            return train, valid
    raise DataError("no held-out validation list has a positive: give more lists with a positive, or validation lists")


def _has_positive(lists: ItemLists) -> bool:
    return lists.labels is not None and bool((lists.labels > 0).any())


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
    Mart(trees=20)
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
    except Seq2SlateError as error:
        raise DataError(f"{folder}: {error}") from error
