"""Rankers and slates: the one protocol of everything that orders items, the two orders that learn nothing, and slates.

A slate (B, K) holds indices into each list as given, best first, and `NO_ITEM` in the slots that the list cannot fill.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from numbers import Real
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from seq2slate.data.lists import Batch, BoolArray, IntArray, ItemLists
from seq2slate.errors import UsageError

NO_ITEM = -1
"""Pads a slate with more slots than the list has items."""


class Ranker(Protocol):
    """Anything that orders the items of a list, by shape and not by inheritance."""

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return slates (B, K), K = min(k, N); without k, every item is placed."""
        ...


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


def slates_from_scores(scores: npt.NDArray[np.floating], mask: BoolArray, k: int | None = None) -> IntArray:
    """Return slates (B, K) that sort scores (B, N) from high to low; ties keep the base order.

    >>> import numpy as np
    >>> slates_from_scores(np.array([[0.1, 0.9, 0.5]]), np.array([[True, True, False]])).tolist()
    [[1, 0, -1]]
    """
    return _sorted_slates((-scores, ~mask), mask)[:, :k]


def base_slates(mask: BoolArray, k: int | None = None) -> IntArray:
    """Return slates (B, K) in base order; padding follows the items of a list, as in every `Batch`.

    >>> import numpy as np
    >>> base_slates(np.array([[True, True, False], [True, True, True]])).tolist()
    [[0, 1, -1], [0, 1, 2]]
    """
    return np.where(mask, np.arange(mask.shape[1]), NO_ITEM)[:, :k]


def empty_slates(lengths: IntArray, k: int | None = None) -> IntArray:
    """Return slates (B, K) without items for lists of the given lengths (B,); K is at most the longest length.

    >>> import numpy as np
    >>> empty_slates(np.array([1, 2]), k=10).tolist()
    [[-1, -1], [-1, -1]]
    """
    longest = int(lengths.max(initial=0))
    return np.full((len(lengths), longest if k is None else min(k, longest)), NO_ITEM, dtype=np.int64)


def complete_slates(
    slates: IntArray, mask: BoolArray, scores: npt.NDArray[np.floating] | None = None, k: int | None = None
) -> IntArray:
    """Return slates that place, after their own K slots, all other items of the list.

    Args:
        slates: (B, K), no item twice.
        mask: (B, N), True for a real item.
        scores: (B, N); the other items follow by falling score, or in base order without scores.
        k: The number of slots to return; N if not given.

    >>> import numpy as np
    >>> mask = np.ones((1, 4), dtype=bool)
    >>> complete_slates(np.array([[2]]), mask).tolist()
    [[2, 0, 1, 3]]
    >>> complete_slates(np.array([[2]]), mask, scores=np.array([[0.1, 0.2, 0.3, 0.4]]), k=3).tolist()
    [[2, 3, 1]]

    """
    slots = slot_of_item(slates, mask)
    return _sorted_slates((slots, ~mask) if scores is None else (-scores, slots, ~mask), mask)[:, :k]


def slot_of_item(slates: IntArray, mask: BoolArray) -> IntArray:
    """Return (B, N) the slot, from 0, in which each item stands; N for an item that is not on the slate.

    >>> import numpy as np
    >>> slot_of_item(np.array([[2, 0]]), np.ones((1, 3), dtype=bool)).tolist()
    [[1, 3, 0]]
    """
    n_lists, n_items = mask.shape
    slots = np.full((n_lists, n_items + 1), n_items, dtype=np.int64)
    columns = np.broadcast_to(np.arange(slates.shape[1]), slates.shape)
    np.put_along_axis(slots, np.where(slates >= 0, slates, n_items), columns, axis=1)
    return slots[:, :n_items]


def check_slots(k: Any) -> int | None:
    """Return a number of slots as an int; None stays, and anything but a whole number above 0 is a UsageError.

    >>> check_slots(3.0), check_slots(None)
    (3, None)
    """
    if k is None:
        return None
    if isinstance(k, bool | str) or not isinstance(k, Real) or not float(k).is_integer() or float(k) < 1:
        raise UsageError(f"k is the number of slots, a whole number of at least 1, not {k!r}")
    return int(float(k))


def rank_lists(ranker: Ranker, lists: ItemLists, k: int | None = None, *, batch_size: int = 256) -> IntArray:
    """Return the slates (Q, K) of all lists, in the order of the lists; they are ranked in batches of similar length.

    >>> from seq2slate import BaseOrder
    >>> rank_lists(BaseOrder(), ItemLists([[0], [0], [0]], [0, 2, 3])).tolist()
    [[0, 1], [0, -1]]
    """
    k = check_slots(k)
    slates = empty_slates(lists.lengths, k)
    for batch in lists.batches(batch_size):
        ranked = ranker.rank(batch, k)
        slates[batch.index, : ranked.shape[1]] = ranked
    return slates


def reorder_lists(ranker: Ranker, lists: ItemLists) -> ItemLists:
    """Return the lists with the ranker's order as their base order.

    >>> from seq2slate import RandomOrder
    >>> reorder_lists(RandomOrder(seed=1), ItemLists([[0], [0], [0]], [0, 3])).item_ids.to_pylist()
    ['2', '1', '0']
    """
    batch = lists.batch()
    slots = slot_of_item(rank_lists(ranker, lists), batch.mask)
    return lists.reorder(-slots[batch.mask])


def _sorted_slates(keys: tuple[npt.NDArray[np.generic], ...], mask: BoolArray) -> IntArray:
    """Return slates (B, N) in rising order of the keys (B, N), of which the last counts most and puts padding last."""
    order = np.lexsort(keys, axis=1)
    return np.where(np.take_along_axis(mask, order, axis=1), order, NO_ITEM)
