"""The base order as a candidate: what is gained decides how much of a trained network counts; and budgets in steps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seq2slate import load
from seq2slate.config import TrainingConfig
from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import base_slates
from seq2slate.model.backends.backend import choose_backend
from seq2slate.model.slate_model import SlateModel
from seq2slate.reranker import Reranker
from seq2slate.training import fit
from seq2slate.training.fit import History, advice, run_training
from tests.test_fit import QUICK, SMALL, TRAIN, VALID

N_ITEMS = 8


def lists_with_clicks(n_lists: int, seed: int, *, by_first_column: bool) -> ItemLists:
    """Lists with clicks at random positions, or on the item with the largest first number."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_lists * N_ITEMS, 4))
    of_lists = features[:, 0].reshape(n_lists, N_ITEMS)
    clicked = of_lists.argmax(axis=1) if by_first_column else rng.integers(N_ITEMS, size=n_lists)
    labels = np.zeros((n_lists, N_ITEMS), np.float32)
    labels[np.arange(n_lists), clicked] = 1
    return ItemLists(features, np.arange(n_lists + 1) * N_ITEMS, labels=labels.ravel())


@pytest.mark.filterwarnings("ignore::seq2slate.errors.DataWarning")
def test_where_nothing_can_be_learned_the_model_is_the_base_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, valid, test = (lists_with_clicks(200, seed, by_first_column=False) for seed in (1, 2, 3))
    model = Reranker(hidden=8).fit(train, valid)
    assert model.history_.strength == 0
    assert "the model is the base order: nothing was gained on the validation lists" in capsys.readouterr().err
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert isinstance(again, Reranker)
    batch = test.batch()
    np.testing.assert_array_equal(again.rank(batch, 5), base_slates(batch.mask)[:, :5])
    placed, _ = choose_backend(again.model_).slate(test[0].features, 5)
    np.testing.assert_array_equal(placed, np.arange(5))


@pytest.mark.filterwarnings("ignore::seq2slate.errors.DataWarning")
def test_where_much_is_gained_the_network_counts() -> None:
    train, valid = (lists_with_clicks(300, seed, by_first_column=True) for seed in (1, 2))
    model = Reranker(hidden=8).fit(train, valid, quiet=True)
    assert model.history_.strength > 0
    assert model.history_.chosen > model.history_.base + 0.2


@pytest.mark.parametrize(
    ("gains", "criteria", "chosen"),
    [
        ((0.1, 0.1, 0.1, 0.1), (1, 4, 3, 2), 0.75),
        ((0.1, 0.1, 0.1, 0.1), (2, 1, 1, 2), 1.0),
        ((-0.1, -0.1, 0.1, 0.2), (9, 9, 2, 1), 0.5),
        ((-0.1, -0.1, -0.1, -0.1), (1, 2, 3, 4), 0.0),
        ((0.0, 0.0, 0.0, 0.0), (1, 2, 3, 4), 0.0),
    ],
    ids=["the best", "the largest of equals", "only with a gain", "losses", "no gain"],
)
def test_the_best_strength_with_a_gain_is_taken(
    gains: tuple[float, ...], criteria: tuple[float, ...], chosen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    strengths = (1.0, 0.75, 0.5, 0.25)
    gain_of, criterion_of = dict(zip(strengths, gains, strict=True)), dict(zip(strengths, criteria, strict=True))

    def judged(run: fit._Run) -> fit._Judged:
        strength = float(run.network.strength)
        return fit._Judged(run.of_base_order + gain_of[strength], criterion_of[strength])

    monkeypatch.setattr(fit._Run, "_judged", judged)
    model = SlateModel.create(TRAIN, SMALL)
    history = run_training(model, TRAIN, VALID, replace(QUICK, falls_back=True), quiet=True)
    assert history.strength == float(model.network.strength) == chosen
    assert history.chosen == pytest.approx(history.base + gain_of.get(chosen, 0.0))


def test_a_gain_that_may_be_chance_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(run: fit._Run) -> fit._Judged:
        values = run.of_base_order.copy()
        values[np.flatnonzero(~np.isnan(values))[:1]] += 0.5  # one list of all
        return fit._Judged(values, 1.0)

    monkeypatch.setattr(fit._Run, "_judged", judged)
    model = SlateModel.create(TRAIN, SMALL)
    history = run_training(model, TRAIN, VALID, replace(QUICK, falls_back=True), quiet=True)
    assert history.best > history.base
    assert (history.strength, history.chosen) == (0.0, history.base)


def test_a_model_between_the_two_says_so() -> None:
    epochs = [{"loss": 1.0, "NDCG@10": 0.5, "learning_rate": 1e-3}]
    mixed = History(epochs, 0, "NDCG@10", base=0.4, strength=0.5, chosen=0.45)
    assert str(mixed).endswith("0.4000 → 0.4500 (+12.5%), epoch 1 of 1, mixed with the base order (strength 0.5)")
    assert advice(mixed, TrainingConfig(), 5000) is None
    fallen_back = replace(mixed, strength=0.0, chosen=0.4)
    assert "the model is the base order" in (advice(fallen_back, TrainingConfig(), 5000) or "")


@pytest.mark.parametrize(
    ("n_lists", "steps", "epochs", "expected"),
    [(320, None, 7, 7), (320, 100, 40, 10), (32, 100, 40, 40), (32_000, 100, 40, 3), (320, 95, 40, 10)],
)
def test_few_lists_are_passed_over_more_often(n_lists: int, steps: int | None, epochs: int, expected: int) -> None:
    config = TrainingConfig(epochs=epochs, steps=steps, batch_size=32)
    assert fit._n_epochs(config, n_lists) == expected
