"""The result of a cell, in one file that appears whole or not at all, and results joined over sources and seeds."""

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
from seq2slate.evaluation.statistics import mean_over_lists, none_if_nan, two_way_interval
from seq2slate.metrics import Values
from seq2slate.reproduce.plan import RECIPES, Cell, ReferenceRecipe, Row
from seq2slate.reproduce.sizes import RunSettings


@dataclass(frozen=True, eq=False)
class CellResult:
    """One ranker on the test lists of one source."""

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
    n_train: int
    """The training lists that there are."""
    sources: Sequence[str]
    """Whose test lists are joined: the folds of a data set, or one world or log."""

    @classmethod
    def load(
        cls, cells: Sequence[Cell], folder: Path, settings: RunSettings, *, n_train: int, sources: Sequence[str]
    ) -> Results:
        """Read the results of the cells that have a file."""
        found = {cell: CellResult.load(folder / cell.file) for cell in cells if (folder / cell.file).exists()}
        return cls(found, settings, n_train, sources)

    def of(self, user: str, row: Row) -> dict[int, list[CellResult]]:
        """Return the results of a row by seed, source by source; a seed that lacks a source is left out."""
        by_seed = {}
        for seed in range(row.seeds):
            found = [self.cells.get(row.cells(source, user)[seed]) for source in self.sources]
            whole = [result for result in found if result is not None]
            if len(whole) == len(self.sources):
                by_seed[seed] = whole
        return by_seed

    def values(self, user: str, row: Row, metric: str) -> Values:
        """Return (seeds, lists) the values of all test lists, source after source."""
        return _stacked([[result.values[metric] for result in whole] for whole in self.of(user, row).values()])

    def shown(self, user: str, row: Row) -> Values:
        """Return (seeds, lists, slots) the clicks on the slates, source after source."""
        return _stacked([[result.shown for result in whole] for whole in self.of(user, row).values()])

    def n_lists(self, row: Row) -> int | None:
        """Return the number of training lists of a row; None where nothing is trained."""
        return None if isinstance(RECIPES[row.recipe], ReferenceRecipe) else row.lists or self.n_train


def paired(values: Values, others: Values) -> Values:
    """Return (seeds, lists) the differences to other values; one seed goes with all, and of more the first few.

    >>> paired(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 1.0]])).tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    n_seeds = min(len(values), len(others)) if min(len(values), len(others)) > 1 else None
    differences: Values = values[:n_seeds] - others[:n_seeds]
    return differences


def interval_of(values: Values) -> dict[str, float | None]:
    """Return mean, low and high of values (seeds, lists): the 95% interval over both."""
    low, high = two_way_interval(values)
    numbers = {"mean": mean_over_lists(values), "low": float(low), "high": float(high)}
    return {name: none_if_nan(number) for name, number in numbers.items()}


def _stacked(seeds: list[list[Any]]) -> Values:
    if not seeds:
        return np.zeros((0, 0))
    stacked: Values = np.stack([np.concatenate(folds) for folds in seeds])
    return stacked


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON, whole or not at all."""
    with atomic_path(path) as partial:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
