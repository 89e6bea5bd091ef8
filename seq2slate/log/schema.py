"""The tables of the log, as numbered migrations.

A log records which migrations it has. One with fewer is migrated when it is opened; one with more was written by a
newer version and is refused. A migration is never changed: what has to change is a new one.

The SQL is common to SQLite and PostgreSQL; only BLOB has another name in the latter, which its backend translates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from time import time
from typing import Any
from zlib import crc32

from seq2slate.errors import DataError
from seq2slate.experiments.counts import ArmCounts, DraftCounts
from seq2slate.log.backend import Connection

IMPRESSION = (
    "slate_id, at, unit, experiment, arm, model, items, shown, log_propensities, columns, features, categorical, "
    "context, fallback, latency_ms, draft, titles, fallback_detail"
)
"""The columns of `impressions`, in the order in which the writer writes and the reader reads them."""
ARM_SUMS = tuple(one.name for one in fields(ArmCounts) if one.name not in ("positions", "fallback_reasons"))
"""The sums in `arm_counts`."""
DRAFT_SUMS = tuple(one.name for one in fields(DraftCounts))
"""The sums in `draft_counts`."""
COUNTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unit_counts": (("experiment", "arm", "unit"), ("impressions", "clicks")),
    "unit_credits": (("experiment", "arm_a", "arm_b", "unit"), ("a_clicks", "b_clicks")),
    "slot_counts": (("experiment", "arm", "unit_group", "position"), ("ends", "clicks")),
    "fallback_counts": (("experiment", "arm", "reason"), ("impressions",)),
    "minute_counts": (("experiment", "minute", "arm"), ("impressions", "clicks")),
    "draft_counts": (("experiment", "arm_a", "arm_b"), DRAFT_SUMS),
    "arm_counts": (("experiment", "arm"), ARM_SUMS),
}
"""The tables of the running counts: the columns of their keys, and those that are counted."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE column_sets (
            key TEXT PRIMARY KEY,
            columns TEXT NOT NULL
        )""",
        """CREATE TABLE impressions (
            slate_id TEXT PRIMARY KEY,
            at DOUBLE PRECISION NOT NULL,
            unit TEXT NOT NULL,
            experiment TEXT NOT NULL,
            arm TEXT NOT NULL,
            model TEXT,
            items TEXT NOT NULL,
            shown TEXT NOT NULL,
            log_propensities TEXT,
            columns TEXT NOT NULL REFERENCES column_sets (key),
            features BLOB NOT NULL,
            categorical TEXT,
            context TEXT,
            fallback TEXT,
            latency_ms DOUBLE PRECISION NOT NULL
        )""",
        "CREATE INDEX impressions_by_time ON impressions (at, slate_id)",
        """CREATE TABLE clicks (
            slate_id TEXT NOT NULL REFERENCES impressions (slate_id) ON DELETE CASCADE,
            item INTEGER NOT NULL,
            at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (slate_id, item)
        )""",
        """CREATE TABLE unit_counts (
            experiment TEXT NOT NULL,
            arm TEXT NOT NULL,
            unit TEXT NOT NULL,
            impressions BIGINT NOT NULL,
            clicks BIGINT NOT NULL,
            PRIMARY KEY (experiment, arm, unit)
        )""",
        """CREATE TABLE arm_counts (
            experiment TEXT NOT NULL,
            arm TEXT NOT NULL,
            units BIGINT NOT NULL,
            impressions BIGINT NOT NULL,
            clicks BIGINT NOT NULL,
            impressions_squared BIGINT NOT NULL,
            clicks_squared BIGINT NOT NULL,
            impressions_times_clicks BIGINT NOT NULL,
            fallbacks BIGINT NOT NULL,
            PRIMARY KEY (experiment, arm)
        )""",
        """CREATE TABLE position_counts (
            experiment TEXT NOT NULL,
            arm TEXT NOT NULL,
            position INTEGER NOT NULL,
            impressions BIGINT NOT NULL,
            clicks BIGINT NOT NULL,
            PRIMARY KEY (experiment, arm, position)
        )""",
    ),
    (  # slots by group of units (earlier counts are a group of their own), minutes, fallback reasons, interleaving
        """CREATE TABLE slot_counts (
            experiment TEXT NOT NULL,
            arm TEXT NOT NULL,
            unit_group INTEGER NOT NULL,
            position INTEGER NOT NULL,
            impressions BIGINT NOT NULL,
            clicks BIGINT NOT NULL,
            PRIMARY KEY (experiment, arm, unit_group, position)
        )""",
        """INSERT INTO slot_counts (experiment, arm, unit_group, position, impressions, clicks)
            SELECT experiment, arm, -1, position, impressions, clicks FROM position_counts""",
        "DROP TABLE position_counts",
        """CREATE TABLE minute_counts (
            experiment TEXT NOT NULL,
            minute BIGINT NOT NULL,
            arm TEXT NOT NULL,
            impressions BIGINT NOT NULL,
            clicks BIGINT NOT NULL,
            PRIMARY KEY (experiment, minute, arm)
        )""",
        """CREATE TABLE fallback_counts (
            experiment TEXT NOT NULL,
            arm TEXT NOT NULL,
            reason TEXT NOT NULL,
            impressions BIGINT NOT NULL,
            PRIMARY KEY (experiment, arm, reason)
        )""",
        """CREATE TABLE definitions (
            experiment TEXT PRIMARY KEY,
            control TEXT NOT NULL,
            weights TEXT NOT NULL
        )""",
        "ALTER TABLE impressions ADD COLUMN draft TEXT",
        """CREATE TABLE unit_credits (
            experiment TEXT NOT NULL,
            arm_a TEXT NOT NULL,
            arm_b TEXT NOT NULL,
            unit TEXT NOT NULL,
            a_clicks BIGINT NOT NULL,
            b_clicks BIGINT NOT NULL,
            PRIMARY KEY (experiment, arm_a, arm_b, unit)
        )""",
        """CREATE TABLE draft_counts (
            experiment TEXT NOT NULL,
            arm_a TEXT NOT NULL,
            arm_b TEXT NOT NULL,
            impressions BIGINT NOT NULL,
            units BIGINT NOT NULL,
            a_clicks BIGINT NOT NULL,
            b_clicks BIGINT NOT NULL,
            lead_squared BIGINT NOT NULL,
            clicks_squared BIGINT NOT NULL,
            lead_times_clicks BIGINT NOT NULL,
            PRIMARY KEY (experiment, arm_a, arm_b)
        )""",
    ),
    (  # for people: titles of items, why features were bad, names of models
        "ALTER TABLE impressions ADD COLUMN titles TEXT",
        "ALTER TABLE impressions ADD COLUMN fallback_detail TEXT",
        "ALTER TABLE definitions ADD COLUMN models TEXT",
    ),
    (  # in which order impressions were committed; those of earlier versions all have the number 0
        "CREATE TABLE commit_sequence (last BIGINT NOT NULL)",
        "INSERT INTO commit_sequence (last) VALUES (0)",
        "ALTER TABLE impressions ADD COLUMN sequence BIGINT NOT NULL DEFAULT 0",
        "CREATE INDEX impressions_by_sequence ON impressions (sequence, slate_id)",
    ),
    (  # for `log check`: checksums of rows, null in those of earlier versions, and how many slates were pruned
        "ALTER TABLE impressions ADD COLUMN checksum BIGINT",
        "ALTER TABLE clicks ADD COLUMN checksum BIGINT",
        "ALTER TABLE definitions ADD COLUMN checksum BIGINT",
        "CREATE TABLE pruned (slates BIGINT NOT NULL)",
        """INSERT INTO pruned (slates) SELECT
            (SELECT COALESCE(SUM(impressions), 0) FROM arm_counts) - (SELECT COUNT(*) FROM impressions)""",
    ),
    (  # a slate is counted at its last slot, where it ends, instead of at every slot
        "ALTER TABLE slot_counts ADD COLUMN ends BIGINT NOT NULL DEFAULT 0",
        """UPDATE slot_counts SET ends = impressions - COALESCE((
            SELECT below.impressions FROM slot_counts AS below
            WHERE below.experiment = slot_counts.experiment AND below.arm = slot_counts.arm
            AND below.unit_group = slot_counts.unit_group AND below.position = slot_counts.position + 1
        ), 0)""",
        "ALTER TABLE slot_counts DROP COLUMN impressions",
    ),
)
_APPLIED = "CREATE TABLE IF NOT EXISTS seq2slate_migrations (number INTEGER PRIMARY KEY, at DOUBLE PRECISION NOT NULL)"


def checksum(values: Iterable[Any], data: bytes = b"") -> int:
    r"""Return the CRC-32 of a row: its values as text, and a large value as it is. No text in the log has a NUL.

    >>> checksum(["s1", 0, 7.5]) == crc32(b"s1\x000\x007.5")
    True
    """
    return crc32(data, crc32("\0".join(map(str, values)).encode()))


def migrate(connection: Connection, *, create: bool) -> None:
    """Bring the tables up to date; without `create`, a database that holds no log is an error and stays as it is."""
    with connection.transaction(exclusive=True):
        version = _version(connection)
        if version > len(MIGRATIONS):
            raise DataError(
                f"{connection.name}: written by a newer version of seq2slate (step {version} of the log's tables, "
                f"this version knows {len(MIGRATIONS)}); upgrade to use it"
            )
        if not version and not create:
            raise DataError(f"{connection.name}: holds no log of seq2slate")
        for number in range(version + 1, len(MIGRATIONS) + 1):
            for statement in MIGRATIONS[number - 1]:
                connection.rows(statement)
            connection.rows("INSERT INTO seq2slate_migrations (number, at) VALUES (?, ?)", (number, time()))


def _version(connection: Connection) -> int:
    connection.rows(_APPLIED)  # rolled back with the rest where there is no log
    return int(connection.rows("SELECT COALESCE(MAX(number), 0) FROM seq2slate_migrations")[0][0])
