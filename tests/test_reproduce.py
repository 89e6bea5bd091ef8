"""The paper's experiments, small: every table and figure, folds, resuming, and what is refused."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from rich.console import Console

from seq2slate.data.files import read, write, write_split
from seq2slate.data.lists import ItemLists, Split
from seq2slate.errors import DataError, UsageError
from seq2slate.evaluation.comparison import Comparison
from seq2slate.reproduce import run, workers
from seq2slate.reproduce.data import cross_validation, load_fold, lowest_relevant_grade
from seq2slate.reproduce.figures import list_to_draw
from seq2slate.reproduce.plan import (
    FULL,
    QUICK,
    RECIPES,
    TABLES,
    TARGETS,
    Cell,
    NetworkRecipe,
    RunSettings,
    cells_of,
    seeds_of,
)
from seq2slate.reproduce.results import CellResult, Results
from seq2slate.reproduce.tables import undecided
from seq2slate.reproduce.work import do_cell
from seq2slate.reproduce.workers import CellBar, Failure, do_cells
from seq2slate.simulation.synthetic import make_synthetic_lists
from tests.test_cli import seq2slate

TINY = RunSettings(
    items=8, world="topics", features=12, train=60, valid=30, test=40, seeds=2, epochs=1, shuffled_copies=2,
    timed_lists=8,
)  # fmt: skip
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def reproduce(
    target: str, out: Path, settings: RunSettings = TINY, *, data: Path | None = None, with_report: bool = False
) -> tuple[dict[Cell, Failure], str]:
    """Run in this process, and return what failed and what was printed; pictures take seconds and are for one test."""
    console = Console(file=StringIO(), width=160)
    drawing = nullcontext() if with_report else patch.object(run, "write_report", return_value="no report")
    with console.capture() as printed, drawing:
        failures = run.reproduce(
            target, out, settings, data=None if data is None else str(data), jobs=1, console=console
        )
    return failures, printed.get()


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run."""
    out = tmp_path_factory.mktemp("reproduce") / "run"
    failures, _ = reproduce("all", out, with_report=True)
    assert failures == {}
    return out


def rows_of(out: Path, name: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads((out / f"{name}.json").read_text())
    return rows


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_every_ranker_and_metric_once(everything: Path, name: str) -> None:
    rows = rows_of(everything, name)
    _, recipes, metrics = TABLES[name]
    assert [(row["ranker"], row["metric"]) for row in rows] == [(one, metric) for one in recipes for metric in metrics]
    for row in rows:
        assert list(row) == ["ranker", "metric", "mean", "low", "high", "seeds"]
        assert row["seeds"] == list(seeds_of(str(row["ranker"]), TINY))
        if (row["ranker"], row["metric"]) == ("shuffled data", "rank-gain"):
            assert row["mean"] is row["low"] is row["high"] is None
        else:
            assert row["low"] <= row["mean"] <= row["high"]  # type: ignore[operator]
    assert {"rank-gain" in metrics} == {name in ("table2", "table4")}


def test_a_mean_is_that_of_the_cells(everything: Path) -> None:
    paths = sorted((everything / "cells" / "diverse" / "fold0").glob("lambdamart-*.npz"))
    results = [CellResult.load(path) for path in paths]
    values = np.stack([result.values["NDCG@10"] for result in results])
    found = Comparison(rows_of(everything, "table1")).cell("LambdaMART", "NDCG@10")
    assert found is not None
    assert len(results) == 2
    assert found.mean == pytest.approx(np.nanmean(values))
    for result in results:
        np.testing.assert_allclose(result.shown.sum(axis=1), result.values["re-shown clicks@10"])
        clicked = load_fold(everything / "data", 0, "diverse").test.labels
        assert clicked is not None
        assert result.changes[:, 2].sum() == len(clicked)
        gained = (result.changes[:, 0] * result.changes[:, 1] * result.changes[:, 2]).sum()
        assert gained == result.values["rank-gain"].sum()


def test_the_base_order_and_the_ceilings_are_references(everything: Path) -> None:
    comparison = Comparison(rows_of(everything, "table1"))
    base, ceiling = comparison.base("NDCG@10"), comparison.ceiling("NDCG@10")
    assert base is not None
    assert ceiling is not None
    assert ceiling.mean > base.mean
    gain = Comparison(rows_of(everything, "table2")).cell("base order", "rank-gain")
    assert gain is not None
    assert gain.mean == 0


def test_figures_and_times_are_as_the_report_reads_them(everything: Path) -> None:
    figure2 = json.loads((everything / "figure2.json").read_text())
    n_items = len(figure2["items"])
    assert sorted(figure2["slate"]) == list(range(n_items))
    np.testing.assert_allclose(np.sum(figure2["probabilities"], axis=1), 1, atol=1e-4)
    figure3 = json.loads((everything / "figure3.json").read_text())
    assert figure3["baseline"] == "base order"
    assert [row["position"] for row in figure3["rows"]] == [*range(1, 11)] * 3
    shown = {row["metric"]: row["mean"] for row in rows_of(everything, "table1") if row["ranker"] == "LambdaMART"}
    base = {row["metric"]: row["mean"] for row in rows_of(everything, "table1") if row["ranker"] == "base order"}
    total = sum(row["difference"] for row in figure3["rows"] if row["ranker"] == "LambdaMART")
    assert total == pytest.approx(shown["re-shown clicks@10"] - base["re-shown clicks@10"])  # type: ignore[operator]
    timing = json.loads((everything / "timing.json").read_text())
    assert [row["paper"] for row in timing if row["paper"]] == [4, 3, 4]
    networks = {row["ranker"] for row in json.loads((everything / "curves.json").read_text())}
    assert networks == {name for name, recipe in RECIPES.items() if isinstance(recipe, NetworkRecipe)}
    assert (everything / "report.html").exists()


def test_run_json_says_how_it_was_made(everything: Path) -> None:
    made = json.loads((everything / "run.json").read_text())
    assert made["settings"]["items"] == TINY.items
    assert len(made["data"]["sha256"]) == 64
    assert set(made["seconds"]["similar"]) == set(RECIPES)
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
    assert "paper 0.59/0.75" in text
    assert "40 lists are too few to tell seq2slate from" in " ".join(text.split())


def test_what_is_there_is_not_done_again(everything: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (everything / "cells").rglob("*.npz")}
    with patch.object(workers, "do_cell", side_effect=AssertionError("done again")):
        failures, _ = reproduce("table3", everything)
    assert failures == {}
    assert {path: path.stat().st_mtime_ns for path in (everything / "cells").rglob("*.npz")} == before


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
        if cell.recipe == "one-step decoder" and cell.seed == 1:
            raise DataError("the cat sat on the keyboard")
        if cell.recipe == "LambdaMART":
            raise ValueError("odd")
        do_cell(cell, out, settings)

    with patch.object(workers, "do_cell", side_effect=fail):
        failures, printed = reproduce("figure3", out)
    assert sorted(failure.reason for failure in failures.values()) == [
        "ValueError: odd",
        "ValueError: odd",
        "the cat sat on the keyboard",
    ]
    assert "failed: one-step decoder (diverse-clicks, seed 1): the cat sat on the keyboard" in printed
    assert 'raise ValueError("odd")' in (out / "failures.txt").read_text()
    rankers = {row["ranker"] for row in json.loads((out / "figure3.json").read_text())["rows"]}
    assert rankers == {"seq2slate", "one-step decoder"}
    failures, _ = reproduce("figure3", out)
    assert failures == {}
    assert not (out / "failures.txt").exists()
    rankers = {row["ranker"] for row in json.loads((out / "figure3.json").read_text())["rows"]}
    assert rankers == {"seq2slate", "one-step decoder", "LambdaMART"}


def test_a_table_without_a_complete_row_is_said(tmp_path: Path) -> None:
    with patch.object(workers, "do_cell", side_effect=DataError("no luck today")):
        failures, printed = reproduce("table1", tmp_path / "run", replace(TINY, seeds=1))
    assert len(failures) == len(TABLES["table1"].rows)
    assert "no row is complete" in printed
    assert rows_of(tmp_path / "run", "table1") == []


# What is compared


def test_no_cell_is_there_twice() -> None:
    cells = cells_of("all", TINY, folds=1, ceilings=True)
    assert len(set(cells)) == len(cells) == len({cell.file for cell in cells})
    assert {cell.recipe for cell in cells} == set(RECIPES)
    assert not any("ceiling" in cell.recipe for cell in cells_of("table1", TINY, folds=1, ceilings=False))


def test_every_target_has_cells_and_all_has_them_all() -> None:
    every = set(cells_of("all", TINY, folds=3, ceilings=True))
    for target in TARGETS:
        cells = cells_of(target, TINY, folds=3, ceilings=True)
        assert cells
        assert set(cells) <= every


def test_settings_are_checked() -> None:
    assert QUICK.train < FULL.train
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
    cells = cells_of("figure3", settings, folds=3, ceilings=False)
    results = Results.load(cells, tmp_path / "run" / "cells", settings, 3)
    for recipe in ("seq2slate", "base order"):
        (folds,) = results.of("diverse", recipe).values()
        assert sorted(name for result in folds for name in result.list_ids) == sorted(names(lists))
        assert results.values("diverse", recipe, "NDCG@10").shape == (1, len(lists))
    for fold in range(3):
        train, valid, test = load_fold(tmp_path / "run" / "data", fold, "diverse")
        assert not set(names(test)) & {*names(train), *names(valid)}


def test_a_split_is_taken_as_given_and_a_stored_fold_is_the_same(tmp_path: Path) -> None:
    graded = Split(
        *(make_synthetic_lists(size, items=6, world="topics", features=5, seed=size) for size in (30, 15, 12))
    )
    write_split(graded, tmp_path / "split")
    failures, printed = reproduce("figure2", tmp_path / "run", data=tmp_path / "split")
    assert failures == {}
    assert "30 training, 15 validation and 12 test lists" in printed
    for before, after in zip(graded, load_fold(tmp_path / "run" / "data", 0, "similar"), strict=True):
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


# Processes


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "run"
    lists = make_synthetic_lists(120, items=10, world="topics", features=8, seed=2)
    write(lists, tmp_path / "lists.parquet")
    command = [sys.executable, "-m", "seq2slate.cli", "reproduce", "table2", "--out", str(out), "--quick"]
    command += ["--data", str(tmp_path / "lists.parquet"), "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(list((out / "cells").rglob("*.npz"))) < 6:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)  # the workers see that they are alone
    before = {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*.npz")}
    assert not (out / "table2.json").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} of " in done.stderr
    after = {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*.npz")}
    assert len(after) > len(before)
    assert {path: after[path] for path in before} == before
    assert (out / "table2.json").exists()


@pytest.mark.slow
def test_ctrl_c_stops_the_workers_and_says_how_to_go_on(tmp_path: Path) -> None:
    write(make_synthetic_lists(120, items=10, world="topics", features=8, seed=2), tmp_path / "lists.parquet")
    command = [sys.executable, "-m", "seq2slate.cli", "reproduce", "table1", "--out", str(tmp_path / "run")]
    command += ["--data", str(tmp_path / "lists.parquet"), "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list((tmp_path / "run" / "cells").rglob("*.npz")):
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
    cells = [Cell("diverse", 0, name, 0) for name in ("ListNet", "RankNet", "base order", "AdaRank", "MMR")]
    victims: list[Cell] = []

    class Murderer(Notes):
        def begins(self, cell: Cell) -> None:
            super().begins(cell)
            if len(self.ended) == 1 and not victims:  # both workers are at work: end the one that is with the other
                running = next(one for one in cells[:2] if one not in self.ended)
                victims.append(running)
                os.kill(multiprocessing.active_children()[cells.index(running)].pid or 0, signal.SIGKILL)

    notes = Murderer()
    do_cells(cells, everything, TINY, jobs=2, bar=notes)
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
    assert f"{n_lists:,} lists are too few to tell seq2slate from" in " ".join(printed.split())
    rankers = {row["ranker"] for row in rows_of(tmp_path / "run", "table1")}
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
    with patch("seq2slate.reproduce.run.reproduce", side_effect=KeyboardInterrupt):
        stopped = seq2slate("reproduce", "table1", "--out", tmp_path / "other", code=130)
    assert "goes on from there" in stopped.err
