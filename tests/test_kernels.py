"""Both sets of kernels equal the formulas in float64, whatever the shape; without a compiler there is still one set."""

import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seq2slate.data.lists import FloatArray
from seq2slate.model.backends import native
from seq2slate.model.backends.kernels import (
    KERNELS,
    Decoding,
    Kernels,
    LstmEncoder,
    LstmWeights,
    PointerGradients,
    StepRows,
    kernels_for,
)
from seq2slate.model.backends.native import NativeKernels
from seq2slate.model.backends.pairs import (
    STEPS,
    PairColumns,
    PairGradients,
    Pairs,
    PairWeights,
    PlacedPairs,
    in_16_bits,
)
from seq2slate.model.layers import LIMIT

WIDTHS = (1, 2, 5, 16, 63, 64, 70, 128, 131)
"""Units: odd and even, whole blocks of 64 and of 16 and not."""


@pytest.fixture(params=["torch", "native"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param not in KERNELS:
        pytest.skip("no C compiler")
    found: Kernels = KERNELS[request.param]
    return found


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


# The LSTM


def lstm(arguments: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return gates (R, 4D), cell and output by the equations."""
    i, f, g, o = arguments.chunk(4, dim=1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    c = f * before + i * g
    return torch.cat([i, f, g, o], dim=1), c, o * torch.tanh(c)


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("width", WIDTHS)
def test_lstm_step_and_its_gradient_equal_the_equations(kernels: Kernels, rows: int, width: int) -> None:
    arguments, bias, before = (
        3 * normal(rows, 4 * width, seed=0),
        normal(4 * width, seed=1),
        normal(rows, width, seed=2),
    )
    doubles = [tensor.double().requires_grad_(True) for tensor in (arguments + bias, before)]
    gates, c, h = lstm(*doubles)
    found, found_c, found_h = arguments.clone(), torch.empty(rows, width), torch.empty(rows, width)
    kernels.lstm_forward(found, bias, before, found_c, found_h)
    for value, expected in ((found, gates), (found_c, c), (found_h, h)):
        close(value, expected.detach())

    dh, dc = normal(rows, width, seed=3), normal(rows, width, seed=4)
    darguments, dbefore = torch.autograd.grad((h, c), doubles, (dh.double(), dc.double()))
    found_gradient, found_dc = torch.empty(rows, 4 * width), dc.clone()
    kernels.lstm_backward(found, before, found_c, dh, found_dc, found_gradient)
    close(found_gradient, darguments)
    close(found_dc, dbefore)


def test_lstm_of_many_rows_equals_the_equations(kernels: Kernels) -> None:
    arguments, before = normal(300, 4 * 256, seed=0), normal(300, 256, seed=2)
    gates, c, h = lstm(arguments.double(), before.double())
    found_c, found_h = torch.empty_like(before), torch.empty_like(before)
    kernels.lstm_forward(arguments, torch.zeros(4 * 256), before, found_c, found_h)
    for value, expected in ((arguments, gates), (found_c, c), (found_h, h)):
        close(value, expected)


@pytest.mark.parametrize("size", [20.0, 100.0, 1e4])
def test_lstm_gates_saturate(kernels: Kernels, size: float) -> None:
    signs = torch.tensor([[a, b, c, d] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1) for d in (-1, 1)])
    arguments, before = size * signs.float(), torch.full((16, 1), 30.0)
    gates, c, h = lstm(arguments.double(), before.double())
    found_c, found_h = torch.empty(16, 1), torch.empty(16, 1)
    kernels.lstm_forward(arguments, torch.zeros(4), before, found_c, found_h)
    for value, expected in ((arguments, gates), (found_c, c), (found_h, h)):
        close(value, expected)


# The pointer


def test_pointer_factors_are_exponentials_to_the_last_digits(kernels: Kernels) -> None:
    arguments = torch.linspace(-40, 40, 70001)
    factors = arguments.clone()
    kernels.pointer_factors(factors, LIMIT)
    torch.testing.assert_close(factors.double(), torch.exp(2 * arguments.double()), rtol=1e-6, atol=0)
    beyond = torch.tensor([-1e4, -41.0, 41.0, 1e4])
    kernels.pointer_factors(beyond, LIMIT)
    torch.testing.assert_close(
        beyond.double(), torch.tensor([-80.0, -80, 80, 80], dtype=torch.float64).exp(), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("limit", [0.5, 3.0])
def test_the_caller_says_where_arguments_of_the_pointer_are_clamped(kernels: Kernels, limit: float) -> None:
    arguments = torch.linspace(-5, 5, 101)
    factors = arguments.clone()
    kernels.pointer_factors(factors, limit)
    close(factors.log(), 2 * arguments.double().clamp(-limit, limit))


def pointer_case(n_items: int, width: int) -> tuple[StepRows, Tensor, Tensor, Tensor]:
    """Return 4 of 6 lists that stop one after the other, with keys (6, N, D), queries (5, 4, D) and v."""
    generator = torch.Generator().manual_seed(width)
    slots = torch.randint(-1, 6, (6, n_items), generator=generator)
    rows = StepRows(torch.tensor([4, 0, 5, 2]), torch.tensor([5, 3, 3, 0]), slots)
    return rows, normal(6, n_items, width, seed=1), normal(5, 4, width, seed=2), normal(width, seed=3) / width**0.5


def slow_scores(rows: StepRows, keys: Tensor, queries: Tensor, v: Tensor) -> Tensor:
    """Return v^T tanh(key + query) where an item is left, in loops; -inf elsewhere."""
    scores = torch.full((len(keys), len(queries), keys.shape[1]), -math.inf, dtype=torch.float64)
    for row, (number, stop) in enumerate(zip(rows.lists.tolist(), rows.stops.tolist(), strict=True)):
        for step in range(stop):
            for item in range(keys.shape[1]):
                if rows.slots[number, item] >= step:
                    scores[number, step, item] = v @ torch.tanh(keys[number, item] + queries[step, row])
    return scores


@pytest.mark.parametrize("n_items", [1, 3])
@pytest.mark.parametrize("width", WIDTHS)
def test_pointer_scores_and_their_gradients_equal_the_equation(kernels: Kernels, n_items: int, width: int) -> None:
    rows, keys, queries, v = pointer_case(n_items, width)
    doubles = [tensor.double().requires_grad_(True) for tensor in (keys, queries, v)]
    expected = slow_scores(rows, *doubles)
    key_factors, query_factors = keys.clone(), queries.clone()
    kernels.pointer_factors(key_factors, LIMIT)
    kernels.pointer_factors(query_factors, LIMIT)
    scores = torch.full(expected.shape, -math.inf)
    kernels.pointer_forward(rows, key_factors, query_factors, v, scores)
    close(scores, expected.detach())

    dscores = normal(*expected.shape, seed=5).where(scores > -math.inf, 0)
    gradients = torch.autograd.grad(expected, doubles, dscores.double())
    dkeys, dqueries, dv = torch.zeros_like(keys), torch.zeros_like(queries), torch.zeros(len(keys), width)
    kernels.pointer_backward(rows, key_factors, query_factors, v, dscores, PointerGradients(dkeys, dqueries, dv))
    for found, gradient in zip((dkeys, dqueries, dv.sum(0)), gradients, strict=True):
        close(found, gradient)


# A step of decoding

LEFT = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0], [1, 1, 1, 1]], dtype=torch.bool)


def decoding_case(width: int, *, sampled: bool, terms: bool) -> tuple[Decoding, Tensor, Tensor]:
    """Return the second of three steps, of which list 4 takes no part, with the lists and their queries."""
    keys = normal(5, 4, width, seed=1)
    interaction = normal(5, 4, 4, seed=5) if terms else None
    state = Decoding(
        keys,
        normal(width, seed=2),
        LEFT.clone(),
        torch.full((5, 3, 4), -math.inf),
        torch.full((5, 3), -1),
        draws=torch.rand(5, 3, generator=torch.Generator().manual_seed(3)) if sampled else None,
        sharpness=0.7,
        bias=normal(5, 4, seed=4) if terms else None,
        interaction=interaction,
    )
    return state, torch.tensor([3, 0, 2, 1]), normal(4, width, seed=6)


@pytest.mark.parametrize("terms", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_step_places_the_best_item_or_the_drawn_one(kernels: Kernels, width: int, sampled: bool, terms: bool) -> None:
    state, lists, queries = decoding_case(width, sampled=sampled, terms=terms)
    before = replace(state, left=state.left.clone(), bias=None if state.bias is None else state.bias.clone())
    arguments = torch.tanh(state.keys[lists].double() + queries[:, None].double())
    for factors in (state.keys, queries):
        kernels.pointer_factors(factors, LIMIT)
    kernels.pointer_step(state, 1, lists, queries)
    for row, number in enumerate(lists.tolist()):
        left = [item for item in range(4) if before.left[number, item]]
        scores = {item: float(arguments[row, item] @ state.v.double()) for item in left}
        if before.bias is not None:
            scores = {item: score + float(before.bias[number, item]) for item, score in scores.items()}
        choice = expected_choice(scores, None if state.draws is None else float(state.draws[number, 1]))
        assert state.slates[number].tolist() == [-1, choice, -1]
        assert state.left[number].nonzero().flatten().tolist() == [item for item in left if item != choice]
        expected = torch.tensor([scores.get(item, -math.inf) for item in range(4)], dtype=torch.float64)
        close(state.scores[number, 1], expected)
        if state.bias is not None and before.bias is not None and state.interaction is not None:
            added = state.interaction[number, choice] if left else torch.zeros(4)
            torch.testing.assert_close(state.bias[number], before.bias[number] + added)
    assert (state.scores[:, [0, 2]] == -math.inf).all()
    assert torch.equal(state.left[4], LEFT[4])  # it took no part
    assert (state.slates[4] == -1).all()


def expected_choice(scores: dict[int, float], draw: float | None, sharpness: float = 0.7) -> int:
    """Return the best item, or the first where the running sum of probabilities passes the draw; -1 without items."""
    if draw is None or not scores:
        return max(scores, key=lambda item: scores[item], default=-1)
    total = sum(math.exp(score * sharpness) for score in scores.values())
    running = 0.0
    for item, score in scores.items():
        running += math.exp(score * sharpness) / total
        if running > draw:
            return item
    raise AssertionError("the probabilities do not reach the draw")


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-24])
def test_the_most_extreme_draws_place_a_real_item(kernels: Kernels, draw: float) -> None:
    state, lists, queries = decoding_case(16, sampled=True, terms=False)
    state = replace(state, draws=torch.full((5, 3), draw), v=30 * state.v)  # some probabilities are 0 in float32
    for factors in (state.keys, queries):
        kernels.pointer_factors(factors, LIMIT)
    kernels.pointer_step(state, 0, lists, queries)
    choices = state.slates[:4, 0].tolist()
    assert choices[2] == -1
    assert all(LEFT[number, choices[number]] for number in (0, 1, 3))


def test_equal_scores_are_placed_in_base_order(kernels: Kernels) -> None:
    state, lists, queries = decoding_case(8, sampled=False, terms=False)
    state.keys.fill_(1.0)
    kernels.pointer_step(state, 0, lists, queries.exp())
    assert state.slates[:4, 0].tolist() == [0, 1, -1, 2]


# A whole encoder in C


@pytest.mark.parametrize("width", [1, 5, 70])
@pytest.mark.parametrize("find", [native.gemm_address, native._scipy_gemm_address], ids=["torch", "scipy"])
def test_an_encoder_takes_its_products_from_either_blas(
    find: Callable[[], int | None], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, address = KERNELS.get("native"), find()
    if not isinstance(kernels, NativeKernels) or address is None:
        pytest.skip("no C compiler, or no such BLAS")
    monkeypatch.setattr(kernels, "gemm", address)
    weights = LstmWeights(normal(3, 4 * width, seed=0), normal(width, 4 * width, seed=1), normal(4 * width, seed=2))
    x, last = normal(4, 50, 3, seed=3), torch.arange(50) % 4
    factors, h_last, c_last = torch.empty(50, 4, width), torch.empty(50, width), torch.empty(50, width)
    w_enc = normal(width, width, seed=4)
    kernels.lstm_encode(LstmEncoder(weights, x, last, w_enc, LIMIT), factors, h_last, c_last)
    h = c = torch.zeros(50, width, dtype=torch.float64)
    for step, vectors in enumerate(x.double()):
        arguments = vectors @ weights.weight_input.double() + h @ weights.weight_hidden.double() + weights.bias.double()
        _, c, h = lstm(arguments, c)
        close(factors[:, step].double().log() / 2, h @ w_enc.double())
        close(h_last[last == step], h[last == step])
        close(c_last[last == step], c[last == step])


# Which kernels there are


def test_native_kernels_take_contiguous_tensors_only() -> None:
    kernels = KERNELS.get("native")
    if kernels is None:
        pytest.skip("no C compiler")
    with pytest.raises(ValueError, match="contiguous"):
        kernels.pointer_factors(torch.zeros(4, 4).t()[:2], LIMIT)


def test_double_precision_is_for_torch() -> None:
    assert kernels_for(torch.zeros(1, dtype=torch.float64)) is KERNELS["torch"]
    assert kernels_for(torch.zeros(1)) is KERNELS.get("native", KERNELS["torch"])


def test_native_kernels_can_be_turned_off() -> None:
    code = "from seq2slate.model.backends.kernels import KERNELS; print(*KERNELS)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"SEQ2SLATE_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["torch"]


def uncached_library() -> object:
    return native.native_library.__wrapped__()


def test_the_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "native" not in KERNELS:
        pytest.skip("no C compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert uncached_library() is not None
    (library,) = (tmp_path / "seq2slate").iterdir()
    made = library.stat().st_mtime_ns
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert uncached_library() is not None
    assert library.stat().st_mtime_ns == made


STRANGER = 54321
UNSAFE = {
    "a folder that all can write": lambda folder, library: folder.chmod(0o777),
    "a folder that a group can write": lambda folder, library: folder.chmod(0o770),
    "a folder of somebody else": lambda folder, library: os.chown(folder, STRANGER, -1),
    "a library that all can write": lambda folder, library: library.chmod(0o666),
    "a library that a group can write": lambda folder, library: library.chmod(0o660),
    "a library of somebody else": lambda folder, library: os.chown(library, STRANGER, -1),
}


@pytest.mark.parametrize("spoil", UNSAFE.values(), ids=UNSAFE)
def test_code_that_others_could_have_written_is_not_loaded(
    spoil: Callable[[Path, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    if "native" not in KERNELS:
        pytest.skip("no C compiler")
    folder, spare = tmp_path / "cache" / "seq2slate", tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0o002)  # as where every user has a group
    try:
        assert uncached_library() is not None
        assert uncached_library() is not None
    finally:
        os.umask(before)
    assert not caplog.records, "what it wrote itself is safe"
    (library,) = folder.iterdir()
    source = tmp_path / "evil.c"
    source.write_text(
        f'#include <stdio.h>\n__attribute__((constructor)) void run(void) {{ fclose(fopen("{tmp_path}/ran", "w")); }}'
    )
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    try:
        spoil(folder, library)
    except PermissionError:
        pytest.skip("only the administrator gives files away")
    loaded = uncached_library()
    assert not (tmp_path / "ran").exists(), "code of somebody else was run"
    assert loaded.place_list is not None  # type: ignore[attr-defined]
    assert len(caplog.records) == 1
    assert re.search("others|another user", caplog.text)
    assert not list(spare.iterdir()), "the folder for this process is gone"


def test_without_a_working_compiler_there_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "false")
    assert uncached_library() is None
    assert not list((tmp_path / "seq2slate").iterdir())
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert uncached_library() is None


def test_without_a_place_for_it_there_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert uncached_library() is None

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert uncached_library() is None


# The cascade of clicks


def pair_indices(items: int) -> list[tuple[int, int]]:
    """Return the pairs of a list, the lower item first, in the order in which they are stored."""
    return [(i, k) for i in range(items) for k in range(i)]


def square(pairs: Tensor, items: int) -> Tensor:
    """Return (B, N, N) from the pairs (B, P), both ways."""
    found = pairs.sum() * pairs.new_zeros(len(pairs), items, items)
    for p, (i, k) in enumerate(pair_indices(items)):
        found[:, i, k] = found[:, k, i] = pairs[:, p]
    return found


def mixed(logits: Tensor, effects: Tensor) -> Tensor:
    """Return what an item does to the log-odds of others whose odds a click on it multiplies by e^effect."""
    p = torch.sigmoid(logits)
    return torch.log(1 - p + p * torch.exp(effects))


@pytest.mark.parametrize(("lists", "items"), [(1, 1), (1, 2), (3, 7), (2, 33), (0, 4)])
def test_the_log_odds_of_expected_clicks_equal_the_equations(kernels: Kernels, lists: int, items: int) -> None:
    appeal, effects = normal(lists, items, seed=0), 3 * normal(lists, items * (items - 1) // 2, seed=1)
    expected, of_pairs = appeal.double(), square(effects.double(), items)
    for i in range(items):
        expected[:, i] += sum(mixed(expected[:, k], of_pairs[:, k, i]) for k in range(i))
    kernels.expected_logits(effects, appeal)
    close(appeal, expected)


def test_large_effects_leave_all_expected_clicks_finite(kernels: Kernels) -> None:
    logits = torch.full((1, 3), 1e3)
    kernels.expected_logits(torch.full((1, 3), -1e4), logits)
    torch.testing.assert_close(logits, torch.tensor([[1e3, 0.0, -math.log(2)]]), rtol=1e-6, atol=1e-4)
    logits = torch.full((1, 3), -1e3)
    kernels.expected_logits(torch.full((1, 3), 1e4), logits)
    torch.testing.assert_close(logits, torch.tensor([[-1e3, 8e3, 18e3]]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("logit", [1e4, 300.0, 1.0, -1.0, -300.0, -1e4])
def test_large_log_odds_do_not_cost_the_effects_their_digits(kernels: Kernels, logit: float) -> None:
    logits, effects = torch.full((1, 2), logit), torch.linspace(-0.5, 0.7, 25)
    for effect in effects:
        found = torch.zeros(1, 1, 2)
        kernels.placed_rows(PlacedPairs(logits, 1.0, effect.view(1, 1)), torch.tensor([[0]]), found)
        right = mixed(logits[0, 0].double(), effect.double())
        torch.testing.assert_close(found[0, 0, 1].double(), right, rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize(("lists", "items"), [(1, 1), (3, 7), (2, 33), (0, 4)])
def test_what_clicks_above_add_and_its_gradient_equal_the_equation(kernels: Kernels, lists: int, items: int) -> None:
    effects, logits = normal(lists, items * (items - 1) // 2, seed=0), normal(lists, items, seed=1)
    clicked, dlogits = (normal(lists, items, seed=2) > 0).float(), normal(lists, items, seed=3)
    doubles = effects.double().requires_grad_(True)
    expected = logits + (square(doubles, items).tril() * clicked[:, None]).sum(2)
    kernels.clicks_above_forward(clicked, effects, logits)
    close(logits, expected.detach())
    found = torch.empty_like(effects)
    kernels.clicks_above_backward(clicked, dlogits, found)
    close(found, torch.autograd.grad((expected * dlogits).sum(), doubles)[0])


# Pairs of items

QUANTILES = (0.0, 0.03, 0.07, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
LENGTHS = (7, 1, 0, 2, 40, 6, 10)
"""Of the lists of a batch. In that of 6 all rows are equal, in that of 10 there are two kinds of rows."""


def pair_items(columns: int) -> Tensor:
    items = normal(max(LENGTHS), len(LENGTHS), columns + 2, seed=columns)
    items[:, 5] = items[0, 5]
    items[:8, 6], items[8:, 6] = items[0, 6].clone(), items[8, 6].clone()
    return items


def pair_columns(columns: int) -> PairColumns:
    logarithms = torch.arange(columns) % 2 == 0
    scale = normal(columns, seed=1), normal(columns, seed=2)
    return PairColumns(
        *scale, logarithms, 40.0, torch.tensor(QUANTILES, dtype=torch.float64), 7, 1e-3, 1e-12, 0.02, 0.1
    )


def place_between_knots(distances: list[float]) -> list[float]:
    """Return where each lies between the quantiles of all, by the definition."""
    knots = np.quantile(distances, QUANTILES)
    median = max(1e-12, knots[7])
    for knot in range(1, 11):
        knots[knot] = max(knots[knot], knots[knot - 1] + 1e-3 * max(median, knots[knot - 1]))
    places = []
    for distance in distances:
        segment = min(9, sum(distance > knot for knot in knots[1:]))
        width = knots[segment + 1] - knots[segment]
        places.append(segment + min(1.0, max(0.0, (distance - knots[segment]) / width)))
    return places


def slow_coordinates(by: PairColumns, x: FloatArray) -> FloatArray:
    """Return (3, P) from the scaled columns (N, F) of one list."""
    logs = by.levels.double().numpy() + by.spreads.double().numpy() * x
    raw = np.where(by.are_logarithms.numpy(), np.sign(logs) * np.expm1(np.abs(logs)), logs)
    normalised = (x - x.mean(0)) / np.maximum(x.std(0), by.least_spread)
    lengths = np.linalg.norm(normalised, axis=1, keepdims=True)
    unit = normalised / np.maximum(lengths, max(1e-12, by.shortest * np.sqrt((lengths**2).mean())))
    pairs = pair_indices(len(x))
    halves = (raw, 1.0), (normalised, 1.0), (unit, 0.5)
    return np.array([place_between_knots([((v[i] - v[k]) ** 2).sum() * half for i, k in pairs]) for v, half in halves])


@pytest.mark.parametrize("columns", [1, 3, 20])
def test_coordinates_of_pairs_equal_the_definition(kernels: Kernels, columns: int) -> None:
    items, by, room = pair_items(columns), pair_columns(columns), max(LENGTHS)
    found = torch.zeros(len(LENGTHS), 3, room * (room - 1) // 2)
    kernels.pair_coordinates(by, items, torch.tensor(LENGTHS), found)
    for number, length in enumerate(LENGTHS):
        pairs = length * (length - 1) // 2
        assert (found[number][:, pairs:] == 0).all()
        if length < 2:
            continue
        expected = slow_coordinates(by, items[:length, number, :columns].double().numpy())
        np.testing.assert_allclose(found[number][:, :pairs], expected, atol=2e-3 if columns == 1 else 1e-4)
    assert (found[5] == 0).all()


def pair_weights(*, heads: int, width: int) -> PairWeights:
    knots = len(QUANTILES)
    values = normal(3, knots, seed=3), normal(3, knots, seed=4), normal(heads, seed=5), torch.tensor(0.3)
    return PairWeights(*values, width, 3.0, 1e-12)


def slow_effects(weights: PairWeights, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return (B, P) and (B, N) pair by pair."""
    n_lists, _, room, _ = pairs.places.shape
    effects, crowding = pairs.places.new_zeros(n_lists, room * (room - 1) // 2), pairs.places.new_zeros(n_lists, room)
    for b, length in enumerate(pairs.lengths.tolist()):
        for p, (i, k) in enumerate(pair_indices(length)):
            gaps = pairs.places[b, :, i] - pairs.places[b, :, k]
            effect = weights.constant + (weights.strengths * torch.exp(-3 * (gaps**2).sum(1))).sum()
            crowd = torch.zeros((), dtype=torch.float64)
            for d in range(3 if pairs.coordinates is not None else 0):
                assert pairs.coordinates is not None
                place = float(pairs.coordinates[b, d, p])
                place /= 1 if pairs.coordinates.is_floating_point() else STEPS
                low = min(int(place), len(QUANTILES) - 2)
                part = place - low
                effect = effect + (1 - part) * weights.effects[d, low] + part * weights.effects[d, low + 1]
                crowd = crowd + (1 - part) * weights.crowding[d, low] + part * weights.crowding[d, low + 1]
            effects[b, p] = effect
            for one in (i, k):
                crowding[b, one] += crowd / (length - 1)
    return effects, crowding


@pytest.mark.parametrize(("heads", "width"), [(6, 4), (1, 1), (3, 5)])
@pytest.mark.parametrize("form", ["float", "16 bits", "none"])
def test_effects_of_pairs_and_their_gradients_equal_the_definition(
    kernels: Kernels, heads: int, width: int, form: str
) -> None:
    lengths = torch.tensor([19, 1, 0, 2, 7])
    coordinates = 10 * torch.rand(5, 3, 171, generator=torch.Generator().manual_seed(6))
    coordinates[0, :, :20], coordinates[0, :, 20:40] = 0.0, 10.0
    padding = torch.arange(19) >= lengths[:, None]
    places = normal(5, heads, 19, width, seed=7).masked_fill(padding[:, None, :, None], 0.0)
    weights, pairs = pair_weights(heads=heads, width=width), Pairs(lengths, coordinates, places)
    if form != "float":
        pairs = replace(pairs, coordinates=None if form == "none" else in_16_bits(coordinates))
    names = ("effects", "crowding", "strengths", "constant")
    doubles = {name: getattr(weights, name).double().requires_grad_(True) for name in names}
    in_double = places.double().requires_grad_(True)
    expected = slow_effects(replace(weights, **doubles), replace(pairs, places=in_double))
    found = torch.zeros(5, 171), torch.zeros(5, 19)
    kernels.pair_effects_forward(weights, pairs, *found)
    for value, right in zip(found, expected, strict=True):
        close(value, right.detach())

    given = normal(5, 171, seed=8), normal(5, 19, seed=9)
    gradients = torch.autograd.grad(
        (expected[0] * given[0]).sum() + (expected[1] * given[1]).sum(),
        [*doubles.values(), in_double],
        allow_unused=True,
        materialize_grads=True,
    )
    into = PairGradients.zeros(weights, pairs)
    kernels.pair_effects_backward(weights, pairs, *given, into)
    for value, right in zip(into.tensors[:-1], gradients, strict=False):
        close(value.sum(0), right, 1e-4)
    close(into.places, gradients[-1], 1e-4)


def test_coordinates_in_16_bits_are_the_nearest_steps(kernels: Kernels) -> None:
    coordinates = torch.linspace(0, 15, 30001)
    found = in_16_bits(coordinates)
    assert found.dtype == torch.int16
    assert (found.double() / STEPS - coordinates.double()).abs().max() <= 0.5 / STEPS + 1e-9


@pytest.mark.parametrize(("lists", "items"), [(1, 1), (3, 7), (2, 33), (0, 4)])
def test_what_placed_items_add_equals_the_equation(kernels: Kernels, lists: int, items: int) -> None:
    logits, effects = normal(lists, items, seed=0), 3 * normal(lists, items * (items - 1) // 2, seed=1)
    order = torch.rand(lists, items, generator=torch.Generator().manual_seed(3)).argsort(1)[:, :6]
    slates = order.where(torch.arange(order.shape[1]) < torch.arange(4, 4 + lists)[:, None], -1).contiguous()
    added = 0.4 * mixed(logits.double()[:, :, None], square(effects.double(), items))
    expected = [added[b, slate] * (slate >= 0)[:, None] for b, slate in enumerate(slates)] or [added[:, :6]]
    found = torch.zeros(*slates.shape, items)
    kernels.placed_rows(PlacedPairs(logits, 0.4, effects), slates, found)
    close(found, torch.stack(expected).view_as(found))


@pytest.mark.parametrize(("heads", "width"), [(6, 4), (1, 1), (3, 5)])
def test_places_of_heads_and_their_gradient_equal_the_definition(kernels: Kernels, heads: int, width: int) -> None:
    lengths, weights = torch.tensor([9, 1, 0, 2, 5]), pair_weights(heads=heads, width=width)
    seen = normal(9, 5, heads * width + 1, seed=1)
    seen[:, 4, :width] = 3.0  # a head for which all items of a list are equal
    doubles = seen.double().requires_grad_(True)
    places = torch.zeros(5, heads, 9, width, dtype=torch.float64)
    for b, length in enumerate(lengths.tolist()):
        for h in range(heads if length else 0):
            x = doubles[:length, b, h * width : (h + 1) * width]
            mean_distance = ((x[:, None] - x[None]) ** 2).sum(2).mean()
            places[b, h, :length] = (x - x.mean(0)) / torch.clamp(mean_distance, min=1e-12).sqrt()
    relevance = doubles[:, :, -1].t() * (torch.arange(9) < lengths[:, None])
    found = torch.zeros(5, heads, 9, width), torch.zeros(5, 9), torch.empty(5, heads)
    kernels.places_forward(weights, lengths, seen, *found)
    close(found[0], places.detach())
    close(found[1], relevance.detach())
    given, into = (normal(5, heads, 9, width, seed=2), normal(5, 9, seed=3)), torch.zeros_like(seen)
    kernels.places_backward(weights, lengths, (found[0], found[2]), given, into)
    (gradient,) = torch.autograd.grad((places * given[0]).sum() + (relevance * given[1]).sum(), doubles)
    varied = torch.ones(5, dtype=torch.bool).index_fill(0, torch.tensor([1, 4]), False)  # elsewhere it is huge
    close(into[:, varied], gradient[:, varied], 1e-4)
    assert into.isfinite().all()
