"""The statistics of live experiments: variances over units, fixed-horizon and always-valid intervals, and tests.

Units (users, as a rule) are assigned to arms and come back, so the impressions of one unit are not independent. Units
are the sample, and every rate is a ratio of two sums over units, whose variance the delta method gives
(`ratio_variance`). Two kinds of intervals are made from an estimate and its variance (`infer`):

- *fixed-horizon*: valid at one analysis that was planned beforehand, and at no other.
- *always-valid*: a confidence sequence. It covers the truth at all analyses together, so anybody may look at any time
  and stop as soon as it excludes 0.

Both rely on the central limit theorem over units: some hundreds of units in each arm. The always-valid one also assumes
that the estimate behaves like Brownian motion in the clock 1/V. That is exact when each unit counts once, or all units
count alike; docs/experiments.md shows what is left of it when some units come back often and others never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, log, sqrt
from typing import NamedTuple

from scipy.special import chdtrc, ndtr, ndtri

LEVEL = 0.95
"""The confidence level of every interval."""
ALPHA = 1 - LEVEL
Z = float(ndtri(1 - ALPHA / 2))
"""The normal quantile: half the width of a fixed-horizon interval, in standard errors."""
MIN_UNITS = 50
"""Units an always-valid statement needs: a variance estimated from fewer is too often too small."""


@dataclass(frozen=True)
class Interval:
    """A 95% interval."""

    low: float
    high: float

    @classmethod
    def around(cls, value: float, half: float) -> Interval:
        """Return the interval value ± half."""
        return cls(value - half, value + half)

    def clipped(self, low: float, high: float) -> Interval:
        """Return the part of the interval that lies within the bounds."""
        return Interval(max(low, self.low), min(high, self.high))


class Inference(NamedTuple):
    """Both intervals around an estimate, each with the p-value of "the true value is 0"."""

    fixed_horizon: Interval
    fixed_horizon_p: float
    always_valid: Interval | None
    """None with fewer than `MIN_UNITS` units."""
    always_valid_p: float | None


def ratio_variance(n: int, y: int, x: int, yy: int, xx: int, xy: int) -> float | None:
    """Return the variance of a ratio of sums over units, by the delta method.

    For r = Σy / Σx over n units it is

        n / (n − 1) · Σ(y − r x)² / (Σx)²,    Σ(y − r x)² = Σy² − 2r Σxy + r² Σx².

    The sums are integers up to the last division: in floating point the squares of large counts would cancel.

    Args:
        n: Number of units.
        y: Σy.
        x: Σx.
        yy: Σy².
        xx: Σx².
        xy: Σxy.

    Returns:
        The variance, or None if the units show no spread: there are fewer than two, or all have the same ratio.

    >>> ratio_variance(3, 3, 6, 5, 14, 8)  # of y = 0, 1, 2 and x = 1, 2, 3: 3/2 · (0.5² + 0² + 0.5²) / 6²
    0.0208
    """
    if n < 2 or x <= 0:
        return None
    residual = yy * x * x - 2 * y * x * xy + y * y * xx  # Σ(y − r x)², times (Σx)²
    return n * residual / ((n - 1) * x**4) if residual else None


def infer(value: float, variance: float, tau: float, *, units: int, comparisons: int = 1) -> Inference:
    """Return the fixed-horizon and the always-valid interval of an estimate, with their p-values.

    The fixed-horizon interval is value ± z √V, for this comparison alone; its p-value is 2 Φ(−|value| / √V).

    Args:
        value: The estimate.
        variance: Its variance V.
        tau: The effect that one hopes to find, in the unit of the estimate; see `confidence_sequence`.
        units: Units of the smaller sample; below `MIN_UNITS` there is no always-valid interval.
        comparisons: Comparisons that the always-valid interval holds for together.

    >>> found = infer(0.05, 0.0001, tau=0.02, units=40)
    >>> found.fixed_horizon.low, found.always_valid
    (0.0304, None)
    """
    fixed = Interval.around(value, Z * sqrt(variance)), float(2 * ndtr(-abs(value) / sqrt(variance)))
    if units < MIN_UNITS:
        return Inference(*fixed, None, None)
    return Inference(*fixed, *confidence_sequence(value, variance, tau, comparisons))


def confidence_sequence(value: float, variance: float, tau: float, comparisons: int = 1) -> tuple[Interval, float]:
    """Return the always-valid interval of an estimate and the always-valid p-value of 0.

    With V the variance, the interval is d ± √(V (1 + V/τ²) log((1 + τ²/V) / α²)), and the p-value is
    min(1, √(1 + τ²/V) exp(−d² τ² / (2V (V + τ²)))). This is Robbins' normal mixture: the mixture sequential probability
    ratio test (Johari et al., "Always valid inference") with effects from N(0, τ²), in its asymptotic form with an
    estimated variance (Waudby-Smith et al., "Time-uniform central limit theory and asymptotic confidence sequences").

    Args:
        value: The estimate d.
        variance: Its variance V.
        tau: The standard deviation τ of the mixture. Any value that is chosen beforehand is valid; the interval is
            narrowest, 1.55 times the fixed-horizon one, about when an effect of size τ becomes significant.
        comparisons: Number of comparisons; the result holds for all of them together (Bonferroni).

    >>> interval, p = confidence_sequence(value=3.035, variance=1, tau=7.94**0.5)  # narrowest at this variance
    >>> interval.low, p
    (0.00, 0.05)
    """
    ratio = tau * tau / variance
    half = sqrt(variance * (1 + 1 / ratio) * (log(1 + ratio) - 2 * log(ALPHA / comparisons)))
    exponent = 0.5 * log(1 + ratio) - value * value / (2 * variance) * ratio / (1 + ratio)
    return Interval.around(value, half), exp(min(0.0, exponent + log(comparisons)))


def wilson_interval(rate: float, n: float, z: float = Z) -> Interval:
    """Return Wilson's score interval of a proportion, which suits rare clicks.

    (p + z²/2n ± z √(p (1 − p) / n + z²/4n²)) / (1 + z²/n)

    Args:
        rate: The observed proportion p.
        n: Sample size; an effective one need not be an integer.
        z: Quantile of the normal or of Student's t distribution.

    >>> wilson_interval(0.0, 10)
    Interval(low=0.0, high=0.278)
    """
    middle = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return Interval.around(middle, half).clipped(0.0, 1.0)


def newcombe_interval(rate: float, interval: Interval, other_rate: float, other: Interval) -> Interval:
    """Return Newcombe's hybrid score interval of rate − other_rate, made of the intervals of the two rates.

    >>> newcombe_interval(0.8, wilson_interval(0.8, 70), 0.6, wilson_interval(0.6, 80))  # Newcombe (1998), table II
    Interval(low=0.0524, high=0.3339)
    """
    value = rate - other_rate
    below = hypot(rate - interval.low, other.high - other_rate)
    above = hypot(interval.high - rate, other_rate - other.low)
    return Interval(value - below, value + above)


def chi_square_p(observed: Sequence[float], expected: Sequence[float]) -> float:
    """Return the p-value of Pearson's chi-square test, Σ(o − e)² / e with len(expected) − 1 degrees of freedom.

    >>> chi_square_p([4900, 5100], [5000, 5000])
    0.0455
    """
    distance = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    return float(chdtrc(len(expected) - 1, distance))
