"""The clicked lists of a run: a base ranker orders them, the simulated users click, and everything lies on the disk.

As in the paper (section 4.1) the base ranker is the best of several on the graded lists, and all rankers then learn
from the clicks alone. What differs:

- The candidates are ridge regression and LambdaMART, and NDCG@10 on the validation lists chooses. The paper tried the
  nine rankers of RankLib and does not say what chose.
- A training list is ordered by a base ranker that did not see it (`order_out_of_fold`). Otherwise training
  lists look better ordered than any test list.
- A data set without a split is cross-validated by list: fold f is tested on, fold f + 1 validates, the rest trains.

A folder holds a fold: the columns of each part as Parquet, the features and the clicks as .npy files that all worker
processes map into memory and share. `facts.json` is written last, so a fold with it is whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from seq2slate.atomic import atomic_path
from seq2slate.baselines.linear import RidgeRanker
from seq2slate.baselines.order import BaseOrder
from seq2slate.baselines.out_of_fold import order_out_of_fold
from seq2slate.baselines.trees import LambdaMart
from seq2slate.data.files import is_split_folder, read, read_split
from seq2slate.data.lists import FloatArray, ItemLists, Split
from seq2slate.data.parquet import read_parquet, write_parquet
from seq2slate.data.ranker import reorder_lists
from seq2slate.errors import DataError
from seq2slate.estimator import Estimator
from seq2slate.metrics import Measure
from seq2slate.progress import track
from seq2slate.reproduce.settings import GENERATED_SEEDS, Settings
from seq2slate.simulation.click_models import ClickModel, click_model, simulate_clicks
from seq2slate.simulation.synthetic import make_synthetic_lists

USERS = ("diverse", "similar")
"""Tables 1 and 2 are about the first, tables 3 and 4 about the second."""

CANDIDATES: Mapping[str, Callable[[], Estimator]] = {
    "ridge regression": RidgeRanker,
    "LambdaMART": partial(LambdaMart, base_position=False),
}
"""Who may become the base ranker; the order of the lists as they come says nothing, and none of them reads it."""

_CROSS_FIT_FOLDS = 5


def graded_folds(path: str | None, settings: Settings) -> list[Split]:
    """Return the graded lists: generated ones, the split of a folder, or the folds of a data set without one."""
    if path is None:
        sizes = (settings.train, settings.valid, settings.test)
        shape = partial(make_synthetic_lists, items=settings.items, features=settings.features)
        return [Split(*(shape(size, seed=seed) for size, seed in zip(sizes, GENERATED_SEEDS, strict=True)))]
    folds = [read_split(path)] if is_split_folder(path) else list(cross_validation(read(path), settings.folds))
    for part in folds[0]:
        if part.labels is None:
            raise DataError(f"{path}: these lists have no labels: simulated users need grades")
        if not part.n_features:
            raise DataError(f"{path}: these lists have no dense column, by which items could be similar or ordered")
    return folds


def cross_validation(lists: ItemLists, folds: int) -> Iterator[Split]:
    """Yield splits in which every list is tested on exactly once, and never trained or validated with at that time."""
    if len(lists) < folds:
        raise DataError(f"{len(lists)} lists cannot be cut into {folds} folds: there is too little to learn from")
    fold_of_list = np.random.default_rng(0).permutation(len(lists)) % folds
    for fold in range(folds):
        tests, validates = fold_of_list == fold, fold_of_list == (fold + 1) % folds
        yield Split(lists[~tests & ~validates], lists[validates], lists[tests])


def digest(folds: list[Split]) -> str:
    """Return the SHA-256 of the lists: features, labels, lengths and names."""
    found = hashlib.sha256()
    for lists in (part for fold in folds for part in fold):
        for array in (lists.features, lists.offsets, lists.labels):
            found.update(array.data if array is not None else b"-")
        found.update("\n".join(lists.list_ids.to_pylist()).encode())
    return found.hexdigest()


# From grades to clicks


def prepare(folds: list[Split], folder: Path) -> None:
    """Order the lists of every fold, let the users click, and write what is not there yet."""
    for number, graded in enumerate(track(folds, "ordering the lists")):
        fold = folder / f"fold{number}"
        if not (fold / "facts.json").exists():
            _prepare_fold(graded, fold, number)


def _prepare_fold(graded: Split, fold: Path, number: int) -> None:
    name, values = choose_base_ranker(graded)
    ordered = order(graded, CANDIDATES[name])
    relevant_from = lowest_relevant_grade(graded)
    for part, lists in ordered._asdict().items():
        write_parquet(replace(lists, features=np.empty((lists.n_items, 0)), feature_names=()), fold / f"{part}.parquet")
        _save(lists.features, fold / f"{part}.features.npy")
    for user in USERS:
        clicked = click(click_model(user, relevant_from=relevant_from), ordered, f"fold {number + 1}, {user}-clicks")
        for part, lists in clicked._asdict().items():
            _save(lists.labels, fold / f"{part}.{user}.npy")
    facts = {
        "base ranker": name,
        "candidates": values,
        "relevant from": relevant_from,
        "feature names": ordered.test.feature_names,
        **_facts(ordered, relevant_from),
    }
    with atomic_path(fold / "facts.json") as partial:
        partial.write_text(json.dumps(facts, indent=2))


def choose_base_ranker(graded: Split) -> tuple[str, dict[str, float]]:
    """Return the candidate with the best NDCG@10 on the graded validation lists, and what each of them had."""
    values = {
        name: _mean(Measure("NDCG", 10), reorder_lists(make().fit(graded.train, graded.valid), graded.valid))
        for name, make in CANDIDATES.items()
    }
    return max(values, key=values.__getitem__), values


def order(graded: Split, make: Callable[[], Estimator]) -> Split:
    """Return the lists in base order: each training list by a ranker that did not see it."""
    train, valid, test = graded
    base = make().fit(train, valid)
    crossed = order_out_of_fold(make(), train, valid, folds=min(_CROSS_FIT_FOLDS, len(train)))
    return Split(crossed, reorder_lists(base, valid), reorder_lists(base, test))


def lowest_relevant_grade(graded: Split) -> float:
    """Return 2, as in the paper, or 1 where no grade is above 1: those are clicks already."""
    return 2.0 if any((part.labels > 1).any() for part in graded if part.labels is not None) else 1.0


def click(user: ClickModel, ordered: Split, place: str) -> Split:
    """Return the lists with the user's clicks; refuse a fold in which there is nothing to learn from or choose by."""
    clicked = Split(
        *(simulate_clicks(user, part, seed=seed) for part, seed in zip(ordered, GENERATED_SEEDS, strict=True))
    )
    for name, lists in (("training", clicked.train), ("validation", clicked.valid)):
        if not np.any(lists.labels):
            raise DataError(
                f"{place}: no click in the {len(lists)} {name} lists, so nothing can be learned or chosen: more lists "
                "are needed"
            )
    return clicked


def _facts(ordered: Split, relevant_from: float) -> dict[str, Any]:
    test = ordered.test
    has_relevant = np.zeros(len(test), dtype=bool)
    has_relevant[test.list_index[test.labels >= relevant_from]] = True  # type: ignore[operator]
    return {
        "lists": {part: len(lists) for part, lists in ordered._asdict().items()},
        "items a list": float(test.lengths.mean()) if len(test) else 0.0,
        "without relevant items": float(1 - has_relevant.mean()) if len(test) else 0.0,
        "base order NDCG@10": _mean(Measure("NDCG", 10), test),
        "base order NDCG-exp@10": _mean(Measure("NDCG-exp", 10), test),
    }


def _mean(measure: Measure, lists: ItemLists) -> float:
    """Return the mean of a measure of the order as it is; 0 where no list has a value."""
    values = [
        measure(BaseOrder().rank(batch, measure.k), batch.labels, mask=batch.mask) for batch in lists.batches(256)
    ]
    known = np.concatenate([*values, []])
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else 0.0


def _save(array: FloatArray | None, path: Path) -> None:
    assert array is not None, "users give labels to all lists"
    with atomic_path(path) as partial, partial.open("wb") as file:
        np.save(file, array)


# From the disk


def fold_facts(folder: Path) -> list[dict[str, Any]]:
    """Return what was noted about each fold."""
    paths = sorted(folder.glob("fold*/facts.json"), key=lambda path: int(path.parent.name.removeprefix("fold")))
    return [json.loads(path.read_text()) for path in paths]


def fold_user(folder: Path, fold: int, user: str) -> ClickModel:
    """Return the user who clicked on a fold."""
    return click_model(user, relevant_from=_fold_facts(folder / f"fold{fold}")["relevant from"])


@lru_cache(maxsize=2)
def load_fold(folder: Path, fold: int, user: str) -> Split:
    """Return the clicked lists of a fold; the features stay in the file until they are read."""
    place = folder / f"fold{fold}"
    names = _fold_facts(place)["feature names"]
    return Split(*(_load_part(place, part, user, names) for part in Split._fields))


def _load_part(place: Path, part: str, user: str, names: list[str]) -> ItemLists:
    lists = read_parquet(place / f"{part}.parquet")
    features = np.load(place / f"{part}.features.npy", mmap_mode="c")  # writable, as PyTorch wants it, but private
    clicks = np.load(place / f"{part}.{user}.npy")
    return replace(lists, features=features, feature_names=tuple(names), labels=clicks, relevance=lists.labels)


def _fold_facts(place: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((place / "facts.json").read_text())
    return facts
