"""A network for single lists: raw columns go in, a slate comes out, and one call to C does it all (`native_list.c`).

The functions of `kernels` are made for batches; for a single list most of their time is the way from one to the next.
This is for the networks that the presets `paper` and `default` make: one LSTM layer encodes, one decodes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit

from seq2slate.data.features import NumberColumns
from seq2slate.data.lists import FloatArray, IntArray
from seq2slate.model.backends.kernels import CLstm, NativeKernels, addresses, fused_kernels_for, layer_in_c
from seq2slate.model.interactions import PARAM_SCALE, STRONGEST, Resemblance
from seq2slate.model.network import SlateNetwork
from seq2slate.model.recurrent import LstmLayer

_NO_MEMORY, _NOT_FINITE = 1, 2  # what `place_list` returns, besides 0


class NotFiniteError(ArithmeticError):
    """A weight or a feature, or a score that comes of them, is infinite or no number."""


class _CScaling(ctypes.Structure):
    _fields_ = [
        ("takes_logarithm", ctypes.c_int64),
        ("clip", ctypes.c_float),
        *[(name, ctypes.c_void_p) for name in ("mean", "inverse_std")],
    ]


class _CResemblance(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("relevance", "bends", "weights")],
        *[(name, ctypes.c_float) for name in ("offset", "threshold", "sharpness", "effect_above", "added")],
    ]


class _CNetwork(ctypes.Structure):
    _fields_ = [
        *[(name, CLstm) for name in ("encoder", "decoder")],
        *[(name, ctypes.c_void_p) for name in ("w_enc", "w_dec", "go", "v", "prior")],
        ("positions", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("resemblance", "scaling")],
    ]


class ListPlacer:
    """The weights of a network, where C finds them; it may be called from several threads at once."""

    def __init__(self, kernels: NativeKernels, network: SlateNetwork, columns: NumberColumns) -> None:
        """Take a network that `list_placer` found to be of the right kind, and the scale of its raw columns."""
        self._place_list, self._gemm = kernels.place_list, kernels.gemm
        self._inputs = network.n_inputs
        self._kept: list[object] = []  # what C has the address of
        encoder, decoder = network.encoder_layers[0][0], network.decoder_layers[0]
        assert isinstance(encoder, LstmLayer), "that is what the cell says"
        assert isinstance(decoder, LstmLayer), "that is what the cell says"
        others = [weights.detach() for weights in (network.w_enc, network.w_dec, network.go, network.v)]
        prior = None if network.prior is None else _stretched(network.prior)
        layers = encoder.weights, decoder.weights
        self._kept += [*layers, *others]
        self._network = _CNetwork(
            *map(layer_in_c, layers),
            *addresses(*others),
            None if prior is None else self._kept_numbers(prior),
            0 if prior is None else len(prior),
            None if network.resemblance is None else self._kept_structure(self._resemblance(network.resemblance)),
            None if columns.scaling == "none" else self._kept_structure(self._scaling(columns)),
        )
        self._address = ctypes.addressof(self._network)

    def place(
        self,
        items: FloatArray,
        steps: int,
        *,
        is_raw: bool = True,
        draws: FloatArray | None = None,
        sharpness: float = 1.0,
    ) -> tuple[IntArray, FloatArray]:
        """Return the slate (steps,) of items (N, I) and log-probabilities (steps,), under softmax(score · sharpness).

        The items are the best ones, or with draws (steps,) drawn. They are raw numbers, or else what the network reads.
        """
        slate, logs = np.empty(steps, np.int64), np.empty(steps, np.float32)
        if not steps:
            return slate, logs
        if (
            items.shape != (len(items), self._inputs)
            or steps > len(items)
            or (draws is not None and len(draws) != steps)
        ):
            raise ValueError(f"no {steps} steps over items of shape {items.shape}: expected (N, {self._inputs})")
        where = (_address_of(array) for array in (items, draws, slate, logs))
        outcome = self._place_list(self._gemm, self._address, len(items), steps, is_raw, sharpness, *where)
        if outcome == _NO_MEMORY:
            raise MemoryError("no memory for the steps of a list")
        if outcome == _NOT_FINITE:
            raise NotFiniteError("a feature or a score is infinite or no number")
        return slate, logs

    def _scaling(self, columns: NumberColumns) -> _CScaling:
        where = [self._kept_numbers(numbers) for numbers in (columns.mean, columns.inverse_std)]
        return _CScaling(int(columns.scaling == "signed-log"), columns.clip, *where)

    def _resemblance(self, resemblance: Resemblance) -> _CResemblance:
        bends = expit(_stretched(resemblance.bends))
        with np.errstate(over="ignore", divide="ignore"):  # which is looked for below
            weights = np.exp(_stretched(resemblance.log_weights)) / bends
        numbers = {name: _stretched(value) for name, value in resemblance.numbers.items()}
        numbers["added"] = np.expm1(np.maximum(numbers["effect_placed"], -STRONGEST))
        chosen = [numbers[name] for name in ("offset", "threshold", "sharpness", "effect_above", "added")]
        _check_finite(np.array(chosen))
        where = [self._kept_numbers(each) for each in (_stretched(resemblance.relevance), bends, weights)]
        return _CResemblance(*where, *map(float, chosen))

    def _kept_numbers(self, numbers: FloatArray) -> int | None:
        self._kept.append(copy := np.array(numbers, np.float32, order="C"))
        _check_finite(copy)
        return _address_of(copy)

    def _kept_structure(self, structure: ctypes.Structure) -> int:
        self._kept.append(structure)
        return ctypes.addressof(structure)


def list_placer(network: SlateNetwork, columns: NumberColumns) -> ListPlacer | None:
    """Return the network for single lists in C; None if it is of another kind, or there is no compiler."""
    config, kernels = network.config, fused_kernels_for(network.v)
    plain = (config.encoder, config.layers, config.cell, config.decoder) == ("recurrent", 1, "lstm", "sequential")
    if kernels is None or not plain or config.bidirectional or config.reversed_input:
        return None
    return ListPlacer(kernels, network, columns)


def _stretched(stored: torch.Tensor) -> FloatArray:
    """Return what was learned as a number, which is stored divided by `PARAM_SCALE`."""
    values: FloatArray = (stored.detach() * PARAM_SCALE).numpy()
    return values


def _check_finite(numbers: FloatArray) -> None:
    if not np.isfinite(numbers).all():
        raise NotFiniteError("some weights of the network are too large")


def _address_of(array: npt.NDArray[Any] | None) -> int | None:
    if array is None:
        return None
    if not array.flags.c_contiguous or array.dtype not in (np.float32, np.int64):
        raise ValueError("the C kernels need contiguous arrays, float32 or int64")
    return array.ctypes.data
