"""Self-contained HTML pages that need no network: style, escaping, tables and interactive charts.

Vega's scripts come from the vl-convert wheel and are embedded once: 0.9 MB, whatever the number of charts. A content
security policy forbids the page to load anything but the pictures beside it. All text is escaped here and nowhere else:
a `str` is text, and only what this module built is `Html`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

_STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")


class Html(str):
    """Markup, which is not escaped again."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | None) -> Html:
    """Return an element; children that are not `Html` are escaped, and attributes that are None are left out.

    >>> element("p", "a < b", element("b", "!"), class_="note")
    '<p class="note">a &lt; b<b>!</b></p>'
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    start = "".join(f' {key}="{escape(value)}"' for key, value in given.items())
    inside = "".join(child if isinstance(child, Html) else escape(child) for child in children)
    return Html(f"<{name}{start}>{inside}</{name}>")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[str | None] = ()) -> Html:
    """Return a table whose first column names the rows; `classes` has a CSS class or None for each row.

    >>> table(["ranker", "MAP"], [["base", "0.31"]]).count("<th")
    4
    """
    head = element("tr", *(element("th", cell, scope="col") for cell in header))
    named = classes or [None] * len(rows)
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:]), class_=kind)
        for row, kind in zip(rows, named, strict=True)
    ]
    whole = element("table", element("thead", head), element("tbody", *body))
    return element("div", whole, class_="scroll")


def chart(name: str, spec: Mapping[str, Any], caption: str) -> Html:
    """Return a Vega-Lite chart with its caption; without JavaScript, `pictures/<name>.svg` is shown instead."""
    described = {key: value for key, value in spec.items() if key != "$schema"}
    content = json.dumps(described, allow_nan=False)
    for character in "<>&":  # an id may contain </script>, which would end the script
        content = content.replace(character, f"\\u{ord(character):04x}")
    data = Html(f'<script type="application/json">{content}</script>')
    fallback = Html(f'<noscript><img src="pictures/{escape(name)}.svg" alt="{escape(caption)}"></noscript>')
    drawing = element("div", data, fallback, class_="chart", id=f"chart-{name}")
    return element("figure", drawing, element("figcaption", caption))


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading."""

    title: str
    parts: Sequence[Html]


def page(title: str, sections: Sequence[Section]) -> str:
    """Return the whole page; sections without parts are left out.

    >>> page("Report", [Section("Lists", [element("p", "none")])]).count("<section>")
    1
    """
    body = [element("section", element("h2", section.title), *section.parts) for section in sections if section.parts]
    links = [Html('<meta charset="utf-8">'), Html('<meta name="viewport" content="width=device-width">')]
    head = element("head", *links, Html(_POLICY), element("title", title), Html(f"<style>{_STYLE}</style>"))
    main = element("main", element("h1", title), *body)
    body_and_scripts = f"<body>{main}{_scripts() if _has_chart(sections) else ''}</body>"
    return f'<!doctype html>\n<html lang="en">{head}{body_and_scripts}</html>\n'


def _has_chart(sections: Sequence[Section]) -> bool:
    return any(part.startswith("<figure") for section in sections for part in section.parts)


def _scripts() -> str:
    import vl_convert  # brings a JavaScript engine, which a page without charts does not need

    bundle = vl_convert.javascript_bundle(_DRAW).replace("</script", "<\\/script")
    return f'<script type="module">{bundle}</script>'


_POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline' 'unsafe-eval'; img-src 'self' file: data:\">"
)
"""Vega compiles its expressions, hence unsafe-eval; nothing in the page comes from elsewhere."""

_DRAW = """
for (const place of document.querySelectorAll(".chart")) {
  const spec = JSON.parse(place.querySelector("script").textContent);
  vegaEmbed(place, spec, {mode: "vega-lite", renderer: "svg", actions: false});
}
"""
