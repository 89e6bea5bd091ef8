"""The report of a run: one HTML file with words, tables and pictures of the results, and how the run was made.

A run is a folder of JSON files. Each may be missing, and so is then the section that is made of it:

| file | holds |
|---|---|
| run.json | title, command, versions, seeds, data, notes, seconds |
| table*.json, log-*.json | rows of ranker, metric, mean, low, high, and what `Comparison` knows beside them |
| battery.json | rows and differences of `Battery` |
| figure2.json | one list, its slate, and the probability of every item at every step |
| figure3.json | rows of ranker, position, difference, low, high: clicks per position against a baseline |
| curves.json | rows of run, ranker, seed, epoch, loss, value, measure |
| rank-changes.json | rows of change, count, clicked, for one ranker |
| timing.json | rows of what, decoder or ranker, seconds, ratio, paper |

The pictures are also written beside the report, as PNG and SVG.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from seq2slate.atomic import atomic_path
from seq2slate.errors import DataError, UsageError
from seq2slate.evaluation import figures
from seq2slate.evaluation.battery import Battery, battery_notes, battery_sheets
from seq2slate.evaluation.comparison import (
    BASE_ORDER,
    SHOWN_METRIC,
    Comparison,
    Rows,
    cell_text,
    is_reference,
    percent_text,
)
from seq2slate.evaluation.paper import paper_values
from seq2slate.evaluation.sheets import Sheet, table_sheets, title_of, wrapped
from seq2slate.html import Html, Section, chart, element, page, table

Pictures: TypeAlias = Mapping[str, tuple[figures.Chart | None, str]]
"""Chart and caption by name; None where there is nothing to draw."""

_TABLE_CAPTION = (
    "A dot is a mean and its line the interval: right of the solid line is better than the base order, and the dashed "
    "line, where there is one, is as far as any ranker could get."
)
_CAPTIONS = {
    "battery": "A dot is what the ranker gains over the base order with one user, and its line the interval: grey "
    "where that includes zero.",
    "figure2": "Read row by row: each row is a step of the decoder, and its frame moves along the diagonal where the "
    "slate follows the base order and leaves it where an item is promoted or held back.",
    "figure3": "A blue bar is a position that gets more clicks than before, an orange one fewer; a bar is grey where "
    "its interval includes zero.",
    "curves": "A curve that still rises at its end would gain from more epochs; one that falls has begun to overfit.",
    "rank-changes": "The more of the upper panel is blue, and the farther to the right, the better; tall bars at 0 "
    "mean that the base order is mostly kept.",
}


def write_report(run_dir: str | os.PathLike[str]) -> Path:
    """Write report.html and pictures/ into the folder of a run.

    Args:
        run_dir: The folder, as `seq2slate reproduce` writes it.

    Returns:
        The path of the report.

    Raises:
        UsageError: The folder holds nothing to report.
        DataError: A file is not as it should be; the message names the file, the row and the field.
    """
    folder = Path(run_dir)
    run = read_run(folder)
    title = str((run.run or {}).get("title") or "A run of seq2slate")
    return write_page(folder, title, _pictures(run), lambda drawn: _sections(run, drawn))


def markdown(run_dir: str | os.PathLike[str]) -> str:
    """Return the tables of a run as Markdown, with the notes and the commands that made them."""
    run = read_run(Path(run_dir))
    origin = run.run or {}
    sheets = [sheet for name, rows in run.tables.items() for sheet in table_sheets(name, rows)]
    if run.battery is not None:
        sheets += battery_sheets(Battery.of(run.battery))
    command = f"```\n{origin['command']}\n```" if origin.get("command") else ""
    notes = [wrapped(str(note)) for note in origin.get("notes") or []]
    return "\n\n".join(filter(None, [command, *notes, *(sheet.markdown() for sheet in sheets)]))


def write_page(
    folder: Path, title: str, pictures: Pictures, sections: Callable[[Mapping[str, Html]], Iterable[Section]]
) -> Path:
    """Write report.html, and its pictures beside it as PNG and SVG; return the path of the report.

    Args:
        folder: Where to write.
        title: The heading of the page.
        pictures: Charts with their captions, by name.
        sections: Makes the sections of the page from the drawn pictures by name.
    """
    drawn = {}
    for name, (picture, caption) in pictures.items():
        if picture is not None:
            for suffix in ("png", "svg"):
                figures.save(picture, folder / "pictures" / f"{name}.{suffix}")
            drawn[name] = chart(name, picture.to_dict(), caption)
    report = folder / "report.html"
    with atomic_path(report) as partial:
        partial.write_text(page(title, list(sections(drawn))), encoding="utf-8")
    return report


def _pictures(run: RunFolder) -> Pictures:
    """Return every picture of a run, with a sentence on how to read it."""
    charts = {name: figures.interval_picture(rows, title_of(name)) for name, rows in run.tables.items()}
    others: dict[str, tuple[Callable[[Any], figures.Chart | None], Any]] = {
        "figure2": (figures.attention_picture, run.attention),
        "figure3": (figures.difference_picture, run.differences),
        "curves": (figures.learning_picture, run.curves),
        "rank-changes": (figures.rank_change_picture, run.rank_changes),
    }
    if run.battery is not None:
        charts["battery"] = figures.gain_picture(Battery.of(run.battery))
    charts |= {name: draw(content) for name, (draw, content) in others.items() if content}
    return {name: (chart, _CAPTIONS.get(name, _TABLE_CAPTION)) for name, chart in charts.items()}


def _sections(run: RunFolder, drawn: Mapping[str, Html]) -> Iterator[Section]:
    def only(name: str) -> list[Html]:
        return [drawn[name]] if name in drawn else []

    notes = [element("p", str(note), class_="soft") for note in (run.run or {}).get("notes") or []]
    said = [*_headlines(run.tables), *(battery_notes(Battery.of(run.battery)) if run.battery else [])]
    lines = [element("li", line) for line in said]
    yield Section("In short", [*([element("ul", *lines)] if lines else []), *notes])
    for name, rows in run.tables.items():
        yield Section(title_of(name), [*_table(name, Comparison(rows)), *only(name)])
    if run.battery is not None:
        sheets = [part for sheet in battery_sheets(Battery.of(run.battery)) for part in _sheet(sheet)]
        yield Section("Battery of users", [*sheets, *only("battery")])
    yield Section("Where the model looks (figure 2)", only("figure2"))
    yield Section("Clicks per position (figure 3)", only("figure3"))
    yield Section("How far items move", only("rank-changes"))
    yield Section("Learning", only("curves"))
    if run.timing:
        yield Section("Time", [_timing(run.timing)])
    if run.run:
        yield Section("How it was made", list(_origin(run.run)))


def _headlines(tables: Mapping[str, Rows]) -> Iterator[str]:
    for name, rows in tables.items():
        comparison = Comparison(rows)
        metrics = dict.fromkeys((comparison.main_metric, SHOWN_METRIC))
        said = [comparison.headline(metric) for metric in metrics if comparison.contenders(metric)]
        if said:
            yield " ".join([f"{title_of(name)}.", *said])


def _table(name: str, comparison: Comparison) -> Iterator[Html]:
    metrics = comparison.metrics
    rows = [
        [ranker, comparison.trained_on(ranker), *(_cell(name, comparison, ranker, metric) for metric in metrics)]
        for ranker in comparison.rankers
    ]
    kinds = ["reference" if is_reference(ranker) else None for ranker in comparison.rankers]
    yield table(["ranker", "trained on", *metrics], rows, kinds)
    notes = [
        "Trained on: lists × seeds.",
        "Mean ± half the width of its interval; the best that is not a ceiling is bold.",
    ]
    if comparison.against is not None:
        notes.append(f"In percent: the difference to {comparison.against}, list by list, with its 95% interval.")
    if any(comparison.gap_closed(BASE_ORDER, metric) is not None for metric in metrics):
        notes.append("of gap: the share of the way from the base order to the ceiling of the metric's own view.")
    if any(paper_values(name, comparison.paper_row(one), metric) for one in comparison.rankers for metric in metrics):
        notes.append(
            "paper: its values for Web30k / Yahoo; where the data are others, compare the order, not the values."
        )
    yield element("p", " ".join(notes), class_="soft")


def _sheet(sheet: Sheet) -> Iterator[Html]:
    if sheet.title:
        yield element("h3", sheet.title)
    yield table(sheet.header, sheet.rows)
    yield from (element("p", note, class_="soft") for note in sheet.notes)


def _cell(name: str, comparison: Comparison, ranker: str, metric: str) -> Html:
    """Return a mean with its interval and, below, the share of the gap and what the paper has."""
    text, value = cell_text(name, comparison, ranker, metric), comparison.cell(ranker, metric)
    parts = [element("b" if text.is_best else "span", text.mean or "–")]
    if value is not None and text.spread:
        interval = f"{value.low:.4f} to {value.high:.4f}"
        parts.append(element("span", f" {text.spread}", class_="soft", title=interval))
    reference = None if comparison.against is None else comparison.cell(comparison.against, metric)
    if against := percent_text(comparison.difference(ranker, metric), None if reference is None else reference.mean):
        parts.append(element("div", against))
    if text.share:
        parts.append(element("div", text.share if text.share == "below" else f"{text.share} of gap"))
    if text.paper:
        parts.append(element("div", f"paper {' / '.join(text.paper)}"))
    return Html("".join(parts))


def _timing(rows: Rows) -> Html:
    cells = [
        [
            str(row["what"]),
            str(row.get("decoder") or row.get("ranker") or ""),
            "–" if row["seconds"] is None else f"{row['seconds']:,.3g} s",
            _times(row.get("ratio")),
            element("span", _times(row.get("paper")), class_="soft"),
        ]
        for row in rows
    ]
    return table(["what", "by", "time", "ratio", "in the paper"], cells)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}×"


def _origin(run: Mapping[str, Any]) -> Iterator[Html]:
    if run.get("command"):
        yield element("pre", element("code", str(run["command"])))
    facts = {name: run.get(name) for name in ("versions", "seeds", "data", "seconds")}
    rows = [[name, element("code", _plain(value))] for name, value in flat_items(facts, " ") if value is not None]
    if rows:
        yield table(["", ""], rows)


def flat_items(values: Mapping[str, Any], separator: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested objects, each with the names that lead to it.

    >>> dict(flat_items({"a": {"b": 1, "c": 2}, "d": 3}, "."))
    {'a.b': 1, 'a.c': 2, 'd': 3}
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}{separator}{inner}", found) for inner, found in flat_items(value, separator))
        else:
            yield name, value


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


# The folder of a run


@dataclass(frozen=True)
class RunFolder:
    """The files of a run; None, or nothing in `tables`, where there is no such file."""

    run: Mapping[str, Any] | None
    tables: Mapping[str, Rows]
    """By the name of the file without its suffix."""
    battery: Mapping[str, Any] | None
    attention: Mapping[str, Any] | None
    differences: Mapping[str, Any] | None
    curves: Rows | None
    rank_changes: Mapping[str, Any] | None
    timing: Rows | None


def read_run(folder: Path) -> RunFolder:
    """Read what is there; an empty folder is a UsageError, and a file that is not as it should be is a DataError."""
    tables = {
        path.stem: _read_rows(path, "ranker", "metric", "mean", "low", "high")
        for pattern in ("table*.json", "log-*.json")
        for path in sorted(folder.glob(pattern), key=_natural)
    }
    run = RunFolder(
        run=_read_object(folder / "run.json"),
        tables={name: rows for name, rows in tables.items() if rows},
        battery=_read_battery(folder / "battery.json"),
        attention=_read_attention(folder / "figure2.json"),
        differences=_read_with_rows(
            folder / "figure3.json", "baseline", "ranker", "position", "difference", "low", "high"
        ),
        curves=_read_rows(folder / "curves.json", "run", "ranker", "seed", "epoch", "loss", "value", "measure"),
        rank_changes=_read_with_rows(folder / "rank-changes.json", "ranker", "change", "count", "clicked"),
        timing=_read_rows(folder / "timing.json", "what", "seconds"),
    )
    if not any(vars(run).values()):
        raise UsageError(
            f"{folder}: nothing to report. A run writes run.json, table1.json, figure2.json and the like: give the "
            "folder of one, or make one with `seq2slate reproduce`"
        )
    return run


def _natural(path: Path) -> list[tuple[int, str]]:
    """Order table2 before table10."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", path.stem)]


def _read(path: Path) -> Any:
    """Return what a file holds, None if there is no such file; NaN, which JSON does not have, becomes None."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"{path}: not a JSON file ({error}); let the run write it again") from error


def _read_rows(path: Path, *fields: str) -> Rows | None:
    rows = _read(path)
    return None if rows is None else _check_rows(path, rows, *fields)


def _read_object(path: Path, *fields: str) -> Mapping[str, Any] | None:
    content: Mapping[str, Any] | None = _read(path)
    if content is not None:
        _check_fields(str(path), content, *fields)
    return content


def _read_with_rows(path: Path, name: str, *fields: str) -> Mapping[str, Any] | None:
    """Read an object of a name and rows, which have these fields."""
    content = _read_object(path, name, "rows")
    if content is not None:
        _check_rows(path, content["rows"], *fields)
    return content


def _read_battery(path: Path) -> Mapping[str, Any] | None:
    content = _read_object(path, "rows", "differences", "mine", "pointwise")
    if content is not None:
        _check_rows(path, content["rows"], "world", "user", "ranker", "metric", "mean", "low", "high")
        fields = ("world", "user", "ranker", "metric", "against", "mean", "low", "high")
        _check_rows(path, content["differences"], *fields)
    return content


def _read_attention(path: Path) -> Mapping[str, Any] | None:
    attention = _read_object(path, "list_id", "items", "slate", "probabilities")
    if attention is None:
        return None
    items, slate, steps = attention["items"], attention["slate"], attention["probabilities"]
    _check_rows(path, items, "id", "grade", "clicked")
    if len(steps) > len(slate) or any(len(step) != len(items) for step in steps):
        raise DataError(
            f"{path}: list {attention['list_id']!r} has {len(items)} items and a slate of {len(slate)}; probabilities "
            "must have a row for each step, with a number for each item"
        )
    if not all(isinstance(item, int) and 0 <= item < len(items) for item in slate):
        raise DataError(f"{path}: list {attention['list_id']!r}: the slate must name items by 0 to {len(items) - 1}")
    return attention


def _check_rows(path: Path, rows: Any, *fields: str) -> Rows:
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of rows, found {type(rows).__name__}")
    for number, row in enumerate(rows, start=1):
        _check_fields(f"{path}, row {number}", row, *fields)
    return rows


def _check_fields(place: str, content: Any, *fields: str) -> None:
    if not isinstance(content, dict):
        raise DataError(f"{place}: expected an object, found {type(content).__name__}")
    missing = [field for field in fields if field not in content]
    if missing:
        raise DataError(f"{place}: {', '.join(missing)} missing")
