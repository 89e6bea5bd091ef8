"""What the log asks of a database: a connection that runs the shared SQL, with `?` for values, in transactions.

To put the log into another database, write a `Backend` and add its URL scheme to `impression_log.DATABASES`.
The SQL needs `ON CONFLICT … DO UPDATE` and `RETURNING`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias

from seq2slate.errors import Seq2SlateError

Durability: TypeAlias = Literal["process", "power"]
"""What an acknowledged write survives: the end of any process, or a power failure of the machine too."""
Row: TypeAlias = tuple[Any, ...]


class LogError(Seq2SlateError):
    """The log did not take a write, or could not be read; the message never contains the password of a URL."""


class LogBusyError(LogError):
    """The queue of the log is full."""


class BadRowError(LogError):
    """The database refused a value: the transaction is rolled back, and would succeed without that row."""


class ConflictError(LogError):
    """The database rolled a transaction back because of another one: a retry may succeed."""


class Connection(Protocol):
    """A connection, used by one thread at a time; every statement runs inside a transaction."""

    name: str

    def transaction(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        """Commit at the end of the block, roll back if it raises; a driver's errors come out as LogErrors.

        Only one writer at a time is in a block that is `exclusive`.
        """

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return all its rows."""

    def each(self, sql: str, many: Sequence[Sequence[Any]]) -> list[Row | None]:
        """Run a statement that returns at most one row, with each of many values in turn."""

    def structural_damage(self) -> list[str]:
        """Return what the database itself finds wrong with its pages, indexes and references."""

    def has_its_files(self) -> bool:
        """Say whether files that the database has on this machine are as they should be; called from any thread."""

    def interrupt(self) -> None:
        """Make the running statement fail; called from another thread."""

    def close(self) -> None:
        """Close the connection, whatever state it is in."""


class Backend(Protocol):
    """A database that can hold a log."""

    name: str
    """For messages: where it is, without a password."""

    def connect(self, *, read_only: bool = False) -> Connection:
        """Return a new connection, or raise a LogError."""
