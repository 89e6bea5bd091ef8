"""Mutated HTTP requests over every route of `seq2slate serve`, with and without keys, as a client sends them.

A request is a valid one with something odd in its method, path, query, headers or body, or in all of its bytes. It
fails if the answer is 5xx or no HTTP, if there is none within 10 seconds, or if a model fails and the service falls
back. In the end the services must run, have written no traceback and taken at most 500 MB, and everything that they
acknowledged must be in logs without damage.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks.mutations import MEGABYTES, SECONDS, Outcome, mutated, peak_memory, small_lists
from seq2slate.config import NetworkConfig
from seq2slate.log.check import check_log
from seq2slate.log.impression_log import backend_for, open_log
from seq2slate.model.slate_model import SlateModel
from seq2slate.serving.keys import add_key
from seq2slate.serving.middleware import Limits
from tests.services import Service

_PATIENCE = 0.05
"""Seconds for an answer to what may be the beginning of a request; then the client goes."""
_BODY_WEIGHT = 6
"""How often a route with a body gets a request, compared with others."""
_METHODS = (
    b"GET",
    b"POST",
    b"PUT",
    b"DELETE",
    b"HEAD",
    b"OPTIONS",
    b"PATCH",
    b"CONNECT",
    b"TRACE",
    b"PRI",
    b"get",
    b"",
)
_PATHS = (
    b"/",
    b"//",
    b"/../..",
    b"/%00",
    b"/%",
    b"/%ff%fe",
    b"*",
    b"",
    b"http://localhost/",
    b"/v1/rerank/",
    b"/a" * 99,
)
_QUERIES = (
    b"experiment=",
    b"experiment=%00",
    b"refresh=-1",
    b"refresh=9" * 99,
    b"step=0",
    b"step=99999999999999999999",
)
_HEADERS = (
    *((b"Host", b"[::1].evil.com"), (b"Host", b""), (b"Origin", b"null"), (b"Sec-Fetch-Site", b"cross-site")),
    *((b"Content-Type", b"text/plain"), (b"Content-Encoding", b"gzip"), (b"Authorization", b"Basic \xff")),
    *((b"Expect", b"100-continue"), (b"Connection", b"close"), (b"Upgrade", b"websocket"), (b"X", b"x" * 9000)),
    *((b"Connection", b"upgrade"), (b"Accept", b"\xff"), (b"Range", b"bytes=0-1"), (b"If-None-Match", b"*")),
)
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "a", "\0", "\ud800", "é" * 300, "x" * 600, "<script>", "../../etc", "'; DROP TABLE impressions; --"),
    *([], [[]], [None], {}, {"": None}, {"a": {"a": {}}}, [[1.0] * 3] * 3, ["a", "a"], ["a", "b"]),
)


class Request(NamedTuple):
    """A request; `is_whole` says that the service can tell where it ends."""

    method: bytes
    path: bytes
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    is_whole: bool = True
    raw: bytes | None = None
    """What to send instead."""

    def encode(self) -> bytes:
        """Return the bytes to send."""
        return self.head() + self.body if self.raw is None else self.raw

    def head(self) -> bytes:
        """Return the request line and the headers."""
        target = self.path + (b"?" + self.query if self.query else b"")
        lines = [b" ".join((self.method, target, b"HTTP/1.1")), *(b": ".join(header) for header in self.headers)]
        if self.body:
            lines.append(b"Content-Length: %d" % len(self.body))
        return b"\r\n".join((*lines, b"", b""))


# Inputs


def valid_requests(slate_id: str) -> dict[str, Request]:
    """Return a request to each route, by its name; `slate_id` is one that the log has."""
    rows = [[1.5, -2.0, 3.0], [0.5, 1e3, 0.0], [-1.0, 0.25, 7.0]]
    items = [{"id": name, "features": row} for name, row in zip("abc", rows, strict=True)]
    columns: dict[str, Any] = {
        "categorical": {"city": ["Oslo", None, "Rome"]},
        "context": {"hour": 3, "device": "phone"},
    }
    told = {
        "items": {"unit": "user 7", "items": [one | {"categorical": {"city": "Oslo"}} for one in items], "k": 2},
        "columns": {"unit": "user 7", "item_ids": list("abc"), "features": rows, "explain": True, **columns},
    }
    found = {f"POST /v1/rerank, {name}": _post("/v1/rerank", body) for name, body in told.items()}
    found["POST /v1/clicks"] = _post("/v1/clicks", {"slate_id": slate_id, "item": "b"})
    found["POST /v1/admin/reload"] = _post("/v1/admin/reload")
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/slates"):
        found[f"GET {path}"] = _get(path)
    found["GET /v1/experiment"] = _get("/v1/experiment", "experiment=mutated")
    found["GET /"] = _get("/", "experiment=mutated&refresh=5")
    found["GET /slates/{slate_id}"] = _get(f"/slates/{slate_id}", "step=2")
    return found


def _get(path: str, query: str = "") -> Request:
    return Request(b"GET", path.encode(), query.encode(), ((b"Host", b"localhost"),))


def _post(path: str, body: Any = None) -> Request:
    headers = ((b"Host", b"localhost"), (b"Content-Type", b"application/json"))
    return Request(b"POST", path.encode(), b"", headers, b"" if body is None else json.dumps(body).encode())


def mutated_request(valid: Request, rng: random.Random) -> Request:
    """Return the request with something odd in one part, mostly in the body."""
    part = rng.choices(("body", "path", "query", "header", "method", "bytes"), (6 if valid.body else 1, 2, 2, 2, 1, 1))[
        0
    ]
    if part == "body":
        return valid._replace(body=_mutated_body(valid.body, rng))
    if part == "path":
        return _told_apart(valid._replace(path=_mutated_or_odd(valid.path, _PATHS, rng)))
    if part == "query":
        return _told_apart(valid._replace(query=_mutated_or_odd(valid.query, _QUERIES, rng)))
    if part == "method":
        return _told_apart(valid._replace(method=_mutated_or_odd(valid.method, _METHODS, rng)))
    if part == "header":
        return _told_apart(valid._replace(headers=_mutated_headers(valid.headers, rng)))
    raw = mutated(valid.encode(), rng)
    return Request(raw.split(b" ")[0], b"", is_whole=False, raw=raw)


def _mutated_or_odd(valid: bytes, odd: Sequence[bytes], rng: random.Random) -> bytes:
    return rng.choice(odd) if rng.random() < 0.3 else mutated(valid, rng)


def _mutated_headers(valid: tuple[tuple[bytes, bytes], ...], rng: random.Random) -> tuple[tuple[bytes, bytes], ...]:
    headers, at = list(valid), rng.randrange(len(valid))
    name, value = headers[at]
    kind = rng.randrange(5)
    if kind == 0:
        headers[at] = mutated(name, rng), value
    elif kind == 1:
        headers[at] = name, mutated(value, rng)
    elif kind == 2:
        del headers[at]
    elif kind == 3:
        headers[at:at] = [rng.choice(_HEADERS)] * rng.choice((1, 1, 2, 150))
    else:
        headers.append(rng.choice(_HEADERS))
    return tuple(headers)


def _told_apart(request: Request) -> Request:
    """Return the request, which is no whole one any more if what is odd ends a line, or asks for another protocol."""
    head = request.head()
    n_lines = len(request.headers) + 3 + bool(request.body)
    is_plain = head.count(b"\r") == head.count(b"\n") == head.count(b"\r\n") == n_lines - 1
    is_http = request.method != b"CONNECT" and b"upgrade" not in head.lower()
    return request._replace(is_whole=is_plain and is_http)


def _mutated_body(valid: bytes, rng: random.Random) -> bytes:
    kind = rng.randrange(8)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind < 4 or not valid:
        return mutated(valid, rng)
    return json.dumps(_spoiled(json.loads(valid), rng)).encode()


def _spoiled(body: Any, rng: random.Random) -> Any:
    """Return JSON with something odd somewhere."""
    if isinstance(body, dict) and body and rng.random() < 0.8:
        changed = dict(body)
        name = rng.choice([*changed, "context", "categorical", "explain", "k", "features", "items", "titles", "other"])
        if rng.random() < 0.2:
            changed.pop(name, None)
        else:
            changed[name] = _spoiled(changed.get(name), rng)
        return changed
    if isinstance(body, list) and body and rng.random() < 0.8:
        position = rng.randrange(len(body))
        return [*body[:position], _spoiled(body[position], rng), *body[position + 1 :]]
    return rng.choice(_ODD)


# Services


class Answer(NamedTuple):
    """What came back."""

    status: int
    kind: str
    body: bytes


class TargetService:
    """A service, and what it has acknowledged."""

    def __init__(self, service: Service, log: Path, keys: tuple[str, str] | None) -> None:
        self.service, self.log, self._keys = service, log, keys
        url = urlsplit(service.url)
        self._address = str(url.hostname), int(url.port or 0)
        self._socket: socket.socket | None = None
        self._slates: dict[str, list[str]] = {}
        self._clicks: set[tuple[str, str]] = set()
        first = valid_requests("")["POST /v1/rerank, columns"]
        said = self.send(self._with_key(first))
        assert isinstance(said, Answer), said
        assert said.status == 200, said.body
        self.valid = {
            name: self._with_key(one) for name, one in valid_requests(json.loads(said.body)["slate_id"]).items()
        }

    def _with_key(self, request: Request) -> Request:
        if self._keys is None:
            return request
        key = self._keys[request.path not in (b"/v1/rerank", b"/v1/clicks")]
        return request._replace(headers=(*request.headers, (b"Authorization", b"Bearer " + key.encode())))

    def take(self, request: Request) -> str:
        """Send a request; return `read` for 2xx, `refused` for 4xx or a closed connection, or why it fails."""
        said = self.send(request)
        if isinstance(said, str):
            return said
        if said.status >= 500:
            return f"status {said.status}: {said.body[:500]!r}"
        if said.kind.startswith("application/json") and request.method != b"HEAD":
            try:
                told = json.loads(said.body)
            except ValueError:
                return f"status {said.status} with a body that is no JSON: {said.body[:500]!r}"
            if said.status >= 400 and not told.get("error"):
                return f"status {said.status} without an error: {said.body[:500]!r}"
            if said.status == 200 and told.get("reason") in ("model-error", "log"):
                return f"fell back: {told}"
            self._note(request, said.status, told)
        return "read" if said.status < 300 else "refused"

    def send(self, request: Request) -> Answer | str:
        """Return the answer; `refused` if the connection is closed, or the client goes; or why there is none."""
        try:
            return self._exchange(request)
        except TimeoutError:
            self.close()
            return f"no answer within {SECONDS:g} seconds" if request.is_whole else "refused"
        except ConnectionRefusedError as error:
            return f"the service is gone: {error}"
        except (ConnectionError, http.client.HTTPException) as error:
            self.close()
            may_close = not request.is_whole or len(request.head()) > Limits().max_head_bytes
            return "refused" if may_close else f"closed without an answer: {error!r}"

    def _exchange(self, request: Request) -> Answer:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, SECONDS)
        self._socket.settimeout(SECONDS if request.is_whole else _PATIENCE)
        with suppress(ConnectionError):  # there may be an answer all the same
            self._socket.sendall(request.encode())
        response = http.client.HTTPResponse(self._socket, method=request.method.decode("latin-1"))
        response.begin()
        answer = Answer(response.status, response.headers.get("Content-Type", ""), response.read())
        if response.will_close or not request.is_whole:
            self.close()
        return answer

    def _note(self, request: Request, status: int, told: Any) -> None:
        if status == 200 and told.get("slate_id"):
            self._slates[told["slate_id"]] = told["items"]
        if status == 200 and told.get("outcome"):
            with suppress(ValueError):  # it was sent in pieces that only the service could put together
                sent = json.loads(request.body)
                self._clicks.add((sent["slate_id"], sent["item"]))

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def problems(self) -> Iterator[str]:
        """Stop the service, and yield what is wrong with it, its memory, its errors and its log."""
        self.close()
        if self.service.process.poll() is not None:
            yield f"the service ended with code {self.service.process.returncode}"
        else:
            self.megabytes = peak_memory(self.service.process.pid)
            if self.megabytes > MEGABYTES:
                yield f"the service took {self.megabytes:.0f} MB"
            if code := self.service.stop():
                yield f"the service stopped with code {code}"
        if "Traceback" in self.service.errors():
            yield self.service.errors()[-3000:]
        yield from check_log(backend_for(str(self.log), create=False)).problems
        with open_log(self.log, create=False) as log:
            found = {one.slate_id: one for one in log.impressions()}
        for slate_id, items in self._slates.items():
            if slate_id not in found or [found[slate_id].items[index] for index in found[slate_id].shown] != items:
                yield f"slate {slate_id} was acknowledged, and is not in the log as it was shown"
        for slate_id, item in self._clicks:
            if slate_id not in found or item not in [found[slate_id].items[index] for index in found[slate_id].clicks]:
                yield f"a click on {item!r} of slate {slate_id} was acknowledged, and is not in the log"
        if not self._slates or not self._clicks:
            yield "nothing was acknowledged"

    megabytes = 0.0
    """The peak of its memory, once it has been stopped."""


@contextmanager
def services(folder: Path) -> Iterator[list[TargetService]]:
    """Serve a model that reads columns of all kinds, in an experiment, without keys and with them."""
    SlateModel.create(small_lists(), NetworkConfig(hidden=4)).save(folder / "model")
    arms = ('name = "control"\nmodel = "base"', 'name = "model"', 'name = "sampled"\ntemperature = 0.5')
    (folder / "experiment.toml").write_text("\n".join(['name = "mutated"', *(f"[[arms]]\n{arm}" for arm in arms)]))
    keys = add_key(folder / "keys.json", "serve", ""), add_key(folder / "keys.json", "admin", "")
    options = (folder / "model", "--experiment", folder / "experiment.toml", "--deadline-ms", 5000, "--log")
    with (
        Service(*options, folder / "open.db") as opened,
        Service(*options, folder / "locked.db", "--keys", folder / "keys.json") as locked,
    ):
        targets = [TargetService(opened, folder / "open.db", None), TargetService(locked, folder / "locked.db", keys)]
        try:
            yield targets
        finally:
            for target in targets:
                target.close()


def run(numbers: Sequence[int], outcome: Outcome) -> None:
    """Send the requests of some numbers; count how they were taken."""
    with tempfile.TemporaryDirectory() as name, services(Path(name)) as targets:
        for number in numbers:
            now, target, request = _input(number, targets)
            outcome.count(target.take(request), now)
        for target in targets:
            for problem in target.problems():
                outcome.failures.append({"number": -1, "target": "service", "why": problem})
            outcome.megabytes = max(outcome.megabytes, target.megabytes)


def _input(number: int, targets: Sequence[TargetService]) -> tuple[dict[str, Any], TargetService, Request]:
    rng = random.Random(number)
    target = rng.choice(targets)
    names = list(target.valid)
    name = rng.choices(names, [_BODY_WEIGHT if target.valid[name].body else 1 for name in names])[0]
    return {"number": number, "target": name}, target, mutated_request(target.valid[name], rng)


def show(number: int) -> None:
    """Print the request of a number, and how a service takes it."""
    with tempfile.TemporaryDirectory() as name, services(Path(name)) as targets:
        now, target, request = _input(number, targets)
        print(now["target"], request, target.send(request), sep="\n")
