"""Check every page in both themes, on a desktop and on a phone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import violations
from tests.browser.conftest import PHONE, Open
from tests.browser.test_triage import await_rows

pytestmark = pytest.mark.browser

WIDER_THAN_THE_SCREEN = "document.documentElement.scrollWidth > innerWidth"
# The bars of a chart are links as wide as a day; its table has the same, large enough.
TOO_SMALL = """() => [...document.querySelectorAll('a, button, input, select, summary')]
    .filter(e => e.checkVisibility() && !e.closest('svg, p, dd, .chosen, .skip-link'))
    .map(e => [(e.closest('label') ?? e).getBoundingClientRect(), e.outerHTML])
    .filter(([box]) => box.height > 1 && (box.height < 24 || box.width < 24))
    .map(([box, html]) => `${box.width}x${box.height} ${html.slice(0, 80)}`)"""
ROWS_SEEN = """() => [...document.querySelectorAll('tbody tr')]
    .filter(row => row.getBoundingClientRect().bottom <= innerHeight).length"""
HEADINGS = """() => [...document.querySelectorAll('h1, h2, h3, h4')]
    .filter(e => e.checkVisibility()).map(e => Number(e.tagName[1]))"""
LISTS = (
    *("/", "/problems", "/messages", "/messages?everything=1", "/topics"),
    *("/skips", "/skips?everything=1", "/skips/new"),
    *("/positions", "/operations", "/audit"),
    *("/brokers", "/brokers/new"),
    *("/endpoints", "/endpoints/new", "/endpoints/new?preset=async-caller"),
    *("/outboxes", "/outboxes/new"),
    *("/deliveries", "/deliveries?since=2026-01-01&due=2099-01-01"),
    *("/people", "/people/new", "/keys", "/keys/new", "/account"),
    *("/reports", "/reports?topic=orders", "/reports/runs", "/reports/endpoints"),
    "/second-factor",
)
# Searches without a match.
EMPTY = (
    *("/problems?q=error:nowhere", "/topics?name=nowhere", "/audit?actor=nobody"),
    *("/endpoints?name=nowhere", "/deliveries?endpoint=nowhere"),
    "/outboxes?name=nowhere",
)
OF_A_TOPIC = (
    "/mode?mode=observe",
    "/mode?mode=tee",
    "/policies",
    "/samples",
    "/remove",
)
OF_A_BROKER = ("/edit", "/discover", "/remove")
OF_AN_ENDPOINT = ("/edit", "/remove")
OF_AN_OUTBOX = ("/edit", "/rows", "/inspect", "/remove")
REFUSED = (
    *("/nowhere", "/problems?q=colour:red", "/operations?cursor=nowhere"),
    "/deliveries?since=noon",
)

Faults = dict[str, list[str]]


def paths(page: Page) -> list[str]:
    """List every kind of page, with one message, problem and operation of each."""
    page.goto("/problems?q=")
    await_rows(page, 1)
    linked = [first_link(page, path) for path in ("/problems", "/topics")]
    linked += [linked[-1] + of_a_topic for of_a_topic in OF_A_TOPIC]
    broker = first_link(page, "/brokers")
    linked += [broker, *(broker + of_a_broker for of_a_broker in OF_A_BROKER)]
    endpoint = added_endpoint(page)
    linked += [endpoint, *(endpoint + of_one for of_one in OF_AN_ENDPOINT)]
    outbox = first_link(page, "/outboxes")
    linked += [outbox, *(outbox + of_an_outbox for of_an_outbox in OF_AN_OUTBOX)]
    linked += [first_link(page, "/people"), revocation(page)]
    preview, operation = decided(page)
    page.goto("/messages")
    page.locator("td.what a").first.click()
    message = page.url
    fixed = [*LISTS, *EMPTY, "/help", "/api/v1/docs"]
    return [*fixed, *linked, message, preview, operation]


def first_link(page: Page, path: str) -> str:
    page.goto(path)
    return str(page.locator("td.what a").first.get_attribute("href"))


def added_endpoint(page: Page) -> str:
    """Add an endpoint, which is not called; return its address."""
    page.goto("/endpoints/new")
    page.get_by_label("Name").fill(f"of-{page.evaluate('innerWidth')}-pixels")
    page.get_by_label("Target").fill("https://93.184.216.34/services")
    page.get_by_role("button", name="Add the endpoint").click()
    expect(page.get_by_role("heading", name="Settings")).to_be_visible()
    return page.url


def revocation(page: Page) -> str:
    page.goto("/keys")
    return str(page.locator("td.decide a").first.get_attribute("href"))


def decided(page: Page) -> tuple[str, str]:
    """Requeue a message; return the addresses of the preview and the operation."""
    page.goto("/messages?q=is:open")
    page.locator("tbody input[name=ids]").first.check()
    page.locator("button[value=redrive]").click()
    page.locator("button.primary", has_text="Requeue 1 message").click()
    expect(page.get_by_role("heading", name="The decision")).to_be_visible()
    operation = page.url
    page.goto("/messages?q=is:open")
    page.locator("tbody input[name=ids]").last.check()
    page.locator("button[value=drop]").click()
    expect(page.get_by_role("heading", name="What will happen")).to_be_visible()
    return page.url, operation


def faults(page: Page) -> list[str]:
    """List the faults of the page in both themes."""
    return [
        *page.evaluate(TOO_SMALL),
        *(["too wide"] if page.evaluate(WIDER_THAN_THE_SCREEN) else []),
        *wrong_headings(page),
        *violations(page),
    ]


def wrong_headings(page: Page) -> list[str]:
    """Find where a heading skips a level, and whether there is one first heading."""
    levels: list[int] = page.evaluate(HEADINGS)
    skips = [
        f"h{after} after h{before}"
        for before, after in pairwise(levels)
        if after > before + 1
    ]
    return [*skips, *([] if levels.count(1) == 1 else [f"{levels.count(1)} h1"])]


def only_faulty(by_path: Faults) -> Faults:
    return {path: broken for path, broken in by_path.items() if broken}


def test_every_page_fits_and_can_be_used_by_everybody(
    open_page: Open, size: dict[str, int]
) -> None:
    page = open_page(viewport=size)

    by_path: Faults = {}
    for path in paths(page):
        page.goto(path)
        by_path[path] = faults(page)

    assert only_faulty(by_path) == {}


def test_what_opens_over_a_page_can_be_used_by_everybody(
    open_page: Open, size: dict[str, int]
) -> None:
    page = open_page("/messages", viewport=size)
    await_rows(page, 1)

    page.locator("tbody input[name=ids]").first.check()
    chosen = faults(page)
    page.locator("header details.menu summary").click()
    menu = faults(page)
    page.get_by_role("button", name="Show the keys").click()
    keys = faults(page)

    assert (chosen, menu, keys) == ([], [], [])


def test_the_list_of_keys_can_be_scrolled_without_a_mouse(open_page: Open) -> None:
    page = open_page("/messages", viewport={"width": 844, "height": 390})
    await_rows(page, 1)

    page.locator("header details.menu summary").click()
    page.get_by_role("button", name="Show the keys").click()

    assert faults(page) == []


def test_a_revealed_body_can_be_used_by_everybody(
    open_page: Open, size: dict[str, int]
) -> None:
    # Some orders are not UTF-8, and have no text view.
    page = open_page("/messages?q=topic:ContentTopic", viewport=size)
    await_rows(page, 1)

    page.locator("td.what a").first.click()
    page.get_by_role("button", name="Show").first.click()
    expect(page.get_by_label("Body as it came")).to_be_attached()

    assert faults(page) == []


def test_both_trails_of_an_outbox_message_are_beside_their_heading(
    open_page: Open, size: dict[str, int]
) -> None:
    page = open_page("/messages?q=topic:outbox/sample-shop", viewport=size)
    await_rows(page, 1)

    page.locator("td.what a").first.click()
    header = page.locator("header").filter(has=page.locator("#trail"))
    expect(header.get_by_role("link")).to_have_count(2)
    heading, *links = header.locator("h2, a").all()
    title, *boxes = (each.bounding_box() for each in (heading, *links))

    assert faults(page) == []
    assert title is not None
    for box in boxes:
        assert box is not None
        assert box["x"] > title["x"]
        assert title["y"] - box["height"] < box["y"] < title["y"] + title["height"]


def test_the_secret_of_a_key_can_be_read_by_everybody_who_makes_one(
    open_page: Open, size: dict[str, int]
) -> None:
    page = open_page("/keys/new", viewport=size, refused=True)

    page.get_by_role("textbox", name="Name").fill(f"of {size['width']} pixels")
    page.get_by_label("capture:write").check()
    page.get_by_role("textbox", name="Topics").fill("orders*\n" + "x" * 256)
    page.get_by_role("button", name="Make the key").click()
    expect(page.get_by_role("alert")).to_contain_text("names or patterns of topics")
    refused = faults(page)
    page.get_by_role("textbox", name="Topics").fill("orders*\n" + "x" * 200)
    page.get_by_role("button", name="Make the key").click()
    expect(page.locator("#secret")).to_contain_text("pw_")

    assert (refused, faults(page)) == ([], [])


def test_an_open_entry_of_the_trail_can_be_used_by_everybody(
    open_page: Open, size: dict[str, int]
) -> None:
    page = open_page("/audit", viewport=size)

    page.locator(".trail summary").first.click()
    expect(page.get_by_role("link", name="All by").first).to_be_visible()

    assert faults(page) == []


def test_pages_that_refuse_can_be_used_by_everybody(
    open_page: Open, size: dict[str, int]
) -> None:
    page = open_page(viewport=size, refused=True)

    by_path: Faults = {}
    for path in REFUSED:
        page.goto(path)
        by_path[path] = faults(page)
    page.context.clear_cookies()
    page.goto("/sign-in")
    by_path["/sign-in"] = faults(page)

    assert only_faulty(by_path) == {}


def test_a_desk_shows_sixteen_rows(open_page: Open) -> None:
    page = open_page("/messages")
    await_rows(page, 17)

    visible_rows: int = page.evaluate(ROWS_SEEN)

    assert visible_rows >= 16


def test_a_phone_acts_from_the_bottom_of_the_screen(open_page: Open) -> None:
    page = open_page("/messages?q=is:open", viewport=PHONE)
    await_rows(page, 1)

    page.locator("tbody input[name=ids]").first.click()
    box = page.get_by_role("button", name="Requeue…").bounding_box()

    assert box
    assert box["y"] > PHONE["height"] - 120
