"""The pictures of a run and of an experiment: plain rows in, an Altair chart out, and `save` to PNG, SVG or JSON.

Figures 2 and 3 of the paper are `attention_picture` and `difference_picture`; the others are ours. Colours mean the
same everywhere and stay apart for colour-blind eyes (Okabe and Ito's palette): blue is a gain, orange a loss, grey is
neither, or not told apart. A picture without anything to draw is None.

Altair takes a third of a second to import, so this module is imported only when something is drawn.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias

import altair as alt
import numpy as np
import vl_convert

from seq2slate.atomic import atomic_path
from seq2slate.errors import UsageError
from seq2slate.evaluation.battery import Battery
from seq2slate.evaluation.comparison import Comparison, Rows, TableCell

Chart: TypeAlias = alt.TopLevelMixin

GAIN, LOSS, NEUTRAL = "#0072B2", "#D55E00", "#8C8C8C"
_INK, _FAINT = "#222222", "#DDDDDD"
_NEITHER_GAIN_NOR_LOSS = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_PALETTE = (GAIN, LOSS, *_NEITHER_GAIN_NOR_LOSS, "#000000", NEUTRAL)
_DASHES = ([1, 0], [6, 3], [2, 2])
"""With more rankers than colours, the next ones are dashed, then dotted."""

_WIDTH = 640
_PNG_SCALE = 2.0  # pixels of a PNG for each of the chart's
_THEME: Mapping[str, Any] = {
    "background": "white",
    "font": "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif",
    "padding": 12,
    "title": {"fontSize": 16, "subtitleFontSize": 12, "subtitleColor": "#555555", "anchor": "start", "offset": 14},
    "axis": {
        "labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal", "labelColor": _INK, "titleColor": _INK,
        "gridColor": "#EEEEEE", "domainColor": "#999999", "tickColor": "#999999", "labelLimit": 0, "labelFlush": False,
    },
    "legend": {
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 0, "symbolSize": 110,
    },
    "header": {"labelFontSize": 13, "labelFontWeight": "bold", "labelLimit": 0, "titleFontSize": 13},
    "view": {"stroke": None},
    "text": {"fontSize": 12, "color": _INK},
}  # fmt: skip


def save(chart: Chart, path: str | os.PathLike[str]) -> Path:
    """Write a chart; the suffix says whether as .png, .svg or .json (Vega-Lite)."""
    path = Path(path)
    spec = chart.to_dict()
    if path.suffix == ".png":
        content = vl_convert.vegalite_to_png(spec, scale=_PNG_SCALE)
    elif path.suffix == ".svg":
        content = vl_convert.vegalite_to_svg(spec).encode()
    elif path.suffix == ".json":
        content = json.dumps(spec, indent=1, allow_nan=False).encode()
    else:
        raise UsageError(f"{path}: a picture is a .png, .svg or .json file")
    with atomic_path(path) as partial:
        partial.write_bytes(content)
    return path


def themed(chart: Any, title: str, subtitle: str | Sequence[str] = "") -> Chart:
    """Return a chart with its title and the look that all pictures share."""
    if title:
        chart = chart.properties(title=alt.TitleParams(title, subtitle=subtitle))
    finished: Chart = chart.configure(**_THEME)
    return finished


# The means of a table


def interval_picture(rows: Rows, title: str = "") -> Chart | None:
    """Draw a dot and an interval for each ranker by the main metric, best on top, with the base order and the ceiling.

    Args:
        rows: Rows of ranker, metric, mean, low, high.
        title: The heading.
    """
    comparison = Comparison(rows)
    metric = comparison.main_metric
    contenders, base, ceiling = comparison.contenders(metric), comparison.base(metric), comparison.ceiling(metric)
    if not contenders:
        return None
    meanings = {"above": "above the base order", "below": "below the base order", "unclear": "not told apart"}
    data = [
        {
            **asdict(cell),
            "meaning": meanings[comparison.against_base(cell.ranker, metric)],
            "gap closed": "-" if share is None else f"{share:.0%}",
        }
        for cell in contenders
        for share in [comparison.gap_closed(cell.ranker, metric)]
    ]
    titles = {"mean": metric, "low": "from", "high": "to"}
    numbers = [alt.Tooltip(f"{name}:Q", title=words, format=".4f") for name, words in titles.items()]
    chart = alt.Chart(_inline(data)).encode(
        y=alt.Y("ranker:N", sort=[cell.ranker for cell in contenders], title=None, axis=alt.Axis(grid=True)),
        color=_meaning_colour(meanings),
        tooltip=["ranker:N", *numbers, "gap closed:N"],
    )
    x = alt.X("mean:Q", title=metric, scale=alt.Scale(zero=False, padding=24), axis=alt.Axis(tickCount=8))
    layers = [
        *([] if base is None else _reference(base, "right", dash=[1, 0])),
        *([] if ceiling is None else _reference(ceiling, "left", dash=[5, 3])),
        chart.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q", title=metric), x2="high:Q"),
        chart.mark_point(filled=True, size=110, opacity=1).encode(x=x),
    ]
    return themed(alt.layer(*layers).properties(width=_WIDTH, height=alt.Step(28)), title)


def _reference(cell: TableCell, align: Literal["left", "right"], *, dash: list[int]) -> list[Any]:
    """Return a vertical line and, above the chart, its name: to the left of the line or to the right."""
    chart = alt.Chart(_inline([{"x": cell.mean, "label": f"{cell.ranker} {cell.mean:.3f}"}])).encode(x="x:Q")
    inward = -5 if align == "right" else 5
    text = chart.mark_text(align=align, dx=inward, dy=-10, baseline="bottom").encode(text="label:N", y=alt.value(0))
    return [chart.mark_rule(color=_INK, strokeWidth=1.5, strokeDash=dash), text]


def gain_picture(battery: Battery) -> Chart | None:
    """Draw what a ranker gains over the base order with every user, a panel for each world and metric."""
    meanings = {"above": "above the base order", "below": "below the base order", "unclear": "not told apart"}
    data = [
        {
            "panel": f"{world}: {metric}",
            "user": one.user,
            **{name: 100 * end / one.base for name, end in _ends(one.gain).items() if end is not None},
            "meaning": meanings[one.gain.against(0)],
        }
        for world, metric in battery.views
        for one in battery.gains(world, metric)
    ]
    if not data:
        return None
    title, panels, users = "gain in %", _in_order(data, "panel"), _in_order(data, "user")
    inline = _inline(data)  # one object: a facet wants the layers to share their data
    chart = alt.Chart(inline).encode(
        y=alt.Y("user:N", sort=users, title=None, axis=alt.Axis(grid=True)),
        color=_meaning_colour(meanings),
        tooltip=["user:N", *_numbers("+.2f", "gain", "low", "high")],
    )
    zero = alt.Chart(inline).mark_rule(color=_INK).encode(x=alt.datum(0))
    layers = [
        zero,
        chart.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q", title=title), x2="high:Q"),
        chart.mark_point(filled=True, size=80, opacity=1).encode(x=alt.X("gain:Q", title=title)),
    ]
    panel = alt.layer(*layers).properties(width=300, height=alt.Step(22))
    facets = panel.facet(alt.Facet("panel:N", title=None, sort=panels), columns=2).resolve_scale(x="independent")
    return themed(facets, f"Battery of users: {battery.mine} against the base order", "Lines are 95% intervals.")


def _ends(cell: TableCell) -> dict[str, float | None]:
    return {"gain": cell.mean, "low": cell.low, "high": cell.high}


# Figure 2: the attention of the decoder

_FIRST_POSITIONS = 30
_FIRST_STEPS = 20
_SQUARE = 22  # pixels


def attention_picture(attention: Mapping[str, Any]) -> Chart | None:
    """Draw figure 2 of the paper: the probability of every item at every step, and the item that was placed.

    Of a long list the first positions and steps are drawn, and the items placed in those steps wherever they came
    from; the subtitle says what is cut and how much probability it had.

    Args:
        attention: `list_id`, `items` (each with id, grade and clicked), `slate` (indices into the items) and
            `probabilities` (a row a step, a number an item).
    """
    items, steps = attention["items"], attention["probabilities"][:_FIRST_STEPS]
    if not items or not steps:
        return None
    placed = attention["slate"][: len(steps)]
    shown = sorted({*range(min(len(items), _FIRST_POSITIONS)), *placed})
    columns = {
        i: {**items[i], "position": i + 1, "clicked": "clicked" if items[i]["clicked"] else "not clicked"}
        for i in shown
    }
    cells = [
        {**columns[i], "slot": j + 1, "probability": step[i], "placed": placed[j] == i}
        for j, step in enumerate(steps)
        for i in shown
    ]
    x = alt.X("position:O", sort=[i + 1 for i in shown], title="position in the base order")
    y = alt.Y("slot:O", title="slot of the slate").axis(labelFontSize=11, ticks=False)
    scale = alt.Scale(range=["white", "#08519C"], interpolate="rgb", domainMin=0)
    tooltip = ["id:N", "position:O", "slot:O", *_numbers(".4f", "probability"), "clicked:N", "grade:Q"]
    heat = alt.Chart(_inline(cells)).encode(
        x=x.axis(labelAngle=0, labelOverlap=False, labelFontSize=11, ticks=False),
        y=y,
        tooltip=[*tooltip, *(["topic:N"] if "topic" in items[0] else [])],
    )
    squares = heat.mark_rect(stroke=_FAINT, strokeWidth=0.5)
    panel = alt.layer(
        squares.encode(color=alt.Color("probability:Q", scale=scale, title="probability")),
        heat.transform_filter("datum.placed").mark_rect(filled=False, stroke=_INK, strokeWidth=2),
    ).properties(width=_SQUARE * len(shown), height=_SQUARE * len(steps))
    chart = alt.vconcat(_item_strip(list(columns.values())), panel, spacing=4)
    title = f"Where the model looked, list {attention['list_id']}"
    return themed(chart.resolve_scale(x="shared", y="independent"), title, _attention_subtitle(attention, shown, steps))


def _item_strip(rows: list[dict[str, Any]]) -> Any:
    """Return, above the heat map, a dot for every clicked item and, where grades are known, the grades."""
    x = alt.X("position:O", axis=None, sort=[row["position"] for row in rows])
    y = alt.Y("row:N", sort=["grade", "clicked"], title=None, axis=alt.Axis(domain=False, ticks=False))
    clicked = [{**row, "row": "clicked"} for row in rows if row["clicked"] == "clicked"] or [{"row": "clicked"}]
    layers = [alt.Chart(_inline(clicked)).mark_point(filled=True, size=90, color=_INK, opacity=1).encode(x=x, y=y)]
    grades = [{**row, "row": "grade"} for row in rows if row["grade"] is not None]
    if grades:
        layers.append(alt.Chart(_inline(grades)).mark_text(fontSize=11).encode(x=x, y=y, text="grade:Q"))
    return alt.layer(*layers).properties(width=_SQUARE * len(rows), height=_SQUARE * len(layers))


def _attention_subtitle(
    attention: Mapping[str, Any], shown: Sequence[int], steps: Sequence[Sequence[float]]
) -> list[str]:
    lines = ["Darker is more probable; the frame is the item that was placed; dots are items that were clicked."]
    n_cut, n_steps = len(attention["items"]) - len(shown), len(attention["slate"])
    if len(steps) < n_steps:
        lines.append(f"The first {len(steps)} of {n_steps} slots are drawn.")
    if n_cut:
        kept = set(shown)
        missed = max(sum(p for i, p in enumerate(step) if i not in kept) for step in steps)
        lines.append(
            f"Drawn are positions 1 to {_FIRST_POSITIONS} and the items placed from below; the other {n_cut} items "
            f"have at most {missed:.1%} of a step's probability together."
        )
    return lines


# Figure 3: clicks per position


def difference_picture(differences: Mapping[str, Any]) -> Chart | None:
    """Draw figure 3 of the paper: the difference in clicks of each position to the baseline, ranker by ranker.

    Args:
        differences: `baseline`, and `rows` of ranker, position from 1, difference, low, high.
    """
    rows = [row for row in differences["rows"] if row["difference"] is not None]
    if not rows:
        return None
    meanings = {"above": "more clicks", "below": "fewer clicks", "unclear": "not told apart"}
    data = [
        {
            **row,
            **_percent(row, "difference", "low", "high"),
            "meaning": meanings[TableCell(row["ranker"], row["difference"], row["low"], row["high"]).against(0)],
        }
        for row in rows
    ]
    title, rankers = "difference in CTR", _in_order(rows, "ranker")
    tooltip = ["ranker:N", "position:O", *_numbers("+.2f", "difference", "low", "high")]
    x = alt.X("position:O", title="position", axis=alt.Axis(labelAngle=0))
    inline = _inline(data)  # one object: a facet wants the layers to share their data
    base = alt.Chart(inline).encode(x=x, tooltip=tooltip)
    bars = base.mark_bar(opacity=0.75).encode(y=alt.Y("difference:Q", title=title), color=_meaning_colour(meanings))
    whiskers = base.mark_rule(color=_INK, strokeWidth=1.5).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    zero = alt.Chart(inline).mark_rule(color=_INK).encode(y=alt.datum(0))
    width, height = (_WIDTH, 260) if len(rankers) == 1 else (330, 190)
    panel = alt.layer(bars, whiskers, zero).properties(width=width, height=height)
    return themed(
        panel.facet(alt.Facet("ranker:N", title=None, sort=rankers), columns=2),
        f"Click-through rate per position, against {differences['baseline']}",
        "In percentage points: clicks in 100 lists. The simulated user is shown the new slates; lines are intervals.",
    )


_APART = 0.16  # of a position between the arms, so that no interval hides another


def rate_picture(rows: Rows, control: str) -> Chart | None:
    """Draw the click-through rate of every position in a live experiment, a line an arm, with intervals.

    Args:
        rows: Rows of arm, position from 1, rate, low, high; low and high are None where there is no interval.
        control: The arm that comes first and is black.
    """
    if not rows:
        return None
    arms = sorted({row["arm"] for row in rows}, key=lambda arm: (arm != control, arm))
    other_colours = _NEITHER_GAIN_NOR_LOSS
    colours = [_INK if arm == control else other_colours[n % len(other_colours)] for n, arm in enumerate(arms, -1)]
    middle = (len(arms) - 1) / 2
    data = [
        {
            **row,
            **_percent(row, "rate", "low", "high"),
            "place": row["position"] + _APART * (arms.index(row["arm"]) - middle),
        }
        for row in rows
    ]
    last, title = max(row["position"] for row in rows), "clicks in 100 slates"
    axis = alt.Axis(values=list(range(1, last + 1)), format="d", grid=False, labelOverlap=True)
    chart = alt.Chart(_inline(data)).encode(
        x=alt.X("place:Q", title="position", axis=axis, scale=alt.Scale(domain=[0.5, last + 0.5], nice=False)),
        color=alt.Color("arm:N", scale=alt.Scale(domain=arms, range=colours), legend=_line_legend()),
        tooltip=["arm:N", "position:Q", *_numbers(".2f", "rate", "low", "high")],
    )
    lines = chart.mark_line(strokeWidth=2, opacity=0.6).encode(y=alt.Y("rate:Q", title=title))
    points = chart.mark_point(filled=True, size=60, opacity=1).encode(y=alt.Y("rate:Q", title=title))
    whiskers = chart.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    panel = alt.layer(lines, whiskers, points).properties(width=_WIDTH, height=300)
    return themed(panel, "Click-through rate per position", "Vertical lines are 95% fixed-horizon intervals.")


# Learning curves


def learning_picture(rows: Rows) -> Chart | None:
    """Draw the validation measure epoch by epoch: a faint line a seed, a strong one their mean; a panel a run.

    Args:
        rows: Rows of run, ranker, seed, epoch, loss, value, measure.
    """
    rows = [row for row in rows if row["value"] is not None]
    if not rows:
        return None
    names = ("run", "ranker", "epoch", "measure")
    by_epoch = defaultdict(list)
    for row in rows:
        by_epoch[tuple(row[name] for name in names)].append(row["value"])
    data = [{**row, "line": f"seed {row['seed']}"} for row in rows]
    data += [
        {**dict(zip(names, key, strict=True)), "line": "mean", "value": sum(values) / len(values)}
        for key, values in by_epoch.items()
    ]
    rankers, runs, measures = (_in_order(rows, name) for name in ("ranker", "run", "measure"))
    colours = [_PALETTE[n % len(_PALETTE)] for n in range(len(rankers))]
    dashes = [_DASHES[n // len(_PALETTE) % len(_DASHES)] for n in range(len(rankers))]
    legend = _line_legend(columns=3)
    chart = alt.Chart().encode(
        x=alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1, format="d")),
        y=alt.Y("value:Q", title=f"{' or '.join(measures)} on validation lists", scale=alt.Scale(zero=False)),
        color=alt.Color("ranker:N", scale=alt.Scale(domain=rankers, range=colours), legend=legend),
        strokeDash=alt.StrokeDash("ranker:N", scale=alt.Scale(domain=rankers, range=dashes), legend=legend),
        detail=["line:N", "measure:N"],
        tooltip=["ranker:N", "line:N", "epoch:Q", *_numbers(".4f", "value", "loss")],
    )
    faint = chart.transform_filter("datum.line != 'mean'").mark_line(opacity=0.25, strokeWidth=1)
    strong = chart.transform_filter("datum.line == 'mean'").mark_line(strokeWidth=2.5, point={"size": 28})
    width = _WIDTH if len(runs) == 1 else 380
    panel = alt.layer(faint, strong, data=_inline(data)).properties(width=width, height=300)
    panels = panel.facet(alt.Facet("run:N", title=None, sort=runs), columns=2).resolve_scale(y="independent")
    own_scales = " Each panel has its own scale." if len(runs) > 1 else ""
    return themed(panels, "Learning curves", f"Faint lines are seeds, strong lines their mean.{own_scales}")


# How far items move

_BUCKETS_PER_SIDE = 10
_USUAL = 0.98  # of all items have a bucket; the rest share the last on either side


def rank_change_picture(changes: Mapping[str, Any]) -> Chart | None:
    """Draw how far items move, clicked items above and the others below, each as shares of their own number.

    Where most moves are far, they are put into buckets of equal width. Items that stay have a bucket of their own, and
    so have the few that go beyond the last.

    Args:
        changes: `ranker`, and `rows` of change (in positions, above 0 is up), count and clicked.
    """
    rows = [row for row in changes["rows"] if row["count"]]
    if not rows:
        return None
    width = _bucket_width(_usual_distance(rows))
    counts = Counter[tuple[bool, int]]()
    for row in rows:
        counts[bool(row["clicked"]), _bucket(row["change"], width)] += row["count"]
    buckets = range(min(bucket for _, bucket in counts), max(bucket for _, bucket in counts) + 1)
    panels = [
        _change_panel({bucket: counts[clicked, bucket] for bucket in buckets}, name, width, coloured=clicked)
        for clicked, name in ((True, "clicked items"), (False, "other items"))
        if any(counts[clicked, bucket] for bucket in buckets)
    ]
    subtitle = "Each panel adds up to 100%. A clicked item that moves up is a gain, one that moves down a loss."
    return themed(alt.vconcat(*panels, spacing=18), f"How far {changes['ranker']} moves items", subtitle)


def _change_panel(counts: Mapping[int, int], name: str, width: int, *, coloured: bool) -> Any:
    meanings = {"above": "moved up", "below": "moved down", "unclear": "stayed"}
    total = sum(counts.values())
    data: list[dict[str, Any]] = [
        {
            "bucket": _bucket_label(bucket, width),
            "share": n_items / total,
            "items": n_items,
            "meaning": meanings["above" if bucket > 0 else "below" if bucket < 0 else "unclear"],
        }
        for bucket, n_items in counts.items()
    ]
    axis = alt.Axis(labelAngle=-45 if width > 1 else 0, labelOverlap=False)
    labels, title = [row["bucket"] for row in data], "positions moved; up is to the right"
    chart = alt.Chart(_inline(data), title=alt.TitleParams(f"{name} ({total:,})", fontSize=13, offset=6)).encode(
        x=alt.X("bucket:O", sort=labels, title=title, axis=axis),
        y=alt.Y("share:Q", title="share", axis=alt.Axis(format=".0%")),
        color=_meaning_colour(meanings) if coloured else alt.value("#C4C4C4"),
        tooltip=[alt.Tooltip("bucket:O", title="moved"), *_numbers(".1%", "share"), "items:Q"],
    )
    return chart.mark_bar().properties(width=_WIDTH, height=170)


def _usual_distance(rows: Rows) -> int:
    """Return how far all but the farthest few items move at most."""
    nearest_first = sorted((abs(row["change"]), row["count"]) for row in rows)
    reached = np.cumsum([n_items for _, n_items in nearest_first])
    distance: int = nearest_first[np.searchsorted(reached, _USUAL * reached[-1])][0]
    return distance


def _bucket_width(furthest: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, … that needs few buckets on either side of 0.

    >>> [_bucket_width(n) for n in (0, 10, 11, 109)]
    [1, 1, 2, 20]
    """
    widths: Iterator[int] = (digit * 10**power for power in count() for digit in (1, 2, 5))
    return next(width for width in widths if width * _BUCKETS_PER_SIDE >= furthest)


def _bucket(change: int, width: int) -> int:
    """Return 0 for no change, 1 for 1 to width positions up, -1 for as many down, and so on to the last."""
    size = min(-(-abs(change) // width), _BUCKETS_PER_SIDE + 1)
    return size if change > 0 else -size


def _bucket_label(bucket: int, width: int) -> str:
    """Name a bucket by its changes.

    >>> [_bucket_label(bucket, 5) for bucket in (-2, 0, 1, 11)]
    ['−6 to −10', '0', '+1 to +5', 'beyond +50']
    """
    if bucket == 0:
        return "0"
    sign = "+" if bucket > 0 else "−"
    last = abs(bucket) * width
    if abs(bucket) > _BUCKETS_PER_SIDE:
        return f"beyond {sign}{last - width}"
    return f"{sign}{last}" if width == 1 else f"{sign}{last - width + 1} to {sign}{last}"


# What pictures share


def _meaning_colour(meanings: Mapping[str, str]) -> Any:
    """Return the colour of the field "meaning", whose values are those of "above", "below" and "unclear"."""
    domain = [meanings[side] for side in ("above", "below", "unclear")]
    scale = alt.Scale(domain=domain, range=[GAIN, LOSS, NEUTRAL])
    return alt.Color("meaning:N", scale=scale, legend=alt.Legend(title=None, orient="bottom"))


def _line_legend(columns: int = 0) -> alt.Legend:
    """Return a legend of strokes below the chart; 0 columns are as many as fit."""
    return alt.Legend(
        title=None, orient="bottom", columns=columns or alt.Undefined,
        symbolType="stroke", symbolStrokeWidth=3, symbolSize=500, symbolOpacity=1,
    )  # fmt: skip


def _numbers(number_format: str, *names: str) -> list[Any]:
    return [alt.Tooltip(f"{name}:Q", format=number_format) for name in names]


def _inline(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    return alt.InlineData(values=[dict(row) for row in rows])


def _in_order(rows: Rows, name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows))


def _percent(row: Mapping[str, Any], *names: str) -> dict[str, float | None]:
    return {name: None if row[name] is None else 100 * row[name] for name in names}
