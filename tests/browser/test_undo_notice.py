"""The notice after a drop: it comes while a page is open, and waits for a person."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE, Open
from tests.browser.test_accessibility_of_every_page import faults
from tests.browser.test_triage import CONTENT, SOON, await_rows, preview, rows

pytestmark = pytest.mark.browser

# As long as the notices that a script makes stay at least.
OTHER_NOTICES_ARE_GONE = 11_000


def dismiss_notice(page: Page) -> None:
    """Dismiss the notice of a drop in an earlier test: all share one session."""
    if page.locator(".toast").count():
        page.get_by_role("button", name="Dismiss").click()
        expect(page.locator(".toast")).to_have_count(0)


def drop_one(page: Page) -> str:
    """Drop the last message of a list; return its key."""
    await_rows(page, 1)
    key = rows(page)[-1]
    page.get_by_label(f"Select message {key}", exact=True).check()
    preview(page, "Drop…")
    page.get_by_label("Reason").fill("a test of the notice")
    page.get_by_role("button", name="Drop 1 message").click()
    page.wait_for_url(re.compile(r"/operations/\d+$"))
    return key


def test_a_drop_of_another_tab_is_offered_for_undo_on_an_open_page(
    open_page: Open, size: dict[str, int]
) -> None:
    watched = open_page("/problems", viewport=size)
    dismiss_notice(watched)
    key = drop_one(open_page(CONTENT, viewport=size))
    watched.bring_to_front()
    undo = watched.get_by_role("button", name="Undo (29 days left)")

    expect(undo).to_be_visible(timeout=SOON)
    undo.focus()
    watched.wait_for_timeout(OTHER_NOTICES_ARE_GONE)
    expect(undo).to_be_focused()
    assert faults(watched) == []
    watched.keyboard.press("Enter")
    watched.wait_for_url(re.compile(r"/operations/\d+$"))

    expect(watched.get_by_role("heading", name="1 of 1")).to_be_visible(timeout=SOON)
    watched.goto(f"/messages/{key}")
    expect(watched.locator("main .pill").first).to_have_text("●Open")
    expect(undo).not_to_be_attached()


def test_a_dismissed_notice_leaves_the_page_as_it_is(open_page: Open) -> None:
    page = open_page(CONTENT)
    drop_one(page)
    page.get_by_role("button", name="Undo: restore 1 message").wait_for(timeout=SOON)
    page.goto(CONTENT)
    page.locator("#q").fill("is:open error:Nothing")

    page.get_by_role("button", name="Dismiss").click()

    expect(page.locator(".toast")).to_have_count(0)
    expect(page.locator("#q")).to_have_value("is:open error:Nothing")
    page.reload()
    expect(page.locator(".toast")).to_have_count(0)


def test_a_menu_of_a_small_screen_opens_over_the_notice(open_page: Open) -> None:
    page = open_page(CONTENT, viewport=PHONE)
    drop_one(page)
    page.goto("/messages")
    expect(page.get_by_role("button", name="Dismiss")).to_be_visible(timeout=SOON)

    page.locator("header details.menu summary").click()

    for name in ("Show the keys", "Sign out"):
        page.get_by_role("button", name=name).click(trial=True)
