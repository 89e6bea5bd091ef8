"""Everything a run needs to go on as if nothing had happened, in one file that appears whole or not at all.

The file is a safetensors file, in whose header the rest of the state lies as JSON, followed by the checksum of it all.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from seq2slate.atomic import atomic_path
from seq2slate.errors import DataError

_PATTERN = "step-*.checkpoint"
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after so many steps."""

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]
    """Anything that JSON can hold."""

    def save(self, folder: Path) -> Path:
        """Write the file, and keep the one before it in case this one is ever damaged; older ones go."""
        payload = save(self.tensors, metadata={"step": str(self.step), "values": json.dumps(self.values)})
        path = folder / f"step-{self.step:09d}.checkpoint"
        with atomic_path(path) as partial:
            partial.write_bytes(payload + hashlib.sha256(payload).digest())
        for old in sorted(folder.glob(_PATTERN))[:-2]:
            old.unlink()
        return path


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one file; a DataError says that it is damaged."""
    content = path.read_bytes()
    payload, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != digest:
        raise DataError(f"{path} is damaged: its checksum does not match")
    try:
        header = json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])["__metadata__"]
        return Checkpoint(int(header["step"]), load(payload), json.loads(header["values"]))
    except (SafetensorError, ValueError, KeyError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def latest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole (None if there is none), and what was wrong with newer ones."""
    complaints: list[str] = []
    for path in sorted(folder.glob(_PATTERN), reverse=True):
        try:
            return read_checkpoint(path), complaints
        except DataError as error:
            complaints.append(str(error))
    return None, complaints
