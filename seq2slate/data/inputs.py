"""Anything that holds lists, as ItemLists: DataFrames, Arrow tables, paths, and the arrays (X, y, group)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from seq2slate.data.columns import as_ids, plain_column
from seq2slate.data.files import read, read_with_rows
from seq2slate.data.frames import as_arrow, is_pandas
from seq2slate.data.lists import IntArray, ItemLists, numbers_as_strings, offsets_from_lengths
from seq2slate.data.roles import Columns, as_columns
from seq2slate.data.tables import table_with_rows
from seq2slate.errors import DataError, UsageError

ACCEPTED = (
    "ItemLists, a pandas or polars DataFrame, an Arrow table, a path or a list of paths, or the arrays (X, y, group) "
    "or (X, group)"
)


def as_lists(
    data: Any, columns: Columns | Mapping[str, Any] | None = None, *, name: str = "train", labelled: bool = True
) -> ItemLists:
    """Return the lists that something holds.

    Args:
        data: ItemLists, or several in a list; a pandas or polars DataFrame, an Arrow table or record batch; a path or a
            list of paths; or a tuple (X, y, group) or (X, group), where `group` has the length of each list, as in
            LightGBM, or the id of the list of each row.
        columns: The roles of the columns; for ItemLists and arrays there are none.
        name: What to call the data in error messages.
        labelled: Whether a declared label has to be there.

    >>> lists = as_lists((np.eye(3), [0, 1, 0], [2, 1]))
    >>> lists.lengths.tolist(), lists.labels.tolist()
    ([2, 1], [0.0, 1.0, 0.0])

    """
    if _are_paths(data):
        return read(data, columns, labelled=labelled)
    return as_lists_with_rows(data, columns, name=name, labelled=labelled)[0]


def as_lists_with_rows(
    data: Any, columns: Columns | Mapping[str, Any] | None = None, *, name: str = "train", labelled: bool = True
) -> tuple[ItemLists, IntArray]:
    """Return the lists that something holds, and the row (T,) that each item comes from.

    Rows are those of a table, of X or of a file, from 0. With one row per list, the entries of all rows are counted.
    The items of ItemLists and of several files are counted as they are.

    >>> table = pa.table({"list_id": ["a", "b", "a"], "item_id": [1, 2, 3], "price": [3, 2, 1]})
    >>> lists, rows = as_lists_with_rows(table)
    >>> lists.item_ids.to_pylist(), rows.tolist()
    (['1', '3', '2'], [0, 2, 1])

    """
    if isinstance(data, list) and data and all(isinstance(one, ItemLists) for one in data):
        data = ItemLists.concat(data)
    if isinstance(data, ItemLists):
        return data, np.arange(data.n_items)
    asked = as_columns(columns)
    if _are_paths(data):
        return read_with_rows(data, columns, labelled=labelled)
    if isinstance(data, tuple):
        return _from_arrays(data, asked, name, labelled=labelled)
    if is_table(data):
        return table_with_rows(data, asked, source=name, labelled=labelled)
    hint = "; call its collect() first" if hasattr(data, "collect") else ""
    raise UsageError(f"{name}: expected {ACCEPTED}, got {_describe(data)}{hint}")


def is_table(data: Any) -> bool:
    """Say whether something is a DataFrame or an Arrow table in memory."""
    return is_pandas(data) or isinstance(data, pa.RecordBatch) or hasattr(data, "__arrow_c_stream__")


def is_path(data: Any) -> bool:
    """Say whether something is the path of a file."""
    return isinstance(data, str | os.PathLike)


def _are_paths(data: Any) -> bool:
    return is_path(data) or (isinstance(data, list) and bool(data) and all(is_path(one) for one in data))


def _describe(data: Any) -> str:
    if isinstance(data, list | tuple) and data:
        return f"{type(data).__name__} of {', '.join(dict.fromkeys(type(one).__name__ for one in data))}"
    return type(data).__name__


# Arrays


def _from_arrays(data: tuple[Any, ...], columns: Columns, name: str, *, labelled: bool) -> tuple[ItemLists, IntArray]:
    if len(data) not in (2, 3):
        raise UsageError(f"{name}: expected (X, y, group) or (X, group), got a tuple of {len(data)}")
    table, labels, group = data if len(data) == 3 else (data[0], None, data[1])
    if is_pandas(table) or hasattr(table, "__arrow_c_stream__"):
        return _from_frame(as_arrow(table, columns, name), labels, group, columns, name, labelled=labelled)
    features = _as_array(table, "X", name)
    if features.ndim != 2:
        raise DataError(f"{name}: X must have the shape (rows, columns), got {features.shape}")
    groups = _Groups.of(group, len(features), name)
    lists = ItemLists(
        features[groups.rows],
        groups.offsets,
        labels=None if labels is None else _label_array(labels, len(features), name)[groups.rows],
        list_ids=groups.ids,
    )
    return lists.checked(), groups.rows


def _from_frame(
    table: Any, labels: Any, group: Any, columns: Columns, name: str, *, labelled: bool
) -> tuple[ItemLists, IntArray]:
    """Return the lists of a table whose groups, and labels if any, stand beside it; item ids may stand in it."""
    list_id, label = columns.list_id_columns[0], columns.label or "label"
    for taken in (list_id, label) if labels is not None else (list_id,):
        if taken in table.column_names:
            raise UsageError(f"{name}: X has a column {taken!r} beside the array for it; leave one of them out")
    groups = _Groups.of(group, table.num_rows, name)
    list_of_row, number_in_list = (np.empty(table.num_rows, dtype=np.int64) for _ in range(2))
    list_of_row[groups.rows] = np.repeat(np.arange(len(groups.ids)), np.diff(groups.offsets))
    number_in_list[groups.rows] = np.arange(table.num_rows) - groups.offsets[list_of_row[groups.rows]]
    beside = {list_id: groups.ids.take(pa.array(list_of_row))}
    if columns.item_id not in table.column_names:
        beside[columns.item_id] = numbers_as_strings(number_in_list)
    if labels is not None:
        beside[label] = pa.array(_label_array(labels, table.num_rows, name))
    for column, values in beside.items():
        table = table.append_column(column, values)
    return table_with_rows(table, columns, source=name, labelled=labelled)


class _Groups(NamedTuple):
    """The rows of each list."""

    rows: IntArray
    """(T,) rows, those of a list together."""
    offsets: IntArray
    ids: Any
    """(Q,) text."""

    @classmethod
    def of(cls, group: Any, n_rows: int, name: str) -> _Groups:
        """Read an id for each row if there are as many, and lengths of lists otherwise."""
        values = np.asarray(group)
        if values.ndim != 1:
            raise DataError(f"{name}: group must be one-dimensional, got the shape {values.shape}")
        are_lengths = values.dtype.kind in "iu" and (values >= 0).all() and values.sum() == n_rows
        if len(values) == n_rows and not are_lengths:
            return cls._by_id(values, name)
        if len(values) == n_rows and (values != 1).any():
            raise UsageError(
                f"{name}: group has an entry for each row, and its entries add up to the {n_rows} rows: it may hold "
                "ids or lengths; give ids as text, such as group.astype(str), and leave empty lists out of lengths"
            )
        if values.dtype.kind not in "iu" or (values < 0).any() or values.sum() != n_rows:
            total = f"they add up to {values.sum()}" if values.dtype.kind in "iuf" else f"it holds {values.dtype}"
            raise DataError(
                f"{name}: group must have the length of each list, which add up to {n_rows} rows, or an id for each "
                f"row; it has {len(values)} entries, and {total}"
            )
        offsets = offsets_from_lengths(values.astype(np.int64))
        return cls(np.arange(n_rows), offsets, numbers_as_strings(np.arange(len(values))))

    @classmethod
    def _by_id(cls, values: Any, name: str) -> _Groups:
        try:
            ids = as_ids(plain_column(pa.array(values, from_pandas=True)), "group", f"{name}, row {{}}".format)
        except pa.ArrowException as error:
            raise DataError(f"{name}: group must hold ids of one type: {error}") from error
        if ids.null_count:
            raise DataError(f"{name}, row {int(ids.is_null().to_numpy(zero_copy_only=False).argmax())}: no group")
        encoded = ids.dictionary_encode()
        codes = encoded.indices.to_numpy()
        lengths = np.bincount(codes, minlength=len(encoded.dictionary))
        return cls(np.argsort(codes, kind="stable"), offsets_from_lengths(lengths), encoded.dictionary)


def _label_array(values: Any, n_rows: int, name: str) -> Any:
    labels = _as_array(values, "y", name)
    if labels.shape != (n_rows,):
        raise DataError(
            f"{name}: y must have one label for each of the {n_rows} rows of X, got the shape {labels.shape}"
        )
    return labels


def _as_array(values: Any, what: str, name: str) -> Any:
    if hasattr(values, "toarray"):  # a sparse matrix of SciPy
        values = values.toarray()
    try:
        return np.asarray(values, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name}: {what} must hold numbers: {error}; give a DataFrame with column roles") from error
