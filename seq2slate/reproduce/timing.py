"""Times, beside the paper's ratios: sequential against one-step decoding, and REINFORCE against cross-entropy.

The two decoders take turns on the same lists with one thread, and the best of three turns counts: what else the machine
does slows down both, and only ever slows them down. Training is one epoch and ranking fills every slot.

The times to converge come from the cells: training up to the epoch that was best on the validation lists.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import rank_lists
from seq2slate.evaluation.paper import REINFORCE_TIMES_SLOWER, TIMES_FASTER
from seq2slate.reproduce.cells import CONVERGENCE, RECIPES, Network
from seq2slate.reproduce.data import USERS, load_fold
from seq2slate.reproduce.results import Results
from seq2slate.reproduce.settings import Settings
from seq2slate.reproduce.work import train_network

_TURNS = 3
_DECODERS = {"sequential": "seq2slate", "one-step": "one-step decoder"}


def decoder_times(out: Path, settings: Settings) -> list[dict[str, Any]]:
    """Time both decoders, and return a row for each of them in training and in inference, in seconds a list."""
    train, valid, test = load_fold(out / "data", 0, USERS[0])
    train, test = (_with_clicks_first(lists)[: settings.timed_lists] for lists in (train, test))
    one_to_choose_with = _with_clicks_first(valid)[:1]
    best = dict.fromkeys(((what, decoder) for what in TIMES_FASTER for decoder in _DECODERS), float("inf"))
    with _one_thread():
        for turn in range(_TURNS + 1):
            for decoder, name in _DECODERS.items():
                times = _turn(name, train, one_to_choose_with, test)
                if turn:  # the first one warms up
                    best |= {(what, decoder): min(best[what, decoder], seconds) for what, seconds in times.items()}
    return [
        {
            "what": f"{what}, per list",
            "decoder": decoder,
            "seconds": seconds,
            "ratio": best[what, "sequential"] / best[what, "one-step"] if decoder == "sequential" else None,
            "paper": TIMES_FASTER[what] if decoder == "sequential" else None,
        }
        for (what, decoder), seconds in best.items()
    ]


def convergence_times(results: Results) -> list[dict[str, Any]]:
    """Return how long cross-entropy and REINFORCE were trained up to their best epochs; nothing if one is missing."""
    times = {
        name: [result.seconds["to the best epoch"] for folds in by_seed.values() for result in folds]
        for name in CONVERGENCE
        if (by_seed := results.of(USERS[0], name))
    }
    if len(times) < len(CONVERGENCE):
        return []
    usual, reinforce = (float(np.mean(times[name])) for name in CONVERGENCE)
    what = "training to the best epoch"
    return [
        {"what": what, "ranker": "cross-entropy", "seconds": usual, "ratio": None, "paper": None},
        {
            "what": what,
            "ranker": "REINFORCE",
            "seconds": reinforce,
            "ratio": reinforce / usual,
            "paper": REINFORCE_TIMES_SLOWER,
        },
    ]


def _turn(name: str, train: ItemLists, valid: ItemLists, test: ItemLists) -> dict[str, float]:
    """Return the seconds a list that one epoch of training and then ranking take."""
    recipe = RECIPES[name]
    assert isinstance(recipe, Network), "both decoders are networks"
    began = time.perf_counter()
    model = train_network(recipe, train, valid, epochs=1, seed=0)
    trained = time.perf_counter()
    rank_lists(model, test)
    ranked = time.perf_counter()
    return {"training": (trained - began) / len(train), "inference": (ranked - trained) / max(1, len(test))}


def _with_clicks_first(lists: ItemLists) -> ItemLists:
    """Return the lists with clicks, and then the others: training passes over the latter."""
    clicks = np.bincount(lists.list_index, weights=lists.labels, minlength=len(lists))
    return lists[np.argsort(clicks == 0, kind="stable")]


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
