"""CSV and TSV: nothing is damaged on the way in or out, and a bad row is named by its line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from seq2slate.data.delimited import read_csv, write_csv
from seq2slate.data.files import read, write
from seq2slate.data.inputs import as_lists
from seq2slate.data.lists import ItemLists
from seq2slate.data.roles import Columns
from seq2slate.errors import DataError, DataWarning
from tests.random_lists import assert_same_lists, item_lists

HEADER = "list_id,item_id,price,label\n"
ROWS = "a,x,1.5,0\na,y,2.5,1\nb,x,3,0\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(item_lists(min_lists=1))
def test_a_file_loses_nothing(tmp_path: Path, lists: ItemLists) -> None:
    """The file of roles beside it says what text cannot; columns without any value have no type."""
    for roles in tmp_path.glob("*.toml"):
        roles.unlink()
    write(lists, tmp_path / "lists.csv")
    again = read(tmp_path / "lists.csv", labelled=False)
    assert again.lengths.tolist() == lists.lengths.tolist()
    assert again.list_ids.to_pylist() == lists.list_ids.to_pylist()
    assert again.item_ids.to_pylist() == lists.item_ids.to_pylist()
    assert {name: values.to_pylist() for name, values in again.categorical.items() if name in lists.categorical} == {
        name: values.to_pylist() for name, values in lists.categorical.items()
    }
    if lists.n_items:
        np.testing.assert_array_equal(again.features, lists.features)
        assert again.feature_names == lists.feature_names


def test_a_table_comes_back_whole(tmp_path: Path) -> None:
    lists = ItemLists(
        np.array([[0.1, 1e-45], [3.4028235e38, -2], [7, 8]], dtype=np.float32),
        [0, 2, 2, 3],
        labels=[0, 1, 2],
        list_ids=["a", "b", "c"],
        item_ids=["007", "8", 'x\n"y",'],
        feature_names=["price", "size"],
        categorical={"brand": ["1", None, ""], "code": ["01", "02", "03"]},
        context={"city": ["Rome", None, "Oslo"], "hour": [1.5, 2, 3]},
        relevance=[0, 1, 2],
    )
    for name in ("lists.csv", "lists.csv.gz", "lists.tsv"):
        write(lists, tmp_path / name)
        assert_same_lists(read(tmp_path / name), lists)
    assert (
        tmp_path / "lists.columns.toml"
    ).read_text() == 'categorical = ["brand", "code", "city"]\ncontext = ["city", "hour"]\n'


def test_plain_lists_need_no_file_of_roles(tmp_path: Path) -> None:
    write_csv(ItemLists([[1], [2]], [0, 2], labels=[0, 1]), tmp_path / "lists.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["lists.csv"]


def test_a_file_of_roles_does_not_outlive_what_it_describes(tmp_path: Path) -> None:
    write_csv(ItemLists([[1]], [0, 1], categorical={"brand": ["a"]}), tmp_path / "lists.csv")
    write_csv(ItemLists([[1], [2]], [0, 2], labels=[0, 1]), tmp_path / "lists.csv")
    assert read(tmp_path / "lists.csv").features[:, 0].tolist() == [1, 2]


def test_a_column_that_is_empty_in_one_of_several_files_has_the_type_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("list_id,item_id,price,size,hour\na,x,,1,\n")
    (tmp_path / "b.csv").write_text("list_id,item_id,price,size,hour\nb,x,2.5,,9\nb,y,3,,9\n")
    lists = read(tmp_path / "*.csv", context="hour")
    assert sorted(lists.feature_names) == ["price", "size"]
    prices, sizes = (lists.features[:, lists.feature_names.index(name)] for name in ("price", "size"))
    np.testing.assert_array_equal(prices, [np.nan, 2.5, 3])
    np.testing.assert_array_equal(sizes, [1, np.nan, np.nan])
    np.testing.assert_array_equal(lists.context["hour"], [np.nan, 9])
    assert lists.categorical == {}
    assert lists.roles is not None
    assert [lists.roles.role_of(name) for name in ("price", "size", "hour")] == ["feature", "feature", "context"]


def test_ids_are_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("list_id,item_id,sku\n0001,007,00501\n0001,8,00502\n2e3,12345678901234567890,00503\n")
    lists = read(path)
    assert lists.original_list_ids().to_pylist() == ["0001", "2e3"]
    assert lists.original_item_ids().to_pylist() == ["007", "8", "12345678901234567890"]
    assert lists.categorical["sku"].to_pylist() == ["00501", "00502", "00503"], "leading zeros are no numbers"
    path.write_text("list_id,item_id,brand\n1,7,3.10\n1,8,3.1\n")
    lists = read(path, categorical="brand")
    assert lists.categorical["brand"].to_pylist() == ["3.10", "3.1"], "declared categories are text as it stands"
    assert lists.original_item_ids().to_pylist() == [7, 8]


def test_categories_are_spelled_alike_in_every_format(tmp_path: Path) -> None:
    """A missing value makes floats of the integers of pandas, which writes these and booleans in its own way."""
    df = pd.DataFrame({"list_id": [1] * 4, "item_id": [1, 2, 3, 4], "kind": [3, None, 7, -1], "size": [0.5, 1, 2, 3]})
    df = df.assign(flag=pd.Series([True, None, False, True], dtype=object))
    df.to_csv(tmp_path / "a.csv", index=False)
    df.to_parquet(tmp_path / "a.parquet")
    lists = {name: values.tolist() for name, values in df.drop(columns="list_id").astype(object).items()}
    lists["kind"][1] = None
    (tmp_path / "a.jsonl").write_text(json.dumps({"list_id": 1, **lists}))
    names = ["kind", "size", "flag"]
    for source in (df, *(tmp_path / f"a.{suffix}" for suffix in ("csv", "parquet", "jsonl"))):
        found = as_lists(source, Columns(categorical=names))
        assert {name: found.categorical[name].to_pylist() for name in names} == {
            "kind": ["3", None, "7", "-1"],
            "size": ["0.5", "1", "2", "3"],
            "flag": ["true", None, "false", "true"],
        }, source


def test_ids_that_are_categories_too_keep_their_type(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("list_id,item_id,price\n7,14,1\n7,15,2\n")
    lists = read(tmp_path / "a.csv", categorical="item_id", context="list_id")
    assert lists.original_item_ids().to_pylist() == [14, 15]
    assert lists.original_list_ids().to_pylist() == [7]
    assert lists.categorical["item_id"].to_pylist() == ["14", "15"]


def test_values_have_the_types_that_they_look_like(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "list_id,item_id,count,price,flag,word,at\na,x,1,0.5,true,NA,2024-05-06 07:30:00\na,y,2,-1e3,false,b,\n"
    )
    lists = read(path, ignore="at")
    assert lists.feature_names == ("count", "price", "flag")
    assert lists.features.tolist() == [[1, 0.5, 1], [2, -1000, 0]]
    assert lists.categorical["word"].to_pylist() == ["NA", "b"], "missing only among numbers"
    with pytest.raises(DataError, match=r"a.csv: column at holds timestamp.*time_parts=\['at'\]"):
        read(path)


def test_a_number_column_with_one_word_is_warned_of(tmp_path: Path) -> None:
    rows = "".join(f"a,{item},{'cheap' if item == 17 else item / 4}\n" for item in range(40))
    (tmp_path / "a.csv").write_text("list_id,item_id,price\n" + rows)
    with pytest.warns(DataWarning, match=r"'price' is taken for categories, .*but for 'cheap'"):
        read(tmp_path / "a.csv")


@pytest.mark.parametrize(("delimiter", "name"), [(",", "a.csv"), (";", "a.csv"), ("\t", "a.csv"), ("\t", "a.tsv")])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_delimiters_line_ends_and_byte_order_marks(tmp_path: Path, delimiter: str, name: str, newline: str) -> None:
    text = (HEADER + ROWS).replace(",", delimiter).replace("\n", newline)
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    lists = read(tmp_path / name)
    assert (lists.lengths.tolist(), lists.features[:, 0].tolist()) == ([2, 1], [1.5, 2.5, 3])


@pytest.mark.parametrize("header", ['list_id;item_id;"price, EUR, net, VAT"', "list_id;item_id;price,EUR"])
def test_a_comma_in_a_name_is_no_delimiter(tmp_path: Path, header: str) -> None:
    (tmp_path / "a.csv").write_text(header + "\na;x;1\na;y;2\n")
    assert read(tmp_path / "a.csv").features[:, 0].tolist() == [1, 2]


def test_what_pandas_writes_is_read_with_and_without_its_index(tmp_path: Path) -> None:
    df = pd.DataFrame({"list_id": [1, 2, 1], "item_id": [3, 4, 5], "price": [1.5, 2, 3], "label": [0, 1, 1]})
    for index in (True, False):
        df.to_csv(tmp_path / "a.csv", index=index)
        lists = read(tmp_path / "a.csv")
        assert (lists.feature_names, lists.original_item_ids().to_pylist()) == (("price",), [3, 5, 4])


def bad_files() -> dict[str, tuple[str, str]]:
    return {
        "too few": (
            HEADER + "a,x,1.5,0\n\n" + 'a,"y\nz",1,1\n' + "b,x\n",
            r"line 6: 2 fields, but the header has 4: b,x",
        ),
        "too many": (HEADER + "a,x,1.5,0,9\n", r"line 2: 5 fields, but the header has 4"),
        "empty": ("", r"line 1: the file is empty"),
        "twice": ("list_id,item_id,x,x\n", r"line 1: column x occurs twice"),
        "negative": (HEADER + '\na,"x\ny",1,0\nb,x,3,-1\n', r"line 5 \(list 'b'\): label -1 is negative"),
        "back and wrong": (HEADER + "a,x,1,0\nb,x,1,0\na,x,2,0\n", r"line 4 \(list 'a'\): item 'x' occurs twice"),
        "no id": (HEADER + "a,x,1,0\n,y,1,0\n", r"line 3: no list_id"),
        "word for a label": (HEADER + "a,x,1,no\n", r"line 2 \(list 'a'\): label must hold numbers"),
        "no such column": ("query,item_id,price\na,x,1\n", r"no column list_id; .*found query, item_id, price"),
    }


@pytest.mark.parametrize("case", bad_files())
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, case: str) -> None:
    text, message = bad_files()[case]
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(DataError, match=f"bad.csv.*{message}"):
        read(tmp_path / "bad.csv")
    (tmp_path / "bad.csv.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(DataError, match=f"bad.csv.gz.*{message}"):
        read(tmp_path / "bad.csv.gz")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress((HEADER + ROWS * 5000).encode())[:-12])
    (tmp_path / "no.csv.gz").write_text(HEADER + ROWS)
    (tmp_path / "latin.csv").write_bytes((HEADER + "a,é,1,0\n").encode("latin-1"))
    for name in ("cut.csv.gz", "no.csv.gz", "latin.csv"):
        with pytest.raises(DataError, match=name):
            read(tmp_path / name)
    with pytest.raises(DataError, match=r"none.csv: no such file"):
        read_csv(tmp_path / "none.csv")


def test_only_a_header_is_a_file_without_lists(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER)
    assert len(read(tmp_path / "a.csv")) == 0


def test_a_large_file_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seq2slate.data.delimited._BLOCK_BYTES", 1000)
    rows = "".join(f"q{row // 7},d{row},{row},{row % 2}\n" for row in range(1000))
    (tmp_path / "a.csv").write_text(HEADER + rows)
    lists = read(tmp_path / "a.csv")
    assert lists.features[:, 0].tolist() == list(range(1000))
    assert lists.lengths.tolist() == [7] * 142 + [6]


def test_declared_columns_that_are_missing_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + ROWS)
    roles: Any = Columns(categorical=("brand",))
    with pytest.raises(DataError, match=r"a.csv: no column 'brand', which is declared categorical"):
        read(tmp_path / "a.csv", roles)
    assert pa.types.is_large_string(read(tmp_path / "a.csv", item_id="price", categorical="item_id").item_ids.type)
