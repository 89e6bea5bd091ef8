"""Thousands of schedules of a service and the writer of its log, with a database that fails: what is acknowledged is
there once, what is refused is not or is counted as late, nobody waits for ever, and the service recovers."""

import asyncio
import itertools
import logging
import os
import random
import time
from collections import Counter
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest

from seq2slate.experiments.assignment import Arm, Experiment
from seq2slate.log import writer
from seq2slate.log.backend import LogError
from seq2slate.log.check import check_log
from seq2slate.log.impression_log import ImpressionLog
from seq2slate.serving.deployment import Deployment
from seq2slate.serving.messages import ClickRequest, read_rerank
from seq2slate.serving.monitoring import Monitor
from seq2slate.serving.service import RerankService, Timeouts
from tests.simulation import FailingDatabase, World

DEPLOYMENT = Deployment(Experiment("simulated", (Arm("base", model="base"),)), {})
FAULTS_END = 20.0
"""Virtual seconds."""
SLACK = 1.5
"""Virtual seconds that a request may take beyond its deadline, when the writer's thread gets no time."""
EVERY = 20
"""One schedule in so many ends with `check_log`."""
SECONDS, FEWEST = 75.0, 300
"""When a run is over, on a slow machine, and the schedules that it runs all the same."""
FIRST_SEED = int(os.environ.get("SIMULATION_SEED", "0"))
CHOSEN = "SIMULATION_SCHEDULES" in os.environ
SCHEDULES = int(os.environ.get("SIMULATION_SCHEDULES", "2000"))


class Schedule:
    """One run: requests, clicks and readiness checks, of which some clients hang up."""

    def __init__(self, seed: int, world: World) -> None:
        self.seed, self.world = seed, world
        self.rng = random.Random(-seed - 1)
        self.database = FailingDatabase(self.world)
        self.deadline = self.rng.choice([0.2, 1.0])
        timeouts = Timeouts(
            log_deadline_ms=1e3 * self.deadline, log_failure="refuse" if self.rng.random() < 0.5 else "serve"
        )
        self.monitor = Monitor()
        self.store = ImpressionLog(self.database, capacity=self.rng.choice([3, 2048]))
        self.service = RerankService(lambda: DEPLOYMENT, self.store, self.monitor, timeouts, threads=1)
        self.acknowledged: dict[str, str] = {}
        """From the unit to its slate."""
        self.refused: set[str] = set()
        self.clicked: set[tuple[str, str]] = set()
        self.refused_clicks: set[tuple[str, str]] = set()
        self.late_probes = 0
        self.cancelled = 0

    async def run(self) -> None:
        """Send requests while the database fails, and then until it takes them again."""
        self.database.faults = self.rng.choice([0.0, 0.02, 0.1, 0.3])
        tasks = [asyncio.create_task(self._client(number)) for number in range(self.rng.randint(5, 25))]
        await asyncio.sleep(FAULTS_END)
        self.database.faults = 0.0
        await self._recover()
        await asyncio.gather(*tasks)
        while not self.world.writer_is_idle:
            await asyncio.sleep(0.1)
        until = self.world.now + SLACK
        while not await self.service.log_is_available():
            assert self.world.now < until, "the service is not ready again"
            self.late_probes += 1
        assert not self.service._overdue

    async def _client(self, number: int) -> None:
        rng = random.Random(self.rng.random())
        await asyncio.sleep(rng.choice([rng.uniform(0, FAULTS_END), 5.0]))
        name = f"{'bad' if rng.random() < 0.05 else 'unit'}-{number}"
        if rng.random() < 0.1:
            await self._probe()
        slate_id = await self._hung_up_on(rng, self._rerank(name))
        if slate_id is None:
            return
        for item in ("0", "1"):
            await asyncio.sleep(rng.choice([0.0, 1.0]))
            await self._hung_up_on(rng, self._click(slate_id, item))

    async def _hung_up_on(self, rng: random.Random, request: Any) -> Any:
        """Make a request; some clients do not wait for the response."""
        task = asyncio.ensure_future(request)
        if rng.random() < 0.3:
            await asyncio.sleep(rng.choice([0.0, 0.0005, 0.1, 1.0]))
            self.cancelled += task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return None

    async def _rerank(self, unit: str) -> str | None:
        body = f'{{"unit": "{unit}", "item_ids": ["0", "1", "2"], "features": [[1], [2], [3]]}}'
        began = self.world.now
        slate_id = None
        with suppress(LogError):
            slate_id = (await self.service.rerank(read_rerank(body.encode(), max_items=9))).slate_id
        if slate_id is None:
            self.refused.add(unit)
        else:
            self.acknowledged[unit] = slate_id
        assert self.world.now - began <= self.deadline + SLACK, "it took too long"
        return slate_id

    async def _click(self, slate_id: str, item: str) -> None:
        try:
            outcome = await self.service.click(ClickRequest(slate_id, item))
            assert outcome.value in ("new", "duplicate")
            self.clicked.add((slate_id, item))
        except LogError:
            self.refused_clicks.add((slate_id, item))

    async def _probe(self) -> None:
        if not await self.service.log_is_available():
            self.late_probes += 1

    async def _recover(self) -> None:
        """Send a request now and then; one must be acknowledged before long."""
        until = self.world.now + 12 * self.deadline + 10
        for number in itertools.count():
            if await self._rerank(f"after-{number}") is not None:
                return
            assert self.world.now < until, "the service does not recover"
            await asyncio.sleep(0.25)

    def check(self) -> None:
        """Compare what was said with what is there."""
        raw = self.database.raw
        rows = Counter(unit for (unit,) in raw.execute("SELECT unit FROM impressions"))
        slates = dict(raw.execute("SELECT unit, slate_id FROM impressions"))
        clicks = Counter((slate_id, str(item)) for slate_id, item in raw.execute("SELECT slate_id, item FROM clicks"))
        assert set(rows.values()) | set(clicks.values()) <= {1}, "a write is there twice"
        for unit, slate_id in self.acknowledged.items():
            assert slates.get(unit) == slate_id, f"{unit} was acknowledged and is not there"
        assert self.clicked <= clicks.keys(), "a click was acknowledged and is not there"
        unknown = self.database.unknown
        late = [unit for unit in self.refused if unit in rows and (unit,) not in unknown]
        late_clicks = self.refused_clicks & clicks.keys() - unknown
        counted = int(self.monitor.late_commits._value.get())
        n_late = len(late) + len(late_clicks)
        assert n_late <= counted <= n_late + self.late_probes, (late, late_clicks, counted)
        assert not any(unit.startswith("bad") for unit in rows)
        for table in ("unit_counts", "arm_counts", "minute_counts"):
            counted_rows = raw.execute(f"SELECT SUM(impressions), SUM(clicks) FROM {table}").fetchone()
            assert counted_rows == (rows.total(), clicks.total()), table
        if self.seed % EVERY == 0:  # all counts, which takes longer than the schedule
            report = check_log(self.database)
            assert not report.damaged, report.problems
            assert report.slates == rows.total()


def simulate(seed: int) -> Schedule:
    """Run one schedule."""
    world, ids = World(seed), random.Random(seed)
    with (
        patch.object(writer, "SimpleQueue", lambda: world.queue),
        patch.object(writer, "monotonic", lambda: world.now),
        patch("secrets.token_urlsafe", lambda _: f"{ids.getrandbits(96):024x}"),
        world.traced(),
    ):
        schedule = Schedule(seed, world)
        try:
            world.loop.run_until_complete(schedule.run())
            schedule.check()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            world.end()
            schedule.service.close()
            world.loop.close()
            schedule.database.raw.close()
    return schedule


def test_a_seed_is_a_schedule() -> None:
    once, again = simulate(7), simulate(7)
    assert (once.world.now, once.acknowledged) == (again.world.now, again.acknowledged)
    assert once.world.rng.random() == again.world.rng.random()


@pytest.mark.slow
def test_every_schedule_keeps_what_it_acknowledges_and_recovers() -> None:
    logging.disable()
    happened: Counter[str] = Counter()
    began = time.monotonic()
    try:
        for seed in range(FIRST_SEED, FIRST_SEED + SCHEDULES):
            if time.monotonic() - began > SECONDS and happened["schedules"] >= FEWEST and not CHOSEN:
                break
            one = simulate(seed)
            happened["schedules"] += 1
            happened["acknowledged"] += len(one.acknowledged) + len(one.clicked)
            happened["refused"] += len(one.refused) + len(one.refused_clicks)
            happened["late"] += int(one.monitor.late_commits._value.get())
            happened["cancelled"] += one.cancelled
            happened["unknown"] += len(one.database.unknown)
    finally:
        logging.disable(logging.NOTSET)
    print(dict(happened))
    assert min(happened.values()) > 5, f"too little happened: {happened}"
