"""The pictures of a run: plain rows in, an Altair chart out, and `save` to PNG, SVG or JSON without a network.

Figures 2 and 3 of the paper are `attention_picture` and `difference_picture`; the others are ours. Colours mean the
same everywhere and stay apart for colour-blind eyes (Okabe and Ito's palette): blue is a gain, orange a loss, grey is
neither, or not told apart.

Altair takes a third of a second to import, so this module is imported only when something is drawn.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import altair as alt
import vl_convert

from seq2slate.atomic import atomic_path
from seq2slate.errors import UsageError
from seq2slate.evaluation.comparison import Comparison, Value

Chart: TypeAlias = alt.TopLevelMixin
Rows: TypeAlias = Sequence[Mapping[str, Any]]

GAIN, LOSS, NEUTRAL = "#0072B2", "#D55E00", "#8C8C8C"
_INK, _FAINT = "#222222", "#DDDDDD"
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
_DASHES = ([1, 0], [6, 3], [2, 2])
"""With more rankers than colours, the next ones are dashed, then dotted."""

_WIDTH = 640
_FIRST_POSITIONS = 30
_FIRST_STEPS = 20
_BUCKETS_PER_SIDE = 10
_USUAL = 0.98  # of all items have a bucket; the rest share the last on either side
_SCALE = 2.0  # pixels of a PNG for each of the chart's

_THEME: Mapping[str, Any] = {
    "background": "white",
    "font": "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif",
    "padding": 12,
    "title": {"fontSize": 16, "subtitleFontSize": 12, "subtitleColor": "#555555", "anchor": "start", "offset": 14},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "labelColor": _INK,
        "titleColor": _INK,
        "gridColor": "#EEEEEE",
        "domainColor": "#999999",
        "tickColor": "#999999",
        "labelLimit": 0,
        "labelFlush": False,
    },
    "legend": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 0,
        "symbolSize": 110,
    },
    "header": {"labelFontSize": 13, "labelFontWeight": "bold", "labelLimit": 0, "titleFontSize": 13},
    "view": {"stroke": None},
    "text": {"fontSize": 12, "color": _INK},
}


def save(chart: Chart, path: str | os.PathLike[str]) -> Path:
    """Write a chart; the suffix says whether as .png, .svg or .json (Vega-Lite)."""
    path = Path(path)
    spec = chart.to_dict()
    if path.suffix == ".png":
        content = vl_convert.vegalite_to_png(spec, scale=_SCALE)
    elif path.suffix == ".svg":
        content = vl_convert.vegalite_to_svg(spec).encode()
    elif path.suffix == ".json":
        content = json.dumps(spec, indent=1, allow_nan=False).encode()
    else:
        raise UsageError(f"{path}: a picture is a .png, .svg or .json file")
    with atomic_path(path) as partial:
        partial.write_bytes(content)
    return path


def interval_picture(rows: Rows, title: str = "", metric: str | None = None) -> Chart | None:
    """Draw a dot and an interval for each ranker, best on top, between the base order and the ceiling.

    The metric is NDCG@10 unless another is asked for or that is missing. None if no ranker has a value.
    """
    comparison = Comparison(rows)
    metric = metric or comparison.main_metric
    contenders, base, ceiling = comparison.contenders(metric), comparison.base(metric), comparison.ceiling(metric)
    if not contenders:
        return None
    data = _values(_interval_row(value, comparison, metric) for value in contenders)
    order = [value.ranker for value in contenders]
    y = alt.Y("ranker:N", sort=order, title=None, axis=alt.Axis(grid=True))
    x = alt.X("mean:Q", title=metric, scale=alt.Scale(zero=False, padding=24), axis=alt.Axis(tickCount=8))
    tooltip = [
        alt.Tooltip("ranker:N"),
        alt.Tooltip("mean:Q", title=metric, format=".4f"),
        alt.Tooltip("low:Q", title="from", format=".4f"),
        alt.Tooltip("high:Q", title="to", format=".4f"),
        alt.Tooltip("gap closed:N"),
    ]
    chart = alt.Chart(data).encode(y=y, color=_meaning_colour(_SIDES), tooltip=tooltip)
    layers: list[Any] = []
    if base is not None:
        layers += _reference(base, "right", dashed=False)
    if ceiling is not None:
        layers += _reference(ceiling, "left", dashed=True)
    layers += [
        chart.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q", title=metric), x2="high:Q"),
        chart.mark_point(filled=True, size=110, opacity=1).encode(x=x),
    ]
    return themed(alt.layer(*layers).properties(width=_WIDTH, height=alt.Step(28)), title)


_SIDES = {"above": "above the base order", "below": "below the base order", "unclear": "not told apart"}


def _interval_row(value: Value, comparison: Comparison, metric: str) -> dict[str, Any]:
    base, share = comparison.base(metric), comparison.gap_closed(value.ranker, metric)
    side = "unclear" if base is None else value.against(base.mean)
    return {
        "ranker": value.ranker,
        "mean": value.mean,
        "low": value.low,
        "high": value.high,
        "meaning": _SIDES[side],
        "gap closed": "-" if share is None else f"{share:.0%}",
    }


def _reference(value: Value, align: Literal["left", "right"], *, dashed: bool) -> list[Any]:
    """Return a vertical line and, above the chart, its name: to the left of the line or to the right."""
    chart = alt.Chart(_values([{"x": value.mean, "label": f"{value.ranker} {value.mean:.3f}"}])).encode(x="x:Q")
    rule = chart.mark_rule(color=_INK, strokeWidth=1.5, strokeDash=[5, 3] if dashed else [1, 0])
    inward = -5 if align == "right" else 5
    text = chart.mark_text(align=align, dx=inward, dy=-10, baseline="bottom").encode(text="label:N", y=alt.value(0))
    return [rule, text]


def attention_picture(attention: Mapping[str, Any]) -> Chart | None:
    """Draw figure 2 of the paper: how probable every item was at every step, and which one was placed.

    Of a long list the first positions and steps are drawn, and the items placed in those steps wherever they came
    from; the subtitle says what is cut and how much probability it had. None for a list without items.
    """
    items, slate = attention["items"], attention["slate"]
    steps = attention["probabilities"][:_FIRST_STEPS]
    if not items or not steps:
        return None
    placed = slate[: len(steps)]
    shown = sorted({*range(min(len(items), _FIRST_POSITIONS)), *placed})
    cells = [
        {**_item_row(i, items[i]), "slot": j + 1, "probability": step[i], "placed": placed[j] == i}
        for j, step in enumerate(steps)
        for i in shown
    ]
    x = alt.X("position:O", sort=[i + 1 for i in shown], title="position in the base order")
    x = x.axis(labelAngle=0, labelOverlap=False, labelFontSize=11, ticks=False)
    y = alt.Y("slot:O", title="slot of the slate").axis(labelFontSize=11, ticks=False)
    colour = alt.Color(
        "probability:Q",
        scale=alt.Scale(range=["white", "#08519C"], interpolate="rgb", domainMin=0),
        title="probability",
    )
    tooltip: list[Any] = [
        "id:N",
        "position:O",
        "slot:O",
        alt.Tooltip("probability:Q", format=".4f"),
        "clicked:N",
        "grade:Q",
    ]
    tooltip += ["topic:N"] if "topic" in items[0] else []
    heat = alt.Chart(_values(cells)).encode(x=x, y=y, tooltip=tooltip)
    ring = heat.transform_filter("datum.placed").mark_rect(filled=False, stroke=_INK, strokeWidth=2)
    square = 22
    panel = alt.layer(heat.mark_rect(stroke=_FAINT, strokeWidth=0.5).encode(color=colour), ring).properties(
        width=square * len(shown), height=square * len(steps)
    )
    strip = _item_strip([_item_row(i, items[i]) for i in shown], square)
    chart = alt.vconcat(strip, panel, spacing=4).resolve_scale(x="shared", y="independent")
    title = f"Where the model looked, list {attention['list_id']}"
    return themed(chart, title, _attention_subtitle(attention, shown, steps))


def _item_row(i: int, item: Mapping[str, Any]) -> dict[str, Any]:
    return {**item, "position": i + 1, "clicked": "clicked" if item["clicked"] else "not clicked"}


def _item_strip(rows: list[dict[str, Any]], square: int) -> Any:
    """Return, above the heat map, a dot for every clicked item and, where grades are known, the grades."""
    x = alt.X("position:O", axis=None, sort=[row["position"] for row in rows])
    graded = any(row["grade"] is not None for row in rows)
    y = alt.Y("row:N", sort=["grade", "clicked"], title=None, axis=alt.Axis(domain=False, ticks=False))
    data = [{**row, "row": "clicked"} for row in rows if row["clicked"] == "clicked"] or [{"row": "clicked"}]
    layers = [alt.Chart(_values(data)).mark_point(filled=True, size=90, color=_INK, opacity=1).encode(x=x, y=y)]
    if graded:
        grades = [{**row, "row": "grade"} for row in rows if row["grade"] is not None]
        layers.append(alt.Chart(_values(grades)).mark_text(fontSize=11).encode(x=x, y=y, text="grade:Q"))
    return alt.layer(*layers).properties(width=square * len(rows), height=square * len(layers))


def _attention_subtitle(attention: Mapping[str, Any], shown: Sequence[int], steps: Rows | Sequence[Any]) -> list[str]:
    items, n_steps = attention["items"], len(attention["slate"])
    lines = ["Darker is more probable; the frame is the item that was placed; dots are items that were clicked."]
    if len(steps) < n_steps:
        lines.append(f"The first {len(steps)} of {n_steps} slots are drawn.")
    n_cut = len(items) - len(shown)
    if n_cut:
        kept = set(shown)
        missed = max(sum(p for i, p in enumerate(step) if i not in kept) for step in steps)
        lines.append(
            f"Drawn are positions 1 to {_FIRST_POSITIONS} and the items placed from below; the other {n_cut} items "
            f"have at most {missed:.1%} of a step's probability together."
        )
    return lines


def difference_picture(differences: Mapping[str, Any]) -> Chart | None:
    """Draw figure 3 of the paper: how many more clicks each position gets than with the baseline, ranker by ranker."""
    rows = [row for row in differences["rows"] if row["difference"] is not None]
    if not rows:
        return None
    meanings = {"above": "more clicks", "below": "fewer clicks", "unclear": "not told apart"}
    data = _values(
        {
            **{name: _percent(row[name]) for name in ("difference", "low", "high")},
            "ranker": row["ranker"],
            "position": row["position"],
            "meaning": meanings[Value(row["ranker"], row["difference"], row["low"], row["high"]).against(0)],
        }
        for row in rows
    )
    numbers = [alt.Tooltip(f"{name}:Q", format="+.2f") for name in ("difference", "low", "high")]
    title = "difference in CTR"
    x = alt.X("position:O", title="position", axis=alt.Axis(labelAngle=0))
    base = alt.Chart(data).encode(x=x, tooltip=["ranker:N", "position:O", *numbers])
    bars = base.mark_bar(opacity=0.75).encode(y=alt.Y("difference:Q", title=title), color=_meaning_colour(meanings))
    whiskers = base.mark_rule(color=_INK, strokeWidth=1.5).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    zero = alt.Chart(data).mark_rule(color=_INK).encode(y=alt.datum(0))
    n_rankers = len({row["ranker"] for row in rows})
    alone = n_rankers == 1
    panel = alt.layer(bars, whiskers, zero).properties(width=_WIDTH if alone else 330, height=260 if alone else 190)
    chart = panel.facet(alt.Facet("ranker:N", title=None, sort=_in_order(rows, "ranker")), columns=2)
    heading = f"Click-through rate per position, against {differences['baseline']}"
    return themed(
        chart,
        heading,
        "In percentage points: clicks in 100 lists. The simulated user is shown the new slates; lines are intervals.",
    )


def learning_picture(rows: Rows) -> Chart | None:
    """Draw the validation measure epoch by epoch: a faint line a seed, a strong one their mean; a panel a run."""
    rows = [row for row in rows if row["value"] is not None]
    if not rows:
        return None
    means = defaultdict(list)
    for row in rows:
        means[row["run"], row["ranker"], row["epoch"], row["measure"]].append(row["value"])
    names = ("run", "ranker", "epoch", "measure")
    data = [{**row, "line": f"seed {row['seed']}"} for row in rows]
    data += [
        {**dict(zip(names, key, strict=True)), "line": "mean", "value": sum(values) / len(values)}
        for key, values in means.items()
    ]
    rankers, runs, measures = (_in_order(rows, name) for name in ("ranker", "run", "measure"))
    colours = [_PALETTE[n % len(_PALETTE)] for n in range(len(rankers))]
    dashes = [_DASHES[n // len(_PALETTE) % len(_DASHES)] for n in range(len(rankers))]
    legend = alt.Legend(
        title=None,
        orient="bottom",
        columns=3,
        symbolType="stroke",
        symbolStrokeWidth=3,
        symbolSize=500,
        symbolOpacity=1,
    )
    numbers = [alt.Tooltip(f"{name}:Q", format=".4f") for name in ("value", "loss")]
    y = alt.Y("value:Q", title=f"{' or '.join(measures)} on validation lists", scale=alt.Scale(zero=False))
    chart = alt.Chart().encode(
        x=alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1, format="d")),
        y=y,
        color=alt.Color("ranker:N", scale=alt.Scale(domain=rankers, range=colours), legend=legend),
        strokeDash=alt.StrokeDash("ranker:N", scale=alt.Scale(domain=rankers, range=dashes), legend=legend),
        detail=["line:N", "measure:N"],
        tooltip=["ranker:N", "line:N", "epoch:Q", *numbers],
    )
    faint = chart.transform_filter("datum.line != 'mean'").mark_line(opacity=0.25, strokeWidth=1)
    strong = chart.transform_filter("datum.line == 'mean'").mark_line(strokeWidth=2.5, point={"size": 28})
    width = _WIDTH if len(runs) == 1 else 380
    panel = alt.layer(faint, strong, data=_values(data)).properties(width=width, height=300)
    panels = panel.facet(alt.Facet("run:N", title=None, sort=runs), columns=2).resolve_scale(y="independent")
    return themed(
        panels,
        "Learning curves",
        "Faint lines are seeds, strong lines their mean. Each panel has its own scale."
        if len(runs) > 1
        else "Faint lines are seeds, strong lines their mean.",
    )


def rank_change_picture(changes: Mapping[str, Any]) -> Chart | None:
    """Draw how far items moved, clicked items above and the others below, each as shares of their own number.

    A change above 0 is a move up. If most moves are far, they are put into buckets of equal width; items that stayed
    have their own bucket, and so have the few that went beyond the last.
    """
    rows = [row for row in changes["rows"] if row["count"]]
    if not rows:
        return None
    width = _bucket_width(_usual_distance(rows))
    counts = Counter[tuple[bool, int]]()
    for row in rows:
        counts[bool(row["clicked"]), _bucket(row["change"], width)] += row["count"]
    buckets = range(min(bucket for _, bucket in counts), max(bucket for _, bucket in counts) + 1)
    panels = []
    for clicked, name in ((True, "clicked items"), (False, "other items")):
        total = sum(counts[clicked, bucket] for bucket in buckets)
        if total:
            found = [(bucket, counts[clicked, bucket]) for bucket in buckets]
            panels.append(_change_panel(found, total, name, width, coloured=clicked))
    subtitle = "Each panel adds up to 100%. A clicked item that moves up is a gain, one that moves down a loss."
    return themed(alt.vconcat(*panels, spacing=18), f"How far {changes['ranker']} moves items", subtitle)


def _change_panel(found: Sequence[tuple[int, int]], total: int, name: str, width: int, *, coloured: bool) -> Any:
    meanings = {"above": "moved up", "below": "moved down", "unclear": "stayed"}
    data = _values(
        {
            "bucket": _bucket_label(bucket, width),
            "share": count / total,
            "items": count,
            "meaning": meanings["above" if bucket > 0 else "below" if bucket < 0 else "unclear"],
        }
        for bucket, count in found
    )
    labels = [_bucket_label(bucket, width) for bucket, _ in found]
    axis = alt.Axis(labelAngle=-45 if width > 1 else 0, labelOverlap=False)
    return (
        alt.Chart(data, title=alt.TitleParams(f"{name} ({total:,})", fontSize=13, offset=6))
        .mark_bar()
        .encode(
            x=alt.X("bucket:O", sort=labels, title="positions moved; up is to the right", axis=axis),
            y=alt.Y("share:Q", title="share", axis=alt.Axis(format=".0%")),
            color=_meaning_colour(meanings) if coloured else alt.value("#C4C4C4"),
            tooltip=[alt.Tooltip("bucket:O", title="moved"), alt.Tooltip("share:Q", format=".1%"), "items:Q"],
        )
        .properties(width=_WIDTH, height=170)
    )


def _usual_distance(rows: Rows) -> int:
    """Return how far all but the farthest few items moved at most."""
    total = sum(row["count"] for row in rows)
    reached, distance = 0, 0
    for row in sorted(rows, key=lambda row: abs(row["change"])):
        if reached >= _USUAL * total:
            break
        reached, distance = reached + row["count"], abs(row["change"])
    return distance


def _bucket_width(furthest: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, … that needs few buckets on either side of 0.

    >>> [_bucket_width(n) for n in (0, 10, 11, 109)]
    [1, 1, 2, 20]
    """
    width, steps = 1, (2, 2.5, 2)
    for n in range(60):
        if width * _BUCKETS_PER_SIDE >= furthest:
            break
        width = int(width * steps[n % 3])
    return width


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


def _meaning_colour(meanings: Mapping[str, str]) -> Any:
    """Return the colour of the field "meaning", whose values are those of "above", "below" and "unclear"."""
    domain = [meanings[side] for side in ("above", "below", "unclear")]
    scale = alt.Scale(domain=domain, range=[GAIN, LOSS, NEUTRAL])
    return alt.Color("meaning:N", scale=scale, legend=alt.Legend(title=None, orient="bottom"))


def themed(chart: Any, title: str, subtitle: str | Sequence[str] = "") -> Chart:
    """Give a chart its title and the look that all pictures share."""
    if title:
        chart = chart.properties(title=alt.TitleParams(title, subtitle=subtitle))
    finished: Chart = chart.configure(**_THEME)
    return finished


def _values(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    return alt.InlineData(values=[dict(row) for row in rows])


def _in_order(rows: Rows, name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows))


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
