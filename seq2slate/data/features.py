"""Feature transforms: raw columns to what a model reads, the same in training and in serving.

A `FeatureTransform` is fitted on the training lists, saved with the model, and applied to everything that it ranks. It
covers the columns of items and those of whole lists (context).

- A **numeric** column x becomes z = clip((y − mean) / std, ±`CLIP`). With the scaling "signed-log", the default,
  y = sign(x) · log(1 + |x|): columns such as WEB30K's have tails so heavy that plain standardising leaves a few items
  far out and the rest in one spot. With "standardise" y = x, and with "none" z = x. Means and standard deviations are
  over items, in float64; the rest is float32 arithmetic with one logarithm, so that another runtime can do the same,
  but for the last bits. A column that was constant in training is always 0.
- A **missing** number (NaN) becomes the mean of the values that are there, which is z = 0 unless the scaling is "none".
  Each column with missing values in training has an indicator, an input of its own: 1 where the value is missing and 0
  elsewhere, not scaled. Indicators follow all columns. A column that is missing throughout the training is always 0,
  without an indicator. With `missing="refuse"` a missing number is an error instead. Infinite ones always are.
- A **categorical** column becomes integer codes: the known values count from 1, the most frequent first. Code 0 is out
  of vocabulary: missing, unseen, or fewer than `min_count` times in training, so that its embedding is learned from
  rare values and holds for them. A column without a single frequent value stays, with code 0 everywhere. "3.0" and "3"
  are one value, and so are "True" and "true": CSV, DataFrames and requests spell them differently.

Columns are found by their names, in any order. Those that were not there in training are ignored; one that was there
and is missing now is an error, but for the categorical column `item_id`, which is made from the ids of the items.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seq2slate.atomic import atomic_path
from seq2slate.data.columns import spell_categories, spell_category
from seq2slate.data.letor import COMMENT
from seq2slate.data.lists import (
    ITEM_ID,
    BoolArray,
    FloatArray,
    IntArray,
    ItemLists,
    Strings,
    as_strings,
    default_feature_names,
)
from seq2slate.errors import DataError, UsageError

Codes: TypeAlias = npt.NDArray[np.int32]
Column = TypeVar("Column")
Scaling: TypeAlias = Literal["signed-log", "standardise", "none"]
"""How numeric columns are scaled: standardised after a signed logarithm, standardised, or not at all."""
Missing: TypeAlias = Literal["impute", "refuse"]
"""What happens to missing numbers: the mean takes their place, beside an indicator, or they are an error."""
Locate: TypeAlias = Callable[[int], str]
"""Names a row in an error message."""

CLIP = 10.0
"""Scaled values are clipped to so many standard deviations: a bounded effect of a broken value in serving."""
TRANSFORM_FORMAT = 2
"""The version of the saved JSON; a newer one is refused. Version 1 has no indicators, and refuses missing numbers."""
SAMPLE, FEWEST_VALUES = 10_000, 20
"""How many values of a categorical column are looked up, and how few tell nothing, before it counts as unseen."""
NOT_CATEGORIES = (COMMENT,)
"""Columns that are not used unless they are named: the comment at the end of a LETOR line is no category."""

_BLOCK_CELLS = 1 << 20  # values scaled at once: temporary arrays stay below 10 MB


@dataclass(frozen=True, eq=False)
class EncodedLists:
    """The model's inputs of Q lists with T items in all."""

    dense: FloatArray
    """(T, F + M) scaled numeric columns of the items, and their indicators of missing values."""
    categorical: dict[str, Codes]
    """(T,) codes of the items, by categorical column."""
    context: FloatArray
    """(Q, C) scaled numeric columns of the lists, and their indicators."""
    context_categorical: dict[str, Codes]
    """(Q,) codes of the lists, by categorical column."""


@dataclass(frozen=True, eq=False)
class NumberColumns:
    """Numeric columns and their fitted scale: z = clip((y − mean) · inverse_std, ±clip), y = x or its signed log.

    A missing value is the mean. The indicators, 1 where the value is missing and 0 elsewhere, follow the columns.

    >>> values = np.array([[1.0], [3.0], [np.nan]], dtype=np.float32)
    >>> columns = NumberColumns.fit(values, ["price"], "standardise", "row {}".format)
    >>> columns.apply(values, "row {}".format).tolist()
    [[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """

    names: tuple[str, ...]
    scaling: Scaling
    mean: FloatArray
    """(F,) of the y that are there; 0 for a constant column that is scaled."""
    inverse_std: FloatArray
    """(F,) 1 / std of y; 0 for a constant column, 1 without scaling."""
    missing: Missing = "impute"
    indicators: tuple[str, ...] = ()
    """The columns with an indicator, in the order of `names`: those with missing and with other values in training."""
    clip: float = CLIP

    @classmethod
    def fit(
        cls,
        values: FloatArray,
        names: Sequence[str],
        scaling: Scaling,
        locate: Locate,
        *,
        missing: Missing = "impute",
    ) -> NumberColumns:
        """Fit mean and standard deviation of values (rows, F); without rows every column counts as constant."""
        found = _moments(_blocks(values, names, locate, missing), len(names), scaling)
        partly = (found.n_values > 0) & (found.n_values < len(values))
        indicators = tuple(name for name, is_partly in zip(names, partly, strict=True) if is_partly)
        if scaling == "none":
            mean, inverse = found.mean, np.ones(len(names))
        else:
            # A deviation below the resolution of float32 is rounding error, and its inverse might be infinite.
            constant = found.std <= np.maximum(found.largest * np.finfo(np.float32).eps, 1e-30)
            mean = np.where(constant, 0, found.mean)
            inverse = np.divide(1, found.std, out=np.zeros_like(found.std), where=~constant)
        return cls(tuple(names), scaling, mean.astype(np.float32), inverse.astype(np.float32), missing, indicators)

    @property
    def n_outputs(self) -> int:
        """F + M, the number of columns with the indicators."""
        return len(self.names) + len(self.indicators)

    @cached_property
    def indicator_places(self) -> IntArray:
        """(M,) the number of the column that each indicator is of."""
        places = {name: place for place, name in enumerate(self.names)}
        return np.array([places[name] for name in self.indicators], dtype=np.int64)

    @cached_property
    def imputed(self) -> FloatArray:
        """(F,) what takes the place of a missing value, after scaling: the mean."""
        return self.mean if self.scaling == "none" else np.zeros_like(self.mean)

    def apply(self, values: FloatArray, locate: Locate) -> FloatArray:
        """Return the scaled values and the indicators (rows, F + M)."""
        n_columns = len(self.names)
        applied = np.empty((len(values), self.n_outputs), np.float32)
        for start, block, is_missing in _blocks(values, self.names, locate, self.missing):
            rows = slice(start, start + len(block))
            scaled = self._scaled(block)
            applied[rows, :n_columns] = scaled if is_missing is None else np.where(is_missing, self.imputed, scaled)
            if self.indicators:
                applied[rows, n_columns:] = 0 if is_missing is None else is_missing[:, self.indicator_places]
        return applied

    def check(self, values: FloatArray, locate: Locate) -> None:
        """Raise a DataError if a value is infinite, or missing where that is refused."""
        for _ in _blocks(values, self.names, locate, self.missing):
            pass

    def _scaled(self, block: FloatArray) -> FloatArray:
        if self.scaling == "none":
            return block
        scaled = _signed_log(block) if self.scaling == "signed-log" else block.copy()
        with np.errstate(over="ignore"):  # a difference beyond float32 is clipped with the rest
            scaled -= self.mean
            scaled *= self.inverse_std
        return np.clip(scaled, -self.clip, self.clip, out=scaled)


@dataclass(frozen=True)
class Vocabulary:
    """The values of a categorical column that have a code of their own; all others are out of vocabulary, code 0.

    >>> vocabulary = Vocabulary.fit(as_strings(["b", "a", "b", None, "a", "b", "c"]), min_count=2)
    >>> vocabulary.values, vocabulary.encode(as_strings(["a", "b", "c", "new", None])).tolist()
    (('b', 'a'), [2, 1, 0, 0, 0])

    Values are compared in the spelling of `seq2slate.data.columns.spell_category`.
    """

    values: tuple[str, ...]
    """By code, from 1."""

    @classmethod
    def fit(cls, column: Strings, min_count: int) -> Vocabulary:
        """Keep the values with at least `min_count` occurrences, by frequency and then alphabetically."""
        counts = pa.Table.from_struct_array(pc.value_counts(spell_categories(column.drop_null())))
        counts = counts.filter(pc.greater_equal(counts["counts"], min_count))
        ordered = counts.sort_by([("counts", "descending"), ("values", "ascending")])
        return cls(tuple(ordered["values"].to_pylist()))

    @cached_property
    def _codes(self) -> dict[str, int]:
        codes: dict[str, int] = {}
        for code, value in enumerate(self.values, start=1):
            codes.setdefault(spell_category(value), code)
        return codes

    @property
    def n_codes(self) -> int:
        """The number of codes, with code 0."""
        return len(self.values) + 1

    def encode(self, column: Strings) -> Codes:
        """Return the code of every entry; each distinct value is looked up once."""
        encoded = column.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        of_distinct = np.array([*(self._codes.get(spell_category(value), 0) for value in distinct), 0], dtype=np.int32)
        codes: Codes = of_distinct[encoded.indices.fill_null(len(distinct)).to_numpy()]
        return codes


@dataclass(frozen=True, eq=False)
class FeatureTransform:
    """The fitted scales and vocabularies of all columns; see the module for the formulas.

    >>> import numpy as np
    >>> lists = ItemLists(np.array([[1.0], [3.0], [8.0]]), [0, 1, 3], categorical={"city": ["Rome", "Oslo", "Rome"]})
    >>> encoded = FeatureTransform.fit(lists).apply(lists)
    >>> encoded.categorical["city"].tolist(), bool(abs(encoded.dense.mean()) < 1e-6)
    ([1, 0, 1], True)
    """

    dense: NumberColumns
    """Numeric columns of the items."""
    categorical: Mapping[str, Vocabulary]
    """Categorical columns of the items."""
    context: NumberColumns
    """Numeric columns of the lists."""
    context_categorical: Mapping[str, Vocabulary]
    """Categorical columns of the lists."""

    @classmethod
    def fit(
        cls,
        lists: ItemLists,
        *,
        scaling: Scaling = "signed-log",
        categorical: Sequence[str] | None = None,
        context: Sequence[str] | None = None,
        min_count: int = 2,
        missing: Missing = "impute",
    ) -> FeatureTransform:
        """Fit scales and vocabularies on the training lists; all numeric columns of the items are used.

        Args:
            lists: The training lists.
            scaling: Of all numeric columns.
            categorical: The categorical columns of items to use; all but `NOT_CATEGORIES` if not given. `item_id` are
                the ids of the items, also if there is no such column.
            context: The columns of lists to use; all if not given.
            min_count: Values with fewer occurrences are out of vocabulary.
            missing: What happens to missing numbers, here and wherever the transform is applied.

        """
        for what, choice, choices in (("scaling", scaling, get_args(Scaling)), ("missing", missing, get_args(Missing))):
            if choice not in choices:
                raise UsageError(f"there is no {what} {choice!r}; choose one of {', '.join(choices)}")
        if min_count < 1:
            raise UsageError(f"min_count must be at least 1, got {min_count}")
        default = [name for name in lists.categorical if name not in NOT_CATEGORIES]
        named = default if categorical is None else categorical
        ids = {ITEM_ID: lists.item_ids} if ITEM_ID in named else {}
        of_items = _chosen({**ids, **lists.categorical}, named, "categorical")
        of_lists = _chosen(lists.context, list(lists.context) if context is None else context, "context")
        numbers = {name: column for name, column in of_lists.items() if isinstance(column, np.ndarray)}
        texts = {name: column for name, column in of_lists.items() if name not in numbers}
        return cls(
            NumberColumns.fit(lists.features, lists.feature_names, scaling, lists.describe_item, missing=missing),
            {name: Vocabulary.fit(column, min_count) for name, column in of_items.items()},
            NumberColumns.fit(_side_by_side(numbers, len(lists)), list(numbers), scaling, _nth_list, missing=missing),
            {name: Vocabulary.fit(column, min_count) for name, column in texts.items()},
        )

    def apply(self, lists: ItemLists) -> EncodedLists:
        """Return the model's inputs of these lists, after checking that they have the columns of the training lists."""
        categorical = self.with_item_ids(lists.categorical, lists.item_ids)
        return self._encode(self.raw_features(lists), categorical, lists.context, len(lists), lists.describe_item)

    def raw_features(self, lists: ItemLists) -> FloatArray:
        """Return (T, F) the numeric columns of the training, raw and in its order, whatever else the lists have.

        A column that holds nothing but nulls, which a reader takes for text, is missing everywhere.

        Raises:
            DataError: A column of the training is not there.

        """
        names, features = self.dense.names, lists.features
        if lists.feature_names == names:
            return features
        places = {name: place for place, name in enumerate(lists.feature_names)}
        if nulls := [name for name in names if name not in places and _is_null(lists.categorical.get(name))]:
            places |= dict.fromkeys(nulls, lists.n_features)
            features = np.column_stack([features, np.full(lists.n_items, np.nan, np.float32)])
        if absent := [name for name in names if name not in places]:
            raise _absent_features(absent, names, lists)
        return np.take(features, [places[name] for name in names], axis=1)

    def raw_context(self, lists: ItemLists) -> FloatArray:
        """Return (Q, C) the numeric columns of the lists that the training had, raw."""
        return self._context_numbers(lists.context, len(lists))

    def apply_arrays(
        self,
        features: npt.ArrayLike,
        categorical: Mapping[str, Sequence[str | None]] | None = None,
        context: Mapping[str, str | float | None] | None = None,
    ) -> EncodedLists:
        """Return the model's inputs of one list, as a request carries it.

        Args:
            features: (n, F) numeric columns, in the order of the training lists; None or NaN for a missing value.
            categorical: The n values of each categorical column; None for a missing value.
            context: The list's own columns, numeric or categorical; None for a missing value.

        """
        rows = self.as_rows(features)
        if self.reads_numbers_only and not context:  # the fast path
            return EncodedLists(self.dense.apply(rows, "item {}".format), {}, np.empty((1, 0), np.float32), {})
        texts = {name: _as_texts(name, values, len(rows)) for name, values in (categorical or {}).items()}
        of_list = {name: _as_context(name, value) for name, value in (context or {}).items()}
        return self._encode(rows, texts, of_list, 1, "item {}".format)

    @cached_property
    def reads_numbers_only(self) -> bool:
        """Whether the numeric columns of the items are the only inputs."""
        return not (self.categorical or self.context.names or self.context_categorical)

    def with_item_ids(self, categorical: Mapping[str, Column], ids: Column) -> Mapping[str, Column]:
        """Return categorical columns with the ids as `item_id`, if the model reads this column and it is not there."""
        return (
            {**categorical, ITEM_ID: ids} if ITEM_ID in self.categorical and ITEM_ID not in categorical else categorical
        )

    def as_rows(self, features: npt.ArrayLike) -> FloatArray:
        """Return the features (n, F) of one list as float32, not yet scaled."""
        names = self.dense.names
        try:
            with np.errstate(over="ignore"):
                rows = np.asarray(features, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(f"features must be rows of numbers, all of the same length: {error}") from error
        if rows.shape == (0,):  # no items, hence no number of columns
            rows = rows.reshape(0, len(names))
        if rows.ndim != 2 or rows.shape[1] != len(names):
            raise DataError(f"features have shape {rows.shape} instead of (items, {len(names)}): give {_named(names)}")
        return rows

    def check_columns(self, features: FloatArray, categorical: Collection[str], context: Mapping[str, object]) -> None:
        """Raise a DataError if one list lacks a column that the model reads, or has a number that it refuses."""
        self.dense.check(features, "item {}".format)
        _chosen(self.with_item_ids(dict.fromkeys(categorical), None), self.categorical, "categorical")
        of_list = {name: _as_context(name, value) for name, value in context.items()}
        _chosen(of_list, self.context_categorical, "context")
        self.context.check(self._context_numbers(of_list, 1), _nth_list)

    def codes(self, lists: ItemLists) -> dict[str, Codes]:
        """Return the codes of each categorical column: those of items (T,), then "context <name>" of lists (Q,)."""
        self._check_context(lists.context)
        of_items = self.with_item_ids(lists.categorical, lists.item_ids)
        return _codes(self.categorical, of_items, "categorical") | {
            f"context {name}": codes
            for name, codes in _codes(self.context_categorical, lists.context, "context").items()
        }

    def out_of_vocabulary_share(self, lists: ItemLists) -> dict[str, float]:
        """Return the share of code 0 by column of `codes`: unseen in training, rare there, or missing; 0 if empty."""
        return {name: float((codes == 0).mean()) if len(codes) else 0.0 for name, codes in self.codes(lists).items()}

    def unseen_columns(self, lists: ItemLists) -> list[str]:
        """Return the categorical columns without a single value that has a code: probably spelled in another way.

        The names are those of `out_of_vocabulary_share`. The first `SAMPLE` values that are there are looked up, if
        they are at least `FEWEST_VALUES`. A column that had no code in training, or is not there, is left out.
        """
        of_items = self.with_item_ids(lists.categorical, lists.item_ids)
        found = {name: (words, of_items.get(name)) for name, words in self.categorical.items()}
        found |= {
            f"context {name}": (words, lists.context.get(name)) for name, words in self.context_categorical.items()
        }
        return [
            name
            for name, (vocabulary, column) in found.items()
            if vocabulary.values
            and isinstance(column, pa.Array)
            and len(present := column.drop_null()[:SAMPLE]) >= FEWEST_VALUES
            and not vocabulary.encode(present).any()
        ]

    def _encode(
        self,
        features: FloatArray,
        categorical: Mapping[str, Any],
        context: Mapping[str, Any],
        n_lists: int,
        locate_item: Locate,
    ) -> EncodedLists:
        numbers = self._context_numbers(context, n_lists)
        return EncodedLists(
            self.dense.apply(features, locate_item),
            _codes(self.categorical, categorical, "categorical"),
            self.context.apply(numbers, _nth_list),
            _codes(self.context_categorical, context, "context"),
        )

    def _context_numbers(self, context: Mapping[str, Any], n_lists: int) -> FloatArray:
        """Return (Q, C) the numeric columns of lists, raw, after checking the types of all columns."""
        self._check_context(context)
        return _side_by_side(_chosen(context, self.context.names, "context"), n_lists)

    def _check_context(self, context: Mapping[str, Any]) -> None:
        for name, column in context.items():
            is_number = isinstance(column, np.ndarray)
            if name in self.context.names and not (is_number or _is_null(column)):
                raise DataError(f"context column {name!r} was a number in training and is text: give a number")
            if name in self.context_categorical and is_number:
                raise DataError(f"context column {name!r} was text in training and is a number: give text")

    # Saved form

    def to_json(self) -> str:
        """Return the transform as JSON; `from_json` restores it to the last bit."""
        content = {
            "version": TRANSFORM_FORMAT,
            "dense": _number_columns_to_json(self.dense),
            "categorical": {name: list(vocabulary.values) for name, vocabulary in self.categorical.items()},
            "context": _number_columns_to_json(self.context),
            "context_categorical": {name: list(words.values) for name, words in self.context_categorical.items()},
        }
        return json.dumps(content, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, *, source: str = "the saved features") -> FeatureTransform:
        """Restore what `to_json` wrote; `source` names it in error messages."""
        try:
            content = json.loads(text)
            version = content["version"]
            if version > TRANSFORM_FORMAT:
                raise DataError(
                    f"{source}: version {version}, but this seq2slate reads up to {TRANSFORM_FORMAT}: update seq2slate"
                )
            return cls(
                _number_columns_from_json(content["dense"], version),
                {name: Vocabulary(tuple(values)) for name, values in content["categorical"].items()},
                _number_columns_from_json(content["context"], version),
                {name: Vocabulary(tuple(values)) for name, values in content["context_categorical"].items()},
            )
        except DataError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise DataError(f"{source}: damaged, or not a saved transform of features ({error!r})") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON to a file, atomically."""
        with atomic_path(path) as partial:
            partial.write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FeatureTransform:
        """Restore what `save` wrote."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
        return cls.from_json(text, source=str(path))


def _signed_log(values: FloatArray) -> FloatArray:
    """Return sign(x) · log(1 + |x|), within 3e-7; NumPy's log1p is not vectorised and takes three times as long."""
    sizes = np.abs(values)
    sums = 1 + sizes
    lost = sizes - (sums - 1)  # in the sum, to rounding
    logs: FloatArray = np.log(sums) + lost / sums
    return np.copysign(logs, values, out=logs)


class _Moments(NamedTuple):
    """Of the values of each column that are there, (F,) each."""

    n_values: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]
    largest: npt.NDArray[np.float64]
    """The largest absolute value."""


def _moments(blocks: Iterator[tuple[int, FloatArray, BoolArray | None]], n_columns: int, scaling: Scaling) -> _Moments:
    """Return the moments of y; all are 0 for a column without a value.

    Blocks are merged by their means and squared deviations (Chan, Golub and LeVeque), which avoids the cancellation of
    a sum of squares.
    """
    n_values, mean, squares, largest = np.zeros((4, n_columns))
    for _, raw, is_missing in blocks:
        block = (_signed_log(raw) if scaling == "signed-log" else raw).astype(np.float64)
        added = np.full(n_columns, float(len(block)))
        if is_missing is not None:
            block[is_missing] = 0
            added -= is_missing.sum(axis=0)
        largest = np.maximum(largest, np.abs(block).max(axis=0))
        block_mean = block.sum(axis=0) / np.maximum(added, 1)
        delta, weight = block_mean - mean, added / np.maximum(n_values + added, 1)
        block -= block_mean
        if is_missing is not None:
            block[is_missing] = 0
        squares += np.square(block, out=block).sum(axis=0) + delta**2 * (n_values * weight)
        mean += delta * weight
        n_values += added
    return _Moments(n_values, mean, np.sqrt(squares / np.maximum(n_values, 1)), largest)


def _blocks(
    values: FloatArray, names: Sequence[str], locate: Locate, missing: Missing
) -> Iterator[tuple[int, FloatArray, BoolArray | None]]:
    """Yield the number of the first row, some rows, and where they are missing, which is None for nowhere.

    Raises:
        DataError: A value is infinite, or missing where that is refused.

    """
    n_rows = max(1, _BLOCK_CELLS // max(1, len(names)))
    for start in range(0, len(values), n_rows):
        block = values[start : start + n_rows]
        if np.isfinite(block).all():
            yield start, block, None
            continue
        is_missing = np.isnan(block)
        refused = ~np.isfinite(block) if missing == "refuse" else np.isinf(block)
        if refused.any():
            row, column = np.argwhere(refused)[0]
            cure = "every number must be finite"
            if is_missing[row, column]:
                cure = "missing values are refused: fill it, or train with missing='impute'"
            raise DataError(f"{locate(start + int(row))}: {names[column]!r} is {block[row, column]:g}; {cure}")
        yield start, block, is_missing


def _nth_list(number: int) -> str:
    return f"the context of list number {number}"


def _chosen(columns: Mapping[str, Any], names: Iterable[str], what: str) -> dict[str, Any]:
    """Return the named columns; a missing one is a DataError."""
    chosen = {}
    for name in names:
        if name not in columns:
            present = f"there are {_named(list(columns))}" if columns else "there are none"
            raise DataError(f"{what} column {name!r} is missing: add it, or fit without it; {present}")
        chosen[name] = columns[name]
    return chosen


def _absent_features(absent: Sequence[str], expected: Sequence[str], lists: ItemLists) -> DataError:
    """Return the error for lists that lack feature columns of the training, or have text in their place."""
    present = lists.feature_names
    if texts := [name for name in absent if name in lists.categorical]:
        verb = "is" if len(texts) == 1 else "are"
        cure = "convert it, for instance with pandas.to_numeric"
        return DataError(f"{_named(texts)} {verb} text, and the training had numbers: {cure}")
    cure = "add them, or train without them"
    if all(tuple(names) == default_feature_names(len(names)) for names in (expected, present)):
        cure = (
            f"there are {len(present)} where the training had {len(expected)}. LETOR text may leave out the last ones "
            f"where they are 0: then add {len(expected)}:0 to its first line, or read_letor(n_features={len(expected)})"
        )
    elif present:
        cure += f"; there are {_named(present)}"
    return DataError(f"these feature columns of the training are missing: {_named(absent)}; {cure}")


def _codes(vocabularies: Mapping[str, Vocabulary], columns: Mapping[str, Any], what: str) -> dict[str, Codes]:
    chosen = _chosen(columns, vocabularies, what)
    return {name: vocabularies[name].encode(column) for name, column in chosen.items()}


def _named(names: Sequence[str]) -> str:
    """Name the first five columns."""
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _side_by_side(columns: Mapping[str, npt.NDArray[Any]], n_rows: int) -> FloatArray:
    table = np.empty((n_rows, len(columns)), dtype=np.float32)
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, which is refused by name
        for number, column in enumerate(columns.values()):
            table[:, number] = column if isinstance(column, np.ndarray) else np.nan
    return table


def _is_null(column: Any) -> bool:
    """Say whether a column is text, and nothing but nulls."""
    return isinstance(column, pa.Array) and column.null_count == len(column)


def _as_texts(name: str, values: Sequence[str | None], n_items: int) -> Strings:
    try:
        texts = as_strings(values)
    except DataError as error:
        raise DataError(f"categorical column {name!r}: {error}") from error
    if len(texts) != n_items:
        raise DataError(f"categorical column {name!r} has {len(texts)} values for {n_items} items")
    return texts


def _as_context(name: str, value: object) -> Any:
    if value is None or isinstance(value, str):
        return as_strings([value])
    if isinstance(value, Real):
        return np.array([value], dtype=np.float64)
    raise DataError(f"context column {name!r} must be text or a number, got {value!r}")


def _number_columns_to_json(columns: NumberColumns) -> dict[str, Any]:
    return {
        "scaling": columns.scaling,
        "clip": columns.clip,
        "names": list(columns.names),
        "mean": columns.mean.tolist(),
        "inverse_std": columns.inverse_std.tolist(),
        "missing": columns.missing,
        "indicators": list(columns.indicators),
    }


def _number_columns_from_json(content: Mapping[str, Any], version: int) -> NumberColumns:
    if version == 1:
        content = {**content, "missing": "refuse", "indicators": []}
    names, indicators = tuple(content["names"]), tuple(content["indicators"])
    mean, inverse_std = (np.array(content[key], dtype=np.float32) for key in ("mean", "inverse_std"))
    if content["scaling"] not in get_args(Scaling) or not mean.shape == inverse_std.shape == (len(names),):
        raise ValueError(f"{len(names)} names, {len(mean)} means, scaling {content['scaling']!r}")
    if content["missing"] not in get_args(Missing) or not set(indicators) <= set(names):
        raise ValueError(f"missing {content['missing']!r}, indicators {indicators}")
    clip = float(content["clip"])
    return NumberColumns(names, content["scaling"], mean, inverse_std, content["missing"], indicators, clip)
