"""Coverage-guided fuzzing (Atheris) of what decodes foreign bytes: requests, clicks, LETOR and JSON lines.

    python -m benchmarks.fuzz                         # 30 seconds each
    python -m benchmarks.fuzz letor --seconds 3600 --corpus fuzz/letor

Inputs that reach new code are kept and mutated on. An input fails if it raises anything but the error that its sender
is shown (a 4xx status, or a user error that names the file), takes longer than 10 seconds or more than 2 GB. `--corpus`
keeps the inputs for the next run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.tables import print_table

_READ = "seq2slate.data"
_MODULES = {
    "rerank": ["seq2slate.serving.messages"],
    "click": ["seq2slate.serving.messages"],
    "letor": [f"{_READ}.letor", f"{_READ}.text", f"{_READ}.lists"],
    "jsonl": [f"{_READ}.{name}" for name in ("jsonl", "text", "plan", "tables", "assembly", "columns", "lists")],
}
"""The modules whose branches count, by target."""
TARGETS = tuple(_MODULES)
_SEEDS: dict[str, list[bytes]] = {
    "rerank": [
        b'{"unit": "u", "item_ids": ["a", "b"], "features": [[1, 2.5], [null, NaN]], "k": 1, "explain": true}',
        b'{"unit": "u", "items": [{"id": "a", "features": [1e999], "categorical": {"c": "\\u00e9"}, "title": "t"}]}',
        b'{"unit": "u", "item_ids": ["a"], "categorical": {"c": ["x"]}, "titles": [null], "context": {"h": 1}}',
    ],
    "click": [b'{"slate_id": "s", "item": "a"}', b'{"slate_id": "\\ud83d\\ude00", "item": "\\u0000"}'],
    "letor": [
        b"2 qid:1 1:0.5 3:-1e3 # docid = a rest\n0 qid:1 2:nan # docid = b\n1 qid:x 1:1.79769313486232e+308\n",
        b"\xef\xbb\xbf0 qid:7 1:1\r\n\n1 qid:7 2:2 #\n",
    ],
    "jsonl": [
        b'{"list_id": "a", "item_id": ["x", "y"], "price": [1.5, 2], "label": [0, 1], "brand": ["p", null]}\n',
        b'{"list_id": 1, "item_id": [1, 2], "features": [[1, 2], [3, null]], "feature_names": ["a", "b"], "hour": 3}\n'
        b'{"list_id": 2, "item_id": [], "features": [], "feature_names": ["a", "b"], "hour": 4}\n',
        b'{"list_id": "a", "item_id": ["x"], "position": [2], "shown_slot": [0], "label": [1]}',
    ],
}


class Fuzzed(NamedTuple):
    """What came out for one target."""

    target: str
    inputs: int
    failure: str
    """Empty if there is none."""


# In the process that is fuzzed


def _target(name: str, place: Path) -> Callable[[bytes], None]:
    """Return a function that takes any bytes, and raises only if that is a finding."""
    from starlette.exceptions import HTTPException

    from seq2slate.errors import Seq2SlateError
    from seq2slate.serving.messages import read_click, read_rerank

    def send(data: bytes) -> None:
        try:
            read_click(data) if name == "click" else read_rerank(data, max_items=1000)
        except HTTPException as error:
            if not 400 <= error.status_code < 500:
                raise

    if name in ("rerank", "click"):
        return send

    from seq2slate.data.files import read

    path = place / f"input.{'txt' if name == 'letor' else name}"

    def read_file(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read(path)
        except Seq2SlateError as error:
            if str(path) not in str(error):
                raise

    return read_file


def _work(name: str, seconds: int, corpus: Path, place: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=_MODULES[name], enable_loader_override=False):
        take = _target(name, place)
        for seed in _SEEDS[name]:
            take(seed)
    warnings.simplefilter("ignore")
    options = [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=4096", "-seed=1"]
    options += [f"-artifact_prefix={place}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], take)
    atheris.Fuzz()


# In the process that reports


def fuzz(name: str, seconds: int, corpus: Path | None = None) -> Fuzzed:
    """Fuzz one target for some seconds."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="seq2slate-fuzz-", dir=memory) as folder:
        kept = corpus or Path(folder) / "corpus"
        kept.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(_SEEDS[name]):
            (kept / f"seed-{number}").write_bytes(seed)
        command = [sys.executable, "-m", "benchmarks.fuzz", "--work", folder, "--seconds", str(seconds)]
        done = subprocess.run([*command, "--corpus", str(kept), name], capture_output=True, text=True, errors="replace")
        inputs = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
        found = [path for path in Path(folder).iterdir() if re.match(r"(crash|timeout|oom|leak)-", path.name)]
        failure = "".join(f"\n{path.read_bytes()!r}" for path in found)
        if done.returncode or failure:
            failure += f"\n{done.stdout[-3000:]}\n{done.stderr[-1500:]}"
        return Fuzzed(name, int(inputs[1]) if inputs else 0, failure)


def main() -> None:
    """Fuzz and print a table; the exit code is 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="*", choices=[*TARGETS, []], help="all if none is named")
    parser.add_argument("--seconds", type=int, default=30, help="for each target")
    parser.add_argument("--corpus", type=Path, help="a folder that keeps the inputs; for one target")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        _work(options.target[0], options.seconds, options.corpus, options.work)
        return
    results = [fuzz(name, options.seconds, options.corpus) for name in options.target or TARGETS]
    rows = [{"target": one.target, "inputs": one.inputs, "failed": int(bool(one.failure))} for one in results]
    print_table(f"{sum(one.inputs for one in results):,} inputs", rows)
    for one in results:
        print(one.failure, end="")
    sys.exit(any(one.failure for one in results))


if __name__ == "__main__":
    main()
