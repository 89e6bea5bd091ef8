"""The report of a run: one HTML file that says in words, tables and pictures what came out, and how it was made.

Every section comes from one file of the run's folder (see `run_folder`) and is left out where that is missing. The
pictures also stand beside the report, as PNG and SVG.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seq2slate.atomic import atomic_path
from seq2slate.evaluation import figures
from seq2slate.evaluation.comparison import BASE_ORDER, Comparison, is_ceiling
from seq2slate.evaluation.paper import TITLES, paper_values
from seq2slate.evaluation.run_folder import Rows, RunFolder, read_run
from seq2slate.html import Html, Section, chart, element, page, table

_SHOWN_METRIC = "re-shown clicks@10"
_RANK_GAIN = "rank-gain"
_FAR_BELOW = -0.995  # a share of minus 400% says no more than "below"


def write_report(run_dir: str | os.PathLike[str]) -> Path:
    """Write report.html and pictures/ into the folder of a run, from what is there; return the path of the report."""
    folder = Path(run_dir)
    run = read_run(folder)
    charts = _draw(run)
    for name, (picture, _) in charts.items():
        for suffix in ("png", "svg"):
            figures.save(picture, folder / "pictures" / f"{name}.{suffix}")
    drawn = {name: chart(name, picture.to_dict(), caption) for name, (picture, caption) in charts.items()}
    report = folder / "report.html"
    with atomic_path(report) as partial:
        partial.write_text(page(_title(run), list(_sections(run, drawn))), encoding="utf-8")
    return report


def _title(run: RunFolder) -> str:
    return str((run.run or {}).get("title") or "A run of seq2slate")


def _draw(run: RunFolder) -> dict[str, tuple[figures.Chart, str]]:
    """Return every picture that there is something to draw for, by name, with a sentence on how to read it."""
    drawn: dict[str, tuple[figures.Chart | None, str]] = {
        name: (
            figures.interval_picture(rows, _table_title(name)),
            "A dot is a mean and its line the interval: right of the solid line is better than the base order, and "
            "the dashed line, where there is one, is as far as any ranker could get.",
        )
        for name, rows in run.tables.items()
    }
    if run.attention:
        drawn["figure2"] = (
            figures.attention_picture(run.attention),
            "Read row by row: each row is a step of the decoder, and its frame moves along the diagonal where the "
            "slate follows the base order and leaves it where an item is promoted or held back.",
        )
    if run.differences:
        drawn["figure3"] = (
            figures.difference_picture(run.differences),
            "A blue bar is a position that gets more clicks than before, an orange one fewer; a bar is grey where "
            "its interval includes zero.",
        )
    if run.curves:
        drawn["curves"] = (
            figures.learning_picture(run.curves),
            "A curve that still rises at its end would gain from more epochs; one that falls has begun to overfit.",
        )
    if run.rank_changes:
        drawn["rank-changes"] = (
            figures.rank_change_picture(run.rank_changes),
            "The more of the upper panel is blue, and the farther to the right, the better; tall bars at 0 mean that "
            "the base order is mostly kept.",
        )
    return {name: (picture, caption) for name, (picture, caption) in drawn.items() if picture is not None}


def _sections(run: RunFolder, drawn: Mapping[str, Html]) -> Iterator[Section]:
    notes = [element("p", str(note), class_="soft") for note in (run.run or {}).get("notes") or []]
    yield Section("In short", [*_bullets(list(_headlines(run.tables))), *notes])
    for name, rows in run.tables.items():
        yield Section(_table_title(name), [*_table(name, Comparison(rows)), *_only(drawn, name)])
    yield Section("Where the model looks (figure 2)", _only(drawn, "figure2"))
    yield Section("Clicks per position (figure 3)", _only(drawn, "figure3"))
    yield Section("How far items move", _only(drawn, "rank-changes"))
    yield Section("Learning", _only(drawn, "curves"))
    if run.timing:
        yield Section("Time", [_timing(run.timing)])
    if run.run:
        yield Section("How it was made", list(_origin(run.run)))


def _only(drawn: Mapping[str, Html], name: str) -> list[Html]:
    return [drawn[name]] if name in drawn else []


def _bullets(lines: list[str]) -> list[Html]:
    return [element("ul", *(element("li", line) for line in lines))] if lines else []


def _table_title(name: str) -> str:
    return TITLES.get(name, name)


# In words


def _headlines(tables: Mapping[str, Rows]) -> Iterator[str]:
    for name, rows in tables.items():
        comparison = Comparison(rows)
        metrics = dict.fromkeys((comparison.main_metric, _SHOWN_METRIC))
        said = [headline(comparison, metric) for metric in metrics if comparison.contenders(metric)]
        if said:
            yield " ".join([f"{_table_title(name)}.", *said])


def headline(comparison: Comparison, metric: str) -> str:
    """Say who is first by a metric, how far above the base order, how much of the gap that closes, and who follows.

    >>> means = {"base order": 0.5, "A": 0.6, "B": 0.55, "ceiling": 0.9}
    >>> rows = [{"ranker": ranker, "metric": "MAP", "mean": mean} for ranker, mean in means.items()]
    >>> print(headline(Comparison(rows), "MAP"))
    By MAP, A is first with 0.600: +20.0% over the base order, 25% of the gap to the ceiling. Next is B with 0.550.
    """
    first, *others = comparison.contenders(metric)
    base = comparison.base(metric)
    if base is not None and base.mean >= first.mean:
        closest = f"{first.ranker} is closest with {first.mean:.3f}"
        return f"By {metric}, no ranker is above the base order ({base.mean:.3f}); {closest}."
    gain, share = comparison.gain(first.ranker, metric), comparison.gap_closed(first.ranker, metric)
    found = [] if gain is None else [f"{gain:+.1%} over the base order"]
    found += [] if share is None else [f"{share:.0%} of the gap to the ceiling"]
    text = f"By {metric}, {first.ranker} is first with {first.mean:.3f}{': ' if found else ''}{', '.join(found)}."
    if base is not None and first.overlaps(base):
        text += " Its interval and the base order's overlap."
    if others:
        close = ", and their intervals overlap" if first.overlaps(others[0]) else ""
        text += f" Next is {others[0].ranker} with {others[0].mean:.3f}{close}."
    return text


# In numbers


def _table(name: str, comparison: Comparison) -> Iterator[Html]:
    metrics = comparison.metrics
    rows = [[ranker, *(_cell(name, comparison, ranker, metric) for metric in metrics)] for ranker in comparison.rankers]
    kinds = ["reference" if ranker == BASE_ORDER or is_ceiling(ranker) else None for ranker in comparison.rankers]
    yield table(["ranker", *metrics], rows, kinds)
    notes = ["Mean ± half the width of its interval; the best that is not a ceiling is bold."]
    if any(comparison.gap_closed(BASE_ORDER, metric) is not None for metric in metrics):
        notes.append("of gap: how much of the way from the base order to the best ceiling is closed.")
    if any(paper_values(name, ranker, metric) for ranker in comparison.rankers for metric in metrics):
        notes.append(
            "paper: its values for Web30k / Yahoo; where the data are others, compare the order, not the values."
        )
    yield element("p", " ".join(notes), class_="soft")


def _cell(name: str, comparison: Comparison, ranker: str, metric: str) -> Html:
    """Return a mean with its interval and, below, the share of the gap and what the paper has."""
    value, best = comparison.value(ranker, metric), comparison.best(metric)
    parts = []
    if value is None:
        parts.append(element("span", "–"))
    else:
        decimals = 2 if metric == _RANK_GAIN else 3
        is_best = best is not None and value.mean == best.mean and not is_ceiling(ranker)
        number = f"{value.mean:.{decimals}f}"
        parts.append(element("b", number) if is_best else element("span", number))
        if value.half_width is not None:
            interval = f"{value.low:.4f} to {value.high:.4f}"
            parts.append(element("span", f" ±{value.half_width:.{decimals}f}", class_="soft", title=interval))
    share = comparison.gap_closed(ranker, metric)
    if share is not None and ranker != BASE_ORDER and not is_ceiling(ranker):
        parts.append(element("div", f"{share:.0%} of gap" if share > _FAR_BELOW else "below"))
    printed = paper_values(name, ranker, metric)
    if printed:
        values = " / ".join(
            f"{printed[dataset]:.{1 if metric == _RANK_GAIN else 2}f}" for dataset in ("Web30k", "Yahoo")
        )
        parts.append(element("div", f"paper {values}"))
    return Html("".join(parts))


def _timing(rows: Rows) -> Html:
    cells = [
        [
            str(row["what"]),
            str(row.get("decoder") or row.get("ranker") or ""),
            f"{row['seconds']:,.3g} s" if row["seconds"] is not None else "–",
            _times(row.get("ratio")),
            element("span", _times(row.get("paper")), class_="soft"),
        ]
        for row in rows
    ]
    return table(["what", "by", "time", "ratio", "in the paper"], cells)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}×"


# How it was made


def _origin(run: Mapping[str, Any]) -> Iterator[Html]:
    if run.get("command"):
        yield element("pre", element("code", str(run["command"])))
    facts = {
        "versions": run.get("versions"),
        "seeds": run.get("seeds"),
        "data": run.get("data"),
        "seconds": run.get("seconds"),
    }
    rows = [[name, element("code", _plain(value))] for name, value in _flat(facts)]
    if rows:
        yield table(["", ""], rows)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested objects, with the names on the way to it."""
    for key, inner in value.items():
        name = f"{prefix} {key}".strip()
        if isinstance(inner, Mapping):
            yield from _flat(inner, name)
        elif inner is not None:
            yield name, inner


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
