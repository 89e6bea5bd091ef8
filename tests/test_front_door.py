"""From a DataFrame to slates, as people do it who come from pandas, polars, scikit-learn and LightGBM."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score

import seq2slate as s2s
from seq2slate.data.lists import ItemLists
from seq2slate.errors import DataError, DataWarning, UsageError

ROLES: dict[str, Any] = {
    "list_id": "search_term",
    "item_id": "product_uid",
    "label": "relevance",
    "order_by": "-tfidf",
    "categorical": ["brand"],
    "context": ["query_length"],
    "ignore": ["id"],
}
COLUMNS = s2s.Columns(**ROLES)
N_QUERIES, N_ITEMS = 60, 6


def search_log(seed: int = 0) -> pd.DataFrame:
    """One row per product of a search: the brand and the price decide, and the base order knows only the text score."""
    rng = np.random.default_rng(seed)
    rows = N_QUERIES * N_ITEMS
    queries = np.repeat(np.arange(N_QUERIES), N_ITEMS)
    brand = rng.integers(0, 4, rows)
    price = rng.normal(size=rows)
    return pd.DataFrame(
        {
            "id": np.arange(rows) + 10_000,
            "search_term": [f"query {number}" for number in queries],
            "product_uid": rng.permutation(rows) + 100_000,
            "tfidf": rng.random(rows),
            "price": price,
            "brand": np.array(["ash", "birch", "cedar", "dogwood"])[brand],
            "query_length": 1 + queries % 3,
            "relevance": ((brand == 1) & (price < 0.5)).astype(float),
        },
        index=rng.permutation(rows) * 3,
    )


def small(**options: Any) -> s2s.Reranker:
    return s2s.Reranker("paper", **{"hidden": 16, "epochs": 12, "learning_rate": 0.02, "batch_size": 16, **options})


LOG, TEST = search_log(), search_log(seed=1)


@pytest.fixture(scope="module")
def model() -> s2s.Reranker:
    return small().fit(s2s.from_pandas(LOG, **ROLES), quiet=True)


# The ten lines


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_ten_lines(library: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    df: Any = LOG if library == "pandas" else pl.from_pandas(LOG)
    lists = s2s.from_pandas(df, **ROLES) if library == "pandas" else s2s.from_polars(df, **ROLES)
    train, valid, test = lists.split(0.6, 0.2, seed=0)
    model = small().fit(train, valid)
    said = capsys.readouterr().err
    assert "search_term" in said
    assert f"base order {model.history_.base:.4f} → {model.history_.best:.4f}" in said
    result = model.evaluate(test)
    assert result.rankers == ("base", "seq2slate (paper)")
    assert "<table>" in result._repr_html_()
    slots = model.predict(df)
    model.save(tmp_path / "model")
    again = s2s.load(str(tmp_path / "model")).predict(df)
    assert list(again) == list(slots)


def test_slots_are_aligned_with_the_rows(model: s2s.Reranker) -> None:
    df = TEST.sample(frac=1, random_state=3)  # rows of a list are apart, the index is in no order
    df["slot"] = model.predict(df)
    for query, rows in df.groupby("search_term"):
        assert sorted(rows["slot"]) == list(range(1, N_ITEMS + 1))
        (slate,) = [one for one in model.rerank(TEST) if one.list_id == query]
        assert rows.sort_values("slot")["product_uid"].tolist() == slate.item_ids


def test_a_series_comes_back_in_the_library_that_asked(model: s2s.Reranker) -> None:
    pandas, polars = model.predict(TEST), model.predict(pl.from_pandas(TEST))
    assert isinstance(pandas, pd.Series)
    assert pandas.index.equals(TEST.index)
    assert pandas.name == "slot"
    assert isinstance(polars, pl.Series)
    assert polars.name == "slot"
    array = model.predict(pa.Table.from_pandas(TEST))
    assert isinstance(array, np.ndarray)
    assert polars.to_list() == pandas.tolist() == array.tolist()


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_with_one_row_per_list_a_row_gets_the_slots_of_its_items(library: str) -> None:
    rng = np.random.default_rng(1)
    scores = [rng.random(length).tolist() for length in rng.integers(0, 6, 80)]
    table = pa.table(
        {
            "list_id": range(80),
            "item_id": [list(range(len(row))) for row in scores],
            "score": scores,
            "label": [[float(score > 0.6) for score in row] for row in scores],
        }
    )
    model = s2s.RidgeRanker(columns={"order_by": "-score"})
    with pytest.warns(DataWarning, match="determines the label"):
        model.fit(table, quiet=True)
    data = {"pandas": table.to_pandas(), "polars": pl.from_arrow(table), "arrow": table}[library]
    slots = model.predict(data)
    assert len(slots) == 80
    for row, of_row in zip(scores, slots, strict=True):  # the highest score is the best item, wherever it stands
        assert [int(slot) for slot in of_row] == [1 + sorted(row, reverse=True).index(score) for score in row]


def test_a_row_that_stands_for_an_empty_list_has_slot_0() -> None:
    lists = s2s.from_pandas(LOG, **ROLES)
    frame = s2s.to_table(ItemLists.concat([lists[:2], lists[2:3].truncate(0)]), layout="items").to_pandas()
    slots = s2s.RidgeRanker().fit(frame, quiet=True).predict(frame)
    assert slots.tolist()[-1] == 0
    assert sorted(slots[:-1]) == sorted([1, 2, 3, 4, 5, 6] * 2)


def as_csv(df: pd.DataFrame, folder: Path) -> Any:
    df.to_csv(folder / "log.csv", index=False)
    return str(folder / "log.csv")


def as_parquet(df: pd.DataFrame, folder: Path) -> Any:
    df.to_parquet(folder / "log.parquet")
    return folder / "log.parquet"


FORMS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "lists": lambda df, _: s2s.from_pandas(df, **ROLES),
    "pandas": lambda df, _: df,
    "polars": lambda df, _: pl.from_pandas(df),
    "arrow": lambda df, _: pa.Table.from_pandas(df),
    "csv": as_csv,
    "parquet": as_parquet,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_is_taken_by_every_method(form: str, tmp_path: Path, model: s2s.Reranker) -> None:
    train = test = FORMS[form](LOG, tmp_path)
    fitted = small(columns=COLUMNS).fit(train, quiet=True)
    assert fitted.history_ == model.history_
    assert fitted.score(test) == pytest.approx(model.score(LOG))
    assert fitted.evaluate(test).rows == model.evaluate(LOG).rows
    assert [slate.item_ids for slate in fitted.rerank(test)] == [slate.item_ids for slate in model.rerank(LOG)]
    if form != "lists":  # which are in base order
        assert list(fitted.predict(test)) == list(model.predict(LOG))


def test_arrays_with_groups_are_taken_as_lightgbm_takes_them() -> None:
    features = np.random.default_rng(0).normal(size=(N_QUERIES * N_ITEMS, 3))
    y = (features[:, 1] + 0.1 * features[:, 2] > 0.5).astype(float)
    group = np.full(N_QUERIES, N_ITEMS)
    model = small().fit((features, y, group), quiet=True)
    slots = model.predict((features, group))
    assert slots.shape == (len(features),)
    assert small().fit(features, y, group=group, quiet=True).predict((features, group)).tolist() == slots.tolist()
    assert model.score((features, y, group)) > 0.9
    assert slots[:N_ITEMS][features[:N_ITEMS, 1].argmax()] <= 2


def test_labels_as_the_second_argument_are_explained() -> None:
    with pytest.raises(UsageError, match=r"validation lists, not labels.*fit\(X, y, group=group\)"):
        small(columns=COLUMNS).fit(LOG, LOG["relevance"])


@pytest.mark.parametrize("kind", ["ridge", "mart", "ranknet", "mmr"])
def test_baselines_are_used_in_the_same_way(kind: str, tmp_path: Path) -> None:
    if kind == "mart":
        pytest.importorskip("lightgbm", reason="LightGBM is not installed")
    ranker = s2s.make_estimator(kind, columns=COLUMNS).fit(LOG, quiet=True)
    assert ranker.predict(TEST).between(1, N_ITEMS).all()
    assert ranker.evaluate(TEST).rankers == ("base", kind)
    ranker.save(str(tmp_path / kind))
    assert s2s.load(tmp_path / kind).predict(TEST).equals(ranker.predict(TEST))


def test_a_model_reads_lists_that_were_written_with_names_of_our_own(tmp_path: Path, model: s2s.Reranker) -> None:
    lists = s2s.from_pandas(TEST, **ROLES)
    for layout in ("lists", "items"):
        s2s.write(lists, tmp_path / "own.parquet", layout=layout)
        assert model.rerank(tmp_path / "own.parquet") == model.rerank(TEST)
        assert model.score(tmp_path / "own.parquet") == model.score(TEST)


# scikit-learn


def test_grid_search_over_a_frame_with_groups() -> None:
    search = GridSearchCV(small(columns=COLUMNS), {"epochs": [1, 12]}, cv=GroupKFold(2))
    search.fit(LOG, groups=LOG["search_term"], quiet=True)
    assert search.best_params_ == {"epochs": 12}
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])
    assert search.predict(TEST).index.equals(TEST.index)


def test_grid_search_over_lists() -> None:
    lists = s2s.from_pandas(LOG, **ROLES)
    scores = cross_val_score(s2s.RidgeRanker(), lists, cv=3)
    assert scores.shape == (3,)
    assert (scores > 0).all()


def test_a_clone_has_the_roles_and_nothing_learned(model: s2s.Reranker) -> None:
    twin = clone(small(columns=COLUMNS, seed=3))
    assert twin.get_params()["columns"] == COLUMNS
    assert twin.set_params(hidden=4).get_params()["hidden"] == 4
    with pytest.raises(UsageError, match="not fitted yet: call fit first"):
        twin.predict(TEST)


# What people see


def test_short_texts_and_tables_for_notebooks(model: s2s.Reranker) -> None:
    assert repr(s2s.Reranker()) == "Reranker()"
    assert repr(s2s.make_estimator("ridge", penalty=2.0)) == "RidgeRanker(penalty=2.0)"
    assert len(repr(s2s.from_pandas(LOG, **ROLES))) < 120
    assert '<th scope="col">fitted</th>' in model._repr_html_()
    assert '<th scope="col">not fitted</th>' in s2s.Reranker()._repr_html_()
    assert "<td>&#x27;paper&#x27;</td>" in model._repr_html_()


# Traps


@pytest.mark.parametrize("number", [np.int64(8), np.float32(8), 8.0])
def test_options_may_be_numbers_of_numpy(number: Any, tmp_path: Path) -> None:
    model = small(hidden=number, epochs=1, columns=COLUMNS, bidirectional=np.bool_(False)).fit(LOG, quiet=True)
    model.save(tmp_path / "model")
    assert type(s2s.load(tmp_path / "model").get_params()["hidden"]) is int
    ranker = s2s.make_estimator("ranknet", epochs=number, columns=COLUMNS).fit(LOG, quiet=True)
    ranker.save(tmp_path / "ranknet")
    assert type(ranker.get_params()["epochs"]) is int


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": "wide"}, "hidden must be a whole number, got 'wide'"),
        ({"hidden": 8.5}, "hidden must be a whole number, got 8.5"),
        ({"k": "3"}, "k must be a whole number"),
        ({"learning_rate": "0.1"}, "learning_rate must be a number"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"base_prior": 1}, "base_prior must be True or False"),
        ({"epoch": 3}, "there is no option 'epoch'"),
        ({"list_id": "search_term"}, r"it is a role of columns: give columns=\{'list_id': ...\}"),
    ],
)
def test_options_of_another_type_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        small(columns=COLUMNS, **options).fit(LOG, quiet=True)


def test_a_ranker_asks_only_for_the_columns_that_it_reads() -> None:
    ranker = s2s.RidgeRanker(columns=COLUMNS).fit(LOG, quiet=True)
    assert ranker.predict(TEST.drop(columns=["brand", "query_length", "relevance"])).equals(ranker.predict(TEST))


def test_a_fit_that_fails_leaves_nothing() -> None:
    pytest.importorskip("lightgbm", reason="LightGBM is not installed")
    trees = s2s.make_estimator("mart", base_position=False)
    bare = ItemLists(np.zeros((40, 0)), np.arange(0, 41, 4), labels=[0, 1] * 20)
    with pytest.raises(DataError, match="the lists have no column"):
        trees.fit(bare, quiet=True)
    assert not trees.__sklearn_is_fitted__()


def test_a_warning_points_at_the_line_of_the_user() -> None:
    with pytest.warns(DataWarning) as warned:
        small(epochs=1, columns=COLUMNS).fit(LOG.assign(sold=LOG["relevance"] * 3 + 1), quiet=True)
    assert {one.filename for one in warned} == {__file__}


def test_columns_that_training_did_not_have_are_ignored_and_missing_ones_are_named(model: s2s.Reranker) -> None:
    slots = model.predict(TEST)
    more = TEST.assign(margin=1.0, seen_at=pd.Timestamp("2024-01-01"))
    assert model.predict(more).equals(slots)
    assert model.predict(TEST.drop(columns=["id", "relevance"])).equals(slots)
    for name in ("price", "brand", "query_length", "search_term", "tfidf"):
        with pytest.raises(DataError, match=f"'?{name}'?"):
            model.predict(TEST.drop(columns=[name]))


def test_categories_that_were_never_seen_are_told(model: s2s.Reranker) -> None:
    other = TEST.assign(brand=TEST["brand"].str.upper())
    with pytest.warns(DataWarning, match="no value of the categorical column 'brand' was seen in training"):
        model.predict(other)
    with pytest.warns(DataWarning, match="no value of the categorical column 'brand' was seen in training"):
        model.evaluate(other)


def test_rankers_that_read_different_columns_are_compared() -> None:
    one = s2s.RidgeRanker(columns=ROLES | {"features": ["tfidf"]}).fit(LOG, quiet=True)
    two = s2s.RidgeRanker(columns=ROLES | {"features": ["price"]}).fit(LOG, quiet=True)
    result = s2s.evaluate({"one": one, "two": two}, TEST, measures="NDCG@5")
    for name, ranker in (("one", one), ("two", two)):
        assert result.row(name, "NDCG@5").mean == ranker.evaluate(TEST, measures="NDCG@5").row("ridge", "NDCG@5").mean


def test_a_model_is_evaluated_alone_or_by_name(model: s2s.Reranker) -> None:
    lists = s2s.from_pandas(TEST, **ROLES)
    alone, named = s2s.evaluate(model, lists), s2s.evaluate({"mine": model}, TEST)
    assert alone.rankers == ("base", "seq2slate (paper)")
    assert named.row("mine", "MAP").mean == alone.row("seq2slate (paper)", "MAP").mean
    with pytest.raises(UsageError, match="takes a ranker or a dict of rankers first, then the lists"):
        s2s.evaluate(lists, model)  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [3.0, np.int64(3), np.float32(3)])
def test_a_whole_number_of_slots_may_be_of_any_type(k: Any, model: s2s.Reranker) -> None:
    assert [len(slate.item_ids) for slate in model.rerank(TEST, k=k)[:2]] == [3, 3]
    assert s2s.evaluate(model, TEST, k=k).n_lists == N_QUERIES


@pytest.mark.parametrize("k", [0, -1, 2.5, "3", True, float("nan")])
def test_any_other_number_of_slots_is_refused(k: Any, model: s2s.Reranker) -> None:
    for ranker in (model, s2s.RidgeRanker(columns=COLUMNS).fit(LOG, quiet=True)):
        with pytest.raises(UsageError, match="k is the number of slots, a whole number of at least 1"):
            ranker.rerank(TEST, k=k)
    with pytest.raises(UsageError, match="k is the number of slots"):
        s2s.evaluate(model, TEST, k=k)


def test_a_leak_is_named_before_training() -> None:
    leaky = LOG.assign(sold=LOG["relevance"] * 3 + 1)
    with pytest.warns(DataWarning, match=r"column 'sold' determines the label: a leak"):
        s2s.RidgeRanker(columns=COLUMNS).fit(leaky, quiet=True)


def test_grades_from_1_are_told_by_fit_and_evaluate(model: s2s.Reranker) -> None:
    shifted = LOG.assign(relevance=LOG["relevance"] + 1)
    with pytest.warns(DataWarning, match="the lowest label is 1"):
        s2s.RidgeRanker(columns=COLUMNS).fit(shifted, quiet=True)
    with pytest.warns(DataWarning, match="the lowest label is 1"):
        model.evaluate(shifted)


def test_a_log_without_a_label_says_which_column_it_could_be() -> None:
    with pytest.raises(DataError, match=r"label='relevance'"):
        small(columns={name: role for name, role in ROLES.items() if name != "label"}).fit(LOG)


def test_a_log_of_ids_alone_is_learned_from() -> None:
    rng = np.random.default_rng(0)
    items = np.concatenate([rng.permutation(12)[:5] for _ in range(200)])
    log = pd.DataFrame({"list_id": np.repeat(np.arange(200), 5), "item_id": items, "label": (items < 3).astype(int)})
    model = small(epochs=3, columns=s2s.Columns(categorical="item_id")).fit(log, quiet=True)
    assert model.history_.best > model.history_.base
    assert model.score(log) > 0.95
    assert all(isinstance(slate.list_id, int) for slate in model.rerank(log))


def test_sound_data_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small(epochs=1, columns=COLUMNS).fit(LOG, quiet=True).evaluate(TEST)
    assert isinstance(s2s.from_pandas(LOG, **ROLES), ItemLists)
