"""Parse cursors of pages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from apps.core.errors import Invalid
from apps.dashboard.keyset_pagination import ListCursor


@pytest.mark.parametrize("newer", [True, False])
def test_a_cursor_survives_its_address(newer: bool) -> None:
    at = datetime(2026, 11, 20, 12, 0, 0, 123_456, tzinfo=UTC)
    cursor = ListCursor(newer=newer, at=at, pk=7)

    assert ListCursor.parse(str(cursor)) == cursor


@pytest.mark.parametrize("newer", [True, False])
def test_a_cursor_of_a_list_by_number_has_no_time(newer: bool) -> None:
    cursor = ListCursor(newer=newer, pk=7)

    assert ListCursor.parse(str(cursor), has_time=False) == cursor
    with pytest.raises(Invalid, match="no such place"):
        ListCursor.parse(str(cursor))


def test_no_cursor_is_the_first_page() -> None:
    assert ListCursor.parse("") is None


@pytest.mark.parametrize(
    "text",
    [
        *("x", "older.1", "older.a.b", "older.9999999999999999999.1", "older.1.-1"),
        *("older.999999999999999999.1", "later.1.1", "older.1.1.1", "older.\uff11.1"),
        "older.1." + "9" * 5_000,
    ],
)
def test_refuses_a_place_that_no_list_has(text: str) -> None:
    with pytest.raises(Invalid, match="no such place"):
        ListCursor.parse(text)
