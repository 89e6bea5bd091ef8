"""Mutated inputs over all readers and routes: each is read, or refused with an error that names the place.

`python -m benchmarks.mutate` tries 100,000 of them (`--inputs`). Every fourth is a request to a running service:
`benchmarks.mutate_requests` has them. The others are files: LETOR, JSON lines, CSV, Parquet (bytes, metadata of
seq2slate, text that is not UTF-8), `columns.toml`, key files, and `config.json` and `features.json` of saved rankers.
An input is a small valid one with bytes flipped, cut, doubled, swapped or replaced by odd tokens. Its number is its
seed: `--show NUMBER` prints what it was and how it was taken.

Workers read the files, so that a library that aborts or hangs is noticed as well. An input fails if it raises anything
but a user error, if the message does not name the file, if it emits a warning that is not about data, if it takes
longer than 10 seconds, or if it ends the worker. A worker that takes more than 500 MB of memory fails, too.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import queue
import random
import resource
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import mutate_requests
from benchmarks.mutations import MEGABYTES, SECONDS, Outcome, is_request, mutated, peak_memory, small_lists
from benchmarks.tables import print_table
from seq2slate.baselines.linear import RidgeRanker
from seq2slate.config import NetworkConfig
from seq2slate.data.checks import find_problems
from seq2slate.data.features import FeatureTransform
from seq2slate.data.files import read, write
from seq2slate.data.lists import ItemLists
from seq2slate.data.summary import summarise
from seq2slate.errors import DataWarning, Seq2SlateError
from seq2slate.estimator import load
from seq2slate.model.slate_model import SlateModel
from seq2slate.serving.keys import add_key, read_keys

START_SECONDS = 120.0
"""What a worker may take to import everything and read its first input."""
COMMAND = (sys.executable, "-m", "benchmarks.mutate", "--work")
_PER_WORKER = 25_000


class Target(NamedTuple):
    """A valid input of one reader, and how a mutated one is put in its place."""

    seed: bytes
    put: Callable[[Path, bytes], Path]
    """Writes the mutated bytes into a folder, and returns what an error has to name."""
    read: Callable[[Path], object]


# Inputs


def targets(folder: Path) -> dict[str, Target]:
    """Return what is mutated; the folder keeps the saved rankers that are read again."""
    lists = small_lists()
    found = {}
    for name, suffix, options in (
        ("LETOR", "txt", {}),
        ("JSON lines", "jsonl", {}),
        ("CSV", "csv", {}),
        ("Parquet", "parquet", {}),
        ("Parquet, a row an item", "parquet", {"layout": "items"}),
    ):
        source = folder / f"seed.{suffix}"
        write(_plain(lists) if suffix == "txt" else lists, source, **options)  # type: ignore[arg-type]
        found[name] = _file(source.read_bytes(), f"input.{suffix}")
    found["LETOR, gzip"] = _file(gzip.compress(found["LETOR"].seed, mtime=0), "input.txt.gz")
    found["columns.toml"] = _roles(found["CSV"].seed, (folder / "seed.columns.toml").read_bytes())
    found["Parquet metadata"] = _metadata(found["Parquet, a row an item"].seed)
    found["Parquet text"] = Target("Oslo, Rome é".encode(), _put_text, _inspect)
    add_key(folder / "keys.json", "serve", "a note")
    found["keys"] = Target((folder / "keys.json").read_bytes(), _put("keys.json"), read_keys)
    RidgeRanker().fit(_plain(lists)).save(folder / "ridge")
    SlateModel.create(lists, NetworkConfig(hidden=4)).save(folder / "network")
    features = (folder / "network" / "features.json").read_bytes()
    found["features.json"] = Target(features, _put("features.json"), FeatureTransform.load)
    for kind in ("ridge", "network"):
        for name in ("config.json", "features.json"):
            found[f"{kind}, {name}"] = _saved(folder / kind, name)
    return found


def _plain(lists: ItemLists) -> ItemLists:
    return ItemLists(lists.features, [0, 4, 6, 9], lists.labels, item_ids=list("abcdefghi"))


def _inspect(path: Path) -> object:
    lists = read(path)
    return str(summarise(lists)), find_problems(lists), str(lists.roles), lists.item_ids.to_pylist()


def _put(name: str) -> Callable[[Path, bytes], Path]:
    def put(folder: Path, data: bytes) -> Path:
        path = folder / name
        path.write_bytes(data)
        return path

    return put


def _file(seed: bytes, name: str) -> Target:
    return Target(seed, _put(name), _inspect)


def _roles(table: bytes, seed: bytes) -> Target:
    def put(folder: Path, data: bytes) -> Path:
        (folder / "input.columns.toml").write_bytes(data)
        (folder / "input.csv").write_bytes(table)
        return folder / "input.csv"

    return Target(seed, put, _inspect)


def _metadata(file: bytes) -> Target:
    table = pq.read_table(io.BytesIO(file))

    def put(folder: Path, data: bytes) -> Path:
        pq.write_table(table.replace_schema_metadata({b"seq2slate": data}), folder / "input.parquet")
        return folder / "input.parquet"

    return Target(table.schema.metadata[b"seq2slate"], put, _inspect)


def _put_text(folder: Path, data: bytes) -> Path:
    """Write a table of two columns of text, of which one holds the bytes."""
    texts = pa.array([b"a", data], pa.binary()).view(pa.string())
    numbers = pa.array([1, 2])
    name = ("list_id", "item_id", "city")[len(data) % 3]
    table = {"list_id": numbers, "item_id": numbers, "price": numbers, name: texts}
    pq.write_table(pa.table(table), folder / "input.parquet")
    return folder / "input.parquet"


def _saved(folder: Path, name: str) -> Target:
    def put(_: Path, data: bytes) -> Path:
        for one, content in kept.items():
            (folder / one).write_bytes(content)
        (folder / name).write_bytes(data)
        return folder

    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    return Target(kept[name], put, load)


# Workers


def work(first: int, last: int) -> Iterator[dict[str, Any]]:
    """Read the files from `first` to `last`; yield the number of each before it is read, and how it was read after."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = targets(folder)
        for number in range(first, last):
            if is_request(number):
                continue
            target = _target_of(number, found)
            yield {"number": number, "target": target}
            yield {"outcome": _outcome(found[target], number, folder), "megabytes": peak_memory()}


def _target_of(number: int, found: dict[str, Target]) -> str:
    return list(found)[number % len(found)]


def _outcome(target: Target, number: int, folder: Path) -> str:
    """Return `read`, `refused`, or why the input fails."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return _read(target, target.put(Path(place), mutated(target.seed, random.Random(number))))


def _read(target: Target, path: Path) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", DataWarning)
            target.read(path)
    except Seq2SlateError as error:
        return "refused" if path.stem in str(error) else f"the message does not name the file: {error}"
    except (Exception, RecursionError):
        return traceback.format_exc(limit=-6)
    return "read"


def run(n_inputs: int, first: int = 0) -> Outcome:
    """Try so many inputs, and return how they were taken: files in workers, one after the other, then requests."""
    outcome, number = Outcome(), first
    while number < first + n_inputs:
        number = _supervise(number, min(first + n_inputs, number + _PER_WORKER), outcome)
    mutate_requests.run([number for number in range(first, first + n_inputs) if is_request(number)], outcome)
    return outcome


def _supervise(first: int, last: int, outcome: Outcome) -> int:
    """Run a worker to its end, or to an input that ends it; return the number of the next input."""
    command = [*COMMAND, str(first), str(last)]
    environment = os.environ | {"SEQ2SLATE_NATIVE": "0", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        lines: queue.Queue[str] = queue.Queue()
        forwarder = threading.Thread(target=_forward, args=(process, lines), daemon=True)
        forwarder.start()
        now: dict[str, Any] = {"number": first, "target": "start"}
        peak, why = 0.0, None
        try:
            while line := lines.get(timeout=SECONDS if peak else START_SECONDS):
                said = json.loads(line)
                if "number" in said:
                    now = said
                else:
                    peak = said["megabytes"]
                    outcome.count(said["outcome"], now)
        except queue.Empty:
            why = f"took longer than {SECONDS:g} seconds"
            process.kill()
        code = process.wait()
        forwarder.join()
        errors.seek(0)
        if code and not why:
            why = f"ended the worker with code {code}: {errors.read()[-1000:]}"
    outcome.megabytes = max(outcome.megabytes, peak)
    if peak > MEGABYTES:
        outcome.failures.append(now | {"why": f"the worker took {peak:.0f} MB up to here"})
    if why:
        outcome.failures.append(now | {"why": why})
        return int(now["number"]) + 1
    return last


def _forward(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    with process.stdout as stream:
        for line in stream:
            lines.put(line)
    lines.put("")


# The command


def _show(number: int) -> None:
    if is_request(number):
        mutate_requests.show(number)
        return
    with tempfile.TemporaryDirectory() as name:
        found = targets(Path(name))
        target = found[_target_of(number, found)]
        print(_target_of(number, found), mutated(target.seed, random.Random(number)), sep="\n")
        print(_outcome(target, number, Path(name)))


def main() -> None:
    """Try mutated inputs and print a table; the exit code is 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="one input, and how it is taken")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        for line in work(*options.work):
            print(json.dumps(line), flush=True)
        return
    if options.show is not None:
        _show(options.show)
        return
    outcome = run(options.inputs, options.first)
    failed = Counter(failure["target"] for failure in outcome.failures)
    rows = [
        {"input": name, "read": outcome.read[name], "refused": outcome.refused[name], "failed": failed[name]}
        for name in sorted({*outcome.read, *outcome.refused, *failed})
    ]
    print_table(f"{options.inputs:,} mutated inputs, at most {outcome.megabytes:.0f} MB", rows)
    distinct = {failure["why"].strip().split("\n")[-1]: failure for failure in reversed(outcome.failures)}
    for failure in [*distinct.values()][:40]:
        print(f"\ninput {failure['number']}, {failure['target']}: {failure['why']}")
    sys.exit(1 if outcome.failures else 0)


if __name__ == "__main__":
    main()
