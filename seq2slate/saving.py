"""One folder per ranker: `config.json`, `weights.safetensors`, `features.json` and a manifest. Never pickle.

The folder is written beside its final name and takes it when it is whole; one that is there already changes places with
it. `manifest.json` has the checksum of every file, so that a damaged folder is refused when it is opened and not when
it has served wrong slates. The files are read through one handle of the folder: when it is replaced meanwhile, they are
still those of one and the same folder, or are read again from its successor.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError

from seq2slate.atomic import atomic_folder
from seq2slate.errors import DataError, UsageError

FORMAT = 3
"""The version of the folder's layout. Format 2, of seq2slate 0.2, has no manifest and is read too."""
_OLDEST_FORMAT = 2

_CONFIG_FILE, _FEATURES_FILE = "config.json", "features.json"
WEIGHTS_FILE = "weights.safetensors"
"""The file of a folder that holds the weights."""
_FILES = (_CONFIG_FILE, _FEATURES_FILE, WEIGHTS_FILE)
MANIFEST = "manifest.json"
"""The file of a folder that holds the checksums of the others."""
_CURE = "save, export or copy it again"


@dataclass(frozen=True)
class SavedRanker:
    """What a folder holds, whatever the kind of ranker."""

    kind: str
    """The name of the kind, such as `ridge`."""
    config: dict[str, Any]
    """Everything but weights and features that is needed to build the ranker again; JSON can hold it."""
    weights: dict[str, npt.NDArray[Any]]
    features: str
    """The fitted feature transform, as JSON."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the files that it was read from, by name."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder whole, in place of a ranker that is there already.

        Raises:
            DataError: The folder holds something else.

        """
        head = {"format": FORMAT, "ranker": self.kind, "config": self.config}
        with atomic_folder(folder, check_replaceable) as partial:
            (partial / WEIGHTS_FILE).write_bytes(safetensors.numpy.save(self.weights))
            (partial / _FEATURES_FILE).write_text(self.features, "utf-8")
            (partial / _CONFIG_FILE).write_text(json.dumps(head, indent=2) + "\n")
            write_manifest(partial, _FILES)


def load_saved(folder: str | os.PathLike[str]) -> SavedRanker:
    """Open a folder that `SavedRanker.save` wrote, and verify every file of it.

    A folder that is replaced meanwhile is read as it was before or as it is afterwards.

    Raises:
        DataError: The folder holds no ranker, is damaged, or was written by another version.

    """
    path = Path(folder)
    if not path.is_dir():
        raise DataError(f"{path} is not a saved ranker: it is not a folder")
    found = read_folder(path, _FILES)
    if _CONFIG_FILE not in found.files:
        raise DataError(f"{path} is not a saved ranker: it has no {_CONFIG_FILE}")
    try:
        head = json.loads(found.files[_CONFIG_FILE])
        version, kind, config = (head[key] for key in ("format", "ranker", "config"))
        _check_format(path, version)
        weights_checksum = None if version >= FORMAT else head["weights_sha256"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path / _CONFIG_FILE} is damaged: {error}") from error
    if version >= FORMAT and not found.has_manifest:
        raise DataError(f"{path / MANIFEST} is missing: save or copy the folder again")
    for name in _FILES:
        if name not in found.files:
            raise DataError(f"{path} cannot be read: {name} is missing")
    if weights_checksum not in (None, found.checksums[WEIGHTS_FILE]):
        raise DataError(f"{path / WEIGHTS_FILE} does not match its checksum in {_CONFIG_FILE}: save or copy it again")
    try:
        weights, features = safetensors.numpy.load(found.files[WEIGHTS_FILE]), found.files[_FEATURES_FILE].decode()
    except (SafetensorError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return SavedRanker(kind, config, weights, features, {name: found.checksums[name] for name in _FILES})


def add_file(folder: str | os.PathLike[str], name: str, content: bytes, *, made_from: SavedRanker) -> None:
    """Put one more file into the folder of a ranker and into its manifest; both appear at the same instant.

    Args:
        folder: A saved ranker.
        name: The name of the file.
        content: What it holds.
        made_from: What the folder held when the content was made.

    Raises:
        UsageError: The ranker itself has a file of this name.
        DataError: The folder holds another ranker by now, or is damaged.
    """
    if name in (*_FILES, MANIFEST):
        raise UsageError(f"{Path(folder) / name} is a file of the ranker itself: choose another name")

    with atomic_folder(folder) as partial:
        final = Path(os.path.realpath(folder))
        if load_saved(final).checksums != made_from.checksums:
            raise DataError(f"{folder} was replaced meanwhile: nothing was written, so run it again")
        names = {*read_folder(final, _FILES).checksums, name}
        shutil.copytree(final, partial, symlinks=True, dirs_exist_ok=True, copy_function=_link)
        (partial / name).unlink(missing_ok=True)
        (partial / name).write_bytes(content)
        (partial / MANIFEST).unlink(missing_ok=True)
        write_manifest(partial, names)


def _check_format(path: Path, found: int) -> None:
    if found > FORMAT:
        raise DataError(f"{path} has format {found}, and this seq2slate reads {FORMAT}: update seq2slate to open it")
    if found < _OLDEST_FORMAT:
        raise DataError(
            f"{path} has format {found}, of an older seq2slate, and this one reads {FORMAT}: train it again, or open "
            "it with the version that wrote it"
        )


def check_replaceable(folder: str | os.PathLike[str]) -> None:
    """Raise a DataError unless a ranker can be saved here: a new or empty folder, or that of another ranker."""
    path = Path(folder)
    if not path.exists():
        return
    if not path.is_dir() or (any(path.iterdir()) and not (path / _CONFIG_FILE).is_file()):
        raise DataError(f"{path} is not empty and not a saved ranker: choose another folder")


def _link(source: str, target: str) -> None:
    """Give a file a second name in the folder that takes the place of its own; copy it where that is impossible."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)


# The manifest


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
    checksums = {name: _digest((folder / name).read_bytes()) for name in sorted(names)}
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
