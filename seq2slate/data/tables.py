"""Arrow tables and DataFrames in, with one row per list or one row per item.

Rows are lists when the item ids are a list column. Then a list column has one value an item, and a column with one
value a row is context. Otherwise rows are items, and context columns are declared; they must be constant in a list.
`seq2slate.data.plan` decides what each column becomes. The rows of a list in a table in memory need not be adjacent;
those of a file that is read in batches must be.

In both layouts `features` may hold one vector an item, beside or instead of feature columns. `label`, `relevance` and
`relevance_probability` become the fields of the same meaning. Booleans, durations, times of day and decimals are
numbers. Rows count from 0 in error messages.

These columns hold impressions (`ItemLists.impressions`) and are never features:

| column | one value per | |
|---|---|---|
| `shown_slot` | item | slot in which it was shown, 0 at the top; -1 or missing if it was not |
| `log_propensity` | item | log-probability of its slot given those above; `propensity`, the probability, is read too |
| `clicked_at` | item | time of the first click; missing without a click |
| `unit`, `arm`, `experiment` | list | who saw it, in which arm of which experiment |
| `shown_at` | list | time of the impression |
| `model_fingerprint` | list | model that ordered the slate; missing for the base order |
| `fallback` | list | why the base order replaced the model's; missing if it did not |
| `draft` | list | who placed what in an interleaved slate: JSON `[arm a, arm b, team of each slot]` |
| `latency_ms` | list | time the service took |

Times are seconds since 1970. All but the propensity have this meaning only beside `shown_slot`: without it they are
columns like any other, and a table with propensities was shown in base order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

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
    plain_column,
    time_parts,
)
from seq2slate.data.frames import as_arrow
from seq2slate.data.lists import FloatArray, IntArray, ItemLists, Strings, default_feature_names, offsets_from_lengths
from seq2slate.data.plan import VECTORS, Kind, Plan, make_plan, read_metadata
from seq2slate.data.roles import ColumnRoles, Columns, as_columns
from seq2slate.data.traps import find_traps
from seq2slate.errors import DataError, warn_of_data

_KEY = "\x00list"
"""The column of prepared rows that tells lists apart: one column of the table, or several joined."""
_JOINT = "/"
_Name = Callable[[int], str]


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


class _Parts(NamedTuple):
    """Some rows in either layout, taken apart, with the items of each list in base order."""

    list_ids: Strings
    offsets: IntArray
    per_item: dict[str, Any]
    per_list: dict[str, Any]
    name_list: _Name
    name_item: _Name
    rows: IntArray
    """(T,) the row of each item."""


# In


def from_table(
    data: Any,
    columns: Columns | Mapping[str, Any] | None = None,
    *,
    source: str = "table",
    labelled: bool = True,
    **roles: Any,
) -> ItemLists:
    """Return the lists of an Arrow table, a pandas or a polars DataFrame.

    Args:
        data: One row per list or one row per item, in any order of the lists.
        columns: What each column is, as `Columns`; a field of `Columns` may also be given by its name.
        source: The name of the table in error messages.
        labelled: Whether a declared label has to be there.
        **roles: Fields of `Columns`, which win over `columns`.

    Raises:
        UsageError: There is no such role, or two roles contradict each other.
        DataError: A column is not there, or holds what it cannot hold; the message names the row.

    >>> import pyarrow as pa
    >>> table = pa.table({"query": ["a", "a", "b"], "doc": [7, 8, 7], "clicks": [0, 1, 0], "price": [1.5, 2, 3]})
    >>> lists = from_table(table, list_id="query", item_id="doc", label="clicks")
    >>> lists.lengths.tolist(), lists.feature_names, lists.labels.tolist()
    ([2, 1], ('price',), [0.0, 1.0, 0.0])
    >>> print(lists.roles)
    column  taken for  note
    query   list_id
    doc     item_id
    clicks  label
    price   feature
    base order: the order of the rows

    """
    return table_with_rows(data, as_columns(columns, roles), source=source, labelled=labelled)[0]


def from_pandas(df: Any, columns: Columns | Mapping[str, Any] | None = None, **roles: Any) -> ItemLists:
    """Return the lists of a pandas DataFrame: `from_table` with another name in error messages.

    >>> import pandas as pd
    >>> df = pd.DataFrame({"query": ["a", "b", "a"], "doc": [7, 7, 8], "tfidf": [0.5, 0.25, 0.75]})
    >>> lists = from_pandas(df, list_id="query", item_id="doc", order_by="-tfidf")
    >>> lists.original_item_ids().to_pylist(), lists.features[:, 0].tolist()
    ([8, 7, 7], [0.75, 0.5, 0.25])
    """
    return from_table(df, columns, **{"source": "DataFrame", **roles})


def from_polars(df: Any, columns: Columns | Mapping[str, Any] | None = None, **roles: Any) -> ItemLists:
    """Return the lists of a polars DataFrame: `from_table` with another name in error messages."""
    return from_table(df, columns, **{"source": "DataFrame", **roles})


def table_with_rows(
    data: Any, columns: Columns, *, source: str = "table", labelled: bool = True, place: _Name | None = None
) -> tuple[ItemLists, IntArray]:
    """Return the lists of a table, and the row (T,) of the table that each item comes from.

    `place` names a row, given its number from 0, in error messages.
    """
    table = as_arrow(data, columns, source)
    plan = make_plan(table.schema, columns, source, labelled=labelled)
    where = Source(source) if place is None else Source(source, place)
    try:
        return _lists_and_rows(table, plan, where)
    except pa.ArrowException as error:
        raise DataError(f"{source}: {error}") from error


def _lists_and_rows(table: Any, plan: Plan, where: Source) -> tuple[ItemLists, IntArray]:
    if plan.rows_are_lists:
        lists = join_chunks(table.schema, table.to_batches(), where, plan=plan)
        return lists, lists.list_index
    batches = [_prepared(batch, plan, where) for batch in table.to_batches()] or [_no_rows(table.schema, plan)]
    rows = pa.Table.from_batches(batches).combine_chunks().to_batches()
    whole = rows[0] if rows else _no_rows(table.schema, plan)
    order = _grouping(whole.column(_KEY))
    if order is not None:
        whole = whole.take(pa.array(order))
        where = Source(where.name, _permuted(where.place, order))
    roles = _checked_roles(whole, plan)
    parts = _split_item_rows(whole, plan, where)
    names = _vector_names(table.schema) or _count_vector_names(whole, plan)
    lists = _assemble(parts, plan, names, where.name, roles)
    return lists, parts.rows if order is None else order[parts.rows]


def _permuted(place: _Name, order: IntArray) -> _Name:
    return lambda row: place(int(order[row]))


def _grouping(keys: Any) -> IntArray | None:
    """Return the rows with those of each list together, lists in the order of their first row; None if they are so."""
    codes = keys.dictionary_encode(null_encoding="encode").indices.to_numpy()
    return None if (np.diff(codes) >= 0).all() else np.argsort(codes, kind="stable")


def join_chunks(
    schema: Any, batches: Iterable[Any], source: Source, columns: Columns | None = None, *, plan: Plan | None = None
) -> ItemLists:
    """Return all the lists of some Arrow record batches."""
    plan = plan or make_plan(schema, columns or Columns(), source.name)
    chunks = list(iterate_chunks(schema, batches, source, plan=plan))
    if not chunks:
        empty = _no_rows(schema, plan)
        chunks = [_convert(empty, plan, _vector_names(schema), source, plan.roles)]
    lists = chunks[0] if len(chunks) == 1 else ItemLists.concat(chunks)
    if not plan.rows_are_lists:
        rows = offsets_from_lengths(np.maximum(lists.lengths, 1))
        _check_contiguous(lists.list_ids, rows, source)
    return lists


def iterate_chunks(
    schema: Any, batches: Iterable[Any], source: Source, columns: Columns | None = None, *, plan: Plan | None = None
) -> Iterator[ItemLists]:
    """Yield the lists of record batches, chunk by chunk; a list that the end of a batch cuts in two comes out whole."""
    plan = plan or make_plan(schema, columns or Columns(), source.name)
    names = _vector_names(schema)
    rest, first_row = _no_rows(schema, plan), 0
    roles: ColumnRoles | None = None
    for batch in batches:
        rows = _joined(rest, _prepared(batch, plan, source.after(first_row + rest.num_rows)))
        complete = _count_complete(rows, plan)
        if complete:
            ready = rows.slice(0, complete)
            names = names or _count_vector_names(rows, plan)  # the first item sets the width for all that follow
            roles = roles or _checked_roles(ready, plan)
            yield _convert(ready, plan, names, source.after(first_row), roles)
        rest, first_row = rows.slice(complete), first_row + complete
    if rest.num_rows:
        names = names or _count_vector_names(rest, plan)
        yield _convert(rest, plan, names, source.after(first_row), roles or _checked_roles(rest, plan))


def _checked_roles(rows: Any, plan: Plan) -> ColumnRoles:
    """Return the roles, with notes on columns that are probably not what they are taken for, and warn of these."""
    roles = plan.roles
    traps = {} if plan.is_own else find_traps(rows, plan)
    uses = tuple(use._replace(note=traps[use.name].note) if use.name in traps else use for use in roles.uses)
    roles = roles._replace(uses=uses, warnings=(*roles.warnings, *(trap.warning for trap in traps.values())))
    for message in roles.warnings:
        warn_of_data(message)
    return roles


def check_same_columns(first: ItemLists, other: ItemLists, first_name: str, name: str) -> None:
    """Raise a DataError unless two ItemLists can be joined."""
    try:
        ItemLists.concat([first[:0], other[:0]])
    except DataError as error:
        difference = str(error).partition(": ")[2]
        raise DataError(f"{name} does not have the columns of {first_name}: {difference}") from error


def _no_rows(schema: Any, plan: Plan) -> Any:
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    return _prepared(empty, plan, Source(""))


def _prepared(batch: Any, plan: Plan, source: Source) -> Any:
    """Return the columns that the plan reads, with all text as large_string and dictionaries resolved."""
    columns = {name: plain_column(batch.column(name)) for name in plan.read}
    columns[_KEY] = _joined_ids(columns, plan.list_id, source)
    return pa.RecordBatch.from_pydict(columns)


def _joined_ids(columns: Mapping[str, Any], names: tuple[str, ...], source: Source) -> Any:
    if len(names) == 1:
        return columns[names[0]]
    parts = [as_ids(columns[name], name, source.at) for name in names]
    for name, part in zip(names, parts, strict=True):
        if part.null_count:
            raise DataError(f"{source.at(_first_null(part))}: no {name}, which is part of list_id")
    joined = pc.binary_join_element_wise(*parts, pa.scalar(_JOINT, pa.large_string()))
    codes = np.stack([part.dictionary_encode().indices.to_numpy() for part in parts], axis=1)
    if len(np.unique(codes, axis=0)) > len(joined.unique()):
        raise DataError(f"{source.name}: {' and '.join(names)} cannot be joined, for both contain {_JOINT!r}")
    return joined


def _joined(first: Any, second: Any) -> Any:
    if not first.num_rows:
        return second
    return pa.Table.from_batches([first, second]).combine_chunks().to_batches()[0]


def _count_complete(rows: Any, plan: Plan) -> int:
    """Count the rows that can be converted.

    With one row per list these are all or, as long as no item tells how many features there are, none. With one row per
    item the last list may go on in the next batch.
    """
    if plan.rows_are_lists:
        return rows.num_rows if len(rows.column(plan.item_id).flatten()) else 0
    return int(_run_starts(rows.column(_KEY))[-1]) if rows.num_rows else 0


def _run_starts(values: Any) -> IntArray:
    """Return where a value differs from the one before it."""
    codes = values.dictionary_encode(null_encoding="encode").indices.to_numpy()
    return np.flatnonzero(np.diff(codes, prepend=-1))


def _vector_names(schema: Any) -> tuple[str, ...]:
    """Return the names that the numbers in `features` were written with, if any."""
    return tuple(read_metadata(schema).get("feature_names", ()))


def _count_vector_names(rows: Any, plan: Plan) -> tuple[str, ...]:
    """Return as many names as the first item has numbers in `features`."""
    if plan.per_item.get(VECTORS) != "vectors":
        return ()
    vectors = rows.column(VECTORS)
    if is_list(vectors.type) and plan.rows_are_lists:
        vectors = vectors.flatten()
    first = vectors.drop_null()[:1]
    return default_feature_names(len(first.flatten()) if is_list(first.type) else 0)


def _convert(rows: Any, plan: Plan, vector_names: tuple[str, ...], source: Source, roles: ColumnRoles) -> ItemLists:
    split = _split_list_rows if plan.rows_are_lists else _split_item_rows
    return _assemble(split(rows, plan, source), plan, vector_names, source.name, roles)


# One row per list


def _split_list_rows(rows: Any, plan: Plan, source: Source) -> _Parts:
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
    return _Parts(
        list_ids,
        offsets,
        per_item if order is None else _taken(per_item, order),
        {name: rows.column(name) for name in plan.list_columns},
        name_row,
        name_item if order is None else lambda item: name_item(int(order[item])),
        list_of_item,
    )


# One row per item


def _split_item_rows(rows: Any, plan: Plan, source: Source) -> _Parts:
    starts = _run_starts(rows.column(_KEY))
    run_lengths = np.diff(starts, append=rows.num_rows)
    list_of_row = np.repeat(np.arange(len(starts)), run_lengths)
    row_ids = _list_ids(rows, source)
    list_ids = row_ids.take(pa.array(starts))
    _check_contiguous(list_ids, starts, source)

    def name_row(row: int) -> str:
        return source.at(row, f"list {row_ids[row].as_py()!r}")

    per_row = {name: rows.column(name) for name in (*plan.item_columns, *plan.list_id) if name in plan.read}
    items = _rows_with_items(per_row, plan, list_of_row, run_lengths, name_row)
    order = _base_order(per_row, items, list_of_row, plan, name_row)
    if order is None and len(items) < rows.num_rows:
        order = items
    return _Parts(
        list_ids,
        offsets_from_lengths(np.bincount(list_of_row[items], minlength=len(starts))),
        per_row if order is None else _taken(per_row, order),
        {name: _constant_in_list(name, rows.column(name), starts, list_of_row, name_row) for name in plan.list_columns},
        lambda q: name_row(int(starts[q])),
        name_row if order is None else lambda item: name_row(int(order[item])),
        items if order is None else order,
    )


def _rows_with_items(
    columns: Mapping[str, Any], plan: Plan, list_of_row: IntArray, run_lengths: IntArray, name_row: _Name
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


def _constant_in_list(name: str, values: Any, starts: IntArray, list_of_row: IntArray, name_row: _Name) -> Any:
    """Return the value that every list repeats on its rows."""
    codes = values.dictionary_encode(null_encoding="encode").indices.to_numpy()
    changed = codes != codes[starts][list_of_row]
    if changed.any():
        raise DataError(
            f"{name_row(int(changed.argmax()))}: column {name} changes within the list; context has one value per list"
        )
    return values.take(pa.array(starts))


def _check_contiguous(list_ids: Strings, first_rows: IntArray, source: Source) -> None:
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
    columns: Mapping[str, Any], items: IntArray, list_of_row: IntArray, plan: Plan, name_row: _Name
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
    same = (np.diff(positions[order]) == 0) & (np.diff(list_of_row[order]) == 0)
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


def _assemble(parts: _Parts, plan: Plan, vector_names: tuple[str, ...], source: str, roles: ColumnRoles) -> ItemLists:
    fields = {
        field: np.array(as_float32(as_numbers(parts.per_item[name], name, parts.name_item)))  # not Arrow's own
        for name, field in plan.fields.items()
    }
    categorical: dict[str, Strings] = {}
    blocks: list[tuple[tuple[str, ...], npt.NDArray[np.floating]]] = []
    for name, kind in plan.per_item.items():
        values = parts.per_item[name]
        if kind == "vectors":
            blocks.insert(0, _vectors(values, vector_names, parts.name_item))
        elif kind == "category":
            categorical[name] = as_categories(values)
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
    values = rows.column(_KEY)
    if values.null_count and not pa.types.is_floating(values.type):
        raise DataError(f"{source.at(_first_null(values))}: no list_id")
    return as_ids(values, "list_id", source.at)


def _first_null(values: Any) -> int:
    return int(values.is_null().to_numpy(zero_copy_only=False).argmax())


def _context(values: Any, kind: Kind, name: str, name_list: _Name) -> dict[str, Any]:
    """Return the columns of lists that one column becomes."""
    if kind == "category":
        return {name: as_categories(values)}
    if kind == "time":
        return dict(time_parts(values, name, name_list))
    return {name: as_numbers(values, name, name_list).astype(np.float64)}
