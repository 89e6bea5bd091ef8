"""The network against the base order and against LambdaMART trained on the same clicks.

`python -m benchmarks.quality [diverse|similar] [--seeds N]`: lists of the world `topics`, 25 items on average, in the
base order of ridge regressions on the grades (out of fold for the training lists), with simulated clicks: 10,000
training lists, 2,000 validation lists for early stopping, and 10,000 test lists, which are read once. Written to
benchmarks/quality-USER.json. `--ablation` prints an ablation of the preset `default` on the validation lists instead.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seq2slate import (
    LoggedCeiling,
    Reranker,
    RidgeRanker,
    click_model,
    evaluate,
    make_synthetic_lists,
    order_out_of_fold,
    reorder_lists,
    simulate_clicks,
)
from seq2slate.baselines.trees import LambdaMart
from seq2slate.data.lists import Split
from seq2slate.data.ranker import Ranker
from seq2slate.evaluation.evaluate import Evaluation
from seq2slate.simulation.click_models import ClickModel


def make_split(
    user: ClickModel,
    *,
    train: int = 10_000,
    valid: int = 2_000,
    test: int = 10_000,
    items: float = 25,
    world: str = "topics",
) -> Split:
    """Return clicked lists; the base order of every list comes from a ridge regression that was not fitted on it."""
    shape = partial(make_synthetic_lists, items=items, world=world)
    grades = [shape(count, seed=seed) for seed, count in enumerate((train, valid, test))]
    base = RidgeRanker().fit(grades[0])
    orders = [
        order_out_of_fold(RidgeRanker(), grades[0]),
        reorder_lists(base, grades[1]),
        reorder_lists(base, grades[2]),
    ]
    return Split(*(simulate_clicks(user, lists, seed=seed) for seed, lists in enumerate(orders)))


def main() -> None:
    """Train, evaluate once, print and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("user", nargs="?", default="diverse")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ablation", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    user = click_model(arguments.user)
    split = make_split(user)
    if arguments.ablation:
        print_ablation(split, arguments.seeds)
        return
    rankers: dict[str, Ranker] = {"LambdaMART": LambdaMart().fit(split.train, split.valid)}
    for decoder in ("one-step", "sequential"):
        for seed in range(arguments.seeds):
            began = time.monotonic()
            model = Reranker(decoder=decoder, seed=seed).fit(split.train, split.valid, quiet=True)
            rankers[f"{decoder}, seed {seed}"], history = model, model.history_
            seconds = time.monotonic() - began
            print(f"{decoder}, seed {seed}: {history.best:.4f} in epoch {history.best_epoch + 1}, {seconds:.0f} s")
    rankers["ceiling"] = LoggedCeiling(user)
    result = evaluate(rankers, split.test, user=user, ceiling=["ceiling"])
    print(result)
    for decoder in ("one-step", "sequential"):
        print_spread(result, decoder, arguments.seeds)
    Path(__file__).with_name(f"quality-{arguments.user}.json").write_text(result.to_json() + "\n")


def print_ablation(split: Split, seeds: int) -> None:
    """Print the best validation NDCG@10 of the preset `default`, and of variants without some of its parts."""
    no_interaction = {"interaction": "none"}
    variants: dict[str, dict[str, Any]] = {
        "default": {},
        "greedy policy": {"policy": "greedy"},
        "one-step decoder": {"decoder": "one-step"},
        "without the interaction": no_interaction,
        "without the interaction and the base prior": {"base_prior": False, **no_interaction},
    }
    base = evaluate({}, split.valid).row("base", "NDCG@10").mean
    print(f"base order: {base:.4f}")
    for name, options in variants.items():
        values = []
        for seed in range(seeds):
            reranker = Reranker(seed=seed, **options).fit(split.train, split.valid, quiet=True)
            values.append(reranker.history_.best)
        print(f"{name}: {', '.join(f'{value:.4f}' for value in values)}", flush=True)


def print_spread(result: Evaluation, decoder: str, seeds: int) -> None:
    """Print the mean and the standard deviation over seeds."""
    values = [result.row(f"{decoder}, seed {seed}", "NDCG@10").mean for seed in range(seeds)]
    print(
        f"{decoder}: NDCG@10 {np.mean(values):.4f} over {seeds} seeds, standard deviation {np.std(values, ddof=1):.4f}"
    )


if __name__ == "__main__":
    main()
