"""The pages of the service: what they say, what they escape, and what they answer when something is missing."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest

from seq2slate.data.impressions import Draft, Impression
from seq2slate.data.lists import ItemLists
from seq2slate.experiments.analysis import Analysis, analyse
from seq2slate.experiments.assignment import Arm, Experiment, read_experiment
from seq2slate.experiments.counts import ArmCounts, Counts, Definition, DraftCounts, MinuteCounts, PositionCounts
from seq2slate.experiments.statistics import MIN_UNITS
from seq2slate.html import Html, element
from seq2slate.log.impression_log import open_log
from seq2slate.serving.app import create_app
from seq2slate.serving.deployment import Deployment, load_deployment
from seq2slate.serving.keys import add_key
from seq2slate.serving.monitoring import Monitor
from seq2slate.serving.service import RerankService, Timeouts
from seq2slate.serving.web import charts
from seq2slate.serving.web.experiment_page import analysis_of, experiment_page, read_overview
from seq2slate.serving.web.frame import frame
from seq2slate.serving.web.slate_pages import (
    StepProbabilities,
    draw_slate,
    slate_page,
    slates_page,
    step_probabilities,
)
from seq2slate.serving.web.svg import ARM_COLOURS, arm_class, nice_axis
from seq2slate.serving.web.words import verdict_sentences, verdict_tone, warnings
from tests.services import N_FEATURES, Service, get, request, save_model
from tests.web_logs import HTML, LONG, add_counts, simulate

ARMS = """
name = "autumn"
[[arms]]
name = "control"
model = "base"
weight = 2
[[arms]]
name = "treated"
weight = 2
[[arms]]
name = "drawn"
temperature = 2.0
[[arms]]
name = "broken"  # one over this temperature is beyond float32
temperature = 1e-45
"""


class Site:
    """A service with an experiment of four arms, a log with others, and keys."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log.db"
        self.model = save_model(folder / "model", seed=1)
        (folder / "experiment.toml").write_text(ARMS)
        self.experiment: Experiment = read_experiment(folder / "experiment.toml")
        self.admin, self.key = (add_key(folder / "keys.json", scope) for scope in ("admin", "serve"))
        simulate(self.log, "summer", {"control": 0.2, "treated": 0.4}, 1500)
        simulate(self.log, "one slate", {"base": 0.2}, 1)
        simulate(self.log, HTML, {"control": 0.2, HTML: 0.2, LONG[:128]: 0.2}, 30)
        add_counts(self.log, "million", {"control": 0.3, "treated": 0.315}, 1_000_000)
        self.service = Service(
            *(folder / "model", "--experiment", folder / "experiment.toml", "--log", self.log),
            *("--keys", folder / "keys.json", "--deadline-ms", 5000, "--log-deadline-ms", 5000),
        )

    def get(self, path: str, key: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key or self.admin}"}
        return self.service.client.get(path, headers=headers)

    def post(self, path: str, body: Any) -> dict[str, Any]:
        response = self.service.client.post(path, json=body, headers={"Authorization": f"Bearer {self.key}"})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def unit(self, arm: str) -> str:
        return next(unit for unit in map(str, range(9999)) if self.experiment.assign(unit).name == arm)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    with site.service:
        yield site


def experiment_path(name: str) -> str:
    return f"/?experiment={quote(name, safe='')}"


def parsed(page: str) -> tuple[set[str], list[tuple[str, str]]]:
    """The elements of a page and their attributes, as a browser's parser would find them."""
    tags, attributes = set[str](), list[tuple[str, str]]()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.add(tag)
            attributes.extend((name, value or "") for name, value in attrs)

    Reader().feed(page)
    return tags, attributes


def text_of(page: str) -> str:
    """What a reader sees, with single spaces."""
    body = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


# Over HTTP


def test_pages_load_nothing_run_nothing_and_escape_everything(site: Site) -> None:
    ids = [HTML, LONG, "plain", '"><b>', "'"]
    features = np.random.default_rng(0).normal(size=(len(ids), N_FEATURES)).round(3).tolist()
    answer = site.post("/v1/rerank", {"unit": HTML, "item_ids": ids, "features": features})
    site.post("/v1/clicks", {"slate_id": answer["slate_id"], "item": HTML})
    slate = f"/slates/{answer['slate_id']}"
    for path in ("/", experiment_path(HTML), "/slates", slate, f"{slate}?step=2", "/slates/missing"):
        response = site.get(path)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "script-src" not in policy
        assert response.headers["content-type"].startswith("text/html")
        tags, attributes = parsed(response.text)
        assert not tags & {"script", "link", "img", "b", "iframe", "object", "form", "base"}
        assert not [name for name, _ in attributes if name == "style" or name.startswith("on")]
        links = [value for name, value in attributes if name in ("href", "src", "action", "xlink:href")]
        assert all(re.match(r"/(?!/)|\?|#", link) for link in links), "within the service"
        assert not re.search(r"@import|url\(", response.text)
        assert '<html lang="en">' in response.text
        assert 'name="viewport"' in response.text
    assert HTML in text_of(site.get(experiment_path(HTML)).text)
    assert LONG[:128] in text_of(site.get(experiment_path(HTML)).text)
    shown = text_of(site.get(slate).text)
    assert all(one in shown for one in ids)
    assert f"{HTML} clicked" in shown


def test_the_style_has_a_light_and_a_dark_colour_for_every_arm() -> None:
    page = frame("", [])
    for arm in range(ARM_COLOURS):
        name = arm_class(arm)
        assert f".{name} {{ --arm: var(--{name}); }}" in page
        assert len(re.findall(rf"--{name}: #[0-9A-Fa-f]{{6}};", page)) == 2


def test_headings_stand_in_order_and_the_landmarks_are_there(site: Site) -> None:
    slate_id = site.post("/v1/rerank", request(site.unit("treated")))["slate_id"]
    for path in ("/", "/slates", f"/slates/{slate_id}"):
        page = site.get(path).text
        levels = [int(level) for level in re.findall(r"<h(\d)", page)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
        for landmark in ("<header", "<nav", "<main", "<footer", 'href="#content"'):
            assert landmark in page
        for chart in re.findall(r"<svg[^>]*class=\"chart\"[^>]*>.*?</title>", page):
            assert 'role="img"' in chart
            assert 'aria-label="' in chart


def test_an_experiment_in_words_and_numbers(site: Site) -> None:
    page = text_of(site.get(experiment_path("summer")).text)
    with open_log(site.log, create=False) as store:
        found = analyse(store.counts("summer")).arm("treated")
    assert found.against_control is not None
    more = f"{100 * found.against_control.lift:.1f}% more clicks"
    assert f"treated gets {more} than control (always-valid p < 0.0001)." in page
    assert f"{found.units:,}" in page
    assert f"{100 * found.against_control.value:+.2f}" in page
    assert "deadline" in page, "the reason of the fallbacks"
    for heading in ("Arms", "Clicks by position", "Difference to the control by position", "Traffic", "Latency"):
        assert heading in page
    assert all(f'href="{experiment_path(name)}"' in site.get("/").text for name in ("summer", "million", "autumn"))


def test_the_served_experiment_with_its_models_and_a_refresh(site: Site) -> None:
    with_model = site.post("/v1/rerank", request(site.unit("treated"), seed=5))
    site.post("/v1/rerank", request(site.unit("broken"), seed=5))
    with open_log(site.log, create=False) as store:
        logged = store.get(with_model["slate_id"])
    assert logged is not None
    response = site.get("/?refresh=10")
    assert '<meta http-equiv="refresh" content="10">' in response.text
    assert 'http-equiv="refresh"' not in site.get("/").text
    page = text_of(response.text)
    assert f"treated model {logged.model}" in page
    assert "control base order" in page
    assert "100% of the slates of broken fell back to the base order." in page
    assert "Stop refreshing" in page
    for value in ("0", "-1", "nan", "9" * 50, "1e9", "<b>"):
        assert site.get(f"/?refresh={quote(value)}").status_code == 200


def test_the_json_is_the_analysis_of_the_log(site: Site) -> None:
    site.post("/v1/rerank", request(site.unit("drawn")))
    weights = {"control": 2.0, "treated": 2.0, "drawn": 1.0, "broken": 1.0}
    with open_log(site.log, create=False) as store:
        assert site.get("/v1/experiment?experiment=summer").text == analyse(store.counts("summer")).to_json()
        answer, counts = site.get("/v1/experiment").json(), store.counts("autumn")
        sample_ratio = analyse(counts, control=next(iter(counts.arms)), weights=weights).sample_ratio
    assert answer["experiment"] == "autumn"
    assert answer["control"] == "control"
    assert {arm["arm"] for arm in answer["arms"]} == set(weights)
    assert answer["sample_ratio"]["expected"] == sample_ratio.expected
    missing = site.get("/v1/experiment?experiment=none")
    assert (missing.status_code, missing.json()["error"]) == (404, "experiment: there is no such experiment")
    assert site.get("/v1/experiment?experiment=%00").status_code == 404


def test_a_million_slates(site: Site) -> None:
    site.get("/v1/experiment?experiment=million")
    started = time.perf_counter()
    answer = site.get("/v1/experiment?experiment=million").json()
    print(f"/v1/experiment on a million slates: {1e3 * (time.perf_counter() - started):.1f} ms", file=sys.stderr)
    assert sum(arm["impressions"] for arm in answer["arms"]) == 1_000_000
    page = text_of(site.get(experiment_path("million")).text)
    assert "Slates 1,000,000" in page
    assert re.search(r"treated gets [45]\.\d% more clicks than control \(always-valid p < 0\.0001\)", page)


def test_one_slate(site: Site) -> None:
    page = text_of(site.get(experiment_path("one slate")).text)
    assert "One arm, so nothing to compare" in page
    assert "Slates 1 " in page
    assert "difference to the control" not in page


def test_a_slate_step_by_step(site: Site) -> None:
    body = request(site.unit("treated"), seed=9, n=8, k=4)
    answer = site.post("/v1/rerank", body)
    site.post("/v1/clicks", {"slate_id": answer["slate_id"], "item": answer["items"][1]})
    slate = f"/slates/{answer['slate_id']}"
    assert slate in site.get("/slates").text
    features = np.array([item["features"] for item in body["items"]], np.float32)
    decoded = site.model.decode(ItemLists(features, [0, 8]), k=4)
    ids = [item["id"] for item in body["items"]]
    for step in range(4):
        response = site.get(f"{slate}?step={step + 1}")
        page = text_of(response.text)
        assert f"Step {step + 1} of 4" in page
        chance = 100 * float(decoded.probabilities[0, step, decoded.slates[0, step]])
        placed = ids[int(decoded.slates[0, step])]
        assert placed == answer["items"][step]
        assert f"{placed} placed {f'{chance:.1f}'.removesuffix('.0')}%" in page
        assert ('rel="prev"' in response.text) == (step > 0)
        assert ('rel="next"' in response.text) == (step < 3)
    assert f"{answer['items'][1]} clicked" in page
    for value, step in (("0", 1), ("-7", 1), ("99", 4), ("x", 1), ("9" * 40, 1), ("2.5", 1), ("%00", 1)):
        response = site.get(f"{slate}?step={value}")
        assert response.status_code == 200
        assert f"Step {step} of 4" in text_of(response.text)


def test_a_drawn_slate_has_the_probabilities_of_its_draw(site: Site) -> None:
    answer = site.post("/v1/rerank", request(site.unit("drawn"), seed=2))
    page = text_of(site.get(f"/slates/{answer['slate_id']}").text)
    assert "sampled at temperature 2: these are its propensities" in page


@pytest.mark.parametrize(
    ("arm", "says"),
    [("control", "The slate is in base order"), ("broken", "fell back to the base order (model-error)")],
)
def test_slates_without_a_model_say_so(site: Site, arm: str, says: str) -> None:
    answer = site.post("/v1/rerank", request(site.unit(arm), seed=2))
    assert says in text_of(site.get(f"/slates/{answer['slate_id']}").text)


def test_what_is_not_there_is_404(site: Site) -> None:
    for path in ("/slates/nothing", "/slates/%00", "/slates/" + "x" * 2000, "/?experiment=none", "/?experiment=%00"):
        response = site.get(path)
        assert response.status_code == 404
        assert response.headers["content-type"].startswith("text/html")


def test_pages_need_the_key_of_an_administrator(site: Site) -> None:
    for path in ("/", "/slates", "/slates/x", "/v1/experiment"):
        assert site.service.client.get(path).status_code == 401
        assert site.get(path, site.key).status_code == 403
        assert site.service.client.get(path, auth=("me", site.admin)).status_code in (200, 404)


def test_the_service_runs_no_drawing_library() -> None:
    """A JavaScript engine has no place in a process that answers in a millisecond."""
    code = "import sys, seq2slate.serving.server; print([m for m in ('altair', 'vl_convert') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# By themselves


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = tmp_path_factory.mktemp("deployment")
    save_model(folder / "model", seed=1)
    (folder / "experiment.toml").write_text(ARMS)
    return load_deployment(folder / "model", folder / "experiment.toml")


def test_an_empty_log_shows_the_arms_that_will_be_served(deployment: Deployment, tmp_path: Path) -> None:
    with open_log(tmp_path / "log.db") as store:
        overview = read_overview(store, deployment)
        assert overview is not None
        page = text_of(experiment_page(store, deployment, {}).text)
        analysis = analysis_of(store, deployment)
        slates = text_of(slates_page(store, deployment, {}).text)
    assert analysis is not None
    assert {arm.arm: arm.impressions for arm in analysis.arms} == {"control": 0, "treated": 0, "drawn": 0, "broken": 0}
    assert "No slates yet: nobody has seen this experiment." in page
    assert "No slates in the last 24 hours." in page
    assert "Nothing was shown so far" in slates


def test_the_control_is_the_base_order_where_no_arm_has_a_usual_name(tmp_path: Path, deployment: Deployment) -> None:
    arms = (Arm("old"), Arm("as given", model="base"), Arm("new"))
    other = Deployment(Experiment("names", arms), deployment.models)
    with open_log(tmp_path / "log.db") as store:
        analysis = analysis_of(store, other)
        assert analysis is not None
        assert analysis.control == "as given"
        only_models = Deployment(Experiment("names", arms[::2]), deployment.models)
        analysis = analysis_of(store, only_models)
        assert analysis is not None
        assert analysis.control == "old"


def test_an_experiment_of_before_is_read_as_the_service_noted_it(tmp_path: Path, deployment: Deployment) -> None:
    simulate(tmp_path / "log.db", "spring", {"a": 0.2, "b": 0.3}, 60)
    with open_log(tmp_path / "log.db", create=False) as store:
        before = analysis_of(store, deployment, "spring")
        assert before is not None
        assert (before.control, before.sample_ratio.known) == ("a", False)
        page = text_of(experiment_page(store, deployment, {"experiment": "spring"}).text)
        assert "The weights of this experiment are not known here" in page
        store.note(Definition("spring", "b", {"a": 1.0, "b": 2.0, "c": 1.0})).result()
        after = analysis_of(store, deployment, "spring")
        page = text_of(experiment_page(store, deployment, {"experiment": "spring"}).text)
    assert after is not None
    assert [arm.arm for arm in after.arms] == ["b", "a", "c"]
    n_units = sum(arm.units for arm in before.arms)
    assert after.sample_ratio.known
    assert after.sample_ratio.expected == {"a": n_units / 4, "b": n_units / 2, "c": n_units / 4}
    assert "weights of this experiment are not known" not in page


def test_an_arm_that_is_no_longer_served_keeps_its_numbers(tmp_path: Path, deployment: Deployment) -> None:
    simulate(tmp_path / "log.db", "autumn", {"control": 0.2, "gone": 0.3}, 60)
    with open_log(tmp_path / "log.db", create=False) as store:
        overview = read_overview(store, deployment)
        page = text_of(experiment_page(store, deployment, {}).text)
    assert overview is not None
    assert not overview.analysis.sample_ratio.known, "of an arm that nobody serves no weight is known"
    assert "gone" not in overview.models
    assert "not served now" in page


def test_a_log_that_does_not_answer_is_a_page_too(deployment: Deployment, tmp_path: Path) -> None:
    store, monitor = open_log(tmp_path / "log.db"), Monitor()
    service = RerankService(lambda: deployment, store, monitor, Timeouts())
    app = create_app(service, monitor)
    (tmp_path / "log.db").unlink()
    for path in ("/", "/slates", "/slates/x"):
        response = get(app, path)
        assert response.status_code == 503
        assert response.headers["content-type"].startswith("text/html")
        assert "The log is unavailable" in response.text
    service.close()


def arm_counts(units: int, clicks: int, fallbacks: int = 0, **reasons: int) -> ArmCounts:
    """Units that each see four slates, half of them with twice the clicks of the mean and half with none."""
    per_unit = 2 * clicks // units
    half = units // 2
    slot = PositionCounts(4 * units, clicks)
    sums = (4 * units, half * per_unit, 16 * units, half * per_unit**2, 4 * half * per_unit)
    return ArmCounts(units, *sums, fallbacks=fallbacks, positions=(slot,), fallback_reasons=reasons)


def analysed(weights: Mapping[str, float] | None = None, **arms: ArmCounts) -> tuple[Analysis, Counts]:
    counts = Counts("autumn", arms)
    return analyse(counts, weights=weights), counts


def test_the_verdict_says_gains_losses_and_what_is_open() -> None:
    base = arm_counts(20_000, 20_000)
    gain, _ = analysed(base=base, new=arm_counts(20_000, 40_000))
    (one,) = verdict_sentences(gain)
    assert (one.text, one.tone) == ("new gets 100% more clicks than base (always-valid p < 0.0001).", "gain")
    loss, _ = analysed(base=arm_counts(20_000, 40_000), new=base)
    assert verdict_sentences(loss)[0].text.startswith("new gets 50% fewer clicks than base")
    assert verdict_tone(loss) == "loss"
    same, _ = analysed(base=base, new=base)
    assert verdict_sentences(same)[0].text.startswith("No significant difference between new and base yet: between −")
    assert verdict_tone(same) == "open"
    few, _ = analysed(base=base, new=arm_counts(2, 0))
    assert verdict_sentences(few)[0].text == "new cannot be compared with base yet: too few units or clicks."
    both, _ = analysed(base=base, new=arm_counts(20_000, 40_000), old=arm_counts(20_000, 0, 0))
    assert len(verdict_sentences(both)) == 2


def test_nothing_is_said_of_an_arm_with_few_units() -> None:
    base = arm_counts(20_000, 20_000)
    for units, is_few in ((MIN_UNITS - 2, True), (MIN_UNITS, False)):
        analysis, _ = analysed(base=base, new=arm_counts(units, 4 * units))
        (one,) = verdict_sentences(analysis)
        said = "new cannot be compared with base yet: too few units; each of the two needs 50."
        assert (one.text == said) == is_few
        assert (charts.differences_chart(analysis) is None) == is_few


def test_sentence_table_and_chart_say_the_same_of_several_arms(tmp_path: Path, deployment: Deployment) -> None:
    """The p of the sentence is that of the analysis, which holds for all comparisons together already."""
    simulate(tmp_path / "log.db", "three", {"control": 0.2, "one": 0.2, "two": 0.2}, 900)
    with open_log(tmp_path / "log.db", create=False) as store:
        analysis = analysis_of(store, deployment, "three")
        page = text_of(experiment_page(store, deployment, {"experiment": "three"}).text)
    assert analysis is not None
    assert "Always-valid intervals and p-values hold for all comparisons together." in page
    for arm, sentence in zip(analysis.arms[1:], verdict_sentences(analysis), strict=True):
        found = arm.against_control
        assert found is not None
        assert found.always_valid is not None
        assert found.always_valid_p is not None
        ends = [f"{100 * end:+.2f}".replace("-", "−") for end in (found.always_valid.low, found.always_valid.high)]
        p = f"{found.always_valid_p:.2g}"
        assert f"between {ends[0]} and {ends[1]} clicks per 100 slates (p = {p})" in sentence.text
        assert f"{ends[0]} … {ends[1]} {p} " in page


def test_a_mismatch_stops_the_verdict() -> None:
    """Where the arms did not get their units, nothing is sure, however large the difference is."""
    arms = {"base": arm_counts(20_000, 20_000), "new": arm_counts(15_000, 30_000)}
    for weights, tone in ((None, "gain"), ({"base": 4, "new": 3}, "gain"), ({"base": 1, "new": 1}, "open")):
        analysis, _ = analysed(weights, **arms)
        assert analysis.sample_ratio.mismatch == (tone == "open")
        assert verdict_tone(analysis) == tone
        said = verdict_sentences(analysis)
        assert {one.tone for one in said} == {tone}
        assert any("always-valid" in one.text for one in said) == (tone == "gain")


def test_warnings_are_loud_and_only_where_they_are_due() -> None:
    base, weights = arm_counts(20_000, 20_000), {"base": 1.0, "new": 1.0}
    analysis, counts = analysed(weights, base=base, new=arm_counts(15_000, 30_000))
    ((headline, explanation),) = warnings(analysis, counts)
    assert headline.startswith("Do not trust the comparison")
    assert "base 20,000 (expected 17,500)" in explanation
    analysis, counts = analysed(base=base, new=arm_counts(15_000, 30_000))
    assert warnings(analysis, counts) == [], "unknown weights may well have been like that"
    analysis, counts = analysed(weights, base=base, new=arm_counts(20_000, 20_000, 8_000, deadline=7_000, other=1_000))
    ((headline, explanation),) = warnings(analysis, counts)
    assert headline == "10% of the slates of new fell back to the base order."
    assert "deadline 7,000, other 1,000" in explanation
    analysis, counts = analysed(weights, base=base, new=arm_counts(20_000, 20_000, 4_000))
    assert warnings(analysis, counts) == [], "5% is not many"


@pytest.mark.parametrize(("n_minutes", "n_bins"), [(1, 1), (30, 30), (200, 40), (1440, 48)])
def test_traffic_adds_up_whatever_the_bins(n_minutes: int, n_bins: int) -> None:
    rng, now = np.random.default_rng(0), 999_990 * 60.0 - 1  # the last second before a full half-hour
    minutes = [
        MinuteCounts(999_990 - n_minutes + number, arm, int(rng.integers(1, 9)), 0)
        for number in range(n_minutes)
        for arm in ("base", "new")
    ]
    drawn = charts.traffic_chart(minutes, ["base", "new"], now)
    assert drawn is not None
    rows = re.findall(r'data-label="base: slates \(clicks\)"><span class="number">([\d,]+) \(', drawn)
    assert len(rows) == n_bins
    whole = sum(one.impressions for one in minutes if one.arm == "base")
    assert sum(int(number.replace(",", "")) for number in rows) == whole


def test_traffic_starts_with_a_whole_bin() -> None:
    now, last = 1_000_000 * 60.0 + 30, 1_000_000
    minutes = [MinuteCounts(last - 1439 + number, "base", 1, 0) for number in range(1440)]
    drawn = charts.traffic_chart(minutes, ["base"], now)
    assert drawn is not None
    rows = re.findall(r'<span class="number">([\d,]+) \(', drawn)
    assert [int(number) for number in rows] == [30] * 47 + [1 + last % 30]
    assert charts.traffic_chart([], ["base"], now) is None


def test_latency_shows_quantiles() -> None:
    drawn = charts.latency_chart({"base": [float(n) for n in range(1, 102)], "none": []}, ["base", "none", "new"])
    assert drawn is not None
    cells = re.findall(r"<td[^>]*><span[^>]*>([^<]+)<", drawn)
    assert cells == ["51.0 ms", "96.0 ms", "100 ms", "101"]


def test_rarely_filled_slots_do_not_hide_the_others() -> None:
    slots = [PositionCounts(1000, 50)] * 8 + [PositionCounts(3, 1)] * 20
    arm = replace(arm_counts(250, 250), positions=tuple(slots))
    drawn = charts.position_rates_chart(analyse(Counts("autumn", {"base": arm})))
    assert drawn is not None
    assert "The first 8 of 28 positions." in drawn
    assert drawn.count("position 8:") == 1
    assert "position 9:" not in drawn


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 1e-9), (-3, 0.2), (0, 1234567), (-1e-4, 1e-4), (0, 100)])
def test_an_axis_covers_its_values_with_few_round_ticks(low: float, high: float) -> None:
    axis = nice_axis(low, high, "")
    assert axis.low <= low
    assert axis.high >= high
    assert 2 <= len(axis.ticks) <= 8
    assert len({text for _, text in axis.ticks}) == len(axis.ticks)


def logged(n: int, shown: list[int], clicks: tuple[int, ...] = (), **more: Any) -> Impression:
    features = np.random.default_rng(0).normal(size=(n, N_FEATURES)).astype(np.float32)
    items = [f"item {number}" for number in range(n)]
    clicked = dict.fromkeys(clicks, 1e9)
    return Impression("s1", 1e9, "user", "autumn", "treated", items, shown, features, 1.0, clicks=clicked, **more)


def test_a_long_list_is_cut_and_says_so(deployment: Deployment) -> None:
    model = deployment.models["treated"].fingerprint
    shown = [*range(999, 899, -1)]
    one = logged(1000, shown, model=model)
    steps = step_probabilities(deployment, one)
    assert isinstance(steps, StepProbabilities)
    assert steps.values.shape == (100, 1000)
    np.testing.assert_allclose(steps.values.sum(1), 1, atol=1e-4)
    page = draw_slate(one, steps, step=25).text
    text = text_of(page)
    assert "Drawn are the first 30 of 1,000 items and those that were placed." in text
    assert "Steps 21 to 40 of 100." in text
    assert "970 more rows" in text
    assert page.count("<title>item ") <= 20 * 50
    assert len(page) < 700_000


def test_slates_whose_model_is_gone_or_cannot_read_them_say_so(deployment: Deployment) -> None:
    found = step_probabilities(deployment, logged(3, [1, 0], model="0123456789abcdef"))
    assert found == (
        "The model that ordered this slate, 0123456789abcdef, is not being served: its probabilities are unknown."
    )
    model = deployment.models["treated"].fingerprint
    narrow = replace(logged(3, [1, 0], model=model), features=np.ones((3, 1), np.float32), feature_names=())
    assert str(step_probabilities(deployment, narrow)).startswith("The model cannot read this slate again: ")


def test_a_shared_slate_says_who_placed_what(deployment: Deployment) -> None:
    one = logged(4, [2, 0, 3], model="x+base", draft=Draft("old", "new", "bab"))
    text = text_of(draw_slate(one, step_probabilities(deployment, one), 0).text)
    assert "Two arms filled this slate in turns" in text
    assert re.search(r"1 item 2 \S+ – new 2 item 0 ↓1 – old 3 item 3 new, from 4 – new", text)


def test_an_experiment_of_shared_slates_says_who_is_preferred(deployment: Deployment, tmp_path: Path) -> None:
    """Of 200 units, each clicks once on what new has placed, and every fourth once on what old has."""
    arms = (Arm("old", model="base"), Arm("new", model=None))
    models = {"new": deployment.models["treated"]}
    shared = Deployment(Experiment("pair", arms, kind="interleaving"), models)
    with open_log(tmp_path / "log.db") as store:
        for number in range(200):
            one = logged(3, [1, 0, 2], draft=Draft("old", "new", "bab"))
            about: dict[str, Any] = {"slate_id": f"s{number}", "unit": f"u{number}"}
            store.add_impression(replace(one, at=time.time(), experiment="pair", arm="interleaved", **about)).result()
            for item in ("item 1", "item 0") if number % 4 == 0 else ("item 1",):
                store.add_click(f"s{number}", item, time.time()).result()
        page = text_of(experiment_page(store, shared, {}).text)
        slate = text_of(slate_page(store, shared, {"slate_id": "s7"}).text)
    assert "new is preferred to old: it gets 80% of the clicks on interleaved slates (always-valid p < 0.0001)." in page
    assert f"base order and model {models['new'].fingerprint}" in page
    assert "old (base order) and new (model) 200 200 50 and 200 +60%" in page
    assert "Two arms filled this slate in turns" in slate


def shared(units: int, a_clicks: int, b_clicks: int) -> Analysis:
    """Units that click once each, on what a or on what b has placed."""
    clicks, lead = a_clicks + b_clicks, b_clicks - a_clicks
    draft = DraftCounts(units, clicks, a_clicks, b_clicks, clicks, clicks, lead)
    return analyse(Counts("pair", {"interleaved": arm_counts(units, units)}, {("old", "new"): draft}))


def test_a_preference_is_told_with_its_intervals() -> None:
    few = shared(100, 20, 28)
    told = verdict_sentences(few)[0]
    assert told.text == "new cannot be compared with old yet: too few units have clicked; 50 are needed."
    assert charts.preferences_chart(few) is None
    assert verdict_sentences(shared(100, 0, 60))[0].text.endswith("yet: all units that clicked are alike.")
    open_ = shared(1000, 480, 520)
    (one,) = open_.preferences
    assert one.always_valid is not None
    ends = [f"{100 * end:+.1f}%".replace("-", "−") for end in (one.always_valid.low, one.always_valid.high)]
    told = verdict_sentences(open_)[0]
    about = f"the preference for new is between {ends[0]} and {ends[1]} (p = "
    assert told.text.startswith(f"No significant preference between old and new yet: {about}")
    assert told.tone == "open"
    drawn = charts.preferences_chart(open_)
    assert drawn is not None
    assert "Preference for the second arm: old and new +4% for new" in drawn
    assert verdict_tone(shared(1000, 700, 300)) == "loss"


def test_text_is_escaped_wherever_it_stands() -> None:
    assert element("p", HTML, title=HTML) == Html(
        '<p title="&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&lt;img src=x onerror=alert(2)&gt;">'
        "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&lt;img src=x onerror=alert(2)&gt;</p>"
    )
