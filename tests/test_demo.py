"""The demo from end to end: a real service, real visitors, a model from the log, and an experiment that it wins."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from seq2slate.data.files import read
from seq2slate.demo.closed_loop import BASE, LIVE, MODEL, SLOTS, TRIAL, agreement, analyse_trial, read_counts, verdict
from seq2slate.demo.folder import DemoFolder, fresh_folder
from seq2slate.experiments.analysis import analyse
from seq2slate.experiments.assignment import read_experiment
from seq2slate.experiments.counts import ArmCounts, Counts, PositionCounts
from seq2slate.log.impression_log import open_log
from seq2slate.serving.traffic import ArmTraffic, Traffic
from seq2slate.simulation.click_models import click_model, simulate_clicks
from tests.test_cli import seq2slate

LISTS, PAST, NEW = 240, 80, 120
"""A third of the lists goes live, and half is new."""


@dataclass(frozen=True)
class Demo:
    """A demo that has ended."""

    folder: DemoFolder
    text: str

    def counted(self, experiment: str) -> dict[str, Any]:
        """What the visitors counted, by arm."""
        arms: dict[str, Any] = json.loads(self.folder.visitors.read_text())[experiment]["arms"]
        return arms


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A small demo, in the folder of an earlier one."""
    path = tmp_path_factory.mktemp("demo") / "out"
    fresh_folder(path).log.write_text("left by an earlier demo")
    return Demo(DemoFolder(path), seq2slate("demo", "--lists", LISTS, "--items", 10, "--out", path).out)


def test_it_tells_a_story(demo: Demo) -> None:
    steps = re.findall(r"─ (\d)\. ", demo.text)
    assert steps == ["1", "2", "3", "4", "5", "6", "7"]
    assert demo.text.count("exactly what the visitors") == 2
    assert all(word in demo.text for word in ("random", "ceiling", "NDCG@10", "against base", "report.html"))


@pytest.mark.parametrize(("experiment", "slates"), [(LIVE, PAST), (TRIAL, NEW)])
def test_the_log_has_what_the_visitors_counted(demo: Demo, experiment: str, slates: int) -> None:
    counted, logged = demo.counted(experiment), read_counts(demo.folder, experiment).arms
    assert sum(arm["slates"] for arm in counted.values()) == slates
    assert counted.keys() == logged.keys()
    for name, arm in logged.items():
        slots = [(slot.impressions, slot.clicks) for slot in arm.positions]
        assert (arm.impressions, arm.clicks, arm.fallbacks) == (counted[name]["slates"], counted[name]["clicks"], 0)
        assert slots == [(slot["impressions"], slot["clicks"]) for slot in counted[name]["positions"]]


def test_the_model_learns_from_whole_lists_with_the_clicks_of_the_base_order(demo: Demo) -> None:
    shown = read(demo.folder.shown)
    assert len(shown) == PAST
    assert shown.labels is not None
    assert shown.labels.sum() == demo.counted(LIVE)[BASE]["clicks"]
    with open_log(demo.folder.log, create=False) as store:
        live = [one for one in store.impressions() if one.experiment == LIVE]
    assert all(list(one.shown) == list(range(len(one.items))) for one in live)
    assert {one.slate_id for one in live} == set(shown.list_ids.to_pylist())


def test_the_experiment_is_between_two_arms_on_lists_that_were_not_learned_from(demo: Demo) -> None:
    assert [arm.name for arm in read_experiment(demo.folder.experiment).arms] == [BASE, MODEL]
    with open_log(demo.folder.log, create=False) as store:
        slates = list(store.impressions())
    items = {name: {i for one in slates if one.experiment == name for i in one.items} for name in (LIVE, TRIAL)}
    assert not items[LIVE] & items[TRIAL]
    assert items[TRIAL] == set(read(demo.folder.new_lists).item_ids.to_pylist())
    for one in slates:
        if one.experiment == TRIAL:
            assert len(one.shown) == min(SLOTS, len(one.items))
            assert (one.model is None) == (one.arm == BASE)


def test_the_base_arm_gets_the_clicks_that_the_user_gives_its_slots(demo: Demo) -> None:
    new = read(demo.folder.new_lists)
    assert new.labels is not None
    clicks = simulate_clicks(click_model("diverse"), new, seed=0)
    assert clicks.labels is not None
    of_item = dict(zip(clicks.item_ids.to_pylist(), clicks.labels.tolist(), strict=True))
    with open_log(demo.folder.log, create=False) as store:
        slates = [one for one in store.impressions(arm=BASE) if one.experiment == TRIAL]
    expected = sum(of_item[one.items[i]] for one in slates for i in one.shown)
    assert demo.counted(TRIAL)[BASE]["clicks"] == expected > 0


def test_the_report_has_figure_3_and_loads_nothing(demo: Demo) -> None:
    text = demo.folder.report.read_text()
    assert not re.search(r"""(?:src\s*=|href\s*=|url\(|@import|import\()\s*["'`]?\s*(?:https?:)?//""", text)
    assert "figure 3" in text
    charts = {name: re.search(rf'id="chart-{name}">.*?</script>', text) for name in ("figure3", "rates")}
    for name, found in charts.items():
        assert found is not None, name
        assert all((demo.folder.path / "pictures" / f"{name}.{suffix}").exists() for suffix in ("png", "svg"))
    for arm in analyse_trial(demo.folder).arms:
        assert arm.ctr is not None
        assert f"{100 * arm.ctr.value:.2f}" in text


def test_the_experiment_command_reads_the_same_log(demo: Demo) -> None:
    result = json.loads(seq2slate("experiment", demo.folder.log, "--json").out)
    clicks = {arm["arm"]: arm["clicks"] for arm in result["arms"]}
    assert clicks == {name: arm["clicks"] for name, arm in demo.counted(TRIAL).items()}


def test_the_service_has_ended(demo: Demo) -> None:
    found = re.search(r"http://127\.0\.0\.1:\d+", demo.text)
    assert found is not None
    assert not answers(found.group())


def answers(url: str) -> bool:
    """Whether anybody listens there."""
    parts = urlsplit(url)
    with socket.socket() as client:
        return client.connect_ex((parts.hostname, parts.port)) == 0


def test_without_the_service_the_tour_ends_before_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "seq2slate.serving.server", raising=False)
    text = seq2slate("demo", "--lists", 60, "--items", 8, "--out", tmp_path / "out").out
    assert "needs uvicorn: pip install 'seq2slate[serve]'" in " ".join(text.split())
    assert "NDCG@10" in text
    assert not (tmp_path / "out" / "log.db").exists()


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_text("mine")
    assert "--out" in seq2slate("demo", "--out", tmp_path, code=2).err
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.db"]


def counts(**clicks: int) -> Counts:
    """An experiment of 1,000 slates an arm, each for a unit of its own, with a click in some of them."""
    arms = {
        name: ArmCounts(1000, 1000, n, 1000, n, n, fallbacks=0, positions=(PositionCounts(1000, n),))
        for name, n in clicks.items()
    }
    return Counts(TRIAL, arms)


@pytest.mark.parametrize(
    ("base", "model", "words"),
    [
        (300, 500, "gets 66.7% more clicks than the base order"),
        (500, 300, "gets 40.0% fewer clicks than the base order"),
        (300, 303, "not told apart: the model gets 1.0% more"),
        (0, 0, "Too few"),
    ],
)
def test_the_verdict_follows_the_interval(base: int, model: int, words: str) -> None:
    assert words in verdict(analyse(counts(base=base, seq2slate=model)))


def test_an_arm_that_nobody_met_has_no_verdict() -> None:
    assert "Too few" in verdict(analyse(counts(base=300)))


def test_a_log_that_differs_from_the_visitors_is_told() -> None:
    traffic = Traffic(7, {BASE: ArmTraffic(5, 2, 0, ())}, unlogged=0, uncertain=2, refused=0, milliseconds=())
    arm = ArmCounts(5, 5, 2, 5, 2, 2, fallbacks=0, positions=())
    assert "5 slates and 2 clicks: exactly" in agreement(traffic, Counts(LIVE, {BASE: arm}))
    more = ArmCounts(5, 6, 2, 8, 2, 2, fallbacks=0, positions=())
    assert "6 slates and 2 clicks, which is not" in agreement(traffic, Counts(LIVE, {BASE: more}))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_service_ends_with_a_demo_that_is_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-u", "-m", "seq2slate.cli", "demo", "--lists", "3000", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = next(found.group() for line in process.stdout if (found := re.match(r"http://127\.0\.0\.1:\d+", line)))
        assert answers(url)
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not answers(url)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model_and_the_same_experiment(demo: Demo, tmp_path: Path) -> None:
    again = Demo(DemoFolder(tmp_path), seq2slate("demo", "--lists", LISTS, "--items", 10, "--out", tmp_path).out)
    weights = [(one.folder.model / "weights.safetensors").read_bytes() for one in (demo, again)]
    assert weights[0] == weights[1]
    assert all(again.counted(name) == demo.counted(name) for name in (LIVE, TRIAL))


@pytest.mark.slow
def test_the_model_trained_on_the_log_of_the_base_order_beats_it(tmp_path: Path) -> None:
    text = seq2slate("demo", "--out", tmp_path / "out").out
    difference = analyse_trial(DemoFolder(tmp_path / "out")).arm(MODEL).against_control
    assert difference is not None
    assert difference.always_valid is not None
    assert difference.always_valid.low > 0
    assert "more clicks than the base order" in " ".join(text.split())
