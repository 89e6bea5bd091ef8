"""Batching by length: lists of similar length share a batch, so that little is padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seq2slate.errors import UsageError

IntArray: TypeAlias = npt.NDArray[np.int64]

MAX_PAIRS = 1 << 24
"""The largest B · N² of a batch: a float32 for each pair of items then takes at most 64 MB."""


def batch_indices(lengths: IntArray, batch_size: int, *, seed: int | None = None) -> list[IntArray]:
    """Return the numbers of the lists in each batch, as `ItemLists.batches` forms them.

    Args:
        lengths: (Q,) the number of items of each list.
        batch_size: The most lists in a batch; long lists make smaller batches, see `MAX_PAIRS`.
        seed: Shuffles the lists, sorts them by length within pools of 64 batches, and shuffles the batches. Without it,
            all lists are sorted by length.

    >>> [batch.tolist() for batch in batch_indices(np.array([5, 1, 4, 1]), batch_size=2)]
    [[1, 3], [2, 0]]

    """
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, got {batch_size}")
    rng = None if seed is None else np.random.default_rng(seed)
    order = np.arange(len(lengths)) if rng is None else rng.permutation(len(lengths))
    pool = max(1, len(order)) if rng is None else 64 * batch_size
    batches = []
    for start in range(0, len(order), pool):
        members = order[start : start + pool]
        members = members[np.argsort(lengths[members], kind="stable")]
        for at in range(0, len(members), batch_size):
            batches += _bounded(members[at : at + batch_size], lengths)
    return batches if rng is None else [batches[number] for number in rng.permutation(len(batches))]


def _bounded(batch: IntArray, lengths: IntArray) -> list[IntArray]:
    """Return the batch in as many parts as `MAX_PAIRS` asks for."""
    longest = max(1, int(lengths[batch].max(initial=0)))
    parts = -(-len(batch) * longest**2 // MAX_PAIRS)
    return np.array_split(batch, min(parts, len(batch)))


def padding_share(lengths: IntArray, batches: Sequence[IntArray]) -> float:
    """Return the share of padding in all batches: 1 − items / Σ B · N.

    >>> padding_share(np.array([1, 3]), [np.array([0, 1])]) == 1 - 4 / 6
    True
    """
    cells = sum(len(index) * int(lengths[index].max(initial=0)) for index in batches)
    return 1 - int(lengths.sum()) / cells if cells else 0.0
