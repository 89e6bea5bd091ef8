"""Encoders: what they make of the items of a list is the memory that the pointer reads, and the decoder's first state.

- `RecurrentEncoder` (paper, section 2): layers of LSTM or GRU over the items in base order. The memory is the output
  after each item, and the decoder starts from the last state. It may read backwards, or in both directions.
- `AttentionEncoder`: every item attends to every other, as in the re-rankers PRM and SetRank.

To add one, write a subclass of `Encoder` and give it a name in `ENCODERS`.

B lists, N items, I input columns, D units; items are time-major, (N, B, I), so that a step is one block of memory.

**Self-attention.** Items are projected to the width of the network and pass through blocks of multi-head self-attention
and a feed-forward layer, each with a residual and a layer norm after it (Vaswani et al. 2017):

    y = norm(x + attention(x)),    block(x) = norm(y + W_2 relu(W_1 y))

With learned position vectors the encoder knows the base order, as in PRM (Pei et al. 2019); without them it treats the
list as a set, as SetRank does (Pang et al. 2020): items in another order get the same outputs in that order. It has no
last state, so the decoder, which then has one layer, starts from the mean of the memory over the items of a list.

Where it departs from those papers, or decides what they leave open:

- PRM adds its position vectors before the projection. Here they are added after it, at the width of the network: what
  the projection made of them is learned directly.
- The feed-forward layer is twice as wide as the network, and not four times: that is what a CPU has time for.
- Dropout takes the same units of all items of a list, as everywhere in this network, and never an attention weight.
- Matrices start as Glorot and Bengio (2010) have it, biases at 0, layer norms at 1 and 0; positions start as the other
  weights of the network do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that everyone knows)

from seq2slate.config import NetworkConfig
from seq2slate.errors import UsageError
from seq2slate.model.backends.kernels import LstmWeights
from seq2slate.model.layers import CELLS, RecurrentLayer, State, layer_widths, plain_lstm

Drop: TypeAlias = Callable[[Tensor], Tensor]
"""Applies dropout to (N, B, D)."""

LAST_POSITION = 127
"""Items from this base position on share a position vector."""
_WIDENING = 2


class Encoder(nn.Module):
    """Reads the items of each list.

    Args:
        n_inputs: Columns of an item.
        config: The shape of the network.
    """

    decoder_layers: int = 1
    """Layers of the decoder for which there is a first state."""

    def __init__(self, n_inputs: int, config: NetworkConfig) -> None:
        super().__init__()

    @classmethod
    def check_options(cls, config: NetworkConfig) -> None:
        """Raise a UsageError if the options that this encoder reads do not go together."""

    @property
    def lstm(self) -> LstmWeights | None:
        """The weights, if the whole encoder is one LSTM layer that reads forwards; backends in C run no other."""
        return None

    @property
    def input_weights(self) -> Tensor:
        """(I, W) the weights that multiply each input column, which the group lasso makes sparse."""
        raise UsageError(f"group_lasso needs the input_weights of the encoder, and {type(self).__name__} names none")

    def reset_parameters(self, generator: torch.Generator, initial_range: float) -> None:
        """Draw the weights that do not start uniformly in ± the initial range, as all others do."""

    def forward(self, items: Tensor, mask: Tensor, drop: Drop) -> tuple[Tensor, list[State]]:
        """Read the lists.

        Args:
            items: (N, B, I) the items in base order.
            mask: (B, N) True for a real item.
            drop: Dropout, for encoders that apply it inside.

        Returns:
            The memory (N, B, D), which means nothing for padding, and the first state of each layer of the decoder.
        """
        raise NotImplementedError


class RecurrentEncoder(Encoder):
    """Stacked recurrent layers over the items, in one or both directions."""

    def __init__(self, n_inputs: int, config: NetworkConfig) -> None:
        super().__init__(n_inputs, config)
        first = config.reversed_input
        self.backwards = (first, not first) if config.bidirectional else (first,)
        """Whether each direction reads backwards."""
        self.decoder_layers = config.layers
        layer, directions = CELLS[config.cell], len(self.backwards)
        self.layers = nn.ModuleList(
            nn.ModuleList(layer(width, config.hidden // directions) for _ in range(directions))
            for width in layer_widths(n_inputs, config.hidden, config.layers)
        )

    @classmethod
    def check_options(cls, config: NetworkConfig) -> None:
        """Directions share the units, and the order of the items is read, not embedded."""
        if config.bidirectional and config.hidden % 2:
            raise UsageError(f"a bidirectional encoder splits its units in two: {config.hidden} is odd")
        if config.position_embedding:
            raise UsageError("position_embedding is for encoder='attention'; a recurrent encoder reads the order")

    @property
    def directions(self) -> list[list[RecurrentLayer]]:
        """The directions of each layer."""
        return [list(layer) for layer in self.layers]  # type: ignore[call-overload]

    @property
    def input_weights(self) -> Tensor:
        """(I, W) of all directions of the first layer."""
        return torch.cat([layer.input_weights for layer in self.directions[0]], dim=1)

    @property
    def lstm(self) -> LstmWeights | None:
        """The weights, if this is one LSTM layer that reads forwards."""
        return None if self.backwards != (False,) else plain_lstm([layer[0] for layer in self.directions])

    def forward(self, items: Tensor, mask: Tensor, drop: Drop) -> tuple[Tensor, list[State]]:
        """Return the outputs of the last layer, and each layer's state after the last item of each list."""
        n_items, n_lists = items.shape[:2]
        lengths = mask.sum(1)
        rows, last = [n_lists] * n_items, (lengths - 1).clamp(min=0)
        mirrored = _mirrored_positions(lengths, n_items) if any(self.backwards) else None
        every = torch.arange(n_lists, device=items.device)
        memory, states = items, []
        for layer in self.directions:
            outputs, ends = [], []
            for backwards, direction in zip(self.backwards, layer, strict=True):
                read = memory[mirrored, every] if backwards else memory
                output, state = direction.scan(read, rows, last=last)
                outputs.append(output[mirrored, every] if backwards else output)
                ends.append(state)
            memory = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
            states.append(tuple(torch.cat(parts, dim=1) for parts in zip(*ends, strict=True)))
        return memory, states


class AttentionEncoder(Encoder):
    """Stacked blocks of self-attention over the items of a list."""

    def __init__(self, n_inputs: int, config: NetworkConfig) -> None:
        super().__init__(n_inputs, config)
        hidden = config.hidden
        self.cell = CELLS[config.cell]
        self.project = nn.Linear(n_inputs, hidden)
        self.positions = nn.Parameter(torch.empty(LAST_POSITION + 1, hidden)) if config.position_embedding else None
        self.blocks = nn.ModuleList(AttentionBlock(hidden, config.heads) for _ in range(config.layers))

    @classmethod
    def check_options(cls, config: NetworkConfig) -> None:
        """Heads share the units, and there is no direction."""
        if config.hidden % config.heads:
            raise UsageError(f"the heads share the units: {config.hidden} hidden units do not divide by {config.heads}")
        if config.bidirectional or config.reversed_input:
            raise UsageError("bidirectional and reversed_input are for encoder='recurrent'; attention has no direction")

    @property
    def input_weights(self) -> Tensor:
        """(I, D) of the projection."""
        return self.project.weight.t()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator, initial_range: float) -> None:
        """Draw all weights."""
        if self.positions is not None:
            self.positions.uniform_(-initial_range, initial_range, generator=generator)
        _reset_linear(self.project, generator)
        for block in self.blocks:
            block.reset_parameters(generator)  # type: ignore[operator]

    def forward(self, items: Tensor, mask: Tensor, drop: Drop) -> tuple[Tensor, list[State]]:
        """Return what the blocks make of the items, and a decoder state made of its mean over each list."""
        memory: Tensor = self.project(items)
        if self.positions is not None:
            places = torch.arange(len(items), device=items.device).clamp(max=LAST_POSITION)
            memory = memory + self.positions[places].unsqueeze(1)
        keys = mask | ~mask.any(1, keepdim=True)  # an empty list attends to its padding: a softmax over nothing is NaN
        for block in self.blocks:
            memory = block(memory, keys, drop)
        return memory, [self.cell.state_from(mean_of_items(memory, mask))]


class AttentionBlock(nn.Module):
    """Self-attention and a feed-forward layer, each with a residual and a layer norm."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(hidden, 3 * hidden)
        self.join = nn.Linear(hidden, hidden)
        self.widen = nn.Linear(hidden, _WIDENING * hidden)
        self.narrow = nn.Linear(_WIDENING * hidden, hidden)
        self.attended_norm = nn.LayerNorm(hidden)
        self.norm = nn.LayerNorm(hidden)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw the matrices; the layer norms do nothing yet."""
        _reset_linear(self.queries_keys_values, generator, matrices=3)
        for linear in (self.join, self.widen, self.narrow):
            _reset_linear(linear, generator)
        self.attended_norm.reset_parameters()
        self.norm.reset_parameters()

    def forward(self, x: Tensor, keys: Tensor, drop: Drop) -> Tensor:
        """Return (N, B, D) of the same; only items with keys (B, N) are attended to."""
        x = self.attended_norm(x + drop(self.attend(x, keys)))
        result: Tensor = self.norm(x + drop(self.narrow(F.relu(self.widen(x)))))
        return result

    def attend(self, x: Tensor, keys: Tensor) -> Tensor:
        """Return (N, B, D): what each item takes from the items with keys (B, N)."""
        n_items, n_lists, hidden = x.shape
        parts = self.queries_keys_values(x).view(n_items, n_lists, 3, self.heads, hidden // self.heads)
        queries, asked, values = parts.permute(2, 1, 3, 0, 4).unbind()  # (B, heads, N, D / heads)
        found = F.scaled_dot_product_attention(queries, asked, values, attn_mask=keys[:, None, None])
        result: Tensor = self.join(found.permute(2, 0, 1, 3).reshape(n_items, n_lists, hidden))
        return result


ENCODERS: dict[str, type[Encoder]] = {"recurrent": RecurrentEncoder, "attention": AttentionEncoder}
"""The encoders by name."""


def mean_of_items(memory: Tensor, mask: Tensor) -> Tensor:
    """Return (B, D) the mean of memory (N, B, D) over the real items; 0 for an empty list.

    >>> mean_of_items(torch.tensor([[[1.0], [9.0]], [[3.0], [9.0]]]), torch.tensor([[True, True], [False, False]]))
    tensor([[2.],
            [0.]])
    """
    shares = mask.t().to(memory.dtype) / mask.sum(1).clamp(min=1)
    return (memory * shares.unsqueeze(2)).sum(0)


def _mirrored_positions(lengths: Tensor, n_items: int) -> Tensor:
    """Return (N, B) where each position lies when a list is read from its end; padding stays where it is."""
    positions = torch.arange(n_items, device=lengths.device)[:, None]
    return torch.where(positions < lengths, lengths - 1 - positions, positions)


@torch.no_grad()
def _reset_linear(linear: nn.Linear, generator: torch.Generator, *, matrices: int = 1) -> None:
    """Draw a layer that holds so many matrices, one above the other; each has a scale of its own."""
    for matrix in linear.weight.chunk(matrices):
        nn.init.xavier_uniform_(matrix, generator=generator)
    linear.bias.zero_()
