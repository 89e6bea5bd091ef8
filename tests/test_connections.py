"""Connections of a service without a proxy: real sockets, real uvicorn, and clients that mean no good."""

import asyncio
import gc
import json
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
import uvicorn

from seq2slate.experiments.assignment import Arm, Experiment
from seq2slate.log.impression_log import open_log
from seq2slate.serving.accepting import Server
from seq2slate.serving.admission import Admission
from seq2slate.serving.app import create_app
from seq2slate.serving.connections import LimitedConnection, connections_within
from seq2slate.serving.deployment import Deployment
from seq2slate.serving.middleware import Limits
from seq2slate.serving.monitoring import Monitor
from seq2slate.serving.service import RerankService, Timeouts
from tests.services import Service, request, save_model

BODY = json.dumps({"unit": "u", "item_ids": ["a", "b"]}).encode()
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
SOON = 0.3
"""Seconds after which the services of these tests lose patience."""


class Client:
    """A connection, on which anything can be sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        """Return the status of the next response, and read it to its end; 0 if the connection is closed."""
        try:
            head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 30)
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await self.reader.readexactly(int(length.split(b":")[1]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0
        return int(head.split()[1])

    async def ask(self, data: bytes) -> int:
        await self.send(data)
        return await self.status()

    async def is_closed_within(self, seconds: float) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(1), seconds) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True


@asynccontextmanager
async def serving(folder: Path, admission: Admission | None = None, **limits: Any) -> AsyncIterator[Any]:
    """Serve the base order; yield a function that connects, with a socket if one is given."""
    deployment = Deployment(Experiment("e", (Arm("control", model="base"), Arm("other", model="base"))), {})
    kept = Limits(**limits)
    with open_log(folder / "log.db") as store, closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.setblocking(False)
        monitor = Monitor()
        service = RerankService(lambda: deployment, store, monitor, Timeouts(log_deadline_ms=30_000))
        admission = admission or Admission(kept.max_in_flight)
        app = create_app(service, monitor, limits=kept, admission=admission)
        config = uvicorn.Config(
            app, http=connections_within(kept, admission), lifespan="off", log_config=None, timeout_keep_alive=60
        )
        server = Server(config, listener, admission)
        running = asyncio.create_task(server.serve([]))
        while not server.started:
            await asyncio.sleep(0.01)
        clients: list[Client] = []

        address = listener.getsockname()

        async def connect(first: bytes = b"") -> Client:
            connection = socket.create_connection(
                address
            )  # this thread is the server's, which finds what is sent first
            connection.sendall(first)
            clients.append(Client(*await asyncio.open_connection(sock=connection)))
            return clients[-1]

        yield connect
        for client in clients:
            client.writer.close()
            with suppress(OSError):
                await client.writer.wait_closed()
        server.should_exit = server.force_exit = True
        await running


def post(path: str, length: int, *more: str) -> bytes:
    headers = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {length}", *more)
    return "\r\n".join((f"POST {path} HTTP/1.1", *headers, "", "")).encode()


# Heads


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (GET + b"X: 1\r\n" * 99 + b"\r\n", 200),
        (GET + b"X: 1\r\n" * 100 + b"\r\n", 431),
        (GET + b"X: " + b"1" * 32_000 + b"\r\n\r\n", 200),
        (GET + b"X: " + b"1" * 33_000 + b"\r\n\r\n", 431),
        (GET + b"".join(b"X: " + b"1" * 2000 + b"\r\n" for _ in range(17)) + b"\r\n", 431),
        (b"GET /healthz?" + b"x" * 33_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    ],
    ids=["99 headers", "101 headers", "32 kB", "33 kB", "many of 2 kB", "the URL"],
)
@pytest.mark.parametrize("step", [1 << 20, 5000])
def test_heads_are_bounded(tmp_path: Path, head: bytes, status: int, step: int) -> None:
    async def run() -> None:
        async with serving(tmp_path) as connect:
            client = await connect()
            for start in range(0, len(head), step):
                await client.send(head[start : start + step])
                await asyncio.sleep(0.01)
            assert await client.status() == status
            if status == 200:
                assert await client.ask(GET + b"\r\n") == 200
            else:
                assert await client.is_closed_within(5)

    asyncio.run(run())


def test_a_request_of_any_size_may_follow_another_at_once(tmp_path: Path) -> None:
    """What a head is measured by must not contain the body before it."""
    large = json.dumps({"unit": "u", "item_ids": ["a"], "titles": ["x" * 300_000]}).encode()

    async def run() -> None:
        async with serving(tmp_path) as connect:
            client = await connect()
            await client.send((post("/v1/rerank", len(large)) + large) * 3 + GET + b"\r\n")
            assert [await client.status() for _ in range(4)] == [200] * 4

    asyncio.run(run())


# Responses


@pytest.mark.parametrize("closing", [(), ("Connection: close",)], ids=["keep-alive", "close"])
def test_a_slate_is_one_write_with_the_headers_of_any_response(tmp_path: Path, closing: tuple[str, ...]) -> None:
    """Two writes would be two packets: each takes system calls of the service, and wakes the client."""
    written: list[bytes] = []
    transport = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    write = transport.write

    def noted_write(self: Any, data: bytes) -> None:
        written.append(bytes(data))
        write(self, data)

    async def run() -> None:
        async with serving(tmp_path) as connect:
            client = await connect()
            assert await client.ask(post("/v1/rerank", len(BODY), *closing) + BODY) == 200
            assert await client.is_closed_within(0.1) == bool(closing)
            if not closing:
                assert await client.ask(post("/v1/rerank", len(BODY)) + BODY) == 200
            assert (
                await (await connect()).ask(GET + "".join(f"{line}\r\n" for line in closing).encode() + b"\r\n") == 200
            )

    with patch.object(transport, "write", noted_write):
        asyncio.run(run())
    slate, *_, health = (data.partition(b"\r\n\r\n") for data in written if data.startswith(b"HTTP/1.1 200"))
    assert json.loads(slate[2])["items"] == ["a", "b"]
    assert headers_of(slate[0]) == headers_of(health[0]) | {b"content-length": b"%d" % len(slate[2])}


def headers_of(head: bytes) -> dict[bytes, bytes]:
    """Return the headers of a response by name, without those that the tests' server adds."""
    pairs = (line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    return {name: value for name, value in pairs if name not in (b"date", b"server")}


def test_a_slate_waits_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    """Or responses to requests that are sent all the time would fill the memory."""
    paused: list[LimitedConnection] = []

    def pause(self: LimitedConnection, cycle: Any, app: Any) -> None:
        start(self, cycle, app)
        self.pause_writing()
        paused.append(self)

    start = LimitedConnection._start_asgi_task

    async def run() -> None:
        async with serving(tmp_path) as connect:
            client = await connect(post("/v1/rerank", len(BODY)) + BODY)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.reader.read(1), SOON)
            paused[0].resume_writing()
            assert await client.status() == 200

    with patch.object(LimitedConnection, "_start_asgi_task", pause):
        asyncio.run(run())


# Floods


@pytest.mark.parametrize(
    "flood",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 100,
        post("/v1/rerank", 4 << 20).replace(b"Content-Length: 4194304", b"Transfer-Encoding: chunked")
        + b"1\r\n \r\n" * 1_200_000,
        post("/v1/rerank", 1).replace(b"Content-Length: 1", b"Transfer-Encoding: chunked")
        + b"0\r\n"
        + b"X: 1\r\n" * 200,
        GET + b"X: " + b"1" * (8 << 20),
        b"\r\n" * (1 << 20),
    ],
    ids=["pipelined", "tiny chunks", "trailers", "one header", "empty lines"],
)
def test_floods_end_with_the_connection(tmp_path: Path, flood: bytes) -> None:
    async def run() -> None:
        async with serving(tmp_path) as connect:
            client, other = await connect(), await connect()
            sending = asyncio.create_task(client.send(flood))
            await asyncio.wait([sending], timeout=10)
            assert sending.done()
            sending.exception()  # the connection may have been closed before everything was sent
            while await client.status():
                pass
            assert await other.ask(GET + b"\r\n") == 200

    asyncio.run(run())


# Time


@pytest.mark.parametrize(
    "beginning", [b"", GET, b"\r\n", GET + b"\r\n"], ids=["nothing", "a part", "an empty line", "a request"]
)
@pytest.mark.parametrize("drip", [b"", b"X"], ids=["silent", "dripping"])
def test_whoever_does_not_finish_a_head_is_closed(tmp_path: Path, beginning: bytes, drip: bytes) -> None:
    """But for connections that have been answered and are silent: those may be used again."""
    stays = (beginning, drip) == (GET + b"\r\n", b"")

    async def run() -> None:
        async with serving(tmp_path, head_timeout=SOON) as connect:
            client = await connect()
            await client.send(beginning)
            if beginning.endswith(b"\r\n\r\n"):
                assert await client.status() == 200
            until = time.monotonic() + (2 * SOON if stays else 20)
            while time.monotonic() < until and not await client.is_closed_within(SOON / 4):
                client.writer.write(drip)
            assert (time.monotonic() >= until) == stays
            if stays:
                assert await client.ask(GET + b"\r\n") == 200

    asyncio.run(run())


def test_a_body_that_nobody_reads_ends_with_the_connection(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, head_timeout=SOON) as connect:
            client = await connect()
            assert await client.ask(post("/nowhere", 1 << 20) + b"x") == 404
            while not await client.is_closed_within(SOON / 4):
                client.writer.write(b"x")

    asyncio.run(run())


def test_slow_bodies_do_not_take_the_places_of_others(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, max_in_flight=1) as connect:
            slow = [await connect() for _ in range(20)]
            for client in slow:
                await client.send(post("/v1/rerank", len(BODY)) + BODY[:10])
            quick = await connect()
            for _ in range(5):
                assert await quick.ask(post("/v1/rerank", len(BODY)) + BODY) == 200
            for client in slow:
                assert await client.ask(BODY[10:]) == 200

    asyncio.run(run())


def test_bodies_that_hold_too_much_make_room_oldest_first(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, max_partial_bytes=1 << 20, body_timeout=60) as connect:  # 16 connections
            clients = [await connect() for _ in range(20)]
            for client in clients:
                await client.send(post("/v1/rerank", len(BODY)) + BODY[:10])
                await asyncio.sleep(0.02)
            assert [await client.status() for client in clients[:4]] == [408] * 4
            assert [await client.ask(BODY[10:]) for client in clients[5:]] == [200] * 15

    asyncio.run(run())


# Overload

RERANK = post("/v1/rerank", len(BODY)) + BODY
METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


def full() -> Admission:
    """Return an admission that admits nobody."""
    admission = Admission(1)
    admission.in_flight = 1
    return admission


def test_whoever_connects_to_a_full_service_is_refused_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, full()) as connect:
            for first in (RERANK, post("/v1/clicks", 2) + b"{}"):
                client = await connect(first)
                assert await client.status() == 429
                assert await client.is_closed_within(5)
            for first in (GET + b"\r\n", METRICS):
                assert await (await connect(first)).status() == 200
            client = await connect(METRICS)
            metrics = await client.reader.readuntil(b"seq2slate_request_seconds")
            assert b'requests_total{route="rerank",status="429"} 1.0' in metrics
            assert b'requests_total{route="clicks",status="429"} 1.0' in metrics

    asyncio.run(run())


@pytest.mark.parametrize("there", [0, 20, len(RERANK) - 5], ids=["nothing", "a part of the head", "a part of the body"])
def test_a_request_that_arrives_in_parts_is_refused_and_its_connection_stays(tmp_path: Path, there: int) -> None:
    """Or the client, which is still sending, would not see the response."""

    async def run() -> None:
        async with serving(tmp_path, full()) as connect:
            client = await connect(RERANK[:there])
            await asyncio.sleep(0.05)
            assert await client.ask(RERANK[there:]) == 429
            assert await client.ask(GET + b"\r\n") == 200
            assert await client.ask(RERANK) == 429

    asyncio.run(run())


def test_a_service_that_is_no_longer_full_answers(tmp_path: Path) -> None:
    async def run() -> None:
        admission = full()
        async with serving(tmp_path, admission) as connect:
            stays = await connect()
            assert await stays.ask(RERANK) == 429
            admission.in_flight = 0
            assert await stays.ask(RERANK) == 200
            assert await (await connect(RERANK)).status() == 200
            assert (admission.waiting, admission.in_flight) == (0, 0)

    asyncio.run(run())


@pytest.mark.parametrize("first", [RERANK[:50], RERANK[:-5], RERANK], ids=["a part of the head", "of the body", "all"])
def test_whoever_hangs_up_leaves_the_line(tmp_path: Path, first: bytes) -> None:
    async def run() -> None:
        admission = Admission(256)
        async with serving(tmp_path, admission) as connect:
            for _ in range(10):
                client = await connect(first)
                client.writer.transport.abort()
            assert await (await connect(RERANK)).status() == 200
            while admission.waiting or admission.in_flight:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("change", [(b"localhost", b"example.org"), (b"application/json", b"text/plain")])
def test_whoever_is_refused_for_another_reason_leaves_the_line(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    async def run() -> None:
        admission = Admission(256)
        async with serving(tmp_path, admission) as connect:
            for _ in range(10):
                assert await (await connect(RERANK.replace(*change))).status() in (403, 415)
            assert admission.waiting == 0

    asyncio.run(run())


def test_connections_that_clients_reset_are_forgotten(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as connect:
            for _ in range(5):
                client = await connect(RERANK)
                assert await client.status() == 200
                connection = client.writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.writer.close()
            until = time.monotonic() + 20
            while any(LimitedConnection in type(one).__mro__ for one in gc.get_objects()):
                assert time.monotonic() < until
                await asyncio.sleep(0.05)
                gc.collect()

    asyncio.run(run())


# A service as it is started


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("front")
    save_model(folder / "model", seed=1)
    with Service(folder / "model", "--log", folder / "log.db", "--deadline-ms", 5000) as service:
        yield service


def cpu_seconds(service: Service) -> float:
    user, system = Path(f"/proc/{service.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("line", [b"X: " + b"1" * 997 + b"\r\n", b"1" * 1002], ids=["many headers", "one header"])
def test_sixty_megabytes_of_headers_cost_nothing(service: Service, line: bytes) -> None:
    assert service.client.get("/healthz").status_code == 200
    before, sent = cpu_seconds(service), 0
    with socket.create_connection((urlsplit(service.url).hostname, urlsplit(service.url).port)) as attacker:
        try:
            attacker.sendall(GET + b"X-First: ")
            while sent < 60_000_000:
                attacker.sendall(line * 64)
                sent += 64 * len(line)
        except ConnectionError:
            pass
    assert sent < 60_000_000, "the connection is closed before that"
    assert cpu_seconds(service) - before < 0.5
    assert service.client.post("/v1/rerank", json=request("u")).status_code == 200
