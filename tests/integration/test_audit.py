"""The audit trail is append-only, and verification finds every tampering."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime

import pytest
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection, transaction

from apps.audit import services as audit
from apps.audit import verification
from apps.audit.models import Entry
from apps.audit.services import Action
from apps.core.actor import Actor
from apps.core.errors import Invalid

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
    """Run statements that only an attacker with the owner's rights can run."""
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


def test_a_reason_beyond_its_limit_records_nothing(now: datetime) -> None:
    with pytest.raises(Invalid, match="reason: give at most 2,000 characters"):
        audit.record(
            action=Action.KEY_CREATED,
            subject="api_key:1",
            actor=ANNA,
            now=now,
            reason="x" * 2_001,
        )

    assert not Entry.objects.exists()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_entry SET seq = 9",
        "DELETE FROM audit_entry",
        "TRUNCATE audit_entry",
    ],
)
def test_an_entry_cannot_be_changed_even_by_the_owner(
    now: datetime, statement: str
) -> None:
    decide(now)

    with (
        pytest.raises(ProgrammingError, match="permission denied|never changed"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)


def test_the_trigger_stops_an_owner_who_grants_the_right_to_update(
    now: datetime,
) -> None:
    decide(now)

    with (
        pytest.raises(ProgrammingError, match="never changed or removed"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("GRANT UPDATE ON audit_entry TO CURRENT_USER")
        cursor.execute("UPDATE audit_entry SET seq = 9")


def rehash(first: int) -> None:
    """Rewrite the chain from this entry on, as an attacker who knows it would."""
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
def test_each_tampering_is_found_and_its_entry_is_named(
    now: datetime, lie: str
) -> None:
    decide(now, 10)
    tell, place = LIES[lie]

    tell()
    verdict = verification.verify()

    assert (verdict.ok, verdict.first_bad) == (False, place)


def test_two_swapped_entries_are_found(now: datetime) -> None:
    decide(now, 10)

    as_owner(
        "UPDATE audit_entry SET seq = CASE seq WHEN 4 THEN -4 ELSE seq END;"
        "UPDATE audit_entry SET seq = 4 WHERE seq = 5;"
        "UPDATE audit_entry SET seq = 5 WHERE seq = -4"
    )

    assert verification.verify().first_bad == 4


def test_the_command_says_ok_or_fails(
    now: datetime, capsys: pytest.CaptureFixture[str]
) -> None:
    decide(now, 3)
    call_command("verify_audit")
    said = capsys.readouterr().out
    as_owner("DELETE FROM audit_entry WHERE seq = 2")

    assert said.startswith("ok: 3 entries")
    with pytest.raises(CommandError, match="Entry 2 does not"):
        call_command("verify_audit")


def unguarded(*statements: str) -> Callable[[], None]:
    return lambda: as_owner(";".join(statements))


DROP_ACTOR = "ALTER TABLE audit_entry ALTER COLUMN actor DROP EXPRESSION"
DROP_FOUR = (
    "ALTER TABLE audit_entry ALTER COLUMN detail DROP EXPRESSION,"
    " ALTER COLUMN reason DROP EXPRESSION, ALTER COLUMN action DROP EXPRESSION,"
    " ALTER COLUMN at DROP EXPRESSION"
)
OTHER_EXPRESSION = (
    "ALTER TABLE audit_entry DROP COLUMN actor CASCADE, ADD COLUMN actor text"
    " GENERATED ALWAYS AS (CASE WHEN seq > 10 THEN 'user:boris'"
    " ELSE record::jsonb ->> 'actor' END) STORED"
)
FALSE_HASH = (
    "CREATE SCHEMA evil",
    "CREATE FUNCTION evil.sha256(bytea) RETURNS bytea LANGUAGE sql AS $$ SELECT"
    " (SELECT hash FROM public.audit_entry ORDER BY seq LIMIT 1) $$",
)

# Each: what the owner of the tables does, the bad entry, and the trouble reported.
DISGUISES: dict[str, tuple[Callable[[], None], int | None, str]] = {
    "another actor in the column": (
        unguarded(
            DROP_ACTOR, "UPDATE audit_entry SET actor = 'user:boris' WHERE seq = 4"
        ),
        4,
        "Entry 4 shows in its columns what its record does not say. "
        "The column actor is not generated from the record.",
    ),
    "another reason, action, time and detail in the columns": (
        unguarded(
            DROP_FOUR,
            "UPDATE audit_entry SET reason = 'fixed', action = 'user.created',"
            " at = at - interval '1 day', detail = '{\"n\": 7}' WHERE seq = 6",
        ),
        6,
        "Entry 6 shows in its columns",
    ),
    "one column empty": (
        unguarded(DROP_FOUR, "UPDATE audit_entry SET reason = DEFAULT WHERE seq = 5"),
        5,
        "Entry 5 shows in its columns",
    ),
    "a column that is ready to be changed": (
        unguarded(DROP_ACTOR),
        None,
        "The column actor is not generated from the record.",
    ),
    "an expression that lies about entries to come": (
        unguarded(OTHER_EXPRESSION),
        None,
        "The column actor is not generated from the record.",
    ),
    "a column of another type": (
        unguarded(
            DROP_ACTOR,
            "ALTER TABLE audit_entry ALTER actor TYPE bytea USING actor::bytea",
        ),
        None,
        "The column actor of public.audit_entry is not of the type text.",
    ),
    "a column gone": (
        unguarded("ALTER TABLE audit_entry DROP COLUMN source"),
        None,
        "public.audit_entry has no column source.",
    ),
    "a record that is no JSON": (
        unguarded(
            DROP_ACTOR,
            DROP_FOUR,
            "ALTER TABLE audit_entry ALTER COLUMN subject DROP EXPRESSION,"
            " ALTER COLUMN source DROP EXPRESSION",
            "UPDATE audit_entry SET record = 'not JSON' WHERE seq = 7",
        ),
        7,
        "Entry 7 has a record that cannot be read.",
    ),
    "no head": (
        unguarded("DELETE FROM audit_head"),
        None,
        "audit_head has no rows instead of one",
    ),
    "two heads": (
        unguarded(
            "ALTER TABLE audit_head DROP CONSTRAINT audit_head_is_one_row",
            "INSERT INTO audit_head (id, seq, hash) SELECT 2, seq, hash"
            " FROM audit_head",
        ),
        None,
        "audit_head has 2 rows instead of one",
    ),
    "no table of heads": (
        unguarded("DROP TABLE audit_head"),
        None,
        "There is no table audit_head.",
    ),
    "a view earlier in search_path": (
        unguarded(
            "CREATE SCHEMA evil",
            "CREATE VIEW evil.audit_entry AS SELECT * FROM public.audit_entry"
            " WHERE seq <> 4",
            "SET LOCAL search_path = evil, public",
        ),
        4,
        "evil.audit_entry hides public.audit_entry: it comes earlier in search_path. "
        "evil.audit_entry is not a table.",
    ),
    "a view that shows the same, earlier in search_path": (
        unguarded(
            "CREATE TEMPORARY VIEW audit_entry AS SELECT * FROM public.audit_entry"
        ),
        None,
        "audit_entry is not a table.",
    ),
    "a hash of the owner's own, and an entry changed": (
        unguarded(
            *FALSE_HASH,
            "UPDATE audit_entry SET record = replace(record, 'anna', 'boris')"
            " WHERE seq = 4",
            "SET LOCAL search_path = evil, pg_catalog, public",
        ),
        4,
        "Entry 4 does not follow from the one before it.",
    ),
    "row security": (
        unguarded("ALTER TABLE audit_entry ENABLE ROW LEVEL SECURITY"),
        None,
        "public.audit_entry has row security",
    ),
}


@pytest.mark.parametrize("lie", DISGUISES)
def test_a_disguise_by_the_owner_is_found(now: datetime, lie: str) -> None:
    decide(now, 10)
    disguise, place, sentence = DISGUISES[lie]

    disguise()
    as_it_was = "ALTER TABLE public.audit_entry ENABLE TRIGGER USER"
    with connection.cursor() as cursor:
        cursor.execute(as_it_was)
    verdict = verification.verify()

    assert (verdict.ok, verdict.first_bad) == (False, place)
    assert sentence in " ".join(verdict.troubles)


def test_a_disabled_trigger_is_found(now: datetime) -> None:
    decide(now, 2)

    as_owner("SELECT 1")

    assert verification.verify().troubles == (
        "The trigger that refuses changes of entries is off or was removed.",
    )


def test_verifying_restores_the_callers_search_path(now: datetime) -> None:
    decide(now, 2)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path = public, pg_catalog")

        verification.verify()

        cursor.execute("SHOW search_path")
        assert cursor.fetchone() == ("public, pg_catalog",)


def test_a_decision_is_refused_while_the_head_is_missing(now: datetime) -> None:
    as_owner("DELETE FROM audit_head")

    with pytest.raises(audit.HeadMissing, match="audit_head has no row"):
        decide(now)
