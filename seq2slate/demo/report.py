"""The report of the closed loop: one HTML page that works offline, with figure 3 from a live experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seq2slate.demo.closed_loop import BASE, SLOTS, ClosedLoop, next_commands, verdict
from seq2slate.demo.folder import DemoFolder
from seq2slate.evaluation.figures import difference_picture, rate_picture
from seq2slate.evaluation.report import write_page
from seq2slate.experiments.analysis import Analysis, ArmResult, Rate
from seq2slate.experiments.statistics import Interval
from seq2slate.html import Html, Section, element, table


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
        [arm.arm, *(f"{n:,}" for n in (arm.units, arm.impressions, arm.fallbacks, arm.clicks)), _rate(arm.ctr)]
        for arm in arms
    ]
    return table(["arm", "visitors", "slates", "fallbacks", "clicks", "clicks in 100 slates"], rows)


def _differences(analysis: Analysis) -> Iterator[Html]:
    rows = [
        [
            arm.arm,
            f"{100 * found.value:+.2f}",
            f"{found.lift:+.1%}",
            _interval(found.fixed_horizon, "+"),
            _interval(found.always_valid, "+"),
            "–" if found.always_valid_p is None else f"{found.always_valid_p:.2g}",
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
    rows = [
        [str(n + 1), *(_rate(arm.positions[n].ctr if n < len(arm.positions) else None) for arm in arms)]
        for n in range(max(len(arm.positions) for arm in arms))
    ]
    return table(["position", *(arm.arm for arm in arms)], rows)


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return "–"
    return f"{100 * rate.value:.2f}" + ("" if rate.interval is None else f" ({_interval(rate.interval)})")


def _interval(interval: Interval | None, sign: str = "") -> str:
    return "–" if interval is None else f"{100 * interval.low:{sign}.2f} … {100 * interval.high:{sign}.2f}"
