"""Write a group of impressions and clicks, and what they add to the counts, inside one transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from seq2slate.log.backend import Connection, Row
from seq2slate.log.counts import Definition
from seq2slate.log.impressions import ROW, ClickOutcome, Columns, Draft, Impression, columns_of, to_row
from seq2slate.log.tally import ShownSlate, Tally


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


@dataclass(frozen=True)
class Probe:
    """A write that is taken back at once, as large as an impression: to see whether the log has room for one."""


Entry: TypeAlias = NewImpression | NewClick | Probe | Definition

_NOTE_DEFINITION = (
    "INSERT INTO definitions (experiment, control, weights) VALUES (?, ?, ?) "
    "ON CONFLICT (experiment) DO UPDATE SET control = excluded.control, weights = excluded.weights"
)
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
    click: NewClick
    item: int
    slate: ShownSlate
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
    for entry in entries:
        if isinstance(entry, Definition):
            connection.rows(_NOTE_DEFINITION, (entry.experiment, entry.control, json.dumps(dict(entry.weights))))
    if any(isinstance(entry, Probe) for entry in entries):
        connection.each(_INSERT_COLUMNS, [("probe", " " * 65_536)])
        connection.rows("DELETE FROM column_sets WHERE key = 'probe'")
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
            slate = ShownSlate(one.experiment, one.arm, one.unit, one.at, one.draft)
            tally.add_impression(slate, len(one.shown), one.fallback)


def _write_clicks(connection: Connection, clicks: dict[int, NewClick], tally: Tally) -> dict[int, ClickOutcome]:
    slates = _find_slates(connection, {click.slate_id for click in clicks.values()})
    outcomes: dict[int, ClickOutcome] = {}
    placed: list[_Placed] = []
    for number, click in clicks.items():
        if click.slate_id not in slates:
            outcomes[number] = ClickOutcome.UNKNOWN_SLATE
            continue
        slate, items, shown = slates[click.slate_id]
        item = items.index(click.item_id) if click.item_id in items else -1
        if item not in shown:
            outcomes[number] = ClickOutcome.NOT_SHOWN
            continue
        placed.append(_Placed(number, click, item, slate, shown.index(item)))
    placed.sort(key=lambda one: (one.click.slate_id, one.item))
    inserted = connection.each(_INSERT_CLICK, [(one.click.slate_id, one.item, one.click.at) for one in placed])
    for one, is_new in zip(placed, inserted, strict=True):
        outcomes[one.number] = ClickOutcome.NEW if is_new else ClickOutcome.DUPLICATE
        if is_new:
            tally.add_click(one.slate, one.position)
    return outcomes


def _find_slates(connection: Connection, slate_ids: set[str]) -> dict[str, tuple[ShownSlate, list[str], list[int]]]:
    """Return the slates that are in the log, each with its item ids and shown indices."""
    rows = connection.rows(
        "SELECT slate_id, experiment, arm, unit, at, draft, items, shown FROM impressions "
        f"WHERE slate_id IN ({', '.join('?' * len(slate_ids))})",
        tuple(slate_ids),
    )
    found = {}
    for slate_id, experiment, arm, unit, at, draft, items, shown in rows:
        slate = ShownSlate(experiment, arm, unit, at, None if draft is None else Draft.from_json(draft))
        found[slate_id] = slate, json.loads(items), json.loads(shown)
    return found
