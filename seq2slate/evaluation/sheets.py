"""Printed tables of a run as plain text, for a terminal, a page and Markdown alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import NamedTuple

from seq2slate.evaluation.comparison import (
    BASE_ORDER,
    SHOWN_METRIC,
    Comparison,
    Rows,
    cell_text,
    is_reference,
    percent_text,
    share_text,
)
from seq2slate.evaluation.paper import TITLES

_COLUMNS = 120


class Sheet(NamedTuple):
    """A table of text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def without_empty_columns(self) -> Sheet:
        """Return it without the columns in which no row has a text.

        >>> Sheet("", ["a", "b"], [["1", ""]]).without_empty_columns().header
        ['a']
        """
        kept = [number for number in range(len(self.header)) if any(row[number] for row in self.rows)]
        rows = [[row[number] for number in kept] for row in self.rows]
        return self._replace(header=[self.header[number] for number in kept], rows=rows)

    def markdown(self) -> str:
        r"""Return it as Markdown, under its title.

        >>> print(Sheet("Users", ["user", "clicks"], [["a|b", "1"]], ["Two."]).markdown())
        ### Users
        <BLANKLINE>
        | user | clicks |
        |---|---|
        | a\|b | 1 |
        <BLANKLINE>
        Two.
        """
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        rows = [f"| {' | '.join(line)} |" for line in cells]
        rows[1] = rows[1].replace(" ", "")
        title = [f"### {self.title}", ""] if self.title else []
        return "\n".join([*title, *rows, *(f"\n{wrapped(note)}" for note in self.notes)])


def table_sheets(name: str, rows: Rows) -> Iterator[Sheet]:
    """Yield the means of a table, and then differences, shares of the gap and what the paper has."""
    comparison = Comparison(rows)
    metrics = comparison.metrics
    means = [
        [ranker, comparison.trained_on(ranker), *(_mean(name, comparison, ranker, metric) for metric in metrics)]
        for ranker in comparison.rankers
    ]
    note = "Trained on: lists × seeds. Mean ± half the width of its 95% interval over lists and seeds."
    yield Sheet(title_of(name), ["ranker", "trained on", *metrics], means, [note]).without_empty_columns()
    views = [metric for metric in (comparison.main_metric, SHOWN_METRIC) if metric in metrics]
    header = ["ranker"]
    for metric in views:
        header += [f"{metric} against {comparison.against}", f"gap closed, {metric}"]
    header += ["paper: Web30k", "paper: Yahoo"]
    yield Sheet("", header, list(_differences(name, comparison, views))).without_empty_columns()


def _mean(name: str, comparison: Comparison, ranker: str, metric: str) -> str:
    text = cell_text(name, comparison, ranker, metric)
    whole = f"{text.mean} {text.spread}".strip()
    return f"**{whole}**" if text.is_best else whole


def _differences(name: str, comparison: Comparison, views: Sequence[str]) -> Iterator[list[str]]:
    for ranker in comparison.rankers:
        cells = [ranker]
        for metric in views:
            reference = comparison.cell(comparison.against or BASE_ORDER, metric)
            cells.append(
                percent_text(comparison.difference(ranker, metric), None if reference is None else reference.mean)
            )
            cells.append("" if is_reference(ranker) else share_text(comparison.gap_closed(ranker, metric)))
        paper = cell_text(name, comparison, ranker, comparison.main_metric).paper or ("", "")
        yield [*cells, *paper]


def wrapped(text: str) -> str:
    """Return a text in lines that fit a screen, as the documents have it."""
    return fill(text, _COLUMNS, break_long_words=False, break_on_hyphens=False)


def title_of(name: str) -> str:
    """Return the title of a table, by the name of its file without the suffix.

    >>> title_of("log-shop"), title_of("mine")
    ('Log shop', 'mine')
    """
    return TITLES.get(name) or (f"Log {name.removeprefix('log-')}" if name.startswith("log-") else name)
