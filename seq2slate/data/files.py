"""The front door for files: the suffix names the format, several files become one, a folder may be a split.

| suffix (each text format also with .gz) | format |
|---|---|
| .txt .letor .svm .svmlight .dat | LETOR / SVMlight text |
| .parquet | Parquet |
| .jsonl .ndjson | JSON lines |
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from seq2slate.data.jsonl import read_jsonl, write_jsonl
from seq2slate.data.letor import COMMENT, read_letor, write_letor
from seq2slate.data.lists import ItemLists, Split, default_feature_names
from seq2slate.data.parquet import parquet_files, read_parquet, write_parquet
from seq2slate.data.tables import Layout, check_same_columns
from seq2slate.data.text import AnyPath
from seq2slate.errors import DataError, UsageError

Format: TypeAlias = Literal["letor", "parquet", "jsonl"]

_FORMATS: dict[str, Format] = {
    ".txt": "letor",
    ".letor": "letor",
    ".svm": "letor",
    ".svmlight": "letor",
    ".dat": "letor",
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_READERS: dict[Format, Callable[[AnyPath], ItemLists]] = {
    "letor": read_letor,
    "parquet": read_parquet,
    "jsonl": read_jsonl,
}
_PART_OF_WORD = {"train": "train", "vali": "valid", "valid": "valid", "validation": "valid", "test": "test"}


def read(path_or_paths: AnyPath | Sequence[AnyPath], *, format: Format | None = None) -> ItemLists:  # noqa: A002
    r"""Return the lists of a file, of the files that a pattern matches, of several files, or of a folder of Parquet.

    The format comes from the suffix unless it is given. Several files must have the same columns, LETOR files as many
    as the widest of them, and no list may stand in two of them.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> _ = (folder / "a.txt").write_text("1 qid:1 1:0.5\n"), (folder / "b.txt").write_text("0 qid:2 3:0.5\n")
    >>> lists = read(folder / "*.txt")
    >>> len(lists), lists.n_features
    (2, 3)
    """
    paths = _expand(path_or_paths)
    if format is not None and format not in _READERS:
        raise UsageError(f"no format {format!r}; there are {', '.join(_READERS)}")
    formats = [format or _format_of(path) for path in paths]
    parts = [_READERS[form](path) for path, form in zip(paths, formats, strict=True)]
    if len(parts) == 1:
        return parts[0]
    if set(formats) == {"letor"}:
        parts = _same_width(parts)
    for path, part in zip(paths, parts, strict=True):
        check_same_columns(parts[0], part, str(paths[0]), str(path))
    _check_no_list_twice(paths, parts)
    return ItemLists.concat(parts)


def read_split(folder: AnyPath, *, prefix: str | None = None) -> Split:
    """Return the three parts of a folder: `train.txt vali.txt test.txt` of a fold, or the same names in any format.

    Names may have a prefix, as in Yahoo's `set1.train.txt`. If the folder has several, `prefix` chooses; without it
    names that have none come first, then `set1`. The parts get the same number of features.
    """
    paths = _parts_of(folder, prefix)
    parts = [read(path) for path in paths]
    if {_format_of(path) for path in paths} == {"letor"}:
        parts = _same_width(parts)
    for path, part in zip(paths, parts, strict=True):
        check_same_columns(parts[0], part, str(paths[0]), str(path))
    return Split(*parts)


def is_split_folder(path: AnyPath) -> bool:
    """Say whether a path is a folder that `read_split` can read."""
    try:
        _parts_of(path, None)
    except DataError:
        return False
    return True


def write(lists: ItemLists, path: AnyPath, *, layout: Layout = "lists") -> None:
    """Write lists to a file in the format of its suffix; only Parquet has a `layout` other than one row per list.

    The file appears whole or not at all. What a format cannot hold is a DataError: Parquet holds everything.
    """
    form = _format_of(Path(path))
    if form == "parquet":
        write_parquet(lists, path, layout)
    elif layout != "lists":
        raise UsageError(f"{path}: layout {layout!r} needs a .parquet file")
    elif form == "jsonl":
        write_jsonl(lists, path)
    else:
        write_letor(lists, path)


def write_split(split: Split, folder: AnyPath, *, layout: Layout = "lists") -> None:
    """Write `train.parquet`, `valid.parquet` and `test.parquet`, which `read_split` reads."""
    for name, lists in zip(Split._fields, split, strict=True):
        write_parquet(lists, Path(folder) / f"{name}.parquet", layout)


def _expand(path_or_paths: AnyPath | Sequence[AnyPath]) -> list[Path]:
    """Return the files that are meant."""
    if not isinstance(path_or_paths, str | os.PathLike):
        if not path_or_paths:
            raise UsageError("no files to read")
        return [file for path in path_or_paths for file in _expand(path)]
    path = Path(path_or_paths)
    if path.is_dir():
        if is_split_folder(path):
            raise DataError(f"{path}: the folder holds a split; read its parts with read_split, or name one of them")
        return parquet_files(path)
    if not path.exists() and glob.has_magic(str(path)):
        if matches := sorted(glob.glob(str(path))):
            return [Path(match) for match in matches]
        raise DataError(f"{path}: no file matches this pattern")
    if not path.exists():
        raise DataError(f"{path}: no such file")
    return [path]


def _stem_and_format(path: Path) -> tuple[str, Format | None]:
    """Return the name without its suffixes, and what they stand for."""
    is_packed = path.suffix.lower() == ".gz"
    name = Path(path.stem if is_packed else path.name)
    form = _FORMATS.get(name.suffix.lower())
    return name.stem, None if is_packed and form == "parquet" else form


def _format_of(path: Path) -> Format:
    _, form = _stem_and_format(path)
    if form is None:
        known = ", ".join(_FORMATS)
        raise DataError(f"{path}: unknown suffix; expected one of {known} (text also with .gz), or name the format")
    return form


def _same_width(parts: list[ItemLists]) -> list[ItemLists]:
    """Return LETOR lists with as many features as the widest, and all with comments if any has them."""
    width = max(part.n_features for part in parts)
    with_comments = any(part.categorical for part in parts)
    return [_widened(part, width, with_comments) for part in parts]


def _widened(lists: ItemLists, width: int, with_comments: bool) -> ItemLists:
    if with_comments and not lists.categorical:
        lists = replace(lists, categorical={COMMENT: pa.nulls(lists.n_items, pa.large_string())})
    if lists.n_features == width:
        return lists
    features = np.zeros((lists.n_items, width), dtype=np.float32)
    features[:, : lists.n_features] = lists.features
    return replace(lists, features=features, feature_names=default_feature_names(width))


def _check_no_list_twice(paths: list[Path], parts: list[ItemLists]) -> None:
    owners: dict[str, Path] = {}
    for path, part in zip(paths, parts, strict=True):
        ids = part.list_ids.to_pylist()
        for name in ids:
            if name in owners:
                raise DataError(f"list {name!r} stands in {owners[name]} and in {path}; give every list its own id")
        owners.update(dict.fromkeys(ids, path))


def _parts_of(folder: AnyPath, wanted_prefix: str | None) -> list[Path]:
    """Return the train, validation and test file of a folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    splits: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        stem, form = _stem_and_format(path)
        prefix, _, word = stem.rpartition(".")
        part = _PART_OF_WORD.get(word.lower())
        if form is None or part is None:
            continue
        files = splits.setdefault(prefix, {})
        if part in files:
            raise DataError(f"{folder}: both {files[part].name} and {path.name} look like the {part} part; keep one")
        files[part] = path
    files = splits[_choose_prefix(folder, list(splits), wanted_prefix)]
    if missing := [part for part in Split._fields if part not in files]:
        there = ", ".join(path.name for path in files.values())
        raise DataError(f"{folder}: no {' and no '.join(missing)} file beside {there}; a split needs all three")
    return [files[part] for part in Split._fields]


def _choose_prefix(folder: Path, prefixes: list[str], wanted: str | None) -> str:
    if not prefixes:
        raise DataError(f"{folder}: no data here; expected train, valid (or vali) and test files")
    for candidate in ("", "set1") if wanted is None else (wanted,):
        if candidate in prefixes:
            return candidate
    if wanted is None and len(prefixes) == 1:
        return prefixes[0]
    raise DataError(f"{folder}: which split? The names begin with {', '.join(map(repr, prefixes))}; choose a prefix")
