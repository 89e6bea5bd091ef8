"""`seq2slate reproduce battery`: the users of `simulation/battery.py` in every world, by clicks and by NDCG@10.

A cell of the table is a user in a world. The base order is that of ridge regressions on the grades (out of fold for the
training lists). MART and LambdaMART learn from the clicks with the base position as a column; the better of the two on
the test lists is the pointwise ranker to beat, metric by metric. Whatever is not a network is trained once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from seq2slate.baselines.linear import RidgeRanker
from seq2slate.errors import UsageError
from seq2slate.evaluation.battery import Battery, battery_notes, battery_sheets
from seq2slate.evaluation.comparison import BASE_ORDER, MAIN_METRIC, SHOWN_METRIC
from seq2slate.progress import track
from seq2slate.reproduce.data import generated, prepare
from seq2slate.reproduce.folder import Plan, continue_part, do_missing, finish_part, part_identity
from seq2slate.reproduce.plan import CEILINGS, DEFAULT, PAPER_TUNED, RECIPES, Cell, NetworkRecipe, Row, in_order
from seq2slate.reproduce.results import Results, interval_of, paired, write_json
from seq2slate.reproduce.sizes import RunSettings
from seq2slate.reproduce.tables import metric_rows, printed_failures, printed_sheet
from seq2slate.reproduce.workers import Failure
from seq2slate.simulation.battery import BATTERY
from seq2slate.simulation.synthetic import WORLDS

PART = "battery"
POINTWISE = ("MART", "LambdaMART")
_RANKERS = (BASE_ORDER, *POINTWISE, "MMR", PAPER_TUNED, DEFAULT, *CEILINGS)
_METRICS = (SHOWN_METRIC, MAIN_METRIC)


def run_battery(
    out: Path,
    settings: RunSettings,
    *,
    worlds: Sequence[str] = (),
    users: Sequence[str] = (),
    jobs: int = 1,
    console: Console,
) -> dict[Cell, Failure]:
    """Train and measure all rankers with the clicks of each user in each world.

    Args:
        out: The folder of the run; one that was interrupted is continued.
        settings: The sizes of the run.
        worlds: Names of `WORLDS`; all if empty.
        users: Names of `BATTERY`; all if empty.
        jobs: Processes at a time.
        console: Where the tables are printed.

    Returns:
        The cells that failed, and why.
    """
    began, folder = time.monotonic(), out / PART
    stored = continue_part(out, PART, settings)
    plan = planned_battery(settings, worlds, users)
    if stored is None:
        write_json(folder / "run.json", part_identity(settings) | {"data": {"source": "generated"}})
    for world in track(list(worlds or WORLDS), "ordering the lists"):
        wanted = {user: BATTERY[user] for user in users or BATTERY}
        prepare_world(folder / "data" / world, settings, wanted)
    failures = do_missing(plan.cells, folder, settings, jobs=jobs)
    content = battery_content(folder, settings)
    write_json(out / "battery.json", content)
    battery = Battery.of(content)
    run = json.loads((folder / "run.json").read_text()) | {
        "seeds": list(range(settings.seeds)),
        "notes": list(battery_notes(battery)),
        "seconds": {"this run": round(time.monotonic() - began, 1)},
    }
    finish_part(out, PART, run, _printed(battery, failures), console)
    return failures


def planned_battery(settings: RunSettings, worlds: Sequence[str] = (), users: Sequence[str] = ()) -> Plan:
    """Return what a run is going to do, world by world and user by user."""
    for names, known in ((worlds, WORLDS), (users, BATTERY)):
        if unknown := [name for name in names if name not in known]:
            raise UsageError(f"the battery has no {unknown[0]!r}; choose among {', '.join(known)}")
    n_train = dict.fromkeys(worlds or WORLDS, settings.train)
    places = [(world, user) for world in n_train for user in users or BATTERY]
    cells = [[cell for row in _rows(settings) for cell in row.cells(*place)] for place in places]
    return Plan(PART, [cell for of_place in cells for cell in in_order(of_place, settings, settings.train)], n_train)


def prepare_world(source: Path, settings: RunSettings, users: Mapping[str, str]) -> None:
    """Make the lists of a world and the clicks of users on them, unless they are there."""
    facts = source / "facts.json"
    if facts.exists() and users.keys() <= json.loads(facts.read_text())["users"].keys():
        return
    prepare(generated(settings, source.name), source, users, {"ridge regression": RidgeRanker})


def _rows(settings: RunSettings) -> list[Row]:
    return [Row(name, 0, settings.seeds if isinstance(RECIPES[name], NetworkRecipe) else 1) for name in _RANKERS]


def battery_content(folder: Path, settings: RunSettings) -> dict[str, Any]:
    """Return the rows and differences of all cells that are done, by world and user."""
    rows, differences = [], []
    for world in WORLDS:
        results = Results.load(
            planned_battery(settings, [world]).cells,
            folder / "cells",
            settings,
            n_train=settings.train,
            sources=[world],
        )
        for user in BATTERY:
            place = {"world": world, "user": user}
            found = metric_rows(results, user, _rows(settings), _METRICS, against=BASE_ORDER)
            rows += [{**place, **row} for row in found]
            differences += [{**place, **row} for row in _differences(results, user, settings)]
    return {"mine": DEFAULT, "pointwise": list(POINTWISE), "rows": rows, "differences": differences}


def _differences(results: Results, user: str, settings: RunSettings) -> Iterator[dict[str, Any]]:
    """Yield the difference of `default` to every other ranker, list by list."""
    by_name = {row.recipe: row for row in _rows(settings) if results.of(user, row)}
    if DEFAULT not in by_name:
        return
    for metric in _METRICS:
        mine = results.values(user, by_name[DEFAULT], metric)
        for name, row in by_name.items():
            if name != DEFAULT:
                difference = interval_of(paired(mine, results.values(user, row, metric)))
                yield {"metric": metric, "ranker": DEFAULT, "against": name, **difference}


def _printed(battery: Battery, failures: Mapping[Cell, Failure]) -> Iterator[RenderableType]:
    for sheet in battery_sheets(battery):
        yield from printed_sheet(sheet)
    yield Text()
    yield from map(Text, battery_notes(battery))
    yield from printed_failures(failures)
