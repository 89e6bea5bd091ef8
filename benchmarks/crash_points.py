"""Crash points: kill or fail at every call that changes a file, in turn, and look at what is left.

    python -m benchmarks.crash_points                       # every call of every scenario
    python -m benchmarks.crash_points --most 20 log keys    # at most 20 calls of each, evenly spread

A small library is preloaded (`crash_shim.c`). It counts the calls of write, fsync, truncate, rename, link, mkdir and
unlink below the folder of a scenario: first all of them, then once for each call and each mode. `kill` sends SIGKILL
before the call, `tear` after half of a write, `fail` lets this call fail (no space, or an I/O error for fsync and
unlink), and `full` this call and all that follow. Then another process checks that everything acknowledged is there,
that every file is the old one or the new one, and that the next run succeeds and leaves nothing behind.

A kill leaves what the operating system has. What a power failure leaves is not simulated.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.tables import print_table

if TYPE_CHECKING:
    from benchmarks.crash_scenarios import Scenario

MODES = ("kill", "tear", "fail", "full")
COMMAND = (sys.executable, "-m", "benchmarks.crash_points", "--work")
_NUMBERS = {"count": 0, "kill": 1, "tear": 2, "fail": 3, "full": 4}  # as in the shim
_SECONDS = 60  # for one process; then it hangs
_SOURCE = Path(__file__).with_name("crash_shim.c")


@dataclass
class Outcome:
    """What came out of a run."""

    calls: dict[str, int] = field(default_factory=dict)
    """Calls that change files, by scenario."""
    tried: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By scenario and mode."""
    interrupted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Those that were killed, or got an error; the others went on without harm."""
    failures: list[dict[str, Any]] = field(default_factory=list)
    """With `scenario`, `mode`, `call` and `why`."""


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    said: list[str]


# In the process that has the library


def work(names: Sequence[str], most: int) -> Iterator[dict[str, Any]]:
    """Try the crash points of some scenarios; yield what came out, one by one."""
    from benchmarks.crash_scenarios import SCENARIOS

    for name in names or SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="seq2slate-crash-", dir=_place()) as place:
            yield from ({"scenario": name, **one} for one in _work_on(SCENARIOS[name], Path(place), most))


def _work_on(scenario: Scenario, place: Path, most: int) -> Iterator[dict[str, Any]]:
    before, folder = place / "before", place / "now"
    before.mkdir()
    _expect_zero(_in_a_child(lambda _: scenario.prepare(before)))
    shutil.copytree(before, folder)
    counted = _in_a_child(lambda say: _armed(scenario.act, folder, say, "count", 0))
    _expect_zero(counted)
    calls = int(counted.said[-1].removeprefix("calls "))
    yield {"calls": calls}
    for mode in MODES:
        for call in _spread(calls, most):
            yield {"mode": mode, "call": call, **_try(scenario, before, folder, mode, call)}


def _place() -> str | None:
    """Return a folder in memory, if there is one: a kill leaves the same there, and fsync takes no time."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _spread(calls: int, most: int) -> list[int]:
    """Return numbers of calls: all, or `most` of them from the first to the last."""
    if calls <= most:
        return list(range(1, calls + 1))
    return sorted({round(1 + number * (calls - 1) / (most - 1)) for number in range(most)})


def _try(scenario: Scenario, before: Path, folder: Path, mode: str, call: int) -> dict[str, Any]:
    shutil.rmtree(folder)
    shutil.copytree(before, folder)
    ended = _in_a_child(lambda say: _armed(scenario.act, folder, say, mode, call))
    is_expected = ended.code in ((-signal.SIGKILL, 0) if mode in ("kill", "tear") else (0, 2))
    if not is_expected:
        return {"why": f"ended with {ended.code}: {' '.join(ended.said)}"}
    said = [line for line in ended.said if not line.startswith(("calls ", "error "))]
    checked = _in_a_child(lambda _: scenario.check(folder, said))
    if checked.code:
        return {"why": f"said {said}, ended with {ended.code}, and then: {' '.join(checked.said)}"}
    return {"interrupted": ended.code != 0}


def _armed(
    act: Callable[[Path, Callable[[str], None]], None], folder: Path, say: Callable[[str], None], mode: str, call: int
) -> None:
    shim = ctypes.CDLL(None)
    shim.shim_disarm.restype = ctypes.c_long
    shim.shim_arm(os.fsencode(folder), _NUMBERS[mode], ctypes.c_long(call))
    try:
        act(folder, say)
    finally:
        say(f"calls {shim.shim_disarm()}")


def _in_a_child(task: Callable[[Callable[[str], None]], None]) -> Ended:
    """Run a task in a process of its own, which inherits all that is imported; code 2 is a user error."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _run_in_child(task, lambda line: _say(writing, line))
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        said = pipe.read().splitlines()
    return Ended(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said)


def _say(pipe: int, line: str) -> None:
    os.write(pipe, line.encode() + b"\n")


def _run_in_child(task: Callable[[Callable[[str], None]], None], say: Callable[[str], None]) -> None:
    from seq2slate.errors import Seq2SlateError

    signal.alarm(_SECONDS)
    code = 1
    try:
        task(say)
        code = 0
    except (OSError, Seq2SlateError) as error:
        say(f"error {error!r}")
        code = 2
    except BaseException:
        say(traceback.format_exc())
    finally:
        os._exit(code)


def _expect_zero(ended: Ended) -> None:
    if ended.code:
        raise RuntimeError(f"without any fault: {ended}")


# In the process that reports


def build_shim(folder: Path) -> Path | None:
    """Compile the library into a folder; return None where there is no C compiler for it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    library = folder / "crash_shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
    return library


def run(names: Sequence[str] = (), most: int = sys.maxsize) -> Outcome | None:
    """Try at most so many calls of each scenario in each mode; return None without a C compiler."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        library = build_shim(Path(folder))
        if library is None:
            return None
        settings = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
        command = [*COMMAND, "--most", str(most), *names]
        with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None, "it is a pipe"
            for line in process.stdout:
                _count(json.loads(line), outcome)
        if process.returncode:
            raise RuntimeError(f"the worker ended with {process.returncode}")
    return outcome


def _count(one: dict[str, Any], outcome: Outcome) -> None:
    if "calls" in one:
        outcome.calls[one["scenario"]] = one["calls"]
        return
    key = one["scenario"], one["mode"]
    outcome.tried[key] += 1
    outcome.interrupted[key] += bool(one.get("interrupted"))
    if "why" in one:
        outcome.failures.append(one)


def main() -> None:
    """Try crash points and print a table; the exit code is 1 if something was lost or left behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="*", help="all if none is named")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="calls of each scenario in each mode")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        warnings.simplefilter("ignore")
        logging.disable()  # that writes fail is what happens here
        for one in work(options.scenario, options.most):
            print(json.dumps(one), flush=True)
        return
    outcome = run(options.scenario, options.most)
    if outcome is None:
        raise SystemExit("crash points need Linux and a C compiler")
    failed = Counter(failure["scenario"] for failure in outcome.failures)
    rows = [
        {"scenario": name, "calls": calls}
        | {mode: outcome.tried[name, mode] for mode in MODES}
        | {"failed": failed[name]}
        for name, calls in outcome.calls.items()
    ]
    print_table(f"{outcome.tried.total():,} crash points", rows)
    for failure in outcome.failures[:20]:
        print(f"\n{failure['scenario']}, {failure['mode']} at call {failure['call']}: {failure['why']}")
    sys.exit(bool(outcome.failures))


if __name__ == "__main__":
    main()
