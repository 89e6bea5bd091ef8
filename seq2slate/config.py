"""Every option of a network and of its training, and the presets: named sets of such options.

Importing it does not load PyTorch; making a `NetworkConfig` does, since the encoder checks its own options.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypeAlias

from seq2slate.data.features import Missing
from seq2slate.data.roles import Columns
from seq2slate.errors import UsageError
from seq2slate.metrics import Measure
from seq2slate.options import check_choices, component, convert_options, named_in

Policy: TypeAlias = Literal["sampling", "greedy", "reinforce"]
Credit: TypeAlias = Literal["return", "reward-to-go"]
StepWeights: TypeAlias = Literal["uniform", "dcg"]


@dataclass(frozen=True)
class NetworkConfig:
    """The shape of a network; the defaults are the paper's.

    >>> NetworkConfig(hidden=64, decoder="one-step").decoder
    'one-step'
    """

    hidden: int = 128
    """Units of the encoder and of the decoder."""
    encoder: str = named_in("seq2slate.model.encoders:ENCODERS", "recurrent")
    """What reads the items of a list: recurrent layers, or blocks of self-attention."""
    layers: int = 1
    """Stacked layers of the encoder. After a recurrent encoder the decoder has as many."""
    cell: str = named_in("seq2slate.model.layers:CELLS", "lstm")
    """The recurrent layer of encoder and decoder."""
    bidirectional: bool = False
    """Whether a recurrent encoder also reads the list backwards. Each direction has half of the units."""
    reversed_input: bool = False
    """Whether a recurrent encoder reads the best item last, as DLCM does."""
    heads: int = 4
    """Attention heads of a block, which share the units."""
    position_embedding: bool = False
    """Whether self-attention sees the base position, as a learned vector."""
    decoder: str = named_in("seq2slate.model.decoders:DECODERS", "sequential")
    """How items are placed: one by one, or all by the scores of the first step."""
    dropout: float = 0.1
    """Dropout probability of input columns, encoder outputs (and halves of attention blocks) and decoder outputs. A
    unit is dropped for a whole list."""
    embedding: int = 16
    """Size of the embedding of a categorical column. A column with fewer values has a smaller one."""
    base_prior: bool = False
    """Whether each base position has a learned bias, which starts at the base order."""
    interaction: str = named_in("seq2slate.model.interactions:INTERACTIONS", "none")
    """How the items of a list interact: not at all, or pair by pair."""
    position_input: bool = False
    """Whether the base position is an input column."""
    initial_range: float = 0.1
    """Weights start uniformly in ± this range."""
    memory_span: float | None = None
    """The units of an LSTM start with memories of different length, from one item to so many; if not given, all
    forget half of what they hold with every item."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.hidden < 1 or self.layers < 1 or self.heads < 1 or self.embedding < 1:
            raise UsageError("hidden, layers, heads and embedding must be at least 1")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        if self.memory_span is not None and not 1 < self.memory_span < math.inf:
            raise UsageError(f"memory_span must be a number above 1, got {self.memory_span}")
        if self.memory_span is not None and self.cell != "lstm":
            raise UsageError(f"memory_span is about the forget gates of an LSTM; {self.cell} has none")
        component("seq2slate.model.encoders:ENCODERS", self.encoder).check_options(self)


@dataclass(frozen=True)
class TrainingConfig:
    """One training run: what is minimised, and how.

    The defaults are the paper's where the paper has them; `seq2slate train` starts from `PRESETS["default"]`.
    """

    policy: Policy = "sampling"
    """Where training slates come from: samples with both gradient terms, greedy slates, or REINFORCE on a metric."""
    loss: str = named_in("seq2slate.training.losses:LOSSES", "cross-entropy")
    """The per-step loss."""
    gamma: float | None = None
    """Sharpness of the smooth hinge; 1 if not given."""
    step_weights: StepWeights = "uniform"
    """Weight of step j: the same for all, or 1 / log2(j + 1)."""
    k: int | None = None
    """Only the first k slots count, and only they are decoded; all if not given."""
    credit: Credit = "return"
    """Credit assignment: every choice is charged with the whole return, or with its reward-to-go."""
    policy_gradient_weight: float = 1.0
    """Weight of the score-function term (L - b) ∇log p of the sampling policy."""
    normalise_advantages: bool = False
    """Whether the advantages of each step are divided by their standard deviation over the batch."""
    baseline_decay: float = 0.99
    """Decay of the moving average that is subtracted from losses and rewards."""
    reward: str = "NDCG@10"
    """The metric that REINFORCE maximises."""
    click_model_steps: int = 2500
    """About so many steps in all fit the click model of an interaction, before the network is trained; 3 to 60 passes
    over the lists, and early stopping by the likelihood of the validation clicks."""
    epochs: int = 30
    """Passes over the training lists, at most."""
    steps: int | None = None
    """About so many steps in all: few lists are passed over more often, up to `epochs` times, and many less often, but
    at least three times."""
    batch_size: int = 128
    """Lists in a step."""
    learning_rate: float = 3e-4
    """Adam learning rate."""
    embedding_rate: float = 1.0
    """The learning rate of embeddings is so many times that of the other weights."""
    decay: float = 0.96
    """The learning rate is multiplied by this every `decay_steps` steps."""
    decay_steps: int = 1000
    """Steps between two decays of the learning rate."""
    anneal: bool = False
    """Whether the learning rate also falls linearly, to 0 at the end of the last epoch."""
    l2: float = 3e-4
    """L2 penalty on the weights."""
    group_lasso: float = 0.0
    """Group lasso: weight of the norms of all input columns' weights, beside the loss of a step, divided by the square
    root of the number of training lists. Columns that do not help fade out. REINFORCE has none."""
    clip_norm: float = 5.0
    """Gradients are scaled down to this norm."""
    warmup_steps: int = 0
    """Warm-up: the learning rate grows from 0 over so many steps."""
    averaging: float = 0.0
    """Decay of a moving average of the weights, which is what is validated and kept; 0 keeps the weights themselves."""
    measure: str = "NDCG@10"
    """The metric on the validation lists that is reported after every epoch."""
    patience: int = 5
    """Early stopping: epochs without a better one before training ends; with `steps` at least a quarter of all."""
    falls_back: bool = False
    """Whether the base order is a candidate, too: the scores are mixed with it as far as that is better on the
    validation lists, and the model is the base order if it does not gain anything there."""
    max_items: int | None = None
    """Longer training lists are sampled down to this many items, positives first, anew in every epoch."""
    checkpoint_seconds: float = 60.0
    """A checkpoint is written at least this often, and after every epoch."""
    missing: Missing = "impute"
    """Missing numbers (NaN): the mean and an indicator column take their place, or they are refused."""
    seed: int = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("epochs", "steps", "click_model_steps", "batch_size", "patience", "decay_steps", "max_items", "k"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise UsageError(f"{name} must be at least 1, got {count}")
        for name in ("learning_rate", "embedding_rate", "decay", "clip_norm", "gamma"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name} must be a number above 0, got {value}")
        for name in ("l2", "group_lasso", "warmup_steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("baseline_decay", "averaging"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")
        if self.gamma is not None and self.loss != "smooth-hinge":
            raise UsageError(f"gamma is the sharpness of the smooth hinge; {self.loss} has none")
        Measure.parse(self.measure)
        if Measure.parse(self.reward) == Measure("P"):
            raise UsageError("the precision of all slots does not depend on their order: give a cut, as in P@10")


class Configuration(NamedTuple):
    """A network and how it is trained."""

    network: NetworkConfig
    training: TrainingConfig


# Shared by every preset but `paper`.
_SHORT_RUN: dict[str, Any] = {
    "policy": "greedy",
    "step_weights": "dcg",
    "k": 10,
    "epochs": 8,
    "batch_size": 32,
    "learning_rate": 1e-3,
    "anneal": True,
    "warmup_steps": 50,
    "l2": 0.0,
    "patience": 4,
}
_ONE_STEP = _SHORT_RUN | {"hidden": 64, "dropout": 0.4, "initial_range": 0.02, "decoder": "one-step"}
_SELF_ATTENTION = _ONE_STEP | {"encoder": "attention", "layers": 2, "heads": 4}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": _SHORT_RUN
    | {
        "hidden": 64,
        "dropout": 0.5,
        "learning_rate": 5e-4,
        "embedding_rate": 4.0,
        "base_prior": True,
        "interaction": "pairwise",
        "policy": "sampling",
        "credit": "reward-to-go",
        "policy_gradient_weight": 0.05,
        "normalise_advantages": True,
        "epochs": 40,
        "steps": 800,
        "falls_back": True,
    },
    "paper": {},
    "paper-tuned": _SHORT_RUN
    | {
        "hidden": 64,
        "memory_span": 110.0,
        "learning_rate": 1e-2,
        "group_lasso": 0.14,
        "averaging": 0.998,
        "max_items": 60,
        "epochs": 40,
        "steps": 12_000,
    },
    "dlcm": _ONE_STEP | {"cell": "gru", "reversed_input": True},
    "prm": _SELF_ATTENTION | {"position_embedding": True},
    "setrank": _SELF_ATTENTION,
}
"""Options of network and training, by the name of the preset, where they differ from the paper's.

The last three are other re-rankers of the literature. All three learn with the cross-entropy of the softmax to the
shares of the labels. That is PRM's loss, and with clicks also the attention-rank loss of DLCM and SetRank, whose shares
are those of e^y among the positives. Small first weights make their pointer almost linear at first, as the last layer
of PRM and SetRank is.
"""


def configure(preset: str = "default", **options: Any) -> Configuration:
    """Return the configuration of a preset with some of its options changed.

    REINFORCE is not regularised, as in the paper, unless the options say otherwise.

    >>> configure("paper", hidden=64, epochs=3).training.epochs
    3
    """
    if preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}; choose one of {', '.join(PRESETS)}")
    chosen = {**PRESETS[preset], **options}
    if chosen.get("policy") == "reinforce":
        chosen |= {"l2": 0.0, "dropout": 0.0} | options
    check_names(chosen)
    chosen = convert_options(chosen, NetworkConfig, TrainingConfig)
    network, training = (
        {one.name: chosen[one.name] for one in fields(config) if one.name in chosen}
        for config in (NetworkConfig, TrainingConfig)
    )
    return Configuration(NetworkConfig(**network), TrainingConfig(**training))


def check_names(options: Iterable[str]) -> None:
    """Raise a UsageError for the first name that is no option of network or training."""
    known = {one.name for config in (NetworkConfig, TrainingConfig) for one in fields(config)}
    if unknown := next((name for name in options if name not in known), None):
        roles = [one.name for one in fields(Columns)]
        hint = f"it is a role of columns: give columns={{{unknown!r}: ...}}; " if unknown in roles else ""
        raise UsageError(f"there is no option {unknown!r}; {hint}there are {', '.join(sorted(known))}")
