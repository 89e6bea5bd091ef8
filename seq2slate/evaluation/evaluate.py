"""Rankers side by side on the same lists: means, intervals, a paired test, and the share of the gap that is closed.

Two views of a list. The *logged* labels were given to the base order and are what the paper measures (section 4). When
a simulated user is at hand there is a second, which the paper could not have offline: the slate is *re-shown* and the
user clicks again. The user's luck is the same for all rankers, so that they differ by their slates only.

The p-values are per ranker and measure; with many rankers some fall below 0.05 by chance alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from itertools import product
from math import ceil, isnan

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from seq2slate.baselines.order import BaseOrder
from seq2slate.data.lists import Batch, IntArray, ItemLists
from seq2slate.data.ranker import NO_ITEM, Ranker, empty_slates, slot_of_item
from seq2slate.errors import DataError, UsageError
from seq2slate.evaluation.statistics import bootstrap_interval, mean_over_lists, randomisation_test
from seq2slate.metrics import DEFAULT_MEASURES, Measure, NoPositives, Values
from seq2slate.progress import track
from seq2slate.simulation.click_models import ClickModel, shown_clicks

BASE = "base"
"""The name of the row of the base order."""
SHOWN_CUTS = (5, 10)
"""The slots whose re-shown clicks are counted."""
SIGNIFICANT = 0.05

_BATCH_SIZE = 256
_LEVEL = 0.95
_RESAMPLES = 2000
_SIGN_FLIPS = 10_000

PerList = dict[tuple[str, str], Values]


@dataclass(frozen=True)
class Row:
    """One ranker by one measure."""

    ranker: str
    measure: str
    mean: float
    """Over the lists that have a value; NaN if none has."""
    low: float
    """Where the 95% bootstrap interval of the mean begins; NaN with fewer than two lists."""
    high: float
    """Where it ends."""
    p_value: float | None
    """Of the paired randomisation test against the baseline; None for the baseline itself."""
    gap_closed: float | None
    """How far from the base order (0) to the ceiling (1) the mean lies; None without a ceiling above the base order."""
    n_lists: int
    """How many lists have a value."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` found: rows for people and programs, and every list's value for further tests."""

    rows: tuple[Row, ...]
    """Ranker by ranker, the measures in the order they were asked for."""
    per_list: Mapping[tuple[str, str], Values] = field(repr=False)
    """(ranker, measure) → (Q,) values in the order of the lists; NaN for a list that is skipped."""
    n_lists: int
    n_without_positives: int
    no_positives: NoPositives
    baseline: str
    ceiling: tuple[str, ...]
    seed: int
    repeats: int | None
    """How often the simulated user looked at each slate; None without a user."""

    @property
    def rankers(self) -> tuple[str, ...]:
        """The rankers, the base order first."""
        return tuple(dict.fromkeys(row.ranker for row in self.rows))

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures, the re-shown clicks last."""
        return tuple(dict.fromkeys(row.measure for row in self.rows))

    def row(self, ranker: str, measure: str) -> Row:
        """Return one row, or say which there are."""
        for row in self.rows:
            if (row.ranker, row.measure) == (ranker, measure):
                return row
        known = f"rankers: {', '.join(self.rankers)}; measures: {', '.join(self.measures)}"
        raise UsageError(f"no row ({ranker!r}, {measure!r}); {known}")

    def to_json(self) -> str:
        """Return everything but the per-list values, as strict JSON: what is not a number is null."""
        rows = [{name: _or_null(value) for name, value in asdict(row).items()} for row in self.rows]
        settings = {
            "n_lists": self.n_lists,
            "n_without_positives": self.n_without_positives,
            "no_positives": self.no_positives,
            "baseline": self.baseline,
            "ceiling": self.ceiling,
            "seed": self.seed,
            "repeats": self.repeats,
            "interval": {"level": _LEVEL, "resamples": _RESAMPLES},
            "test": {"sign_flips": _SIGN_FLIPS},
        }
        return json.dumps({**settings, "rows": rows}, indent=2, allow_nan=False)

    def table(self) -> Table:
        """Return a table for people: a row a ranker, a column a measure, and below it how to read it."""
        footer = Text("\n".join(["", *self._footer()]), style="dim")
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.caption, table.caption_justify = footer, "left"
        for header in ("ranker", *self.measures):
            table.add_column(header, min_width=max(map(len, header.split())), overflow="fold")
        by_key = {(row.ranker, row.measure): row for row in self.rows}
        for name in self.rankers:
            cells = [by_key[name, measure] for measure in self.measures]
            table.add_row(Text(name), *map(_mean_cell, cells))
            if self.ceiling and name not in (BASE, *self.ceiling):
                table.add_row("  gap closed", *map(_share_cell, cells))
        return table

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=200, color_system=None)
        with console.capture() as captured:
            console.print(self.table())
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def _footer(self) -> Iterator[str]:
        yield f"mean over lists ± half the width of its {_LEVEL:.0%} bootstrap interval ({_RESAMPLES:,} resamples)"
        yield (
            f"* differs from {self.baseline}: p < {SIGNIFICANT} in a paired two-sided randomisation test "
            f"({_SIGN_FLIPS:,} sign flips)"
        )
        what = {"skip": "skipped", "zero": "counted as 0", "one": "counted as 1"}[self.no_positives]
        yield (
            f"{self.n_lists:,} lists; {self.n_without_positives:,} without positives are {what} "
            "(in rank-gain and clicks they count as they are)"
        )
        names = {measure.partition("@")[0] for measure in self.measures}
        if "NDCG" in names:
            yield "NDCG: linear gain, the label itself"
        if "NDCG-exp" in names:
            yield "NDCG-exp: exponential gain, 2^label - 1"
        if self.ceiling:
            best = " (the best of them)" if len(self.ceiling) > 1 else ""
            yield f"gap closed: how much of the way from {BASE} to {', '.join(self.ceiling)}{best}"
        if self.repeats is not None:
            yield f"re-shown: the simulated user sees the new slate and clicks again; mean of {self.repeats} repeats"
        yield f"seed {self.seed}"


def evaluate(
    rankers: Mapping[str, Ranker],
    lists: ItemLists,
    *,
    measures: Iterable[Measure | str] = DEFAULT_MEASURES,
    user: ClickModel | None = None,
    repeats: int = 20,
    baseline: str = BASE,
    ceiling: str | Sequence[str] = (),
    k: int | None = None,
    seed: int = 0,
    no_positives: NoPositives = "skip",
) -> Evaluation:
    """Rank all lists with every ranker and compare what comes out, list by list.

    The base order is always among the rankers, under the name "base", unless one of that name is given. `baseline`
    names the ranker that the others are tested against. `ceiling` names rankers that know what no ranker can; when
    there are several (the two views have different ones), the best of them is the ceiling of each measure. With `k`
    only k slots are filled. A `user` looks at each slate `repeats` times.

    >>> import numpy as np
    >>> lists = ItemLists(np.eye(4), [0, 2, 4], labels=[0, 1, 1, 0])
    >>> evaluate({}, lists, measures=["MRR"]).row("base", "MRR").mean
    0.75
    """
    compared: dict[str, Ranker] = {BASE: BaseOrder(), **rankers}
    parsed = [measure if isinstance(measure, Measure) else Measure.parse(measure) for measure in measures]
    ceilings = (ceiling,) if isinstance(ceiling, str) else tuple(ceiling)
    for name in (baseline, *ceilings):
        if name not in compared:
            raise UsageError(f"there is no ranker {name!r} to compare with; there are {', '.join(compared)}")
    if lists.labels is None:
        raise DataError("these lists have no labels, and a ranking cannot be evaluated without: give clicks or grades")
    per_list, first_slots = _measure(compared, lists, parsed, no_positives, k)
    if user is not None:
        for name, slates in track(first_slots.items(), "re-showing"):
            clicks = shown_clicks(user, lists, slates, repeats=repeats, seed=seed)
            per_list |= {(name, f"re-shown clicks@{cut}"): clicks[:, :cut].sum(axis=1) for cut in SHOWN_CUTS}
    cells = list(product(compared, dict.fromkeys(measure for _, measure in per_list)))
    positives = np.bincount(lists.list_index[lists.labels > 0], minlength=len(lists))
    return Evaluation(
        rows=tuple(_row(*cell, per_list, baseline, ceilings, seed) for cell in track(cells, "comparing")),
        per_list=per_list,
        n_lists=len(lists),
        n_without_positives=int((positives == 0).sum()),
        no_positives=no_positives,
        baseline=baseline,
        ceiling=ceilings,
        seed=seed,
        repeats=None if user is None else repeats,
    )


def _measure(
    rankers: Mapping[str, Ranker],
    lists: ItemLists,
    measures: Sequence[Measure],
    no_positives: NoPositives,
    k: int | None,
) -> tuple[PerList, dict[str, IntArray]]:
    """Return the values of every list, and the first slots of every slate, by ranker.

    Lists of similar length go together, and all rankers see a batch before the next is padded: memory follows the
    longest batch, not the longest list times the number of lists.
    """
    per_list: PerList = {(name, str(measure)): np.full(len(lists), np.nan) for name in rankers for measure in measures}
    first_slots = {name: empty_slates(lists.lengths, max(SHOWN_CUTS)) for name in rankers}
    n_batches = ceil(len(lists) / _BATCH_SIZE)
    for batch in track(lists.batches(_BATCH_SIZE), "ranking", total=n_batches):
        for name, ranker in rankers.items():
            slates = ranker.rank(batch, k)
            _check_slates(name, slates, batch, k)
            for measure in measures:
                values = measure(slates, batch.labels, mask=batch.mask, no_positives=no_positives)
                per_list[name, str(measure)][batch.index] = values
            shown = slates[:, : max(SHOWN_CUTS)]
            first_slots[name][batch.index, : shown.shape[1]] = shown
    return per_list, first_slots


def _check_slates(name: str, slates: IntArray, batch: Batch, k: int | None) -> None:
    """Refuse slates that would measure too well: an item placed twice, padding, or a slot left empty."""
    n_slots = batch.n_slots if k is None else min(k, batch.n_slots)
    if slates.shape != (len(batch), n_slots):
        raise DataError(f"ranker {name!r} gave slates of shape {slates.shape}, expected {(len(batch), n_slots)}")
    lengths = batch.lists.lengths[:, None]
    in_range = ((slates >= 0) & (slates < lengths)) | (slates == NO_ITEM)
    filled_first = (slates >= 0) == (np.arange(n_slots) < lengths)
    valid = in_range.all(axis=1) & filled_first.all(axis=1)
    in_list = np.where(valid[:, None], slates, NO_ITEM)
    valid &= (slot_of_item(in_list, batch.mask) < batch.n_slots).sum(axis=1) == (in_list >= 0).sum(axis=1)
    if not valid.all():
        q = int((~valid).argmax())
        raise DataError(
            f"ranker {name!r}, list {batch.lists.list_ids[q].as_py()!r} of {batch.lists.lengths[q]} items: the slate "
            f"{slates[q].tolist()} must name items of the list, none twice, and leave no slot empty before its end"
        )


def _row(ranker: str, measure: str, per_list: PerList, baseline: str, ceilings: tuple[str, ...], seed: int) -> Row:
    values = per_list[ranker, measure]
    low, high = bootstrap_interval(values, seed=seed, samples=_RESAMPLES, level=_LEVEL)
    p_value = None
    if ranker != baseline:
        p_value = randomisation_test(values, per_list[baseline, measure], seed=seed, samples=_SIGN_FLIPS)
    mean = mean_over_lists(values)
    gap_closed = None
    if ceilings:
        floor = mean_over_lists(per_list[BASE, measure])
        gap = max(mean_over_lists(per_list[name, measure]) for name in ceilings) - floor
        gap_closed = (mean - floor) / gap if gap > 0 else None
    return Row(ranker, measure, mean, low, high, p_value, gap_closed, int((~np.isnan(values)).sum()))


def _or_null(value: str | float | None) -> str | float | None:
    return None if isinstance(value, float) and isnan(value) else value


def _mean_cell(row: Row) -> str:
    if isnan(row.mean):
        return "-"
    spread = "" if isnan(row.low) else f" ±{(row.high - row.low) / 2:.3f}"
    mark = "*" if row.p_value is not None and row.p_value < SIGNIFICANT else ""
    return f"{row.mean:.3f}{spread}{mark}"


def _share_cell(row: Row) -> str:
    if row.gap_closed is None:
        return "-"
    return f"{row.gap_closed:.0%}" if row.gap_closed > -0.995 else "below"  # a share of minus 400% says no more
