"""Simulated users: they scan a slate from the top, and what they click depends on what they clicked before.

Section 4.1 of the paper. The user observes position i (from 1) with probability 1/i^eta, and decides about an observed
item by its relevance (a grade of 2 or more) and by whether it is similar to an item clicked before. Two items are
similar when the Euclidean distance of their raw feature vectors is at most the q quantile of all pairwise distances in
their list; q = 0.5 is the median.

Where this goes beyond the paper:

- The same user can be *shown a new slate* and click again (`shown_clicks`), not only label the log (`simulate_clicks`).
  The similarity of items is a property of the list, so it is computed once and serves every slate and every repeat.
- `position` is the user of Joachims et al. (2017), "Unbiased learning-to-rank with biased feedback": the paper adapts
  their procedure and leaves out its noisy clicks on irrelevant items.
- The paper gives no eta for the plain cascade; 1 is the default of Joachims et al.
- A user is defined by a click probability that also takes *probabilities* of relevance. The click of an item depends on
  no relevance but its own, so for independent relevances the answer is then exactly the mean over them; the ceilings
  for generated lists build on that.

An empty list has no clicks, and a list of one item no pair to be similar.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import pdist, squareform

from seq2slate.data.lists import Batch, BoolArray, FloatArray, IntArray, ItemLists
from seq2slate.data.ranker import NO_ITEM, slates_from_scores
from seq2slate.errors import DataError, UsageError

Doubles: TypeAlias = npt.NDArray[np.float64]

_CELLS = 1 << 20  # in the largest array of a batch: some ten megabytes


class Draws(NamedTuple):
    """All the luck of a scan: uniform numbers from [0, 1), one of each kind for every slot (…, B, K)."""

    observe: Doubles
    """The user sees the slot if this is below 1/i^eta."""
    decide: Doubles
    """The user clicks on an observed item if this is below its click probability."""


class Scan(NamedTuple):
    """What happened at each slot (…, B, K)."""

    clicks: BoolArray
    probability: Doubles
    """Of a click, given the clicks above: its mean over scans estimates the click rate better than the clicks do."""


class ClickModel(Protocol):
    """Somebody who scans slates from the top; subclasses say what makes them click."""

    @property
    def eta(self) -> float:
        """How fast attention falls: position i is observed with probability 1/i^eta."""
        ...

    @property
    def q(self) -> float | None:
        """Which quantile of the pairwise distances counts as similar; None if earlier clicks do not matter."""
        ...

    @property
    def relevant_from(self) -> float:
        """The lowest grade that is relevant: 2 for grades from 0 to 4, 1 for binary labels."""
        ...

    @property
    def is_random(self) -> bool:
        """Whether two scans of one slate can differ."""
        ...

    def click_probability(self, relevance: Doubles, near_clicked: BoolArray) -> Doubles:
        """Return the probability that observed items are clicked.

        `relevance` is 0, 1 or a probability; `near_clicked` says which items are similar to one clicked before.
        """
        ...

    def clicks(self, slates: IntArray, relevance: Doubles, similar: BoolArray | None, draws: Draws) -> BoolArray:
        """Return the clicks (…, B, K) on slates (B, K); the other arguments are those of `scan`."""
        return scan(self, slates, relevance, similar, draws).clicks


@dataclass(frozen=True)
class CascadeModel(ClickModel):
    """Clicks every relevant item that is observed."""

    eta: float = 1.0
    relevant_from: float = 2.0
    q: ClassVar[None] = None

    def __post_init__(self) -> None:
        _check_range("eta", self.eta, 0, np.inf)

    @property
    def is_random(self) -> bool:
        """Only what is observed is left to chance."""
        return self.eta > 0

    def click_probability(self, relevance: Doubles, near_clicked: BoolArray) -> Doubles:
        """Relevance alone decides."""
        return relevance


@dataclass(frozen=True)
class DiverseClicks(ClickModel):
    """Clicks a relevant item that is observed unless it is similar to one clicked before: *diverse-clicks*."""

    eta: float = 0.0
    q: float = 0.5
    relevant_from: float = 2.0

    def __post_init__(self) -> None:
        _check_range("eta", self.eta, 0, np.inf)
        _check_range("q", self.q, 0, 1)

    @property
    def is_random(self) -> bool:
        """Only what is observed is left to chance, and with the paper's eta of 0 everything is observed."""
        return self.eta > 0

    def click_probability(self, relevance: Doubles, near_clicked: BoolArray) -> Doubles:
        """Relevance decides, and an earlier click nearby forbids."""
        return np.where(near_clicked, 0.0, relevance)


@dataclass(frozen=True)
class SimilarClicks(ClickModel):
    """Clicks what is observed and relevant, or irrelevant but similar to an item clicked before: *similar-clicks*.

    The default eta is the paper's for Web30k; for Yahoo it is 0.1.
    """

    eta: float = 0.3
    q: float = 0.5
    relevant_from: float = 2.0

    def __post_init__(self) -> None:
        _check_range("eta", self.eta, 0, np.inf)
        _check_range("q", self.q, 0, 1)

    @property
    def is_random(self) -> bool:
        """Only what is observed is left to chance."""
        return self.eta > 0

    def click_probability(self, relevance: Doubles, near_clicked: BoolArray) -> Doubles:
        """Relevance decides, and an earlier click nearby is as good."""
        return np.where(near_clicked, 1.0, relevance)


@dataclass(frozen=True)
class PositionBasedModel(ClickModel):
    """Clicks every relevant item that is observed, and an irrelevant one with probability `noise`."""

    eta: float = 1.0
    noise: float = 0.1
    relevant_from: float = 2.0
    q: ClassVar[None] = None

    def __post_init__(self) -> None:
        _check_range("eta", self.eta, 0, np.inf)
        _check_range("noise", self.noise, 0, 1)

    @property
    def is_random(self) -> bool:
        """Both what is observed and what is clicked by mistake are left to chance."""
        return self.eta > 0 or 0 < self.noise < 1

    def click_probability(self, relevance: Doubles, near_clicked: BoolArray) -> Doubles:
        """Relevance decides, and an irrelevant item may be clicked by mistake."""
        return relevance + (1 - relevance) * self.noise


USERS: dict[str, type[CascadeModel] | type[DiverseClicks] | type[SimilarClicks] | type[PositionBasedModel]] = {
    "cascade": CascadeModel,
    "diverse": DiverseClicks,
    "similar": SimilarClicks,
    "position": PositionBasedModel,
}
"""Every simulated user, by the name it has on the command line."""


def click_model(
    name: str,
    *,
    eta: float | None = None,
    q: float | None = None,
    noise: float | None = None,
    relevant_from: float | None = None,
) -> ClickModel:
    """Return the user of that name; an option that is not given keeps the user's own default.

    >>> click_model("similar", eta=0.1)
    SimilarClicks(eta=0.1, q=0.5, relevant_from=2.0)
    """
    if name not in USERS:
        raise UsageError(f"there is no user {name!r}; choose one of {', '.join(USERS)}")
    given = {"eta": eta, "q": q, "noise": noise, "relevant_from": relevant_from}
    options = {option: value for option, value in given.items() if value is not None}
    known = [field.name for field in fields(USERS[name])]
    for option in options:
        if option not in known:
            raise UsageError(f"the user {name!r} has no option {option!r}; it has {', '.join(known)}")
    return USERS[name](**options)


def simulate_clicks(user: ClickModel, lists: ItemLists, seed: int) -> ItemLists:
    """Return the lists with the user's clicks on the base order as labels; the grades move to `relevance`.

    The grades are `lists.relevance` where there is one, so that a log can be labelled again, and `lists.labels`
    otherwise. The clicks on list q depend on the seed, on q and on that list, and on nothing else.

    >>> lists = ItemLists(features=[[0], [1], [9], [10]], offsets=[0, 4], labels=[2, 4, 3, 3])
    >>> simulate_clicks(DiverseClicks(), lists, seed=0).labels.tolist()
    [1.0, 0.0, 1.0, 0.0]
    """
    clicks = np.zeros(lists.n_items, dtype=np.float32)
    for batch, scanned in _scan_all(user, lists, None, repeats=1, seed=seed):
        rows = lists.offsets[batch.index][:, None] + np.arange(batch.n_slots)  # of each item, in the order of the log
        clicks[rows[batch.mask]] = scanned.clicks[0][batch.mask]
    return replace(lists, labels=clicks, relevance=_grades(lists))


def shown_clicks(user: ClickModel, lists: ItemLists, slates: IntArray, *, repeats: int, seed: int) -> Doubles:
    """Return the mean clicks (Q, K) at each slot when the user is shown slates (Q, K) of the lists.

    The mean over `repeats` scans is of click probabilities given the clicks above, not of the clicks themselves: it has
    the same expectation and less noise. Where the user is not random, or does not look at earlier clicks, one scan is
    made and is exact. A seed gives the same draws whatever the slates: rankers compare on equal luck, and the first
    slots keep theirs when more are shown.

    >>> lists = ItemLists(features=[[0], [1], [9], [10]], offsets=[0, 4], labels=[2, 4, 3, 3])
    >>> shown_clicks(DiverseClicks(), lists, np.array([[0, 3, 1, 2]]), repeats=10, seed=0).tolist()
    [[1.0, 1.0, 0.0, 0.0]]
    """
    if len(slates) != len(lists):
        raise UsageError(f"{len(slates)} slates for {len(lists)} lists")
    if repeats < 1:
        raise UsageError(f"repeats must be at least 1, got {repeats}")
    if not user.is_random or user.q is None:
        repeats = 1
    means = np.zeros(slates.shape)
    for batch, scanned in _scan_all(user, lists, slates, repeats=repeats, seed=seed):
        means[batch.index, : batch.n_slots] = scanned.probability.mean(axis=0)
    return means


def check_grades(user: ClickModel, lists: ItemLists) -> None:
    """Refuse labels that look like clicks for a user who looks for grades: not one item would be relevant."""
    highest = float(_grades(lists).max(initial=0))
    if 0 < highest <= 1 < user.relevant_from:
        raise UsageError(
            f"no label is above {highest:g}, and this user finds items relevant from {user.relevant_from:g} on: "
            "are these clicks and not grades? If 1 means relevant, say so with relevant_from=1 (--relevant-from 1)"
        )


def _scan_all(
    user: ClickModel, lists: ItemLists, slates: IntArray | None, *, repeats: int, seed: int
) -> Iterator[tuple[Batch, Scan]]:
    """Yield batches with the user's scans (R, B, K) of their slates, or of the base order if there are none."""
    for batch in bounded_batches(lists, repeats):
        shown = (
            slates_from_scores(np.zeros(batch.mask.shape), batch.mask)
            if slates is None
            else slates[batch.index, : batch.n_slots]
        )
        if user.is_random:
            draws = draw([(seed, number) for number in batch.index.tolist()], shown.shape[1], repeats)
        else:
            draws = Draws(*np.zeros((2, repeats, *shown.shape)))
        relevance = batch.pad((_grades(batch.lists) >= user.relevant_from).astype(np.float64))
        similar = None if user.q is None else similar_items(batch.lists, user.q)
        yield batch, scan(user, shown, relevance, similar, draws)


def scan(user: ClickModel, slates: IntArray, relevance: Doubles, similar: BoolArray | None, draws: Draws) -> Scan:
    """Return what the user does at every slot of slates (B, K), K ≤ N.

    `relevance` (B, N) is 0, 1 or a probability; `similar` (B, N, N) comes from `similar_items`, and is None for a user
    who does not look at earlier clicks. The draws (…, B, K) may have leading axes: that many scans are made at once.
    """
    n_slots = slates.shape[1]
    items = np.maximum(slates, 0)
    relevance_at = np.take_along_axis(relevance, items, axis=1)  # (B, K)
    attention = np.where(slates == NO_ITEM, 0.0, observation_probability(n_slots, user.eta))  # (B, K)
    observed = draws.observe < attention
    clicks = np.zeros(observed.shape, dtype=bool)
    probability = np.zeros(observed.shape)
    near_clicked = np.zeros(observed.shape, dtype=bool)
    similar_at = None if similar is None else _similar_at_slots(similar, items)
    for slot in range(n_slots):
        chance = user.click_probability(relevance_at[:, slot], near_clicked[..., slot])
        clicks[..., slot] = observed[..., slot] & (draws.decide[..., slot] < chance)
        probability[..., slot] = attention[:, slot] * chance
        if similar_at is not None:
            near_clicked[..., slot + 1 :] |= clicks[..., slot, None] & similar_at[:, slot, slot + 1 :]
    return Scan(clicks, probability)


def observation_probability(n_slots: int, eta: float) -> Doubles:
    """Return (K,) the probability 1/i^eta that the user looks at each slot; i counts from 1."""
    probability: Doubles = np.arange(1, n_slots + 1, dtype=np.float64) ** -eta
    return probability


def similar_items(lists: ItemLists, q: float) -> BoolArray:
    """Return (B, N, N) which pairs of different items of each list are similar."""
    lengths = lists.lengths
    similar = np.zeros((len(lists), *[int(lengths.max(initial=0))] * 2), dtype=bool)
    for length in np.unique(lengths[lengths >= 2]).tolist():
        members = np.flatnonzero(lengths == length)
        rows = lists.offsets[members, None] + np.arange(length)
        close = _close_pairs(lists.features[rows], q)
        square = squareform(np.arange(1, close.shape[1] + 1))  # (n, n) the number of each pair; 0 on the diagonal
        similar[members, :length, :length] = np.pad(close, ((0, 0), (1, 0)))[:, square]
    return similar


def _close_pairs(features: FloatArray, q: float) -> BoolArray:
    """Return (B, pairs) whose distance is at most the q quantile of their list, for lists of one length (B, n, F).

    Inner products give all distances at once, but they cancel: MSLR has features of 2e8 beside features of 1, and
    duplicate items would be told apart by rounding. So they only decide the lists in which no other pair comes so close
    to the quantile that rounding could matter; the others are measured pair by pair.
    """
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
    """Yield every list once, the longest first, in batches with small arrays (B, N, N), (B, N, F) and (R, B, N)."""
    order = np.argsort(-lists.lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lists.lengths[order[start]])
        size = max(1, _CELLS // max(1, longest * max(longest, repeats, lists.n_features)))
        yield lists.batch(order[start : start + size])
        start += size


def draw(keys: Sequence[tuple[int, ...]], n_slots: int, repeats: int) -> Draws:
    """Return draws (R, B, K), those of each list from a generator of its own: a list's luck is not its batch's."""
    # Slot by slot, so that the first slots get the same draws however many there are.
    uniform = np.zeros((len(keys), n_slots, 2, repeats))
    for row, key in zip(uniform, keys, strict=True):
        np.random.default_rng(key).random(out=row)
    observe, decide = uniform.transpose(2, 3, 0, 1)
    return Draws(observe, decide)


def _similar_at_slots(similar: BoolArray, items: IntArray) -> BoolArray:
    """Return (B, K, K) which slots hold similar items."""
    lists = np.arange(len(items))[:, None, None]
    return similar[lists, items[:, :, None], items[:, None, :]]


def _grades(lists: ItemLists) -> FloatArray:
    grades = lists.labels if lists.relevance is None else lists.relevance
    if grades is None:
        raise DataError("a simulated user needs grades: these lists have neither relevance nor labels")
    return grades


def _check_range(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        limits = f"at least {low:g}" if high == np.inf else f"between {low:g} and {high:g}"
        raise UsageError(f"{option} must be {limits}, got {value:g}")
