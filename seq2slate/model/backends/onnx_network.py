"""A model as one ONNX graph: raw columns in, slates and log-probabilities out, for any number of lists, items, slots.

The graph says what `model.network`, `model.resemblance` and `model.decoding` say, for the best slate; it holds the
normalisation, the encoder, and the decoder as a loop. Both decoders are the same loop: the one-step decoder takes the
scores of the first step again and again, and the best item that is left is the next of the sorted ones.

Inputs, for B lists of at most N items: `features` (B, N, F) float32, raw; `lengths` (B,) int64; `k` () int64; and if
the model reads such columns `context` (B, C) float32, and codes from the vocabularies, int64: `item_codes.NAME` (B, N)
and `list_codes.NAME` (B,). Outputs: `slates` (B, K) int64, -1 where nothing is placed, and `log_probabilities` (B, K).

What stands in the place of padding does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from seq2slate.data.features import NumberColumns
from seq2slate.model.attention import LAST_POSITION, AttentionBlock, AttentionEncoder
from seq2slate.model.backends.kernels import NEARLY_ONE
from seq2slate.model.backends.onnx_graph import BOOL, FLOAT, INTEGER, INTEGER_32, Graph, Value
from seq2slate.model.backends.onnx_ranker import ITEM_CODES, LIST_CODES
from seq2slate.model.interactions import LEAST, PARAM_SCALE, STRONGEST, Resemblance
from seq2slate.model.recurrent import GruLayer, LstmLayer, RecurrentLayer
from seq2slate.model.slate_model import SlateModel

States: TypeAlias = list[list[Value]]
"""Layer by layer: (h, c) of an LSTM or (h,) of a GRU, each (B, D)."""


def onnx_model(model: SlateModel, notes: Mapping[str, str]) -> bytes:
    """Return the content of the file, with notes for whoever opens it."""
    return _NetworkGraph(model).written(notes)


class _NetworkGraph:
    """The graph while it is being written."""

    def __init__(self, model: SlateModel) -> None:
        self.network, self.transform = model.network, model.transform
        self.graph = Graph()
        n_features = len(self.transform.dense.names)
        self.features = self.graph.input("features", FLOAT, ["lists", "items", n_features])
        self.lengths = self.graph.input("lengths", INTEGER, ["lists"])
        self.k = self.graph.input("k", INTEGER, [])
        self.n_items = self.features.size(1)
        self.positions = self.graph.op("Range", 0, self.n_items, 1)  # (N,)
        self.mask = self.positions < self.lengths.unsqueeze(1)  # (B, N)
        self.zeros = self.mask.cast(FLOAT) * 0.0  # (B, N): what is added to it takes its shape

    def written(self, notes: Mapping[str, str]) -> bytes:
        items = self._items()  # (B, N, I)
        memory, states = self._encoded(items)
        keys = memory @ _array(self.network.w_enc)
        bias, interaction = self._terms(items)
        slates, logs = self._decoded(items, keys, states, bias, interaction)
        axes = ["lists", "slots"]
        outputs = {"slates": (slates, INTEGER, axes), "log_probabilities": (logs, FLOAT, axes)}
        return self.graph.model(outputs, notes)

    # What the network reads

    def _items(self) -> Value:
        """Return (B, N, I): dense columns, embeddings, and what is known of the list, side by side."""
        graph, network, transform = self.graph, self.network, self.transform
        there = self.mask.unsqueeze(2)
        columns = [_scaled(graph.where(there, self.features, 0.0), transform.dense)]
        for name, table in zip(transform.categorical, network.embeddings, strict=True):
            codes = graph.where(self.mask, graph.input(ITEM_CODES + name, INTEGER, ["lists", "items"]), 0)
            columns.append(self._table(table).op("Gather", codes))
        of_lists = []
        if transform.context.names:
            context = graph.input("context", FLOAT, ["lists", len(transform.context.names)])
            of_lists.append(_scaled(context, transform.context))
        for name, table in zip(transform.context_categorical, network.context_embeddings, strict=True):
            codes = graph.input(LIST_CODES + name, INTEGER, ["lists"])
            of_lists.append(self._table(table).op("Gather", codes))
        columns += [column.unsqueeze(1) + self.zeros.unsqueeze(2) for column in of_lists]
        if network.config.position_input:
            position = (self.positions + 1).cast(FLOAT).op("Log")
            columns.append((self.zeros + position).unsqueeze(2))
        return graph.concat(columns, axis=2)

    def _table(self, embedding: nn.Module) -> Value:
        assert isinstance(embedding, nn.Embedding), "text columns have nothing else"
        return self.graph.constant(_array(embedding.weight))

    # Encoders

    def _encoded(self, items: Value) -> tuple[Value, States]:
        """Return the memory (B, N, D) and the decoder's first state."""
        encoder = self.network.encoder
        if isinstance(encoder, AttentionEncoder):
            memory = self._attended(items, encoder)
            mean = self._mean(memory)
            return memory, [[mean.tanh(), mean] if self.network.config.cell == "lstm" else [mean.tanh()]]
        return self._read_in_steps(items)

    def _read_in_steps(self, items: Value) -> tuple[Value, States]:
        """Read with the recurrent operators of ONNX; in reverse they begin at the end of each list, as the network."""
        first = self.network.config.reversed_input
        memory, states = items.transpose(1, 0, 2), []  # (N, B, I)
        for layer in self.network.encoder_layers:
            ways = zip(layer, (first, not first), strict=False)
            parts = [self._scan(direction, memory, backwards) for direction, backwards in ways]
            memory = self.graph.concat([outputs for outputs, _ in parts], axis=2)
            ends = zip(*(end for _, end in parts), strict=True)
            states.append([self.graph.concat(list(end), axis=1) for end in ends])
        return memory.transpose(1, 0, 2), states

    def _scan(self, layer: RecurrentLayer, x: Value, backwards: bool) -> tuple[Value, list[Value]]:
        """Return the outputs (N, B, D) of x (N, B, I), and the state after the last item read."""
        kind, n_states, weights, options = _operator_of(layer)
        direction = {"direction": "reverse" if backwards else "forward", "hidden_size": layer.n_units}
        lengths = self.lengths.cast(INTEGER_32)
        outputs, *ends = self.graph.ops(kind, 1 + n_states, x, *weights, lengths, **direction, **options)
        return outputs.squeeze(1), [end.squeeze(0) for end in ends]

    def _attended(self, items: Value, encoder: AttentionEncoder) -> Value:
        memory = _linear(items, encoder.project)
        if encoder.positions is not None:
            places = self.positions.op("Min", LAST_POSITION)
            memory = memory + self.graph.constant(_array(encoder.positions)).op("Gather", places)
        for block in encoder.blocks:
            assert isinstance(block, AttentionBlock), "an encoder is made of them"
            memory = self._attention_block(memory, block)
        return memory

    def _attention_block(self, x: Value, block: AttentionBlock) -> Value:
        hidden = block.join.in_features
        width = hidden // block.heads
        parts = _linear(x, block.queries_keys_values).reshape(0, 0, 3, block.heads, width).transpose(2, 0, 3, 1, 4)
        queries, keys, values = (parts.op("Gather", part) for part in range(3))  # (B, heads, N, D / heads)
        scores = queries @ keys.transpose(0, 1, 3, 2) * (1 / math.sqrt(width))
        scores = self.graph.where(self.mask.unsqueeze(1, 2), scores, -1e30)  # finite: an empty list has nothing else
        found = (scores.op("Softmax", axis=3) @ values).transpose(0, 2, 1, 3).reshape(0, 0, hidden)
        x = _normed(x + _linear(found, block.join), block.attended_norm)
        return _normed(x + _linear(_linear(x, block.widen).op("Relu"), block.narrow), block.norm)

    def _mean(self, memory: Value) -> Value:
        """Return (B, D) the mean of memory (B, N, D) over the items of each list; 0 for an empty list."""
        shares = self.mask.cast(FLOAT) / self.lengths.op("Max", 1).cast(FLOAT).unsqueeze(1)
        return (shares.unsqueeze(1) @ memory).squeeze(1)

    # Terms of the score beyond the pointer

    def _terms(self, items: Value) -> tuple[Value | None, Value | None]:
        """Return what the scores start with (B, N), and what a placed item adds to the others (B, N, N), if any."""
        prior, resemblance = None, self.network.resemblance
        if self.network.prior is not None:
            values = _array(self.network.prior * PARAM_SCALE)
            places = self.positions.op("Min", len(values) - 1)
            prior = self.zeros + self.graph.constant(values).op("Gather", places)
        if resemblance is None:
            return prior, None
        similar = self._similar(self.graph.where(self.mask.unsqueeze(2), items, 0.0), resemblance)
        number = {name: _number(value) for name, value in resemblance.numbers.items()}
        appeal = (items @ _array(resemblance.relevance * PARAM_SCALE)[:, None]).squeeze(2) + number["offset"]
        if prior is not None:
            appeal = appeal + prior
        clicks = self._clicks(_sigmoid(appeal), _sigmoid(appeal + number["effect_above"]), similar)
        added = _log1p(similar * clicks.unsqueeze(2) * math.expm1(max(number["effect_placed"], -STRONGEST)))
        return clicks.op("Max", LEAST).op("Log"), added

    def _similar(self, items: Value, resemblance: Resemblance) -> Value:
        """Return (B, N, N) how similar each pair is; 0 for an item and itself, and for padding."""
        number = {name: _number(value) for name, value in resemblance.numbers.items()}
        there = self.mask.unsqueeze(2) & self.mask.unsqueeze(1)
        other = self.positions.unsqueeze(0).op("Equal", self.positions.unsqueeze(1)).op("Not")
        pairs = there & other
        closeness = number["threshold"] - self._distances(items, pairs, resemblance)
        return (closeness * number["sharpness"]).sigmoid() * pairs.cast(FLOAT)

    def _distances(self, items: Value, pairs: Value, resemblance: Resemblance) -> Value:
        """Return the squared distances (B, N, N), with a median of 1 over the pairs of each list."""
        bend = torch.sigmoid(resemblance.bends * PARAM_SCALE)
        weights = torch.exp(resemblance.log_weights * PARAM_SCALE) / bend
        places = _expm1(items * _array(bend)) * _array(weights)
        places = places - places.slice(0, 1, axis=1)
        squares = (places * places).op("ReduceSum", np.array([2]), keepdims=0)
        products = places @ places.transpose(0, 2, 1)
        distances = (squares.unsqueeze(2) + squares.unsqueeze(1) - products * 2.0).op("Max", 0.0)
        return distances / self._medians(distances, pairs).op("Max", LEAST).unsqueeze(1, 2)

    def _medians(self, distances: Value, pairs: Value) -> Value:
        """Return (B,) the lower median over the pairs of each list, every pair counted twice; 1 where there is none."""
        values = self.graph.where(pairs, distances, np.array(np.inf, np.float32)).reshape(0, -1)
        counts = self.lengths * (self.lengths - 1)
        half = counts / 2
        most = half.op("ReduceMax", keepdims=1).op("Max", 1)
        smallest, _ = self.graph.ops("TopK", 2, values, most, largest=0, axis=1)
        median = smallest.row_of_each((half - 1).op("Max", 0))
        return self.graph.where(self.graph.constant(0) < counts, median, 1.0)

    def _clicks(self, alone: Value, nearby: Value, similar: Value) -> Value:
        """Return (B, N) the probability of each click, for a user who scans from the top."""
        below = similar.op("Trilu", 1, upper=1)

        def look(item: Value, carried: list[Value]) -> tuple[list[Value], list[tuple[Value, int]]]:
            (far,) = carried
            here_far, here_alone, here_nearby = (value.op("Gather", item, axis=1) for value in (far, alone, nearby))
            click = here_nearby + here_far * (here_alone - here_nearby)
            both = click.unsqueeze(1) * below.op("Gather", item, axis=1)
            return [far * (1.0 - both.op("Min", NEARLY_ONE))], [(click, FLOAT)]

        (clicks,) = self.graph.loop(self.n_items, [(self.zeros + 1.0, FLOAT)], look)
        return clicks.transpose(1, 0)

    # Decoding

    def _decoded(
        self, items: Value, keys: Value, states: States, bias: Value | None, interaction: Value | None
    ) -> tuple[Value, Value]:
        """Return the slates and log-probabilities (B, K)."""
        network, graph = self.network, self.graph
        first = _layer_input(network.decoder_layers[0], items)  # (B, N, gates): the decoder reads these, item by item
        go = _layer_input(network.decoder_layers[0], graph.constant(_array(network.go)).unsqueeze(0))
        reads = self.lengths.cast(FLOAT).unsqueeze(1) * 0.0 + go  # (B, gates)
        bias = self.zeros if bias is None else bias
        flat = [part for state in states for part in state]
        at_once = network.config.decoder == "one-step"
        first_scores = self._scores(keys, self._stepped(reads, flat)[0]) + bias if at_once else None

        def place(step: Value, carried: list[Value]) -> tuple[list[Value], list[tuple[Value, int]]]:
            left, *rest = carried
            if first_scores is not None:
                item, collected = self._chosen(step, left, first_scores)
                return [self._without(left, item)], collected
            reads, so_far, *parts = rest
            output, parts = self._stepped(reads, parts)
            item, collected = self._chosen(step, left, self._scores(keys, output) + so_far)
            if interaction is not None:
                so_far = so_far + interaction.row_of_each(item)
            return [self._without(left, item), first.row_of_each(item), so_far, *parts], collected

        start = [(self.mask, BOOL)]
        if not at_once:
            start += [(value, FLOAT) for value in (reads, bias, *flat)]
        slates, logs = graph.loop(self.k.op("Min", self.n_items), start, place)
        return slates.transpose(1, 0), logs.transpose(1, 0)

    def _stepped(self, gates: Value, parts: list[Value]) -> tuple[Value, list[Value]]:
        """Return the decoder's output (B, D) and its next state; gates are what the first layer makes of its input."""
        after: list[Value] = []
        width = len(parts) // len(self.network.decoder_layers)  # states of a layer
        for depth, layer in enumerate(self.network.decoder_layers):
            if depth > 0:
                gates = _layer_input(layer, after[-width])
            after += _layer_step(layer, gates, parts[depth * width : (depth + 1) * width])
        return after[-width], after

    def _scores(self, keys: Value, output: Value) -> Value:
        query = output @ _array(self.network.w_dec)
        return ((keys + query.unsqueeze(1)).tanh() @ _array(self.network.v)[:, None]).squeeze(2)

    def _chosen(self, step: Value, left: Value, scores: Value) -> tuple[Value, list[tuple[Value, int]]]:
        """Return the best item (B,) that is left, and what the slates and log-probabilities hold of it."""
        scores = self.graph.where(left, scores, np.array(-np.inf, np.float32))
        item = scores.op("ArgMax", axis=1, keepdims=0)
        log = scores.op("LogSoftmax", axis=1).row_of_each(item)
        there = step < self.lengths
        return item, [(self.graph.where(there, item, -1), INTEGER), (self.graph.where(there, log, 0.0), FLOAT)]

    def _without(self, left: Value, item: Value) -> Value:
        return left & self.positions.unsqueeze(0).op("Equal", item.unsqueeze(1)).op("Not")


# Numbers


def _scaled(x: Value, columns: NumberColumns) -> Value:
    """Return the numbers as `NumberColumns.apply` scales them."""
    if columns.scaling == "none":
        return x
    if columns.scaling == "signed-log":
        x = _log1p(x.op("Abs")) * x.op("Sign")
    return ((x - columns.mean) * columns.inverse_std).op("Clip", -columns.clip, columns.clip)


def _log1p(x: Value) -> Value:
    """Return log(1 + x), right for small x: u = 1 + x is rounded, and x log(u) / (u - 1) makes up for it."""
    u = x + 1.0
    rounded = u - 1.0
    is_nothing = rounded.op("Equal", 0.0)
    return x.graph.where(is_nothing, x, x * u.op("Log") / x.graph.where(is_nothing, 1.0, rounded))


def _sigmoid(x: Value) -> Value:
    """Return the logistic function with all its digits where it is small; the operator is right to within 1e-7 only."""
    return ((x * -1.0).op("Exp") + 1.0).op("Reciprocal")


def _expm1(x: Value) -> Value:
    """Return e^x - 1, right for small x."""
    return (x * 0.5).tanh() * (x.op("Exp") + 1.0)


def _array(weights: Tensor) -> npt.NDArray[np.float32]:
    values: npt.NDArray[np.float32] = weights.detach().cpu().numpy()
    return values


def _number(stored: Tensor) -> float:
    return float(stored.detach() * PARAM_SCALE)


# Layers


def _linear(x: Value, layer: nn.Linear) -> Value:
    return x @ _array(layer.weight.t()) + _array(layer.bias)


def _normed(x: Value, norm: nn.LayerNorm) -> Value:
    return x.op("LayerNormalization", _array(norm.weight), _array(norm.bias), axis=-1, epsilon=norm.eps)


def _operator_of(layer: RecurrentLayer) -> tuple[str, int, list[npt.NDArray[np.float32]], dict[str, int]]:
    """Return ONNX's operator for a layer, how many states it has, and its weights in the order of its gates."""
    if isinstance(layer, LstmLayer):
        w, r, b = (
            _gates(weights, 4, (0, 3, 1, 2))  # from i, f, g, o to i, o, f, g
            for weights in (layer.weight_input.t(), layer.weight_hidden.t(), layer.bias)
        )
        return "LSTM", 2, [w[None], r[None], np.concatenate([b, np.zeros_like(b)])[None]], {}
    assert isinstance(layer, GruLayer), "there is no third kind"
    cell = layer.cell
    w, r, b_input, b_hidden = (
        _gates(weights, 3, (1, 0, 2))  # from reset, update, new to update, reset, new
        for weights in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    )
    return "GRU", 1, [w[None], r[None], np.concatenate([b_input, b_hidden])[None]], {"linear_before_reset": 1}


def _gates(weights: Tensor, n_gates: int, order: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return weights, gate under gate along the first axis, with the gates in another order."""
    values = _array(weights)
    return np.ascontiguousarray(values.reshape(n_gates, -1, *values.shape[1:])[list(order)].reshape(values.shape))


def _layer_input(layer: RecurrentLayer, x: Value) -> Value:
    """Return what the gates take from the input."""
    if isinstance(layer, LstmLayer):
        return x @ _array(layer.weight_input) + _array(layer.bias)
    assert isinstance(layer, GruLayer), "there is no third kind"
    return x @ _array(layer.cell.weight_ih.t()) + _array(layer.cell.bias_ih)


def _layer_step(layer: RecurrentLayer, gates: Value, state: list[Value]) -> list[Value]:
    """Return the next state of a layer, with what its gates take from the input."""
    h, width = state[0], layer.n_units
    if isinstance(layer, LstmLayer):
        gates = gates + h @ _array(layer.weight_hidden)
        i, f, g, o = (gates.slice(part * width, (part + 1) * width, axis=1) for part in range(4))
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return [o.sigmoid() * c.tanh(), c]
    assert isinstance(layer, GruLayer), "there is no third kind"
    hidden = h @ _array(layer.cell.weight_hh.t()) + _array(layer.cell.bias_hh)
    from_x, from_h = (
        [value.slice(part * width, (part + 1) * width, axis=1) for part in range(3)] for value in (gates, hidden)
    )
    reset, update = ((a + b).sigmoid() for a, b in zip(from_x[:2], from_h[:2], strict=True))
    new = (from_x[2] + reset * from_h[2]).tanh()
    return [new + update * (h - new)]
