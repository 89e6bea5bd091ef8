"""What each option of preset `paper-tuned` gives: variants of it on the validation lists.

`python -m benchmarks.paper_tuned [--lists 4000] [--valid 1000]`: lists of the world `web30k`, 110 items on average, in
the base order of ridge regressions on the grades (out of fold for the training lists), with diverse-clicks. The gains
are those over the base order in percent: of NDCG@10 on the logged clicks, at the best epoch, and of re-shown clicks@10.
The lists that choose the epoch are those of the table, so the figures are a little optimistic, for all rows alike.

Rows are written to benchmarks/paper_tuned.json as soon as they are done; one that is there, with the same sizes and
options, is not run again. `--only NAME` runs some of them.

`--test 2000` trains the preset with both decoders, and MART, and reads so many test lists, once: means with intervals,
and the paired differences of the preset to the others.
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
from seq2slate import Reranker, click_model, evaluate
from seq2slate.atomic import atomic_path
from seq2slate.baselines.trees import Mart
from seq2slate.config import PRESETS
from seq2slate.data.lists import ItemLists, Split
from seq2slate.data.ranker import BaseOrder, Ranker
from seq2slate.evaluation.statistics import bootstrap_interval
from seq2slate.metrics import Measure, measure_ranker
from seq2slate.simulation.clicks import shown_clicks

RESULTS = Path(__file__).with_name("paper_tuned.json")
MEASURE, SLOTS = Measure("NDCG", 10), 10
USER = click_model("diverse")
Row = dict[str, Any]

_POLICY_GRADIENT = {"policy": "sampling", "credit": "reward-to-go"}
VARIANTS: dict[str, dict[str, Any]] = {
    "MART on the clicks": {"ranker": "mart"},
    "preset paper": {"preset": "paper"},
    "paper-tuned": {},
    "one-step decoder": {"decoder": "one-step"},
    "without the group lasso": {"group_lasso": 0.0},
    "twice the group lasso": {"group_lasso": 0.28},
    "without averaged weights": {"averaging": 0.0},
    "without the memory span": {"memory_span": None},
    "the base position as a column": {"position_input": True},
    "whole lists": {"max_items": None},
    "learning rate 1e-3": {"learning_rate": 1e-3},
    "learning rate 3e-3": {"learning_rate": 3e-3},
    "dropout 0": {"dropout": 0.0},
    "dropout 0.3": {"dropout": 0.3},
    "batches of 128": {"batch_size": 128},
    "128 units": {"hidden": 128},
    "bidirectional encoder": {"bidirectional": True},
    "uniform step weights": {"step_weights": "uniform"},
    "sampling, both terms, return": {"policy": "sampling"},
    "sampling, both terms, reward-to-go": _POLICY_GRADIENT,
    "sampling, normalised policy gradient x 0.05": _POLICY_GRADIENT
    | {"policy_gradient_weight": 0.05, "normalise_advantages": True},
    "sampling without the policy gradient": {"policy": "sampling", "policy_gradient_weight": 0.0},
}
"""The options of each row, in place of those of the preset."""


def rerank_all(ranker: Ranker, lists: ItemLists) -> Any:
    """Return slates (Q, 10) of all lists."""
    slates = np.full((len(lists), SLOTS), -1)
    for batch in lists.batches(256):
        placed = ranker.rank(batch, SLOTS)
        slates[batch.index, : placed.shape[1]] = placed
    return slates


def views(ranker: Ranker, lists: ItemLists) -> tuple[float, float]:
    """Return NDCG@10 on the logged clicks, and re-shown clicks@10."""
    logged = measure_ranker(ranker, lists, [MEASURE], k=SLOTS)[MEASURE]
    shown = shown_clicks(USER, lists, rerank_all(ranker, lists), repeats=1, seed=0)
    return float(np.nanmean(logged)), float(shown.sum(1).mean())


def run_variant(options: dict[str, Any], split: Split, seed: int) -> Row:
    """Train a variant, and return its gains over the base order on the validation lists."""
    began = time.monotonic()
    ranker = fitted(options, split, seed)
    seconds = time.monotonic() - began
    pairs = zip(views(ranker, split.valid), views(BaseOrder(), split.valid), strict=True)
    logged, shown = (100 * (value / base - 1) for value, base in pairs)
    row: Row = {"NDCG@10, %": logged, "re-shown clicks@10, %": shown, "best epoch": "", "seconds": seconds}
    if isinstance(ranker, Reranker):
        row["best epoch"] = f"{ranker.history_.best_epoch + 1} of {len(ranker.history_.epochs)}"
    return row


def fitted(options: dict[str, Any], split: Split, seed: int = 0) -> Mart | Reranker:
    """Return the ranker of a row."""
    if "ranker" in options:
        return Mart().fit(split.train, split.valid)
    return Reranker(**({"preset": "paper-tuned"} | options), seed=seed).fit(split.train, split.valid, quiet=True)


def run_rows(sizes: argparse.Namespace) -> None:
    """Run the rows that are missing, and print all."""
    rows: list[Row] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    split = make_split(USER, train=sizes.lists, valid=sizes.valid, test=1, items=110, world="web30k")
    for name, options in VARIANTS.items():
        preset = {} if "ranker" in options else dict(PRESETS[options.get("preset", "paper-tuned")])
        wanted = {"options": preset | options, "lists": sizes.lists, "valid": sizes.valid, "seed": sizes.seed}
        if any(row["run"] == wanted for row in rows) or (sizes.only and name not in sizes.only):
            continue
        rows = [row for row in rows if row["variant"] != name]
        rows.append({"variant": name, **run_variant(options, split, sizes.seed), "run": wanted})
        with atomic_path(RESULTS) as partial:
            partial.write_text(json.dumps(rows, indent=1) + "\n")
        print_table(
            f"gain over the base order, {sizes.lists:,} training and {sizes.valid:,} validation lists",
            [{key: row[key] for key in row if key != "run"} for row in rows],
        )


def run_test(sizes: argparse.Namespace) -> None:
    """Train with both decoders, read the test lists once, and print means with intervals."""
    split = make_split(USER, train=sizes.lists, valid=sizes.valid, test=sizes.test, items=110, world="web30k")
    rankers: dict[str, Ranker] = {}
    for name in ("MART on the clicks", "one-step decoder", "paper-tuned"):
        began = time.monotonic()
        rankers[name] = ranker = fitted(VARIANTS[name], split, sizes.seed)
        told = f", {ranker.history_}" if isinstance(ranker, Reranker) else ""
        print(f"{name}: {time.monotonic() - began:.0f} s{told}", flush=True)
    result = evaluate(rankers, split.test, user=USER, measures=["MAP", "NDCG@5", "NDCG@10"])
    print(result)
    for other in ("base", "MART on the clicks", "one-step decoder"):
        for measure in ("NDCG@10", "re-shown clicks@10"):
            difference = result.per_list["paper-tuned", measure] - result.per_list[other, measure]
            low, high = bootstrap_interval(difference)
            print(f"paper-tuned less {other}, {measure}: {np.nanmean(difference):+.4f} ({low:+.4f} to {high:+.4f})")


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_tuned")
    for name, default in (("lists", 4000), ("valid", 1000), ("seed", 0), ("test", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=VARIANTS, action="append")
    sizes = parser.parse_args()
    torch.set_num_threads(1)
    run_test(sizes) if sizes.test else run_rows(sizes)


if __name__ == "__main__":
    main()
