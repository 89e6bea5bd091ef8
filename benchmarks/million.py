"""An experiment with a long log: a million impressions are written through the store, then analysed by a service.

Not part of `make bench`, since writing takes minutes: `python -m benchmarks.million [IMPRESSIONS]`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from benchmarks.service import served
from seq2slate.data.impressions import Impression
from seq2slate.log.impression_log import open_log
from seq2slate.progress import track

UNITS, ITEMS, READS, MOST_PENDING = 200_000, 10, 20, 2000
EXPERIMENT = """
name = "autumn"
[[arms]]
name = "control"
model = "base"
"""


def main() -> None:
    """Print how fast the log is written, and the latency of the analysis and of the pages."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        fill(f"{folder}/log.db", n)
        print(f"{n:,} impressions written: {n / (time.perf_counter() - started):,.0f} a second")
        Path(folder, "autumn.toml").write_text(EXPERIMENT)
        with served("--experiment", f"{folder}/autumn.toml", "--log", f"{folder}/log.db") as service:
            for path in ("/v1/experiment", "/", "/slates"):
                p50, worst = read(service.url + path)
                print(f"GET {path}: median {p50:.0f} ms, slowest of {READS} {worst:.0f} ms")


def fill(log: str, n: int) -> None:
    """Write impressions of two arms, and clicks on a third of them."""
    rng = np.random.default_rng(0)
    features, items = rng.normal(size=(ITEMS, 4)).astype(np.float32), [f"item-{i}" for i in range(ITEMS)]
    with open_log(log, capacity=2 * MOST_PENDING) as store:
        pending: list[Future[object]] = []
        start = time.time() - n / 100
        for number in track(range(n), "writing"):
            unit = int(rng.integers(UNITS))
            slate_id, shown = f"slate-{number}", rng.permutation(ITEMS).tolist()
            arm = ("control", "treated")[unit % 2]
            one = Impression(slate_id, start + number / 100, f"u{unit}", "autumn", arm, items, shown, features, 1.0)
            pending.append(store.add_impression(one))  # type: ignore[arg-type]
            if rng.random() < 0.3:
                clicked = items[shown[int(rng.integers(3))]]
                pending.append(store.add_click(slate_id, clicked, one.at + 1))  # type: ignore[arg-type]
            if len(pending) >= MOST_PENDING:
                for write in pending:
                    write.result()
                pending.clear()


def read(url: str) -> tuple[float, float]:
    """Return the median and the longest latency of READS requests, in milliseconds."""
    milliseconds = []
    for _ in range(READS):
        started = time.perf_counter()
        with urlopen(url) as response:
            content = response.read()
        milliseconds.append((time.perf_counter() - started) * 1e3)
        assert content, url
        if url.endswith("/v1/experiment"):
            assert len(json.loads(content)["arms"]) == 2
    return float(np.median(milliseconds)), max(milliseconds)


if __name__ == "__main__":
    main()
