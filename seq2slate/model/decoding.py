"""From an encoded batch to slates: greedy or sampled, step by step or in one, with the probability of every choice."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seq2slate.errors import UsageError
from seq2slate.model.backends.kernels import Decoding, LstmDecoder, fused_kernels_for, kernels_for, sampled_items
from seq2slate.model.network import Encoded, SlateNetwork, slots_of_items
from seq2slate.model.recurrent import LstmLayer, State


@dataclass(frozen=True)
class Decoded:
    """Slates and the scores that they came from."""

    slates: Tensor
    """(B, K) indices into each list, -1 where nothing was placed."""
    scores: Tensor
    """(B, K, N) of the items left at each step; -inf for the others, and throughout where nothing was placed."""

    @property
    def log_probabilities(self) -> Tensor:
        """(B, K) log p(π_j | π_<j) of each choice; 0 where nothing was placed."""
        return choice_log_probabilities(self.scores, self.slates)

    @property
    def probabilities(self) -> Tensor:
        """(B, K, N) p_i^j: where the model points at each step; exactly 0 for an item already placed."""
        return self.scores.softmax(2).nan_to_num()


def choice_log_probabilities(scores: Tensor, slates: Tensor) -> Tensor:
    """Return (B, K) the log-probability of each choice; 0 for a slot without an item."""
    placed = slates >= 0
    finite = scores.where(placed[:, :, None], 0.0)  # a softmax over nothing has no gradient
    logs = finite.log_softmax(2).gather(2, slates.clamp(min=0)[:, :, None]).squeeze(2)
    return logs.where(placed, 0.0)


def check_options(k: int | None, temperature: float) -> None:
    """Refuse a number of slots or a temperature that means nothing."""
    if not temperature > 0:
        raise UsageError(f"temperature must be above 0, got {temperature}")
    if k is not None and k < 1:
        raise UsageError(f"k must be at least 1, got {k}")


@torch.no_grad()
def decode(
    network: SlateNetwork,
    encoded: Encoded,
    k: int | None = None,
    *,
    generator: torch.Generator | None = None,
    temperature: float = 1.0,
    positives: Tensor | None = None,
) -> Decoded:
    """Place k items (all if None): the best one at each step, or with a generator one drawn from the softmax.

    With `positives` (B, N) a list may end once none of them is left, in training, where nothing that follows matters.
    """
    check_options(k, temperature)
    n_items = encoded.mask.shape[1]
    steps = n_items if k is None else min(k, n_items)
    draws = None
    if generator is not None:
        draws = torch.rand(len(encoded.mask), steps, generator=generator, device=generator.device)
        draws = draws.to(encoded.keys.factors)
    if network.config.decoder == "one-step":
        return _decode_at_once(network, encoded, steps, draws, 1 / temperature)
    return _decode_in_steps(network, encoded, steps, draws, 1 / temperature, positives)


def _decode_in_steps(
    network: SlateNetwork,
    encoded: Encoded,
    steps: int,
    draws: Tensor | None,
    sharpness: float,
    positives: Tensor | None,
) -> Decoded:
    state = _decoding(network, encoded, steps, draws, sharpness)
    wanted = encoded.mask if positives is None else positives > 0
    fused, layers = fused_kernels_for(state.keys), network.decoder_layers
    if fused is not None and len(layers) == 1 and isinstance(layers[0], LstmLayer):
        fused.lstm_decode(state, _lstm_decoder(network, encoded, layers[0], wanted))
    else:
        _take_steps(network, encoded, state, wanted)
    return Decoded(state.slates, state.scores)


def _lstm_decoder(network: SlateNetwork, encoded: Encoded, layer: LstmLayer, wanted: Tensor) -> LstmDecoder:
    items, (h, c) = encoded.items.contiguous(), encoded.states[0]
    go, w_dec = network.go.detach(), network.w_dec.detach()
    return LstmDecoder(
        layer.weights, items, go, w_dec, encoded.keep, h.contiguous(), c.contiguous(), wanted.contiguous()
    )


def _take_steps(network: SlateNetwork, encoded: Encoded, state: Decoding, wanted: Tensor) -> None:
    """Decode step by step, with any layers on any device."""
    kernels, layers = kernels_for(state.keys), network.decoder_layers
    lists, states = _going_on(wanted.any(1), torch.arange(len(wanted), device=wanted.device), encoded.states)
    for step in range(state.slates.shape[1]):
        if not len(lists):
            break
        if step == 0:
            read = network.go.expand(len(lists), -1)
        else:
            read = encoded.items[state.slates[lists, step - 1].clamp(min=0), lists]
        for depth, layer in enumerate(layers):
            states[depth] = layer.step(read, states[depth])
            read = states[depth][0]
        queries = network.queries(read, None if encoded.keep is None else encoded.keep[lists])
        kernels.pointer_factors(queries)
        kernels.pointer_step(state, step, lists, queries)
        lists, states = _going_on((wanted & state.left).any(1)[lists], lists, states)


def _going_on(goes_on: Tensor, lists: Tensor, states: list[State]) -> tuple[Tensor, list[State]]:
    """Return the lists that go on, with their states."""
    if goes_on.all():
        return lists, list(states)
    kept = goes_on.nonzero().flatten()
    return lists[kept], [tuple(part[kept] for part in state) for state in states]


def _decoding(network: SlateNetwork, encoded: Encoded, steps: int, draws: Tensor | None, sharpness: float) -> Decoding:
    """Return everything before the first step."""
    n_lists, n_items = encoded.mask.shape
    keys, bias = encoded.keys.factors, encoded.bias
    if bias is None and encoded.interaction is not None:
        bias = torch.zeros_like(encoded.mask, dtype=keys.dtype)
    return Decoding(
        keys,
        network.v.detach(),
        left=encoded.mask.clone(memory_format=torch.contiguous_format),
        scores=keys.new_full((n_lists, steps, n_items), -torch.inf),
        slates=torch.full((n_lists, steps), -1, device=keys.device),
        draws=draws,
        sharpness=sharpness,
        bias=None if bias is None else bias.clone(memory_format=torch.contiguous_format),
        interaction=None if encoded.interaction is None else encoded.interaction.contiguous(),
    )


def _decode_at_once(
    network: SlateNetwork, encoded: Encoded, steps: int, draws: Tensor | None, sharpness: float
) -> Decoded:
    """Sort by the scores of the first step, or draw without replacement from their softmax."""
    scores = first_scores(network, encoded)
    if draws is None:
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :steps]
        slates = order.where(encoded.mask.gather(1, order), -1)
    else:
        slates = _drawn_at_once(scores * sharpness, draws)
    return Decoded(slates, repeated_scores(scores, slates, encoded.mask))


def _drawn_at_once(scores: Tensor, draws: Tensor) -> Tensor:
    """Return slates (B, K) drawn one after the other from the softmax of what is left of scores (B, N)."""
    scores = scores.clone()
    slates = torch.full_like(draws, -1, dtype=torch.long)
    for step in range(draws.shape[1]):
        choice = sampled_items(scores, draws[:, step]).where((scores > -torch.inf).any(1), -1)
        slates[:, step] = choice
        scores.scatter_(1, choice.clamp(min=0)[:, None], -torch.inf)
    return slates


def first_scores(network: SlateNetwork, encoded: Encoded) -> Tensor:
    """Return the scores (B, N) of the first step, -inf for padding, with gradients."""
    any_item = torch.zeros(len(encoded.mask), 1, dtype=torch.long, device=encoded.mask.device)
    return network.score(encoded, any_item.where(encoded.mask.any(1, keepdim=True), -1))[:, 0]


def repeated_scores(scores: Tensor, slates: Tensor, mask: Tensor) -> Tensor:
    """Return one-step scores (B, N) as the scores (B, K, N) of every step: the same for all items still left."""
    slots = slots_of_items(slates, mask)
    steps = torch.arange(slates.shape[1], device=slates.device)
    there = (slots[:, None] >= steps[:, None]) & (slates >= 0)[:, :, None]
    return scores[:, None].expand(-1, len(steps), -1).where(there, -torch.inf)


def score_slates(network: SlateNetwork, encoded: Encoded, slates: Tensor) -> Tensor:
    """Return the scores (B, K, N) of every step of given slates, -inf for items that are not left, with gradients."""
    if network.config.decoder == "one-step":
        return repeated_scores(first_scores(network, encoded), slates, encoded.mask)
    return network.score(encoded, slates)


def log_prob(network: SlateNetwork, encoded: Encoded, slates: Tensor) -> Tensor:
    """Return (B, K) log p(π_j | π_<j) of given slates, with gradients; the log-probability of a slate is its sum."""
    return choice_log_probabilities(score_slates(network, encoded, slates), slates)
