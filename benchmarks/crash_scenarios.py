"""What `benchmarks.crash_points` interrupts: something written into a folder, and what must be true of it then."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from seq2slate import atomic
from seq2slate.data.files import read
from seq2slate.errors import DataError
from seq2slate.log import sqlite
from seq2slate.log.backend import Durability, LogError
from seq2slate.log.check import check_log
from seq2slate.log.export import export, sequence_of
from seq2slate.log.impression_log import open_log
from seq2slate.log.reading import LogReader
from seq2slate.log.schema import MIGRATIONS
from seq2slate.log.sqlite import SqliteBackend
from seq2slate.saving import SavedRanker, add_file, load_saved
from seq2slate.serving.keys import add_key, read_keys, revoke_key
from seq2slate.training.fit import Checkpoint, latest_checkpoint
from tests.logs import impression
from tests.old_logs import N_SLATES, OLD_VERSIONS, what_it_holds, write_old_log


@dataclass(frozen=True)
class Scenario:
    """A folder as it is before, what is interrupted, and a check with the run after it."""

    prepare: Callable[[Path], None]
    act: Callable[[Path, Callable[[str], None]], None]
    """Says what is acknowledged."""
    check: Callable[[Path, list[str]], None]
    """Checks that all that was said is there, old or new and whole, and that the next run leaves nothing behind."""


def names_in(folder: Path) -> list[str]:
    """Return the names of all that is in a folder, hidden files too."""
    return sorted(os.listdir(folder))


# The log


def _log(n_before: int, durability: Durability) -> Scenario:
    def prepare(folder: Path) -> None:
        if n_before:
            _write_slates(folder, range(n_before), print_nothing)

    def act(folder: Path, say: Callable[[str], None]) -> None:
        with patch.object(sqlite, "_CHECKPOINT_ROWS", 20):
            _write_slates(folder, range(n_before, n_before + 6), say, durability)

    def check(folder: Path, said: list[str]) -> None:
        _check_log(folder, said, n_before)
        _write_slates(folder, range(100, 102), print_nothing)
        _check_log(folder, [*said, "slate slate-100", "click slate-101"], n_before)
        assert names_in(folder) == ["log.db"]

    return Scenario(prepare, act, check)


def print_nothing(_: str) -> None:
    """Acknowledge to nobody."""


def _write_slates(folder: Path, numbers: range, say: Callable[[str], None], durability: Durability = "process") -> None:
    with open_log(folder / "log.db", durability=durability) as log:
        for number in numbers:
            one = impression(number)
            try:
                log.add_impression(one).result(30)
                say(f"slate {one.slate_id}")
                log.add_click(one.slate_id, one.items[one.shown[0]], 1.0).result(30)
                say(f"click {one.slate_id}")
            except LogError:
                continue


def _check_log(folder: Path, said: list[str], n_before: int) -> None:
    backend = SqliteBackend(folder / "log.db", create=False)
    try:
        report = check_log(backend)
    except DataError:  # not even its tables
        assert not said
        assert not n_before
        return
    assert not report.damaged, report.problems
    found = {one.slate_id: one for one in LogReader(backend).impressions()}
    assert len(found) == report.slates
    for number in range(n_before):
        assert found[f"slate-{number}"].clicks
    for line in said:
        kind, slate_id = line.split()
        assert slate_id in found, f"{slate_id} was acknowledged and is not there"
        assert kind == "slate" or found[slate_id].clicks, f"a click on {slate_id} was acknowledged and is not there"


def _export() -> Scenario:
    def prepare(folder: Path) -> None:
        for numbers in (range(10), range(10, 30)):
            _write_slates(folder, numbers, print_nothing)
            if not (folder / "out.parquet").exists():
                export(LogReader(SqliteBackend(folder / "log.db", create=False)), folder / "out.parquet")

    def act(folder: Path, say: Callable[[str], None]) -> None:
        export(LogReader(SqliteBackend(folder / "log.db", create=False)), folder / "out.parquet", batch=8)
        say("30")

    def check(folder: Path, said: list[str]) -> None:
        n_lists = len(read(folder / "out.parquet"))
        assert n_lists in ((30,) if said else (10, 30))
        assert sequence_of(folder / "out.parquet") == n_lists
        act(folder, print_nothing)
        check_log(SqliteBackend(folder / "log.db", create=False))
        assert len(read(folder / "out.parquet")) == 30
        assert names_in(folder) == ["log.db", "out.parquet"]

    return Scenario(prepare, act, check)


def _upgrade(version: int) -> Scenario:
    def prepare(folder: Path) -> None:
        write_old_log(SqliteBackend(folder / "log.db"), version)
        write_old_log(SqliteBackend(folder / "same.db"), version)
        open_log(folder / "same.db").close()

    def act(folder: Path, say: Callable[[str], None]) -> None:
        open_log(folder / "log.db").close()
        say("open")

    def check(folder: Path, said: list[str]) -> None:
        backend = SqliteBackend(folder / "log.db", create=False)
        with closing(backend.connect()) as connection, connection.transaction():
            steps = connection.rows("SELECT COUNT(*) FROM seq2slate_migrations")[0][0]
        assert steps in ((len(MIGRATIONS),) if said else (version, len(MIGRATIONS)))
        act(folder, print_nothing)
        found = what_it_holds(backend)
        assert found == what_it_holds(SqliteBackend(folder / "same.db"))
        assert len(found[0]) == N_SLATES
        report = check_log(backend)
        assert not report.damaged, report.problems
        assert names_in(folder) == ["log.db", "same.db"]

    return Scenario(prepare, act, check)


# Files and folders


def _checkpoints() -> Scenario:
    def saved(step: int) -> Checkpoint:
        return Checkpoint(step, {"weights": torch.full((2000,), float(step))}, {"step": step})

    def prepare(folder: Path) -> None:
        for step in (1, 2):
            saved(step).save(folder)

    def act(folder: Path, say: Callable[[str], None]) -> None:
        for step in (3, 4):
            saved(step).save(folder)
            say(str(step))

    def check(folder: Path, said: list[str]) -> None:
        newest, complaints = latest_checkpoint(folder)
        assert not complaints
        assert newest is not None
        assert newest.step in range(int(said[-1]) if said else 2, 5)
        assert newest.values == {"step": newest.step}
        assert newest.tensors["weights"].eq(newest.step).all()
        saved(5).save(folder)
        assert names_in(folder) == [f"step-{step:09d}.checkpoint" for step in (newest.step, 5)]

    return Scenario(prepare, act, check)


def _ranker(number: int) -> SavedRanker:
    return SavedRanker("ridge", {"number": number}, {"w": np.full(1000, float(number))}, str(number))


def _number(folder: Path) -> int:
    saved = load_saved(folder)
    (number,) = {saved.config["number"], int(saved.features), *map(int, saved.weights["w"])}
    return int(number)


def _model(exchanges: bool) -> Scenario:
    def save(number: int, folder: Path) -> None:
        if exchanges:
            _ranker(number).save(folder / "models" / "model")
            return
        with patch.object(atomic, "_exchange", lambda *_: False):
            _ranker(number).save(folder / "models" / "model")

    def act(folder: Path, say: Callable[[str], None]) -> None:
        save(2, folder)
        say("saved")

    def check(folder: Path, said: list[str]) -> None:
        model = folder / "models" / "model"
        if said or exchanges or model.exists():  # else it was killed between two renames
            assert _number(model) in ((2,) if said else (1, 2))
        else:
            (replaced,) = (folder / "models").glob("*.replaced")
            assert _number(replaced) == 1
        save(3, folder)
        assert _number(model) == 3
        assert names_in(folder / "models") == ["model"]

    return Scenario(partial(save, 1), act, check)


def _added_file() -> Scenario:
    def add(model: Path, content: bytes) -> None:
        add_file(model, "model.onnx", content, made_from=load_saved(model))

    def prepare(folder: Path) -> None:
        _ranker(1).save(folder / "model")
        add(folder / "model", b"old" * 3000)

    def act(folder: Path, say: Callable[[str], None]) -> None:
        add(folder / "model", b"new" * 3000)
        say("added")

    def check(folder: Path, said: list[str]) -> None:
        assert _number(folder / "model") == 1
        content = (folder / "model" / "model.onnx").read_bytes()
        assert content in ((b"new" * 3000,) if said else (b"old" * 3000, b"new" * 3000))
        act(folder, print_nothing)
        assert names_in(folder) == ["model"]

    return Scenario(prepare, act, check)


def _keys() -> Scenario:
    def prepare(folder: Path) -> None:
        add_key(folder / "keys.json", "admin", "first")

    def act(folder: Path, say: Callable[[str], None]) -> None:
        path = folder / "keys.json"
        first = read_keys(path)[0].id
        say(f"added {add_key(path, 'serve').partition('.')[0]}")
        revoke_key(path, first)
        say(f"revoked {first}")

    def check(folder: Path, said: list[str]) -> None:
        path = folder / "keys.json"
        ids = [key.id for key in read_keys(path)]
        assert len(ids) in (1, 2)
        for line in said:
            what, key_id = line.split()
            assert (key_id in ids) == (what == "added")
        new = add_key(path, "serve").partition(".")[0]
        assert [key.id for key in read_keys(path)] == [*ids, new]
        assert names_in(folder) == [".keys.json.lock", "keys.json"]

    return Scenario(prepare, act, check)


def _all() -> Iterator[tuple[str, Scenario]]:
    yield "log", _log(3, "process")
    yield "log, synced", _log(3, "power")
    yield "log, new", _log(0, "process")
    yield "log export", _export()
    for version in OLD_VERSIONS:
        yield f"log of step {version}, upgraded", _upgrade(version)
    yield "checkpoints", _checkpoints()
    yield "model folder", _model(exchanges=True)
    yield "model folder, two renames", _model(exchanges=False)
    yield "file added to a model", _added_file()
    yield "keys", _keys()


SCENARIOS = dict(_all())
