"""What all pages share: head, navigation, landmarks, tables that fit a phone. No scripts, and nothing that loads.

Every text is escaped by `element`; a page's own style is its only style, which is what lets the service allow it by
checksum alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seq2slate.html import Html, element
from seq2slate.serving.web.style import STYLE

_PLACES = (("/", "Experiment"), ("/slates", "Slates"), ("/docs", "API"))


@dataclass(frozen=True)
class Page:
    """A page as it is answered."""

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
    """Return a whole page; `place` is the path that the navigation marks, `refresh` the seconds until it loads anew."""
    metas = [
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="robots" content="noindex">'),
    ]
    if refresh is not None:
        metas.append(Html(f'<meta http-equiv="refresh" content="{refresh}">'))
    head = element("head", *metas, element("title", f"{title} · seq2slate"), Html(f"<style>{STYLE}</style>"))
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
        for path, name in _PLACES
    ]
    nav = element("nav", element("ul", *links), aria_label="Pages")
    return element("header", element("div", element("span", "seq2slate", class_="brand"), nav), class_="bar")


def problem(status: int, title: str, text: str) -> Page:
    """Return a page that says what went wrong."""
    back = element(
        "p", element("a", "To the experiment", href="/"), " · ", element("a", "To the slates", href="/slates")
    )
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
    """Whether the heading is a name that somebody gave, which may be long."""


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, label: str, class_: str = "stacked") -> Html:
    """Return a table whose first column names the rows; on a phone each row becomes a block, if it is `stacked`."""
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
            **_label(column),
        )
        for column, cell in zip(columns[1:], row[1:], strict=True)
    ]
    return element("tr", element("th", element("span", row[0]), scope="row"), *cells)


def _label(column: Column) -> dict[str, str]:
    return {"data_label": column.name}


def _kind(column: Column) -> str | None:
    return "text" if column.is_text else "name" if column.is_name else None


def numbers(rows_of: str, inside: Html) -> Html:
    """Return the numbers behind a chart, folded away."""
    return element("details", element("summary", rows_of), inside)


def facts(pairs: Sequence[tuple[str, str]]) -> Html:
    """Return names and values, each value under its name."""
    pieces = [element("div", element("dt", name), element("dd", value)) for name, value in pairs]
    return element("dl", *pieces, class_="facts")
