"""Nothing that a client sends makes the service fail."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import mutate_requests
from benchmarks.mutations import Outcome
from tests.services import Service, save_model


def test_mutated_requests_are_answered_or_refused() -> None:
    outcome = Outcome()
    mutate_requests.run(range(500), outcome)
    assert not outcome.failures, outcome.failures[:3]
    assert min(outcome.read.values()) > 0 < min(outcome.refused.values())
    assert outcome.read.total() + outcome.refused.total() == 500


def test_every_route_is_mutated_and_what_is_lost_is_noticed(tmp_path: Path) -> None:
    with mutate_requests.services(tmp_path) as (one, other):
        described = one.service.client.get("/openapi.json").json()["paths"]
        assert [one.take(request) for request in one.valid.values()] == ["read"] * len(one.valid)
        one._slates["never"] = ["a"]
        one._clicks.add(("never", "a"))
        assert sorted(problem.split(" ")[0] for problem in one.problems()) == ["a", "slate"]
        assert one.take(one.valid["GET /healthz"]).startswith("the service is gone")
        other.service.process.kill()
        other.service.process.wait()
        assert "the service ended with code -9" in list(other.problems())
    routes = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    assert {name.partition(",")[0] for name in one.valid} == routes


@pytest.mark.slow
def test_the_description_finds_no_failure(tmp_path: Path) -> None:
    """Schemathesis makes requests, right and wrong, from the OpenAPI description, and compares answers with it."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    arguments = ["--checks", checks, "--max-examples", "60", "--seed", "1", "--no-color"]
    save_model(tmp_path / "model", seed=1)
    with Service(tmp_path / "model", "--log", tmp_path / "log.db") as service:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json", *arguments]
        done = subprocess.run(
            [*command, "--suppress-health-check", "all"], capture_output=True, text=True, cwd=tmp_path
        )
    assert done.returncode == 0, done.stdout[-5000:]
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated is not None
    assert int(generated.group(1)) > 300
