"""The overview and the page of a problem: what is on top, and where clicks lead."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.acceptance.api_client import ApiClient
from tests.acceptance.product_process import PYTHON, Product, environment
from tests.browser.conftest import Open
from tests.browser.test_triage import SOON, await_rows, number_at
from tests.failure_report_builders import failure
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

FIRE = "GatewayTimeout"
# The page refreshes every 5 s; the docs promise 10 s. That is of a machine that does
# nothing else.
IN_TIME = 10_000 if "SOAK" in os.environ else 30_000


@pytest.fixture(scope="module")
def reporter(product: Product) -> ApiClient:
    command = [
        PYTHON,
        "manage.py",
        "create_api_key",
        "fire",
        "--scope",
        "capture:write",
    ]
    process = subprocess.run(
        command,
        cwd=product.tree,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return ApiClient(url=product.url, key=process.stdout.strip())


def report(reporter: ApiClient, number: int, *, topic: str, kind: str) -> None:
    """Report so many failures of the last three minutes, fifty a request."""
    now = datetime.now(UTC)
    members = [
        failure(
            now - timedelta(seconds=170 * each / number),
            topic=topic,
            bookmark=f"{kind}-{each}-{now.timestamp()}",
            message_id=f"{kind}-{each}",
            exception={
                "type": kind,
                "message": f"no answer for order {each + 1000}",
                "traceback": 'Traceback (most recent call last):\n  File "/srv/a.py",'
                " line 1, in charge\n    gateway.charge()\n",
            },
            host="checkout-1",
            handler_version="2.4.1",
        )
        for each in range(number)
    ]
    for start in range(0, number, 50):
        reporter.post("failures", {"failures": members[start : start + 50]})


def top(place: Locator) -> float:
    box = place.bounding_box()
    assert box
    return box["y"]


def needs(page: Page) -> Locator:
    return page.locator("table.needs tbody tr")


def test_five_hundred_failures_are_the_first_row_within_ten_seconds_and_can_be_dropped(
    open_page: Open, reporter: ApiClient
) -> None:
    page = open_page("/")
    expect(page.get_by_text(FIRE)).to_have_count(0)

    report(reporter, 500, topic="checkout", kind=FIRE)

    expect(needs(page).first).to_contain_text(FIRE, timeout=IN_TIME)
    expect(needs(page).first.locator("td.num.strong")).to_contain_text("500")
    expect(needs(page).first.locator(".pill")).to_have_text("●New")
    needs(page).first.get_by_role("button", name="Drop…").click()
    expect(page.get_by_role("heading", name="Drop 500 messages?")).to_be_visible()
    page.get_by_label("Reason").fill("a test of the overview")
    page.get_by_role("button", name="Drop 500 messages").click()
    page.wait_for_url(re.compile(r"/operations/\d+$"))
    page.goto("/")
    expect(page.locator("table.needs", has_text=FIRE)).to_have_count(0, timeout=SOON)


def test_the_overview_puts_what_needs_a_person_above_topics_and_health(
    open_page: Open,
) -> None:
    page = open_page("/problems")
    await_rows(page, 1)
    page.goto("/")

    places = [top(page.locator(f"#{part}")) for part in ("needs", "topics", "health")]

    assert places == sorted(places)
    assert top(needs(page).first) < 768


def test_rows_stay_where_they_are_while_a_pointer_moves_over_them(
    open_page: Open, reporter: ApiClient
) -> None:
    page = open_page("/")
    # Enough failures to be among the first problems.
    report(reporter, 100, topic="checkout", kind="Quiet")
    expect(page.get_by_text("Quiet").first).to_be_visible(timeout=SOON)

    row = needs(page).first
    row.hover()
    stays, places = page.locator("[data-live-toggle]"), count(600)

    def are_paused_by_a_move() -> bool:
        page.mouse.move(next(places), top(row) + 10)
        return stays.inner_text() == "Updates paused"

    for _ in range(12):
        wait_until(are_paused_by_a_move)
        page.wait_for_timeout(500)
    page.mouse.move(5, 5)

    expect(stays).to_have_text("Live · 5 s")


def test_a_problem_shows_stack_and_breakdowns_above_trend_and_messages(
    open_page: Open, reporter: ApiClient
) -> None:
    report(reporter, 60, topic="checkout", kind="Declined")
    page = open_page("/problems?q=topic:checkout+error:Declined")
    page.get_by_role("link", name="Declined").first.click()

    stack, which, trend, messages = (
        top(page.locator(f"#{part}"))
        for part in ("sample", "breakdown", "trend", "messages")
    )

    assert max(stack, which) < trend < messages
    assert messages < 768
    expect(page.get_by_text("charge /srv/a.py:1")).to_be_visible()
    rows = page.locator("tr[data-key]")
    expect(rows).to_have_count(50)
    texts = rows.locator("td.differs").all_inner_texts()
    assert len(set(texts)) == 50


def test_the_number_on_the_button_follows_what_fails_and_is_what_the_preview_counts(
    open_page: Open, reporter: ApiClient
) -> None:
    report(reporter, 2, topic="checkout", kind="Growing")
    page = open_page("/problems?q=topic:checkout+error:Growing")
    page.get_by_role("link", name="Growing").first.click()
    button = page.locator("#acts-now").get_by_role(
        "button", name=re.compile("^Requeue")
    )
    number = number_at(button)

    report(reporter, 3, topic="checkout", kind="Growing")
    expect(button).to_have_text(f"Requeue {number + 3} open…", timeout=IN_TIME)
    button.click()

    heading = f"{number + 3} messages selected"
    expect(page.get_by_text(heading)).to_be_visible()
    page.get_by_role("link", name="Cancel").click()
    expect(page.get_by_role("heading", name="Where it fails")).to_be_visible()


def test_a_person_goes_from_problem_to_problem_and_back_to_the_list(
    open_page: Open, reporter: ApiClient
) -> None:
    for kind in ("WalkOne", "WalkTwo"):
        report(reporter, 1, topic="checkout", kind=kind)
    path = "/problems?q=topic:checkout+error:Walk"
    page = open_page(path)
    titles = page.locator("td.what a").all_inner_texts()
    page.locator("td.what a").first.click()

    page.get_by_role("link", name="Older problem").click()
    expect(page.locator("h1")).to_contain_text(titles[1].replace("Walk", ""))
    expect(page.get_by_role("link", name="Older problem")).to_have_count(0)
    page.keyboard.press("[")
    expect(page.get_by_role("link", name="Newer problem")).to_have_count(0)
    page.get_by_role("link", name="Problems /").click()

    expect(page.get_by_label("Search problems")).to_have_value(
        "topic:checkout error:Walk"
    )


def test_the_header_of_a_column_is_chosen_without_a_script(
    open_page: Open, reporter: ApiClient
) -> None:
    now = datetime.now(UTC)
    for number in range(2):
        member = failure(
            now,
            topic="checkout",
            bookmark=f"h-{number}-{now.timestamp()}",
            headers=[("type", b"Charged"), ("ce-type", b"kind-%d" % number)],
            exception={"type": "Typed", "message": "", "traceback": ""},
        )
        reporter.post("failures", {"failures": [member]})
    page = open_page("/problems", java_script_enabled=False)
    page.goto("/problems?q=topic:checkout+error:Typed")
    page.locator("td.what a", has_text="Typed").first.click()
    expect(page.locator("th", has_text="ce-type")).to_be_visible()

    page.get_by_label("Show the header").select_option("type")
    page.get_by_role("button", name="Show", exact=True).click()

    expect(page.locator("th", has_text=re.compile("^type"))).to_be_visible()
    expect(page.get_by_role("cell", name="Charged").first).to_be_visible()
