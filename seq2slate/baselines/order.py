"""The orders that cost nothing: as given, and at random."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from seq2slate.data.lists import Batch, IntArray, ItemLists
from seq2slate.data.ranker import base_slates, slates_from_scores


@dataclass(frozen=True)
class BaseOrder:
    """Every list as the base ranker ordered it: what all others are measured against.

    >>> lists = ItemLists(features=np.zeros((5, 1)), offsets=[0, 2, 5])
    >>> BaseOrder().rank(lists.batch()).tolist()
    [[0, 1, -1], [0, 1, 2]]
    """

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return slates (B, K) that keep the order given."""
        return base_slates(batch.mask, k)


@dataclass(frozen=True)
class RandomOrder:
    """Every list in a random order, which depends on the seed and on the list's id: the batch plays no part in it."""

    seed: int = 0

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return slates (B, K) in random order."""
        scores = np.zeros(batch.mask.shape)
        for row, key in zip(scores, list_keys(batch.lists), strict=True):
            np.random.default_rng((self.seed, key)).random(out=row)
        return slates_from_scores(scores, batch.mask, k)


def list_keys(lists: ItemLists) -> list[int]:
    """Return a number for each list, made from its id: with a seed it seeds random numbers of the list's own.

    Unlike `hash`, it is the same in every process.
    """
    return [int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) for name in lists.list_ids.to_pylist()]
