"""Failures that a test can request of the broker in memory."""

from __future__ import annotations

import pytest

from apps.brokers.adapter_contract import Outbound, OutcomeKind
from apps.brokers.adapters.memory import MemoryBroker, MemoryPublisher
from apps.core.errors import Unavailable

SENT, REFUSED, UNKNOWN = OutcomeKind.SENT, OutcomeKind.REFUSED, OutcomeKind.UNKNOWN


def test_refuses_the_messages_it_is_told_to_with_the_reason() -> None:
    broker = MemoryBroker()
    broker.refuse(lambda message: "odd" if int(message.body) % 2 else "")

    outcomes = broker.publisher().publish(numbered(4))

    assert [outcome.kind for outcome in outcomes] == [SENT, REFUSED, SENT, REFUSED]
    assert outcomes[1].detail == "odd"
    assert [message.body for message in broker.published("orders")] == [b"0", b"2"]


@pytest.mark.parametrize(("keep", "stored"), [(True, 5), (False, 2)])
def test_stops_answering_and_keeps_or_loses_the_rest(keep: bool, stored: int) -> None:
    broker = MemoryBroker()
    broker.stop_answering(after=2, keep=keep)

    outcomes = broker.publisher().publish(numbered(5))

    assert [outcome.kind for outcome in outcomes] == [SENT] * 2 + [UNKNOWN] * 3
    assert len(broker.published("orders")) == stored


def test_answers_again_after_it_came_back() -> None:
    broker = MemoryBroker()
    broker.stop_answering(after=0, keep=False)
    broker.go_away()
    with pytest.raises(Unavailable):
        broker.publisher().publish(numbered(1))

    broker.come_back()

    assert broker.publisher().publish(numbered(1))[0].kind is SENT


def test_a_publisher_alone_has_a_broker_of_its_own() -> None:
    publisher = MemoryPublisher()

    publisher.publish(numbered(1))

    assert publisher.broker.published("orders") == numbered(1)


def numbered(count: int) -> list[Outbound]:
    return [Outbound(topic="orders", body=b"%d" % n, headers=()) for n in range(count)]
