"""The latest slates, each with a link to what happened in it."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from seq2slate.data.impressions import Impression
from seq2slate.html import Html, element
from seq2slate.serving.web.frame import Column, Page, card, frame, table
from seq2slate.serving.web.words import count, moment, plural

LATEST = 50


def slates_page(slates: Sequence[Impression]) -> Page:
    """Return the page."""
    lead = "Choose one to see what moved, and where the model looked at every step."
    columns = [
        Column("slate"),
        Column("time", is_text=True),
        Column("arm", is_text=True),
        Column("unit", is_text=True),
        Column("clicks", is_text=True),
        Column("fallback", is_text=True),
    ]
    rows = [_row(one) for one in slates]
    found = table(columns, rows, label="The latest slates") if rows else element("p", "No slates yet.", class_="soft")
    heading = f"The latest {plural(len(slates), 'slate')}" if slates else "Nothing was shown so far"
    parts = [element("h1", "Slates"), element("p", lead, class_="lead"), card(heading, found)]
    return Page(frame("Slates", parts, place="/slates"))


def slate_address(slate_id: str) -> str:
    """Return the link to a slate."""
    return f"/slates/{quote(slate_id, safe='')}"


def _row(slate: Impression) -> list[str]:
    return [
        element("a", element("code", slate.slate_id), href=slate_address(slate.slate_id)),
        moment(slate.at),
        element("span", slate.arm, element("small", f"of {slate.experiment}")),
        slate.unit,
        element("span", clicks_badge(len(slate.clicks)), f" on {plural(len(slate.shown), 'item')}"),
        fallback_badge(slate.fallback),
    ]


def clicks_badge(number: int) -> Html:
    """Return how many clicks, with a colour if any."""
    return element("span", count(number), class_="badge clicked" if number else None)


def fallback_badge(fallback: str | None) -> Html:
    """Return the reason of a fallback, with a colour if there is one."""
    return element("span", fallback, class_="badge fallback") if fallback else element("span", "no")
