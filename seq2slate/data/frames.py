"""DataFrames and other tables as Arrow tables. What cannot be converted is named by column and row.

pandas stores columns of several types as Python objects, and an index beside the columns. A named index becomes a
column that may have a role; one without a name is left out.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa

from seq2slate.data.roles import Columns
from seq2slate.errors import DataError, UsageError

_NOT_A_COLUMN = (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, ValueError)
ACCEPTED = "a pandas or polars DataFrame or an Arrow table"


def as_arrow(data: Any, columns: Columns, source: str) -> Any:
    """Return anything that speaks Arrow as an Arrow table; a column that no role reads may hold anything."""
    if is_pandas(data):
        return _from_pandas(data, columns, source)
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if not hasattr(data, "__arrow_c_stream__"):  # what every library that speaks Arrow has
        hint = "; call its collect() first" if hasattr(data, "collect") else ""
        raise UsageError(f"{source}: expected {ACCEPTED}, got {type(data).__name__}{hint}")
    try:
        reader = pa.RecordBatchReader.from_stream(data)
    except pa.ArrowException as error:  # a single column, for instance
        raise UsageError(f"{source}: expected {ACCEPTED}, got {type(data).__name__}: {error}") from error
    try:
        return reader.read_all()
    except pa.ArrowException as error:
        raise DataError(f"{source}: {error}") from error


def is_pandas(data: Any) -> bool:
    """Say whether something is a pandas DataFrame, without importing pandas."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns") and hasattr(data, "index")


def _from_pandas(df: Any, columns: Columns, source: str) -> Any:
    names = [_text_name(name, source) for name in df.columns]
    if names != list(df.columns):
        df = df.set_axis(names, axis=1)
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{source}: column {doubled} occurs twice")
    has_name = any(name is not None for name in df.index.names)
    try:
        return pa.Table.from_pandas(df, preserve_index=has_name)
    except _NOT_A_COLUMN:
        read = {name: _column(df[name], name, columns, source) for name in names}
    for level, name in enumerate(df.index.names):
        if name is not None:
            read[name] = _column(df.index.get_level_values(level).to_series(), name, columns, source)
    return pa.table(read)


def _text_name(name: Any, source: str) -> str:
    if isinstance(name, str):
        return name
    if isinstance(name, int):
        return str(name)
    raise DataError(f"{source}: the column name {name!r} is not text; rename it, or flatten a MultiIndex of columns")


def _column(values: Any, name: str, columns: Columns, source: str) -> Any:
    """Return a column of pandas as an Arrow array; if no role reads it, what cannot be converted is missing."""
    if getattr(values.dtype, "categories", None) is not None:
        values = values.cat.rename_categories([str(value) for value in values.cat.categories])
    try:
        return pa.array(values, from_pandas=True)
    except _NOT_A_COLUMN as error:
        if name in columns.ignore or (columns.features is not None and not columns.declares(name)):
            return pa.nulls(len(values))
        raise DataError(_describe_mixture(values.tolist(), name, source)) from error


def _describe_mixture(values: list[Any], name: str, source: str) -> str:
    """Name the first row whose value is of another type than those above it."""
    first = next(value for value in values if not _is_missing(value))
    row = next((row for row, value in enumerate(values) if not _fits(value, first)), 0)
    one, other = type(first).__name__, type(values[row]).__name__
    found = f"{values[row]!r} ({other})" + (f" where the rows above hold {one}" if one != other else "")
    return (
        f"{source}, row {row}: column {name} holds {found}; make it one type, such as df[{name!r}].astype(str), or "
        f"declare ignore=[{name!r}]"
    )


def _is_missing(value: Any) -> bool:
    return sys.modules["pandas"].isna(value) is True


def _fits(value: Any, first: Any) -> bool:
    if _is_missing(value) or type(value) is type(first):
        try:
            pa.array([value], from_pandas=True)
        except _NOT_A_COLUMN:
            return False
        return True
    return False
