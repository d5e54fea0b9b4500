"""The audit trail over the API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from apps.audit import services as audit
from apps.audit import verification
from apps.audit.services import Action
from apps.core.actor import Actor
from apps.team.rights import Role, Scope
from tests.integration.api.schema_checking_client import Caller, person, program

pytestmark = pytest.mark.django_db

START = datetime(2026, 11, 18, 12, tzinfo=UTC)


@pytest.fixture
def caller() -> Caller:
    return program(Scope.AUDIT_READ, now=START - timedelta(days=1))


def record(days: int, **changes: object) -> int:
    values = {
        "action": Action.OPERATION_CONFIRMED,
        "subject": f"operation:{days}",
        "actor": Actor.user("anna"),
        "now": START + timedelta(days=days),
        **changes,
    }
    return audit.record(**values)  # type: ignore[arg-type]


def listed_seqs(caller: Caller, **query: object) -> list[int]:
    return [row["seq"] for row in caller.get("audit", **query).results]


def test_the_trail_is_listed_newest_first_and_paged(caller: Caller) -> None:
    seqs = [record(day) for day in range(3)]

    first = caller.get("audit", limit=2)
    rest = caller.get("audit", limit=2, cursor=first.json["next"])

    assert [row["seq"] for row in first.results] == seqs[:0:-1]
    assert [row["seq"] for row in rest.results] == [seqs[0], seqs[0] - 1]
    assert first.results[0]["detail"] == {}


def test_filters_select_the_matching_entries(caller: Caller) -> None:
    one = record(1, actor=Actor.key("ci"), action=Action.KEY_REVOKED)
    two = record(2)

    assert listed_seqs(caller, actor="key:ci") == [one]
    assert listed_seqs(caller, action="operation.confirmed") == [two]
    assert listed_seqs(caller, subject="operation:2") == [two]
    assert listed_seqs(caller, actor="key:ci", subject="operation:2") == []


@pytest.mark.parametrize(
    ("query", "days"),
    [
        ({"from": "2026-11-19"}, [2, 1]),
        ({"to": "2026-11-19"}, [1, 0]),
        ({"from": "2026-11-19", "to": "2026-11-19"}, [1]),
        ({"from": "2026-11-19T12:00:00Z"}, [2, 1]),
        ({"from": "2026-11-19T12:00:01"}, [2]),
        ({"to": "2026-11-19T13:59:59+02:00"}, [0]),
        ({"to": "2026-11-19T14:00:00+02:00"}, [1, 0]),
    ],
)
def test_both_ends_of_a_time_are_included(
    caller: Caller, query: dict[str, str], days: list[int]
) -> None:
    seqs = [record(day) for day in range(3)]

    numbers = listed_seqs(caller, actor="user:anna", **query)

    assert numbers == [seqs[day] for day in days]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("from", "yesterday"),
        ("to", "2026-13-01"),
        ("from", "99999-01-01"),
        ("from", "0001-01-01T00:00:00+14:00"),
        ("to", "\0"),
        ("actor", "a\0"),
        ("subject", "x" * 300),
    ],
)
def test_an_invalid_filter_is_a_422_that_names_it(
    caller: Caller, name: str, value: str
) -> None:
    reply = caller.get("audit", **{name: value})

    assert (reply.status, reply.pointers) == (422, [f"/{name}"])


def test_the_chain_is_verified(caller: Caller) -> None:
    record(1)

    assert caller.get("audit/verify").json == {
        "entries": 2,
        "ok": True,
        "first_bad": None,
        "head": verification.verify().head,
        "troubles": [],
    }


def test_an_altered_entry_is_found_by_verification(caller: Caller) -> None:
    seq = record(1)
    record(2)
    with connection.cursor() as cursor:
        cursor.execute("GRANT UPDATE ON audit_entry TO CURRENT_USER")
        cursor.execute("ALTER TABLE audit_entry DISABLE TRIGGER USER")
        cursor.execute(
            "UPDATE audit_entry SET record = replace(record, 'anna', 'boris')"
            " WHERE seq = %s",
            [seq],
        )
        cursor.execute("ALTER TABLE audit_entry ENABLE TRIGGER USER")
        cursor.execute("REVOKE UPDATE ON audit_entry FROM CURRENT_USER")

    data = caller.get("audit/verify").json

    assert (data["ok"], data["first_bad"]) == (False, seq)
    assert data["troubles"] == [f"Entry {seq} does not follow from the one before it."]


def test_a_key_for_some_topics_does_not_see_the_trail() -> None:
    caller = program(topics=["orders"])

    assert [caller.get(path).status for path in ("audit", "audit/verify")] == [403, 403]


def test_a_viewer_sees_the_trail() -> None:
    assert person(Role.VIEWER).get("audit/verify").status == 200
