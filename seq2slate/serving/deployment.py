"""A deployment: an experiment and the models of its arms, loaded, checked and warmed up.

A deployment never changes. When a model folder or the experiment file is replaced, a new deployment is loaded beside
the old one and takes its place; requests in flight keep the one they began with.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch

from seq2slate.data.features import FeatureTransform
from seq2slate.errors import DataError, UsageError
from seq2slate.experiments.assignment import BASE_RANKER, INTERLEAVED, Arm, Experiment, read_experiment
from seq2slate.experiments.counts import Definition
from seq2slate.model.backends.backend import NetworkBackend, choose_backend
from seq2slate.model.slate_model import SlateModel, load_saved_network
from seq2slate.saving import SavedRanker
from seq2slate.serving.messages import ReadNames

_LONGEST_NAME = 128
ONLY_MODEL = Experiment("default", (Arm("model"),))
"""What is served without an experiment file."""


@dataclass(frozen=True)
class ServedModel:
    """A model, and the fingerprint that the log identifies it by."""

    runtime: NetworkBackend
    fingerprint: str
    name: str = ""
    """The name of its folder, for people."""


@dataclass(frozen=True)
class Deployment:
    """An experiment with the models of its arms."""

    experiment: Experiment
    models: Mapping[str, ServedModel]
    """By arm; an arm that shows the base order has none."""

    @cached_property
    def transforms(self) -> Mapping[str, FeatureTransform | None]:
        """The columns that each arm reads.

        They are those of its model, or of the first model for an arm without one, which falls back where that would;
        None if there is no model at all.
        """
        arms = [INTERLEAVED, *(arm.name for arm in self.experiment.arms)]
        first = next(iter(self.models.values()), None)
        models = {arm: self.models.get(arm, first) for arm in arms}
        return {arm: None if model is None else model.runtime.transform for arm, model in models.items()}

    @cached_property
    def reads(self) -> ReadNames | None:
        """The columns by name that any of its models reads; None without models: the first is trained on all."""
        transforms = [model.runtime.transform for model in self.models.values()]
        if not transforms:
            return None
        context = [name for one in transforms for name in (*one.context.names, *one.context_categorical)]
        return ReadNames(frozenset(chain.from_iterable(one.categorical for one in transforms)), frozenset(context))

    @cached_property
    def definition(self) -> Definition:
        """The settings of the experiment that the log records."""
        models = {arm.name: self.models.get(arm.name) for arm in self.experiment.arms}
        names = {arm: BASE_RANKER if model is None else model.name for arm, model in models.items()}
        return Definition(self.experiment.name, self.experiment.control, self.experiment.weights, names)


def load_deployment(
    model: str | os.PathLike[str] | None, experiment_file: str | os.PathLike[str] | None = None
) -> Deployment:
    """Load an experiment with its models, or a single model.

    Args:
        model: Folder of the model of all arms that name none.
        experiment_file: A .toml or .json file; without one the model is the only arm.

    Raises:
        DataError: A file cannot be read or is invalid, or a model gives probabilities that are not finite.
        UsageError: An arm has no model, or the folder holds something else than a network.
    """
    experiment = ONLY_MODEL if experiment_file is None else read_experiment(experiment_file)
    folders = {arm.name: _folder(arm, model) for arm in experiment.arms if arm.model != BASE_RANKER}
    loaded = {folder: _load(folder) for folder in dict.fromkeys(folders.values())}
    return Deployment(experiment, {arm: loaded[folder] for arm, folder in folders.items()})


def _folder(arm: Arm, default: str | os.PathLike[str] | None) -> str:
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
        raise DataError(f"{folder}: the model's probabilities are not finite: its weights are broken") from error
    return ServedModel(runtime, _fingerprint(saved), _name_of(folder))


def _name_of(folder: str) -> str:
    """Return the name of a folder; of a link, that of the folder which it leads to."""
    name = os.path.basename(os.path.realpath(folder))[:_LONGEST_NAME]
    return "".join(character if character.isprintable() else "\ufffd" for character in name)


def _warm_up(runtime: NetworkBackend) -> None:
    """Order one list, greedily and by sampling: no request waits for a compiler, and no broken model is served."""
    transform = runtime.transform
    texts: dict[str, list[str | None]] = {name: [None, None] for name in transform.categorical}
    context: dict[str, str | float | None] = dict.fromkeys(transform.context.names, 0.0)
    context |= dict.fromkeys(transform.context_categorical)
    features = np.zeros((2, len(transform.dense.names)), np.float32)
    for generator in (None, torch.Generator()):
        _, logs = runtime.slate(features, categorical=texts, context=context, generator=generator)
        if not np.isfinite(logs).all():
            raise ArithmeticError("some log-probability is NaN or infinite")


def _fingerprint(saved: SavedRanker) -> str:
    """Return a hash of everything that a slate depends on."""
    digest = hashlib.sha256(json.dumps([saved.kind, saved.config], sort_keys=True).encode())
    digest.update(saved.features.encode())
    for name, weights in sorted(saved.weights.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights).tobytes())
    return digest.hexdigest()[:16]
