"""`seq2slate reproduce`: prepare the data, do the cells that are missing, and write tables, figures and the report.

The folder of a run can be given again, for another table or after an interruption: what is there is not done again. It
holds one set of settings and one data set; others are refused.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from seq2slate import __version__
from seq2slate.atomic import atomic_path
from seq2slate.config import PRESETS
from seq2slate.errors import UsageError
from seq2slate.evaluation.comparison import Comparison
from seq2slate.evaluation.report import flat_items, write_report
from seq2slate.reproduce import figures
from seq2slate.reproduce.data import digest, fold_facts, graded_folds, load_fold, prepare
from seq2slate.reproduce.plan import RECIPES, TABLES, TARGETS, USERS, Cell, RunSettings, cells_of
from seq2slate.reproduce.results import Results, write_json
from seq2slate.reproduce.tables import PrintedRows, print_and_write, printed_parts, table_rows
from seq2slate.reproduce.workers import CellBar, Failure, do_cells

_DECODERS = "cells/decoders.json"
_GENERATED = "generated"


def reproduce(
    target: str, out: Path, settings: RunSettings, *, data: str | None = None, jobs: int = 1, console: Console
) -> dict[Cell, Failure]:
    """Make a table, a figure, the times, or all of them.

    Args:
        target: One of `TARGETS`.
        out: The folder of the run; one that was interrupted is continued.
        settings: The sizes of the run.
        data: Graded lists: a file, a glob, or a folder with train, valid and test; generated if None.
        jobs: Processes at a time.
        console: Where the tables are printed.

    Returns:
        The cells that failed, and why.

    Raises:
        UsageError: The folder holds something else, or a run with other settings or data.
        DataError: The lists have no labels, no features, or too few clicks.
    """
    if target not in TARGETS:
        raise UsageError(f"there is nothing called {target!r} to reproduce; choose one of {', '.join(TARGETS)}")
    began = time.monotonic()
    facts = prepared(out, settings, data)
    ceilings = load_fold(out / "data", 0, figures.FIGURE_USER).test.relevance_probability is not None
    cells = cells_of(target, settings, folds=len(facts), ceilings=ceilings)
    missing = [cell for cell in cells if not (out / "cells" / cell.file).exists()]
    with CellBar(len(cells), done=len(cells) - len(missing)) as bar:
        do_cells(missing, out, settings, jobs=jobs, bar=bar)
    _write_failures(out / "failures.txt", bar.failures)
    wanted = TARGETS[:-1] if target == "all" else (target,)
    if "timing" in wanted and not (out / _DECODERS).exists():
        write_json(out / _DECODERS, figures.decoder_times(out, settings))
    everything = cells_of("all", settings, folds=len(facts), ceilings=ceilings)
    results = Results.load(everything, out / "cells", settings, len(facts))
    written = write_results(out, wanted, results)
    run = json.loads((out / "run.json").read_text())
    run |= origin(results, facts, written, seconds=time.monotonic() - began)
    write_json(out / "run.json", run)
    print_and_write(console, printed_parts(run, written, results, bar.failures), out / "tables.txt")
    console.print(f"report: {write_report(out)}", highlight=False, soft_wrap=True)
    return bar.failures


def _write_failures(path: Path, failures: Mapping[Cell, Failure]) -> None:
    """Write where in the code each cell failed; nothing, and no old file, if none did."""
    path.unlink(missing_ok=True)
    if failures:
        with atomic_path(path) as partial:
            partial.write_text("\n".join(f"{cell}\n{failure.details}" for cell, failure in failures.items()))


# The folder


def prepared(out: Path, settings: RunSettings, data: str | None) -> list[dict[str, Any]]:
    """Make the clicked lists, unless they are there; return the facts of each fold.

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
    now, then = (dict(flat_items(json.loads(json.dumps(values)), ".")) for values in (wanted, stored))
    differences = [
        f"{name} is {then.get(name)} there and {now.get(name)} now"
        for name in dict.fromkeys([*now, *then])
        if name.partition(".")[0] in wanted and now.get(name) != then.get(name)
    ]
    if differences:
        raise UsageError(f"{out} holds a run with other settings: {'; '.join(differences)}. Choose another --out")


# What a run leaves


def write_results(out: Path, wanted: Sequence[str], results: Results) -> PrintedRows:
    """Write the JSON files of what is asked for, and again of what was asked for before; return their rows."""
    tables = [name for name in TABLES if name in wanted or (out / f"{name}.json").exists()]
    rows = {name: table_rows(name, results) for name in tables}
    for name, of_table in rows.items():
        write_json(out / f"{name}.json", of_table)
    if "figure2" in wanted and (drawn := figures.attention(out)) is not None:
        write_json(out / "figure2.json", drawn)
    if "figure3" in wanted:
        write_json(out / "figure3.json", figures.click_differences(results))
    timing = []
    if "timing" in wanted or (out / "timing.json").exists():
        timing = [*json.loads((out / _DECODERS).read_text()), *figures.convergence_times(results)]
        write_json(out / "timing.json", timing)
    for name, found in (("curves", figures.curves(results)), ("rank-changes", figures.rank_changes(results))):
        if found if isinstance(found, list) else found["rows"]:
            write_json(out / f"{name}.json", found)
    return PrintedRows(rows, timing)


# How the run was made, for run.json


def origin(
    results: Results, facts: Sequence[Mapping[str, Any]], written: PrintedRows, *, seconds: float
) -> dict[str, Any]:
    """Return the entries of run.json that say how the run was made."""
    return {
        "title": "The experiments of the paper",
        "command": " ".join(["seq2slate", *sys.argv[1:]]),
        "versions": {"seq2slate": __version__, "python": platform.python_version(), **dict(_versions())},
        "seeds": list(range(results.settings.seeds)),
        "notes": list(_notes(facts, written)),
        "seconds": {"this run": round(seconds, 1), **seconds_of(results)},
    }


def seconds_of(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """Return user → recipe → what took how long, as a mean over folds and seeds."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for user in USERS:
        for recipe in RECIPES:
            of_cells = [
                result.seconds for cell, result in results.cells.items() if (cell.user, cell.recipe) == (user, recipe)
            ]
            if of_cells:
                means = {what: float(np.mean([one[what] for one in of_cells])) for what in of_cells[0]}
                found.setdefault(user, {})[recipe] = {what: round(mean, 3) for what, mean in means.items()}
    return found


def _versions() -> Iterator[tuple[str, str]]:
    for name in ("torch", "numpy", "lightgbm"):
        try:
            yield name, version(name)
        except PackageNotFoundError:  # a baseline that is not installed was not used
            continue


def _notes(facts: Sequence[Mapping[str, Any]], written: PrintedRows) -> Iterator[str]:
    sizes = {part: [fold["lists"][part] for fold in facts] for part in ("train", "valid", "test")}

    def mean(name: str) -> float:
        return float(np.average([fold[name] for fold in facts], weights=sizes["test"]))

    yield _sizes_note(sizes)
    yield (
        f"Test lists have {mean('items a list'):.1f} items on average; {mean('without relevant items'):.1%} of them "
        "have no relevant item."
    )
    tried = ", ".join(
        f"{name} {np.mean([fold['candidates'][name] for fold in facts]):.3f}" for name in facts[0]["candidates"]
    )
    yield (
        f"Base ranker: {' or '.join(dict.fromkeys(fold['base ranker'] for fold in facts))}, the best by NDCG@10 on the "
        f"graded validation lists ({tried}). It learns from grades, all others from clicks."
    )
    yield (
        f"The base order's NDCG@10 on the grades of the test lists: {mean('base order NDCG@10'):.3f} with linear gain, "
        f"{mean('base order NDCG-exp@10'):.3f} with exponential gain."
    )
    yield (
        f"Items are relevant from grade {facts[0]['relevant from']:g} on. Similar-clicks have an eta of 0.3, the "
        "paper's for Web30k, whatever the data (the paper has 0.1 for Yahoo)."
    )
    yield (
        "seq2slate is the preset `default`: the paper's network with a prior on the base position and a pairwise "
        "interaction, which learns what a click changes for the other items, by their distances in the list."
    )
    for name, rows in written.tables.items():
        yield from _ceiling_note(name, Comparison(rows))
    yield figures.RULE


def _sizes_note(sizes: Mapping[str, Sequence[int]]) -> str:
    folds = len(sizes["test"])
    train, valid, test = (sum(sizes[part]) for part in ("train", "valid", "test"))
    if folds == 1:
        return f"{train:,} training, {valid:,} validation and {test:,} test lists."
    return (
        f"Cross-validation by list in {folds} folds: each of {test:,} lists is tested on once, by rankers that were "
        f"not trained on it; about {train // folds:,} lists train and {valid // folds:,} validate each time."
    )


def _ceiling_note(name: str, comparison: Comparison) -> Iterator[str]:
    metric = comparison.main_metric
    ceiling = comparison.ceiling(metric)
    gain = None if ceiling is None else comparison.gain(ceiling.ranker, metric)
    if ceiling is not None and gain is not None:
        yield f"In {name}, the ceiling itself is {gain:+.1%} above the base order by {metric}."
