"""Impressions and databases for tests of the log.

`python -m tests.logs URL NAME` writes to a log until it is killed, and prints what was acknowledged.
"""

import os
import secrets
import sys
import threading
import time
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from seq2slate.data.impressions import Impression
from seq2slate.log.backend import LogError
from seq2slate.log.impression_log import ImpressionLog, open_log


def fresh_database(server: Any) -> str:
    """Make an empty schema on a server, which is faster than a database, and return a URL that leads into it."""
    import psycopg

    name = f"log_{secrets.token_hex(6)}"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")  # type: ignore[arg-type, unused-ignore]
    return f"{server.get_uri()}&options=-csearch_path%3D{name}"


def impression(
    number: int, *, n_items: int = 4, n_features: int = 3, n_shown: int = 3, at: float | None = None, **more: Any
) -> Impression:
    """A slate that follows from its number: the arm, the unit, the order and the features."""
    rng = np.random.default_rng(number)
    shown = rng.permutation(min(n_shown, n_items)).tolist()
    return Impression(
        slate_id=f"slate-{number}",
        at=1000.0 + number if at is None else at,
        unit=more.pop("unit", f"unit-{number % 7}"),
        experiment="experiment",
        arm=f"arm-{number % 2}",
        items=[f"item-{item}" for item in range(n_items)],
        shown=shown,
        features=rng.random((n_items, n_features)).astype(np.float32),
        latency_ms=1.0,
        log_propensities=[-0.5] * len(shown),
        **more,
    )


def write_until_killed(url: str, name: str, threads: int = 8) -> None:
    """Write impressions and a click on each, and print "s ID" and "c ID" after each acknowledgement."""
    log = open_log(url)
    for number in range(threads):
        threading.Thread(target=_write, args=(log, f"{name}-{number}"), daemon=True).start()
    while True:
        time.sleep(1)


def _write(log: ImpressionLog, name: str) -> None:
    for number in count():
        one = replace(impression(number), slate_id=f"{name}-{number}")
        _insist(lambda one=one: log.add_impression(one).result())
        os.write(1, f"s {one.slate_id}\n".encode())
        item = one.items[one.shown[0]]
        _insist(lambda one=one, item=item: log.add_click(one.slate_id, item, 1.0).result())
        os.write(1, f"c {one.slate_id}\n".encode())


def _insist(write: Any) -> None:
    """Send the same until it is acknowledged."""
    while True:
        try:
            write()
        except LogError:
            time.sleep(0.02)
        else:
            return


if __name__ == "__main__":
    write_until_killed(sys.argv[1], sys.argv[2])
