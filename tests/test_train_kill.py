"""A training run that is killed, at random moments and more than once, ends with the weights of one that was not."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seq2slate.baselines.linear import RidgeRanker
from seq2slate.data.files import write
from seq2slate.data.ranker import reorder_lists
from seq2slate.simulation.click_models import click_model, simulate_clicks
from seq2slate.simulation.synthetic import make_synthetic_lists

pytestmark = pytest.mark.slow


def command(data: Path, out: Path, *more: str) -> list[str]:
    options = ["--out", str(out), "--epochs", "6", "--policy", "sampling", "--seed", "5", *more]
    return [sys.executable, "-m", "seq2slate.cli", "train", str(data), *options]


def test_sigkill_and_resume_end_with_bit_identical_weights(tmp_path: Path) -> None:
    lists = make_synthetic_lists(900, items=20, world="topics", features=40, seed=0)
    write(
        simulate_clicks(click_model("diverse"), reorder_lists(RidgeRanker().fit(lists), lists), seed=0),
        tmp_path / "log.parquet",
    )
    began = time.monotonic()
    subprocess.run(command(tmp_path / "log.parquet", tmp_path / "straight"), check=True, capture_output=True)
    whole_run = time.monotonic() - began

    rng, kills = random.Random(1), 0
    out = tmp_path / "killed"
    while not out.exists():
        process = subprocess.Popen(command(tmp_path / "log.parquet", out, "--resume"), stderr=subprocess.PIPE)
        try:
            _, errors = process.communicate(timeout=whole_run * rng.uniform(0.5, 0.9) if kills < 4 else None)
            assert process.returncode == 0, errors.decode()
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
    assert kills, "the run was never killed: the test has shown nothing"
    assert (out / "weights.safetensors").read_bytes() == (tmp_path / "straight" / "weights.safetensors").read_bytes()
    assert not (tmp_path / "killed.checkpoints").exists()
