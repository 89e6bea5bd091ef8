"""Time several implementations of the same work against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def best_seconds(
    implementations: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the best time of each, measured in turns so that a busy moment of the machine hits all of them."""
    best = dict.fromkeys(implementations, float("inf"))
    for _ in range(repeats):
        for name, work in implementations.items():
            start = clock()
            work()
            best[name] = min(best[name], clock() - start)
    return best
