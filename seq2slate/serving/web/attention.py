"""Where the model looked: the probability of every item at every step of a slate, as its model computes it again.

The log has the slate and the features, not these probabilities: a matrix for each slate would be most of the log. They
are those of the very model that ordered the slate, known by its fingerprint, as long as it is being served.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seq2slate.data.impressions import Impression
from seq2slate.data.lists import FloatArray
from seq2slate.errors import Seq2SlateError
from seq2slate.serving.deployment import Deployment

_AS_LOGGED = 1e-3


@dataclass(frozen=True)
class Attention:
    """Every step of a slate."""

    probabilities: FloatArray
    """(K, N) of every item, given those placed before; 0 for these."""
    note: str | None
    """What to know about them, if anything."""


def attention_of(deployment: Deployment, slate: Impression) -> Attention | str:
    """Return the steps of a slate, or a sentence on why they are not known."""
    if slate.fallback is not None:
        return f"The slate fell back to the base order ({slate.fallback}): no model chose its items."
    if slate.draft is not None:
        return "Two arms shared this slate and filled it in turns: no single model chose its items."
    if slate.model is None:
        return "The slate is in base order: no model chose its items."
    if not slate.shown:
        return "The slate is empty."
    model = next((one for one in deployment.models.values() if one.fingerprint == slate.model), None)
    if model is None:
        return (
            f"The model that ordered this slate, {slate.model}, is no longer served: its probabilities are not known."
        )
    temperature = _temperature(deployment, slate)
    try:
        probabilities = model.runtime.step_probabilities(
            slate.features,
            slate.shown,
            categorical=slate.categorical,
            context=slate.context,
            temperature=temperature,
        )
    except Seq2SlateError as error:
        return f"The model cannot read this slate again: {error}"
    known = np.nan_to_num(probabilities)
    return Attention(known, _note(slate, known, temperature))


def _temperature(deployment: Deployment, slate: Impression) -> float:
    """Return the temperature that the slate was drawn at, if its arm is still being served."""
    if slate.log_propensities is None or slate.experiment != deployment.experiment.name:
        return 1.0
    arm = next((arm for arm in deployment.experiment.arms if arm.name == slate.arm), None)
    return 1.0 if arm is None or arm.temperature is None else arm.temperature


def _note(slate: Impression, probabilities: FloatArray, temperature: float) -> str | None:
    if slate.log_propensities is None:
        return None
    drawn = f"The slate was drawn at temperature {temperature:g}"
    chosen = probabilities[np.arange(len(slate.shown)), slate.shown]
    if np.abs(chosen - np.exp(slate.log_propensities)).max() < _AS_LOGGED:
        return f"{drawn}: these are the probabilities of the draw."
    return f"The slate was drawn at another temperature than {temperature:g}, which these probabilities are for."
