"""What a broker's adapter answers and raises, as an outcome of a window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from apps.brokers.adapter_contract import Outbound, OutcomeKind, PublishOutcome
from apps.brokers.adapters.adapter import BrokerSettings
from apps.brokers.models import Broker
from apps.core.errors import Invalid, Refused, Unavailable
from apps.outbox.models import OutboxError
from apps.outbox.sweeping.broker_publishing import BrokerPublishing
from poisonguard.errors import Away
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import SendKind
from tests.in_memory_queue_broker import Publisher, Queues, adapted
from tests.integration.outbox.outbox_builders import outbox_at
from tests.integration.outbox.test_sweeping_registered_outboxes import (
    is_in_state,
    sweeping,
)
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.waiting import wait_until

SENT = PublishOutcome(kind=OutcomeKind.SENT)


@dataclass(slots=True)
class ObstinateQueues(Queues):
    """Queues that raise an error at the connection or at a window."""

    at_connection: Exception | None = None
    at_window: Exception | None = None
    publishers: list[ObstinatePublisher] = field(default_factory=list)

    def publisher(self, broker: BrokerSettings) -> Publisher:
        if self.at_connection is not None:
            raise self.at_connection
        publisher = ObstinatePublisher(self)
        self.publishers.append(publisher)
        return publisher


@dataclass(slots=True)
class ObstinatePublisher(Publisher):
    is_closed: bool = False

    def publish(self, messages: Sequence[Outbound]) -> list[PublishOutcome]:
        assert isinstance(self.broker, ObstinateQueues)
        if self.broker.at_window is not None:
            raise self.broker.at_window
        return Publisher.publish(self, messages)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def queues() -> Iterator[ObstinateQueues]:
    broker = ObstinateQueues()
    with adapted(broker):
        yield broker


def publishing() -> BrokerPublishing:
    return BrokerPublishing(
        Broker(name="events", kind="queues", url="env:BROKER_NOWHERE")
    )


def message(**changes: object) -> OutboxMessage:
    usual = {"producer": "shop", "message_id": "m-7", "topic": "orders", "body": b"b"}
    return OutboxMessage(**usual | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["at_connection", "at_window"])
@pytest.mark.parametrize(
    "error",
    [Refused("no right to write"), Unavailable("gone"), Invalid("url", "is forbidden")],
)
def test_a_window_that_cannot_be_handed_over_is_away_and_tried_anew(
    queues: ObstinateQueues, place: str, error: Exception
) -> None:
    publish = publishing()
    setattr(queues, place, error)

    with pytest.raises(Away, match="^events: "):
        publish([message()])

    assert all(each.is_closed for each in queues.publishers)
    setattr(queues, place, None)
    [outcome] = publish([message()])
    assert outcome.kind is SendKind.SENT
    assert not queues.publishers[-1].is_closed
    publish([message()])
    assert len(queues.publishers) == 1 + (place == "at_window")
    publish.close()
    publish.close()
    assert queues.publishers[-1].is_closed


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (OutcomeKind.SENT, SendKind.SENT),
        (OutcomeKind.DUPLICATE, SendKind.SENT),
        (OutcomeKind.REFUSED, SendKind.REFUSED),
        (OutcomeKind.UNKNOWN, SendKind.UNKNOWN),
        (OutcomeKind.UNSENT, SendKind.UNSENT),
    ],
)
def test_each_outcome_of_an_adapter_has_its_kind(
    queues: ObstinateQueues, answer: OutcomeKind, kind: SendKind
) -> None:
    queues.answer = lambda each: (
        SENT
        if each.body == b"first"
        else PublishOutcome(kind=answer, detail="the broker's words")
    )

    first, second = publishing()([message(body=b"first"), message()])

    assert (first.kind, first.detail) == (SendKind.SENT, "")
    assert (second.kind, second.detail) == (kind, "the broker's words")


def test_adapters_know_that_a_message_of_an_outbox_was_on_no_broker_yet(
    queues: ObstinateQueues,
) -> None:
    by_producer: list[bool] = []

    def answer(each: Outbound) -> PublishOutcome:
        by_producer.append(each.is_by_producer)
        return SENT

    queues.answer = answer
    publishing()([message()])

    assert by_producer == [True]


@pytest.mark.django_db(transaction=True)
def test_rows_wait_while_the_broker_refuses_to_be_written_to(
    outbox: OutboxTables, queues: ObstinateQueues
) -> None:
    registered = outbox_at(outbox.dsn)
    queues.at_window = Refused("no right to write")
    outbox.put_many(3)

    with sweeping():
        wait_until(lambda: is_in_state(registered, "broken"))
        assert outbox.waiting == 3
        assert "no right to write" in OutboxError.objects.get().message
        queues.at_window = None
        wait_until(lambda: len(queues.published) == 3)
