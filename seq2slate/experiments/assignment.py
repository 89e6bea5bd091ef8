"""An experiment: its arms, their weights, and which unit is assigned to which arm.

A unit (a user, as a rule) is assigned by a salted hash, so that it meets the same arm on every visit, in every replica
and after every restart, and nothing has to be remembered. The first eight bytes of SHA-256 of the salt, a NUL and the
unit, as a big-endian number, say where the unit falls in the range that the arms share in proportion to their weights.
A new salt assigns all units anew. New weights move the borders between the arms, and with them only the units between
an old and a new border.

An experiment of the other kind, interleaving, assigns nobody: all units see slates that its two arms fill together.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Literal

import msgspec

from seq2slate.errors import DataError

BASE_RANKER = "base"
"""Instead of a model's folder: the arm shows the base order."""
INTERLEAVED = "interleaved"
"""The arm, in the log, of interleaved slates."""
USUAL_CONTROLS = ("control", "base")
"""An arm of such a name is the control unless another one is named."""
ExperimentKind = Literal["split", "interleaving"]
_LONGEST_NAME = 128
_HASHES = 1 << 64


class Arm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One variant of an experiment: a way to order slates."""

    name: str
    weight: float = 1.0
    """The share of the units, relative to the weights of the other arms."""
    model: str | None = None
    """The folder of a model, or "base"; None is the model that the service was started with."""
    temperature: float | None = None
    """Sample slates from the model at this temperature, and log their propensities; None takes the best slate."""

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= _LONGEST_NAME or not self.name.isprintable():
            raise ValueError(f"name: expected 1 to {_LONGEST_NAME} printable characters")
        if not (isfinite(self.weight) and self.weight >= 0):
            raise ValueError("weight: expected a number of at least 0")
        if self.temperature is not None and not (isfinite(self.temperature) and self.temperature > 0):
            raise ValueError("temperature: expected a number above 0")
        if self.temperature is not None and self.model == BASE_RANKER:
            raise ValueError("temperature: the base order is not sampled; leave it out")


_INTERLEAVED_ARM = Arm(INTERLEAVED)


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Arms, and how the units are split between them.

    >>> experiment = Experiment("autumn", (Arm("control", model="base"), Arm("treated", weight=3)))
    >>> [experiment.assign(unit).name for unit in ("u1", "u2", "u3", "u4")]
    ['control', 'treated', 'control', 'treated']
    """

    name: str
    arms: tuple[Arm, ...]
    salt: str = ""
    """Decides which unit gets which arm; the name of the experiment if empty."""
    kind: ExperimentKind = "split"
    """Each unit is assigned to one arm ("split"), or two arms fill every slate together ("interleaving")."""

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= _LONGEST_NAME or not self.name.isprintable():
            raise ValueError(f"name: expected 1 to {_LONGEST_NAME} printable characters")
        names = [arm.name for arm in self.arms]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"arms: the name {twice!r} is used twice")
        if not sum(arm.weight for arm in self.arms) > 0:
            raise ValueError("arms: expected at least one with a weight above 0")
        if not isfinite(sum(arm.weight for arm in self.arms)):
            raise ValueError("arms: the sum of the weights is infinite")
        if self.kind == "interleaving":
            self._check_pair()

    def _check_pair(self) -> None:
        if len(self.arms) != 2:
            raise ValueError(f"arms: interleaving takes two, got {len(self.arms)}")
        if any(arm.weight != 1 or arm.temperature is not None for arm in self.arms):
            raise ValueError("arms: interleaving takes neither weights nor temperatures; leave them out")

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each arm, by its name in the log."""
        if self.kind == "interleaving":
            return {INTERLEAVED: 1.0}
        return {arm.name: arm.weight for arm in self.arms}

    @property
    def control(self) -> str:
        """The arm that the others are compared with: one of a usual name, else of the base order, else the first."""
        if self.kind == "interleaving":
            return INTERLEAVED
        usual = [name for name in USUAL_CONTROLS if name in self.weights]
        base = [arm.name for arm in self.arms if arm.model == BASE_RANKER]
        return next(iter([*usual, *base, self.arms[0].name]))

    @cached_property
    def _borders(self) -> list[int]:
        """Where the range of each arm ends, as hashes."""
        ends = list(accumulate(arm.weight for arm in self.arms))
        return [int(end / ends[-1] * _HASHES) for end in ends]

    def assign(self, unit: str) -> Arm:
        """Return the arm of a unit: always the same one.

        Interleaving has one arm for everybody, `INTERLEAVED`.
        """
        if self.kind == "interleaving":
            return _INTERLEAVED_ARM
        digest = hashlib.sha256(f"{self.salt or self.name}\0{unit}".encode()).digest()
        return self.arms[bisect_right(self._borders, int.from_bytes(digest[:8], "big"))]


def read_experiment(path: str | os.PathLike[str]) -> Experiment:
    """Read the definition of an experiment.

    Args:
        path: A .toml or .json file with the fields of `Experiment`; the folders of models are relative to it.

    Raises:
        DataError: The file cannot be read, or a field is missing, unknown or invalid.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        content = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
        experiment = msgspec.convert(content, Experiment)
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise DataError(f"{file}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: is not {'TOML' if file.suffix == '.toml' else 'JSON'}: {error}") from error
    return msgspec.structs.replace(experiment, arms=tuple(_located(arm, file.parent) for arm in experiment.arms))


def _located(arm: Arm, folder: Path) -> Arm:
    if arm.model in (None, BASE_RANKER):
        return arm
    return msgspec.structs.replace(arm, model=os.fspath(folder / str(arm.model)))
