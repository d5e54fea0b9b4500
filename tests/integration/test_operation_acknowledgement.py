"""An acknowledged operation needs a person no more, until more of it is in trouble."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

import pytest
from redis import Redis

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.poison.models import ItemWindow
from apps.poison.services import redrive_confirmations_by_token
from apps.team.rights import GRANTS, Principal, Role
from apps.triage.models import Acknowledgement, Operation
from apps.triage.services.acknowledgement import acknowledge, acknowledge_all
from tests.failure_report_builders import capture, failure, poisons
from tests.triage_operation_runner import confirm, preview, run, sent_messages

pytestmark = pytest.mark.django_db(transaction=True)

NUMBER = 3


@pytest.fixture
def over(orders: Topic, stream: Redis, operator: Principal, now: datetime) -> Operation:
    """Create a requeue that has sent all its messages and is over."""
    poisons(now, NUMBER)
    operation = confirm(operator, preview(operator, now), now)
    run(operation, now)
    return operation


def come_back(stream: Redis, now: datetime, places: range) -> None:
    """Let the messages at these places of the stream fail once more."""
    for place in places:
        token = sent_messages(stream)[place][b"x-poisonweb-redrive"].decode()
        capture(now, failure(now, bookmark=f"{place}-9", redrive=token))


def accept(
    operation: Operation, who: Principal, now: datetime, reason: str = "known"
) -> Operation:
    return acknowledge(operation_id=operation.pk, reason=reason, principal=who, now=now)


def needs_a_person(operation: Operation) -> bool:
    needing = Operation.objects.needing_a_person()
    return needing.filter(pk=operation.pk).exists()


def recorded(operation: Operation) -> list[tuple[str, str, int]]:
    """List the acknowledgements on record: actor, reason and number of messages."""
    entries = Entry.objects.filter(
        subject=f"operation:{operation.pk}", action="operation.acknowledged"
    )
    return [
        (each.actor, each.reason, each.detail["messages"])
        for each in entries.order_by("seq")
    ]


def test_it_needs_a_person_until_acknowledged_and_again_when_more_comes_back(
    over: Operation, stream: Redis, operator: Principal, now: datetime
) -> None:
    needed = [needs_a_person(over)]
    come_back(stream, now, range(1))
    needed.append(needs_a_person(over))
    accept(over, operator, now)
    needed.append(needs_a_person(over))
    come_back(stream, now, range(1, 3))
    needed.append(needs_a_person(over))
    accept(over, operator, now, "all of them")
    needed.append(needs_a_person(over))

    assert needed == [False, True, False, True, False]
    who = str(operator.actor)
    assert recorded(over) == [(who, "known", 1), (who, "all of them", 3)]


def test_what_comes_back_is_news_although_fewer_are_unknown(
    over: Operation, stream: Redis, operator: Principal, now: datetime
) -> None:
    ItemWindow.objects.update(sent=0, unknown=NUMBER)
    accept(over, operator, now)
    before = needs_a_person(over)
    ItemWindow.objects.update(unknown=0, confirmed=NUMBER - 1, recurred=1)

    assert (before, needs_a_person(over)) == (False, True)
    accept(over, operator, now)
    assert not needs_a_person(over)
    assert [number for _, _, number in recorded(over)] == [NUMBER, 1]


def test_only_the_acknowledged_operation_leaves_the_list(
    over: Operation, stream: Redis, operator: Principal, now: datetime
) -> None:
    come_back(stream, now, range(NUMBER))
    other = confirm(operator, preview(operator, now), now)
    run(other, now)
    again = sent_messages(stream)[NUMBER:]
    for place, fields in enumerate(again):
        token = fields[b"x-poisonweb-redrive"].decode()
        capture(now, failure(now, bookmark=f"{place}-99", redrive=token))

    accept(over, operator, now)

    assert (needs_a_person(over), needs_a_person(other)) == (False, True)


def test_a_repeated_acknowledgement_changes_and_records_nothing(
    over: Operation, stream: Redis, operator: Principal, now: datetime
) -> None:
    come_back(stream, now, range(1))
    later = now + timedelta(hours=1)

    accept(over, operator, now)
    accept(over, operator, later)

    acknowledgement = Acknowledgement.objects.get(operation=over)
    assert (acknowledgement.at, acknowledgement.troubled) == (now, 1)
    assert len(recorded(over)) == 1


def test_of_many_only_those_in_trouble_are_acknowledged(
    over: Operation, stream: Redis, operator: Principal, now: datetime
) -> None:
    come_back(stream, now, range(2))
    running = confirm(operator, preview(operator, now), now)
    ids = [over.pk, running.pk, running.pk + 1]
    accept_all = partial(acknowledge_all, reason="known", principal=operator, now=now)

    first = accept_all(operation_ids=ids)
    again = accept_all(operation_ids=ids)

    assert (first, again) == (1, 0)
    assert not needs_a_person(over)
    assert recorded(over) == [(str(operator.actor), "known", 2)]
    assert not recorded(running)
    with pytest.raises(Invalid, match="at most 200 operations"):
        accept_all(operation_ids=range(201))


def test_what_is_not_over_or_has_no_trouble_cannot_be_acknowledged(
    over: Operation, stream: Redis, operator: Principal, now: datetime
) -> None:
    for fields in sent_messages(stream):
        token = fields[b"x-poisonweb-redrive"].decode()
        redrive_confirmations_by_token.confirm(tokens=[(token, "orders")], now=now)
    poisons(now, 1)
    running = confirm(operator, preview(operator, now), now)

    with pytest.raises(Refused, match="was refused, came back or is unknown"):
        accept(over, operator, now)
    with pytest.raises(Refused, match="not over"):
        accept(running, operator, now)
    assert not Acknowledgement.objects.exists()


def test_who_may_not_operate_or_see_it_cannot_acknowledge(
    over: Operation, stream: Redis, operator: Principal, now: datetime
) -> None:
    come_back(stream, now, range(1))
    viewer = Principal(actor=operator.actor, scopes=GRANTS[Role.VIEWER])
    stranger = Principal(
        actor=operator.actor, scopes=operator.scopes, topics=("invoices",)
    )

    with pytest.raises(Forbidden):
        accept(over, viewer, now)
    with pytest.raises(Absent):
        accept(over, stranger, now)
    assert needs_a_person(over)
