"""The service as a web application: the table of its routes, and their handlers.

`create_app` makes the application; `serving.server` runs it. A new route is one entry of `Handlers.routes` and its
handler: keys, limits, metrics, errors and the OpenAPI description follow from the entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from seq2slate.errors import Seq2SlateError
from seq2slate.log.impression_log import ImpressionLog
from seq2slate.log.writer import ClickOutcome
from seq2slate.serving.admission import Admission
from seq2slate.serving.deployment import Deployment
from seq2slate.serving.keys import KeyRing
from seq2slate.serving.messages import (
    ClickRequest,
    ClickResponse,
    RerankRequest,
    RerankResponse,
    read_click,
    read_rerank,
)
from seq2slate.serving.middleware import (
    HTML,
    RETRY_LATER,
    Endpoint,
    Handler,
    Limits,
    Middleware,
    Request,
    Response,
    Route,
    error_response,
    html_response,
    json_response,
)
from seq2slate.serving.monitoring import METRICS_TYPE, Monitor
from seq2slate.serving.openapi import describe, docs_page, parameter
from seq2slate.serving.service import RerankService
from seq2slate.serving.web.experiment_page import analysis_of, experiment_page
from seq2slate.serving.web.frame import Page, problem
from seq2slate.serving.web.slate_pages import slate_page, slates_page

_EXPERIMENT = parameter("experiment", "The one being served if not given.", type="string")
_REFRESH = parameter("refresh", "Load the page again after this many seconds.", type="integer", minimum=2, maximum=3600)
_STEP = parameter("step", "The step of the model to show.", type="integer", minimum=1, default=1)
_SLATE_ID = parameter("slate_id", "As a response has it.", place="path", type="string")


def create_app(
    service: RerankService,
    monitor: Monitor,
    *,
    key_ring: KeyRing | None = None,
    limits: Limits | None = None,
    admission: Admission | None = None,
    more_routes: Sequence[Route] = (),
) -> ASGIApp:
    """Return the ASGI application of a service.

    Args:
        service: Orders and logs.
        monitor: The metrics of the same service.
        key_ring: The API keys; without them everybody who reaches the service may do everything.
        limits: Limits on requests.
        admission: The one that the connections ask, too.
        more_routes: Routes besides those of the service.
    """
    limits = limits or Limits()
    middleware = Middleware(monitor, key_ring, limits, admission or Admission(limits.max_in_flight))
    routes = Handlers(service, middleware, more_routes).routes
    endpoints = {route: Endpoint(middleware, route) for route in routes}
    hot = {(route.method, route.path): endpoint for route, endpoint in endpoints.items() if route.is_hot}
    router = Starlette(
        routes=[StarletteRoute(route.path, one, methods=[route.method]) for route, one in endpoints.items()],
        exception_handlers={HTTPException: _no_such_route},
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = hot.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        await (endpoint or router)(scope, receive, send)

    return app


class Handlers:
    """The routes of the service, and a handler for each."""

    def __init__(self, service: RerankService, middleware: Middleware, more_routes: Sequence[Route] = ()) -> None:
        self._service = service
        self._limits, self._monitor = middleware.limits, middleware.monitor
        self._more_routes = more_routes

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """Every route: method, path, handler, scope of the keys that open it, name, and description."""
        log_is_away = {503: "The log is unavailable; try again."}
        no_experiment, no_slate = {404: "There is no such experiment."}, {404: "There is no such slate."}
        # fmt: off
        return (
            Route("POST", "/v1/rerank", self.rerank, "serve", "rerank",
                  "Re-rank candidates that are given in base order.",
                  body=RerankRequest, returns=RerankResponse, is_hot=True,
                  ok="The slate; it is in the log unless slate_id is null.", errors=log_is_away),
            Route("POST", "/v1/clicks", self.click, "serve", "clicks",
                  "Log a click on an item of a slate.",
                  body=ClickRequest, returns=ClickResponse, is_hot=True,
                  ok="The click is in the log; sending it again changes nothing.",
                  errors={**no_slate, 409: "The slate did not show that item.", **log_is_away}),
            Route("POST", "/v1/admin/reload", self.reload, "admin", "reload",
                  "Reload the models and the experiment without dropping a request.",
                  ok="They are being served.",
                  errors={409: "They cannot be loaded; those loaded before stay in service."}),
            Route("GET", "/healthz", self.health, None, "healthz",
                  "Liveness: the process runs.", is_always_answered=True),
            Route("GET", "/readyz", self.readiness, None, "readyz",
                  "Readiness: requests can be answered.",
                  errors={503: "Requests cannot be answered now."}, is_always_answered=True),
            Route("GET", "/metrics", self.metrics, "admin", "metrics",
                  "Metrics for Prometheus.", returns="text/plain", is_always_answered=True),
            Route("GET", "/openapi.json", self.openapi, "admin", "openapi",
                  "This description."),
            Route("GET", "/docs", self.docs, "admin", "docs",
                  "This description as a page.", returns=HTML),
            Route("GET", "/v1/experiment", self.experiment, "admin", "experiment",
                  "The analysis of an experiment so far; it may be read at any time.",
                  ok="Arms, rates, intervals, differences to the control, and the sample ratio test.",
                  errors=no_experiment | log_is_away, parameters=(_EXPERIMENT,)),
            Route("GET", "/", self.page(experiment_page), "admin", "page",
                  "The experiment as a page.", returns=HTML,
                  errors=no_experiment | log_is_away, parameters=(_EXPERIMENT, _REFRESH)),
            Route("GET", "/slates", self.page(slates_page), "admin", "slates",
                  "The latest slates as a page.", returns=HTML, errors=log_is_away),
            Route("GET", "/slates/{slate_id}", self.page(slate_page), "admin", "slate",
                  "One slate as a page: what moved, and why.", returns=HTML,
                  errors=no_slate | log_is_away, parameters=(_SLATE_ID, _STEP)),
            *self._more_routes,
        )
        # fmt: on

    async def rerank(self, request: Request) -> Response:
        """Return a slate."""
        limits, reads = self._limits, self._service.deployment.reads
        slate_request = read_rerank(request.body, max_items=limits.max_items, max_values=limits.max_values, reads=reads)
        return json_response(await self._service.rerank(slate_request, arrived=request.arrived))

    async def click(self, request: Request) -> Response:
        """Log a click."""
        outcome = await self._service.click(read_click(request.body))
        if outcome is ClickOutcome.UNKNOWN_SLATE:
            raise HTTPException(404, "slate_id: there is no such slate")
        if outcome is ClickOutcome.NOT_SHOWN:
            raise HTTPException(409, "item: the slate did not show that item")
        return json_response(ClickResponse(outcome.value))

    async def reload(self, request: Request) -> Response:
        """Reload the models and the experiment."""
        try:
            deployment = await self._service.reload()
        except (Seq2SlateError, OSError) as error:
            raise HTTPException(409, str(error)) from error
        models = {arm: model.fingerprint for arm, model in deployment.models.items()}
        return json_response({"experiment": deployment.experiment.name, "models": models})

    async def health(self, request: Request) -> Response:
        """Say that the process runs."""
        return json_response({"status": "ok"})

    async def readiness(self, request: Request) -> Response:
        """Say whether requests can be answered."""
        has_log = await self._service.log_is_available()
        is_ready = has_log or not (self._service.requires_log or self._service.store.damage)
        state = {"status": "ok" if is_ready else "unavailable", "log": "ok" if has_log else "unavailable"}
        return json_response(state, 200 if is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics."""
        return Response(self._monitor.text(), media_type=METRICS_TYPE)

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI description."""
        return json_response(self._description)

    async def docs(self, request: Request) -> Response:
        """Return the OpenAPI description as a page."""
        return html_response(docs_page(self._description))

    async def experiment(self, request: Request) -> Response:
        """Return the analysis of an experiment."""
        store, deployment, name = self._service.store, self._service.deployment, request.parameters.get("experiment")
        try:
            analysis = await asyncio.to_thread(analysis_of, store, deployment, name)
        except Seq2SlateError as error:
            raise HTTPException(503, "the log cannot be read; try again", RETRY_LATER) from error
        if analysis is None:
            raise HTTPException(404, "experiment: there is no such experiment")
        return Response(analysis.to_json().encode())

    def page(self, draw: Callable[[ImpressionLog, Deployment, Mapping[str, str]], Page]) -> Handler:
        """Return the handler of a page, which reads the log and is drawn in a thread at every request."""

        async def handler(request: Request) -> Response:
            try:
                page = await asyncio.to_thread(draw, self._service.store, self._service.deployment, request.parameters)
            except Seq2SlateError:  # a file that is gone is one, too
                page = problem(503, "The log is unavailable", "The service goes on as its options say. Try again.")
            return html_response(page.text, page.status)

        return handler

    @cached_property
    def _description(self) -> Mapping[str, object]:
        return describe(self.routes)


async def _no_such_route(request: StarletteRequest, error: Exception) -> StarletteResponse:
    assert isinstance(error, HTTPException), "it is registered for HTTPException alone"
    answer = error_response(error.status_code, error.detail, error.headers)
    response = StarletteResponse(answer.body, answer.status)
    response.raw_headers = answer.all_headers()
    return response
