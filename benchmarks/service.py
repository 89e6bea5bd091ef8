"""The service under load: latency at 200 requests a second, CPU time, and the highest rate that it keeps up with.

A service runs in one process, or in two, with its log on; this one sends requests of 10 items with 136 features over
loopback HTTP, and shares the cores with it. It is an open-loop load: Poisson arrivals that do not wait for responses.
Latency counts from the time at which a request was due, so that a service that falls behind cannot hide it. The
latencies are those of the best run. Beside them stands the latency of `GET /healthz`, which does no work: the share of
HTTP, of the client and of the machine's current load. Run with `python -m benchmarks service`.
"""

from __future__ import annotations

import gc
import json
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.latency import new_model
from benchmarks.network import N_FEATURES
from benchmarks.tables import Rows
from seq2slate.config import configure

N_ITEMS = 10
RATE, P50_BAR, P99_BAR = 200, 3.0, 15.0
"""Requests a second, and the milliseconds that they may take."""
HIGHEST_P99 = 25.0
STEP = 100
"""Requests a second between one attempt at the highest rate and the next."""
SECONDS, HEALTH_SECONDS, WARM_UP_SECONDS, ATTEMPT_SECONDS = 6.0, 2.0, 2.0, 4.0
CPU_RATE, CPU_SECONDS = 600, 3.0
RUNS, ATTEMPTS = 3, 3
CONNECTIONS = N_REQUESTS = 64
TIMEOUT = 30.0
"""Seconds without any response, after which the run fails."""
HEALTH_CHECK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def run() -> Rows:
    """Return a row for each preset and number of workers."""
    return [_row(preset, workers) for preset in ("paper", "default") for workers in (1, 2)]


def _row(preset: str, workers: int) -> dict[str, float | str]:
    """Return the latencies at the fixed rate, the highest rate within its bar, and the CPU time of a request."""
    with served_preset(preset, workers) as service:
        url = service.url
        measure(url, RATE, WARM_UP_SECONDS)
        pairs = [(_run_at(url, RATE, SECONDS), _run_at(url, RATE, HEALTH_SECONDS, HEALTH_CHECK)) for _ in range(RUNS)]
        (p50, p99, _), (health_p50, *_) = min(pairs)
        return {
            "preset": preset,
            "workers": workers,
            "requests/s": RATE,
            "p50, ms": p50,
            "bar, p50": P50_BAR,
            "p99, ms": p99,
            "bar, p99": P99_BAR,
            "errors in all runs": sum(errors for (*_, errors), _ in pairs),
            "p50 of /healthz, ms": health_p50,
            f"CPU at {CPU_RATE}/s, ms": min(cpu_milliseconds(service) for _ in range(RUNS)),
            f"highest rate, p99 < {HIGHEST_P99:g} ms": highest_rate(url),
        }


def cpu_milliseconds(service: Served) -> float:
    """Return the CPU time that the processes of a service spend on a request."""
    before = service.cpu_seconds()
    latencies, _ = measure(service.url, CPU_RATE, CPU_SECONDS)
    return (service.cpu_seconds() - before) / len(latencies) * 1e3


def highest_rate(url: str) -> int:
    """Return a rate that the service holds within the bar, while it misses it at STEP more in all attempts."""
    held, missed = 0, 2 * STEP
    while _is_held(url, missed):
        held, missed = missed, 2 * missed
    while missed - held > STEP:
        rate = (held + missed) // 2 // STEP * STEP
        if _is_held(url, rate):
            held = rate
        else:
            missed = rate
    return held


def _is_held(url: str, rate: int) -> bool:
    """Say whether one of ATTEMPTS attempts is within the bar."""
    attempts = (_run_at(url, rate, ATTEMPT_SECONDS) for _ in range(ATTEMPTS))
    return any(not errors and p99 < HIGHEST_P99 for _, p99, errors in attempts)


def _run_at(url: str, rate: float, seconds: float, request: bytes | None = None) -> tuple[float, float, int]:
    """Return the median and the 99th percentile, in milliseconds, and the number of errors."""
    latencies, errors = measure(url, rate, seconds, request)
    p50, p99 = np.percentile(latencies, [50, 99]).tolist()
    return p50, p99, errors


@dataclass(frozen=True)
class Served:
    """A service that runs."""

    url: str
    process: int

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its processes so far."""
        parent = psutil.Process(self.process)
        times = [process.cpu_times() for process in (parent, *parent.children())]
        return float(sum(one.user + one.system for one in times))


@contextmanager
def served(*arguments: str) -> Iterator[Served]:
    """Run `seq2slate serve` with these arguments on a free port."""
    command = [sys.executable, "-m", "seq2slate.cli", "serve", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Served(process.stdout.readline().split()[-1], process.pid)
        finally:
            process.terminate()


@contextmanager
def served_preset(preset: str, workers: int = 1) -> Iterator[Served]:
    """Serve an untrained network of a preset, with a log."""
    with tempfile.TemporaryDirectory() as folder:
        new_model(configure(preset).network).save(Path(folder) / "model")
        with served(f"{folder}/model", "--log", f"{folder}/log.db", "--workers", str(workers)) as service:
            yield service


def measure(url: str, rate: float, seconds: float, request: bytes | None = None) -> tuple[list[float], int]:
    """Return the milliseconds of every request, and the number of errors.

    An error is a response other than a logged slate of the model, or other than status 200 if a `request` is given.
    """
    rng = np.random.default_rng(0)
    bodies = requests() if request is None else [request]
    waits = rng.exponential(1 / rate, int(rate * seconds))
    gc.collect()
    gc.freeze()
    try:
        with _Client(urlsplit(url).netloc) as client:
            latencies, responses = client.send(bodies, waits)
    finally:
        gc.unfreeze()
    return latencies, sum(not _is_good(response, with_slate=request is None) for response in responses)


def _is_good(response: bytes, *, with_slate: bool) -> bool:
    head, _, body = response.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200") or not with_slate:
        return head.startswith(b"HTTP/1.1 200")
    slate = json.loads(body)
    return slate["slate_id"] is not None and not slate["fallback"]


class _Client:
    """A pool of keep-alive connections, one request at a time on each.

    It shares the cores with the service, so it only sends and receives: one thread, which waits in `select` because
    that keeps time to the microsecond (epoll rounds to milliseconds). Responses are parsed afterwards.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._selector = selectors.SelectSelector()
        self._free = [socket.create_connection((host, int(port))) for _ in range(CONNECTIONS)]
        for connection in self._free:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def send(self, bodies: Sequence[bytes], waits: npt.NDArray[np.float64]) -> tuple[list[float], list[bytes]]:
        """Send a request after each wait, answered or not; return milliseconds and responses."""
        due = (np.cumsum(waits) + time.perf_counter() + 0.05).tolist()
        latencies: list[float] = []
        responses: list[bytes] = []
        sent = 0
        due_at: dict[socket.socket, float] = {}
        received: dict[socket.socket, bytes] = {}
        while len(responses) < len(due):
            wait = TIMEOUT
            if sent < len(due) and self._free:
                wait = due[sent] - time.perf_counter()
                if wait <= 0:
                    connection = self._free.pop()
                    due_at[connection], received[connection] = due[sent], b""
                    connection.sendall(bodies[sent % len(bodies)])
                    sent += 1
            ready = self._selector.select(max(wait, 0.0))
            if not ready and wait == TIMEOUT:
                raise TimeoutError(f"{len(due_at)} requests got no response within {TIMEOUT:g} s")
            for key, _ in ready:
                connection = cast(socket.socket, key.fileobj)
                received[connection] = received.get(connection, b"") + _received(connection)
                if _is_whole(received[connection]):
                    latencies.append((time.perf_counter() - due_at.pop(connection)) * 1e3)
                    responses.append(received.pop(connection))
                    self._free.append(connection)
        return latencies, responses


def _received(connection: socket.socket) -> bytes:
    chunk = connection.recv(65_536)
    if not chunk:
        raise ConnectionError("the service closed the connection")
    return chunk


def _is_whole(response: bytes) -> bool:
    head, separator, body = response.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return bool(separator) and len(body) >= int(length)


def requests() -> list[bytes]:
    """Return some requests for slates, head and body."""
    rng = np.random.default_rng(0)
    return [_request(rng, number) for number in range(N_REQUESTS)]


def _request(rng: np.random.Generator, number: int) -> bytes:
    rows = rng.normal(size=(N_ITEMS, N_FEATURES)).round(6).tolist()
    items = [{"id": f"item-{item}", "features": row} for item, row in enumerate(rows)]
    body = json.dumps({"unit": f"unit-{number}", "items": items}).encode()
    headers = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"POST /v1/rerank HTTP/1.1\r\n{headers}\r\n\r\n".encode() + body
