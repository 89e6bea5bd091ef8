"""The service under overload: what is answered, what is refused, how fast, and how soon everything is answered again.

An open-loop load with a new connection for every request, of 10 items with 136 features, at multiples of the capacity.
The capacity is measured first, in the same setting: a closed loop of some requests at a time, each on a connection of
its own. Latency counts from the time at which a request was due, so the client's own delay, which the table shows, is
part of it. After each load the rate falls to half the capacity: the service has recovered when nearly all requests are
answered, and quickly.

Service and client share the cores: at ten times the capacity the client alone takes most of one, and less is answered
than the capacity says. Run with `python -m benchmarks.overload [WORKERS]`.
"""

from __future__ import annotations

import gc
import resource
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np

from benchmarks.service import requests, served_preset
from benchmarks.tables import Rows, print_table

FACTORS = (1, 2, 5, 10)
CONCURRENCY = 16
"""Requests at a time when the capacity is measured."""
CAPACITY_SECONDS, LOAD_SECONDS, RECOVERY_SECONDS = 2.0, 5.0, 4.0
RUNS = 3
"""Measurements of the capacity, of which the best counts."""
WINDOW, BAD_SHARE, SLOW_MS = 0.25, 0.1, 100.0
"""A window of so many seconds is bad if more than this share of its requests is not answered within so many ms."""
TIMEOUT = 20.0
"""Seconds after the last request was sent; what has no response by then is lost."""
_OTHER_FILES = 100  # that the client has open
_CLOSE_AT_ONCE = struct.pack("ii", 1, 0)  # without TIME_WAIT, or the client would run out of ports


@dataclass
class Responses:
    """What became of requests, in the order in which they ended: when they were due, and milliseconds."""

    answered: list[tuple[float, float]] = field(default_factory=list)
    refused: list[tuple[float, float]] = field(default_factory=list)
    """429."""
    failed: list[tuple[float, float]] = field(default_factory=list)
    """Any other response, or none, or more than the client can hold open."""
    sent: list[tuple[float, float]] = field(default_factory=list)
    """When they were due, and the delay of the client."""

    def until(self, end: float) -> Responses:
        """Return those that were due before a time."""
        return Responses(*([one for one in some if one[0] < end] for some in self._all))

    def since(self, start: float) -> Responses:
        """Return those that were due from a time on."""
        return Responses(*([one for one in some if one[0] >= start] for some in self._all))

    @property
    def _all(self) -> tuple[list[tuple[float, float]], ...]:
        return self.answered, self.refused, self.failed, self.sent

    def recovered_after(self, end: float) -> float:
        """Return the seconds from the end of a load to that of the last bad window."""
        quick = Counter(int((due - end) / WINDOW) for due, ms in self.answered if ms <= SLOW_MS)
        every = Counter(int((due - end) / WINDOW) for due, _ in self.sent if due >= end)
        return WINDOW * max([0, *(window + 1 for window, n in every.items() if quick[window] < (1 - BAD_SHARE) * n)])


def percentile(some: Sequence[tuple[float, float]], percent: float) -> float:
    """Return a percentile of the milliseconds; NaN without any."""
    return float(np.percentile([ms for _, ms in some], percent)) if some else float("nan")


def capacity(url: str, seconds: float = CAPACITY_SECONDS) -> float:
    """Return the answers a second of a closed loop with new connections."""
    client = Client(url)
    start = time.perf_counter()
    responses = client.send([0.0] * 100_000, concurrency=CONCURRENCY, until=start + seconds)
    return len(responses.answered) / (time.perf_counter() - start)


def overload(url: str, rate: float, load_seconds: float, usual_rate: float, recovery_seconds: float) -> Responses:
    """Send requests at a rate, and then at the usual one; times count from the first."""
    rng = np.random.default_rng(0)
    load = np.cumsum(rng.exponential(1 / rate, int(rate * load_seconds)))
    recovery = load_seconds + np.cumsum(rng.exponential(1 / usual_rate, int(usual_rate * recovery_seconds)))
    return Client(url).send([*load[load < load_seconds].tolist(), *recovery.tolist()])


class Client:
    """One thread that opens a connection for every request; it only sends and receives, since it shares the cores."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._address = (place.hostname, place.port)
        self._bodies = requests()
        self._epoll = select.epoll()
        self._open: dict[int, tuple[socket.socket, float, bytes]] = {}
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._most_open = hard - _OTHER_FILES

    def send(self, due: Sequence[float], *, concurrency: int = sys.maxsize, until: float = float("inf")) -> Responses:
        """Send a request at each time; with a bound on those that are open, later, and until an end at most."""
        responses = Responses()
        gc.collect()
        gc.freeze()
        start, sent = time.perf_counter() + 0.05, 0
        give_up = float("inf")
        while sent < len(due) or self._open:
            now = time.perf_counter()
            while sent < len(due) and due[sent] <= now - start and len(self._open) < concurrency:
                if len(self._open) < self._most_open:
                    self._connect(self._bodies[sent % len(self._bodies)], due[sent], start, responses)
                else:
                    responses.failed.append((due[sent], 0.0))
                sent += 1
            if now > until:
                sent = len(due)
            if sent == len(due) and give_up == float("inf"):
                give_up = now + TIMEOUT
            if now > give_up:
                break
            # Not to the next request's time, but a little longer: one wake-up for several of them saves CPU.
            for number, events in self._epoll.poll(0.001 if sent < len(due) else 0.05):
                self._receive(number, events, start, responses)
        for number in list(self._open):
            self._end(number, start, responses.failed)
        gc.unfreeze()
        return responses

    def _connect(self, body: bytes, due: float, start: float, responses: Responses) -> None:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_AT_ONCE)
        connection.connect_ex(self._address)
        responses.sent.append((due, (time.perf_counter() - start - due) * 1e3))
        number, events = connection.fileno(), select.EPOLLIN
        with suppress(OSError):  # it may not be connected yet
            body = body[connection.send(body) :]
        if body:
            events |= select.EPOLLOUT
        self._open[number] = connection, due, body
        self._epoll.register(number, events)

    def _receive(self, number: int, events: int, start: float, responses: Responses) -> None:
        connection, due, body = self._open[number]
        try:
            if body and events & select.EPOLLOUT and not events & select.EPOLLIN:
                rest = body[connection.send(body) :]
                self._open[number] = connection, due, rest
                if not rest:
                    self._epoll.modify(number, select.EPOLLIN)
                return
            response = connection.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            response = b""
        # Head and body of a response may come apart. The head is the time of the response, and closing is the end.
        if response.startswith(b"HTTP/1.1 200"):
            self._end(number, start, responses.answered)
        elif response.startswith(b"HTTP/1.1 429"):
            self._end(number, start, responses.refused)
        else:
            self._end(number, start, responses.failed)

    def _end(self, number: int, start: float, responses: list[tuple[float, float]]) -> None:
        connection, due, _ = self._open.pop(number)
        connection.close()
        responses.append((due, (time.perf_counter() - start - due) * 1e3))


def run(workers: int = 1) -> Rows:
    """Return a row for each multiple of the capacity."""
    rows: Rows = []
    with served_preset("default", workers) as service:
        capacity(service.url, 1.0)
        highest = max(capacity(service.url) for _ in range(RUNS))
        print(f"{workers} workers: capacity {highest:.0f} requests/s")
        for factor in FACTORS:
            responses = overload(service.url, factor * highest, LOAD_SECONDS, highest / 2, RECOVERY_SECONDS)
            load = responses.until(LOAD_SECONDS)
            rows.append(
                {
                    "workers": workers,
                    "load": f"{factor}x",
                    "requests/s": round(factor * highest),
                    "answered/s": round(len(load.answered) / LOAD_SECONDS),
                    "p50, ms": percentile(load.answered, 50),
                    "p99, ms": percentile(load.answered, 99),
                    "refused/s": round(len(load.refused) / LOAD_SECONDS),
                    "refused p50, ms": percentile(load.refused, 50),
                    "refused p99, ms": percentile(load.refused, 99),
                    "failed": len(load.failed),
                    "client p99, ms": percentile(load.sent, 99),
                    "recovered after, s": responses.since(LOAD_SECONDS).recovered_after(LOAD_SECONDS),
                }
            )
    return rows


if __name__ == "__main__":
    print_table("Overload, new connections", run(*map(int, sys.argv[1:])))
