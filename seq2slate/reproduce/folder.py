"""The folder of a run: a part for each experiment, and the tables, figures and report of all of them.

A part (`paper`, `battery` or `logs`) has its settings and how it was made in `run.json`, lists in `data`, results in
`cells` and its text in `tables.txt`. It can be continued, for another table or after an interruption: what is there is
not done again. It holds one set of settings and one set of data; others are refused.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, RenderableType

from seq2slate import __version__
from seq2slate.atomic import atomic_path
from seq2slate.config import PRESETS
from seq2slate.errors import UsageError
from seq2slate.evaluation.report import flat_items, write_report
from seq2slate.reproduce.plan import RECIPES, Cell, ReferenceRecipe
from seq2slate.reproduce.results import write_json
from seq2slate.reproduce.sizes import RunSettings
from seq2slate.reproduce.workers import CellBar, Failure, do_cells

PARTS = ("paper", "battery", "logs")
_WIDTH = 200


def continue_part(out: Path, part: str, settings: RunSettings) -> dict[str, Any] | None:
    """Return what `run.json` of a part says, None for a new one, after checking that it has the same settings.

    Raises:
        UsageError: The folder holds something else, or a part with other settings.
    """
    stored = _stored(out, part)
    if stored is not None:
        _check_same(part_identity(settings), stored, out / part)
    return stored


def part_identity(settings: RunSettings) -> dict[str, Any]:
    """Return the entries of `run.json` that have to stay the same."""
    return {"settings": asdict(settings), "presets": {name: dict(options) for name, options in PRESETS.items()}}


def check_same_data(out: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to go on with other lists than those that a part began with."""
    if stored["sha256"] != wanted["sha256"]:
        raise UsageError(
            f"{out} holds a run with other data: {stored['source']}, SHA-256 {stored['sha256'][:12]}…, and not "
            f"{wanted['source']}, {wanted['sha256'][:12]}…. Choose another --out"
        )


def _stored(out: Path, part: str) -> dict[str, Any] | None:
    if not out.exists() or not any(out.iterdir()):
        return None
    path = out / part / "run.json"
    if not path.exists():
        if not any((out / other / "run.json").exists() for other in PARTS):
            raise UsageError(f"{out} holds something else than a run: choose an empty folder with --out")
        return None
    stored: dict[str, Any] = json.loads(path.read_text())
    if not {"settings", "presets", "data"} <= stored.keys():
        raise UsageError(f"{out} holds a run that did not come from here: choose another folder with --out")
    return stored


def _check_same(wanted: dict[str, Any], stored: dict[str, Any], folder: Path) -> None:
    """Refuse to go on with other settings, and say which."""
    now, then = (dict(flat_items(json.loads(json.dumps(values)), ".")) for values in (wanted, stored))
    differences = [
        f"{name} is {then.get(name)} there and {now.get(name)} now"
        for name in dict.fromkeys([*now, *then])
        if name.partition(".")[0] in wanted and now.get(name) != then.get(name)
    ]
    if differences:
        raise UsageError(f"{folder} holds a run with other settings: {'; '.join(differences)}. Choose another --out")


def do_missing(cells: Sequence[Cell], folder: Path, settings: RunSettings, *, jobs: int) -> dict[Cell, Failure]:
    """Do the cells of a part that have no result yet; return those that failed, and why."""
    missing = [cell for cell in cells if not (folder / "cells" / cell.file).exists()]
    with CellBar(len(cells), done=len(cells) - len(missing)) as bar:
        do_cells(missing, folder, settings, jobs=jobs, bar=bar)
    path = folder / "failures.txt"
    path.unlink(missing_ok=True)
    if bar.failures:
        with atomic_path(path) as partial:
            partial.write_text("\n".join(f"{cell}\n{failure.details}" for cell, failure in bar.failures.items()))
    return bar.failures


class Plan(NamedTuple):
    """What a part is going to do."""

    part: str
    cells: Sequence[Cell]
    """In the order of work."""
    n_train: Mapping[str, int]
    """The training lists that each source has."""


def plan_text(plan: Plan, out: Path) -> str:
    """Return the rows of a plan in the order of work, with their sizes and the number of cells that are done."""
    rows: dict[tuple[str, int], list[Cell]] = {}
    for cell in plan.cells:
        rows.setdefault((cell.recipe, cell.lists or plan.n_train[cell.source]), []).append(cell)
    lines = [f"{len(plan.cells)} cells, in this order:"]
    for (recipe, lists), cells in rows.items():
        size = "not trained" if isinstance(RECIPES[recipe], ReferenceRecipe) else f"{lists:,} training lists"
        sources, users = (
            ", ".join(dict.fromkeys(names)) for names in zip(*((c.source, c.user) for c in cells), strict=True)
        )
        done = sum((out / plan.part / "cells" / cell.file).exists() for cell in cells)
        lines.append(f"  {recipe}: {size}; {sources}; {users}; {len(cells)} cells, {done} done")
    return "\n".join(lines)


# What a run leaves


def finish_part(
    out: Path, part: str, run: Mapping[str, Any], printed: Iterable[RenderableType], console: Console
) -> None:
    """Write how a part was made and what is printed of it, then text and report of the whole run."""
    command = shlex.join(["seq2slate", *sys.argv[1:]])
    write_json(out / part / "run.json", {**run, "command": command, "versions": _versions()})
    kept = list(printed)
    if not console.is_terminal:
        console.width = max(_WIDTH, console.width)
    with atomic_path(out / part / "tables.txt") as partial, partial.open("w", encoding="utf-8") as file:
        plain = Console(file=file, width=_WIDTH, color_system=None)
        for one in kept:
            plain.print(one)
    for one in kept:
        console.print(one)
    write_json(out / "run.json", _whole_run(out))
    texts = [path.read_text(encoding="utf-8") for part in PARTS if (path := out / part / "tables.txt").exists()]
    with atomic_path(out / "tables.txt") as partial:
        partial.write_text("\n".join(texts), encoding="utf-8")
    console.print(f"report: {write_report(out)}", highlight=False, soft_wrap=True)


def _whole_run(out: Path) -> dict[str, Any]:
    """Return how all parts were made, for the report."""
    paths = {part: path for part in PARTS if (path := out / part / "run.json").exists()}
    runs = {part: json.loads(path.read_text()) for part, path in paths.items()}
    complete = {part: run for part, run in runs.items() if "command" in run}
    facts = {name: {part: run.get(name) for part, run in complete.items()} for name in ("seeds", "data", "seconds")}
    return {
        "title": "The experiments of the paper" if list(complete) == ["paper"] else "Experiments with seq2slate",
        "command": "\n".join(run["command"] for run in complete.values()),
        "versions": _versions(),
        "notes": [note for run in complete.values() for note in run["notes"]],
        **facts,
    }


def _versions() -> dict[str, str]:
    return {"seq2slate": __version__, "python": platform.python_version(), **dict(_package_versions())}


def _package_versions() -> Iterator[tuple[str, str]]:
    for name in ("torch", "numpy", "lightgbm"):
        try:
            yield name, version(name)
        except PackageNotFoundError:  # a baseline that is not installed was not used
            continue
