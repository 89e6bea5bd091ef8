"""The attention of a slate as a picture: a row for each step, a column for each item in base order."""

from __future__ import annotations

from collections.abc import Sequence

from seq2slate.data.impressions import Impression
from seq2slate.data.lists import FloatArray
from seq2slate.html import Html, element
from seq2slate.serving.web.svg import shortened
from seq2slate.serving.web.words import address, percent

FIRST_ITEMS = 30
"""Drawn, besides those that were placed in the steps that are drawn."""
STEPS = 20
"""Drawn at a time."""
_CELL, _LEFT = 22, 56


def drawn_steps(step: int, n_steps: int) -> range:
    """Return the steps, from 0, that are drawn around one of them.

    >>> drawn_steps(25, 100), drawn_steps(45, 47)
    (range(20, 40), range(40, 47))
    """
    first = step // STEPS * STEPS
    return range(first, min(first + STEPS, n_steps))


def drawn_items(slate: Impression, steps: range) -> list[int]:
    """Return the items that are drawn: the first in base order, and those that were placed."""
    return sorted({*range(min(FIRST_ITEMS, len(slate.items))), *(slate.shown[step] for step in steps)})


def heatmap(slate: Impression, probabilities: FloatArray, step: int) -> Html:
    """Return the picture of probabilities (K, N); `step`, from 0, is framed, and each row leads to its own."""
    steps = drawn_steps(step, len(slate.shown))
    items = drawn_items(slate, steps)
    top = 40 if items[-1] < 99 else 58  # long numbers stand upright
    width, height = _LEFT + _CELL * len(items) + 4, top + _CELL * len(steps) + 4
    parts = [_text("base position", _LEFT, 12, "start"), _text("step", _LEFT - 10, top - 8, "end")]
    parts += [_column_label(at, item, top, upright=items[-1] >= 99) for at, item in enumerate(items)]
    strongest = float(probabilities[steps.start : steps.stop].max()) or 1.0
    for row, one in enumerate(steps):
        inside = [_row_label(one, is_now=one == step), *_cells(slate, probabilities[one], strongest, one, items)]
        parts.append(element("g", *inside, transform=f"translate(0 {top + _CELL * row})"))
    now = top + _CELL * (step - steps.start)
    parts.append(_rect(_LEFT - 2, now - 1, _CELL * len(items) + 4, _CELL + 2, class_="row", rx="4"))
    title = f"Chance of each item at steps {steps.start + 1} to {steps.stop}"
    size = {"viewBox": f"0 0 {width} {height}", "width": str(width), "height": str(height)}
    picture = element("svg", element("title", title), *parts, role="group", aria_label=title, **size)
    about = "Heat map; it scrolls sideways"
    return element("div", picture, class_="scroll heat", tabindex="0", role="region", aria_label=about)


def _row_label(step: int, *, is_now: bool) -> Html:
    return element(
        "a",
        _text(str(step + 1), _LEFT - 10, _CELL / 2 + 4, "end"),
        href=address("", step=step + 1) + "#attention",
        aria_label=f"Step {step + 1}",
        class_="now" if is_now else None,
    )


def _column_label(at: int, item: int, top: float, *, upright: bool) -> Html:
    x = _LEFT + _CELL * at + _CELL / 2
    if not upright:
        return _text(str(item + 1), x, top - 8, "middle")
    return _text(str(item + 1), x + 4, top - 8, "start", transform=f"rotate(-90 {x + 4:g} {top - 8:g})")


def _cells(slate: Impression, chances: FloatArray, strongest: float, step: int, items: Sequence[int]) -> list[Html]:
    """Return a row, from chances (N,): a ring where the item was placed, a dot where it was placed before."""
    before, middle = set(slate.shown[:step]), f"{_CELL / 2:g}"
    cells = []
    for at, item in enumerate(items):
        if item in before:
            inside = [element("circle", cx=middle, cy=middle, r="2", class_="gone")]
        else:
            chance = float(chances[item])
            inside = [element("title", f"{shortened(slate.items[item])}: {percent(chance)}")]
            inside += [_rect(0, 0, _CELL, _CELL, class_="frame")]
            inside += [_rect(1, 1, _CELL - 2, _CELL - 2, class_="cell", fill_opacity=f"{chance / strongest:.3f}")]
        if slate.shown[step] == item:
            inside.append(_rect(2, 2, _CELL - 4, _CELL - 4, class_="ring"))
        cells.append(element("g", *inside, transform=f"translate({_LEFT + _CELL * at})"))
    return cells


def _rect(x: float, y: float, width: float, height: float, **more: str) -> Html:
    return element("rect", x=f"{x:g}", y=f"{y:g}", width=f"{width:g}", height=f"{height:g}", **more)


def _text(text: str, x: float, y: float, anchor: str, **more: str) -> Html:
    return element("text", text, x=f"{x:g}", y=f"{y:g}", text_anchor=anchor, **more)
