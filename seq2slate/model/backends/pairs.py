"""What the kernels of pairs of items read; the formulas are those of `model.interactions`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class PairColumns:
    """The numeric columns whose distances are compared, F of them, and how."""

    levels: Tensor
    """(F,) raw values are level + spread · scaled,"""
    spreads: Tensor
    """(F,)"""
    are_logarithms: Tensor
    """(F,) bool; or the signed exponential of that, less 1."""
    largest_log: float
    """Logarithms are clamped to ± this."""
    quantiles: Tensor
    """(Q,) float64, the quantiles of distances that are knots."""
    median: int
    """Which of them is the median."""
    least_gap: float
    """Knots are apart by at least this part of the median."""
    least: float
    """No median and no length is smaller."""


@dataclass(frozen=True)
class PairWeights:
    """What the distances of a pair, D of them, and its heads, H of them, do to the log-odds of a click."""

    effects: Tensor
    """(D, Q) at the knots."""
    crowding: Tensor
    """(D, Q) at the knots, the same for the mean over the other items."""
    strengths: Tensor
    """(H,) of the heads."""
    constant: Tensor
    """() of every pair."""
    head_width: int
    """Dimensions of a head."""
    sharpness: float
    """How fast the effect of a head falls with the squared distance."""
    least: float
    """No mean squared distance of a head is smaller."""
