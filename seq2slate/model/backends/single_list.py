"""One list at a time: raw columns go in, a slate comes out, and one call to C does it all (`native_list.c`).

The usual path from lists to slates is made for batches; for a single list most of its time is the way from one function
to the next. Here everything that does not depend on the list is done beforehand. This is for the networks of the
presets `paper` and `default`: one LSTM layer encodes, one decodes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seq2slate.data.features import EncodedLists, NumberColumns
from seq2slate.data.lists import Batch, FloatArray, IntArray
from seq2slate.data.ranker import empty_slates
from seq2slate.model.backends.backend import NativeBackend, Placed, RawList
from seq2slate.model.backends.kernels import KERNELS
from seq2slate.model.backends.native import CLstm, CPairColumns, CPairWeights, NativeKernels, addresses
from seq2slate.model.decoders import Sequential
from seq2slate.model.interactions import PARAM_SCALE, SCANNED, NoInteraction, PairwiseInteraction
from seq2slate.model.layers import LIMIT
from seq2slate.model.network import InputLists, SlateNetwork
from seq2slate.model.slate_model import SlateModel


class NotFiniteError(ArithmeticError):
    """A weight or a feature, or a score that comes of them, is NaN or infinite."""


class SingleListBackend(NativeBackend):
    """A network of two LSTM layers, in one call to C for each list.

    Slates and log-probabilities are those of the other backends, except where scores are so near each other that
    rounding decides.
    """

    quick_items = 32  # all of them are placed in a millisecond at most

    def __init__(self, model: SlateModel) -> None:
        super().__init__(model)
        self._program = _ListProgram(self.network, self.transform.dense)
        # Not so if base positions are an input.
        self._reads_numbers_only = (
            self.transform.reads_numbers_only and self.network.n_inputs == self.transform.dense.n_outputs
        )

    @classmethod
    def why_not(cls, network: SlateNetwork) -> str | None:
        """Return why one call to C cannot run a network; None if it can."""
        reason, config = super().why_not(network), network.config
        if reason is not None:
            return reason
        if KERNELS[cls.kernels].fused is None:
            return "there is no BLAS that C could call"
        if network.encoder.lstm is None:
            return f"the encoder is not one LSTM layer that reads forwards (encoder={config.encoder!r})"
        if network.decoder.lstm is None or type(network.decoder) is not Sequential:
            return f"the decoder is not one LSTM layer that places items one by one (decoder={config.decoder!r})"
        if type(network.interaction) not in (NoInteraction, PairwiseInteraction):
            return f"the interaction {config.interaction!r} is not written in C"
        return None

    def place(self, batch: Batch, steps: int, draws: FloatArray | None, sharpness: float) -> Placed:  # noqa: D102
        encoded, offsets = self.transform.apply(batch.lists), batch.lists.offsets
        slates = empty_slates(batch.lists.lengths, steps)
        logs = np.zeros(slates.shape, np.float32)
        for number in range(len(batch)):
            items = self._item_vectors(_one_list(encoded, offsets, number))
            own = min(steps, len(items))
            drawn = None if draws is None else draws[number, :own]
            slates[number, :own], logs[number, :own] = self._program.run(items, own, drawn, sharpness, is_raw=False)
        return slates, logs

    def place_one(self, one: RawList, steps: int, draws: FloatArray | None, sharpness: float) -> Placed:  # noqa: D102
        if not self._reads_numbers_only or one.context:
            items = self._item_vectors(self.transform.apply_arrays(*one))
            return self._program.run(items, steps, draws, sharpness, is_raw=False)
        try:
            with np.errstate(over="ignore"):
                rows = np.ascontiguousarray(one.features, np.float32)
            return self._program.run(rows, steps, draws, sharpness, is_raw=True)
        except (NotFiniteError, TypeError, ValueError):
            self.transform.apply_arrays(one.features)  # which says where it is, if it is in the features
            raise

    def _item_vectors(self, encoded: EncodedLists) -> FloatArray:
        """Return (n, I) what the network reads of each item of one list."""
        if encoded.dense.shape[1] == self.network.n_inputs:  # nothing but numbers
            return np.ascontiguousarray(encoded.dense)
        inputs = InputLists(encoded, np.array([len(encoded.dense)])).batch()
        with torch.no_grad():
            return np.ascontiguousarray(self.network.item_vectors(inputs)[:, 0].numpy())


class _CScaling(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("columns", "indicators", "scales", "takes_logarithm", "imputes")],
        ("clip", ctypes.c_float),
        *[(name, ctypes.c_void_p) for name in ("mean", "inverse_std", "imputed", "places")],
    ]


class _CPairwise(ctypes.Structure):
    _fields_ = [
        ("columns", CPairColumns),
        ("weights", CPairWeights),
        *[(name, ctypes.c_void_p) for name in ("relevance", "heads")],
        *[(name, ctypes.c_float) for name in ("offset", "scanned")],
    ]


class _CNetwork(ctypes.Structure):
    _fields_ = [
        *[(name, CLstm) for name in ("encoder", "decoder")],
        *[(name, ctypes.c_void_p) for name in ("w_enc", "w_dec", "go", "v", "prior")],
        ("positions", ctypes.c_int64),
        *[(name, ctypes.c_float) for name in ("limit", "strength")],
        *[(name, ctypes.c_void_p) for name in ("pairwise", "scaling")],
    ]


class _ListProgram:
    """The weights of a network, where C finds them; it may be called from several threads at once."""

    def __init__(self, network: SlateNetwork, columns: NumberColumns) -> None:
        kernels, encoder, decoder = KERNELS["native"], network.encoder.lstm, network.decoder.lstm
        assert isinstance(kernels, NativeKernels), "the backend runs only where there are C kernels"
        assert encoder is not None, "the encoder is one LSTM layer"
        assert decoder is not None, "the decoder is one LSTM layer"
        self._place_list, self._gemm = kernels.library.place_list, kernels.gemm
        self._no_memory, self._not_finite = (
            ctypes.c_int.in_dll(kernels.library, name).value for name in ("no_memory", "not_finite")
        )
        self._inputs, self._raw_inputs = network.n_inputs, len(columns.names)
        self._kept: list[object] = []  # what C has the address of
        strength, v = float(network.strength), network.strength * network.v
        others = [weights.detach() for weights in (network.w_enc, network.w_dec, network.go, v)]
        prior, interaction = None if network.prior is None else _scaled(network.prior), network.interaction
        self._kept += [encoder, decoder, *others]
        self._network = _CNetwork(
            CLstm.of(encoder),
            CLstm.of(decoder),
            *addresses(*others),
            None if prior is None else self._kept_numbers(prior),
            0 if prior is None else len(prior),
            LIMIT,
            strength,
            self._kept_structure(self._pairwise(interaction)) if isinstance(interaction, PairwiseInteraction) else None,
            self._kept_structure(self._scaling(columns)),
        )
        self._address = ctypes.addressof(self._network)

    def run(self, items: FloatArray, steps: int, draws: FloatArray | None, sharpness: float, *, is_raw: bool) -> Placed:
        """Return the slate (steps,) of items (N, I) and log-probabilities (steps,), under softmax(score · sharpness).

        The items are the best ones, or with draws (steps,) sampled. They are raw numbers (N, F), NaN where one is
        missing, or else what the network reads.
        """
        slate, logs = np.empty(steps, np.int64), np.empty(steps, np.float32)
        if not steps:
            return slate, logs
        width = self._raw_inputs if is_raw else self._inputs
        if items.shape != (len(items), width) or steps > len(items) or (draws is not None and len(draws) != steps):
            raise ValueError(f"no {steps} steps over items of shape {items.shape}: expected (N, {width})")
        where = (_address_of(array) for array in (items, draws, slate, logs))
        outcome = self._place_list(self._gemm, self._address, len(items), steps, is_raw, sharpness, *where)
        if outcome == self._no_memory:
            raise MemoryError("no memory for the steps of a list")
        if outcome == self._not_finite:
            raise NotFiniteError("a feature or a score is NaN or infinite")
        return slate, logs

    def _scaling(self, columns: NumberColumns) -> _CScaling:
        numbers = [self._kept_numbers(each) for each in (columns.mean, columns.inverse_std, columns.imputed)]
        self._kept.append(places := columns.indicator_places)
        return _CScaling(
            len(columns.names),
            len(places),
            columns.scaling != "none",
            columns.scaling == "signed-log",
            columns.missing == "impute",
            columns.clip,
            *numbers,
            _address_of(places),
        )

    def _pairwise(self, interaction: PairwiseInteraction) -> _CPairwise:
        with torch.no_grad():
            columns, weights = interaction.columns, interaction.weights
            numbers = [float(interaction.number("offset")), SCANNED]
        self._kept += [columns, weights]
        for tensor in (weights.effects, weights.crowding, weights.strengths, weights.constant):
            _check_finite(tensor.numpy())
        _check_finite(np.array(numbers))
        where = [
            self._kept_numbers(each) for each in (_scaled(interaction.relevance), interaction.heads.detach().numpy())
        ]
        return _CPairwise(CPairColumns.of(columns), CPairWeights.of(weights), *where, *numbers)

    def _kept_numbers(self, numbers: FloatArray) -> int | None:
        self._kept.append(copy := np.array(numbers, np.float32, order="C"))
        _check_finite(copy)
        return _address_of(copy)

    def _kept_structure(self, structure: ctypes.Structure) -> int:
        self._kept.append(structure)
        return ctypes.addressof(structure)


def _scaled(stored: torch.Tensor) -> FloatArray:
    """Return a parameter as the formulas have it; it is stored divided by `PARAM_SCALE`."""
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


def _one_list(encoded: EncodedLists, offsets: IntArray, number: int) -> EncodedLists:
    rows, only = slice(offsets[number], offsets[number + 1]), slice(number, number + 1)
    return EncodedLists(
        encoded.dense[rows],
        {name: codes[rows] for name, codes in encoded.categorical.items()},
        encoded.context[only],
        {name: codes[only] for name, codes in encoded.context_categorical.items()},
    )
