"""ItemLists and Batch: columns stay together whatever is done to the lists."""

import tracemalloc
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seq2slate.data.impressions import Impressions
from seq2slate.data.lists import MAX_PAIRS, ItemLists, Padding, batch_indices, offsets_from_lengths, padding_share
from seq2slate.errors import DataError, UsageError

LENGTHS = st.lists(st.integers(0, 7), min_size=1, max_size=12)


def marked_lists(lengths: list[int], *, prefix: str = "") -> ItemLists:
    """Lists in which every column of an item tells which item it is."""
    n_items, n_lists = sum(lengths), len(lengths)
    mark = np.arange(n_items, dtype=np.float32)
    return ItemLists(
        features=np.stack([mark, -mark], axis=1),
        offsets=offsets_from_lengths(np.array(lengths)),
        labels=mark % 3,
        list_ids=[f"{prefix}q{q}" for q in range(n_lists)],
        item_ids=[f"i{int(m)}" for m in mark],
        categorical={"colour": [f"c{int(m)}" for m in mark]},
        context={"city": [f"{prefix}town{q}" for q in range(n_lists)], "hour": np.arange(n_lists)},
        impressions=Impressions(
            slots=np.arange(n_items)[::-1],
            log_propensities=-mark.astype(np.float64) / (n_items + 1),
            clicked_at=mark.astype(np.float64),
            units=[f"{prefix}u{q}" for q in range(n_lists)],
            times=np.arange(n_lists, dtype=np.float64),
        ),
        relevance=mark % 5,
        relevance_probability=mark / (n_items + 2),
    )


def assert_columns_agree(lists: ItemLists, source: ItemLists) -> None:
    """Every row of `lists` is a row of `source`, with all its columns."""
    mark = lists.features[:, 0].astype(int)
    assert lists.item_ids.to_pylist() == [f"i{m}" for m in mark]
    assert lists.categorical["colour"].to_pylist() == [f"c{m}" for m in mark]
    for name in ("features", "labels", "relevance", "relevance_probability"):
        np.testing.assert_array_equal(getattr(lists, name), getattr(source, name)[mark])
    for name in ("slots", "log_propensities", "clicked_at"):
        np.testing.assert_array_equal(getattr(lists.impressions, name), getattr(source.impressions, name)[mark])
    assert lists.impressions is not None
    assert lists.impressions.units is not None
    assert lists.impressions.times is not None
    number = [name.rpartition("q")[2].partition("~")[0] for name in lists.list_ids.to_pylist()]
    assert [unit.rpartition("u")[2] for unit in lists.impressions.units.to_pylist()] == number
    assert lists.impressions.times.tolist() == [float(q) for q in number]
    assert lists.impressions.arms is None


@given(LENGTHS, st.data())
def test_chosen_lists_keep_all_their_columns(lengths: list[int], data: st.DataObject) -> None:
    lists = marked_lists(lengths)
    chosen = data.draw(st.lists(st.integers(-len(lists), len(lists) - 1), max_size=8))
    taken = lists[np.array(chosen, dtype=int)]
    assert_columns_agree(taken, lists)
    assert taken.lengths.tolist() == [lengths[q] for q in chosen]
    assert taken.context["city"].to_pylist() == [f"town{q % len(lists)}" for q in chosen]
    assert taken.context["hour"].tolist() == [q % len(lists) for q in chosen]


@given(LENGTHS, st.slices(12))
def test_a_slice_is_the_same_as_its_numbers(lengths: list[int], which: slice) -> None:
    lists = marked_lists(lengths)
    sliced, taken = lists[which], lists[np.arange(len(lists))[which]]
    assert sliced.list_ids.to_pylist() == taken.list_ids.to_pylist()
    assert_columns_agree(sliced, lists)
    np.testing.assert_array_equal(sliced.features, taken.features)


def test_one_number_a_mask_and_a_number_out_of_range() -> None:
    lists = marked_lists([2, 0, 3])
    assert lists[-1].list_ids.to_pylist() == ["q2"]
    assert lists[lists.lengths > 0].list_ids.to_pylist() == ["q0", "q2"]
    with pytest.raises(IndexError):
        lists[3]


@given(LENGTHS, st.integers(0, 12))
def test_concat_undoes_a_cut(lengths: list[int], cut: int) -> None:
    lists = marked_lists(lengths)
    joined = ItemLists.concat([lists[:cut], lists[cut:]])
    assert_same(joined, lists)


def assert_same(a: Any, b: Any) -> None:
    for entry in fields(a):
        left, right = getattr(a, entry.name), getattr(b, entry.name)
        if is_dataclass(left):
            assert_same(left, right)
        elif isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right)
        elif isinstance(left, pa.Array):
            assert left.equals(right), entry.name
        elif isinstance(left, dict):
            assert {k: v.tolist() for k, v in left.items()} == {k: v.tolist() for k, v in right.items()}
        else:
            assert left == right


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: replace(x, features=x.features[:, :1], feature_names=("f1",)), "1 features instead of 2"),
        (lambda x: replace(x, feature_names=("f1", "price")), "feature 'price' where 'f2' should be"),
        (lambda x: replace(x, labels=None), "columns"),
        (lambda x: replace(x, context={}), "columns"),
        (lambda x: replace(x, impressions=None), "columns .* instead of .*impressions.slots"),
        (lambda x: replace(x, impressions=replace(x.impressions, units=None)), "impressions.units"),
    ],
)
def test_concat_says_which_columns_differ(change: Callable[[ItemLists], ItemLists], said: str) -> None:
    lists = marked_lists([2, 3])
    with pytest.raises(DataError, match=said):
        ItemLists.concat([lists, change(lists)])


@given(LENGTHS, st.integers(0, 99))
def test_split_cuts_no_list_and_loses_none(lengths: list[int], seed: int) -> None:
    lists = marked_lists(lengths)
    parts = lists.split(0.5, 0.2, seed=seed)
    names = [name for part in parts for name in part.list_ids.to_pylist()]
    assert sorted(names) == sorted(lists.list_ids.to_pylist())
    assert len(parts[0]) == round(0.5 * len(lists))
    for part in parts:
        assert_columns_agree(part, lists)


def test_split_depends_on_the_seed_alone() -> None:
    lists = marked_lists([1] * 50)
    names = [[part.list_ids.to_pylist() for part in lists.split(0.5, seed=seed)] for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]
    with pytest.raises(UsageError, match="at most 1"):
        lists.split(0.7, 0.4, seed=0)


@given(LENGTHS, st.integers(0, 99))
def test_reorder_sorts_each_list_and_keeps_ties_in_place(lengths: list[int], seed: int) -> None:
    lists = marked_lists(lengths)
    scores = np.random.default_rng(seed).integers(0, 3, lists.n_items)
    ordered = lists.reorder(scores)
    expected = [
        row
        for start, stop in zip(lists.offsets[:-1], lists.offsets[1:], strict=True)
        for row in sorted(range(start, stop), key=lambda r: -scores[r])
    ]
    assert ordered.features[:, 0].astype(int).tolist() == expected
    assert_columns_agree(ordered, lists)


def test_reorder_refuses_what_cannot_be_sorted() -> None:
    lists = marked_lists([2, 3])
    with pytest.raises(DataError, match="list 'q1', item 1 is NaN"):
        lists.reorder([0, 0, 0, np.nan, 0])
    with pytest.raises(DataError, match="one score an item"):
        lists.reorder([0, 1])


def test_shuffled_copies_hold_the_same_items_in_other_orders() -> None:
    lists = marked_lists([6, 0, 1, 8])
    copies = lists.shuffle_items(seed=3, copies=4)
    assert_columns_agree(copies, lists)
    assert copies.list_ids.to_pylist()[:5] == ["q0~0", "q1~0", "q2~0", "q3~0", "q0~1"]
    orders = {tuple(copies[4 * copy + 3].item_ids.to_pylist()) for copy in range(4)}
    assert len(orders) == 4
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(lists[3].item_ids.to_pylist()))}
    assert lists.shuffle_items(seed=3).list_ids.to_pylist() == lists.list_ids.to_pylist()


@given(LENGTHS, st.integers(1, 5), st.integers(0, 9))
def test_sampled_items_stay_in_base_order_and_keep_the_positives(lengths: list[int], most: int, seed: int) -> None:
    lists = marked_lists(lengths)
    sampled = lists.sample_items(most, seed=seed)
    assert_columns_agree(sampled, lists)
    assert sampled.lengths.tolist() == [min(length, most) for length in lengths]
    for before, after in zip(lists, sampled, strict=True):
        assert (np.diff(after.features[:, 0]) > 0).all()
        assert (after.batch().labels > 0).sum() == min((before.batch().labels > 0).sum(), most)


def test_truncate_keeps_the_first_items() -> None:
    lists = marked_lists([4, 1, 0]).truncate(2)
    assert lists.features[:, 0].tolist() == [0, 1, 4]
    assert lists.lengths.tolist() == [2, 1, 0]
    with pytest.raises(UsageError, match="max_items must not be negative, got -1"):
        lists.truncate(-1)


@given(LENGTHS, st.integers(1, 5), st.none() | st.integers(0, 9))
def test_batches_hold_every_list_once_padded_with_nothing(lengths: list[int], size: int, seed: int | None) -> None:
    lists = marked_lists(lengths)
    seen = []
    for batch in lists.batches(size, seed=seed):
        assert len(batch) <= size
        for row, q in enumerate(batch.index):
            single = lists[int(q)]
            assert batch.mask[row].sum() == len(single.features)
            np.testing.assert_array_equal(batch.features[row, batch.mask[row]], single.features)
            np.testing.assert_array_equal(batch.labels[row, batch.mask[row]], single.labels)
        assert not batch.features[~batch.mask].any()
        assert not batch.labels[~batch.mask].any()
        seen += batch.index.tolist()
    assert sorted(seen) == list(range(len(lists)))


def test_batches_change_with_the_seed_and_only_with_it() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 1000)
    orders = [[index.tolist() for index in batch_indices(lengths, 32, seed=seed)] for seed in (5, 5, 6)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert sorted(map(sorted, orders[0])) != sorted(map(sorted, orders[2])), (
        "the company must change, not only the order"
    )


def test_batches_of_long_lists_have_fewer_of_them() -> None:
    lengths = np.array([2000] * 10 + [10] * 100)
    for seed in (None, 0):
        batches = batch_indices(lengths, 64, seed=seed)
        assert sorted(np.concatenate(batches).tolist()) == list(range(110))
        assert all(len(index) * int(lengths[index].max()) ** 2 <= MAX_PAIRS for index in batches)
        assert max(map(len, batches)) == 64
    assert [len(index) for index in batch_indices(np.array([10_000]), 64)] == [1], "one list is never cut"


def test_bucketing_leaves_little_padding() -> None:
    lengths = np.random.default_rng(0).lognormal(4.5, 0.6, 10_000).astype(np.int64) + 1
    at_random = [np.arange(start, min(start + 128, 10_000)) for start in range(0, 10_000, 128)]
    assert padding_share(lengths, batch_indices(lengths, 128, seed=0)) < 0.1 * padding_share(lengths, at_random)
    assert padding_share(np.array([3, 3]), [np.array([0, 1])]) == 0
    assert padding_share(np.array([1, 3]), [np.array([0, 1])]) == 1 - 4 / 6


def test_defaults_name_everything() -> None:
    lists = ItemLists(np.zeros((3, 2)), [0, 1, 3])
    assert lists.list_ids.to_pylist() == ["0", "1"]
    assert lists.item_ids.to_pylist() == ["0", "0", "1"]
    assert lists.feature_names == ("f1", "f2")
    with pytest.raises(DataError, match="no labels"):
        _ = lists.batch().labels


def test_no_lists_and_no_columns_are_fine() -> None:
    nothing = ItemLists(np.zeros((0, 3)), [0])
    assert len(nothing) == nothing.n_items == 0
    assert list(nothing.batches(4)) == []
    assert nothing.batch().mask.shape == (0, 0)
    empty_list = ItemLists(np.zeros((0, 0)), [0, 0])
    assert empty_list.batch().features.shape == (1, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"features": np.zeros(3)}, "features must be"),
        ({"offsets": [0, 2]}, "offsets must run from 0"),
        ({"offsets": [0, 3, 2, 3]}, "must not fall"),
        ({"labels": [1, 0]}, "labels has 2 values for 3 items"),
        ({"list_ids": ["a"]}, "list_ids has 1 values for 2 lists"),
        ({"item_ids": ["a"]}, "item_ids has 1 values for 3 items"),
        ({"feature_names": ("a",)}, "1 feature names for 2"),
        ({"categorical": {"colour": ["red"]}}, "colour has 1 values for 3 items"),
        ({"context": {"city": ["Bern"]}}, "city has 1 values for 2 lists"),
        ({"item_ids": [1, 2, 3]}, "must be text"),
        ({"impressions": Impressions(np.arange(2))}, r"impressions\.slots has 2 values for 3 items"),
        ({"impressions": Impressions(np.arange(3), units=["a"])}, r"impressions\.units has 1 values for 2 lists"),
    ],
)
def test_columns_that_do_not_fit_are_named(arguments: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {"features": np.zeros((3, 2)), "offsets": [0, 1, 3]}
    with pytest.raises(DataError, match=said):
        ItemLists(**(good | arguments))


def shown(**columns: Any) -> dict[str, Any]:
    return {"impressions": Impressions(**({"slots": [0, 0, 1]} | columns))}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"features": [[np.nan], [0], [-np.inf]]}, "list '1', item 1: feature 'f1' is -inf"),
        ({"features": [[0], [np.inf], [0]]}, "list '1', item 0: feature 'f1' is inf"),
        ({"labels": [0, -1, 0]}, "list '1', item 0: label -1 is negative"),
        ({"labels": [0, np.nan, 0]}, "list '1', item 0: labels hold nan"),
        (shown(slots=[0, 0, -2]), "list '1', item 1: shown_slot must be 0 or more, or -1"),
        (shown(slots=[1, 1, 1]), "list '1', item 1: another item of the list was shown in the same slot"),
        (shown(log_propensities=[0, 0, 2]), "list '1', item 1: the log-propensity must be finite and at most 0"),
        (shown(log_propensities=[0, 0, np.nan]), "list '1', item 1: the log-propensity must be finite and at most 0"),
        (shown(log_propensities=[0, -np.inf, 0]), "list '1', item 0: the log-propensity must be finite"),
        (shown(clicked_at=[np.nan, np.nan, np.inf]), "list '1', item 1: clicked_at must be finite"),
        (shown(slots=[0, 0, -1], clicked_at=[np.nan, np.nan, 5]), "list '1', item 1: clicked, but not shown"),
        (shown(times=[1, np.nan]), "list '1': the time of the impression must be finite"),
        (shown(latency_ms=[np.inf, 1]), "list '0': the latency must be finite"),
        (shown(drafts=[None, '["a", "b"]']), "list '1': draft must be a JSON list: arm a, arm b, teams"),
        ({"relevance_probability": [0, np.nan, 1]}, "list '1', item 0: relevance_probability nan is not between"),
        ({"item_ids": ["a", "b", "b"]}, "list '1', item 1: item 'b' occurs twice in list '1'"),
        ({"item_ids": ["a", None, "b"]}, "list '1', item 0: the item has no item_id"),
        ({"list_ids": ["a", None]}, "list 1 has no list_id"),
        ({"context": {"hour": [np.nan, np.inf]}}, "list '1': context column 'hour' is inf"),
    ],
)
def test_bad_values_are_refused_with_their_place(arguments: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {"features": np.zeros((3, 1)), "offsets": [0, 1, 3]}
    with pytest.raises(DataError, match=said):
        ItemLists(**(good | arguments)).checked()


def test_features_and_context_may_be_missing() -> None:
    lists = ItemLists([[1.0, np.nan], [np.nan, 2.0]], [0, 2], context={"hour": [np.nan]}).checked()
    assert np.isnan(lists.features).tolist() == [[False, True], [True, False]]
    assert np.isnan(lists.context["hour"]).tolist() == [True]


def test_reordering_and_cutting_lists_keeps_the_slot_of_every_item() -> None:
    lists = ItemLists(np.zeros((3, 1)), [0, 3], item_ids=list("abc"), impressions=Impressions(np.array([1, -1, 0])))
    for changed, slots in {
        lists.reorder([1, 2, 3]): {"a": 1, "b": -1, "c": 0},
        lists.shuffle_items(seed=0): {"a": 1, "b": -1, "c": 0},
        lists.truncate(2): {"a": 1, "b": -1},
        lists.batch([0]).lists: {"a": 1, "b": -1, "c": 0},
    }.items():
        assert changed.impressions is not None
        assert dict(zip(changed.item_ids.to_pylist(), changed.impressions.slots.tolist(), strict=True)) == slots


@given(LENGTHS, st.data())
def test_padding_of_chosen_lists(lengths: list[int], data: st.DataObject) -> None:
    offsets = offsets_from_lengths(np.array(lengths))
    values = np.arange(offsets[-1] * 2).reshape(-1, 2)
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=5))
    padding = Padding.of(offsets, np.array(chosen, dtype=np.int64))
    padded, by_time = padding.pad(values, fill=-1), padding.pad(values, fill=-1, time_major=True)
    longest = max((lengths[q] for q in chosen), default=0)
    assert padded.shape == (len(chosen), longest, 2)
    np.testing.assert_array_equal(by_time, padded.swapaxes(0, 1))
    for row, q in enumerate(chosen):
        assert padding.mask[row].tolist() == [position < lengths[q] for position in range(longest)]
        np.testing.assert_array_equal(padded[row, : lengths[q]], values[offsets[q] : offsets[q + 1]])
        assert (padded[row, lengths[q] :] == -1).all()


def test_the_same_item_may_stand_in_two_lists() -> None:
    lists = ItemLists(np.zeros((2, 1)), [0, 1, 2], item_ids=["a", "a"])
    assert lists.checked() is lists


def test_memory_is_at_most_twice_the_arrays() -> None:
    rng = np.random.default_rng(0)
    features = rng.random((200_000, 20), dtype=np.float32)
    offsets = np.arange(0, 200_001, 20)
    arrow_before = pa.total_allocated_bytes()
    tracemalloc.start()
    lists = ItemLists(features, offsets, labels=np.zeros(200_000))
    ordered = lists.reorder(rng.random(200_000))
    held = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - arrow_before + features.nbytes
    tracemalloc.stop()
    assert held <= 2 * (lists.nbytes + ordered.nbytes)
    assert lists.features is features, "float32 features are not copied"
