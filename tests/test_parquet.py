"""Parquet and tables: both layouts lose nothing, and bad input is named by file, row and list."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seq2slate.data import parquet
from seq2slate.data.impressions import Impressions
from seq2slate.data.layouts import Layout, to_table
from seq2slate.data.lists import ItemLists
from seq2slate.data.parquet import read_parquet, stream_parquet, write_parquet, write_parquet_parts
from seq2slate.data.tables import from_table
from seq2slate.errors import DataError, UsageError
from tests.memory import measured_memory
from tests.random_lists import assert_same_fields, assert_same_lists, item_lists

LAYOUTS = st.sampled_from(["lists", "items"])
SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

LIST_ROWS: dict[str, Any] = {
    "list_id": ["a", "b", "c"],
    "item_id": [["x", "y"], [], ["x", "y", "z"]],
    "features": [[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0], [7.0, 8.0], [9.0, 10.0]]],
    "label": [[0.0, 1.0], [], [0.0, 0.0, 2.0]],
}
ITEM_ROWS: dict[str, Any] = {
    "list_id": ["a", "a", "c", "c", "c"],
    "position": [0, 1, 0, 1, 2],
    "item_id": ["x", "y", "x", "y", "z"],
    "price": [1.0, 2.0, 3.0, 4.0, 5.0],
    "label": [0.0, 1.0, 0.0, 0.0, 2.0],
}
SLOTS: dict[str, Any] = {"shown_slot": [[1, 0], [], [None, 0, -1]]}
CERTAIN: list[Any] = [[1.0, 1.0], [], [1.0, 1.0, 1.0]]


# Round trips


@SAME_FOLDER
@given(item_lists(), LAYOUTS)
def test_a_file_loses_nothing(tmp_path: Path, lists: ItemLists, layout: Any) -> None:
    write_parquet(lists, tmp_path / "lists.parquet", layout)
    assert_same_lists(read_parquet(tmp_path / "lists.parquet"), lists)


@SAME_FOLDER
@given(item_lists(min_lists=1), LAYOUTS, st.integers(1, 9), st.integers(1, 4))
def test_row_groups_batches_and_chunks_lose_nothing(
    tmp_path: Path, lists: ItemLists, layout: Any, rows_per_group: int, lists_per_chunk: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_VALUES_PER_BATCH", 40)
        pq.write_table(to_table(lists, layout), tmp_path / "lists.parquet", row_group_size=rows_per_group)
        assert_same_lists(read_parquet(tmp_path / "lists.parquet"), lists)
        chunks = list(stream_parquet(tmp_path / "lists.parquet", lists_per_chunk=lists_per_chunk))
    assert [len(chunk) for chunk in chunks[:-1]] == [lists_per_chunk] * (len(chunks) - 1)
    assert_same_lists(ItemLists.concat(chunks), lists)


@given(item_lists(), LAYOUTS, st.data())
def test_sliced_and_chunked_tables_are_read_right(lists: ItemLists, layout: Any, data: st.DataObject) -> None:
    table = to_table(lists, layout)
    cut = data.draw(st.integers(0, table.num_rows))
    chunked = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    assert_same_lists(from_table(chunked), lists)
    start = data.draw(st.integers(0, len(lists)))
    first_row = start if layout == "lists" else int(np.maximum(lists.lengths[:start], 1).sum())
    assert_same_lists(from_table(chunked.slice(first_row)), lists[start:])


@given(item_lists(min_lists=1))
def test_the_layouts_hold_the_same(lists: ItemLists) -> None:
    assert_same_lists(from_table(to_table(lists, "items")), from_table(to_table(lists, "lists")))


def test_the_default_file_has_the_documented_columns(tmp_path: Path) -> None:
    write_parquet(from_table(pa.table(LIST_ROWS)), tmp_path / "lists.parquet")
    schema = pq.read_schema(tmp_path / "lists.parquet")
    types = {field.name: str(field.type).replace("element", "item") for field in schema}
    assert types == {
        "list_id": "string",
        "item_id": "list<item: string>",
        "features": "list<item: list<item: float>>",
        "label": "list<item: float>",
    }


def test_large_lists_are_written_in_several_row_groups(tmp_path: Path) -> None:
    lists = ItemLists(np.ones((300_000, 16)), np.arange(0, 300_001, 100))
    write_parquet(lists, tmp_path / "lists.parquet")
    assert pq.ParquetFile(tmp_path / "lists.parquet").num_row_groups > 1
    assert_same_lists(read_parquet(tmp_path / "lists.parquet"), lists)


def test_parts_with_ids_of_other_types_fit_the_first_or_are_named(tmp_path: Path) -> None:
    integers = from_table(pa.table({"list_id": [7], "item_id": [[1, 2]]}))
    text = from_table(pa.table({"list_id": ["8"], "item_id": [["1", "2"]]}))
    write_parquet_parts([integers, text], tmp_path / "a.parquet")
    assert read_parquet(tmp_path / "a.parquet").original_list_ids().to_pylist() == [7, 8]
    with pytest.raises(DataError, match=r"a.parquet: the part from list 1 on does not fit the first part: .*'x'"):
        write_parquet_parts([integers, replace(text, list_ids=["x"])], tmp_path / "a.parquet")


def test_arrays_are_ours_and_not_views_of_the_file(tmp_path: Path) -> None:
    write_parquet(from_table(pa.table(LIST_ROWS)), tmp_path / "lists.parquet")
    lists = read_parquet(tmp_path / "lists.parquet")
    assert lists.labels is not None
    assert lists.features.flags.writeable
    assert lists.labels.flags.writeable


# What the columns mean


def test_columns_of_the_list_layout_find_their_place() -> None:
    rows = LIST_ROWS | {
        "stars": [[1, 2], [], [3, 4, 5]],
        "brand": [["p", None], [], ["q", "q", "r"]],
        "city": ["Rome", None, "Oslo"],
        "hour": [3, 4, 5],
        "propensity": [[0.5, 0.25], [], [1.0, 0.5, 0.25]],
    }
    lists = from_table(pa.table(rows))
    assert lists.feature_names == ("f1", "f2", "stars")
    assert lists.features.tolist() == [[1, 2, 1], [3, 4, 2], [5, 6, 3], [7, 8, 4], [9, 10, 5]]
    assert lists.categorical["brand"].to_pylist() == ["p", None, "q", "q", "r"]
    assert lists.context["city"].to_pylist() == ["Rome", None, "Oslo"]
    assert lists.context["hour"].tolist() == [3, 4, 5]
    assert lists.impressions is not None
    assert lists.impressions.log_propensities is not None
    assert lists.impressions.log_propensities.tolist() == np.log([0.5, 0.25, 1, 0.5, 0.25]).tolist()
    assert lists.impressions.slots.tolist() == [0, 1, 0, 1, 2], "without slots, it was shown in base order"
    assert lists.labels is not None
    assert lists.labels.tolist() == [0, 1, 0, 0, 2]
    assert lists.lengths.tolist() == [2, 0, 3]


def test_impressions_have_the_documented_columns(tmp_path: Path) -> None:
    shown = Impressions(
        slots=np.array([1, 0, -1]),
        log_propensities=np.array([-0.1, -2.5, 0]),
        clicked_at=np.array([np.nan, 7.25, np.nan]),
        units=["u", "v"],
        arms=["base", "new"],
        times=np.array([1.5, 2.5]),
        experiments=["autumn", "autumn"],
        models=[None, "f00d"],
        fallbacks=["deadline", None],
        drafts=[None, '["base","new","ab"]'],
        latency_ms=np.array([0.5, 0.75]),
    )
    lists = ItemLists(np.ones((3, 0)), [0, 2, 3], impressions=shown)
    write_parquet(lists, tmp_path / "log.parquet")
    table = pq.read_table(tmp_path / "log.parquet")
    assert table.to_pylist()[0] == {
        "list_id": "0",
        "item_id": ["0", "1"],
        "shown_slot": [1, 0],
        "log_propensity": [-0.1, -2.5],
        "clicked_at": [None, 7.25],
        "unit": "u",
        "arm": "base",
        "shown_at": 1.5,
        "experiment": "autumn",
        "model_fingerprint": None,
        "fallback": "deadline",
        "draft": None,
        "latency_ms": 0.5,
    }
    assert json.loads(table.schema.metadata[b"seq2slate"])["version"] == 2, (
        "older readers must not take them as features"
    )


def test_names_of_impressions_have_their_meaning_beside_slots_only() -> None:
    mine: dict[str, Any] = {"unit": ["u", "v", "w"], "fallback": [["p", None], [], ["q", "q", "r"]]}
    lists = from_table(pa.table(LIST_ROWS | mine))
    assert (lists.impressions, list(lists.context), list(lists.categorical)) == (None, ["unit"], ["fallback"])
    lists = from_table(pa.table(LIST_ROWS | SLOTS | {"unit": [7, 8, 9], "propensity": [[0.5, 1], [], [None, 0.25, 0]]}))
    assert (list(lists.context), lists.feature_names) == ([], ("f1", "f2"))
    assert lists.impressions is not None
    assert lists.impressions.slots.tolist() == [1, 0, -1, 0, -1], "what is missing was not shown"
    assert lists.impressions.log_propensities is not None
    assert np.exp(lists.impressions.log_propensities).tolist() == [0.5, 1, 1, 0.25, 1], "1 for what was not shown"
    assert lists.impressions.units is not None
    assert lists.impressions.units.to_pylist() == ["7", "8", "9"]


def test_a_column_may_not_have_a_name_of_the_impressions() -> None:
    lists = ItemLists(np.ones((2, 1)), [0, 2], context={"unit": ["u"]}, categorical={"fallback": ["a", "b"]})
    assert_same_lists(from_table(to_table(lists)), lists)
    with pytest.raises(DataError, match="'fallback', or a reserved name"):
        to_table(replace(lists, impressions=Impressions(np.arange(2))))
    with pytest.raises(DataError, match="'shown_slot'"):
        to_table(replace(lists, context={"shown_slot": ["u"]}))


def test_a_log_that_was_exported_by_an_older_version_is_read_in_full() -> None:
    rows = LIST_ROWS | {
        "propensity": pa.array([[0.5, 0.25], [], [1.0, 1.0, 0.125]], pa.list_(pa.float32())),
        "experiment": ["mine", "mine", "yours"],
        "shown_position": pa.array([[1, 0], [], [-1, 1, 0]], pa.list_(pa.int32())),
        "arm": ["base", "new", "new"],
        "unit": ["u", "v", "u"],
        "at": [1.5, 2.5, 3.5],
    }
    facts = {"version": 1, "feature_names": ["age", "price"], "aside": ["shown_position", "arm", "unit", "at"]}
    table = pa.table(rows).replace_schema_metadata({b"seq2slate": json.dumps(facts)})
    lists = from_table(table)
    assert lists.feature_names == ("age", "price")
    assert list(lists.context) == ["experiment"], "a column of the user's own in such a file"
    expected = Impressions(
        slots=np.array([1, 0, -1, 1, 0]),
        log_propensities=np.log([0.5, 0.25, 1, 1, 0.125]),
        units=["u", "v", "u"],
        arms=["base", "new", "new"],
        times=np.array([1.5, 2.5, 3.5]),
    )
    assert lists.impressions is not None
    assert_same_fields(lists.impressions, expected)


def test_position_sorts_the_items_of_a_list() -> None:
    order = [4, 2, 3, 1, 0]  # the second list comes first, and both are mixed up
    table = pa.table({name: [values[row] for row in order] for name, values in ITEM_ROWS.items()})
    lists = from_table(table)
    assert lists.list_ids.to_pylist() == ["c", "a"]
    assert lists.item_ids.to_pylist() == ["x", "y", "z", "x", "y"]
    assert lists.features[:, 0].tolist() == [3, 4, 5, 1, 2]


def test_items_may_have_vectors_and_no_position() -> None:
    lists = from_table(pa.table({"list_id": [7, 7, 8], "item_id": [1, 2, 1], "features": [[1.0, 2], [3, 4], [5, 6]]}))
    assert lists.list_ids.to_pylist() == ["7", "8"]
    assert lists.features.tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([True, False]), [1, 0]),
        (pa.array([Decimal("1.50"), Decimal("-2.25")]), [1.5, -2.25]),
        (pa.array([datetime.timedelta(hours=1), datetime.timedelta(0)], pa.duration("ms")), [3600, 0]),
        (pa.array([datetime.time(1), datetime.time(0)], pa.time32("s")), [3600, 0]),
        (pa.array([3, 4], pa.uint8()), [3, 4]),
    ],
)
def test_everything_that_counts_is_a_number(values: Any, expected: list[float]) -> None:
    items = from_table(pa.table({"list_id": ["a", "a"], "item_id": ["x", "y"], "value": values}))
    assert items.features[:, 0].tolist() == expected
    context = from_table(pa.table({"list_id": ["a", "b"], "item_id": [["x"], ["y"]], "value": values}))
    assert context.context["value"].tolist() == expected


def test_a_number_too_large_for_float32_becomes_the_largest() -> None:
    lists = from_table(pa.table({"list_id": ["a", "a"], "item_id": ["x", "y"], "value": [1.7e308, -1.7e308]}))
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(lists.features[:, 0], [largest, -largest])


@pytest.mark.parametrize("rows", [LIST_ROWS, ITEM_ROWS], ids=["lists", "items"])
def test_data_frames_come_in_the_same_way(rows: dict[str, Any]) -> None:
    expected = from_table(pa.table(rows))
    assert_same_lists(from_table(pd.DataFrame(rows)), expected)
    assert_same_lists(from_table(pd.DataFrame(rows, index=[f"r{i}" for i in range(len(rows["list_id"]))])), expected)
    assert_same_lists(from_table(pl.DataFrame(rows)), expected)


def test_categorical_columns_of_polars_are_text() -> None:
    frame = pl.DataFrame({"list_id": ["a", "a"], "item_id": ["x", "y"], "brand": ["p", None]})
    frame = frame.with_columns(pl.col("brand").cast(pl.Categorical), pl.col("list_id").cast(pl.Categorical))
    lists = from_table(frame)
    assert lists.list_ids.to_pylist() == ["a"]
    assert lists.categorical["brand"].to_pylist() == ["p", None]


def test_fixed_size_vectors_and_fixed_size_lists_are_read() -> None:
    vectors = pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], pa.list_(pa.list_(pa.float32(), 2), 2))
    lists = from_table(pa.table({"list_id": ["a", "b"], "item_id": [["x", "y"]] * 2, "features": vectors}).slice(1))
    assert lists.features.tolist() == [[5, 6], [7, 8]]


def test_empty_lists_before_the_first_item_do_not_hide_the_width() -> None:
    table = pa.table(LIST_ROWS)
    chunked = pa.concat_tables([table.slice(1, 1), table.slice(0, 1), table.slice(2)])
    lists = from_table(chunked)
    assert lists.lengths.tolist() == [0, 2, 3]
    assert lists.n_features == 2


# Bad input


def bad_list_rows() -> dict[str, tuple[dict[str, Any], str]]:
    features = LIST_ROWS["features"]
    return {
        "short label": (
            {"label": [[0.0, 1.0], [], [0.0, 0.0]]},
            r"row 2 \(list 'c'\): item_id has 3 entries, label has 2",
        ),
        "null list": ({"label": [[0.0, 1.0], None, [0.0] * 3]}, r"row 1 \(list 'b'\): label is missing"),
        "null item_id list": (
            {"item_id": [["x", "y"], None, ["x", "y", "z"]]},
            r"row 1 \(list 'b'\): item_id is missing",
        ),
        "null list_id": ({"list_id": ["a", "b", None]}, r"row 2: no list_id"),
        "null item": ({"item_id": [["x", "y"], [], ["x", None, "z"]]}, r"row 2 \(list 'c', item 1\): .*no item_id"),
        "same item": (
            {"item_id": [["x", "y"], [], ["x", "y", "x"]]},
            r"row 2 \(list 'c', item 2\): item 'x' occurs twice",
        ),
        "negative": (
            {"label": [[0.0, 1.0], [], [0.0, -1.0, 0.0]]},
            r"row 2 \(list 'c', item 1\): label -1 is negative",
        ),
        "nan label": ({"label": [[0.0, None], [], [0.0] * 3]}, r"row 0 \(list 'a', item 1\): labels hold nan"),
        "text label": ({"label": [["no", "yes"], [], ["no"] * 3]}, r"row 0 .*label must hold numbers"),
        "infinite": (
            {"features": [*features[:2], [[1.0, 1.0], [np.inf, 1.0], [1.0, 1.0]]]},
            r"row 2 \(list 'c', item 1\): feature 'f1' is inf",
        ),
        "inf": ({"price": [[1.0, np.inf], [], [1.0] * 3]}, r"row 0 \(list 'a', item 1\): feature 'price' is inf"),
        "width": (
            {"features": [*features[:2], [[1.0, 1.0], [1.0], [1.0, 1.0]]]},
            r"row 2 \(list 'c', item 1\): 1 features, but 2",
        ),
        "no vector": (
            {"features": [*features[:2], [[1.0, 1.0], None, [1.0, 1.0]]]},
            r"row 2 \(list 'c', item 1\): features is missing",
        ),
        "flat features": ({"features": [[1.0, 2.0], [], [1.0] * 3]}, r"row 0 .*features must hold a list of numbers"),
        "one label a list": ({"label": [0.0, 1.0, 0.0]}, r"label holds double, but each row needs a list"),
        "one feature a list": ({"features": [0.0, 1.0, 0.0]}, r"features holds double, but each row needs a list"),
        "infinite context": ({"hour": [1.0, 2.0, np.inf]}, r"row 2 \(list 'c'\): context column 'hour' is inf"),
        "float ids": ({"list_id": [1.0, 2.5, 3.0]}, r"row 1: list_id must be text or whole numbers, not 2.5"),
        "slot taken": ({"shown_slot": [[0, 1], [], [0, 0, 1]]}, r"row 2 \(list 'c', item 1\): another item"),
        "half a slot": (
            {"shown_slot": [[0, 1], [], [0, 0.5, 1]]},
            r"row 2 \(list 'c', item 1\): shown_slot 0.5 is not",
        ),
        "one slot a list": ({"shown_slot": [0, 1, 2]}, r"shown_slot holds int64, but each row needs a list"),
        "unit of an item": (SLOTS | {"unit": [["a", "b"], [], ["c"] * 3]}, r"unit holds list.*but each row needs one"),
        "no time": (
            SLOTS | {"shown_at": [1, None, 2]},
            r"row 1 \(list 'b'\): the time of the impression must be finite",
        ),
        "both": (SLOTS | {"propensity": CERTAIN, "log_propensity": CERTAIN}, r"both propensity and log_propensity"),
        "propensity": (
            {"propensity": [[0.5, 1.5], [], [1.0] * 3]},
            r"row 0 \(list 'a', item 1\): propensity 1.5 is not above 0 and at most 1",
        ),
    }


@pytest.mark.parametrize("case", bad_list_rows())
def test_bad_list_rows_are_named(tmp_path: Path, case: str) -> None:
    change, message = bad_list_rows()[case]
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table(LIST_ROWS | change), path)
    with pytest.raises(DataError, match=f"bad.parquet.*{message}"):
        read_parquet(path)
    with pytest.raises(DataError, match=f"bad.parquet.*{message}"):
        list(stream_parquet(path, lists_per_chunk=2))


def bad_item_rows() -> dict[str, tuple[dict[str, Any], str]]:
    return {
        "comes back": ({"list_id": ["a", "a", "c", "c", "a"]}, r"row 4 \(list 'a'\): the list comes back"),
        "same position": ({"position": [0, 1, 0, 2, 2]}, r"row 4 \(list 'c'\): position 2 is taken"),
        "null position": ({"position": [0, 1, 0, None, 2]}, r"row 3 \(list 'c'\): the position is missing"),
        "null item_id": ({"item_id": ["x", "y", "x", None, "z"]}, r"row 3 \(list 'c'\): .*no item_id"),
        "empty and not": (
            {"item_id": ["x", "y", "x", None, "z"], "position": [0, 1, 0, None, 2]},
            r"row 3 \(list 'c'\): no item_id and no position.*more rows",
        ),
        "same item": ({"item_id": ["x", "x", "x", "y", "z"]}, r"row 1 \(list 'a'\): item 'x' occurs twice"),
        "infinite": ({"price": [1.0, 2.0, np.inf, 4.0, 5.0]}, r"row 2 \(list 'c'\): feature 'price' is inf"),
        "negative": ({"label": [0.0, 1.0, 0.0, -2.0, 0.0]}, r"row 3 \(list 'c'\): label -2 is negative"),
        "null list_id": ({"list_id": ["a", "a", None, "c", "c"]}, r"row 2: no list_id"),
        "text position": ({"position": list("abcde")}, r"row 0 \(list 'a'\): position must hold numbers"),
    }


@pytest.mark.parametrize("case", bad_item_rows())
def test_bad_item_rows_are_named(tmp_path: Path, case: str) -> None:
    change, message = bad_item_rows()[case]
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table(ITEM_ROWS | change), path)
    with pytest.raises(DataError, match=f"bad.parquet.*{message}"):
        read_parquet(path)


def test_rows_are_counted_from_the_start_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_rows = 500
    price = np.ones(n_rows)
    price[437] = np.inf
    columns = {"list_id": np.arange(n_rows) // 3, "position": np.arange(n_rows) % 3, "item_id": np.arange(n_rows)}
    path = tmp_path / "long.parquet"
    pq.write_table(pa.table(columns | {"price": price}), path, row_group_size=50)
    monkeypatch.setattr(parquet, "_VALUES_PER_BATCH", 100)
    with pytest.raises(DataError, match=r"long.parquet, row 437 \(list '145'\): feature 'price' is inf"):
        read_parquet(path)


@pytest.mark.parametrize("layout", ["lists", "items"])
def test_missing_numbers_are_null_in_a_file_and_nan_in_memory(tmp_path: Path, layout: Layout) -> None:
    features = np.array([[1, np.nan], [np.nan, 2], [3, 4]])
    context = {"hour": [np.nan, 9.0]}
    lists = ItemLists(features, [0, 1, 3], feature_names=("price", "age"), context=context)
    path = tmp_path / "some.parquet"
    write_parquet(lists, path, layout=layout)
    table = pq.read_table(path)
    columns = ["features"] if layout == "lists" else ["price", "age"]
    assert not any("nan" in str(table[name].to_pylist()) for name in [*columns, "hour"])
    assert_same_lists(read_parquet(path), lists)


def test_the_first_item_sets_the_width_for_all_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = [[[1.0, 2.0]]] * 500
    vectors[437] = [[1.0]]
    path = tmp_path / "long.parquet"
    pq.write_table(pa.table({"list_id": np.arange(500), "item_id": [["x"]] * 500, "features": vectors}), path)
    monkeypatch.setattr(parquet, "_VALUES_PER_BATCH", 4)  # one row, so that the wrong item is the first of its batch
    with pytest.raises(
        DataError, match=r"long.parquet, row 437 \(list '437', item 0\): 1 features, but 2 are expected"
    ):
        read_parquet(path)


def test_a_list_that_comes_back_in_a_later_batch_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [*np.repeat(np.arange(200), 2).tolist(), 3]
    path = tmp_path / "long.parquet"
    pq.write_table(pa.table({"list_id": ids, "item_id": np.arange(401)}), path)
    monkeypatch.setattr(parquet, "_VALUES_PER_BATCH", 100)
    with pytest.raises(DataError, match=r"row 400 \(list '3'\): the list comes back"):
        read_parquet(path)


def test_context_must_not_change_within_a_list() -> None:
    lists = ItemLists(np.ones((3, 1)), [0, 3], context={"city": ["Rome"]})
    table = to_table(lists, "items")
    cities = pa.array(["Rome", "Rome", "Oslo"])
    changed = table.set_column(table.column_names.index("city"), "city", cities)
    with pytest.raises(DataError, match=r"row 2 \(list '0'\): column city changes"):
        from_table(changed)


@pytest.mark.parametrize("missing", ["list_id", "item_id"])
def test_missing_columns_are_named_beside_those_found(tmp_path: Path, missing: str) -> None:
    pq.write_table(
        pa.table({name: values for name, values in LIST_ROWS.items() if name != missing}), tmp_path / "m.parquet"
    )
    with pytest.raises(
        DataError, match=rf"m.parquet: no column {missing}; say which column has the {missing}.*found .*label"
    ):
        read_parquet(tmp_path / "m.parquet")


def test_a_file_that_is_not_parquet_or_is_cut_off_is_an_error(tmp_path: Path) -> None:
    whole, half, text = (tmp_path / name for name in ("whole.parquet", "half.parquet", "text.parquet"))
    write_parquet(from_table(pa.table(LIST_ROWS)), whole)
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    text.write_text("1 qid:1 1:2\n")
    damaged = tmp_path / "damaged.parquet"
    data = bytearray(whole.read_bytes())
    data[4:60] = b"?" * 56
    damaged.write_bytes(data)
    for path in (half, text, damaged):
        with pytest.raises(DataError, match=f"{path.name}: not a Parquet file, or cut off"):
            read_parquet(path)
    with pytest.raises(DataError, match=r"none.parquet: no such file"):
        read_parquet(tmp_path / "none.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no Parquet files"):
        list(stream_parquet(tmp_path / "empty"))


def test_what_cannot_be_a_table_is_an_error() -> None:
    with pytest.raises(UsageError, match="expected a pandas or polars DataFrame or an Arrow table, got int"):
        from_table(3)
    with pytest.raises(DataError, match=r"mine, row 1: column list_id holds 3 \(int\) where the rows above hold str"):
        from_table(pd.DataFrame({"list_id": ["a", 3], "item_id": [["x"], ["y"]]}), source="mine")
    with pytest.raises(DataError, match=r"table: .*UTF8"):
        from_table(pa.table({"list_id": ["a"], "item_id": ["x"], "brand": [b"\xff"]}))
    twice = pa.table(
        [pa.array(["a"]), pa.array(["x"]), pa.array([1]), pa.array([2])], names=["list_id", "item_id", "n", "n"]
    )
    with pytest.raises(DataError, match="column n occurs twice"):
        from_table(twice)


def test_a_newer_version_of_the_format_is_an_error() -> None:
    table = pa.table(LIST_ROWS).replace_schema_metadata({"seq2slate": '{"version": 3}'})
    with pytest.raises(DataError, match="newer version"):
        from_table(table)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '["abc"]',
        '{"version": "x"}',
        '{"feature_names": 2}',
        '{"context": [1]}',
        '{"origin": 3}',
        '{"origin": null}',
        '{"origin": ["list_id"]}',
        '{"origin": {"lable": "x"}}',
        '{"origin": {"label": 3}}',
        '{"origin": {"label": "x", "ignore": ["x"]}}',
    ],
)
def test_damaged_metadata_is_an_error(text: str) -> None:
    with pytest.raises(DataError, match="mine: the metadata of seq2slate in the schema is damaged"):
        from_table(pa.table(LIST_ROWS).replace_schema_metadata({"seq2slate": text}), source="mine")


@pytest.mark.parametrize("layout", ["lists", "items"])
def test_names_that_clash_are_not_written(tmp_path: Path, layout: Any) -> None:
    lists = ItemLists(np.ones((1, 1)), [0, 1], categorical={"label": ["x"]})
    with pytest.raises(DataError, match="'label'"):
        write_parquet(lists, tmp_path / "lists.parquet", layout)
    assert not list(tmp_path.iterdir())


def test_item_rows_need_lists_with_ids_of_their_own(tmp_path: Path) -> None:
    lists = ItemLists(np.ones((2, 1)), [0, 1, 2], list_ids=["a", "a"])
    write_parquet(lists, tmp_path / "lists.parquet")
    assert_same_lists(read_parquet(tmp_path / "lists.parquet"), lists)
    with pytest.raises(DataError, match="list 'a' occurs twice"):
        write_parquet(lists, tmp_path / "items.parquet", "items")


def test_layouts_and_chunks_that_do_not_exist_are_errors(tmp_path: Path) -> None:
    lists = ItemLists(np.ones((1, 1)), [0, 1])
    with pytest.raises(UsageError, match="layout"):
        to_table(lists, "columns")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="lists_per_chunk"):
        list(stream_parquet(tmp_path, lists_per_chunk=0))


# Many files, much data


def test_a_folder_streams_in_the_order_of_its_names(tmp_path: Path) -> None:
    lists = from_table(pa.table(LIST_ROWS))
    for number in range(3):
        layout: Any = "items" if number == 1 else "lists"
        write_parquet(lists, tmp_path / f"part{number}.parquet", layout)
    chunks = list(stream_parquet(tmp_path, lists_per_chunk=4))
    assert [len(chunk) for chunk in chunks] == [4, 4, 1]
    assert ItemLists.concat(chunks).list_ids.to_pylist() == ["a", "b", "c"] * 3


def test_files_of_a_folder_must_have_the_same_columns(tmp_path: Path) -> None:
    write_parquet(ItemLists(np.ones((1, 2)), [0, 1]), tmp_path / "a.parquet")
    write_parquet(ItemLists(np.ones((1, 3)), [0, 1]), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b.parquet does not have the columns of .*a.parquet: 3 features instead of 2"):
        list(stream_parquet(tmp_path))


@pytest.mark.parametrize("layout", ["lists", "items"])
def test_reading_needs_at_most_twice_the_bytes_of_the_arrays(
    tmp_path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_VALUES_PER_BATCH", 2**16)  # batch, buffer and page are small beside the whole,
    monkeypatch.setattr(parquet, "_BUFFER_BYTES", 2**14)  # as they are with real data
    rng = np.random.default_rng(0)
    lists = ItemLists(rng.random((100_000, 40)), np.arange(0, 100_001, 50), labels=rng.integers(0, 2, 100_000))
    pq.write_table(to_table(lists, layout), tmp_path / "lists.parquet", data_page_size=2**14, use_dictionary=False)
    with measured_memory() as held_and_peak:
        read = read_parquet(tmp_path / "lists.parquet")
        held, peak = held_and_peak()
    assert_same_lists(read, lists)
    assert held < 1.05 * read.nbytes
    assert peak < 2 * read.nbytes + 2**22


def test_a_stream_holds_a_chunk_and_not_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_VALUES_PER_BATCH", 2**16)
    lists = ItemLists(np.random.default_rng(0).random((200_000, 40)), np.arange(0, 200_001, 50))
    pq.write_table(to_table(lists), tmp_path / "lists.parquet", row_group_size=len(lists))
    with measured_memory() as held_and_peak:
        n_lists = sum(len(chunk) for chunk in stream_parquet(tmp_path / "lists.parquet", lists_per_chunk=20))
        _, peak = held_and_peak()
    assert n_lists == len(lists)
    assert peak < lists.nbytes / 4
