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
from seq2slate.reproduce.data import load_source, source_user
from seq2slate.reproduce.plan import (
    FIGURE_2,
    RECIPES,
    BaselineRecipe,
    Cell,
    NetworkRecipe,
    ReferenceRecipe,
    fold_name,
    slug,
)
from seq2slate.reproduce.results import CellResult
from seq2slate.reproduce.sizes import RunSettings
from seq2slate.reranker import Reranker
from seq2slate.simulation.click_models import ClickModel, shown_clicks
from seq2slate.training.fit import History

_CEILINGS: dict[str, Callable[[ClickModel], Ranker]] = {
    "ceiling on logged labels": LoggedCeiling,
    "ceiling when re-shown": lambda user: ShownCeiling(user, k=max(SHOWN_CUTS)),
}
_SHOWN_SEED = 0  # common random numbers: the same for all rankers
_TEST_ORDER_SEED = 0  # the random order of a shuffled test list is the same for all seeds


def do_cell(cell: Cell, folder: Path, settings: RunSettings) -> None:
    """Train, measure, and write the result; the model that figure 2 draws is saved before it.

    Args:
        cell: What to do.
        folder: Has the sources in `data`, and gets the result in `cells`.
        settings: The sizes of the run.
    """
    source = folder / "data" / cell.source
    split, user = load_source(source, cell.user), source_user(source, cell.user)
    began = time.perf_counter()
    ranker, history = _train(cell, split, user, settings)
    seconds = {"training": time.perf_counter() - began}
    if isinstance(ranker, Reranker) and is_drawn(cell):
        ranker.save(model_folder(folder, cell.user))
    recipe = RECIPES[cell.recipe]
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
    replace(result, seconds={**seconds, **result.seconds}).save(folder / "cells" / cell.file)


def is_drawn(cell: Cell) -> bool:
    """Whether figure 2 may draw the model of a cell."""
    return (cell.recipe, cell.source, cell.lists, cell.seed) == (FIGURE_2, fold_name(0), 0, 0)


def model_folder(folder: Path, user: str) -> Path:
    """Return the folder of the model that was trained on a user's clicks."""
    return folder / "models" / f"{slug(FIGURE_2)}-{user}"


def _train(cell: Cell, split: Split, user: ClickModel | None, settings: RunSettings) -> tuple[Ranker, History | None]:
    """Return the ranker of a cell and, of a network, the history of its epochs."""
    recipe = RECIPES[cell.recipe]
    train, valid = split.train[: cell.lists or len(split.train)], split.valid
    if isinstance(recipe, ReferenceRecipe):
        return _reference(cell.recipe, user), None
    if isinstance(recipe, BaselineRecipe):
        options = {"seed": cell.seed} if recipe.is_random else {}
        return make_estimator(recipe.kind, **options).fit(train, valid, quiet=True), None
    budget = recipe.budget(settings)
    if recipe.shuffled:
        copies = max(1, min(settings.shuffled_copies, settings.shuffled_bytes // max(1, train.nbytes)))
        budget = {"epochs": max(1, recipe.passes(settings, len(train)) // copies), "steps": None}
        train, valid = train.shuffle_items(seed=cell.seed, copies=copies), valid.shuffle_items(seed=cell.seed)
    reranker = train_recipe(recipe, train, valid, **budget, seed=cell.seed)
    return reranker, reranker.history_


def _reference(name: str, user: ClickModel | None) -> Ranker:
    if name not in _CEILINGS:
        return BaseOrder()
    assert user is not None, "only the lists of simulated users have ceilings"
    return _CEILINGS[name](user)


def train_recipe(recipe: NetworkRecipe, train: ItemLists, valid: ItemLists, **others: int | None) -> Reranker:
    """Train a network as its recipe says, but for other options."""
    return Reranker(recipe.preset, **{**recipe.options, **others}).fit(train, valid, quiet=True)


def measure(ranker: Ranker, test: ItemLists, user: ClickModel | None, *, repeats: int) -> CellResult:
    """Rank the test lists, and return the values of every list by logged labels and, with a user, re-shown clicks."""
    observed = _ObservedRanker(ranker)
    checked = CheckedRanker("cell", observed, len(test))
    values = {str(one): found for one, found in measure_ranker(checked, test, DEFAULT_MEASURES).items()}
    shown = np.zeros((len(test), 0))
    if user is not None:
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
