"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

Eta = Annotated[float | None, typer.Option(min=0, help="Position i is seen with probability 1 / i^eta.")]
Quantile = Annotated[
    float | None, typer.Option("--q", min=0, max=1, help="Share of the pairs of a list that are similar.")
]
RelevantFrom = Annotated[float | None, typer.Option(help="The lowest grade that is relevant; 2 unless given.")]
Seed = Annotated[int, typer.Option(min=0, help="Everything random follows from it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
INTERRUPTED = 130
"""The exit code that shells know for Ctrl-C."""


class UserName(StrEnum):
    """The simulated users."""

    cascade = "cascade"
    diverse = "diverse"
    similar = "similar"
    position = "position"
