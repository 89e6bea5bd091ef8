"""Looking for damage in a log: what the database finds itself, checksums of rows, and counts that the rows bear out.

A database notices damage to its structure, not a byte that flips inside a value. So every impression, click and
definition of an experiment has a checksum, and a set of columns is named by its hash. The running counts have none: the
database adds to them. They are compared with the rows, which are counted again into a temporary file.

Of slates that were pruned only the counts are left. Then no count may be below that of the rows, and the counts of
units, minutes, slots and fallbacks must add up to those of their arms.

A check reads one snapshot of the log and writes nothing to it. Memory does not grow with the log.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from seq2slate.data.impressions import Impression, ItemColumns
from seq2slate.errors import DataError
from seq2slate.log.backend import Backend, Connection, Row
from seq2slate.log.reading import from_row, parse_columns
from seq2slate.log.schema import ARM_SUMS, COUNTS, IMPRESSION, MIGRATIONS, checksum, migrate
from seq2slate.log.sqlite import SqliteBackend
from seq2slate.log.writer import add_counts, columns_key, count_again, impression_checksum
from seq2slate.progress import track

Found = TypeVar("Found")

_PAGE = 512  # rows in memory
_MOST_PROBLEMS = 20  # that are named
_COLUMNS = IMPRESSION.split(", ").index("columns")
_EXACT_SUMS = ("arm_counts", "draft_counts")  # squares and products: of units that are partly pruned they say nothing


@dataclass
class LogReport:
    """What a check found."""

    slates: int = 0
    clicks: int = 0
    unchecked: int = 0
    """Rows without a checksum: earlier versions wrote them."""
    damaged: int = 0
    """How many problems there are; the first of them are named."""
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Note a problem."""
        self.damaged += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)

    def compare(self, what: str, stored: int | None, compute: Callable[..., int], *row: Any) -> None:
        """Note a row whose checksum is another one, or cannot be computed since a value is of another type."""
        if stored is None:
            self.unchecked += 1
            return
        try:
            is_whole = compute(*row) == stored
        except (TypeError, ValueError):
            is_whole = False
        if not is_whole:
            self.add(f"{what}: the row does not match its checksum")


def check_log(backend: Backend) -> LogReport:
    """Look for damage in a log, which may be in use.

    Raises:
        DataError: There is no log, or one of another version.
        LogError: The database does not respond.
    """
    report = LogReport()
    with (
        closing(backend.connect(read_only=True)) as connection,
        tempfile.TemporaryDirectory(prefix="seq2slate-check-") as folder,
        closing(SqliteBackend(Path(folder) / "counts.db").connect()) as recount,
        connection.transaction(),
    ):
        migrate(recount, create=True)
        _check_version(connection)
        for step in track((_check_structure, _check_columns, _check_definitions, _check_sequence), "checking tables"):
            _attempt(connection, report, step)
        _check_rows(connection, report, recount)
        if not report.damaged:  # or what they should be is not known
            _attempt(connection, report, _check_counts, recount)
    return report


def _check_version(connection: Connection) -> None:
    try:
        versions = [number for (number,) in connection.rows("SELECT number FROM seq2slate_migrations ORDER BY number")]
    except Exception as error:  # each driver has its own
        raise DataError(f"{connection.name}: holds no log of seq2slate, or is damaged: {error}") from error
    if versions != list(range(1, len(MIGRATIONS) + 1)):
        raise DataError(
            f"{connection.name}: written by another version of seq2slate (steps {versions} of the log's tables, this "
            f"version has {len(MIGRATIONS)}), or damaged; a service or an export of this version upgrades an older log"
        )


def _attempt(connection: Connection, report: LogReport, step: Callable[..., None], *more: Any) -> None:
    """Run a step; what the database cannot read is a problem, and the transaction goes on."""
    try:
        _undone_if_it_raises(connection, step, connection, report, *more)
    except Exception as error:  # each driver has its own
        report.add(f"cannot be read: {error}")


def _rows(connection: Connection, sql: str, values: Sequence[Any] = ()) -> list[Row]:
    return _undone_if_it_raises(connection, connection.rows, sql, values)


def _undone_if_it_raises(connection: Connection, read: Callable[..., Found], *arguments: Any) -> Found:
    """Return what a function returns; if it raises, the transaction is as it was before, and can go on."""
    connection.rows("SAVEPOINT before")
    try:
        return read(*arguments)
    except BaseException:
        connection.rows("ROLLBACK TO SAVEPOINT before")
        raise
    finally:
        connection.rows("RELEASE SAVEPOINT before")


# What is small


def _check_structure(connection: Connection, report: LogReport) -> None:
    for problem in connection.structural_damage():
        report.add(f"structure: {problem}")


def _check_columns(connection: Connection, report: LogReport) -> None:
    for key, text in connection.rows("SELECT key, columns FROM column_sets"):
        if key != "probe" and columns_key(text) != key:
            report.add(f"column set {key!r}: the names do not match their hash")


def _check_definitions(connection: Connection, report: LogReport) -> None:
    for *row, stored in connection.rows("SELECT experiment, control, weights, models, checksum FROM definitions"):
        report.compare(f"experiment {row[0]!r}: its definition", stored, checksum, row)


def _check_sequence(connection: Connection, report: LogReport) -> None:
    last = connection.rows("SELECT last FROM commit_sequence")
    highest = connection.rows("SELECT COALESCE(MAX(sequence), 0) FROM impressions")[0][0]
    if len(last) != 1 or not last[0][0] >= highest:
        report.add(f"commit sequence: {last} should be one number, and at least {highest}, the highest of a slate")
    for number, slates in connection.rows(
        "SELECT sequence, COUNT(*) FROM impressions WHERE sequence > 0 GROUP BY sequence HAVING COUNT(*) > 1 "
        f"ORDER BY sequence LIMIT {_MOST_PROBLEMS}"
    ):
        report.add(f"commit sequence: {slates} slates have the number {number}")


# Rows


def _check_rows(connection: Connection, report: LogReport, recount: Connection) -> None:
    """Check every impression with its clicks, and count them again."""
    try:
        columns = {key: parse_columns(text) for key, text in _rows(connection, "SELECT key, columns FROM column_sets")}
        n_slates, n_clicks = (
            int(_rows(connection, f"SELECT COUNT(*) FROM {table}")[0][0]) for table in ("impressions", "clicks")
        )
    except Exception as error:  # each driver has its own
        report.add(f"cannot be read: {error}")
        return
    pages = _pages(connection, report, "impressions", ("sequence", "slate_id"), f"{IMPRESSION}, checksum", n_slates)
    for page in track(pages, "checking slates", total=-(-n_slates // _PAGE)):
        clicks = _clicks(connection, report, [row[1] for row in page])
        whole = [one for row in page if (one := _check_slate(report, row, columns, clicks.get(row[1], {})))]
        with recount.transaction():
            count_again(recount, whole)
        report.slates += len(page)
        report.clicks += sum(map(len, clicks.values()))
    for what, counted, there in (("slates", report.slates, n_slates), ("clicks", report.clicks, n_clicks)):
        if counted != there:
            report.add(f"{counted:,} of {there:,} {what} can be found; others cannot, or belong to no slate")


def _check_slate(
    report: LogReport, row: Row, columns: Mapping[str, ItemColumns], clicks: Mapping[int, float]
) -> Impression | None:
    """Return an impression, or None if it cannot be made of its row."""
    sequence, slate_id, *values, stored = row
    before = report.damaged
    report.compare(f"slate {slate_id!r}", stored, impression_checksum, tuple(values), sequence)
    try:
        return from_row(tuple(values), columns[values[_COLUMNS]], clicks)
    except Exception as error:  # what can be wrong with bytes that may be anything is endless
        if report.damaged == before:
            report.add(f"slate {slate_id!r}: the row cannot be read: {error!r}")
        return None


def _clicks(connection: Connection, report: LogReport, slate_ids: Sequence[str]) -> dict[str, dict[int, float]]:
    """Return the clicks of some slates, after a look at their checksums."""
    sql = "SELECT slate_id, item, at, checksum FROM clicks WHERE slate_id IN ({}) ORDER BY item"
    found: dict[str, dict[int, float]] = {}
    try:
        rows = _rows(connection, sql.format(", ".join("?" * len(slate_ids))), slate_ids)
    except Exception as error:  # each driver has its own
        if len(slate_ids) == 1:
            report.add(f"slate {slate_ids[0]!r}: its clicks cannot be read: {error}")
            return {}
        middle = len(slate_ids) // 2
        return _clicks(connection, report, slate_ids[:middle]) | _clicks(connection, report, slate_ids[middle:])
    for *row, stored in rows:
        slate_id, item, at = row
        report.compare(f"slate {slate_id!r}: its click on item {item}", stored, checksum, row)
        found.setdefault(slate_id, {})[item] = at
    return found


def _pages(
    connection: Connection, report: LogReport, table: str, key: tuple[str, ...], columns: str, most: int
) -> Iterator[list[Row]]:
    """Yield pages of the key and some columns of a table, in the order of the key; name rows that cannot be read.

    Keys are read first: they are in an index, so that one unreadable row does not hide those after it. A damaged index
    may lead in circles, so no more than `most` rows are read.
    """
    names, marks = ", ".join(key), ", ".join("?" * len(key))
    after: Row = ()
    for _ in range(0, most, _PAGE):
        beyond = f"WHERE ({names}) > ({marks})" if after else ""
        sql = f"SELECT {names} FROM {table} {beyond} ORDER BY {names} LIMIT {_PAGE}"
        try:
            keys = _rows(connection, sql, after)
        except Exception as error:  # each driver has its own
            report.add(f"{table} after {after or 'the first'}: cannot be read: {error}")
            return
        if not keys:
            return
        sql = f"SELECT {names}, {columns} FROM {table} WHERE ({names}) >= ({marks}) AND ({names}) <= ({marks})"
        yield _rows_between(connection, report, table, f"{sql} ORDER BY {names}", keys)
        after = keys[-1]


def _rows_between(connection: Connection, report: LogReport, table: str, sql: str, keys: Sequence[Row]) -> list[Row]:
    """Return the rows of some keys; halve them until the one that cannot be read is alone."""
    try:
        return _rows(connection, sql, (*keys[0], *keys[-1]))
    except Exception as error:  # each driver has its own
        if len(keys) == 1:
            report.add(f"{table} {keys[0]}: cannot be read: {error}")
            return []
    middle = len(keys) // 2
    return _rows_between(connection, report, table, sql, keys[:middle]) + _rows_between(
        connection, report, table, sql, keys[middle:]
    )


# Counts


def _check_counts(connection: Connection, report: LogReport, recount: Connection) -> None:
    """Compare the counts with those of the rows, of which some may have been pruned."""
    pruned = int(connection.rows("SELECT slates FROM pruned")[0][0])
    counted = int(connection.rows("SELECT COALESCE(SUM(impressions), 0) FROM arm_counts")[0][0])
    if counted != report.slates + pruned:
        report.add(f"counts: {counted:,} slates are counted, {report.slates:,} there and {pruned:,} pruned")
    before_groups = {  # experiments that began when slots were not counted by group, and minutes and reasons not at all
        name for (name,) in connection.rows("SELECT DISTINCT experiment FROM slot_counts WHERE unit_group = -1")
    }
    for table in track(COUNTS, "checking counts"):
        _subtract(connection, recount, report, table)
        _compare_counts(recount, report, table, before_groups, is_pruned=pruned != 0)
    if pruned:
        _check_sums(connection, report, before_groups)


def _subtract(connection: Connection, recount: Connection, report: LogReport, table: str) -> None:
    """Subtract the counts of the log from those of the rows."""
    key, values = COUNTS[table]
    n_rows = int(connection.rows(f"SELECT COUNT(*) FROM {table}")[0][0])
    for page in _pages(connection, report, table, key, ", ".join(values), n_rows):
        with recount.transaction():
            add_counts(recount, table, {row[: len(key)]: [-count for count in row[len(key) :]] for row in page})


def _compare_counts(
    recount: Connection, report: LogReport, table: str, before_groups: set[str], *, is_pruned: bool
) -> None:
    """Note where a count is not that of the rows or, of a log that was pruned, below it."""
    if is_pruned and table in _EXACT_SUMS:
        return
    key, values = COUNTS[table]
    wrong = " OR ".join(f"{value} {'>' if is_pruned else '<>'} 0" for value in values)
    with recount.transaction():
        rows = recount.rows(
            f"SELECT {', '.join((*key, *values))} FROM {table} WHERE {wrong} LIMIT {_MOST_PROBLEMS + 1}"
        )
    for row in rows:
        if row[0] in before_groups and table in ("slot_counts", "minute_counts", "fallback_counts"):
            continue
        named = ", ".join(f"{name} {value!r}" for name, value in zip(key, row, strict=False))
        off = zip(values, row[len(key) :], strict=True)
        told = ", ".join(f"{name} {-count:+d}" for name, count in off if count)
        report.add(f"{table}, {named}: the count differs from that of the rows by {told}")


_ARM_SUMS = {  # what must add up to the sums of an arm: its table, and the expressions, by the names of the sums
    "unit_counts": {
        "units": "CASE WHEN impressions > 0 THEN 1 ELSE 0 END",
        "impressions": "impressions",
        "clicks": "clicks",
        "impressions_squared": "impressions * impressions",
        "clicks_squared": "clicks * clicks",
        "impressions_times_clicks": "impressions * clicks",
    },
    "minute_counts": {"impressions": "impressions", "clicks": "clicks"},
    "slot_counts": {"clicks": "clicks"},
    "fallback_counts": {"fallbacks": "impressions"},
}


def _check_sums(connection: Connection, report: LogReport, before_groups: set[str]) -> None:
    for table, sums in _ARM_SUMS.items():
        assert set(sums) <= set(ARM_SUMS)
        rows = connection.rows(
            f"SELECT experiment, arm, {', '.join(f'SUM({name})' for name in sums)} FROM ("
            f"SELECT experiment, arm, {', '.join(sums)} FROM arm_counts UNION ALL "
            f"SELECT experiment, arm, {', '.join(f'-({expression})' for expression in sums.values())} FROM {table}"
            ") AS ledger GROUP BY experiment, arm"
        )
        for experiment, arm, *differences in rows:
            if any(differences) and (table == "unit_counts" or experiment not in before_groups):
                told = ", ".join(f"{name} {int(by):+d}" for name, by in zip(sums, differences, strict=True) if by)
                report.add(f"arm_counts, {experiment!r}, {arm!r}: differs from the sum of {table} by {told}")
