"""The tour: lists, a base ranker, a service with visitors, a model that learns from its log, and a live experiment.

Where the packages of the service are not installed, the simulated user looks at the lists without one, and the tour
ends before the experiment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.baselines.linear import RidgeRanker
from seq2slate.baselines.order import RandomOrder
from seq2slate.data.files import write
from seq2slate.data.lists import FloatArray, ItemLists
from seq2slate.data.ranker import Ranker, reorder_lists
from seq2slate.data.summary import summarise
from seq2slate.demo.folder import Folder, fresh_folder
from seq2slate.evaluation.evaluate import Evaluation, evaluate
from seq2slate.reranker import Reranker
from seq2slate.simulation.click_models import ClickModel, click_model, simulate_clicks
from seq2slate.simulation.synthetic import make_synthetic_lists

if TYPE_CHECKING:
    from seq2slate.demo.closed_loop import Loop

_FEATURES = 24
_GRADED, _PAST = 1 / 6, 1 / 3  # of the lists; the others are new when the model has learned
_REPORTED = 1000  # lists at most, offline


@dataclass(frozen=True)
class _Stage:
    """What all steps share."""

    console: Console
    folder: Folder
    user: ClickModel
    seed: int

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        self.console.print(Text(sentence))

    def command(self, *words: object) -> None:
        """Print the command that does the same."""
        self.console.print(Text(" ".join(("$", *map(str, words)))), style="dim", soft_wrap=True)


def run(console: Console, *, n_lists: int, items: float, seed: int, out: str | os.PathLike[str]) -> None:
    """Order lists, show them to visitors, learn from the clicks, and let the new order meet the old one live."""
    stage = _Stage(console, fresh_folder(out), click_model("diverse"), seed)
    past, new = _ordered_lists(stage, n_lists, items)
    try:
        import seq2slate.serving.server  # noqa: F401 - all that the service will need
    except ModuleNotFoundError as missing:
        _without_service(stage, past, new, str(missing.name))
    else:
        _with_service(stage, past, new)


def _ordered_lists(stage: _Stage, n_lists: int, items: float) -> tuple[ItemLists, ItemLists]:
    """Return lists to go live with and new ones for later, all in base order."""
    stage.console.rule("1. Lists")
    lists = make_synthetic_lists(n_lists, items=items, features=_FEATURES, seed=stage.seed)
    stage.console.print(str(summarise(lists)))
    graded, past, new = lists.split(_GRADED, _PAST, seed=stage.seed)

    stage.console.rule("2. A base ranker puts them in order")
    base = RidgeRanker().fit(graded)
    stage.say(
        f"A ridge regression of the grades of {len(graded):,} lists orders all others: {len(past):,} that are shown "
        f"first, and {len(new):,} that nobody will have learned from."
    )
    return reorder_lists(base, past), reorder_lists(base, new)


def _without_service(stage: _Stage, past: ItemLists, new: ItemLists, missing: str) -> None:
    stage.console.rule("3. A simulated user looks at them")
    log = simulate_clicks(stage.user, past, stage.seed)
    _describe_clicks(stage, log)
    _learn(stage, log, new)
    stage.say(
        f"Next, a live experiment would let the new order meet the old one. That needs {missing}: "
        "pip install 'seq2slate[serve]', and run the demo again."
    )


def _with_service(stage: _Stage, past: ItemLists, new: ItemLists) -> None:
    from seq2slate.demo import closed_loop
    from seq2slate.demo.report import write_report
    from seq2slate.demo.service import running_service

    folder, longest = stage.folder, max(int(lists.lengths.max()) for lists in (past, new))
    stage.console.rule("3. The base order goes live")
    closed_loop.write_live(folder)
    stage.command("seq2slate serve --experiment", folder.experiment, "--log", folder.log)
    with running_service(folder, max_items=longest) as url:
        stage.say(
            f"{url} shows in a browser what happens, until the tour ends. Visitors ask it for slates over HTTP, see "
            "whole lists in base order, and send their clicks back."
        )
        _describe_clicks(stage, simulate_clicks(stage.user, past, stage.seed))
        live = closed_loop.visit_live(folder, url, past, stage.user, stage.seed)
        stage.say(closed_loop.agreement(live, closed_loop.read_counts(folder, closed_loop.LIVE)))
        stage.command("seq2slate log export", folder.log, folder.shown)
        log = closed_loop.read_log(folder)
        _learn(stage, log, new)

        stage.console.rule("6. The new order meets the old one")
        write(new, folder.new_lists)
        closed_loop.start_trial(folder, url)
        stage.say(
            f"The service has loaded {folder.experiment} anew: half of the visitors now meet the model. Slates have "
            f"{closed_loop.SLOTS} slots in both arms, so that the order decides what is seen, and the lists are new."
        )
        stage.command("seq2slate traffic", url, folder.new_lists, "--requests", len(new), "--seed", stage.seed + 1)
        trial = closed_loop.visit_trial(folder, url, new, stage.user, stage.seed + 1)
        stage.say(closed_loop.agreement(trial, closed_loop.read_counts(folder, closed_loop.TRIAL)))
        loop = closed_loop.Loop(live, trial, closed_loop.analyse_trial(folder))

    stage.console.rule("7. What the experiment says")
    write_report(folder, loop)
    _conclude(stage, loop)


def _conclude(stage: _Stage, loop: Loop) -> None:
    from seq2slate.demo.closed_loop import next_commands, verdict
    from seq2slate.experiments.tables import analysis_tables

    folder = stage.folder
    stage.command("seq2slate experiment", folder.log)
    stage.console.print(analysis_tables(loop.analysis))
    stage.console.print()
    stage.console.print(Text(verdict(loop.analysis), style="bold"))
    stage.say(f"{folder.report} has the same with pictures, figure 3 of the paper among them. To go on by hand:")
    for command in next_commands(folder):
        stage.command(command)


def _describe_clicks(stage: _Stage, shown: ItemLists) -> None:
    stage.say(
        "The simulated user reads from the top and clicks a relevant item only if it is not similar to one clicked "
        f"before: {_clicks_per_list(shown):.2f} clicks a list. This is one of them:"
    )
    stage.console.print(_reading(shown))


def _learn(stage: _Stage, log: ItemLists, new: ItemLists) -> None:
    """Train on the log, and look at what came out before anybody sees it."""
    stage.console.rule("4. A model learns from the clicks")
    stage.say(
        "It reads a list in base order and places items one by one, each given those already placed. A tenth of the "
        "lists chooses the epoch."
    )
    stage.command("seq2slate train", stage.folder.shown, "--out", stage.folder.model, "--seed", stage.seed)
    model = Reranker(seed=stage.seed).fit(log)
    model.save(stage.folder.model)

    stage.console.rule("5. What the orders are worth")
    shown = simulate_clicks(stage.user, new[:_REPORTED], stage.seed)
    stage.say(f"On {len(shown):,} of the new lists, before anybody sees them:")
    result = _quality(stage.user, model, shown, stage.seed)
    stage.console.print(result.table())
    stage.say(_gain(result))


def _clicks_per_list(log: ItemLists) -> float:
    return float(log.batch().labels.sum(axis=1).mean())


def _reading(shown: ItemLists) -> Table:
    """Return the top of a list in which relevant items were passed over between clicks."""
    table = Table("position", "item", "grade", "clicked", "passed over")
    lists = shown.truncate(10)
    labels, grades = lists.batch().labels, lists.batch().pad(_grades(lists))
    passed_over = (grades >= 2) & (labels == 0)
    q = int((np.minimum(passed_over.sum(axis=1), 3) + np.minimum(labels.sum(axis=1), 3)).argmax())
    for position, item in enumerate(lists[q].item_ids.to_pylist()):
        clicked = labels[q, position] > 0
        why = "similar to an item clicked before" if passed_over[q, position] else ""
        table.add_row(str(position + 1), item, f"{grades[q, position]:g}", "●" if clicked else "", why)
    return table


def _grades(lists: ItemLists) -> FloatArray:
    assert lists.relevance is not None, "a simulated user keeps the grades beside the clicks"
    return lists.relevance


def _quality(user: ClickModel, model: Ranker, shown: ItemLists, seed: int) -> Evaluation:
    rankers: dict[str, Ranker] = {
        "random": RandomOrder(seed),
        "seq2slate": model,
        "ceiling (logged)": LoggedCeiling(user, seed=seed),
        "ceiling (re-shown)": ShownCeiling(user, seed=seed),
    }
    ceilings = [name for name in rankers if name.startswith("ceiling")]
    return evaluate(rankers, shown, user=user, ceiling=ceilings, seed=seed)


def _gain(result: Evaluation) -> str:
    """Say in a sentence what re-ranking brought."""
    parts = []
    for measure, words in (("NDCG@10", "NDCG@10"), ("re-shown clicks@10", "clicks in the first ten slots")):
        base, model = (result.row(name, measure).mean for name in ("base", "seq2slate"))
        parts.append(f"{model / base - 1:+.1%} {words}")
    return f"seq2slate against the base order: {' and '.join(parts)} when the user sees the new slates."
