"""Files of lists: the suffix names the format, several files become one, a folder may be a split.

`FORMATS` is the table of formats. To add one, write a module with a reader and a writer and add a line there.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seq2slate.data.delimited import align_csv, read_csv, read_csv_rows, write_csv
from seq2slate.data.jsonl import read_jsonl, write_jsonl
from seq2slate.data.layouts import Layout
from seq2slate.data.letor import align_letor, read_letor, write_letor
from seq2slate.data.lists import IntArray, ItemLists, Split
from seq2slate.data.parquet import is_own_parquet, parquet_files, read_parquet, read_parquet_rows, write_parquet
from seq2slate.data.roles import Columns, as_columns, given_roles, load_roles, roles_file
from seq2slate.data.tables import check_same_columns
from seq2slate.data.text import AnyPath
from seq2slate.errors import DataError, UsageError


class FileFormat(NamedTuple):
    """How files of one format are named, read and written."""

    suffixes: tuple[str, ...]
    read: Callable[..., ItemLists]
    """Takes the path and, if its columns have names, their roles and whether there must be a label."""
    write: Callable[..., None]
    """Takes the lists and the path, and the layout if there are several."""
    has_names: bool = False
    """Whether its columns have names, so that they can have roles."""
    is_text: bool = True
    """Whether the suffix may be followed by .gz."""
    layouts: tuple[Layout, ...] = ("lists",)
    """What a row may be; the first unless somebody says otherwise."""
    align: Callable[[list[ItemLists]], list[ItemLists]] = list
    """Gives files that belong together the same columns, where a file alone does not tell how many there are."""
    read_rows: Callable[..., tuple[ItemLists, IntArray]] | None = None
    """Takes what `read` does, and also returns the row of each item; None if rows are in the order of the lists."""
    is_own: Callable[[AnyPath], bool] = lambda _: False
    """Says whether seq2slate wrote a file, so that `columns.toml` beside it is meant for others."""


FORMATS = {
    "letor": FileFormat((".txt", ".letor", ".svm", ".svmlight", ".dat"), read_letor, write_letor, align=align_letor),
    "parquet": FileFormat(
        (".parquet",),
        read_parquet,
        write_parquet,
        has_names=True,
        is_text=False,
        layouts=("lists", "items"),
        read_rows=read_parquet_rows,
        is_own=is_own_parquet,
    ),
    "jsonl": FileFormat((".jsonl", ".ndjson"), read_jsonl, write_jsonl, has_names=True),
    "csv": FileFormat(
        (".csv", ".tsv"),
        read_csv,
        write_csv,
        has_names=True,
        layouts=("items",),
        align=align_csv,
        read_rows=read_csv_rows,
    ),
}
"""Every file format, by name."""

SHARED_ROLES = "columns.toml"
"""The file of roles of all data in a folder."""
_PART_OF_WORD = {"train": "train", "vali": "valid", "valid": "valid", "validation": "valid", "test": "test"}


def read(
    path_or_paths: AnyPath | Sequence[AnyPath],
    columns: Columns | Mapping[str, Any] | None = None,
    *,
    format: str | None = None,  # noqa: A002
    labelled: bool = True,
    **roles: Any,
) -> ItemLists:
    r"""Return the lists of a file, of the files that a pattern matches, of several files, or of a folder of Parquet.

    Several files must have the same columns, and no list may stand in two of them. LETOR files get as many features as
    the widest of them. A file `columns.toml` in the folder, or `NAME.columns.toml` for `NAME.csv` alone, may hold the
    roles of columns, with the keys of `Columns`.

    Args:
        path_or_paths: A file, a glob pattern, a folder of Parquet files, or a sequence of these.
        columns: What each column is, as `Columns`; wins over what a file says.
        format: A name in `FORMATS`; the suffix decides if it is not given.
        labelled: Whether a declared label has to be there.
        **roles: Fields of `Columns`, which win over both.

    Raises:
        DataError: The file cannot be read as it is; the message names the row or line.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> _ = (folder / "a.txt").write_text("1 qid:1 1:0.5\n"), (folder / "b.txt").write_text("0 qid:2 3:0.5\n")
    >>> lists = read(folder / "*.txt")
    >>> len(lists), lists.n_features
    (2, 3)

    """
    paths = _expand(path_or_paths)
    if format is not None and format not in FORMATS:
        raise UsageError(f"no format {format!r}; there are {', '.join(FORMATS)}")
    given = given_roles(columns, roles)
    parts = _read_alike(paths, [format or _format_of(path) for path in paths], given, labelled=labelled)
    if len(parts) == 1:
        return parts[0]
    _check_no_list_twice(paths, parts)
    return ItemLists.concat(parts)


def read_with_rows(
    path_or_paths: AnyPath | Sequence[AnyPath], columns: Columns | Mapping[str, Any] | None = None, *, labelled: bool
) -> tuple[ItemLists, IntArray]:
    """Return lists as `read` does, and the row (T,) of the file that each item comes from.

    Where a row is a list, its entries are counted. The items of several files are counted as they are read.
    """
    paths = _expand(path_or_paths)
    form = FORMATS[_format_of(paths[0])]
    if len(paths) > 1 or form.read_rows is None:
        lists = read(path_or_paths, columns, labelled=labelled)
        return lists, np.arange(lists.n_items)
    return form.read_rows(paths[0], _with_roles_file(paths[0], form, given_roles(columns)), labelled=labelled)


def read_split(
    folder: AnyPath,
    columns: Columns | Mapping[str, Any] | None = None,
    *,
    prefix: str | None = None,
    **roles: Any,
) -> Split:
    """Return the train, validation and test lists of a folder.

    Args:
        folder: Holds `train.txt`, `vali.txt` and `test.txt`, as a fold of LETOR does, or the same names in any format.
            Names may have a prefix, as in Yahoo's `set1.train.txt`. The parts get the same number of features.
        columns: What each column is, as `Columns`; wins over a file `columns.toml` in the folder.
        prefix: Chooses among several prefixes. Without it, names that have none come first, then `set1`.
        **roles: Fields of `Columns`, which win over both.

    >>> from tempfile import mkdtemp
    >>> lists = ItemLists([[0], [1], [2]], [0, 1, 2, 3], labels=[0, 1, 0])
    >>> write_split(Split(lists[0], lists[1], lists[2]), folder := mkdtemp())
    >>> read_split(folder).valid.labels.tolist()
    [1.0]

    """
    paths = _parts_of(folder, prefix)
    return Split(*_read_alike(paths, [_format_of(path) for path in paths], given_roles(columns, roles)))


def is_split_folder(path: AnyPath) -> bool:
    """Say whether a path is a folder that `read_split` can read."""
    try:
        _parts_of(path, None)
    except DataError:
        return False
    return True


def write(lists: ItemLists, path: AnyPath, *, layout: Layout | None = None) -> None:
    """Write lists to a file in the format of its suffix. The file appears whole or not at all.

    Args:
        lists: What to write.
        path: The file. Parquet holds everything; what another format cannot hold is a DataError.
        layout: "lists" for one row per list, "items" for one row per item. Only Parquet has the choice, and takes
            "lists" if it is None.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "one.jsonl"
    >>> write(ItemLists([[0.5]], [0, 1], labels=[1]), path)
    >>> read(path).features.tolist()
    [[0.5]]

    """
    form = FORMATS[_format_of(Path(path))]
    layout = layout or form.layouts[0]
    if layout not in form.layouts:
        able = [suffix for other in FORMATS.values() if layout in other.layouts for suffix in other.suffixes]
        raise UsageError(f"{path}: layout {layout!r} needs a {' or '.join(able)} file")
    if len(form.layouts) > 1:
        form.write(lists, path, layout)
    else:
        form.write(lists, path)


def write_split(split: Split, folder: AnyPath, *, layout: Layout | None = None) -> None:
    """Write `train.parquet`, `valid.parquet` and `test.parquet`, which `read_split` reads."""
    for name, lists in split._asdict().items():
        write(lists, Path(folder) / f"{name}.parquet", layout=layout)


def _read_alike(
    paths: list[Path], formats: list[str], given: Mapping[str, Any], *, labelled: bool = True
) -> list[ItemLists]:
    """Return the lists of each file, after checking that all have the same columns."""
    parts = [
        _read_file(path, FORMATS[name], given, labelled=labelled) for path, name in zip(paths, formats, strict=True)
    ]
    if len(set(formats)) == 1:
        parts = FORMATS[formats[0]].align(parts)
    for path, part in zip(paths, parts, strict=True):
        check_same_columns(parts[0], part, str(paths[0]), str(path))
    return parts


def _read_file(path: Path, form: FileFormat, given: Mapping[str, Any], *, labelled: bool) -> ItemLists:
    if form.has_names:
        return form.read(path, _with_roles_file(path, form, given), labelled=labelled)
    if changes := as_columns(given).changes():
        raise UsageError(
            f"{path}: its columns have no names, so there can be no {next(iter(changes))}; roles are for tables, such "
            "as Parquet and CSV"
        )
    return form.read(path)


def _with_roles_file(path: Path, form: FileFormat, given: Mapping[str, Any]) -> Columns:
    """Return the roles that a file beside the data declares, with those that were given in their place."""
    own, shared = roles_file(path), path.with_name(SHARED_ROLES)
    if own.exists():
        return as_columns(load_roles(own), given)
    if shared.exists() and not form.is_own(path):
        return as_columns(load_roles(shared), given)
    return as_columns(given)


def _expand(path_or_paths: AnyPath | Sequence[AnyPath]) -> list[Path]:
    """Return the files that are meant."""
    if not isinstance(path_or_paths, str | os.PathLike):
        if not path_or_paths:
            raise UsageError("no files to read")
        return [file for path in path_or_paths for file in _expand(path)]
    path = Path(path_or_paths)
    if path.is_dir():
        if is_split_folder(path):
            names = " or ".join(part.name for part in _parts_of(path, None))
            raise DataError(f"{path}: the folder holds a split; read its parts with read_split, or name one: {names}")
        return parquet_files(path)
    if not path.exists() and glob.has_magic(str(path)):
        if matches := sorted(glob.glob(str(path))):
            return [Path(match) for match in matches]
        raise DataError(f"{path}: no file matches this pattern")
    if not path.exists():
        raise DataError(f"{path}: no such file")
    return [path]


def _stem_and_format(path: Path) -> tuple[str, str | None]:
    """Return the name without its suffixes, and what they stand for."""
    is_packed = path.suffix.lower() == ".gz"
    bare = Path(path.stem if is_packed else path.name)
    for name, form in FORMATS.items():
        if bare.suffix.lower() in form.suffixes and (form.is_text or not is_packed):
            return bare.stem, name
    return bare.stem, None


def _format_of(path: Path) -> str:
    _, name = _stem_and_format(path)
    if name is None:
        known = ", ".join(suffix for form in FORMATS.values() for suffix in form.suffixes)
        raise DataError(f"{path}: unknown suffix; expected one of {known} (text also with .gz), or name the format")
    return name


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
