"""RankNet and ListNet learn what their losses say, keep the best epoch, and pass what every ranker passes."""

import math
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import torch

from seq2slate.baselines.neural import ListNet, RankNet
from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import Ranker, rank_lists
from seq2slate.errors import DataError, TrainingStoppedError, UsageError
from seq2slate.metrics import ndcg
from seq2slate.saving import load_saved
from seq2slate.training.losses import LOSSES
from tests.checks import check_ranker, mixed_lists

Neural: TypeAlias = type[RankNet] | type[ListNet]
ALL: list[Neural] = [RankNet, ListNet]


def lists_with_an_order(n_lists: int, seed: int, *, noise: float = 0.0) -> ItemLists:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_lists * 10, 4))
    labels = features[:, 2] + noise * rng.normal(size=len(features)) > 1
    return ItemLists(features, np.arange(n_lists + 1) * 10, labels=labels)


def mean_ndcg(ranker: Ranker, lists: ItemLists) -> float:
    batch = lists.batch()
    return float(np.nanmean(ndcg(rank_lists(ranker, lists, 10), batch.labels, mask=batch.mask, k=10)))


# What they learn


def test_ranknet_has_the_logistic_loss_of_pairs() -> None:
    scores = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    loss = LOSSES[RankNet.loss](scores, torch.tensor([[2.0, 1.0, 0.0]]), mask=torch.ones(1, 3, dtype=torch.bool))
    margins = {(0, 1): 1.5, (0, 2): -1.5, (1, 2): -3.0}
    assert loss.item() == pytest.approx(sum(math.log(1 + math.exp(-margin)) for margin in margins.values()) / 3)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    pull = {pair: 1 / (1 + math.exp(margin)) / 3 for pair, margin in margins.items()}  # λ of Burges et al., 2010
    expected = [-pull[0, 1] - pull[0, 2], pull[0, 1] - pull[1, 2], pull[0, 2] + pull[1, 2]]
    assert scores.grad is not None
    assert scores.grad[0].tolist() == pytest.approx(expected)


def test_listnet_has_the_cross_entropy_of_the_top_one() -> None:
    scores = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    labels = np.array([2.0, 1.0, 0.0])
    loss = LOSSES[ListNet.loss](scores, torch.tensor(labels[None]), mask=torch.ones(1, 3, dtype=torch.bool))
    wanted = np.exp(labels) / np.exp(labels).sum()
    given = np.exp([0.5, -1.0, 2.0]) / np.exp([0.5, -1.0, 2.0]).sum()
    assert loss.item() == pytest.approx(-(wanted * np.log(given)).sum())
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    np.testing.assert_allclose(scores.grad[0], given - wanted)


def test_ranknet_learns_log_odds() -> None:
    """Of two items the first is clicked in 3 lists of 4: the loss is lowest where its score is log 3 higher."""
    n_lists = 3000
    clicked_first = np.arange(n_lists) % 4 != 0
    labels = np.column_stack([clicked_first, ~clicked_first]).ravel()
    lists = ItemLists(np.tile(np.eye(2), (n_lists, 1)), np.arange(n_lists + 1) * 2, labels=labels)
    ranker = RankNet(epochs=1, dropout=0, batch_size=32, learning_rate=3e-3, base_position=False).fit(lists, lists)
    first, second = ranker.score_items(lists[0])
    assert first - second == pytest.approx(math.log(3), abs=0.1)


def test_listnet_learns_the_labels_up_to_a_constant() -> None:
    """Softmax of scores equals softmax of labels where their differences are the same."""
    n_lists = 3000
    offsets = np.arange(n_lists + 1) * 3
    lists = ItemLists(np.tile(np.eye(3), (n_lists, 1)), offsets, labels=np.tile([1, 0, 3], n_lists))
    scores = (
        ListNet(epochs=1, dropout=0, batch_size=32, learning_rate=3e-3, base_position=False)
        .fit(lists, lists)
        .score_items(lists[0])
    )
    assert (scores - scores[1]).tolist() == pytest.approx([1, 0, 3], abs=0.1)


@pytest.mark.parametrize("kind", ALL)
def test_they_learn_which_column_matters(kind: Neural) -> None:
    train, valid, test = (lists_with_an_order(count, seed) for seed, count in enumerate((300, 50, 50)))
    batch = test.batch()
    best = batch.features[:, :, 2].argmax(1)
    assert (kind().fit(train, valid).rank(batch, 1)[:, 0] == best)[batch.labels.any(1)].mean() > 0.8


@pytest.mark.parametrize("kind", ALL)
def test_the_base_position_is_a_column_unless_it_is_left_out(kind: Neural) -> None:
    """Features say nothing, and the last item is always the one that is clicked."""
    lists = ItemLists(np.zeros((600, 1)), np.arange(0, 601, 6), labels=np.arange(600) % 6 == 5)
    assert (kind().fit(lists, lists).rank(lists.batch(), 1) == 5).all()
    assert (kind(base_position=False).fit(lists, lists).rank(lists.batch()) == np.arange(6)).all()


# Which epoch they keep


@pytest.mark.parametrize("kind", ALL)
def test_they_keep_the_best_epoch(kind: Neural) -> None:
    train, valid = lists_with_an_order(30, 0, noise=2.0), lists_with_an_order(60, 1, noise=2.0)

    def fit(epochs: int, patience: int = 100) -> RankNet | ListNet:
        return kind(epochs=epochs, patience=patience, batch_size=10, learning_rate=0.01).fit(train, valid)

    rankers = [fit(epochs) for epochs in range(1, 9)]
    best_so_far = [mean_ndcg(ranker, valid) for ranker in rankers]
    is_kept = [np.array_equal(a.score_items(valid), b.score_items(valid)) for a, b in pairwise(rankers)]
    rises = np.diff(best_so_far) > 0
    assert rises.any()
    assert not rises.all()
    assert is_kept == (~rises).tolist()  # an epoch that is not better leaves no trace
    assert (np.diff(best_so_far) >= 0).all()
    first_wait = is_kept.index(True)  # the epoch after this one was no better
    np.testing.assert_array_equal(fit(50, patience=1).score_items(valid), rankers[first_wait].score_items(valid))


@pytest.mark.parametrize("kind", ALL)
def test_the_seed_decides_and_the_global_generator_is_left_alone(kind: Neural) -> None:
    lists = lists_with_an_order(30, 0, noise=2.0)
    state = torch.random.get_rng_state()
    scores = [kind(epochs=2, seed=seed).fit(lists, lists).score_items(lists) for seed in (1, 1, 2)]
    assert torch.equal(torch.random.get_rng_state(), state)
    np.testing.assert_array_equal(scores[0], scores[1])
    assert (scores[0] != scores[2]).any()


# As rankers


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("base_position", [True, False])
def test_they_pass_the_battery_and_survive_saving(kind: Neural, base_position: bool, tmp_path: Path) -> None:
    lists = mixed_lists(seed=0)
    ranker = kind(epochs=3, base_position=base_position).fit(lists, lists)

    def save_load(_: Ranker) -> Ranker:
        ranker.save(tmp_path / "network")
        return kind.from_saved(load_saved(tmp_path / "network"))

    check_ranker(ranker, lists, save_load=save_load)
    assert load_saved(tmp_path / "network").kind == {RankNet: "ranknet", ListNet: "listnet"}[kind]


def test_equal_items_keep_the_base_order() -> None:
    lists = mixed_lists(seed=0, n_features=40, longest=200)
    ranker = RankNet(epochs=1, base_position=False).fit(lists, lists)
    for one in (ItemLists(np.tile(lists.features[row], (97, 1)), [0, 97]) for row in range(20)):
        np.testing.assert_array_equal(ranker.rank(one.batch())[0], np.arange(97))


@pytest.mark.parametrize("kind", ALL)
def test_scores_are_those_of_the_network_without_dropout(kind: Neural) -> None:
    lists = lists_with_an_order(20, 0)
    ranker = kind(hidden_layers=[5], epochs=1).fit(lists, lists)
    (weights, biases), (last_weights, last_biases) = ranker.layers_
    assert weights.shape == (5, 5)  # four columns and the base position
    inputs = np.append(ranker.transform_.apply(lists).dense[13], math.log(1 + 3))
    units = [max(0.0, float(row @ inputs + bias)) for row, bias in zip(weights, biases, strict=True)]
    assert ranker.score_items(lists)[13] == pytest.approx(last_weights[0] @ units + last_biases[0], rel=1e-5)


# What goes wrong


@pytest.mark.parametrize("kind", ALL)
def test_numbers_that_are_not_finite_stop_the_training_and_name_the_lists(kind: Neural) -> None:
    lists = mixed_lists(seed=0)
    with pytest.raises(
        TrainingStoppedError, match=r"loss became NaN or infinite for the lists \w+( \w+)?: lower the learning"
    ):
        kind(learning_rate=1e30, batch_size=1).fit(lists, lists)
    with pytest.raises(
        TrainingStoppedError, match=r"scores became .* for the lists no positives, .*, duplicates, .*, long: lower"
    ):
        kind(learning_rate=1e30).fit(lists, lists)


@pytest.mark.parametrize("kind", ALL)
def test_they_say_what_is_missing(kind: Neural) -> None:
    lists = lists_with_an_order(20, 0)
    with pytest.raises(DataError, match="validation lists have no labels"):
        kind().fit(lists, ItemLists(lists.features, lists.offsets))
    with pytest.raises(DataError, match="no training list has a positive"):
        kind().fit(ItemLists(lists.features, lists.offsets, labels=np.zeros(lists.n_items)), lists)
    bare = ItemLists(np.zeros((lists.n_items, 0)), lists.offsets, labels=lists.labels)
    with pytest.raises(DataError, match="no dense column"):
        kind(base_position=False).fit(bare, bare)
    with pytest.raises(UsageError, match="epochs must be at least 1"):
        kind(epochs=0).fit(lists, lists)
    with pytest.raises(DataError, match="feature"):
        kind(epochs=1).fit(lists, lists).rank(ItemLists(np.zeros((2, 3)), [0, 2]).batch())
