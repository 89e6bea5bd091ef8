"""Order training lists with rankers that did not see them.

A ranker trained on the lists that it orders makes them look better than any list will ever look again, and what is
trained on those lists learns to trust the base order too much.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np

from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import reorder_lists
from seq2slate.errors import UsageError
from seq2slate.estimator import Estimator
from seq2slate.progress import track


def order_out_of_fold(
    estimator: Estimator, lists: ItemLists, valid: ItemLists | None = None, *, folds: int = 5, seed: int = 0
) -> ItemLists:
    """Return the lists, each in the order of a ranker that was fitted on the other folds (cross-fitting).

    Args:
        estimator: The ranker with its options; it stays as it is, and a copy of it is fitted for each fold.
        lists: Labelled lists; they come back in their own sequence.
        valid: Validation lists for each fit.
        folds: Into how many parts the lists are divided.
        seed: Which list belongs to which part.

    >>> from seq2slate.baselines.linear import RidgeRanker
    >>> lists = ItemLists(np.eye(6), [0, 3, 6], labels=[0, 1, 0, 0, 0, 1])
    >>> len(order_out_of_fold(RidgeRanker(), lists, folds=2))
    2

    """
    if not 2 <= folds <= len(lists):
        raise UsageError(f"cross-fitting needs 2 to {len(lists)} folds for {len(lists)} lists, got {folds}")
    fold_of_list = np.random.default_rng(seed).permutation(len(lists)) % folds
    ordered = [
        reorder_lists(
            deepcopy(estimator).fit(lists[fold_of_list != fold], valid, quiet=True), lists[fold_of_list == fold]
        )
        for fold in track(range(folds), "cross-fitting the base ranker")
    ]
    lists_by_fold = np.argsort(fold_of_list, kind="stable")
    return ItemLists.concat(ordered)[np.argsort(lists_by_fold)]
