"""What every route shares: requests, responses, API keys, limits, metrics, security headers and error handling.

An error of the client is answered with 4xx and one line of JSON that names the field. 503 says that the log is
unavailable or that the service is not ready; 500 is a bug of the service. An `Endpoint` is an ASGI application of its
own, so that a hot route need not pass through a framework.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from prometheus_client import Counter
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from seq2slate.log.backend import LogError
from seq2slate.serving.admission import Admission, Ticket
from seq2slate.serving.keys import KeyRing, KeyScope
from seq2slate.serving.messages import MAX_VALUES, ErrorResponse
from seq2slate.serving.monitoring import Monitor

_logger = logging.getLogger("seq2slate.serving")
JSON, HTML = "application/json", "text/html; charset=utf-8"
TICKET = "seq2slate.ticket"
"""The extension of an ASGI scope by which a connection hands over the ticket of a request."""
RESPOND = "seq2slate.respond"
"""The extension by which a connection takes the body of a response that is JSON with status 200."""
RETRY_LATER = {"Retry-After": "1"}
_CLOSE = {"Connection": "close"}
_CONNECTION_BYTES = 64 << 10  # the server's own buffer of a body that is still arriving
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:/@\s]+))(?::\d*)?")
_SECURITY_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_CONTENT_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@dataclass(frozen=True)
class Limits:
    """Limits on one request, and on all of them together."""

    max_body_bytes: int = 4 << 20
    """Size of a request's body; a larger one gets 413."""
    max_items: int = 1000
    """Candidates of a list; more get 422."""
    max_in_flight: int = 256
    """Requests in flight, without those whose body is still arriving; more get 429."""
    max_values: int = MAX_VALUES
    """Numbers, texts and fields of a request; more get 422."""
    body_timeout: float = 10.0
    """Seconds for a body to arrive; a slower one gets 408."""
    max_partial_bytes: int = 128 << 20
    """Of all bodies that are still arriving; to make room, the one that began first gets 408."""
    max_head_bytes: int = 32 << 10
    """Size of the request line and the headers; a larger one gets 431."""
    max_headers: int = 100
    """Headers of a request; more get 431."""
    head_timeout: float = 10.0
    """Seconds for the headers of a request to arrive; then the connection is closed."""


class Response(NamedTuple):
    """A whole HTTP response."""

    body: bytes
    status: int = 200
    media_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Besides those that every response has."""

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers to send."""
        content = ((b"content-type", self.media_type.encode()), (b"content-length", b"%d" % len(self.body)))
        return [*_SECURITY_HEADERS, *content, *self.headers]


def json_response(content: Any, status: int = 200) -> Response:
    """Return content as JSON."""
    return Response(msgspec.json.encode(content), status)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as JSON, with headers of its own."""
    readable = message.encode(errors="backslashreplace").decode()
    more = tuple((name.lower().encode(), value.encode()) for name, value in (headers or {}).items())
    return Response(msgspec.json.encode(ErrorResponse(readable)), status, headers=more)


def html_response(page: str, status: int = 200) -> Response:
    """Return a page under a policy that lets it load and run nothing: its own style is allowed by its checksum."""
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    sums = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in styles)
    policy = f"{_CONTENT_POLICY}; style-src {sums or chr(39) + 'none' + chr(39)}"
    return Response(page.encode(), status, HTML, ((b"content-security-policy", policy.encode()),))


class Request:
    """An HTTP request: an ASGI scope, and its body once it is read."""

    def __init__(self, scope: Scope, receive: Receive, limits: Limits) -> None:
        self.method: str = scope["method"]
        self.body = b""
        """JSON as it came; empty if the route declares no body."""
        self.arrived = time.perf_counter()
        """When it had arrived to its end, if it had to wait for its turn."""
        self._scope, self._receive, self._limits = scope, receive, limits
        self._ticket: Ticket | None = scope.get("extensions", {}).get(TICKET)
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of several, the first one counts

    def header(self, name: bytes, default: str = "") -> str:
        """Return a header, by its name in lower case."""
        value = self._headers.get(name)
        return default if value is None else value.decode("latin-1")

    def ticket(self, admission: Admission) -> Ticket:
        """Return the ticket that the connection got, or a new one if that has left the line; 429 if there is none."""
        ticket = self._ticket
        if ticket is None or not ticket.is_waiting:
            ticket = admission.admit()
        if ticket is None:
            raise HTTPException(429, "overloaded; try again", RETRY_LATER)
        self.arrived = ticket.arrived
        return ticket

    @property
    def path(self) -> str:
        """The path of the URL."""
        path: str = self._scope["path"]
        return path

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of the query and of the path."""
        query = parse_qsl(self._scope["query_string"].decode("latin-1"), keep_blank_values=True)
        return {**dict(query), **self._scope.get("path_params", {})}

    async def read_body(self, arriving: ArrivingBodies) -> None:
        """Read the whole body, which must be declared as JSON and keep to the limits."""
        # A page of another site can make a browser send text/plain to this machine, but not application/json.
        if self.header(b"content-type").partition(";")[0].strip().lower() != JSON:
            raise HTTPException(415, f"Content-Type: expected {JSON}")
        parts: list[bytes] = []
        size, most, is_complete = 0, self._limits.max_body_bytes, False
        is_here = self._ticket is not None and self._ticket.is_waiting  # to its end: a timer would be a waste
        timeout = asyncio.timeout(None if is_here else self._limits.body_timeout)
        try:
            async with timeout:
                while not is_complete:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(400, "the client disconnected")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise HTTPException(413, f"the body is larger than {most} bytes", _CLOSE)
                    is_complete = not message.get("more_body", False)
                    if not is_complete:
                        arriving.note(timeout, size)
        except TimeoutError:
            raise HTTPException(408, "the body did not arrive in time", _CLOSE) from None
        finally:
            arriving.forget(timeout)
        self.body = parts[0] if len(parts) == 1 else b"".join(parts)


class ArrivingBodies:
    """The bodies that have arrived in part, oldest first, and what they hold in memory.

    They do not count as requests in flight: whoever sends slowly would take the places of others. What they hold is
    bounded instead, and the oldest has to go first, so that a slow client competes with slow clients only.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._sizes: dict[asyncio.Timeout, int] = {}

    def note(self, body: asyncio.Timeout, size: int) -> None:
        """Note how much of a body has arrived; end the oldest ones if that is too much."""
        self._held += size + _CONNECTION_BYTES - self._sizes.get(body, 0)
        self._sizes[body] = size + _CONNECTION_BYTES
        while self._held > self._most:
            oldest = next(iter(self._sizes))
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())
            self.forget(oldest)

    def forget(self, body: asyncio.Timeout) -> None:
        """Forget a body that is complete or given up."""
        self._held -= self._sizes.pop(body, 0)


Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, eq=False)
class Route:
    """A route: where it is, who handles it, who may use it, and how the OpenAPI description presents it.

    The description derives what follows from the rest: the errors of keys and limits, and those of a body.
    """

    method: Literal["GET", "POST"]
    path: str
    handler: Handler
    key_scope: KeyScope | None
    """The keys that open it; None opens it to everybody."""
    name: str
    """The label of its metrics, and its operation id."""
    summary: str
    ok: str = ""
    """What a response of 200 means; the summary if empty."""
    body: type[msgspec.Struct] | None = None
    """The type of the JSON that a request carries; the handler finds it read and decodes it."""
    returns: type[msgspec.Struct] | str = JSON
    """The JSON of a response, or just its media type."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Statuses of its own, and what they mean."""
    parameters: tuple[Mapping[str, Any], ...] = ()
    """Of the query and the path, as OpenAPI describes them."""
    is_hot: bool = False
    """Whether requests skip the framework's router, and are refused when they arrive and would wait for too long; for
    fixed paths only."""
    is_always_answered: bool = False
    """Whether requests are answered however many are in flight."""


class Middleware:
    """The API keys, the limits and the metrics that all routes of a service share."""

    def __init__(self, monitor: Monitor, key_ring: KeyRing | None, limits: Limits, admission: Admission) -> None:
        self.limits = limits
        self.monitor = monitor
        self.admission = admission
        self.arriving = ArrivingBodies(limits.max_partial_bytes)
        monitor.in_flight.set_function(lambda: admission.in_flight)
        self._keys = key_ring

    def check(self, request: Request, key_scope: KeyScope) -> None:
        """Raise an HTTPException if a request comes from elsewhere, or lacks the key."""
        self._check_origin(request)
        self._check_key(request, key_scope)

    def _check_origin(self, request: Request) -> None:
        """Refuse requests that a page of another site makes a browser send."""
        if self._keys is None and not is_loopback(_host_of(request.header(b"host"))):
            raise HTTPException(403, "Host: without keys, requests for any but this machine's own name are refused")
        if request.method != "POST":
            return
        site, origin = request.header(b"sec-fetch-site", "none"), request.header(b"origin").lower()
        if site not in ("none", "same-origin"):
            raise HTTPException(403, "Sec-Fetch-Site: requests from pages of other sites are refused")
        # Browsers leave Sec-Fetch-Site out for addresses without TLS. A proxy may change the Host, but not that header.
        if origin and site != "same-origin" and origin.partition("://")[1:] != ("://", request.header(b"host").lower()):
            raise HTTPException(403, "Origin: requests from pages of other sites are refused")

    def _check_key(self, request: Request, key_scope: KeyScope) -> None:
        if self._keys is None:
            return
        found = self._keys.scope_of(_key_of(request.header(b"authorization")))
        if found is None:
            challenge = {"WWW-Authenticate": 'Bearer, Basic realm="seq2slate"'}
            raise HTTPException(401, "a key is needed: Authorization: Bearer KEY", challenge)
        if found != key_scope:
            raise HTTPException(403, f"this key is for {found!r}; this needs one for {key_scope!r}")


class Endpoint:
    """A route's handler inside the middleware, as an ASGI application."""

    def __init__(self, middleware: Middleware, route: Route) -> None:
        self._middleware, self._route = middleware, route
        self._seconds = middleware.monitor.request_seconds.labels(route.name)
        self._counters: dict[int, Counter] = {}  # by status, looked up once
        if route.is_hot:
            refused = middleware.monitor.requests.labels(route.name, "429")
            middleware.admission.refused[f"{route.method} {route.path}".encode()] = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = time.perf_counter()
        response = await self._respond(Request(scope, receive, self._middleware.limits))
        if response.status not in self._counters:
            counter = self._middleware.monitor.requests.labels(self._route.name, str(response.status))
            self._counters[response.status] = counter
        self._counters[response.status].inc()
        self._seconds.observe(time.perf_counter() - started)
        respond = scope.get("extensions", {}).get(RESPOND)
        if respond is not None and response.status == 200:
            await respond(response.body)
        else:
            await send({"type": "http.response.start", "status": response.status, "headers": response.all_headers()})
            await send({"type": "http.response.body", "body": response.body})

    async def _respond(self, request: Request) -> Response:
        middleware, admission, route = self._middleware, self._middleware.admission, self._route
        try:
            if route.key_scope is not None:
                middleware.check(request, route.key_scope)
            if route.body is not None:
                await request.read_body(middleware.arriving)
            if route.is_hot:
                await self._wait(request)
            elif not route.is_always_answered and admission.in_flight >= admission.max_in_flight:
                raise HTTPException(429, "too many requests in flight; try again", RETRY_LATER)
            admission.in_flight += 1
            try:
                return await route.handler(request)
            finally:
                admission.in_flight -= 1
        except HTTPException as error:
            return error_response(error.status_code, error.detail, error.headers)
        except LogError:
            return error_response(503, "the log is unavailable; try again", RETRY_LATER)
        except Exception:
            _logger.exception("%s failed", request.path)
            return error_response(500, "internal error; see the log of the service")

    async def _wait(self, request: Request) -> None:
        ticket = request.ticket(self._middleware.admission)
        try:
            await self._middleware.admission.turn()
        finally:
            ticket.leave()


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Say whether an address can be reached from this machine only.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "example.org", "")]
    [True, True, True, False, False, False, False]
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _host_of(header: str) -> str:
    """Return the name in a Host header, without the port; empty if it is none.

    >>> [_host_of(header) for header in ("localhost:8080", "[::1]:80", "[::1]", "127.0.0.1", "[::1].example.org")]
    ['localhost', '::1', '::1', '127.0.0.1', '']
    """
    found = _HOST.fullmatch(header)
    return "" if found is None else (found["address"] or found["name"]).lower()


def _key_of(authorization: str) -> str:
    """Return the key of an Authorization header: a bearer token, or the password of basic authentication."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except ValueError:  # binascii.Error and UnicodeDecodeError are ones, too
            return ""
    return rest.strip() if scheme.lower() == "bearer" else ""
