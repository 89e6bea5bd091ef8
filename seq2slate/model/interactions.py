"""Pairwise interactions of the items of a list: terms of the score beyond the paper.

The paper leaves it to the recurrent state to remember which kinds of items were placed. What a click depends on can be
said directly, with few weights, so that few lists are enough to learn it. An interaction gives the score of item i the
bias b_i that it starts with, and a_ki, which an item k adds to it once k is placed.

- `NoInteraction` leaves the base prior as the bias, and adds nothing.
- `PairwiseInteraction`: a conditional click model, in which a click on one item changes the odds of the others.

To add one, write a subclass of `Interaction` and give it a name in `INTERACTIONS`.

**The conditional click model.** A user scans the base order from the top. For items i and k of one list:

    coordinate   t_dik in [0, 10]: where distance d of the pair lies between quantiles, the KNOTS, of all pairs
    effect       φ_ik = constant + Σ_d θ_d(t_dik) + Σ_h γ_h exp(-3 |E_h x_i - E_h x_k|² / m_h)
    crowding     q_i = Σ_d mean over k ≠ i of ψ_d(t_dik)
    appeal       z_i = u · x_i + prior_i + offset + q_i
    mixed        μ(l, φ) = log(1 - σ(l) + σ(l) e^φ) = softplus(l + φ) - softplus(l)
    log-odds     l_i = z_i + Σ_{k above i} μ(l_k, φ_ik), of an expected click
    bias         b_i = z_i + s min(0, l_i - z_i)
    interaction  a_ki = μ(l_k, φ_ik)

A click on k multiplies the odds of i by e^φ, so an item that is clicked with probability σ(l) multiplies them by
1 - σ(l) + σ(l) e^φ in the mean. σ(l) φ in the place of its logarithm would exclude whatever is close to an item that
may well be passed over. The share s of what stands above in base order and makes a click less likely is in the bias:
an item that is close to many better ones is worth less, whichever of them is placed. What makes a click more likely
holds only once the item is placed.

θ_d and ψ_d are piecewise linear, with a weight at each knot; θ, ψ, γ and the constant start at 0, so whether close
items repel or attract each other, and what close means, is learned. There are three squared distances d:

- *raw*: of the numeric columns as they came, Σ_f (X_if - X_kf)². X is recovered from the scaled columns.
- *normalised*: of the scaled columns with their indicators, each with mean 0 and variance 1 in the list.
- *angle*: 1 - the cosine of these; short ones are taken for longer (`SHORTEST`).

What varies between lists only says nothing of two items of one list, and what varies little in a list may be all that
tells its items apart. A column that is (nearly) constant in a list stays so: it is divided by `LEAST_SPREAD`.

The learned heads E_h see all of x_i, with embeddings of categories and columns of the list. m_h is the mean of
|E_h x_i - E_h x_k|² over the list. Coordinates are relative to the list, and they are data: no gradient passes them. A
list whose distances are (nearly) equal has knots that are apart by at least `LEAST_GAP` of the median and of the knot
before, so that rounding decides nothing.

The interaction learns from the likelihood of the logged clicks alone, each given those above it: log-odds z_i + Σ φ_ik
over the clicked items k above i. No gradient of a sequence loss reaches it: that would fit the order of the log, where
what attracts stands above what it attracts. There is no dropout here: a column that comes and goes would blur every
distance.

These formulas are written again in C (`backends/native_coordinates.c`, `native_pairs.c` and `native_list.c`, weights in
`single_list.py`) and in ONNX (`backends/onnx_pairwise.py`): change all of them together; tests/test_backends.py
compares them.

B lists, N items, I input columns, F numeric columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2slate.data.features import NumberColumns
from seq2slate.model.backends.kernels import kernels_for
from seq2slate.model.backends.pairs import (
    PairColumns,
    PairGradients,
    Pairs,
    PairWeights,
    PlacedPairs,
    mixed_effects,
)

PARAM_SCALE = 30.0
"""Parameters of the prior and of interactions are stored divided by this: Adam moves all parameters by about the same
step, and these have farther to go."""
KNOTS = (0.0, 0.03, 0.07, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
"""The quantiles of the distances of a list at which effects have a weight of their own."""
MEDIAN = KNOTS.index(0.5)
LEAST_GAP = 3e-3
"""Knots are apart by at least this part of the median distance, and of the knot before: the largest distances may be so
far above the median that a part of it is less than their rounding error."""
LEAST = 1e-12
"""No median, mean or length that something is divided by is smaller."""
LEAST_SPREAD = 0.02
"""Nor is the standard deviation of a scaled column in its list."""
SHORTEST = 0.1
"""Nor is the length of an item's normalised columns below this part of the list's (root mean square): the direction of
an item in the middle would be decided by rounding."""
N_DISTANCES = 3
HEADS, HEAD_WIDTH, HEAD_SHARPNESS = 6, 4, 3.0
"""The learned heads, the dimensions of each, and how fast its effect falls with the distance."""
LARGEST_LOG = 40.0
"""Logarithms of raw values are clamped to ± this, so that squares of raw values are finite."""
SCANNED = 0.75
"""s: the logged clicks, which know one slate only, cannot tell it."""
_START = {"offset": -1.0, "constant": 0.0}
_PRECISIONS = {"relevance": 30.0, "effects": 1.0, "crowding": 1.0, "head_effects": 1.0}
"""Of the Gaussian priors of weights: 1 / variance."""


@dataclass(frozen=True)
class ClickLikelihood:
    """A model of the clicks of a user who scans the base order from the top."""

    appeal: Tensor
    """(B, N) z_i, the log-odds of a click on each item if none above were clicked."""
    effects: Tensor
    """(B, P) φ_ik of the pairs, what a click on one adds to the log-odds of the other; 0 for padding."""

    def log_likelihood(self, labels: Tensor, mask: Tensor) -> Tensor:
        """Return (B,) the log-probability of the logged clicks (B, N), each given the clicks above it.

        Labels from 1 on are clicks. One between 0 and 1 is the probability of a click, and this is its expectation.
        """
        clicked = labels.clamp(0, 1).to(self.appeal.dtype)
        logits = _ClicksAbove.apply(self.appeal, self.effects, clicked)  # type: ignore[no-untyped-call]
        of_items: Tensor = (clicked * logits - nn.functional.softplus(logits)) * mask
        return of_items.sum(1)

    def expected_clicks(self, slates: Tensor) -> Tensor:
        """Return (B,) the expected number of clicks on slates (B, K), if the user scans them in place of the list."""
        placed, chosen = slates >= 0, slates.clamp(min=0)
        effects, logits = self._effects_between(chosen), self.appeal.gather(1, chosen)
        for slot in range(1, slates.shape[1]):
            above = mixed_effects(logits[:, :slot], effects[:, slot, :slot])
            logits[:, slot] += (above * placed[:, :slot]).sum(1)
        return (logits.sigmoid() * placed).sum(1)

    def _effects_between(self, items: Tensor) -> Tensor:
        """Return (B, K, K) the effects of the pairs of items (B, K)."""
        n_slots = items.shape[1]
        lower = torch.maximum(items[:, :, None], items[:, None])
        upper = torch.minimum(items[:, :, None], items[:, None])
        pairs = (lower * (lower - 1) // 2 + upper).where(lower > upper, self.effects.shape[1])
        with_none = nn.functional.pad(self.effects, (0, 1))  # of an item and itself
        return with_none.gather(1, pairs.flatten(1)).view(len(items), n_slots, n_slots)


@dataclass(frozen=True)
class ScoreTerms:
    """What an interaction gives to the scores of a batch."""

    bias: Tensor | None
    """(B, N) b_i, what the score of each item starts with, if anything."""
    added: Tensor | PlacedPairs | None
    """a_ki, what a placed item adds to the score of another, if anything: (B, N, N), the placed item first, or by the
    effects of pairs."""
    clicks: ClickLikelihood | None = None
    """How likely the logged clicks are, for interactions that model them."""

    def added_by(self, slates: Tensor) -> Tensor | None:
        """Return (B, K, N) what the items of slates (B, K) add, 0 where there is none; None if nothing is added."""
        if self.added is None:
            return None
        if isinstance(self.added, PlacedPairs):
            added = self.added.logits.new_zeros(*slates.shape, self.added.logits.shape[1])
            kernels_for(added).placed_rows(self.added, slates.contiguous(), added)
            return added
        every = torch.arange(len(slates), device=slates.device)[:, None]
        return self.added[every, slates.clamp(min=0)] * (slates >= 0)[:, :, None]


class Interaction(nn.Module):
    """The terms of the score that compare the items of a list.

    Args:
        n_inputs: I, the columns of an item.
        n_dense: How many of them, the first ones, are scaled numeric columns and their indicators.
    """

    has_click_model: ClassVar[bool] = False
    """Whether it is a click model, which is fitted to the log before anything else. v starts at 0 then, so that a fresh
    network begins with the terms of the interaction alone."""

    def __init__(self, n_inputs: int, n_dense: int) -> None:
        super().__init__()

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Set the weights with which training starts."""

    def set_scale(self, columns: NumberColumns) -> None:
        """Take from the fitted transform what the interaction needs of it."""

    def coordinates_of(self, dense: Tensor, lengths: Tensor) -> Tensor | None:
        """Return (B, 3, P) what there is to know of the pairs of scaled columns (N, B, F), whatever the weights.

        `forward` is then given it as `coordinates`. None if that is nothing.
        """
        return None

    def forward(self, items: Tensor, mask: Tensor, prior: Tensor | None) -> ScoreTerms:
        """Return the terms for items (N, B, I) with mask (B, N) and, if there is one, the base prior (B, N)."""
        raise NotImplementedError

    def click_likelihood(
        self, items: Tensor, mask: Tensor, prior: Tensor | None, *, coordinates: Tensor | None = None
    ) -> ClickLikelihood:
        """Return the click model of such items, for interactions that have one."""
        raise NotImplementedError

    def penalty(self) -> Tensor:
        """Return -log of the prior probability of the weights of the click model, but for a constant."""
        raise NotImplementedError


class NoInteraction(Interaction):
    """Items do not interact: scores start with the base prior."""

    def forward(self, items: Tensor, mask: Tensor, prior: Tensor | None) -> ScoreTerms:  # noqa: D102
        return ScoreTerms(prior, None)


class PairwiseInteraction(Interaction):
    """A click changes the odds of the other items by how far they are; the formulas are those of the module."""

    has_click_model = True
    levels: Tensor
    spreads: Tensor
    are_logarithms: Tensor

    def __init__(self, n_inputs: int, n_dense: int) -> None:
        super().__init__(n_inputs, n_dense)
        self.n_dense = n_dense
        self.relevance = nn.Parameter(torch.empty(n_inputs))
        self.effects = nn.Parameter(torch.empty(N_DISTANCES, len(KNOTS)))
        self.crowding = nn.Parameter(torch.empty(N_DISTANCES, len(KNOTS)))
        self.heads = nn.Parameter(torch.empty(n_inputs, HEADS * HEAD_WIDTH), requires_grad=False)
        self.head_effects = nn.Parameter(torch.empty(HEADS))
        self.numbers = nn.ParameterDict({name: nn.Parameter(torch.empty(())) for name in _START})
        # Raw values are level + spread · scaled, or the signed exponential of that for columns that are logarithms.
        self.register_buffer("levels", torch.zeros(n_dense))
        self.register_buffer("spreads", torch.ones(n_dense))
        self.register_buffer("are_logarithms", torch.zeros(n_dense, dtype=torch.bool))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Pairs have no effect, columns no relevance, and the heads look in random directions."""
        for parameter in (self.relevance, self.effects, self.crowding, self.head_effects):
            parameter.zero_()
        self.heads.normal_(generator=generator).div_(max(1, len(self.heads)) ** 0.5)
        for name, value in _START.items():
            self.numbers[name].fill_(value / PARAM_SCALE)

    @torch.no_grad()
    def set_scale(self, columns: NumberColumns) -> None:
        """Take the scale of the numeric columns, which gives their raw values back; indicators count for nothing."""
        n_columns, known = len(columns.names), columns.inverse_std > 0
        self.spreads.zero_()
        self.levels.zero_()
        self.spreads[:n_columns][torch.from_numpy(known)] = torch.from_numpy(1 / columns.inverse_std[known])
        if columns.scaling != "none":
            self.levels[:n_columns] = torch.from_numpy(columns.mean)
        self.are_logarithms.fill_(columns.scaling == "signed-log")

    @property
    def columns(self) -> PairColumns:
        """What distances are made of."""
        return PairColumns(
            levels=self.levels,
            spreads=self.spreads,
            are_logarithms=self.are_logarithms,
            largest_log=LARGEST_LOG,
            quantiles=torch.tensor(KNOTS, dtype=torch.float64),
            median=MEDIAN,
            least_gap=LEAST_GAP,
            least=LEAST,
            least_spread=LEAST_SPREAD,
            shortest=SHORTEST,
        )

    @property
    def weights(self) -> PairWeights:
        """What pairs do, as the formulas have it."""
        effects, crowding = self.effects * PARAM_SCALE, self.crowding * PARAM_SCALE
        strengths, constant = self.head_effects * PARAM_SCALE, self.number("constant")
        return PairWeights(effects, crowding, strengths, constant, HEAD_WIDTH, HEAD_SHARPNESS, LEAST)

    @torch.no_grad()
    def forward(
        self, items: Tensor, mask: Tensor, prior: Tensor | None, *, coordinates: Tensor | None = None
    ) -> ScoreTerms:
        """Return the terms; coordinates (B, 3, P) of the pairs, if they are known, need not be found."""
        clicks = self.click_likelihood(items, mask, prior, coordinates=coordinates)
        appeal, effects = clicks.appeal, clicks.effects
        logits = appeal.clone(memory_format=torch.contiguous_format)
        kernels_for(logits).expected_logits(effects, logits)
        bias = appeal + SCANNED * (logits - appeal).clamp(max=0)
        return ScoreTerms(bias.where(mask, 0.0), PlacedPairs(logits, 1.0, effects), clicks)

    def click_likelihood(
        self, items: Tensor, mask: Tensor, prior: Tensor | None, *, coordinates: Tensor | None = None
    ) -> ClickLikelihood:
        """Return appeals (B, N) and effects (B, P) of items (N, B, I)."""
        lengths, weights = mask.sum(1), self.weights
        if coordinates is None:
            coordinates = self.coordinates_of(items, lengths)
        seen = items @ torch.cat([self.heads, (self.relevance * PARAM_SCALE)[:, None]], dim=1)
        places, relevance = _Places.apply(seen, weights, lengths)  # type: ignore[no-untyped-call]
        trained = weights.effects, weights.crowding, weights.strengths, weights.constant
        effects, crowding = _PairEffects.apply(  # type: ignore[no-untyped-call]
            *trained, places, weights, coordinates, lengths
        )
        appeal = relevance + self.number("offset") + crowding
        return ClickLikelihood(appeal if prior is None else appeal + prior, effects)

    def penalty(self) -> Tensor:  # noqa: D102
        weights = [(precision, self.get_parameter(name) * PARAM_SCALE) for name, precision in _PRECISIONS.items()]
        return torch.stack([precision / 2 * (weight**2).sum() for precision, weight in weights]).sum()

    @torch.no_grad()
    def coordinates_of(self, dense: Tensor, lengths: Tensor) -> Tensor | None:
        """Return (B, 3, P) where the distances of items, by their scaled columns, lie between the knots."""
        n_items, n_lists = dense.shape[:2]
        if not self.n_dense or n_items < 2:
            return None
        found = dense.new_zeros(n_lists, N_DISTANCES, n_items * (n_items - 1) // 2)
        kernels_for(dense).pair_coordinates(self.columns, dense.detach().contiguous(), lengths, found)
        return found

    def number(self, name: str) -> Tensor:
        """Return a number as the formulas have it."""
        value: Tensor = self.numbers[name] * PARAM_SCALE
        return value


INTERACTIONS: dict[str, type[Interaction]] = {"none": NoInteraction, "pairwise": PairwiseInteraction}
"""The interactions by name."""


class _Places(torch.autograd.Function):
    """What heads and relevance see (N, B, H · width + 1) as places (B, H, N, width) and relevance (B, N)."""

    @staticmethod
    def forward(ctx: Any, seen: Tensor, weights: PairWeights, lengths: Tensor) -> tuple[Tensor, Tensor]:
        (n_items, n_lists), seen = seen.shape[:2], seen.contiguous()
        places = seen.new_zeros(n_lists, HEADS, n_items, HEAD_WIDTH)
        relevance, scales = seen.new_zeros(n_lists, n_items), seen.new_empty(n_lists, HEADS)
        kernels_for(seen).places_forward(weights, lengths, seen, places, relevance, scales)
        ctx.save_for_backward(places, scales, lengths)
        ctx.weights = weights
        return places, relevance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dplaces: Tensor, drelevance: Tensor) -> tuple[Tensor, None, None]:
        places, scales, lengths = ctx.saved_tensors
        dseen = places.new_zeros(places.shape[2], len(places), HEADS * HEAD_WIDTH + 1)
        given = dplaces.contiguous(), drelevance.contiguous()
        kernels_for(dseen).places_backward(ctx.weights, lengths, (places, scales), given, dseen)
        return dseen, None, None


class _PairEffects(torch.autograd.Function):
    """The effects (B, P) of pairs, and crowding (B, N)."""

    @staticmethod
    def forward(
        ctx: Any,
        effects: Tensor,
        crowding: Tensor,
        strengths: Tensor,
        constant: Tensor,
        places: Tensor,
        weights: PairWeights,
        coordinates: Tensor | None,
        lengths: Tensor,
    ) -> tuple[Tensor, Tensor]:
        pairs = Pairs(lengths, coordinates, places.detach().contiguous())
        n_lists, _, n_items, _ = places.shape
        found = places.new_zeros(n_lists, n_items * (n_items - 1) // 2)
        crowds = places.new_zeros(n_lists, n_items)
        weights = replace(weights, effects=effects, crowding=crowding, strengths=strengths, constant=constant)
        kernels_for(places).pair_effects_forward(weights, pairs, found, crowds)
        ctx.weights, ctx.pairs = weights, pairs
        return found, crowds

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, deffects: Tensor, dcrowding: Tensor) -> tuple[Tensor | None, ...]:
        gradients = PairGradients.zeros(ctx.weights, ctx.pairs)
        given = deffects.contiguous(), dcrowding.contiguous()
        kernels_for(deffects).pair_effects_backward(ctx.weights, ctx.pairs, *given, gradients)
        of_weights = [gradient.sum(0) for gradient in gradients.tensors[:-1]]
        return *of_weights, gradients.places, None, None, None


class _ClicksAbove(torch.autograd.Function):
    """The log-odds (B, N) of a click on each item, given the clicks (B, N) above it."""

    @staticmethod
    def forward(ctx: Any, appeal: Tensor, effects: Tensor, clicked: Tensor) -> Tensor:
        logits = appeal.clone(memory_format=torch.contiguous_format)
        kernels_for(logits).clicks_above_forward(clicked.contiguous(), effects, logits)
        ctx.save_for_backward(clicked, effects)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlogits: Tensor) -> tuple[Tensor, Tensor, None]:
        clicked, effects = ctx.saved_tensors
        deffects = torch.empty_like(effects)
        kernels_for(dlogits).clicks_above_backward(clicked.contiguous(), dlogits.contiguous(), deffects)
        return dlogits, deffects, None
