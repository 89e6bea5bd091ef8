"""What is compared: every row of every table, and how it is made. A cell is one of them, trained once.

A recipe is trained on the clicks of one user in one fold with one seed. Rows of different tables share it: the
seq2slate of table 1 is that of table 2, too.

The variants of tables 2 and 4 differ from seq2slate, which is the preset `default` with cross-entropy and the sampling
policy, in one thing each. The exceptions:

- REINFORCE is not regularised, as in the paper, goes without the likelihood of the clicks, and may take more epochs.
- The one-step decoder has no slate to sample in training, so that the policies are the same for it.
- Shuffled data have ten copies of each list, in as many steps as the others take or one pass where that is more, and
  no prior on the base position, which says nothing there. The likelihood of the clicks stays, though it takes the
  random order for the one that the user scanned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from seq2slate.errors import UsageError
from seq2slate.reproduce.settings import Settings
from seq2slate.training.config import Configuration, configure


@dataclass(frozen=True)
class Network:
    """A network, trained as its preset says."""

    preset: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options in place of the preset's."""
    shuffled: bool = False
    """Whether it reads every list in random order and not in base order."""
    longer: bool = False
    """Whether it may take more epochs than its preset says."""

    @property
    def config(self) -> Configuration:
        """The configuration that preset and options come to."""
        return configure(self.preset, **self.options)


@dataclass(frozen=True)
class Learner:
    """One of the baselines."""

    kind: str
    draws_lots: bool = True
    """Whether another seed gives another ranker."""


@dataclass(frozen=True)
class Reference:
    """Something that needs no training: `base order`, or a ceiling, which needs to know the true probabilities."""

    kind: str


Recipe: TypeAlias = Network | Learner | Reference


RECIPES: Mapping[str, Recipe] = {
    "seq2slate": Network("default"),
    "seq2slate, paper's recipe": Network("paper"),
    "greedy policy": Network("default", {"policy": "greedy"}),
    "smooth-hinge": Network("default", {"loss": "smooth-hinge", "gamma": 1.0}),
    "REINFORCE": Network("default", {"policy": "reinforce"}, longer=True),
    "one-step decoder": Network("default", {"decoder": "one-step"}),
    "shuffled data": Network("default", {"base_prior": False}, shuffled=True),
    "without similarity": Network("default", {"interaction": "none", "click_likelihood_weight": 0.0}),
    "DLCM": Network("dlcm"),
    "PRM": Network("prm"),
    "SetRank": Network("setrank"),
    "AdaRank": Learner("adarank", draws_lots=False),
    "Coordinate Ascent": Learner("coordinate-ascent"),
    "LambdaMART": Learner("lambdamart"),
    "ListNet": Learner("listnet"),
    "MART": Learner("mart"),
    "Random Forests": Learner("random-forest"),
    "RankBoost": Learner("rankboost", draws_lots=False),
    "RankNet": Learner("ranknet"),
    "MMR": Learner("mmr", draws_lots=False),
    "greedy DPP": Learner("dpp", draws_lots=False),
    "base order": Reference("base order"),
    "ceiling on logged labels": Reference("ceiling on logged labels"),
    "ceiling when re-shown": Reference("ceiling when re-shown"),
}
"""Everything that is trained or looked up, by name."""

_OF_THE_PAPER = (
    "AdaRank", "Coordinate Ascent", "LambdaMART", "ListNet", "MART", "Random Forests", "RankBoost", "RankNet",
)  # fmt: skip
_BEYOND = ("base order", "MMR", "greedy DPP", "DLCM", "PRM", "SetRank", "seq2slate, paper's recipe")
_CEILINGS = ("ceiling on logged labels", "ceiling when re-shown")
_RANKERS = ("seq2slate", *_OF_THE_PAPER, *_BEYOND, *_CEILINGS)
_VARIANTS = (
    "seq2slate", "greedy policy", "smooth-hinge", "REINFORCE", "one-step decoder", "shuffled data",
    "without similarity", "base order", *_CEILINGS,
)  # fmt: skip
_THREE = ("MAP", "NDCG@5", "NDCG@10")
_SHOWN = ("re-shown clicks@5", "re-shown clicks@10")


class Comparison(NamedTuple):
    """A table: whose clicks, which rows, and which columns."""

    user: str
    rows: tuple[str, ...]
    """The recipe of each row."""
    metrics: tuple[str, ...]


TABLES: Mapping[str, Comparison] = {
    "table1": Comparison("diverse", _RANKERS, (*_THREE, *_SHOWN)),
    "table2": Comparison("diverse", _VARIANTS, (*_THREE, "rank-gain", *_SHOWN)),
    "table3": Comparison("similar", _RANKERS, (*_THREE, *_SHOWN)),
    "table4": Comparison("similar", _VARIANTS, (*_THREE, "rank-gain", *_SHOWN)),
}
"""The paper's tables, with more rows and columns than it has."""

FIGURE_2 = "seq2slate"
"""Whose probabilities are drawn: its first seed, in the first fold."""
FIGURE_3 = ("seq2slate", "one-step decoder", "LambdaMART")
"""Whose clicks per position are compared with those of the base order."""
CONVERGENCE = ("seq2slate", "REINFORCE")
"""Whose times to the best epoch are compared."""

TARGETS = (*TABLES, "figure2", "figure3", "timing", "all")
"""What can be asked for."""


@dataclass(frozen=True)
class Cell:
    """One recipe on the clicks of one user in one fold, with one seed."""

    user: str
    fold: int
    recipe: str
    seed: int

    @property
    def file(self) -> Path:
        """Where its result lies in the folder of the cells."""
        return Path(self.user) / f"fold{self.fold}" / f"{slug(self.recipe)}-{self.seed}.npz"

    def __str__(self) -> str:
        fold = f", fold {self.fold + 1}" if self.fold else ""
        return f"{self.recipe} ({self.user}-clicks{fold}, seed {self.seed})"


def slug(name: str) -> str:
    """Return a name that a file can have.

    >>> slug("seq2slate, paper's recipe")
    'seq2slate-papers-recipe'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("'", "")).strip("-")


def seeds_of(name: str, settings: Settings) -> range:
    """Return the seeds that a recipe is trained with: one where no lots are drawn."""
    recipe = RECIPES[name]
    draws_lots = isinstance(recipe, Network) or (isinstance(recipe, Learner) and recipe.draws_lots)
    return range(settings.seeds if draws_lots else 1)


def cells_of(target: str, settings: Settings, *, folds: int, ceilings: bool) -> list[Cell]:
    """Return the cells that a table or figure needs, each once, the longest first; ceilings where they are known."""
    wanted = dict.fromkeys(
        Cell(user, fold, name, seed)
        for user, name, seeds in _wanted(target, settings)
        for fold in range(folds)
        for seed in seeds
        if ceilings or name not in _CEILINGS
    )
    return sorted(wanted, key=lambda cell: -_effort(RECIPES[cell.recipe], settings))


def _wanted(target: str, settings: Settings) -> Iterator[tuple[str, str, range]]:
    """Yield user, recipe and seeds of what a target needs."""
    if target not in TARGETS:
        raise UsageError(f"there is nothing called {target!r} to reproduce; choose one of {', '.join(TARGETS)}")
    if target == "all":
        for other in TARGETS[:-1]:
            yield from _wanted(other, settings)
        return
    if target in TABLES:
        user, names = TABLES[target].user, TABLES[target].rows
    else:
        needs = {"figure2": (FIGURE_2,), "figure3": (*FIGURE_3, "base order"), "timing": CONVERGENCE}
        user, names = "diverse", needs[target]
    for name in names:
        yield user, name, seeds_of(name, settings)[: 1 if target == "figure2" else None]


def epochs_of(recipe: Network, settings: Settings) -> int:
    """Return how many epochs a network gets at most."""
    epochs = recipe.config.training.epochs * (settings.reinforce_epochs if recipe.longer else 1)
    return epochs if settings.epochs is None else min(settings.epochs, epochs)


def _effort(recipe: Recipe, settings: Settings) -> float:
    """Return roughly how long a recipe takes, to begin with the longest: the last to end should be a short one."""
    if not isinstance(recipe, Network):
        return 0.0
    network = recipe.config.network
    steps = 1 if network.decoder == "one-step" else 4
    return epochs_of(recipe, settings) * network.hidden * steps
