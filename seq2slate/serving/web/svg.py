"""Charts as SVG, drawn in Python: light enough for a process whose work is to answer in a millisecond.

Colours are classes of the page's style (`arm0` is the control), so that a chart follows the page into dark mode; dashes
and markers differ as well. Coordinates are those of a small fixed canvas that the page stretches to its column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from seq2slate.data.impressions import Impression
from seq2slate.data.lists import FloatArray
from seq2slate.html import Html, element
from seq2slate.serving.web.words import address, percent

ARM_COLOURS = 8
"""Of the style: classes `arm0` (the control) to `arm7`."""
_WIDTH, _HEIGHT = 480, 280
_RIGHT, _TOP, _BOTTOM = 22, 36, 46
_EDGE, _DIGIT = 2, 11  # left edge of text, and the width of a digit on a phone, where the style has 17 px
_ROW = 48  # height of a row of an interval chart
_MOST_MARKERS = 30
_DASHES = ("6 4", None, "2 3", "9 3 2 3")
_MARKERS = ("circle", "square", "triangle", "diamond")
_LONGEST_NAME, _LONGEST_ROW_NAME = 44, 24
_CELL, _LEFT = 22, 56  # of the heat map
FIRST_ITEMS = 30
"""Columns of the heat map, besides those of items that were placed in the steps that are drawn."""
MAX_STEPS = 20
"""Rows of the heat map."""


@dataclass(frozen=True)
class Point:
    """A value, with its interval if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    text: str = ""
    """The tooltip."""


@dataclass(frozen=True)
class Series:
    """The points of an arm; `arm` is its number, 0 for the control."""

    name: str
    arm: int
    points: Sequence[Point]


@dataclass(frozen=True)
class Axis:
    """The range of an axis, its ticks and its label."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    label: str

    def place(self, value: float, start: float, end: float) -> float:
        """Return the coordinate of a value, on an axis that is drawn from `start` to `end`."""
        return round(start + (value - self.low) / (self.high - self.low) * (end - start), 1)


@dataclass(frozen=True)
class Mark:
    """A value on a row, with its shape and its tooltip."""

    value: float
    shape: str
    text: str


@dataclass(frozen=True)
class IntervalRow:
    """One row of an interval chart: two intervals, the wide one thin and the narrow one thick, and marks."""

    name: str
    arm: int
    thin: tuple[float, float]
    thick: tuple[float, float] | None
    marks: Sequence[Mark]


def arm_class(arm: int) -> str:
    """Return the CSS class with the colour of an arm."""
    return f"arm{arm % ARM_COLOURS}"


def nice_axis(low: float, high: float, label: str, *, most: int = 6) -> Axis:
    """Return an axis that reaches over the values, with ticks at 1, 2 or 5 times a power of ten.

    >>> axis = nice_axis(0, 0.87, "rate")
    >>> axis.high, [text for _, text in axis.ticks]
    (1.0, ['0', '0.2', '0.4', '0.6', '0.8', '1'])
    """
    if not high > low:
        high = low + 1
    rough = (high - low) / (most - 1)
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    ticks = [(number * step, _tick(number * step)) for number in range(first, last + 1)]
    return Axis(first * step, last * step, ticks, label)


def _tick(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:,.6g}".replace("-", "−")


def line_chart(title: str, series: Sequence[Series], x: Axis, y: Axis) -> Html:
    """Return a chart with a line for each series, its band, and a line at 0 where the axis goes below it."""
    scale = _Scale(x, y, left=_EDGE + 8 + _label_width(y))
    parts = [*_grid(scale)]
    for one in series:
        parts += _band(one, scale)
    for one in series:
        parts += _line(one, scale)
    return _canvas(title, _HEIGHT, parts)


class _Scale:
    """From values to coordinates."""

    def __init__(self, x: Axis, y: Axis, *, left: float, right: float = _RIGHT) -> None:
        self.x_axis, self.y_axis, self.left, self.right = x, y, left, right

    def x(self, value: float) -> float:
        return self.x_axis.place(value, self.left, _WIDTH - self.right)

    def y(self, value: float) -> float:
        return self.y_axis.place(value, _HEIGHT - _BOTTOM, _TOP)


def _grid(scale: _Scale) -> list[Html]:
    bottom, left, right = _HEIGHT - _BOTTOM, scale.left, _WIDTH - scale.right
    parts = [_text(scale.y_axis.label, _EDGE, 18, "start")]
    for value, label in scale.y_axis.ticks:
        height = scale.y(value)
        kind = "zero" if value == 0 and scale.y_axis.low < 0 else "grid"
        parts += [_rule(left, height, right, height, kind), _text(label, left - 8, height + 4, "end")]
    for value, label in scale.x_axis.ticks:
        parts.append(_text(label, scale.x(value), bottom + 18, "middle"))
    return [*parts, _text(scale.x_axis.label, (left + right) / 2, _HEIGHT - 6, "middle")]


def _label_width(axis: Axis) -> float:
    """Return how much room the widest tick label takes at most."""
    return 4 + _DIGIT * max(3, *(len(label) for _, label in axis.ticks))  # a minus is wider than a digit


def _band(series: Series, scale: _Scale) -> list[Html]:
    """Return the intervals as a band, or as a bar where a point stands alone."""
    known = [
        (scale.x(p.x), scale.y(p.low), scale.y(p.high))
        for p in series.points
        if p.low is not None and p.high is not None
    ]
    if len(known) == 1:
        ((at, low, high),) = known
        return [element("g", _rule(at, low, at, high, "thin"), class_=arm_class(series.arm))]
    if not known:
        return []
    there = [f"{at},{high}" for at, _, high in known]
    back = [f"{at},{low}" for at, low, _ in reversed(known)]
    shape = element("polygon", points=" ".join([*there, *back]), class_="fill")
    return [element("g", shape, class_=arm_class(series.arm))]


def _line(series: Series, scale: _Scale) -> list[Html]:
    path = " ".join(f"{scale.x(point.x)},{scale.y(point.y)}" for point in series.points)
    parts = [element("polyline", points=path, class_="line", stroke_dasharray=_dash(series.arm))]
    parts += [
        _marker(_shape(series.arm), scale.x(point.x), scale.y(point.y), 3.5, f"{series.name}: {point.text}")
        for point in series.points[:: 1 + (len(series.points) - 1) // _MOST_MARKERS]
    ]
    return [element("g", *parts, class_=arm_class(series.arm))]


def interval_chart(title: str, rows: Sequence[IntervalRow], x: Axis) -> Html:
    """Return a chart with a row for each arm: intervals and marks along one axis, under the arm's name."""
    height = _TOP + _ROW * len(rows) + _BOTTOM - 10
    side = _EDGE + _label_width(x) / 2
    inner = _Scale(x, x, left=side, right=side)
    bottom = height - _BOTTOM + 2
    parts: list[Html] = []
    for value, label in x.ticks:
        at = inner.x(value)
        kind = "zero" if value == 0 and x.low < 0 else "grid"
        parts += [_rule(at, 8, at, bottom, kind), _text(label, at, bottom + 18, "middle")]
    parts.append(_text(x.label, _WIDTH / 2, height - 4, "middle"))
    for number, row in enumerate(rows):
        parts.append(_interval_row(row, inner, 24 + _ROW * number))
    return _canvas(title, height, parts)


def _interval_row(row: IntervalRow, scale: _Scale, top: float) -> Html:
    middle = top + 18
    parts = [_text(shortened(row.name, _LONGEST_ROW_NAME), _EDGE, top, "start", "name")]
    parts.append(_rule(scale.x(row.thin[0]), middle, scale.x(row.thin[1]), middle, "thin"))
    if row.thick is not None:
        parts.append(_rule(scale.x(row.thick[0]), middle, scale.x(row.thick[1]), middle, "thick"))
    parts += [_marker(mark.shape, scale.x(mark.value), middle, 5.5, f"{row.name}: {mark.text}") for mark in row.marks]
    return element("g", *parts, class_=arm_class(row.arm))


def arm_key(arm: int) -> Html:
    """Return the line and the marker of an arm, for a legend."""
    line = element("line", x1="0", y1="7", x2="30", y2="7", class_="line", stroke_dasharray=_dash(arm))
    return element(
        "svg",
        line,
        _marker(_shape(arm), 15, 7, 4.5, ""),
        width="30",
        height="14",
        aria_hidden="true",
        class_=arm_class(arm),
    )


def legend(names: Sequence[tuple[str, int]]) -> Html:
    """Return a legend of arms, from their names and numbers."""
    return element("ul", *(element("li", arm_key(arm), element("span", name)) for name, arm in names), class_="legend")


def shortened(name: str, longest: int = _LONGEST_NAME) -> str:
    """Return a name that fits into a picture.

    >>> shortened("abcdefgh", 5)
    'abcd…'
    """
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _canvas(title: str, height: float, parts: Sequence[Html]) -> Html:
    return element(
        "svg",
        element("title", title),
        *parts,
        viewBox=f"0 0 {_WIDTH} {height:g}",
        width=str(_WIDTH),
        height=f"{height:g}",
        role="img",
        aria_label=title,
        class_="chart",
    )


def _dash(arm: int) -> str | None:
    return _DASHES[arm % len(_DASHES)]


def _shape(arm: int) -> str:
    return _MARKERS[arm % len(_MARKERS)]


def _marker(shape: str, x: float, y: float, size: float, text: str) -> Html:
    tooltip = [element("title", text)] if text else []
    if shape == "circle":
        return element("circle", *tooltip, cx=f"{x:g}", cy=f"{y:g}", r=f"{size:g}", class_="mark")
    corners = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "triangle": ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
        "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    }[shape]
    points = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners)
    return element("polygon", *tooltip, points=points, class_="mark")


def _rule(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    return element("line", x1=f"{x1:g}", y1=f"{y1:g}", x2=f"{x2:g}", y2=f"{y2:g}", class_=class_)


def _text(text: str, x: float, y: float, anchor: str, class_: str | None = None, **more: str) -> Html:
    return element("text", text, x=f"{x:g}", y=f"{y:g}", text_anchor=anchor, class_=class_, **more)


# Heat map


def drawn_steps(step: int, n_steps: int) -> range:
    """Return the steps, from 0, that are drawn around one of them.

    >>> drawn_steps(25, 100), drawn_steps(45, 47)
    (range(20, 40), range(40, 47))
    """
    first = step // MAX_STEPS * MAX_STEPS
    return range(first, min(first + MAX_STEPS, n_steps))


def drawn_items(slate: Impression, steps: range) -> list[int]:
    """Return the items that are drawn: the first in base order, and those that were placed."""
    return sorted({*range(min(FIRST_ITEMS, len(slate.items))), *(slate.shown[step] for step in steps)})


def heatmap(slate: Impression, probabilities: FloatArray, step: int) -> Html:
    """Return a heat map of probabilities (K, N): a row for each step, a column for each item in base order.

    `step`, from 0, is framed; every row links to its own step.
    """
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
    title = f"Probability of each item at steps {steps.start + 1} to {steps.stop}"
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


def _cells(
    slate: Impression, probabilities: FloatArray, strongest: float, step: int, items: Sequence[int]
) -> list[Html]:
    """Return a row, from probabilities (N,): a ring where the item was placed, a dot where it was placed before."""
    before, middle = set(slate.shown[:step]), f"{_CELL / 2:g}"
    cells = []
    for at, item in enumerate(items):
        if item in before:
            inside = [element("circle", cx=middle, cy=middle, r="2", class_="gone")]
        else:
            probability = float(probabilities[item])
            inside = [element("title", f"{shortened(slate.items[item])}: {percent(probability)}")]
            inside += [_rect(0, 0, _CELL, _CELL, class_="frame")]
            inside += [_rect(1, 1, _CELL - 2, _CELL - 2, class_="cell", fill_opacity=f"{probability / strongest:.3f}")]
        if slate.shown[step] == item:
            inside.append(_rect(2, 2, _CELL - 4, _CELL - 4, class_="ring"))
        cells.append(element("g", *inside, transform=f"translate({_LEFT + _CELL * at})"))
    return cells


def _rect(x: float, y: float, width: float, height: float, **more: str) -> Html:
    return element("rect", x=f"{x:g}", y=f"{y:g}", width=f"{width:g}", height=f"{height:g}", **more)
