"""The service as a web application: routes, keys, limits and headers around a `Reranker`.

`create_app` makes it; `serving.server` runs it. Everything a client can get wrong is answered with 4xx and one line of
JSON that names the field; the only 5xx is 503, when the log does not take a write or the service is not ready.
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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from seq2slate.errors import Seq2SlateError
from seq2slate.serving.keys import KeyRing, Scope
from seq2slate.serving.log.store import ClickOutcome, StoreError
from seq2slate.serving.messages import (
    BadRequestError,
    ClickAnswer,
    ClickRequest,
    Decoder,
    ErrorAnswer,
    RerankRequest,
    candidates_of,
)
from seq2slate.serving.monitoring import CONTENT_TYPE, Monitor
from seq2slate.serving.openapi import describe, docs_page
from seq2slate.serving.reranker import Reranker
from seq2slate.serving.web import pages
from seq2slate.serving.web.overview import Source, analysis_of

logger = logging.getLogger("seq2slate.serving")
Handler = Callable[[Request], Awaitable[Response]]
_JSON = "application/json"
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_NOTHING_LOADS = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_RETRY = {"Retry-After": "1"}


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may take."""

    body_bytes: int = 4 << 20
    items: int = 1000
    in_flight: int = 256
    body_seconds: float = 10.0


class _ProblemError(Exception):
    """An answer that is not 200."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


def create_app(
    reranker: Reranker, monitor: Monitor, *, keys: KeyRing | None = None, limits: Limits | None = None
) -> Starlette:
    """Return the application; without keys everybody who reaches it may do everything."""
    service = _Service(reranker, monitor, keys, limits or Limits())
    guard = service.guarded
    routes = [
        Route("/v1/rerank", guard("rerank", service.rerank, "serve"), methods=["POST"]),
        Route("/v1/clicks", guard("clicks", service.click, "serve"), methods=["POST"]),
        Route("/v1/admin/reload", guard("reload", service.reload, "admin"), methods=["POST"]),
        Route("/healthz", guard("healthz", service.health, None), methods=["GET"]),
        Route("/readyz", guard("readyz", service.readiness, None), methods=["GET"]),
        Route("/metrics", guard("metrics", service.metrics, "admin"), methods=["GET"]),
        Route("/openapi.json", guard("openapi", service.openapi, "admin"), methods=["GET"]),
        Route("/docs", guard("docs", service.docs, "admin"), methods=["GET"]),
        Route("/v1/experiment", guard("experiment", service.experiment, "admin"), methods=["GET"]),
        Route("/", guard("page", service.page(pages.experiment), "admin"), methods=["GET"]),
        Route("/slates", guard("slates", service.page(pages.slates), "admin"), methods=["GET"]),
        Route("/slates/{slate_id}", guard("slate", service.page(pages.slate), "admin"), methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_such_route})


class _Service:
    """The handlers of the routes."""

    def __init__(self, reranker: Reranker, monitor: Monitor, keys: KeyRing | None, limits: Limits) -> None:
        self._reranker = reranker
        self._monitor = monitor
        self._keys = keys
        self._limits = limits
        self._in_flight = 0
        self._rerank_decoder, self._click_decoder = Decoder(RerankRequest), Decoder(ClickRequest)
        description = describe()
        self._openapi = msgspec.json.encode(description)
        self._docs = docs_page(description)

    # Routes

    async def rerank(self, request: Request) -> Response:
        """Answer a slate."""
        message: RerankRequest = self._rerank_decoder.decode(await self._body(request))
        candidates = candidates_of(message, most=self._limits.items)
        return _json(await self._reranker.rerank(message, candidates))

    async def click(self, request: Request) -> Response:
        """Take a click."""
        message: ClickRequest = self._click_decoder.decode(await self._body(request))
        outcome = await self._reranker.click(message)
        if outcome is ClickOutcome.UNKNOWN_SLATE:
            raise _ProblemError(404, "slate_id: there is no such slate")
        if outcome is ClickOutcome.NOT_SHOWN:
            raise _ProblemError(409, "item: the slate did not show that item")
        return _json(ClickAnswer(outcome.value))

    async def reload(self, request: Request) -> Response:
        """Load the models anew."""
        try:
            deployment = await self._reranker.reload()
        except (Seq2SlateError, OSError) as error:
            raise _ProblemError(409, str(error)) from error
        models = {arm: model.fingerprint for arm, model in deployment.models.items()}
        return _json({"experiment": deployment.experiment.name, "models": models})

    async def health(self, request: Request) -> Response:
        """Say that the process is alive."""
        return _json({"status": "ok"})

    async def readiness(self, request: Request) -> Response:
        """Say whether requests can be answered."""
        log_answers = await self._reranker.log_answers()
        ready = log_answers or not self._reranker.needs_log
        state = {"status": "ok" if ready else "unavailable", "log": "ok" if log_answers else "unavailable"}
        return _json(state, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Return the numbers."""
        return Response(self._monitor.text(), headers={**_HEADERS, "Content-Type": CONTENT_TYPE})

    async def openapi(self, request: Request) -> Response:
        """Return the description."""
        return Response(self._openapi, headers=_HEADERS, media_type=_JSON)

    async def docs(self, request: Request) -> Response:
        """Return the description as a page."""
        return html_response(self._docs)

    async def experiment(self, request: Request) -> Response:
        """Return what an experiment says."""
        try:
            analysis = await asyncio.to_thread(analysis_of, self._source, request.query_params.get("experiment"))
        except Seq2SlateError as error:
            raise _ProblemError(503, "the log cannot be read; try again", _RETRY) from error
        if analysis is None:
            raise _ProblemError(404, "experiment: there is no such experiment")
        return Response(analysis.to_json(), headers=_HEADERS, media_type=_JSON)

    def page(self, maker: pages.Maker) -> Handler:
        """Return the handler of a page that is drawn anew for every request."""

        async def handler(request: Request) -> Response:
            parameters = {**request.query_params, **request.path_params}
            page = await asyncio.to_thread(pages.make, maker, self._source, parameters)
            return html_response(page.text, page.status)

        return handler

    @property
    def _source(self) -> Source:
        return Source(self._reranker.store, self._reranker.deployment)

    # What stands around them

    def guarded(self, route: str, handler: Handler, scope: Scope | None) -> Handler:
        """Return a handler behind the keys, the limits and the metrics."""
        seconds = self._monitor.seconds.labels(route)

        async def endpoint(request: Request) -> Response:
            started = time.perf_counter()
            self._in_flight += 1
            self._monitor.in_flight.inc()
            try:
                response = await self._answer(request, handler, scope)
            finally:
                self._in_flight -= 1
                self._monitor.in_flight.dec()
            self._monitor.requests.labels(route, str(response.status_code)).inc()
            seconds.observe(time.perf_counter() - started)
            return response

        return endpoint

    async def _answer(self, request: Request, handler: Handler, scope: Scope | None) -> Response:
        try:
            if scope is not None:
                self._check_origin(request)
                self._check_key(request, scope)
                if self._in_flight > self._limits.in_flight:
                    raise _ProblemError(429, "too many requests at a time; try again", _RETRY)
            return await handler(request)
        except BadRequestError as error:
            return _error(422 if error.is_json else 400, str(error))
        except _ProblemError as error:
            return _error(error.status, error.message, error.headers)
        except StoreError:
            return _error(503, "the log does not take it; try again", _RETRY)
        except ClientDisconnect:
            return _error(400, "the client went away")
        except Exception:
            logger.exception("%s failed", request.url.path)
            return _error(500, "an error inside the service; its log says more")

    def _check_origin(self, request: Request) -> None:
        """Refuse what a page of another site makes a browser send."""
        if self._keys is None and not is_loopback(_host_of(request.headers.get("host", ""))):
            raise _ProblemError(403, "Host: without keys, requests for any but this machine's own name are refused")
        if request.method == "POST" and request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise _ProblemError(403, "Sec-Fetch-Site: requests from pages of other sites are refused")

    def _check_key(self, request: Request, scope: Scope) -> None:
        if self._keys is None:
            return
        found = self._keys.scope_of(_key_of(request.headers.get("authorization", "")))
        if found is None:
            challenge = {"WWW-Authenticate": 'Bearer, Basic realm="seq2slate"'}
            raise _ProblemError(401, "a key is needed: Authorization: Bearer KEY", challenge)
        if found != scope:
            raise _ProblemError(403, f"this key is for {found!r}; this needs one for {scope!r}")

    async def _body(self, request: Request) -> bytes:
        # A page of another site can make a browser send text/plain to this machine, but not application/json.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            raise _ProblemError(415, f"Content-Type: expected {_JSON}")
        body, most = bytearray(), self._limits.body_bytes
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise _ProblemError(413, f"the body is larger than {most} bytes", {"Connection": "close"})
        except TimeoutError:
            raise _ProblemError(408, "the body did not arrive in time", {"Connection": "close"}) from None
        return bytes(body)


def html_response(page: str, status: int = 200) -> Response:
    """Return a page that loads nothing and runs nothing: its own style is allowed by its checksum."""
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    sums = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in styles)
    policy = f"{_NOTHING_LOADS}; style-src {sums or chr(39) + 'none' + chr(39)}"
    return Response(page, status, {**_HEADERS, "Content-Security-Policy": policy}, "text/html")


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


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, {**_HEADERS, **(headers or {})}, _JSON)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    readable = message.encode(errors="backslashreplace").decode()
    return _json(ErrorAnswer(readable), status, headers)


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "that is what it is registered for"
    return _error(error.status_code, error.detail, dict(error.headers or {}))
