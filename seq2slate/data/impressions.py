"""Impressions: what was shown in which slot, with which propensity, to whom, and what was clicked when.

`Impression` is one slate as it was shown, `Impressions` the same for many lists as columns beside those of `ItemLists`.
The click simulator, the log of the service, its export and the readers of files share these two types, and
`lists_from_impressions` and `impressions_from_lists` convert one into the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite, isnan
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seq2slate.data.lists import (
    PER_ITEM,
    PER_LIST,
    BoolArray,
    FloatArray,
    IntArray,
    ItemLists,
    Strings,
    as_strings,
    default_feature_names,
    offsets_from_lengths,
)
from seq2slate.errors import DataError, UsageError

ContextValue: TypeAlias = str | float | None
DoubleArray: TypeAlias = npt.NDArray[np.float64]

NOT_SHOWN = -1
"""The slot of a candidate that was not shown."""
BAD_FEATURES = "bad-features"
"""The fallback reason of a slate whose items had no usable features: it is logged without any."""

_LONGEST_KEY = 512  # bytes: three of them together must fit into an index of PostgreSQL
_ROUNDING = 1e-6  # a log-probability summed in float32 may end a little above 0


@dataclass(frozen=True)
class Draft:
    """Who placed what in an interleaved slate of two arms."""

    a: str
    b: str
    teams: str
    """(K,) "a" or "b": who placed the item of each slot."""

    def to_json(self) -> str:
        """Return `[a, b, teams]` as JSON."""
        return json.dumps([self.a, self.b, self.teams], ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Draft:
        """Return what `to_json` wrote."""
        return cls(*json.loads(text))

    @staticmethod
    def is_json(text: str) -> bool:
        """Say whether `from_json` can read a text."""
        try:
            values = json.loads(text)
        except ValueError:
            return False
        return isinstance(values, list) and len(values) == 3 and all(isinstance(value, str) for value in values)


class ItemColumns(NamedTuple):
    """The names of the columns that the items of an impression have."""

    features: tuple[str, ...]
    categorical: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Impression:
    """One slate as it was shown, with all that is needed to learn from it; checked when it is made.

    >>> one = Impression("s1", 5.0, "user 7", "autumn", "new", ["a", "b"], [1], np.ones((2, 3)), 0.8, clicks={1: 7.5})
    >>> [one.items[item] for item in one.shown], one.feature_names
    (['b'], ('f1', 'f2', 'f3'))
    """

    slate_id: str
    """Unguessable, since whoever knows it can click: `secrets.token_urlsafe(16)`."""
    at: float
    """When it was shown, in seconds since 1970."""
    unit: str
    """Who saw it: the unit of randomisation, such as a user or a session."""
    experiment: str
    arm: str
    items: Sequence[str]
    """(N,) ids of the candidates, in base order."""
    shown: Sequence[int]
    """(K,) indices into `items`, from the top slot down."""
    features: FloatArray
    """(N, F) raw dense columns, NaN where a value is missing."""
    latency_ms: float
    feature_names: tuple[str, ...] = ()
    """(F,) `f1`, `f2`, … if none are given."""
    categorical: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    """Text columns, (N,) values each."""
    context: Mapping[str, ContextValue] | None = None
    """Features of the whole list."""
    model: str | None = None
    """The fingerprint of the model that ordered the slate; None for the base order."""
    log_propensities: Sequence[float] | None = None
    """(K,) log-probability of the choice for each slot given the slots above it; None if every choice was certain."""
    fallback: str | None = None
    """Why the base order was shown instead of the model's; None if it was not."""
    fallback_detail: str | None = None
    """With BAD_FEATURES: the column and the item."""
    draft: Draft | None = None
    """Who placed what, if two arms were interleaved."""
    titles: Sequence[str | None] | None = None
    """(N,) what people call the items, shown on the pages and never a feature; None if there are none."""
    clicks: Mapping[int, float] = field(default_factory=dict)
    """From the index of an item to the time of its first click, in seconds since 1970."""

    def __post_init__(self) -> None:
        """Refuse what could not be learned from later."""
        features = np.ascontiguousarray(self.features, dtype=np.float32)
        object.__setattr__(self, "features", features)
        if features.ndim != 2 or len(features) != len(self.items):
            raise self._error(f"{len(self.items)} items need features of as many rows, got shape {features.shape}")
        object.__setattr__(self, "feature_names", tuple(self.feature_names) or default_feature_names(features.shape[1]))
        if len(self.feature_names) != features.shape[1]:
            raise self._error(f"{len(self.feature_names)} feature names for {features.shape[1]} features")
        if np.isinf(features).any():
            raise self._error("every feature must be finite or missing")
        if len(set(self.items)) < len(self.items):
            raise self._error("an item occurs twice among the candidates")
        if self.titles is not None and len(self.titles) != len(self.items):
            raise self._error(f"{len(self.titles)} titles for {len(self.items)} items")
        for name, values in self.categorical.items():
            if len(values) != len(self.items):
                raise self._error(f"column {name} has {len(values)} values for {len(self.items)} items")
        for name in ("slate_id", "unit", "experiment", "arm"):
            if len(getattr(self, name).encode(errors="replace")) > _LONGEST_KEY:
                raise DataError(f"impression: {name} is longer than {_LONGEST_KEY} bytes")
        if not (isfinite(self.at) and isfinite(self.latency_ms)):
            raise self._error("the time and the latency must be finite")
        self._check_slate()

    def _check_slate(self) -> None:
        if len(set(self.shown)) < len(self.shown) or not all(0 <= item < len(self.items) for item in self.shown):
            raise self._error(f"shown must hold different indices into the {len(self.items)} items")
        if self.log_propensities is not None:
            if len(self.log_propensities) != len(self.shown):
                raise self._error(f"{len(self.log_propensities)} log-propensities for {len(self.shown)} slots")
            if not all(isfinite(value) and value <= _ROUNDING for value in self.log_propensities):
                raise self._error("log-propensities must be finite and at most 0")
            if not any(self.log_propensities):
                object.__setattr__(self, "log_propensities", None)
        if self.draft is not None and (len(self.draft.teams) != len(self.shown) or set(self.draft.teams) - {"a", "b"}):
            raise self._error(f"teams {self.draft.teams!r} for {len(self.shown)} slots; expected a or b for each")
        if self.clicks and not (set(self.clicks) <= set(self.shown) and all(map(isfinite, self.clicks.values()))):
            raise self._error("clicks must lead from items that were shown to finite times")

    def _error(self, problem: str) -> DataError:
        return DataError(f"impression {self.slate_id!r}: {problem}")

    @property
    def has_storable_texts(self) -> bool:
        """Whether a database takes all of its texts, which are joined to be looked at together."""
        context, draft = self.context or {}, (self.draft.a, self.draft.b) if self.draft else ()
        texts = (
            (self.slate_id, self.unit, self.experiment, self.arm, *draft, self.model, self.fallback),
            self.items,
            (*context, *(value for value in context.values() if isinstance(value, str)), *self.categorical),
            *self.categorical.values(),
            self.titles or (),
            (self.fallback_detail,),
        )
        return all(is_storable("".join(filter(None, some))) for some in texts)

    @property
    def columns(self) -> ItemColumns:
        """The names of the columns of its items."""
        return ItemColumns(self.feature_names, tuple(self.categorical))


@dataclass(frozen=True, eq=False)
class Impressions:
    """The impressions of Q lists as columns, in `ItemLists.impressions`; a column that a source does not have is None.

    The log-propensity of a whole slate is the sum over the items of its list.
    """

    slots: IntArray = field(metadata=PER_ITEM)
    """(T,) the slot in which each item was shown, 0 at the top; -1 for a candidate that was not shown."""
    log_propensities: DoubleArray | None = field(default=None, metadata=PER_ITEM)
    """(T,) log-probability with which each item got its slot given the slots above; 0 if certain or not shown."""
    clicked_at: DoubleArray | None = field(default=None, metadata=PER_ITEM)
    """(T,) time of the first click in seconds since 1970; NaN if not clicked."""
    units: Strings | None = field(default=None, metadata=PER_LIST)
    """(Q,) who saw each list."""
    arms: Strings | None = field(default=None, metadata=PER_LIST)
    """(Q,) the arm of the experiment that the unit was assigned to."""
    times: DoubleArray | None = field(default=None, metadata=PER_LIST)
    """(Q,) when each list was shown, in seconds since 1970."""
    experiments: Strings | None = field(default=None, metadata=PER_LIST)
    """(Q,) the experiment that was running."""
    models: Strings | None = field(default=None, metadata=PER_LIST)
    """(Q,) fingerprint of the model that ordered the slate; null for the base order."""
    fallbacks: Strings | None = field(default=None, metadata=PER_LIST)
    """(Q,) why the base order was shown instead of the model's; null if it was not."""
    drafts: Strings | None = field(default=None, metadata=PER_LIST)
    """(Q,) `Draft.to_json` of an interleaved slate; null for others."""
    latency_ms: DoubleArray | None = field(default=None, metadata=PER_LIST)
    """(Q,) how long the service took, in milliseconds."""

    def __post_init__(self) -> None:
        """Bring every column into its type."""
        for entry in fields(self):
            values = getattr(self, entry.name)
            if values is not None:
                object.__setattr__(self, entry.name, _typed(entry.name, values))

    def check(self, list_index: IntArray, locate: Callable[[int], str], locate_list: Callable[[int], str]) -> None:
        """Raise a DataError for values that cannot be; `locate` names an item and `locate_list` a list.

        Refused: a slot below -1, a slot with two items, a log-propensity that is above 0, NaN or infinite, an infinite
        click time, a click on an item that was not shown, a time or latency that is NaN or infinite, and a draft that
        is not one.
        """

        def refuse(wrong: BoolArray, problem: str, where: Callable[[int], str] = locate) -> None:
            if wrong.any():
                raise DataError(f"{where(int(wrong.argmax()))}: {problem}")

        refuse(self.slots < NOT_SHOWN, "shown_slot must be 0 or more, or -1 for an item that was not shown")
        refuse(self._shares_slot(list_index), "another item of the list was shown in the same slot")
        if self.log_propensities is not None:
            right = np.isfinite(self.log_propensities) & (self.log_propensities <= _ROUNDING)
            refuse(~right, "the log-propensity must be finite and at most 0")
        if self.clicked_at is not None:
            refuse(np.isinf(self.clicked_at), "clicked_at must be finite, or missing for an item without a click")
            refuse(~np.isnan(self.clicked_at) & (self.slots < 0), "clicked, but not shown")
        if self.times is not None:
            refuse(~np.isfinite(self.times), "the time of the impression must be finite", locate_list)
        if self.latency_ms is not None:
            refuse(~np.isfinite(self.latency_ms), "the latency must be finite", locate_list)
        if self.drafts is not None:
            wrong = [draft is not None and not Draft.is_json(draft) for draft in self.drafts.to_pylist()]
            refuse(np.array(wrong, dtype=bool), "draft must be a JSON list: arm a, arm b, teams", locate_list)

    def _shares_slot(self, list_index: IntArray) -> BoolArray:
        """(T,) whether an earlier item of the same list has the same slot."""
        order = np.lexsort((self.slots, list_index))
        same = (np.diff(self.slots[order]) == 0) & (np.diff(list_index[order]) == 0) & (self.slots[order[1:]] >= 0)
        shares = np.zeros(len(self.slots), dtype=bool)
        shares[order[1:][same]] = True
        return shares


def _typed(name: str, values: Any) -> Any:
    if name == "slots":
        return np.ascontiguousarray(values, dtype=np.int64)
    if name in ("log_propensities", "clicked_at", "times", "latency_ms"):
        return np.ascontiguousarray(values, dtype=np.float64)
    return as_strings(values)


# From impressions to lists, and back


def lists_from_impressions(impressions: Sequence[Impression], context: Mapping[str, type] | None = None) -> ItemLists:
    """Return impressions as lists: candidates in base order, clicks as labels, the rest in `ItemLists.impressions`.

    Titles and the details of fallbacks, which are for people, are left out.

    A label is 1 for an item that was clicked and 0 for every other, also for those that were not shown.

    Args:
        impressions: With the same feature and categorical columns, at least one.
        context: The context columns that the lists get, as `context_types` returns them; if not given, those of these
            impressions. A text column that an impression does not have is null, a numeric one NaN.

    >>> one = Impression("s1", 5.0, "u", "autumn", "new", ["a", "b", "c"], [2, 0], np.ones((3, 1)), 1, clicks={2: 7.5})
    >>> lists = lists_from_impressions([one])
    >>> lists.labels.tolist(), lists.impressions.slots.tolist(), lists.impressions.clicked_at.tolist()
    ([0.0, 0.0, 1.0], [1, -1, 0], [nan, nan, 7.5])
    >>> impressions_from_lists(lists)[0].clicks
    {2: 7.5}
    """
    if not impressions:
        raise UsageError("lists_from_impressions needs at least one impression")
    first = impressions[0]
    types = context_types(one.context for one in impressions) if context is None else context
    for one in impressions:
        if one.columns != first.columns or not _fits(one.context or {}, types):
            raise DataError(f"impression {one.slate_id!r} does not have the columns of {first.slate_id!r}")
    offsets = offsets_from_lengths(np.array([len(one.items) for one in impressions]))
    slots, log_propensities, clicked_at = _item_columns(impressions, offsets)
    return ItemLists(
        features=np.concatenate([one.features for one in impressions]),
        offsets=offsets,
        labels=~np.isnan(clicked_at),
        list_ids=[one.slate_id for one in impressions],
        item_ids=[item for one in impressions for item in one.items],
        feature_names=first.feature_names,
        categorical={
            name: [value for one in impressions for value in one.categorical[name]] for name in first.categorical
        },
        context={name: _context_column(impressions, name, kind) for name, kind in types.items()},
        impressions=Impressions(
            slots,
            log_propensities,
            clicked_at,
            units=[one.unit for one in impressions],
            arms=[one.arm for one in impressions],
            times=np.array([one.at for one in impressions]),
            experiments=[one.experiment for one in impressions],
            models=[one.model for one in impressions],
            fallbacks=[one.fallback for one in impressions],
            drafts=[None if one.draft is None else one.draft.to_json() for one in impressions],
            latency_ms=np.array([one.latency_ms for one in impressions]),
        ),
    )


def _item_columns(impressions: Sequence[Impression], offsets: IntArray) -> tuple[IntArray, DoubleArray, DoubleArray]:
    slots = np.full(offsets[-1], NOT_SHOWN)
    log_propensities, clicked_at = np.zeros(len(slots)), np.full(len(slots), np.nan)
    for start, one in zip(offsets.tolist(), impressions, strict=False):
        rows = start + np.array(one.shown, dtype=np.int64)
        slots[rows] = np.arange(len(rows))
        if one.log_propensities is not None:
            log_propensities[rows] = one.log_propensities
        for item, at in one.clicks.items():
            clicked_at[start + item] = at
    return slots, log_propensities, clicked_at


def impressions_from_lists(lists: ItemLists) -> list[Impression]:
    """Return the impression of every list: what `lists_from_impressions` was given.

    What the lists do not know is empty text or 0; a click whose time is not known (a positive label) has the time of
    its impression. A context column that is null or NaN comes back as None.

    Raises:
        DataError: If the lists have no impressions, or lack items that were shown.
    """
    return [_impression(one) for one in lists]


def _impression(one: ItemLists) -> Impression:
    name, seen = one.list_ids[0].as_py(), one.impressions
    if seen is None:
        raise DataError(f"list {name!r}: the lists have no impressions, so what was shown is unknown")
    order = np.argsort(seen.slots, kind="stable")
    shown = order[seen.slots[order] >= 0]
    if not np.array_equal(seen.slots[shown], np.arange(len(shown))):
        raise DataError(f"list {name!r}: a slot is empty; items that were shown must not be left out")
    draft = None if seen.drafts is None else seen.drafts[0].as_py()
    at = 0.0 if seen.times is None else float(seen.times[0])
    return Impression(
        slate_id=name,
        at=at,
        unit=_text(seen.units) or "",
        experiment=_text(seen.experiments) or "",
        arm=_text(seen.arms) or "",
        items=one.item_ids.to_pylist(),
        shown=shown.tolist(),
        features=one.features,
        latency_ms=0.0 if seen.latency_ms is None else float(seen.latency_ms[0]),
        feature_names=one.feature_names,
        categorical={column: values.to_pylist() for column, values in one.categorical.items()},
        context={column: _context_value(values) for column, values in one.context.items()} or None,
        model=_text(seen.models),
        log_propensities=None if seen.log_propensities is None else seen.log_propensities[shown].tolist(),
        fallback=_text(seen.fallbacks),
        draft=None if draft is None else Draft.from_json(draft),
        clicks=_clicks(one, seen, at),
    )


def _text(values: Strings | None) -> str | None:
    return None if values is None else values[0].as_py()


def _clicks(one: ItemLists, seen: Impressions, at: float) -> dict[int, float]:
    if seen.clicked_at is not None:
        return {int(item): float(seen.clicked_at[item]) for item in np.flatnonzero(~np.isnan(seen.clicked_at))}
    return (
        {} if one.labels is None else {int(item): at for item in np.flatnonzero((one.labels > 0) & (seen.slots >= 0))}
    )


# Context


def context_types(contexts: Iterable[Mapping[str, ContextValue] | None]) -> dict[str, type]:
    """Return the names of the context columns of some impressions, and whether each holds text or numbers.

    Either may be missing in some impressions.

    >>> context_types([{"hour": 13, "city": "Bern"}, {"hour": 14}])
    {'city': <class 'str'>, 'hour': <class 'float'>}
    """
    found: dict[str, set[type]] = {}
    for one in contexts:
        for name, value in (one or {}).items():
            found.setdefault(name, set()).add(_type_of(value))
    for name, types in found.items():
        if {float, str} <= types:
            raise DataError(f"context {name!r} is a number in some impressions and text in others")
    return {name: float if float in types else str for name, types in sorted(found.items())}


def _type_of(value: ContextValue) -> type:
    return type(None) if value is None else str if isinstance(value, str) else float


def _fits(context: Mapping[str, ContextValue], types: Mapping[str, type]) -> bool:
    return all(name in types and _type_of(value) in (types[name], type(None)) for name, value in context.items())


def _context_column(impressions: Sequence[Impression], name: str, kind: type) -> Any:
    values = [(one.context or {}).get(name) for one in impressions]
    return np.array(values, np.float64) if kind is float else pa.array(values, pa.large_string())


def _context_value(values: Any) -> ContextValue:
    """Return the only value of a context column."""
    value: ContextValue = values.tolist()[0]
    return None if isinstance(value, float) and isnan(value) else value


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
