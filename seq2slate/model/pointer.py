"""The pointer: scores s_i^j = v^T tanh(W_enc e_i + W_dec d_j) and their gradient (paper, section 2).

The tanh is the hot spot, and it factors: tanh(a + b) = 1 - 2 / (1 + e^{2a} e^{2b}). The exponentials are taken once for
an item and once for a step; inside the loop over lists, steps, items and units there is only a product and a
reciprocal. The backward pass computes r = 1 / (1 + e^{2a} e^{2b}) again: nothing of size (B, K, N, D) is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seq2slate.model.backends.kernels import Rows, kernels_for


@dataclass(frozen=True)
class Keys:
    """The items' side of the pointer."""

    factors: Tensor
    """(B, N, D) e^{2 W_enc e_i}: what the scores are computed from."""
    arguments: Tensor | None
    """(B, N, D) W_enc e_i, which the gradient goes to; None where nobody asks for one."""

    @classmethod
    def of(cls, arguments: Tensor) -> Keys:
        """Take the factors once, for drawing slates and for scoring them."""
        return cls(pointer_factors(arguments), arguments)


def pointer_scores(keys: Keys, queries: Tensor, v: Tensor, rows: Rows) -> Tensor:
    """Return the scores (B, K, N) of given slates; -inf for an item that is not left, or a step that is not there.

    queries (K, R, D) are W_dec d_j.
    """
    scores: Tensor = _PointerScores.apply(keys.arguments, keys.factors, queries, v, rows)  # type: ignore[no-untyped-call]
    return scores


def pointer_factors(arguments: Tensor) -> Tensor:
    """Return e^{2x} for arguments of the tanh: what the kernels take as keys and queries."""
    factors = arguments.detach().clone(memory_format=torch.contiguous_format)
    kernels_for(factors).pointer_factors(factors)
    return factors


class _PointerScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _: Tensor | None, keys: Tensor, queries: Tensor, v: Tensor, rows: Rows) -> Tensor:
        query_factors = pointer_factors(queries)
        scores = keys.new_full((len(keys), len(queries), keys.shape[1]), -torch.inf)
        kernels_for(keys).pointer_forward(rows, keys, query_factors, v.contiguous(), scores)
        ctx.save_for_backward(keys, query_factors, v)
        ctx.rows = rows
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        keys, queries, v = ctx.saved_tensors
        dkeys, dqueries, dv = torch.zeros_like(keys), torch.zeros_like(queries), v.new_zeros(len(keys), len(v))
        dscores = gradients[0].contiguous()
        kernels_for(keys).pointer_backward(ctx.rows, keys, queries, v.contiguous(), dscores, dkeys, dqueries, dv)
        return dkeys, None, dqueries, dv.sum(0), None
