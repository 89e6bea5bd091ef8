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
    links = [
        element("li", element("a", name, href=path, aria_current="page" if path == place else None))
        for path, name in _PAGES
    ]
    nav = element("nav", element("ul", *links), aria_label="Pages")
    return element("header", element("div", element("span", "seq2slate", class_="brand"), nav), class_="bar")


def problem(status: int, title: str, text: str) -> Page:
    """Return a page about an error."""
    back = element("p", element("a", "Experiment", href="/"), " · ", element("a", "Slates", href="/slates"))
    return Page(frame(title, [element("h1", title), element("p", text, class_="lead"), back]), status)


def card(title: str, *parts: Html, class_: str = "") -> Html:
    """Return a section in a box of its own."""
    return element("section", element("h2", title), *parts, class_=f"card {class_}".rstrip())


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    is_text: bool = False
    is_name: bool = False
    """Whether the heading is a name given by users, which may be long."""


def data_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, label: str, class_: str = "stacked"
) -> Html:
    """Return a table whose first column names the rows; on a phone each row of a `stacked` one becomes a block."""
    head = element("tr", *(element("th", one.name, scope="col", class_=_kind(one)) for one in columns))
    body = [_row(columns, row) for row in rows]
    whole = element(
        "table", element("caption", label, class_="hidden"), element("thead", head), element("tbody", *body)
    )
    return element("div", whole, class_=f"scroll {class_}".rstrip())


def _row(columns: Sequence[Column], row: Sequence[str]) -> Html:
    cells = [
        element(
            "td",
            element("span", cell, class_=None if column.is_text else "number"),
            class_=_kind(column),
            data_label=column.name,
        )
        for column, cell in zip(columns[1:], row[1:], strict=True)
    ]
    return element("tr", element("th", element("span", row[0]), scope="row"), *cells)


def _kind(column: Column) -> str | None:
    return "text" if column.is_text else "name" if column.is_name else None


def folded(title: str, inside: Html) -> Html:
    """Return content that is folded away under a title, such as the numbers behind a chart."""
    return element("details", element("summary", title), inside)


def facts(pairs: Sequence[tuple[str, str]]) -> Html:
    """Return names and values, each value under its name."""
    pieces = [element("div", element("dt", name), element("dd", value)) for name, value in pairs]
    return element("dl", *pieces, class_="facts")
