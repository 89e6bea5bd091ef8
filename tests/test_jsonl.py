"""JSON lines: everything comes back exactly, and what is wrong is named by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seq2slate.data import jsonl
from seq2slate.data.jsonl import read_jsonl, write_jsonl
from seq2slate.data.lists import ItemLists
from seq2slate.errors import DataError
from tests.random_lists import assert_same_lists, item_lists

SAME_FOLDER = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
GOOD = {"list_id": "a", "item_id": ["x", "y"], "price": [1.5, 2], "label": [0, 1]}


@SAME_FOLDER
@given(item_lists(min_lists=1), st.sampled_from(["lists.jsonl", "lists.jsonl.gz"]), st.sampled_from([1, 300, 2**22]))
def test_a_file_loses_nothing_whatever_the_chunks(tmp_path: Path, lists: ItemLists, name: str, chunk: int) -> None:
    write_jsonl(lists, tmp_path / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "_CHUNK_BYTES", chunk)
        assert_same_lists(read_jsonl(tmp_path / name), lists)


def test_numbers_are_written_as_short_as_they_are(tmp_path: Path) -> None:
    write_jsonl(ItemLists(np.array([[0.1, 2]]), [0, 1], labels=[1]), tmp_path / "lists.jsonl")
    assert json.loads((tmp_path / "lists.jsonl").read_text()) == {
        "list_id": "0",
        "item_id": ["0"],
        "features": [[0.1, 2]],
        "label": [1],
    }


def lists_of(tmp_path: Path, *lines: Any) -> ItemLists:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return read_jsonl(path)


def test_columns_of_one_feature_each_and_blank_lines_are_fine(tmp_path: Path) -> None:
    other = {"list_id": "b", "item_id": [7], "price": [3], "label": [0]}
    lists = lists_of(tmp_path, "", {**GOOD, "item_id": [5, 6]}, " ", other)
    assert lists.feature_names == ("price",)
    assert lists.features.tolist() == [[1.5], [2], [3]]
    assert lists.item_ids.to_pylist() == ["5", "6", "7"]


def test_missing_numbers_are_null_in_a_file_and_nan_in_memory(tmp_path: Path) -> None:
    first = {**GOOD, "price": [1, None], "hour": None}
    lists = lists_of(tmp_path, first, {**GOOD, "list_id": "b", "price": [float("nan"), 2], "hour": 9.5})
    np.testing.assert_array_equal(lists.features, [[1], [np.nan], [np.nan], [2]])
    np.testing.assert_array_equal(lists.context["hour"], [np.nan, 9.5])
    write_jsonl(lists, tmp_path / "again.jsonl")
    written = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    assert [record["features"] for record in written] == [[[1.0], [None]], [[None], [2.0]]]
    assert [record["hour"] for record in written] == [None, 9.5]
    assert_same_lists(read_jsonl(tmp_path / "again.jsonl"), lists)


BAD_LINES: dict[str, tuple[Any, str]] = {
    "cut": ('{"list_id": "b", "item_id": ["x"', "not JSON"),
    "array": ([1, 2], "not a JSON object, but list"),
    "lengths": ({**GOOD, "label": [0]}, r"\(list 'a'\): item_id has 2 entries, label has 1"),
    "missing label": ({"list_id": "b", "item_id": ["x"], "price": [1]}, r"\(list 'b'\): label is missing"),
    "missing id": ({"item_id": ["x"], "price": [1], "label": [0]}, "no list_id"),
    "infinite": ({**GOOD, "price": [1, float("inf")]}, r"\(list 'a', item 1\): feature 'price' is inf"),
    "negative": ({**GOOD, "label": [0, -1]}, r"\(list 'a', item 1\): label -1 is negative"),
    "same item": ({**GOOD, "item_id": ["x", "x"]}, r"\(list 'a', item 1\): item 'x' occurs twice"),
    "type": ({**GOOD, "price": ["cheap", "dear"]}, "price does not fit the lines before it"),
    "not a list": ({**GOOD, "price": 3}, "price does not fit the lines before it"),
    "brackets": ('{"list_id": ' + "[" * 100_000, "not JSON"),
    "surrogate": ('{"list_id": "\\ud800", "item_id": ["x"], "price": [1], "label": [0]}', "list_id does not fit"),
    "number of names": ({**GOOD, "feature_names": 1}, "feature_names must be a list of text"),
    "names": ({**GOOD, "feature_names": ["cost"]}, "feature_names differ from those of the first list"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named(tmp_path: Path, case: str) -> None:
    line, message = BAD_LINES[case]
    with pytest.raises(DataError, match=rf"data.jsonl, line 4 ?:? ?{message}"):
        lists_of(tmp_path, {**GOOD, "list_id": "0"}, {**GOOD, "list_id": "1"}, "", line, {**GOOD, "list_id": "2"})


def test_a_column_that_changes_its_type_between_chunks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "_CHUNK_BYTES", 1)
    with pytest.raises(DataError, match=r"data.jsonl, line 2 or soon after: .*price"):
        lists_of(tmp_path, GOOD, {**GOOD, "price": ["cheap", "dear"]})


def test_bad_items_in_the_first_line_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.jsonl, line 1: price"):
        lists_of(tmp_path, {**GOOD, "price": [1, "dear"]})


def test_missing_columns_and_files_without_lists_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.jsonl: no column item_id.*found list_id, price"):
        lists_of(tmp_path, {"list_id": "a", "price": [1]})
    with pytest.raises(DataError, match=r"data.jsonl, line 1: the file holds no lists"):
        lists_of(tmp_path, "", "")


def test_what_json_lines_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"out.jsonl: .*without lists; write Parquet"):
        write_jsonl(ItemLists(np.ones((0, 1)), [0]), tmp_path / "out.jsonl")
    with pytest.raises(DataError, match=r"out.jsonl: .*'feature_names'"):
        write_jsonl(ItemLists(np.ones((1, 1)), [0, 1], context={"feature_names": ["x"]}), tmp_path / "out.jsonl")
    assert not list(tmp_path.iterdir())
