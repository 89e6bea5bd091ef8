"""The share of padding in a batch: lists of log-normal length, with and without batches of similar lengths."""

from __future__ import annotations

import numpy as np

from benchmarks.tables import Rows
from seq2slate.data.lists import batch_indices, padding_share
from seq2slate.simulation.synthetic import make_synthetic_lists


def run(n_lists: int = 10_000, batch_size: int = 128) -> Rows:
    """Return the share of padded cells in the batches of training, and in random batches."""
    rows: Rows = []
    for items in (25, 110):
        lengths = make_synthetic_lists(n_lists, items=items, world="topics", features=4, seed=0).lengths
        at_random = np.array_split(np.random.default_rng(0).permutation(n_lists), n_lists // batch_size)
        rows.append(
            {
                "mean length": float(lengths.mean()),
                "padding, seq2slate": padding_share(lengths, batch_indices(lengths, batch_size, seed=0)),
                "padding, at random": padding_share(lengths, at_random),
            }
        )
    return rows
