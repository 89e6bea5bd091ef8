"""The shape of a network. Importing it does not load PyTorch; making one does, since its encoder has a say."""

from __future__ import annotations

from dataclasses import dataclass

from seq2slate.errors import UsageError
from seq2slate.options import check_choices, named_in


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
    cell: str = named_in("seq2slate.model.recurrent:CELLS", "lstm")
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
    """The pairwise interaction of the items of a list: none, or item similarity."""
    position_input: bool = False
    """Whether the base position is an input column."""
    initial_range: float = 0.1
    """Weights start uniformly in ± this range."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.hidden < 1 or self.layers < 1 or self.heads < 1 or self.embedding < 1:
            raise UsageError("hidden, layers, heads and embedding must be at least 1")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        from seq2slate.model.encoders import ENCODERS

        ENCODERS[self.encoder].check_options(self)
