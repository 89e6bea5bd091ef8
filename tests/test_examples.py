"""Every code block of README and docs runs: each page in a folder of its own, from top to bottom."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seq2slate.data.files import write
from seq2slate.data.lists import ItemLists
from seq2slate.reranker import Reranker
from seq2slate.simulation.click_models import click_model, simulate_clicks
from seq2slate.simulation.synthetic import make_synthetic_lists
from tests.examples import ROOT, Block, PageRunner, blocks_of
from tests.test_ranklib import build_stand_in
from tests.web_logs import simulate

GENERATED = ROOT / "docs" / "cli.md"
PAGES = [page for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]) if blocks_of(page)]
lists_of = partial(make_synthetic_lists, 60, items=8, world="topics", features=8)


def given_guide(folder: Path) -> dict[str, Any]:
    """A fold of LETOR text, lists, and the training and test lists of the page."""
    train, valid, test = replace(lists_of(seed=1), relevance_probability=None).split(0.6, 0.2, seed=1)
    (folder / "Fold1").mkdir()
    for name, lists in (("train", train), ("vali", valid), ("test", test)):
        write(lists, folder / "Fold1" / f"{name}.txt")
    write(train, folder / "lists.parquet")
    return {"train": train, "test": test}


def given_training(folder: Path) -> dict[str, Any]:
    """Clicks to train on, and lists to rank."""
    for seed, name in enumerate(("log", "lists", "test")):
        write(simulate_clicks(click_model("diverse"), lists_of(seed=seed), seed=seed), folder / f"{name}.parquet")
    write(log_of_ids(), folder / "clara2_clicks.parquet")
    return {}


def log_of_ids() -> ItemLists:
    """A log with the columns of the real one."""
    rng = np.random.default_rng(1)
    urls = np.concatenate([rng.permutation(30)[:10] for _ in range(80)]).astype(str)
    clicks = rng.random(800) < 0.2
    context = {name: rng.integers(0, n, 80).astype(str) for name, n in (("session", 60), ("query", 20))}
    offsets = np.arange(0, 801, 10)
    return ItemLists(np.empty((800, 0)), offsets, clicks, item_ids=urls, categorical={"url": urls}, context=context)


def given_serving(folder: Path) -> dict[str, Any]:
    """Models whose responses are certain: one sorts by the first of two features, one knows the ids; visitors."""
    rng = np.random.default_rng(1)
    features = rng.random((2000, 2)).astype(np.float32)
    labels = (features[:, 0].reshape(-1, 5) == features[:, 0].reshape(-1, 5).max(axis=1, keepdims=True)).ravel()
    grades, names = 4 * labels.astype(np.float32), ("price", "age")
    lists = ItemLists(features, np.arange(0, 2001, 5), labels, feature_names=names, relevance=grades)
    model = Reranker(seed=1).fit(lists, quiet=True)
    model.save(folder / "model")
    model.save(folder / "models" / "new")
    write(lists[:40], folder / "visitors.parquet")
    order = np.concatenate([rng.permutation(3) for _ in range(300)])
    ids = np.array(["desk-1", "lamp-3", "chair-9"])[order]
    shop = ItemLists(np.empty((900, 0)), np.arange(0, 901, 3), 2 - order, item_ids=ids, categorical={"item_id": ids})
    Reranker(seed=1).fit(shop, quiet=True).save(folder / "ids")
    return {"features": features[:3], "lists": lists[:10]}


def given_experiments(folder: Path) -> dict[str, Any]:
    """The log of an experiment with two arms."""
    simulate(folder / "log.db", "autumn", {"base": 0.2, "new": 0.3}, 400)
    return {}


def given_reproduction(folder: Path) -> dict[str, Any]:
    """A fold of LETOR text, and a log with times."""
    hours = np.random.default_rng(1).permutation(60).astype(np.float64)
    log = simulate_clicks(click_model("diverse"), lists_of(seed=2), seed=2)
    shop = replace(log, relevance=None, relevance_probability=None, context={"hour": hours})
    write(shop, folder / "shop.parquet")
    return given_guide(folder)


GIVEN = {
    "guide.md": given_guide,
    "training.md": given_training,
    "serving.md": given_serving,
    "experiments.md": given_experiments,
    "reproduction.md": given_reproduction,
}
"""What a page takes for granted: files in its folder, and names of its Python blocks."""

BEFORE = {
    '"item_ids": ["lamp-3"': "seq2slate serve ids --log ids.db",
    "1e60": "seq2slate serve model --log log.db",
}
"""What a block with this text takes for granted: a command to run before it."""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageRunner]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    runner = PageRunner(tmp_path)
    yield runner
    runner.stop()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page != GENERATED], ids=lambda page: page.name)
def test_every_block_of_a_page_runs(page: Path, runner: PageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    if "--ranker ranklib" in page.read_text():
        monkeypatch.setenv("RANKLIB_JAR", str(build_stand_in(runner.folder / "stand-in")))
    if page.name in GIVEN:
        runner.names |= GIVEN[page.name](runner.folder)
    for block in blocks_of(page):
        if page.name == "README.md" and (block.language == "python" or block.text.startswith("seq2slate/\n")):
            continue  # a doctest, which pytest collects itself, and the map of the files
        try:
            for text, command in BEFORE.items():
                if text in block.text:
                    runner.run(Block("sh", command, block.line))
            runner.run(block)
        except Exception as error:
            error.add_note(f"the block in line {block.line} of {page.name}")
            raise


def test_a_block_that_is_wrong_fails(runner: PageRunner, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n>>> 1 + 1\n3\n```\n\n```\n$ seq2slate inspect nothing.parquet\n```\n")
    for block in blocks_of(page):
        with pytest.raises(AssertionError):
            runner.run(block)
