"""The site of the documentation: complete, without a broken link, and offline."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import seq2slate
from tools.site import ROOT, SITE, build_site

DOCS = ROOT / "docs"
REFERENCE = [path.read_text() for path in sorted((DOCS / "api").glob("*.md"))]
CHROMIUM = shutil.which("chromium")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


def pages_of(navigation: Any) -> Iterator[str]:
    """The pages that a navigation names, at any depth."""
    for entry in navigation:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else pages_of(target)


def test_the_navigation_has_every_page() -> None:
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(pages_of(navigation)) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("name", dir(seq2slate))
def test_the_reference_has_every_public_name(name: str) -> None:
    assert sum(len(re.findall(rf"^::: seq2slate\.{name}$", page, re.MULTILINE)) for page in REFERENCE) == 1


def test_a_doctest_becomes_a_code_block() -> None:
    blocks = pytest.importorskip("tools.doctest_blocks", reason="the extra docs is not installed")
    text = "Add.\n\n    >>> add(\n    ...     1)\n    2\n\nArgs:\n    a: One."
    expected = "Add.\n\n    ```pycon\n    >>> add(\n    ...     1)\n    2\n    ```\n\nArgs:\n    a: One."
    assert blocks.fence_doctests(text) == expected


@pytest.fixture(scope="module")
def site() -> Path:
    """The pages, built with broken links as errors."""
    pytest.importorskip("zensical", reason="the extra docs is not installed")
    build_site()
    return SITE


@pytest.mark.slow
@pytest.mark.parametrize("name", dir(seq2slate))
def test_a_public_name_has_its_own_place(site: Path, name: str) -> None:
    pages = [page.read_text() for page in (site / "api").glob("*.html")]
    assert any(f'id="seq2slate.{name}"' in page for page in pages)


@pytest.mark.slow
def test_nothing_is_loaded_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"'> ]+)")
    assert [found for page in pages for found in loaded.findall(page.read_text())] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", styles) == []


@pytest.mark.slow
def test_examples_of_docstrings_are_code(site: Path) -> None:
    pages = [page.read_text() for page in (site / "api").glob("*.html")]
    assert sum(page.count("language-pycon") for page in pages) > 20
    assert not any("<blockquote>" in page for page in pages)


@pytest.mark.slow
def test_a_broken_link_is_an_error(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[gone](gone.md)\n")
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "x"\n')
    monkeypatch.setattr("tools.site.ROOT", tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        build_site()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 360])
def test_pages_and_search_work_from_a_folder(site: Path, width: int) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    from playwright.sync_api import sync_playwright

    errors, requested = list[str](), set[str]()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requested.add(request.url))
        for path in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # which only a server shows
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name
        page.goto((site / "api" / "data.html").as_uri())
        page.locator("label[for=__search]:visible, .md-search__button:visible").first.click()
        page.get_by_role("combobox").or_(page.get_by_role("textbox")).first.fill("interleaving")
        page.locator("a[href*='experiments.html'][href*='#interleaving']").first.click()
        page.wait_for_url("**/experiments.html*")
        assert page.locator("h2#interleaving").is_visible()
        browser.close()
    assert errors == []
    files = {Path(unquote(urlsplit(url).path)) for url in requested if url.startswith("file:")}
    assert all(path.exists() for path in files)
    assert {url.split(":")[0] for url in requested} <= {"file", "data"}
