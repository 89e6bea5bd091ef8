"""The benchmarks of `make bench` in two checkouts, in turns, so that a busy moment of the machine hits both.

`python -m benchmarks.side_by_side --before PATH [NAMES …] [--repeats 3]`: NAMES are parts of titles (training,
decoding, latency, …); without any, everything runs, which takes about a quarter of an hour a repeat. Each benchmark is
run as it stands in its own checkout, by a process of its own, on one thread. A figure is the best of the repeats.
Figures are matched by the title of their table, their row and their column; one that only one of the checkouts has is
shown with an empty cell and the remark "only before" or "only after". The tables are also written to
benchmarks/side_by_side.json; a run of a part replaces that part there.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.checkouts import checkouts, new_parser, run_python
from benchmarks.tables import Rows, print_table

RESULTS = Path(__file__).with_name("side_by_side.json")
_LIST = "import json; from benchmarks.__main__ import BENCHMARKS; print(json.dumps(list(BENCHMARKS)))"
_RUN = "import json, sys; from benchmarks.__main__ import BENCHMARKS; print(json.dumps(BENCHMARKS[sys.argv[1]]()))"
Key = tuple[str, str]
"""The row of a figure, and its column."""


def figures(rows: Rows) -> Iterator[tuple[Key, float, float | None]]:
    """Yield the row, column, value and bar of every figure in the table of a benchmark.

    The first column and all texts say which row it is.

    >>> rows = [{"items": 10, "slots": "all", "ratio": 1.8, "bar": 1.5, "share of matrix products": 0.7}]
    >>> for figure in figures(rows):
    ...     print(figure)
    (('10, all', 'ratio'), 1.8, 1.5)
    (('10, all', 'share of matrix products'), 0.7, None)
    """
    for row in rows:
        columns = [name for name in row if name.partition(",")[0] not in ("bar", "paper", "requests/s")]
        labels = {name: row[name] for name in columns if name == columns[0] or isinstance(row[name], str)}
        label = ", ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in labels.values())
        for column in columns:
            if column not in labels:
                yield (label, column), float(row[column]), _bar(row, column)


def _bar(row: dict[str, float | str], column: str) -> float | None:
    """Return the bar of a column: one that names it, or else the row's, which is for its (last) ratio."""
    ratios = [name for name in row if name.partition(",")[0] in ("ratio", "speedup")]
    bar = row.get(f"bar, {column.partition(',')[0]}") or (row.get("bar") if column in ratios[-1:] else None)
    return float(bar) if bar else None


def is_higher_better(title: str, column: str) -> bool:
    """Say in which direction a figure is good: ratios over the textbook's time are speed-ups, others are costs."""
    if column.startswith("ratio"):
        return "textbook" in title
    return any(part in column for part in ("/s", "per_second", "speedup", "rate", "share"))


def run(title: str, trees: dict[str, Path], repeats: int) -> list[dict[str, float | str | None]]:
    """Run a benchmark in turns; return a row for each figure: its best value in both checkouts, and its bar."""
    best: dict[Key, dict[str, float]] = {}
    bars: dict[Key, float | None] = {}
    order = list(trees.items())
    for _ in range(repeats):
        for name, tree in order:
            for key, value, bar in figures(json.loads(run_python(tree, "-c", _RUN, title).splitlines()[-1])):
                better = max if is_higher_better(title, key[1]) else min
                values = best.setdefault(key, {})
                values[name] = better(value, values.get(name, value))
                bars[key] = bars.get(key) or bar
        order.reverse()
    return [_compare(title, key, values, bars[key]) for key, values in best.items()]


def _compare(title: str, key: Key, values: dict[str, float], bar: float | None) -> dict[str, float | str | None]:
    before, after = values.get("before"), values.get("after")
    ratio = after / before if after is not None and before else None
    remark = f"only {next(iter(values))}" if len(values) == 1 else ""
    if bar is not None and after is not None:
        remark = "held" if (after >= bar if is_higher_better(title, key[1]) else after <= bar) else "MISSED"
    row, figure = key
    return {
        "row": row, "figure": figure, "before": before, "after": after,
        "after / before": ratio, "bar": bar, "remark": remark,
    }  # fmt: skip


def main() -> None:
    """Run what is named, print a table for each benchmark, and write them."""
    parser = new_parser(__doc__, needs_before=True)
    parser.add_argument("names", nargs="*", metavar="NAMES", help="parts of titles; everything if none is given")
    parser.add_argument("--repeats", type=int, default=3, help="how often each benchmark runs in each checkout")
    arguments = parser.parse_args()
    trees = checkouts(arguments.before)
    titles = {name: json.loads(run_python(tree, "-c", _LIST)) for name, tree in trees.items()}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results["commits"] = {name: _commit(tree) for name, tree in trees.items()}
    for title in dict.fromkeys([*titles["before"], *titles["after"]]):
        if arguments.names and not any(name.lower() in title.lower() for name in arguments.names):
            continue
        having = {name: tree for name, tree in trees.items() if title in titles[name]}
        results[title] = run(title, having, arguments.repeats)
        print_table(title, results[title])
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written to {RESULTS}")


def _commit(tree: Path) -> str:
    words = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
