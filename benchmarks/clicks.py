"""The speed of simulated clicks: diverse-clicks on lists of 25 items with 136 features, against plain loops.

The obvious loop goes through lists, pairs and slots in plain Python, with `math.dist` for the distance of a pair; it is
the reference of the tests. The other loop computes the distances of a list with NumPy and is otherwise the same.
Run with `python -m benchmarks diverse-clicks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from benchmarks.tables import Rows
from benchmarks.timing import best_seconds
from seq2slate.data.lists import ItemLists
from seq2slate.simulation.click_models import DiverseClicks, simulate_clicks
from tests import reference_clicks
from tests.reference_clicks import Row, SimilarPairs

N_ITEMS, N_FEATURES = 25, 136
REPEATS = 5
BAR = 10.0
"""How many times faster than the obvious loop the simulation should be."""


def run(n_lists: int = 500) -> Rows:
    """Return the lists per second of each implementation, and how many times faster seq2slate is."""
    lists = make_lists(n_lists)
    implementations: dict[str, Callable[[], list[float]]] = {
        "seq2slate": lambda: label_by_package(lists),
        "obvious loop": partial(label_by_loop, lists, reference_clicks.similar_pairs),
        "loop, NumPy distances": partial(label_by_loop, lists, similar_pairs_by_numpy),
    }
    clicks = [label() for label in implementations.values()]
    if any(other != clicks[0] for other in clicks):
        raise AssertionError("the implementations do not give the same clicks")
    best = best_seconds(implementations, REPEATS)
    return [
        {
            "implementation": name,
            "lists_per_second": n_lists / seconds,
            "speedup": seconds / best["seq2slate"],
            "bar": BAR if name == "obvious loop" else "",
        }
        for name, seconds in best.items()
    ]


def make_lists(n_lists: int) -> ItemLists:
    rng = np.random.default_rng(0)
    n_items = n_lists * N_ITEMS
    grades = rng.choice(5, size=n_items, p=[0.548, 0.3, 0.13, 0.016, 0.006])  # the shares of MSLR
    return ItemLists(rng.normal(size=(n_items, N_FEATURES)), np.arange(n_lists + 1) * N_ITEMS, labels=grades)


def label_by_package(lists: ItemLists) -> list[float]:
    labels = simulate_clicks(DiverseClicks(), lists, seed=0).labels
    return [] if labels is None else labels.tolist()


def label_by_loop(lists: ItemLists, find_similar: SimilarPairs) -> list[float]:
    grades = np.zeros(lists.n_items) if lists.labels is None else lists.labels
    everything = [0.0] * N_ITEMS  # is examined: eta is 0
    labels: list[float] = []
    for start, end in zip(lists.offsets[:-1], lists.offsets[1:], strict=True):
        labels += reference_clicks.clicks(
            "diverse",
            lists.features[start:end].tolist(),
            (grades[start:end] >= 2).tolist(),
            range(end - start),
            eta=0.0,
            examine=everything,
            click=everything,
            find_similar=find_similar,
        )
    return labels


def similar_pairs_by_numpy(rows: Sequence[Row], q: float) -> set[tuple[int, int]]:
    features = np.asarray(rows)
    distances = np.sqrt(((features[:, None] - features) ** 2).sum(axis=-1))
    first, second = np.triu_indices(len(features), 1)
    is_similar = distances[first, second] <= np.quantile(distances[first, second], q)
    return set(zip(first[is_similar].tolist(), second[is_similar].tolist(), strict=True))
