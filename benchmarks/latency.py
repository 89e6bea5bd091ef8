"""One request: the time from the raw columns of one list to its slate, one thread, F=136, D=128, the paper's network.

The textbook's network gets its columns as a tensor, ready to be read; the others normalise theirs first. All are
measured in turns of some requests each, so that a busy moment hits all of them and each finds its weights in the cache,
as in a service; the figures are medians over all turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.network import HIDDEN, N_FEATURES, Rows
from benchmarks.textbook import TextbookPointerNetwork
from seq2slate.config import NetworkConfig, configure
from seq2slate.data.lists import FloatArray, ItemLists
from seq2slate.model.backends.backend import choose_backend
from seq2slate.model.backends.onnx import OnnxRanker
from seq2slate.model.backends.onnx_export import onnx_model
from seq2slate.model.slate_model import SlateModel

CASES = ((10, None, 5.0), (100, 10, 2.5), (100, None, 5.0))
"""Items, slots, and how many times faster than the textbook's a request should be."""
TURNS, REQUESTS = 25, 12


def run() -> Rows:
    """Return the median milliseconds of a request, and how many times faster than the textbook's that is."""
    torch.set_num_threads(1)
    rows: Rows = []
    for n_items, k, bar in CASES:
        features = np.random.default_rng(n_items).normal(size=(n_items, N_FEATURES)).astype(np.float32)
        paper, default = (new_model(configure(preset).network) for preset in ("paper", "default"))
        p50 = medians(
            {
                "textbook": textbook_request(features, k),
                "ONNX Runtime": onnx_request(paper, features, k),
                "Runtime": backend_request(paper, features, k),
                "Runtime, preset default": backend_request(default, features, k),
            }
        )
        rows.append(
            {
                "items": n_items,
                "slots": "all" if k is None else str(k),
                **{f"{name}, ms": seconds * 1e3 for name, seconds in p50.items()},
                "ratio, ONNX Runtime": p50["textbook"] / p50["ONNX Runtime"],
                "ratio, Runtime": p50["textbook"] / p50["Runtime"],
                "bar": bar,
            }
        )
    return rows


def medians(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, way in ways.items():
            for _ in range(REQUESTS):
                start = time.perf_counter()
                way()
                if turn:  # the first turn warms up
                    seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(times)) for name, times in seconds.items()}


# One request each


def new_model(config: NetworkConfig) -> SlateModel:
    rng = np.random.default_rng(0)
    lists = ItemLists(rng.normal(size=(1000, N_FEATURES)), np.arange(0, 1001, 10))
    return SlateModel.create(lists, config, seed=0)


def textbook_request(features: FloatArray, k: int | None) -> Callable[[], object]:
    network = TextbookPointerNetwork(N_FEATURES, HIDDEN).eval()
    items, mask = torch.from_numpy(features)[None], torch.ones(1, len(features), dtype=torch.bool)
    return torch.no_grad()(lambda: network(items, mask, k))


def onnx_request(model: SlateModel, features: FloatArray, k: int | None) -> Callable[[], object]:
    exported = OnnxRanker(onnx_model(model), threads=1)
    inputs = {"features": features[None], "lengths": np.array([len(features)])}
    return lambda: exported.run(inputs, k or len(features))


def backend_request(model: SlateModel, features: FloatArray, k: int | None) -> Callable[[], object]:
    backend = choose_backend(model)
    return lambda: backend.slate(features, k)
