"""Logs for the tests of the pages: simulated experiments, a million slates as running counts, and odd names."""

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from seq2slate.data.impressions import Draft, Impression
from seq2slate.experiments.assignment import INTERLEAVED, Arm, Experiment
from seq2slate.log.impression_log import open_log

HTML = '<script>alert("1")</script><img src=x onerror=alert(2)>'
LONG = "ab1-" * 50
"""An id of 200 characters."""
SLOTS, GROUPS = 10, 64


def simulate(
    log: Path, name: str, rates: Mapping[str, float], n_slates: int, *, seed: int = 0, n_units: int | None = None
) -> None:
    """Write slates in base order over the last hours; slot j of an arm is clicked with probability rate / j."""
    rng = np.random.default_rng(seed)
    experiment, now = Experiment(name, tuple(Arm(arm) for arm in rates)), time.time()
    units = [f"user {number}" for number in range(n_units or max(1, n_slates // 4))]

    def slates() -> Iterator[tuple[Impression, Any]]:
        for number in range(n_slates):
            unit = units[int(rng.integers(len(units)))]
            arm = experiment.assign(unit).name
            yield _slate(rng, f"{name}-{number}", now, unit, name, arm), np.full(SLOTS, rates[arm])

    _write(log, slates(), rng)


def simulate_pair(log: Path, name: str, a: float, b: float, n_slates: int, *, seed: int = 0) -> None:
    """Write slates that "old" and "new" fill in turns, where a coin says who begins; clicks are as above."""
    rng, now = np.random.default_rng(seed), time.time()

    def slates() -> Iterator[tuple[Impression, Any]]:
        for number in range(n_slates):
            teams = ("ab", "ba")[int(rng.integers(2))] * (SLOTS // 2)
            slate = _slate(rng, f"{name}-{number}", now, f"user {number // 4}", name, INTERLEAVED)
            yield (
                replace(slate, draft=Draft("old", "new", teams)),
                np.array([a if team == "a" else b for team in teams]),
            )

    _write(log, slates(), rng)


def _write(log: Path, slates: Iterable[tuple[Impression, Any]], rng: np.random.Generator) -> None:
    """Write slates, each with the rates (K,) of its items, and the clicks that these give."""
    clicks: list[tuple[str, str]] = []
    with open_log(log) as store:
        waiting: list[Future[Any]] = []
        for slate, rates in slates:
            waiting.append(store.add_impression(slate))
            hit = rng.random(SLOTS) < rates / np.arange(1, SLOTS + 1)
            clicks += [(slate.slate_id, f"item-{item}") for item in np.flatnonzero(hit)]
            if len(waiting) > 1000:
                _wait(waiting)
        _wait(waiting)
        for slate_id, item in clicks:
            waiting.append(store.add_click(slate_id, item, time.time()))
            if len(waiting) > 1000:
                _wait(waiting)
        _wait(waiting)


def _slate(rng: np.random.Generator, slate_id: str, now: float, unit: str, experiment: str, arm: str) -> Impression:
    return Impression(
        slate_id=slate_id,
        at=now - 60 * 60 * 9 * float(rng.beta(1, 1.4)),
        unit=unit,
        experiment=experiment,
        arm=arm,
        items=[f"item-{item}" for item in range(SLOTS)],
        shown=list(range(SLOTS)),
        features=np.zeros((SLOTS, 2), np.float32),
        latency_ms=float(rng.lognormal(0.4, 0.5)),
        fallback="deadline" if rng.random() < 0.004 else None,
    )


def _wait(waiting: list[Future[Any]]) -> None:
    for one in waiting:
        one.result()
    waiting.clear()


def add_counts(log: Path, name: str, rates: Mapping[str, float], n_slates: int, *, seed: int = 0) -> None:
    """Add the running counts of many slates to a SQLite log, without the slates."""
    rng = np.random.default_rng(seed)
    with sqlite3.connect(log) as connection:
        for arm, rate in rates.items():
            slates = _slates_of_units(rng, n_slates // len(rates))
            clicks = rng.binomial(slates, np.clip(rng.beta(8, 8 / rate - 8, len(slates)), 0, 1))
            sums = (slates @ slates, clicks @ clicks, slates @ clicks)
            row = [name, arm, len(slates), slates.sum(), clicks.sum(), *sums, 0]
            _insert(connection, "arm_counts", [row])
            _insert(connection, "slot_counts", _slot_rows(rng, name, arm, slates, clicks))
            _insert(connection, "minute_counts", _minute_rows(rng, name, arm, int(slates.sum()), int(clicks.sum())))
    connection.close()


def _slates_of_units(rng: np.random.Generator, n_slates: int) -> Any:
    """Return the slates (U,) of units that come 1 to some 20 times, with the sum that is asked for."""
    slates = 1 + rng.poisson(rng.gamma(1, 4, n_slates))
    last = int(np.searchsorted(np.cumsum(slates), n_slates))
    slates = slates[: last + 1]
    slates[-1] -= slates.sum() - n_slates
    return slates


def _slot_rows(rng: np.random.Generator, name: str, arm: str, slates: Any, clicks: Any) -> list[list[Any]]:
    groups, shares = np.arange(len(slates)) % GROUPS, 1 / np.arange(1, SLOTS + 1)
    rows = []
    for group in range(GROUPS):
        at_slots = rng.multinomial(int(clicks[groups == group].sum()), shares / shares.sum())
        shown = int(slates[groups == group].sum())
        rows += [[name, arm, group, slot, n, shown if slot == SLOTS - 1 else 0] for slot, n in enumerate(at_slots)]
    return rows


def _minute_rows(rng: np.random.Generator, name: str, arm: str, slates: int, clicks: int) -> list[list[Any]]:
    first = int(time.time() // 60) - 24 * 60 + 1
    wave = 1.3 + np.sin(np.arange(24 * 60) / 200)
    shown, clicked = (rng.multinomial(number, wave / wave.sum()) for number in (slates, clicks))
    return [[name, first + minute, arm, shown[minute], clicked[minute]] for minute in range(24 * 60)]


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    values = [[value.item() if isinstance(value, np.generic) else value for value in row] for row in rows]
    connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)
