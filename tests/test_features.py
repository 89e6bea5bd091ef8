"""The fitted transform: the same numbers after saving, for lists and for single requests, and no surprises."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.impute import SimpleImputer

from seq2slate.data import features as features_module
from seq2slate.data.features import (
    CLIP,
    FEWEST_VALUES,
    TRANSFORM_FORMAT,
    EncodedLists,
    FeatureTransform,
    Scaling,
    Vocabulary,
)
from seq2slate.data.lists import ItemLists, as_strings
from seq2slate.errors import DataError, UsageError

finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
matrices = arrays(np.float32, st.tuples(st.integers(0, 12), st.integers(0, 4)), elements=finite32)
matrices_with_missing = arrays(
    np.float32,
    st.tuples(st.integers(0, 12), st.integers(0, 4)),
    elements=st.one_of(finite32, st.just(float("nan"))),
)
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
    monkeypatch.setattr(features_module, "_BLOCK_CELLS", 30)
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


# Missing numbers


def with_missing() -> ItemLists:
    """Column a is partly missing, b never, c always, d is constant or missing; the number of a list is missing, too."""
    n = np.nan
    return ItemLists(
        np.array([[1, 1, n, 7], [n, 2, n, n], [4, 3, n, 7], [n, 4, n, 7], [9, 5, n, n]]),
        [0, 2, 5],
        feature_names=("a", "b", "c", "d"),
        context={"hour": [n, 3.0], "day": [1.0, 2.0]},
    )


@pytest.mark.parametrize("scaling", get_args(Scaling))
def test_missing_numbers_are_imputed_as_scikit_learn_does(scaling: Scaling) -> None:
    rng = np.random.default_rng(0)
    values = rng.lognormal(size=(400, 4)).astype(np.float32) - 1
    values[rng.random(values.shape) < [0.5, 0.1, 0, 0.01]] = np.nan
    transform = FeatureTransform.fit(lists := ItemLists(values, [0, 400]), scaling=scaling)
    y = np.sign(values) * np.log1p(np.abs(values.astype(float))) if scaling == "signed-log" else values.astype(float)
    expected = SimpleImputer(add_indicator=True).fit_transform(y)  # the mean
    if scaling != "none":
        expected[:, :4] = (expected[:, :4] - np.nanmean(y, axis=0)) / np.nanstd(y, axis=0)
        expected[:, :4] = expected[:, :4].clip(-CLIP, CLIP)
    dense = transform.apply(lists).dense
    assert transform.dense.indicators == ("f1", "f2", "f4")
    np.testing.assert_allclose(dense, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(dense[:, 4:], np.isnan(values)[:, [0, 1, 3]])


def test_every_way_to_be_missing() -> None:
    transform = FeatureTransform.fit(lists := with_missing())
    encoded = transform.apply(lists)
    assert (transform.dense.indicators, transform.context.indicators) == (("a", "d"), ("hour",))
    assert encoded.dense.shape == (5, 6)
    np.testing.assert_array_equal(
        encoded.dense[:, 2:], [[0, 0, m, k] for m, k in [(0, 0), (1, 1), (0, 0), (1, 0), (0, 1)]]
    )
    np.testing.assert_array_equal(encoded.dense[[1, 3], 0], [0, 0])
    np.testing.assert_allclose(encoded.context, [[0, -1, 1], [0, 1, 0]], atol=1e-6)  # a single hour is constant
    row: list[Any] = [None, None, 3, np.nan]
    later = transform.apply_arrays([row], {}, {"hour": None, "day": None})
    assert later.dense.tolist() == [[0, 0, 0, 0, 1, 1]], "b and c were never missing, or always"
    assert later.context.tolist() == [[0, 0, 1]]


def test_missing_numbers_do_not_move_the_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).lognormal(size=(1001, 3)).astype(np.float32)
    holes = np.random.default_rng(2).random(values.shape) < [0.3, 0.0, 0.99]
    columns = [FeatureTransform.fit(ItemLists(part[:, None], [0, len(part)])).dense for part in
               (column[~missing] for column, missing in zip(values.T, holes.T, strict=True))]  # fmt: skip
    monkeypatch.setattr(features_module, "_BLOCK_CELLS", 30)  # some blocks have no value at all
    fitted = FeatureTransform.fit(ItemLists(np.where(holes, np.nan, values), [0, 1001])).dense
    np.testing.assert_allclose(fitted.mean, [float(one.mean[0]) for one in columns], rtol=1e-6)
    np.testing.assert_allclose(fitted.inverse_std, [float(one.inverse_std[0]) for one in columns], rtol=1e-6)


def test_columns_of_nothing_but_nulls_are_missing_numbers() -> None:
    transform, nulls = FeatureTransform.fit(with_missing()), [None] * 5
    lists = with_missing()
    later = ItemLists(
        lists.features[:, [1, 2, 3]],
        lists.offsets,
        feature_names=("b", "c", "d"),
        categorical={"a": nulls, "e": nulls},
        context={"hour": [None, None], "day": [1.0, 2.0]},
    )
    hollow = np.column_stack([np.full(5, np.nan), later.features])
    expected = transform.apply(replace(lists, features=hollow, context={"hour": [np.nan] * 2, "day": [1.0, 2.0]}))
    assert_same(transform.apply(later), expected)
    with pytest.raises(DataError, match="'a' is text, and the training had numbers"):
        transform.apply(replace(later, categorical={"a": ["x", *nulls[1:]]}))


@given(matrices_with_missing, st.sampled_from(get_args(Scaling)))
def test_any_numbers_with_missing_ones_become_finite(values: npt.NDArray[np.float32], scaling: Scaling) -> None:
    lists, before = ItemLists(values, [0, len(values)]), values.copy()
    transform = FeatureTransform.fit(lists, scaling=scaling)
    dense = transform.apply(lists).dense
    assert dense.shape == (len(values), transform.dense.n_outputs)
    assert np.isfinite(dense).all()
    np.testing.assert_array_equal(lists.features, before)
    again = FeatureTransform.from_json(transform.to_json())
    np.testing.assert_array_equal(again.apply(lists).dense, dense)


def test_columns_without_missing_numbers_are_not_copied_for_it() -> None:
    transform = FeatureTransform.fit(lists := mixed_lists())
    assert transform.raw_features(lists) is lists.features
    assert transform.dense.indicators == ()


def test_refused_numbers_are_named() -> None:
    transform = FeatureTransform.fit(mixed_lists(), missing="refuse")
    lists = changed(features=np.where(np.eye(4)[:, :3] > 0, np.nan, 1.0))
    rows: list[Any] = [[1, 2, 3], [1, None, 3]]
    for again in (transform, FeatureTransform.from_json(transform.to_json())):
        with pytest.raises(DataError, match="list '1', item 0: 'price' is nan; missing values are refused"):
            again.apply(lists)
        with pytest.raises(DataError, match="item 1: 'always' is nan; missing values are refused"):
            again.apply_arrays(rows, {"city": ["a", "b"]}, {"hour": 1, "device": "x"})
        with pytest.raises(DataError, match="'hour' is nan; missing values are refused"):
            again.apply_arrays([[1, 2, 3]], {"city": ["a"]}, {"hour": None, "device": "x"})


def test_a_file_of_version_1_refuses_missing_numbers() -> None:
    transform = FeatureTransform.fit(lists := mixed_lists())
    content = json.loads(transform.to_json()) | {"version": 1}
    for kind in ("dense", "context"):
        del content[kind]["missing"], content[kind]["indicators"]
    old = FeatureTransform.from_json(json.dumps(content))
    assert_same(old.apply(lists), transform.apply(lists))
    with pytest.raises(DataError, match="missing values are refused"):
        old.apply(changed(features=np.full((4, 3), np.nan)))


# Categorical columns


def test_codes_count_from_one_and_code_zero_is_out_of_vocabulary() -> None:
    encoded = FeatureTransform.fit(lists := mixed_lists()).apply(lists)
    assert encoded.categorical["city"].tolist() == [1, 0, 1, 0]
    assert encoded.categorical["city"].dtype == np.int32
    assert encoded.context_categorical["device"].tolist() == [1, 1, 0]


def test_a_value_has_one_code_however_it_is_spelled() -> None:
    vocabulary = Vocabulary.fit(as_strings(["3.0", "3", "True", "3.10", "true", "3.0"]), min_count=2)
    assert vocabulary.values == ("3", "true")
    assert vocabulary.encode(as_strings(["3", "3.0", "TRUE", "3.10", None])).tolist() == [1, 1, 2, 0, 0]
    assert Vocabulary(("3.0", "x", "3")).encode(as_strings(["3", "3.0", "x"])).tolist() == [1, 1, 2], "an older model"


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


def test_columns_without_a_known_value_are_unseen() -> None:
    n = FEWEST_VALUES

    def lists(brand: Sequence[str | None], city: Sequence[str | None], note: str = "n{}") -> ItemLists:
        rare: list[str | None] = [note.format(item) for item in range(len(brand))]
        return ItemLists(
            np.zeros((len(brand), 0)),
            np.arange(len(brand) + 1),
            categorical={"brand": brand, "rare": rare},
            context={"city": city},
        )

    transform = FeatureTransform.fit(lists(["a", "b"] * n, ["Rome"] * 2 * n))
    assert transform.unseen_columns(lists(["a", "b"] * n, ["Rome"] * 2 * n)) == [], "what was rare had no code"
    assert transform.unseen_columns(lists(["A"] * n, ["rome"] * n, "x{}")) == ["brand", "context city"]
    assert transform.unseen_columns(lists(["A"] * n, [*["rome"] * n, "Rome"][1:])) == ["brand"]
    assert transform.unseen_columns(lists([*["A"] * (n - 1), None], [None] * n)) == [], "too few to tell"


def test_text_in_the_place_of_numbers_is_named() -> None:
    train = ItemLists([[1.0, 2.0]], [0, 1], feature_names=["price", "size"])
    transform = FeatureTransform.fit(train)
    with pytest.raises(DataError, match=r"^'price' is text, and the training had numbers: convert it"):
        transform.apply(ItemLists([[1.0]], [0, 1], feature_names=["size"], categorical={"price": ["1 EUR"]}))
    with pytest.raises(DataError, match=r"^'price', 'size' are text"):
        transform.apply(ItemLists([[]], [0, 1], categorical={"price": ["1 EUR"], "size": ["S"]}))


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
        (
            changed(features=np.zeros((4, 2)), feature_names=("price", "other")),
            "these feature columns of the training are missing: 'always', 'balance'; .* there are 'price', 'other'",
        ),
        (
            changed(features=np.zeros((4, 0)), feature_names=()),
            "missing: 'price', 'always', 'balance'; .* without them$",
        ),
        (changed(categorical={}), "categorical column 'city' is missing.*there are none"),
        (changed(context={"hour": [1, 2, 3]}), "context column 'device' is missing.*there are 'hour'"),
        (changed(context={"device": ["phone"] * 3}), "context column 'hour' is missing"),
        (changed(context={"hour": ["1", "2", "3"], "device": ["a"] * 3}), "'hour' was a number .* give a number"),
        (changed(context={"hour": [1, 2, 3], "device": [1, 2, 3]}), "'device' was text .* give text"),
        (changed(context={"hour": [np.nan, -np.inf, 3], "device": ["a"] * 3}), "list number 1: 'hour' is -inf"),
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
        features=np.column_stack([np.full(4, np.inf), lists.features[:, ::-1]]),
        feature_names=("more", "balance", "always", "price"),
        categorical=dict(lists.categorical) | {"new": ["x"] * 4},
        context=dict(lists.context) | {"more": [1, 2, 3]},
    )
    assert_same(transform.apply(more), transform.apply(lists))


def test_a_letor_file_that_leaves_out_its_last_features_is_told_what_to_do() -> None:
    train, later = (ItemLists(np.ones((2, width)), [0, 2]) for width in (46, 45))
    transform = FeatureTransform.fit(train)
    with pytest.raises(DataError, match=r"missing: 'f46'; there are 45 where .* 46\..* add 46:0 .*n_features=46"):
        transform.apply(later)
    assert_same(transform.apply(ItemLists(np.ones((2, 50)), [0, 2])), transform.apply(train))


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(UsageError, match="no scaling 'log'; choose one of signed-log, standardise, none"):
        FeatureTransform.fit(mixed_lists(), scaling="log")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="min_count must be at least 1"):
        FeatureTransform.fit(mixed_lists(), min_count=0)
    with pytest.raises(DataError, match=r"'town' is missing.*there are 'city', 'comment'"):
        FeatureTransform.fit(mixed_lists(), categorical=["town"])
    with pytest.raises(UsageError, match="no missing 'drop'; choose one of impute, refuse"):
        FeatureTransform.fit(mixed_lists(), missing="drop")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="list '1', item 0: 'price' is nan; missing values are refused: fill it"):
        FeatureTransform.fit(changed(features=np.full((4, 3), np.nan)), missing="refuse")
    with pytest.raises(DataError, match="list '1', item 0: 'price' is inf"):
        FeatureTransform.fit(changed(features=np.full((4, 3), np.inf)), scaling="none")


def test_item_ids_are_a_category_where_the_column_is_not_there() -> None:
    ids = ["a", "b", "b", "a", "c"]
    with_column = ItemLists(np.zeros((5, 0)), [0, 2, 5], item_ids=ids, categorical={"item_id": ids})
    without = ItemLists(np.zeros((5, 0)), [0, 2, 5], item_ids=ids)
    for transform in (FeatureTransform.fit(with_column), FeatureTransform.fit(without, categorical=["item_id"])):
        for lists in (with_column, without):
            assert transform.apply(lists).categorical["item_id"].tolist() == [1, 2, 2, 1, 0]
            assert transform.out_of_vocabulary_share(lists) == {"item_id": 0.2}
        transform.check_columns(np.zeros((1, 0), np.float32), [], {})
    assert not FeatureTransform.fit(without).categorical
