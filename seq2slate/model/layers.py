"""Layers with gradients of their own, over the kernels of a backend: recurrent layers and the pointer.

**Recurrent layers** read their input step by step. The gradient of the LSTM is written out by hand.

PyTorch's LSTM and LSTMCell spend as long on overhead and separate passes over the gates, on the CPU, as on the matrix
products. Here a step is two matrix products and one fused pass, forward as well as backward, and the weights collect
their gradient while a step's gates are still in the cache.

Inputs are time-major, (T, B, F): a step is then one block of memory. Lists may end early: `rows[t]`, which never grows,
says how many lists, from the first, take part in step t.

**The pointer**: scores s_i^j = v^T tanh(W_enc e_i + W_dec d_j) and their gradient (paper, section 2).

The tanh is the hot spot, and it factors. With a = W_enc e_i and b = W_dec d_j, unit by unit,

    tanh(a + b) = 1 - 2r,    r = 1 / (1 + e^{2a} e^{2b}),    d tanh(a + b) / da = 4 r (1 - r)

The factors e^{2a} are taken once for an item and e^{2b} once for a step; inside the loop over lists, steps, items and
units there is only a product and a reciprocal. Arguments are clamped to ±`LIMIT`. The backward pass computes r again:
nothing of size (B, K, N, D) is stored. The same scores are computed in C (`backends/native.c`, `native_list.c`) and in
ONNX (`backends/onnx_export.py`); tests/test_backends.py compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seq2slate.model.backends.kernels import (
    LstmScan,
    LstmScanGradients,
    LstmTrace,
    LstmWeights,
    PointerGradients,
    StepRows,
    kernels_for,
)

# Recurrent layers

State: TypeAlias = tuple[Tensor, ...]
"""What a layer remembers, (B, D) each: output and cell for an LSTM, output for a GRU. The output comes first."""


class RecurrentLayer(nn.Module):
    """One layer, which reads in one direction."""

    def __init__(self, n_inputs: int, n_units: int) -> None:
        super().__init__()
        self.n_inputs, self.n_units = n_inputs, n_units

    n_states: ClassVar[int]
    """How many tensors a state has."""

    @property
    def input_weights(self) -> Tensor:
        """(F, W) the weights that multiply each input column."""
        raise NotImplementedError

    def scan(
        self,
        x: Tensor,
        rows: list[int],
        state: State | None = None,
        *,
        start: Tensor | None = None,
        last: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Read step after step, with gradients.

        Args:
            x: (T, B, F) the inputs.
            rows: How many lists, from the first, take part in each step.
            state: The state before the first step; zeros if None.
            start: (F,) what every list reads first; x is then read from the second step on.
            last: (B,) the step after which the state of each list is returned; the last one if None.

        Returns:
            The outputs (T, B, D), and the states of the lists; without a step, the state given.
        """
        n_lists = x.shape[1]
        if state is None:
            state = tuple(x.new_zeros(n_lists, self.n_units) for _ in range(self.n_states))
        if not rows:
            return x.new_zeros(0, n_lists, self.n_units), state
        if last is None:
            last = torch.full((n_lists,), len(rows) - 1, device=x.device)
        return self._scan(x, rows, state, start, last)

    def _scan(
        self, x: Tensor, rows: list[int], state: State, start: Tensor | None, last: Tensor
    ) -> tuple[Tensor, State]:
        """Return what `scan` does, for at least one step."""
        raise NotImplementedError

    def step(self, x: Tensor, state: State) -> State:
        """Return the state after reading x (R, F), without gradients."""
        raise NotImplementedError

    @staticmethod
    def state_from(memory: Tensor) -> State:
        """Return a first state made of a vector (B, D) for each list, after an encoder that has no last state."""
        raise NotImplementedError


class LstmLayer(RecurrentLayer):
    """An LSTM (Hochreiter and Schmidhuber 1997), with the gates i, f, g, o in this order.

    c_t = σ(f) c_{t-1} + σ(i) tanh(g) and h_t = σ(o) tanh(c_t), where (i, f, g, o) = x_t W_input + h_{t-1} W_hidden + b.
    """

    n_states = 2

    def __init__(self, n_inputs: int, n_units: int) -> None:
        super().__init__(n_inputs, n_units)
        self.weight_input = nn.Parameter(torch.empty(n_inputs, 4 * n_units))  # as the products read them
        self.weight_hidden = nn.Parameter(torch.empty(n_units, 4 * n_units))
        self.bias = nn.Parameter(torch.empty(4 * n_units))

    @property
    def input_weights(self) -> Tensor:  # noqa: D102
        return self.weight_input

    @torch.no_grad()
    def spread_memory(self, span: float) -> None:
        """Have unit k = 1 … D forget over T_k = span^(k / D) items: σ(f) = 1 - 1 / T_k and σ(i) = 1 / T_k.

        This is the chrono initialisation of Tallec and Ollivier (2018), evenly on a logarithmic scale: a list is read
        item by item, and what a score needs may be the item itself or what stands far above it.
        """
        lengths = span ** (torch.arange(1, self.n_units + 1) / self.n_units)
        inputs, forget = self.bias.chunk(4)[:2]
        inputs -= torch.log(lengths - 1)
        forget += torch.log(lengths - 1)

    def _scan(
        self, x: Tensor, rows: list[int], state: State, start: Tensor | None, last: Tensor
    ) -> tuple[Tensor, State]:
        return self._scan_with(x, rows, state, start, last, None)

    def _scan_with(
        self, x: Tensor, rows: list[int], state: State, start: Tensor | None, last: Tensor, known: LstmTrace | None
    ) -> tuple[Tensor, State]:
        weights = (self.weight_input, self.weight_hidden, self.bias)
        outputs, h, c = _LstmScan.apply(x, start, *weights, *state, rows, last, known)  # type: ignore[no-untyped-call]
        return outputs, (h, c)

    def rescan(self, x: Tensor, rows: list[int], state: State, start: Tensor, known: LstmTrace) -> Tensor:
        """Return the outputs (T, B, D) of steps that were taken before without gradients, and now have them.

        Args:
            x: (T - 1, B, F) what was read after the start.
            rows: How many lists, from the first, took part in each step.
            state: The state before the first step.
            start: (F,) what every list read first.
            known: What was computed then, for lists in this order.
        """
        last = torch.full((x.shape[1],), len(rows) - 1, device=x.device)
        return self._scan_with(x, rows, state, start, last, known)[0]

    @property
    def weights(self) -> LstmWeights:
        """The weights as they are now, without gradients."""
        return LstmWeights(self.weight_input.detach(), self.weight_hidden.detach(), self.bias.detach())

    @torch.no_grad()
    def step(self, x: Tensor, state: State) -> State:  # noqa: D102
        before_h, before_c = state
        h, c = torch.empty_like(before_h), torch.empty_like(before_c)
        gates = torch.mm(x, self.weight_input).addmm_(before_h, self.weight_hidden)
        kernels_for(gates).lstm_forward(gates, self.bias, before_c, c, h)
        return h, c

    @staticmethod
    def state_from(memory: Tensor) -> State:
        """Return the output tanh(m) and the cell m of the vectors m."""
        return torch.tanh(memory), memory


class _LstmScan(torch.autograd.Function):
    """All steps of an LSTM layer."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        start: Tensor | None,
        weight_input: Tensor,
        weight_hidden: Tensor,
        bias: Tensor,
        h0: Tensor,
        c0: Tensor,
        rows: list[int],
        last: Tensor,
        known: LstmTrace | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, (n_lists, n_units) = len(rows), h0.shape
        keep = any(ctx.needs_input_grad)  # what the backward pass needs; without it buffers are used again
        if known is not None:
            h, c = torch.cat([h0[None], known.h]), torch.cat([c0[None], known.c])
            ctx.save_for_backward(x.contiguous(), start, weight_input, weight_hidden, bias, known.gates, h, c)
            ctx.rows, ctx.last, ctx.ends = rows, last, _lists_by_last_step(last)
            return h[1:], h[-1].clone(), c[-1].clone()
        gates = x.new_empty(steps if keep else 1, n_lists, 4 * n_units)
        c = x.new_empty(steps + 1 if keep else 2, n_lists, n_units)  # c[t] and h[t] are the state before step t
        h = x.new_empty(steps + 1, n_lists, n_units)
        if rows[-1] < n_lists:
            h.zero_()  # outputs after a list's end
        h[0], c[0] = h0, c0
        layer = LstmWeights(weight_input, weight_hidden, bias)
        scan = LstmScan(layer, torch.tensor(rows), x.contiguous(), start, gates, c, h)
        fused, ends = kernels_for(x).fused, _lists_by_last_step(last)
        if fused is not None and keep:
            fused.lstm_scan_forward(scan)
            every = torch.arange(n_lists)
            h_last, c_last = h[last + 1, every], c[last + 1, every]
        else:
            h_last, c_last = _steps_forward(scan, rows, ends)
        ctx.save_for_backward(scan.x, start, weight_input, weight_hidden, bias, gates, h, c)
        ctx.rows, ctx.last, ctx.ends = rows, last, ends
        return h[1:], h_last, c_last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, start, weight_input, weight_hidden, bias, gates, h, c = ctx.saved_tensors
        scan = LstmScan(LstmWeights(weight_input, weight_hidden, bias), torch.tensor(ctx.rows), x, start, gates, c, h)
        doutputs, dh_last, dc_last = (gradient.contiguous() for gradient in gradients)
        by = LstmScanGradients(
            ctx.last,
            doutputs,
            dh_last,
            dc_last,
            dh=torch.zeros_like(h[0]),
            dc=torch.zeros_like(c[0]),
            dweight_input=torch.zeros_like(weight_input),
            dweight_hidden=torch.zeros_like(weight_hidden),
            dbias=torch.zeros_like(bias),
            dx=torch.zeros_like(x) if ctx.needs_input_grad[0] else None,
            dstart=None if start is None else torch.zeros_like(start),
        )
        fused = kernels_for(x).fused
        if fused is not None:
            fused.lstm_scan_backward(scan, by)
        else:
            _steps_backward(scan, by, ctx.rows, ctx.ends)
        return by.dx, by.dstart, by.dweight_input, by.dweight_hidden, by.dbias, by.dh, by.dc, None, None, None


def _steps_forward(scan: LstmScan, rows: list[int], ends: dict[int, Any]) -> tuple[Tensor, Tensor]:
    """Read step after step on any device; return the state h, c (B, D) of each list after its last one.

    c and gates may have room for fewer steps: they are then used again.
    """
    layer, start, kernels = scan.layer, scan.start, kernels_for(scan.x)
    h_last, c_last = torch.empty_like(scan.h[0]), torch.empty_like(scan.c[0])
    inputs, gate_views, c_views, h_views = (tensor.unbind(0) for tensor in (scan.x, scan.gates, scan.c, scan.h))
    for t, active in enumerate(rows):
        gate = gate_views[t % len(gate_views)][:active]
        c_before, c_after = c_views[t % len(c_views)][:active], c_views[(t + 1) % len(c_views)][:active]
        h_before, h_after = h_views[t][:active], h_views[t + 1][:active]
        if start is None:
            torch.mm(inputs[t][:active], layer.weight_input, out=gate)
        elif t == 0:
            gate.copy_((start @ layer.weight_input).expand_as(gate))
        else:
            torch.mm(inputs[t - 1][:active], layer.weight_input, out=gate)
        gate.addmm_(h_before, layer.weight_hidden)
        kernels.lstm_forward(gate, layer.bias, c_before, c_after, h_after)
        if t in ends:
            h_last[ends[t]], c_last[ends[t]] = h_views[t + 1][ends[t]], c_views[(t + 1) % len(c_views)][ends[t]]
    return h_last, c_last


def _steps_backward(scan: LstmScan, by: LstmScanGradients, rows: list[int], ends: dict[int, Any]) -> None:
    """Write the gradients, from the last step to the first, on any device."""
    layer, start, kernels = scan.layer, scan.start, kernels_for(scan.x)
    shift = 0 if start is None else 1
    dgates = torch.empty_like(scan.gates[0])
    inputs, gate_views, c_views, h_views = (tensor.unbind(0) for tensor in (scan.x, scan.gates, scan.c, scan.h))
    for t in range(len(rows) - 1, -1, -1):
        active = rows[t]
        dh_now, dc_now, dgate = by.dh[:active], by.dc[:active], dgates[:active]
        dh_now += by.doutputs[t, :active]
        if t in ends:
            by.dh[ends[t]] += by.dh_last[ends[t]]
            by.dc[ends[t]] += by.dc_last[ends[t]]
        c_before, c_after = c_views[t][:active], c_views[t + 1][:active]
        kernels.lstm_backward(gate_views[t][:active], c_before, c_after, dh_now, dc_now, dgate)
        torch.mm(dgate, layer.weight_hidden.t(), out=dh_now)
        by.dweight_hidden.addmm_(h_views[t][:active].t(), dgate)
        summed = dgate.sum(0)
        by.dbias.add_(summed)
        if start is not None and by.dstart is not None and t == 0:
            by.dstart.copy_(layer.weight_input @ summed)
            by.dweight_input.addr_(start, summed)
            continue
        by.dweight_input.addmm_(inputs[t - shift][:active].t(), dgate)
        if by.dx is not None:
            torch.mm(dgate, layer.weight_input.t(), out=by.dx[t - shift, :active])


def _lists_by_last_step(last: Tensor) -> dict[int, Any]:
    """Return which lists end at each step; all of them as one slice in the common case that they end together."""
    steps = sorted(set(last.tolist()))
    if len(steps) == 1:
        return {steps[0]: slice(None)}
    return {step: (last == step).nonzero().flatten() for step in steps}


class GruLayer(RecurrentLayer):
    """A GRU (Cho et al. 2014), by PyTorch's own cell."""

    n_states = 1

    def __init__(self, n_inputs: int, n_units: int) -> None:
        super().__init__(n_inputs, n_units)
        self.cell = nn.GRUCell(n_inputs, n_units)

    @property
    def input_weights(self) -> Tensor:  # noqa: D102
        return self.cell.weight_ih.t()

    def _scan(
        self, x: Tensor, rows: list[int], state: State, start: Tensor | None, last: Tensor
    ) -> tuple[Tensor, State]:
        n_lists, (h,) = x.shape[1], state
        if start is not None:
            x = torch.cat([start.expand(1, n_lists, -1), x])
        outputs = []
        for read, active in zip(x, rows, strict=False):
            h = torch.cat([self.cell(read[:active], h[:active]), h[active:]])
            outputs.append(h)
        stacked = torch.stack(outputs)
        return stacked, (stacked[last, torch.arange(n_lists, device=x.device)],)

    @torch.no_grad()
    def step(self, x: Tensor, state: State) -> State:  # noqa: D102
        return (self.cell(x, state[0]),)

    @staticmethod
    def state_from(memory: Tensor) -> State:
        """Return the output tanh(m) of the vectors m."""
        return (torch.tanh(memory),)


CELLS: dict[str, type[RecurrentLayer]] = {"lstm": LstmLayer, "gru": GruLayer}
"""The recurrent layers by name."""


def layer_widths(n_inputs: int, hidden: int, layers: int) -> list[int]:
    """Return the size of what each of some stacked layers reads.

    >>> layer_widths(136, 128, 3)
    [136, 128, 128]
    """
    return [n_inputs] + [hidden] * (layers - 1)


def plain_lstm(layers: Sequence[RecurrentLayer]) -> LstmWeights | None:
    """Return the weights of stacked layers that are a single LSTM layer, which is what runs in C; None for others."""
    if len(layers) != 1 or type(layers[0]) is not LstmLayer:  # a subclass may compute something else
        return None
    return layers[0].weights


# The pointer

LIMIT = 40.0
"""Arguments of the tanh are clamped to ± this, so that e^{2x} is finite; a product of two may overflow or underflow,
and both give the right tanh."""


@dataclass(frozen=True)
class Keys:
    """The items' side of the pointer."""

    factors: Tensor
    """(B, N, D) e^{2 W_enc e_i}: what the scores are computed from."""
    arguments: Tensor | None
    """(B, N, D) W_enc e_i, to which the gradient goes; None where there is none."""

    @classmethod
    def of(cls, arguments: Tensor) -> Keys:
        """Take the factors of arguments (B, N, D), once for drawing slates and for scoring them."""
        return cls(pointer_factors(arguments), arguments)


def pointer_scores(keys: Keys, queries: Tensor, v: Tensor, rows: StepRows, known: Tensor | None = None) -> Tensor:
    """Return the scores of given slates.

    Args:
        keys: The items' side, W_enc e_i.
        queries: (K, R, D) W_dec d_j of each step, for the R lists that have it.
        v: (D,)
        rows: Which lists and steps the queries belong to, and which items are left.
        known: (B, K, N) the scores themselves, if they were computed before without gradients.

    Returns:
        (B, K, N) v^T tanh(key + query); -inf for an item that is not left, or a step that is not there.
    """
    scores: Tensor = _PointerScores.apply(keys.arguments, keys.factors, queries, v, rows, known)  # type: ignore[no-untyped-call]
    return scores


def pointer_factors(arguments: Tensor) -> Tensor:
    """Return e^{2x} for arguments x of the tanh: what the kernels take as keys and queries."""
    factors = arguments.detach().clone(memory_format=torch.contiguous_format)
    kernels_for(factors).pointer_factors(factors, LIMIT)
    return factors


class _PointerScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        _: Tensor | None,
        keys: Tensor,
        queries: Tensor,
        v: Tensor,
        rows: StepRows,
        known: Tensor | None,
    ) -> Tensor:
        query_factors = pointer_factors(queries)
        if known is None:
            scores = keys.new_full((len(keys), len(queries), keys.shape[1]), -torch.inf)
            kernels_for(keys).pointer_forward(rows, keys, query_factors, v.contiguous(), scores)
        else:
            scores = known.view_as(known)
        ctx.save_for_backward(keys, query_factors, v)
        ctx.rows = rows
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        keys, queries, v = ctx.saved_tensors
        written = PointerGradients(torch.zeros_like(keys), torch.zeros_like(queries), v.new_zeros(len(keys), len(v)))
        dscores = gradients[0].contiguous()
        kernels_for(keys).pointer_backward(ctx.rows, keys, queries, v.contiguous(), dscores, written)
        return written.keys, None, written.queries, written.v.sum(0), None, None
