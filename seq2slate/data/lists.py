"""Lists of items in base order, of any length, and the padded batches that are made from them.

Shapes, everywhere in this package: Q lists and T items in all, B lists in a batch, N items in its longest list,
K slots of a slate, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seq2slate.errors import DataError, UsageError

if TYPE_CHECKING:
    from seq2slate.data.impressions import Impressions
    from seq2slate.data.roles import ColumnRoles

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Strings: TypeAlias = "pa.LargeStringArray"
"""A column of text: compact, and any entry may be missing (null)."""
StringsLike: TypeAlias = "Sequence[str | None] | npt.NDArray[Any] | Strings"

ITEM_ID = "item_id"
"""A categorical column of this name holds the ids of the items; a model that reads it makes it from them."""

PER_ITEM = {"axis": "item"}
PER_LIST = {"axis": "list"}
"""Metadata of a dataclass field that holds a column, or a mapping of columns, with one value an item or a list."""


class Split(NamedTuple):
    """Train, validation and test lists."""

    train: ItemLists
    valid: ItemLists
    test: ItemLists


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ItemLists:
    """Lists of candidates, of any length, in base order: position 0 is what the base ranker put first.

    The items of all lists are concatenated; list q has the rows from `offsets[q]` to `offsets[q + 1]`. A list may be
    empty. Labels are clicks (0 and 1) or grades; an item is positive if its label is above 0.

    >>> import numpy as np
    >>> lists = ItemLists(features=np.eye(5), offsets=[0, 2, 5], labels=[0, 1, 0, 0, 1])
    >>> len(lists), lists.n_items, lists.lengths.tolist()
    (2, 5, [2, 3])
    >>> lists
    <ItemLists: 2 lists, 5 items, 5 features, labels>
    >>> lists[1].item_ids.to_pylist()
    ['0', '1', '2']
    """

    features: FloatArray = field(metadata=PER_ITEM)
    """(T, F) dense columns, raw, NaN where a value is missing: normalisation belongs to the model."""
    offsets: IntArray
    """(Q + 1,) where each list begins; the last entry is T."""
    labels: FloatArray | None = field(metadata=PER_ITEM)
    """(T,) clicks or grades; None if there are none."""
    list_ids: Strings = field(metadata=PER_LIST)
    """(Q,) ids of the lists; their numbers if none are given."""
    item_ids: Strings = field(metadata=PER_ITEM)
    """(T,) ids of the items, unique within a list; their base positions if none are given."""
    feature_names: tuple[str, ...]
    """(F,) names of the dense columns; `f1`, `f2`, … if none are given."""
    categorical: Mapping[str, Strings] = field(metadata=PER_ITEM)
    """Text columns, one value an item."""
    context: Mapping[str, Any] = field(metadata=PER_LIST)
    """Columns with one value a list: text (Strings) or numbers (float64, NaN where missing)."""
    impressions: Impressions | None
    """What was shown in which slot, with which propensity, to whom, and what was clicked when; None if unknown."""
    relevance: FloatArray | None = field(metadata=PER_ITEM)
    """(T,) grades behind simulated clicks: known to the click model, never a feature."""
    relevance_probability: FloatArray | None = field(metadata=PER_ITEM)
    """(T,) true probability that an item is relevant: known for generated lists only, never a feature."""
    roles: ColumnRoles | None
    """What each column of the table was taken for; None if the lists were not read from a table."""

    def __init__(
        self,
        features: npt.ArrayLike,
        offsets: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
        list_ids: StringsLike | None = None,
        item_ids: StringsLike | None = None,
        feature_names: Sequence[str] = (),
        categorical: Mapping[str, StringsLike] | None = None,
        context: Mapping[str, Any] | None = None,
        impressions: Impressions | None = None,
        relevance: npt.ArrayLike | None = None,
        relevance_probability: npt.ArrayLike | None = None,
        roles: ColumnRoles | None = None,
    ) -> None:
        """Convert anything array-like; float32 features and large Arrow strings are not copied."""
        set_field = partial(object.__setattr__, self)  # the dataclass is frozen
        set_field("features", np.ascontiguousarray(features, dtype=np.float32))
        if self.features.ndim != 2:
            raise DataError(f"features must be (items, columns), got shape {self.features.shape}")
        set_field("offsets", _checked_offsets(offsets, self.n_items))
        set_field("labels", _as_floats(labels))
        set_field("list_ids", as_strings(numbers_as_strings(np.arange(len(self))) if list_ids is None else list_ids))
        set_field("item_ids", as_strings(numbers_as_strings(self.positions) if item_ids is None else item_ids))
        set_field("feature_names", tuple(feature_names) or default_feature_names(self.n_features))
        set_field("categorical", {name: as_strings(values) for name, values in (categorical or {}).items()})
        set_field("context", {name: _as_context(values) for name, values in (context or {}).items()})
        set_field("impressions", impressions)
        set_field("relevance", _as_floats(relevance))
        set_field("relevance_probability", _as_floats(relevance_probability))
        set_field("roles", roles)
        self._check_shapes()

    def _check_shapes(self) -> None:
        if len(self.feature_names) != self.n_features:
            raise DataError(f"{len(self.feature_names)} feature names for {self.n_features} feature columns")
        for axis, length in (("item", self.n_items), ("list", len(self))):
            for name, values in _columns(self, axis):
                if len(values) != length:
                    raise DataError(f"{name} has {len(values)} values for {length} {axis}s")

    def __repr__(self) -> str:
        counts = {
            "lists": len(self),
            "items": self.n_items,
            "features": self.n_features,
            "categorical columns": len(self.categorical),
            "context columns": len(self.context),
        }
        shown = [f"{count:,} {name}" for name, count in counts.items() if count or name in ("lists", "items")]
        shown += [name for name in ("labels", "relevance", "impressions") if getattr(self, name) is not None]
        return f"<ItemLists: {', '.join(shown)}>"

    # Sizes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_items(self) -> int:
        """T, the number of items of all lists together."""
        return len(self.features)

    @property
    def n_features(self) -> int:
        """F, the number of dense columns."""
        return int(self.features.shape[1])

    @property
    def lengths(self) -> IntArray:
        """(Q,) the number of items of each list."""
        return np.diff(self.offsets)

    @property
    def list_index(self) -> IntArray:
        """(T,) which list each item belongs to."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def positions(self) -> IntArray:
        """(T,) the base position of each item, from 0."""
        return np.arange(self.n_items) - np.repeat(self.offsets[:-1], self.lengths)

    @property
    def nbytes(self) -> int:
        """Size of all columns in bytes."""
        columns = [*_columns(self, "item"), *_columns(self, "list")]
        return int(self.offsets.nbytes + sum(values.nbytes for _, values in columns))

    # Ids as they came in

    def original_list_ids(self) -> Any:
        """Return the ids of the lists (Q,) in the Arrow type that they were read in, such as int64."""
        return _restored(self.list_ids, None if self.roles is None else self.roles.list_id_type)

    def original_item_ids(self) -> Any:
        """Return the ids of the items (T,) in the Arrow type that they were read in, such as int64."""
        return _restored(self.item_ids, None if self.roles is None else self.roles.item_id_type)

    # Choosing lists

    def __getitem__(self, which: int | slice | Sequence[int] | IntArray | BoolArray) -> ItemLists:
        """Return the chosen lists: a number (negative counts from the end), a slice, numbers, or a mask."""
        if isinstance(which, slice) and which.step in (None, 1):
            start, stop, _ = which.indices(len(self))
            return self._slice(start, max(start, stop))
        index = np.arange(len(self))[which]  # NumPy's rules and NumPy's IndexError
        return self._take(np.atleast_1d(index))

    def __iter__(self) -> Iterator[ItemLists]:
        """Yield each list by itself."""
        return (self._slice(q, q + 1) for q in range(len(self)))

    def _slice(self, start: int, stop: int) -> ItemLists:
        """Neighbouring lists, without a copy."""
        first, last = self.offsets[start], self.offsets[stop]
        return self._map(
            lambda items: items[first:last],
            lambda lists: lists[start:stop],
            offsets=self.offsets[start : stop + 1] - first,
        )

    def _take(self, index: IntArray) -> ItemLists:
        lengths = self.lengths[index]
        offsets = offsets_from_lengths(lengths)
        rows = np.repeat(self.offsets[index] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return self._map(lambda items: _take(items, rows), lambda lists: _take(lists, index), offsets=offsets)

    def take_items(self, rows: IntArray, offsets: IntArray) -> ItemLists:
        """Return lists made of the given rows, cut at `offsets`: row r of list q must come from list q."""
        return self._map(lambda items: _take(items, rows), lambda lists: lists, offsets=offsets)

    def _map(self, of_items: Callable[[Any], Any], of_lists: Callable[[Any], Any], *, offsets: IntArray) -> ItemLists:
        """Return lists with a function applied to every per-item array, and another to every per-list array."""
        return replace(self, offsets=offsets, **_mapped(self, {"item": of_items, "list": of_lists}))

    @staticmethod
    def concat(parts: Sequence[ItemLists]) -> ItemLists:
        """Return the lists of all parts, one after the other; every part must have the same columns.

        >>> import numpy as np
        >>> a, b = (ItemLists(np.ones((n, 3)), [0, n]) for n in (2, 4))
        >>> ItemLists.concat([a, b]).lengths.tolist()
        [2, 4]
        """
        if not parts:
            raise UsageError("concat needs at least one part")
        first = parts[0]
        for number, part in enumerate(parts[1:], start=1):
            if difference := _column_difference(first, part):
                raise DataError(f"part {number} does not have the columns of part 0: {difference}")
        offsets = offsets_from_lengths(np.concatenate([part.lengths for part in parts]))
        roles = first.roles
        for part in parts[1:]:
            roles = roles and roles.merged(part.roles)
        return replace(first, offsets=offsets, roles=roles, **_joined(parts))

    def split(self, *fractions: float, seed: int = 0, in_order: bool = False) -> tuple[ItemLists, ...]:
        """Return a random part of the lists per fraction, and the rest as the last part.

        With `in_order` the first lists are the first part and the last ones the last, as in a log that is sorted by
        time, and `seed` is not used.

        >>> import numpy as np
        >>> lists = ItemLists(np.ones((10, 1)), np.arange(11))
        >>> [len(part) for part in lists.split(0.6, 0.2, seed=0)]
        [6, 2, 2]
        """
        if any(fraction < 0 for fraction in fractions) or sum(fractions) > 1 + 1e-9:
            raise UsageError(f"fractions must not be negative and must add up to at most 1, got {fractions}")
        order = np.arange(len(self)) if in_order else np.random.default_rng(seed).permutation(len(self))
        cuts = np.round(np.cumsum(fractions) * len(self)).astype(int)
        return tuple(self[np.sort(part)] for part in np.split(order, cuts))

    # Changing the order or the number of items

    def reorder(self, scores: npt.ArrayLike) -> ItemLists:
        """Return each list sorted by descending score (T,), which becomes the base order; the sort is stable.

        Impressions stay: an item keeps the slot in which it was shown.

        >>> import numpy as np
        >>> lists = ItemLists(np.zeros((3, 1)), [0, 3], item_ids=["a", "b", "c"])
        >>> lists.reorder([0.1, 0.9, 0.5]).item_ids.to_pylist()
        ['b', 'c', 'a']
        """
        keys = np.asarray(scores, dtype=np.float64)
        if keys.shape != (self.n_items,):
            raise DataError(f"reorder needs one score an item ({self.n_items}), got shape {keys.shape}")
        if np.isnan(keys).any():
            raise DataError(f"the score of {self.describe_item(int(np.isnan(keys).argmax()))} is NaN")
        return self.take_items(np.lexsort((-keys, self.list_index)), self.offsets)

    def shuffle_items(self, *, seed: int, copies: int = 1) -> ItemLists:
        """Return every list `copies` times, each in a random order of its own; copy c of list "7" gets the id "7~c".

        A single copy keeps the ids.
        """
        rng = np.random.default_rng(seed)
        shuffled = [self.reorder(rng.random(self.n_items)) for _ in range(copies)]
        if copies == 1:
            return shuffled[0]
        names = [[f"{name}~{copy}" for name in self.list_ids.to_pylist()] for copy in range(copies)]
        return ItemLists.concat([replace(part, list_ids=ids) for part, ids in zip(shuffled, names, strict=True)])

    def sample_items(self, max_items: int, *, seed: int, keep_positives: bool = True) -> ItemLists:
        """Return lists of at most `max_items` items, sampled at random and still in base order.

        With `keep_positives`, positive items are sampled first, so that a long list keeps its clicks.
        """
        if max_items < 1:
            raise UsageError(f"max_items must be at least 1, got {max_items}")
        priority = np.random.default_rng(seed).random(self.n_items)
        if keep_positives and self.labels is not None:
            priority += self.labels > 0
        by_priority = np.lexsort((-priority, self.list_index))
        kept = np.sort(by_priority[self.positions < max_items])
        return self.take_items(kept, offsets_from_lengths(np.minimum(self.lengths, max_items)))

    def truncate(self, max_items: int) -> ItemLists:
        """Return the first `max_items` items of each list."""
        if max_items < 0:
            raise UsageError(f"max_items must not be negative, got {max_items}")
        kept = np.flatnonzero(self.positions < max_items)
        return self.take_items(kept, offsets_from_lengths(np.minimum(self.lengths, max_items)))

    # Batches

    def batches(self, batch_size: int, *, seed: int | None = None) -> Iterator[Batch]:
        """Yield every list once, in batches of lists of similar length, so that little is padding.

        Without a seed, lists are sorted by length. With one, they are shuffled, sorted by length within pools of 64
        batches, and the batches are shuffled. A batch of very long lists has fewer of them (`MAX_PAIRS`).
        """
        for index in batch_indices(self.lengths, batch_size, seed=seed):
            yield self.batch(index)

    def batch(self, index: Sequence[int] | IntArray | None = None) -> Batch:
        """Return the lists with these numbers, by default all, as one padded batch."""
        numbers = np.arange(len(self)) if index is None else np.asarray(index, dtype=np.int64)
        return Batch(lists=self if index is None else self._take(numbers), index=numbers)

    # Checking values

    def checked(
        self, locate: Callable[[int], str] | None = None, locate_list: Callable[[int], str] | None = None
    ) -> ItemLists:
        """Return these lists after checking every value.

        Args:
            locate: Names the place of an item (T,) in error messages, such as a file and row.
            locate_list: The same for a list (Q,).

        Raises:
            DataError: For an infinite number, a NaN that is neither a feature nor context, where it stands for a
                missing value, a negative label, a probability outside [0, 1], a missing id, an item id that occurs
                twice in one list, and what `Impressions.check` refuses.
        """
        where, where_list = locate or self.describe_item, locate_list or self._describe_list
        self._check_finite(where, where_list)
        if self.labels is not None and (self.labels < 0).any():
            row = int((self.labels < 0).argmax())
            raise DataError(f"{where(row)}: label {self.labels[row]:g} is negative; clicks are 0 or 1, grades 0 and up")
        probability = self.relevance_probability
        if probability is not None and not (within := (probability >= 0) & (probability <= 1)).all():  # refuses NaN too
            row = int((~within).argmax())
            raise DataError(f"{where(row)}: relevance_probability {probability[row]:g} is not between 0 and 1")
        if self.impressions is not None:
            self.impressions.check(self.list_index, where, where_list)
        if self.list_ids.null_count:
            raise DataError(f"list {self.list_ids.is_null().to_numpy(False).argmax()} has no list_id")
        if self.item_ids.null_count:
            raise DataError(f"{where(int(self.item_ids.is_null().to_numpy(False).argmax()))}: the item has no item_id")
        duplicate = self._first_duplicate()
        if duplicate is not None:
            item, name = self.item_ids[duplicate].as_py(), self.list_ids[int(self.list_index[duplicate])].as_py()
            raise DataError(f"{where(duplicate)}: item {item!r} occurs twice in list {name!r}")
        return self

    def describe_item(self, row: int) -> str:
        """Name an item by its list and base position, for error messages."""
        q = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return f"{self._describe_list(q)}, item {row - int(self.offsets[q])}"

    def _describe_list(self, q: int) -> str:
        return f"list {self.list_ids[q].as_py()!r}"

    def _check_finite(self, where: Callable[[int], str], where_list: Callable[[int], str]) -> None:
        for start in range(0, self.n_items, 65536):  # in blocks: the mask of a large matrix is large too
            infinite = np.isinf(self.features[start : start + 65536])
            if infinite.any():
                row, column = np.argwhere(infinite)[0]
                value, name = self.features[start + row, column], self.feature_names[column]
                raise DataError(
                    f"{where(start + int(row))}: feature {name!r} is {value:g}; every feature must be finite or missing"
                )
        for field_name in ("labels", "relevance"):
            values = getattr(self, field_name)
            if values is not None and not np.isfinite(values).all():
                row = int((~np.isfinite(values)).argmax())
                raise DataError(f"{where(row)}: {field_name} hold {values[row]:g}; every one must be finite")
        for name, values in self.context.items():
            if isinstance(values, np.ndarray) and np.isinf(values).any():
                q = int(np.isinf(values).argmax())
                raise DataError(
                    f"{where_list(q)}: context column {name!r} is {values[q]:g}; every one must be finite or missing"
                )

    def _first_duplicate(self) -> int | None:
        """Return the row of the first item whose id occurred earlier in its list."""
        codes = self.item_ids.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        keys = self.list_index * (int(codes.max(initial=0)) + 1) + codes
        order = np.argsort(keys, kind="stable")
        repeats = order[1:][keys[order[1:]] == keys[order[:-1]]]
        return int(repeats.min()) if len(repeats) else None


class Padding(NamedTuple):
    """The rows of some lists' items as a matrix, padded to the longest of these lists.

    >>> import numpy as np
    >>> padding = Padding.of(np.array([0, 2, 5]))
    >>> padding.pad(np.array([1, 2, 3, 4, 5])).tolist()
    [[1, 2, 0], [3, 4, 5]]
    """

    rows: IntArray
    """(B, N) the row of each item among the T items; an arbitrary one where the mask is False."""
    mask: BoolArray
    """(B, N) True for a real item, False for padding."""

    @classmethod
    def of(cls, offsets: IntArray, index: IntArray | None = None) -> Padding:
        """Return the padding of some lists.

        Args:
            offsets: (Q + 1,) where each list begins; the last entry is T.
            index: (B,) numbers of the lists, by default all.
        """
        starts, ends = (offsets[:-1], offsets[1:]) if index is None else (offsets[index], offsets[index + 1])
        positions = np.arange(int((ends - starts).max(initial=0)))
        mask = positions < (ends - starts)[:, None]
        return cls(np.where(mask, starts[:, None] + positions, 0), mask)

    def pad(self, values: npt.NDArray[Any], fill: float = 0, *, time_major: bool = False) -> npt.NDArray[Any]:
        """Return values (T, …) of the items as (B, N, …), or (N, B, …) if `time_major`, with `fill` as padding."""
        rows, mask = (self.rows.T, self.mask.T) if time_major else self
        padded = values[rows]
        padded[~mask] = fill
        return padded


@dataclass(frozen=True, eq=False)
class Batch:
    """Some lists, padded to the longest of them on demand; `mask` is True for a real item."""

    lists: ItemLists
    """The lists of this batch, ragged, with all their columns."""
    index: IntArray
    """(B,) their numbers in the lists that the batch was taken from."""

    def __len__(self) -> int:
        return len(self.lists)

    @cached_property
    def padding(self) -> Padding:
        """The rows of the items as a padded matrix."""
        return Padding.of(self.lists.offsets)

    @property
    def mask(self) -> BoolArray:
        """(B, N) True for a real item, False for padding."""
        return self.padding.mask

    @property
    def n_slots(self) -> int:
        """N, the number of items of the longest list."""
        return int(self.mask.shape[1])

    @cached_property
    def features(self) -> FloatArray:
        """(B, N, F) raw dense columns; padding is 0."""
        return self.pad(self.lists.features)

    @cached_property
    def labels(self) -> FloatArray:
        """(B, N) labels; padding is 0. Lists without labels raise a DataError."""
        if self.lists.labels is None:
            raise DataError("these lists have no labels")
        return self.pad(self.lists.labels)

    def pad(self, values: npt.NDArray[Any], fill: float = 0) -> npt.NDArray[Any]:
        """Return per-item values (T, …) of `self.lists` as (B, N, …)."""
        return self.padding.pad(values, fill)


def offsets_from_lengths(lengths: IntArray) -> IntArray:
    """Return the (Q + 1,) offsets of lists of these lengths (Q,)."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def default_feature_names(n: int) -> tuple[str, ...]:
    """Return `f1` … `fn`: LETOR counts its features from 1."""
    return tuple(f"f{number}" for number in range(1, n + 1))


def as_strings(values: Any) -> Strings:
    """Return any sequence of text as a compact column."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if isinstance(values, pa.Array):
        return values if values.type == pa.large_string() else values.cast(pa.large_string())
    if isinstance(values, np.ndarray):
        values = values.tolist()
    try:
        return pa.array(values, type=pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"ids and categories must be text: {error}") from error


def numbers_as_strings(values: IntArray) -> Strings:
    """Return whole numbers as text."""
    return pa.array(values).cast(pa.large_string())


def _restored(ids: Strings, kind: str | None) -> Any:
    """Return ids in another Arrow type; as text if one of them, such as "7~1", has been changed since."""
    if kind is None or kind.endswith("string"):
        return ids
    try:
        return ids.cast(pa.type_for_alias(kind))
    except pa.ArrowInvalid:
        return ids


def _checked_offsets(offsets: npt.ArrayLike, n_items: int) -> IntArray:
    checked = np.ascontiguousarray(offsets, dtype=np.int64)
    if checked.ndim != 1 or not len(checked) or checked[0] != 0 or checked[-1] != n_items:
        raise DataError(f"offsets must run from 0 to the number of items, {n_items}")
    if (np.diff(checked) < 0).any():
        raise DataError("offsets must not fall")
    return checked


def _as_floats(values: npt.ArrayLike | None) -> FloatArray | None:
    return None if values is None else np.ascontiguousarray(values, dtype=np.float32)


def _as_context(values: Any) -> Any:
    """Return numbers as float64 and everything else as text."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return as_strings(values)
    array = np.asarray(values)
    return array.astype(np.float64) if array.dtype.kind in "biuf" else as_strings(values)


def _columns(record: Any, axis: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every column of a dataclass, and of dataclasses in it, along an axis ("item" or "list"), with its name."""
    for entry in fields(record):
        values = getattr(record, entry.name)
        if is_dataclass(values):
            yield from _columns(values, axis, f"{entry.name}.")
        elif values is None or entry.metadata.get("axis") != axis:
            continue
        elif isinstance(values, Mapping):
            yield from values.items()
        else:
            yield prefix + entry.name, values


def _mapped(record: Any, change: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return the fields of a dataclass that hold columns, with the function for their axis applied to every column."""
    changed: dict[str, Any] = {}
    for entry in fields(record):
        values = getattr(record, entry.name)
        if is_dataclass(values):
            changed[entry.name] = replace(values, **_mapped(values, change))  # type: ignore[type-var]
        elif values is not None and "axis" in entry.metadata:
            apply = change[entry.metadata["axis"]]
            is_mapping = isinstance(values, Mapping)
            changed[entry.name] = {k: apply(v) for k, v in values.items()} if is_mapping else apply(values)
    return changed


def _joined(records: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of dataclasses with the same columns, each column joined."""
    joined: dict[str, Any] = {}
    for entry in fields(records[0]):
        columns = [getattr(record, entry.name) for record in records]
        if is_dataclass(first := columns[0]):
            joined[entry.name] = replace(first, **_joined(columns))  # type: ignore[type-var]
        elif first is not None and "axis" in entry.metadata:
            is_mapping = isinstance(first, Mapping)
            joined[entry.name] = (
                {k: _concat([c[k] for c in columns]) for k in first} if is_mapping else _concat(columns)
            )
    return joined


def _take(values: Any, rows: IntArray) -> Any:
    return values.take(pa.array(rows)) if isinstance(values, pa.Array) else values[rows]


def _concat(columns: list[Any]) -> Any:
    return pa.concat_arrays(columns) if isinstance(columns[0], pa.Array) else np.concatenate(columns)


def _column_difference(a: ItemLists, b: ItemLists) -> str:
    """Describe how the columns of two ItemLists differ; empty if they do not."""
    if a.feature_names != b.feature_names:
        if a.n_features != b.n_features:
            return f"{b.n_features} features instead of {a.n_features}"
        wrong = next(pair for pair in zip(a.feature_names, b.feature_names, strict=True) if pair[0] != pair[1])
        return f"feature {wrong[1]!r} where {wrong[0]!r} should be"
    for axis in ("item", "list"):
        names_a, names_b = ({name: type(values) for name, values in _columns(x, axis)} for x in (a, b))
        if names_a != names_b:
            return f"columns {sorted(names_b)} instead of {sorted(names_a)}"
    return ""


# Batches of similar length

MAX_PAIRS = 1 << 24
"""The largest B · N² of a batch: a float32 for each pair of items then takes at most 64 MB."""


def batch_indices(lengths: IntArray, batch_size: int, *, seed: int | None = None) -> list[IntArray]:
    """Return the numbers of the lists in each batch, as `ItemLists.batches` forms them.

    Args:
        lengths: (Q,) the number of items of each list.
        batch_size: The most lists in a batch; long lists make smaller batches, see `MAX_PAIRS`.
        seed: Shuffles the lists, sorts them by length within pools of 64 batches, and shuffles the batches. Without it,
            all lists are sorted by length.

    >>> [batch.tolist() for batch in batch_indices(np.array([5, 1, 4, 1]), batch_size=2)]
    [[1, 3], [2, 0]]

    """
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, got {batch_size}")
    rng = None if seed is None else np.random.default_rng(seed)
    order = np.arange(len(lengths)) if rng is None else rng.permutation(len(lengths))
    pool = max(1, len(order)) if rng is None else 64 * batch_size
    batches = []
    for start in range(0, len(order), pool):
        members = order[start : start + pool]
        members = members[np.argsort(lengths[members], kind="stable")]
        for at in range(0, len(members), batch_size):
            batches += _bounded(members[at : at + batch_size], lengths)
    return batches if rng is None else [batches[number] for number in rng.permutation(len(batches))]


def _bounded(batch: IntArray, lengths: IntArray) -> list[IntArray]:
    """Return the batch in as many parts as `MAX_PAIRS` asks for."""
    longest = max(1, int(lengths[batch].max(initial=0)))
    parts = -(-len(batch) * longest**2 // MAX_PAIRS)
    return np.array_split(batch, min(parts, len(batch)))


def padding_share(lengths: IntArray, batches: Sequence[IntArray]) -> float:
    """Return the share of padding in all batches: 1 − items / Σ B · N.

    >>> padding_share(np.array([1, 3]), [np.array([0, 1])]) == 1 - 4 / 6
    True
    """
    cells = sum(len(index) * int(lengths[index].max(initial=0)) for index in batches)
    return 1 - int(lengths.sum()) / cells if cells else 0.0
