"""One slate: base order and slate side by side, what moved, what was clicked, and where the model looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp

import numpy as np

from seq2slate.data.impressions import Impression
from seq2slate.data.lists import FloatArray
from seq2slate.html import Html, element
from seq2slate.serving.web.attention import Attention
from seq2slate.serving.web.frame import Column, Page, card, facts, frame, table
from seq2slate.serving.web.heatmap import FIRST_ITEMS, drawn_items, drawn_steps, heatmap
from seq2slate.serving.web.slates_page import fallback_badge
from seq2slate.serving.web.words import NOTHING, address, count, milliseconds, moment, percent, plural

FIRST_ROWS = 30
"""Of a slate and of the base order; the rest is folded away."""
_LIKELIEST = 8


def slate_page(slate: Impression, attention: Attention | str, step: int) -> Page:
    """Return the page; `step` is from 0, and `attention` a sentence where it is not known."""
    parts = [
        element("p", element("a", "All slates", href="/slates")),
        element("h1", "Slate ", element("code", slate.slate_id)),
        facts(_about(slate)),
        element(
            "div",
            card("Base order", *_folded(_base_rows(slate), _BASE, "Base order")),
            card("Slate", *_folded(_slate_rows(slate, attention), _SLATE if slate.draft is None else _SHARED, "Slate")),
            class_="pair",
        ),
        _attention(slate, attention, step),
    ]
    return Page(frame(f"Slate {slate.slate_id}", parts, place="/slates"))


_BASE = (Column("position"), Column("item", is_text=True), Column("in the slate", is_text=True))
_SLATE = (Column("slot"), Column("item", is_text=True), Column("moved", is_text=True), Column("chance"))
_SHARED = (*_SLATE, Column("placed by", is_text=True))


def _about(slate: Impression) -> list[tuple[str, str]]:
    model = element("span", "none, base order") if slate.model is None else element("code", slate.model)
    return [
        ("Shown", moment(slate.at)),
        ("Experiment", element("a", slate.experiment, href=address("/", experiment=slate.experiment))),
        ("Arm", slate.arm),
        ("Unit", slate.unit),
        ("Model", model),
        ("Fallback", fallback_badge(slate.fallback)),
        ("Clicks", count(len(slate.clicks))),
        ("Latency", milliseconds(slate.latency_ms)),
    ]


def _folded(rows: Sequence[Sequence[str]], columns_of: Sequence[Column], label: str) -> list[Html]:
    """Return the first rows, and the others behind a fold."""
    if not rows:
        return [element("p", "Nothing was shown.", class_="soft")]
    first = table(columns_of, rows[:FIRST_ROWS], label=label, class_="plain")
    if len(rows) <= FIRST_ROWS:
        return [first]
    rest = table(columns_of, rows[FIRST_ROWS:], label=f"{label}, continued", class_="plain")
    return [first, element("details", element("summary", f"{plural(len(rows) - FIRST_ROWS, 'more row')}"), rest)]


def _base_rows(slate: Impression) -> list[list[str]]:
    slots = {item: slot for slot, item in enumerate(slate.shown)}
    return [[count(item + 1), _item(slate, item), _went(item, slots)] for item in range(len(slate.items))]


def _went(item: int, slots: Mapping[int, int]) -> Html:
    if item not in slots:
        return element("span", "not shown", class_="badge")
    return element("span", f"slot {count(slots[item] + 1)} ", moved(item, slots[item], len(slots)))


def _slate_rows(slate: Impression, attention: Attention | str) -> list[list[str]]:
    rows = [
        [count(slot + 1), _item(slate, item), moved(item, slot, len(slate.shown)), _chance(slate, slot, attention)]
        for slot, item in enumerate(slate.shown)
    ]
    if slate.draft is None:
        return rows
    arms = {"a": slate.draft.a, "b": slate.draft.b}
    return [[*row, arms[team]] for row, team in zip(rows, slate.draft.teams, strict=True)]


def _chance(slate: Impression, slot: int, attention: Attention | str) -> str:
    """Return the logged propensity of a choice, or else what the model says now."""
    if slate.log_propensities is not None:
        return percent(exp(min(0.0, slate.log_propensities[slot])))
    if isinstance(attention, str):
        return NOTHING
    return percent(float(attention.probabilities[slot, slate.shown[slot]]))


def _item(slate: Impression, item: int) -> Html:
    badge = [" ", element("span", "clicked", class_="badge clicked")] if item in slate.clicks else []
    return element("span", slate.items[item], *badge)


def moved(item: int, slot: int, n_slots: int) -> Html:
    """Say how far an item moved; one from below the slots of the slate would not have been seen without it.

    >>> moved(4, 1, 5), moved(1, 4, 5)
    ('<span class="badge up" title="up 3">↑3</span>', '<span class="badge down" title="down 3">↓3</span>')
    >>> moved(2, 2, 5), moved(7, 0, 5)
    ('<span class="badge" title="same place">=</span>', '<span class="badge new" title="up 7">new, from 8</span>')
    """
    up = item - slot
    if not up:
        return element("span", "=", class_="badge", title="same place")
    if item >= n_slots:
        return element("span", f"new, from {count(item + 1)}", class_="badge new", title=f"up {up}")
    side, arrow = ("up", "↑") if up > 0 else ("down", "↓")
    return element("span", f"{arrow}{abs(up)}", class_=f"badge {side}", title=f"{side} {abs(up)}")


# Attention


def _attention(slate: Impression, attention: Attention | str, step: int) -> Html:
    title = "Where the model looked, step by step"
    if isinstance(attention, str):
        return element(
            "section", element("h2", title), element("p", attention, class_="soft"), class_="card", id="attention"
        )
    steps = drawn_steps(step, len(slate.shown))
    strongest = percent(float(attention.probabilities[steps.start : steps.stop].max()))
    told = (
        f"The stronger the colour, the more probable, up to {strongest}. Ring: placed at this step. Dot: placed before."
    )
    if len(drawn_items(slate, steps)) < len(slate.items):
        told += f" Drawn are the first {FIRST_ITEMS} of {count(len(slate.items))} items and those that were placed."
    if len(steps) < len(slate.shown):
        told += f" Steps {count(steps.start + 1)} to {count(steps.stop)} of {count(len(slate.shown))}."
    parts = [
        element("h2", title),
        _step_links(step, len(slate.shown)),
        element(
            "div",
            element("figure", heatmap(slate, attention.probabilities, step)),
            _step(slate, attention.probabilities[step], step),
            class_="side",
        ),
        element("p", f"{told} {attention.note or ''}".rstrip(), class_="soft"),
    ]
    return element("section", *parts, class_="card", id="attention")


def _step_links(step: int, n_steps: int) -> Html:
    back = _step_link("Previous", step, "prev") if step > 0 else element("span", "Previous")
    on = _step_link("Next", step + 2, "next") if step + 1 < n_steps else element("span", "Next")
    here = element("strong", f"Step {count(step + 1)} of {count(n_steps)}")
    return element("nav", back, here, on, class_="steps", aria_label="Steps")


def _step_link(name: str, step: int, relation: str) -> Html:
    return element("a", name, href=address("", step=step) + "#attention", rel=relation)


def _step(slate: Impression, chances: FloatArray, step: int) -> Html:
    """Return the likeliest items of a step, and the one that was placed, with their chances (N,)."""
    chosen = slate.shown[step]
    order = [int(item) for item in np.argsort(-chances, kind="stable")[:_LIKELIEST] if chances[item] > 0]
    if chosen not in order:
        order.append(chosen)
    largest = float(chances.max()) or 1.0
    rows = [
        [_choice(slate, item, chosen), percent(float(chances[item])), _bar(float(chances[item]) / largest)]
        for item in order
    ]
    rest = max(0.0, 1 - float(sum(chances[item] for item in order)))
    n_rest = len(slate.items) - step - len(order)
    given = "Before anything is placed" if not step else f"With {plural(step, 'item')} placed"
    told = f"{given}, the items have these chances."
    if n_rest > 0:
        told += f" {plural(n_rest, 'other item')}: {percent(rest)} together."
    body = [
        element(
            "tr",
            element("td", row[0], class_="text"),
            element("td", row[1], class_="number"),
            element("td", row[2], class_="bar-of"),
        )
        for row in rows
    ]
    return element("div", element("p", told), element("table", element("tbody", *body), class_="bars"))


def _choice(slate: Impression, item: int, chosen: int) -> Html:
    name = slate.items[item]
    return (
        element("strong", name, " ", element("span", "placed", class_="badge new"))
        if item == chosen
        else element("span", name)
    )


def _bar(share: float) -> Html:
    track = element("rect", width="100%", height="100%", class_="track", rx="3")
    return element(
        "svg", track, element("rect", width=f"{100 * share:.2f}%", height="100%", rx="3"), aria_hidden="true"
    )
