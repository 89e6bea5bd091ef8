"""The pointer: scores s_i^j = v^T tanh(W_enc e_i + W_dec d_j) and their gradient (paper, section 2).

The tanh is the hot spot, and it factors. With a = W_enc e_i and b = W_dec d_j, unit by unit,

    tanh(a + b) = 1 - 2r,    r = 1 / (1 + e^{2a} e^{2b}),    d tanh(a + b) / da = 4 r (1 - r)

The factors e^{2a} are taken once for an item and e^{2b} once for a step; inside the loop over lists, steps, items and
units there is only a product and a reciprocal. Arguments are clamped to ±`LIMIT`. The backward pass computes r again:
nothing of size (B, K, N, D) is stored. The same scores are computed in C (`backends/native.c`, `native_list.c`) and in
ONNX (`backends/onnx_export.py`); tests/test_backends.py compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seq2slate.model.backends.kernels import PointerGradients, StepRows, kernels_for

LIMIT = 40.0
"""Arguments of the tanh are clamped to ± this, so that e^{2x} is finite; a product of two may overflow or underflow,
and both give the right tanh."""


@dataclass(frozen=True)
class Keys:
    """The items' side of the pointer."""

    factors: Tensor
    """(B, N, D) e^{2 W_enc e_i}: what the scores are computed from."""
    arguments: Tensor | None
    """(B, N, D) W_enc e_i, to which the gradient goes; None where there is none."""

    @classmethod
    def of(cls, arguments: Tensor) -> Keys:
        """Take the factors of arguments (B, N, D), once for drawing slates and for scoring them."""
        return cls(pointer_factors(arguments), arguments)


def pointer_scores(keys: Keys, queries: Tensor, v: Tensor, rows: StepRows) -> Tensor:
    """Return the scores of given slates.

    Args:
        keys: The items' side, W_enc e_i.
        queries: (K, R, D) W_dec d_j of each step, for the R lists that have it.
        v: (D,)
        rows: Which lists and steps the queries belong to, and which items are left.

    Returns:
        (B, K, N) v^T tanh(key + query); -inf for an item that is not left, or a step that is not there.
    """
    scores: Tensor = _PointerScores.apply(keys.arguments, keys.factors, queries, v, rows)  # type: ignore[no-untyped-call]
    return scores


def pointer_factors(arguments: Tensor) -> Tensor:
    """Return e^{2x} for arguments x of the tanh: what the kernels take as keys and queries."""
    factors = arguments.detach().clone(memory_format=torch.contiguous_format)
    kernels_for(factors).pointer_factors(factors, LIMIT)
    return factors


class _PointerScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _: Tensor | None, keys: Tensor, queries: Tensor, v: Tensor, rows: StepRows) -> Tensor:
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
        written = PointerGradients(torch.zeros_like(keys), torch.zeros_like(queries), v.new_zeros(len(keys), len(v)))
        dscores = gradients[0].contiguous()
        kernels_for(keys).pointer_backward(ctx.rows, keys, queries, v.contiguous(), dscores, written)
        return written.keys, None, written.queries, written.v.sum(0), None
