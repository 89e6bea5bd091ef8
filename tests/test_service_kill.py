"""What is left of what a service acknowledged when it, or its database, is killed under load."""

import http.client
import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from seq2slate.log.impression_log import open_log
from tests.logs import fresh_database
from tests.services import N_FEATURES, Service, request, save_model
from tests.test_log import recounted

pytestmark = pytest.mark.slow
KILLS, CLIENTS = 20, 6


class Load:
    """Clients that ask for slates and click, as fast as they can, and remember what was acknowledged."""

    def __init__(self, url: str, name: str) -> None:
        self.sent: set[str] = set()
        self.slates: dict[str, str] = {}
        """From the slate to its unit."""
        self.clicks: dict[str, str] = {}
        """From the slate to the item."""
        self.statuses: Counter[int] = Counter()
        self._address = urlsplit(url).netloc
        self._stopped = threading.Event()
        self._clients = [threading.Thread(target=self._ask, args=(f"{name}-{n}",)) for n in range(CLIENTS)]
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        self._stopped.set()
        for client in self._clients:
            client.join()

    def _ask(self, name: str) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=30)
        number = 0
        try:
            while not self._stopped.is_set():
                number += 1
                self._ask_once(connection, f"{name}-{number}")
        except (OSError, http.client.HTTPException):  # it was killed
            pass
        finally:
            connection.close()

    def _ask_once(self, connection: http.client.HTTPConnection, unit: str) -> None:
        self.sent.add(unit)
        status, answer = self._post(connection, "/v1/rerank", request(unit, k=3))
        if status != 200 or answer["slate_id"] is None:
            time.sleep(0.01)
            return
        slate, item = answer["slate_id"], answer["items"][1]
        self.slates[slate] = unit
        status, _ = self._post(connection, "/v1/clicks", {"slate_id": slate, "item": item})
        if status == 200:
            self.clicks[slate] = item

    def _post(self, connection: http.client.HTTPConnection, path: str, body: Any) -> tuple[int, Any]:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        self.statuses[response.status] += 1
        return response.status, answer


def check(url: str, loads: list[Load]) -> None:
    """Everything acknowledged is in the log once; everything else is there whole or not at all."""
    slates = {slate: unit for load in loads for slate, unit in load.slates.items()}
    clicks = {slate: item for load in loads for slate, item in load.clicks.items()}
    sent = {unit for load in loads for unit in load.sent}
    with open_log(url, create=False) as store:
        logged = list(store.impressions())
        counts, again = store.counts("default").arms, recounted(store, "default")
    units = Counter(one.unit for one in logged)
    assert set(units.values()) == {1}
    assert set(units) <= sent
    found = {one.slate_id: one for one in logged}
    assert len(found) == len(logged)
    assert {slate: found[slate].unit for slate in slates} == slates
    for slate, item in clicks.items():
        assert [found[slate].items[index] for index in found[slate].clicks] == [item]
    for one in logged:
        assert one.features.shape == (6, N_FEATURES)
        assert len(one.shown) == 3
        assert len(one.clicks) <= 1
    assert counts == again


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
