"""The network equals the reference that is written from the paper's equations; padding and company change nothing."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from seq2slate.config import NetworkConfig
from seq2slate.errors import UsageError
from seq2slate.model.decoders import choice_log_probabilities, slots_of_items
from seq2slate.model.network import InputSizes, NetworkInputs, SlateNetwork
from seq2slate.training.losses import make_loss, sequence_loss
from tests import reference_network as slow
from tests.reference_network import KERNELS, MIXED_LENGTHS, PLAIN, RICH, VARIANTS

LABELS = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 0, 0], [1, 0, 1], [0, 0, 0], [0, 2, 1]]).float()
"""For the lists of MIXED_LENGTHS; items after the third have 0, but for one of the long list."""
SLOTS = 7
PRECISIONS = dict.fromkeys(KERNELS, 0.0001) | {"float64": 1e-9}
"""The kernels, all of float32 but the last, and how close they have to come."""


@pytest.fixture(params=PRECISIONS)
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name != "float64":
        slow.use_kernels(name, monkeypatch)
    return name


@cache
def slow_results(variant: str, step_loss: str) -> tuple[list[list[slow.Scores]], list[Tensor], dict[str, Tensor]]:
    """Return the scores and losses of each list, and the gradient of all losses and log-probabilities together."""
    network, inputs, slates = case(variant, "native")
    reference = slow.ReferenceNetwork(network)
    scores, losses, logs = [], [], []
    for number, slate in enumerate(slates):
        placed = slow.placed_items(slate)
        of_list = reference.scores(slow.one_list(inputs, number), placed)
        labels = labels_of(inputs.mask)[number].tolist()
        losses.append(slow.sequence_loss(of_list, labels, slow.STEP_LOSSES[step_loss], dcg_weights()))
        logs.append(slow.log_probability(of_list, placed))
        scores.append(of_list)
    return scores, losses, reference.gradient(slow.sum_of(iter([*losses, *logs])))


def case(variant: str, precision: str) -> tuple[SlateNetwork, NetworkInputs, Tensor]:
    sizes, config = VARIANTS[variant]
    network = slow.random_network(sizes, config, seed=1)
    inputs = slow.random_inputs(sizes, MIXED_LENGTHS, seed=2)
    if precision == "float64":
        network, inputs = network.double(), slow.in_double(inputs)
    return network, inputs, slow.random_slates(MIXED_LENGTHS, SLOTS, seed=3)


def labels_of(mask: Tensor) -> Tensor:
    labels = torch.zeros(mask.shape)
    labels[:, : LABELS.shape[1]] = LABELS
    labels[3, 8] = 1
    return labels


def dcg_weights() -> list[float]:
    return [1 / math.log2(j + 1) for j in range(1, SLOTS + 1)]


def scores_of(network: SlateNetwork, inputs: NetworkInputs, slates: Tensor) -> Tensor:
    return network.decoder.score(network.encode(inputs), slates)


def assert_scores_equal(scores: Tensor, expected: list[slow.Scores], tolerance: float) -> None:
    """The scores (K, N) of one list are the expected ones where an item is left, and -inf everywhere else."""
    dense = torch.full(scores.shape, -torch.inf, dtype=torch.float64)
    for step, of_step in enumerate(expected):
        for item, score in of_step.items():
            dense[step, item] = score.detach()
    torch.testing.assert_close(scores.detach().double(), dense, rtol=tolerance, atol=tolerance)


def assert_gradients_equal(network: SlateNetwork, expected: dict[str, Tensor], tolerance: float) -> None:
    """Every weight's gradient is within the tolerance, relative to the largest entry for that weight.

    The scores have no gradient by the click model: that learns from the likelihood of the clicks.
    """
    has_click_model = network.config.interaction != "none"
    for name, weight in network.named_parameters():
        if has_click_model and name.startswith(("interaction", "prior")):
            assert weight.grad is None, name
            continue
        assert weight.grad is not None, name
        gap = (weight.grad.double() - expected[name]).abs().max()
        assert gap <= tolerance * expected[name].abs().max().clamp(min=1e-3), (name, gap)


# The reference


@pytest.mark.parametrize("step_loss", slow.STEP_LOSSES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_losses_and_gradients_equal_the_reference(variant: str, step_loss: str, precision: str) -> None:
    network, inputs, slates = case(variant, precision)
    expected_scores, expected_losses, expected_gradients = slow_results(variant, step_loss)
    tolerance = PRECISIONS[precision]
    scores = scores_of(network, inputs, slates)
    for number, expected in enumerate(expected_scores):
        assert_scores_equal(scores[number], expected, tolerance)
    labels, weights = labels_of(inputs.mask), torch.tensor(dcg_weights(), dtype=scores.dtype)
    losses = sequence_loss(scores, labels, slates, inputs.mask, loss=make_loss(step_loss), weights=weights)
    torch.testing.assert_close(
        losses.detach().double(), torch.stack(expected_losses).detach(), rtol=tolerance, atol=tolerance
    )
    (losses.sum() + choice_log_probabilities(scores, slates).sum()).backward()  # type: ignore[no-untyped-call]
    assert_gradients_equal(network, expected_gradients, tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_log_prob_equals_the_reference(variant: str, precision: str) -> None:
    network, inputs, slates = case(variant, precision)
    reference = slow.ReferenceNetwork(network)
    logs = network.decoder.log_prob(network.encode(inputs), slates)
    for number, slate in enumerate(slates):
        placed = slow.placed_items(slate)
        scores = reference.scores(slow.one_list(inputs, number), placed)
        expected = slow.log_probability(scores, placed).detach()
        torch.testing.assert_close(
            logs[number].sum().double().detach(), expected, rtol=PRECISIONS[precision], atol=1e-6
        )
        assert (logs[number, len(placed) :] == 0).all()


@pytest.mark.parametrize(
    "variant", [name for name, (_, config) in VARIANTS.items() if config.interaction == "pairwise"]
)
def test_the_likelihood_of_the_clicks_equals_the_reference(variant: str, precision: str) -> None:
    network, inputs, _ = case(variant, precision)
    labels = labels_of(inputs.mask)
    found = network.click_likelihood(inputs).log_likelihood(labels, inputs.mask)
    found.sum().backward()  # type: ignore[no-untyped-call]
    reference = slow.ReferenceNetwork(network)
    expected = [
        reference.click_log_likelihood(slow.one_list(inputs, number), labels[number].tolist())
        for number in range(len(labels))
    ]
    tolerance = PRECISIONS[precision]
    torch.testing.assert_close(found.detach().double(), torch.stack(expected).detach(), rtol=tolerance, atol=tolerance)
    gradients = reference.gradient(slow.sum_of(iter(expected)))
    learned = {id(weight) for weight in network.click_model_parameters()}
    for name, weight in network.named_parameters():
        if id(weight) not in learned:
            assert weight.grad is None, name
            continue
        assert weight.grad is not None, name
        gap = (weight.grad.double() - gradients[name]).abs().max()
        assert gap <= tolerance * gradients[name].abs().max().clamp(min=1e-3), (name, gap)
    with torch.no_grad():
        in_scores = network.encode(inputs).terms.clicks
        assert in_scores is not None
        torch.testing.assert_close(in_scores.log_likelihood(labels, inputs.mask), found, rtol=1e-5, atol=1e-5)


def test_positions_from_the_64th_on_share_a_prior() -> None:
    network = slow.random_network(PLAIN, NetworkConfig(hidden=4, base_prior=True), seed=0)
    inputs = slow.random_inputs(PLAIN, [70, 2], seed=1)
    slates = torch.tensor([[66, 0], [1, 0]])
    scores = scores_of(network, inputs, slates)
    expected = slow.ReferenceNetwork(network).scores(slow.one_list(inputs, 0), [66, 0])
    assert_scores_equal(scores[0], expected, 1e-5)


def test_scores_stop_where_a_slate_ends() -> None:
    network, inputs, slates = case("everything", "native")
    stops = torch.tensor([2, 0, 1, 5, 0, 6])
    before = torch.arange(SLOTS) < stops[:, None]
    whole, stopped = scores_of(network, inputs, slates), scores_of(network, inputs, slates.where(before, -1))
    torch.testing.assert_close(stopped, whole.where(before[:, :, None], -torch.inf), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_gradients_the_scores_are_the_same(variant: str, precision: str) -> None:
    network, inputs, slates = case(variant, precision)
    scores = scores_of(network, inputs, slates)
    with torch.no_grad():
        torch.testing.assert_close(scores_of(network, inputs, slates), scores.detach(), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_large_column_that_all_items_share_does_not_cost_the_distances_their_digits() -> None:
    sizes = InputSizes(3, {}, 1, {})
    network = slow.random_network(sizes, NetworkConfig(hidden=4, interaction="pairwise"), seed=0)
    inputs = slow.random_inputs(sizes, [8], seed=1)
    inputs.context.fill_(10.0)
    slates = slow.random_slates([8], 8, seed=2)
    scores = scores_of(network, inputs, slates)
    expected = scores_of(network.double(), slow.in_double(inputs), slates)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_distances_far_above_the_median_do_not_depend_on_rounding() -> None:
    """One item is so far from the others that its distances are equal, and part of the median is nothing to them."""
    sizes = InputSizes(3, {}, 0, {})
    network = slow.random_network(sizes, NetworkConfig(hidden=4, interaction="pairwise"), seed=0)
    inputs = slow.random_inputs(sizes, [5], seed=1)
    inputs.dense[2, 0, 0] = 1e6
    slates = slow.random_slates([5], 5, seed=2)
    scores = scores_of(network, inputs, slates)
    expected = scores_of(network.double(), slow.in_double(inputs), slates)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-3, atol=1e-3)


# Padding


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_a_list_has_the_same_scores_alone_and_in_any_company(variant: str, precision: str) -> None:
    network, inputs, slates = case(variant, precision)
    scores = scores_of(network, inputs, slates)
    companies: list[tuple[Sequence[int], int]] = [([5, 3, 1, 0, 2, 4], 9), ([0, 1, 2, 4, 5], 6), ([3, 1], 9)]
    companies += [([number], max(length, 1)) for number, length in enumerate(MIXED_LENGTHS)]
    companies += [([4, 3, 3, 0], 14), ([1, 1], 2)]
    for chosen, n_items in companies:
        again = scores_of(network, slow.some_lists(inputs, chosen, n_items), slates[list(chosen)])
        width = min(n_items, scores.shape[2])
        torch.testing.assert_close(again[:, :, :width], scores[list(chosen), :, :width], rtol=1e-5, atol=1e-5)
        assert (again[:, :, width:] == -torch.inf).all()


@pytest.mark.parametrize("variant", ["everything", "everything, attention, gru"])
def test_padding_gets_no_gradient(variant: str) -> None:
    network, inputs, slates = case(variant, "float64")
    dense = inputs.dense.clone().requires_grad_(True)
    network.decoder.log_prob(network.encode(replace(inputs, dense=dense)), slates).sum().backward()  # type: ignore[no-untyped-call]
    assert dense.grad is not None
    there = inputs.mask.t()
    assert (dense.grad[~there] == 0).all()
    assert (dense.grad[there].abs().sum(1) > 0).sum() == sum(length for length in MIXED_LENGTHS if length > 1)


@pytest.mark.parametrize("variant", ["paper", "one-step", "gru", "everything", "attention"])
@pytest.mark.parametrize("n_lists", [0, 2])
def test_lists_without_items_have_empty_slates(variant: str, n_lists: int) -> None:
    sizes, config = VARIANTS[variant]
    network = slow.random_network(sizes, config, seed=0)
    encoded = network.encode(slow.random_inputs(sizes, [0] * n_lists, seed=0))
    decoded = network.decoder.decode(encoded, 3)
    assert decoded.slates.shape == (n_lists, 0)
    assert network.decoder.log_prob(encoded, decoded.slates).shape == (n_lists, 0)


@pytest.mark.parametrize("variant", ["paper", "one-step", "everything"])
def test_probabilities_are_0_for_placed_items_and_sum_to_1(variant: str, precision: str) -> None:
    network, inputs, _ = case(variant, precision)
    decoded = network.decoder.decode(network.encode(inputs), generator=torch.Generator().manual_seed(0))
    probabilities = decoded.probabilities
    for number, length in enumerate(MIXED_LENGTHS):
        slate = slow.placed_items(decoded.slates[number])
        assert sorted(slate) == list(range(length))
        for step in range(length):
            assert (probabilities[number, step, slate[:step]] == 0).all()
            assert (probabilities[number, step, slate[step:]] > 0).all()
        assert (probabilities[number, :, length:] == 0).all()
        torch.testing.assert_close(probabilities[number, :length].sum(1), torch.ones(length).to(probabilities))
        assert (probabilities[number, length:] == 0).all()


# Parts


def test_slots_of_items_say_where_each_item_stands() -> None:
    slates = torch.tensor([[2, 0], [1, -1], [-1, -1]])
    mask = torch.tensor([[True] * 3, [True, True, False], [False] * 3])
    assert slots_of_items(slates, mask).tolist() == [[1, 2, 0], [2, 0, -1], [-1, -1, -1]]


def test_a_fresh_network_starts_in_its_range_and_with_the_base_order() -> None:
    network = SlateNetwork(RICH, NetworkConfig(hidden=64, base_prior=True, initial_range=0.05))
    network.reset_parameters(torch.Generator().manual_seed(0))
    for name, weight in network.named_parameters():
        if name == "prior":
            torch.testing.assert_close(weight.detach() * slow.PARAM_SCALE, -torch.log1p(torch.arange(64)))
        else:
            assert 0.03 < weight.abs().max() <= 0.05, name
    again = SlateNetwork(RICH, network.config)
    again.reset_parameters(torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    small = SlateNetwork(RICH, replace(network.config, initial_range=1e-3))
    small.reset_parameters(torch.Generator().manual_seed(0))
    slates = small.decoder.decode(small.encode(slow.random_inputs(RICH, [20, 4], seed=0))).slates
    assert slates[0].tolist() == list(range(20))


def test_units_start_with_memories_of_one_item_up_to_the_span() -> None:
    networks = [SlateNetwork(RICH, NetworkConfig(hidden=8, memory_span=span)) for span in (None, 50.0)]
    for network in networks:
        network.reset_parameters(torch.Generator().manual_seed(0))
    without, spread = (dict(network.named_parameters()) for network in networks)
    lengths = torch.tensor([50 ** (k / 8) for k in range(1, 9)])
    biases = [name for name in without if name in ("encoder.layers.0.0.bias", "decoder.layers.0.bias")]
    assert len(biases) == 2
    for name, weight in without.items():
        added = (spread[name] - weight).detach()
        if name in biases:
            gates = added.view(4, 8)
            torch.testing.assert_close(torch.sigmoid(gates[0]), 1 / lengths, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(torch.sigmoid(gates[1]), 1 - 1 / lengths, rtol=1e-4, atol=1e-6)
            added = gates[2:]
        assert added.abs().max() == 0, name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_span": 1.0}, "must be a number above 1"),
        ({"memory_span": math.inf}, "must be a number above 1"),
        ({"memory_span": 9.0, "cell": "gru"}, "gru has none"),
    ],
)
def test_a_memory_span_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        NetworkConfig(**options)


def test_dropout_takes_the_same_columns_of_a_list_at_every_step_and_keeps_the_mean() -> None:
    sizes = InputSizes(200, {}, 0, {})
    network = slow.random_network(sizes, NetworkConfig(hidden=100, dropout=0.25), seed=0).train()
    inputs = replace(slow.random_inputs(sizes, [5] * 40, seed=1), dense=torch.ones(5, 40, 200))
    encoded = network.encode(inputs, generator=torch.Generator().manual_seed(2))
    kept = encoded.items[0]
    assert (encoded.items == kept).all()
    assert set(kept.flatten().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs(kept.mean() - 1) < 4 * (0.25 / 0.75 / kept.numel()) ** 0.5
    assert (kept[0] != kept[1]).any()
    assert encoded.keep is not None
    assert encoded.keep.shape == (40, 100)
    assert network.eval().encode(inputs).keep is None
    assert (network.encode(inputs).items == 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "rnn"}, "no cell 'rnn'; choose one of lstm, gru"),
        ({"decoder": "two-step"}, "no decoder 'two-step'; choose one of sequential, one-step"),
        ({"hidden": 0}, "at least 1"),
        ({"layers": 0}, "at least 1"),
        ({"embedding": 0}, "at least 1"),
        ({"bidirectional": True, "hidden": 5}, "5 is odd"),
        ({"encoder": "convolution"}, "no encoder 'convolution'; choose one of recurrent, attention"),
        ({"encoder": "attention", "hidden": 10, "heads": 4}, "10 hidden units do not divide by 4"),
        ({"encoder": "attention", "heads": 0}, "at least 1"),
        ({"encoder": "attention", "reversed_input": True}, "attention has no direction"),
        ({"encoder": "attention", "bidirectional": True}, "attention has no direction"),
        ({"position_embedding": True}, "for encoder='attention'"),
        ({"dropout": 1.0}, "below 1, got 1.0"),
        ({"dropout": -0.1}, "at least 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        NetworkConfig(**options)  # type: ignore[arg-type]


def test_a_network_without_columns_is_refused() -> None:
    with pytest.raises(UsageError, match="no column to learn from"):
        SlateNetwork(InputSizes(0, {}, 0, {}), NetworkConfig())
    SlateNetwork(InputSizes(0, {}, 0, {}), NetworkConfig(position_input=True))
