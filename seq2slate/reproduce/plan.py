"""What a run does: its sizes, how every row of every table is made, and the cells that it consists of.

A recipe says how a row is made. A cell is a recipe that is trained on the clicks of one user in one fold with one seed.
Tables share cells: the seq2slate of table 1 is that of table 2, too.

The variants of tables 2 and 4 differ from seq2slate, which is the preset `default` with cross-entropy and the sampling
policy, in one thing each. The exceptions:

- REINFORCE is not regularised, as in the paper, goes without the likelihood of the clicks, and may take more epochs.
- The one-step decoder has no slate to sample in training, so that the policies are the same for it.
- Shuffled data have ten copies of each list, in as many steps as the others take or one epoch where that is more, and
  no prior on the base position, which says nothing there. The likelihood of the clicks stays, though it takes the
  random order for the one that the user scanned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from seq2slate.config import Configuration, configure
from seq2slate.errors import UsageError

# Sizes


@dataclass(frozen=True)
class RunSettings:
    """The sizes of a run: one place for every number, so that nothing else in this package is tuned.

    Generated lists have the shape of Web30k, 136 columns and 110 items a list. The full version has as many lists as
    two cores can take in an hour, a sixth of Web30k's; the quick one shows the same in minutes, with wider intervals.
    """

    items: float = 110
    """Mean number of items of a generated list."""
    world: str = "web30k"
    """The world of generated lists."""
    features: int | None = None
    """Columns of generated lists; as many as the world has if None."""
    train: int = 3000
    """Generated training lists."""
    valid: int = 1000
    """Generated validation lists."""
    test: int = 3000
    """Generated test lists."""
    seeds: int = 2
    """How often every stochastic method is trained."""
    folds: int = 5
    """Folds of the cross-validation of a data set without a split."""
    epochs: int | None = None
    """The most epochs of any network; as many as its preset says if None."""
    reinforce_epochs: int = 4
    """REINFORCE may take so many times the epochs of the others, as it did in the paper."""
    shuffled_copies: int = 10
    """Copies of every training list for the study of the input order, each in another random order."""
    shuffled_bytes: int = 4_000_000_000
    """Memory that these copies may take; fewer copies are made where ten take more."""
    shown_repeats: int = 20
    """How often a random user scans each slate."""
    timed_lists: int = 512
    """Lists on which the two decoders are timed."""

    def __post_init__(self) -> None:
        for name in ("train", "valid", "test", "seeds", "reinforce_epochs", "shuffled_copies"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.folds < 3:
            raise UsageError(
                f"one fold tests, one validates and the rest trains: folds must be 3 or more, {self.folds=}"
            )


FULL = RunSettings()
QUICK = RunSettings(train=1750, valid=400, test=2000, seeds=1, epochs=5, timed_lists=256)

PART_SEEDS = (10, 11, 12)
"""Seeds of the generated training, validation and test lists, and of their clicks."""
USERS = ("diverse", "similar")
"""Tables 1 and 2 are about the first, tables 3 and 4 about the second."""

# Recipes


@dataclass(frozen=True)
class NetworkRecipe:
    """A network, trained as its preset says but for some options."""

    preset: str
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

    def epochs(self, settings: RunSettings) -> int:
        """Return the most epochs that the network may take."""
        epochs = self.config.training.epochs * (settings.reinforce_epochs if self.longer else 1)
        return epochs if settings.epochs is None else min(settings.epochs, epochs)


@dataclass(frozen=True)
class BaselineRecipe:
    """Another ranker that learns, by its name on the command line."""

    kind: str
    is_random: bool = True
    """Whether another seed gives another ranker."""


@dataclass(frozen=True)
class ReferenceRecipe:
    """The base order, or a ceiling, which knows the true probabilities; nothing is trained."""


Recipe: TypeAlias = NetworkRecipe | BaselineRecipe | ReferenceRecipe

RECIPES: Mapping[str, Recipe] = {
    "seq2slate": NetworkRecipe("default"),
    "seq2slate, paper's recipe": NetworkRecipe("paper"),
    "greedy policy": NetworkRecipe("default", {"policy": "greedy"}),
    "smooth-hinge": NetworkRecipe("default", {"loss": "smooth-hinge", "gamma": 1.0}),
    "REINFORCE": NetworkRecipe("default", {"policy": "reinforce"}, longer=True),
    "one-step decoder": NetworkRecipe("default", {"decoder": "one-step"}),
    "shuffled data": NetworkRecipe("default", {"base_prior": False}, shuffled=True),
    "without interaction": NetworkRecipe("default", {"interaction": "none"}),
    "DLCM": NetworkRecipe("dlcm"),
    "PRM": NetworkRecipe("prm"),
    "SetRank": NetworkRecipe("setrank"),
    "AdaRank": BaselineRecipe("adarank", is_random=False),
    "Coordinate Ascent": BaselineRecipe("coordinate-ascent"),
    "LambdaMART": BaselineRecipe("lambdamart"),
    "ListNet": BaselineRecipe("listnet"),
    "MART": BaselineRecipe("mart"),
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

# Tables and figures

_OF_THE_PAPER = (
    "AdaRank", "Coordinate Ascent", "LambdaMART", "ListNet", "MART", "Random Forests", "RankBoost", "RankNet",
)  # fmt: skip
_BEYOND = ("base order", "MMR", "greedy DPP", "DLCM", "PRM", "SetRank", "seq2slate, paper's recipe")
_CEILINGS = ("ceiling on logged labels", "ceiling when re-shown")
_RANKERS = ("seq2slate", *_OF_THE_PAPER, *_BEYOND, *_CEILINGS)
_VARIANTS = (
    "seq2slate", "greedy policy", "smooth-hinge", "REINFORCE", "one-step decoder", "shuffled data",
    "without interaction", "base order", *_CEILINGS,
)  # fmt: skip
_THREE = ("MAP", "NDCG@5", "NDCG@10")
_SHOWN = ("re-shown clicks@5", "re-shown clicks@10")


class TablePlan(NamedTuple):
    """A table: the user whose clicks are learned from, the recipe of each row, and the metric of each column."""

    user: str
    rows: tuple[str, ...]
    metrics: tuple[str, ...]


TABLES: Mapping[str, TablePlan] = {
    "table1": TablePlan("diverse", _RANKERS, (*_THREE, *_SHOWN)),
    "table2": TablePlan("diverse", _VARIANTS, (*_THREE, "rank-gain", *_SHOWN)),
    "table3": TablePlan("similar", _RANKERS, (*_THREE, *_SHOWN)),
    "table4": TablePlan("similar", _VARIANTS, (*_THREE, "rank-gain", *_SHOWN)),
}
"""The paper's tables, with more rows and columns than it has."""

FIGURE_2 = "seq2slate"
"""The network whose probabilities are drawn: its first seed, in the first fold."""
FIGURE_3 = ("seq2slate", "one-step decoder", "LambdaMART")
"""The rankers whose clicks per position are compared with those of the base order."""
CONVERGENCE = ("seq2slate", "REINFORCE")
"""The networks whose times to the best epoch are compared."""

TARGETS = (*TABLES, "figure2", "figure3", "timing", "all")
"""What can be asked for."""

# Cells


@dataclass(frozen=True)
class Cell:
    """One recipe on the clicks of one user in one fold, with one seed."""

    user: str
    fold: int
    recipe: str
    seed: int

    @property
    def file(self) -> Path:
        """The path of its result in the folder of the cells."""
        return Path(self.user) / f"fold{self.fold}" / f"{slug(self.recipe)}-{self.seed}.npz"

    def __str__(self) -> str:
        fold = f", fold {self.fold + 1}" if self.fold else ""
        return f"{self.recipe} ({self.user}-clicks{fold}, seed {self.seed})"


def slug(name: str) -> str:
    """Return a name as part of a path.

    >>> slug("seq2slate, paper's recipe")
    'seq2slate-papers-recipe'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("'", "")).strip("-")


def seeds_of(name: str, settings: RunSettings) -> range:
    """Return the seeds that a recipe is trained with: one where training is deterministic."""
    recipe = RECIPES[name]
    is_random = isinstance(recipe, NetworkRecipe) or (isinstance(recipe, BaselineRecipe) and recipe.is_random)
    return range(settings.seeds if is_random else 1)


def cells_of(target: str, settings: RunSettings, *, folds: int, ceilings: bool) -> list[Cell]:
    """Return the cells that a table or figure needs, each once, the longest first.

    Args:
        target: One of `TARGETS`.
        settings: The sizes of the run.
        folds: The number of folds of the data.
        ceilings: Whether the true probabilities are known, so that there are ceilings.
    """
    wanted = dict.fromkeys(
        Cell(user, fold, name, seed)
        for user, name, seeds in _wanted(target, settings)
        for fold in range(folds)
        for seed in seeds
        if ceilings or name not in _CEILINGS
    )
    return sorted(wanted, key=lambda cell: -_effort(RECIPES[cell.recipe], settings))


def _wanted(target: str, settings: RunSettings) -> Iterator[tuple[str, str, range]]:
    """Yield user, recipe and seeds of what a target needs."""
    if target == "all":
        for other in TARGETS[:-1]:
            yield from _wanted(other, settings)
        return
    if target in TABLES:
        user, names = TABLES[target].user, TABLES[target].rows
    else:
        needs = {"figure2": (FIGURE_2,), "figure3": (*FIGURE_3, "base order"), "timing": CONVERGENCE}
        user, names = USERS[0], needs[target]
    for name in names:
        yield user, name, seeds_of(name, settings)[: 1 if target == "figure2" else None]


def _effort(recipe: Recipe, settings: RunSettings) -> float:
    """Return roughly how long a recipe takes, to begin with the longest: the last to end should be a short one."""
    if not isinstance(recipe, NetworkRecipe):
        return 0.0
    network = recipe.config.network
    return recipe.epochs(settings) * network.hidden * (1 if network.decoder == "one-step" else 4)
