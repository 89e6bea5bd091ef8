"""The click models once more, slow and obvious: one list, one pair, one slot at a time, in plain Python."""

import math
from collections.abc import Callable, Sequence

Row = Sequence[float]
SimilarPairs = Callable[[Sequence[Row], float], set[tuple[int, int]]]


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def similar_pairs(rows: Sequence[Row], q: float) -> set[tuple[int, int]]:
    pairs = [(i, j) for i in range(len(rows)) for j in range(i + 1, len(rows))]
    distances = {(i, j): math.dist(rows[i], rows[j]) for i, j in pairs}
    if not distances:
        return set()
    threshold = quantile(list(distances.values()), q)
    return {pair for pair, distance in distances.items() if distance <= threshold}


def clicks(
    model: str,
    rows: Sequence[Row],
    relevant: Sequence[bool],
    slate: Sequence[int],
    *,
    eta: float,
    q: float = 0.5,
    noise: float = 0.1,
    examine: Sequence[float],
    click: Sequence[float],
    find_similar: SimilarPairs = similar_pairs,
) -> list[bool]:
    """Return whether each slot is clicked; `examine` and `click` are the uniform draws of the slots."""
    similar = find_similar(rows, q) if model in ("diverse", "similar") else set()
    clicked: list[int] = []
    at_slot = []
    for slot, item in enumerate(slate):
        is_clicked = False
        if item >= 0 and examine[slot] < 1 / (slot + 1) ** eta:
            near = any((item, other) in similar or (other, item) in similar for other in clicked)
            if model == "cascade":
                is_clicked = relevant[item]
            elif model == "diverse":
                is_clicked = relevant[item] and not near
            elif model == "similar":
                is_clicked = relevant[item] or near
            elif model == "position":
                is_clicked = relevant[item] or click[slot] < noise
        if is_clicked:
            clicked.append(item)
        at_slot.append(is_clicked)
    return at_slot
