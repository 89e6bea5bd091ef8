"""A service whose models read no features: ids only, categories only, columns of the whole list only."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seq2slate.data.files import read
from seq2slate.data.impressions import Impression
from seq2slate.data.lists import ItemLists
from seq2slate.experiments.assignment import read_experiment
from seq2slate.log.export import export
from seq2slate.log.impression_log import open_log
from seq2slate.log.reading import ImpressionFilter
from seq2slate.model.backends.backend import BACKENDS, backend_class
from seq2slate.reranker import Reranker
from seq2slate.serving.traffic import send_traffic
from seq2slate.simulation.click_models import click_model
from tests.reference_network import randomise
from tests.services import Service
from tests.test_cli import seq2slate

N_LISTS, N_ITEMS = 40, 7
ARMS = ("ids", "brands", "lists", "control")


def lists_of(seed: int, **columns: Any) -> ItemLists:
    """Lists without features, of 7 of 20 items; the later an item's number, the more often it is clicked."""
    rng = np.random.default_rng(seed)
    numbers = np.concatenate([rng.permutation(20)[:N_ITEMS] for _ in range(N_LISTS)])
    ids = [f"item {number}" for number in numbers]
    given = {"item_id": ids, "brand": [f"brand {number % 5}" for number in numbers]}
    of_lists = {"hour": rng.normal(size=N_LISTS), "city": ["Oslo", "Rome"] * (N_LISTS // 2)}
    return ItemLists(
        np.zeros((len(numbers), 0)),
        np.arange(0, len(numbers) + 1, N_ITEMS),
        labels=rng.random(len(numbers)) < numbers / 25,
        item_ids=ids,
        categorical={name: given[name] for name in columns.get("categorical", ())},
        context={name: of_lists[name] for name in columns.get("context", ())},
    )


COLUMNS: dict[str, dict[str, Sequence[str]]] = {
    "ids": {"categorical": ["item_id"]},
    "brands": {"categorical": ["brand"]},
    "lists": {"context": ["hour", "city"]},
}


class Site:
    """A service with an arm for each model, and the models."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.models = folder, {}
        for arm, columns in COLUMNS.items():
            preset = "default" if arm == "ids" else "paper"  # with and without the pairwise interaction
            self.models[arm] = Reranker(preset, hidden=8, epochs=2).fit(lists_of(1, **columns), quiet=True)
            randomise(self.models[arm].model_.network, seed=2)  # scores far enough apart that rounding decides nothing
            self.models[arm].save(folder / f"model-{arm}")
        arms = [f'[[arms]]\nname = "{arm}"\nmodel = "model-{arm}"' for arm in COLUMNS]
        text = "\n".join(['name = "columns"', *arms, '[[arms]]\nname = "control"\nmodel = "base"'])
        (folder / "columns.toml").write_text(text)
        self.experiment = read_experiment(folder / "columns.toml")
        self.log = folder / "log.db"
        timeouts = ("--deadline-ms", 5000, "--log-deadline-ms", 5000)
        self.service = Service("--experiment", folder / "columns.toml", "--log", self.log, *timeouts)

    def unit(self, arm: str) -> str:
        return next(unit for unit in map(str, range(999)) if self.experiment.assign(unit).name == arm)

    def rerank(self, arm: str, **body: Any) -> dict[str, Any]:
        response = self.service.client.post("/v1/rerank", json={"unit": self.unit(arm), **body})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def logged(self, slate_id: str) -> Impression:
        with open_log(self.log, create=False) as store:
            found = store.get(slate_id)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("columns"))
    with site.service:
        yield site


def as_columns(one: ItemLists) -> dict[str, Any]:
    body: dict[str, Any] = {"item_ids": one.item_ids.to_pylist()}
    if one.categorical:
        body["categorical"] = {name: values.to_pylist() for name, values in one.categorical.items()}
    if one.context:
        body["context"] = {name: values.tolist()[0] for name, values in one.context.items()}
    return body


def as_items(one: ItemLists) -> dict[str, Any]:
    body = as_columns(one)
    columns = body.pop("categorical", {})
    ids = body.pop("item_ids")
    items = [
        {"id": item, "categorical": {name: values[number] for name, values in columns.items()}}
        for number, item in enumerate(ids)
    ]
    return {"items": items, **body}


@pytest.mark.parametrize("arm", COLUMNS)
def test_a_model_without_features_serves_its_own_slates(site: Site, arm: str) -> None:
    lists = lists_of(2, **COLUMNS[arm])[:10]
    moved = 0
    for one, best in zip(lists, site.models[arm].rerank(lists), strict=True):
        for body in (as_columns(one), as_items(one), as_columns(one) | {"features": [[]] * N_ITEMS}):
            answer = site.rerank(arm, **body)
            assert (answer["arm"], answer["fallback"], answer["items"]) == (arm, False, list(best.item_ids))
        moved += answer["items"] != one.item_ids.to_pylist()
        logged = site.logged(answer["slate_id"])
        assert logged.features.shape == (N_ITEMS, 0)
    assert moved, "some slate is not the base order"


def test_ids_are_read_from_the_candidates(site: Site) -> None:
    """With the column `item_id`, which the model was trained on, and without it."""
    one = lists_of(3, categorical=["item_id"])[0]
    ids = one.item_ids.to_pylist()
    (best,) = site.models["ids"].rerank(one)
    answers = [
        site.rerank("ids", **body) for body in (as_columns(one), {"item_ids": ids}, {"items": [{"id": i} for i in ids]})
    ]
    assert [answer["items"] for answer in answers] == [list(best.item_ids)] * 3
    assert [site.logged(answer["slate_id"]).categorical for answer in answers] == [{}] * 3
    other = {"unit": "u", "item_ids": ids, "categorical": {"item_id": ids[::-1]}}
    response = site.service.client.post("/v1/rerank", json=other)
    assert response.status_code == 422
    assert response.json()["error"].startswith("categorical.item_id: is not the ids of the items")


def test_the_page_of_a_slate_of_ids_has_its_steps(site: Site) -> None:
    answer = site.rerank("ids", item_ids=lists_of(4)[0].item_ids.to_pylist(), k=3)
    page = site.service.client.get(f"/slates/{answer['slate_id']}").text
    assert "Step 1 of 3" in page
    assert "model-ids" in page


def test_a_column_that_is_missing_is_named_in_every_arm_that_reads_it(site: Site) -> None:
    ids = ["item 1", "item 2"]
    assert site.rerank("brands", item_ids=ids)["detail"] == "categorical column 'brand' is missing"
    assert site.rerank("lists", item_ids=ids, context={"hour": 3})["detail"] == "context column 'city' is missing"
    for arm in ("ids", "control"):  # the control falls back where the first model would
        answer = site.rerank(arm, item_ids=ids, features=[[1.0], [2.0]])
        assert answer["detail"] == "item 'item 1' has 1 column of features, the model reads none"
        assert not site.rerank(arm, item_ids=ids)["fallback"]


def test_visitors_without_features_and_the_lists_that_the_log_becomes(site: Site, tmp_path: Path) -> None:
    lists = lists_of(5, categorical=["item_id"], context=["hour", "city"])
    user = click_model("cascade", relevant_from=1)
    traffic = send_traffic(site.service.url, lists, user, requests=40, units=20, k=4, concurrency=2, quiet=True)
    assert traffic.arms.keys() <= set(ARMS)
    path = tmp_path / "shown.parquet"
    with open_log(site.log, create=False) as store:
        answer = site.rerank("ids", item_ids=lists[0].item_ids.to_pylist())
        since = site.logged(answer["slate_id"]).at
        assert export(store, path, ImpressionFilter(since=since, arm="ids")) == 1
    shown = read(path)
    assert (shown.features.shape, shown.categorical) == ((N_ITEMS, 0), {})
    (again,) = site.models["ids"].rerank(shown)
    assert list(again.item_ids) == answer["items"], "the ids are read from the lists, too"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("arm", COLUMNS)
def test_every_backend_reads_lists_without_features(site: Site, arm: str, backend: str) -> None:
    model, lists = site.models[arm].model_, lists_of(6, **COLUMNS[arm])
    runtime = backend_class(backend)(model)
    expected = model.rank(lists.batch())
    np.testing.assert_array_equal(runtime.rank(lists.batch()), expected)
    np.testing.assert_array_equal(runtime.rank(lists_of(6, **({} if arm == "ids" else COLUMNS[arm])).batch()), expected)
    for one, slate in zip(lists[:3], expected[:3], strict=True):
        columns = as_columns(one)
        categorical = {name: values for name, values in columns.get("categorical", {}).items() if name != "item_id"}
        placed, _ = runtime.slate(
            one.features, ids=columns["item_ids"], categorical=categorical, context=columns.get("context")
        )
        np.testing.assert_array_equal(placed, slate)


def test_a_model_without_features_is_exported(site: Site) -> None:
    told = seq2slate("export", site.folder / "model-brands").out
    assert "slates equal on 1,000 random lists" in " ".join(told.split())
