"""Connections: what a client may send and how long it may take, before a request reaches the application.

Uvicorn bounds neither the request line and the headers of a request, nor the requests that wait behind it on the same
connection, nor the time until the headers are complete. So whoever can connect, with or without a key, could fill the
memory, keep the event loop busy, or hold connections for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from starlette.types import Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from seq2slate.serving.admission import Admission, Ticket
from seq2slate.serving.middleware import RESPOND, RETRY_LATER, TICKET, Limits, Response, error_response

_MAX_PIPELINED = 16  # requests that wait for their turn on one connection
_BYTES_A_HEADER = 4  # colon, space and line break
_MESSAGE = b'{"error":"the request line and the headers are too large, or too many"}'
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_MESSAGE), _MESSAGE)
)


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % header for header in headers)


_OK = b"HTTP/1.1 200 OK\r\n%b" % _lines(one for one in Response(b"").all_headers() if one[0] != b"content-length")
_OVERLOADED = error_response(429, "overloaded; try again", RETRY_LATER)
REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\n%b\r\n%b" % (
    _lines(_OVERLOADED.all_headers()),
    _OVERLOADED.body,
)
"""A whole response, after which the connection is closed."""


class LimitedConnection(HttpToolsProtocol):
    """A connection that keeps to limits; what goes beyond them is answered with 431, if with anything, and closed.

    - The head of a request, which is its request line and its headers, is bounded in bytes and headers. Trailers count
      as headers. What surrounds the parts of a chunked body is bounded by the size of a body.
    - Until a head is complete, a timer runs: from the start of the connection, and from the first byte of any later
      request. Between requests, uvicorn's own timer does.
    - A request that would wait for too long is answered with 429 before the application sees it; the connection stays.
    """

    limits: ClassVar[Limits]
    admission: ClassVar[Admission]
    ticket: Ticket | None = None
    """Of the request that is arriving, or waits for its turn."""
    _received = 0
    """Bytes of the message that are no body, and what came before it in the same chunk of data."""
    _before = 0
    """At most so many of these came before it: the bytes of that chunk."""
    _chunk = 0
    """Bytes of the data that are being parsed."""
    _is_refused = False
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers: uvicorn's own, too, which would hold on to a connection that the client has reset."""
        super().connection_lost(exc)
        self._stop_timer()
        self._unset_keepalive_if_required()
        if self.ticket is not None:
            self.ticket.leave()

    def data_received(self, data: bytes) -> None:
        """Parse data, and close the connection if they go on for too long."""
        if self.transport.is_closing():
            return
        self._chunk = len(data)
        self._received += self._chunk
        super().data_received(data)
        if self.ticket is not None and (self.cycle is None or self.cycle.more_body):
            self.ticket.leave()  # whoever sends slowly must not take the place of others
        if self._is_waiting():
            if self._received - self._before > self.limits.max_head_bytes:
                self._refuse()
            elif self._timer is None:
                self._start_timer()
        elif self._received - self._before > self.limits.max_head_bytes + self.limits.max_body_bytes:
            self._refuse()

    def on_message_begin(self) -> None:
        """Count from here."""
        self._received = self._before = self._chunk
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        self._check(len(self.headers) < self.limits.max_headers)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request."""
        most = self.limits.max_head_bytes
        self._check(self._received <= most or self._head_bytes() <= most)
        self._check(len(self.pipeline) < _MAX_PIPELINED)
        self._stop_timer()
        self.app = _refuse_politely if self._is_overload() else self.config.loaded_app
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._received -= len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Take the next request; one that was answered before its turn leaves the line."""
        if self.ticket is not None:
            self.ticket.leave()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser could not accept, or a callback above did not."""
        if self._is_refused:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Start a request whose turn it is; a hot one may hand over its response as a whole."""
        if "extensions" in cycle.scope:
            cycle.scope["extensions"][RESPOND] = partial(self._respond, cycle)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    async def _respond(self, cycle: RequestResponseCycle, body: bytes) -> None:
        """Respond with JSON in one write, which is one packet; `send` makes two of it."""
        if self.flow.write_paused and not cycle.disconnected:
            await self.flow.drain()
        if cycle.disconnected:
            return
        cycle.response_started = cycle.response_complete = True
        connection = b"" if cycle.keep_alive else b"connection: close\r\n"
        self.transport.write(b"%bcontent-length: %d\r\n%b\r\n%b" % (_OK, len(body), connection, body))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    def _is_overload(self) -> bool:
        """Get a ticket for the request, if it needs one; say whether there is none."""
        refused = self.admission.refused.get(b"%b %b" % (self.parser.get_method(), self.url))
        if refused is None:
            return False
        if self.ticket is None or not self.ticket.is_waiting:
            self.ticket = self.admission.admit()
            if self.ticket is None:
                refused.inc()
                return True
        self.scope["extensions"] = {TICKET: self.ticket}  # type: ignore[dict-item]
        return False

    def _check(self, is_within_limits: bool) -> None:
        if not is_within_limits:
            self._is_refused = True
            raise ValueError("beyond a limit")  # which ends the parsing

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + _BYTES_A_HEADER for name, value in self.headers)

    def _is_waiting(self) -> bool:
        """Say whether there is no request to answer."""
        return self.cycle is None or self.cycle.response_complete

    def _refuse(self) -> None:
        if self.transport.is_closing():
            return
        if self._is_waiting():
            self.transport.write(_TOO_LARGE)
        self.transport.close()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.limits.head_timeout, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _refuse_politely(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with 429, as an ASGI application."""
    await send({"type": "http.response.start", "status": _OVERLOADED.status, "headers": _OVERLOADED.all_headers()})
    await send({"type": "http.response.body", "body": _OVERLOADED.body})


def connections_within(limits: Limits, admission: Admission) -> type[asyncio.Protocol]:
    """Return the class of connections that keep to some limits, for `uvicorn.Config`.

    Args:
        limits: Of a connection and its requests.
        admission: That of the application.
    """
    return type("Connection", (LimitedConnection,), {"limits": limits, "admission": admission})
