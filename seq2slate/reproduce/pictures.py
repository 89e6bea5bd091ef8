"""What the pictures show, as plain rows: figures 2 and 3 of the paper, learning curves, and how far items move.

Figure 2 draws one test list. A rule picks it, not its looks: the first with at least three clicks and 15 to 40 items,
or, where there is none, the shortest with at least three clicks, or else with the most clicks.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from seq2slate.baselines.registry import load
from seq2slate.data.lists import ItemLists
from seq2slate.evaluation.comparison import BASE_ORDER
from seq2slate.evaluation.statistics import mean_over_lists, two_way_interval
from seq2slate.reproduce.cells import FIGURE_2, FIGURE_3, RECIPES, Network
from seq2slate.reproduce.data import USERS, load_fold
from seq2slate.reproduce.results import Results
from seq2slate.reproduce.work import model_folder
from seq2slate.reranker import Reranker

USER = USERS[0]
"""Whose clicks the figures are about."""
RULE = (
    "Figure 2 shows the first test list with at least 3 clicks and 15 to 40 items, or else the shortest with at least "
    "3 clicks: a rule, not a choice."
)
_CLICKS, _FEWEST_ITEMS, _MOST_ITEMS = 3, 15, 40


def attention(out: Path) -> dict[str, Any] | None:
    """Return figure 2: the probability of every item at every step; None if the model or a list is missing."""
    folder = model_folder(out, USER)
    test = load_fold(out / "data", 0, USER).test
    if not folder.exists() or not test.n_items:
        return None
    reranker = load(folder)
    assert isinstance(reranker, Reranker), "only networks are kept"
    model = reranker.model_
    one = test[list_to_draw(test)]
    decoded = model.decode(one)
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
    """Return the number of the list that the rule picks."""
    clicks = np.bincount(lists.list_index, weights=lists.labels, minlength=len(lists))
    lengths = lists.lengths
    enough = clicks >= _CLICKS
    fits = enough & (lengths >= _FEWEST_ITEMS) & (lengths <= _MOST_ITEMS)
    if fits.any():
        return int(fits.argmax())
    return int(np.where(enough, lengths, lengths.max() + 1).argmin()) if enough.any() else int(clicks.argmax())


def click_differences(results: Results) -> dict[str, Any]:
    """Return figure 3: by how much each position's clicks differ from the base order's, list by list."""
    base = results.shown(USER, BASE_ORDER)
    rows = []
    for ranker in FIGURE_3:
        shown = results.shown(USER, ranker)
        if not shown.size or not base.size:
            continue
        differences = np.moveaxis(shown - base, -1, 0)  # (slots, seeds, lists)
        for position, (values, (low, high)) in enumerate(zip(differences, two_way_interval(differences), strict=True)):
            rows.append(
                {
                    "ranker": ranker,
                    "position": position + 1,
                    "difference": mean_over_lists(values),
                    "low": _number(low),
                    "high": _number(high),
                }
            )
    return {"baseline": BASE_ORDER, "rows": rows}


def curves(results: Results) -> list[dict[str, Any]]:
    """Return the learning curves of all networks, epoch by epoch."""
    return [
        {
            "run": f"{cell.user}-clicks" + (f", fold {cell.fold + 1}" if results.folds > 1 else ""),
            "ranker": cell.recipe,
            "seed": cell.seed,
            "epoch": epoch + 1,
            "loss": _number(entry["loss"]),
            "value": _number(entry["value"]),
            "measure": result.measure,
        }
        for cell, result in results.cells.items()
        if isinstance(RECIPES[cell.recipe], Network)
        for epoch, entry in enumerate(result.curve)
    ]


def rank_changes(results: Results) -> dict[str, Any]:
    """Return how far seq2slate moves items, over all folds and seeds."""
    counts = Counter[tuple[int, bool]]()
    for folds in results.of(USER, FIGURE_2).values():
        for result in folds:
            for change, clicked, count in result.changes.tolist():
                counts[change, bool(clicked)] += count
    rows = [
        {"change": change, "count": count, "clicked": clicked} for (change, clicked), count in sorted(counts.items())
    ]
    return {"ranker": FIGURE_2, "rows": rows}


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
