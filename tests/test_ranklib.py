"""The RankLib adapter against a real Java process: a small stand-in with RankLib's command line and file formats."""

import copy
import shutil
import subprocess
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seq2slate.baselines.ranklib import METHODS, RankLib, RankLibRanker
from seq2slate.data.features import FeatureTransform
from seq2slate.data.files import write
from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import Ranker
from seq2slate.errors import DataError, UsageError
from seq2slate.estimator import load
from seq2slate.saving import load_saved
from tests.checks import check_ranker, mixed_lists
from tests.test_cli import seq2slate

STAND_IN = """
import java.nio.file.*;
import java.util.*;

public class StandIn {
    static Map<String, String> options = new LinkedHashMap<>();

    record Item(float label, String qid, float[] values) {}

    static List<Item> read(String file) throws Exception {
        List<Item> items = new ArrayList<>();
        Set<String> finished = new HashSet<>();
        for (String line : Files.readAllLines(Path.of(file))) {
            String[] parts = line.split(" ");
            String qid = parts[1].substring("qid:".length());
            Integer.parseInt(qid);
            if (!items.isEmpty() && !items.get(items.size() - 1).qid.equals(qid)) {
                finished.add(items.get(items.size() - 1).qid);
            }
            if (finished.contains(qid)) throw new RuntimeException("list " + qid + " is not in one piece");
            float[] values = new float[parts.length - 2];
            for (int f = 0; f < values.length; f++) {
                String[] pair = parts[f + 2].split(":");
                if (Integer.parseInt(pair[0]) != f + 1) throw new RuntimeException("not dense: " + line);
                values[f] = Float.parseFloat(pair[1]);
            }
            if (!items.isEmpty() && items.get(0).values.length != values.length) {
                throw new RuntimeException("requesting unspecified feature, fid=" + (values.length + 1));
            }
            items.add(new Item(Float.parseFloat(parts[0]), qid, values));
        }
        return items;
    }

    // The mean of the clicked items, less the mean of all, for each column.
    static void train() throws Exception {
        List<Item> items = read(options.get("-train"));
        read(options.get("-validate"));
        double[] weights = new double[items.get(0).values.length];
        double clicks = 0;
        for (Item item : items) clicks += item.label;
        for (Item item : items) {
            for (int f = 0; f < weights.length; f++) {
                weights[f] += item.values[f] * (item.label / clicks - 1.0 / items.size());
            }
        }
        StringBuilder model = new StringBuilder("## " + options + "\\n");
        for (double weight : weights) model.append(weight).append("\\n");
        Files.writeString(Path.of(options.get("-save")), model);
    }

    static void score() throws Exception {
        List<String> model = Files.readAllLines(Path.of(options.get("-load")));
        String fault = model.get(0).startsWith("fault ") ? model.get(0).substring(6) : "";
        List<String> lines = new ArrayList<>();
        String qid = "";
        int number = 0;
        for (Item item : read(options.get("-rank"))) {
            number = item.qid.equals(qid) ? number + 1 : 0;
            qid = item.qid;
            double score = 0;
            for (int f = 0; f < item.values.length; f++) {
                score += item.values[f] * Double.parseDouble(model.get(f + 1));
            }
            if (fault.equals("nan")) score = Double.NaN;
            lines.add(fault.equals("bare") ? "" + score : qid + "\\t" + number + "\\t" + score);
        }
        if (fault.equals("backwards")) Collections.reverse(lines);
        if (fault.equals("short")) lines.remove(lines.size() - 1);
        if (fault.equals("twice")) lines.set(0, lines.get(1));
        if (fault.equals("stranger")) lines.set(0, "99\\t0\\t1.0");
        if (fault.equals("words")) lines.set(0, "one\\ttwo\\tthree");
        if (!fault.equals("nothing")) Files.write(Path.of(options.get("-score")), lines);
    }

    public static void main(String[] arguments) throws Exception {
        for (int i = 0; i < arguments.length; i++) {
            boolean alone = arguments[i].equals("-silent");
            options.put(arguments[i], alone ? "" : arguments[++i]);
        }
        String metric = options.getOrDefault("-metric2t", "");
        if (metric.equals("EXIT")) {
            System.out.println("Reading feature file");
            System.err.println("the metric is unknown");
            System.exit(3);
        }
        if (metric.equals("SLEEP")) Thread.sleep(60_000);
        if (metric.equals("HANG")) {
            new Thread(() -> { try { Thread.sleep(60_000); } catch (InterruptedException e) { } }).start();
            throw new RuntimeException("a worker is left behind");
        }
        if (options.containsKey("-train") && !metric.equals("NOTHING")) train();
        if (options.containsKey("-load")) score();
    }
}
"""


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_stand_in(tmp_path_factory.mktemp("stand-in")))


def build_stand_in(folder: Path) -> Path:
    """Compile the stand-in for RankLib, and return the path of its jar; skip the test where that is not possible."""
    javac = shutil.which("javac")
    if javac is None or shutil.which("java") is None:
        pytest.skip("no Java compiler to build the stand-in for RankLib with")
    folder.mkdir(exist_ok=True)
    (folder / "StandIn.java").write_text(STAND_IN)
    # Concatenation inline: the default would double the time that the stand-in takes to start.
    subprocess.run([javac, "-XDstringConcat=inline", "-d", folder, folder / "StandIn.java"], check=True, timeout=120)
    jar = folder / "a folder" / "RankLib.jar"
    jar.parent.mkdir()
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\nMain-Class: StandIn\n")
        for compiled in folder.glob("*.class"):
            archive.write(compiled, compiled.name)
    return jar


@pytest.fixture(scope="module")
def ranker(jar: str) -> RankLibRanker:
    return RankLibRanker(jar=jar, timeout=60).fit(mixed_lists(0), mixed_lists(1))


def with_model(ranker: RankLibRanker, model: bytes) -> RankLibRanker:
    """The ranker with another model of RankLib's."""
    changed = copy.copy(ranker)
    changed.model_ = model
    return changed


def with_fault(ranker: RankLibRanker, fault: str) -> RankLibRanker:
    """The ranker with a model that makes the stand-in write its scores in another way."""
    return with_model(ranker, f"fault {fault}\n".encode() + ranker.model_.partition(b"\n")[2])


def expected_scores(train: ItemLists, lists: ItemLists) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What the stand-in computes, by a formula."""
    transform = FeatureTransform.fit(train)

    def columns(some: ItemLists) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        nearness = -np.log(1.0 + some.positions)
        return np.column_stack([transform.apply(some).dense.astype(np.float64), nearness])

    assert train.labels is not None
    weights = columns(train)[train.labels > 0].mean(axis=0) - columns(train).mean(axis=0)
    scores: np.ndarray[tuple[int], np.dtype[np.float64]] = columns(lists) @ weights
    return scores


def test_every_item_gets_its_own_score(ranker: RankLibRanker) -> None:
    lists = mixed_lists(5)
    np.testing.assert_allclose(ranker.score_items(lists), expected_scores(mixed_lists(0), lists), rtol=1e-4, atol=1e-5)


def test_the_order_of_the_lines_does_not_matter(ranker: RankLibRanker) -> None:
    lists = mixed_lists(5)
    backwards = with_fault(ranker, "backwards")
    np.testing.assert_array_equal(backwards.score_items(lists), ranker.score_items(lists))


def test_it_passes_the_battery_and_survives_saving(
    ranker: RankLibRanker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_load(_: Ranker) -> Ranker:
        ranker.save(tmp_path / "saved")
        monkeypatch.setenv("RANKLIB_JAR", str(ranker.jar))
        return RankLibRanker.from_saved(load_saved(tmp_path / "saved"))

    check_ranker(ranker, mixed_lists(2), save_load=save_load)


# The command line


DOCUMENTED = {
    "mart": (0, "-tree 7 -leaf 5 -shrinkage 0.2 -tc 64 -mls 2 -estop 9"),
    "ranknet": (1, "-epoch 9 -layer 2 -node 5 -lr 0.001"),
    "rankboost": (2, "-round 9 -tc 20"),
    "adarank": (3, "-round 9 -noeq -tolerance 0.01 -max 3"),
    "coordinate-ascent": (4, "-r 2 -i 9 -tolerance 0.01 -reg 0.1"),
    "lambdamart": (6, "-tree 7 -leaf 5 -shrinkage 0.2 -tc 64 -mls 2 -estop 9"),
    "listnet": (7, "-epoch 9 -lr 0.001"),
    "random-forests": (8, "-bag 9 -srate 0.5 -frate 0.5 -rtype 6 -tree 2 -leaf 20 -shrinkage 0.2 -tc 64 -mls 2"),
    "linear-regression": (9, "-L2 0.1"),
}
"""The number of each ranker and all options of its own, as RankLib prints them when it is started without arguments."""


@pytest.fixture
def echoing_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A jar, and a `java` that saves its own arguments as the model."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\" > model.txt\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    jar = tmp_path / "RankLib.jar"
    jar.touch()
    return jar


def command_line(method: str, jar: Path, metric: str = "NDCG@10") -> list[str]:
    number, options = DOCUMENTED[method]
    files = "-train train.txt -validate validate.txt"
    goal = f"-ranker {number} -metric2t {metric} -save model.txt -silent"
    return ["-jar", str(jar), *f"{files} {goal} {options}".split()]


@pytest.mark.parametrize("method", DOCUMENTED)
def test_every_method_has_its_documented_command_line(method: str, echoing_java: Path) -> None:
    options = DOCUMENTED[method][1].split()
    ranker = RankLibRanker(method=method, metric="MAP", arguments=options, jar=str(echoing_java))
    said = ranker.fit(mixed_lists(0), mixed_lists(1)).model_.decode().splitlines()
    assert said == command_line(method, echoing_java, "MAP")
    assert set(METHODS[method].options) == {word for word in options if not word[1:2].isdigit() and word[0] == "-"}
    assert set(METHODS) == set(DOCUMENTED)


@pytest.mark.parametrize("method", DOCUMENTED)
def test_the_command_line_trains_every_method(
    method: str, echoing_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKLIB_JAR", str(echoing_java))
    write(mixed_lists(0), tmp_path / "lists.parquet")
    arguments = [word for option in DOCUMENTED[method][1].split() for word in ("--arguments", option)]
    data, valid, out = tmp_path / "lists.parquet", tmp_path / "lists.parquet", tmp_path / "model"
    seq2slate("train", data, "--valid", valid, "--out", out, "--ranker", "ranklib", "--method", method, *arguments)
    opened = load(out)
    assert isinstance(opened, RankLibRanker)
    assert opened.method == method
    assert opened.model_.decode().splitlines() == command_line(method, echoing_java)


def test_options_of_other_methods_are_refused() -> None:
    lists = mixed_lists(0)
    with pytest.raises(
        UsageError, match="RankLib's ranknet has no option -leaf, -tree; its options are -epoch, -layer"
    ):
        RankLibRanker(method="ranknet", arguments=["-tree", "7", "-leaf", "5"]).fit(lists, lists)


# What can go wrong


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("short", "should be 36 lines of list, item and score; they are 35 lines of 3"),
        ("bare", "they are 36 lines of 1 number"),
        ("twice", "every item of every list once"),
        ("stranger", "every item of every list once"),
        ("words", "cannot be read.*one"),
        ("nothing", r"cannot be read.*scores\.txt"),
        ("nan", "not finite"),
    ],
)
def test_scores_that_cannot_be_right_are_refused(fault: str, message: str, ranker: RankLibRanker) -> None:
    with pytest.raises(DataError, match=message):
        with_fault(ranker, fault).score_items(mixed_lists(5))


def test_a_damaged_model_is_an_error_with_what_java_said(ranker: RankLibRanker) -> None:
    with pytest.raises(UsageError, match=r"(?s)exit code 1.*-load model\.txt.*IndexOutOfBounds"):
        with_model(ranker, b"## half a model\n").score_items(mixed_lists(5))


def test_an_exit_code_is_an_error_with_what_was_said(jar: str) -> None:
    with pytest.raises(UsageError, match=r"(?s)exit code 3.*-ranker 6.*Reading feature file.*the metric is unknown"):
        RankLibRanker(metric="EXIT", jar=jar, timeout=60).fit(mixed_lists(0), mixed_lists(1))


def test_a_run_that_takes_too_long_is_stopped(jar: str) -> None:
    started = time.monotonic()
    with pytest.raises(UsageError, match=r"more than 0\.5 seconds"):
        RankLibRanker(metric="SLEEP", jar=jar, timeout=0.5).fit(mixed_lists(0), mixed_lists(1))
    assert time.monotonic() - started < 20


def test_an_exception_that_leaves_workers_behind_does_not_hang(jar: str) -> None:
    started = time.monotonic()
    with pytest.raises(UsageError, match=r"(?s)failed and was stopped.*a worker is left behind"):
        RankLibRanker(metric="HANG", jar=jar, timeout=60).fit(mixed_lists(0), mixed_lists(1))
    assert time.monotonic() - started < 30


def test_a_run_without_a_model_is_an_error(jar: str) -> None:
    with pytest.raises(UsageError, match="without a model"):
        RankLibRanker(metric="NOTHING", jar=jar, timeout=60).fit(mixed_lists(0), mixed_lists(1))


def test_what_is_wrong_with_the_arguments_is_said_before_java_starts(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "RankLib.jar")
    lists = mixed_lists(0)
    with pytest.raises(UsageError, match="no ranker 'svm'; choose one of mart"):
        RankLibRanker(method="svm", jar=nowhere).fit(lists, lists)
    with pytest.raises(UsageError, match="-norm, -save cannot be among the arguments"):
        RankLibRanker(arguments=["-save", "x", "-norm", "sum"], jar=nowhere).fit(lists, lists)
    with pytest.raises(DataError, match="validation lists have no labels"):
        RankLibRanker(jar=nowhere).fit(lists, replace(lists, labels=None))
    half = np.where(lists.positions == 3, 0.5, 0)
    with pytest.raises(DataError, match=r"training lists, list 'no positives', item 3: label 0\.5"):
        RankLibRanker(jar=nowhere).fit(replace(lists, labels=half), lists)
    with pytest.raises(DataError, match=r"validation lists, list 'no positives', item 3: label 0\.5"):
        RankLibRanker(jar=nowhere).fit(lists, replace(lists, labels=half))
    with pytest.raises(UsageError, match=r"there is no .*RankLib\.jar"):
        RankLibRanker(jar=nowhere).fit(lists, lists)


def test_other_columns_are_refused(ranker: RankLibRanker) -> None:
    with pytest.raises(DataError, match="feature"):
        ranker.rank(ItemLists(np.zeros((2, 3)), [0, 2]).batch())


def test_without_jar_or_java_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKLIB_JAR", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match=r"get RankLib\.jar from .* RANKLIB_JAR"):
        RankLib.find()
    with pytest.raises(UsageError, match=r"there is no .*missing\.jar"):
        RankLib.find(tmp_path / "missing.jar")
    (tmp_path / "RankLib.jar").touch()
    monkeypatch.setenv("RANKLIB_JAR", str(tmp_path / "RankLib.jar"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="install a Java runtime"):
        RankLib.find()
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert RankLib.find() == RankLib(tmp_path / "RankLib.jar", str(java))
