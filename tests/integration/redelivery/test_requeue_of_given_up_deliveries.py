"""What was given up is requeued by an operation, and its outcome is known."""

from __future__ import annotations

import pytest
from django.utils.timezone import now as real_now

from apps.poison.models import Poison
from apps.poison.query_language import Query
from apps.redelivery.call_and_delivery_dataclasses import CallResult, EndedAttempt
from apps.redelivery.models import Delivery, Endpoint
from apps.redelivery.services import attempt_results, delivery_claims
from apps.redelivery.services.request_acceptance import accept
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    ADMIN,
    BROKEN,
    NOW,
    SUCCESS,
    endpoint,
    request,
)
from tests.triage_operation_runner import confirm, counts_of, preview, run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stock() -> Endpoint:
    """An endpoint with one message in triage."""
    stock = endpoint(retries=0)
    accept(endpoint=stock, new=request(BROKEN), now=NOW)
    return stock


def requeue() -> dict[str, int]:
    """Requeue every open message; return the outcomes."""
    now = real_now()
    operation = confirm(ADMIN, preview(ADMIN, now, query=Query.parse("is:open")), now)
    run(operation, now)
    run(operation, now)
    return counts_of(operation)


def deliver(stock: Endpoint, result: CallResult) -> None:
    """Let a sender make the one call that is due."""
    now = real_now()
    [claimed] = delivery_claims.claim(endpoint=stock, fence=1, most=10, now=now)
    attempt = EndedAttempt(
        delivery=claimed.id,
        claim=claimed.claim,
        attempt=claimed.attempt,
        ended_at=now,
        result=result,
    )
    assert attempt_results.record(endpoint=stock, attempts=[attempt], now=now) == [True]


def test_a_requeue_makes_the_same_request_again(stock: Endpoint) -> None:
    first = Delivery.objects.get()

    assert requeue() == {"sent": 1}

    again = Delivery.objects.get(state="waiting")
    assert again.pk != first.pk
    assert (again.method, bytes(again.path)) == (first.method, bytes(first.path))
    assert bytes(again.body.content) == bytes(first.body.content)
    assert again.idempotency_key == first.idempotency_key
    headers = [bytes(part) for part in again.headers]
    assert headers[:4] == [bytes(part) for part in first.headers]
    # Nothing else but the mark by which its outcome is known.
    assert headers[4:5] == [b"x-poisonweb-redrive"]
    assert len(headers) == 6


def test_a_requeued_request_keeps_its_order() -> None:
    stock = endpoint(retries=0, order_header="SOAPAction")
    accept(endpoint=stock, new=request(BROKEN), now=NOW)

    requeue()

    again = Delivery.objects.get(state="waiting")
    assert again.order_key is not None
    assert bytes(again.order_key) == b"urn:getQuote"


def test_a_success_confirms_the_requeue(stock: Endpoint) -> None:
    requeue()

    deliver(stock, SUCCESS)

    assert Poison.objects.get().state == "confirmed"


def test_a_failure_is_a_recurrence_of_the_same_message(stock: Endpoint) -> None:
    requeue()

    deliver(stock, BROKEN)

    poison = Poison.objects.get()
    assert (poison.state, poison.recurrences, poison.failures) == ("open", 1, 2)
    assert requeue() == {"sent": 1}
    deliver(stock, SUCCESS)
    poison.refresh_from_db()
    assert poison.state == "confirmed"
