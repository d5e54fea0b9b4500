"""The whole product once, and pages in a real browser that must not complain."""

from __future__ import annotations

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

from tests import machine_requirements
from tests.acceptance.product_process import Product

DESK = {"width": 1366, "height": 768}
PHONE = {"width": 390, "height": 844}
CHROMIUM = (
    *("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"),
    # The browser must not contact any other host.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)

Open = Callable[..., Page]

# A busy machine is no failure. What is promised sooner has a limit of its own.
PATIENCE = 60_000
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    # Playwright keeps an event loop in this thread; Django would take the tests that
    # follow in this process for asynchronous code, and refuse them the database.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        chromium = playwright.chromium
        yield chromium.launch(
            executable_path=machine_requirements.browser(),
            args=CHROMIUM,
            timeout=5 * PATIENCE,
        )


def new_context(browser: Browser, product: Product, **options: Any) -> BrowserContext:
    context = browser.new_context(base_url=product.url, **options)
    context.set_default_timeout(PATIENCE)
    return context


class Windows:
    """Reuse windows, one for each set of options: opening a window is slow."""

    def __init__(self, browser: Browser, product: Product) -> None:
        self._browser = browser
        self._product = product
        self._cookies: list[Any] = []
        self._contexts: dict[str, BrowserContext] = {}

    def sign_in(self) -> None:
        """Sign in by the form in the browser, for all later pages."""
        complaints: list[str] = []
        page = self.open(viewport=DESK)
        listen(page, complaints, refused=False)
        sign_in(page, self._product)
        self._cookies = [*page.context.cookies()]
        page.close()
        assert complaints == []

    def tidy(self) -> None:
        """Remove all browser state of earlier tests, except the sign-in."""
        for context in self._contexts.values():
            context.clear_cookies()
            context.add_cookies(self._cookies)

    def open(self, **options: Any) -> Page:
        return self._context(options).new_page()

    def _context(self, options: dict[str, Any]) -> BrowserContext:
        way = repr(sorted(options.items()))
        if way not in self._contexts:
            context = new_context(self._browser, self._product, **options)
            context.add_cookies(self._cookies)
            # A window ends with its last page: this one stays.
            context.new_page()
            self._contexts[way] = context
        return self._contexts[way]


@pytest.fixture(scope="session")
def windows(browser: Browser, product: Product) -> Windows:
    windows = Windows(browser, product)
    windows.sign_in()
    return windows


@pytest.fixture
def open_page(windows: Windows) -> Iterator[Open]:
    """Open a page as the signed-in admin; fail if the console shows errors.

    A violated Content-Security-Policy is an error on the console, too. Pages that tell
    of an error complain by being one: `refused` says that they may.
    """
    pages: list[Page] = []
    complaints: list[str] = []
    windows.tidy()

    def opened(
        path: str = "/problems", *, refused: bool = False, **options: Any
    ) -> Page:
        page = windows.open(**({"viewport": DESK} | options))
        pages.append(page)
        listen(page, complaints, refused=refused)
        page.goto(path)
        return page

    yield opened
    for page in pages:
        page.close()
    assert complaints == []


def listen(page: Page, complaints: list[str], *, refused: bool) -> None:
    def heard(said: ConsoleMessage) -> None:
        is_of_status = said.text.startswith("Failed to load resource")
        if said.type in {"error", "warning"} and not (refused and is_of_status):
            complaints.append(f"{page.url}: {said.text}")

    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", heard)


def sign_in(page: Page, product: Product) -> None:
    page.goto("/sign-in")
    page.get_by_label("User name").fill("admin")
    page.get_by_label("Password").fill(product.password)
    # Every test of a session depends on it, and a product that has just started may
    # still be busy.
    page.get_by_role("button", name="Sign in").click(timeout=5 * PATIENCE)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


@pytest.fixture(params=[DESK, PHONE], ids=["desk", "phone"])
def size(request: pytest.FixtureRequest) -> dict[str, int]:
    return dict(request.param)
