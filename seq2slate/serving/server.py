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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import uvicorn
from starlette.types import ASGIApp

from seq2slate.errors import Seq2SlateError, UsageError
from seq2slate.log.backend import Durability
from seq2slate.log.impression_log import ImpressionLog, open_log
from seq2slate.serving.accepting import Server
from seq2slate.serving.admission import Admission
from seq2slate.serving.app import create_app
from seq2slate.serving.connections import connections_within
from seq2slate.serving.deployment import Deployment, load_deployment
from seq2slate.serving.keys import KeyRing
from seq2slate.serving.middleware import Limits, is_loopback
from seq2slate.serving.monitoring import Monitor
from seq2slate.serving.service import RerankService, Timeouts

DRAIN_SECONDS = 10
"""For the requests in flight, when the service stops."""
_BACKLOG = 2048
_DEFER_SECONDS = 1  # for which a new connection waits in the kernel until something is sent
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
    workers: int = 1
    """Processes that accept requests; `serving.workers` runs more than one."""


def run_server(config: ServerConfig, announce: Callable[[str], None]) -> None:
    """Serve in this process until SIGTERM or SIGINT.

    Args:
        config: Models, log, address, keys, timeouts and limits.
        announce: Called with the address once requests are accepted.

    Raises:
        UsageError: There is nothing to serve, the address cannot be bound, or keys are needed.
        DataError: A model, the experiment or the key file cannot be read.
    """
    start_logging()
    with listen(config) as listener:
        ServingProcess(config, listener, lambda: announce(address_of(listener))).run()


class ServingProcess:
    """A process that serves: with a log, metrics and a service of its own."""

    turns: int | None = None
    """A file that is shared with other processes that write to the same log."""

    def __init__(self, config: ServerConfig, listener: socket.socket, announce: Callable[[], None]) -> None:
        self._config, self._listener, self._announce = config, listener, announce
        self._admission = Admission(config.limits.max_in_flight)

    def run(self) -> None:
        """Serve until a signal."""
        torch.set_num_threads(1)  # the cores are for concurrent requests, not for the parts of one
        sys.setswitchinterval(_SWITCH_SECONDS)
        config, keys, admission = self._config, _keys(self._config), self._admission
        with open_log(config.log, durability=config.durability, turns=self.turns) as store:
            monitor = self._new_monitor()
            service = self._new_service(partial(load_deployment, config.model, config.experiment), store, monitor)
            try:
                app = create_app(service, monitor, key_ring=keys, limits=config.limits, admission=admission)
                gc.collect()
                gc.freeze()  # or some early request waits for a collection of everything that was imported
                with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                    runner.run(self._serve(_server_config(app, config.limits, admission)))
            finally:
                is_idle = service.close()
        if not is_idle:  # a model that hangs: Python would wait for its thread for ever
            logging.shutdown()
            sys.stdout.flush()
            os._exit(0)

    def _new_monitor(self) -> Monitor:
        return Monitor()

    def _new_service(self, load: Callable[[], Deployment], store: ImpressionLog, monitor: Monitor) -> RerankService:
        config = self._config
        self._service = RerankService(load, store, monitor, config.timeouts, threads=config.threads)
        return self._service

    def _new_server(self, config: uvicorn.Config) -> Server:
        return Server(config, self._listener, self._admission)

    async def _serve(self, config: uvicorn.Config) -> None:
        loop, server, service = asyncio.get_running_loop(), self._new_server(config), self._service
        reloads: set[asyncio.Task[None]] = set()

        def reload() -> None:
            if len(reloads) > 1:  # one is running, and one is waiting that will read the files as they are now
                return
            task = loop.create_task(_reload(service))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        stop_on_signals(server)
        loop.add_signal_handler(signal.SIGHUP, reload)
        started = loop.create_task(_announce_when_started(server, self._announce))
        await server.serve([])
        started.cancel()


def start_logging() -> None:
    """Write warnings to stderr."""
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


def listen(config: ServerConfig) -> socket.socket:
    """Bind the address, if there is something to serve; one that is taken or invalid is a UsageError that names it."""
    _keys(config)
    if config.model is None and config.experiment is None:
        raise UsageError("nothing to serve: give MODEL_DIR or --experiment FILE")
    host, port = config.host, config.port
    try:
        family, *_, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error}") from error
    listener.setblocking(False)
    if sys.platform == "linux":  # a request can be refused with its connection only if it is there already
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_SECONDS)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the URL of a service."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def stop_on_signals(server: uvicorn.Server) -> None:
    """Drain the requests in flight on SIGTERM and SIGINT."""

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _server_config(app: ASGIApp, limits: Limits, admission: Admission) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connections_within(limits, admission),
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        backlog=_BACKLOG,
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _announce_when_started(server: uvicorn.Server, announce: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.005)
    announce()


async def _reload(service: RerankService) -> None:
    with suppress(Seq2SlateError, OSError):  # the service has logged it
        await service.reload()
