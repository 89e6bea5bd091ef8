"""The click model of the interaction: its fit finds the effects that made the clicks, and is then left alone."""

import math
import os
import re
import signal
import threading
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seq2slate.config import NetworkConfig, TrainingConfig
from seq2slate.data.lists import ItemLists
from seq2slate.errors import TrainingInterruptedError, TrainingStoppedError
from seq2slate.model.interactions import ClickLikelihood, PairwiseInteraction
from seq2slate.model.network import InputLists
from seq2slate.model.slate_model import SlateModel
from seq2slate.progress import TrainingProgress
from seq2slate.reranker import Reranker
from seq2slate.training.fit import History, _Judged, _Run, advice, run_training
from seq2slate.training.objectives import ClickModelFit, LabelledInputs
from tests.test_fit import columned_lists

pytestmark = pytest.mark.filterwarnings("ignore::seq2slate.errors.DataWarning")

N_ITEMS = 8
OFFSET, QUALITY, REPELS = -0.5, 0.8, -2.0
"""The log-odds of a click: the offset, by the second column, and of each click on an item of the same group above."""
PAIRWISE = NetworkConfig(hidden=8, embedding=3, interaction="pairwise", base_prior=True)
QUICK = TrainingConfig(epochs=2, batch_size=16, learning_rate=3e-3, click_model_steps=30, checkpoint_seconds=0)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# The clicks that a slate is expected to get


def click_model_of(n_items: int, seed: int) -> ClickLikelihood:
    generator = torch.Generator().manual_seed(seed)
    appeal = torch.randn(3, n_items, generator=generator, dtype=torch.float64)
    effects = 2 * torch.randn(3, n_items * (n_items - 1) // 2, generator=generator, dtype=torch.float64)
    return ClickLikelihood(appeal, effects)


def expected_clicks(clicks: ClickLikelihood, number: int, slate: list[int]) -> float:
    """Return the sum of the probabilities, slot by slot, of one list."""
    logits: list[float] = []
    for slot, i in enumerate(slate):
        logit = float(clicks.appeal[number, i])
        for k, above in zip(slate[:slot], logits, strict=True):
            effect = float(clicks.effects[number, max(i, k) * (max(i, k) - 1) // 2 + min(i, k)])
            logit += math.log(1 - sigmoid(above) + sigmoid(above) * math.exp(effect))
        logits.append(logit)
    return sum(map(sigmoid, logits))


@pytest.mark.parametrize("slots", [0, 1, 4, 7])
def test_the_expected_clicks_of_a_slate_equal_a_plain_loop(slots: int) -> None:
    clicks = click_model_of(7, seed=1)
    slates = torch.stack(
        [torch.randperm(7, generator=torch.Generator().manual_seed(seed))[:slots] for seed in (1, 2, 3)]
    )
    slates[1, 3:] = slates[2, :] = -1  # a short list, and an empty one
    found = clicks.expected_clicks(slates)
    expected = [expected_clicks(clicks, number, [i for i in slates[number].tolist() if i >= 0]) for number in range(3)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert found[2] == 0


@pytest.mark.parametrize("slate", [[0, 1], [1, 0]])
def test_the_odds_of_two_items_are_exact_and_their_clicks_nearly(slate: list[int]) -> None:
    """Odds are mixed, not probabilities, and a probability is a concave function of the odds: never too few clicks."""
    clicks = click_model_of(2, seed=4)
    for appeal, effect, found in zip(
        clicks.appeal, clicks.effects[:, 0], clicks.expected_clicks(torch.tensor([slate] * 3)), strict=True
    ):
        first, second = float(appeal[slate[0]]), float(appeal[slate[1]])
        odds, total = 0.0, 0.0
        for on_first, on_second in product((0, 1), repeat=2):
            p_first = sigmoid(first) if on_first else 1 - sigmoid(first)
            p_second = sigmoid(second + on_first * float(effect))
            total += p_first * (p_second if on_second else 1 - p_second) * (on_first + on_second)
            odds += p_first * math.exp(second + on_first * float(effect)) / 2  # each is met twice
        assert float(found) == pytest.approx(sigmoid(first) + odds / (1 + odds))
        assert total - 1e-12 <= float(found) < total + 0.15


def test_the_penalty_is_that_of_the_gaussian_priors() -> None:
    interaction = PairwiseInteraction(5, 3)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in interaction.parameters():
            weight.normal_(generator=generator)
    expected = 0.0
    for name, precision in {"relevance": 30, "effects": 1, "crowding": 1, "head_effects": 1}.items():
        for stored in getattr(interaction, name).flatten().tolist():
            expected += precision * (30 * stored) ** 2 / 2
    assert float(interaction.penalty().detach()) == pytest.approx(expected, rel=1e-5)


# The fit


def lists_of_groups(n_lists: int, seed: int) -> ItemLists:
    """Lists of items of two groups, far apart in the first column, clicked by exactly this model.

    The groups are equally large, so that a distance quantile says whether a pair is of one group.
    """
    rng = np.random.default_rng(seed)
    groups = rng.permuted(np.tile(np.arange(N_ITEMS) % 2, (n_lists, 1)), axis=1)
    quality = rng.normal(size=(n_lists, N_ITEMS))
    labels = np.zeros((n_lists, N_ITEMS), np.float32)
    for item in range(N_ITEMS):
        labels[:, item] = rng.random(n_lists) < 1 / (1 + np.exp(-true_logits(groups, quality, labels)[:, item]))
    columns = np.stack([20.0 * groups + rng.normal(size=groups.shape), quality], axis=2)
    offsets = np.arange(n_lists + 1) * N_ITEMS
    return ItemLists(columns.reshape(-1, 2), offsets, labels=labels.ravel())


def true_logits(groups: Any, quality: Any, labels: Any) -> Any:
    """Return (Q, N) the log-odds of the clicks on items of these groups, given those above."""
    same = (groups[:, :, None] == groups[:, None]) & (np.arange(N_ITEMS)[:, None] > np.arange(N_ITEMS))
    return OFFSET + QUALITY * quality + REPELS * (same * labels[:, None]).sum(2)


def true_log_likelihood(lists: ItemLists) -> float:
    assert lists.labels is not None
    columns, labels = lists.features.reshape(-1, N_ITEMS, 2), lists.labels.reshape(-1, N_ITEMS)
    logits = true_logits(columns[:, :, 0] > 10, columns[:, :, 1], labels)
    return float(-np.log1p(np.exp(np.where(labels > 0, -logits, logits))).sum(1).mean())


def labelled(lists: ItemLists, model: SlateModel) -> LabelledInputs:
    assert lists.labels is not None
    return LabelledInputs(InputLists.of(lists, model.transform), lists.labels)


def fit_click_model(model: SlateModel, train: ItemLists, valid: ItemLists, config: TrainingConfig) -> ClickModelFit:
    fit, lists = ClickModelFit(model.network, labelled(valid, model), config), labelled(train, model)
    watch = TrainingProgress(1, "loss", "NDCG@10", 0.5, quiet=True)
    fit.run(lambda _: lists, lambda epoch: epoch, threading.Event(), watch)
    return fit


def test_the_effects_that_made_the_clicks_are_found() -> None:
    train, valid = lists_of_groups(2000, seed=1), lists_of_groups(500, seed=2)
    model = SlateModel.create(train, replace(PAIRWISE, base_prior=False))
    config = TrainingConfig(batch_size=50, learning_rate=3e-3, click_model_steps=2000)
    before = ClickModelFit(model.network, labelled(valid, model), config).mean_log_likelihood()
    after = fit_click_model(model, train, valid, config).mean_log_likelihood()
    truth = true_log_likelihood(valid)
    assert before < truth - 0.3
    assert truth - 0.05 < after < truth + 0.05

    with torch.no_grad():
        clicks = model.network.click_likelihood(InputLists.of(valid, model.transform).batch())
    groups = torch.from_numpy(valid.features.reshape(-1, N_ITEMS, 2)[:, :, 0] > 10)
    lower, upper = torch.tril_indices(N_ITEMS, N_ITEMS, -1)
    same = groups[:, lower] == groups[:, upper]
    assert float(clicks.effects[same].mean()) == pytest.approx(REPELS, abs=0.2)
    assert float(clicks.effects[~same].mean()) == pytest.approx(0.0, abs=0.2)


def test_the_weights_of_the_most_likely_epoch_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    train, valid = lists_of_groups(40, seed=1), lists_of_groups(20, seed=2)
    model, seen = SlateModel.create(train, PAIRWISE), list[dict[str, Tensor]]()
    likelihoods = iter([-5.0, -4.0, -3.0, -3.5, *[-4.0] * 60])

    def noted(_: ClickModelFit) -> float:
        seen.append(click_model_weights(model))
        return next(likelihoods)

    monkeypatch.setattr(ClickModelFit, "mean_log_likelihood", noted)
    others = {name: weight.clone() for name, weight in model.network.state_dict().items()}
    fit_click_model(model, train, valid, replace(QUICK, click_model_steps=60))
    torch.testing.assert_close(click_model_weights(model), seen[2], rtol=0, atol=0)
    assert not torch.equal(seen[2]["interaction.effects"], seen[-1]["interaction.effects"])
    assert len(seen) == 1 + 2 + 6, "5 epochs, a quarter of 20, may pass without a better one"
    for name in others.keys() - seen[0].keys():
        assert torch.equal(model.network.state_dict()[name], others[name]), name


@pytest.mark.parametrize(("n_lists", "epochs"), [(10, 60), (320, 10), (10_000, 3)])
def test_few_lists_are_passed_over_more_often(n_lists: int, epochs: int) -> None:
    train = lists_of_groups(10, seed=1)
    model = SlateModel.create(train, PAIRWISE)
    config = TrainingConfig(batch_size=32, click_model_steps=100)
    assert ClickModelFit(model.network, labelled(train, model), config).n_epochs(n_lists) == epochs


# In a run


def click_model_weights(model: SlateModel) -> dict[str, Tensor]:
    own = {id(weight) for weight in model.network.click_model_parameters()}
    named = model.network.named_parameters()
    return {name: weight.detach().clone() for name, weight in named if id(weight) in own}


def all_weights(model: SlateModel) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in model.network.state_dict().items()}


TRAIN, VALID = columned_lists(1), columned_lists(2)


def test_the_sequence_loss_leaves_the_click_model_as_it_was_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    model, run, fitted = SlateModel.create(TRAIN, PAIRWISE), ClickModelFit.run, list[dict[str, Tensor]]()
    first = all_weights(model)

    def noted(self: ClickModelFit, *arguments: Any) -> None:
        run(self, *arguments)
        fitted.append(click_model_weights(model))

    monkeypatch.setattr(ClickModelFit, "run", noted)
    values = iter([1.0, 2.0, 3.0])  # the last epoch is the best
    monkeypatch.setattr(_Run, "_judged", lambda _: _Judged(np.array([0.5]), next(values)))
    history = run_training(model, TRAIN, VALID, QUICK, quiet=True)
    assert history.best_epoch == 1
    torch.testing.assert_close(click_model_weights(model), fitted[0], rtol=0, atol=0)
    learned = {"interaction.relevance", "interaction.effects", "prior", "embeddings.0.weight"}
    assert learned | {"context_embeddings.0.weight"} <= fitted[0].keys()
    for name, weight in all_weights(model).items():
        is_learned = name in learned or name in ("v", "w_enc", "go") or name.startswith(("encoder", "decoder"))
        assert not is_learned or not torch.equal(weight, first[name]), name
    assert torch.equal(model.network.get_parameter("interaction.heads"), first["interaction.heads"])


def test_lists_without_a_click_teach_the_click_model_and_not_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = lists_of_groups(40, seed=1)
    assert lists.labels is not None
    labels = lists.labels.copy().reshape(40, N_ITEMS)
    labels[:25] = 0  # and these are never the lists of a step of the network
    lists = replace(lists, labels=labels.ravel())
    read: dict[str, set[int]] = {"click model": set(), "network": set()}
    of_click_model, of_network = ClickModelFit._step, _Run._step

    def note_click_model(self: ClickModelFit, optimiser: Any, given: Any, index: Any, *more: Any, **named: Any) -> None:
        read["click model"] |= set(index.tolist())
        of_click_model(self, optimiser, given, index, *more, **named)

    def note_network(self: _Run, inputs: Any, given: Any, index: Any) -> None:
        read["network"] |= set(index.tolist())
        of_network(self, inputs, given, index)

    monkeypatch.setattr(ClickModelFit, "_step", note_click_model)
    monkeypatch.setattr(_Run, "_step", note_network)
    run_training(SlateModel.create(lists, PAIRWISE), lists, lists_of_groups(30, seed=2), QUICK, quiet=True)
    assert read["click model"] == set(range(40))
    assert read["network"] == {number for number in range(40) if labels[number].any()}
    read["network"].clear()
    model = SlateModel.create(lists, NetworkConfig(hidden=8))
    run_training(model, lists, lists_of_groups(30, seed=2), QUICK, quiet=True)
    assert read["network"] == set(range(int(labels.any(1).sum()))), "others are not even encoded"


def test_only_weights_that_learn_count_when_gradients_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    norms, step = list[float](), torch.optim.Adam.step

    def note_norm(self: torch.optim.Adam) -> object:
        gradients = [weight.grad.flatten() for group in self.param_groups for weight in group["params"]]
        norms.append(float(torch.cat(gradients).norm()))
        return step(self)

    monkeypatch.setattr(torch.optim.Adam, "step", note_norm)
    run_training(SlateModel.create(TRAIN, PAIRWISE), TRAIN, VALID, replace(QUICK, clip_norm=1e-3), quiet=True)
    assert norms == pytest.approx([1e-3] * len(norms), rel=2e-2)


def test_a_run_that_is_killed_while_the_click_model_is_fitted_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, killed = SlateModel.create(TRAIN, PAIRWISE), SlateModel.create(TRAIN, PAIRWISE)
    history = run_training(straight, TRAIN, VALID, QUICK, quiet=True)
    step, calls = ClickModelFit._step, iter(range(100))

    def die(self: ClickModelFit, *arguments: Any, **more: Any) -> None:
        if next(calls) == 7:
            raise RuntimeError("killed")
        step(self, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(ClickModelFit, "_step", die)
        with pytest.raises(RuntimeError, match="killed"):
            run_training(killed, TRAIN, VALID, QUICK, checkpoints=tmp_path, quiet=True)
    again = SlateModel.create(TRAIN, PAIRWISE)  # as in a new process
    assert run_training(again, TRAIN, VALID, QUICK, checkpoints=tmp_path, resume=True, quiet=True) == history
    torch.testing.assert_close(all_weights(again), all_weights(straight), rtol=0, atol=0)


def test_a_run_that_is_resumed_does_not_fit_the_click_model_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, stopped = SlateModel.create(TRAIN, PAIRWISE), SlateModel.create(TRAIN, PAIRWISE)
    config = replace(QUICK, clip_norm=0.1)
    history = run_training(straight, TRAIN, VALID, config, quiet=True)
    step, calls = _Run._step, iter(range(100))

    def press_ctrl_c(self: _Run, *arguments: Any) -> None:
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        step(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(_Run, "_step", press_ctrl_c)
        with pytest.raises(TrainingStoppedError, match="--resume"):
            run_training(stopped, TRAIN, VALID, config, checkpoints=tmp_path, quiet=True)
    monkeypatch.setattr(ClickModelFit, "run", lambda *_: pytest.fail("it was fitted again"))
    again = SlateModel.create(TRAIN, PAIRWISE)
    assert run_training(again, TRAIN, VALID, config, checkpoints=tmp_path, resume=True, quiet=True) == history
    torch.testing.assert_close(all_weights(again), all_weights(straight), rtol=0, atol=0)


def test_ctrl_c_while_the_click_model_is_fitted_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = ClickModelFit._step

    def press_ctrl_c(self: ClickModelFit, *arguments: Any, **more: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        step(self, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(ClickModelFit, "_step", press_ctrl_c)
        with pytest.raises(TrainingInterruptedError, match=r"nothing is saved yet, and the same command begins anew"):
            run_training(SlateModel.create(TRAIN, PAIRWISE), TRAIN, VALID, QUICK, checkpoints=tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())
    model = SlateModel.create(TRAIN, PAIRWISE)
    run_training(model, TRAIN, VALID, QUICK, checkpoints=tmp_path, quiet=True)  # the same command, without resume


def test_a_network_without_an_interaction_has_no_click_model_to_start_with() -> None:
    config = NetworkConfig(hidden=8, base_prior=True)
    model = SlateModel.create(TRAIN, config)
    assert model.network.click_model_parameters() == []
    history = run_training(model, TRAIN, VALID, QUICK, quiet=True)
    assert history.start is None
    assert history.best_epoch >= 0
    assert "click model" not in history._repr_html_()


def test_measure_and_expected_clicks_choose_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SlateModel.create(TRAIN, PAIRWISE)
    run = _Run(model, TRAIN, VALID, QUICK, None, [], quiet=True)
    model.network.eval()
    judged = run._judged()
    encoded = model.network.encode(run.valid_inputs.batch())
    clicks = encoded.terms.clicks
    assert clicks is not None
    slates = model.network.decoder.decode(encoded, 10).slates
    base = torch.arange(slates.shape[1]).where(slates >= 0, -1)
    gained = float(clicks.expected_clicks(slates).sum() / clicks.expected_clicks(base).sum())
    assert judged.criterion == pytest.approx(np.nanmean(judged.values) / run.base + gained, rel=1e-5)


def test_the_click_model_alone_may_be_the_best(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    criteria, seen = iter([3.0, 2.0, 1.0, 2.5]), list[dict[str, Tensor]]()
    model = SlateModel.create(TRAIN, PAIRWISE)

    def judged(_: _Run) -> _Judged:
        seen.append(all_weights(model))
        criterion = next(criteria)
        return _Judged(np.array([criterion / 4]), criterion)

    monkeypatch.setattr(_Run, "_judged", judged)
    history = run_training(model, TRAIN, VALID, replace(QUICK, epochs=9, patience=3))
    assert (history.best_epoch, history.start, history.best) == (-1, 0.75, 0.75)
    assert len(history.epochs) == 3, "the click model counts as an epoch that was the best"
    torch.testing.assert_close(all_weights(model), seen[0], rtol=0, atol=0)
    said = capsys.readouterr().err
    assert re.search(r"click model: log-likelihood of a validation list -\d+\.\d{4} → -\d+\.\d{4}, epoch \d+", said)
    assert str(history).endswith(", click model alone: none of 3 epochs was better")
    assert '<th scope="row">click model (best)</th>' in history._repr_html_()


def test_advice_where_neither_click_model_nor_network_gains() -> None:
    epochs = [{"loss": 1.0, "NDCG@10": 0.3, "learning_rate": 1e-3}] * 3
    history = History(epochs, -1, "NDCG@10", base=0.5, start=0.4)
    said = advice(history, TrainingConfig(learning_rate=3e-3), 5000) or ""
    assert "slow down: no epoch was better than the click model (learning_rate=0.001" in said
    assert advice(replace(history, start=0.6), TrainingConfig(), 5000) is None
    one = history._repr_html_()
    assert one.index("base order") < one.index("click model (best)") < one.index(">1<")


def test_a_label_between_0_and_1_is_a_share_of_a_click() -> None:
    """The likelihood is linear in each label that no item stands below."""
    clicks = ClickLikelihood(torch.tensor([[0.3, -0.7, 1.1]]), torch.tensor([[0.5, -1.0, 2.0]]))
    mask = torch.ones(1, 3, dtype=torch.bool)
    none, half, whole, grade = (
        clicks.log_likelihood(torch.tensor([[1.0, 0.0, last]]), mask) for last in (0.0, 0.5, 1.0, 3.0)
    )
    torch.testing.assert_close(half, (none + whole) / 2)
    torch.testing.assert_close(grade, whole)


def test_grades_order_the_items_that_have_one() -> None:
    """Items of ids only, in random order: each id always has the same grade, and two of three are above 0."""
    order = np.concatenate([np.random.default_rng(1).permutation(3) for _ in range(300)])
    ids = np.array(["best", "good", "bad"])[order]
    lists = ItemLists(np.empty((900, 0)), np.arange(0, 901, 3), 2 - order, item_ids=ids, categorical={"item_id": ids})
    model = Reranker(seed=1).fit(lists, quiet=True)
    assert [slate.item_ids for slate in model.rerank(lists[:20])] == [["best", "good", "bad"]] * 20
