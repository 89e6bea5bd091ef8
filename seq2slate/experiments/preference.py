"""Which of two rankers people prefer, from the clicks on slates that both have filled (`serving.interleaving`).

For a unit u with a_u and b_u clicks on what a and b have placed, the preference for b is Σ(b_u − a_u) / Σ(a_u + b_u): a
ratio of sums over units, with the variance of `seq2slate.experiments.analysis`, since the slates of a unit are not
independent. A unit without clicks has no say.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from seq2slate.errors import UsageError
from seq2slate.experiments.counts import DraftCounts
from seq2slate.experiments.statistics import (
    MIN_UNITS,
    Interval,
    Z,
    any_time_inference,
    around,
    ratio_variance,
    two_sided_p,
)

EXPECTED = 0.05
"""The preference that one hopes to find: it tunes what holds at any look."""


@dataclass(frozen=True)
class Preference:
    """How much b is preferred to a: from -1, where all clicks go to a, to 1, where all go to b."""

    a: str
    b: str
    impressions: int
    """Slates that they shared."""
    units: int
    """Those that clicked."""
    a_clicks: int
    b_clicks: int
    estimate: float | None
    """(clicks of b − clicks of a) / all clicks; None without clicks."""
    fixed: Interval | None = None
    """For one planned look; None, like the others, if the units show no spread, as fewer than two of them do."""
    fixed_p: float | None = None
    any_time: Interval | None = None
    """For all looks together; None before `MIN_UNITS` of them have clicked."""
    any_time_p: float | None = None


def preference_of(a: str, b: str, counts: DraftCounts, expected: float = EXPECTED) -> Preference:
    """Return the preference between two arms from their running counts."""
    lead, clicks = counts.b_clicks - counts.a_clicks, counts.a_clicks + counts.b_clicks
    squares = (counts.lead_squared, counts.clicks_squared, counts.lead_times_clicks)
    about = (a, b, counts.impressions, counts.units, counts.a_clicks, counts.b_clicks)
    if not clicks:
        return Preference(*about, None)
    value, variance = lead / clicks, ratio_variance(counts.units, lead, clicks, *squares)
    if variance is None:
        return Preference(*about, value)
    fixed = _limited(around(value, Z * sqrt(variance))), two_sided_p(value, variance)
    if counts.units < MIN_UNITS:
        return Preference(*about, value, *fixed)
    any_time, any_time_p = any_time_inference(value, variance, expected)
    return Preference(*about, value, *fixed, _limited(any_time), any_time_p)


def preference(credits_of_units: npt.ArrayLike) -> Preference:
    """Return how much b is preferred, from (U, 2) the clicks that each unit gave to a and to b over all its slates.

    >>> preference([(0, 2), (1, 1), (0, 1), (2, 1), (0, 2)]).estimate
    0.4
    """
    table = np.asarray(credits_of_units)
    if table.size == 0:
        table = np.zeros((0, 2), dtype=np.int64)
    if table.ndim != 2 or table.shape[1] != 2 or not np.issubdtype(table.dtype, np.integer) or (table < 0).any():
        raise UsageError("credits are two counts for each unit: clicks of a, clicks of b")
    a, b = table.astype(np.int64).T
    lead, total = b - a, a + b
    sums = (a, b, lead**2, total**2, lead * total)
    counts = DraftCounts(len(table), int((total > 0).sum()), *(int(one.sum()) for one in sums))
    return preference_of("a", "b", counts)


def _limited(interval: Interval) -> Interval:
    return Interval(max(-1.0, interval.low), min(1.0, interval.high))
