"""Overload sheds load: what is answered is answered in time, the rest is refused at once, and then all is well again.

The times have a factor, since the machine may be busy; `python -m benchmarks.overload` prints the figures.
"""

import threading
from pathlib import Path

import httpx
import pytest

from benchmarks.latency import new_model
from benchmarks.overload import capacity, overload, percentile
from seq2slate.config import configure
from tests.services import Service

pytestmark = pytest.mark.slow
SECONDS, RECOVERY_SECONDS, FACTOR = 3.0, 6.0, 5
BUSY = 4
"""How much slower than the contract says a busy machine may be."""


@pytest.mark.parametrize("workers", [1, 2])
def test_load_above_the_capacity_is_refused_at_once(tmp_path: Path, workers: int) -> None:
    """About 15 seconds each."""
    new_model(configure("default").network).save(tmp_path / "model")
    statuses: list[int] = []
    over = threading.Event()

    def watch(url: str) -> None:
        while not over.wait(0.2):
            statuses.extend(httpx.get(url + path, timeout=10).status_code for path in ("/healthz", "/metrics"))

    with Service(tmp_path / "model", "--log", tmp_path / "log.db", "--workers", workers) as service:
        rate = max(capacity(service.url, 1.0) for _ in range(2))
        watching = threading.Thread(target=watch, args=[service.url])
        watching.start()
        try:
            responses = overload(service.url, FACTOR * rate, SECONDS, rate / 4, RECOVERY_SECONDS)
        finally:
            over.set()
            watching.join()
        load = responses.until(SECONDS)
        assert not responses.failed
        assert len(load.answered) > 0.1 * rate * SECONDS
        assert percentile(load.answered, 99) < BUSY * 250
        assert percentile(load.refused, 99) < BUSY * 100
        assert responses.since(SECONDS).recovered_after(SECONDS) < RECOVERY_SECONDS - 1
        assert set(statuses) == {200}
        refused = f'seq2slate_requests_total{{route="rerank",status="429"}} {len(responses.refused)}.0'
        assert refused in service.client.get("/metrics").text
        assert service.stop() == 0
