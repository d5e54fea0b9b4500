"""The first steps follow the database, link to the next one, and then disappear."""

from __future__ import annotations

import re
import uuid
from datetime import datetime

import pytest
from django.test import Client

from apps.brokers.models import Broker, Topic
from apps.capture.models import Lane
from apps.core.actor import Actor
from apps.core.statement_timeouts import TooSlow
from apps.dashboard.selectors import onboarding
from apps.poison.models import Poison, Redrive
from apps.team.rights import Principal, Role, Scope
from tests.failure_report_builders import poisons
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get, words

pytestmark = pytest.mark.django_db

ADMIN = Principal(actor=Actor.user("anna"), scopes=frozenset(Scope))
READER = Principal(actor=Actor.user("bob"), scopes=frozenset({Scope.BROKERS_READ}))


def own_broker(*, is_sample: bool = False) -> Broker:
    return Broker.objects.create(
        name=f"{is_sample}",
        kind="redis_streams",
        url="redis://127.0.0.1:9",
        is_sample=is_sample,
    )


def watched(broker: Broker) -> Topic:
    topic, _ = Topic.objects.update_or_create(
        name="orders",
        defaults={
            "native_name": "orders",
            "broker": broker,
            "dead_letter_queue": "orders-poison",
        },
    )
    Lane.objects.create(topic=topic)
    return topic


def redrive(poison: Poison, now: datetime) -> Redrive:
    return Redrive.objects.create(
        id=uuid.uuid4(),
        poison=poison,
        n=1,
        topic=poison.topic,
        outcome="sent",
        epoch=1,
        claimed_at=now,
        sent_at=now,
        digest=poison.digest,
    )


def state(principal: Principal = ADMIN) -> tuple[list[bool], str]:
    """Return which steps are done, and the link of the next one."""
    first_steps = onboarding.find(principal)
    if first_steps is None:
        return [], ""
    assert not isinstance(first_steps, TooSlow)
    return [
        step.done for step in first_steps.steps
    ], first_steps.next.link if first_steps.next else ""


def test_each_step_is_ticked_by_what_is_there(now: datetime) -> None:
    states = [state()]
    broker = own_broker()
    states.append(state())
    topic = watched(broker)
    states.append(state())
    (poison,) = poisons(now, 1)
    states.append(state())
    redrive(poison, now)
    states.append(state())

    assert [sum(done) for done, _ in states] == [0, 1, 2, 3, 0]
    assert [link for _, link in states] == [
        "/brokers/new",
        f"/brokers/{broker.pk}/discover",
        f"/topics/{topic.pk}#lane",
        f"/messages/{poison.pk}",
        "",
    ]


def test_the_sample_broker_completes_no_step(now: datetime) -> None:
    watched(own_broker(is_sample=True))
    redrive(poisons(now, 1)[0], now)

    assert state() == ([False] * 4, "/brokers/new")


def test_a_person_without_the_right_gets_no_link() -> None:
    assert state(READER) == ([False] * 4, "")


def test_the_card_stands_on_the_overview_until_it_is_put_away(
    sign_in: SignIn, now: datetime
) -> None:
    admin = sign_in(Role.ADMIN)

    before = get(admin, "/")
    answer = admin.post("/first-steps/dismiss")
    after = get(admin, "/")

    assert "0 of 4 done" in words(before)
    assert '<a class="button primary" href="/brokers/new">Add a broker' in before
    assert answer.status_code == 302
    assert "Your first hour" not in after
    assert "No message yet" in words(after)


def test_the_card_is_gone_once_all_steps_are_done(anna: Client, now: datetime) -> None:
    watched(own_broker())
    (poison,) = poisons(now, 1)

    before = words(get(anna, "/"))
    redrive(poison, now)
    after = words(get(anna, "/"))

    assert "3 of 4 done" in before
    assert re.search(r"Requeue one Once its consumer .* Requeue one", before)
    assert "Your first hour" not in after


def test_a_broker_that_is_added_need_not_be_reached(sign_in: SignIn) -> None:
    own_broker()

    page = words(get(sign_in(Role.ADMIN), "/"))

    assert re.search(r"Add a broker is done\. .* Add another", page)


def test_a_person_without_the_right_is_told_that_an_admin_can(sign_in: SignIn) -> None:
    page = get(sign_in(Role.VIEWER), "/")

    assert "an admin can" in page
    assert 'href="/brokers/new"' not in page
