"""A newcomer's first hour with a broker of their own, as `docs/first-hour.md` tells it.

Every step is one that the page before offers; nothing is known beforehand.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from playwright.sync_api import Locator, Page, expect

from poisonweb.embedded import redis as embedded
from tests.brokers.rabbitmq import RabbitMqServer
from tests.browser.conftest import Open
from tests.browser.rabbitmq_queue_with_crashing_consumer import (
    BODY,
    DELIVERY_LIMIT,
    HEADERS,
    MARK,
    QUEUE,
    TOPIC,
    RabbitMqWithManagement,
)
from tests.browser.test_accessibility_of_every_page import faults
from tests.browser.test_triage import SOON, await_rows

pytestmark = pytest.mark.browser

# Their Redis: the dead-letter queue has the usual name.
REFUNDS = "refunds"


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMqWithManagement]:
    # It stays for the tests of all pages, which then include its pages.
    server = RabbitMqServer(tmp_path_factory.mktemp("their broker"))
    yield RabbitMqWithManagement(server)
    server.stop()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[str]:
    with embedded.temporary(tmp_path) as url:
        with redis.Redis.from_url(url) as client:
            client.xgroup_create(REFUNDS, "ledger", mkstream=True)
            client.xadd(f"{REFUNDS}-poison", {"body": BODY, "tenant": "acme"})
        yield url


def connect(page: Page, own: RabbitMqWithManagement) -> None:
    page.get_by_role("link", name="Add a broker").click()
    page.get_by_label("Name", exact=True).fill("ours")
    page.get_by_label("RabbitMQ").check()
    page.get_by_label("Address").fill(own.url)
    page.get_by_text("Options (most need none)").click()
    page.get_by_label("Options, as a JSON object").fill(own.options)
    page.get_by_role("button", name="Add the broker").click()
    page.get_by_role("button", name="Test connection").click()
    expect(page.get_by_text("It answers")).to_be_visible()


def observe(page: Page) -> None:
    page.get_by_role("button", name="Discover").click()
    expect(page.get_by_role("heading", name="1 dead-letter queue not")).to_be_visible()
    page.get_by_role("button", name="Observe all 1 with a dead-letter queue").click()
    expect(page.get_by_text("Observed from now on: 1")).to_be_visible()


def await_seen(page: Page, locator: Locator) -> None:
    """Wait until the lane has counted, by reloading the page as a person would."""
    for _ in range(120):
        if locator.is_visible():
            return
        page.wait_for_timeout(1000)
        page.reload()
    pytest.fail("the lane never looked")


def looked_at(page: Page) -> None:
    page.get_by_role("link", name=TOPIC, exact=True).click()
    lane = page.locator("section", has=page.get_by_role("heading", name="Dead-letter"))
    depth = lane.locator("dt", has_text="Dead letters in it").locator("+ dd")
    await_seen(page, depth.get_by_text("1", exact=True))


def capture(page: Page) -> None:
    page.get_by_role("link", name="Capture…").click()
    page.get_by_label("Reason").fill("its consumer is mended")
    page.get_by_role("button", name=f"Capture {QUEUE}").click()
    expect(page.get_by_text("dead letters are kept here")).to_be_visible()


def requeue(page: Page) -> None:
    page.get_by_role("link", name="Messages").last.click()
    await_rows(page, 1)
    page.locator("td.what a").first.click()
    tell_why_it_failed(page)
    page.get_by_role("button", name=re.compile("Requeue…")).click()
    page.get_by_role("button", name="Requeue 1 message").click()
    sent_count = page.locator(".counts div", has_text="Sent").locator("dd")
    expect(sent_count).to_have_text("1", timeout=SOON)


def tell_why_it_failed(page: Page) -> None:
    failures = page.get_by_role("region", name="Failures, newest first")
    count = failures.locator("dt", has_text="Dequeue count").locator("+ dd")
    expect(failures).to_contain_text("max_dequeue_count")
    expect(count).to_have_text(str(DELIVERY_LIMIT + 1))
    page.get_by_role("button", name="Show body").click()
    expect(page.get_by_role("region", name="Body")).to_contain_text("4711")


@pytest.mark.needs("rabbitmq")
def test_what_crashed_a_newcomers_consumer_is_captured_and_handled_after_one_click(
    open_page: Open, own: RabbitMqWithManagement
) -> None:
    own.fail()
    page, began = open_page("/"), time.monotonic()

    connect(page, own)
    observe(page)
    looked_at(page)
    was_there = own.dead_letters()
    capture(page)
    requeue(page)

    handled = own.consumed()
    mark = handled["headers"].pop(MARK)
    headers = {k: v for k, v in handled["headers"].items() if k in HEADERS}
    assert handled["body"] == BODY.decode()
    assert headers == HEADERS
    assert mark
    assert (was_there, own.dead_letters()) == (1, 0)
    page.goto("/")
    expect(page.get_by_role("heading", name="Needs you")).to_be_visible()
    expect(page.get_by_role("heading", name="Your first hour")).to_have_count(0)
    # A person also needs time to read: the machine may take only a small part, where
    # nothing else works beside it.
    assert time.monotonic() - began < 15 * 60 / (5 if "SOAK" in os.environ else 1)


def test_the_way_there_and_back_works_without_scripts_and_by_keyboard(
    open_page: Open, own_redis: str
) -> None:
    page = open_page("/brokers/new", java_script_enabled=False)

    page.get_by_label("Name", exact=True).press_sequentially("by hand")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.type(own_redis)
    page.keyboard.press("Enter")
    expect(page.get_by_text("The broker is added.")).to_be_visible()
    page.get_by_role("button", name="Test connection").press("Enter")
    expect(page.get_by_text("It answers")).to_be_visible()
    page.get_by_role("button", name="Discover").press("Enter")
    page.get_by_label(REFUNDS, exact=True).press("Space")
    page.get_by_role("button", name="Observe those that are ticked").press("Enter")
    expect(page.get_by_text("Observed from now on: 1")).to_be_visible()
    page.get_by_role("link", name=REFUNDS, exact=True).press("Enter")
    samples = page.get_by_role("link", name="Look at 1 sample")
    await_seen(page, samples)
    samples.press("Enter")
    expect(page.get_by_role("heading", name="1 dead letter")).to_be_visible()
    page.get_by_role("button", name="Show what they hold").press("Enter")
    expect(page.get_by_text("4711")).to_be_visible()
    page.goto("/brokers")
    page.get_by_role("link", name="by hand").press("Enter")
    page.get_by_role("link", name="Remove…").press("Enter")
    page.get_by_label("Reason").press_sequentially("the wrong one")
    page.get_by_role("button", name="Remove by hand and 1 topic").press("Enter")

    expect(page.get_by_role("heading", name="Brokers")).to_be_visible()
    expect(page.get_by_role("link", name="by hand")).to_have_count(0)


def test_what_is_refused_is_told_to_everybody(open_page: Open) -> None:
    page = open_page("/brokers/new", refused=True)

    page.get_by_label("Name", exact=True).fill("ours")
    page.get_by_label("RabbitMQ").check()
    page.get_by_label("Address").fill("amqp://169.254.169.254")
    page.get_by_role("button", name="Add the broker").click()

    expect(page.get_by_role("alert")).to_contain_text("leads to where no broker is")
    assert faults(page) == []
