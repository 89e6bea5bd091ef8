"""The closed loop: the base order goes live, a model is trained on its log, and both meet in an experiment.

The service is `seq2slate serve` in a process of its own, on a free port of this machine. It ends with the demo, in
whatever way that ends.

Live, the page shows whole lists, so that the log has a label for every item: a page of ten slots would leave the others
without one. In the experiment the page has ten slots in both arms, and the order decides what is seen at all. Its lists
and its visitors are new.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from seq2slate.atomic import atomic_path
from seq2slate.data.files import read
from seq2slate.data.lists import ItemLists
from seq2slate.demo.folder import DemoFolder
from seq2slate.errors import UsageError
from seq2slate.experiments.analysis import Analysis, analyse
from seq2slate.experiments.counts import Counts
from seq2slate.log.export import export
from seq2slate.log.impression_log import open_log
from seq2slate.serving.client import Client
from seq2slate.serving.traffic import Traffic, send_traffic
from seq2slate.simulation.click_models import ClickModel

BASE, MODEL = "base", "seq2slate"
"""The arms."""
LIVE, TRIAL = "live", "trial"
"""The experiments; the first has one arm."""
SLOTS = 10
"""The slots of a page in the trial."""
_ARMS = {
    BASE: f'[[arms]]\nname = "{BASE}"\nmodel = "base"    # the order as it comes\n',
    MODEL: f'[[arms]]\nname = "{MODEL}"\nmodel = "model"   # the folder beside this file\n',
}
_SECONDS_TO_STOP = 15
_DEADLINE_MS = 5000  # on a busy machine, a fallback now and then would make two demos of one seed differ
_ANNOUNCEMENT = "serving on "


@dataclass(frozen=True)
class ClosedLoop:
    """The traffic of both rounds, as the visitors counted it, and the analysis of the second from the log."""

    live: Traffic
    trial: Traffic
    analysis: Analysis


# The service


@contextmanager
def running_service(folder: DemoFolder, *, max_items: int) -> Iterator[str]:
    """Serve the base order and log to the folder; yield the address, and stop the service at the end."""
    _write_experiment(folder, LIVE, BASE)
    command = [sys.executable, "-m", "seq2slate.cli", "serve", "--experiment", str(folder.experiment)]
    command += ["--log", str(folder.log), "--port", "0", "--max-items", str(max_items)]
    command += ["--deadline-ms", str(_DEADLINE_MS)]
    with (
        _termination_as_interrupt(),
        folder.errors.open("w", encoding="utf-8") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield _address(process, folder)
        finally:
            _stop(process)


def start_trial(folder: DemoFolder, url: str) -> None:
    """Assign half of the visitors to the new model from now on; the service reloads without a pause."""
    _write_experiment(folder, TRIAL, BASE, MODEL)
    with closing(Client(url)) as client:
        client.post("/v1/admin/reload", b"{}", about="the experiment")


def _write_experiment(folder: DemoFolder, name: str, *arms: str) -> None:
    with atomic_path(folder.experiment) as partial:
        partial.write_text("\n".join([f'name = "{name}"\n', *(_ARMS[arm] for arm in arms)]), encoding="utf-8")


def _address(process: subprocess.Popen[str], folder: DemoFolder) -> str:
    assert process.stdout is not None, "standard output of the service is a pipe"
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


# Traffic, and its log


def visit_live(folder: DemoFolder, url: str, lists: ItemLists, user: ClickModel, seed: int) -> Traffic:
    """Show every list once, whole and in base order, to one visitor after the other.

    The log keeps the order in which slates come, and training depends on the order of its lists: with several visitors
    at a time, the same seed would not give the same model again.
    """
    traffic = send_traffic(url, lists, user, requests=len(lists), concurrency=1, k=int(lists.lengths.max()), seed=seed)
    return _note_visitors(folder, LIVE, traffic)


def visit_trial(folder: DemoFolder, url: str, lists: ItemLists, user: ClickModel, seed: int) -> Traffic:
    """Show every list once, on a page of ten slots."""
    traffic = send_traffic(url, lists, user, requests=len(lists), concurrency=8, k=SLOTS, seed=seed)
    return _note_visitors(folder, TRIAL, traffic)


def _note_visitors(folder: DemoFolder, experiment: str, traffic: Traffic) -> Traffic:
    counted = json.loads(folder.visitors.read_text(encoding="utf-8")) if folder.visitors.exists() else {}
    counted[experiment] = json.loads(traffic.to_json())
    folder.visitors.write_text(json.dumps(counted, indent=2), encoding="utf-8")
    return traffic


def read_log(folder: DemoFolder) -> ItemLists:
    """Export the log, and read it back as training lists."""
    with open_log(folder.log, create=False) as store:
        export(store, folder.shown)
    return read(folder.shown)


def read_counts(folder: DemoFolder, experiment: str) -> Counts:
    """Return the running counts of the log."""
    with open_log(folder.log, create=False) as store:
        return store.counts(experiment)


def analyse_trial(folder: DemoFolder) -> Analysis:
    """Compare the arms, from nothing but the log."""
    return analyse(read_counts(folder, TRIAL), control=BASE, weights={BASE: 1, MODEL: 1})


# In words


def agreement(traffic: Traffic, counts: Counts) -> str:
    """Say whether the log has what the visitors counted themselves."""
    seen = {arm: (one.slates, one.clicks) for arm, one in traffic.arms.items()}
    logged = {arm: (one.impressions, one.clicks) for arm, one in counts.arms.items()}
    slates, clicks = (sum(numbers[which] for numbers in logged.values()) for which in (0, 1))
    said = f"{slates:,} slates and {clicks:,} clicks"
    if seen == logged:
        return f"The log has {said}: exactly what the visitors counted themselves."
    return f"The log has {said}, which is not what the visitors counted: {traffic.uncertain:,} answers were lost."


def verdict(analysis: Analysis) -> str:
    """Say in a sentence which arm is better."""
    arms = {arm.arm: arm for arm in analysis.arms}
    difference = arms[MODEL].against_control if MODEL in arms else None
    if difference is None or difference.always_valid is None:
        return "Too few visitors came to compare the arms: take more lists."
    if analysis.sample_ratio.mismatch:
        return "Sample ratio mismatch: the arms did not get the visitors that their weights promise."
    interval = difference.always_valid
    about = f"always-valid interval {100 * interval.low:+.1f} to {100 * interval.high:+.1f} clicks in 100 slates"
    change = f"{abs(difference.lift):.1%} {'more' if difference.value > 0 else 'fewer'} clicks than the base order"
    if interval.low > 0 or interval.high < 0:
        return f"The model that learned from the base order's log gets {change} ({about})."
    return f"The two are not told apart: the model gets {change}, but the interval includes 0 ({about})."


def next_commands(folder: DemoFolder) -> list[str]:
    """Return the commands that go on where the demo ended."""
    return [
        f"seq2slate serve --experiment {folder.experiment} --log {folder.log}",
        f"seq2slate traffic http://127.0.0.1:8080 {folder.new_lists} --seed 7",
        f"seq2slate experiment {folder.log}",
    ]
