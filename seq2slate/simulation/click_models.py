"""Click models: simulated users who examine a slate from the top and click.

Section 4.1 of the paper. The user examines position i (counted from 1) with probability 1/i^eta: eta is the severity of
position bias. A click needs examination:

    P(click on i | the visit so far) = i^-eta · f

r is the relevance of the item: 1 for a grade of 2 or more, else 0. s is 1 if the item is similar to one clicked above,
else 0 (`similarity.py`). The models differ in f:

    cascade    r                         every relevant item
    diverse    r (1 − s)                 relevant items unlike those clicked above: *diverse-clicks*
    similar    r + (1 − r) s             relevant items, and those like one clicked above: *similar-clicks*
    position   r + (1 − r) noise         relevant items, and others by mistake
    intent     r [group = intent]        relevant items of one group; leaves after some clicks
    contrast   r (1 − c r₋₁) (1 − c r₊₁) relevant items, less often beside another relevant one
    fatigue    r factor^(clicks above)   relevant items, less often after every click
    stopping   r + (1 − r) noise         as `position`, but may leave after a click

`Mixture` (`mixture.py`) is one of several users in every visit. Where this goes beyond the paper:

- A click model can be *shown a new slate* (`shown_clicks`), not only label the log (`simulate_clicks`). Similarity and
  groups are properties of the list: they are computed once for all slates and repeats.
- The paper has `cascade`, and `diverse` and `similar` with the Euclidean distance. `position` is the position-based
  model of Joachims et al. (2017), "Unbiased learning-to-rank with biased feedback", which the paper adapts without its
  clicks on irrelevant items. `stopping` is a relative of the dynamic Bayesian network model of Chapelle and Zhang
  (2009).
- The paper gives no eta for the plain cascade; 1 is the default of Joachims et al.
- f is linear in every relevance, and where it depends on clicks above it depends on no other item's relevance. So r may
  be a *probability* of relevance: for independent relevances expected clicks are exactly the mean over them. The
  ceilings for generated lists build on that.

An empty list has no clicks, and a list of one item has no similar pair. To add a click model, write a dataclass that
inherits from `ClickModel` and name it in `CLICK_MODELS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seq2slate.data.lists import BoolArray, IntArray, ItemLists
from seq2slate.errors import UsageError
from seq2slate.options import check_choices, convert_options, options_of
from seq2slate.simulation.clicks import check_grades as check_grades
from seq2slate.simulation.clicks import relevance_of_items as relevance_of_items
from seq2slate.simulation.clicks import shown_clicks as shown_clicks
from seq2slate.simulation.clicks import simulate_clicks as simulate_clicks
from seq2slate.simulation.mixture import Mixture
from seq2slate.simulation.similarity import Distance, item_groups, similar_items
from seq2slate.simulation.visits import Arrays, DependsOn, Doubles, Facts
from seq2slate.simulation.visits import ClickModel as ClickModel

_RANGES = {
    "eta": (0, np.inf),
    "q": (0, 1),
    "noise": (0, 1),
    "intents": (1, np.inf),
    "most_clicks": (1, np.inf),
    "strength": (0, 1),
    "factor": (0, 1),
    "satisfaction": (0, 1),
    "disappointment": (0, 1),
}


@dataclass(frozen=True)
class _User(ClickModel):
    """The options that all users have; they must be in their ranges."""

    eta: float = 1.0
    """Severity of position bias: position i is examined with probability 1 / i^eta."""
    relevant_from: float = 2.0
    """The lowest grade that is relevant; 2 unless given."""

    def __post_init__(self) -> None:
        check_choices(self)
        for option, (low, high) in _RANGES.items():
            value = getattr(self, option, None)
            if value is not None and not low <= value <= high:
                limits = f"at least {low}" if high == np.inf else f"between {low} and {high}"
                raise UsageError(f"{option} must be {limits}, got {value:g}")


@dataclass(frozen=True)
class CascadeModel(_User):
    """f = r: clicks every relevant item that is examined, and does not stop after a click.

    >>> lists = ItemLists(features=np.zeros((3, 1)), offsets=[0, 3], labels=[2, 0, 4])
    >>> simulate_clicks(CascadeModel(eta=0), lists, seed=0).labels.tolist()
    [1.0, 0.0, 1.0]
    """

    def click_probability(self, candidates: Facts, state: Arrays) -> Doubles:
        """Return r."""
        return candidates.relevance


@dataclass(frozen=True)
class _ComparesItems(_User):
    """A user who compares items with those clicked above. The state is s."""

    q: float = 0.5
    """Share of the pairs of a list that are similar."""
    distance: Distance = "euclidean"
    """Distance of two items: Euclidean of the raw columns, Euclidean or cosine of columns normalised in the list."""

    @property
    def depends_on(self) -> DependsOn:
        """What was clicked above."""
        return "clicks"

    def facts(self, lists: ItemLists, relevance: Doubles) -> Facts:
        """Return which items are similar."""
        return Facts(relevance, pairs=(similar_items(lists, self.q, self.distance),))

    def start(self, kind: IntArray) -> Arrays:
        """Nothing is similar to a clicked item."""
        return (np.zeros(kind.shape, dtype=bool),)

    def mean_click_probability(self, candidates: Facts, state: Arrays, weights: Doubles) -> Doubles:
        """Return the mean over s; the weights sum to 1, as visits have one type and do not end."""
        near = (weights * state[0]).sum(axis=0)
        far = np.zeros(near.shape, dtype=bool)
        if_far, if_near = (self.click_probability(candidates, (where,)) for where in (far, ~far))
        mean: Doubles = if_far + near * (if_near - if_far)
        return mean

    def after(self, item: Facts, state: Arrays, clicked: BoolArray) -> Arrays:
        """Add the items that are similar to the clicked one."""
        return (state[0] | (clicked & item.pairs[0]),)


@dataclass(frozen=True)
class DiverseClicks(_ComparesItems):
    """f = r (1 − s): clicks a relevant item unless it is similar to one clicked above. The paper's *diverse-clicks*.

    >>> lists = ItemLists(features=[[0], [1], [9], [10]], offsets=[0, 4], labels=[2, 4, 3, 3])
    >>> simulate_clicks(DiverseClicks(distance="normalised"), lists, seed=0).labels.tolist()
    [1.0, 0.0, 1.0, 0.0]
    """

    eta: float = 0.0

    def click_probability(self, candidates: Facts, state: Arrays) -> Doubles:
        """Return r (1 − s)."""
        probability: Doubles = candidates.relevance * ~state[0]
        return probability


@dataclass(frozen=True)
class SimilarClicks(_ComparesItems):
    """f = r + (1 − r) s: clicks a relevant item, or one similar to an item clicked above. The paper's *similar-clicks*.

    The default eta is the paper's for Web30k; for Yahoo it is 0.1.

    >>> lists = ItemLists(features=[[0], [1], [9], [10]], offsets=[0, 4], labels=[2, 0, 0, 0])
    >>> simulate_clicks(SimilarClicks(eta=0, q=0.1), lists, seed=0).labels.tolist()
    [1.0, 1.0, 0.0, 0.0]
    """

    eta: float = 0.3

    def click_probability(self, candidates: Facts, state: Arrays) -> Doubles:
        """Return r + (1 − r) s."""
        return np.maximum(candidates.relevance, state[0])


@dataclass(frozen=True)
class PositionBasedModel(_User):
    """f = r + (1 − r) noise: clicks a relevant item, and an irrelevant one with probability `noise`.

    >>> lists = ItemLists(features=np.zeros((2, 1)), offsets=[0, 2], labels=[0, 2])
    >>> shown_clicks(PositionBasedModel(), lists, np.array([[0, 1]]), repeats=1, seed=0).tolist()
    [[0.1, 0.5]]
    """

    noise: float = 0.1
    """Probability of a click on an examined item that is irrelevant."""

    @property
    def is_stochastic(self) -> bool:
        """Both position bias and noise make it so."""
        return self.eta > 0 or 0 < self.noise < 1

    def click_probability(self, candidates: Facts, state: Arrays) -> Doubles:
        """Return r + (1 − r) noise."""
        return candidates.relevance + (1 - candidates.relevance) * self.noise


@dataclass(frozen=True)
class IntentModel(_User):
    """f = r [group = intent]: a visit is after one group of similar items, and clicks relevant items of it only.

    The items of a list form groups (`item_groups`). The intent of a visit is the group of an item drawn at random: a
    group of half of the items is the intent of half of the visits. After `most_clicks` clicks the user leaves.

    >>> lists = ItemLists(features=[[0], [1], [9], [10]], offsets=[0, 4], labels=[2, 4, 3, 3])
    >>> simulate_clicks(IntentModel(intents=2), lists, seed=0).labels.tolist()
    [1.0, 1.0, 0.0, 0.0]
    >>> shown_clicks(IntentModel(intents=2, most_clicks=1), lists, np.array([[0, 1, 2]]), repeats=10, seed=0).tolist()
    [[0.5, 0.0, 0.5]]
    """

    eta: float = 0.0
    intents: int = 4
    """Number of groups of the items of a list, one of which a visit is after."""
    most_clicks: int = 2
    """Number of clicks after which the user leaves."""

    @property
    def depends_on(self) -> DependsOn:
        """The intent, which nobody sees, and the number of clicks."""
        return "clicks"

    @property
    def is_stochastic(self) -> bool:
        """Intents differ between visits."""
        return self.eta > 0 or self.intents > 1

    @property
    def n_types(self) -> int:
        """One for each intent."""
        return self.intents

    def facts(self, lists: ItemLists, relevance: Doubles) -> Facts:
        """Return the group of each item, and the share of each group."""
        groups = item_groups(lists, self.intents)
        sizes = (groups[:, None] == np.arange(self.intents)[:, None]).sum(axis=2)
        return Facts(relevance, items=(groups,), types=sizes / np.maximum(lists.lengths, 1)[:, None])

    def start(self, kind: IntArray) -> Arrays:
        """Return the intent and the number of clicks."""
        return kind, np.zeros(kind.shape, dtype=np.int64)

    def click_probability(self, candidates: Facts, state: Arrays) -> Doubles:
        """Return r [group = intent]."""
        probability: Doubles = candidates.relevance * (candidates.items[0] == state[0])
        return probability

    def leaving(self, item: Facts, state: Arrays) -> Doubles:
        """Return 1 for the last click."""
        is_last: BoolArray = state[1] + 1 >= self.most_clicks
        return is_last.astype(np.float64)

    def after(self, item: Facts, state: Arrays, clicked: BoolArray) -> Arrays:
        """Count clicks."""
        return state[0], state[1] + clicked


@dataclass(frozen=True)
class ContrastModel(_User):
    """f = r (1 − c r₋₁) (1 − c r₊₁): a relevant item directly above or below takes clicks away; c is the `strength`.

    >>> lists = ItemLists(features=np.zeros((3, 1)), offsets=[0, 3], labels=[2, 2, 0])
    >>> user = ContrastModel(eta=0, strength=0.4)
    >>> shown_clicks(user, lists, np.array([[0, 1, 2]]), repeats=1, seed=0).tolist()
    [[0.6, 0.6, 0.0]]
    >>> shown_clicks(user, lists, np.array([[0, 2, 1]]), repeats=1, seed=0).tolist()
    [[1.0, 0.0, 1.0]]
    """

    eta: float = 0.3
    strength: float = 0.6
    """Share of its clicks that a relevant item loses to a relevant one directly above, and to one directly below."""

    @property
    def depends_on(self) -> DependsOn:
        """The items directly above and below."""
        return "neighbours"

    @property
    def is_stochastic(self) -> bool:
        """Both position bias and contrast make it so."""
        return self.eta > 0 or 0 < self.strength < 1

    def start(self, kind: IntArray) -> Arrays:
        """Nothing stands above the first slot: return the relevance 0."""
        return (np.zeros(kind.shape),)

    def click_probability(self, candidates: Facts, state: Arrays) -> Doubles:
        """Return r (1 − c r₋₁)."""
        probability: Doubles = candidates.relevance * (1 - self.strength * state[0])
        return probability

    def factor_below(self, below: Facts, state: Arrays) -> Doubles:
        """Return 1 − c r₊₁."""
        return 1 - self.strength * below.relevance

    def after(self, item: Facts, state: Arrays, clicked: BoolArray) -> Arrays:
        """Return the relevance of the item, clicked or not."""
        return (np.broadcast_to(item.relevance, clicked.shape),)


@dataclass(frozen=True)
class FatigueModel(_User):
    """f = r · factor^(clicks above): every click makes the next less likely. The state is the power.

    >>> lists = ItemLists(features=np.zeros((3, 1)), offsets=[0, 3], labels=[2, 0, 2])
    >>> shown_clicks(FatigueModel(eta=0, factor=0.3), lists, np.array([[0, 1, 2]]), repeats=1, seed=0).tolist()
    [[1.0, 0.0, 0.3]]
    """

    eta: float = 0.3
    factor: float = 0.5
    """What every click above multiplies the click probability by."""

    @property
    def depends_on(self) -> DependsOn:
        """The number of clicks."""
        return "clicks"

    @property
    def is_stochastic(self) -> bool:
        """Both position bias and fatigue make it so."""
        return self.eta > 0 or 0 < self.factor < 1

    def start(self, kind: IntArray) -> Arrays:
        """Nobody is tired."""
        return (np.ones(kind.shape),)

    def click_probability(self, candidates: Facts, state: Arrays) -> Doubles:
        """Return r · factor^(clicks above)."""
        probability: Doubles = candidates.relevance * state[0]
        return probability

    def after(self, item: Facts, state: Arrays, clicked: BoolArray) -> Arrays:
        """Tire with a click."""
        return (np.where(clicked, state[0] * self.factor, state[0]),)


@dataclass(frozen=True)
class StoppingModel(PositionBasedModel):
    """f = r + (1 − r) noise until the user leaves, which a click may lead to, more likely if the item is relevant.

    A satisfied user clicks no more, so for small eta the slate with the most clicks has its best items last.

    >>> lists = ItemLists(features=np.zeros((3, 1)), offsets=[0, 3], labels=[2, 2, 2])
    >>> simulate_clicks(StoppingModel(satisfaction=1), lists, seed=0).labels.tolist()
    [1.0, 0.0, 0.0]
    """

    eta: float = 0.3
    satisfaction: float = 0.6
    """Probability that the user leaves after a click on a relevant item."""
    disappointment: float = 0.1
    """Probability that the user leaves after a click on an irrelevant item."""

    @property
    def depends_on(self) -> DependsOn:
        """Whether the user is still there."""
        return "clicks"

    @property
    def is_stochastic(self) -> bool:
        """Position bias, noise and leaving make it so."""
        at_random = 0 < self.satisfaction < 1 or (self.noise > 0 and 0 < self.disappointment < 1)
        return super().is_stochastic or at_random

    def leaving(self, item: Facts, state: Arrays) -> Doubles:
        """Return the mean over whether the item is relevant, given that it is clicked."""
        clicked = self.click_probability(item, state)
        left = item.relevance * self.satisfaction + (1 - item.relevance) * self.noise * self.disappointment
        return np.divide(left, clicked, out=np.zeros(left.shape), where=clicked > 0)


CLICK_MODELS: dict[str, type[Any]] = {
    "cascade": CascadeModel,
    "diverse": DiverseClicks,
    "similar": SimilarClicks,
    "position": PositionBasedModel,
    "intent": IntentModel,
    "contrast": ContrastModel,
    "fatigue": FatigueModel,
    "stopping": StoppingModel,
}
"""Every click model, by the name that it has on the command line."""


def click_model(text: str, **options: Any) -> ClickModel:
    """Return the click model of a name, of a name with options, or a mixture of such.

    Args:
        text: A name in `CLICK_MODELS`, with options of its own after a colon (`diverse:q=0.1,distance=cosine`), or
            several of these joined by `+`, each after its weight if they differ (`2 diverse + intent`): a mixture.
        options: Fields of the model, such as eta, q and relevant_from, or of every user of a mixture. None keeps the
            model's default.

    >>> click_model("similar", eta=0.1)
    SimilarClicks(eta=0.1, relevant_from=2.0, q=0.5, distance='euclidean')
    >>> click_model("2 cascade:eta=0 + position").weights
    (2.0, 1.0)

    """
    parts = [re.fullmatch(r"\s*(?:(\d+|\d*\.\d+)\s+)?([^\s:]+)\s*(?::(.*))?", part) for part in text.split("+")]
    users, weights = [], []
    given = {option: value for option, value in options.items() if value is not None}
    for part in parts:
        if part is None:
            raise UsageError(f"cannot read the click model {text!r}: it is NAME, NAME:OPTION=VALUE,… or a sum of these")
        users.append(_user(part[2], _options_in(part[3] or "") | given))
        weights.append(float(part[1] or 1))
    return users[0] if len(users) == 1 else Mixture(tuple(users), tuple(weights))


def _user(name: str, options: Mapping[str, Any]) -> ClickModel:
    if name not in CLICK_MODELS:
        raise UsageError(f"there is no click model {name!r}; choose one of {', '.join(CLICK_MODELS)}")
    kind = CLICK_MODELS[name]
    known = [option.name for option in options_of(kind)]
    for option in options:
        if option not in known:
            raise UsageError(f"the click model {name!r} has no option {option!r}; it has {', '.join(known)}")
    user: ClickModel = kind(**convert_options(options, kind))
    return user


def _options_in(text: str) -> dict[str, Any]:
    """Return the options in a text such as `q=0.1,distance=cosine`."""
    options: dict[str, Any] = {}
    for part in filter(str.strip, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UsageError(f"cannot read the option {part.strip()!r} of a click model: write OPTION=VALUE")
        try:
            options[name] = float(value)
        except ValueError:
            options[name] = value
    return options
