"""The model as its users meet it: a ranker that gives ids, and a folder that opens to the same model."""

import json
import os
import pickle
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from seq2slate.config import NetworkConfig
from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import Ranker, rank_lists
from seq2slate.errors import DataError
from seq2slate.estimator import load
from seq2slate.model.slate_model import KIND, SlateModel
from seq2slate.saving import FORMAT, load_saved, write_manifest
from tests.checks import check_ranker, mixed_lists
from tests.reference_network import KERNELS, VARIANTS, randomise, use_kernels
from tests.served_models import reranker_of


def lists_with_columns(seed: int = 0) -> ItemLists:
    plain = mixed_lists(seed)
    rng = np.random.default_rng(seed)
    return ItemLists(
        plain.features,
        plain.offsets,
        labels=plain.labels,
        list_ids=plain.list_ids,
        item_ids=[f"item {row}" for row in range(plain.n_items)],
        categorical={"colour": rng.choice(["red", "green", "blue"], plain.n_items)},
        context={"hour": rng.normal(size=len(plain)), "city": rng.choice(["Rome", "Oslo"], len(plain))},
    )


def model_of(lists: ItemLists, config: NetworkConfig | None = None, seed: int = 0) -> SlateModel:
    """Return a model whose weights are large enough that items differ."""
    model = SlateModel.create(lists, NetworkConfig(hidden=8) if config is None else config)
    randomise(model.network, seed)
    return model


@pytest.mark.parametrize(
    ("variant", "kernels"),
    [(variant, "native") for variant in VARIANTS] + [("paper", name) for name in KERNELS if name != "native"],
)
def test_battery(variant: str, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(kernels, monkeypatch)

    def save_load(ranker: Ranker) -> Ranker:
        assert isinstance(ranker, SlateModel)
        ranker.save(tmp_path / "model")
        return SlateModel.from_saved(load_saved(tmp_path / "model"))

    lists = lists_with_columns()
    check_ranker(model_of(lists, VARIANTS[variant][1]), lists, save_load=save_load)


# Ids


def test_rerank_gives_the_ids_of_the_slates_in_the_order_of_the_lists() -> None:
    lists = lists_with_columns()
    model = model_of(lists)
    slates = model.rank(lists.batch(), 4)
    for batch_size in (1, 3, 256):
        for number, slate in enumerate(reranker_of(model).rerank(lists, 4, batch_size=batch_size)):
            items, chosen = lists[number].item_ids.to_pylist(), slates[number][slates[number] >= 0]
            assert slate.list_id == lists.list_ids[number].as_py()
            assert slate.item_ids == [items[item] for item in chosen]
            logs = model.log_prob(lists[number], chosen[None])[0]
            assert slate.log_probabilities == pytest.approx(logs.tolist(), abs=1e-5)


def test_sampled_slates_repeat_with_their_seed() -> None:
    lists = lists_with_columns()
    model = model_of(lists)
    first, again, other = (
        [slate.item_ids for slate in reranker_of(model).rerank(lists, sample_seed=seed)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert [sorted(ids) for ids in first] == [sorted(one.item_ids.to_pylist()) for one in lists]
    cold = [slate.item_ids for slate in reranker_of(model).rerank(lists, sample_seed=1, temperature=1e-6)]
    assert cold == [slate.item_ids for slate in reranker_of(model).rerank(lists)]


def test_log_prob_is_that_of_the_decoded_slates() -> None:
    lists = lists_with_columns()
    model = model_of(lists)
    decoded = model.decode(lists, 5)
    logs = model.log_prob(lists, decoded.slates.numpy())
    torch.testing.assert_close(logs, decoded.log_probabilities, rtol=1e-4, atol=1e-5)
    assert not logs.requires_grad


def test_ranking_in_batches_is_ranking_at_once() -> None:
    lists = lists_with_columns()
    model = model_of(lists)
    np.testing.assert_array_equal(rank_lists(model, lists, batch_size=2), model.rank(lists.batch()))


# Creating


def test_the_seed_decides_the_weights() -> None:
    lists = lists_with_columns()
    config = NetworkConfig(hidden=4)
    first, again, other = (SlateModel.create(lists, config, seed=seed).network.w_enc for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_columns_may_be_chosen_by_name() -> None:
    lists = lists_with_columns()
    model = SlateModel.create(lists, NetworkConfig(hidden=4), categorical=[], context=["hour"])
    assert asdict(model.network.sizes) == {"dense": 4, "categorical": {}, "context": 1, "context_categorical": {}}


def test_dropout_is_for_training_alone() -> None:
    lists = lists_with_columns()
    model = model_of(lists, NetworkConfig(hidden=8, dropout=0.9))
    assert not model.network.training
    scores = model.decode(lists).scores
    assert torch.equal(scores, model.decode(lists).scores)
    model.network.train()
    assert not torch.equal(scores, model.decode(lists).scores)
    assert not SlateModel(model.transform, model.network).network.training


def test_other_columns_are_refused_by_name() -> None:
    lists = lists_with_columns()
    with pytest.raises(DataError, match="hour"):
        model_of(lists).rank(mixed_lists(0).batch())


# Saving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model_of(lists_with_columns()).save(tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_model_is_the_same_to_the_last_bit(folder: Path) -> None:
    lists = lists_with_columns()
    model, opened = model_of(lists), SlateModel.from_saved(load_saved(folder))
    assert opened.network.config == model.network.config
    for (name, weight), (other, found) in zip(
        model.network.state_dict().items(), opened.network.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(weight, found)
    assert torch.equal(model.decode(lists).scores, opened.decode(lists).scores)
    assert not opened.network.training


def test_the_folder_has_no_pickle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(os.listdir(folder)) == ["config.json", "features.json", "manifest.json", "weights.safetensors"]
    assert load_saved(folder).kind == KIND

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("something was unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    SlateModel.from_saved(load_saved(folder)).rank(lists_with_columns().batch())


def test_a_newer_folder_is_refused_with_its_version(folder: Path) -> None:
    head = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(head | {"format": FORMAT + 1}))
    write_manifest(folder, ["config.json", "features.json", "weights.safetensors"])
    with pytest.raises(DataError, match=f"format {FORMAT + 1}.*reads {FORMAT}: update seq2slate"):
        load_saved(folder)


def test_files_that_do_not_belong_together_are_refused(folder: Path) -> None:
    saved = load_saved(folder)
    network = saved.config["network"]
    for damaged in (
        replace(saved, weights=saved.weights | {"w_enc": saved.weights["w_enc"][1:]}),
        replace(saved, weights={name: array for name, array in saved.weights.items() if name != "go"}),
        replace(saved, config={}),
        replace(saved, config={"network": network | {"hidden": "many"}}),
        replace(saved, config={"network": network | {"from_the_future": 1}}),
    ):
        with pytest.raises(DataError, match="do not belong together"):
            SlateModel.from_saved(damaged)


@pytest.mark.parametrize("options", [{}, {"interaction": "similarity"}])
def test_a_model_of_an_interaction_that_is_gone_is_refused_with_what_to_do(
    folder: Path, options: dict[str, str]
) -> None:
    saved = load_saved(folder)
    network = saved.config["network"] | {"interaction": "similarity"}
    replace(saved, config={"network": network, "options": options}).save(folder)
    said = (
        f"^{folder}: there is no interaction 'similarity'; choose one of none, pairwise: "
        "train this model again, or open it with the version that wrote it$"
    )
    with pytest.raises(DataError, match=said):
        load(folder)


def test_weights_that_are_not_numbers_are_not_served(tmp_path: Path) -> None:
    model = model_of(lists_with_columns())
    with torch.no_grad():
        model.network.w_enc[0, 0] = torch.nan
    model.save(tmp_path / "model")
    with pytest.raises(DataError, match="'w_enc' of this model are not all finite"):
        SlateModel.from_saved(load_saved(tmp_path / "model"))
