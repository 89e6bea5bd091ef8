"""`make bench`: run every benchmark, print a table each, and write all of them to benchmarks/results.json."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import baselines, batches, clicks, latency, network, service

RESULTS = Path(__file__).with_name("results.json")
BENCHMARKS = {
    "Simulated diverse-clicks, n=25, F=136, lists per second": clicks.run,
    "Share of padding in batches of 128": batches.run,
    "Training step, full permutation, 15% positives, against the textbook": network.training,
    "Greedy decoding of a batch, against the textbook": network.decoding,
    "Cost of sequential over one-step decoding, n=10": network.sequential_cost,
    "Growth with the length of the lists": network.growth,
    "Baselines, against calling LightGBM and PyTorch directly": baselines.run,
    "Latency of one request, against the textbook": latency.run,
    "The service under load, n=10, F=136": service.run,
}


def main() -> None:
    """Run what is named on the command line (a part of a title will do), or everything, which is then written."""
    wanted = " ".join(sys.argv[1:]).lower()
    results: dict[str, object] = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    console = Console()
    for title, run in BENCHMARKS.items():
        if wanted not in title.lower():
            continue
        rows = run()
        results[title] = rows
        table = Table(*rows[0], title=title, title_justify="left")
        for row in rows:
            table.add_row(
                *(
                    f"{value:,.3g}" if isinstance(value, float) and abs(value) < 1000 else _text(value)
                    for value in row.values()
                )
            )
        console.print(table)
    if not wanted:  # a part of the results is not the results
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        console.print(f"written to {RESULTS}")


def _text(value: float | str) -> str:
    return f"{value:,.0f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
