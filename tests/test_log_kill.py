"""What is left of the log when its writer, or its server, is killed."""

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from seq2slate.log.impression_log import open_log
from tests.logs import fresh_database
from tests.test_log import recounted

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
KILLS = 5


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "postgres, restarted", "postgres, killed"])
def test_what_was_acknowledged_is_there_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A process writes with eight threads and is killed at a random moment, five times on one log."""
    server: Any = None if kind == "sqlite" else request.getfixturevalue("postgres_server")
    url = str(tmp_path / "log.db") if server is None else fresh_database(server)
    acknowledged: list[str] = []
    rng = random.Random(0)
    for attempt in range(KILLS):
        output = tmp_path / f"acknowledged-{attempt}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.logs", url, f"run{attempt}"], stdout=file, cwd=ROOT
            )
        _wait_for_output(output, process)
        pause = rng.uniform(0.2, 0.8)
        time.sleep(pause)
        if kind == "postgres, restarted":
            server.stop()
            time.sleep(pause / 2)
            server.start()
            time.sleep(pause)
        elif kind == "postgres, killed":
            rng.choice(server.get_postmaster_info().process.children()).kill()  # then all of them start anew
            time.sleep(1 + pause)
        assert process.poll() is None, "the writer outlives its server"
        process.kill()
        process.wait()
        acknowledged += output.read_text().split("\n")[:-1]  # the last may be cut off
    _check(url, acknowledged)


def _wait_for_output(output: Path, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if output.stat().st_size or process.poll() is not None:
            break
        time.sleep(0.05)
    assert output.stat().st_size


def _check(url: str, acknowledged: list[str]) -> None:
    slates = {line[2:] for line in acknowledged if line.startswith("s ")}
    clicked = {line[2:] for line in acknowledged if line.startswith("c ")}
    assert min(len(slates), len(clicked)) > 100, "too little was written to show anything"
    with open_log(url, create=False) as log:
        found = Counter(logged.slate_id for logged in log.impressions())
        assert slates <= set(found)
        assert set(found.values()) == {1}
        assert clicked <= {logged.slate_id for logged in log.impressions() if logged.clicks}
        assert log.counts("experiment").arms == recounted(log, "experiment")
