"""How the network compares with the base order, and with LambdaMART trained on the same clicks.

`python -m benchmarks.quality [diverse|similar] [--seeds N]`: 10,000 generated training lists of 25 items on average,
ordered by cross-fitted ridge regressions of the grades and clicked on by a simulated user; 2,000 lists choose the
epoch, and 10,000 others, read once, report. Written to benchmarks/quality-USER.json. With `--ablation` the preset is
taken apart instead, on the validation lists alone.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from seq2slate import (
    PRESETS,
    Choices,
    LoggedCeiling,
    RidgeRanker,
    SlateModel,
    click_model,
    evaluate,
    fit,
    make_synthetic_lists,
    order_out_of_fold,
    reorder_lists,
    simulate_clicks,
    train_model,
)
from seq2slate.baselines.trees import LambdaMart
from seq2slate.data.lists import Split
from seq2slate.data.ranker import Ranker
from seq2slate.evaluation.evaluate import Evaluation
from seq2slate.simulation.click_models import ClickModel
from seq2slate.training.config import Preset


def make_split(
    user: ClickModel, *, train: int = 10_000, valid: int = 2_000, test: int = 10_000, items: float = 25
) -> Split:
    """Return clicked lists: no training list was ordered by a ranker that saw it."""
    grades = [make_synthetic_lists(count, items=items, seed=seed) for seed, count in enumerate((train, valid, test))]
    base = RidgeRanker().fit(grades[0])
    orders = [
        order_out_of_fold(RidgeRanker.fit, grades[0]),
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
            model, history = train_model(split.train, split.valid, Choices(decoder=decoder, seed=seed), quiet=True)
            rankers[f"{decoder}, seed {seed}"] = model
            seconds = time.monotonic() - began
            print(f"{decoder}, seed {seed}: {history.best:.4f} in epoch {history.best_epoch + 1}, {seconds:.0f} s")
    rankers["ceiling"] = LoggedCeiling(user)
    result = evaluate(rankers, split.test, user=user, ceiling=["ceiling"])
    print(result)
    for decoder in ("one-step", "sequential"):
        print_spread(result, decoder, arguments.seeds)
    Path(__file__).with_name(f"quality-{arguments.user}.json").write_text(result.to_json() + "\n")


def print_ablation(split: Split, seeds: int) -> None:
    """Print the best validation NDCG@10 of the default preset, and of what is left when parts of it are taken away."""
    default = PRESETS["default"]
    greedy = replace(default.training.objective, policy="greedy")
    unlikely = replace(default.training, objective=replace(default.training.objective, click_likelihood_weight=0.0))
    plain = replace(default.network, resemblance=False)
    variants = {
        "default": default,
        "greedy policy": replace(default, training=replace(default.training, objective=greedy)),
        "one-step decoder": replace(default, network=replace(default.network, decoder="one-step")),
        "without the likelihood of the clicks": replace(default, training=unlikely),
        "without resemblance": replace(default, network=plain, training=unlikely),
        "without resemblance and prior": Preset(replace(plain, base_prior=False), unlikely),
    }
    base = evaluate({}, split.valid).row("base", "NDCG@10").mean
    print(f"base order: {base:.4f}")
    for name, preset in variants.items():
        values = []
        for seed in range(seeds):
            model = SlateModel.create(split.train, preset.network, seed=seed)
            values.append(fit(model, split.train, split.valid, replace(preset.training, seed=seed), quiet=True).best)
        print(f"{name}: {', '.join(f'{value:.4f}' for value in values)}", flush=True)


def print_spread(result: Evaluation, decoder: str, seeds: int) -> None:
    """Print the mean over seeds, and how far seeds differ."""
    values = [result.row(f"{decoder}, seed {seed}", "NDCG@10").mean for seed in range(seeds)]
    print(
        f"{decoder}: NDCG@10 {np.mean(values):.4f} over {seeds} seeds, standard deviation {np.std(values, ddof=1):.4f}"
    )


if __name__ == "__main__":
    main()
