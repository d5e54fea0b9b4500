"""Log lines have a maximum length, and clients can cause only so many."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from apps.core.log_formatting import (
    LONGEST_MESSAGE,
    LONGEST_TRACEBACK,
    LineFormatter,
    RateLimitFilter,
    shorten,
)

LOGGING: Any = settings.LOGGING
FEW = LOGGING["filters"]["few"]["lines"]
STAMP_AND_NAME = 100


def record(message: str, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("x", logging.INFO, "", 0, "%s", (message,), exc_info)


@pytest.mark.parametrize("unit", ["a", "\x00", "\u202e", "\U0001f600", "\ud800"])
def test_a_message_of_a_megabyte_is_a_short_line(unit: str) -> None:
    line = LineFormatter().format(record(unit * 1_000_000))

    longest_escape = len("\\u202e")
    assert len(line) < LONGEST_MESSAGE * longest_escape + STAMP_AND_NAME
    assert line.endswith("995904 characters left out) ")
    assert "\n" not in line


def test_a_traceback_is_cut_in_its_middle() -> None:
    line = LineFormatter().format(
        record("failed", ValueError("x" * 1_000_000 + "the end"))
    )

    assert len(line) < LONGEST_TRACEBACK + STAMP_AND_NAME + 100
    assert "failed ValueError" in line
    assert "characters left out" in line
    assert line.endswith("the end")


@pytest.mark.parametrize(
    ("text", "first", "last", "result"),
    [
        ("", 1, 0, ""),
        ("abc", 3, 0, "abc"),
        ("abcd", 3, 0, "abc… (1 characters left out) "),
        ("abcdef", 2, 2, "ab… (2 characters left out) ef"),
        ("abcd", 2, 2, "abcd"),
    ],
)
def test_a_text_is_cut_where_it_is_too_long(
    text: str, first: int, last: int, result: str
) -> None:
    assert shorten(text, first=first, last=last) == result


def test_a_host_that_is_not_ours_writes_few_lines_without_a_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("django.security.DisallowedHost")
    # Other tests may have used up the lines of this minute; if one sets Django up
    # again, the logger has the filter twice.
    sparing = [each for each in logger.filters if isinstance(each, RateLimitFilter)]
    assert sparing
    for each in sparing:
        monkeypatch.setattr(each, "_window_ends_at", float("-inf"))
    logger.addHandler(caplog.handler)
    try:
        for _ in range(30):
            assert Client().get("/healthz", HTTP_HOST="evil.example").status_code == 400
    finally:
        logger.removeHandler(caplog.handler)

    assert 0 < len(caplog.records) <= 2 * FEW
    assert not any(each.exc_info for each in caplog.records)
