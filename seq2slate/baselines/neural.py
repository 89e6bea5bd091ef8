"""RankNet and ListNet: a small network that scores each item by itself, trained on whole lists.

The two differ in their loss alone. Where they depart from the papers that they are named after:

- Both have the same network, two hidden layers of rectified units with dropout. RankNet's had one hidden layer, and
  ListNet's was linear.
- RankNet's loss is the mean over the pairs of a list, not the sum, so that long lists do not drown the short ones.
- Adam on batches of lists takes the place of plain gradient descent, one query at a time.

The network reads the normalised dense columns, and the logarithm of the base position as one column more unless it is
left out. PyTorch trains it; ranking is NumPy in float64, so that the other lists of a batch do not change a score, and
equal items stay in base order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from seq2slate.baselines.columns import fit_numbers
from seq2slate.baselines.coordinate_ascent import ScoredNdcg
from seq2slate.data.lists import Batch, FloatArray, ItemLists
from seq2slate.errors import TrainingStoppedError, UsageError
from seq2slate.estimator import PointwiseEstimator
from seq2slate.progress import track

if TYPE_CHECKING:
    from torch import nn

Layers: TypeAlias = tuple[tuple[FloatArray, FloatArray], ...]
"""Weights (out, in) and biases (out,) of each layer, the last of which has one output: the score."""


@dataclass(eq=False, kw_only=True, repr=False)
class NeuralRanker(PointwiseEstimator):
    """A multi-layer perceptron over the columns of an item; subclasses name the loss."""

    hidden_layers: Sequence[int] = (128, 64)
    """Units of each hidden layer."""
    dropout: float = 0.5
    """Probability of dropping a hidden unit in training."""
    learning_rate: float = 3e-4
    """Adam learning rate."""
    batch_size: int = 128
    """Lists in a step."""
    epochs: int = 50
    """Passes over the training lists, at most."""
    patience: int = 5
    """Early stopping: epochs without a better NDCG@10 of the validation lists before training ends."""
    base_position: bool = True
    """Whether the base position is an input."""

    layers_: Layers = field(init=False, repr=False)
    """Those of the best epoch."""

    loss: ClassVar[str]
    """The name of the loss in `training.losses.LOSSES`."""

    def _fit(self, train: ItemLists, valid: ItemLists) -> None:
        if self.epochs < 1:
            raise UsageError(f"epochs must be at least 1, got {self.epochs}")
        self.transform_ = fit_numbers(self.kind, train)
        judge, inputs = ScoredNdcg.of(valid, "validation"), self._inputs(valid)
        best, best_epoch = -np.inf, -1
        for epoch, layers in enumerate(track(self._epochs(train), f"training ({self.kind})", total=self.epochs)):
            with np.errstate(over="ignore", invalid="ignore"):  # checked below, with a better message
                scores = _scores(layers, inputs)
            if not np.isfinite(scores).all():
                affected = np.unique(valid.list_index[~np.isfinite(scores)])
                raise _stopped("scores", valid.list_ids.take(affected).to_pylist())
            value = judge.mean(scores)
            if value > best:
                best, best_epoch, self.layers_ = value, epoch, layers
            elif epoch - best_epoch >= self.patience:
                break

    def _epochs(self, train: ItemLists) -> Iterator[Layers]:
        """Yield the weights after each epoch."""
        import torch
        from torch import nn

        from seq2slate.training.losses import LOSSES

        inputs = ItemLists(self._inputs(train), train.offsets, labels=train.labels, list_ids=train.list_ids)
        rng = np.random.default_rng(self.seed)
        with torch.random.fork_rng(devices=[]):  # first weights and dropout; the caller's random state is untouched
            torch.manual_seed(self.seed)
            network = nn.Sequential()
            widths = [inputs.n_features, *self.hidden_layers]
            for n_inputs, width in zip(widths, self.hidden_layers, strict=False):
                network.extend([nn.Linear(n_inputs, width), nn.ReLU(), nn.Dropout(self.dropout)])
            network.append(nn.Linear(widths[-1], 1))
            optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
            for _ in range(self.epochs):
                batches = inputs.batches(self.batch_size, seed=int(rng.integers(2**63)))
                _run_epoch(network, optimiser, LOSSES[self.loss], batches)
                yield _layers(network)

    def _inputs(self, lists: ItemLists) -> FloatArray:
        """Return the columns (T, F or F + 1) that the network reads."""
        dense = self.transform_.apply(lists).dense
        if not self.base_position:
            return dense
        return np.column_stack([dense, np.log1p(lists.positions, dtype=np.float32)])

    def score_items(self, lists: ItemLists) -> FloatArray:
        """Return the score (T,) of each item."""
        return _scores(self.layers_, self._inputs(lists))

    def _state(self) -> dict[str, Any]:
        weights = {f"{number}.weights": weights for number, (weights, _) in enumerate(self.layers_)}
        return weights | {f"{number}.biases": biases for number, (_, biases) in enumerate(self.layers_)}

    def _restore(self, state: dict[str, Any]) -> None:
        self.layers_ = tuple(
            (state[f"{number}.weights"], state[f"{number}.biases"]) for number in range(len(state) // 2)
        )


class RankNet(NeuralRanker):
    """RankNet (Burges et al. 2005): the logistic loss of every pair of items of a list whose labels differ."""

    kind = "ranknet"
    loss = "pairwise-logistic"


class ListNet(NeuralRanker):
    """ListNet (Cao et al. 2007): the cross-entropy of the softmax of the scores to the softmax of the labels."""

    kind = "listnet"
    loss = "list-net"


def _run_epoch(network: nn.Module, optimiser: Any, loss: Any, batches: Iterable[Batch]) -> None:
    import torch

    for batch in batches:
        mask = torch.from_numpy(batch.mask)
        of_items = network(torch.from_numpy(batch.lists.features)).squeeze(1)  # no time is spent on padding
        scores = of_items.new_zeros(mask.shape).masked_scatter(mask, of_items)
        value = loss(scores, torch.from_numpy(batch.labels), mask=mask).mean()
        if not torch.isfinite(value):
            raise _stopped("loss", batch.lists.list_ids.to_pylist())
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        optimiser.step()


def _stopped(what: str, names: Sequence[str]) -> TrainingStoppedError:
    return TrainingStoppedError(
        f"the {what} became NaN or infinite for the lists {', '.join(names[:10])}"
        f"{' …' if len(names) > 10 else ''}: lower the learning rate, or look at their labels"
    )


def _layers(network: nn.Sequential) -> Layers:
    """Return a copy of the weights as they are now."""
    linear: list[Any] = [module for module in network if hasattr(module, "weight")]
    return tuple((layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()) for layer in linear)


def _scores(layers: Layers, inputs: FloatArray) -> FloatArray:
    """Return the scores (T,): float64 inside, so that rounding to float32 hides in which order sums were formed."""
    values = inputs.astype(np.float64)
    for weights, biases in layers[:-1]:
        values = np.maximum(values @ weights.T.astype(np.float64) + biases, 0)
    weights, biases = layers[-1]
    scores: FloatArray = (values @ weights[0].astype(np.float64) + biases).astype(np.float32)
    return scores
