"""How a model is trained, and the named sets of choices."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from seq2slate.errors import UsageError
from seq2slate.metrics import Measure
from seq2slate.model.network import NetworkConfig
from seq2slate.training.objectives import ObjectiveConfig


@dataclass(frozen=True)
class TrainingConfig:
    """One training run; the defaults are the paper's where the paper has them."""

    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    epochs: int = 30
    """Passes over the training lists, at most."""
    batch_size: int = 128
    """Lists in a step."""
    learning_rate: float = 3e-4
    """Of Adam."""
    decay: float = 0.96
    """The learning rate is multiplied by this every `decay_steps` steps."""
    decay_steps: int = 1000
    anneal: bool = False
    """Whether the learning rate also falls on a line, to 0 at the end of the last epoch."""
    l2: float = 3e-4
    """The penalty coefficient of L2 regularisation."""
    clip_norm: float = 5.0
    """Gradients are scaled down to this norm."""
    warmup_steps: int = 0
    """The learning rate grows from 0 over so many steps."""
    measure: str = "NDCG@10"
    """What chooses the best epoch, on the validation lists."""
    patience: int = 5
    """The run ends after so many epochs without a better one."""
    max_items: int | None = None
    """Longer training lists are sampled down to this many items, positives first, anew in every epoch; None for all."""
    checkpoint_seconds: float = 60.0
    """A checkpoint is written at least this often, and after every epoch."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience", "decay_steps", "max_items"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise UsageError(f"{name} must be at least 1, got {count}")
        for name in ("learning_rate", "decay", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name} must be a number above 0, got {getattr(self, name)}")
        for name in ("l2", "warmup_steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} must be at least 0, got {getattr(self, name)}")
        Measure.parse(self.measure)


@dataclass(frozen=True)
class Preset:
    """Choices that belong together."""

    network: NetworkConfig
    training: TrainingConfig


_SHORT_RUN = TrainingConfig(
    ObjectiveConfig(policy="greedy", step_weights="dcg", k=10),
    epochs=8,
    batch_size=32,
    learning_rate=1e-3,
    anneal=True,
    warmup_steps=50,
    l2=0.0,
    patience=4,
)
_OTHERS = NetworkConfig(hidden=64, dropout=0.4, initial_range=0.02, decoder="one-step")
_ATTENTION = replace(_OTHERS, encoder="attention", layers=2, heads=4)

PRESETS = {
    "default": Preset(
        NetworkConfig(hidden=64, dropout=0.2, base_prior=True, resemblance=True),
        replace(
            _SHORT_RUN,
            objective=ObjectiveConfig(
                policy="sampling",
                step_weights="dcg",
                k=10,
                credit="to_go",
                policy_gradient_weight=0.05,
                normalise=True,
                click_likelihood_weight=1.0,
            ),
            epochs=5,
        ),
    ),
    "paper": Preset(NetworkConfig(), TrainingConfig()),
    "dlcm": Preset(replace(_OTHERS, cell="gru", reversed_input=True), _SHORT_RUN),
    "prm": Preset(replace(_ATTENTION, position_embedding=True), _SHORT_RUN),
    "setrank": Preset(_ATTENTION, _SHORT_RUN),
}
"""By the name that the command line gives them; the last three are other re-rankers of the literature.

All three learn with the cross-entropy of the softmax to the shares of the labels. That is PRM's loss, and with clicks
also the attention-rank loss of DLCM and SetRank, whose shares are those of e^y among the positives. Small first weights
make their pointer almost linear at first, as the last layer of PRM and SetRank is.
"""
