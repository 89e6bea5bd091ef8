"""What the rows of a table say: who is first, how far above the base order, and how much of the gap is closed.

A row is {"ranker", "metric", "mean", "low", "high"}, with null for what is not known. Two kinds of rows are references
and not in the race: "base order", and those whose names begin with "ceiling", which know what no ranker can. More is
better in every metric here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

BASE_ORDER = "base order"
MAIN_METRIC = "NDCG@10"
"""The metric that a table is read by, where it is there."""


@dataclass(frozen=True)
class Value:
    """One ranker by one metric."""

    ranker: str
    mean: float
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval; None without one."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def against(self, reference: float) -> str:
        """Say "above" or "below" if the whole interval is on that side of a reference, and otherwise "unclear"."""
        if self.low is not None and self.low > reference:
            return "above"
        if self.high is not None and self.high < reference:
            return "below"
        return "unclear"

    def overlaps(self, other: Value) -> bool:
        """Whether the two intervals share a point; without intervals, whether the means are the same."""
        low, high = (self.mean if end is None else end for end in (self.low, self.high))
        other_low, other_high = (other.mean if end is None else end for end in (other.low, other.high))
        return low <= other_high and other_low <= high


def is_ceiling(ranker: str) -> bool:
    """Whether a row is a ceiling: a ranker that knows what no ranker can."""
    return ranker.startswith("ceiling")


@dataclass(frozen=True)
class Comparison:
    """The rows of a table.

    >>> rows = [("base order", 0.5), ("mine", 0.6), ("ceiling", 0.9)]
    >>> comparison = Comparison([{"ranker": name, "metric": "MAP", "mean": mean} for name, mean in rows])
    >>> comparison.best("MAP").ranker, round(comparison.gap_closed("mine", "MAP"), 3)
    ('mine', 0.25)
    """

    rows: Sequence[Mapping[str, Any]]

    @cached_property
    def _values(self) -> dict[tuple[str, str], Value]:
        return {
            (row["ranker"], row["metric"]): Value(row["ranker"], row["mean"], row.get("low"), row.get("high"))
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
        return MAIN_METRIC if MAIN_METRIC in self.metrics else self.metrics[0]

    def value(self, ranker: str, metric: str) -> Value | None:
        """Return one cell; None if it is empty."""
        return self._values.get((ranker, metric))

    def base(self, metric: str) -> Value | None:
        """Return the base order."""
        return self.value(BASE_ORDER, metric)

    def ceiling(self, metric: str) -> Value | None:
        """Return the highest ceiling: the two views of a user have different ones."""
        found = [value for (ranker, name), value in self._values.items() if name == metric and is_ceiling(ranker)]
        return max(found, key=lambda value: value.mean, default=None)

    def contenders(self, metric: str) -> list[Value]:
        """Return the rankers that are in the race, best first."""
        found = [
            value
            for (ranker, name), value in self._values.items()
            if name == metric and ranker != BASE_ORDER and not is_ceiling(ranker)
        ]
        return sorted(found, key=lambda value: -value.mean)

    def best(self, metric: str) -> Value | None:
        """Return the best that is not a ceiling; it may be the base order."""
        base = self.base(metric)
        found = [*self.contenders(metric), *([base] if base else [])]
        return max(found, key=lambda value: value.mean, default=None)

    def gain(self, ranker: str, metric: str) -> float | None:
        """Return by which part of the base order's mean a ranker is above it; None where that is not above 0."""
        value, base = self.value(ranker, metric), self.base(metric)
        return None if value is None or base is None or base.mean <= 0 else value.mean / base.mean - 1

    def gap_closed(self, ranker: str, metric: str) -> float | None:
        """Return how far from the base order (0) to the ceiling (1) a ranker is; None without a gap."""
        value, base, ceiling = self.value(ranker, metric), self.base(metric), self.ceiling(metric)
        if value is None or base is None or ceiling is None or ceiling.mean <= base.mean:
            return None
        return (value.mean - base.mean) / (ceiling.mean - base.mean)
