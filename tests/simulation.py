"""A service and the writer of its log on one virtual clock, with a database that fails: every schedule has a seed.

The service runs in an event loop and the writer in its thread, as always, but only one of them runs at a time, and the
seed decides when the other one goes on: between lines of their code, while the database takes its time, or when there
is nothing else to do. Time is a number that jumps to whatever happens next. So a seed is a schedule, and fails again.
"""

import asyncio
import random
import selectors
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import CodeType, FrameType
from typing import Any

from seq2slate.log.backend import BadRowError, ConflictError, LogError, Row
from seq2slate.log.writer import Writer
from seq2slate.serving.service import RerankService

_SWITCH = 0.08  # the chance that the other one goes on, at a line
_LATE = 0.02  # the chance that the writer's thread gets no time then, for a while
_TRACED: set[CodeType] = {
    function.__code__
    for function in (
        *(Writer.add, Writer.give_up_after, Writer._run, Writer._next_group, Writer._write, Writer._commit),
        *(Writer._connected, Writer._disconnect, RerankService._commit, RerankService._wait_for_commit),
        RerankService._end_overdue,
    )
}


class StuckError(AssertionError):
    """Somebody waits for what will never happen."""


class World:
    """The clock, and who of the event loop and the writer's thread may go on."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.loop = _Loop(self)
        self.queue = _Queue(self)
        self._wakes_at: float | None = None
        """When the writer goes on; None while it waits for its queue, or for an interrupt."""
        self._waits_for_queue = True
        self.is_first = True
        """Whether the writer's thread has not waited for its turn yet: it begins without being told to."""
        self._loop_may, self._writer_may = threading.Semaphore(0), threading.Semaphore(0)
        self._is_over = False

    # The event loop's side

    def idle(self, timeout: float | None) -> None:
        """Let time pass: until the event loop has something to do, or a timer is due."""
        if timeout == 0:
            if self._writer_can_go_on() and self.rng.random() < 0.5:
                self._let_writer_run()
            return
        due = None if timeout is None else self.now + timeout
        while not self.loop.has_work():
            if self._writer_can_go_on():
                self._let_writer_run()
                continue
            times = [at for at in (due, self._wakes_at) if at is not None]
            if not times:
                raise StuckError("everybody waits, and nothing will ever happen")
            self.now = max(self.now, min(times))
            if self.now == due:
                return

    @property
    def writer_is_idle(self) -> bool:
        """Whether the writer waits for its queue, which is empty."""
        return self._waits_for_queue and self.queue.empty()

    def wake_writer(self) -> None:
        """End a wait of the writer: its connection was interrupted."""
        if not self._waits_for_queue:
            self._wakes_at = self.now

    def end(self) -> None:
        """From now on both run as they like."""
        self._is_over = True
        self._writer_may.release()

    def _writer_can_go_on(self) -> bool:
        if self._waits_for_queue:
            return not self.queue.empty()
        return self._wakes_at is not None and self._wakes_at <= self.now

    def _let_writer_run(self) -> None:
        self._writer_may.release()
        self._loop_may.acquire()

    # The writer's side

    def sleep(self, seconds: float | None) -> None:
        """Let the event loop go on for a while; None is until an interrupt."""
        self._wakes_at = None if seconds is None else self.now + seconds
        self._hand_over()

    def wait_for_queue(self) -> None:
        """Let the event loop go on until it puts something into the queue."""
        self._waits_for_queue, self._wakes_at = True, None
        self._hand_over()
        self._waits_for_queue = False

    def _hand_over(self) -> None:
        if self._is_over:
            time.sleep(1e-4)
            return
        if not self.is_first:
            self._loop_may.release()
        self.is_first = False
        self._writer_may.acquire()

    # Both

    def trace(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """Switch at some lines of some functions; for `sys.settrace`."""
        return self._trace_line if frame.f_code in _TRACED else None

    def _trace_line(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        is_writer = threading.current_thread() is not threading.main_thread()
        if event != "line" or self._is_over or (is_writer and self.is_first):
            return self._trace_line
        if self.rng.random() < _SWITCH:
            if is_writer:
                self.sleep(self.rng.random() if self.rng.random() < _LATE else 0.0)
            elif self._writer_can_go_on():
                self._let_writer_run()
        return self._trace_line

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Switch between lines, in this thread and those that it starts."""
        before = sys.gettrace()
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)


class _Selector(selectors.SelectSelector):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def select(self, timeout: float | None = None) -> list[Any]:
        self._world.idle(timeout)
        return []


class _Loop(asyncio.SelectorEventLoop):
    """An event loop on the virtual clock; what goes to a thread is done at once."""

    def __init__(self, world: World) -> None:
        self._world = world
        super().__init__(_Selector(world))

    def time(self) -> float:
        return self._world.now

    def has_work(self) -> bool:
        return bool(self._ready)  # type: ignore[attr-defined]

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class _Queue:
    """In place of `SimpleQueue`: whoever waits lets the other one go on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self) -> Any:
        while self._world.is_first or not self._items:
            self._world.wait_for_queue()
        return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


# The database


class FailingDatabase:
    """A `Backend` in memory, whose connections are slow, hang, break and roll back while `faults` is above 0."""

    name = "simulated"

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults = 0.0
        """The chance of trouble in each call."""
        self.unknown: set[tuple[str, ...]] = set()
        """Slates and clicks that were committed, and nobody was told since the connection broke."""
        self.raw = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.raw.execute("PRAGMA foreign_keys = ON")

    def connect(self, *, read_only: bool = False) -> "FailingConnection":
        """Connect, or fail at once or after a timeout."""
        if not read_only and self.world.rng.random() < self.faults:
            self.world.sleep(self.world.rng.choice([0.0, 0.3, 5.0]))
            raise LogError("simulated: the server cannot be reached")
        return FailingConnection(self, read_only)


class FailingConnection:
    """A connection that fails as those of PostgreSQL do."""

    def __init__(self, database: FailingDatabase, read_only: bool) -> None:
        self.name = database.name
        self._database, self._world = database, database.world
        self._read_only, self._is_broken = read_only, False
        self._wrote: set[tuple[str, ...]] = set()

    def call(self) -> None:
        """Take time, and perhaps fail."""
        rng, faults = self._world.rng, self._database.faults
        if self._read_only or threading.current_thread() is threading.main_thread():
            return
        trouble = rng.random() < faults and not self._is_broken
        if trouble and rng.random() < 0.15:
            self._world.sleep(None)
        elif trouble and rng.random() < 0.6:
            self._world.sleep(rng.choice([0.05, 0.3, 1.5, 6.0]))
        elif trouble:
            self._is_broken = True
        elif rng.random() < 0.2:
            self._world.sleep(0.001)
        if self._is_broken:
            raise LogError("simulated: the connection is lost")

    @contextmanager
    def transaction(self, *, exclusive: bool = False) -> Iterator[None]:
        """Commit at the end; the connection may break before or after that, or another transaction be in the way."""
        if self._read_only:
            with nullcontext():
                yield
            return
        rng, raw, faults = self._world.rng, self._database.raw, self._database.faults
        self._wrote = set()
        self.call()
        raw.execute("BEGIN")
        try:
            yield
            self.call()
            if rng.random() < faults:
                raise ConflictError("simulated: another transaction was first")
            raw.execute("COMMIT")
        except BaseException:
            raw.execute("ROLLBACK")
            raise
        try:
            self.call()
        except LogError:
            self._database.unknown |= self._wrote
            raise

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement."""
        self.call()
        return self._database.raw.execute(sql, values).fetchall()

    def each(self, sql: str, many: Sequence[Sequence[Any]]) -> list[Row | None]:
        """Run a statement for each of many values; a unit whose name begins with "bad" is refused."""
        self.call()
        found = []
        for values in many:
            if sql.startswith("INSERT INTO impressions"):
                if values[2].startswith("bad"):
                    raise BadRowError("simulated: a bad row")
                self._wrote.add((values[2],))
            elif sql.startswith("INSERT INTO clicks"):
                self._wrote.add((values[0], str(values[1])))
            rows = self._database.raw.execute(sql, values).fetchall()
            found.append(rows[0] if rows else None)
        return found

    def structural_damage(self) -> list[str]:
        """Find nothing: it is in memory."""
        return []

    def has_its_files(self) -> bool:
        """There are none that could be lost."""
        return True

    def interrupt(self) -> None:
        """Break the connection; whoever waits for it goes on."""
        self._is_broken = True
        self._world.wake_writer()

    def close(self) -> None:
        """Forget the connection."""
        self._is_broken = True
