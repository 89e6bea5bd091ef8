"""Per-step losses, and the sequence loss of a slate (paper, section 3).

Every loss is `f(scores, labels, *, mask) -> values`: scores, labels and mask broadcast to (..., N), values are (...).
`mask` is True for the items that count, real and not yet placed. Their scores are finite; the scores of the others may
be anything, and reach neither the value nor the gradient. Labels are 0 or above, clicks or grades; an item is positive
when its label is above 0. When no positive is left the loss and its gradient are exactly 0.

Where this departs from the paper, or decides what the paper leaves open:

- Labels may be graded. Cross-entropy then aims at shares in proportion to the labels; the hinges see only positives
  and the others.
- A hinge compares positives with others; when only positives are left every choice is right, and the loss is 0.
- Smooth hinge smooths all three extremes of the hinge, the outer max{0, ·} as well. The paper speaks of "the maximum
  and minimum" and then calls its loss differentiable everywhere, which holds for this reading alone. It is the smooth
  maximum of 0 and of 1 - s_i + s_j over all pairs, so an empty set of pairs gives log(1) = 0 by itself.
- The paper says that a slate with the positives first has loss 0. That is so for the hinge, with margins of 1. The
  cross-entropy of a step is at least the entropy of its target, log of the number of (equal) positives left, so such a
  slate with P positives tends to log(P!), the lowest value there is, as the margins grow.
- DCG weights are 1 / log2(j + 1), not 1 / log(j + 1): the first step weighs 1, as with uniform weights.

B lists, N items, K steps; `slates` (B, K) are indices into the lists, -1 in a slot without an item.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812 (the name that everyone knows)

from seq2slate.config import StepWeights
from seq2slate.errors import UsageError
from seq2slate.model.decoders import items_left

_PAIRS_AT_ONCE = 2**18
"""How many pairs of items the pairwise losses look at in one go: few enough for the cache, many enough for a call."""


class Loss(Protocol):
    """A per-step loss, for any number of steps at once."""

    def __call__(self, scores: Tensor, labels: Tensor, *, mask: Tensor) -> Tensor:
        """Return the loss of each step.

        Args:
            scores: (..., N) the scores of the items; only those in the mask must be finite.
            labels: (..., N) clicks or grades, 0 or above.
            mask: (..., N) True for the items that count: real and not yet placed.

        Returns:
            (...) the losses; 0 where no positive is left. The three arguments are broadcast.

        """
        ...


# Per-step losses


def cross_entropy(scores: Tensor, labels: Tensor, *, mask: Tensor) -> Tensor:
    """Return the cross-entropy of the softmax of the scores to the shares of the labels, over the items left.

        L = -Σ_i ŷ_i log p_i,   p = softmax(s),   ŷ_i = y_i / Σ_j y_j

    Arguments and result are those of `Loss`.

    >>> scores, labels = torch.tensor([2.0, 1.0, 5.0]), torch.tensor([1, 0, 0])
    >>> loss = cross_entropy(scores, labels, mask=torch.tensor([True, True, False]))
    >>> torch.isclose(loss, torch.tensor(-math.log(math.exp(2) / (math.exp(2) + math.exp(1)))))
    tensor(True)
    """
    scores, labels, mask = _broadcast(scores, labels, mask)
    weights = labels.to(scores.dtype) * mask
    log_p = _lowest_unless(mask, scores).log_softmax(-1)
    total = weights.sum(-1)
    values: Tensor = -torch.linalg.vecdot(weights, log_p) / torch.where(total > 0, total, 1)
    return values


def hinge(scores: Tensor, labels: Tensor, *, mask: Tensor) -> Tensor:
    """Return the hinge loss between the worst positive and the best other item; 0 if there are no others.

        L = max{0, 1 - min_{y_i > 0} s_i + max_{y_j = 0} s_j}

    Arguments and result are those of `Loss`.

    >>> mask = torch.tensor([True, True, True])
    >>> hinge(torch.tensor([2.0, 1.5, 0.0]), torch.tensor([1, 0, 0]), mask=mask)
    tensor(0.5000)
    """
    positives, others = _positives_and_others(labels, mask)
    lowest_positive = -_maximum(_lowest_unless(positives, -scores))
    return F.relu(1 - lowest_positive + _maximum(_lowest_unless(others, scores)))


def smooth_hinge(scores: Tensor, labels: Tensor, *, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """Return the hinge loss with each maximum and minimum smoothed.

        L = (1/γ) log(1 + Σ_{y_i > 0} Σ_{y_j = 0} e^{γ (1 - s_i + s_j)})

    It is never below the hinge, and tends to it as `gamma` grows. The other arguments are those of `Loss`.

    >>> mask = torch.tensor([True, True])
    >>> loss = smooth_hinge(torch.tensor([2.0, 0.0]), torch.tensor([1, 0]), mask=mask)
    >>> torch.isclose(loss, torch.tensor(math.log(1 + math.exp(1 - 2 + 0))))
    tensor(True)
    """
    if not gamma > 0:
        raise UsageError(f"gamma must be above 0, got {gamma}")
    positives, others = _positives_and_others(labels, mask)
    sharp = gamma * scores
    log_sum_of_pairs = _log_sum_exp(_lowest_unless(positives, -sharp)) + _log_sum_exp(_lowest_unless(others, sharp))
    return -F.logsigmoid(-(gamma + log_sum_of_pairs)) / gamma


def list_net(scores: Tensor, labels: Tensor, *, mask: Tensor) -> Tensor:
    """Return the top-one ListNet loss (Cao et al. 2007): cross-entropy to the softmax of the labels.

        L = -Σ_i q_i log p_i,   p = softmax(s),   q = softmax(y)

    Once no positive is left it is 0, like every loss here, and not the entropy of equal labels. Arguments and result
    are those of `Loss`.

    >>> loss = list_net(torch.tensor([0.0, 0.0]), torch.tensor([1, 0]), mask=torch.tensor([True, True]))
    >>> torch.isclose(loss, torch.tensor(math.log(2)))
    tensor(True)
    """
    shares = _lowest_unless(mask, labels.to(scores.dtype)).softmax(-1)
    any_positive = ((labels > 0) & mask).any(-1, keepdim=True)
    return cross_entropy(scores, shares * any_positive, mask=mask)


def pairwise_logistic(scores: Tensor, labels: Tensor, *, mask: Tensor) -> Tensor:
    """Return the RankNet loss (Burges et al. 2005): the mean over all pairs with y_i > y_j; 0 if there are none.

        L = mean_{y_i > y_j} log(1 + e^{-(s_i - s_j)})

    It looks at N² pairs for each value, a few at a time; only the gradient (..., N) is kept for the backward pass.
    Arguments and result are those of `Loss`.

    >>> loss = pairwise_logistic(torch.tensor([2.0, 0.0]), torch.tensor([1, 0]), mask=torch.tensor([True, True]))
    >>> torch.isclose(loss, torch.tensor(math.log(1 + math.exp(-2))))
    tensor(True)
    """
    return _over_pairs(_pairwise_logistic, scores, labels, mask)


def approximate_ndcg(scores: Tensor, labels: Tensor, *, mask: Tensor, temperature: float = 0.1) -> Tensor:
    """Return 1 - NDCG of the items left, with smooth ranks (Qin et al. 2010).

        L = 1 - (1 / ideal DCG) Σ_i y_i / log2(1 + r_i),   r_i = 1 + Σ_{j≠i} σ((s_j - s_i) / temperature)

    The lower the temperature, the closer to the true NDCG and the flatter between its steps. It looks at N² pairs for
    each value, as `pairwise_logistic` does. The other arguments are those of `Loss`.

    >>> loss = approximate_ndcg(torch.tensor([9.0, 0.0]), torch.tensor([1, 0]), mask=torch.tensor([True, True]))
    >>> bool(loss < 1e-6)
    True
    """
    if not temperature > 0:
        raise UsageError(f"temperature must be above 0, got {temperature}")
    return _over_pairs(partial(_approximate_ndcg, temperature=temperature), scores, labels, mask)


LOSSES: dict[str, Loss] = {
    "cross-entropy": cross_entropy,
    "hinge": hinge,
    "smooth-hinge": smooth_hinge,
    "list-net": list_net,
    "pairwise-logistic": pairwise_logistic,
    "approximate-ndcg": approximate_ndcg,
}
"""Every per-step loss by name: a new one is added here, and nowhere else."""


def make_loss(name: str, *, gamma: float | None = None) -> Loss:
    """Return the loss with a name in `LOSSES`; `gamma` is the sharpness of the smooth hinge, 1 if None.

    >>> make_loss("hinge") is hinge
    True
    """
    if name not in LOSSES:
        raise UsageError(f"unknown loss {name!r}; known are {', '.join(LOSSES)}")
    if gamma is None:
        return LOSSES[name]
    if name != "smooth-hinge":
        raise UsageError(f"gamma belongs to smooth-hinge; {name} has none")
    if not gamma > 0:
        raise UsageError(f"gamma must be above 0, got {gamma}")
    return partial(smooth_hinge, gamma=gamma)


# The sequence loss


def step_weights(kind: StepWeights, n_steps: int, *, k: int | None = None) -> Tensor:
    """Return the weights (K,) of the steps: "uniform" (1) or "dcg" (1 / log2(j + 1), j from 1); 0 after the first k.

    >>> step_weights("uniform", 4, k=2)
    tensor([1., 1., 0., 0.])
    """
    if k is not None and k < 1:
        raise UsageError(f"k must be at least 1, got {k}")
    steps = torch.arange(1.0, n_steps + 1)
    if kind == "uniform":
        weights = torch.ones_like(steps)
    elif kind == "dcg":
        weights = 1 / torch.log2(steps + 1)
    else:
        raise UsageError(f"unknown step weights {kind!r}; known are {', '.join(get_args(StepWeights))}")
    return weights if k is None else weights * (steps <= k)


def step_losses(scores: Tensor, labels: Tensor, slates: Tensor, mask: Tensor, *, loss: Loss) -> Tensor:
    """Return the loss of each step of given slates, over the items then left.

    Args:
        scores: (B, K, N) the scores from which each step chose.
        labels: (B, N) clicks or grades.
        slates: (B, K) indices into the lists, -1 in a slot without an item.
        mask: (B, N) True for a real item.
        loss: The per-step loss.

    Returns:
        (B, K) the losses; 0 in a slot without an item.

    """
    left = items_left(slates, mask) & (slates >= 0).unsqueeze(-1)
    return loss(scores, labels.unsqueeze(1), mask=left)


def sequence_loss(
    scores: Tensor, labels: Tensor, slates: Tensor, mask: Tensor, *, loss: Loss, weights: Tensor
) -> Tensor:
    """Return (B,) the loss of each slate: the losses of its steps, weighted by `weights` (K,), and summed.

    The first step can choose either item; after it one positive is left, alone:

    >>> scores = torch.tensor([[[0.0, 0.0], [-math.inf, 0.0]]])
    >>> slates, mask = torch.tensor([[0, 1]]), torch.tensor([[True, True]])
    >>> weights = step_weights("uniform", 2)
    >>> loss = sequence_loss(scores, torch.tensor([[1, 1]]), slates, mask, loss=cross_entropy, weights=weights)
    >>> torch.isclose(loss, torch.tensor(math.log(2)))
    tensor([True])
    """
    values = step_losses(scores, labels, slates, mask, loss=loss)
    return values @ weights.to(values)


# Pairs of items


def _pairwise_logistic(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    scores = torch.where(mask, scores, 0)
    labels = torch.where(mask, labels, math.nan)  # above nothing, below nothing
    margins = scores.unsqueeze(-1) - scores.unsqueeze(-2)  # (R, N, N)
    pairs = (labels.unsqueeze(-1) > labels.unsqueeze(-2)).to(scores.dtype)
    return -(F.logsigmoid(margins) * pairs).sum((-2, -1)) / pairs.sum((-2, -1)).clamp(min=1)


def _approximate_ndcg(scores: Tensor, labels: Tensor, mask: Tensor, *, temperature: float) -> Tensor:
    scores = torch.where(mask, scores, 0) / temperature
    is_above = torch.sigmoid(scores.unsqueeze(-2) - scores.unsqueeze(-1))  # (R, N, N), item j above item i
    counts = mask.to(scores.dtype)
    ranks = 0.5 + torch.linalg.vecdot(is_above, counts.unsqueeze(-2))  # an item is above itself by a half
    gains = labels * counts
    slots = torch.arange(1, gains.shape[-1] + 1, dtype=gains.dtype, device=gains.device)
    ideal = (gains.sort(descending=True).values / torch.log2(1 + slots)).sum(-1)
    return 1 - (gains / torch.log2(1 + ranks)).sum(-1) / ideal


def _over_pairs(loss: Callable[..., Tensor], scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Return the values (...) of a loss of (R, N) rows that needs (R, N, N) numbers; 0 for a row without positives."""
    scores, labels, mask = _broadcast(scores, labels.to(scores.dtype), mask)
    with_positives = ((labels > 0) & mask).any(-1)
    rows = [tensor[with_positives] for tensor in (scores, labels, mask)]
    with_gradient = scores.requires_grad and torch.is_grad_enabled()
    found = _InChunks.apply(loss, with_gradient, *rows)  # type: ignore[no-untyped-call]
    return scores.new_zeros(scores.shape[:-1]).masked_scatter(with_positives, found)


class _InChunks(torch.autograd.Function):
    """A loss of rows, a few rows at a time; the gradient is worked out with the value, so that no pair is kept."""

    @staticmethod
    def forward(
        ctx: Any, loss: Callable[..., Tensor], with_gradient: bool, scores: Tensor, labels: Tensor, mask: Tensor
    ) -> Tensor:
        values = scores.new_empty(len(scores))
        gradient = torch.zeros_like(scores)
        n_rows = max(1, _PAIRS_AT_ONCE // max(1, scores.shape[1] ** 2))
        for start in range(0, len(scores), n_rows):
            rows = slice(start, start + n_rows)
            with torch.set_grad_enabled(with_gradient):
                some_scores = scores[rows].detach().requires_grad_(with_gradient)
                some_values = loss(some_scores, labels[rows], mask[rows])
            if with_gradient:  # rows do not depend on each other, so one gradient serves them all
                (gradient[rows],) = torch.autograd.grad(some_values, some_scores, torch.ones_like(some_values))
            values[rows] = some_values.detach()
        ctx.save_for_backward(gradient)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return None, None, gradient * gradients[0].unsqueeze(-1), None, None


# Masked extremes


def _positives_and_others(labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    positive = labels > 0
    return mask & positive, mask & ~positive


class _Filled(torch.autograd.Function):
    """Fills the items that do not count; see `_lowest_unless`."""

    @staticmethod
    def forward(_: Any, chosen: Tensor, values: Tensor, fill: float) -> Tensor:
        return torch.where(chosen, values, fill)

    @staticmethod
    def backward(_: Any, *gradients: Any) -> Any:
        return None, gradients[0], None


def _lowest_unless(chosen: Tensor, values: Tensor) -> Tensor:
    """Return the values where chosen, elsewhere a number so low that its exponential is 0 next to any other.

    The gradient passes as it is. That saves a slow pass over it (PyTorch's `where` branches at every element) and is
    right only because what follows, here, gives the filled places a gradient of exactly 0: no maximum is there and no
    probability, or, when nothing is chosen at all, nothing depends on the result.
    The number is finite, since infinities make NaN gradients, and twice it can still be represented.
    """
    chosen, values = _broadcast(chosen, values)
    return cast(Tensor, _Filled.apply(chosen, values, _lowest(values)))  # type: ignore[no-untyped-call]


def _broadcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.broadcast_tensors(*tensors))  # type: ignore[no-untyped-call]


def _lowest(values: Tensor) -> float:
    return torch.finfo(values.dtype).min / 2


def _maximum(values: Tensor) -> Tensor:
    """Return the maxima (...) of values (..., N), and the lowest number if N is 0."""
    return F.pad(values, (0, 1), value=_lowest(values)).amax(-1)


def _log_sum_exp(values: Tensor) -> Tensor:
    """Return log Σ e^v, (...); `torch.logsumexp` is ten times slower here, since `exp` is slow where it underflows."""
    top = _maximum(values.detach())
    sums = torch.exp2((values - top.unsqueeze(-1)) * math.log2(math.e)).sum(-1)
    return sums.log() + top
