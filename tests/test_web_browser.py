"""The pages in a real browser: Debian's Chromium, driven by Playwright, against a real service.

With SEQ2SLATE_SCREENSHOTS=FOLDER every page that is looked at here is saved there as a picture.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.services import N_FEATURES, Service, request, save_model
from tests.web_logs import HTML, LONG, add_counts, simulate, simulate_pair

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)
SIZES = {"desk": (1280, 900), "phone": (360, 740)}
ARMS = """
name = "autumn"
[[arms]]
name = "control"
model = "base"
[[arms]]
name = "treated"
"""
EXPERIMENTS = {
    "autumn": "four of its slates come over HTTP",
    "summer": "two arms that differ",
    "four arms": "one better, one worse, one alike",
    "one slate": "a single impression",
    "one arm": "nothing to compare",
    "million": "1,000,000 impressions",
    "pair": "two arms that share their slates",
    "alike": "two such arms without a significant difference",
    HTML: "names that are markup, or long, or wide",
}
OVERFLOWING = """() => {
  const inScroll = element => element.closest(".scroll, svg, .hidden, .skip") !== null;
  return [...document.querySelectorAll("body *")]
    .filter(element => !inScroll(element) && element.getBoundingClientRect().right > innerWidth + 1)
    .map(element => element.outerHTML.slice(0, 200));
}"""
CLIPPED = """() => [...document.querySelectorAll("body *")]
    .filter(element => ["hidden", "clip"].includes(getComputedStyle(element).overflowX)
        && !element.closest(".hidden, svg, thead") && element.scrollWidth > element.clientWidth + 1)
    .map(element => element.outerHTML.slice(0, 200))"""
OUTSIDE_CHART = """() => [...document.querySelectorAll("svg.chart text")]
    .filter(text => {
      const inner = text.getBoundingClientRect(), outer = text.closest("svg").getBoundingClientRect();
      return inner.left < outer.left - 1 || inner.right > outer.right + 1
          || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
    })
    .map(text => text.outerHTML)"""


TITLES = [f"Title {HTML}", LONG, None, "W" * 300, *(f"Desk lamp, brass, number {number}" for number in range(8))]


class Site:
    """A service with a long log, one with an empty log, and a slate with odd ids."""

    def __init__(self, folder: Path) -> None:
        log = folder / "log.db"
        save_model(folder / "model", seed=1)
        (folder / "experiment.toml").write_text(ARMS)
        simulate(log, "summer", {"control": 0.2, "treated": 0.27}, 4000)
        simulate(log, "four arms", {"control": 0.2, "alike": 0.2, "worse": 0.1, "better": 0.3}, 6000)
        simulate(log, "one slate", {"control": 1.0}, 1)
        simulate(log, "one arm", {"base": 0.2}, 300)
        simulate(log, HTML, {"control": 0.2, HTML: 0.2, LONG[:128]: 0.6, "W" * 60: 0.2}, 1200)
        add_counts(log, "million", {"control": 0.3, "treated": 0.315}, 1_000_000)
        simulate_pair(log, "pair", 0.2, 0.3, 2000)
        simulate_pair(log, "alike", 0.2, 0.2, 1000)
        options = ("--deadline-ms", 5000, "--log-deadline-ms", 5000)
        self.service = Service(folder / "model", "--experiment", folder / "experiment.toml", "--log", log, *options)
        self.empty = Service(folder / "model", "--log", folder / "empty.db", *options)

    def show_slates(self) -> None:
        """Send some slates and clicks; the latest is of a model, and has odd ids."""
        ids = [HTML, LONG, *(f"item {number}" for number in range(10))]
        features = np.random.default_rng(3).normal(size=(len(ids), N_FEATURES)).round(3).tolist()
        bodies = [request(f"user {number}", seed=number, n=12, k=6) for number in range(4)]
        bodies[0]["items"][0]["features"][0] = 1e300
        answers = [self.post("/v1/rerank", body) for body in bodies]
        self.fallback = answers[0]
        columns = {"item_ids": ids, "features": features, "titles": TITLES, "k": 8}
        while True:  # until it is one of the model
            answers.append(self.post("/v1/rerank", {"unit": f"{LONG}{len(answers)}", **columns}))
            if answers[-1]["arm"] == "treated":
                break
        for answer in answers:
            self.post("/v1/clicks", {"slate_id": answer["slate_id"], "item": answer["items"][1]})
        self.slate = answers[-1]

    def post(self, path: str, body: Any) -> Any:
        response = self.service.client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    with site.service, site.empty:
        site.show_slates()
        yield site


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser, url: str, size: str = "desk", scheme: Literal["light", "dark"] = "light"
) -> Iterator[Page]:
    """A page that must stay with its service, and must not complain."""
    width, height = SIZES[size]
    complaints: list[str] = []
    with browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme) as context:
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda one: complaints.append(one.url) if not one.url.startswith(url) else None)
        page.goto(url)
        yield page
    assert complaints == []


def check_layout(page: Page, name: str) -> None:
    """Nothing makes the page wider than the window, and nothing is cut off."""
    folder = os.environ.get("SEQ2SLATE_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(OVERFLOWING) == []
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(OUTSIDE_CHART) == []
    for fold in page.locator("summary").all():
        fold.click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "with all numbers unfolded"
    assert page.evaluate(OVERFLOWING) == []


def press_until(page: Page, text: str, key: str = "Tab", most: int = 60) -> None:
    """Press a key until the element with a text has the focus, as somebody without a mouse would."""
    for _ in range(most):
        page.keyboard.press(key)
        focused = page.evaluate("document.activeElement.textContent")
        if text in focused and page.evaluate("document.activeElement !== document.body"):
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", "it can be seen where one is"
            return
    raise AssertionError(f"{text!r} cannot be reached with {key}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_fits_and_loads_nothing_from_elsewhere(
    site: Site, browser: Browser, name: str, size: str, scheme: Literal["light", "dark"]
) -> None:
    with opened(browser, site.service.url, size, scheme) as page:
        page.goto(f"{site.service.url}/?experiment={quote(name, safe='')}")
        expect(page.locator("h1")).to_have_text(f"Experiment {name}")
        expect(page.locator(".verdict p").first).to_be_visible()
        for chart in page.locator("svg.chart").all():
            box = chart.bounding_box()
            assert box is not None
            assert box["width"] > 200
        check_layout(page, f"experiment-{'html' if name == HTML else name.replace(' ', '-')}-{size}-{scheme}")


def test_the_colours_follow_the_system(site: Site, browser: Browser) -> None:
    def brightness(page: Page, what: str) -> float:
        colour = page.evaluate(f"getComputedStyle(document.body).{what}")
        return sum(float(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))

    with (
        opened(browser, site.service.url, scheme="light") as light,
        opened(browser, site.service.url, scheme="dark") as dark,
    ):
        assert brightness(light, "backgroundColor") > 600 > 200 > brightness(light, "color")
        assert brightness(dark, "backgroundColor") < 200 < 600 < brightness(dark, "color")


@pytest.mark.parametrize("size", SIZES)
def test_an_empty_log_has_pages_too(site: Site, browser: Browser, size: str) -> None:
    with opened(browser, site.empty.url, size) as page:
        expect(page.locator(".verdict")).to_contain_text("No slates yet")
        check_layout(page, f"experiment-empty-{size}")
        page.get_by_role("link", name="Slates", exact=True).click()
        expect(page.locator("main")).to_contain_text("No slates yet")
        check_layout(page, f"slates-empty-{size}")


@pytest.mark.parametrize("size", SIZES)
def test_from_the_experiment_to_the_last_step_of_a_slate_by_keyboard(site: Site, browser: Browser, size: str) -> None:
    with opened(browser, site.service.url, size) as page:
        press_until(page, "Skip to the content")
        press_until(page, "summer")
        page.keyboard.press("Enter")
        expect(page.locator(".verdict")).to_contain_text("more clicks than control (always-valid p < 0.0001)")
        press_until(page, "Slates")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Slates")
        check_layout(page, f"slates-{size}")
        page.reload()
        press_until(page, site.slate["slate_id"])
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text(site.slate["slate_id"])
        for step in range(1, len(site.slate["items"]) + 1):
            expect(page.locator(".steps strong")).to_have_text(f"Step {step} of {len(site.slate['items'])}")
            placed = page.locator(".bars tr", has=page.locator("strong"))
            expect(placed).to_contain_text(site.slate["items"][step - 1])
            if step < len(site.slate["items"]):
                press_until(page, "Next")
                page.keyboard.press("Enter")
        press_until(page, "Previous")
        page.keyboard.press("Enter")
        expect(page.locator(".steps strong")).to_contain_text(f"Step {len(site.slate['items']) - 1} of")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_a_slate_with_odd_ids_is_readable(
    site: Site, browser: Browser, size: str, scheme: Literal["light", "dark"]
) -> None:
    with opened(browser, site.service.url, size, scheme) as page:
        page.goto(f"{site.service.url}/slates/{site.slate['slate_id']}?step=3")
        for one in (HTML, LONG):
            expect(page.get_by_text(one, exact=False).first).to_be_visible()
        slots = page.locator(".plain").nth(1).locator("tbody tr")
        assert slots.count() == len(site.slate["items"])
        for slot, item in enumerate(site.slate["items"]):
            expect(slots.nth(slot)).to_contain_text(item)
            number = 0 if item == HTML else 1 if item == LONG else int(item.split()[1]) + 2
            expect(slots.nth(slot)).to_contain_text(TITLES[number] or item)
        expect(page.locator(".heat")).to_be_visible()
        check_layout(page, f"slate-{size}-{scheme}")


@pytest.mark.parametrize("size", SIZES)
def test_titles_and_the_reason_of_a_fallback_are_readable(site: Site, browser: Browser, size: str) -> None:
    with opened(browser, site.service.url, size) as page:
        page.goto(f"{site.service.url}/slates")
        expect(page.get_by_text("feature 'f1' of item 'a' is beyond float32")).to_be_visible()
        check_layout(page, f"slates-{size}")
        page.goto(f"{site.service.url}/slates/{site.fallback['slate_id']}")
        expect(page.locator(".facts")).to_contain_text("feature 'f1' of item 'a' is beyond float32")
        check_layout(page, f"slate-fallback-{size}")


@pytest.mark.parametrize("size", SIZES)
def test_a_shared_slate_is_readable(site: Site, browser: Browser, size: str) -> None:
    with opened(browser, site.service.url, size) as page:
        page.goto(f"{site.service.url}/?experiment=pair")
        expect(page.locator(".verdict")).to_contain_text("new is preferred to old")
        expect(page.get_by_role("img", name="Preference for the second arm: old and new +")).to_be_visible()
        page.goto(f"{site.service.url}/slates/pair-7")
        expect(page.locator("h1")).to_have_text("Slate pair-7")
        expect(page.locator("#attention")).to_contain_text("Two arms filled this slate in turns")
        placed_by = page.locator('.plain td[data-label="placed by"]').all_text_contents()
        assert placed_by in (["old", "new"] * 5, ["new", "old"] * 5)
        check_layout(page, f"slate-shared-{size}")


def test_an_open_page_follows_the_experiment(site: Site, browser: Browser) -> None:
    with opened(browser, site.service.url) as page:

        def tile(name: str) -> Locator:
            return page.locator(".tiles div", has=page.get_by_text(name, exact=True)).locator("dd")

        page.goto(f"{site.service.url}/?refresh=2")
        slates, clicks = (int(tile(name).inner_text()) for name in ("Slates", "Clicks"))
        answer = site.post("/v1/rerank", request("somebody new"))
        site.post("/v1/clicks", {"slate_id": answer["slate_id"], "item": answer["items"][0]})
        expect(tile("Slates")).to_have_text(str(slates + 1), timeout=20_000)
        expect(tile("Clicks")).to_have_text(str(clicks + 1), timeout=20_000)
