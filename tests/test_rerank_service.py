"""What the service does without HTTP: what must be the same in every arm, reloads that meet, and a model that hangs."""

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET

from seq2slate.config import NetworkConfig
from seq2slate.data.features import Missing
from seq2slate.data.lists import ItemLists
from seq2slate.experiments.assignment import Arm, Experiment
from seq2slate.log.impression_log import open_log
from seq2slate.model.backends.backend import choose_backend
from seq2slate.model.backends.single_list import SingleListBackend
from seq2slate.model.slate_model import SlateModel
from seq2slate.serving.app import create_app
from seq2slate.serving.deployment import Deployment, ServedModel, load_deployment
from seq2slate.serving.keys import KeyRing, add_key
from seq2slate.serving.messages import ErrorResponse, RerankResponse, read_rerank
from seq2slate.serving.middleware import Request, Response, Route, json_response
from seq2slate.serving.monitoring import Monitor
from seq2slate.serving.service import RerankService, Timeouts
from tests.services import get, request, save_model


def reranker(folder: Path, load: Callable[[], Deployment], **timeouts: Any) -> RerankService:
    return RerankService(load, open_log(folder / "log.db"), Monitor(), Timeouts(**timeouts))


async def rerank(service: RerankService, **body: Any) -> RerankResponse:
    return await service.rerank(read_rerank(json.dumps(body).encode(), max_items=1000))


def with_columns(missing: Missing = "impute") -> Deployment:
    """Two arms, one of them a model that reads a text column and a number of the list."""
    lists = ItemLists(
        np.random.default_rng(0).normal(size=(20, 2)),
        [0, 10, 20],
        categorical={"brand": ["x", "y"] * 10},
        context={"hour": np.array([1.0, 2.0])},
    )
    network = NetworkConfig(hidden=4)
    model = ServedModel(choose_backend(SlateModel.create(lists, network, missing=missing)), "f")
    return Deployment(Experiment("e", (Arm("control", model="base"), Arm("treated"))), {"treated": model})


@pytest.mark.parametrize("missing", ["impute", "refuse"])
@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({}, UNSET),
        ({"categorical": {}}, "categorical column 'brand' is missing"),
        ({"context": {}}, "context column 'hour' is missing"),
        ({"context": {"hour": "nine"}}, "context column 'hour' is text, the model reads a number"),
        ({"context": {"hour": None}}, {"refuse": "context column 'hour' is missing"}),
        ({"features": [[1.0, None], [3.0, 4.0]]}, {"refuse": "feature 'f2' of item 'a' is missing"}),
        ({"features": [[1.0, None], [3.0, 4.0]], "categorical": {}}, "categorical column 'brand' is missing"),
        ({"context": {"hour": 1e400}}, "context column 'hour' is infinite"),
        ({"context": {"hour": 9.0, "day": -1e400}}, "context column 'day' is infinite"),
        ({"context": {"hour": 9.0, "day": "Monday"}, "categorical": {"brand": ["x", None], "size": ["s", "m"]}}, UNSET),
        ({"features": [[1.0, 2.0], [3.0]]}, "item 'b' has 1 column of features, the model reads 2: 'f1', 'f2'"),
    ],
)
def test_all_arms_fall_back_alike(tmp_path: Path, change: dict[str, Any], detail: Any, missing: Missing) -> None:
    service = reranker(tmp_path, partial(with_columns, missing), deadline_ms=60_000, log_deadline_ms=60_000)
    if isinstance(detail, dict):
        detail = detail.get(missing, UNSET)
    if missing == "refuse" and None in change.get("features", [[]])[0]:
        detail = "feature 'f2' of item 'a' is missing"
    good = {"features": [[1.0, 2.0], [3.0, 4.0]], "categorical": {"brand": ["x", "z"]}, "context": {"hour": 9.0}}
    units = {service.deployment.experiment.assign(f"u{n}").name: f"u{n}" for n in range(20)}

    async def ask() -> None:
        for arm, unit in units.items():
            answer = await rerank(service, unit=unit, item_ids=["a", "b"], **{**good, **change})
            assert (answer.arm, answer.fallback, answer.detail) == (arm, detail is not UNSET, detail)

    asyncio.run(ask())
    assert set(units) == {"control", "treated"}
    service.close()


def test_without_a_model_columns_are_logged_with_and_without_features(tmp_path: Path) -> None:
    """The log of the base order is what the first model is trained on."""
    service = reranker(tmp_path, lambda: Deployment(Experiment("e", (Arm("base", model="base"),)), {}))
    columns = {"categorical": {"brand": ["x", None]}, "context": {"hour": 9.0}}

    async def ask(**body: Any) -> RerankResponse:
        return await rerank(service, unit="u", item_ids=["a", "b"], **body)

    for more, n_features in (({}, 0), ({"features": [[1.0, 2.0], [3.0, 4.0]]}, 2)):
        answer = asyncio.run(ask(**columns, **more))
        assert not answer.fallback
        logged = service.store.get(str(answer.slate_id))
        assert logged is not None
        assert logged.features.shape == (2, n_features)
        assert (logged.categorical, logged.context) == (columns["categorical"], columns["context"])
    bad = [
        ([[1.0, 2.0], [3.0]], "item 'b' has 1 column of features, another 2"),
        ([[1.0, 2.0], None], "features of item 'b' are missing"),
        ([[1.0, 2.0], [3.0, -1e400]], "feature number 2 of item 'b' is infinite"),
    ]
    for features, detail in bad:
        assert asyncio.run(ask(features=features)).detail == detail
    service.close()


@pytest.mark.parametrize("load", [with_columns, lambda: Deployment(Experiment("e", (Arm("base", model="base"),)), {})])
def test_a_request_without_candidates_is_no_fallback(tmp_path: Path, load: Callable[[], Deployment]) -> None:
    service = reranker(tmp_path, load)
    answer = asyncio.run(rerank(service, unit="u", item_ids=[]))
    assert (answer.items, answer.fallback) == ([], False)
    service.close()


def test_long_names_are_cut_in_what_is_said(tmp_path: Path) -> None:
    service = reranker(tmp_path, with_columns)
    answer = asyncio.run(rerank(service, unit="u", item_ids=["a" * 500, "b"], features=[[1.0, 1e300], [3.0, 4.0]]))
    assert answer.detail == f"feature 'f2' of item '{'a' * 80}…' is beyond float32"
    service.close()


def test_what_was_loaded_last_is_served(tmp_path: Path) -> None:
    """A slow reload, begun first, must not end up over a quick one that came later."""
    started, go_on = threading.Event(), threading.Event()
    made: list[Deployment] = []

    def load() -> Deployment:
        deployment = with_columns()
        made.append(deployment)
        if len(made) == 2:
            started.set()
            assert go_on.wait(30)
        return deployment

    service = reranker(tmp_path, load)

    async def reload_twice() -> None:
        slow = asyncio.create_task(service.reload())
        await asyncio.to_thread(started.wait, 30)
        quick = asyncio.create_task(service.reload())
        await asyncio.sleep(0.05)
        go_on.set()
        await asyncio.gather(slow, quick)

    asyncio.run(reload_twice())
    assert len(made) == 3
    assert service.deployment is made[2]
    service.close()


def test_a_model_that_hangs_is_late_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "model", seed=1)
    service = reranker(tmp_path, lambda: load_deployment(tmp_path / "model"), deadline_ms=50, log_deadline_ms=60_000)
    let_go = threading.Event()
    monkeypatch.setattr(SingleListBackend, "quick_items", 0)
    monkeypatch.setattr(SingleListBackend, "slate", lambda *_, **__: let_go.wait(60))
    answer = asyncio.run(rerank(service, unit="u", item_ids=["a", "b"], features=[[0.0] * 4] * 2))
    assert (answer.items, answer.reason) == (["a", "b"], "deadline")
    assert not service.close()  # a thread is at work: the process must not wait for it
    let_go.set()


def test_the_deadline_of_the_model_counts_from_the_arrival_of_the_request(tmp_path: Path) -> None:
    save_model(tmp_path / "model", seed=1)
    service = reranker(tmp_path, lambda: load_deployment(tmp_path / "model"), deadline_ms=5_000, log_deadline_ms=60_000)
    asked = read_rerank(json.dumps(request("u")).encode(), max_items=10)

    async def run(waited: float) -> RerankResponse:
        return await service.rerank(asked, arrived=time.perf_counter() - waited)

    assert asyncio.run(run(0.0)).reason is UNSET
    late = asyncio.run(run(6.0))
    assert (late.items, late.reason) == (asked.ids, "deadline")
    found = service.store.get(str(late.slate_id))
    assert found is not None
    assert found.latency_ms > 6_000
    service.close()


def test_a_request_that_is_given_up_leaves_nothing_in_the_queue(tmp_path: Path) -> None:
    service = reranker(tmp_path, with_columns, log_deadline_ms=60_000)
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # so that the first write waits, and the second behind it

    async def give_up() -> None:
        tasks = []
        for item in ("first", "second"):
            tasks.append(asyncio.create_task(rerank(service, unit="u1", item_ids=[item])))
            await asyncio.sleep(0.2)
        tasks[1].cancel()
        await asyncio.wait(tasks[1:])
        other.execute("ROLLBACK")
        await tasks[0]

    asyncio.run(give_up())
    service.close()
    service.close()  # harmless
    with open_log(tmp_path / "log.db", create=False) as store:
        assert [logged.items for logged in store.impressions()] == [["first"]]


def test_the_application_has_an_answer_for_other_protocols(tmp_path: Path) -> None:
    """Servers ask at the start whether an application wants to prepare itself."""
    service = reranker(tmp_path, with_columns)
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[str] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    app = create_app(service, Monitor())
    asyncio.run(app({"type": "lifespan"}, receive, send))  # type: ignore[arg-type]
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    service.close()


def test_a_route_is_one_entry_of_the_table(tmp_path: Path) -> None:
    """Key, metrics and description of a route follow from its entry."""
    service, monitor = reranker(tmp_path, with_columns), Monitor()
    admin, serve = (add_key(tmp_path / "keys.json", scope) for scope in ("admin", "serve"))

    async def arms(request: Request) -> Response:
        return json_response([arm.name for arm in service.deployment.experiment.arms], 200)

    route = Route("GET", "/v1/arms", arms, "admin", "arms", "The arms.", returns=ErrorResponse, errors={418: "No."})
    app = create_app(service, monitor, key_ring=KeyRing(tmp_path / "keys.json"), more_routes=[route])
    statuses = [get(app, "/v1/arms", {"Authorization": f"Bearer {key}"}).status_code for key in (admin, serve, "none")]
    assert statuses == [200, 403, 401]
    assert 'seq2slate_requests_total{route="arms",status="403"} 1.0' in monitor.text().decode()
    described = get(app, "/openapi.json", {"Authorization": f"Bearer {admin}"}).json()["paths"]["/v1/arms"]["get"]
    assert described["security"] == [{"admin": []}]
    assert {"200", "401", "403", "418", "429"} == set(described["responses"])
    assert described["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorResponse")
    assert get(app, "/v1/none").json() == {"error": "Not Found"}
    service.close()
