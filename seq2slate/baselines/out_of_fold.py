"""Order training lists with rankers that did not see them.

A ranker trained on the lists that it orders makes them look better than any list will ever look again, and what is
trained on those lists learns to trust the base order too much.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import Ranker, reorder_lists
from seq2slate.errors import UsageError
from seq2slate.progress import track


def order_out_of_fold(
    fit: Callable[[ItemLists], Ranker], lists: ItemLists, *, folds: int = 5, seed: int = 0
) -> ItemLists:
    """Return the lists, each in the order of a ranker fitted on the other folds, in their own sequence.

    >>> from seq2slate.baselines.order import BaseOrder
    >>> lists = ItemLists(np.zeros((6, 1)), [0, 3, 6])
    >>> len(order_out_of_fold(lambda other_lists: BaseOrder(), lists, folds=2))
    2
    """
    if not 2 <= folds <= len(lists):
        raise UsageError(f"cross-fitting needs 2 to {len(lists)} folds for {len(lists)} lists, got {folds}")
    fold_of_list = np.random.default_rng(seed).permutation(len(lists)) % folds
    ordered = [
        reorder_lists(fit(lists[fold_of_list != fold]), lists[fold_of_list == fold])
        for fold in track(range(folds), "cross-fitting the base ranker")
    ]
    lists_by_fold = np.argsort(fold_of_list, kind="stable")
    return ItemLists.concat(ordered)[np.argsort(lists_by_fold)]
