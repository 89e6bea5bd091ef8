"""What all pages share: frame, navigation, cards, tables that fit a phone, and the style sheet.

Pages run no scripts and load nothing. Every text is escaped by `element`; a page's own style is its only style, which
lets the content security policy allow it by checksum alone. The style is light and dark, for desks and for phones. Arms
have a colour of Okabe and Ito's palette, and a dash and a marker of their own (`web.svg`), so that nobody has to tell
them apart by colours alone. The control is grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seq2slate.html import Html, element

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


def model_name(name: str, fingerprint: str) -> Html:
    """Return the name of a model's folder above its fingerprint."""
    known = element("code", fingerprint, class_="number")
    return element("span", name, element("small", known)) if name else known


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


# Style

ARM_COLOURS = 8
"""Classes `arm0` (the control) to `arm7`."""

_LIGHT = ("#5f6672", "#0072B2", "#D55E00", "#009E73", "#B4568C", "#B57A00", "#2E8BC0", "#111111")
_DARK = ("#a7adb8", "#56B4E9", "#FF8A4C", "#2CC49A", "#E39AC4", "#F0B429", "#8CCBF0", "#f2f2f2")


def _variables(colours: tuple[str, ...]) -> str:
    return " ".join(f"--arm{number}: {colour};" for number, colour in enumerate(colours))


def _arm_classes() -> str:
    return "\n".join(f".arm{number} {{ --arm: var(--arm{number}); }}" for number in range(ARM_COLOURS))


STYLE = f"""
:root {{
  color-scheme: light dark; --ink: #16191d; --paper: #f4f6f8; --card: #ffffff; --soft: #59616c; --line: #dde2e8;
  --band: #eef2f6; --link: #005a9c; --good: #00614a; --good-band: #e3f4ee; --bad: #9c3c00; --bad-band: #fdebe0;
  --heat: #08519c; --open-band: #e9eff6; {_variables(_LIGHT)}
}}
@media (prefers-color-scheme: dark) {{
  :root {{
    --ink: #e8eaed; --paper: #101317; --card: #191d23; --soft: #a4acb8; --line: #333a44; --band: #222831;
    --link: #7cc0f5; --good: #5fdcb4; --good-band: #12312a; --bad: #ffab7d; --bad-band: #3a2114;
    --heat: #56B4E9; --open-band: #1d2733; {_variables(_DARK)}
  }}
}}
{_arm_classes()}
*, *::before, *::after {{ box-sizing: border-box; }}
html {{ -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }}
body {{ margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: anywhere;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, "DejaVu Sans", sans-serif; }}
a {{ color: var(--link); text-underline-offset: .15em; }}
:focus-visible {{ outline: 3px solid var(--link); outline-offset: 2px; border-radius: 3px; }}
.skip {{ position: absolute; left: -999px; top: 0; background: var(--card); padding: .6rem 1rem; z-index: 1; }}
.skip:focus {{ left: 0; }}
.hidden {{ position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }}
header.bar {{ background: var(--card); border-bottom: 1px solid var(--line); }}
header.bar > div, main, footer {{ max-width: 1120px; margin: 0 auto; padding: 0 1.25rem; }}
header.bar > div {{ display: flex; flex-wrap: wrap; align-items: center; gap: .1rem 1.5rem; padding-top: .3rem;
  padding-bottom: .3rem; }}
.brand {{ font-weight: 700; letter-spacing: -.01em; }}
nav ul {{ display: flex; flex-wrap: wrap; gap: .25rem; list-style: none; margin: 0; padding: 0; }}
nav a {{ display: inline-block; padding: .5rem .7rem; border-radius: 6px; text-decoration: none; color: var(--soft); }}
nav a:hover {{ color: var(--ink); background: var(--band); }}
nav a[aria-current] {{ color: var(--ink); font-weight: 600; background: var(--band); }}
main {{ padding-top: 1.75rem; padding-bottom: 2rem; }}
h1 {{ font-size: 1.7rem; line-height: 1.25; letter-spacing: -.015em; margin: 0 0 .25rem; }}
h2 {{ font-size: 1.15rem; line-height: 1.3; margin: 0 0 .75rem; }}
h3 {{ font-size: 1rem; margin: 0 0 .25rem; }}
p {{ margin: .4rem 0; }}
.lead, .soft, figcaption {{ color: var(--soft); }}
.soft, figcaption {{ font-size: .9rem; }}
.card {{ background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.1rem 1.25rem;
  margin: 1.1rem 0 0; }}
.verdict {{ border-left: 6px solid var(--arm0); background: var(--open-band); }}
.verdict p {{ font-size: 1.2rem; line-height: 1.4; margin: .2rem 0; }}
.verdict .soft {{ font-size: .95rem; }}
.verdict.gain {{ border-left-color: var(--good); background: var(--good-band); }}
.verdict.loss {{ border-left-color: var(--bad); background: var(--bad-band); }}
.warning {{ border: 2px solid var(--bad); background: var(--bad-band); }}
.warning strong {{ color: var(--bad); }}
.warning p:first-child {{ font-size: 1.1rem; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(7.5rem, 1fr)); gap: .75rem; padding: 0;
  margin: 1.1rem 0 0; }}
.tiles div {{ background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .7rem .9rem; }}
.tiles dt {{ color: var(--soft); font-size: .85rem; }}
.tiles dd {{ margin: 0; font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.3; }}
.pair {{ display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 1.1rem; align-items: start; }}
.pair > * {{ min-width: 0; }}
.card .pair {{ margin-top: 1rem; gap: .5rem 2rem; }}
.scroll {{ overflow-x: auto; max-width: 100%; }}
table {{ border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .45rem .65rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); }}
tbody tr:last-child > * {{ border-bottom: 0; }}
th:first-child, td.text, th.text {{ text-align: left; }}
thead th {{ overflow-wrap: normal; color: var(--soft); font-weight: 600; font-size: .82rem; vertical-align: bottom; }}
thead th.name {{ overflow-wrap: anywhere; min-width: 8rem; }}
tbody th {{ font-weight: 600; min-width: 3rem; }}
td.text {{ min-width: 5rem; }}
.wide tbody th {{ min-width: 9rem; }}
.wide td.text {{ min-width: 8.5rem; }}
td small, th small, dd small {{ display: block; color: var(--soft); font-weight: 400; font-size: .85em; }}
.plain td:nth-child(2) {{ width: 45%; }}
.number {{ white-space: nowrap; overflow-wrap: normal; }}
.good {{ color: var(--good); font-weight: 600; }}
.bad {{ color: var(--bad); font-weight: 600; }}
code {{ font: .88em/1.4 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
figure {{ margin: 0; }}
figcaption {{ margin-top: .5rem; }}
svg {{ display: block; max-width: 100%; }}
svg.chart {{ width: 100%; max-width: 600px; height: auto; }}
svg text {{ fill: var(--soft); font-size: 12px; font-family: inherit; }}
svg text.name {{ fill: var(--ink); font-weight: 600; }}
.grid {{ stroke: var(--line); stroke-width: 1; }}
.zero {{ stroke: var(--ink); stroke-width: 1.2; }}
.line {{ stroke: var(--arm); stroke-width: 2; fill: none; }}
.thin {{ stroke: var(--arm); stroke-width: 2; }}
.thick {{ stroke: var(--arm); stroke-width: 6; }}
.fill {{ fill: var(--arm); fill-opacity: .17; }}
.mark {{ fill: var(--arm); stroke: var(--card); stroke-width: 1; }}
.legend {{ display: flex; flex-wrap: wrap; gap: .15rem 1.1rem; list-style: none; padding: 0; margin: 0 0 .4rem;
  font-size: .88rem; }}
.legend li, .key {{ display: inline-flex; align-items: center; gap: .45rem; }}
.legend svg, .key svg {{ flex: none; }}
.key {{ align-items: baseline; }}
.key svg {{ align-self: center; }}
details {{ margin-top: .6rem; }}
summary {{ cursor: pointer; color: var(--link); font-size: .9rem; padding: .25rem 0; width: fit-content; }}
.badge {{ display: inline-block; border-radius: 999px; padding: 0 .55rem; font-size: .85em; font-weight: 600;
  background: var(--band); color: var(--soft); white-space: nowrap; }}
.badge.up, .badge.clicked {{ background: var(--good-band); color: var(--good); }}
.badge.down, .badge.fallback {{ background: var(--bad-band); color: var(--bad); }}
.badge.new {{ background: var(--open-band); color: var(--link); }}
.steps {{ display: flex; flex-wrap: wrap; align-items: center; gap: .6rem; margin: .5rem 0 .9rem; padding: 0; }}
.steps a, .steps span {{ padding: .45rem .9rem; border: 1px solid var(--line); border-radius: 7px;
  background: var(--card); text-decoration: none; }}
.steps a:hover {{ background: var(--band); }}
.steps span {{ color: var(--soft); border-style: dashed; }}
.steps strong {{ font-variant-numeric: tabular-nums; }}
.cell {{ fill: var(--heat); }}
.frame {{ fill: none; stroke: var(--line); stroke-width: 1; }}
.ring {{ fill: none; stroke: var(--ink); stroke-width: 2; }}
.row {{ fill: none; stroke: var(--bad); stroke-width: 2.5; }}
.gone {{ fill: var(--line); }}
svg a text {{ fill: var(--link); text-decoration: underline; }}
svg a.now text {{ fill: var(--ink); font-weight: 700; }}
.heat svg {{ max-width: none; }}
.bar-of svg {{ width: 100%; height: .8rem; margin-top: .3rem; }}
td.bar-of {{ width: 35%; min-width: 3.5rem; }}
.bars td.text {{ width: 55%; }}
.bar-of rect {{ fill: var(--heat); }}
.bar-of .track {{ fill: var(--band); }}
.facts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: .6rem 1.5rem;
  margin: 1rem 0 0; }}
.facts dt {{ color: var(--soft); font-size: .85rem; }}
.facts dd {{ margin: 0; min-width: 0; }}
.side {{ display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: flex-start; }}
.side > figure {{ flex: 0 1 auto; max-width: 100%; min-width: 0; }}
.side > div {{ flex: 1 1 20rem; min-width: 0; }}
footer {{ color: var(--soft); font-size: .9rem; padding-bottom: 2.5rem; }}
@media (max-width: 860px) {{ .pair {{ grid-template-columns: minmax(0, 1fr); }} }}
@media (max-width: 620px) {{
  header.bar > div, main, footer {{ padding-left: .9rem; padding-right: .9rem; }}
  .card {{ padding: .9rem; }}
  h1 {{ font-size: 1.4rem; }}
  .verdict p {{ font-size: 1.1rem; }}
  svg.chart text {{ font-size: 17px; }}
  header.bar > div {{ gap: .1rem .8rem; }}
  nav a {{ padding: .6rem .55rem; }}
  .tiles div:last-child:nth-child(odd) {{ grid-column: 1 / -1; }}
  .facts {{ grid-template-columns: repeat(2, minmax(0, 1fr)); }}
  .wide tbody th, .wide td.text {{ min-width: 0; }}
  .stacked thead {{ position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }}
  .stacked table, .stacked tbody {{ display: block; }}
  .stacked tr {{ display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .5rem 1rem; padding: .8rem 0;
    border-bottom: 1px solid var(--line); }}
  .stacked tr:last-child {{ border-bottom: 0; }}
  .stacked th, .stacked td {{ display: block; border: 0; padding: 0; text-align: left; }}
  .stacked th {{ grid-column: 1 / -1; font-size: 1.05rem; }}
  .stacked td::before {{ content: attr(data-label); display: block; color: var(--soft); font-size: .82rem; }}
  .plain td:nth-child(2) {{ width: 99%; }}
  .plain td.text {{ min-width: 0; }}
  .plain th, .plain td {{ padding: .45rem .3rem; }}
  .stacked .number {{ white-space: normal; }}
}}
@media print {{
  body {{ background: #fff; }}
  header.bar, .skip, footer a {{ display: none; }}
  .card, figure, tr {{ break-inside: avoid; }}
  .scroll {{ overflow: visible; }}
}}
"""
