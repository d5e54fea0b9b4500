"""Each setting of an endpoint, declared once: forms, API and checks derive from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from apps.core.declared_settings import Kind, Setting
from apps.redelivery.endpoint_and_delivery_choices import (
    AtEnd,
    CallMode,
    IntervalGrowth,
    Jitter,
    Repeatable,
)
from apps.redelivery.models.endpoints import ENDPOINT_NAME_LIMIT
from apps.redelivery.outbound.target_url import LONGEST_URL
from apps.redelivery.retry_plan import LONGEST_WAIT, SHORTEST_WAIT
from poisonguard.contract import NAME_LIMIT

MOST_RETRIES = 10_000
LONGEST_TIMEOUT = 3_600.0
LONGEST_EXPIRY = 366 * 86_400.0
MOST_CONCURRENCY = 1_000
MOST_RATE = 10_000.0
MOST_PATHS = 100
PATH_LIMIT = 2_000
STATUSES_LIMIT = 1_000
HEADER_LIMIT = 100


class Group(StrEnum):
    """Settings that belong together; pages have a section for each."""

    TARGET = "Where to"
    RETRIES = "When it is tried again"
    TIMEOUTS = "Time-outs, in order"
    FAILURES = "What counts as failure"
    END = "When retries are over"
    LOAD = "How much the back end gets"
    REST = "Order and answers"


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        name="target",
        kind=Kind.TEXT,
        group=Group.TARGET,
        label="Target",
        help="scheme, host, port and base path of the back end, such as"
        " https://stock.example.com:8443/services; no user, query or fragment",
        most=LONGEST_URL,
    ),
    Setting(
        name="is_enabled",
        kind=Kind.FLAG,
        group=Group.TARGET,
        label="Enabled",
        help="without it the gateway takes no request, and no sender calls the target;"
        " what is stored waits",
    ),
    Setting(
        name="mode",
        kind=Kind.WORD,
        group=Group.TARGET,
        label="Mode",
        help="how a request is answered",
        words={
            CallMode.SYNC_THEN_RETRY.value: "the caller gets the answer of the first"
            " try; one that failed is stored, and tried again",
            CallMode.ASYNC.value: "the caller gets 202 once the request is stored,"
            " before any try",
        },
    ),
    Setting(
        name="paths",
        kind=Kind.LINES,
        group=Group.TARGET,
        label="Paths",
        help="patterns of paths below the target, each beginning with /; * stands for"
        " any text; none: every path",
        most=PATH_LIMIT,
        is_optional=True,
    ),
    Setting(
        name="retries",
        kind=Kind.WHOLE,
        group=Group.RETRIES,
        label="Retries",
        help="N, after the first try: the target is called N + 1 times. retry_count"
        " counts failures, the first one included, so that N = 10 ends as the article's"
        " retry_count > 10: 10 retries, 11 calls. None: until the expiry",
        least=0,
        most=MOST_RETRIES,
        is_optional=True,
    ),
    Setting(
        name="interval",
        kind=Kind.NUMBER,
        group=Group.RETRIES,
        label="Interval",
        help="T, from a failure to the next try",
        unit="seconds",
        least=SHORTEST_WAIT,
        most=LONGEST_WAIT,
    ),
    Setting(
        name="backoff",
        kind=Kind.WORD,
        group=Group.RETRIES,
        label="Back-off",
        help="how the interval grows",
        words={
            IntervalGrowth.FIXED.value: "each wait is the interval",
            IntervalGrowth.EXPONENTIAL.value: "each wait is twice the one before it",
        },
    ),
    Setting(
        name="jitter",
        kind=Kind.WORD,
        group=Group.RETRIES,
        label="Jitter",
        help="how waits are spread, so that not all deliveries come back at once",
        words={
            Jitter.NONE.value: "not at all",
            Jitter.FULL.value: "from nothing to the whole wait",
            Jitter.EQUAL.value: "from half of the wait to the whole",
            Jitter.DECORRELATED.value: "from the interval to three times the last wait",
        },
    ),
    Setting(
        name="longest_interval",
        kind=Kind.NUMBER,
        group=Group.RETRIES,
        label="Longest interval",
        help="no wait is longer, whatever the back-off or a Retry-After says",
        unit="seconds",
        least=SHORTEST_WAIT,
        most=LONGEST_WAIT,
    ),
    Setting(
        name="expiry",
        kind=Kind.NUMBER,
        group=Group.RETRIES,
        label="Expiry",
        help="after this time from its acceptance a delivery is given up; none: only"
        " retries end it",
        unit="seconds",
        least=1,
        most=LONGEST_EXPIRY,
        is_optional=True,
    ),
    Setting(
        name="respects_retry_after",
        kind=Kind.FLAG,
        group=Group.RETRIES,
        label="Wait as Retry-After says",
        help="a longer wait that the back end asks for holds, up to the longest"
        " interval",
    ),
    Setting(
        name="attempt_timeout",
        kind=Kind.NUMBER,
        group=Group.TIMEOUTS,
        label="Time-out of an attempt",
        help="how long the back end may take to answer; the shortest of the three",
        unit="seconds",
        least=0.1,
        most=LONGEST_TIMEOUT,
    ),
    Setting(
        name="claim_timeout",
        kind=Kind.NUMBER,
        group=Group.TIMEOUTS,
        label="Claim of a sender",
        help="how long a sender owns a delivery; at least 5 seconds longer than an"
        " attempt, so that no other one tries it meanwhile",
        unit="seconds",
        least=0.1,
        most=2 * LONGEST_TIMEOUT,
    ),
    Setting(
        name="client_timeout",
        kind=Kind.NUMBER,
        group=Group.TIMEOUTS,
        label="Time-out of callers",
        help="how long callers of the gateway wait at least; longer than an attempt, so"
        " that they see its answer",
        unit="seconds",
        least=0.1,
        most=2 * LONGEST_TIMEOUT,
    ),
    Setting(
        name="failure_statuses",
        kind=Kind.TEXT,
        group=Group.FAILURES,
        label="Statuses of a failure",
        help="statuses and ranges, with commas: an answer with one of them is a failed"
        " attempt. Every other answer is a success, and no answer is always a failure",
        most=STATUSES_LIMIT,
        is_optional=True,
    ),
    Setting(
        name="repeatable",
        kind=Kind.WORD,
        group=Group.FAILURES,
        label="Repeatable",
        help="which requests are sent again although the back end may have processed"
        " them, because its answer did not come",
        words={
            Repeatable.BY_METHOD.value: "GET, HEAD, PUT, DELETE, OPTIONS, and those"
            " that the caller gave an Idempotency-Key",
            Repeatable.ALWAYS.value: "all",
            Repeatable.NEVER.value: "none",
        },
    ),
    Setting(
        name="at_end",
        kind=Kind.WORD,
        group=Group.END,
        label="At the end",
        help="what becomes of a delivery that is not tried again",
        words={
            AtEnd.TRIAGE.value: "it becomes a message of the endpoint's topic, with"
            " every attempt; a requeue sends it to the endpoint again",
            AtEnd.DROP.value: "it is dropped; it can be restored while it is kept",
            AtEnd.FORWARD.value: "it goes to a topic or to another endpoint",
        },
    ),
    Setting(
        name="forward_topic",
        kind=Kind.TEXT,
        group=Group.END,
        label="Forward to the topic",
        help="a topic with a broker; empty, unless it is forwarded to one",
        most=NAME_LIMIT,
        is_optional=True,
    ),
    Setting(
        name="forward_endpoint",
        kind=Kind.TEXT,
        group=Group.END,
        label="Forward to the endpoint",
        help="another endpoint; empty, unless it is forwarded to one",
        most=ENDPOINT_NAME_LIMIT,
        is_optional=True,
    ),
    Setting(
        name="concurrency",
        kind=Kind.WHOLE,
        group=Group.LOAD,
        label="Calls at a time",
        help="how many retries are under way at once",
        least=1,
        most=MOST_CONCURRENCY,
    ),
    Setting(
        name="rate",
        kind=Kind.NUMBER,
        group=Group.LOAD,
        label="Calls a second",
        help="the most retries that begin in a second; none: no limit",
        least=0.01,
        most=MOST_RATE,
        is_optional=True,
    ),
    Setting(
        name="breaker_failures",
        kind=Kind.WHOLE,
        group=Group.LOAD,
        label="Failures that open the breaker",
        help="after so many in a row the target is not called, except for a probe an"
        " interval; what waits meanwhile is no attempt. 0: no breaker",
        least=0,
        most=1_000,
    ),
    Setting(
        name="breaker_interval",
        kind=Kind.NUMBER,
        group=Group.LOAD,
        label="Interval of probes",
        help="from one probe of an open breaker to the next; the first success closes"
        " it",
        unit="seconds",
        least=1,
        most=LONGEST_WAIT,
    ),
    Setting(
        name="order_header",
        kind=Kind.TEXT,
        group=Group.REST,
        label="Order by the header",
        help="requests with the same value of this header are delivered in the order in"
        " which they came; empty: in any order",
        most=HEADER_LIMIT,
        is_optional=True,
    ),
    Setting(
        name="response_hook",
        kind=Kind.TEXT,
        group=Group.REST,
        label="Answers to the endpoint",
        help="another endpoint, which gets the answer of each delivery that succeeds;"
        " empty: none",
        most=ENDPOINT_NAME_LIMIT,
        is_optional=True,
    ),
)
BY_NAME: Final[Mapping[str, Setting]] = {setting.name: setting for setting in SETTINGS}
