"""The accessibility checker itself: it must find faults in any row of a page."""

from __future__ import annotations

import pytest

from tests.browser.axe import violations
from tests.browser.conftest import Open

pytestmark = pytest.mark.browser

ROWS = "".join(f"<tr class={look}><td>{look}</td></tr>" for look in ("plain", "pale"))
# The first element of its kind may be empty.
TABLE = f"<table><tbody><tr class=pale><td></td></tr>{ROWS * 20}</tbody></table>"
PAGE = f"""data:text/html,<!doctype html><html lang=en><title>rows</title><style>
td {{ background: white; color: black }} .pale td {{ color: silver }}
.night td {{ background: darkslategray }}</style><main><h1>Rows</h1><img src=data:,>
<section>{TABLE}</section><section>{TABLE}</section>
<section class=night>{TABLE}</section></main>"""


def test_a_fault_of_some_rows_is_found_and_told_once_in_each_theme(
    open_page: Open,
) -> None:
    page = open_page(PAGE.replace("\n", " "))

    faults = violations(page)

    assert faults == [
        'light: image-alt: <img src="data:,">',
        "light: color-contrast: <td>pale</td>",
        # In the dark theme the other elements are unreadable.
        "light: color-contrast: <td>plain</td>",
        "dark: color-contrast: <td>pale</td>",
        "dark: color-contrast: <td>plain</td>",
    ]
