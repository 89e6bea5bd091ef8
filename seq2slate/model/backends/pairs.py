"""Pairs of items: what their kernels read and write, and how PyTorch runs them. `model.interactions` has the formulas.

The pairs i > k of a list lie row by row, P = N (N - 1) / 2 of them: where a pair lies does not depend on N, and a
longer array has padding at its end alone. Coordinates are floats, or whole numbers of 16 bits in steps of 1 / `STEPS`
(`FIXED_POINT` in C).

Shapes: B lists, N items, P pairs, D distances, Q knots, H heads, K steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

STEPS = 2048
"""Of a coordinate in 16 bits, from one knot to the next."""


@dataclass(frozen=True)
class PairColumns:
    """The numeric columns whose distances are compared, F of them, and how."""

    levels: Tensor
    """(F,) raw values are level + spread · scaled,"""
    spreads: Tensor
    """(F,)"""
    are_logarithms: Tensor
    """(F,) bool; or the signed exponential of that, less 1."""
    largest_log: float
    """Logarithms are clamped to ± this."""
    quantiles: Tensor
    """(Q,) float64, the quantiles of distances that are knots."""
    median: int
    """Which of them is the median."""
    least_gap: float
    """Knots are apart by at least this part of the median."""
    least: float
    """No median and no length is smaller."""
    least_spread: float
    """No standard deviation of a column in a list is smaller when the column is divided by it."""
    shortest: float
    """No centred length is below this part of the root mean square of its list."""


@dataclass(frozen=True)
class PairWeights:
    """What the distances of a pair, D of them, and its heads, H of them, do to the log-odds of a click."""

    effects: Tensor
    """(D, Q) at the knots."""
    crowding: Tensor
    """(D, Q) at the knots, the same for the mean over the other items."""
    strengths: Tensor
    """(H,) of the heads."""
    constant: Tensor
    """() of every pair."""
    head_width: int
    """Dimensions of a head."""
    sharpness: float
    """How fast the effect of a head falls with the squared distance."""
    least: float
    """No mean squared distance of a head is smaller."""


@dataclass(frozen=True)
class Pairs:
    """The pairs of the items of B lists of at most N items."""

    lengths: Tensor
    """(B,) the items of each list."""
    coordinates: Tensor | None
    """(B, D, P) where their distances lie between the knots; 0 for padding. None if there are no columns."""
    places: Tensor
    """(B, H, N, head_width) by the heads: centred, with a mean squared distance of 1."""


@dataclass(frozen=True)
class PlacedPairs:
    """What an item adds to the scores of the others once it is placed."""

    logits: Tensor
    """(B, N) l_k, the log-odds of a click on the placed item."""
    weight: float
    """What everything that is added is multiplied by."""
    effects: Tensor
    """(B, P) φ_ik"""


@dataclass(frozen=True)
class PairGradients:
    """Gradients, list by list; all are 0 at first, and written."""

    effects: Tensor
    """(B, D, Q)"""
    crowding: Tensor
    """(B, D, Q)"""
    strengths: Tensor
    """(B, H)"""
    constant: Tensor
    """(B,)"""
    places: Tensor
    """(B, H, N, head_width)"""

    @classmethod
    def zeros(cls, weights: PairWeights, pairs: Pairs) -> PairGradients:
        """Return gradients to be written."""

        def of_lists(weight: Tensor) -> Tensor:
            return weight.new_zeros(len(pairs.lengths), *weight.shape)

        by_knots = of_lists(weights.effects), of_lists(weights.crowding)
        return cls(*by_knots, of_lists(weights.strengths), of_lists(weights.constant), torch.zeros_like(pairs.places))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them."""
        return self.effects, self.crowding, self.strengths, self.constant, self.places


# In PyTorch


def coordinates_of(columns: PairColumns, items: Tensor, lengths: Tensor) -> Tensor:
    """Return (B, D, P) where the distances of items (N, B, I), by their first columns, lie between the knots."""
    n_items = len(items)
    mask = torch.arange(n_items, device=items.device) < lengths[:, None]
    dense = items[:, :, : len(columns.levels)].transpose(0, 1).where(mask[:, :, None], 0.0)
    lower, upper = pair_indices(n_items, items.device)
    real = mask[:, lower]
    found = [_between_knots(columns, d[:, lower, upper], real) for d in _distances(columns, dense, mask)]
    return torch.stack(found, dim=1).where(real[:, None], 0.0)


def in_16_bits(coordinates: Tensor) -> Tensor:
    """Return coordinates as whole numbers of steps, which take half the memory.

    >>> in_16_bits(torch.tensor([0.0, 1.0, 9.9999]))
    tensor([    0,  2048, 20480], dtype=torch.int16)
    """
    return (coordinates * STEPS).round_().to(torch.int16)


def real_items(lengths: Tensor, n_items: int) -> Tensor:
    """Return (B, N) True for a real item."""
    return torch.arange(n_items, device=lengths.device) < lengths[:, None]


def places_of(weights: PairWeights, seen: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return (B, H, N, width) what heads see of items (B, N, H · width), with a mean squared distance of 1.

    And (B, H) what they were multiplied by, negative where the variance is too small to matter.
    """
    width = weights.head_width
    places = seen.reshape(*seen.shape[:2], seen.shape[2] // width, width).transpose(1, 2)
    there = real[:, None, :, None].to(seen.dtype)
    count = there.sum(2, keepdim=True).clamp(min=1)
    places = (places - (places * there).sum(2, keepdim=True) / count) * there
    squares = 2 * (places**2).sum((2, 3)) / count[:, :, 0, 0]
    scales = squares.clamp(min=weights.least).rsqrt()
    return places * scales[:, :, None, None], scales.where(squares >= weights.least, -scales)


def effects_of(weights: PairWeights, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return (B, P) the effects of each pair, and (B, N) the crowding."""
    n_items, lengths, coordinates = pairs.places.shape[2], pairs.lengths, pairs.coordinates
    lower, upper = pair_indices(n_items, lengths.device)
    effects = weights.constant + _head_effects(weights, pairs.places)[:, lower, upper]
    crowds = torch.zeros_like(effects)
    if coordinates is not None:
        if not coordinates.is_floating_point():
            coordinates = coordinates.to(effects.dtype) / STEPS
        effects = effects + _interpolated(coordinates, weights.effects)
        crowds = _interpolated(coordinates, weights.crowding)
    real = lower < lengths[:, None]
    crowds = below_diagonal(crowds * real, n_items)
    return effects * real, (crowds.sum(1) + crowds.sum(2)) / (lengths[:, None] - 1).clamp(min=1)


def pair_indices(n_items: int, device: torch.device) -> Tensor:
    """Return (2, P) the lower item of each pair, and the one above it in base order."""
    return torch.tril_indices(n_items, n_items, -1, device=device)


def below_diagonal(values: Tensor, n_items: int) -> Tensor:
    """Return (B, N, N) from values (B, P) of the pairs: the lower item first, and 0 elsewhere."""
    lower, upper = pair_indices(n_items, values.device)
    square = values.new_zeros(len(values), n_items, n_items)
    square[:, lower, upper] = values
    return square


def mixed_effects(logits: Tensor, effects: Tensor) -> Tensor:
    """Return μ(l, φ) = log(1 - σ(l) + σ(l) e^φ): what an item with log-odds l of a click does to those of another.

    >>> mixed_effects(torch.tensor([-3.0, 0.0, 50.0]), torch.tensor(-2.0))
    tensor([-0.0419, -0.5662, -2.0000])

    softplus(x) is max(x, 0) + softplus(-|x|): the difference of the maxima is written so that it has all the digits of
    φ, however large l is.
    """
    steps = torch.maximum(effects, -logits) + logits.clamp(max=0)
    return steps + (softplus(-(logits + effects).abs()) - softplus(-logits.abs()))


def placed_rows(placed: PlacedPairs, slates: Tensor) -> Tensor:
    """Return (B, K, N) what the items of slates (B, K) add to the scores of the others; 0 for a slot without one."""
    n_items, chosen = placed.logits.shape[1], slates.clamp(min=0)
    below = below_diagonal(placed.effects, n_items)
    every = torch.arange(len(slates), device=slates.device)[:, None]
    added = mixed_effects(placed.logits[every, chosen][:, :, None], (below + below.mT)[every, chosen])
    return placed.weight * added * (slates >= 0)[:, :, None]


def _distances(columns: PairColumns, dense: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (B, N, N) the raw and normalised distances and the angles of dense columns (B, N, F)."""
    raw = columns.levels + columns.spreads * dense
    exponential = raw.sign() * raw.abs().clamp(max=columns.largest_log).expm1()
    raw = torch.where(columns.are_logarithms, exponential, raw)
    there, count = mask[:, :, None], mask.sum(1).clamp(min=1)[:, None, None]
    exact = dense.double()  # outliers leave few digits to the others
    centred = (exact - (exact * there).sum(1, keepdim=True) / count) * there
    spread = ((centred**2).sum(1, keepdim=True) / count).sqrt().clamp(min=columns.least_spread)
    normalised = (centred / spread).to(dense.dtype)
    squares = (normalised**2).sum(2, keepdim=True)
    typical = (squares.sum(1, keepdim=True) / count).sqrt()
    unit = normalised / torch.maximum(squares.sqrt(), columns.shortest * typical).clamp(min=columns.least)
    return _squared_distances(raw), _squared_distances(normalised), _squared_distances(unit) / 2


def _squared_distances(places: Tensor) -> Tensor:
    """Return (B, N, N) from places (B, N, F): by differences, so that equal rows have a distance of exactly 0."""
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist") ** 2


def _between_knots(columns: PairColumns, distances: Tensor, real: Tensor) -> Tensor:
    """Return (B, P) the place of each distance between the knots of its list: 0 at the first, Q - 1 at the last."""
    if not distances.shape[1]:
        return distances
    knots = _knots(columns, distances, real)
    segment = torch.searchsorted(knots, distances, right=True).sub_(1).clamp_(0, knots.shape[1] - 2)
    low, high = knots.gather(1, segment), knots.gather(1, segment + 1)
    widths = (high - low).clamp(min=torch.finfo(low.dtype).tiny)  # 0 if the gap is lost to rounding
    return segment + ((distances - low) / widths).clamp(0, 1)


def _knots(columns: PairColumns, distances: Tensor, real: Tensor) -> Tensor:
    """Return (B, Q) the quantiles of the distances (B, P) of each list, moved apart where they are equal."""
    counts = real.sum(1, keepdim=True)
    ordered = distances.masked_fill(~real, torch.inf).sort(dim=1).values
    wanted = columns.quantiles.to(distances) * (counts - 1).clamp(min=0)
    below = wanted.floor().long()
    low, high = ordered.gather(1, below), ordered.gather(1, (below + 1).clamp(max=ordered.shape[1] - 1))
    quantiles = torch.where(below + 1 < counts, low + (wanted - below) * (high - low), low).where(counts > 0, 0.0)
    median = quantiles[:, columns.median].clamp(min=columns.least)
    for knot in range(1, quantiles.shape[1]):
        before = quantiles[:, knot - 1]
        quantiles[:, knot] = torch.maximum(
            quantiles[:, knot], before + columns.least_gap * torch.maximum(median, before)
        )
    return quantiles


def _interpolated(coordinates: Tensor, weights: Tensor) -> Tensor:
    """Return (B, P) the sum over distances of the piecewise linear functions with weights (D, Q) at the knots."""
    segment = coordinates.long().clamp(max=weights.shape[1] - 2)
    inside = coordinates - segment
    parts = [
        torch.lerp(own[segment[:, d]], own[segment[:, d] + 1], inside[:, d]) for d, own in enumerate(weights.unbind())
    ]
    return torch.stack(parts).sum(0)


def _head_effects(weights: PairWeights, places: Tensor) -> Tensor:
    """Return (B, N, N) Σ_h γ_h exp(-sharpness · distance)."""
    squares = (places**2).sum(3)
    distances = squares[..., :, None] + squares[..., None, :] - 2 * places @ places.transpose(2, 3)
    return (weights.strengths[:, None, None] * torch.exp(-weights.sharpness * distances.clamp(min=0))).sum(1)
