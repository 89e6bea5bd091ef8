"""From prepared rows of a table, in either layout, to lists.

Rows are prepared when they have the columns that a `Plan` reads, text as large_string, and the column `KEY`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seq2slate.data.columns import (
    as_categories,
    as_float32,
    as_ids,
    as_numbers,
    flatten_lists,
    is_list,
    time_parts,
)
from seq2slate.data.lists import ITEM_ID, FloatArray, IntArray, ItemLists, Strings, offsets_from_lengths
from seq2slate.data.plan import Kind, Plan
from seq2slate.data.roles import ColumnRoles
from seq2slate.errors import DataError

KEY = "\x00list"
"""The column of prepared rows that tells lists apart: one column of the table, or several joined."""
Name: TypeAlias = Callable[[int], str]
"""Names a row, an item or a list in error messages, given its number from 0."""


class Source(NamedTuple):
    """Where rows come from, for error messages."""

    name: str
    place: Callable[[int], str] = "row {}".format
    """What to call a row, given its number from 0."""

    def at(self, row: int, *details: str) -> str:
        """Name a row: `FILE, row 12 (list 'a', item 3)`."""
        return f"{self.name}, {self.place(row)}" + (f" ({', '.join(details)})" if details else "")

    def after(self, rows: int) -> Source:
        """Return the same source without its first rows."""
        return Source(self.name, lambda row: self.place(rows + row))


class Parts(NamedTuple):
    """Some rows in either layout, taken apart, with the items of each list in base order."""

    list_ids: Strings
    offsets: IntArray
    per_item: dict[str, Any]
    per_list: dict[str, Any]
    name_list: Name
    name_item: Name
    rows: IntArray
    """(T,) the row of each item or, where a row is a list, its entry among those of all rows."""


def split_rows(rows: Any, plan: Plan, source: Source) -> Parts:
    """Take rows apart, in whichever layout they are."""
    return _split_list_rows(rows, plan, source) if plan.rows_are_lists else _split_item_rows(rows, plan, source)


# One row per list


def _split_list_rows(rows: Any, plan: Plan, source: Source) -> Parts:
    list_ids = _list_ids(rows, source)

    def name_row(row: int, *details: str) -> str:
        return source.at(row, f"list {list_ids[row].as_py()!r}", *details)

    for names, wants_list in ((plan.item_columns, True), (plan.list_columns, False)):
        for name in names:
            if is_list(kind := rows.column(name).type) != wants_list:
                needed = "a list with one value per item" if wants_list else "one value"
                raise DataError(f"{source.name}: {name} holds {kind}, but each row needs {needed}")
    ragged = {name: flatten_lists(rows.column(name), name, name_row) for name in plan.item_columns}
    offsets, _ = ragged[plan.item_id]
    lengths = np.diff(offsets)
    for name, (other_offsets, _) in ragged.items():
        others = np.diff(other_offsets)
        if (others != lengths).any():
            row = int((others != lengths).argmax())
            raise DataError(f"{name_row(row)}: {plan.item_id} has {lengths[row]} entries, {name} has {others[row]}")

    def name_item(item: int) -> str:
        row = int(np.searchsorted(offsets, item, side="right")) - 1
        return name_row(row, f"item {item - offsets[row]}")

    list_of_item = np.repeat(np.arange(len(lengths)), lengths)
    per_item = {name: values for name, (_, values) in ragged.items()}
    order = _base_order(per_item, np.arange(len(list_of_item)), list_of_item, plan, name_item)
    return Parts(
        list_ids,
        offsets,
        per_item if order is None else _taken(per_item, order),
        {name: rows.column(name) for name in plan.list_columns},
        name_row,
        name_item if order is None else lambda item: name_item(int(order[item])),
        np.arange(len(list_of_item)) if order is None else order,
    )


# One row per item


def run_starts(values: Any) -> IntArray:
    """Return where a value differs from the one before it."""
    codes = values.dictionary_encode(null_encoding="encode").indices.to_numpy()
    return np.flatnonzero(np.diff(codes, prepend=-1))


def _split_item_rows(rows: Any, plan: Plan, source: Source) -> Parts:
    starts = run_starts(rows.column(KEY))
    run_lengths = np.diff(starts, append=rows.num_rows)
    list_of_row = np.repeat(np.arange(len(starts)), run_lengths)
    row_ids = _list_ids(rows, source)
    list_ids = row_ids.take(pa.array(starts))
    check_contiguous(list_ids, starts, source)

    def name_row(row: int) -> str:
        return source.at(row, f"list {row_ids[row].as_py()!r}")

    per_row = {name: rows.column(name) for name in (*plan.item_columns, *plan.list_id) if name in plan.read}
    items = _rows_with_items(per_row, plan, list_of_row, run_lengths, name_row)
    order = _base_order(per_row, items, list_of_row, plan, name_row)
    if order is None and len(items) < rows.num_rows:
        order = items
    return Parts(
        list_ids,
        offsets_from_lengths(np.bincount(list_of_row[items], minlength=len(starts))),
        per_row if order is None else _taken(per_row, order),
        {name: _constant_in_list(name, rows.column(name), starts, list_of_row, name_row) for name in plan.list_columns},
        lambda q: name_row(int(starts[q])),
        name_row if order is None else lambda item: name_row(int(order[item])),
        items if order is None else order,
    )


def _rows_with_items(
    columns: Mapping[str, Any], plan: Plan, list_of_row: IntArray, run_lengths: IntArray, name_row: Name
) -> IntArray:
    """Return the rows that hold an item; one without item and position stands for an empty list."""
    if plan.position is None or not columns[plan.item_id].null_count:
        return np.arange(len(list_of_row))
    no_item = pc.and_(columns[plan.item_id].is_null(), columns[plan.position].is_null(nan_is_null=True))
    empty = no_item.to_numpy(zero_copy_only=False)
    if (strange := empty & (run_lengths[list_of_row] > 1)).any():
        raise DataError(
            f"{name_row(int(strange.argmax()))}: no {plan.item_id} and no {plan.position}, which is how an empty list "
            "is written, but the list has more rows"
        )
    return np.flatnonzero(~empty)


def _constant_in_list(name: str, values: Any, starts: IntArray, list_of_row: IntArray, name_row: Name) -> Any:
    """Return the value that every list repeats on its rows."""
    codes = values.dictionary_encode(null_encoding="encode").indices.to_numpy()
    changed = codes != codes[starts][list_of_row]
    if changed.any():
        raise DataError(
            f"{name_row(int(changed.argmax()))}: column {name} changes within the list; context has one value per list"
        )
    return values.take(pa.array(starts))


def check_contiguous(list_ids: Strings, first_rows: IntArray, source: Source) -> None:
    """Refuse a list whose rows are not consecutive."""
    codes = list_ids.dictionary_encode().indices.to_numpy()
    first_seen = np.unique(codes, return_index=True)[1]
    if len(first_seen) < len(codes):
        again = int(np.setdiff1d(np.arange(len(codes)), first_seen)[0])
        raise DataError(
            f"{source.at(int(first_rows[again]), f'list {list_ids[again].as_py()!r}')}: the list comes back after "
            "another one; sort the table by list_id"
        )


# The base order


def _base_order(
    columns: Mapping[str, Any], items: IntArray, list_of_row: IntArray, plan: Plan, name_row: Name
) -> IntArray | None:
    """Return the rows with items (T,), sorted in each list by position or by `order_by`; None if they are so already.

    Args:
        columns: A value for each row.
        items: (T,) the rows that hold items.
        list_of_row: The list of each row.
        plan: Says which column sorts, and in which direction.
        name_row: Names a row in error messages.

    """
    if plan.order_by is not None:
        keys = as_numbers(columns[plan.order_by], plan.order_by, name_row)
        keys = -keys[items] if plan.descending else keys[items]  # NaN is sorted last in both directions
        order = items[np.lexsort((keys, list_of_row[items]))]
        return None if np.array_equal(order, np.arange(len(list_of_row))) else order
    if plan.position is None:
        return None
    positions = as_numbers(columns[plan.position], plan.position, name_row)
    if (missing := np.isnan(positions[items])).any():
        raise DataError(f"{name_row(int(items[missing.argmax()]))}: the {plan.position} is missing")
    order = items[np.lexsort((positions[items], list_of_row[items]))]
    sorted_positions, sorted_lists = positions[order], list_of_row[order]
    same = (sorted_positions[1:] == sorted_positions[:-1]) & (sorted_lists[1:] == sorted_lists[:-1])
    if same.any():
        row = int(order[1:][same].min())
        raise DataError(
            f"{name_row(row)}: {plan.position} {positions[row]:g} is taken by another item of the list; declare it "
            "order_by if several items may share one"
        )
    return None if np.array_equal(order, np.arange(len(list_of_row))) else order


def _taken(columns: Mapping[str, Any], rows: IntArray) -> dict[str, Any]:
    index = pa.array(rows)
    return {name: values.take(index) for name, values in columns.items()}


# From columns to lists


def assemble(parts: Parts, plan: Plan, vector_names: tuple[str, ...], source: str, roles: ColumnRoles) -> ItemLists:
    """Return the lists of some rows, after checking every value.

    Args:
        parts: The rows, taken apart.
        plan: What each column becomes.
        vector_names: (W,) the names of the numbers in each vector of `features`.
        source: The name of the table in error messages.
        roles: What to say about the columns.

    """
    fields = {
        field: np.array(as_float32(as_numbers(parts.per_item[name], name, parts.name_item)))  # not Arrow's own
        for name, field in plan.fields.items()
    }
    categorical: dict[str, Strings] = {}
    blocks: list[tuple[tuple[str, ...], npt.NDArray[np.floating]]] = []
    for name, kind in plan.per_item.items():
        values = parts.per_item[name]
        if kind == "vectors":
            blocks.insert(0, _read_of(_vectors(values, vector_names, parts.name_item), plan.left_out))
        elif kind == "category":
            categorical[ITEM_ID if name == plan.item_id else name] = as_categories(values)
        elif kind == "time":
            found = time_parts(values, name, parts.name_item)
            blocks += [((part,), numbers[:, None]) for part, numbers in found.items()]
        else:
            blocks.append(((name,), as_numbers(values, name, parts.name_item)[:, None]))
    lists = ItemLists(
        features=_stacked([block for _, block in blocks], int(parts.offsets[-1])),
        offsets=parts.offsets,
        list_ids=parts.list_ids,
        item_ids=as_ids(parts.per_item[plan.item_id], plan.item_id, parts.name_item),
        feature_names=[name for names, _ in blocks for name in names],
        categorical=categorical,
        context={
            name: values
            for column, kind in plan.per_list.items()
            for name, values in _context(parts.per_list[column], kind, column, parts.name_list).items()
        },
        impressions=plan.impressions.read(
            parts.per_item | parts.per_list, parts.offsets, parts.name_item, parts.name_list, source
        ),
        roles=roles,
        **fields,
    )
    return lists.checked(parts.name_item, parts.name_list)


def _stacked(blocks: list[npt.NDArray[np.floating]], n_items: int) -> FloatArray:
    """Return blocks of columns (T, …) side by side as float32."""
    features = np.empty((n_items, sum(block.shape[1] for block in blocks)), dtype=np.float32)
    column = 0
    for block in blocks:
        features[:, column : column + block.shape[1]] = as_float32(block)
        column += block.shape[1]
    return features


def _read_of(
    block: tuple[tuple[str, ...], npt.NDArray[np.floating]], left_out: Collection[str]
) -> tuple[tuple[str, ...], npt.NDArray[np.floating]]:
    """Return the columns of a block that are read."""
    names, values = block
    if not left_out:
        return block
    kept = [number for number, name in enumerate(names) if name not in left_out]
    return tuple(names[number] for number in kept), values[:, kept]


def _vectors(
    values: Any, names: tuple[str, ...], name_item: Callable[[int], str]
) -> tuple[tuple[str, ...], npt.NDArray[np.floating]]:
    """Return the names and the values of `features`, which holds one vector an item."""
    if not len(values):  # the metadata alone can tell how wide the items would be
        return names, np.empty((0, len(names)))
    if not is_list(values.type):
        raise DataError(f"{name_item(0)}: features must hold a list of numbers for each item, not {values.type}")
    offsets, entries = flatten_lists(values, "features", name_item)
    widths = np.diff(offsets)
    width = len(names)
    if (widths != width).any():
        item = int((widths != width).argmax())
        raise DataError(f"{name_item(item)}: {widths[item]} features, but {width} are expected")
    numbers = as_numbers(entries, "features", lambda entry: name_item(entry // width))
    return names, numbers.reshape(len(widths), width)


def _list_ids(rows: Any, source: Source) -> Strings:
    values = rows.column(KEY)
    if values.null_count and not pa.types.is_floating(values.type):
        raise DataError(f"{source.at(first_null(values))}: no list_id")
    return as_ids(values, "list_id", source.at)


def first_null(values: Any) -> int:
    """Return the first row without a value."""
    return int(values.is_null().to_numpy(zero_copy_only=False).argmax())


def _context(values: Any, kind: Kind, name: str, name_list: Name) -> dict[str, Any]:
    """Return the columns of lists that one column becomes."""
    if kind == "category":
        return {name: as_categories(values)}
    if kind == "time":
        return dict(time_parts(values, name, name_list))
    return {name: as_numbers(values, name, name_list).astype(np.float64)}
