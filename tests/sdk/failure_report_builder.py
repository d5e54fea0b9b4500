"""Reports of failures for the tests of the SDK."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import uuid4

from poisonguard.contract import Cause, Confirmation, FailureReport

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
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
