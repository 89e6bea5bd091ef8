"""The page of an experiment: the verdict first, then what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from seq2slate.experiments.analysis import Analysis, ArmResult
from seq2slate.html import Html, element
from seq2slate.serving.web import charts, verdict
from seq2slate.serving.web.frame import Column, Page, card, frame, table
from seq2slate.serving.web.overview import LATEST_SLATES, Overview
from seq2slate.serving.web.svg import key
from seq2slate.serving.web.words import (
    NOTHING,
    address,
    count,
    in_100,
    moment,
    p_value,
    percent,
    percent_span,
    span,
)

EVERY = 10
"""Seconds, of the page that loads anew by itself."""


def experiment_page(overview: Overview, *, refresh: int | None = None) -> Page:
    """Return the page."""
    analysis = overview.analysis
    parts = [
        element("h1", f"Experiment {analysis.experiment}"),
        *_choice(overview),
        *_warnings(overview),
        _verdict(analysis),
        _tiles(overview),
        _arms(overview),
        *_preferences(analysis),
        _charts(overview),
    ]
    return Page(frame(analysis.experiment, parts, place="/", footer=_footer(overview, refresh), refresh=refresh))


def _choice(overview: Overview) -> list[Html]:
    """Return links to the experiments of the log, if there are several."""
    if len(overview.experiments) < 2:
        return []
    now = overview.analysis.experiment
    links = [
        element(
            "li", element("a", name, href=address("/", experiment=name), aria_current="page" if name == now else None)
        )
        for name in overview.experiments
    ]
    return [element("nav", element("ul", *links), aria_label="Experiments")]


def _warnings(overview: Overview) -> list[Html]:
    found = verdict.warnings(overview.analysis, overview.counts)
    return [
        element(
            "div",
            element("p", element("strong", headline)),
            element("p", explanation),
            class_="card warning",
            role="alert",
        )
        for headline, explanation in found
    ]


def _verdict(analysis: Analysis) -> Html:
    lines = [element("p", one.text) for one in verdict.sentences(analysis)]
    several = len(analysis.arms) > 2
    note = "Any look, and p, hold for all comparisons together."
    notes = [element("p", note, class_="soft")] if several else []
    heading = element("h2", "Verdict", class_="hidden")
    return element("section", heading, *lines, *notes, class_=f"card verdict {verdict.tone(analysis)}")


def _tiles(overview: Overview) -> Html:
    arms = overview.analysis.arms
    slates, clicks = sum(arm.impressions for arm in arms), sum(arm.clicks for arm in arms)
    fallbacks = sum(arm.fallbacks for arm in arms)
    shown = [
        ("Slates", count(slates)),
        ("Units", count(sum(arm.units for arm in arms))),
        ("Clicks", count(clicks)),
        ("Clicks in 100 slates", in_100(clicks / slates if slates else None)),
        ("Fallbacks", percent(fallbacks / slates if slates else None)),
    ]
    return element(
        "dl", *(element("div", element("dt", name), element("dd", value)) for name, value in shown), class_="tiles"
    )


# Arms


def _arms(overview: Overview) -> Html:
    analysis = overview.analysis
    columns = [
        Column("arm"),
        Column("serves", is_text=True),
        Column("units"),
        Column("slates"),
        Column("clicks"),
        Column("clicks in 100 slates"),
    ]
    rows = [_arm_row(overview, number, arm) for number, arm in enumerate(analysis.arms)]
    if len(rows) > 1:
        columns += [Column("difference to the control"), Column("at any look"), Column("p")]
        rows = [[*row, *_against_control(analysis, arm)] for row, arm in zip(rows, analysis.arms, strict=True)]
    whole = table(columns, rows, label="The arms of the experiment", class_="stacked wide")
    return card("Arms", whole, _reading(overview))


def _reading(overview: Overview) -> Html:
    """Return the differences as a picture, and how to read them."""
    chart = charts.differences(overview.analysis)
    shares = element("p", _shares(overview), class_="soft")
    if chart is None:
        return shares
    rule = "An arm is better or worse than the control once its thin line leaves out 0."
    trusted = not overview.analysis.sample_ratio.mismatch
    return _explained(chart, *([element("p", rule, class_="soft")] if trusted else []), shares)


def _explained(chart: Html, *parts: Html) -> Html:
    """Return a picture of intervals beside how to read it."""
    how = "Thick lines are for one look that was planned beforehand; thin ones hold at any look, however many."
    return element("div", chart, element("div", element("p", how, class_="soft"), *parts), class_="pair")


def _arm_row(overview: Overview, number: int, arm: ArmResult) -> list[str]:
    name = element("span", key(number), element("span", arm.arm), class_="key")
    counted = [count(arm.units), count(arm.impressions), count(arm.clicks)]
    rate = [in_100(arm.ctr.value), element("small", span(arm.ctr.interval))] if arm.ctr else [NOTHING]
    return [name, _model(overview, arm.arm), *counted, element("span", *rate)]


def _against_control(analysis: Analysis, arm: ArmResult) -> list[str]:
    found = arm.against_control
    if found is None:
        return ["the control" if arm.arm == analysis.control else NOTHING, NOTHING, NOTHING]
    lift = element("small", percent(found.lift, signed=True))
    difference = element("span", in_100(found.value, signed=True), lift)
    return [difference, span(found.any_time, signed=True), p_value(found.any_time_p)]


def _model(overview: Overview, arm: str) -> Html:
    if arm not in overview.models:
        return element("span", "not served now")
    first, *others = [
        element("span", "base order") if one is None else element("code", one, class_="number")
        for one in overview.models[arm]
    ]
    return element("span", first, *(element("span", " and ", other) for other in others))


def _shares(overview: Overview) -> str:
    """Say how the units were shared out, and whether that is as it should be."""
    ratio = overview.analysis.sample_ratio
    start = "Intervals are at the level of 95%, clustered by unit."
    if ratio.p_value is None:
        return start
    p = verdict.p_is(ratio.p_value)
    if not ratio.known:
        unknown = "The weights of this experiment are not known here"
        return f"{start} {unknown}; if they were equal, the arms' shares of the units would have {p}."
    outcome = "do not match" if ratio.mismatch else "match"
    return f"{start} The arms' shares of the units {outcome} their weights ({p})."


def _preferences(analysis: Analysis) -> list[Html]:
    """Return how clicks were shared between arms that filled slates together."""
    if not analysis.preferences:
        return []
    columns = [
        Column("arms"),
        Column("slates"),
        Column("units that clicked"),
        Column("clicks of each"),
        Column("preference for the second"),
        Column("at one look"),
        Column("at any look"),
        Column("p"),
    ]
    rows = [
        [
            f"{one.a} and {one.b}",
            count(one.impressions),
            count(one.units),
            f"{count(one.a_clicks)} and {count(one.b_clicks)}",
            percent(one.estimate, signed=True),
            percent_span(one.fixed),
            percent_span(one.any_time),
            p_value(one.any_time_p),
        ]
        for one in analysis.preferences
    ]
    text = "Both arms fill each slate in turns; a click counts for the one that placed the item. From −100% to +100%."
    whole = table(columns, rows, label="Preferences between arms that share slates", class_="stacked wide")
    chart, told = charts.preferences(analysis), element("p", text, class_="soft")
    if chart is None:
        return [card("Shared slates", whole, told)]
    rule = "The second arm is preferred once its thin line is right of 0, and the first once it is left of 0."
    return [card("Shared slates", whole, _explained(chart, element("p", rule, class_="soft"), told))]


# Charts


def _charts(overview: Overview) -> Html:
    """Return the cards below the arms, two in a row."""
    rates, differences = charts.rates_by_position(overview.analysis), charts.differences_by_position(overview.analysis)
    cards = [] if rates is None else [card("Clicks by position", rates)]
    cards += [] if differences is None else [card("Difference to the control by position", differences)]
    cards.append(_traffic(overview))
    last = [_latency(overview), _fallbacks(overview)]
    cards += last if len(cards) % 2 == 0 else [element("div", *last)]
    return element("div", *cards, class_="pair")


def _traffic(overview: Overview) -> Html:
    chart = charts.traffic(overview.minutes, _names(overview), overview.made_at)
    return card("Traffic", chart or element("p", "No slates in the last 24 hours.", class_="soft"))


def _latency(overview: Overview) -> Html:
    chart = charts.latency(overview.latencies, _names(overview))
    if chart is None:
        none = f"None of the latest {count(LATEST_SLATES)} slates of the log is of this experiment."
        return card("Latency", element("p", none, class_="soft"))
    told = f"From the request to its slate, before the commit, of the latest {count(LATEST_SLATES)} slates of the log."
    return card("Latency", chart, element("p", told, class_="soft"))


def _fallbacks(overview: Overview) -> Html:
    arms = [(arm.arm, overview.counts.arms[arm.arm]) for arm in overview.analysis.arms]
    if not any(arm.fallbacks for _, arm in arms):
        text = "None: every slate is what its arm asked for."
        return card("Fallbacks", element("p", text, class_="soft"))
    reasons = sorted({reason for _, arm in arms for reason in arm.fallback_reasons})
    rows = [
        [
            name,
            percent(arm.fallbacks / arm.impressions if arm.impressions else None),
            *(count(arm.fallback_reasons.get(reason, 0)) for reason in reasons),
        ]
        for name, arm in arms
    ]
    columns = [Column("arm"), Column("of its slates"), *(Column(reason) for reason in reasons)]
    text = "Slates that showed the base order because the model failed, was late, or could not read the features."
    return card(
        "Fallbacks", element("p", text, class_="soft"), table(columns, rows, label="Fallbacks by arm and reason")
    )


def _names(overview: Overview) -> Sequence[str]:
    return [arm.arm for arm in overview.analysis.arms]


def _footer(overview: Overview, refresh: int | None) -> list[str]:
    name = overview.analysis.experiment
    again = address("/", experiment=name, refresh=refresh)
    other = address("/", experiment=name, refresh=None if refresh else EVERY)
    return [
        "Made at ",
        moment(overview.made_at),
        " · ",
        element("a", "Refresh", href=again),
        " · ",
        element("a", "Stop refreshing" if refresh else f"Refresh every {EVERY} seconds", href=other),
        " · ",
        element("a", "JSON", href=address("/v1/experiment", experiment=name)),
    ]
