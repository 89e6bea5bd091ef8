"""Rankers on the same lists, side by side: means, intervals, a paired test, and the share of the gap closed.

There are two views of a list. The *logged* labels were given to the base order and are what the paper measures (section
4). With a simulated user there is a second view, which the paper could not have offline: the slate is *re-shown* and
the user clicks again. All rankers get common random numbers, so that they differ by their slates alone.

The p-values are not corrected for the number of rankers and measures: with many, some fall below 0.05 by chance alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from itertools import product
from math import isnan
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from seq2slate.data.checks import label_problems
from seq2slate.data.inputs import as_lists
from seq2slate.data.lists import Batch, IntArray, ItemLists
from seq2slate.data.ranker import NO_ITEM, BaseOrder, Ranker, check_slots, slot_of_item
from seq2slate.data.roles import Columns, join_columns
from seq2slate.errors import DataError, UsageError, warn_of_data
from seq2slate.evaluation.comparison import share_text
from seq2slate.evaluation.statistics import (
    bootstrap_interval,
    mean_over_lists,
    none_if_nan,
    randomisation_test,
    share_of_gap,
)
from seq2slate.html import element, table
from seq2slate.metrics import DEFAULT_MEASURES, Measure, NoPositives, Values, measure_ranker
from seq2slate.progress import track
from seq2slate.simulation.click_models import ClickModel, shown_clicks

BASE = "base"
"""The name of the row of the base order."""
SHOWN_CUTS = (5, 10)
"""The slots whose re-shown clicks are counted."""
SIGNIFICANT = 0.05

_LEVEL = 0.95
_RESAMPLES = 2000
_SIGN_FLIPS = 10_000

PerList = dict[tuple[str, str], Values]


@dataclass(frozen=True)
class EvaluationRow:
    """One ranker by one measure."""

    ranker: str
    measure: str
    mean: float
    """Over the lists that have a value; NaN if none has."""
    low: float
    """The lower end of the 95% bootstrap interval of the mean; NaN with fewer than two lists."""
    high: float
    """The upper end."""
    p_value: float | None
    """Of the paired randomisation test against the baseline; None for the baseline itself."""
    gap_closed: float | None
    """The share of the gap from the base order (0) to the ceiling (1); None without a ceiling above the base order."""
    n_lists: int
    """The number of lists that have a value."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of `evaluate`: rows for people and programs, and the value of every list for further tests."""

    rows: tuple[EvaluationRow, ...]
    """Ranker by ranker, with the measures in the order of the call."""
    per_list: Mapping[tuple[str, str], Values] = field(repr=False)
    """(ranker, measure) → (Q,) values in the order of the lists; NaN for a list that is skipped."""
    n_lists: int
    n_without_positives: int
    no_positives: NoPositives
    baseline: str
    ceiling: tuple[str, ...]
    seed: int
    repeats: int | None
    """How often the simulated user scans each slate; None without a user."""

    @property
    def rankers(self) -> tuple[str, ...]:
        """The rankers, the base order first."""
        return tuple(dict.fromkeys(row.ranker for row in self.rows))

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures, the re-shown clicks last."""
        return tuple(dict.fromkeys(row.measure for row in self.rows))

    def row(self, ranker: str, measure: str) -> EvaluationRow:
        """Return one row; a UsageError names those that there are."""
        for row in self.rows:
            if (row.ranker, row.measure) == (ranker, measure):
                return row
        known = f"rankers: {', '.join(self.rankers)}; measures: {', '.join(self.measures)}"
        raise UsageError(f"no row ({ranker!r}, {measure!r}); {known}")

    def to_json(self) -> str:
        """Return everything but the per-list values as strict JSON; NaN is null."""
        rows = [{name: none_if_nan(value) for name, value in asdict(row).items()} for row in self.rows]
        content = {name: value for name, value in vars(self).items() if name not in ("rows", "per_list")}
        content["interval"] = {"level": _LEVEL, "resamples": _RESAMPLES}
        content["test"] = {"sign_flips": _SIGN_FLIPS}
        return json.dumps({**content, "rows": rows}, indent=2, allow_nan=False)

    def table(self) -> Table:
        """Return a table for people: a row a ranker, a column a measure."""
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for header in ("ranker", *self.measures):
            table.add_column(header, min_width=max(map(len, header.split())), overflow="fold")
        for name in self.rankers:
            cells = [row for row in self.rows if row.ranker == name]
            table.add_row(Text(name), *map(_mean_cell, cells))
            if self.ceiling and name not in (BASE, *self.ceiling):
                table.add_row("  gap closed", *(share_text(cell.gap_closed) or "-" for cell in cells))
        return table

    def __rich__(self) -> Group:
        """Return the table, and notes on how to read it."""
        return Group(self.table(), Text("\n".join(["", *self._footer()]), style="dim"))

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=200, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def _repr_html_(self) -> str:
        cells = [[_mean_cell(self.row(name, measure)) for measure in self.measures] for name in self.rankers]
        rows = [[name, *row] for name, row in zip(self.rankers, cells, strict=True)]
        notes = [element("li", note) for note in self._footer()]
        return table(["ranker", *self.measures], rows) + element("ul", *notes)

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
            yield f"gap closed: the share of the way from {BASE} to {', '.join(self.ceiling)}{best}"
        if self.repeats is not None:
            yield f"re-shown: the simulated user sees the new slate and clicks again; mean of {self.repeats} repeats"
        yield f"seed {self.seed}"


def evaluate(
    rankers: Ranker | Mapping[str, Ranker],
    data: Any,
    *,
    measures: Iterable[Measure | str] | Measure | str = DEFAULT_MEASURES,
    user: ClickModel | None = None,
    repeats: int = 20,
    baseline: str = BASE,
    ceiling: str | Sequence[str] = (),
    k: int | None = None,
    seed: int = 0,
    no_positives: NoPositives = "skip",
    columns: Columns | Mapping[str, Any] | None = None,
) -> Evaluation:
    """Rank all lists with every ranker and compare the rankers list by list.

    Args:
        rankers: Rankers by name, or one ranker. The base order is added under the name "base", unless one of that name
            is given.
        data: Labelled lists in base order, in any form that `as_lists` knows.
        measures: Measures of the logged labels, such as "NDCG@10".
        user: A click model that is shown the new slates; adds re-shown clicks@5 and re-shown clicks@10.
        repeats: How often a random user scans each slate.
        baseline: The ranker against which the others are tested.
        ceiling: Rankers that know what no ranker can. The two views have different ones: each measure takes the best.
        k: How many slots to fill; all if None.
        seed: Of the user, the bootstrap and the test.
        no_positives: The value of a list without positives: "skip" leaves it out of the mean, "zero" is 0, "one" is 1.
        columns: Roles of the columns, if the data is a table or a file; those that a fitted ranker knows if None.

    Returns:
        Means, 95% intervals, p-values against the baseline and shares of the gap, and the values of every list.

    Raises:
        UsageError: `baseline` or `ceiling` is not the name of a ranker.
        DataError: The lists have no labels, or a ranker returns slates that are not orders of the lists.

    >>> import numpy as np
    >>> lists = ItemLists(np.eye(4), [0, 2, 4], labels=[0, 1, 1, 0])
    >>> evaluate({}, lists, measures=["MRR"]).row("base", "MRR").mean
    0.75
    """
    named = _named(rankers)
    compared: dict[str, Ranker] = {BASE: BaseOrder(), **named}
    lists, k = _as_lists(data, columns, named.values()), check_slots(k)
    parsed = _parsed(measures)
    ceilings = (ceiling,) if isinstance(ceiling, str) else tuple(ceiling)
    for name in (baseline, *ceilings):
        if name not in compared:
            raise UsageError(f"there is no ranker {name!r} to compare with; there are {', '.join(compared)}")
    if lists.labels is None:
        raise DataError("these lists have no labels, and a ranking cannot be evaluated without: give clicks or grades")
    for problem in label_problems(lists):
        warn_of_data(problem)
    per_list: PerList = {}
    checked = {name: CheckedRanker(name, ranker, len(lists)) for name, ranker in compared.items()}
    for name, one in checked.items():
        values = measure_ranker(one, lists, parsed, k=k, no_positives=no_positives, description=f"ranking: {name}")
        per_list |= {(name, str(measure)): of_lists for measure, of_lists in values.items()}
    if user is not None:
        per_list |= _shown_values(checked, lists, user, repeats, seed)
    cells = list(product(compared, dict.fromkeys(measure for _, measure in per_list)))
    return Evaluation(
        rows=tuple(_row(*cell, per_list, baseline, ceilings, seed) for cell in track(cells, "comparing")),
        per_list=per_list,
        n_lists=len(lists),
        n_without_positives=len(lists) - len(np.unique(lists.list_index[lists.labels > 0])),
        no_positives=no_positives,
        baseline=baseline,
        ceiling=ceilings,
        seed=seed,
        repeats=None if user is None else repeats,
    )


def _as_lists(data: Any, columns: Columns | Mapping[str, Any] | None, rankers: Iterable[Ranker]) -> ItemLists:
    """Return the lists of the data, read with the roles that are given, or with those that all rankers know."""
    if columns is None and not isinstance(data, ItemLists):
        known = (getattr(one, "columns_", None) for one in rankers)
        columns = join_columns(found for found in known if found is not None)
    return as_lists(data, columns, name="data")


def _parsed(measures: Iterable[Measure | str] | Measure | str) -> list[Measure]:
    several = [measures] if isinstance(measures, str | Measure) else measures
    return [measure if isinstance(measure, Measure) else Measure.parse(measure) for measure in several]


def _named(rankers: Any) -> dict[str, Ranker]:
    """Return rankers by name; one alone is called by its own name, or by that of its class."""
    if hasattr(rankers, "rank"):
        return {str(getattr(rankers, "name", type(rankers).__name__)): rankers}
    if isinstance(rankers, Mapping) and all(hasattr(one, "rank") for one in rankers.values()):
        return dict(rankers)
    raise UsageError(
        f"evaluate takes a ranker or a dict of rankers first, then the lists; got {type(rankers).__name__}"
    )


def _shown_values(
    checked: Mapping[str, CheckedRanker], lists: ItemLists, user: ClickModel, repeats: int, seed: int
) -> PerList:
    found: PerList = {}
    for name, one in track(checked.items(), "re-showing"):
        clicks = shown_clicks(user, lists, one.first_slots, repeats=repeats, seed=seed)
        found |= {(name, measure): values for measure, values in clicks_at_cuts(clicks).items()}
    return found


def clicks_at_cuts(clicks: Values) -> dict[str, Values]:
    """Return the re-shown clicks (Q,) in the first 5 and the first 10 slots, from clicks (Q, K) by slot."""
    return {f"re-shown clicks@{cut}": clicks[:, :cut].sum(axis=1) for cut in SHOWN_CUTS}


class CheckedRanker:
    """A ranker whose slates are checked as they come, and whose first slots are kept to be shown to a user."""

    def __init__(self, name: str, ranker: Ranker, n_lists: int) -> None:
        self.name, self.ranker = name, ranker
        self.first_slots: IntArray = np.full((n_lists, max(SHOWN_CUTS)), NO_ITEM)

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return the slates (B, K) of the ranker, or raise a DataError that names the list."""
        slates = self.ranker.rank(batch, k)
        _check_slates(self.name, slates, batch, k)
        shown = slates[:, : self.first_slots.shape[1]]
        self.first_slots[batch.index, : shown.shape[1]] = shown
        return slates


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


def _row(
    ranker: str, measure: str, per_list: PerList, baseline: str, ceilings: tuple[str, ...], seed: int
) -> EvaluationRow:
    values = per_list[ranker, measure]
    low, high = bootstrap_interval(values, seed=seed, samples=_RESAMPLES, level=_LEVEL)
    p_value = None
    if ranker != baseline:
        p_value = randomisation_test(values, per_list[baseline, measure], seed=seed, samples=_SIGN_FLIPS)
    mean = mean_over_lists(values)
    gap_closed = None
    if ceilings:
        ceiling = max(mean_over_lists(per_list[name, measure]) for name in ceilings)
        gap_closed = share_of_gap(mean, mean_over_lists(per_list[BASE, measure]), ceiling)
    return EvaluationRow(ranker, measure, mean, low, high, p_value, gap_closed, int((~np.isnan(values)).sum()))


def _mean_cell(row: EvaluationRow) -> str:
    if isnan(row.mean):
        return "-"
    spread = "" if isnan(row.low) else f" ±{(row.high - row.low) / 2:.3f}"
    mark = "*" if row.p_value is not None and row.p_value < SIGNIFICANT else ""
    return f"{row.mean:.3f}{spread}{mark}"
