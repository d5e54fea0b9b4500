"""Giving back: open messages return as they came, and can be captured again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from io import StringIO
from typing import Any, cast

import pytest
from django.core.management import CommandError, call_command
from redis import Redis

from apps.audit.models import Entry
from apps.brokers.adapter_contract import Outbound, OutcomeKind, PublishOutcome
from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.brokers.services.topics_and_routing_publisher import (
    RoutingPublisher,
)
from apps.capture.models import Lane, Mode
from apps.core import clock
from apps.poison.models import Body, Failure, Poison, Redrive
from apps.triage.models import Operation
from apps.triage.services import running, start_of_give_back_operation
from apps.triage.services.running import SliceEnd
from poisonweb.management.commands.give_back import COMMAND_LINE
from tests.failure_report_builders import drop
from tests.in_memory_queue_broker import SENT, Queues, adapted
from tests.lane_crash_simulation import Killed, drain_all, topic_on_queues
from tests.triage_operation_runner import DyingPublisher

pytestmark = pytest.mark.django_db(transaction=True)

REFUSED = PublishOutcome(kind=OutcomeKind.REFUSED, detail="it is full")
UNKNOWN = PublishOutcome(kind=OutcomeKind.UNKNOWN, detail="the connection broke")
HEADERS = ((b"\xff", b"\x00"), (b"x-poison-cause", b"fatal"), (b"\xff", b"2"))


@pytest.fixture(params=[True, False], ids=["named", "nameless"])
def broker(request: pytest.FixtureRequest) -> Iterator[Queues]:
    queues = Queues(names=request.param)
    with adapted(queues):
        yield queues


@pytest.fixture
def mail(broker: Queues) -> Topic:
    return topic_on_queues(clock.now())


def captured(broker: Queues, topic: Topic, bodies: Sequence[bytes]) -> None:
    for body in bodies:
        broker.put("mail-dead", body, HEADERS)
    drain_all(topic, clock.now())


def pause() -> None:
    Lane.objects.update(paused=True)


def give_back(*options: str) -> str:
    out = StringIO()
    call_command("give_back", "mail", *options, stdout=out, stderr=out)
    return out.getvalue()


def states() -> list[str]:
    return list(Poison.objects.order_by("id").values_list("state", flat=True))


def test_giving_back_restores_the_queue_and_audits_the_actor(
    broker: Queues, mail: Topic
) -> None:
    bodies = [b"%d" % number for number in range(300)]
    captured(broker, mail, bodies)
    pause()

    output = give_back("--reason", "we move away")

    operation = Operation.objects.get()
    assert output == f"gave back 300 (operation {operation.pk})\n"
    assert broker.contents("mail-dead") == [(body, HEADERS) for body in bodies]
    assert (operation.verb, operation.reason) == ("give_back", "we move away")
    assert set(states()) == {"moved"}
    trail = [entry.action for entry in Entry.objects.order_by("seq")]
    assert trail[-2:] == ["operation.confirmed", "operation.finished"]


def test_a_message_given_back_is_the_same_poison_when_captured_again(
    broker: Queues, mail: Topic
) -> None:
    # Two are equal in every byte.
    captured(broker, mail, [b"x", b"y", b"x"])
    before = set(Poison.objects.values_list("pk", flat=True))
    pause()
    give_back()
    Lane.objects.update(paused=False)

    drain_all(mail, clock.now())

    assert set(Poison.objects.values_list("pk", flat=True)) == before
    assert states() == ["open"] * 3
    assert broker.contents("mail-dead") == []
    # It lay in the queue: that is no failure of a redrive.
    assert set(Poison.objects.values_list("recurrences", flat=True)) == {0}
    assert set(Redrive.objects.values_list("outcome", flat=True)) == {"recurred"}


def test_a_message_can_be_given_back_and_captured_repeatedly(
    broker: Queues, mail: Topic
) -> None:
    captured(broker, mail, [b"x", b"y"])

    for _ in range(3):
        pause()
        give_back()
        Lane.objects.update(paused=False)
        drain_all(mail, clock.now())

    assert (Poison.objects.count(), states()) == (2, ["open", "open"])
    assert Body.objects.count() == 2


def test_among_equal_copies_a_dead_letter_is_matched_by_its_bookmark(
    now: datetime,
) -> None:
    queues = Queues()
    with adapted(queues):
        mail = topic_on_queues(now)
        captured(queues, mail, [b"x", b"x"])
        pause()
        give_back()
        first, second = Redrive.objects.order_by("claimed_at", "bookmark")
        queues.queues["mail-dead"].reverse()
        Lane.objects.update(paused=False)

        drain_all(mail, now)

    failures = dict(
        Failure.objects.filter(is_first=False).values_list("redrive", "poison_id")
    )
    assert failures == {redrive.pk: redrive.poison_id for redrive in (first, second)}
    assert not Failure.objects.filter(ambiguous=True).exists()


@pytest.mark.parametrize("mode", [Mode.CAPTURE, Mode.TEE])
def test_giving_back_is_refused_until_the_lane_is_paused(
    broker: Queues, mail: Topic, mode: Mode
) -> None:
    captured(broker, mail, [b"x"])
    tee_queue = "copies" if mode is Mode.TEE else ""
    Lane.objects.update(mode=mode.value, tee_queue=tee_queue)

    with pytest.raises(CommandError, match="pause it first, or let it only observe"):
        give_back()
    untouched = states()
    Lane.objects.update(mode=Mode.OBSERVE.value, tee_queue="")
    give_back()

    assert (untouched, states()) == (["open"], ["moved"])


def test_only_open_messages_of_exactly_this_topic_are_given_back(
    broker: Queues, mail: Topic
) -> None:
    captured(broker, mail, [b"other"])
    star = topic_on_queues(clock.now(), name="mai*")
    for body in (b"x", b"y"):
        broker.put("mai*-dead", body, HEADERS)
    drain_all(star, clock.now())
    drop(clock.now(), Poison.objects.get(topic=star, bodies__content=b"y"))
    pause()

    call_command("give_back", "mai*", stdout=StringIO())

    rows = Poison.objects.values_list("bodies__content", "state")
    assert {bytes(body): state for body, state in rows} == {
        b"other": "open",
        b"x": "moved",
        b"y": "dropped",
    }
    assert broker.contents("mai*-dead") == [(b"x", HEADERS)]
    assert broker.contents("mail-dead") == []


def test_without_open_messages_there_is_nothing_to_give_back(
    broker: Queues, mail: Topic
) -> None:
    pause()

    assert give_back() == "gave back 0: no message of this topic is open\n"
    assert not Operation.objects.unfinished().exists()


def test_a_run_that_died_is_taken_over_and_sends_at_most_a_window_twice(
    broker: Queues, mail: Topic
) -> None:
    bodies = [b"%d" % number for number in range(7)]
    captured(broker, mail, bodies)
    pause()
    begun = start_of_give_back_operation.give_back(
        topic=mail, reason="", principal=COMMAND_LINE, now=clock.now()
    )
    assert begun is not None
    for _ in range(2):
        with DyingPublisher() as publisher, pytest.raises(Killed):
            running.run(
                operation_id=begun.pk, publisher=publisher, clock=clock.now, most=2
            )

    output = give_back()

    there = [body for body, _ in broker.contents("mail-dead")]
    assert output == f"gave back 7 (operation {begun.pk})\n"
    assert (set(there), Operation.objects.count()) == (set(bodies), 1)
    assert len(there) == len(bodies) + 2 * 2  # a window for each kill
    assert set(states()) == {"moved"}


def test_giving_back_waits_for_a_broker_that_is_away(
    broker: Queues, mail: Topic
) -> None:
    captured(broker, mail, [b"x"])
    pause()
    answers = iter([UNKNOWN])

    def answer(_: Outbound) -> PublishOutcome:
        return next(answers, SENT)

    broker.answer = answer

    output = give_back()

    assert "waiting: the connection broke" in output
    assert broker.contents("mail-dead") == [(b"x", HEADERS)]


def test_a_message_that_the_queue_refuses_stays_open_and_the_rest_is_given_back(
    broker: Queues, mail: Topic
) -> None:
    captured(broker, mail, [b"x", b"bad"])
    pause()
    broker.answer = lambda message: REFUSED if message.body == b"bad" else SENT

    with pytest.raises(CommandError, match="1 were refused and are open still"):
        give_back()

    assert sorted(states()) == ["moved", "open"]
    assert broker.contents("mail-dead") == [(b"x", HEADERS)]


def test_a_topic_that_has_no_queue_is_refused(now: datetime) -> None:
    brokers.topics_named(names=["mail"])

    with pytest.raises(CommandError, match="no dead-letter queue to give back to"):
        give_back()
    with pytest.raises(CommandError, match="there is no topic nowhere"):
        call_command("give_back", "nowhere")


def test_giving_back_restores_a_redis_stream(orders: Topic, stream: Redis) -> None:
    fields: dict[Any, Any] = {b"body": b"\x00\xff", b"x-original-bookmark": b"5-0"}
    stream.xadd("orders-poison", fields)
    drain_all(orders, clock.now())
    pause()

    call_command("give_back", "orders", stdout=StringIO())
    entries = cast(Any, stream.xrange("orders-poison"))
    Lane.objects.update(paused=False)
    drain_all(orders, clock.now() + timedelta(seconds=1))

    assert [dict(entry) for _, entry in entries] == [fields]
    assert states() == ["open"]


def test_messages_are_given_back_to_the_topics_current_dead_letter_queue(
    broker: Queues, mail: Topic
) -> None:
    captured(broker, mail, [b"x"])
    pause()
    begun = start_of_give_back_operation.give_back(
        topic=mail, reason="", principal=COMMAND_LINE, now=clock.now()
    )
    assert begun is not None
    Topic.objects.filter(pk=mail.pk).update(dead_letter_queue="elsewhere")

    with RoutingPublisher() as publisher:
        ended = running.run(operation_id=begun.pk, publisher=publisher, clock=clock.now)

    assert ended is SliceEnd.DONE
    assert broker.contents("elsewhere") == [(b"x", HEADERS)]
    assert Redrive.objects.get().queue == "elsewhere"


def test_what_may_have_been_given_back_stays_with_its_queue(
    broker: Queues, mail: Topic
) -> None:
    captured(broker, mail, [b"x", b"y"])
    pause()
    begun = start_of_give_back_operation.give_back(
        topic=mail, reason="", principal=COMMAND_LINE, now=clock.now()
    )
    assert begun is not None
    with DyingPublisher() as publisher, pytest.raises(Killed):
        running.run(operation_id=begun.pk, publisher=publisher, clock=clock.now, most=1)
    Topic.objects.filter(pk=mail.pk).update(dead_letter_queue="elsewhere")

    with RoutingPublisher() as publisher:
        ended = running.run(operation_id=begun.pk, publisher=publisher, clock=clock.now)

    assert ended is SliceEnd.DONE
    assert broker.contents("mail-dead") == [(b"x", HEADERS)] * 2
    assert broker.contents("elsewhere") == [(b"y", HEADERS)]
