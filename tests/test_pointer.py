"""The factored tanh is as good as tanh itself, far out as well, and so is its gradient."""

import pytest
import torch
from torch import Tensor

from seq2slate.model.backends.kernels import KERNELS, StepRows
from seq2slate.model.layers import Keys, pointer_scores
from tests.reference_network import use_kernels

N_LISTS, N_ITEMS, N_STEPS, WIDTH = 3, 20, 10, 128


@pytest.fixture(params=["torch", "native"], autouse=True)
def _chosen_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param not in KERNELS:
        pytest.skip("no C compiler")
    use_kernels(request.param, monkeypatch)


def uniform(*shape: int, seed: int, size: float) -> Tensor:
    return (2 * torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 1) * size


def every_step(n_lists: int = N_LISTS, n_items: int = N_ITEMS, n_steps: int = N_STEPS) -> StepRows:
    """StepRows that score every item at every step."""
    return StepRows(torch.arange(n_lists), torch.full((n_lists,), n_steps), torch.full((n_lists, n_items), n_steps))


def exact(keys: Tensor, queries: Tensor, v: Tensor) -> Tensor:
    """Return the scores (B, K, N) of every step by float64 tanh."""
    arguments = keys.double()[:, None] + queries.double().transpose(0, 1)[:, :, None]
    return torch.tanh(arguments) @ v.double()


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0, 30.0])
def test_scores_are_within_2e_5_of_tanh(size: float) -> None:
    keys, queries = (uniform(*shape, seed=1, size=size) for shape in ((3, 20, WIDTH), (10, 3, WIDTH)))
    v = uniform(WIDTH, seed=3, size=1.0)
    gap = pointer_scores(Keys.of(keys), queries, v, every_step()) - exact(keys, queries, v)
    assert gap.abs().max() <= 2e-5


def test_scores_are_within_2e_5_of_tanh_where_large_arguments_cancel() -> None:
    keys = uniform(N_LISTS, N_ITEMS, WIDTH, seed=1, size=30.0)
    queries = (uniform(N_STEPS, N_LISTS, WIDTH, seed=2, size=1.0) - keys.transpose(0, 1)[:N_STEPS]).clamp(-30, 30)
    v = uniform(WIDTH, seed=3, size=1.0)
    gap = pointer_scores(Keys.of(keys), queries, v, every_step()) - exact(keys, queries, v)
    assert gap.abs().max() <= 2e-5


@pytest.mark.parametrize("size", [30.0, 45.0, 1e4, 1e30])
def test_scores_and_gradients_are_finite_far_out(size: float) -> None:
    keys = uniform(N_LISTS, N_ITEMS, WIDTH, seed=1, size=size).requires_grad_(True)
    queries = uniform(N_STEPS, N_LISTS, WIDTH, seed=2, size=size).requires_grad_(True)
    v = uniform(WIDTH, seed=3, size=1.0).requires_grad_(True)
    scores = pointer_scores(Keys.of(keys), queries, v, every_step())
    assert scores.isfinite().all()
    assert scores.abs().max() <= v.abs().sum() * (1 + 1e-5)
    scores.sum().backward()  # type: ignore[no-untyped-call]
    for tensor in (keys, queries, v):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_far_out_the_tanh_is_its_sign_and_flat(sign: float) -> None:
    keys = torch.full((1, 2, WIDTH), sign * 1e4, requires_grad=True)
    queries = torch.full((1, 1, WIDTH), sign * 1e4, requires_grad=True)
    v = uniform(WIDTH, seed=3, size=1.0)
    scores = pointer_scores(Keys.of(keys), queries, v, every_step(1, 2, 1))
    torch.testing.assert_close(scores, (sign * v.sum()).expand(1, 1, 2), rtol=1e-5, atol=1e-5)
    scores.sum().backward()  # type: ignore[no-untyped-call]
    assert keys.grad is not None
    assert keys.grad.abs().max() < 1e-9


def test_gradients_are_close_to_those_of_tanh() -> None:
    shapes = ((N_LISTS, N_ITEMS, WIDTH), (N_STEPS, N_LISTS, WIDTH), (WIDTH,))
    values = [uniform(*shape, seed=seed, size=4.0) for seed, shape in enumerate(shapes)]
    weights = uniform(N_LISTS, N_STEPS, N_ITEMS, seed=5, size=1.0)
    keys, queries, v = singles = [tensor.requires_grad_(True) for tensor in values]
    found = torch.autograd.grad((pointer_scores(Keys.of(keys), queries, v, every_step()) * weights).sum(), singles)
    keys, queries, v = doubles = [tensor.detach().double().requires_grad_(True) for tensor in values]
    expected = torch.autograd.grad((exact(keys, queries, v) * weights).sum(), doubles)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max()


def test_gradcheck_of_lists_that_stop_one_after_the_other() -> None:
    slots = torch.tensor([[0, 4, 1], [0, 1, 2], [1, 0, 3], [2, -1, 0]])
    rows = StepRows(torch.tensor([2, 0, 3]), torch.tensor([4, 2, 1]), slots)
    keys, queries, v = tensors = [
        uniform(*shape, seed=seed, size=1.5).double().requires_grad_(True)
        for seed, shape in enumerate(((4, 3, 5), (4, 3, 5), (5,)))
    ]
    there = pointer_scores(Keys.of(keys), queries, v, rows) > -torch.inf
    # an item is there up to the step that places it, or to its list's stop
    assert there.sum(1).tolist() == [[1, 2, 2], [0, 0, 0], [2, 1, 4], [1, 0, 1]]

    def scores(keys: Tensor, queries: Tensor, v: Tensor) -> Tensor:
        return pointer_scores(Keys.of(keys), queries, v, rows)[there]

    assert torch.autograd.gradcheck(scores, tensors)


def test_a_second_derivative_is_refused() -> None:
    keys = uniform(1, 2, 3, seed=1, size=1.0).double().requires_grad_(True)
    queries, v = uniform(1, 1, 3, seed=2, size=1.0).double(), torch.ones(3, dtype=torch.float64)
    scores = pointer_scores(Keys.of(keys), queries, v, every_step(1, 2, 1))
    (slope,) = torch.autograd.grad(scores.pow(2).sum(), keys, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()  # type: ignore[no-untyped-call]
