"""Add and remove skips, and move positions, in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.test_accessibility_of_every_page import faults

pytestmark = pytest.mark.browser


def look_at_a_skip(page: Page) -> None:
    page.get_by_label("Every message with this message id").check()
    page.get_by_label("Value", exact=True).fill("nobody's")
    page.get_by_role("button", name="Look at what it matches").click()
    await_heading(page, "What it would have matched")


def await_heading(page: Page, name: str) -> None:
    """Wait for the page that a click leads to."""
    expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()


def test_a_skip_is_looked_at_made_with_a_reason_and_removed(
    open_page: Open, size: dict[str, int]
) -> None:
    page = open_page("/skips/new?topic=orders", viewport=size)

    look_at_a_skip(page)
    looked = faults(page)
    page.get_by_label("Reason").fill("only to try")
    page.locator("button[value=add]").click()
    await_heading(page, "Handle it again")
    page.goto("/skips")
    page.locator("td.what a", has_text="nobody's").first.click()
    await_heading(page, "Handle it again")
    after_adding = faults(page)
    skip = page.url
    page.goto("/skips/new?topic=orders")
    look_at_a_skip(page)
    renewal = page.get_by_role("button", name="Renew skip").bounding_box()
    looked_again = faults(page)
    page.goto(skip)
    page.get_by_label("Reason").fill("tried")
    page.get_by_role("button", name="Remove this skip").click()
    await_heading(page, "Skips")
    page.goto("/skips?everything=1")

    assert (looked, after_adding, looked_again) == ([], [], [])
    assert renewal is not None
    assert renewal["x"] + renewal["width"] < size["width"]
    expect(page.locator("td.what a", has_text="nobody's").first).to_be_visible()


def test_a_position_can_be_looked_at_by_everybody(
    open_page: Open, size: dict[str, int]
) -> None:
    page = open_page("/positions", viewport=size)

    page.locator("td.what a", has_text="billing").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("billing")

    assert faults(page) == []
