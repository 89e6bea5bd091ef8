"""The losses equal their formulas, written out slowly in plain Python, and so do their gradients."""

import math
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seq2slate.config import StepWeights
from seq2slate.data.ranker import slates_from_scores
from seq2slate.errors import UsageError
from seq2slate.metrics import ndcg
from seq2slate.model.decoders import items_left
from seq2slate.training import losses
from seq2slate.training.losses import (
    LOSSES,
    Loss,
    approximate_ndcg,
    cross_entropy,
    hinge,
    list_net,
    make_loss,
    pairwise_logistic,
    sequence_loss,
    smooth_hinge,
    step_losses,
    step_weights,
)

Row = Sequence[float]
ANYTHING = (-math.inf, math.inf, math.nan, 1e30, -7.0)
"""What may stand in the place of a score that does not count."""


# The formulas, for one row of the items that count


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def softmax(values: Row) -> list[float]:
    return [math.exp(v) / sum(math.exp(other) for other in values) for v in values]


def to_shares(scores: Row, shares: Row) -> float:
    return -sum(share * math.log(p) for share, p in zip(shares, softmax(scores), strict=True))


def slow_cross_entropy(scores: Row, labels: Row) -> float:
    return to_shares(scores, [label / sum(labels) for label in labels])


def slow_list_net(scores: Row, labels: Row) -> float:
    return to_shares(scores, softmax(labels))


def slow_hinge(scores: Row, labels: Row) -> float:
    positives, others = split(scores, labels)
    return max(0, 1 - min(positives) + max(others)) if others else 0.0


def slow_smooth_hinge(scores: Row, labels: Row, gamma: float = 1.0) -> float:
    def smooth_max(values: Row) -> float:
        return math.log(sum(math.exp(gamma * v) for v in values)) / gamma

    positives, others = split(scores, labels)
    smooth_min = -smooth_max([-s for s in positives])
    return smooth_max([0, 1 - smooth_min + smooth_max(others)]) if others else 0.0


def slow_pairwise_logistic(scores: Row, labels: Row) -> float:
    items = list(zip(scores, labels, strict=True))
    terms = [math.log(1 + math.exp(-(a - b))) for a, label_a in items for b, label_b in items if label_a > label_b]
    return sum(terms) / len(terms) if terms else 0.0


def slow_approximate_ndcg(scores: Row, labels: Row, temperature: float = 0.1) -> float:
    def rank(i: int) -> float:
        return 1 + sum(sigmoid((scores[j] - scores[i]) / temperature) for j in range(len(scores)) if j != i)

    dcg = sum(label / math.log2(1 + rank(i)) for i, label in enumerate(labels))
    ideal = sum(label / math.log2(1 + slot) for slot, label in enumerate(sorted(labels, reverse=True), start=1))
    return 1 - dcg / ideal


def split(scores: Row, labels: Row) -> tuple[list[float], list[float]]:
    items = list(zip(scores, labels, strict=True))
    return [s for s, label in items if label > 0], [s for s, label in items if label == 0]


SLOW: dict[str, Callable[[Row, Row], float]] = {
    "cross-entropy": slow_cross_entropy,
    "hinge": slow_hinge,
    "smooth-hinge": slow_smooth_hinge,
    "list-net": slow_list_net,
    "pairwise-logistic": slow_pairwise_logistic,
    "approximate-ndcg": slow_approximate_ndcg,
}


def slow_value(name: str, scores: Tensor, labels: Tensor, mask: Tensor) -> float:
    """The value of one row (N,), from the items that count alone."""
    left = labels[mask].tolist()
    return SLOW[name](scores[mask].tolist(), left) if any(label > 0 for label in left) else 0.0


def slow_gradient(name: str, scores: Tensor, labels: Tensor, mask: Tensor, step: float = 1e-5) -> Tensor:
    """Central differences of the slow formula."""
    gradient = torch.zeros_like(scores)
    for i in torch.nonzero(mask)[:, 0].tolist():
        change = torch.zeros_like(scores)
        change[i] = step
        up, down = (slow_value(name, scores + sign * change, labels, mask) for sign in (1, -1))
        gradient[i] = (up - down) / (2 * step)
    return gradient


# Rows to try them on


def random_rows(n_rows: int, n_items: int, seed: int, *, graded: bool) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(n_rows, n_items)) * rng.choice([0.1, 1, 5], size=(n_rows, 1))
    labels = rng.integers(0, 5, scores.shape) if graded else np.ones(scores.shape)
    labels = labels * (rng.random(scores.shape) < rng.choice([0, 0.3, 1], size=(n_rows, 1)))
    mask = rng.random(scores.shape) < rng.choice([0, 0.5, 1], size=(n_rows, 1), p=[0.1, 0.6, 0.3])
    scores = np.where(mask, scores, rng.choice(ANYTHING, size=scores.shape))
    return torch.from_numpy(scores), torch.from_numpy(labels.astype(np.float64)), torch.from_numpy(mask)


def with_gradient(loss: Loss, scores: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores.clone().requires_grad_()
    values = loss(scores, labels, mask=mask)
    values.sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    return values.detach(), scores.grad


MIXED_LABELS = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 2], [1, 2, 1, 1], [2, 0, 0, 1], [0, 1, 0, 3]])
MIXED_MASK = torch.tensor(
    [
        [False, False, False, False],  # nothing is left, or the list is empty
        [True, True, True, False],  # no positive is left
        [True, True, True, True],  # only positives
        [True, False, False, False],  # a single item
        [True, True, True, True],
    ]
)
WITHOUT_POSITIVES = [0, 1]


def mixed_scores(dtype: torch.dtype = torch.float64) -> Tensor:
    scores = torch.randn(MIXED_MASK.shape, generator=torch.Generator().manual_seed(5), dtype=dtype)
    return torch.where(MIXED_MASK, scores, -math.inf)


# Against the formulas


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_values_equal_the_formula(name: str, graded: bool) -> None:
    scores, labels, mask = random_rows(300, 6, seed=1, graded=graded)
    expected = [slow_value(name, *row) for row in zip(scores, labels, mask, strict=True)]
    np.testing.assert_allclose(LOSSES[name](scores, labels, mask=mask), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_the_slope_of_the_formula(name: str, graded: bool) -> None:
    scores, labels, mask = random_rows(60, 5, seed=2, graded=graded)
    _, gradient = with_gradient(LOSSES[name], scores, labels, mask)
    expected = [slow_gradient(name, *row) for row in zip(scores, labels, mask, strict=True)]
    np.testing.assert_allclose(gradient, torch.stack(expected), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_pass_gradcheck_in_the_shape_of_steps(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(0, 3, (3, 1, 5), generator=generator)
    mask = torch.rand(3, 4, 5, generator=generator) < 0.7
    assert torch.autograd.gradcheck(lambda s: LOSSES[name](s, labels, mask=mask), scores)


def test_gradient_of_cross_entropy_is_probability_less_target() -> None:
    scores, labels = torch.tensor([1.0, 2.0, 0.5, -1.0]), torch.tensor([0.0, 3.0, 1.0, 0.0])
    _, gradient = with_gradient(cross_entropy, scores, labels, torch.ones(4, dtype=torch.bool))
    torch.testing.assert_close(gradient, scores.softmax(0) - torch.tensor([0, 3 / 4, 1 / 4, 0]))


E, LOG = math.exp, math.log


@pytest.mark.parametrize(
    ("loss", "scores", "labels", "expected"),
    [
        (cross_entropy, [2, 1], [1, 0], -LOG(E(2) / (E(2) + E(1)))),
        (cross_entropy, [0, 0, 0], [1, 1, 0], LOG(3)),
        (cross_entropy, [2, 1], [3, 1], -3 / 4 * LOG(E(2) / (E(2) + E(1))) - 1 / 4 * LOG(E(1) / (E(2) + E(1)))),
        (hinge, [2, 1, 0.5, -1], [1, 1, 0, 0], 1 - 1 + 0.5),
        (hinge, [2, 1, 0], [1, 1, 0], 0),
        (smooth_hinge, [2, 1, 0], [1, 1, 0], LOG(1 + E(1 - 2 + 0) + E(1 - 1 + 0))),
        (list_net, [0, 0], [1, 0], LOG(2)),
        (list_net, [2, 0], [1, 0], -E(1) / (E(1) + 1) * 2 + LOG(E(2) + 1)),
        (pairwise_logistic, [3, 1, 0], [2, 1, 0], (LOG(1 + E(-2)) + LOG(1 + E(-3)) + LOG(1 + E(-1))) / 3),
        (pairwise_logistic, [0, 5], [1, 1], 0),
        (approximate_ndcg, [0, 0], [1, 0], 1 - 1 / math.log2(2.5)),
    ],
)
def test_values_worked_out_by_hand(loss: Loss, scores: Row, labels: Row, expected: float) -> None:
    value = loss(torch.tensor(scores, dtype=torch.float64), torch.tensor(labels), mask=torch.tensor(True))
    assert value.item() == pytest.approx(expected, abs=1e-12)


# What every loss promises


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_mixed_batch_is_finite_and_0_where_no_positive_is_left(name: str, dtype: torch.dtype) -> None:
    scores = mixed_scores(dtype)
    values, gradient = with_gradient(LOSSES[name], scores, MIXED_LABELS, MIXED_MASK)
    assert values.dtype == gradient.dtype == dtype
    assert values.isfinite().all()
    assert gradient.isfinite().all()
    assert (values[WITHOUT_POSITIVES] == 0).all()
    assert (gradient[WITHOUT_POSITIVES] == 0).all()
    assert values[-1] > 0


@pytest.mark.parametrize("name", LOSSES)
def test_rows_do_not_depend_on_each_other(name: str) -> None:
    rows = mixed_scores(), MIXED_LABELS, MIXED_MASK
    together, gradient = with_gradient(LOSSES[name], *rows)
    for b, row in enumerate(zip(*rows, strict=True)):
        alone, gradient_alone = with_gradient(LOSSES[name], *row)
        torch.testing.assert_close(alone, together[b])
        torch.testing.assert_close(gradient_alone, gradient[b])


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", LOSSES)
def test_values_are_the_same_without_gradients(name: str, without_gradients: Callable[[], Any]) -> None:
    expected, _ = with_gradient(LOSSES[name], mixed_scores(), MIXED_LABELS, MIXED_MASK)
    with without_gradients():
        values = LOSSES[name](mixed_scores().requires_grad_(), MIXED_LABELS, mask=MIXED_MASK)
    assert not values.requires_grad
    assert torch.equal(values, expected)


@pytest.mark.parametrize("stranger", ANYTHING)
@pytest.mark.parametrize("name", LOSSES)
def test_items_that_do_not_count_have_no_influence(name: str, stranger: float) -> None:
    labels = torch.where(MIXED_MASK, MIXED_LABELS, 9)
    expected, expected_gradient = with_gradient(LOSSES[name], mixed_scores(), MIXED_LABELS, MIXED_MASK)
    scores = torch.where(MIXED_MASK, mixed_scores(), stranger)
    values, gradient = with_gradient(LOSSES[name], scores, labels, MIXED_MASK)
    assert torch.equal(values, expected)
    assert torch.equal(gradient, expected_gradient)
    assert (gradient[~MIXED_MASK] == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_constant_added_to_the_scores_changes_nothing(name: str) -> None:
    values, gradient = with_gradient(LOSSES[name], mixed_scores(), MIXED_LABELS, MIXED_MASK)
    moved, moved_gradient = with_gradient(LOSSES[name], mixed_scores() + 100, MIXED_LABELS, MIXED_MASK)
    torch.testing.assert_close(moved, values, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moved_gradient, gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e4, -1e4, 1e36, -1e36])
@pytest.mark.parametrize("name", LOSSES)
def test_extreme_scores_in_single_precision_equal_those_in_double(name: str, scale: float) -> None:
    scores = (mixed_scores(torch.float32) - 3) * scale
    values, gradient = with_gradient(LOSSES[name], scores, MIXED_LABELS, MIXED_MASK)
    expected, expected_gradient = with_gradient(LOSSES[name], scores.double(), MIXED_LABELS, MIXED_MASK)
    assert expected.isfinite().all()
    torch.testing.assert_close(values, expected.float())
    torch.testing.assert_close(gradient, expected_gradient.float())


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 4), (0,)])
@pytest.mark.parametrize("name", LOSSES)
def test_batches_without_lists_or_items_have_a_loss_and_a_gradient(name: str, shape: tuple[int, ...]) -> None:
    values, gradient = with_gradient(LOSSES[name], torch.zeros(shape), torch.zeros(shape), torch.ones(shape).bool())
    assert values.shape == shape[:-1]
    assert (values == 0).all()
    assert gradient.shape == shape


@pytest.mark.parametrize("name", LOSSES)
def test_scores_may_broadcast_too(name: str) -> None:
    """One set of scores for all steps, as with a decoder of one step: its gradient is the sum over the steps."""
    scores, labels, _ = random_rows(1, 5, seed=4, graded=True)
    scores, labels = scores.nan_to_num(0.5, 0.5, 0.5), labels + torch.tensor([1, 0, 0, 0, 0])
    mask = ~torch.eye(3, 5, dtype=torch.bool)
    values, gradient = with_gradient(LOSSES[name], scores, labels, mask)
    copied, copied_gradient = with_gradient(LOSSES[name], scores.repeat(3, 1), labels.repeat(3, 1), mask)
    torch.testing.assert_close(values, copied)
    torch.testing.assert_close(gradient, copied_gradient.sum(0, keepdim=True))


# What single losses promise


@pytest.mark.parametrize("name", ["cross-entropy", "hinge", "smooth-hinge", "list-net", "pairwise-logistic"])
def test_convex_in_the_scores(name: str) -> None:
    _, labels, mask = random_rows(500, 6, seed=6, graded=True)
    generator = torch.Generator().manual_seed(7)
    a, b = 3 * torch.randn(2, *labels.shape, generator=generator, dtype=torch.float64)
    share = torch.rand(len(labels), 1, generator=generator, dtype=torch.float64)
    between = LOSSES[name](share * a + (1 - share) * b, labels, mask=mask)
    chord = share[:, 0] * LOSSES[name](a, labels, mask=mask) + (1 - share[:, 0]) * LOSSES[name](b, labels, mask=mask)
    assert (between <= chord + 1e-12).all()


@pytest.mark.parametrize("gamma", [0.5, 1.0, 10.0, 1000.0])
def test_smooth_hinge_lies_above_the_hinge_by_the_log_of_its_pairs_at_most(gamma: float) -> None:
    scores, labels, mask = random_rows(200, 6, seed=8, graded=False)
    n_pairs = (mask & (labels > 0)).sum(-1) * (mask & (labels == 0)).sum(-1)
    above = smooth_hinge(scores, labels, mask=mask, gamma=gamma) - hinge(scores, labels, mask=mask)
    assert (above >= -1e-12).all()
    assert (above <= torch.log1p(n_pairs.double()) / gamma + 1e-12).all()


@pytest.mark.parametrize("gamma", [0.3, 4.0])
def test_smooth_hinge_of_any_gamma_equals_the_formula(gamma: float) -> None:
    scores, labels = torch.tensor([0.3, -0.8, 1.1, 0.2], dtype=torch.float64), torch.tensor([1, 1, 0, 0])
    value = make_loss("smooth-hinge", gamma=gamma)(scores, labels, mask=torch.tensor(True))
    assert value.item() == pytest.approx(slow_smooth_hinge(scores.tolist(), labels.tolist(), gamma), rel=1e-12)


def test_approximate_ndcg_tends_to_ndcg_as_it_cools() -> None:
    scores, labels, mask = random_rows(100, 8, seed=9, graded=True)
    slates = slates_from_scores(scores.numpy(), mask.numpy())
    expected = 1 - ndcg(slates, labels.numpy(), mask=mask.numpy(), no_positives="one")
    np.testing.assert_allclose(approximate_ndcg(scores, labels, mask=mask, temperature=1e-6), expected, atol=1e-9)


@pytest.mark.parametrize("name", ["pairwise-logistic", "approximate-ndcg"])
def test_pairs_come_out_the_same_in_chunks_of_any_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(50, 4, seed=10, graded=True)
    results = []
    for n_pairs in (1, 5 * 4**2, 2**18):
        monkeypatch.setattr(losses, "_PAIRS_AT_ONCE", n_pairs)
        results.append(with_gradient(LOSSES[name], *rows))
    for values, gradient in results[1:]:
        torch.testing.assert_close(values, results[0][0])
        torch.testing.assert_close(gradient, results[0][1])


def test_gradients_of_unequal_weights_reach_their_own_rows() -> None:
    """The pairwise losses work out their gradient beforehand and weigh it later."""
    scores, labels, mask = random_rows(20, 5, seed=11, graded=True)
    weights = torch.linspace(-1, 2, 20, dtype=torch.float64)
    for loss in LOSSES.values():
        _, gradient = with_gradient(loss, scores, labels, mask)
        weighted = scores.clone().requires_grad_()
        (found,) = torch.autograd.grad(loss(weighted, labels, mask=mask) @ weights, weighted)
        torch.testing.assert_close(found, gradient * weights.unsqueeze(-1))


# Names


def test_losses_by_name() -> None:
    assert list(LOSSES) == list(SLOW)
    assert all(make_loss(name) is LOSSES[name] for name in LOSSES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_loss("hing"), "unknown loss 'hing'; known are cross-entropy, hinge, smooth-hinge, list-net"),
        (lambda: make_loss("hinge", gamma=2), "gamma belongs to smooth-hinge"),
        (lambda: make_loss("smooth-hinge", gamma=0), "gamma must be above 0, got 0"),
        (lambda: smooth_hinge(*[torch.ones(1)] * 2, mask=torch.ones(1).bool(), gamma=-1), "gamma must be above 0"),
        (lambda: approximate_ndcg(*[torch.ones(1)] * 2, mask=torch.ones(1).bool(), temperature=0), "temperature"),
        (lambda: step_weights("log", 3), "unknown step weights 'log'; known are uniform, dcg"),  # type: ignore[arg-type]
        (lambda: step_weights("dcg", 3, k=0), "k must be at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused_with_what_would_be_right(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


# The loss of a slate


@pytest.mark.parametrize(
    ("kind", "k", "expected"),
    [
        ("uniform", None, [1, 1, 1, 1]),
        ("uniform", 9, [1, 1, 1, 1]),
        ("dcg", None, [1, 1 / math.log2(3), 1 / math.log2(4), 1 / math.log2(5)]),
        ("dcg", 2, [1, 1 / math.log2(3), 0, 0]),
    ],
)
def test_step_weights(kind: StepWeights, k: int | None, expected: Row) -> None:
    torch.testing.assert_close(step_weights(kind, 4, k=k), torch.tensor(expected, dtype=torch.float32))


def random_slates(lengths: Sequence[int], n_steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """Slates (B, K), some of them cut short, and the mask (B, N) of their lists."""
    rng = np.random.default_rng(seed)
    slates = np.full((len(lengths), n_steps), -1)
    for b, length in enumerate(lengths):
        chosen = rng.permutation(length)[: rng.integers(0, n_steps + 1)]
        slates[b, : len(chosen)] = chosen
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    return torch.from_numpy(slates), torch.from_numpy(mask)


SLATES = st.builds(
    random_slates, st.lists(st.integers(0, 7), min_size=1, max_size=5), st.integers(0, 7), st.integers(0, 2**32)
)


@settings(max_examples=50)
@given(slates_and_mask=SLATES)
def test_items_left_are_the_real_ones_not_yet_placed(slates_and_mask: tuple[Tensor, Tensor]) -> None:
    slates, mask = slates_and_mask
    left = items_left(slates, mask)
    assert left.shape == (*slates.shape, mask.shape[1])
    for b, j, i in np.ndindex(*left.shape):
        assert left[b, j, i].item() == (mask[b, i].item() and i not in slates[b, :j].tolist())


@pytest.mark.parametrize("name", LOSSES)
def test_sequence_loss_is_the_weighted_sum_over_the_steps(name: str) -> None:
    slates, mask = random_slates([0, 1, 3, 7, 6, 7, 5], n_steps=5, seed=12)
    generator = torch.Generator().manual_seed(13)
    labels = torch.randint(0, 3, mask.shape, generator=generator)
    every_score = torch.randn(*slates.shape, mask.shape[1], generator=generator, dtype=torch.float64)
    placed = slates >= 0
    assert (items_left(slates, mask).any(-1) & ~placed).any()  # a slate that ends while items are left
    scores = torch.where(items_left(slates, mask) & placed.unsqueeze(-1), every_score, -math.inf).requires_grad_()
    weights = torch.rand(5, generator=generator, dtype=torch.float64)

    expected = torch.zeros(slates.shape, dtype=torch.float64)
    for b, j in torch.nonzero(placed).tolist():
        left = torch.tensor([bool(mask[b, i]) and i not in slates[b, :j].tolist() for i in range(mask.shape[1])])
        expected[b, j] = slow_value(name, every_score[b, j], labels[b], left)

    loss = LOSSES[name]
    torch.testing.assert_close(step_losses(scores, labels, slates, mask, loss=loss).detach(), expected)
    total = sequence_loss(scores, labels, slates, mask, loss=loss, weights=weights)
    torch.testing.assert_close(total.detach(), (expected * weights).sum(1))
    (gradient,) = torch.autograd.grad(total.sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient[~placed] == 0).all()


def test_first_steps_only() -> None:
    slates, mask = torch.tensor([[2, 0, 1]]), torch.ones(1, 3, dtype=torch.bool)
    labels, scores = torch.tensor([[0, 1, 0]]), torch.zeros(1, 3, 3)
    weights = step_weights("uniform", 3, k=2)
    value = sequence_loss(scores, labels, slates, mask, loss=cross_entropy, weights=weights)
    torch.testing.assert_close(value, torch.tensor([math.log(3) + math.log(2)]))


def ranked_with_margin(order: Sequence[int], margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (1, K, N) that put the items in this order at every step, the slate that follows them, and its mask."""
    scores = torch.empty(len(order), dtype=torch.float64)
    scores[list(order)] = -margin * torch.arange(len(order), dtype=torch.float64)
    return scores.expand(1, len(order), -1), torch.tensor([order]), torch.ones(1, len(order), dtype=torch.bool)


@pytest.mark.parametrize(
    ("loss", "labels"),
    [(cross_entropy, [0, 0, 1, 0]), (hinge, [0, 1, 1, 0]), (smooth_hinge, [0, 1, 1, 0]), (hinge, [1, 1, 1, 0])],
)
def test_loss_of_a_slate_is_0_if_the_positives_come_first_and_only_then(loss: Loss, labels: list[int]) -> None:
    n_positives = sum(labels)
    for order in permutations(range(4)):
        scores, slates, mask = ranked_with_margin(order, margin=1000)
        weights = torch.ones(4)
        value = sequence_loss(scores, torch.tensor([labels]), slates, mask, loss=loss, weights=weights).item()
        positives_first = all(labels[i] for i in order[:n_positives])
        assert (value < 1e-6) == positives_first
        assert positives_first or value > 900


def test_cross_entropy_of_a_slate_with_several_positives_is_log_of_their_factorial_at_least() -> None:
    labels, mask = torch.tensor([[1, 0, 1, 1, 0]]), torch.ones(1, 5, dtype=torch.bool)
    slates, weights = torch.tensor([[3, 0, 2, 1, 4]]), torch.ones(5)
    perfect = 1000 * labels.double().unsqueeze(1).expand(1, 5, 5)
    generator = torch.Generator().manual_seed(14)
    others = torch.randn(200, 5, 5, generator=generator, dtype=torch.float64) * 3

    def value(scores: Tensor) -> Tensor:
        n = len(scores)
        lists = labels.expand(n, 5), slates.expand(n, 5), mask.expand(n, 5)
        return sequence_loss(scores, *lists, loss=cross_entropy, weights=weights)

    lowest = math.log(math.factorial(3))
    assert value(perfect).item() == pytest.approx(lowest, abs=1e-12)
    assert (value(others) > lowest).all()
