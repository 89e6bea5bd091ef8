"""Visits: what a click model is, and how it reads a slate from the top.

A visit has a *type*, which nobody sees: what the visitor is after, or which user of a mixture it is. Most users have
one type only. The user goes down the slots. At slot i (counted from 1) it examines the item with a probability that
depends on i and on the type, and clicks an examined item with a probability that may depend on the item, on a *state*
(what the visit has seen and clicked so far) and on the item directly below. After a click it may leave.

Everything is written once against `ClickModel`: the scan of slates here, labels of a log and re-shown clicks in
`clicks.py`, and the ceilings (`baselines/ceiling.py`), which go over all ways in which a visit may go on instead of
drawing one.

Arrays have any number of leading axes (…): scans, lists, slates of a beam. The last axis is that of the candidates: the
items of the list, or those of a slate. It has length 1 where all candidates share a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from seq2slate.data.lists import BoolArray, IntArray, ItemLists
from seq2slate.data.ranker import NO_ITEM

Doubles: TypeAlias = npt.NDArray[np.float64]
Arrays: TypeAlias = tuple[Any, ...]
"""Arrays, or tuples of such."""
DependsOn: TypeAlias = Literal["item", "neighbours", "clicks"]

_VISIT = 1 << 32  # separates the random numbers of a visit's type from those of its slots


class Facts(NamedTuple):
    """What a user knows of lists before it reads a slate of them: of the whole list, however few items are shown."""

    relevance: Doubles
    """(…, N) 0, 1 or a probability."""
    items: Arrays = ()
    """(…, N) each: further facts of an item, such as its group."""
    pairs: Arrays = ()
    """(…, N, N) each: facts of two items, such as whether they are similar. For a single placed item (…, N): its
    relation to every candidate."""
    types: Doubles | None = None
    """(…, T) the probability of each type of visit; None if there is one."""

    def at(self, items: IntArray) -> Facts:
        """Return the facts of slates (P, K) as candidates; the facts are of as many lists, or of one."""
        lists = np.arange(len(self.relevance))[:, None]
        if (
            len(lists) == len(items)
            and items.shape == self.relevance.shape
            and (items == np.arange(len(items.T))).all()
        ):
            return self  # in base order
        return Facts(
            self.relevance[lists, items],
            each(self.items, lambda values: values[lists, items]),
            each(self.pairs, lambda values: values[lists[:, :, None], items[:, :, None], items[:, None, :]]),
            self.types,
        )

    def take(self, index: Any) -> Facts:
        """Return the facts at an index of the lists.

        >>> Facts(np.array([[0.1, 0.2], [0.3, 0.4]])).take(slice(1, 2)).relevance.tolist()
        [[0.3, 0.4]]
        """
        items, pairs = (each(arrays, lambda values: values[index]) for arrays in (self.items, self.pairs))
        return Facts(self.relevance[index], items, pairs, None if self.types is None else self.types[index])

    def placed(self, index: tuple[Any, ...], below: int = 0) -> Facts:
        """Return the facts of the items at an index, each the only candidate; `pairs` relate it to those from `below`.

        >>> Facts(np.array([[0.1, 0.2]])).placed((slice(None), 1)).relevance.tolist()
        [[0.2]]
        """
        return Facts(
            self.relevance[index][..., None],
            each(self.items, lambda values: values[index][..., None]),
            each(self.pairs, lambda values: values[index][..., below:]),
        )

    @property
    def nbytes(self) -> int:
        """The size of all arrays in memory."""
        sizes: list[int] = []
        each((self.relevance, *self.items, *self.pairs), lambda values: sizes.append(values.nbytes))
        return sum(sizes)


def each(arrays: Arrays, change: Callable[[npt.NDArray[Any]], Any]) -> Arrays:
    """Return nested tuples of arrays with every array changed.

    >>> each((1, (2, 3)), lambda number: -number)
    (-1, (-2, -3))
    """
    return tuple(each(one, change) if isinstance(one, tuple) else change(one) for one in arrays)


class ClickModel(Protocol):
    """A simulated user, by shape. Inherit from it for its defaults: a user who clicks by the item alone."""

    @property
    def eta(self) -> float:
        """The severity of position bias: position i is examined with probability 1/i^eta."""

    @property
    def relevant_from(self) -> float:
        """The lowest relevant grade: 2 for grades from 0 to 4, 1 for binary labels."""

    @property
    def depends_on(self) -> DependsOn:
        """What decides about a click beside position and chance.

        "item": its own relevance, and more relevance is never worse. "neighbours": which items are shown, not what
        happens to them. "clicks": earlier clicks, or the type of the visit.
        """
        return "item"

    @property
    def is_stochastic(self) -> bool:
        """Whether two scans of one slate can differ. With eta = 0 every position is examined for certain."""
        return self.eta > 0

    @property
    def n_types(self) -> int:
        """T, the number of types that a visit can be of."""
        return 1

    def facts(self, lists: ItemLists, relevance: Doubles) -> Facts:
        """Return the facts of lists, given the relevance (B, N) of their items."""
        return Facts(relevance)

    def examination(self, n_slots: int) -> Doubles:
        """Return (T, K) the probability that a visit of each type examines each slot."""
        return np.broadcast_to(examination_probability(n_slots, self.eta), (self.n_types, n_slots))

    def start(self, kind: IntArray) -> Arrays:
        """Return the state of visits before the first slot, given the type (…, 1) of each."""
        return ()

    def click_probability(self, candidates: Facts, state: Arrays) -> Doubles:
        """Return (…, C), for every candidate, the probability of a click if it is examined next.

        It is linear in the candidate's relevance, so that a probability of relevance gives the mean.
        """

    def mean_click_probability(self, candidates: Facts, state: Arrays, weights: Doubles) -> Doubles:
        """Return (…, C) the sum of the click probabilities over states (S, …, 1), with weights (S, …, 1) of them.

        A user that computes it faster for many states may override it.
        """
        probability = self.click_probability(candidates, state)
        shape = np.broadcast_shapes(weights.shape, probability.shape)
        total: Doubles = np.einsum("s...,s...->...", weights, np.broadcast_to(probability, shape))
        return total

    def factor_below(self, below: Facts, state: Arrays) -> Doubles | None:
        """Return (…, C) the factor that each item, directly below, puts on the click probability of the next slot."""
        return None

    def leaving(self, item: Facts, state: Arrays) -> Doubles | None:
        """Return (…, 1) the probability that the user leaves after a click on this item; None: never."""
        return None

    def after(self, item: Facts, state: Arrays, clicked: BoolArray) -> Arrays:
        """Return the state after a slot with this item, clicked or not (…, 1)."""
        return state


class Draws(NamedTuple):
    """The random numbers of a scan: uniform on [0, 1)."""

    examine: Doubles
    """(…, B, K) The user examines a slot if this is below its examination probability."""
    click: Doubles
    """(…, B, K) The user clicks on an examined item if this is below its click probability, and leaves if this is also
    below the probability to click and leave."""
    visit: Doubles | None = None
    """(…, B) Chooses the type of the visit; None for a user with one type."""


class Scan(NamedTuple):
    """What happened at each slot (…, B, K)."""

    clicks: BoolArray
    probability: Doubles
    """Of a click, given the visit so far. Its mean over scans estimates the click rate with less variance."""


def scan(model: ClickModel, slates: IntArray, facts: Facts, draws: Draws) -> Scan:
    """Return what the user does at every slot of slates (B, K), K ≤ N.

    Args:
        model: Who is shown the slates.
        slates: (B, K), `NO_ITEM` in an empty slot, which is never clicked.
        facts: Of the lists (B, N), from `model.facts`.
        draws: (…, B, K). Leading axes make that many scans at once.

    >>> from seq2slate.simulation.click_models import CascadeModel
    >>> nothing = np.zeros((1, 2))
    >>> scan(CascadeModel(), np.array([[1, 0]]), Facts(np.ones((1, 2))), Draws(nothing, nothing)).probability.tolist()
    [[1.0, 0.5]]

    """
    n_slots = slates.shape[1]
    is_item = slates != NO_ITEM
    shown = facts.at(np.where(is_item, slates, np.arange(n_slots)))
    kind = _types(facts, draws)
    by_type = model.examination(n_slots)
    examination = np.where(is_item, by_type[0] if len(by_type) == 1 else by_type[kind[..., 0]], 0.0)  # (…, B, K)
    examined = draws.examine < examination
    state = model.start(kind)
    if model.depends_on == "item":  # then the order of the slots does not matter
        chance = model.click_probability(shown, state)
        return Scan(examined & (draws.click < chance), np.broadcast_to(examination * chance, draws.click.shape))
    clicks = np.zeros(draws.click.shape, dtype=bool)
    probability = np.zeros(draws.click.shape)
    for slot in range(n_slots):
        item = shown.placed((slice(None), slot), below=slot + 1)
        here, state = each(state, lambda values: values[..., :1]), each(state, without_first)
        chance = model.click_probability(item, here)
        factor = below_factor(model, shown, is_item, slot, here)
        if factor is not None:
            chance = chance * factor
        drawn = draws.click[..., slot, None]
        clicked = examined[..., slot, None] & (drawn < chance)
        clicks[..., slot] = clicked[..., 0]
        probability[..., slot] = (examination[..., slot, None] * chance)[..., 0]
        leaving = model.leaving(item, here)
        if leaving is not None:
            left = clicked & (drawn < chance * leaving)
            examined &= ~left
            examination = np.where(left, 0.0, examination)
        if slot + 1 < n_slots:
            state = model.after(item, state, clicked)
    return Scan(clicks, probability)


def below_factor(model: ClickModel, shown: Facts, is_item: BoolArray, slot: int, state: Arrays) -> Doubles | None:
    """Return (…, B, 1) the factor on the click probability of a slot of slates (B, K) that is due to the next item."""
    if slot + 1 == is_item.shape[1]:
        return None
    factor = model.factor_below(shown.placed((slice(None), slot + 1)), state)
    return None if factor is None else np.where(is_item[:, slot + 1, None], factor, 1.0)


def _types(facts: Facts, draws: Draws) -> IntArray:
    """Return (…, B, 1) the type of each visit."""
    if facts.types is None or facts.types.shape[-1] == 1:
        return np.zeros((*draws.click.shape[:-1], 1), dtype=np.int64)
    if draws.visit is None:
        raise ValueError("a user with several types of visits needs draws of them")
    bounds = np.cumsum(facts.types, axis=-1)[..., :-1]
    kind: IntArray = (bounds <= draws.visit[..., None]).sum(axis=-1, keepdims=True)
    return kind


def without_first(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values (…, C) without those of the first candidate; one value for all candidates stays."""
    return values[..., 1:] if values.shape[-1] > 1 else values


def examination_probability(n_slots: int, eta: float) -> Doubles:
    """Return (K,) the probability i^-eta that the user examines slot i = 1 … K.

    >>> examination_probability(3, eta=1).tolist() == [1, 1 / 2, 1 / 3]
    True
    """
    probability: Doubles = np.arange(1, n_slots + 1, dtype=np.float64) ** -eta
    return probability


def draw(keys: Sequence[tuple[int, ...]], n_slots: int, repeats: int, n_types: int = 1) -> Draws:
    """Return draws (R, B, K): row b comes from a generator of its own, seeded with `keys[b]`, whatever the batch.

    The R visits to a list are stratified: their types have shares as close to the probabilities as R allows.

    >>> bool(draw([(0, 7)], 2, 1).click[0, 0, 1] == draw([(0, 3), (0, 7)], 5, 1).click[0, 1, 1])
    True
    """
    # Slot by slot, so that the first slots get the same draws however many there are.
    uniform = np.zeros((len(keys), n_slots, 2, repeats))
    for row, key in zip(uniform, keys, strict=True):
        np.random.default_rng(key).random(out=row)
    examine, click = uniform.transpose(2, 3, 0, 1)
    if n_types == 1:
        return Draws(examine, click)
    visit = np.zeros((len(keys), repeats))
    for row, key in zip(visit, keys, strict=True):
        np.random.default_rng((*key, _VISIT)).random(out=row)
    return Draws(examine, click, ((visit + np.arange(repeats)) / repeats).T)
