"""Tables as rows for JSON, and all that a run prints: tables with the paper's numbers, notes, and times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from seq2slate.evaluation.comparison import SHOWN_METRIC, Comparison, Rows, is_ceiling
from seq2slate.evaluation.sheets import Sheet, table_sheets
from seq2slate.evaluation.statistics import two_way_interval
from seq2slate.metrics import Values
from seq2slate.reproduce.plan import TABLES, Cell, Row, paper_row, rows_of
from seq2slate.reproduce.results import Results, interval_of, paired
from seq2slate.reproduce.workers import Failure


class PrintedRows(NamedTuple):
    """The rows of the tables and of the times that a run has written."""

    tables: Mapping[str, Rows]
    timing: Rows


def table_rows(name: str, results: Results) -> list[dict[str, Any]]:
    """Return the rows of a table of the paper, each with the name of its row there."""
    plan = TABLES[name]
    rows = rows_of(name, results.settings, results.n_train)
    found = metric_rows(results, plan.user, rows, plan.metrics, against=plan.reference)
    return [{**row, "paper": paper_row(name, row["ranker"])} for row in found]


def metric_rows(
    results: Results, user: str, rows: Sequence[Row], metrics: Sequence[str], *, against: str
) -> list[dict[str, Any]]:
    """Return a row for each ranker and metric: mean, difference to one of them, intervals, training lists and seeds."""
    reference = next(row for row in rows if row.recipe == against)
    compares = bool(results.of(user, reference))
    found = []
    for row in rows:
        seeds = list(results.of(user, row))
        for metric in metrics if seeds else ():
            values = results.values(user, row, metric)
            entry: dict[str, Any] = {"ranker": row.recipe, "metric": metric, **interval_of(values)}
            if compares and row != reference:
                others = results.values(user, reference, metric)
                entry |= {"against": against, "difference": interval_of(paired(values, others))}
            found.append({**entry, "lists": results.n_lists(row), "seeds": seeds})
    return found


def notes(name: str, rows: Rows, results: Results) -> Iterator[str]:
    """Yield how to read a table, which ranker is first, and which rankers are not told apart from the first row."""
    comparison = Comparison(rows)
    if not comparison.rankers:
        yield "no row is complete"
        return
    user, metric = TABLES[name].user, comparison.main_metric
    values = {
        row.recipe: results.values(user, row, metric)
        for row in rows_of(name, results.settings, results.n_train)
        if row.recipe in comparison.rankers
    }
    yield (
        f"{next(iter(values.values())).shape[-1]:,} test lists. Gap closed: the share of the way from the base order "
        "to the ceiling of the same view. Paper: Web30k and Yahoo, whose data these are not unless given with --data."
    )
    yield from (comparison.headline(one) for one in (metric, SHOWN_METRIC) if comparison.contenders(one))
    yield from undecided({ranker: found for ranker, found in values.items() if not is_ceiling(ranker)}, metric)


def undecided(values: Mapping[str, Values], metric: str) -> Iterator[str]:
    """Yield which rankers the lists are too few to tell from the first, by the values (seeds, lists) of each.

    The comparison is paired, since all rankers see the same lists: two intervals may overlap, mostly because lists
    differ, while the interval of the difference excludes 0.
    """
    first, *others = values
    close = []
    for ranker in others:
        low, high = two_way_interval(paired(values[first], values[ranker]))
        if not (low > 0 or high < 0):
            close.append(ranker)
    if close:
        yield (
            f"By {metric}, {values[first].shape[-1]:,} lists are too few to tell {first} from {_listed(close)}: the "
            "95% interval of their difference, list by list, includes 0."
        )


def _listed(names: Sequence[str]) -> str:
    """Join names as people do.

    >>> _listed(["A", "B", "C"])
    'A, B and C'
    """
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


# What a run prints


def printed_parts(
    run: Mapping[str, Any], written: PrintedRows, results: Results, failures: Mapping[Cell, Failure]
) -> Iterator[RenderableType]:
    """Yield the notes, the tables, the times, and the cells that failed."""
    for note in run["notes"]:
        yield Text(note)
    for name, rows in written.tables.items():
        for sheet in table_sheets(name, rows):
            yield from printed_sheet(sheet)
        for note in notes(name, rows, results):
            yield Text(note)
    if written.timing:
        yield Text()
        yield _timing(written.timing)
    if run["seconds"]:
        yield Text()
        yield _seconds(run["seconds"])
    yield from printed_failures(failures)


def printed_sheet(sheet: Sheet) -> Iterator[RenderableType]:
    """Yield a table for a terminal, and its notes."""
    table = _plain_table(sheet.title)
    table.padding = (0, 1, 0, 0)
    for number, header in enumerate(sheet.header):
        table.add_column(header, no_wrap=not number, overflow="fold", min_width=max(5, *map(len, header.split())))
    for row in sheet.rows:
        table.add_row(*(Text(cell.strip("*"), style="bold" if cell.startswith("**") else "") for cell in row))
    yield Text()
    yield table
    yield from map(Text, sheet.notes)


def printed_failures(failures: Mapping[Cell, Failure]) -> Iterator[RenderableType]:
    """Yield the cells that failed, and what to do."""
    for cell, failure in failures.items():
        yield Text(f"failed: {cell}: {failure.reason}", style="bold")
    if failures:
        yield Text("failures.txt has the details; the same command tries these cells again, and no others")


def _plain_table(title: str, *headers: str) -> Table:
    table = Table(*headers, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, title=title or None, title_style="bold")
    table.title_justify = "left"
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
