"""Tables 1 to 4: the rows as JSON, and as text for people, with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from seq2slate.evaluation.comparison import BASE_ORDER, Comparison, is_ceiling
from seq2slate.evaluation.evaluate import SHOWN_CUTS
from seq2slate.evaluation.paper import TITLES, paper_values
from seq2slate.evaluation.report import headline
from seq2slate.evaluation.statistics import mean_over_lists, two_way_interval
from seq2slate.metrics import Values
from seq2slate.reproduce.cells import TABLES
from seq2slate.reproduce.results import Results

_FAR_BELOW = -0.995  # a share of minus 400% says no more than "below"
_RACER = "seq2slate"
_SHOWN = tuple(f"re-shown clicks@{cut}" for cut in SHOWN_CUTS)


def table_rows(name: str, results: Results) -> list[dict[str, Any]]:
    """Return a row for each ranker and metric: mean, 95% interval over lists and seeds, and the seeds."""
    user, rankers, metrics = TABLES[name]
    rows = []
    for ranker in rankers:
        seeds = list(results.of(user, ranker))
        if not seeds:
            continue
        values = np.stack([results.values(user, ranker, metric) for metric in metrics])
        for metric, of_metric, (low, high) in zip(metrics, values, two_way_interval(values), strict=True):
            numbers = {"mean": mean_over_lists(of_metric), "low": float(low), "high": float(high)}
            rows.append(
                {
                    "ranker": ranker,
                    "metric": metric,
                    **{end: None if np.isnan(number) else number for end, number in numbers.items()},
                    "seeds": seeds,
                }
            )
    return rows


def text_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table for people: under each of our means stands the paper's, for Web30k and Yahoo."""
    comparison = Comparison(rows)
    main = comparison.main_metric
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), title=TITLES[name])
    table.title_justify, table.title_style = "left", "bold"
    table.add_column("ranker", no_wrap=True)
    gaps = [metric for metric in (main, *_SHOWN) if comparison.ceiling(metric) is not None]
    for header in (*comparison.metrics, f"gain in {main}", *([f"gap closed in {', '.join(gaps)}"] if gaps else [])):
        table.add_column(header, min_width=max(map(len, header.split())))
    for ranker in comparison.rankers:
        cells = [_cell(name, comparison, ranker, metric) for metric in comparison.metrics]
        shares = ", ".join(filter(None, (_share(comparison, ranker, metric) for metric in gaps)))
        table.add_row(ranker, *cells, _gain(comparison, ranker, main), *([shares] if gaps else []))
    return table


def notes(name: str, rows: Sequence[Mapping[str, Any]], results: Results) -> Iterator[str]:
    """Say how to read a table, who is first, and whom the lists are too few to tell from seq2slate."""
    comparison = Comparison(rows)
    if not comparison.rankers:
        yield "no row is complete"
        return
    n_seeds = max(len(row["seeds"]) for row in rows)
    user = TABLES[name].user
    n_lists = results.n_lists(user, comparison.rankers[0])
    yield (
        f"{n_lists:,} lists, {n_seeds} seed{'s' if n_seeds > 1 else ''}; mean ± half the width of its 95% interval "
        f"over lists{' and seeds' if n_seeds > 1 else ''}; gain over the base order"
        + (", and how much of the way to the ceiling that is" if comparison.ceiling(comparison.main_metric) else "")
        + "; paper: Web30k/Yahoo, whose data these are not unless given with --data"
    )
    for metric in (comparison.main_metric, _SHOWN[-1]):
        if comparison.contenders(metric):
            yield headline(comparison, metric)
    metric = comparison.main_metric
    values = {ranker: results.values(user, ranker, metric) for ranker in comparison.rankers if not is_ceiling(ranker)}
    yield from undecided(values, metric)


def undecided(values: Mapping[str, Values], metric: str) -> Iterator[str]:
    """Say which rankers the lists are too few to tell from seq2slate, by the values (seeds, lists) of each.

    All rankers see the same lists, so it is their differences that count: two intervals may overlap, mostly because
    lists differ, and the difference still be certain.
    """
    if _RACER not in values:
        return
    racer = values[_RACER]
    close = []
    for ranker, others in values.items():
        n_seeds = min(len(racer), len(others)) if len(others) > 1 else None  # one seed goes with all
        low, high = two_way_interval(racer[:n_seeds] - others[:n_seeds])
        if ranker != _RACER and not (low > 0 or high < 0):
            close.append(ranker)
    if close:
        yield (
            f"By {metric}, {racer.shape[-1]:,} lists are too few to tell {_RACER} from {_listed(close)}: the 95% "
            "interval of their difference, list by list, includes 0."
        )


def _listed(names: Sequence[str]) -> str:
    """Join names as people do.

    >>> _listed(["A", "B", "C"])
    'A, B and C'
    """
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _cell(name: str, comparison: Comparison, ranker: str, metric: str) -> Text:
    value = comparison.value(ranker, metric)
    decimals = 2 if metric == "rank-gain" else 3
    text = Text("-" if value is None else f"{value.mean:.{decimals}f}")
    if value is not None and value.half_width is not None:
        text.append(f" ±{value.half_width:.{decimals}f}")
    best = comparison.best(metric)
    if best is not None and best.ranker == ranker:
        text.stylize("bold")
    printed = paper_values(name, ranker, metric)
    if printed:
        digits = 1 if metric == "rank-gain" else 2
        text.append(f"\npaper {printed['Web30k']:.{digits}f}/{printed['Yahoo']:.{digits}f}", style="dim")
    return text


def _gain(comparison: Comparison, ranker: str, metric: str) -> str:
    gain = comparison.gain(ranker, metric)
    return "" if gain is None or ranker == BASE_ORDER else f"{gain:+.1%}"


def _share(comparison: Comparison, ranker: str, metric: str) -> str:
    share = comparison.gap_closed(ranker, metric)
    if share is None or ranker == BASE_ORDER or is_ceiling(ranker):
        return ""
    return f"{share:.0%}" if share > _FAR_BELOW else "below"
