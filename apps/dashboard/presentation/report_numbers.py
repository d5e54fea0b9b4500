"""Format the numbers of reports for people."""

from __future__ import annotations

NOTHING = "—"


def percent(share: float | None) -> str:
    """Format a failure rate in percent, never rounded to 0 % or 100 %; "—" for None."""
    if share is None:
        return NOTHING
    value = 100 * share
    if 0 < value < 0.01:
        return "<0.01\u00a0%"
    if 99.5 <= value < 100:
        return ">99\u00a0%"
    return f"{_rounded_text(value)}\u00a0%"


def interval(low: float | None, high: float | None) -> str:
    """Format a rate's confidence interval as percentages, "—" without one."""
    if low is None or high is None:
        return NOTHING
    return f"{_rounded_text(100 * low)}–{percent(high)}"  # noqa: RUF001 - a range


def milliseconds(bound: int | None) -> str:
    """Format a handling time in ms, from 1,000 ms on in seconds; "—" for None."""
    if bound is None:
        return NOTHING
    if bound < 1000:
        return f"{bound}\u00a0ms"
    return f"{bound / 1000:,.1f}\u00a0s"


def _rounded_text(value: float) -> str:
    """Write a failure rate in percent as text: more decimals the smaller it is."""
    if value in {0, 100}:
        return f"{value:.0f}"
    digits = 2 if value < 0.995 else 1 if value < 9.95 else 0
    return f"{value:.{digits}f}"
