"""Atomic writes: files and folders that appear whole or not at all, and changes to a file that wait for each other."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_EXCHANGE = 2  # RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
_PARTIAL, _REPLACED, _UNFINISHED = ".partial", ".replaced", ".unfinished"


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, mode: int | None = None, family: str | None = None) -> Iterator[Path]:
    """Yield a temporary path; the file there takes the name `path` when the block succeeds, and goes when it raises.

    The file is synced to disk before it is renamed, so that neither a crash nor a full disk leaves half a file under
    the final name. What killed writers have left is deleted. Missing folders are created.

    Args:
        path: The final name.
        mode: Permissions of the file; those that the umask leaves if None.
        family: A pattern of final names, of which leftovers are deleted, too.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_path(folder / "note.txt") as partial:
    ...     _ = partial.write_text("whole")
    >>> [entry.name for entry in folder.iterdir()]
    ['note.txt']
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    for name in {glob.escape(final.name), family or glob.escape(final.name)}:
        _delete_unfinished(final.parent.glob(f".{name}.*{_UNFINISHED}"))
    with _own_folder(final) as folder:
        partial = folder / final.name
        try:
            partial.touch()
            yield partial
            partial.chmod(0o666 & ~umask() if mode is None else mode)
            sync(partial)
            partial.replace(final)
            sync(final.parent)
        except OSError as error:
            if error.errno is not None and error.filename is None:  # a full disk does not say for which file
                error.filename = os.fspath(final)
            raise


@contextmanager
def _own_folder(final: Path) -> Iterator[Path]:
    """Yield a new folder beside a file, locked for as long as its writer lives, and delete it."""
    handle = None
    while handle is None:
        folder = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=_UNFINISHED, dir=final.parent))
        handle = _lock_folder(folder, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _lock_folder(folder: Path, how: int) -> int | None:
    """Return a handle that locks a folder; None if somebody else has it, or has deleted it before it was locked."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, how)
    except OSError:
        if how & fcntl.LOCK_NB:  # it is locked, or the file system has no locks: then nobody can say who lives
            os.close(handle)
            return None
    if folder.exists():
        return handle
    os.close(handle)
    return None


def _delete_unfinished(folders: Iterable[Path]) -> None:
    """Delete what writers of files have left: of those that live, the folder is locked."""
    for folder in folders:
        with suppress(OSError):  # of another user
            handle = _lock_folder(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if handle is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(handle)


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
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    with final.with_name(f".{final.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # freed when the file is closed, or the process ends
        yield


@contextmanager
def atomic_folder(path: str | os.PathLike[str], check: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Yield an empty folder that takes the name `path`, and the place of what is there, when the block succeeds.

    The two folders change places in one system call, so at every instant the name leads to the old folder or to the
    new one, whole. A file system without that call gets two renames: between them, for some microseconds, the name
    leads nowhere, and a process that is killed just then leaves the old folder beside it, under a name that ends in
    `.replaced`; the next writer puts it back first. Of a link, the folder that it leads to is replaced.

    One writer at a time is in such a block of the same parent folder. It deletes what killed writers have left.

    Args:
        path: The final name.
        check: Called with the final path before it is replaced; raises if it must not be.
    """
    final = Path(os.path.realpath(path))
    final.parent.mkdir(parents=True, exist_ok=True)
    with _locked(final.parent) as is_alone:
        if is_alone:
            _sweep(final)
        partial = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=_PARTIAL, dir=final.parent))
        try:
            yield partial
            for inner in (*partial.iterdir(), partial):
                inner.chmod((0o777 if inner.is_dir() else 0o666) & ~umask())  # safetensors lets only the owner read
                sync(inner)
            if check is not None:
                check(final)
            if not final.exists():
                partial.rename(final)
            elif not _exchange(partial, final):
                replaced = partial.with_suffix(_REPLACED)
                final.rename(replaced)
                try:
                    partial.rename(final)
                except BaseException:
                    replaced.rename(final)
                    raise
                shutil.rmtree(replaced, ignore_errors=True)
            sync(final.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Wait for other writers; yield whether the file system has locks. The kernel unlocks for a killed process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            is_locked = True
        except OSError:
            is_locked = False
        yield is_locked
    finally:
        os.close(handle)


def _sweep(final: Path) -> None:
    """Mend what writers of a folder have left: they were killed, since nobody else holds the lock."""
    for left in final.parent.iterdir():
        if left.name.startswith(f".{final.name}.") and left.suffix in (_PARTIAL, _REPLACED) and left.is_dir():
            if left.suffix == _REPLACED and not final.exists():  # killed between the two renames
                left.rename(final)
            else:
                shutil.rmtree(left, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one step; return False where the system or the file system cannot."""
    paths = os.fsencode(one), os.fsencode(other)
    library = ctypes.CDLL(None, use_errno=True)
    try:
        if sys.platform == "darwin":
            failed = library.renamex_np(*paths, ctypes.c_uint(_EXCHANGE))
        else:
            here = ctypes.c_int(-100)  # AT_FDCWD
            failed = library.renameat2(here, paths[0], here, paths[1], ctypes.c_uint(_EXCHANGE))
    except AttributeError:  # a C library without the call
        return False
    if not failed:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), os.fspath(one), None, os.fspath(other))


def umask() -> int:
    """Return which permissions a new file does not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
