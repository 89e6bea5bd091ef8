"""The service over HTTP, in processes of its own: what it answers, what it logs, and what it refuses."""

import json
import re
import resource
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from seq2slate.data.impressions import Impression
from seq2slate.data.lists import ItemLists
from seq2slate.experiments.assignment import Experiment, read_experiment
from seq2slate.log.impression_log import open_log
from seq2slate.serving.keys import add_key
from seq2slate.serving.messages import cut_title
from tests.served_models import reranker_of
from tests.services import N_FEATURES, Service, request, save_model
from tests.test_cli import seq2slate
from tests.test_log import recounted

ARMS = """
name = "autumn"
[[arms]]
name = "control"
model = "base"
[[arms]]
name = "treated"
[[arms]]
name = "drawn"
temperature = 2.0
[[arms]]
name = "broken"  # one over this temperature is beyond float32
temperature = 1e-45
"""


NAN, INF = float("nan"), float("inf")
READS = "the model reads 4: 'f1', 'f2', 'f3', 'f4'"


class Main:
    """A service with an experiment, and what stands behind it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = save_model(folder / "model", seed=1)
        (folder / "experiment.toml").write_text(ARMS)
        self.experiment: Experiment = read_experiment(folder / "experiment.toml")
        experiment, log = folder / "experiment.toml", folder / "log.db"
        timeouts = ("--deadline-ms", 5000, "--log-deadline-ms", 5000)  # the machine may be busy
        self.service = Service(folder / "model", "--experiment", experiment, "--log", log, *timeouts)

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.service.client.post(path, json=body)

    def rerank(self, body: Any) -> dict[str, Any]:
        response = self.post("/v1/rerank", body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def logged(self, slate_id: str) -> Impression:
        with open_log(self.folder / "log.db", create=False) as store:
            found = store.get(slate_id)
        assert found is not None
        return found

    def unit(self, arm: str, after: int = 0) -> str:
        return next(unit for unit in map(str, range(after, 9999)) if self.experiment.assign(unit).name == arm)

    def metrics(self) -> str:
        return self.service.client.get("/metrics").text

    def metric(self, line: str) -> float:
        found = re.search(rf"^{re.escape(line)} (\S+)$", self.metrics(), re.MULTILINE)
        return float(found.group(1)) if found else 0.0


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Main, "Strict"]]:
    """Both at once: most of the time that a service takes to start is imports."""
    main, strict = Main(tmp_path_factory.mktemp("main")), Strict(tmp_path_factory.mktemp("strict"))
    with main.service, strict.service:
        yield main, strict


@pytest.fixture(scope="module")
def main(services: tuple[Main, "Strict"]) -> Main:
    return services[0]


@pytest.fixture(scope="module")
def strict(services: tuple[Main, "Strict"]) -> "Strict":
    return services[1]


def best_slate(main: Main, body: dict[str, Any], k: int) -> list[str]:
    """What the model itself says of the items of a request."""
    items = body["items"]
    lists = ItemLists(
        np.array([item["features"] for item in items], np.float32), [0, len(items)], item_ids=[i["id"] for i in items]
    )
    return list(reranker_of(main.model).rerank(lists, k=k)[0].item_ids)


# Slates


def test_a_slate_is_the_models_and_in_the_log_with_all_that_led_to_it(main: Main) -> None:
    body = request(main.unit("treated"), k=4, context={"page": 2.0, "city": "Oslo"}, explain=True)
    answer = main.rerank(body)
    assert (answer["arm"], answer["fallback"]) == ("treated", False)
    assert answer["items"] == best_slate(main, body, 4) != ["a", "b", "c", "d"]
    assert len(answer["probabilities"]) == 4
    assert all(0 < chance <= 1 for chance in answer["probabilities"])
    impression = main.logged(answer["slate_id"])
    assert [impression.items[item] for item in impression.shown] == answer["items"]
    assert list(impression.items) == [item["id"] for item in body["items"]]
    np.testing.assert_array_equal(impression.features, np.array([i["features"] for i in body["items"]], np.float32))
    assert (impression.unit, impression.experiment, impression.arm) == (body["unit"], "autumn", "treated")
    assert (impression.context, impression.fallback, impression.log_propensities) == (
        None,
        None,
        None,
    )  # no model reads it
    assert impression.model is not None
    assert abs(impression.at - time.time()) < 60


def test_columns_are_the_same_as_items(main: Main) -> None:
    body = request(main.unit("treated"), seed=3)
    columns = {
        "unit": body["unit"],
        "item_ids": [item["id"] for item in body["items"]],
        "features": [item["features"] for item in body["items"]],
    }
    one, other = main.rerank(body), main.rerank(columns)
    assert one["items"] == other["items"] == best_slate(main, body, 6)
    assert one["slate_id"] != other["slate_id"]
    assert "probabilities" not in one


def test_the_base_arm_shows_the_order_as_given(main: Main) -> None:
    answer = main.rerank(request(main.unit("control"), k=3, explain=True))
    assert answer == {**answer, "arm": "control", "items": ["a", "b", "c"], "fallback": False, "probabilities": None}
    assert main.logged(answer["slate_id"]).model is None


def test_drawn_slates_vary_and_their_propensities_are_logged(main: Main) -> None:
    """At temperature 2 the first slot follows softmax(scores / 2); greedy probabilities are softmax(scores)."""
    unit, first = main.unit("drawn"), Counter[str]()
    for _ in range(60):
        answer = main.rerank(request(unit, n=3, k=2, explain=True))
        first[answer["items"][0]] += 1
        impression = main.logged(answer["slate_id"])
        assert impression.log_propensities is not None
        np.testing.assert_allclose(np.exp(impression.log_propensities), answer["probabilities"], rtol=1e-5)
        chance = answer["probabilities"][0]
        assert abs(first_choice(main, answer["items"][0]) - chance) < 1e-4
    assert len(first) > 1


def first_choice(main: Main, item: str) -> float:
    """The probability that an item is drawn first at temperature 2, from its probability at temperature 1."""
    items = request("", n=3)["items"]
    features = np.array([one["features"] for one in items], np.float32)
    greedy = [float(main.model.log_prob(ItemLists(features, [0, 3]), np.array([[one]]))[0, 0]) for one in range(3)]
    softened = np.exp(np.array(greedy) / 2)
    return float(softened["abc".index(item)] / softened.sum())


def test_a_list_without_items_has_nothing_to_click(main: Main) -> None:
    assert main.rerank({"unit": "u", "items": []}) | {"arm": ""} == {
        "slate_id": None,
        "arm": "",
        "items": [],
        "fallback": False,
    }


def test_slate_ids_cannot_be_guessed(main: Main) -> None:
    ids = {main.rerank(request("u"))["slate_id"] for _ in range(20)}
    assert len(ids) == 20
    assert all(re.fullmatch(r"[\w-]{22}", one) for one in ids), "16 random bytes"


# Fail open


@pytest.mark.parametrize(
    ("spoil", "detail", "column"),
    [
        (lambda items: items[2].update(features=[1.0, 2.0]), f"item 'c' has 2 columns of features, {READS}", "other"),
        (lambda items: items[2].update(features=[1.0] * 5), f"item 'c' has 5 columns of features, {READS}", "other"),
        (
            lambda items: [item.update(features=[1.0]) for item in items],
            f"item 'a' has 1 column of features, {READS}",
            "other",
        ),
        (lambda items: items[2].update(features=[]), f"item 'c' has 0 columns of features, {READS}", "other"),
        (lambda items: items[2].pop("features"), "features of item 'c' are missing", "other"),
        (lambda items: [item.pop("features") for item in items], f"features are missing, {READS}", "other"),
        (lambda items: items[2].update(features=[1.0, 1.0, INF, 1.0]), "feature 'f3' of item 'c' is infinite", "f3"),
        (lambda items: items[2].update(features=[NAN, 1.0, -INF, 1.0]), "feature 'f3' of item 'c' is infinite", "f3"),
        (lambda items: items[2].update(features=[1e300] * 4), "feature 'f1' of item 'c' is beyond float32", "f1"),
        (lambda items: items[2].update(features=[10**400] * 4), "feature 'f1' of item 'c' is infinite", "f1"),
    ],
)
@pytest.mark.parametrize("arm", ["treated", "control"])
def test_bad_features_lead_to_the_base_order(
    main: Main, arm: str, spoil: Callable[[Any], object], detail: str, column: str
) -> None:
    body = request(main.unit(arm), k=3)
    spoil(body["items"])
    counted = f'seq2slate_fallbacks_total{{arm="{arm}",reason="bad-features"}}'
    by_column = f'seq2slate_bad_features_total{{arm="{arm}",column="{column}"}}'
    before, of_column = main.metric(counted), main.metric(by_column)
    response = main.service.client.post(
        "/v1/rerank", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    answer = response.json()
    assert answer | {"slate_id": ""} == {
        "slate_id": "",
        "arm": arm,
        "items": ["a", "b", "c"],
        "fallback": True,
        "reason": "bad-features",
        "detail": detail,
    }
    assert (main.metric(counted), main.metric(by_column)) == (before + 1, of_column + 1)
    logged = main.logged(answer["slate_id"])
    assert (logged.fallback, logged.fallback_detail) == ("bad-features", detail)
    assert detail in unescape(main.service.client.get(f"/slates/{answer['slate_id']}").text)
    assert main.post("/v1/clicks", {"slate_id": answer["slate_id"], "item": "b"}).json() == {"outcome": "new"}


@pytest.mark.parametrize("arm", ["treated", "control"])
@pytest.mark.parametrize("missing", [None, float("nan")])
def test_missing_features_are_ranked_as_the_model_ranks_them_and_logged(
    main: Main, arm: str, missing: float | None
) -> None:
    body = request(main.unit(arm))
    body["items"][2]["features"][1], body["items"][4]["features"] = missing, [missing] * N_FEATURES
    answer = main.service.client.post(
        "/v1/rerank", content=json.dumps(body), headers={"Content-Type": "application/json"}
    ).json()
    assert not answer["fallback"]
    features = np.array([item["features"] for item in body["items"]], np.float32)
    impression = main.logged(answer["slate_id"])
    np.testing.assert_array_equal(impression.features, features)
    expected = main.model.rank(ItemLists(features, [0, 6]).batch())[0] if arm == "treated" else range(6)
    assert answer["items"] == ["abcdef"[item] for item in expected]


def test_an_infinite_context_is_a_bad_feature(main: Main) -> None:
    answer = main.service.client.post(
        "/v1/rerank",
        content=json.dumps(request(main.unit("treated"), context={"page": float("inf")})),
        headers={"Content-Type": "application/json"},
    ).json()
    assert (answer["fallback"], answer["reason"]) == (True, "bad-features")
    assert answer["detail"] == "context column 'page' is infinite"


def test_names_that_only_the_request_has_are_no_labels(main: Main) -> None:
    """Whoever sends requests must not be able to fill the memory of the service, or of Prometheus."""
    for number in range(5):
        main.service.client.post(
            "/v1/rerank",
            content=json.dumps(request(main.unit("treated"), context={f"page {number}" * 99: INF})),
            headers={"Content-Type": "application/json"},
        )
    labels = re.findall(r'seq2slate_bad_features_total{arm="treated",column="([^"]*)"}', main.metrics())
    assert set(labels) <= {"f1", "f2", "f3", "f4", "other"}


def test_titles_are_shown_on_the_pages_cut_and_escaped(main: Main) -> None:
    titles = ["<b>Lamp</b> & co", None, "ë" * 999, "a\0b", "", "Chair"]
    body = request(main.unit("treated"))
    columns = {
        "item_ids": [item["id"] for item in body["items"]],
        "features": [item["features"] for item in body["items"]],
    }
    for item, title in zip(body["items"], titles, strict=True):
        item["title"] = title
    answers = [main.rerank(body), main.rerank({"unit": body["unit"], **columns, "titles": titles})]
    assert answers[0]["items"] == answers[1]["items"]
    for answer in answers:
        stored = main.logged(answer["slate_id"]).titles
        assert stored is not None
        assert [*stored[:2], *stored[3:]] == [titles[0], None, "a\ufffdb", "", "Chair"]
        cut = str(stored[2])
        assert cut.endswith("ë…")
        assert 297 <= len(cut.encode()) <= 300
        page = main.service.client.get(f"/slates/{answer['slate_id']}").text
        assert "<small>&lt;b&gt;Lamp&lt;/b&gt; &amp; co</small>" in page
        assert "<b>Lamp" not in page
    top = titles["abcdef".index(answers[0]["items"][0])] or ""
    assert cut_title(top) in unescape(main.service.client.get("/slates").text)
    without = main.rerank(request(body["unit"]))
    assert main.logged(without["slate_id"]).titles is None


def test_a_model_that_fails_leads_to_the_base_order(main: Main) -> None:
    answer = main.rerank(request(main.unit("broken"), k=3))
    assert (answer["items"], answer["fallback"], answer["reason"]) == (["a", "b", "c"], True, "model-error")
    assert main.logged(answer["slate_id"]).fallback == "model-error"


def test_a_deadline_that_passes_leads_to_the_base_order(strict: "Strict") -> None:
    answer = strict.post("/v1/rerank", request("u", n=200)).json()
    assert (answer["items"][:3], answer["fallback"], answer["reason"]) == (["a", "b", "c"], True, "deadline")


# Clicks


def test_forged_replayed_and_crossed_clicks_change_nothing(main: Main) -> None:
    one, other = (main.rerank(request(main.unit("treated"), seed=seed, k=2)) for seed in (1, 2))
    hidden = next(item for item in "abcdef" if item not in one["items"])
    crossed = next((item for item in other["items"] if item not in one["items"]), hidden)
    click = {"slate_id": one["slate_id"], "item": one["items"][1]}
    assert main.post("/v1/clicks", click).json() == {"outcome": "new"}
    first = main.logged(one["slate_id"]).clicks
    for body, status, answer in (
        (click, 200, {"outcome": "duplicate"}),
        (click, 200, {"outcome": "duplicate"}),
        ({**click, "slate_id": "x" * 22}, 404, {"error": "slate_id: there is no such slate"}),
        ({**click, "slate_id": one["slate_id"].swapcase()}, 404, {"error": "slate_id: there is no such slate"}),
        ({**click, "item": hidden}, 409, {"error": "item: the slate did not show that item"}),
        ({**click, "item": crossed}, 409, {"error": "item: the slate did not show that item"}),
        ({**click, "item": "nobody's"}, 409, {"error": "item: the slate did not show that item"}),
    ):
        response = main.post("/v1/clicks", body)
        assert (response.status_code, response.json()) == (status, answer)
    assert main.logged(one["slate_id"]).clicks == first
    assert not main.logged(other["slate_id"]).clicks
    with open_log(main.folder / "log.db", create=False) as store:
        assert store.counts("autumn").arms == recounted(store, "autumn")


# What is refused


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ("{", 400, "not JSON"),
        ("", 400, "not JSON"),
        ("[" * 2_000, 400, "not JSON"),
        ("[" * 100_000, 422, "body: 100000 lists and objects are more than the limit of 4100"),
        ('{"unit": "\\ud800", "items": []}', 422, "unit: "),
        ("[]", 422, "object"),
        ({}, 422, "unit"),
        ({"unit": 1}, 422, "unit: "),
        ({"unit": "", "items": []}, 422, "unit: "),
        ({"unit": "u" * 513, "items": []}, 422, "unit: "),
        ({"unit": "ë" * 300, "items": [{"id": "a"}]}, 422, "unit"),
        ({"unit": "u"}, 422, "items: "),
        ({"unit": "u", "items": [], "item_ids": []}, 422, "items: "),
        ({"unit": "u", "items": {}}, 422, "items: "),
        ({"unit": "u", "items": [{"features": []}]}, 422, "items[0]: "),
        ({"unit": "u", "items": [{"id": 7}]}, 422, "items[0].id: "),
        ({"unit": "u", "items": [{"id": "a"}, {"id": "a"}]}, 422, "items: duplicate id 'a'"),
        ({"unit": "u", "items": [{"id": "a\0"}]}, 422, "items: "),
        ({"unit": "u", "items": [{"id": "a", "features": ["x"]}]}, 422, "items[0].features[0]: "),
        ({"unit": "u", "items": [{"id": "a", "features": 1}]}, 422, "items[0].features: "),
        ({"unit": "u", "items": [], "features": [[1]]}, 422, "features: "),
        ({"unit": "u", "item_ids": ["a"], "features": []}, 422, "features: 0 rows for 1"),
        ({"unit": "u", "item_ids": ["a"], "categorical": {"c": []}}, 422, "categorical.c: "),
        ({"unit": "u", "item_ids": ["a"], "titles": []}, 422, "titles: 0 rows for 1"),
        ({"unit": "u", "items": [{"id": "a"}], "titles": ["A"]}, 422, "titles"),
        ({"unit": "u", "items": [{"id": "a", "title": 1}]}, 422, "items[0].title: "),
        ({"unit": "u", "items": [], "k": 0}, 422, "k: "),
        ({"unit": "u", "items": [], "k": -3}, 422, "k: "),
        ({"unit": "u", "items": [], "k": 1.5}, 422, "k: "),
        ({"unit": "u", "items": [], "k": "3"}, 422, "k: "),
        ({"unit": "u", "items": [], "k": True}, 422, "k: "),
        ({"unit": "u", "items": [], "context": {"a": []}}, 422, "context"),
        ({"unit": "u", "items": [{"id": "a"}], "context": {"a": "\0"}}, 422, "context: "),
        ({"unit": "u", "items": [], "explain": 1}, 422, "explain: "),
        ({"unit": "u", "items": [], "contxt": {}}, 422, "contxt"),
        ({"unit": "u", "item_ids": [str(n) for n in range(1001)]}, 422, "items: 1001 are more than the limit of 1000"),
    ],
)
def test_a_malformed_request_is_refused_by_the_field(main: Main, body: Any, status: int, named: str) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    response = main.service.client.post("/v1/rerank", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == status, response.text
    assert named in response.json()["error"]


@pytest.mark.parametrize(
    ("body", "named"),
    [({}, "slate_id"), ({"slate_id": "s"}, "item"), ({"slate_id": 1, "item": "a"}, "slate_id: "), ([], "object")],
)
def test_a_malformed_click_is_refused_by_the_field(main: Main, body: Any, named: str) -> None:
    response = main.post("/v1/clicks", body)
    assert response.status_code == 422
    assert named in response.json()["error"]


def test_other_kinds_of_bodies_methods_and_paths(main: Main) -> None:
    client = main.service.client
    assert client.post("/v1/rerank", content="{}", headers={"Content-Type": "text/plain"}).status_code == 415
    assert client.post("/v1/rerank", content=json.dumps(request("u"))).status_code == 415
    assert client.get("/v1/rerank").status_code == 405
    assert client.post("/healthz").status_code == 405
    assert client.get("/v2/rerank").json() == {"error": "Not Found"}


# Models that are replaced


def test_a_replaced_model_is_picked_up_without_dropping_a_request(main: Main) -> None:
    body, done = request(main.unit("treated")), threading.Event()
    answers: list[httpx.Response] = []

    def ask() -> None:
        with httpx.Client(base_url=main.service.url, timeout=30) as client:
            while not done.is_set():
                answers.append(client.post("/v1/rerank", json=body))

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    old = best_slate(main, body, 6)
    _wait_until(lambda: len(answers) > 10)
    main.model = save_model(main.folder / "model", seed=5)
    new = best_slate(main, body, 6)
    assert new != old
    response = main.post("/v1/admin/reload", None)
    assert response.status_code == 200
    assert main.rerank(body)["items"] == new
    asked = len(answers)
    _wait_until(lambda: len(answers) > asked + 10)
    done.set()
    for thread in asking:
        thread.join()
    assert {answer.status_code for answer in answers} == {200}
    assert {tuple(answer.json()["items"]) for answer in answers} == {tuple(old), tuple(new)}
    assert not any(answer.json()["fallback"] for answer in answers)
    assert main.logged(main.rerank(body)["slate_id"]).model == response.json()["models"]["treated"]


def test_sighup_reloads_too(main: Main) -> None:
    body = request(main.unit("treated"), seed=8)
    old = main.rerank(body)["items"]
    main.model = save_model(main.folder / "model", seed=9)
    new = best_slate(main, body, 6)
    assert new != old
    main.service.process.send_signal(signal.SIGHUP)
    _wait_until(lambda: main.rerank(body)["items"] == new)


def test_a_reload_reads_the_experiment_too(main: Main) -> None:
    unit, file = main.unit("treated"), main.folder / "experiment.toml"
    file.write_text(ARMS.replace('name = "control"', 'name = "renamed"').replace("autumn", "winter"))
    try:
        assert main.post("/v1/admin/reload", None).json()["experiment"] == "winter"
        arm = read_experiment(file).assign(unit).name
        answer = main.rerank(request(unit))
        assert (answer["arm"], main.logged(answer["slate_id"]).experiment) == (arm, "winter")
        file.write_text("name = 1")
        response = main.post("/v1/admin/reload", None)
        assert (response.status_code, "experiment.toml" in response.json()["error"]) == (409, True)
        assert main.rerank(request(unit))["arm"] == arm
    finally:
        file.write_text(ARMS)
        assert main.post("/v1/admin/reload", None).status_code == 200


def test_arms_show_the_name_of_their_models_folder(main: Main) -> None:
    client = main.service.client
    models = {"control": "base", "treated": "model", "drawn": "model", "broken": "model"}
    assert client.get("/v1/experiment").json()["models"] == models
    save_model(main.folder / "model-2026-03", seed=4)
    (main.folder / "current").symlink_to("model-2026-03")
    file = main.folder / "experiment.toml"
    file.write_text(ARMS.replace('name = "treated"', 'name = "treated"\nmodel = "current"'))
    try:
        assert main.post("/v1/admin/reload", None).status_code == 200
        assert client.get("/v1/experiment").json()["models"] == models | {"treated": "model-2026-03"}
        answer = [main.rerank(request(main.unit(arm))) for arm in ("control", "treated")][1]
        for path in ("/", f"/slates/{answer['slate_id']}"):
            page = client.get(path).text
            assert re.search(r"model-2026-03<small><code class=\"number\">[0-9a-f]{16}</code>", page), path
        told = seq2slate("experiment", main.folder / "log.db", "--experiment", "autumn").out
        assert "treated (model-2026-03)" in told
        assert "control (base order)" in told
    finally:
        file.write_text(ARMS)
        assert main.post("/v1/admin/reload", None).status_code == 200
    assert client.get("/v1/experiment").json()["models"] == models


def test_a_broken_model_does_not_take_the_place_of_a_good_one(main: Main) -> None:
    body = request(main.unit("treated"))
    before = main.rerank(body)["items"]
    weights = main.folder / "model" / "weights.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    response = main.post("/v1/admin/reload", None)
    assert (response.status_code, "checksum" in response.json()["error"]) == (409, True)
    assert main.rerank(body)["items"] == before
    weights.write_bytes(good)
    assert main.post("/v1/admin/reload", None).status_code == 200


# Pages


def test_the_page_stands_alone_and_says_what_the_description_says(main: Main) -> None:
    client = main.service.client
    description, page = client.get("/openapi.json").json(), client.get("/docs")
    assert description["openapi"].startswith("3.1")
    for path in description["paths"]:
        assert f" {path}</h2>" in page.text
    assert not re.search(r"<script|<link|<img|https?://|@import|url\(", page.text)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    for response in (page, client.get("/healthz"), main.post("/v1/rerank", {})):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        assert "server" not in response.headers


def test_health_and_metrics(main: Main) -> None:
    client = main.service.client
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ok", "log": "ok"}
    for route in ("rerank", "reload", "slate"):  # from the start, also those that nobody has asked for
        assert f'seq2slate_request_seconds_count{{route="{route}"}}' in client.get("/metrics").text
    counted = 'seq2slate_requests_total{route="rerank",status="422"}'
    before = main.metric(counted)
    main.post("/v1/rerank", {})
    assert main.metric(counted) == before + 1


# Keys and limits


class Strict:
    """A service with keys, small limits, a short deadline for the model, and no responses without the log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        save_model(folder / "model", seed=1, hidden=512)  # 200 items take tens of milliseconds
        self.serve_key, self.admin_key = (add_key(folder / "keys.json", scope) for scope in ("serve", "admin"))
        limits = (
            "--max-items",
            200,
            "--max-body-bytes",
            20_000,
            "--max-in-flight",
            1,
            "--deadline-ms",
            1,
            "--log-deadline-ms",
            5000,
        )
        log = ("--log", folder / "log.db", "--log-failure", "refuse", "--keys", folder / "keys.json")
        self.service = Service(folder / "model", *limits, *log)

    def post(self, path: str, body: Any, key: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key or self.serve_key}"}
        return self.service.client.post(path, json=body, headers=headers)

    def get(self, path: str, key: str) -> httpx.Response:
        return self.service.client.get(path, headers={"Authorization": f"Bearer {key}"})


def test_pages_of_other_sites_are_refused(main: Main) -> None:
    client = main.service.client
    for host, status in (
        ("localhost:1", 200),
        ("[::1]:8080", 200),
        ("127.0.0.1", 200),
        ("evil.example", 403),
        ("", 403),
        ("[::1].evil.example", 403),
        ("[::1]evil.example", 403),
        ("[::1%evil.example]", 403),
        ("[::1]:80.evil.example", 403),
        ("127.0.0.1:80.evil.example", 403),
        ("localhost:80@evil.example", 403),
    ):
        assert client.get("/metrics", headers={"Host": host}).status_code == status, host
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert client.post("/v1/admin/reload", headers={"Sec-Fetch-Site": site}).status_code == status


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/clicks", "/v1/admin/reload"])
def test_origins_are_checked_where_something_changes(main: Main, strict: Strict, path: str) -> None:
    """Browsers send no Sec-Fetch-Site to an address without TLS, but the origin of the page with every POST."""
    host = main.service.url.partition("://")[2]
    for service in (main.service, strict.service):
        key = strict.admin_key if "admin" in path else strict.serve_key
        for headers, is_refused in (
            ({"Origin": f"http://{host}"}, False),
            ({"Origin": f"https://{host}".upper()}, False),
            ({"Origin": "http://evil.example"}, True),
            ({"Origin": f"http://{host}.evil.example"}, True),
            ({"Origin": "http://localhost:1"}, True),
            ({"Origin": "null"}, True),
            ({"Origin": host}, True),
            ({"Origin": "http://evil.example", "Sec-Fetch-Site": "none"}, True),
            ({"Origin": "https://shop.example", "Sec-Fetch-Site": "same-origin"}, False),  # behind a proxy
        ):
            sent = {**headers, "Host": host, "Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            response = service.client.post(path, headers=sent, content="{}")
            assert (response.status_code == 403) == is_refused, headers
            assert not is_refused or response.json()["error"].startswith("Origin: ")
    assert main.service.client.get("/metrics", headers={"Origin": "http://evil.example"}).status_code == 200


def test_of_several_headers_the_first_one_counts(main: Main, strict: Strict) -> None:
    def status_of(service: Service, *headers: tuple[str, str]) -> int:
        return service.client.post("/v1/admin/reload", headers=headers).status_code

    assert status_of(main.service, ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "none")) == 403
    keys = [("Authorization", f"Bearer {key}") for key in (strict.serve_key, strict.admin_key)]
    assert [status_of(strict.service, *order) for order in (keys, keys[::-1])] == [403, 200]


def test_keys_open_what_they_are_for_and_nothing_else(strict: Strict) -> None:
    client = strict.service.client
    for path in ("/healthz", "/readyz"):
        assert client.get(path).status_code == 200
    for method, path, scope in (
        ("POST", "/v1/rerank", "serve"),
        ("POST", "/v1/clicks", "serve"),
        ("POST", "/v1/admin/reload", "admin"),
        ("GET", "/metrics", "admin"),
        ("GET", "/openapi.json", "admin"),
        ("GET", "/docs", "admin"),
        ("GET", "/v1/experiment", "admin"),
        ("GET", "/", "admin"),
        ("GET", "/slates", "admin"),
        ("GET", "/slates/x", "admin"),
    ):
        statuses = [
            client.request(method, path, headers=headers, json={} if method == "POST" else None).status_code
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": strict.serve_key},
                {"Authorization": f"Bearer {strict.serve_key}"},
                {"Authorization": f"Bearer {strict.admin_key}"},
            )
        ]
        assert statuses[:3] == [401, 401, 401]
        assert [status == 403 for status in statuses[3:]] == [scope == "admin", scope == "serve"]
        assert 401 not in statuses[3:]
    assert client.get("/docs", auth=("anyone", strict.admin_key)).status_code == 200
    assert "Basic" in client.get("/docs").headers["www-authenticate"]


@pytest.mark.parametrize(
    "value", [b"Basic \xff", b"Basic AP8=", b"Basic /w==", b"Basic", b"basic =", b"Bearer \xff", b"\xff"]
)
def test_an_authorization_that_cannot_be_read_is_no_key(strict: Strict, value: bytes) -> None:
    assert strict.service.client.get("/docs", headers={b"Authorization": value}).status_code == 401


def test_no_key_is_told(strict: Strict) -> None:
    strict.service.client.get(f"/metrics?key={strict.admin_key}")
    strict.post("/v1/rerank", {}, strict.admin_key)
    told = strict.service.errors() + strict.get("/metrics", strict.admin_key).text
    assert strict.serve_key not in told
    assert strict.admin_key not in told


def test_sizes_are_limited(strict: Strict) -> None:
    assert strict.post("/v1/rerank", request("u", n=200)).status_code == 200
    response = strict.post("/v1/rerank", request("u", n=201))
    assert (response.status_code, "limit of 200" in response.json()["error"]) == (422, True)
    for size, status in ((19_000, 422), (21_000, 413), (5_000_000, 413)):
        assert strict.post("/v1/rerank", {"unit": "u" * size}).status_code == status


def test_requests_in_flight_are_limited(strict: Strict) -> None:
    """One request waits for the log, which somebody else has locked; while it does, it is the one that is allowed."""
    statuses: list[int] = []

    def ask() -> None:
        with httpx.Client(base_url=strict.service.url, timeout=30) as client:
            headers = {"Authorization": f"Bearer {strict.serve_key}"}
            statuses.append(client.post("/v1/rerank", json=request("u", n=3), headers=headers).status_code)

    other = sqlite3.connect(strict.folder / "log.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        first = threading.Thread(target=ask)
        first.start()
        _wait_until(
            lambda: "seq2slate_in_flight 2.0" in strict.get("/metrics", strict.admin_key).text, 4
        )  # with itself
        assert strict.post("/v1/rerank", request("u", n=3)).status_code == 429
        assert strict.get("/v1/experiment", strict.admin_key).status_code == 429
        assert strict.get("/metrics", strict.admin_key).status_code == 200
        assert strict.service.client.get("/healthz").status_code == 200
    finally:
        other.close()
    first.join()
    assert statuses == [200]
    assert strict.post("/v1/rerank", request("u", n=3)).status_code == 200


def test_a_full_disk_refuses_cleanly_and_recovers(strict: Strict) -> None:
    """The file size that the process may write is what a disk is to it; then there is room again."""
    slate = strict.post("/v1/rerank", request("before", n=3)).json()
    pid, unlimited = strict.service.process.pid, resource.RLIM_INFINITY
    try:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, unlimited))
        _wait_until(lambda: strict.post("/v1/rerank", request("during", n=3)).status_code == 503)
        refused = strict.post("/v1/rerank", request("during", n=3))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        click = {"slate_id": slate["slate_id"], "item": "a"}
        assert strict.post("/v1/clicks", click).status_code == 503
        assert strict.service.client.get("/readyz").json() == {"status": "unavailable", "log": "unavailable"}
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
    _wait_until(lambda: strict.post("/v1/clicks", click).status_code == 200)
    acknowledged = [strict.post("/v1/rerank", request("after", n=3)).json()["slate_id"] for _ in range(3)]
    with open_log(strict.folder / "log.db", create=False) as store:
        found = {logged.slate_id: logged for logged in store.impressions()}
    assert {slate["slate_id"], *acknowledged} <= set(found)
    assert list(found[slate["slate_id"]].clicks) == [0]


def test_a_log_that_is_full_or_hangs_and_a_stop_that_drains(tmp_path: Path) -> None:
    """One after the other with one service, which is told to serve on without a log."""
    save_model(tmp_path / "model", seed=1)
    with Service(tmp_path / "model", "--log", tmp_path / "log.db", "--log-deadline-ms", 1500) as service:
        body = {"unit": "u", "item_ids": ["a"], "features": [[0.0] * N_FEATURES]}
        unlogged = {"slate_id": None, "arm": "model", "items": ["a"], "fallback": True, "reason": "log"}

        def ask() -> Any:
            return service.client.post("/v1/rerank", json=body).json()

        assert service.url
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        _wait_until(lambda: ask() == unlogged)
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        _wait_until(lambda: ask()["slate_id"] is not None)
        _check_hanging(ask, unlogged, tmp_path / "log.db")
        _wait_until(lambda: ask()["slate_id"] is not None)
        answer = _answer_during_stop(service, body)
        assert service.process.wait(timeout=30) == 0
    assert sorted(path.name for path in tmp_path.glob("log.db*")) == ["log.db"], "the write-ahead log is folded in"
    with open_log(tmp_path / "log.db", create=False) as store:
        assert store.get(answer["slate_id"]) is not None


def _check_hanging(ask: Callable[[], Any], unlogged: Any, log: Path) -> None:
    """Somebody else holds the write lock: the first request waits for as long as it may, the others not at all."""
    other = sqlite3.connect(log, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        assert ask() == unlogged
        waited, started = time.monotonic() - started, time.monotonic()
        assert waited >= 1.4
        assert ask() == unlogged
        assert time.monotonic() - started < 1
    finally:
        other.close()


def _answer_during_stop(service: Service, body: Any) -> Any:
    """Send SIGTERM in the middle of a request, and return what it is answered."""
    content, address = json.dumps(body).encode(), httpx.URL(service.url)
    head = (
        "POST /v1/rerank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Expect: 100-continue\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection((address.host, address.port)) as slow:
        slow.sendall(head.encode())
        assert slow.recv(1000).startswith(b"HTTP/1.1 100"), "the service waits for the body"
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        slow.sendall(content)
        answer = b"".join(iter(lambda: slow.recv(10_000), b""))
        return json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--host", "0.0.0.0"), "give --keys FILE"),
        (("--host", "::"), "give --keys FILE"),
        (("--host", "0.0.0.0", "--keys", "none.json"), "none.json: cannot be read"),
        ((), "nothing to serve"),
    ],
)
def test_what_does_not_start(
    arguments: tuple[str, ...],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from seq2slate.cli import main as run

    monkeypatch.setattr(sys, "argv", ["seq2slate", "serve", *arguments])
    with pytest.raises(SystemExit) as caught:
        run()
    assert caught.value.code == 2
    assert problem in capsys.readouterr().err


def _wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
