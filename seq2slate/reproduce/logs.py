"""`seq2slate reproduce logs`: rankers on real click logs, which are split by time and evaluated on their own clicks.

The later 20% of the lists test, the 10% before them validate, the rest trains. All rankers read the same columns,
categories and the base position included. What a log is, a TOML file says: a table for each, by its name, with

| key | meaning |
|---|---|
| `file` | the file, glob or folder, relative to `--data` |
| `time` | the column by which lists are sorted: numbers or text; no ranker reads it. As they are if not given |
| `first` | train on the first so many lists only, a tenth of which validates; the test lists stay the same |
| any role of `Columns` | what its columns are |
"""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from seq2slate.data.files import read
from seq2slate.data.lists import ItemLists, Split
from seq2slate.data.roles import Columns, as_columns, suggest
from seq2slate.errors import DataError, UsageError
from seq2slate.estimator import hold_out
from seq2slate.evaluation.comparison import BASE_ORDER, MAIN_METRIC, Rows
from seq2slate.evaluation.sheets import table_sheets
from seq2slate.reproduce.data import digest, source_facts, store_log
from seq2slate.reproduce.folder import Plan, check_same_data, continue_part, do_missing, finish_part, part_identity
from seq2slate.reproduce.plan import DEFAULT, PAPER_TUNED, Cell, Row, in_order, is_random, slug
from seq2slate.reproduce.results import Results, write_json
from seq2slate.reproduce.sizes import RunSettings
from seq2slate.reproduce.tables import metric_rows, printed_failures, printed_sheet
from seq2slate.reproduce.workers import Failure

PART = "logs"
_RANKERS = (DEFAULT, PAPER_TUNED, "MART", "LambdaMART", BASE_ORDER)
_METRICS = (MAIN_METRIC, "NDCG@5", "MAP")
_VALID, _TEST = 0.1, 0.2


@dataclass(frozen=True)
class ClickLog:
    """A click log, and how it is read."""

    name: str
    """Names its table, and the folder of its lists."""
    file: str
    """A file, a glob, or a folder of Parquet files."""
    time: str | None = None
    """The column by which lists are sorted; they are taken as they are if None."""
    first: int | None = None
    """Train on the first so many lists only, a tenth of which validates."""
    columns: Columns = field(default_factory=Columns)
    """The roles of its columns."""

    def __post_init__(self) -> None:
        if slug(self.name) != self.name:
            raise UsageError(f"a log is named with small letters, digits and hyphens, not {self.name!r}")
        if self.first is not None and self.first < 2:
            raise UsageError(f"log {self.name}: first must be at least 2, got {self.first}")

    def split(self) -> Split:
        """Return training, validation and test lists, by time."""
        train, valid, test = sorted_lists(self).split(1 - _VALID - _TEST, _VALID, in_order=True)
        if self.first is not None:
            train, valid = hold_out(train[: self.first], seed=0)
        return Split(train, valid, test)


def click_logs(
    data: str | None, described: Path | None, time_column: str | None, columns: Mapping[str, Any]
) -> list[ClickLog]:
    """Return the logs that are described in a TOML file, or the one that options describe.

    Args:
        data: The log itself, or the folder of the logs of the TOML file; that of the TOML file if None.
        described: The TOML file.
        time_column: The column that sorts the lists, without a TOML file.
        columns: The roles of the columns, without a TOML file.
    """
    if described is not None:
        if time_column is not None or columns:
            raise UsageError(f"{described} says which columns a log has: give roles and time there")
        return read_logs(described, Path(data) if data is not None else described.parent)
    if data is None:
        raise UsageError("give a click log with --data, or several with --logs FILE.toml")
    return [ClickLog(slug(Path(data).name.partition(".")[0]), data, time_column, columns=as_columns(columns))]


def read_logs(path: Path, folder: Path) -> list[ClickLog]:
    """Return the logs that a TOML file describes; their files are relative to a folder."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
    if not content or not all(isinstance(one, dict) for one in content.values()):
        raise DataError(f"{path}: a log is a table with its name, such as [shop], and a key file")
    return [_log(name, entry, folder, f"{path}, log {name}") for name, entry in content.items()]


def _log(name: str, entry: Mapping[str, Any], folder: Path, place: str) -> ClickLog:
    own, roles = ("file", "time", "first"), [one.name for one in fields(Columns)]
    if unknown := next((key for key in entry if key not in (*own, *roles)), None):
        raise UsageError(f"{place}: there is no {unknown!r}{suggest(unknown, (*own, *roles))}")
    if "file" not in entry:
        raise UsageError(f'{place}: say which file it is, file = "NAME.parquet"')
    columns = as_columns({key: value for key, value in entry.items() if key in roles})
    return ClickLog(name, str(folder / entry["file"]), entry.get("time"), entry.get("first"), columns)


def sorted_lists(log: ClickLog) -> ItemLists:
    """Return the lists of a log in the order of time, without the column that says it."""
    if log.time is None:
        return read(log.file, log.columns)
    context = tuple(dict.fromkeys((*log.columns.context, log.time)))
    lists = read(log.file, replace(log.columns, context=context))
    times = np.asarray(lists.context[log.time])
    kept = {name: values for name, values in lists.context.items() if name != log.time}
    return replace(lists, context=kept, roles=None)[np.argsort(times, kind="stable")]


def run_logs(
    out: Path, settings: RunSettings, logs: Sequence[ClickLog], *, jobs: int = 1, console: Console
) -> dict[Cell, Failure]:
    """Train and measure all rankers on each log.

    Args:
        out: The folder of the run; one that was interrupted is continued, and other logs can be added.
        settings: The sizes of the run.
        logs: The logs, each with another name.
        jobs: Processes at a time.
        console: Where the tables are printed.

    Returns:
        The cells that failed, and why.
    """
    began, folder = time.monotonic(), out / PART
    stored = continue_part(out, PART, settings) or part_identity(settings) | {"data": {}}
    for log in logs:
        stored["data"][log.name] = _store(log, folder, stored["data"].get(log.name))
        write_json(folder / "run.json", stored)
    cells = [cell for log in logs for cell in _cells(settings, log.name)]
    failures = do_missing(cells, folder, settings, jobs=jobs)
    tables = {name: log_rows(folder, settings, name) for name in stored["data"]}
    for name, rows in tables.items():
        write_json(out / f"log-{name}.json", rows)
    run = stored | {
        "seeds": list(range(settings.seeds)),
        "notes": [_note(name, source_facts(folder / "data" / name)) for name in tables],
        "seconds": {"this run": round(time.monotonic() - began, 1)},
    }
    finish_part(out, PART, run, _printed(run["notes"], tables, failures), console)
    return failures


def planned_logs(settings: RunSettings, logs: Sequence[ClickLog]) -> Plan:
    """Return what a run is going to do, log by log."""
    n_train = {log.name: len(log.split().train) for log in logs}
    return Plan(PART, [cell for name in n_train for cell in _cells(settings, name)], n_train)


def _cells(settings: RunSettings, name: str) -> list[Cell]:
    return in_order([cell for row in _rows(settings) for cell in row.cells(name, "")], settings, 1)


def _store(log: ClickLog, folder: Path, stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Write the parts of a log, unless they are there; return what tells its lists from others."""
    split = log.split()
    for part, lists in split._asdict().items():
        if lists.labels is None or not np.any(lists.labels):
            raise DataError(f"{log.file}: the {part} part of log {log.name} has no click: give more lists")
    source = {"source": log.file, "columns": log.columns.changes(), "sha256": digest([split])}
    if stored is not None:
        check_same_data(folder, stored, source)
    if not (folder / "data" / log.name / "facts.json").exists():
        store_log(split, folder / "data" / log.name)
    return json.loads(json.dumps(source))  # type: ignore[no-any-return]


def _rows(settings: RunSettings) -> list[Row]:
    return [Row(name, 0, settings.seeds if is_random(name) else 1) for name in _RANKERS]


def log_rows(folder: Path, settings: RunSettings, name: str) -> list[dict[str, Any]]:
    """Return the rows of the table of one log."""
    n_train = source_facts(folder / "data" / name)["lists"]["train"]
    results = Results.load(_cells(settings, name), folder / "cells", settings, n_train=n_train, sources=[name])
    return metric_rows(results, "", _rows(settings), _METRICS, against=BASE_ORDER)


def _note(name: str, facts: Mapping[str, Any]) -> str:
    train, valid, test = facts["lists"].values()
    return (
        f"Log {name}: {train:,} training, {valid:,} validation and, later, {test:,} test lists, "
        f"{facts['items a list']:.1f} items on average."
    )


def _printed(
    said: Sequence[str], tables: Mapping[str, Rows], failures: Mapping[Cell, Failure]
) -> Iterator[RenderableType]:
    yield from map(Text, said)
    for name, rows in tables.items():
        for sheet in table_sheets(f"log-{name}", rows):
            yield from printed_sheet(sheet)
    yield from printed_failures(failures)
