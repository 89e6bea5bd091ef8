"""A service whose log is damaged under it says so, also if nobody writes."""

import os
from pathlib import Path

import pytest

from tests.services import Service, request, save_model
from tests.test_log import LOST, attack_files


def ready(service: Service) -> tuple[int, str]:
    answer = service.client.get("/readyz")
    return answer.status_code, answer.json()["log"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serve", "refuse"])
def test_a_deleted_write_ahead_log_turns_readiness_red(tmp_path: Path, mode: str) -> None:
    save_model(tmp_path / "model", 0)
    with Service(tmp_path / "model", "--log", tmp_path / "log.db", "--log-failure", mode) as service:
        assert service.client.post("/v1/rerank", json=request("u")).json()["fallback"] is False
        assert ready(service) == (200, "ok")
        (tmp_path / "log.db-wal").unlink()
        for number in range(20):
            answer = service.client.post("/v1/rerank", json=request(f"u{number}"))
            if mode == "serve":
                assert (answer.json()["fallback"], answer.json()["reason"]) == (True, "log")
            else:
                assert answer.status_code == 503
        assert ready(service) == (503, "unavailable")


@pytest.mark.slow
@pytest.mark.parametrize("attack", LOST)
def test_readiness_notices_lost_files_though_nobody_writes(tmp_path: Path, attack: str) -> None:
    save_model(tmp_path / "model", 0)
    with Service(tmp_path / "model", "--log", tmp_path / "log.db") as service:
        assert service.client.post("/v1/rerank", json=request("u")).json()["fallback"] is False
        assert [ready(service) for _ in range(3)] == [(200, "ok")] * 3
        if attack.startswith(" "):  # or the database is still empty, and all of it in the write-ahead log
            assert service.stop() == 0
            _check_restarted(tmp_path, attack)
            return
        attack_files(tmp_path / "log.db", attack)
        assert [ready(service) for _ in range(3)] == [(503, "unavailable")] * 3


def _check_restarted(folder: Path, attack: str) -> None:
    with Service(folder / "model", "--log", folder / "log.db") as service:
        assert ready(service) == (200, "ok")
        attack_files(folder / "log.db", attack)
        assert [ready(service) for _ in range(3)] == [(503, "unavailable")] * 3


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "status"), [("serve", 200), ("refuse", 503)])
def test_readiness_notices_a_lost_database_and_a_new_one_is_started(tmp_path: Path, mode: str, status: int) -> None:
    save_model(tmp_path / "model", 0)
    with Service(tmp_path / "model", "--log", tmp_path / "log.db", "--log-failure", mode) as service:
        assert ready(service) == (200, "ok")
        os.rename(tmp_path / "log.db", tmp_path / "moved.db")
        assert ready(service) == (status, "unavailable")
        assert ready(service) == (200, "ok")
        assert service.client.post("/v1/rerank", json=request("u")).json()["slate_id"] is not None
        assert "moved, deleted or replaced" in service.errors()
