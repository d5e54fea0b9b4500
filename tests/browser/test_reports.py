"""The reports in a real browser: charts link to messages, and are accessible."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import LiteralString

import psycopg
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.acceptance.product_process import Product
from tests.browser.axe import violations
from tests.browser.conftest import Open

pytestmark = pytest.mark.browser

# Long before the history of the sample, so that no nightly run changes these days.
LAST = date(2025, 6, 28)
DAYS = [LAST - timedelta(days=number) for number in range(28) if number != 9]
PERIOD = f"days=28&to={LAST}"
TOPICS = ("reported", "reported too")
WAYS = ("/reports?{}", "/reports?{}&topic=reported", "/reports/runs")
WIDER_THAN_THE_SCREEN = "document.documentElement.scrollWidth > innerWidth"

RUN = """
INSERT INTO reports_run (
    first_day, last_day, state, asked_by, asked_at, epoch, started_at, snapshot, as_of,
    finished_at, rows_in, late_rows, trouble, log
) VALUES (
    %s, %s, 'done', 'user:test', now(), 1, now(), '1:1:', now(), now(), 9, 1, '', ''
) RETURNING id
"""
TOPIC = """
INSERT INTO brokers_topic (
    name, native_name, dead_letter_queue, max_dequeue_count, visibility_timeout,
    lane_state, lane_detail
) VALUES (%(name)s, %(name)s, '', 5, 60, 'off', '') RETURNING id
"""
RATES = """
INSERT INTO reports_rate (
    day_id, hour, topic_id, consumer_group, source, delivered, failed, uncounted,
    poisoned, skipped, retried, redriven, confirmed, recurred, dropped,
    failure_rate, rate_low, rate_high, p50_ms
)
SELECT day, hour, %(topic)s, consumer_group, 'sdk', 100, 2,
    0, 1, 0, 0, 0, 0, 0, 0, 0.02, 0.01, 0.03, 16
FROM reports_day
CROSS JOIN (VALUES (NULL, NULL), (NULL, 'billing'), (9, NULL), (15, NULL))
    AS grain (hour, consumer_group)
WHERE run_id = %(run)s
"""


@pytest.fixture(autouse=True, scope="module")
def published(product: Product) -> Iterator[None]:
    """Publish four weeks with a gap, as nightly runs would."""
    where = json.loads((product.var / "run" / "servers.json").read_text())
    with psycopg.connect(where["database_url"], autocommit=True) as database:
        run = one(database, RUN, [DAYS[-1], DAYS[0]])
        for day in DAYS:
            database.execute(
                "INSERT INTO reports_day VALUES (%s, 9, 1, %s)", [day, run]
            )
        topics = [one(database, TOPIC, {"name": name}) for name in TOPICS]
        for topic in topics:
            database.execute(RATES, {"topic": topic, "run": run})
        yield
        database.execute("DELETE FROM reports_rate WHERE topic_id = ANY(%s)", [topics])
        database.execute("DELETE FROM reports_day WHERE run_id = %s", [run])
        database.execute("DELETE FROM reports_run WHERE id = %s", [run])
        database.execute("DELETE FROM brokers_topic WHERE id = ANY(%s)", [topics])


def one(
    database: psycopg.Connection,
    statement: LiteralString,
    values: Sequence[object] | Mapping[str, object],
) -> int:
    row = database.execute(statement, values).fetchone()
    assert row
    return int(row[0])


def test_every_report_fits_and_can_be_read_by_everybody(
    open_page: Open, size: dict[str, int]
) -> None:
    page = open_page(viewport=size)

    faults = {}
    for way in WAYS:
        page.goto(way.format(PERIOD))
        page.evaluate(
            "for (const e of document.querySelectorAll('main details')) e.open = 1"
        )
        faults[way] = violations(page)
        assert not page.evaluate(WIDER_THAN_THE_SCREEN), way

    assert {where: broken for where, broken in faults.items() if broken} == {}


def test_a_bar_leads_to_the_messages_of_its_day(open_page: Open) -> None:
    page = open_page(f"/reports?{PERIOD}&topic=reported")

    page.locator("svg.days a").last.click()

    expect(page.get_by_label("Search messages")).to_have_value(
        f"topic:reported day:{LAST}"
    )


def test_the_keyboard_reaches_what_the_pointer_does(open_page: Open) -> None:
    page = open_page(f"/reports?{PERIOD}")

    card(page).locator("summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")  # what the column counts
    page.keyboard.press("Tab")

    focused = page.locator(":focus")
    expect(focused).to_have_text(str(LAST))
    bar = card(page).locator("svg.days a").last
    assert focused.get_attribute("href") == bar.get_attribute("href")


def card(page: Page) -> Locator:
    return page.get_by_role("region", name="reported", exact=True)


def test_a_chart_is_heard_as_a_sentence(open_page: Open) -> None:
    page = open_page(f"/reports?{PERIOD}&topic=reported")

    chart = page.get_by_role("img", name=re.compile("Failure rate by the day from"))

    expect(chart.first).to_have_accessible_name(
        re.compile(r"2\.0.% in all, .* 1 of 28 days have no report")
    )


def test_the_period_and_the_topic_are_in_the_address(open_page: Open) -> None:
    page = open_page(f"/reports?{PERIOD}", java_script_enabled=False)

    page.get_by_role("link", name="7 days").click()
    page.get_by_label("Topic", exact=True).select_option("reported too")
    page.get_by_role("button", name="Show").click()

    expect(page.get_by_role("heading", name="Reports / reported too")).to_be_visible()
    assert "topic=reported+too&from=2025-06-22&to=2025-06-28" in page.url
    assert page.locator("svg.days").first.locator("a").count() == 7


def test_a_run_that_cannot_be_is_told_where_it_was_asked_for(open_page: Open) -> None:
    page = open_page("/reports/runs", refused=True)

    page.get_by_label("From").fill("2025-06-28")
    page.get_by_label("To").fill("2025-06-01")
    page.get_by_role("button", name="Run again").click()

    expect(page.get_by_role("alert")).to_contain_text("must not lie before from")
    expect(page.get_by_label("To")).to_have_value("2025-06-01")


def test_on_paper_there_is_the_report_and_nothing_to_press(open_page: Open) -> None:
    page = open_page(f"/reports?{PERIOD}&topic=reported")

    page.emulate_media(media="print")

    expect(page.get_by_role("heading", name="All numbers")).to_be_visible()
    expect(page.get_by_role("button", name="Show")).not_to_be_visible()
    expect(page.locator(".side")).not_to_be_visible()
