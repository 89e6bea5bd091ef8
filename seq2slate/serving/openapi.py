"""The OpenAPI description of the service, derived from its routes, and the same as a page without scripts.

Schemas come from the types that requests are decoded into, so that they cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from seq2slate import __version__
from seq2slate.html import Html, Section, element, page, table
from seq2slate.serving.messages import ErrorResponse
from seq2slate.serving.middleware import HTML, JSON, Route

_EXAMPLES: dict[str, Any] = {
    "RerankRequest": {
        "unit": "u1",
        "items": [
            {"id": "a", "features": [0.3, 1.0], "title": "Desk lamp"},
            {"id": "b", "features": [0.1, 4.0], "title": "Chair"},
        ],
        "k": 2,
    },
    "ClickRequest": {"slate_id": "mC0Pq7n3cR1s5hZr0yJt9A", "item": "b"},
}
_KEY_ERRORS = {
    401: "A key is needed, or this one is not known.",
    403: "The key has another scope, or the request comes from a page of another site.",
    429: "Overloaded: too many requests wait or are in flight; try again.",
}
_BODY_ERRORS = {
    400: "The body is not JSON.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body must be application/json.",
    422: "A field is missing, of the wrong type, or out of range; the message names it.",
}


def parameter(name: str, description: str, *, place: str = "query", **schema: Any) -> dict[str, Any]:
    """Return the description of a route's parameter.

    >>> parameter("step", "Which one.", type="integer")["schema"]
    {'type': 'integer'}
    """
    described = {"name": name, "in": place, "description": description, "schema": schema}
    return described | ({"required": True} if place == "path" else {})


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI description of some routes."""
    types = {kind for route in routes for kind in (route.body, route.returns) if isinstance(kind, type)}
    ordered = [*sorted(types, key=lambda kind: kind.__name__), ErrorResponse]
    _, schemas = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    for name in _EXAMPLES.keys() & schemas.keys():
        schemas[name]["example"] = _EXAMPLES[name]
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _describe_route(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "seq2slate",
            "version": __version__,
            "description": "Re-rank whole slates, and log what was clicked.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "serve": {"type": "http", "scheme": "bearer", "description": "A key for slates and clicks."},
                "admin": {"type": "http", "scheme": "bearer", "description": "A key for everything else."},
            },
        },
    }


def _describe_route(route: Route) -> dict[str, Any]:
    errors = {
        **(_KEY_ERRORS if route.key_scope is not None else {}),
        **(_BODY_ERRORS if route.body is not None else {}),
        **route.errors,
    }
    failed = {JSON: _schema_of(ErrorResponse)}
    if route.key_scope is None:
        failed = {JSON: {"schema": {}}}
    elif route.returns == HTML:  # an error is a page, too, or JSON where it occurs before the page is drawn
        failed = {"text/html": {"schema": {}}} | failed
    ok = {_media_type(route.returns): _schema_of(route.returns)}
    return {
        "operationId": route.name,
        "summary": route.summary,
        "security": [] if route.key_scope is None else [{route.key_scope: []}],
        **({"parameters": list(route.parameters)} if route.parameters else {}),
        **(
            {} if route.body is None else {"requestBody": {"required": True, "content": {JSON: _schema_of(route.body)}}}
        ),
        "responses": {
            "200": {"description": route.ok or route.summary, "content": ok},
            **{str(status): {"description": text, "content": failed} for status, text in errors.items()},
        },
    }


def _media_type(returns: type[msgspec.Struct] | str) -> str:
    return returns.partition(";")[0] if isinstance(returns, str) else JSON


def _schema_of(kind: type[msgspec.Struct] | str) -> dict[str, Any]:
    return {"schema": {} if isinstance(kind, str) else {"$ref": f"#/components/schemas/{kind.__name__}"}}


# The page


def docs_page(description: Mapping[str, Any]) -> str:
    """Return an OpenAPI description as HTML."""
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
        [status, one["description"], ", ".join(_type(content["schema"]) for content in one["content"].values())]
        for status, one in sorted(operation["responses"].items())
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
    """Return a schema in a few words."""
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
