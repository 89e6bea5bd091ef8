"""Real services in processes of their own, for the tests that talk HTTP to them."""

import asyncio
import signal
import subprocess
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np
from starlette.types import ASGIApp

from seq2slate.config import NetworkConfig
from seq2slate.data.lists import ItemLists
from seq2slate.model.slate_model import SlateModel
from tests.reference_network import randomise

ROOT = Path(__file__).resolve().parents[1]
N_FEATURES = 4


class Service:
    """`seq2slate serve` with some arguments, on a free port; several start side by side, `url` waits for one."""

    def __init__(self, *arguments: object, folder: Path = ROOT) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "seq2slate.cli", "serve", *map(str, arguments), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=folder,
        )

    @cached_property
    def url(self) -> str:
        """The address, as soon as requests are taken."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("serving on http://"), self.errors()
        return line.split()[-1]

    @cached_property
    def client(self) -> httpx.Client:
        """A client of this service."""
        return httpx.Client(base_url=self.url, timeout=30)

    def errors(self) -> str:
        """What the process has written to stderr."""
        self._errors.seek(0)
        return self._errors.read()

    def stop(self) -> int:
        """Stop it as an operator would, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if "client" in self.__dict__:
            self.client.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()


def get(app: ASGIApp, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """Return the response of an application in this process."""

    async def respond() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(respond())


def save_model(folder: Path, seed: int, hidden: int = 8) -> SlateModel:
    """Write the folder of a small model whose weights are large enough that slates differ from the base order."""
    features = np.random.default_rng(0).normal(size=(200, N_FEATURES))
    model = SlateModel.create(ItemLists(features, np.arange(0, 201, 10)), NetworkConfig(hidden=hidden))
    randomise(model.network, seed)
    model.save(folder)
    return model


def request(unit: str, seed: int = 0, n: int = 6, **more: Any) -> dict[str, Any]:
    """Return a request of n items `a`, `b`, … with features that follow from the seed."""
    rows = np.random.default_rng(seed).normal(size=(n, N_FEATURES)).round(3).tolist()
    return {"unit": unit, "items": [{"id": chr(97 + i), "features": row} for i, row in enumerate(rows)], **more}
