"""Why a model cannot read a request: the column and the item, for the response, the log, the pages and the metrics.

This runs only when a slate has fallen back to the base order; the search ends at the first column that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isinf, isnan

import numpy as np

from seq2slate.data.features import FeatureTransform
from seq2slate.serving.messages import SlateRequest

OTHER = "other"
"""Instead of the name of a column: more than one is wrong, or one that the model does not read."""
_LARGEST = float(np.finfo(np.float32).max)
_MOST_NAMES = 5
_LONGEST = 80  # characters of an id or a name, which may come from the request


@dataclass(frozen=True)
class BadFeatures:
    """What is wrong with the columns of a request."""

    detail: str
    """In words."""
    column: str = OTHER
    """A column that the model reads, or `OTHER`: there are not more of them than the model has columns."""


def find_bad_features(request: SlateRequest, transform: FeatureTransform | None) -> BadFeatures:
    """Return the first thing that is wrong with a request which a model could not read.

    Args:
        request: The request.
        transform: The columns of the model; None if there is no model.
    """
    found = chain(_shapes(request, transform), _numbers(request, transform), _columns(request, transform))
    return next(found, BadFeatures("the columns cannot be read"))


def _shapes(request: SlateRequest, transform: FeatureTransform | None) -> Iterator[BadFeatures]:
    """Yield rows that are missing or have another length."""
    names = None if transform is None else transform.dense.names
    missing = [row is None for row in request.rows]
    if all(missing):
        if names:
            yield BadFeatures(f"features are missing, {_reads(names)}")
        return
    if any(missing):
        yield BadFeatures(f"features of item {_quoted(request.ids[missing.index(True)])} are missing")
    first = next(row for row in request.rows if row is not None)
    expected = len(first) if names is None else len(names)
    for item, row in zip(request.ids, request.rows, strict=True):
        if row is not None and len(row) != expected:
            which = f"item {_quoted(item)} has {_columns_of(len(row))} of features"
            yield BadFeatures(f"{which}, {f'another {expected}' if names is None else _reads(names)}")


def _numbers(request: SlateRequest, transform: FeatureTransform | None) -> Iterator[BadFeatures]:
    """Yield the first infinite number, and then the first that is missing, unless the model imputes it."""
    features = np.array([row or () for row in request.rows], dtype=np.float64)  # (N, F), NaN where one is missing
    context = {name: value for name, value in (request.context or {}).items() if not isinstance(value, str)}
    read = () if transform is None else transform.context.names
    problems = [(_infinite, np.abs(features) > _LARGEST)]
    if transform is not None and transform.dense.missing == "refuse":
        problems.append((_missing, np.isnan(features)))
    for problem_of, wrong in problems:
        if wrong.any():
            item, column = divmod(int(wrong.argmax()), wrong.shape[1])
            yield _bad_feature(request, item, column, transform)
        for name, value in context.items():
            problem = problem_of(value)
            if problem and (value is not None or name in read):
                yield BadFeatures(f"context column {_quoted(name)} is {problem}", name if name in read else OTHER)


def _bad_feature(request: SlateRequest, item: int, column: int, transform: FeatureTransform | None) -> BadFeatures:
    value = (request.rows[item] or ())[column]
    where = f"of item {_quoted(request.ids[item])} is {_infinite(value) or _missing(value)}"
    if transform is None:
        return BadFeatures(f"feature number {column + 1} {where}")
    name = transform.dense.names[column]
    return BadFeatures(f"feature {_quoted(name)} {where}", name)


def _columns(request: SlateRequest, transform: FeatureTransform | None) -> Iterator[BadFeatures]:
    """Yield columns by name that are missing, or text where the model reads a number and the reverse."""
    if transform is None:
        return
    categorical, context = transform.with_item_ids(request.categorical, []), request.context or {}
    for name in transform.categorical:
        if name not in categorical:
            yield BadFeatures(f"categorical column {_quoted(name)} is missing", name)
    for name in (*transform.context.names, *transform.context_categorical):
        if name not in context:
            yield BadFeatures(f"context column {_quoted(name)} is missing", name)
    for name, value in context.items():
        if name in transform.context.names and isinstance(value, str):
            yield BadFeatures(f"context column {_quoted(name)} is text, the model reads a number", name)
        if name in transform.context_categorical and isinstance(value, int | float):
            yield BadFeatures(f"context column {_quoted(name)} is a number, the model reads text", name)


def _infinite(value: float | None) -> str | None:
    if value is None or not abs(value) > _LARGEST:
        return None
    return "infinite" if isinf(value) else "beyond float32"


def _missing(value: float | None) -> str | None:
    return "missing" if value is None else "NaN" if isnan(value) else None


def _reads(names: Sequence[str]) -> str:
    """Say what a model reads.

    >>> _reads(["price", "age"]), _reads([])
    ("the model reads 2: 'price', 'age'", 'the model reads none')
    """
    if not names:
        return "the model reads none"
    shown = ", ".join(map(_quoted, names[:_MOST_NAMES]))
    return f"the model reads {len(names)}: {shown}{', …' if len(names) > _MOST_NAMES else ''}"


def _columns_of(number: int) -> str:
    return f"{number} column{'' if number == 1 else 's'}"


def _quoted(name: str) -> str:
    return repr(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…")
