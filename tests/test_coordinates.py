"""Coordinates that are kept are those that are computed, in whatever order lists are read and however much is kept."""

import numpy as np
import pytest
import torch
from torch import Tensor

from seq2slate.config import NetworkConfig
from seq2slate.data.lists import IntArray, ItemLists
from seq2slate.model.backends.pairs import STEPS
from seq2slate.model.interactions import NoInteraction, PairwiseInteraction
from seq2slate.model.network import InputLists, KnownCoordinates
from seq2slate.model.slate_model import SlateModel

LENGTHS = np.array([5, 1, 0, 12, 2, 7])
BATCHES = [np.array(batch) for batch in ([3, 0], [1, 2], [0, 5, 4, 3, 2], [5, 0], [1], [3, 4, 5])]


@pytest.fixture
def model() -> SlateModel:
    offsets = np.concatenate([[0], LENGTHS.cumsum()])
    lists = ItemLists(np.random.default_rng(0).normal(size=(offsets[-1], 4)), offsets)
    return SlateModel.create(lists, NetworkConfig(hidden=4, interaction="pairwise"))


def inputs_of(model: SlateModel) -> InputLists:
    offsets = np.concatenate([[0], LENGTHS.cumsum()])
    return InputLists.of(ItemLists(np.random.default_rng(0).normal(size=(offsets[-1], 4)), offsets), model.transform)


def computed(model: SlateModel, inputs: InputLists, index: IntArray) -> Tensor | None:
    """Return what the interaction computes for a batch that nothing is known of."""
    batch = InputLists(inputs.encoded, inputs.lengths).batch(index)
    return model.network.interaction.coordinates_of(batch.dense, batch.mask.sum(1))


@pytest.mark.parametrize("most_bytes", [0, 700, 1 << 20])
def test_kept_coordinates_are_the_computed_ones(model: SlateModel, most_bytes: int) -> None:
    inputs = inputs_of(model)
    inputs.coordinates = KnownCoordinates(model.network.interaction, rounded=False, most_bytes=most_bytes)
    for index in BATCHES * 2:
        found, expected = inputs.batch(index).coordinates, computed(model, inputs, index)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert found.dtype == torch.float32
            assert torch.equal(found, expected)


@pytest.mark.parametrize("most_bytes", [0, 700, 1 << 20])
def test_rounded_ones_do_not_depend_on_what_is_kept(model: SlateModel, most_bytes: int) -> None:
    inputs = inputs_of(model)
    inputs.coordinates = KnownCoordinates(model.network.interaction, rounded=True, most_bytes=most_bytes)
    for index in BATCHES * 2:
        found, expected = inputs.batch(index).coordinates, computed(model, inputs, index)
        if found is not None and expected is not None:
            assert found.dtype == torch.int16
            assert torch.equal(found, (expected * STEPS).round().short())


def test_a_list_is_computed_once_while_there_is_room(model: SlateModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    compute = PairwiseInteraction.coordinates_of

    def counted(self: PairwiseInteraction, dense: Tensor, lengths: Tensor) -> Tensor | None:
        seen.extend(lengths.tolist())
        return compute(self, dense, lengths)

    monkeypatch.setattr(PairwiseInteraction, "coordinates_of", counted)
    inputs = inputs_of(model)
    pair_bytes = 3 * 2 * (12 * 11 + 5 * 4) // 2  # of the first two lists
    inputs.coordinates = KnownCoordinates(model.network.interaction, rounded=True, most_bytes=pair_bytes)
    for _ in range(3):
        inputs.batch(np.array([3, 0]))
    assert seen == [12, 5]
    inputs.batch(np.array([0, 5]))
    inputs.batch(np.array([5, 3]))
    assert seen == [12, 5, 7, 7], "there is no room for a third"


def test_an_interaction_without_coordinates_has_none() -> None:
    known = KnownCoordinates(NoInteraction(4, 4), rounded=True)
    assert known.batch(np.array([0]), torch.zeros(3, 1, 4), np.array([3])) is None


def test_scores_with_kept_coordinates_are_those_without(model: SlateModel) -> None:
    inputs, index = inputs_of(model), np.array([0, 3, 1, 4])
    alone = model.network.encode(inputs.batch(index)).terms
    inputs.coordinates = KnownCoordinates(model.network.interaction, rounded=False)
    for _ in range(2):
        known = model.network.encode(inputs.batch(index)).terms
        assert known.bias is not None
        assert alone.bias is not None
        assert torch.equal(known.bias, alone.bias)
