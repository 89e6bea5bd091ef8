"""What the log and the deployment say of an experiment at a moment; everything here blocks, so it runs in a thread."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from seq2slate.serving.analysis import Analysis, analyse
from seq2slate.serving.deployment import Deployment
from seq2slate.serving.experiment import BASE, INTERLEAVED
from seq2slate.serving.log.counts import ArmCounts, Counts, MinuteCounts
from seq2slate.serving.log.impression import is_storable
from seq2slate.serving.log.store import Store

LATEST_SLATES = 1000
"""Of which the latencies are shown."""
MINUTES = 24 * 60
"""Of which the traffic is shown."""
_USUAL_CONTROLS = ("control", "base")
_NOTHING = ArmCounts(0, 0, 0, 0, 0, 0, fallbacks=0, positions=())


@dataclass(frozen=True)
class Source:
    """Where pages get what they show."""

    store: Store
    deployment: Deployment


@dataclass(frozen=True)
class Overview:
    """An experiment as it stands."""

    analysis: Analysis
    counts: Counts
    weights: Mapping[str, float] | None
    """None if this experiment is not being served, so that nobody knows them: the shares are then taken as equal."""
    experiments: Sequence[str]
    """All that the log or the deployment knows."""
    minutes: Sequence[MinuteCounts]
    latencies: Mapping[str, Sequence[float]]
    """Milliseconds, by arm."""
    models: Mapping[str, Sequence[str | None]]
    """The fingerprints that each arm serves now, None for the base order; arms that are not served are missing."""
    made_at: float


def analysis_of(source: Source, name: str | None = None) -> Analysis | None:
    """Compare the arms of an experiment, the one being served if none is named; None if nobody knows it."""
    found = _counts(source, name)
    return None if found is None else _analysis(source.deployment, found)


def read_overview(source: Source, name: str | None = None) -> Overview | None:
    """Read everything that the page shows; None if nobody knows the experiment."""
    counts = _counts(source, name)
    if counts is None:
        return None
    store, served, now = source.store, source.deployment.experiment, time.time()
    return Overview(
        analysis=_analysis(source.deployment, counts),
        counts=counts,
        weights=_weights(source.deployment, counts),
        experiments=sorted({*store.experiments(), served.name}),
        minutes=store.minutes(counts.experiment, int(now // 60) - MINUTES + 1),
        latencies=store.latencies(counts.experiment, LATEST_SLATES),
        models=_models(source.deployment) if counts.experiment == served.name else {},
        made_at=now,
    )


def _models(deployment: Deployment) -> dict[str, list[str | None]]:
    found = {arm.name: deployment.models.get(arm.name) for arm in deployment.experiment.arms}
    fingerprints = {arm: None if model is None else model.fingerprint for arm, model in found.items()}
    if deployment.experiment.kind == "interleaving":
        return {INTERLEAVED: list(fingerprints.values())}
    return {arm: [fingerprint] for arm, fingerprint in fingerprints.items()}


def _counts(source: Source, name: str | None) -> Counts | None:
    """Return the counts with an arm of nothing for each that is served and has shown nothing."""
    served = source.deployment.experiment
    name = served.name if name is None else name
    if not is_storable(name):
        return None
    counts = source.store.counts(name)
    if name == served.name:
        arms = dict.fromkeys(served.weights, _NOTHING) | dict(counts.arms)
        return replace(counts, arms=dict(sorted(arms.items())))
    return counts if counts.arms else None


def _analysis(deployment: Deployment, counts: Counts) -> Analysis:
    return analyse(counts, control=_control(deployment, counts), weights=_weights(deployment, counts))


def _weights(deployment: Deployment, counts: Counts) -> dict[str, float] | None:
    """Return the weights that are being served; None for another experiment, or one that had other arms before."""
    if counts.experiment != deployment.experiment.name:
        return None
    weights = deployment.experiment.weights
    return weights if set(counts.arms) <= set(weights) else None


def _control(deployment: Deployment, counts: Counts) -> str | None:
    """Return what to compare with where no arm has a usual name: one that shows the base order, or else the first."""
    if any(name in counts.arms for name in _USUAL_CONTROLS):
        return None
    experiment = deployment.experiment
    served = [name for name in experiment.weights if name in counts.arms and counts.experiment == experiment.name]
    base = [arm.name for arm in experiment.arms if arm.model == BASE and arm.name in served]
    return next(iter([*base, *served, *counts.arms]))
