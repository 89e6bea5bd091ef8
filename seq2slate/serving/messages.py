"""What clients send and get, and every check of it that needs neither a model nor the log.

A request that makes no sense is refused with a message that names the field. Features are another matter: a number that
is missing, infinite or NaN, or a row that is too short, is a fault of some pipeline far away, and the page has to be
shown all the same. So `features` may hold anything numeric here, and whoever ranks decides what can be done with it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import isfinite
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from seq2slate.data.impressions import is_storable
from seq2slate.data.lists import FloatArray

LONGEST_ID = 512
"""Of a unit and of an item, in bytes of UTF-8."""
Id = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]
Row = list[float | None]
Context = dict[str, str | float | None]
Message = TypeVar("Message")


class BadRequestError(Exception):
    """A request that cannot be understood: the message names the field."""

    def __init__(self, message: str, *, is_json: bool = True) -> None:
        super().__init__(message)
        self.is_json = is_json


class Item(Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate."""

    id: Id
    features: Row | None = None
    """The model's columns, raw and in the order of the training data."""
    categorical: dict[str, str | None] = {}
    """Text columns, by name."""


class RerankRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Candidates in base order: as `items`, or as columns with `item_ids` and `features`."""

    unit: Id
    """Who will see the slate; decides about the arm."""
    items: list[Item] | None = None
    item_ids: list[Id] | None = None
    features: list[Row | None] | None = None
    categorical: dict[str, list[str | None]] = {}
    k: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Slots of the slate; all items if not given."""
    context: Context | None = None
    """What is known of the whole list: numbers and text, by name."""
    explain: bool = False
    """Ask for the probability of each choice."""


class RerankAnswer(Struct, frozen=True):
    """A slate."""

    slate_id: str | None
    """For clicks; null if nothing was logged, so that nothing can be clicked."""
    arm: str
    items: list[str]
    """Ids in the order of the slate."""
    fallback: bool = False
    """True if this is the base order in the place of what the arm would show."""
    reason: str | UnsetType = UNSET
    """Why, if so: bad-features, deadline, model-error or log."""
    probabilities: list[float] | UnsetType | None = UNSET
    """With `explain`: of each slot's choice, given the slots above it; null if no model chose."""


class ClickRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A click on an item of a slate."""

    slate_id: Id
    item: Id


class ClickAnswer(Struct, frozen=True):
    """The click is in the log."""

    outcome: str
    """new, or duplicate if it was there already."""


class ErrorAnswer(Struct, frozen=True):
    """What went wrong, naming the field if there is one."""

    error: str


@dataclass(frozen=True)
class Candidates:
    """The items of a request, checked."""

    ids: list[str]
    rows: Sequence[Row | None]
    categorical: dict[str, list[str | None]]
    context: Context | None

    def features(self) -> FloatArray | None:
        """Return (n, F) numbers, to be read only; None if rows are missing or unequal, or anything is not finite."""
        if not all(isfinite(value) for value in (self.context or {}).values() if isinstance(value, float)):
            return None
        rows = [row for row in self.rows if row is not None]
        if len(rows) < len(self.rows) or len({len(row) for row in rows}) != 1:
            return None
        numbers = list(chain.from_iterable(rows))
        try:  # NumPy takes half as long again for a list of lists
            packed = _packer(len(numbers)).pack(*numbers)
        except (struct.error, OverflowError):  # a missing number, or one beyond float32
            return None
        features = np.frombuffer(packed, np.float32).reshape(len(rows), -1)
        return features if np.isfinite(features).all() else None


@lru_cache(maxsize=256)
def _packer(count: int) -> struct.Struct:
    return struct.Struct(f"{count}f")


class Decoder:
    """Reads JSON into messages of one type."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, body: bytes) -> Any:
        """Return the message, or raise a BadRequestError."""
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._decode_leniently(body)

    def _decode_leniently(self, body: bytes) -> Any:
        """Read what strict JSON has no word for: NaN and numbers beyond any float, which are bad features, no more."""
        try:
            content = json.loads(body, parse_int=_integer)
        except (ValueError, RecursionError) as error:
            raise BadRequestError(f"the body is not JSON: {_first_line(error)}", is_json=False) from None
        try:
            return msgspec.convert(content, self._kind)
        except (msgspec.ValidationError, RecursionError) as error:
            raise BadRequestError(_with_field_first(_first_line(error))) from None
        except UnicodeError:
            raise BadRequestError("some text holds half a surrogate pair") from None


def _integer(text: str) -> int | float:
    return int(text) if len(text) < 20 else float(text)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]


def _with_field_first(message: str) -> str:
    """Turn "Expected `int` - at `$.k`" into "k: Expected `int`"."""
    problem, separator, path = message.rpartition(" - at `$")
    return f"{path.rstrip('`').lstrip('.')}: {problem}" if separator else message


def candidates_of(request: RerankRequest, *, most: int) -> Candidates:
    """Return the items of a request, whichever way they came, after checking everything that JSON types do not say."""
    if (request.items is None) == (request.item_ids is None):
        raise BadRequestError("items: expected either items or item_ids")
    if request.items is not None:
        if request.features is not None or request.categorical:
            raise BadRequestError("features: stand in the items themselves, unless item_ids are given")
        candidates = _from_items(request.items, request.context)
    else:
        candidates = _from_columns(request)
    if len(candidates.ids) > most:
        raise BadRequestError(f"items: {len(candidates.ids)} are more than the limit of {most}")
    _check_texts(request, candidates)
    return candidates


def _from_items(items: list[Item], context: Context | None) -> Candidates:
    names = sorted({name for item in items for name in item.categorical})
    categorical = {name: [item.categorical.get(name) for item in items] for name in names}
    return Candidates([item.id for item in items], [item.features for item in items], categorical, context)


def _from_columns(request: RerankRequest) -> Candidates:
    ids = request.item_ids or []
    rows = [None] * len(ids) if request.features is None else request.features
    for name, values in {
        "features": rows,
        **{f"categorical.{key}": v for key, v in request.categorical.items()},
    }.items():
        if len(values) != len(ids):
            raise BadRequestError(f"{name}: {len(values)} rows for {len(ids)} item_ids")
    return Candidates(ids, rows, dict(sorted(request.categorical.items())), request.context)


def _check_texts(request: RerankRequest, candidates: Candidates) -> None:
    if len(set(candidates.ids)) < len(candidates.ids):
        seen: set[str] = set()
        twice = next(one for one in candidates.ids if one in seen or seen.add(one))  # type: ignore[func-returns-value]
        raise BadRequestError(f"items: the id {twice[:80]!r} stands twice")
    context = request.context or {}
    texts = {
        "unit": [request.unit],
        "items": candidates.ids,
        "context": [*context, *(value for value in context.values() if isinstance(value, str))],
        "categorical": [*candidates.categorical, *(v for vs in candidates.categorical.values() for v in vs if v)],
    }
    for field, values in texts.items():
        if not is_storable("".join(values)):
            raise BadRequestError(f"{field}: holds a NUL or half a surrogate pair")
    if max(map(_bytes, (request.unit, *candidates.ids))) > LONGEST_ID:
        raise BadRequestError(f"items: the unit or an id is longer than {LONGEST_ID} bytes")


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
