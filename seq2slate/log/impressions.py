"""What the log holds: impressions, that is slates as they were shown, and the clicks on them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from math import isfinite
from typing import Any, TypeAlias

import numpy as np

from seq2slate.data.lists import FloatArray, default_feature_names
from seq2slate.errors import DataError

ContextValue: TypeAlias = str | float | None

_LONGEST_KEY = 512  # bytes: three of them together must fit into an index of PostgreSQL
_ROUNDING = 1e-6  # a log-probability summed in float32 may end a little above 0


class ClickOutcome(StrEnum):
    """What became of a click."""

    NEW = "new"
    DUPLICATE = "duplicate"
    """The item of this slate was clicked before: the first click counts, and only that."""
    UNKNOWN_SLATE = "unknown-slate"
    NOT_SHOWN = "not-shown"
    """The slate does not have the item, or had it only among the candidates."""


BAD_FEATURES = "bad-features"
"""The reason for the fallback of a slate whose items had no usable features: it is logged without any."""


@dataclass(frozen=True)
class Draft:
    """How two arms shared a slate."""

    a: str
    b: str
    teams: str
    """(K,) "a" or "b": who placed the item of each slot."""

    def to_json(self) -> str:
        """Return it as text."""
        return _to_json([self.a, self.b, self.teams])

    @classmethod
    def from_json(cls, text: str) -> Draft:
        """Return what `to_json` wrote."""
        return cls(*json.loads(text))


@dataclass(frozen=True, eq=False)
class Impression:
    """A slate as it was shown, with all that is needed to learn from it; checked when it is made."""

    slate_id: str
    """Unguessable, since whoever knows it can click: `secrets.token_urlsafe(16)`."""
    at: float
    """When, in seconds since 1970."""
    unit: str
    """Who saw it: what an experiment assigns to its arms."""
    experiment: str
    arm: str
    items: Sequence[str]
    """(N,) the ids of the candidates, in base order."""
    shown: Sequence[int]
    """(K,) indices into `items`, in the order of the slate."""
    features: FloatArray
    """(N, F) raw dense columns."""
    latency_ms: float
    feature_names: tuple[str, ...] = ()
    """(F,) `f1`, `f2`, … if none are given."""
    categorical: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    """Text columns, (N,) values each."""
    context: Mapping[str, ContextValue] | None = None
    """What is known of the whole list."""
    model: str | None = None
    """The fingerprint of the model that ordered the slate, or None for the base order."""
    log_propensities: Sequence[float] | None = None
    """(K,) of each slot's choice given the slots above it; None if nothing was left to chance."""
    fallback: str | None = None
    """Why the base order was shown in the place of the model's, or None."""
    draft: Draft | None = None
    """Who placed what, if two arms shared the slate."""

    def __post_init__(self) -> None:
        """Refuse what could not be learned from later."""
        features = np.ascontiguousarray(self.features, dtype=np.float32)
        object.__setattr__(self, "features", features)
        if features.ndim != 2 or len(features) != len(self.items):
            raise self._error(f"{len(self.items)} items need features of as many rows, got shape {features.shape}")
        object.__setattr__(self, "feature_names", tuple(self.feature_names) or default_feature_names(features.shape[1]))
        if len(self.feature_names) != features.shape[1]:
            raise self._error(f"{len(self.feature_names)} feature names for {features.shape[1]} features")
        if not np.isfinite(features).all():
            raise self._error("every feature must be finite")
        if len(set(self.items)) < len(self.items):
            raise self._error("an item stands twice among the candidates")
        if len(set(self.shown)) < len(self.shown) or not all(0 <= item < len(self.items) for item in self.shown):
            raise self._error(f"shown must hold different indices into the {len(self.items)} items")
        for name, values in self.categorical.items():
            if len(values) != len(self.items):
                raise self._error(f"column {name} has {len(values)} values for {len(self.items)} items")
        for name in ("slate_id", "unit", "experiment", "arm"):
            if len(getattr(self, name).encode(errors="replace")) > _LONGEST_KEY:
                raise DataError(f"impression: {name} is longer than {_LONGEST_KEY} bytes")
        if not (isfinite(self.at) and isfinite(self.latency_ms)):
            raise self._error("the time and the latency must be finite")
        self._check_propensities()
        if self.draft is not None and (len(self.draft.teams) != len(self.shown) or set(self.draft.teams) - {"a", "b"}):
            raise self._error(f"teams {self.draft.teams!r} for {len(self.shown)} slots; expected a or b for each")

    def _check_propensities(self) -> None:
        if self.log_propensities is None:
            return
        if len(self.log_propensities) != len(self.shown):
            raise self._error(f"{len(self.log_propensities)} log-propensities for {len(self.shown)} slots")
        if not all(isfinite(value) and value <= _ROUNDING for value in self.log_propensities):
            raise self._error("log-propensities must be finite and at most 0")

    def _error(self, problem: str) -> DataError:
        return DataError(f"impression {self.slate_id!r}: {problem}")


@dataclass(frozen=True)
class LoggedImpression:
    """An impression as the log has it, with its clicks."""

    impression: Impression
    clicks: Mapping[int, float]
    """From the index of the item to the time of its first click."""


@dataclass(frozen=True)
class Columns:
    """The columns that the items of an impression have; the log keeps each set of them once."""

    features: tuple[str, ...]
    categorical: tuple[str, ...]

    def to_json(self) -> str:
        """Return them as text."""
        return json.dumps({"features": self.features, "categorical": self.categorical})

    @classmethod
    def from_json(cls, text: str) -> Columns:
        """Return what `to_json` wrote."""
        values = json.loads(text)
        return cls(tuple(values["features"]), tuple(values["categorical"]))

    @property
    def key(self) -> str:
        """A name for this set of columns, the same everywhere."""
        return _key(self)


@lru_cache(maxsize=64)
def _key(columns: Columns) -> str:
    return hashlib.blake2b(columns.to_json().encode(), digest_size=8).hexdigest()


ROW = (
    "slate_id, at, unit, experiment, arm, model, items, shown, log_propensities, columns, features, categorical, "
    "context, fallback, latency_ms, draft"
)
"""The columns of a row of `impressions`, in the order of `to_row` and `from_row`."""


def columns_of(impression: Impression) -> Columns:
    """Return the columns of an impression's items."""
    return Columns(impression.feature_names, tuple(impression.categorical))


def to_row(impression: Impression) -> tuple[Any, ...]:
    """Return an impression as a row of the database; later changes of its arrays do not reach it."""
    one = impression
    row = (
        one.slate_id,
        float(one.at),
        one.unit,
        one.experiment,
        one.arm,
        one.model,
        _to_json(list(one.items)),
        _to_json([int(item) for item in one.shown]),
        None if one.log_propensities is None else _to_json([float(value) for value in one.log_propensities]),
        columns_of(one).key,
        one.features.astype("<f4", copy=False).tobytes(),
        _to_json([list(values) for values in one.categorical.values()]) if one.categorical else None,
        None if one.context is None else _to_json(dict(one.context)),
        one.fallback,
        float(one.latency_ms),
        None if one.draft is None else one.draft.to_json(),
    )
    if not all(is_storable(value) for value in row if isinstance(value, str)):
        raise DataError(f"impression {one.slate_id!r}: some text has a NUL or half a surrogate pair")
    return row


def is_storable(text: str) -> bool:
    r"""Say whether a database takes a text: NULs and halves of surrogate pairs come from broken or hostile clients.

    >>> [is_storable(text) for text in ("Zoë", "a\0b", "\ud800")]
    [True, False, False]
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def from_row(row: Sequence[Any], columns: Columns) -> Impression:
    """Return what `to_row` wrote."""
    slate_id, at, unit, experiment, arm, model, items, shown, propensities, _, features, categorical, *rest = row
    context, fallback, latency_ms, draft = rest
    ids = json.loads(items)
    return Impression(
        slate_id=slate_id,
        at=at,
        unit=unit,
        experiment=experiment,
        arm=arm,
        model=model,
        items=ids,
        shown=json.loads(shown),
        log_propensities=None if propensities is None else json.loads(propensities),
        features=np.frombuffer(features, "<f4").reshape(len(ids), len(columns.features)),
        feature_names=columns.features,
        categorical=dict(zip(columns.categorical, json.loads(categorical or "[]"), strict=True)),
        context=None if context is None else json.loads(context),
        fallback=fallback,
        latency_ms=latency_ms,
        draft=None if draft is None else Draft.from_json(draft),
    )


_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
