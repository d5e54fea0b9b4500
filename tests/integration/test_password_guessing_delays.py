"""Guessing passwords gets slow, is audited, and does not lock out others."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import connection
from django.test import Client, override_settings

from apps.core import clock
from apps.core.actor import Actor
from apps.team import backends, sign_in_attempts
from apps.team.models import SignInFailures, User
from apps.team.rights import Role
from apps.team.services import create_user
from apps.team.sign_in_attempts import SignInAttempt
from apps.team.sign_in_errors import TooManySignIns
from tests.audit_entries import entries
from tests.fast_password_hasher import ONE_ROUND
from tests.races import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.present]

RIGHT, WRONG = "correct horse", "battery staple"
HERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"


@pytest.fixture(autouse=True)
def time_stands_still(monkeypatch: pytest.MonkeyPatch, now: datetime) -> None:
    """Let no delay pass, however long a busy machine takes for an attempt."""
    monkeypatch.setattr(clock, "now", lambda: now)


@pytest.fixture
def anna(now: datetime) -> User:
    return create_user(
        username="anna",
        password=RIGHT,
        role=Role.VIEWER,
        reads_bodies=False,
        actor=Actor.system("test"),
        now=now,
    )


def attempt(password: str, *, account: str = "anna", address: str = HERE) -> int:
    """Post the sign-in form; return the status, 302 if the password was right."""
    form = {"username": account, "password": password}
    return Client(REMOTE_ADDR=address).post("/sign-in", form).status_code


def test_a_sign_in_and_a_sign_out_are_audited(
    anna: User, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(REMOTE_ADDR=HERE)

    with caplog.at_level(logging.INFO, logger="apps.team.sign_in_attempts"):
        client.post("/sign-in", {"username": "anna", "password": RIGHT})
    client.post("/sign-out")

    [came], [went] = entries("user.signed_in"), entries("user.signed_out")
    assert (came.actor, went.actor) == ("user:anna", "user:anna")
    assert came.detail == went.detail == {"address": HERE}
    assert f"anna signed in, from {HERE}" in caplog.text


def test_a_wrong_password_is_audited_without_an_unknown_account_name(
    anna: User,
) -> None:
    statuses = [attempt(WRONG), attempt(WRONG, account=RIGHT)]

    of_anna, of_unknown = entries("user.sign_in_failed")
    assert statuses == [200, 200]
    assert (of_anna.subject, of_unknown.subject) == ("user:anna", "user:?")
    assert of_anna.detail == {"address": HERE, "failures": 1, "of": "password"}
    assert RIGHT not in of_unknown.record


def test_a_sign_in_as_a_disabled_person_is_audited_as_such(anna: User) -> None:
    User.objects.update(is_active=False)

    assert attempt(RIGHT) == 200

    [entry] = entries("user.sign_in_failed")
    assert entry.detail["disabled"] is True


def test_after_some_wrong_passwords_the_right_one_has_to_wait_too(anna: User) -> None:
    wrong = [attempt(WRONG) for _ in range(5)]

    waits = Client(REMOTE_ADDR=HERE).post(
        "/sign-in", {"username": "anna", "password": RIGHT}
    )

    assert wrong == [200] * 5
    assert waits.status_code == 429
    assert int(waits["Retry-After"]) >= 1
    assert (
        "Too many wrong passwords or codes: try again in 1 s." in waits.content.decode()
    )


def test_guesses_from_one_address_do_not_lock_out_another(anna: User) -> None:
    for _ in range(10):
        attempt(WRONG)

    assert attempt(RIGHT) == 429
    assert attempt(RIGHT, address=ELSEWHERE) == 302


def test_an_address_that_tries_many_accounts_has_to_wait(anna: User) -> None:
    statuses = [attempt(WRONG, account=f"person{n}") for n in range(40)]

    assert statuses[:30] == [200] * 30
    assert 429 in statuses[30:]
    assert attempt(RIGHT) == 429


def after(number: int, now: datetime) -> SignInAttempt:
    """Return an attempt after this many wrong passwords."""
    tried = SignInAttempt(address=HERE, account="anna")
    digest = tried.digests[SignInFailures.CountedBy.ACCOUNT_AT_ADDRESS]
    SignInFailures.objects.create(
        counted_by="account_at_address", digest=digest, number=number, last_at=now
    )
    return tried


def test_the_first_wrong_passwords_cause_no_delay(now: datetime) -> None:
    sign_in_attempts.check(after(4, now), now=now)


@pytest.mark.parametrize(
    ("number", "delay"), [(5, 1), (6, 2), (10, 32), (15, 900), (5_000, 900)]
)
def test_each_wrong_password_doubles_the_delay_up_to_a_quarter_of_an_hour(
    now: datetime, number: int, delay: int
) -> None:
    tried = after(number, now)

    with pytest.raises(TooManySignIns) as waits:
        sign_in_attempts.check(tried, now=now)

    assert waits.value.delay == timedelta(seconds=delay)
    sign_in_attempts.check(tried, now=now + timedelta(seconds=delay))


def test_a_right_password_or_an_hour_resets_the_count(
    anna: User, now: datetime
) -> None:
    for _ in range(4):
        attempt(WRONG)
    attempt(RIGHT)
    again = [attempt(WRONG) for _ in range(4)]
    SignInFailures.objects.update(last_at=now - timedelta(hours=2))
    later = [attempt(WRONG) for _ in range(4)]

    assert again + later == [200] * 8
    assert attempt(RIGHT) == 302


def test_guesses_from_many_addresses_raise_an_alert(
    anna: User, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(20):
        attempt(WRONG, address=f"198.51.100.{n}")

    [alert] = entries("user.sign_ins_suspicious")
    assert (alert.subject, alert.detail["failures"]) == ("user:anna", 20)
    assert "20 wrong passwords or codes for anna within the hour" in caplog.text
    assert attempt(RIGHT) == 302


def test_old_counts_are_deleted(anna: User, now: datetime) -> None:
    attempt(WRONG)
    deleted_too_early = sign_in_attempts.prune(now=now)

    pruned = sign_in_attempts.prune(now=now + timedelta(hours=2))

    assert (deleted_too_early, pruned) == (0, 3)


class CountingHasher(PBKDF2PasswordHasher):
    """Counts concurrent hashes, and the database connections of their threads."""

    algorithm = "counting"
    iterations = 1
    now = most = sessions = 0
    counting = threading.Lock()

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        cls = type(self)
        with cls.counting:
            cls.now += 1
            cls.most = max(cls.most, cls.now)
            cls.sessions += connection.connection is not None
        threading.Event().wait(0.05)
        encoded = super().encode(password, salt, iterations)
        with cls.counting:
            cls.now -= 1
        return encoded


def test_few_failures_dated_by_a_clock_ahead_cause_no_delay(
    anna: User, now: datetime
) -> None:
    sign_in_attempts.note_failure(
        SignInAttempt(address=ELSEWHERE, account="anna"),
        account=anna,
        now=now + timedelta(seconds=30),
    )

    assert attempt(RIGHT) == 302
    assert attempt(RIGHT, address=ELSEWHERE) == 302


def test_few_passwords_are_hashed_at_once_and_without_a_database_connection(
    anna: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "LONGEST_WAIT_SECONDS", 120.0)
    hasher = f"{__name__}.CountingHasher"
    with override_settings(PASSWORD_HASHERS=[hasher, *ONE_ROUND]):
        statuses = together(
            12, lambda n: attempt(WRONG, account="nobody", address=f"203.0.113.{n}")
        )

    assert statuses == [200] * 12
    assert CountingHasher.most == backends.AT_ONCE
    assert CountingHasher.sessions == 0


def test_a_sign_in_that_waits_too_long_is_refused_with_a_retry(
    anna: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "LONGEST_WAIT_SECONDS", 0.05)
    for _ in range(backends.AT_ONCE):
        backends._slots.acquire()
    try:
        busy = attempt(RIGHT)
    finally:
        for _ in range(backends.AT_ONCE):
            backends._slots.release()

    assert busy == 429
    assert attempt(RIGHT) == 302
