"""The sizes of a run: lists, items, seeds and epochs, for the paper's tables, the battery of users and real logs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from seq2slate.errors import UsageError
from seq2slate.simulation.synthetic import WORLDS


@dataclass(frozen=True)
class RunSettings:
    """The sizes of a run: one place for every number, so that nothing else in this package is tuned.

    Generated lists have the shape of Web30k: 136 columns, 110 items a list and, unless told otherwise, as many training
    lists. The quick version shows the same with fewer lists and wider intervals.
    """

    items: float = 110
    """Mean number of items of a generated list."""
    world: str = "web30k"
    """The world of generated lists; the battery has both."""
    features: int | None = None
    """Columns of generated lists; as many as the world has if None."""
    train: int = 19_000
    """Generated training lists."""
    valid: int = 1_000
    """Generated validation lists."""
    test: int = 3_000
    """Generated test lists."""
    seeds: int = 2
    """How often every stochastic method of the rows that carry the claim is trained."""
    paper_seeds: int = 1
    """How often preset `paper` is trained, which takes longer than any other."""
    fewer: int = 4_000
    """Training lists of the other rows."""
    fewer_seeds: int = 1
    """How often their stochastic methods are trained."""
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
        counts = (
            "train",
            "valid",
            "test",
            "seeds",
            "paper_seeds",
            "fewer",
            "fewer_seeds",
            "reinforce_epochs",
            "shuffled_copies",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.world not in WORLDS:
            raise UsageError(f"there is no world {self.world!r}; choose one of {', '.join(WORLDS)}")
        if self.folds < 3:
            raise UsageError(
                f"one fold tests, one validates and the rest trains: folds must be 3 or more, {self.folds=}"
            )


USUAL = RunSettings()
FULL = replace(USUAL, seeds=3, paper_seeds=3, fewer=USUAL.train, fewer_seeds=3)
QUICK = RunSettings(train=3_000, valid=400, test=2_000, seeds=1, fewer=1_000, epochs=10, timed_lists=256)
BATTERY_SIZES = RunSettings(items=40, train=10_000, valid=1_000, test=2_000, seeds=3)
BATTERY_QUICK = replace(BATTERY_SIZES, train=2_000, valid=200, seeds=1)
LOG_SIZES = RunSettings(seeds=3)


def sizes_of(
    target: str,
    *,
    quick: bool = False,
    full: bool = False,
    lists: int | None = None,
    tests: int | None = None,
    items: float | None = None,
    seeds: int | None = None,
) -> RunSettings:
    """Return the sizes of a target, with what is given in place; validation lists are a tenth of `lists`.

    >>> sizes_of("battery", lists=4000, seeds=1).valid
    400
    """
    if quick and full:
        raise UsageError("--quick and --full contradict each other: give one of them")
    if full and target in ("battery", "logs"):
        raise UsageError(f"--full is for the paper's tables: say how large the {target} should be with --seeds")
    usual = FULL if full else QUICK if quick else USUAL
    if target == "battery":
        usual = BATTERY_QUICK if quick else BATTERY_SIZES
    elif target == "logs":
        usual = replace(LOG_SIZES, seeds=1) if quick else LOG_SIZES
    changes: dict[str, Any] = {"train": lists, "test": tests, "items": items}
    changes |= dict.fromkeys(("seeds", "paper_seeds", "fewer_seeds"), seeds)
    if lists is not None:
        changes["valid"] = max(200, lists // 10)
    return replace(usual, **{name: value for name, value in changes.items() if value is not None})
