"""Logs as earlier versions wrote them: the tables of their migrations, with the rows and columns that they had."""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

from seq2slate.data.impressions import Draft
from seq2slate.experiments.counts import Definition
from seq2slate.log import schema
from seq2slate.log.backend import Backend, Connection
from seq2slate.log.reading import LogReader
from seq2slate.log.sqlite import SqliteBackend
from seq2slate.log.writer import NewClick, NewImpression, write_group
from tests.logs import impression

OLD_VERSIONS = range(1, len(schema.MIGRATIONS))
"""Numbers of migrations that an earlier log may have."""
N_SLATES = 12
_OWN_ROWS = ("seq2slate_migrations", "commit_sequence", "pruned")  # the migrations write them
_REFERRED_TO = ("column_sets", "impressions")
_COUNTED_AT_EVERY_SLOT = """
    WITH RECURSIVE slots (slot) AS (
        SELECT 0 UNION ALL SELECT slot + 1 FROM slots WHERE slot < (SELECT MAX(position) FROM slot_counts)
    ), counted AS (
        SELECT experiment, arm, unit_group, slot AS position,
            SUM(ends * (position >= slot)) AS impressions, SUM(clicks * (position = slot)) AS clicks
        FROM slot_counts, slots GROUP BY experiment, arm, unit_group, slot
    )
"""


def write_old_log(backend: Backend, version: int) -> None:
    """Write a log that has had the first `version` migrations only, with slates, clicks and counts."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(SqliteBackend(Path(folder) / "now.db").connect()) as now,
        closing(backend.connect()) as old,
        patch.object(schema, "MIGRATIONS", schema.MIGRATIONS),
    ):
        schema.migrate(now, create=True)
        with now.transaction():
            write_group(now, _entries(version))
        schema.MIGRATIONS = schema.MIGRATIONS[:version]
        schema.migrate(old, create=True)
        with now.transaction(), old.transaction():
            _copy(now, old, _tables(version))


def _entries(version: int) -> list[Any]:
    """Slates and clicks, and from the second version on an experiment and interleaved slates."""
    drafts: list[Any] = [Draft("old", "new", "aba") if version > 1 and n % 3 == 0 else None for n in range(N_SLATES)]
    slates = [
        impression(
            n,
            n_shown=(3, 1, 2)[n % 3],
            draft=drafts[n],
            fallback="deadline" if n % 5 == 4 else None,
            categorical={"brand": list("xyzx")},
        )
        for n in range(N_SLATES)
    ]
    clicks = [NewClick(one.slate_id, one.items[one.shown[0]], one.at + 1) for one in slates[::2]]
    definitions = [Definition("experiment", "arm-0", {"arm-0": 1.0, "arm-1": 1.0}, models={})] if version > 1 else []
    return [*map(NewImpression.of, slates), *clicks, *definitions]


def _tables(version: int) -> dict[str, list[str]]:
    """The tables of a version with their columns; those that others refer to come first."""
    with closing(sqlite3.connect(":memory:")) as raw:
        for statement in (one for step in schema.MIGRATIONS[:version] for one in step):
            raw.execute(statement)
        names = [name for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        names.sort(key=lambda name: (name not in _REFERRED_TO, name))
        return {name: [row[1] for row in raw.execute(f"PRAGMA table_info({name})")] for name in names}


def _copy(now: Connection, old: Connection, tables: dict[str, list[str]]) -> None:
    for table, columns in tables.items():
        if table in _OWN_ROWS:
            continue
        read = f"SELECT {', '.join(columns)} FROM {table}"
        if table == "slot_counts" and "impressions" in columns:
            read = f"{_COUNTED_AT_EVERY_SLOT} SELECT {', '.join(columns)} FROM counted WHERE impressions > 0"
        elif table == "position_counts":
            read = (
                f"{_COUNTED_AT_EVERY_SLOT} SELECT experiment, arm, position, SUM(impressions), SUM(clicks) "
                "FROM counted GROUP BY experiment, arm, position"
            )
        marks = ", ".join("?" * len(columns))
        for row in now.rows(read):
            old.rows(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", row)
    if "commit_sequence" in tables:
        old.rows("UPDATE commit_sequence SET last = ?", (N_SLATES,))


def what_it_holds(backend: Backend) -> list[Any]:
    """Return the slates of an upgraded log with their clicks, and its counts, as plain values."""
    log = LogReader(backend)
    slates = [
        [
            *(one.slate_id, one.at, one.unit, one.arm, list(one.items), list(one.shown), one.features.tolist()),
            *(one.fallback, {name: list(values) for name, values in one.categorical.items()}, dict(one.clicks)),
            one.draft and one.draft.to_json(),
        ]
        for one in log.impressions()
    ]
    arms = log.counts("experiment").arms
    counts = [(arm, one.units, one.impressions, one.clicks, one.fallbacks) for arm, one in sorted(arms.items())]
    slots = [[(slot.impressions, slot.clicks) for slot in one.positions] for _, one in sorted(arms.items())]
    return [slates, counts, slots, log.definition("experiment")]
