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

from seq2slate.atomic import sync
from seq2slate.data.features import FeatureTransform
from seq2slate.errors import DataError

FORMAT = 1
"""The version of the folder's layout; a folder with a higher one comes from a newer seq2slate."""

WEIGHTS_FILE = "weights.safetensors"
"""The file of a folder that holds the weights."""


@dataclass(frozen=True)
class SavedRanker:
    """What a folder holds, whatever the kind of ranker."""

    kind: str
    """The name under which the ranker is found, such as `ridge`."""
    config: dict[str, Any]
    """Everything but the weights that is needed to build it again."""
    weights: dict[str, npt.NDArray[Any]]
    transform: FeatureTransform

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder whole, in place of one that is there already."""
        with _replaced_folder(Path(folder)) as partial:
            save_file(self.weights, partial / WEIGHTS_FILE)
            self.transform.save(partial / "features.json")
            head = {"format": FORMAT, "ranker": self.kind, "weights_sha256": _digest(partial / WEIGHTS_FILE)}
            (partial / "config.json").write_text(json.dumps(head | {"config": self.config}, indent=2) + "\n")


def load_saved(folder: str | os.PathLike[str]) -> SavedRanker:
    """Open a folder that `SavedRanker.save` wrote, after checking that it is whole."""
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise DataError(f"{path} is not a saved ranker: it has no config.json")
    try:
        head = json.loads((path / "config.json").read_text())
        found, kind, digest, config = (head[key] for key in ("format", "ranker", "weights_sha256", "config"))
        is_newer = found > FORMAT
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path / 'config.json'} is damaged: {error}") from error
    if is_newer:
        raise DataError(
            f"{path} has format {found}, and this seq2slate reads up to {FORMAT}: update seq2slate to open it"
        )
    weights = path / WEIGHTS_FILE
    if not weights.is_file() or _digest(weights) != digest:
        raise DataError(f"{weights} is missing or does not match the checksum in config.json: save or copy it again")
    try:
        return SavedRanker(kind, config, load_file(weights), FeatureTransform.load(path / "features.json"))
    except SafetensorError as error:
        raise DataError(f"{weights} cannot be read: {error}") from error


def check_replaceable(folder: Path) -> None:
    """Refuse to put a saved ranker in the place of anything but another one, or an empty folder."""
    if not folder.exists():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / "config.json").is_file()):
        raise DataError(f"{folder} is not empty and not a saved ranker: choose another folder")


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
            sync(path)
        partial.chmod(0o755)
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
