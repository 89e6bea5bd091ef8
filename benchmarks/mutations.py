"""What mutated files and mutated requests share: the mutations, and how the inputs of a run were taken."""

from __future__ import annotations

import random
import re
import resource
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seq2slate.data.lists import ItemLists

SECONDS = 10.0
"""What one input may take."""
MEGABYTES = 500
"""What a process that takes inputs may take, with all libraries."""
_TOKENS = (
    *(b"nan", b"inf", b"-inf", b"1e999", b"-0", b"0", b"-1", b"1e-400", b"9" * 30, b"9" * 5000, b"true", b"null"),
    *(b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\\ud800", b"\\u0000", b"\r", b"\n", b"\n\n", b"\t"),
    *(
        b" ",
        b",",
        b":",
        b";",
        b"#",
        b'"',
        b"'",
        b"\\",
        b"[",
        b"]",
        b"{",
        b"}",
        b"[" * 3000,
        b'{"a":' * 3000,
        b"=",
        b"/",
    ),
    *(b"[]", b"{}", b'""', b"[[]]", b"[null]", b'"a"', b"qid:", b"qid:1", b"1:", b"docid =", b"list_id", b"item_id"),
    *(b"label", b"features", b"feature_names", b"position", b"shown_slot", b"context", b"categorical", b"version"),
    *(b"2020-01-01", b"\xe2\x80\xae", "é".encode(), b"0x10", b"1_000", b"100000:1", b"99999:1"),
)


@dataclass
class Outcome:
    """How the inputs of a run were read."""

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    """With `number`, `target` and `why`."""
    megabytes: float = 0
    """The largest process."""

    def count(self, said: str, now: dict[str, Any]) -> None:
        """Count an input: `read`, `refused`, or why it fails."""
        if said == "read":
            self.read[now["target"]] += 1
        elif said == "refused":
            self.refused[now["target"]] += 1
        else:
            self.failures.append(now | {"why": said})


def is_request(number: int) -> bool:
    """Say whether the input of a number is a request; the others are files."""
    return number % 4 == 0


def small_lists() -> ItemLists:
    """Return lists with columns of all kinds."""
    rng = np.random.default_rng(0)
    return ItemLists(
        rng.normal(size=(9, 3)).astype(np.float32).round(3),
        [0, 4, 4, 9],
        labels=[0, 1, 0, 2, 0, 0, 1, 0, 0],
        list_ids=["q1", "q2", "q3"],
        feature_names=["price", "stars", "age"],
        categorical={"city": ["Oslo", "Rome", None, "Oslo", "é", "Rome", "Lima", "Oslo", "Oslo"]},
        context={"hour": [1.0, np.nan, 3.0], "device": ["phone", "desk", "phone"]},
    )


def mutated(seed: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one to four changes, more often one."""
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        at = rng.randrange(len(data) + 1)
        length = rng.choice((1, 1, 2, 4, 16, 200))
        kind = rng.randrange(9)
        if kind == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length]
        elif kind == 4:
            other = rng.randrange(len(data) + 1)
            data[at : at + length], data[other : other + length] = (
                data[other : other + length],
                data[at : at + length],
            )
        elif kind == 5:
            del data[at:]
        elif kind == 6:
            data[at:at] = rng.choice(_TOKENS)
        else:
            start, stop = _word(data, at)
            data[start:stop] = rng.choice(_TOKENS) if kind == 7 else b""
    return bytes(data)


def _word(data: bytearray, at: int) -> tuple[int, int]:
    """Return where the word around a place begins and ends: a number, a name or a text."""
    start = stop = at
    while start > 0 and (chr(data[start - 1]).isalnum() or data[start - 1] in b"._-"):
        start -= 1
    while stop < len(data) and (chr(data[stop]).isalnum() or data[stop] in b"._-"):
        stop += 1
    return start, stop


def peak_memory(process: int | str = "self") -> float:
    """Return the peak of a process in MB: that of getrusage would include the process that started it."""
    status = Path(f"/proc/{process}/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1024  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
