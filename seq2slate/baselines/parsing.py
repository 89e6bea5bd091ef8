"""From a text such as `base`, `FOLDER` or `NAME=FOLDER` to a ranker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.data.ranker import BaseOrder, RandomOrder, Ranker
from seq2slate.errors import UsageError
from seq2slate.estimator import load
from seq2slate.simulation.click_models import ClickModel

BUILT_IN = ("base", "random", "ceiling-logged", "ceiling-shown")
"""The rankers that need no folder; the ceilings need a simulated user and generated lists."""


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
