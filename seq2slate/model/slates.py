"""Slates as a table of ids, for files and for people."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seq2slate.atomic import atomic_path
from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import NO_ITEM, Ranker, rank_lists
from seq2slate.errors import UsageError
from seq2slate.model.slate_model import SlateModel


def rerank_lists(
    ranker: Ranker, lists: ItemLists, k: int | None = None, *, seed: int | None = None, temperature: float = 1.0
) -> pa.Table:
    """Return a row a list: `list_id`, `item_id` (best first) and, from a network, `log_probability` of each choice.

    With a seed, slates are drawn from the network and not the best ones taken.
    """
    if isinstance(ranker, SlateModel):
        slates = ranker.rerank(lists, k, sample_seed=seed, temperature=temperature)
        return pa.table(
            {
                "list_id": pa.array([slate.list_id for slate in slates], pa.string()),
                "item_id": pa.array([slate.item_ids for slate in slates], pa.list_(pa.string())),
                "log_probability": pa.array([slate.log_probabilities for slate in slates], pa.list_(pa.float32())),
            }
        )
    if seed is not None:
        raise UsageError("only a network has probabilities to draw slates from: leave out --sample")
    chosen = rank_lists(ranker, lists, k)
    placed = chosen != NO_ITEM
    rows = lists.offsets[np.nonzero(placed)[0]] + chosen[placed]
    ids = lists.item_ids.take(pa.array(rows)).cast(pa.string())
    offsets = np.concatenate([[0], placed.sum(axis=1).cumsum()]).astype(np.int32)
    return pa.table({"list_id": lists.list_ids.cast(pa.string()), "item_id": pa.ListArray.from_arrays(offsets, ids)})


def check_slate_file(path: str | os.PathLike[str]) -> Path:
    """Return the path if slates can be written to it; better asked before the work than after it."""
    final = Path(path)
    if final.suffix not in (".parquet", ".jsonl"):
        raise UsageError(f"{final}: slates are written as .parquet or .jsonl")
    return final


def write_slates(slates: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write the table, as Parquet or as JSON lines."""
    final = check_slate_file(path)
    with atomic_path(final) as partial:
        if final.suffix == ".parquet":
            pq.write_table(slates, partial)
        else:
            partial.write_text("".join(json.dumps(row) + "\n" for row in slates.to_pylist()))
