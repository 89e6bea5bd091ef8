"""What all pages share: frame, navigation, cards, tables that fit a phone, and the style sheet.

Pages run no scripts and load nothing. Every text is escaped by `element`; a page's own style (`style.css`, embedded) is
its only style, which lets the content security policy allow it by checksum alone. The style is light and dark, for
desks and for phones. Arms have a colour of Okabe and Ito's palette, and a dash and a marker of their own (`web.svg`),
so that nobody has to tell them apart by colours alone. The control is grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seq2slate.html import Html, element

_STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
_PAGES = (("/", "Experiment"), ("/slates", "Slates"), ("/docs", "API"))


@dataclass(frozen=True)
class Page:
    """A page and its HTTP status."""

    text: str
    status: int = 200


def frame(
    title: str,
    parts: Sequence[Html],
    *,
    place: str = "",
    footer: Sequence[str] = (),
    refresh: int | None = None,
) -> str:
    """Return a whole page.

    Args:
        title: For the window.
        parts: The content.
        place: The path that the navigation marks as current.
        footer: Text and links below the content.
        refresh: Seconds until the page loads again; None does not.
    """
    metas = [
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="robots" content="noindex">'),
    ]
    if refresh is not None:
        metas.append(Html(f'<meta http-equiv="refresh" content="{refresh}">'))
    head = element("head", *metas, element("title", f"{title} · seq2slate"), Html(f"<style>{_STYLE}</style>"))
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        _header(place),
        element("main", *parts, id="content", tabindex="-1"),
        element("footer", *footer),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def _header(place: str) -> Html:
    parts = [element("span", "seq2slate", class_="brand"), navigation("Pages", _PAGES, current=place)]
    return element("header", element("div", *parts), class_="bar")


def navigation(label: str, links: Sequence[tuple[str, str]], *, current: str) -> Html:
    """Return links, each given as its address and its name."""
    items = [
        element("li", element("a", name, href=href, aria_current="page" if href == current else None))
        for href, name in links
    ]
    return element("nav", element("ul", *items), aria_label=label)


def problem(status: int, title: str, text: str) -> Page:
    """Return a page about an error."""
    back = element("p", element("a", "Experiment", href="/"), " · ", element("a", "Slates", href="/slates"))
    return Page(frame(title, [element("h1", title), element("p", text, class_="lead"), back]), status)


def card(title: str, *parts: Html, anchor: str | None = None) -> Html:
    """Return a section in a box of its own; `#anchor` links to it."""
    return element("section", element("h2", title), *parts, class_="card", id=anchor)


def soft(text: str) -> Html:
    """Return a paragraph that stands back: a note, or what is said instead of a chart."""
    return element("p", text, class_="soft")


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    kind: Literal["text", "name"] | None = None
    """Text, numbers under a name given by users, which may be long, or numbers under a heading of ours (None)."""


def model_name(name: str, fingerprint: str) -> Html:
    """Return the name of a model's folder above its fingerprint."""
    known = element("code", fingerprint, class_="number")
    return element("span", name, element("small", known)) if name else known


def data_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, label: str, class_: str = "stacked"
) -> Html:
    """Return a table whose first column names the rows; on a phone each row of a `stacked` one becomes a block."""
    head = element("tr", *(element("th", one.name, scope="col", class_=one.kind) for one in columns))
    body = [_row(columns, row) for row in rows]
    whole = element(
        "table", element("caption", label, class_="hidden"), element("thead", head), element("tbody", *body)
    )
    return element("div", whole, class_=f"scroll {class_}")


def _row(columns: Sequence[Column], row: Sequence[str]) -> Html:
    cells = [
        element(
            "td",
            element("span", cell, class_=None if column.kind == "text" else "number"),
            class_=column.kind,
            data_label=column.name,
        )
        for column, cell in zip(columns[1:], row[1:], strict=True)
    ]
    return element("tr", element("th", element("span", row[0]), scope="row"), *cells)


def folded(title: str, inside: Html) -> Html:
    """Return content that is folded away under a title, such as the numbers behind a chart."""
    return element("details", element("summary", title), inside)


def facts(pairs: Sequence[tuple[str, str]], *, class_: str = "facts") -> Html:
    """Return names and values, each value under its name."""
    pieces = [element("div", element("dt", name), element("dd", value)) for name, value in pairs]
    return element("dl", *pieces, class_=class_)
