"""The log in PostgreSQL, for several replicas of a service that share it.

`synchronous_commit` is never off here: with it off, killing a server process loses writes that were just acknowledged,
and even durability "process" promises to survive that. A stronger setting of the server stays.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from seq2slate.errors import UsageError
from seq2slate.log.backend import BadRowError, ConflictError, LogError, Row

_BAD_ROW = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded, UnicodeError)
_TIMEOUTS = {  # in seconds, but for the second, in milliseconds; the URL may say otherwise
    "connect_timeout": "5",
    "tcp_user_timeout": "10000",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
}
_MIGRATION_LOCK = 0x5E925A7E  # an arbitrary number, the same in every process
_SYNCHRONOUS = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)


class PostgresBackend:
    """A database of a PostgreSQL server, by its URL."""

    def __init__(self, url: str):
        try:
            options = conninfo_to_dict(url)
        except psycopg.Error:  # its message repeats the URL, and with it the password
            raise UsageError("the PostgreSQL URL cannot be read; expected postgresql://user@host/database") from None
        self._password = str(options.get("password") or "")
        self._conninfo = make_conninfo(**{**_TIMEOUTS, **{name: str(value) for name, value in options.items()}})
        place = options.get("host") or options.get("hostaddr") or "localhost"
        port = f":{options['port']}" if options.get("port") else ""
        self.name = f"postgresql://{place}{port}/{options.get('dbname') or ''}"

    def connect(self, *, read_only: bool = False) -> PostgresConnection:
        """Connect to the server; a reader sees one snapshot of the log throughout a transaction."""
        try:
            raw = psycopg.connect(self._conninfo, autocommit=True)
            raw.execute(_SYNCHRONOUS)
        except (psycopg.Error, UnicodeError) as error:
            raise LogError(f"{self.name}: {self._without_password(str(error))}") from None
        if read_only:
            raw.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            raw.read_only = True
        return PostgresConnection(raw, self.name)

    def _without_password(self, message: str) -> str:
        return message.replace(self._password, "…") if self._password else message


class PostgresConnection:
    """A connection to the server."""

    def __init__(self, raw: psycopg.Connection[Row], name: str):
        self._raw = raw
        self.name = name

    @contextmanager
    def transaction(self, *, exclusive: bool = False) -> Iterator[None]:
        """Commit at the end of the block, roll back if it raises."""
        try:
            with self._raw.transaction():
                if exclusive:
                    self._raw.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
                yield
        except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
            raise ConflictError(f"{self.name}: {error}") from error
        except (psycopg.Error, UnicodeError) as error:
            refused = BadRowError if _is_bad_row(error) else LogError
            raise refused(f"{self.name}: {error}") from error

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return all its rows."""
        with self._raw.cursor(binary=True) as cursor:
            cursor.execute(_dialect(sql), values)
            return cursor.fetchall() if cursor.description else []

    def each(self, sql: str, many: Sequence[Sequence[Any]]) -> list[Row | None]:
        """Run a statement that returns at most one row, with each of many values in turn, in one round trip."""
        if not many:
            return []
        with self._raw.cursor(binary=True) as cursor:
            cursor.executemany(_dialect(sql), many, returning=True)
            returned = [cursor.fetchone()]
            while cursor.nextset():
                returned.append(cursor.fetchone())
        return returned

    def structural_damage(self) -> list[str]:
        """Return nothing: the server checks the pages that it reads, if it was set up with checksums."""
        return []

    def has_its_files(self) -> bool:
        """Say yes: the files are the server's."""
        return True

    def interrupt(self) -> None:
        """Shut the socket down: a frozen server reacts to nothing else."""
        with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(self._raw.fileno())) as connected:
            connected.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, if it is still open."""
        with suppress(psycopg.Error):
            self._raw.close()


def _is_bad_row(error: Exception) -> bool:
    if isinstance(error, psycopg.ProgrammingError):  # without a state it is psycopg that does not know the value's type
        return error.sqlstate is None
    return isinstance(error, _BAD_ROW)


def _dialect(sql: str) -> Any:
    return sql.replace("?", "%s").replace(" BLOB ", " BYTEA ")
