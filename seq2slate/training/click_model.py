"""Fit the click model of a network's interaction to a log: maximum likelihood with a Gaussian prior, early stopping.

The click model comes before the rest of the network, and stays as it is while that learns what the click model leaves
unexplained. It has few weights and no recurrent layer, so that many passes over the lists take less time than one epoch
of the network.
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
from seq2slate.model.network import InputLists, SlateNetwork
from seq2slate.progress import TrainingProgress

_FEWEST_EPOCHS, _MOST_EPOCHS = 3, 60
_LEAST_PATIENCE = 5
_INTERRUPTED = "interrupted while the click model was fitted: nothing is saved yet, and the same command begins anew"


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
