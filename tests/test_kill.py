"""What is left when a command is killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seq2slate.data.files import read

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "txt.gz"])
def test_a_killed_conversion_leaves_the_old_file_whole(tmp_path: Path, suffix: str) -> None:
    """SIGKILL at random moments of `convert`: under the final name there is always a whole file, the old or the new."""
    command = [sys.executable, "-m", "seq2slate.cli"]
    old, new, out = tmp_path / "old.txt", tmp_path / "new.txt", tmp_path / f"out.{suffix}"
    for path, lists in ((old, 300), (new, 900)):
        lines = [
            f"{item % 3} qid:{q} " + " ".join(f"{f}:{q * item + f}" for f in range(1, 40))
            for q in range(lists)
            for item in range(12)
        ]
        path.write_text("\n".join(lines) + "\n")
    subprocess.run([*command, "convert", old, out], check=True, capture_output=True)
    began = time.monotonic()
    subprocess.run([*command, "convert", new, tmp_path / f"timing.{suffix}"], check=True, capture_output=True)
    whole_run = time.monotonic() - began
    rng, seen = random.Random(0), set()
    for _ in range(12):
        process = subprocess.Popen(
            [*command, "convert", str(new), str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(whole_run * rng.uniform(0.3, 1.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen.add(len(read(out)))
    assert seen <= {300, 900}
    assert 300 in seen, "no kill came before the end: the test has shown nothing"
    assert out.name in os.listdir(tmp_path)
