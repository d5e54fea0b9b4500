"""The settings of an endpoint as a value, checked in one place for pages and API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Self

from apps.core.declared_settings import check_value, in_full
from apps.core.errors import Invalid
from apps.redelivery.endpoint_and_delivery_choices import (
    AtEnd,
    CallMode,
    IntervalGrowth,
    Jitter,
    Repeatable,
)
from apps.redelivery.endpoint_fields import (
    MOST_PATHS,
    PATH_LIMIT,
    SETTINGS,
)
from apps.redelivery.models import Endpoint
from apps.redelivery.outbound.target_url import EndpointTarget
from apps.redelivery.retry_plan import LONGEST_WAIT

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
LAST_STATUS = 599
# By how many seconds the clocks of senders may differ.
CLOCK_DIFFERENCE = 5.0
FAILURE_STATUSES = "408, 425, 429, 500-599"


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointSettings:
    """What a person sets of an endpoint; the names are those of `Endpoint`.

    `forward_topic`, `forward_endpoint` and `response_hook` are names, "" for none.
    """

    target: str
    is_enabled: bool = True
    mode: str = CallMode.SYNC_THEN_RETRY.value
    paths: tuple[str, ...] = ()
    retries: int | None = 10
    interval: float = 3.0
    backoff: str = IntervalGrowth.FIXED.value
    jitter: str = Jitter.NONE.value
    longest_interval: float = LONGEST_WAIT
    expiry: float | None = None
    attempt_timeout: float = 10.0
    claim_timeout: float = 20.0
    client_timeout: float = 20.0
    failure_statuses: str = FAILURE_STATUSES
    respects_retry_after: bool = True
    repeatable: str = Repeatable.BY_METHOD.value
    at_end: str = AtEnd.TRIAGE.value
    forward_topic: str = ""
    forward_endpoint: str = ""
    concurrency: int = 10
    rate: float | None = None
    breaker_failures: int = 5
    breaker_interval: float = 10.0
    order_header: str = ""
    response_hook: str = ""

    @classmethod
    def of(cls, endpoint: Endpoint) -> Self:
        """Return the `EndpointSettings` of a stored endpoint."""
        values = {
            each.name: getattr(endpoint, each.name)
            for each in fields(cls)
            if each.name not in _NAMES_OF_ROWS
        }
        values["paths"] = tuple(endpoint.paths)
        for name in _NAMES_OF_ROWS:
            row = getattr(endpoint, name)
            values[name] = "" if row is None else row.name
        return cls(**values)

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy of an endpoint's settings with these changes."""
        return replace(self, **changes)

    def check(self) -> None:
        """Raise Invalid for an endpoint's first unusable setting, with the remedy."""
        for setting in SETTINGS:
            check_value(setting, getattr(self, setting.name))
        EndpointTarget.parse(self.target, field="target")
        self._check_end_of_retries()
        self._check_timeouts()
        self._check_paths()
        self._check_end()
        list(statuses(self.failure_statuses))
        if self.order_header and not HEADER_NAME.fullmatch(self.order_header):
            raise Invalid("order_header", "give the name of a header, or nothing")

    def _check_end_of_retries(self) -> None:
        if self.retries is None and self.expiry is None:
            raise Invalid(
                "retries", "give a number of retries, or an expiry: else it never ends"
            )
        if self.longest_interval < self.interval:
            raise Invalid(
                "longest_interval",
                f"it is {in_full(self.longest_interval)} s, which is shorter than the"
                f" interval of {in_full(self.interval)} s: make it as long at least",
            )

    def _check_timeouts(self) -> None:
        """Raise Invalid unless attempts end before their claims and callers do."""
        attempt = self.attempt_timeout
        if self.claim_timeout < attempt + CLOCK_DIFFERENCE:
            raise Invalid(
                "claim_timeout",
                f"it is {in_full(self.claim_timeout)} s, and an attempt takes up to"
                f" {in_full(attempt)} s: make it longer by {CLOCK_DIFFERENCE:g} s at"
                " least, so that no sender gives up before the attempt is over,"
                " whatever its clock says",
            )
        if self.client_timeout <= attempt:
            raise Invalid(
                "client_timeout",
                f"it is {in_full(self.client_timeout)} s, and an attempt takes up to"
                f" {in_full(attempt)} s: make it longer, so that no caller gives up"
                " before the attempt is over",
            )

    def _check_paths(self) -> None:
        if len(self.paths) > MOST_PATHS:
            raise Invalid("paths", f"give at most {MOST_PATHS} patterns")
        for path in self.paths:
            if not path.startswith("/") or len(path) > PATH_LIMIT or "?" in path:
                raise Invalid(
                    "paths",
                    f"a pattern begins with /, has no ? and up to {PATH_LIMIT:,}"
                    f" characters; {path[:40]!r} does not",
                )

    def _check_end(self) -> None:
        """Raise Invalid unless an endpoint that forwards deliveries has one place to.

        One that does not forward may name no place.
        """
        places = [
            name
            for name in ("forward_topic", "forward_endpoint")
            if getattr(self, name)
        ]
        if self.at_end == AtEnd.FORWARD and len(places) != 1:
            raise Invalid("at_end", "name one topic or one endpoint to forward to")
        if self.at_end != AtEnd.FORWARD and places:
            raise Invalid(places[0], "leave it empty, or choose forward as the end")


_NAMES_OF_ROWS = ("forward_topic", "forward_endpoint", "response_hook")
# What a form or a call can start from. The article's sequences retry every 3 s while
# `retry_count > 10` is false; Async Caller gives a server 100 s, its clients 120 s, and
# gives a message up 7 days after it came.
PRESETS: dict[str, dict[str, Any]] = {
    "article": {"retries": 10, "interval": 3.0},
    "async-caller": {
        "mode": CallMode.ASYNC.value,
        "retries": None,
        "interval": 10.0,
        "backoff": IntervalGrowth.EXPONENTIAL.value,
        "jitter": Jitter.EQUAL.value,
        "expiry": 7 * 86_400.0,
        "attempt_timeout": 100.0,
        "claim_timeout": 130.0,
        "client_timeout": 120.0,
    },
}


def statuses(text: str) -> Iterator[range]:
    """Parse `408, 500-599` into ranges of HTTP statuses; raise Invalid."""
    for part in filter(None, map(str.strip, text.split(","))):
        matched = re.fullmatch(r"([1-5][0-9]{2})(?:-([1-5][0-9]{2}))?", part, re.ASCII)
        if matched is None:
            raise Invalid(
                "failure_statuses",
                "give statuses and ranges such as 408, 500-599;"
                f" {part[:20]!r} is neither",
            )
        first, last = matched.groups()
        yield range(int(first), int(last or first) + 1)


def is_failure(status: int, failure_statuses: str) -> bool:
    """Tell whether an answer of this status is a failed attempt.

    Statuses from 600 on are (RFC 9110, 15): no caller gets one.
    """
    return status > LAST_STATUS or any(
        status in each for each in _ranges(failure_statuses)
    )


@lru_cache(maxsize=1_000)
def _ranges(text: str) -> tuple[range, ...]:
    return tuple(statuses(text))
