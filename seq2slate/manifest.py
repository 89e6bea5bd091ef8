"""A manifest: the checksums of the files of a folder, so that a damaged file is found when the folder is opened.

The files are read through one handle of the folder: when it is replaced meanwhile, they are still those of one and the
same folder, or are read again from its successor.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from seq2slate.errors import DataError

MANIFEST = "manifest.json"
"""The file of a folder that holds the checksums of the others."""
_CURE = "save, export or copy it again"


@dataclass(frozen=True)
class FolderContents:
    """Files of a folder as they were at one instant."""

    files: Mapping[str, bytes]
    """Those that were asked for and are there."""
    checksums: Mapping[str, str]
    """SHA-256 of every file in the manifest; without a manifest, of `files`."""
    has_manifest: bool


def write_manifest(folder: Path, names: Collection[str]) -> None:
    """Write the manifest of some files of a folder, which nobody else may write to or read meanwhile."""
    checksums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sorted(names)}
    (folder / MANIFEST).write_text(_to_text(checksums))


def read_folder(folder: Path, names: Collection[str]) -> FolderContents:
    """Read some files of a folder, and verify all that its manifest lists.

    Raises:
        DataError: A file is damaged, or missing from the folder or from the manifest; or there is no folder.
    """
    while True:
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise DataError(f"{folder} cannot be opened: {error.strerror}") from error
        try:
            found = _read(folder, handle, names)
            if (found.has_manifest and len(found.files) == len(names)) or _leads_to(folder, handle):
                return found
        except DataError:
            if _leads_to(folder, handle):
                raise
        finally:
            os.close(handle)


def _leads_to(folder: Path, handle: int) -> bool:
    """Return whether a path still leads to an open folder: one that was replaced is deleted, and lacks files."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(handle))
    except OSError:
        return False


def _read(folder: Path, handle: int, names: Collection[str]) -> FolderContents:
    manifest = _content(folder, handle, MANIFEST)
    found = {name: content for name in names if (content := _content(folder, handle, name)) is not None}
    if manifest is None:
        return FolderContents(found, {name: _digest(content) for name, content in found.items()}, False)
    checksums = _parse(folder / MANIFEST, manifest)
    for name, checksum in checksums.items():
        content = found[name] if name in found else _content(folder, handle, name)
        if content is None:
            raise DataError(f"{folder / name} is missing: {_CURE}")
        if _digest(content) != checksum:
            raise DataError(f"{folder / name} does not match its checksum in {MANIFEST}: {_CURE}")
    for name in found:
        if name not in checksums:
            raise DataError(f"{folder / name} is not in {MANIFEST}, so it cannot be verified: {_CURE}")
    return FolderContents(found, checksums, True)


def _content(folder: Path, handle: int, name: str) -> bytes | None:
    try:
        with open(name, "rb", opener=lambda file, flags: os.open(file, flags, dir_fd=handle)) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{folder / name} cannot be read: {error.strerror}") from error


def _parse(path: Path, content: bytes) -> dict[str, str]:
    """Return the checksums of a manifest that is, to the byte, what `write_manifest` wrote."""
    try:
        checksums = json.loads(content)["files"]
        if _to_text(checksums).encode() == content and all(os.path.basename(name) == name for name in checksums):
            return {str(name): str(checksum) for name, checksum in checksums.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise DataError(f"{path} is damaged: {_CURE}")


def _to_text(checksums: Mapping[str, str]) -> str:
    """Return the manifest as text, with a checksum of its own."""
    files = json.dumps(checksums, sort_keys=True)
    return json.dumps({"files": checksums, "sha256": _digest(files.encode())}, indent=2, sort_keys=True) + "\n"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
