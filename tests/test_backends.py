"""One battery for all backends: every option of the network on odd lists, greedy and sampled, against float64.

What a backend gives is right if every greedy choice was the best one, every sampled choice the one that its draw falls
on, and every log-probability that of the choice, all by the slow reference in float64. Where two scores are nearly
equal either item may be first. Lists of 1,000 items are judged by the network itself in float64, which `test_network`
compares with the reference.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from seq2slate.data.lists import FloatArray, IntArray, ItemLists, offsets_from_lengths
from seq2slate.errors import DataError, UsageError
from seq2slate.model.backends import backend as backends
from seq2slate.model.backends.backend import BACKENDS, NetworkBackend, TorchBackend, backend_class, choose_backend
from seq2slate.model.backends.kernels import KERNELS, kernels_for, only_kernels
from seq2slate.model.backends.native import NativeKernels
from seq2slate.model.backends.parity import compare
from seq2slate.model.backends.single_list import SingleListBackend
from seq2slate.model.decoders import Encoded
from seq2slate.model.network import SlateNetwork
from seq2slate.model.slate_model import SlateModel
from tests import reference_network as slow
from tests.reference_network import VARIANTS, use_kernels
from tests.served_models import columns_of, lists_for, model_for

WAYS = (*BACKENDS, "native, step by step")
"""Every backend, and the C kernels without a BLAS, which then run step by step."""
LENGTHS = (1, 6, 0, 2, 12, 8, 1000)
EQUAL, DUPLICATES, LONG = 1, 5, 6
"""The numbers of the lists in which all rows are equal, in which each row stands twice, and of the long one."""
IN_C = ("single-list", "native", "native, step by step")
TOLERANCE = 1e-4
ENCODER, DECODER = "the encoder is not one LSTM layer that reads forwards", "the decoder is not one LSTM layer"
NOT_ONE_LIST = {
    "one-step": DECODER,
    "pairwise, one-step": DECODER,
    "gru": ENCODER,
    "bidirectional": ENCODER,
    "stacked": ENCODER,
    "reversed input": ENCODER,
    "attention": ENCODER,
    "attention, positions, one-step": ENCODER,
    "everything, attention, gru": ENCODER,
    "everything": ENCODER,
    "everything, gru, one-step": ENCODER,
}
"""What one call to C cannot run, and why."""
MISSING = ", missing values"
"""The end of the name of a variant whose lists have missing numbers, in training and later."""


class Case(NamedTuple):
    model: SlateModel
    odd: ItemLists
    """A mixed batch: no item, one item, all rows equal, every row twice, and ordinary lists."""
    long: ItemLists
    """One list of 1,000 items."""


@cache
def case(variant: str) -> Case:
    network = variant.removesuffix(MISSING)
    plain = lists_for(network, seed=3, lengths=LENGTHS)
    if network != variant:
        plain = with_missing(plain)
    rows, offsets = np.arange(plain.n_items), offsets_from_lengths(np.array(LENGTHS))
    rows[offsets[EQUAL] : offsets[EQUAL + 1]] = offsets[EQUAL]
    half = LENGTHS[DUPLICATES] // 2
    rows[offsets[DUPLICATES] + half : offsets[DUPLICATES + 1]] -= half
    lists = ItemLists(
        plain.features[rows],
        offsets,
        categorical={name: column.take(pa.array(rows)) for name, column in plain.categorical.items()},
        context=plain.context,
    )
    return Case(model_for(network, lists), lists[np.arange(LONG)], lists[LONG])


def with_missing(lists: ItemLists) -> ItemLists:
    """Return lists with missing numbers: all of the only item of list 0, and none in list 4."""
    rng = np.random.default_rng(5)
    missing = rng.random(lists.features.shape) < 0.3
    missing[: lists.offsets[1]] = True
    missing[lists.offsets[4] : lists.offsets[5]] = False
    some_lists = np.arange(len(lists)) % 3 == 0
    context = {
        name: np.where(some_lists, np.nan, values) if isinstance(values, np.ndarray) else values
        for name, values in lists.context.items()
    }
    return replace(lists, features=np.where(missing, np.nan, lists.features), context=context)


# Float64


@cache
@torch.no_grad()
def reference_scores(variant: str, number: int, placed: tuple[int, ...]) -> dict[int, float]:
    """Return the scores of what is left of an odd list, by the reference."""
    reference, memories = reference_of(variant)
    return {item: score.item() for item, score in reference.next_scores(memories[number], placed).items()}


@cache
@torch.no_grad()
def reference_of(variant: str) -> tuple[slow.ReferenceNetwork, list[slow.Memory]]:
    model, odd, _ = case(variant)
    reference, inputs = slow.ReferenceNetwork(model.network), model.inputs(odd)
    return reference, [reference.encode(slow.one_list(inputs, number)) for number in range(len(odd))]


@cache
@torch.no_grad()
def long_list_in_double(variant: str) -> tuple[SlateNetwork, Encoded]:
    model, _, long = case(variant)
    network = copy.deepcopy(model.network).double()
    return network, network.encode(model.inputs(long).double())


def odd_scores(variant: str, number: int, slate: Sequence[int]) -> list[dict[int, float]]:
    return [reference_scores(variant, number, tuple(slate[:step])) for step in range(len(slate))]


@torch.no_grad()
def long_scores(variant: str, slate: Sequence[int]) -> list[dict[int, float]]:
    network, encoded = long_list_in_double(variant)
    scores = network.decoder.score(encoded, torch.tensor([list(slate)]))[0]
    return [{item: row[item] for item in range(len(row)) if row[item] > -math.inf} for row in scores.tolist()]


def check(
    scores: list[dict[int, float]],
    slate: IntArray,
    logs: FloatArray,
    draws: Tensor | None = None,
    temperature: float = 1.0,
) -> None:
    """Fail unless every choice of a slate follows from the scores in float64, and has their log-probability."""
    for step, of_step in enumerate(scores):
        choice = int(slate[step])
        sharp = {item: score / temperature for item, score in of_step.items()}
        top = max(sharp.values())
        weights = {item: math.exp(score - top) for item, score in sorted(sharp.items())}
        total = sum(weights.values())
        assert choice in weights, f"step {step}: item {choice} is not left"
        assert logs[step] == pytest.approx(sharp[choice] - top - math.log(total), abs=TOLERANCE), f"step {step}"
        if draws is None:
            assert sharp[choice] >= top - TOLERANCE, f"step {step}: item {choice} is not the best"
        else:
            before = sum(weight for item, weight in weights.items() if item < choice) / total
            draw = float(draws[step])
            assert before - TOLERANCE <= draw <= before + weights[choice] / total + TOLERANCE, f"step {step}"


# The battery


RUNS = [(way, variant) for variant in VARIANTS for way in WAYS if way != "single-list" or variant not in NOT_ONE_LIST]
"""Every backend with every option that it can run."""
every_backend = pytest.mark.parametrize(("way", "variant"), RUNS)
every_backend_and_missing_values = pytest.mark.parametrize(
    ("way", "variant"), [*RUNS, *((way, variant + MISSING) for way, variant in RUNS)]
)


@pytest.fixture
def backend(way: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> NetworkBackend:
    return opened(way, variant, monkeypatch)


def opened(way: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> NetworkBackend:
    """Return the model of a variant in a backend, which has to say that it can run it."""
    if way in IN_C:
        use_kernels(way if "step" in way else "native", monkeypatch)
    cls = backend_class(way.partition(",")[0])
    assert cls.why_not(case(variant).model.network) is None
    return cls(case(variant).model)


@pytest.mark.parametrize("k", [None, 3])
@every_backend_and_missing_values
def test_greedy_slates_of_a_mixed_batch_are_those_of_float64(
    backend: NetworkBackend, variant: str, k: int | None
) -> None:
    odd = case(variant).odd
    slates, logs = backend.slates(odd.batch(), k)
    width = min(k or 12, 12)
    assert slates.shape == logs.shape == (len(odd), width)
    assert slates.dtype == np.int64
    assert logs.dtype == np.float32
    for number, length in enumerate(odd.lengths.tolist()):
        n_placed = min(length, width)
        assert (slates[number, n_placed:] == -1).all()
        assert (logs[number, n_placed:] == 0).all()
        placed = slates[number, :n_placed].tolist()
        check(odd_scores(variant, number, placed), slates[number], logs[number])


@every_backend_and_missing_values
def test_a_single_list_from_raw_columns_gets_the_slate_of_float64(backend: NetworkBackend, variant: str) -> None:
    for number, one in enumerate(case(variant).odd):
        slate, logs = backend.slate(one.features, 7, **columns_of(one))
        assert slate.shape == logs.shape == (min(7, one.n_items),)
        check(odd_scores(variant, number, slate.tolist()), slate, logs)


@every_backend
def test_the_best_of_1000_items_are_those_of_float64(backend: NetworkBackend, variant: str) -> None:
    long = case(variant).long
    slates, logs = backend.slates(long.batch(), 10)
    check(long_scores(variant, slates[0].tolist()), slates[0], logs[0])


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@every_backend
def test_sampled_slates_are_those_of_the_same_draws_in_float64(
    backend: NetworkBackend, variant: str, temperature: float
) -> None:
    odd, long = case(variant).odd, case(variant).long
    generator = torch.Generator().manual_seed(5)
    if not backend.samples:
        with pytest.raises(UsageError, match="OnnxBackend takes the best items only"):
            backend.slates(odd.batch(), generator=generator)
        return
    slates, logs = backend.slates(odd.batch(), 9, generator=generator, temperature=temperature)
    draws = torch.rand(len(odd), 9, generator=torch.Generator().manual_seed(5))
    for number, length in enumerate(odd.lengths.tolist()):
        placed = slates[number, : min(length, 9)].tolist()
        check(odd_scores(variant, number, placed), slates[number], logs[number], draws[number], temperature)
    slate, log = backend.slate(
        long.features, 5, **columns_of(long), generator=torch.Generator().manual_seed(6), temperature=temperature
    )
    draws = torch.rand(1, 5, generator=torch.Generator().manual_seed(6))
    check(long_scores(variant, slate.tolist()), slate, log, draws[0], temperature)


@every_backend
def test_step_probabilities_are_those_of_float64(backend: NetworkBackend, variant: str) -> None:
    one = case(variant).odd[4]
    slate = list(range(one.n_items))[::-1]
    found = backend.step_probabilities(one.features, slate, **columns_of(one), temperature=2.0)
    for step, of_step in enumerate(odd_scores(variant, 4, slate)):
        total = sum(math.exp(score / 2) for score in of_step.values())
        expected = [math.exp(of_step[item] / 2) / total if item in of_step else 0.0 for item in range(one.n_items)]
        np.testing.assert_allclose(found[step], expected, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "variant", ["paper", "pairwise and prior", "embeddings and context", f"pairwise and prior{MISSING}"]
)
def test_random_lists_with_duplicates_and_outliers_have_the_network_s_slates(
    backend: NetworkBackend, variant: str
) -> None:
    parity = compare(case(variant).model, backend, lengths=np.array([1, 2, 3, 20, 30, 120] * 5))
    assert parity.n_lists == 30
    assert parity.largest_gap < TOLERANCE


def test_the_battery_notices_another_network() -> None:
    """So that the tests above say something."""
    other = TorchBackend(model_for("paper", case("paper").odd, seed=1))
    slates, logs = other.slates(case("paper").odd.batch())
    with pytest.raises(AssertionError):
        check(odd_scores("paper", 4, slates[4].tolist()), slates[4], logs[4])
    right = TorchBackend(case("paper").model)
    slates, logs = right.slates(case("paper").odd.batch())
    with pytest.raises(AssertionError, match="step 3"):
        check(odd_scores("paper", 4, slates[4].tolist()), slates[4], logs[4] + 1e-3 * (np.arange(12) == 3))
    worse = slates[4][[0, 2, 1, *range(3, 12)]]
    scores = odd_scores("paper", 4, worse.tolist())
    exact = [
        of_step[item] - math.log(sum(map(math.exp, of_step.values())))
        for of_step, item in zip(scores, worse.tolist(), strict=True)
    ]
    with pytest.raises(AssertionError, match=r"step 1: .* not the best"):
        check(scores, worse, np.array(exact, np.float32))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("variant", ["paper", "pairwise and prior", "embeddings and context"])
def test_missing_values_are_refused_by_name_when_asked(way: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, lists = case(variant).odd, case(variant + MISSING).odd
    model = SlateModel.create(trained, VARIANTS[variant][1], missing="refuse")
    monkeypatch.setattr(f"{__name__}.case", lambda _: Case(model, trained, trained))
    backend, one = opened(way, variant, monkeypatch), replace(trained[5], features=lists[5].features)
    item, column = np.argwhere(np.isnan(one.features))[0]
    said = f"item {item}: {one.feature_names[column]!r} is nan; missing values are refused"
    with pytest.raises(DataError, match=said):
        backend.slate(one.features, **columns_of(one))
    with pytest.raises(DataError, match=f"list '5', {said}"):
        backend.slates(one.batch())


@pytest.mark.parametrize("way", WAYS)
def test_infinite_values_are_always_refused_by_name(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features = case("paper" + MISSING).odd[4].features.copy()
    features[0, 0], features[3, 1] = np.nan, -np.inf
    with pytest.raises(DataError, match="item 3: 'f2' is -inf; every number must be finite"):
        opened(way, "paper" + MISSING, monkeypatch).slate(features)


# What a backend cannot run, and which is chosen


def test_every_option_of_the_network_is_in_the_battery() -> None:
    for name in ("encoder", "layers", "cell", "bidirectional", "reversed_input", "heads", "position_embedding"):
        assert len({getattr(config, name) for _, config in VARIANTS.values()}) > 1, name
    for name in ("decoder", "base_prior", "interaction", "position_input"):
        assert len({getattr(config, name) for _, config in VARIANTS.values()}) > 1, name
    assert set(NOT_ONE_LIST) < set(VARIANTS)


@pytest.mark.parametrize(("variant", "reason"), NOT_ONE_LIST.items())
def test_one_call_to_c_says_which_part_it_cannot_run(
    variant: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_kernels("native", monkeypatch)
    found = SingleListBackend.why_not(case(variant).model.network)
    assert found is not None
    assert found.startswith(reason)


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("native", "float64", "the C kernels compute in float32, and the network in float64"),
        ("native", "meta", "the C kernels run on the CPU, and the network is on meta"),
        ("single-list", "float64", "the C kernels compute in float32, and the network in float64"),
        ("onnx", "float64", "the ONNX graph is in float32, and the network in float64"),
        ("torch", "float64", None),
    ],
)
def test_a_backend_says_which_kind_of_numbers_it_cannot_run(
    name: str, kind: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in IN_C:
        use_kernels("native", monkeypatch)
    network = slow.random_network(*VARIANTS["paper"], seed=0)
    network = network.double() if kind == "float64" else network.to(kind)
    assert backend_class(name).why_not(network) == reason


def test_a_backend_says_what_the_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    network = case("paper").model.network
    use_kernels("native, step by step", monkeypatch)
    assert backend_class("single-list").why_not(network) == "there is no BLAS that C could call"
    assert backend_class("native").why_not(network) is None
    monkeypatch.setattr(backends, "KERNELS", {"torch": KERNELS["torch"]})
    for name in ("native", "single-list"):
        assert "no working C compiler, or SEQ2SLATE_NATIVE is 0" in str(backend_class(name).why_not(network))


@pytest.mark.parametrize(
    ("variant", "kernels", "chosen"),
    [
        ("paper", "native", "single-list"),
        ("pairwise and prior", "native", "single-list"),
        ("one-step", "native", "native"),
        ("attention", "native", "native"),
        ("paper", "native, step by step", "native"),
        ("paper", "torch", "torch"),
    ],
)
def test_the_fastest_backend_that_can_run_a_model_is_chosen(
    variant: str, kernels: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_kernels(kernels, monkeypatch)
    assert type(choose_backend(case(variant).model)) is backend_class(chosen)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(UsageError, match="no backend 'abacus'; choose one of single-list, native, torch, onnx"):
        backend_class("abacus")


def test_a_backend_runs_the_kernels_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels("native", monkeypatch)
    for name in ("lstm_forward", "lstm_encode", "lstm_decode", "pointer_factors", "pointer_step", "expected_logits"):
        monkeypatch.setattr(NativeKernels, name, lambda *_: pytest.fail("C was called"))
    for variant in ("paper", "pairwise and prior", "stacked"):
        TorchBackend(case(variant).model).slates(case(variant).odd.batch())
    with only_kernels("torch"):
        assert kernels_for(torch.zeros(1)) is KERNELS["torch"]
    assert kernels_for(torch.zeros(1)) is KERNELS["native"]
