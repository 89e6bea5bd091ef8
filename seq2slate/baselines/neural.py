"""RankNet and ListNet: a small network that scores each item by itself, trained on whole lists.

The two differ in their loss alone. Where they depart from the papers that they are named after:

- Both have the same network, two hidden layers of rectified units with dropout. RankNet's had one hidden layer, and
  ListNet's was linear.
- RankNet's loss is the mean over the pairs of a list, not the sum, so that long lists do not drown the short ones.
- Adam on batches of lists takes the place of plain gradient descent, one query at a time.

The network reads the normalised dense columns, and the logarithm of the base position as one column more unless it is
left out. PyTorch trains it; ranking is NumPy in float64, so that neither the company of a list nor its place in the
batch changes a score, and equal items stay in base order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import Batch, FloatArray, IntArray, ItemLists
from seq2slate.data.ranker import slates_from_scores
from seq2slate.errors import DataError, UsageError
from seq2slate.metrics import ndcg
from seq2slate.progress import track
from seq2slate.saving import SavedRanker
from seq2slate.training.fit import TrainingStoppedError
from seq2slate.training.losses import Loss, list_net, pairwise_logistic

Layers: TypeAlias = tuple[tuple[FloatArray, FloatArray], ...]
"""Weights (out, in) and biases (out,) of each layer, the last of which has one output: the score."""


@dataclass(frozen=True, eq=False)
class _NeuralRanker:
    """What the rankers of this module share: everything but the loss."""

    layers: Layers
    transform: FeatureTransform
    base_position: bool = True
    """Whether the network looks at the base position too."""

    kind: ClassVar[str]
    """The name under which the ranker is saved."""
    loss: ClassVar[Loss]
    """What it learns to make small, one value a list."""

    @classmethod
    def fit(
        cls,
        train: ItemLists,
        valid: ItemLists,
        *,
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.5,
        learning_rate: float = 3e-4,
        batch_size: int = 128,
        epochs: int = 50,
        patience: int = 5,
        base_position: bool = True,
        seed: int = 0,
    ) -> Self:
        """Train until NDCG@10 of the validation lists has not risen for `patience` epochs, and keep the best one."""
        if epochs < 1:
            raise UsageError(f"epochs must be at least 1, got {epochs}")
        _check_labels(train, valid)
        if not train.n_features and not base_position:
            raise DataError("the lists have no dense column, and without the base position there is nothing to read")
        transform = FeatureTransform.fit(train, categorical=[], context=[])
        to_learn, to_choose = (_with_inputs(lists, transform, base_position) for lists in (train, valid))
        rng = np.random.default_rng(seed)
        best, best_epoch = -np.inf, -1
        best_layers: Layers = ()
        with torch.random.fork_rng(devices=[]):  # the first weights and the dropout; the caller's luck stays as it is
            torch.manual_seed(seed)
            network = _multi_layer(to_learn.n_features, hidden, dropout)
            optimiser = torch.optim.Adam(network.parameters(), lr=learning_rate)
            for epoch in track(range(epochs), f"training ({cls.kind})"):
                batches = to_learn.batches(batch_size, seed=int(rng.integers(2**63)))
                _run_epoch(network, optimiser, cls.loss, batches)
                layers = _layers(network)
                value = _mean_ndcg(layers, to_choose)
                if value > best:
                    best, best_epoch, best_layers = value, epoch, layers
                elif epoch - best_epoch >= patience:
                    break
        return cls(best_layers, transform, base_position)

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Sort by the score of the network."""
        return slates_from_scores(batch.pad(self.score(batch.lists)), batch.mask, k)

    def score(self, lists: ItemLists) -> FloatArray:
        """Return the score (T,) of each item."""
        return _scores(self.layers, _inputs(lists, self.transform, self.base_position))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the ranker to a folder of its own."""
        weights = {f"{number}.weights": weights for number, (weights, _) in enumerate(self.layers)}
        weights |= {f"{number}.biases": biases for number, (_, biases) in enumerate(self.layers)}
        SavedRanker(self.kind, {"base_position": self.base_position}, weights, self.transform).save(folder)

    @classmethod
    def from_saved(cls, saved: SavedRanker) -> Self:
        """Build the ranker from what its folder holds."""
        weights, n_layers = saved.weights, len(saved.weights) // 2
        layers = tuple((weights[f"{number}.weights"], weights[f"{number}.biases"]) for number in range(n_layers))
        return cls(layers, saved.transform, saved.config["base_position"])


class RankNet(_NeuralRanker):
    """RankNet (Burges et al. 2005): the logistic loss of every pair of items of a list whose labels differ."""

    kind = "ranknet"
    loss = staticmethod(pairwise_logistic)


class ListNet(_NeuralRanker):
    """ListNet (Cao et al. 2007): the cross-entropy of the softmax of the scores to the softmax of the labels."""

    kind = "listnet"
    loss = staticmethod(list_net)


def _check_labels(train: ItemLists, valid: ItemLists) -> None:
    for name, lists in (("training", train), ("validation", valid)):
        if lists.labels is None:
            raise DataError(f"the {name} lists have no labels")
        if not (lists.labels > 0).any():
            raise DataError(f"no {name} list has a positive: there is nothing to learn from, or to choose with")


# Training


def _multi_layer(n_inputs: int, hidden: Sequence[int], dropout: float) -> nn.Sequential:
    network = nn.Sequential()
    for width in hidden:
        network.extend([nn.Linear(n_inputs, width), nn.ReLU(), nn.Dropout(dropout)])
        n_inputs = width
    return network.append(nn.Linear(n_inputs, 1))


def _run_epoch(network: nn.Module, optimiser: torch.optim.Optimizer, loss: Loss, batches: Iterable[Batch]) -> None:
    for batch in batches:
        mask = torch.from_numpy(batch.mask)
        of_items: Tensor = network(torch.from_numpy(batch.lists.features)).squeeze(1)  # no time is spent on padding
        scores = of_items.new_zeros(mask.shape).masked_scatter(mask, of_items)
        value = loss(scores, torch.from_numpy(batch.labels), mask=mask).mean()
        _check_finite("loss", bool(torch.isfinite(value)), batch)
        optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def _check_finite(name: str, is_finite: bool, batch: Batch) -> None:
    if not is_finite:
        names = ", ".join(batch.lists.list_ids[:10].to_pylist())
        raise TrainingStoppedError(
            f"infinite or undefined {name} in a batch with the lists {names}{' …' if len(batch) > 10 else ''}: "
            "lower the learning rate, or look at their labels"
        )


def _layers(network: nn.Sequential) -> Layers:
    """Return a copy of the weights as they are now."""
    linear = [module for module in network if isinstance(module, nn.Linear)]
    return tuple((layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()) for layer in linear)


def _mean_ndcg(layers: Layers, lists: ItemLists) -> float:
    """Return NDCG@10 over the lists with a positive, whose features are already inputs."""
    values = []
    for batch in lists.batches(256):
        with np.errstate(over="ignore", invalid="ignore"):  # told in a better way
            scores = _scores(layers, batch.lists.features)
        _check_finite("scores", bool(np.isfinite(scores).all()), batch)
        slates = slates_from_scores(batch.pad(scores), batch.mask, 10)
        values.append(ndcg(slates, batch.labels, mask=batch.mask, k=10))
    return float(np.nanmean(np.concatenate(values)))


# Scoring


def _inputs(lists: ItemLists, transform: FeatureTransform, base_position: bool) -> FloatArray:
    """Return the columns (T, F or F + 1) that the network reads."""
    dense = transform.apply(lists).dense
    return np.column_stack([dense, np.log1p(lists.positions, dtype=np.float32)]) if base_position else dense


def _with_inputs(lists: ItemLists, transform: FeatureTransform, base_position: bool) -> ItemLists:
    """Return the lists with what the network reads in place of their raw columns, worked out once for all epochs."""
    inputs = _inputs(lists, transform, base_position)
    return ItemLists(inputs, lists.offsets, labels=lists.labels, list_ids=lists.list_ids)


def _scores(layers: Layers, inputs: FloatArray) -> FloatArray:
    """Return the scores (T,): float64 inside, so that rounding to float32 hides in which order sums were formed."""
    values = inputs.astype(np.float64)
    for weights, biases in layers[:-1]:
        values = np.maximum(values @ weights.T.astype(np.float64) + biases, 0)
    weights, biases = layers[-1]
    scores: FloatArray = (values @ weights[0].astype(np.float64) + biases).astype(np.float32)
    return scores
