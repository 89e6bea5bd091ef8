"""What clicked lists tell a network: its click model first, by likelihood, then the rest, by gradients of section 3.

`ClickModelFit` fits the click model of an interaction to a log: maximum likelihood with a Gaussian prior, early
stopping. It comes before the rest of the network, and stays as it is while that learns what the click model leaves
unexplained. It has few weights and no recurrent layer, so that many passes over the lists take less time than one epoch
of the network.

`Objective` is what a batch tells the rest, by the policy:

- **sampling**: slates are drawn from the network, and the expected sequence loss falls by both terms of its gradient,
  (L - b) ∇log p(π) + ∇L. b is a moving average.
- **greedy**: the slate is the network's best, and only ∇L is there.
- **reinforce**: -(R - b) ∇log p(π) for any metric R, which is to grow.

Slates are drawn without gradients and scored again with them, in one pass over all steps. Weights and dropout are the
same in both, so both speak of one policy. Once no positive is left the loss to come is exactly 0, and so is the mean of
what later steps would add to the first term; a list stops there.

`credit="return"` is the paper's estimator: every choice is charged with the loss of the whole slate. With
`credit="reward-to-go"` a choice is charged only with what comes after it, which has the same mean and less variance:
the loss of step j depends on the choices before j alone, so the choice at j is charged with steps j + 1 and on. For a
reward, it is what the slate gains from slot j on.

The first term is as large as the loss itself while the network knows nothing, and then drowns the second.
`policy_gradient_weight` weighs it (1 is the paper's estimator, 0 leaves sampled slates with ∇L alone);
`normalise_advantages` divides the advantages of a step by their standard deviation.

Most columns of a log say nothing about clicks that the base order does not say already, and a network that reads them
all learns their noise. `group_lasso` adds λ Σ_j w_j Σ_c ‖W_c‖ to the sequence loss, W_c being all weights of encoder
and decoder that multiply input column c (Yuan and Lin 2006): a column keeps weights only if its gradient stays above λ
in the mean over steps. The gradient of a column of noise is about 1 / √(training lists), and so is λ. The weights w_j
of the steps make λ mean the same for both decoders and any number of slots.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seq2slate.config import TrainingConfig
from seq2slate.data.lists import IntArray, batch_indices
from seq2slate.errors import TrainingInterruptedError
from seq2slate.metrics import Measure
from seq2slate.model.decoders import TrainingSteps, choice_log_probabilities
from seq2slate.model.network import InputLists, NetworkInputs, SlateNetwork
from seq2slate.progress import TrainingProgress
from seq2slate.training.losses import make_loss, step_losses, step_weights

_FEWEST_EPOCHS, _MOST_EPOCHS = 3, 60
_LEAST_PATIENCE = 5
_INTERRUPTED = "interrupted while the click model was fitted: nothing is saved yet, and the same command begins anew"


class Objective:
    """An objective with its moving average, which is part of a run's state.

    Args:
        config: What is minimised.
        n_lists: Training lists: the more there are, the less their noise, and the less the group lasso.
    """

    def __init__(self, config: TrainingConfig, n_lists: int = 1) -> None:
        self.config = config
        self.group_lasso = config.group_lasso / n_lists**0.5
        self.loss = make_loss(config.loss, gamma=config.gamma)
        self.reward = Measure.parse(config.reward)
        self.baseline = torch.zeros(0)
        """(K,) the moving average of the cost of each step, (1,) if it is the whole return; empty at first."""

    def __call__(
        self, network: SlateNetwork, inputs: NetworkInputs, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return what to call `backward` on, and the loss (or the reward) of each list (B,) for people to watch."""
        encoded = network.encode(inputs, generator=generator)
        k = self.config.k
        if self.config.policy == "reinforce":
            return self._reinforce(network.decoder.policy_steps(encoded, labels, k, generator), labels, encoded.mask)
        drawn = None if self.config.policy == "greedy" else generator
        steps = network.decoder.loss_steps(encoded, labels, k, drawn)
        surrogate, watched = self._sequence_loss(steps, labels, encoded.mask)
        if self.group_lasso:
            norms = network.input_weights.norm(dim=1).sum()
            surrogate = surrogate + self.group_lasso * self._step_weights(steps).sum() * norms
        return surrogate, watched

    def _sequence_loss(self, steps: TrainingSteps, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        scores, slates = steps.scores, steps.slates
        losses = step_losses(scores, labels, slates, mask, loss=self.loss) * self._step_weights(steps)
        total = losses.sum(1)
        surrogate = total.mean()
        if steps.sampled and self.config.policy_gradient_weight:
            detached = losses.detach()
            cost = detached.flip(1).cumsum(1).flip(1) - detached  # of the steps after each
            surrogate = surrogate + self.config.policy_gradient_weight * self._policy_gradient(
                scores, slates, cost, total.detach()
            )
        return surrogate, total.detach()

    def _step_weights(self, steps: TrainingSteps) -> Tensor:
        return step_weights(self.config.step_weights, steps.slates.shape[1], k=self.config.k).to(steps.scores)

    def _reinforce(self, steps: TrainingSteps, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        scores, slates = steps.scores, steps.slates
        rewards = self._rewards_of_prefixes(slates, labels, mask).to(scores)
        final = rewards[:, -1]
        to_come = final[:, None] - rewards[:, :-1]
        return self._policy_gradient(scores, slates, -to_come, -final), final

    def _rewards_of_prefixes(self, slates: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Return (B, K + 1) the reward of the first 0, 1, … K slots; only 0 and K if credit is the whole return."""
        arrays = [tensor.cpu().numpy() for tensor in (slates, labels, mask)]
        counts = range(slates.shape[1] + 1)
        rewards = np.zeros((len(slates), len(counts)))
        for count in counts if self.config.credit == "reward-to-go" else counts[-1:]:
            rewards[:, count] = np.nan_to_num(self.reward(arrays[0][:, :count], arrays[1], mask=arrays[2]))
        return torch.from_numpy(rewards).to(slates.device)

    def _policy_gradient(self, scores: Tensor, slates: Tensor, to_go: Tensor, total: Tensor) -> Tensor:
        """Return the mean over lists of Σ_j (cost - b) log p(π_j): the cost is `to_go` (B, K) or `total` (B,)."""
        placed = slates >= 0
        if self.config.credit == "reward-to-go":
            cost, counted = to_go, placed
        else:
            cost, counted = total[:, None], placed.any(1, keepdim=True)
        advantage = cost - self._moving_average(cost, counted)
        if self.config.normalise_advantages:
            variance = (advantage**2 * counted).sum(0) / counted.sum(0).clamp(min=1)
            advantage = advantage / variance.sqrt().clamp(min=1e-6)
        return (advantage * choice_log_probabilities(scores, slates) * placed).sum(1).mean()

    def _moving_average(self, cost: Tensor, counted: Tensor) -> Tensor:
        """Return the baseline from before this batch, then move it; what was never seen starts at its first mean."""
        if not counted.any():  # a mean of nothing is no first mean
            return torch.zeros_like(cost[:1])
        width = cost.shape[1]
        means = (cost * counted).sum(0) / counted.sum(0).clamp(min=1)
        if len(self.baseline) < width:
            self.baseline = torch.cat([self.baseline.to(means), means[len(self.baseline) :]])
        before = self.baseline[:width].clone()
        decay = self.config.baseline_decay
        self.baseline[:width] = torch.where(counted.any(0), decay * before + (1 - decay) * means, before)
        return before


# The click model


class LabelledInputs(NamedTuple):
    """Encoded lists with their labels (T,)."""

    inputs: InputLists
    labels: npt.NDArray[np.float32]


class ClickModelFit:
    """The likelihood of logged clicks, and its maximum.

    Args:
        network: Its click model is changed in place, and nothing else.
        valid: The lists that choose the epoch.
        config: `click_model_steps`, and the options of the optimiser.
    """

    def __init__(self, network: SlateNetwork, valid: LabelledInputs, config: TrainingConfig) -> None:
        self._network, self._valid, self._config = network, valid, config
        self._device = network.v.device

    def run(
        self,
        lists_of_epoch: Callable[[int], LabelledInputs],
        seed_of_epoch: Callable[[int], int],
        interrupted: threading.Event,
        watch: TrainingProgress,
    ) -> None:
        """Maximise the likelihood; the weights of the epoch with the most likely validation clicks are kept."""
        n_lists = len(lists_of_epoch(0).inputs.lengths)
        epochs = self.n_epochs(n_lists)
        optimiser, step = self._optimiser(), 0
        best, best_epoch, kept = self.mean_log_likelihood(), 0, self._weights()
        start = best
        for epoch in range(epochs):
            lists = lists_of_epoch(epoch)
            batches = self._batches(lists, seed_of_epoch(epoch))
            for number, index in enumerate(batches):
                if interrupted.is_set():
                    raise TrainingInterruptedError(_INTERRUPTED)
                step += 1
                self._step(optimiser, lists, index, step, done=(epoch + number / len(batches)) / epochs)
                watch.update(
                    advance=len(index), total=n_lists * epochs, description=f"click model {epoch + 1}/{epochs}"
                )
            value = self.mean_log_likelihood()
            if value > best:
                best, best_epoch, kept = value, epoch + 1, self._weights()
            if epoch + 1 - best_epoch > max(_LEAST_PATIENCE, epochs // 4):
                break
        self._network.load_state_dict(kept, strict=False)
        watch.say(f"click model: log-likelihood of a validation list {start:.4f} → {best:.4f}, epoch {best_epoch}")

    def n_epochs(self, n_lists: int) -> int:
        """Return how often so many lists are passed over, at most: few lists more often than many."""
        wanted = math.ceil(self._config.click_model_steps / math.ceil(n_lists / self._config.batch_size))
        return min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, wanted))

    @torch.no_grad()
    def mean_log_likelihood(self) -> float:
        """Return the mean over the validation lists of the log-likelihood of their clicks."""
        self._network.eval()
        batches = self._batches(self._valid, seed=0)
        return sum(float(self._log_likelihood(self._valid, index).sum()) for index in batches) / len(
            self._valid.inputs.lengths
        )

    def _step(
        self, optimiser: torch.optim.Optimizer, lists: LabelledInputs, index: IntArray, step: int, done: float
    ) -> None:
        warm = min(1.0, step / max(1, self._config.warmup_steps))
        for group in optimiser.param_groups:
            group["lr"] = self._config.learning_rate * group["factor"] * warm * (1 - done)
        self._network.train()
        penalty = self._network.interaction.penalty() / len(lists.inputs.lengths)
        loss = penalty - self._log_likelihood(lists, index).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._network.click_model_parameters(), self._config.clip_norm)
        optimiser.step()

    def _log_likelihood(self, lists: LabelledInputs, index: IntArray) -> Tensor:
        inputs = lists.inputs.batch(index).to(self._device)
        labels = lists.inputs.pad(lists.labels, index).to(self._device)
        return self._network.click_likelihood(inputs).log_likelihood(labels, inputs.mask)

    def _batches(self, lists: LabelledInputs, seed: int) -> list[IntArray]:
        return batch_indices(lists.inputs.lengths, self._config.batch_size, seed=seed)

    def _optimiser(self) -> torch.optim.Optimizer:
        tables = {id(table): table for table in self._network.embedding_tables()}
        others = [one for one in self._network.click_model_parameters() if id(one) not in tables]
        groups = [
            {"params": others, "factor": 1.0},
            {"params": list(tables.values()), "factor": self._config.embedding_rate},
        ]
        return torch.optim.Adam(groups)

    def _weights(self) -> dict[str, Tensor]:
        own = {id(parameter) for parameter in self._network.click_model_parameters()}
        named = self._network.named_parameters()
        return {name: weight.detach().clone() for name, weight in named if id(weight) in own}
