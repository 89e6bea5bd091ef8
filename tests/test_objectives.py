"""The gradients of the objectives are those of the expected loss and the expected reward, and of nothing else.

Three ways to know: the estimator, weighted by the probability of each of the 24 slates of 4 items, adds up to the exact
gradient; so does the mean over many sampled slates, within its error; and what is wrong is noticed by both.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from seq2slate.config import Credit, NetworkConfig, Policy, TrainingConfig
from seq2slate.errors import UsageError
from seq2slate.model.decoders import Decoded, Sequential, steps_that_matter
from seq2slate.model.network import NetworkInputs, SlateNetwork
from seq2slate.training.objectives import Objective
from tests import reference_network as slow
from tests.reference_network import MIXED_LENGTHS, PLAIN

Gradient = dict[str, Tensor]
CONFIG = NetworkConfig(hidden=4, base_prior=True, dropout=0.0)
CLICKS = (0.0, 1.0, 0.0, 1.0)
GRADES = (0.0, 2.0, 0.0, 1.0)


def network_of_4_items() -> tuple[SlateNetwork, NetworkInputs]:
    return slow.random_network(PLAIN, CONFIG, seed=4, spread=1.0), slow.random_inputs(PLAIN, [4], seed=5)


def gradient_of(network: SlateNetwork, value: Tensor) -> Gradient:
    named = dict(network.named_parameters())
    found = torch.autograd.grad(value, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(named[name]) if slope is None else slope
        for name, slope in zip(named, found, strict=True)
    }


def flat(gradient: Gradient) -> Tensor:
    return torch.cat([gradient[name].flatten().double() for name in sorted(gradient)])


def relative_gap(found: Gradient, expected: Gradient) -> float:
    return float((flat(found) - flat(expected)).norm() / flat(expected).norm())


# The exact gradient, by the reference


def ndcg(k: int) -> Callable[[Sequence[int], Sequence[float]], float]:
    def reward(slate: Sequence[int], labels: Sequence[float]) -> float:
        def gain(values: Sequence[float]) -> float:
            return sum(value / math.log2(slot + 2) for slot, value in enumerate(values[:k]))

        return gain([labels[item] for item in slate]) / gain(sorted(labels, reverse=True))

    return reward


def reciprocal_rank(slate: Sequence[int], labels: Sequence[float]) -> float:
    return next(1 / (slot + 1) for slot, item in enumerate(slate) if labels[item] > 0)


def rank_gain(slate: Sequence[int], labels: Sequence[float]) -> float:
    return sum(item - slot for slot, item in enumerate(slate) if labels[item] > 0)


REWARDS = {"NDCG@10": ndcg(10), "NDCG@2": ndcg(2), "MRR": reciprocal_rank, "rank-gain": rank_gain}


def value_of_slate(
    config: TrainingConfig, labels: Sequence[float]
) -> Callable[[list[slow.Scores], tuple[int, ...]], Tensor]:
    """Return what is minimised, as a function of the scores and the slate: the sequence loss, or minus the reward."""
    n_steps = 4 if config.k is None else config.k
    weights = [1.0 if config.step_weights == "uniform" else 1 / math.log2(j + 1) for j in range(1, n_steps + 1)]

    def loss(scores: list[slow.Scores], _: tuple[int, ...]) -> Tensor:
        return slow.sequence_loss(scores, labels, slow.STEP_LOSSES[config.loss], weights)

    def cost(_: list[slow.Scores], slate: tuple[int, ...]) -> Tensor:
        return torch.tensor(-REWARDS[config.reward](slate, labels), dtype=torch.float64)

    return cost if config.policy == "reinforce" else loss


@cache
def exact_gradient(config: TrainingConfig, labels: Sequence[float]) -> Gradient:
    network, inputs = network_of_4_items()
    reference = slow.ReferenceNetwork(network)
    expected = slow.expectation(reference, slow.one_list(inputs, 0), value_of_slate(config, labels))
    return reference.gradient(expected)


# The estimator, weighted by the probability of each slate


def enumerated_gradient(
    config: TrainingConfig, labels: Sequence[float], baseline: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> Gradient:
    """Return Σ_π p(π) · the gradient that the objective gives when π is drawn, in float64."""
    network, inputs = network_of_4_items()
    network, inputs = network.double(), slow.in_double(inputs)
    total = {name: torch.zeros_like(weight) for name, weight in network.named_parameters()}
    for slate in permutations(range(4)):
        drawn = torch.tensor([slate])
        with torch.no_grad():
            probability = network.decoder.log_prob(network.encode(inputs), drawn).sum().exp()
        give_slates(drawn[:, : config.k], monkeypatch)
        objective = Objective(config)
        objective.baseline = torch.tensor(baseline, dtype=torch.float64)
        surrogate, _ = objective(network, inputs, torch.tensor([labels]), torch.Generator())
        for name, gradient in gradient_of(network, surrogate).items():
            total[name] += probability * gradient
    return total


def give_slates(slates: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have objectives work with these slates instead of drawing some."""
    monkeypatch.setattr(Sequential, "decode", lambda *_, **__: Decoded(slates, torch.empty(0)))


CONFIGS = {
    "cross-entropy": TrainingConfig(policy="sampling"),
    "hinge": TrainingConfig(policy="sampling", loss="hinge"),
    "dcg weights": TrainingConfig(policy="sampling", step_weights="dcg"),
    "first 2": TrainingConfig(policy="sampling", k=2),
} | {reward: TrainingConfig(policy="reinforce", reward=reward) for reward in REWARDS}


def with_credit(config: TrainingConfig, credit: Credit) -> TrainingConfig:
    return TrainingConfig(**{**vars(config), "credit": credit})


@pytest.mark.parametrize(
    ("labels", "baseline"), [(CLICKS, [3.0, -2.0, 1.0, 7.0]), (GRADES, [0.0] * 4)], ids=["clicks", "grades"]
)
@pytest.mark.parametrize("credit", ["return", "reward-to-go"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_estimator_adds_up_to_the_exact_gradient(
    config: TrainingConfig,
    credit: Credit,
    labels: tuple[float, ...],
    baseline: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = enumerated_gradient(with_credit(config, credit), labels, baseline, monkeypatch)
    assert relative_gap(found, exact_gradient(config, labels)) < 1e-7  # the weights of the steps are float32


@pytest.mark.parametrize("credit", ["return", "reward-to-go"])
@pytest.mark.parametrize("policy_gradient_weight", [0.0, 0.5, 2.0])
def test_another_weight_of_the_policy_gradient_is_another_gradient(
    credit: Credit, policy_gradient_weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainingConfig(policy="sampling", credit=credit, policy_gradient_weight=policy_gradient_weight)
    found = enumerated_gradient(config, CLICKS, [0.0] * 4, monkeypatch)
    assert relative_gap(found, exact_gradient(TrainingConfig(policy="sampling"), CLICKS)) > 0.01


# The estimator, on slates that it draws


def sampled_gradients(config: TrainingConfig, baseline: float, n_batches: int = 24, copies: int = 1500) -> Tensor:
    """Return (batches, weights): the gradient of a batch that holds the list many times."""
    network, inputs = network_of_4_items()
    inputs = slow.some_lists(inputs, [0] * copies, 4)
    labels, generator = torch.tensor([CLICKS] * copies), torch.Generator().manual_seed(6)
    gradients = []
    for _ in range(n_batches):
        objective = Objective(config)
        objective.baseline = torch.full((4,), baseline)
        surrogate, _ = objective(network, inputs, labels, generator)
        gradients.append(flat(gradient_of(network, surrogate)))
    return torch.stack(gradients)


def chi_square_per_weight(gradients: Tensor, expected: Tensor) -> float:
    """Return the mean of z², z being the gap between mean and expected value in standard errors.

    It is 1 + 2 / (batches - 3) on average when the mean is right. The weights are not independent, so that it varies
    more than its number of terms suggests: at most by as much as a single z² does.
    """
    errors = gradients.std(0) / math.sqrt(len(gradients))
    counted = expected.abs() > 1e-9
    return float((((gradients.mean(0) - expected) / errors)[counted] ** 2).mean())


@pytest.mark.parametrize("credit", ["return", "reward-to-go"])
@pytest.mark.parametrize(
    ("policy", "baseline"), [("sampling", 0.0), ("sampling", 2.0), ("reinforce", 0.0), ("reinforce", -0.7)]
)
def test_sampled_gradients_have_the_exact_mean(policy: Policy, credit: Credit, baseline: float) -> None:
    config = TrainingConfig(policy=policy, credit=credit)
    expected = flat(exact_gradient(TrainingConfig(policy=policy), CLICKS))
    gradients = sampled_gradients(config, baseline)
    assert chi_square_per_weight(gradients, expected) < 4  # the mean gap is below 2 standard errors
    error = gradients.std(0).norm() / math.sqrt(len(gradients))
    assert error < 0.1 * expected.norm(), "too few samples to tell right from wrong"


@pytest.mark.parametrize("credit", ["return", "reward-to-go"])
def test_sampled_gradients_without_the_policy_gradient_do_not(credit: Credit) -> None:
    expected = flat(exact_gradient(TrainingConfig(policy="sampling"), CLICKS))
    config = TrainingConfig(policy="sampling", credit=credit, policy_gradient_weight=0.0)
    assert chi_square_per_weight(sampled_gradients(config, 0.0), expected) > 40


def test_credit_to_go_is_less_noisy() -> None:
    spreads = [
        sampled_gradients(TrainingConfig(policy="sampling", credit=credit), 0.0, n_batches=12).std(0).norm()
        for credit in ("reward-to-go", "return")
    ]
    assert spreads[0] < 0.8 * spreads[1]


# Greedy and one-step

MIXED_LABELS = torch.zeros(len(MIXED_LENGTHS), max(MIXED_LENGTHS))
MIXED_LABELS[[0, 2, 3, 3, 5, 5], [1, 0, 2, 8, 0, 4]] = 1.0
"""The lists of MIXED_LENGTHS; the empty one and the pair have no positive."""


def mixed_network(decoder: str) -> tuple[SlateNetwork, NetworkInputs]:
    network = slow.random_network(PLAIN, NetworkConfig(hidden=5, decoder=decoder), seed=1)
    return network, slow.random_inputs(PLAIN, MIXED_LENGTHS, seed=2)


@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("loss", slow.STEP_LOSSES)
def test_the_greedy_gradient_is_that_of_the_loss_of_the_best_slates(loss: str, k: int | None) -> None:
    network, inputs = mixed_network("sequential")
    objective = Objective(TrainingConfig(policy="greedy", loss=loss, step_weights="dcg", k=k))
    surrogate, values = objective(network, inputs, MIXED_LABELS, torch.Generator())
    reference, losses = slow.ReferenceNetwork(network), []
    for number in range(len(MIXED_LENGTHS)):
        one = slow.one_list(inputs, number)
        scores = reference.scores(one, reference.greedy(one, k))
        weights = [1 / math.log2(j + 1) for j in range(1, len(scores) + 1)]
        losses.append(slow.sequence_loss(scores, MIXED_LABELS[number].tolist(), slow.STEP_LOSSES[loss], weights))
    expected = torch.stack(losses)
    torch.testing.assert_close(values.double(), expected.detach(), rtol=1e-4, atol=1e-5)
    assert relative_gap(gradient_of(network, surrogate), reference.gradient(expected.mean())) < 1e-4
    assert len(objective.baseline) == 0


def test_the_one_step_objective_is_the_loss_of_the_first_step() -> None:
    network, inputs = mixed_network("one-step")
    surrogate, values = Objective(TrainingConfig())(network, inputs, MIXED_LABELS, torch.Generator())
    reference, losses = slow.ReferenceNetwork(network), []
    for number in range(len(MIXED_LENGTHS)):
        scores = reference.next_scores(reference.encode(slow.one_list(inputs, number)), [])
        losses.append(slow.cross_entropy(scores, MIXED_LABELS[number].tolist()))
    expected = torch.stack(losses)
    torch.testing.assert_close(values.double(), expected.detach(), rtol=1e-4, atol=1e-5)
    assert relative_gap(gradient_of(network, surrogate), reference.gradient(expected.mean())) < 1e-4


@pytest.mark.parametrize("policy", ["sampling", "greedy", "reinforce"])
@pytest.mark.parametrize("decoder", ["sequential", "one-step"])
@pytest.mark.parametrize("lengths", [MIXED_LENGTHS, [0, 0], [3]])
def test_lists_without_positives_or_items_give_no_gradient(
    policy: Policy, decoder: str, lengths: Sequence[int]
) -> None:
    network = mixed_network(decoder)[0]
    inputs = slow.random_inputs(PLAIN, lengths, seed=2)
    labels = torch.zeros(inputs.mask.shape)
    surrogate, values = Objective(TrainingConfig(policy=policy))(network, inputs, labels, torch.Generator())
    assert values.tolist() == [0.0] * len(lengths)
    assert flat(gradient_of(network, surrogate)).abs().max() == 0


# The moving average


def rewards_by_hand(slates: Tensor, labels: Tensor) -> Tensor:
    return torch.tensor(
        [
            ndcg(10)(slow.placed_items(slate), label.tolist()) if label.any() else 0.0
            for slate, label in zip(slates, labels, strict=True)
        ],
        dtype=torch.float64,
    )


def test_the_moving_average_starts_at_the_first_mean_and_then_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    network, inputs = mixed_network("sequential")
    objective = Objective(TrainingConfig(policy="reinforce", baseline_decay=0.75))
    lists = MIXED_LABELS.any(1)  # those without positives do not count
    expected = math.nan
    for seed in range(3):
        slates = slow.random_slates(MIXED_LENGTHS, max(MIXED_LENGTHS), seed)
        give_slates(slates, monkeypatch)
        _, values = objective(network, inputs, MIXED_LABELS, torch.Generator())
        rewards = rewards_by_hand(slates, MIXED_LABELS)
        torch.testing.assert_close(values.double(), rewards, rtol=1e-5, atol=1e-6)
        mean = -float(rewards[lists].mean())
        expected = mean if seed == 0 else 0.75 * expected + 0.25 * mean
        assert objective.baseline.tolist() == pytest.approx([expected], rel=1e-5)


def test_each_step_has_its_own_average_over_the_lists_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    network, inputs = slow.random_network(PLAIN, CONFIG, seed=4), slow.random_inputs(PLAIN, [3, 3], seed=5)
    objective = Objective(TrainingConfig(policy="reinforce", credit="reward-to-go", baseline_decay=0.5, reward="MRR"))
    give_slates(torch.tensor([[0, 1, 2], [1, 0, 2]]), monkeypatch)
    objective(network, inputs, torch.tensor([[1.0, 0, 0], [1.0, 0, 0]]), torch.Generator())
    # slot 0: both lists, 1 and 1/2 to come; slot 1: only the second, 1/2 to come
    assert objective.baseline.tolist() == pytest.approx([-0.75, -0.5])
    objective(network, inputs, torch.tensor([[0, 0, 1.0], [0, 0, 0]]), torch.Generator())
    # 1/3 to come at each slot; the third is new
    third = -1 / 3
    assert objective.baseline.tolist() == pytest.approx([(-0.75 + third) / 2, (-0.5 + third) / 2, third])


def test_with_credit_to_go_a_choice_answers_for_the_losses_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    network, inputs = network_of_4_items()
    slate = [2, 1, 0, 3]
    give_slates(torch.tensor([slate]), monkeypatch)
    objective = Objective(TrainingConfig(policy="sampling", credit="reward-to-go"))
    objective(network, inputs, torch.tensor([CLICKS]), torch.Generator())
    scores = slow.ReferenceNetwork(network).scores(slow.one_list(inputs, 0), slate)
    losses = [slow.cross_entropy(of_step, CLICKS).item() for of_step in scores]
    assert objective.baseline.tolist() == pytest.approx([sum(losses[j + 1 :]) for j in range(4)], abs=1e-5)


def test_a_batch_without_positives_leaves_the_average_alone() -> None:
    network, inputs = mixed_network("sequential")
    objective = Objective(TrainingConfig(policy="sampling"))
    objective(network, inputs, torch.zeros_like(MIXED_LABELS), torch.Generator())
    assert len(objective.baseline) == 0
    _, values = objective(network, inputs, MIXED_LABELS, torch.Generator())
    torch.testing.assert_close(objective.baseline, values[MIXED_LABELS.any(1)].mean()[None])
    before = objective.baseline.clone()
    objective(network, inputs, torch.zeros_like(MIXED_LABELS), torch.Generator())
    assert torch.equal(objective.baseline, before)


@pytest.mark.parametrize("normalise", [False, True])
def test_advantages_are_costs_less_the_average_over_their_spread(
    normalise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, inputs = mixed_network("sequential")
    slates = slow.random_slates(MIXED_LENGTHS, max(MIXED_LENGTHS), seed=0)
    give_slates(slates, monkeypatch)
    objective = Objective(TrainingConfig(policy="reinforce", normalise_advantages=normalise))
    objective.baseline = torch.tensor([-0.4])
    surrogate, _ = objective(network, inputs, MIXED_LABELS, torch.Generator())
    lists = MIXED_LABELS.any(1)
    advantages = (0.4 - rewards_by_hand(slates, MIXED_LABELS))[lists]
    if normalise:
        advantages = advantages / advantages.square().mean().sqrt()
    until = torch.arange(slates.shape[1]) < steps_that_matter(slates, MIXED_LABELS)[:, None]
    logs = (network.decoder.log_prob(network.encode(inputs), slates) * until).sum(1)[lists]
    expected = (advantages * logs.double()).sum() / len(slates)
    torch.testing.assert_close(surrogate.double(), expected, rtol=1e-4, atol=1e-5)


# The group lasso


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"layers": 2}, ["encoder.layers.0.0.weight_input", "decoder.layers.0.weight_input"]),
        (
            {"bidirectional": True, "decoder": "one-step"},
            ["encoder.layers.0.0.weight_input", "encoder.layers.0.1.weight_input", "decoder.layers.0.weight_input"],
        ),
        ({"cell": "gru"}, ["encoder.layers.0.0.cell.weight_ih", "decoder.layers.0.cell.weight_ih"]),
        ({"encoder": "attention"}, ["encoder.project.weight", "decoder.layers.0.weight_input"]),
    ],
    ids=["stacked", "bidirectional", "gru", "attention"],
)
def test_the_group_lasso_is_the_sum_of_the_norms_of_the_columns(options: dict[str, Any], weights: list[str]) -> None:
    config = NetworkConfig(hidden=8, dropout=0.0, position_input=True, **options)
    network, inputs = slow.random_network(PLAIN, config, seed=1), slow.random_inputs(PLAIN, MIXED_LENGTHS, seed=2)
    found = []
    for group_lasso in (0.0, 0.25):
        objective = Objective(TrainingConfig(policy="greedy", step_weights="dcg", k=3, group_lasso=2 * group_lasso), 4)
        found.append(objective(network, inputs, MIXED_LABELS, torch.Generator()))
    matrices = [network.get_parameter(name).detach() for name in weights]
    by_column = [matrix if len(matrix) == network.n_inputs else matrix.t() for matrix in matrices]
    norms = [
        math.sqrt(sum(float(value) ** 2 for matrix in by_column for value in matrix[column]))
        for column in range(network.n_inputs)
    ]
    assert network.n_inputs not in (8, 3 * 8, 4 * 8), "the sides of a matrix can be told apart"
    weights_of_steps = 1 if config.decoder == "one-step" else 1 + 1 / math.log2(3) + 1 / math.log2(4)
    assert (found[1][0] - found[0][0]).item() == pytest.approx(0.25 * weights_of_steps * sum(norms), rel=1e-4)
    assert torch.equal(found[1][1], found[0][1]), "what people watch is the loss alone"


# Where a list stops


def test_steps_that_matter_end_with_the_last_positive() -> None:
    slates = slow.random_slates(MIXED_LENGTHS * 10, 5, seed=0)
    labels = (torch.rand(len(slates), 9, generator=torch.Generator().manual_seed(1)) < 0.3).float()
    labels = labels * (torch.arange(9) < torch.tensor(MIXED_LENGTHS * 10)[:, None])
    stops = steps_that_matter(slates, labels)
    seen = set()
    for slate, label, stop in zip(slates, labels, stops.tolist(), strict=True):
        placed = slow.placed_items(slate)
        positives = {item for item in range(9) if label[item] > 0}
        expected = len(placed)  # as long as a positive is missing
        if positives <= set(placed):
            expected = max((slot + 1 for slot, item in enumerate(placed) if item in positives), default=0)
        assert stop == expected
        seen.add((positives <= set(placed), stop))
    assert len(seen) > 6


def test_stopping_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objective draws slates that stop; the values are those of the whole slates."""
    network, inputs = mixed_network("sequential")
    objective, generator = Objective(TrainingConfig(policy="sampling")), torch.Generator().manual_seed(3)
    _, values = objective(network, inputs, MIXED_LABELS, generator)
    whole = network.decoder.decode(network.encode(inputs), generator=torch.Generator().manual_seed(3)).slates
    give_slates(whole, monkeypatch)
    _, expected = Objective(TrainingConfig(policy="sampling"))(network, inputs, MIXED_LABELS, generator)
    torch.testing.assert_close(values, expected)


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "random"}, "no policy 'random'; choose one of sampling, greedy, reinforce"),
        ({"credit": "all"}, "no credit 'all'; choose one of return, reward-to-go"),
        ({"step_weights": "log"}, "no step_weights 'log'; choose one of uniform, dcg"),
        ({"baseline_decay": 1.0}, "below 1, got 1.0"),
        ({"loss": "none"}, "there is no loss"),
        ({"gamma": 2.0}, "gamma is the sharpness of the smooth hinge"),
        ({"reward": "beauty"}, "unknown measure"),
        ({"reward": "P"}, "P@10"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingConfig(**options)
