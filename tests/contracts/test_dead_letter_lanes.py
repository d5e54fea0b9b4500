"""Lanes on the real brokers: capture, give back, capture again, fail again."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import datetime
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction

from apps.brokers.adapter_contract import Counting, Header, Headers, Ordering
from apps.brokers.models import Broker, Topic
from apps.brokers.services.topics_and_routing_publisher import RoutingPublisher
from apps.capture.models import Lane, Mode
from apps.core import clock
from apps.poison.models import Body, Failure, Poison
from apps.poison.query_language import Query
from apps.team.rights import Principal
from apps.triage.operation_states import Verb
from apps.triage.services import confirm_and_undo, previews, running
from apps.triage.services.running import SliceEnd
from apps.triage.services.selection_requests import SelectionRequest
from tests.contracts import broker_kinds
from tests.contracts.conftest import StageOf
from tests.lane_crash_simulation import Killed, drain_all, dying

pytestmark = pytest.mark.django_db(transaction=True)

NUMBER = 25
HEADERS: tuple[Header, ...] = ((b"tenant", b"a"), (b"Tenant", "ü".encode()))
# Hidden messages would have to be waited for after each death.
AT_ONCE = [
    param
    for param in broker_kinds.REAL
    if param.values[0] in {"redis_streams", "rabbitmq"}
]


@pytest.fixture
def stage(request: pytest.FixtureRequest, stage_of: StageOf) -> Any:
    """Return one kind's topic on its stage."""
    return stage_of(request.param)


@pytest.fixture
def mail(stage: Any, request: pytest.FixtureRequest) -> Topic:
    kind = request.node.callspec.params["stage"]
    broker = Broker.objects.create(
        name=kind,
        kind=kind,
        url=stage.broker.url,
        options=dict(stage.broker.options),
    )
    topic = Topic.objects.create(
        name="mail",
        broker=broker,
        native_name=stage.topic,
        dead_letter_queue=stage.queue,
        max_dequeue_count=5,
        visibility_timeout=stage.settings.visibility_timeout,
        options=dict(stage.settings.options),
    )
    Lane.objects.create(topic=topic, mode=Mode.CAPTURE.value)
    return topic


def headers(stage: Any) -> tuple[Header, ...]:
    return () if stage.capabilities.headers is Headers.NONE else HEADERS


def put(stage: Any, bodies: list[bytes]) -> None:
    for body in bodies:
        stage.put(stage.queue, body, headers(stage))


def give_back() -> None:
    Lane.objects.update(paused=True)
    call_command("give_back", "mail", stdout=StringIO())
    Lane.objects.update(paused=False)


def redrive(who: Principal, now: datetime) -> SliceEnd:
    selection = SelectionRequest(verb=Verb.REDRIVE, query=Query.parse("is:open"))
    with transaction.atomic():
        previewed = previews.preview(selection=selection, principal=who, now=now)
    operation = confirm_and_undo.confirm(
        token=previewed.token, reason="a test", principal=who, now=now
    )
    with RoutingPublisher() as publisher:
        return running.run(
            operation_id=operation.pk, publisher=publisher, clock=clock.now
        )


@pytest.mark.parametrize("stage", broker_kinds.REAL, indirect=True)
def test_capture_then_give_back_leaves_the_queue_as_it_was(
    stage: Any, mail: Topic
) -> None:
    put(stage, [b'{"n": %d}' % number for number in range(NUMBER)])
    before = stage.contents(stage.queue)

    drain_all(mail, clock.now())
    emptied = stage.contents(stage.queue)
    give_back()
    after = stage.contents(stage.queue)
    poisons = set(Poison.objects.values_list("pk", flat=True))
    drain_all(mail, clock.now())

    assert (emptied, len(before)) == ([], NUMBER)
    assert Counter(after) == Counter(before)
    if stage.capabilities.ordering is not Ordering.NONE:
        assert after == before
    # Captured again, each message is what it was.
    assert set(Poison.objects.values_list("pk", flat=True)) == poisons
    assert set(Poison.objects.values_list("state", flat=True)) == {"open"}
    assert stage.contents(stage.queue) == []


@pytest.mark.parametrize("stage", broker_kinds.REAL, indirect=True)
def test_a_redriven_message_that_fails_again_is_the_same_poison(
    stage: Any, mail: Topic, operator: Principal
) -> None:
    put(stage, [b'{"n": 1}', b'{"n": 2}'])
    drain_all(mail, clock.now())
    poisons = set(Poison.objects.values_list("pk", flat=True))

    ended = redrive(operator, clock.now())
    redriven = stage.consume(stage.topic)
    for body, headers in redriven:
        stage.put(stage.queue, body, headers)
    drain_all(mail, clock.now())

    assert (ended, len(redriven)) == (SliceEnd.DONE, 2)
    assert set(Poison.objects.values_list("pk", flat=True)) == poisons
    rows = Poison.objects.values_list("state", "recurrences", "failures")
    assert list(rows) == [("open", 1, 2)] * 2


@pytest.mark.parametrize("stage", AT_ONCE, indirect=True)
def test_each_letter_is_captured_once_at_whatever_step_a_lane_dies(
    stage: Any, mail: Topic
) -> None:
    for at in range(1, 9):
        put(stage, [b"%d/%d" % (at, number) for number in range(6)])
        with dying(at), suppress(Killed):
            drain_all(mail, clock.now(), at_once=4)
        drain_all(mail, clock.now(), at_once=4)

        assert Poison.objects.count() == 6 * at, f"died at step {at}"
        assert stage.contents(stage.queue) == []

    bodies = [bytes(body.content) for body in Body.objects.all()]
    assert len(set(bodies)) == len(bodies) == Failure.objects.count()


@pytest.mark.parametrize("stage", broker_kinds.REAL, indirect=True)
def test_a_missing_cause_is_max_dequeue_count_only_where_the_policy_proves_it(
    stage: Any, mail: Topic
) -> None:
    put(stage, [b"x"])

    drain_all(mail, clock.now())

    failure = Failure.objects.get()
    if stage.capabilities.counting is Counting.POLICY:
        facts = (failure.cause, failure.dequeue_count, failure.dequeue_count_source)
        assert facts == ("max_dequeue_count", 5, "policy")
    else:
        assert failure.dequeue_count_source in {"", "broker"}
        assert failure.cause == "rejected"
