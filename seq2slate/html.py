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
from typing import Any


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

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --soft: #666; --line: #ddd; --band: #f5f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181b; --soft: #a0a0a0; --line: #3a3d41; --band: #1f2226; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, Helvetica, Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.8rem; margin: 0 0 1rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .75rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
ul { padding-left: 1.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; font-weight: 500; min-width: 11rem; }
thead th { border-bottom: 2px solid var(--soft); font-weight: 600; white-space: nowrap; }
tr.reference { background: var(--band); font-style: italic; }
td { white-space: nowrap; }
td div { font-size: .8rem; line-height: 1.3; }
.soft, td div, figcaption { color: var(--soft); }
.soft { font-size: .85rem; }
figure { margin: 1.5rem 0; }
.chart { background: #fff; border-radius: 6px; overflow-x: auto; color: #222; }
.chart svg, .chart img { max-width: 100%; height: auto; display: block; }
figcaption { font-size: .9rem; margin-top: .4rem; }
code { font: .85rem/1.4 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
pre { background: var(--band); padding: .75rem 1rem; border-radius: 6px; overflow-x: auto; }
@media print {
  :root { --ink: #000; --paper: #fff; --soft: #555; --line: #ccc; --band: #f5f5f5; }
  main { max-width: none; padding: 0; }
  figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  .scroll, pre { overflow: visible; }
}
"""
