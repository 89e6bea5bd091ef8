"""Lists as Arrow tables, with one row per list or one row per item: the columns of `seq2slate.data.tables`.

What the columns cannot express is JSON in the schema metadata under `seq2slate`: the names of the features, the roles
of the table that the lists were read from (`origin`) and, in the item layout, which columns are context. In the item
layout an empty list is a row without `item_id` and `position`. Ids that came in as integers are integers again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from seq2slate.data.columns import FIELDS, arrow_impressions, is_text, reserved_names
from seq2slate.data.lists import ITEM_ID, FloatArray, ItemLists
from seq2slate.data.plan import METADATA, VERSION, is_unnamed_index
from seq2slate.errors import DataError, UsageError

Layout: TypeAlias = Literal["lists", "items"]

_CELLS_PER_SLICE = 2**23  # 32 MB of float32


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
    ids = lists.categorical.get(ITEM_ID)
    facts: dict[str, Any] = {}
    if lists.roles is not None and (origin := lists.roles.for_prediction()).changes():
        facts["origin"] = origin.to_dict()
    if ids is not None and ids.equals(lists.item_ids):  # the ids stand in the table already
        facts["ids_are_categories"] = True
        others = {name: values for name, values in lists.categorical.items() if name != ITEM_ID}
        lists = replace(lists, categorical=others)
    _check_writable(lists, layout)
    lists = _with_id_types(lists)
    make = partial(_list_rows if layout == "lists" else _item_rows, facts=facts)
    most_items = max(1, _CELLS_PER_SLICE // (lists.n_features + 16))
    start = 0
    while start < max(1, len(lists)):
        fitting = int(np.searchsorted(lists.offsets, lists.offsets[start] + most_items, side="right")) - 1
        stop = max(start + 1, min(fitting, start + most_items))
        yield make(lists[start:stop])
        start = stop


def _list_rows(lists: ItemLists, facts: Mapping[str, Any]) -> Any:
    def ragged(values: Any) -> Any:
        return pa.ListArray.from_arrays(pa.array(lists.offsets, pa.int32()), pa.array(values))

    columns = {"list_id": _short(lists.original_list_ids()), "item_id": ragged(_short(lists.original_item_ids()))}
    if lists.n_features:
        ends = np.arange(lists.n_items + 1, dtype=np.int32) * lists.n_features
        columns["features"] = ragged(pa.ListArray.from_arrays(pa.array(ends), _short(lists.features.ravel())))
    columns |= {name: ragged(values) for name, values in _present_fields(lists)}
    columns |= {name: ragged(_short(values)) for name, values in lists.categorical.items()}
    columns |= {name: _short(values) for name, values in lists.context.items()}
    of_items, of_lists = arrow_impressions(lists.impressions)
    columns |= {name: ragged(_short(values)) for name, values in of_items.items()}
    columns |= {name: _short(values) for name, values in of_lists.items()}
    return with_metadata(pa.table(columns), version=_version(lists), feature_names=lists.feature_names, **facts)


def _item_rows(lists: ItemLists, facts: Mapping[str, Any]) -> Any:
    rows_of_list = np.maximum(lists.lengths, 1)  # an empty list needs a row to stand on
    list_of_row = np.repeat(np.arange(len(lists)), rows_of_list)
    empty = (lists.lengths == 0)[list_of_row]
    item_of_row = pa.array(np.cumsum(~empty) - 1, mask=empty)

    def by_row(values: Any) -> Any:
        return pa.array(values).take(item_of_row)

    def repeated(values: Any) -> Any:
        return pa.array(values).take(pa.array(list_of_row))

    columns = {
        "list_id": repeated(_short(lists.original_list_ids())),
        "position": by_row(lists.positions),
        "item_id": by_row(_short(lists.original_item_ids())),
    }
    columns |= {name: by_row(_short(lists.features[:, j])) for j, name in enumerate(lists.feature_names)}
    columns |= {name: by_row(values) for name, values in _present_fields(lists)}
    columns |= {name: by_row(_short(values)) for name, values in lists.categorical.items()}
    columns |= {name: repeated(_short(values)) for name, values in lists.context.items()}
    of_items, of_lists = arrow_impressions(lists.impressions)
    columns |= {name: by_row(_short(values)) for name, values in of_items.items()}
    columns |= {name: repeated(_short(values)) for name, values in of_lists.items()}
    return with_metadata(pa.table(columns), version=_version(lists), context=list(lists.context), **facts)


def _with_id_types(lists: ItemLists) -> ItemLists:
    """Return lists whose ids have the types that all of them can be converted to, so that every slice has the same."""
    if lists.roles is None:
        return lists
    list_type, item_type = (str(ids.type) for ids in (lists.original_list_ids(), lists.original_item_ids()))
    return replace(lists, roles=lists.roles._replace(list_id_type=list_type, item_id_type=item_type))


def _present_fields(lists: ItemLists) -> Iterator[tuple[str, FloatArray]]:
    for name, field in FIELDS.items():
        values = getattr(lists, field)
        if values is not None:
            yield name, values


def _version(lists: ItemLists) -> int:
    return 1 if lists.impressions is None else VERSION


def _short(values: Any) -> Any:
    """Return text with 32-bit offsets, which every reader of Parquet knows, and numbers with null for NaN."""
    if isinstance(values, np.ndarray):
        return pa.array(values, from_pandas=True)
    return values.cast(pa.string()) if is_text(values.type) else values


def is_reserved(name: str, *, has_impressions: bool) -> bool:
    """Say whether a column of items or a context column cannot have a name, since it means something else."""
    reserved = ("list_id", "item_id", "features", *FIELDS, *reserved_names(has_impressions=has_impressions))
    return name in reserved or is_unnamed_index(name)


def _check_writable(lists: ItemLists, layout: Layout) -> None:
    columns, taken = [*lists.categorical, *lists.context], set[str]()
    if layout == "items":
        taken.add("position")
        columns += lists.feature_names
    for name in columns:
        if name in taken or is_reserved(name, has_impressions=lists.impressions is not None):
            raise DataError(f"two columns named {name!r}, or a reserved name; rename one of them")
        taken.add(name)
    if layout == "items" and len(lists.list_ids.unique()) < len(lists):
        twice = next(count["values"] for count in lists.list_ids.value_counts().to_pylist() if count["counts"] > 1)
        raise DataError(f"list {twice!r} occurs twice, which one row per item cannot represent; rename one")


def with_metadata(table: Any, *, version: int = 1, **facts: Any) -> Any:
    """Return the table with what its columns alone cannot say."""
    return table.replace_schema_metadata({METADATA: json.dumps({"version": version, **facts})})
