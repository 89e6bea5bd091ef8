"""The commands that compare two checkouts: what is matched, which value is the best, and whether a bar is held."""

import doctest
import json
from pathlib import Path

import pytest

from benchmarks import checkouts, side_by_side, size
from benchmarks.tables import Rows

BEFORE, AFTER = Path("before"), Path("after")


def test_the_examples_hold() -> None:
    for module in (side_by_side, size):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed


def run_with(
    monkeypatch: pytest.MonkeyPatch, title: str, outputs: dict[Path, list[Rows]]
) -> list[dict[str, float | str | None]]:
    """Compare two checkouts whose benchmark answers these rows, repeat by repeat."""
    answers = {tree: iter(rows) for tree, rows in outputs.items()}
    monkeypatch.setattr(side_by_side, "run_python", lambda tree, *_: f"warm-up\n{json.dumps(next(answers[tree]))}\n")
    repeats = len(next(iter(outputs.values())))
    return side_by_side.run(title, {"before": BEFORE, "after": AFTER}, repeats)


def test_a_speed_up_is_best_when_high_and_a_time_when_low(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(ratio: float, seconds: float) -> Rows:
        return [{"items": 10, "ours, ms": seconds, "ratio": ratio, "bar": 2.0}]

    outputs = {BEFORE: [rows(2.0, 4.0), rows(3.0, 5.0)], AFTER: [rows(1.5, 8.0), rows(1.0, 6.0)]}
    milliseconds, ratio = run_with(monkeypatch, "A request, against the textbook", outputs)
    assert (milliseconds["before"], milliseconds["after"], milliseconds["after / before"]) == (4.0, 6.0, 6.0 / 4.0)
    assert (ratio["before"], ratio["after"], ratio["bar"], ratio["remark"]) == (3.0, 1.5, 2.0, "MISSED")


def test_a_cost_holds_its_bar_from_below(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Rows = [{"what": "training", "ratio": 1.7, "bar": 2.5, "paper": 4.0}]
    (row,) = run_with(monkeypatch, "Cost of sequential decoding", {BEFORE: [rows], AFTER: [rows]})
    assert (row["bar"], row["remark"]) == (2.5, "held")


def test_a_figure_that_only_one_checkout_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: dict[Path, list[Rows]] = {
        BEFORE: [[{"ranker": "MART", "seconds": 1.0}]],
        AFTER: [[{"ranker": "GBRT", "seconds": 2.0}]],
    }
    rows = run_with(monkeypatch, "Baselines", outputs)
    assert [(row["row"], row["before"], row["after"], row["remark"]) for row in rows] == [
        ("MART", 1.0, None, "only before"),
        ("GBRT", None, 2.0, "only after"),
    ]


def test_every_bar_of_the_last_results_has_a_figure() -> None:
    results = json.loads((checkouts.ROOT / "benchmarks" / "results.json").read_text())
    tables = {title: rows for title, rows in results.items() if isinstance(rows, list)}
    assert tables
    for title, rows in tables.items():
        n_bars = sum(bool(value) for row in rows for name, value in row.items() if name.startswith("bar"))
        assert sum(bar is not None for *_, bar in side_by_side.figures(rows)) == n_bars, title


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        checkouts.new_parser(None).parse_args(["--before", str(tmp_path)])
    assert "no checkout of seq2slate" in capsys.readouterr().err


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(SystemExit, match="no bananas"):
        checkouts.run_python(checkouts.ROOT, "-c", "raise SystemExit('no bananas')")


def test_the_size_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "seq2slate"
    package.mkdir()
    (package / "__init__.py").write_text('"""Nothing."""\n')
    long_function = "def long():\n    '''Long.'''\n" + "    x = 1\n" * 40
    (package / "long.py").write_text(long_function + "# a comment\n" * 360)
    (package / "native.c").write_text("int x;\nint y;\n")
    (package / "style.css").write_text("p { margin: 0; }\n")
    monkeypatch.setattr(size, "count_tests", lambda _: "7")
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert size.sizes(tmp_path) == {
        "modules": "2",
        "lines of Python": "403",
        "lines of code in Python": "41",
        "lines of C": "2 in 1 files",
        "lines of CSS": "1 in 1 files",
        "files over 400 lines": "402 long.py",
        "functions over 40 lines of code": "1",
        "tests": "7",
        "places that share six or more lines": "not counted: there is no command `duplicates` here",
        "longest functions, in lines of code": "41 long.py: long",
    }
