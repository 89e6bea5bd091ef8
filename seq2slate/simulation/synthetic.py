"""Synthetic lists from a world, with the true probability of relevance.

The paper simulates clicks on WEB30K and Yahoo, where nobody knows how good a slate could be. The items of a world are
drawn from a distribution that is written down, so that the best possible order can be computed and quality read on a
scale up to it. To add a world, write a class with the members of `World` and name it in `WORLDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seq2slate.data.lists import IntArray, ItemLists, Strings, numbers_as_strings, offsets_from_lengths
from seq2slate.errors import UsageError
from seq2slate.progress import track
from seq2slate.simulation.topics import TopicsWorld
from seq2slate.simulation.web30k import Web30kWorld
from seq2slate.simulation.world import World

WORLDS: Mapping[str, Callable[[int | None, int], World]] = {
    "web30k": Web30kWorld,
    "topics": TopicsWorld,
}
"""The worlds by name: each is made from a number of features, or None for its own, and a seed."""

_BLOCK_CELLS = 1 << 22  # features worked on at once: every temporary array of them takes 16 MB


def make_synthetic_lists(
    n_lists: int, *, items: float = 110, world: str = "web30k", features: int | None = None, seed: int
) -> ItemLists:
    """Return lists with grades from 0 to 4, in random order: ready for a base ranker and a click model.

    Args:
        n_lists: The number of lists.
        items: The mean length of a list; every list has at least one item.
        world: The distribution of the lists, a name in `WORLDS`: `web30k` has the columns and correlations of a sample
            of WEB30K, `topics` has topics that lie elsewhere in every list.
        features: The number of columns, 136 unless given. Only `topics` has other numbers, from 4 on.
        seed: Gives other lists of the same distribution.

    Returns:
        Lists whose `labels` are the grades. `relevance_probability` is the true probability of a grade of 2 or more,
        which is no feature.

    >>> lists = make_synthetic_lists(200, items=20, seed=1)
    >>> len(lists), lists.n_features, lists.list_ids[12].as_py(), lists[12].item_ids[3].as_py()
    (200, 136, 'g1-12', 'g1-12-3')
    >>> bool(abs((lists.labels >= 2).mean() - lists.relevance_probability.mean()) < 0.02)
    True
    >>> make_synthetic_lists(200, items=20, world="topics", features=16, seed=1).n_features
    16

    """
    source = _world_from_seed(world, n_lists, items, features, seed)
    offsets = offsets_from_lengths(source.draw_lengths(n_lists, items))
    table = np.empty((offsets[-1], source.n_features), dtype=np.float32)
    grades, probability = np.empty((2, offsets[-1]), dtype=np.float32)
    for block in track(list(_blocks(offsets, max_items=_BLOCK_CELLS // source.n_features)), "generating lists"):
        rows = slice(offsets[block.start], offsets[block.stop])
        lengths = np.diff(offsets[block.start : block.stop + 1])
        grades[rows], probability[rows] = source.draw_items(lengths, table[rows])
    list_ids, item_ids = _ids(offsets, seed)
    return ItemLists(table, offsets, grades, list_ids, item_ids, relevance_probability=probability)


def _world_from_seed(world: str, n_lists: int, items: float, features: int | None, seed: int) -> World:
    if n_lists < 0:
        raise UsageError(f"the number of lists must not be negative, got {n_lists}")
    if not 1 <= items < np.inf:
        raise UsageError(f"every list has at least one item, so the mean must be 1 or more, got {items}")
    if seed < 0:
        raise UsageError(f"seed must not be negative, got {seed}")
    if world not in WORLDS:
        raise UsageError(f"there is no world {world!r}; choose one of {', '.join(WORLDS)}")
    return WORLDS[world](features, seed)


def _blocks(offsets: IntArray, *, max_items: int) -> Iterator[slice]:
    """Yield neighbouring lists with at most `max_items` items together, or one longer list."""
    start = 0
    while start < len(offsets) - 1:
        fitting = int(np.searchsorted(offsets, offsets[start] + max_items, side="right")) - 1
        stop = max(start + 1, fitting)
        yield slice(start, stop)
        start = stop


def _ids(offsets: IntArray, seed: int) -> tuple[Strings, Strings]:
    """Return ids that no other seed gives: list 12 of seed 7 is "g7-12" and its first item "g7-12-0"."""
    lengths = np.diff(offsets)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    number = numbers_as_strings(np.arange(offsets[-1]) - offsets[owner])
    list_ids = _joined(pa.scalar(f"g{seed}", pa.large_string()), numbers_as_strings(np.arange(len(lengths))))
    return list_ids, _joined(list_ids.take(pa.array(owner)), number)


def _joined(first: pa.Scalar | Strings, second: Strings) -> Strings:
    return pc.binary_join_element_wise(first, second, pa.scalar("-", pa.large_string()))
