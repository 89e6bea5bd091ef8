"""A model as one ONNX file: raw columns in, slates and log-probabilities out, for any number of lists, items and slots.

The graph computes what `model.network` says, for greedy slates; it holds the normalisation of the columns, the encoder,
and the decoder as a loop. The file is written only after its slates were found equal to the network's (`parity`).

Inputs, for B lists of at most N items: `features` (B, N, F) float32, raw, NaN where a value is missing; `lengths` (B,)
int64; `k` () int64; and if the model reads such columns `context` (B, C) float32, just as raw, and codes from the
vocabularies, int64: `item_codes.NAME` (B, N) and `list_codes.NAME` (B,). Outputs: `slates` (B, K) int64, -1 where
nothing is placed, and `log_probabilities` (B, K). What stands in the place of padding does not matter.

Each kind of component has a function that writes its part of the graph, in one of the dicts `CELL_GRAPHS`,
`ENCODER_GRAPHS`, `INTERACTION_GRAPHS` and `DECODER_GRAPHS`; a network with any other cannot be exported.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from seq2slate.atomic import atomic_path
from seq2slate.data.features import NumberColumns
from seq2slate.data.lists import Batch, FloatArray
from seq2slate.errors import DataError, UsageError
from seq2slate.model.backends.backend import NetworkBackend, Placed
from seq2slate.model.backends.onnx import FEATURES_NOTE, ITEM_CODES, LIST_CODES, WEIGHTS_NOTE, OnnxRanker
from seq2slate.model.backends.onnx_graph import BOOL, FLOAT, INTEGER, INTEGER_32, Graph, Value
from seq2slate.model.backends.onnx_pairwise import pairwise_terms
from seq2slate.model.backends.parity import Parity, compare
from seq2slate.model.decoders import Decoder, OneStep, Sequential
from seq2slate.model.encoders import LAST_POSITION, AttentionBlock, AttentionEncoder, Encoder, RecurrentEncoder
from seq2slate.model.interactions import PARAM_SCALE, Interaction, NoInteraction, PairwiseInteraction
from seq2slate.model.layers import GruLayer, LstmLayer, RecurrentLayer
from seq2slate.model.network import SlateNetwork
from seq2slate.model.slate_model import SlateModel, load_saved_network
from seq2slate.saving import MANIFEST, WEIGHTS_FILE, add_file

Array: TypeAlias = npt.NDArray[np.float32]
States: TypeAlias = list[list[Value]]
"""Layer by layer: (h, c) of an LSTM or (h,) of a GRU, each (B, D)."""
Collected: TypeAlias = list[tuple[Value, int]]
"""What a round of a loop adds to the results, each with its kind."""


def export_onnx(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> Parity:
    """Write the model of a folder as an ONNX file, whole or not at all, after comparing it with the network.

    A file in the folder itself is in its manifest from the same instant on.

    Args:
        folder: A trained network.
        out: The file to write.

    Returns:
        What the comparison found.

    Raises:
        UsageError: The folder holds another ranker, or a network that has no ONNX graph; or the file would be in the
            folder of another model, or in the place of a file of this one.
        DataError: The file would give other slates than the network: nothing was written.
    """
    saved, target = load_saved_network(folder), Path(out)
    is_inside = os.path.realpath(target.parent) == os.path.realpath(folder)
    if not is_inside and (target.parent / MANIFEST).exists():
        raise UsageError(f"{target.parent} holds another model: choose another folder")
    model = SlateModel.from_saved(saved)
    reason = OnnxBackend.why_not(model.network)
    if reason is not None:
        raise UsageError(f"{folder} cannot be exported: {reason}")
    content = onnx_model(model, weights_sha256=saved.checksums[WEIGHTS_FILE])
    try:
        parity = compare(model, OnnxRanker(content))
    except DataError as error:
        raise DataError(f"{error}: nothing was written") from error
    if is_inside:
        add_file(folder, target.name, content, made_from=saved)
    else:
        with atomic_path(out) as partial:
            partial.write_bytes(content)
    return parity


def onnx_model(model: SlateModel, *, weights_sha256: str = "") -> bytes:
    """Return the content of the file, with what `OnnxRanker` needs to know in its notes."""
    notes = {FEATURES_NOTE: model.transform.to_json(), WEIGHTS_NOTE: weights_sha256}
    return _NetworkGraph(model).written(notes)


class OnnxBackend(NetworkBackend):
    """A network in ONNX Runtime, as an exported file would run it: greedy slates, in float32 on the CPU."""

    samples = False

    def __init__(self, model: SlateModel) -> None:
        super().__init__(model)
        self._ranker = OnnxRanker(onnx_model(model))

    @classmethod
    def why_not(cls, network: SlateNetwork) -> str | None:
        """Return which part of a network has no ONNX graph; None if all have one."""
        cells = network.decoder.recurrent_layers
        if isinstance(network.encoder, RecurrentEncoder):
            cells = [*cells, *(layer for directions in network.encoder.directions for layer in directions)]
        parts: list[tuple[nn.Module, Mapping[Any, object]]] = [
            (network.encoder, ENCODER_GRAPHS),
            (network.decoder, DECODER_GRAPHS),
            (network.interaction, INTERACTION_GRAPHS),
            *((cell, CELL_GRAPHS) for cell in cells),
        ]
        missing = [type(part).__name__ for part, graphs in parts if type(part) not in graphs]
        if missing:
            return f"there is no ONNX graph for {missing[0]}"
        if network.v.dtype != torch.float32:
            return f"the ONNX graph is in float32, and the network in {str(network.v.dtype).removeprefix('torch.')}"
        return None

    def place(self, batch: Batch, steps: int, draws: FloatArray | None, sharpness: float) -> Placed:  # noqa: D102
        return self._ranker.slates(batch, max(1, steps))


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
        network = self.network
        items = self.items()  # (B, N, I)
        memory, states = ENCODER_GRAPHS[type(network.encoder)](self, network.encoder, items)
        bias, added = INTERACTION_GRAPHS[type(network.interaction)](self, network.interaction, items, self.prior())
        if network.strength != 1:
            bias, added = self._mixed_with_base_order(bias, added)
        encoded = _EncodedGraph(items, memory @ _array(network.w_enc), states, bias, added)
        slates, logs = DECODER_GRAPHS[type(network.decoder)](self, network.decoder, encoded)
        axes = ["lists", "slots"]
        outputs = {"slates": (slates, INTEGER, axes), "log_probabilities": (logs, FLOAT, axes)}
        return self.graph.model(outputs, notes)

    def items(self) -> Value:
        """Return (B, N, I): dense columns, embeddings, columns of the list and the position, side by side."""
        graph, network, transform = self.graph, self.network, self.transform
        there = self.mask.unsqueeze(2)
        columns = [_normalised(graph.where(there, self.features, 0.0), transform.dense)]
        for name, table in zip(transform.categorical, network.embeddings, strict=True):
            codes = graph.where(self.mask, graph.input(ITEM_CODES + name, INTEGER, ["lists", "items"]), 0)
            columns.append(self._table(table).op("Gather", codes))
        of_lists = []
        if transform.context.names:
            context = graph.input("context", FLOAT, ["lists", len(transform.context.names)])
            of_lists.append(_normalised(context, transform.context))
        for name, table in zip(transform.context_categorical, network.context_embeddings, strict=True):
            codes = graph.input(LIST_CODES + name, INTEGER, ["lists"])
            of_lists.append(self._table(table).op("Gather", codes))
        columns += [column.unsqueeze(1) + self.zeros.unsqueeze(2) for column in of_lists]
        if network.config.position_input:
            position = (self.positions + 1).cast(FLOAT).op("Log")
            columns.append((self.zeros + position).unsqueeze(2))
        return graph.concat(columns, axis=2)

    def _table(self, embedding: nn.Module) -> Value:
        assert isinstance(embedding, nn.Embedding), "a categorical column has an embedding"
        return self.graph.constant(_array(embedding.weight))

    def _mixed_with_base_order(self, bias: Value | None, added: Value | None) -> tuple[Value, Value | None]:
        """Return τ times the terms, and (1 - τ) times scores that give the base order."""
        strength = float(self.network.strength)
        base = self.zeros - (self.positions + 1).cast(FLOAT).op("Log") * (1 - strength)
        return base if bias is None else base + bias * strength, None if added is None else added * strength

    def prior(self) -> Value | None:
        """Return (B, N) the prior of each base position, if there is one."""
        if self.network.prior is None:
            return None
        values = _array(self.network.prior * PARAM_SCALE)
        places = self.positions.op("Min", len(values) - 1)
        return self.zeros + self.graph.constant(values).op("Gather", places)

    def pointer_scores(self, keys: Value, output: Value) -> Value:
        """Return (B, N) v^T tanh(W_enc e_i + W_dec d) for the decoder's output d (B, D)."""
        query = output @ _array(self.network.w_dec)
        return ((keys + query.unsqueeze(1)).tanh() @ _array(self.network.strength * self.network.v)[:, None]).squeeze(2)

    def best(self, step: Value, left: Value, scores: Value) -> tuple[Value, Collected]:
        """Return the best item (B,) that is left, and what the slates and log-probabilities hold of it."""
        scores = self.graph.where(left, scores, np.array(-np.inf, np.float32))
        item = scores.op("ArgMax", axis=1, keepdims=0)
        log = scores.op("LogSoftmax", axis=1).row_of_each(item)
        there = step < self.lengths
        return item, [(self.graph.where(there, item, -1), INTEGER), (self.graph.where(there, log, 0.0), FLOAT)]

    def without(self, left: Value, item: Value) -> Value:
        """Return left (B, N) without the item (B,) of each list."""
        return left & self.positions.unsqueeze(0).op("Equal", item.unsqueeze(1)).op("Not")


@dataclass(frozen=True)
class _EncodedGraph:
    """What a decoder reads."""

    items: Value
    """(B, N, I)"""
    keys: Value
    """(B, N, D) W_enc e_i"""
    states: States
    bias: Value | None
    """(B, N)"""
    added: Value | None
    """(B, N, N)"""


# Recurrent layers


@dataclass(frozen=True)
class _CellGraph:
    """How a recurrent layer is written in ONNX."""

    operator: str
    """That reads a whole list."""
    n_states: int
    weights: Callable[[Any], list[Array]]
    """For the operator, with its order of the gates."""
    options: Mapping[str, int]
    """Of the operator."""
    read: Callable[[Any, Value], Value]
    """What the gates take from the input, for single steps."""
    step: Callable[[Any, Value, list[Value]], list[Value]]
    """The next state of a layer, from what its gates take from the input, and the state before."""
    start: Callable[[Value], list[Value]]
    """A first state made of a vector (B, D)."""


def _lstm_weights(layer: LstmLayer) -> list[Array]:
    w, r, b = (
        _gates(weights, 4, (0, 3, 1, 2))  # from i, f, g, o to i, o, f, g
        for weights in (layer.weight_input.t(), layer.weight_hidden.t(), layer.bias)
    )
    return [w[None], r[None], np.concatenate([b, np.zeros_like(b)])[None]]


def _lstm_step(layer: LstmLayer, gates: Value, state: list[Value]) -> list[Value]:
    gates = gates + state[0] @ _array(layer.weight_hidden)
    i, f, g, o = _parts(gates, layer.n_units, 4)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return [o.sigmoid() * c.tanh(), c]


def _gru_weights(layer: GruLayer) -> list[Array]:
    cell = layer.cell
    w, r, b_input, b_hidden = (
        _gates(weights, 3, (1, 0, 2))  # from reset, update, new to update, reset, new
        for weights in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    )
    return [w[None], r[None], np.concatenate([b_input, b_hidden])[None]]


def _gru_step(layer: GruLayer, gates: Value, state: list[Value]) -> list[Value]:
    (h,) = state
    hidden = h @ _array(layer.cell.weight_hh.t()) + _array(layer.cell.bias_hh)
    from_x, from_h = (_parts(value, layer.n_units, 3) for value in (gates, hidden))
    reset, update = ((a + b).sigmoid() for a, b in zip(from_x[:2], from_h[:2], strict=True))
    new = (from_x[2] + reset * from_h[2]).tanh()
    return [new + update * (h - new)]


def _gates(weights: Tensor, n_gates: int, order: tuple[int, ...]) -> Array:
    """Return weights, gate under gate along the first axis, with the gates in another order."""
    values = _array(weights)
    return np.ascontiguousarray(values.reshape(n_gates, -1, *values.shape[1:])[list(order)].reshape(values.shape))


def _parts(gates: Value, width: int, count: int) -> list[Value]:
    return [gates.slice(part * width, (part + 1) * width, axis=1) for part in range(count)]


CELL_GRAPHS: dict[type[RecurrentLayer], _CellGraph] = {
    LstmLayer: _CellGraph(
        operator="LSTM",
        n_states=2,
        weights=_lstm_weights,
        options={},
        read=lambda layer, x: x @ _array(layer.weight_input) + _array(layer.bias),
        step=_lstm_step,
        start=lambda memory: [memory.tanh(), memory],
    ),
    GruLayer: _CellGraph(
        operator="GRU",
        n_states=1,
        weights=_gru_weights,
        options={"linear_before_reset": 1},
        read=lambda layer, x: x @ _array(layer.cell.weight_ih.t()) + _array(layer.cell.bias_ih),
        step=_gru_step,
        start=lambda memory: [memory.tanh()],
    ),
}


# Encoders


def _recurrent(net: _NetworkGraph, encoder: RecurrentEncoder, items: Value) -> tuple[Value, States]:
    """Read with the recurrent operators of ONNX; in reverse they begin at the end of each list, as the network."""
    memory, states = items.transpose(1, 0, 2), []  # (N, B, I)
    for layer in encoder.directions:
        parts = [
            _scan(net, direction, memory, backwards)
            for direction, backwards in zip(layer, encoder.backwards, strict=True)
        ]
        memory = net.graph.concat([outputs for outputs, _ in parts], axis=2)
        ends = zip(*(end for _, end in parts), strict=True)
        states.append([net.graph.concat(list(end), axis=1) for end in ends])
    return memory.transpose(1, 0, 2), states


def _scan(net: _NetworkGraph, layer: RecurrentLayer, x: Value, backwards: bool) -> tuple[Value, list[Value]]:
    """Return the outputs (N, B, D) of x (N, B, I), and the state after the last item read."""
    cell = CELL_GRAPHS[type(layer)]
    direction = {"direction": "reverse" if backwards else "forward", "hidden_size": layer.n_units}
    weights, lengths = cell.weights(layer), net.lengths.cast(INTEGER_32)
    outputs, *ends = net.graph.ops(cell.operator, 1 + cell.n_states, x, *weights, lengths, **direction, **cell.options)
    return outputs.squeeze(1), [end.squeeze(0) for end in ends]


def _attention(net: _NetworkGraph, encoder: AttentionEncoder, items: Value) -> tuple[Value, States]:
    memory = _linear(items, encoder.project)
    if encoder.positions is not None:
        places = net.positions.op("Min", LAST_POSITION)
        memory = memory + net.graph.constant(_array(encoder.positions)).op("Gather", places)
    for block in encoder.blocks:
        assert isinstance(block, AttentionBlock), "an encoder of self-attention is made of blocks"
        memory = _attention_block(net, memory, block)
    shares = net.mask.cast(FLOAT) / net.lengths.op("Max", 1).cast(FLOAT).unsqueeze(1)
    mean = (shares.unsqueeze(1) @ memory).squeeze(1)  # (B, D); 0 for an empty list
    return memory, [CELL_GRAPHS[encoder.cell].start(mean)]


def _attention_block(net: _NetworkGraph, x: Value, block: AttentionBlock) -> Value:
    hidden = block.join.in_features
    width = hidden // block.heads
    parts = _linear(x, block.queries_keys_values).reshape(0, 0, 3, block.heads, width).transpose(2, 0, 3, 1, 4)
    queries, keys, values = (parts.op("Gather", part) for part in range(3))  # (B, heads, N, D / heads)
    scores = queries @ keys.transpose(0, 1, 3, 2) * (1 / math.sqrt(width))
    scores = net.graph.where(net.mask.unsqueeze(1, 2), scores, -1e30)  # finite: an empty list has nothing else
    found = (scores.op("Softmax", axis=3) @ values).transpose(0, 2, 1, 3).reshape(0, 0, hidden)
    x = _layer_norm(x + _linear(found, block.join), block.attended_norm)
    return _layer_norm(x + _linear(_linear(x, block.widen).op("Relu"), block.narrow), block.norm)


def _linear(x: Value, layer: nn.Linear) -> Value:
    return x @ _array(layer.weight.t()) + _array(layer.bias)


def _layer_norm(x: Value, norm: nn.LayerNorm) -> Value:
    return x.op("LayerNormalization", _array(norm.weight), _array(norm.bias), axis=-1, epsilon=norm.eps)


ENCODER_GRAPHS: dict[type[Encoder], Callable[[_NetworkGraph, Any, Value], tuple[Value, States]]] = {
    RecurrentEncoder: _recurrent,
    AttentionEncoder: _attention,
}
"""From items (B, N, I) to the memory (B, N, D) and the decoder's first state."""


# Interactions


INTERACTION_GRAPHS: dict[
    type[Interaction], Callable[[_NetworkGraph, Any, Value, Value | None], tuple[Value | None, Value | None]]
] = {
    NoInteraction: lambda _net, _interaction, _items, prior: (prior, None),
    PairwiseInteraction: pairwise_terms,
}
"""What the scores start with (B, N), and what a placed item adds to the others (B, N, N), if anything."""


# Decoders


def _sequential(net: _NetworkGraph, decoder: Sequential, encoded: _EncodedGraph) -> tuple[Value, Value]:
    first = decoder.recurrent_layers[0]
    reads = CELL_GRAPHS[type(first)].read(first, encoded.items)  # (B, N, gates): what the decoder reads of an item

    def place(step: Value, carried: list[Value]) -> tuple[list[Value], Collected]:
        left, read, bias, *state = carried
        output, state = _stepped(decoder, read, state)
        item, collected = net.best(step, left, net.pointer_scores(encoded.keys, output) + bias)
        if encoded.added is not None:
            bias = bias + encoded.added.row_of_each(item)
        return [net.without(left, item), reads.row_of_each(item), bias, *state], collected

    bias = net.zeros if encoded.bias is None else encoded.bias
    start = [(net.mask, BOOL), *((value, FLOAT) for value in (_read_go(net, decoder), bias, *_flat(encoded.states)))]
    slates, logs = net.graph.loop(net.k.op("Min", net.n_items), start, place)
    return slates.transpose(1, 0), logs.transpose(1, 0)


def _one_step(net: _NetworkGraph, decoder: OneStep, encoded: _EncodedGraph) -> tuple[Value, Value]:
    """Take the best item that is left by the first scores, again and again: that sorts them."""
    output, _ = _stepped(decoder, _read_go(net, decoder), _flat(encoded.states))
    scores = net.pointer_scores(encoded.keys, output) + (net.zeros if encoded.bias is None else encoded.bias)

    def place(step: Value, carried: list[Value]) -> tuple[list[Value], Collected]:
        (left,) = carried
        item, collected = net.best(step, left, scores)
        return [net.without(left, item)], collected

    slates, logs = net.graph.loop(net.k.op("Min", net.n_items), [(net.mask, BOOL)], place)
    return slates.transpose(1, 0), logs.transpose(1, 0)


def _read_go(net: _NetworkGraph, decoder: Decoder) -> Value:
    """Return (B, gates) what the first layer takes from `go`."""
    first = decoder.recurrent_layers[0]
    go = CELL_GRAPHS[type(first)].read(first, net.graph.constant(_array(net.network.go)).unsqueeze(0))
    return net.lengths.cast(FLOAT).unsqueeze(1) * 0.0 + go


def _stepped(decoder: Decoder, gates: Value, state: list[Value]) -> tuple[Value, list[Value]]:
    """Return the decoder's output (B, D) and its next state; gates are what the first layer takes from its input."""
    after: list[Value] = []
    for depth, layer in enumerate(decoder.recurrent_layers):
        cell = CELL_GRAPHS[type(layer)]
        if depth > 0:
            gates = cell.read(layer, after[-cell.n_states])
        after += cell.step(layer, gates, state[depth * cell.n_states : (depth + 1) * cell.n_states])
    return after[-cell.n_states], after


def _flat(states: States) -> list[Value]:
    return [part for state in states for part in state]


DECODER_GRAPHS: dict[type[Decoder], Callable[[_NetworkGraph, Any, _EncodedGraph], tuple[Value, Value]]] = {
    Sequential: _sequential,
    OneStep: _one_step,
}
"""The slates and log-probabilities (B, K)."""


# Numbers


def _normalised(x: Value, columns: NumberColumns) -> Value:
    """Return the numbers and indicators as `NumberColumns.apply` does."""
    if columns.missing == "refuse":
        return _scaled(x, columns)
    graph, is_missing = x.graph, x.op("IsNaN")
    imputed = graph.where(is_missing, columns.imputed, _scaled(graph.where(is_missing, 0.0, x), columns))
    if not columns.indicators:
        return imputed
    indicators = is_missing.cast(FLOAT).op("Gather", columns.indicator_places, axis=-1)
    return graph.concat([imputed, indicators], axis=-1)


def _scaled(x: Value, columns: NumberColumns) -> Value:
    if columns.scaling == "none":
        return x
    if columns.scaling == "signed-log":
        x = x.op("Abs").log1p() * x.op("Sign")
    return ((x - columns.mean) * columns.inverse_std).op("Clip", -columns.clip, columns.clip)


def _array(weights: Tensor) -> Array:
    values: Array = weights.detach().cpu().numpy()
    return values
