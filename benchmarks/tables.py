"""The table of a benchmark, on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

Rows = list[dict[str, float | str]]
"""The table of a benchmark: in each row the same columns, of which the first says what the row is about."""


def print_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows that all have the same columns."""
    table = Table(*rows[0], title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(_text, row.values()))
    Console().print(table)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)
