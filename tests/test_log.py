"""The log: what it takes, what it refuses, and what it counts, the same in SQLite and in PostgreSQL."""

import asyncio
import hashlib
import json
import os
import secrets
import shutil
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from contextlib import closing, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch
from zlib import crc32

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2slate.data.files import read
from seq2slate.data.impressions import Draft, Impression, ItemColumns
from seq2slate.errors import DataError, UsageError
from seq2slate.experiments.counts import ArmCounts, Definition, DraftCounts, PositionCounts
from seq2slate.log import schema, writer
from seq2slate.log import sqlite as sqlite_log
from seq2slate.log.backend import BadRowError, ConflictError, LogBusyError, LogError
from seq2slate.log.check import check_log
from seq2slate.log.export import export, parse_time
from seq2slate.log.impression_log import ImpressionLog, open_log
from seq2slate.log.reading import ImpressionFilter
from seq2slate.log.sqlite import SqliteBackend, _Checkpointer
from seq2slate.log.writer import ClickOutcome
from tests.logs import fresh_database, impression
from tests.memory import measured_memory
from tests.test_cli import seq2slate

NEW, DUPLICATE = ClickOutcome.NEW, ClickOutcome.DUPLICATE


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place of a new log, in each of the two databases."""
    if request.param == "sqlite":
        return str(tmp_path / "folder" / "log.db")
    return fresh_database(request.getfixturevalue("postgres_server"))


@pytest.fixture
def log(url: str) -> Iterator[ImpressionLog]:
    with open_log(url) as opened:
        yield opened


def values(one: Impression) -> dict[str, Any]:
    """Every field, as something that can be compared."""
    found = {field.name: getattr(one, field.name) for field in fields(one)}
    found["features"] = one.features.tolist()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


# What comes back is what went in


FULL = Impression(
    slate_id="s-1",
    at=1700000000.25,
    unit="Zoë 🦉",
    experiment="autumn",
    arm="treated",
    items=["a", 'b "quoted"', "ç", "d"],
    shown=[2, 0],
    features=np.array([[0.1, -1e30], [1e-30, 2], [3, 4], [5, 6]]),
    latency_ms=0.75,
    feature_names=("price", "age"),
    categorical={"brand": ["x", None, "y", "x"]},
    context={"country": "ch", "hour": 13, "page": None},
    model="f00d",
    log_propensities=[-0.5, -1.25],
    fallback="late",
    fallback_detail="feature 'price' of item 'ç' is infinite",
    titles=["A <b>lamp</b>", None, "Ç 🦉", ""],
)
SMALL = Impression("s-2", 1700000001.0, "u", "autumn", "base", [], [], np.ones((0, 0), np.float32), 1.0)


def test_an_impression_comes_back_as_it_was(log: ImpressionLog) -> None:
    for one in (FULL, SMALL):
        log.add_impression(one).result()
        logged = log.get(one.slate_id)
        assert logged is not None
        assert values(logged) == values(one)
        assert logged.clicks == {}
    assert log.get("s-3") is None


def test_later_changes_of_the_arrays_do_not_reach_the_log(log: ImpressionLog) -> None:
    one = impression(1)
    before = values(one)
    with patch.object(writer, "write_group", side_effect=_wait_then(writer.write_group, hold := threading.Event())):
        done = log.add_impression(one)
        one.features[:] = 7
        hold.set()
        done.result()
    logged = log.get(one.slate_id)
    assert logged is not None
    assert values(logged) == before


def test_a_click_is_counted_once_and_only_on_what_was_shown(log: ImpressionLog) -> None:
    log.add_impression(FULL).result()

    def click(slate: str, item: str, at: float = 5.5) -> ClickOutcome:
        return log.add_click(slate, item, at).result()

    assert click("s-1", "ç") is NEW
    assert click("s-1", "ç", 9.0) is DUPLICATE
    assert click("s-1", "a") is NEW
    assert click("s-1", "d") is ClickOutcome.NOT_SHOWN
    assert click("s-1", "no such item") is ClickOutcome.NOT_SHOWN
    assert click("s-9", "a") is ClickOutcome.UNKNOWN_SLATE
    logged = log.get("s-1")
    assert logged is not None
    assert logged.clicks == {2: 5.5, 0: 5.5}
    slot = PositionCounts(1, 1, groups=1, impressions_squared=1, clicks_squared=1, impressions_times_clicks=1)
    assert log.counts("autumn").arms["treated"] == ArmCounts(1, 1, 2, 1, 4, 2, 1, (slot, slot), {str(FULL.fallback): 1})


def test_an_impression_that_is_sent_again_is_there_once(log: ImpressionLog) -> None:
    wait([log.add_impression(FULL) for _ in range(20)])
    assert len(list(log.impressions())) == 1
    assert log.counts("autumn").arms["treated"].impressions == 1


def test_impressions_come_by_time_with_their_clicks(log: ImpressionLog) -> None:
    wait([log.add_impression(impression(number, at=float(number // 3))) for number in range(20)])
    log.add_click("slate-4", "item-1", 100.0).result()
    everything = list(log.impressions(batch=3))
    assert [logged.at for logged in everything] == sorted(number // 3 for number in range(20))
    assert len({logged.slate_id for logged in everything}) == 20
    assert {logged.slate_id: logged.clicks for logged in everything if logged.clicks} == {"slate-4": {1: 100.0}}
    chosen = [logged.at for logged in log.impressions(2, 4, batch=2)]
    assert chosen == [2, 2, 2, 3, 3, 3]
    assert {logged.arm for logged in log.impressions(arm="arm-1")} == {"arm-1"}
    assert [logged.at for logged in log.recent(3)] == [6, 6, 5]
    with pytest.raises(UsageError, match="batch"):
        log.impressions(batch=0).__next__()


def test_a_log_is_there_when_it_is_opened_again(url: str) -> None:
    with open_log(url, durability="power") as first:
        done = [first.add_impression(impression(number)) for number in range(50)]
    assert all(future.done() for future in done), "close writes what is waiting"
    with pytest.raises(LogError, match="closed"):
        first.add_impression(FULL)
    with open_log(url, create=False) as second:
        assert len(list(second.impressions())) == 50
        assert sum(arm.impressions for arm in second.counts("experiment").arms.values()) == 50


def test_the_json_of_a_row_is_made_by_the_writer(tmp_path: Path) -> None:
    threads: list[str] = []
    to_row = writer.to_row

    def make_row(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return to_row(*arguments)

    with patch.object(writer, "to_row", make_row), open_log(tmp_path / "log.db") as log:
        wait([log.add_impression(impression(number)) for number in range(5)])
    assert threads == ["seq2slate-log"] * 5


def test_futures_can_be_awaited(log: ImpressionLog) -> None:
    async def serve() -> ClickOutcome:
        await asyncio.wrap_future(log.add_impression(FULL))
        return await asyncio.wrap_future(log.add_click("s-1", "a", 1.0))

    assert asyncio.run(serve()) is NEW


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.ones((3, 2))}, "as many rows"),
        ({"features": np.full((4, 2), np.inf)}, "finite"),
        ({"feature_names": ("a",)}, "1 feature names for 2"),
        ({"items": ["a", "a", "b", "c"]}, "twice"),
        ({"shown": [0, 4]}, "indices"),
        ({"shown": [1, 1]}, "indices"),
        ({"log_propensities": [-1.0]}, "1 log-propensities for 2 slots"),
        ({"log_propensities": [-1.0, 0.5]}, "at most 0"),
        ({"log_propensities": [-1.0, -np.inf]}, "finite"),
        ({"categorical": {"brand": ["x"]}}, "brand"),
        ({"at": float("nan")}, "finite"),
        ({"clicks": {1: 5.0}}, "clicks must lead from items that were shown to finite times"),
        ({"clicks": {2: float("nan")}}, "clicks must lead from items that were shown to finite times"),
        ({"unit": "ü" * 257}, "unit is longer than 512 bytes"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as refused:
        Impression(**{field.name: getattr(FULL, field.name) for field in fields(FULL)} | change)
    assert "impression" in str(refused.value)


@pytest.mark.parametrize("at", [float("nan"), float("inf")])
def test_a_click_needs_a_time(log: ImpressionLog, at: float) -> None:
    log.add_impression(FULL).result()
    with pytest.raises(DataError, match="click on 'a' of slate 's-1': the time must be finite"):
        log.add_click("s-1", "a", at)


def test_clicks_are_logged_one_by_one(log: ImpressionLog) -> None:
    with pytest.raises(DataError, match="'s-1' has clicks; log them with add_click"):
        log.add_impression(replace(FULL, clicks={2: 5.0}))


@pytest.mark.parametrize(
    "change",
    [{"unit": "a\0b"}, {"unit": "\ud800"}, {"items": ["a", "b", "c", "\ud800"]}, {"context": {"country": "\udfff"}}],
    ids=str,
)
def test_text_that_a_database_refuses_is_refused_at_once(log: ImpressionLog, change: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="surrogate"):
        log.add_impression(replaced(FULL, **change))
    for slate_id in ("\0", "\ud800"):
        assert log.add_click(slate_id, "a", 1.0).result() is ClickOutcome.UNKNOWN_SLATE


def test_the_longest_names_fit(log: ImpressionLog) -> None:
    long = {
        name: np.random.default_rng(0).bytes(256).hex() for name in ("slate_id", "unit", "experiment", "arm")
    }  # random: what repeats would be compressed
    log.add_impression(replaced(FULL, **long)).result()
    assert log.add_click(long["slate_id"], "a", 1.0).result() is NEW


# The queue and the writer


def _wait_then(function: Callable[..., Any], hold: threading.Event) -> Callable[..., Any]:
    def wrapped(*arguments: Any) -> Any:
        assert hold.wait(30)
        return function(*arguments)

    return wrapped


def test_what_waits_is_committed_together_and_acknowledged_after(log: ImpressionLog) -> None:
    groups: list[int] = []
    hold = threading.Event()

    def spy(connection: Any, entries: Any, known: Any) -> Any:
        assert hold.wait(30)
        groups.append(len(entries))
        return real(connection, entries, known)

    real = writer.write_group
    with patch.object(writer, "write_group", spy):
        futures: list[Any] = [log.add_impression(impression(number)) for number in range(100)]
        futures += [log.add_click(f"slate-{number}", "item-0", 1.0) for number in range(100)]
        assert not any(future.done() for future in futures)
        hold.set()
        assert [future.result() for future in futures] == [None] * 100 + [NEW] * 100
    assert sum(groups) == 200
    assert len(groups) <= 2, "all that was waiting while the first group was written makes one"


def test_a_full_queue_says_so_at_once_and_goes_on_later(url: str) -> None:
    hold = threading.Event()
    with open_log(url, capacity=5) as log, patch.object(writer, "write_group", _wait_then(writer.write_group, hold)):
        futures = []
        with pytest.raises(LogBusyError, match="5 writes are waiting"):
            futures += [log.add_impression(impression(number)) for number in range(100)]
        hold.set()
        log.close()
    with open_log(url) as log:
        log.add_impression(impression(1000)).result()
        assert 6 <= len(list(log.impressions())) <= 11 + 1


def test_a_write_that_is_cancelled_in_time_is_not_made(log: ImpressionLog) -> None:
    hold = threading.Event()
    with patch.object(writer, "write_group", _wait_then(writer.write_group, hold)):
        first = log.add_impression(impression(1))
        while not first.running():
            pass
        second, third = (log.add_impression(impression(number)) for number in (2, 3))
        assert second.cancel()
        assert not first.cancel()
        hold.set()
        third.result()
    with pytest.raises(CancelledError):
        second.result()
    assert sorted(logged.slate_id for logged in log.impressions()) == ["slate-1", "slate-3"]


def test_a_bad_row_fails_alone(log: ImpressionLog) -> None:
    hold, real = threading.Event(), writer.to_row

    def spoilt(one: Impression, columns: ItemColumns, features: bytes) -> Any:
        slate_id, at, unit, *rest = real(one, columns, features)
        return (slate_id, at, "\ud800" if slate_id in ("slate-7", "slate-8", "slate-30") else unit, *rest)

    with (
        patch.object(writer, "write_group", _wait_then(writer.write_group, hold)),
        patch.object(writer, "to_row", spoilt),
    ):
        futures = [log.add_impression(impression(number)) for number in range(40)]
        futures_of_clicks = [log.add_click(f"slate-{number}", "item-0", 1.0) for number in (6, 7)]
        hold.set()
        wait(futures)
    failed = {number for number, future in enumerate(futures) if future.exception() is not None}
    assert failed == {7, 8, 30}
    assert isinstance(futures[7].exception(), BadRowError)
    assert [future.result() for future in futures_of_clicks] == [NEW, ClickOutcome.UNKNOWN_SLATE]
    assert sum(arm.impressions for arm in log.counts("experiment").arms.values()) == 37


def test_a_transaction_that_another_one_undid_is_tried_again(log: ImpressionLog) -> None:
    real, calls = writer.write_group, []

    def twice(connection: Any, entries: Any, known: Any) -> Any:
        calls.append(len(entries))
        outcomes = real(connection, entries, known)
        if len(calls) < 3:
            raise ConflictError("another one was first")
        return outcomes

    with patch.object(writer, "write_group", twice):
        log.add_impression(FULL).result()
    assert calls == [1, 1, 1]
    assert log.counts("autumn").arms["treated"].impressions == 1


def test_a_failing_commit_rejects_its_group_and_the_writer_goes_on(log: ImpressionLog) -> None:
    with (
        patch.object(writer, "write_group", side_effect=RuntimeError("the disk is on fire")),
        pytest.raises(LogError, match="on fire"),
    ):
        log.add_impression(FULL).result()
    log.add_impression(FULL).result()
    assert log.counts("autumn").arms["treated"].impressions == 1


class SmallDisk(SqliteBackend):
    """A disk that has no room beyond some pages."""

    pages = 60

    def prepare(self, raw: sqlite3.Connection, read_only: bool) -> None:
        super().prepare(raw, read_only)
        raw.execute(f"PRAGMA max_page_count = {self.pages}")


def test_a_full_disk_refuses_and_takes_again_when_there_is_room(tmp_path: Path) -> None:
    backend = SmallDisk(tmp_path / "log.db")
    with ImpressionLog(backend) as log:
        outcomes = []
        for number in range(100):
            error = log.add_impression(impression(number, n_items=50, n_features=20)).exception()
            outcomes.append(error is None)
            assert error is None or ("full" in str(error) and isinstance(error, LogError))
        written = sum(outcomes)
        assert 0 < written < 100
        assert [logged.slate_id for logged in log.impressions()] == [
            f"slate-{number}" for number in range(100) if outcomes[number]
        ]
        backend.pages = 10_000
        log.add_impression(impression(500, n_items=50, n_features=20)).exception()  # a full connection is given up
        log.add_impression(impression(501, n_items=50, n_features=20)).result()
        assert sum(arm.impressions for arm in log.counts("experiment").arms.values()) == len(list(log.impressions()))


def test_a_server_that_restarts_is_found_again(postgres_server: Any) -> None:
    with open_log(fresh_database(postgres_server)) as log:
        log.add_impression(impression(1)).result()
        postgres_server.stop()
        try:
            for number in (2, 3, 4):
                with pytest.raises(LogError):
                    log.add_impression(impression(number)).result()
        finally:
            postgres_server.start()
        for _ in range(100):  # the pauses between attempts end
            if log.add_impression(impression(5)).exception() is None:
                break
            threading.Event().wait(0.05)
        assert {logged.slate_id for logged in log.impressions()} == {"slate-1", "slate-5"}


def test_a_commit_waits_for_the_disk_of_the_server(postgres_server: Any) -> None:
    postgres = pytest.importorskip("seq2slate.log.postgres")
    for setting, expected in {"off": "on", "remote_apply": "remote_apply"}.items():
        backend = postgres.PostgresBackend(f"{postgres_server.get_uri()}&options=-csynchronous_commit%3D{setting}")
        connection = backend.connect()
        with connection.transaction():
            assert connection.rows("SHOW synchronous_commit") == [(expected,)]
        connection.close()


def test_several_stores_write_to_one_log(url: str) -> None:
    """Four replicas, which send some of the same impressions and clicks in different orders."""
    logs = [open_log(url) for _ in range(4)]

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for chunk in np.array_split(rng.permutation(60), 4):
            futures: list[Any] = [logs[number].add_impression(impression(int(one))) for one in chunk]
            futures += [logs[number].add_click(f"slate-{one}", "item-1", 1.0) for one in chunk]
            wait(futures)
            assert not [future.exception() for future in futures if future.exception() is not None]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arms = logs[0].counts("experiment").arms
    assert sum(arm.impressions for arm in arms.values()) == 60
    assert sum(arm.clicks for arm in arms.values()) == 60
    assert arms == recounted(logs[0], "experiment")
    for one in logs:
        one.close()


# Counts


def recounted(log: ImpressionLog, experiment: str) -> dict[str, ArmCounts]:
    """The counts of an experiment, made from its rows by hand."""
    rows = [logged for logged in log.impressions() if logged.experiment == experiment]
    arms = {}
    for arm in sorted({logged.arm for logged in rows}):
        of_arm = [logged for logged in rows if logged.arm == arm]
        units = sorted({logged.unit for logged in of_arm})
        i = [sum(logged.unit == unit for logged in of_arm) for unit in units]
        c = [sum(len(logged.clicks) for logged in of_arm if logged.unit == unit) for unit in units]
        longest = max(len(logged.shown) for logged in of_arm)
        positions = tuple(recounted_slot(of_arm, slot) for slot in range(longest))
        arms[arm] = ArmCounts(
            units=len(units),
            impressions=sum(i),
            clicks=sum(c),
            impressions_squared=sum(n * n for n in i),
            clicks_squared=sum(n * n for n in c),
            impressions_times_clicks=sum(n * m for n, m in zip(i, c, strict=True)),
            fallbacks=sum(logged.fallback is not None for logged in of_arm),
            positions=positions,
            fallback_reasons=Counter(one.fallback for one in of_arm if one.fallback is not None),
        )
    return arms


def recounted_slot(of_arm: list[Impression], slot: int) -> PositionCounts:
    groups: dict[int, list[int]] = {}
    for logged in of_arm:
        shown = list(logged.shown)
        if len(shown) > slot:
            counts = groups.setdefault(crc32(logged.unit.encode()) % 64, [0, 0])
            counts[0] += 1
            counts[1] += shown[slot] in logged.clicks
    i, c = (np.array(column) for column in zip(*groups.values(), strict=True))
    return PositionCounts(*map(int, (i.sum(), c.sum(), len(groups), (i * i).sum(), (c * c).sum(), (i * c).sum())))


SHOW = st.tuples(st.just("show"), st.integers(0, 9), st.integers(0, 2), st.integers(0, 3), st.booleans())
CLICK = st.tuples(st.just("click"), st.integers(0, 11), st.integers(0, 4))


@settings(max_examples=25)
@given(steps=st.lists(st.one_of(SHOW, CLICK), max_size=40))
def test_counts_equal_those_of_the_rows(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    check_counts(str(tmp_path_factory.mktemp("counts") / "log.db"), steps)


@settings(max_examples=8)
@given(steps=st.lists(st.one_of(SHOW, CLICK), max_size=40))
def test_counts_equal_those_of_the_rows_in_postgres(postgres_server: Any, steps: list[Any]) -> None:
    check_counts(fresh_database(postgres_server), steps)


def check_counts(url: str, steps: list[Any]) -> None:
    """Slates with few names, some shown twice, and clicks on what is there and what is not."""
    with open_log(url) as log:
        futures: list[Any] = []
        for kind, number, *rest in steps:
            if kind == "show":
                unit, n_shown, fell_back = rest
                one = impression(number, unit=f"u{unit}", n_shown=n_shown, fallback="late" if fell_back else None)
                futures.append(log.add_impression(one))
            else:
                futures.append(log.add_click(f"slate-{number}", f"item-{rest[0]}", 1.0))
        outcomes = [future.result() for future in futures]
        counted = dict(log.counts("experiment").arms)
        assert counted == recounted(log, "experiment")
        assert outcomes.count(NEW) == sum(arm.clicks for arm in counted.values())
    assert log.counts("another").arms == {}


def test_pruning_deletes_old_slates_and_leaves_the_counts(log: ImpressionLog) -> None:
    wait([log.add_impression(impression(number, at=float(number))) for number in range(1200)])
    for number in (3, 1100):
        assert log.add_click(f"slate-{number}", "item-0", 5.0).result() is NEW
    counts = log.counts("experiment")
    assert log.prune(1100.0) == 1100
    assert [logged.at for logged in log.impressions()] == list(range(1100, 1200))
    assert log.counts("experiment") == counts
    assert log.add_click("slate-3", "item-1", 6.0).result() is ClickOutcome.UNKNOWN_SLATE
    assert log.add_click("slate-1100", "item-0", 6.0).result() is DUPLICATE
    assert log.prune(1100.0) == 0


def test_arms_that_share_slates_are_credited(log: ImpressionLog) -> None:
    for number, teams in enumerate(("aba", "bab", "abb")):
        one = replace(impression(number, unit="left" if number < 2 else "right"), draft=Draft("old", "new", teams))
        log.add_impression(one).result()
        logged = log.get(one.slate_id)
        assert logged is not None
        assert logged.draft == one.draft
        for slot in range(2):
            assert log.add_click(one.slate_id, one.items[one.shown[slot]], 5.0).result() is NEW
            assert log.add_click(one.slate_id, one.items[one.shown[slot]], 6.0).result() is DUPLICATE
    leads, clicks = {"left": 0, "right": 0}, {"left": 4, "right": 2}  # "ab", "ba" of left, "ab" of right
    assert log.counts("experiment").drafts == {
        ("old", "new"): DraftCounts(
            impressions=3,
            units=2,
            a_clicks=3,
            b_clicks=3,
            lead_squared=sum(lead**2 for lead in leads.values()),
            clicks_squared=sum(n**2 for n in clicks.values()),
            lead_times_clicks=sum(leads[unit] * clicks[unit] for unit in leads),
        )
    }
    assert log.add_click("slate-2", logged_item(log, "slate-2", 2), 7.0).result() is NEW  # of "b": right leans to new
    pair = log.counts("experiment").drafts["old", "new"]
    assert (pair.b_clicks, pair.lead_squared, pair.clicks_squared, pair.lead_times_clicks) == (4, 1, 16 + 9, 3)


def logged_item(log: ImpressionLog, slate_id: str, slot: int) -> str:
    logged = log.get(slate_id)
    assert logged is not None
    return logged.items[logged.shown[slot]]


def test_teams_must_fit_the_slots() -> None:
    for teams in ("ab", "abc"):
        with pytest.raises(DataError, match="expected a or b for each"):
            replace(impression(1), draft=Draft("old", "new", teams))


def test_minutes_count_what_was_shown_and_the_clicks_on_that(log: ImpressionLog) -> None:
    for number, at in enumerate((59.9, 60.0, 61.0, 185.0)):
        log.add_impression(impression(2 * number, at=at)).result()
    assert log.add_click("slate-2", "item-0", 9000.0).result() is NEW
    minutes = [(one.minute, one.arm, one.impressions, one.clicks) for one in log.minutes("experiment", 0)]
    assert minutes == [(0, "arm-0", 1, 0), (1, "arm-0", 2, 1), (3, "arm-0", 1, 0)]
    assert [one.minute for one in log.minutes("experiment", 2)] == [3]


def test_the_last_slates_latencies_by_arm(log: ImpressionLog) -> None:
    assert log.experiments() == []
    for number in range(6):
        log.add_impression(replace(impression(number), latency_ms=float(number))).result()
    log.add_impression(FULL).result()
    assert log.latencies("experiment", 5) == {"arm-0": [4.0, 2.0], "arm-1": [5.0, 3.0]}
    assert log.experiments() == ["autumn", "experiment"]


# What may go wrong with the database


@pytest.mark.parametrize(("often", "value"), [("_CHECKPOINT_SECONDS", 0.1), ("_CHECKPOINT_ROWS", 1)])
def test_what_is_committed_moves_into_the_file_by_itself(often: str, value: float, tmp_path: Path) -> None:
    with patch.object(sqlite_log, often, value), open_log(tmp_path / "log.db") as log:
        log.add_impression(FULL).result()
        for _ in range(100):
            shutil.copy(tmp_path / "log.db", tmp_path / "alone.db")  # without the write-ahead log
            with suppress(sqlite3.Error), closing(sqlite3.connect(tmp_path / "alone.db")) as alone:
                if alone.execute("SELECT slate_id FROM impressions").fetchall() == [("s-1",)]:
                    return
            time.sleep(0.1)
    pytest.fail("it has not moved in ten seconds")


def test_a_move_that_fails_is_told(tmp_path: Path) -> None:
    told = threading.Event()
    failing = patch.object(_Checkpointer, "_checkpoint", side_effect=sqlite3.OperationalError("the disk is full"))
    telling = patch.object(sqlite_log.logger, "warning", side_effect=lambda *_: told.set())
    often = patch.object(sqlite_log, "_CHECKPOINT_ROWS", 1)
    with failing, telling, often, open_log(tmp_path / "log.db") as log:
        assert told.wait(10)
        log.add_impression(FULL).result()


def test_a_file_that_was_moved_away_takes_nothing_more(tmp_path: Path) -> None:
    with open_log(tmp_path / "log.db") as log:
        log.add_impression(FULL).result()
        (tmp_path / "old").mkdir()
        for file in tmp_path.glob("log.db*"):
            file.rename(tmp_path / "old" / file.name)
        with pytest.raises(LogError, match="moved, deleted or replaced"):
            log.add_impression(SMALL).result()
        log.add_impression(SMALL).result()  # in a new file
        assert [logged.slate_id for logged in log.impressions()] == ["s-2"]


def attack_files(path: Path, attack: str) -> None:
    """Do to the files of a log what nobody should do."""
    suffix, _, what = attack.partition(" ")
    file = path.with_name(path.name + suffix)
    if what == "deleted":
        file.unlink()
    elif what == "replaced":
        shutil.copy(file, path.with_name("copy"))
        path.with_name("copy").rename(file)
    else:
        os.truncate(file, file.stat().st_size // 2 if what == "cut" else 0)


LOST = (
    "-wal deleted",
    "-wal replaced",
    "-wal cut",
    "-wal emptied",
    "-shm deleted",
    "-shm replaced",
    " cut",
    " emptied",
)
"""After these, nothing is acknowledged until a restart."""


@pytest.mark.parametrize("attack", LOST)
def test_a_log_that_lost_a_file_acknowledges_nothing_more(tmp_path: Path, attack: str) -> None:
    """Whoever writes, and whoever asks whether the log can be written, is refused; a restart opens it again."""
    path = tmp_path / "log.db"
    with open_log(path) as log:
        wait([log.add_impression(impression(number, n_features=100)) for number in range(200)])
        with closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        log.add_impression(impression(200, n_features=100)).result()
        assert log.has_its_files()
        attack_files(path, attack)
        assert not log.has_its_files()
        for number in range(201, 221):
            with pytest.raises(LogError, match=r"nothing more is written|cannot be reached"):
                log.add_impression(impression(number, n_features=100)).result()
        with pytest.raises(LogError):
            log.check_writable().result()
    if attack.startswith("-wal"):  # what another process finds
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copy(tmp_path / f"log.db{suffix}", tmp_path / f"again.db{suffix}")
        assert not check_log(SqliteBackend(tmp_path / "again.db")).damaged
    if attack.endswith(("deleted", "replaced")):
        with open_log(path) as log:
            assert log.count(ImpressionFilter()) >= 201
            log.add_impression(impression(300, n_features=100)).result()


@pytest.mark.parametrize("attack", [" deleted", " replaced"])
def test_a_lost_database_is_noticed_before_anything_is_written(tmp_path: Path, attack: str) -> None:
    path = tmp_path / "log.db"
    with open_log(path) as log:
        log.add_impression(SMALL).result()
        assert log.has_its_files()
        attack_files(path, attack)
        assert not log.has_its_files()
        with pytest.raises(LogError, match="moved, deleted or replaced"):
            log.check_writable().result()
        log.check_writable().result()
        assert log.has_its_files()


def test_a_database_that_vacuum_made_shorter_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with open_log(path) as log:
        wait([log.add_impression(impression(number, n_features=100)) for number in range(200)])
        with closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        log.add_impression(impression(200, n_features=100)).result()
        size = path.stat().st_size
        log.prune(1150.0)
        with closing(sqlite3.connect(path)) as other:
            other.execute("VACUUM")
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert path.stat().st_size < size
        log.add_impression(impression(300, n_features=100)).result()
        assert log.count(ImpressionFilter()) == 52


def test_columns_that_somebody_deleted_are_written_again(tmp_path: Path) -> None:
    with open_log(tmp_path / "log.db") as log:
        log.add_impression(impression(1)).result()
        with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as other:
            other.execute("PRAGMA foreign_keys = OFF")
            other.execute("DELETE FROM column_sets")
        with pytest.raises(BadRowError):
            log.add_impression(impression(2)).result()
        log.add_impression(impression(3)).result()


def test_a_probe_says_whether_there_is_room(tmp_path: Path) -> None:
    backend = SmallDisk(tmp_path / "log.db")
    with ImpressionLog(backend) as log:
        log.check_writable().result()
        while log.add_impression(replace(impression(1, n_items=200), slate_id=secrets.token_hex())).exception() is None:
            pass
        assert isinstance(log.check_writable().exception(), LogError)
        backend.pages = 10_000
        log.check_writable().exception()  # a full connection is given up
        log.check_writable().result()
        assert log.column_sets(ImpressionFilter())[0][1] == 1001.0  # and it leaves nothing behind
        with closing(sqlite3.connect(tmp_path / "log.db")) as raw:
            assert raw.execute("SELECT COUNT(*) FROM column_sets WHERE key = 'probe'").fetchone() == (0,)


def test_a_server_process_that_freezes_is_given_up(postgres_server: Any) -> None:
    url = fresh_database(postgres_server)
    with open_log(url) as log:
        log.add_impression(impression(1)).result()
        pid = cast(Any, log._writer._connection)._raw.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            stuck = log.add_impression(impression(2))
            with pytest.raises(TimeoutError):
                stuck.result(0.5)
            log.give_up_after(60)
            assert not stuck.done()
            log.give_up_after(0.3)
            assert isinstance(stuck.exception(10), LogError)
            log.add_impression(impression(3)).result(10)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_closing_does_not_wait_for_ever(postgres_server: Any) -> None:
    import psycopg

    url = fresh_database(postgres_server)
    with patch.object(writer, "_CLOSE_TIMEOUT", 0.3), psycopg.connect(url) as other:
        log = open_log(url)
        other.execute("LOCK TABLE arm_counts")
        stuck = log.add_impression(impression(1))
        log.close()
        assert isinstance(stuck.exception(5), LogError)


def test_rows_that_were_not_there_when_an_export_began_do_not_slip_in(log: ImpressionLog, tmp_path: Path) -> None:
    log.add_impression(impression(1)).result()
    real = log.contexts

    def late(chosen: ImpressionFilter) -> Iterator[Any]:
        found = list(real(chosen))
        log.add_impression(replace(impression(2), categorical={"brand": list("wxyz")})).result()
        return iter(found)

    with patch.object(log, "contexts", late):
        assert export(log, tmp_path / "out.parquet") == 1
    assert read(tmp_path / "out.parquet").list_ids.to_pylist() == ["slate-1"]


# Opening


def test_a_log_of_a_newer_version_is_refused(url: str) -> None:
    with open_log(url):
        pass
    with patch.object(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE later (number INTEGER)",))):
        open_log(url).close()
        open_log(url).close()
    with pytest.raises(DataError, match=r"newer version of seq2slate \(step 7 .* knows 6\); upgrade"):
        open_log(url)


def test_a_log_of_the_first_version_keeps_its_counts(url: str) -> None:
    rows = (
        "INSERT INTO position_counts VALUES ('experiment', 'arm-1', 0, 100, 7)",
        "INSERT INTO arm_counts VALUES ('experiment', 'arm-1', 3, 100, 7, 0, 0, 0, 0)",
    )
    with patch.object(schema, "MIGRATIONS", ((*schema.MIGRATIONS[0], *rows),)):
        open_log(url).close()
    with open_log(url) as log:
        log.add_impression(impression(1)).result()
        slot = log.counts("experiment").arms["arm-1"].positions[0]
    assert (slot.impressions, slot.clicks, slot.groups) == (101, 7, 2)


def test_rows_of_the_version_before_are_read(url: str) -> None:
    """Rows as that version wrote them, in its tables."""
    names = '{"features": ["price"], "categorical": ["brand"]}'
    key = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
    features = "ZEROBLOB(8)" if "postgresql" not in url else r"'\x0000000000000000'"
    rows = (
        f"INSERT INTO column_sets (key, columns) VALUES ('{key}', '{names}')",
        "INSERT INTO impressions (slate_id, at, unit, experiment, arm, model, items, shown, log_propensities, columns, "
        "features, categorical, context, fallback, latency_ms, draft) "
        "VALUES ('s-1', 60.5, 'u', 'autumn', 'interleaved', "
        f"""'f00d+base', '["a","b"]', '[1,0]', '[-0.5,0.0]', '{key}', {features}, '[["x",null]]', '{{"hour":13}}', """
        """NULL, 0.75, '["old","new","ba"]')""",
        "INSERT INTO clicks (slate_id, item, at) VALUES ('s-1', 1, 61.25)",
        """INSERT INTO definitions (experiment, control, weights) VALUES ('autumn', 'old', '{"old": 1, "new": 2}')""",
    )
    with patch.object(schema, "MIGRATIONS", (*schema.MIGRATIONS[:1], (*schema.MIGRATIONS[1], *rows))):
        open_log(url).close()
    with open_log(url, create=False) as log:
        found = log.get("s-1")
        expected = Impression(
            "s-1",
            60.5,
            "u",
            "autumn",
            "interleaved",
            ["a", "b"],
            [1, 0],
            np.zeros((2, 1), np.float32),
            0.75,
            feature_names=("price",),
            categorical={"brand": ["x", None]},
            context={"hour": 13},
            model="f00d+base",
            log_propensities=[-0.5, 0.0],
            draft=Draft("old", "new", "ba"),
            clicks={1: 61.25},
        )
        assert found is not None
        assert values(found) == values(expected)
        assert log.definition("autumn") == Definition("autumn", "old", {"old": 1, "new": 2}, models={})
        log.add_impression(replace(expected, slate_id="s-2", clicks={})).result()
        assert log.column_sets(ImpressionFilter()) == [(ItemColumns(("price",), ("brand",)), 60.5, 60.5, 2)]


def test_a_migration_that_fails_leaves_nothing(url: str) -> None:
    steps = (("CREATE TABLE one (number INTEGER)", "CREATE TABLE one (number INTEGER)"),)
    with patch.object(schema, "MIGRATIONS", steps), pytest.raises(LogError, match="one"):
        open_log(url)
    with open_log(url) as log:
        log.add_impression(FULL).result()


def test_opening_without_creating_needs_a_log(tmp_path: Path, url: str) -> None:
    with pytest.raises(DataError, match="no such file"):
        open_log(tmp_path / "missing.db", create=False)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE notes (text TEXT)")
    with pytest.raises(DataError, match="holds no log"):
        open_log(tmp_path / "other.db", create=False)
    (tmp_path / "text.db").write_text("not a database " * 100)
    with pytest.raises(DataError, match=r"text\.db: file is not a database"):
        open_log(tmp_path / "text.db")


def test_what_a_path_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, path in {
        "sqlite:///a/b.db": "a/b.db",
        f"sqlite:///{tmp_path}/c.db": "c.db",
        "d%20 ?#.db": "d%20 ?#.db",
    }.items():
        open_log(url).close()
        assert (tmp_path / path).exists(), url
    for wrong, message in {"mysql://me:secret@host/x": "mysql", "sqlite://x": "sqlite:///"}.items():
        with pytest.raises(UsageError, match=message) as refused:
            open_log(wrong)
        assert "secret" not in str(refused.value)
    with pytest.raises(UsageError, match="durability"):
        open_log("x.db", durability="forever")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="capacity"):
        open_log("x.db", capacity=0)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@127.0.0.1:1/db",
        "postgresql://me:s3cret@127.0.0.1:99999999/db",
        "postgresql://me:s3cret@[broken/db",
        "postgresql://me@127.0.0.1:1/db?password=s3cret&nonsense=1",
    ],
)
def test_no_message_has_the_password(url: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises((LogError, UsageError)) as refused:
        open_log(url)
    error: BaseException | None = refused.value
    while error is not None:
        assert "s3cret" not in f"{error} {error!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# Export


def test_an_export_has_every_slate_as_a_list(log: ImpressionLog, tmp_path: Path) -> None:
    wait(
        [
            log.add_impression(one)
            for one in (
                FULL,
                replaced(FULL, slate_id="s-3", at=FULL.at + 9, arm="base", shown=[0, 1, 3], log_propensities=None),
            )
        ]
    )
    log.add_click("s-1", "ç", 1.0).result()
    assert export(log, tmp_path / "all.parquet", batch=1) == 2
    table = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert table[0] == {
        "list_id": "s-1",
        "item_id": list(FULL.items),
        "features": FULL.features.tolist(),
        "label": [0, 0, 1, 0],
        "brand": ["x", None, "y", "x"],
        "country": "ch",
        "hour": 13,
        "page": None,
        "shown_slot": [1, -1, 0, -1],
        "log_propensity": [-1.25, 0, -0.5, 0],
        "clicked_at": [None, None, 1.0, None],
        "unit": "Zoë 🦉",
        "arm": "treated",
        "shown_at": FULL.at,
        "experiment": "autumn",
        "model_fingerprint": "f00d",
        "fallback": "late",
        "draft": None,
        "latency_ms": 0.75,
    }
    assert (table[1]["shown_slot"], table[1]["log_propensity"]) == ([0, 1, -1, 2], [0, 0, 0, 0])
    lists = read(tmp_path / "all.parquet")
    assert lists.feature_names == ("price", "age")
    assert (list(lists.categorical), list(lists.context)) == (["brand"], ["country", "hour", "page"])
    assert export(log, tmp_path / "arm.parquet", ImpressionFilter(arm="base")) == 1
    assert export(log, tmp_path / "early.parquet", ImpressionFilter(until=FULL.at + 9)) == 1
    with pytest.raises(DataError, match="no impressions"):
        export(log, tmp_path / "none.parquet", ImpressionFilter(since=FULL.at + 100))
    assert not (tmp_path / "none.parquet").exists()


def replaced(one: Impression, **change: Any) -> Impression:
    return Impression(**{field.name: getattr(one, field.name) for field in fields(one)} | change)


def test_an_export_leaves_out_slates_without_usable_features(log: ImpressionLog, tmp_path: Path) -> None:
    log.add_impression(impression(1, at=0.0)).result()
    bad = replaced(impression(2, at=1.0, n_features=0, context={"hour": 3}), fallback="bad-features")
    log.add_impression(bad).result()
    log.add_impression(replaced(impression(3, at=2.0), fallback="deadline")).result()
    assert export(log, tmp_path / "x.parquet") == 2


def test_an_export_refuses_what_does_not_fit_into_one_table(log: ImpressionLog, tmp_path: Path) -> None:
    log.add_impression(impression(1, at=0.0)).result()
    log.add_impression(impression(2, at=86400.0, n_features=7)).result()
    with pytest.raises(DataError, match=r"7 features from 1970-01-02T00:00:00\+00:00 .* --since, --until"):
        export(log, tmp_path / "x.parquet")
    assert not list(tmp_path.glob("*.parquet"))


def test_missing_numbers_are_kept_and_exported_as_null(log: ImpressionLog, tmp_path: Path) -> None:
    features = np.array([[1.0, np.nan], [np.nan, np.nan], [3.0, 4.0]], np.float32)
    for number, hour in enumerate([9.0, None]):
        one = impression(number, n_items=3, n_features=2, context={"hour": hour})
        log.add_impression(replace(one, features=features)).result()
        logged = log.get(one.slate_id)
        assert logged is not None
        np.testing.assert_array_equal(logged.features, features)
    assert export(log, tmp_path / "log.parquet") == 2
    table = pq.read_table(tmp_path / "log.parquet")
    assert table["features"].to_pylist() == [[[1.0, None], [None, None], [3.0, 4.0]]] * 2
    assert sorted(table["hour"].to_pylist(), key=str) == [9.0, None]
    np.testing.assert_array_equal(read(tmp_path / "log.parquet").features, np.tile(features, (2, 1)))


def test_an_export_does_not_need_the_whole_log_in_memory(tmp_path: Path) -> None:
    with open_log(tmp_path / "log.db") as log:
        wait([log.add_impression(impression(number, n_items=20, n_features=100)) for number in range(1000)])
        size = 1000 * 20 * 100 * 4
        with measured_memory() as held_and_peak:
            assert export(log, tmp_path / "log.parquet", batch=20) == 1000
            _, peak = held_and_peak()
    assert peak < size / 2


def test_times() -> None:
    assert parse_time("2026-01-31T12:00") == parse_time("2026-01-31T13:00+01:00") == parse_time("2026-01-31T12:00Z")
    with pytest.raises(UsageError, match="'yesterday' is not a time"):
        parse_time("yesterday")


def test_from_the_log_to_a_trained_model(url: str, tmp_path: Path) -> None:
    """The commands: export a log, train on it, evaluate with it, and prune it."""
    rng = np.random.default_rng(0)
    with open_log(url) as log:
        for number in range(60):
            one = impression(number, at=float(number), n_items=6, n_features=4, context={"hour": number % 24})
            log.add_impression(one).result()
            best = int(one.features[list(one.shown), 0].argmax())
            log.add_click(one.slate_id, one.items[one.shown[best if rng.random() < 0.9 else 0]], 1.0).result()
    exported, model = tmp_path / "log.parquet", tmp_path / "model"
    assert "50 lists" in seq2slate("log", "export", url, exported, "--since", 10, "--until", "1970-01-02").out
    seq2slate("train", exported, "--out", model, "--epochs", 1)
    measures = json.loads(seq2slate("evaluate", exported, "--ranker", model, "--json").out)
    assert "NDCG@10" in json.dumps(measures)
    config = (model / "features.json").read_text()
    assert "hour" in config
    assert not any(
        name in config for name in ("slot", "propensity", '"unit"', '"arm"', "_at", '"experiment"', "latency")
    )
    assert "10 slates deleted" in seq2slate("log", "prune", url, "--before", "1970-01-01T00:00:10Z").out
    assert "a .parquet file" in seq2slate("log", "export", url, tmp_path / "log.txt", code=2).err
    missing = tmp_path / "missing.db"
    assert "no such file" in seq2slate("log", "prune", missing, "--before", 1, code=2).err
    assert not missing.exists()
