"""How much memory a piece of code takes, whoever allocates it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

_POOLS: list[Any] = []  # a pool must outlive the arrays that it gave out


@contextmanager
def measured_memory() -> Iterator[Callable[[], tuple[int, int]]]:
    """Yield a function that returns the bytes held now and at the peak, of NumPy and Arrow together."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()

    def held_and_peak() -> tuple[int, int]:
        held, peak = tracemalloc.get_traced_memory()
        return held + pool.bytes_allocated(), peak + pool.max_memory()

    try:
        yield held_and_peak
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
