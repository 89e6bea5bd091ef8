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

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seq2slate.data.assembly import KEY, Name, Source, assemble, check_contiguous, first_null, run_starts, split_rows
from seq2slate.data.checks import find_traps
from seq2slate.data.columns import as_ids, is_list, plain_column
from seq2slate.data.frames import as_arrow
from seq2slate.data.lists import IntArray, ItemLists, default_feature_names, offsets_from_lengths
from seq2slate.data.plan import VECTORS, Plan, make_plan, read_metadata
from seq2slate.data.roles import ColumnRoles, Columns, as_columns
from seq2slate.errors import DataError, warn_of_data

_JOINT = "/"


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
    data: Any, columns: Columns, *, source: str = "table", labelled: bool = True, place: Name | None = None
) -> tuple[ItemLists, IntArray]:
    """Return the lists of a table, and the row (T,) of the table that each item comes from, or its entry (see `Parts`).

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
    whole, n_rows = [_no_rows(table.schema, plan)], 0
    for batch in table.to_batches():
        whole.append(_prepared(batch, plan, where.after(n_rows)))
        n_rows += batch.num_rows
    rows = _joined(*whole)
    order = None if plan.rows_are_lists else _grouping(rows.column(KEY))
    if order is not None:
        rows = rows.take(pa.array(order))
        where = Source(where.name, _permuted(where.place, order))
    roles = _checked_roles(rows, plan)
    parts = split_rows(rows, plan, where)
    names = _vector_names(table.schema) or _count_vector_names(rows, plan)
    lists = assemble(parts, plan, names, where.name, roles)
    return lists, parts.rows if order is None else order[parts.rows]


def _permuted(place: Name, order: IntArray) -> Name:
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
        check_contiguous(lists.list_ids, rows, source)
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
    roles = roles._replace(
        uses=uses, warnings=(*roles.warnings, *(trap.warning for trap in traps.values() if trap.warning))
    )
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
    columns[KEY] = _joined_ids(columns, plan.list_id, source)
    return pa.RecordBatch.from_pydict(columns)


def _joined_ids(columns: Mapping[str, Any], names: tuple[str, ...], source: Source) -> Any:
    if len(names) == 1:
        return columns[names[0]]
    parts = [as_ids(columns[name], name, source.at) for name in names]
    for name, part in zip(names, parts, strict=True):
        if part.null_count:
            raise DataError(f"{source.at(first_null(part))}: no {name}, which is part of list_id")
    joined = pc.binary_join_element_wise(*parts, pa.scalar(_JOINT, pa.large_string()))
    codes = np.stack([part.dictionary_encode().indices.to_numpy() for part in parts], axis=1)
    if len(np.unique(codes, axis=0)) > len(joined.unique()):
        raise DataError(f"{source.name}: {' and '.join(names)} cannot be joined, for both contain {_JOINT!r}")
    return joined


def _joined(*batches: Any) -> Any:
    """Return the rows of all batches as one, without a copy if only one has any."""
    filled = [batch for batch in batches if batch.num_rows] or [*batches[-1:]]
    if len(filled) == 1:
        return filled[0]
    (whole,) = pa.Table.from_batches(filled).combine_chunks().to_batches()
    return whole


def _count_complete(rows: Any, plan: Plan) -> int:
    """Count the rows that can be converted.

    With one row per list these are all or, as long as no item tells how many features there are, none. With one row per
    item the last list may go on in the next batch.
    """
    if plan.rows_are_lists:
        return rows.num_rows if len(rows.column(plan.item_id).flatten()) else 0
    return int(run_starts(rows.column(KEY))[-1]) if rows.num_rows else 0


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
    return assemble(split_rows(rows, plan, source), plan, vector_names, source.name, roles)
