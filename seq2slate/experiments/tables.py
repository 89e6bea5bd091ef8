"""The analysis of an experiment as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from seq2slate.experiments.analysis import Analysis, ArmResult, Rate, SampleRatio
from seq2slate.experiments.preference import Preference
from seq2slate.experiments.statistics import LEVEL, MIN_UNITS, Interval


def analysis_tables(analysis: Analysis) -> Group:
    """Return the arms, their differences, their positions, and below them how to read it all."""
    arms, ratio = analysis.arms, analysis.sample_ratio
    warning = [Text(_warning(ratio), style="bold red")] if ratio.mismatch else []
    tables = [_arm_table(arms), _difference_table(arms), _preference_table(analysis.preferences), _position_table(arms)]
    spaced = [part for table in tables if table.row_count for part in (table, "")]
    return Group(*warning, *spaced, Text("\n".join(_notes(analysis)), style="dim"))


def _table(*headers: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, header in enumerate(headers):
        table.add_column(Text(header), justify="left" if number == 0 else "right", overflow="fold")
    return table


def _arm_table(arms: Sequence[ArmResult]) -> Table:
    table = _table("arm", "units", "slates", "fallbacks", "clicks in 100 slates")
    for arm in arms:
        numbers = (f"{number:,}" for number in (arm.units, arm.impressions, arm.fallbacks))
        table.add_row(Text(arm.arm), *numbers, _rate_cell(arm.ctr))
    return table


def _difference_table(arms: Sequence[ArmResult]) -> Table:
    table = _table(f"against {arms[0].arm}", "difference", "lift", "one look", "any look", "p")
    for arm in arms[1:]:
        difference = arm.against_control
        if difference is None:
            table.add_row(Text(arm.arm), *["-"] * 5)
            continue
        table.add_row(
            Text(arm.arm),
            f"{100 * difference.value:+.3f}",
            f"{difference.lift:+.1%}",
            _interval_cell(difference.fixed, "+"),
            _interval_cell(difference.any_time, "+"),
            _p_cell(difference.any_time_p),
        )
    return table


def _preference_table(preferences: Sequence[Preference]) -> Table:
    table = _table("on shared slates", "clicks", "preference", "one look", "any look", "p")
    for one in preferences:
        table.add_row(
            Text(f"{one.b} against {one.a}"),
            f"{one.b_clicks:,} : {one.a_clicks:,}",
            "-" if one.estimate is None else f"{one.estimate:+.3f}",
            _signed(one.fixed),
            _signed(one.any_time),
            _p_cell(one.any_time_p),
        )
    return table


def _signed(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.low:+.3f} … {interval.high:+.3f}"


def _position_table(arms: Sequence[ArmResult]) -> Table:
    table = _table("position", *(arm.arm for arm in arms))
    for number in range(max(len(arm.positions) for arm in arms)):
        slots = [arm.positions[number] if number < len(arm.positions) else None for arm in arms]
        table.add_row(str(number + 1), *(_rate_cell(None if slot is None else slot.ctr) for slot in slots))
    return table


def _rate_cell(rate: Rate | None) -> str:
    if rate is None:
        return "-"
    interval = "" if rate.interval is None else f" ({_interval_cell(rate.interval)})"
    return f"{100 * rate.value:.3f}{interval}"


def _p_cell(p_value: float | None) -> str:
    return "-" if p_value is None else f"{p_value:.2g}"


def _interval_cell(interval: Interval | None, sign: str = "") -> str:
    if interval is None:
        return "-"
    return f"{100 * interval.low:{sign}.3f} … {100 * interval.high:{sign}.3f}"


def _warning(ratio: SampleRatio) -> str:
    shares = ", ".join(f"{arm} {number:,.0f}" for arm, number in ratio.expected.items())
    return (
        f"The arms did not get the units that their weights promise ({shares}; p = {ratio.p_value:.1g}): find out why "
        "before reading on.\n"
    )


def _notes(analysis: Analysis) -> Iterator[str]:
    yield f"experiment {analysis.experiment}, control {analysis.control}"
    yield f"{LEVEL:.0%} intervals, clustered by unit; those of positions are for one look"
    yield "one look: for a test that ends at a number of units planned beforehand, looked at once"
    yield (
        "any look, and p: for all looks and all arms together, so that one may stop at any time; from "
        f"{MIN_UNITS} units an arm on, tuned for a lift of {analysis.expected_lift:.1%}"
    )
    if analysis.preferences:
        yield "preference: (clicks of one − clicks of the other) / all clicks, by whose item was clicked"
    p_value = analysis.sample_ratio.p_value
    if p_value is not None:
        weights = "their weights" if analysis.sample_ratio.known else "equal weights (the true ones are not known)"
        yield f"units against {weights}: p = {p_value:.3g}"
