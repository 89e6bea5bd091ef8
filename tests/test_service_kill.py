"""What is left of what a service acknowledged when it, or its database, is killed under load."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults import Load, check
from tests.logs import fresh_database
from tests.services import Service, request, save_model

pytestmark = pytest.mark.slow
KILLS = 20


def test_a_service_that_is_killed_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    save_model(tmp_path / "model", seed=1)
    log, rng = str(tmp_path / "log.db"), random.Random(0)
    loads: list[Load] = []
    for number in range(KILLS):
        with Service(tmp_path / "model", "--log", log) as service:
            _check_over_http(service, loads)
            loads.append(Load(service.url, f"run{number}"))
            time.sleep(rng.uniform(0.05, 0.8))
            service.process.kill()
            service.process.wait()
            loads[-1].stop()
        check(log, loads)
    assert min(sum(len(load.slates) for load in loads), sum(len(load.clicks) for load in loads)) > 20 * KILLS
    assert not any(status >= 500 for load in loads for status in load.statuses)


def _check_over_http(service: Service, loads: list[Load]) -> None:
    """The new process knows the clicks of the one that was killed."""
    if loads:
        for slate, item in list(loads[-1].clicks.items())[-5:]:
            answer = service.client.post("/v1/clicks", json={"slate_id": slate, "item": item})
            assert answer.json() == {"outcome": "duplicate"}
    else:
        assert service.client.get("/readyz").status_code == 200


@pytest.mark.parametrize("on_failure", ["serve", "refuse"])
def test_a_database_that_stops_and_starts_loses_nothing_that_was_acknowledged(
    on_failure: str, tmp_path: Path, postgres_server: Any
) -> None:
    save_model(tmp_path / "model", seed=1)
    url, rng = fresh_database(postgres_server), random.Random(0)
    with Service(tmp_path / "model", "--log", url, "--log-failure", on_failure) as service:
        load = Load(service.url, "run")
        for _ in range(4):
            time.sleep(rng.uniform(0.3, 0.8))
            postgres_server.stop()
            time.sleep(0.5)
            answer = service.client.post("/v1/rerank", json=request("during"))
            if on_failure == "serve":
                assert (answer.json()["slate_id"], answer.json()["reason"]) == (None, "log")
                assert answer.json()["items"] == list("abcdef")
                assert service.client.get("/readyz").status_code == 200
            else:
                assert (answer.status_code, service.client.get("/readyz").status_code) == (503, 503)
            postgres_server.start()
            known = len(load.clicks)
            end = time.monotonic() + 20
            while len(load.clicks) <= known + 20:
                assert time.monotonic() < end, "it does not recover by itself"
                time.sleep(0.02)
        load.stop()
        assert service.stop() == 0
    assert len(load.slates) > 100
    assert set(load.statuses) == {200, 503}, "the load met the failure"
    check(url, [load])
