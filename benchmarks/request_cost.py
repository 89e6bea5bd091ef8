"""What a request costs for its size: CPU, memory and bytes in the log, for bodies of every shape and for attacks.

The real application runs in this process, with a SQLite log on disk; only the socket is left out. The arms show the
base order, so that the cost is that of the body and not of the network. *read* is a deployment whose model reads two
columns of the items and two of the list; *all* has no model, so that everything is logged.

- CPU: `time.process_time`, the writer's thread included, the best of several runs;
- memory: the peak that tracemalloc sees, above what is held before;
- log: growth of the database, write-ahead log folded in.

The bounds (`Cost.excess`) are 50 ms of CPU a megabyte and 5 ms; 10 times the size in memory and 20 MB; and 2 times the
size in the log and 0.4 MB. `tests/test_request_cost.py` checks them.

`python -m benchmarks.request_cost` prints both tables.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import Rows, print_table
from seq2slate.config import NetworkConfig
from seq2slate.data.lists import ItemLists
from seq2slate.experiments.assignment import Arm, Experiment
from seq2slate.log.impression_log import open_log
from seq2slate.model.backends.backend import choose_backend
from seq2slate.model.slate_model import SlateModel
from seq2slate.serving.app import create_app
from seq2slate.serving.deployment import Deployment, ServedModel
from seq2slate.serving.messages import MAX_ABSENT
from seq2slate.serving.monitoring import Monitor
from seq2slate.serving.service import RerankService, Timeouts

Body = dict[str, Any]
LARGEST = 4 << 20
"""Bytes of a body that the service accepts."""
_CELLS = 240_000  # that leave room for ids and fields within the limit of values


@dataclass(frozen=True)
class Cost:
    """What one request took."""

    status: int
    error: str
    size: int
    """Of the body, in bytes."""
    cpu_seconds: float
    memory: int
    """Peak, in bytes."""
    logged: int
    """Bytes."""

    def excess(self, *, cpu_factor: float = 1.0) -> str:
        """Say what is more than it may be; empty if nothing is."""
        megabytes = self.size / 1e6
        bounds = {
            "CPU seconds": (self.cpu_seconds, cpu_factor * (0.050 * megabytes + 0.005)),
            "MB of memory": (self.memory / 1e6, 10 * megabytes + 20),
            "MB of log": (self.logged / 1e6, 2 * megabytes + 0.4),
        }
        return ", ".join(f"{value:.3g} {what}" for what, (value, most) in bounds.items() if value > most)


# Bodies


def numbers(rng: random.Random, size: int) -> Body:
    """Features with many digits."""
    n, width = _shape(rng, size, 20)
    return _columns(n, features=[[rng.random() for _ in range(width)] for _ in range(n)])


def digits(rng: random.Random, size: int) -> Body:
    """Features with one digit: the most numbers in a body."""
    n, width = _shape(rng, min(size, 2 * _CELLS), 2)
    return _columns(n, features=[[rng.randrange(10) for _ in range(width)] for _ in range(n)])


def missing_numbers(rng: random.Random, size: int) -> Body:
    """Features of which most are null."""
    n, width = _shape(rng, min(size, 5 * _CELLS), 5)
    return _columns(n, features=[[None if rng.random() < 0.9 else 1 for _ in range(width)] for _ in range(n)])


def categories(rng: random.Random, size: int) -> Body:
    """Short texts, by column."""
    n, width = _shape(rng, min(size, 5 * _CELLS), 5)
    return _columns(n, categorical={f"c{one}": [str(rng.randrange(99)) for _ in range(n)] for one in range(width)})


def named_cells(rng: random.Random, size: int) -> Body:
    """Short texts, by name in each of the items."""
    n, width = _shape(rng, min(size, 12 * _CELLS), 12)
    return {
        "unit": "u",
        "items": [{"id": str(i), "categorical": {f"c{j}": "x" for j in range(width)}} for i in range(n)],
    }


def sparse_cells(rng: random.Random, size: int) -> Body:
    """Names that few of the items have."""
    n = rng.randint(1, 1000)
    names = [f"c{one}" for one in range(min(rng.randint(1, 200), MAX_ABSENT // n))]
    return {"unit": "u", "items": [{"id": str(i), "categorical": {rng.choice(names): "x"}} for i in range(n)]}


def context(rng: random.Random, size: int) -> Body:
    """Columns of the list, with names of their own."""
    values = {f"name {one}": rng.choice([1, "text", None, 0.1234567]) for one in range(rng.randint(1, 1000))}
    return {**_columns(rng.randint(1, 1000)), "context": values}


def titles(rng: random.Random, size: int) -> Body:
    """Titles, some much too long."""
    n, width = _shape(rng, size // 6, 1)
    return _columns(n, titles=["é" * rng.randint(0, width) for _ in range(n)])


def long_texts(rng: random.Random, size: int) -> Body:
    """Categories of thousands of characters, some beyond the basic plane, with commas, quotes and brackets."""
    n, width = _shape(rng, size // 6, 1)
    alphabet = rng.choice(["ab", 'a"\\', "a,[", "aé", "a😀"])
    return _columns(n, categorical={"c": ["".join(rng.choices(alphabet, k=width)) for _ in range(n)]})


def ids(rng: random.Random, size: int) -> Body:
    """Ids of every length."""
    length = rng.randint(0, 500)
    return {"unit": "u", "item_ids": [f"{one}{'x' * length}" for one in range(rng.randint(1, 1000))]}


SHAPES: dict[str, Callable[[random.Random, int], Body]] = {
    shape.__name__.replace("_", " "): shape
    for shape in (
        *(numbers, digits, missing_numbers, categories, named_cells, sparse_cells, context, titles, long_texts, ids),
    )
}


def random_body(shape: str, seed: int, largest: int = LARGEST) -> bytes:
    """Return a body of a shape, of any size up to the largest."""
    rng = random.Random(f"{shape} {seed}")
    size = int(largest * rng.random() ** 2 * 0.9) + 1000
    return json.dumps(SHAPES[shape](rng, size), ensure_ascii=rng.random() < 0.3, separators=(",", ":")).encode()


def _shape(rng: random.Random, size: int, cell: int) -> tuple[int, int]:
    """Return numbers of items and columns whose cells fill about so many bytes."""
    n = rng.randint(max(1, size // cell // 4000), 1000)
    return n, max(1, min(size // cell // n, 4000 if cell > 1 else size))


def _columns(n: int, **columns: Any) -> Body:
    return {"unit": "u", "item_ids": [str(one) for one in range(n)], **columns}


def _own_names() -> Body:
    items = [{"id": str(i), "categorical": {f"c{50 * i + j}": "x" for j in range(50)}} for i in range(1000)]
    return {"unit": "u", "items": items}


ATTACKS: dict[str, Callable[[], bytes]] = {
    "1,000 items with 50 names of their own each": lambda: json.dumps(_own_names()).encode(),
    "200,000 context names": lambda: json.dumps(
        {**_columns(2), "context": {f"c{i}": 1 for i in range(200_000)}}
    ).encode(),
    "an item with 2,000,000 features": lambda: (
        b'{"unit":"u","item_ids":["a"],"features":[[' + b"1," * 1_999_999 + b"1]]}"
    ),
    "1,300,000 empty rows": lambda: b'{"unit":"u","item_ids":["a"],"features":[' + b"[]," * 1_300_000 + b"[]]}",
    "500,000 items": lambda: b'{"unit":"u","item_ids":[' + b'"aaaa",' * 500_000 + b'"a"]}',
    "an unknown field with 1,300,000 lists": lambda: b'{"unit":"u","x":[' + b"[]," * 1_300_000 + b"[]]}",
    "200,000 nested lists": lambda: (
        b'{"unit":"u","item_ids":["a"],"features":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    ),
    "200,000 nested objects": lambda: (
        b'{"unit":"u","item_ids":["a"],"context":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"}"
    ),
    "a number of 4,000,000 digits": lambda: b'{"unit":"u","item_ids":["a"],"features":[[0.' + b"1" * 4_000_000 + b"]]}",
    "a whole number of 4,000,000 digits": lambda: (
        b'{"unit":"u","item_ids":["a"],"features":[[' + b"1" * 4_000_000 + b"]]}"
    ),
}


# Measuring


class Costs:
    """An application to send bodies to."""

    def __init__(self, folder: Path, *, has_model: bool) -> None:
        self._folder, self._deployment = folder, _deployment(has_model)

    def of(self, body: bytes, repeats: int = 1) -> Cost:
        """Return what a body costs."""
        return asyncio.run(self._measure(body, repeats))

    async def _measure(self, body: bytes, repeats: int) -> Cost:
        seconds = []
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            log = Path(folder, "log.db")
            with open_log(log) as store:
                monitor = Monitor()
                service = RerankService(lambda: self._deployment, store, monitor, Timeouts(log_deadline_ms=60_000))
                app = create_app(service, monitor)
                await _post(app, b'{"unit":"u","item_ids":["a"],"features":[[1,2]]}')
                store.check_writable().result()
                for _ in range(repeats):
                    started = time.process_time()
                    status, answer = await _post(app, body)
                    seconds.append(time.process_time() - started)
                tracemalloc.start()
                before, _ = tracemalloc.get_traced_memory()
                await _post(app, body)
                memory = tracemalloc.get_traced_memory()[1] - before
                tracemalloc.stop()
            grown = log.stat().st_size - self._empty
        logged = grown // (repeats + 1)
        return Cost(status, answer.get("error", ""), len(body), min(seconds), memory, max(0, logged))

    @property
    def _empty(self) -> int:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            open_log(Path(folder, "log.db")).close()
            return Path(folder, "log.db").stat().st_size


def _deployment(has_model: bool) -> Deployment:
    experiment = Experiment("e", (Arm("control", model="base"), Arm("other", model="base")))
    if not has_model:
        return Deployment(experiment, {})
    lists = ItemLists(
        np.random.default_rng(0).normal(size=(20, 2)),
        [0, 10, 20],
        categorical={"c0": ["x", "y"] * 10, "c1": ["x", "y"] * 10},
        context={"name 0": np.array([1.0, 2.0]), "name 1": np.array([1.0, 2.0])},
    )
    model = ServedModel(choose_backend(SlateModel.create(lists, NetworkConfig(hidden=4))), "f")
    return Deployment(experiment, {"unused": model})


async def _post(app: Any, body: bytes) -> tuple[int, dict[str, Any]]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    await app({"type": "http", "method": "POST", "path": "/v1/rerank", "headers": headers}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


def shapes(bodies: int = 20) -> Rows:
    """Return the highest costs of the bodies of each shape, and those of all columns read and of few."""
    rows: Rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("all", "read"):
            costs = Costs(Path(folder), has_model=kind == "read")
            for shape in SHAPES:
                found = [costs.of(random_body(shape, seed), repeats=3) for seed in range(bodies)]
                rows.append(_row(f"{shape}, {kind}", found))
    return rows


def _row(name: str, found: list[Cost]) -> dict[str, float | str]:
    large = [cost for cost in found if cost.size >= 100_000] or found
    return {
        "bodies": name,
        "largest, MB": max(cost.size for cost in found) / 1e6,
        "accepted": str(sum(cost.status == 200 for cost in found)),
        "CPU, ms a MB": max(cost.cpu_seconds * 1e9 / cost.size for cost in large),
        "memory / size": max(cost.memory / cost.size for cost in large),
        "log / size": max(cost.logged / cost.size for cost in large),
        "most CPU, ms": max(cost.cpu_seconds for cost in found) * 1e3,
        "beyond a bound": str(sum(bool(cost.excess()) for cost in found)),
    }


def attacks() -> Rows:
    """Return what each attack costs a deployment without models."""
    with tempfile.TemporaryDirectory() as folder:
        costs = Costs(Path(folder), has_model=False)
        return [_attack_row(name, costs.of(body())) for name, body in ATTACKS.items()]


def _attack_row(name: str, cost: Cost) -> dict[str, float | str]:
    return {
        "attack": name,
        "MB": cost.size / 1e6,
        "status": str(cost.status),
        "CPU, ms": cost.cpu_seconds * 1e3,
        "memory, MB": cost.memory / 1e6,
        "log, MB": cost.logged / 1e6,
        "error": cost.error[:100],
    }


def main() -> None:
    """Print the costs of all shapes, and of attacks."""
    print_table("Attacks", attacks())
    print_table("Bodies of every shape", shapes(int(sys.argv[1]) if sys.argv[1:] else 20))


if __name__ == "__main__":
    main()
