"""A message's life on each kind of broker, through the whole product.

The queue is a real broker's, the record a real Postgres; lanes and workers are
processes that die by SIGKILL at random moments.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from io import StringIO
from typing import cast

import pytest
from django.core.management import call_command
from django.db import connections

from apps.brokers.adapter_contract import (
    Headers,
    Ordering,
    Outbound,
    OutcomeKind,
    PublishOutcome,
)
from apps.brokers.adapters.sqs.messages import GROUP
from apps.brokers.models import Broker, Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.capture.intake import services as capture
from apps.capture.lanes.batch_size_and_poll_interval import Timer
from apps.capture.lanes.dead_letter_drain import Drain
from apps.capture.models import Lane, Mode
from apps.core import clock
from apps.core.errors import Invalid
from apps.poison.models import Body, Poison, Redrive
from apps.poison.query_language import Query
from apps.poison.redrive_signatures import redrive_of
from apps.team.rights import Principal
from apps.triage.models import WINDOW_SIZE, Operation
from apps.triage.operation_states import Verb
from apps.triage.services import confirm_and_undo, previews, running
from apps.triage.services.running import SliceEnd
from apps.triage.services.selection_requests import SelectionRequest
from tests import failure_report_builders
from tests.brokers.moto import MotoServer
from tests.contracts.broker_kinds import BrokerServer
from tests.contracts.cutting_and_counting_proxies import counting
from tests.contracts.sqs_topic_fixture import SqsStage
from tests.contracts.topic_fixture_interface import Message, RealStage
from tests.failure_report_builders import GUARD, failure
from tests.lane_crash_simulation import Killed
from tests.registered_brokers import SYSTEM, broker_named
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.present]

SOAK = "SOAK" in os.environ
DRAINED, DRAIN_KILLS = (20_000, 200) if SOAK else (400, 20)
REDRIVEN, REDRIVE_KILLS = (10_000, 200) if SOAK else (400, 20)
# So many messages that a kill leaves some in the queue.
AT_ONCE = 20
# moto's time for a FIFO queue grows with the square of its length.
GROUPED, GROUPED_KILLS = (400, 200) if SOAK else (30, 20)
GROUPS = 3
SHORTLY_HIDDEN = 2.0
LONGEST_LIFE = 0.15
# Seconds in which no message comes.
IDLE = 120
# A server in Python is slow with ten thousand messages.
PATIENCE = 600.0 if SOAK else 60.0
MARK = b"x-poisonweb-redrive"
HEADER = ((b"content-type", b"text/plain"),)


@pytest.fixture
def topic(real_stage: RealStage, kind: str, now: datetime) -> Topic:
    return registered(real_stage, kind, now)


@pytest.fixture
def fifo(servers: Callable[[str], BrokerServer]) -> Iterator[SqsStage]:
    """Yield a stage that keeps the order of each key: for SQS, a FIFO queue."""
    server = cast("MotoServer", servers("sqs"))
    stage = SqsStage(server, fifo=True, visibility_timeout=SHORTLY_HIDDEN)
    yield stage
    stage.remove()


def registered(stage: RealStage, kind: str, now: datetime) -> Topic:
    """Register the stage's topic with the product, with a lane that captures."""
    settings = stage.settings
    broker = broker_named(
        kind, kind=kind, url=stage.broker.url, options=stage.broker.options, now=now
    )
    topic = brokers.register_topic(
        name="orders",
        native_name=stage.topic,
        broker=broker,
        dead_letter_queue=stage.queue,
        policy={"visibility_timeout": settings.visibility_timeout},
        actor=SYSTEM.actor,
        now=now,
    )
    Topic.objects.update(options=dict(settings.options))
    Lane.objects.create(topic=topic, mode=Mode.CAPTURE.value)
    return Topic.objects.select_related("broker").get(pk=topic.pk)


@pytest.fixture
def forked() -> Iterator[Callable[[Callable[[Callable[[], None]], None]], Child]]:
    """Run work in processes of their own; kill the remaining ones at the end."""
    children: list[Child] = []

    def fork(work: Callable[[Callable[[], None]], None]) -> Child:
        children.append(Child(work))
        return children[-1]

    yield fork
    for child in children:
        child.kill()


class Child:
    """A process that works, and reports each of its steps by a pipe."""

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        # Two processes cannot share a connection.
        connections.close_all()
        self._reading, writing = os.pipe()
        with warnings.catch_warnings():
            # A fork has no threads, and the process does not wait for any.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid: int | None = os.fork()
        if self._pid == 0:
            self._work(work, partial(os.write, writing, b"."))
        os.close(writing)

    def _work(
        self, work: Callable[[Callable[[], None]], None], report: Callable[[], object]
    ) -> None:
        code = 1
        try:
            work(lambda: void(report()))
            code = 0
        except BaseException:  # noqa: BLE001 - told, and told by the code
            traceback.print_exc()
        finally:
            os._exit(code)

    def has_made(self, steps: int) -> bool:
        """Wait until it reports so many steps; False where it ended before."""
        return all(os.read(self._reading, 1) == b"." for _ in range(steps))

    def kill(self) -> bool:
        """Kill the process, and tell whether it was still at work."""
        if self._pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        os.close(self._reading)
        self._pid = None
        assert status in {0, signal.SIGKILL}, "it failed: see its traceback"
        return status == signal.SIGKILL


Fork = Callable[[Callable[[Callable[[], None]], None]], Child]


def void(_: object) -> None:
    """Ignore the number of written bytes."""


def drain(topic: Topic, *, step: Callable[[], None] = lambda: None) -> None:
    """Drain until nothing comes; one message first, since the client starts slowly."""
    with draining(topic) as work:
        work.size.value = 1
        while work.drain_batch(wait=1.0):
            step()
            work.size.value = AT_ONCE


def drain_until(topic: Topic, enough: Callable[[], bool]) -> None:
    """Drain while a visibility timeout may hide messages of a dead lane."""
    until = time.monotonic() + PATIENCE
    with draining(topic) as work:
        while not enough():
            assert time.monotonic() < until, "it never came"
            work.drain_batch(wait=1.0)


def draining(topic: Topic, timer: Timer = time.monotonic) -> Drain:
    lane = Lane.objects.possible().get(pk=topic.pk)
    work = Drain(lane=lane, clock=clock.now, timer=timer)
    work.size.value = AT_ONCE
    return work


def kill_at_random(child: Child, chance: random.Random) -> bool:
    """Let it work for a moment; tell whether the kill met it at work."""
    if child.has_made(1):
        time.sleep(chance.uniform(0, LONGEST_LIFE))
    return child.kill()


def kill_after(child: Child, steps: int) -> bool:
    """Kill it between two sends, or at the next; tell whether it was at work."""
    return child.has_made(1 + steps) and child.kill()


def decide(who: Principal, **selection: object) -> Operation:
    query = Query.parse("topic:orders is:open")
    preview = previews.preview(
        selection=SelectionRequest(verb=Verb.REDRIVE, query=query, **selection),  # type: ignore[arg-type]
        principal=who,
        now=clock.now(),
    )
    previews.take(operation_id=preview.pk, now=clock.now())
    return confirm_and_undo.confirm(
        token=preview.token, reason="mended", principal=who, now=clock.now()
    )


def carry_out(operation: Operation) -> None:
    """Run the operation as a worker does, until it is done."""
    with RoutingPublisher() as publisher:
        work_on(operation, publisher)


def carry_out_in_steps(operation: Operation, *, step: Callable[[], None]) -> None:
    """Run the operation and report each answer; a first send makes the client."""
    with ReportingPublisher(step) as publisher:
        topic = Topic.objects.select_related("broker").get(name="orders")
        nowhere = f"{topic.native_name}-nowhere"
        publisher.publish(
            [RoutedMessage(topic=topic, queue=nowhere, body=b"0", headers=())]
        )
        work_on(operation, publisher)


class ReportingPublisher(RoutingPublisher):
    """Publisher that reports each answer of a broker."""

    def __init__(self, report: Callable[[], None]) -> None:
        super().__init__()
        self._report = report

    def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
        outcomes = super().publish(messages)
        self._report()
        return outcomes


def work_on(operation: Operation, publisher: RoutingPublisher) -> None:
    run = partial(running.run, operation_id=operation.pk, publisher=publisher)
    wait_until(lambda: run(clock=clock.now) is SliceEnd.DONE, seconds=PATIENCE)


def unmarked(contents: list[Message]) -> list[Message]:
    """Return the messages without the mark of a redrive."""
    return [
        (body, tuple(h for h in headers if h[0] != MARK)) for body, headers in contents
    ]


def marks(contents: list[Message]) -> list[str]:
    fields = [field for _, headers in contents for field in headers]
    return [value.decode() for name, value in fields if name == MARK]


def in_order(stage: RealStage, messages: list[Message]) -> list[Message]:
    keeps = stage.capabilities.ordering is Ordering.TOPIC
    return messages if keeps else sorted(messages)


def headers_of(stage: RealStage) -> tuple[tuple[bytes, bytes], ...]:
    return () if stage.capabilities.headers is Headers.NONE else HEADER


def test_a_poison_is_requeued_fails_again_as_itself_and_then_is_handled(
    real_stage: RealStage, topic: Topic, operator: Principal
) -> None:
    message = (b'{"order": 13}', headers_of(real_stage))
    real_stage.put(real_stage.queue, *message)
    drain_until(topic, Poison.objects.exists)
    before = Poison.objects.get()

    carry_out(decide(operator))
    (redriven,) = real_stage.consume(real_stage.topic)
    real_stage.put(real_stage.queue, *redriven)
    drain_until(topic, Poison.objects.filter(recurrences=1).exists)
    failed = Poison.objects.get()
    carry_out(decide(operator))
    (handled,) = real_stage.consume(real_stage.topic)
    confirm(handled)

    after = Poison.objects.get()
    assert (before.state, failed.state) == ("open", "open")
    assert before.pk == failed.pk == after.pk
    assert unmarked([redriven, handled]) == [message, message]
    assert (after.redrives, after.recurrences) == (2, 1)
    assert real_stage.contents(real_stage.queue) == []
    # A message that cannot bear a mark cannot be known as handled.
    bears = real_stage.capabilities.headers is not Headers.NONE
    assert after.state == ("confirmed" if bears else "redriven")
    assert len(marks([redriven, handled])) == (2 if bears else 0)


@pytest.mark.parametrize("lives", [True, False])
def test_a_poison_may_be_requeued_before_its_lane_has_let_go_of_it(
    real_stage: RealStage, topic: Topic, operator: Principal, *, lives: bool
) -> None:
    message = (b'{"order": 13}', headers_of(real_stage))
    real_stage.put(real_stage.queue, *message)

    with draining(topic) as work, suppress(Killed):
        requeue_when_committed(work, operator, lives=lives)
        take_one(work)
    if not lives:
        # It is still in its queue: the next lane reads it, and recognizes it.
        with draining(topic) as work:
            take_one(work)
    (handled,) = real_stage.consume(real_stage.topic)
    confirm(handled)

    after = Poison.objects.get()
    assert unmarked([handled]) == [message]
    assert real_stage.contents(real_stage.queue) == []
    assert (after.redrives, after.recurrences, after.failures) == (1, 0, 1)
    bears = real_stage.capabilities.headers is not Headers.NONE
    assert after.state == ("confirmed" if bears else "redriven")


def requeue_when_committed(work: Drain, who: Principal, *, lives: bool) -> None:
    """Redrive before the lane's acknowledgement, which then succeeds or dies."""
    acknowledge = work.reader.acknowledge

    def requeue_first(handles: Sequence[str]) -> None:
        carry_out(decide(who))
        if not lives:
            raise Killed
        acknowledge(handles)

    work.reader.acknowledge = requeue_first  # type: ignore[method-assign]


def take_one(work: Drain) -> None:
    wait_until(lambda: work.drain_batch(wait=1.0), seconds=PATIENCE)


def confirm(handled: Message) -> None:
    """Report what a guard reports when its handler returns."""
    now = clock.now()
    members: list[object] = []
    for redrive in marks([handled]):
        member = failure(now, redrive=redrive)
        members.append({**member, "at": member["failed_at"]})
    capture.confirm(members=members, principal=GUARD, now=now)


def test_draining_under_kills_loses_none_and_writes_none_twice(
    real_stage: RealStage, topic: Topic, forked: Fork
) -> None:
    chance, kills, put = random.Random(0), 0, 0
    while kills < DRAIN_KILLS:
        if put - Poison.objects.count() < DRAINED // DRAIN_KILLS:
            for n in range(put, put + DRAINED // DRAIN_KILLS):
                real_stage.put(real_stage.queue, b"%d" % n)
            put += DRAINED // DRAIN_KILLS
        child = forked(lambda step: drain(topic, step=step))
        kills += kill_at_random(child, chance)

    drain_until(topic, lambda: Poison.objects.count() >= put)
    # The messages that the last lane stored and did not remove are hidden for a time.
    drain_until(topic, lambda: real_stage.contents(real_stage.queue) == [])
    # A message that came twice would come now.
    drain(topic)

    bodies = Counter(bytes(body.content) for body in Body.objects.all())
    assert bodies == Counter(b"%d" % n for n in range(put))
    assert Poison.objects.count() == put
    assert real_stage.contents(real_stage.queue) == []


def test_redriving_under_kills_loses_none_and_repeats_only_what_was_in_flight(
    real_stage: RealStage, topic: Topic, operator: Principal, forked: Fork
) -> None:
    chance, kills, number = random.Random(0), 0, 0
    while kills < REDRIVE_KILLS:
        number += put_on_record(REDRIVEN, after=number)
        operation = decide(operator)
        while is_unfinished(operation) and kills < REDRIVE_KILLS:
            child = forked(lambda step, it=operation: carry_out_in_steps(it, step=step))  # type: ignore[misc]
            kills += kill_at_random(child, chance)
        carry_out(operation)

    contents = real_stage.contents(real_stage.topic)
    there = Counter(body for body, _ in contents)
    assert set(there) == {b"%d" % n for n in range(number)}
    assert len(contents) - number <= kills * WINDOW_SIZE
    assert set(Poison.objects.values_list("state", "redrives")) == {("redriven", 1)}
    if real_stage.capabilities.headers is not Headers.NONE:
        bears = {
            (body, redrive_of(marks([(body, headers)])[0]))
            for body, headers in contents
        }
        assert {redrive for _, redrive in bears} == set(
            Redrive.objects.values_list("id", flat=True)
        )
        assert len(bears) == number


def put_on_record(count: int, *, after: int) -> int:
    """Report so many failures, and return their number."""
    now = clock.now()
    for start in range(after, after + count, 500):
        end = min(start + 500, after + count)
        failure_report_builders.capture(
            now, *(failure(now, body=b"%d" % n) for n in range(start, end))
        )
    return count


def is_unfinished(operation: Operation) -> bool:
    return Operation.objects.unfinished().filter(pk=operation.pk).exists()


def test_an_idle_lane_polls_less_often_where_the_broker_bills_requests(
    real_stage: RealStage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not real_stage.capabilities.polling_interval:
        return
    # Two minutes pass in an instant: no lane waits for what is not there.
    monkeypatch.setattr("apps.capture.lanes.dead_letter_drain.READ_SECONDS", 0.0)
    Topic.objects.update(options={"maxPollingInterval": "00:00:15"})
    at = 0.0
    with counting(real_stage.broker) as (broker, counter):
        Broker.objects.update(url=broker.url, options=dict(broker.options))
        with draining(topic, lambda: at) as work:
            for _ in range(IDLE):
                work.step()
                at += 1.0
            request_count = counter.requests
            real_stage.put(real_stage.queue, b"at last")
            at += 15.0
            work.step()

    assert Poison.objects.count() == 1
    assert request_count < IDLE / 2


def test_give_back_restores_the_queue(real_stage: RealStage, topic: Topic) -> None:
    for n in range(20):
        real_stage.put(real_stage.queue, b"%d" % n, headers_of(real_stage))
    before = real_stage.contents(real_stage.queue)
    drain_until(topic, lambda: Poison.objects.count() == 20)
    between = real_stage.contents(real_stage.queue)
    Lane.objects.update(paused=True)

    call_command("give_back", "orders", stdout=StringIO())

    after = real_stage.contents(real_stage.queue)
    assert (len(before), between) == (20, [])
    assert in_order(real_stage, after) == in_order(real_stage, before)
    assert set(Poison.objects.values_list("state", flat=True)) == {"moved"}


def test_a_requested_order_is_kept_under_kills_or_refused(
    real_stage: RealStage, topic: Topic, operator: Principal, forked: Fork
) -> None:
    number = put_on_record(REDRIVEN // 4, after=0)
    if brokers.ordering_of(topic) is Ordering.NONE:
        with pytest.raises(Invalid, match="keeps no order"):
            decide(operator, ordered=True)
        return
    operation = decide(operator, ordered=True)

    child = forked(lambda step: carry_out_in_steps(operation, step=step))
    kill_after(child, random.Random(0).randrange(number))
    carry_out(operation)

    numbers = [int(body) for body, _ in real_stage.contents(real_stage.topic)]
    assert list(dict.fromkeys(numbers)) == list(range(number))


@pytest.mark.parametrize("ordered", [True, False])
def test_the_order_of_each_key_is_kept_under_kills_where_requested(
    fifo: SqsStage, now: datetime, operator: Principal, forked: Fork, *, ordered: bool
) -> None:
    topic = registered(fifo, "sqs", now)
    put_in_groups(fifo)
    drain_until(topic, lambda: Poison.objects.count() == GROUPED)
    operation = decide(operator, ordered=ordered)

    for steps in sorted(random.Random(0).sample(range(GROUPED), GROUPED_KILLS)):
        child = forked(lambda step: carry_out_in_steps(operation, step=step))
        kill_after(child, steps)
    carry_out(operation)

    arrived = groups_in(fifo)
    put = {b"g%d" % n: list(range(n, GROUPED, GROUPS)) for n in range(GROUPS)}
    assert {group: sorted(set(numbers)) for group, numbers in arrived.items()} == put
    if ordered:
        assert {g: list(dict.fromkeys(each)) for g, each in arrived.items()} == put


def put_in_groups(stage: SqsStage) -> None:
    """Fill the dead-letter queue with messages of several groups in turn."""
    window = [
        Outbound(
            topic=stage.queue,
            body=b"%d" % n,
            headers=((GROUP, b"g%d" % (n % GROUPS)),),
        )
        for n in range(GROUPED)
    ]
    outcomes = stage.publisher().publish(window)
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.SENT}


def groups_in(stage: SqsStage) -> dict[bytes, list[int]]:
    """Return the messages of the topic by group, in their order."""
    arrived: dict[bytes, list[int]] = {}
    for body, headers in stage.contents(stage.topic):
        arrived.setdefault(dict(headers)[GROUP], []).append(int(body))
    return arrived
