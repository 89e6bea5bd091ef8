"""What the pairwise interaction costs: preset `default` with it and without it, one thread, F=136, K=10.

Training is a step as `training.fit` takes it: a batch of lists, objective, gradient and Adam. Distances are data, so
the first epoch, which looks for them, and later ones are measured apart. Serving is one list, from its raw columns to
its slate, with the backend `single-list`. Memory is that of one more training step, in N x N floats for each list.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.latency import backend_request
from benchmarks.network import N_FEATURES, peak_kilobytes
from benchmarks.tables import Rows
from benchmarks.timing import best_seconds
from seq2slate.config import configure
from seq2slate.data.lists import ItemLists
from seq2slate.model.network import InputLists, KnownCoordinates
from seq2slate.model.slate_model import SlateModel
from seq2slate.training.objectives import Objective

K, CLICKED = 10, 0.05
SIZES = {110: (60, 400), 1000: (6, 30)}
"""Items of a list, and how often training steps and requests are repeated."""
BAR = 1.25
"""How many times longer training and serving may take, at 110 items."""
MOST_ARRAYS = 3
"""Arrays of N x N floats that a list may need in training, at 1,000 items."""
NAMES = ("none", "pairwise")


def times() -> Rows:
    """Return milliseconds a list with and without the interaction, and their ratio."""
    torch.set_num_threads(1)
    rows: Rows = []
    for n_items, (steps, requests) in SIZES.items():
        for what, new_way, repeats, n_lists, bar in (
            ("training, first epoch", partial(training_step, fresh=True), steps, batch_size(), None),
            ("training, later epochs", training_step, steps, batch_size(), BAR),
            ("serving", request, requests, 1, BAR),
        ):
            best = best_seconds({name: new_way(name, n_items) for name in NAMES}, repeats, clock=time.process_time)
            rows.append(
                {
                    "items": n_items,
                    "what": what,
                    "without, ms a list": best["none"] / n_lists * 1e3,
                    "with, ms a list": best["pairwise"] / n_lists * 1e3,
                    "ratio": best["pairwise"] / best["none"],
                    "bar": bar if bar and n_items == 110 else "",
                }
            )
    return rows


def memory() -> Rows:
    """Return the peak memory of a training step, and what the interaction adds to it, in N x N floats a list."""
    rows: Rows = []
    for n_items in SIZES:
        without, with_it = (1024 * _peak(name, n_items) / batch_size() for name in NAMES)
        rows.append(
            {
                "items": n_items,
                "without, MB a list": without / 2**20,
                "with, MB a list": with_it / 2**20,
                "N x N floats": (with_it - without) / (4 * n_items**2),
                "bar, N x N floats": MOST_ARRAYS if n_items == 1000 else "",
            }
        )
    return rows


def batch_size() -> int:
    """Return the lists of a training step."""
    return configure("default").training.batch_size


def new_model(interaction: str, lists: ItemLists) -> SlateModel:
    """Return preset `default`, fitted to lists and with weights as if it had been trained a little."""
    model = SlateModel.create(lists, configure("default", interaction=interaction).network, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.01)
    return model


def random_lists(n_items: int, n_lists: int) -> ItemLists:
    """Return lists of so many items; the columns have different scales, and some are the same in many items."""
    rng = np.random.default_rng(n_items)
    features = np.exp(rng.normal(size=(n_lists * n_items, N_FEATURES)) * rng.uniform(0.2, 2, N_FEATURES))
    features[:, :40] = features[:, :40].round()
    labels = rng.random(len(features)) < CLICKED
    return ItemLists(features, np.arange(0, len(features) + 1, n_items), labels=labels)


def training_step(interaction: str, n_items: int, *, fresh: bool = False) -> Callable[[], None]:
    """Return a training step on the same lists again and again; with `fresh` nothing is known of them before."""
    lists = random_lists(n_items, batch_size())
    config = configure("default", interaction=interaction).training
    model, objective = new_model(interaction, lists), Objective(config)
    network = model.network.train()
    optimiser = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    generator, index = torch.Generator().manual_seed(0), np.arange(len(lists))
    encoded, labels = model.transform.apply(lists), lists.labels
    assert labels is not None

    def new_inputs() -> InputLists:
        inputs = InputLists(encoded, lists.lengths)
        inputs.coordinates = KnownCoordinates(network.interaction, rounded=True)
        return inputs

    known = new_inputs()

    def step() -> None:
        inputs = new_inputs() if fresh else known
        surrogate, _ = objective(network, inputs.batch(index), inputs.pad(labels, index), generator)
        optimiser.zero_grad(set_to_none=True)
        surrogate.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), config.clip_norm)
        optimiser.step()

    return step


def request(interaction: str, n_items: int) -> Callable[[], object]:
    """Return a request for the first slots of one list."""
    lists = random_lists(n_items, 20)
    return backend_request(new_model(interaction, lists), lists.features[:n_items].astype(np.float32), K)


# Memory


def _peak(interaction: str, n_items: int) -> int:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_grown, (interaction, n_items))


def _grown(interaction: str, n_items: int) -> int:
    """Return by how many kB a process of its own grows at most while it takes a second training step."""
    torch.set_num_threads(1)
    step = training_step(interaction, n_items)
    step()
    ctypes.CDLL(None).malloc_trim(0)  # gives back what the first step has left
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = peak_kilobytes()
    step()
    return peak_kilobytes() - before
