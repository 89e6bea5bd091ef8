"""Files of lists: formats by suffix, several files as one, splits, and writing that is whole or not at all."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seq2slate.data import jsonl, layouts, letor
from seq2slate.data.files import FORMATS, FileFormat, is_split_folder, read, read_split, write, write_split
from seq2slate.data.lists import ItemLists, Split
from seq2slate.data.text import AnyPath
from seq2slate.errors import DataError, UsageError
from tests.random_lists import assert_same_lists

SUFFIXES = [
    ".txt",
    ".letor",
    ".svm",
    ".svmlight",
    ".dat",
    ".txt.gz",
    ".parquet",
    ".jsonl",
    ".ndjson",
    ".jsonl.gz",
    ".csv",
    ".csv.gz",
    ".tsv",
    ".TXT",
]


def some_lists(prefix: str = "q", n_features: int = 2, n_lists: int = 3) -> ItemLists:
    return ItemLists(
        np.arange(2.0 * n_lists * n_features).reshape(2 * n_lists, n_features),
        np.arange(0, 2 * n_lists + 1, 2),
        labels=np.arange(2 * n_lists) % 3,
        list_ids=[f"{prefix}{q}" for q in range(n_lists)],
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_suffix_names_the_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"lists{suffix}"
    write(some_lists(), path)
    assert_same_lists(read(path), some_lists())
    starts_with = path.read_bytes()[:2]
    assert (starts_with == b"\x1f\x8b") == suffix.endswith(".gz")
    assert (starts_with == b"PA") == (suffix == ".parquet")


def test_a_format_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "lists.data"
    (tmp_path / "lists.txt").write_text("1 qid:1 1:2\n")
    (tmp_path / "lists.txt").rename(path)
    assert read(path, format="letor").n_items == 1
    with pytest.raises(DataError, match=r"lists.data: unknown suffix; expected one of .txt"):
        read(path)
    with pytest.raises(UsageError, match="no format 'xml'; there are letor, parquet, jsonl, csv"):
        read(path, format="xml")


@pytest.mark.parametrize("name", ["lists.xml", "lists", "lists.parquet.gz", "lists.gz"])
def test_an_unknown_suffix_is_an_error_in_both_directions(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"{name}: unknown suffix"):
        write(some_lists(), tmp_path / name)
    (tmp_path / name).write_text("")
    with pytest.raises(DataError, match=f"{name}: unknown suffix"):
        read(tmp_path / name)


def test_only_parquet_has_layouts(tmp_path: Path) -> None:
    write(some_lists(), tmp_path / "items.parquet", layout="items")
    assert_same_lists(read(tmp_path / "items.parquet"), some_lists())
    with pytest.raises(UsageError, match=r"needs a \.parquet or \.csv or \.tsv file"):
        write(some_lists(), tmp_path / "items.jsonl", layout="items")


def test_a_new_format_needs_a_reader_a_writer_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy keeps labels only, one list a line."""

    def read_labels(path: AnyPath) -> ItemLists:
        lines = [line.split(",") for line in Path(path).read_text().splitlines()]
        labels = [float(label) for line in lines for label in line]
        return ItemLists(np.zeros((len(labels), 1)), np.cumsum([0, *map(len, lines)]), labels)

    def write_labels(lists: ItemLists, path: AnyPath) -> None:
        lines = [",".join(map(str, one.batch().labels[0].tolist())) for one in lists]
        Path(path).write_text("\n".join(lines))

    monkeypatch.setitem(FORMATS, "labels", FileFormat((".labels",), read_labels, write_labels))
    write(some_lists(), tmp_path / "train.labels")
    np.testing.assert_array_equal(read(tmp_path / "train.labels").labels, some_lists().labels)
    write(some_lists(), tmp_path / "vali.labels")
    write(some_lists(), tmp_path / "test.labels")
    assert [len(part) for part in read_split(tmp_path)] == [3, 3, 3]
    with pytest.raises(UsageError, match=r"layout 'items' needs a \.parquet or"):
        write(some_lists(), tmp_path / "train.labels", layout="items")


# Several files


def test_patterns_sequences_and_folders_are_read_as_one(tmp_path: Path) -> None:
    parts = [some_lists(prefix) for prefix in "abc"]
    for number, part in enumerate(parts):
        write(part, tmp_path / f"part{number}.parquet")
    together = ItemLists.concat(parts)
    assert_same_lists(read(tmp_path), together)
    assert_same_lists(read(tmp_path / "part*.parquet"), together)
    assert_same_lists(read(str(tmp_path / "part[0-2].parquet")), together)
    assert_same_lists(read([tmp_path / f"part{number}.parquet" for number in range(3)]), together)


def test_letor_files_get_the_width_of_the_widest_and_comments_if_any_has_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 qid:1 1:0.5\n")
    (tmp_path / "b.txt").write_text("0 qid:2 3:0.5 # seen\n")
    lists = read([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert lists.features.tolist() == [[0.5, 0, 0], [0, 0, 0.5]]
    assert lists.categorical["comment"].to_pylist() == [None, "seen"]


def test_parquet_files_must_have_the_same_width(tmp_path: Path) -> None:
    write(some_lists("a", n_features=2), tmp_path / "a.parquet")
    write(some_lists("b", n_features=3), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b.parquet does not have the columns of .*a.parquet: 3 features instead of 2"):
        read(tmp_path)


def test_a_list_that_stands_in_two_files_is_an_error_that_names_both(tmp_path: Path) -> None:
    write(some_lists("a"), tmp_path / "a.txt")
    write(ItemLists.concat([some_lists("b"), some_lists("a")[1:2]]), tmp_path / "b.txt")
    with pytest.raises(DataError, match=r"list 'a1' stands in .*a.txt and in .*b.txt"):
        read(tmp_path / "?.txt")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("none.txt", "none.txt: no such file"),
        ("none*.txt", "no file matches"),
        (".", "no Parquet files in this folder; name text files by a pattern"),
    ],
)
def test_what_is_not_there_is_an_error(tmp_path: Path, what: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / what)


def test_no_files_are_an_error() -> None:
    with pytest.raises(UsageError, match="no files"):
        read([])


# Splits


def write_fold(folder: Path, names: list[str]) -> None:
    """LETOR files of 2, 3 and 4 lists, each wider than the one before."""
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        write(some_lists(n_features=number + 1, n_lists=number + 2), folder / name)


@pytest.mark.parametrize(
    "names",
    [
        ["train.txt", "vali.txt", "test.txt"],
        ["train.txt.gz", "vali.txt.gz", "test.txt.gz"],
        ["set1.train.txt", "set1.valid.txt", "set1.test.txt"],
        ["set2.train.txt", "set2.valid.txt", "set2.test.txt"],
        ["train.txt", "valid.txt.gz", "test.dat"],
    ],
)
def test_a_fold_folder_is_a_split_with_one_width(tmp_path: Path, names: list[str]) -> None:
    write_fold(tmp_path, names)
    (tmp_path / "README.md").write_text("not data")
    assert is_split_folder(tmp_path)
    split = read_split(tmp_path)
    assert [len(part) for part in split] == [2, 3, 4]
    assert [part.n_features for part in split] == [3, 3, 3]
    assert split.train.features[:, 0].tolist() == [0, 1, 2, 3]
    assert not split.train.features[:, 1:].any()
    assert split.train.feature_names == split.test.feature_names == ("f1", "f2", "f3")


def test_a_prefix_chooses_and_set1_comes_first(tmp_path: Path) -> None:
    write_fold(tmp_path, [f"set2.{part}.txt" for part in ("test", "train", "valid")])
    write_fold(tmp_path, [f"set1.{part}.txt" for part in ("train", "valid", "test")])
    assert len(read_split(tmp_path).train) == 2
    assert len(read_split(tmp_path, prefix="set2").train) == 3
    with pytest.raises(DataError, match=r"which split\? The names begin with 'set1', 'set2'"):
        read_split(tmp_path, prefix="set3")


@pytest.mark.parametrize(("valid", "layout"), [("valid", "lists"), ("vali", "items")])
def test_a_split_becomes_three_parquet_files(tmp_path: Path, valid: str, layout: Any) -> None:
    split = Split(some_lists("a"), some_lists("b"), some_lists("c"))
    write_split(split, tmp_path / "made", layout=layout)
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "test.parquet",
        "train.parquet",
        "valid.parquet",
    ]
    (tmp_path / "made/valid.parquet").rename(tmp_path / f"made/{valid}.parquet")
    for actual, expected in zip(read_split(tmp_path / "made"), split, strict=True):
        assert_same_lists(actual, expected)
    with pytest.raises(DataError, match="the folder holds a split"):
        read(tmp_path / "made")


def test_a_folder_that_is_no_split_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none: no such folder"):
        read_split(tmp_path / "none")
    with pytest.raises(DataError, match=r"no data here; expected train, valid \(or vali\) and test"):
        read_split(tmp_path)
    assert not is_split_folder(tmp_path)
    write(some_lists(), tmp_path / "train.txt")
    write(some_lists(), tmp_path / "test.txt")
    with pytest.raises(DataError, match=r"no valid file beside test.txt, train.txt"):
        read_split(tmp_path)
    assert not is_split_folder(tmp_path)
    write(some_lists(), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"both train.parquet and train.txt look like the train part"):
        read_split(tmp_path)


# Whole or not at all


class FullDiskError(Exception):
    """What the tests break the writers with."""


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".jsonl", ".parquet"])
@pytest.mark.parametrize("has_old_file", [False, True])
def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, suffix: str, has_old_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"lists{suffix}"
    if has_old_file:
        write(some_lists("old"), path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}

    def fail_at_second(function: Any) -> Any:
        calls: list[None] = []

        def failing(*args: Any, **options: Any) -> Any:
            calls.append(None)
            if len(calls) > 1:
                raise FullDiskError
            return function(*args, **options)

        return failing

    monkeypatch.setattr(letor, "_ROWS_AT_ONCE", 2)
    monkeypatch.setattr(letor, "_pairs", fail_at_second(letor._pairs))
    monkeypatch.setattr(jsonl, "_LISTS_AT_ONCE", 1)
    monkeypatch.setattr(jsonl, "_with_short_numerals", fail_at_second(jsonl._with_short_numerals))
    monkeypatch.setattr(layouts, "_CELLS_PER_SLICE", 1)
    monkeypatch.setattr(layouts, "_list_rows", fail_at_second(layouts._list_rows))
    with pytest.raises(FullDiskError):
        write(some_lists("new"), path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


WRITE_FOREVER = """
import sys, numpy as np
from seq2slate.data.files import write
from seq2slate.data.lists import ItemLists
for number in range(10**9):
    lists = ItemLists(np.full((20_000, 5), number % 1000), np.arange(0, 20_001, 20), labels=np.full(20_000, number % 5))
    write(lists, sys.argv[1])
    print(number, flush=True)
"""


@pytest.mark.parametrize("suffix", [".parquet", ".txt.gz"])
def test_a_killed_writer_never_leaves_half_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"lists{suffix}"
    for wait in (0.0, 0.05):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOREVER, str(path)],
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert writer.stdout is not None
        with writer.stdout:
            assert writer.stdout.readline()  # the first file is there; kill it in the middle of a later one
            time.sleep(wait)
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        lists = read(path)
        assert len(lists) == 1000
        assert np.unique(lists.features).size == 1  # one write, not a mixture of two


def test_gzip_files_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("a.txt.gz", "b.txt.gz"):
        write(some_lists(), tmp_path / name)
    assert (tmp_path / "a.txt.gz").read_bytes() == (tmp_path / "b.txt.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.txt.gz").read_bytes()).startswith(b"0 qid:q0 1:0 2:1\n1 qid:q0 1:2 2:3\n")
