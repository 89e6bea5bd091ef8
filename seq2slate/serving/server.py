"""The process around the service: it opens the log, binds, listens to signals, and leaves nothing half done.

SIGTERM and SIGINT let the requests that have begun be answered, commit, and close the log; SIGHUP loads the models and
the experiment anew. A service that other machines can reach does not start without keys.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import uvicorn
from starlette.types import ASGIApp

from seq2slate.errors import Seq2SlateError, UsageError
from seq2slate.log.backend import Durability
from seq2slate.log.impression_log import open_log
from seq2slate.serving.app import create_app
from seq2slate.serving.deployment import load_deployment
from seq2slate.serving.keys import KeyRing
from seq2slate.serving.middleware import Limits, is_loopback
from seq2slate.serving.monitoring import Monitor
from seq2slate.serving.service import RerankService, Timeouts

_SECONDS_TO_DRAIN = 10
_BACKLOG = 2048
_SECONDS_IDLE = 75  # longer than the pools of clients and proxies keep a connection, so that it is they who hang up
_SECONDS_OF_A_TURN = 0.0005  # of a thread that holds Python's lock: Python's own 5 ms would be the latency under load


@dataclass(frozen=True)
class Settings:
    """Everything that `seq2slate serve` can be told."""

    model: Path | None = None
    experiment: Path | None = None
    log: str = "seq2slate-log.db"
    durability: Durability = "process"
    host: str = "127.0.0.1"
    port: int = 8080
    keys: Path | None = None
    threads: int | None = None
    """Of the model; as many as cores, up to four, if not given."""
    patience: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until a signal comes; `announce` gets the address when requests are taken."""
    _start_logging()
    torch.set_num_threads(1)  # requests share the cores, not the parts of one request
    sys.setswitchinterval(_SECONDS_OF_A_TURN)
    keys = _keys(settings)
    if settings.model is None and settings.experiment is None:
        raise UsageError("nothing to serve: give MODEL_DIR or --experiment FILE")
    listener = _listen(settings.host, settings.port)
    with listener, open_log(settings.log, durability=settings.durability) as store:
        monitor = Monitor()
        load = partial(load_deployment, settings.model, settings.experiment)
        reranker = RerankService(load, store, monitor, settings.patience, threads=settings.threads)
        try:
            app = create_app(reranker, monitor, key_ring=keys, limits=settings.limits)
            gc.collect()
            gc.freeze()  # or some early request waits until all that was imported has been looked through
            _run(app, reranker, listener, lambda: announce(_address(listener)))
        finally:
            is_at_rest = reranker.close()
    if not is_at_rest:  # a model that hangs: Python would wait for its thread for ever
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def _start_logging() -> None:
    handler = logging.StreamHandler()
    handler.addFilter(_OncePerSecond().is_due)
    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", level=logging.WARNING, handlers=[handler], force=True
    )


class _OncePerSecond:
    """Lets a line of code speak once a second: a failure that meets every request must not fill a disk."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], float] = {}

    def is_due(self, record: logging.LogRecord) -> bool:
        """Say whether to write a record; the metrics count all of them."""
        place, now = (record.pathname, record.lineno), time.monotonic()
        is_due = now - self._last.get(place, -1.0) >= 1
        if is_due:
            self._last[place] = now
        return is_due


def _keys(settings: Settings) -> KeyRing | None:
    if settings.keys is not None:
        return KeyRing(settings.keys)
    if not is_loopback(settings.host):
        raise UsageError(
            f"{settings.host} can be reached from other machines: give --keys FILE, made with `seq2slate keys add`"
        )
    return None


def _listen(host: str, port: int) -> socket.socket:
    """Bind the address; one that is taken or wrong is an OSError that names it."""
    try:
        family, *_, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error}") from error
    listener.setblocking(False)
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers, which end the process by the signal after a graceful stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def _run(app: ASGIApp, reranker: RerankService, listener: socket.socket, announce: Callable[[], None]) -> None:
    config = uvicorn.Config(
        app,
        http="httptools",
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_SECONDS_TO_DRAIN,
        timeout_keep_alive=_SECONDS_IDLE,
        backlog=_BACKLOG,
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(_Server(config), reranker, listener, announce))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _serve(
    server: uvicorn.Server, reranker: RerankService, listener: socket.socket, announce: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def stop() -> None:
        server.should_exit = True

    def reload() -> None:
        if len(reloads) > 1:  # one is loading and one is waiting, which will find what is there now
            return
        task = loop.create_task(_reload(reranker))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload)
    started = loop.create_task(_announce_when_started(server, announce))
    await server.serve([listener])
    started.cancel()


async def _announce_when_started(server: uvicorn.Server, announce: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.005)
    announce()


async def _reload(reranker: RerankService) -> None:
    with suppress(Seq2SlateError, OSError):  # which it has logged
        await reranker.reload()
