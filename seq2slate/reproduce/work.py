"""Do one cell: train on the clicks, choose on the validation lists, and read the test lists once, at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.baselines.order import BaseOrder
from seq2slate.baselines.registry import make_estimator
from seq2slate.data.lists import IntArray, ItemLists, Split
from seq2slate.data.ranker import Ranker, rank_lists, slot_of_item
from seq2slate.evaluation.evaluate import SHOWN_CUTS
from seq2slate.metrics import DEFAULT_MEASURES
from seq2slate.reproduce.cells import FIGURE_2, RECIPES, Cell, Learner, Network, epochs_of, slug
from seq2slate.reproduce.data import fold_user, load_fold
from seq2slate.reproduce.results import SHOWN_SLOTS, CellResult
from seq2slate.reproduce.settings import Settings
from seq2slate.reranker import Reranker
from seq2slate.simulation.click_models import ClickModel, shown_clicks
from seq2slate.training.fit import History

_REFERENCES: dict[str, Callable[[ClickModel], Ranker]] = {
    "base order": lambda user: BaseOrder(),
    "ceiling on logged labels": LoggedCeiling,
    "ceiling when re-shown": lambda user: ShownCeiling(user, k=SHOWN_SLOTS),
}
_SHOWN_SEED = 0  # the user's luck is the same for all rankers
_TEST_ORDER_SEED = 0  # and so is the random order of a list for all seeds of the shuffled data


def do_cell(cell: Cell, out: Path, settings: Settings) -> None:
    """Train, measure, and write the result; the model that figure 2 draws is saved before it."""
    split, user = load_fold(out / "data", cell.fold, cell.user), fold_user(out / "data", cell.fold, cell.user)
    began = time.perf_counter()
    ranker, history = _train(cell, split, user, settings)
    seconds = {"training": time.perf_counter() - began}
    if history is not None:
        seconds["to the best epoch"] = seconds["training"] * (history.best_epoch + 1) / len(history.epochs)
    if isinstance(ranker, Reranker) and (cell.recipe, cell.fold, cell.seed) == (FIGURE_2, 0, 0):
        ranker.save(model_folder(out, cell.user))
    recipe = RECIPES[cell.recipe]
    shuffled = isinstance(recipe, Network) and recipe.shuffled
    test = split.test.shuffle_items(seed=_TEST_ORDER_SEED) if shuffled else split.test
    result = measure(ranker, test, user, repeats=settings.shown_repeats)
    if shuffled:  # how far items move from a random order says nothing
        nothing = np.full(len(test), np.nan)
        result = replace(result, values={**result.values, "rank-gain": nothing}, changes=result.changes[:0])
    if history is not None:
        curve = [{"loss": epoch["loss"], "value": epoch[history.measure]} for epoch in history.epochs]
        result = replace(result, curve=curve, measure=history.measure)
    replace(result, seconds={**seconds, **result.seconds}).save(out / "cells" / cell.file)


def model_folder(out: Path, user: str) -> Path:
    """Return where the model that learned from a user's clicks is kept."""
    return out / "models" / f"{slug(FIGURE_2)}-{user}"


def _train(cell: Cell, split: Split, user: ClickModel, settings: Settings) -> tuple[Ranker, History | None]:
    recipe = RECIPES[cell.recipe]
    if isinstance(recipe, Learner):
        options = {"seed": cell.seed} if recipe.draws_lots else {}
        return make_estimator(recipe.kind, **options).fit(split.train, split.valid), None
    if not isinstance(recipe, Network):
        return _REFERENCES[recipe.kind](user), None
    train, valid, epochs = split.train, split.valid, epochs_of(recipe, settings)
    if recipe.shuffled:
        copies = max(1, min(settings.shuffled_copies, settings.shuffled_bytes // max(1, train.nbytes)))
        train, valid = train.shuffle_items(seed=cell.seed, copies=copies), valid.shuffle_items(seed=cell.seed)
        epochs = max(1, epochs // copies)
    reranker = train_network(recipe, train, valid, epochs=epochs, seed=cell.seed)
    return reranker, reranker.history_


def train_network(recipe: Network, train: ItemLists, valid: ItemLists, *, epochs: int, seed: int) -> Reranker:
    """Train a network as its preset says, but for so many epochs at most."""
    options = {**recipe.options, "epochs": epochs, "seed": seed}
    return Reranker(recipe.preset, **options).fit(train, valid, quiet=True)


def measure(ranker: Ranker, test: ItemLists, user: ClickModel, *, repeats: int) -> CellResult:
    """Rank the test lists, and return what the slates are worth, list by list."""
    began = time.perf_counter()
    slates = rank_lists(ranker, test)
    seconds = {"ranking": time.perf_counter() - began}
    values = {str(measure): np.full(len(test), np.nan) for measure in DEFAULT_MEASURES}
    changes = []
    for batch in test.batches(256):
        placed = slates[batch.index, : batch.n_slots]
        for one in DEFAULT_MEASURES:
            values[str(one)][batch.index] = one(placed, batch.labels, mask=batch.mask)
        moved_up = np.arange(batch.n_slots) - slot_of_item(placed, batch.mask)
        changes.append(np.stack([moved_up[batch.mask], batch.labels[batch.mask] > 0]))
    shown = np.zeros((len(test), SHOWN_SLOTS))
    clicks = shown_clicks(user, test, slates[:, :SHOWN_SLOTS], repeats=repeats, seed=_SHOWN_SEED)
    shown[:, : clicks.shape[1]] = clicks
    values |= {f"re-shown clicks@{cut}": shown[:, :cut].sum(axis=1) for cut in SHOWN_CUTS}
    return CellResult(test.list_ids.to_pylist(), values, shown, _counted(changes), seconds)


def _counted(changes: list[IntArray]) -> IntArray:
    """Return (C, 3) the different columns of arrays (2, items), and how often each is there."""
    pairs, counts = np.unique(
        np.concatenate([*changes, np.zeros((2, 0), np.int64)], axis=1), axis=1, return_counts=True
    )
    return np.concatenate([pairs, counts[None]]).T
