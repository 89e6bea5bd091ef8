"""The log as training lists: one row per impression, in the Parquet layout that `train` and `evaluate` read.

Items stand in base order with the features they had. A label is 1 for an item that was clicked and 0 for every other;
that holds for items that were not shown, too, and `shown_position` (-1 for them) tells the two apart.
`propensity` is the probability with which an item got its slot, given the slots above it. It is 1 where nothing
was left to chance, and 1 for an item that was not shown, so that the product over a list is the probability of its
slate.

`shown_position`, `arm`, `unit` and `at` stand aside: for whoever analyses the file, never inputs of a model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from time import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seq2slate.atomic import atomic_path
from seq2slate.data.lists import FloatArray, ItemLists, offsets_from_lengths
from seq2slate.data.tables import to_table, with_metadata
from seq2slate.errors import DataError, UsageError
from seq2slate.log.impressions import (
    BAD_FEATURES,
    Columns,
    ContextValue,
    Impression,
    LoggedImpression,
    columns_of,
)
from seq2slate.log.reading import Range
from seq2slate.log.store import Store

_NOT_SHOWN = -1


def export(store: Store, path: str | os.PathLike[str], chosen: Range | None = None, *, batch: int = 1024) -> int:
    """Write the impressions of a range to a Parquet file, which appears whole or not at all; return their number.

    Slates without usable features are left out. No more than `batch` impressions are in memory. They must have the same
    columns: a log whose features changed is exported in parts.
    """
    chosen = replace(chosen or Range(), without_fallback=BAD_FEATURES)
    if chosen.until is None:  # what a service writes meanwhile is left to the next export
        chosen = replace(chosen, until=time())
    columns = _columns(store, chosen)
    context = _context_kinds(store, chosen)
    tables = (_to_table(_as_checked(page, columns, context), context) for page in store.pages(chosen, batch=batch))
    first = next(tables, None)
    if first is None:
        raise DataError(f"{store.name}: no impressions to export")
    total = first.num_rows
    with atomic_path(path) as partial, pq.ParquetWriter(partial, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
            total += table.num_rows
    return int(total)


def parse_time(text: str) -> float:
    """Return a time in seconds since 1970: those themselves, or ISO 8601, in UTC unless it says otherwise.

    >>> parse_time("1970-01-02"), parse_time("1970-01-01T01:00+01:00"), parse_time("0.5")
    (86400.0, 0.0, 0.5)
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a time; expected one like 2026-01-31T12:00 or seconds since 1970") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _columns(store: Store, chosen: Range) -> Columns | None:
    """Return the columns of all impressions, None without impressions; refuse what does not fit into one table."""
    sets = store.column_sets(chosen)
    if len(sets) > 1:
        parts = "; ".join(
            f"{len(columns.features)} features and {len(columns.categorical)} text columns "
            f"from {_say_time(first)} to {_say_time(last)}"
            for columns, first, last in sets
        )
        raise DataError(
            f"{store.name}: the columns of the items changed ({parts}); export a part with --since, --until"
        )
    return sets[0][0] if sets else None


def _as_checked(
    page: Sequence[LoggedImpression], columns: Columns | None, context: Mapping[str, type]
) -> Sequence[LoggedImpression]:
    """Return a page whose columns are those that were found before: a late commit may have brought others."""
    for logged in page:
        one = logged.impression
        given = {name: _kind(value) for name, value in (one.context or {}).items()}
        numbers = {name for name, kind in context.items() if kind is float}
        fits = all(
            context.get(name) is kind or (kind is type(None) and name in context) for name, kind in given.items()
        )
        if columns_of(one) != columns or not fits or any(given.get(name) is not float for name in numbers):
            raise DataError(f"the columns of slate {one.slate_id!r}, which was just committed, differ: export again")
    return page


def _say_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _context_kinds(store: Store, chosen: Range) -> dict[str, type]:
    """Return whether each context column holds numbers (float) or text (str)."""
    kinds: dict[str, set[type]] = {}
    numbers: dict[str, int] = {}
    total = 0
    for text in store.contexts(chosen):
        total += 1
        for name, value in (json.loads(text) if text else {}).items():
            kinds.setdefault(name, set()).add(_kind(value))
            numbers[name] = numbers.get(name, 0) + (_kind(value) is float)
    for name, found in kinds.items():
        if float in found and (str in found or numbers[name] < total):
            other = "text in others" if str in found else "missing in others"
            raise DataError(
                f"{store.name}: context {name!r} is a number in some impressions and {other}; "
                "export a part with --since, --until"
            )
    return {name: float if float in found else str for name, found in sorted(kinds.items())}


def _kind(value: ContextValue) -> type:
    return type(None) if value is None else str if isinstance(value, str) else float


def _to_table(page: Sequence[LoggedImpression], context: Mapping[str, type]) -> Any:
    impressions = [logged.impression for logged in page]
    first = impressions[0]
    offsets = offsets_from_lengths(np.array([len(one.items) for one in impressions]))
    lists = ItemLists(
        features=np.concatenate([one.features for one in impressions]),
        offsets=offsets,
        labels=_per_item(_labels(logged) for logged in page),
        list_ids=[one.slate_id for one in impressions],
        item_ids=[item for one in impressions for item in one.items],
        feature_names=first.feature_names,
        categorical={
            name: [value for one in impressions for value in one.categorical[name]] for name in first.categorical
        },
        context={name: _context(impressions, name, kind) for name, kind in context.items()},
        propensities=_per_item(_propensities(one) for one in impressions),
    )
    positions = _per_item(_shown_positions(one) for one in impressions).astype(np.int32)
    aside = {
        "shown_position": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(positions)),
        "arm": pa.array([one.arm for one in impressions], pa.string()),
        "unit": pa.array([one.unit for one in impressions], pa.string()),
        "at": pa.array([one.at for one in impressions], pa.float64()),
    }
    table = to_table(lists)
    for name, values in aside.items():
        if name in table.column_names:
            raise DataError(f"a column of the items is named {name!r}, which has a meaning of its own; rename it")
        table = table.append_column(name, values)
    return with_metadata(table, feature_names=lists.feature_names, aside=list(aside))


def _per_item(values: Iterator[FloatArray]) -> FloatArray:
    return np.concatenate(list(values))


def _labels(logged: LoggedImpression) -> FloatArray:
    labels = np.zeros(len(logged.impression.items), np.float32)
    labels[list(logged.clicks)] = 1
    return labels


def _propensities(impression: Impression) -> FloatArray:
    propensities = np.ones(len(impression.items), np.float32)
    if impression.log_propensities is not None:
        propensities[list(impression.shown)] = np.minimum(np.exp(impression.log_propensities), 1)
    return propensities


def _shown_positions(impression: Impression) -> FloatArray:
    positions = np.full(len(impression.items), _NOT_SHOWN, np.float32)
    positions[list(impression.shown)] = np.arange(len(impression.shown))
    return positions


def _context(impressions: Sequence[Impression], name: str, kind: type) -> Any:
    values = [(one.context or {}).get(name) for one in impressions]
    return np.array(values, np.float64) if kind is float else pa.array(values, pa.large_string())
