"""The charts of an experiment, each with its legend and the numbers behind it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np

from seq2slate.experiments.analysis import Analysis, Difference, PositionResult
from seq2slate.experiments.counts import MinuteCounts
from seq2slate.experiments.interleaving import Preference
from seq2slate.html import Html, element
from seq2slate.serving.web.frame import Column, data_table, folded
from seq2slate.serving.web.svg import (
    Axis,
    IntervalRow,
    Mark,
    Point,
    Series,
    interval_chart,
    legend,
    line_chart,
    nice_axis,
)
from seq2slate.serving.web.words import NOTHING, clock, count, milliseconds, per_100, percent, plural, with_interval

FIRST_SLOTS = 30
"""Drawn at most; the JSON has the numbers of all."""
_MIN_SHARE = 0.1  # of the slates: slots that fewer have say so little that their bands would hide the others
_SLOTS_IN_TABLE = 100
_MOST_BINS = 48
_BINS = (1, 2, 5, 10, 15, 30)
_QUANTILES = ((50, "circle"), (95, "diamond"), (99, "triangle"))


def differences_chart(analysis: Analysis) -> Html | None:
    """Return each arm's difference to the control, with both intervals; None if there is none yet."""
    rows = [
        _interval_row(arm.arm, number, found.value, found, f"{per_100(found.value, signed=True)} clicks per 100 slates")
        for number, arm in enumerate(analysis.arms)
        if (found := arm.against_control) is not None and found.always_valid is not None
    ]
    return _around_zero("Difference to the control", "more or fewer clicks per 100 slates than the control", rows)


def preferences_chart(analysis: Analysis) -> Html | None:
    """Return the preferences between interleaved arms, with both intervals; None if there is none yet."""
    rows = [
        _interval_row(
            f"{one.a} and {one.b}", number, one.estimate, one, f"{percent(one.estimate, signed=True)} for {one.b}"
        )
        for number, one in enumerate(analysis.preferences, start=1)
        if one.estimate is not None and one.always_valid is not None
    ]
    return _around_zero("Preference for the second arm", "preference for the second, in %", rows)


def _interval_row(name: str, number: int, value: float, found: Difference | Preference, text: str) -> IntervalRow:
    thin, thick = found.always_valid, found.fixed_horizon
    assert thin is not None, "only estimates with an always-valid interval are drawn"
    assert thick is not None, "an always-valid interval comes with a fixed-horizon one"
    ends = [(100 * interval.low, 100 * interval.high) for interval in (thin, thick)]
    return IntervalRow(name, number, thin=ends[0], thick=ends[1], marks=[Mark(100 * value, "circle", text)])


def _around_zero(title: str, label: str, rows: Sequence[IntervalRow]) -> Html | None:
    if not rows:
        return None
    ends = [0.0, *(end for row in rows for end in row.thin)]
    summary = "; ".join(f"{row.name} {row.marks[0].text}" for row in rows)
    return element("figure", interval_chart(f"{title}: {summary}", rows, nice_axis(min(ends), max(ends), label)))


# By position


def position_rates_chart(analysis: Analysis) -> Html | None:
    """Return the click-through rate of each slot, by arm; None before the first slate."""
    return _by_position("Clicks by position", "clicks per 100 slates", analysis, of_difference=False)


def position_differences_chart(analysis: Analysis) -> Html | None:
    """Return the difference of each slot to the control's; None if there is nothing to compare."""
    title, label = "Difference to the control by position", "more or fewer clicks per 100 slates"
    return _by_position(title, label, analysis, of_difference=True)


def _by_position(title: str, label: str, analysis: Analysis, *, of_difference: bool) -> Html | None:
    n_drawn, n_slots = _slots_to_draw(analysis), max(len(arm.positions) for arm in analysis.arms)
    lines = [_points(arm.positions[:n_drawn], of_difference=of_difference) for arm in analysis.arms]
    arms = zip(analysis.arms, lines, strict=True)
    drawn = [Series(arm.arm, number, points) for number, (arm, points) in enumerate(arms) if points]
    if not drawn:
        return None
    points = [point for one in drawn for point in one.points]
    ends = [0.0, *(end for point in points for end in (point.y, point.low, point.high) if end is not None)]
    last = int(max(point.x for point in points))
    chart = line_chart(title, drawn, _slot_axis(last), nice_axis(min(ends), max(ends), label))
    cut = f" The first {last} of {count(n_slots)} positions." if last < n_slots else ""
    caption = element("figcaption", f"Bands: 95% fixed-horizon intervals, clustered by unit.{cut}")
    names = legend([(one.name, one.arm) for one in drawn])
    return element("figure", names, chart, caption, _position_table(analysis, of_difference=of_difference))


def _slots_to_draw(analysis: Analysis) -> int:
    """Return how many slots, from the top, were filled often enough."""
    shown = Counter[int]()
    for arm in analysis.arms:
        shown.update({slot.position: slot.impressions for slot in arm.positions})
    return min(FIRST_SLOTS, sum(number >= _MIN_SHARE * shown[1] for number in shown.values()))


def _points(slots: Sequence[PositionResult], *, of_difference: bool) -> list[Point]:
    found = []
    for slot in slots:
        value = slot.against_control if of_difference else slot.ctr
        if value is not None:
            interval = value.interval
            low, high = (None, None) if interval is None else (100 * interval.low, 100 * interval.high)
            text = f"position {slot.position}: {_slot_cell(slot, of_difference=of_difference)}"
            found.append(Point(slot.position, 100 * value.value, low, high, text))
    return found


def _slot_axis(last: int) -> Axis:
    every = next(step for step in (1, 2, 5) if last / step <= 10)
    ticks = [(float(slot), str(slot)) for slot in range(1, last + 1) if slot == 1 or slot % every == 0]
    return Axis(0.6, last + 0.4, ticks, "position in the slate")


def _position_table(analysis: Analysis, *, of_difference: bool) -> Html:
    arms = [arm for arm in analysis.arms if not of_difference or arm.arm != analysis.control]
    n_slots = max(len(arm.positions) for arm in arms)
    by_slot = zip_longest(*(arm.positions[:_SLOTS_IN_TABLE] for arm in arms))
    rows = [
        [str(number), *(_slot_cell(slot, of_difference=of_difference) for slot in slots)]
        for number, slots in enumerate(by_slot, start=1)
    ]
    more = f" (the first {_SLOTS_IN_TABLE} of {count(n_slots)} positions)" if n_slots > _SLOTS_IN_TABLE else ""
    columns = [Column("position"), *(Column(arm.arm, kind="name") for arm in arms)]
    return folded(f"The numbers{more}", data_table(columns, rows, label="Clicks per 100 slates by position and arm"))


def _slot_cell(slot: PositionResult | None, *, of_difference: bool) -> str:
    if slot is None:
        return NOTHING
    return with_interval(slot.against_control if of_difference else slot.ctr, signed=of_difference)


# Over time


def traffic_chart(minutes: Sequence[MinuteCounts], arms: Sequence[str], now: float) -> Html | None:
    """Return slates per minute over the last day, by arm; None if there were none."""
    if not minutes:
        return None
    end = int(now // 60) + 1
    size = next((size for size in _BINS if (end - minutes[0].minute) / size <= _MOST_BINS), _BINS[-1])
    begins = range(_first_bin(minutes[0].minute, size, end), end, size)
    slates: dict[str, Counter[int]] = defaultdict(Counter)
    clicks: dict[str, Counter[int]] = defaultdict(Counter)
    for one in minutes:
        if begins.start <= one.minute < end:  # another replica's clock may be ahead
            begin = begins[(one.minute - begins.start) // size]
            slates[one.arm][begin] += one.impressions
            clicks[one.arm][begin] += one.clicks
    series = [
        Series(arm, number, _rate_points(begins, slates[arm], now)) for number, arm in enumerate(arms) if arm in slates
    ]
    high = max((point.y for one in series for point in one.points), default=0.0)
    chart = line_chart(
        "Slates per minute over time", series, _time_axis(begins), nice_axis(0, high, "slates per minute")
    )
    rows = [
        [clock(begin), *(f"{count(slates[arm][begin])} ({count(clicks[arm][begin])})" for arm in arms)]
        for begin in begins
    ]
    columns = [Column("from, UTC"), *(Column(f"{arm}: slates (clicks)", kind="name") for arm in arms)]
    inside = folded("The numbers", data_table(columns, rows, label="Slates and clicks over time, by arm"))
    caption = element("figcaption", f"The last 24 hours at most, {plural(size, 'minute')} per point.")
    return element("figure", legend([(one.name, one.arm) for one in series]), chart, caption, inside)


def _first_bin(first: int, size: int, end: int) -> int:
    """Return where the bins start: at round times, without a first bin that the last day cuts in two."""
    start = first // size * size
    return start + size if end - start > 24 * 60 else start


def _rate_points(begins: range, slates: Counter[int], now: float) -> list[Point]:
    """Return slates per minute from each time on; the last bin is as long as it has lasted so far."""
    passed = {begin: float(begins.step) for begin in begins} | {begins[-1]: max(0.5, now / 60 - begins[-1])}
    return [
        Point(begin, slates[begin] / minutes, text=f"from {clock(begin)}: {count(slates[begin])} slates")
        for begin, minutes in passed.items()
    ]


def _time_axis(begins: Sequence[int]) -> Axis:
    every = max(1, -(-len(begins) // 6))
    ticks = [(float(begin), clock(begin)) for begin in begins[::every]]
    margin = max(0.5, (begins[-1] - begins[0]) * 0.03)
    return Axis(begins[0] - margin, begins[-1] + margin, ticks, "time of day, UTC")


# Latency


def latency_chart(latencies: Mapping[str, Sequence[float]], arms: Sequence[str]) -> Html | None:
    """Return quantiles of the milliseconds to a committed slate, by arm; None if there is none."""
    rows, cells = [], []
    for number, arm in enumerate(arms):
        if not latencies.get(arm):
            continue
        values = [float(value) for value in np.percentile(latencies[arm], [share for share, _ in _QUANTILES])]
        marks = [
            Mark(value, shape, f"p{share} {milliseconds(value)}")
            for value, (share, shape) in zip(values, _QUANTILES, strict=True)
        ]
        rows.append(IntervalRow(arm, number, thin=(values[0], values[-1]), thick=None, marks=marks))
        cells.append([arm, *map(milliseconds, values), count(len(latencies[arm]))])
    if not rows:
        return None
    axis = nice_axis(0, max(row.thin[1] for row in rows), "milliseconds")
    columns = [Column("arm"), *(Column(f"p{share}") for share, _ in _QUANTILES), Column("slates")]
    title = "Latency: " + "; ".join(f"{row.name} {', '.join(mark.text for mark in row.marks)}" for row in rows)
    caption = element("figcaption", "Circle: median (p50). Diamond: p95. Triangle: p99.")
    inside = folded("The numbers", data_table(columns, cells, label="Quantiles of the latency by arm"))
    return element("figure", interval_chart(title, rows, axis), caption, inside)
