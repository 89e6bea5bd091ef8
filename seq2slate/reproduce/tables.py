"""Tables 1 to 4 as rows for JSON, and all that a run prints: tables with the paper's numbers, notes, and times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from seq2slate.atomic import atomic_path
from seq2slate.evaluation.comparison import (
    BASE_ORDER,
    SHOWN_METRIC,
    Comparison,
    Rows,
    cell_text,
    is_ceiling,
    is_reference,
    share_text,
)
from seq2slate.evaluation.evaluate import SHOWN_CUTS
from seq2slate.evaluation.paper import TITLES
from seq2slate.evaluation.statistics import mean_over_lists, none_if_nan, two_way_interval
from seq2slate.metrics import Values
from seq2slate.reproduce.plan import TABLES, Cell
from seq2slate.reproduce.results import Results
from seq2slate.reproduce.workers import Failure

_MINE = "seq2slate"
_WIDTH = 180


class PrintedRows(NamedTuple):
    """The rows of the tables and of the times that a run has written."""

    tables: Mapping[str, Rows]
    timing: Rows


def table_rows(name: str, results: Results) -> list[dict[str, Any]]:
    """Return a row for each ranker and metric: mean, 95% interval over lists and seeds, and the seeds."""
    user, rankers, metrics = TABLES[name]
    rows = []
    for ranker in rankers:
        seeds = list(results.of(user, ranker))
        if not seeds:
            continue
        values = np.stack([results.values(user, ranker, metric) for metric in metrics])
        for metric, of_metric, (low, high) in zip(metrics, values, two_way_interval(values), strict=True):
            numbers = {"mean": mean_over_lists(of_metric), "low": float(low), "high": float(high)}
            found = {name: none_if_nan(number) for name, number in numbers.items()}
            rows.append({"ranker": ranker, "metric": metric, **found, "seeds": seeds})
    return rows


def text_table(name: str, rows: Rows) -> Table:
    """Return a table for people: under each of our means stands the paper's, for Web30k and Yahoo."""
    comparison = Comparison(rows)
    main = comparison.main_metric
    shown = (f"re-shown clicks@{cut}" for cut in SHOWN_CUTS)
    gaps = [metric for metric in (main, *shown) if comparison.ceiling(metric) is not None]
    table = _plain_table(TITLES[name])
    table.padding = (0, 1, 0, 0)
    table.add_column("ranker", no_wrap=True)
    for header in (*comparison.metrics, f"gain in {main}", *([f"gap closed in {', '.join(gaps)}"] if gaps else [])):
        table.add_column(header, min_width=max(map(len, header.split())))
    for ranker in comparison.rankers:
        cells = [_cell(name, comparison, ranker, metric) for metric in comparison.metrics]
        gain = comparison.gain(ranker, main)
        shares = [] if is_reference(ranker) else [share_text(comparison.gap_closed(ranker, gap)) for gap in gaps]
        ends = ["" if gain is None or ranker == BASE_ORDER else f"{gain:+.1%}", ", ".join(filter(None, shares))]
        table.add_row(ranker, *cells, *ends[: 2 if gaps else 1])
    return table


def _cell(name: str, comparison: Comparison, ranker: str, metric: str) -> Text:
    text = cell_text(name, comparison, ranker, metric)
    value = (f"{text.mean or '-'} {text.spread}".rstrip(), "bold" if text.is_best else "")
    return Text.assemble(value, *([(f"\npaper {'/'.join(text.paper)}", "dim")] if text.paper else []))


def notes(name: str, rows: Rows, results: Results) -> Iterator[str]:
    """Yield how to read a table, which ranker is first, and which rankers are not told apart from seq2slate."""
    comparison = Comparison(rows)
    if not comparison.rankers:
        yield "no row is complete"
        return
    n_seeds = max(len(row["seeds"]) for row in rows)
    user, metric = TABLES[name].user, comparison.main_metric
    values = {ranker: results.values(user, ranker, metric) for ranker in comparison.rankers}
    n_lists = values[comparison.rankers[0]].shape[-1]
    yield (
        f"{n_lists:,} lists, {n_seeds} seed{'s' if n_seeds > 1 else ''}; mean ± half the width of its 95% interval "
        f"over lists{' and seeds' if n_seeds > 1 else ''}; gain over the base order"
        + (", and the share of the gap to the ceiling" if comparison.ceiling(metric) else "")
        + "; paper: Web30k/Yahoo, whose data these are not unless given with --data"
    )
    yield from (comparison.headline(one) for one in (metric, SHOWN_METRIC) if comparison.contenders(one))
    yield from undecided({ranker: found for ranker, found in values.items() if not is_ceiling(ranker)}, metric)


def undecided(values: Mapping[str, Values], metric: str) -> Iterator[str]:
    """Yield which rankers the lists are too few to tell from seq2slate, by the values (seeds, lists) of each.

    The comparison is paired, since all rankers see the same lists: two intervals may overlap, mostly because lists
    differ, while the interval of the difference excludes 0.
    """
    if _MINE not in values:
        return
    mine = values[_MINE]
    close = []
    for ranker, others in values.items():
        n_seeds = min(len(mine), len(others)) if len(others) > 1 else None  # one seed goes with all
        low, high = two_way_interval(mine[:n_seeds] - others[:n_seeds])
        if ranker != _MINE and not (low > 0 or high < 0):
            close.append(ranker)
    if close:
        yield (
            f"By {metric}, {mine.shape[-1]:,} lists are too few to tell {_MINE} from {_listed(close)}: the 95% "
            "interval of their difference, list by list, includes 0."
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
    table = Table(*headers, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, title=title, title_style="bold")
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
