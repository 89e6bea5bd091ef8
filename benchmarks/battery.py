"""The battery of users in both worlds: what preset `default` and the best pointwise ranker gain with each.

`python -m benchmarks.battery [--lists 10000] [--items 40] [--seeds 3] [--tests 2000] [--world W] [--user U]`: lists of
a world in the base order of ridge regressions on the grades (out of fold for the training lists), with the clicks of
one user. A tenth as many lists validate; the test lists are read once. A cell is a user in a world: re-shown clicks@10
and NDCG@10 on the log, of the base order, of MART and LambdaMART on the clicks with the base position, of preset
`default` (the mean over seeds), and of the ceilings. `gain` is the difference of `default` to the base order, with the
95% bootstrap interval over seeds and lists, in percent of the base order.

Cells are written to benchmarks/battery.json as soon as they are done; one that is there, with the same sizes, is not
run again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.quality import make_split
from benchmarks.tables import print_table
from seq2slate import LoggedCeiling, Reranker, ShownCeiling, click_model, evaluate
from seq2slate.atomic import atomic_path
from seq2slate.baselines.trees import LambdaMart, Mart
from seq2slate.data.ranker import Ranker
from seq2slate.evaluation.evaluate import BASE, Evaluation
from seq2slate.evaluation.statistics import share_of_gap, two_way_interval
from seq2slate.simulation.battery import BATTERY
from seq2slate.simulation.synthetic import WORLDS

RESULTS = Path(__file__).with_name("battery.json")
SHOWN, LOGGED = "re-shown clicks@10", "NDCG@10"
CEILINGS = {SHOWN: "most clicks", LOGGED: "expected clicks"}
"""The ceiling of each view."""
POINTWISE = ("MART", "LambdaMART")
Cell = dict[str, Any]


def run_cell(world: str, user_name: str, sizes: argparse.Namespace) -> Cell:
    """Train and evaluate in one cell."""
    began, user = time.monotonic(), click_model(BATTERY[user_name])
    split = make_split(
        user, train=sizes.lists, valid=max(200, sizes.lists // 10), test=sizes.tests, items=sizes.items, world=world
    )
    rankers: dict[str, Ranker] = {
        "MART": Mart().fit(split.train, split.valid),
        "LambdaMART": LambdaMart().fit(split.train, split.valid),
    }
    models = [Reranker(seed=seed).fit(split.train, split.valid, quiet=True) for seed in range(sizes.seeds)]
    rankers |= {f"default, seed {seed}": model for seed, model in enumerate(models)}
    rankers |= {CEILINGS[LOGGED]: LoggedCeiling(user), CEILINGS[SHOWN]: ShownCeiling(user)}
    result = evaluate(rankers, split.test, user=user, measures=[LOGGED])
    cell: Cell = {"world": world, "user": user_name, "sizes": vars(sizes) | {"world": world, "user": user_name}}
    for measure in (SHOWN, LOGGED):
        cell[measure] = _summary(result, measure, sizes.seeds)
    return cell | {
        "strengths": [model.history_.strength for model in models],
        "seconds": time.monotonic() - began,
    }


def _summary(result: Evaluation, measure: str, seeds: int) -> dict[str, float | None]:
    """Return the means of a cell by one measure, the gain of `default` with its interval, and the gap it closes."""
    base = result.per_list[BASE, measure]
    gains = np.stack([result.per_list[f"default, seed {seed}", measure] - base for seed in range(seeds)])
    mean = float(np.nanmean(base))
    low, high = two_way_interval(gains).tolist()
    gain = float(np.nanmean(gains))
    ceiling = result.row(CEILINGS[measure], measure).mean
    return {
        BASE: mean,
        **{name: result.row(name, measure).mean for name in POINTWISE},
        "default": mean + gain,
        "ceiling": ceiling,
        "gain, %": 100 * gain / mean,
        "low, %": 100 * low / mean,
        "high, %": 100 * high / mean,
        "gap closed": share_of_gap(mean + gain, mean, ceiling),
    }


def main() -> None:
    """Run the cells that are missing, and print all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.battery")
    for name, default in (("lists", 10_000), ("items", 40), ("seeds", 3), ("tests", 2_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--world", choices=WORLDS, action="append")
    parser.add_argument("--user", choices=BATTERY, action="append")
    sizes = parser.parse_args()
    worlds, users = sizes.world or list(WORLDS), sizes.user or list(BATTERY)
    torch.set_num_threads(1)
    cells: list[Cell] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for world in worlds:
        for user in users:
            wanted = vars(sizes) | {"world": world, "user": user}
            if not any(cell["sizes"] == wanted for cell in cells):
                cells = [one for one in cells if (one["world"], one["user"]) != (world, user)]
                cells.append(run_cell(world, user, sizes))
                with atomic_path(RESULTS) as partial:
                    partial.write_text(json.dumps(cells, indent=1) + "\n")
            print_cells([cell for cell in cells if cell["world"] == world], world)


def print_cells(cells: list[Cell], world: str) -> None:
    """Print a table for each view."""
    for measure in (SHOWN, LOGGED):
        print_table(f"{world}: {measure}", [{"user": cell["user"], **cell[measure]} for cell in cells])


if __name__ == "__main__":
    main()
