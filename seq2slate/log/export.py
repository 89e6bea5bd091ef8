"""The log as lists to train on: one row per impression, in the Parquet layout of `data.tables`.

Items are in base order with the features they had. A label is 1 for an item that was clicked and 0 for every other,
also for those that were not shown; `shown_slot` tells the two apart. Everything else that the log knows of an
impression is in the columns of `ItemLists.impressions`, which are never features.

**Exactly once.** An export covers what was committed when it began, and notes in its file how far that is. The next
one goes on from there: `sequence_of` reads the note. Times cannot do that, since a slate may be committed after one
that was shown later.

**Columns.** Whoever sends requests chooses their text and context columns, and one odd request must not decide what a
model is trained on. A column that is rare, or cannot be in the file, is left out with a DataWarning; a value that is
text in a column of numbers, or the reverse, is missing. Only other features are an error: the model has changed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import time

import pyarrow as pa
import pyarrow.parquet as pq

from seq2slate.data.impressions import BAD_FEATURES, ContextValue, Impression, lists_from_impressions
from seq2slate.data.layouts import is_reserved
from seq2slate.data.lists import ITEM_ID, ItemLists
from seq2slate.data.parquet import write_parquet_parts
from seq2slate.errors import DataError, UsageError, warn_of_data
from seq2slate.log.reading import ColumnSet, ImpressionFilter, LogReader

_SEQUENCE_NOTE = "seq2slate.log_sequence"
_RARE = 0.1  # of the slates: a column that fewer have is left out
_CLOCK_SKEW = 5.0  # seconds that the clocks of two machines may differ
_MOST_NAMES, _LONGEST_NAME = 5, 80  # in a warning: the names come from requests


def export(
    log: LogReader, path: str | os.PathLike[str], chosen: ImpressionFilter | None = None, *, batch: int = 1024
) -> int:
    """Write the chosen impressions to a Parquet file, which appears whole or not at all; return their number.

    Slates without usable features are left out. No more than `batch` impressions are in memory.

    Raises:
        DataError: There are no such impressions, or their features changed: then export the log in parts.
    """
    last = log.last_sequence()  # what a service commits from now on is left to the next export
    chosen = replace(chosen or ImpressionFilter(), without_fallback=BAD_FEATURES, through=last)
    if chosen.after is not None and chosen.after > last:
        raise DataError(f"{log.name}: commit {chosen.after} was exported, and {last} is the last: is it another log?")
    sets = log.column_sets(chosen)
    _check_features(log.name, sets)
    slates = sum(one.slates for one in sets)
    text = _text_columns(sets, slates)
    columns = _Columns(text, _context_columns(log.contexts(chosen), slates, taken=text))
    ahead = log.count(replace(chosen, since=max(time() + _CLOCK_SKEW, chosen.since or 0)))
    if ahead:
        warn_of_data(f"{log.name}: {ahead:,} slates are from the future: check the clocks of the services")
    parts = (columns.lists(page) for page in log.pages(chosen, batch=batch))
    notes = {_SEQUENCE_NOTE: str(last)} if chosen.until is None else {}  # what came later is in none of its parts
    return write_parquet_parts(parts, path, notes=notes)


def sequence_of(path: str | os.PathLike[str]) -> int:
    """Return how far an earlier export went: the number of the last impression that was committed when it began."""
    try:
        notes = pq.read_schema(path).metadata or {}
        return int(notes[_SEQUENCE_NOTE.encode()])
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    except (KeyError, ValueError):
        raise DataError(f"{path}: not an export of a log up to its end (without --until), to go on from") from None


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


def _check_features(name: str, sets: list[ColumnSet]) -> None:
    """Raise a DataError unless all impressions have the same features."""
    if not sets:
        raise DataError(f"{name}: no impressions to export")
    times: dict[tuple[str, ...], list[float]] = {}
    for one in sets:
        times.setdefault(one.columns.features, []).extend((one.first, one.last))
    if len(times) > 1:
        parts = "; ".join(
            f"{len(features)} features from {_say_time(min(at))} to {_say_time(max(at))}"
            for features, at in times.items()
        )
        raise DataError(f"{name}: the features of the items changed ({parts}); export a part with --since, --until")


def _say_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


# Columns


@dataclass(frozen=True)
class _Columns:
    """The text and context columns of an export."""

    text: list[str]
    context: Mapping[str, type]

    def lists(self, page: list[Impression]) -> ItemLists:
        return lists_from_impressions([self._fitted(one) for one in page], self.context)

    def _fitted(self, one: Impression) -> Impression:
        """Return an impression with these columns: null where it has none, or a value of the other type."""
        missing = [None] * len(one.items)
        text = {name: one.items if name == ITEM_ID else one.categorical.get(name, missing) for name in self.text}
        given = one.context or {}
        context = {
            name: value
            for name, kind in self.context.items()
            if (value := given.get(name)) is None or isinstance(value, str) == (kind is str)
        }
        return replace(one, categorical=text, context=context)


def _text_columns(sets: list[ColumnSet], slates: int) -> list[str]:
    """Return the text columns to export, those of the most common set first."""
    counts: Counter[str] = Counter()
    for one in sorted(sets, key=lambda one: -one.slates):
        counts.update(dict.fromkeys(one.columns.categorical, one.slates))
    return _usual("text", counts, slates, lambda name: name != ITEM_ID and is_reserved(name, has_impressions=True))


def _context_columns(
    contexts: Iterable[Mapping[str, ContextValue] | None], slates: int, *, taken: list[str]
) -> dict[str, type]:
    """Return the context columns to export, and whether each holds text or numbers: what it has more of."""
    counts, texts, numbers = Counter[str](), Counter[str](), Counter[str]()
    for one in contexts:
        for name, value in (one or {}).items():
            counts[name] += 1
            if value is not None:
                (texts if isinstance(value, str) else numbers)[name] += 1
    names = _usual("context", counts, slates, lambda name: name in taken or is_reserved(name, has_impressions=True))
    for name in names:
        if wrong := min(texts[name], numbers[name]):
            which = "text, not a number" if texts[name] <= numbers[name] else "a number, not text"
            warn_of_data(f"context {_short(name)} is {which}, in {wrong:,} slates: it is missing there")
    return {name: float if numbers[name] and numbers[name] >= texts[name] else str for name in sorted(names)}


def _usual(kind: str, counts: Counter[str], slates: int, is_impossible: Callable[[str], bool]) -> list[str]:
    """Return the names of columns that are neither rare nor impossible; tell which are left out."""
    usual = [name for name, count in counts.items() if count >= _RARE * slates and not is_impossible(name)]
    left_out = sorted(counts.keys() - set(usual), key=lambda name: (-counts[name], name))
    if left_out:
        named = ", ".join(f"{_short(name)} (in {counts[name]:,})" for name in left_out[:_MOST_NAMES])
        more = f" and {len(left_out) - _MOST_NAMES:,} more" if len(left_out) > _MOST_NAMES else ""
        which = f"{kind} columns that few of the {slates:,} slates have, or with reserved names"
        warn_of_data(f"{which}, are left out: {named}{more}")
    return usual


def _short(name: str) -> str:
    return repr(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…")
