"""The closed loop: the base order goes live, its log is learned from, and the new model meets it in an experiment.

Live, the page shows whole lists, so that the log says of every item whether it was clicked: from a page of ten slots
nobody learns what the other items are worth. In the experiment the page has ten slots in both arms, and the order
decides what is seen at all. The lists of the experiment are new, and so is who sees what.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from seq2slate.atomic import atomic_path
from seq2slate.data.files import read
from seq2slate.data.lists import ItemLists
from seq2slate.demo.folder import Folder
from seq2slate.demo.service import reload
from seq2slate.experiments.analysis import Analysis, analyse
from seq2slate.experiments.counts import Counts
from seq2slate.log.export import export
from seq2slate.log.impression_log import open_log
from seq2slate.serving.traffic import Traffic, send_traffic
from seq2slate.simulation.click_models import ClickModel

BASE, MODEL = "base", "seq2slate"
"""The arms."""
LIVE, TRIAL = "live", "trial"
"""The experiments: what is live has one arm."""
SLOTS = 10
"""Of the page in the experiment."""
_BASE_ARM = f'[[arms]]\nname = "{BASE}"\nmodel = "base"    # the order as it comes\n'
_MODEL_ARM = f'[[arms]]\nname = "{MODEL}"\nmodel = "model"   # the folder beside this file\n'


@dataclass(frozen=True)
class Loop:
    """The two rounds, as the visitors counted them and as the log has them."""

    live: Traffic
    trial: Traffic
    analysis: Analysis


def write_live(folder: Folder) -> None:
    """Let the base order be all that is served."""
    _write_experiment(folder, f'name = "{LIVE}"\n\n{_BASE_ARM}')


def visit_live(folder: Folder, url: str, lists: ItemLists, user: ClickModel, seed: int) -> Traffic:
    """Show every list once, whole and in base order, one visitor after the other.

    The log keeps what it is sent in the order in which it comes, and training depends on the order of its lists: with
    several visitors at a time, the same seed would not give the same model again.
    """
    longest = int(lists.lengths.max())
    return _visit(folder, LIVE, url, lists, user, slots=longest, concurrency=1, seed=seed)


def read_log(folder: Folder) -> ItemLists:
    """Export the log, and read it back as lists to learn from."""
    with open_log(folder.log, create=False) as store:
        export(store, folder.shown)
    return read(folder.shown)


def start_trial(folder: Folder, url: str) -> None:
    """Let half of the visitors meet the new model from now on; the service goes on without a pause."""
    _write_experiment(folder, f'name = "{TRIAL}"\n\n{_BASE_ARM}\n{_MODEL_ARM}')
    reload(url)


def visit_trial(folder: Folder, url: str, lists: ItemLists, user: ClickModel, seed: int) -> Traffic:
    """Show every list once, on a page of ten slots."""
    return _visit(folder, TRIAL, url, lists, user, slots=SLOTS, concurrency=8, seed=seed)


def analyse_trial(folder: Folder) -> Analysis:
    """Compare the arms, from nothing but the log."""
    return analyse(read_counts(folder, TRIAL), control=BASE, weights={BASE: 1, MODEL: 1})


def read_counts(folder: Folder, experiment: str) -> Counts:
    """Return what the log has counted."""
    with open_log(folder.log, create=False) as store:
        return store.counts(experiment)


def agreement(traffic: Traffic, counts: Counts) -> str:
    """Say whether the log has what the visitors counted themselves."""
    seen = {arm: (one.slates, one.clicks) for arm, one in traffic.arms.items()}
    logged = {arm: (one.impressions, one.clicks) for arm, one in counts.arms.items()}
    slates, clicks = (sum(numbers[which] for numbers in logged.values()) for which in (0, 1))
    said = f"{slates:,} slates and {clicks:,} clicks"
    if seen == logged:
        return f"The log has {said}: exactly what the visitors counted themselves."
    return f"The log has {said}, which is not what the visitors counted: {traffic.uncertain:,} answers were lost."


def verdict(analysis: Analysis) -> str:
    """Say in a sentence who won."""
    arms = {arm.arm: arm for arm in analysis.arms}
    difference = arms[MODEL].against_control if MODEL in arms else None
    if difference is None or difference.any_time is None:
        return "Too few visitors came to compare the arms: take more lists."
    if analysis.sample_ratio.mismatch:
        return "The arms did not get the visitors that their weights promise: no comparison means much."
    interval = difference.any_time
    about = f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f} clicks in 100 slates, at any look"
    change = f"{abs(difference.lift):.1%} {'more' if difference.value > 0 else 'fewer'} clicks than the base order"
    if interval.low > 0 or interval.high < 0:
        return f"The model that learned from the base order's log gets {change} ({about})."
    return f"The two are not told apart: the model gets {change}, but the interval holds 0 ({about})."


def next_commands(folder: Folder) -> list[str]:
    """Return what to type to go on where the demo ended."""
    return [
        f"seq2slate serve --experiment {folder.experiment} --log {folder.log}",
        f"seq2slate traffic http://127.0.0.1:8080 {folder.new_lists} --seed 7",
        f"seq2slate experiment {folder.log}",
    ]


def _visit(
    folder: Folder, name: str, url: str, lists: ItemLists, user: ClickModel, *, slots: int, concurrency: int, seed: int
) -> Traffic:
    traffic = send_traffic(url, lists, user, requests=len(lists), concurrency=concurrency, k=slots, seed=seed)
    counted = json.loads(folder.visitors.read_text(encoding="utf-8")) if folder.visitors.exists() else {}
    counted[name] = json.loads(traffic.to_json())
    folder.visitors.write_text(json.dumps(counted, indent=2), encoding="utf-8")
    return traffic


def _write_experiment(folder: Folder, text: str) -> None:
    with atomic_path(folder.experiment) as partial:
        partial.write_text(text, encoding="utf-8")
