"""A table of rankers by metrics: which is best, the gain over the base order, and the share of the gap closed.

A row is {"ranker", "metric", "mean", "low", "high"}, with null for what is not known. It may say more: "lists" and
"seeds" that the ranker was trained with, its "difference" {"mean", "low", "high"} to the row "against", list by list,
and the name of its row in the "paper". Two kinds of rows are references: "base order", and those whose names begin with
"ceiling", which know what no ranker can. All others are contenders. Higher is better in every metric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from seq2slate.evaluation.paper import paper_values
from seq2slate.evaluation.statistics import share_of_gap

Rows: TypeAlias = Sequence[Mapping[str, Any]]
"""Rows of a JSON file: objects that share their fields."""

BASE_ORDER = "base order"
MAIN_METRIC = "NDCG@10"
"""The metric by which a table is read, where it is there."""
SHOWN_METRIC = "re-shown clicks@10"
"""The metric of the second view: a simulated user sees the new slates."""
_SHOWN = "re-shown"
"""In the names of all metrics of the second view, and of its ceiling."""


@dataclass(frozen=True)
class TableCell:
    """One ranker by one metric: a mean with its interval."""

    ranker: str
    mean: float
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval; None without one."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def against(self, reference: float) -> str:
        """Return "above" or "below" if the whole interval is on that side of a reference, and otherwise "unclear"."""
        if self.low is not None and self.low > reference:
            return "above"
        if self.high is not None and self.high < reference:
            return "below"
        return "unclear"

    def overlaps(self, other: TableCell) -> bool:
        """Whether the two intervals share a point; without intervals, whether the means are the same."""
        low, high = (self.mean if end is None else end for end in (self.low, self.high))
        other_low, other_high = (other.mean if end is None else end for end in (other.low, other.high))
        return low <= other_high and other_low <= high


def is_ceiling(ranker: str) -> bool:
    """Whether a row is a ceiling: a ranker that knows what no ranker can."""
    return ranker.startswith("ceiling")


def is_reference(ranker: str) -> bool:
    """Whether a row is the base order or a ceiling, and so no contender."""
    return ranker == BASE_ORDER or is_ceiling(ranker)


@dataclass(frozen=True)
class Comparison:
    """The rows of a table.

    >>> rows = [("base order", 0.5), ("mine", 0.6), ("ceiling", 0.9)]
    >>> comparison = Comparison([{"ranker": name, "metric": "MAP", "mean": mean} for name, mean in rows])
    >>> comparison.best("MAP").ranker, round(comparison.gap_closed("mine", "MAP"), 3)
    ('mine', 0.25)
    """

    rows: Rows

    @cached_property
    def _cells(self) -> dict[tuple[str, str], TableCell]:
        return {
            (row["ranker"], row["metric"]): TableCell(row["ranker"], row["mean"], row.get("low"), row.get("high"))
            for row in self.rows
            if row["mean"] is not None
        }

    @property
    def rankers(self) -> tuple[str, ...]:
        """In the order of the rows."""
        return tuple(dict.fromkeys(row["ranker"] for row in self.rows))

    @property
    def metrics(self) -> tuple[str, ...]:
        """In the order of the rows."""
        return tuple(dict.fromkeys(row["metric"] for row in self.rows))

    @property
    def main_metric(self) -> str:
        """NDCG@10, or the first metric where that is missing."""
        return MAIN_METRIC if MAIN_METRIC in self.metrics or not self.rows else self.metrics[0]

    def cell(self, ranker: str, metric: str) -> TableCell | None:
        """Return one cell; None if it is empty."""
        return self._cells.get((ranker, metric))

    def base(self, metric: str) -> TableCell | None:
        """Return the base order."""
        return self.cell(BASE_ORDER, metric)

    def ceiling(self, metric: str) -> TableCell | None:
        """Return the ceiling of the metric's view, logged labels or re-shown clicks, and never that of the other."""
        found = [
            cell
            for (ranker, name), cell in self._cells.items()
            if name == metric and is_ceiling(ranker) and (_SHOWN in ranker) == (_SHOWN in metric)
        ]
        return max(found, key=lambda cell: cell.mean, default=None)

    def difference(self, ranker: str, metric: str) -> TableCell | None:
        """Return the difference to the row that the table compares with, list by list; None if it is not known."""
        row = self._row(ranker, metric)
        found = None if row is None else row.get("difference")
        if found is None or found["mean"] is None:
            return None
        return TableCell(ranker, found["mean"], found["low"], found["high"])

    def against_base(self, ranker: str, metric: str) -> str:
        """Return "above", "below" or "unclear": a ranker and the base order, list by list where that is known."""
        cell, base = self.cell(ranker, metric), self.base(metric)
        if cell is None or base is None:
            return "unclear"
        paired = self.difference(ranker, metric) if self.against == BASE_ORDER else None
        return cell.against(base.mean) if paired is None else paired.against(0)

    @property
    def against(self) -> str | None:
        """The row that the others are compared with, list by list."""
        return next((row["against"] for row in self.rows if row.get("against")), None)

    def trained_on(self, ranker: str) -> str:
        """Return the number of training lists and of seeds; empty for what is not trained, or where it is not known.

        >>> row = {"ranker": "A", "metric": "MAP", "mean": 0.5, "lists": 4000, "seeds": [0, 1]}
        >>> Comparison([row]).trained_on("A")
        '4,000 × 2'
        """
        row = self._row(ranker)
        if row is None or not row.get("lists"):
            return ""
        return f"{row['lists']:,} × {len(row['seeds'])}"

    def paper_row(self, ranker: str) -> str:
        """Return the name of a row in the paper."""
        row = self._row(ranker)
        return ranker if row is None else str(row.get("paper") or ranker)

    def _row(self, ranker: str, metric: str | None = None) -> Mapping[str, Any] | None:
        return next((row for row in self.rows if row["ranker"] == ranker and metric in (None, row["metric"])), None)

    def contenders(self, metric: str) -> list[TableCell]:
        """Return the rankers that are no references, best first."""
        found = [cell for (ranker, name), cell in self._cells.items() if name == metric and not is_reference(ranker)]
        return sorted(found, key=lambda cell: -cell.mean)

    def best(self, metric: str) -> TableCell | None:
        """Return the best that is not a ceiling; it may be the base order."""
        base = self.base(metric)
        found = [*self.contenders(metric), *([base] if base else [])]
        return max(found, key=lambda cell: cell.mean, default=None)

    def gain(self, ranker: str, metric: str) -> float | None:
        """Return the relative gain over the base order, mean / base - 1; None where the base order is not above 0."""
        cell, base = self.cell(ranker, metric), self.base(metric)
        return None if cell is None or base is None or base.mean <= 0 else cell.mean / base.mean - 1

    def gap_closed(self, ranker: str, metric: str) -> float | None:
        """Return the share of the gap from base order (0) to ceiling (1) that a ranker closes; None without a gap."""
        cell, base, ceiling = self.cell(ranker, metric), self.base(metric), self.ceiling(metric)
        if cell is None or base is None or ceiling is None:
            return None
        return share_of_gap(cell.mean, base.mean, ceiling.mean)

    def headline(self, metric: str) -> str:
        """Say which ranker is first by a metric, its gain, its share of the gap, and which is next.

        >>> means = {"base order": 0.5, "A": 0.6, "B": 0.55, "ceiling": 0.9}
        >>> rows = [{"ranker": ranker, "metric": "MAP", "mean": mean} for ranker, mean in means.items()]
        >>> print(Comparison(rows).headline("MAP"))
        By MAP, A is first with 0.600: +20.0% over the base order, 25% of the gap to the ceiling. Next is B with 0.550.
        """
        first, *others = self.contenders(metric)
        base = self.base(metric)
        if base is not None and base.mean >= first.mean:
            closest = f"{first.ranker} is closest with {first.mean:.3f}"
            return f"By {metric}, no ranker is above the base order ({base.mean:.3f}); {closest}."
        gain, share = self.gain(first.ranker, metric), self.gap_closed(first.ranker, metric)
        found = [] if gain is None else [f"{gain:+.1%} over the base order"]
        found += [] if share is None else [f"{share:.0%} of the gap to the ceiling"]
        text = f"By {metric}, {first.ranker} is first with {first.mean:.3f}{': ' if found else ''}{', '.join(found)}."
        if base is not None and first.overlaps(base):
            text += " Its interval and the base order's overlap."
        if others:
            close = ", and their intervals overlap" if first.overlaps(others[0]) else ""
            text += f" Next is {others[0].ranker} with {others[0].mean:.3f}{close}."
        return text


# Cells as text, for a terminal and for a page


@dataclass(frozen=True)
class CellText:
    """What a cell of a printed table says; a part that does not apply is empty."""

    mean: str
    spread: str
    """± half the width of the interval."""
    is_best: bool
    """Whether no contender and no base order is better."""
    share: str
    """The share of the gap closed; only contenders have one."""
    paper: tuple[str, ...]
    """The paper's values for Web30k and Yahoo."""


def cell_text(table: str, comparison: Comparison, ranker: str, metric: str) -> CellText:
    """Return the text of one cell of a table of the paper, such as "table1"."""
    cell, best = comparison.cell(ranker, metric), comparison.best(metric)
    decimals = 2 if metric == "rank-gain" else 3
    spread = None if cell is None else cell.half_width
    printed = paper_values(table, comparison.paper_row(ranker), metric)
    return CellText(
        "" if cell is None else f"{cell.mean:.{decimals}f}",
        "" if spread is None else f"±{spread:.{decimals}f}",
        cell is not None and best is not None and cell.mean == best.mean and not is_ceiling(ranker),
        "" if is_reference(ranker) else share_text(comparison.gap_closed(ranker, metric)),
        tuple(f"{printed[dataset]:.{decimals - 1}f}" for dataset in ("Web30k", "Yahoo") if printed),
    )


def percent_text(cell: TableCell | None, base: float | None) -> str:
    """Return a difference with its interval, in percent of a base; empty where one of them is not known.

    >>> percent_text(TableCell("A", 0.05, 0.04, 0.07), 0.5)
    '+10.0% (+8.0 to +14.0)'
    """
    if cell is None or not base or base <= 0:
        return ""
    ends = (
        ""
        if cell.low is None or cell.high is None
        else f" ({100 * cell.low / base:+.1f} to {100 * cell.high / base:+.1f})"
    )
    return f"{cell.mean / base:+.1%}{ends}"


def share_text(share: float | None) -> str:
    """Return a share of the gap in percent, or "below" from -100% down, where the number says no more.

    >>> share_text(0.254), share_text(-4.0), share_text(None)
    ('25%', 'below', '')
    """
    if share is None:
        return ""
    return f"{share:.0%}" if share > -0.995 else "below"
