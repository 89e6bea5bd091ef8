"""LETOR / SVMlight text, plain or gzip: `label qid:… 1:… 2:… # comment`.

The file is read in chunks of whole lines: memory stays near the size of the result. Arrow parses the `index:value`
pairs of a chunk as one table with two columns, or scikit-learn, three times as slow, if some are in no plain notation.
An invalid chunk is parsed again line by line, to say which line is invalid and why. Query ids may be any text.

A comment that begins with `docid = X` (or `item_id = X`) names the item; the rest of it is kept in a categorical column
`comment`, and written back. A feature that a line leaves out is 0; a missing one is written as `nan`. A number beyond
float32 becomes the largest float32: Istella marks missing values with 1.79769313486232e+308, which overflows even
float64.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from seq2slate.data.lists import (
    FloatArray,
    IntArray,
    ItemLists,
    Strings,
    default_feature_names,
    numbers_as_strings,
)
from seq2slate.data.text import AnyPath, line_chunks, text_writer
from seq2slate.errors import DataError

COMMENT = "comment"
"""The categorical column that holds the comments."""

_CHUNK_BYTES = 2**20  # larger ones are slower: they leave the caches of the processor
_ROWS_AT_ONCE = 4096
_MOST_DIGITS = 100  # of an index: Python refuses to make a number of thousands
_MOST_SHOWN = 60
_HIGHEST_INDEX = 100_000  # far above any data set: a typo in an index should not allocate terabytes
_ITEM = re.compile(rb"\s*[^\s#]+\s+qid:([^\s#]+)")
_INFINITE = re.compile(rb":[^\s\d]*inf", re.IGNORECASE)
_LARGEST = np.finfo(np.float32).max
_TOO_LARGE = 2.0**128 - 2.0**103  # the smallest number that rounds to an infinite float32
_PLAIN = b"0123456789+-.:eEnaN\n"  # what numbers and nan consist of; Arrow takes 0x1 and nan(1) for numbers, too
_SPACE_TO_LINE_END = bytes.maketrans(b" \t\r\v\f", b"\n" * 5)
_DOCID = re.compile(rb"\s*(?:docid|item_id)\s*=\s*(\S+)")


class _Block(NamedTuple):
    """The items of one chunk."""

    features: FloatArray  # as wide as the highest index in the chunk
    labels: FloatArray
    qids: Strings
    item_ids: Strings
    comments: Strings


class _Lines(NamedTuple):
    """The parts of the lines with data of one chunk."""

    labels: list[float]
    qids: list[bytes]
    pairs: list[bytes]
    comments: list[bytes]


class _Pairs(NamedTuple):
    """The `index:value` pairs of one chunk, item after item."""

    counts: npt.NDArray[np.int64]  # how many each item has
    indices: npt.NDArray[np.integer[Any]]  # from 1
    values: npt.NDArray[np.float64]


def read_letor(path: AnyPath, *, n_features: int | None = None, chunk_bytes: int = _CHUNK_BYTES) -> ItemLists:
    r"""Return the lists of a LETOR file.

    Args:
        path: The file; the lines of a list (one qid) must be adjacent.
        n_features: The number of features; the highest feature index in the file if not given.
        chunk_bytes: How much text is parsed at once.

    Raises:
        DataError: A line is invalid; the message names it.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "two.txt"
    >>> _ = path.write_text("1 qid:a 1:0.5 3:2 # docid = x\n0 qid:a 2:1 # docid = y\n0 qid:b 1:7 # docid = x\n")
    >>> lists = read_letor(path)
    >>> lists.list_ids.to_pylist(), lists.lengths.tolist(), lists.item_ids.to_pylist()
    (['a', 'b'], [2, 1], ['x', 'y', 'x'])
    >>> lists.features.tolist()
    [[0.5, 0.0, 2.0], [0.0, 1.0, 0.0], [7.0, 0.0, 0.0]]

    """
    blocks = [_parse(chunk, n_features, path, first_line) for first_line, chunk in line_chunks(path, chunk_bytes)]
    if not any(len(block.labels) for block in blocks):
        raise DataError(f"{path}, line 1: the file holds no lists")
    return _joined(blocks, n_features, partial(_place_of_item, path))


def align_letor(parts: list[ItemLists]) -> list[ItemLists]:
    """Return the lists of several files with as many features as the widest, and all with comments if any has them.

    >>> narrow, wide = ItemLists([[1]], [0, 1]), ItemLists([[2, 3]], [0, 1])
    >>> [part.features.tolist() for part in align_letor([narrow, wide])]
    [[[1.0, 0.0]], [[2.0, 3.0]]]
    """
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


def _parse(chunk: bytes, n_features: int | None, path: AnyPath, first_line: int) -> _Block:
    try:
        lines = _split(chunk)
        labels = _labels(lines.labels)
        features = _matrix(_read_pairs(lines.pairs), _HIGHEST_INDEX if n_features is None else n_features)
    except (ValueError, OverflowError) as error:
        raise _fault_of_chunk(chunk, n_features, path, first_line) from error
    docids = [_DOCID.match(comment) for comment in lines.comments]
    remarks = [
        comment[docid.end() :] if docid else comment for comment, docid in zip(lines.comments, docids, strict=True)
    ]
    return _Block(
        features=features,
        labels=labels,
        qids=_strings(lines.qids),
        item_ids=_strings(docid and docid[1] for docid in docids),
        comments=_strings(remark.strip() or None for remark in remarks),
    )


def _split(chunk: bytes) -> _Lines:
    """Return the parts of every line with data."""
    parts = _Lines([], [], [], [])
    for line in chunk.split(b"\n"):
        data, _, comment = line.partition(b"#")
        tokens = data.split(None, 2)
        if not tokens:
            continue
        label, qid, *pairs = tokens
        if not qid.startswith(b"qid:") or qid == b"qid:":
            raise ValueError("a line without qid")
        parts.labels.append(float(label))
        parts.qids.append(qid[4:])
        parts.pairs.append(b"".join(pairs))
        parts.comments.append(comment)
    return parts


def _labels(numbers: list[float]) -> FloatArray:
    with np.errstate(over="ignore"):  # a label beyond float32 becomes infinite
        labels = np.array(numbers, dtype=np.float64).astype(np.float32)
    if not ((labels >= 0) & np.isfinite(labels)).all():
        raise ValueError("a label is negative, infinite or nan")
    return labels


def _matrix(pairs: _Pairs, most_features: int) -> FloatArray:
    """Return the features, as wide as the highest index."""
    width = int(pairs.indices.max(initial=0))
    if width > most_features or pairs.indices.min(initial=1) < 1:
        raise ValueError("a feature index is out of range")
    values = np.clip(pairs.values, -_LARGEST, _LARGEST).astype(np.float32)
    places = np.repeat(np.arange(len(pairs.counts)) * width - 1, pairs.counts) + pairs.indices
    if not (places[1:] > places[:-1]).all():
        raise ValueError("the feature indices of an item do not rise")
    shape = (len(pairs.counts), width)
    if len(values) == shape[0] * shape[1]:  # then the places are 0, 1, 2, …
        return values.reshape(shape)
    features = np.zeros(shape, dtype=np.float32)
    features.reshape(-1)[places] = values
    return features


def _read_pairs(texts: list[bytes]) -> _Pairs:
    """Return the pairs of the items, given the text of each: `1:… 2:… …`.

    Raises:
        ValueError, OverflowError: A text is invalid, or has an infinite value.
    """
    try:
        return _read_plain_pairs(texts)
    except ValueError:
        return _read_any_pairs(texts)


def _read_plain_pairs(texts: list[bytes]) -> _Pairs:
    """Let Arrow read a pair a row; it refuses some notations that Python accepts, such as 1_000."""
    rows = (b"\n" + b"\n".join(texts)).translate(_SPACE_TO_LINE_END)
    if rows.translate(None, delete=_PLAIN):
        raise ValueError("not only plain numbers")
    table = csv.read_csv(
        pa.BufferReader(rows),
        csv.ReadOptions(use_threads=False, column_names=["index", "value"]),
        csv.ParseOptions(delimiter=":", quote_char=False),
        csv.ConvertOptions(column_types={"index": pa.int32(), "value": pa.float64()}, null_values=[]),
    )
    counts = np.array([text.count(b":") for text in texts], dtype=np.int64)
    return _Pairs(counts, table["index"].to_numpy(), table["value"].to_numpy())


def _read_any_pairs(texts: list[bytes]) -> _Pairs:
    from sklearn.datasets import load_svmlight_file  # takes a second to import

    lines = b"\n".join([b"0 qid:0 " + text for text in texts])
    table, _ = load_svmlight_file(BytesIO(lines), dtype=np.float64, zero_based=False)
    if np.isinf(table.data).any() and _INFINITE.search(lines):  # a numeral that overflows float64 is finite
        raise ValueError("an infinite value")
    return _Pairs(np.diff(table.indptr), table.indices + 1, table.data)


def _strings(texts: Iterable[bytes | None]) -> Strings:
    return pa.array([text and text.decode("utf-8", "backslashreplace") for text in texts], type=pa.large_string())


def _joined(blocks: list[_Block], n_features: int | None, where: Callable[[int], str]) -> ItemLists:
    """Concatenate the blocks, freeing each once it is copied."""
    labels = np.concatenate([block.labels for block in blocks])
    qids, item_ids, comments = (pa.concat_arrays(column) for column in list(zip(*blocks, strict=True))[2:])
    if 0 < item_ids.null_count < len(item_ids):
        item = int(item_ids.is_null().to_numpy(False).argmax())
        raise DataError(f"{where(item)}: no docid, though other lines have one; give every line one or none")
    width = max(block.features.shape[1] for block in blocks) if n_features is None else n_features
    features = np.zeros((len(labels), width), dtype=np.float32)
    end = len(labels)
    while blocks:
        block = blocks.pop()
        features[end - len(block.labels) : end, : block.features.shape[1]] = block.features
        end -= len(block.labels)
    starts = _list_starts(qids, where)
    lists = ItemLists(
        features=features,
        offsets=np.append(starts, len(labels)),
        labels=labels,
        list_ids=qids.take(pa.array(starts)),
        item_ids=None if item_ids.null_count else item_ids,
        categorical={} if comments.null_count == len(comments) else {COMMENT: comments},
    )
    return lists.checked(where)


def _list_starts(qids: Strings, where: Callable[[int], str]) -> IntArray:
    """Return the first item of each list; the items of a qid must be adjacent."""
    codes = qids.dictionary_encode().indices.to_numpy()
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    returns = np.setdiff1d(np.arange(len(starts)), np.unique(codes[starts], return_index=True)[1])
    if len(returns):
        raise DataError(
            f"{where(int(starts[returns[0]]))}: the qid comes back after another one; "
            "sort the file so that the lines of a list stand together"
        )
    return starts


# Error messages


def _place_of_item(path: AnyPath, item: int) -> str:
    """Name the line of an item, for an error message; this reads the file once more."""
    for first_line, chunk in line_chunks(path, _CHUNK_BYTES):
        lines = [(number, line) for number, line in enumerate(chunk.split(b"\n"), first_line) if _tokens(line)]
        if item < len(lines):
            return _place(path, *lines[item])
        item -= len(lines)
    return str(path)


def _place(path: AnyPath, number: int, line: bytes) -> str:
    qid = _ITEM.match(line)
    return f"{path}, line {number}" + (f" (list {_text(qid[1])!r})" if qid else "")


def _fault_of_chunk(chunk: bytes, n_features: int | None, path: AnyPath, first_line: int) -> DataError:
    """Return the error of the first invalid line; this is slow."""
    for number, line in enumerate(chunk.split(b"\n"), first_line):
        if fault := _fault(_tokens(line), n_features):
            return DataError(f"{_place(path, number, line)}: {fault}")
    return DataError(f"{path}, line {first_line} and after: scikit-learn cannot read this as LETOR text")


def _fault(tokens: list[bytes], n_features: int | None) -> str | None:
    """Say why a line is invalid, or return None."""
    if not tokens:
        return None
    label = _number(tokens[0])
    if label is None or not abs(label) < _TOO_LARGE:
        return f"the label {_text(tokens[0])!r} is not a finite number"
    if label < 0:
        return f"the label {label:g} is negative; clicks are 0 or 1, grades 0 and up"
    if len(tokens) < 2 or not re.fullmatch(rb"qid:\S+", tokens[1]):
        return "no `qid:` after the label; every line must name its list"
    last = 0
    for token in tokens[2:]:
        index_text, _, value_text = token.partition(b":")
        value = _number(value_text)
        if value is None or not index_text.isdigit():
            return f"{_text(token)!r} is not `index:value`"
        if len(index_text.lstrip(b"0")) > _MOST_DIGITS:
            return f"feature {_text(index_text)}, which has {len(index_text):,} digits: no file has so many features"
        index = int(index_text)
        if _INFINITE.search(token):
            return f"feature {index} is {value:g}; every feature must be finite or nan"
        if index < 1:
            return "feature index 0; LETOR counts its features from 1"
        if index <= last:
            return f"feature {index} comes after feature {last}; indices must rise"
        if n_features is not None and index > n_features:
            return f"feature {index}, but there should be only {n_features}"
        if n_features is None and index > _HIGHEST_INDEX:
            return f"feature {index}, but indices end at {_HIGHEST_INDEX}; say how many features there are to go beyond"
        last = index
    return None


def _tokens(line: bytes) -> list[bytes]:
    return line.partition(b"#")[0].split()


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "backslashreplace")
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


# Writing


def write_letor(lists: ItemLists, path: AnyPath) -> None:
    """Write lists as LETOR text, every feature on every line; reading it back gives the same float32 numbers.

    Item ids other than base positions are written as `# docid = X`.

    Raises:
        DataError: The lists have something that the format cannot hold, such as context columns or empty lists.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "one.txt"
    >>> write_letor(ItemLists([[0.5, 2]], [0, 1], labels=[1], list_ids=["a"], item_ids=["x"]), path)
    >>> path.read_text().strip()
    '1 qid:a 1:0.5 2:2 # docid = x'

    """
    if obstacles := _obstacles(lists.checked()):
        raise DataError(
            f"{path}: LETOR text cannot hold {'; '.join(obstacles)}. Write Parquet instead, or drop or rename them"
        )
    assert lists.labels is not None, "lists without labels are an obstacle"
    comments = lists.categorical.get(COMMENT)
    names_items = not lists.item_ids.equals(numbers_as_strings(lists.positions))
    if comments is not None and not names_items:  # or the comment would be read as an item id
        names_items = any(_DOCID.match(comment.encode()) for comment in comments.drop_null().to_pylist())
    qids = lists.list_ids.take(pa.array(lists.list_index))
    with text_writer(path) as stream:
        for start in range(0, lists.n_items, _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            remarks = None if comments is None else comments[rows]
            tail = _tail(lists.item_ids[rows] if names_items else None, remarks)
            columns = [_numerals(lists.labels[rows]), _join("qid", qids[rows], by=":"), _pairs(lists.features[rows])]
            lines = _join(*columns, *tail, by=" ", nulls="skip")
            stream.write("\n".join([*lines.to_pylist(), ""]).encode())


def _pairs(features: FloatArray) -> Strings:
    """Return each row as `1:… 2:… …`."""
    n_rows, n_features = features.shape
    names = pa.array([str(index + 1) for index in range(n_features)] * n_rows, type=pa.large_string())
    pairs = _join(names, _numerals(features.ravel()), by=":")
    ends = pa.array(np.arange(n_rows + 1, dtype=np.int32) * n_features)
    return pc.binary_join(pa.ListArray.from_arrays(ends, pairs), pa.scalar(" ", pa.large_string()))


def _tail(item_ids: Strings | None, comments: Strings | None) -> list[Strings]:
    if item_ids is not None:
        return [_join("# docid =", item_ids, by=" "), *([] if comments is None else [comments])]
    return [] if comments is None else [_join("#", comments, by=" ")]


def _numerals(values: FloatArray) -> Strings:
    """Return the shortest numerals that parse to the same float32."""
    return pa.array(values).cast(pa.large_string())


def _join(*columns: str | Strings, by: str, nulls: str = "emit_null") -> Strings:
    """Join columns row by row; a null makes the row null, or is skipped."""
    large = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in (*columns, by)]
    return pc.binary_join_element_wise(*large, null_handling=nulls)


def _obstacles(lists: ItemLists) -> list[str]:
    """Name what the lists have and LETOR text cannot hold."""
    columns = sorted(set(lists.categorical) - {COMMENT})
    found = {
        "a file without lists": not len(lists),
        "empty lists": (lists.lengths == 0).any(),
        "lists without labels": lists.labels is None,
        "feature names of your own": lists.feature_names != default_feature_names(lists.n_features),
        f"categorical columns ({', '.join(columns)})": columns,
        f"context columns ({', '.join(lists.context)})": lists.context,
        "impressions": lists.impressions is not None,
        "relevance": lists.relevance is not None,
        "relevance probabilities": lists.relevance_probability is not None,
        "a list id that stands twice": len(lists.list_ids.unique()) < len(lists),
        "ids that are empty or contain spaces, control characters or '#'": any(
            pc.any(pc.match_substring_regex(ids, r"^$|[\x00-\x20#]")).as_py()
            for ids in (lists.list_ids, lists.item_ids)
        ),
        "comments that are empty, begin or end with a space, or contain a line break": COMMENT in lists.categorical
        and pc.any(pc.match_substring_regex(lists.categorical[COMMENT], r"^$|^[\s\v]|[\s\v]$|[\r\n]")).as_py(),
    }
    return [obstacle for obstacle, is_there in found.items() if is_there]
