"""The service under load: latency at 200 requests a second, and the highest rate that it keeps up with.

A service runs in one process with its log on, this one sends requests of 10 items with 136 features over loopback HTTP.
Arrivals are random (Poisson) and do not wait for answers; a latency counts from the moment when the request was due, so
that a service that falls behind cannot hide it. The latencies are those of the best of some runs, and beside them
stands what `GET /healthz`, which does nothing, takes in the same way: the share of HTTP, this client and the machine's
moment. Run with `python -m benchmarks service`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.latency import new_model
from benchmarks.network import N_FEATURES, Rows
from seq2slate.training.config import PRESETS

N_ITEMS = 10
RATE, P50_BAR, P99_BAR = 200, 3.0, 15.0
"""Requests a second, and the milliseconds they may take."""
HIGHEST_P99 = 25.0
STEP = 100
"""Requests a second between one attempt at the highest rate and the next."""
SECONDS, SECONDS_OF_NOTHING, WARM_UP_SECONDS, SECONDS_A_RATE = 6.0, 2.0, 2.0, 4.0
RUNS = 5
CONNECTIONS = 64
NOTHING = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def run() -> Rows:
    """Return a row for each preset: latencies at the fixed rate, and the highest rate within its bar."""
    rows: Rows = []
    for preset in ("paper", "default"):
        with served(preset) as url:
            measure(url, RATE, WARM_UP_SECONDS)
            pairs = [
                (_run_at(url, RATE, SECONDS), _run_at(url, RATE, SECONDS_OF_NOTHING, NOTHING)) for _ in range(RUNS)
            ]
            (p50, p99, _), (nothing, *_) = min(pairs)
            errors = sum(errors for (*_, errors), _ in pairs)
            rows.append(
                {
                    "preset": preset,
                    "requests/s": RATE,
                    "p50, ms": p50,
                    "bar, p50": P50_BAR,
                    "p99, ms": p99,
                    "bar, p99": P99_BAR,
                    "errors in all runs": errors,
                    "p50 of /healthz, ms": nothing,
                    f"highest rate, p99 < {HIGHEST_P99:g} ms": highest_rate(url),
                }
            )
    return rows


def highest_rate(url: str) -> int:
    """Raise the rate until it is too much, twice in a row."""
    rate, best, misses = RATE, 0, 0
    while misses < 2:
        _, p99, errors = _run_at(url, rate, SECONDS_A_RATE)
        if errors or p99 >= HIGHEST_P99:
            misses += 1
        else:
            best, misses = rate, 0
        rate += STEP
    return best


def _run_at(url: str, rate: float, seconds: float, request: bytes | None = None) -> tuple[float, float, int]:
    """Return the median and the 99th percentile, in milliseconds, and the number of errors."""
    latencies, errors = measure(url, rate, seconds, request)
    p50, p99 = np.percentile(latencies, [50, 99]).tolist()
    return p50, p99, errors


@contextmanager
def served(preset: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        new_model(PRESETS[preset].network).save(Path(folder) / "model")
        command = [sys.executable, "-m", "seq2slate.cli", "serve", f"{folder}/model"]
        options = ["--log", f"{folder}/log.db", "--port", "0"]
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().split()[-1]
            finally:
                process.terminate()


def measure(url: str, rate: float, seconds: float, request: bytes | None = None) -> tuple[list[float], int]:
    """Return the milliseconds of every request, and how many were not answered with a logged slate of the model.

    With a `request` that is sent instead, an error is whatever is not 200.
    """
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=_precise_loop) as runner:
        return runner.run(_measure(urlsplit(url).netloc, rate, seconds, request))


def _precise_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that sends when a request is due: epoll, which is usual, rounds waits up to milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def _measure(address: str, rate: float, seconds: float, request: bytes | None) -> tuple[list[float], int]:
    host, _, port = address.partition(":")
    rng = np.random.default_rng(0)
    free: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
    for _ in range(CONNECTIONS):
        free.put_nowait(Connection(*await asyncio.open_connection(host, int(port))))
    bodies = [_request(rng, number) for number in range(64)] if request is None else [request]
    due = np.cumsum(rng.exponential(1 / rate, int(rate * seconds))) + time.perf_counter() + 0.05
    latencies: list[float] = []
    errors = 0

    async def one(moment: float, body: bytes) -> None:
        nonlocal errors
        connection = await free.get()
        if not await connection.is_answered(body, with_slate=request is None):
            errors += 1
        latencies.append((time.perf_counter() - moment) * 1e3)
        free.put_nowait(connection)

    async with asyncio.TaskGroup() as tasks:
        for number, moment in enumerate(due):
            await asyncio.sleep(max(0.0, moment - time.perf_counter()))
            tasks.create_task(one(moment, bodies[number % len(bodies)]))
    while not free.empty():
        free.get_nowait().close()
    return latencies, errors


class Connection:
    """A connection that stays open, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def is_answered(self, request: bytes, *, with_slate: bool) -> bool:
        """Send a request, and say whether it was answered, with a logged slate of the model if that is asked for."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer = json.loads(await self._reader.readexactly(length))
        is_good = not with_slate or (answer["slate_id"] is not None and not answer["fallback"])
        return head.startswith(b"HTTP/1.1 200") and is_good

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


def _request(rng: np.random.Generator, number: int) -> bytes:
    rows = rng.normal(size=(N_ITEMS, N_FEATURES)).round(6).tolist()
    items = [{"id": f"item-{item}", "features": row} for item, row in enumerate(rows)]
    body = json.dumps({"unit": f"unit-{number}", "items": items}).encode()
    headers = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"POST /v1/rerank HTTP/1.1\r\n{headers}\r\n\r\n".encode() + body
