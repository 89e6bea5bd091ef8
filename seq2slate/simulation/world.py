"""What every world has: a distribution of lists from which lists of any number and length can be drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from seq2slate.data.lists import FloatArray, IntArray

Doubles: TypeAlias = npt.NDArray[np.float64]


class Relevance(NamedTuple):
    """How relevant some items (T,) are."""

    grade: npt.NDArray[np.floating]
    """From 0 to 4."""
    probability: npt.NDArray[np.floating]
    """Of a grade of 2 or more, given all but the noise of the grade, which is independent from item to item."""


class World(Protocol):
    """A world with the random streams of one seed: every call draws what comes next in them.

    Every random quantity has a stream of its own, so that neither the sequence of the calls nor the number of lists
    in each changes what is drawn.
    """

    @property
    def n_features(self) -> int:
        """The number of columns, F."""

    def draw_lengths(self, n_lists: int, mean: float) -> IntArray:
        """Return the number of items (Q,) of each list, at least 1."""

    def draw_items(self, lengths: IntArray, table: FloatArray) -> Relevance:
        """Write the features of all items of the next lists into the table (T, F)."""


def stratified_lengths(
    n_lists: int,
    mean: float,
    relative: Callable[[Doubles], npt.NDArray[np.floating]],
    *,
    stratum: Generator,
    length: Generator,
    rounding: Generator,
) -> IntArray:
    """Return 1 + a random number, rounded up or down at random so that the expected length is the mean exactly.

    One draw from each of `n_lists` equally likely strata keeps the mean of few lists at what was asked for, too.

    Args:
        n_lists: The number of lists.
        mean: Their mean length.
        relative: Maps probabilities in (0, 1], counted from the longest list, to lengths; their mean is 1.
        stratum: Assigns the strata.
        length: Draws within the strata.
        rounding: Rounds up or down.
    """
    from_top = (stratum.permutation(n_lists) + 1 - length.random(n_lists)) / n_lists  # in (0, 1]
    after_first = (mean - 1) * relative(from_top)
    after_first += rounding.random(n_lists)
    return 1 + np.asarray(after_first, dtype=np.int64)


def normals(stream: Generator, *shape: int) -> FloatArray:
    """Return independent standard normal numbers in single precision."""
    return stream.standard_normal(shape, dtype=np.float32)
