"""The log in one SQLite file in WAL mode: readers, in any process, never block the writer.

At every commit the write-ahead log is handed to the operating system, so killing the process loses nothing
(`synchronous=NORMAL`); with durability "power" it is synced to the disk (`FULL`).

A checkpoint moves committed pages from the write-ahead log into the database file, and waits for the disk. A thread of
its own does it, so that no commit has to wait; should it fall behind, commits checkpoint too from `_LONGEST_WAL` on.
The commit after a checkpoint waits for the disk once, when the write-ahead log restarts: so checkpoints are rare.

Several processes may write. SQLite lets one in at a time, and the others try again after ever longer pauses, while the
one that has just committed is the first to find the lock free. The workers of a service therefore take turns.

SQLite does not notice when somebody deletes or replaces the write-ahead log or its index, or cuts it or the database
short: it goes on with files that nobody finds. Before every transaction, and again before it is acknowledged, the
writer looks whether they are still there. If not, the log takes no more writes until the process is restarted.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import sqlite3
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from seq2slate.errors import DataError
from seq2slate.log.backend import BadRowError, Durability, LogError, Row

logger = logging.getLogger("seq2slate.log")
_Identity: TypeAlias = tuple[int, int] | None
_LOCK_TIMEOUT = 5.0  # seconds, for another process that is writing
_CHECKPOINT_SECONDS, _CHECKPOINT_ROWS = 10.0, 2000  # between checkpoints, whichever comes first
_CHECKPOINT_PASSES = 5  # each finds only what was committed during the one before; then the write-ahead log restarts
_LONGEST_WAL = 16_384  # pages of 4 KiB
_MOST_DAMAGE = 20  # lines of an integrity check
_WAL_INDEX = struct.Struct("=14xHI")  # the beginning of the index: size of a page, number of frames
_WAL_HEADER, _FRAME_HEADER = 32, 24  # bytes of the write-ahead log, besides pages
_BAD_ROW = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    UnicodeError,
    OverflowError,
)


class SqliteBackend:
    """A SQLite file; with `create` it is made, with its folder, if it is missing."""

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "process", create: bool = True):
        self.path = Path(path).absolute()
        self.name = os.fspath(path)
        self.durability = durability
        self.create = create
        self.turns: int | None = None
        """A file, open for writing, that is shared with other processes that write to the same log."""
        self.damage: str | None = None
        """What happened to the files under an open connection; then there is no other to write with."""

    def connect(self, *, read_only: bool = False) -> SqliteConnection:
        """Open the file."""
        if self.damage is not None and not read_only:
            raise LogError(self.damage)
        if self.create and not read_only:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        elif not self.path.exists():
            raise DataError(f"{self.name}: no such file")
        try:
            raw = self._open("rwc" if self.create and not read_only else "rw")
            try:
                self.prepare(raw, read_only)
                checkpointer = None if read_only else _Checkpointer(self._open("rw"), self.name)
            except (sqlite3.Error, UnicodeError):
                raw.close()
                raise
        except sqlite3.OperationalError as error:  # locked, no permission, no space
            raise LogError(f"{self.name}: {error}") from error
        except (sqlite3.DatabaseError, UnicodeError) as error:  # its message quotes a damaged schema, byte by byte
            raise DataError(f"{self.name}: {error}") from error
        return SqliteConnection(raw, self, checkpointer)

    def _open(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=_LOCK_TIMEOUT,
            isolation_level=None,  # no implicit transactions
            check_same_thread=False,  # opened by the thread that opens the log, used by the writer thread
        )

    def is_sound(self) -> bool:
        """Say whether all pages of the database are there and fit together; this reads all of them."""
        try:
            with closing(self._open("rw")) as raw:
                raw.execute("SELECT number FROM seq2slate_migrations")  # an empty database is sound, and no log
                return raw.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
        except sqlite3.Error:
            return False

    def prepare(self, raw: sqlite3.Connection, read_only: bool) -> None:
        """Set the options that belong to a connection, not to the file."""
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute(f"PRAGMA synchronous = {'FULL' if self.durability == 'power' else 'NORMAL'}")
        raw.execute(f"PRAGMA wal_autocheckpoint = {_LONGEST_WAL}")
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute(f"PRAGMA query_only = {int(read_only)}")


class SqliteConnection:
    """A connection to the file."""

    def __init__(self, raw: sqlite3.Connection, backend: SqliteBackend, checkpointer: _Checkpointer | None):
        self._raw = raw
        self._backend = backend
        self._path, self._file = backend.path, _identity(_stat(backend.path))
        self._wal_path, self._index_path = (
            backend.path.with_name(f"{backend.path.name}{suffix}") for suffix in ("-wal", "-shm")
        )
        self._wal: tuple[_Identity, _Identity] | None = None
        """The write-ahead log and its index, as soon as both are there."""
        self._size = self._wal_size = 0
        self._is_abandoned = False
        self._checkpointer = checkpointer
        self._begin = "BEGIN DEFERRED" if checkpointer is None else "BEGIN IMMEDIATE"
        self._turns = None if checkpointer is None else backend.turns
        self.name = backend.name

    @contextmanager
    def transaction(self, *, exclusive: bool = False) -> Iterator[None]:
        """Commit at the end of the block, roll back if it raises; SQLite has one writer at a time anyway."""
        with nullcontext() if self._turns is None else _turn(self._turns):
            yield from self._transaction()

    def _transaction(self) -> Iterator[None]:
        self._check_files()
        try:
            self._raw.execute(self._begin)
            yield
            self._raw.execute("COMMIT")
            if self._checkpointer is not None:
                self._check_files()  # once more: or what was just committed is acknowledged, and nowhere
                self._checkpointer.count(self._raw.total_changes)
        except BaseException as error:
            if self._raw.in_transaction:  # a full disk may have ended it already
                with suppress(sqlite3.Error):
                    self._raw.execute("ROLLBACK")
            if isinstance(error, _BAD_ROW):
                raise BadRowError(f"{self.name}: {error}") from error
            if isinstance(error, sqlite3.Error):
                raise LogError(f"{self.name}: {error}") from error
            raise

    def _check_files(self) -> None:
        """Raise a LogError unless the files of this connection are where everybody looks for them."""
        found = _stat(self._path)
        if found is None or _identity(found) != self._file:  # everything would go into a file of nobody
            raise LogError(f"{self.name}: the file was moved, deleted or replaced")
        if self._checkpointer is None:
            return
        index, wal = _stat(self._index_path), _stat(self._wal_path)
        if self._wal is None and index is not None and wal is not None:
            self._wal = _identity(wal), _identity(index)
        if self._wal is not None and (_identity(wal), _identity(index)) != self._wal:
            self._refuse("the write-ahead log was deleted or replaced")
        wal_size = 0 if wal is None else wal.st_size
        if wal_size < self._wal_size and self._lacks_frames():  # others may checkpoint and empty it, too
            self._is_abandoned = True
            self._refuse("the write-ahead log was cut short")
        if found.st_size < self._size and not self._backend.is_sound():  # VACUUM makes it shorter, too
            self._refuse("the database was cut short")
        self._size, self._wal_size = found.st_size, wal_size

    def has_its_files(self) -> bool:
        """Say whether the files look as at the last commit; if not, the next transaction finds out whether it matters.

        Another thread may ask, while this connection is used or closed.
        """
        size, wal_size, known = self._size, self._wal_size, self._wal
        found, index, wal = _stat(self._path), _stat(self._index_path), _stat(self._wal_path)
        if found is None or _identity(found) != self._file or found.st_size < size:
            return False
        if known is None:
            return True
        return (_identity(wal), _identity(index)) == known and wal is not None and wal.st_size >= wal_size

    def _lacks_frames(self) -> bool:
        """Say whether the write-ahead log is shorter than its index says; SQLite changes the index first."""
        try:
            with self._index_path.open("rb") as index:
                page_size, frames = _WAL_INDEX.unpack(index.read(_WAL_INDEX.size))
            size = self._wal_path.stat().st_size
        except (OSError, struct.error):
            return True
        return bool(frames) and size < _WAL_HEADER + frames * (_FRAME_HEADER + page_size)

    def _refuse(self, problem: str) -> NoReturn:
        self._backend.damage = f"{self.name}: {problem}; nothing more is written until the service is restarted"
        raise LogError(self._backend.damage)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return all its rows."""
        return self._raw.execute(sql, values).fetchall()

    def each(self, sql: str, many: Sequence[Sequence[Any]]) -> list[Row | None]:
        """Run a statement that returns at most one row, with each of many values in turn."""
        returned = []
        for values in many:
            rows = self._raw.execute(sql, values).fetchall()  # to the end: an unfinished statement blocks the commit
            returned.append(rows[0] if rows else None)
        return returned

    def structural_damage(self) -> list[str]:
        """Return what SQLite finds wrong with pages and indexes, and rows that refer to others that are not there."""
        try:
            found = [text for (text,) in self.rows(f"PRAGMA integrity_check({_MOST_DAMAGE})") if text != "ok"]
            broken = self.rows(f'SELECT "table", rowid, parent FROM pragma_foreign_key_check LIMIT {_MOST_DAMAGE}')
        except (sqlite3.Error, UnicodeError) as error:
            return [str(error)]
        return found + [f"row {row} of {table} refers to a missing row of {other}" for table, row, other in broken]

    def interrupt(self) -> None:
        """Stop what is running."""
        self._raw.interrupt()

    def close(self) -> None:
        """Close the connection, and stop its checkpoints."""
        if self._checkpointer is not None:
            self._checkpointer.stop()
        if self._is_abandoned:  # closing checkpoints what is left of the last transactions: half of their pages
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._raw))
            return
        with suppress(sqlite3.Error):
            self._raw.close()


@contextmanager
def _turn(file: int) -> Iterator[None]:
    """Write when it is this process's turn: whoever has just written queues behind those that wait.

    The first byte of the file is locked by the one who is next, the second by the one who writes. A process that is
    killed leaves both free.
    """
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 1)
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, 0)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, 1)


def _stat(path: Path) -> os.stat_result | None:
    """Return what the system knows of a file; None if there is no file."""
    try:
        return os.stat(path)
    except OSError:
        return None


def _identity(found: os.stat_result | None) -> _Identity:
    """Return the device and inode of a file; None if there is no file."""
    return None if found is None else (found.st_dev, found.st_ino)


class _Checkpointer:
    """The thread that checkpoints the write-ahead log, on a connection of its own."""

    def __init__(self, raw: sqlite3.Connection, name: str):
        self._raw, self._name = raw, name
        self._written = self._checkpointed = 0  # rows
        self._is_due, self._stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="seq2slate-checkpoint", daemon=True)
        self._thread.start()

    def count(self, written: int) -> None:
        """Take the number of rows written so far."""
        self._written = written
        if written - self._checkpointed >= _CHECKPOINT_ROWS:
            self._is_due.set()

    def stop(self) -> None:
        """Finish a checkpoint that has begun, and close the connection."""
        self._stopping = True
        self._is_due.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._is_due.wait(_CHECKPOINT_SECONDS)
            self._is_due.clear()
            try:
                if self._written > self._checkpointed and not self._stopping:
                    self._checkpointed = self._written
                    self._checkpoint()
            except sqlite3.Error as error:  # nothing is lost, but the write-ahead log grows
                logger.warning("%s: the checkpoint failed, and the write-ahead log grows: %s", self._name, error)
        with suppress(sqlite3.Error):
            self._raw.close()

    def _checkpoint(self) -> None:
        for _ in range(_CHECKPOINT_PASSES):
            _, in_log, checkpointed = self._raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if in_log == checkpointed:
                return
