"""What the network reads is what the transform gave, list by list, with zeros for padding."""

import numpy as np
import pytest
import torch

from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import ItemLists
from seq2slate.model.network import InputLists, InputSizes
from tests.checks import NAMES, mixed_lists


@pytest.fixture
def lists() -> ItemLists:
    plain = mixed_lists(0, n_features=3)
    rng = np.random.default_rng(1)
    colours = np.array(["red", "green", "blue", None], dtype=object)
    return ItemLists(
        plain.features,
        plain.offsets,
        labels=plain.labels,
        list_ids=plain.list_ids,
        categorical={"colour": rng.choice(colours, plain.n_items), "rare": ["once"] + ["often"] * (plain.n_items - 1)},
        context={"hour": rng.normal(size=len(plain)), "city": ["Rome", "Oslo", None, "Rome", "Oslo", "Oslo", "Bonn"]},
    )


@pytest.fixture
def transform(lists: ItemLists) -> FeatureTransform:
    return FeatureTransform.fit(lists)


def test_sizes_count_columns_and_codes(transform: FeatureTransform) -> None:
    # "once" and "Bonn" are too rare for a code of their own; slot 0 is there in any case
    assert InputSizes.of(transform) == InputSizes(3, {"colour": 4, "rare": 2}, 1, {"city": 3})


@pytest.mark.parametrize("index", [None, [3, 6, 0, 2], [0], [2, 2], []])
def test_a_batch_holds_the_encoded_columns_time_major(
    lists: ItemLists, transform: FeatureTransform, index: list[int] | None
) -> None:
    chosen = None if index is None else np.array(index, dtype=np.int64)
    inputs = InputLists.of(lists, transform).batch(chosen)
    numbers = list(range(len(lists))) if index is None else index
    longest = max((int(lists.lengths[number]) for number in numbers), default=0)
    assert inputs.dense.shape == (longest, len(numbers), 3)
    assert inputs.mask.shape == (len(numbers), longest)
    for row, number in enumerate(numbers):
        length, alone = int(lists.lengths[number]), transform.apply(lists[number])
        assert inputs.mask[row].tolist() == [True] * length + [False] * (longest - length)
        np.testing.assert_array_equal(inputs.dense[:length, row], alone.dense)
        np.testing.assert_array_equal(inputs.context[row], alone.context[0])
        for name, codes in alone.categorical.items():
            np.testing.assert_array_equal(inputs.categorical[name][:length, row], codes)
            assert (inputs.categorical[name][length:, row] == 0).all()
        for name, codes in alone.context_categorical.items():
            assert inputs.context_categorical[name][row] == int(codes[0])
        assert (inputs.dense[length:, row] == 0).all()
    assert inputs.dense.dtype == inputs.context.dtype == torch.float32
    assert all(codes.dtype == torch.int64 for codes in inputs.categorical.values())


def test_values_of_items_are_padded_like_the_items(lists: ItemLists, transform: FeatureTransform) -> None:
    assert lists.labels is not None
    index = np.array([6, 0, 2, 5])
    padded = InputLists.of(lists, transform).pad(lists.labels, index)
    np.testing.assert_array_equal(padded, lists.batch(index).labels)
    assert padded.is_contiguous()


def test_batches_do_not_share_memory_with_the_lists(lists: ItemLists, transform: FeatureTransform) -> None:
    inputs = InputLists.of(lists, transform)
    before = inputs.encoded.dense.copy(), inputs.encoded.context.copy()
    single = np.array([NAMES.index("single")])
    for batch in (inputs.batch(), inputs.batch(single)):
        batch.dense.add_(1)
        batch.context.add_(1)
    np.testing.assert_array_equal(inputs.encoded.dense, before[0])
    np.testing.assert_array_equal(inputs.encoded.context, before[1])


def test_inputs_move_to_another_device(lists: ItemLists, transform: FeatureTransform) -> None:
    moved = InputLists.of(lists, transform).batch().to("meta")
    tensors = [moved.dense, moved.context, moved.mask, *moved.categorical.values(), *moved.context_categorical.values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
