"""The service as a web application: the routes around a `RerankService`, each behind the `Guard` of `serving.guard`.

`create_app` makes it; `serving.server` runs it. Starlette finds the route, but for the two that are asked all the time.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from seq2slate.errors import Seq2SlateError
from seq2slate.log.writer import ClickOutcome
from seq2slate.serving import keys
from seq2slate.serving.messages import ClickAnswer, ClickRequest, Decoder, RerankRequest, candidates_of
from seq2slate.serving.middleware import (
    RETRY,
    Answer,
    Asked,
    Endpoint,
    Guard,
    Handler,
    Limits,
    ProblemError,
    error_answer,
    headers_of,
    html_answer,
    json_answer,
)
from seq2slate.serving.monitoring import CONTENT_TYPE, Monitor
from seq2slate.serving.openapi import describe, docs_page
from seq2slate.serving.service import RerankService
from seq2slate.serving.web import pages
from seq2slate.serving.web.overview import Source, analysis_of


def create_app(
    reranker: RerankService, monitor: Monitor, *, key_ring: keys.KeyRing | None = None, limits: Limits | None = None
) -> ASGIApp:
    """Return the application; without keys everybody who reaches it may do everything."""
    guard = Guard(monitor, key_ring, limits or Limits())
    service, endpoint = _Service(reranker, guard), partial(Endpoint, guard)
    busy = {
        "/v1/rerank": endpoint("rerank", service.rerank, "serve"),
        "/v1/clicks": endpoint("clicks", service.click, "serve"),
    }
    posts = {**busy, "/v1/admin/reload": endpoint("reload", service.reload, "admin")}
    gets = {
        "/healthz": endpoint("healthz", service.health, None),
        "/readyz": endpoint("readyz", service.readiness, None),
        "/metrics": endpoint("metrics", service.metrics, "admin"),
        "/openapi.json": endpoint("openapi", service.openapi, "admin"),
        "/docs": endpoint("docs", service.docs, "admin"),
        "/v1/experiment": endpoint("experiment", service.experiment, "admin"),
        "/": endpoint("page", service.page(pages.experiment), "admin"),
        "/slates": endpoint("slates", service.page(pages.slates), "admin"),
        "/slates/{slate_id}": endpoint("slate", service.page(pages.slate), "admin"),
    }
    routes = [
        *(Route(path, one, methods=["POST"]) for path, one in posts.items()),
        *(Route(path, one, methods=["GET"]) for path, one in gets.items()),
    ]
    framework = Starlette(routes=routes, exception_handlers={HTTPException: _no_such_route})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        straight = busy.get(scope["path"]) if scope.get("method") == "POST" else None
        await (straight or framework)(scope, receive, send)

    return app


class _Service:
    """The handlers of the routes."""

    def __init__(self, reranker: RerankService, guard: Guard) -> None:
        self._reranker = reranker
        self._limits, self._monitor = guard.limits, guard.monitor
        self._rerank_decoder, self._click_decoder = Decoder(RerankRequest), Decoder(ClickRequest)
        description = describe()
        self._openapi = msgspec.json.encode(description)
        self._docs = docs_page(description)

    async def rerank(self, asked: Asked) -> Answer:
        """Answer a slate."""
        message: RerankRequest = self._rerank_decoder.decode(await asked.body(self._limits))
        candidates = candidates_of(message, most=self._limits.items)
        return json_answer(await self._reranker.rerank(message, candidates))

    async def click(self, asked: Asked) -> Answer:
        """Take a click."""
        message: ClickRequest = self._click_decoder.decode(await asked.body(self._limits))
        outcome = await self._reranker.click(message)
        if outcome is ClickOutcome.UNKNOWN_SLATE:
            raise ProblemError(404, "slate_id: there is no such slate")
        if outcome is ClickOutcome.NOT_SHOWN:
            raise ProblemError(409, "item: the slate did not show that item")
        return json_answer(ClickAnswer(outcome.value))

    async def reload(self, asked: Asked) -> Answer:
        """Load the models anew."""
        try:
            deployment = await self._reranker.reload()
        except (Seq2SlateError, OSError) as error:
            raise ProblemError(409, str(error)) from error
        models = {arm: model.fingerprint for arm, model in deployment.models.items()}
        return json_answer({"experiment": deployment.experiment.name, "models": models})

    async def health(self, asked: Asked) -> Answer:
        """Say that the process is alive."""
        return json_answer({"status": "ok"})

    async def readiness(self, asked: Asked) -> Answer:
        """Say whether requests can be answered."""
        log_answers = await self._reranker.log_answers()
        ready = log_answers or not self._reranker.needs_log
        state = {"status": "ok" if ready else "unavailable", "log": "ok" if log_answers else "unavailable"}
        return json_answer(state, 200 if ready else 503)

    async def metrics(self, asked: Asked) -> Answer:
        """Return the numbers."""
        return Answer(self._monitor.text(), media_type=CONTENT_TYPE.encode())

    async def openapi(self, asked: Asked) -> Answer:
        """Return the description."""
        return Answer(self._openapi)

    async def docs(self, asked: Asked) -> Answer:
        """Return the description as a page."""
        return html_answer(self._docs)

    async def experiment(self, asked: Asked) -> Answer:
        """Return what an experiment says."""
        try:
            analysis = await asyncio.to_thread(analysis_of, self._source, asked.parameters.get("experiment"))
        except Seq2SlateError as error:
            raise ProblemError(503, "the log cannot be read; try again", RETRY) from error
        if analysis is None:
            raise ProblemError(404, "experiment: there is no such experiment")
        return Answer(analysis.to_json().encode())

    def page(self, maker: pages.Maker) -> Handler:
        """Return the handler of a page that is drawn anew for every request."""

        async def handler(asked: Asked) -> Answer:
            page = await asyncio.to_thread(pages.make, maker, self._source, asked.parameters)
            return html_answer(page.text, page.status)

        return handler

    @property
    def _source(self) -> Source:
        return Source(self._reranker.store, self._reranker.deployment)


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "that is what it is registered for"
    answer = error_answer(error.status_code, error.detail, error.headers)
    response = Response(answer.body, answer.status)
    response.raw_headers = headers_of(answer)
    return response
