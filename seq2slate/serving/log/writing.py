"""Write a group of impressions and clicks, and what they add to the counts, inside one transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

from seq2slate.serving.log.backend import Connection, Row
from seq2slate.serving.log.counts import Tally
from seq2slate.serving.log.impression import ROW, ClickOutcome, Columns, Impression, columns_of, to_row


@dataclass(frozen=True)
class NewImpression:
    """An impression to be written, as it was when it was handed over."""

    impression: Impression
    columns: Columns
    row: Row

    @classmethod
    def of(cls, impression: Impression) -> NewImpression:
        """Make its row."""
        return cls(impression, columns_of(impression), to_row(impression))


@dataclass(frozen=True)
class NewClick:
    """A click to be written."""

    slate_id: str
    item_id: str
    at: float


Entry: TypeAlias = NewImpression | NewClick

_INSERT_COLUMNS = "INSERT INTO column_sets (key, columns) VALUES (?, ?) ON CONFLICT (key) DO NOTHING RETURNING key"
_INSERT_IMPRESSION = (
    f"INSERT INTO impressions ({ROW}) VALUES ({', '.join('?' * len(ROW.split(',')))}) "
    "ON CONFLICT (slate_id) DO NOTHING RETURNING slate_id"
)
_INSERT_CLICK = (
    "INSERT INTO clicks (slate_id, item, at) VALUES (?, ?, ?) ON CONFLICT (slate_id, item) DO NOTHING RETURNING item"
)


@dataclass(frozen=True)
class _Placed:
    """A click on an item that was shown."""

    number: int
    """Of the entry in its group."""
    slate_id: str
    item: int
    at: float
    arm: tuple[str, str]
    unit: str
    shown_at: float
    position: int


def write(
    connection: Connection, entries: Sequence[Entry], known: Set[Columns] = frozenset()
) -> list[ClickOutcome | None]:
    """Write a group; return the outcome of every click, and None for every impression.

    `known` are sets of columns that the log has already. The impressions come first, whatever their place in the group,
    and each kind is in the order of its key: two writers that take rows in the same order cannot block each other.
    """
    tally = Tally()
    impressions = [entry for entry in entries if isinstance(entry, NewImpression)]
    _write_columns(connection, columns_in(entries) - known)
    _write_impressions(connection, sorted(impressions, key=lambda new: new.impression.slate_id), tally)
    clicks = {number: entry for number, entry in enumerate(entries) if isinstance(entry, NewClick)}
    outcomes = _write_clicks(connection, clicks, tally) if clicks else {}
    tally.save(connection)
    return [outcomes.get(number) for number in range(len(entries))]


def columns_in(entries: Sequence[Entry]) -> set[Columns]:
    """Return the sets of columns that a group's impressions have."""
    return {entry.columns for entry in entries if isinstance(entry, NewImpression)}


def _write_columns(connection: Connection, columns: set[Columns]) -> None:
    connection.each(_INSERT_COLUMNS, sorted((one.key, one.to_json()) for one in columns))


def _write_impressions(connection: Connection, impressions: Sequence[NewImpression], tally: Tally) -> None:
    inserted = connection.each(_INSERT_IMPRESSION, [new.row for new in impressions])
    for new, is_new in zip(impressions, inserted, strict=True):
        if is_new:
            one = new.impression
            arm = (one.experiment, one.arm)
            tally.add_impression(arm, one.unit, one.at, len(one.shown), one.fallback)


def _write_clicks(connection: Connection, clicks: dict[int, NewClick], tally: Tally) -> dict[int, ClickOutcome]:
    slates = _find_slates(connection, {click.slate_id for click in clicks.values()})
    outcomes: dict[int, ClickOutcome] = {}
    placed: list[_Placed] = []
    for number, click in clicks.items():
        if click.slate_id not in slates:
            outcomes[number] = ClickOutcome.UNKNOWN_SLATE
            continue
        experiment, arm, unit, shown_at, items, shown = slates[click.slate_id]
        item = items.index(click.item_id) if click.item_id in items else -1
        if item not in shown:
            outcomes[number] = ClickOutcome.NOT_SHOWN
            continue
        position = shown.index(item)
        placed.append(_Placed(number, click.slate_id, item, click.at, (experiment, arm), unit, shown_at, position))
    placed.sort(key=lambda click: (click.slate_id, click.item))
    inserted = connection.each(_INSERT_CLICK, [(click.slate_id, click.item, click.at) for click in placed])
    for one, is_new in zip(placed, inserted, strict=True):
        outcomes[one.number] = ClickOutcome.NEW if is_new else ClickOutcome.DUPLICATE
        if is_new:
            tally.add_click(one.arm, one.unit, one.shown_at, one.position)
    return outcomes


def _find_slates(connection: Connection, slate_ids: set[str]) -> dict[str, tuple[Any, ...]]:
    """Return experiment, arm, unit, time, item ids and shown indices of the slates that are in the log."""
    marks = ", ".join("?" * len(slate_ids))
    rows = connection.rows(
        f"SELECT slate_id, experiment, arm, unit, at, items, shown FROM impressions WHERE slate_id IN ({marks})",
        tuple(slate_ids),
    )
    return {slate_id: (*about, json.loads(items), json.loads(shown)) for slate_id, *about, items, shown in rows}
