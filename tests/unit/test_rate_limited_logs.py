"""A rate-limited logger writes a few lines, and counts the rest."""

from __future__ import annotations

import logging

import pytest

from apps.core.log_formatting import RateLimitFilter


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr("apps.core.log_formatting.time.monotonic", lambda: clock[0])
    return clock


def test_lines_beyond_the_bound_are_left_out_and_counted_in_the_next_window(
    seconds: list[float],
) -> None:
    sparing = RateLimitFilter(lines=3, seconds=60)

    in_one_minute = [_passes(sparing) for _ in range(10)]
    seconds[0] += 60
    first, second = _record(), _record()
    in_the_next = [sparing.filter(first), sparing.filter(second)]

    assert in_one_minute == [True] * 3 + [False] * 7
    assert in_the_next == [True, True]
    assert first.getMessage() == "100 % of it (7 such lines were left out)"
    assert second.getMessage() == "100 % of it"


def _passes(sparing: RateLimitFilter) -> bool:
    return bool(sparing.filter(_record()))


def _record() -> logging.LogRecord:
    return logging.LogRecord("x", logging.INFO, "", 0, "%d %% of it", (100,), None)
