"""What the log asks of a database: a connection that runs the shared SQL, with `?` for values, in transactions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias

from seq2slate.errors import Seq2SlateError

Durability: TypeAlias = Literal["process", "power"]
"""What a write that was acknowledged survives: the end of any process, or the end of the machine's power too."""
Row: TypeAlias = tuple[Any, ...]


class StoreError(Seq2SlateError):
    """The log did not take a write, or could not be read; its message never has the password of a URL."""


class StoreBusyError(StoreError):
    """More is waiting to be written than the log takes at a time."""


class BadRowError(StoreError):
    """The database refused a value: the transaction is undone, and without that row the others would do."""


class ConflictError(StoreError):
    """The database undid a transaction because of another one: the same again may well do."""


class Connection(Protocol):
    """A connection for one thread at a time; everything it runs stands inside a transaction."""

    name: str

    def transaction(self, *, alone: bool = False) -> AbstractContextManager[None]:
        """Commit at the end of the block, undo it if it raises; a driver's errors come out as StoreErrors.

        Only one writer is in a block that is marked `alone`.
        """

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return all its rows."""

    def each(self, sql: str, many: Sequence[Sequence[Any]]) -> list[Row | None]:
        """Run a statement that returns at most one row, with each of many values in turn."""

    def interrupt(self) -> None:
        """Make what is running fail, from another thread."""

    def close(self) -> None:
        """Let go, whatever state it is in."""


class Backend(Protocol):
    """A database that a log lives in."""

    name: str
    """For messages: where it is, and no password."""

    def connect(self, *, read_only: bool = False) -> Connection:
        """Return a new connection, or raise a StoreError."""
