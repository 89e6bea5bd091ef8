"""The process that `benchmarks.walk` traces: it runs the command line of whichever seq2slate it imports.

It is run by its path, `python -P benchmarks/tracer.py FOLDER`, and writes FOLDER/walks.json. It knows nothing of the
package but two commands, so that it can trace any version of it.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import uvicorn

import seq2slate
from seq2slate.cli import main

N_LISTS, N_ITEMS, N_FEATURES = 40, 6, 4
PACKAGE = os.path.dirname(seq2slate.__file__) + os.sep
COMMAND_LINE = os.path.join(PACKAGE, "cli")
Calls = list[tuple[str, str]]
"""Module and function, in the order of time."""
RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Tracer:
    """Records the calls of functions of the package, in all threads that start after `install`."""

    def __init__(self) -> None:
        self.calls: Calls = []
        self._resumable: set[FrameType] = set()  # held here, so that no other frame can take the place of one

    def install(self) -> None:
        """Trace this thread, and those that it starts."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or code.co_filename.startswith(COMMAND_LINE):
            return
        if code.co_flags & RESUMABLE:
            if frame in self._resumable:
                return
            self._resumable.add(frame)
        module = code.co_filename.removeprefix(PACKAGE).removesuffix(".py").replace(os.sep, ".")
        self.calls.append((module, code.co_qualname))


def run_command(*arguments: object) -> None:
    """Run a command of seq2slate in this process."""
    sys.argv = ["seq2slate", *map(str, arguments)]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def write_click_log(path: Path) -> None:
    """Write a small click log, one row an item."""
    rng = np.random.default_rng(0)
    n = N_LISTS * N_ITEMS
    features = {f"f{column}": rng.normal(size=n) for column in range(N_FEATURES)}
    ids = {
        "list_id": np.repeat(np.arange(N_LISTS), N_ITEMS).astype(str),
        "item_id": np.tile(np.arange(N_ITEMS), N_LISTS).astype(str),
    }
    pq.write_table(pa.table({**ids, "label": (rng.random(n) < 0.4).astype(np.float32), **features}), path)


async def post(app: Any, path: str, message: object) -> Any:
    """Return what an ASGI application answers to a POST."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        return (await client.post(path, json=message)).raise_for_status().json()


def trace_training(tracer: Tracer, log: Path, models: Path) -> Calls:
    """Train on a click log twice; return the calls of the second run."""
    for run in ("first", "second"):
        tracer.calls.clear()
        run_command("train", log, "--out", models / run, "--epochs", 1)
    return list(tracer.calls)


def trace_request(tracer: Tracer, model: Path, log: Path) -> Calls:
    """Serve a model, and send it two requests in the place of a server that listens; return the calls of the second."""
    items = [{"id": str(item), "features": [float(item)] * N_FEATURES} for item in range(N_ITEMS)]
    calls: Calls = []

    async def serve(server: uvicorn.Server, _: object) -> None:
        server.started = True
        for _ in range(2):
            tracer.calls.clear()
            answer = await post(server.config.app, "/v1/rerank", {"unit": "u", "items": items})
        calls.extend(tracer.calls)
        if answer["slate_id"] is None or answer["fallback"]:
            raise AssertionError(f"the slate must be the model's, and logged: {answer}")

    uvicorn.Server.serve = serve  # type: ignore[assignment, method-assign]
    run_command("serve", model, "--log", log, "--port", 0)
    return calls


def trace(folder: Path) -> None:
    """Trace both walks, and write them to `walks.json` in the folder."""
    write_click_log(folder / "clicks.parquet")
    tracer = Tracer()
    tracer.install()
    training = trace_training(tracer, folder / "clicks.parquet", folder)
    request = trace_request(tracer, folder / "second", folder / "log.db")
    sys.setprofile(None)
    (folder / "walks.json").write_text(json.dumps({"training": training, "request": request}))


if __name__ == "__main__":
    trace(Path(sys.argv[1]))
