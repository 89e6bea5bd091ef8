"""The values of columns as NumPy arrays and text, and the names with a meaning of their own.

A column holds numbers, text or lists. Booleans, durations, times of day and decimals are numbers: durations and times
are in seconds. A moment (timestamp or date) is the seconds since 1970 where a number is asked for, and can be made into
parts. `FIELDS` and `ImpressionColumns` are the names with a meaning of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seq2slate.data.impressions import NOT_SHOWN, DoubleArray, Impressions
from seq2slate.data.lists import FloatArray, IntArray, Strings
from seq2slate.errors import DataError

FIELDS = {"label": "labels", "relevance": "relevance", "relevance_probability": "relevance_probability"}
"""Columns with one value an item, and the fields of ItemLists that hold them."""

_SLOT, _PROPENSITY, _LOG_PROPENSITY = "shown_slot", "propensity", "log_propensity"
_PER_ITEM = {_SLOT: "slots", _LOG_PROPENSITY: "log_propensities", "clicked_at": "clicked_at"}
_PER_LIST = {
    "unit": "units",
    "arm": "arms",
    "shown_at": "times",
    "experiment": "experiments",
    "model_fingerprint": "models",
    "fallback": "fallbacks",
    "draft": "drafts",
    "latency_ms": "latency_ms",
}
"""The columns of impressions, and the fields of Impressions that hold them."""
_PER_ITEM_BEFORE_SLOTS = {"shown_position": "slots", _PROPENSITY: _PROPENSITY}
_PER_LIST_BEFORE_SLOTS = {"unit": "units", "arm": "arms", "at": "times"}
"""The same in logs that were exported before `shown_slot` had its name."""
_NUMBERS_PER_LIST = ("times", "latency_ms")
TEXT_PER_LIST = tuple(name for name, field in _PER_LIST.items() if field not in _NUMBERS_PER_LIST)
"""The columns of impressions that hold text."""
_LARGEST = np.finfo(np.float32).max
_LARGEST_WHOLE = 2.0**53
"""The largest number up to which float64 holds every whole number."""
LEADING_ZERO = r"^[+-]?0[0-9]"
"""Text that is a code and no number."""
MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}|$)"
"""Text that is a point in time."""
_WHOLE_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.0")
_BOOLEANS = ("True", "False", "TRUE", "FALSE")
_NUMBER_CHECKS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
_TEXT_CHECKS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,  # how some engines write text
    pa.types.is_large_binary,
    pa.types.is_null,  # nothing is there that could not be text
)


def is_list(kind: Any) -> bool:
    """Say whether a type is a list of something."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_number(kind: Any) -> bool:
    """Say whether a type is numeric, dates and times included."""
    is_time = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
    return bool(is_time or any(check(kind) for check in _NUMBER_CHECKS))


def is_moment(kind: Any) -> bool:
    """Say whether a type is a point in time: a timestamp or a date."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_text(kind: Any) -> bool:
    """Say whether a type is text."""
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
    if not is_number(kind) and values.null_count == len(values):  # without a value, any type will do
        return np.full(len(values), np.nan)
    if not is_number(kind):
        cure = "; convert it, for instance with pandas.to_numeric" if is_text(kind) else ""
        raise DataError(f"{name_entry(0)}: {name} must hold numbers, not {kind}{cure}")
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


def as_ids(values: Any, name: str, name_row: Callable[[int], str]) -> Strings:
    """Return text, or whole numbers as text."""
    if is_text(values.type) or pa.types.is_integer(values.type):
        return values.cast(pa.large_string())
    if pa.types.is_floating(values.type):
        numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        missing = np.isnan(numbers)
        if (whole := (numbers == np.floor(numbers)) & (abs(numbers) <= _LARGEST_WHOLE) | missing).all():
            if missing.any():
                raise DataError(
                    f"{name_row(int(missing.argmax()))}: no {name}, and this missing value has made floating-point "
                    "numbers of all the others; drop the row or fill it in, then convert the column to integers"
                )
            return pa.array(numbers.astype(np.int64)).cast(pa.large_string())
        row = int((~whole).argmax())
        raise DataError(f"{name_row(row)}: {name} must be text or whole numbers, not {numbers[row]:g}")
    raise DataError(f"{name_row(0)}: {name} must be text or whole numbers, not {values.type}; convert it to text")


def as_categories(values: Any) -> Strings:
    """Return numbers and booleans as text, in the spelling of `spell_category`; text is as it stands.

    >>> as_categories(pa.array([3.0, None, 0.5])).to_pylist()
    ['3', None, '0.5']
    """
    if not pa.types.is_floating(values.type):
        return values.cast(pa.large_string())
    values = pc.if_else(pc.is_nan(values), None, values)
    is_whole = pc.and_(pc.equal(values, pc.floor(values)), pc.less_equal(pc.abs(values), _LARGEST_WHOLE))
    whole = pc.if_else(is_whole, values, None).cast(pa.int64()).cast(pa.large_string())
    return pc.if_else(is_whole, whole, values.cast(pa.large_string()))


def spell_category(text: str) -> str:
    """Return one spelling of what tables and files write differently: whole numbers without .0, booleans in lower case.

    A missing value makes floats of the integers of pandas, which writes them, and booleans, in its own way to CSV.

    >>> [spell_category(text) for text in ("3.0", "-1.0", "True", "3.10", "007.0", "Truth")]
    ['3', '-1', 'true', '3.10', '007.0', 'Truth']
    """
    if text.endswith(".0"):
        return text[:-2] if _WHOLE_FLOAT.fullmatch(text) else text
    return text.lower() if text in _BOOLEANS else text


def spell_categories(values: Strings) -> Strings:
    """Return text with each value in the spelling of `spell_category`."""
    encoded = values.dictionary_encode()
    given = encoded.dictionary.to_pylist()
    spelled = [spell_category(text) for text in given]
    return values if spelled == given else pa.array(spelled, pa.large_string()).take(encoded.indices)


_SECONDS_PER_DAY = 86400


def time_parts(values: Any, name: str, name_entry: Callable[[int], str]) -> dict[str, npt.NDArray[np.floating]]:
    """Return the parts of moments as numbers: hour of the day, day of the week (0 is Monday), days since 1970.

    A date has no hour. Numbers are seconds since 1970 or, if they are as large as that, milliseconds and so on; text
    must be in the form of ISO 8601. A missing moment is NaN.

    >>> parts = time_parts(pa.array(["1970-01-02 06:30:00"]), "at", "row {}".format)
    >>> {part: values.tolist() for part, values in parts.items()}
    {'at.hour': [6.5], 'at.weekday': [4.0], 'at.days': [1.2708333]}
    """
    moments = _as_moments(values, name, name_entry)
    clock = {}
    if not pa.types.is_date(values.type):
        minutes = pc.add(pc.multiply(pc.hour(moments), 60), pc.minute(moments))
        clock[f"{name}.hour"] = pc.divide(minutes.cast(pa.float64()), 60)
    return {
        part: np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.float64)
        for part, found in {
            **clock,
            f"{name}.weekday": pc.day_of_week(moments).cast(pa.float64()),
            f"{name}.days": pc.divide(_local_seconds(moments), float(_SECONDS_PER_DAY)),
        }.items()
    }


def _as_moments(values: Any, name: str, name_entry: Callable[[int], str]) -> Any:
    if is_moment(values.type):
        return values if pa.types.is_timestamp(values.type) else values.cast(pa.timestamp("s"))
    if is_text(values.type):
        try:
            return values.cast(pa.timestamp("us"))
        except pa.ArrowInvalid as error:
            bad = next(row for row, text in enumerate(values.to_pylist()) if not _is_moment_text(text))
            raise DataError(
                f"{name_entry(bad)}: {name} holds {values[bad].as_py()!r}, which is no time such as "
                "2024-05-31 17:30:00; convert it"
            ) from error
    numbers = as_numbers(values, name, name_entry).astype(np.float64)
    microseconds = pa.array(numbers * _microseconds_per_unit(numbers), from_pandas=True)
    return microseconds.cast(pa.int64(), safe=False).cast(pa.timestamp("us"))


def _microseconds_per_unit(numbers: DoubleArray) -> float:
    """Return 10^6 for seconds since 1970, and less for milli-, micro- and nanoseconds, which are larger numbers."""
    size = float(np.median(abs(numbers[np.isfinite(numbers)]))) if np.isfinite(numbers).any() else 0
    return next(unit for unit, beyond in ((1e-3, 1e17), (1.0, 1e14), (1e3, 1e11), (1e6, -1.0)) if size > beyond)


def _is_moment_text(text: str | None) -> bool:
    try:
        pa.scalar(text, pa.large_string()).cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return False
    return True


def _local_seconds(moments: Any) -> Any:
    local = pc.local_timestamp(moments) if moments.type.tz else moments
    return pc.divide(local.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).cast(pa.float64()), 1e6)


# Impressions


class ImpressionColumns(NamedTuple):
    """The columns of a table that hold impressions, each with the field of Impressions that it becomes.

    `propensity` is the one exception: it is converted to log-propensities.
    """

    per_item: Mapping[str, str]
    per_list: Mapping[str, str]

    @classmethod
    def of(cls, names: Iterable[str], *, before_slots: bool = False) -> ImpressionColumns:
        """Return those among the columns of a table; without `shown_slot` only a propensity is one.

        >>> ImpressionColumns.of(["item_id", "shown_slot", "unit"])
        ImpressionColumns(per_item={'shown_slot': 'slots'}, per_list={'unit': 'units'})
        >>> ImpressionColumns.of(["item_id", "propensity", "unit"])
        ImpressionColumns(per_item={'propensity': 'propensity'}, per_list={})
        """
        names = list(names)
        per_item, per_list = {**_PER_ITEM, _PROPENSITY: _PROPENSITY}, _PER_LIST
        if before_slots:
            per_item, per_list = _PER_ITEM_BEFORE_SLOTS, _PER_LIST_BEFORE_SLOTS
        elif _SLOT not in names:
            per_item, per_list = {name: per_item[name] for name in (_PROPENSITY, _LOG_PROPENSITY)}, {}
        return cls(*({name: known[name] for name in names if name in known} for known in (per_item, per_list)))

    def read(
        self,
        columns: Mapping[str, Any],
        offsets: IntArray,
        name_item: Callable[[int], str],
        name_list: Callable[[int], str],
        source: str,
    ) -> Impressions | None:
        """Return the impressions in these columns, if any; what has propensities only was shown in base order."""
        if not self.per_item:
            return None
        if _PROPENSITY in self.per_item and _LOG_PROPENSITY in self.per_item:
            raise DataError(f"{source}: both {_PROPENSITY} and {_LOG_PROPENSITY}; keep one of them")
        found: dict[str, Any] = {
            field: _as_doubles(columns[name], name, name_item) for name, field in self.per_item.items()
        }
        for name, field in self.per_list.items():
            is_number = field in _NUMBERS_PER_LIST
            values = columns[name]
            found[field] = _as_doubles(values, name, name_list) if is_number else as_ids(values, name, name_list)
        if "slots" in found:
            found["slots"] = _as_slots(found["slots"], name_item)
        else:
            found["slots"] = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
        if _PROPENSITY in found:
            found["log_propensities"] = _as_logs(found.pop(_PROPENSITY), found["slots"], name_item)
        return Impressions(**found)


def arrow_impressions(impressions: Impressions | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns with one value an item, and those with one a list; a NaN is null."""
    per_item, per_list = (
        {
            name: pa.array(values, from_pandas=True)
            for name, field in known.items()
            if (values := getattr(impressions, field, None)) is not None
        }
        for known in (_PER_ITEM, _PER_LIST)
    )
    return per_item, per_list


def reserved_names(*, has_impressions: bool) -> list[str]:
    """Return the names that other columns must not have, in tables with impressions or without any."""
    return [_SLOT, _PROPENSITY, _LOG_PROPENSITY] + (["clicked_at", *_PER_LIST] if has_impressions else [])


def _as_doubles(values: Any, name: str, name_entry: Callable[[int], str]) -> DoubleArray:
    """Return numbers as float64; a missing one is NaN."""
    return np.array(as_numbers(values, name, name_entry), dtype=np.float64)


def _as_slots(values: DoubleArray, name_item: Callable[[int], str]) -> IntArray:
    slots = np.where(np.isnan(values), NOT_SHOWN, values)
    if (wrong := slots != np.floor(slots)).any():
        item = int(wrong.argmax())
        raise DataError(f"{name_item(item)}: {_SLOT} {slots[item]:g} is not a whole number")
    return slots.astype(np.int64)


def _as_logs(propensities: DoubleArray, slots: IntArray, name_item: Callable[[int], str]) -> DoubleArray:
    """Return the logarithm of the propensity of each item that was shown, 0 for others."""
    shown = np.where(slots < 0, 1.0, propensities)
    if not (within := (shown > 0) & (shown <= 1)).all():  # refuses NaN too
        item = int((~within).argmax())
        raise DataError(f"{name_item(item)}: propensity {shown[item]:g} is not above 0 and at most 1")
    return np.log(shown)
