"""Models across files: what was trained on one form of the data reads every other form of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import seq2slate as s2s
from seq2slate.baselines.linear import RidgeRanker
from seq2slate.cli import app
from seq2slate.data.files import read, write
from seq2slate.data.roles import Columns
from tests.random_lists import assert_same_lists

ROLES: dict[str, Any] = {
    "list_id": "search_id",
    "item_id": "product_id",
    "label": "clicks",
    "order_by": "-score",
    "categorical": ["brand", "search_id"],
    "context": ["hour"],
    "time_parts": ["seen"],
    "ignore": ["ts"],
}


def click_log(seed: int = 0) -> pd.DataFrame:
    """One row per product: a time that nobody reads, one that becomes features, and names of its own."""
    rng = np.random.default_rng(seed)
    search = np.repeat(np.arange(30), 5)
    price = rng.normal(size=150)
    return pd.DataFrame(
        {
            "search_id": [f"s{number}" for number in search],
            "product_id": [f"p{number}" for number in range(150)],
            "clicks": (price + rng.normal(size=150) > 1).astype(int),
            "score": rng.random(150),
            "price": price,
            "brand": np.array(["ash", "birch", "cedar"])[rng.integers(0, 3, 150)],
            "hour": search % 24,
            "seen": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 10**6, 150), unit="s"),
            "ts": pd.Timestamp("2026-01-01"),
        }
    )


LOG = click_log()


def ridge(data: Any, columns: Any = None) -> RidgeRanker:
    return RidgeRanker(columns=columns).fit(data, quiet=True)


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same log as it came, and as seq2slate writes it."""
    folder = tmp_path_factory.mktemp("forms")
    LOG.to_csv(folder / "raw.csv", index=False)
    LOG.to_parquet(folder / "raw.parquet", index=False)
    lists = s2s.from_pandas(LOG, **ROLES)
    write(lists, folder / "lists.parquet", layout="lists")
    write(lists, folder / "items.parquet", layout="items")
    write(lists, folder / "own.jsonl")
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("trained_on", ["raw.csv", "raw.parquet", "lists.parquet", "items.parquet"])
def test_a_model_reads_every_form_of_its_data(trained_on: str, forms: dict[str, Path]) -> None:
    model = ridge(forms[trained_on], ROLES if trained_on.startswith("raw") else None)
    expected = ridge(LOG, ROLES)
    for name, path in forms.items():
        assert [slate.item_ids for slate in model.rerank(path)] == [slate.item_ids for slate in expected.rerank(LOG)], (
            name
        )
        assert model.score(path) == expected.score(LOG)


def test_own_files_of_own_files_remember_the_origin_too(forms: dict[str, Path], tmp_path: Path) -> None:
    write(read(forms["lists.parquet"]), tmp_path / "again.parquet", layout="items")
    roles = read(tmp_path / "again.parquet").roles
    assert roles is not None
    assert roles.is_own
    assert roles.origin == roles.for_prediction()
    assert (roles.origin.list_id, roles.origin.ignore) == ("search_id", ())
    joined = read([forms["lists.parquet"]]).roles
    assert joined is not None
    assert joined.merged(joined) == joined


def test_the_base_order_of_an_own_file_stays_what_it_is(tmp_path: Path) -> None:
    lists = s2s.from_pandas(LOG, **ROLES)
    reversed_lists = lists.reorder(lists.positions)
    for layout in ("lists", "items"):
        write(reversed_lists, tmp_path / "own.parquet", layout=layout)
        assert_same_lists(read(tmp_path / "own.parquet", ridge(LOG, ROLES).columns_), reversed_lists)


def test_roles_that_are_given_for_an_own_file_go_on_top_of_the_origin(forms: dict[str, Path]) -> None:
    roles = read(forms["items.parquet"], categorical="price", ignore="score").roles
    assert roles is not None
    columns = roles.for_prediction()
    assert (columns.list_id, columns.label) == ("search_id", "clicks")
    assert set(columns.categorical) == {"brand", "search_id", "price"}
    model = ridge(forms["items.parquet"], {"categorical": "price", "ignore": "score"})
    assert len(model.rerank(forms["raw.csv"])) == 30


@pytest.mark.parametrize("name", ["own.parquet", "own.jsonl"])
@pytest.mark.parametrize(
    "roles",
    [{"item_id": "doc", "label": "clicked"}, {"list_id": "query"}, {"label": "clicked"}, {"order_by": "-price"}],
)
def test_own_files_have_names_of_their_own_role_by_role(name: str, roles: dict[str, str], tmp_path: Path) -> None:
    lists = s2s.ItemLists([[3.0], [2.0], [1.0]], [0, 2, 3], labels=[0, 1, 1], feature_names=["price"])
    write(lists, tmp_path / name)
    assert_same_lists(read(tmp_path / name, Columns(**roles)), lists)


def test_lists_that_came_from_letor_make_models_that_read_letor(tmp_path: Path) -> None:
    letor = tmp_path / "a.txt"
    lines = [f"{i % 2} qid:{i // 4} 1:{i % 3} 2:{(7 * i) % 5} # doc{i}" for i in range(40)]
    letor.write_text("\n".join(lines) + "\n")
    write(read(letor), tmp_path / "own.parquet")
    model = ridge(tmp_path / "own.parquet")
    assert model.columns_ == Columns()
    assert model.score(letor) == model.score(tmp_path / "own.parquet") == ridge(letor).score(letor)


def test_the_command_line_goes_from_a_log_to_its_split_and_back(tmp_path: Path) -> None:
    log, parts, model, out = (str(tmp_path / name) for name in ("log.csv", "parts", "model", "slates.jsonl"))
    LOG.drop(columns=["hour", "seen", "brand"]).to_csv(log, index=False)
    roles = ["--list-id=search_id", "--item-id=product_id", "--label=clicks", "--order-by=-score", "--ignore=ts"]
    for command in (
        ["split", log, parts, *roles],
        ["train", parts, "--out", model, "--ranker", "ridge"],
        ["rerank", model, log, out],
        ["evaluate", log, "--ranker", f"mine={model}"],
        ["evaluate", parts, "--ranker", f"mine={model}"],
    ):
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    assert len(Path(out).read_text().splitlines()) == 30
