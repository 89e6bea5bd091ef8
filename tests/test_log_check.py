"""Damage to a log is found: flipped bytes, missing rows, and counts that the rows do not bear out."""

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from seq2slate.data.impressions import Draft, Impression
from seq2slate.errors import DataError
from seq2slate.experiments.counts import Definition
from seq2slate.log.backend import LogError
from seq2slate.log.check import LogReport, check_log
from seq2slate.log.impression_log import backend_for, open_log
from seq2slate.log.reading import ImpressionFilter, LogReader
from seq2slate.log.schema import MIGRATIONS
from seq2slate.log.sqlite import SqliteBackend
from seq2slate.log.writer import NewImpression, impression_checksum
from tests.logs import fresh_database, impression
from tests.memory import measured_memory
from tests.test_cli import seq2slate

PAGE = 4096


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "log.db")
    return fresh_database(request.getfixturevalue("postgres_server"))


def write_log(url: str, n_slates: int = 150) -> None:
    """Slates of all kinds: two sets of columns, texts, fallbacks, interleaved ones, and clicks on every third."""
    with open_log(url) as log:
        log.note(Definition("experiment", "arm-0", {"arm-0": 1, "arm-1": 2}, {"arm-1": "f00d"})).result()
        for number in range(n_slates):
            more: dict[str, Any] = {}
            if number % 4 == 0:
                more = {"categorical": {"brand": ["x", None, "Zoë", "🦉"]}, "context": {"hour": number, "city": "Bern"}}
            if number % 5 == 0:
                more |= {"fallback": "late", "titles": ["A lamp", None, "", "ç"]}
            if number % 6 == 0:
                more |= {"draft": Draft("arm-0", "arm-1", "abb"), "model": "f00d"}
            log.add_impression(impression(number, at=60.0 * number / 7, **more)).result()
        for number in range(0, n_slates, 3):
            log.add_click(f"slate-{number}", "item-1", number + 0.25).result()


def execute(url: str, sql: str) -> None:
    connection = backend_for(url).connect()
    with closing(connection), connection.transaction():
        if "sqlite" in type(connection).__module__:
            connection.rows("PRAGMA defer_foreign_keys = ON")
        connection.rows(sql)


def test_a_whole_log_has_no_damage(url: str) -> None:
    write_log(url)
    assert check_log(backend_for(url, create=False)) == LogReport(slates=150, clicks=50)
    assert seq2slate("log", "check", url).out.endswith(": 150 slates, 50 clicks: no damage\n")
    with open_log(url) as log:
        assert log.prune(100.0) == 12
    assert check_log(backend_for(url)) == LogReport(slates=138, clicks=46)


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("UPDATE impressions SET unit = 'unit-x' WHERE slate_id = 'slate-7'", "slate 'slate-7': the row does not"),
        ("UPDATE impressions SET shown = '[0,1,2]' WHERE slate_id = 'slate-7'", "slate 'slate-7'"),
        ("UPDATE impressions SET at = at + 1 WHERE slate_id = 'slate-7'", "slate 'slate-7'"),
        ("UPDATE impressions SET context = NULL WHERE slate_id = 'slate-8'", "slate 'slate-8'"),
        ("UPDATE impressions SET sequence = 5 WHERE slate_id = 'slate-7'", "2 slates have the number 5"),
        ("UPDATE clicks SET at = 9 WHERE slate_id = 'slate-9'", "slate 'slate-9': its click on item 1"),
        ("UPDATE definitions SET control = 'arm-1'", "experiment 'experiment': its definition"),
        ("UPDATE column_sets SET columns = REPLACE(columns, 'f1', 'f9')", "the names do not match their hash"),
        ("UPDATE commit_sequence SET last = 100", "at least 150"),
        ("DELETE FROM impressions WHERE slate_id = 'slate-7'", "150 slates are counted, 149 there and 0 pruned"),
        ("DELETE FROM clicks WHERE slate_id = 'slate-9'", "'unit-2': the count differs from that of the rows by cli"),
        ("UPDATE unit_counts SET clicks = clicks + 1 WHERE unit = 'unit-3'", "unit 'unit-3': the count differs"),
        ("UPDATE slot_counts SET ends = 0 WHERE position = 2", "position 2: the count differs"),
        ("UPDATE minute_counts SET clicks = 7 WHERE minute = 11", "minute 11, arm"),
        ("DELETE FROM minute_counts WHERE minute = 11", "minute 11, arm"),
        ("UPDATE fallback_counts SET impressions = 1", "reason 'late'"),
        ("UPDATE arm_counts SET clicks_squared = 1 WHERE arm = 'arm-1'", "arm 'arm-1': the count differs"),
        ("UPDATE draft_counts SET units = 0", "draft_counts, experiment 'experiment', arm_a 'arm-0'"),
        ("UPDATE unit_credits SET b_clicks = 40 WHERE unit = 'unit-3'", "unit_credits"),
        ("UPDATE pruned SET slates = 3", "150 there and 3 pruned"),
    ],
)
def test_a_changed_row_is_named(url: str, sql: str, named: str) -> None:
    write_log(url)
    execute(url, sql)
    report = check_log(backend_for(url))
    assert report.damaged
    assert any(named in problem for problem in report.problems), report.problems
    result = seq2slate("log", "check", url, code=1)
    assert named in result.out
    assert "restore a backup" in result.out


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE unit_counts SET clicks = clicks + 1 WHERE unit = 'unit-3'",
        "UPDATE minute_counts SET clicks = 7 WHERE minute = 11",
        "UPDATE slot_counts SET ends = 0 WHERE position = 2",
        "UPDATE slot_counts SET clicks = clicks + 1 WHERE position = 1",
        "UPDATE fallback_counts SET impressions = 90",
        "UPDATE arm_counts SET impressions_squared = 1",
    ],
)
def test_counts_of_a_pruned_log_still_add_up(url: str, sql: str) -> None:
    write_log(url)
    with open_log(url) as log:
        log.prune(500.0)
    assert not check_log(backend_for(url)).damaged
    execute(url, sql)
    assert check_log(backend_for(url)).damaged


def test_rows_of_an_earlier_version_are_unchecked(url: str) -> None:
    write_log(url)
    execute(url, "UPDATE impressions SET checksum = NULL WHERE sequence <= 10")
    execute(url, "UPDATE clicks SET checksum = NULL")
    assert check_log(backend_for(url)) == LogReport(slates=150, clicks=50, unchecked=60)
    assert "no damage; 60 rows of an earlier version" in seq2slate("log", "check", url).out
    execute(url, "UPDATE impressions SET shown = '[9]' WHERE sequence = 3")
    assert any("cannot be read" in problem for problem in check_log(backend_for(url)).problems)


def test_what_is_no_log_is_refused(url: str, tmp_path: Path) -> None:
    assert "no such file" in seq2slate("log", "check", tmp_path / "missing.db", code=2).err
    open_log(url).close()
    execute(url, f"DELETE FROM seq2slate_migrations WHERE number = {len(MIGRATIONS)}")
    with pytest.raises(DataError, match="another version of seq2slate"):
        check_log(backend_for(url))
    execute(url, "DROP TABLE seq2slate_migrations")
    with pytest.raises(DataError, match="holds no log of seq2slate, or is damaged"):
        check_log(backend_for(url))


def test_a_row_that_cannot_be_read_does_not_hide_others(tmp_path: Path) -> None:
    write_log(str(tmp_path / "log.db"))
    with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as raw:
        raw.execute("UPDATE impressions SET items = CAST(X'5BFF5D' AS TEXT) WHERE slate_id IN ('slate-7', 'slate-70')")
    report = check_log(SqliteBackend(tmp_path / "log.db"))
    assert [problem.split(":")[0] for problem in report.problems] == [
        "impressions (8, 'slate-7')",
        "impressions (71, 'slate-70')",
        "148 of 150 slates can be found; others cannot, or belong to no slate",
    ]


def test_a_log_is_checked_while_it_is_written(url: str) -> None:
    with open_log(url) as log:
        for number in range(300):
            log.add_impression(impression(number))
            log.add_click(f"slate-{number}", "item-0", 1.0)
            if number % 50 == 0:
                assert not check_log(backend_for(url, create=False)).damaged


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    def peak(n_slates: int) -> int:
        path = tmp_path / f"{n_slates}.db"
        with open_log(path, capacity=n_slates) as log:
            for number in range(n_slates):
                log.add_impression(impression(number, n_items=20, n_features=30, unit=f"unit-{number}"))
        with measured_memory() as held_and_peak:
            check_log(SqliteBackend(path))
            return held_and_peak()[1]

    assert peak(8000) < 1.2 * peak(2000)


# Flipped bytes


def test_a_damaged_schema_is_an_error_in_words(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    write_log(str(path))
    path.write_bytes(path.read_bytes().replace(b"key TEXT PRIMARY", b"key \xe9EXT(RIMARY"))
    assert seq2slate("log", "check", path, code=2).err.startswith(f"error: {path}: ")


def everything(path: Path) -> str:
    """What readers return, as text; the error where they cannot."""
    log = LogReader(SqliteBackend(path, create=False))
    found: list[Any] = []
    for read in (
        lambda: [_plain(one) for one in log.impressions()],
        lambda: [_plain(one) for page in log.pages(ImpressionFilter(after=70)) for one in page],
        lambda: log.experiments(),
        lambda: asdict(log.counts("experiment")),
        lambda: log.minutes("experiment", 0),
        lambda: log.definition("experiment"),
        lambda: log.column_sets(ImpressionFilter()),
        lambda: [log.get(f"slate-{number}") is None for number in range(151)],
    ):
        try:
            found.append(repr(read()))
        except Exception as error:
            found.append(f"error: {error}")
    return "\n".join(found)


def _plain(one: Impression) -> dict[str, Any]:
    return vars(one) | {"features": one.features.tolist()}


Damage = Callable[[bytearray, random.Random], None]


def flip_a_bit(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def lose_a_page(data: bytearray, rng: random.Random) -> None:
    page = PAGE * rng.randrange(len(data) // PAGE)
    data[page : page + PAGE] = bytes(PAGE)


def swap_pages(data: bytearray, rng: random.Random) -> None:
    one, other = (PAGE * page for page in rng.sample(range(len(data) // PAGE), 2))
    data[one : one + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[one : one + PAGE]


def damages(tmp_path: Path, n_damages: int, damage: Damage = flip_a_bit) -> dict[str, int]:
    """Damage a real log in random places, and count what sees it; every change of what is read must be seen."""
    whole, damaged = tmp_path / "whole.db", tmp_path / "damaged.db"
    write_log(str(whole))
    data, expected, rng = whole.read_bytes(), everything(whole), random.Random(0)
    counts = {"read": 0, "structure": 0, "checksums and counts": 0}
    for number in range(n_damages):
        changed = bytearray(data)
        damage(changed, rng)
        damaged.write_bytes(changed)
        for suffix in ("-wal", "-shm"):
            damaged.with_name(f"damaged.db{suffix}").unlink(missing_ok=True)
        differs = everything(damaged) != expected
        try:
            problems = check_log(SqliteBackend(damaged, create=False)).problems
        except (DataError, LogError) as error:
            problems = [f"structure: {error}"]
        assert problems or not differs, f"damage {number}: what is read differs, and nothing was found"
        counts["read"] += differs
        is_structure = any(problem.startswith("structure") for problem in problems)
        counts["structure"] += differs and is_structure
        counts["checksums and counts"] += differs and not is_structure
    return counts


def test_flipped_bytes_are_found(tmp_path: Path) -> None:
    counts = damages(tmp_path, 40)
    assert counts["read"] >= 10


@pytest.mark.slow
def test_many_flipped_bytes_are_found(tmp_path: Path) -> None:
    counts = damages(tmp_path, 200)
    print(counts)
    assert counts["structure"] > 0 < counts["checksums and counts"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", [lose_a_page, swap_pages])
def test_lost_and_swapped_pages_are_found(tmp_path: Path, damage: Damage) -> None:
    counts = damages(tmp_path, 60, damage)
    print(counts)
    assert counts["read"] >= 20


# The cost


def test_the_checksum_covers_every_column_and_costs_little() -> None:
    new = NewImpression.of(impression(1, n_items=20, n_features=20))
    row = new.row
    sums = {impression_checksum(row, 1), impression_checksum(row, 2)}
    for column, value in enumerate(row):
        changed = value + (b"x" if isinstance(value, bytes) else "x" if isinstance(value, str) else 1) if value else "x"
        sums.add(impression_checksum((*row[:column], changed, *row[column + 1 :]), 1))
    assert len(sums) == len(row) + 2

    def seconds(function: Any) -> float:
        started = time.process_time()
        for _ in range(2000):
            function()
        return time.process_time() - started

    make = min(seconds(lambda: NewImpression.of(new.impression).row) for _ in range(3))
    assert min(seconds(lambda: impression_checksum(row, 1)) for _ in range(3)) < make / 2
