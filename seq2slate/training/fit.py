"""Train a model on clicked lists: shuffled batches, the best epoch by a validation measure, runs that can be resumed.

Everything random comes from the seed, and a checkpoint holds all that the run is: weights and their averages,
optimiser, moving average of the loss, random state and place in the epoch. A run that was killed and is resumed ends
with the very same weights as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from seq2slate.atomic import atomic_path
from seq2slate.config import TrainingConfig
from seq2slate.data.lists import Batch, IntArray, ItemLists, batch_indices
from seq2slate.data.ranker import BaseOrder, base_slates
from seq2slate.errors import DataError, TrainingInterruptedError, TrainingStoppedError, UsageError
from seq2slate.estimator import check_labels
from seq2slate.evaluation.statistics import randomisation_test
from seq2slate.html import table
from seq2slate.metrics import Measure, measure_ranker
from seq2slate.model.network import MOST_BYTES, InputLists, KnownCoordinates, SlateNetwork
from seq2slate.model.slate_model import SlateModel
from seq2slate.progress import TrainingProgress
from seq2slate.saving import FORMAT
from seq2slate.training.callbacks import Callback, EpochFunction, EpochReport, StepReport, as_callback, ends_run
from seq2slate.training.objectives import ClickModelFit, LabelledInputs, Objective

_FEW_LISTS = 1000
_FEWEST_EPOCHS = 3
_AVERAGED_FIRST = 9
"""How fast averages of the weights move at first: after so many steps, half of the way in one step."""
_STRENGTHS = (1.0, 0.75, 0.5, 0.25)
"""How much of a trained network's scores may count, beside the base order."""
_LEAST = 1e-9
_LEVEL = 0.1
"""A gain on the validation lists counts if the p-value of the paired test is below this."""


@dataclass
class Progress:
    """How far a run is: everything about it that is not a tensor."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """The next batch of the epoch."""
    epoch_loss: float = 0.0
    """Summed over the lists of this epoch so far."""
    epoch_lists: int = 0
    best: float = -float("inf")
    best_epoch: int = -1
    """-1 is the click model alone, before the first epoch."""
    start: float | None = None
    """The measure of the click model alone; None if there is none."""
    history: list[dict[str, float]] = field(default_factory=list)
    """An entry for every epoch: loss, value of the measure, learning rate."""
    stopped: bool = False
    """Whether a callback ended the run."""


@dataclass(frozen=True)
class History:
    """What a finished run looked like."""

    epochs: list[dict[str, float]]
    """An entry for every epoch: loss, value of the measure, learning rate."""
    best_epoch: int
    """From 0; -1 is the click model alone, before the first epoch."""
    measure: str
    """The validation measure."""
    base: float = math.nan
    """The measure of the base order, on the validation lists."""
    run_id: str = ""
    """The identity of the run: another run that has it ends with the same weights."""
    strength: float = 1.0
    """How much of the network's scores counts: 1 is all, and 0 is the base order."""
    chosen: float = math.nan
    """The measure of the model on the validation lists, at that strength."""
    start: float | None = None
    """The measure of the click model alone, on the validation lists; None if there is none."""

    @property
    def best(self) -> float:
        """The measure of the best epoch, on the validation lists."""
        if self.best_epoch < 0 and self.start is not None:
            return self.start
        return self.epochs[self.best_epoch][self.measure]

    def __str__(self) -> str:
        """Return the result in one line: the measure of the base order and of the model."""
        result = self.best if math.isnan(self.chosen) else self.chosen
        gain = f" ({result / self.base - 1:+.1%})" if self.base > 0 else ""
        mixed = f", mixed with the base order (strength {self.strength:g})" if 0 < self.strength < 1 else ""
        best = f"epoch {self.best_epoch + 1} of {len(self.epochs)}"
        if self.best_epoch < 0:
            best = f"click model alone: none of {len(self.epochs)} epochs was better"
        return f"{self.measure} on the validation lists: base order {self.base:.4f} → {result:.4f}{gain}, {best}{mixed}"

    def _repr_html_(self) -> str:
        rows = [
            [f"{number}{' (best)' if number == self.best_epoch + 1 else ''}"]
            + [f"{one[name]:.4g}" for name in ("loss", self.measure, "learning_rate")]
            for number, one in enumerate(self.epochs, start=1)
        ]
        if self.start is not None:
            name = f"click model{' (best)' if self.best_epoch < 0 else ''}"
            rows.insert(0, [name, "", f"{self.start:.4g}", ""])
        header = ["epoch", "loss", self.measure, "learning rate"]
        return table(header, [["base order", "", f"{self.base:.4g}", ""], *rows])


def advice(history: History, config: TrainingConfig, n_lists: int) -> str | None:
    """Return a warning for a model that is not better than the base order, and what to try; None for one that is.

    Args:
        history: The finished run.
        config: How it was trained.
        n_lists: Training lists that have a gradient.

    """
    if history.strength and not history.best <= history.base:
        return None
    last = len(history.epochs) - 1
    ideas = ["check that the lists are in base order and that the columns are what they should be (seq2slate inspect)"]
    if n_lists < _FEW_LISTS:
        ideas.append(f"train on more lists: {n_lists:,} with a positive and a second item are few")
    if all(epoch[history.measure] == history.base for epoch in history.epochs):
        ideas.append(f"train longer or in smaller batches: no list changed yet ({_longer(config, last + 1, 4)})")
    elif history.best_epoch == last and last + 1 == config.epochs:
        ideas.append(f"train longer: the last of {last + 1} epochs was the best ({_longer(config, last + 1, 2)})")
    elif history.best_epoch <= 0 < last:
        which = "no epoch was better than the click model" if history.best_epoch < 0 else "the first epoch was the best"
        ideas.append(f"slow down: {which} (learning_rate={config.learning_rate / 3:.1g}, or more dropout)")
    ideas.append("compare with mart or lambdamart on the same lists: if they do not gain either, serve the base order")
    problem = "the model is the base order: nothing was gained on the validation lists"
    if history.strength:
        problem = "the model is not better than the base order"
    return f"warning: {problem}. What to try:\n" + "\n".join(f"- {idea}" for idea in ideas)


def _longer(config: TrainingConfig, epochs: int, times: int) -> str:
    """Return the options of a run that takes so many times the epochs."""
    if config.steps is None:
        return f"epochs={times * config.epochs}"
    return f"epochs={max(config.epochs, times * epochs)}, steps={times * config.steps}"


def run_training(
    model: SlateModel,
    train: ItemLists,
    valid: ItemLists,
    config: TrainingConfig,
    *,
    checkpoints: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback | EpochFunction] | EpochFunction = (),
    quiet: bool = False,
) -> History:
    """Train a model in place; it ends with the weights of the epoch that was best on the validation lists.

    Args:
        model: Network and feature transform; the weights are changed.
        train: Labelled lists in base order.
        valid: Labelled lists that choose the epoch.
        config: How to train.
        checkpoints: Folder for checkpoints, from which the run can be resumed after Ctrl-C or a crash. It stays when
            the run has ended, so that a model that could not be saved is not lost.
        resume: Go on from the newest checkpoint; the run must have the same lists and options. Without a checkpoint
            that can be read the run begins anew.
        callbacks: Called after every step and epoch, see `training.callbacks`.
        quiet: Print nothing.

    Returns:
        Loss and validation measure of every epoch.

    Raises:
        DataError: Labels or positives are missing, or a checkpoint cannot be read.
        TrainingStoppedError: Ctrl-C, or a loss that is NaN or infinite.

    """
    check_labels(valid, "validation")
    several = callbacks if isinstance(callbacks, Sequence) else [callbacks]
    run = _Run(model, train, valid, config, checkpoints, [as_callback(one) for one in several], quiet=quiet)
    if resume:
        run.resume()
    elif checkpoints is not None and any(checkpoints.glob("*.checkpoint")):
        raise UsageError(f"{checkpoints} holds a run that has not ended: resume it, or remove the folder to begin anew")
    with _deferred_interrupt() as interrupted, run.watch:
        return run.train(interrupted)


class _Run:
    def __init__(
        self,
        model: SlateModel,
        train: ItemLists,
        valid: ItemLists,
        config: TrainingConfig,
        folder: Path | None,
        callbacks: list[Callback],
        *,
        quiet: bool,
    ) -> None:
        self.model, self.config, self.folder, self.callbacks = model, config, folder, callbacks
        useful, is_read = _useful_lists(train), train.lengths > 0
        if not model.network.interaction.has_click_model:  # which also learns from lists without a click
            is_read &= np.isin(np.arange(len(train)), useful)
        self.train_lists = train if is_read.all() else train[is_read]
        self.useful = np.cumsum(is_read)[useful] - 1
        """The numbers of the lists that have a gradient."""
        self.valid, self.measure = valid, Measure.parse(config.measure)
        self.of_base_order = measure_ranker(BaseOrder(), valid, [self.measure])[self.measure]
        self.base = float(np.nanmean(self.of_base_order))
        self.aim = "reward" if config.policy == "reinforce" else "loss"
        self.epochs = _n_epochs(config, len(self.useful))
        self.watch = TrainingProgress(self.epochs, self.aim, config.measure, self.base, quiet=quiet)
        self.network = model.network
        self.optimiser = torch.optim.Adam(
            _groups(self.network, config), lr=config.learning_rate, weight_decay=config.l2
        )
        self.objective = Objective(config, len(self.useful))
        self.generator = torch.Generator(model.device).manual_seed(config.seed)
        self.progress = Progress()
        self.best_weights: dict[str, Tensor] = {}
        self.averages: dict[str, Tensor] = {}
        """The moving average of each weight; empty without averaging, and before the first step."""
        self.identity = run_identity(model, train, valid, config)
        self.inputs = None if config.max_items else self._encoded(self.train_lists, rounded=True)
        self.epoch_batches = 1
        self.saved_at = time.monotonic()

    def train(self, interrupted: threading.Event) -> History:
        """Run the epochs that are left."""
        history = None
        self.watch.run_begins(len(self.useful), len(self.valid))
        try:
            for one in self.callbacks:
                one.begin(asdict(self.network.config) | asdict(self.config))
            if not self.progress.history and not self.progress.step:
                self._start(interrupted)
            while not self._finished:
                self._run_epoch(interrupted)
            self.network.load_state_dict(self.best_weights)
            self.network.eval()
            history = self._history()
            self.watch.say(str(history))
            if warning := advice(history, self.config, len(self.useful)):
                self.watch.say(warning)
        finally:
            for one in self.callbacks:
                one.end(history)
        return history

    def _history(self) -> History:
        progress, strength, chosen = self.progress, 1.0, math.nan
        if self.config.falls_back:
            strength, chosen = self._choose_strength()
            self.network.strength.fill_(strength)
        measure, best = self.config.measure, progress.best_epoch
        return History(progress.history, best, measure, self.base, self.identity, strength, chosen, progress.start)

    def _start(self, interrupted: threading.Event) -> None:
        """Fit the click model, if the network has one; alone it competes with every epoch of the network."""
        if not self.network.interaction.has_click_model:
            return
        assert self.valid.labels is not None, "validation lists have labels"
        assert self.train_lists.labels is not None, "training lists have labels"
        highest = max(1.0, float(self.train_lists.labels.max()))  # of grades, each is a share of the highest

        def as_clicks(lists: LabelledInputs) -> LabelledInputs:
            return lists._replace(labels=lists.labels / np.float32(highest))

        valid = as_clicks(LabelledInputs(self.valid_inputs, self.valid.labels))
        click_model = ClickModelFit(self.network, valid, self.config)
        seeds = partial(_epoch_seed, self.config.seed)
        click_model.run(lambda epoch: as_clicks(self._epoch_lists(epoch)), seeds, interrupted, self.watch)
        self.network.eval()
        self.progress.start, _ = self._judge(epoch=-1)

    def _choose_strength(self) -> tuple[float, float]:
        """Return the best strength of those that gain on the validation lists, and its measure; 0 if none does."""
        chosen, best = (0.0, self.base), -math.inf
        for strength in _STRENGTHS:
            self.network.strength.fill_(strength)
            judged = self._judged()
            values, value = judged.values, float(np.nanmean(judged.values))
            gains = value > self.base and randomisation_test(values, self.of_base_order, seed=self.config.seed) < _LEVEL
            if gains and judged.criterion > best:
                chosen, best = (strength, value), judged.criterion
        return chosen

    @property
    def _finished(self) -> bool:
        progress = self.progress
        patience = self.config.patience
        if self.config.steps is not None:
            patience = max(patience, self.epochs // 4)
        is_patient = progress.epoch - progress.best_epoch <= patience
        return progress.stopped or progress.epoch >= self.epochs or not is_patient

    def _run_epoch(self, interrupted: threading.Event) -> None:
        progress = self.progress
        inputs, labels = self._epoch_lists(progress.epoch)
        seed = _epoch_seed(self.config.seed, progress.epoch)
        batches = batch_indices(inputs.lengths[self.useful], self.config.batch_size, seed=seed)
        self.epoch_batches = len(batches)
        self.network.train()
        self.watch.epoch_begins(progress.epoch, len(self.useful), progress.epoch_lists)
        for index in batches[progress.batch :]:
            self._step(inputs, labels, self.useful[index])
            if interrupted.is_set():
                self._stop()
            if self.folder is not None and time.monotonic() - self.saved_at > self.config.checkpoint_seconds:
                self._save()
        self._end_epoch()

    def _epoch_lists(self, epoch: int) -> LabelledInputs:
        """Return the lists of an epoch, encoded, and their labels (T,)."""
        lists = self.train_lists
        if self.config.max_items is not None:
            lists = lists.sample_items(self.config.max_items, seed=_epoch_seed(self.config.seed, epoch))
        assert lists.labels is not None, "useful lists have labels"
        return LabelledInputs(self.inputs or self._encoded(lists, rounded=True, most_bytes=0), lists.labels)

    def _encoded(self, lists: ItemLists, *, rounded: bool, most_bytes: int = MOST_BYTES) -> InputLists:
        """Return lists as the network reads them, with what is to be known of their pairs."""
        inputs = InputLists.of(lists, self.model.transform)
        inputs.coordinates = KnownCoordinates(self.network.interaction, rounded=rounded, most_bytes=most_bytes)
        return inputs

    def _step(self, inputs: InputLists, labels: np.ndarray[Any, Any], index: IntArray) -> None:
        progress, device = self.progress, self.model.device
        rate = self._learning_rate()
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        batch = inputs.batch(index).to(device)
        surrogate, values = self.objective(self.network, batch, inputs.pad(labels, index).to(device), self.generator)
        self._check_finite("loss", surrogate, index, rate)
        self.network.zero_grad(set_to_none=True)  # embeddings of a fitted click model have gradients, and no optimiser
        surrogate.backward()  # type: ignore[no-untyped-call]
        trained = [weight for group in self.optimiser.param_groups for weight in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(trained, self.config.clip_norm)
        self._check_finite("gradient", norm, index, rate)
        self.optimiser.step()
        progress.step += 1
        self._average_weights()
        progress.batch += 1
        progress.epoch_loss += float(values.sum())
        progress.epoch_lists += len(index)
        loss = progress.epoch_loss / progress.epoch_lists
        self.watch.step(loss, len(index))
        for one in self.callbacks:
            one.step(StepReport(progress.step, self.aim, loss, rate, float(norm), self.watch.speed))

    @torch.no_grad()
    def _average_weights(self) -> None:
        """Move the averages towards the weights: after step t by 9 / (t + 9) or 1 - decay, whichever is more.

        So the average forgets the first weights soon, however slow its decay.
        """
        if not self.config.averaging:
            return
        step = self.progress.step
        share = max(1 - self.config.averaging, _AVERAGED_FIRST / (step + _AVERAGED_FIRST))
        for name, weight in self.network.named_parameters():
            if step == 1:
                self.averages[name] = weight.detach().clone()
            else:
                self.averages[name].lerp_(weight, share)

    @contextmanager
    def _averaged_network(self) -> Iterator[None]:
        """Put the averages in the place of the weights, for a while."""
        weights = {name: self.network.get_parameter(name).detach().clone() for name in self.averages}
        self.network.load_state_dict(self.averages, strict=False)
        yield
        self.network.load_state_dict(weights, strict=False)

    def _check_finite(self, name: str, value: Tensor, index: IntArray, rate: float) -> None:
        if torch.isfinite(value):
            return
        names = ", ".join(self.train_lists.list_ids.take(index[:10]).to_pylist())
        raise TrainingStoppedError(
            f"the {name} is {value.item()} at step {self.progress.step}, in a batch with the lists {names}"
            f"{' …' if len(index) > 10 else ''}: look at their values, or lower the learning rate ({rate:g})"
        )

    def _learning_rate(self) -> float:
        """Return the learning rate of the next step."""
        config, progress = self.config, self.progress
        warm = min(1.0, (progress.step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
        done = (progress.epoch + progress.batch / self.epoch_batches) / self.epochs
        left = 1 - done if config.anneal else 1.0
        return float(config.learning_rate * config.decay ** (progress.step // config.decay_steps) * warm * left)

    def _end_epoch(self) -> None:
        progress = self.progress
        self.network.eval()
        with self._averaged_network():
            value, better = self._judge(progress.epoch)
        loss = progress.epoch_loss / max(1, progress.epoch_lists)
        rate, measure = self._learning_rate(), self.config.measure
        progress.history.append({"loss": loss, measure: value, "learning_rate": rate})
        self.watch.epoch_ends(progress.epoch, loss, value, better=better)
        epoch, step = progress.epoch + 1, progress.step
        report = EpochReport(epoch, step, self.aim, loss, measure, value, self.base, better, rate)
        wishes = [one.epoch(report) for one in self.callbacks]
        progress.stopped = any(map(ends_run, wishes))
        progress.epoch, progress.batch, progress.epoch_loss, progress.epoch_lists = progress.epoch + 1, 0, 0.0, 0
        if self.folder is not None:
            self._save()

    def _judge(self, epoch: int) -> tuple[float, bool]:
        """Return the measure of the network as it is, and whether it is the best so far; the best is kept."""
        progress, judged = self.progress, self._judged()
        better = judged.criterion > progress.best or not self.best_weights
        if better:
            progress.best, progress.best_epoch = judged.criterion, epoch
            self.best_weights = {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}
        return float(np.nanmean(judged.values)), better

    def _judged(self) -> _Judged:
        """Judge greedy slates of the validation lists, without dropout.

        The log shows clicks on the base order only, so a click model that was fitted to it has an equal say: the
        criterion is the sum of the measure and of the clicks it expects on the slates, relative to the base order.
        """
        ranker = _EncodedRanker(self.model, self.valid_inputs)
        values = measure_ranker(ranker, self.valid, [self.measure], k=self.measure.k)[self.measure]
        criterion = float(np.nanmean(values))
        if self.network.interaction.has_click_model:
            criterion = criterion / max(self.base, _LEAST) + ranker.clicks / max(ranker.clicks_on_base_order, _LEAST)
        return _Judged(values, criterion)

    @cached_property
    def valid_inputs(self) -> InputLists:
        """The validation lists, encoded."""
        return self._encoded(self.valid, rounded=False)

    # Checkpoints

    def _stop(self) -> None:
        if self.folder is None:
            raise TrainingInterruptedError("interrupted; without a checkpoint folder the run cannot be resumed")
        self._save()
        raise TrainingInterruptedError(
            f"interrupted after step {self.progress.step}; the same command with --resume goes on from there"
        )

    def _save(self) -> None:
        assert self.folder is not None, "only runs with a checkpoint folder are saved"
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best_weights.items()}
        tensors |= {f"average.{name}": tensor for name, tensor in self.averages.items()}
        for number, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": tensor for name, tensor in state.items()}
        tensors |= {"baseline": self.objective.baseline, "generator": self.generator.get_state()}
        tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        values = {"progress": asdict(self.progress), "identity": self.identity, "format": FORMAT}
        Checkpoint(self.progress.step, tensors, values).save(self.folder)
        self.saved_at = time.monotonic()

    def resume(self) -> None:
        """Go on from the newest checkpoint that is whole; without one there is nothing to do."""
        if self.folder is None:
            raise UsageError("a run can be resumed only from a checkpoint folder")
        found, complaints = latest_checkpoint(self.folder)
        for complaint in complaints:
            self.watch.say(f"{complaint}; trying the one before it")
        if found is None:
            self.watch.say(f"{self.folder} holds no checkpoint that can be read: the run begins anew")
            return
        if found.values.get("format") != FORMAT:
            raise DataError(f"{self.folder} was written by another version of seq2slate: remove it and train anew")
        if found.values["identity"] != self.identity:
            raise UsageError(f"{self.folder} belongs to a run with other lists or options: resume with the same ones")
        self.progress = Progress(**found.values["progress"])
        self.network.load_state_dict(_with_prefix(found.tensors, "network."))
        self.best_weights = _with_prefix(found.tensors, "best.")
        averages = _with_prefix(found.tensors, "average.")
        self.averages = {name: tensor.to(self.model.device) for name, tensor in averages.items()}
        self._restore_optimiser(_with_prefix(found.tensors, "optimiser."))
        self.objective.baseline = found.tensors["baseline"]
        self.generator.set_state(found.tensors["generator"])
        self.watch.say(f"resuming after step {found.step}")

    def _restore_optimiser(self, tensors: dict[str, Tensor]) -> None:
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            number, name = key.split(".", 1)
            state.setdefault(int(number), {})[name] = tensor
        self.optimiser.load_state_dict({"state": state, "param_groups": self.optimiser.state_dict()["param_groups"]})


class _Judged(NamedTuple):
    """The validation lists, as the network orders them."""

    values: npt.NDArray[np.float64]
    """(Q,) the measure of each."""
    criterion: float
    """What is to be as large as possible."""


class _EncodedRanker:
    """The greedy slates of a model, for batches of lists that have been encoded, and the clicks that it expects."""

    def __init__(self, model: SlateModel, inputs: InputLists) -> None:
        self._model, self._inputs = model, inputs
        self.clicks = self.clicks_on_base_order = 0.0

    @torch.no_grad()
    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        encoded = self._model.network.encode(self._inputs.batch(batch.index).to(self._model.device))
        slates = self._model.network.decoder.decode(encoded, k).slates
        clicks = encoded.terms.clicks
        if clicks is not None:
            base_order = torch.from_numpy(base_slates(batch.mask, k)).to(slates.device)
            self.clicks += float(clicks.expected_clicks(slates).sum())
            self.clicks_on_base_order += float(clicks.expected_clicks(base_order).sum())
        return slates.cpu().numpy()


def _useful_lists(lists: ItemLists) -> IntArray:
    """Return the numbers of the lists that have a gradient: with a positive and more than one item."""
    labels = check_labels(lists, "training")
    positives = np.add.reduceat(np.append(labels > 0, 0), lists.offsets[:-1]) * (lists.lengths > 0)
    useful = np.flatnonzero((positives > 0) & (lists.lengths > 1))
    if not len(useful):
        raise DataError("no training list has both a positive and a second item: there is nothing to learn from")
    return useful


def _groups(network: SlateNetwork, config: TrainingConfig) -> list[dict[str, Any]]:
    """Return the parameters of the optimiser in two groups: embeddings may learn faster, as most steps pass them by.

    A click model, which has been fitted, is left as it is.
    """
    fitted = {id(parameter) for parameter in network.click_model_parameters()}
    tables = [table for table in network.embedding_tables() if id(table) not in fitted]
    known = fitted | {id(table) for table in tables}
    others = [one for one in network.parameters() if one.requires_grad and id(one) not in known]
    return [{"params": others, "factor": 1.0}, {"params": tables, "factor": config.embedding_rate}]


def _n_epochs(config: TrainingConfig, n_lists: int) -> int:
    """Return how often the lists are passed over, at most."""
    if config.steps is None:
        return config.epochs
    batches = math.ceil(n_lists / config.batch_size)
    return min(config.epochs, max(_FEWEST_EPOCHS, math.ceil(config.steps / batches)))


def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])


def run_identity(model: SlateModel, train: ItemLists, valid: ItemLists, config: TrainingConfig) -> str:
    """Return a digest of all that decides how a run ends: options, roles of columns, and what the network reads.

    Args:
        model: The untrained model.
        train: Training lists.
        valid: Validation lists.
        config: How to train.

    """
    roles = None if train.roles is None else train.roles.for_prediction().to_dict()
    about = [asdict(config), asdict(model.network.config), roles, model.transform.to_json()]
    digest = hashlib.sha256(json.dumps(about).encode())
    for lists in (train, valid):
        assert lists.labels is not None, "both parts have labels"
        arrays: list[np.ndarray[Any, Any]] = [lists.offsets, lists.labels, model.transform.raw_features(lists)]
        arrays += [model.transform.raw_context(lists), *model.transform.codes(lists).values()]
        for array in arrays:
            digest.update(repr((array.dtype, array.shape)).encode())
            digest.update(array.data)  # as it lies: a copy of all features would be large
    return digest.hexdigest()


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets, so that a run stops between two steps; a second Ctrl-C stops it at once."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.getsignal(signal.SIGINT)

    def note(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


# Checkpoints


_PATTERN = "step-*.checkpoint"
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after so many steps."""

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]
    """Anything that JSON can hold."""

    def save(self, folder: Path) -> Path:
        """Write the file, and keep the one before it in case this one is ever damaged; all others go."""
        payload = save(self.tensors, metadata={"step": str(self.step), "values": json.dumps(self.values)})
        path = folder / f"step-{self.step:09d}.checkpoint"
        with atomic_path(path, family=_PATTERN) as partial:
            partial.write_bytes(payload + hashlib.sha256(payload).digest())
        found = sorted(folder.glob(_PATTERN))
        place = found.index(path)
        for other in (*found[: max(0, place - 1)], *found[place + 1 :]):  # a later one was damaged: resume skipped it
            other.unlink()
        return path


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one file; a DataError says that it is damaged."""
    content = path.read_bytes()
    payload, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != digest:
        raise DataError(f"{path} is damaged: its checksum does not match")
    try:
        header = json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])["__metadata__"]
        return Checkpoint(int(header["step"]), load(payload), json.loads(header["values"]))
    except (SafetensorError, ValueError, KeyError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def latest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole (None if there is none), and what was wrong with newer ones."""
    complaints: list[str] = []
    for path in sorted(folder.glob(_PATTERN), reverse=True):
        try:
            return read_checkpoint(path), complaints
        except DataError as error:
            complaints.append(str(error))
    return None, complaints
