"""Click models: simulated users who examine a slate from the top and click.

Section 4.1 of the paper. The user examines position i (counted from 1) with probability 1/i^eta: eta is the severity of
position bias. A click needs examination, and depends on the clicks above it (a cascade):

    P(click on i | clicks above) = i^-eta · f(r_i, s_i)

r_i is the relevance of the item at position i: 1 for a grade of 2 or more, else 0. s_i is 1 if the item is similar to
one clicked above, else 0. Two items are similar when the Euclidean distance of their raw feature vectors is at most the
q quantile of all pairwise distances in their list; q = 0.5 is the median. The models differ in f:

    cascade    r                    every relevant item
    diverse    r (1 − s)            relevant items unlike those clicked above: *diverse-clicks*
    similar    r + (1 − r) s        relevant items, and those like one clicked above: *similar-clicks*
    position   r + (1 − r) noise    relevant items, and others by mistake

Where this goes beyond the paper:

- A click model can be *shown a new slate* (`shown_clicks`), not only label the log (`simulate_clicks`). Similarity is a
  property of the list: it is computed once for all slates and repeats.
- `position` is the position-based model of Joachims et al. (2017), "Unbiased learning-to-rank with biased feedback".
  The paper adapts their procedure and leaves out its clicks on irrelevant items.
- The paper gives no eta for the plain cascade; 1 is the default of Joachims et al.
- f is linear in r, and a click depends on the relevance of its own item alone. So r may be a *probability* of
  relevance: for independent relevances the result is exactly the mean over them. The ceilings for generated lists
  build on that.

An empty list has no clicks, and a list of one item has no similar pair. To add a click model, write a class with the
members of `ClickModel` and name it in `CLICK_MODELS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from seq2slate.data.impressions import Impressions
from seq2slate.data.lists import Batch, BoolArray, FloatArray, IntArray, ItemLists
from seq2slate.data.ranker import NO_ITEM, base_slates
from seq2slate.errors import DataError, UsageError

Doubles: TypeAlias = npt.NDArray[np.float64]

_CELLS = 1 << 20  # in the largest array of a batch: some ten megabytes


class Draws(NamedTuple):
    """The random numbers of a scan: uniform on [0, 1), one of each kind for every slot (…, B, K)."""

    examine: Doubles
    """The user examines slot i if this is below 1/i^eta."""
    click: Doubles
    """The user clicks on an examined item if this is below its click probability."""


class Scan(NamedTuple):
    """What happened at each slot (…, B, K)."""

    clicks: BoolArray
    probability: Doubles
    """Of a click, given the clicks above. Its mean over scans estimates the click rate with less variance."""


class ClickModel(Protocol):
    """A simulated user, by shape and not by inheritance."""

    @property
    def eta(self) -> float:
        """The severity of position bias: position i is examined with probability 1/i^eta."""

    @property
    def q(self) -> float | None:
        """The quantile of the pairwise distances up to which items are similar; None if clicks above do not matter."""

    @property
    def relevant_from(self) -> float:
        """The lowest relevant grade: 2 for grades from 0 to 4, 1 for binary labels."""

    @property
    def is_stochastic(self) -> bool:
        """Whether two scans of one slate can differ. With eta = 0 every position is examined for certain."""
        return self.eta > 0

    def click_probability(self, relevance: Doubles, near_clicked: BoolArray) -> Doubles:
        """Return f(r, s), the click probability of examined items.

        Args:
            relevance: r, which is 0, 1 or a probability.
            near_clicked: s, whether the item is similar to one clicked above.

        """


_RANGES = {"eta": (0, np.inf), "q": (0, 1), "noise": (0, 1)}


class _CheckedOptions:
    """A model whose options must be in their ranges."""

    def __post_init__(self) -> None:
        for option, (low, high) in _RANGES.items():
            value = getattr(self, option, None)
            if value is not None and not low <= value <= high:
                limits = f"at least {low}" if high == np.inf else f"between {low} and {high}"
                raise UsageError(f"{option} must be {limits}, got {value:g}")


@dataclass(frozen=True)
class CascadeModel(_CheckedOptions, ClickModel):
    """f = r: clicks every relevant item that is examined, and does not stop after a click."""

    eta: float = 1.0
    relevant_from: float = 2.0
    q: ClassVar[None] = None

    def click_probability(self, relevance: Doubles, near_clicked: BoolArray) -> Doubles:
        """Return r."""
        return relevance


@dataclass(frozen=True)
class DiverseClicks(_CheckedOptions, ClickModel):
    """f = r (1 − s): clicks a relevant item unless it is similar to one clicked above. The paper's *diverse-clicks*."""

    eta: float = 0.0
    q: float = 0.5
    relevant_from: float = 2.0

    def click_probability(self, relevance: Doubles, near_clicked: BoolArray) -> Doubles:
        """Return r (1 − s)."""
        return np.where(near_clicked, 0.0, relevance)


@dataclass(frozen=True)
class SimilarClicks(_CheckedOptions, ClickModel):
    """f = r + (1 − r) s: clicks a relevant item, or one similar to an item clicked above. The paper's *similar-clicks*.

    The default eta is the paper's for Web30k; for Yahoo it is 0.1.
    """

    eta: float = 0.3
    q: float = 0.5
    relevant_from: float = 2.0

    def click_probability(self, relevance: Doubles, near_clicked: BoolArray) -> Doubles:
        """Return r + (1 − r) s."""
        return np.where(near_clicked, 1.0, relevance)


@dataclass(frozen=True)
class PositionBasedModel(_CheckedOptions, ClickModel):
    """f = r + (1 − r) noise: clicks a relevant item, and an irrelevant one with probability `noise`."""

    eta: float = 1.0
    noise: float = 0.1
    relevant_from: float = 2.0
    q: ClassVar[None] = None

    @property
    def is_stochastic(self) -> bool:
        """Both position bias and noise make it so."""
        return self.eta > 0 or 0 < self.noise < 1

    def click_probability(self, relevance: Doubles, near_clicked: BoolArray) -> Doubles:
        """Return r + (1 − r) noise."""
        return relevance + (1 - relevance) * self.noise


CLICK_MODELS: dict[str, Callable[..., ClickModel]] = {
    "cascade": CascadeModel,
    "diverse": DiverseClicks,
    "similar": SimilarClicks,
    "position": PositionBasedModel,
}
"""Every click model, by the name that it has on the command line."""


def click_model(name: str, **options: float | None) -> ClickModel:
    """Return the click model of that name.

    Args:
        name: A name in `CLICK_MODELS`.
        options: Fields of the model, such as eta, q, noise and relevant_from. None keeps the model's default.

    >>> click_model("similar", eta=0.1)
    SimilarClicks(eta=0.1, q=0.5, relevant_from=2.0)

    """
    if name not in CLICK_MODELS:
        raise UsageError(f"there is no click model {name!r}; choose one of {', '.join(CLICK_MODELS)}")
    known = signature(CLICK_MODELS[name]).parameters
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in known:
            raise UsageError(f"the click model {name!r} has no option {option!r}; it has {', '.join(known)}")
    return CLICK_MODELS[name](**given)


def simulate_clicks(model: ClickModel, lists: ItemLists, seed: int) -> ItemLists:
    """Return the lists with simulated clicks on the base order as labels; the grades move to `relevance`.

    `impressions` say that every item was shown in the slot of its base position.

    Args:
        model: Who clicks.
        lists: In base order. Their grades are `relevance` where there is one, so that a log can be labelled again, and
            `labels` otherwise.
        seed: The clicks on list q depend on the seed, on q and on that list, and on nothing else.

    >>> lists = ItemLists(features=[[0], [1], [9], [10]], offsets=[0, 4], labels=[2, 4, 3, 3])
    >>> simulate_clicks(DiverseClicks(), lists, seed=0).labels.tolist()
    [1.0, 0.0, 1.0, 0.0]

    """
    clicks = np.zeros(lists.n_items, dtype=np.float32)
    for batch, scanned in _scan_all(model, lists, None, repeats=1, seed=seed):
        rows = lists.offsets[batch.index][:, None] + np.arange(batch.n_slots)  # of each item, in the order of the log
        clicks[rows[batch.mask]] = scanned.clicks[0][batch.mask]
    impressions = Impressions(slots=lists.positions)
    return replace(lists, labels=clicks, relevance=_grades(lists), impressions=impressions)


def shown_clicks(model: ClickModel, lists: ItemLists, slates: IntArray, *, repeats: int, seed: int) -> Doubles:
    """Return the expected clicks (Q, K) at each slot of slates (Q, K), by Monte Carlo.

    The mean is over P(click | clicks above) and not over clicks: it has the same expectation and less variance. Where
    the model is not stochastic, or ignores the clicks above, one scan is exact and only one is made.

    Args:
        model: Who is shown the slates.
        lists: What the slates index, with grades.
        slates: The new order, or the top of it.
        repeats: The number of scans.
        seed: Gives common random numbers: the draws do not depend on the slates, so that rankers are compared under the
            same draws, and the first slots keep theirs when more are shown.

    >>> lists = ItemLists(features=[[0], [1], [9], [10]], offsets=[0, 4], labels=[2, 4, 3, 3])
    >>> shown_clicks(DiverseClicks(), lists, np.array([[0, 3, 1, 2]]), repeats=10, seed=0).tolist()
    [[1.0, 1.0, 0.0, 0.0]]

    """
    if len(slates) != len(lists):
        raise UsageError(f"{len(slates)} slates for {len(lists)} lists")
    if repeats < 1:
        raise UsageError(f"repeats must be at least 1, got {repeats}")
    if not model.is_stochastic or model.q is None:
        repeats = 1
    means = np.zeros(slates.shape)
    for batch, scanned in _scan_all(model, lists, slates, repeats=repeats, seed=seed):
        means[batch.index, : batch.n_slots] = scanned.probability.mean(axis=0)
    return means


def check_grades(model: ClickModel, lists: ItemLists) -> None:
    """Refuse labels that look like clicks where the model needs grades: not one item would be relevant.

    >>> check_grades(CascadeModel(), ItemLists([[0], [1]], [0, 2], labels=[0, 1]))
    Traceback (most recent call last):
    seq2slate.errors.UsageError: the highest label is 1, and this click model takes items as relevant from 2 on: ...
    """
    highest = float(_grades(lists).max(initial=0))
    if 0 < highest <= 1 < model.relevant_from:
        raise UsageError(
            f"the highest label is {highest:g}, and this click model takes items as relevant from "
            f"{model.relevant_from:g} on: are these clicks and not grades? If 1 means relevant, say so with "
            "relevant_from=1 (--relevant-from 1)"
        )


def relevance_of_items(model: ClickModel, lists: ItemLists) -> Doubles:
    """Return (T,) 1 for an item with a relevant grade and 0 for the others.

    >>> relevance_of_items(CascadeModel(), ItemLists([[0], [1]], [0, 2], labels=[1, 3])).tolist()
    [0.0, 1.0]
    """
    return (_grades(lists) >= model.relevant_from).astype(np.float64)


def _scan_all(
    model: ClickModel, lists: ItemLists, slates: IntArray | None, *, repeats: int, seed: int
) -> Iterator[tuple[Batch, Scan]]:
    """Yield batches with scans (R, B, K) of their slates, or of the base order if there are none."""
    for batch in bounded_batches(lists, repeats):
        shown = base_slates(batch.mask) if slates is None else slates[batch.index, : batch.n_slots]
        if model.is_stochastic:
            draws = draw([(seed, number) for number in batch.index.tolist()], shown.shape[1], repeats)
        else:
            draws = Draws(*np.zeros((2, repeats, *shown.shape)))
        relevance = batch.pad(relevance_of_items(model, batch.lists))
        similar = None if model.q is None else similar_items(batch.lists, model.q)
        yield batch, scan(model, shown, relevance, similar, draws)


def scan(model: ClickModel, slates: IntArray, relevance: Doubles, similar: BoolArray | None, draws: Draws) -> Scan:
    """Return what the user does at every slot of slates (B, K), K ≤ N.

    Args:
        model: Who is shown the slates.
        slates: (B, K), `NO_ITEM` in an empty slot, which is never clicked.
        relevance: (B, N), 0, 1 or a probability.
        similar: (B, N, N) from `similar_items`; None for a model that ignores the clicks above.
        draws: (…, B, K). Leading axes make that many scans at once.

    >>> nothing = np.zeros((1, 2))
    >>> scan(CascadeModel(), np.array([[1, 0]]), np.ones((1, 2)), None, Draws(nothing, nothing)).probability.tolist()
    [[1.0, 0.5]]

    """
    n_slots = slates.shape[1]
    items = np.maximum(slates, 0)
    relevance_at = np.take_along_axis(relevance, items, axis=1)  # (B, K)
    examination = np.where(slates == NO_ITEM, 0.0, examination_probability(n_slots, model.eta))  # (B, K)
    examined = draws.examine < examination
    clicks = np.zeros(examined.shape, dtype=bool)
    probability = np.zeros(examined.shape)
    near_clicked = np.zeros(examined.shape, dtype=bool)
    similar_at = None if similar is None else _similar_at_slots(similar, items)
    for slot in range(n_slots):
        if_examined = model.click_probability(relevance_at[:, slot], near_clicked[..., slot])
        clicks[..., slot] = examined[..., slot] & (draws.click[..., slot] < if_examined)
        probability[..., slot] = examination[:, slot] * if_examined
        if similar_at is not None:
            near_clicked[..., slot + 1 :] |= clicks[..., slot, None] & similar_at[:, slot, slot + 1 :]
    return Scan(clicks, probability)


def examination_probability(n_slots: int, eta: float) -> Doubles:
    """Return (K,) the probability i^-eta that the user examines slot i = 1 … K.

    >>> examination_probability(3, eta=1).tolist() == [1, 1 / 2, 1 / 3]
    True
    """
    probability: Doubles = np.arange(1, n_slots + 1, dtype=np.float64) ** -eta
    return probability


def similar_items(lists: ItemLists, q: float) -> BoolArray:
    """Return (B, N, N) which pairs of different items are similar: apart by at most the q quantile of their list.

    Raises:
        DataError: A feature is missing, so that there are no distances.

    >>> similar_items(ItemLists(features=[[0], [1], [9]], offsets=[0, 3]), q=0)[0].astype(int).tolist()
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    """
    from scipy.spatial.distance import squareform  # takes a quarter of a second to import

    _check_no_missing(lists)
    lengths = lists.lengths
    similar = np.zeros((len(lists), *[int(lengths.max(initial=0))] * 2), dtype=bool)
    for length in np.unique(lengths[lengths >= 2]).tolist():
        members = np.flatnonzero(lengths == length)
        rows = lists.offsets[members, None] + np.arange(length)
        close = _close_pairs(lists.features[rows], q)
        square = squareform(np.arange(1, close.shape[1] + 1))  # (n, n) the number of each pair; 0 on the diagonal
        similar[members, :length, :length] = np.pad(close, ((0, 0), (1, 0)))[:, square]
    return similar


def _check_no_missing(lists: ItemLists) -> None:
    missing = np.isnan(lists.features)
    if missing.any():
        row, column = np.argwhere(missing)[0]
        raise DataError(
            f"{lists.describe_item(int(row))}: feature {lists.feature_names[column]!r} is missing, and this user "
            "compares items by all of their features: fill it, or choose a user that does not compare items"
        )


def _close_pairs(features: FloatArray, q: float) -> BoolArray:
    """Return (B, pairs) whose distance is at most the q quantile of their list, for lists of one length (B, n, F).

    Inner products give all distances at once, but they cancel: MSLR has features of 2e8 beside features of 1, and
    duplicate items would be told apart by rounding. So they only decide the lists in which no other pair comes so close
    to the quantile that rounding could matter; the others are measured pair by pair.
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
    unsure = (np.abs(squares - quantile) <= rounding).sum(axis=1) > 1
    if place - rank > 1 - 1e-6:  # the quantile itself is within rounding of the next distance
        unsure[:] = True
    for number in np.flatnonzero(unsure).tolist():
        distances = pdist(features[number].astype(np.float64))
        close[number] = distances <= np.quantile(distances, q)
    return close


def bounded_batches(lists: ItemLists, repeats: int = 1) -> Iterator[Batch]:
    """Yield every list once, the longest first, in batches with small arrays (B, N, N), (B, N, F) and (R, B, N).

    >>> [batch.index.tolist() for batch in bounded_batches(ItemLists(np.zeros((3, 1)), [0, 1, 3]))]
    [[1, 0]]
    """
    order = np.argsort(-lists.lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lists.lengths[order[start]])
        size = max(1, _CELLS // max(1, longest * max(longest, repeats, lists.n_features)))
        yield lists.batch(order[start : start + size])
        start += size


def draw(keys: Sequence[tuple[int, ...]], n_slots: int, repeats: int) -> Draws:
    """Return draws (R, B, K): row b comes from a generator of its own, seeded with `keys[b]`, whatever the batch.

    >>> bool(draw([(0, 7)], 2, 1).click[0, 0, 1] == draw([(0, 3), (0, 7)], 5, 1).click[0, 1, 1])
    True
    """
    # Slot by slot, so that the first slots get the same draws however many there are.
    uniform = np.zeros((len(keys), n_slots, 2, repeats))
    for row, key in zip(uniform, keys, strict=True):
        np.random.default_rng(key).random(out=row)
    return Draws(*uniform.transpose(2, 3, 0, 1))


def _similar_at_slots(similar: BoolArray, items: IntArray) -> BoolArray:
    """Return (B, K, K) which slots hold similar items."""
    lists = np.arange(len(items))[:, None, None]
    return similar[lists, items[:, :, None], items[:, None, :]]


def _grades(lists: ItemLists) -> FloatArray:
    grades = lists.labels if lists.relevance is None else lists.relevance
    if grades is None:
        raise DataError("a click model needs grades: these lists have neither relevance nor labels")
    return grades
