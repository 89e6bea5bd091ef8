"""Summary statistics of lists: what to look at before training on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seq2slate.data.lists import ItemLists

_PERCENTAGES = (0, 25, 50, 75, 95, 100)
_MOST_SHOWN = 12
_ROWS_AT_ONCE = 1 << 16  # the mask of a large matrix is large, too


@dataclass(frozen=True)
class Summary:
    """Summary statistics of lists and items."""

    lists: int
    items: int
    features: int
    length_quantiles: Mapping[int, float]
    """Percentage → list length: 50 is the median, 100 the longest list. Empty if there are no lists."""
    empty_lists: int
    single_item_lists: int
    label_shares: Mapping[float, float] | None
    """Label → share of the items that have it; None without labels."""
    lists_without_positives: int | None
    """Lists without a label above 0, empty lists included; None without labels."""
    constant_features: tuple[str, ...]
    """Features with zero variance."""
    missing_features: Mapping[str, float]
    """Feature → share of the items for which it is missing; only those that some items lack."""
    categorical: Mapping[str, int]
    """Column → number of distinct values."""
    context: Mapping[str, int]
    """Column → number of distinct values."""
    bytes: int
    """Size in memory."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-serialisable values."""
        plain = asdict(self)
        for name in ("length_quantiles", "label_shares"):
            if plain[name] is not None:
                plain[name] = {f"{key:g}": value for key, value in plain[name].items()}
        return plain | {"constant_features": list(self.constant_features)}

    def __str__(self) -> str:
        """Return the summary as aligned text."""
        rows = {
            "lists": f"{self.lists:,}",
            "items": f"{self.items:,}",
            "features": f"{self.features:,}",
            "list length": "  ".join(f"{p}%: {length:g}" for p, length in self.length_quantiles.items()),
            "empty lists": f"{self.empty_lists:,}",
            "single-item lists": f"{self.single_item_lists:,}",
            "labels": _label_text(self.label_shares),
            "lists without positives": _count_text(self.lists_without_positives),
            "features without variance": _some(self.constant_features),
            "missing features": _some([f"{name}: {share:.1%}" for name, share in self.missing_features.items()]),
            "categorical (distinct)": _some([f"{name} ({count:,})" for name, count in self.categorical.items()]),
            "context (distinct)": _some([f"{name} ({count:,})" for name, count in self.context.items()]),
            "memory": f"{self.bytes / 2**20:,.1f} MB",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {text or '–'}".rstrip() for name, text in rows.items())


def summarise(lists: ItemLists) -> Summary:
    """Return summary statistics: list lengths, labels, constant and missing features, and distinct values.

    >>> import numpy as np
    >>> summary = summarise(ItemLists(np.array([[1, 5], [2, 5], [3, 5]]), [0, 2, 3, 3], labels=[0, 1, 0]))
    >>> summary.lists, summary.empty_lists, summary.lists_without_positives, summary.constant_features
    (3, 1, 2, ('f2',))
    >>> summary.length_quantiles[100]
    2.0
    """
    lengths = lists.lengths
    quantiles = np.percentile(lengths, _PERCENTAGES) if len(lengths) else np.empty(0)
    return Summary(
        lists=len(lists),
        items=lists.n_items,
        features=lists.n_features,
        length_quantiles=dict(zip(_PERCENTAGES, quantiles.tolist(), strict=False)),
        empty_lists=int((lengths == 0).sum()),
        single_item_lists=int((lengths == 1).sum()),
        label_shares=_label_shares(lists),
        lists_without_positives=_count_without_positives(lists),
        constant_features=_constant_features(lists),
        missing_features=_missing_features(lists),
        categorical={name: _count_distinct(values) for name, values in lists.categorical.items()},
        context={name: _count_distinct(values) for name, values in lists.context.items()},
        bytes=lists.nbytes,
    )


def _label_shares(lists: ItemLists) -> dict[float, float] | None:
    if lists.labels is None:
        return None
    labels, counts = np.unique(lists.labels, return_counts=True)
    return dict(zip(labels.tolist(), (counts / max(1, lists.n_items)).tolist(), strict=True))


def _count_without_positives(lists: ItemLists) -> int | None:
    if lists.labels is None:
        return None
    return len(lists) - len(np.unique(lists.list_index[lists.labels > 0]))


def _constant_features(lists: ItemLists) -> tuple[str, ...]:
    if not lists.n_items:
        return ()
    # Of the values that are there; a column without any is constant, too.
    least, most = np.fmin.reduce(lists.features), np.fmax.reduce(lists.features)
    constant = (least == most) | np.isnan(least)
    return tuple(np.array(lists.feature_names, dtype=object)[constant])


def _missing_features(lists: ItemLists) -> dict[str, float]:
    counts = np.zeros(lists.n_features, dtype=np.int64)
    for start in range(0, lists.n_items, _ROWS_AT_ONCE):
        counts += np.isnan(lists.features[start : start + _ROWS_AT_ONCE]).sum(axis=0)
    pairs = zip(lists.feature_names, counts.tolist(), strict=True)
    return {name: count / lists.n_items for name, count in pairs if count}


def _count_distinct(values: Any) -> int:
    return int(pc.count_distinct(pa.array(values)).as_py())


def _label_text(shares: Mapping[float, float] | None) -> str:
    return "none" if shares is None else _some([f"{label:g}: {share:.1%}" for label, share in shares.items()], "  ")


def _count_text(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _some(texts: tuple[str, ...] | list[str], by: str = ", ") -> str:
    """Join the first few texts, and say how many more there are."""
    more = len(texts) - _MOST_SHOWN
    return by.join(texts[:_MOST_SHOWN]) + (f" … and {more:,} more" if more > 0 else "")
