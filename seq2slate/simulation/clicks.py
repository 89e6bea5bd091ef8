"""Clicks of a simulated user: on the base order, as labels of a log, and on new slates, as their expected number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from seq2slate.data.impressions import Impressions
from seq2slate.data.lists import Batch, FloatArray, IntArray, ItemLists
from seq2slate.data.ranker import base_slates
from seq2slate.errors import DataError, UsageError
from seq2slate.simulation.visits import ClickModel, Doubles, Draws, Scan, draw, scan

_CELLS = 1 << 20  # in the largest array of a batch: some ten megabytes


def simulate_clicks(model: ClickModel, lists: ItemLists, seed: int) -> ItemLists:
    """Return the lists with simulated clicks on the base order as labels; the grades move to `relevance`.

    `impressions` say that every item was shown in the slot of its base position.

    Args:
        model: Who clicks.
        lists: In base order. Their grades are `relevance` where there is one, so that a log can be labelled again, and
            `labels` otherwise.
        seed: The clicks on list q depend on the seed, on q and on that list, and on nothing else.

    >>> from seq2slate.simulation.click_models import DiverseClicks
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

    The mean is over P(click | the visit so far) and not over clicks: it has the same expectation and less variance.
    Where the model is not stochastic, or depends neither on earlier clicks nor on the type of the visit, one scan is
    exact and only one is made.

    Args:
        model: Who is shown the slates.
        lists: What the slates index, with grades.
        slates: The new order, or the top of it.
        repeats: The number of scans.
        seed: Gives common random numbers: the draws do not depend on the slates, so that rankers are compared under the
            same draws, and the first slots keep theirs when more are shown.

    >>> from seq2slate.simulation.click_models import DiverseClicks
    >>> lists = ItemLists(features=[[0], [1], [9], [10]], offsets=[0, 4], labels=[2, 4, 3, 3])
    >>> shown_clicks(DiverseClicks(), lists, np.array([[0, 3, 1, 2]]), repeats=10, seed=0).tolist()
    [[1.0, 1.0, 0.0, 0.0]]

    """
    if len(slates) != len(lists):
        raise UsageError(f"{len(slates)} slates for {len(lists)} lists")
    if repeats < 1:
        raise UsageError(f"repeats must be at least 1, got {repeats}")
    if not model.is_stochastic or model.depends_on != "clicks":
        repeats = 1
    means = np.zeros(slates.shape)
    for batch, scanned in _scan_all(model, lists, slates, repeats=repeats, seed=seed):
        means[batch.index, : batch.n_slots] = scanned.probability.mean(axis=0)
    return means


def check_grades(model: ClickModel, lists: ItemLists) -> None:
    """Refuse labels that look like clicks where the model needs grades: not one item would be relevant.

    >>> from seq2slate.simulation.click_models import CascadeModel
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

    >>> from seq2slate.simulation.click_models import CascadeModel
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
            keys = [(seed, number) for number in batch.index.tolist()]
            draws = draw(keys, shown.shape[1], repeats, model.n_types)
        else:
            draws = Draws(*np.zeros((2, repeats, *shown.shape)))
        facts = model.facts(batch.lists, batch.pad(relevance_of_items(model, batch.lists)))
        yield batch, scan(model, shown, facts, draws)


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


def _grades(lists: ItemLists) -> FloatArray:
    grades = lists.labels if lists.relevance is None else lists.relevance
    if grades is None:
        raise DataError("a click model needs grades: these lists have neither relevance nor labels")
    return grades
