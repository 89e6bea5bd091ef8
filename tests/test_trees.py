"""LambdaMART learns an order, and passes what every ranker passes."""

from pathlib import Path

import numpy as np
import pytest

from seq2slate.baselines.loading import load_ranker
from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import Ranker
from seq2slate.errors import DataError
from tests.checks import check_ranker, mixed_lists

pytest.importorskip("lightgbm", reason="LightGBM is not installed")

from seq2slate.baselines.trees import LambdaMart


def lists_with_an_order(n_lists: int, seed: int) -> ItemLists:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_lists * 10, 4))
    return ItemLists(features, np.arange(n_lists + 1) * 10, labels=features[:, 2] > 1)


def test_it_learns_which_column_matters() -> None:
    train, valid, test = (lists_with_an_order(count, seed) for seed, count in enumerate((200, 50, 50)))
    batch = test.batch()
    best = batch.features[:, :, 2].argmax(1)
    assert (LambdaMart.fit(train, valid).rank(batch, 1)[:, 0] == best)[batch.labels.any(1)].mean() > 0.7


def test_it_passes_the_battery_and_survives_saving(tmp_path: Path) -> None:
    lists = mixed_lists(seed=0)
    ranker = LambdaMart.fit(lists, lists, trees=5)

    def save_load(_: Ranker) -> Ranker:
        ranker.save(tmp_path / "trees")
        return load_ranker(tmp_path / "trees")

    check_ranker(ranker, lists, save_load=save_load)


def test_it_says_what_is_missing() -> None:
    lists = lists_with_an_order(20, 0)
    with pytest.raises(DataError, match="validation lists have no labels"):
        LambdaMart.fit(lists, ItemLists(lists.features, lists.offsets))
    with pytest.raises(DataError, match="feature"):
        LambdaMart.fit(lists, lists, trees=2).rank(ItemLists(np.zeros((2, 3)), [0, 2]).batch())
