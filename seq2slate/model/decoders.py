"""Decoders: from an encoded batch to slates, greedy or sampled, with the probability of every choice.

At step j a decoder has a score s_i^j for every item i that is left, and places one of them, with probability

    p(π_j = i | π_<j) = e^{s_i^j / T} / Σ e^{s_k^j / T} over the items k left,    log p(π) = Σ_j log p(π_j | π_<j)

Greedy slates take the item with the best score, the first of equal ones. Sampled slates draw from p at temperature T.

- `Sequential` (paper, section 2): after each step its recurrent layers read the item just placed, so that every score
  depends on all items placed before: s_i^j = v^T tanh(W_enc e_i + W_dec d_j) + b_i + Σ_{m<j} a_{π_m i}.
- `OneStep` (paper, section 3): the scores of the first step, s_i^1 = v^T tanh(W_enc e_i + W_dec d_1) + b_i, for all
  steps. Its greedy slate sorts the items by them.

To add one, write a subclass of `Decoder` and give it a name in `DECODERS`.

B lists, N items, K steps, I input columns, D units. Slates (B, K) are indices into the lists as given, -1 in a slot
without an item.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seq2slate.config import NetworkConfig
from seq2slate.errors import UsageError
from seq2slate.model.backends.kernels import (
    Decoding,
    LstmDecoder,
    LstmTrace,
    LstmWeights,
    StepRows,
    kernels_for,
    sampled_items,
)
from seq2slate.model.backends.pairs import PlacedPairs
from seq2slate.model.interactions import ScoreTerms
from seq2slate.model.layers import (
    CELLS,
    LIMIT,
    Keys,
    LstmLayer,
    RecurrentLayer,
    State,
    layer_widths,
    plain_lstm,
    pointer_scores,
)


@dataclass(frozen=True)
class Encoded:
    """A batch that the network has read, and the weights of the pointer: all that a decoder needs."""

    items: Tensor
    """(N, B, I) the vectors that the encoder has read and the decoder will read."""
    mask: Tensor
    """(B, N) True for a real item."""
    keys: Keys
    """The memory as the pointer reads it."""
    states: list[State]
    """The decoder's first state, layer by layer."""
    terms: ScoreTerms
    """What scores start with, and what placed items add to them."""
    go: Tensor
    """(I,) what the decoder reads first."""
    w_dec: Tensor
    """(D, D)"""
    v: Tensor
    """(D,)"""
    keep: Tensor | None
    """(B, D) the dropout of the decoder's outputs: the same when slates are drawn and when they are scored."""


@dataclass(frozen=True)
class Decoded:
    """Slates and the scores that they came from."""

    slates: Tensor
    """(B, K)"""
    scores: Tensor
    """(B, K, N) of the items left at each step; -inf for the others, and throughout where nothing was placed."""
    trace: LstmTrace | None = None
    """What the gradient needs of the decoder's steps, where slates are drawn for training and C has taken the steps."""

    @property
    def log_probabilities(self) -> Tensor:
        """(B, K) log p(π_j | π_<j) of each choice, at temperature 1; 0 where nothing was placed."""
        return choice_log_probabilities(self.scores, self.slates)

    @property
    def probabilities(self) -> Tensor:
        """(B, K, N) p(π_j = i | π_<j), where the model points at each step; exactly 0 for an item already placed."""
        return self.scores.softmax(2).nan_to_num()


@dataclass(frozen=True)
class TrainingSteps:
    """The steps on which an objective is taken: slates, cut after the last step that matters, and their scores."""

    slates: Tensor
    """(B, K)"""
    scores: Tensor
    """(B, K, N) with gradients; -inf for an item that is not left."""
    sampled: bool
    """Whether the slates were sampled: the expected loss then also depends on their probability."""


class Decoder(nn.Module):
    """Places the items of an encoded batch.

    A subclass says how slates are made (`place`, without gradients) and what the scores of given slates are (`score`,
    with gradients); the rest follows from these.

    Args:
        n_inputs: Columns of an item.
        n_layers: Layers for which the encoder gives a first state.
        config: The shape of the network.
    """

    def __init__(self, n_inputs: int, n_layers: int, config: NetworkConfig) -> None:
        super().__init__()
        widths = layer_widths(n_inputs, config.hidden, n_layers)
        self.layers = nn.ModuleList(CELLS[config.cell](width, config.hidden) for width in widths)

    @property
    def recurrent_layers(self) -> list[RecurrentLayer]:
        """The layers, one above the other."""
        return list(self.layers)  # type: ignore[arg-type]

    @property
    def lstm(self) -> LstmWeights | None:
        """The weights, if this is one LSTM layer, which is what runs in C."""
        return plain_lstm(self.recurrent_layers)

    # What a decoder says

    def place(
        self, encoded: Encoded, steps: int, draws: Tensor | None, sharpness: float, positives: Tensor | None
    ) -> Decoded:
        """Place the first items of every list.

        Args:
            encoded: The batch.
            steps: K, the number of slots.
            draws: (B, K) uniform in [0, 1), to sample items; None takes the best.
            sharpness: 1 / temperature of the samples.
            positives: (B, N) labels; a list may end when no item with a label above 0 is left.
        """
        raise NotImplementedError

    def score(self, encoded: Encoded, slates: Tensor) -> Tensor:
        """Return the scores (B, K, N) of every step of given slates (B, K), with gradients.

        An item that is not left, padding, and the steps after a slate's last item have -inf.
        """
        raise NotImplementedError

    # What follows

    @torch.no_grad()
    def decode(
        self,
        encoded: Encoded,
        k: int | None = None,
        *,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        positives: Tensor | None = None,
    ) -> Decoded:
        """Place k items of every list, without gradients.

        Args:
            encoded: The batch.
            k: Slots of a slate; all items if None.
            generator: Samples the slates; None takes the best item at each step.
            temperature: Of the samples.
            positives: (B, N) labels. A list may end once no item with a label above 0 is left: nothing that follows
                matters to training.
        """
        if not temperature > 0 or (k is not None and k < 1):
            raise UsageError(f"k must be at least 1 and temperature must be above 0, got {k=}, {temperature=}")
        n_lists, n_items = encoded.mask.shape
        steps = n_items if k is None else min(k, n_items)
        draws = None if generator is None else uniform_draws(n_lists, steps, generator).to(encoded.keys.factors)
        return self.place(encoded, steps, draws, 1 / temperature, positives)

    def log_prob(self, encoded: Encoded, slates: Tensor) -> Tensor:
        """Return (B, K) log p(π_j | π_<j) of given slates, with gradients; log p(π) is their sum."""
        return choice_log_probabilities(self.score(encoded, slates), slates)

    def policy_steps(
        self, encoded: Encoded, labels: Tensor, k: int | None, generator: torch.Generator | None
    ) -> TrainingSteps:
        """Return slates of the decoder's own, greedy or sampled with a generator, and their scores with gradients.

        Each ends with the step that places its last positive: by then the loss to come is exactly 0.
        """
        drawn = self.decode(encoded, k, generator=generator, positives=labels)
        stops = steps_that_matter(drawn.slates, labels)
        steps = max(1, int(stops.max()))
        slates = drawn.slates[:, :steps]
        slates = slates.where(torch.arange(steps, device=slates.device) < stops[:, None], -1)
        return TrainingSteps(slates, self._scores_of_drawn(encoded, slates, drawn), generator is not None)

    def _scores_of_drawn(self, encoded: Encoded, slates: Tensor, drawn: Decoded) -> Tensor:
        """Return what `score` does, for the beginnings of slates that were drawn."""
        return self.score(encoded, slates)

    def loss_steps(
        self, encoded: Encoded, labels: Tensor, k: int | None, generator: torch.Generator | None
    ) -> TrainingSteps:
        """Return the steps on which a supervised loss is taken: those of the decoder's own slates."""
        return self.policy_steps(encoded, labels, k, generator)

    def _pointer_scores(self, encoded: Encoded, slates: Tensor, drawn: Decoded | None = None) -> Tensor:
        """Return (B, K, N) v^T tanh(W_enc e_i + W_dec d_j) for d_j after reading the first j - 1 items of each slate.

        The layers run over all steps at once, since it is known what they will read. They need not run again if
        they have drawn these slates and left a trace.
        """
        steps, lengths, trace = slates.shape[1], (slates >= 0).sum(1), None if drawn is None else drawn.trace
        lists = torch.argsort(lengths, descending=True, stable=True)
        stops = lengths[lists]
        active = (stops[None] > torch.arange(steps, device=slates.device)[:, None]).sum(1).tolist()
        outputs = encoded.items[slates[lists, : steps - 1].clamp(min=0).t(), lists]
        for depth, (layer, state) in enumerate(zip(self.recurrent_layers, encoded.states, strict=True)):
            start, first = encoded.go if depth == 0 else None, tuple(part[lists] for part in state)
            if trace is not None and isinstance(layer, LstmLayer):
                known = LstmTrace(*(part[:steps, lists] for part in (trace.gates, trace.c, trace.h)))
                outputs = layer.rescan(outputs, active, first, encoded.go, known)
            else:
                outputs, _ = layer.scan(outputs, active, first, start=start)
        rows = StepRows(lists, stops, slots_of_items(slates, encoded.mask))
        has_terms = encoded.terms.bias is not None or encoded.terms.added is not None
        found = None if drawn is None or has_terms else drawn.scores[:, :steps].contiguous()
        return pointer_scores(encoded.keys, _queries(encoded, outputs, lists), encoded.v, rows, found)


class Sequential(Decoder):
    """Places one item after the other: a score depends on all items placed before."""

    def score(self, encoded: Encoded, slates: Tensor) -> Tensor:  # noqa: D102
        return self._scores(encoded, slates, None)

    def _scores_of_drawn(self, encoded: Encoded, slates: Tensor, drawn: Decoded) -> Tensor:
        return self._scores(encoded, slates, None if drawn.trace is None else drawn)

    def _scores(self, encoded: Encoded, slates: Tensor, drawn: Decoded | None) -> Tensor:
        scores, terms = self._pointer_scores(encoded, slates, drawn), encoded.terms
        if terms.bias is not None:
            scores = scores + terms.bias[:, None]
        added = terms.added_by(slates)
        return scores if added is None else scores + added.cumsum(1) - added

    def place(  # noqa: D102
        self, encoded: Encoded, steps: int, draws: Tensor | None, sharpness: float, positives: Tensor | None
    ) -> Decoded:
        state = _before_the_first_step(encoded, steps, draws, sharpness)
        wanted = encoded.mask if positives is None else positives > 0
        fused, lstm, trace = kernels_for(state.keys).fused, self.lstm, None
        if fused is not None and lstm is not None:
            trace = None if positives is None else _new_trace(encoded, steps)
            h, c = (part.contiguous() for part in encoded.states[0])
            go, w_dec = encoded.go.detach(), encoded.w_dec.detach()
            items, wanted = encoded.items.contiguous(), wanted.contiguous()
            fused.lstm_decode(state, LstmDecoder(lstm, items, go, w_dec, encoded.keep, h, c, wanted, LIMIT, trace))
        else:
            self._take_steps(encoded, state, wanted)
        return Decoded(state.slates, state.scores, trace)

    def _take_steps(self, encoded: Encoded, state: Decoding, wanted: Tensor) -> None:
        """Decode step by step, with any layers on any device, until no wanted (B, N) item is left."""
        kernels = kernels_for(state.keys)
        lists, states = _going_on(wanted.any(1), torch.arange(len(wanted), device=wanted.device), encoded.states)
        for step in range(state.slates.shape[1]):
            if not len(lists):
                break
            if step == 0:
                read = encoded.go.expand(len(lists), -1)
            else:
                read = encoded.items[state.slates[lists, step - 1].clamp(min=0), lists]
            for depth, layer in enumerate(self.recurrent_layers):
                states[depth] = layer.step(read, states[depth])
                read = states[depth][0]
            queries = _queries(encoded, read, lists)
            kernels.pointer_factors(queries, LIMIT)
            kernels.pointer_step(state, step, lists, queries)
            lists, states = _going_on((wanted & state.left).any(1)[lists], lists, states)


class OneStep(Decoder):
    """Places all items by the scores of the first step."""

    def score(self, encoded: Encoded, slates: Tensor) -> Tensor:  # noqa: D102
        return _repeated(self.first_scores(encoded), slates, encoded.mask)

    def place(  # noqa: D102
        self, encoded: Encoded, steps: int, draws: Tensor | None, sharpness: float, positives: Tensor | None
    ) -> Decoded:
        scores = self.first_scores(encoded)
        if draws is None:
            order = scores.argsort(dim=1, descending=True, stable=True)[:, :steps]
            slates = order.where(encoded.mask.gather(1, order), -1)
        else:
            slates = _sampled_in_turn(scores * sharpness, draws)
        return Decoded(slates, _repeated(scores, slates, encoded.mask))

    def loss_steps(
        self, encoded: Encoded, labels: Tensor, k: int | None, generator: torch.Generator | None
    ) -> TrainingSteps:
        """Return the first step, which is the only one: its loss depends on no slate."""
        return TrainingSteps(_any_item(encoded), self.first_scores(encoded)[:, None], sampled=False)

    def first_scores(self, encoded: Encoded) -> Tensor:
        """Return the scores (B, N), -inf for padding, with gradients."""
        scores = self._pointer_scores(encoded, _any_item(encoded))[:, 0]
        return scores if encoded.terms.bias is None else scores + encoded.terms.bias


DECODERS: dict[str, type[Decoder]] = {"sequential": Sequential, "one-step": OneStep}
"""The decoders by name."""


# Slates


def uniform_draws(n_lists: int, steps: int, generator: torch.Generator) -> Tensor:
    """Return (B, K) uniform numbers in [0, 1), one for each choice of sampled slates."""
    return torch.rand(n_lists, steps, generator=generator, device=generator.device, dtype=torch.float32)


def choice_log_probabilities(scores: Tensor, slates: Tensor) -> Tensor:
    """Return (B, K) the log-probability of each choice of slates (B, K); 0 for a slot without an item.

    >>> scores = torch.tensor([[[0.0, 0.0], [-torch.inf, 0.0]]])
    >>> choice_log_probabilities(scores, torch.tensor([[0, 1]])).exp()
    tensor([[0.5000, 1.0000]])
    """
    placed = slates >= 0
    finite = scores.where(placed[:, :, None], 0.0)  # a softmax over nothing has no gradient
    logs = finite.log_softmax(2).gather(2, slates.clamp(min=0)[:, :, None]).squeeze(2)
    return logs.where(placed, 0.0)


def slots_of_items(slates: Tensor, mask: Tensor) -> Tensor:
    """Return (B, N) the slot of each item: K if it is not on the slate, and -1 for padding.

    >>> slots_of_items(torch.tensor([[2, 0]]), torch.tensor([[True, True, True, False]]))
    tensor([[ 1,  2,  0, -1]])
    """
    n_lists, n_items = mask.shape
    slots = torch.full((n_lists, n_items + 1), slates.shape[1], device=slates.device)  # one more, for empty slots
    slots.scatter_(
        1, slates.where(slates >= 0, n_items), torch.arange(slates.shape[1], device=slates.device).expand_as(slates)
    )
    return slots[:, :n_items].where(mask, -1).contiguous()


def items_left(slates: Tensor, mask: Tensor) -> Tensor:
    """Return (B, K, N) bool: the real items that no earlier slot of the slate holds, before each step.

    >>> items_left(torch.tensor([[1, 0]]), torch.tensor([[True, True, False]])).int()
    tensor([[[1, 1, 0],
             [1, 0, 0]]], dtype=torch.int32)
    """
    steps = torch.arange(slates.shape[1], dtype=torch.int32, device=slates.device)
    return slots_of_items(slates, mask).int()[:, None] >= steps[:, None]


def steps_that_matter(slates: Tensor, labels: Tensor) -> Tensor:
    """Return (B,) the steps up to and including the one that places the last positive, or all if one is not placed.

    >>> slates = torch.tensor([[2, 0, 1], [2, 0, 1], [0, 1, 2]])
    >>> steps_that_matter(slates, labels=torch.tensor([[1, 0, 0], [0, 0, 0], [0, 0, 1]]))
    tensor([2, 0, 3])
    """
    steps = torch.arange(1, slates.shape[1] + 1, device=slates.device)
    placed = slates >= 0
    positive = (labels.gather(1, slates.clamp(min=0)) > 0) & placed
    last = (positive * steps).amax(1) if len(steps) else steps.new_zeros(len(slates))
    missing = (labels > 0).sum(1) > positive.sum(1)
    return torch.where(missing, placed.sum(1), last)


def _any_item(encoded: Encoded) -> Tensor:
    """Return slates (B, 1) with some item of each list: the scores of the first step depend on none."""
    return encoded.mask.any(1, keepdim=True).long() - 1


def _repeated(scores: Tensor, slates: Tensor, mask: Tensor) -> Tensor:
    """Return first scores (B, N) as the scores (B, K, N) of every step: the same for all items still left."""
    there = items_left(slates, mask) & (slates >= 0)[:, :, None]
    return scores[:, None].expand_as(there).where(there, -torch.inf)


def _sampled_in_turn(scores: Tensor, draws: Tensor) -> Tensor:
    """Return slates (B, K) sampled without replacement from the softmax of scores (B, N)."""
    scores = scores.clone()
    slates = torch.full_like(draws, -1, dtype=torch.long)
    for step in range(draws.shape[1]):
        choice = sampled_items(scores, draws[:, step]).where((scores > -torch.inf).any(1), -1)
        slates[:, step] = choice
        scores.scatter_(1, choice.clamp(min=0)[:, None], -torch.inf)
    return slates


# Steps


def _queries(encoded: Encoded, outputs: Tensor, lists: Tensor) -> Tensor:
    """Return W_dec d_j for the outputs (…, R, D) of lists (R,), with their dropout."""
    return (outputs if encoded.keep is None else outputs * encoded.keep[lists]) @ encoded.w_dec


def _before_the_first_step(encoded: Encoded, steps: int, draws: Tensor | None, sharpness: float) -> Decoding:
    (n_lists, n_items), keys, terms = encoded.mask.shape, encoded.keys.factors, encoded.terms
    bias, added = terms.bias, terms.added
    if bias is None and added is not None:
        bias = torch.zeros_like(encoded.mask, dtype=keys.dtype)
    return Decoding(
        keys,
        encoded.v.detach(),
        left=encoded.mask.clone(memory_format=torch.contiguous_format),
        scores=keys.new_full((n_lists, steps, n_items), -torch.inf),
        slates=torch.full((n_lists, steps), -1, device=keys.device),
        draws=draws,
        sharpness=sharpness,
        bias=None if bias is None else bias.clone(memory_format=torch.contiguous_format),
        interaction=added.contiguous() if isinstance(added, Tensor) else None,
        placed=added if isinstance(added, PlacedPairs) else None,
    )


def _new_trace(encoded: Encoded, steps: int) -> LstmTrace:
    """Return room for what the gradient needs of so many steps of one LSTM layer."""
    factors, (n_lists, n_units) = encoded.keys.factors, (len(encoded.mask), len(encoded.v))
    gates = factors.new_empty(steps, n_lists, 4 * n_units)
    return LstmTrace(gates, *(factors.new_zeros(steps, n_lists, n_units) for _ in range(2)))


def _going_on(goes_on: Tensor, lists: Tensor, states: list[State]) -> tuple[Tensor, list[State]]:
    """Return the lists that go on, with their states."""
    if goes_on.all():
        return lists, list(states)
    kept = goes_on.nonzero().flatten()
    return lists[kept], [tuple(part[kept] for part in state) for state in states]
