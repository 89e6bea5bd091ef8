"""The report of the closed loop: one HTML page that works offline, with figure 3 from a live experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from seq2slate.demo.closed_loop import BASE, SLOTS, ClosedLoop, next_commands, verdict
from seq2slate.demo.folder import DemoFolder
from seq2slate.evaluation.figures import difference_picture, rate_picture
from seq2slate.evaluation.report import write_page
from seq2slate.experiments.analysis import Analysis, ArmResult
from seq2slate.experiments.statistics import Interval
from seq2slate.html import Html, Section, element, table
from seq2slate.serving.web.words import p_value, per_100, percent, span, with_interval


def write_demo_report(folder: DemoFolder, loop: ClosedLoop) -> None:
    """Write the page, and the pictures beside it."""
    differences, rates = _position_rows(loop.analysis)
    pictures = {
        "figure3": (
            difference_picture({"baseline": "the base order", "rows": differences}),
            "A blue bar is a position that gets more clicks than in base order, an orange one fewer; a bar is grey "
            "where its interval includes zero.",
        ),
        "rates": (
            rate_picture(rates, loop.analysis.control),
            "The same as two lines: clicks on the slates in base order, and on those of the model.",
        ),
    }
    write_page(folder.path, "The closed loop", pictures, lambda drawn: _sections(folder, loop, drawn))


def _position_rows(analysis: Analysis) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of both pictures: differences to the control, and click-through rates."""
    differences, rates = [], []
    for arm in analysis.arms:
        for slot in arm.positions:
            if (difference := slot.against_control) is not None:
                row = {"ranker": arm.arm, "position": slot.position, "difference": difference.value}
                differences.append(row | _ends(difference.interval))
            if slot.ctr is not None:
                row = {"arm": arm.arm, "position": slot.position, "rate": slot.ctr.value}
                rates.append(row | _ends(slot.ctr.interval))
    return differences, rates


def _ends(interval: Interval | None) -> dict[str, Any]:
    return {"low": interval and interval.low, "high": interval and interval.high}


def _sections(folder: DemoFolder, loop: ClosedLoop, drawn: Mapping[str, Html]) -> Iterator[Section]:
    arms = loop.analysis.arms
    yield Section("In short", [element("p", verdict(loop.analysis))])
    yield Section("What was done", [element("ol", *(element("li", step) for step in _steps(loop)))])
    yield Section("The experiment", [_arm_table(arms), *_differences(loop.analysis)])
    yield Section("Clicks per position (figure 3)", [*drawn.values(), _position_table(arms)])
    yield Section("To go on by hand", [element("pre", element("code", "\n".join(next_commands(folder))))])


def _steps(loop: ClosedLoop) -> Iterator[str]:
    live = loop.live.arms[BASE]
    yield (
        f"A service showed {live.slates:,} lists in base order, whole, to simulated visitors, who clicked "
        f"{live.clicks:,} items. They read from the top, and click a relevant item only if it is not similar to one "
        "that they clicked before."
    )
    yield "Its log was exported, and a model was trained on it: on the clicks alone, not on the grades."
    yield (
        f"The service loaded the model while it ran, and showed {loop.trial.requests:,} new lists, about half of them "
        f"in the model's order. A slate had {SLOTS} slots in both arms, and a visitor always met the same arm."
    )
    yield "The running counts of the log were compared: what follows comes from them."


def _arm_table(arms: Sequence[ArmResult]) -> Html:
    rows = [
        [arm.arm, *(f"{n:,}" for n in (arm.units, arm.impressions, arm.fallbacks, arm.clicks)), with_interval(arm.ctr)]
        for arm in arms
    ]
    return table(["arm", "visitors", "slates", "fallbacks", "clicks", "clicks in 100 slates"], rows)


def _differences(analysis: Analysis) -> Iterator[Html]:
    rows = [
        [
            arm.arm,
            per_100(found.value, signed=True),
            percent(found.lift, signed=True),
            span(found.fixed_horizon, signed=True),
            span(found.always_valid, signed=True),
            p_value(found.always_valid_p),
        ]
        for arm in analysis.arms
        if (found := arm.against_control) is not None
    ]
    yield element("p", "The difference, in clicks in 100 slates:")
    yield table([f"against {analysis.control}", "difference", "lift", "fixed-horizon", "always-valid", "p"], rows)
    p = analysis.sample_ratio.p_value
    yield element(
        "p",
        "95% intervals, clustered by visitor. Fixed-horizon: for a test that ends at a number of visitors planned "
        "beforehand. Always-valid, and p: for all looks together, so that one may stop at any time."
        + ("" if p is None else f" Sample ratio: p = {p:.3g}."),
        class_="soft",
    )


def _position_table(arms: Sequence[ArmResult]) -> Html:
    by_slot = zip_longest(*(arm.positions for arm in arms))
    rows = [
        [str(number), *(with_interval(slot.ctr if slot else None) for slot in slots)]
        for number, slots in enumerate(by_slot, start=1)
    ]
    return table(["position", *(arm.arm for arm in arms)], rows)
