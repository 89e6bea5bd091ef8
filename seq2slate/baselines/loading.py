"""From a name or a folder to a ranker: the one place where names of rankers are known."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.baselines.order import BaseOrder, RandomOrder
from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import Ranker
from seq2slate.errors import DataError, UsageError
from seq2slate.saving import load_saved
from seq2slate.simulation.click_models import ClickModel

_CLASSES = {
    "seq2slate": "seq2slate.model.slate_model:SlateModel",
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
"""Every kind of ranker that can be trained and saved, and where it is; it is loaded when somebody asks for it."""

RERANKERS = ("dlcm", "prm", "setrank")
"""The rankers that are presets of the network, and are saved as networks; see `training.config`."""

LEARNERS = (*(kind for kind in _CLASSES if kind != "seq2slate"), *RERANKERS)
"""The rankers that `fit_ranker` trains; the network itself has choices of its own, see `training.train`."""

BUILT_IN = ("base", "random", "ceiling-logged", "ceiling-shown")
"""The rankers that need no folder; the ceilings need a simulated user and generated lists."""


class SavableRanker(Ranker, Protocol):
    """A ranker that can be written to a folder."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the ranker to a folder of its own."""
        ...


def fit_ranker(kind: str, train: ItemLists, valid: ItemLists, *, seed: int = 0) -> SavableRanker:
    """Train a ranker of the given kind; the validation lists choose where a method has rounds or a trade-off."""
    if kind not in LEARNERS:
        raise UsageError(f"there is no ranker {kind!r} to train; choose one of {', '.join(LEARNERS)}")
    if kind in RERANKERS:
        from seq2slate.training.train import Choices, train_model  # PyTorch is loaded when somebody asks for it

        return train_model(train, valid, Choices(kind, seed=seed), quiet=True)[0]
    ranker: SavableRanker = _class_of(kind).fit(train, valid, seed=seed)
    return ranker


def load_ranker(folder: str | os.PathLike[str]) -> Ranker:
    """Open the ranker that a folder holds, whatever its kind."""
    saved = load_saved(folder)
    if saved.kind not in _CLASSES:
        raise DataError(f"{folder} holds a {saved.kind!r} ranker; this seq2slate knows {', '.join(_CLASSES)}")
    ranker: Ranker = _class_of(saved.kind).from_saved(saved)
    return ranker


def _class_of(kind: str) -> Any:
    module, name = _CLASSES[kind].split(":")
    return getattr(import_module(module), name)


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
    return name or Path(folder).name, load_ranker(folder)


def parse_rankers(texts: Sequence[str], *, user: ClickModel | None = None, seed: int = 0) -> dict[str, Ranker]:
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
