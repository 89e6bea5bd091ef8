"""DataFrames and other tables as Arrow tables. What cannot be converted is named by column and row.

pandas stores columns of several types as Python objects, and an index beside the columns. A named index becomes a
column that may have a role; one without a name is left out.
"""

from __future__ import annotations

import json
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
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{source}: column {doubled} occurs twice")
    is_read = {name: columns.features is None or columns.declares(name) for name in names}
    read = {
        name: _column(df.iloc[:, place], name, source, is_read=is_read[name] and name not in columns.ignore)
        for place, name in enumerate(names)
    }
    index = {}
    for level, given in enumerate(df.index.names):
        if given is not None and (name := _text_name(given, source)) not in read:
            values = df.index.get_level_values(level).to_series()
            index[name] = _column(values, name, source, is_read=columns.declares(name) and name not in columns.ignore)
    return pa.table(read | index, metadata={"pandas": json.dumps({"index_columns": list(index)})})


def _text_name(name: Any, source: str) -> str:
    if isinstance(name, str):
        return name
    if isinstance(name, int):
        return str(name)
    raise DataError(f"{source}: the column name {name!r} is not text; rename it, or flatten a MultiIndex of columns")


def _column(values: Any, name: str, source: str, *, is_read: bool) -> Any:
    """Return a column of pandas as an Arrow array; what cannot be converted is missing if no role reads it."""
    if type(values.dtype).__name__ == "SparseDtype":
        values = values.sparse.to_dense()
    categories = getattr(values.dtype, "categories", None)
    if categories is not None and not _has_arrow_type(categories):
        values = values.cat.rename_categories([str(value) for value in categories])
    try:
        return pa.array(values, from_pandas=True)
    except _NOT_A_COLUMN as error:
        if not is_read:
            return pa.nulls(len(values))
        raise DataError(_describe_mixture(values.tolist(), name, source)) from error


def _has_arrow_type(categories: Any) -> bool:
    """Say whether Arrow can hold categories; not the intervals of pandas.cut, or several types."""
    try:
        return not isinstance(pa.array(categories, from_pandas=True).type, pa.BaseExtensionType)
    except _NOT_A_COLUMN:
        return False


def _describe_mixture(values: list[Any], name: str, source: str) -> str:
    """Name the first row whose value is of another type than those above it."""
    first = next(value for value in values if not _is_missing(value))
    row = next((row for row, value in enumerate(values) if not _fits(value, first)), 0)
    one, other = type(first).__name__, type(values[row]).__name__
    found = f"{source}, row {row}: column {name} holds {values[row]!r} ({other})"
    if one == other:
        return f"{found}, which is neither a number nor text that can be read; convert it, or declare ignore=[{name!r}]"
    return (
        f"{found} where the rows above hold {one}; make it one type with df[{name!r}].astype(str) or "
        f"pandas.to_numeric(df[{name!r}]), or declare ignore=[{name!r}]"
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
