"""An engineer's morning: see what failed, send it back, drop some, undo it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.acceptance.product_process import Product
from tests.browser.conftest import Open, sign_in

pytestmark = pytest.mark.browser

SOON = 60_000
CONTENT = "/messages?q=is:open+topic:ContentTopic"


def rows(page: Page) -> list[str]:
    keys: list[str] = page.locator("tr[data-key]").evaluate_all(
        "rows => rows.map(row => row.dataset.key)"
    )
    return keys


def await_rows(page: Page, number: int) -> None:
    """Wait until the list has this many rows, and no poll is pending.

    A reloaded list contains new rows: a late one would move the rows during the test.
    """
    for _ in range(60):
        if len(rows(page)) >= number:
            return
        page.wait_for_timeout(1000)
        page.reload()
    pytest.fail(f"there are no {number} rows")


def preview(page: Page, button: str) -> None:
    page.get_by_role("button", name=re.compile(button)).click()
    page.wait_for_url("**/operations/preview?*")


def number_at(place: Locator) -> int:
    """Read a number; one that takes Postgres too long comes with a later refresh."""
    expect(place).to_have_text(re.compile(r"\d"))
    return int(re.sub(r"\D", "", place.inner_text()))


def test_failures_appear_by_themselves_gathered_into_problems(open_page: Open) -> None:
    page = open_page("/problems")

    expect(page.get_by_text("I'm superstitious").first).to_be_visible(timeout=SOON)

    page.get_by_role("link", name="ValueError").first.click()
    expect(page.get_by_role("heading", name="Why one problem?")).to_be_visible()


def times_back(page: Page, key: str) -> int:
    """Read how often a message came back before: other tests requeue too."""
    page.goto(f"/messages/{key}")
    match = re.search(r"came back\s+(\d+)x", page.locator("main").inner_text())
    page.goto(CONTENT)
    return int(match[1]) if match else 0


def test_a_message_that_fails_again_is_the_same_message(open_page: Open) -> None:
    page = open_page(CONTENT)
    await_rows(page, 2)
    key = rows(page)[0]
    before = times_back(page, key)
    page.get_by_label(f"Select message {key}", exact=True).check()

    preview(page, "Requeue…")
    expect(page.locator(":focus")).to_have_text("Cancel")
    page.get_by_role("button", name="Requeue 1 message").click()
    page.wait_for_url(re.compile(r"/operations/\d+$"))

    came_back = page.locator(".counts div", has_text="Came back")
    expect(came_back.locator("dd")).to_have_text("1", timeout=SOON)
    page.goto(f"/messages/{key}")
    expect(page.get_by_text(f"came back {before + 1}x").first).to_be_visible()
    expect(page.get_by_text("after a requeue").first).to_be_visible()


def test_a_topic_chosen_after_the_preview_is_previewed_before_anything_is_sent(
    open_page: Open,
) -> None:
    page = open_page(CONTENT, refused=True)
    await_rows(page, 1)
    page.get_by_label(f"Select message {rows(page)[0]}", exact=True).check()
    preview(page, "Requeue…")

    page.get_by_label("Reason").fill("to the spare queue")
    page.get_by_label("Send to").select_option("orders")
    page.get_by_role("button", name="Requeue 1 message").click()

    expect(page.get_by_role("alert")).to_contain_text("was changed after the preview")
    expect(page.get_by_text("1 message will be sent to orders")).to_be_visible()
    expect(page.get_by_label("Send to")).to_have_value("orders")
    expect(page.get_by_label("Reason")).to_have_value("to the spare queue")
    assert "/operations/confirm" in page.url


def test_what_its_consumer_can_handle_by_now_becomes_handled(open_page: Open) -> None:
    # The back end of the sample is down for a while: until it is up, messages return.
    page = open_page("/messages?q=is:open+error:TimeoutError")
    await_rows(page, 1)
    handled = page.locator(".counts div", has_text="Handled").locator("dd")
    # Only what was counted is a link.
    answers = page.locator(".counts div", has_text=re.compile("Handled|Came back"))
    answered = answers.locator("dd a")

    for _ in range(6):
        page.goto("/messages?q=is:open+error:TimeoutError&everything=1")
        if rows(page):
            preview(page, "Requeue…")
            page.locator("button.primary", has_text="Requeue").click()
            page.wait_for_url(re.compile(r"/operations/\d+$"))
            page.wait_for_timeout(12_000)
            expect(answered.first).to_be_visible()
            if handled.inner_text() != "0":
                break

    expect(handled).not_to_have_text("0")
    page.goto("/messages?q=is:handled+error:TimeoutError")
    expect(page.locator("tbody .pill").first).to_have_text("✓Handled")


def test_what_is_dropped_can_be_had_back_and_all_of_it_is_on_record(
    open_page: Open,
) -> None:
    page = open_page(CONTENT)
    await_rows(page, 1)
    key = rows(page)[-1]
    page.goto(f"/messages/{key}")

    preview(page, "Drop…")
    page.get_by_label("Reason").fill("a test of dropping")
    page.get_by_role("button", name="Drop 1 message").click()
    page.get_by_role("button", name="Undo: restore 1 message").click(timeout=SOON)
    expect(page.get_by_role("heading", name="1 of 1")).to_be_visible(timeout=SOON)

    page.goto(f"/messages/{key}")
    expect(page.locator("main .pill").first).to_have_text("●Open")
    # The sample's history may be writing its own entries, which come after ours.
    page.goto("/audit?actor=admin")
    expect(page.get_by_text("“a test of dropping”").first).to_be_visible()
    page.get_by_role("button", name="Verify the chain").click()
    expect(page.get_by_text("is whole")).to_be_visible()


def test_every_act_works_without_a_script(open_page: Open, product: Product) -> None:
    page = open_page("/help", java_script_enabled=False)
    page.context.clear_cookies()
    sign_in(page, product)
    page.goto(CONTENT)
    for _ in range(60):
        if page.locator("tr[data-key]").count():
            break
        page.reload()

    page.locator("input[name=ids]").first.check()
    preview(page, "Requeue…")
    page.get_by_role("button", name="Requeue 1 message").click()

    expect(page.get_by_role("heading", name="The decision")).to_be_visible()


def test_a_body_is_shown_on_demand(open_page: Open) -> None:
    page = open_page(CONTENT)
    await_rows(page, 1)
    page.locator("td.what a").first.click()
    page.wait_for_url("**/messages/*")

    page.keyboard.press("p")

    expect(page.get_by_label("Body as it came")).to_be_attached()
    expect(page.get_by_text("read the body of message").first).to_be_visible()
