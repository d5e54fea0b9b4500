"""Polling interval of an empty dead-letter queue whose broker bills each request."""

from __future__ import annotations

from collections.abc import Mapping

from apps.brokers.duration_parsing import seconds_of
from apps.core.errors import Invalid

# The option of a topic, under its name in Azure Functions.
OPTION = "maxPollingInterval"
LONGEST = 86_400


def longest_interval(options: Mapping[str, object], *, usual: float) -> float:
    """Read a topic's longest polling interval, as seconds or hh:mm:ss; or Invalid."""
    value = options.get(OPTION, usual)
    seconds = seconds_of(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise Invalid(f"options.{OPTION}", "is a number of seconds, or hh:mm:ss.")
    if not 0 < seconds <= LONGEST:
        raise Invalid(f"options.{OPTION}", "is more than 0 s, and a day at most.")
    return float(seconds)
