"""What a run does: how every row of every table is made, and the cells that it consists of.

A recipe says how a ranker is made. A row of a table is a recipe with the number of its training lists and seeds. A cell
is a recipe that is trained once, on the clicks of one user, and tables share cells.

Rows that carry the claim (tables 1 and 3: the base order, the paper's network, preset `default`, boosted trees and MMR)
are trained on all lists with all seeds. The other rows have fewer lists and seeds, and every row says how many. All
rows of an ablation have one size, its reference included, so that they differ in one thing each. The exceptions:

- REINFORCE is not regularised, as in the paper, goes without the likelihood of the clicks, and may take more epochs.
- The one-step decoder has no slate to sample in training, so that the policies are the same for it.
- Shuffled data have ten copies of each list, in as many steps as the others take or one epoch where that is more, and
  no prior on the base position, which says nothing there. The likelihood of the clicks stays, though it takes the
  random order for the one that the user scanned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from seq2slate.config import PRESETS, Configuration, configure
from seq2slate.reproduce.sizes import RunSettings

PART_SEEDS = (10, 11, 12)
"""Seeds of the generated training, validation and test lists, and of their clicks."""
USERS = ("diverse", "similar")
"""Tables 1 and 2 are about the first, tables 3 and 4 about the second."""

# Recipes


@dataclass(frozen=True)
class NetworkRecipe:
    """A network, trained as its preset says but for one thing, if any."""

    preset: str
    variant: str = ""
    """What differs from the preset, in a word or two; nothing if empty."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `Reranker` in place of the preset's."""
    shuffled: bool = False
    """Whether it reads every list in random order and not in base order."""
    longer: bool = False
    """Whether it may take more epochs than its preset says."""

    @property
    def config(self) -> Configuration:
        """The preset with the options in place."""
        return configure(self.preset, **self.options)

    @property
    def label(self) -> str:
        """The name of its row, which names the network."""
        return f"seq2slate ({', '.join(filter(None, (self.preset, self.variant)))})"

    def budget(self, settings: RunSettings) -> dict[str, int | None]:
        """Return the options that say how long it may be trained."""
        training, times = self.config.training, settings.reinforce_epochs if self.longer else 1
        epochs = times * training.epochs
        return {
            "epochs": epochs if settings.epochs is None else min(settings.epochs, epochs),
            "steps": None if training.steps is None else times * training.steps,
        }

    def passes(self, settings: RunSettings, n_lists: int) -> int:
        """Return about how often so many training lists are passed over."""
        epochs, steps = self.budget(settings).values()
        assert epochs is not None
        batches = math.ceil(max(1, n_lists) / self.config.training.batch_size)
        return epochs if steps is None else min(epochs, math.ceil(steps / batches))


@dataclass(frozen=True)
class BaselineRecipe:
    """Another ranker that learns, by its name on the command line."""

    kind: str
    is_random: bool = True
    """Whether another seed gives another ranker. Of boosted trees it changes nothing but a sample of the items that
    says where bins end."""


@dataclass(frozen=True)
class ReferenceRecipe:
    """The base order, or a ceiling, which knows the true probabilities; nothing is trained."""


Recipe: TypeAlias = NetworkRecipe | BaselineRecipe | ReferenceRecipe

_PAPERS_ROW = {
    "sampling": "seq2slate",
    "greedy": "greedy policy",
    "smooth-hinge": "smooth-hinge",
    "REINFORCE": "REINFORCE",
    "one-step": "one-step decoder",
    "shuffled data": "shuffled data",
}
"""The row of the paper's tables 2 and 4 that has the same variant."""


def _variants(preset: str) -> list[NetworkRecipe]:
    """Return a preset and its variants; the policy that the preset has is no variant."""
    policies = [policy for policy in ("sampling", "greedy") if policy != _policy(preset)]
    no_order = {"base_prior": False, "position_input": False}
    return [
        NetworkRecipe(preset),
        *(NetworkRecipe(preset, policy, {"policy": policy}) for policy in policies),
        NetworkRecipe(preset, "smooth-hinge", {"loss": "smooth-hinge", "gamma": 1.0}),
        NetworkRecipe(preset, "REINFORCE", {"policy": "reinforce"}, longer=True),
        NetworkRecipe(preset, "one-step", {"decoder": "one-step"}),
        NetworkRecipe(preset, "shuffled data", no_order, shuffled=True),
    ]


def _policy(preset: str) -> str:
    """Return the policy of a preset without making its network, which would load PyTorch."""
    return str(PRESETS[preset].get("policy", "sampling"))


_OF_THE_PAPERS_NETWORK = {one.label: one for one in _variants("paper-tuned")}
_OF_DEFAULT = {
    one.label: one
    for one in (*_variants("default"), NetworkRecipe("default", "without interaction", {"interaction": "none"}))
}
DEFAULT, PAPER_TUNED, PAPER, ONE_STEP, REINFORCE = (
    NetworkRecipe(*parts).label
    for parts in (("default",), ("paper-tuned",), ("paper",), ("paper-tuned", "one-step"), ("paper-tuned", "REINFORCE"))
)
LATER = {"DLCM": "dlcm", "PRM": "prm", "SetRank": "setrank"}
"""Re-rankers of the literature, and their presets."""

RECIPES: Mapping[str, Recipe] = {
    **_OF_DEFAULT,
    **_OF_THE_PAPERS_NETWORK,
    PAPER: NetworkRecipe("paper"),
    **{name: NetworkRecipe(preset) for name, preset in LATER.items()},
    "AdaRank": BaselineRecipe("adarank", is_random=False),
    "Coordinate Ascent": BaselineRecipe("coordinate-ascent"),
    "LambdaMART": BaselineRecipe("lambdamart", is_random=False),
    "ListNet": BaselineRecipe("listnet"),
    "MART": BaselineRecipe("mart", is_random=False),
    "Random Forests": BaselineRecipe("random-forest"),
    "RankBoost": BaselineRecipe("rankboost", is_random=False),
    "RankNet": BaselineRecipe("ranknet"),
    "MMR": BaselineRecipe("mmr", is_random=False),
    "greedy DPP": BaselineRecipe("dpp", is_random=False),
    "base order": ReferenceRecipe(),
    "ceiling on logged labels": ReferenceRecipe(),
    "ceiling when re-shown": ReferenceRecipe(),
}
"""How every row is made, by its name."""


def is_random(name: str) -> bool:
    """Whether another seed gives another ranker."""
    recipe = RECIPES[name]
    return isinstance(recipe, NetworkRecipe) or (isinstance(recipe, BaselineRecipe) and recipe.is_random)


# Tables and figures

CEILINGS = ("ceiling on logged labels", "ceiling when re-shown")
_CLAIM = (DEFAULT, PAPER_TUNED, ONE_STEP, PAPER, "base order", "MART", "LambdaMART", "MMR")
_OTHERS = (
    "AdaRank", "Coordinate Ascent", "ListNet", "Random Forests", "RankBoost", "RankNet", "greedy DPP", *LATER,
)  # fmt: skip
_THREE = ("MAP", "NDCG@5", "NDCG@10")
_SHOWN = ("re-shown clicks@5", "re-shown clicks@10")


class TablePlan(NamedTuple):
    """A table: the user whose clicks are learned from, the recipe of each row, and the metric of each column."""

    user: str
    rows: tuple[str, ...]
    metrics: tuple[str, ...]
    reference: str
    """The row from which the others differ by so much, list by list."""
    claim: tuple[str, ...] = ()
    """The rows that are trained on all lists with all seeds."""


def _rankers(user: str) -> TablePlan:
    return TablePlan(user, (*_CLAIM, *_OTHERS, *CEILINGS), (*_THREE, *_SHOWN), "base order", _CLAIM)


def _ablation(user: str, variants: Mapping[str, NetworkRecipe]) -> TablePlan:
    rows = (*variants, "base order", *CEILINGS)
    return TablePlan(user, rows, (*_THREE, "rank-gain", *_SHOWN), next(iter(variants)))


TABLES: Mapping[str, TablePlan] = {
    "table1": _rankers("diverse"),
    "table2": _ablation("diverse", _OF_THE_PAPERS_NETWORK),
    "table2-default": _ablation("diverse", _OF_DEFAULT),
    "table3": _rankers("similar"),
    "table4": _ablation("similar", _OF_THE_PAPERS_NETWORK),
    "table4-default": _ablation("similar", _OF_DEFAULT),
}
"""The paper's tables, with more rows and columns than it has; those of variants for two networks."""

FIGURE_2 = DEFAULT
"""The network whose probabilities are drawn: its first seed, in the first fold."""
FIGURE_3 = (DEFAULT, PAPER_TUNED, ONE_STEP, "LambdaMART")
"""The rankers whose clicks per position are compared with those of the base order."""
DECODERS = {"sequential": PAPER_TUNED, "one-step": ONE_STEP}
"""The networks whose decoders are timed."""
CONVERGENCE = {"cross-entropy": PAPER_TUNED, "REINFORCE": REINFORCE}
"""The networks whose times to the best epoch are compared."""

PAPER_TARGETS = (*TABLES, "figure2", "figure3", "timing")
TARGETS = (*PAPER_TARGETS, "all", "battery", "logs")
"""What can be asked for; "all" is everything of the paper."""


def paper_row(table: str, name: str) -> str:
    """Return the name that a row has in the paper's table, whether it is there or not.

    >>> paper_row("table1", "seq2slate (paper-tuned)"), paper_row("table1", "MART")
    ('seq2slate', 'MART')
    >>> paper_row("table2", "seq2slate (default, one-step)")
    'one-step decoder'
    """
    recipe = RECIPES[name]
    if not isinstance(recipe, NetworkRecipe) or name in LATER:
        return name
    if TABLES[table].claim:
        return "seq2slate" if name in (PAPER, PAPER_TUNED) else name
    return _PAPERS_ROW.get(recipe.variant or _policy(recipe.preset), name)


# Rows and cells


class Row(NamedTuple):
    """A row of a table: a recipe with the number of its training lists and seeds."""

    recipe: str
    lists: int
    """The first so many training lists; 0 is all of them."""
    seeds: int

    def cells(self, source: str, user: str) -> list[Cell]:
        """Return its cells on the clicks of one user on the lists of one source."""
        return [Cell(source, user, self.recipe, self.lists, seed) for seed in range(self.seeds)]


@dataclass(frozen=True)
class Cell:
    """One recipe on the clicks of one user, with one seed."""

    source: str
    """Where the lists come from: a fold, a world or a log."""
    user: str
    """Who clicked; empty for a real log."""
    recipe: str
    lists: int
    """The first so many training lists; 0 is all of them."""
    seed: int

    @property
    def file(self) -> Path:
        """The path of its result in the folder of the cells."""
        size = f"{self.lists}-" if self.lists else ""
        return Path(self.source) / slug(self.user) / f"{slug(self.recipe)}-{size}{self.seed}.npz"

    def __str__(self) -> str:
        size = [f"{self.lists:,} lists"] if self.lists else []
        source = [] if self.source == fold_name(0) else [self.source]
        user = [f"{self.user}-clicks"] if self.user else []
        return f"{self.recipe} ({', '.join([*size, *source, *user, f'seed {self.seed}'])})"


def slug(name: str) -> str:
    """Return a name as part of a path.

    >>> slug("seq2slate (paper-tuned, one-step)")
    'seq2slate-paper-tuned-one-step'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("'", "")).strip("-")


def fold_name(fold: int) -> str:
    """Return the source of the lists of a fold.

    >>> fold_name(0)
    'fold0'
    """
    return f"fold{fold}"


def rows_of(table: str, settings: RunSettings, n_train: int) -> list[Row]:
    """Return the rows of a table; `n_train` is the number of training lists that there are."""
    plan = TABLES[table]
    return [row_of(name, settings, n_train, carries_claim=name in plan.claim) for name in plan.rows]


def row_of(name: str, settings: RunSettings, n_train: int, *, carries_claim: bool) -> Row:
    """Return a row with all lists and seeds, or with fewer of both, where there are more."""
    takes_all = carries_claim or settings.fewer >= n_train or isinstance(RECIPES[name], ReferenceRecipe)
    seeds = settings.paper_seeds if name == PAPER else settings.seeds if takes_all else settings.fewer_seeds
    return Row(name, 0 if takes_all else settings.fewer, seeds if is_random(name) else 1)


def convergence_rows(settings: RunSettings, n_train: int) -> dict[str, Row]:
    """Return the rows whose times to the best epoch are compared, by the name of the objective."""
    return {name: row_of(recipe, settings, n_train, carries_claim=False) for name, recipe in CONVERGENCE.items()}


def cells_of(target: str, settings: RunSettings, *, sources: Sequence[str], n_train: int, ceilings: bool) -> list[Cell]:
    """Return the cells that a table or figure of the paper needs, each once: those of the claim and the longest first.

    Args:
        target: One of `PAPER_TARGETS`, or "all".
        settings: The sizes of the run.
        sources: The folds of the data.
        n_train: The number of training lists that there are.
        ceilings: Whether the true probabilities are known, so that there are ceilings.
    """
    wanted = dict.fromkeys(
        cell
        for user, row in _wanted(target, settings, n_train)
        for source in sources
        for cell in row.cells(source, user)
        if ceilings or row.recipe not in CEILINGS
    )
    return in_order(wanted, settings, n_train)


def in_order(cells: Sequence[Cell] | Mapping[Cell, Any], settings: RunSettings, n_train: int) -> list[Cell]:
    """Return cells in the order of work: what carries the claim first, and the longest of these first."""
    return sorted(cells, key=lambda cell: (_is_last(cell), -_effort(cell, settings, n_train)))


def _is_last(cell: Cell) -> bool:
    return bool(cell.lists) or cell.recipe not in (*_CLAIM, *CEILINGS)


def _wanted(target: str, settings: RunSettings, n_train: int) -> Iterator[tuple[str, Row]]:
    """Yield user and row of what a target needs."""
    if target == "all":
        for other in PAPER_TARGETS:
            yield from _wanted(other, settings, n_train)
    elif target in TABLES:
        yield from ((TABLES[target].user, row) for row in rows_of(target, settings, n_train))
    elif target == "timing":
        yield from ((USERS[0], row) for row in convergence_rows(settings, n_train).values())
    else:
        names = (FIGURE_2,) if target == "figure2" else (*FIGURE_3, "base order")
        rows = (row_of(name, settings, n_train, carries_claim=True) for name in names)
        yield from ((USERS[0], row._replace(seeds=1) if target == "figure2" else row) for row in rows)


def _effort(cell: Cell, settings: RunSettings, n_train: int) -> float:
    """Return roughly how long a cell takes, to begin with the longest: the last to end should be a short one."""
    recipe, n_lists = RECIPES[cell.recipe], cell.lists or n_train
    if not isinstance(recipe, NetworkRecipe):
        return 0.0 if isinstance(recipe, ReferenceRecipe) else float(n_lists)
    return n_lists * recipe.passes(settings, n_lists) * recipe.config.network.hidden
