"""The log: what it takes, what it refuses, and what it counts, the same in SQLite and in PostgreSQL."""

import asyncio
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
from seq2slate.errors import DataError, UsageError
from seq2slate.log import schema, writer, writing
from seq2slate.log import sqlite as sqlite_log
from seq2slate.log.backend import BadRowError, ConflictError
from seq2slate.log.counts import ArmCounts, DraftCounts, PositionCounts
from seq2slate.log.export import export, parse_time
from seq2slate.log.impressions import Draft, LoggedImpression, to_row
from seq2slate.log.reading import Range
from seq2slate.log.sqlite import SqliteBackend, _Checkpointer
from seq2slate.log.store import ClickOutcome, Impression, Store, StoreBusyError, StoreError, open_store
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
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
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
)
SMALL = Impression("s-2", 1700000001.0, "u", "autumn", "base", [], [], np.ones((0, 0), np.float32), 1.0)


def test_an_impression_comes_back_as_it_was(store: Store) -> None:
    for one in (FULL, SMALL):
        store.add_impression(one).result()
        logged = store.get(one.slate_id)
        assert logged is not None
        assert values(logged.impression) == values(one)
        assert logged.clicks == {}
    assert store.get("s-3") is None


def test_later_changes_of_the_arrays_do_not_reach_the_log(store: Store) -> None:
    one = impression(1)
    before = values(one)
    with patch.object(writer, "write", side_effect=_wait_then(writing.write, hold := threading.Event())):
        done = store.add_impression(one)
        one.features[:] = 7
        hold.set()
        done.result()
    logged = store.get(one.slate_id)
    assert logged is not None
    assert values(logged.impression) == before


def test_a_click_is_counted_once_and_only_on_what_was_shown(store: Store) -> None:
    store.add_impression(FULL).result()

    def click(slate: str, item: str, at: float = 5.5) -> ClickOutcome:
        return store.add_click(slate, item, at).result()

    assert click("s-1", "ç") is NEW
    assert click("s-1", "ç", 9.0) is DUPLICATE
    assert click("s-1", "a") is NEW
    assert click("s-1", "d") is ClickOutcome.NOT_SHOWN
    assert click("s-1", "no such item") is ClickOutcome.NOT_SHOWN
    assert click("s-9", "a") is ClickOutcome.UNKNOWN_SLATE
    logged = store.get("s-1")
    assert logged is not None
    assert logged.clicks == {2: 5.5, 0: 5.5}
    slot = PositionCounts(1, 1, groups=1, impressions_squared=1, clicks_squared=1, impressions_times_clicks=1)
    assert store.counts("autumn").arms["treated"] == ArmCounts(
        1, 1, 2, 1, 4, 2, 1, (slot, slot), {str(FULL.fallback): 1}
    )


def test_an_impression_that_is_sent_again_is_there_once(store: Store) -> None:
    wait([store.add_impression(FULL) for _ in range(20)])
    assert len(list(store.impressions())) == 1
    assert store.counts("autumn").arms["treated"].impressions == 1


def test_impressions_come_by_time_with_their_clicks(store: Store) -> None:
    wait([store.add_impression(impression(number, at=float(number // 3))) for number in range(20)])
    store.add_click("slate-4", "item-1", 100.0).result()
    everything = list(store.impressions(batch=3))
    assert [logged.impression.at for logged in everything] == sorted(number // 3 for number in range(20))
    assert len({logged.impression.slate_id for logged in everything}) == 20
    assert {logged.impression.slate_id: logged.clicks for logged in everything if logged.clicks} == {
        "slate-4": {1: 100.0}
    }
    chosen = [logged.impression.at for logged in store.impressions(2, 4, batch=2)]
    assert chosen == [2, 2, 2, 3, 3, 3]
    assert {logged.impression.arm for logged in store.impressions(arm="arm-1")} == {"arm-1"}
    assert [logged.impression.at for logged in store.recent(3)] == [6, 6, 5]
    with pytest.raises(UsageError, match="batch"):
        store.impressions(batch=0).__next__()


def test_a_log_is_there_when_it_is_opened_again(url: str) -> None:
    with open_store(url, durability="power") as first:
        done = [first.add_impression(impression(number)) for number in range(50)]
    assert all(future.done() for future in done), "close writes what is waiting"
    with pytest.raises(StoreError, match="closed"):
        first.add_impression(FULL)
    with open_store(url, create=False) as second:
        assert len(list(second.impressions())) == 50
        assert sum(arm.impressions for arm in second.counts("experiment").arms.values()) == 50


def test_futures_can_be_awaited(store: Store) -> None:
    async def serve() -> ClickOutcome:
        await asyncio.wrap_future(store.add_impression(FULL))
        return await asyncio.wrap_future(store.add_click("s-1", "a", 1.0))

    assert asyncio.run(serve()) is NEW


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.ones((3, 2))}, "as many rows"),
        ({"features": np.full((4, 2), np.nan)}, "finite"),
        ({"feature_names": ("a",)}, "1 feature names for 2"),
        ({"items": ["a", "a", "b", "c"]}, "twice"),
        ({"shown": [0, 4]}, "indices"),
        ({"shown": [1, 1]}, "indices"),
        ({"log_propensities": [-1.0]}, "1 log-propensities for 2 slots"),
        ({"log_propensities": [-1.0, 0.5]}, "at most 0"),
        ({"log_propensities": [-1.0, -np.inf]}, "finite"),
        ({"categorical": {"brand": ["x"]}}, "brand"),
        ({"at": float("nan")}, "finite"),
        ({"unit": "ü" * 257}, "unit is longer than 512 bytes"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as refused:
        Impression(**{field.name: getattr(FULL, field.name) for field in fields(FULL)} | change)
    assert "impression" in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [{"unit": "a\0b"}, {"unit": "\ud800"}, {"items": ["a", "b", "c", "\ud800"]}, {"context": {"country": "\udfff"}}],
    ids=str,
)
def test_text_that_a_database_refuses_is_refused_at_once(store: Store, change: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="surrogate"):
        store.add_impression(replaced(FULL, **change))
    for slate_id in ("\0", "\ud800"):
        assert store.add_click(slate_id, "a", 1.0).result() is ClickOutcome.UNKNOWN_SLATE


def test_the_longest_names_fit(store: Store) -> None:
    long = {
        name: np.random.default_rng(0).bytes(256).hex() for name in ("slate_id", "unit", "experiment", "arm")
    }  # random: what repeats would be compressed
    store.add_impression(replaced(FULL, **long)).result()
    assert store.add_click(long["slate_id"], "a", 1.0).result() is NEW


# The queue and the writer


def _wait_then(function: Callable[..., Any], hold: threading.Event) -> Callable[..., Any]:
    def wrapped(*arguments: Any) -> Any:
        assert hold.wait(30)
        return function(*arguments)

    return wrapped


def test_what_waits_is_committed_together_and_acknowledged_after(store: Store) -> None:
    groups: list[int] = []
    hold = threading.Event()

    def spy(connection: Any, entries: Any, known: Any) -> Any:
        assert hold.wait(30)
        groups.append(len(entries))
        return real(connection, entries, known)

    real = writing.write
    with patch.object(writer, "write", spy):
        futures: list[Any] = [store.add_impression(impression(number)) for number in range(100)]
        futures += [store.add_click(f"slate-{number}", "item-0", 1.0) for number in range(100)]
        assert not any(future.done() for future in futures)
        hold.set()
        assert [future.result() for future in futures] == [None] * 100 + [NEW] * 100
    assert sum(groups) == 200
    assert len(groups) <= 2, "all that was waiting while the first group was written makes one"


def test_a_full_queue_says_so_at_once_and_goes_on_later(url: str) -> None:
    hold = threading.Event()
    with open_store(url, capacity=5) as store, patch.object(writer, "write", _wait_then(writing.write, hold)):
        futures = []
        with pytest.raises(StoreBusyError, match="5 writes are waiting"):
            futures += [store.add_impression(impression(number)) for number in range(100)]
        hold.set()
        store.close()
    with open_store(url) as store:
        store.add_impression(impression(1000)).result()
        assert 6 <= len(list(store.impressions())) <= 11 + 1


def test_a_write_that_is_cancelled_in_time_is_not_made(store: Store) -> None:
    hold = threading.Event()
    with patch.object(writer, "write", _wait_then(writing.write, hold)):
        first = store.add_impression(impression(1))
        while not first.running():
            pass
        second, third = (store.add_impression(impression(number)) for number in (2, 3))
        assert second.cancel()
        assert not first.cancel()
        hold.set()
        third.result()
    with pytest.raises(CancelledError):
        second.result()
    assert sorted(logged.impression.slate_id for logged in store.impressions()) == ["slate-1", "slate-3"]


def test_a_bad_row_fails_alone(store: Store) -> None:
    hold = threading.Event()

    def spoilt(one: Impression) -> Any:
        slate_id, at, unit, *rest = to_row(one)
        return (slate_id, at, "\ud800" if slate_id in ("slate-7", "slate-8", "slate-30") else unit, *rest)

    with (
        patch.object(writer, "write", _wait_then(writing.write, hold)),
        patch.object(writing, "to_row", spoilt),
    ):
        futures = [store.add_impression(impression(number)) for number in range(40)]
        futures_of_clicks = [store.add_click(f"slate-{number}", "item-0", 1.0) for number in (6, 7)]
        hold.set()
        wait(futures)
    failed = {number for number, future in enumerate(futures) if future.exception() is not None}
    assert failed == {7, 8, 30}
    assert isinstance(futures[7].exception(), BadRowError)
    assert [future.result() for future in futures_of_clicks] == [NEW, ClickOutcome.UNKNOWN_SLATE]
    assert sum(arm.impressions for arm in store.counts("experiment").arms.values()) == 37


def test_a_transaction_that_another_one_undid_is_tried_again(store: Store) -> None:
    real, calls = writing.write, []

    def twice(connection: Any, entries: Any, known: Any) -> Any:
        calls.append(len(entries))
        outcomes = real(connection, entries, known)
        if len(calls) < 3:
            raise ConflictError("another one was first")
        return outcomes

    with patch.object(writer, "write", twice):
        store.add_impression(FULL).result()
    assert calls == [1, 1, 1]
    assert store.counts("autumn").arms["treated"].impressions == 1


def test_a_failing_commit_rejects_its_group_and_the_writer_goes_on(store: Store) -> None:
    with (
        patch.object(writer, "write", side_effect=RuntimeError("the disk is on fire")),
        pytest.raises(StoreError, match="on fire"),
    ):
        store.add_impression(FULL).result()
    store.add_impression(FULL).result()
    assert store.counts("autumn").arms["treated"].impressions == 1


class SmallDisk(SqliteBackend):
    """A disk that has no room beyond some pages."""

    pages = 60

    def prepare(self, raw: sqlite3.Connection, read_only: bool) -> None:
        super().prepare(raw, read_only)
        raw.execute(f"PRAGMA max_page_count = {self.pages}")


def test_a_full_disk_refuses_and_takes_again_when_there_is_room(tmp_path: Path) -> None:
    backend = SmallDisk(tmp_path / "log.db")
    with Store(backend) as store:
        outcomes = []
        for number in range(100):
            error = store.add_impression(impression(number, n_items=50, n_features=20)).exception()
            outcomes.append(error is None)
            assert error is None or ("full" in str(error) and isinstance(error, StoreError))
        written = sum(outcomes)
        assert 0 < written < 100
        assert [logged.impression.slate_id for logged in store.impressions()] == [
            f"slate-{number}" for number in range(100) if outcomes[number]
        ]
        backend.pages = 10_000
        store.add_impression(impression(500, n_items=50, n_features=20)).exception()  # a full connection is given up
        store.add_impression(impression(501, n_items=50, n_features=20)).result()
        assert sum(arm.impressions for arm in store.counts("experiment").arms.values()) == len(
            list(store.impressions())
        )


def test_a_server_that_restarts_is_found_again(postgres_server: Any) -> None:
    with open_store(fresh_database(postgres_server)) as store:
        store.add_impression(impression(1)).result()
        postgres_server.stop()
        try:
            for number in (2, 3, 4):
                with pytest.raises(StoreError):
                    store.add_impression(impression(number)).result()
        finally:
            postgres_server.start()
        for _ in range(100):  # the pauses between attempts end
            if store.add_impression(impression(5)).exception() is None:
                break
            threading.Event().wait(0.05)
        assert {logged.impression.slate_id for logged in store.impressions()} == {"slate-1", "slate-5"}


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
    stores = [open_store(url) for _ in range(4)]

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for chunk in np.array_split(rng.permutation(60), 4):
            futures: list[Any] = [stores[number].add_impression(impression(int(one))) for one in chunk]
            futures += [stores[number].add_click(f"slate-{one}", "item-1", 1.0) for one in chunk]
            wait(futures)
            assert not [future.exception() for future in futures if future.exception() is not None]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arms = stores[0].counts("experiment").arms
    assert sum(arm.impressions for arm in arms.values()) == 60
    assert sum(arm.clicks for arm in arms.values()) == 60
    assert arms == recounted(stores[0], "experiment")
    for one in stores:
        one.close()


# Counts


def recounted(store: Store, experiment: str) -> dict[str, ArmCounts]:
    """The counts of an experiment, made from its rows by hand."""
    rows = [logged for logged in store.impressions() if logged.impression.experiment == experiment]
    arms = {}
    for arm in sorted({logged.impression.arm for logged in rows}):
        of_arm = [logged for logged in rows if logged.impression.arm == arm]
        units = sorted({logged.impression.unit for logged in of_arm})
        i = [sum(logged.impression.unit == unit for logged in of_arm) for unit in units]
        c = [sum(len(logged.clicks) for logged in of_arm if logged.impression.unit == unit) for unit in units]
        longest = max(len(logged.impression.shown) for logged in of_arm)
        positions = tuple(recounted_slot(of_arm, slot) for slot in range(longest))
        arms[arm] = ArmCounts(
            units=len(units),
            impressions=sum(i),
            clicks=sum(c),
            impressions_squared=sum(n * n for n in i),
            clicks_squared=sum(n * n for n in c),
            impressions_times_clicks=sum(n * m for n, m in zip(i, c, strict=True)),
            fallbacks=sum(logged.impression.fallback is not None for logged in of_arm),
            positions=positions,
            fallback_reasons=Counter(one.impression.fallback for one in of_arm if one.impression.fallback is not None),
        )
    return arms


def recounted_slot(of_arm: list[LoggedImpression], slot: int) -> PositionCounts:
    groups: dict[int, list[int]] = {}
    for logged in of_arm:
        shown = list(logged.impression.shown)
        if len(shown) > slot:
            counts = groups.setdefault(crc32(logged.impression.unit.encode()) % 64, [0, 0])
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
    with open_store(url) as store:
        futures: list[Any] = []
        for kind, number, *rest in steps:
            if kind == "show":
                unit, n_shown, fell_back = rest
                one = impression(number, unit=f"u{unit}", n_shown=n_shown, fallback="late" if fell_back else None)
                futures.append(store.add_impression(one))
            else:
                futures.append(store.add_click(f"slate-{number}", f"item-{rest[0]}", 1.0))
        outcomes = [future.result() for future in futures]
        counted = dict(store.counts("experiment").arms)
        assert counted == recounted(store, "experiment")
        assert outcomes.count(NEW) == sum(arm.clicks for arm in counted.values())
    assert store.counts("another").arms == {}


def test_pruning_deletes_old_slates_and_leaves_the_counts(store: Store) -> None:
    wait([store.add_impression(impression(number, at=float(number))) for number in range(1200)])
    for number in (3, 1100):
        assert store.add_click(f"slate-{number}", "item-0", 5.0).result() is NEW
    counts = store.counts("experiment")
    assert store.prune(1100.0) == 1100
    assert [logged.impression.at for logged in store.impressions()] == list(range(1100, 1200))
    assert store.counts("experiment") == counts
    assert store.add_click("slate-3", "item-1", 6.0).result() is ClickOutcome.UNKNOWN_SLATE
    assert store.add_click("slate-1100", "item-0", 6.0).result() is DUPLICATE
    assert store.prune(1100.0) == 0


def test_arms_that_share_slates_are_credited(store: Store) -> None:
    for number, teams in enumerate(("aba", "bab", "abb")):
        one = replace(impression(number, unit="left" if number < 2 else "right"), draft=Draft("old", "new", teams))
        store.add_impression(one).result()
        logged = store.get(one.slate_id)
        assert logged is not None
        assert logged.impression.draft == one.draft
        for slot in range(2):
            assert store.add_click(one.slate_id, one.items[one.shown[slot]], 5.0).result() is NEW
            assert store.add_click(one.slate_id, one.items[one.shown[slot]], 6.0).result() is DUPLICATE
    leads, clicks = {"left": 0, "right": 0}, {"left": 4, "right": 2}  # "ab", "ba" of left, "ab" of right
    assert store.counts("experiment").drafts == {
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
    assert (
        store.add_click("slate-2", store_item(store, "slate-2", 2), 7.0).result() is NEW
    )  # of "b": right leans to new
    pair = store.counts("experiment").drafts["old", "new"]
    assert (pair.b_clicks, pair.lead_squared, pair.clicks_squared, pair.lead_times_clicks) == (4, 1, 16 + 9, 3)


def store_item(store: Store, slate_id: str, slot: int) -> str:
    logged = store.get(slate_id)
    assert logged is not None
    return logged.impression.items[logged.impression.shown[slot]]


def test_teams_must_fit_the_slots() -> None:
    for teams in ("ab", "abc"):
        with pytest.raises(DataError, match="expected a or b for each"):
            replace(impression(1), draft=Draft("old", "new", teams))


def test_minutes_count_what_was_shown_and_the_clicks_on_that(store: Store) -> None:
    for number, at in enumerate((59.9, 60.0, 61.0, 185.0)):
        store.add_impression(impression(2 * number, at=at)).result()
    assert store.add_click("slate-2", "item-0", 9000.0).result() is NEW
    minutes = [(one.minute, one.arm, one.impressions, one.clicks) for one in store.minutes("experiment", 0)]
    assert minutes == [(0, "arm-0", 1, 0), (1, "arm-0", 2, 1), (3, "arm-0", 1, 0)]
    assert [one.minute for one in store.minutes("experiment", 2)] == [3]


def test_the_last_slates_latencies_by_arm(store: Store) -> None:
    assert store.experiments() == []
    for number in range(6):
        store.add_impression(replace(impression(number), latency_ms=float(number))).result()
    store.add_impression(FULL).result()
    assert store.latencies("experiment", 5) == {"arm-0": [4.0, 2.0], "arm-1": [5.0, 3.0]}
    assert store.experiments() == ["autumn", "experiment"]


# What may go wrong with the database


@pytest.mark.parametrize(("often", "value"), [("_SECONDS_BETWEEN_MOVES", 0.1), ("_ROWS_BETWEEN_MOVES", 1)])
def test_what_is_committed_moves_into_the_file_by_itself(often: str, value: float, tmp_path: Path) -> None:
    with patch.object(sqlite_log, often, value), open_store(tmp_path / "log.db") as store:
        store.add_impression(FULL).result()
        for _ in range(100):
            shutil.copy(tmp_path / "log.db", tmp_path / "alone.db")  # without the write-ahead log
            with suppress(sqlite3.Error), closing(sqlite3.connect(tmp_path / "alone.db")) as alone:
                if alone.execute("SELECT slate_id FROM impressions").fetchall() == [("s-1",)]:
                    return
            time.sleep(0.1)
    pytest.fail("it has not moved in ten seconds")


def test_a_move_that_fails_is_told(tmp_path: Path) -> None:
    told = threading.Event()
    failing = patch.object(_Checkpointer, "_move", side_effect=sqlite3.OperationalError("the disk is full"))
    telling = patch.object(sqlite_log.logger, "warning", side_effect=lambda *_: told.set())
    often = patch.object(sqlite_log, "_ROWS_BETWEEN_MOVES", 1)
    with failing, telling, often, open_store(tmp_path / "log.db") as store:
        assert told.wait(10)
        store.add_impression(FULL).result()


def test_a_file_that_was_moved_away_takes_nothing_more(tmp_path: Path) -> None:
    with open_store(tmp_path / "log.db") as store:
        store.add_impression(FULL).result()
        (tmp_path / "old").mkdir()
        for file in tmp_path.glob("log.db*"):
            file.rename(tmp_path / "old" / file.name)
        with pytest.raises(StoreError, match="moved, deleted or replaced"):
            store.add_impression(SMALL).result()
        store.add_impression(SMALL).result()  # in a new file
        assert [logged.impression.slate_id for logged in store.impressions()] == ["s-2"]


def test_columns_that_somebody_deleted_are_written_again(tmp_path: Path) -> None:
    with open_store(tmp_path / "log.db") as store:
        store.add_impression(impression(1)).result()
        with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as other:
            other.execute("PRAGMA foreign_keys = OFF")
            other.execute("DELETE FROM column_sets")
        with pytest.raises(BadRowError):
            store.add_impression(impression(2)).result()
        store.add_impression(impression(3)).result()


def test_a_probe_says_whether_there_is_room(tmp_path: Path) -> None:
    backend = SmallDisk(tmp_path / "log.db")
    with Store(backend) as store:
        store.check_writable().result()
        while (
            store.add_impression(replace(impression(1, n_items=200), slate_id=secrets.token_hex())).exception() is None
        ):
            pass
        assert isinstance(store.check_writable().exception(), StoreError)
        backend.pages = 10_000
        store.check_writable().exception()  # a full connection is given up
        store.check_writable().result()
        assert store.column_sets(Range())[0][1] == 1001.0  # and it leaves nothing behind
        with closing(sqlite3.connect(tmp_path / "log.db")) as raw:
            assert raw.execute("SELECT COUNT(*) FROM column_sets WHERE key = 'probe'").fetchone() == (0,)


def test_a_server_process_that_freezes_is_given_up(postgres_server: Any) -> None:
    url = fresh_database(postgres_server)
    with open_store(url) as store:
        store.add_impression(impression(1)).result()
        pid = cast(Any, store._writer._connection)._raw.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            stuck = store.add_impression(impression(2))
            with pytest.raises(TimeoutError):
                stuck.result(0.5)
            store.give_up_after(60)
            assert not stuck.done()
            store.give_up_after(0.3)
            assert isinstance(stuck.exception(10), StoreError)
            store.add_impression(impression(3)).result(10)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_closing_does_not_wait_for_ever(postgres_server: Any) -> None:
    import psycopg

    url = fresh_database(postgres_server)
    with patch.object(writer, "_SECONDS_TO_CLOSE", 0.3), psycopg.connect(url) as other:
        store = open_store(url)
        other.execute("LOCK TABLE arm_counts")
        stuck = store.add_impression(impression(1))
        store.close()
        assert isinstance(stuck.exception(5), StoreError)


def test_rows_that_were_not_there_when_an_export_began_do_not_slip_in(store: Store, tmp_path: Path) -> None:
    store.add_impression(impression(1)).result()
    real = store.contexts

    def late(chosen: Range) -> Iterator[str | None]:
        found = list(real(chosen))
        store.add_impression(replace(impression(2), categorical={"brand": list("wxyz")})).result()
        return iter(found)

    with patch.object(store, "contexts", late), pytest.raises(DataError, match="just committed, differ: export again"):
        export(store, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


# Opening


def test_a_log_of_a_newer_version_is_refused(url: str) -> None:
    with open_store(url):
        pass
    with patch.object(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE later (number INTEGER)",))):
        open_store(url).close()
        open_store(url).close()
    with pytest.raises(DataError, match=r"newer version of seq2slate \(step 3 .* knows 2\); upgrade"):
        open_store(url)


def test_a_log_of_the_first_version_keeps_its_counts(url: str) -> None:
    rows = (
        "INSERT INTO position_counts VALUES ('experiment', 'arm-1', 0, 100, 7)",
        "INSERT INTO arm_counts VALUES ('experiment', 'arm-1', 3, 100, 7, 0, 0, 0, 0)",
    )
    with patch.object(schema, "MIGRATIONS", ((*schema.MIGRATIONS[0], *rows),)):
        open_store(url).close()
    with open_store(url) as store:
        store.add_impression(impression(1)).result()
        slot = store.counts("experiment").arms["arm-1"].positions[0]
    assert (slot.impressions, slot.clicks, slot.groups) == (101, 7, 2)


def test_a_migration_that_fails_leaves_nothing(url: str) -> None:
    steps = (("CREATE TABLE one (number INTEGER)", "CREATE TABLE one (number INTEGER)"),)
    with patch.object(schema, "MIGRATIONS", steps), pytest.raises(StoreError, match="one"):
        open_store(url)
    with open_store(url) as store:
        store.add_impression(FULL).result()


def test_opening_without_creating_needs_a_log(tmp_path: Path, url: str) -> None:
    with pytest.raises(DataError, match="no such file"):
        open_store(tmp_path / "missing.db", create=False)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE notes (text TEXT)")
    with pytest.raises(DataError, match="holds no log"):
        open_store(tmp_path / "other.db", create=False)
    (tmp_path / "text.db").write_text("not a database " * 100)
    with pytest.raises(DataError, match=r"text\.db: file is not a database"):
        open_store(tmp_path / "text.db")


def test_what_a_path_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, path in {
        "sqlite:///a/b.db": "a/b.db",
        f"sqlite:///{tmp_path}/c.db": "c.db",
        "d%20 ?#.db": "d%20 ?#.db",
    }.items():
        open_store(url).close()
        assert (tmp_path / path).exists(), url
    for wrong, message in {"mysql://me:secret@host/x": "mysql", "sqlite://x": "sqlite:///"}.items():
        with pytest.raises(UsageError, match=message) as refused:
            open_store(wrong)
        assert "secret" not in str(refused.value)
    with pytest.raises(UsageError, match="durability"):
        open_store("x.db", durability="forever")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="capacity"):
        open_store("x.db", capacity=0)


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
    with pytest.raises((StoreError, UsageError)) as refused:
        open_store(url)
    error: BaseException | None = refused.value
    while error is not None:
        assert "s3cret" not in f"{error} {error!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# Export


def test_an_export_has_every_slate_as_a_list(store: Store, tmp_path: Path) -> None:
    wait(
        [
            store.add_impression(one)
            for one in (
                FULL,
                replaced(FULL, slate_id="s-3", at=FULL.at + 9, arm="base", shown=[0, 1, 3], log_propensities=None),
            )
        ]
    )
    store.add_click("s-1", "ç", 1.0).result()
    assert export(store, tmp_path / "all.parquet", batch=1) == 2
    table = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert table[0] == {
        "list_id": "s-1",
        "item_id": list(FULL.items),
        "features": FULL.features.tolist(),
        "label": [0, 0, 1, 0],
        "propensity": pytest.approx([np.exp(-1.25), 1, np.exp(-0.5), 1]),
        "brand": ["x", None, "y", "x"],
        "country": "ch",
        "hour": 13,
        "page": None,
        "shown_position": [1, -1, 0, -1],
        "arm": "treated",
        "unit": "Zoë 🦉",
        "at": FULL.at,
    }
    assert (table[1]["shown_position"], table[1]["propensity"]) == ([0, 1, -1, 2], [1, 1, 1, 1])
    lists = read(tmp_path / "all.parquet")
    assert lists.feature_names == ("price", "age")
    assert (list(lists.categorical), list(lists.context)) == (["brand"], ["country", "hour", "page"])
    assert export(store, tmp_path / "arm.parquet", Range(arm="base")) == 1
    assert export(store, tmp_path / "early.parquet", Range(until=FULL.at + 9)) == 1
    with pytest.raises(DataError, match="no impressions"):
        export(store, tmp_path / "none.parquet", Range(since=FULL.at + 100))
    assert not (tmp_path / "none.parquet").exists()


def replaced(one: Impression, **change: Any) -> Impression:
    return Impression(**{field.name: getattr(one, field.name) for field in fields(one)} | change)


def test_an_export_leaves_out_slates_without_usable_features(store: Store, tmp_path: Path) -> None:
    store.add_impression(impression(1, at=0.0)).result()
    bad = replaced(impression(2, at=1.0, n_features=0, context={"hour": 3}), fallback="bad-features")
    store.add_impression(bad).result()
    store.add_impression(replaced(impression(3, at=2.0), fallback="deadline")).result()
    assert export(store, tmp_path / "x.parquet") == 2


def test_an_export_refuses_what_does_not_fit_into_one_table(store: Store, tmp_path: Path) -> None:
    store.add_impression(impression(1, at=0.0)).result()
    store.add_impression(impression(2, at=86400.0, n_features=7)).result()
    with pytest.raises(DataError, match=r"7 features .* from 1970-01-02T00:00:00\+00:00 .* --since, --until"):
        export(store, tmp_path / "x.parquet")
    store.add_impression(impression(3, at=2.0, context={"hour": 3})).result()
    with pytest.raises(DataError, match="'hour' is a number in some impressions and missing in others"):
        export(store, tmp_path / "x.parquet", Range(until=10))
    store.add_impression(impression(4, at=3.0, context={"hour": "three"})).result()
    with pytest.raises(DataError, match="'hour' is a number in some impressions and text in others"):
        export(store, tmp_path / "x.parquet", Range(since=2, until=10))
    store.add_impression(impression(5, at=4.0, context={"arm": "left"})).result()
    with pytest.raises(DataError, match="'arm'"):
        export(store, tmp_path / "x.parquet", Range(since=4, until=10))
    assert not list(tmp_path.glob("*.parquet"))


def test_an_export_does_not_need_the_whole_log_in_memory(tmp_path: Path) -> None:
    with open_store(tmp_path / "log.db") as store:
        wait([store.add_impression(impression(number, n_items=20, n_features=100)) for number in range(1000)])
        size = 1000 * 20 * 100 * 4
        with measured_memory() as held_and_peak:
            assert export(store, tmp_path / "log.parquet", batch=20) == 1000
            _, peak = held_and_peak()
    assert peak < size / 2


def test_times() -> None:
    assert parse_time("2026-01-31T12:00") == parse_time("2026-01-31T13:00+01:00") == parse_time("2026-01-31T12:00Z")
    with pytest.raises(UsageError, match="'yesterday' is not a time"):
        parse_time("yesterday")


def test_from_the_log_to_a_trained_model(url: str, tmp_path: Path) -> None:
    """The commands: export a log, train on it, evaluate with it, and prune it."""
    rng = np.random.default_rng(0)
    with open_store(url) as store:
        for number in range(60):
            one = impression(number, at=float(number), n_items=6, n_features=4, context={"hour": number % 24})
            store.add_impression(one).result()
            best = int(one.features[list(one.shown), 0].argmax())
            store.add_click(one.slate_id, one.items[one.shown[best if rng.random() < 0.9 else 0]], 1.0).result()
    log, model = tmp_path / "log.parquet", tmp_path / "model"
    assert "50 lists" in seq2slate("log", "export", url, log, "--since", 10, "--until", "1970-01-02").out
    seq2slate("train", log, "--out", model, "--epochs", 1)
    measures = json.loads(seq2slate("evaluate", log, "--ranker", model, "--json").out)
    assert "NDCG@10" in json.dumps(measures)
    config = (model / "features.json").read_text()
    assert "hour" in config
    assert not any(name in config for name in ("shown_position", '"unit"', '"arm"', '"at"'))
    assert "10 slates deleted" in seq2slate("log", "prune", url, "--before", "1970-01-01T00:00:10Z").out
    assert "a .parquet file" in seq2slate("log", "export", url, tmp_path / "log.txt", code=2).err
    missing = tmp_path / "missing.db"
    assert "no such file" in seq2slate("log", "prune", missing, "--before", 1, code=2).err
    assert not missing.exists()
