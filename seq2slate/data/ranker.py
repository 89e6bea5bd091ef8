"""What everything that orders items has in common: `rank(batch, k)` gives slates."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from seq2slate.data.lists import Batch, BoolArray, IntArray, ItemLists

NO_ITEM = -1
"""Fills the slots of a slate that has fewer items than slots."""


class Ranker(Protocol):
    """Anything that orders the items of a list, by shape and not by inheritance."""

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return slates (B, K), K = min(k, N): indices into each list as given, best first, -1 where it has no more."""
        ...


def slates_from_scores(scores: npt.NDArray[np.floating], mask: BoolArray, k: int | None = None) -> IntArray:
    """Return the slates (B, K) that sort scores (B, N) from high to low; ties keep the base order.

    >>> import numpy as np
    >>> slates_from_scores(np.array([[0.1, 0.9, 0.5]]), np.array([[True, True, False]])).tolist()
    [[1, 0, -1]]
    """
    order = np.lexsort((-scores, ~mask), axis=1)
    slates = np.where(np.take_along_axis(mask, order, axis=1), order, NO_ITEM)
    return slates[:, :k]


def complete_slates(slates: IntArray, mask: BoolArray) -> IntArray:
    """Return slates (B, N) that go on, after their K slots, with the items not yet placed in base order.

    >>> import numpy as np
    >>> complete_slates(np.array([[2]]), np.ones((1, 4), dtype=bool)).tolist()
    [[2, 0, 1, 3]]
    """
    return slates_from_scores(-slot_of_item(slates, mask).astype(np.float64), mask)


def slot_of_item(slates: IntArray, mask: BoolArray) -> IntArray:
    """Return (B, N) the slot in which each item stands; N for an item that is not on the slate."""
    n_lists, n_items = mask.shape
    slots = np.full((n_lists, n_items + 1), n_items, dtype=np.int64)
    columns = np.broadcast_to(np.arange(slates.shape[1]), slates.shape)
    np.put_along_axis(slots, np.where(slates >= 0, slates, n_items), columns, axis=1)
    return slots[:, :n_items]


def rank_lists(ranker: Ranker, lists: ItemLists, k: int | None = None, *, batch_size: int = 256) -> IntArray:
    """Return the slates (Q, K) of all lists, in their own order, ranked in batches of similar length."""
    longest = int(lists.lengths.max(initial=0))
    slates = np.full((len(lists), longest if k is None else min(k, longest)), NO_ITEM, dtype=np.int64)
    for batch in lists.batches(batch_size):
        ranked = ranker.rank(batch, k)
        slates[batch.index, : ranked.shape[1]] = ranked
    return slates


def reorder_lists(ranker: Ranker, lists: ItemLists) -> ItemLists:
    """Return the lists in the order that the ranker gives them: its order becomes the base order."""
    batch = lists.batch()
    slots = slot_of_item(rank_lists(ranker, lists), batch.mask)
    return lists.reorder(-slots[batch.mask])
