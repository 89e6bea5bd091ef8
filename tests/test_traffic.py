"""Simulated visitors against real services: what they count is what the log holds, whatever happens on the way."""

import json
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from rich.console import Console

from seq2slate.config import NetworkConfig
from seq2slate.data.files import read, write
from seq2slate.data.impressions import Impression
from seq2slate.data.lists import ItemLists, offsets_from_lengths
from seq2slate.errors import DataError, UsageError
from seq2slate.log.export import export
from seq2slate.log.impression_log import open_log
from seq2slate.model.slate_model import SlateModel
from seq2slate.serving.keys import add_key
from seq2slate.serving.messages import read_rerank
from seq2slate.serving.traffic import ArmTraffic, SlotTraffic, Traffic, _Candidates, send_traffic
from seq2slate.simulation.click_models import CascadeModel, DiverseClicks, SimilarClicks
from tests import reference_clicks
from tests.reference_network import randomise
from tests.served_models import reranker_of
from tests.services import ROOT, Service
from tests.test_cli import seq2slate

LENGTHS = (0, 1, 2, 15, 9, 40, 3, 8, 12, 25, 6, 30)
SEED, REQUESTS, UNITS, K = 5, 240, 50, 6
ARMS = """
name = "autumn"
[[arms]]
name = "control"
model = "base"
[[arms]]
name = "treated"
"""
TIMEOUTS = ("--deadline-ms", 20_000, "--log-deadline-ms", 20_000)  # the machine may be busy


def graded_lists() -> ItemLists:
    """Lists with text and context columns: an empty one, a single item, one without anything relevant, long ones."""
    rng = np.random.default_rng(3)
    n_items = sum(LENGTHS)
    grades = rng.integers(0, 5, n_items)
    offsets = offsets_from_lengths(np.array(LENGTHS))
    grades[offsets[4] : offsets[5]] = 0
    return ItemLists(
        rng.normal(size=(n_items, 4)) * [1, 1e-3, 1, 1e4],
        offsets,
        labels=grades,
        item_ids=[f"{q}/é{item}" for q, length in enumerate(LENGTHS) for item in range(length)],
        categorical={"brand": rng.choice(np.array(["x", "y", "ü", None], dtype=object), n_items)},
        context={"hour": rng.normal(size=len(LENGTHS)) * 6, "city": [["Oslo", "Bern", None][q % 3] for q in range(12)]},
    )


class Visited:
    """A service with an experiment, what visitors counted there, and its log as they left it."""

    def __init__(self, folder: Path, *options: object, key: str | None = None) -> None:
        self.key, self.log, self.lists = key, folder / "log.db", graded_lists()
        self.model = SlateModel.create(self.lists, NetworkConfig(hidden=8, embedding=2))
        randomise(self.model.network, 1)
        self.model.save(folder / "model")
        (folder / "experiment.toml").write_text(ARMS)
        experiment = ("--experiment", folder / "experiment.toml")
        self.service = Service(folder / "model", *experiment, "--log", self.log, *TIMEOUTS, *options)

    def visit(self, concurrency: int) -> None:
        sizes: dict[str, Any] = {"requests": REQUESTS, "concurrency": concurrency, "k": K, "units": UNITS}
        self.traffic = send_traffic(self.service.url, self.lists, SimilarClicks(), seed=SEED, key=self.key, **sizes)
        self.counted = counted(self.log)
        with open_log(self.log, create=False) as store:
            self.logged = list(store.impressions())
            export(store, self.log.with_suffix(".parquet"))


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Visited]]:
    """One that is visited by one after the other; and one that wants keys, and takes one request at a time from six."""
    alone, crowded = (tmp_path_factory.mktemp(name) for name in ("alone", "crowded"))
    key = add_key(crowded / "keys.json", "serve")
    limits = ("--keys", crowded / "keys.json", "--max-in-flight", 1)
    both = {"alone": Visited(alone), "crowded": Visited(crowded, *limits, key=key)}
    with both["alone"].service, both["crowded"].service:
        both["alone"].visit(concurrency=1)
        both["crowded"].visit(concurrency=6)
        yield both


@pytest.fixture(params=["alone", "crowded"])
def visited(request: pytest.FixtureRequest, services: dict[str, Visited]) -> Visited:
    return services[request.param]


@pytest.fixture
def alone(services: dict[str, Visited]) -> Visited:
    return services["alone"]


@pytest.fixture
def crowded(services: dict[str, Visited]) -> Visited:
    return services["crowded"]


def counted(log: Path) -> dict[str, ArmTraffic]:
    """What the log itself has counted."""
    with open_log(log, create=False) as store:
        arms = store.counts("autumn").arms
    return {
        name: ArmTraffic(
            arm.impressions,
            arm.clicks,
            arm.fallbacks,
            tuple(SlotTraffic(slot.impressions, slot.clicks) for slot in arm.positions),
        )
        for name, arm in arms.items()
    }


def totals(arms: dict[str, ArmTraffic]) -> Any:
    """Slates and clicks of all arms, to subtract what was there before."""
    return np.array([(arm.slates, arm.clicks) for arm in arms.values()]).sum(axis=0)


# What is counted


def test_the_visitors_counted_what_the_log_counted(visited: Visited) -> None:
    traffic = visited.traffic
    assert traffic.arms == visited.counted
    assert list(traffic.arms) == ["control", "treated"]
    assert sum(arm.slates for arm in traffic.arms.values()) == REQUESTS
    assert min(arm.clicks for arm in traffic.arms.values()) > 50
    assert (traffic.unlogged, traffic.uncertain) == (0, 0)
    assert len(traffic.milliseconds) == REQUESTS
    assert min(traffic.milliseconds) > 0


def test_the_visitors_counted_what_the_exported_log_says(visited: Visited) -> None:
    lists = read(visited.log.with_suffix(".parquet"))
    assert lists.impressions is not None
    assert lists.impressions.arms is not None
    arms = np.array(lists.impressions.arms.to_pylist())
    for name, arm in visited.traffic.arms.items():
        of_arm = lists[arms == name]
        assert of_arm.impressions is not None
        assert of_arm.labels is not None
        shown, clicked = of_arm.impressions.slots, of_arm.impressions.slots[of_arm.labels > 0]
        slots = tuple(SlotTraffic((shown == slot).sum(), (clicked == slot).sum()) for slot in range(K))
        assert arm == ArmTraffic(len(of_arm), len(clicked), 0, slots)
        assert (clicked >= 0).all()


def test_concurrency_and_refusals_change_nothing(services: dict[str, Visited]) -> None:
    alone, crowded = (services[name].traffic for name in ("alone", "crowded"))
    assert alone.arms == crowded.arms
    assert alone.refused == 0
    assert crowded.refused > 0


def test_clicks_are_those_of_the_user_with_the_draws_of_each_request(alone: Visited) -> None:
    """One by one, the visitors' slates stand in the log in the order of their numbers."""
    assert alone.lists.labels is not None
    for number, logged in enumerate(alone.logged):
        shown = list(logged.shown)
        one = alone.lists[list_of(logged)]
        draws = np.random.default_rng((SEED, number)).random((len(shown), 2))
        assert one.labels is not None
        expected = reference_clicks.clicks(
            "similar",
            one.features.tolist(),
            [grade >= 2 for grade in one.labels.tolist()],
            shown,
            eta=0.3,
            examine=draws[:, 0].tolist(),
            click=draws[:, 1].tolist(),
        )
        assert [item in logged.clicks for item in shown] == expected, number


def test_missing_numbers_are_sent_as_null() -> None:
    features = np.array([[1, np.nan], [np.nan, 2]], np.float32)
    context = {"hour": [np.nan], "day": [2.0], "city": ["Oslo"]}
    one = ItemLists(features, [0, 2], labels=[1, 0], context=context)
    body = _Candidates.of(one, CascadeModel(), k=2).request("u")
    assert b"NaN" not in body
    request = read_rerank(body, max_items=10)
    np.testing.assert_array_equal(request.features, features)
    assert request.context == {"hour": None, "day": 2.0, "city": "Oslo"}


def list_of(logged: Impression) -> int:
    return int(logged.items[0].partition("/")[0])


def test_slates_are_the_models_and_requests_carry_every_column(alone: Visited) -> None:
    slates = reranker_of(alone.model).rerank(alone.lists, k=K)
    for logged in alone.logged:
        one, number = logged, list_of(logged)
        expected = alone.lists[number]
        shown = [one.items[item] for item in one.shown]
        assert shown == (slates[number].item_ids if one.arm == "treated" else expected.item_ids.to_pylist()[:K])
        assert list(one.items) == expected.item_ids.to_pylist()
        np.testing.assert_array_equal(one.features, expected.features)
        assert one.categorical == {"brand": expected.categorical["brand"].to_pylist()}
        context = {"hour": expected.context["hour"][0], "city": expected.context["city"][0].as_py()}
        assert one.context == context
        assert one.fallback is None


def test_lists_come_in_turn_and_units_at_random(alone: Visited) -> None:
    shown = Counter(map(list_of, alone.logged))
    assert set(shown) == {number for number, length in enumerate(LENGTHS) if length}
    assert max(shown.values()) - min(shown.values()) <= 1
    first = [list_of(logged) for logged in alone.logged[: len(shown)]]
    assert sorted(first) != first, "their order is random"
    units = Counter(logged.unit for logged in alone.logged)
    assert set(units) <= {f"visitor-{number}" for number in range(UNITS)}
    assert len(units) > UNITS / 2
    assert max(units.values()) > min(units.values())


# What goes wrong


def test_an_answer_that_is_lost_is_uncertain_and_a_click_is_sent_again(alone: Visited) -> None:
    before = totals(counted(alone.log))
    with losing_answers(alone.service.url) as (url, lost):
        traffic = send_traffic(url, alone.lists, CascadeModel(eta=0), requests=40, concurrency=1, seed=1)
    assert traffic.uncertain == lost["/v1/rerank"] == 40 // 7
    assert lost["/v1/clicks"] > 5
    slates, clicks = totals(counted(alone.log)) - before
    assert slates == 40
    assert totals(dict(traffic.arms)).tolist() == [40 - traffic.uncertain, clicks]
    assert "5 responses were lost: their slates may be in the log" in printed(traffic)


@contextmanager
def losing_answers(url: str) -> Iterator[tuple[str, Counter[str]]]:
    """A proxy that hangs up in the place of every seventh answer to a path."""
    seen, lost = Counter[str](), Counter[str]()

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = client.post(self.path, content=body, headers={"Content-Type": self.headers["Content-Type"]})
            seen[self.path] += 1
            if seen[self.path] % 7 == 0:
                lost[self.path] += 1
                self.close_connection = True
            else:
                self.send_response(answer.status_code)
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with httpx.Client(base_url=url, timeout=30) as client, ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", lost
        finally:
            server.shutdown()
            thread.join()


def test_an_address_where_nothing_listens_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(UsageError, match=f"^cannot connect to {url}: .*refused$"):
        send_traffic(url, graded_lists(), DiverseClicks(), requests=5)
    with pytest.raises(UsageError, match=re.escape("cannot connect to http://no..name")):
        send_traffic("http://no..name", graded_lists(), DiverseClicks(), requests=5)


@pytest.mark.parametrize(
    "url",
    ["localhost:8080", "ftp://127.0.0.1", "http://", "http://a:99999", "http://u:p@a", "http://a b", "http://a?x"],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="expected the URL of a service"):
        send_traffic(url, graded_lists(), DiverseClicks(), requests=5)


def test_something_else_that_answers_is_told_apart(alone: Visited) -> None:
    with pytest.raises(UsageError, match="/nowhere responded 404: Not Found"):
        send_traffic(f"{alone.service.url}/nowhere", alone.lists, DiverseClicks(), requests=5)


@pytest.mark.parametrize("key", [None, "wrong.key"])
def test_a_service_that_wants_a_key_says_so(crowded: Visited, key: str | None) -> None:
    with pytest.raises(UsageError, match=re.escape("responded 401: a key is needed")) as error:
        send_traffic(crowded.service.url, crowded.lists, DiverseClicks(), requests=20, key=key)
    assert "SEQ2SLATE_KEY" in str(error.value)
    assert "wrong.key" not in str(error.value)


def test_a_key_that_cannot_be_sent_is_not_printed(crowded: Visited) -> None:
    with pytest.raises(UsageError, match="the key") as error:
        send_traffic(crowded.service.url, crowded.lists, DiverseClicks(), requests=1, key="secret\n")
    assert "secret" not in str(error.value)


def test_lists_without_grades_are_refused(alone: Visited) -> None:
    before = totals(counted(alone.log))
    assert alone.lists.labels is not None
    for lists, error, message in (
        (replace(alone.lists, labels=None), DataError, "neither relevance nor labels"),
        (replace(alone.lists, labels=np.minimum(alone.lists.labels, 1)), UsageError, "clicks and not grades"),
        (alone.lists[:1], DataError, "no list has an item"),
        (
            ItemLists(np.ones((1001, 4)), [0, 1001], np.full(1001, 3), list_ids=["long"]),
            DataError,
            "'long'.*422: .*1001",
        ),
    ):
        with pytest.raises(error, match=message):
            send_traffic(alone.service.url, lists, DiverseClicks(), requests=5)
    assert totals(counted(alone.log)).tolist() == before.tolist()


@pytest.mark.parametrize("name", ["requests", "concurrency", "k", "units"])
def test_numbers_below_one_are_refused(name: str) -> None:
    numbers: dict[str, Any] = {"requests": 1, name: 0}
    with pytest.raises(UsageError, match=f"{name} must be at least 1, got 0"):
        send_traffic("http://127.0.0.1:1", graded_lists(), DiverseClicks(), **numbers)


# For people and programs


def printed(traffic: Traffic) -> str:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(traffic.table())
    return captured.get()


def test_the_table_and_the_json_have_the_rates() -> None:
    first = ArmTraffic(200, 53, 1, (SlotTraffic(200, 50), SlotTraffic(160, 2), SlotTraffic(100, 1)))
    second = ArmTraffic(100, 30, 0, (SlotTraffic(100, 30),))
    traffic = Traffic(305, {"a": first, "b": second}, 2, 3, 4, [1.0, 2.0, 3.0])
    text = [line.split() for line in printed(traffic).splitlines()]
    for cells in (
        ["slates", "200", "100"],
        ["fallbacks", "1", "0"],
        ["clicks", "per", "100", "slates", "26.50", "30.00"],
        ["at", "position", "1", "25.00", "30.00"],
        ["at", "position", "2", "1.25", "-"],
    ):
        assert cells in text
    assert "305 requests: p50 2.0 ms, p99 3.0 ms" in printed(traffic)
    values = json.loads(traffic.to_json())
    assert values["arms"]["a"]["positions"][1] == {"impressions": 160, "clicks": 2, "ctr": 2 / 160}
    assert values["arms"]["b"]["ctr"] == 30 / 100
    assert [values[name] for name in ("requests", "unlogged", "uncertain", "refused", "p50_ms")] == [305, 2, 3, 4, 2.0]


def test_a_run_without_an_answer_has_a_table_too() -> None:
    assert "2 responses were lost" in printed(Traffic(2, {}, 0, 2, 0, []))
    assert json.loads(Traffic(2, {}, 0, 2, 0, []).to_json())["p99_ms"] is None


def test_the_command_prints_a_table_or_json(crowded: Visited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(crowded.lists, tmp_path / "graded.parquet")
    monkeypatch.setenv("SEQ2SLATE_KEY", str(crowded.key))
    command = ("traffic", crowded.service.url, tmp_path / "graded.parquet", "--requests", 30, "--concurrency", 2)
    before = totals(counted(crowded.log))
    values = json.loads(seq2slate(*command, "--user", "cascade", "--eta", 0, "--k", 3, "--json").out)
    between = totals(counted(crowded.log))
    told = [[arm["slates"], arm["clicks"]] for arm in values["arms"].values()]
    assert np.sum(told, axis=0).tolist() == (between - before).tolist()
    assert max(len(arm["positions"]) for arm in values["arms"].values()) == 3
    table = seq2slate(*command, "--seed", 1).out
    assert re.search(r"control +treated", table)
    assert (totals(counted(crowded.log)) - between)[0] == 30
    monkeypatch.delenv("SEQ2SLATE_KEY")
    refused = seq2slate(*command, "--key", "wrong", code=2)
    assert refused.err.startswith(f"error: {crowded.service.url} responded 401: a key is needed")
    assert len(refused.err.splitlines()) == 1


# Kills and failing logs


@pytest.mark.slow
def test_slates_without_a_log_are_shown_and_not_clicked(tmp_path: Path) -> None:
    visited = Visited(tmp_path, "--log-deadline-ms", 1000)
    with visited.service:
        url = visited.service.url
        other = sqlite3.connect(visited.log, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            traffic = send_traffic(url, visited.lists, CascadeModel(eta=0), requests=10, concurrency=2)
        finally:
            other.close()
        assert (traffic.unlogged, traffic.uncertain, dict(traffic.arms)) == (10, 0, {})
        assert len(traffic.milliseconds) == 10


@pytest.mark.slow
def test_a_service_that_is_killed_and_restarted_has_all_that_was_counted(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Visited(tmp_path).service as first:
        assert first.url, "it has made the log"
    log, requests = tmp_path / "log.db", 3000
    send = partial(send_traffic, requests=requests, concurrency=4, k=K)
    process = start(tmp_path, port)
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(send, f"http://127.0.0.1:{port}", graded_lists(), SimilarClicks())
        try:
            for goal in (100, 800, 1500):
                while totals(counted(log) or {"": ArmTraffic(0, 0, 0, ())})[0] < goal:
                    assert not sending.done(), sending.exception()
                    time.sleep(0.01)
                process.kill()
                process.wait()
                assert not sending.done(), "it was killed in the middle"
                process = start(tmp_path, port)
            traffic = sending.result(timeout=300)
        finally:
            process.kill()
            process.wait()
    assert sum(arm.slates for arm in traffic.arms.values()) == requests - traffic.uncertain - traffic.unlogged
    assert traffic.uncertain <= 3 * 4
    uncounted = 0
    for name, arm in counted(log).items():
        ours = traffic.arms[name]
        assert arm.clicks == ours.clicks
        assert [slot.clicks for slot in arm.positions] == [slot.clicks for slot in ours.positions]
        for slot, counted_slot in zip(arm.positions, ours.positions, strict=True):
            assert 0 <= slot.impressions - counted_slot.impressions <= arm.slates - ours.slates
        uncounted += arm.slates - ours.slates
    assert 0 <= uncounted <= traffic.uncertain + traffic.unlogged


def start(folder: Path, port: int) -> "subprocess.Popen[str]":
    """Start a service at a port of our choice, on the files that a `Visited` has left."""
    command = [sys.executable, "-m", "seq2slate.cli", "serve", folder / "model", "--port", port]
    options = ["--experiment", folder / "experiment.toml", "--log", folder / "log.db", *TIMEOUTS]
    process = subprocess.Popen([*map(str, [*command, *options])], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    with process.stdout as announced:
        assert announced.readline().startswith("serving on")
    return process
