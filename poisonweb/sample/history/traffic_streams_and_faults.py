"""The consumers of the history, the streams that they read, and the faults.

The consumers `billing` and `superstitious` fail with the exceptions of today's sample,
raised by the same lines: so history and sample belong to the same problems.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from apps.reports.report_run_states import DeliveredSource
from poisonguard.contract import Cause
from poisonweb.sample import producer_messages
from poisonweb.sample.consumers_and_their_topics import BILLING, CONTENT, DISPATCH
from poisonweb.sample.history.traffic_calendar import DAYS, Weeks
from poisonweb.sample.producer_messages import CONTENT_TOPIC, ORDERS, SHIPMENTS

VERSION, RELEASED_VERSION = "1.8", "1.9"


class RedriveResult(Enum):
    """The result of a redrive."""

    HANDLED = "handled"
    FAILED = "failed"
    # The message was delivered twice, and failed the second time.
    BOTH = "both"

    @property
    def is_confirmed(self) -> bool:
        """Return whether a made-up redrive with this result is confirmed."""
        return self is not RedriveResult.FAILED

    @property
    def recurs(self) -> bool:
        """Return whether a made-up redrive's message fails again at this result."""
        return self is not RedriveResult.HANDLED


class Fate(Enum):
    """The results of a poison's redrives, and whether it is dropped at the end."""

    HANDLED = (RedriveResult.HANDLED,), False
    HANDLED_AT_LAST = (RedriveResult.FAILED, RedriveResult.HANDLED), False
    GIVEN_UP = (RedriveResult.FAILED,), True
    CAME_BACK = (RedriveResult.BOTH,), True
    DROPPED = (), True
    OPEN = (), False

    def __init__(self, answers: tuple[RedriveResult, ...], dropped: bool) -> None:  # noqa: FBT001 - of an Enum
        self.answers = answers
        self.dropped = dropped


Fates = Mapping[Fate, float]
Likely = Callable[[Weeks, datetime], float]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FailureMode:
    """A way to fail; `likely` returns the share of messages that fail so at a time.

    `frames` begin with the outermost; `message` may contain {n}. `body` makes the n-th
    body that fails so. With `is_left_to_the_newcomer`, messages of the last day stay
    open.
    """

    title: str
    message: str
    frames: tuple[str, ...]
    body: Callable[[int], bytes]
    fates: Fates
    likely: Likely
    cause: Cause = Cause.FATAL
    attempts: int = 1
    is_left_to_the_newcomer: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrafficStream:
    """A topic and its consumer group, with the number of messages per working day.

    `durations` are the weights of the log2 buckets of milliseconds.
    """

    topic: str
    consumer_group: str
    clients: tuple[str, ...]
    source: DeliveredSource
    daily: int
    faults: tuple[FailureMode, ...]
    durations: Mapping[int, float]
    producer: str

    def __str__(self) -> str:
        return f"{self.topic} {self.consumer_group}"

    def version(self, weeks: Weeks, at: datetime) -> str:
        """Return the made-up release of a stream's handler at a time of the history."""
        is_released = RELEASE in self.faults and weeks.is_released(at)
        return RELEASED_VERSION if is_released else VERSION


def always(part: float) -> Likely:
    """Return a constant likelihood of made-up failures, as a function of time."""
    return lambda _weeks, _at: part


def creeping(part: float, *, times: float) -> Likely:
    """Return a function of time: a likelihood of made-up failures that grows.

    On the last day it is `times` as much.
    """

    def likely(weeks: Weeks, at: datetime) -> float:
        progress = weeks.number_of(at.date()) / (DAYS - 1)
        return part * (1 + (times - 1) * progress**3)

    return likely


def likely_while_released(part: float) -> Likely:
    """Return a function of time: a likelihood of made-up failures, or 0.

    It is 0 unless the faulty release runs.
    """
    return lambda weeks, at: part if weeks.is_released(at) else 0.0


def _order(fault: int) -> Callable[[int], bytes]:
    """Return a function that makes bodies of orders for the sample's history.

    The orders have this fault, or none.
    """
    return lambda n: producer_messages.order(40 * n + fault).body


def _content(n: int) -> bytes:
    """Return the body of a made-up content message that fails: 13 divides its id."""
    return producer_messages.content(13 * n).body


def _shipment(to: str) -> Callable[[int], bytes]:
    """Return a function that makes bodies of made-up shipments to this address."""
    return lambda n: json.dumps({"shipment": f"S-{n}", "to": to}).encode()


def _frame(file: str, line: int, function: str) -> str:
    """Return a line of a made-up traceback: its file, line number and function."""
    return f'  File "/srv/{file}", line {line}, in {function}'


_TRIED = _frame("sample/consumer.py", 158, "_attempt")
_SUPERSTITIOUS = _frame("sample/handlers.py", 33, "handle")
_BILLED = _frame("sample/handlers.py", 65, "handle")
_READ = _frame("sample/billing.py", 46, "read")
_TOTALS = (
    _frame("sample/billing.py", 55, "invoice"),
    _frame("sample/billing.py", 68, "_totals"),
)
_ANNOUNCED = _frame("dispatch/dispatch.py", 21, "announce")

SUPERSTITION = FailureMode(
    title="ValueError",
    message="I'm superstitious...",
    frames=(_TRIED, _SUPERSTITIOUS),
    body=_content,
    fates={Fate.DROPPED: 4, Fate.GIVEN_UP: 1},
    likely=always(1 / 13),
)
PAYMENTS_AWAY = FailureMode(
    title="TimeoutError",
    message="payments did not answer within 0.2 s for C-{n}",
    frames=(_TRIED, _BILLED, _frame("sample/handlers.py", 45, "charge")),
    body=_order(5),
    fates={Fate.HANDLED: 7, Fate.HANDLED_AT_LAST: 1},
    likely=creeping(0.003, times=6),
    cause=Cause.EXHAUSTED,
    attempts=3,
)
RELEASE = FailureMode(
    title="TypeError",
    message="unsupported operand type(s) for *: 'NoneType' and 'int'",
    frames=(_TRIED, _BILLED, *_TOTALS),
    body=_order(1),
    fates={Fate.HANDLED: 1},
    likely=likely_while_released(0.8),
)
ORDER_FAULTS = (
    FailureMode(
        title="KeyError",
        message="'customer_id'",
        frames=(_TRIED, _BILLED, _READ),
        body=_order(3),
        fates={Fate.DROPPED: 1},
        likely=always(0.003),
    ),
    FailureMode(
        title="ValueError",
        message="Invalid isoformat string: '{n}.07.2026'",
        frames=(_TRIED, _BILLED, _READ),
        body=_order(11),
        fates={Fate.DROPPED: 3, Fate.GIVEN_UP: 1},
        likely=always(0.003),
    ),
    FailureMode(
        title="UnicodeDecodeError",
        message="'utf-8' codec can't decode byte 0xfc in position {n}:"
        " invalid start byte",
        frames=(_TRIED, _BILLED, _READ),
        body=_order(19),
        fates={Fate.DROPPED: 1},
        likely=always(0.002),
        cause=Cause.UNDECODABLE,
    ),
    FailureMode(
        title="ZeroDivisionError",
        message="float division by zero",
        frames=(
            *(_TRIED, _BILLED, *_TOTALS),
            _frame("sample/billing.py", 75, "_mean_price"),
        ),
        body=_order(27),
        fates={Fate.GIVEN_UP: 1, Fate.DROPPED: 1},
        likely=always(0.003),
    ),
    PAYMENTS_AWAY,
    RELEASE,
)
DISK_FULL = FailureMode(
    title="OSError",
    message="[Errno 28] No space left on device: '/archive/{n}.json'",
    frames=(_frame("archive/archive.py", 17, "store"),),
    body=_order(1),
    fates={Fate.HANDLED: 5, Fate.CAME_BACK: 1},
    likely=always(0.02),
)
CARRIER_AWAY = FailureMode(
    title="ConnectionError",
    message="the carrier answered 503 to S-{n}",
    frames=(_ANNOUNCED, _frame("dispatch/carrier.py", 30, "call")),
    body=_shipment("Musterweg 1"),
    fates={Fate.HANDLED: 8, Fate.HANDLED_AT_LAST: 1, Fate.CAME_BACK: 1},
    likely=always(0.012),
    cause=Cause.EXHAUSTED,
    attempts=5,
)
NO_ADDRESS = FailureMode(
    title="LookupError",
    message="no such address: '?' of S-{n}",
    frames=(_ANNOUNCED, _frame("dispatch/addresses.py", 12, "find")),
    body=_shipment("?"),
    fates={Fate.DROPPED: 1},
    likely=always(0.003),
    is_left_to_the_newcomer=True,
)

STREAMS = (
    TrafficStream(
        topic=CONTENT_TOPIC,
        consumer_group=CONTENT.consumer_group,
        clients=(f"{CONTENT.client_name} (sample history)",),
        source=DeliveredSource.SDK,
        daily=520,
        faults=(SUPERSTITION,),
        durations={0: 6, 1: 3, 2: 1},
        producer="content-feed",
    ),
    TrafficStream(
        topic=ORDERS,
        consumer_group=BILLING.consumer_group,
        clients=("billing-1 (sample history)", "billing-2 (sample history)"),
        source=DeliveredSource.SDK,
        daily=3000,
        faults=ORDER_FAULTS,
        durations={3: 10, 4: 35, 5: 35, 6: 15, 7: 4, 9: 1},
        producer="web-shop",
    ),
    TrafficStream(
        topic=ORDERS,
        consumer_group="archive",
        clients=("archive-1 (sample history)",),
        source=DeliveredSource.NONE,
        daily=300,
        faults=(DISK_FULL,),
        durations={5: 1},
        producer="web-shop",
    ),
    TrafficStream(
        topic=SHIPMENTS,
        consumer_group=DISPATCH.consumer_group,
        clients=(f"{DISPATCH.client_name} (sample history)",),
        source=DeliveredSource.BROKER,
        daily=1500,
        faults=(CARRIER_AWAY, NO_ADDRESS),
        durations={6: 1},
        producer="warehouse",
    ),
)
