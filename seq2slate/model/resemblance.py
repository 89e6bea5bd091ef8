"""Who resembles whom in a list, and what that does to a score: a term of the score beyond the paper.

The paper leaves it to the recurrent state to remember which kinds of items stood before. What a click depends on can be
said directly, with few weights, so that few lists are enough to learn it. For items i and k of one list:

    distance     d_ik = Σ_f w_f² (b_f(x_if) - b_f(x_kf))², divided by its mean over the pairs of the list
    similarity   s_ik = σ(sharpness · (threshold - d_ik))
    relevance    r_i = u · x_i + prior_i + offset
    smoothed     z_i = r_i + β · the mean of r over the list, weighted by e^{-d_ik / width}
    effect       log(1 - p + p e^α) of k on i, where p = σ(z_k) · s_ik

The effect says: with probability p item k speaks for or against item i, and multiplies its odds by e^α. There is one α
for the items above i in base order, whose effects are added to z_i to make the score that i starts with, and one for
the items placed before it. Both start at 0, so the sign is learned. Smoothing lets similar items lend each other their
evidence. The mean distance makes "similar" mean similar for this list. b_f(x) = (e^{c x} - 1) / c, with c_f between 0
and 1, undoes as far as it helps the logarithm of the columns' normalisation, which bends distances.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_STRETCH = 10.0
"""What is learned here is stored divided by this: Adam moves all numbers alike, and these have farther to go."""
_START = {
    "offset": 1.0,
    "smoothing": 0.7,
    "log_inverse_width": 0.7,
    "threshold": 0.7,
    "sharpness": 5.0,
    "effect_above": 0.0,
    "effect_placed": 0.0,
}
_BEND = 0.3


class Resemblance(nn.Module):
    """The term of the score that compares the items of a list."""

    def __init__(self, n_inputs: int) -> None:
        super().__init__()
        self.relevance = nn.Parameter(torch.empty(n_inputs))
        self.log_weights = nn.Parameter(torch.empty(n_inputs))
        self.bends = nn.Parameter(torch.empty(n_inputs))
        self.numbers = nn.ParameterDict({name: nn.Parameter(torch.empty(())) for name in _START})

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """All columns count alike, and none speaks for relevance."""
        self.relevance.zero_()
        self.log_weights.zero_()
        self.bends.fill_(math.log(_BEND / (1 - _BEND)) / _STRETCH)
        for name, value in _START.items():
            self.numbers[name].fill_(value / _STRETCH)

    def forward(self, items: Tensor, mask: Tensor, prior: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what the scores start with (B, N), and what a placed item (first index) adds to another (B, N, N).

        items (N, B, I), mask (B, N), and what is known beforehand of each item, (B, N).
        """
        x = items.transpose(0, 1).where(mask[:, :, None], 0.0)
        pairs = mask[:, :, None] & mask[:, None]
        distances = self._distances(x, mask, pairs)
        score = x @ (self.relevance * _STRETCH) + self._number("offset")
        if prior is not None:
            score = score + prior
        score = score + self._smoothed(score, distances, pairs)
        similar = torch.sigmoid(self._number("sharpness") * (self._number("threshold") - distances))
        different = pairs & ~torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        share = torch.sigmoid(score)[:, :, None] * similar * different
        above = _effect(share.triu(1), self._number("effect_above")).sum(1)
        return (score + above).where(mask, 0.0), _effect(share, self._number("effect_placed"))

    def _number(self, name: str) -> Tensor:
        value: Tensor = self.numbers[name] * _STRETCH
        return value

    def _distances(self, x: Tensor, mask: Tensor, pairs: Tensor) -> Tensor:
        """Return the squared distances (B, N, N), with a mean of 1 over the pairs of each list."""
        bend = torch.sigmoid(self.bends * _STRETCH)
        places = torch.expm1(bend * x) / bend * torch.exp(self.log_weights * _STRETCH)
        places = places - places[:, :1]  # what all items share would cost the differences their digits
        squares = (places**2).sum(2)
        distances = squares[:, :, None] + squares[:, None] - 2 * places @ places.transpose(1, 2)
        distances = distances.clamp(min=0) * pairs
        lengths = mask.sum(1)
        mean = distances.sum((1, 2)) / (lengths * (lengths - 1)).clamp(min=1)
        return distances / mean.clamp(min=1e-6)[:, None, None]

    def _smoothed(self, score: Tensor, distances: Tensor, pairs: Tensor) -> Tensor:
        """Return β · the mean of the score over each item's neighbourhood."""
        weights = torch.exp(-distances * self._number("log_inverse_width").exp()) * pairs
        means = (weights @ score[:, :, None]).squeeze(2) / weights.sum(2).clamp(min=1e-6)
        return self._number("smoothing") * means


def _effect(share: Tensor, strength: Tensor) -> Tensor:
    """Return log(1 - p + p e^α): the mean over whether something applies of what it does to the odds."""
    return torch.log1p(torch.expm1(strength) * share)
