"""A topic's policy may send its messages to another topic when they are requeued."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.db.models import ProtectedError
from redis import Redis

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.brokers.topic_policies import Policies, set_policies
from apps.capture import unused_topic_removal
from apps.core.errors import Invalid
from apps.poison.models import Poison
from apps.team.rights import Principal
from apps.triage.errors import Stale
from apps.triage.models import Operation, Redirect
from apps.triage.operation_states import Verb
from apps.triage.ramps import Ramp
from apps.triage.services import confirm_and_undo, preview_summaries
from apps.triage.services.selection_requests import SendLimits
from tests.failure_report_builders import poisons
from tests.triage_operation_runner import MINUTE, confirm, counts_of, preview, run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def later(orders: Topic) -> Topic:
    return Topic.objects.create(name="later", native_name="later", broker=orders.broker)


def set_requeue_to(topic: Topic, name: str, who: Principal, now: datetime) -> Topic:
    topic = Topic.objects.get(pk=topic.pk)
    policies = Policies.of(topic).changed({"requeue_to": name})
    return set_policies(topic=topic, policies=policies, principal=who, now=now)


def test_messages_of_the_topic_go_where_its_policy_says(
    orders: Topic, later: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    set_requeue_to(orders, "later", operator, now)
    poisons(now, 2)
    poisons(now, 1, topic="other")
    Topic.objects.filter(name="other").update(broker=orders.broker)
    operation = preview(operator, now, query=None, ids=tuple(ids()))
    summary = preview_summaries.summarize(operation=operation)

    run(confirm(operator, operation, now), now)

    assert dict(summary.redirects) == {"orders": "later"}
    lengths = [stream.xlen(name) for name in ("orders", "later", "other")]
    assert lengths == [0, 2, 1]
    assert counts_of(operation) == {"moved": 2, "sent": 1}
    moved = Poison.objects.filter(topic=orders).values_list("state", "moved_to__name")
    assert set(moved) == {("moved", "later")}
    entry = Entry.objects.get(action="operation.confirmed")
    assert entry.detail["redirects"] == {"orders": "later"}


def ids() -> list[int]:
    return list(Poison.objects.values_list("pk", flat=True))


def test_a_target_that_a_person_chose_wins_over_the_policy(
    orders: Topic, later: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    set_requeue_to(orders, "later", operator, now)
    poisons(now, 1)
    operation = preview(operator, now, target_topic="orders")

    run(confirm(operator, operation, now), now)

    assert (stream.xlen("orders"), stream.xlen("later")) == (1, 0)


@pytest.mark.parametrize("is_set_before", [False, True], ids=["set", "ended"])
def test_a_policy_that_changed_after_the_preview_needs_a_new_one(
    orders: Topic,
    later: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    is_set_before: bool,
) -> None:
    poisons(now, 1)
    before, after = ("later", "") if is_set_before else ("", "later")
    set_requeue_to(orders, before, operator, now)
    operation = preview(operator, now)
    set_requeue_to(orders, after, operator, now)

    with pytest.raises(Stale, match="orders") as refusal:
        confirm(operator, operation, now)

    next_preview = refusal.value.new_preview
    assert next_preview is not None
    run(confirm(operator, next_preview, now), now)
    assert stream.xlen(after or "orders") == 1


def test_the_policy_of_a_topic_that_the_preview_does_not_have_changes_nothing(
    orders: Topic, later: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = preview(operator, now)
    other = Topic.objects.create(
        name="other", native_name="other", broker=orders.broker
    )
    set_requeue_to(other, "later", operator, now)

    confirm(operator, operation, now)

    assert not Redirect.objects.exists()


def test_the_topic_that_gets_the_messages_cannot_be_removed_meanwhile(
    orders: Topic, later: Topic, operator: Principal, now: datetime
) -> None:
    set_requeue_to(orders, "later", operator, now)
    with pytest.raises(unused_topic_removal.RecordsExist, match="requeued to it"):
        unused_topic_removal.remove_topics(
            topics=[later.pk], principal=operator, now=now
        )
    poisons(now, 1)
    confirm(operator, preview(operator, now), now)
    set_requeue_to(orders, "", operator, now)

    with pytest.raises(unused_topic_removal.RecordsExist, match="operations"):
        unused_topic_removal.remove_topics(
            topics=[later.pk], principal=operator, now=now
        )
    with pytest.raises(ProtectedError):
        later.delete()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("orders", "leave it empty"),
        ("nowhere", "there is no topic"),
        ("bare", "has no broker"),
        ("forwarded", "requeued elsewhere itself"),
    ],
)
def test_a_topic_that_cannot_get_the_messages_is_refused(
    orders: Topic,
    later: Topic,
    operator: Principal,
    now: datetime,
    name: str,
    remedy: str,
) -> None:
    Topic.objects.create(name="bare", native_name="bare")
    forwarded = Topic.objects.create(
        name="forwarded", native_name="forwarded", broker=orders.broker
    )
    set_requeue_to(forwarded, "later", operator, now)

    with pytest.raises(Invalid, match=remedy):
        set_requeue_to(orders, name, operator, now)
    with pytest.raises(Invalid, match="change that first"):
        set_requeue_to(later, "orders", operator, now)
    assert Topic.objects.get(pk=orders.pk).requeue_to == ""


# Ramps


CONFIRMED = Ramp(steps=(2,), confirmed=100, came_back=0, wait=60)
QUIET = Ramp(steps=(2,), confirmed=None, came_back=0, wait=60)


@pytest.mark.parametrize(
    ("policy", "selection"),
    [
        ("", {"target_topic": "later"}),
        ("later", {}),
        ("", {"verb": Verb.GIVE_BACK, "target_topic": "orders"}),
    ],
    ids=["target", "policy", "give back"],
)
def test_a_ramp_by_confirmations_is_refused_where_all_messages_are_moved(
    orders: Topic,
    later: Topic,
    operator: Principal,
    now: datetime,
    policy: str,
    selection: dict[str, Any],
) -> None:
    set_requeue_to(orders, policy, operator, now)
    poisons(now, 3)

    with pytest.raises(Invalid, match="never confirmed") as refusal:
        preview(operator, now, ramp=CONFIRMED, **selection)
    quiet = preview(operator, now, ramp=QUIET, **selection)
    with pytest.raises(Invalid, match="never confirmed"):
        confirm_and_undo.confirm(
            token=quiet.token,
            reason="a test",
            principal=operator,
            now=now,
            limits=SendLimits(ramp=CONFIRMED),
        )

    assert refusal.value.field == "ramp/confirmed"
    assert not Operation.objects.confirmed().exists()


@pytest.mark.parametrize(
    ("policy", "selection"), [("", {"target_topic": "orders"}), ("later", {})]
)
def test_a_ramp_by_confirmations_is_for_operations_that_move_only_some(
    orders: Topic,
    later: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    policy: str,
    selection: dict[str, Any],
) -> None:
    set_requeue_to(orders, policy, operator, now)
    poisons(now, 1)
    poisons(now, 1, topic="other")
    Topic.objects.filter(name="other").update(broker=orders.broker)
    chosen = {"query": None, "ids": tuple(ids()), **selection}

    operation = preview(operator, now, ramp=CONFIRMED, **chosen)
    run(confirm(operator, operation, now), now)

    assert counts_of(operation) == {"moved": 1, "sent": 1}


def test_a_ramp_waits_for_what_is_moved_before_each_step(
    orders: Topic, later: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    operation = preview(operator, now, ramp=QUIET, target_topic="later")
    confirm(operator, operation, now)

    lengths = []
    for minutes in (0, 0, 2):
        run(operation, now + minutes * MINUTE)
        lengths.append(stream.xlen("later"))

    assert lengths == [2, 2, 3]


def test_a_ramp_by_confirmations_is_no_fault_where_no_message_is_chosen(
    orders: Topic, later: Topic, operator: Principal, now: datetime
) -> None:
    nothing = preview(operator, now, ramp=CONFIRMED, target_topic="later")

    assert nothing.total == 0
