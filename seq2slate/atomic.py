"""Atomic writes: files that appear whole or not at all, and changes to a file that wait for each other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it is renamed when the block succeeds and deleted when it raises.

    The file is synced to disk before it is renamed, so that neither a crash nor a full disk leaves half a file under
    the final name. Missing folders are created. `mode` are its permissions; those that the umask leaves if None.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_path(folder / "note.txt") as partial:
    ...     _ = partial.write_text("whole")
    >>> [entry.name for entry in folder.iterdir()]
    ['note.txt']
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{final.name}.", suffix=".partial", dir=final.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o666 & ~umask() if mode is None else mode)
        sync(partial)
        partial.replace(final)
        sync(final.parent)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # a full disk does not say which file it has no room for
            error.filename = os.fspath(final)
        raise
    finally:
        partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file or folder to disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Wait until no other process is in such a block for `path`, so that reading, changing and writing it is one step.

    The lock is on a hidden file beside it, which stays: the file itself is another one after each change.
    """
    import fcntl  # not on Windows, where everything else here runs

    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    with final.with_name(f".{final.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # freed when the file is closed, or the process ends
        yield


def umask() -> int:
    """Return which permissions a new file does not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
