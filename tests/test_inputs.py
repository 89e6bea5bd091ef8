"""Anything that holds lists becomes the same lists, and every item knows its row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from seq2slate import as_lists
from seq2slate.data.files import write, write_split
from seq2slate.data.inputs import as_lists_with_rows
from seq2slate.data.lists import ItemLists, Split
from seq2slate.errors import DataError, UsageError
from tests.random_lists import assert_same_lists

FRAME = pd.DataFrame(
    {
        "list_id": ["b", "a", "b", "c", "a"],
        "item_id": [1, 2, 3, 4, 5],
        "price": [1.0, 2.0, 3.0, 4.0, 5.0],
        "score": [0.5, 0.5, 0.75, 0.0, 0.75],
        "label": [0.0, 1.0, 0.0, 1.0, 1.0],
    }
)
ROWS = [2, 0, 4, 1, 3]
"""By list, in the order of their first rows, highest score first."""


@pytest.mark.parametrize(
    "convert",
    [
        lambda df: df,
        pl.from_pandas,
        pa.Table.from_pandas,
        lambda df: pa.RecordBatch.from_pandas(df),
        lambda df: (
            pa.table(pa.Table.from_pandas(df).to_batches(max_chunksize=2)[0:0], schema=None)
            if df.empty
            else pa.Table.from_batches(pa.Table.from_pandas(df).to_batches(max_chunksize=2))
        ),
    ],
    ids=["pandas", "polars", "table", "record batch", "chunks"],
)
def test_tables_of_every_kind_and_the_rows_of_their_items(convert: Any) -> None:
    lists, rows = as_lists_with_rows(convert(FRAME), {"order_by": "-score"})
    assert rows.tolist() == ROWS
    assert lists.item_ids.to_pylist() == [str(FRAME.item_id[row]) for row in ROWS]
    assert lists.features.tolist() == FRAME.loc[ROWS, ["price", "score"]].to_numpy().tolist()
    assert_same_lists(as_lists(convert(FRAME), {"order_by": "-score"}), lists)


def test_slots_align_with_any_index() -> None:
    frame = FRAME.set_index(pd.Index([10, 30, 20, 50, 40]))
    lists, rows = as_lists_with_rows(frame, {"order_by": "-score"})
    slots = np.empty(len(frame), dtype=int)
    slots[rows] = lists.positions + 1
    expected = frame.groupby("list_id")["score"].rank(ascending=False).astype(int)
    assert pd.Series(slots, frame.index).equals(expected)


def test_an_empty_list_has_no_row_of_its_own() -> None:
    table = pa.table({"list_id": ["a", "b", "b"], "item_id": [None, "x", "y"], "position": [None, 2, 1]})
    lists, rows = as_lists_with_rows(table)
    assert (lists.lengths.tolist(), rows.tolist()) == ([0, 2], [2, 1])


def test_with_one_row_per_list_entries_are_counted() -> None:
    table = pa.table({"list_id": ["a", "b", "c"], "item_id": [[1, 2], [], [3]], "score": [[1, 2], [], [3]]})
    lists, rows = as_lists_with_rows(table, {"order_by": "-score"})
    assert (lists.item_ids.to_pylist(), rows.tolist()) == (["2", "1", "3"], [1, 0, 2])


def test_lists_are_themselves() -> None:
    lists = ItemLists(np.eye(3), [0, 1, 3])
    same, rows = as_lists_with_rows(lists)
    assert same is lists
    assert rows.tolist() == [0, 1, 2]


def test_paths_of_every_kind(tmp_path: Path) -> None:
    lists = ItemLists(np.eye(3), [0, 1, 3], labels=[0, 1, 0])
    write(lists[:1], tmp_path / "a.parquet")
    write(lists[1:], tmp_path / "b.parquet")
    for path in (
        tmp_path,
        str(tmp_path),
        tmp_path / "*.parquet",
        [tmp_path / "a.parquet", str(tmp_path / "b.parquet")],
    ):
        found, rows = as_lists_with_rows(path)
        assert_same_lists(found, lists)
        assert rows.tolist() == [0, 1, 2]


def test_a_folder_with_a_split_says_which_part_to_give(tmp_path: Path) -> None:
    lists = ItemLists(np.eye(3), [0, 1, 3])
    write_split(Split(lists, lists, lists), tmp_path)
    message = r"the folder holds a split; .*name one: train.parquet or valid.parquet or test.parquet"
    with pytest.raises(DataError, match=message):
        as_lists(tmp_path)


# Arrays

X = np.arange(10.0).reshape(5, 2)
Y = [0, 1, 0, 2, 1]


@pytest.mark.parametrize("make", [np.asarray, list, pd.Series, pl.Series, pa.array])
def test_groups_are_lengths_or_ids(make: Any) -> None:
    lists, rows = as_lists_with_rows((X, make(Y), make([2, 0, 3])))
    assert (lists.lengths.tolist(), rows.tolist()) == ([2, 0, 3], [0, 1, 2, 3, 4])
    assert lists.labels is not None
    np.testing.assert_array_equal(lists.labels, Y)
    np.testing.assert_array_equal(lists.features, X)
    lists, rows = as_lists_with_rows((X, make(Y), make(["q", "p", "q", "p", "p"])))
    assert (lists.list_ids.to_pylist(), rows.tolist()) == (["q", "p"], [0, 2, 1, 3, 4])
    assert lists.labels is not None
    assert lists.labels.tolist() == [0, 0, 1, 2, 1]
    assert as_lists((X, make([5, 3, 3, 5, 5]))).lengths.tolist() == [3, 2]
    assert as_lists((X, make([1, 1, 1, 1, 1]))).lengths.tolist() == [1] * 5, "five lengths, and each is 1"
    with pytest.raises(UsageError, match=r"it may hold ids or lengths; give ids as text"):
        as_lists((X, make([0, 0, 1, 2, 2])))
    assert as_lists((X, make(["0", "0", "1", "2", "2"]))).lengths.tolist() == [2, 1, 2]


def test_groups_beside_a_frame_need_no_declared_label() -> None:
    frame = pd.DataFrame({"price": [1.0, 2.0, 3.0]})
    with pytest.raises(DataError, match="'clicked', which is declared label"):
        as_lists((frame, [2, 1]), {"label": "clicked"})
    assert as_lists((frame, [2, 1]), {"label": "clicked"}, labelled=False).labels is None


def test_frames_and_sparse_matrices_have_groups_too() -> None:
    frame = pd.DataFrame({"price": [1.0, 2, 3, 4, 5], "brand": list("pqpqp")}, index=[9, 8, 7, 6, 5])
    for one in (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame)):
        lists, rows = as_lists_with_rows((one, Y, ["q", "p", "q", "p", "p"]))
        assert (lists.feature_names, list(lists.categorical)) == (("price",), ["brand"])
        assert rows.tolist() == [0, 2, 1, 3, 4]
        assert lists.features[:, 0].tolist() == [1, 3, 2, 4, 5]
        assert lists.item_ids.to_pylist() == ["0", "1", "0", "1", "2"]
        assert lists.labels is not None
        assert lists.labels.tolist() == [0, 0, 1, 2, 1]
    lists, rows = as_lists_with_rows((frame, Y, [2, 3]), {"order_by": "-price", "categorical": "brand"})
    assert rows.tolist() == [1, 0, 4, 3, 2]
    np.testing.assert_array_equal(as_lists((scipy.sparse.csr_matrix(X), Y, [5])).features, X)
    assert as_lists((pd.DataFrame(X), Y, [5])).feature_names == ("0", "1")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y, [2, 2]), r"train: group must have the length of each list, which add up to 5 rows, .*add up to 4"),
        ((X, Y, [-1, 6]), "train: group must have the length"),
        ((X, Y, ["a", "b"]), "train: group must have the length"),
        ((X, Y, [[5]]), "train: group must be one-dimensional"),
        ((X, Y, ["a", None, "a", "a", "a"]), "train, row 1: no group"),
        ((X, Y[:3], [5]), r"train: y must have one label for each of the 5 rows of X, got the shape \(3,\)"),
        ((X[0], Y, [2]), r"train: X must have the shape \(rows, columns\), got \(2,\)"),
        (([["a"], ["b"]], [0, 1], [2]), "train: X must hold numbers"),
        ((X, ["no"] * 5, [5]), "train: y must hold numbers"),
        ((X, [0, 1, 0, -2, 1], [5]), "label -2 is negative"),
    ],
)
def test_arrays_that_do_not_fit_are_named(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_lists(data)


def test_what_is_beside_a_frame_may_not_be_in_it() -> None:
    with pytest.raises(UsageError, match="X has a column 'list_id' beside the array for it"):
        as_lists((FRAME, [5]))
    with pytest.raises(UsageError, match="X has a column 'label' beside the array for it"):
        as_lists((FRAME.drop(columns="list_id"), Y, [5]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, r"valid: expected ItemLists, a pandas or polars DataFrame, .*, got int"),
        (None, "got NoneType"),
        ([], "got list"),
        ([1, "a"], "got list of int, str"),
        (X, "got ndarray"),
        (pd.Series([1]), "got Series"),
        ({"list_id": ["a"]}, "got dict"),
        ((X,), "valid: expected .*got a tuple of 1"),
        (pl.LazyFrame({"list_id": ["a"]}), r"got LazyFrame; call its collect\(\) first"),
    ],
)
def test_anything_else_is_named_with_what_is_accepted(data: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        as_lists(data, name="valid")


@given(st.integers(0, 2**32 - 1), st.integers(0, 60), st.booleans())
def test_any_order_of_rows_is_grouped_and_sorted_as_pandas_does(seed: int, n_rows: int, descending: bool) -> None:
    rng = np.random.default_rng(seed)
    score = np.where(rng.random(n_rows) < 0.2, np.nan, rng.integers(0, 4, n_rows))
    frame = pd.DataFrame({"list_id": rng.integers(0, 6, n_rows), "item_id": np.arange(n_rows), "score": score})
    lists, rows = as_lists_with_rows(frame, {"order_by": "-score" if descending else "score", "features": []})
    groups = [
        group.sort_values("score", ascending=not descending, kind="stable", na_position="last").index.to_numpy()
        for _, group in frame.groupby("list_id", sort=False)
    ]
    assert rows.tolist() == [row for group in groups for row in group]
    assert lists.lengths.tolist() == [len(group) for group in groups]
    assert lists.original_item_ids().to_pylist() == rows.tolist()
