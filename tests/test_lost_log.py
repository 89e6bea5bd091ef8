"""A service whose log is deleted under it says so at once."""

from pathlib import Path

import pytest

from tests.services import Service, request, save_model


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serve", "refuse"])
def test_a_deleted_write_ahead_log_turns_readiness_red(tmp_path: Path, mode: str) -> None:
    save_model(tmp_path / "model", 0)
    with Service(tmp_path / "model", "--log", tmp_path / "log.db", "--log-failure", mode) as service:
        assert service.client.post("/v1/rerank", json=request("u")).json()["fallback"] is False
        assert service.client.get("/readyz").status_code == 200
        (tmp_path / "log.db-wal").unlink()
        for number in range(20):
            answer = service.client.post("/v1/rerank", json=request(f"u{number}"))
            if mode == "serve":
                assert (answer.json()["fallback"], answer.json()["reason"]) == (True, "log")
            else:
                assert answer.status_code == 503
        ready = service.client.get("/readyz")
        assert (ready.status_code, ready.json()["log"]) == (503, "unavailable")
