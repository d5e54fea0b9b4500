"""How far apart two looks at an empty dead-letter queue are, where each is paid for."""

from __future__ import annotations

from collections.abc import Mapping

from apps.brokers.durations import seconds_of
from apps.core.errors import Invalid

# Of a topic, as Azure Functions call it.
OPTION = "maxPollingInterval"
LONGEST = 86_400


def longest_interval(options: Mapping[str, object], *, usual: float) -> float:
    """Read the option, seconds or hh:mm:ss; raises Invalid for neither."""
    value = options.get(OPTION, usual)
    seconds = seconds_of(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise Invalid(f"options.{OPTION}", "is a number of seconds, or hh:mm:ss.")
    if not 0 < seconds <= LONGEST:
        raise Invalid(f"options.{OPTION}", "is more than 0 s, and a day at most.")
    return float(seconds)
