"""The page of an experiment: what the log and the deployment know of it, the verdict, and what it rests on.

Everything here reads the log and blocks, so it runs in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from seq2slate.data.impressions import is_storable
from seq2slate.experiments.analysis import Analysis, ArmResult, analyse
from seq2slate.experiments.assignment import INTERLEAVED, USUAL_CONTROLS
from seq2slate.experiments.counts import ArmCounts, Counts, MinuteCounts
from seq2slate.html import Html, element
from seq2slate.log.impression_log import ImpressionLog
from seq2slate.serving.deployment import Deployment, ServedModel
from seq2slate.serving.web import charts
from seq2slate.serving.web.frame import (
    Column,
    Page,
    card,
    data_table,
    facts,
    frame,
    model_name,
    navigation,
    problem,
    soft,
)
from seq2slate.serving.web.svg import arm_key
from seq2slate.serving.web.words import (
    NOTHING,
    address,
    count,
    moment,
    p_is,
    p_value,
    parse_int,
    per_100,
    percent,
    percent_span,
    span,
    verdict_sentences,
    verdict_tone,
    warnings,
)

LATEST_SLATES = 1000
"""Of which the latencies are shown."""
MINUTES = 24 * 60
"""Of which the traffic is shown."""
REFRESH_SECONDS = 10
"""Of the link to a page that reloads itself."""
_MIN_REFRESH, _MAX_REFRESH = 2, 3600
_NO_COUNTS = ArmCounts(0, 0, 0, 0, 0, 0, fallbacks=0, positions=())


def experiment_page(store: ImpressionLog, deployment: Deployment, parameters: Mapping[str, str]) -> Page:
    """Return the page of the experiment of that name, the one being served if none is named."""
    overview = read_overview(store, deployment, parameters.get("experiment"))
    if overview is None:
        return problem(404, "No such experiment", "Neither the log nor the service knows an experiment of this name.")
    seconds = parse_int(parameters.get("refresh"))
    refresh = None if seconds is None else min(max(seconds, _MIN_REFRESH), _MAX_REFRESH)
    analysis = overview.analysis
    parts = [
        element("h1", f"Experiment {analysis.experiment}"),
        *_experiment_links(overview),
        *_warnings(overview),
        _verdict(analysis),
        _tiles(overview),
        _arms(overview),
        *_preferences(analysis),
        _charts(overview),
    ]
    return Page(frame(analysis.experiment, parts, place="/", footer=_footer(overview, refresh), refresh=refresh))


# What is known


@dataclass(frozen=True)
class Overview:
    """Everything that the page of an experiment shows."""

    analysis: Analysis
    counts: Counts
    experiments: Sequence[str]
    """All that the log or the deployment knows."""
    minutes: Sequence[MinuteCounts]
    latencies: Mapping[str, Sequence[float]]
    """Milliseconds by arm."""
    models: Mapping[str, Sequence[ServedModel | None]]
    """The models that each arm serves now, None for the base order; arms that are not served are missing."""
    made_at: float


def analysis_of(store: ImpressionLog, deployment: Deployment, name: str | None = None) -> Analysis | None:
    """Analyse an experiment, the one being served if none is named; None if it is unknown."""
    found = _analyse(store, deployment, name)
    return None if found is None else found[1]


def read_overview(store: ImpressionLog, deployment: Deployment, name: str | None = None) -> Overview | None:
    """Read everything that the page shows; None if the experiment is unknown."""
    found = _analyse(store, deployment, name)
    if found is None:
        return None
    counts, analysis = found
    served, now = deployment.experiment, time.time()
    return Overview(
        analysis=analysis,
        counts=counts,
        experiments=sorted({*store.experiments(), served.name}),
        minutes=store.minutes(counts.experiment, int(now // 60) - MINUTES + 1),
        latencies=store.latencies(counts.experiment, LATEST_SLATES),
        models=_models(deployment) if counts.experiment == served.name else {},
        made_at=now,
    )


def _models(deployment: Deployment) -> dict[str, list[ServedModel | None]]:
    found = {arm.name: deployment.models.get(arm.name) for arm in deployment.experiment.arms}
    if deployment.experiment.kind == "interleaving":
        return {INTERLEAVED: list(found.values())}
    return {arm: [model] for arm, model in found.items()}


def _analyse(store: ImpressionLog, deployment: Deployment, name: str | None) -> tuple[Counts, Analysis] | None:
    """Return the counts, with empty ones for arms that have shown nothing yet, and their analysis; None if unknown.

    The weights are known only if every arm of the log has one: arms may have been removed since.
    """
    served = deployment.experiment
    name = served.name if name is None else name
    if not is_storable(name):
        return None
    counts = store.counts(name)
    is_served = name == served.name
    definition = deployment.definition if is_served else store.definition(name)
    if definition is not None:
        arms = dict.fromkeys(definition.weights, _NO_COUNTS) | dict(counts.arms)
        counts = replace(counts, arms=dict(sorted(arms.items())))
        weights = definition.weights if set(arms) <= set(definition.weights) else None
        return counts, analyse(counts, control=definition.control, weights=weights, models=definition.models)
    if not counts.arms:
        return None
    has_usual = any(arm in counts.arms for arm in USUAL_CONTROLS)
    return counts, analyse(counts, control=None if has_usual else next(iter(counts.arms)))


# Verdict


def _experiment_links(overview: Overview) -> list[Html]:
    """Return links to the experiments of the log, if there are several."""
    if len(overview.experiments) < 2:
        return []
    links = [(address("/", experiment=name), name) for name in overview.experiments]
    return [navigation("Experiments", links, current=address("/", experiment=overview.analysis.experiment))]


def _warnings(overview: Overview) -> list[Html]:
    return [
        element(
            "div",
            element("p", element("strong", headline)),
            element("p", explanation),
            class_="card warning",
            role="alert",
        )
        for headline, explanation in warnings(overview.analysis, overview.counts)
    ]


def _verdict(analysis: Analysis) -> Html:
    lines = [element("p", one.text) for one in verdict_sentences(analysis)]
    note = "Always-valid intervals and p-values hold for all comparisons together."
    notes = [soft(note)] if len(analysis.arms) > 2 else []
    heading = element("h2", "Verdict", class_="hidden")
    return element("section", heading, *lines, *notes, class_=f"card verdict {verdict_tone(analysis)}")


def _tiles(overview: Overview) -> Html:
    arms = overview.analysis.arms
    slates, clicks = sum(arm.impressions for arm in arms), sum(arm.clicks for arm in arms)
    fallbacks = sum(arm.fallbacks for arm in arms)
    pairs = [
        ("Slates", count(slates)),
        ("Units", count(sum(arm.units for arm in arms))),
        ("Clicks", count(clicks)),
        ("Clicks per 100 slates", per_100(clicks / slates if slates else None)),
        ("Fallbacks", percent(fallbacks / slates if slates else None)),
    ]
    return facts(pairs, class_="tiles")


# Arms


def _arms(overview: Overview) -> Html:
    analysis = overview.analysis
    columns = [Column("arm"), Column("serves", kind="text")]
    columns += [Column(name) for name in ("units", "slates", "clicks", "clicks per 100 slates")]
    rows = [_arm_row(overview, number, arm) for number, arm in enumerate(analysis.arms)]
    if len(rows) > 1:
        columns += [Column(name) for name in ("difference to the control", "always-valid interval", "p")]
        rows = [[*row, *_against_control(analysis, arm)] for row, arm in zip(rows, analysis.arms, strict=True)]
    whole = data_table(columns, rows, label="The arms of the experiment", class_="stacked wide")
    return card("Arms", whole, _reading(overview))


def _reading(overview: Overview) -> Html:
    """Return the differences as a chart, and how to read them."""
    chart = charts.differences_chart(overview.analysis)
    ratio = soft(_sample_ratio(overview))
    if chart is None:
        return ratio
    rule = "An arm is better or worse than the control once its thin line excludes 0."
    trusted = not overview.analysis.sample_ratio.mismatch
    return _explained(chart, *([soft(rule)] if trusted else []), ratio)


def _explained(chart: Html, *parts: Html) -> Html:
    """Return a chart of intervals beside how to read it."""
    how = (
        "Thick lines are fixed-horizon intervals, for one analysis that was planned beforehand; thin ones are "
        "always-valid, for any number of analyses."
    )
    return element("div", chart, element("div", soft(how), *parts), class_="pair")


def _arm_row(overview: Overview, number: int, arm: ArmResult) -> list[str]:
    name = element("span", arm_key(number), element("span", arm.arm), class_="key")
    counted = [count(arm.units), count(arm.impressions), count(arm.clicks)]
    rate = [per_100(arm.ctr.value), element("small", span(arm.ctr.interval))] if arm.ctr else [NOTHING]
    return [name, _model(overview, arm.arm), *counted, element("span", *rate)]


def _against_control(analysis: Analysis, arm: ArmResult) -> list[str]:
    found = arm.against_control
    if found is None:
        return ["the control" if arm.arm == analysis.control else NOTHING, NOTHING, NOTHING]
    lift = element("small", percent(found.lift, signed=True))
    difference = element("span", per_100(found.value, signed=True), lift)
    return [difference, span(found.always_valid, signed=True), p_value(found.always_valid_p)]


def _model(overview: Overview, arm: str) -> Html:
    if arm not in overview.models:
        known = overview.analysis.model_name(arm)
        not_now = "not served now"
        return element("span", not_now) if known is None else element("span", known, element("small", not_now))
    first, *others = [
        element("span", "base order") if one is None else model_name(one.name, one.fingerprint)
        for one in overview.models[arm]
    ]
    return element("span", first, *(element("span", " and ", other) for other in others))


def _sample_ratio(overview: Overview) -> str:
    """Say whether the arms got the units of their weights."""
    ratio = overview.analysis.sample_ratio
    start = "Intervals have a level of 95% and are clustered by unit."
    if ratio.p_value is None:
        return start
    if not ratio.known:
        unknown = "The weights of this experiment are not known here"
        return f"{start} {unknown}; against equal weights, the sample ratio test gives {p_is(ratio.p_value)}."
    outcome = "finds a mismatch" if ratio.mismatch else "finds no mismatch"
    return f"{start} The sample ratio test {outcome} ({p_is(ratio.p_value)})."


def _preferences(analysis: Analysis) -> list[Html]:
    """Return the preferences between arms whose slates are interleaved."""
    if not analysis.preferences:
        return []
    names = ("arms", "slates", "units that clicked", "clicks of each", "preference for the second")
    columns = [Column(name) for name in (*names, "fixed-horizon interval", "always-valid interval", "p")]
    rows = [
        [
            f"{analysis.label(one.a)} and {analysis.label(one.b)}",
            count(one.impressions),
            count(one.units),
            f"{count(one.a_clicks)} and {count(one.b_clicks)}",
            percent(one.estimate, signed=True),
            percent_span(one.fixed_horizon),
            percent_span(one.always_valid),
            p_value(one.always_valid_p),
        ]
        for one in analysis.preferences
    ]
    text = "Both arms fill each slate in turns; a click counts for the one that placed the item. From −100% to +100%."
    whole = data_table(columns, rows, label="Preferences between interleaved arms", class_="stacked wide")
    chart, note = charts.preferences_chart(analysis), soft(text)
    if chart is None:
        return [card("Interleaved slates", whole, note)]
    rule = "The second arm is preferred once its thin line is right of 0, and the first once it is left of 0."
    return [card("Interleaved slates", whole, _explained(chart, soft(rule), note))]


# Charts


def _charts(overview: Overview) -> Html:
    """Return the cards below the arms, two in a row."""
    rates = charts.position_rates_chart(overview.analysis)
    differences = charts.position_differences_chart(overview.analysis)
    cards = [] if rates is None else [card("Clicks by position", rates)]
    cards += [] if differences is None else [card("Difference to the control by position", differences)]
    cards.append(_traffic(overview))
    last = [_latency(overview), _fallbacks(overview)]
    cards += last if len(cards) % 2 == 0 else [element("div", *last)]
    return element("div", *cards, class_="pair")


def _traffic(overview: Overview) -> Html:
    chart = charts.traffic_chart(overview.minutes, _names(overview), overview.made_at)
    return card("Traffic", chart or soft("No slates in the last 24 hours."))


def _latency(overview: Overview) -> Html:
    chart = charts.latency_chart(overview.latencies, _names(overview))
    if chart is None:
        none = f"None of the latest {count(LATEST_SLATES)} slates of the log is of this experiment."
        return card("Latency", soft(none))
    note = f"From the request to its slate, before the commit, of the latest {count(LATEST_SLATES)} slates of the log."
    return card("Latency", chart, soft(note))


def _fallbacks(overview: Overview) -> Html:
    arms = [(arm.arm, overview.counts.arms[arm.arm]) for arm in overview.analysis.arms]
    if not any(arm.fallbacks for _, arm in arms):
        return card("Fallbacks", soft("None: every slate is the arm's own."))
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
    text = "Slates in base order because the model failed, missed its deadline, or could not read the features."
    whole = data_table(columns, rows, label="Fallbacks by arm and reason")
    return card("Fallbacks", soft(text), whole)


def _names(overview: Overview) -> Sequence[str]:
    return [arm.arm for arm in overview.analysis.arms]


def _footer(overview: Overview, refresh: int | None) -> list[str]:
    name = overview.analysis.experiment
    again = address("/", experiment=name, refresh=refresh)
    other = address("/", experiment=name, refresh=None if refresh else REFRESH_SECONDS)
    return [
        "Made at ",
        moment(overview.made_at),
        " · ",
        element("a", "Refresh", href=again),
        " · ",
        element("a", "Stop refreshing" if refresh else f"Refresh every {REFRESH_SECONDS} seconds", href=other),
        " · ",
        element("a", "JSON", href=address("/v1/experiment", experiment=name)),
    ]
