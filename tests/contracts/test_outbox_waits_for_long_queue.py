"""A queue of a real broker that is too long slows an outbox until it is read."""

from __future__ import annotations

from typing import cast

import pytest

from apps.brokers.models import Broker
from apps.outbox.sweeping import broker_backlog_throttle
from tests.contracts.conftest import StageOf
from tests.contracts.redis_streams_topic_fixture import RedisStage
from tests.contracts.topic_fixture_interface import RealStage
from tests.integration.outbox.conftest import outbox, outbox_database
from tests.integration.outbox.outbox_builders import outbox_at
from tests.integration.outbox.test_sweeping_registered_outboxes import (
    activity,
    is_in_state,
    sweeping,
)
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.waiting import wait_until

__all__ = ["outbox", "outbox_database"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    "kind",
    [pytest.param("rabbitmq", marks=pytest.mark.needs("rabbitmq")), "redis_streams"],
)
def test_rows_wait_while_their_queue_is_too_long_and_go_on_once_it_is_shorter(
    kind: str,
    stage_of: StageOf,
    outbox: OutboxTables,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_backlog_throttle, "LOOK_SECONDS", 0.2)
    stage = cast("RealStage", stage_of(kind))
    options = dict(stage.broker.options)
    Broker.objects.create(
        name="events", kind=kind, url=stage.broker.url, options=options
    )
    registered = outbox_at(outbox.dsn, most_depth=3)

    def sent_count() -> int:
        return outbox.count("sent_at IS NOT NULL")

    with sweeping():
        outbox.put_many(3, topic=stage.topic)
        wait_until(lambda: is_in_state(registered, "slowed"))
        note = activity(registered)
        why = "the broker has 3 messages in its queue"
        assert (note.slowed, note.detail) == (
            {stage.topic: why},
            f"{stage.topic}: {why}",
        )

        outbox.put_many(2, first=4, topic=stage.topic)
        # Another queue of the same broker.
        outbox.put_many(1, first=9, topic=stage.queue)
        wait_until(lambda: sent_count() == 4)
        assert outbox.count("sent_at IS NULL AND attempts = 0") == 2

        assert len(stage.consume(stage.topic)) == 3
        if isinstance(stage, RedisStage):
            # What was read is still in the stream, until its consumers trim it.
            wait_until(lambda: activity(registered).noted_at != note.noted_at)
            assert sent_count() == 4
            stage.client.xtrim(stage.topic, maxlen=0, approximate=False)
        wait_until(lambda: sent_count() == 6)
        wait_until(lambda: is_in_state(registered, "sweeping"))

    assert [body for body, _ in stage.contents(stage.topic)] == [b"body 4", b"body 5"]
