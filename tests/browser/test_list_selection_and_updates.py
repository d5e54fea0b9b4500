"""Selection, keys and live updates: the features that need the script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.test_triage import await_rows, preview, rows

pytestmark = pytest.mark.browser

ALL = "/messages?q=topic:ContentTopic"


@pytest.fixture
def page(open_page: Open) -> Page:
    page = open_page(ALL)
    await_rows(page, 12)
    return page


def chosen(page: Page) -> list[str]:
    keys: list[str] = page.evaluate(
        "() => new FormData(document.querySelector('form.selectable')).getAll('ids')"
    )
    return sorted(keys)


WATCH = """() => {
    const rows = document.querySelectorAll("tr[data-key]");
    for (const row of rows) row.dataset.before = "";
    delete document.documentElement.dataset.anew;
    document.addEventListener("htmx:after:swap", () => {
        const isAnew = !document.querySelector("tr[data-before]");
        document.documentElement.toggleAttribute("data-anew", isAnew);
    });
}"""


@contextmanager
def list_brought_anew(page: Page) -> Iterator[None]:
    """Wait until all rows are new, and the script has done what it does with them."""
    page.evaluate(WATCH)
    yield
    expect(page.locator("html[data-anew]")).to_be_attached()


def test_shift_click_selects_from_the_third_row_to_the_twelfth(page: Page) -> None:
    boxes = page.locator("tbody input[name=ids]")
    expected = sorted(rows(page)[2:12])

    boxes.nth(2).click()
    boxes.nth(11).click(modifiers=["Shift"])

    assert chosen(page) == expected
    expect(page.locator("[data-chosen-count]")).to_have_text("10 messages selected")


def test_keys_move_select_and_clear(page: Page) -> None:
    first, second, third = rows(page)[:3]

    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("Shift+J")
    assert chosen(page) == sorted([second, third])
    page.keyboard.press("k")
    page.keyboard.press("k")
    page.keyboard.press("x")
    assert chosen(page) == sorted([first, second, third])
    page.keyboard.press("Escape")

    assert chosen(page) == []


def test_the_head_box_tells_some_from_all(page: Page) -> None:
    head = page.get_by_label("Select this page")

    page.locator("tbody input[name=ids]").first.click()
    some = head.evaluate("box => [box.checked, box.indeterminate]")
    head.click()
    every = head.evaluate("box => [box.checked, box.indeterminate]")

    assert (some, every) == ([False, True], [True, False])


def test_a_list_brought_anew_keeps_what_the_script_adds(page: Page) -> None:
    head = page.get_by_label("Select this page")

    with list_brought_anew(page):
        page.keyboard.press("Shift+R")
    head.click()

    assert chosen(page) == sorted(rows(page))


def test_a_selection_survives_a_refresh_and_another_sorting_of_pages(
    page: Page,
) -> None:
    page.locator("tbody input[name=ids]").nth(1).click()
    before = chosen(page)

    with list_brought_anew(page):
        page.keyboard.press("Shift+R")
    after_refresh = chosen(page)
    page.reload()

    assert before == after_refresh == chosen(page)


def test_a_new_filter_clears_the_selection_and_says_so(page: Page) -> None:
    page.locator("tbody input[name=ids]").first.click()

    page.get_by_label("Search messages").fill("is:open topic:ContentTopic")
    page.keyboard.press("Enter")

    expect(page.get_by_text("Selection of 1 cleared")).to_be_visible()
    assert chosen(page) == []


def test_updates_pause_while_something_is_selected_and_say_so(page: Page) -> None:
    live = page.locator("[data-live-toggle]")
    expect(live).to_have_text("Live · 5 s")

    page.locator("tbody input[name=ids]").first.click()
    expect(live).to_have_text("Updates paused")
    page.keyboard.press("Escape")

    expect(live).to_have_text("Live · 5 s")


def test_rows_wait_behind_a_button_and_do_not_move(page: Page) -> None:
    before = rows(page)

    show = page.locator("[data-live-show]")
    expect(show).to_be_visible(timeout=60_000)
    during = rows(page)
    with list_brought_anew(page):
        show.click()

    assert before == during
    assert rows(page) != before


def test_after_three_polls_a_drop_still_opens_its_preview(page: Page) -> None:
    for _ in range(3):
        with list_brought_anew(page):
            page.keyboard.press("Shift+R")
    page.locator("tbody input[name=ids]").first.click()

    preview(page, "Drop…")

    expect(page.get_by_role("button", name="Drop 1 message")).to_be_visible()


def test_below_a_wrong_search_keys_select_nothing_and_the_page_stays_alive(
    open_page: Open,
) -> None:
    page = open_page(ALL, refused=True)
    await_rows(page, 12)
    page.locator("tbody input[name=ids]").first.click()
    page.get_by_role("searchbox").fill("colour:red")
    page.get_by_role("searchbox").press("Enter")
    expect(
        page.get_by_text("Correct the search to select some of them.")
    ).to_be_visible()
    expect(page.locator("tbody tr[data-key]").first).to_be_visible()

    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("Shift+J")

    expect(
        page.get_by_text("Correct the search to select some of them.")
    ).to_be_visible()
    expect(page.locator("input[name=ids]")).to_have_count(0)
    page.goto(ALL)
    await_rows(page, 12)
    assert len(chosen(page)) == 1


def test_everything_that_matches_can_be_taken_and_narrowed_again(page: Page) -> None:
    page.locator("tbody input[name=ids]").first.click()
    page.get_by_role("link", name="Select all").click()
    expect(page.locator("input[name=everything]")).to_be_attached()

    page.locator("tbody input[name=ids]").first.click()

    expect(page.locator("input[name=everything]")).not_to_be_attached()
    assert chosen(page) == sorted(rows(page)[1:])


def test_keys_are_listed_and_can_be_turned_off(page: Page) -> None:
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("g f")
    page.keyboard.press("Escape")
    page.locator("details.menu summary").last.click()
    page.locator("button[name=keys][value=off]").click()
    page.keyboard.press("?")

    expect(page.get_by_role("dialog")).not_to_be_visible()


def test_keys_rest_while_somebody_types(page: Page) -> None:
    page.keyboard.press("/")

    page.keyboard.type("gatx?")

    assert page.url.endswith(ALL)
    expect(page.get_by_label("Search messages")).to_be_focused()


def test_the_theme_is_kept_without_a_flash(page: Page) -> None:
    page.keyboard.press("t")
    page.keyboard.press("t")
    page.reload()

    assert page.locator("html").get_attribute("data-theme") == "dark"
