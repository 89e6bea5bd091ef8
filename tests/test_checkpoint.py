"""Checkpoints come back as they were, and a damaged one is noticed."""

import os
from pathlib import Path

import pytest
import torch

from seq2slate.errors import DataError
from seq2slate.training.fit import Checkpoint, latest_checkpoint, read_checkpoint


def make(step: int) -> Checkpoint:
    tensors = {"weights": torch.arange(6.0).reshape(2, 3) + step, "state": torch.arange(4, dtype=torch.uint8)}
    return Checkpoint(step, tensors, {"best": float("-inf"), "history": [{"loss": 0.1}]})


def test_everything_comes_back(tmp_path: Path) -> None:
    read = read_checkpoint(make(7).save(tmp_path))
    assert (read.step, read.values) == (7, make(7).values)
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in read.tensors.items()} == {
        name: (tensor.dtype, tensor.tolist()) for name, tensor in make(7).tensors.items()
    }


def test_the_one_before_is_kept_and_older_ones_go(tmp_path: Path) -> None:
    for step in (1, 2, 30):
        make(step).save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["step-000000002.checkpoint", "step-000000030.checkpoint"]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_one_is_refused_and_the_one_before_used(tmp_path: Path, damage: str) -> None:
    make(1).save(tmp_path)
    newest = make(2).save(tmp_path)
    content = newest.read_bytes()
    flipped = content[:100] + bytes([content[100] ^ 1]) + content[101:]
    newest.write_bytes({"cut": content[:-5], "flip": flipped, "empty": b""}[damage])
    with pytest.raises(DataError, match="step-000000002"):
        read_checkpoint(newest)
    found, complaints = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1
    assert len(complaints) == 1
    assert "step-000000002" in complaints[0]


def test_without_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) == (None, [])
