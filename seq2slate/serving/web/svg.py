"""Charts as SVG, drawn in Python: light enough for a process whose work is to answer in a millisecond.

Colours are classes of the page's style (`arm0` is the control), so that a chart follows the page into the dark; dashes
and markers differ as well. Coordinates are those of a small fixed canvas that the page stretches to its column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from seq2slate.html import Html, element
from seq2slate.serving.web.style import ARM_COLOURS

_WIDTH, _HEIGHT = 480, 280
_RIGHT, _TOP, _BOTTOM = 22, 36, 46
_EDGE, _DIGIT = 2, 11  # where text may begin, and the width of a digit on a phone, where the style has 17 px
_ROW = 48  # the height of one, in a chart of rows
_MOST_MARKERS = 30
_DASHES = ("6 4", None, "2 3", "9 3 2 3")
_MARKERS = ("circle", "square", "triangle", "diamond")
_LONGEST_NAME, _LONGEST_ROW_NAME = 44, 24


@dataclass(frozen=True)
class Point:
    """A value, with its interval if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    text: str = ""
    """What a mouse that rests on it is told."""


@dataclass(frozen=True)
class Series:
    """The points of an arm; `arm` is its number, 0 for the control."""

    name: str
    arm: int
    points: Sequence[Point]


@dataclass(frozen=True)
class Axis:
    """From where to where, and what is written along it."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    label: str


@dataclass(frozen=True)
class Mark:
    """A value on a row, with its shape and what a mouse that rests on it is told."""

    value: float
    shape: str
    text: str


@dataclass(frozen=True)
class Range:
    """One row of a chart of rows: two intervals, the wide one thin and the narrow one thick, and marks."""

    name: str
    arm: int
    thin: tuple[float, float]
    thick: tuple[float, float] | None
    marks: Sequence[Mark]


def arm_class(arm: int) -> str:
    """Return the class that has the colour of an arm."""
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


def lines(title: str, series: Sequence[Series], x: Axis, y: Axis) -> Html:
    """Return a chart with a line for each series, its band, and a line at 0 where the axis goes below it."""
    place = _Place(x, y, left=_EDGE + 8 + _label_width(y))
    parts = [*_grid(place)]
    for one in series:
        parts += _band(one, place)
    for one in series:
        parts += _line(one, place)
    return _canvas(title, _HEIGHT, parts)


class _Place:
    """From values to coordinates."""

    def __init__(self, x: Axis, y: Axis, *, left: float, right: float = _RIGHT) -> None:
        self.x_axis, self.y_axis, self.left, self.right = x, y, left, right

    def x(self, value: float) -> float:
        axis = self.x_axis
        share = (value - axis.low) / (axis.high - axis.low) if axis.high > axis.low else 0.5
        return round(self.left + share * (_WIDTH - self.left - self.right), 1)

    def y(self, value: float) -> float:
        axis = self.y_axis
        share = (value - axis.low) / (axis.high - axis.low)
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)


def _grid(place: _Place) -> list[Html]:
    bottom, left, right = _HEIGHT - _BOTTOM, place.left, _WIDTH - place.right
    parts = [_text(place.y_axis.label, _EDGE, 18, "start")]
    for value, label in place.y_axis.ticks:
        height = place.y(value)
        kind = "zero" if value == 0 and place.y_axis.low < 0 else "grid"
        parts += [_rule(left, height, right, height, kind), _text(label, left - 8, height + 4, "end")]
    for value, label in place.x_axis.ticks:
        parts.append(_text(label, place.x(value), bottom + 18, "middle"))
    return [*parts, _text(place.x_axis.label, (left + right) / 2, _HEIGHT - 6, "middle")]


def _label_width(axis: Axis) -> float:
    """Return how much room the widest tick label takes at most."""
    return 4 + _DIGIT * max(3, *(len(label) for _, label in axis.ticks))  # a minus is wider than a digit


def _band(series: Series, place: _Place) -> list[Html]:
    """Return the intervals as a band, or as a bar where a point stands alone."""
    known = [
        (place.x(p.x), place.y(p.low), place.y(p.high))
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


def _line(series: Series, place: _Place) -> list[Html]:
    path = " ".join(f"{place.x(point.x)},{place.y(point.y)}" for point in series.points)
    parts = [element("polyline", points=path, class_="line", stroke_dasharray=_dash(series.arm))]
    parts += [
        _marker(_shape(series.arm), place.x(point.x), place.y(point.y), 3.5, f"{series.name}: {point.text}")
        for point in series.points[:: 1 + (len(series.points) - 1) // _MOST_MARKERS]
    ]
    return [element("g", *parts, class_=arm_class(series.arm))]


def ranges(title: str, rows: Sequence[Range], x: Axis) -> Html:
    """Return a chart with a row for each arm: intervals and marks along one axis, under the arm's name."""
    height = _TOP + _ROW * len(rows) + _BOTTOM - 10
    side = _EDGE + _label_width(x) / 2
    inner = _Place(x, x, left=side, right=side)
    bottom = height - _BOTTOM + 2
    parts: list[Html] = []
    for value, label in x.ticks:
        at = inner.x(value)
        kind = "zero" if value == 0 and x.low < 0 else "grid"
        parts += [_rule(at, 8, at, bottom, kind), _text(label, at, bottom + 18, "middle")]
    parts.append(_text(x.label, _WIDTH / 2, height - 4, "middle"))
    for number, row in enumerate(rows):
        parts.append(_range(row, inner, 24 + _ROW * number))
    return _canvas(title, height, parts)


def _range(row: Range, place: _Place, top: float) -> Html:
    middle = top + 18
    parts = [_text(shortened(row.name, _LONGEST_ROW_NAME), _EDGE, top, "start", "name")]
    parts.append(_rule(place.x(row.thin[0]), middle, place.x(row.thin[1]), middle, "thin"))
    if row.thick is not None:
        parts.append(_rule(place.x(row.thick[0]), middle, place.x(row.thick[1]), middle, "thick"))
    parts += [_marker(mark.shape, place.x(mark.value), middle, 5.5, f"{row.name}: {mark.text}") for mark in row.marks]
    return element("g", *parts, class_=arm_class(row.arm))


def key(arm: int) -> Html:
    """Return the dash and the marker of an arm, for a legend."""
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
    """Return which arm is drawn how."""
    return element("ul", *(element("li", key(arm), element("span", name)) for name, arm in names), class_="legend")


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
    told = [element("title", text)] if text else []
    if shape == "circle":
        return element("circle", *told, cx=f"{x:g}", cy=f"{y:g}", r=f"{size:g}", class_="mark")
    corners = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "triangle": ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
        "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    }[shape]
    points = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners)
    return element("polygon", *told, points=points, class_="mark")


def _rule(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    return element("line", x1=f"{x1:g}", y1=f"{y1:g}", x2=f"{x2:g}", y2=f"{y2:g}", class_=class_)


def _text(text: str, x: float, y: float, anchor: str, class_: str | None = None) -> Html:
    return element("text", text, x=f"{x:g}", y=f"{y:g}", text_anchor=anchor, class_=class_)
