"""The inner loops of the network: one set of functions in PyTorch, one in C, with the same meaning.

PyTorch's run on any device and in any precision. C's run on the CPU in float32, where `native.c` could be compiled.
All of them write into tensors that they are given, so that the caller decides what is allocated and when.

Shapes: B lists, R rows (the lists that a step works on), N items, K steps, D units.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from seq2slate.model.backends.native import gemm_address, native_library

LIMIT = 40.0
"""Arguments of the pointer's tanh are clamped to ± this, so that e^{2x} is finite."""
NEARLY_ONE = 1 - 1e-6
"""The largest probability of a similar click above, so that no product of probabilities has a factor of 0."""


@dataclass(frozen=True)
class Decoding:
    """What the steps of decoding read and write."""

    keys: Tensor
    """(B, N, D) factors e^{2 W_enc e_i} of the items."""
    v: Tensor
    """(D,)"""
    left: Tensor
    """(B, N) bool, the items not yet placed; written."""
    scores: Tensor
    """(B, K, N) -inf at first; written."""
    slates: Tensor
    """(B, K) -1 at first; written."""
    draws: Tensor | None = None
    """(B, K) uniform in [0, 1): items are then drawn, and not the best taken."""
    sharpness: float = 1.0
    """Items are drawn from the softmax of score · sharpness."""
    bias: Tensor | None = None
    """(B, N) added to the scores; written."""
    interaction: Tensor | None = None
    """(B, N, N) what a placed item adds to the bias of the others; needs a bias."""


@dataclass(frozen=True)
class Rows:
    """Which steps of given slates are scored: row r of the queries belongs to list lists[r] and has stops[r] steps."""

    lists: Tensor
    """(R,)"""
    stops: Tensor
    """(R,) falling from row to row."""
    slots: Tensor
    """(B, N) the step at which an item is placed, K or more if it is not, negative for padding."""


@dataclass(frozen=True)
class LstmWeights:
    """An LSTM layer of D units over inputs of size I."""

    weight_input: Tensor
    """(I, 4D)"""
    weight_hidden: Tensor
    """(D, 4D)"""
    bias: Tensor
    """(4D,)"""


@dataclass(frozen=True)
class LstmDecoder:
    """A decoder of one LSTM layer, and where it starts."""

    layer: LstmWeights
    items: Tensor
    """(N, B, I) what it reads of an item."""
    go: Tensor
    """(I,) what it reads first."""
    w_dec: Tensor
    """(D, D)"""
    keep: Tensor | None
    """(B, D) the dropout of its outputs."""
    h: Tensor
    """(B, D) its first state."""
    c: Tensor
    """(B, D)"""
    wanted: Tensor
    """(B, N) bool; a list ends when none of these items is left."""


class Kernels(Protocol):
    """What both sets of functions offer."""

    def lstm_forward(self, gates: Tensor, bias: Tensor, before: Tensor, c: Tensor, h: Tensor) -> None:
        """One LSTM step: gates (R, 4D), the arguments of i, f, g, o without bias, are overwritten with their values."""

    def lstm_backward(self, gates: Tensor, before: Tensor, c: Tensor, dh: Tensor, dc: Tensor, dgates: Tensor) -> None:
        """Its gradient: dgates (R, 4D) of the arguments; dc (R, D) is overwritten with that of the state before."""

    def pointer_factors(self, x: Tensor) -> None:
        """Overwrite x with e^{2x}, x clamped to ±LIMIT."""

    def pointer_step(self, decoding: Decoding, step: int, lists: Tensor, queries: Tensor) -> None:
        """Score the items left of lists (R,) with factors queries (R, D), and place one of them."""

    def pointer_forward(self, rows: Rows, keys: Tensor, queries: Tensor, v: Tensor, scores: Tensor) -> None:
        """Score given slates, with factors keys (B, N, D) and queries (K, R, D); scores (B, K, N) are -inf at first."""

    def pointer_backward(
        self,
        rows: Rows,
        keys: Tensor,
        queries: Tensor,
        v: Tensor,
        dscores: Tensor,
        dkeys: Tensor,
        dqueries: Tensor,
        dv: Tensor,
    ) -> None:
        """Its gradient by the arguments of the tanh: dkeys, dqueries and dv (B, D) are 0 at first."""

    def cascade_forward(self, alone: Tensor, nearby: Tensor, similar: Tensor, far: Tensor, clicks: Tensor) -> None:
        """Fill clicks (B, N) from the top: alone if no click above was similar, nearby if one was.

        far (B, N), 1 at first, becomes the probability that none was; similar is (B, N, N).
        """

    def cascade_backward(
        self,
        alone: Tensor,
        nearby: Tensor,
        similar: Tensor,
        far: Tensor,
        clicks: Tensor,
        dclicks: Tensor,
        dsimilar: Tensor,
    ) -> None:
        """Its gradient: dclicks (B, N) is overwritten with the whole of it; dsimilar (B, N, N) is 0 at first."""


class TorchKernels:
    """The functions in PyTorch, step by step, so that nothing of size (B, K, N, D) is ever held."""

    def lstm_forward(self, gates: Tensor, bias: Tensor, before: Tensor, c: Tensor, h: Tensor) -> None:  # noqa: D102
        gates += bias
        i, f, g, o = gates.chunk(4, dim=1)
        for sigmoid in (i, f, o):
            sigmoid.sigmoid_()
        torch.mul(f, before, out=c).addcmul_(i, g.tanh_())
        torch.mul(o, c.tanh(), out=h)

    def lstm_backward(  # noqa: D102
        self, gates: Tensor, before: Tensor, c: Tensor, dh: Tensor, dc: Tensor, dgates: Tensor
    ) -> None:
        i, f, g, o = gates.chunk(4, dim=1)
        squashed = c.tanh()
        dc += dh * o * (1 - squashed**2)
        parts = (dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g**2), dh * squashed * o * (1 - o))
        torch.cat(parts, dim=1, out=dgates)
        dc *= f

    def pointer_factors(self, x: Tensor) -> None:  # noqa: D102
        x.clamp_(-LIMIT, LIMIT).mul_(2).exp_()

    def pointer_step(self, decoding: Decoding, step: int, lists: Tensor, queries: Tensor) -> None:  # noqa: D102
        left = decoding.left[lists]
        scores = _scores(decoding.keys[lists], queries[:, None], decoding.v)
        if decoding.bias is not None:
            scores += decoding.bias[lists]
        scores.masked_fill_(~left, -torch.inf)
        if decoding.draws is None:
            choice = scores.argmax(1)
        else:
            choice = sampled_items(scores * decoding.sharpness, decoding.draws[lists, step])
        choice = choice.where(left.any(1), -1)
        decoding.scores[lists, step] = scores
        decoding.slates[lists, step] = choice
        placed = lists[choice >= 0], choice[choice >= 0]
        decoding.left[placed] = False
        if decoding.interaction is not None and decoding.bias is not None:
            decoding.bias[placed[0]] += decoding.interaction[placed]

    def pointer_forward(  # noqa: D102
        self, rows: Rows, keys: Tensor, queries: Tensor, v: Tensor, scores: Tensor
    ) -> None:
        for step, lists in _lists_of_steps(rows, len(queries)):
            values = _scores(keys[lists], queries[step, : len(lists), None], v)
            scores[lists, step] = values.masked_fill(rows.slots[lists] < step, -torch.inf)

    def pointer_backward(  # noqa: D102
        self,
        rows: Rows,
        keys: Tensor,
        queries: Tensor,
        v: Tensor,
        dscores: Tensor,
        dkeys: Tensor,
        dqueries: Tensor,
        dv: Tensor,
    ) -> None:
        for step, lists in _lists_of_steps(rows, len(queries)):
            dscore = dscores[lists, step, :, None]
            r = _half_gap(keys[lists], queries[step, : len(lists), None])
            slope = 4 * v * r * (1 - r) * dscore
            dkeys[lists] += slope
            dqueries[step, : len(lists)] = slope.sum(1)
            dv[lists] += ((1 - 2 * r) * dscore).sum(1)

    def cascade_forward(  # noqa: D102
        self, alone: Tensor, nearby: Tensor, similar: Tensor, far: Tensor, clicks: Tensor
    ) -> None:
        for item in range(alone.shape[1]):
            clicks[:, item] = nearby[:, item] + far[:, item] * (alone[:, item] - nearby[:, item])
            far[:, item + 1 :] *= _apart(clicks, similar, item)

    def cascade_backward(  # noqa: D102
        self,
        alone: Tensor,
        nearby: Tensor,
        similar: Tensor,
        far: Tensor,
        clicks: Tensor,
        dclicks: Tensor,
        dsimilar: Tensor,
    ) -> None:
        for item in reversed(range(alone.shape[1])):
            below = slice(item + 1, None)
            dfar = dclicks[:, below] * (alone - nearby)[:, below]
            dproduct = -dfar * far[:, below] / _apart(clicks, similar, item)
            dsimilar[:, item, below] = dproduct * clicks[:, item, None]
            dclicks[:, item] += (dproduct * similar[:, item, below]).sum(1)


def sampled_items(scores: Tensor, draws: Tensor) -> Tensor:
    """Return (R,) the first item at which the running sum of the softmax of scores (R, N) passes the draw (R,)."""
    sums = scores.softmax(1).nan_to_num_().cumsum(1)
    passed = sums > draws[:, None] * sums[:, -1:]
    return (passed & (scores > -torch.inf)).int().argmax(1)


def _apart(clicks: Tensor, similar: Tensor, item: int) -> Tensor:
    """Return the probability that this item is no click similar to each one below it; never 0."""
    return 1 - (clicks[:, item, None] * similar[:, item, item + 1 :]).clamp(max=NEARLY_ONE)


def _half_gap(key: Tensor, query: Tensor) -> Tensor:
    """Return r = 1 / (1 + e^{2a} e^{2b}), so that tanh(a + b) = 1 - 2r: right even where the product overflows."""
    return (key * query).add_(1).reciprocal_()


def _scores(key: Tensor, query: Tensor, v: Tensor) -> Tensor:
    return (1 - 2 * _half_gap(key, query)) @ v


def _lists_of_steps(rows: Rows, steps: int) -> list[tuple[int, Tensor]]:
    """Return every step with the lists that have it, which are the first ones, since stops fall."""
    return [(step, rows.lists[: int((rows.stops > step).sum())]) for step in range(steps)]


class _CDecoding(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("lists", "n", "d", "steps")],
        ("sharpness", ctypes.c_float),
        *[
            (name, ctypes.c_void_p)
            for name in ("keys", "v", "draws", "interaction", "bias", "left", "scores", "slates")
        ],
    ]


class CLstm(ctypes.Structure):
    """`lstm` in native.h."""

    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("inputs", "d")],
        *[(name, ctypes.c_void_p) for name in ("weight_input", "weight_hidden", "bias")],
    ]


class _CDecoder(ctypes.Structure):
    _fields_ = [
        ("layer", CLstm),
        *[(name, ctypes.c_void_p) for name in ("items", "go", "w_dec", "keep", "h", "c", "wanted")],
    ]


class NativeKernels:
    """The functions in C, for float32 on the CPU."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.gemm = gemm_address()
        integer, pointer = ctypes.c_int64, ctypes.c_void_p
        for name, arguments in {
            "lstm_forward": [integer] * 2 + [pointer] * 5,
            "lstm_backward": [integer] * 2 + [pointer] * 6,
            "pointer_factors": [integer, pointer],
            "pointer_step": [pointer, integer, integer, pointer, pointer],
            "pointer_forward": [integer] * 4 + [pointer] * 7,
            "pointer_backward": [integer] * 4 + [pointer] * 9,
            "cascade_forward": [integer] * 2 + [pointer] * 5,
            "cascade_backward": [integer] * 2 + [pointer] * 7,
            "lstm_encode": [pointer, pointer, integer, integer] + [pointer] * 6,
            "lstm_decode": [pointer] * 3,
            "place_list": [pointer, pointer, integer, integer, ctypes.c_int, ctypes.c_float] + [pointer] * 4,
        }.items():
            getattr(library, name).argtypes = arguments
        self.place_list: Callable[..., int] = library.place_list
        """For `list_placer`."""

    @property
    def can_fuse(self) -> bool:
        """Whether whole loops over steps can run in C, which needs a BLAS to call."""
        return self.gemm is not None

    def lstm_forward(self, gates: Tensor, bias: Tensor, before: Tensor, c: Tensor, h: Tensor) -> None:  # noqa: D102
        self._library.lstm_forward(*c.shape, *addresses(gates, bias, before, c, h))

    def lstm_backward(  # noqa: D102
        self, gates: Tensor, before: Tensor, c: Tensor, dh: Tensor, dc: Tensor, dgates: Tensor
    ) -> None:
        self._library.lstm_backward(*c.shape, *addresses(gates, before, c, dh, dc, dgates))

    def pointer_factors(self, x: Tensor) -> None:  # noqa: D102
        self._library.pointer_factors(x.numel(), *addresses(x))

    def pointer_step(self, decoding: Decoding, step: int, lists: Tensor, queries: Tensor) -> None:  # noqa: D102
        now = _in_c(decoding)
        self._library.pointer_step(ctypes.byref(now), step, len(lists), *addresses(lists, queries))

    def pointer_forward(  # noqa: D102
        self, rows: Rows, keys: Tensor, queries: Tensor, v: Tensor, scores: Tensor
    ) -> None:
        arrays = addresses(rows.lists, rows.stops, rows.slots, keys, queries, v, scores)
        _check_memory(self._library.pointer_forward(len(rows.lists), *keys.shape[1:], scores.shape[1], *arrays))

    def pointer_backward(  # noqa: D102
        self,
        rows: Rows,
        keys: Tensor,
        queries: Tensor,
        v: Tensor,
        dscores: Tensor,
        dkeys: Tensor,
        dqueries: Tensor,
        dv: Tensor,
    ) -> None:
        arrays = addresses(rows.lists, rows.stops, keys, queries, v, dscores, dkeys, dqueries, dv)
        self._library.pointer_backward(len(rows.lists), *keys.shape[1:], dscores.shape[1], *arrays)

    def cascade_forward(  # noqa: D102
        self, alone: Tensor, nearby: Tensor, similar: Tensor, far: Tensor, clicks: Tensor
    ) -> None:
        self._library.cascade_forward(*alone.shape, *addresses(alone, nearby, similar, far, clicks))

    def cascade_backward(  # noqa: D102
        self,
        alone: Tensor,
        nearby: Tensor,
        similar: Tensor,
        far: Tensor,
        clicks: Tensor,
        dclicks: Tensor,
        dsimilar: Tensor,
    ) -> None:
        arrays = addresses(alone, nearby, similar, far, clicks, dclicks, dsimilar)
        self._library.cascade_backward(*alone.shape, *arrays)

    # Whole loops, without gradients

    def lstm_encode(
        self, layer: LstmWeights, x: Tensor, last: Tensor, w_enc: Tensor, factors: Tensor, h: Tensor, c: Tensor
    ) -> None:
        """Read x (T, B, I) from a state of zeros: factors (B, T, D) of the keys, the state after step last (B,)."""
        in_c, arrays = layer_in_c(layer), addresses(x, last, w_enc, factors, h, c)
        _check_memory(self._library.lstm_encode(self.gemm, ctypes.byref(in_c), *x.shape[:2], *arrays))

    def lstm_decode(self, decoding: Decoding, decoder: LstmDecoder) -> None:
        """Take all steps of decoding, each list until none of its wanted items is left."""
        others = addresses(decoder.items, decoder.go, decoder.w_dec, decoder.keep, decoder.h, decoder.c, decoder.wanted)
        now, net = _in_c(decoding), _CDecoder(layer_in_c(decoder.layer), *others)
        _check_memory(self._library.lstm_decode(self.gemm, ctypes.byref(now), ctypes.byref(net)))


def _in_c(state: Decoding) -> _CDecoding:
    arrays = addresses(
        state.keys, state.v, state.draws, state.interaction, state.bias, state.left, state.scores, state.slates
    )
    return _CDecoding(*state.keys.shape, state.slates.shape[1], state.sharpness, *arrays)


def layer_in_c(layer: LstmWeights) -> CLstm:
    """Return where C finds the weights of a layer, which must be kept."""
    arrays = addresses(layer.weight_input, layer.weight_hidden, layer.bias)
    return CLstm(layer.weight_input.shape[0], layer.weight_hidden.shape[0], *arrays)


def _check_memory(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for the decoder's steps")


def addresses(*tensors: Tensor | None) -> list[int | None]:
    """Return where the tensors lie; C reads each as one block of memory, so that is checked first."""
    if not all(tensor is None or tensor.is_contiguous() for tensor in tensors):
        raise ValueError("the C kernels need contiguous tensors")
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


_TORCH: Kernels = TorchKernels()
_NATIVE = [NativeKernels(library) for library in [native_library()] if library is not None]


def kernels_for(tensor: Tensor) -> Kernels:
    """Return the fastest functions for tensors of this kind."""
    if _NATIVE and tensor.device.type == "cpu" and tensor.dtype == torch.float32:
        return _NATIVE[0]
    return _TORCH


def fused_kernels_for(tensor: Tensor) -> NativeKernels | None:
    """Return the kernels that run whole loops over steps, for tensors of this kind; None if there are none."""
    kernels = kernels_for(tensor)
    return kernels if isinstance(kernels, NativeKernels) and kernels.can_fuse else None


def available_kernels() -> dict[str, Kernels]:
    """Return both sets by name, the native one only where it could be compiled."""
    return {"torch": _TORCH, "native": _NATIVE[0]} if _NATIVE else {"torch": _TORCH}
