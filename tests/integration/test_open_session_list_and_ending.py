"""Open sessions of people: list them, and end one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from apps.audit.models import Entry
from apps.core import clock
from apps.core.actor import Actor
from apps.team import openid, services, sessions
from apps.team.models import User
from apps.team.rights import Role

pytestmark = [pytest.mark.django_db, pytest.mark.present]

ADA = Actor.user("ada")
PASSWORD = "correct horse"


def person(name: str, now: datetime) -> User:
    return services.create_user(
        username=name,
        password=PASSWORD,
        role=Role.VIEWER,
        reads_bodies=False,
        actor=ADA,
        now=now,
    )


def sign_in(name: str, *, address: str = "192.0.2.1") -> Client:
    client = Client(REMOTE_ADDR=address)
    client.post("/sign-in", {"username": name, "password": PASSWORD})
    return client


def mark_of(client: Client) -> str:
    return sessions.mark_of(client.session.session_key or "")


def test_open_sessions_are_listed_by_person(now: datetime) -> None:
    anna, bert, carl = (person(name, now) for name in ("anna", "bert", "carl"))
    first, second = (sign_in("anna", address=f"192.0.2.{n}") for n in (1, 2))
    sign_in("bert")

    by_person = sessions.open_sessions([anna, bert, carl], now=clock.now())

    assert {pk: len(each) for pk, each in by_person.items()} == {
        anna.pk: 2,
        bert.pk: 1,
        carl.pk: 0,
    }
    # The last used first.
    assert [(one.mark, one.address) for one in by_person[anna.pk]] == [
        (mark_of(second), "192.0.2.2"),
        (mark_of(first), "192.0.2.1"),
    ]
    assert all(one.signed_in_at >= now for one in by_person[anna.pk])


def test_an_invalid_session_is_not_open(now: datetime) -> None:
    anna = person("anna", now)
    client = sign_in("anna")

    def number(at: datetime) -> int:
        [user] = User.objects.filter(pk=anna.pk)
        return len(sessions.open_sessions([user], now=at).get(anna.pk, []))

    used = number(clock.now())
    idle = number(clock.now() + sessions.IDLE + timedelta(minutes=1))
    services.end_sessions(username="anna", actor=ADA, now=now)
    ended = number(clock.now())
    client = sign_in("anna")
    again = number(clock.now())
    client.post("/sign-out")
    signed_out = number(clock.now())

    assert (used, idle, ended, again, signed_out) == (1, 0, 0, 1, 0)


def test_a_session_that_is_used_for_days_stays_listed(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = person("anna", now)
    with shifted(monkeypatch, timedelta(days=-3)):
        client = sign_in("anna")
        sign_in("anna")
    for hours in range(-66, 1, 6):
        with shifted(monkeypatch, timedelta(hours=hours)):
            assert client.get("/help").status_code == 200

    listed = sessions.open_sessions([anna], now=clock.now())[anna.pk]

    [one] = listed
    assert one.mark == mark_of(client)
    assert now - one.signed_in_at > timedelta(days=2, hours=23)
    assert now - one.at_work_at < timedelta(minutes=1)


def test_a_session_with_a_fixed_end_is_listed_too(now: datetime) -> None:
    anna = person("anna", now)
    session = sign_in("anna").session
    session.set_expiry(now + openid.LONGEST_SESSION)
    session.save()

    listed = sessions.open_sessions([anna], now=clock.now())[anna.pk]

    assert len(listed) == 1
    assert openid.LONGEST_SESSION <= sessions.IDLE


@contextmanager
def shifted(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> Iterator[None]:
    """Shift our clock and Django's."""
    with monkeypatch.context() as patch:
        patch.setattr(clock, "now", lambda: datetime.now(UTC) + by)
        patch.setattr(timezone, "now", lambda: datetime.now(UTC) + by)
        yield


def test_one_session_is_ended_and_the_others_are_not(now: datetime) -> None:
    anna = person("anna", now)
    person("bert", now)
    here, there, of_bert = sign_in("anna"), sign_in("anna"), sign_in("bert")

    def end(client: Client) -> bool:
        mark = mark_of(client)
        return sessions.end_session(user=anna, mark=mark, actor=ADA, now=clock.now())

    ended = [end(there), end(of_bert)]

    assert ended == [True, False]
    statuses = [each.get("/help").status_code for each in (here, there, of_bert)]
    assert statuses == [200, 302, 200]
    [entry] = Entry.objects.filter(action="user.sessions_ended")
    assert (entry.subject, entry.detail) == ("user:anna", {"sessions": 1})


def test_sessions_of_disabled_people_stay_ended_when_they_are_enabled(
    now: datetime,
) -> None:
    person("anna", now)
    client = sign_in("anna")

    for is_active in (False, True):
        services.alter_user(
            username="anna", is_active=is_active, actor=ADA, now=clock.now()
        )

    assert client.get("/help").status_code == 302


def test_rows_of_invalid_sessions_are_deleted(now: datetime) -> None:
    person("anna", now)
    sign_in("anna")

    early = sessions.prune(now=now + timedelta(days=13))
    late = sessions.prune(now=now + timedelta(days=15))

    assert (early, late, Session.objects.count()) == (0, 1, 0)
