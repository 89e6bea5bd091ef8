"""The speed of reading LETOR text, against scikit-learn and LightGBM: one thread, CPU time, best of several, in turns.

The dense file has generated lists of the world `web30k`, 136 features and a docid a line; the sparse one has a third of
these features, and no docids. LightGBM gets the lines without qids and comments, which it cannot read. Its time
includes that of binning the columns, and ours that of ids, comments and all checks.
Run with `python -m benchmarks reading`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import lightgbm
from sklearn.datasets import load_svmlight_file

from benchmarks.tables import Rows
from benchmarks.timing import best_seconds
from seq2slate.data.files import write
from seq2slate.data.letor import read_letor
from seq2slate.simulation.synthetic import make_synthetic_lists

REPEATS = 3
BAR = 2.0
"""How many times faster than scikit-learn the reader should be."""
_PAIR = re.compile(rb" \d+:\S+")
_QID_OR_COMMENT = re.compile(rb" qid:\S+| #.*")


def run(n_lists: int = 460) -> Rows:
    """Return the megabytes per second of each reader; 460 lists of 110 items are 60 MB."""
    with TemporaryDirectory() as folder:
        dense, sparse = Path(folder, "dense.txt"), Path(folder, "sparse.txt")
        lists = make_synthetic_lists(n_lists, world="web30k", seed=0)
        write(replace(lists, relevance=None, relevance_probability=None), dense)
        sparse.write_bytes(b"\n".join(map(_thinned, dense.read_bytes().splitlines())))
        return [_row(path) for path in (dense, sparse)]


def _thinned(line: bytes) -> bytes:
    start = _PAIR.search(line)
    assert start is not None, "every line has features"
    return line[: start.start()] + b"".join(_PAIR.findall(line.partition(b"#")[0])[::3])


def _row(path: Path) -> dict[str, float | str]:
    bare = path.with_suffix(".bare")
    bare.write_bytes(_QID_OR_COMMENT.sub(b"", path.read_bytes()))
    readers: dict[str, Callable[[], object]] = {
        "seq2slate": lambda: read_letor(path),
        "scikit-learn": lambda: load_svmlight_file(str(path)),
        "LightGBM": lambda: lightgbm.Dataset(bare, params={"num_threads": 1, "verbosity": -1}).construct(),
    }
    best = best_seconds(readers, REPEATS, clock=time.process_time)
    size = path.stat().st_size / 1e6
    speeds: dict[str, float | str] = {f"{name}, MB/s": size / seconds for name, seconds in best.items()}
    ratio = best["scikit-learn"] / best["seq2slate"]
    return {"file": path.stem, "megabytes": size, **speeds, "ratio": ratio, "bar": BAR}
