"""Self-attention: a block equals a plain NumPy one, padding has no weight, and the presets that use it train."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from seq2slate.config import PRESETS, NetworkConfig, TrainingConfig, configure
from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import Ranker
from seq2slate.estimator import NETWORK_PRESETS, load, make_estimator
from seq2slate.model.encoders import LAST_POSITION, AttentionBlock, AttentionEncoder, mean_of_items
from seq2slate.model.network import InputSizes, NetworkInputs, SlateNetwork
from seq2slate.model.slate_model import SlateModel
from seq2slate.reranker import Reranker
from seq2slate.saving import MANIFEST, write_manifest
from seq2slate.training.losses import make_loss
from seq2slate.training.objectives import Objective
from tests.checks import check_ranker, mixed_lists
from tests.reference_network import MIXED_LENGTHS, PLAIN, in_double, random_inputs, random_network, some_lists

ATTENTION = NetworkConfig(hidden=8, encoder="attention", heads=2, layers=2)
SET = replace(ATTENTION, decoder="one-step")
Array = npt.NDArray[np.float64]


def scores_of(network: SlateNetwork, inputs: NetworkInputs) -> Tensor:
    """Return the scores (B, N) of the first step."""
    items = inputs.mask.any(1, keepdim=True).long() - 1  # the first of each list that has one
    return network.decoder.score(network.encode(inputs), items)[:, 0]


def undropped(values: Tensor) -> Tensor:
    return values


# The reference


def block_in_numpy(weights: dict[str, Array], x: Array, heads: int) -> Array:
    """Return what a block makes of one list (n, D), without padding."""

    def linear(name: str, values: Array) -> Array:
        return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, values: Array) -> Array:
        centred = values - values.mean(1, keepdims=True)
        scaled: Array = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    queries, keys, values = np.split(linear("queries_keys_values", x), 3, axis=1)
    found = []
    for q, k, v in zip(*(np.split(part, heads, axis=1) for part in (queries, keys, values)), strict=True):
        attention = np.exp(q @ k.T / math.sqrt(q.shape[1]))
        found.append(attention / attention.sum(1, keepdims=True) @ v)
    x = norm("attended_norm", x + linear("join", np.concatenate(found, axis=1)))
    return norm("norm", x + linear("narrow", np.maximum(linear("widen", x), 0)))


@pytest.mark.parametrize("heads", [1, 2, 6])
@torch.no_grad()
def test_a_block_equals_the_one_in_numpy(heads: int) -> None:
    generator = torch.Generator().manual_seed(heads)
    block = AttentionBlock(6, heads).double()
    for weight in block.parameters():
        weight.uniform_(-0.9, 0.9, generator=generator)
    x = torch.randn(max(MIXED_LENGTHS), len(MIXED_LENGTHS), 6, generator=generator, dtype=torch.float64)
    mask = torch.arange(len(x)) < torch.tensor(MIXED_LENGTHS)[:, None]
    outputs = block(x, mask, undropped).numpy()
    weights = {name: weight.numpy() for name, weight in block.named_parameters()}
    for number, length in enumerate(MIXED_LENGTHS):
        expected = block_in_numpy(weights, x[:length, number].numpy(), heads)
        np.testing.assert_allclose(outputs[:length, number], expected, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_the_decoder_starts_from_the_mean_of_the_memory() -> None:
    memory = torch.randn(9, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor(MIXED_LENGTHS)[:, None]
    means = mean_of_items(memory, mask)
    for number, length in enumerate(MIXED_LENGTHS):
        expected = memory[:length, number].mean(0) if length else torch.zeros(4, dtype=torch.float64)
        torch.testing.assert_close(means[number], expected)
    network = random_network(PLAIN, ATTENTION, seed=0)
    encoded = network.encode(random_inputs(PLAIN, MIXED_LENGTHS, seed=1))
    ((h, c),) = encoded.states
    assert torch.equal(h, torch.tanh(c))
    assert (c[MIXED_LENGTHS.index(0)] == 0).all()
    assert (c[MIXED_LENGTHS.index(9)] != 0).all()


# Padding


@pytest.mark.parametrize("decoder", ["one-step", "sequential"])
@torch.no_grad()
def test_padding_weighs_exactly_nothing(decoder: str) -> None:
    network = random_network(PLAIN, replace(ATTENTION, decoder=decoder, position_embedding=True), seed=0)
    inputs = random_inputs(PLAIN, MIXED_LENGTHS, seed=1)
    other = replace(inputs, dense=inputs.dense.where(inputs.mask.t()[:, :, None], -1000.0))
    assert torch.equal(scores_of(network, inputs), scores_of(network, other))


@torch.no_grad()
def test_more_padding_changes_no_score() -> None:
    network = random_network(PLAIN, replace(SET, position_embedding=True), seed=0).double()
    inputs = in_double(random_inputs(PLAIN, MIXED_LENGTHS, seed=1))
    scores = scores_of(network, inputs)
    longer = scores_of(network, some_lists(inputs, range(len(MIXED_LENGTHS)), 40))
    torch.testing.assert_close(longer[:, : scores.shape[1]], scores, rtol=1e-12, atol=1e-12)
    assert (longer[:, scores.shape[1] :] == -torch.inf).all()


@pytest.mark.parametrize("lengths", [MIXED_LENGTHS, (0, 0), (1, 1)])
@pytest.mark.parametrize("decoder", ["one-step", "sequential"])
def test_empty_lists_and_single_items_have_no_nan_anywhere(lengths: tuple[int, ...], decoder: str) -> None:
    network = random_network(PLAIN, replace(ATTENTION, decoder=decoder, dropout=0.3), seed=0).train()
    inputs = random_inputs(PLAIN, lengths, seed=1)
    dense = inputs.dense.clone().requires_grad_(True)
    labels = (torch.arange(inputs.mask.shape[1]) == 0) & inputs.mask
    objective = Objective(TrainingConfig(policy="greedy"))
    loss, _ = objective(network, replace(inputs, dense=dense), labels.float(), torch.Generator().manual_seed(0))
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    for name, tensor in [("inputs", dense), *network.named_parameters()]:
        assert tensor.grad is None or torch.isfinite(tensor.grad).all(), name
    assert dense.grad is not None
    assert (dense.grad[~inputs.mask.t()] == 0).all()


# The base order


@pytest.mark.parametrize("position_embedding", [False, True])
@torch.no_grad()
def test_without_positions_the_scores_follow_the_items_wherever_they_stand(position_embedding: bool) -> None:
    config = replace(SET, position_embedding=position_embedding)
    network = random_network(PLAIN, config, seed=0).double()
    inputs = in_double(random_inputs(PLAIN, [7, 7], seed=1))
    order = torch.tensor([3, 6, 0, 5, 1, 4, 2])
    scores, moved = scores_of(network, inputs), scores_of(network, replace(inputs, dense=inputs.dense[order]))
    same = torch.isclose(moved, scores[:, order], rtol=1e-12, atol=1e-12)
    assert same.all() if not position_embedding else not same.any()


@torch.no_grad()
def test_the_last_positions_share_a_vector() -> None:
    n_items = LAST_POSITION + 3
    network = random_network(PLAIN, replace(SET, position_embedding=True), seed=0).double()
    inputs = random_inputs(PLAIN, [n_items], seed=1)
    inputs = in_double(replace(inputs, dense=torch.ones_like(inputs.dense)))
    scores = scores_of(network, inputs)[0]
    torch.testing.assert_close(scores[LAST_POSITION:], scores[LAST_POSITION].expand(3))
    assert (scores[LAST_POSITION - 1] - scores[LAST_POSITION]).abs() > 1e-6


# Dropout and first weights


def test_dropout_comes_from_the_generator_alone() -> None:
    network = random_network(PLAIN, replace(SET, dropout=0.5), seed=0).train()
    inputs = random_inputs(PLAIN, MIXED_LENGTHS, seed=1)
    global_state = torch.get_rng_state()

    def factors(seed: int) -> Tensor:
        return network.encode(inputs, generator=torch.Generator().manual_seed(seed)).keys.factors

    assert torch.equal(factors(1), factors(1))
    assert not torch.equal(factors(1), factors(2))
    assert torch.equal(torch.get_rng_state(), global_state)


def test_every_sublayer_is_dropped_out_for_a_whole_list() -> None:
    shapes = []

    def note(values: Tensor) -> Tensor:
        shapes.append(tuple(values.shape))
        return values * 0

    encoder = AttentionEncoder(3, ATTENTION)
    encoder.reset_parameters(torch.Generator().manual_seed(0), 0.1)
    memory, _ = encoder(torch.randn(5, 2, 3), torch.ones(2, 5, dtype=torch.bool), note)
    assert shapes == [(5, 2, 8)] * 4
    torch.testing.assert_close(memory.mean(2), torch.zeros(5, 2), atol=1e-6, rtol=0)  # nothing but norms is left


def test_first_weights_are_drawn_from_the_generator_each_at_its_scale() -> None:
    config = replace(SET, hidden=64, heads=4, layers=1, position_embedding=True)
    network, again = (SlateNetwork(InputSizes(100, {}, 0, {}), config) for _ in range(2))
    for one in (network, again):
        one.reset_parameters(torch.Generator().manual_seed(3))
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    ranges = {  # Glorot and Bengio: sqrt(6 / (inputs + outputs))
        "encoder.project.weight": math.sqrt(6 / 164),
        "encoder.blocks.0.queries_keys_values.weight": math.sqrt(6 / 128),
        "encoder.blocks.0.join.weight": math.sqrt(6 / 128),
        "encoder.blocks.0.widen.weight": math.sqrt(6 / 192),
        "encoder.blocks.0.narrow.weight": math.sqrt(6 / 192),
    }
    for name, weight in network.named_parameters():
        if name.endswith("norm.weight"):
            assert (weight == 1).all(), name
        elif name.startswith("encoder") and name.endswith("bias"):
            assert (weight == 0).all(), name
        else:
            bound = ranges.get(name, config.initial_range)
            assert 0.9 * bound < weight.abs().max() <= bound, name


# The presets


def test_presets_that_are_named_like_rankers_are_presets() -> None:
    assert set(NETWORK_PRESETS) < set(PRESETS)


@pytest.mark.parametrize("name", NETWORK_PRESETS)
def test_other_rerankers_have_nothing_of_ours(name: str) -> None:
    network = configure(name).network
    assert (network.interaction, network.base_prior, network.position_input) == ("none", False, False)
    assert network.decoder == "one-step"


@pytest.mark.parametrize("name", NETWORK_PRESETS)
def test_with_clicks_the_loss_is_the_attention_rank_loss(name: str) -> None:
    scores, clicks = torch.tensor([0.3, -1.0, 2.0, 0.5]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    wanted = torch.where(clicks > 0, clicks.exp(), 0.0)
    expected = -(wanted / wanted.sum() * (scores.exp() / scores.exp().sum()).log()).sum()
    loss = make_loss(configure(name).training.loss)
    torch.testing.assert_close(loss(scores, clicks, mask=torch.ones(4, dtype=torch.bool)), expected)


@pytest.mark.parametrize("name", NETWORK_PRESETS)
def test_battery(name: str, tmp_path: Path) -> None:
    def save_load(ranker: Ranker) -> Ranker:
        assert isinstance(ranker, Reranker)
        ranker.save(tmp_path / name)
        return load(tmp_path / name)

    lists = mixed_lists(seed=3)
    ranker = make_estimator(name, seed=1).fit(lists, lists)
    assert isinstance(ranker, Reranker)
    assert ranker.model_.network.config == configure(name).network
    check_ranker(ranker, lists, save_load=save_load)


def test_a_model_that_was_saved_before_there_was_attention_still_loads(tmp_path: Path) -> None:
    lists: ItemLists = mixed_lists(seed=0)
    model = SlateModel.create(lists, NetworkConfig(hidden=4))
    model.save(tmp_path)
    head: dict[str, Any] = json.loads((tmp_path / "config.json").read_text())
    for field in ("encoder", "heads", "position_embedding"):
        del head["config"]["network"][field]
    (tmp_path / "config.json").write_text(json.dumps(head))
    write_manifest(tmp_path, [path.name for path in tmp_path.iterdir() if path.name != MANIFEST])
    np.testing.assert_array_equal(load(tmp_path).rank(lists.batch()), model.rank(lists.batch()))
