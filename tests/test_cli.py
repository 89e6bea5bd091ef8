"""The commands as a user types them, with their exit codes and messages."""

import gzip
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seq2slate.baselines.linear import RidgeRanker
from seq2slate.cli import main
from seq2slate.data.files import read, read_split
from seq2slate.estimator import load
from seq2slate.simulation.synthetic import make_synthetic_lists
from seq2slate.training.objectives import Objective
from tests.random_lists import assert_same_lists


@dataclass
class Done:
    """What a command printed."""

    out: str
    err: str


def seq2slate(*arguments: object, code: int = 0) -> Done:
    """Run a command and check its exit code: anything but a clean exit would raise here."""
    out, err = StringIO(), StringIO()
    with (
        patch.object(sys, "argv", ["seq2slate", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as exited,
    ):
        main()
    assert exited.value.code == code, out.getvalue() + err.getvalue()
    return Done(out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated lists, and a ranker that was trained on others."""
    path = tmp_path_factory.mktemp("cli")
    shape = ("--items", 12, "--world", "topics", "--features", 10)
    seq2slate("synth", path / "lists.parquet", "--lists", 60, *shape, "--seed", 3)
    RidgeRanker().fit(make_synthetic_lists(60, items=12, world="topics", features=10, seed=4)).save(path / "ridge")
    return path


def test_synth_writes_one_row_a_list(folder: Path) -> None:
    schema = pq.read_schema(folder / "lists.parquet")
    assert schema.field("item_id").type == pa.list_(pa.string()) or pa.types.is_large_list(schema.field("item_id").type)
    lists = read(folder / "lists.parquet")
    assert (len(lists), lists.n_features) == (60, 10)
    assert lists.relevance_probability is not None


def test_convert_there_and_back_loses_nothing(folder: Path) -> None:
    seq2slate("convert", folder / "lists.parquet", folder / "there.jsonl")
    seq2slate("convert", folder / "there.jsonl", folder / "items.parquet", "--layout", "items")
    seq2slate("convert", folder / "items.parquet", folder / "back.parquet")
    assert pq.read_table(folder / "back.parquet").equals(pq.read_table(folder / "lists.parquet"))


def test_inspect_prints_text_or_json(folder: Path) -> None:
    assert "lists without positives" in seq2slate("inspect", folder / "lists.parquet").out
    summary = json.loads(seq2slate("inspect", folder / "lists.parquet", "--json").out)
    assert summary["lists"] == 60


def test_a_fold_folder_is_inspected_and_converted_whole(folder: Path) -> None:
    fold = folder / "Fold1"
    fold.mkdir()
    for name in ("train", "vali", "test"):
        (fold / f"{name}.txt").write_text("1 qid:1 1:0.5 2:1\n0 qid:1 1:0.25 2:2\n")
    seq2slate("convert", fold, folder / "fold1")
    assert sorted(path.name for path in (folder / "fold1").iterdir()) == [
        "test.parquet",
        "train.parquet",
        "valid.parquet",
    ]
    assert set(json.loads(seq2slate("inspect", folder / "fold1", "--json").out)) == {"train", "valid", "test"}


def test_simulate_labels_the_order_of_the_ranker(folder: Path) -> None:
    for options in ([], ["--ranker", folder / "ridge"]):
        seq2slate("simulate", folder / "lists.parquet", folder / "clicks.parquet", "--user", "diverse", *options)
        clicks, lists = read(folder / "clicks.parquet"), read(folder / "lists.parquet")
        assert clicks.labels is not None
        assert set(np.unique(clicks.labels)) == {0, 1}
        assert (clicks.item_ids == lists.item_ids) == (not options)
        assert clicks.relevance is not None


@pytest.mark.parametrize(
    "options",
    [["--user", "2 diverse:q=0.1 + intent"], ["--user", "similar", "--distance", "cosine"], ["--user", "stopping"]],
)
def test_users_are_named_with_their_options(folder: Path, options: list[str]) -> None:
    seq2slate("simulate", folder / "lists.parquet", folder / "visits.parquet", *options)
    ceilings = ["--ranker", "ceiling-logged", "--ranker", "ceiling-shown", "--json"]
    rows = json.loads(seq2slate("evaluate", folder / "visits.parquet", *options, *ceilings).out)["rows"]
    mean = {(row["ranker"], row["measure"]): row["mean"] for row in rows}
    assert mean["ceiling-shown", "re-shown clicks@10"] > mean["base", "re-shown clicks@10"]


def test_an_option_that_the_user_does_not_have_is_refused(folder: Path) -> None:
    found = seq2slate(
        "simulate", folder / "lists.parquet", folder / "no.parquet", "--user", "cascade", "--q", 1, code=2
    )
    assert "the click model 'cascade' has no option 'q'; it has eta, relevant_from" in found.err


def test_evaluate_prints_one_table_or_json(folder: Path) -> None:
    seq2slate("simulate", folder / "lists.parquet", folder / "log.parquet", "--user", "cascade", "--eta", 1)
    arguments = ["evaluate", folder / "log.parquet", "--ranker", f"mine={folder / 'ridge'}", "--user", "cascade"]
    text = seq2slate(*arguments, "--ranker", "random").out
    assert all(word in text for word in ("mine", "random", "base", "NDCG@10", "clicks@10"))
    rows = json.loads(seq2slate(*arguments, "--json", "--measure", "MRR").out)["rows"]
    assert {(row["ranker"], row["measure"]) for row in rows} >= {("mine", "MRR"), ("base", "MRR")}


def test_the_same_seed_gives_the_same_bytes(folder: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        seq2slate("synth", folder / name, "--lists", 5, "--seed", 9)
    assert (folder / "a.parquet").read_bytes() == (folder / "b.parquet").read_bytes()


def test_synth_draws_from_the_world_that_is_named(tmp_path: Path) -> None:
    seq2slate("synth", tmp_path / "web.parquet", "--lists", 4, "--items", 3)
    seq2slate("synth", tmp_path / "topics.parquet", "--lists", 4, "--items", 3, "--world", "topics")
    assert_same_lists(read(tmp_path / "web.parquet"), make_synthetic_lists(4, items=3, seed=0))
    assert_same_lists(read(tmp_path / "topics.parquet"), make_synthetic_lists(4, items=3, world="topics", seed=0))
    refused = seq2slate("synth", tmp_path / "few.parquet", "--features", 12, code=2)
    assert "web30k has the 136 columns" in refused.err


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "nothing").mkdir()
    whole = gzip.compress(b"1 qid:1 1:0.5\n" * 1000)
    (tmp_path / "cut.txt.gz").write_bytes(whole[:-10])
    pq.write_table(pa.table({"price": [1.0]}), tmp_path / "columns.parquet")
    (tmp_path / "inf.txt").write_text("1 qid:1 1:0.5\n1 qid:1 1:inf\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("empty.txt", "empty.txt"),
        ("empty.parquet", "empty.parquet"),
        ("nothing", "nothing"),
        ("cut.txt.gz", "cut.txt.gz"),
        ("columns.parquet", "list_id"),
        ("inf.txt", "line 2"),
        ("missing.parquet", "missing.parquet"),
        ("odd.suffix", "odd.suffix"),
    ],
)
def test_bad_input_is_one_clear_line_and_code_2(broken: Path, name: str, said: str) -> None:
    done = seq2slate("inspect", broken / name, code=2)
    assert done.err.startswith("error: ")
    assert said in done.err
    assert done.out == ""


def test_a_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    done = seq2slate("synth", folder / "lists.parquet" / "below" / "x.parquet", "--lists", 1, code=2)
    assert "lists.parquet" in done.err


@pytest.mark.parametrize("arguments", [["synth"], ["no-such-command"], ["synth", "x.parquet", "--features", "3"]])
def test_wrong_usage_has_code_2(arguments: list[str]) -> None:
    assert "Error" in seq2slate(*arguments, code=2).err


def test_help_names_every_command() -> None:
    text = seq2slate("--help").out
    assert all(name in text for name in ("synth", "convert", "inspect", "simulate", "evaluate", "demo"))


def test_simulate_reads_the_roles_of_columns(tmp_path: Path) -> None:
    rows = "".join(f"q{row // 4},{row},{row % 5},{row % 3}\n" for row in range(40))
    (tmp_path / "grades.csv").write_text(f"query,doc,price,grade\n{rows}")
    roles = ["--list-id", "query", "--item-id", "doc", "--label", "grade"]
    seq2slate("simulate", tmp_path / "grades.csv", tmp_path / "clicks.parquet", "--user", "cascade", *roles)
    assert read(tmp_path / "clicks.parquet").feature_names == ("price",)


def test_train_and_rerank(folder: Path) -> None:
    log, model = folder / "log.parquet", folder / "model"
    seq2slate("simulate", folder / "lists.parquet", log, "--user", "cascade", "--eta", 1)
    done = seq2slate("train", log, "--out", model, "--epochs", 1)
    assert "NDCG@10 on the validation lists: base order" in done.err
    assert done.out == f"{model}: seq2slate (default), trained on 60 lists\n"
    seq2slate("rerank", model, folder / "lists.parquet", folder / "slates.jsonl", "--k", 5)
    slates = [json.loads(line) for line in (folder / "slates.jsonl").read_text().splitlines()]
    for slate, one in zip(slates, read(folder / "lists.parquet"), strict=True):
        assert [slate["list_id"]] == one.list_ids.to_pylist()
        assert set(slate["item_id"]) <= set(one.item_ids.to_pylist())
        assert len(set(slate["item_id"])) == len(slate["log_probability"]) == min(5, one.n_items)


def test_ctrl_c_in_training_says_how_to_go_on_and_has_the_code_of_an_interrupt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Objective.__call__

    def press_ctrl_c(self: Objective, *arguments: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Objective, "__call__", press_ctrl_c)
    done = seq2slate("train", folder / "lists.parquet", "--out", folder / "stopped", code=130)
    assert "--resume" in done.err
    assert "error" not in done.err


def test_a_folder_of_something_else_is_refused_before_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"meow")
    monkeypatch.setattr("seq2slate.cli.learning.read", lambda *_: pytest.fail("the lists were read"))
    for name in ("photos", "photos/cat.png"):
        done = seq2slate("train", folder / "lists.parquet", "--out", tmp_path / name, code=2)
        assert "not a saved ranker" in done.err


def test_a_model_that_could_not_be_saved_is_saved_by_resuming(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    arguments = ["train", folder / "lists.parquet", "--out", tmp_path / "model", "--epochs", 1]
    with monkeypatch.context() as patched:
        patched.setattr("seq2slate.model.slate_model.SlateModel.save", disk_full)
        assert "No space left" in seq2slate(*arguments, code=2).err
    monkeypatch.setattr(Objective, "__call__", lambda *_: pytest.fail("an epoch ran again"))
    seq2slate(*arguments, "--resume")
    assert os.listdir(tmp_path) == ["model"]


def test_resume_begins_a_run_and_is_content_with_one_that_has_ended(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["train", folder / "lists.parquet", "--out", tmp_path / "model", "--epochs", 1, "--resume"]
    assert "begins anew" in seq2slate(*arguments).err
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "model").iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(Objective, "__call__", lambda *_: pytest.fail("an epoch ran again"))
        (tmp_path / "model.checkpoints").mkdir()  # as if it had been killed when all was saved
        done = seq2slate(*arguments)
    assert "the model of this run, which has ended; there is nothing to resume" in done.out
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "model").iterdir()} == written
    assert os.listdir(tmp_path) == ["model"]
    assert "trained on" in seq2slate(*arguments, "--seed", 3).out, "another run takes its place, as without --resume"
    (tmp_path / "model" / "weights.safetensors").write_bytes(b"")
    assert "trained on" in seq2slate(*arguments, "--seed", 3).out, "a damaged model is trained again"
    seq2slate("train", folder / "lists.parquet", "--out", tmp_path / "model", "--ranker", "ridge")
    assert "trained on" in seq2slate(*arguments).out, "and so is a ranker of another kind"


def test_slates_are_not_worked_out_for_a_file_that_cannot_be_written(folder: Path) -> None:
    done = seq2slate("rerank", folder / "no-such-model", folder / "lists.parquet", folder / "slates.csv", code=2)
    assert "slates.csv" in done.err


def test_an_error_in_a_process_of_its_own_has_no_traceback(broken: Path) -> None:
    command = [sys.executable, "-m", "seq2slate.cli", "inspect", str(broken / "cut.txt.gz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "cut.txt.gz" in done.stderr


def test_a_baseline_is_trained_by_name(folder: Path) -> None:
    seq2slate("train", folder / "lists.parquet", "--out", folder / "mmr", "--ranker", "mmr")
    seq2slate("rerank", folder / "mmr", folder / "lists.parquet", folder / "slates.jsonl", "--k", 2)
    assert "item_id" in (folder / "slates.jsonl").read_text()
    wrong = ["train", folder / "lists.parquet", "--out", folder / "x", "--ranker", "mmr", "--epochs", 3]
    said = seq2slate(*wrong, code=2).err
    assert "mmr has no option 'epochs'; its options are seed, columns, trade_offs, scalings, score_column" in said
    wrong = ["train", folder / "lists.parquet", "--out", folder / "x", "--ranker", "mmr"]
    assert "leave it out with --ranker mmr" in seq2slate(*wrong, "--preset", "paper", code=2).err
    assert "leave them out with --ranker mmr" in seq2slate(*wrong, "--tensorboard", folder / "t", code=2).err
    assert "leave them out with --ranker mmr" in seq2slate(*wrong, "--resume", code=2).err
    assert "leave it out with --ranker mmr" in seq2slate(*wrong, "--threads", 2, code=2).err
    assert not (folder / "x").exists()


def test_a_preset_is_trained_by_the_name_of_the_ranker_and_takes_the_options_of_a_network(folder: Path) -> None:
    arguments = ["train", folder / "lists.parquet", "--epochs", 1, "--seed", 2]
    seq2slate(*arguments, "--out", folder / "by ranker", "--ranker", "prm")
    seq2slate(*arguments, "--out", folder / "by preset", "--preset", "prm")
    by_ranker, by_preset = (folder / name / "weights.safetensors" for name in ("by ranker", "by preset"))
    assert by_ranker.read_bytes() == by_preset.read_bytes()
    done = seq2slate(*arguments, "--out", folder / "x", "--ranker", "prm", "--preset", "paper", code=2)
    assert "--preset is for seq2slate: leave it out with --ranker prm" in done.err


# Column roles

ROLES = ["--list-id", "query", "--item-id", "doc", "--label", "clicks", "--order-by", "-score", "--ignore", "id"]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a split, as CSV files whose columns have names of their own; the rows are in no order."""
    for seed, part in enumerate(("train", "valid", "test")):
        rng = np.random.default_rng(seed)
        rows = [
            f"{number},q{number % 12},{100 + number},{rng.random():.4f},{rng.integers(9)},{rng.integers(2)}"
            for number in rng.permutation(120)
        ]
        (tmp_path / f"{part}.csv").write_text("\n".join(["id,query,doc,score,shop_id,clicks", *rows]) + "\n")
    return tmp_path


def test_inspect_prints_what_each_column_is_taken_for_and_warns_in_one_line(shop: Path) -> None:
    done = seq2slate("inspect", shop / "train.csv", *ROLES)
    assert "score    base order, feature  highest first" in done.out
    assert "shop_id  feature              integers that look like ids" in done.out
    assert done.err.splitlines() == [
        "warning: column 'shop_id' is taken for a number, but holds integers that look like ids; declare "
        "categorical=['shop_id'] or ignore=['shop_id'] (--categorical, --ignore), or name it in features= if it is a "
        "number"
    ]
    done = seq2slate("inspect", shop, *ROLES, "--categorical", "shop_id", "--json")
    assert done.err == ""
    columns = json.loads(done.out)["test"]["columns"]
    assert [(one["name"], one["role"]) for one in columns] == [
        ("id", "ignored"),
        ("query", "list_id"),
        ("doc", "item_id"),
        ("score", "base order, feature"),
        ("shop_id", "categorical"),
        ("clicks", "label"),
    ]


def test_a_warning_that_holds_for_every_part_of_a_split_is_printed_once(shop: Path) -> None:
    assert len(seq2slate("inspect", shop, *ROLES).err.splitlines()) == 1


def test_a_split_folder_is_trained_and_evaluated_and_integers_come_back(shop: Path) -> None:
    (shop / "columns.toml").write_text(
        'list_id = "query"\nitem_id = "doc"\nlabel = "clicks"\norder_by = "-score"\nignore = ["id", "shop_id"]\n'
    )
    seq2slate("train", shop, "--out", shop / "ridge", "--ranker", "ridge")
    split = read_split(shop)
    expected = RidgeRanker().fit(split.train, split.valid)
    np.testing.assert_array_equal(load(shop / "ridge").predict(split.test), expected.predict(split.test))
    rows = json.loads(seq2slate("evaluate", shop, "--ranker", f"mine={shop / 'ridge'}", "--json").out)["rows"]
    assert {row["ranker"] for row in rows} == {"base", "mine"}
    alone = seq2slate("evaluate", shop / "test.csv", "--ranker", f"mine={shop / 'ridge'}", "--json").out
    assert json.loads(alone)["rows"] == rows, "the test part"
    for name in ("slates.parquet", "slates.jsonl"):
        seq2slate("rerank", shop / "ridge", shop / "test.csv", shop / name, "--k", 3)
    slates = pq.read_table(shop / "slates.parquet")
    assert slates.schema.field("item_id").type.value_type == pa.int64()
    assert slates["list_id"].to_pylist() == split.test.list_ids.to_pylist()
    first = json.loads((shop / "slates.jsonl").read_text().splitlines()[0])
    assert first["item_id"] == slates["item_id"][0].as_py()


def test_lists_without_a_declared_label_are_reranked(shop: Path) -> None:
    seq2slate("train", shop / "train.csv", *ROLES, "--ignore", "shop_id", "--out", shop / "ridge", "--ranker", "ridge")
    unlabelled = shop / "new.csv"
    unlabelled.write_text("\n".join(line.rpartition(",")[0] for line in (shop / "test.csv").read_text().splitlines()))
    seq2slate("rerank", shop / "ridge", unlabelled, shop / "slates.jsonl", *ROLES, "--ignore", "shop_id")
    said = seq2slate("evaluate", unlabelled, *ROLES, code=2).err
    assert "no column 'clicks', which is declared label" in said


def test_convert_takes_roles_and_writes_csv(shop: Path) -> None:
    features = ["--feature", "score", "--categorical", "shop_id"]
    seq2slate("convert", shop / "train.csv", shop / "out.parquet", *ROLES, *features)
    seq2slate("convert", shop / "out.parquet", shop / "out.csv.gz")
    lists = read(shop / "train.csv", list_id="query", item_id="doc", label="clicks", order_by="-score", ignore="id",
                 features=["score"], categorical=["shop_id"])  # fmt: skip
    assert_same_lists(read(shop / "out.parquet"), lists)
    assert_same_lists(read(shop / "out.csv.gz"), lists)


def test_roles_that_contradict_each_other_are_one_clear_line(shop: Path) -> None:
    said = seq2slate("inspect", shop / "train.csv", "--label", "clicks", "--ignore", "clicks", code=2).err
    assert said == "error: column 'clicks' is declared both label and ignore; choose one\n"
