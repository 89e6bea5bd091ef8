"""Training: it learns, stops, resumes to the same weights, and says what is wrong."""

import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from seq2slate.config import PRESETS, NetworkConfig, Policy, TrainingConfig, configure
from seq2slate.data.lists import ItemLists
from seq2slate.data.tables import from_table
from seq2slate.errors import DataError, TrainingStoppedError, UsageError
from seq2slate.model.slate_model import SlateModel
from seq2slate.reranker import Reranker
from seq2slate.training.fit import _Judged, _Run, run_training
from seq2slate.training.objectives import Objective

pytestmark = pytest.mark.filterwarnings("ignore::seq2slate.errors.DataWarning")  # odd labels, and leaks to be learned

SMALL = NetworkConfig(hidden=16)
QUICK = TrainingConfig(epochs=3, batch_size=16, learning_rate=3e-3, checkpoint_seconds=0)


def clicked_lists(n_lists: int, seed: int = 0) -> ItemLists:
    """Lists in which the item with the largest second feature is clicked; the base order knows nothing."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 9, n_lists)
    features = rng.normal(size=(lengths.sum(), 4))
    lists = ItemLists(features, np.concatenate([[0], lengths.cumsum()]))
    labels = np.concatenate([one.features[:, 1] == one.features[:, 1].max(initial=-9) for one in lists])
    return replace(lists, labels=labels.astype(np.float32))


TRAIN, VALID = clicked_lists(160, seed=1), clicked_lists(60, seed=2)


def weights(model: SlateModel) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in model.network.state_dict().items()}


@pytest.mark.parametrize("policy", ["sampling", "greedy", "reinforce"])
@pytest.mark.parametrize("decoder", ["sequential", "one-step"])
def test_every_policy_learns_what_is_clicked(policy: Policy, decoder: str) -> None:
    config = TrainingConfig(
        policy=policy, credit="reward-to-go", epochs=12, batch_size=16, learning_rate=1e-2, l2=0, patience=12
    )
    model = SlateModel.create(TRAIN, replace(SMALL, decoder=decoder, dropout=0))
    history = run_training(model, TRAIN, VALID, config, quiet=True)
    assert history.best > 0.9
    assert len(history.epochs) == 12


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_that_a_number_is_missing_can_be_learned_from(preset: str) -> None:
    train, valid = ((with_missing(clicked_lists(n_lists, seed), seed)) for n_lists, seed in ((300, 3), (80, 4)))
    options: dict[str, Any] = {
        "hidden": 16,
        "dropout": 0,
        "epochs": 12,
        "batch_size": 16,
        "learning_rate": 1e-2,
        "l2": 0,
    }
    ranker = Reranker(preset, **options).fit(train, valid, quiet=True)
    assert ranker.transform_.dense.indicators == ("f1", "f3")
    assert ranker.history_.best > 0.95
    with pytest.raises(DataError, match=r"'f[13]' is nan; missing values are refused"):
        Reranker(preset, missing="refuse", **options).fit(train, valid, quiet=True)


def with_missing(lists: ItemLists, seed: int) -> ItemLists:
    """Return lists in which an item is clicked if its third number is missing, which is the same for all others."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=lists.features.shape).astype(np.float32)
    clicked = rng.random(lists.n_items) < 0.3
    features[:, 2] = np.where(clicked, np.nan, 1)
    features[rng.random(lists.n_items) < 0.3, 0] = np.nan
    return replace(lists, features=features, labels=clicked.astype(np.float32))


@pytest.mark.parametrize("loss", ["hinge", "smooth-hinge", "list-net", "pairwise-logistic", "approximate-ndcg"])
def test_every_loss_learns_what_is_clicked(loss: str) -> None:
    config = TrainingConfig(policy="greedy", loss=loss, epochs=12, batch_size=16, learning_rate=1e-2, patience=12)
    model = SlateModel.create(TRAIN, replace(SMALL, dropout=0))
    assert run_training(model, TRAIN, VALID, config, quiet=True).best > 0.85


def test_the_same_seed_gives_the_same_weights_and_another_does_not() -> None:
    runs = []
    for seed in (4, 4, 5):
        model = SlateModel.create(TRAIN, SMALL, seed=1)
        run_training(model, TRAIN, VALID, replace(QUICK, seed=seed), quiet=True)
        runs.append(weights(model))
    assert runs[0] == runs[1] != runs[2]


def test_the_best_epoch_is_kept_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([0.5, 0.9, 0.1, 0.2, 0.3])
    kept: list[dict[str, list[float]]] = []
    model = SlateModel.create(TRAIN, SMALL)

    def judged(run: object) -> _Judged:
        kept.append(weights(model))
        value = next(values)
        return _Judged(np.array([value]), criterion=value)

    monkeypatch.setattr(_Run, "_judged", judged)
    history = run_training(model, TRAIN, VALID, replace(QUICK, epochs=5, patience=2), quiet=True)
    assert (history.best_epoch, history.best) == (1, 0.9)
    assert len(history.epochs) == 4, "two epochs without a better one end the run"
    assert weights(model) == kept[1] != kept[3]


@pytest.mark.parametrize(
    ("network", "config"),
    [
        (SMALL, QUICK),
        (SMALL, replace(QUICK, averaging=0.9)),
        (replace(SMALL, encoder="attention", position_embedding=True), QUICK),
        (replace(SMALL, interaction="pairwise", base_prior=True), replace(QUICK, click_model_steps=30, clip_norm=0.1)),
    ],
    ids=["recurrent", "averaging", "attention", "after a click model"],
)
def test_an_interrupted_run_resumes_to_the_same_weights(
    network: NetworkConfig, config: TrainingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = SlateModel.create(TRAIN, network)
    run_training(straight, TRAIN, VALID, config, quiet=True)
    model, folder = SlateModel.create(TRAIN, network), tmp_path / "checkpoints"
    calls, step = 0, Objective.__call__

    def press_ctrl_c(self: Objective, *arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls in (4, 15):
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Objective, "__call__", press_ctrl_c)
    for resume in (False, True):
        with pytest.raises(TrainingStoppedError, match="--resume"):
            run_training(model, TRAIN, VALID, config, checkpoints=folder, resume=resume, quiet=True)
        model = SlateModel.create(TRAIN, network)  # as in a new process
    with pytest.raises(UsageError, match="resume it"):
        run_training(model, TRAIN, VALID, config, checkpoints=folder, quiet=True)
    run_training(model, TRAIN, VALID, config, checkpoints=folder, resume=True, quiet=True)
    assert weights(model) == weights(straight)


def test_averages_follow_the_weights_and_are_what_is_validated_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    after_steps: list[dict[str, torch.Tensor]] = []
    validated: list[dict[str, torch.Tensor]] = []
    model = SlateModel.create(TRAIN, SMALL)
    step, judged = torch.optim.Adam.step, _Run._judged

    def noted(found: list[dict[str, torch.Tensor]]) -> None:
        found.append({name: weight.detach().double().clone() for name, weight in model.network.named_parameters()})

    def note_step(self: torch.optim.Adam) -> None:
        step(self)
        noted(after_steps)

    def note_validation(run: _Run) -> _Judged:
        noted(validated)
        return judged(run)

    monkeypatch.setattr(torch.optim.Adam, "step", note_step)
    monkeypatch.setattr(_Run, "_judged", note_validation)
    history = run_training(model, TRAIN, VALID, replace(QUICK, averaging=0.7), quiet=True)
    expected, per_epoch = after_steps[0], len(after_steps) // 3
    for number, now in enumerate(after_steps[1:], start=2):
        share = max(0.3, 9 / (number + 9))
        expected = {name: (1 - share) * expected[name] + share * now[name] for name in now}
        if number % per_epoch == 0:
            torch.testing.assert_close(validated[number // per_epoch - 1], expected, rtol=1e-5, atol=1e-7)
    kept = {name: weight.detach().double() for name, weight in model.network.named_parameters()}
    assert per_epoch > 3, "the first steps weigh more than the decay says, and the others do not"
    torch.testing.assert_close(kept, validated[history.best_epoch], rtol=0, atol=0)


def test_averages_do_not_change_what_is_trained() -> None:
    losses = []
    for averaging in (0.0, 0.9):
        history = run_training(
            SlateModel.create(TRAIN, SMALL), TRAIN, VALID, replace(QUICK, averaging=averaging), quiet=True
        )
        losses.append([epoch["loss"] for epoch in history.epochs])
    assert losses[0] == losses[1]


def test_the_group_lasso_leaves_the_columns_that_matter() -> None:
    shares = []
    for group_lasso in (0.0, 0.02):
        weight = group_lasso * len(TRAIN) ** 0.5
        config = replace(QUICK, policy="greedy", l2=0.0, group_lasso=weight, epochs=12, patience=12, anneal=True)
        model = SlateModel.create(TRAIN, replace(SMALL, dropout=0))
        assert run_training(model, TRAIN, VALID, config, quiet=True).best > 0.9
        norms = model.network.input_weights.detach().norm(dim=1)
        shares.append(float(norms[1] / norms.sum()))
    assert shares[0] < 0.5
    assert shares[1] > 0.9


def test_a_run_is_not_resumed_with_other_lists_or_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Objective.__call__

    def press_ctrl_c(self: Objective, *arguments: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Objective, "__call__", press_ctrl_c)
    model = SlateModel.create(TRAIN, SMALL)
    with pytest.raises(TrainingStoppedError):
        run_training(model, TRAIN, VALID, QUICK, checkpoints=tmp_path, quiet=True)
    for lists, config in ((TRAIN[:100], QUICK), (TRAIN, replace(QUICK, learning_rate=1e-4))):
        with pytest.raises(UsageError, match="other lists or options"):
            run_training(model, lists, VALID, config, checkpoints=tmp_path, resume=True, quiet=True)


def columned_lists(seed: int, **changes: Any) -> ItemLists:
    """Clicked lists with a column of every kind, some of them changed."""
    lists, rng = clicked_lists(60, seed), np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "list_id": [f"q{q}" for q in lists.list_index],
        "item_id": [f"i{item}" for item in lists.positions],
        "price": rng.normal(size=lists.n_items),
        "stars": np.where(rng.random(lists.n_items) < 0.3, np.nan, 1.0),
        "city": rng.choice(["Oslo", "Rome", "Lima"], lists.n_items),
        "hour": rng.integers(0, 24, len(lists))[lists.list_index].astype(float),
        "device": rng.choice(["phone", "desk"], len(lists))[lists.list_index],
        "label": lists.labels,
    }
    roles: dict[str, Any] = {"context": ["hour", "device"], "categorical": ["item_id", "city", "device"]}
    for name, change in changes.items():
        (roles if name in roles else columns)[name] = change((roles if name in roles else columns)[name])
    return from_table(pa.table(columns), roles)


def one_other(values: Any) -> Any:
    """Swap two values that differ: every vocabulary and every mean stays as it was."""
    values = list(values)
    other = next(i for i, value in enumerate(values) if value != values[0])
    values[0], values[other] = values[other], values[0]
    return values


CHANGES: dict[str, dict[str, Any]] = {
    "a category": {"city": one_other},
    "a new category": {"city": lambda values: ["Bonn"] * 9 + list(values)[9:]},
    "an item id": {"item_id": lambda values: ["other", *values[1:]]},
    "a missing value": {
        "stars": lambda values: np.where(np.arange(len(values)) == np.isnan(values).argmax(), 1.0, values)
    },
    "context, a number": {"hour": lambda values: (values + 1) % 24},
    "context, a text": {"device": lambda values: np.where(values == "desk", "phone", "desk")},
    "the kind of a column": {"categorical": lambda names: [*names, "price"]},
    "no category": {"categorical": lambda names: names[1:]},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("part", ["train", "valid"])
def test_a_run_is_not_resumed_with_other_values_of_any_column(
    part: str, change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, valid = columned_lists(1), columned_lists(2)
    reranker = Reranker(hidden=8, epochs=1).fit(train, valid, checkpoints=tmp_path, quiet=True)
    assert Reranker(hidden=8, epochs=1).run_id(columned_lists(1), columned_lists(2)) == reranker.history_.run_id
    is_role = "categorical" in change  # which validation lists share with the training lists
    others = (
        columned_lists(1, **change) if part == "train" or is_role else train,
        columned_lists(2, **change) if part == "valid" or is_role else valid,
    )
    monkeypatch.setattr(Objective, "__call__", lambda *_: pytest.fail("the run went on"))
    with pytest.raises(UsageError, match="other lists or options"):
        Reranker(hidden=8, epochs=1).fit(*others, checkpoints=tmp_path, resume=True, quiet=True)


def test_without_a_checkpoint_that_can_be_read_resuming_begins_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straight = SlateModel.create(TRAIN, SMALL)
    run_training(straight, TRAIN, VALID, QUICK, checkpoints=tmp_path / "straight", quiet=True)
    (tmp_path / "damaged").mkdir()
    for step in (900, 901):  # more than the run has
        (tmp_path / "damaged" / f"step-{step:09d}.checkpoint").write_bytes(b"nothing")
    for name in ("nowhere", "damaged"):
        model = SlateModel.create(TRAIN, SMALL)
        run_training(model, TRAIN, VALID, QUICK, checkpoints=tmp_path / name, resume=True)
        assert weights(model) == weights(straight)
        assert "the run begins anew" in capsys.readouterr().err
        assert sorted(os.listdir(tmp_path / name)) == sorted(os.listdir(tmp_path / "straight"))


def test_a_loss_that_is_not_a_number_names_the_lists() -> None:
    model = SlateModel.create(TRAIN, SMALL)
    with torch.no_grad():
        model.network.w_enc.fill_(torch.nan)
    with pytest.raises(TrainingStoppedError, match=r"is nan at step 0, in a batch with the lists [0-9]+"):
        run_training(model, TRAIN, VALID, QUICK, quiet=True)


def test_lists_that_teach_nothing_are_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SlateModel.create(TRAIN, SMALL)
    with pytest.raises(DataError, match="no training list has a positive"):
        run_training(model, replace(TRAIN, labels=np.zeros(TRAIN.n_items, np.float32)), VALID, QUICK, quiet=True)
    with pytest.raises(DataError, match="training lists have no labels"):
        run_training(model, replace(TRAIN, labels=None), VALID, QUICK, quiet=True)
    monkeypatch.setattr(Objective, "__call__", lambda *_: pytest.fail("the run began"))
    with pytest.raises(DataError, match="no validation list has a positive"):
        run_training(model, TRAIN, replace(VALID, labels=np.zeros(VALID.n_items, np.float32)), QUICK, quiet=True)


def test_long_lists_may_be_sampled_down() -> None:
    model = SlateModel.create(TRAIN, SMALL)
    history = run_training(model, TRAIN, VALID, replace(QUICK, max_items=4), quiet=True)
    assert len(history.epochs) == 3


def test_options_change_the_preset_and_nothing_else() -> None:
    paper = configure("paper")
    changed = configure("paper", loss="hinge", policy="greedy", decoder="one-step", k=5, epochs=2, seed=7)
    assert changed.network == replace(paper.network, decoder="one-step")
    assert changed.training == replace(paper.training, loss="hinge", policy="greedy", k=5, epochs=2, seed=7)
    reinforce = configure("paper", policy="reinforce")
    assert (reinforce.training.l2, reinforce.network.dropout) == (0, 0), "the paper does not regularise it"
    assert configure("paper", policy="reinforce", l2=0.1).training.l2 == 0.1
    with pytest.raises(UsageError, match="choose one of"):
        configure("best")
    with pytest.raises(UsageError, match=r"no option 'width'; there are .*hidden"):
        configure("paper", width=3)


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (("epochs", "click_model_steps", "batch_size", "patience", "decay_steps", "max_items"), (-1, 0)),
        (("learning_rate", "decay", "clip_norm"), (-1, 0, math.nan, math.inf)),
        (("l2", "group_lasso", "warmup_steps"), (-1, math.nan)),
        (("averaging", "baseline_decay"), (-0.1, 1.0, math.nan)),
    ],
)
def test_choices_that_cannot_be_are_refused_by_name(names: tuple[str, ...], values: tuple[float, ...]) -> None:
    for name in names:
        for value in values:
            choices: dict[str, Any] = {name: value}
            with pytest.raises(UsageError, match=name):
                TrainingConfig(**choices)


def test_the_paper_preset_is_the_papers() -> None:
    network, training = configure("paper")
    assert PRESETS["paper"] == {}, "the defaults of the configurations are the paper's"
    assert (network.hidden, network.dropout, network.initial_range) == (128, 0.1, 0.1)
    assert (training.batch_size, training.learning_rate, training.decay, training.decay_steps) == (
        128,
        3e-4,
        0.96,
        1000,
    )
    assert (training.l2, training.baseline_decay, training.reward) == (3e-4, 0.99, "NDCG@10")
    assert (training.policy, training.loss, training.credit) == ("sampling", "cross-entropy", "return")


def test_the_tuned_preset_has_the_network_of_the_paper() -> None:
    network, training = configure("paper-tuned")
    plain = NetworkConfig(hidden=network.hidden, memory_span=network.memory_span)
    assert network == plain, "LSTM encoder and pointer decoder; no prior, interaction or column of the position"
    assert (training.loss, training.falls_back) == ("cross-entropy", False)


def test_a_tenth_is_held_out_and_the_folder_is_written(tmp_path: Path) -> None:
    reranker = Reranker("paper", epochs=1).fit(TRAIN, quiet=True)
    reranker.save(tmp_path / "model")
    assert sorted(os.listdir(tmp_path)) == ["model"]
    assert len(reranker.history_.epochs) == 1
    assert reranker.rank(VALID.batch()).shape == (60, 8)


def test_a_run_that_could_not_be_saved_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Reranker(epochs=1).fit(TRAIN, VALID, checkpoints=tmp_path, quiet=True)
    monkeypatch.setattr(Objective, "__call__", lambda *_: pytest.fail("an epoch was run again"))
    again = Reranker(epochs=1).fit(TRAIN, VALID, checkpoints=tmp_path, resume=True, quiet=True)
    assert weights(again.model_) == weights(first.model_)
    assert again.history_ == first.history_


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("seq2slate.training.fit.FORMAT", 1)
        Reranker(epochs=1).fit(TRAIN, VALID, checkpoints=tmp_path, quiet=True)
    with pytest.raises(DataError, match="another version of seq2slate: remove it and train anew"):
        Reranker(epochs=1).fit(TRAIN, VALID, checkpoints=tmp_path, resume=True, quiet=True)


@pytest.mark.parametrize(("policy", "aim"), [("greedy", "loss"), ("reinforce", "reward")])
def test_every_epoch_has_a_line(policy: Any, aim: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(QUICK, policy=policy, measure="MRR")
    history = run_training(SlateModel.create(TRAIN, SMALL), TRAIN, VALID, config)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    assert len(lines) == len(history.epochs) == 3
    for number, (line, epoch) in enumerate(zip(lines, history.epochs, strict=True), start=1):
        assert line.split()[:6] == ["epoch", str(number), aim, f"{epoch['loss']:.4f}", "MRR", f"{epoch['MRR']:.4f}"]


def test_the_learning_rate_warms_up_decays_and_falls_to_nothing() -> None:
    config = replace(QUICK, learning_rate=0.5, warmup_steps=4, decay=0.5, decay_steps=10, anneal=True)
    useful = sum(len(one.features) > 1 for one in TRAIN)
    steps = 3 * -(-useful // 16)
    rates = [
        epoch["learning_rate"]
        for epoch in run_training(SlateModel.create(TRAIN, SMALL), TRAIN, VALID, config, quiet=True).epochs
    ]
    expected = [
        0.5 * min(1, (at + 1) / 4) * 0.5 ** (at // 10) * (1 - at / steps)
        for at in range(steps // 3, steps + 1, steps // 3)
    ]
    assert rates == pytest.approx(expected)
    assert rates[-1] == 0


def test_the_learning_rate_falls_to_nothing_when_long_lists_make_more_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seq2slate.data.lists.MAX_PAIRS", 100)  # one or two lists of 8 items in a batch
    history = run_training(SlateModel.create(TRAIN, SMALL), TRAIN, VALID, replace(QUICK, anneal=True), quiet=True)
    rates = [epoch["learning_rate"] / QUICK.learning_rate for epoch in history.epochs]
    assert rates == pytest.approx([2 / 3, 1 / 3, 0])


def test_gradients_are_clipped_and_weights_are_penalised(monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    step = torch.optim.Adam.step

    def note_norm(self: torch.optim.Adam) -> object:
        gradients = [weight.grad for group in self.param_groups for weight in group["params"]]
        norms.append(float(torch.cat([gradient.flatten() for gradient in gradients]).norm()))
        assert self.param_groups[0]["weight_decay"] == 0.25
        return step(self)

    monkeypatch.setattr(torch.optim.Adam, "step", note_norm)
    config = replace(QUICK, epochs=1, clip_norm=0.01, l2=0.25)
    run_training(SlateModel.create(TRAIN, SMALL), TRAIN, VALID, config, quiet=True)
    assert norms == pytest.approx([0.01] * len(norms), rel=1e-3)
