"""From a name or a folder to a ranker: the one place where names of rankers are known."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.baselines.linear import RidgeRanker
from seq2slate.baselines.order import BaseOrder, RandomOrder
from seq2slate.baselines.trees import LambdaMart
from seq2slate.data.clicks import User
from seq2slate.data.ranker import Ranker
from seq2slate.errors import DataError, UsageError
from seq2slate.model.saving import SavedRanker, load_saved


def _open_network(saved: SavedRanker) -> Ranker:
    from seq2slate.model.seq2slate import Seq2Slate  # loads PyTorch, which no other ranker needs

    return Seq2Slate.from_saved(saved)


SAVED_RANKERS: dict[str, Callable[[SavedRanker], Ranker]] = {
    "ridge": RidgeRanker.from_saved,
    "lambdamart": LambdaMart.from_saved,
    "seq2slate": _open_network,
}
"""The kinds of ranker that a folder may hold."""

BUILT_IN = ("base", "random", "ceiling-logged", "ceiling-shown")
"""The rankers that need no folder; the ceilings need a simulated user and generated lists."""


def load_ranker(folder: str | os.PathLike[str]) -> Ranker:
    """Open the ranker that a folder holds, whatever its kind."""
    saved = load_saved(folder)
    if saved.kind not in SAVED_RANKERS:
        raise DataError(f"{folder} holds a {saved.kind!r} ranker; this seq2slate knows {', '.join(SAVED_RANKERS)}")
    return SAVED_RANKERS[saved.kind](saved)


def parse_ranker(text: str, *, user: User | None = None, seed: int = 0) -> tuple[str, Ranker]:
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


def parse_rankers(texts: Sequence[str], *, user: User | None = None, seed: int = 0) -> dict[str, Ranker]:
    """Return the rankers of several texts by name, each name once."""
    rankers: dict[str, Ranker] = {}
    for text in texts:
        name, ranker = parse_ranker(text, user=user, seed=seed)
        if name in rankers:
            raise UsageError(f"two rankers are called {name!r}: give one of them another NAME=…")
        rankers[name] = ranker
    return rankers


def _built_in(name: str, user: User | None, seed: int) -> Ranker:
    if name == "base":
        return BaseOrder()
    if name == "random":
        return RandomOrder(seed)
    if user is None:
        raise UsageError(f"{name} is the best order for a simulated user: name the user too")
    return LoggedCeiling(user, seed=seed) if name == "ceiling-logged" else ShownCeiling(user, seed=seed)
