"""What is being served at a moment: an experiment and the models of its arms, loaded, checked and warmed up.

A deployment never changes. When a model folder or the experiment's file is replaced, a new deployment is made beside
the old one and takes its place; a request that has begun stays with the one it began with.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from seq2slate.errors import DataError, UsageError
from seq2slate.experiments.assignment import BASE, Arm, Experiment, read_experiment
from seq2slate.model.backends.backend import NetworkBackend, choose_backend
from seq2slate.model.slate_model import SlateModel, load_saved_network
from seq2slate.saving import SavedRanker

ONLY_MODEL = Experiment("default", (Arm("model"),))
"""What runs when there is no experiment."""
Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class ServedModel:
    """A model and the name that the log knows it by."""

    runtime: NetworkBackend
    fingerprint: str


@dataclass(frozen=True)
class Deployment:
    """An experiment with the models of its arms."""

    experiment: Experiment
    models: Mapping[str, ServedModel]
    """By the name of the arm; an arm that shows the base order has none."""

    def feature_names(self, arm: Arm) -> tuple[str, ...] | None:
        """Return the columns that an arm expects: its model's, or those of the first model; None if there is none."""
        model = self.models.get(arm.name) or next(iter(self.models.values()), None)
        return None if model is None else model.runtime.transform.dense.names

    def reads(self, categorical: Mapping[str, object], context: Mapping[str, object] | None) -> bool:
        """Say whether the first model could read these columns: arms without a model fail where its slates would."""
        model = next(iter(self.models.values()), None)
        if model is None:
            return True
        try:
            model.runtime.transform.check_columns(categorical, context or {})
        except DataError:
            return False
        return True


def load_deployment(model: Folder | None, experiment_file: Folder | None = None) -> Deployment:
    """Load the experiment, or the one model that is to be served without one."""
    experiment = ONLY_MODEL if experiment_file is None else read_experiment(experiment_file)
    folders = {arm.name: _folder(arm, model) for arm in experiment.arms if arm.model != BASE}
    loaded = {folder: _load(folder) for folder in dict.fromkeys(folders.values())}
    return Deployment(experiment, {arm: loaded[folder] for arm, folder in folders.items()})


def _folder(arm: Arm, default: Folder | None) -> str:
    if arm.model is not None:
        return arm.model
    if default is None:
        raise UsageError(f"arm {arm.name!r} names no model: name one, or give MODEL_DIR")
    return os.fspath(default)


def _load(folder: str) -> ServedModel:
    saved = load_saved_network(folder)
    try:
        runtime = choose_backend(SlateModel.from_saved(saved))
        _warm_up(runtime)
    except ArithmeticError as error:
        raise DataError(f"{folder}: the model's probabilities are not numbers: its weights are broken") from error
    return ServedModel(runtime, _fingerprint(saved))


def _warm_up(runtime: NetworkBackend) -> None:
    """Run one list both ways: the first request must not wait for a compiler, and a broken model must not be served."""
    transform = runtime.transform
    texts: dict[str, list[str | None]] = {name: [None, None] for name in transform.categorical}
    context: dict[str, str | float | None] = dict.fromkeys(transform.context.names, 0.0)
    context |= dict.fromkeys(transform.context_categorical)
    features = np.zeros((2, len(transform.dense.names)), np.float32)
    for generator in (None, torch.Generator()):
        _, logs = runtime.slate(features, categorical=texts, context=context, generator=generator)
        if not np.isfinite(logs).all():
            raise ArithmeticError("some log-probability is infinite or no number")


def _fingerprint(saved: SavedRanker) -> str:
    """Return a name for everything that decides about a slate."""
    digest = hashlib.sha256(json.dumps([saved.kind, saved.config], sort_keys=True).encode())
    digest.update(saved.features.encode())
    for name, weights in sorted(saved.weights.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights).tobytes())
    return digest.hexdigest()[:16]
