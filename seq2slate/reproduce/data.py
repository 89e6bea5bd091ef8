"""The clicked lists of a run: a base ranker orders graded lists, simulated users click, and all of it lies on disk.

As in the paper (section 4.1) the base ranker is the best of several on the graded lists, and all other rankers then
learn from the clicks alone. What differs:

- The candidates are ridge regression and LambdaMART, and NDCG@10 on the validation lists chooses. The paper tried the
  nine rankers of RankLib and does not say what chose.
- A training list is ordered by a base ranker that was not trained on it (`order_out_of_fold`). Otherwise training lists
  would look better ordered than any test list.
- A data set without a split is cross-validated by list: fold f tests, fold f + 1 validates, the rest trains.

A source is a fold, a world or a real log. Its folder holds the columns of each part as Parquet, and the features and
clicks as .npy files that all worker processes map into memory and share. `facts.json` is written after them, so what it
names is complete.
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
from seq2slate.reproduce.plan import PART_SEEDS, slug
from seq2slate.reproduce.results import write_json
from seq2slate.reproduce.sizes import RunSettings
from seq2slate.simulation.click_models import ClickModel, click_model, simulate_clicks
from seq2slate.simulation.synthetic import make_synthetic_lists

CANDIDATES: Mapping[str, Callable[[], Estimator]] = {
    "ridge regression": RidgeRanker,
    "LambdaMART": partial(LambdaMart, base_position=False),
}
"""The candidates for the base ranker. None reads the base position: the order of graded lists says nothing."""

_MANY_LISTS = 10_000
"""From so many training lists on, cross-fitting has two folds instead of five, which is a quarter of the work."""


def graded_folds(path: str | None, settings: RunSettings, columns: Mapping[str, Any] | None = None) -> list[Split]:
    """Return the graded lists: generated ones, the split of a folder, or the folds of a data set without one."""
    if path is None:
        return [generated(settings, settings.world)]
    if is_split_folder(path):
        folds = [read_split(path, columns)]
    else:
        folds = list(cross_validation(read(path, columns), settings.folds))
    for part in folds[0]:
        if part.labels is None:
            raise DataError(f"{path}: these lists have no labels: click models need grades")
        if not part.n_features:
            raise DataError(
                f"{path}: these lists have no dense feature column: base rankers and click models need them"
            )
    return folds


def generated(settings: RunSettings, world: str) -> Split:
    """Return generated lists of a world, with grades and in random order."""
    sizes = (settings.train, settings.valid, settings.test)
    shape = partial(make_synthetic_lists, items=settings.items, world=world, features=settings.features)
    return Split(*(shape(size, seed=seed) for size, seed in zip(sizes, PART_SEEDS, strict=True)))


def cross_validation(lists: ItemLists, folds: int) -> Iterator[Split]:
    """Yield splits in which every list is in exactly one test part, and in no other part of that split."""
    if len(lists) < folds:
        raise DataError(f"{len(lists)} lists cannot be cut into {folds} folds: give more lists")
    fold_of_list = np.random.default_rng(0).permutation(len(lists)) % folds
    for fold in range(folds):
        tests, validates = fold_of_list == fold, fold_of_list == (fold + 1) % folds
        yield Split(lists[~tests & ~validates], lists[validates], lists[tests])


def digest(folds: list[Split]) -> str:
    """Return the SHA-256 of the lists: features, labels, lengths, ids and other columns."""
    found = hashlib.sha256()
    for lists in (part for fold in folds for part in fold):
        for array in (lists.features, lists.offsets, lists.labels):
            found.update(array.data if array is not None else b"-")
        for texts in (lists.list_ids, *lists.categorical.values(), *lists.context.values()):
            found.update("\n".join(map(str, texts.tolist())).encode())
    return found.hexdigest()


# From grades to clicks


def prepare(
    graded: Split,
    source: Path,
    users: Mapping[str, str],
    candidates: Mapping[str, Callable[[], Estimator]] = CANDIDATES,
) -> None:
    """Order the lists of a source, simulate the clicks of users, and write what is not there yet.

    Args:
        graded: The lists with their grades.
        source: The folder of the source.
        users: The click models by name, as `click_model` reads them.
        candidates: The base rankers to choose among.
    """
    if not (source / "facts.json").exists():
        _order_source(graded, source, candidates)
    facts = source_facts(source)
    missing = {name: text for name, text in users.items() if name not in facts["users"]}
    if not missing:
        return
    ordered = load_source(source)
    for name, text in missing.items():
        model = click_model(text, relevant_from=facts["relevant from"])
        for part, lists in click(model, ordered, f"{source.name}, {name}-clicks")._asdict().items():
            _save(lists.labels, source / f"{part}.{slug(name)}.npy")
    write_json(source / "facts.json", facts | {"users": facts["users"] | missing})


def _order_source(graded: Split, source: Path, candidates: Mapping[str, Callable[[], Estimator]]) -> None:
    name, base, values = choose_base_ranker(graded, candidates)
    ordered = order(graded, base, candidates[name])
    relevant_from = lowest_relevant_grade(graded)
    for part, lists in ordered._asdict().items():
        write_parquet(
            replace(lists, features=np.empty((lists.n_items, 0)), feature_names=()), source / f"{part}.parquet"
        )
        _save(lists.features, source / f"{part}.features.npy")
    facts = {
        "base ranker": name,
        "candidates": values,
        "relevant from": relevant_from,
        "feature names": ordered.test.feature_names,
        "users": {},
        **_facts(ordered, relevant_from),
    }
    write_json(source / "facts.json", facts)


def choose_base_ranker(
    graded: Split, candidates: Mapping[str, Callable[[], Estimator]] = CANDIDATES
) -> tuple[str, Estimator, dict[str, float]]:
    """Return the candidate with the best NDCG@10 on the graded validation lists, trained, and the NDCG@10 of each."""
    train, valid, _ = graded
    trained = {name: make().fit(train, valid, quiet=True) for name, make in candidates.items()}
    values = {name: _mean_at_10(ranker, valid) for name, ranker in trained.items()}
    best = max(values, key=values.__getitem__)
    return best, trained[best], values


def order(graded: Split, base: Estimator, make: Callable[[], Estimator]) -> Split:
    """Return the lists in base order: each training list by a ranker that was not trained on it."""
    train, valid, test = graded
    folds = 2 if len(train) >= _MANY_LISTS else min(5, len(train))
    crossed = order_out_of_fold(make(), train, valid, folds=folds)
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


def _n_lists(parts: Split) -> dict[str, int]:
    return {part: len(lists) for part, lists in parts._asdict().items()}


def _items_a_list(parts: Split) -> float:
    return float(parts.test.lengths.mean()) if len(parts.test) else 0.0


def _facts(ordered: Split, relevant_from: float) -> dict[str, Any]:
    test = ordered.test
    has_relevant = np.unique(test.list_index[test.labels >= relevant_from])  # type: ignore[operator]
    return {
        "lists": _n_lists(ordered),
        "items a list": _items_a_list(ordered),
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


# Without simulation


def store_log(log: Split, source: Path) -> None:
    """Write the parts of a real log, labels included; nobody simulated the clicks."""
    for part, lists in log._asdict().items():
        write_parquet(lists, source / f"{part}.parquet")
    write_json(source / "facts.json", {"lists": _n_lists(log), "items a list": _items_a_list(log), "users": {}})


# From disk


def source_facts(source: Path) -> dict[str, Any]:
    """Return the facts of a source, as `facts.json` has them."""
    facts: dict[str, Any] = json.loads((source / "facts.json").read_text())
    return facts


def fold_facts(folder: Path) -> list[dict[str, Any]]:
    """Return the facts of each fold that is there."""
    paths = sorted(folder.glob("fold*/facts.json"), key=lambda path: int(path.parent.name.removeprefix("fold")))
    return [source_facts(path.parent) for path in paths]


def source_user(source: Path, user: str) -> ClickModel | None:
    """Return the click model that labelled the lists of a source; None for a real log."""
    facts = source_facts(source)
    return click_model(facts["users"][user], relevant_from=facts["relevant from"]) if user else None


@lru_cache(maxsize=2)
def load_source(source: Path, user: str = "") -> Split:
    """Return the lists of a source with the clicks of a user, or as they are; features are mapped from the files."""
    return Split(*(_load_part(source, part, user) for part in Split._fields))


def _load_part(source: Path, part: str, user: str) -> ItemLists:
    lists = read_parquet(source / f"{part}.parquet")
    if (source / f"{part}.features.npy").exists():
        names = source_facts(source)["feature names"]
        features = np.load(source / f"{part}.features.npy", mmap_mode="c")  # writable, as PyTorch wants it, but private
        lists = replace(lists, features=features, feature_names=tuple(names))
    if user:
        lists = replace(lists, labels=np.load(source / f"{part}.{slug(user)}.npy"), relevance=lists.labels)
    return lists
