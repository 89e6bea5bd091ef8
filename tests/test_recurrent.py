"""The layers equal PyTorch's own, list by list, and their gradients the slopes of what they compute."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from seq2slate.model.layers import CELLS, GruLayer, LstmLayer, RecurrentLayer, State
from tests.reference_network import KERNELS, use_kernels

N_INPUTS, N_UNITS = 2, 3


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_of(cell: str) -> RecurrentLayer:
    layer = CELLS[cell](N_INPUTS, N_UNITS).double()
    with torch.no_grad():
        for number, weight in enumerate(layer.parameters()):
            weight.copy_(normal(*weight.shape, seed=number) / 2)
    return layer


def torch_layer(layer: RecurrentLayer) -> nn.RNNBase:
    """Return PyTorch's layer with the same weights; its LSTM has a second bias, which is 0 here."""
    if isinstance(layer, LstmLayer):
        found: nn.RNNBase = nn.LSTM(N_INPUTS, N_UNITS).double()
        weights = [layer.weight_input.t(), layer.weight_hidden.t(), layer.bias, torch.zeros_like(layer.bias)]
    else:
        assert isinstance(layer, GruLayer)
        found = nn.GRU(N_INPUTS, N_UNITS).double()
        weights = [layer.cell.weight_ih, layer.cell.weight_hh, layer.cell.bias_ih, layer.cell.bias_hh]
    with torch.no_grad():
        for own, weight in zip(found.parameters(), weights, strict=True):
            own.copy_(weight)
    return found


def first_state(layer: RecurrentLayer, n_lists: int) -> State:
    n_parts = 2 if isinstance(layer, LstmLayer) else 1
    return tuple(normal(n_lists, N_UNITS, seed=10 + part) for part in range(n_parts))


def read_alone(layer: RecurrentLayer, vectors: Tensor, state: State | None) -> tuple[Tensor, State]:
    """Return PyTorch's outputs (T, D) and last state of one list."""
    of_list = None if state is None else tuple(part[None, None] for part in state)
    given = of_list[0] if of_list is not None and isinstance(layer, GruLayer) else of_list
    outputs, last = torch_layer(layer)(vectors[:, None], given)
    parts = last if isinstance(last, tuple) else (last,)
    return outputs[:, 0].detach(), tuple(part[0, 0].detach() for part in parts)


@pytest.mark.parametrize("with_start", [False, True])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_layers_equal_those_of_torch_list_by_list(cell: str, with_state: bool, with_start: bool) -> None:
    layer = layer_of(cell)
    lengths, rows = [5, 3, 3, 1], [4, 3, 3, 1, 1]
    x, start = normal(5 - with_start, 4, N_INPUTS, seed=20), normal(N_INPUTS, seed=21) if with_start else None
    state = first_state(layer, 4) if with_state else None
    last = torch.tensor([2, 2, 1, 0])
    outputs, ends = layer.scan(x, rows, state, start=start, last=last)
    for number, length in enumerate(lengths):
        read = x[:, number] if start is None else torch.cat([start[None], x[:, number]])
        alone = None if state is None else tuple(part[number] for part in state)
        expected, _ = read_alone(layer, read[:length], alone)
        torch.testing.assert_close(outputs[:length, number], expected)
        _, expected_end = read_alone(layer, read[: int(last[number]) + 1], alone)
        for part, of_list in zip(ends, expected_end, strict=True):
            torch.testing.assert_close(part[number], of_list)


@pytest.mark.parametrize("cell", CELLS)
def test_single_steps_equal_the_scan(cell: str) -> None:
    layer = layer_of(cell)
    x, state = normal(4, 2, N_INPUTS, seed=20), first_state(layer, 2)
    outputs, end = layer.scan(x, [2] * 4, state)
    for vectors, expected in zip(x, outputs, strict=True):
        state = layer.step(vectors, state)
        torch.testing.assert_close(state[0], expected)
    for part, expected in zip(state, end, strict=True):
        torch.testing.assert_close(part, expected)


@pytest.mark.parametrize("rows", [[4, 4, 4, 4, 4], [4, 4, 3, 1, 1]])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("cell", CELLS)
def test_without_gradients_the_result_is_the_same(
    cell: str, kernels: str, kind: torch.dtype, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_kernels(kernels, monkeypatch)
    layer = layer_of(cell).to(kind)
    x, last = normal(5, 4, N_INPUTS, seed=20).to(kind), torch.tensor([4, 0, 2, 0])
    with_gradients = layer.scan(x, rows, last=last)
    with torch.no_grad():
        found = [layer.scan(x, rows, last=last)]
    found.append(layer.requires_grad_(False).scan(x, rows, last=last))
    for outputs, ends in found:
        assert not outputs.requires_grad
        for step, active in enumerate(rows):
            torch.testing.assert_close(outputs[step, :active], with_gradients[0][step, :active])
        for part, expected in zip(ends, with_gradients[1], strict=True):
            torch.testing.assert_close(part, expected)


@pytest.mark.parametrize("cell", CELLS)
def test_no_steps_leave_the_state_as_it_was(cell: str) -> None:
    layer = layer_of(cell)
    state = first_state(layer, 2)
    outputs, end = layer.scan(torch.zeros(0, 2, N_INPUTS, dtype=torch.float64), [], state, start=torch.zeros(N_INPUTS))
    assert outputs.shape == (0, 2, N_UNITS)
    assert all(torch.equal(*parts) for parts in zip(state, end, strict=True))


# Gradients


def check_gradient(rows: list[int], last: Sequence[int] | None, *, with_start: bool, n_lists: int = 3) -> None:
    """Compare the gradient of outputs and last states by all inputs and weights with the slope."""
    layer = layer_of("lstm")
    names = [name for name, _ in layer.named_parameters()]
    x = normal(len(rows) - with_start, n_lists, N_INPUTS, seed=20)
    start = [normal(N_INPUTS, seed=21)] if with_start else []
    tensors = [x, *first_state(layer, n_lists), *(weight.detach().clone() for weight in layer.parameters()), *start]
    ended = None if last is None else torch.tensor(last)

    def scan(x: Tensor, h: Tensor, c: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        weights = dict(zip(names, rest, strict=False))
        first = rest[len(names)] if with_start else None
        outputs, ends = torch.func.functional_call(
            _Scan(layer), {f"layer.{name}": weight for name, weight in weights.items()}, (x, rows, (h, c), first, ended)
        )
        there = torch.stack(
            [outputs[t, :active].sum() * (t + 1) + outputs[t, :active].pow(2).sum() for t, active in enumerate(rows)]
        )
        return (there, *ends) if rows[-1] == n_lists or ended is not None else (there,)

    assert torch.autograd.gradcheck(scan, [tensor.requires_grad_(True) for tensor in tensors])


class _Scan(nn.Module):
    """A layer whose `forward` is its `scan`."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(
        self, x: Tensor, rows: list[int], state: State, start: Tensor | None, last: Tensor | None
    ) -> tuple[Tensor, State]:
        return self.layer.scan(x, rows, state, start=start, last=last)


@pytest.mark.parametrize("with_start", [False, True])
@pytest.mark.parametrize(
    ("rows", "last"),
    [
        ([3, 3, 3], None),
        ([3, 3, 3], [2, 0, 1]),
        ([3, 2, 1], [2, 1, 0]),
        ([3, 3, 2], [0, 1, 0]),
        ([3, 1, 1], None),
        ([2, 1, 0], None),
        ([3], None),
    ],
)
def test_gradcheck_of_the_lstm(rows: list[int], last: list[int] | None, with_start: bool) -> None:
    check_gradient(rows, last, with_start=with_start)


@pytest.mark.parametrize("kernels", KERNELS)
def test_lstm_in_single_precision_equals_double(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(kernels, monkeypatch)

    def gradients(kind: torch.dtype) -> list[Tensor]:
        layer = layer_of("lstm").to(kind)
        x = normal(6, 5, N_INPUTS, seed=20).to(kind).requires_grad_(True)
        outputs, (h, c) = layer.scan(x, [5, 5, 4, 2, 2, 1], last=torch.tensor([5, 0, 2, 2, 1]))
        value = (outputs * normal(6, 5, N_UNITS, seed=22).to(kind)).sum() + h.pow(2).sum() + c.sin().sum()
        return [outputs.detach(), *torch.autograd.grad(value, [x, *layer.parameters()])]

    for single, double in zip(gradients(torch.float32), gradients(torch.float64), strict=True):
        assert (single - double).abs().max() <= 1e-5 * double.abs().max()


def test_inputs_without_gradient_cost_none() -> None:
    layer = layer_of("lstm")
    x = normal(2, 1, N_INPUTS, seed=0)
    layer.scan(x, [1, 1])[0].sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is None
    assert all(weight.grad is not None for weight in layer.parameters())


def test_a_second_derivative_is_refused() -> None:
    layer, x = layer_of("lstm"), normal(2, 1, N_INPUTS, seed=0).requires_grad_(True)
    (slope,) = torch.autograd.grad(layer.scan(x, [1, 1])[0].pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()  # type: ignore[no-untyped-call]
