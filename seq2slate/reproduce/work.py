"""The work of one cell: train on the clicks, choose on the validation lists, and measure on the test lists, once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.data.lists import Batch, IntArray, ItemLists, Split
from seq2slate.data.ranker import BaseOrder, Ranker, slot_of_item
from seq2slate.estimator import make_estimator
from seq2slate.evaluation.evaluate import SHOWN_CUTS, CheckedRanker, clicks_at_cuts
from seq2slate.metrics import DEFAULT_MEASURES, measure_ranker
from seq2slate.reproduce.data import fold_user, load_fold
from seq2slate.reproduce.plan import (
    FIGURE_2,
    RECIPES,
    BaselineRecipe,
    Cell,
    NetworkRecipe,
    ReferenceRecipe,
    RunSettings,
    slug,
)
from seq2slate.reproduce.results import CellResult
from seq2slate.reranker import Reranker
from seq2slate.simulation.click_models import ClickModel, shown_clicks
from seq2slate.training.fit import History

_REFERENCES: dict[str, Callable[[ClickModel], Ranker]] = {
    "base order": lambda user: BaseOrder(),
    "ceiling on logged labels": LoggedCeiling,
    "ceiling when re-shown": lambda user: ShownCeiling(user, k=max(SHOWN_CUTS)),
}
_SHOWN_SEED = 0  # common random numbers: the same for all rankers
_TEST_ORDER_SEED = 0  # the random order of a shuffled test list is the same for all seeds


def do_cell(cell: Cell, out: Path, settings: RunSettings) -> None:
    """Train, measure, and write the result; the model that figure 2 draws is saved before it."""
    recipe = RECIPES[cell.recipe]
    split, user = load_fold(out / "data", cell.fold, cell.user), fold_user(out / "data", cell.fold, cell.user)
    began = time.perf_counter()
    ranker, history = _train(cell, split, user, settings)
    seconds = {"training": time.perf_counter() - began}
    if isinstance(ranker, Reranker) and (cell.recipe, cell.fold, cell.seed) == (FIGURE_2, 0, 0):
        ranker.save(model_folder(out, cell.user))
    shuffled = isinstance(recipe, NetworkRecipe) and recipe.shuffled
    test = split.test.shuffle_items(seed=_TEST_ORDER_SEED) if shuffled else split.test
    result = measure(ranker, test, user, repeats=settings.shown_repeats)
    if shuffled:  # how far items move from a random order says nothing
        nothing = np.full(len(test), np.nan)
        result = replace(result, values={**result.values, "rank-gain": nothing}, changes=result.changes[:0])
    if history is not None:
        seconds["to the best epoch"] = seconds["training"] * (history.best_epoch + 1) / len(history.epochs)
        curve = [{"loss": epoch["loss"], "value": epoch[history.measure]} for epoch in history.epochs]
        result = replace(result, curve=curve, measure=history.measure)
    replace(result, seconds={**seconds, **result.seconds}).save(out / "cells" / cell.file)


def model_folder(out: Path, user: str) -> Path:
    """Return the folder of the model that was trained on a user's clicks."""
    return out / "models" / f"{slug(FIGURE_2)}-{user}"


def _train(cell: Cell, split: Split, user: ClickModel, settings: RunSettings) -> tuple[Ranker, History | None]:
    """Return the ranker of a cell and, of a network, the history of its epochs."""
    recipe = RECIPES[cell.recipe]
    train, valid, _ = split
    if isinstance(recipe, ReferenceRecipe):
        return _REFERENCES[cell.recipe](user), None
    if isinstance(recipe, BaselineRecipe):
        options = {"seed": cell.seed} if recipe.is_random else {}
        return make_estimator(recipe.kind, **options).fit(train, valid, quiet=True), None
    epochs = recipe.epochs(settings)
    if recipe.shuffled:
        copies = max(1, min(settings.shuffled_copies, settings.shuffled_bytes // max(1, train.nbytes)))
        train, valid = train.shuffle_items(seed=cell.seed, copies=copies), valid.shuffle_items(seed=cell.seed)
        epochs = max(1, epochs // copies)
    reranker = train_recipe(recipe, train, valid, epochs=epochs, seed=cell.seed)
    return reranker, reranker.history_


def train_recipe(recipe: NetworkRecipe, train: ItemLists, valid: ItemLists, *, epochs: int, seed: int) -> Reranker:
    """Train a network as its recipe says, but for so many epochs at most."""
    options = {**recipe.options, "epochs": epochs, "seed": seed}
    return Reranker(recipe.preset, **options).fit(train, valid, quiet=True)


def measure(ranker: Ranker, test: ItemLists, user: ClickModel, *, repeats: int) -> CellResult:
    """Rank the test lists, and return the values of every list in both views: logged labels and re-shown clicks."""
    observed = _ObservedRanker(ranker)
    checked = CheckedRanker("cell", observed, len(test))
    values = {str(one): found for one, found in measure_ranker(checked, test, DEFAULT_MEASURES).items()}
    shown = shown_clicks(user, test, checked.first_slots, repeats=repeats, seed=_SHOWN_SEED)
    values |= clicks_at_cuts(shown)
    return CellResult(test.list_ids.to_pylist(), values, shown, observed.changes(), {"ranking": observed.seconds})


@dataclass
class _ObservedRanker:
    """A ranker that is timed, and whose moves of items are noted."""

    ranker: Ranker
    seconds: float = 0.0
    moves: list[IntArray] = field(default_factory=list)
    """For each batch (2, items): by how many positions each item moved up, and whether it was clicked."""

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        began = time.perf_counter()
        slates = self.ranker.rank(batch, k)
        self.seconds += time.perf_counter() - began
        moved_up = np.arange(batch.n_slots) - slot_of_item(slates, batch.mask)
        self.moves.append(np.stack([moved_up[batch.mask], batch.labels[batch.mask] > 0]))
        return slates

    def changes(self) -> IntArray:
        """Return (C, 3) the different moves, whether the item was clicked, and how often each is there."""
        moves = np.concatenate([*self.moves, np.zeros((2, 0), np.int64)], axis=1)
        pairs, counts = np.unique(moves, axis=1, return_counts=True)
        return np.concatenate([pairs, counts[None]]).T
