"""What an Arrow column holds, and its values as NumPy arrays.

A column holds numbers, text or lists. Booleans, dates, times and decimals are numbers: a moment is the seconds since
1970, a duration is in seconds, a time of day is the seconds since midnight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seq2slate.data.lists import FloatArray, IntArray
from seq2slate.errors import DataError

_LARGEST = np.finfo(np.float32).max
_NUMBER_CHECKS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
_TEXT_CHECKS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,  # how some engines write text
    pa.types.is_large_binary,
    pa.types.is_null,  # a missing number would be an error, missing text is not
)


def is_list(kind: Any) -> bool:
    """Say whether a type is a list of something."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_number(kind: Any) -> bool:
    """Say whether a type stands for a number."""
    is_time = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
    return bool(is_time or any(check(kind) for check in _NUMBER_CHECKS))


def is_text(kind: Any) -> bool:
    """Say whether a type stands for text."""
    return any(check(kind) for check in _TEXT_CHECKS)


def plain_column(values: Any) -> Any:
    """Return text as large_string, dictionaries resolved; other values as they are."""
    if pa.types.is_dictionary(values.type):
        return plain_column(values.dictionary).take(values.indices)
    return values.cast(pa.large_string()) if is_text(values.type) else values


def flatten_lists(values: Any, name: str, name_row: Callable[[int], str]) -> tuple[IntArray, Any]:
    """Return where each list of a list column begins, from 0, and the entries of all lists."""
    if values.null_count:
        row = int(values.is_null().to_numpy(zero_copy_only=False).argmax())
        raise DataError(f"{name_row(row)}: {name} is missing; write an empty list as []")
    lists = values.cast(pa.large_list(values.type.value_type))
    offsets = lists.offsets.to_numpy()
    entries = lists.values.slice(offsets[0], offsets[-1] - offsets[0])
    return offsets - offsets[0], plain_column(entries)


def as_numbers(values: Any, name: str, name_entry: Callable[[int], str]) -> npt.NDArray[np.floating]:
    """Return float32 or float64 numbers; a missing one is NaN."""
    kind = values.type
    if not (is_number(kind) or pa.types.is_null(kind) or not len(values)):
        raise DataError(f"{name_entry(0)}: {name} must hold numbers, not {kind}")
    if pa.types.is_temporal(kind):
        values = pc.divide(values.cast(_in_microseconds(kind), safe=False).cast(pa.int64()).cast(pa.float64()), 1e6)
    elif not pa.types.is_float32(kind):
        values = values.cast(pa.float64(), safe=False)
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _in_microseconds(kind: Any) -> Any:
    if pa.types.is_time(kind):
        return pa.time64("us")
    return pa.duration("us") if pa.types.is_duration(kind) else pa.timestamp("us")


def as_float32(values: npt.NDArray[np.floating]) -> FloatArray:
    """Return float32; a finite number beyond its range becomes the largest one, for it was not infinite."""
    if values.dtype == np.float32:
        return values
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    beyond = np.isinf(narrow) & np.isfinite(values)
    narrow[beyond] = np.copysign(_LARGEST, values[beyond])
    return narrow
