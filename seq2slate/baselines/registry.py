"""From a name or a folder to a ranker: the one place where the names of rankers are known."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.baselines.order import BaseOrder, RandomOrder
from seq2slate.data.ranker import Ranker
from seq2slate.errors import DataError, UsageError
from seq2slate.estimator import Estimator
from seq2slate.saving import load_saved
from seq2slate.simulation.click_models import ClickModel

ESTIMATORS: dict[str, str] = {
    "seq2slate": "seq2slate.reranker:Reranker",
    "ridge": "seq2slate.baselines.linear:RidgeRanker",
    "coordinate-ascent": "seq2slate.baselines.coordinate_ascent:CoordinateAscent",
    "adarank": "seq2slate.baselines.boosting:AdaRank",
    "rankboost": "seq2slate.baselines.boosting:RankBoost",
    "mart": "seq2slate.baselines.trees:Mart",
    "lambdamart": "seq2slate.baselines.trees:LambdaMart",
    "random-forest": "seq2slate.baselines.trees:RandomForest",
    "ranknet": "seq2slate.baselines.neural:RankNet",
    "listnet": "seq2slate.baselines.neural:ListNet",
    "mmr": "seq2slate.baselines.diversity:Mmr",
    "dpp": "seq2slate.baselines.diversity:GreedyDpp",
    "ranklib": "seq2slate.baselines.ranklib:RankLibRanker",
}
"""Every kind of estimator, and where its class is; it is imported when somebody asks for it."""

NETWORK_PRESETS = ("dlcm", "prm", "setrank")
"""Presets of the network that have names of their own in the literature, and may stand where a kind does."""

BUILT_IN = ("base", "random", "ceiling-logged", "ceiling-shown")
"""The rankers that need no folder; the ceilings need a simulated user and generated lists."""


def estimator_class(kind: str) -> type[Estimator]:
    """Return the class of a kind of estimator."""
    if kind not in ESTIMATORS:
        raise UsageError(f"there is no ranker {kind!r} to train; choose one of {', '.join(ESTIMATORS)}")
    module, name = ESTIMATORS[kind].split(":")
    found: type[Estimator] = getattr(import_module(module), name)
    return found


def make_estimator(kind: str, **options: Any) -> Estimator:
    """Return an estimator with these options, by the name of its kind or of one of the `NETWORK_PRESETS`.

    >>> make_estimator("mart", trees=20)
    Mart(seed=0, base_position=True, trees=20, leaves=15, learning_rate=0.05)
    """
    if kind in NETWORK_PRESETS:
        kind, options = "seq2slate", {"preset": kind, **options}
    return estimator_class(kind)().set_params(**options)


def load(folder: str | os.PathLike[str]) -> Estimator:
    """Open the ranker that a folder holds, whatever its kind.

    Raises:
        DataError: The folder holds no ranker, is damaged, or was written by another version.

    """
    saved = load_saved(folder)
    if saved.kind not in ESTIMATORS:
        raise DataError(f"{folder} holds a {saved.kind!r} ranker; this seq2slate knows {', '.join(ESTIMATORS)}")
    try:
        return estimator_class(saved.kind).from_saved(saved)
    except DataError as error:
        raise DataError(f"{folder}: {error}") from error


def parse_ranker(text: str, *, user: ClickModel | None = None, seed: int = 0) -> tuple[str, Ranker]:
    """Return name and ranker for `NAME=FOLDER`, a folder, or the name of a built-in ranker.

    >>> parse_ranker("base")
    ('base', BaseOrder())
    """
    name, _, folder = text.rpartition("=")
    if folder in BUILT_IN:
        return name or folder, _built_in(folder, user, seed)
    if not Path(folder).is_dir():
        raise UsageError(f"{folder!r} is neither a folder nor one of the built-in rankers {', '.join(BUILT_IN)}")
    return name or Path(folder).name, load(folder)


def parse_rankers(texts: Sequence[str], *, user: ClickModel | None = None, seed: int = 0) -> Mapping[str, Ranker]:
    """Return the rankers of several texts by name, each name once."""
    rankers: dict[str, Ranker] = {}
    for text in texts:
        name, ranker = parse_ranker(text, user=user, seed=seed)
        if name in rankers:
            raise UsageError(f"two rankers are called {name!r}: give one of them another NAME=…")
        rankers[name] = ranker
    return rankers


def _built_in(name: str, user: ClickModel | None, seed: int) -> Ranker:
    if name == "base":
        return BaseOrder()
    if name == "random":
        return RandomOrder(seed)
    if user is None:
        raise UsageError(f"{name} is the best order for a simulated user: name the user too")
    return LoggedCeiling(user, seed=seed) if name == "ceiling-logged" else ShownCeiling(user, seed=seed)
