"""Nothing that a client sends makes the service fail."""

import http.client
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.services import Service, request, save_model

PATHS = (
    *("/v1/rerank", "/v1/clicks", "/v1/admin/reload", "/v1/experiment", "/docs", "/", "/slates", "/slates/x"),
    *("/v1/rerank/", "/nowhere"),
)
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "a", "\0", "\ud800", "é" * 300, "x" * 600, "<script>", "../../etc", "'; DROP TABLE impressions; --"),
    *([], [[]], [None], {}, {"": None}, {"a": {"a": {}}}, [[1.0] * 4] * 3, ["a", "a"], ["a", "b"]),
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("fuzz")
    save_model(folder / "model", seed=1)
    with Service(folder / "model", "--log", folder / "log.db") as service:
        yield service


def bodies(rng: random.Random) -> Iterator[bytes]:
    """Requests that are wrong in some place: in a byte, in a value, in a field; and bytes that were never JSON."""
    while True:
        body = rng.choice(
            [
                request("u", n=3, k=2),
                {"unit": "u", "item_ids": ["a"], "features": [[1.0] * 4]},
                {"slate_id": "s", "item": "a"},
            ]
        )
        kind = rng.randrange(4)
        if kind == 0:
            yield rng.randbytes(rng.randrange(200))
        elif kind == 1:
            text = bytearray(json.dumps(body).encode())
            for _ in range(rng.randrange(1, 4)):
                text[rng.randrange(len(text))] = rng.randrange(256)
            yield bytes(text)
        elif kind == 2:
            whole = json.dumps(body).encode()
            yield whole[: rng.randrange(len(whole))]
        else:
            yield json.dumps(spoiled(body, rng)).encode()


def spoiled(body: Any, rng: random.Random) -> Any:
    """Return the same with something odd somewhere."""
    if isinstance(body, dict) and body and rng.random() < 0.8:
        changed = dict(body)
        name = rng.choice([*changed, "context", "categorical", "explain", "k", "features", "items", "other"])
        if rng.random() < 0.2:
            changed.pop(name, None)
        else:
            changed[name] = spoiled(changed.get(name), rng)
        return changed
    if isinstance(body, list) and body and rng.random() < 0.8:
        position = rng.randrange(len(body))
        return [*body[:position], spoiled(body[position], rng), *body[position + 1 :]]
    return rng.choice(ODD)


def throw(service: Service, n: int, seed: int) -> Counter[int]:
    rng, statuses = random.Random(seed), Counter[int]()
    with closing(http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=30)) as connection:
        for _, body in zip(range(n), bodies(rng), strict=False):
            method = "POST" if rng.random() < 0.95 else rng.choice(["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
            path = PATHS[0] if rng.random() < 0.6 else rng.choice([one for one in PATHS if one != "/v1/admin/reload"])
            kind = (
                "application/json" if rng.random() < 0.97 else rng.choice(["", "text/plain", "application/json;x=\xff"])
            )
            connection.request(method, path, body, {"Content-Type": kind.encode("latin-1")})
            response = connection.getresponse()
            content = response.read()
            statuses[response.status] += 1
            assert response.status < 500, (method, path, body, content)
            if response.status >= 400 and response.headers["Content-Type"] == "application/json" and method != "HEAD":
                assert json.loads(content)["error"]
    return statuses


def test_random_bodies_find_no_failure(service: Service) -> None:
    statuses = throw(service, 500, seed=0)
    assert {200, 400, 404, 405, 415, 422} <= set(statuses)
    assert service.errors() == ""


@pytest.mark.slow
def test_many_random_bodies_find_no_failure(service: Service) -> None:
    statuses = throw(service, 10_000, seed=1)
    assert {200, 400, 404, 405, 415, 422} <= set(statuses)
    assert service.client.get("/healthz").status_code == 200


@pytest.mark.slow
def test_the_description_finds_no_failure(service: Service, tmp_path: Path) -> None:
    """Schemathesis makes requests, right and wrong, from the OpenAPI description, and compares answers with it."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    arguments = [
        "--checks",
        checks,
        "--max-examples",
        "60",
        "--seed",
        "1",
        "--no-color",
        "--suppress-health-check",
        "all",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated is not None
    assert int(generated.group(1)) > 300
