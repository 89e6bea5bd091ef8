"""Problems of labelled lists that training and metrics cannot see: leaks, and labels without negatives.

`inspect` prints them; `fit` and `evaluate` warn of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lgamma, log
from typing import Any

import numpy as np
import numpy.typing as npt

from seq2slate.data.lists import FloatArray, IntArray, ItemLists

MOST_ITEMS = 20_000
"""The search for leaks reads the first lists up to about so many items."""
LOG_CHANCE = -20.0
"""A column that fits the labels by chance with a smaller log-probability than this is a leak."""


def find_problems(lists: ItemLists) -> list[str]:
    """Return a sentence for each problem of labelled lists, with what to do; none for lists without labels.

    >>> lists = ItemLists([[0.0], [1.0]] * 50, [*range(0, 101, 2)], labels=[0, 1] * 50, feature_names=["bought"])
    >>> find_problems(lists)[0]
    "column 'bought' equals the label: a leak, unless it is known before the list is shown; leave it out (ignore=)"
    """
    return [*label_problems(lists), *find_leaks(lists)]


def label_problems(lists: ItemLists) -> Iterator[str]:
    """Yield what is wrong with the labels: grades that start above 0, or lists in which everything is positive."""
    labels = lists.labels
    if labels is None or not len(labels):
        return
    lowest = float(labels.min())
    if lowest > 0 and labels.max() > lowest:
        yield (
            f"the lowest label is {lowest:g}, so every item counts as positive: subtract {lowest:g} from the labels if "
            "they are grades"
        )
        return
    negatives = np.bincount(lists.list_index[labels <= 0], minlength=len(lists))
    several = lists.lengths > 1
    full = int(((negatives == 0) & several).sum())
    if full and full >= several.sum() / 2:
        yield (
            f"in {full:,} of {int(several.sum()):,} lists with two or more items every item is positive: such lists "
            "tell nothing apart; keep the items without a click, with label 0"
        )


def find_leaks(lists: ItemLists) -> Iterator[str]:
    """Yield the columns of items that equal the label, or determine it beyond chance."""
    last = max(1, int(np.searchsorted(lists.offsets, MOST_ITEMS)))
    some = lists[:last]
    if some.labels is None or not some.n_items or some.labels.min() == some.labels.max():
        return
    columns: dict[str, Any] = dict(zip(some.feature_names, some.features.T, strict=True))
    columns |= {name: values for name, values in some.categorical.items() if not values.equals(some.item_ids)}
    for name, values in columns.items():
        if how := _leak(values, some.labels):
            yield (
                f"column {name!r} {how} the label: a leak, unless it is known before the list is shown; leave it out "
                "(ignore=)"
            )


def _leak(values: Any, labels: FloatArray) -> str | None:
    if isinstance(values, np.ndarray):
        if np.array_equal(values, labels):
            return "equals"
        if _chance_of_order(values, labels) < LOG_CHANCE:
            return "determines"
        codes = np.unique(values, return_inverse=True)[1]
    else:
        codes = values.dictionary_encode(null_encoding="encode").indices.to_numpy()
    return "determines" if _chance_of_agreement(codes, labels) < LOG_CHANCE else None


def _chance_of_order(values: npt.NDArray[Any], labels: FloatArray) -> float:
    """Return the log-probability that random labels separate the values as these do; 0 if they do not.

    Labels separate values if the values of any two items with different labels differ, always in the same direction:
    2 of T! / Π_c n_c! ways, with n_c items of label c.
    """
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=np.nan) != 0)
    lows, highs = (extreme.reduceat(values[order], starts) for extreme in (np.minimum, np.maximum))
    if not ((highs[:-1] < lows[1:]).all() or (lows[:-1] > highs[1:]).all()):
        return 0.0
    sizes = np.diff(starts, append=len(labels))
    return log(2) - lgamma(len(labels) + 1) + sum(map(lgamma, (sizes + 1).tolist()))


def _chance_of_agreement(codes: IntArray, labels: FloatArray) -> float:
    """Return the log-probability that items with the same value have the same label, if labels are random.

    That is Σ over the values v of log Σ_c p_c^(n_v), with n_v items of value v and the share p_c of label c; 0 if any
    two items with one value have different labels.
    """
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    lowest, highest = (extreme.reduceat(classes[order], starts) for extreme in (np.minimum, np.maximum))
    if (highest > lowest).any():
        return 0.0
    sizes, times = np.unique(np.diff(starts, append=len(codes)), return_counts=True)
    shares = np.log(counts / len(labels))
    of_size = (np.logaddexp.reduce(shares * size) if size > 1 else 0.0 for size in sizes)
    return float(sum(n * chance for n, chance in zip(times, of_size, strict=True)))
