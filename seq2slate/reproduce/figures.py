"""The figures and the times of a run, as plain rows: figures 2 and 3 of the paper, curves, moves, and seconds.

Figure 2 draws one test list. A rule picks it, not its looks: the first with at least three clicks and 15 to 40 items,
or, where there is none, the shortest with at least three clicks, or else with the most clicks.

Two times are compared with the paper's ratios, for the paper's network as preset `paper-tuned` trains it. The two
decoders take turns on the same lists with one thread, and the best of three turns counts: what else the machine does
slows down both, and only ever slows them down. Training is one epoch and ranking fills every slot. The time to
convergence of cross-entropy and of REINFORCE comes from their cells: it is training up to the epoch that was best on
the validation lists.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import rank_lists
from seq2slate.estimator import load
from seq2slate.evaluation.comparison import BASE_ORDER
from seq2slate.evaluation.paper import REINFORCE_TIMES_SLOWER, TIMES_FASTER
from seq2slate.evaluation.statistics import mean_over_lists, none_if_nan, two_way_interval
from seq2slate.reproduce.data import load_source
from seq2slate.reproduce.plan import (
    DECODERS,
    FIGURE_2,
    FIGURE_3,
    RECIPES,
    USERS,
    Cell,
    NetworkRecipe,
    convergence_rows,
    fold_name,
    row_of,
)
from seq2slate.reproduce.results import Results, paired
from seq2slate.reproduce.sizes import RunSettings
from seq2slate.reproduce.work import model_folder, train_recipe
from seq2slate.reranker import Reranker

FIGURE_USER = USERS[0]
"""The user whose clicks the figures and times are about."""
RULE = (
    "Figure 2 shows the first test list with at least 3 clicks and 15 to 40 items, or else the shortest with at least "
    "3 clicks: a rule, not a choice."
)
_CLICKS, _FEWEST_ITEMS, _MOST_ITEMS = 3, 15, 40


def attention(folder: Path) -> dict[str, Any] | None:
    """Return figure 2: the probability of every item at every step; None if the model or a list is missing."""
    model = model_folder(folder, FIGURE_USER)
    test = load_source(folder / "data" / fold_name(0), FIGURE_USER).test
    if not model.exists() or not test.n_items:
        return None
    reranker = load(model)
    assert isinstance(reranker, Reranker), "figure 2 draws a network"
    one = test[list_to_draw(test)]
    decoded = reranker.model_.decode(one)
    grades = one.relevance if one.relevance is not None else np.full(one.n_items, np.nan)
    clicks = one.labels if one.labels is not None else np.zeros(one.n_items)
    items = [
        {"id": name, "grade": float(grade), "clicked": bool(click)}
        for name, grade, click in zip(one.item_ids.to_pylist(), grades, clicks, strict=True)
    ]
    probabilities = decoded.probabilities[0].double().numpy().round(6).tolist()
    slate = decoded.slates[0].tolist()
    return {"list_id": one.list_ids[0].as_py(), "items": items, "slate": slate, "probabilities": probabilities}


def list_to_draw(lists: ItemLists) -> int:
    """Return the index of the list that the rule picks."""
    clicks = np.bincount(lists.list_index, weights=lists.labels, minlength=len(lists))
    lengths = lists.lengths
    enough = clicks >= _CLICKS
    fits = enough & (lengths >= _FEWEST_ITEMS) & (lengths <= _MOST_ITEMS)
    if fits.any():
        return int(fits.argmax())
    return int(np.where(enough, lengths, lengths.max() + 1).argmin()) if enough.any() else int(clicks.argmax())


def click_differences(results: Results) -> dict[str, Any]:
    """Return figure 3: the difference in clicks of each position to the base order, paired by list."""
    base, *shown = (
        results.shown(FIGURE_USER, row_of(name, results.settings, results.n_train, carries_claim=True))
        for name in (BASE_ORDER, *FIGURE_3)
    )
    rows = []
    for ranker, clicks in zip(FIGURE_3, shown, strict=True):
        if not clicks.size or not base.size:
            continue
        differences = np.moveaxis(paired(clicks, base), -1, 0)  # (slots, seeds, lists)
        for position, (values, (low, high)) in enumerate(zip(differences, two_way_interval(differences), strict=True)):
            ends = {"low": none_if_nan(float(low)), "high": none_if_nan(float(high))}
            rows.append({"ranker": ranker, "position": position + 1, "difference": mean_over_lists(values), **ends})
    return {"baseline": BASE_ORDER, "rows": rows}


def curves(results: Results) -> list[dict[str, Any]]:
    """Return the learning curves of all networks, epoch by epoch."""
    return [
        {
            "run": ", ".join([f"{cell.user}-clicks", *_run_details(cell, results)]),
            "ranker": cell.recipe,
            "seed": cell.seed,
            "epoch": epoch + 1,
            "loss": none_if_nan(entry["loss"]),
            "value": none_if_nan(entry["value"]),
            "measure": result.measure,
        }
        for cell, result in results.cells.items()
        if isinstance(RECIPES[cell.recipe], NetworkRecipe)
        for epoch, entry in enumerate(result.curve)
    ]


def _run_details(cell: Cell, results: Results) -> list[str]:
    """Return what tells the runs of one user apart: the fold and the number of training lists."""
    return [
        *([cell.source] if len(results.sources) > 1 else []),
        *([f"{cell.lists:,} training lists"] if cell.lists else []),
    ]


def rank_changes(results: Results) -> dict[str, Any]:
    """Return how far the network of figure 2 moves items, over all folds and seeds."""
    counts = Counter[tuple[int, bool]]()
    row = row_of(FIGURE_2, results.settings, results.n_train, carries_claim=True)
    for whole in results.of(FIGURE_USER, row).values():
        for result in whole:
            for change, clicked, count in result.changes.tolist():
                counts[change, bool(clicked)] += count
    rows = [
        {"change": change, "count": count, "clicked": clicked} for (change, clicked), count in sorted(counts.items())
    ]
    return {"ranker": FIGURE_2, "rows": rows}


# Times

_TURNS = 3


def decoder_times(folder: Path, settings: RunSettings) -> list[dict[str, Any]]:
    """Time both decoders, and return a row for each of them in training and in inference, in seconds a list."""
    train, valid, test = load_source(folder / "data" / fold_name(0), FIGURE_USER)
    train, test = (_with_clicks_first(lists)[: settings.timed_lists] for lists in (train, test))
    one_to_validate = _with_clicks_first(valid)[:1]
    best = dict.fromkeys(((what, decoder) for what in TIMES_FASTER for decoder in DECODERS), float("inf"))
    with _one_thread():
        for turn in range(_TURNS + 1):
            for decoder, name in DECODERS.items():
                times = _turn(name, train, one_to_validate, test)
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
    rows = convergence_rows(results.settings, results.n_train)
    times = {
        name: [result.seconds["to the best epoch"] for whole in by_seed.values() for result in whole]
        for name, row in rows.items()
        if (by_seed := results.of(FIGURE_USER, row))
    }
    if len(times) < len(rows):
        return []
    usual, reinforce = (float(np.mean(of_row)) for of_row in times.values())
    ratios = {"cross-entropy": (usual, None, None), "REINFORCE": (reinforce, reinforce / usual, REINFORCE_TIMES_SLOWER)}
    return [
        {"what": "training to the best epoch", "ranker": name, "seconds": seconds, "ratio": ratio, "paper": paper}
        for name, (seconds, ratio, paper) in ratios.items()
    ]


def _turn(name: str, train: ItemLists, valid: ItemLists, test: ItemLists) -> dict[str, float]:
    """Return the seconds a list that one epoch of training and then ranking take."""
    recipe = RECIPES[name]
    assert isinstance(recipe, NetworkRecipe), "both decoders are networks"
    began = time.perf_counter()
    model = train_recipe(recipe, train, valid, epochs=1, steps=None, seed=0)
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
