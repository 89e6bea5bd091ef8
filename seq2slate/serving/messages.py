"""The bodies of requests and responses, and every check of them that needs neither a model nor the log.

A malformed request is refused with 400 or 422 and a message that names the field. Features are different: an infinite
number, or a row that is too short, is a fault of some pipeline far away, and the page has to be shown all the same. So
`features` may hold any numbers here; the service falls back to the base order if they are invalid. A number that is
null or NaN is missing, and the model decides whether it reads missing numbers.

A body costs what its size costs, whatever is in it. Values, lists and objects are counted in the bytes, before they
are decoded, and names before columns are built from them. Of columns by name, only those are built that a model of the
deployment reads; without models all of them, since the first model is trained on what was logged.

No object may have a name twice: decoders differ in which one counts.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import isinf, isnan, nan
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.exceptions import HTTPException

from seq2slate.data.impressions import is_storable
from seq2slate.data.lists import ITEM_ID, FloatArray

MAX_ID_BYTES = 512
"""Of a unit and of an item, in UTF-8."""
MAX_TITLE_BYTES = 300
"""Of the title of an item, in UTF-8; a longer one is cut."""
MAX_VALUES = 250_000
"""Of a request: every number, text, null and field counts."""
MAX_COLUMNS = 4096
"""Features of an item, names of categorical columns, and names in the context: so many of each."""
MAX_ABSENT = 50_000
"""Cells of categorical columns by name that items do not have, in a deployment without models, which logs them."""
_MAX_CLICK_BYTES = 16 << 10
_SMALL = 64 << 10  # bytes of a body whose values need no counting
_NAME_END = re.compile(rb'"[ \t\n\r]*:')
Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
FeatureRow = list[float | None]
Context = dict[str, str | float | None]
Message = TypeVar("Message")


class Candidate(Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate item."""

    id: Id
    features: FeatureRow | None = None
    """The model's feature columns, raw and in the order of the training data; left out if the model reads none."""
    categorical: dict[str, str | None] = {}
    """Categorical columns, by name."""
    title: str | None = None
    """For people: shown on the pages beside the id, cut at 300 bytes."""


class RerankRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Candidates in base order: as `items`, or as columns with `item_ids` and `features`."""

    unit: Id
    """Who will see the slate; decides the arm of the experiment."""
    items: list[Candidate] | None = None
    item_ids: list[Id] | None = None
    features: list[FeatureRow | None] | None = None
    categorical: dict[str, list[str | None]] = {}
    titles: list[str | None] | None = None
    """For people: shown on the pages beside the ids, each cut at 300 bytes."""
    k: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Slots of the slate; all items if not given."""
    context: Context | None = None
    """Columns of the whole list: numbers and text, by name."""
    explain: bool = False
    """Return the probability of each choice."""


class RerankResponse(Struct, frozen=True):
    """A slate."""

    slate_id: str | None
    """For clicks; null if nothing was logged, so that nothing can be clicked."""
    arm: str
    items: list[str]
    """Ids in the order of the slate."""
    fallback: bool = False
    """Whether this is the base order instead of the arm's own slate."""
    reason: str | UnsetType = UNSET
    """Of the fallback: bad-features, deadline, model-error or log."""
    detail: str | UnsetType = UNSET
    """With bad-features: the column and the item."""
    probabilities: list[float] | UnsetType | None = UNSET
    """With `explain`: of each slot's choice, given the slots above it; null if no model chose."""


class ClickRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A click on an item of a slate."""

    slate_id: Id
    item: Id


class ClickResponse(Struct, frozen=True):
    """The click is in the log."""

    outcome: str
    """new, or duplicate if it was there already."""


class ErrorResponse(Struct, frozen=True):
    """What went wrong, naming the field if there is one."""

    error: str


@dataclass(frozen=True)
class SlateRequest:
    """A rerank request, checked and in columns, whichever way the candidates came."""

    unit: str
    ids: list[str]
    """(N,) candidates in base order."""
    rows: Sequence[FeatureRow | None]
    """(N,) the features as they came."""
    features: FloatArray | None
    """(N, F) read-only, NaN for a missing number, (N, 0) if no candidate has any; None if only some rows are there,
    rows differ in length, or any number, of the context too, is infinite."""
    categorical: dict[str, list[str | None]]
    """Without `item_id`, which are the ids."""
    titles: Sequence[str | None] | None
    """(N,) at most `MAX_TITLE_BYTES` each; None if there are none."""
    context: Context | None
    k: int
    """Slots of the slate, at most N."""
    explain: bool


class ReadNames(NamedTuple):
    """The columns by name that some model of a deployment reads."""

    categorical: Set[str]
    context: Set[str]


def read_rerank(
    body: bytes, *, max_items: int, max_values: int = MAX_VALUES, reads: ReadNames | None = None
) -> SlateRequest:
    """Decode and check the body of a rerank request.

    Args:
        body: JSON.
        max_items: Candidates of a list.
        max_values: Values of the whole request.
        reads: The columns by name to keep; all if not given.

    Raises:
        HTTPException: 400 if the body is not JSON, 422 if a field is invalid.

    >>> request = read_rerank(b'{"unit": "u1", "item_ids": ["a", "b"], "features": [[1, 2], [3, 4]]}', max_items=100)
    >>> request.ids, request.features.shape, request.k
    (['a', 'b'], (2, 2), 2)
    """
    _count_values(body, max_items, max_values)
    message = _decode(body, _RERANK)
    _check_names(body, _n_names(message))
    if (message.items is None) == (message.item_ids is None):
        raise HTTPException(422, "items: expected either items or item_ids")
    n_items = len(message.item_ids or message.items or ())
    _check_number("items", n_items, max_items)
    if b"\\" in body:  # else no text has an escape, without which none can be such that the log refuses it
        _check_texts(message)
    if message.items is not None:
        if message.features is not None or message.categorical or message.titles is not None:
            raise HTTPException(422, "features: belong into the items, as titles do, unless item_ids are given")
        ids = [item.id for item in message.items]
        rows: Sequence[FeatureRow | None] = [item.features for item in message.items]
        categorical = _categorical_of_items(message.items, reads)
        titles: Sequence[str | None] = [item.title for item in message.items]
    else:
        ids, rows, categorical = _columns(message, reads)
        titles = message.titles or []
    if categorical.pop(ITEM_ID, ids) != ids:
        raise HTTPException(
            422, f"categorical.{ITEM_ID}: is not the ids of the items, which it is made from: leave it out"
        )
    _check_ids(message.unit, ids)
    _check_number("context", len(message.context or ()), MAX_COLUMNS, "names")
    has_features = any(row is not None for row in rows)
    return SlateRequest(
        unit=message.unit,
        ids=ids,
        rows=rows,
        features=_valid_features(rows if has_features else [[]] * len(rows), message.context),
        categorical=categorical,
        titles=[title and cut_title(title) for title in titles] if any(titles) else None,
        context=_kept_context(message.context, reads),
        k=len(ids) if message.k is None else min(message.k, len(ids)),
        explain=message.explain,
    )


def cut_title(title: str) -> str:
    """Return a title as the log keeps it: no longer than `MAX_TITLE_BYTES`, and storable.

    >>> cut_title("Zoë's lamp"), len(cut_title("ë" * 999).encode())
    ("Zoë's lamp", 299)
    """
    kept = title[:MAX_TITLE_BYTES].replace("\0", "\ufffd").encode(errors="replace")
    if len(kept) <= MAX_TITLE_BYTES and len(title) <= MAX_TITLE_BYTES:
        return kept.decode()
    return kept[: MAX_TITLE_BYTES - 3].decode(errors="ignore") + "…"


def read_click(body: bytes) -> ClickRequest:
    """Decode and check the body of a click; raises like `read_rerank`."""
    if len(body) > _MAX_CLICK_BYTES:
        raise HTTPException(413, f"the body of a click is larger than {_MAX_CLICK_BYTES} bytes")
    click = _decode(body, _CLICK)
    _check_names(body, len(ClickRequest.__struct_fields__))
    return click


_RERANK, _CLICK = msgspec.json.Decoder(RerankRequest), msgspec.json.Decoder(ClickRequest)


def _count_values(body: bytes, max_items: int, max_values: int) -> None:
    """Refuse a body with too many values, lists or objects, before any of them is made."""
    if len(body) <= min(_SMALL, max_values):
        return
    max_nested = 4 * max_items + 100  # an item has its own object, its features and its categorical columns
    if body.count(b",") < max_values and body.count(b"[") + body.count(b"{") <= max_nested:
        return
    plain = np.frombuffer(body.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    is_outside_texts = np.cumsum(plain == ord('"'), dtype=np.uint8) % 2 == 0
    commas, *opened = (int(np.count_nonzero((plain == ord(one)) & is_outside_texts)) for one in ",[{")
    _check_number("body", commas + 1, max_values, "values")
    _check_number("body", sum(opened), max_nested, "lists and objects")


def _check_number(field: str, number: int, most: int, what: str = "") -> None:
    if number > most:
        raise HTTPException(422, f"{field}: {number}{what and ' '}{what} are more than the limit of {most}")


def _decode(body: bytes, decoder: msgspec.json.Decoder[Message]) -> Message:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(body, decoder.type)


def _decode_leniently(body: bytes, message: type[Message]) -> Message:
    """Accept what strict JSON cannot express: NaN, and numbers beyond float64, which are invalid features, no more."""
    try:
        content = _parse(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {_first_line(error)}") from None
    try:
        return msgspec.convert(content, message)
    except (msgspec.ValidationError, RecursionError) as error:
        raise HTTPException(422, _with_field_first(_first_line(error))) from None
    except UnicodeError:
        raise HTTPException(422, "some text has a lone surrogate") from None


def _n_names(message: RerankRequest) -> int:
    """Return the number of names in all objects of a request, but for fields that are given as their default."""
    m, context, items = message, message.context or {}, message.items or ()
    optional = (m.items, m.item_ids, m.features, m.titles, m.k, m.context, m.categorical or None, m.explain or None)
    n_names = 1 + len(optional) - optional.count(None) + len(context) + len(m.categorical)
    for item in items:
        n_names += 1 + (item.features is not None) + (item.title is not None)
        if item.categorical:
            n_names += 1 + len(item.categorical)
    return n_names


def _check_names(body: bytes, n_names: int) -> None:
    """Refuse a name that occurs twice in an object, of which the decoder has taken the last.

    As many colons as names: then there is none. To count is cheap, and to parse again, which takes longer than to
    decode, is left to bodies with a colon behind a quote in some text, or with fields that are given as their default.
    """
    if body.count(b":") > n_names and len(_NAME_END.findall(body)) > n_names:
        _parse(body)


def _parse(body: bytes) -> Any:
    return json.loads(body.decode(), parse_int=_parse_int, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise HTTPException(422, f"{name[:80]}: occurs twice in an object")
    return found


def _parse_int(text: str) -> int | float:
    return int(text) if len(text) < 20 else float(text)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]


def _with_field_first(message: str) -> str:
    """Turn "Expected `int` - at `$.k`" into "k: Expected `int`"."""
    problem, separator, path = message.rpartition(" - at `$")
    return f"{path.rstrip('`').lstrip('.')}: {problem}" if separator else message


def _categorical_of_items(items: Sequence[Candidate], reads: ReadNames | None) -> dict[str, list[str | None]]:
    names = {name for item in items for name in item.categorical}
    if not names:
        return {}
    _check_number("categorical", len(names), MAX_COLUMNS, "names")
    if reads is None:
        absent = len(names) * len(items) - sum(len(item.categorical) for item in items)
        _check_number("categorical", absent, MAX_ABSENT, "cells that items do not have")
    return {name: [item.categorical.get(name) for item in items] for name in sorted(_kept(names, reads))}


def _columns(
    message: RerankRequest, reads: ReadNames | None
) -> tuple[list[str], Sequence[FeatureRow | None], dict[str, list[str | None]]]:
    ids = message.item_ids or []
    rows = [None] * len(ids) if message.features is None else message.features
    _check_number("categorical", len(message.categorical), MAX_COLUMNS, "names")
    columns = {"features": rows, **{f"categorical.{key}": values for key, values in message.categorical.items()}}
    if message.titles is not None:
        columns["titles"] = message.titles
    for name, values in columns.items():
        if len(values) != len(ids):
            raise HTTPException(422, f"{name}: {len(values)} rows for {len(ids)} item_ids")
    return ids, rows, {name: message.categorical[name] for name in sorted(_kept(message.categorical, reads))}


def _kept(names: Iterable[str], reads: ReadNames | None) -> Iterable[str]:
    """Return the names of categorical columns to keep; `item_id`, which must be the ids, is checked and dropped."""
    return names if reads is None else [name for name in names if name in reads.categorical or name == ITEM_ID]


def _kept_context(context: Context | None, reads: ReadNames | None) -> Context | None:
    """Return the columns to keep, with None for NaN, which the log could not store; an infinite one is reported."""
    if not context:
        return context
    kept: Context = {}
    for name, value in context.items():
        number = value if isinstance(value, float) else 0.0
        if reads is None or name in reads.context or isinf(number):
            kept[name] = None if isnan(number) else value
    return kept or None


def _check_ids(unit: str, ids: Sequence[str]) -> None:
    if len(set(ids)) < len(ids):
        seen: set[str] = set()
        twice = next(one for one in ids if one in seen or seen.add(one))  # type: ignore[func-returns-value]
        raise HTTPException(422, f"items: duplicate id {twice[:80]!r}")
    if max(map(_n_bytes, (unit, *ids))) > MAX_ID_BYTES:
        raise HTTPException(422, f"items: the unit or an id is longer than {MAX_ID_BYTES} bytes")


def _check_texts(message: RerankRequest) -> None:
    """Refuse texts that the log cannot store; titles are mended instead."""
    items, context, columns = message.items or (), message.context or {}, message.categorical
    fields: dict[str, Iterable[str | None]] = {
        "unit": [message.unit],
        "items": chain(message.item_ids or (), (item.id for item in items)),
        "context": chain(context, (value for value in context.values() if isinstance(value, str))),
        "categorical": chain(
            *(chain(item.categorical, item.categorical.values()) for item in items), columns, *columns.values()
        ),
    }
    for field, texts in fields.items():
        if not is_storable("".join(text for text in texts if text)):
            raise HTTPException(422, f"{field}: has a NUL or a lone surrogate")


def _n_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def _valid_features(rows: Sequence[FeatureRow | None], context: Context | None) -> FloatArray | None:
    """Return the rows as (N, F), NaN for a missing number; None if they or the context are invalid."""
    if context and any(isinf(value) for value in context.values() if isinstance(value, float)):
        return None
    if not rows:
        return np.zeros((0, 0), np.float32)
    known = [row for row in rows if row is not None]
    widths = {len(row) for row in known}
    if len(known) < len(rows) or len(widths) != 1:
        return None
    width = widths.pop()
    _check_number("features", width, MAX_COLUMNS, "columns")
    try:
        features = np.frombuffer(_packed(known, width), np.float32).reshape(len(known), width)
    except OverflowError:  # a number beyond float32
        return None
    return None if np.isinf(features).any() else features


def _packed(rows: Sequence[FeatureRow], width: int) -> bytes:
    """Return the numbers as float32, NaN for None; NumPy takes half as long again for a list of lists."""
    pack = _packer(width).pack
    try:
        return b"".join([pack(*row) for row in rows])
    except struct.error:  # a number is missing
        return b"".join([pack(*[nan if number is None else number for number in row]) for row in rows])


@lru_cache(maxsize=256)
def _packer(width: int) -> struct.Struct:
    return struct.Struct(f"{width}f")
