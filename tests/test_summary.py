"""The summary counts what is there: the mixed batch, with and without labels."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from seq2slate.data.lists import ItemLists
from seq2slate.data.summary import summarise

MIXED = ItemLists(  # an empty list, one without positives, a single item, a long one
    features=np.stack([np.arange(14.0), np.full(14, 3.0), np.arange(14) % 2], axis=1),
    offsets=[0, 0, 3, 4, 14],
    labels=[0, 0, 0, 1, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0],
    feature_names=("price", "same", "parity"),
    categorical={"brand": ["p", "q", None, "p"] * 3 + ["r", "r"]},
    context={"city": ["Rome", "Rome", None, "Oslo"], "hour": [1, 2, 2, 3]},
)


def test_everything_is_counted() -> None:
    summary = summarise(MIXED)
    assert (summary.lists, summary.items, summary.features) == (4, 14, 3)
    assert summary.length_quantiles == pytest.approx({0: 0, 25: 0.75, 50: 2, 75: 4.75, 95: 3 + 0.85 * 7, 100: 10})
    assert (summary.empty_lists, summary.single_item_lists, summary.lists_without_positives) == (1, 1, 2)
    assert summary.label_shares == {0: 11 / 14, 1: 2 / 14, 2: 1 / 14}
    assert summary.constant_features == ("same",)
    assert summary.categorical == {"brand": 3}
    assert summary.context == {"city": 2, "hour": 3}
    assert summary.bytes == MIXED.nbytes


def test_the_summary_is_plain_json() -> None:
    plain = summarise(MIXED).as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["length_quantiles"]["75"] == 4.75
    assert plain["label_shares"]["1"] == 2 / 14
    assert plain["constant_features"] == ["same"]


def test_the_summary_reads_well() -> None:
    lines = str(summarise(MIXED)).splitlines()
    column = lines[0].index("4")
    assert all(line[column - 1] == " " != line[column] for line in lines)
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "labels 0: 78.6% 1: 14.3% 2: 7.1%" in text
    assert "features without variance same" in text
    assert "categorical (distinct) brand (3)" in text


def test_missing_features_are_counted_and_do_not_vary() -> None:
    nan = np.nan
    features = np.array([[1, 5, nan, 1], [2, nan, nan, 1], [3, 5, nan, 1], [nan, 5, nan, 1]])
    summary = summarise(ItemLists(features, [0, 4], feature_names=("a", "b", "c", "d")))
    assert summary.missing_features == {"a": 1 / 4, "b": 1 / 4, "c": 1}
    assert summary.constant_features == ("b", "c", "d")
    assert "a: 25.0%, b: 25.0%, c: 100.0%" in str(summary)


def test_many_names_are_cut_short() -> None:
    text = str(summarise(ItemLists(np.ones((2, 200)), [0, 2])))
    assert "f12 … and 188 more" in text


def test_lists_without_labels_and_no_lists_at_all() -> None:
    unseen = summarise(replace(MIXED, labels=None))
    assert unseen.label_shares is None
    assert unseen.lists_without_positives is None
    assert "labels                     none" in str(unseen)
    nothing = summarise(MIXED[:0])
    assert nothing.lists == nothing.items == nothing.lists_without_positives == 0
    assert nothing.length_quantiles == {}
    assert nothing.constant_features == ()
    assert nothing.label_shares == {}
    assert json.dumps(nothing.as_dict())
    assert str(nothing)
