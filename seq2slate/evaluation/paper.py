"""The numbers of the paper: tables 1 to 4 (section 4.1), and the running times that its text states.

The paper gives two decimals (one for rank-gain), no intervals, and one column each for Yahoo and Web30k. Rankers have
the names of our tables: the paper's "base ranker (no-op)" is the base order here. Table 5 and figure 3 of the paper
give differences on proprietary data and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Columns: TypeAlias = tuple[Sequence[float | None], Sequence[float | None]]
"""The values of a ranker for each of `DATASETS`, in the order of `METRICS`; None where the paper has none."""

DATASETS = ("Yahoo", "Web30k")
"""In the order of the paper's columns."""
METRICS = ("MAP", "NDCG@5", "NDCG@10", "rank-gain")
"""In the order of the paper's columns; tables 1 and 3 have no rank-gain."""

TABLES: Mapping[str, Mapping[str, Columns]] = {
    "table1": {
        "seq2slate": ((0.67, 0.69, 0.75), (0.51, 0.53, 0.59)),
        "AdaRank": ((0.58, 0.61, 0.69), (0.37, 0.38, 0.46)),
        "Coordinate Ascent": ((0.49, 0.51, 0.59), (0.31, 0.33, 0.39)),
        "LambdaMART": ((0.58, 0.61, 0.69), (0.42, 0.46, 0.52)),
        "ListNet": ((0.49, 0.51, 0.59), (0.43, 0.47, 0.53)),
        "MART": ((0.58, 0.60, 0.68), (0.39, 0.42, 0.48)),
        "Random Forests": ((0.54, 0.57, 0.65), (0.36, 0.39, 0.45)),
        "RankBoost": ((0.50, 0.52, 0.60), (0.24, 0.25, 0.30)),
        "RankNet": ((0.54, 0.57, 0.64), (0.43, 0.47, 0.53)),
    },
    "table2": {
        "seq2slate": ((0.67, 0.69, 0.75, 7.4), (0.51, 0.53, 0.59, 18.3)),
        "greedy policy": ((0.66, 0.69, 0.75, 7.2), (0.50, 0.52, 0.59, 18.3)),
        "smooth-hinge": ((0.66, 0.69, 0.75, 7.1), (0.49, 0.51, 0.58, 17.9)),
        "REINFORCE": ((0.66, 0.68, 0.75, 5.7), (0.44, 0.47, 0.53, -0.5)),
        "one-step decoder": ((0.66, 0.69, 0.75, 6.4), (0.49, 0.51, 0.58, 16.5)),
        "shuffled data": ((0.57, 0.60, 0.67, None), (0.40, 0.40, 0.48, None)),
        "base order": ((0.58, 0.61, 0.69, 0), (0.45, 0.48, 0.54, 0)),
    },
    "table3": {
        "seq2slate": ((0.82, 0.82, 0.84), (0.44, 0.54, 0.50)),
        "AdaRank": ((0.83, 0.81, 0.84), (0.41, 0.52, 0.48)),
        "Coordinate Ascent": ((0.83, 0.82, 0.85), (0.39, 0.47, 0.44)),
        "LambdaMART": ((0.84, 0.83, 0.85), (0.41, 0.52, 0.48)),
        "ListNet": ((0.83, 0.83, 0.85), (0.41, 0.53, 0.49)),
        "MART": ((0.83, 0.82, 0.85), (0.41, 0.52, 0.48)),
        "Random Forests": ((0.83, 0.82, 0.84), (0.40, 0.48, 0.45)),
        "RankBoost": ((0.83, 0.83, 0.85), (0.38, 0.43, 0.41)),
        "RankNet": ((0.83, 0.82, 0.84), (0.35, 0.36, 0.35)),
    },
    "table4": {
        "seq2slate": ((0.82, 0.82, 0.84, 8.5), (0.44, 0.54, 0.50, 16.0)),
        "greedy policy": ((0.82, 0.82, 0.84, 8.5), (0.44, 0.54, 0.50, 15.9)),
        "smooth-hinge": ((0.80, 0.80, 0.82, 7.7), (0.44, 0.54, 0.50, 15.9)),
        "REINFORCE": ((0.82, 0.82, 0.84, 8.5), (0.42, 0.53, 0.49, -14.8)),
        "one-step decoder": ((0.81, 0.81, 0.82, 7.7), (0.44, 0.53, 0.49, 15.5)),
        "shuffled data": ((0.79, 0.78, 0.79, None), (0.42, 0.48, 0.46, None)),
        "base order": ((0.78, 0.76, 0.79, 0), (0.43, 0.53, 0.49, 0)),
    },
}
"""The rows of the paper's tables, by the name of the file that holds ours."""

TITLES: Mapping[str, str] = {
    "table1": "Table 1: seq2slate and other rankers, diverse-clicks",
    "table2": "Table 2: variants of the paper's network (preset paper-tuned), diverse-clicks",
    "table2-default": "Table 2 again: variants of preset default, diverse-clicks",
    "table3": "Table 3: seq2slate and other rankers, similar-clicks",
    "table4": "Table 4: variants of the paper's network (preset paper-tuned), similar-clicks",
    "table4-default": "Table 4 again: variants of preset default, similar-clicks",
}
"""The title of each table: what it compares, and on which clicks."""

TIMES_FASTER: Mapping[str, float] = {"training": 4.0, "inference": 3.0}
"""How many times less the one-step decoder takes than the sequential one."""

REINFORCE_TIMES_SLOWER = 4.0
"""How many times longer REINFORCE takes to converge than cross-entropy."""


def paper_values(table: str, ranker: str, metric: str) -> dict[str, float]:
    """Return the paper's values of one cell by data set; empty where it has none.

    Args:
        table: The name of our table; what follows a hyphen names the network.
        ranker: The row, as the paper has it.
        metric: The column.

    >>> paper_values("table1", "LambdaMART", "NDCG@10")
    {'Yahoo': 0.69, 'Web30k': 0.52}
    >>> paper_values("table1", "ceiling", "NDCG@10")
    {}
    """
    found = {}
    for dataset, values in zip(DATASETS, TABLES.get(table.partition("-")[0], {}).get(ranker, ()), strict=False):
        value = dict(zip(METRICS, values, strict=False)).get(metric)
        if value is not None:
            found[dataset] = value
    return found
