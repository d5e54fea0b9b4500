"""A newcomer's first hour with a broker of their own, as `docs/first-hour.md` tells it.

Every step is one that the page before offers; nothing is known beforehand.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from playwright.sync_api import Page, expect

from poisonweb.embedded import redis as embedded
from tests.browser.conftest import Open
from tests.browser.test_every_page import faults
from tests.browser.test_triage import SOON, await_rows

pytestmark = pytest.mark.browser

TOPIC, QUEUE, GROUP = "payments", "payments-poison", "ledger"
BODY = b'{"payment": 4711}'
HEADERS = {"tenant": b"acme", "raw": bytes(range(256))}


class Own:
    """The newcomer's broker, with a consumer that waits for what comes back."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._redis = redis.Redis.from_url(url)
        self._redis.xgroup_create(TOPIC, GROUP, mkstream=True)

    def fail(self) -> None:
        """Leave a message in the dead-letter queue, as a consumer of theirs did."""
        fields: Any = {"body": BODY, **HEADERS}
        self._redis.xadd(QUEUE, fields)

    def dead_letters(self) -> int:
        return int(self._redis.xlen(QUEUE))

    def consumed(self, *, within: float) -> list[dict[bytes, bytes]]:
        """Wait for the next message of the topic, and give its fields."""
        block = int(within * 1000)
        reply: Any = self._redis.xreadgroup(GROUP, "c", {TOPIC: ">"}, block=block)
        return [fields for _, entries in reply for _, fields in entries]

    def close(self) -> None:
        self._redis.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    with embedded.temporary(tmp_path) as url:
        broker = Own(url)
        yield broker
        broker.close()


def connect(page: Page, url: str) -> None:
    page.get_by_role("link", name="Connect a broker").click()
    page.get_by_label("Name", exact=True).fill("ours")
    page.get_by_label("Redis Streams").check()
    page.get_by_label("Address").fill(url)
    page.get_by_role("button", name="Add the broker").click()
    page.get_by_role("button", name="Test connection").click()
    expect(page.get_by_text("It answers")).to_be_visible()


def observe(page: Page) -> None:
    page.get_by_role("link", name="Discover").click()
    expect(page.get_by_role("heading", name="1 dead-letter queue not")).to_be_visible()
    page.get_by_role("button", name="Observe all 1 with a dead-letter queue").click()
    expect(page.get_by_text("Observed from now on: 1")).to_be_visible()


def looked_at(page: Page) -> None:
    """Wait until the lane has looked, and see what it saw."""
    page.get_by_role("link", name=TOPIC, exact=True).click()
    samples = page.get_by_role("link", name="Look at 1 sample")
    for _ in range(30):
        if samples.is_visible():
            break
        page.wait_for_timeout(1000)
        page.reload()
    samples.click()
    expect(page.get_by_role("heading", name="1 dead letter")).to_be_visible()
    page.get_by_role("button", name="Show what they hold").click()
    expect(page.get_by_text("4711")).to_be_visible()
    page.get_by_role("link", name=f"{TOPIC} /").click()


def capture(page: Page) -> None:
    page.get_by_role("link", name="Capture…").click()
    page.get_by_label("Reason").fill("its consumer is mended")
    page.get_by_role("button", name=f"Capture {QUEUE}").click()
    expect(page.get_by_text("dead letters are kept here")).to_be_visible()


def requeue(page: Page) -> None:
    page.get_by_role("link", name="Messages").last.click()
    await_rows(page, 1)
    page.locator("td.what a").first.click()
    expect(page.get_by_text("Nobody told why it failed")).to_be_visible()
    page.get_by_role("button", name=re.compile("Requeue…")).click()
    page.get_by_role("button", name="Requeue 1 message").click()
    sent = page.locator(".counts div", has_text="Sent").locator("dd")
    expect(sent).to_have_text("1", timeout=SOON)


def test_a_newcomer_observes_captures_and_requeues_a_message_of_their_own(
    open_page: Open, own: Own
) -> None:
    own.fail()
    page, began = open_page("/"), time.monotonic()

    connect(page, own.url)
    observe(page)
    looked_at(page)
    was_there = own.dead_letters()
    capture(page)
    requeue(page)

    (consumed,) = own.consumed(within=10)
    headers = {name.encode(): value for name, value in HEADERS.items()}
    mark = consumed.pop(b"x-poisonweb-redrive")
    assert consumed == {b"body": BODY, **headers}
    assert mark
    assert (was_there, own.dead_letters()) == (1, 0)
    page.goto("/")
    expect(page.get_by_role("heading", name="What changed")).to_be_visible()
    expect(page.get_by_role("heading", name="Your first hour")).to_have_count(0)
    # A person reads, too; the machine itself must leave them nearly all of it.
    assert time.monotonic() - began < 15 * 60 / 5


def test_the_way_there_works_without_scripts_and_by_keyboard(
    open_page: Open, own: Own
) -> None:
    own.fail()
    page = open_page("/brokers/new", java_script_enabled=False)

    page.get_by_label("Name", exact=True).press_sequentially("by hand")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.type(own.url)
    page.keyboard.press("Enter")
    expect(page.get_by_text("It is added.")).to_be_visible()
    page.get_by_role("button", name="Test connection").press("Enter")
    expect(page.get_by_text("It answers")).to_be_visible()
    page.get_by_role("link", name="Discover").press("Enter")
    page.get_by_label(TOPIC, exact=True).press("Space")
    page.get_by_role("button", name="Observe those that are ticked").press("Enter")

    expect(page.get_by_text("Observed from now on: 1")).to_be_visible()


def test_what_is_refused_is_told_to_everybody(open_page: Open) -> None:
    page = open_page("/brokers/new", refused=True)

    page.get_by_label("Name", exact=True).fill("ours")
    page.get_by_label("RabbitMQ").check()
    page.get_by_label("Address").fill("amqp://169.254.169.254")
    page.get_by_role("button", name="Add the broker").click()

    expect(page.get_by_role("alert")).to_contain_text("leads to where no broker is")
    assert faults(page) == []
