"""From an address to a page. Reads the log and draws, so it runs in a thread; whatever is asked for gets an answer.

A step that there is not is the nearest one; a slate or an experiment that there is not is 404; a log that cannot be
read is 503.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from seq2slate.data.impressions import is_storable
from seq2slate.errors import Seq2SlateError
from seq2slate.serving.web.attention import attention_of
from seq2slate.serving.web.experiment_page import experiment_page
from seq2slate.serving.web.frame import Page, problem
from seq2slate.serving.web.overview import Source, read_overview
from seq2slate.serving.web.slate_page import slate_page
from seq2slate.serving.web.slates_page import LATEST, slates_page

Parameters: TypeAlias = Mapping[str, str]
Maker: TypeAlias = Callable[[Source, Parameters], Page]
_FASTEST, _SLOWEST = 2, 3600  # seconds between two looks of a page that loads anew


def make(maker: Maker, source: Source, parameters: Parameters) -> Page:
    """Return a page, whatever the log does."""
    try:
        return maker(source, parameters)
    except Seq2SlateError:  # a file that is gone is one, too
        return problem(
            503, "The log does not answer", "Slates go on being answered as the service was told to. Try again."
        )


def experiment(source: Source, parameters: Parameters) -> Page:
    """Return the page of an experiment, the one being served if none is named."""
    overview = read_overview(source, parameters.get("experiment"))
    if overview is None:
        return problem(404, "No such experiment", "Neither the log nor the service knows an experiment of this name.")
    refresh = whole_number(parameters.get("refresh"))
    return experiment_page(overview, refresh=None if refresh is None else min(max(refresh, _FASTEST), _SLOWEST))


def slates(source: Source, parameters: Parameters) -> Page:
    """Return the page of the latest slates."""
    return slates_page(source.store.recent(LATEST))


def slate(source: Source, parameters: Parameters) -> Page:
    """Return the page of one slate."""
    slate_id = parameters.get("slate_id", "")
    found = source.store.get(slate_id) if is_storable(slate_id) else None
    if found is None:
        return problem(404, "No such slate", "The log has no slate of this id; old ones may have been deleted.")
    step = (whole_number(parameters.get("step")) or 1) - 1
    step = max(0, min(step, len(found.shown) - 1))
    return slate_page(found, attention_of(source.deployment, found), step)


def whole_number(text: str | None) -> int | None:
    """Return a number of the query; None for what is none.

    >>> whole_number("7"), whole_number("-3"), whole_number("x"), whole_number("9" * 99), whole_number(None)
    (7, -3, None, None, None)
    """
    try:
        return int(text) if text is not None and len(text) < 10 else None
    except ValueError:
        return None
