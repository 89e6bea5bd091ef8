"""The log as lists to train on: one row per impression, in the Parquet layout of `data.tables`.

Items are in base order with the features they had. A label is 1 for an item that was clicked and 0 for every other,
also for those that were not shown; `shown_slot` tells the two apart. Everything else that the log knows of an
impression is in the columns of `ItemLists.impressions`, which are never features.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from time import time

from seq2slate.data.impressions import BAD_FEATURES, ItemColumns, context_types, lists_from_impressions
from seq2slate.data.lists import ItemLists
from seq2slate.data.parquet import write_parquet_parts
from seq2slate.errors import DataError, UsageError
from seq2slate.log.reading import ImpressionFilter, LogReader

_CURE = "export a part with --since, --until"


def export(
    log: LogReader, path: str | os.PathLike[str], chosen: ImpressionFilter | None = None, *, batch: int = 1024
) -> int:
    """Write the chosen impressions to a Parquet file, which appears whole or not at all; return their number.

    Slates without usable features are left out. No more than `batch` impressions are in memory.

    Raises:
        DataError: If there are no such impressions, or their columns changed: then export the log in parts.
    """
    chosen = replace(chosen or ImpressionFilter(), without_fallback=BAD_FEATURES)
    if chosen.until is None:  # what a service writes meanwhile is left to the next export
        chosen = replace(chosen, until=time())
    columns = _columns(log, chosen)
    try:
        context = context_types(log.contexts(chosen))
    except DataError as error:
        raise DataError(f"{log.name}: {error}; {_CURE}") from error
    return write_parquet_parts(_parts(log, chosen, columns, context, batch), path)


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


def _columns(log: LogReader, chosen: ImpressionFilter) -> ItemColumns:
    """Return the columns that all chosen impressions share."""
    sets = log.column_sets(chosen)
    if not sets:
        raise DataError(f"{log.name}: no impressions to export")
    if len(sets) > 1:
        parts = "; ".join(
            f"{len(columns.features)} features and {len(columns.categorical)} text columns "
            f"from {_say_time(first)} to {_say_time(last)}"
            for columns, first, last in sets
        )
        raise DataError(f"{log.name}: the columns of the items changed ({parts}); {_CURE}")
    return sets[0][0]


def _say_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _parts(
    log: LogReader, chosen: ImpressionFilter, columns: ItemColumns, context: Mapping[str, type], batch: int
) -> Iterator[ItemLists]:
    """Yield the pages of a log as lists; a late commit may have brought other columns since they were looked at."""
    for page in log.pages(chosen, batch=batch):
        try:
            if page[0].columns != columns:
                raise DataError(f"the columns of impression {page[0].slate_id!r} are new")
            part = lists_from_impressions(page, context)
        except DataError as error:
            raise DataError(f"{log.name}: {error}: it was just committed, so export again") from error
        yield part
