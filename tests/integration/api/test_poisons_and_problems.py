"""Poisons and problems over the API: search, pages, details, and their scopes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.audit.models import Entry
from apps.core import statement_timeouts
from apps.poison.models import Poison
from apps.team.rights import Role, Scope
from tests.failure_report_builders import capture, failure, poisons
from tests.integration.api.schema_checking_client import Caller, person, program

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)

Execute = Callable[..., Any]


def pages(caller: Caller, path: str, **query: object) -> list[list[int]]:
    """Read a list to its end; give the ids of each page."""
    batches, cursor = [], ""
    while True:
        reply = caller.get(path, cursor=cursor, **query)
        batches.append([row["id"] for row in reply.results])
        cursor = reply.json["next"]
        if cursor is None:
            return batches


def test_a_list_is_paged_from_the_latest_failure_to_the_first(now: datetime) -> None:
    ids = [poisons(now, 1, failed_at=_at(now, n))[0].pk for n in range(5)]

    batches = pages(program(), "poisons", limit=2)

    newest_first = ids[::-1]
    assert batches == [newest_first[:2], newest_first[2:4], newest_first[4:]]


def test_rows_with_the_same_time_are_each_on_one_page(now: datetime) -> None:
    ids = {poison.pk for poison in poisons(now, 7)}

    batches = pages(program(), "poisons", limit=3)

    assert [len(page) for page in batches] == [3, 3, 1]
    assert {pk for page in batches for pk in page} == ids


def test_a_new_row_between_two_pages_moves_no_other_row(now: datetime) -> None:
    ids = [poisons(now, 1, failed_at=_at(now, n))[0].pk for n in range(4)]
    caller = program()
    first = caller.get("poisons", limit=2)

    poisons(now + MINUTE, 3)
    second = caller.get("poisons", limit=2, cursor=first.json["next"])

    rows = [row["id"] for row in (*first.results, *second.results)]
    assert rows == ids[::-1]


def test_a_list_ends_where_the_rows_do(now: datetime) -> None:
    poisons(now, 2)

    assert program().get("poisons", limit=2).json["next"] is None
    assert program(Scope.POISONS_READ).get("poisons", q="is:dropped").json == {
        "results": [],
        "next": None,
        "next_url": None,
        "previous_url": None,
    }


@pytest.mark.parametrize("path", ["poisons", "problems", "operations", "audit"])
@pytest.mark.parametrize("limit", ["0", "-1", "201", "x", "1.5", "9" * 5_000, "", "²"])
def test_an_invalid_limit_is_a_400_that_names_it(path: str, limit: str) -> None:
    reply = program().get(path, limit=limit)

    assert (reply.status, reply.pointers) == (400, ["/limit"])


@pytest.mark.parametrize("path", ["poisons", "problems", "operations", "audit"])
@pytest.mark.parametrize("cursor", ["x", "a:b:c", "\0", "ü", "eyJ9" * 100, "::", "W10"])
def test_an_invalid_cursor_is_a_400_that_names_it(path: str, cursor: str) -> None:
    reply = program().get(path, cursor=cursor)

    assert (reply.status, reply.pointers) == (400, ["/cursor"])


def test_a_cursor_of_another_list_is_refused(now: datetime) -> None:
    poisons(now, 2)
    caller = program()
    cursor = caller.get("poisons", limit=1).json["next"]

    replies = [caller.get(path, cursor=cursor) for path in ("problems", "audit")]
    changed = caller.get("poisons", cursor=cursor[:-1] + "_")

    assert [each.status for each in (*replies, changed)] == [400, 400, 400]


def test_a_query_finds_what_matches(now: datetime) -> None:
    [expected] = poisons(now, 1, cause="crash", topic="orders.eu")
    poisons(now, 1, cause="fatal", topic="orders.eu")
    poisons(now, 1, cause="crash", topic="invoices")

    reply = program().get("poisons", q="topic:orders* cause:crash is:open")

    assert [row["id"] for row in reply.results] == [expected.pk]


@pytest.mark.parametrize(
    "q", ["zebra:1", "is:gone", 'error:"', "day:x", "\0", "x" * 3_000, "problem:x"]
)
@pytest.mark.parametrize("path", ["poisons", "problems"])
def test_an_invalid_query_is_a_422_that_names_it(path: str, q: str) -> None:
    reply = program().get(path, q=q)

    assert (reply.status, reply.pointers) == (422, ["/q"])


@pytest.mark.parametrize("path", ["poisons", "problems"])
def test_a_longer_list_takes_no_more_queries_and_reads_no_body(
    now: datetime, path: str
) -> None:
    caller = program()
    numbers = []
    for number in range(3):
        raised = {"type": f"E{number}", "message": "", "traceback": ""}
        poisons(now, 2, exception=raised, topic=f"topic {number}")
        with CaptureQueriesContext(connection) as queries:
            rows = caller.get(path).results
        assert len(rows) > number
        assert not [each for each in queries if "poison_body" in each["sql"]]
        numbers.append(len(queries))

    # The first request with a key also notes its use.
    assert numbers[1] == numbers[2]


def test_a_redriven_poison_is_silent_when_no_answer_came_for_too_long(
    now: datetime,
) -> None:
    early, late = poisons(now, 2)
    for poison, minutes in ((early, 11), (late, 9)):
        Poison.objects.filter(pk=poison.pk).update(
            state="redriven", sent_at=now - minutes * MINUTE, redrives=1
        )

    rows = {row["id"]: row for row in program().get("poisons").results}

    assert (rows[early.pk]["silent"], rows[late.pk]["silent"]) == (True, False)
    assert rows[early.pk]["shown"] == "sent"
    assert program().get(f"poisons/{early.pk}").json["silent"] is True


def test_wildcards_of_like_in_a_query_are_literal(now: datetime) -> None:
    poisons(now, 1)

    replies = [program(Scope.POISONS_READ).get("poisons", q=q) for q in ("error:%",)]

    assert [reply.results for reply in replies] == [[]]


def test_a_poison_is_shown_with_its_history(now: datetime) -> None:
    member = failure(now, headers=[("secret", b"value")], bookmark="1-0")
    [answer] = capture(now, member)
    again = {**member, "report_id": "0f0e0d0c-0b0a-0908-0706-050403020100"}
    capture(now + MINUTE, {**again, "failed_at": (now - MINUTE).isoformat()})

    data = program().get(f"poisons/{answer.poison}").json

    assert data["counts"]["failures"] == 2
    assert data["bookmark"] == "1-0"
    assert data["header_names"] == ["secret"]
    assert [each["failed_at"] for each in data["failures"]] == [
        _json(now),
        _json(now - MINUTE),
    ]
    assert data["failures"][0]["error_message"] == "I'm superstitious..."
    assert (data["redrives"], data["operations"], data["audit"]) == ([], [], [])


def test_long_texts_of_a_failure_are_cut_and_marked(now: datetime) -> None:
    raised = {"type": "X", "message": "m" * 20_000, "traceback": "t" * 200_000}
    [long] = poisons(now, 1, exception=raised)
    [short] = poisons(now, 1)
    caller = program()

    [cut] = caller.get(f"poisons/{long.pk}").json["failures"]
    [whole] = caller.get(f"poisons/{short.pk}").json["failures"]

    assert (len(cut["error_message"]), len(cut["traceback"])) == (16_384, 16_384)
    assert (cut["cut"], whole["cut"]) == (True, False)


def test_audit_entries_of_a_poison_need_the_scope_of_the_trail(now: datetime) -> None:
    [poison] = poisons(now, 1)
    program(Scope.BODIES_READ).get(f"poisons/{poison.pk}/body")

    allowed = program(Scope.POISONS_READ, Scope.AUDIT_READ)
    others = program(Scope.POISONS_READ)

    [entry] = allowed.get(f"poisons/{poison.pk}").json["audit"]
    assert entry["action"] == "body.revealed"
    assert others.get(f"poisons/{poison.pk}").json["audit"] is None


def test_a_problem_has_its_counts_by_state(now: datetime) -> None:
    created = poisons(now, 3)
    Poison.objects.filter(pk=created[0].pk).update(state="dropped", dropped_at=now)
    poisons(now, 1, exception={"type": "Other", "message": "", "traceback": ""})

    rows = program().get("problems", q="is:dropped").results

    [problem] = rows
    assert problem["counts"] == {"open": 2, "sent": 0, "handled": 0, "dropped": 1}
    assert (problem["total"], problem["topic"]) == (3, "orders")


def test_a_problem_alone_is_what_its_list_says_of_it(now: datetime) -> None:
    created = poisons(now, 3)
    Poison.objects.filter(pk=created[0].pk).update(state="dropped", dropped_at=now)
    raised = {"type": "Other", "message": "", "traceback": ""}
    [other] = poisons(now, 1, exception=raised)
    caller = program()

    problem = caller.get(f"problems/{created[0].problem_id}")

    listed = {row["id"]: row for row in caller.get("problems").results}
    assert problem.status == 200
    assert problem.json == listed[created[0].problem_id]
    assert problem.json["counts"]["dropped"] == 1
    assert other.problem_id != created[0].problem_id


def test_a_problem_whose_poisons_take_too_long_to_count_is_a_503(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    [poison] = poisons(now, 1)
    monkeypatch.setattr(statement_timeouts, "SEARCH_MS", 50)

    def slow(execute: Execute, sql: str, *rest: Any) -> Any:
        if "poison_count" in sql:
            return execute("SELECT pg_sleep(30)", None, *rest[1:])
        return execute(sql, *rest)

    with connection.execute_wrapper(slow):
        reply = program().get(f"problems/{poison.problem_id}")

    assert (reply.status, "takes too long" in reply.detail) == (503, True)


def test_problems_are_paged_too(now: datetime) -> None:
    for number in range(5):
        raised = {"type": f"E{number}", "message": "", "traceback": ""}
        poisons(now, 1, exception=raised, failed_at=_at(now, number % 2))

    batches = pages(program(), "problems", limit=2)

    assert [len(page) for page in batches] == [2, 2, 1]
    assert len({pk for page in batches for pk in page}) == 5


@pytest.mark.parametrize("size", [0, 1, 1024 * 1024, 1024 * 1024 + 1])
def test_a_body_comes_back_byte_for_byte_and_cannot_run(
    now: datetime, size: int
) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    [poison] = poisons(now, 1, body=content[:size], content_type="text/html")

    response = program(Scope.BODIES_READ).get(f"poisons/{poison.pk}/body").response

    assert b"".join(response) == content[:size]
    assert response["Content-Type"] == "application/octet-stream"
    assert response["Content-Disposition"].startswith("attachment;")
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Length"] == str(size)


def test_a_download_is_recorded_with_its_actor(now: datetime) -> None:
    [poison] = poisons(now, 1)

    reply = person(Role.VIEWER, reads_bodies=True).post(f"poisons/{poison.pk}/body")

    assert reply.status == 200
    entry = Entry.objects.filter(action="body.revealed").get()
    assert (entry.actor, entry.subject) == ("user:viewer", f"poison:{poison.pk}")
    assert entry.detail["how"] == "downloaded"


def test_a_body_needs_its_own_scope_and_a_refusal_is_not_audited(now: datetime) -> None:
    [poison] = poisons(now, 1)

    replies = [
        caller.get(f"poisons/{poison.pk}/body")
        for caller in (program(Scope.POISONS_READ), person(Role.ADMIN))
    ]

    assert [each.status for each in replies] == [403, 403]
    assert not Entry.objects.filter(action="body.revealed").exists()


def test_a_key_for_some_topics_sees_only_them(now: datetime) -> None:
    [visible] = poisons(now, 1, topic="orders.eu")
    [hidden] = poisons(now, 1, topic="invoices")
    caller = program(topics=["orders.*"])

    assert [row["id"] for row in caller.get("poisons").results] == [visible.pk]
    assert [row["topic"] for row in caller.get("problems").results] == ["orders.eu"]
    for path in (
        f"poisons/{hidden.pk}",
        f"poisons/{hidden.pk}/body",
        f"problems/{hidden.problem_id}",
    ):
        assert caller.get(path).status == 404
        assert program().get(path).status == 200
    assert caller.get(f"problems/{visible.problem_id}").status == 200
    assert caller.get("poisons", q="topic:invoices").results == []


@pytest.mark.parametrize("number", [0, 99, 2**31, 2**63 - 1, 2**63, 2**64, "9" * 5_000])
def test_an_unknown_poison_or_problem_is_a_404(number: object) -> None:
    caller = program()

    assert caller.get(f"problems/{number}").status == 404
    assert caller.get(f"poisons/{number}").status == 404
    assert caller.get(f"poisons/{number}/body").status == 404


def _at(now: datetime, minutes: int) -> str:
    return (now - timedelta(minutes=10) + minutes * MINUTE).isoformat()


def _json(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
