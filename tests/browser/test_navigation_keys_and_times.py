"""The frame of every page: navigation, keys and times; and the sign-in pages."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Locator, Page, expect

from apps.dashboard import first_message_examples
from tests.browser.conftest import PHONE, Open
from tests.browser.test_triage import await_rows

pytestmark = pytest.mark.browser

KOLKATA = "Asia/Kolkata"
OUTLINE = "element => getComputedStyle(element).outlineStyle"


def times(page: Page) -> Locator:
    return page.locator("main time:not([data-relative])")


def report(page: Page) -> None:
    """Report the failure of the help page's example, as its reader would."""
    body = {"failures": [first_message_examples.failure(now=datetime.now(UTC))]}
    cookies = {cookie.get("name"): cookie for cookie in page.context.cookies()}
    token = cookies["pw_csrf"]["value"]
    answer = page.request.post(
        "/api/v1/failures", data=body, headers={"X-CSRFToken": token}
    )
    assert answer.ok, answer.text()


def press_g_and(key: str, page: Page) -> None:
    """Press both keys within the time that the script allows, however slow we are."""
    page.evaluate("const now = Date.now(); Date.now = () => now")
    page.keyboard.press("g")
    page.keyboard.press(key)


def test_what_is_new_leads_from_the_overview_to_its_problem(open_page: Open) -> None:
    page = open_page("/help")
    report(page)
    page.goto("/")

    page.get_by_role("link", name=re.compile(r"^\d+ new$")).click()
    new = page.locator("tr[data-key]", has_text="no such customer").first
    new.get_by_role("link").click()

    expect(page.get_by_role("heading", name="Why one problem?")).to_be_visible()
    expect(page.get_by_text("no such customer").first).to_be_visible()


def test_a_topic_leads_to_its_messages(open_page: Open) -> None:
    page = open_page("/topics")

    page.get_by_role("link", name="ContentTopic").click()
    expect(page.get_by_role("heading", name="Dead-letter queue")).to_be_visible()
    page.get_by_role("main").get_by_role("link", name="Messages").click()

    expect(page.get_by_label("Search messages")).to_have_value("topic:ContentTopic")
    await_rows(page, 1)


def test_a_decision_is_found_in_the_list_of_operations(open_page: Open) -> None:
    page = open_page("/messages?q=is:open+topic:ContentTopic")
    await_rows(page, 1)
    page.locator("tbody input[name=ids]").first.check()
    page.locator("button[value=redrive]").click()
    page.get_by_role("button", name="Requeue 1 message").click()
    page.wait_for_url(re.compile(r"/operations/\d+$"))
    decided = page.url

    press_g_and("p", page)
    page.get_by_role("link", name=re.compile("Requeued? 1 message")).first.click()

    assert page.url == decided


@pytest.mark.parametrize(
    ("key", "heading"),
    [
        ("o", "Overview"),
        ("f", "Problems"),
        ("t", "Topics"),
        ("p", "Operations"),
        ("r", "Reports"),
        ("h", "Help"),
    ],
)
def test_two_keys_lead_to_every_page(open_page: Open, key: str, heading: str) -> None:
    page = open_page("/positions")

    press_g_and(key, page)

    expect(page.get_by_role("heading", level=1)).to_have_text(heading)


def test_the_keys_of_the_page_are_listed(open_page: Open) -> None:
    page = open_page("/")

    page.keyboard.press("?")

    keys = page.get_by_role("dialog")
    for key in ("g o", "g t", "g p", "g r", "."):
        expect(keys.get_by_text(key, exact=True)).to_be_visible()


def test_the_first_tab_skips_to_the_content_and_every_focus_is_seen(
    open_page: Open,
) -> None:
    page = open_page("/help")

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()

    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.locator(":focus").evaluate(OUTLINE) == "solid"


def test_a_menu_gives_the_focus_back(open_page: Open) -> None:
    page = open_page("/")
    summary = page.locator("header details.menu summary")
    summary.press("Enter")
    page.keyboard.press("Tab")

    page.keyboard.press("Escape")

    expect(summary).to_be_focused()


def test_a_relative_time_tells_the_moment_to_pointer_and_keyboard(
    open_page: Open,
) -> None:
    page = open_page("/messages")
    await_rows(page, 1)
    moment, tip = page.locator("tbody time").first, page.get_by_role("tooltip")

    moment.hover()
    expect(tip).to_contain_text("UTC")
    page.mouse.move(0, 0)
    expect(tip).not_to_be_visible()
    moment.focus()
    expect(tip).to_contain_text("UTC")
    page.keyboard.press("Escape")

    expect(tip).not_to_be_visible()


def test_times_are_told_in_ones_own_zone_also_after_a_refresh(open_page: Open) -> None:
    page = open_page("/messages?q=is:open", timezone_id=KOLKATA)
    await_rows(page, 1)
    page.locator("tbody input[name=ids]").first.check()
    page.locator("button[value=redrive]").click()
    page.get_by_role("button", name="Requeue 1 message").click()
    page.wait_for_url(re.compile(r"/operations/\d+$"))
    expect(times(page).first).to_contain_text("UTC")

    page.locator("header details.menu summary").click()
    page.locator("button[name=times][value=local]").click()
    expect(times(page).first).to_contain_text("GMT+5:30")
    with page.expect_response(lambda response: "/operations/" in response.url):
        page.keyboard.press("Shift+R")

    expect(times(page).first).to_contain_text("GMT+5:30")
    expect(times(page).filter(has_text="UTC")).to_have_count(0)


def test_without_a_script_times_are_utc_and_say_so(open_page: Open) -> None:
    page = open_page("/audit", java_script_enabled=False, timezone_id=KOLKATA)

    texts = times(page).all_inner_texts()

    assert texts
    assert all(text.endswith(" UTC") for text in texts)


def test_a_phone_has_its_menu_behind_one_button(open_page: Open) -> None:
    page = open_page("/", viewport=PHONE)
    topics = page.get_by_role("navigation", name="Main").get_by_role(
        "link", name="Topics"
    )
    expect(topics).not_to_be_visible()

    page.get_by_role("navigation", name="Main").locator("summary").click()
    topics.click()

    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
