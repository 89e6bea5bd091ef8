"""Impressions: from the log to Parquet to lists and back, nothing is lost."""

from __future__ import annotations

import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2slate.data.files import read, write
from seq2slate.data.impressions import (
    Draft,
    Impression,
    Impressions,
    context_types,
    impressions_from_lists,
    lists_from_impressions,
)
from seq2slate.data.lists import ItemLists
from seq2slate.data.parquet import read_parquet, write_parquet, write_parquet_parts
from seq2slate.errors import DataError, UsageError
from seq2slate.log.export import export
from seq2slate.log.impression_log import open_log
from seq2slate.simulation.click_models import click_model, simulate_clicks
from tests.logs import impression
from tests.random_lists import assert_same_lists

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
TIMES = st.floats(-1e9, 1.7e9)


@st.composite
def impressions_of_one_log(draw: st.DrawFn) -> list[Impression]:
    """Impressions with the same columns, and everything else at random."""
    n_features, n_impressions = draw(st.integers(0, 3)), draw(st.integers(1, 6))
    names = draw(st.lists(TEXT.filter(bool), min_size=n_features, max_size=n_features, unique=True))
    has_brand, has_context = draw(st.booleans()), draw(st.booleans())
    return [
        draw(one_impression(f"s{number}", names, has_brand=has_brand, has_context=has_context))
        for number in range(n_impressions)
    ]


@st.composite
def one_impression(
    draw: st.DrawFn, slate_id: str, names: list[str], *, has_brand: bool, has_context: bool
) -> Impression:
    items = draw(st.lists(TEXT, max_size=5, unique=True))
    n_items = len(items)
    shown = draw(st.permutations(range(n_items)))[: draw(st.integers(0, n_items))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logs = st.lists(st.floats(-50, 0), min_size=len(shown), max_size=len(shown))
    context: dict[str, Any] = {"hour": draw(st.floats(-1e9, 1e9)), "city": draw(st.none() | TEXT)}
    teams = "".join(draw(st.sampled_from("ab")) for _ in shown)
    return Impression(
        slate_id=slate_id,
        at=draw(TIMES),
        unit=draw(TEXT),
        experiment=draw(TEXT),
        arm=draw(TEXT),
        items=items,
        shown=shown,
        features=rng.normal(size=(n_items, len(names))).astype(np.float32),
        latency_ms=draw(st.floats(0, 1e6)),
        feature_names=tuple(names),
        categorical={"brand": [draw(st.none() | TEXT) for _ in items]} if has_brand else {},
        context=context if has_context else None,
        model=draw(st.none() | TEXT),
        log_propensities=draw(st.none() | logs),
        fallback=draw(st.none() | TEXT),
        draft=Draft(draw(TEXT), draw(TEXT), teams) if draw(st.booleans()) else None,
        clicks={item: draw(TIMES) for item in shown if draw(st.booleans())},
    )


def assert_same_impressions(found: list[Impression], expected: list[Impression]) -> None:
    """Field by field; features bit for bit."""
    assert [one.slate_id for one in found] == [one.slate_id for one in expected]
    for one, other in zip(found, expected, strict=True):
        for field in fields(Impression):
            a, b = getattr(one, field.name), getattr(other, field.name)
            if field.name == "features":
                assert a.tobytes() == b.tobytes()
                assert a.shape == b.shape
            else:
                assert a == b, field.name


# From the log to lists


@settings(max_examples=30, deadline=None)
@given(impressions_of_one_log())
def test_the_log_its_export_and_the_reader_lose_nothing(impressions: list[Impression]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with open_log(f"{folder}/log.db") as log:
            for one in impressions:
                log.add_impression(replace(one, clicks={})).result()
                for item, at in one.clicks.items():
                    log.add_click(one.slate_id, one.items[item], at).result()
            impressions = sorted(impressions, key=lambda one: (one.at, one.slate_id))
            assert_same_impressions(list(log.impressions()), impressions)
            assert export(log, f"{folder}/log.parquet", batch=2) == len(impressions)
        assert_same_impressions(impressions_from_lists(read(f"{folder}/log.parquet")), impressions)


@settings(max_examples=40, deadline=None)
@given(impressions_of_one_log(), st.sampled_from(["lists.parquet", "items.parquet", "lists.jsonl"]))
def test_files_of_every_kind_lose_nothing(impressions: list[Impression], name: str) -> None:
    lists = lists_from_impressions(impressions)
    assert_same_impressions(impressions_from_lists(lists), impressions)
    with tempfile.TemporaryDirectory() as folder:
        write(lists, f"{folder}/{name}", layout="items" if "items" in name else "lists")
        again = read(f"{folder}/{name}")
    assert_same_lists(again, lists)
    assert_same_impressions(impressions_from_lists(again), impressions)


def test_labels_and_columns_of_lists_from_impressions() -> None:
    one = replace(impression(0, n_items=4, n_shown=3), shown=[2, 0, 1], clicks={0: 7.0}, log_propensities=[-1, -2, -3])
    lists = lists_from_impressions([one])
    assert lists.impressions is not None
    assert lists.labels is not None
    assert lists.impressions.log_propensities is not None
    assert lists.labels.tolist() == [1, 0, 0, 0]
    assert lists.impressions.slots.tolist() == [1, 2, 0, -1]
    assert lists.impressions.log_propensities.tolist() == [-2, -3, -1, 0]
    total = lists.impressions.log_propensities.sum()
    assert total == sum(one.log_propensities or []), "the sum over a list is that of its slate"


def test_choices_that_were_all_certain_have_no_log_propensities() -> None:
    assert replace(impression(0), log_propensities=[0.0, -0.0, 0.0]).log_propensities is None
    assert replace(impression(0), log_propensities=[0.0, -1e-9, 0.0]).log_propensities == [0.0, -1e-9, 0.0]


def test_impressions_with_other_columns_are_refused() -> None:
    others = {
        "feature": impression(1, n_features=2),
        "categorical": replace(impression(1), categorical={"brand": list("wxyz")}),
    }
    for other in others.values():
        with pytest.raises(DataError, match="'slate-1' does not have the columns of 'slate-0'"):
            lists_from_impressions([impression(0), other])
    with pytest.raises(DataError, match="'slate-1' does not have the columns of 'slate-0'"):
        lists_from_impressions(
            [impression(0, context={"hour": 1}), impression(1, context={"hour": "one"})], {"hour": float}
        )
    with pytest.raises(UsageError, match="at least one"):
        lists_from_impressions([])


@pytest.mark.parametrize(
    ("contexts", "said"),
    [
        ([{"hour": 1}, {"hour": "one"}], "'hour' is a number in some impressions and text in others"),
    ],
)
def test_context_is_text_or_numbers(contexts: list[Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        context_types(contexts)


def test_numbers_may_be_missing() -> None:
    features = np.array([[1.0, np.nan], [np.nan, 2.0]])
    impressions = [
        replace(impression(number, n_items=2, n_features=2, context={"hour": hour}), features=features)
        for number, hour in enumerate([1.0, None])
    ]
    lists = lists_from_impressions(impressions)
    np.testing.assert_array_equal(lists.features, np.tile(features, (2, 1)))
    np.testing.assert_array_equal(lists.context["hour"], [1, np.nan])
    again = impressions_from_lists(lists)
    assert [one.context for one in again] == [{"hour": 1.0}, {"hour": None}]
    np.testing.assert_array_equal(again[0].features, features)


def test_text_of_the_context_may_be_missing() -> None:
    impressions = [impression(0, context={"city": "Bern"}), impression(1), impression(2, context={"city": None})]
    lists = lists_from_impressions(impressions)
    assert lists.context["city"].to_pylist() == ["Bern", None, None]
    assert [one.context for one in impressions_from_lists(lists)] == [{"city": "Bern"}, {"city": None}, {"city": None}]


# From lists that know less


def test_simulated_clicks_are_impressions_of_the_base_order() -> None:
    lists = ItemLists(np.arange(8.0)[:, None], [0, 3, 3, 8], labels=[2, 0, 2, 0, 2, 2, 0, 2])
    log = simulate_clicks(click_model("cascade", eta=0), lists, seed=0)
    assert log.impressions is not None
    assert log.labels is not None
    assert log.impressions.slots.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    found = impressions_from_lists(log)
    assert [list(one.shown) for one in found] == [[0, 1, 2], [], [0, 1, 2, 3, 4]]
    assert [list(one.clicks) for one in found] == [[0, 2], [], [1, 2, 4]]
    assert [(one.unit, one.arm, one.at, one.log_propensities) for one in found] == [("", "", 0.0, None)] * 3
    later = log.reorder(np.arange(8))
    assert [one.shown for one in impressions_from_lists(later)] == [[2, 1, 0], [], [4, 3, 2, 1, 0]]


def test_lists_that_lack_what_was_shown_have_no_impressions() -> None:
    lists = ItemLists(np.zeros((3, 1)), [0, 3])
    with pytest.raises(DataError, match="list '0': the lists have no impressions"):
        impressions_from_lists(lists)
    cut = replace(lists, impressions=Impressions(np.array([2, 0, 1]))).truncate(2)
    with pytest.raises(DataError, match="list '0': a slot is empty"):
        impressions_from_lists(cut)


# Parts of a file


def test_parts_become_one_file_and_must_have_the_same_columns(tmp_path: Path) -> None:
    lists = lists_from_impressions([impression(number) for number in range(5)])
    assert write_parquet_parts((lists[start : start + 2] for start in range(0, 5, 2)), tmp_path / "a.parquet") == 5
    assert_same_lists(read_parquet(tmp_path / "a.parquet"), lists)
    with pytest.raises(DataError, match="the part from list 2 on does not have the columns of the first part"):
        write_parquet_parts([lists[:2], replace(lists[2:], impressions=None)], tmp_path / "b.parquet")
    with pytest.raises(DataError, match="no lists to write"):
        write_parquet_parts([], tmp_path / "b.parquet")
    assert not (tmp_path / "b.parquet").exists()
    write_parquet(lists[:0], tmp_path / "none.parquet")
    assert_same_lists(read_parquet(tmp_path / "none.parquet"), lists[:0])
