"""The paper's experiments, small: every table and figure, folds, resuming, and what is refused."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from seq2slate.data.files import read, write, write_split
from seq2slate.data.lists import ItemLists, Split
from seq2slate.errors import DataError, UsageError
from seq2slate.evaluation.battery import Battery, battery_notes, battery_sheets
from seq2slate.evaluation.comparison import Comparison
from seq2slate.evaluation.report import markdown
from seq2slate.reproduce import folder, run, workers
from seq2slate.reproduce.battery import planned_battery, run_battery
from seq2slate.reproduce.data import cross_validation, load_source, lowest_relevant_grade
from seq2slate.reproduce.figures import list_to_draw
from seq2slate.reproduce.logs import ClickLog, read_logs, run_logs
from seq2slate.reproduce.plan import (
    CEILINGS,
    DEFAULT,
    ONE_STEP,
    PAPER,
    PAPER_TARGETS,
    PAPER_TUNED,
    RECIPES,
    TABLES,
    Cell,
    NetworkRecipe,
    ReferenceRecipe,
    Row,
    cells_of,
    fold_name,
    paper_row,
    rows_of,
)
from seq2slate.reproduce.results import CellResult, Results
from seq2slate.reproduce.sizes import FULL, QUICK, USUAL, RunSettings, sizes_of
from seq2slate.reproduce.tables import undecided
from seq2slate.reproduce.work import do_cell
from seq2slate.reproduce.workers import CellBar, Failure, do_cells
from seq2slate.simulation.synthetic import make_synthetic_lists
from tests.test_cli import seq2slate

TINY = RunSettings(
    items=8, world="topics", features=12, train=60, valid=30, test=40, seeds=2, paper_seeds=2, fewer=40, epochs=1,
    shuffled_copies=2, timed_lists=8,
)  # fmt: skip
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def reproduce(
    target: str, out: Path, settings: RunSettings = TINY, *, data: Path | None = None, with_report: bool = False
) -> tuple[dict[Cell, Failure], str]:
    """Run in this process, and return what failed and what was printed."""
    path = None if data is None else str(data)
    return printed_by(partial(run.reproduce, target, out, settings, data=path), with_report=with_report)


def printed_by(
    work: Callable[..., dict[Cell, Failure]], *, with_report: bool = False
) -> tuple[dict[Cell, Failure], str]:
    """Return what failed and what was printed; pictures take seconds and are for one test of each part."""
    console = Console(file=StringIO(), width=160)
    drawing = nullcontext() if with_report else patch.object(folder, "write_report", return_value="no report")
    with console.capture() as printed, drawing:
        failures = work(jobs=1, console=console)
    return failures, printed.get()


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run."""
    out = tmp_path_factory.mktemp("reproduce") / "run"
    failures, _ = reproduce("all", out, with_report=True)
    assert failures == {}
    return out


def json_rows(out: Path, name: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads((out / f"{name}.json").read_text())
    return rows


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_every_ranker_and_metric_once(everything: Path, name: str) -> None:
    rows = json_rows(everything, name)
    plan, sizes = TABLES[name], {row.recipe: row for row in rows_of(name, TINY, TINY.train)}
    assert [(row["ranker"], row["metric"]) for row in rows] == [(one, by) for one in plan.rows for by in plan.metrics]
    for row in rows:
        ranker, size = str(row["ranker"]), sizes[str(row["ranker"])]
        assert row["seeds"] == list(range(size.seeds))
        trained_on = size.lists or TINY.train
        assert row["lists"] == (None if isinstance(RECIPES[ranker], ReferenceRecipe) else trained_on)
        assert row["paper"] == paper_row(name, ranker)
        assert ("difference" in row) == (ranker != plan.reference)
        if "shuffled" in ranker and row["metric"] == "rank-gain":
            assert row["mean"] is row["low"] is row["high"] is None
        else:
            assert row["low"] <= row["mean"] <= row["high"]  # type: ignore[operator]
    assert ("rank-gain" in plan.metrics) == (not plan.claim)


def test_a_difference_is_paired_with_the_reference_of_the_same_size(everything: Path) -> None:
    rows = {(row["ranker"], row["metric"]): row for row in json_rows(everything, "table2")}
    cells = everything / "paper" / "cells" / "fold0" / "diverse"
    sampled, plain = (
        CellResult.load(cells / f"seq2slate-paper-tuned-{name}40-0.npz").values["NDCG@10"] for name in ("sampling-", "")
    )
    found = rows["seq2slate (paper-tuned, sampling)", "NDCG@10"]
    assert found["against"] == PAPER_TUNED
    assert found["difference"]["mean"] == pytest.approx(np.nanmean(sampled - plain))  # type: ignore[index]
    assert rows[PAPER_TUNED, "NDCG@10"]["lists"] == found["lists"] == 40


def test_a_mean_is_that_of_the_cells(everything: Path) -> None:
    paths = sorted((everything / "paper" / "cells" / "fold0" / "diverse").glob("seq2slate-default-[01].npz"))
    results = [CellResult.load(path) for path in paths]
    values = np.stack([result.values["NDCG@10"] for result in results])
    found = Comparison(json_rows(everything, "table1")).cell(DEFAULT, "NDCG@10")
    assert found is not None
    assert len(results) == 2
    assert found.mean == pytest.approx(np.nanmean(values))
    for result in results:
        np.testing.assert_allclose(result.shown.sum(axis=1), result.values["re-shown clicks@10"])
        clicked = load_source(everything / "paper" / "data" / "fold0", "diverse").test.labels
        assert clicked is not None
        assert result.changes[:, 2].sum() == len(clicked)
        gained = (result.changes[:, 0] * result.changes[:, 1] * result.changes[:, 2]).sum()
        assert gained == result.values["rank-gain"].sum()


def test_the_base_order_and_the_ceilings_are_references(everything: Path) -> None:
    comparison = Comparison(json_rows(everything, "table1"))
    base, ceiling = comparison.base("NDCG@10"), comparison.ceiling("NDCG@10")
    assert base is not None
    assert ceiling is not None
    assert ceiling.mean > base.mean
    gain = Comparison(json_rows(everything, "table2")).cell("base order", "rank-gain")
    assert gain is not None
    assert gain.mean == 0


def test_figures_and_times_are_as_the_report_reads_them(everything: Path) -> None:
    figure2 = json.loads((everything / "figure2.json").read_text())
    n_items = len(figure2["items"])
    assert sorted(figure2["slate"]) == list(range(n_items))
    np.testing.assert_allclose(np.sum(figure2["probabilities"], axis=1), 1, atol=1e-4)
    figure3 = json.loads((everything / "figure3.json").read_text())
    assert figure3["baseline"] == "base order"
    assert [row["position"] for row in figure3["rows"]] == [*range(1, 11)] * 4
    shown = {row["metric"]: row["mean"] for row in json_rows(everything, "table1") if row["ranker"] == "LambdaMART"}
    base = {row["metric"]: row["mean"] for row in json_rows(everything, "table1") if row["ranker"] == "base order"}
    total = sum(row["difference"] for row in figure3["rows"] if row["ranker"] == "LambdaMART")
    assert total == pytest.approx(shown["re-shown clicks@10"] - base["re-shown clicks@10"])  # type: ignore[operator]
    timing = json.loads((everything / "timing.json").read_text())
    assert [row["paper"] for row in timing if row["paper"]] == [4, 3, 4]
    networks = {row["ranker"] for row in json.loads((everything / "curves.json").read_text())}
    assert networks == {name for name, recipe in RECIPES.items() if isinstance(recipe, NetworkRecipe)}
    assert (everything / "report.html").exists()


def test_run_json_says_how_it_was_made(everything: Path) -> None:
    made = json.loads((everything / "paper" / "run.json").read_text())
    assert made["settings"]["items"] == TINY.items
    assert len(made["data"]["sha256"]) == 64
    timed = {name.removesuffix(", 40 lists") for name in made["seconds"]["similar"]}
    assert timed == set(RECIPES)
    assert json.loads((everything / "run.json").read_text())["notes"] == made["notes"]
    said = "\n".join(made["notes"])
    for words in (
        "linear gain",
        "exponential gain",
        "items on average",
        "no relevant item",
        "ceiling itself",
        "a rule",
    ):
        assert words in said
    text = (everything / "tables.txt").read_text()
    (paper,) = (line for line in text.splitlines() if line.startswith(f"{PAPER} ") and "%" in line and "0.59" in line)
    assert paper.split()[-2:] == ["0.59", "0.75"]
    assert f"40 lists are too few to tell {DEFAULT} from" in " ".join(text.split())


def test_what_is_there_is_not_done_again(everything: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (everything / "paper" / "cells").rglob("*.npz")}
    with patch.object(workers, "do_cell", side_effect=AssertionError("done again")):
        failures, _ = reproduce("table3", everything)
    assert failures == {}
    assert {path: path.stat().st_mtime_ns for path in (everything / "paper" / "cells").rglob("*.npz")} == before


def test_other_settings_or_data_are_refused(everything: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"settings\.items is 8 there and 9 now"):
        reproduce("table1", everything, replace(TINY, items=9))
    write(make_synthetic_lists(20, items=5, world="topics", features=12, seed=1), tmp_path / "other.parquet")
    with pytest.raises(UsageError, match="other data: generated"):
        reproduce("table1", everything, data=tmp_path / "other.parquet")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="something else than a run"):
        reproduce("table1", tmp_path / "mine")
    with pytest.raises(UsageError, match="table9"):
        reproduce("table9", tmp_path / "new")


def test_a_cell_that_fails_costs_no_other(everything: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def fail(cell: Cell, out: Path, settings: RunSettings) -> None:
        if cell.recipe == ONE_STEP and cell.seed == 1:
            raise DataError("the cat sat on the keyboard")
        if cell.recipe == "LambdaMART":
            raise ValueError("odd")
        do_cell(cell, out, settings)

    with patch.object(workers, "do_cell", side_effect=fail):
        failures, printed = reproduce("figure3", out)
    assert sorted(failure.reason for failure in failures.values()) == [
        "ValueError: odd",
        "the cat sat on the keyboard",
    ]
    assert f"failed: {ONE_STEP} (diverse-clicks, seed 1): the cat sat on the keyboard" in printed
    assert 'raise ValueError("odd")' in (out / "paper" / "failures.txt").read_text()
    rankers = {row["ranker"] for row in json.loads((out / "figure3.json").read_text())["rows"]}
    assert rankers == {DEFAULT, PAPER_TUNED, ONE_STEP}
    failures, _ = reproduce("figure3", out)
    assert failures == {}
    assert not (out / "paper" / "failures.txt").exists()
    rankers = {row["ranker"] for row in json.loads((out / "figure3.json").read_text())["rows"]}
    assert rankers == {DEFAULT, PAPER_TUNED, ONE_STEP, "LambdaMART"}


def test_a_table_without_a_complete_row_is_said(tmp_path: Path) -> None:
    with patch.object(workers, "do_cell", side_effect=DataError("no luck today")):
        failures, printed = reproduce("table1", tmp_path / "run", replace(TINY, seeds=1, paper_seeds=1))
    assert len(failures) == len(TABLES["table1"].rows)
    assert "no row is complete" in printed
    assert json_rows(tmp_path / "run", "table1") == []


# What is compared


def planned(
    target: str, settings: RunSettings = TINY, *, folds: int = 1, n_train: int | None = None, ceilings: bool = True
) -> list[Cell]:
    sources = [fold_name(fold) for fold in range(folds)]
    return cells_of(target, settings, sources=sources, n_train=n_train or settings.train, ceilings=ceilings)


def test_no_cell_is_there_twice() -> None:
    cells = planned("all")
    assert len(set(cells)) == len(cells) == len({cell.file for cell in cells})
    assert {cell.recipe for cell in cells} == set(RECIPES)
    assert not any("ceiling" in cell.recipe for cell in planned("table1", ceilings=False))


def test_every_target_has_cells_and_all_has_them_all() -> None:
    every = set(planned("all", folds=3))
    for target in PAPER_TARGETS:
        cells = planned(target, folds=3)
        assert cells
        assert set(cells) <= every


def test_what_carries_the_claim_has_the_papers_size_and_comes_first() -> None:
    cells = planned("all", USUAL)
    claim = [DEFAULT, PAPER_TUNED, ONE_STEP, PAPER, "MART", "LambdaMART", "MMR", "base order", *CEILINGS]
    n_claim = 2 * (USUAL.paper_seeds + 3 * USUAL.seeds + 6)  # users; networks; trees, MMR and references
    assert {cell.recipe for cell in cells[:n_claim]} == set(claim)
    assert not any(cell.lists for cell in cells[:n_claim])
    assert {cell.lists for cell in cells[n_claim:]} == {USUAL.fewer}
    assert (USUAL.train, USUAL.seeds, USUAL.items) == (19_000, 2, 110)
    assert {cell.lists for cell in planned("all", FULL)} == {0}


@pytest.mark.parametrize("name", [name for name, plan in TABLES.items() if not plan.claim])
def test_the_rows_of_an_ablation_have_one_size(name: str) -> None:
    rows = [row for row in rows_of(name, USUAL, USUAL.train) if not isinstance(RECIPES[row.recipe], ReferenceRecipe)]
    assert len({(row.lists, row.seeds) for row in rows}) == 1
    recipes = [RECIPES[row.recipe] for row in rows]
    assert len({one.preset for one in recipes if isinstance(one, NetworkRecipe)}) == 1
    variants = {one.variant for one in recipes if isinstance(one, NetworkRecipe)}
    assert {"", "smooth-hinge", "REINFORCE", "one-step", "shuffled data"} < variants
    assert len(variants & {"sampling", "greedy"}) == 1  # the other one is the preset's own


def test_few_lists_are_not_trained_on_twice() -> None:
    assert not any(cell.lists for cell in planned("all", n_train=TINY.fewer))
    assert all(row.seeds == TINY.seeds for row in rows_of("table2", TINY, TINY.fewer)[:3])


def test_every_row_of_seq2slate_names_its_network() -> None:
    for name, recipe in RECIPES.items():
        if isinstance(recipe, NetworkRecipe) and name.startswith("seq2slate"):
            assert name == f"seq2slate ({recipe.preset}{', ' if recipe.variant else ''}{recipe.variant})"
    assert paper_row("table1", DEFAULT) == DEFAULT  # it is not the paper's network
    assert paper_row("table1", PAPER) == paper_row("table1", PAPER_TUNED) == "seq2slate"
    assert paper_row("table4-default", "seq2slate (default, greedy)") == "greedy policy"
    assert paper_row("table2", "seq2slate (paper-tuned, sampling)") == "seq2slate"


def test_a_share_of_the_gap_is_that_of_its_own_view() -> None:
    means = {"base order": 1.0, "mine": 1.2, "ceiling on logged labels": 1.4, "ceiling when re-shown": 2.0}
    rows = [
        {"ranker": name, "metric": metric, "mean": mean}
        for metric in ("MAP", "re-shown clicks@10")
        for name, mean in means.items()
    ]
    assert Comparison(rows).gap_closed("mine", "MAP") == pytest.approx(0.5)
    assert Comparison(rows).gap_closed("mine", "re-shown clicks@10") == pytest.approx(0.2)


def test_a_budget_is_multiplied_for_reinforce_and_spent_on_copies() -> None:
    plain, reinforce = RECIPES[DEFAULT], RECIPES["seq2slate (default, REINFORCE)"]
    assert isinstance(plain, NetworkRecipe)
    assert isinstance(reinforce, NetworkRecipe)
    training = plain.config.training
    assert plain.budget(USUAL) == {"epochs": training.epochs, "steps": training.steps}
    assert reinforce.budget(USUAL) == {name: 4 * value for name, value in plain.budget(USUAL).items() if value}
    assert plain.passes(replace(USUAL, epochs=3), 10) == 3


def test_settings_are_checked() -> None:
    assert QUICK.train < USUAL.train == FULL.train
    assert sizes_of("battery", lists=4000, tests=100, seeds=2).train == 4000
    assert sizes_of("table1", seeds=5).fewer_seeds == 5
    with pytest.raises(UsageError, match="contradict"):
        sizes_of("all", quick=True, full=True)
    with pytest.raises(UsageError, match="--full is for the paper"):
        sizes_of("logs", full=True)
    with pytest.raises(UsageError, match="no world 'mars'"):
        RunSettings(world="mars")
    with pytest.raises(UsageError, match="seeds"):
        RunSettings(seeds=0)
    with pytest.raises(UsageError, match="folds"):
        RunSettings(folds=2)


# Data


def names(lists: ItemLists) -> list[str]:
    return list(lists.list_ids.to_pylist())


def test_every_list_is_tested_on_once_and_never_learned_from_at_that_time() -> None:
    lists = make_synthetic_lists(23, items=4, world="topics", features=4, seed=0)
    splits = list(cross_validation(lists, 5))
    tested: list[str] = []
    for train, valid, test in splits:
        parts = [set(names(part)) for part in (train, valid, test)]
        assert sum(map(len, parts)) == len(set.union(*parts)) == len(lists)
        tested += names(test)
    assert sorted(tested) == sorted(names(lists))
    with pytest.raises(DataError, match="4 lists cannot be cut into 5 folds"):
        list(cross_validation(lists[:4], 5))


def test_folds_are_pooled(tmp_path: Path) -> None:
    lists = make_synthetic_lists(45, items=12, world="topics", features=6, seed=3)
    write(replace(lists, relevance_probability=None), tmp_path / "lists.parquet")
    settings = replace(TINY, seeds=1, folds=3)
    failures, printed = reproduce("figure3", tmp_path / "run", settings, data=tmp_path / "lists.parquet")
    assert failures == {}
    assert "Cross-validation by list in 3 folds" in printed
    cells, sources = planned("figure3", settings, folds=3, n_train=15, ceilings=False), [fold_name(n) for n in range(3)]
    results = Results.load(cells, tmp_path / "run" / "paper" / "cells", settings, n_train=15, sources=sources)
    for row in (Row(DEFAULT, 0, 1), Row("base order", 0, 1)):
        (folds,) = results.of("diverse", row).values()
        assert sorted(name for result in folds for name in result.list_ids) == sorted(names(lists))
        assert results.values("diverse", row, "NDCG@10").shape == (1, len(lists))
    for source in sources:
        train, valid, test = load_source(tmp_path / "run" / "paper" / "data" / source, "diverse")
        assert not set(names(test)) & {*names(train), *names(valid)}


def test_a_split_is_taken_as_given_and_a_stored_fold_is_the_same(tmp_path: Path) -> None:
    graded = Split(
        *(make_synthetic_lists(size, items=6, world="topics", features=5, seed=size) for size in (30, 15, 12))
    )
    write_split(graded, tmp_path / "split")
    failures, printed = reproduce("figure2", tmp_path / "run", data=tmp_path / "split")
    assert failures == {}
    assert "30 training, 15 validation and 12 test lists" in printed
    for before, after in zip(
        graded, load_source(tmp_path / "run" / "paper" / "data" / "fold0", "similar"), strict=True
    ):
        assert names(before) == names(after)
        assert before.feature_names == after.feature_names
        for one, other in zip(before, after, strict=True):
            rows = np.argsort(one.item_ids.to_pylist()), np.argsort(other.item_ids.to_pylist())
            np.testing.assert_array_equal(one.features[rows[0]], other.features[rows[1]])
            np.testing.assert_array_equal(one.labels[rows[0]], other.relevance[rows[1]])  # type: ignore[index]


def test_clicks_are_relevant_from_one_on() -> None:
    graded = make_synthetic_lists(9, items=6, world="topics", features=5, seed=1)
    clicks = replace(graded, labels=np.minimum(graded.batch().labels[graded.batch().mask], 1))
    assert lowest_relevant_grade(Split(graded, graded, graded)) == 2
    assert lowest_relevant_grade(Split(clicks, clicks, clicks)) == 1


def test_too_little_data_is_said(tmp_path: Path) -> None:
    lists = make_synthetic_lists(12, items=3, world="topics", features=4, seed=0)
    write(replace(lists, labels=np.zeros(lists.n_items, np.float32)), tmp_path / "none.parquet")
    with pytest.raises(DataError, match=r"positive|no click"):
        reproduce("table1", tmp_path / "run", data=tmp_path / "none.parquet")


def drawn(lengths: Sequence[int], clicks: Sequence[int]) -> int:
    labels = np.concatenate([np.arange(length) < n for length, n in zip(lengths, clicks, strict=True)])
    return list_to_draw(ItemLists(np.zeros((sum(lengths), 1)), np.cumsum([0, *lengths]), labels))


def test_a_rule_picks_the_list_of_figure_2() -> None:
    assert drawn([10, 41, 20, 15], [3, 3, 2, 4]) == 3  # the first that fits
    assert drawn([50, 12, 20, 0], [5, 3, 2, 0]) == 1  # the shortest with three clicks
    assert drawn([5, 6, 1], [0, 2, 1]) == 1  # the most clicks


def test_a_difference_that_is_unclear_list_by_list_is_told() -> None:
    lists, rng = np.linspace(0, 1, 45), np.random.default_rng(0)
    racer = np.stack([lists, lists + 0.001])
    values = {
        "seq2slate": racer,
        "always a little worse": racer[:1] - 0.05,  # its interval overlaps, but on every list it is behind
        "now better, now worse": racer + rng.normal(0, 0.1, 45),
        "never measured": np.full((1, 45), np.nan),
    }
    (said,) = undecided(values, "MAP")
    assert said == (
        "By MAP, 45 lists are too few to tell seq2slate from now better, now worse and never measured: the 95% "
        "interval of their difference, list by list, includes 0."
    )
    assert list(undecided({"A": racer}, "MAP")) == []


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half", b"text"])
def test_a_broken_cell_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cell.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"cell\.npz: not the result of a cell"):
        CellResult.load(tmp_path / "cell.npz")


# The battery of users

TWO_USERS = ("diverse, cosine", "fatigue")
BATTERY_TINY = RunSettings(items=6, train=40, valid=20, test=30, seeds=2, epochs=1)


@pytest.fixture(scope="module")
def battery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two users in one world."""
    out = tmp_path_factory.mktemp("battery") / "run"
    work = partial(run_battery, out, BATTERY_TINY, worlds=["topics"], users=TWO_USERS)
    failures, _ = printed_by(work, with_report=True)
    assert failures == {}
    return out


def test_the_battery_has_every_user_by_both_views(battery: Path) -> None:
    content = json.loads((battery / "battery.json").read_text())
    rows = {(row["user"], row["metric"], row["ranker"]): row for row in content["rows"]}
    assert {user for user, _, _ in rows} == set(TWO_USERS)
    assert {metric for _, metric, _ in rows} == {"re-shown clicks@10", "NDCG@10"}
    assert {ranker for _, _, ranker in rows} == {
        "base order", "MART", "LambdaMART", "MMR", PAPER_TUNED, DEFAULT, *CEILINGS,
    }  # fmt: skip
    seeds = {ranker: len(row["seeds"]) for (_, _, ranker), row in rows.items()}
    assert seeds == {ranker: 2 if ranker in (PAPER_TUNED, DEFAULT) else 1 for ranker in seeds}
    for difference in content["differences"]:
        mine, other = (
            rows[difference["user"], difference["metric"], difference[name]] for name in ("ranker", "against")
        )
        assert difference["ranker"] == DEFAULT
        assert difference["mean"] == pytest.approx(mine["mean"] - other["mean"])
        assert difference["low"] <= difference["mean"] <= difference["high"]


def test_the_battery_goes_on_with_other_users_and_refuses_other_sizes(battery: Path) -> None:
    cells = planned_battery(BATTERY_TINY, ["topics"], TWO_USERS).cells
    with patch.object(workers, "do_cell", side_effect=AssertionError("done again")):
        failures, printed = printed_by(
            partial(run_battery, battery, BATTERY_TINY, worlds=["topics"], users=TWO_USERS[:1])
        )
    assert failures == {}
    assert all(user in printed for user in TWO_USERS)  # what was asked for before is still there
    assert all((battery / "battery" / "cells" / cell.file).exists() for cell in cells)
    with pytest.raises(UsageError, match=r"settings\.train is 40 there and 50 now"):
        printed_by(partial(run_battery, battery, replace(BATTERY_TINY, train=50)))
    with pytest.raises(UsageError, match="the battery has no 'nobody'"):
        planned_battery(BATTERY_TINY, users=["nobody"])


def test_a_folder_takes_the_paper_and_the_battery(battery: Path) -> None:
    failures, _ = reproduce("figure2", battery)
    assert failures == {}
    made = json.loads((battery / "run.json").read_text())
    assert set(made["data"]) == {"paper", "battery"}
    assert "Battery of users" in (battery / "report.html").read_text()


def test_the_battery_is_summed_up() -> None:
    def rows(user: str, base: float, mine: float, ceiling: float) -> list[dict[str, object]]:
        means = {"base order": base, "mine": mine, "MART": 0.5, "LambdaMART": 0.48, "ceiling on logged labels": ceiling}
        return [
            {"world": "w", "user": user, "ranker": ranker, "metric": "MAP", "mean": mean}
            for ranker, mean in means.items()
        ]

    def against(user: str, other: str, mean: float, low: float, high: float) -> dict[str, object]:
        place = {"world": "w", "user": user, "metric": "MAP", "ranker": "mine", "against": other}
        return {**place, "mean": mean, "low": low, "high": high}

    found = Battery(
        [*rows("better", 0.4, 0.5, 0.6), *rows("worse", 0.4, 0.39, 0.41), *rows("level", 0.4, 0.399, 0.44)],
        [
            against("better", "base order", 0.1, 0.05, 0.15), against("better", "MART", 0.0, -0.01, 0.01),
            against("worse", "base order", -0.01, -0.02, -0.005), against("worse", "MART", -0.11, -0.2, -0.05),
            against("level", "base order", -0.001, -0.005, 0.004), against("level", "MART", -0.1, -0.2, -0.05),
        ],
        "mine", ["MART", "LambdaMART"],
    )  # fmt: skip
    (said,) = battery_notes(found)
    assert said == (
        "Battery of users, MAP, w: mine, 3 cells: 1 below the base order by more than 0.5%; 1 with a lower end below "
        "-1.5%; 24% of the gap closed on average over the 2 whose ceiling is at least 5% above the base order; 2 "
        "behind the best pointwise ranker outside the interval."
    )  # (0.1 / 0.2 + -0.001 / 0.04) / 2
    (sheet,) = battery_sheets(found)
    assert sheet.rows[1][-3:] == ["-2.5% (-5.0 to -1.2)", "-22.0% (-40.0 to -10.0)", "below"]


# Real logs


def click_log(path: Path, n_lists: int = 60) -> None:
    """Ids and a time; the file is not in the order of time, and one shop sells most."""
    rng = np.random.default_rng(0)
    lists = [
        {
            "list_id": f"q{hour}",
            "hour": hour,
            "item_id": [f"i{hour}{n}" for n in range(4)],
            "shop": (shops := rng.permutation(["good", "bad", "ugly", "dear"]).tolist()),
            "label": [float(rng.random() < (0.8 if shop == "good" else 0.05)) for shop in shops],
        }
        for hour in rng.permutation(n_lists).tolist()
    ]
    pq.write_table(pa.Table.from_pylist(lists), path)


def test_logs_are_split_by_time_which_nobody_reads(tmp_path: Path) -> None:
    click_log(tmp_path / "log.parquet")
    train, valid, test = ClickLog("shop", str(tmp_path / "log.parquet"), time="hour").split()
    assert [names(part) for part in (train, valid, test)] == [
        [f"q{hour}" for hour in range(start, end)] for start, end in ((0, 42), (42, 48), (48, 60))
    ]
    assert set(train.categorical) == {"shop"}
    assert not train.context
    few = ClickLog("shop", str(tmp_path / "log.parquet"), time="hour", first=20).split()
    assert sorted(names(few.train) + names(few.valid)) == sorted(names(train)[:20])
    assert len(few.valid) == 2
    assert names(few.test) == names(test)


def test_logs_have_a_table_each_with_paired_differences(tmp_path: Path) -> None:
    click_log(tmp_path / "log.parquet", 240)
    described = tmp_path / "logs.toml"
    described.write_text(
        '[shop]\nfile = "log.parquet"\ntime = "hour"\n\n'
        '[shop-first-20]\nfile = "log.parquet"\nfirst = 20\nignore = ["hour"]\n'
    )
    logs = read_logs(described, tmp_path)
    settings = RunSettings(seeds=1, epochs=2)
    work = partial(run_logs, tmp_path / "run", settings, logs)
    failures, printed = printed_by(work, with_report=True)
    assert failures == {}
    assert "Log shop: 168 training, 24 validation and, later, 48 test lists, 4.0 items on average." in printed
    for name, n_lists in (("shop", 168), ("shop-first-20", 18)):
        rows = {(row["ranker"], row["metric"]): row for row in json_rows(tmp_path / "run", f"log-{name}")}
        assert {ranker for ranker, _ in rows} == {DEFAULT, PAPER_TUNED, "MART", "LambdaMART", "base order"}
        assert rows[DEFAULT, "NDCG@10"]["lists"] == n_lists
        assert rows[DEFAULT, "NDCG@10"]["against"] == "base order"
    learned, base = (
        {row["ranker"]: row["mean"] for row in json_rows(tmp_path / "run", "log-shop") if row["metric"] == "MAP"}[name]
        for name in ("MART", "base order")
    )
    assert learned > base + 0.1  # type: ignore[operator]
    assert "Log shop-first-20" in (tmp_path / "run" / "report.html").read_text()
    text = markdown(tmp_path / "run")
    assert "### Log shop\n\n| ranker | trained on | NDCG@10 |" in text
    assert "paper" not in text.partition("### Log shop")[2].replace("paper-tuned", "")  # no such column
    with patch.object(workers, "do_cell", side_effect=AssertionError("done again")):
        assert printed_by(work)[0] == {}
    click_log(tmp_path / "log.parquet", 70)
    with pytest.raises(UsageError, match="other data"):
        printed_by(work)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a log is a table with its name"),
        ("[a]\ntime = 't'", "say which file it is"),
        ("[a]\nfile = 'x'\nfrist = 3", "there is no 'frist' .did you mean 'first'"),
        ("[a b]\nfile = 'x'", "logs.toml: "),
        ("['a b']\nfile = 'x'", "small letters, digits and hyphens, not 'a b'"),
        ("[a]\nfile = 'x'\nfirst = 1", "first must be at least 2"),
    ],
)
def test_logs_that_cannot_be_told_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "logs.toml").write_text(text)
    with pytest.raises((DataError, UsageError), match=said):
        read_logs(tmp_path / "logs.toml", tmp_path)


# Processes


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "run"
    lists = make_synthetic_lists(120, items=10, world="topics", features=8, seed=2)
    write(lists, tmp_path / "lists.parquet")
    command = [sys.executable, "-m", "seq2slate.cli", "reproduce", "table2", "--out", str(out), "--quick"]
    command += ["--data", str(tmp_path / "lists.parquet"), "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(list((out / "paper" / "cells").rglob("*.npz"))) < 6:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)  # the workers see that they are alone
    before = {path: path.stat().st_mtime_ns for path in (out / "paper" / "cells").rglob("*.npz")}
    assert not (out / "table2.json").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} of " in done.stderr
    after = {path: path.stat().st_mtime_ns for path in (out / "paper" / "cells").rglob("*.npz")}
    assert len(after) > len(before)
    assert {path: after[path] for path in before} == before
    assert (out / "table2.json").exists()


@pytest.mark.slow
def test_ctrl_c_stops_the_workers_and_says_how_to_go_on(tmp_path: Path) -> None:
    write(make_synthetic_lists(120, items=10, world="topics", features=8, seed=2), tmp_path / "lists.parquet")
    command = [sys.executable, "-m", "seq2slate.cli", "reproduce", "table1", "--out", str(tmp_path / "run")]
    command += ["--data", str(tmp_path / "lists.parquet"), "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list((tmp_path / "run" / "paper" / "cells").rglob("*.npz")):
        assert process.poll() is None, "the run ended before it could be interrupted"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the same command goes on from there" in said
    assert "Traceback" not in said


class Notes(CellBar):
    """Remembers what was begun, and how it ended."""

    def __init__(self) -> None:
        super().__init__(0, done=0)
        self.ended: dict[Cell, Failure | None] = {}

    def begins(self, cell: Cell) -> None:
        assert cell not in self.ended

    def ends(self, cell: Cell, failure: Failure | None) -> None:
        self.ended[cell] = failure


@pytest.mark.slow
def test_a_worker_that_dies_costs_one_cell(everything: Path) -> None:
    cells = [Cell("fold0", "diverse", name, 40, 0) for name in ("ListNet", "RankNet", "base order", "AdaRank", "MMR")]
    victims: list[Cell] = []

    class Murderer(Notes):
        def begins(self, cell: Cell) -> None:
            super().begins(cell)
            if len(self.ended) == 1 and not victims:  # both workers are at work: end the one that is with the other
                running = next(one for one in cells[:2] if one not in self.ended)
                victims.append(running)
                os.kill(multiprocessing.active_children()[cells.index(running)].pid or 0, signal.SIGKILL)

    notes = Murderer()
    do_cells(cells, everything / "paper", TINY, jobs=2, bar=notes)
    failed = {cell: failure for cell, failure in notes.ended.items() if failure is not None}
    assert set(notes.ended) == set(cells)
    assert len(failed) == 1
    (failure,) = failed.values()
    assert "ended with code -9" in failure.reason


# Other data, and the command


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the shared data are not here")
@pytest.mark.parametrize(
    "name", ["mslr_sample.txt.gz", "yahoo_sample.train.txt.gz", "yahoo_sample.test.txt.gz", "mq2008.fold2.txt.gz"]
)
def test_real_lists_go_through(tmp_path: Path, name: str) -> None:
    failures, printed = reproduce("table1", tmp_path / "run", replace(TINY, seeds=1), data=DATA / name)
    assert failures == {}
    n_lists = len(read(DATA / name))
    assert f"each of {n_lists:,} lists is tested on once" in printed
    text, is_ahead_of_all = " ".join(printed.split()), name == "mslr_sample.txt.gz"
    assert (f"{n_lists:,} lists are too few to tell {DEFAULT} from" in text) != is_ahead_of_all
    assert (f"By NDCG@10, {DEFAULT} is first" in text) >= is_ahead_of_all
    rankers = {row["ranker"] for row in json_rows(tmp_path / "run", "table1")}
    assert rankers == {name for name in TABLES["table1"].rows if not name.startswith("ceiling")}


def test_the_command_reproduces_and_says_what_is_wrong(tmp_path: Path) -> None:
    write(make_synthetic_lists(30, items=6, world="topics", features=5, seed=4), tmp_path / "lists.parquet")
    done = seq2slate(
        "reproduce", "figure2", "--quick", "--jobs", 1, "--data", tmp_path / "lists.parquet", "--out", tmp_path / "run"
    )
    assert "report.html" in done.out
    assert json.loads((tmp_path / "run" / "figure2.json").read_text())["items"]
    failed = seq2slate("reproduce", "table1", "--data", tmp_path / "no.txt", "--out", tmp_path / "other", code=2)
    assert "no such file" in failed.err
    with patch("seq2slate.reproduce.run.reproduce", return_value={"a cell": None}):
        seq2slate("reproduce", "table1", "--out", tmp_path / "other", code=1)
    for world, arguments in {"web30k": (), "topics": ("--world", "topics")}.items():
        with patch("seq2slate.reproduce.run.reproduce", return_value={}) as called:
            seq2slate("reproduce", "table1", "--out", tmp_path / "other", *arguments)
        assert called.call_args.args[2].world == world
    seq2slate("reproduce", "table1", "--out", tmp_path / "other", "--time", "hour", code=2)
    seq2slate("reproduce", "table1", "--out", tmp_path / "other", "--user", "diverse", code=2)
    with patch("seq2slate.reproduce.run.reproduce", side_effect=KeyboardInterrupt):
        stopped = seq2slate("reproduce", "table1", "--out", tmp_path / "other", code=130)
    assert "goes on from there" in stopped.err


def test_the_command_plans_and_does_the_battery_and_logs(tmp_path: Path) -> None:
    out = tmp_path / "run"
    plan = seq2slate("reproduce", "all", "--out", out, "--dry-run").out
    assert plan.startswith(
        "72 cells, in this order:\n  seq2slate (paper): 19,000 training lists; fold0; diverse, similar; 2"
    )
    assert "  MART: 19,000 training lists" in plan
    assert "  AdaRank: 4,000 training lists" in plan
    assert not out.exists()
    small = ("--lists", 30, "--tests", 20, "--items", 5, "--seeds", 1, "--world", "topics", "--user", "position")
    plan = seq2slate("reproduce", "battery", "--out", out, *small, "--dry-run").out
    assert "  seq2slate (default): 30 training lists; topics; position; 1 cells, 0 done" in plan
    with patch("seq2slate.reproduce.battery.run_battery", return_value={}) as called:
        seq2slate("reproduce", "battery", "--out", out, *small, "--jobs", 1)
    assert called.call_args.kwargs["users"] == ["position"]
    assert called.call_args.args[1].train == 30
    click_log(tmp_path / "log.parquet")
    with patch("seq2slate.reproduce.logs.run_logs", return_value={}) as called:
        seq2slate(
            "reproduce", "logs", "--out", out, "--data", tmp_path / "log.parquet", "--time", "hour", "--ignore", "x"
        )
    (log,) = called.call_args.args[2]
    assert (log.name, log.time, log.columns.ignore) == ("log", "hour", ("x",))
    seq2slate("reproduce", "logs", "--out", out, code=2)
