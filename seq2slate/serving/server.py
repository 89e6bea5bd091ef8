"""The process of the service: it opens the log, binds the address, handles signals, and shuts down gracefully.

SIGTERM and SIGINT drain the requests in flight, commit, and close the log; SIGHUP reloads the models and the
experiment. A service that other machines can reach does not start without keys.
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
from seq2slate.serving.connections import connections_within
from seq2slate.serving.deployment import load_deployment
from seq2slate.serving.keys import KeyRing
from seq2slate.serving.middleware import Limits, is_loopback
from seq2slate.serving.monitoring import Monitor
from seq2slate.serving.service import RerankService, Timeouts

_DRAIN_SECONDS = 10
_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 75  # longer than the pools of clients and proxies, so that it is they who close a connection
_SWITCH_SECONDS = 0.0005  # for which a thread keeps the GIL: Python's own 5 ms would be the latency under load


@dataclass(frozen=True)
class ServerConfig:
    """The options of `seq2slate serve`."""

    model: Path | None = None
    """Folder of a trained model; for arms that name none."""
    experiment: Path | None = None
    """Arms and their weights: a .toml or .json file."""
    log: str = "seq2slate-log.db"
    """A SQLite file, or postgresql://user@host/database."""
    durability: Durability = "process"
    """Acknowledged writes survive the end of the process, or a power failure, too."""
    host: str = "127.0.0.1"
    """Address to bind; any but a loopback address needs keys."""
    port: int = 8080
    """Port to bind; 0 takes a free one."""
    keys: Path | None = None
    """File of API keys, which are then required."""
    threads: int | None = None
    """Of the model; as many as cores, up to 4, if not given."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)


def run_server(config: ServerConfig, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        config: Models, log, address, keys, timeouts and limits.
        announce: Called with the address once requests are accepted.

    Raises:
        UsageError: There is nothing to serve, the address cannot be bound, or keys are needed.
        DataError: A model, the experiment or the key file cannot be read.
    """
    _start_logging()
    torch.set_num_threads(1)  # the cores are for concurrent requests, not for the parts of one
    sys.setswitchinterval(_SWITCH_SECONDS)
    keys = _keys(config)
    if config.model is None and config.experiment is None:
        raise UsageError("nothing to serve: give MODEL_DIR or --experiment FILE")
    listener = _listen(config.host, config.port)
    with listener, open_log(config.log, durability=config.durability) as store:
        monitor = Monitor()
        load = partial(load_deployment, config.model, config.experiment)
        service = RerankService(load, store, monitor, config.timeouts, threads=config.threads)
        try:
            app = create_app(service, monitor, key_ring=keys, limits=config.limits)
            gc.collect()
            gc.freeze()  # or some early request waits for a collection of everything that was imported
            _run(app, service, config.limits, listener, lambda: announce(_address(listener)))
        finally:
            is_idle = service.close()
    if not is_idle:  # a model that hangs: Python would wait for its thread for ever
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
    """Lets each line of code log once a second: a failure of every request must not fill the disk."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], float] = {}

    def is_due(self, record: logging.LogRecord) -> bool:
        """Say whether to write a record; the metrics count every failure."""
        place, now = (record.pathname, record.lineno), time.monotonic()
        is_due = now - self._last.get(place, -1.0) >= 1
        if is_due:
            self._last[place] = now
        return is_due


def _keys(config: ServerConfig) -> KeyRing | None:
    if config.keys is not None:
        return KeyRing(config.keys)
    if not is_loopback(config.host):
        raise UsageError(
            f"{config.host} can be reached from other machines: give --keys FILE, created with `seq2slate keys add`"
        )
    return None


def _listen(host: str, port: int) -> socket.socket:
    """Bind the address; one that is taken or invalid is a UsageError that names it."""
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


def _run(
    app: ASGIApp, service: RerankService, limits: Limits, listener: socket.socket, announce: Callable[[], None]
) -> None:
    config = uvicorn.Config(
        app,
        http=connections_within(limits),
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        backlog=_BACKLOG,
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(_Server(config), service, listener, announce))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _serve(
    server: uvicorn.Server, service: RerankService, listener: socket.socket, announce: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def stop() -> None:
        server.should_exit = True

    def reload() -> None:
        if len(reloads) > 1:  # one is running, and one is waiting that will read the files as they are now
            return
        task = loop.create_task(_reload(service))
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


async def _reload(service: RerankService) -> None:
    with suppress(Seq2SlateError, OSError):  # the service has logged it
        await service.reload()
