"""The overhead of our LightGBM and PyTorch baselines over calling the library directly, with equal lists and rounds.

Directly means: one call of `lightgbm.train` on arrays in memory, or a plain PyTorch training loop for lists of equal
length, without input checks, progress, saving or early stopping (NDCG@10 of the validation lists is computed every
epoch all the same). Run with `python -m benchmarks baselines`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import lightgbm
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.tables import Rows
from benchmarks.timing import best_seconds
from seq2slate.baselines.neural import ListNet, RankNet
from seq2slate.baselines.trees import LambdaMart, Mart, RandomForest
from seq2slate.data.lists import ItemLists
from seq2slate.simulation.click_models import click_model, simulate_clicks
from seq2slate.simulation.synthetic import make_synthetic_lists

REPEATS = 3
TREES, EPOCHS = 100, 3
N_ITEMS = 25
FOREST = {
    "boosting": "rf", "num_leaves": 100, "min_data_in_leaf": 20,
    "bagging_fraction": 0.632, "bagging_freq": 1, "feature_fraction_bynode": 0.3,
}  # fmt: skip
BAR = 1.1
"""The longest that a baseline may take, as a multiple of the library's time."""


def run(n_lists: int = 4000) -> Rows:
    """Return the best seconds of each baseline and of the library."""
    torch.set_num_threads(1)
    train, valid = (_lists(size, seed) for seed, size in enumerate((n_lists, n_lists // 8)))
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "LambdaMART": (
            lambda: LambdaMart(trees=TREES).fit(train, valid),
            lambda: _lightgbm(train, valid, "lambdarank"),
        ),
        "MART": (lambda: Mart(trees=TREES).fit(train, valid), lambda: _lightgbm(train, valid, "regression")),
        "Random Forests": (
            lambda: RandomForest(trees=TREES).fit(train, valid),
            lambda: _lightgbm(train, valid, "regression", patience=TREES, **FOREST),
        ),
        "RankNet": (lambda: RankNet(epochs=EPOCHS).fit(train, valid), lambda: _loop(train, valid, _ranknet_loss)),
        "ListNet": (lambda: ListNet(epochs=EPOCHS).fit(train, valid), lambda: _loop(train, valid, _listnet_loss)),
    }
    rows: Rows = []
    for name, (ours, library) in pairs.items():
        best = best_seconds({"seconds": ours, "library_seconds": library}, REPEATS)
        rows.append({"ranker": name, **best, "ratio": best["seconds"] / best["library_seconds"], "bar": BAR})
    return rows


def _lists(size: int, seed: int) -> ItemLists:
    """Return clicked lists of exactly N_ITEMS items, so that the direct loop needs no padding."""
    lists = make_synthetic_lists(2 * size, items=2 * N_ITEMS, world="topics", seed=seed)
    long = lists[lists.lengths >= N_ITEMS][:size]
    rows = (long.offsets[:-1, None] + np.arange(N_ITEMS)).ravel()
    assert long.labels is not None, "make_synthetic_lists labels its lists"
    cut = ItemLists(long.features[rows], np.arange(len(long) + 1) * N_ITEMS, labels=long.labels[rows])
    return simulate_clicks(click_model("cascade"), cut, seed=seed)


def _lightgbm(
    train: ItemLists, valid: ItemLists, objective: str, *, patience: int = 50, **others: Any
) -> lightgbm.Booster:
    grow, check = (
        lightgbm.Dataset(np.column_stack([x.features, x.positions.astype(np.float32)]), x.labels, group=x.lengths)
        for x in (train, valid)
    )
    check.reference = grow
    parameters = {
        "objective": objective, "num_leaves": 15, "learning_rate": 0.05, "min_data_in_leaf": 50,
        "metric": "ndcg", "eval_at": [10], "label_gain": [0, 1],
        "deterministic": True, "force_row_wise": True, "seed": 0, "verbosity": -1,
        "num_threads": int(os.environ.get("OMP_NUM_THREADS") or 0),  # as ours
    } | others  # fmt: skip
    stop = lightgbm.early_stopping(patience, verbose=False)
    return lightgbm.train(parameters, grow, num_boost_round=TREES, valid_sets=[check], callbacks=[stop])


def _loop(train: ItemLists, valid: ItemLists, loss: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """Train the network of `baselines.neural` in a plain loop."""
    (x, y), (x_valid, y_valid) = _tensors(train), _tensors(valid)
    mean, deviation = x.mean((0, 1)), x.std((0, 1)) + 1e-6
    x, x_valid = (x - mean) / deviation, (x_valid - mean) / deviation
    network = nn.Sequential(
        nn.Linear(x.shape[2], 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 1),
    )  # fmt: skip
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-4)
    for _ in range(EPOCHS):
        network.train()
        for index in torch.split(torch.randperm(len(x)), 128):
            optimiser.zero_grad()
            loss(network(x[index]).squeeze(2), y[index]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        network.eval()
        with torch.no_grad():
            _ndcg(network(x_valid).squeeze(2), y_valid)
    return network


def _tensors(lists: ItemLists) -> tuple[Tensor, Tensor]:
    assert lists.labels is not None, "simulate_clicks labels its lists"
    position = np.log1p(lists.positions.astype(np.float32))
    columns = np.column_stack([np.sign(lists.features) * np.log1p(np.abs(lists.features)), position])
    shape = (len(lists), N_ITEMS)
    return torch.from_numpy(columns).reshape(*shape, -1), torch.from_numpy(lists.labels).reshape(shape)


def _ranknet_loss(scores: Tensor, labels: Tensor) -> Tensor:
    better = labels[:, :, None] > labels[:, None]
    losses = nn.functional.softplus(scores[:, None] - scores[:, :, None]) * better
    return (losses.sum((1, 2)) / better.sum((1, 2)).clamp(min=1)).mean()


def _listnet_loss(scores: Tensor, labels: Tensor) -> Tensor:
    return -(labels.softmax(1) * scores.log_softmax(1)).sum(1).mean()


def _ndcg(scores: Tensor, labels: Tensor) -> Tensor:
    discounts = 1 / torch.arange(2, 12).log2()
    gains = labels.gather(1, scores.argsort(1, descending=True)[:, :10]) @ discounts
    ideal = labels.sort(1, descending=True).values[:, :10] @ discounts
    return (gains / ideal).nanmean()
