"""The picture of a live experiment beside figure 3: click-through rates from the top slot down, a line an arm.

`figures.difference_picture` draws the difference itself; the same rules hold here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from seq2slate.evaluation.figures import Chart, Rows, themed

_CONTROL = "#222222"
_TREATED = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Neither blue nor orange, which mean gain and loss."""
_WIDTH, _HEIGHT = 640, 300
_APART = 0.16  # of a position between the arms, so that no interval hides another


def rate_picture(rows: Rows, control: str) -> Chart | None:
    """Draw the click-through rate of every position by arm, with intervals; None if nothing was shown.

    A row has an `arm`, a `position` from 1, a `rate`, and `low` and `high`, which are None where there is no interval.
    """
    if not rows:
        return None
    arms = sorted({row["arm"] for row in rows}, key=lambda arm: (arm != control, arm))
    colours = [_CONTROL if arm == control else _TREATED[n % len(_TREATED)] for n, arm in enumerate(arms, -1)]
    data = [_drawn(row, arms.index(row["arm"]) - (len(arms) - 1) / 2) for row in rows]
    scale = alt.Scale(domain=arms, range=colours)
    legend = alt.Legend(
        title=None, orient="bottom", symbolType="stroke", symbolStrokeWidth=3, symbolSize=500, symbolOpacity=1
    )
    last = max(row["position"] for row in rows)
    axis = alt.Axis(values=list(range(1, last + 1)), format="d", grid=False, labelOverlap=True)
    title = "clicks in 100 slates"
    numbers = [alt.Tooltip(f"{name}:Q", format=".2f") for name in ("rate", "low", "high")]
    chart = alt.Chart(alt.InlineData(values=data)).encode(
        x=alt.X("place:Q", title="position", axis=axis, scale=alt.Scale(domain=[0.5, last + 0.5], nice=False)),
        color=alt.Color("arm:N", scale=scale, legend=legend),
        tooltip=["arm:N", "position:Q", *numbers],
    )
    lines = chart.mark_line(strokeWidth=2, opacity=0.6).encode(y=alt.Y("rate:Q", title=title))
    points = chart.mark_point(filled=True, size=60, opacity=1).encode(y=alt.Y("rate:Q", title=title))
    whiskers = chart.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    panel = alt.layer(lines, whiskers, points).properties(width=_WIDTH, height=_HEIGHT)
    return themed(panel, "Click-through rate per position", "Vertical lines are 95% intervals, for one planned look.")


def _drawn(row: Mapping[str, Any], shift: float) -> dict[str, Any]:
    percents = {name: None if row[name] is None else 100 * row[name] for name in ("rate", "low", "high")}
    return {**row, **percents, "place": row["position"] + _APART * shift}
