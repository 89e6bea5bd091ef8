"""The tour: lists, a base ranker, a service with visitors, a model trained on its log, and a live experiment.

Where the packages of the service are not installed, clicks are simulated without one, and the tour ends before the
experiment.
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
from seq2slate.data.files import write
from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import RandomOrder, Ranker, reorder_lists
from seq2slate.data.summary import summarise
from seq2slate.demo.folder import DemoFolder, fresh_folder
from seq2slate.evaluation.evaluate import Evaluation, evaluate
from seq2slate.reranker import Reranker
from seq2slate.simulation.click_models import ClickModel, click_model, simulate_clicks
from seq2slate.simulation.synthetic import make_synthetic_lists

if TYPE_CHECKING:
    from seq2slate.demo.closed_loop import ClosedLoop

_GRADED, _PAST = 1 / 6, 1 / 3  # of the lists; the others are new to the model
_TESTED = 1000  # lists at most, offline


@dataclass(frozen=True)
class _Tour:
    """What all steps share."""

    console: Console
    folder: DemoFolder
    user: ClickModel
    seed: int

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        self.console.print(Text(sentence))

    def command(self, *words: object) -> None:
        """Print the command that does the same."""
        self.console.print(Text(" ".join(("$", *map(str, words)))), style="dim", soft_wrap=True)


def run(console: Console, *, n_lists: int, items: float, seed: int, out: str | os.PathLike[str]) -> None:
    """Order lists, show them to visitors, train on the clicks, and test the new order against the old one live.

    Args:
        console: Where the story is told.
        n_lists: The number of generated lists: a sixth for the base ranker, a third to go live, half to test with.
        items: Their mean number of items.
        seed: Of everything random.
        out: The folder to write; one of an earlier demo is emptied.
    """
    tour = _Tour(console, fresh_folder(out), click_model("diverse"), seed)
    past, new = _ordered_lists(tour, n_lists, items)
    try:
        import seq2slate.serving.server  # noqa: F401 - imports all that the service needs
    except ModuleNotFoundError as missing:
        _without_service(tour, past, new, str(missing.name))
    else:
        _with_service(tour, past, new)


def _ordered_lists(tour: _Tour, n_lists: int, items: float) -> tuple[ItemLists, ItemLists]:
    """Return the lists to go live with and the new ones of the experiment, all in base order."""
    tour.console.rule("1. Lists")
    lists = make_synthetic_lists(n_lists, items=items, seed=tour.seed)
    tour.console.print(str(summarise(lists)))
    graded, past, new = lists.split(_GRADED, _PAST, seed=tour.seed)

    tour.console.rule("2. A base ranker puts them in order")
    base = RidgeRanker().fit(graded)
    tour.say(
        f"A ridge regression on the grades of {len(graded):,} lists orders all others: {len(past):,} that go live "
        f"first, and {len(new):,} on which no ranker is trained."
    )
    return reorder_lists(base, past), reorder_lists(base, new)


def _without_service(tour: _Tour, past: ItemLists, new: ItemLists, missing: str) -> None:
    tour.console.rule("3. A simulated user looks at them")
    log = simulate_clicks(tour.user, past, tour.seed)
    _describe_clicks(tour, log)
    _train_and_evaluate(tour, log, new)
    tour.say(
        f"Next, a live experiment would test the new order against the old one. That needs {missing}: "
        "pip install 'seq2slate[serve]', and run the demo again."
    )


def _with_service(tour: _Tour, past: ItemLists, new: ItemLists) -> None:
    from seq2slate.demo import closed_loop

    folder, longest = tour.folder, max(int(lists.lengths.max()) for lists in (past, new))
    tour.console.rule("3. The base order goes live")
    tour.command("seq2slate serve --experiment", folder.experiment, "--log", folder.log)
    with closed_loop.running_service(folder, max_items=longest) as url:
        tour.say(
            f"{url} shows in a browser what happens, until the tour ends. Visitors ask it for slates over HTTP, see "
            "whole lists in base order, and send their clicks back."
        )
        _describe_clicks(tour, simulate_clicks(tour.user, past, tour.seed))
        live = closed_loop.visit_live(folder, url, past, tour.user, tour.seed)
        tour.say(closed_loop.agreement(live, closed_loop.read_counts(folder, closed_loop.LIVE)))
        tour.command("seq2slate log export", folder.log, folder.shown)
        _train_and_evaluate(tour, closed_loop.read_log(folder), new)

        tour.console.rule("6. The new order meets the old one")
        write(new, folder.new_lists)
        closed_loop.start_trial(folder, url)
        tour.say(
            f"The service has reloaded {folder.experiment}: half of the visitors now meet the model. Slates have "
            f"{closed_loop.SLOTS} slots in both arms, so that the order decides what is seen, and the lists are new."
        )
        tour.command("seq2slate traffic", url, folder.new_lists, "--requests", len(new), "--seed", tour.seed + 1)
        trial = closed_loop.visit_trial(folder, url, new, tour.user, tour.seed + 1)
        tour.say(closed_loop.agreement(trial, closed_loop.read_counts(folder, closed_loop.TRIAL)))
    _conclude(tour, closed_loop.ClosedLoop(live, trial, closed_loop.analyse_trial(folder)))


def _conclude(tour: _Tour, loop: ClosedLoop) -> None:
    from seq2slate.demo.closed_loop import next_commands, verdict
    from seq2slate.demo.report import write_demo_report
    from seq2slate.experiments.analysis import analysis_tables

    tour.console.rule("7. What the experiment says")
    write_demo_report(tour.folder, loop)
    tour.command("seq2slate experiment", tour.folder.log)
    tour.console.print(analysis_tables(loop.analysis))
    tour.console.print()
    tour.console.print(Text(verdict(loop.analysis), style="bold"))
    tour.say(f"{tour.folder.report} has the same with pictures, figure 3 of the paper among them. To go on by hand:")
    for command in next_commands(tour.folder):
        tour.command(command)


def _describe_clicks(tour: _Tour, shown: ItemLists) -> None:
    tour.say(
        "The simulated user reads from the top and clicks a relevant item only if it is not similar to one clicked "
        f"before: {shown.batch().labels.sum(axis=1).mean():.2f} clicks a list. This is one of them:"
    )
    tour.console.print(_reading(shown))


def _train_and_evaluate(tour: _Tour, log: ItemLists, new: ItemLists) -> None:
    """Train on the log, and evaluate offline before anybody sees the new order."""
    tour.console.rule("4. A model is trained on the clicks")
    tour.say(
        "It reads a list in base order and places items one by one, each given those already placed. A tenth of the "
        "lists chooses the epoch."
    )
    tour.command("seq2slate train", tour.folder.shown, "--out", tour.folder.model, "--seed", tour.seed)
    model = Reranker(seed=tour.seed).fit(log)
    model.save(tour.folder.model)

    tour.console.rule("5. What the orders are worth")
    shown = simulate_clicks(tour.user, new[:_TESTED], tour.seed)
    tour.say(f"On {len(shown):,} of the new lists, before anybody sees them:")
    result = _quality(tour.user, model, shown, tour.seed)
    tour.console.print(result)
    tour.say(_gain(result))


def _reading(shown: ItemLists) -> Table:
    """Return the top of a list in which relevant items were passed over between clicks."""
    table = Table("position", "item", "grade", "clicked", "passed over")
    lists = shown.truncate(10)
    assert lists.relevance is not None, "simulated clicks keep the grades beside them"
    labels, grades = lists.batch().labels, lists.batch().pad(lists.relevance)
    passed_over = (grades >= 2) & (labels == 0)
    q = int((np.minimum(passed_over.sum(axis=1), 3) + np.minimum(labels.sum(axis=1), 3)).argmax())
    for position, item in enumerate(lists[q].item_ids.to_pylist()):
        clicked = labels[q, position] > 0
        why = "similar to an item clicked before" if passed_over[q, position] else ""
        table.add_row(str(position + 1), item, f"{grades[q, position]:g}", "●" if clicked else "", why)
    return table


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
    """Say in a sentence what re-ranking gains in both views."""
    parts = []
    for measure, words in (("NDCG@10", "NDCG@10"), ("re-shown clicks@10", "clicks in the first ten slots")):
        base, model = (result.row(name, measure).mean for name in ("base", "seq2slate"))
        parts.append(f"{model / base - 1:+.1%} {words}")
    return f"seq2slate against the base order: {' and '.join(parts)} when the user sees the new slates."
