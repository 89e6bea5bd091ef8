"""`seq2slate demo`: the whole flow on lists made on the spot, in a few minutes."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.baselines.cross_fit import cross_fit
from seq2slate.baselines.linear import RidgeRanker
from seq2slate.baselines.order import RandomOrder
from seq2slate.data.clicks import User, label_log, make_user
from seq2slate.data.lists import FloatArray, ItemLists
from seq2slate.data.ranker import Ranker, reorder_lists
from seq2slate.data.summary import summarise
from seq2slate.data.synthetic import generate
from seq2slate.evaluation.evaluate import Evaluation, evaluate
from seq2slate.training.train import Choices, train_model


def run(console: Console, *, n_lists: int, items: float, seed: int) -> None:
    """Generate lists, order them, show them to a simulated user, learn from the clicks, and measure the gain."""
    user = make_user("diverse")
    console.rule("1. Lists")
    lists = generate(n_lists, items=items, seed=seed)
    console.print(str(summarise(lists)))
    train, test = lists.split(0.75, seed=seed)

    console.rule("2. A base ranker puts them in order")
    log = label_log(user, cross_fit(RidgeRanker.fit, train, seed=seed), seed=seed)
    shown = label_log(user, reorder_lists(RidgeRanker.fit(train), test), seed=seed)
    console.print(
        f"A ridge regression of the grades orders {len(train):,} lists to learn from, each by a ranker that did not "
        f"see it, and {len(test):,} to report on."
    )

    console.rule("3. A simulated user looks at them")
    console.print(
        "The user reads from the top and clicks a relevant item only if it is not similar to one clicked before: "
        f"{_clicks_per_list(log):.2f} clicks a list. This is what the user did with one of them:"
    )
    console.print(_reading(shown))

    console.rule("4. A model learns from the clicks")
    console.print(
        "It reads a list in base order and places items one by one, each given those already placed. A tenth of the "
        "lists chooses the epoch."
    )
    model, _ = train_model(log, None, Choices(seed=seed))

    console.rule("5. What the orders are worth")
    console.print(f"On the {len(test):,} lists that nobody has learned from:")
    result = _quality(user, model, shown, seed)
    console.print(result.table())
    console.print(_gain(result))


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


def _quality(user: User, model: Ranker, shown: ItemLists, seed: int) -> Evaluation:
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
