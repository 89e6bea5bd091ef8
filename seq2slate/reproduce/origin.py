"""How a run came about, for run.json: command, versions, seconds, and what to know about its data."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from seq2slate import __version__
from seq2slate.atomic import atomic_path
from seq2slate.evaluation.comparison import Comparison
from seq2slate.reproduce.cells import RECIPES
from seq2slate.reproduce.data import USERS
from seq2slate.reproduce.pictures import RULE
from seq2slate.reproduce.results import Results
from seq2slate.reproduce.text import Said

_PACKAGES = ("torch", "numpy", "lightgbm")


def origin(results: Results, facts: Sequence[Mapping[str, Any]], written: Said, *, seconds: float) -> dict[str, Any]:
    """Return what a report says of a run besides its results."""
    return {
        "title": "The experiments of the paper",
        "command": " ".join(["seq2slate", *sys.argv[1:]]),
        "versions": {"seq2slate": __version__, "python": platform.python_version(), **dict(_versions())},
        "seeds": list(range(results.settings.seeds)),
        "notes": list(_notes(facts, written)),
        "seconds": {"this run": round(seconds, 1), **seconds_of(results)},
    }


def seconds_of(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """Return user → recipe → what took how long, as a mean over folds and seeds."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for user in USERS:
        for recipe in RECIPES:
            of_cells = [
                result.seconds for cell, result in results.cells.items() if (cell.user, cell.recipe) == (user, recipe)
            ]
            if of_cells:
                means = {what: float(np.mean([one[what] for one in of_cells])) for what in of_cells[0]}
                found.setdefault(user, {})[recipe] = {what: round(mean, 3) for what, mean in means.items()}
    return found


def _versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:  # a baseline that is not installed was not used
            continue


def _notes(facts: Sequence[Mapping[str, Any]], written: Said) -> Iterator[str]:
    sizes = {part: [fold["lists"][part] for fold in facts] for part in ("train", "valid", "test")}

    def mean(name: str) -> float:
        return float(np.average([fold[name] for fold in facts], weights=sizes["test"]))

    yield _sizes_note(sizes)
    yield (
        f"Test lists have {mean('items a list'):.1f} items on average; {mean('without relevant items'):.1%} of them "
        "have no relevant item."
    )
    tried = ", ".join(
        f"{name} {np.mean([fold['candidates'][name] for fold in facts]):.3f}" for name in facts[0]["candidates"]
    )
    yield (
        f"Base ranker: {' or '.join(dict.fromkeys(fold['base ranker'] for fold in facts))}, the best by NDCG@10 on the "
        f"graded validation lists ({tried}). It learns from grades, all others from clicks."
    )
    yield (
        f"The base order's NDCG@10 on the grades of the test lists: {mean('base order NDCG@10'):.3f} with linear gain, "
        f"{mean('base order NDCG-exp@10'):.3f} with exponential gain."
    )
    yield (
        f"Items are relevant from grade {facts[0]['relevant from']:g} on. Similar-clicks have an eta of 0.3, the "
        "paper's for Web30k, whatever the data (the paper has 0.1 for Yahoo)."
    )
    yield (
        "seq2slate is the preset `default`: the paper's network with a prior on the base position and a learned "
        "item similarity, whose threshold starts at the median distance of a list, as these users have it."
    )
    for name, rows in written.tables.items():
        yield from _ceiling_note(name, Comparison(rows))
    yield RULE


def _sizes_note(sizes: Mapping[str, Sequence[int]]) -> str:
    folds = len(sizes["test"])
    train, valid, test = (sum(sizes[part]) for part in ("train", "valid", "test"))
    if folds == 1:
        return f"{train:,} lists to learn from, {valid:,} to choose with and {test:,} to report on."
    return (
        f"Cross-validation by list in {folds} folds: each of {test:,} lists is reported on once, by rankers that did "
        f"not see it; about {train // folds:,} train and {valid // folds:,} validate each time."
    )


def _ceiling_note(name: str, comparison: Comparison) -> Iterator[str]:
    if not comparison.rankers:
        return
    metric = comparison.main_metric
    ceiling = comparison.ceiling(metric)
    gain = None if ceiling is None else comparison.gain(ceiling.ranker, metric)
    if ceiling is not None and gain is not None:
        yield f"In {name}, the ceiling itself is {gain:+.1%} above the base order by {metric}."


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON, whole or not at all."""
    with atomic_path(path) as partial:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
