"""Ended deliveries go to a topic, and are forwarded once the broker has them."""

from __future__ import annotations

import pytest

from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome
from apps.poison.models import Failure, Poison
from apps.redelivery.models import Delivery, Endpoint
from apps.redelivery.services import forwarding_to_topic
from apps.redelivery.services.request_acceptance import accept
from tests.in_memory_queue_broker import Queues
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    DOWN,
    NOW,
    endpoint,
    later,
    request,
)
from tests.lane_crash_simulation import topic_on_queues

pytestmark = pytest.mark.django_db


@pytest.fixture
def stock(broker: Queues) -> Endpoint:
    topic_on_queues(NOW, name="mail")
    return endpoint(retries=0, at_end="forward", forward_topic="mail")


def forward(of: Endpoint) -> int:
    """Forward as a sender does; return how many ended."""
    batch = forwarding_to_topic.next_forwards(endpoint=of, most=10)
    outcomes = list(
        zip(batch, forwarding_to_topic.publish_forwards(batch), strict=True)
    )
    return forwarding_to_topic.record_forwards(
        endpoint=of, outcomes=outcomes, now=later(1)
    )


def test_a_delivery_reaches_its_topic_byte_for_byte(
    broker: Queues, stock: Endpoint
) -> None:
    new = request(DOWN, order_key=b"k\xff")
    accept(endpoint=stock, new=new, now=NOW)

    assert (forward(stock), forward(stock)) == (1, 0)

    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.finished_at) == ("forwarded", later(1))
    [message] = broker.published
    assert (message.topic, message.body, message.dedupe) == (
        "mail",
        new.body,
        str(new.id),
    )
    assert message.headers == (
        *new.headers,
        (b"x-poisonweb-method", b"POST"),
        (b"x-poisonweb-path", new.path),
        (b"x-poisonweb-delivery", str(new.id).encode()),
    )
    assert not Poison.objects.exists()


@pytest.mark.parametrize("kind", [OutcomeKind.UNKNOWN, OutcomeKind.UNSENT])
def test_what_the_broker_may_not_have_is_sent_again_under_the_same_id(
    broker: Queues, stock: Endpoint, kind: OutcomeKind
) -> None:
    accept(endpoint=stock, new=request(DOWN), now=NOW)
    usual, broker.answer = broker.answer, lambda _: PublishOutcome(kind=kind)

    assert forward(stock) == 0
    assert Delivery.objects.get().state == "forwarding"
    broker.answer = usual

    assert forward(stock) == 1
    assert Delivery.objects.get().state == "forwarded"


def test_what_the_broker_refuses_goes_to_triage_with_the_reason(
    broker: Queues, stock: Endpoint
) -> None:
    accept(endpoint=stock, new=request(DOWN), now=NOW)
    refusal = PublishOutcome(kind=OutcomeKind.REFUSED, detail="too large")
    broker.answer = lambda _: refusal

    assert forward(stock) == 1

    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.cause) == ("given_up", "exhausted")
    assert Poison.objects.get().pk == delivery.poison
    assert (
        Failure.objects.get().error_message
        == "connection refused; not forwarded: too large"
    )


def test_an_endpoint_that_forwards_no_more_gives_to_triage(stock: Endpoint) -> None:
    accept(endpoint=stock, new=request(DOWN), now=NOW)
    Endpoint.objects.update(at_end="triage", forward_topic=None)

    assert forward(Endpoint.objects.select_related("topic").get(pk=stock.pk)) == 1

    assert Delivery.objects.get().state == "given_up"


def test_a_batch_is_bounded_by_its_bytes(
    stock: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding_to_topic, "MOST_BYTES", 10)
    for _ in range(3):
        accept(endpoint=stock, new=request(DOWN, body=b"x" * 8), now=NOW)

    assert [forward(stock), forward(stock)] == [1, 1]
