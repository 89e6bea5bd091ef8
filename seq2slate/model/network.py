"""The network: a recurrent encoder, and a recurrent decoder that points at the item to place next (paper, section 2).

The encoder reads the items in base order; its outputs e_i are the memory and its last state starts the decoder. The
decoder reads a learned vector `go` and then, step by step, the item just placed; its output d_j scores the items that
are left: s_i^j = v^T tanh(W_enc e_i + W_dec d_j).

Options beyond the paper, all off unless asked for and each in its own term of the score:

- `base_prior`: a learned bias for each base position p (the same from position 64 on), so that a fresh network can
  begin at the base order and learn corrections. It starts at -log(1 + p).
- `resemblance`: a learned term that compares an item with those above it in base order and those placed before it;
  see `model.resemblance`.
- `position_input`: the base position, as log(1 + p), stands among the columns of an item.

With `encoder="attention"` self-attention takes the place of the recurrent encoder; see `model.attention`. It has no
last state, so the decoder, which then has one layer, starts from the mean m of the memory over the items of a list:
its cell is m, and its output tanh(m).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from seq2slate.errors import UsageError
from seq2slate.model.attention import AttentionEncoder, mean_of_items
from seq2slate.model.backends.kernels import Rows, fused_kernels_for
from seq2slate.model.inputs import InputSizes, NetworkInputs
from seq2slate.model.interactions import PARAM_SCALE, ClickLikelihood, Resemblance
from seq2slate.model.pointer import Keys, pointer_scores
from seq2slate.model.recurrent import LAYERS, LstmLayer, RecurrentLayer, State

ENCODERS = ("recurrent", "attention")
DECODERS = ("sequential", "one-step")
_PRIOR_POSITIONS = 64


@dataclass(frozen=True)
class NetworkConfig:
    """The shape of a network; the defaults are the paper's."""

    hidden: int = 128
    """Units of the encoder and the decoder."""
    encoder: str = "recurrent"
    """`recurrent`, or `attention`: blocks of self-attention."""
    layers: int = 1
    """Layers of the encoder, stacked; after a recurrent encoder the decoder has as many."""
    cell: str = "lstm"
    """`lstm` or `gru`."""
    bidirectional: bool = False
    """Whether the encoder also reads backwards; each direction then has half the units."""
    reversed_input: bool = False
    """Whether the encoder reads the best item last, as DLCM does."""
    heads: int = 4
    """Heads of a block of self-attention; they share the units."""
    position_embedding: bool = False
    """Whether self-attention sees the base position, as a learned vector."""
    decoder: str = "sequential"
    """`sequential`, or `one-step`: the scores of the first step, sorted."""
    dropout: float = 0.1
    """Probability of dropping an input column, an encoder output (of half a block, too, in self-attention) or a decoder
    output, for a whole list."""
    embedding: int = 16
    """Size of the vector learned for a value of a text column; smaller for columns with few values."""
    base_prior: bool = False
    """Whether the base position has a learned bias."""
    resemblance: bool = False
    """Whether items are compared with those above them in base order, and those placed before them."""
    position_input: bool = False
    """Whether the base position is an input column."""
    initial_range: float = 0.1
    """Weights start uniformly between minus and plus this."""

    def __post_init__(self) -> None:
        if self.cell not in LAYERS:
            raise UsageError(f"there is no cell {self.cell!r}; choose one of {', '.join(LAYERS)}")
        if self.encoder not in ENCODERS:
            raise UsageError(f"there is no encoder {self.encoder!r}; choose one of {', '.join(ENCODERS)}")
        if self.decoder not in DECODERS:
            raise UsageError(f"there is no decoder {self.decoder!r}; choose one of {', '.join(DECODERS)}")
        if self.hidden < 1 or self.layers < 1 or self.heads < 1 or self.embedding < 1:
            raise UsageError("hidden, layers, heads and embedding must be at least 1")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        if self.encoder == "recurrent":
            self._check_recurrent()
        else:
            self._check_attention()

    def _check_recurrent(self) -> None:
        if self.bidirectional and self.hidden % 2:
            raise UsageError(f"a bidirectional encoder splits its units in two: {self.hidden} is odd")
        if self.position_embedding:
            raise UsageError("position_embedding is for encoder='attention'; a recurrent encoder reads the order")

    def _check_attention(self) -> None:
        if self.hidden % self.heads:
            raise UsageError(f"the heads share the units: {self.hidden} hidden units do not divide by {self.heads}")
        if self.bidirectional or self.reversed_input:
            raise UsageError("bidirectional and reversed_input are for encoder='recurrent'; attention has no direction")


@dataclass(frozen=True)
class Encoded:
    """What the encoder made of a batch: all that the decoder needs."""

    items: Tensor
    """(N, B, I) the vectors that the encoder read and the decoder will read."""
    keys: Keys
    """The memory as the pointer reads it."""
    states: list[State]
    """The decoder's first state, layer by layer."""
    mask: Tensor
    """(B, N)"""
    bias: Tensor | None
    """(B, N) what an item's score starts with, if anything."""
    interaction: Tensor | None
    """(B, N, N) what a placed item (first index) adds to the score of another (second), if anything."""
    clicks: ClickLikelihood | None
    """How the clicks of the log came about, if the network has a notion of that."""
    keep: Tensor | None
    """(B, D) the dropout of the decoder's outputs: the same when slates are drawn and when they are scored."""


class SlateNetwork(nn.Module):
    """The pointer network over encoded columns."""

    def __init__(self, sizes: InputSizes, config: NetworkConfig) -> None:
        super().__init__()
        self.sizes, self.config = sizes, config
        self.embeddings = _embeddings(sizes.categorical, config.embedding)
        self.context_embeddings = _embeddings(sizes.context_categorical, config.embedding)
        embedded = sum(table.embedding_dim for table in [*self.embeddings, *self.context_embeddings])
        n_inputs = sizes.dense + sizes.context + embedded + config.position_input
        if n_inputs == 0:
            raise UsageError("there is no column to learn from: give features, or name categorical or context columns")
        self.n_inputs = n_inputs
        hidden, layer = config.hidden, LAYERS[config.cell]
        self.encoder = _encoder(n_inputs, config)
        decoder_layers = config.layers if config.encoder == "recurrent" else 1
        self.decoder = nn.ModuleList(layer(width, hidden) for width in _widths(n_inputs, hidden, decoder_layers))
        self.go = nn.Parameter(torch.empty(n_inputs))
        self.w_enc = nn.Parameter(torch.empty(hidden, hidden))
        self.w_dec = nn.Parameter(torch.empty(hidden, hidden))
        self.v = nn.Parameter(torch.empty(hidden))
        self.prior = nn.Parameter(torch.empty(_PRIOR_POSITIONS)) if config.base_prior else None
        self.resemblance = Resemblance(n_inputs) if config.resemblance else None

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw all weights uniformly from ±initial_range; the base prior starts at the base order.

        Self-attention has ranges of its own; see `model.attention`.
        """
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-self.config.initial_range, self.config.initial_range, generator=generator)
            if isinstance(self.encoder, AttentionEncoder):
                self.encoder.reset_parameters(generator, self.config.initial_range)
            if self.prior is not None:
                self.prior.copy_(-torch.log1p(torch.arange(_PRIOR_POSITIONS)) / PARAM_SCALE)
            if self.resemblance is not None:
                self.resemblance.reset_parameters()
                self.v.zero_()  # what the recurrent part has to say comes on top

    @property
    def encoder_layers(self) -> list[list[RecurrentLayer]]:
        """The directions of every layer of a recurrent encoder."""
        assert isinstance(self.encoder, nn.ModuleList), "the caller has looked"
        return [list(layer) for layer in self.encoder]  # type: ignore[call-overload]

    @property
    def decoder_layers(self) -> list[RecurrentLayer]:
        """The layers of the decoder."""
        return list(self.decoder)  # type: ignore[arg-type]

    # Encoding

    def encode(self, inputs: NetworkInputs, *, generator: torch.Generator | None = None) -> Encoded:
        """Read the lists. Dropout takes place if the network is in training mode, drawn from the generator."""
        vectors = self.item_vectors(inputs)
        items = self._dropped(vectors, generator)
        if self._can_read_at_once(items):
            keys, states = self._read_at_once(items, inputs.mask)
            keep = None
        else:
            memory, states = self._read(items, inputs.mask, generator)
            keys = Keys.of(self._dropped(memory, generator).transpose(0, 1) @ self.w_enc)
            keep = self._keep(memory, generator)
        bias, interaction, clicks = self._bias(inputs.mask), None, None
        if self.resemblance is not None:
            clicks = self.resemblance(vectors, inputs.mask, bias)
            bias, interaction = self.resemblance.scores(clicks, inputs.mask)
        if self.config.decoder == "one-step":
            interaction = None  # nothing is placed before the first step
        return Encoded(items, keys, states, inputs.mask, bias, interaction, clicks, keep)

    def item_vectors(self, inputs: NetworkInputs) -> Tensor:
        """Return (N, B, I): dense columns, embeddings, and what is known of the list, side by side."""
        sizes, (n_items, n_lists) = self.sizes, inputs.dense.shape[:2]
        columns = [inputs.dense]
        columns += [
            table(inputs.categorical[name]) for name, table in zip(sizes.categorical, self.embeddings, strict=True)
        ]
        of_lists = [inputs.context]
        of_lists += [
            table(inputs.context_categorical[name])
            for name, table in zip(sizes.context_categorical, self.context_embeddings, strict=True)
        ]
        columns += [column.expand(n_items, -1, -1) for column in of_lists if column.shape[1]]
        if self.config.position_input:
            position = torch.log1p(torch.arange(n_items, device=inputs.dense.device, dtype=inputs.dense.dtype))
            columns.append(position[:, None, None].expand(-1, n_lists, 1))
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=2)

    def _read(self, items: Tensor, mask: Tensor, generator: torch.Generator | None) -> tuple[Tensor, list[State]]:
        """Return the memory (N, B, D) and the decoder's first state, layer by layer."""
        if not isinstance(self.encoder, AttentionEncoder):
            return self._read_in_steps(items, mask)
        memory: Tensor = self.encoder(items, mask, partial(self._dropped, generator=generator))
        mean = mean_of_items(memory, mask)
        state = (torch.tanh(mean), mean) if self.config.cell == "lstm" else (torch.tanh(mean),)
        return memory, [state]

    def _read_in_steps(self, items: Tensor, mask: Tensor) -> tuple[Tensor, list[State]]:
        """Return the memory (N, B, D) and the state after each list's last item, layer by layer."""
        n_items, n_lists = items.shape[:2]
        lengths = mask.sum(1)
        rows, last = [n_lists] * n_items, (lengths - 1).clamp(min=0)
        mirrored = _mirrored_positions(lengths, n_items) if self._reads_backwards else None
        every = torch.arange(n_lists, device=items.device)
        memory, states = items, []
        for layer in self.encoder_layers:
            outputs, ends = [], []
            for backwards, direction in zip(self._directions, layer, strict=True):
                read = memory[mirrored, every] if backwards else memory
                output, state = direction.scan(read, rows, last=last)
                outputs.append(output[mirrored, every] if backwards else output)
                ends.append(state)
            memory = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
            states.append(tuple(torch.cat(parts, dim=1) for parts in zip(*ends, strict=True)))
        return memory, states

    def _can_read_at_once(self, items: Tensor) -> bool:
        """Whether the whole encoder is one LSTM, forwards, and nobody asks for a gradient or for dropout."""
        config = self.config
        plain = (config.encoder, config.layers, config.cell) == ("recurrent", 1, "lstm") and not self._reads_backwards
        drops = self.training and config.dropout > 0
        return plain and not drops and not torch.is_grad_enabled() and fused_kernels_for(items) is not None

    def _read_at_once(self, items: Tensor, mask: Tensor) -> tuple[Keys, list[State]]:
        """Return what `_read` leads to, in one go."""
        n_items, n_lists = items.shape[:2]
        layer, fused = self.encoder_layers[0][0], fused_kernels_for(items)
        assert isinstance(layer, LstmLayer), "the caller has looked"
        assert fused is not None, "the caller has looked"
        factors = items.new_empty(n_lists, n_items, self.config.hidden)
        h, c = (items.new_zeros(n_lists, self.config.hidden) for _ in range(2))
        last = (mask.sum(1) - 1).clamp(min=0)
        fused.lstm_encode(layer.weights, items.contiguous(), last, self.w_enc.detach(), factors, h, c)
        return Keys(factors, None), [(h, c)]

    @property
    def _directions(self) -> tuple[bool, ...]:
        """Whether each direction of the encoder reads backwards."""
        first = self.config.reversed_input
        return (first, not first) if self.config.bidirectional else (first,)

    @property
    def _reads_backwards(self) -> bool:
        return any(self._directions)

    def _bias(self, mask: Tensor) -> Tensor | None:
        if self.prior is None:
            return None
        positions = torch.arange(mask.shape[1], device=mask.device).clamp(max=_PRIOR_POSITIONS - 1)
        return (self.prior * PARAM_SCALE)[positions].expand(mask.shape[0], -1)

    # Dropout

    def _keep(self, values: Tensor, generator: torch.Generator | None) -> Tensor | None:
        """Return 0 for what is dropped of values (N, B, width), for a whole list at once, and 1 / (1 - p) for the rest.

        That is (B, width); None when nothing is dropped.
        """
        if not self.training or self.config.dropout == 0:
            return None
        keep = torch.rand(values.shape[1:], generator=generator, device=values.device) >= self.config.dropout
        return keep.to(values.dtype) / (1 - self.config.dropout)

    def _dropped(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        keep = self._keep(values, generator)
        return values if keep is None else values * keep

    # Scoring

    def queries(self, outputs: Tensor, keep: Tensor | None) -> Tensor:
        """Return W_dec d_j for the decoder's outputs (…, R, D)."""
        return (outputs if keep is None else outputs * keep) @ self.w_dec

    def score(self, encoded: Encoded, slates: Tensor, stops: Tensor | None = None) -> Tensor:
        """Return the scores (B, K, N) of every step of given slates (B, K), with gradients.

        An item that is not left, padding, and the steps from stops (B,) on have -inf; without stops a list stops when
        all its items are placed. The decoder runs over all steps at once, since it knows what it will read.
        """
        steps = slates.shape[1]
        lengths = (slates >= 0).sum(1) if stops is None else stops
        lists = torch.argsort(lengths, descending=True, stable=True)
        stops = lengths[lists]
        active = (stops[None] > torch.arange(steps, device=slates.device)[:, None]).sum(1).tolist()
        keep = None if encoded.keep is None else encoded.keep[lists]
        outputs = encoded.items[slates[lists, : steps - 1].clamp(min=0).t(), lists]
        for depth, (layer, state) in enumerate(zip(self.decoder_layers, encoded.states, strict=True)):
            start = self.go if depth == 0 else None
            outputs, _ = layer.scan(outputs, active, tuple(part[lists] for part in state), start=start)
        rows = Rows(lists, stops, slots_of_items(slates, encoded.mask))
        scores = pointer_scores(encoded.keys, self.queries(outputs, keep), self.v, rows)
        return self._with_terms(scores, encoded, slates)

    def _with_terms(self, scores: Tensor, encoded: Encoded, slates: Tensor) -> Tensor:
        """Add the base prior, and what the items placed before each step add."""
        if encoded.bias is not None:
            scores = scores + encoded.bias[:, None]
        if encoded.interaction is not None:
            every = torch.arange(len(slates), device=slates.device)[:, None]
            added = encoded.interaction[every, slates.clamp(min=0)] * (slates >= 0)[:, :, None]
            scores = scores + added.cumsum(1) - added
        return scores


def slots_of_items(slates: Tensor, mask: Tensor) -> Tensor:
    """Return (B, N) the slot of each item: K if it is not on the slate, and -1 for padding."""
    n_lists, n_items = mask.shape
    slots = torch.full((n_lists, n_items + 1), slates.shape[1], device=slates.device)
    slots.scatter_(
        1, slates.where(slates >= 0, n_items), torch.arange(slates.shape[1], device=slates.device).expand_as(slates)
    )
    return slots[:, :n_items].where(mask, -1).contiguous()


def _mirrored_positions(lengths: Tensor, n_items: int) -> Tensor:
    """Return (N, B) where each position lies when a list is read from its end; padding stays where it is."""
    positions = torch.arange(n_items, device=lengths.device)[:, None]
    return torch.where(positions < lengths, lengths - 1 - positions, positions)


def _encoder(n_inputs: int, config: NetworkConfig) -> nn.ModuleList | AttentionEncoder:
    """Return the encoder; a recurrent one is a list of layers, each of which is a list of directions."""
    hidden, layer = config.hidden, LAYERS[config.cell]
    if config.encoder == "attention":
        return AttentionEncoder(
            n_inputs, hidden, layers=config.layers, heads=config.heads, positions=config.position_embedding
        )
    directions = 2 if config.bidirectional else 1
    return nn.ModuleList(
        nn.ModuleList(layer(width, hidden // directions) for _ in range(directions))
        for width in _widths(n_inputs, hidden, config.layers)
    )


def _widths(n_inputs: int, hidden: int, layers: int) -> list[int]:
    """Return what each of the stacked recurrent layers reads."""
    return [n_inputs] + [hidden] * (layers - 1)


def _embeddings(sizes: dict[str, int], largest: int) -> nn.ModuleList:
    """Return a table for each text column, in order; a column of c codes needs no more than c dimensions."""
    return nn.ModuleList(nn.Embedding(codes, min(largest, codes)) for codes in sizes.values())
