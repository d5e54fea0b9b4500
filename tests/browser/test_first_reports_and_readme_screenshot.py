"""The first steps of a new user of the README; takes its screenshot."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.product_process import ROOT
from tests.browser.conftest import DESK, Open
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

PICTURE = ROOT / "docs" / "reports.png"
WITHIN_SECONDS = 300.0


def shows_rates(page: Page) -> bool:
    """Reload the page; its days are published one after the other, also the earlier."""
    page.reload()
    orders = page.get_by_role("region", name="orders", exact=True)
    rising = page.get_by_role("heading", name="What rose on")
    return orders.is_visible() and rising.is_visible()


def size_of(picture: Path) -> dict[str, int]:
    """Read the first chunk of a PNG."""
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    return {"width": width, "height": height}


def test_a_stranger_sees_failure_rates_within_five_minutes(
    open_page: Open, tmp_path: Path
) -> None:
    page = open_page("/")
    page.get_by_role("link", name="Reports", exact=True).click()
    wait_until(lambda: shows_rates(page), seconds=WITHIN_SECONDS)

    orders = page.get_by_role("region", name="orders", exact=True)
    expect(orders).to_contain_text("sample")
    expect(page.get_by_role("heading", name="What rose on")).to_be_visible()
    # `make screenshot` says where the README looks for it.
    picture = Path(os.environ.get("SCREENSHOT") or tmp_path / "reports.png")
    page.screenshot(path=picture)

    assert size_of(picture) == DESK
    assert size_of(PICTURE) == DESK
    assert "docs/reports.png" in (ROOT / "README.md").read_text(encoding="utf-8")
