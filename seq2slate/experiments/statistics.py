"""The statistics that the analyses of experiments share: ratios over units, and intervals for one look or for any.

`seq2slate.experiments.analysis` has the formulas and where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt

from scipy.special import ndtr, ndtri

LEVEL = 0.95
ALPHA = 1 - LEVEL
Z = float(ndtri(1 - ALPHA / 2))
"""How many standard errors a fixed interval reaches to either side."""
MIN_UNITS = 50
"""Of an arm, before anything is said that holds at any look: a variance estimated from fewer is too often too small."""


@dataclass(frozen=True)
class Interval:
    """From where to where, at the level of 95%."""

    low: float
    high: float


def ratio_variance(n: int, y: int, x: int, yy: int, xx: int, xy: int) -> float | None:
    """Return the variance of Σy/Σx over n units, from the sums of y, x, y², x² and xy; None if they show no spread.

    Whole numbers stay whole to the last division: in floating point the squares of large counts would cancel.

    >>> ratio_variance(3, 3, 6, 5, 14, 8)  # of y = 0, 1, 2 and x = 1, 2, 3: 3/2 · (0.5² + 0² + 0.5²) / 6²
    0.0208
    """
    if n < 2 or x <= 0:
        return None
    residual = yy * x * x - 2 * y * x * xy + y * y * xx  # Σ(y − r x)², times (Σx)²
    return n * residual / ((n - 1) * x**4) if residual else None


def two_sided_p(value: float, variance: float) -> float:
    """Return the probability of a normal value at least as far from 0."""
    return float(2 * ndtr(-abs(value) / sqrt(variance)))


def any_time_inference(value: float, variance: float, tau: float, comparisons: int = 1) -> tuple[Interval, float]:
    """Return the interval around an estimate and the p-value of 0 that hold at all looks together.

    With several comparisons they hold for all of these together (Bonferroni's bound).

    >>> interval, p = any_time_inference(value=3.035, variance=1, tau=7.94**0.5)  # tau makes it narrowest at this look
    >>> interval.low, p
    (0.00, 0.05)
    """
    ratio = tau * tau / variance
    half = sqrt(variance * (1 + 1 / ratio) * (log(1 + ratio) - 2 * log(ALPHA / comparisons)))
    exponent = 0.5 * log(1 + ratio) - value * value / (2 * variance) * ratio / (1 + ratio)
    return around(value, half), exp(min(0.0, exponent + log(comparisons)))


def around(value: float, half: float) -> Interval:
    """Return the interval of a value and half a width."""
    return Interval(value - half, value + half)
