"""Column roles: any table becomes lists, and every trap works or is named, with the cure."""

from __future__ import annotations

import datetime
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seq2slate import Columns, DataWarning, ItemLists, from_pandas, from_polars, from_table, to_table
from seq2slate.data.checks import has_name_of_id
from seq2slate.data.columns import time_parts
from seq2slate.data.files import read, read_split, write
from seq2slate.data.inputs import as_lists
from seq2slate.data.parquet import read_parquet, stream_parquet
from seq2slate.data.roles import as_columns, explain_missing_labels, join_columns
from seq2slate.errors import DataError, UsageError
from tests.random_lists import assert_same_lists

ROLES: dict[str, Any] = {
    "list_id": "search_term",
    "item_id": "product_uid",
    "label": "relevance",
    "order_by": "-tfidf",
    "categorical": ["brand"],
    "context": ["query_length"],
    "ignore": ["id"],
}


def products(**changes: Any) -> pd.DataFrame:
    """A table as it comes: lists are not adjacent, names are its own, ids are integers."""
    columns: dict[str, Any] = {
        "id": [11, 12, 13, 14, 15],
        "search_term": ["saw", "nail", "saw", "saw", "nail"],
        "product_uid": [100001, 100002, 100003, 100004, 100001],
        "tfidf": [0.25, 0.5, 0.75, 0.5, 0.125],
        "brand": ["p", "q", None, "p", "p"],
        "query_length": [3, 4, 3, 3, 4],
        "relevance": [0.0, 1.0, 2.0, 0.0, 1.0],
    }
    return pd.DataFrame(columns | changes)


def two_items(**columns: Any) -> pd.DataFrame:
    """One list of as many items as the columns have values."""
    n = len(next(iter(columns.values())))
    return pd.DataFrame({"list_id": ["a"] * n, "item_id": [f"i{i}" for i in range(n)], **columns})


def uses(lists: ItemLists) -> dict[str, str]:
    assert lists.roles is not None
    return {use.name: use.role for use in lists.roles.uses}


# The roles


@pytest.mark.parametrize("read_frame", [from_pandas, lambda df, **roles: from_polars(pl.from_pandas(df), **roles)])
def test_every_role_is_heeded(read_frame: Any) -> None:
    lists = read_frame(products(), **ROLES)
    assert lists.list_ids.to_pylist() == ["saw", "nail"], "in the order of their first rows"
    assert lists.original_item_ids().to_pylist() == [100003, 100004, 100001, 100002, 100001]
    assert lists.labels.tolist() == [2, 0, 0, 1, 1]
    assert lists.feature_names == ("tfidf",)
    assert lists.features[:, 0].tolist() == [0.75, 0.5, 0.25, 0.5, 0.125]
    assert lists.categorical["brand"].to_pylist() == [None, "p", "p", "q", "p"]
    assert lists.context["query_length"].tolist() == [3, 4]


def test_the_report_says_what_each_column_is_taken_for() -> None:
    roles = from_pandas(products(), **ROLES).roles
    assert roles is not None
    assert str(roles).splitlines() == [
        "column        taken for            note",
        "id            ignored              as declared",
        "search_term   list_id",
        "product_uid   item_id",
        "tfidf         base order, feature  highest first",
        "brand         categorical",
        "query_length  context",
        "relevance     label",
        "base order: sorted by tfidf, highest first",
    ]
    assert roles.columns == Columns(**ROLES)
    assert roles.role_of("brand") == "categorical"
    assert "<td>base order, feature</td>" in roles._repr_html_()


def test_without_position_the_order_of_the_rows_is_the_base_order_and_the_report_says_so() -> None:
    lists = from_pandas(two_items(price=[2.0, 1.0]))
    assert str(lists.roles).endswith("base order: the order of the rows")
    assert lists.features[:, 0].tolist() == [2, 1]


def test_columns_have_defaults_and_a_single_name_will_do() -> None:
    columns = Columns(categorical="brand", list_id=["query"], time_parts=["at"])
    assert (columns.list_id, columns.categorical, columns.time_parts) == ("query", ("brand",), ("at",))
    assert Columns.from_dict(json.loads(json.dumps(columns.to_dict()))) == columns
    assert columns.changes() == {"list_id": "query", "categorical": ("brand",), "time_parts": ("at",)}
    assert as_columns({"label": "y"}, {"label": "z"}) == Columns(label="z")


def test_a_role_that_is_given_replaces_what_contradicts_it() -> None:
    by_score, by_rank = Columns(order_by="-score"), Columns(position="rank")
    assert as_columns(by_score, {"position": "rank"}) == by_rank
    assert as_columns(by_rank, {"order_by": "-score"}) == by_score
    read = Columns(features=["price", "score"], context=["hour"], categorical=["brand"])
    assert as_columns(read, {"label": "score", "ignore": ["hour", "brand"]}) == Columns(
        features=["price"], label="score", ignore=["hour", "brand"]
    )
    assert as_columns(read, {"categorical": ["price"]}) == Columns(
        features=["price", "score"], context=["hour"], categorical=["price"]
    ), "a feature may be categorical"
    with pytest.raises(UsageError, match="'x' is declared both label and ignore"):
        as_columns(read, {"label": "x", "ignore": "x"})


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"label": "x", "ignore": "x"}, "'x' is declared both label and ignore"),
        ({"item_id": "x", "context": "x"}, "'x' is declared both item_id and context"),
        ({"features": ["x"], "ignore": ["x"]}, "'x' is declared both features and ignore"),
        ({"position": "p", "order_by": "-s"}, "position and order_by both set the base order"),
        ({"ignore": ["x", "x"]}, "'x' is named twice in ignore"),
        ({"list_id": []}, "list_id needs at least one column"),
        ({"list_id": 7}, "list_id must be the name of a column, or several names, got 7"),
        ({"item_id": None}, "item_id must be the name of a column, got None"),
        ({"categorical": [3]}, r"categorical must be the name of a column, or several names, got \[3\]"),
        ({"lable": "x"}, r"no role 'lable' \(did you mean 'label'\?\); roles are list_id, item_id, label"),
    ],
)
def test_roles_that_cannot_be_are_usage_errors(roles: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_pandas(products(), **roles)


def test_columns_must_be_columns() -> None:
    with pytest.raises(UsageError, match=r"columns must be seq2slate.Columns or a dict of roles, not list"):
        from_pandas(products(), ["x"])  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["list_id", "item_id", "label", "position", "order_by", "features", "ignore"])
def test_a_column_that_is_not_there_is_named_with_the_closest_name(role: str) -> None:
    roles = {name: value for name, value in ROLES.items() if name != "order_by"} | {role: "querylength"}
    message = (
        rf"no column 'querylength', which is declared {role} \(did you mean 'query_length'\?\); found id, search_term"
    )
    with pytest.raises(DataError, match=message):
        from_pandas(products(), **roles)


def test_a_label_under_another_name_is_found_when_it_is_missed() -> None:
    lists = from_table(products().drop(columns="tfidf"), list_id="search_term", item_id="product_uid", ignore="id")
    assert lists.labels is None
    said = explain_missing_labels(lists)
    assert "label='relevance' (--label relevance)" in said
    assert uses(lists)["relevance"] == "relevance", "the grades of simulated users are never a feature"
    lists = from_pandas(two_items(weight=[0.5, 2.5], clicked=[0, 1]))
    assert explain_missing_labels(lists).endswith("it could be clicked")
    lists = from_pandas(two_items(weight=[0.5, 2.5]))
    assert explain_missing_labels(lists).endswith(
        "label='NAME' (--label NAME); the columns are list_id, item_id, weight"
    )
    assert explain_missing_labels(ItemLists([[1]], [0, 1])) == "give clicks or grades as labels"


def test_a_column_label_beside_a_declared_label_is_no_feature() -> None:
    lists = from_pandas(two_items(label=[0, 1], clicks=[1, 0], position=[1, 2], score=[1, 2]), label="clicks")
    assert lists.labels is not None
    assert lists.labels.tolist() == [1, 0]
    assert lists.feature_names == ("score",)
    assert "label     ignored     the label is clicks" in str(lists.roles)
    lists = from_pandas(two_items(position=[1, 2], score=[1, 2]), order_by="-score")
    assert (lists.feature_names, uses(lists)["position"]) == (("score",), "ignored")


def test_features_are_only_these_and_text_among_them_is_categorical() -> None:
    df = two_items(price=[1.0, 2.0], brand=["p", "q"], note=["r", "s"], at=pd.to_datetime(["2024-01-01", "2024-01-02"]))
    lists = from_pandas(df, features=["price", "brand"])
    assert (lists.feature_names, list(lists.categorical)) == (("price",), ["brand"])
    assert uses(lists)["note"] == uses(lists)["at"] == "ignored"
    assert from_pandas(df, features=[]).n_features == 0


def test_ids_may_be_learned_from() -> None:
    df = pd.DataFrame({"list_id": [7, 7, 8], "item_id": [1, 2, 1], "label": [0, 1, 0]})
    lists = from_pandas(df, categorical="item_id", context="list_id")
    assert lists.categorical["item_id"].to_pylist() == ["1", "2", "1"]
    assert lists.context["list_id"].to_pylist() == ["7", "8"]
    assert uses(lists) == {"list_id": "list_id, context", "item_id": "item_id, categorical", "label": "label"}
    assert from_pandas(df, categorical="list_id").categorical["list_id"].to_pylist() == ["7", "7", "8"]
    by_list = pa.table({"list_id": [7], "item_id": [[1, 2]]})
    lists = from_table(by_list, categorical=["item_id", "list_id"])
    assert lists.categorical["item_id"].to_pylist() == ["1", "2"]
    assert lists.context["list_id"].to_pylist() == ["7"]


def test_roles_survive_slices_orders_and_joins_of_equals() -> None:
    lists = from_pandas(products(), **ROLES)
    other = from_pandas(two_items(price=[1.0, 2.0]))
    assert lists[:1].roles == lists[[1]].roles == lists.reorder(np.arange(5)).roles == lists.roles
    assert lists.shuffle_items(seed=0).truncate(1).roles == lists.roles
    assert ItemLists.concat([lists[:1], lists[1:]]).roles == lists.roles
    assert ItemLists.concat([other, from_pandas(two_items(price=[1, 2]), order_by="price")]).roles is None


def test_roles_of_two_files_are_merged(tmp_path: Path) -> None:
    for name, values in ("a", [1, 2, 3]), ("b", [1, 1, 1]):
        frame = two_items(brand_id=values).assign(list_id=[name] * 3, item_id=[1, 2, 3])
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    with pytest.warns(DataWarning, match="brand_id"):
        lists = read(tmp_path / "*.csv")
    assert lists.roles is not None
    assert len(lists.roles.warnings) == 1
    assert lists.original_item_ids().to_pylist() == [1, 2, 3] * 2
    (tmp_path / "c.csv").write_text("list_id,item_id,brand_id\nc,x,1\n")
    with pytest.warns(DataWarning, match="brand_id"):
        assert read(tmp_path / "*.csv").original_item_ids().to_pylist() == [*"123123", "x"]


def test_a_warning_points_at_the_line_that_read_the_table() -> None:
    with pytest.warns(DataWarning) as caught:
        from_pandas(two_items(brand_id=[1, 2, 3]))
    assert caught[0].filename == __file__


def test_sparse_columns_are_numbers() -> None:
    assert from_pandas(two_items(x=pd.arrays.SparseArray([0.0, 2.0]))).features[:, 0].tolist() == [0, 2]


def test_roles_for_prediction_need_no_label_and_ignore_what_is_not_known() -> None:
    df = products(
        at=pd.to_datetime(["2024-05-06 07:30"] * 5),
        kind=pd.Categorical([1, 2, 1, 2, 1]),
        place=pd.Categorical([1, 2, 1, 1, 2]),
    )
    trained = from_pandas(df, time_parts="at", **ROLES | {"context": ["query_length", "place"]})
    assert trained.roles is not None
    later = df.drop(columns=["relevance", "id"]).assign(mixed=["a", 1, None, 2.5, "b"], when=pd.Timestamp("2024-01-01"))
    later[["kind", "place"]] = later[["kind", "place"]].astype(int)
    lists = from_table(later, trained.roles.for_prediction(), labelled=False)
    assert lists.labels is None
    assert_same_lists(lists, ItemLists(**{**vars(trained), "labels": None}))
    assert uses(lists)["mixed"] == uses(lists)["when"] == "ignored"


# Lists


def test_rows_of_a_list_need_not_be_adjacent_in_memory_and_messages_count_the_rows_given() -> None:
    df = products(tfidf=[0.25, 0.5, 0.75, 0.5, 0.125], relevance=[0, 1, 2, -1, 1])
    with pytest.raises(DataError, match=r"DataFrame, row 3 \(list 'saw'\): label -1 is negative"):
        from_pandas(df, **ROLES)


def test_several_columns_make_one_list_id() -> None:
    df = pd.DataFrame({"session": [1, 1, 2], "query": ["a", "a", "a"], "item_id": [1, 2, 1], "price": [1.0, 2, 3]})
    lists = from_pandas(df, list_id=["session", "query"])
    assert lists.list_ids.to_pylist() == ["1/a", "2/a"]
    assert uses(lists)["session"] == uses(lists)["query"] == "list_id"
    with pytest.raises(DataError, match=r"row 1: no query, which is part of list_id"):
        from_pandas(df.assign(query=["a", None, "a"]), list_id=["session", "query"])
    both = pd.DataFrame({"s": ["a/b", "a"], "q": ["c", "b/c"], "item_id": [1, 2], "price": [1.0, 2]})
    with pytest.raises(DataError, match=r"s and q cannot be joined, for both contain '/'"):
        from_pandas(both, list_id=["s", "q"])


def test_several_columns_make_one_list_id_in_a_file_too(tmp_path: Path) -> None:
    table = pa.table({"s": [1, 1, 2, 2], "q": [1, 1, 1, 2], "item_id": [1, 2, 1, 1], "price": [1.0, 2, 3, 4]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1)
    lists = read(tmp_path / "t.parquet", list_id=["s", "q"])
    assert (lists.list_ids.to_pylist(), lists.lengths.tolist()) == (["1/1", "2/1", "2/2"], [2, 1, 1])


def test_a_tuple_in_a_column_of_ids_is_a_clear_error() -> None:
    df = two_items(price=[1.0, 2.0]).assign(list_id=[("a", 1), ("a", 1)])
    with pytest.raises(DataError, match="list_id"):
        from_pandas(df)
    with pytest.raises(DataError, match=r"list_id holds list.*several columns are joined with list_id=\["):
        from_pandas(df.assign(list_id=[("a", "b"), ("a", "b")]))


def test_context_must_be_constant_in_a_list() -> None:
    with pytest.raises(DataError, match=r"row 3 \(list 'saw'\): column query_length changes within the list"):
        from_pandas(products(query_length=[3, 4, 3, 9, 4]), **ROLES)


def test_a_named_index_is_reported_and_may_have_a_role() -> None:
    df = two_items(price=[1.0, 2.0])
    lists = from_pandas(df.set_index(pd.Index([5, 6], name="row")))
    assert (lists.feature_names, uses(lists)["row"]) == (("price",), "ignored")
    assert from_pandas(df.set_index("item_id")).item_ids.to_pylist() == ["i0", "i1"]
    assert from_pandas(df.set_index(["list_id", "item_id"])).list_ids.to_pylist() == ["a"]
    df.index.name = "number"
    assert from_pandas(df, features=["number"]).features[:, 0].tolist() == [0, 1]
    unnamed = from_pandas(df.rename_axis(None).set_index(pd.Index(["x", "y"])))
    assert list(uses(unnamed)) == ["list_id", "item_id", "price"]
    doubled = df.rename_axis("price")
    assert from_pandas(doubled).features[:, 0].tolist() == [1, 2], "the column wins over an index of its name"
    again = from_pandas(two_items(**{"Unnamed: 0": [0, 1], "price": [1.0, 2.0]}))
    assert uses(again)["Unnamed: 0"] == "ignored", "what pandas reads of an index in a CSV file"


@pytest.mark.parametrize("name", ["row", 0])
def test_a_named_index_is_no_feature_beside_a_column_that_cannot_be_converted(name: Any) -> None:
    df = two_items(price=[1.0, 2.0], mixed=["a", 1]).set_index(pd.Index([5, 6], name=name))
    lists = from_pandas(df, ignore="mixed")
    assert (lists.feature_names, uses(lists)[str(name)]) == (("price",), "ignored")
    odd = pd.Index([5, "x"], name=name)
    assert uses(from_pandas(df.set_index(odd), ignore="mixed"))[str(name)] == "ignored", "nor if it cannot be either"


def test_categories_of_pandas_are_spelled_alike_beside_any_other_column() -> None:
    df = two_items(kind=pd.Categorical([3.0, 0.5]), flag=pd.Categorical([True, False]), cut=pd.cut([1, 9], [0, 5, 10]))
    for frame in (df, df.assign(mixed=["a", 1])):
        lists = from_pandas(frame, ignore=[] if frame is df else "mixed")
        assert {name: values.to_pylist() for name, values in lists.categorical.items()} == {
            "kind": ["3", "0.5"],
            "flag": ["true", "false"],
            "cut": ["(0, 5]", "(5, 10]"],
        }


# The base order


@pytest.mark.parametrize("positions", [[1, 0, 2], [2, 1, 3], [50, 7, 900], [0.5, -1.5, 2.0]])
def test_positions_may_begin_anywhere_and_have_gaps(positions: list[float]) -> None:
    lists = from_pandas(two_items(rank=positions), position="rank")
    assert lists.item_ids.to_pylist() == ["i1", "i0", "i2"]
    assert (lists.n_features, uses(lists)["rank"]) == (0, "base order")


@pytest.mark.parametrize(
    ("order_by", "expected"), [("score", ["i3", "i0", "i2", "i1"]), ("-score", ["i0", "i2", "i3", "i1"])]
)
@pytest.mark.parametrize("layout", ["items", "lists"])
def test_order_by_sorts_either_way_ties_keep_their_order_and_missing_values_are_last(
    order_by: str, expected: list[str], layout: str
) -> None:
    table: Any = two_items(score=[2.0, np.nan, 2.0, 1.0])
    if layout == "lists":
        table = pa.table({"list_id": ["a"], "item_id": [list(table.item_id)], "score": [[2.0, None, 2.0, 1.0]]})
    lists = from_table(table, order_by=order_by, features=[])
    assert lists.item_ids.to_pylist() == expected


def test_order_by_takes_times_and_a_name_that_begins_with_a_minus() -> None:
    df = two_items(at=pd.to_datetime(["2024-01-02", "2024-01-01"]))
    lists = from_pandas(df, order_by="at")
    assert (lists.item_ids.to_pylist(), lists.n_features) == (["i1", "i0"], 0)
    assert from_pandas(df.assign(**{"-x": [2, 1]}), order_by="-x", ignore="at").item_ids.to_pylist() == ["i1", "i0"]
    with pytest.raises(DataError, match=r"row 0 \(list 'a'\): word must hold numbers, not .*string"):
        from_pandas(two_items(word=["a", "b"]), order_by="word")


def test_a_position_that_two_items_share_names_the_way_out() -> None:
    with pytest.raises(
        DataError, match=r"row 1 .*position 1 is taken by another item of the list; declare it order_by"
    ):
        from_pandas(two_items(position=[1, 1]))


# Traps


@pytest.mark.parametrize("values", [[3, 4, 3], ["x", "y", "x"], [1.5, 2.5, 1.5], [True, False, True], ["x", 4, "x"]])
def test_the_category_type_of_pandas_is_categorical(values: list[Any]) -> None:
    lists = from_pandas(two_items(kind=pd.Categorical(values)))
    assert lists.n_features == 0
    found = lists.categorical["kind"].to_pylist()
    assert [one.lower() for one in found] == [str(value).lower() for value in values]


def test_declared_categories_are_the_same_with_and_without_a_missing_value() -> None:
    whole = from_pandas(two_items(kind=[3, 4]), categorical="kind")
    gaps = from_pandas(two_items(kind=[3, 4, None]), categorical="kind")
    assert gaps.categorical["kind"].to_pylist() == [*whole.categorical["kind"].to_pylist(), None] == ["3", "4", None]


ID_NAMES = ["brand_id", "productUID", "sellerId", "user_key", "zip_code", "categoryid", "SKU"]
NUMBER_NAMES = ["price_cents", "bid", "is_paid", "grid", "year", "n_ids_seen", "keyword_count", "position_last_week"]


@pytest.mark.parametrize("name", ID_NAMES)
def test_integers_with_the_name_of_an_id_are_warned_of(name: str) -> None:
    with pytest.warns(DataWarning, match=rf"'{name}' is taken for a number, but holds integers that look like ids"):
        lists = from_pandas(two_items(**{name: [1, 2, 3]}))
    assert lists.feature_names == (name,)
    assert lists.roles is not None
    assert lists.roles.uses[-1].note == "integers that look like ids"
    assert f"categorical=['{name}']" in lists.roles.warnings[0]
    for silent in ("categorical", "ignore", "features"):
        from_pandas(two_items(**{name: [1, 2, 3]}), **{silent: [name]})  # type: ignore[arg-type]


def many(values: Any) -> pd.DataFrame:
    return pd.DataFrame({"list_id": 0, "item_id": range(len(values)), "value": values})


RNG = np.random.default_rng(1)
N = 5000
CODES = {
    "six digits": RNG.permutation(np.arange(100_001, 206_650))[:N],
    "hashes": RNG.integers(0, 2**63, N),
    "of other things": RNG.integers(10**9, 10**10, N),
}
SECONDS = 1_700_000_000 + RNG.integers(0, 10**6, N)
NUMBERS = {
    "prices in cents": np.round(np.exp(RNG.normal(8, 1.5, N))).astype(int),
    "high prices in cents": np.round(np.exp(RNG.normal(14, 0.7, N))).astype(int),
    "counts": RNG.geometric(1e-4, N),
    "years": RNG.integers(1950, 2026, N),
    "positions": np.arange(N) + 1,
    "grades": RNG.integers(0, 5, N),
    "percentages": RNG.integers(0, 101, N),
    "views": RNG.zipf(1.5, N).clip(max=10**12),
    "seconds of the day": RNG.integers(0, 86400, N),
}


@pytest.mark.parametrize("case", CODES)
def test_large_integers_without_order_are_warned_of(case: str) -> None:
    with pytest.warns(DataWarning, match="'value' is taken for a number, but holds integers that"):
        from_pandas(many(CODES[case]))


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_integers_that_look_like_times_are_warned_of_and_have_parts(unit: int) -> None:
    with pytest.warns(DataWarning, match=r"'value' is taken for a number, .*look like times; .*time_parts=\['value'\]"):
        from_pandas(many(SECONDS * unit))
    lists = from_pandas(many(SECONDS * unit), time_parts="value")
    clock = pd.to_datetime(SECONDS, unit="s")
    np.testing.assert_allclose(lists.features[:, 0], clock.hour + clock.minute / 60, rtol=1e-6)
    np.testing.assert_array_equal(lists.features[:, 1], clock.day_of_week)


def test_times_as_text_are_warned_of() -> None:
    times = ["2016-06-14 04:06:19", "2016-06-14", "2016-06-15T11:00"]
    with pytest.warns(
        DataWarning, match=r"'at' is taken for categories, but holds times as text, .*time_parts=\['at'\]"
    ):
        from_pandas(two_items(at=times))
    from_pandas(two_items(at=times), time_parts="at")


@pytest.mark.parametrize("case", NUMBERS)
def test_integers_that_count_are_not_warned_of(case: str) -> None:
    assert from_pandas(many(NUMBERS[case])).feature_names == ("value",)


@pytest.mark.parametrize("name", NUMBER_NAMES)
def test_names_that_only_look_like_those_of_ids_are_not_warned_of(name: str) -> None:
    assert not has_name_of_id(name)
    from_pandas(two_items(**{name: [1, 2, 3]}))


def test_numbers_as_text_are_warned_of() -> None:
    with pytest.warns(
        DataWarning, match=r"'price' is taken for categories, but holds numbers as text, such as '12.5';"
    ):
        lists = from_pandas(two_items(price=["12.5", "7", "1e3"]))
    assert list(lists.categorical) == ["price"]
    assert lists.roles is not None
    assert "pandas.to_numeric" in lists.roles.warnings[0]
    odd = [*map(str, range(20)), "n/a"]
    with pytest.warns(DataWarning, match=r"holds numbers as text, but for 'n/a'; convert"):
        from_pandas(two_items(price=odd))
    for codes in (["007", "12", "13"], ["a1", "2", "3"], ["0", "1"], ["97554", "2031", "5.0"]):
        lists = from_pandas(two_items(tag=codes))
    assert lists.roles is not None
    assert lists.roles.uses[-1].note == "whole numbers as text", "ids are often stored like this"
    from_pandas(two_items(price=["12.5", "7", "1e3"]), categorical="price")
    with pytest.raises(DataError, match=r"row 0 .*label must hold numbers, not .*; convert it, .*pandas.to_numeric"):
        from_pandas(two_items(label=["1", "0"]))


def test_a_column_of_several_types_is_named_with_the_row_and_the_cure() -> None:
    mixed = pd.Series(["red", "blue", None, 3], dtype=object)
    message = (
        r"DataFrame, row 3: column colour holds 3 \(int\) where the rows above hold str; .*astype\(str\) or .*ignore="
    )
    with pytest.raises(DataError, match=message):
        from_pandas(two_items(colour=mixed))
    assert uses(from_pandas(two_items(colour=mixed), ignore="colour"))["colour"] == "ignored"
    assert from_pandas(two_items(colour=mixed.astype(str))).categorical["colour"].to_pylist()[3] == "3"
    with pytest.raises(DataError, match=r"row 1: column thing holds <object object .*\(object\)"):
        from_pandas(two_items(thing=[None, object()]))


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("s", "UTC"), pa.date32(), pa.date64()])
def test_a_timestamp_that_nobody_declared_is_refused_with_a_hint(kind: Any) -> None:
    days = pa.array([datetime.date(2024, 5, 6), datetime.date(2024, 5, 7)]).cast(pa.timestamp("s")).cast(kind)
    message = r"column value holds .*declare time_parts=\['value'\].*order_by='value', or ignore=\['value'\]"
    for ids, name in (["x", "y"], "a"), ([["x"], ["y"]], "ab"):
        table = pa.table({"list_id": list(name * (3 - len(name))), "item_id": ids, "value": days})
        with pytest.raises(DataError, match=message):
            from_table(table)
        assert from_table(table, ignore="value").n_items == 2


def test_parts_of_times_are_features_or_context() -> None:
    times = pd.to_datetime(["2024-05-06 07:30", "1970-01-01 12:00"])
    lists = from_pandas(two_items(at=times), time_parts="at")
    assert lists.feature_names == ("at.hour", "at.weekday", "at.days")
    monday = datetime.date(2024, 5, 6)
    assert monday.weekday() == 0
    days = (monday - datetime.date(1970, 1, 1)).days + 7.5 / 24
    expected = np.array([[7.5, 0, days], [12, 3, 0.5]], dtype=np.float32)
    np.testing.assert_array_equal(lists.features, expected)
    missing = time_parts(pa.array([None], pa.timestamp("s")), "at", "row {}".format)
    assert all(np.isnan(values).all() for values in missing.values())


def test_parts_of_times_of_lists() -> None:
    df = two_items(at=pd.to_datetime(["2024-05-06 07:30"] * 2).tz_localize("Europe/Berlin"))
    lists = from_pandas(df, time_parts="at", context="at")
    assert {name: values.tolist() for name, values in lists.context.items()} == {
        "at.hour": [7.5],
        "at.weekday": [0.0],
        "at.days": [(datetime.date(2024, 5, 6) - datetime.date(1970, 1, 1)).days + 7.5 / 24],
    }
    table = pa.table({"list_id": ["a"], "item_id": [["x"]], "on": [datetime.date(1970, 1, 2)]})
    assert {name: values.tolist() for name, values in from_table(table, time_parts="on").context.items()} == {
        "on.weekday": [4.0],
        "on.days": [1.0],
    }


def test_times_as_text_and_as_seconds_have_parts() -> None:
    text = from_pandas(two_items(at=["2024-05-06 07:30:00", "1970-01-01"]), time_parts="at")
    seconds = from_pandas(two_items(at=[1714980600, 0]), time_parts="at")
    np.testing.assert_array_equal(text.features, seconds.features)
    with pytest.raises(DataError, match=r"row 1 .*at holds 'noon', which is no time such as 2024"):
        from_pandas(two_items(at=["2024-05-06", "noon"]), time_parts="at")


@pytest.mark.parametrize("values", [[{"a": 1}] * 2, [[1.0, 2.0]] * 2])
def test_what_is_neither_number_nor_text_is_ignored_with_a_warning(values: list[Any]) -> None:
    table = pa.table({"list_id": ["a", "a"], "item_id": ["x", "y"], "extra": values})
    with pytest.warns(DataWarning, match=r"'extra' is ignored: it holds .*, neither numbers nor text"):
        lists = from_table(table)
    assert (lists.n_features, uses(lists)["extra"]) == (0, "ignored")
    from_table(table, ignore="extra")
    with pytest.raises(DataError, match=r"column extra holds .*neither numbers nor text"):
        from_table(table, features="extra")


# Ids


@pytest.mark.parametrize("layout", ["lists", "items"])
def test_integer_ids_come_back_as_integers(tmp_path: Path, layout: Any) -> None:
    df = pd.DataFrame({"list_id": pd.array([7, 7, 9], "uint16"), "item_id": [2**60, 1, 1], "price": [1.0, 2, 3]})
    lists = from_pandas(df)
    assert lists.original_list_ids().to_pylist() == [7, 9]
    assert lists[1:].original_item_ids().to_pylist() == [1]
    table = to_table(lists, layout)
    assert table.schema.field("list_id").type == pa.uint16()
    write(lists, tmp_path / "lists.parquet", layout=layout)
    again = read(tmp_path / "lists.parquet")
    assert_same_lists(again, lists)
    assert again.original_list_ids().type == pa.uint16()
    write(lists, tmp_path / "lists.jsonl")
    assert json.loads((tmp_path / "lists.jsonl").read_text().splitlines()[0])["item_id"] == [2**60, 1]
    write(lists, tmp_path / "lists.csv")
    assert read(tmp_path / "lists.csv").original_item_ids().to_pylist() == [2**60, 1, 1]


def test_ids_that_are_no_integers_any_more_are_text() -> None:
    lists = from_pandas(pd.DataFrame({"list_id": [7, 7], "item_id": [1, 2], "price": [1.0, 2]}))
    copies = lists.shuffle_items(seed=0, copies=2)
    assert copies.original_list_ids().to_pylist() == ["7~0", "7~1"]
    assert to_table(copies).schema.field("list_id").type == pa.string()


def test_whole_numbers_as_floats_are_ids_and_a_missing_one_is_named() -> None:
    df = pd.DataFrame({"list_id": [7.0, 7, 9], "item_id": [1.0, 2.0, 1.0], "price": [1.0, 2, 3]})
    lists = from_pandas(df)
    assert lists.list_ids.to_pylist() == ["7", "9"]
    assert lists.original_item_ids().to_pylist() == [1.0, 2.0, 1.0]
    for name, place in (("list_id", r"row 1"), ("item_id", r"row 1 \(list '7'\)")):
        broken = df.copy()
        broken.loc[1, name] = np.nan
        with pytest.raises(DataError, match=rf"{place}: no {name}, and this missing value has made floating-point"):
            from_pandas(broken)


# Files


def test_files_keep_their_roles_and_own_files_are_not_suspected(tmp_path: Path) -> None:
    lists = ItemLists(
        np.array([[1.0], [2], [3]]), [0, 3], feature_names=["brand_id"], categorical={"n": ["1", "2", "3"]}
    )
    write(lists, tmp_path / "own.parquet", layout="items")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = read(tmp_path / "own.parquet")
    assert_same_lists(again, lists)
    assert uses(again) == {
        "list_id": "list_id",
        "position": "base order",
        "item_id": "item_id",
        "brand_id": "feature",
        "n": "categorical",
    }


def test_parquet_takes_roles_and_reads_only_what_they_need(tmp_path: Path) -> None:
    df = products().sort_values("search_term", kind="stable")
    pq.write_table(pa.Table.from_pandas(df), tmp_path / "p.parquet")
    lists = read_parquet(tmp_path / "p.parquet", Columns(**ROLES))
    assert_same_lists(lists, from_pandas(df, **ROLES))
    assert_same_lists(ItemLists.concat(list(stream_parquet(tmp_path / "p.parquet", lists_per_chunk=1, **ROLES))), lists)
    products().to_parquet(tmp_path / "mixed.parquet")
    with pytest.raises(DataError, match=r"mixed.parquet, row 2 \(list 'saw'\): the list comes back"):
        read(tmp_path / "mixed.parquet", Columns(**ROLES))


@pytest.mark.parametrize("name", ["own.parquet", "own.jsonl"])
def test_features_that_are_written_as_vectors_are_chosen_by_name(tmp_path: Path, name: str) -> None:
    lists = ItemLists(np.arange(6.0).reshape(2, 3), [0, 2], feature_names=["age", "price", "size"], labels=[0, 1])
    write(lists, tmp_path / name)
    for roles in ({"ignore": "price"}, {"features": ["size", "age"]}):
        read_again = read(tmp_path / name, **roles)
        assert (read_again.feature_names, read_again.features.tolist()) == (("age", "size"), [[0, 2], [3, 5]])
        assert read_again.roles is not None
        assert ("features", "feature", "age, size") in read_again.roles.uses
    assert read(tmp_path / name, features=["features"]).feature_names == ("age", "price", "size")
    assert read(tmp_path / name, features=[]).n_features == 0
    with pytest.raises(DataError, match="no column 'weight', which is declared ignore"):
        read(tmp_path / name, ignore="weight")


def test_json_lines_take_roles(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"q": 7, "docs": [1, 2], "clicks": [0, 1], "price": [1.5, 2]}\n')
    lists = read(tmp_path / "q.jsonl", list_id="q", item_id="docs", label="clicks")
    assert lists.labels is not None
    assert (lists.original_list_ids().to_pylist(), lists.labels.tolist()) == ([7], [0, 1])


def test_letor_has_no_names_and_takes_no_roles(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 qid:1 1:0.5\n")
    with pytest.raises(UsageError, match=r"a.txt: its columns have no names, so there can be no label"):
        read(tmp_path / "a.txt", label="x")


def test_a_file_beside_the_data_declares_roles_and_arguments_win(tmp_path: Path) -> None:
    products().to_csv(tmp_path / "a.csv", index=False)
    roles = {name: value for name, value in ROLES.items() if name != "ignore"}
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in roles.items())
    (tmp_path / "columns.toml").write_text(text + 'ignore = "brand"\n'.replace("brand", "id"))
    lists = read(tmp_path / "a.csv")
    assert_same_lists(lists, from_pandas(products(), **ROLES))
    assert read(tmp_path / "a.csv", order_by="tfidf").item_ids.to_pylist()[0] == "100001"
    (tmp_path / "a.columns.toml").write_text(text + "ignore = []\n")
    with pytest.warns(DataWarning, match="'id' is taken for a number"):
        assert read(tmp_path / "a.csv").feature_names == ("id", "tfidf")


def test_a_wrong_file_of_roles_is_named_with_its_key(tmp_path: Path) -> None:
    products().to_csv(tmp_path / "a.csv", index=False)
    place = re.escape(str(tmp_path / "columns.toml"))
    for text, message in (
        ('lable = "x"', r"there is no role 'lable' \(did you mean 'label'\?\)"),
        ("label = [", ""),
        ("ignore = 3", "ignore must be the name of a column"),
        ('label = "relevnce"', ""),
    ):
        (tmp_path / "columns.toml").write_text(text)
        with pytest.raises(
            (UsageError, DataError), match=f"{place}: {message}" if "relevnce" not in text else "relevnce"
        ):
            read(tmp_path / "a.csv", list_id="search_term", item_id="product_uid")


def test_a_role_that_is_given_wins_over_a_file_even_if_it_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text('list_id = "session"\nignore = "list_id"\n')
    path = tmp_path / "a.csv"
    path.write_text("session,list_id,item_id,price\n1,a,x,1\n2,a,y,2\n")
    assert read(path).list_ids.to_pylist() == ["1", "2"]
    for found in (read(path, list_id="list_id"), as_lists(path, {"list_id": "list_id"})):
        assert found.list_ids.to_pylist() == ["a"]


def test_a_shared_file_of_roles_is_not_for_what_seq2slate_wrote(tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text('list_id = "search_term"\nitem_id = "product_uid"\nignore = "id"\n')
    products().to_csv(tmp_path / "a.csv", index=False)
    lists = read(tmp_path / "a.csv")
    write(lists, tmp_path / "b.parquet")
    assert_same_lists(read(tmp_path / "b.parquet"), lists)


def test_a_split_takes_roles(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        products().to_csv(tmp_path / f"{part}.csv.gz", index=False)
    split = read_split(tmp_path, **ROLES)
    assert_same_lists(split.test, from_pandas(products(), **ROLES))


def test_a_declared_label_may_be_missing_where_none_is_needed(tmp_path: Path) -> None:
    products().drop(columns="relevance").to_csv(tmp_path / "a.csv", index=False)
    assert read(tmp_path / "a.csv", labelled=False, **ROLES).labels is None
    with pytest.raises(DataError, match="no column 'relevance', which is declared label"):
        read(tmp_path / "a.csv", **ROLES)


def test_labels_are_not_read_where_none_are_needed() -> None:
    unknown = products(relevance=[np.nan] * 5)
    assert from_table(unknown, labelled=False, **ROLES).labels is None
    assert from_table(two_items(label=["?", "?"]), labelled=False).labels is None


def test_a_time_is_not_offered_as_base_order_where_there_is_one() -> None:
    times = pd.to_datetime(["2026-01-01", "2026-01-02"])
    with pytest.raises(DataError, match="order_by='ts'"):
        from_table(two_items(ts=times))
    for role in ("order_by", "position"):
        with pytest.raises(DataError) as raised:
            from_table(two_items(ts=times, score=[1, 2]), {role: "score"})
        assert "order_by" not in str(raised.value)


def test_the_name_of_the_base_order_is_escaped() -> None:
    roles = from_table(two_items(**{"<b>": [1, 2]}), order_by="<b>").roles
    assert roles is not None
    assert "<b>" not in roles._repr_html_()


def test_roles_of_several_models_are_joined() -> None:
    one = Columns(label="y", features=["a"], categorical=["c"])
    other = Columns(label="y", features=["b"], context=["d"], time_parts=["t"])
    assert join_columns([one, other]) == Columns(
        label="y", features=["a", "b"], categorical=["c"], context=["d"], time_parts=["t"]
    )
    assert join_columns([one, Columns()]) == Columns(label="y", categorical=["c"])
    assert join_columns([]) == join_columns([Columns()]) == Columns()
    for role in ("list_id", "item_id", "label", "position", "order_by"):
        with pytest.raises(UsageError, match=f"different columns as {role}"):
            join_columns([Columns(**{role: "p"}), Columns(**{role: "q"})])


def test_two_categories_are_not_given_the_name_of_the_item_ids() -> None:
    table = two_items(doc=["x", "y"])
    assert from_table(table, item_id="doc", categorical=["doc"]).categorical["item_id"].to_pylist() == ["x", "y"]
    with pytest.raises(DataError, match="doc and item_id are both categorical"):
        from_table(table, item_id="doc", categorical=["doc", "item_id"])


def test_lists_are_split_in_their_order() -> None:
    lists = ItemLists(np.ones((10, 1)), np.arange(11))
    parts = lists.split(0.6, 0.2, in_order=True)
    assert [part.list_ids.to_pylist() for part in parts] == [list("012345"), list("67"), list("89")]
    assert_same_lists(lists.split(0.5)[0], lists.split(0.5, seed=0)[0])
