"""Pairwise interactions of the items of a list: terms of the score beyond the paper.

The paper leaves it to the recurrent state to remember which kinds of items were placed. What a click depends on can be
said directly, with few weights, so that few lists are enough to learn it. An interaction gives the score of item i the
bias b_i that it starts with, and a_ki, which an item k adds to it once k is placed.

- `NoInteraction` leaves the base prior as the bias, and adds nothing.
- `SimilarityInteraction`: similar items repel or attract each other.

To add one, write a subclass of `Interaction` and give it a name in `INTERACTIONS`.

**Item similarity.** For items i and k of one list, with base positions as their order:

    distance     d_ik = Σ_f w_f² (g_f(x_if) - g_f(x_kf))², divided by its median over the pairs of the list
    similarity   s_ik = σ(sharpness · (threshold - d_ik))
    appeal       z_i = u · x_i + prior_i + offset
    nearby       n_i = 1 - Π (1 - c_k s_ik) over the items k above i: the probability of a click on a similar one
    click        c_i = (1 - n_i) σ(z_i) + n_i σ(z_i + α)
    bias         b_i = log c_i
    interaction  a_ki = log(1 - p + p e^β), where p = c_k s_ik

The user scans the base order from the top, and a click nearby moves the odds of the next by e^α. α and β start at 0, so
whether items repel or attract is learned. n_i takes the clicks above for independent, which they are not quite.

The median makes "similar" relative to the list. g_f(x) = (e^{c x} - 1) / c, with c_f between 0 and 1, undoes as far as
it helps the logarithm of the columns' normalisation, which bends distances. A missing value is at the mean of its
column, and its indicator is a column like any other, with a weight of its own. There is no dropout here: a column that
comes and goes would blur every distance.

These formulas are written again in C (`backends/native_list.c`, weights in `single_list.py`) and in ONNX
(`backends/onnx_export.py`): change all of them together; tests/test_backends.py compares them.

B lists, N items, I input columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2slate.model.backends.kernels import Cascade, kernels_for

PARAM_SCALE = 30.0
"""Parameters of the prior and of item similarity are stored divided by this: Adam moves all parameters by about the
same step, and these have farther to go."""
STRONGEST = 12.0
"""β is at least minus this: float32 knows no probability closer to 0."""
LEAST = 1e-6
"""No probability is nearer to 0 or 1 than this where its logarithm is taken, and no median distance is smaller."""
NEARLY_ONE = 1 - 1e-6
"""The largest c_k s_ik, so that no factor of n_i is 0."""
_START = {"offset": -0.5, "threshold": 1.0, "sharpness": 5.0, "effect_above": 0.0, "effect_placed": 0.0}
_BEND = 0.3


@dataclass(frozen=True)
class ClickLikelihood:
    """A model of the clicks of a user who scans the base order from the top."""

    appeal: Tensor
    """(B, N) z_i, the log-odds of a click on each item if there were no other."""
    similar: Tensor
    """(B, N, N) s_ik, between 0 and 1; 0 for an item and itself, and for padding."""
    effect: Tensor
    """() α, what a click nearby adds to the log-odds."""

    def expected_clicks(self) -> Tensor:
        """Return (B, N) c_i, the probability of each click, over all that may happen above."""
        alone, nearby = torch.sigmoid(self.appeal), torch.sigmoid(self.appeal + self.effect)
        clicks: Tensor = _ExpectedClicks.apply(alone, nearby, self.similar)  # type: ignore[no-untyped-call]
        return clicks

    def log_likelihood(self, labels: Tensor, mask: Tensor) -> Tensor:
        """Return (B,) the log-probability of the logged clicks (B, N), each given the clicks above it."""
        clicked = labels > 0
        apart = torch.log1p(-self.similar.triu(1).clamp(max=1 - LEAST))
        far = (apart * clicked[:, :, None]).sum(1).exp()
        alone, nearby = torch.sigmoid(self.appeal), torch.sigmoid(self.appeal + self.effect)
        click = (nearby + far * (alone - nearby)).clamp(LEAST, 1 - LEAST)
        return (torch.where(clicked, click, 1 - click).log() * mask).sum(1)


@dataclass(frozen=True)
class ScoreTerms:
    """What an interaction gives to the scores of a batch."""

    bias: Tensor | None
    """(B, N) b_i, what the score of each item starts with, if anything."""
    added: Tensor | None
    """(B, N, N) a_ki, what a placed item (first index) adds to the score of another (second), if anything."""
    clicks: ClickLikelihood | None = None
    """How likely the logged clicks are, for interactions that model them."""


class Interaction(nn.Module):
    """The terms of the score that compare the items of a list."""

    pointer_starts_at_zero: ClassVar[bool] = False
    """Whether v starts at 0, so that a fresh network begins with the terms of the interaction alone."""

    def __init__(self, n_inputs: int) -> None:
        super().__init__()

    def reset_parameters(self) -> None:
        """Set the weights with which training starts."""

    def forward(self, items: Tensor, mask: Tensor, prior: Tensor | None) -> ScoreTerms:
        """Return the terms for items (N, B, I) with mask (B, N) and, if there is one, the base prior (B, N)."""
        raise NotImplementedError


class NoInteraction(Interaction):
    """Items do not interact: scores start with the base prior."""

    def forward(self, items: Tensor, mask: Tensor, prior: Tensor | None) -> ScoreTerms:  # noqa: D102
        return ScoreTerms(prior, None)


class SimilarityInteraction(Interaction):
    """Similar items change each other's odds of a click; the formulas are those of the module."""

    pointer_starts_at_zero = True

    def __init__(self, n_inputs: int) -> None:
        super().__init__(n_inputs)
        self.relevance = nn.Parameter(torch.empty(n_inputs))
        self.log_weights = nn.Parameter(torch.empty(n_inputs))
        self.bends = nn.Parameter(torch.empty(n_inputs))
        self.numbers = nn.ParameterDict({name: nn.Parameter(torch.empty(())) for name in _START})

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """All columns count alike in distances, and none in appeals."""
        self.relevance.zero_()
        self.log_weights.zero_()
        self.bends.fill_(math.log(_BEND / (1 - _BEND)) / PARAM_SCALE)
        for name, value in _START.items():
            self.numbers[name].fill_(value / PARAM_SCALE)

    def forward(self, items: Tensor, mask: Tensor, prior: Tensor | None) -> ScoreTerms:  # noqa: D102
        clicks = self.click_likelihood(items, mask, prior)
        expected = clicks.expected_clicks()
        share = expected[:, :, None] * clicks.similar
        added = torch.log1p(torch.expm1(self._number("effect_placed").clamp(min=-STRONGEST)) * share)
        return ScoreTerms(expected.clamp(min=LEAST).log().where(mask, 0.0), added, clicks)

    def click_likelihood(self, items: Tensor, mask: Tensor, prior: Tensor | None) -> ClickLikelihood:
        """Return appeals and similarities of items (N, B, I)."""
        x = items.transpose(0, 1).where(mask[:, :, None], 0.0)
        appeal = x @ (self.relevance * PARAM_SCALE) + self._number("offset")
        if prior is not None:
            appeal = appeal + prior
        different = ~torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        pairs = mask[:, :, None] & mask[:, None] & different
        closeness = self._number("threshold") - self._distances(x, pairs)
        similar = torch.sigmoid(self._number("sharpness") * closeness) * pairs
        return ClickLikelihood(appeal, similar, self._number("effect_above"))

    def _number(self, name: str) -> Tensor:
        value: Tensor = self.numbers[name] * PARAM_SCALE
        return value

    def _distances(self, x: Tensor, pairs: Tensor) -> Tensor:
        """Return the squared distances (B, N, N), with a median of 1 over the pairs of each list."""
        bend = torch.sigmoid(self.bends * PARAM_SCALE)
        places = torch.expm1(bend * x) / bend * torch.exp(self.log_weights * PARAM_SCALE)
        places = places - places[:, :1]  # what all items share would cost the differences their digits
        squares = (places**2).sum(2)
        distances = squares[:, :, None] + squares[:, None] - 2 * places @ places.transpose(1, 2)
        distances = distances.clamp(min=0)
        median = _medians(distances, pairs)
        return distances / median.clamp(min=LEAST)[:, None, None]


def _medians(distances: Tensor, pairs: Tensor) -> Tensor:
    """Return (B,) the lower median of the distances (B, N, N) of the pairs of each list; 1 where there is no pair."""
    with torch.no_grad():
        values = distances.masked_fill(~pairs, torch.inf).flatten(1)
        counts = pairs.sum((1, 2)).tolist()  # every pair twice, so the lower median of all is that of either half
        chosen = [
            row.kthvalue(count // 2).indices if count else None for row, count in zip(values, counts, strict=True)
        ]
    rows = zip(distances.flatten(1), chosen, strict=True)
    medians = [distances.new_ones(()) if place is None else row[place] for row, place in rows]
    return torch.stack(medians) if medians else distances.new_ones(0)


INTERACTIONS: dict[str, type[Interaction]] = {"none": NoInteraction, "similarity": SimilarityInteraction}
"""The interactions by name."""


class _ExpectedClicks(torch.autograd.Function):
    """The click probabilities of `ClickLikelihood`, item by item from the top."""

    @staticmethod
    def forward(ctx: Any, alone: Tensor, nearby: Tensor, similar: Tensor) -> Tensor:
        alone, nearby, similar = (tensor.contiguous() for tensor in (alone, nearby, similar))
        far, clicks = torch.ones_like(alone), torch.empty_like(alone)
        kernels_for(alone).cascade_forward(Cascade(alone, nearby, similar, far, clicks, NEARLY_ONE))
        ctx.save_for_backward(alone, nearby, similar, far, clicks)
        return clicks

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dclicks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        alone, nearby, similar, far, clicks = ctx.saved_tensors
        cascade = Cascade(alone, nearby, similar, far, clicks, NEARLY_ONE)
        dclicks, dsimilar = dclicks.clone(memory_format=torch.contiguous_format), torch.zeros_like(cascade.similar)
        kernels_for(dclicks).cascade_backward(cascade, dclicks, dsimilar)
        return dclicks * cascade.far, dclicks * (1 - cascade.far), dsimilar
