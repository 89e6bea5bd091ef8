"""Two walks through the package: how many modules a reader has to open to follow a piece of data.

- *training*: from a Parquet click log to saved weights (`seq2slate train`, one epoch);
- *request*: from a POST /v1/rerank to its committed row in a SQLite log, and back to the answer (`seq2slate serve`,
  with the real application and the log's writer thread; only the socket is left out).

A walk is the sequence of calls of functions of `seq2slate`, in all threads, in the order of time. Each is walked twice
in one process and the second time counts, so imports and caches are not part of it. Resuming a generator or a coroutine
is no call. The command line itself (`seq2slate.cli`) is not counted. *Modules* are the distinct files of these calls.
*Changes of file* counts the calls that are in another file than the call before, and the first call.

`python -m benchmarks.walk` prints the modules of both walks in the order in which they are entered, each with the
function that is called first. `--before PATH` puts the walks through another checkout beside them.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path

from benchmarks.checkouts import checkouts, new_parser, run_python
from benchmarks.tables import print_table

TRACER = Path(__file__).with_name("tracer.py")
TITLES = {"training": "From Parquet to weights", "request": "From a POST to its committed row"}


@dataclass(frozen=True)
class Walk:
    """The calls of a walk in order, each as module and function."""

    calls: list[tuple[str, str]]

    @property
    def first_calls(self) -> dict[str, str]:
        """The modules in the order in which they are entered, each with the function that is called first."""
        first: dict[str, str] = {}
        for module, function in self.calls:
            first.setdefault(module, function)
        return first

    @property
    def file_changes(self) -> int:
        """How often the walk goes to another file, the first included."""
        return sum(1 for _ in groupby(module for module, _ in self.calls))

    def __str__(self) -> str:
        return f"{len(self.first_calls)} modules, {self.file_changes} changes of file"


def walks(tree: Path) -> dict[str, Walk]:
    """Return the walks through the package of a checkout, traced in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        run_python(tree, "-P", str(TRACER), folder)
        found = json.loads(Path(folder, "walks.json").read_text())
    return {name: Walk([(module, function) for module, function in calls]) for name, calls in found.items()}


def main() -> None:
    """Print a table for each walk, with two columns a checkout."""
    found = {name: walks(tree) for name, tree in checkouts(new_parser(__doc__).parse_args().before).items()}
    for walk, title in TITLES.items():
        columns = [[*of_tree[walk].first_calls.items()] for of_tree in found.values()]
        headings = [text for name, of_tree in found.items() for text in (f"{name}: {of_tree[walk]}", f"{name}, first")]
        rows = [[cell for pair in pairs for cell in pair] for pairs in zip_longest(*columns, fillvalue=("", ""))]
        print_table(title, [dict(zip(headings, row, strict=True)) for row in rows])


if __name__ == "__main__":
    main()
