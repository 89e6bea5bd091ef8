"""What a run says in the terminal, and in tables.txt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from seq2slate.atomic import atomic_path
from seq2slate.evaluation.run_folder import Rows
from seq2slate.reproduce.cells import Cell
from seq2slate.reproduce.results import Results
from seq2slate.reproduce.tables import notes, text_table
from seq2slate.reproduce.workers import Failure

_WIDTH = 180


class Said(NamedTuple):
    """The rows of what was written."""

    tables: Mapping[str, Rows]
    timing: Rows


def say(
    run: Mapping[str, Any], written: Said, results: Results, failures: Mapping[Cell, Failure]
) -> Iterator[RenderableType]:
    """Yield the notes, the tables, the times, and what failed."""
    for note in run["notes"]:
        yield Text(note)
    for name, rows in written.tables.items():
        yield Text()
        yield text_table(name, rows)
        for note in notes(name, rows, results):
            yield Text(note)
    if written.timing:
        yield Text()
        yield _timing(written.timing)
    if run["seconds"]:
        yield Text()
        yield _seconds(run["seconds"])
    for cell, failure in failures.items():
        yield Text(f"failed: {cell}: {failure.reason}", style="bold")
    if failures:
        yield Text("failures.txt has the details; the same command tries these cells again, and no others")


def print_and_write(console: Console, parts: Iterable[RenderableType], path: Path) -> None:
    """Print for people, and write the same as plain text."""
    kept = list(parts)
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8") as file:
        plain = Console(file=file, width=_WIDTH, color_system=None)
        for part in kept:
            plain.print(part)
    for part in kept:
        console.print(part)


def _plain_table(title: str, *headers: str) -> Table:
    table = Table(*headers, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, title=title)
    table.title_justify, table.title_style = "left", "bold"
    return table


def _timing(rows: Rows) -> Table:
    title = "Time: the decoders with one thread; training to the best epoch as its cells had it"
    table = _plain_table(title, "what", "by", "seconds", "ratio", "in the paper")
    for row in rows:
        ratios = ["" if row[name] is None else f"{row[name]:.1f}×" for name in ("ratio", "paper")]
        table.add_row(row["what"], row.get("decoder") or row.get("ranker"), f"{row['seconds']:.3g}", *ratios)
    return table


def _seconds(seconds: Mapping[str, Any]) -> Table:
    """Return how long the cells took, on average over folds and seeds."""
    users = [name for name, value in seconds.items() if isinstance(value, Mapping)]
    columns = [f"{user}-clicks: {what}" for user in users for what in ("training", "ranking")]
    table = _plain_table("Seconds a cell, mean over folds and seeds", "", *columns)
    for recipe in dict.fromkeys(recipe for user in users for recipe in seconds[user]):
        cells = [
            f"{seconds[user][recipe][what]:.1f}" if recipe in seconds[user] else ""
            for user in users
            for what in ("training", "ranking")
        ]
        table.add_row(recipe, *cells)
    return table
