"""Reports of failures for the tests of the SDK."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import uuid4

from poisonguard.contract import Cause, Confirmation, FailureReport
from poisonguard.server.counts_by_minute import CounterKey
from poisonguard.server.failure_report_queue import Receipt
from poisonguard.server.report_sending import Reporter

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
BILLING = CounterKey("orders", "billing", "billing-1")
_numbers = count(1)


def failure(**changes: Any) -> FailureReport:
    report = FailureReport(
        report_id=uuid4(),
        topic="orders",
        consumer_group="billing",
        client_name="billing-1",
        bookmark=f"{next(_numbers)}-0",
        body=b'{"id": 13}',
        headers=(),
        cause=Cause.EXHAUSTED,
        attempts=1,
        failures=1,
        crashes=0,
        first_failed_at=NOON,
        failed_at=NOON,
    )
    return replace(report, **changes)


def confirmation(redrive: str) -> Confirmation:
    return Confirmation(
        redrive=redrive,
        topic="orders",
        consumer_group="billing",
        client_name="billing-1",
        at=NOON,
    )


def poison(reporter: Reporter, **changes: Any) -> Receipt:
    """Report a failure, and hold it for up to 20 seconds while the server is away."""
    wishes: dict[str, Any] = {
        "report": failure(),
        "when_away": "hold",
        "keep_alive": None,
        "stop": threading.Event(),
        "hold_for": 20.0,
        **changes,
    }
    return reporter.poison(wishes.pop("report"), **wishes)
