"""A newcomer adds a second factor and signs in with it, in a browser of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.acceptance.product_process import PYTHON, Product, environment
from tests.authenticator_app import PERIOD, app_code
from tests.browser.conftest import DESK, PHONE, listen, new_context
from tests.browser.test_accessibility_of_every_page import Faults, faults, only_faulty

pytestmark = pytest.mark.browser

PASSWORD = "correct horse battery"


@pytest.fixture(params=[DESK, PHONE], ids=["desk", "phone"])
def page(
    request: pytest.FixtureRequest, browser: Browser, product: Product
) -> Iterator[Page]:
    """Open a window without a sign-in; fail if the console shows errors."""
    complaints: list[str] = []
    context = new_context(browser, product, viewport=request.param)
    page = context.new_page()
    listen(page, complaints, refused=False)
    yield page
    context.close()
    assert complaints == []


@pytest.fixture
def name(request: pytest.FixtureRequest, product: Product) -> str:
    """Add a person for this test."""
    name = f"second{len(request.node.name)}"
    subprocess.run(
        [PYTHON, "manage.py", "create_user", name],
        cwd=product.tree,
        env=environment(),
        input=f"{PASSWORD}\n",
        text=True,
        check=True,
    )
    return name


def sign_in(page: Page, name: str) -> None:
    page.goto("/sign-in")
    page.get_by_label("User name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def test_a_second_factor_is_added_and_asked_for(page: Page, name: str) -> None:
    by_page: Faults = {}
    sign_in(page, name)
    page.goto("/second-factor")
    by_page["add"] = faults(page)
    expect(page.get_by_alt_text("QR code")).to_be_visible()
    is_drawn = page.evaluate("document.querySelector('img.qr').naturalWidth > 0")
    secret = page.locator("code.secret").inner_text()
    now = datetime.now(UTC)

    page.get_by_label("Your password").fill(PASSWORD)
    page.get_by_label("Code", exact=True).fill(app_code(secret, now))
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_role("heading", name="Write these down")).to_be_visible()
    by_page["recovery codes"] = faults(page)
    page.get_by_role("link", name="I have written them down").click()
    page.goto("/second-factor")
    by_page["added"] = faults(page)

    page.context.clear_cookies()
    sign_in(page, name)
    expect(page.get_by_label("Code")).to_be_focused()
    by_page["asked"] = faults(page)
    # The code of the next half minute is valid already, and unused. On a busy machine
    # its time is over by now.
    later = max(now + timedelta(seconds=PERIOD), datetime.now(UTC))
    page.get_by_label("Code").fill(app_code(secret, later))
    page.get_by_role("button", name="Sign in").click()

    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert is_drawn
    assert only_faulty(by_page) == {}
