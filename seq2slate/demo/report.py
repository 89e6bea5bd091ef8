"""The report of the closed loop: one HTML page that works offline, with figure 3 from a live experiment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seq2slate.atomic import atomic_path
from seq2slate.demo.closed_loop import BASE, SLOTS, Loop, next_commands, verdict
from seq2slate.demo.folder import Folder
from seq2slate.evaluation.experiment_figures import rate_picture
from seq2slate.evaluation.figures import Chart, difference_picture, save
from seq2slate.experiments.analysis import Analysis, ArmResult, Rate
from seq2slate.experiments.statistics import Interval
from seq2slate.html import Html, Section, chart, element, page, table

_CAPTIONS = {
    "figure3": "A blue bar is a position that gets more clicks than in base order, an orange one fewer; a bar is grey "
    "where its interval includes zero.",
    "rates": "The same as two lines: what visitors clicked on the slates in base order, and on those of the model.",
}


def write_report(folder: Folder, loop: Loop) -> None:
    """Write the page, and the pictures beside it."""
    pictures = _pictures(loop.analysis)
    for name, picture in pictures.items():
        for suffix in ("png", "svg"):
            save(picture, folder.path / "pictures" / f"{name}.{suffix}")
    drawn = {name: chart(name, picture.to_dict(), _CAPTIONS[name]) for name, picture in pictures.items()}
    with atomic_path(folder.report) as partial:
        partial.write_text(page("The closed loop", list(_sections(folder, loop, drawn))), encoding="utf-8")


def _pictures(analysis: Analysis) -> dict[str, Chart]:
    drawn = {
        "figure3": difference_picture({"baseline": "the base order", "rows": list(_differences(analysis))}),
        "rates": rate_picture(list(_rates(analysis)), analysis.control),
    }
    return {name: picture for name, picture in drawn.items() if picture is not None}


def _differences(analysis: Analysis) -> Iterator[dict[str, Any]]:
    for arm in analysis.arms:
        for slot in arm.positions:
            if slot.against_control is not None:
                difference = slot.against_control
                ends = {"low": difference.interval.low, "high": difference.interval.high}
                yield {"ranker": arm.arm, "position": slot.position, "difference": difference.value, **ends}


def _rates(analysis: Analysis) -> Iterator[dict[str, Any]]:
    for arm in analysis.arms:
        for slot in arm.positions:
            if slot.ctr is not None:
                interval = slot.ctr.interval
                ends = {"low": interval and interval.low, "high": interval and interval.high}
                yield {"arm": arm.arm, "position": slot.position, "rate": slot.ctr.value, **ends}


def _sections(folder: Folder, loop: Loop, drawn: dict[str, Html]) -> Iterator[Section]:
    analysis = loop.analysis
    yield Section("In short", [element("p", verdict(analysis))])
    yield Section("What was done", [element("ol", *(element("li", step) for step in _steps(loop)))])
    yield Section("The experiment", list(_tables(analysis)))
    yield Section("Clicks per position (figure 3)", [*drawn.values(), _position_table(analysis.arms)])
    yield Section("To go on by hand", [element("pre", element("code", "\n".join(next_commands(folder))))])


def _steps(loop: Loop) -> Iterator[str]:
    live = loop.live.arms[BASE]
    yield (
        f"A service showed {live.slates:,} lists in base order, whole, to simulated visitors, who clicked "
        f"{live.clicks:,} items. They read from the top, and click a relevant item only if it is not similar to one "
        "that they clicked before."
    )
    yield "Its log was exported, and a model learned from it: from the clicks alone, not from what is relevant."
    yield (
        f"The service took the model up while it ran, and showed {loop.trial.requests:,} new lists, about half of them "
        f"in the model's order. A slate had {SLOTS} slots in both arms, and a visitor always met the same arm."
    )
    yield "The running counts of the log were compared: what follows comes from them."


def _tables(analysis: Analysis) -> Iterator[Html]:
    arms = [
        [arm.arm, f"{arm.units:,}", f"{arm.impressions:,}", f"{arm.fallbacks:,}", f"{arm.clicks:,}", _rate(arm.ctr)]
        for arm in analysis.arms
    ]
    yield table(["arm", "visitors", "slates", "fallbacks", "clicks", "clicks in 100 slates"], arms)
    differences = [
        [
            arm.arm,
            f"{100 * difference.value:+.2f}",
            f"{difference.lift:+.1%}",
            _interval(difference.fixed, "+"),
            *(
                ("–", "–")
                if difference.any_time is None
                else (_interval(difference.any_time, "+"), f"{difference.any_time_p:.2g}")
            ),
        ]
        for arm in analysis.arms
        if (difference := arm.against_control) is not None
    ]
    header = [f"against {analysis.control}", "difference", "lift", "one look", "any look", "p"]
    yield element("p", "The difference, in clicks in 100 slates:")
    yield table(header, differences)
    p = analysis.sample_ratio.p_value
    notes = "95% intervals, clustered by visitor. One look: for a test that ends at a number of visitors planned "
    notes += "beforehand. Any look, and p: for all looks together, so that one may stop at any time."
    yield element("p", notes + ("" if p is None else f" Visitors against weights: p = {p:.3g}."), class_="soft")


def _position_table(arms: tuple[ArmResult, ...]) -> Html:
    n_slots = max(len(arm.positions) for arm in arms)
    rows = [
        [str(slot + 1), *(_rate(arm.positions[slot].ctr if slot < len(arm.positions) else None) for arm in arms)]
        for slot in range(n_slots)
    ]
    return table(["position", *(arm.arm for arm in arms)], rows)


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return "–"
    return f"{100 * rate.value:.2f}" + ("" if rate.interval is None else f" ({_interval(rate.interval)})")


def _interval(interval: Interval, sign: str = "") -> str:
    return f"{100 * interval.low:{sign}.2f} … {100 * interval.high:{sign}.2f}"
