"""Suspected skips: other consumers show whether the message is at fault."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.brokers.models import Topic
from apps.capture.intake import (
    applied_skips,
    guard_heartbeats,
    message_or_consumer_at_fault,
)
from apps.capture.intake.message_or_consumer_at_fault import FIRM_AFTER
from apps.capture.models import Guard
from apps.poison.models import Poison, Skip
from poisonguard.contract import parse_applied
from tests.failure_report_builders import GUARD, capture, failure, guard_word
from tests.skip_builders_and_list_mirror import Mirror, added, suspected, values

pytestmark = [pytest.mark.django_db, pytest.mark.present]

SECOND = timedelta(seconds=1)


def alive(now: datetime, name: str, **changes: object) -> None:
    """Send a heartbeat of a guard with this client name."""
    usual = {"client_name": name, "host": f"host-of-{name}"}
    usual["reporter"] = str(uuid.uuid5(uuid.NAMESPACE_OID, name))
    word = guard_word(now, **{**usual, **changes})
    [answer] = guard_heartbeats.record_heartbeats(
        members=[word], principal=GUARD, now=now
    )
    assert answer.status in {"created", "updated"}


def fail(now: datetime, name: str, bookmark: str = "1-0", **changes: Any) -> None:
    member = failure(
        now, bookmark=bookmark, client_name=name, host=f"host-of-{name}", **changes
    )
    capture(now, member)


def handle(now: datetime, name: str, *bookmarks: str) -> None:
    """Report that a consumer handled these."""
    ids = Skip.objects.active().filter(value__in=[each.encode() for each in bookmarks])
    members = [
        {
            "skip": pk,
            "consumer_group": "billing",
            "client_name": name,
            "count": 0,
            "last_at": now.isoformat(),
            "handled": True,
        }
        for pk in ids.values_list("pk", flat=True)
    ]
    applied = [parse_applied(member) for member in members]
    assert all(applied_skips.count(applied=applied, principal=GUARD, now=now))


def test_a_consumer_alone_makes_a_firm_skip_at_once(
    now: datetime, replaying_topic: Topic
) -> None:
    alive(now, "one")

    fail(now, "one")

    assert values() == ["1-0"]
    assert not Poison.objects.get().suspected


def test_beside_another_consumer_a_skip_is_suspected(
    now: datetime, replaying_topic: Topic
) -> None:
    alive(now, "one")
    alive(now, "two")

    fail(now, "one")

    assert (values(), suspected()) == ([], ["1-0"])
    assert Poison.objects.get().suspected


@pytest.mark.parametrize(
    ("word", "later"),
    [
        ({"state": "stopping"}, timedelta()),
        ({"consumer_group": "shipping"}, timedelta()),
        ({"topic": "payments"}, timedelta()),
        ({}, message_or_consumer_at_fault.ALIVE_FOR + SECOND),
    ],
    ids=["stopping", "another group", "another topic", "silent"],
)
def test_only_a_living_consumer_of_the_group_makes_a_skip_suspected(
    now: datetime, replaying_topic: Topic, word: dict[str, object], later: timedelta
) -> None:
    alive(now, "two", **word)

    fail(now + later, "one")

    assert values() == ["1-0"]


@pytest.mark.parametrize(
    "changes", [{"cause": "crash"}, {"cause": "hang"}, {"suspect": False}]
)
def test_crashes_hangs_and_consumers_without_suspicion_make_firm_skips(
    now: datetime, replaying_topic: Topic, changes: dict[str, Any]
) -> None:
    alive(now, "two")

    fail(now, "one", **changes)

    assert values() == ["1-0"]


def test_a_second_consumer_that_fails_makes_it_firm_at_once(
    now: datetime, replaying_topic: Topic
) -> None:
    alive(now, "one")
    alive(now, "two")
    fail(now, "one")
    fail(now, "one")
    reader = Mirror()
    still = suspected()

    fail(now, "two")
    reader.catch_up()

    assert (still, values(), suspected()) == (["1-0"], ["1-0"], [])
    assert [skip.is_suspected for skip in reader.skips.values()] == [False]
    assert not Poison.objects.get().suspected


def test_a_skip_ends_when_another_consumer_handled_its_message(
    now: datetime, replaying_topic: Topic
) -> None:
    alive(now, "one")
    alive(now, "two")
    fail(now, "one", "1-0")
    fail(now, "one", "2-0")

    handle(now, "two", "1-0")

    assert (values(), suspected()) == ([], ["2-0"])
    ended = Skip.objects.get(value=b"1-0")
    assert (ended.because, ended.removed_by) == ("handled", "system:skips")
    contradicted = Guard.objects.order_by("client_name")
    assert [guard.contradicted for guard in contradicted] == [1, 0]
    assert Poison.objects.filter(suspected=True).count() == 2


def test_a_firm_skip_ends_too_when_another_consumer_had_handled_its_message(
    now: datetime, replaying_topic: Topic
) -> None:
    fail(now, "one")

    handle(now, "two", "1-0")

    assert values() == []
    assert Poison.objects.get().suspected


def test_a_skip_of_two_failing_consumers_stays_when_a_third_handled_it(
    now: datetime, replaying_topic: Topic
) -> None:
    fail(now, "one")
    fail(now, "two")

    handle(now, "three", "1-0")

    assert values() == ["1-0"]


def test_a_skip_of_a_person_stays_when_a_consumer_handled_its_message(
    now: datetime, replaying_topic: Topic
) -> None:
    added(now, "1-0", consumer_group="billing")

    handle(now, "two", "1-0")

    assert values() == ["1-0"]


def test_a_person_who_skips_what_is_suspected_makes_it_firm(
    now: datetime, replaying_topic: Topic
) -> None:
    alive(now, "two")
    fail(now, "one")

    added(now, "1-0", consumer_group="billing")

    assert (values(), suspected()) == (["1-0"], [])


def test_a_suspected_skip_is_firm_when_no_consumer_contradicts_it(
    now: datetime, replaying_topic: Topic
) -> None:
    alive(now, "two")
    fail(now, "one")
    early = message_or_consumer_at_fault.make_firm(now=now + FIRM_AFTER - SECOND)
    reader = Mirror()

    late = message_or_consumer_at_fault.make_firm(now=now + FIRM_AFTER)
    again = message_or_consumer_at_fault.make_firm(now=now + FIRM_AFTER)
    reader.catch_up()

    assert (early, late, again) == (0, 1, 0)
    assert [skip.is_suspected for skip in reader.skips.values()] == [False]
    assert not Poison.objects.get().suspected


def test_a_skip_that_its_consumer_doubts_never_becomes_firm_by_time(
    now: datetime, replaying_topic: Topic
) -> None:
    fail(now, "one", suspected=True)

    assert message_or_consumer_at_fault.make_firm(now=now + 10 * FIRM_AFTER) == 0
    assert suspected() == ["1-0"]


def test_while_its_consumer_is_paused_nothing_becomes_firm(
    now: datetime, replaying_topic: Topic
) -> None:
    alive(now, "two")
    fail(now, "one")
    alive(now, "one", state="paused")

    paused = message_or_consumer_at_fault.make_firm(now=now + FIRM_AFTER)
    alive(now + SECOND, "one", state="running")
    between = message_or_consumer_at_fault.make_firm(now=now + FIRM_AFTER + SECOND)
    after = message_or_consumer_at_fault.make_firm(now=now + 2 * FIRM_AFTER)

    assert (paused, between, after) == (0, 0, 1)


def test_a_consumer_that_pauses_ends_the_skips_that_made_it_pause(
    now: datetime, replaying_topic: Topic
) -> None:
    fail(now - 10 * SECOND, "one", "before")
    fail(now, "one", "in the window")
    fail(now, "one", "kills", cause="crash")
    fail(now, "other", "another's")
    fail(now, "one", "of both")
    fail(now, "other", "of both")

    since = (now - 5 * SECOND).isoformat()
    alive(now, "one", state="paused", failing_since=since)

    assert values() == ["before", "kills", "another's", "of both"]
    assert Skip.objects.get(value=b"in the window").because == "doubted"


def test_a_key_ends_no_skip_of_a_topic_that_it_does_not_see(
    now: datetime, replaying_topic: Topic
) -> None:
    fail(now, "one")
    [skip] = Skip.objects.active()
    stranger = type(GUARD)(
        actor=GUARD.actor, scopes=GUARD.scopes, source="api", topics=("other",)
    )

    ended = message_or_consumer_at_fault.end_handled(
        skips=[skip.pk], principal=stranger, now=now
    )

    assert ended == 0
    assert values() == ["1-0"]
