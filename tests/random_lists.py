"""Random ItemLists with every kind of column, and what it means for two of them to be the same."""

from __future__ import annotations

import string
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import strategies as st

from seq2slate.data.impressions import Draft, Impressions
from seq2slate.data.lists import FloatArray, ItemLists, offsets_from_lengths

ODD_TEXT = ["", " ", "a b", "é#\n", "2016-06-14 04:06:19", "null", "1", "\U0001f3e8", "\u2028", "x\ty"]
PLAIN_TEXT = [*string.ascii_lowercase, "é", "GX004-93", "\U0001f3e8"]


@st.composite
def item_lists(draw: st.DrawFn, *, min_lists: int = 0) -> ItemLists:
    """Lists with any columns: empty lists, no lists, missing labels, missing text, odd names, all of float32."""
    lengths = draw(st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 30]), min_size=min_lists, max_size=8))
    n_features = draw(st.integers(0, 4))
    optional = ("labels", "ids", "names", "fields", "columns", "impressions")
    has = draw(st.fixed_dictionaries({name: st.booleans() for name in optional}))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_items, n_lists = sum(lengths), len(lengths)
    names = draw(
        st.lists(st.sampled_from(["price", "f2", "näme", "a b", "label!"]), min_size=4, max_size=4, unique=True)
    )
    return ItemLists(
        features=any_float32(rng, n_items * n_features).reshape(n_items, n_features),
        offsets=offsets_from_lengths(np.array(lengths, dtype=np.int64)),
        labels=abs(any_float32(rng, n_items)) if has["labels"] else None,
        list_ids=[f"{q}{draw(st.sampled_from(ODD_TEXT))}" for q in range(n_lists)] if has["ids"] else None,
        item_ids=[f"{i}:{rng.choice(ODD_TEXT)}" for i in range(n_items)] if has["ids"] else None,
        feature_names=tuple(names[:n_features]) if has["names"] else (),
        categorical={"colour": some_text(rng, n_items), "brand": some_text(rng, n_items)} if has["columns"] else {},
        context={"city": some_text(rng, n_lists), "hour": rng.standard_normal(n_lists)} if has["columns"] else {},
        impressions=some_impressions(rng, lengths) if has["impressions"] else None,
        relevance=rng.integers(0, 5, n_items) if has["fields"] else None,
        relevance_probability=rng.random(n_items) if has["fields"] else None,
    )


def some_impressions(rng: np.random.Generator, lengths: list[int]) -> Impressions:
    """Some items of each list in some slots, and any of the other columns."""
    n_items, n_lists = sum(lengths), len(lengths)
    slots = np.array([slot for length in lengths for slot in rng.permutation(length)], dtype=np.int64)
    shown = rng.random(n_items) < 0.7
    draft = Draft("é", "b", "ab").to_json()
    columns: dict[str, Any] = {
        "log_propensities": np.where(shown & (rng.random(n_items) < 0.5), np.log(rng.random(n_items)), 0.0),
        "clicked_at": np.where(shown & (rng.random(n_items) < 0.3), 1e9 * rng.random(n_items), np.nan),
        "units": some_text(rng, n_lists),
        "arms": some_text(rng, n_lists),
        "times": 1e9 * rng.random(n_lists),
        "experiments": some_text(rng, n_lists),
        "models": some_text(rng, n_lists),
        "fallbacks": some_text(rng, n_lists),
        "drafts": [draft if rng.random() < 0.5 else None for _ in range(n_lists)],
        "latency_ms": rng.random(n_lists),
    }
    return Impressions(
        np.where(shown, slots, -1), **{name: values for name, values in columns.items() if rng.random() < 0.8}
    )


def any_float32(rng: np.random.Generator, n: int) -> FloatArray:
    """Finite numbers of every size, tiny, huge and -0.0 among them."""
    values = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    ordinary = rng.choice(np.array([0.0, -0.0, 1.0, 0.1, 1e-45, 3.4028235e38], dtype=np.float32), n)
    return np.where(np.isfinite(values) & (rng.random(n) < 0.5), values, ordinary)


def some_text(rng: np.random.Generator, n: int) -> Any:
    """Text of which some is missing; now and then all of it."""
    texts = [None if rng.random() < 0.3 else str(rng.choice(ODD_TEXT)) for _ in range(n)]
    return pa.array(texts if rng.random() < 0.8 else [None] * n, type=pa.large_string())


def assert_same_lists(actual: ItemLists, expected: ItemLists) -> None:
    """Every field is the same, numbers bit for bit."""
    assert_same_fields(actual, expected)


def assert_same_fields(actual: Any, expected: Any) -> None:
    for entry in fields(expected):
        if entry.name == "roles":  # where columns came from, which is not part of what the lists are
            continue
        a, b = getattr(actual, entry.name), getattr(expected, entry.name)
        if is_dataclass(b):
            assert_same_fields(a, b)
        elif isinstance(b, dict):
            assert list(a) == list(b), entry.name
            for name in b:
                assert_same_values(a[name], b[name], name)
        else:
            assert_same_values(a, b, entry.name)


def assert_same_values(actual: Any, expected: Any, name: str) -> None:
    assert type(actual) is type(expected), name
    if isinstance(expected, np.ndarray):
        assert actual.dtype == expected.dtype, name
        assert actual.shape == expected.shape, name
        np.testing.assert_array_equal(bits(actual), bits(expected), err_msg=name)
    elif isinstance(expected, pa.Array):
        assert actual.to_pylist() == expected.to_pylist(), name
    else:
        assert actual == expected, name


def bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values.view(f"u{values.dtype.itemsize}")
