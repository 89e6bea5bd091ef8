"""Kernels: the inner loops of the network, in PyTorch and in C, with one interface and one choice between the two.

PyTorch's run on any device and in any precision. C's (`native`) run on the CPU in float32, where there is a compiler.
All of them write into tensors that they are given, so that the caller decides what is allocated and when; every
constant of the score comes from the caller, too. Training uses them as well as the backends.

Shapes: B lists, R rows (the lists that a step works on), N items, K steps, D units.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from seq2slate.model.backends import pairs as in_torch
from seq2slate.model.backends.native import NativeKernels, native_kernels
from seq2slate.model.backends.pairs import PairColumns, PairGradients, Pairs, PairWeights, PlacedPairs


@dataclass(frozen=True)
class Decoding:
    """What the steps of decoding read and write."""

    keys: Tensor
    """(B, N, D) factors e^{2 W_enc e_i} of the items."""
    v: Tensor
    """(D,)"""
    left: Tensor
    """(B, N) bool, the items not yet placed; written."""
    scores: Tensor
    """(B, K, N) -inf at first; written."""
    slates: Tensor
    """(B, K) -1 at first; written."""
    draws: Tensor | None = None
    """(B, K) uniform in [0, 1): items are then sampled, and not the best taken."""
    sharpness: float = 1.0
    """1 / temperature: items are sampled from the softmax of score · sharpness."""
    bias: Tensor | None = None
    """(B, N) added to the scores; written."""
    interaction: Tensor | None = None
    """(B, N, N) what a placed item adds to the bias of the others; needs a bias."""
    placed: PlacedPairs | None = None
    """The same by the effects of pairs."""


@dataclass(frozen=True)
class StepRows:
    """Which steps of given slates are scored: row r of the queries belongs to list lists[r] and has stops[r] steps."""

    lists: Tensor
    """(R,)"""
    stops: Tensor
    """(R,) falling from row to row."""
    slots: Tensor
    """(B, N) the step at which an item is placed, K or more if it is not, negative for padding."""


@dataclass(frozen=True)
class LstmWeights:
    """An LSTM layer of D units over inputs of size I."""

    weight_input: Tensor
    """(I, 4D)"""
    weight_hidden: Tensor
    """(D, 4D)"""
    bias: Tensor
    """(4D,)"""


@dataclass(frozen=True)
class LstmScan:
    """All T steps of an LSTM layer, with what its gradient needs."""

    layer: LstmWeights
    rows: Tensor
    """(T,) how many lists, from the first, take part in each step."""
    x: Tensor
    """(T, B, I) what it reads; (T - 1, B, I) and read from the second step on with a start."""
    start: Tensor | None
    """(I,) what every list reads first."""
    gates: Tensor
    """(T, B, 4D); written."""
    c: Tensor
    """(T + 1, B, D) the state before each step; written but for the first."""
    h: Tensor
    """(T + 1, B, D)"""


@dataclass(frozen=True)
class LstmScanGradients:
    """The gradients of a scan; those that are written are 0 at first."""

    last: Tensor
    """(B,) the step after which the state of each list is taken."""
    doutputs: Tensor
    """(T, B, D)"""
    dh_last: Tensor
    """(B, D)"""
    dc_last: Tensor
    """(B, D)"""
    dh: Tensor
    """(B, D) of the first state; written."""
    dc: Tensor
    """(B, D)"""
    dweight_input: Tensor
    """(I, 4D)"""
    dweight_hidden: Tensor
    """(D, 4D)"""
    dbias: Tensor
    """(4D,)"""
    dx: Tensor | None
    """As x, if it is wanted."""
    dstart: Tensor | None
    """(I,) if there is a start."""


@dataclass(frozen=True)
class LstmEncoder:
    """An encoder of one LSTM layer that reads forwards from a state of zeros, and the lists that it reads."""

    layer: LstmWeights
    items: Tensor
    """(N, B, I)"""
    last: Tensor
    """(B,) the last item of each list."""
    w_enc: Tensor
    """(D, D)"""
    limit: float
    """Arguments of the pointer are clamped to ± this."""


@dataclass(frozen=True)
class LstmTrace:
    """What the gradient of an LSTM layer needs of its steps; h is 0 where a list takes no part."""

    gates: Tensor
    """(T, B, 4D)"""
    c: Tensor
    """(T, B, D) after each step."""
    h: Tensor
    """(T, B, D)"""


@dataclass(frozen=True)
class LstmDecoder:
    """A decoder of one LSTM layer, and where it starts."""

    layer: LstmWeights
    items: Tensor
    """(N, B, I) what it reads of an item."""
    go: Tensor
    """(I,) what it reads first."""
    w_dec: Tensor
    """(D, D)"""
    keep: Tensor | None
    """(B, D) the dropout of its outputs."""
    h: Tensor
    """(B, D) its first state."""
    c: Tensor
    """(B, D)"""
    wanted: Tensor
    """(B, N) bool; a list ends when none of these items is left."""
    limit: float
    """Arguments of the pointer are clamped to ± this."""
    trace: LstmTrace | None = None
    """Written, if it is there."""


@dataclass(frozen=True)
class PointerGradients:
    """The gradients by the arguments of the tanh, and by v; all are 0 at first, and written."""

    keys: Tensor
    """(B, N, D)"""
    queries: Tensor
    """(K, R, D)"""
    v: Tensor
    """(B, D) list by list."""


class Kernels(Protocol):
    """What both sets of functions offer."""

    @property
    def fused(self) -> NativeKernels | None:
        """The kernels that also run whole loops over the steps of one LSTM layer, if they can."""

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why these kernels cannot run on tensors of this kind; None if they can."""

    def lstm_forward(self, gates: Tensor, bias: Tensor, before: Tensor, c: Tensor, h: Tensor) -> None:
        """One LSTM step: gates (R, 4D), the arguments of i, f, g, o without bias, are overwritten with their values."""

    def lstm_backward(self, gates: Tensor, before: Tensor, c: Tensor, dh: Tensor, dc: Tensor, dgates: Tensor) -> None:
        """Its gradient: dgates (R, 4D) of the arguments; dc (R, D) is overwritten with that of the state before."""

    def pointer_factors(self, x: Tensor, limit: float) -> None:
        """Overwrite x with e^{2x}, x clamped to ±limit."""

    def pointer_step(self, decoding: Decoding, step: int, lists: Tensor, queries: Tensor) -> None:
        """Score the items left of lists (R,) with factors queries (R, D), and place one of them."""

    def pointer_forward(self, rows: StepRows, keys: Tensor, queries: Tensor, v: Tensor, scores: Tensor) -> None:
        """Score given slates, with factors keys (B, N, D) and queries (K, R, D); scores (B, K, N) are -inf at first."""

    def pointer_backward(
        self, rows: StepRows, keys: Tensor, queries: Tensor, v: Tensor, dscores: Tensor, gradients: PointerGradients
    ) -> None:
        """Its gradient, from that of the scores (B, K, N)."""

    def expected_logits(self, effects: Tensor, logits: Tensor) -> None:
        """Add to logits (B, N), from the top, what the items above each do by their effects (B, P) and log-odds."""

    def clicks_above_forward(self, clicked: Tensor, effects: Tensor, logits: Tensor) -> None:
        """Add to logits (B, N) the effects (B, P) of the clicks above each item; clicked (B, N) is 1 or 0."""

    def clicks_above_backward(self, clicked: Tensor, dlogits: Tensor, deffects: Tensor) -> None:
        """Its gradient: write deffects (B, P)."""

    def pair_coordinates(self, columns: PairColumns, items: Tensor, lengths: Tensor, coordinates: Tensor) -> None:
        """Where the distances of items (N, B, I) lie between the knots: coordinates (B, D, P) are 0 at first."""

    def places_forward(
        self, weights: PairWeights, lengths: Tensor, seen: Tensor, places: Tensor, relevance: Tensor, scales: Tensor
    ) -> None:
        """Write places (B, H, N, width) and relevance (B, N), 0 at first, from what is seen (N, B, H · width + 1).

        Places are centred in each list and have a mean squared distance of 1. scales (B, H) are for the gradient.
        """

    def places_backward(
        self,
        weights: PairWeights,
        lengths: Tensor,
        places: tuple[Tensor, Tensor],
        given: tuple[Tensor, Tensor],
        dseen: Tensor,
    ) -> None:
        """Its gradient, 0 at first, from places with their scales, and the gradients of places and relevance."""

    def pair_effects_forward(self, weights: PairWeights, pairs: Pairs, effects: Tensor, crowding: Tensor) -> None:
        """Write effects (B, P) and crowding (B, N), which are 0 at first."""

    def pair_effects_backward(
        self, weights: PairWeights, pairs: Pairs, deffects: Tensor, dcrowding: Tensor, gradients: PairGradients
    ) -> None:
        """Its gradients, from those of the effects (B, P) and of crowding (B, N)."""

    def placed_rows(self, placed: PlacedPairs, slates: Tensor, added: Tensor) -> None:
        """Write added (B, K, N), 0 at first: what the items of slates (B, K) add to the scores of the others."""


class TorchKernels:
    """The functions in PyTorch, step by step, so that nothing of size (B, K, N, D) is ever held."""

    fused = None

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """PyTorch runs everything."""
        return None

    def lstm_forward(self, gates: Tensor, bias: Tensor, before: Tensor, c: Tensor, h: Tensor) -> None:  # noqa: D102
        gates += bias
        i, f, g, o = gates.chunk(4, dim=1)
        for sigmoid in (i, f, o):
            sigmoid.sigmoid_()
        torch.mul(f, before, out=c).addcmul_(i, g.tanh_())
        torch.mul(o, c.tanh(), out=h)

    def lstm_backward(  # noqa: D102
        self, gates: Tensor, before: Tensor, c: Tensor, dh: Tensor, dc: Tensor, dgates: Tensor
    ) -> None:
        i, f, g, o = gates.chunk(4, dim=1)
        squashed = c.tanh()
        dc += dh * o * (1 - squashed**2)
        parts = (dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g**2), dh * squashed * o * (1 - o))
        torch.cat(parts, dim=1, out=dgates)
        dc *= f

    def pointer_factors(self, x: Tensor, limit: float) -> None:  # noqa: D102
        x.clamp_(-limit, limit).mul_(2).exp_()

    def pointer_step(self, decoding: Decoding, step: int, lists: Tensor, queries: Tensor) -> None:  # noqa: D102
        left = decoding.left[lists]
        scores = _scores(decoding.keys[lists], queries[:, None], decoding.v)
        if decoding.bias is not None:
            scores += decoding.bias[lists]
        scores.masked_fill_(~left, -torch.inf)
        if decoding.draws is None:
            choice = scores.argmax(1)
        else:
            choice = sampled_items(scores * decoding.sharpness, decoding.draws[lists, step])
        choice = choice.where(left.any(1), -1)
        decoding.scores[lists, step] = scores
        decoding.slates[lists, step] = choice
        placed = lists[choice >= 0], choice[choice >= 0]
        decoding.left[placed] = False
        if decoding.interaction is not None and decoding.bias is not None:
            decoding.bias[placed[0]] += decoding.interaction[placed]
        if decoding.placed is not None and decoding.bias is not None:
            slates = torch.full_like(decoding.slates[:, :1], -1)
            slates[placed[0], 0] = placed[1]
            decoding.bias.add_(in_torch.placed_rows(decoding.placed, slates)[:, 0])

    def pointer_forward(  # noqa: D102
        self, rows: StepRows, keys: Tensor, queries: Tensor, v: Tensor, scores: Tensor
    ) -> None:
        for step, lists in _lists_of_steps(rows, len(queries)):
            values = _scores(keys[lists], queries[step, : len(lists), None], v)
            scores[lists, step] = values.masked_fill(rows.slots[lists] < step, -torch.inf)

    def pointer_backward(  # noqa: D102
        self, rows: StepRows, keys: Tensor, queries: Tensor, v: Tensor, dscores: Tensor, gradients: PointerGradients
    ) -> None:
        for step, lists in _lists_of_steps(rows, len(queries)):
            dscore = dscores[lists, step, :, None]
            r = _half_gap(keys[lists], queries[step, : len(lists), None])
            slope = 4 * v * r * (1 - r) * dscore
            gradients.keys[lists] += slope
            gradients.queries[step, : len(lists)] = slope.sum(1)
            gradients.v[lists] += ((1 - 2 * r) * dscore).sum(1)

    def expected_logits(self, effects: Tensor, logits: Tensor) -> None:  # noqa: D102
        for item, row in enumerate(_rows(effects, logits.shape[1])):
            logits[:, item] += in_torch.mixed_effects(logits[:, :item], row).sum(1)

    def clicks_above_forward(self, clicked: Tensor, effects: Tensor, logits: Tensor) -> None:  # noqa: D102
        logits += (in_torch.below_diagonal(effects, logits.shape[1]) @ clicked[:, :, None]).squeeze(2)

    def clicks_above_backward(self, clicked: Tensor, dlogits: Tensor, deffects: Tensor) -> None:  # noqa: D102
        lower, upper = in_torch.pair_indices(clicked.shape[1], clicked.device)
        torch.mul(dlogits[:, lower], clicked[:, upper], out=deffects)

    def pair_coordinates(self, columns: PairColumns, items: Tensor, lengths: Tensor, coordinates: Tensor) -> None:  # noqa: D102
        coordinates.copy_(in_torch.coordinates_of(columns, items, lengths))

    def places_forward(  # noqa: D102
        self, weights: PairWeights, lengths: Tensor, seen: Tensor, places: Tensor, relevance: Tensor, scales: Tensor
    ) -> None:
        real = in_torch.real_items(lengths, len(seen))
        relevance.copy_(seen[:, :, -1].t().where(real, 0.0))
        placed, factors = in_torch.places_of(weights, seen[:, :, :-1].transpose(0, 1), real)
        places.copy_(placed)
        scales.copy_(factors)

    def places_backward(  # noqa: D102
        self,
        weights: PairWeights,
        lengths: Tensor,
        places: tuple[Tensor, Tensor],
        given: tuple[Tensor, Tensor],
        dseen: Tensor,
    ) -> None:
        (own, scales), (down, drelevance) = places, given
        count = lengths.clamp(min=1)[:, None, None, None]
        turn = 2 * (own * down).sum((2, 3), keepdim=True) / count * (scales > 0)[:, :, None, None]
        real = in_torch.real_items(lengths, len(dseen))
        change = scales.abs()[:, :, None, None] * (down - turn * own) * real[:, None, :, None]
        change = (change - change.sum(2, keepdim=True) / count) * real[:, None, :, None]
        dseen[:, :, :-1] = change.permute(2, 0, 1, 3).flatten(2)
        dseen[:, :, -1] = (drelevance * real).t()

    def pair_effects_forward(self, weights: PairWeights, pairs: Pairs, effects: Tensor, crowding: Tensor) -> None:  # noqa: D102
        for found, into in zip(in_torch.effects_of(weights, pairs), (effects, crowding), strict=True):
            into.copy_(found)

    def pair_effects_backward(  # noqa: D102
        self, weights: PairWeights, pairs: Pairs, deffects: Tensor, dcrowding: Tensor, gradients: PairGradients
    ) -> None:
        names = ("effects", "crowding", "strengths", "constant")
        with torch.enable_grad():
            own = {name: getattr(weights, name).detach().requires_grad_() for name in names}
            places = pairs.places.detach().requires_grad_()
            effects, crowding = in_torch.effects_of(replace(weights, **own), replace(pairs, places=places))
            total = (effects * deffects).sum() + (crowding * dcrowding).sum()
        found = torch.autograd.grad(total, [*own.values(), places], allow_unused=True, materialize_grads=True)
        for gradient, into in zip(found[:-1], gradients.tensors, strict=False):
            into[:1] = gradient  # of all lists
        gradients.places.copy_(found[-1])

    def placed_rows(self, placed: PlacedPairs, slates: Tensor, added: Tensor) -> None:  # noqa: D102
        added.copy_(in_torch.placed_rows(placed, slates))


def _rows(pairs: Tensor, n_items: int) -> list[Tensor]:
    """Return (B, i) for each item i, its pairs with the items above it."""
    return list(torch.split(pairs, list(range(n_items)), dim=1))


def sampled_items(scores: Tensor, draws: Tensor) -> Tensor:
    """Return (R,) the first item at which the running sum of the softmax of scores (R, N) passes the draw (R,)."""
    sums = scores.softmax(1).nan_to_num_().cumsum(1)
    passed = sums > draws[:, None] * sums[:, -1:]
    return (passed & (scores > -torch.inf)).int().argmax(1)


def _half_gap(key: Tensor, query: Tensor) -> Tensor:
    """Return r = 1 / (1 + e^{2a} e^{2b}), so that tanh(a + b) = 1 - 2r: right even where the product overflows."""
    return (key * query).add_(1).reciprocal_()


def _scores(key: Tensor, query: Tensor, v: Tensor) -> Tensor:
    return (1 - 2 * _half_gap(key, query)) @ v


def _lists_of_steps(rows: StepRows, steps: int) -> list[tuple[int, Tensor]]:
    """Return every step with the lists that have it, which are the first ones, since stops fall."""
    return [(step, rows.lists[: int((rows.stops > step).sum())]) for step in range(steps)]


_NATIVE = native_kernels()
KERNELS: dict[str, Kernels] = ({} if _NATIVE is None else {"native": _NATIVE}) | {"torch": TorchKernels()}
"""The kernels by name, the fastest first; those in C only where they could be compiled."""
_only: ContextVar[Kernels | None] = ContextVar("only", default=None)


def kernels_for(tensor: Tensor) -> Kernels:
    """Return the fastest kernels that can run on tensors of this kind."""
    return _only.get() or _fastest(tensor.device, tensor.dtype)


@cache
def _fastest(device: torch.device, dtype: torch.dtype) -> Kernels:
    return next(kernels for kernels in KERNELS.values() if kernels.why_not(device, dtype) is None)


@contextmanager
def only_kernels(name: str) -> Iterator[None]:
    """Have this thread run no other kernels than the named ones until the block ends."""
    token = _only.set(KERNELS[name])
    try:
        yield
    finally:
        _only.reset(token)
