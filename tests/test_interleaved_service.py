"""A live experiment in which two arms share their slates: who placed what, who is credited, and what that says."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seq2slate.data.impressions import Impression
from seq2slate.data.lists import ItemLists
from seq2slate.errors import DataError
from seq2slate.experiments.analysis import analyse
from seq2slate.experiments.assignment import INTERLEAVED, read_experiment
from seq2slate.experiments.interleaving import log_propensities, preference_from_clicks
from seq2slate.log.impression_log import open_log
from seq2slate.model.backends.backend import choose_backend
from seq2slate.model.slate_model import SlateModel
from seq2slate.serving.traffic import Traffic, send_traffic
from seq2slate.simulation.click_models import click_model
from seq2slate.simulation.synthetic import make_synthetic_lists
from tests.services import N_FEATURES, Service, request, save_model
from tests.test_cli import seq2slate

EXPERIMENT = """
name = "pair"
kind = "interleaving"
[[arms]]
name = "old"
model = "base"
[[arms]]
name = "new"
model = "model"
"""
K = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    save_model(folder / "model", seed=3)
    (folder / "pair.toml").write_text(EXPERIMENT)
    return folder


@pytest.fixture(scope="module")
def lists() -> ItemLists:
    return make_synthetic_lists(60, items=9, world="topics", features=N_FEATURES, seed=5)


@pytest.fixture(scope="module")
def visited(folder: Path, lists: ItemLists) -> tuple[Traffic, list[Impression]]:
    """What visitors of the service counted, and what its log has."""
    log = str(folder / "log.db")
    with Service("--experiment", folder / "pair.toml", "--log", log, "--deadline-ms", 5000) as service:
        user = click_model("diverse", relevant_from=1)
        traffic = send_traffic(service.url, lists, user, requests=300, units=40, k=K, concurrency=3, quiet=True)
        bad = service.client.post("/v1/rerank", json=request("somebody", k=3) | {"items": [{"id": "x"}, {"id": "y"}]})
        assert bad.json() | {"slate_id": ""} == {
            "slate_id": "",
            "arm": INTERLEAVED,
            "items": ["x", "y"],
            "fallback": True,
            "reason": "bad-features",
            "detail": "features are missing, the model reads 4: 'f1', 'f2', 'f3', 'f4'",
        }
        counted = 'seq2slate_bad_features_total{arm="interleaved",column="other"} 1.0'
        assert counted in service.client.get("/metrics").text
        served = service.client.get("/v1/experiment").json()
        page = service.client.get("/").text
        assert service.stop() == 0
    with open_log(log) as store:
        models = {"old": "base", "new": "model"}
        expected = analyse(store.counts("pair"), weights={INTERLEAVED: 1.0}, models=models)
        assert served == json.loads(expected.to_json())
        assert "old (base order) and new (model)" in page
        assert f"{served['preferences'][0]['b_clicks']:,}" in page
        logged = [one for one in store.impressions() if one.fallback is None]
    return traffic, logged


def test_each_team_places_its_best(visited: tuple[Traffic, list[Impression]], folder: Path) -> None:
    runtime = choose_backend(SlateModel.load(folder / "model"))
    teams = set()
    for one in visited[1]:
        assert one.draft is not None
        assert (one.arm, one.draft.a, one.draft.b) == (INTERLEAVED, "old", "new")
        rankings = {"a": list(range(len(one.items))), "b": runtime.slate(one.features)[0].tolist()}
        for slot, (item, team) in enumerate(zip(one.shown, one.draft.teams, strict=True)):
            assert item == next(best for best in rankings[team] if best not in one.shown[:slot])
        for start in range(0, len(one.shown) - 1, 2):
            assert sorted(one.draft.teams[start : start + 2]) == ["a", "b"]
        teams.add(one.draft.teams)
        a, b = (ranking[: len(one.shown)] for ranking in rankings.values())
        logged = one.log_propensities or [0.0] * len(one.shown)  # None where the coins decided nothing
        assert logged == pytest.approx(log_propensities(a, b, list(one.shown)))
    assert len(teams) > 4  # coins fall both ways


def test_clicks_are_credited_to_who_placed_the_item(visited: tuple[Traffic, list[Impression]], folder: Path) -> None:
    traffic, logged = visited
    by_unit: dict[str, list[int]] = {}
    for one in logged:
        draft, shown = one.draft, list(one.shown)
        assert draft is not None
        for item in one.clicks:
            by_unit.setdefault(one.unit, [0, 0])["ab".index(draft.teams[shown.index(item)])] += 1
    expected = preference_from_clicks(list(by_unit.values()))
    assert expected.a_clicks + expected.b_clicks == traffic.arms[INTERLEAVED].clicks > 100
    with open_log(folder / "log.db") as store:
        analysis = analyse(store.counts("pair"), weights=read_experiment(folder / "pair.toml").weights)
    (found,) = analysis.preferences
    assert found == replace(expected, a="old", b="new", impressions=len(logged))
    assert [arm.arm for arm in analysis.arms] == [INTERLEAVED]
    printed = seq2slate("experiment", folder / "log.db").out
    assert "new (model) against old" in printed
    assert f"{found.b_clicks:,} : {found.a_clicks:,}" in printed


def test_the_log_can_be_trained_on(visited: object, folder: Path) -> None:
    out = seq2slate("log", "export", folder / "log.db", folder / "shown.parquet").out
    assert "300 lists" in out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((EXPERIMENT.rpartition("[[arms]]")[0]), "takes two, got 1"),
        (EXPERIMENT + "weight = 3\n", "takes neither weights"),
        (EXPERIMENT + "temperature = 0.5\n", "nor temperatures"),
        (EXPERIMENT.replace("interleaving", "shuffling"), "kind"),
    ],
)
def test_an_invalid_experiment_is_refused(tmp_path: Path, change: str, message: str) -> None:
    (tmp_path / "wrong.toml").write_text(change)
    with pytest.raises(DataError, match=message):
        read_experiment(tmp_path / "wrong.toml")


def test_preferences_are_always_valid() -> None:
    """Nobody prefers anything: of 200 tests with 30 looks each, hardly any finds a preference at any of them."""
    rng = np.random.default_rng(2)
    found, found_fixed = 0, 0
    for _ in range(200):
        clicks = rng.poisson(3, 3000)
        leans = rng.beta(4, 4, 3000)  # a unit has its taste
        to_b = rng.binomial(clicks, leans)
        looks = [preference_from_clicks(np.column_stack([clicks - to_b, to_b])[:n]) for n in range(100, 3001, 100)]
        found += any(look.always_valid_p is not None and look.always_valid_p < 0.05 for look in looks)
        found_fixed += any(look.fixed_horizon_p is not None and look.fixed_horizon_p < 0.05 for look in looks)
    assert found / 200 <= 0.05
    assert found_fixed / 200 > 0.15
