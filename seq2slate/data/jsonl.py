"""JSON lines, plain or gzip: one object per list, with the column names of `seq2slate.data.tables`.

The format is for small data and for reading by eye: it goes through Python objects. Names of the features, where they
have names of their own, stand in each object as `feature_names`.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from seq2slate.data.assembly import Source
from seq2slate.data.layouts import table_slices, with_metadata
from seq2slate.data.lists import ItemLists, default_feature_names
from seq2slate.data.plan import is_names, is_unicode, make_plan
from seq2slate.data.roles import Columns
from seq2slate.data.tables import join_chunks
from seq2slate.data.text import AnyPath, line_chunks, text_writer
from seq2slate.errors import DataError

_CHUNK_BYTES = 4 * 2**20
_LISTS_AT_ONCE = 64
_NAMES = "feature_names"
_FLOATS = pa.list_(pa.float32())
_VECTORS = pa.list_(_FLOATS)
_NOT_A_COLUMN = (pa.ArrowException, OverflowError, UnicodeEncodeError)
"""What Arrow raises for values of several types, a number beyond 64 bits, and half a surrogate pair."""


def read_jsonl(path: AnyPath, columns: Columns | None = None, *, labelled: bool = True) -> ItemLists:
    """Return the lists of a file with one JSON object per line; blank lines are skipped.

    `columns` are the roles of its columns; without `labelled` a declared label may be missing.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "one.jsonl"
    >>> _ = path.write_text('{"list_id": "a", "item_id": ["x", "y"], "price": [1.5, 2], "label": [0, 1]}')
    >>> lists = read_jsonl(path)
    >>> lists.item_ids.to_pylist(), lists.feature_names, lists.labels.tolist()
    (['x', 'y'], ('price',), [0.0, 1.0])
    """
    tables: list[Any] = []
    line_numbers: list[int] = []
    names: list[str] | None = None
    schema = pa.schema([])
    for numbers, records in _parsed_chunks(path):
        chunk_names = [record.pop(_NAMES, None) for record in records]
        names = names if tables else chunk_names[0]
        for number, line_names in zip(numbers, chunk_names, strict=True):
            if line_names is not None and not is_names(line_names):
                raise DataError(f"{path}, line {number}: {_NAMES} must be a list of text")
            if line_names != names:
                raise DataError(f"{path}, line {number}: {_NAMES} differ from those of the first list")
        tables.append(_table(records, [f"{path}, line {number}" for number in numbers]))
        schema = _common_schema(schema, tables[-1].schema, f"{path}, line {numbers[0]}")
        line_numbers += numbers
    if not tables:
        raise DataError(f"{path}, line 1: the file holds no lists")
    table = pa.concat_tables(tables, promote_options="permissive")
    if names is not None:
        table = with_metadata(table, feature_names=names)
    plan = make_plan(table.schema, columns or Columns(), str(path), labelled=labelled)
    source = Source(str(path), lambda row: f"line {line_numbers[row]}")
    return join_chunks(table.schema, table.to_batches(), source, plan=plan)


def write_jsonl(lists: ItemLists, path: AnyPath) -> None:
    """Write one JSON object per list; reading it back gives the same lists, names and columns."""
    if not len(lists):
        raise DataError(f"{path}: JSON lines cannot hold a file without lists; write Parquet instead")
    if _NAMES in (*lists.categorical, *lists.context):
        raise DataError(f"{path}: a column may not be named {_NAMES!r} in JSON lines; rename it")
    # Names are written where the values do not tell: names of their own, or no item to count the columns of.
    tells = lists.n_items and lists.feature_names == default_feature_names(lists.n_features)
    names = {} if tells else {_NAMES: list(lists.feature_names)}
    with text_writer(path) as stream:
        for record in _records(lists.checked()):
            stream.write(json.dumps(record | names, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def _records(lists: ItemLists) -> Iterator[dict[str, Any]]:
    for table in table_slices(lists, "lists"):
        for batch in table.to_batches(max_chunksize=_LISTS_AT_ONCE):
            columns = [_with_short_numerals(column) for column in batch.columns]
            yield from pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()


def _with_short_numerals(column: Any) -> Any:
    """Return float32 columns as the float64 that prints shortest: 0.1 and not 0.10000000149011612."""
    if column.type == _FLOATS:
        return column.cast(pa.list_(pa.string())).cast(pa.list_(pa.float64()))
    if column.type == _VECTORS:
        return column.cast(pa.list_(pa.list_(pa.string()))).cast(pa.list_(pa.list_(pa.float64())))
    return column


def _parsed_chunks(path: AnyPath) -> Iterator[tuple[list[int], list[dict[str, Any]]]]:
    """Yield the numbers of some lines and the objects that stand there."""
    for first_line, chunk in line_chunks(path, _CHUNK_BYTES):
        lines = {number: line for number, line in enumerate(chunk.split(b"\n"), first_line) if line.strip()}
        if lines:
            yield list(lines), [_parse(line, f"{path}, line {number}") for number, line in lines.items()]


def _parse(line: bytes, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line, object_pairs_hook=partial(_object, place))
    except DataError:
        raise
    except (ValueError, RecursionError) as error:  # thousands of brackets, one in the other
        raise DataError(f"{place}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{place}: not a JSON object, but {type(record).__name__}; every line must be one list")
    return record


def _object(place: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; the names of its columns must be Unicode text, and no two the same."""
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise DataError(f"{place}: {name!r} occurs twice in an object; which one counts is not defined, so remove one")
    for name in (*found, *(found[_NAMES] if is_names(found.get(_NAMES)) else ())):
        if not is_unicode(name):
            raise DataError(
                f"{place}: the name {name!r} has half a surrogate pair, which is no text; rename the column"
            )
    return found


def _table(records: list[dict[str, Any]], places: list[str]) -> Any:
    names = list(dict.fromkeys(name for record in records for name in record))
    return pa.table({name: _column([record.get(name) for record in records], name, places) for name in names})


def _column(values: list[Any], name: str, places: list[str]) -> Any:
    try:
        return pa.array(values)
    except _NOT_A_COLUMN as error:
        row = bisect_left(range(len(values)), True, key=lambda row: not _is_column(values[: row + 1]))
        raise DataError(f"{places[row]}: {name} does not fit the lines before it: {error}") from error


def _is_column(values: list[Any]) -> bool:
    try:
        pa.array(values)
    except _NOT_A_COLUMN:
        return False
    return True


def _common_schema(schema: Any, other: Any, place: str) -> Any:
    try:
        return pa.unify_schemas([schema, other], promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{place} or soon after: a column does not fit the lines before it: {error}") from error
