"""A log, a checkpoint or a model of an earlier version: upgraded whole, or refused and left alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from seq2slate.config import NetworkConfig, TrainingConfig
from seq2slate.data.lists import ItemLists
from seq2slate.errors import DataError
from seq2slate.estimator import load
from seq2slate.log.check import check_log
from seq2slate.log.impression_log import backend_for, open_log
from seq2slate.log.schema import MIGRATIONS
from seq2slate.model.slate_model import SlateModel
from seq2slate.training.fit import latest_checkpoint, run_training
from tests.logs import fresh_database, impression
from tests.old_logs import N_SLATES, OLD_VERSIONS, what_it_holds, write_old_log

ROOT = Path(__file__).resolve().parents[1]
KILLED_AT_EVERY_STATEMENT = """
import os, signal, sys
from itertools import count
from seq2slate.log import schema
from seq2slate.log.impression_log import backend_for, open_log

url, version = sys.argv[1], int(sys.argv[2])
kind = type(backend_for(url)).__module__

def in_a_child(task):
    child = os.fork()
    if not child:
        task()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def upgrade_and_die(number, after):
    left, connection = [number], getattr(sys.modules[kind], "SqliteConnection", None)
    connection = connection or sys.modules[kind].PostgresConnection
    rows = connection.rows
    def counted(self, sql, values=()):
        left[0] -= 1
        found = rows(self, sql, values) if after or left[0] else None
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    connection.rows = counted
    open_log(url).close()

def check():
    connection = backend_for(url).connect()
    with connection.transaction():
        (steps,) = connection.rows("SELECT COUNT(*), MAX(number) FROM seq2slate_migrations")
        (slates,) = connection.rows("SELECT COUNT(*) FROM impressions")[0]
    connection.close()
    assert steps == (version, version), steps
    assert slates == int(sys.argv[3]), slates

def expect_zero(code):
    assert code == 0, code

# Two statements find the version; then come those of each migration, and one that notes it.
last = 2 + sum(len(step) + 1 for step in schema.MIGRATIONS[version:])
for number in range(1, last + 1):
    for after in (False, True):
        code = in_a_child(lambda: upgrade_and_die(number, after))
        assert code == -signal.SIGKILL, code
        expect_zero(in_a_child(check))
print(2 * last)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "log.db")
    return fresh_database(request.getfixturevalue("postgres_server"))


def holds_all(url: str, tmp_path: Path, version: int) -> None:
    """Check an upgraded log against one that was upgraded without a fault, and write to it."""
    same = backend_for(str(tmp_path / "same.db"))
    write_old_log(same, version)
    open_log(tmp_path / "same.db").close()
    backend = backend_for(url)
    assert what_it_holds(backend) == what_it_holds(same)
    with open_log(url) as log:
        log.add_impression(impression(100)).result()
        assert [one.slate_id for one in log.impressions()][:2] == ["slate-0", "slate-1"]
    report = check_log(backend)
    assert (report.problems, report.slates) == ([], N_SLATES + 1)


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_a_log_of_any_version_is_upgraded_with_all_it_holds(version: int, url: str, tmp_path: Path) -> None:
    write_old_log(backend_for(url), version)
    open_log(url).close()
    holds_all(url, tmp_path, version)


@pytest.mark.slow
@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_an_upgrade_that_is_killed_at_any_statement_completes_later(version: int, url: str, tmp_path: Path) -> None:
    write_old_log(backend_for(url), version)
    command = [sys.executable, "-c", KILLED_AT_EVERY_STATEMENT, url, str(version), str(N_SLATES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    statements = 2 + sum(len(step) + 1 for step in MIGRATIONS[version:])
    assert int(done.stdout) == 2 * statements >= 2 * (2 + 3 + 1), "kills before and after each statement"
    open_log(url).close()
    holds_all(url, tmp_path, version)


# Checkpoints and models


def lists() -> ItemLists:
    features = torch.arange(60.0).reshape(30, 2).numpy()
    return ItemLists(features, range(0, 31, 3), labels=[0, 1, 0] * 10)


def train(folder: Path, **more: Any) -> None:
    model = SlateModel.create(lists(), NetworkConfig(hidden=4), seed=0)
    run_training(model, lists(), lists(), TrainingConfig(epochs=1), checkpoints=folder, quiet=True, **more)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_of_another_version_is_refused_and_stays(tmp_path: Path) -> None:
    train(tmp_path / "run")
    found, _ = latest_checkpoint(tmp_path / "run")
    assert found is not None
    found.values["format"] -= 1
    found.save(tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(DataError, match="run was written by another version of seq2slate: remove it and train anew"):
        train(tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize(("version", "cure"), [(1, "train it again"), (99, "update seq2slate")])
def test_a_model_of_another_version_is_refused_and_stays(version: int, cure: str, tmp_path: Path) -> None:
    SlateModel.create(lists(), NetworkConfig(hidden=4), seed=0).save(tmp_path / "model")
    head = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**head, "format": version}))
    (tmp_path / "model" / "manifest.json").unlink()
    before = contents(tmp_path / "model")
    with pytest.raises(DataError, match=f"model has format {version}.*{cure}"):
        load(tmp_path / "model")
    assert contents(tmp_path / "model") == before
