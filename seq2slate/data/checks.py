"""What is probably wrong with columns and labels: ids among the numbers, numbers among the text, leaks, no negatives.

Columns are looked at when a table is read (`find_traps`), and only those that nobody declared. Labels and leaks are
looked at by `inspect`, `fit` and `evaluate` (`find_problems`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import lgamma, log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seq2slate.data.columns import LEADING_ZERO, MOMENT, is_list, is_text
from seq2slate.data.lists import BoolArray, FloatArray, IntArray, ItemLists
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
_NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
_FRACTION = r"\.[0-9]*[1-9]|[eE]"
_DECIMAL_COMMA = r"^\s*[+-]?([0-9]+|[0-9]{1,3}(\.[0-9]{3})+),[0-9]+\s*$"
_UNIT = r"[€$£¥₹%]|EUR|USD|GBP|CHF|JPY|INR|CNY|SEK|NOK|DKK|PLN|CZK|AUD|CAD|kr|km|min|ms"
_WITH_UNIT = rf"^\s*[+-]?({_UNIT})?\s*[+-]?[0-9]+([.,][0-9]+)*\s*({_UNIT})?\s*$"
_NO_UNIT = r"^[0-9.,+\s-]*$"
_MOSTLY = 0.9
_FEWEST_NUMBERS = 3
_FEWEST_CODES = 1000
_SMALLEST_CODE = 100_000
_LARGEST_EXACT = 2**24
"""Up to this size float32, in which features are kept, tells whole numbers apart."""

MOST_ITEMS = 20_000
"""The search for leaks reads the first lists up to about so many items."""
MOST_CELLS = 2_000_000
"""It reads fewer items of tables with many columns: about so many values, but no fewer than `FEWEST_ITEMS` items."""
FEWEST_ITEMS = 1000
MOST_VALUES = 50
"""A column with more different values is not searched for values that always have the same label: items may repeat."""
LOG_CHANCE = -20.0
"""A column that fits the labels by chance with a smaller log-probability than this is a leak."""


# Columns


class Trap(NamedTuple):
    """What is suspicious about a column."""

    note: str
    """A few words, for the table of roles."""
    warning: str | None
    """A sentence with the cure; None where a note is enough."""


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
    if _are_moments(distinct):
        return Trap(
            "integers that look like times",
            f"column {name!r} is taken for a number, but holds integers that look like times; declare "
            f"time_parts=[{name!r}] or ignore=[{name!r}] (--time-parts, --ignore), or name it in features=",
        )
    reason = "look like ids" if has_name_of_id(name) and len(distinct) > 2 else _suspicious_values(distinct)
    if reason is None:
        return None
    return Trap(
        f"integers that {reason}",
        f"column {name!r} is taken for a number, but holds integers that {reason}; declare categorical=[{name!r}] or "
        f"ignore=[{name!r}] (--categorical, --ignore), or name it in features= if it is a number",
    )


def _are_moments(distinct: npt.NDArray[np.integer]) -> bool:
    """Say whether integers are seconds since 1970, or thousandths, millionths or billionths, from 2001 to 2065."""
    if len(distinct) < _FEWEST_NUMBERS:
        return False
    return any(
        distinct.min() >= 10**9 * unit and distinct.max() < 3 * 10**9 * unit for unit in (1, 10**3, 10**6, 10**9)
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
    if pc.all(pc.match_substring_regex(distinct, MOMENT)).as_py():
        return Trap(
            "times as text",
            f"column {name!r} is taken for categories, but holds times as text, such as {distinct[0].as_py()!r}; "
            f"declare time_parts=[{name!r}], categorical=[{name!r}] or ignore=[{name!r}] (--time-parts, "
            "--categorical, --ignore)",
        )
    if (trap := _written_numbers(name, distinct)) is not None:
        return trap
    is_number = pc.match_substring_regex(distinct, _NUMBER)
    share = pc.mean(is_number.cast(pa.float64())).as_py()
    if share < _MOSTLY or pc.any(pc.match_substring_regex(distinct, LEADING_ZERO)).as_py():
        return None
    if share < 1:
        example = distinct.filter(pc.invert(is_number))[0].as_py()
        note = f"numbers as text, but for {example!r}"
    elif not pc.any(pc.match_substring_regex(distinct, _FRACTION)).as_py():
        return Trap("whole numbers as text", None)  # ids are often stored like this
    else:
        example = distinct.filter(pc.match_substring_regex(distinct, _FRACTION))[0].as_py()
        note = f"numbers as text, such as {example!r}"
    return Trap(
        note,
        f"column {name!r} is taken for categories, but holds {note}; convert it to numbers (pandas.to_numeric), or "
        f"declare categorical=[{name!r}] or ignore=[{name!r}] (--categorical, --ignore)",
    )


def _written_numbers(name: str, distinct: Any) -> Trap | None:
    """Tell of numbers with a decimal comma, or with a currency or another unit.

    Sizes ("10 cm", "500 ml"), codes, dates and versions are left alone: the units are those of prices, shares,
    distances and durations.
    """
    for pattern, besides, what, cure in (
        (_DECIMAL_COMMA, None, "a decimal comma", "replace the comma, as pandas.read_csv(decimal=',') does"),
        (_WITH_UNIT, _NO_UNIT, "a unit", "remove the unit"),
    ):
        found = pc.match_substring_regex(distinct, pattern)
        if besides is not None:
            found = pc.and_not(found, pc.match_substring_regex(distinct, besides))
        if pc.mean(found.cast(pa.float64())).as_py() >= _MOSTLY:
            note = f"numbers with {what}, such as {distinct.filter(found)[0].as_py()!r}"
            return Trap(
                note,
                f"column {name!r} is taken for categories, but holds {note}; convert it to numbers ({cure}), or "
                f"declare categorical=[{name!r}] or ignore=[{name!r}] (--categorical, --ignore)",
            )
    return None


# Labels and leaks


def find_problems(lists: ItemLists) -> list[str]:
    """Return a sentence for each problem of labelled lists, with what to do; none for lists without labels.

    >>> lists = ItemLists([[0.0], [1.0]] * 50, [*range(0, 101, 2)], labels=[0, 1] * 50, feature_names=["bought"])
    >>> find_problems(lists)[0]
    "column 'bought' equals the label: a leak, unless it is known before the list is shown; leave it out (ignore=)"
    """
    return [*label_problems(lists), *find_leaks(lists)]


def label_problems(lists: ItemLists) -> Iterator[str]:
    """Yield what is wrong with the labels: grades that start above 0, or lists in which everything is positive."""
    labels = lists.labels
    if labels is None or not len(labels):
        return
    lowest = float(labels.min())
    if lowest > 0 and labels.max() > lowest:
        yield (
            f"the lowest label is {lowest:g}, so every item counts as positive: subtract {lowest:g} from the labels if "
            "they are grades"
        )
        return
    negatives = np.bincount(lists.list_index[labels <= 0], minlength=len(lists))
    several = lists.lengths > 1
    full = int(((negatives == 0) & several).sum())
    if full >= max(10, several.sum() / 2):
        yield (
            f"in {full:,} of {int(several.sum()):,} lists with two or more items every item is positive: such lists "
            "tell nothing apart; keep the items without a click, with label 0"
        )


def find_leaks(lists: ItemLists) -> Iterator[str]:
    """Yield the columns of items that equal the label, determine it, or imply a positive one, beyond chance."""
    n_columns = lists.n_features + len(lists.categorical)
    n_items = min(MOST_ITEMS, max(FEWEST_ITEMS, MOST_CELLS // max(1, n_columns)))
    last = max(1, int(np.searchsorted(lists.offsets, n_items)))
    some = lists[:last]
    if some.labels is None or not some.n_items or some.labels.min() == some.labels.max():
        return
    varying = np.flatnonzero(~(some.features == some.features[0]).all(axis=0))  # of a sparse file, few columns vary
    columns: dict[str, Any] = {some.feature_names[column]: some.features[:, column] for column in varying.tolist()}
    columns |= {name: values for name, values in some.categorical.items() if not values.equals(some.item_ids)}
    for name, values in columns.items():
        if how := _leak(values, some.labels):
            yield (
                f"column {name!r} {how}: a leak, unless it is known before the list is shown; leave it out (ignore=)"
            )


def _leak(values: Any, labels: FloatArray) -> str | None:
    is_number = isinstance(values, np.ndarray)
    codes = (
        np.unique(values, return_inverse=True)[1]
        if is_number
        else values.dictionary_encode(null_encoding="encode").indices.to_numpy()
    )
    chances = [_chance_of_order(values, codes, labels)] if is_number else []
    if codes.max() < MOST_VALUES:
        chances.append(_chance_of_agreement(codes, labels))
    if min(chances, default=0.0) < LOG_CHANCE:
        return "equals the label" if is_number and np.array_equal(values, labels) else "determines the label"
    unusual = codes != np.bincount(codes).argmax()
    if _chance_of_positives(unusual, labels) >= LOG_CHANCE:
        return None
    return "determines the label" if np.array_equal(unusual, labels > 0) else "implies a positive label"


def _chance_of_order(values: npt.NDArray[Any], codes: IntArray, labels: FloatArray) -> float:
    """Return the log-probability that random labels separate the values as these do; 0 if they do not.

    Labels separate values if the values of any two items with different labels differ, always in the same direction:
    2 of V! / Π_c v_c! ways, with v_c of V different values under label c. An item that is there twice counts once.
    """
    first = np.unique(codes, return_index=True)[1]
    order = first[np.argsort(labels[first], kind="stable")]
    starts = np.flatnonzero(np.diff(labels[order], prepend=np.nan) != 0)
    by_label = np.argsort(labels, kind="stable")
    bounds = np.flatnonzero(np.diff(labels[by_label], prepend=np.nan) != 0)
    lows, highs = (extreme.reduceat(values[by_label], bounds) for extreme in (np.minimum, np.maximum))
    if not ((highs[:-1] < lows[1:]).all() or (lows[:-1] > highs[1:]).all()):
        return 0.0
    sizes = np.diff(starts, append=len(order))
    return log(2) - lgamma(len(order) + 1) + sum(map(lgamma, (sizes + 1).tolist()))


def _chance_of_agreement(codes: IntArray, labels: FloatArray) -> float:
    """Return the log-probability that items with the same value have the same label, if labels are random.

    That is Σ over the values v of log Σ_c p_c^(n_v), with n_v items of value v and the share p_c of label c; 0 if any
    two items with one value have different labels.
    """
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    lowest, highest = (extreme.reduceat(classes[order], starts) for extreme in (np.minimum, np.maximum))
    if (highest > lowest).any():
        return 0.0
    sizes, times = np.unique(np.diff(starts, append=len(codes)), return_counts=True)
    shares = np.log(counts / len(labels))
    of_size = (np.logaddexp.reduce(shares * size) if size > 1 else 0.0 for size in sizes)
    return float(sum(n * chance for n, chance in zip(times, of_size, strict=True)))


def _chance_of_positives(unusual: BoolArray, labels: FloatArray) -> float:
    """Return the log-probability that all unusual items are positive, if labels are random.

    An item is unusual if its value is not the most frequent one, which may be NaN: the dwell time of a click, or a
    purchase. That is m log p, with m unusual items and the share p of positive ones; 0 if any of them is not positive.
    """
    positive = labels > 0
    if not unusual.any() or not positive[unusual].all():
        return 0.0
    return float(unusual.sum()) * log(positive.mean())
