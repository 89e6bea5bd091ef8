"""The report of a run: what it says, what it leaves out, and that it needs nothing but itself."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from seq2slate.errors import DataError, UsageError
from seq2slate.evaluation import paper
from seq2slate.evaluation.comparison import Comparison
from seq2slate.evaluation.report import write_report
from tests.test_cli import seq2slate
from tests.test_figures import attention, table_rows

PAPER = Path(__file__).resolve().parents[2] / "shared" / "paper"
NASTY = "</script><script>alert('&')</script>"
TABLE1: dict[str, float | None] = {"base order": 0.5, "seq2slate": 0.6, "LambdaMART": 0.56, NASTY: 0.45, "ceiling": 0.9}


def whole_run() -> dict[str, Any]:
    """A file of every kind; names, ids and notes try to be markup."""
    return {
        "run.json": {
            "title": f"A run {NASTY}",
            "command": f"seq2slate reproduce --out '{NASTY}'",
            "versions": {"seq2slate": "0.1.0", "torch": "2.13.0"},
            "seeds": [0, 1, 2],
            "data": {"name": NASTY, "sha256": "ab12", "train": {"lists": 12345, "items": 1}, "eta": 0.3},
            "notes": ["A note."],
            "seconds": {"table1": 12.5},
        },
        "table1.json": [*table_rows(TABLE1), *table_rows({"base order": 0, "seq2slate": 12.3}, "rank-gain")],
        "table10.json": table_rows({"mine": 0.3}, "MAP"),
        "table2.json": table_rows({"seq2slate": None, "base order": None}),
        "figure2.json": {**attention(40, list(range(40))), "list_id": NASTY},
        "figure3.json": {
            "baseline": NASTY,
            "rows": [{"ranker": NASTY, "position": 1, "difference": 0.1, "low": 0.05, "high": 0.15}],
        },
        "curves.json": [
            {"run": NASTY, "ranker": NASTY, "seed": 0, "epoch": 1, "loss": None, "value": 0.5, "measure": "NDCG@10"}
        ],
        "rank-changes.json": {"ranker": NASTY, "rows": [{"change": 1, "count": 2, "clicked": True}]},
        "timing.json": [{"what": "training", "decoder": "one-step", "seconds": 2.5, "ratio": 3.5, "paper": 4.0}],
    }


def write_run(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


class Reader(HTMLParser):
    """What a browser would see: tags with their attributes, the visible text, and what stands in scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.headings: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data
        if self._inside == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("report") / "run", whole_run())
    assert write_report(path) == path / "report.html"
    return path


@pytest.fixture(scope="module")
def report(folder: Path) -> Reader:
    return Reader((folder / "report.html").read_text(encoding="utf-8"))


def test_nothing_is_loaded_from_elsewhere(folder: Path, report: Reader) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(?:src\s*=|href\s*=|url\(|@import|import\()\s*["'`]?\s*(?:https?:)?//""", text)
    for tag, attributes in report.tags:
        source = attributes.get("src") or attributes.get("href")
        assert source is None or (tag == "img" and (folder / source).exists())
    policy = next(attributes["content"] for _, attributes in report.tags if "http-equiv" in attributes)
    assert (policy or "").startswith("default-src 'none'")


def test_what_looks_like_markup_is_text(report: Reader) -> None:
    charts = [attributes for tag, attributes in report.tags if tag == "script" and attributes.get("type") != "module"]
    assert len(charts) == sum(tag == "figure" for tag, _ in report.tags) == 6
    assert len(report.scripts) == 6 + 1  # and Vega, once
    assert report.text.count(NASTY) >= 5  # title twice, row, command, data
    specs = [json.loads(script) for script in report.scripts[:-1]]
    assert any(NASTY in json.dumps(spec) for spec in specs)


def test_pictures_stand_beside_the_report(folder: Path) -> None:
    names = ["curves", "figure2", "figure3", "rank-changes", "table1", "table10"]  # table2 has nothing to draw
    found = sorted(path.name for path in (folder / "pictures").iterdir())
    assert found == sorted(f"{name}.{suffix}" for name in names for suffix in ("png", "svg"))


def test_the_report_says_who_is_first_and_how_it_was_made(report: Reader) -> None:
    said = [
        "By NDCG@10, seq2slate is first with 0.600: +20.0% over the base order, 25% of the gap to the ceiling.",
        "Next is LambdaMART with 0.560.",
        "A note.",
        "12,345",
        "ab12",
        "2.13.0",
        "0, 1, 2",
        "12.5",
        "3.5×",
    ]
    assert [text for text in said if text not in report.text] == []
    assert report.headings == [
        "In short",
        paper.TITLES["table1"],
        paper.TITLES["table2"],
        "table10",
        "Where the model looks (figure 2)",
        "Clicks per position (figure 3)",
        "How far items move",
        "Learning",
        "Time",
        "How it was made",
    ]


def test_a_cell_has_its_interval_its_share_and_the_papers_numbers(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    row = re.search(r"<tr><th scope=\"row\">LambdaMART</th>(.*?)</tr>", text)
    assert row is not None
    share = [f"{(0.56 - 0.5) / (0.9 - 0.5):.0%}", "of", "gap"]
    paper_cell = ["paper", "0.52", "/", "0.69"]
    assert re.sub("<[^>]+>", " ", row[1]).split() == ["0.560", "±0.010", *share, *paper_cell, "–"]
    assert "<b>0.600</b>" in text
    assert "<b>0.900</b>" not in text  # a ceiling is never the best
    assert "<b>12.30</b>" in text


@pytest.mark.parametrize("name", sorted(whole_run()))
def test_every_file_may_stand_alone(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seq2slate.evaluation.figures.save", lambda chart, path: path)
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda snippet: snippet)
    files = {key: content for key, content in whole_run().items() if key == name}
    text = write_report(write_run(tmp_path / "run", files)).read_text(encoding="utf-8")
    assert text.count("<section>") == {"table1.json": 2, "table10.json": 2, "run.json": 2}.get(name, 1)


def test_a_second_report_replaces_the_first_and_leaves_nothing_else(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"timing.json": whole_run()["timing.json"]})
    write_report(folder)
    write_run(folder, {"timing.json": []} | {"run.json": {"title": "Second"}})
    assert "Second" in write_report(folder).read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "run.json", "timing.json"]


# In words


def test_a_base_order_that_nobody_beats_is_said() -> None:
    rows = table_rows({"base order": 0.7, "mine": 0.6, "yours": 0.5})
    expected = "By NDCG@10, no ranker is above the base order (0.700); mine is closest with 0.600."
    assert Comparison(rows).headline("NDCG@10") == expected


def test_what_the_intervals_do_not_tell_apart_is_said() -> None:
    rows = table_rows({"base order": 0.59, "mine": 0.60, "yours": 0.595})
    text = Comparison(rows).headline("NDCG@10")
    assert "Its interval and the base order's overlap." in text
    assert "yours with 0.595, and their intervals overlap" in text
    assert "gap" not in text


def test_a_paired_difference_says_more_than_two_intervals() -> None:
    base, mine = table_rows({"base order": 0.59, "mine": 0.60})
    difference = {"mean": 0.01, "low": 0.005, "high": 0.015}
    assert Comparison([base, mine]).against_base("mine", "NDCG@10") == "unclear"
    paired = Comparison([base, {**mine, "against": "base order", "difference": difference}])
    assert paired.against_base("mine", "NDCG@10") == "above"
    elsewhere = Comparison([base, {**mine, "against": "yours", "difference": difference}])
    assert elsewhere.against_base("mine", "NDCG@10") == "unclear"


# What is refused


def test_a_folder_without_a_run_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UsageError, match="seq2slate reproduce"):
        write_report(tmp_path)
    with pytest.raises(UsageError, match="missing"):
        write_report(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("table1.json", '[{"ranker": "a"}]', "table1.json, row 1: metric, mean, low, high missing"),
        ("table1.json", '{"ranker": "a"}', "table1.json: expected a list of rows"),
        ("table1.json", "[1]", "table1.json, row 1: expected an object"),
        ("curves.json", '[{"run": ', "curves.json: not a JSON file"),
        ("figure2.json", '{"list_id": "q", "items": [], "slate": [0], "probabilities": [[1]]}', "list 'q' has 0 items"),
        ("figure2.json", '{"list_id": "q", "items": [], "slate": [3], "probabilities": []}', "must name items"),
        ("battery.json", '{"rows": []}', "battery.json: differences, mine, pointwise missing"),
        ("log-shop.json", '[{"ranker": "a"}]', "log-shop.json, row 1: metric, mean, low, high missing"),
        ("figure3.json", '{"baseline": "b", "rows": [{}]}', "figure3.json, row 1: ranker"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=re.escape(said)):
        write_report(tmp_path)


def test_a_number_that_is_not_one_is_a_dash(tmp_path: Path) -> None:
    rows = json.dumps(table_rows({"seq2slate": float("nan")}))
    assert "NaN" in rows
    (tmp_path / "table1.json").write_text(rows)
    text = write_report(tmp_path).read_text()
    assert "–" in text
    assert "nan" not in text.lower()


def test_the_command_prints_the_path(tmp_path: Path) -> None:
    write_run(tmp_path, {"timing.json": whole_run()["timing.json"]})
    assert seq2slate("report", tmp_path).out == f"{tmp_path / 'report.html'}\n"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert str(empty) in seq2slate("report", empty, code=2).err


# The paper


def latex_tables() -> list[dict[str, list[str]]]:
    """The tables of the paper's source in its order: ranker → cells."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(PAPER.glob("*.txt")))
    tables = []
    for block in re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        rows = {}
        for line in block.split(r"\\"):
            plain = re.sub(r"\\(?:hline|bf|textsc)\b|[{}]", "", line).strip()
            ranker, *cells = [cell.strip() for cell in plain.split("&")]
            if len(cells) in (6, 8) and re.fullmatch(r"-?[\d.]+|--", cells[0]):
                rows[ranker] = cells
        tables.append(rows)
    return [rows for rows in tables if rows]


@pytest.mark.skipif(not PAPER.is_dir(), reason="the paper's source is not there")
def test_the_papers_numbers_are_those_of_its_source() -> None:
    names = {"Greedy policy": "greedy policy", "reinforce": "REINFORCE", "base ranker (no-op)": "base order"}
    found = latex_tables()
    assert len(found) == len(paper.TABLES) == 4
    for (table, ours), source in zip(paper.TABLES.items(), found, strict=True):
        assert [names.get(ranker, ranker) for ranker in source] == list(ours)
        for ranker, cells in source.items():
            metrics = ["MAP", "NDCG@5", "NDCG@10", "rank-gain"][: len(cells) // 2]
            columns = [(dataset, metric) for dataset in ("Yahoo", "Web30k") for metric in metrics]
            for (dataset, metric), cell in zip(columns, cells, strict=True):
                expected = None if cell == "--" else float(cell)
                values = paper.paper_values(table, names.get(ranker, ranker), metric)
                assert values.get(dataset) == expected, (ranker, dataset, metric)


@pytest.mark.skipif(not PAPER.is_dir(), reason="the paper's source is not there")
def test_the_papers_times_are_those_of_its_text() -> None:
    text = " ".join("\n".join(path.read_text(encoding="utf-8") for path in PAPER.glob("*.txt")).split())
    training, inference = paper.TIMES_FASTER["training"], paper.TIMES_FASTER["inference"]
    assert f"a {training:.0f}X decrease in training time and a {inference:.0f}X decrease in inference time" in text
    assert f"needed {paper.REINFORCE_TIMES_SLOWER:.0f}X more time till convergence" in text
