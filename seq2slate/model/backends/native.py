"""The kernels in C, compiled once with the machine's own compiler; there are none where that cannot be done.

The library lies in the user's cache folder under a name made of the source, the flags and the processor, so that
another version or another machine never loads it by mistake. It runs with the rights of the user, so a folder or
library that others own or can write to is not loaded. Set `SEQ2SLATE_NATIVE=0` to do without.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from seq2slate.atomic import atomic_path

if TYPE_CHECKING:
    from seq2slate.model.backends.kernels import (
        Decoding,
        LstmDecoder,
        LstmEncoder,
        LstmScan,
        LstmScanGradients,
        LstmWeights,
        PointerGradients,
        StepRows,
    )
    from seq2slate.model.backends.pairs import PairColumns, PairGradients, Pairs, PairWeights, PlacedPairs

_SOURCES = [
    Path(__file__).with_name(name) for name in ("native.c", "native_coordinates.c", "native_pairs.c", "native_list.c")
]
_HEADERS = [Path(__file__).with_name(name) for name in ("native.h", "native_pairs.h")]
# Infinities and NaN are looked for by their bits, where at all, so the compiler need not care for them elsewhere.
_FLAGS = (
    *("-std=c11", "-O3", "-fPIC", "-shared"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-ffinite-math-only"),
)
_WISHES = (("-march=native", "-fopenmp"), ("-march=native", "-fopenmp-simd"), ())
"""Flags that not every compiler has, from best to none."""
_INTEGER, _NUMBER, _POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
_SIGNATURES = {
    "lstm_forward": [_INTEGER] * 2 + [_POINTER] * 5,
    "lstm_backward": [_INTEGER] * 2 + [_POINTER] * 6,
    "pointer_factors": [_INTEGER, _NUMBER, _POINTER],
    "pointer_step": [_POINTER, _INTEGER, _INTEGER, _POINTER, _POINTER],
    "pointer_forward": [_INTEGER] * 4 + [_POINTER] * 7,
    "pointer_backward": [_INTEGER] * 4 + [_POINTER] * 9,
    "expected_logits": [_INTEGER] * 2 + [_POINTER] * 2,
    "pair_coordinates": [_POINTER] + [_INTEGER] * 3 + [_POINTER] * 3,
    "pair_effects_forward": [_POINTER] + [_INTEGER] * 2 + [_POINTER] * 6,
    "pair_effects_backward": [_POINTER] + [_INTEGER] * 2 + [_POINTER] * 7,
    "places_forward": [_POINTER] + [_INTEGER] * 2 + [_POINTER] * 5,
    "places_backward": [_POINTER] + [_INTEGER] * 2 + [_POINTER] * 6,
    "clicks_above_forward": [_INTEGER] * 2 + [_POINTER] * 3,
    "clicks_above_backward": [_INTEGER] * 2 + [_POINTER] * 3,
    "placed_rows": [_INTEGER] * 3 + [_POINTER] * 3,
    "lstm_scan_forward": [_POINTER] * 2,
    "lstm_scan_backward": [_POINTER] * 3,
    "lstm_encode": [_POINTER, _POINTER, _INTEGER, _INTEGER, _NUMBER] + [_POINTER] * 6,
    "lstm_decode": [_POINTER] * 3,
    "place_list": [_POINTER, _POINTER, _INTEGER, _INTEGER, ctypes.c_int, _NUMBER] + [_POINTER] * 4,
}


_logger = logging.getLogger("seq2slate.model")


class CLstm(ctypes.Structure):
    """The struct `lstm`."""

    _fields_ = [
        *[(name, _INTEGER) for name in ("inputs", "d")],
        *[(name, _POINTER) for name in ("weight_input", "weight_hidden", "bias")],
    ]

    @classmethod
    def of(cls, layer: LstmWeights) -> CLstm:
        """Return where C finds the weights of a layer, which must be kept."""
        arrays = addresses(layer.weight_input, layer.weight_hidden, layer.bias)
        return cls(layer.weight_input.shape[0], layer.weight_hidden.shape[0], *arrays)


class _CLstmScan(ctypes.Structure):
    _fields_ = [
        ("layer", CLstm),
        *[(name, _INTEGER) for name in ("steps", "lists")],
        *[(name, _POINTER) for name in ("rows", "x", "start", "gates", "c", "h")],
    ]

    @classmethod
    def of(cls, scan: LstmScan) -> _CLstmScan:
        arrays = addresses(scan.rows, scan.x, scan.start, scan.gates, scan.c, scan.h)
        return cls(CLstm.of(scan.layer), *scan.gates.shape[:2], *arrays)


class _CLstmScanGradients(ctypes.Structure):
    _fields_ = [
        *[(name, _POINTER) for name in ("last", "doutputs", "dh_last", "dc_last", "dgates", "dh", "dc")],
        *[(name, _POINTER) for name in ("dweight_input", "dweight_hidden", "dbias", "dx", "dstart")],
    ]


class _CPlacedPairs(ctypes.Structure):
    _fields_ = [("weight", _NUMBER), *[(name, _POINTER) for name in ("logits", "effects")]]

    @classmethod
    def of(cls, placed: PlacedPairs | None) -> _CPlacedPairs:
        return cls() if placed is None else cls(placed.weight, *addresses(placed.logits, placed.effects))


class _CDecoding(ctypes.Structure):
    _fields_ = [
        *[(name, _INTEGER) for name in ("lists", "n", "d", "steps")],
        ("sharpness", _NUMBER),
        *[(name, _POINTER) for name in ("keys", "v", "draws", "interaction")],
        ("placed", _CPlacedPairs),
        *[(name, _POINTER) for name in ("bias", "left", "scores", "slates")],
    ]

    @classmethod
    def of(cls, state: Decoding) -> _CDecoding:
        read = addresses(state.keys, state.v, state.draws, state.interaction)
        written = addresses(state.bias, state.left, state.scores, state.slates)
        sizes = *state.keys.shape, state.slates.shape[1]
        return cls(*sizes, state.sharpness, *read, _CPlacedPairs.of(state.placed), *written)


class _CDecoder(ctypes.Structure):
    _fields_ = [
        ("layer", CLstm),
        ("limit", _NUMBER),
        *[(name, _POINTER) for name in ("items", "go", "w_dec", "keep", "h", "c", "wanted")],
        *[(name, _POINTER) for name in ("kept_gates", "kept_c", "kept_h")],
    ]


class CPairColumns(ctypes.Structure):
    """The struct `pair_columns`."""

    _fields_ = [
        *[(name, _INTEGER) for name in ("columns", "knots", "median")],
        *[(name, _NUMBER) for name in ("largest_log", "least_gap", "least", "shortest", "least_spread")],
        *[(name, _POINTER) for name in ("levels", "spreads", "are_logarithms", "quantiles")],
    ]

    @classmethod
    def of(cls, by: PairColumns) -> CPairColumns:
        """Return where C finds the numbers, which must be kept."""
        arrays = addresses(by.levels, by.spreads, by.are_logarithms, by.quantiles)
        sizes = len(by.levels), len(by.quantiles), by.median
        return cls(*sizes, by.largest_log, by.least_gap, by.least, by.shortest, by.least_spread, *arrays)


class CPairWeights(ctypes.Structure):
    """The struct `pair_weights`."""

    _fields_ = [
        *[(name, _INTEGER) for name in ("knots", "heads", "head_width")],
        *[(name, _NUMBER) for name in ("sharpness", "constant", "least")],
        *[(name, _POINTER) for name in ("effects", "crowding", "strengths")],
    ]

    @classmethod
    def of(cls, weights: PairWeights) -> CPairWeights:
        """Return where C finds the weights, which must be kept."""
        sizes = weights.effects.shape[1], len(weights.strengths), weights.head_width
        numbers = weights.sharpness, float(weights.constant), weights.least
        return cls(*sizes, *numbers, *addresses(weights.effects, weights.crowding, weights.strengths))


class _CPairGradients(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in ("effects", "crowding", "strengths", "constant", "places")]


class NativeKernels:
    """The functions of `kernels.Kernels` in C, for float32 on the CPU."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.gemm = gemm_address()
        """Where C finds the matrix product of BLAS; None if there is none."""
        for name, arguments in _SIGNATURES.items():
            getattr(library, name).argtypes = arguments

    @property
    def fused(self) -> NativeKernels | None:
        """The loops that run as a whole, which need a BLAS to call."""
        return self if self.gemm is not None else None

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why C cannot run on tensors of this kind; None if it can."""
        if device.type != "cpu":
            return f"the C kernels run on the CPU, and the network is on {device}"
        if dtype != torch.float32:
            return f"the C kernels compute in float32, and the network in {str(dtype).removeprefix('torch.')}"
        return None

    def lstm_forward(self, gates: Tensor, bias: Tensor, before: Tensor, c: Tensor, h: Tensor) -> None:  # noqa: D102
        self.library.lstm_forward(*c.shape, *addresses(gates, bias, before, c, h))

    def lstm_backward(  # noqa: D102
        self, gates: Tensor, before: Tensor, c: Tensor, dh: Tensor, dc: Tensor, dgates: Tensor
    ) -> None:
        self.library.lstm_backward(*c.shape, *addresses(gates, before, c, dh, dc, dgates))

    def pointer_factors(self, x: Tensor, limit: float) -> None:  # noqa: D102
        self.library.pointer_factors(x.numel(), limit, *addresses(x))

    def pointer_step(self, decoding: Decoding, step: int, lists: Tensor, queries: Tensor) -> None:  # noqa: D102
        now = _CDecoding.of(decoding)
        self.library.pointer_step(ctypes.byref(now), step, len(lists), *addresses(lists, queries))

    def pointer_forward(  # noqa: D102
        self, rows: StepRows, keys: Tensor, queries: Tensor, v: Tensor, scores: Tensor
    ) -> None:
        arrays = addresses(rows.lists, rows.stops, rows.slots, keys, queries, v, scores)
        _check_memory(self.library.pointer_forward(len(rows.lists), *keys.shape[1:], scores.shape[1], *arrays))

    def pointer_backward(  # noqa: D102
        self, rows: StepRows, keys: Tensor, queries: Tensor, v: Tensor, dscores: Tensor, gradients: PointerGradients
    ) -> None:
        written = gradients.keys, gradients.queries, gradients.v
        arrays = addresses(rows.lists, rows.stops, keys, queries, v, dscores, *written)
        self.library.pointer_backward(len(rows.lists), *keys.shape[1:], dscores.shape[1], *arrays)

    def expected_logits(self, effects: Tensor, logits: Tensor) -> None:  # noqa: D102
        _check_memory(self.library.expected_logits(*logits.shape, *addresses(effects, logits)))

    def pair_coordinates(self, columns: PairColumns, items: Tensor, lengths: Tensor, coordinates: Tensor) -> None:  # noqa: D102
        n_items, n_lists, width = items.shape
        own, arrays = CPairColumns.of(columns), addresses(lengths, items, coordinates)
        _check_memory(self.library.pair_coordinates(ctypes.byref(own), n_lists, n_items, width, *arrays))

    def pair_effects_forward(self, weights: PairWeights, pairs: Pairs, effects: Tensor, crowding: Tensor) -> None:  # noqa: D102
        own, arrays = CPairWeights.of(weights), [*_pair_addresses(pairs), *addresses(effects, crowding)]
        _check_memory(self.library.pair_effects_forward(ctypes.byref(own), *crowding.shape, *arrays))

    def pair_effects_backward(  # noqa: D102
        self, weights: PairWeights, pairs: Pairs, deffects: Tensor, dcrowding: Tensor, gradients: PairGradients
    ) -> None:
        own, arrays = CPairWeights.of(weights), [*_pair_addresses(pairs), *addresses(deffects, dcrowding)]
        into = _CPairGradients(*addresses(*gradients.tensors))
        _check_memory(
            self.library.pair_effects_backward(ctypes.byref(own), *dcrowding.shape, *arrays, ctypes.byref(into))
        )

    def places_forward(  # noqa: D102
        self, weights: PairWeights, lengths: Tensor, seen: Tensor, places: Tensor, relevance: Tensor, scales: Tensor
    ) -> None:
        own, arrays = CPairWeights.of(weights), addresses(lengths, seen, places, relevance, scales)
        self.library.places_forward(ctypes.byref(own), *relevance.shape, *arrays)

    def places_backward(  # noqa: D102
        self,
        weights: PairWeights,
        lengths: Tensor,
        places: tuple[Tensor, Tensor],
        given: tuple[Tensor, Tensor],
        dseen: Tensor,
    ) -> None:
        own, arrays = CPairWeights.of(weights), addresses(lengths, *places, *given, dseen)
        self.library.places_backward(ctypes.byref(own), *given[1].shape, *arrays)

    def clicks_above_forward(self, clicked: Tensor, effects: Tensor, logits: Tensor) -> None:  # noqa: D102
        self.library.clicks_above_forward(*logits.shape, *addresses(clicked, effects, logits))

    def clicks_above_backward(self, clicked: Tensor, dlogits: Tensor, deffects: Tensor) -> None:  # noqa: D102
        self.library.clicks_above_backward(*dlogits.shape, *addresses(clicked, dlogits, deffects))

    def placed_rows(self, placed: PlacedPairs, slates: Tensor, added: Tensor) -> None:  # noqa: D102
        own, sizes = _CPlacedPairs.of(placed), (*placed.logits.shape, slates.shape[1])
        self.library.placed_rows(*sizes, ctypes.byref(own), *addresses(slates, added))

    # Whole loops over the steps of one LSTM layer

    def lstm_scan_forward(self, scan: LstmScan) -> None:
        """Read step after step."""
        self.library.lstm_scan_forward(self.gemm, ctypes.byref(_CLstmScan.of(scan)))

    def lstm_scan_backward(self, scan: LstmScan, by: LstmScanGradients) -> None:
        """Write its gradients."""
        dgates = scan.gates.new_empty(scan.gates.shape[1] + 1, scan.gates.shape[2])
        given = addresses(by.last, by.doutputs, by.dh_last, by.dc_last, dgates)
        written = addresses(by.dh, by.dc, by.dweight_input, by.dweight_hidden, by.dbias, by.dx, by.dstart)
        gradients = _CLstmScanGradients(*given, *written)
        self.library.lstm_scan_backward(self.gemm, ctypes.byref(_CLstmScan.of(scan)), ctypes.byref(gradients))

    def lstm_encode(self, encoder: LstmEncoder, factors: Tensor, h: Tensor, c: Tensor) -> None:
        """Read the lists: factors (B, N, D) of the keys, and the state h, c (B, D) after the last item of each."""
        layer, items = CLstm.of(encoder.layer), encoder.items
        arrays = addresses(items, encoder.last, encoder.w_enc, factors, h, c)
        _check_memory(
            self.library.lstm_encode(self.gemm, ctypes.byref(layer), *items.shape[:2], encoder.limit, *arrays)
        )

    def lstm_decode(self, decoding: Decoding, decoder: LstmDecoder) -> None:
        """Take all steps of decoding, each list until none of its wanted items is left."""
        others = addresses(decoder.items, decoder.go, decoder.w_dec, decoder.keep, decoder.h, decoder.c, decoder.wanted)
        if (trace := decoder.trace) is not None:
            others += addresses(trace.gates, trace.c, trace.h)
        now, net = _CDecoding.of(decoding), _CDecoder(CLstm.of(decoder.layer), decoder.limit, *others)
        _check_memory(self.library.lstm_decode(self.gemm, ctypes.byref(now), ctypes.byref(net)))


def addresses(*tensors: Tensor | None) -> list[int | None]:
    """Return where the tensors lie; C reads each as one block of memory, so that is checked first."""
    if not all(tensor is None or tensor.is_contiguous() for tensor in tensors):
        raise ValueError("the C kernels need contiguous tensors")
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def _pair_addresses(pairs: Pairs) -> list[int | None]:
    """Return where lengths, coordinates, as floats or else in 16 bits, and places lie."""
    found = pairs.coordinates
    is_float = found is not None and found.is_floating_point()
    return addresses(pairs.lengths, found if is_float else None, None if is_float else found, pairs.places)


def _check_memory(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for the decoder's steps")


# The library


def native_kernels() -> NativeKernels | None:
    """Return the kernels in C; None without a working C compiler or when `SEQ2SLATE_NATIVE=0`."""
    library = native_library()
    return None if library is None else NativeKernels(library)


@cache
def native_library() -> ctypes.CDLL | None:
    """Return the compiled library; None without a working C compiler or when `SEQ2SLATE_NATIVE=0`."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if os.environ.get("SEQ2SLATE_NATIVE") == "0" or compiler is None:
        return None
    for wishes in _WISHES:
        try:
            return _loaded(compiler, wishes)
        except (OSError, RuntimeError, subprocess.SubprocessError):  # RuntimeError: there is no home folder
            continue
    return None


@cache
def gemm_address() -> int | None:
    """Return where BLAS's sgemm lies, in the library that PyTorch has loaded or else in SciPy's; None if in neither."""
    library = next(iter(Path(torch.__file__).with_name("lib").glob("libtorch_cpu.*")), None)
    try:
        return ctypes.cast(ctypes.CDLL(str(library)).sgemm_, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return _scipy_gemm_address()


def _scipy_gemm_address() -> int | None:
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__["sgemm"]
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int | None = pointer_of(capsule, name_of(capsule))
    return address


def _loaded(compiler: str, wishes: tuple[str, ...]) -> ctypes.CDLL:
    """Return the library from the cache folder, or from a folder for this process alone if others can write there."""
    folder, name = _cache_folder(), f"native-{_fingerprint(compiler, wishes)}.so"
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    if danger := _danger(folder):
        _logger.warning("%s, so the C kernels are compiled for this process alone", danger)
        with tempfile.TemporaryDirectory(prefix="seq2slate-") as private:
            return ctypes.CDLL(str(_compiled(Path(private) / name, compiler, wishes)))
    target = folder / name
    if danger := _danger(target):
        _logger.warning("%s, so the C kernels are compiled again", danger)
        target.unlink(missing_ok=True)
    return ctypes.CDLL(str(target if target.exists() else _compiled(target, compiler, wishes)))


def _danger(path: Path) -> str | None:
    """Say why somebody else could have put code here; None if nobody could, or there is nothing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if found.st_uid not in (os.geteuid(), 0):  # the administrator can do anything anyway
        return f"{path} belongs to another user (number {found.st_uid})"
    return f"{path} can be written by others (chmod go-w)" if found.st_mode & 0o022 else None


def _compiled(target: Path, compiler: str, wishes: tuple[str, ...]) -> Path:
    with atomic_path(target, mode=0o644) as partial:
        command = [compiler, *_FLAGS, *wishes, *map(str, _SOURCES), "-lm", "-o", str(partial)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    return target


def _fingerprint(compiler: str, wishes: tuple[str, ...]) -> str:
    parts = (
        *(path.read_text() for path in (*_HEADERS, *_SOURCES)),
        compiler,
        *_FLAGS,
        *wishes,
        platform.machine(),
        _processor(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Return what tells one processor from another: a library made for one may not run on the next."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "seq2slate"
