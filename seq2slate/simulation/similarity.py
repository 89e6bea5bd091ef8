"""Which items of a list are similar, and which form a group: functions of the list alone, whatever its neighbours.

There are three distances between the items of a list:

    euclidean    of the raw columns, as in the paper: the largest columns decide
    normalised   Euclidean, after sign(x)·ln(1 + |x|) and standardising every column within the list, so that all
                 columns weigh the same; a column that is constant in the list counts nothing
    cosine       1 − cosine of the normalised columns, which are centred in the list; an item whose normalised columns
                 are all 0 has the cosine 1/2 with every other

Two items are similar when their distance is at most the q quantile of all pairwise distances in their list. That
depends on the order of the distances only, and 1 − cosine has the order of the Euclidean distance of unit vectors: so
one function measures all three.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from seq2slate.data.lists import BoolArray, IntArray, ItemLists
from seq2slate.errors import DataError
from seq2slate.simulation.visits import Doubles

Distance: TypeAlias = Literal["euclidean", "normalised", "cosine"]

_TIE = 1e-9  # normalised distances that differ by less than this, and this share of them, are equal but for rounding
_ROUNDS = 10  # of k-means


def similar_items(lists: ItemLists, q: float, distance: Distance = "euclidean") -> BoolArray:
    """Return (B, N, N) which pairs of different items are similar: apart by at most the q quantile of their list.

    Raises:
        DataError: A feature is missing, so that there are no distances.

    >>> similar_items(ItemLists(features=[[0], [1], [9]], offsets=[0, 3]), q=0)[0].astype(int).tolist()
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    """
    from scipy.spatial.distance import squareform  # takes a quarter of a second to import

    n_items = int(lists.lengths.max(initial=0))
    similar = np.zeros((len(lists), n_items, n_items), dtype=bool)
    for members, rows in _by_length(lists, at_least=2):
        length = rows.shape[1]
        if distance == "euclidean":
            close = _close_pairs(lists.features[rows], q)
        else:
            close = _close_pairs(normalised(lists.features[rows], unit=distance == "cosine"), q, _TIE)
        square = squareform(np.arange(1, close.shape[1] + 1))  # (n, n) the number of each pair; 0 on the diagonal
        similar[members, :length, :length] = np.pad(close, ((0, 0), (1, 0)))[:, square]
    return similar


def item_groups(lists: ItemLists, n_groups: int) -> IntArray:
    """Return (B, N) the group, from 0, of each item: k-means on the normalised columns of its list; padding is -1.

    It starts from equal parts of the list in the order of one fixed random projection, and takes at most ten rounds. A
    group may end up empty. The order of the list does not matter but for exact ties.

    >>> item_groups(ItemLists(features=[[0], [9], [1], [8]], offsets=[0, 4]), n_groups=2).tolist()
    [[0, 1, 0, 1]]
    """
    groups = np.full((len(lists), int(lists.lengths.max(initial=0))), -1)
    for members, rows in _by_length(lists, at_least=1):
        groups[members, : rows.shape[1]] = _k_means(normalised(lists.features[rows]), n_groups)
    return groups


def normalised(features: npt.NDArray[Any], *, unit: bool = False) -> Doubles:
    """Return features (B, n, F) on a logarithmic scale, with mean 0 and variance 1 in every column of each list.

    A constant column is 0. With `unit`, every item is scaled to length 1.

    >>> normalised(np.array([[[0.0], [0.0], [9.0]]])).round(3).ravel().tolist()
    [-0.707, -0.707, 1.414]
    """
    values: Doubles = np.sign(features) * np.log1p(np.abs(features, dtype=np.float64))
    is_constant = np.ptp(values, axis=1, keepdims=True) == 0
    values -= values.mean(axis=1, keepdims=True)
    values /= np.where(is_constant, np.inf, np.sqrt((values**2).mean(axis=1, keepdims=True)))
    if unit:
        length = np.sqrt((values**2).sum(axis=-1, keepdims=True))
        values /= np.where(length == 0, 1.0, length)
    return values


def projection(n_features: int) -> Doubles:
    """Return the direction (F,) along which `item_groups` cuts a list at first."""
    return np.random.default_rng(0).normal(size=n_features)


def _by_length(lists: ItemLists, at_least: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the numbers (m,) of the lists of each length n, and the rows (m, n) of their items."""
    _check_no_missing(lists)
    lengths = lists.lengths
    for length in np.unique(lengths[lengths >= at_least]).tolist():
        members = np.flatnonzero(lengths == length)
        yield members, lists.offsets[members, None] + np.arange(length)


def _check_no_missing(lists: ItemLists) -> None:
    missing = np.isnan(lists.features)
    if missing.any():
        row, column = np.argwhere(missing)[0]
        raise DataError(
            f"{lists.describe_item(int(row))}: feature {lists.feature_names[column]!r} is missing, and this user "
            "compares items by all of their features: fill it, or choose a user that does not compare items"
        )


def _close_pairs(features: npt.NDArray[Any], q: float, tie: float = 0.0) -> BoolArray:
    """Return (B, pairs) whose distance is at most the q quantile of their list, for lists of one length (B, n, F).

    Inner products give all distances at once, but they cancel: MSLR has features of 2e8 beside features of 1, and
    duplicate items would be told apart by rounding. So they only decide the lists in which no other pair comes so close
    to the quantile that rounding could matter; the others are measured pair by pair, and there a distance above the
    quantile by at most `tie`, and that share of it, counts as equal to it.
    """
    from scipy.spatial.distance import pdist

    n_items, n_features = features.shape[1:]
    first, second = np.triu_indices(n_items, 1)
    place = q * (len(first) - 1)
    rank = int(place)  # the quantile lies between the distances of this rank and of the next
    centred = np.subtract(features, features[:, :1], dtype=np.float64)
    products = centred @ centred.transpose(0, 2, 1)
    norms = np.einsum("bii->bi", products)
    squares = norms[:, first] + norms[:, second] - 2 * products[:, first, second]
    quantile = np.partition(squares, rank, axis=1)[:, rank, None]
    close: BoolArray = squares <= quantile
    rounding = 16 * (n_features + 8) * np.finfo(np.float64).eps * norms.max(axis=1, keepdims=True)  # a generous bound
    if tie:
        rounding += 4 * tie * (quantile + np.sqrt(np.maximum(quantile, 0)))
    unsure = (np.abs(squares - quantile) <= rounding).sum(axis=1) > 1
    if place - rank > 1 - 1e-6:  # the quantile itself is within rounding of the next distance
        unsure[:] = True
    for number in np.flatnonzero(unsure).tolist():
        distances = pdist(features[number].astype(np.float64))
        close[number] = distances <= np.quantile(distances, q) * (1 + tie) + tie
    return close


def _k_means(features: Doubles, n_groups: int) -> IntArray:
    """Return the groups (B, n) of items (B, n, F)."""
    n_items = features.shape[1]
    start = (features @ projection(features.shape[2])).round(9).argsort(axis=1, kind="stable")
    groups = np.empty(start.shape, dtype=np.int64)
    np.put_along_axis(groups, start, np.arange(n_items)[None] * n_groups // n_items, axis=1)
    for _ in range(_ROUNDS):
        belongs = groups[:, None] == np.arange(n_groups)[:, None]  # (B, groups, n)
        sizes = belongs.sum(axis=2)[..., None]
        centres = belongs @ features / np.maximum(sizes, 1)  # (B, groups, F)
        offset = np.where(sizes == 0, np.inf, (centres**2).sum(axis=2, keepdims=True))
        distances = offset.transpose(0, 2, 1) - 2 * features @ centres.transpose(0, 2, 1)  # (B, n, groups), less |x|²
        previous, groups = groups, distances.round(9).argmin(axis=2)  # rounded: of equal distances the first
        if (groups == previous).all():
            break
    return groups
