"""Click logs in Parquet: one file at a time, or streamed when they are larger than memory.

The columns and the two layouts are those of `seq2slate.data.tables`; error messages count rows from 0, file by file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from seq2slate.atomic import atomic_path
from seq2slate.data.assembly import Source
from seq2slate.data.columns import is_list
from seq2slate.data.layouts import Layout, table_slices
from seq2slate.data.lists import IntArray, ItemLists
from seq2slate.data.plan import METADATA, Plan, make_plan
from seq2slate.data.roles import Columns, as_columns
from seq2slate.data.tables import check_same_columns, iterate_chunks, join_chunks, table_with_rows
from seq2slate.data.text import AnyPath
from seq2slate.errors import DataError, UsageError

_VALUES_PER_BATCH = 2**22
_FIRST_ROWS, _MOST_ROWS = 32, 2**16
_BUFFER_BYTES = 2**20  # not a whole row group at once: some files have only one


def read_parquet(path: AnyPath, columns: Columns | None = None, *, labelled: bool = True) -> ItemLists:
    """Return the lists of a Parquet file, with one row per list or one row per item.

    The file is converted in batches: memory peaks at about twice the size of the result. The rows of a list must be
    adjacent. `columns` are the roles of its columns; without `labelled` a declared label may be missing.
    """
    with _opened(path) as file:
        plan = make_plan(file.schema_arrow, columns or Columns(), str(path), labelled=labelled)
        return join_chunks(file.schema_arrow, _batches(path, file, plan), Source(str(path)), plan=plan)


def read_parquet_rows(path: AnyPath, columns: Columns, *, labelled: bool = True) -> tuple[ItemLists, IntArray]:
    """Return the lists of a Parquet file, read at once, and the row (T,) of the file that each item comes from."""
    with _opened(path) as file:
        return table_with_rows(file.read(), columns, source=str(path), labelled=labelled)


def stream_parquet(
    path: AnyPath,
    columns: Columns | Mapping[str, Any] | None = None,
    *,
    lists_per_chunk: int = 1024,
    **roles: Any,
) -> Iterator[ItemLists]:
    """Yield the lists of a file, or of all Parquet files of a folder in the order of their names, in chunks.

    Every chunk but the last has `lists_per_chunk` lists. Memory holds that many and one batch of a file. In the item
    layout, a list whose rows are not consecutive is not detected: that would take the ids of all lists. `columns` and
    `roles` are those of `from_table`.
    """
    asked = as_columns(columns, roles)
    if lists_per_chunk < 1:
        raise UsageError(f"lists_per_chunk must be at least 1, got {lists_per_chunk}")
    waiting: list[ItemLists] = []
    n_waiting = 0
    for chunk in _file_chunks(parquet_files(path), asked):
        waiting.append(chunk)
        n_waiting += len(chunk)
        if n_waiting < lists_per_chunk:
            continue
        lists = ItemLists.concat(waiting)
        whole = n_waiting - n_waiting % lists_per_chunk
        for start in range(0, whole, lists_per_chunk):
            yield lists[start : start + lists_per_chunk]
        waiting, n_waiting = [lists[whole:]], n_waiting - whole
    if n_waiting:
        yield ItemLists.concat(waiting)


def write_parquet(lists: ItemLists, path: AnyPath, layout: Layout = "lists") -> None:
    """Write lists to a Parquet file; reading it back gives the same lists, names and columns.

    One row per list by default, one row per item with `layout="items"`.
    """
    write_parquet_parts([lists], path, layout)


def write_parquet_parts(
    parts: Iterable[ItemLists], path: AnyPath, layout: Layout = "lists", *, notes: Mapping[str, str] | None = None
) -> int:
    """Write lists that come in parts, all with the same columns, to one Parquet file; return the number of lists.

    The file appears whole or not at all, and only one part at a time has to be in memory. `notes` go into the metadata
    of the schema.
    """
    total, first = 0, None
    with atomic_path(path) as partial, ExitStack() as opened:
        for part in parts:
            slices = table_slices(part.checked(), layout)
            if first is None:
                first, start = part[:0], next(slices)
                noted = start.schema.with_metadata({**(start.schema.metadata or {}), **(notes or {})})
                writer = opened.enter_context(pq.ParquetWriter(partial, noted, compression="zstd"))
                writer.write_table(start)
            check_same_columns(first, part, "the first part", f"the part from list {total} on")
            for table in slices:
                writer.write_table(_as_first(table, start.schema, f"{path}: the part from list {total} on"))
            total += len(part)
        if first is None:
            raise DataError(f"{path}: no lists to write")
    return total


def _as_first(table: Any, schema: Any, name: str) -> Any:
    """Return a table with the types of the first one: its ids may be text where those were integers."""
    if table.schema == schema:
        return table
    try:
        return table.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{name} does not fit the first part: {error}") from error


def parquet_files(path: AnyPath) -> list[Path]:
    """Return the file itself, or the Parquet files of a folder in the order of their names."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.glob("*.parquet") if not file.name.startswith("."))
    if not files:
        raise DataError(f"{path}: no Parquet files in this folder; name text files by a pattern such as '*.txt'")
    return files


def _file_chunks(files: list[Path], columns: Columns) -> Iterator[ItemLists]:
    first: ItemLists | None = None
    for path in files:
        with _opened(path) as file:
            plan = make_plan(file.schema_arrow, columns, str(path))
            for chunk in iterate_chunks(file.schema_arrow, _batches(path, file, plan), Source(str(path)), plan=plan):
                if first is None:
                    first = chunk[:0]
                check_same_columns(first, chunk, str(files[0]), str(path))
                yield chunk


@contextmanager
def _opened(path: AnyPath) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            yield file
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the last: names of columns that are no text
        raise DataError(f"{path}: not a Parquet file, or cut off or damaged: {error}") from error


def is_own_parquet(path: AnyPath) -> bool:
    """Say whether seq2slate wrote a Parquet file, so that its columns are what they say."""
    with _opened(path) as file:
        return bool((file.schema_arrow.metadata or {}).get(METADATA))


def _batches(path: AnyPath, file: Any, plan: Plan) -> Iterator[Any]:
    """Yield the rows in batches of bounded size, with the columns that the plan reads; all text is UTF-8."""
    n_rows = 0
    for batch in file.iter_batches(batch_size=_rows_per_batch(file, plan), columns=plan.read):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.validate(full=True)
            except (pa.ArrowException, ValueError) as error:
                place = f"{path}, {'row' if batch.num_rows == 1 else f'rows {n_rows} to'} {n_rows + batch.num_rows - 1}"
                raise DataError(f"{place}: column {name} is damaged: {error}") from error
        n_rows += batch.num_rows
        yield batch


def _rows_per_batch(file: Any, plan: Plan) -> int:
    """Return how many rows have about `_VALUES_PER_BATCH` values, as the first ones do.

    The footer counts values, too, but Arrow ends the process when these counts are damaged.
    """
    first = next(file.iter_batches(batch_size=_FIRST_ROWS, columns=plan.read), None)
    values = 0 if first is None else sum(map(_count_values, first.columns))
    rows = _MOST_ROWS if first is None or not values else first.num_rows * _VALUES_PER_BATCH // values
    return max(1, min(rows, _MOST_ROWS))


def _count_values(column: Any) -> int:
    while is_list(column.type):
        column = column.flatten()
    return len(column)
