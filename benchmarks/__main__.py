"""`make bench`: run every benchmark, print a table each, and write all of them to benchmarks/results.json."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import numpy as np

from benchmarks import baselines, batches, clicks, interaction, latency, network, reading, service
from benchmarks.tables import print_table

RESULTS = Path(__file__).with_name("results.json")
BENCHMARKS = {
    "Simulated diverse-clicks, n=25, F=136, lists per second": clicks.run,
    "Reading LETOR, MB/s": reading.run,
    "Share of padding in batches of 128": batches.run,
    "Training step, full permutation, 15% positives, against the textbook": network.training,
    "Greedy decoding of a batch, against the textbook": network.decoding,
    "Cost of sequential over one-step decoding, n=10": network.sequential_cost,
    "Growth with the length of the lists": network.growth,
    "Interaction on or off, time": interaction.times,
    "Interaction on or off, memory of a training step": interaction.memory,
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
    for title, run in BENCHMARKS.items():
        if wanted in title.lower():
            rows = run()
            results[title] = rows
            print_table(title, rows)
    if not wanted:  # a part of the results is not the results
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
