"""What stands around every route: keys, limits, metrics and headers, from the request of ASGI to its answer.

Everything a client can get wrong is answered with 4xx and one line of JSON that names the field; 503 says that the log
does not take a write or that the service is not ready, and 500 would be a fault of ours. An `Endpoint` is an ASGI
application of its own, so that a busy route need not pass through a framework.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import ipaddress
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from seq2slate.log.backend import LogError
from seq2slate.serving import keys
from seq2slate.serving.messages import BadRequestError, ErrorAnswer
from seq2slate.serving.monitoring import Monitor

logger = logging.getLogger("seq2slate.serving")
JSON, HTML = b"application/json", b"text/html; charset=utf-8"
RETRY = {"Retry-After": "1"}
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_NOTHING_LOADS = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may take."""

    body_bytes: int = 4 << 20
    items: int = 1000
    in_flight: int = 256
    body_seconds: float = 10.0


class ProblemError(Exception):
    """An answer that is not 200."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


class Answer(NamedTuple):
    """What is sent back."""

    body: bytes
    status: int = 200
    media_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Besides those that every answer has."""


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return content as JSON."""
    more = tuple((name.lower().encode(), value.encode()) for name, value in (headers or {}).items())
    return Answer(msgspec.json.encode(content), status, JSON, more)


def error_answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Return what went wrong."""
    readable = message.encode(errors="backslashreplace").decode()
    return json_answer(ErrorAnswer(readable), status, headers)


def html_answer(page: str, status: int = 200) -> Answer:
    """Return a page that loads nothing and runs nothing: its own style is allowed by its checksum."""
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    sums = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in styles)
    policy = f"{_NOTHING_LOADS}; style-src {sums or chr(39) + 'none' + chr(39)}"
    return Answer(page.encode(), status, HTML, ((b"content-security-policy", policy.encode()),))


def headers_of(answer: Answer) -> list[tuple[bytes, bytes]]:
    """Return all headers of an answer."""
    about = ((b"content-type", answer.media_type), (b"content-length", b"%d" % len(answer.body)))
    return [*_HEADERS, *about, *answer.headers]


class Asked:
    """A request, as ASGI has it."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self._scope, self._receive = scope, receive
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of several, the first one counts

    def header(self, name: bytes, default: str = "") -> str:
        """Return a header, by its name in lower case."""
        value = self._headers.get(name)
        return default if value is None else value.decode("latin-1")

    @property
    def path(self) -> str:
        """The path of the URL."""
        path: str = self._scope["path"]
        return path

    @property
    def parameters(self) -> dict[str, str]:
        """Those of the query and of the path."""
        query = parse_qsl(self._scope["query_string"].decode("latin-1"), keep_blank_values=True)
        return {**dict(query), **self._scope.get("path_params", {})}

    async def body(self, limits: Limits) -> bytes:
        """Return the body, which is JSON as far as the headers say."""
        # A page of another site can make a browser send text/plain to this machine, but not application/json.
        if self.header(b"content-type").partition(";")[0].strip().lower() != JSON.decode():
            raise ProblemError(415, f"Content-Type: expected {JSON.decode()}")
        try:
            async with asyncio.timeout(limits.body_seconds):
                return await self._whole_body(limits.body_bytes)
        except TimeoutError:
            raise ProblemError(408, "the body did not arrive in time", {"Connection": "close"}) from None

    async def _whole_body(self, most: int) -> bytes:
        parts: list[bytes] = []
        size, there_is_more = 0, True
        while there_is_more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ProblemError(400, "the client went away")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise ProblemError(413, f"the body is larger than {most} bytes", {"Connection": "close"})
            there_is_more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)


Handler = Callable[[Asked], Awaitable[Answer]]


class Guard:
    """The keys, the limits and the metrics that all routes of a service share."""

    def __init__(self, monitor: Monitor, key_ring: keys.KeyRing | None, limits: Limits) -> None:
        self.limits = limits
        self.monitor = monitor
        self.in_flight = 0
        monitor.in_flight.set_function(lambda: self.in_flight)
        self._keys = key_ring

    def check(self, asked: Asked, key_scope: keys.Scope) -> None:
        """Refuse who must not, and what is too much."""
        self._check_origin(asked)
        self._check_key(asked, key_scope)
        if self.in_flight > self.limits.in_flight:
            raise ProblemError(429, "too many requests at a time; try again", RETRY)

    def _check_origin(self, asked: Asked) -> None:
        """Refuse what a page of another site makes a browser send."""
        if self._keys is None and not is_loopback(_host_of(asked.header(b"host"))):
            raise ProblemError(403, "Host: without keys, requests for any but this machine's own name are refused")
        if asked.method == "POST" and asked.header(b"sec-fetch-site", "none") not in ("none", "same-origin"):
            raise ProblemError(403, "Sec-Fetch-Site: requests from pages of other sites are refused")

    def _check_key(self, asked: Asked, key_scope: keys.Scope) -> None:
        if self._keys is None:
            return
        found = self._keys.scope_of(_key_of(asked.header(b"authorization")))
        if found is None:
            challenge = {"WWW-Authenticate": 'Bearer, Basic realm="seq2slate"'}
            raise ProblemError(401, "a key is needed: Authorization: Bearer KEY", challenge)
        if found != key_scope:
            raise ProblemError(403, f"this key is for {found!r}; this needs one for {key_scope!r}")


class Endpoint:
    """A handler behind a guard, as an ASGI application; without a scope of keys everybody may ask."""

    def __init__(self, guard: Guard, route: str, handler: Handler, key_scope: keys.Scope | None) -> None:
        self._guard, self._handler, self._key_scope = guard, handler, key_scope
        self._monitor = guard.monitor.of_route(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = time.perf_counter()
        self._guard.in_flight += 1
        try:
            answer = await self._answer(Asked(scope, receive))
        finally:
            self._guard.in_flight -= 1
        self._monitor.answered(answer.status, time.perf_counter() - started)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers_of(answer)})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, asked: Asked) -> Answer:
        try:
            if self._key_scope is not None:
                self._guard.check(asked, self._key_scope)
            return await self._handler(asked)
        except BadRequestError as error:
            return error_answer(422 if error.is_json else 400, str(error))
        except ProblemError as error:
            return error_answer(error.status, error.message, error.headers)
        except LogError:
            return error_answer(503, "the log does not take it; try again", RETRY)
        except Exception:
            logger.exception("%s failed", asked.path)
            return error_answer(500, "an error inside the service; its log says more")


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "example.org", "")]
    [True, True, True, False, False, False, False]
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _host_of(header: str) -> str:
    """Return the name in a Host header, without the port.

    >>> [_host_of(header) for header in ("localhost:8080", "[::1]:80", "[::1]", "127.0.0.1")]
    ['localhost', '::1', '::1', '127.0.0.1']
    """
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def _key_of(authorization: str) -> str:
    """Return the key of a header: a bearer token, or the password of a browser."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return rest.strip() if scheme.lower() == "bearer" else ""
