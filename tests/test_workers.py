"""A service with several workers: one address, one log, one set of metrics, the same models in all of them."""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.faults import kill, stop_postgres
from seq2slate.log.impression_log import open_log
from tests.services import Service, request, save_model

pytestmark = pytest.mark.slow
WORKERS = 2


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    save_model(tmp_path / "model", seed=1)
    with Service(tmp_path / "model", "--log", tmp_path / "log.db", "--workers", WORKERS) as service:
        assert service.url
        yield service


def rerank(service: Service, unit: str) -> Any:
    """Ask over a connection of its own, so that all workers are asked."""
    with httpx.Client(base_url=service.url, timeout=30) as client:
        answer = client.post("/v1/rerank", json=request(unit, k=3))
    assert answer.status_code == 200, answer.text
    return answer.json()


def metric(service: Service, name: str) -> float:
    found = re.search(rf"^seq2slate_{re.escape(name)} (\S+)$", service.client.get("/metrics").text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def children(service: Service) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(service.process.pid).children()
    return found


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_all_workers_serve_and_share_counts_and_metrics(service: Service, tmp_path: Path) -> None:
    clients = [httpx.Client(base_url=service.url, timeout=30) for _ in range(8)]
    for number, client in enumerate(clients * 5):
        assert client.post("/v1/rerank", json=request(f"u{number}", k=3)).status_code == 200
    connections = [len(child.net_connections("tcp")) for child in children(service)]
    assert max(connections) - min(connections) <= 1, "each has half of the connections, and the listener"
    for client in clients:
        assert 'seq2slate_requests_total{route="rerank",status="200"} 40.0' in client.get("/metrics").text
        client.close()
    assert service.stop() == 0
    with open_log(tmp_path / "log.db", create=False) as log:
        assert sum(arm.impressions for arm in log.counts("default").arms.values()) == 40


def test_a_worker_that_dies_is_replaced_and_its_metrics_stay(service: Service) -> None:
    for number in range(10):
        rerank(service, f"u{number}")
    before = children(service)
    for child in before:
        child.kill()
    wait_for(lambda: len(children(service)) == WORKERS and not set(before) & set(children(service)))
    rerank(service, "afterwards")
    assert metric(service, 'requests_total{route="rerank",status="200"}') == 11
    assert "ended with signal 9; starting another" in service.errors()
    assert service.stop() == 0


@pytest.mark.parametrize("by", ["request", "signal"])
def test_all_workers_reload(service: Service, tmp_path: Path, by: str) -> None:
    slates = {tuple(rerank(service, "u")["items"]) for _ in range(8)}
    assert len(slates) == 1
    new = save_model(tmp_path / "model", seed=2)
    if by == "request":
        assert service.client.post("/v1/admin/reload").status_code == 200
    else:
        service.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "reloaded in 2 workers" in service.errors())
    del new
    fingerprints = set()
    for _ in range(8):
        slate = rerank(service, "u")["slate_id"]
        with open_log(tmp_path / "log.db", create=False) as log:
            found = log.get(slate)
        assert found is not None
        fingerprints.add(found.model)
    assert len(fingerprints) == 1
    assert metric(service, 'reloads_total{outcome="done"}') == 1


def test_a_reload_that_fails_changes_no_worker(service: Service, tmp_path: Path) -> None:
    (tmp_path / "model" / "features.json").write_text("{}")
    answer = service.client.post("/v1/admin/reload")
    assert answer.status_code == 409
    assert "features.json" in answer.json()["error"]
    assert not any(rerank(service, f"u{number}")["fallback"] for number in range(8))
    assert metric(service, 'reloads_total{outcome="failed"}') == 1


def test_a_worker_that_starts_after_the_files_changed_makes_all_reload(service: Service, tmp_path: Path) -> None:
    save_model(tmp_path / "model", seed=2)
    children(service)[0].kill()
    wait_for(lambda: "reloaded in 2 workers" in service.errors())


def test_workers_end_with_their_parent(service: Service) -> None:
    workers = children(service)
    service.process.kill()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    with Service(tmp_path / "none", "--log", tmp_path / "log.db", "--workers", WORKERS) as service:
        assert service.process.wait(timeout=60) == 2
        assert "error: " in service.errors()
        assert str(tmp_path / "none") in service.errors()


def test_nothing_acknowledged_is_lost_when_workers_and_parents_are_killed(tmp_path: Path) -> None:
    loads = kill(tmp_path, 50, WORKERS)
    assert sum(len(load.clicks) for load in loads) > 500


def test_nothing_acknowledged_is_lost_when_the_database_fails(tmp_path: Path, postgres_server: Any) -> None:
    assert len(stop_postgres(postgres_server, tmp_path, 10, WORKERS).clicks) > 100
