"""A new encoder, decoder, recurrent layer, interaction or backend is one class and one line in the dict of its family.

Each test adds a small one; it then trains, ranks, is saved and opened, and every backend says whether
it can run it.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seq2slate.config import NetworkConfig, TrainingConfig
from seq2slate.data.lists import Batch, FloatArray, ItemLists
from seq2slate.data.ranker import NO_ITEM, empty_slates
from seq2slate.errors import UsageError
from seq2slate.model.backends import backend as backends
from seq2slate.model.backends.backend import (
    BACKENDS,
    NativeBackend,
    NetworkBackend,
    Placed,
    backend_class,
    choose_backend,
)
from seq2slate.model.backends.parity import compare
from seq2slate.model.decoders import DECODERS, Decoded, Decoder, Encoded, OneStep, choice_log_probabilities, items_left
from seq2slate.model.encoders import ENCODERS, Drop, Encoder, mean_of_items
from seq2slate.model.interactions import INTERACTIONS, Interaction, ScoreTerms
from seq2slate.model.layers import CELLS, LstmLayer, RecurrentLayer, State
from seq2slate.model.network import SlateNetwork
from seq2slate.model.slate_model import SlateModel
from seq2slate.options import registry_names
from seq2slate.training.objectives import Objective
from tests.checks import check_ranker, mixed_lists
from tests.reference_network import randomise, use_kernels


class DeepSets(Encoder):
    """Every item together with the mean of its list."""

    def __init__(self, n_inputs: int, config: NetworkConfig) -> None:
        super().__init__(n_inputs, config)
        self.own = nn.Linear(n_inputs, config.hidden)
        self.others = nn.Linear(n_inputs, config.hidden)
        self.cell = CELLS[config.cell]

    @classmethod
    def check_options(cls, config: NetworkConfig) -> None:
        if config.layers > 1:
            raise UsageError("deep sets have one layer")

    def forward(self, items: Tensor, mask: Tensor, drop: Drop) -> tuple[Tensor, list[State]]:
        others = self.others(mean_of_items(items, mask))
        memory: Tensor = torch.tanh(self.own(items) + others)
        return memory, [self.cell.state_from(mean_of_items(memory, mask))]


class ByKeys(Decoder):
    """Sorts the items by v^T tanh(W_enc e_i), without a recurrent state; its slates are never random."""

    def score(self, encoded: Encoded, slates: Tensor) -> Tensor:
        arguments = encoded.keys.factors.log() / 2 if encoded.keys.arguments is None else encoded.keys.arguments
        scores = torch.tanh(arguments) @ encoded.v
        there = items_left(slates, encoded.mask) & (slates >= 0)[:, :, None]
        return scores[:, None].expand_as(there).where(there, -torch.inf)

    def place(
        self, encoded: Encoded, steps: int, draws: Tensor | None, sharpness: float, positives: Tensor | None
    ) -> Decoded:
        scores = torch.tanh(encoded.keys.factors.log() / 2) @ encoded.v
        order = scores.where(encoded.mask, -torch.inf).argsort(dim=1, descending=True, stable=True)[:, :steps]
        slates = order.where(encoded.mask.gather(1, order), NO_ITEM)
        return Decoded(slates, self.score(encoded, slates))


class Crowding(Interaction):
    """A placed item takes something from every other."""

    def __init__(self, n_inputs: int, n_dense: int) -> None:
        super().__init__(n_inputs, n_dense)
        self.effect = nn.Parameter(torch.zeros(n_inputs))

    def forward(self, items: Tensor, mask: Tensor, prior: Tensor | None) -> ScoreTerms:
        closeness = torch.einsum("nbi,mbi,i->bnm", items, items, self.effect)
        return ScoreTerms(prior, closeness)


class CoupledLstm(LstmLayer):
    """An LSTM by inheritance that is none: whoever takes it for one gets other slates."""

    def _scan(
        self, x: Tensor, rows: list[int], state: State, start: Tensor | None, last: Tensor
    ) -> tuple[Tensor, State]:
        return super()._scan(-x, rows, state, None if start is None else -start, last)

    def step(self, x: Tensor, state: State) -> State:
        return super().step(-x, state)


@pytest.fixture
def lists() -> ItemLists:
    return mixed_lists(0)


def check_component(config: NetworkConfig, lists: ItemLists, folder: Path) -> SlateModel:
    """A network with the component ranks as every ranker does, opens as it was saved, and learns."""
    model = SlateModel.create(lists, config)
    randomise(model.network, 0)

    def save_load(_: object) -> SlateModel:
        model.save(folder / "model")
        return SlateModel.load(folder / "model")

    check_ranker(model, lists, save_load=save_load)
    batch = lists.batch()
    for policy in ("greedy", "sampling", "reinforce"):
        model.network.zero_grad()
        objective = Objective(TrainingConfig(policy=policy))
        surrogate, _ = objective(
            model.network.train(), model.inputs(lists), torch.from_numpy(batch.labels), torch.Generator()
        )
        surrogate.backward()  # type: ignore[no-untyped-call]
        assert model.network.w_enc.grad is not None
        assert model.network.w_enc.grad.abs().max() > 0
    model.network.eval()
    return model


def check_backends(model: SlateModel, lists: ItemLists, onnx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program for single lists and ONNX decline, and what is chosen gives the model's slates."""
    use_kernels("native", monkeypatch)
    assert backend_class("single-list").why_not(model.network) is not None
    assert backend_class("onnx").why_not(model.network) == f"there is no ONNX graph for {onnx}"
    chosen = choose_backend(model)
    assert type(chosen) is NativeBackend
    assert (chosen.rank(lists.batch()) == model.rank(lists.batch())).all()


def test_an_encoder(lists: ItemLists, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no encoder 'deep-sets'"):
        NetworkConfig(encoder="deep-sets")
    monkeypatch.setitem(ENCODERS, "deep-sets", DeepSets)
    assert "deep-sets" in registry_names("seq2slate.model.encoders:ENCODERS")
    with pytest.raises(UsageError, match="deep sets have one layer"):
        NetworkConfig(encoder="deep-sets", layers=2)
    model = check_component(NetworkConfig(hidden=8, encoder="deep-sets"), lists, tmp_path)
    check_backends(model, lists, "DeepSets", monkeypatch)


def test_a_decoder(lists: ItemLists, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DECODERS, "by-keys", ByKeys)
    model = check_component(NetworkConfig(hidden=8, decoder="by-keys"), lists, tmp_path)
    check_backends(model, lists, "ByKeys", monkeypatch)


def test_an_interaction(lists: ItemLists, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(INTERACTIONS, "crowding", Crowding)
    model = check_component(NetworkConfig(hidden=8, interaction="crowding"), lists, tmp_path)
    check_backends(model, lists, "Crowding", monkeypatch)
    reason = backend_class("single-list").why_not(model.network)
    assert reason == "the interaction 'crowding' is not written in C"


def test_a_recurrent_layer(lists: ItemLists, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CELLS, "coupled", CoupledLstm)
    model = check_component(NetworkConfig(hidden=8, cell="coupled"), lists, tmp_path)
    assert model.network.encoder.lstm is None
    assert model.network.decoder.lstm is None
    check_backends(model, lists, "CoupledLstm", monkeypatch)


def test_a_decoder_by_inheritance_is_not_taken_for_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    class WorstFirst(OneStep):
        def first_scores(self, encoded: Encoded) -> Tensor:
            return -super().first_scores(encoded).nan_to_num(neginf=0.0).where(encoded.mask, torch.inf)

    monkeypatch.setitem(DECODERS, "worst-first", WorstFirst)
    model = SlateModel.create(mixed_lists(0), NetworkConfig(hidden=4, decoder="worst-first"))
    assert backend_class("onnx").why_not(model.network) == "there is no ONNX graph for WorstFirst"


class OneByOne(NetworkBackend):
    """Runs the lists of a batch one after the other."""

    @classmethod
    def why_not(cls, network: SlateNetwork) -> str | None:
        return "no embeddings yet" if len(network.embeddings) else None

    def place(self, batch: Batch, steps: int, draws: FloatArray | None, sharpness: float) -> Placed:
        slates = empty_slates(batch.lists.lengths, steps)
        logs = np.zeros(slates.shape, np.float32)
        for number, one in enumerate(batch.lists):
            encoded = self.network.encode(SlateModel(self.transform, self.network).inputs(one))
            drawn = None if draws is None else torch.from_numpy(draws[number : number + 1])
            decoded = self.network.decoder.place(encoded, min(steps, one.n_items), drawn, sharpness, None)
            found = decoded.slates.shape[1]
            slates[number, :found] = decoded.slates[0]
            logs[number, :found] = choice_log_probabilities(decoded.scores * sharpness, decoded.slates)[0]
        return slates, logs


def test_a_backend(lists: ItemLists, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "one-by-one", f"{__name__}:OneByOne")
    model = SlateModel.create(lists, NetworkConfig(hidden=8))
    randomise(model.network, 0)
    backend = backend_class("one-by-one")(model)
    assert isinstance(backend, OneByOne)
    check_ranker(backend, lists)
    assert compare(model, backend, lengths=np.array([1, 2, 30] * 3)).near_ties < 3
    slate, logs = backend.slate(lists[5].features, 3)
    assert slate.tolist() == model.rank(lists[5].batch(), 3)[0].tolist()
    assert len(logs) == 3
    assert backend.quick_items == 0
    assert type(choose_backend(model)) is not OneByOne
    monkeypatch.setattr(backends, "BACKENDS", {"one-by-one": BACKENDS["one-by-one"]} | BACKENDS)
    assert type(choose_backend(model)) is OneByOne


def test_layers_have_a_first_state_for_encoders_without_one() -> None:
    memory = torch.tensor([[0.5, -1.0]])
    for cell in CELLS.values():
        assert issubclass(cell, RecurrentLayer)
        state = cell.state_from(memory)
        torch.testing.assert_close(state[0], torch.tanh(memory))
        assert cell(3, 2).step(torch.zeros(1, 3), state)[0].shape == (1, 2)
