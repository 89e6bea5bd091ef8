"""One folder per ranker: `config.json`, `weights.safetensors` and `features.json`. Never pickle.

The folder is written beside its final name and renamed when it is whole. `config.json` carries the checksum of the
weights, so that a damaged folder is refused when it is opened and not when it has served wrong slates.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from seq2slate.atomic import sync, umask
from seq2slate.errors import DataError

FORMAT = 2
"""The version of the folder's layout. Format 1 was that of seq2slate 0.1."""

_CONFIG_FILE, _FEATURES_FILE = "config.json", "features.json"
WEIGHTS_FILE = "weights.safetensors"
"""The file of a folder that holds the weights."""


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

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder whole, in place of a ranker that is there already.

        Raises:
            DataError: The folder holds something else.

        """
        with _replaced_folder(Path(folder)) as partial:
            save_file(self.weights, partial / WEIGHTS_FILE)
            (partial / _FEATURES_FILE).write_text(self.features)
            head = {"format": FORMAT, "ranker": self.kind, "weights_sha256": _digest(partial / WEIGHTS_FILE)}
            (partial / _CONFIG_FILE).write_text(json.dumps(head | {"config": self.config}, indent=2) + "\n")


def load_saved(folder: str | os.PathLike[str]) -> SavedRanker:
    """Open a folder that `SavedRanker.save` wrote.

    Raises:
        DataError: The folder holds no ranker, is damaged, or was written by another version.

    """
    path = Path(folder)
    if not (path / _CONFIG_FILE).is_file():
        raise DataError(f"{path} is not a saved ranker: it has no {_CONFIG_FILE}")
    try:
        head = json.loads((path / _CONFIG_FILE).read_text())
        found, kind, digest, config = (head[key] for key in ("format", "ranker", "weights_sha256", "config"))
        _check_format(path, found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path / _CONFIG_FILE} is damaged: {error}") from error
    weights = path / WEIGHTS_FILE
    if not weights.is_file() or _digest(weights) != digest:
        raise DataError(f"{weights} is missing or does not match the checksum in config.json: save or copy it again")
    try:
        return SavedRanker(kind, config, load_file(weights), (path / _FEATURES_FILE).read_text())
    except (SafetensorError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _check_format(path: Path, found: int) -> None:
    if found > FORMAT:
        raise DataError(f"{path} has format {found}, and this seq2slate reads {FORMAT}: update seq2slate to open it")
    if found < FORMAT:
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


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def _replaced_folder(final: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the final name, and the place of what is there, when the block ends well."""
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".partial", dir=final.parent))
    try:
        yield partial
        for path in (*partial.iterdir(), partial):
            path.chmod((0o777 if path.is_dir() else 0o666) & ~umask())  # safetensors lets only the owner read
            sync(path)
        check_replaceable(final)
        if final.exists():
            replaced = final.with_name(f".{final.name}.{os.getpid()}.replaced")
            final.rename(replaced)
            partial.rename(final)
            shutil.rmtree(replaced)
        else:
            partial.rename(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
