"""Every page in both themes, at a desk and on a phone: quiet, whole and reachable."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import DESK, PHONE, Open
from tests.browser.test_triage import await_rows

pytestmark = pytest.mark.browser

WIDER_THAN_THE_SCREEN = "document.documentElement.scrollWidth > innerWidth"
TOO_SMALL = """() => [...document.querySelectorAll('a, button, input, select, summary')]
    .filter(e => e.checkVisibility() && !e.closest('p, dd, .chosen, .skip-link'))
    .map(e => [(e.closest('label') ?? e).getBoundingClientRect(), e.outerHTML])
    .filter(([box]) => box.height > 1 && (box.height < 24 || box.width < 24))
    .map(([box, html]) => `${box.width}x${box.height} ${html.slice(0, 80)}`)"""
ROWS_SEEN = """() => [...document.querySelectorAll('tbody tr')]
    .filter(row => row.getBoundingClientRect().bottom <= innerHeight).length"""
SERIOUS_FAULTS = """() => [
    ...[...document.querySelectorAll('input, select, textarea')]
        .filter(e => e.type !== 'hidden' && !e.labels?.length && !e.ariaLabel),
    ...[...document.querySelectorAll('button, a')]
        .filter(e => e.checkVisibility() && !e.textContent.trim() && !e.ariaLabel),
    ...[...document.querySelectorAll('img')].filter(e => !e.hasAttribute('alt')),
].map(e => e.outerHTML.slice(0, 80))"""


def paths(page: Page) -> list[str]:
    """List every kind of page, with one message, problem and operation of each."""
    page.goto("/problems?q=")
    await_rows(page, 1)
    problem = page.locator("td.what a").first.get_attribute("href")
    page.goto("/messages")
    message = page.locator("td.what a").first.get_attribute("href")
    fixed = ["/problems", "/messages", "/messages?everything=1", "/positions", "/audit"]
    return [*fixed, str(problem), str(message), decided(page)]


def decided(page: Page) -> str:
    page.goto("/messages?q=is:open")
    page.locator("tbody input[name=ids]").first.check()
    page.locator("button[value=redrive]").click()
    page.locator("button.primary", has_text="Requeue 1 message").click()
    expect(page.get_by_role("heading", name="The decision")).to_be_visible()
    return page.url


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_fits_and_names_its_controls(
    open_page: Open, theme: str, size: dict[str, int]
) -> None:
    page = open_page(viewport=size, color_scheme=theme)

    faults = {}
    for path in paths(page):
        page.goto(path)
        faults[path] = [
            *page.evaluate(TOO_SMALL),
            *page.evaluate(SERIOUS_FAULTS),
            *(["too wide"] if page.evaluate(WIDER_THAN_THE_SCREEN) else []),
        ]

    assert {path: found for path, found in faults.items() if found} == {}


def test_a_desk_shows_sixteen_rows(open_page: Open) -> None:
    page = open_page("/messages")
    await_rows(page, 17)

    seen: int = page.evaluate(ROWS_SEEN)

    assert seen >= 16


def test_a_phone_acts_from_the_bottom_of_the_screen(open_page: Open) -> None:
    page = open_page("/messages?q=is:open", viewport=PHONE)
    await_rows(page, 1)

    page.locator("tbody input[name=ids]").first.click()
    box = page.get_by_role("button", name="Requeue…").bounding_box()

    assert box
    assert box["y"] > PHONE["height"] - 120
