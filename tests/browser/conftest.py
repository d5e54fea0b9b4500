"""The whole product once, and pages in a real browser that must not complain."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from tests.acceptance.product import ROOT, Product, copy_of_tree, started

PASSWORD = "correct horse battery"
DESK = {"width": 1366, "height": 768}
PHONE = {"width": 390, "height": 844}
CHROMIUM = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    tree = copy_of_tree(tmp_path_factory.mktemp("a browser's clone"))
    (tree / ".venv").symlink_to(ROOT / ".venv")
    command = (".venv/bin/python", "-m", "poisonweb.embedded")
    changes = {"POISONWEB_ADMIN_PASSWORD": PASSWORD}
    with started(tree, *command, seconds=90, changes=changes) as product:
        yield product


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    # Playwright keeps an event loop in this thread; Django would take the tests that
    # follow in this process for asynchronous code, and refuse them the database.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        chromium = shutil.which("chromium")
        yield playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)


@pytest.fixture
def open_page(browser: Browser, product: Product) -> Iterator[Open]:
    """Open a page as the signed-in admin; in the end nothing may have complained.

    A violated Content-Security-Policy is an error on the console, too. Pages that tell
    of an error complain by being one: `refused` says that they may.
    """
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def opened(
        path: str = "/problems", *, refused: bool = False, **wanted: Any
    ) -> Page:
        context = browser.new_context(
            base_url=product.url, **({"viewport": DESK} | wanted)
        )
        contexts.append(context)
        page = context.new_page()
        listen(page, complaints, refused=refused)
        sign_in(page)
        page.goto(path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def listen(page: Page, complaints: list[str], *, refused: bool) -> None:
    def heard(said: ConsoleMessage) -> None:
        is_of_status = said.text.startswith("Failed to load resource")
        if said.type in {"error", "warning"} and not (refused and is_of_status):
            complaints.append(f"{page.url}: {said.text}")

    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", heard)


def sign_in(page: Page) -> None:
    page.goto("/sign-in")
    page.get_by_label("User name").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
