"""A self-attention encoder: every item looks at every other, as in the re-rankers PRM and SetRank.

Items are projected to the width of the network and pass through blocks of multi-head self-attention and a feed-forward
layer, each with a residual and a layer norm after it (Vaswani et al. 2017). With learned position vectors the encoder
knows the base order, as in PRM (Pei et al. 2019); without them it treats the list as a set, as SetRank does (Pang et
al. 2020): items in another order get the same outputs in that order.

Where it departs from those papers, or decides what they leave open:

- PRM adds its position vectors before the projection. Here they are added after it, at the width of the network: what
  the projection made of them is learned directly.
- The feed-forward layer is twice as wide as the network, and not four times: that is what a CPU has time for.
- Dropout takes the same units of all items of a list, as everywhere in this network, and never an attention weight.
- Matrices start as Glorot and Bengio (2010) have it, biases at 0, layer norms at 1 and 0; positions start as the other
  weights of the network do.

B lists, N items, D units; items are time-major, (N, B, D), as in the recurrent encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that everyone knows)

Drop: TypeAlias = Callable[[Tensor], Tensor]
"""Applies dropout to (N, B, D)."""

LAST_POSITION = 127
"""Items from this base position on share a position vector."""
_WIDENING = 2


class AttentionEncoder(nn.Module):
    """Stacked blocks of self-attention over the items of a list."""

    def __init__(self, n_inputs: int, hidden: int, *, layers: int, heads: int, positions: bool) -> None:
        super().__init__()
        self.project = nn.Linear(n_inputs, hidden)
        self.positions = nn.Parameter(torch.empty(LAST_POSITION + 1, hidden)) if positions else None
        self.blocks = nn.ModuleList(AttentionBlock(hidden, heads) for _ in range(layers))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator, initial_range: float) -> None:
        """Draw all weights."""
        if self.positions is not None:
            self.positions.uniform_(-initial_range, initial_range, generator=generator)
        _reset_linear(self.project, generator)
        for block in self.blocks:
            block.reset_parameters(generator)  # type: ignore[operator]

    def forward(self, items: Tensor, mask: Tensor, drop: Drop) -> Tensor:
        """Return the memory (N, B, D) of items (N, B, I) with mask (B, N); what it holds for padding means nothing."""
        memory: Tensor = self.project(items)
        if self.positions is not None:
            places = torch.arange(len(items), device=items.device).clamp(max=LAST_POSITION)
            memory = memory + self.positions[places].unsqueeze(1)
        keys = mask | ~mask.any(1, keepdim=True)  # an empty list looks at its padding: a softmax over nothing is NaN
        for block in self.blocks:
            memory = block(memory, keys, drop)
        return memory


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
        """Return (N, B, D) of the same; only items with keys (B, N) are looked at."""
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


def mean_of_items(memory: Tensor, mask: Tensor) -> Tensor:
    """Return (B, D) the mean of memory (N, B, D) over the real items; 0 for an empty list.

    >>> mean_of_items(torch.tensor([[[1.0], [9.0]], [[3.0], [9.0]]]), torch.tensor([[True, True], [False, False]]))
    tensor([[2.],
            [0.]])
    """
    shares = mask.t().to(memory.dtype) / mask.sum(1).clamp(min=1)
    return (memory * shares.unsqueeze(2)).sum(0)


@torch.no_grad()
def _reset_linear(linear: nn.Linear, generator: torch.Generator, *, matrices: int = 1) -> None:
    """Draw a layer that holds so many matrices, one above the other; each has a scale of its own."""
    for matrix in linear.weight.chunk(matrices):
        nn.init.xavier_uniform_(matrix, generator=generator)
    linear.bias.zero_()
