"""From lists to a trained model in one call: a preset with the user's choices on top, and a folder at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seq2slate.data.lists import ItemLists
from seq2slate.errors import DataError, UsageError
from seq2slate.model.slate_model import SlateModel
from seq2slate.training.config import PRESETS, Preset
from seq2slate.training.fit import History, fit


@dataclass(frozen=True)
class Choices:
    """What a user may say about a run; None keeps what the preset says."""

    preset: str = "default"
    loss: str | None = None
    policy: str | None = None
    decoder: str | None = None
    k: int | None = None
    epochs: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    seed: int = 0

    def resolve(self) -> Preset:
        """Return the preset with the choices in place."""
        if self.preset not in PRESETS:
            raise UsageError(f"there is no preset {self.preset!r}; choose one of {', '.join(PRESETS)}")
        preset = PRESETS[self.preset]
        objective = _chosen(loss=self.loss, policy=self.policy, k=self.k)
        run = _chosen(epochs=self.epochs, learning_rate=self.learning_rate, batch_size=self.batch_size, seed=self.seed)
        training = replace(preset.training, objective=replace(preset.training.objective, **objective), **run)
        network = replace(preset.network, **_chosen(decoder=self.decoder))
        if training.objective.policy == "reinforce":  # the paper does not regularise it
            pure = replace(training.objective, click_likelihood_weight=0.0)
            training, network = replace(training, l2=0.0, objective=pure), replace(network, dropout=0.0)
        return Preset(network, training)


def _chosen(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def hold_out(lists: ItemLists, *, seed: int) -> tuple[ItemLists, ItemLists]:
    """Return the lists to learn from, and a tenth to choose with."""
    if len(lists) < 2:
        raise DataError("one list cannot be both learned from and validated on: give validation lists")
    train, valid = lists.split(1 - max(0.1, 1 / len(lists)), seed=seed)
    return train, valid


def train_model(
    train: ItemLists,
    valid: ItemLists | None = None,
    choices: Choices | None = None,
    *,
    out: Path | None = None,
    resume: bool = False,
    tensorboard: Path | None = None,
    quiet: bool = False,
) -> tuple[SlateModel, History]:
    """Train a model and, if a folder is named, save it there; checkpoints lie beside it until the run has ended.

    Without validation lists a tenth of the training lists is held out, by the seed.
    """
    choices = choices or Choices()
    preset = choices.resolve()
    if valid is None:
        train, valid = hold_out(train, seed=choices.seed)
    model = SlateModel.create(train, preset.network, seed=choices.seed)
    checkpoints = None if out is None else out.with_name(f"{out.name}.checkpoints")
    history = fit(
        model,
        train,
        valid,
        preset.training,
        out=out,
        checkpoints=checkpoints,
        resume=resume,
        tensorboard=tensorboard,
        quiet=quiet,
    )
    return model, history
