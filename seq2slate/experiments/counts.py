"""The running counts of an experiment: the sufficient statistics that an analysis needs, as plain values.

For a unit u of an arm let i_u be its impressions and c_u its clicks. An arm has Σ i_u, Σ c_u, Σ i_u², Σ c_u² and
Σ i_u c_u over its units: what the delta method needs for the variance of clicks per impression, where the impressions
of one unit are not independent.

The slots of the slates are counted by clusters of units: a hash puts every unit into one of a few dozen groups, and the
same sums are taken over groups. A few dozen independent groups of whole units are all that a variance needs, and a row
for every unit and slot would be too much.

In interleaved slates, arms a and b are credited with the clicks on the items that each has placed. For a unit with a_u
and b_u such clicks the lead is b_u − a_u; a pair has the sums over units of its square, of (a_u + b_u)², and of their
product.

Counts cover everything since the experiment began: deleting old impressions does not change them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PositionCounts:
    """One slot of an arm's slates; the sums of squares are over groups of units."""

    impressions: int
    """Slates that had an item in this slot."""
    clicks: int
    groups: int = 0
    """Groups of units that saw such a slate."""
    impressions_squared: int = 0
    clicks_squared: int = 0
    impressions_times_clicks: int = 0


@dataclass(frozen=True)
class ArmCounts:
    """One arm of an experiment."""

    units: int
    impressions: int
    """Slates, Σ i_u."""
    clicks: int
    """Σ c_u."""
    impressions_squared: int
    """Σ i_u²."""
    clicks_squared: int
    """Σ c_u²."""
    impressions_times_clicks: int
    """Σ i_u c_u."""
    fallbacks: int
    """Slates that showed the base order because the model failed or was late."""
    positions: tuple[PositionCounts, ...]
    """(K,) from the top slot down, as long as the longest slate."""
    fallback_reasons: Mapping[str, int] = field(default_factory=dict)
    """Number of fallbacks by reason."""


@dataclass(frozen=True)
class DraftCounts:
    """The interleaved slates of two arms, a and b."""

    impressions: int
    units: int
    """Units that clicked."""
    a_clicks: int
    b_clicks: int
    lead_squared: int
    clicks_squared: int
    lead_times_clicks: int


@dataclass(frozen=True)
class Counts:
    """An experiment so far; one without impressions has no arms."""

    experiment: str
    arms: Mapping[str, ArmCounts]
    drafts: Mapping[tuple[str, str], DraftCounts] = field(default_factory=dict)
    """By (a, b), the two arms that were interleaved."""


@dataclass(frozen=True)
class MinuteCounts:
    """The impressions of an arm in one minute, and the clicks on them, whenever they came."""

    minute: int
    """Since 1970."""
    arm: str
    impressions: int
    clicks: int


@dataclass(frozen=True)
class Definition:
    """The settings of an experiment that an analysis of its counts needs."""

    experiment: str
    control: str
    """The arm that the others are compared with."""
    weights: Mapping[str, float]
    """Share of the units assigned to each arm, up to a common factor."""
    models: Mapping[str, str] = field(default_factory=dict)
    """The folder name of each arm's model, "base" for the base order; arms whose model is not known are missing."""
