"""Text files, plain or gzip: read in chunks of whole lines, written atomically."""

from __future__ import annotations

import gzip
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from seq2slate.atomic import atomic_path
from seq2slate.errors import DataError

AnyPath: TypeAlias = "str | os.PathLike[str]"
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)


def line_chunks(path: AnyPath, chunk_bytes: int) -> Iterator[tuple[int, bytes]]:
    r"""Yield (number of the first line, about `chunk_bytes` of whole lines); lines count from 1.

    Raises:
        DataError: The file is missing, unreadable or damaged.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "lines.txt.gz"
    >>> with text_writer(path) as stream:
    ...     _ = stream.write(b"one\ntwo\nthree\n")
    >>> list(line_chunks(path, chunk_bytes=5))
    [(1, b'one\ntwo\n'), (3, b'three\n')]

    """
    first_line = 1
    try:
        with _open_to_read(path) as stream:
            while chunk := stream.read(chunk_bytes):
                chunk += stream.readline()
                if first_line == 1:
                    chunk = chunk.removeprefix(BOM_UTF8)  # how some Windows programs begin a text file
                yield first_line, chunk
                first_line += chunk.count(b"\n")
    except _DAMAGE as error:
        line = _last_readable_line(path)
        raise DataError(f"{path}, line {line + 1}: the gzip file is cut off or damaged here ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


@contextmanager
def text_writer(path: AnyPath) -> Iterator[BinaryIO]:
    """Yield a stream for bytes, compressed if the name ends in .gz; the file appears when the block succeeds."""
    with atomic_path(path) as partial, partial.open("wb") as plain:
        if not _is_gzip(path):
            yield plain
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=plain, mtime=0) as packed:  # the same bytes every time
            yield cast(BinaryIO, packed)


def _is_gzip(path: AnyPath) -> bool:
    return Path(path).suffix.lower() == ".gz"


def _open_to_read(path: AnyPath) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if _is_gzip(path) else Path(path).open("rb")


def _last_readable_line(path: AnyPath) -> int:
    lines = 0
    with _open_to_read(path) as stream:
        try:
            for _ in stream:
                lines += 1
        except _DAMAGE:
            pass
    return lines
