"""`seq2slate reproduce`: the paper's tables and figures. Prepare lists, do the cells that are missing, and write."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from seq2slate.errors import UsageError
from seq2slate.evaluation.comparison import Comparison
from seq2slate.progress import track
from seq2slate.reproduce import figures
from seq2slate.reproduce.data import digest, fold_facts, graded_folds, load_source, prepare
from seq2slate.reproduce.folder import Plan, check_same_data, continue_part, do_missing, finish_part, part_identity
from seq2slate.reproduce.plan import PAPER_TARGETS, TABLES, USERS, Cell, cells_of, fold_name
from seq2slate.reproduce.results import Results, write_json
from seq2slate.reproduce.sizes import RunSettings
from seq2slate.reproduce.tables import PrintedRows, printed_parts, table_rows
from seq2slate.reproduce.workers import Failure

PART = "paper"
_DECODERS = "cells/decoders.json"
_GENERATED = "generated"


def reproduce(
    target: str,
    out: Path,
    settings: RunSettings,
    *,
    data: str | None = None,
    columns: Mapping[str, Any] | None = None,
    jobs: int = 1,
    console: Console,
) -> dict[Cell, Failure]:
    """Make a table, a figure, the times, or all of them.

    Args:
        target: One of `PAPER_TARGETS`, or "all".
        out: The folder of the run; one that was interrupted is continued.
        settings: The sizes of the run.
        data: Graded lists: a file, a glob, or a folder with train, valid and test; generated if None.
        columns: Roles of the columns of `data`, as `read` takes them.
        jobs: Processes at a time.
        console: Where the tables are printed.

    Returns:
        The cells that failed, and why.

    Raises:
        UsageError: The folder holds something else, or a run with other settings or data.
        DataError: The lists have no labels, no features, or too few clicks.
    """
    check_target(target)
    began, folder = time.monotonic(), out / PART
    facts = prepared(out, settings, data, columns)
    n_train, sources = _training_lists(facts), [fold_name(fold) for fold in range(len(facts))]
    ceilings = load_source(folder / "data" / sources[0]).test.relevance_probability is not None
    cells = cells_of(target, settings, sources=sources, n_train=n_train, ceilings=ceilings)
    failures = do_missing(cells, folder, settings, jobs=jobs)
    wanted = PAPER_TARGETS if target == "all" else (target,)
    if "timing" in wanted and not (folder / _DECODERS).exists():
        write_json(folder / _DECODERS, figures.decoder_times(folder, settings))
    everything = cells_of("all", settings, sources=sources, n_train=n_train, ceilings=ceilings)
    results = Results.load(everything, folder / "cells", settings, n_train=n_train, sources=sources)
    written = write_results(out, wanted, results)
    run = json.loads((folder / "run.json").read_text()) | {
        "seeds": list(range(settings.seeds)),
        "notes": list(_notes(facts, written)),
        "seconds": {"this run": round(time.monotonic() - began, 1), **seconds_of(results)},
    }
    finish_part(out, PART, run, printed_parts(run, written, results, failures), console)
    return failures


def check_target(target: str) -> None:
    """Raise a UsageError for what is not of the paper."""
    if target not in (*PAPER_TARGETS, "all"):
        raise UsageError(
            f"there is nothing called {target!r} to reproduce; choose one of {', '.join((*PAPER_TARGETS, 'all'))}"
        )


def planned_cells(
    target: str, settings: RunSettings, data: str | None = None, columns: Mapping[str, Any] | None = None
) -> Plan:
    """Return what a run is going to do; lists are read from files for it, but not generated."""
    check_target(target)
    sizes, ceilings = [settings.train], True
    if data is not None:
        folds = graded_folds(data, settings, columns)
        sizes, ceilings = [len(fold.train) for fold in folds], folds[0].test.relevance_probability is not None
    n_train = {fold_name(number): size for number, size in enumerate(sizes)}
    cells = cells_of(target, settings, sources=list(n_train), n_train=min(sizes), ceilings=ceilings)
    return Plan(PART, cells, n_train)


def prepared(
    out: Path, settings: RunSettings, data: str | None, columns: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Make the clicked lists, unless they are there; return the facts of each fold.

    Generated lists follow from the settings and are not made twice. Lists from files are read each time, to be sure
    that they are still the same.
    """
    folder, stored = out / PART, continue_part(out, PART, settings)
    if stored is not None and data is None and stored["data"]["source"] == _GENERATED:
        facts = fold_facts(folder / "data")
        if len(facts) == 1 and set(USERS) <= facts[0]["users"].keys():
            return facts
    folds = graded_folds(data, settings, columns)
    source = {"source": _GENERATED if data is None else str(data), "folds": len(folds), "sha256": digest(folds)}
    if stored is not None:
        check_same_data(out, stored["data"], source)
    write_json(folder / "run.json", (stored or {}) | part_identity(settings) | {"data": source})
    for number, graded in enumerate(track(folds, "ordering the lists")):
        prepare(graded, folder / "data" / fold_name(number), {user: user for user in USERS})
    return fold_facts(folder / "data")


def _training_lists(facts: Sequence[Mapping[str, Any]]) -> int:
    return min(int(fold["lists"]["train"]) for fold in facts)


# What a run leaves


def write_results(out: Path, wanted: Sequence[str], results: Results) -> PrintedRows:
    """Write the JSON files of what is asked for, and again of what was asked for before; return their rows."""
    tables = [name for name in TABLES if name in wanted or (out / f"{name}.json").exists()]
    rows = {name: table_rows(name, results) for name in tables}
    for name, of_table in rows.items():
        write_json(out / f"{name}.json", of_table)
    if "figure2" in wanted and (drawn := figures.attention(out / PART)) is not None:
        write_json(out / "figure2.json", drawn)
    if "figure3" in wanted:
        write_json(out / "figure3.json", figures.click_differences(results))
    timing = []
    if "timing" in wanted or (out / "timing.json").exists():
        timing = [*json.loads((out / PART / _DECODERS).read_text()), *figures.convergence_times(results)]
        write_json(out / "timing.json", timing)
    for name, found in (("curves", figures.curves(results)), ("rank-changes", figures.rank_changes(results))):
        if found if isinstance(found, list) else found["rows"]:
            write_json(out / f"{name}.json", found)
    return PrintedRows(rows, timing)


# How the run was made, for run.json


def seconds_of(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """Return user → recipe and size → what took how long, as a mean over folds and seeds."""
    of_cells: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for cell, result in results.cells.items():
        size = f", {cell.lists:,} lists" if cell.lists else ""
        of_cells.setdefault((cell.user, f"{cell.recipe}{size}"), []).append(result.seconds)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (user, name), seconds in of_cells.items():
        means = {what: float(np.mean([one[what] for one in seconds])) for what in seconds[0]}
        found.setdefault(user, {})[name] = {what: round(mean, 3) for what, mean in means.items()}
    return found


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
        "Rows of seq2slate name the preset: `paper` is the paper's network and recipe, `paper-tuned` the same network "
        "with a tuned recipe, and `default` adds a prior on the base position and a pairwise interaction, which "
        "learns what a click changes for the other items, by their distances in the list."
    )
    for name, rows in written.tables.items():
        if TABLES[name].claim:
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
