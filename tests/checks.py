"""The one battery that every public ranker passes, and the lists that try it hardest."""

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pyarrow as pa

from seq2slate.data.lists import Batch, IntArray, ItemLists, offsets_from_lengths
from seq2slate.data.ranker import NO_ITEM, Ranker

NAMES = ("empty", "no positives", "single", "pair", "duplicates", "ordinary", "long")
"""What is special about each of the `mixed_lists`; also their ids."""


def mixed_lists(seed: int, *, n_features: int = 4, longest: int = 13) -> ItemLists:
    """Return one list of every kind: see `NAMES`. They have clicks as labels, grades and relevance probabilities."""
    rng = np.random.default_rng(seed)
    lengths = np.array([0, 5, 1, 2, 8, 7, longest])
    offsets = offsets_from_lengths(lengths)
    features = rng.normal(size=(offsets[-1], n_features)) * 10.0 ** (np.arange(n_features) % 4)
    duplicated = offsets[NAMES.index("duplicates")]
    features[duplicated + 4 : duplicated + 8] = features[duplicated : duplicated + 4]
    probability = rng.beta(0.8, 1.2, size=offsets[-1])
    relevant = rng.random(offsets[-1]) < probability
    relevance = np.where(relevant, rng.integers(2, 5, offsets[-1]), rng.integers(0, 2, offsets[-1]))
    nothing = NAMES.index("no positives")
    relevance[offsets[nothing] : offsets[nothing + 1]] = 0
    labels = (relevance >= 2) & (rng.random(offsets[-1]) < 0.8)
    return ItemLists(
        features,
        offsets,
        labels=labels,
        list_ids=NAMES,
        relevance=relevance,
        relevance_probability=probability,
    )


def check_ranker(
    ranker: Ranker,
    lists: ItemLists,
    *,
    prefix: bool = True,
    save_load: Callable[[Ranker], Ranker] | None = None,
) -> None:
    """Fail, and say for which list, unless the ranker keeps every promise of the protocol on these lists.

    `prefix`: the first k slots are the same however many are asked for, as every ranker promises that does not plan for
    a number of slots. `save_load` writes a ranker and returns what it reads back.
    """
    assert {0, 1} <= set(lists.lengths.tolist()), "the lists to check with need an empty one and a single item"
    check_untouched(ranker, lists)  # first: a change made by an earlier call would not show
    slates = ranker.rank(lists.batch())
    check_permutations(slates, lists, None)
    check_same(ranker.rank(lists.batch()), slates, lists, "a second call")
    longest = int(lists.lengths.max())
    for k in (1, 3, longest, longest + 5):
        top = ranker.rank(lists.batch(), k)
        check_permutations(top, lists, k)
        if prefix:
            check_same(top, slates[:, :k], lists, f"k={k} instead of all slots")
        check_company(ranker, lists, top, k)
    check_company(ranker, lists, slates, None)
    if save_load is not None:
        check_same(save_load(ranker).rank(lists.batch()), slates, lists, "save and load")


def check_permutations(slates: IntArray, lists: ItemLists, k: int | None) -> None:
    """Every list has each item at most once, all of them if there is room, and no item after its end."""
    longest = int(lists.lengths.max(initial=0))
    shape = (len(lists), longest if k is None else min(k, longest))
    assert slates.shape == shape, f"slates must have shape {shape} for k={k}, got {slates.shape}"
    assert slates.dtype == np.int64, f"slates must be int64, got {slates.dtype}"
    for number, length in enumerate(lists.lengths.tolist()):
        where = f"{describe(lists, number)}, k={k}: {slates[number].tolist()}"
        n_placed = min(length, shape[1])
        placed, rest = slates[number, :n_placed].tolist(), slates[number, n_placed:].tolist()
        assert set(rest) <= {NO_ITEM}, f"slots after the last item must be {NO_ITEM}; {where}"
        assert all(0 <= item < length for item in placed), f"the first {n_placed} slots must hold real items; {where}"
        assert len(set(placed)) == len(placed), f"an item stands twice; {where}"


def check_company(ranker: Ranker, lists: ItemLists, slates: IntArray, k: int | None) -> None:
    """A list gets the same slate alone, in another order of lists, and with more or less padding."""
    for number, length in enumerate(lists.lengths.tolist()):
        alone = ranker.rank(lists.batch([number]), k)
        check_permutations(alone, lists[number], k)
        check_same(alone, slates[[number], : alone.shape[1]], lists[number], f"alone, k={k}")
        assert (slates[number, length:] == NO_ITEM).all()
    backwards = np.arange(len(lists))[::-1]
    check_same(ranker.rank(lists.batch(backwards), k), slates[backwards], lists[backwards], f"in another order, k={k}")
    short = np.flatnonzero(lists.lengths < lists.lengths.max())
    less = ranker.rank(lists.batch(short), k)
    check_same(less, slates[short, : less.shape[1]], lists[short], f"with less padding, k={k}")


def check_untouched(ranker: Ranker, lists: ItemLists) -> None:
    """Ranking changes neither the lists nor the padded arrays of the batch."""
    batch = lists.batch()
    before = snapshot(batch)
    ranker.rank(batch)
    after = snapshot(batch)
    changed = [name for name in before if before[name] != after[name]]
    assert not changed, f"rank changed its input: {', '.join(changed)}"


def check_same(slates: IntArray, expected: IntArray, lists: ItemLists, what: str) -> None:
    """Both are the same slates of the lists; `what` says how they were made."""
    assert slates.shape == expected.shape, f"{what}: shape {slates.shape} instead of {expected.shape}"
    for number in np.flatnonzero((slates != expected).any(axis=1)).tolist():
        found, wanted = slates[number].tolist(), expected[number].tolist()
        raise AssertionError(f"{what}: {describe(lists, number)} is ranked {found} instead of {wanted}")


def snapshot(batch: Batch) -> dict[str, bytes]:
    """Every array that a ranker can reach, by name, as bytes."""
    arrays = {field.name: getattr(batch.lists, field.name) for field in fields(batch.lists)}
    arrays |= {"batch.features": batch.features, "batch.mask": batch.mask, "batch.index": batch.index}
    if batch.lists.labels is not None:
        arrays["batch.labels"] = batch.labels
    return {name: as_bytes(values) for name, values in arrays.items()}


def as_bytes(values: object) -> bytes:
    """The contents of an array; text columns cannot be changed in place, but may be replaced."""
    if isinstance(values, np.ndarray):
        return values.tobytes()
    return repr(values.to_pylist() if isinstance(values, pa.Array) else values).encode()


def describe(lists: ItemLists, number: int) -> str:
    return f"list {lists.list_ids[number].as_py()!r} of {lists.lengths[number]} items"
