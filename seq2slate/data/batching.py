"""Which lists stand together in a batch: lists of similar length, so that little is padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seq2slate.errors import UsageError

IntArray: TypeAlias = npt.NDArray[np.int64]

MAX_PAIRS = 1 << 24
"""Batches of long lists have fewer lists, so that an array with a number for each pair of items stays below 64 MB."""


def batch_indices(lengths: IntArray, batch_size: int, *, seed: int | None = None) -> list[IntArray]:
    """Return the lists of each batch, as `ItemLists.batches` forms them."""
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, got {batch_size}")
    if seed is None:
        order = np.argsort(lengths, kind="stable")
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        return [part for batch in batches for part in _bounded(batch, lengths)]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(lengths))
    pool = 64 * batch_size
    batches = []
    for start in range(0, len(order), pool):
        members = order[start : start + pool]
        members = members[np.argsort(lengths[members], kind="stable")]
        batches += [members[at : at + batch_size] for at in range(0, len(members), batch_size)]
    batches = [part for batch in batches for part in _bounded(batch, lengths)]
    return [batches[number] for number in rng.permutation(len(batches))]


def _bounded(batch: IntArray, lengths: IntArray) -> list[IntArray]:
    """Return the batch in as many parts as it takes for none to have more than `MAX_PAIRS` pairs of items."""
    longest = max(1, int(lengths[batch].max(initial=0)))
    parts = -(-len(batch) * longest**2 // MAX_PAIRS)
    return np.array_split(batch, min(parts, len(batch))) if len(batch) else [batch]


def padding_share(lengths: IntArray, batches: Sequence[IntArray]) -> float:
    """Return the share of padded cells over all batches: 0 means that no cell is wasted."""
    cells = sum(len(index) * int(lengths[index].max(initial=0)) for index in batches)
    return 1 - int(lengths.sum()) / cells if cells else 0.0
