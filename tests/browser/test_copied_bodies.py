"""The Copy button of a body hands over the body, character for character."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from apps.core import clock
from tests.browser.conftest import Open
from tests.failure_report_builders import failure

pytestmark = pytest.mark.browser

# HTML changes NUL and the ends of lines, and a text area the ends of lines.
BODY = "a\0b\r\nc\rd\n</script>&amp;'\"\u2028\ufeff\u202e\U0001f600"
# A page over plain HTTP has no clipboard API.
WITHOUT_API = """() => Object.defineProperty(
    navigator, "clipboard", { value: undefined, configurable: true })"""
WITH_API = "() => delete navigator.clipboard"


@pytest.fixture
def page(open_page: Open) -> Iterator[Page]:
    """Open the page of a message with that body."""
    report = failure(clock.now(), topic="copies", body=BODY.encode())
    page = open_page("/")
    (token,) = (
        each["value"] for each in page.context.cookies() if each["name"] == "pw_csrf"
    )
    response = page.request.post(
        "/api/v1/failures",
        data={"failures": [report]},
        headers={"X-CSRFToken": token, "Referer": page.url},
    )
    assert response.ok, response.text()
    page.goto("/messages?q=topic:copies")
    page.locator("td.what a").first.click()
    page.get_by_role("button", name="Show body").wait_for()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield page
    page.context.clear_permissions()


@pytest.mark.parametrize("has_api", [True, False], ids=["api", "by-hand"])
def test_the_text_that_is_copied_is_the_body(page: Page, *, has_api: bool) -> None:
    page.get_by_role("button", name="Show body").click()
    button = page.locator("button.copy")
    expect(button).to_have_count(1)
    page.evaluate("() => navigator.clipboard.writeText('something else')")
    if not has_api:
        page.evaluate(WITHOUT_API)

    button.click()

    expect(button).to_have_text("Copied")
    page.evaluate(WITH_API)
    assert page.evaluate("() => navigator.clipboard.readText()") == BODY
