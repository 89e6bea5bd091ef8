"""What a run left in its folder: JSON files, each of which may be missing, read and checked in one place.

| file | holds |
|---|---|
| run.json | title, command, versions, seeds, data, notes, seconds |
| table*.json | rows of ranker, metric, mean, low, high |
| figure2.json | one list, its slate, and the probability of every item at every step |
| figure3.json | rows of ranker, position, difference, low, high: clicks per position against a baseline |
| curves.json | rows of run, ranker, seed, epoch, loss, value, measure |
| rank-changes.json | rows of change, count, clicked, for one ranker |
| timing.json | rows of what, decoder or ranker, seconds, ratio, paper |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from seq2slate.errors import DataError, UsageError

Rows: TypeAlias = Sequence[Mapping[str, Any]]

TABLE_FIELDS = ("ranker", "metric", "mean", "low", "high")
ATTENTION_FIELDS = ("list_id", "items", "slate", "probabilities")
ITEM_FIELDS = ("id", "grade", "clicked")
DIFFERENCE_FIELDS = ("ranker", "position", "difference", "low", "high")
CURVE_FIELDS = ("run", "ranker", "seed", "epoch", "loss", "value", "measure")
CHANGE_FIELDS = ("change", "count", "clicked")
TIMING_FIELDS = ("what", "seconds")


@dataclass(frozen=True)
class RunFolder:
    """The files of a run; None, or nothing in `tables`, where there is no such file."""

    run: Mapping[str, Any] | None
    tables: Mapping[str, Rows]
    """By the name of the file without its suffix."""
    attention: Mapping[str, Any] | None
    differences: Mapping[str, Any] | None
    curves: Rows | None
    rank_changes: Mapping[str, Any] | None
    timing: Rows | None


def read_run(folder: Path) -> RunFolder:
    """Read what is there; a folder with nothing to report is refused, and so is a file that is not as it should be."""
    tables = {path.stem: path for path in sorted(folder.glob("table*.json"), key=_natural)}
    run = RunFolder(
        run=_read_object(folder / "run.json", ()),
        tables={name: rows for name, path in tables.items() if (rows := _read_rows(path, TABLE_FIELDS))},
        attention=_read_attention(folder / "figure2.json"),
        differences=_read_object(folder / "figure3.json", ("baseline", "rows"), DIFFERENCE_FIELDS),
        curves=_read_rows(folder / "curves.json", CURVE_FIELDS),
        rank_changes=_read_object(folder / "rank-changes.json", ("ranker", "rows"), CHANGE_FIELDS),
        timing=_read_rows(folder / "timing.json", TIMING_FIELDS),
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


def _read_rows(path: Path, fields: Sequence[str]) -> Rows | None:
    rows = _read(path)
    return None if rows is None else _check_rows(path, rows, fields)


def _read_object(path: Path, fields: Sequence[str], row_fields: Sequence[str] = ()) -> Mapping[str, Any] | None:
    content = _read(path)
    if content is None:
        return None
    _check_fields(str(path), content, fields)
    if row_fields:
        _check_rows(path, content["rows"], row_fields)
    return content  # type: ignore[no-any-return]


def _read_attention(path: Path) -> Mapping[str, Any] | None:
    attention = _read_object(path, ATTENTION_FIELDS)
    if attention is None:
        return None
    items, slate, steps = attention["items"], attention["slate"], attention["probabilities"]
    _check_rows(path, items, ITEM_FIELDS)
    if len(steps) > len(slate) or any(len(step) != len(items) for step in steps):
        raise DataError(
            f"{path}: list {attention['list_id']!r} has {len(items)} items and a slate of {len(slate)}; probabilities "
            "must have a row for each step, with a number for each item"
        )
    if not all(isinstance(item, int) and 0 <= item < len(items) for item in slate):
        raise DataError(f"{path}: list {attention['list_id']!r}: the slate must name items by 0 to {len(items) - 1}")
    return attention


def _check_rows(path: Path, rows: Any, fields: Sequence[str]) -> Rows:
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of rows, found {type(rows).__name__}")
    for number, row in enumerate(rows, start=1):
        _check_fields(f"{path}, row {number}", row, fields)
    return rows


def _check_fields(place: str, content: Any, fields: Sequence[str]) -> None:
    if not isinstance(content, dict):
        raise DataError(f"{place}: expected an object, found {type(content).__name__}")
    missing = [field for field in fields if field not in content]
    if missing:
        raise DataError(f"{place}: {', '.join(missing)} missing")
