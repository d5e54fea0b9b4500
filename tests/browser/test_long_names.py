"""Long names on a narrow screen break between their words."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page

from apps.core import clock
from tests.browser.conftest import PHONE, Open
from tests.browser.test_accessibility_of_every_page import WIDER_THAN_THE_SCREEN, faults
from tests.failure_report_builders import failure

pytestmark = pytest.mark.browser

NAME = (
    "com.example.payments.settlement.exceptions."
    "CurrencyConversionNotSupportedForSettlementAccountException"
)
HEADER = "X-Correlation-Settlement-Account-Identifier-For-Reconciliation"
# Words of names that begin on one line and end on another.
TORN = """selector => {
    const torn = [];
    for (const each of document.querySelectorAll(selector)) {
        const texts = document.createTreeWalker(each, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
            const range = document.createRange();
            range.selectNodeContents(texts.currentNode);
            const words = texts.currentNode.data.trim();
            const isWord = words && !/\\s/.test(words);
            if (isWord && range.getClientRects().length > 1) torn.push(words);
        }
    }
    return torn;
}"""
SPILT = """() => [...document.querySelectorAll("table.pairs td")]
    .filter(cell => cell.scrollHeight > cell.clientHeight + 1)
    .map(cell => cell.textContent)"""
NAMES = "h1, h2.named, summary .named, .inside > p > .strong, table.pairs th"


@pytest.fixture
def page(open_page: Open) -> Page:
    """Open the page of a message whose names are long, on a phone."""
    report = failure(
        clock.now(),
        topic="settlements",
        exception={"type": NAME, "message": "", "traceback": ""},
        headers=[(HEADER, b"0123456789abcdef" * 8)],
    )
    page = open_page("/", viewport=PHONE)
    (token,) = (
        each["value"] for each in page.context.cookies() if each["name"] == "pw_csrf"
    )
    response = page.request.post(
        "/api/v1/failures",
        data={"failures": [report]},
        headers={"X-CSRFToken": token, "Referer": page.url},
    )
    assert response.ok, response.text()
    page.goto("/messages?q=topic:settlements")
    page.locator("td.what a").first.click()
    page.get_by_role("heading", name=re.compile("Headers")).wait_for()
    return page


def test_long_names_break_behind_their_dots_and_at_their_humps(page: Page) -> None:
    message = page.evaluate(TORN, NAMES), faults(page)
    title = page.locator("h2.named").bounding_box()
    page.get_by_role("link", name=re.compile("CurrencyConversion")).first.click()
    page.get_by_role("heading", name="Why one problem?").wait_for()
    problem = page.evaluate(TORN, NAMES), faults(page)

    assert message == problem == ([], [])
    # The heading has the whole width, not only the space between pill and buttons.
    assert title is not None
    assert title["width"] > PHONE["width"] * 0.8


def test_long_values_stay_within_their_rows(page: Page) -> None:
    page.get_by_role("button", name="Show body").click()
    page.get_by_text("0123456789abcdef").first.wait_for()
    on_list = page.evaluate(SPILT), page.evaluate(WIDER_THAN_THE_SCREEN)
    page.goto("/brokers")
    page.locator("td.what a").first.click()
    page.get_by_role("heading", name=re.compile("What .* can do")).wait_for()
    on_detail = page.evaluate(SPILT), page.evaluate(WIDER_THAN_THE_SCREEN)

    assert on_list == on_detail == ([], False)
