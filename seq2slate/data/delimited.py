"""CSV and TSV, plain or gzip: one row per item, with the columns of `seq2slate.data.tables`.

Every column is read as text first. It becomes numbers or timestamps if all of its values do; codes with leading zeros
("007") stay text, and so do columns that are declared categorical, in the spelling that they have in a DataFrame. Ids
become integers only if nothing is lost. An empty field is missing, and so are NA and NaN among numbers.

A text file cannot say which columns are context or categorical. Where it matters, `NAME.columns.toml` beside the file
does, and is written with it.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from seq2slate.atomic import atomic_path
from seq2slate.data.columns import LEADING_ZERO, MOMENT, TEXT_PER_LIST, spell_categories
from seq2slate.data.layouts import table_slices
from seq2slate.data.lists import IntArray, ItemLists
from seq2slate.data.roles import ColumnRoles, Columns, roles_file
from seq2slate.data.tables import table_with_rows
from seq2slate.data.text import AnyPath, text_writer
from seq2slate.errors import DataError

_MISSING = ("NA", "N/A", "NaN", "nan", "null", "NULL", "None", "")
_WHOLE = r"^[+-]?[0-9]+$"
_BLOCK_BYTES = 2**24
_GLANCE = 100
_DAMAGE = (EOFError, OSError, zlib.error)


def read_csv(path: AnyPath, columns: Columns | None = None, *, labelled: bool = True) -> ItemLists:
    r"""Return the lists of a CSV or TSV file with a header; the rows of a list need not be adjacent.

    `columns` are the roles of its columns; without `labelled` a declared label may be missing.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "clicks.csv"
    >>> _ = path.write_text("query,doc,price,clicked\na,007,1.5,0\na,008,2,1\n")
    >>> lists = read_csv(path, Columns(list_id="query", item_id="doc", label="clicked"))
    >>> lists.item_ids.to_pylist(), lists.features[:, 0].tolist()
    (['007', '008'], [1.5, 2.0])
    """
    return read_csv_rows(path, columns or Columns(), labelled=labelled)[0]


def read_csv_rows(path: AnyPath, columns: Columns, *, labelled: bool = True) -> tuple[ItemLists, IntArray]:
    """Return the lists of a CSV or TSV file, and the row (T,) of the file that each item comes from."""
    text = _read_text(path)
    table = pa.table({name: _converted(text[name].combine_chunks(), name, columns) for name in text.column_names})
    return table_with_rows(table, columns, source=str(path), labelled=labelled, place=partial(_line_of, path))


def write_csv(lists: ItemLists, path: AnyPath) -> None:
    """Write one row per item, with a header; `NAME.columns.toml` tells context and categorical columns.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "lists.csv"
    >>> write_csv(ItemLists([[0.5], [2]], [0, 2], labels=[1, 0], item_ids=["007", "b"]), path)
    >>> print(path.read_text().rstrip())
    "list_id","position","item_id","f1","label"
    "0",0,"007",0.5,1
    "0",1,"b",2,0
    """
    options = pa_csv.WriteOptions(delimiter=_delimiter(path, b","))
    with text_writer(path) as stream:
        writer = None
        for table in table_slices(lists.checked(), "items"):
            if writer is None:
                writer = pa_csv.CSVWriter(stream, table.schema, write_options=options)
            writer.write_table(table)
        assert writer is not None, "there is at least one slice"
        writer.close()
    texts = [name for name, values in lists.context.items() if isinstance(values, pa.Array)]
    roles = {"categorical": [*lists.categorical, *texts], "context": list(lists.context)}
    if not any(roles.values()):
        roles_file(path).unlink(missing_ok=True)  # one of earlier lists would describe columns that are not there
    else:
        lines = [f"{role} = {json.dumps(names, ensure_ascii=False)}\n" for role, names in roles.items() if names]
        with atomic_path(roles_file(path)) as partial:
            partial.write_text("".join(lines), encoding="utf-8")


def align_csv(parts: list[ItemLists]) -> list[ItemLists]:
    """Return files of one data set with the same types: a column that is empty in one holds numbers if others say so.

    >>> number = ItemLists([[0.5, 2.0]], [0, 1], feature_names=["price", "size"])
    >>> empty = ItemLists([[3.0]], [0, 1], feature_names=["size"], categorical={"price": [None]})
    >>> [(part.feature_names, part.features.tolist()) for part in align_csv([empty, number])]
    [(('price', 'size'), [[nan, 3.0]]), (('price', 'size'), [[0.5, 2.0]])]
    """
    widest = sorted(parts, key=lambda part: -part.n_features)
    names = tuple(dict.fromkeys(name for part in widest for name in part.feature_names))
    context = {name for part in parts for name, values in part.context.items() if isinstance(values, np.ndarray)}
    return [_with_numbers(part, names, context) for part in parts]


def _with_numbers(part: ItemLists, names: tuple[str, ...], context: set[str]) -> ItemLists:
    """Return lists in which columns without a value are among the numbers, if they have one of these names."""
    empty = {name for name, values in part.categorical.items() if values.null_count == len(values)} & set(names)
    empty_context = {
        name
        for name in context
        if isinstance(part.context.get(name), pa.Array) and not len(part.context[name].drop_null())
    }
    if not empty and not empty_context:
        return part
    columns = {**dict(zip(part.feature_names, part.features.T, strict=True)), **dict.fromkeys(empty, np.nan)}
    features = np.empty((part.n_items, len(columns)), dtype=np.float32)
    kept = [name for name in names if name in columns]
    for place, name in enumerate(kept):
        features[:, place] = columns[name]
    return replace(
        part,
        features=features,
        feature_names=tuple(kept),
        categorical={name: values for name, values in part.categorical.items() if name not in empty},
        context={
            name: np.full(len(part), np.nan) if name in empty_context else values
            for name, values in part.context.items()
        },
        roles=_numeric_roles(part.roles, empty | empty_context),
    )


def _numeric_roles(roles: ColumnRoles | None, names: set[str]) -> ColumnRoles | None:
    if roles is None:
        return None
    uses = (
        use._replace(role=use.role.removesuffix("categorical").removesuffix(", ") or "feature")
        if use.name in names
        else use
        for use in roles.uses
    )
    return roles._replace(uses=tuple(uses))


def _delimiter(path: AnyPath, header: bytes) -> str:
    """Return the tab for .tsv, and otherwise the most frequent mark in the header, outside quotes."""
    if ".tsv" in [suffix.lower() for suffix in Path(path).suffixes]:
        return "\t"
    bare = re.sub(rb'"[^"]*"', b"", header)
    return max((",", "\t", ";", "|"), key=lambda mark: bare.count(mark.encode()))


def _read_text(path: AnyPath) -> Any:
    """Return all columns as text; an empty field is null, one in quotes is not."""
    delimiter, names = _header(path)
    try:
        with _opened(path) as stream:
            return pa_csv.read_csv(
                pa.PythonFile(stream, mode="r"),
                read_options=pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.large_string()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
    except pa.ArrowException as error:
        for line, fields in _python_rows(path, delimiter):
            if len(fields) != len(names):
                row = f"{len(fields)} fields, but the header has {len(names)}"
                raise DataError(f"{path}, line {line}: {row}: {delimiter.join(fields)[:60]}") from error
        raise DataError(f"{path}: not a CSV file, or damaged: {error}") from error
    except _DAMAGE as error:
        raise DataError(f"{path}: cut off or damaged: {error}") from error


def _header(path: AnyPath) -> tuple[str, list[str]]:
    """Return the delimiter and the names of the columns."""
    try:
        with _opened(path) as stream:
            delimiter = _delimiter(path, stream.readline())
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except _DAMAGE as error:
        raise DataError(f"{path}: not a text file, or damaged: {error}") from error
    names = next((fields for _, fields in _python_rows(path, delimiter)), [])
    if not names:
        raise DataError(f"{path}, line 1: the file is empty; the first line names the columns")
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{path}, line 1: column {doubled} occurs twice")
    return delimiter, names


def _opened(path: AnyPath) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if Path(path).suffix.lower() == ".gz" else Path(path).open("rb")


def _python_rows(path: AnyPath, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line in which each row begins, and its fields; slow, for headers and error messages."""
    with _opened(path) as stream, TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        reader, line = csv.reader(text, delimiter=delimiter), 1
        try:
            for fields in reader:
                if fields:
                    yield line, fields
                line = reader.line_num + 1
        except (csv.Error, UnicodeDecodeError, *_DAMAGE) as error:
            raise DataError(f"{path}, line {line}: {error}") from error


def _line_of(path: AnyPath, row: int) -> str:
    """Name the line of a row of data, for error messages."""
    rows = _python_rows(path, _header(path)[0])
    line = next((line for number, (line, _) in enumerate(rows) if number == row + 1), row + 2)
    return f"line {line}"


# From text to values


def _converted(text: Any, name: str, columns: Columns) -> Any:
    if name in (columns.item_id, *columns.list_id_columns, *TEXT_PER_LIST):
        return _id_values(text)
    return spell_categories(text) if name in columns.categorical else _values(text)


def _id_values(text: Any) -> Any:
    """Return integers if they are written as the text is, so that "007" and "+7" stay text."""
    if not _all_match(text, _WHOLE):
        return text
    try:
        numbers = text.cast(pa.int64())
    except pa.ArrowInvalid:  # beyond 64 bits
        return text
    return numbers if numbers.cast(pa.large_string()).equals(text) else text


def _values(text: Any) -> Any:
    """Return numbers, booleans or timestamps if all values are; otherwise the text itself."""
    present = pc.if_else(pc.is_in(text, pa.array(_MISSING)), None, text)
    if text.null_count == len(text):
        return pa.nulls(len(text))
    if present.null_count == len(present) or pc.any(pc.match_substring_regex(present, LEADING_ZERO)).as_py():
        return text
    for kind, pattern in ((pa.int64(), _WHOLE), (pa.float64(), None), (pa.bool_(), None), (pa.timestamp("us"), MOMENT)):
        if pattern is None or _all_match(present, pattern):
            try:
                return present.cast(kind)
            except pa.ArrowInvalid:
                continue
    return text


def _all_match(text: Any, pattern: str) -> bool:
    """Say whether all values match, of which there must be one; the first ones often tell that they do not."""
    if len(text) > _GLANCE and not pc.all(pc.match_substring_regex(text[:_GLANCE], pattern), min_count=0).as_py():
        return False
    return bool(len(text) - text.null_count and pc.all(pc.match_substring_regex(text, pattern)).as_py())
