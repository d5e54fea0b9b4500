"""A preview leaves out what is larger than the broker that would get it takes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from redis import Redis

from apps.brokers.models import Topic
from apps.poison.models import Poison
from apps.team.rights import Principal
from apps.triage.errors import Stale
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.services import preview_summaries
from tests.failure_report_builders import poisons
from tests.in_memory_queue_broker import Queues
from tests.lane_crash_simulation import topic_on_queues
from tests.triage_operation_runner import confirm, counts_of, preview, run

pytestmark = pytest.mark.django_db(transaction=True)

TOO_LARGE = "too large for the broker that would get it"
LIMIT = 20


@pytest.fixture
def narrow(broker: Queues, orders: Topic, now: datetime) -> Topic:
    """Give a topic of a broker that takes bodies of a few bytes."""
    broker.with_(max_message=LIMIT)
    return topic_on_queues(now, name="narrow")


def skipped(operation: Operation) -> dict[str, int]:
    return dict(preview_summaries.summarize(operation=operation).skipped)


def capture_both(now: datetime, topic: str) -> tuple[Poison, Poison]:
    """Capture a message that just fits into the narrow topic, and one that does not."""
    (fits,) = poisons(now, 1, topic=topic, body=b"x" * LIMIT)
    (large,) = poisons(now, 1, topic=topic, body=b"x" * (LIMIT + 1))
    return fits, large


@pytest.mark.parametrize(
    ("policy", "topic", "selection"),
    [
        (None, "orders", {"target_topic": "narrow"}),
        ("narrow", "orders", {}),
        (None, "narrow", {}),
        (None, "narrow", {"verb": Verb.GIVE_BACK, "target_topic": "narrow"}),
    ],
    ids=["target", "policy", "own topic", "give back"],
)
def test_what_is_too_large_is_skipped_with_the_reason_and_stays_open(
    orders: Topic,
    narrow: Topic,
    broker: Queues,
    operator: Principal,
    now: datetime,
    policy: str | None,
    topic: str,
    selection: dict[str, Any],
) -> None:
    if policy:
        Topic.objects.filter(pk=orders.pk).update(requeue_topic=narrow)
    fits, large = capture_both(now, topic)

    operation = preview(operator, now, ids=(fits.pk, large.pk), **selection)
    run(confirm(operator, operation, now), now)

    assert (operation.will_act, skipped(operation)) == (1, {TOO_LARGE: 1})
    arrived = [body for queue in broker.queues for body, _ in broker.contents(queue)]
    assert [len(body) for body in arrived] == [LIMIT]
    assert counts_of(operation)["skipped"] == 1
    large.refresh_from_db()
    assert (large.state, large.redrives) == ("open", 0)


def test_a_broker_that_takes_more_gets_the_large_message(
    orders: Topic, narrow: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    fits, large = capture_both(now, "narrow")
    chosen = (fits.pk, large.pk)

    operation = preview(operator, now, ids=chosen, target_topic="orders")
    run(confirm(operator, operation, now), now)

    assert (skipped(operation), stream.xlen("orders")) == ({}, 2)


def test_of_topics_of_several_brokers_each_has_its_own_limit(
    orders: Topic, narrow: Topic, operator: Principal, now: datetime
) -> None:
    chosen = [*capture_both(now, "orders"), *capture_both(now, "narrow")]

    operation = preview(operator, now, ids=tuple(poison.pk for poison in chosen))

    assert (operation.will_act, skipped(operation)) == (3, {TOO_LARGE: 1})


def test_text_may_be_larger_than_other_bodies_where_the_broker_says_so(
    narrow: Topic, broker: Queues, operator: Principal, now: datetime
) -> None:
    broker.with_(max_message=LIMIT, max_text=LIMIT + 1)
    poisons(now, 1, topic="narrow", body=b"x" * (LIMIT + 1))

    operation = preview(operator, now, ids=tuple(all_ids()))

    assert operation.will_act == 1


def all_ids() -> list[int]:
    return list(Poison.objects.values_list("pk", flat=True))


def test_a_limit_that_is_lower_when_the_operation_is_confirmed_holds_then(
    narrow: Topic, broker: Queues, operator: Principal, now: datetime
) -> None:
    capture_both(now, "narrow")
    operation = preview(operator, now, ids=tuple(all_ids()))
    broker.with_(max_message=1)

    with pytest.raises(Stale, match="2 skipped, too large"):
        confirm(operator, operation, now)
