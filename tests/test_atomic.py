"""A file appears whole or not at all."""

import os
import signal
import stat
from pathlib import Path

import pytest

from seq2slate import atomic
from seq2slate.atomic import atomic_folder, atomic_path


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


def die_while_writing(final: Path) -> None:
    """Write a file in a process that is killed halfway."""
    child = os.fork()
    if not child:
        with atomic_path(final) as partial:
            partial.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_the_next_writer_deletes_what_killed_ones_have_left(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "other.txt"):
        die_while_writing(tmp_path / name)
    assert len(os.listdir(tmp_path)) == 3
    with atomic_path(tmp_path / "a.txt") as partial:
        partial.write_text("whole")
    assert len(os.listdir(tmp_path)) == 3, "those of other files stay"
    with atomic_path(tmp_path / "a.txt", family="?.txt") as partial:
        partial.write_text("whole")
    assert len(os.listdir(tmp_path)) == 2
    with atomic_path(tmp_path / "other.txt") as partial:
        partial.write_text("whole")
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "other.txt"]


def test_writers_that_live_are_left_alone(tmp_path: Path) -> None:
    final = tmp_path / "file.txt"
    with atomic_path(final) as slow:
        slow.unlink()  # as a linker does
        slow.write_text("slow")
        with atomic_path(final) as quick:
            quick.write_text("quick")
        assert final.read_text() == "quick"
    assert final.read_text() == "slow"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_a_folder_comes_back_if_the_second_of_two_renames_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace_folder(text: str) -> None:
        with atomic_folder(tmp_path / "folder") as partial:
            (partial / "file.txt").write_text(text)

    replace_folder("old")
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.suffix == ".partial":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="No space left"):
        replace_folder("new")
    assert (tmp_path / "folder" / "file.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["folder"]


def test_a_folder_whose_writer_was_killed_between_two_renames_comes_back(tmp_path: Path) -> None:
    (tmp_path / ".folder.abc.replaced").mkdir()
    (tmp_path / ".folder.abc.replaced" / "file.txt").write_text("old")

    def refuse(folder: Path) -> None:
        raise ValueError((folder / "file.txt").read_text())

    with pytest.raises(ValueError, match="old"), atomic_folder(tmp_path / "folder", refuse):
        pass
    assert os.listdir(tmp_path) == ["folder"]
