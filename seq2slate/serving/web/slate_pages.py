"""The pages of slates: the latest ones, and one slate with what moved, what was clicked, and each step of the model.

The log has the slate and the features, not the probability of every item at every step: a matrix for each slate would
be most of the log. The page computes them again with the model that ordered the slate, which it knows by its
fingerprint, as long as that model is being served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from urllib.parse import quote

import numpy as np

from seq2slate.data.impressions import Impression, is_storable
from seq2slate.data.lists import FloatArray
from seq2slate.errors import Seq2SlateError
from seq2slate.html import Html, element
from seq2slate.log.impression_log import ImpressionLog
from seq2slate.serving.deployment import Deployment
from seq2slate.serving.web.frame import Column, Page, card, data_table, facts, folded, frame, model_name, problem, soft
from seq2slate.serving.web.svg import FIRST_ITEMS, drawn_items, drawn_steps, heatmap
from seq2slate.serving.web.words import NOTHING, address, count, milliseconds, moment, parse_int, percent, plural

LATEST = 50
"""Slates of the list."""
FIRST_ROWS = 30
"""Of a slate and of the base order; the rest is folded away."""
_STEPS = "Probabilities of the model, step by step"
_MOST_PROBABLE = 8
_ROUNDING = 1e-3


def slates_page(store: ImpressionLog, deployment: Deployment, parameters: Mapping[str, str]) -> Page:
    """Return the page of the latest slates."""
    slates = store.recent(LATEST)
    lead = "Choose one to see what moved, and the probabilities of the model at every step."
    texts = ("time", "arm", "unit", "top item", "clicks", "fallback")
    columns = [Column("slate"), *(Column(name, kind="text") for name in texts)]
    rows = [_slates_row(one) for one in slates]
    found = data_table(columns, rows, label="The latest slates") if rows else soft("No slates yet.")
    heading = f"The latest {plural(len(slates), 'slate')}" if slates else "Nothing was shown so far"
    parts = [element("h1", "Slates"), element("p", lead, class_="lead"), card(heading, found)]
    return Page(frame("Slates", parts, place="/slates"))


def _slates_row(slate: Impression) -> list[str]:
    clicks = element("span", count(len(slate.clicks)), class_="badge clicked" if slate.clicks else None)
    return [
        element("a", element("code", slate.slate_id), href=f"/slates/{quote(slate.slate_id, safe='')}"),
        moment(slate.at),
        element("span", slate.arm, element("small", f"of {slate.experiment}")),
        slate.unit,
        _titled(slate, slate.shown[0]) if slate.shown else NOTHING,
        element("span", clicks, f" on {plural(len(slate.shown), 'item')}"),
        _fallback_badge(slate),
    ]


def _fallback_badge(slate: Impression) -> Html:
    """Say why the slate fell back, if it did."""
    if slate.fallback is None:
        return element("span", "no")
    badge = element("span", slate.fallback, class_="badge fallback")
    return element("span", badge, element("small", slate.fallback_detail)) if slate.fallback_detail else badge


def _titled(slate: Impression, item: int, *badges: Html) -> Html:
    """Return the id of an item with badges, and its title if it has one."""
    title = slate.titles[item] if slate.titles is not None else None
    beside = [text for badge in badges for text in (" ", badge)]
    return element("span", slate.items[item], *beside, *([element("small", title)] if title else []))


# One slate


def slate_page(store: ImpressionLog, deployment: Deployment, parameters: Mapping[str, str]) -> Page:
    """Return the page of the slate `slate_id`, at a `step` from 1; one that does not exist is the nearest one."""
    slate_id = parameters.get("slate_id", "")
    found = store.get(slate_id) if is_storable(slate_id) else None
    if found is None:
        return problem(404, "No such slate", "The log has no slate of this id; old ones may have been deleted.")
    step = (parse_int(parameters.get("step")) or 1) - 1
    step = max(0, min(step, len(found.shown) - 1))
    model = next((one.name for one in deployment.models.values() if one.fingerprint == found.model), "")
    return draw_slate(found, step_probabilities(deployment, found), step, model)


@dataclass(frozen=True)
class StepProbabilities:
    """The probabilities of every step of a slate."""

    values: FloatArray
    """(K, N) of every item, given those placed before; 0 for these."""
    note: str | None
    """What to know about them, if anything."""


def step_probabilities(deployment: Deployment, slate: Impression) -> StepProbabilities | str:
    """Return the probabilities of the steps of a slate, or a sentence on why they are not known."""
    if slate.fallback is not None:
        why = f"{slate.fallback}: {slate.fallback_detail}" if slate.fallback_detail else slate.fallback
        return f"The slate fell back to the base order ({why}): no model chose its items."
    if slate.draft is not None:
        return "Two arms filled this slate in turns (interleaving): no single model chose its items."
    if slate.model is None:
        return "The slate is in base order: no model chose its items."
    if not slate.shown:
        return "The slate is empty."
    model = next((one for one in deployment.models.values() if one.fingerprint == slate.model), None)
    if model is None:
        return f"The model that ordered this slate, {slate.model}, is not being served: its probabilities are unknown."
    temperature = _temperature(deployment, slate)
    try:
        found = model.runtime.step_probabilities(
            slate.features,
            slate.shown,
            ids=slate.items,
            categorical=slate.categorical,
            context=slate.context,
            temperature=temperature,
        )
    except Seq2SlateError as error:
        return f"The model cannot read this slate again: {error}"
    values = np.nan_to_num(found)
    return StepProbabilities(values, _temperature_note(slate, values, temperature))


def _temperature(deployment: Deployment, slate: Impression) -> float:
    """Return the temperature at which the slate was sampled, if its arm is being served."""
    if slate.log_propensities is None or slate.experiment != deployment.experiment.name:
        return 1.0
    arm = next((arm for arm in deployment.experiment.arms if arm.name == slate.arm), None)
    return 1.0 if arm is None or arm.temperature is None else arm.temperature


def _temperature_note(slate: Impression, values: FloatArray, temperature: float) -> str | None:
    if slate.log_propensities is None:
        return None
    chosen = values[np.arange(len(slate.shown)), slate.shown]
    if np.abs(chosen - np.exp(slate.log_propensities)).max() < _ROUNDING:
        return f"The slate was sampled at temperature {temperature:g}: these are its propensities."
    return f"The slate was sampled at another temperature than {temperature:g}, which these probabilities are for."


_BASE = (Column("position"), Column("item", kind="text"), Column("in the slate", kind="text"))
_SLATE = (Column("slot"), Column("item", kind="text"), Column("moved", kind="text"), Column("probability"))
_INTERLEAVED = (*_SLATE, Column("placed by", kind="text"))


def draw_slate(slate: Impression, probabilities: StepProbabilities | str, step: int, model: str = "") -> Page:
    """Return the page of one slate.

    Args:
        slate: The slate and its clicks.
        probabilities: Those of its steps, or a sentence on why they are not known.
        step: The step to show, from 0.
        model: The name of the folder of its model, if that is known.
    """
    columns = _SLATE if slate.draft is None else _INTERLEAVED
    parts = [
        element("p", element("a", "All slates", href="/slates")),
        element("h1", "Slate ", element("code", slate.slate_id)),
        facts(_facts_of(slate, model)),
        element(
            "div",
            card("Base order", *_first_rows(_base_rows(slate), _BASE, "Base order")),
            card("Slate", *_first_rows(_slate_rows(slate, probabilities), columns, "Slate")),
            class_="pair",
        ),
        _steps(slate, probabilities, step),
    ]
    return Page(frame(f"Slate {slate.slate_id}", parts, place="/slates"))


def _facts_of(slate: Impression, name: str) -> list[tuple[str, str]]:
    model = element("span", "none, base order") if slate.model is None else model_name(name, slate.model)
    return [
        ("Shown", moment(slate.at)),
        ("Experiment", element("a", slate.experiment, href=address("/", experiment=slate.experiment))),
        ("Arm", slate.arm),
        ("Unit", slate.unit),
        ("Model", model),
        ("Fallback", _fallback_badge(slate)),
        ("Clicks", count(len(slate.clicks))),
        ("Latency", milliseconds(slate.latency_ms)),
    ]


def _first_rows(rows: Sequence[Sequence[str]], columns: Sequence[Column], label: str) -> list[Html]:
    """Return the first rows, and the others folded away."""
    if not rows:
        return [soft("Nothing was shown.")]
    first = data_table(columns, rows[:FIRST_ROWS], label=label, class_="plain")
    if len(rows) <= FIRST_ROWS:
        return [first]
    rest = data_table(columns, rows[FIRST_ROWS:], label=f"{label}, continued", class_="plain")
    return [first, folded(plural(len(rows) - FIRST_ROWS, "more row"), rest)]


def _base_rows(slate: Impression) -> list[list[str]]:
    slots = {item: slot for slot, item in enumerate(slate.shown)}
    return [[count(item + 1), _item(slate, item), _went(item, slots)] for item in range(len(slate.items))]


def _went(item: int, slots: Mapping[int, int]) -> Html:
    if item not in slots:
        return element("span", "not shown", class_="badge")
    return element("span", f"slot {count(slots[item] + 1)} ", move_badge(item, slots[item], len(slots)))


def _slate_rows(slate: Impression, probabilities: StepProbabilities | str) -> list[list[str]]:
    n_slots = len(slate.shown)
    rows = [
        [count(slot + 1), _item(slate, item), move_badge(item, slot, n_slots), _probability(slate, slot, probabilities)]
        for slot, item in enumerate(slate.shown)
    ]
    if slate.draft is None:
        return rows
    arms = {"a": slate.draft.a, "b": slate.draft.b}
    return [[*row, arms[team]] for row, team in zip(rows, slate.draft.teams, strict=True)]


def _probability(slate: Impression, slot: int, probabilities: StepProbabilities | str) -> str:
    """Return the logged propensity of a choice, or else what the model computes again."""
    if slate.log_propensities is not None:
        return percent(exp(min(0.0, slate.log_propensities[slot])))
    if isinstance(probabilities, str):
        return NOTHING
    return percent(float(probabilities.values[slot, slate.shown[slot]]))


def _item(slate: Impression, item: int) -> Html:
    badges = [element("span", "clicked", class_="badge clicked")] if item in slate.clicks else []
    return _titled(slate, item, *badges)


def move_badge(item: int, slot: int, n_slots: int) -> Html:
    """Say how far an item moved; one from below the slots would not have been seen in base order.

    >>> move_badge(4, 1, 5), move_badge(1, 4, 5)
    ('<span class="badge up" title="up 3">↑3</span>', '<span class="badge down" title="down 3">↓3</span>')
    >>> move_badge(2, 2, 5), move_badge(7, 0, 5)
    ('<span class="badge" title="same place">=</span>', '<span class="badge new" title="up 7">new, from 8</span>')
    """
    up = item - slot
    if not up:
        return element("span", "=", class_="badge", title="same place")
    if item >= n_slots:
        return element("span", f"new, from {count(item + 1)}", class_="badge new", title=f"up {up}")
    side, arrow = ("up", "↑") if up > 0 else ("down", "↓")
    return element("span", f"{arrow}{abs(up)}", class_=f"badge {side}", title=f"{side} {abs(up)}")


# Its steps


def _steps(slate: Impression, probabilities: StepProbabilities | str, step: int) -> Html:
    if isinstance(probabilities, str):
        return card(_STEPS, soft(probabilities), anchor="attention")
    steps = drawn_steps(step, len(slate.shown))
    strongest = percent(float(probabilities.values[steps.start : steps.stop].max()))
    note = (
        f"The stronger the colour, the more probable, up to {strongest}. Ring: placed at this step. Dot: placed before."
    )
    if len(drawn_items(slate, steps)) < len(slate.items):
        note += f" Drawn are the first {FIRST_ITEMS} of {count(len(slate.items))} items and those that were placed."
    if len(steps) < len(slate.shown):
        note += f" Steps {count(steps.start + 1)} to {count(steps.stop)} of {count(len(slate.shown))}."
    figure = element("figure", heatmap(slate, probabilities.values, step))
    return card(
        _STEPS,
        _step_links(step, len(slate.shown)),
        element("div", figure, _step(slate, probabilities.values[step], step), class_="side"),
        soft(f"{note} {probabilities.note or ''}".rstrip()),
        anchor="attention",
    )


def _step_links(step: int, n_steps: int) -> Html:
    back = _step_link("Previous", step, "prev") if step > 0 else element("span", "Previous")
    on = _step_link("Next", step + 2, "next") if step + 1 < n_steps else element("span", "Next")
    here = element("strong", f"Step {count(step + 1)} of {count(n_steps)}")
    return element("nav", back, here, on, class_="steps", aria_label="Steps")


def _step_link(name: str, step: int, relation: str) -> Html:
    return element("a", name, href=address("", step=step) + "#attention", rel=relation)


def _step(slate: Impression, values: FloatArray, step: int) -> Html:
    """Return the most probable items of a step, and the one that was placed, from their probabilities (N,)."""
    chosen = slate.shown[step]
    order = [int(item) for item in np.argsort(-values, kind="stable")[:_MOST_PROBABLE] if values[item] > 0]
    if chosen not in order:
        order.append(chosen)
    largest = float(values.max()) or 1.0
    rest = max(0.0, 1 - float(sum(values[item] for item in order)))
    n_rest = len(slate.items) - step - len(order)
    given = "Before anything is placed" if not step else f"With {plural(step, 'item')} placed"
    note = f"{given}, the items have these probabilities."
    if n_rest > 0:
        note += f" {plural(n_rest, 'other item')}: {percent(rest)} together."
    rows = [
        element(
            "tr",
            element("td", _candidate(slate, item, chosen), class_="text"),
            element("td", percent(float(values[item])), class_="number"),
            element("td", _bar(float(values[item]) / largest), class_="bar-of"),
        )
        for item in order
    ]
    return element("div", element("p", note), element("table", element("tbody", *rows), class_="bars"))


def _candidate(slate: Impression, item: int, chosen: int) -> Html:
    if item != chosen:
        return _titled(slate, item)
    return element("strong", _titled(slate, item, element("span", "placed", class_="badge new")))


def _bar(share: float) -> Html:
    track = element("rect", width="100%", height="100%", class_="track", rx="3")
    bar = element("rect", width=f"{100 * share:.2f}%", height="100%", rx="3")
    return element("svg", track, bar, aria_hidden="true")
