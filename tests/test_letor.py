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

from seq2slate.data import letor
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


# Arrow reads pairs in plain notation, scikit-learn all others


PLAIN_VALUES = ["0", "3", "-16.796064", "1e-5", "2E+3", "+5", ".5", "5.", "nan", "-NaN", "1e400", "-1e400", "1e-400"]
PLAIN_VALUES += ["9007199254740993", "3.4028235677973366e38", "1.17549435e-38", "4.9e-324", "0.1" + "1" * 30, "-0.0"]
ODD_PAIRS = ["+1:1", "1:1_0", "1:1e1_0"]


@st.composite
def texts_of_pairs(draw: st.DrawFn) -> list[bytes]:
    """Dense or sparse pairs of a few items, with any space between them."""
    width, is_dense = draw(st.integers(1, 6)), draw(st.booleans())
    texts = []
    for _ in range(draw(st.integers(0, 8))):
        indices = [index for index in range(1, width + 1) if is_dense or draw(st.booleans())]
        values = [draw(st.sampled_from(PLAIN_VALUES) | st.floats(width=64).map(repr)) for _ in indices]
        spaces = [draw(st.sampled_from([" ", " ", "  ", "\t", " \r", "\v", "\f"])) for _ in indices]
        pairs = [f"{index}:{value}" for index, value in zip(indices, values, strict=True) if "inf" not in value]
        texts.append("".join(pair + space for pair, space in zip(pairs, spaces, strict=False)).encode())
    return texts


@given(texts_of_pairs())
def test_arrow_and_scikit_learn_read_the_same_pairs(texts: list[bytes]) -> None:
    plain, any_pairs = letor._read_plain_pairs(texts), letor._read_any_pairs(texts)
    assert plain.counts.tolist() == any_pairs.counts.tolist()
    assert plain.indices.tolist() == any_pairs.indices.tolist()
    assert plain.values.tobytes() == any_pairs.values.tobytes()


def never(_: list[bytes]) -> Any:
    raise AssertionError("this parser is not needed")


def test_common_files_are_read_without_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letor, "_read_any_pairs", never)
    text = "# head\n\n2 qid:a 1:3 2:nan 3:1e400 \r\n0\tqid:a\t2:-.5\t\t3:+1 # 1:x\n0 qid:b\n1 qid:c 0001:2 # 7\n"
    largest = np.finfo(np.float32).max
    expected = [[3, np.nan, largest], [0, -0.5, 1], [0, 0, 0], [2, 0, 0]]
    for chunk_bytes in (1, 2**20):
        np.testing.assert_array_equal(lists_of(tmp_path, text, chunk_bytes=chunk_bytes).features, expected)


@pytest.mark.parametrize("odd", ["1:7", "", "3:7", "1:1 2:2 3:3 4:4", *ODD_PAIRS])
@pytest.mark.parametrize("chunk_bytes", [1, 2**20])
def test_a_file_that_is_dense_but_for_one_line(tmp_path: Path, odd: str, chunk_bytes: int) -> None:
    rng = np.random.default_rng(0)
    features = rng.random((200, 3)).astype(np.float32)
    lines = [f"0 qid:a 1:{a} 2:{b} 3:{c}" for a, b, c in features.tolist()]
    lines[120] = f"0 qid:a {odd}"
    expected = np.zeros((200, 4 if "4:" in odd else 3), dtype=np.float32)
    expected[:, :3] = features
    expected[120] = 0
    for index, value in (pair.split(":") for pair in odd.split()):
        expected[120, int(index) - 1] = float(value)
    lists = lists_of(tmp_path, "\n".join(lines), chunk_bytes=chunk_bytes)
    assert lists.features.tobytes() == expected.tobytes()


def test_a_qid_may_be_called_infinite_beside_a_number_that_overflows(tmp_path: Path) -> None:
    lists = lists_of(tmp_path, "0 qid:inf 1:1e400 2:1_0\n")
    np.testing.assert_array_equal(lists.features, [[np.finfo(np.float32).max, 10]])


GOOD = "# head\n1 qid:7 1:0.5 2:1 # docid = a\n"
BAD_LINES = {
    "inf": ("0 qid:7 1:1 2:-inf # docid = b", r"\(list '7'\): feature 2 is -inf"),
    "index 0": ("0 qid:7 0:1 # docid = b", r"\(list '7'\): feature index 0"),
    "unsorted": ("0 qid:7 2:1 1:1 # docid = b", r"\(list '7'\): feature 1 comes after feature 2"),
    "twice": ("0 qid:7 2:1 2:1 # docid = b", r"\(list '7'\): feature 2 comes after feature 2"),
    "token": ("0 qid:7 1:1 two # docid = b", r"\(list '7'\): 'two' is not `index:value`"),
    "value": ("0 qid:7 1:x # docid = b", r"\(list '7'\): '1:x' is not `index:value`"),
    "huge index": ("0 qid:7 99999999999:1 # docid = b", r"\(list '7'\): feature 99999999999"),
    "hexadecimal index": ("0 qid:7 0x1:1 # docid = b", r"\(list '7'\): '0x1:1' is not `index:value`"),
    "hexadecimal value": ("0 qid:7 1:0x1 # docid = b", r"\(list '7'\): '1:0x1' is not `index:value`"),
    "nan with a payload": ("0 qid:7 1:nan(1) # docid = b", r"\(list '7'\): '1:nan\(1\)' is not `index:value`"),
    "two values": ("0 qid:7 1:1:2 # docid = b", r"\(list '7'\): '1:1:2' is not `index:value`"),
    "no index": ("0 qid:7 :1 # docid = b", r"\(list '7'\): ':1' is not `index:value`"),
    "no value": ("0 qid:7 1: # docid = b", r"\(list '7'\): '1:' is not `index:value`"),
    "negative index": ("0 qid:7 -1:1 # docid = b", r"\(list '7'\): '-1:1' is not `index:value`"),
    "two qids": ("0 qid:7 qid:8 1:1 # docid = b", r"\(list '7'\): 'qid:8' is not `index:value`"),
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
