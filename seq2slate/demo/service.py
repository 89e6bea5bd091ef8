"""A real service for the demo: `seq2slate serve` in a process of its own, on a free port of this machine.

It ends with the demo, however that ends.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from types import FrameType

from seq2slate.demo.folder import Folder
from seq2slate.errors import UsageError
from seq2slate.serving.client import Client

_SECONDS_TO_STOP = 15
_DEADLINE_MS = 5000  # on a busy machine, a fallback now and then would make two demos of one seed differ
_ANNOUNCEMENT = "serving on "


@contextmanager
def running_service(folder: Folder, *, max_items: int) -> Iterator[str]:
    """Serve the experiment of the folder, with its log; yield the address, and stop the service at the end."""
    command = [sys.executable, "-m", "seq2slate.cli", "serve", "--experiment", str(folder.experiment)]
    command += ["--log", str(folder.log), "--port", "0", "--max-items", str(max_items)]
    command += ["--deadline-ms", str(_DEADLINE_MS)]
    with _termination_as_interrupt(), folder.errors.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield _address(process, folder)
        finally:
            _stop(process)


def reload(url: str) -> None:
    """Let the service take up what is now in the experiment's file."""
    with closing(Client(url)) as client:
        client.post("/v1/admin/reload", b"{}", about="the experiment")


def _address(process: subprocess.Popen[str], folder: Folder) -> str:
    assert process.stdout is not None, "it is a pipe"
    line = process.stdout.readline()
    if not line.startswith(_ANNOUNCEMENT):
        said = folder.errors.read_text(encoding="utf-8").strip().splitlines()
        raise UsageError(f"the service did not start: {said[-1] if said else 'it said nothing'}")
    return line.removeprefix(_ANNOUNCEMENT).strip()


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that the service does not outlive a demo that `timeout` or a supervisor ends."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        with suppress(TypeError):  # a handler that was not set from Python cannot be put back
            signal.signal(signal.SIGTERM, before)
