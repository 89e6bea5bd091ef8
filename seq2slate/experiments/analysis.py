"""What an experiment says, from its running counts: how good each arm is, how sure that is, and when one may stop.

Units are assigned to arms and come back, so the slates of a unit are not independent, and units are the sample. For a
unit u with i_u slates and c_u clicks, an arm's click-through rate r = Σc_u / Σi_u is a ratio of sums over units; by the
delta method its variance is

    n / (n − 1) · Σ(c_u − r i_u)² / (Σi_u)²,    Σ(c_u − r i_u)² = Σc_u² − 2r Σi_u c_u + r² Σi_u²,

which needs nothing but the sums that the log keeps. Two statements are made about the difference d of two arms, whose
variance V is the sum of theirs:

- *fixed*: d ± z √V. It holds at one look that was planned beforehand, and at no other.
- *any time*: d ± √(V (1 + V/τ²) log((1 + τ²/V) / α²)). It holds at all looks together, so anybody may look at any time
  and stop when it leaves out 0. This is Robbins' normal mixture: the mixture sequential probability ratio test (Johari
  et al., "Always valid inference") with an effect drawn from N(0, τ²), in its asymptotic form with a variance that is
  estimated (Waudby-Smith et al., "Time-uniform central limit theory and asymptotic confidence sequences"). Its p-value
  is min(1, √(1 + τ²/V) exp(−d² τ² / (2V (V + τ²)))). τ is `expected_lift` times the rate of both arms together. Any τ
  that is chosen beforehand is valid; the interval is narrowest, 1.55 times the fixed one, about when an effect of
  size τ is found.

Both lean on the central limit theorem over units: some hundreds of units in each arm. Nothing is said of any look
before both arms have `MIN_UNITS` units, and with several arms it holds for all comparisons together (Bonferroni). It
also assumes that d is like Brownian motion in the clock 1/V: exactly so when each unit counts once, or all alike;
docs/experiments.md shows what is left of it when some units come back often and others never.

Clicks per position are summed over groups of units (`counts`), whose rates vary with all that varies between
units. The interval of a slot is Wilson's, which suits rare clicks, for as many independent slates as would vary that
much (an effective sample size, never above the true one), with the quantile of Student's t for the number of groups.
That of the difference of two arms joins their two intervals (Newcombe's hybrid score). Both are for one planned look.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import hypot, isfinite, sqrt

from scipy.special import chdtrc, stdtrit

from seq2slate.errors import UsageError
from seq2slate.experiments.assignment import USUAL_CONTROLS
from seq2slate.experiments.counts import ArmCounts, Counts, PositionCounts
from seq2slate.experiments.preference import Preference, preference_of
from seq2slate.experiments.statistics import (
    ALPHA,
    LEVEL,
    MIN_UNITS,
    Interval,
    Z,
    any_time_inference,
    around,
    ratio_variance,
    two_sided_p,
)

EXPECTED_LIFT = 0.05
MISMATCH = 0.001
"""Below this p-value the units were not shared out as they should have been; low, because it is looked at often."""


@dataclass(frozen=True)
class Rate:
    """Clicks per slate, or per item shown in a slot."""

    value: float
    interval: Interval | None
    """None if the units show no spread: there are fewer than two of them, or all are alike."""


@dataclass(frozen=True)
class PositionResult:
    """One slot of an arm's slates."""

    position: int
    """From 1."""
    impressions: int
    clicks: int
    ctr: Rate | None
    """None if nothing was ever shown there."""
    against_control: PositionDifference | None = None
    """None for the control itself, and where one of the two never showed anything."""


@dataclass(frozen=True)
class PositionDifference:
    """The click-through rate of a slot, less that of the control's."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Difference:
    """An arm's click-through rate less the control's."""

    value: float
    lift: float
    """The same as a share of the control's rate."""
    fixed: Interval
    """For one planned look, and this comparison alone."""
    fixed_p: float
    any_time: Interval | None
    """For all looks and all comparisons of the experiment together; None before both arms have `MIN_UNITS` units."""
    any_time_p: float | None


@dataclass(frozen=True)
class ArmResult:
    """One arm as it stands."""

    arm: str
    units: int
    impressions: int
    clicks: int
    fallbacks: int
    ctr: Rate | None
    """Clicks per slate; None before the first."""
    clicks_per_item: float | None
    """Clicks per item shown: the rate of all slots together."""
    positions: tuple[PositionResult, ...]
    against_control: Difference | None
    """None for the control itself, and while one of the two has no interval."""


@dataclass(frozen=True)
class SampleRatio:
    """Whether the arms got the units that their weights promise; if they did not, no comparison of them means much."""

    expected: Mapping[str, float]
    """Units, by arm."""
    p_value: float | None
    """Of the chi-square test; None if there is nothing to compare."""
    known: bool = True
    """Whether the weights are known, and not just taken for equal."""

    @property
    def mismatch(self) -> bool:
        """Whether something is wrong with the assignment or with the log."""
        return self.known and self.p_value is not None and self.p_value < MISMATCH


@dataclass(frozen=True)
class Analysis:
    """An experiment as it stands."""

    experiment: str
    control: str
    expected_lift: float
    sample_ratio: SampleRatio
    arms: tuple[ArmResult, ...]
    """The control first."""
    preferences: tuple[Preference, ...] = ()
    """Of the pairs of arms that shared slates."""

    def arm(self, name: str) -> ArmResult:
        """Return one arm."""
        return next(arm for arm in self.arms if arm.arm == name)

    def to_json(self) -> str:
        """Return everything as strict JSON."""
        values = asdict(self) | {"level": LEVEL}
        values["sample_ratio"]["mismatch"] = self.sample_ratio.mismatch
        return json.dumps(values, indent=2, allow_nan=False)


def analyse(
    counts: Counts,
    *,
    control: str | None = None,
    weights: Mapping[str, float] | None = None,
    expected_lift: float = EXPECTED_LIFT,
) -> Analysis:
    """Compare every arm with the control.

    The control is the arm "control" or "base" unless it is named. The weights are those of the assignment, equal if not
    given. `expected_lift` tunes what holds at any time: the relative effect that one hopes to find, chosen beforehand.

    >>> slot = (PositionCounts(4000, 800),)
    >>> base = ArmCounts(1000, 4000, 800, 20_000, 2_000, 4_200, fallbacks=0, positions=slot)
    >>> new = ArmCounts(1000, 4000, 1000, 20_000, 2_500, 5_300, fallbacks=0, positions=slot)
    >>> difference = analyse(Counts("autumn", {"base": base, "new": new})).arm("new").against_control
    >>> difference.value, difference.lift, difference.fixed.low, difference.any_time.low
    (0.05, 0.25, 0.027, 0.006)
    """
    if not (isfinite(expected_lift) and expected_lift > 0):
        raise UsageError(f"the expected lift must be above 0, got {expected_lift:g}")
    if not counts.arms:
        raise UsageError(f"the log has no slates of an experiment {counts.experiment!r}")
    chosen = _control(list(counts.arms), control)
    names = [chosen, *(name for name in counts.arms if name != chosen)]
    return Analysis(
        experiment=counts.experiment,
        control=chosen,
        expected_lift=expected_lift,
        sample_ratio=sample_ratio({name: arm.units for name, arm in counts.arms.items()}, weights),
        arms=tuple(
            _arm_result(name, counts.arms[name], None if name == chosen else _Control(counts, chosen, expected_lift))
            for name in names
        ),
        preferences=tuple(preference_of(*pair, draft, expected_lift) for pair, draft in counts.drafts.items()),
    )


def _control(arms: Sequence[str], control: str | None) -> str:
    candidates = USUAL_CONTROLS if control is None else (control,)
    found = next((name for name in candidates if name in arms), None)
    if found is not None:
        return found
    if control is None and len(arms) == 1:
        return arms[0]
    problem = "none of the arms is called control or base" if control is None else f"there is no arm {control!r}"
    raise UsageError(f"{problem}: name the control (--control ARM), one of {', '.join(arms)}")


@dataclass(frozen=True)
class _Control:
    """What an arm is compared with, and how."""

    counts: Counts
    name: str
    expected_lift: float

    @property
    def arm(self) -> ArmCounts:
        return self.counts.arms[self.name]

    def compare(self, arm: ArmCounts) -> Difference | None:
        return compare(arm, self.arm, self.expected_lift, comparisons=len(self.counts.arms) - 1)


def _arm_result(name: str, arm: ArmCounts, control: _Control | None) -> ArmResult:
    n_shown = sum(slot.impressions for slot in arm.positions)
    return ArmResult(
        arm=name,
        units=arm.units,
        impressions=arm.impressions,
        clicks=arm.clicks,
        fallbacks=arm.fallbacks,
        ctr=_clustered_rate(arm),
        clicks_per_item=arm.clicks / n_shown if n_shown else None,
        positions=tuple(_position_results(arm.positions, None if control is None else control.arm.positions)),
        against_control=None if control is None else control.compare(arm),
    )


def _variance(arm: ArmCounts) -> float | None:
    return ratio_variance(
        arm.units,
        arm.clicks,
        arm.impressions,
        arm.clicks_squared,
        arm.impressions_squared,
        arm.impressions_times_clicks,
    )


def compare(
    arm: ArmCounts, control: ArmCounts, expected_lift: float = EXPECTED_LIFT, comparisons: int = 1
) -> Difference | None:
    """Compare two arms; None while one of them shows no spread, as one without clicks does."""
    variance, control_variance = _variance(arm), _variance(control)
    if variance is None or control_variance is None:
        return None
    total = variance + control_variance
    rate, control_rate = arm.clicks / arm.impressions, control.clicks / control.impressions
    value = rate - control_rate
    pooled_rate = (arm.clicks + control.clicks) / (arm.impressions + control.impressions)
    enough = min(arm.units, control.units) >= MIN_UNITS
    any_time = any_time_inference(value, total, expected_lift * pooled_rate, comparisons) if enough else (None, None)
    return Difference(value, value / control_rate, around(value, Z * sqrt(total)), two_sided_p(value, total), *any_time)


def _clustered_rate(arm: ArmCounts) -> Rate | None:
    if not arm.impressions:
        return None
    value, variance = arm.clicks / arm.impressions, _variance(arm)
    if variance is None:
        return Rate(value, None)
    interval = around(value, Z * sqrt(variance))
    return Rate(value, Interval(max(0.0, interval.low), interval.high))


def _position_results(
    slots: Sequence[PositionCounts], control: Sequence[PositionCounts] | None
) -> Iterator[PositionResult]:
    others = [_slot_rate(slot) for slot in control or ()]
    for number, slot in enumerate(slots, start=1):
        rate, other = _slot_rate(slot), others[number - 1] if number <= len(others) else None
        yield PositionResult(number, slot.impressions, slot.clicks, rate, _slot_difference(rate, other))


def _slot_rate(slot: PositionCounts) -> Rate | None:
    """Return the rate of a slot, with Wilson's score interval for as many slates as its variance is worth."""
    n = slot.impressions
    if not n:
        return None
    value, z = slot.clicks / n, Z
    variance = ratio_variance(
        slot.groups,
        slot.clicks,
        slot.impressions,
        slot.clicks_squared,
        slot.impressions_squared,
        slot.impressions_times_clicks,
    )
    if slot.groups < 2:  # one unit, perhaps: nobody knows how much units differ
        return Rate(value, None)
    effective: float = n
    if variance is not None and 0 < value < 1:
        effective = min(n, value * (1 - value) / variance)
        z = float(stdtrit(slot.groups - 1, 1 - ALPHA / 2))
    middle = (value + z * z / (2 * effective)) / (1 + z * z / effective)
    half = z / (1 + z * z / effective) * sqrt(value * (1 - value) / effective + z * z / (4 * effective * effective))
    return Rate(value, Interval(max(0.0, middle - half), min(1.0, middle + half)))


def _slot_difference(rate: Rate | None, control: Rate | None) -> PositionDifference | None:
    """Return the difference of two rates, with the interval that Newcombe makes of theirs."""
    if rate is None or control is None or rate.interval is None or control.interval is None:
        return None
    value = rate.value - control.value
    below = hypot(rate.value - rate.interval.low, control.interval.high - control.value)
    above = hypot(rate.interval.high - rate.value, control.value - control.interval.low)
    return PositionDifference(value, Interval(value - below, value + above))


def sample_ratio(units: Mapping[str, int], weights: Mapping[str, float] | None = None) -> SampleRatio:
    """Test whether the units of the arms are what their weights promise; equal weights if none are given.

    >>> sample_ratio({"a": 5000, "b": 5000}).p_value
    1.0
    >>> sample_ratio({"a": 5000, "b": 5000}, {"a": 1, "b": 1.1}).mismatch
    True
    """
    known = weights is not None
    if weights is None:
        weights = dict.fromkeys(units, 1.0)
    missing = [name for name in units if name not in weights]
    if missing:
        raise UsageError(f"no weight for the arm {missing[0]!r}: give the weights of all arms, or of none")
    if not all(isfinite(weight) and weight >= 0 for weight in weights.values()) or not any(weights.values()):
        raise UsageError("weights must be numbers of at least 0, and not all 0")
    n_units, whole = sum(units.values()), sum(weights.values())
    expected = {name: n_units * weight / whole for name, weight in weights.items()}
    return SampleRatio(expected, _chi_square_p(units, expected) if n_units else None, known)


def parse_weights(text: str) -> dict[str, float]:
    """Read weights as they are written on the command line.

    >>> parse_weights("base=1,new=3")
    {'base': 1.0, 'new': 3.0}
    """
    weights = {}
    for part in text.split(","):
        name, _, weight = part.rpartition("=")
        try:
            weights[name.strip()] = float(weight)
        except ValueError as error:
            raise UsageError(f"weights look like base=1,new=1; {part.strip()!r} does not") from error
    return weights


def _chi_square_p(units: Mapping[str, int], expected: Mapping[str, float]) -> float | None:
    if any(units.get(name, 0) and not number for name, number in expected.items()):
        return 0.0  # an arm without weight has units: impossible
    possible = {name: number for name, number in expected.items() if number}
    if len(possible) < 2:
        return None
    distance = sum((units.get(name, 0) - number) ** 2 / number for name, number in possible.items())
    return float(chdtrc(len(possible) - 1, distance))
