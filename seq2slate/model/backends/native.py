"""Compile the C kernels with the machine's own compiler, once, and load them; None where that cannot be done.

The library lies in the user's cache folder under a name made of the source, the flags and the processor, so that
another version or another machine never loads it by mistake. Set `SEQ2SLATE_NATIVE=0` to do without.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import torch

from seq2slate.atomic import atomic_path

_SOURCES = [Path(__file__).with_name(name) for name in ("native.c", "native_list.c")]
_HEADER = Path(__file__).with_name("native.h")
# Infinities and NaN are looked for by their bits, where at all, so the compiler need not care for them elsewhere.
_FLAGS = (
    *("-std=c11", "-O3", "-fPIC", "-shared"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-ffinite-math-only"),
)
_WISHES = (("-march=native", "-fopenmp"), ("-march=native", "-fopenmp-simd"), ())
"""Flags that not every compiler has, from best to none."""


@cache
def native_library() -> ctypes.CDLL | None:
    """Return the compiled kernels; None without a working C compiler or when `SEQ2SLATE_NATIVE=0`."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if os.environ.get("SEQ2SLATE_NATIVE") == "0" or compiler is None:
        return None
    for wishes in _WISHES:
        try:
            return ctypes.CDLL(str(_compiled(compiler, wishes)))
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


def _compiled(compiler: str, wishes: tuple[str, ...]) -> Path:
    target = _cache_folder() / f"native-{_fingerprint(compiler, wishes)}.so"
    if not target.exists():
        with atomic_path(target) as partial:
            command = [compiler, *_FLAGS, *wishes, *map(str, _SOURCES), "-lm", "-o", str(partial)]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
    return target


def _fingerprint(compiler: str, wishes: tuple[str, ...]) -> str:
    parts = (
        *(path.read_text() for path in (_HEADER, *_SOURCES)),
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
