"""A request gets the slate that the model gives to a batch, whatever the model is made of."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from seq2slate.baselines.linear import RidgeRanker
from seq2slate.config import NetworkConfig
from seq2slate.data.features import FeatureTransform, Scaling
from seq2slate.data.lists import FloatArray, IntArray, ItemLists
from seq2slate.data.ranker import Ranker
from seq2slate.errors import DataError, UsageError
from seq2slate.model.backends.backend import NetworkBackend, choose_backend
from seq2slate.model.backends.parity import Judge, Slates, random_batches
from seq2slate.model.decoders import Sequential, choice_log_probabilities
from seq2slate.model.slate_model import SlateModel
from seq2slate.serving.deployment import load_deployment
from tests import reference_network as slow
from tests.checks import check_ranker, mixed_lists
from tests.reference_network import KERNELS, VARIANTS, randomise, use_kernels
from tests.served_models import columns_of, lists_for, model_for

IN_C = [
    name
    for name, (_, config) in VARIANTS.items()
    if (config.encoder, config.layers, config.cell, config.decoder) == ("recurrent", 1, "lstm", "sequential")
    and not config.bidirectional
    and not config.reversed_input
]
"""The variants that one call to C takes care of."""


def request(
    backend: NetworkBackend, one: ItemLists, k: int | None = None, **options: Any
) -> tuple[IntArray, FloatArray]:
    """Ask for the slate of the only list, as a service would."""
    return backend.slate(one.features, k, **columns_of(one), **options)


# The same as the model


@pytest.mark.parametrize("k", [None, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_slates_and_log_probabilities_are_the_model_s(variant: str, k: int | None) -> None:
    lists = lists_for(variant)
    model = model_for(variant, lists)
    backend = choose_backend(model)
    for one in lists:
        decoded = model.decode(one, k)
        slate, logs = request(backend, one, k)
        assert slate.tolist() == decoded.slates[0].tolist()
        np.testing.assert_allclose(logs, decoded.log_probabilities[0], rtol=0, atol=1e-5)
        assert slate.dtype == np.int64
        assert logs.dtype == np.float32


@pytest.mark.parametrize("variant", ["paper", "pairwise and prior"])
def test_many_random_lists_with_duplicates_and_outliers_get_the_model_s_slates(variant: str) -> None:
    model = model_for(variant, lists_for(variant))
    backend, judge, n_differ = choose_backend(model), Judge(model), 0
    for batch in random_batches(model.transform, np.arange(1, 201), 0):
        for one in batch.lists:
            decoded = model.decode(one)
            found = Slates(*backend.slate(one.features))
            network = Slates(decoded.slates[0].numpy(), decoded.log_probabilities[0].numpy())
            differ = found.items.tolist() != network.items.tolist()
            if differ or np.abs(found.logs - network.logs).max() > 1e-5:
                judge.gap(one, found, network)  # fails unless float64 calls it a tie, or rounding
            n_differ += differ
    assert n_differ < 20  # of 200, of which 20 have nothing but one item again and again


@pytest.mark.parametrize("variant", IN_C)
def test_log_probabilities_equal_the_reference(variant: str) -> None:
    lists = lists_for(variant, lengths=(1, 7, 12))
    model = model_for(variant, lists)
    reference, inputs = slow.ReferenceNetwork(model.network), model.inputs(lists)
    for number, one in enumerate(lists):
        slate, logs = request(choose_backend(model), one)
        for length in range(1, len(slate) + 1):
            placed = slate[:length].tolist()
            expected = slow.log_probability(reference.scores(slow.one_list(inputs, number), placed), placed)
            np.testing.assert_allclose(logs[:length].sum(), expected.item(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("hidden", "columns"), [(1, 1), (16, 8), (33, 21), (64, 136)])
@pytest.mark.parametrize("steepness", [1.0, 100.0])
def test_any_width_and_any_steepness_of_the_pointer(hidden: int, columns: int, steepness: float) -> None:
    rng = np.random.default_rng(hidden)
    lists = ItemLists(rng.normal(size=(60, columns)), [0, 20, 60])
    model = SlateModel.create(lists, NetworkConfig(hidden=hidden, base_prior=True))
    randomise(model.network, 0, 0.1)
    with torch.no_grad():
        model.network.w_enc.mul_(steepness)  # beyond where e^2x would overflow, if it were not limited
        model.network.w_dec.mul_(steepness)
    for one in lists:
        for k in (3, None):
            slate, logs = choose_backend(model).slate(one.features, k)
            assert slate.tolist() == model.decode(one, k).slates[0].tolist()
            np.testing.assert_allclose(logs, model.log_prob(one, slate[None])[0], rtol=0, atol=1e-6 * (9 + steepness))


@pytest.mark.parametrize("scaling", get_args(Scaling))
@pytest.mark.parametrize("interaction", ["none", "pairwise"])
@pytest.mark.parametrize("missing", [0, 0.2])
def test_raw_columns_are_scaled_as_in_training(scaling: Scaling, interaction: str, missing: float) -> None:
    rng = np.random.default_rng(3)
    narrow = 1e-3 if interaction == "none" else 1e-2  # pairs multiply the rounding error of logarithms that hardly vary
    features = 0.5 + rng.normal(size=(90, 5)) * [1, narrow, 4, 1, 0]  # the last column is constant
    features[rng.random(features.shape) < missing] = np.nan
    lists = ItemLists(features, [0, 20, 90])
    config = NetworkConfig(hidden=16, interaction=interaction, base_prior=interaction != "none")
    model = SlateModel(FeatureTransform.fit(lists, scaling=scaling), SlateModel.create(lists, config).network)
    assert len(model.transform.dense.indicators) == (5 if missing else 0)
    randomise(model.network, 0, 0.1)
    backend = choose_backend(model)
    features[3, :2], features[30, 4] = (3e38, -3e38) if scaling != "none" else (50, -50), 7.0  # as no training list had
    for one in ItemLists(features, [0, 20, 90]):
        slate, logs = backend.slate(one.features)
        assert slate.tolist() == model.decode(one).slates[0].tolist()
        np.testing.assert_allclose(logs, model.log_prob(one, slate[None])[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", ["paper", "pairwise and prior", "gru", "one-step"])
@pytest.mark.parametrize("temperature", [1.0, 0.3, 4.0])
def test_a_drawn_slate_is_the_model_s_with_the_propensities_of_the_draw(variant: str, temperature: float) -> None:
    lists = lists_for(variant)
    model = model_for(variant, lists)
    backend = choose_backend(model)
    for seed, one in enumerate(lists):
        drawn = model.decode(one, 20, generator=torch.Generator().manual_seed(seed), temperature=temperature)
        slate, logs = request(backend, one, 20, generator=torch.Generator().manual_seed(seed), temperature=temperature)
        assert slate.tolist() == drawn.slates[0].tolist()
        expected = choice_log_probabilities(drawn.scores / temperature, drawn.slates)[0]
        np.testing.assert_allclose(logs, expected, rtol=0, atol=1e-4)


def test_draws_are_as_frequent_as_their_propensities_say() -> None:
    lists = ItemLists(np.random.default_rng(0).normal(size=(4, 3)), [0, 4])
    model = SlateModel.create(lists, NetworkConfig(hidden=8))
    randomise(model.network, 0)
    backend, generator, n_draws = choose_backend(model), torch.Generator().manual_seed(0), 4000
    drawn = [backend.slate(lists.features, 2, generator=generator, temperature=2.0) for _ in range(n_draws)]
    pairs = {tuple(slate.tolist()): float(np.exp(logs.sum())) for slate, logs in drawn}
    assert len(pairs) == 4 * 3
    assert sum(pairs.values()) == pytest.approx(1, abs=1e-5)
    for pair, probability in pairs.items():
        share = np.mean([tuple(slate.tolist()) == pair for slate, _ in drawn])
        assert abs(share - probability) < 5 * np.sqrt(probability * (1 - probability) / n_draws)


# A ranker


@pytest.mark.parametrize(
    ("variant", "kernels"),
    [(variant, "native") for variant in ("paper", "pairwise and prior", "one-step", "attention")]
    + [("pairwise and prior", name) for name in KERNELS if name != "native"],
)
def test_battery(variant: str, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(kernels, monkeypatch)
    lists = mixed_lists(0)
    model = model_for(variant, lists)
    model.save(tmp_path / "model")

    def save_load(_: Ranker) -> Ranker:
        return choose_backend(SlateModel.load(tmp_path / "model"))

    check_ranker(choose_backend(model), lists, save_load=save_load)


def test_columns_of_every_kind_reach_the_network_in_a_batch_too() -> None:
    lists = lists_for("embeddings and context")
    model = model_for("embeddings and context", lists)
    assert (choose_backend(model).rank(lists.batch()) == model.rank(lists.batch())).all()


# How it runs


@pytest.mark.parametrize("variant", IN_C)
def test_the_usual_path_is_not_taken_where_c_will_do(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels("native", monkeypatch)
    lists = lists_for(variant)
    backend = choose_backend(model_for(variant, lists))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("decoded as a batch")

    monkeypatch.setattr(Sequential, "decode", refuse)
    request(backend, lists[3])


@pytest.mark.parametrize("variant", ["pairwise and prior", "attention"])
def test_threads_do_not_disturb_each_other(variant: str) -> None:
    lists = lists_for(variant, lengths=(40, 3, 25, 1, 60) * 8)
    backend = choose_backend(model_for(variant, lists))
    parts = list(lists)
    alone = [request(backend, one) for one in parts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda one: request(backend, one), parts * 3))
    for (slate, logs), (expected, expected_logs) in zip(together, alone * 3, strict=True):
        assert slate.tolist() == expected.tolist()
        assert logs.tolist() == expected_logs.tolist()


@pytest.mark.parametrize("variant", ["paper", "gru"])
def test_a_model_that_learns_on_changes_nothing(variant: str) -> None:
    lists = lists_for(variant)
    model = model_for(variant, lists)
    backend, one = choose_backend(model), lists[8]
    slate, logs = backend.slate(one.features)
    randomise(model.network, 1)
    again, logs_again = backend.slate(one.features)
    assert (slate.tolist(), logs.tolist()) == (again.tolist(), logs_again.tolist())
    assert choose_backend(model).slate(one.features)[0].tolist() != slate.tolist()


def test_the_request_may_lie_in_memory_as_it_likes_and_is_left_as_it_was() -> None:
    lists = lists_for("pairwise and prior")
    backend, features = choose_backend(model_for("pairwise and prior", lists)), lists[8].features.copy()
    before = features.copy()
    first = backend.slate(features)
    assert (features == before).all()
    twice = np.repeat(features, 2, axis=0)
    for same in (features.tolist(), np.asfortranarray(features), twice[::2], features.astype(np.float64)):
        slate, logs = backend.slate(same)
        assert slate.tolist() == first[0].tolist()
        np.testing.assert_allclose(logs, first[1], rtol=0, atol=1e-6)


# What is refused


@pytest.mark.parametrize("variant", ["paper", "gru"])
@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda backend: backend.slate(np.zeros((3, 2))), DataError, "3, 2"),
        (lambda backend: backend.slate([[1.0, np.inf, 0.0]]), DataError, "item 0: 'f2' is inf"),
        (lambda backend: backend.slate([[1.0, np.nan, -np.inf]]), DataError, "item 0: 'f3' is -inf"),
        (lambda backend: backend.slate(np.zeros((3, 3)), 0), UsageError, "k must be at least 1"),
        (lambda backend: backend.slate(np.zeros((3, 3)), temperature=0.0), UsageError, "temperature"),
    ],
)
def test_a_bad_request_is_refused(
    variant: str, ask: Callable[[NetworkBackend], object], error: type[Exception], message: str
) -> None:
    backend = choose_backend(model_for(variant, lists_for(variant)))
    with pytest.raises(error, match=message):
        ask(backend)


@pytest.mark.parametrize("draw", [False, True])
def test_weights_that_are_no_numbers_are_an_error_and_not_a_slate(draw: bool) -> None:
    lists = lists_for("paper")
    model = model_for("paper", lists)
    with torch.no_grad():
        model.network.v.fill_(np.nan)
    with pytest.raises(ArithmeticError, match="NaN or infinite"):
        choose_backend(model).slate(lists[8].features, generator=torch.Generator() if draw else None)


@pytest.mark.parametrize("value", [1e20, 3e38])
def test_features_that_are_too_large_to_compare_are_an_error_and_not_a_slate(value: float) -> None:
    lists = ItemLists(np.random.default_rng(0).normal(size=(12, 4)), [0, 12])
    network = SlateModel.create(lists, NetworkConfig(hidden=8, interaction="pairwise")).network
    transform = FeatureTransform.fit(lists, scaling="none")
    network.interaction.set_scale(transform.dense)  # raw distances have no bound
    features = lists.features.copy()
    features[5, 2] = value
    with pytest.raises(ArithmeticError, match="NaN or infinite"):
        choose_backend(SlateModel(transform, network)).slate(features)


@pytest.mark.parametrize(
    ("weights", "value"), [("v", 3e38), ("interaction.effects", 3e37), ("interaction.relevance", 3e37)]
)
def test_weights_that_are_too_large_are_not_served(weights: str, value: float, tmp_path: Path) -> None:
    model = model_for("pairwise and prior", lists_for("pairwise and prior"))
    with torch.no_grad():
        model.network.get_parameter(weights).fill_(value)
    model.save(tmp_path / "model")
    with pytest.raises(DataError, match="model: the model's probabilities are not finite: its weights are broken"):
        load_deployment(tmp_path / "model")


def test_an_empty_request_gets_an_empty_slate() -> None:
    for variant in ("paper", "pairwise", "gru", "one-step"):
        slate, logs = choose_backend(model_for(variant, lists_for(variant))).slate([])
        assert (slate.shape, logs.shape) == ((0,), (0,))


def test_another_kind_of_ranker_is_refused(tmp_path: Path) -> None:
    lists = mixed_lists(0)
    RidgeRanker().fit(lists).save(tmp_path / "ridge")
    with pytest.raises(UsageError, match="'ridge' ranker, and only a network"):
        SlateModel.load(tmp_path / "ridge")
