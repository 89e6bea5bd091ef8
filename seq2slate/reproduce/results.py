"""The result of a cell, in one file that appears whole or not at all, and results joined over folds and seeds."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from seq2slate.atomic import atomic_path
from seq2slate.data.lists import IntArray
from seq2slate.errors import DataError
from seq2slate.metrics import Values
from seq2slate.reproduce.plan import Cell, RunSettings, seeds_of


@dataclass(frozen=True, eq=False)
class CellResult:
    """One ranker on the test lists of one fold."""

    list_ids: Sequence[str]
    """(Q,) the test lists."""
    values: Mapping[str, Values]
    """Measure → (Q,) values; NaN for a list that has none."""
    shown: Values
    """(Q, 10) mean clicks at each slot when the user is shown the slates."""
    changes: IntArray
    """(C, 3) by how many positions items moved up, whether they were clicked (0 or 1), and the number of items."""
    seconds: Mapping[str, float]
    """Of training and of ranking all test lists; of a network, also of training up to its best epoch."""
    curve: Sequence[Mapping[str, float]] = field(default=())
    """An entry for each epoch of a network: loss, value."""
    measure: str = ""
    """The measure of the curve's values."""

    def save(self, path: Path) -> None:
        """Write all of it to one file."""
        head = {"seconds": dict(self.seconds), "curve": list(self.curve), "measure": self.measure}
        arrays = {f"value {name}": values for name, values in self.values.items()}
        with atomic_path(path) as partial, partial.open("wb") as file:
            np.savez_compressed(
                file,
                head=np.array(json.dumps(head)),
                list_ids=np.array(self.list_ids, dtype=np.str_),
                shown=self.shown,
                changes=self.changes,
                **arrays,  # type: ignore[arg-type]
            )

    @classmethod
    def load(cls, path: Path) -> CellResult:
        """Read what `save` wrote; a broken file is a DataError."""
        try:
            with path.open("rb") as file, np.load(file) as stored:
                arrays = dict(stored)
            values = {name.removeprefix("value "): array for name, array in arrays.items() if name.startswith("value ")}
            head = json.loads(str(arrays["head"]))
            return cls(arrays["list_ids"].tolist(), values, arrays["shown"], arrays["changes"], **head)
        except (OSError, ValueError, TypeError, KeyError, EOFError, BadZipFile, zlib.error) as error:
            raise DataError(f"{path}: not the result of a cell ({error}); remove it, and it is made again") from error


@dataclass(frozen=True, eq=False)
class Results:
    """The cells of a run that are done."""

    cells: Mapping[Cell, CellResult]
    settings: RunSettings
    folds: int

    @classmethod
    def load(cls, cells: Sequence[Cell], folder: Path, settings: RunSettings, folds: int) -> Results:
        """Read the results of the cells that have a file."""
        found = {cell: CellResult.load(folder / cell.file) for cell in cells if (folder / cell.file).exists()}
        return cls(found, settings, folds)

    def of(self, user: str, recipe: str) -> dict[int, list[CellResult]]:
        """Return the results of a recipe by seed, fold by fold; a seed that lacks a fold is left out."""
        by_seed = {}
        for seed in seeds_of(recipe, self.settings):
            folds = [self.cells.get(Cell(user, fold, recipe, seed)) for fold in range(self.folds)]
            whole = [result for result in folds if result is not None]
            if len(whole) == self.folds:
                by_seed[seed] = whole
        return by_seed

    def values(self, user: str, recipe: str, metric: str) -> Values:
        """Return (seeds, lists) the values of all test lists, fold after fold."""
        return _stacked([[result.values[metric] for result in folds] for folds in self.of(user, recipe).values()])

    def shown(self, user: str, recipe: str) -> Values:
        """Return (seeds, lists, slots) the clicks on the slates, fold after fold."""
        return _stacked([[result.shown for result in folds] for folds in self.of(user, recipe).values()])


def _stacked(seeds: list[list[Any]]) -> Values:
    if not seeds:
        return np.zeros((0, 0))
    stacked: Values = np.stack([np.concatenate(folds) for folds in seeds])
    return stacked


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON, whole or not at all."""
    with atomic_path(path) as partial:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
