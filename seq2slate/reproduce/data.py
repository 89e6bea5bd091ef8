"""The clicked lists of a run: a base ranker orders graded lists, simulated users click, and all of it lies on disk.

As in the paper (section 4.1) the base ranker is the best of several on the graded lists, and all other rankers then
learn from the clicks alone. What differs:

- The candidates are ridge regression and LambdaMART, and NDCG@10 on the validation lists chooses. The paper tried the
  nine rankers of RankLib and does not say what chose.
- A training list is ordered by a base ranker that was not trained on it (`order_out_of_fold`). Otherwise training lists
  would look better ordered than any test list.
- A data set without a split is cross-validated by list: fold f tests, fold f + 1 validates, the rest trains.

A folder holds a fold: the columns of each part as Parquet, the features and the clicks as .npy files that all worker
processes map into memory and share. `facts.json` is written last, so a fold with it is complete.
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
from seq2slate.baselines.out_of_fold import order_out_of_fold
from seq2slate.baselines.trees import LambdaMart
from seq2slate.data.files import is_split_folder, read, read_split
from seq2slate.data.lists import FloatArray, ItemLists, Split
from seq2slate.data.parquet import read_parquet, write_parquet
from seq2slate.data.ranker import BaseOrder, Ranker, reorder_lists
from seq2slate.errors import DataError
from seq2slate.estimator import Estimator
from seq2slate.metrics import Measure, measure_ranker
from seq2slate.progress import track
from seq2slate.reproduce.plan import PART_SEEDS, USERS, RunSettings
from seq2slate.reproduce.results import write_json
from seq2slate.simulation.click_models import ClickModel, click_model, simulate_clicks
from seq2slate.simulation.synthetic import make_synthetic_lists

CANDIDATES: Mapping[str, Callable[[], Estimator]] = {
    "ridge regression": RidgeRanker,
    "LambdaMART": partial(LambdaMart, base_position=False),
}
"""The candidates for the base ranker. None reads the base position: the order of graded lists says nothing."""

_OUT_OF_FOLD_PARTS = 5


def graded_folds(path: str | None, settings: RunSettings) -> list[Split]:
    """Return the graded lists: generated ones, the split of a folder, or the folds of a data set without one."""
    if path is None:
        sizes = (settings.train, settings.valid, settings.test)
        shape = partial(make_synthetic_lists, items=settings.items, world=settings.world, features=settings.features)
        return [Split(*(shape(size, seed=seed) for size, seed in zip(sizes, PART_SEEDS, strict=True)))]
    folds = [read_split(path)] if is_split_folder(path) else list(cross_validation(read(path), settings.folds))
    for part in folds[0]:
        if part.labels is None:
            raise DataError(f"{path}: these lists have no labels: click models need grades")
        if not part.n_features:
            raise DataError(
                f"{path}: these lists have no dense feature column: base rankers and click models need them"
            )
    return folds


def cross_validation(lists: ItemLists, folds: int) -> Iterator[Split]:
    """Yield splits in which every list is in exactly one test part, and in no other part of that split."""
    if len(lists) < folds:
        raise DataError(f"{len(lists)} lists cannot be cut into {folds} folds: give more lists")
    fold_of_list = np.random.default_rng(0).permutation(len(lists)) % folds
    for fold in range(folds):
        tests, validates = fold_of_list == fold, fold_of_list == (fold + 1) % folds
        yield Split(lists[~tests & ~validates], lists[validates], lists[tests])


def digest(folds: list[Split]) -> str:
    """Return the SHA-256 of the lists: features, labels, lengths and ids."""
    found = hashlib.sha256()
    for lists in (part for fold in folds for part in fold):
        for array in (lists.features, lists.offsets, lists.labels):
            found.update(array.data if array is not None else b"-")
        found.update("\n".join(lists.list_ids.to_pylist()).encode())
    return found.hexdigest()


# From grades to clicks


def prepare(folds: list[Split], folder: Path) -> None:
    """Order the lists of every fold, simulate the clicks, and write what is not there yet."""
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
    write_json(fold / "facts.json", facts)


def choose_base_ranker(graded: Split) -> tuple[str, dict[str, float]]:
    """Return the candidate with the best NDCG@10 on the graded validation lists, and the NDCG@10 of each."""
    train, valid, _ = graded
    values = {name: _mean_at_10(make().fit(train, valid, quiet=True), valid) for name, make in CANDIDATES.items()}
    return max(values, key=values.__getitem__), values


def order(graded: Split, make: Callable[[], Estimator]) -> Split:
    """Return the lists in base order: each training list by a ranker that was not trained on it."""
    train, valid, test = graded
    base = make().fit(train, valid, quiet=True)
    crossed = order_out_of_fold(make(), train, valid, folds=min(_OUT_OF_FOLD_PARTS, len(train)))
    return Split(crossed, reorder_lists(base, valid), reorder_lists(base, test))


def lowest_relevant_grade(graded: Split) -> float:
    """Return the lowest grade that counts as relevant: 2, as in the paper, or 1 for binary labels."""
    return 2.0 if any((part.labels > 1).any() for part in graded if part.labels is not None) else 1.0


def click(user: ClickModel, ordered: Split, place: str) -> Split:
    """Return the lists with the user's clicks; training or validation lists without any are a DataError."""
    clicked = Split(*(simulate_clicks(user, part, seed=seed) for part, seed in zip(ordered, PART_SEEDS, strict=True)))
    for name, lists in (("training", clicked.train), ("validation", clicked.valid)):
        if not np.any(lists.labels):
            raise DataError(
                f"{place}: no click in the {len(lists)} {name} lists, so no ranker can be trained: give more lists"
            )
    return clicked


def _facts(ordered: Split, relevant_from: float) -> dict[str, Any]:
    test = ordered.test
    has_relevant = np.unique(test.list_index[test.labels >= relevant_from])  # type: ignore[operator]
    return {
        "lists": {part: len(lists) for part, lists in ordered._asdict().items()},
        "items a list": float(test.lengths.mean()) if len(test) else 0.0,
        "without relevant items": 1 - len(has_relevant) / len(test) if len(test) else 0.0,
        "base order NDCG@10": _mean_at_10(BaseOrder(), test),
        "base order NDCG-exp@10": _mean_at_10(BaseOrder(), test, "NDCG-exp"),
    }


def _mean_at_10(ranker: Ranker, lists: ItemLists, name: str = "NDCG") -> float:
    """Return the mean of a metric over the first 10 slots; 0 where no list has a value."""
    measure = Measure(name, 10)
    values = measure_ranker(ranker, lists, [measure], k=measure.k)[measure]
    return 0.0 if np.isnan(values).all() else float(np.nanmean(values))


def _save(array: FloatArray | None, path: Path) -> None:
    assert array is not None, "clicked lists have labels"
    with atomic_path(path) as partial, partial.open("wb") as file:
        np.save(file, array)


# From disk


def fold_facts(folder: Path) -> list[dict[str, Any]]:
    """Return the facts of each fold, as `facts.json` has them."""
    paths = sorted(folder.glob("fold*/facts.json"), key=lambda path: int(path.parent.name.removeprefix("fold")))
    return [json.loads(path.read_text()) for path in paths]


def fold_user(folder: Path, fold: int, user: str) -> ClickModel:
    """Return the click model that labelled a fold."""
    return click_model(user, relevant_from=fold_facts(folder)[fold]["relevant from"])


@lru_cache(maxsize=2)
def load_fold(folder: Path, fold: int, user: str) -> Split:
    """Return the clicked lists of a fold; their features are mapped from the file."""
    place = folder / f"fold{fold}"
    names = fold_facts(folder)[fold]["feature names"]
    return Split(*(_load_part(place, part, user, names) for part in Split._fields))


def _load_part(place: Path, part: str, user: str, names: list[str]) -> ItemLists:
    lists = read_parquet(place / f"{part}.parquet")
    features = np.load(place / f"{part}.features.npy", mmap_mode="c")  # writable, as PyTorch wants it, but private
    clicks = np.load(place / f"{part}.{user}.npy")
    return replace(lists, features=features, feature_names=tuple(names), labels=clicks, relevance=lists.labels)
