"""Arrow tables and DataFrames in and out, with one row per list or one row per item.

Rows are lists when `item_id` is a list column. Then a list column of numbers is a feature, a list column of text is
categorical, and a column with one value a row is context. Otherwise rows are items: `position`, if there is one, sorts
each list, a column of numbers is a feature and a column of text is categorical.

In both layouts `features` may hold one vector an item, beside or instead of feature columns. `label`, `relevance` and
`relevance_probability` become the fields of the same meaning. Booleans, dates, times and decimals are numbers: a moment
is the seconds since 1970, a duration is in seconds. Rows count from 0 in error messages.

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

What the columns cannot express is JSON in the schema metadata under `seq2slate`: the names of the features and, in the
item layout, which columns are context. In the item layout an empty list is a row without `item_id` and `position`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seq2slate.data.columns import (
    FIELDS,
    ImpressionColumns,
    arrow_impressions,
    as_float32,
    as_ids,
    as_numbers,
    flatten_lists,
    is_list,
    is_number,
    is_text,
    plain_column,
    reserved_names,
)
from seq2slate.data.lists import FloatArray, IntArray, ItemLists, Strings, default_feature_names, offsets_from_lengths
from seq2slate.errors import DataError, UsageError

Layout: TypeAlias = Literal["lists", "items"]

_METADATA = b"seq2slate"
_VERSION = 2
"""Since 2 there are impressions, which readers of version 1 would take for features; without them a file is still 1."""
_CELLS_PER_SLICE = 2**23  # 32 MB of float32


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


class _Columns(NamedTuple):
    """A table in either layout, taken apart."""

    list_ids: Strings
    offsets: IntArray
    per_item: dict[str, Any]
    per_list: dict[str, Any]
    impressions: ImpressionColumns
    name_list: Callable[[int], str]
    name_item: Callable[[int], str]


# In


def from_table(data: Any, *, source: str = "table") -> ItemLists:
    """Return the lists of an Arrow table, a pandas or a polars DataFrame; `source` is its name in error messages.

    >>> import pyarrow as pa
    >>> table = pa.table({"list_id": ["a", "b"], "item_id": [["x", "y"], ["x"]], "price": [[1.5, 2], [3]]})
    >>> lists = from_table(table)
    >>> lists.lengths.tolist(), lists.feature_names, lists.features.tolist()
    ([2, 1], ('price',), [[1.5], [2.0], [3.0]])
    """
    if not hasattr(data, "__arrow_c_stream__"):  # what every library that speaks Arrow has
        raise UsageError(f"{source}: not an Arrow table or a DataFrame, but {type(data).__name__}")
    try:
        reader = pa.RecordBatchReader.from_stream(data)
        return join_chunks(reader.schema, reader, Source(source))
    except pa.ArrowException as error:
        raise DataError(f"{source}: {error}") from error


def join_chunks(schema: Any, batches: Iterable[Any], source: Source) -> ItemLists:
    """Return all the lists of some Arrow record batches."""
    chunks = list(iterate_chunks(schema, batches, source)) or [
        _convert(_no_rows(schema), _vector_names(schema), source)
    ]
    lists = chunks[0] if len(chunks) == 1 else ItemLists.concat(chunks)
    if not _rows_are_lists(schema):
        rows = offsets_from_lengths(np.maximum(lists.lengths, 1))
        _check_contiguous(lists.list_ids, rows, source)
    return lists


def iterate_chunks(schema: Any, batches: Iterable[Any], source: Source) -> Iterator[ItemLists]:
    """Yield the lists of record batches, chunk by chunk; a list that the end of a batch cuts in two comes out whole."""
    _check_schema(schema, source.name)
    count_complete = _complete_list_rows if _rows_are_lists(schema) else _complete_item_rows
    names = _vector_names(schema)
    rest, first_row = _no_rows(schema), 0
    for batch in batches:
        rows = _joined(rest, _plain(batch))
        complete = count_complete(rows)
        if complete:
            names = names or _count_vector_names(rows)  # the first item sets the width for all that follow
            yield _convert(rows.slice(0, complete), names, source.after(first_row))
        rest, first_row = rows.slice(complete), first_row + complete
    if rest.num_rows:
        yield _convert(rest, names or _count_vector_names(rest), source.after(first_row))


def check_same_columns(first: ItemLists, other: ItemLists, first_name: str, name: str) -> None:
    """Raise a DataError unless two ItemLists can be joined."""
    try:
        ItemLists.concat([first[:0], other[:0]])
    except DataError as error:
        difference = str(error).partition(": ")[2]
        raise DataError(f"{name} does not have the columns of {first_name}: {difference}") from error


def _check_schema(schema: Any, source: str) -> None:
    if missing := [name for name in ("list_id", "item_id") if name not in schema.names]:
        raise DataError(
            f"{source}: no column {' and no column '.join(missing)}. Expected list_id and item_id, with one row per "
            f"list (item_id holds lists) or one row per item; found {', '.join(schema.names) or 'no columns'}"
        )
    if doubled := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise DataError(f"{source}: column {doubled[0]} occurs twice")
    try:
        facts = _read_metadata(schema)
        is_newer = facts.get("version", _VERSION) > _VERSION
        is_whole = is_newer or all(is_names(facts.get(key, [])) for key in ("feature_names", "context", "aside"))
    except (ValueError, TypeError):
        is_newer = is_whole = False
    if is_newer:
        raise DataError(f"{source}: written by a newer version of seq2slate; upgrade to read it")
    if not is_whole:
        raise DataError(f"{source}: the metadata of seq2slate in the schema is damaged; write the file again")


def is_names(value: Any) -> bool:
    """Say whether a value that was read from JSON is a list of text."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _rows_are_lists(schema: Any) -> bool:
    return is_list(schema.field("item_id").type)


def _no_rows(schema: Any) -> Any:
    return _plain(pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema))


def _plain(batch: Any) -> Any:
    """Return the batch with all text as large_string, dictionaries resolved, without a DataFrame's index."""
    columns = {
        name: plain_column(column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if not name.startswith("__index_level_")
    }
    return pa.RecordBatch.from_pydict(columns, metadata=batch.schema.metadata)


def _joined(first: Any, second: Any) -> Any:
    if not first.num_rows:
        return second
    return pa.Table.from_batches([first, second]).combine_chunks().to_batches()[0]


def _complete_list_rows(rows: Any) -> int:
    """Count the rows that can be converted: all or, as long as no item tells how many features there are, none."""
    return rows.num_rows if len(rows.column("item_id").flatten()) else 0


def _complete_item_rows(rows: Any) -> int:
    """Count the rows before the last list, which may go on in the next batch."""
    return int(_run_starts(rows.column("list_id"))[-1]) if rows.num_rows else 0


def _run_starts(values: Any) -> IntArray:
    """Return where a value differs from the one before it."""
    codes = values.dictionary_encode(null_encoding="encode").indices.to_numpy()
    return np.flatnonzero(np.diff(codes, prepend=-1))


def _vector_names(schema: Any) -> tuple[str, ...]:
    """Return the names that the numbers in `features` were written with, if any."""
    return tuple(_read_metadata(schema).get("feature_names", ()))


def _count_vector_names(rows: Any) -> tuple[str, ...]:
    """Return as many names as the first item has numbers in `features`."""
    if "features" not in rows.schema.names:
        return ()
    vectors = rows.column("features")
    if is_list(vectors.type) and _rows_are_lists(rows.schema):
        vectors = vectors.flatten()
    first = vectors.drop_null()[:1]
    return default_feature_names(len(first.flatten()) if is_list(first.type) else 0)


def _convert(rows: Any, vector_names: tuple[str, ...], source: Source) -> ItemLists:
    split = _split_list_rows if _rows_are_lists(rows.schema) else _split_item_rows
    return _assemble(split(rows, source), vector_names, source.name)


# One row per list


def _split_list_rows(rows: Any, source: Source) -> _Columns:
    list_ids = _list_ids(rows, source)

    def name_row(row: int, *details: str) -> str:
        return source.at(row, f"list {list_ids[row].as_py()!r}", *details)

    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    ragged = {name: flatten_lists(values, name, name_row) for name, values in columns.items() if is_list(values.type)}
    offsets, _ = ragged["item_id"]
    lengths = np.diff(offsets)
    for name, (other_offsets, _) in ragged.items():
        others = np.diff(other_offsets)
        if (others != lengths).any():
            row = int((others != lengths).argmax())
            raise DataError(f"{name_row(row)}: item_id has {lengths[row]} entries, {name} has {others[row]}")

    def name_item(item: int) -> str:
        row = int(np.searchsorted(offsets, item, side="right")) - 1
        return name_row(row, f"item {item - offsets[row]}")

    per_list = {name: values for name, values in columns.items() if name not in ragged and name != "list_id"}
    impressions = _impression_columns(rows.schema)
    for name in columns:
        if (name in ("features", *FIELDS) or name in impressions.per_item) and name not in ragged:
            raise DataError(
                f"{source.name}: {name} holds {columns[name].type}, but each row needs a list with one value per item"
            )
        if name in impressions.per_list and name in ragged:
            raise DataError(f"{source.name}: {name} holds {columns[name].type}, but each row needs one value")
    per_item = {name: values for name, (_, values) in ragged.items()}
    return _Columns(list_ids, offsets, per_item, per_list, impressions, name_row, name_item)


# One row per item


def _split_item_rows(rows: Any, source: Source) -> _Columns:
    starts = _run_starts(rows.column("list_id"))
    run_lengths = np.diff(starts, append=rows.num_rows)
    list_of_row = np.repeat(np.arange(len(starts)), run_lengths)
    row_ids = _list_ids(rows, source)
    list_ids = row_ids.take(pa.array(starts))
    _check_contiguous(list_ids, starts, source)

    def name_row(row: int) -> str:
        return source.at(row, f"list {row_ids[row].as_py()!r}")

    order = _base_order(rows, list_of_row, run_lengths, name_row)
    impressions = _impression_columns(rows.schema)
    per_list_names = {*impressions.per_list, *_read_metadata(rows.schema).get("context", ())}
    in_place = np.array_equal(order, np.arange(rows.num_rows))
    per_item, per_list = {}, {}
    for name, values in zip(rows.schema.names, rows.columns, strict=True):
        if name in per_list_names:
            per_list[name] = _constant_in_list(name, values, starts, list_of_row, name_row)
        elif name not in ("list_id", "position"):
            per_item[name] = values if in_place else values.take(pa.array(order))
    offsets = offsets_from_lengths(np.bincount(list_of_row[order], minlength=len(starts)))
    return _Columns(
        list_ids,
        offsets,
        per_item,
        per_list,
        impressions,
        lambda q: name_row(int(starts[q])),
        lambda item: name_row(int(order[item])),
    )


def _base_order(rows: Any, list_of_row: IntArray, run_lengths: IntArray, name_row: Callable[[int], str]) -> IntArray:
    """Return the rows that hold items, each list sorted by position."""
    if "position" not in rows.schema.names:
        return np.arange(rows.num_rows)
    positions = as_numbers(rows.column("position"), "position", name_row)
    no_item = rows.column("item_id").is_null().to_numpy(zero_copy_only=False) & np.isnan(positions)
    if (strange := no_item & (run_lengths[list_of_row] > 1)).any():
        raise DataError(
            f"{name_row(int(strange.argmax()))}: no item_id and no position, which is how an empty list is written, "
            "but the list has more rows"
        )
    if (strange := np.isnan(positions) & ~no_item).any():
        raise DataError(f"{name_row(int(strange.argmax()))}: the position is missing")
    items = np.flatnonzero(~no_item)
    order = items[np.lexsort((positions[items], list_of_row[items]))]
    same = (np.diff(positions[order]) == 0) & (np.diff(list_of_row[order]) == 0)
    if same.any():
        row = int(order[1:][same].min())
        raise DataError(f"{name_row(row)}: position {positions[row]:g} is taken by another item of the list")
    return order


def _constant_in_list(
    name: str, values: Any, starts: IntArray, list_of_row: IntArray, name_row: Callable[[int], str]
) -> Any:
    """Return the value that every list repeats on its rows."""
    codes = values.dictionary_encode(null_encoding="encode").indices.to_numpy()
    changed = codes != codes[starts][list_of_row]
    if changed.any():
        raise DataError(f"{name_row(int(changed.argmax()))}: column {name} changes within the list")
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


# From columns to lists


def _impression_columns(schema: Any) -> ImpressionColumns:
    return ImpressionColumns.of(schema.names, before_slots="aside" in _read_metadata(schema))


def _assemble(columns: _Columns, vector_names: tuple[str, ...], source: str) -> ItemLists:
    fields: dict[str, FloatArray] = {}
    categorical: dict[str, Strings] = {}
    blocks: list[tuple[tuple[str, ...], npt.NDArray[np.floating]]] = []
    for name, values in columns.per_item.items():
        if name == "item_id" or name in columns.impressions.per_item:
            continue
        if name in FIELDS:
            fields[FIELDS[name]] = np.array(as_float32(as_numbers(values, name, columns.name_item)))  # not Arrow's own
        elif name == "features":
            blocks.insert(0, _vectors(values, vector_names, columns.name_item))
        elif is_number(values.type):
            blocks.append(((name,), as_numbers(values, name, columns.name_item)[:, None]))
        elif is_text(values.type):
            categorical[name] = values
        else:
            raise _unusable(source, name, values)
    lists = ItemLists(
        features=_stacked([block for _, block in blocks], int(columns.offsets[-1])),
        offsets=columns.offsets,
        list_ids=columns.list_ids,
        item_ids=as_ids(columns.per_item["item_id"], "item_id", source),
        feature_names=[name for names, _ in blocks for name in names],
        categorical=categorical,
        context={
            name: _context(values, name, columns.name_list, source)
            for name, values in columns.per_list.items()
            if name not in columns.impressions.per_list
        },
        impressions=columns.impressions.read(
            columns.per_item | columns.per_list, columns.offsets, columns.name_item, columns.name_list, source
        ),
        **fields,
    )
    return lists.checked(columns.name_item, columns.name_list)


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
    ids = as_ids(rows.column("list_id"), "list_id", source.name)
    if ids.null_count:
        raise DataError(f"{source.at(int(ids.is_null().to_numpy(zero_copy_only=False).argmax()))}: no list_id")
    return ids


def _context(values: Any, name: str, name_list: Callable[[int], str], source: str) -> Any:
    if is_text(values.type):
        return values
    if not is_number(values.type):
        raise _unusable(source, name, values)
    return as_numbers(values, name, name_list).astype(np.float64)


def _unusable(source: str, name: str, values: Any) -> DataError:
    return DataError(f"{source}: column {name} holds {values.type}, neither numbers nor text; drop or convert it")


# Out


def to_table(lists: ItemLists, layout: Layout = "lists") -> Any:
    """Return lists as an Arrow table, with one row per list or, with `layout="items"`, one row per item.

    >>> import numpy as np
    >>> lists = ItemLists(np.array([[1.5], [2], [3]]), [0, 2, 3], labels=[0, 1, 0], feature_names=["price"])
    >>> to_table(lists).column_names
    ['list_id', 'item_id', 'features', 'label']
    >>> to_table(lists, "items").to_pylist()[1]
    {'list_id': '0', 'position': 1, 'item_id': '1', 'price': 2.0, 'label': 1.0}
    """
    return pa.concat_tables(table_slices(lists, layout))


def table_slices(lists: ItemLists, layout: Layout) -> Iterator[Any]:
    """Yield the table of `to_table` in slices of bounded size, at least one."""
    if layout not in ("lists", "items"):
        raise UsageError(f'layout must be "lists" or "items", got {layout!r}')
    _check_writable(lists, layout)
    make = _list_rows if layout == "lists" else _item_rows
    most_items = max(1, _CELLS_PER_SLICE // (lists.n_features + 16))
    start = 0
    while start < max(1, len(lists)):
        fitting = int(np.searchsorted(lists.offsets, lists.offsets[start] + most_items, side="right")) - 1
        stop = max(start + 1, min(fitting, start + most_items))
        yield make(lists[start:stop])
        start = stop


def _list_rows(lists: ItemLists) -> Any:
    def ragged(values: Any) -> Any:
        return pa.ListArray.from_arrays(pa.array(lists.offsets, pa.int32()), pa.array(values))

    columns = {"list_id": _short(lists.list_ids), "item_id": ragged(_short(lists.item_ids))}
    if lists.n_features:
        ends = np.arange(lists.n_items + 1, dtype=np.int32) * lists.n_features
        columns["features"] = ragged(pa.ListArray.from_arrays(pa.array(ends), _short(lists.features.ravel())))
    columns |= {name: ragged(values) for name, values in _present_fields(lists)}
    columns |= {name: ragged(_short(values)) for name, values in lists.categorical.items()}
    columns |= {name: _short(values) for name, values in lists.context.items()}
    of_items, of_lists = arrow_impressions(lists.impressions)
    columns |= {name: ragged(_short(values)) for name, values in of_items.items()}
    columns |= {name: _short(values) for name, values in of_lists.items()}
    return with_metadata(pa.table(columns), version=_version(lists), feature_names=lists.feature_names)


def _item_rows(lists: ItemLists) -> Any:
    rows_of_list = np.maximum(lists.lengths, 1)  # an empty list needs a row to stand on
    list_of_row = np.repeat(np.arange(len(lists)), rows_of_list)
    empty = (lists.lengths == 0)[list_of_row]
    item_of_row = pa.array(np.cumsum(~empty) - 1, mask=empty)

    def by_row(values: Any) -> Any:
        return pa.array(values).take(item_of_row)

    def repeated(values: Any) -> Any:
        return pa.array(values).take(pa.array(list_of_row))

    columns = {
        "list_id": repeated(_short(lists.list_ids)),
        "position": by_row(lists.positions),
        "item_id": by_row(_short(lists.item_ids)),
    }
    columns |= {name: by_row(_short(lists.features[:, j])) for j, name in enumerate(lists.feature_names)}
    columns |= {name: by_row(values) for name, values in _present_fields(lists)}
    columns |= {name: by_row(_short(values)) for name, values in lists.categorical.items()}
    columns |= {name: repeated(_short(values)) for name, values in lists.context.items()}
    of_items, of_lists = arrow_impressions(lists.impressions)
    columns |= {name: by_row(_short(values)) for name, values in of_items.items()}
    columns |= {name: repeated(_short(values)) for name, values in of_lists.items()}
    return with_metadata(pa.table(columns), version=_version(lists), context=list(lists.context))


def _present_fields(lists: ItemLists) -> Iterator[tuple[str, FloatArray]]:
    for name, field in FIELDS.items():
        values = getattr(lists, field)
        if values is not None:
            yield name, values


def _version(lists: ItemLists) -> int:
    return 1 if lists.impressions is None else _VERSION


def _short(values: Any) -> Any:
    """Return text with 32-bit offsets, which every reader of Parquet knows, and numbers with null for NaN."""
    if isinstance(values, np.ndarray):
        return pa.array(values, from_pandas=True)
    return values.cast(pa.string()) if is_text(values.type) else values


def _check_writable(lists: ItemLists, layout: Layout) -> None:
    reserved = ["list_id", "item_id", "features", *FIELDS, *reserved_names(lists.impressions)]
    columns = [*lists.categorical, *lists.context]
    if layout == "items":
        reserved.append("position")
        columns += lists.feature_names
    taken = set(reserved)
    for name in columns:
        if name in taken or name.startswith("__index_level_"):
            raise DataError(f"two columns named {name!r}, or a reserved name; rename one of them")
        taken.add(name)
    if layout == "items" and len(lists.list_ids.unique()) < len(lists):
        twice = next(count["values"] for count in lists.list_ids.value_counts().to_pylist() if count["counts"] > 1)
        raise DataError(f"list {twice!r} occurs twice, which one row per item cannot represent; rename one")


def with_metadata(table: Any, *, version: int = 1, **facts: Any) -> Any:
    """Return the table with what its columns alone cannot say."""
    return table.replace_schema_metadata({_METADATA: json.dumps({"version": version, **facts})})


def _read_metadata(schema: Any) -> dict[str, Any]:
    text = (schema.metadata or {}).get(_METADATA)
    return dict(json.loads(text)) if text else {}
