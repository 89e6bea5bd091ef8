"""The network of the paper's section 2 once more: slow, obvious, in float64, one list at a time.

Written from the equations, with `torch.tanh`, a loop over items and steps and no batch, padding, mask or cache: the
decoder starts again from `go` for every score that is asked for. It shares its weights, by name, with a SlateNetwork,
which keeps its matrices transposed: W x is `x @ w`.
Below it are the sequence loss (section 3), the expectation over all permutations, and the random networks and inputs
on which the tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from typing import TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor

from seq2slate.config import NetworkConfig
from seq2slate.model.backends.kernels import KERNELS as KERNELS_BY_NAME
from seq2slate.model.backends.native import NativeKernels
from seq2slate.model.network import InputSizes, NetworkInputs, SlateNetwork

PARAM_SCALE = 30.0
"""The weights of the interaction and of the base prior are stored divided by this."""

Scores: TypeAlias = dict[int, Tensor]
"""The score of each item that is left."""
State: TypeAlias = tuple[Tensor, ...]


@dataclass(frozen=True)
class OneList:
    """What is known of one list of n items."""

    dense: Tensor
    """(n, F)"""
    codes: list[Tensor]
    """(n,) for each text column of the items."""
    context: Tensor
    """(C,)"""
    context_codes: list[Tensor]
    """() for each text column of the lists."""


@dataclass(frozen=True)
class Memory:
    """What the encoder leaves to the decoder."""

    items: list[Tensor]
    outputs: list[Tensor]
    states: list[State]
    starts: list[Tensor]
    """What the score of each item starts with."""
    effects: list[list[Tensor]]
    """What item k (first index), once placed, adds to the score of item i."""


class ReferenceNetwork:
    """A copy in float64 of the weights of a network, which collects gradients of its own."""

    def __init__(self, network: SlateNetwork) -> None:
        self.config = network.config
        self.weights = {
            name: weight.detach().double().requires_grad_(True) for name, weight in network.named_parameters()
        }
        self.strength = float(network.strength)
        scale = [network.state_dict().get(f"interaction.{name}") for name in ("levels", "spreads", "are_logarithms")]
        self.levels, self.spreads, self.are_logarithms = ([] if one is None else one.tolist() for one in scale)

    # Encoding

    def encode(self, one: OneList) -> Memory:
        items = self.item_vectors(one)
        if self.config.encoder == "attention":
            return Memory(items, *self.attend(items), *self.terms_beyond_the_paper(items))
        vectors, states = items, []
        for layer in range(self.config.layers):
            outputs, ends = [], []
            for direction, backwards in enumerate(self.directions()):
                read, end = self.read(f"encoder.layers.{layer}.{direction}", vectors[::-1] if backwards else vectors)
                outputs.append(read[::-1] if backwards else read)
                ends.append(end)
            vectors = [torch.cat(of_item) for of_item in zip(*outputs, strict=True)]
            states.append(tuple(torch.cat(parts) for parts in zip(*ends, strict=True)))
        return Memory(items, vectors, states, *self.terms_beyond_the_paper(items))

    def directions(self) -> list[bool]:
        """Whether each direction of the encoder reads backwards."""
        first = self.config.reversed_input
        return [first, not first] if self.config.bidirectional else [first]

    def item_vectors(self, one: OneList) -> list[Tensor]:
        vectors = []
        for i in range(len(one.dense)):
            parts = [one.dense[i]]
            parts += [self.weights[f"embeddings.{c}.weight"][codes[i]] for c, codes in enumerate(one.codes)]
            parts += [one.context]
            parts += [self.weights[f"context_embeddings.{c}.weight"][code] for c, code in enumerate(one.context_codes)]
            if self.config.position_input:
                parts += [torch.tensor([math.log(1 + i)], dtype=torch.float64)]
            vectors.append(torch.cat(parts))
        return vectors

    def read(self, layer: str, vectors: Sequence[Tensor]) -> tuple[list[Tensor], State]:
        """Return the output after each vector, and the last state, from a state of zeros."""
        n_units = self.config.hidden // len(self.directions())
        state: State = (torch.zeros(n_units, dtype=torch.float64),) * (2 if self.config.cell == "lstm" else 1)
        outputs = []
        for vector in vectors:
            state = self.step(layer, vector, state)
            outputs.append(state[0])
        return outputs, state

    def step(self, layer: str, x: Tensor, state: State) -> State:
        return self.lstm_step(layer, x, *state) if self.config.cell == "lstm" else self.gru_step(layer, x, *state)

    def lstm_step(self, layer: str, x: Tensor, h: Tensor, c: Tensor) -> State:
        w, u, b = (self.weights[f"{layer}.{name}"] for name in ("weight_input", "weight_hidden", "bias"))
        input_, forget, cell, output = (x @ w + h @ u + b).chunk(4)
        c = sigmoid(forget) * c + sigmoid(input_) * torch.tanh(cell)
        return sigmoid(output) * torch.tanh(c), c

    def gru_step(self, layer: str, x: Tensor, h: Tensor) -> State:
        w, u, b, b_hidden = (
            self.weights[f"{layer}.cell.{n}"] for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        from_input, from_hidden = (w @ x + b).chunk(3), (u @ h + b_hidden).chunk(3)
        reset, update = (sigmoid(from_input[gate] + from_hidden[gate]) for gate in (0, 1))
        new = torch.tanh(from_input[2] + reset * from_hidden[2])
        return ((1 - update) * new + update * h,)

    # Self-attention

    def attend(self, items: list[Tensor]) -> tuple[list[Tensor], list[State]]:
        """Return what the blocks make of the items, and the decoder's first state."""
        vectors = [self.linear("encoder.project", x) for x in items]
        if self.config.position_embedding:
            vectors = [x + self.weights["encoder.positions"][min(i, 127)] for i, x in enumerate(vectors)]
        for layer in range(self.config.layers):
            vectors = self.attention_block(f"encoder.blocks.{layer}", vectors)
        nothing = torch.zeros(self.config.hidden, dtype=torch.float64)
        mean = sum(vectors, start=nothing) / max(1, len(vectors))
        return vectors, [(torch.tanh(mean), mean)[: 2 if self.config.cell == "lstm" else 1]]

    def attention_block(self, block: str, vectors: list[Tensor]) -> list[Tensor]:
        width = self.config.hidden // self.config.heads
        parts = [self.linear(f"{block}.queries_keys_values", x).chunk(3) for x in vectors]
        outputs = []
        for x, (query, _, _) in zip(vectors, parts, strict=True):
            found = []
            for head in range(self.config.heads):
                of_head = slice(head * width, (head + 1) * width)
                weights = [torch.exp(query[of_head] @ key[of_head] / math.sqrt(width)) for _, key, _ in parts]
                values = [value[of_head] for _, _, value in parts]
                found.append(sum(w * v for w, v in zip(weights, values, strict=True)) / sum_of(iter(weights)))
            y = self.layer_norm(f"{block}.attended_norm", x + self.linear(f"{block}.join", torch.cat(found)))
            wide = self.linear(f"{block}.widen", y).clamp(min=0)
            outputs.append(self.layer_norm(f"{block}.norm", y + self.linear(f"{block}.narrow", wide)))
        return outputs

    def linear(self, name: str, x: Tensor) -> Tensor:
        return self.weights[f"{name}.weight"] @ x + self.weights[f"{name}.bias"]

    def layer_norm(self, name: str, x: Tensor) -> Tensor:
        spread = torch.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
        return self.weights[f"{name}.weight"] * (x - x.mean()) / spread + self.weights[f"{name}.bias"]

    # Terms beyond the paper

    def terms_beyond_the_paper(self, items: list[Tensor]) -> tuple[list[Tensor], list[list[Tensor]]]:
        """Return what each item's score starts with, and what each item adds to another's once it is placed."""
        zero, n = torch.zeros((), dtype=torch.float64), len(items)
        priors = self.priors(n)
        if self.config.interaction == "none":
            return priors, [[zero] * n for _ in range(n)]
        appeals, odds, effects = self.cascade(items, priors)
        starts = [appeal + 0.75 * min(odd - appeal, zero) for appeal, odd in zip(appeals, odds, strict=True)]
        return starts, [[mixed(odds[k], effects[k][i]) for i in range(n)] for k in range(n)]

    def cascade(
        self, items: list[Tensor], priors: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], list[list[Tensor]]]:
        """Return appeals and log-odds of the items, from the top, and the effects of all pairs; no loss has a part."""
        found, rows = self.click_model(items, priors)
        appeals, effects = [one.detach() for one in found], [[one.detach() for one in row] for row in rows]
        odds: list[Tensor] = []
        for i, appeal in enumerate(appeals):
            odds.append(appeal + sum_of(mixed(odds[k], effects[k][i]) for k in range(i)))
        return appeals, odds, effects

    def click_model(self, items: list[Tensor], priors: list[Tensor]) -> tuple[list[Tensor], list[list[Tensor]]]:
        """Return the appeal of each item, and the effect of each pair."""
        n, u = len(items), PARAM_SCALE * self.weights["interaction.relevance"]
        effects = [[self.number("constant") + effect for effect in row] for row in self.head_effects(items)]
        appeals = [u @ x + prior + self.number("offset") for x, prior in zip(items, priors, strict=True)]
        for number, distances in enumerate(self.distances(items)):
            knots = knots_of([distances[i][k] for i in range(n) for k in range(i)])
            theta, psi = (PARAM_SCALE * self.weights[f"interaction.{name}"][number] for name in ("effects", "crowding"))
            for i in range(n):
                others = [k for k in range(n) if k != i]
                appeals[i] = appeals[i] + sum_of(piecewise(psi, knots, distances[i][k]) / len(others) for k in others)
                for k in others:
                    effects[k][i] = effects[k][i] + piecewise(theta, knots, distances[i][k])
        return appeals, effects

    def head_effects(self, items: list[Tensor]) -> list[list[Tensor]]:
        """Return Σ_h γ_h exp(-3 |E_h x_i - E_h x_k|² / m_h) of all pairs."""
        matrix, gamma = self.weights["interaction.heads"], PARAM_SCALE * self.weights["interaction.head_effects"]
        width, n = matrix.shape[1] // len(gamma), len(items)
        totals = [[torch.zeros((), dtype=torch.float64) for _ in items] for _ in items]
        for head, strength in enumerate(gamma):
            places = [x @ matrix[:, head * width : (head + 1) * width] for x in items]
            squares = [[((one - other) ** 2).sum() for other in places] for one in places]
            mean = sum_of(square for row in squares for square in row) / max(1, n * n)  # an item and itself included
            for k, row in enumerate(squares):
                for i, square in enumerate(row):
                    totals[k][i] = totals[k][i] + strength * torch.exp(-3 * square / mean.clamp(min=1e-12))
        return totals

    def distances(self, items: list[Tensor]) -> list[list[list[float]]]:
        """Return the raw, the normalised and the angular distances of all pairs; without a numeric column, none."""
        dense = [[value.item() for value in x[: len(self.levels)]] for x in items]
        if not self.levels:
            return []
        raw = [[self.raw(f, value) for f, value in enumerate(row)] for row in dense]
        means = [sum(column) / len(column) for column in zip(*dense, strict=True)]
        spreads = [max(0.02, float(np.std(column))) for column in zip(*dense, strict=True)]
        normalised = [
            [(value - mean) / spread for value, mean, spread in zip(row, means, spreads, strict=True)] for row in dense
        ]
        lengths = [math.hypot(*row) for row in normalised]
        least = max(1e-12, 0.1 * math.sqrt(sum(length**2 for length in lengths) / max(1, len(lengths))))
        lengths = [max(least, length) for length in lengths]
        unit = [[value / length for value in row] for row, length in zip(normalised, lengths, strict=True)]
        squares = [[[math.dist(a, b) ** 2 for b in rows] for a in rows] for rows in (raw, normalised, unit)]
        return [*squares[:2], [[value / 2 for value in row] for row in squares[2]]]

    def raw(self, column: int, scaled: float) -> float:
        value = self.levels[column] + self.spreads[column] * scaled
        return math.copysign(math.expm1(min(40.0, abs(value))), value) if self.are_logarithms[column] else value

    def click_log_likelihood(self, one: OneList, labels: Sequence[float]) -> Tensor:
        """Return the log-probability of the clicks of the log, each given those above it."""
        items = self.item_vectors(one)
        appeals, effects = self.click_model(items, self.priors(len(items)))
        total = torch.zeros((), dtype=torch.float64)
        for i, appeal in enumerate(appeals):
            click = sigmoid(appeal + sum_of(effects[k][i] for k in range(i) if labels[k] > 0))
            total = total + torch.log(click if labels[i] > 0 else 1 - click)
        return total

    def priors(self, n: int) -> list[Tensor]:
        zero = torch.zeros((), dtype=torch.float64)
        return [PARAM_SCALE * self.weights["prior"][min(i, 63)] if self.config.base_prior else zero for i in range(n)]

    def number(self, name: str) -> Tensor:
        return PARAM_SCALE * self.weights[f"interaction.numbers.{name}"]

    # Decoding

    def next_scores(self, memory: Memory, placed: Sequence[int]) -> Scores:
        """Return s_i = v^T tanh(W_enc e_i + W_dec d) of the items left, d being the decoder's output after `placed`."""
        seen = [] if self.config.decoder == "one-step" else list(placed)
        d = self.decoder_output(memory, seen)
        found = {
            i: self.weights["v"] @ torch.tanh(memory.outputs[i] @ self.weights["w_enc"] + d @ self.weights["w_dec"])
            + memory.starts[i]
            + sum_of(memory.effects[k][i] for k in seen)
            for i in range(len(memory.items))
            if i not in placed
        }
        return {i: self.strength * score - (1 - self.strength) * math.log(1 + i) for i, score in found.items()}

    def decoder_output(self, memory: Memory, placed: Sequence[int]) -> Tensor:
        states = list(memory.states)
        for vector in [self.weights["go"], *(memory.items[i] for i in placed)]:
            read = vector
            for layer, state in enumerate(states):
                states[layer] = self.step(f"decoder.layers.{layer}", read, state)
                read = states[layer][0]
        return read

    def scores(self, one: OneList, slate: Sequence[int]) -> list[Scores]:
        """Return the scores from which each slot of a slate was chosen."""
        memory = self.encode(one)
        return [self.next_scores(memory, slate[:j]) for j in range(len(slate))]

    def greedy(self, one: OneList, k: int | None = None) -> list[int]:
        """Return the slate that takes the best item at every step."""
        memory, slate = self.encode(one), list[int]()
        for _ in range(min(len(one.dense), len(one.dense) if k is None else k)):
            scores = self.next_scores(memory, slate)
            slate.append(max(scores, key=lambda i: scores[i].item()))
        return slate

    def gradient(self, value: Tensor) -> dict[str, Tensor]:
        """Return the gradient of a number by every weight; 0 for a weight that it does not depend on."""
        found = torch.autograd.grad(value, list(self.weights.values()), allow_unused=True)
        return {
            name: torch.zeros_like(weight) if gradient is None else gradient
            for (name, weight), gradient in zip(self.weights.items(), found, strict=True)
        }


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def knots_of(distances: list[float]) -> list[float]:
    """Return the quantiles of the distances, apart by at least a thousandth of the median and of the one before."""
    if not distances:
        return [0.0] * 11
    quantiles: list[float] = np.quantile(distances, [0, 0.03, 0.07, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1]).tolist()
    median = max(1e-12, quantiles[7])
    for knot in range(1, 11):
        quantiles[knot] = max(quantiles[knot], quantiles[knot - 1] + 3e-3 * max(median, quantiles[knot - 1]))
    return quantiles


def piecewise(weights: Tensor, knots: list[float], distance: float) -> Tensor:
    """Return the piecewise linear function with these weights at the knots."""
    for low in range(10):
        if distance <= knots[low + 1] or low == 9:
            part = min(1.0, max(0.0, (distance - knots[low]) / (knots[low + 1] - knots[low])))
            return (1 - part) * weights[low] + part * weights[low + 1]
    raise AssertionError("the last knot is the largest distance")


# Section 2: the probability of a slate


def log_probability(scores: Sequence[Scores], slate: Sequence[int]) -> Tensor:
    """Return log p(π | x): the sum over the steps of the log of the softmax over what is left."""
    total = torch.zeros((), dtype=torch.float64)
    for choice, of_step in zip(slate, scores, strict=True):
        total = total + of_step[choice] - torch.log(sum_of(torch.exp(score) for score in of_step.values()))
    return total


def mixed(odds: Tensor, effect: Tensor) -> Tensor:
    """Return log(1 - p + p e^φ): the odds are multiplied by e^φ with probability p."""
    p = sigmoid(odds)
    return torch.log(1 - p + p * torch.exp(effect))


def sum_of(values: Iterator[Tensor]) -> Tensor:
    return sum(values, start=torch.zeros((), dtype=torch.float64))


# Section 3: the sequence loss


def cross_entropy(scores: Scores, labels: Sequence[float]) -> Tensor:
    """Return -Σ ŷ_i log p_i over the items left; 0 when no positive is left."""
    total_label = sum(labels[i] for i in scores)
    if total_label == 0:
        return torch.zeros((), dtype=torch.float64)
    log_sum = torch.log(sum_of(torch.exp(score) for score in scores.values()))
    return sum_of(-labels[i] / total_label * (scores[i] - log_sum) for i in scores)


def hinge(scores: Scores, labels: Sequence[float]) -> Tensor:
    """Return max{0, 1 - min over the positives left + max over the others left}; 0 when one of the two is empty."""
    positives = [score for i, score in scores.items() if labels[i] > 0]
    others = [score for i, score in scores.items() if labels[i] == 0]
    zero = torch.zeros((), dtype=torch.float64)
    return max(zero, 1 - min(positives) + max(others)) if positives and others else zero


StepLoss: TypeAlias = Callable[[Scores, Sequence[float]], Tensor]
STEP_LOSSES: dict[str, StepLoss] = {"cross-entropy": cross_entropy, "hinge": hinge}


def sequence_loss(
    scores: Sequence[Scores], labels: Sequence[float], step_loss: StepLoss, weights: Sequence[float]
) -> Tensor:
    """Return L_π(S, y) = Σ_j w_j l(s^j, y) over the items not placed before step j."""
    return sum_of(weight * step_loss(of_step, labels) for weight, of_step in zip(weights, scores, strict=False))


def expectation(
    reference: ReferenceNetwork, one: OneList, value: Callable[[list[Scores], tuple[int, ...]], Tensor]
) -> Tensor:
    """Return Σ_π p(π | x) value(S, π) over all permutations of the list."""
    memory, terms = reference.encode(one), []
    scores_after = cache(lambda placed: reference.next_scores(memory, placed))
    for slate in permutations(range(len(one.dense))):
        scores = [scores_after(slate[:j]) for j in range(len(slate))]
        terms.append(torch.exp(log_probability(scores, slate)) * value(scores, slate))
    return sum_of(iter(terms))


# What the tests compare on

PLAIN = InputSizes(3, {}, 0, {})
RICH = InputSizes(2, {"colour": 4, "brand": 3}, 2, {"city": 3})
"""Text columns, of items and of lists, and numbers of lists."""

VARIANTS: dict[str, tuple[InputSizes, NetworkConfig]] = {
    name: (sizes, replace(NetworkConfig(hidden=6, embedding=2), **options))
    for name, sizes, options in (
        ("paper", PLAIN, {}),
        ("one-step", PLAIN, {"decoder": "one-step"}),
        ("gru", PLAIN, {"cell": "gru"}),
        ("bidirectional", PLAIN, {"bidirectional": True}),
        ("stacked", PLAIN, {"layers": 2}),
        ("reversed input", PLAIN, {"reversed_input": True}),
        ("embeddings and context", RICH, {}),
        ("position input", PLAIN, {"position_input": True}),
        ("base prior", PLAIN, {"base_prior": True}),
        ("pairwise", PLAIN, {"interaction": "pairwise"}),
        ("pairwise and prior", PLAIN, {"interaction": "pairwise", "base_prior": True}),
        ("pairwise, one-step", PLAIN, {"interaction": "pairwise", "decoder": "one-step"}),
        ("an odd width", PLAIN, {"hidden": 5}),
        ("attention", PLAIN, {"encoder": "attention", "heads": 2}),
        (
            "attention, positions, one-step",
            PLAIN,
            {"encoder": "attention", "heads": 3, "layers": 2, "position_embedding": True, "decoder": "one-step"},
        ),
        (
            "everything, attention, gru",
            RICH,
            {
                "encoder": "attention",
                "heads": 2,
                "layers": 2,
                "cell": "gru",
                "position_embedding": True,
                "base_prior": True,
                "interaction": "pairwise",
            },
        ),
        (
            "everything",
            RICH,
            {
                "layers": 2,
                "bidirectional": True,
                "reversed_input": True,
                "position_input": True,
                "base_prior": True,
                "interaction": "pairwise",
            },
        ),
        (
            "everything, gru, one-step",
            RICH,
            {"cell": "gru", "layers": 2, "bidirectional": True, "decoder": "one-step", "base_prior": True},
        ),
    )
}
"""Every option of the network, alone and together with others."""

MIXED_LENGTHS = (3, 0, 1, 9, 2, 6)
"""An empty list, a single item and a long list, not in the order of their lengths."""


KERNELS = ("native", "native, step by step", "torch")
"""The ways in which a network of float32 can run."""


def use_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have networks run in one of the ways; skip the test where the machine has none of the kind."""
    if name == "torch":
        monkeypatch.setattr(NativeKernels, "why_not", lambda *_: "the test does without C")
        return
    found = KERNELS_BY_NAME.get("native")
    if found is None:
        pytest.skip("no C compiler")
    if name == "native, step by step":
        monkeypatch.setattr(found, "gemm", None)
    elif found.fused is None:
        pytest.skip("no BLAS that C could call")


def random_network(sizes: InputSizes, config: NetworkConfig, seed: int, spread: float = 0.7) -> SlateNetwork:
    """Return a network, in evaluation mode, whose weights are large enough that items differ."""
    network = SlateNetwork(sizes, config)
    randomise(network, seed, spread)
    return network.eval()


@torch.no_grad()
def randomise(network: SlateNetwork, seed: int, spread: float = 0.7) -> None:
    """Draw all weights uniformly from ±spread; networks with a prior are mixed with the base order.

    Effects of pairs are an eighth of that: the scores of 100 items add up as many of them, with their rounding errors.
    """
    generator = torch.Generator().manual_seed(seed)
    network.strength.fill_(0.625 if network.config.base_prior else 1.0)
    for name, weight in network.named_parameters():
        reach = spread / PARAM_SCALE if name.startswith(("interaction", "prior")) else spread
        reach /= 8 if name.endswith(("effects", "constant")) else 1
        weight.uniform_(-reach, reach, generator=generator)


def random_inputs(sizes: InputSizes, lengths: Sequence[int], seed: int) -> NetworkInputs:
    """Return lists of these lengths; padding holds numbers, which no result may depend on."""
    generator = torch.Generator().manual_seed(seed)
    n_lists, n_items = len(lengths), max(lengths, default=0)
    mask = torch.arange(n_items) < torch.tensor(lengths)[:, None]

    def codes(count: int, *shape: int) -> Tensor:
        return torch.randint(count, shape, generator=generator)

    dense = torch.randn(n_items, n_lists, sizes.dense, generator=generator)
    return NetworkInputs(
        dense.where(mask.t()[:, :, None], 99.0),
        {name: codes(count, n_items, n_lists) for name, count in sizes.categorical.items()},
        torch.randn(n_lists, sizes.context, generator=generator),
        {name: codes(count, n_lists) for name, count in sizes.context_categorical.items()},
        mask,
    )


def in_double(inputs: NetworkInputs) -> NetworkInputs:
    """Return the same inputs in float64."""
    return replace(inputs, dense=inputs.dense.double(), context=inputs.context.double())


def some_lists(inputs: NetworkInputs, index: Sequence[int], n_items: int) -> NetworkInputs:
    """Return some of the lists, cut or padded to n_items."""
    chosen = torch.tensor(index, dtype=torch.long)
    extra = max(0, n_items - len(inputs.dense))

    def resized(values: Tensor, fill: float) -> Tensor:
        more = values.new_full((extra, *values.shape[1:]), fill)
        return torch.cat([values, more])[:n_items, chosen]

    return NetworkInputs(
        resized(inputs.dense, -7.0),
        {name: resized(codes, 1) for name, codes in inputs.categorical.items()},
        inputs.context[chosen],
        {name: codes[chosen] for name, codes in inputs.context_categorical.items()},
        resized(inputs.mask.t(), False).t(),
    )


def one_list(inputs: NetworkInputs, number: int) -> OneList:
    """Return one list of a batch, in float64 and without padding."""
    length = int(inputs.mask[number].sum())
    return OneList(
        inputs.dense[:length, number].double(),
        [codes[:length, number] for codes in inputs.categorical.values()],
        inputs.context[number].double(),
        [codes[number] for codes in inputs.context_categorical.values()],
    )


def random_slates(lengths: Sequence[int], n_slots: int, seed: int) -> Tensor:
    """Return (B, K) a random permutation of each list, cut at K slots."""
    generator = torch.Generator().manual_seed(seed)
    slates = torch.full((len(lengths), n_slots), -1)
    for number, length in enumerate(lengths):
        order = torch.randperm(length, generator=generator)[:n_slots]
        slates[number, : len(order)] = order
    return slates


def placed_items(slate: Tensor) -> list[int]:
    """Return the items of one slate (K,)."""
    return [item for item in slate.tolist() if item >= 0]
