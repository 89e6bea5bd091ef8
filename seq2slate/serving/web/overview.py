"""What the log and the deployment say of an experiment at a moment; everything here blocks, so it runs in a thread."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from seq2slate.data.impressions import is_storable
from seq2slate.experiments.analysis import Analysis, analyse
from seq2slate.experiments.assignment import INTERLEAVED, USUAL_CONTROLS
from seq2slate.experiments.counts import ArmCounts, Counts, Definition, MinuteCounts
from seq2slate.log.impression_log import ImpressionLog
from seq2slate.serving.deployment import Deployment

LATEST_SLATES = 1000
"""Of which the latencies are shown."""
MINUTES = 24 * 60
"""Of which the traffic is shown."""
_NOTHING = ArmCounts(0, 0, 0, 0, 0, 0, fallbacks=0, positions=())


@dataclass(frozen=True)
class Source:
    """Where pages get what they show."""

    store: ImpressionLog
    deployment: Deployment


@dataclass(frozen=True)
class Overview:
    """An experiment as it stands."""

    analysis: Analysis
    counts: Counts
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
    found = _read(source, name)
    return None if found is None else found[1]


def read_overview(source: Source, name: str | None = None) -> Overview | None:
    """Read everything that the page shows; None if nobody knows the experiment."""
    found = _read(source, name)
    if found is None:
        return None
    counts, analysis = found
    store, served, now = source.store, source.deployment.experiment, time.time()
    return Overview(
        analysis=analysis,
        counts=counts,
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


def _read(source: Source, name: str | None) -> tuple[Counts, Analysis] | None:
    """Return the counts, with an arm of nothing for each that has shown nothing, and what they say; None if unknown.

    The weights are known only if all arms of the log have one: arms may have been taken away since.
    """
    name = source.deployment.experiment.name if name is None else name
    if not is_storable(name):
        return None
    counts, definition = source.store.counts(name), _definition(source, name)
    if definition is not None:
        arms = dict.fromkeys(definition.weights, _NOTHING) | dict(counts.arms)
        counts = replace(counts, arms=dict(sorted(arms.items())))
        weights = definition.weights if set(arms) <= set(definition.weights) else None
        return counts, analyse(counts, control=definition.control, weights=weights)
    if not counts.arms:
        return None
    has_usual = any(arm in counts.arms for arm in USUAL_CONTROLS)
    return counts, analyse(counts, control=None if has_usual else next(iter(counts.arms)))


def _definition(source: Source, name: str) -> Definition | None:
    """Return the experiment as it is served now, or as it was noted when it was."""
    served = source.deployment.experiment
    if name == served.name:
        return Definition(name, served.control, served.weights)
    return source.store.definition(name)
