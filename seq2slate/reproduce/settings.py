"""How large the experiments are: one place for every size, in a full and a quick version.

Both have the shape of Web30k, 136 columns and 110 items a list. The full version has as many lists as two cores can
take in an hour, a sixth of Web30k's; the quick one shows the same in minutes, with wider intervals. Everything is said
by these numbers; nothing else in this package is tuned.
"""

from __future__ import annotations

from dataclasses import dataclass

from seq2slate.errors import UsageError


@dataclass(frozen=True)
class Settings:
    """The sizes of a run."""

    items: float = 110
    """Items of a generated list, on average."""
    features: int = 136
    """Columns of generated lists."""
    train: int = 3000
    """Generated lists to learn from."""
    valid: int = 1000
    """Generated lists to choose with."""
    test: int = 3000
    """Generated lists to report on."""
    seeds: int = 2
    """How often everything that draws lots is trained."""
    folds: int = 5
    """Parts of a data set that comes without a split; each is tested on once."""
    epochs: int | None = None
    """No network is trained for more epochs than this; as many as its preset says if None."""
    reinforce_epochs: int = 4
    """REINFORCE may take so many times the epochs of the others, as it did in the paper."""
    shuffled_copies: int = 10
    """Copies of every training list for the study of the input order, each in another random order."""
    shuffled_bytes: int = 4_000_000_000
    """What these copies may take in memory; fewer copies are made where ten take more."""
    shown_repeats: int = 20
    """How often a user who acts by chance looks at each slate."""
    timed_lists: int = 512
    """Lists that the two decoders are timed on."""

    def __post_init__(self) -> None:
        for name in ("train", "valid", "test", "seeds", "reinforce_epochs", "shuffled_copies"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.folds < 3:
            raise UsageError(
                f"one fold tests, one validates and the rest trains: folds must be 3 or more, {self.folds=}"
            )


FULL = Settings()
QUICK = Settings(train=1750, valid=400, test=2000, seeds=1, epochs=5, timed_lists=256)

GENERATED_SEEDS = (10, 11, 12)
"""Of the generated lists to learn from, to choose with and to report on."""
