"""Deliveries that sleep cost nothing, however many there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from apps.core import clock
from apps.redelivery.models import Endpoint
from apps.redelivery.request_message_headers import REDRIVE
from apps.redelivery.sending import sender_process
from apps.redelivery.services import delivery_claims, pending_sender_work
from tests.integration.redelivery.endpoint_and_delivery_builders import endpoint, later

pytestmark = pytest.mark.django_db

SLEEPERS = 3_000
_STORE = """
INSERT INTO redelivery_delivery (id, endpoint_id, state, method, path, headers, size,
    caller, idempotency_key, is_repeatable, retry_count, attempts, accepted_at, due_at,
    last_wait, last_error, cause)
SELECT gen_random_uuid(), %(endpoint)s, 'waiting', 'POST', '', '{}', 0, '', '', true,
    0, 0, %(now)s, %(now)s::timestamptz + n * interval '1 second', 0, '', ''
FROM generate_series(1, %(number)s) AS n
"""


@pytest.fixture
def stock() -> Endpoint:
    stock = endpoint()
    values: dict[str, Any] = {
        "endpoint": stock.pk,
        "now": later(60),
        "number": SLEEPERS,
    }
    with connection.cursor() as cursor:
        cursor.execute(_STORE, values)
        cursor.execute("ANALYZE redelivery_delivery")
    return stock


def reads_of_deliveries(statement: str, values: Any) -> Iterator[tuple[str, int]]:
    """Run a statement; yield how its plan reads deliveries, and how many rows."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values)
        [[answer]] = cursor.fetchall()
    nodes = [(json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]]
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        if "Scan" in node["Node Type"] and (
            node.get("Relation Name") == "redelivery_delivery"
        ):
            removed = node.get("Rows Removed by Filter", 0)
            rows = (node["Actual Rows"] + removed) * node["Actual Loops"]
            yield node["Node Type"], int(rows)


def test_a_look_for_work_reads_one_entry_of_an_index_for_each_question(
    stock: Endpoint,
) -> None:
    reads = list(reads_of_deliveries(pending_sender_work._PENDING, [[stock.pk]]))

    assert {kind.removesuffix(" Backward") for kind, _ in reads} <= {
        *("Index Scan", "Index Only Scan")
    }
    assert sum(rows for _, rows in reads) == 1


def test_a_claim_reads_no_delivery_that_sleeps(stock: Endpoint) -> None:
    values = {
        "endpoint": stock.pk,
        "fence": 1,
        "claim": uuid4(),
        "claimed_until": later(20),
        "most": 10,
        "ahead": 10,
        "bytes": delivery_claims.MOST_BYTES,
        "redrive": REDRIVE,
        "now": later(1),
    }
    reads = list(reads_of_deliveries(delivery_claims._CLAIM, values))

    assert any(kind == "Index Scan" for kind, _ in reads)
    assert sum(rows for _, rows in reads) == 0


def test_a_look_takes_two_statements_for_all_endpoints(
    stock: Endpoint, django_assert_num_queries: Any
) -> None:
    ids = [stock.pk, *(endpoint(f"e-{number}").pk for number in range(5))]

    with django_assert_num_queries(2):
        endpoints, pending = sender_process._read(ids, beat_at=None)
    with django_assert_num_queries(3):
        sender_process._read(ids, beat_at=clock.now())

    assert sorted(endpoints) == sorted(pending) == sorted(ids)
    assert pending[stock.pk].next_due == later(61)
