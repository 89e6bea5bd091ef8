"""Accepting connections: all that are there at once, each by the worker that has the fewest, or refused on the spot.

A connection whose request has arrived, and which would wait for too long, is answered with 429 and closed before
anything is made of it: that takes a small part of the time of a request, so a service goes on answering what it can.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from seq2slate.serving.admission import Admission, Ticket
from seq2slate.serving.connections import REFUSAL, LimitedConnection

_DEFER_SECONDS = 0.001  # for which a worker with more connections than another leaves new ones to that
_PAUSE_SECONDS = 0.1  # without a file for a connection
_AT_ONCE = 256  # connections, in one turn of the event loop
_PEEKED = 65_536  # bytes of a request
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*\r\n", re.IGNORECASE)
_NOT_THERE = (BlockingIOError, InterruptedError, ConnectionAbortedError)


class Server(uvicorn.Server):
    """Uvicorn without its signal handlers, which end the process by the signal after a graceful stop.

    It accepts connections itself. Keep-alive connections live long: what is distributed badly among workers once stays
    so. A worker that is busy may miss its turn: after a millisecond the others take what is there.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        admission: Admission,
        counts: memoryview[int] | list[int] | None = None,
        number: int = 0,
    ) -> None:
        """Make a server that does not accept yet.

        Args:
            config: Of uvicorn.
            listener: The socket, which does not block.
            admission: Says what to refuse.
            counts: The connections of each worker, shared by all of them; -1 for one that accepts none.
            number: The number of this worker.
        """
        super().__init__(config)
        self._listener, self._admission = listener, admission
        self._counts = [0] if counts is None else counts
        self._number = number
        self._accepting: set[asyncio.Task[Any]] = set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept from now on."""
        await super().startup([])
        self._loop = asyncio.get_running_loop()
        self._count()
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and drain."""
        self._loop.remove_reader(self._listener.fileno())
        self._counts[self._number] = -1
        self._listener.close()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown([])

    def _count(self) -> int:
        self._counts[self._number] = count = len(self.server_state.connections) + len(self._accepting)
        return count

    def _accept(self) -> None:
        others = [one for number, one in enumerate(self._counts) if number != self._number and one >= 0]
        fewest = min(others, default=None)
        for _ in range(_AT_ONCE):
            if fewest is not None and self._count() > fewest:
                self._pause(_DEFER_SECONDS)
                return
            if not self._accept_one():
                return

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(seconds, self._accept_all)

    def _accept_all(self) -> None:
        if self._counts[self._number] < 0:  # it is closed
            return
        self._loop.add_reader(self._listener.fileno(), self._accept)
        for _ in range(_AT_ONCE):
            if not self._accept_one():
                return

    def _accept_one(self) -> bool:
        try:
            connection, _ = self._listener.accept()
        except _NOT_THERE:  # another worker was faster, or the client is gone
            return False
        except OSError:  # there are too many files
            self._pause(_PAUSE_SECONDS)
            return False
        connection.setblocking(False)
        ticket = None
        if (refused := self._admission.sheds(_peek(connection, 64))) is not None:
            ticket = self._admission.admit()
            if ticket is None and _refuse(connection):
                refused.inc()
                return True
        task = self._loop.create_task(self._connect(connection, ticket))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)
        self._count()
        return True

    async def _connect(self, connection: socket.socket, ticket: Ticket | None) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._protocol(ticket), connection)
        except BaseException:
            if ticket is not None:
                ticket.leave()
            raise

    def _protocol(self, ticket: Ticket | None) -> asyncio.Protocol:
        protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        assert isinstance(protocol, LimitedConnection), "the configuration names the class"
        protocol.ticket = ticket
        return protocol


def _peek(connection: socket.socket, size: int) -> bytes:
    """Return what has arrived on a connection, without taking it."""
    try:
        return connection.recv(size, socket.MSG_PEEK)
    except OSError:
        return b""


def _refuse(connection: socket.socket) -> bool:
    """Answer with 429 and close, if a request has arrived to its end: bytes that nobody reads would lose the answer."""
    head, separator, body = _peek(connection, _PEEKED).partition(b"\r\n\r\n")
    length = _LENGTH.search(head + b"\r\n")
    if not separator or length is None or len(body) < int(length[1]):
        return False
    with suppress(OSError):  # the client may be gone
        connection.recv(_PEEKED)
        connection.send(REFUSAL)
    connection.close()
    return True
