"""A file appears whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from seq2slate.atomic import atomic_path


def test_the_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "new" / "file.txt") as partial:
        partial.write_text("all of it")
        assert not (tmp_path / "new" / "file.txt").exists()
    assert (tmp_path / "new" / "file.txt").read_text() == "all of it"
    assert os.listdir(tmp_path / "new") == ["file.txt"]


def write_half(final: Path) -> None:
    with atomic_path(final) as partial:
        partial.write_text(f"half of the n{1 / 0}")


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    final = tmp_path / "file.txt"
    final.write_text("old")
    with pytest.raises(ZeroDivisionError):
        write_half(final)
    assert final.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    def fill(final: Path) -> None:
        with atomic_path(final), open("/dev/full", "wb", buffering=0) as full:
            full.write(b"x")

    with pytest.raises(OSError, match=r"No space left on device: '.*file.txt'"):
        fill(tmp_path / "file.txt")
    assert os.listdir(tmp_path) == []


def test_others_may_read_the_file_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_path(tmp_path / "file.txt") as partial:
            partial.write_text("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file.txt").stat().st_mode) == 0o640
