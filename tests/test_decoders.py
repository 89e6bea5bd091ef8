"""Slates are the reference's, sampled ones as often as their probability says, and cut short without a change."""

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import permutations

import pytest
import torch
from scipy import stats
from torch import Tensor

from seq2slate.config import NetworkConfig
from seq2slate.errors import UsageError
from seq2slate.model.decoders import Decoded, Encoded, steps_that_matter
from seq2slate.model.network import NetworkInputs, SlateNetwork
from tests import reference_network as slow
from tests.reference_network import KERNELS, MIXED_LENGTHS, PLAIN, VARIANTS


@pytest.fixture(params=KERNELS, autouse=True)
def _chosen_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    slow.use_kernels(request.param, monkeypatch)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network_of(variant: str) -> SlateNetwork:
    return slow.random_network(*VARIANTS[variant], seed=1)


def mixed(variant: str, seed: int = 2) -> tuple[SlateNetwork, Encoded]:
    network = network_of(variant)
    with torch.no_grad():
        return network, network.encode(slow.random_inputs(VARIANTS[variant][0], MIXED_LENGTHS, seed))


# Greedy


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_slates_are_the_best_item_of_the_reference_step_by_step(variant: str) -> None:
    network, encoded = mixed(variant)
    reference = slow.ReferenceNetwork(network)
    inputs = slow.random_inputs(VARIANTS[variant][0], MIXED_LENGTHS, seed=2)
    slates = network.decoder.decode(encoded).slates
    assert slates.shape == (len(MIXED_LENGTHS), max(MIXED_LENGTHS))
    for number, length in enumerate(MIXED_LENGTHS):
        expected = reference.greedy(slow.one_list(inputs, number))
        assert slates[number].tolist() == expected + [-1] * (max(MIXED_LENGTHS) - length)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_first_k_are_the_beginning_of_all(variant: str) -> None:
    network, encoded = mixed(variant)
    whole = network.decoder.decode(encoded)
    for k in (1, 3, 9, 100):
        some = network.decoder.decode(encoded, k)
        assert torch.equal(some.slates, whole.slates[:, :k])
        torch.testing.assert_close(some.scores, whole.scores[:, :k])


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_and_log_probabilities_are_those_of_the_given_slates(variant: str, sampled: bool) -> None:
    network, encoded = mixed(variant)
    decoded = network.decoder.decode(encoded, 7, generator=seeded(3) if sampled else None)
    logs = network.decoder.log_prob(encoded, decoded.slates)
    torch.testing.assert_close(decoded.log_probabilities, logs, rtol=1e-4, atol=1e-5)
    placed = decoded.slates >= 0
    chosen = decoded.probabilities.gather(2, decoded.slates.clamp(min=0)[:, :, None])[:, :, 0]
    torch.testing.assert_close(chosen[placed].log(), logs[placed], rtol=1e-4, atol=1e-5)
    assert (decoded.log_probabilities[~placed] == 0).all()
    if network.config.decoder == "sequential":
        torch.testing.assert_close(decoded.scores, network.decoder.score(encoded, decoded.slates), rtol=1e-4, atol=1e-5)


def test_slates_are_drawn_and_scored_with_the_same_dropout() -> None:
    network = network_of("everything").train()
    network.config = replace(network.config, dropout=0.5)
    encoded = network.encode(slow.random_inputs(VARIANTS["everything"][0], MIXED_LENGTHS, seed=2), generator=seeded(0))
    decoded = network.decoder.decode(encoded, generator=seeded(1))
    torch.testing.assert_close(decoded.scores, network.decoder.score(encoded, decoded.slates), rtol=1e-4, atol=1e-5)
    without = network.eval().decoder.decode(replace(encoded, keep=None), generator=seeded(1))
    assert (decoded.scores - without.scores).nan_to_num(0).abs().max() > 0.01  # so that the first line says something


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("hidden", [1, 16, 17, 70])
def test_scores_are_those_of_double_precision_at_any_width(hidden: int, sampled: bool) -> None:
    config = NetworkConfig(hidden=hidden, base_prior=True, interaction="pairwise", dropout=0.3)
    network = slow.random_network(PLAIN, config, seed=0, spread=2 / hidden**0.5).train()
    lengths = torch.randint(0, 25, (60,), generator=seeded(1)).tolist()
    with torch.no_grad():
        encoded = network.encode(slow.random_inputs(PLAIN, lengths, seed=2), generator=seeded(3))
        decoded = network.decoder.decode(encoded, 20, generator=seeded(4) if sampled else None)
        again = network.double().encode(slow.in_double(slow.random_inputs(PLAIN, lengths, seed=2)), generator=seeded(3))
        scores = network.decoder.score(again, decoded.slates)
    torch.testing.assert_close(decoded.scores.double(), scores, rtol=1e-4, atol=1e-4)
    placed = decoded.slates >= 0
    assert placed.sum(1).tolist() == [min(length, 20) for length in lengths]
    if not sampled:
        best = scores.gather(2, decoded.slates.clamp(min=0)[:, :, None])[:, :, 0]
        assert (scores.amax(2) - best)[placed].max() <= 1e-4


# Sampling


def decided_network(variant: str) -> SlateNetwork:
    """Return a network to which some slates are much likelier than others."""
    network = network_of(variant)
    with torch.no_grad():
        network.v.mul_(1.5)
    return network


def four_items(variant: str) -> NetworkInputs:
    return slow.random_inputs(VARIANTS[variant][0], [4], seed=2)


@cache
def probabilities_of_slates(variant: str, temperature: float) -> dict[tuple[int, ...], float]:
    """Return p(π) of every permutation of one list, with softmax(s / temperature) at every step."""
    one, reference = slow.one_list(four_items(variant), 0), slow.ReferenceNetwork(decided_network(variant))
    memory, found = reference.encode(one), {}
    for slate in permutations(range(len(one.dense))):
        scores = [reference.next_scores(memory, slate[:j]) for j in range(len(slate))]
        tempered = [{item: score / temperature for item, score in of_step.items()} for of_step in scores]
        found[slate] = math.exp(slow.log_probability(tempered, slate).item())
    return found


def chi_square(slates: Tensor, probabilities: dict[tuple[int, ...], float]) -> float:
    counts = Counter(tuple(slate) for slate in slates.tolist())
    expected = {slate: len(slates) * probability for slate, probability in probabilities.items()}
    assert set(counts) <= set(expected)
    assert min(expected.values()) > 5, "too few samples for the test to hold"
    return sum((counts[slate] - count) ** 2 / count for slate, count in expected.items())


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
@pytest.mark.parametrize("variant", ["paper", "one-step", "gru", "everything"])
def test_sampled_slates_are_as_frequent_as_their_probability(variant: str, temperature: float) -> None:
    network, n_samples = decided_network(variant), 10_000
    with torch.no_grad():
        encoded = network.encode(slow.some_lists(four_items(variant), [0] * n_samples, 5))  # one place of padding
    slates = network.decoder.decode(encoded, generator=seeded(3), temperature=temperature).slates
    assert (slates[:, 4] == -1).all()
    limit = stats.chi2.isf(1e-4, df=math.factorial(4) - 1)
    probabilities = probabilities_of_slates(variant, temperature)
    assert sum(probabilities.values()) == pytest.approx(1)
    assert chi_square(slates[:, :4], probabilities) < limit
    other = probabilities_of_slates(variant, temperature * 4)
    assert chi_square(slates[:, :4], other) > limit, "the test would not notice another temperature"


@pytest.mark.parametrize("variant", ["paper", "one-step"])
def test_a_seed_repeats_its_slates_and_another_gives_others(variant: str) -> None:
    network, encoded = mixed(variant)
    slates = [network.decoder.decode(encoded, generator=seeded(seed)).slates for seed in (5, 5, 6)]
    assert torch.equal(slates[0], slates[1])
    assert not torch.equal(slates[0], slates[2])


@pytest.mark.parametrize("variant", ["paper", "one-step"])
def test_a_low_temperature_is_greedy(variant: str) -> None:
    network, encoded = mixed(variant)
    cold = network.decoder.decode(encoded, generator=seeded(0), temperature=1e-6)
    assert torch.equal(cold.slates, network.decoder.decode(encoded).slates)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_above_0_is_refused(temperature: float) -> None:
    network, encoded = mixed("paper")
    with pytest.raises(UsageError, match="temperature must be above 0"):
        network.decoder.decode(encoded, generator=seeded(0), temperature=temperature)


# Stopping when no positive is left


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("variant", ["paper", "stacked", "gru", "everything"])
def test_slates_that_stop_are_the_beginning_of_whole_ones(variant: str, sampled: bool, share: float) -> None:
    network, sizes = network_of(variant), VARIANTS[variant][0]
    lengths = torch.randint(0, 12, (40,), generator=seeded(0)).tolist()
    encoded = network.encode(slow.random_inputs(sizes, lengths, seed=4))
    positives = (torch.rand(encoded.mask.shape, generator=seeded(1)) < share).float() * encoded.mask
    whole, stopped = (
        network.decoder.decode(encoded, 10, generator=seeded(2) if sampled else None, positives=wanted)
        for wanted in (None, positives)
    )
    stops = steps_that_matter(whole.slates, positives)
    assert torch.equal(steps_that_matter(stopped.slates, positives), stops)
    matters = torch.arange(10) < stops[:, None]
    assert torch.equal(whole.slates[matters], stopped.slates[matters])
    torch.testing.assert_close(whole.scores[matters], stopped.scores[matters], rtol=1e-4, atol=1e-5)
    if share == 0:
        assert (stopped.slates == -1).all()


# Long lists


def test_log_prob_of_500_items_is_exact_where_all_are_alike() -> None:
    network = slow.random_network(PLAIN, NetworkConfig(hidden=4), seed=0)
    with torch.no_grad():
        network.v.zero_()
    encoded = network.encode(slow.random_inputs(PLAIN, [500, 3], seed=1))
    logs = network.decoder.log_prob(encoded, slow.random_slates([500, 3], 500, seed=2)).sum(1)
    torch.testing.assert_close(logs.double(), torch.tensor([-math.lgamma(501), -math.log(6)], dtype=torch.float64))


@pytest.mark.parametrize("decoder", ["sequential", "one-step"])
def test_log_prob_of_500_items_has_a_gradient(decoder: str) -> None:
    network = slow.random_network(PLAIN, NetworkConfig(hidden=8, decoder=decoder), seed=0)
    encoded = network.encode(slow.random_inputs(PLAIN, [500, 0, 1, 7], seed=1))
    total = network.decoder.log_prob(encoded, slow.random_slates([500, 0, 1, 7], 500, seed=2)).sum(1)
    assert total.isfinite().all()
    assert total[0] < -2000, "a product of the probabilities would be 0"
    assert total[1:3].tolist() == [0.0, 0.0]
    total[0].backward()  # type: ignore[no-untyped-call]
    for name, weight in network.named_parameters():
        assert weight.grad is not None
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().max() > 1e-6, name


def test_a_slot_without_an_item_has_probability_0_and_log_probability_0() -> None:
    decoded = Decoded(torch.tensor([[0, -1]]), torch.tensor([[[1.0, 1.0], [-math.inf, -math.inf]]]))
    assert decoded.probabilities.tolist() == [[[0.5, 0.5], [0.0, 0.0]]]
    torch.testing.assert_close(decoded.log_probabilities, torch.tensor([[-math.log(2), 0.0]]))


def test_a_slate_has_at_least_one_slot() -> None:
    network = slow.random_network(slow.PLAIN, NetworkConfig(hidden=4), seed=0)
    with pytest.raises(UsageError, match="k must be at least 1"):
        network.decoder.decode(network.encode(slow.random_inputs(slow.PLAIN, [3], seed=0)), 0)


# Training steps


@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_of_training_have_the_scores_and_gradients_of_their_slates(
    variant: str, sampled: bool, k: int | None
) -> None:
    """A decoder may draw and score slates in the same steps: that changes neither."""
    network = network_of(variant).train()
    inputs = slow.random_inputs(VARIANTS[variant][0], MIXED_LENGTHS, seed=2)
    labels = (torch.rand(inputs.mask.shape, generator=seeded(5)) < 0.4) * inputs.mask
    found: list[tuple[Tensor, dict[str, Tensor]]] = []
    for again in (False, True):
        network.zero_grad()
        encoded = network.encode(inputs, generator=seeded(3))
        steps = network.decoder.policy_steps(encoded, labels.float(), k, seeded(4) if sampled else None)
        scores = network.decoder.score(encoded, steps.slates) if again else steps.scores
        weights = torch.randn(scores.shape, generator=seeded(6))
        (scores.where(scores > -torch.inf, 0.0) * weights).sum().backward()  # type: ignore[no-untyped-call]
        gradients = {name: one.grad.clone() for name, one in network.named_parameters() if one.grad is not None}
        found.append((scores.detach(), gradients))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-4)
    assert found[0][1].keys() == found[1][1].keys()
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][name], rtol=1e-3, atol=1e-4, msg=name)
