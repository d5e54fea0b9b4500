"""The trail: appended to, never edited, and a walk along it finds every lie."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime

import pytest
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection, transaction

from apps.audit import services as audit
from apps.audit.models import Entry
from apps.audit.services import Action
from apps.core.actor import Actor

pytestmark = pytest.mark.django_db

ANNA = Actor.user("anna")


def decide(now: datetime, number: int = 1) -> None:
    for place in range(number):
        audit.record(
            action=Action.KEY_CREATED,
            subject=f"api_key:{place}",
            actor=ANNA,
            now=now,
            reason="because \0 \ud800 \u202e",
            detail={"n": place, "text": "\0"},
        )


def as_owner(statement: str) -> None:
    """Do what only somebody with the owner's rights and bad intent can do."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_entry DISABLE TRIGGER USER")
        cursor.execute("GRANT UPDATE, DELETE ON audit_entry TO CURRENT_USER")
        cursor.execute(statement)


def test_an_entry_says_who_did_what_and_why(now: datetime) -> None:
    decide(now)

    entry = Entry.objects.get()
    assert (entry.seq, entry.actor, entry.action, entry.subject, entry.at) == (
        1,
        "user:anna",
        "api_key.created",
        "api_key:0",
        now,
    )
    assert entry.detail == {"n": 0, "text": "␀"}
    assert entry.reason.startswith("because ␀ ")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_entry SET seq = 9",
        "DELETE FROM audit_entry",
        "TRUNCATE audit_entry",
    ],
)
def test_not_even_the_owner_may_change_it(now: datetime, statement: str) -> None:
    decide(now)

    with (
        pytest.raises(ProgrammingError, match="permission denied|never changed"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)


def test_the_trigger_stops_even_who_grants_himself_the_right(now: datetime) -> None:
    decide(now)

    with (
        pytest.raises(ProgrammingError, match="never changed or removed"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("GRANT UPDATE ON audit_entry TO CURRENT_USER")
        cursor.execute("UPDATE audit_entry SET seq = 9")


def rehash(first: int) -> None:
    """Rewrite the chain from here on, as an attacker who knows it would."""
    before = Entry.objects.get(seq=first - 1).hash
    for entry in Entry.objects.filter(seq__gte=first).order_by("seq"):
        before = hashlib.sha256(bytes(before) + entry.record.encode()).digest()
        as_owner(
            f"UPDATE audit_entry SET hash = '\\x{before.hex()}' WHERE seq = {entry.seq}"
        )


def rewrite() -> None:
    as_owner(
        "UPDATE audit_entry SET record = replace(record, 'anna', 'boris') WHERE seq = 4"
    )
    rehash(4)


LIES: dict[str, tuple[Callable[[], None], int]] = {
    "text": (
        lambda: as_owner(
            "UPDATE audit_entry SET record = replace(record, 'anna', 'boris')"
            " WHERE seq = 4"
        ),
        4,
    ),
    "hash": (
        lambda: as_owner("UPDATE audit_entry SET hash = sha256('x') WHERE seq = 4"),
        4,
    ),
    "gap": (lambda: as_owner("DELETE FROM audit_entry WHERE seq = 4"), 4),
    "cut tail": (lambda: as_owner("DELETE FROM audit_entry WHERE seq > 8"), 9),
    "cut start": (lambda: as_owner("DELETE FROM audit_entry WHERE seq < 3"), 1),
    "added": (
        lambda: as_owner(
            "INSERT INTO audit_entry (seq, record, hash)"
            " SELECT 11, record, hash FROM audit_entry WHERE seq = 10"
        ),
        11,
    ),
    "rewritten to the end": (rewrite, 10),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found_and_its_place_is_named(now: datetime, lie: str) -> None:
    decide(now, 10)
    tell, place = LIES[lie]

    tell()
    verdict = audit.verify()

    assert (verdict.ok, verdict.first_bad) == (False, place)


def test_two_entries_that_changed_places_are_found(now: datetime) -> None:
    decide(now, 10)

    as_owner(
        "UPDATE audit_entry SET seq = CASE seq WHEN 4 THEN -4 ELSE seq END;"
        "UPDATE audit_entry SET seq = 4 WHERE seq = 5;"
        "UPDATE audit_entry SET seq = 5 WHERE seq = -4"
    )

    assert audit.verify().first_bad == 4


def test_the_command_says_ok_or_fails(
    now: datetime, capsys: pytest.CaptureFixture[str]
) -> None:
    decide(now, 3)
    call_command("verify_audit")
    said = capsys.readouterr().out
    as_owner("DELETE FROM audit_entry WHERE seq = 2")

    assert said.startswith("ok: 3 entries")
    with pytest.raises(CommandError, match="entry 2"):
        call_command("verify_audit")
