"""Simulated traffic: visitors request slates of a running service over HTTP, examine them and click.

The visitors count what they saw and clicked independently of the service, so that the log, and everything made from it,
can be checked against their counts. They count only what the service has acknowledged: a slate by its `slate_id`, a
click by its 2xx. All of that is in the log. The log may have more slates, but no more clicks, than they counted:

- those whose response was lost (`uncertain`): a retry would show a second slate, so there is none;
- those whose commit missed its deadline (503, or a slate without an id) and was done by the database all the same.

Everything random follows from the seed and the number of the request: which list is shown, to whom, and what the user
does with a given slate. Timing and concurrency affect nothing but the order. Lists without items are left out.

Latencies are measured in this client, which is also busy with preparing the next requests where lists are long.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from seq2slate.data.lists import ItemLists
from seq2slate.errors import DataError, UsageError
from seq2slate.progress import track
from seq2slate.serving.client import Client, ResponseLostError
from seq2slate.simulation.clicks import check_grades, relevance_of_items
from seq2slate.simulation.visits import ClickModel, Facts, draw, scan

_ORDER, _UNIT = 1, 2  # streams of random numbers, beside those of the click model
_CACHE_BYTES = 64 << 20  # for prepared lists


@dataclass(frozen=True)
class SlotTraffic:
    """One slot of an arm's slates."""

    impressions: int
    """Slates that had an item in this slot."""
    clicks: int

    @property
    def ctr(self) -> float:
        """Clicks per item shown."""
        return self.clicks / self.impressions


@dataclass(frozen=True)
class ArmTraffic:
    """What the visitors of one arm saw and clicked."""

    slates: int
    clicks: int
    fallbacks: int
    """Slates in base order because the model failed or was late."""
    positions: tuple[SlotTraffic, ...]
    """(K,) from the top slot down, as long as the longest slate."""

    @property
    def ctr(self) -> float:
        """Clicks per slate."""
        return self.clicks / self.slates


@dataclass(frozen=True)
class Traffic:
    """What all visitors counted; every request is a slate of an arm, unlogged, or uncertain."""

    requests: int
    arms: Mapping[str, ArmTraffic]
    """By name, in the order of the names."""
    unlogged: int
    """Slates without a `slate_id`, which cannot be clicked."""
    uncertain: int
    """Requests whose response was lost: their slates may be in the log."""
    refused: int
    """Responses of 429 and 503, to slates and clicks alike; each was retried."""
    milliseconds: Sequence[float] = field(repr=False)
    """Latency of each slate, in no particular order."""

    def percentile(self, percent: float) -> float | None:
        """Return a percentile of the latencies in milliseconds; None if there are none."""
        return float(np.percentile(self.milliseconds, percent)) if self.milliseconds else None

    def to_json(self) -> str:
        """Return everything but the single latencies as strict JSON."""
        values = asdict(self) | {"p50_ms": self.percentile(50), "p99_ms": self.percentile(99)}
        del values["milliseconds"]
        for name, arm in self.arms.items():
            positions = [asdict(slot) | {"ctr": slot.ctr} for slot in arm.positions]
            values["arms"][name] |= {"ctr": arm.ctr, "positions": positions}
        return json.dumps(values, indent=2, allow_nan=False)

    def table(self) -> Group:
        """Return a table for a terminal: a column for each arm, its positions from the top down, and notes."""
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for name in ("", *self.arms):
            table.add_column(Text(name), justify="right" if name else "left", overflow="fold")
        arms = self.arms.values()
        for count in ("slates", "fallbacks", "clicks"):
            table.add_row(count, *(f"{getattr(arm, count):,}" for arm in arms))
        table.add_row("clicks per 100 slates", *(f"{100 * arm.ctr:.2f}" for arm in arms))
        for number in range(max((len(arm.positions) for arm in arms), default=0)):
            table.add_row(f"at position {number + 1}", *(_rate_cell(arm, number) for arm in arms))
        return Group(table, "", Text("\n".join(self._notes()), style="dim"))

    def _notes(self) -> Iterator[str]:
        p50, p99 = self.percentile(50), self.percentile(99)
        if p50 is not None:
            yield f"{self.requests:,} requests: p50 {p50:.1f} ms, p99 {p99:.1f} ms"
        for number, meaning in (
            (self.unlogged, "slates are not in the log, so they could not be clicked"),
            (self.uncertain, "responses were lost: their slates may be in the log, and are not counted here"),
            (self.refused, "requests were refused (429 or 503) and retried"),
        ):
            if number:
                yield f"{number:,} {meaning}"


def send_traffic(
    url: str,
    lists: ItemLists,
    user: ClickModel,
    *,
    requests: int,
    concurrency: int = 8,
    k: int = 10,
    units: int | None = None,
    seed: int = 0,
    key: str | None = None,
    quiet: bool = False,
) -> Traffic:
    """Send simulated visitors to a service, and count what they see and click.

    Request r shows list r of a random order, over and over, to one of the units `visitor-0`, `visitor-1`, ….

    Args:
        url: The address of the service.
        lists: Lists with grades, in base order.
        user: The click model of the visitors.
        requests: Slates to request in all.
        concurrency: Concurrent visitors.
        k: Slots of a slate.
        units: Distinct visitors; a quarter of the requests if not given.
        seed: Everything random follows from it.
        key: API key, if the service needs one.
        quiet: Show no progress.

    Raises:
        DataError: The service refuses a list, or there is none with an item.
        UsageError: The service cannot be reached, refuses the key, or an option is invalid.
    """
    if units is None:
        units = max(1, requests // 4)
    for name, value in {"requests": requests, "concurrency": concurrency, "k": k, "units": units}.items():
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}")
    check_grades(user, lists)
    plan = _Plan(lists, user, k=k, units=units, seed=seed)
    stopped = threading.Event()
    clients = [Client(url, key, stopped) for _ in range(min(concurrency, requests))]
    clients[0].check()
    with closing(_visits(plan, clients, requests, stopped)) as visits:
        ended = list(visits if quiet else track(visits, "visiting", total=requests))
    return _traffic(ended, refused=sum(client.refused for client in clients))


def _rate_cell(arm: ArmTraffic, slot: int) -> str:
    return f"{100 * arm.positions[slot].ctr:.2f}" if slot < len(arm.positions) else "-"


# What is shown to whom, and what is clicked


@dataclass(frozen=True, eq=False)
class _Candidates:
    """A list, prepared for its requests and for the click model."""

    name: str
    columns: bytes
    """The JSON of a request but for its beginning, which names the unit."""
    places: Mapping[str, int]
    """Base position by item id."""
    facts: Facts
    """What the click model knows of the list."""

    @classmethod
    def of(cls, one: ItemLists, user: ClickModel, k: int) -> _Candidates:
        """Prepare a single list."""
        ids = one.item_ids.to_pylist()
        columns: dict[str, Any] = {"item_ids": ids, "features": _with_none(one.features), "k": k}
        if one.categorical:
            columns["categorical"] = {name: values.to_pylist() for name, values in one.categorical.items()}
        if one.context:
            columns["context"] = {name: _with_none(values)[0] for name, values in one.context.items()}
        return cls(
            name=one.list_ids[0].as_py(),
            columns=json.dumps(columns, allow_nan=False)[1:].encode(),
            places={item: place for place, item in enumerate(ids)},
            facts=user.facts(one, relevance_of_items(user, one)[None]),
        )

    def request(self, unit: str) -> bytes:
        """Return the body of a request for a slate."""
        return b'{"unit": ' + json.dumps(unit).encode() + b", " + self.columns

    @property
    def nbytes(self) -> int:
        """Approximate size in memory."""
        return len(self.columns) + 200 * len(self.places) + self.facts.nbytes


def _with_none(values: Any) -> list[Any]:
    """Return a column as a list, with None for a missing number."""
    if not isinstance(values, np.ndarray):
        return list(values.to_pylist())
    plain: list[Any] = np.where(np.isnan(values), np.array(None), values).tolist()
    return plain


class _Plan:
    """Everything random, by the number of the request."""

    def __init__(self, lists: ItemLists, user: ClickModel, *, k: int, units: int, seed: int) -> None:
        self._lists, self._user, self._k, self._units, self._seed = lists, user, k, units, seed
        self._order = np.random.default_rng((seed, 0, _ORDER)).permutation(np.flatnonzero(lists.lengths))
        if not len(self._order):
            raise DataError("no list has an item to show")
        self._cache: dict[int, _Candidates] = {}
        self._room = _CACHE_BYTES
        self._lock = threading.Lock()

    def unit(self, number: int) -> str:
        """Return the visitor of a request."""
        return f"visitor-{np.random.default_rng((self._seed, number, _UNIT)).integers(self._units)}"

    def candidates(self, number: int) -> _Candidates:
        """Return the list of a request; lists are cached as long as there is room."""
        q = int(self._order[number % len(self._order)])
        found = self._cache.get(q)
        if found is None:
            found = _Candidates.of(self._lists[q : q + 1], self._user, self._k)
            with self._lock:
                if q not in self._cache and found.nbytes <= self._room:
                    self._cache[q] = found
                    self._room -= found.nbytes
        return found

    def clicks(self, number: int, candidates: _Candidates, slate: Sequence[int]) -> list[int]:
        """Return the slots that the user clicks."""
        draws = draw([(self._seed, number)], len(slate), repeats=1, n_types=self._user.n_types)
        clicks = scan(self._user, np.array([slate]), candidates.facts, draws).clicks
        slots: list[int] = np.flatnonzero(clicks).tolist()
        return slots


# Visits


@dataclass(frozen=True)
class _Visit:
    """The outcome of one request."""

    milliseconds: float | None = None
    """None if the response was lost."""
    arm: str | None = None
    """None if there is no slate, or it is not in the log."""
    is_fallback: bool = False
    n_shown: int = 0
    clicks: Sequence[int] = ()
    """Slots."""


def _traffic(visits: Sequence[_Visit], *, refused: int) -> Traffic:
    answered = [visit.milliseconds for visit in visits if visit.milliseconds is not None]
    by_arm: dict[str, list[_Visit]] = {}
    for visit in visits:
        if visit.arm is not None:
            by_arm.setdefault(visit.arm, []).append(visit)
    return Traffic(
        requests=len(visits),
        arms={arm: _arm_traffic(by_arm[arm]) for arm in sorted(by_arm)},
        unlogged=len(answered) - sum(map(len, by_arm.values())),
        uncertain=len(visits) - len(answered),
        refused=refused,
        milliseconds=tuple(answered),
    )


def _arm_traffic(visits: Sequence[_Visit]) -> ArmTraffic:
    shown = Counter(slot for visit in visits for slot in range(visit.n_shown))
    clicked = Counter(slot for visit in visits for slot in visit.clicks)
    slots = tuple(SlotTraffic(shown[slot], clicked[slot]) for slot in range(len(shown)))
    return ArmTraffic(len(visits), clicked.total(), sum(visit.is_fallback for visit in visits), slots)


def _visits(plan: _Plan, clients: Sequence[Client], requests: int, stopped: threading.Event) -> Generator[_Visit]:
    """Yield the visits as they end, one thread for each client; an error in one thread stops all."""
    ended: SimpleQueue[_Visit | Exception] = SimpleQueue()
    numbers = iter(range(requests))  # shared by all threads

    def keep_visiting(client: Client) -> None:
        with closing(client):
            try:
                while not stopped.is_set() and (number := next(numbers, None)) is not None:
                    ended.put(_visit(plan, client, number))
            except Exception as error:
                ended.put(error)

    threads = [threading.Thread(target=keep_visiting, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        for _ in range(requests):
            visit = ended.get()
            if isinstance(visit, Exception):
                raise visit
            yield visit
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def _visit(plan: _Plan, client: Client, number: int) -> _Visit:
    """Request a slate, examine it, click."""
    candidates = plan.candidates(number)
    about = f"list {candidates.name!r}"
    try:
        response = client.post("/v1/rerank", candidates.request(plan.unit(number)), about=about, is_idempotent=False)
    except ResponseLostError:
        return _Visit()
    try:
        slate_id, arm, items, fallback = (response.content[name] for name in ("slate_id", "arm", "items", "fallback"))
        slate = [candidates.places[item] for item in items]
    except (KeyError, TypeError):
        raise UsageError(f"{client.url} does not respond like a re-ranking service") from None
    if slate_id is None:
        return _Visit(response.milliseconds)
    clicks = plan.clicks(number, candidates, slate)
    for slot in clicks:
        click = {"slate_id": slate_id, "item": items[slot]}
        client.post("/v1/clicks", json.dumps(click).encode(), about=about)
    return _Visit(response.milliseconds, arm, fallback, len(slate), clicks)
