"""The fitted transform: the same numbers after saving, for lists and for single requests, and no surprises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from seq2slate.data import scaling as scaling_module
from seq2slate.data.features import TRANSFORM_FORMAT, EncodedLists, FeatureTransform
from seq2slate.data.lists import ItemLists
from seq2slate.data.scaling import CLIP, Scaling
from seq2slate.errors import DataError, UsageError

finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
matrices = arrays(np.float32, st.tuples(st.integers(0, 12), st.integers(0, 4)), elements=finite32)
texts = st.one_of(st.none(), st.text(max_size=3))


def mixed_lists() -> ItemLists:
    """An empty list, a single item, and a longer list, with every kind of column."""
    return ItemLists(
        features=np.array([[1, 7, -3], [10, 7, 0], [100, 7, 3], [1000, 7, 30]], dtype=np.float32),
        offsets=[0, 0, 1, 4],
        feature_names=("price", "always", "balance"),
        categorical={"city": ["Rome", "Oslo", "Rome", None], "comment": ["a", "a", "a", "a"]},
        context={"hour": [1.0, 2.0, 3.0], "device": ["phone", "phone", None]},
    )


def assert_same(a: EncodedLists, b: EncodedLists) -> None:
    np.testing.assert_array_equal(a.dense, b.dense)
    np.testing.assert_array_equal(a.context, b.context)
    for left, right in ((a.categorical, b.categorical), (a.context_categorical, b.context_categorical)):
        assert list(left) == list(right)
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])


def reference(values: npt.NDArray[Any], *, log: bool = True) -> npt.NDArray[np.float64]:
    """The definition, in float64 and without blocks."""
    y: npt.NDArray[np.float64] = values.astype(np.float64)
    if log:
        y = np.sign(y) * np.log1p(np.abs(y))
    y = (y - y.mean(axis=0)) / y.std(axis=0)
    return np.clip(y, -CLIP, CLIP)


# Numeric columns


@pytest.mark.parametrize("scaling", ["signed-log", "standardise"])
def test_numbers_equal_a_float64_reference(scaling: Scaling) -> None:
    values = np.random.default_rng(0).standard_t(2, size=(5000, 6)).astype(np.float32) * [1e-3, 1, 1, 10, 1e3, 1e6]
    lists = ItemLists(values, [0, 5000])
    dense = FeatureTransform.fit(lists, scaling=scaling).apply(lists).dense
    assert dense.dtype == np.float32
    expected = reference(lists.features, log=scaling == "signed-log")
    np.testing.assert_allclose(dense, expected, rtol=1e-6, atol=1e-6)


def test_no_scaling_leaves_the_numbers_alone() -> None:
    lists = mixed_lists()
    dense = FeatureTransform.fit(lists, scaling="none").apply(lists).dense
    np.testing.assert_array_equal(dense, lists.features)
    assert not np.shares_memory(dense, lists.features)


def test_the_size_of_the_blocks_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).lognormal(size=(1001, 3)).astype(np.float32) + 1e4
    lists = ItemLists(values, [0, 1001])
    at_once = FeatureTransform.fit(lists).apply(lists).dense
    monkeypatch.setattr(scaling_module, "_BLOCK_CELLS", 30)
    np.testing.assert_allclose(FeatureTransform.fit(lists).apply(lists).dense, at_once, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scaling", ["signed-log", "standardise"])
@pytest.mark.parametrize("value", [0.0, 0.1, -7.0, 3e38, 1e-40])
def test_a_constant_column_is_exactly_zero_whatever_comes_later(scaling: Scaling, value: float) -> None:
    training = ItemLists(np.full((1000, 1), value, dtype=np.float32), [0, 1000])
    transform = FeatureTransform.fit(training, scaling=scaling)
    later = transform.apply_arrays([[value], [0.0], [-3e38], [3e38]]).dense
    np.testing.assert_array_equal(later, np.zeros((4, 1)))


def test_extreme_values_are_clipped() -> None:
    transform = FeatureTransform.fit(mixed_lists())
    request = transform.apply_arrays([[3e38, 0, -3e38]], {"city": ["Rome"]}, {"hour": 3e38, "device": "phone"})
    assert request.dense.tolist() == [[CLIP, 0, -CLIP]]
    assert request.context.tolist() == [[CLIP]]


@given(matrices, st.sampled_from(["signed-log", "standardise"]))
def test_any_finite_numbers_stay_finite_and_within_the_clip(values: npt.NDArray[np.float32], scaling: Scaling) -> None:
    lists = ItemLists(values, [0, len(values)])
    before = values.copy()
    dense = FeatureTransform.fit(lists, scaling=scaling).apply(lists).dense
    assert dense.shape == values.shape
    assert np.isfinite(dense).all()
    assert (np.abs(dense) <= CLIP).all()
    np.testing.assert_array_equal(lists.features, before)


@given(matrices.filter(lambda values: values.size > 0))
def test_scaling_keeps_the_order_within_a_column(values: npt.NDArray[np.float32]) -> None:
    dense = FeatureTransform.fit(lists := ItemLists(values, [0, len(values)])).apply(lists).dense
    for raw, scaled in zip(values.T, dense.T, strict=True):
        assert (np.diff(scaled[np.argsort(raw, kind="stable")]) >= 0).all()


# Categorical columns


def test_codes_count_from_one_and_code_zero_is_out_of_vocabulary() -> None:
    encoded = FeatureTransform.fit(lists := mixed_lists()).apply(lists)
    assert encoded.categorical["city"].tolist() == [1, 0, 1, 0]
    assert encoded.categorical["city"].dtype == np.int32
    assert encoded.context_categorical["device"].tolist() == [1, 1, 0]


def test_an_unseen_value_is_no_error() -> None:
    transform = FeatureTransform.fit(mixed_lists())
    request = transform.apply_arrays(
        np.zeros((2, 3)), {"city": ["Atlantis", None]}, {"hour": 1, "device": "refrigerator"}
    )
    assert request.categorical["city"].tolist() == [0, 0]
    assert request.context_categorical["device"].tolist() == [0]


def test_the_most_frequent_value_has_the_first_code_and_ties_go_by_the_alphabet() -> None:
    lists = ItemLists(np.zeros((6, 0)), [0, 6], categorical={"c": ["z", "b", "z", "a", "z", "é"]})
    assert FeatureTransform.fit(lists, min_count=1).categorical["c"].values == ("z", "a", "b", "é")


def test_a_column_of_rare_values_stays_with_code_zero_everywhere() -> None:
    lists = ItemLists(np.zeros((3, 1)), [0, 3], categorical={"id": ["x", "y", "z"]})
    transform = FeatureTransform.fit(lists)
    assert transform.categorical["id"].n_codes == 1
    assert transform.apply(lists).categorical["id"].tolist() == [0, 0, 0]


@given(st.lists(texts, max_size=20), st.lists(texts, max_size=20), st.integers(1, 3))
def test_codes_equal_a_plain_count(training: list[str | None], later: list[str | None], min_count: int) -> None:
    lists = ItemLists(np.zeros((len(training), 0)), [0, len(training)], categorical={"c": training})
    transform = FeatureTransform.fit(lists, min_count=min_count)
    words = transform.categorical["c"].values
    assert set(words) == {word for word in training if word is not None and training.count(word) >= min_count}
    codes = transform.apply_arrays(np.zeros((len(later), 0)), {"c": later}).categorical["c"].tolist()
    assert codes == [words.index(word) + 1 if word in words else 0 for word in later]


def test_comments_are_left_out_unless_asked_for() -> None:
    lists = mixed_lists()
    assert list(FeatureTransform.fit(lists).categorical) == ["city"]
    assert list(FeatureTransform.fit(lists, categorical=["comment"]).categorical) == ["comment"]


def test_columns_can_be_chosen() -> None:
    transform = FeatureTransform.fit(mixed_lists(), categorical=[], context=["device"])
    encoded = transform.apply(mixed_lists())
    assert encoded.categorical == {}
    assert encoded.context.shape == (3, 0)
    assert list(encoded.context_categorical) == ["device"]


def test_the_out_of_vocabulary_share_is_by_column() -> None:
    shares = FeatureTransform.fit(lists := mixed_lists()).out_of_vocabulary_share(lists)
    assert shares == {"city": 2 / 4, "context device": 1 / 3}


# Sizes


def test_zero_lists_zero_items_and_zero_columns() -> None:
    transform = FeatureTransform.fit(mixed_lists())
    for lists in (mixed_lists()[:0], mixed_lists()[:1]):
        encoded = transform.apply(lists)
        assert encoded.dense.shape == (0, 3)
        assert encoded.context.shape == (len(lists), 1)
        assert len(encoded.context_categorical["device"]) == len(lists)
    assert transform.out_of_vocabulary_share(mixed_lists()[:0]) == {"city": 0, "context device": 0}
    fitted_on_nothing = FeatureTransform.fit(mixed_lists()[:0])
    np.testing.assert_array_equal(fitted_on_nothing.apply(mixed_lists()).dense, np.zeros((4, 3)))
    bare = ItemLists(np.zeros((2, 0)), [0, 2])
    assert FeatureTransform.fit(bare).apply(bare).dense.shape == (2, 0)
    assert FeatureTransform.fit(bare).apply_arrays([]).dense.shape == (0, 0)


def test_a_request_equals_its_list() -> None:
    lists, transform = mixed_lists(), FeatureTransform.fit(mixed_lists())
    for number in range(len(lists)):
        one = lists[number]
        request = transform.apply_arrays(
            one.features.tolist(),
            {name: column.to_pylist() for name, column in one.categorical.items()},
            {"hour": float(one.context["hour"][0]), "device": one.context["device"][0].as_py()},
        )
        assert_same(request, transform.apply(one))


# Saving


@given(matrices, st.lists(texts, min_size=12, max_size=12), st.integers(1, 2))
def test_the_saved_form_acts_the_same_to_the_last_bit(
    values: npt.NDArray[np.float32], words: list[str | None], min_count: int
) -> None:
    n = len(values)
    lists = ItemLists(values, [0, n], categorical={"c": words[:n]}, context={"x": [0.1], "y": [words[-1]]})
    transform = FeatureTransform.fit(lists, min_count=min_count)
    again = FeatureTransform.from_json(transform.to_json())
    assert again.to_json() == transform.to_json()
    assert_same(again.apply(lists), transform.apply(lists))


def test_a_file_holds_everything(tmp_path: Path) -> None:
    lists = mixed_lists()
    transform = FeatureTransform.fit(lists)
    transform.save(tmp_path / "model" / "features.json")
    assert_same(FeatureTransform.load(tmp_path / "model" / "features.json").apply(lists), transform.apply(lists))
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["features.json"]


def test_a_newer_version_is_refused_by_both_numbers(tmp_path: Path) -> None:
    newer = json.loads(FeatureTransform.fit(mixed_lists()).to_json()) | {"version": TRANSFORM_FORMAT + 1}
    path = tmp_path / "features.json"
    path.write_text(json.dumps(newer))
    with pytest.raises(DataError, match=rf"version {TRANSFORM_FORMAT + 1}.*up to {TRANSFORM_FORMAT}.*update"):
        FeatureTransform.load(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": "1"}', '{"version": 1, "dense": 3}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "features.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"features.json: damaged"):
        FeatureTransform.load(path)


def test_a_file_with_a_mean_too_few_is_damaged() -> None:
    content = json.loads(FeatureTransform.fit(mixed_lists()).to_json())
    content["dense"]["mean"].pop()
    with pytest.raises(DataError, match=r"damaged.*3 names, 2 means"):
        FeatureTransform.from_json(json.dumps(content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.json"):
        FeatureTransform.load(tmp_path / "nowhere.json")


# Errors


def changed(**columns: Any) -> ItemLists:
    return replace(mixed_lists(), **columns)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (changed(features=np.zeros((4, 2)), feature_names=("price", "always")), "2 features where the 3 .* 'price'"),
        (changed(feature_names=("price", "balance", "always")), "column 1 is 'balance' where 'always' stood"),
        (changed(categorical={}), "categorical column 'city' is missing.*there are none"),
        (changed(context={"hour": [1, 2, 3]}), "context column 'device' is missing.*there are 'hour'"),
        (changed(context={"device": ["phone"] * 3}), "context column 'hour' is missing"),
        (changed(context={"hour": ["1", "2", "3"], "device": ["a"] * 3}), "'hour' was a number .* give a number"),
        (changed(context={"hour": [1, 2, 3], "device": [1, 2, 3]}), "'device' was text .* give text"),
        (changed(context={"hour": [1, np.nan, 3], "device": ["a"] * 3}), "list number 1: 'hour' is nan"),
        (changed(features=np.diag([1, np.inf, 1, 1])[:, :3]), "list '2', item 0: 'always' is inf"),
    ],
)
def test_lists_with_other_columns_are_refused_by_name(lists: ItemLists, message: str) -> None:
    transform = FeatureTransform.fit(mixed_lists())
    with pytest.raises(DataError, match=message):
        transform.apply(lists)


@pytest.mark.parametrize(
    ("request_columns", "message"),
    [
        (([[1, 2]], {}, {}), r"shape \(1, 2\) instead of \(items, 3\): give 'price', 'always', 'balance'"),
        (([1, 2, 3], {}, {}), r"shape \(3,\)"),
        (([[1, 2, 3], [4]], {}, {}), "all of the same length"),
        (([["a", 2, 3]], {}, {}), "rows of numbers"),
        (([[1e300, 2, 3]], {"city": ["x"]}, {"hour": 1, "device": "x"}), "item 0: 'price' is inf"),
        (([[1, 2, 3]], {"city": ["Rome", "Oslo"]}, {}), "'city' has 2 values for 1 items"),
        (([[1, 2, 3]], {"city": [5]}, {}), "categorical column 'city': .*must be text"),
        (([[1, 2, 3]], {"city": ["x"]}, {"hour": "noon", "device": "x"}), "'hour' was a number"),
        (([[1, 2, 3]], {"city": ["x"]}, {"hour": None, "device": "x"}), "'hour' was a number"),
        (([[1, 2, 3]], {"city": ["x"]}, {"hour": [1], "device": "x"}), "'hour' must be text or a number"),
    ],
)
def test_requests_with_other_columns_are_refused_by_name(request_columns: tuple[Any, ...], message: str) -> None:
    transform = FeatureTransform.fit(mixed_lists())
    with pytest.raises(DataError, match=message):
        transform.apply_arrays(*request_columns)


def test_columns_that_training_did_not_have_are_ignored() -> None:
    transform = FeatureTransform.fit(mixed_lists())
    lists = mixed_lists()
    more = changed(
        categorical=dict(lists.categorical) | {"new": ["x"] * 4}, context=dict(lists.context) | {"more": [1, 2, 3]}
    )
    assert_same(transform.apply(more), transform.apply(lists))


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(UsageError, match="no scaling 'log'; choose one of signed-log, standardise, none"):
        FeatureTransform.fit(mixed_lists(), scaling="log")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="min_count must be at least 1"):
        FeatureTransform.fit(mixed_lists(), min_count=0)
    with pytest.raises(DataError, match=r"'town' is missing.*there are 'city', 'comment'"):
        FeatureTransform.fit(mixed_lists(), categorical=["town"])
    with pytest.raises(DataError, match="list '1', item 0: 'price' is nan"):
        FeatureTransform.fit(changed(features=np.full((4, 3), np.nan)))
