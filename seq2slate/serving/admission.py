"""Admission: a request that would wait for too long is refused when it arrives, at a small part of its cost.

What arrives faster than it can be answered waits somewhere: in the kernel, where nobody sees it, or here. So everything
is accepted and read as soon as it comes, and what has arrived waits in one line. A few requests begin in every turn of
the event loop, so that between them it accepts, reads and refuses. How long these turns take says how long whoever
comes now would wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from prometheus_client import Counter

_LONGEST_WAIT = 0.05  # seconds
_ALWAYS = 16  # requests that may wait in any case: a burst is no overload
_AT_ONCE = 4  # requests that begin in one turn of the event loop
_FIRST_PACE, _SLOWEST_PACE = 0.001, 0.01  # seconds a request
_WEIGHT = 0.05  # of the last turn in the mean


class Admission:
    """The requests that are here: those that wait for their turn, and those in flight."""

    def __init__(self, max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.in_flight = 0
        """Requests that have begun, and have no response yet."""
        self.waiting = 0
        """Tickets of requests that have not begun."""
        self.refused: dict[bytes, Counter] = {}
        """Counts refusals, by method and URL: of all routes that may be refused when they arrive."""
        self._line: deque[asyncio.Future[None]] = deque()
        self._begun = 0
        self._turn_began = 0.0
        self._is_busy = False
        self._pace = _FIRST_PACE

    def sheds(self, head: bytes) -> Counter | None:
        """Return what counts the refusals of a request that begins like this; None if it may not be refused yet."""
        return self.refused.get(b" ".join(head.split(b" ", 2)[:2]))

    def admit(self) -> Ticket | None:
        """Let a request in that has arrived, unless it would wait for too long."""
        return None if self.is_full() else Ticket(self)

    def is_full(self) -> bool:
        """Say whether a request that arrives now is to be refused."""
        waiting = self.waiting
        if waiting + self.in_flight >= self.max_in_flight:
            return True
        return waiting >= _ALWAYS and waiting * self._pace > _LONGEST_WAIT

    async def turn(self) -> None:
        """Wait in line."""
        if self._line or self._begun >= _AT_ONCE:
            over = asyncio.get_running_loop().create_future()
            self._line.append(over)
            await over
        else:
            if not self._begun:
                self._turn_began, self._is_busy = time.perf_counter(), False
                asyncio.get_running_loop().call_soon(self._next_turn)
            self._begun += 1

    def _next_turn(self) -> None:
        now = time.perf_counter()
        if self._is_busy and self._begun:
            pace = min((now - self._turn_began) / self._begun, _SLOWEST_PACE)
            self._pace += _WEIGHT * (pace - self._pace)
        self._turn_began, self._begun, self._is_busy = now, 0, bool(self._line)
        while self._line and self._begun < _AT_ONCE:
            over = self._line.popleft()
            if not over.done():  # else its client is gone
                over.set_result(None)
                self._begun += 1
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next_turn)


class Ticket:
    """A request that was let in, until its turn."""

    __slots__ = ("_admission", "arrived")

    def __init__(self, admission: Admission) -> None:
        self.arrived = time.perf_counter()
        self._admission: Admission | None = admission
        admission.waiting += 1

    @property
    def is_waiting(self) -> bool:
        """Whether it has not left the line."""
        return self._admission is not None

    def leave(self) -> None:
        """Leave the line, which may be done more than once."""
        if self._admission is not None:
            self._admission.waiting -= 1
            self._admission = None
