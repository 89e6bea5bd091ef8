"""`seq2slate reproduce`: prepare the data, do the cells that are missing, and write tables, figures and the report.

The folder of a run can be given again, for another table or after an interruption: what is there is not done again. It
holds one set of settings and one data set; others are refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from seq2slate.atomic import atomic_path
from seq2slate.errors import UsageError
from seq2slate.evaluation.report import write_report
from seq2slate.reproduce import pictures
from seq2slate.reproduce.cells import TABLES, TARGETS, Cell, cells_of
from seq2slate.reproduce.data import digest, fold_facts, graded_folds, load_fold, prepare
from seq2slate.reproduce.origin import origin, write_json
from seq2slate.reproduce.results import Results
from seq2slate.reproduce.settings import Settings
from seq2slate.reproduce.tables import table_rows
from seq2slate.reproduce.text import Said, print_and_write, say
from seq2slate.reproduce.timing import convergence_times, decoder_times
from seq2slate.reproduce.watch import CellBar
from seq2slate.reproduce.workers import Failure, do_cells
from seq2slate.training.config import PRESETS

_DECODERS = "cells/decoders.json"
_GENERATED = "generated"


def reproduce(
    target: str, out: Path, settings: Settings, *, data: str | None = None, jobs: int = 1, console: Console
) -> dict[Cell, Failure]:
    """Make a table, a figure, the times, or all of them; return the cells that failed, and why."""
    if target not in TARGETS:
        raise UsageError(f"there is nothing called {target!r} to reproduce; choose one of {', '.join(TARGETS)}")
    began = time.monotonic()
    facts = prepared(out, settings, data)
    ceilings = load_fold(out / "data", 0, pictures.USER).test.relevance_probability is not None
    cells = cells_of(target, settings, folds=len(facts), ceilings=ceilings)
    missing = [cell for cell in cells if not (out / "cells" / cell.file).exists()]
    with CellBar(len(cells), done=len(cells) - len(missing)) as bar:
        do_cells(missing, out, settings, jobs=jobs, watcher=bar)
    _write_failures(out / "failures.txt", bar.failures)
    wanted = TARGETS[:-1] if target == "all" else (target,)
    if "timing" in wanted and not (out / _DECODERS).exists():
        write_json(out / _DECODERS, decoder_times(out, settings))
    everything = cells_of("all", settings, folds=len(facts), ceilings=ceilings)
    results = Results.load(everything, out / "cells", settings, len(facts))
    written = write_results(out, wanted, results)
    run = json.loads((out / "run.json").read_text())
    run |= origin(results, facts, written, seconds=time.monotonic() - began)
    write_json(out / "run.json", run)
    print_and_write(console, say(run, written, results, bar.failures), out / "tables.txt")
    console.print(f"report: {write_report(out)}", highlight=False, soft_wrap=True)
    return bar.failures


def _write_failures(path: Path, failures: Mapping[Cell, Failure]) -> None:
    """Write where in the code each cell failed; nothing, and no old file, if none did."""
    path.unlink(missing_ok=True)
    if failures:
        with atomic_path(path) as partial:
            partial.write_text("\n".join(f"{cell}\n{failure.details}" for cell, failure in failures.items()))


# The folder


def prepared(out: Path, settings: Settings, data: str | None) -> list[dict[str, Any]]:
    """Make the clicked lists, unless they are there; return what was noted about each fold.

    Generated lists follow from the settings and are not made twice. Lists from files are read each time, to be sure
    that they are still the same.
    """
    wanted = {"settings": asdict(settings), "presets": {name: dict(options) for name, options in PRESETS.items()}}
    stored = _stored(out)
    if stored is not None:
        _check_same(wanted, stored, out)
        if data is None and stored["data"]["source"] == _GENERATED and len(fold_facts(out / "data")) == 1:
            return fold_facts(out / "data")
    folds = graded_folds(data, settings)
    wanted["data"] = {"source": _GENERATED if data is None else str(data), "folds": len(folds), "sha256": digest(folds)}
    if stored is not None and stored["data"]["sha256"] != wanted["data"]["sha256"]:
        raise UsageError(
            f"{out} holds a run with other data: {stored['data']['source']}, SHA-256 {stored['data']['sha256'][:12]}…, "
            f"and not {wanted['data']['source']}, {wanted['data']['sha256'][:12]}…. Choose another --out"
        )
    write_json(out / "run.json", (stored or {}) | wanted)
    prepare(folds, out / "data")
    return fold_facts(out / "data")


def _stored(out: Path) -> dict[str, Any] | None:
    if not out.exists() or not any(out.iterdir()):
        return None
    if not (out / "run.json").exists():
        raise UsageError(f"{out} holds something else than a run: choose an empty folder with --out")
    stored: dict[str, Any] = json.loads((out / "run.json").read_text())
    if not {"settings", "presets", "data"} <= stored.keys():
        raise UsageError(f"{out} holds a run that did not come from here: choose another folder with --out")
    return stored


def _check_same(wanted: dict[str, Any], stored: dict[str, Any], out: Path) -> None:
    """Refuse to go on with other settings, and say which."""
    now, then = (dict(_flat(json.loads(json.dumps(values)))) for values in (wanted, stored))
    differences = [
        f"{name} is {then.get(name)} there and {now.get(name)} now"
        for name in dict.fromkeys([*now, *then])
        if name.partition(".")[0] in wanted and now.get(name) != then.get(name)
    ]
    if differences:
        raise UsageError(f"{out} holds a run with other settings: {'; '.join(differences)}. Choose another --out")


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, value in values.items():
        inner = isinstance(value, dict)
        found += _flat(value, f"{prefix}{name}.") if inner else [(f"{prefix}{name}", value)]
    return found


# What a run leaves


def write_results(out: Path, wanted: Sequence[str], results: Results) -> Said:
    """Write the JSON files of what is asked for, and again of what was asked for before; return their rows."""
    tables = [name for name in TABLES if name in wanted or (out / f"{name}.json").exists()]
    rows = {name: table_rows(name, results) for name in tables}
    for name, of_table in rows.items():
        write_json(out / f"{name}.json", of_table)
    if "figure2" in wanted and (drawn := pictures.attention(out)) is not None:
        write_json(out / "figure2.json", drawn)
    if "figure3" in wanted:
        write_json(out / "figure3.json", pictures.click_differences(results))
    timing = []
    if "timing" in wanted or (out / "timing.json").exists():
        timing = [*json.loads((out / _DECODERS).read_text()), *convergence_times(results)]
        write_json(out / "timing.json", timing)
    for name, found in (("curves", pictures.curves(results)), ("rank-changes", pictures.rank_changes(results))):
        if found if isinstance(found, list) else found["rows"]:
            write_json(out / f"{name}.json", found)
    return Said(rows, timing)
