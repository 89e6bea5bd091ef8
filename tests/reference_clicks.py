"""The click models once more, slow and obvious: one list, one pair, one slot at a time, in plain Python."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, product
from typing import Any

import numpy as np

from seq2slate.simulation.click_models import CLICK_MODELS, ClickModel
from seq2slate.simulation.mixture import Mixture

Row = Sequence[float]
SimilarPairs = Callable[[Sequence[Row], float], set[tuple[int, int]]]


# Similar pairs, and groups


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def normalised(rows: Sequence[Row]) -> list[list[float]]:
    columns = []
    for column in zip(*rows, strict=True):
        logs = [math.copysign(math.log1p(abs(value)), value) for value in column]
        mean = math.fsum(logs) / len(logs)
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / len(logs))
        is_constant = min(logs) == max(logs)
        columns.append([0.0 if is_constant else (value - mean) / deviation for value in logs])
    return [list(row) for row in zip(*columns, strict=True)]


def cosine_distance(one: Row, other: Row) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    if lengths == 0:
        return 0.5 if any(one) or any(other) else 0.0
    return 1 - math.fsum(a * b for a, b in zip(one, other, strict=True)) / lengths


def similar_pairs(rows: Sequence[Row], q: float, distance: str = "euclidean") -> set[tuple[int, int]]:
    measure = cosine_distance if distance == "cosine" else math.dist
    points = rows if distance == "euclidean" else normalised(rows)
    pairs = [(i, j) for i in range(len(points)) for j in range(i + 1, len(points))]
    distances = {(i, j): measure(points[i], points[j]) for i, j in pairs}
    if not distances:
        return set()
    threshold = quantile(list(distances.values()), q)
    if distance != "euclidean":
        threshold += 1e-9  # rounding: equal distances must not differ
    return {pair for pair, apart in distances.items() if apart <= threshold}


def groups_of(rows: Sequence[Row], n_groups: int) -> list[int]:
    return _k_means(tuple(map(tuple, rows)), n_groups)


@lru_cache(maxsize=8)
def _k_means(rows: tuple[tuple[float, ...], ...], n_groups: int) -> list[int]:
    points = normalised(rows)
    direction = np.random.default_rng(0).normal(size=len(rows[0]) if rows else 0).tolist()
    along = [round(dot(point, direction), 9) for point in points]
    order = sorted(range(len(points)), key=along.__getitem__)
    groups = [order.index(item) * n_groups // len(points) for item in range(len(points))]
    for _ in range(10):
        centres = {}
        for group in sorted(set(groups)):
            members = [point for point, own in zip(points, groups, strict=True) if own == group]
            centres[group] = [math.fsum(column) / len(members) for column in zip(*members, strict=True)]
        groups = [min(centres, key=lambda group: (round(apart(point, centres[group]), 9), group)) for point in points]
    return groups


def dot(one: Row, other: Row) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def apart(point: Row, centre: Row) -> float:
    return dot(centre, centre) - 2 * dot(point, centre)


# One visit


@dataclass
class Visit:
    """A user, by name and options, in front of a slate, with relevances that are known."""

    model: str
    rows: Sequence[Row]
    relevant: Sequence[bool]
    slate: Sequence[int]
    intent: int = 0
    eta: float = 0.0
    q: float = 0.5
    distance: str = "euclidean"
    noise: float = 0.1
    intents: int = 4
    most_clicks: int = 2
    strength: float = 0.6
    factor: float = 0.5
    satisfaction: float = 0.6
    disappointment: float = 0.1
    find_similar: SimilarPairs | None = None

    @cached_property
    def similar(self) -> set[tuple[int, int]]:
        if self.find_similar is not None:
            return self.find_similar(self.rows, self.q)
        return similar_pairs(self.rows, self.q, self.distance)

    @cached_property
    def groups(self) -> list[int]:
        return groups_of(self.rows, self.intents)

    def examination(self, slot: int) -> float:
        return 1 / (slot + 1) ** self.eta if self.slate[slot] >= 0 else 0.0

    def is_relevant_at(self, slot: int) -> bool:
        return 0 <= slot < len(self.slate) and self.slate[slot] >= 0 and self.relevant[self.slate[slot]]

    def click_probability(self, slot: int, clicked: Sequence[int]) -> float:
        """Of an examined item, after the clicks above."""
        item = self.slate[slot]
        is_relevant = self.relevant[item]
        if self.model in ("diverse", "similar"):
            is_near = any((item, other) in self.similar or (other, item) in self.similar for other in clicked)
            clicks_it = is_relevant and not is_near if self.model == "diverse" else is_relevant or is_near
            return float(clicks_it)
        if self.model in ("position", "stopping"):
            return 1.0 if is_relevant else self.noise
        if self.model == "intent":
            return float(is_relevant and self.groups[item] == self.intent)
        if self.model == "contrast":
            strong_neighbours = self.is_relevant_at(slot - 1) + self.is_relevant_at(slot + 1)
            return is_relevant * (1 - self.strength) ** strong_neighbours
        if self.model == "fatigue":
            return is_relevant * self.factor ** len(clicked)
        assert self.model == "cascade"
        return float(is_relevant)

    def leaving(self, slot: int, clicked: Sequence[int]) -> float:
        """The probability that the visit ends after a click on this slot, too."""
        if self.model == "stopping":
            return self.satisfaction if self.relevant[self.slate[slot]] else self.disappointment
        return float(self.model == "intent" and len(clicked) + 1 >= self.most_clicks)

    def clicks(self, examine: Sequence[float], click: Sequence[float]) -> list[bool]:
        """Return whether each slot is clicked; `examine` and `click` are the uniform draws of the slots."""
        clicked: list[int] = []
        at_slot = [False] * len(self.slate)
        for slot, item in enumerate(self.slate):
            if examine[slot] >= self.examination(slot):
                continue
            probability = self.click_probability(slot, clicked)
            if click[slot] >= probability:
                continue
            at_slot[slot] = True
            if click[slot] < probability * self.leaving(slot, clicked):
                break
            clicked.append(item)
        return at_slot

    def rates(self) -> list[float]:
        """Return the click rate of each slot: a sum over all ways in which the visit can go."""
        found = [0.0] * len(self.slate)

        def go_on(slot: int, clicked: list[int], weight: float) -> None:
            if slot == len(self.slate) or weight == 0:
                return
            chance = self.examination(slot) * self.click_probability(slot, clicked) if self.slate[slot] >= 0 else 0.0
            found[slot] += weight * chance
            go_on(slot + 1, clicked, weight * (1 - chance))
            stays = 1 - self.leaving(slot, clicked) if chance else 0.0
            go_on(slot + 1, [*clicked, self.slate[slot]], weight * chance * stays)

        go_on(0, [], 1.0)
        return found


def clicks(
    model: str,
    rows: Sequence[Row],
    relevant: Sequence[bool],
    slate: Sequence[int],
    *,
    eta: float,
    examine: Sequence[float],
    click: Sequence[float],
    find_similar: SimilarPairs = similar_pairs,
) -> list[bool]:
    """Return the clicks of a user with its default options."""
    return Visit(model, rows, relevant, slate, eta=eta, find_similar=find_similar).clicks(examine, click)


# Types of visits


@dataclass
class User:
    """A user by name and options, and its weight in a mixture."""

    model: str
    options: dict[str, Any]
    weight: float = 1.0


def reference_users(user: ClickModel) -> list[User]:
    """Return what the slow loop knows a user by; several for a mixture."""
    if isinstance(user, Mixture):
        weights = user.weights or [1.0] * len(user.users)
        return [replace(reference_users(one)[0], weight=w) for one, w in zip(user.users, weights, strict=True)]
    name = next(name for name, kind in CLICK_MODELS.items() if kind is type(user))
    return [User(name, {option: value for option, value in vars(user).items() if option != "relevant_from"})]


def types_of_visits(users: Sequence[User], rows: Sequence[Row]) -> list[tuple[User, int, float]]:
    """Return every user of a mixture with every intent, and its probability."""
    found = []
    total = math.fsum(user.weight for user in users)
    for user in users:
        intents, groups = 1, [0] * len(rows)
        if user.model == "intent":
            intents = int(user.options["intents"])
            groups = groups_of(rows, intents)
        for intent in range(intents):
            share = groups.count(intent) / len(rows) if rows else 0.0
            found.append((user, intent, user.weight / total * share))
    return found


def drawn_type(users: Sequence[User], rows: Sequence[Row], visit: float) -> tuple[User, int]:
    """Return the type of the visit that the uniform draw `visit` chooses."""
    types = types_of_visits(users, rows)
    below = list(accumulate(probability for _, _, probability in types))
    number = next((number for number, bound in enumerate(below) if visit < bound), len(types) - 1)
    return types[number][:2]


def expected_rates(
    users: Sequence[User], rows: Sequence[Row], probability: Sequence[float], slate: Sequence[int]
) -> list[float]:
    """Return the click rate of each slot: a sum over types of visits, all relevances and all that can happen."""
    rates = [0.0] * len(slate)
    for user, intent, share in types_of_visits(users, rows):
        visit = Visit(user.model, rows, [], slate, intent, **user.options)
        for visit.relevant in product([False, True], repeat=len(rows)):
            chances = (p if is_relevant else 1 - p for p, is_relevant in zip(probability, visit.relevant, strict=True))
            weight = share * math.prod(chances)
            rates = [so_far + weight * rate for so_far, rate in zip(rates, visit.rates(), strict=True)]
    return rates
