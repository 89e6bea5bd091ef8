"""Exports of the log: every acknowledged slate exactly once, and no odd request gets in the way."""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest

from seq2slate.data.files import read
from seq2slate.errors import DataError, DataWarning
from seq2slate.log import schema, writer
from seq2slate.log.export import export, sequence_of
from seq2slate.log.impression_log import ImpressionLog, open_log
from seq2slate.log.reading import ImpressionFilter
from tests.logs import fresh_database, impression
from tests.test_cli import seq2slate


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


def ids_in(path: Path) -> list[str]:
    found: list[str] = pq.read_table(path, columns=["list_id"])["list_id"].to_pylist()
    return found


# Odd columns


@pytest.mark.parametrize(
    ("odd", "warning"),
    [
        ({"context": {"hour": 5, "evil": 1.0}}, r"context columns that few .* 'evil' \(in 1\)"),
        ({"context": {"hour": "five"}}, "context 'hour' is text, not a number, in 1 slates"),
        ({"context": {"hour": 5, "arm": "left"}}, r"reserved names, are left out: 'arm' \(in 1\)"),
        ({"context": {"hour": 5, "brand": "left"}}, r"left out: 'brand' \(in 1\)"),
        ({"context": None}, None),
        ({"categorical": {"brand": list("wxyz"), "evil": list("abcd")}}, r"text columns that few .* 'evil' \(in 1\)"),
        ({"categorical": {"brand": list("wxyz"), "unit": list("abcd")}}, r"reserved names.*'unit' \(in 1\)"),
        ({"categorical": {"brand": list("wxyz"), "item_id": list("abcd")}}, r"'item_id' \(in 1\)"),
        ({"categorical": {}}, None),
    ],
)
def test_one_odd_request_does_not_make_an_export_fail(
    log: ImpressionLog, tmp_path: Path, odd: dict[str, Any], warning: str | None
) -> None:
    usual: dict[str, Any] = {"context": {"hour": 5}, "categorical": {"brand": list("wxyz")}}
    for number in range(20):
        log.add_impression(impression(number, **(usual | (odd if number == 7 else {})))).result()
    path = tmp_path / "log.parquet"
    if warning is None:
        assert export(log, path) == 20
    else:
        with pytest.warns(DataWarning, match=warning):
            assert export(log, path) == 20
    lists = read(path)
    assert (list(lists.categorical), list(lists.context)) == (["brand"], ["hour"])
    assert lists.list_ids.to_pylist() == [f"slate-{number}" for number in range(20)]


def test_a_column_that_many_slates_have_is_exported(log: ImpressionLog, tmp_path: Path) -> None:
    """With null where it is missing: in a tenth of the slates or more."""
    for number in range(20):
        more: dict[str, Any] = {"context": {"city": "Bern"}} if number < 2 else {}
        log.add_impression(impression(number, **more)).result()
    export(log, tmp_path / "log.parquet")
    assert read(tmp_path / "log.parquet").context["city"].to_pylist() == ["Bern"] * 2 + [None] * 18


def test_ids_as_a_category_are_the_ids(log: ImpressionLog, tmp_path: Path) -> None:
    for number in range(4):
        one = impression(number)
        names = list(one.items) if number else ["another", "an", "x", "y"]
        log.add_impression(replace(one, categorical={"item_id": names} if number < 3 else {})).result()
    assert export(log, tmp_path / "log.parquet") == 4
    lists = read(tmp_path / "log.parquet")
    assert lists.categorical["item_id"].to_pylist() == lists.item_ids.to_pylist()


def test_a_warning_names_few_columns_and_cuts_long_names(log: ImpressionLog, tmp_path: Path) -> None:
    for number in range(20):
        context = {f"{'x' * 300}{column}": 1.0 for column in range(50)} if number == 3 else None
        log.add_impression(impression(number, context=context)).result()
    with pytest.warns(DataWarning, match=r"'x{80}…' \(in 1\), .* and 45 more") as told:
        export(log, tmp_path / "log.parquet")
    assert len(str(told[0].message)) < 1000


def test_slates_from_the_future_are_exported_and_told(log: ImpressionLog, tmp_path: Path) -> None:
    log.add_impression(impression(1)).result()
    log.add_impression(impression(2, at=time.time() + 3600)).result()
    with pytest.warns(DataWarning, match="1 slates are from the future: check the clocks"):
        assert export(log, tmp_path / "log.parquet") == 2
    assert export(log, tmp_path / "now.parquet", ImpressionFilter(until=time.time())) == 1


def test_the_command_tells_what_was_left_out(tmp_path: Path) -> None:
    with open_log(tmp_path / "log.db") as log:
        for number in range(20):
            log.add_impression(impression(number, context={"evil": 1.0} if number == 3 else None)).result()
    command = [
        sys.executable,
        "-m",
        "seq2slate.cli",
        "log",
        "export",
        str(tmp_path / "log.db"),
        str(tmp_path / "x.parquet"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "x.parquet: 20 lists" in done.stdout) == (0, True)
    assert done.stderr.startswith("warning: context columns that few of the 20 slates have")


# Exactly once


def test_a_slate_that_was_committed_late_is_in_the_next_export(log: ImpressionLog, tmp_path: Path) -> None:
    log.add_impression(impression(1, at=100.0)).result()
    assert export(log, tmp_path / "1.parquet") == 1
    log.add_impression(impression(2, at=50.0)).result()  # shown before, committed after
    assert export(log, tmp_path / "2.parquet", ImpressionFilter(after=sequence_of(tmp_path / "1.parquet"))) == 1
    assert ids_in(tmp_path / "2.parquet") == ["slate-2"]
    log.add_impression(impression(1, at=100.0)).result()  # sent again: it is there
    with pytest.raises(DataError, match="no impressions to export"):
        export(log, tmp_path / "3.parquet", ImpressionFilter(after=sequence_of(tmp_path / "2.parquet")))
    with pytest.raises(DataError, match="commit 99 was exported, and 3 is the last: is it another log"):
        export(log, tmp_path / "3.parquet", ImpressionFilter(after=99))


def test_pages_of_an_export_since_another_hold_every_slate_once(log: ImpressionLog, tmp_path: Path) -> None:
    for number in range(40):
        log.add_impression(impression(number, at=float(-number % 7))).result()
    for after in (0, 10):
        export(log, tmp_path / "log.parquet", ImpressionFilter(after=after), batch=7)
        assert ids_in(tmp_path / "log.parquet") == [f"slate-{number}" for number in range(after, 40)]


def test_the_command_goes_on_from_an_earlier_export(url: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    with open_log(url) as log:
        log.add_impression(impression(1, at=100.0)).result()
        assert "1 lists" in seq2slate("log", "export", url, first).out
        log.add_impression(impression(2, at=50.0)).result()
        assert "1 lists" in seq2slate("log", "export", url, second, "--since", first).out
    assert (ids_in(first), ids_in(second)) == (["slate-1"], ["slate-2"])
    assert "no such" in seq2slate("log", "export", url, second, "--since", tmp_path / "x.parquet", code=2).err.lower()
    pq.write_table(pq.read_table(first).replace_schema_metadata({}), first)
    assert "not an export of a log" in seq2slate("log", "export", url, second, "--since", first, code=2).err


def test_a_file_and_a_time_split_an_export_where_the_features_changed(url: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.parquet" for number in range(4)]
    with open_log(url) as log:
        log.add_impression(impression(0, at=1.0)).result()
        seq2slate("log", "export", url, files[0])
        for number in range(1, 5):
            log.add_impression(impression(number, at=10.0 * number, n_features=3 if number < 3 else 5)).result()
    since = ("--since", files[0])
    told = seq2slate("log", "export", url, files[1], *since, code=2).err
    assert "5 features from 1970-01-01T00:00:30" in told
    seq2slate("log", "export", url, files[1], *since, "--until", 30)
    seq2slate("log", "export", url, files[2], *since, "--since", 30)
    assert [ids_in(path) for path in files[:3]] == [["slate-0"], ["slate-1", "slate-2"], ["slate-3", "slate-4"]]
    assert "up to its end" in seq2slate("log", "export", url, files[3], "--since", files[1], code=2).err
    assert "no impressions" in seq2slate("log", "export", url, files[3], "--since", files[2], code=2).err


def test_a_transaction_that_is_late_is_in_the_next_export(url: str, tmp_path: Path) -> None:
    """One writer has begun and not committed when an export runs; others cannot commit before it."""
    begun, go_on = threading.Event(), threading.Event()
    real = writer._Tally.save

    def slow(tally: Any, connection: Any) -> None:
        real(tally, connection)
        if threading.current_thread() is late._writer._thread:
            begun.set()
            assert go_on.wait(30)

    with open_log(url) as late, open_log(url) as other:
        other.add_impression(impression(0)).result()
        with patch.object(writer._Tally, "save", slow):
            first = late.add_impression(impression(1))
            assert begun.wait(30)
            second = other.add_impression(impression(2))
            time.sleep(0.2)
            export(other, tmp_path / "0.parquet")
            go_on.set()
            first.result(), second.result()
        export(other, tmp_path / "1.parquet", ImpressionFilter(after=sequence_of(tmp_path / "0.parquet")))
    assert sorted(ids_in(tmp_path / "0.parquet") + ids_in(tmp_path / "1.parquet")) == [f"slate-{n}" for n in range(3)]


@pytest.mark.slow
def test_exports_under_concurrent_writers_have_every_slate_exactly_once(url: str, tmp_path: Path) -> None:
    """Four processes write for some seconds; exports follow each other, each since the one before."""
    open_log(url).close()
    command = [sys.executable, "-m", "tests.logs", url]
    writers = [subprocess.Popen([*command, f"w{n}"], stdout=subprocess.PIPE) for n in range(4)]
    acknowledged: list[bytes] = []
    readers = [threading.Thread(target=acknowledged.extend, args=[one.stdout]) for one in writers]
    for reader in readers:
        reader.start()
    exported: list[Path] = []
    with open_log(url) as log:
        until = time.monotonic() + 8
        while time.monotonic() < until:
            export_next(log, tmp_path, exported)
        for one, reader in zip(writers, readers, strict=True):
            one.kill()
            one.wait()
            reader.join()
            assert one.stdout is not None
            one.stdout.close()
        export_next(log, tmp_path, exported)
        last = log.count(ImpressionFilter())
    found = Counter(slate for path in exported for slate in ids_in(path))
    shown = {line.split()[1].decode() for line in acknowledged if line.startswith(b"s ")}
    assert len(exported) > 3
    assert len(shown) > 100
    assert shown <= set(found)
    assert set(found.values()) == {1}
    assert len(found) == last


def export_next(log: ImpressionLog, folder: Path, exported: list[Path]) -> None:
    path = folder / f"{len(exported)}.parquet"
    try:
        export(log, path, ImpressionFilter(after=sequence_of(exported[-1])) if exported else None)
        exported.append(path)
    except DataError as error:
        if "no impressions" not in str(error):
            raise


def test_a_log_of_the_version_before_is_exported_whole_and_then_since(url: str, tmp_path: Path) -> None:
    names = '{"features": ["price"], "categorical": []}'
    features = "ZEROBLOB(8)" if "postgresql" not in url else r"'\x0000000000000000'"
    rows = [f"INSERT INTO column_sets (key, columns) VALUES ('key', '{names}')"]
    rows += [
        "INSERT INTO impressions (slate_id, at, unit, experiment, arm, items, shown, columns, features, latency_ms) "
        f"""VALUES ('old-{number}', {number}, 'u', 'autumn', 'base', '["a","b"]', '[1]', 'key', {features}, 1)"""
        for number in range(5)
    ]
    with patch.object(schema, "MIGRATIONS", (*schema.MIGRATIONS[:2], (*schema.MIGRATIONS[2], *rows))):
        open_log(url).close()
    new = replace(impression(5, n_features=1), feature_names=("price",))
    with open_log(url) as log:
        assert export(log, tmp_path / "old.parquet", batch=2) == 5
        log.add_impression(new).result()
        assert export(log, tmp_path / "all.parquet", batch=2) == 6
        assert export(log, tmp_path / "new.parquet", ImpressionFilter(after=sequence_of(tmp_path / "old.parquet"))) == 1
    assert ids_in(tmp_path / "new.parquet") == ["slate-5"]
