"""LETOR text: what it can hold comes back exactly, and what is wrong is named by file and line."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seq2slate.data.impressions import Impressions
from seq2slate.data.letor import read_letor, write_letor
from seq2slate.data.lists import ItemLists, offsets_from_lengths
from seq2slate.errors import DataError
from tests.memory import measured_memory
from tests.random_lists import PLAIN_TEXT, any_float32, assert_same_lists

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
REMARKS = [None, "inc = 1 prob = 0.08", "docid = 7", "rel=1.6 http://x.org/a#b", "é", "#"]


@st.composite
def letor_lists(draw: st.DrawFn) -> ItemLists:
    """Lists that LETOR text can hold."""
    lengths = draw(st.lists(st.sampled_from([1, 1, 2, 40]), min_size=1, max_size=6))
    n_items, n_features = sum(lengths), draw(st.integers(0, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    remarks = [draw(st.sampled_from(REMARKS)) for _ in range(min(n_items, 5))] * n_items
    has_comments = draw(st.booleans()) and any(remarks[:n_items])
    names_items = draw(st.booleans())
    return ItemLists(
        features=any_float32(rng, n_items * n_features).reshape(n_items, n_features),
        offsets=offsets_from_lengths(np.array(lengths)),
        labels=abs(any_float32(rng, n_items)),
        list_ids=[f"{rng.choice(PLAIN_TEXT)}{q}" for q in range(len(lengths))],
        item_ids=[f"{i}{rng.choice(PLAIN_TEXT)}" for i in range(n_items)] if names_items else None,
        categorical={"comment": remarks[:n_items]} if has_comments else {},
    )


@SAME_FOLDER
@given(letor_lists(), st.sampled_from(["lists.txt", "lists.txt.gz"]), st.sampled_from([1, 100, 2**24]))
def test_a_file_loses_nothing_whatever_the_chunks(tmp_path: Path, lists: ItemLists, name: str, chunk: int) -> None:
    write_letor(lists, tmp_path / name)
    assert_same_lists(read_letor(tmp_path / name, chunk_bytes=chunk), lists)


def lists_of(tmp_path: Path, text: str, **options: Any) -> ItemLists:
    path = tmp_path / "data.txt"
    path.write_text(text)
    return read_letor(path, **options)


def test_a_line_is_written_as_ranklib_wants_it(tmp_path: Path) -> None:
    lists = ItemLists(np.array([[0.5, 0.0]]), [0, 1], labels=[2], list_ids=["7"], item_ids=["GX1"])
    write_letor(lists, tmp_path / "data.txt")
    assert (tmp_path / "data.txt").read_text() == "2 qid:7 1:0.5 2:0 # docid = GX1\n"


def test_comments_name_items_and_the_rest_is_kept(tmp_path: Path) -> None:
    lists = lists_of(tmp_path, "0 qid:1 1:1 #docid = GX1 inc = 1 prob = 0.5\n1 qid:1 1:2 # item_id = GX2\n")
    assert lists.item_ids.to_pylist() == ["GX1", "GX2"]
    assert lists.categorical["comment"].to_pylist() == ["inc = 1 prob = 0.5", None]
    lists = lists_of(tmp_path, "0 qid:1 1:1 # docid = GX1\n")
    assert lists.categorical == {}
    lists = lists_of(tmp_path, "0 qid:1 1:1 # rel=1.6 http://x.org\n0 qid:1 1:1\n")
    assert lists.item_ids.to_pylist() == ["0", "1"]
    assert lists.categorical["comment"].to_pylist() == ["rel=1.6 http://x.org", None]


def test_the_width_is_the_highest_index_unless_it_is_given(tmp_path: Path) -> None:
    text = "0 qid:1 1:1\n0 qid:1 2:1 5:3\n"
    assert lists_of(tmp_path, text).features.tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 3]]
    assert lists_of(tmp_path, text, n_features=7).n_features == 7
    assert lists_of(tmp_path, "0 qid:1\n").n_features == 0


def test_blank_lines_comments_windows_line_ends_and_a_missing_last_one_are_fine(tmp_path: Path) -> None:
    text = "\ufeff# a head line\n\n0 qid:a 1:1\r\n   \n 1\tqid:a  1:2 \n# between\n0 qid:b 1:3"
    for chunk_bytes in (1, 2**24):
        lists = lists_of(tmp_path, text, chunk_bytes=chunk_bytes)
        assert lists.list_ids.to_pylist() == ["a", "b"]
        assert lists.features[:, 0].tolist() == [1, 2, 3]
        assert lists.labels is not None
        assert lists.labels.tolist() == [0, 1, 0]


def test_a_comment_that_is_not_utf8_does_not_stop_the_reader(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_bytes(b"0 qid:1 1:1 # caf\xe9\n")
    assert read_letor(tmp_path / "data.txt").categorical["comment"].to_pylist() == [r"caf\xe9"]


def test_a_number_too_large_for_float32_becomes_the_largest(tmp_path: Path) -> None:
    lists = lists_of(tmp_path, "0 qid:1 1:1.79769313486232e+308 2:-1.7e308 3:1e-60 # see http://inf.org:nan\n")
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(lists.features, [[largest, -largest, 0]])


def test_a_missing_feature_is_nan_and_one_that_is_left_out_is_zero(tmp_path: Path) -> None:
    lists = lists_of(tmp_path, "0 qid:1 1:nan 3:2\n1 qid:1 1:1 2:NaN 3:1e400\n")
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(lists.features, [[np.nan, 0, 2], [1, np.nan, largest]])
    write_letor(lists, tmp_path / "again.txt")
    np.testing.assert_array_equal(read_letor(tmp_path / "again.txt").features, lists.features)


GOOD = "# head\n1 qid:7 1:0.5 2:1 # docid = a\n"
BAD_LINES = {
    "inf": ("0 qid:7 1:1 2:-inf # docid = b", r"\(list '7'\): feature 2 is -inf"),
    "index 0": ("0 qid:7 0:1 # docid = b", r"\(list '7'\): feature index 0"),
    "unsorted": ("0 qid:7 2:1 1:1 # docid = b", r"\(list '7'\): feature 1 comes after feature 2"),
    "twice": ("0 qid:7 2:1 2:1 # docid = b", r"\(list '7'\): feature 2 comes after feature 2"),
    "token": ("0 qid:7 1:1 two # docid = b", r"\(list '7'\): 'two' is not `index:value`"),
    "value": ("0 qid:7 1:x # docid = b", r"\(list '7'\): '1:x' is not `index:value`"),
    "huge index": ("0 qid:7 99999999999:1 # docid = b", r"\(list '7'\): feature 99999999999"),
    "no qid": ("0 1:1 # docid = b", r": no `qid:` after the label"),
    "only a label": ("0", r": no `qid:` after the label"),
    "empty qid": ("0 qid: 1:1 # docid = b", r": no `qid:` after the label"),
    "label": ("good qid:7 1:1 # docid = b", r"\(list '7'\): the label 'good' is not a finite number"),
    "nan label": ("nan qid:7 1:1 # docid = b", r"\(list '7'\): the label 'nan' is not a finite number"),
    "huge label": ("1e39 qid:7 1:1 # docid = b", r"\(list '7'\): the label '1e39' is not a finite number"),
    "negative": ("-1 qid:7 1:1 # docid = b", r"\(list '7'\): the label -1 is negative"),
    "same docid": ("0 qid:7 1:1 # docid = a", r"\(list '7'\): item 'a' occurs twice in list '7'"),
    "no docid": ("0 qid:7 1:1", r"\(list '7'\): no docid, though other lines have one"),
    "wide": ("0 qid:7 3:1 # docid = b", r"\(list '7'\): feature 3, but there should be only 2"),
}


@pytest.mark.parametrize("case", BAD_LINES)
@pytest.mark.parametrize("chunk_bytes", [1, 20, 2**24])  # a line, two lines, all lines
def test_a_bad_line_is_named(tmp_path: Path, case: str, chunk_bytes: int) -> None:
    line, message = BAD_LINES[case]
    text = f"{GOOD}\n{line}\n0 qid:8 1:1 # docid = c\n"  # the bad line is the fourth
    with pytest.raises(DataError, match=rf"data.txt, line 4 ?{message}"):
        lists_of(tmp_path, text, n_features=2, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("index", [100_001, 2_000_000_000, 2**63])
def test_an_index_beyond_all_data_sets_is_named_and_not_made_room_for(tmp_path: Path, index: int) -> None:
    with pytest.raises(DataError, match=rf"data.txt, line 2 \(list '1'\): feature {index}, but indices end at 100000"):
        lists_of(tmp_path, f"0 qid:1 1:1\n0 qid:1 1:1 {index}:1\n")
    assert lists_of(tmp_path, "0 qid:1 100001:1\n", n_features=100_001).n_features == 100_001


def test_a_qid_that_comes_back_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.txt, line 4 \(list '1'\): the qid comes back"):
        lists_of(tmp_path, "0 qid:1 1:1\n\n0 qid:2 1:1\n0 qid:1 1:1\n0 qid:2 1:1\n")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_a_file_without_lists_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"data.txt, line 1: the file holds no lists"):
        lists_of(tmp_path, text)


def test_a_cut_off_or_fake_gzip_file_is_an_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = "".join(f"0 qid:{q} 1:{rng.random()}\n" for q in range(20_000)).encode()
    cut, fake = tmp_path / "cut.txt.gz", tmp_path / "fake.txt.gz"
    cut.write_bytes(gzip.compress(text)[:-50_000])
    with pytest.raises(DataError, match=r"cut.txt.gz, line \d{4,5}: the gzip file is cut off or damaged"):
        read_letor(cut)
    fake.write_bytes(text)
    with pytest.raises(DataError, match=r"fake.txt.gz, line 1: the gzip file is cut off or damaged"):
        read_letor(fake)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.txt: No such file"):
        read_letor(tmp_path / "none.txt")


PLAIN: Any = ItemLists(np.ones((2, 1)), [0, 1, 2], labels=[0, 1])
UNWRITABLE = {
    "empty lists": replace(PLAIN, offsets=[0, 2, 2], item_ids=["a", "b"]),
    "a file without lists": PLAIN[:0],
    "without labels": replace(PLAIN, labels=None),
    "feature names": replace(PLAIN, feature_names=("price",)),
    r"categorical columns \(brand\)": replace(PLAIN, categorical={"brand": ["p", "q"]}),
    r"context columns \(city\)": replace(PLAIN, context={"city": ["p", "q"]}),
    "impressions": replace(PLAIN, impressions=Impressions(np.arange(2))),
    "relevance": replace(PLAIN, relevance=[1, 1]),
    "relevance probabilities": replace(PLAIN, relevance_probability=[1, 1]),
    "stands twice": replace(PLAIN, list_ids=["a", "a"]),
    "ids that are empty or contain": replace(PLAIN, item_ids=["a b", "c"]),
    "or contain spaces, control characters or '#'": replace(PLAIN, list_ids=["a#", "c"]),
    "comments": replace(PLAIN, categorical={"comment": [" x", None]}),
}


@pytest.mark.parametrize("what", UNWRITABLE)
def test_what_letor_cannot_hold_is_refused_with_a_way_out(tmp_path: Path, what: str) -> None:
    with pytest.raises(DataError, match=rf"out.txt: LETOR text cannot hold .*{what}.*Write Parquet instead"):
        write_letor(UNWRITABLE[what], tmp_path / "out.txt")
    assert not list(tmp_path.iterdir())


def test_reading_needs_at_most_twice_the_bytes_of_the_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    written = ItemLists(rng.random((5_000, 60)), np.arange(0, 5_001, 50), labels=rng.integers(0, 5, 5_000))
    write_letor(written, tmp_path / "lists.txt")
    with measured_memory() as held_and_peak:
        lists = read_letor(tmp_path / "lists.txt", chunk_bytes=2**15)  # small beside the whole, as with real data
        held, peak = held_and_peak()
    assert held < 1.05 * lists.nbytes
    assert peak < 2.1 * lists.nbytes + 2**19
