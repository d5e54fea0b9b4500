"""Dead-letter queues by convention, also those that are created later."""

from __future__ import annotations

from typing import cast

import pytest

from apps.brokers import adapters
from apps.brokers.errors import QueueExpected
from apps.brokers.models import Broker, Topic
from apps.brokers.services.topics_and_routing_publisher import register_topic
from apps.capture.lanes import lane_mode_and_pause
from apps.capture.models import Lane, Mode
from apps.core import clock
from apps.core.errors import Invalid
from apps.poison.models import Body
from apps.team.rights import Principal
from tests.contracts.azure_queue_topic_fixture import AzureStage
from tests.contracts.conftest import StageOf
from tests.contracts.topic_fixture_interface import RealStage
from tests.lane_crash_simulation import serving
from tests.waiting import wait_until

# The kinds where a convention or the broker names the queue, and how.
SUFFIXES = {"azure_queue": "-poison"}


def test_each_kind_names_its_dead_letter_queue_by_convention_or_none(
    kind: str, real_stage: RealStage
) -> None:
    queue = adapters.adapter(kind).queue_by_convention(real_stage.topic)

    suffix = SUFFIXES.get(kind)
    assert queue == (f"{real_stage.topic}{suffix}" if suffix else "")
    if queue:
        assert queue == real_stage.queue
        real_stage.put(queue, b"0")
        (letter,) = real_stage.reader().read(limit=1, wait=5)
        assert (letter.queue, letter.body) == (queue, b"0")


@pytest.mark.parametrize("kind", sorted(SUFFIXES))
def test_a_dead_letter_queue_has_no_dead_letter_queue_by_convention(
    kind: str,
) -> None:
    adapter = adapters.adapter(kind)

    for topic in (f"orders{SUFFIXES[kind]}", "a" * 1_000):
        with pytest.raises(Invalid, match="dead_letter_queue|native_name"):
            adapter.queue_by_convention(topic)


@pytest.fixture
def unmade(stage_of: StageOf) -> AzureStage:
    """Return a topic that never failed, so its poison queue does not exist."""
    stage = cast("AzureStage", stage_of("azure_queue"))
    stage.client(stage.queue).delete_queue()
    return stage


@pytest.mark.needs("azurite")
def test_a_queue_is_expected_until_its_first_dead_letter(
    unmade: AzureStage,
) -> None:
    admin = unmade.admin()
    with pytest.raises(QueueExpected, match=f"no queue {unmade.queue} yet"):
        admin.depth()
    before = (admin.oldest_at(), unmade.reader().peek(limit=1))

    unmade.make(unmade.queue)

    assert before == (None, [])
    assert admin.depth() == 0


@pytest.mark.needs("azurite")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.CAPTURE])
def test_a_lane_reads_a_queue_created_after_its_start(
    unmade: AzureStage, operator: Principal, mode: Mode
) -> None:
    topic = declared(unmade, operator, mode)
    with serving():
        wait_until(lambda: Lane.objects.get().state == "expected")
        unmade.make(unmade.queue)
        unmade.put(unmade.queue, b"the first that failed")
        if mode is Mode.CAPTURE:
            wait_until(Body.objects.exists)
            wait_until(lambda: not unmade.texts(unmade.queue))
        wait_until(lambda: Lane.objects.get().state == "running")
        wait_until(lambda: Lane.objects.get().depth == (mode is Mode.OBSERVE))

    assert topic.dead_letter_queue == unmade.queue
    assert Body.objects.exists() is (mode is Mode.CAPTURE)


@pytest.mark.needs("azurite")
@pytest.mark.django_db(transaction=True)
def test_a_lane_that_dead_letters_creates_the_queue(
    unmade: AzureStage, operator: Principal
) -> None:
    unmade.put(unmade.topic, b"nothing settles it")
    unmade.fail(5)
    declared(unmade, operator, Mode.CAPTURE)

    with serving():
        wait_until(Body.objects.exists)

    assert unmade.texts(unmade.topic) == []


def declared(stage: AzureStage, principal: Principal, mode: Mode) -> Topic:
    """Declare the topic by its name alone, and give it a lane."""
    broker = Broker.objects.create(name="a", kind="azure_queue", url=stage.broker.url)
    topic = register_topic(
        name=stage.topic,
        broker=broker,
        dead_letter_queue=None,
        policy={"visibility_timeout": stage.settings.visibility_timeout},
        actor=principal.actor,
        now=clock.now(),
    )
    lane_mode_and_pause.set_mode(
        topic=topic, mode=mode, principal=principal, now=clock.now()
    )
    return topic
