"""What is left when a command is killed."""

import random
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
    began = time.monotonic()
    subprocess.run([*command, "convert", str(new), str(out)], check=True, capture_output=True)
    whole_run = time.monotonic() - began
    rng, in_time = random.Random(0), 0
    for attempt in range(12):
        source = (old, new)[attempt % 2]
        process = subprocess.Popen([*command, "convert", str(source), str(out)], stdout=subprocess.DEVNULL)
        time.sleep(whole_run * rng.uniform(0.2, 1.0))
        in_time += process.poll() is None
        process.kill()
        process.wait()
        assert len(read(out)) in (300, 900)
    assert in_time, "no kill came before the end: the test has shown nothing"
