"""Numbers of a report as a person reads them."""

from __future__ import annotations

NOTHING = "—"


def percent(share: float | None) -> str:
    """Say a share so that a small one is never nothing, nor a large one everything."""
    if share is None:
        return NOTHING
    told = 100 * share
    if 0 < told < 0.01:
        return "<0.01\u00a0%"
    if 99.5 <= told < 100:
        return ">99\u00a0%"
    return f"{_rounded(told)}\u00a0%"


def interval(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return NOTHING
    return f"{_rounded(100 * low)}–{percent(high)}"  # noqa: RUF001 - a range


def milliseconds(bound: int | None) -> str:
    """Say the upper bound of a handling time."""
    if bound is None:
        return NOTHING
    if bound < 1000:
        return f"{bound}\u00a0ms"
    return f"{bound / 1000:,.1f}\u00a0s"


def _rounded(told: float) -> str:
    if told in {0, 100}:
        return f"{told:.0f}"
    digits = 2 if told < 0.995 else 1 if told < 9.95 else 0
    return f"{told:.{digits}f}"
