"""The pairwise interaction as a part of an ONNX graph; its formulas are in `model.interactions`.

Distances are sums of squared differences, item by item in a loop, since products would lose the digits of close items.
Places are computed in float64, so that they have all the digits of a float32, and equal items have equal places. A
piecewise linear function of d is written as w_0 + Σ_j (w_j+1 - w_j) clip((d - q_j) / (q_j+1 - q_j), 0, 1) over the
knots q, so that nothing has to be looked up. The largest values are (B, 3, N, N).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from seq2slate.model.backends.onnx_graph import DOUBLE, FLOAT, INTEGER, Graph, Value
from seq2slate.model.interactions import (
    HEAD_SHARPNESS,
    HEAD_WIDTH,
    HEADS,
    KNOTS,
    LARGEST_LOG,
    LEAST,
    LEAST_GAP,
    LEAST_SPREAD,
    MEDIAN,
    PARAM_SCALE,
    SCANNED,
    SHORTEST,
    PairwiseInteraction,
)


class PaddedLists(Protocol):
    """The lists of a graph."""

    graph: Graph
    lengths: Value
    """(B,)"""
    n_items: Value
    """()"""
    positions: Value
    """(N,)"""
    mask: Value
    """(B, N)"""


def pairwise_terms(
    lists: PaddedLists, interaction: PairwiseInteraction, items: Value, prior: Value | None
) -> tuple[Value, Value]:
    """Return the bias b_i (B, N), and a_ki (B, N, N), what a placed item adds to the scores of the others."""
    graph, numbers = lists.graph, {name: float(_weights(one)) for name, one in interaction.numbers.items()}
    appeal, effects = _click_model(lists, interaction, items, numbers)
    if prior is not None:
        appeal = appeal + prior
    logits = _expected_logits(lists, appeal, effects)
    bias = graph.where(lists.mask, appeal + (logits - appeal).op("Min", 0.0) * SCANNED, 0.0)
    return bias, _mixed_effects(logits.unsqueeze(2), effects)


def _click_model(
    lists: PaddedLists, interaction: PairwiseInteraction, items: Value, numbers: dict[str, float]
) -> tuple[Value, Value]:
    """Return the appeals z_i (B, N) but for the prior, and the effects φ_ik (B, N, N)."""
    x = lists.graph.where(lists.mask.unsqueeze(2), items, 0.0)
    other = lists.positions.unsqueeze(0).op("Equal", lists.positions.unsqueeze(1)).op("Not")
    pairs = (lists.mask.unsqueeze(2) & lists.mask.unsqueeze(1) & other).cast(FLOAT)
    appeal = (x @ _weights(interaction.relevance)[:, None]).squeeze(2) + numbers["offset"]
    effects = _head_effects(lists, interaction, x) + numbers["constant"]
    if interaction.n_dense:
        distances = _distances(lists, interaction, x.slice(0, interaction.n_dense, axis=2))
        of_distance, crowds = _piecewise(
            distances, _knots(lists, distances), _weights(interaction.effects), _weights(interaction.crowding)
        )
        effects = effects + of_distance
        n_others = (lists.lengths - 1).op("Max", 1).cast(FLOAT)
        appeal = appeal + (crowds * pairs).op("ReduceSum", np.array([2]), keepdims=0) / n_others.unsqueeze(1)
    return appeal, effects * pairs


def _expected_logits(lists: PaddedLists, appeal: Value, effects: Value) -> Value:
    """Return (B, N) l_i, for a user who scans from the top."""
    below = effects.op("Trilu", 1, upper=1)

    def look(item: Value, carried: list[Value]) -> tuple[list[Value], list[tuple[Value, int]]]:
        (logits,) = carried
        logit = logits.op("Gather", item, axis=1)
        return [logits + _mixed_effects(logit.unsqueeze(1), below.op("Gather", item, axis=1))], [(logit, FLOAT)]

    (logits,) = lists.graph.loop(lists.n_items, [(appeal, FLOAT)], look)
    return logits.transpose(1, 0)


def _mixed_effects(logits: Value, effects: Value) -> Value:
    """Return μ(l, φ), what an item with such log-odds of a click does to another; see `pairs.mixed_effects`."""
    steps = effects.op("Max", logits.op("Neg")) + logits.op("Min", 0.0)
    return steps + (_above_ramp(logits + effects) - _above_ramp(logits))


def _above_ramp(x: Value) -> Value:
    """Return softplus(x) - max(x, 0)."""
    return x.op("Abs").op("Neg").op("Softplus")


# Distances and what they are worth


def _distances(lists: PaddedLists, interaction: PairwiseInteraction, dense: Value) -> Value:
    """Return (B, 3, N, N) the raw, normalised and angular distances of dense columns (B, N, F), 0 for padding."""
    there = lists.mask.unsqueeze(2).cast(DOUBLE)
    exact = dense.cast(DOUBLE)
    centred = _centred(lists, exact, there, axis=1)
    count = lists.lengths.op("Max", 1).cast(DOUBLE).unsqueeze(1, 2)
    variance = (centred * centred).op("ReduceSum", np.array([1]), keepdims=1) / count
    normalised = centred / variance.op("Sqrt").op("Max", np.array(LEAST_SPREAD))
    squares = (normalised * normalised).op("ReduceSum", np.array([2]), keepdims=1)
    typical = (squares.op("ReduceSum", np.array([1]), keepdims=1) / count).op("Sqrt")
    norm = squares.op("Sqrt").op("Max", typical * np.array(SHORTEST)).op("Max", np.array(LEAST))
    places = [_raw_values(interaction, exact), normalised, normalised / norm]
    stacked = lists.graph.concat([one.unsqueeze(1).cast(FLOAT) for one in places], axis=1)  # (B, 3, N, F)
    factors = np.array([[1.0], [1.0], [0.5]], np.float32)

    def from_one(item: Value, _carried: list[Value]) -> tuple[list[Value], list[tuple[Value, int]]]:
        return [], [(_squares_from(stacked, item) * factors, FLOAT)]

    (distances,) = lists.graph.loop(lists.n_items, [], from_one)  # (N, B, 3, N)
    return distances.transpose(1, 2, 0, 3)


def _raw_values(interaction: PairwiseInteraction, dense: Value) -> Value:
    """Return the columns as they came, from scaled ones in float64."""
    levels, spreads = (one.double().numpy() for one in (interaction.levels, interaction.spreads))
    raw = dense * spreads + levels
    if not interaction.are_logarithms.any():
        return raw
    size = raw.op("Abs").op("Min", np.array(LARGEST_LOG)).op("Exp") - np.array(1.0)
    exponential = raw.op("Sign") * size
    return dense.graph.where(dense.graph.constant(interaction.are_logarithms.numpy()), exponential, raw)


def _centred(lists: PaddedLists, values: Value, there: Value, axis: int) -> Value:
    """Return values in float64 without their mean over the items of each list, 0 for padding."""
    count = lists.lengths.op("Max", 1).cast(DOUBLE).reshape(-1, *[1] * (axis + 1))
    mean = (values * there).op("ReduceSum", np.array([axis]), keepdims=1) / count
    return (values - mean) * there


def _knots(lists: PaddedLists, distances: Value) -> list[Value]:
    """Return (B, 3) for each knot: the quantiles of the distances of the pairs of each list, moved apart."""
    graph = lists.graph
    counts = lists.lengths * (lists.lengths - 1) / 2
    ordered = _ordered(lists, distances)  # (B, 3, pairs)
    last = ordered.size(2) - 1
    wanted = (counts - 1).op("Max", 0).cast(DOUBLE).unsqueeze(1) * np.array(KNOTS)  # (B, 11)
    floor = wanted.op("Floor")
    below = floor.cast(INTEGER)
    low, high = (
        ordered.transpose(0, 2, 1).op("GatherND", place.unsqueeze(2), batch_dims=1)  # (B, 11, 3)
        for place in (below, (below + 1).op("Min", last))
    )
    between = low + (wanted - floor).cast(FLOAT).unsqueeze(2) * (high - low)
    quantiles = graph.where((below + 1 < counts.unsqueeze(1)).unsqueeze(2), between, low)
    quantiles = graph.where((graph.constant(1) < lists.lengths).unsqueeze(1, 2), quantiles, 0.0)
    knots = [quantiles.op("Gather", knot, axis=1) for knot in range(len(KNOTS))]
    median = knots[MEDIAN].op("Max", LEAST)
    for knot in range(1, len(KNOTS)):
        before = knots[knot - 1]
        knots[knot] = knots[knot].op("Max", before + before.op("Max", median) * LEAST_GAP)
    return knots


def _ordered(lists: PaddedLists, distances: Value) -> Value:
    """Return (B, 3, pairs) the distances of the pairs of each list, each once and the smallest first, then infinity."""
    row, column = lists.positions.unsqueeze(1), lists.positions.unsqueeze(0)
    # An item and itself stay in, as infinity, so that a list of one item has something to sort.
    places = (column < row).op("Not").reshape(-1).op("NonZero").reshape(-1)
    is_pair = (row < column) & lists.mask.unsqueeze(1)  # (B, N, N): the later of the two is there
    real = is_pair.reshape(0, -1).op("Gather", places, axis=1).unsqueeze(1)
    values = distances.reshape(0, 0, -1).op("Gather", places, axis=2)
    values = lists.graph.where(real, values, np.array(np.inf, np.float32))
    ordered, _ = lists.graph.ops("TopK", 2, values, values.size(2).unsqueeze(0), largest=0, axis=2)
    return ordered


def _piecewise(distances: Value, knots: list[Value], *weights: npt.NDArray[np.float32]) -> list[Value]:
    """Return (B, N, N) for weights (3, 11): the sum over distances of the functions with these values at the knots."""
    totals = [distances * 0.0 + of_knots[:, :1, None] for of_knots in weights]
    for knot in range(len(KNOTS) - 1):
        low, high = (knots[place].unsqueeze(2, 3) for place in (knot, knot + 1))
        part = ((distances - low) / (high - low)).op("Clip", 0.0, 1.0)
        slopes = [(of_knots[:, knot + 1] - of_knots[:, knot])[:, None, None] for of_knots in weights]
        totals = [total + part * slope for total, slope in zip(totals, slopes, strict=True)]
    return [total.op("ReduceSum", np.array([1]), keepdims=0) for total in totals]


def _head_effects(lists: PaddedLists, interaction: PairwiseInteraction, x: Value) -> Value:
    """Return (B, N, N) Σ_h γ_h exp(-3 |E_h x_i - E_h x_k|² / m_h)."""
    there = lists.mask.unsqueeze(1, 3).cast(DOUBLE)
    seen = x.cast(DOUBLE) @ interaction.heads.detach().double().numpy()
    places = seen.reshape(0, 0, HEADS, HEAD_WIDTH).transpose(0, 2, 1, 3)  # (B, H, N, width)
    places = _centred(lists, places, there, axis=2)
    count = lists.lengths.op("Max", 1).cast(DOUBLE).unsqueeze(1, 2, 3)
    variance = (places * places).op("ReduceSum", np.array([2, 3]), keepdims=1) / count
    places = (places / (variance * np.array(2.0)).op("Max", np.array(LEAST)).op("Sqrt")).cast(FLOAT)
    strengths = _weights(interaction.head_effects)

    def from_one(item: Value, _carried: list[Value]) -> tuple[list[Value], list[tuple[Value, int]]]:
        alike = (_squares_from(places, item) * -HEAD_SHARPNESS).op("Exp")  # (B, H, N)
        return [], [(lists.graph.op("MatMul", strengths, alike), FLOAT)]

    (effects,) = lists.graph.loop(lists.n_items, [], from_one)  # (N, B, N)
    return effects.transpose(1, 0, 2)


def _squares_from(places: Value, item: Value) -> Value:
    """Return (B, H, N) the squared distances of places (B, H, N, width) from those of one item."""
    apart = places - places.op("Gather", item.unsqueeze(0), axis=2)
    return apart.op("ReduceSumSquare", axes=[3], keepdims=0)


def _weights(stored: Tensor) -> npt.NDArray[Any]:
    """Return what is stored divided by `PARAM_SCALE`."""
    values: npt.NDArray[Any] = (stored.detach() * PARAM_SCALE).cpu().numpy()
    return values
