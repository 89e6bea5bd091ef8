"""API keys: who may request slates, and who may administer the service.

A key is 32 random bytes, shown once. The file has its SHA-256, which suffices for a secret that cannot be guessed. A
key has one scope: `serve` for re-ranking and clicks, `admin` for everything else. The file is checked for changes on
every request, so that a revoked key is refused from the next request on.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from pathlib import Path
from typing import Literal

import msgspec

from seq2slate.atomic import atomic_path, locked
from seq2slate.errors import DataError, UsageError

KeyScope = Literal["serve", "admin"]


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key as the file stores it."""

    id: str
    """The public part of the key, to tell keys apart."""
    scope: KeyScope
    sha256: str
    created: float
    """In seconds since 1970."""
    note: str = ""


def read_keys(path: str | os.PathLike[str]) -> list[Key]:
    """Read a key file."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=list[Key])
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not a key file: {error}") from error


def add_key(path: str | os.PathLike[str], scope: KeyScope, note: str = "") -> str:
    """Create a key and add its hash to the file, which is created if it is missing.

    Args:
        path: The key file.
        scope: What the key opens.
        note: For people: whose key it is.

    Returns:
        The key, which is stored nowhere.
    """
    text = f"{secrets.token_hex(4)}.{secrets.token_urlsafe(32)}"
    new = Key(text.partition(".")[0], scope, _digest(text), time.time(), note)
    with locked(path):
        _write(path, [*(read_keys(path) if Path(path).exists() else []), new])
    return text


def revoke_key(path: str | os.PathLike[str], key_id: str) -> None:
    """Remove a key from the file, by its id."""
    with locked(path):
        keys = read_keys(path)
        left = [key for key in keys if key.id != key_id]
        if len(left) == len(keys):
            raise UsageError(f"{path}: there is no key {key_id!r}")
        _write(path, left)


class KeyRing:
    """The keys of a file, as it is at the moment; one that is gone or broken later opens nothing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the file; one that is missing, broken or empty is an error."""
        self._path = Path(path)
        self._keys = read_keys(path)
        self._seen = self._stamp()
        if not self._keys:
            raise UsageError(f"{path}: has no keys; create one with `seq2slate keys add`")

    def scope_of(self, text: str) -> KeyScope | None:
        """Return the scope of a key, or None if it is unknown; takes the same time for any wrong key."""
        self._refresh()
        digest, scope = _digest(text), None
        for key in self._keys:
            if hmac.compare_digest(key.sha256, digest):
                scope = key.scope
        return scope

    def _refresh(self) -> None:
        stamp = self._stamp()
        if stamp == self._seen:
            return
        try:
            self._keys, self._seen = read_keys(self._path), stamp
        except DataError:
            self._keys, self._seen = [], stamp

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _write(path: str | os.PathLike[str], keys: list[Key]) -> None:
    with atomic_path(path) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(keys)) + b"\n")
