"""Several processes that serve: one address, one log, one set of metrics, and the same models in all of them.

A parent binds the address and forks the workers, which accept requests from it. The parent itself has no threads and
no event loop: it starts a worker anew when one dies, and passes signals and reloads on. Each worker has a line to it:

- A worker reports what it has loaded, and serves when it is told to: all serve the same models at all times, also one
  that is started after the files have changed.
- A reload, by SIGHUP or by a request to any worker, happens in all workers or in none: all load, and only if all have
  loaded the same they switch.
- When the line ends, because the service stops or because the parent is dead, the worker drains and exits.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import logging
import mmap
import os
import selectors
import shutil
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from seq2slate.errors import DataError, Seq2SlateError, UsageError
from seq2slate.log.impression_log import ImpressionLog
from seq2slate.serving.accepting import Server
from seq2slate.serving.deployment import Deployment
from seq2slate.serving.monitoring import Monitor
from seq2slate.serving.server import (
    DRAIN_SECONDS,
    ServerConfig,
    ServingProcess,
    address_of,
    listen,
    start_logging,
    stop_on_signals,
)
from seq2slate.serving.service import RerankService

_logger = logging.getLogger("seq2slate.serving")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_LONGEST_STOP = DRAIN_SECONDS + 15.0  # seconds: the requests in flight, then the log; then a worker is killed
_STEADY = 1.0  # seconds; a worker that lived shorter is started after a pause
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds
_RETRIES = 3  # of a reload during which the files changed
_PUBLISH_SECONDS = 1.0


def run_workers(config: ServerConfig, announce: Callable[[str], None]) -> None:
    """Serve in `config.workers` processes until SIGTERM or SIGINT; as `server.run_server` otherwise."""
    start_logging()
    memory = Path("/dev/shm")
    with (
        listen(config) as listener,
        tempfile.TemporaryFile() as turns,
        tempfile.TemporaryDirectory(prefix="seq2slate-", dir=memory if memory.is_dir() else None) as folder,
    ):
        connections = memoryview(mmap.mmap(-1, 8 * config.workers)).cast("q")
        shared = _Shared(turns.fileno(), Path(folder), connections, os.getpid())
        gc.collect()
        gc.freeze()
        _Parent(config, listener, shared, lambda: announce(address_of(listener))).run()


@dataclass(frozen=True)
class _Shared:
    """What the processes share."""

    turns: int
    """The file by which they take turns in a SQLite log."""
    metrics: Path
    connections: memoryview
    """How many connections each worker has; -1 if it accepts none."""
    parent: int


# A worker


class _WorkerService(RerankService):
    """A service that reloads when the parent says so."""

    send: Callable[..., None]
    """Sends a message to the parent; without a loop there is no line yet."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._next = self.deployment
        self._requested: deque[asyncio.Future[str | None]] = deque()

    async def reload(self) -> Deployment:
        """Reload in all workers; an error if one of them cannot, and then in none."""
        outcome: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._requested.append(outcome)
        self.send(reload=True)
        error = await outcome
        if error is not None:
            raise DataError(error)
        return self.deployment

    async def obey(self, message: dict[str, Any]) -> None:
        """Do what the parent says."""
        match message["do"]:
            case "load":
                try:
                    self._next = await asyncio.to_thread(self._load)
                except (Seq2SlateError, OSError) as error:
                    self.send(failed=str(error))
                else:
                    self.send(loaded=_identity(self._next))
            case "switch":
                if self.deployment is not self._next:
                    self.deployment = self._next
                    self._note_experiment()
                self.send(switched=True)
            case "count":
                self._monitor.reloads.labels(message["outcome"]).inc()
            case "respond":
                self._resolve(message["error"])

    def end_of_line(self) -> None:
        """Answer who waits for a reload that nobody will do."""
        while self._requested:
            self._resolve("the service is stopping")

    def _resolve(self, error: str | None) -> None:
        outcome = self._requested.popleft()
        if not outcome.done():
            outcome.set_result(error)


def _identity(deployment: Deployment) -> str:
    """Return a hash of what is served."""
    models = sorted((arm, model.fingerprint) for arm, model in deployment.models.items())
    return hashlib.sha256(repr((deployment.experiment, deployment.definition, models)).encode()).hexdigest()


class _WorkerProcess(ServingProcess):
    """The process of a worker."""

    def __init__(
        self, config: ServerConfig, listener: socket.socket, number: int, shared: _Shared, line: socket.socket
    ) -> None:
        super().__init__(config, listener, lambda: None)
        self.turns, self._shared, self._number, self._line = shared.turns, shared, number, line

    def run_to_the_end(self) -> int:
        """Serve, and return the exit code; an error is reported to the parent."""
        try:
            self.run()
        except (Seq2SlateError, OSError) as error:
            kind = "usage" if isinstance(error, UsageError) else "data"
            with suppress(OSError):
                self._line.setblocking(True)
                self._line.sendall(_encode(failed=str(error), kind=kind))
            return 2
        finally:
            if os.getppid() != self._shared.parent:  # nobody else removes them
                shutil.rmtree(self._shared.metrics, ignore_errors=True)
        return 0

    def _new_monitor(self) -> Monitor:
        return Monitor(self._shared.metrics, self._number)

    def _new_service(self, load: Callable[[], Deployment], store: ImpressionLog, monitor: Monitor) -> RerankService:
        config, self._monitor = self._config, monitor
        threads = config.threads or max(1, min(4, os.cpu_count() or 1) // config.workers)
        self._worker = _WorkerService(load, store, monitor, config.timeouts, threads=threads)
        return self._worker

    async def _serve(self, config: uvicorn.Config) -> None:
        server = Server(config, self._listener, self._admission, self._shared.connections, self._number)
        stop_on_signals(server)
        reader, writer = await asyncio.open_connection(sock=self._line)
        self._worker.send = lambda **message: writer.write(_encode(**message))
        self._worker.send(loaded=_identity(self._worker.deployment))
        may_serve = asyncio.Event()
        tasks = [
            asyncio.create_task(self._follow(reader, server, may_serve)),
            asyncio.create_task(self._publish()),
        ]
        await may_serve.wait()
        await server.serve([])
        for task in tasks:
            task.cancel()
        writer.close()

    async def _follow(self, reader: asyncio.StreamReader, server: Server, may_serve: asyncio.Event) -> None:
        with suppress(ConnectionError):
            while text := await reader.readline():
                message = json.loads(text)
                await self._worker.obey(message)
                if message["do"] == "switch":
                    may_serve.set()
        server.should_exit = True
        self._worker.end_of_line()
        may_serve.set()

    async def _publish(self) -> None:
        while True:
            self._monitor.publish()
            await asyncio.sleep(_PUBLISH_SECONDS)


def _encode(**message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


# The parent


@dataclass(eq=False)
class _Worker:
    """A worker, as the parent knows it."""

    number: int
    due: float | None = None
    """When to start it; None if it runs, or if one before it has not started yet."""
    pid: int | None = None
    line: socket.socket | None = None
    received: bytes = b""
    started: float = 0.0
    pause: float = 0.0
    loaded: str | None = None
    """The identity of what it has loaded."""
    is_serving: bool = False

    def send(self, **message: Any) -> None:
        """Send a message; one that is dead will be noticed."""
        if self.line is not None:
            with suppress(OSError):
                self.line.sendall(_encode(**message))


@dataclass
class _Reload:
    """A reload that is under way, and the workers that were asked for it over HTTP."""

    requested_by: list[_Worker]
    attempt: int = 1
    is_switching: bool = False
    waiting: set[_Worker] = field(default_factory=set)
    error: str | None = None


class _Parent:
    """Starts the workers, and keeps them running and alike."""

    def __init__(
        self, config: ServerConfig, listener: socket.socket, shared: _Shared, announce: Callable[[], None]
    ) -> None:
        self._config, self._listener, self._shared, self._announce = config, listener, shared, announce
        self._workers = [_Worker(number) for number in range(config.workers)]
        self._serving: str | None = None
        self._reload: _Reload | None = None
        self._next_reload: list[_Worker] | None = None
        self._is_announced = False
        self._kill_at: float | None = None
        self._failure: Seq2SlateError | None = None
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until a signal, or until the first start of a worker fails."""
        self._wake, wake = socket.socketpair()
        with self._wake, wake, self._selector:
            self._wake.setblocking(False)
            wake.setblocking(False)
            self._selector.register(self._wake, selectors.EVENT_READ)
            for number in _SIGNALS:
                signal.signal(number, lambda *_: None)
            signal.set_wakeup_fd(wake.fileno())
            self._shared.connections[:] = memoryview(b"\xff" * 8 * len(self._workers)).cast("q")
            self._workers[0].due = 0.0
            try:
                while self._kill_at is None or any(worker.pid for worker in self._workers):
                    self._step()
            finally:
                for worker in self._workers:
                    self._kill(worker)
                signal.set_wakeup_fd(-1)
        if self._failure is not None:
            raise self._failure

    def _step(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if self._kill_at is None and worker.due is not None and worker.due <= now:
                self._start(worker)
            elif self._kill_at is not None and self._kill_at <= now and worker.pid is not None:
                _logger.error("worker %d does not stop and is killed", worker.number)
                self._kill(worker)
        times = [worker.due for worker in self._workers if worker.due is not None]
        end = min(times, default=None) if self._kill_at is None else self._kill_at
        for key, _ in self._selector.select(None if end is None else max(0.0, end - time.monotonic())):
            if key.data is None:
                self._take_signals()
            else:
                self._receive(key.data)
        self._reap()

    # Processes

    def _start(self, worker: _Worker) -> None:
        ours, theirs = socket.socketpair()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        worker.pid, worker.due, worker.started = os.fork(), None, time.monotonic()
        if worker.pid == 0:
            self._become(worker, ours, theirs)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        theirs.close()
        worker.line, worker.received = ours, b""
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _become(self, worker: _Worker, ours: socket.socket, theirs: socket.socket) -> None:
        """Be a worker, in the child, until its end."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it is for the parent
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            self._selector.close()
            for line in (ours, self._wake, *(other.line for other in self._workers)):
                if line is not None:
                    line.close()
            code = _WorkerProcess(self._config, self._listener, worker.number, self._shared, theirs).run_to_the_end()
        except BaseException:
            _logger.exception("worker %d failed", worker.number)
        finally:
            logging.shutdown()
            os._exit(code)

    def _kill(self, worker: _Worker) -> None:
        if worker.pid is not None:
            os.kill(worker.pid, signal.SIGKILL)
            _, status = os.waitpid(worker.pid, 0)
            self._bury(worker, status)

    def _reap(self) -> None:
        for worker in self._workers:
            if worker.pid is not None:
                pid, status = os.waitpid(worker.pid, os.WNOHANG)
                if pid:
                    self._receive(worker)  # what it said last
                    self._bury(worker, status)

    def _bury(self, worker: _Worker, status: int) -> None:
        """Forget a worker that has ended, and see to it that another takes its place."""
        pid, worker.pid = worker.pid, None
        self._hang_up(worker)
        self._shared.connections[worker.number] = -1
        worker.loaded, worker.is_serving = None, False
        if self._kill_at is not None:
            return
        code = os.waitstatus_to_exitcode(status)
        reason = f"signal {-code}" if code < 0 else f"code {code}"
        if not self._is_announced:
            self._fail(DataError(f"worker {worker.number} ended with {reason} before it served"))
            return
        now = time.monotonic()
        is_steady = now - worker.started >= _STEADY
        worker.pause = 0.0 if is_steady else min(max(2 * worker.pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        worker.due = now + worker.pause
        _logger.warning("worker %d (process %s) ended with %s; starting another", worker.number, pid, reason)
        self._leave_reload(worker)

    def _hang_up(self, worker: _Worker) -> None:
        if worker.line is not None:
            self._selector.unregister(worker.line)
            worker.line.close()
            worker.line = None

    def _take_signals(self) -> None:
        for number in self._wake.recv(4096):
            if number == signal.SIGHUP:
                self._begin_reload([])
            elif number in (signal.SIGTERM, signal.SIGINT):
                self._stop()

    def _stop(self) -> None:
        """Let all workers drain; at the second signal, kill them."""
        self._kill_at = time.monotonic() + (_LONGEST_STOP if self._kill_at is None else 0.0)
        self._listener.close()
        for worker in self._workers:
            self._hang_up(worker)

    def _fail(self, error: Seq2SlateError) -> None:
        if self._failure is None:
            self._failure = error
            self._stop()

    # Messages

    def _receive(self, worker: _Worker) -> None:
        if worker.line is None:
            return
        try:
            chunk = worker.line.recv(65_536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._hang_up(worker)
        *lines, worker.received = (worker.received + chunk).split(b"\n")
        for line in lines:
            self._take(worker, json.loads(line))

    def _take(self, worker: _Worker, message: dict[str, Any]) -> None:
        reload = self._reload
        if "reload" in message:
            self._begin_reload([worker])
        elif worker.loaded is None and "failed" in message:  # it could not start
            kind = UsageError if message.get("kind") == "usage" else DataError
            if not self._is_announced:
                self._fail(kind(message["failed"]))
            else:
                _logger.error("worker %d cannot start: %s", worker.number, message["failed"])
        elif worker.loaded is None:
            worker.loaded = message["loaded"]
            self._settle()
        elif reload is not None and worker in reload.waiting:
            worker.loaded = message.get("loaded", worker.loaded)
            reload.error = reload.error or message.get("failed")
            self._leave_reload(worker)

    def _settle(self) -> None:
        """Let workers serve that have loaded what the others serve; reload all if one has loaded something else."""
        if self._reload is not None or self._kill_at is not None:
            return
        ready = [worker for worker in self._workers if worker.loaded is not None]
        if self._serving is None and ready:
            self._serving = ready[0].loaded
        for worker in ready:
            if worker.loaded == self._serving and not worker.is_serving:
                worker.is_serving = True
                worker.send(do="switch")
        if self._next_reload is not None:
            requested_by, self._next_reload = self._next_reload, None
            self._begin_reload(requested_by)
        elif any(worker.loaded != self._serving for worker in ready):
            self._begin_reload([])
        elif not self._is_announced:
            self._start_next()

    def _start_next(self) -> None:
        """Start the workers one after the other, so that only the first creates the log; then announce the service."""
        unborn = [worker for worker in self._workers if worker.pid is None]
        if unborn:
            unborn[0].due = 0.0
        elif all(worker.is_serving for worker in self._workers):
            self._is_announced = True
            self._announce()

    # Reloads

    def _begin_reload(self, requested_by: list[_Worker], attempt: int = 1) -> None:
        if self._reload is not None:  # it may have read files that have changed since
            self._next_reload = (self._next_reload or []) + requested_by
            return
        waiting = {worker for worker in self._workers if worker.loaded is not None}
        self._reload = _Reload(requested_by, attempt, waiting=waiting)
        for worker in waiting:
            worker.send(do="load")
        self._go_on()

    def _leave_reload(self, worker: _Worker) -> None:
        if self._reload is not None and worker in self._reload.waiting:
            self._reload.waiting.discard(worker)
            self._go_on()

    def _go_on(self) -> None:
        """Go on with a reload for which nobody is waited for."""
        reload = self._reload
        if reload is None or reload.waiting:
            return
        ready = [worker for worker in self._workers if worker.loaded is not None]
        found = {worker.loaded for worker in ready}
        if reload.is_switching or reload.error is not None or not ready:
            self._end_reload(reload, reload.error or (None if ready else "no worker is running; try again"))
        elif len(found) == 1:
            reload.is_switching, reload.waiting = True, set(ready)
            (self._serving,) = found
            for worker in ready:
                worker.is_serving = True
                worker.send(do="switch")
        elif reload.attempt < _RETRIES:
            self._reload = None
            self._begin_reload(reload.requested_by, reload.attempt + 1)
        else:
            self._end_reload(reload, "the files changed while the workers loaded them; try again")

    def _end_reload(self, reload: _Reload, error: str | None) -> None:
        self._reload = None
        serving = [worker for worker in self._workers if worker.is_serving]
        for worker in serving[:1]:
            worker.send(do="count", outcome="done" if error is None else "failed")
        for worker in reload.requested_by:
            worker.send(do="respond", error=error)
        if error is None:
            _logger.warning("reloaded in %d workers", len(serving))
        else:
            _logger.error("reload failed, the models loaded before stay in service: %s", error)
            for worker in self._workers:
                if worker.is_serving:
                    worker.loaded = self._serving
                else:  # it has loaded something that the others cannot
                    self._kill(worker)
        self._settle()
