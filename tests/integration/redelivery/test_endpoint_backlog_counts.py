"""What waits at endpoints is counted without what is finished."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.redelivery.endpoint_figures import DeliveryBacklog, backlogs
from apps.redelivery.models import Delivery
from apps.redelivery.services.request_acceptance import accept
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    NOW,
    claim,
    endpoint,
    later,
    request,
)

pytestmark = pytest.mark.django_db


def test_the_backlog_has_what_is_unfinished() -> None:
    stock, idle = endpoint(), endpoint("idle")
    for seconds in (0, 5, 9):
        accept(endpoint=stock, new=request(), now=later(seconds))
    claim(stock, at=1)

    assert backlogs([stock.pk, idle.pk]) == {
        stock.pk: DeliveryBacklog(waiting=2, trying=1, oldest=NOW, next_due=later(5)),
        idle.pk: DeliveryBacklog(),
    }


def test_the_backlog_reads_no_finished_delivery() -> None:
    stock = endpoint()
    for _ in range(500):
        accept(endpoint=stock, new=request(), now=NOW)
    Delivery.objects.update(state="dropped", finished_at=NOW)
    accept(endpoint=stock, new=request(), now=NOW)

    with connection.cursor() as cursor, CaptureQueriesContext(connection) as queries:
        cursor.execute("ANALYZE redelivery_delivery")
        backlogs([stock.pk])
        cursor.execute(f"EXPLAIN (FORMAT JSON, ANALYZE) {queries[-1]['sql']}")
        plan = cursor.fetchone()[0]

    parts = list(
        nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    )
    assert sum(part.get("Rows Removed by Filter", 0) for part in parts) == 0


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)
