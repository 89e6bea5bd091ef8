"""Raw columns into the numbers that a model reads, the same way in training and in serving.

The paper's data are plain numbers; logs also have text columns, and columns that describe a whole list. A
`FeatureTransform` is fitted on the training lists, saved with the model, and applied to everything the model sees:

- A **number** becomes (y − mean) · 1/std, clipped to ±`CLIP`, where y = sign(x) · log(1 + |x|) by default: columns such
  as WEB30K's have tails so heavy that plain standardising leaves a few items far out and the rest in one spot. Means
  and deviations are over items, in float64; the rest is float32 and plain arithmetic with one logarithm, so that
  another runtime can do the same, but for the last bits. A column that was constant in training is always 0.
- A **text** value becomes a code: the known values count from 1, the most frequent first. Slot 0 is for values that are
  missing, unseen, or occurred fewer than `min_count` times in training, so that what is learned about it is learned
  from rare values and holds for them. A column without a single frequent value stays, with everything in slot 0.

Columns that were not there in training are ignored; one that was there and is missing now is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seq2slate.atomic import atomic_path
from seq2slate.data.lists import FloatArray, ItemLists, Strings, as_strings
from seq2slate.errors import DataError, UsageError

Codes: TypeAlias = npt.NDArray[np.int32]
Scaling: TypeAlias = Literal["signed-log", "standardise", "none"]
"""How numbers are scaled: after a signed logarithm, as they are, or not at all."""
Locate: TypeAlias = Callable[[int], str]
"""Names a row in an error message."""

CLIP = 10.0
"""Scaled numbers end at so many standard deviations: a broken value at serving time moves the model only so far."""
FORMAT = 1
"""The version of the saved form; a file with a higher one comes from a newer seq2slate."""
NOT_CATEGORIES = ("comment",)
"""Text columns that are left out unless they are asked for: the remark at the end of a LETOR line is no category."""

_BLOCK_CELLS = 1 << 20  # numbers worked on at once: temporary arrays stay below 10 MB


@dataclass(frozen=True, eq=False)
class EncodedLists:
    """What a model reads of some lists: Q of them with T items in all."""

    dense: FloatArray
    """(T, F) scaled numbers of the items."""
    categorical: dict[str, Codes]
    """(T,) a code for each item, by text column."""
    context: FloatArray
    """(Q, C) scaled numbers of the lists."""
    context_categorical: dict[str, Codes]
    """(Q,) a code for each list, by text column."""


@dataclass(frozen=True, eq=False)
class NumberColumns:
    """Numeric columns with the scale that was fitted to them."""

    names: tuple[str, ...]
    scaling: Scaling
    mean: FloatArray
    """(F,) of the numbers after their logarithm, if there is one; 0 for a column that was constant."""
    inverse_std: FloatArray
    """(F,) 0 for a column that was constant."""
    clip: float = CLIP

    @classmethod
    def fit(cls, values: FloatArray, names: Sequence[str], scaling: Scaling, locate: Locate) -> NumberColumns:
        """Measure the columns of values (rows, F); without a row every column counts as constant."""
        if scaling == "none":
            return cls(tuple(names), scaling, np.zeros(len(names), np.float32), np.ones(len(names), np.float32))
        mean, std, largest = _moments(_finite_blocks(values, names, locate), len(names), scaling)
        # A spread below the resolution of float32 is rounding, and its inverse might be infinite.
        constant = std <= np.maximum(largest * np.finfo(np.float32).eps, 1e-30)
        inverse = np.divide(1, std, out=np.zeros_like(std), where=~constant)
        return cls(tuple(names), scaling, np.where(constant, 0, mean).astype(np.float32), inverse.astype(np.float32))

    def apply(self, values: FloatArray, locate: Locate) -> FloatArray:
        """Return the scaled values (rows, F)."""
        scaled = np.empty_like(values)
        for start, block in _finite_blocks(values, self.names, locate):
            scaled[start : start + len(block)] = self._scaled(block)
        return scaled

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
    """The values of a text column that have a code of their own.

    >>> vocabulary = Vocabulary.fit(as_strings(["b", "a", "b", None, "a", "b", "c"]), min_count=2)
    >>> vocabulary.values, vocabulary.encode(as_strings(["a", "b", "c", "new", None])).tolist()
    (('b', 'a'), [2, 1, 0, 0, 0])
    """

    values: tuple[str, ...]
    """In the order of their codes, which count from 1."""

    @classmethod
    def fit(cls, column: Strings, min_count: int) -> Vocabulary:
        """Keep what occurs `min_count` times; the most frequent first, and by the alphabet among equals."""
        counts = pa.Table.from_struct_array(pc.value_counts(column.drop_null()))
        counts = counts.filter(pc.greater_equal(counts["counts"], min_count))
        ordered = counts.sort_by([("counts", "descending"), ("values", "ascending")])
        return cls(tuple(ordered["values"].to_pylist()))

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {value: code for code, value in enumerate(self.values, start=1)}

    @property
    def n_codes(self) -> int:
        """How many codes there are, with slot 0."""
        return len(self.values) + 1

    def encode(self, column: Strings) -> Codes:
        """Return the code of every entry; the vocabulary is asked once for each distinct value."""
        encoded = column.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        of_distinct = np.array([*(self._codes.get(value, 0) for value in distinct), 0], dtype=np.int32)
        codes: Codes = of_distinct[encoded.indices.fill_null(len(distinct)).to_numpy()]
        return codes


@dataclass(frozen=True, eq=False)
class FeatureTransform:
    """Everything that was learned about the columns of the training lists.

    >>> import numpy as np
    >>> lists = ItemLists(np.array([[1.0], [3.0], [8.0]]), [0, 1, 3], categorical={"city": ["Rome", "Oslo", "Rome"]})
    >>> encoded = FeatureTransform.fit(lists).apply(lists)
    >>> encoded.categorical["city"].tolist(), bool(abs(encoded.dense.mean()) < 1e-6)
    ([1, 0, 1], True)
    """

    dense: NumberColumns
    """The numbers of the items."""
    categorical: Mapping[str, Vocabulary]
    """The text columns of the items."""
    context: NumberColumns
    """The numbers of the lists."""
    context_categorical: Mapping[str, Vocabulary]
    """The text columns of the lists."""

    @classmethod
    def fit(
        cls,
        lists: ItemLists,
        *,
        scaling: Scaling = "signed-log",
        categorical: Sequence[str] | None = None,
        context: Sequence[str] | None = None,
        min_count: int = 2,
    ) -> FeatureTransform:
        """Learn scales and vocabularies from the training lists.

        All dense columns are used. `categorical` and `context` name the text columns of items and the columns of lists
        to use, if not all of them; `NOT_CATEGORIES` have to be named.
        """
        if scaling not in get_args(Scaling):
            raise UsageError(f"there is no scaling {scaling!r}; choose one of {', '.join(get_args(Scaling))}")
        if min_count < 1:
            raise UsageError(f"min_count must be at least 1, got {min_count}")
        default = [name for name in lists.categorical if name not in NOT_CATEGORIES]
        of_items = _chosen(lists.categorical, default if categorical is None else categorical, "categorical")
        of_lists = _chosen(lists.context, list(lists.context) if context is None else context, "context")
        numbers = {name: column for name, column in of_lists.items() if isinstance(column, np.ndarray)}
        texts = {name: column for name, column in of_lists.items() if name not in numbers}
        return cls(
            NumberColumns.fit(lists.features, lists.feature_names, scaling, lists.describe_item),
            {name: Vocabulary.fit(column, min_count) for name, column in of_items.items()},
            NumberColumns.fit(_side_by_side(numbers, len(lists)), list(numbers), scaling, _nth_list),
            {name: Vocabulary.fit(column, min_count) for name, column in texts.items()},
        )

    def apply(self, lists: ItemLists) -> EncodedLists:
        """Return what the model reads of these lists, after checking that their columns are those of the training."""
        self._check_feature_names(lists.feature_names)
        return self._encode(lists.features, lists.categorical, lists.context, len(lists), lists.describe_item)

    def apply_arrays(
        self,
        features: npt.ArrayLike,
        categorical: Mapping[str, Sequence[str | None]] | None = None,
        context: Mapping[str, str | float | None] | None = None,
    ) -> EncodedLists:
        """Return what the model reads of one list: features (n, F), text columns with n values, and its context."""
        rows = self.as_rows(features)
        if self.reads_numbers_only and not context:  # the usual, and quick
            return EncodedLists(self.dense.apply(rows, "item {}".format), {}, np.empty((1, 0), np.float32), {})
        texts = {name: _as_texts(name, values, len(rows)) for name, values in (categorical or {}).items()}
        of_list = {name: _as_context(name, value) for name, value in (context or {}).items()}
        return self._encode(rows, texts, of_list, 1, "item {}".format)

    @cached_property
    def reads_numbers_only(self) -> bool:
        """Whether dense columns are all that is read of a list."""
        return not (self.categorical or self.context.names or self.context_categorical)

    def as_rows(self, features: npt.ArrayLike) -> FloatArray:
        """Return the features (n, F) of one list as numbers, not yet scaled."""
        names = self.dense.names
        try:
            with np.errstate(over="ignore"):
                rows = np.asarray(features, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(f"features must be rows of numbers, all of the same length: {error}") from error
        if rows.shape == (0,):  # no items, so nothing shows how many columns there would be
            rows = rows.reshape(0, len(names))
        if rows.ndim != 2 or rows.shape[1] != len(names):
            raise DataError(f"features have shape {rows.shape} instead of (items, {len(names)}): give {_named(names)}")
        return rows

    def check_columns(self, categorical: Collection[str], context: Mapping[str, object]) -> None:
        """Refuse a list without the text columns or the context that the model reads, or with words for numbers."""
        _chosen(dict.fromkeys(categorical), self.categorical, "categorical")
        of_list = {name: _as_context(name, value) for name, value in context.items()}
        _chosen(of_list, [*self.context.names, *self.context_categorical], "context")
        self._check_context(of_list)

    def out_of_vocabulary_share(self, lists: ItemLists) -> dict[str, float]:
        """Return, for each text column, the share of values in slot 0: unseen in training, rare there, or missing.

        The columns of items come first, then those of lists, as "context <name>". A column without values counts 0.
        """
        self._check_context(lists.context)
        columns = _codes(self.categorical, lists.categorical, "categorical") | {
            f"context {name}": codes
            for name, codes in _codes(self.context_categorical, lists.context, "context").items()
        }
        return {name: float((codes == 0).mean()) if len(codes) else 0.0 for name, codes in columns.items()}

    def _encode(
        self,
        features: FloatArray,
        categorical: Mapping[str, Any],
        context: Mapping[str, Any],
        n_lists: int,
        locate_item: Locate,
    ) -> EncodedLists:
        self._check_context(context)
        numbers = _side_by_side(_chosen(context, self.context.names, "context"), n_lists)
        return EncodedLists(
            self.dense.apply(features, locate_item),
            _codes(self.categorical, categorical, "categorical"),
            self.context.apply(numbers, _nth_list),
            _codes(self.context_categorical, context, "context"),
        )

    def _check_context(self, context: Mapping[str, Any]) -> None:
        for name, column in context.items():
            is_number = isinstance(column, np.ndarray)
            if name in self.context.names and not is_number:
                raise DataError(
                    f"context column {name!r} was a number in training and is text or missing: give a number"
                )
            if name in self.context_categorical and is_number:
                raise DataError(f"context column {name!r} was text in training and is a number: give text")

    def _check_feature_names(self, names: tuple[str, ...]) -> None:
        expected = self.dense.names
        if names == expected:
            return
        if len(names) != len(expected):
            raise DataError(
                f"the lists have {len(names)} features where the {len(expected)} of the training are needed: "
                f"{_named(expected)}"
            )
        column = next(number for number in range(len(names)) if names[number] != expected[number])
        raise DataError(
            f"feature column {column} is {names[column]!r} where {expected[column]!r} stood in training: give the same "
            "columns in the same order"
        )

    # Saved form

    def to_json(self) -> str:
        """Return everything as JSON; `from_json` gives back a transform that acts the same to the last bit."""
        content = {
            "version": FORMAT,
            "dense": _number_columns_to_json(self.dense),
            "categorical": {name: list(vocabulary.values) for name, vocabulary in self.categorical.items()},
            "context": _number_columns_to_json(self.context),
            "context_categorical": {name: list(words.values) for name, words in self.context_categorical.items()},
        }
        return json.dumps(content, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, *, source: str = "the saved features") -> FeatureTransform:
        """Read what `to_json` wrote; `source` names it in error messages."""
        try:
            content = json.loads(text)
            version = content["version"]
            if version > FORMAT:
                raise DataError(
                    f"{source}: version {version}, but this seq2slate reads up to {FORMAT}: update seq2slate"
                )
            return cls(
                _number_columns_from_json(content["dense"]),
                {name: Vocabulary(tuple(values)) for name, values in content["categorical"].items()},
                _number_columns_from_json(content["context"]),
                {name: Vocabulary(tuple(values)) for name, values in content["context_categorical"].items()},
            )
        except DataError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{source}: damaged, or not a saved transform of features ({error!r})") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON to a file, whole or not at all."""
        with atomic_path(path) as partial:
            partial.write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FeatureTransform:
        """Read what `save` wrote."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
        return cls.from_json(text, source=str(path))


def _signed_log(values: FloatArray) -> FloatArray:
    """Return sign(x) · log(1 + |x|), to within 3e-7 of it; NumPy's log1p is not vectorised and takes thrice as long."""
    sizes = np.abs(values)
    sums = 1 + sizes
    lost = sizes - (sums - 1)  # to rounding, in the sum
    logs: FloatArray = np.log(sums) + lost / sums
    return np.copysign(logs, values, out=logs)


def _moments(
    blocks: Iterator[tuple[int, FloatArray]], n_columns: int, scaling: Scaling
) -> tuple[npt.NDArray[np.float64], ...]:
    """Return the mean, the standard deviation and the largest absolute value (F,) of the numbers to be scaled.

    Blocks are merged by their means and squared deviations (Chan, Golub and LeVeque), which does not cancel where a
    sum of squares would.
    """
    n_rows = 0
    mean, squares, largest = np.zeros((3, n_columns))
    for _, raw in blocks:
        block = (_signed_log(raw) if scaling == "signed-log" else raw).astype(np.float64)
        largest = np.maximum(largest, np.abs(block).max(axis=0))
        block_mean = block.mean(axis=0)
        delta, weight = block_mean - mean, len(block) / (n_rows + len(block))
        block -= block_mean
        squares += np.square(block, out=block).sum(axis=0) + delta**2 * (n_rows * weight)
        mean += delta * weight
        n_rows += len(block)
    return mean, np.sqrt(squares / max(n_rows, 1)), largest


def _finite_blocks(values: FloatArray, names: Sequence[str], locate: Locate) -> Iterator[tuple[int, FloatArray]]:
    """Yield some rows at a time and the number of the first, after a look at every value."""
    n_rows = max(1, _BLOCK_CELLS // max(1, len(names)))
    for start in range(0, len(values), n_rows):
        block = values[start : start + n_rows]
        if not np.isfinite(block).all():
            row, column = np.argwhere(~np.isfinite(block))[0]
            value = block[row, column]
            raise DataError(f"{locate(start + int(row))}: {names[column]!r} is {value:g}; every number must be finite")
        yield start, block


def _nth_list(number: int) -> str:
    return f"the context of list number {number}"


def _chosen(columns: Mapping[str, Any], names: Iterable[str], what: str) -> dict[str, Any]:
    """Return the named columns; a missing one is an error."""
    chosen = {}
    for name in names:
        if name not in columns:
            present = f"there are {_named(list(columns))}" if columns else "there are none"
            raise DataError(f"{what} column {name!r} is missing: add it, or fit without it; {present}")
        chosen[name] = columns[name]
    return chosen


def _codes(vocabularies: Mapping[str, Vocabulary], columns: Mapping[str, Any], what: str) -> dict[str, Codes]:
    chosen = _chosen(columns, vocabularies, what)
    return {name: vocabularies[name].encode(column) for name, column in chosen.items()}


def _named(names: Sequence[str]) -> str:
    """Name columns, but not hundreds of them."""
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _side_by_side(columns: Mapping[str, npt.NDArray[Any]], n_rows: int) -> FloatArray:
    table = np.empty((n_rows, len(columns)), dtype=np.float32)
    with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, and that is refused by name
        for number, column in enumerate(columns.values()):
            table[:, number] = column
    return table


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
    }


def _number_columns_from_json(content: Mapping[str, Any]) -> NumberColumns:
    names = tuple(content["names"])
    mean, inverse_std = (np.array(content[key], dtype=np.float32) for key in ("mean", "inverse_std"))
    if content["scaling"] not in get_args(Scaling) or not mean.shape == inverse_std.shape == (len(names),):
        raise ValueError(f"{len(names)} names, {len(mean)} means, scaling {content['scaling']!r}")
    return NumberColumns(names, content["scaling"], mean, inverse_std, float(content["clip"]))
