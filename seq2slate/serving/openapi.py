"""The description of the service: OpenAPI for programs, and the same as a page that needs no network and no scripts.

Schemas come from the very types that requests are read into, so that they cannot differ.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from seq2slate import __version__
from seq2slate.html import Html, Section, element, page, table
from seq2slate.serving.messages import ClickAnswer, ClickRequest, ErrorAnswer, RerankAnswer, RerankRequest

_TYPES = (RerankRequest, RerankAnswer, ClickRequest, ClickAnswer, ErrorAnswer)
_EXAMPLES: dict[str, Any] = {
    "RerankRequest": {
        "unit": "u1",
        "items": [{"id": "a", "features": [0.3, 1.0]}, {"id": "b", "features": [0.1, 4.0]}],
        "k": 2,
    },
    "ClickRequest": {"slate_id": "mC0Pq7n3cR1s5hZr0yJt9A", "item": "b"},
}
_PROBLEMS = {
    "400": "The body is not JSON.",
    "401": "A key is needed, or this one is not known.",
    "403": "The key is for something else.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body must be application/json.",
    "422": "A field is missing, of the wrong type, or out of range; the message names it.",
    "429": "Too many requests at a time; try again.",
    "503": "The log does not take it; try again.",
}
_AUTHORISATION = ("401", "403")
_NAME: dict[str, Any] = {
    "name": "experiment",
    "in": "query",
    "description": "The one being served if not given.",
    "schema": {"type": "string"},
}
_REFRESH: dict[str, Any] = {
    "name": "refresh",
    "in": "query",
    "description": "Load the page anew after so many seconds.",
    "schema": {"type": "integer", "minimum": 2, "maximum": 3600},
}
_SLATE: dict[str, Any] = {"name": "slate_id", "in": "path", "required": True, "schema": {"type": "string"}}
_STEP: dict[str, Any] = {
    "name": "step",
    "in": "query",
    "description": "Which step of the model to show.",
    "schema": {"type": "integer", "minimum": 1, "default": 1},
}


def describe() -> dict[str, Any]:
    """Return the OpenAPI description."""
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    for name, example in _EXAMPLES.items():
        schemas[name]["example"] = example
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "seq2slate",
            "version": __version__,
            "description": "Re-rank whole slates, and learn what was clicked.",
        },
        "paths": {
            "/v1/rerank": {"post": _rerank()},
            "/v1/clicks": {"post": _click()},
            "/v1/admin/reload": {"post": _reload()},
            "/healthz": {"get": _get("The process is alive.", open_to_all=True)},
            "/readyz": {"get": _get("Requests can be answered.", "503", open_to_all=True)},
            "/metrics": {"get": _get("Numbers for Prometheus.", kind="text/plain")},
            "/openapi.json": {"get": _get("This description.")},
            "/docs": {"get": _get("This description as a page.", kind="text/html")},
            "/v1/experiment": {"get": _experiment()},
            "/": {"get": _page("The experiment as a page.", _NAME, _REFRESH)},
            "/slates": {"get": _page("The latest slates as a page.")},
            "/slates/{slate_id}": {"get": _page("One slate as a page: what moved, and why.", _SLATE, _STEP)},
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "serve": {"type": "http", "scheme": "bearer", "description": "A key for slates and clicks."},
                "admin": {"type": "http", "scheme": "bearer", "description": "A key for everything else."},
            },
        },
    }


def _rerank() -> dict[str, Any]:
    answers = {"200": _answer("The slate; it is in the log unless slate_id is null.", "RerankAnswer")}
    return {
        "operationId": "rerank",
        "summary": "Put candidates, given in base order, in a better order.",
        "security": [{"serve": []}],
        "requestBody": _body("RerankRequest"),
        "responses": answers | _problems(*_PROBLEMS),
    }


def _click() -> dict[str, Any]:
    answers = {
        "200": _answer("The click is in the log. The same again changes nothing.", "ClickAnswer"),
        "404": _answer("There is no such slate.", "ErrorAnswer"),
        "409": _answer("The slate did not show that item.", "ErrorAnswer"),
    }
    return {
        "operationId": "click",
        "summary": "Say that an item of a slate was clicked.",
        "security": [{"serve": []}],
        "requestBody": _body("ClickRequest"),
        "responses": answers | _problems(*_PROBLEMS),
    }


def _reload() -> dict[str, Any]:
    return {
        "operationId": "reload",
        "summary": "Load the models and the experiment anew, without dropping a request.",
        "security": [{"admin": []}],
        "responses": {
            "200": _answer("They are being served.", "object"),
            "409": _answer("They cannot be loaded; what was served before goes on.", "ErrorAnswer"),
        }
        | _problems(*_AUTHORISATION),
    }


def _get(summary: str, *more: str, kind: str = "application/json", open_to_all: bool = False) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": summary, "content": {kind: {"schema": {}}}}
    failures = {status: {"description": "Not now."} for status in more}
    return {
        "summary": summary,
        "security": [] if open_to_all else [{"admin": []}],
        "responses": {"200": answer} | failures | ({} if open_to_all else _problems(*_AUTHORISATION)),
    }


def _experiment() -> dict[str, Any]:
    answers = {
        "200": _answer("Arms, rates, intervals, differences to the control, and the check of the shares.", "object"),
        "404": _answer("There is no such experiment.", "ErrorAnswer"),
    }
    return {
        "operationId": "experiment",
        "summary": "What an experiment says so far; it may be looked at any time.",
        "security": [{"admin": []}],
        "parameters": [_NAME],
        "responses": answers | _problems(*_AUTHORISATION, "429", "503"),
    }


def _page(summary: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a page; a problem is a page, too, or JSON where the service never came to draw one."""
    problem = {"text/html": {"schema": {}}, "application/json": {"schema": _reference("ErrorAnswer")}}
    missing = {"404": {"description": "There is no such page.", "content": problem}}
    away = {"503": {"description": "The log cannot be read; try again.", "content": problem}}
    described = _get(summary, kind="text/html")
    responses = described["responses"] | missing | away | _problems("429")
    return described | {"parameters": list(parameters), "responses": responses}


def _body(name: str) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": _reference(name)}}}


def _answer(text: str, name: str) -> dict[str, Any]:
    schema = {"type": "object"} if name == "object" else _reference(name)
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _problems(*statuses: str) -> dict[str, Any]:
    return {status: _answer(_PROBLEMS[status], "ErrorAnswer") for status in statuses}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


# The page


def docs_page(description: dict[str, Any]) -> str:
    """Return the description as HTML."""
    operations = [
        Section(f"{method.upper()} {path}", _operation(operation))
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [Section(name, _schema(schema)) for name, schema in description["components"]["schemas"].items()]
    return page(f"seq2slate {description['info']['version']}", [*operations, *schemas])


def _operation(operation: dict[str, Any]) -> list[Html]:
    parts = [element("p", operation["summary"])]
    scopes = [name for requirement in operation["security"] for name in requirement]
    parts.append(element("p", f"Key: {', '.join(scopes) or 'none'}", class_="soft"))
    body = operation.get("requestBody")
    if body:
        parts.append(element("p", "Body: ", element("code", _type(body["content"]["application/json"]["schema"]))))
    rows = [
        [status, answer["description"], ", ".join(_type(one["schema"]) for one in answer.get("content", {}).values())]
        for status, answer in sorted(operation["responses"].items())
    ]
    return [*parts, table(["status", "meaning", "body"], rows)]


def _schema(schema: dict[str, Any]) -> list[Html]:
    parts = [element("p", schema.get("description", ""))]
    required = schema.get("required", [])
    rows = [
        [name, _type(one), "required" if name in required else _default(one)]
        for name, one in schema.get("properties", {}).items()
    ]
    parts.append(table(["field", "type", ""], rows))
    if "example" in schema:
        parts.append(element("pre", element("code", json.dumps(schema["example"], indent=2))))
    return parts


def _default(schema: dict[str, Any]) -> str:
    return f"{json.dumps(schema['default'])} if not given" if "default" in schema else "may be absent"


def _type(schema: dict[str, Any]) -> str:
    """Say a schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"array of ({_type(schema.get('items', {}))})"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of ({_type(schema['additionalProperties'])})"
    bounds = [
        f"{sign} {schema[key]}{unit}"
        for key, sign, unit in (
            ("minimum", "≥", ""),
            ("maximum", "≤", ""),
            ("minLength", "≥", " characters"),
            ("maxLength", "≤", " characters"),
        )
        if key in schema
    ]
    return " ".join([kind, *bounds])
