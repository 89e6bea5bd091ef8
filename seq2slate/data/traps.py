"""Columns that are probably not what they are taken for: ids among the numbers, numbers among the text.

Only columns that nobody declared are looked at, and only the first rows of a table.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seq2slate.data.columns import is_list, is_text
from seq2slate.data.plan import Plan

SAMPLE = 20_000
"""How many values of a column are looked at."""
_ID_WORDS = {"id", "ids", "uid", "uuid", "guid", "pid", "gid", "key", "sku", "asin", "ean", "upc", "isbn", "gtin"}
_ID_WORDS |= {"code", "zip", "zipcode", "postcode", "hash"}
_OWNERS = "user|item|product|brand|seller|shop|store|session|query|category|cat|customer|client|visitor|member|author"
_OWNERS += "|movie|track|song|artist|video|channel|article|document|doc|page|site|ad|campaign|category|city|country"
_OWNERS += "|region|hotel|prop|property|device|department|class|group|team|vendor|supplier|merchant|offer|listing|job"
_ID_NAME = re.compile(rf"(?:{_OWNERS})s?(?:id|key|code|uid)")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LEADING_ZERO = r"^[+-]?0[0-9]"
_MOSTLY = 0.9
_FEWEST_NUMBERS = 3
_FEWEST_CODES = 1000
_SMALLEST_CODE = 100_000
_LARGEST_EXACT = 2**24
"""Up to this size float32, in which features are kept, tells whole numbers apart."""


class Trap(NamedTuple):
    """What is suspicious about a column."""

    note: str
    """A few words, for the table of roles."""
    warning: str
    """A sentence with the cure."""


def find_traps(rows: Any, plan: Plan) -> dict[str, Trap]:
    """Return the suspicious columns among those of a plan that nobody declared."""
    traps: dict[str, Trap] = {}
    for name in plan.automatic:
        values = rows.column(name)
        values = (values.flatten() if is_list(values.type) else values)[:SAMPLE].drop_null()
        trap = None
        if pa.types.is_integer(values.type):
            trap = _ids_among_numbers(name, values)
        elif is_text(values.type) and not has_name_of_id(name):
            trap = _numbers_among_text(name, values)
        if trap is not None:
            traps[name] = trap
    return traps


def _ids_among_numbers(name: str, values: Any) -> Trap | None:
    if not has_name_of_id(name) and (pc.max(values).as_py() or 0) < _SMALLEST_CODE:
        return None
    distinct = values.unique().to_numpy(zero_copy_only=False)
    reason = "look like ids" if has_name_of_id(name) and len(distinct) > 2 else _suspicious_values(distinct)
    if reason is None:
        return None
    return Trap(
        f"integers that {reason}",
        f"column {name!r} is taken for a number, but holds integers that {reason}; declare categorical=[{name!r}] or "
        f"ignore=[{name!r}] (--categorical, --ignore), or name it in features= if it is a number",
    )


def has_name_of_id(name: str) -> bool:
    """Say whether the name of a column is that of an id.

    >>> [has_name_of_id(name) for name in ("brand_id", "productUID", "userid", "SKU", "zip_code")]
    [True, True, True, True, True]
    >>> [has_name_of_id(name) for name in ("price", "is_paid", "bid", "grid", "valid", "keyword_count", "id_count")]
    [False, False, False, False, False, False, False]
    """
    words = _WORDS.findall(name)
    last = words[-1].lower() if words else ""
    return last in _ID_WORDS or _ID_NAME.fullmatch(last) is not None


def _suspicious_values(distinct: npt.NDArray[np.integer]) -> str | None:
    """Say what is wrong with integers whose name says nothing.

    Prices, counts, years and ranks pass: they are small, few, or crowd at the low end. Codes are large, many, and
    spread evenly between the lowest and the highest.
    """
    if not len(distinct):
        return None
    if np.median(abs(distinct.astype(np.float64))) > _LARGEST_EXACT and _lose_digits(distinct):
        return "are too large to be told apart as a feature (ids, or times)"
    if len(distinct) < _FEWEST_CODES or distinct.min() < _SMALLEST_CODE:
        return None
    ordered = np.sort(distinct).astype(np.float64)
    uniform = (ordered - ordered[0]) / (ordered[-1] - ordered[0])
    distance = abs(uniform - np.linspace(0, 1, len(ordered))).max()  # Kolmogorov's, to the uniform distribution
    return "look like ids" if distance < 0.1 else None


def _lose_digits(distinct: npt.NDArray[np.integer]) -> bool:
    return len(np.unique(distinct.astype(np.float32))) < len(distinct)


def _numbers_among_text(name: str, values: Any) -> Trap | None:
    distinct = values.cast(pa.large_string()).unique()
    if len(distinct) < _FEWEST_NUMBERS:
        return None
    is_number = pc.match_substring_regex(distinct, r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$")
    share = pc.mean(is_number.cast(pa.float64())).as_py()
    if share < _MOSTLY or pc.any(pc.match_substring_regex(distinct, _LEADING_ZERO)).as_py():
        return None
    cure = (
        f"convert it to numbers (pandas.to_numeric), or declare categorical=[{name!r}] or ignore=[{name!r}] "
        "(--categorical, --ignore)"
    )
    if share < 1:
        odd = distinct.filter(pc.invert(is_number))[0].as_py()
        return Trap(
            f"numbers as text, but for {odd!r}",
            f"column {name!r} is taken for categories, but nearly all values are numbers ({odd!r} is not); {cure}",
        )
    example = distinct[0].as_py()
    return Trap(
        "numbers as text",
        f"column {name!r} is taken for categories, but holds numbers as text, such as {example!r}; {cure}",
    )
