"""The analysis of a live experiment from its running counts: rates, differences to the control, and when to stop.

For a unit u with i_u impressions and c_u clicks, the click-through rate of an arm is Σc_u / Σi_u, a ratio of sums over
units. Its variance needs nothing but the sums that the log keeps (`statistics.ratio_variance`). The difference of two
arms has the sum of their variances, a fixed-horizon interval for one planned analysis, and an always-valid one for any
number of them (`statistics.infer`). The always-valid interval and its p-value hold for all comparisons of the
experiment together (Bonferroni), and are tuned by τ = `expected_lift` times the rate of both arms together.

Clicks by position are summed over groups of units (see `PositionCounts`), whose rates vary with all that varies
between units. The interval of a slot is Wilson's, for the effective sample size: as many independent impressions as
would vary that much, never more than there are; its quantile is that of Student's t for the number of groups. The
difference of two arms at a slot has Newcombe's interval. Both are fixed-horizon intervals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from math import inf, isfinite, sqrt

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text
from scipy.special import stdtrit

from seq2slate.errors import UsageError
from seq2slate.experiments.assignment import BASE_RANKER, USUAL_CONTROLS
from seq2slate.experiments.counts import ArmCounts, Counts, PositionCounts
from seq2slate.experiments.interleaving import Preference, preference_from_counts
from seq2slate.experiments.statistics import (
    ALPHA,
    LEVEL,
    MIN_UNITS,
    Interval,
    Z,
    chi_square_p,
    infer,
    newcombe_interval,
    ratio_variance,
    wilson_interval,
)

EXPECTED_LIFT = 0.05
MISMATCH_P = 0.001
"""A p-value of the sample ratio test below this is a mismatch; low, because it is looked at often."""


@dataclass(frozen=True)
class Rate:
    """Clicks per impression, of whole slates or of one slot."""

    value: float
    interval: Interval | None
    """Fixed-horizon; None if the units show no spread: there are fewer than two, or all are alike."""


@dataclass(frozen=True)
class PositionDifference:
    """The click-through rate of a slot, minus the control's at the same slot."""

    value: float
    interval: Interval


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
class Difference:
    """An arm's click-through rate, minus the control's."""

    value: float
    lift: float
    """The difference relative to the control's rate."""
    fixed_horizon: Interval
    """For one planned analysis, and this comparison alone."""
    fixed_horizon_p: float
    always_valid: Interval | None
    """For any number of analyses and all comparisons together; None before both arms have `MIN_UNITS` units."""
    always_valid_p: float | None


@dataclass(frozen=True)
class ArmResult:
    """The results of one arm so far."""

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
    """The test for a sample ratio mismatch: whether the arms got the units that their weights call for.

    If they did not, no comparison of the arms can be trusted.
    """

    expected: Mapping[str, float]
    """Units by arm."""
    p_value: float | None
    """Of the chi-square test; None if there is nothing to compare."""
    known: bool = True
    """Whether the weights are known; otherwise they are assumed to be equal."""

    @property
    def mismatch(self) -> bool:
        """Whether something is wrong with the assignment or with the log."""
        return self.known and self.p_value is not None and self.p_value < MISMATCH_P


@dataclass(frozen=True)
class Analysis:
    """The results of an experiment so far."""

    experiment: str
    control: str
    expected_lift: float
    sample_ratio: SampleRatio
    arms: tuple[ArmResult, ...]
    """The control first."""
    preferences: tuple[Preference, ...] = ()
    """Of the pairs of arms whose slates were interleaved."""
    models: Mapping[str, str] = field(default_factory=dict)
    """The folder name of each arm's model, "base" for the base order; arms whose model is not known are missing."""

    def model_name(self, arm: str) -> str | None:
        """Return the name of an arm's model, in words; None if it is not known."""
        model = self.models.get(arm)
        return "base order" if model == BASE_RANKER else model or None

    def label(self, arm: str) -> str:
        """Return the name of an arm with that of its model, if it is known."""
        model = self.model_name(arm)
        return arm if model is None else f"{arm} ({model})"

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
    models: Mapping[str, str] | None = None,
) -> Analysis:
    """Compare every arm of an experiment with the control.

    Args:
        counts: The running counts of the log.
        control: The arm that the others are compared with; "control" or "base" if not given.
        weights: The weights of the assignment, for the sample ratio test; assumed equal if not given.
        expected_lift: The relative effect that one hopes to find, chosen beforehand; tunes the always-valid intervals.
        models: The folder names of the arms' models, "base" for the base order, as far as they are known.

    Raises:
        UsageError: There are no arms, the control is ambiguous or unknown, or the weights do not fit the arms.

    >>> slot = (PositionCounts(4000, 800),)
    >>> base = ArmCounts(1000, 4000, 800, 20_000, 2_000, 4_200, fallbacks=0, positions=slot)
    >>> new = ArmCounts(1000, 4000, 1000, 20_000, 2_500, 5_300, fallbacks=0, positions=slot)
    >>> difference = analyse(Counts("autumn", {"base": base, "new": new})).arm("new").against_control
    >>> difference.value, difference.lift, difference.fixed_horizon.low, difference.always_valid.low
    (0.05, 0.25, 0.027, 0.006)
    """
    if not (isfinite(expected_lift) and expected_lift > 0):
        raise UsageError(f"the expected lift must be above 0, got {expected_lift:g}")
    if not counts.arms:
        raise UsageError(f"the log has no slates of an experiment {counts.experiment!r}")
    chosen = _control(list(counts.arms), control)
    against = counts.arms[chosen]
    others = {name: arm for name, arm in counts.arms.items() if name != chosen}
    differences = {name: compare_arms(arm, against, expected_lift, len(others)) for name, arm in others.items()}
    return Analysis(
        experiment=counts.experiment,
        control=chosen,
        expected_lift=expected_lift,
        sample_ratio=sample_ratio({name: arm.units for name, arm in counts.arms.items()}, weights),
        arms=(
            _arm_result(chosen, against, (), None),
            *(_arm_result(name, arm, against.positions, differences[name]) for name, arm in others.items()),
        ),
        preferences=tuple(preference_from_counts(*pair, draft, expected_lift) for pair, draft in counts.drafts.items()),
        models=dict(models or {}),
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


def _arm_result(
    name: str, arm: ArmCounts, control: Sequence[PositionCounts], difference: Difference | None
) -> ArmResult:
    n_shown = sum(slot.impressions for slot in arm.positions)
    return ArmResult(
        arm=name,
        units=arm.units,
        impressions=arm.impressions,
        clicks=arm.clicks,
        fallbacks=arm.fallbacks,
        ctr=_arm_rate(arm),
        clicks_per_item=arm.clicks / n_shown if n_shown else None,
        positions=tuple(_position_results(arm.positions, control)),
        against_control=difference,
    )


def compare_arms(
    arm: ArmCounts, control: ArmCounts, expected_lift: float = EXPECTED_LIFT, comparisons: int = 1
) -> Difference | None:
    """Compare the click-through rates of two arms.

    Args:
        arm: Counts of the treated arm.
        control: Counts of the control.
        expected_lift: The relative effect that one hopes to find, chosen beforehand.
        comparisons: Comparisons that the always-valid interval holds for together.

    Returns:
        The difference, or None while the units of one of them show no spread, as those of an arm without clicks.
    """
    variance, control_variance = _variance(arm.units, arm), _variance(control.units, control)
    if variance is None or control_variance is None:
        return None
    control_rate = control.clicks / control.impressions
    value = arm.clicks / arm.impressions - control_rate
    tau = expected_lift * (arm.clicks + control.clicks) / (arm.impressions + control.impressions)
    units = min(arm.units, control.units)
    return Difference(
        value,
        value / control_rate,
        *infer(value, variance + control_variance, tau, units=units, comparisons=comparisons),
    )


def _variance(n: int, counts: ArmCounts | PositionCounts) -> float | None:
    """Return the variance of clicks per impression over n units, or over n groups of them."""
    sums = counts.clicks_squared, counts.impressions_squared, counts.impressions_times_clicks
    return ratio_variance(n, counts.clicks, counts.impressions, *sums)


def _arm_rate(arm: ArmCounts) -> Rate | None:
    if not arm.impressions:
        return None
    value, variance = arm.clicks / arm.impressions, _variance(arm.units, arm)
    if variance is None:
        return Rate(value, None)
    return Rate(value, Interval.around(value, Z * sqrt(variance)).clipped(0.0, inf))


def _position_results(slots: Sequence[PositionCounts], control: Sequence[PositionCounts]) -> Iterator[PositionResult]:
    others = [_slot_rate(slot) for slot in control]
    for number, slot in enumerate(slots, start=1):
        rate, other = _slot_rate(slot), others[number - 1] if number <= len(others) else None
        yield PositionResult(number, slot.impressions, slot.clicks, rate, _slot_difference(rate, other))


def _slot_rate(slot: PositionCounts) -> Rate | None:
    """Return the rate of a slot, with Wilson's interval for the effective sample size."""
    n = slot.impressions
    if not n:
        return None
    value = slot.clicks / n
    if slot.groups < 2:  # one unit, perhaps: nobody knows how much units differ
        return Rate(value, None)
    variance = _variance(slot.groups, slot)
    if variance is None or not 0 < value < 1:
        return Rate(value, wilson_interval(value, n))
    effective = min(n, value * (1 - value) / variance)
    return Rate(value, wilson_interval(value, effective, float(stdtrit(slot.groups - 1, 1 - ALPHA / 2))))


def _slot_difference(rate: Rate | None, control: Rate | None) -> PositionDifference | None:
    if rate is None or control is None or rate.interval is None or control.interval is None:
        return None
    interval = newcombe_interval(rate.value, rate.interval, control.value, control.interval)
    return PositionDifference(rate.value - control.value, interval)


def sample_ratio(units: Mapping[str, int], weights: Mapping[str, float] | None = None) -> SampleRatio:
    """Test for a sample ratio mismatch: the units of the arms against their weights, by Pearson's chi-square test.

    Args:
        units: Units by arm.
        weights: Weights by arm, of every arm in `units`; equal ones are assumed if not given.

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
    return SampleRatio(expected, _sample_ratio_p(units, expected) if n_units else None, known)


def _sample_ratio_p(units: Mapping[str, int], expected: Mapping[str, float]) -> float | None:
    if any(units.get(name, 0) and not number for name, number in expected.items()):
        return 0.0  # an arm without weight has units: impossible
    possible = {name: number for name, number in expected.items() if number}
    if len(possible) < 2:
        return None
    return chi_square_p([units.get(name, 0) for name in possible], list(possible.values()))


def parse_weights(text: str) -> dict[str, float]:
    """Parse the weights of arms as they are written on the command line.

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


# Tables


def analysis_tables(analysis: Analysis) -> Group:
    """Return an analysis as tables for a terminal: arms, differences, preferences, positions, and notes."""
    arms, ratio = analysis.arms, analysis.sample_ratio
    warning = [Text(_mismatch_warning(ratio), style="bold red")] if ratio.mismatch else []
    tables = [_arm_table(analysis), _difference_table(analysis), _preference_table(analysis), _position_table(arms)]
    spaced = [part for table in tables if table.row_count for part in (table, "")]
    return Group(*warning, *spaced, Text("\n".join(_notes(analysis)), style="dim"))


def _table(*headers: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, header in enumerate(headers):
        table.add_column(Text(header), justify="left" if number == 0 else "right", overflow="fold")
    return table


def _arm_table(analysis: Analysis) -> Table:
    table = _table("arm", "units", "slates", "fallbacks", "clicks per 100 slates")
    for arm in analysis.arms:
        numbers = (f"{number:,}" for number in (arm.units, arm.impressions, arm.fallbacks))
        table.add_row(Text(analysis.label(arm.arm)), *numbers, _rate_cell(arm.ctr))
    return table


def _difference_table(analysis: Analysis) -> Table:
    arms = analysis.arms
    table = _table(f"against {arms[0].arm}", "difference", "lift", "fixed-horizon", "always-valid", "p")
    for arm in arms[1:]:
        found = arm.against_control
        if found is None:
            table.add_row(Text(arm.arm), *["-"] * 5)
            continue
        intervals = (_interval_cell(one, 100, "+") for one in (found.fixed_horizon, found.always_valid))
        cells = (f"{100 * found.value:+.3f}", f"{found.lift:+.1%}", *intervals, _p_cell(found.always_valid_p))
        table.add_row(Text(arm.arm), *cells)
    return table


def _preference_table(analysis: Analysis) -> Table:
    table = _table("interleaved slates", "clicks", "preference", "fixed-horizon", "always-valid", "p")
    for one in analysis.preferences:
        estimate = "-" if one.estimate is None else f"{one.estimate:+.3f}"
        intervals = (_interval_cell(interval, 1, "+") for interval in (one.fixed_horizon, one.always_valid))
        cells = (f"{one.b_clicks:,} : {one.a_clicks:,}", estimate, *intervals, _p_cell(one.always_valid_p))
        table.add_row(Text(f"{analysis.label(one.b)} against {analysis.label(one.a)}"), *cells)
    return table


def _position_table(arms: Sequence[ArmResult]) -> Table:
    table = _table("position", *(arm.arm for arm in arms))
    for number, slots in enumerate(zip_longest(*(arm.positions for arm in arms)), start=1):
        table.add_row(str(number), *(_rate_cell(slot.ctr if slot else None) for slot in slots))
    return table


def _rate_cell(rate: Rate | None) -> str:
    if rate is None:
        return "-"
    interval = "" if rate.interval is None else f" ({_interval_cell(rate.interval, 100)})"
    return f"{100 * rate.value:.3f}{interval}"


def _p_cell(p_value: float | None) -> str:
    return "-" if p_value is None else f"{p_value:.2g}"


def _interval_cell(interval: Interval | None, scale: int, sign: str = "") -> str:
    if interval is None:
        return "-"
    return f"{scale * interval.low:{sign}.3f} … {scale * interval.high:{sign}.3f}"


def _mismatch_warning(ratio: SampleRatio) -> str:
    shares = ", ".join(f"{arm} {number:,.0f}" for arm, number in ratio.expected.items())
    return (
        f"Sample ratio mismatch: the arms did not get the units of their weights (expected: {shares}; "
        f"p = {ratio.p_value:.1g}). Find out why before you compare them.\n"
    )


def _notes(analysis: Analysis) -> Iterator[str]:
    yield f"experiment {analysis.experiment}, control {analysis.control}"
    yield f"{LEVEL:.0%} intervals, clustered by unit; those of rates and positions are fixed-horizon"
    yield "fixed-horizon: for one analysis, at a number of units planned beforehand"
    yield (
        "always-valid, and p: for any number of analyses and all arms together, so that one may stop at any time; from "
        f"{MIN_UNITS} units an arm on, tuned for a lift of {analysis.expected_lift:.1%}"
    )
    if analysis.preferences:
        yield "preference: (clicks of one − clicks of the other) / all clicks, by the arm that placed the item"
    p_value = analysis.sample_ratio.p_value
    if p_value is not None:
        weights = "the weights" if analysis.sample_ratio.known else "equal weights (the true ones are not known)"
        yield f"sample ratio test against {weights}: p = {p_value:.3g}"
