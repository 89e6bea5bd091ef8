"""Admission: who waits, who is refused, and in which order requests begin."""

import asyncio
import socket
import time

import pytest

from seq2slate.serving.accepting import _refuse
from seq2slate.serving.admission import Admission, Ticket


def admitted(admission: Admission) -> list[Ticket]:
    """Return the tickets of as many requests as are let in at once."""
    tickets = []
    while (ticket := admission.admit()) is not None:
        tickets.append(ticket)
    return tickets


async def begin(admission: Admission, number: int, begun: list[int], seconds: float = 0.0) -> None:
    await admission.turn()
    begun.append(number)
    time.sleep(seconds)  # a request keeps the event loop busy


def test_requests_begin_in_their_order_and_a_few_in_one_turn_of_the_loop() -> None:
    async def run() -> None:
        admission, begun, turns = Admission(256), list[int](), list[int]()
        tasks = [asyncio.create_task(begin(admission, number, begun)) for number in range(30)]
        while len(begun) < 30:
            turns.append(len(begun))
            await asyncio.sleep(0)
        assert begun == list(range(30))
        assert max(later - earlier for earlier, later in zip(turns, [*turns[1:], 30], strict=True)) <= 4
        await asyncio.gather(*tasks)

    asyncio.run(run())


def test_who_has_gone_leaves_its_turn_to_others() -> None:
    async def run() -> None:
        admission, begun = Admission(256), list[int]()
        tasks = [asyncio.create_task(begin(admission, number, begun)) for number in range(20)]
        await asyncio.sleep(0)
        for task in tasks[4:18]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert begun == [0, 1, 2, 3, 18, 19]

    asyncio.run(run())


def test_a_line_that_is_too_long_is_full_until_somebody_leaves() -> None:
    admission = Admission(256)
    tickets = admitted(admission)
    assert 16 <= len(tickets) < 256
    tickets[0].leave()
    tickets[0].leave()
    assert len(admitted(admission)) == 1


def test_the_slower_requests_are_the_fewer_may_wait_but_a_burst_may_always() -> None:
    async def run() -> None:
        admission, begun = Admission(256), list[int]()
        quick = admitted(admission)
        for ticket in quick:
            ticket.leave()
        await asyncio.gather(*(begin(admission, number, begun, 0.004) for number in range(80)))
        assert 16 <= len(admitted(admission)) < len(quick)

    asyncio.run(run())


def test_requests_that_wait_and_those_in_flight_are_limited_together() -> None:
    admission = Admission(10)
    admission.in_flight = 7
    assert len(admitted(admission)) == 3


@pytest.mark.parametrize(("length", "is_refused"), [(b"2", True), (b"3", False), (b"9" * 5000, False), (b"x", False)])
def test_only_a_request_that_is_whole_is_refused_on_the_spot(length: bytes, is_refused: bool) -> None:
    """Others are read by the connection, which has limits for lengths that are too large or no numbers."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"POST /v1/rerank HTTP/1.1\r\nContent-Length: " + length + b"\r\n\r\n{}")
        assert _refuse(ours) is is_refused
        theirs.settimeout(5)
        if is_refused:
            assert theirs.recv(100).startswith(b"HTTP/1.1 429")
