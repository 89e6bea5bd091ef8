"""Numeric columns: their fitted scale, and what a missing value (NaN) becomes; the formulas are in `data.features`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from seq2slate.data.lists import BoolArray, FloatArray, IntArray
from seq2slate.errors import DataError

Scaling: TypeAlias = Literal["signed-log", "standardise", "none"]
"""How numeric columns are scaled: standardised after a signed logarithm, standardised, or not at all."""
Missing: TypeAlias = Literal["impute", "refuse"]
"""What happens to missing numbers: the mean takes their place, beside an indicator, or they are an error."""
Locate: TypeAlias = Callable[[int], str]
"""Names a row in an error message."""

CLIP = 10.0
"""Scaled values are clipped to so many standard deviations: a bounded effect of a broken value in serving."""

_BLOCK_CELLS = 1 << 20  # values scaled at once: temporary arrays stay below 10 MB


@dataclass(frozen=True, eq=False)
class NumberColumns:
    """Numeric columns and their fitted scale: z = clip((y − mean) · inverse_std, ±clip), y = x or its signed log.

    A missing value is the mean. The indicators, 1 where the value is missing and 0 elsewhere, follow the columns.

    >>> values = np.array([[1.0], [3.0], [np.nan]], dtype=np.float32)
    >>> columns = NumberColumns.fit(values, ["price"], "standardise", "row {}".format)
    >>> columns.apply(values, "row {}".format).tolist()
    [[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """

    names: tuple[str, ...]
    scaling: Scaling
    mean: FloatArray
    """(F,) of the y that are there; 0 for a constant column that is scaled."""
    inverse_std: FloatArray
    """(F,) 1 / std of y; 0 for a constant column, 1 without scaling."""
    missing: Missing = "impute"
    indicators: tuple[str, ...] = ()
    """The columns with an indicator, in the order of `names`: those with missing and with other values in training."""
    clip: float = CLIP

    @classmethod
    def fit(
        cls,
        values: FloatArray,
        names: Sequence[str],
        scaling: Scaling,
        locate: Locate,
        *,
        missing: Missing = "impute",
    ) -> NumberColumns:
        """Fit mean and standard deviation of values (rows, F); without rows every column counts as constant."""
        found = _moments(_blocks(values, names, locate, missing), len(names), scaling)
        partly = (found.n_values > 0) & (found.n_values < len(values))
        indicators = tuple(name for name, is_partly in zip(names, partly, strict=True) if is_partly)
        if scaling == "none":
            mean, inverse = found.mean, np.ones(len(names))
        else:
            # A deviation below the resolution of float32 is rounding error, and its inverse might be infinite.
            constant = found.std <= np.maximum(found.largest * np.finfo(np.float32).eps, 1e-30)
            mean = np.where(constant, 0, found.mean)
            inverse = np.divide(1, found.std, out=np.zeros_like(found.std), where=~constant)
        return cls(tuple(names), scaling, mean.astype(np.float32), inverse.astype(np.float32), missing, indicators)

    @property
    def n_outputs(self) -> int:
        """F + M, the number of columns with the indicators."""
        return len(self.names) + len(self.indicators)

    @cached_property
    def indicator_places(self) -> IntArray:
        """(M,) the number of the column that each indicator is of."""
        places = {name: place for place, name in enumerate(self.names)}
        return np.array([places[name] for name in self.indicators], dtype=np.int64)

    @cached_property
    def imputed(self) -> FloatArray:
        """(F,) what takes the place of a missing value, after scaling: the mean."""
        return self.mean if self.scaling == "none" else np.zeros_like(self.mean)

    def apply(self, values: FloatArray, locate: Locate) -> FloatArray:
        """Return the scaled values and the indicators (rows, F + M)."""
        n_columns = len(self.names)
        applied = np.empty((len(values), self.n_outputs), np.float32)
        for start, block, is_missing in _blocks(values, self.names, locate, self.missing):
            rows = slice(start, start + len(block))
            scaled = self._scaled(block)
            applied[rows, :n_columns] = scaled if is_missing is None else np.where(is_missing, self.imputed, scaled)
            if self.indicators:
                applied[rows, n_columns:] = 0 if is_missing is None else is_missing[:, self.indicator_places]
        return applied

    def check(self, values: FloatArray, locate: Locate) -> None:
        """Raise a DataError if a value is infinite, or missing where that is refused."""
        for _ in _blocks(values, self.names, locate, self.missing):
            pass

    def _scaled(self, block: FloatArray) -> FloatArray:
        if self.scaling == "none":
            return block
        scaled = signed_log(block) if self.scaling == "signed-log" else block.copy()
        with np.errstate(over="ignore"):  # a difference beyond float32 is clipped with the rest
            scaled -= self.mean
            scaled *= self.inverse_std
        return np.clip(scaled, -self.clip, self.clip, out=scaled)


def signed_log(values: FloatArray) -> FloatArray:
    """Return sign(x) · log(1 + |x|), within 3e-7; NumPy's log1p is not vectorised and takes three times as long."""
    sizes = np.abs(values)
    sums = 1 + sizes
    lost = sizes - (sums - 1)  # in the sum, to rounding
    logs: FloatArray = np.log(sums) + lost / sums
    return np.copysign(logs, values, out=logs)


class _Moments(NamedTuple):
    """Of the values of each column that are there, (F,) each."""

    n_values: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]
    largest: npt.NDArray[np.float64]
    """The largest absolute value."""


def _moments(blocks: Iterator[tuple[int, FloatArray, BoolArray | None]], n_columns: int, scaling: Scaling) -> _Moments:
    """Return the moments of y; all are 0 for a column without a value.

    Blocks are merged by their means and squared deviations (Chan, Golub and LeVeque), which avoids the cancellation of
    a sum of squares.
    """
    n_values, mean, squares, largest = np.zeros((4, n_columns))
    for _, raw, is_missing in blocks:
        block = (signed_log(raw) if scaling == "signed-log" else raw).astype(np.float64)
        added = np.full(n_columns, float(len(block)))
        if is_missing is not None:
            block[is_missing] = 0
            added -= is_missing.sum(axis=0)
        largest = np.maximum(largest, np.abs(block).max(axis=0))
        block_mean = block.sum(axis=0) / np.maximum(added, 1)
        delta, weight = block_mean - mean, added / np.maximum(n_values + added, 1)
        block -= block_mean
        if is_missing is not None:
            block[is_missing] = 0
        squares += np.square(block, out=block).sum(axis=0) + delta**2 * (n_values * weight)
        mean += delta * weight
        n_values += added
    return _Moments(n_values, mean, np.sqrt(squares / np.maximum(n_values, 1)), largest)


def _blocks(
    values: FloatArray, names: Sequence[str], locate: Locate, missing: Missing
) -> Iterator[tuple[int, FloatArray, BoolArray | None]]:
    """Yield the number of the first row, some rows, and where they are missing, which is None for nowhere.

    Raises:
        DataError: A value is infinite, or missing where that is refused.

    """
    n_rows = max(1, _BLOCK_CELLS // max(1, len(names)))
    for start in range(0, len(values), n_rows):
        block = values[start : start + n_rows]
        if np.isfinite(block).all():
            yield start, block, None
            continue
        is_missing = np.isnan(block)
        refused = ~np.isfinite(block) if missing == "refuse" else np.isinf(block)
        if refused.any():
            row, column = np.argwhere(refused)[0]
            cure = "every number must be finite"
            if is_missing[row, column]:
                cure = "missing values are refused: fill it, or train with missing='impute'"
            raise DataError(f"{locate(start + int(row))}: {names[column]!r} is {block[row, column]:g}; {cure}")
        yield start, block, is_missing
