"""Hostile requests get a 4xx, never a 5xx."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from apps.core import clock, statement_timeouts
from apps.core.errors import Invalid
from apps.team.rights import Role
from tests.failure_report_builders import poisons
from tests.integration.api.schema_checking_client import Caller, person
from tests.integration.api.test_consumer_reports import MAKERS

pytestmark = pytest.mark.django_db

Execute = Callable[..., Any]

# All examples of a test share its database, which is intended.
fuzzed = settings(
    max_examples=2_000 if os.environ.get("SOAK") else 40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

text = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(
    ["\0", "\ud800", "\udfff" * 300, "*" * 100, "%_\\", "'; --", "\u202e", "x" * 5_000]
)
numbers = (
    st.integers() | st.floats() | st.sampled_from([2**31, 2**63, 2**64, -1, 1e308])
)
value: SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
    ),
    max_leaves=8,
)


def drop(_: datetime) -> dict[str, object]:
    return {"verb": "drop", "q": "", "ids": None, "target_topic": None}


def decision(_: datetime) -> dict[str, object]:
    return {"token": str(uuid.uuid4()), "reason": "because"}


ASKS: dict[str, Callable[[datetime], dict[str, object]]] = {
    "operations/preview": drop,
    "operations": decision,
}
POSTS = [*MAKERS, *ASKS]
each_post = pytest.mark.parametrize("path", POSTS)


@st.composite
def changed(draw: st.DrawFn, whole: dict[str, object]) -> dict[str, object]:
    """Replace some members of a valid object by any value, and leave out others."""
    names = draw(st.lists(st.sampled_from(sorted(whole)) | text, max_size=4))
    left_out = draw(st.sets(st.sampled_from(sorted(whole)), max_size=2))
    members = {name: each for name, each in whole.items() if name not in left_out}
    return {**members, **{name: draw(value) for name in names}}


@each_post
@fuzzed
@given(data=st.data())
def test_any_values_are_answered(
    caller: Caller, path: str, data: st.DataObject
) -> None:
    whole = (MAKERS | ASKS)[path](clock.now())
    members = data.draw(st.lists(changed(whole), max_size=3))
    body: object = {path: members} if path in MAKERS else data.draw(changed(whole))

    reply = caller.post(path, body)

    assert reply.status < 500
    if path in MAKERS:
        assert len(reply.results) == len(members)


def is_no_json(raw: bytes) -> bool:
    try:
        json.loads(raw)
    except ValueError:
        return True
    return False


@each_post
@fuzzed
@given(body=value)
def test_any_json_is_answered(caller: Caller, path: str, body: object) -> None:
    assert caller.post(path, body).status < 500


@each_post
@fuzzed
@given(
    # Whole requests are among the bytes that Hypothesis collects from our own code.
    raw=st.binary(max_size=300).filter(is_no_json),
    encoding=st.sampled_from(["", "gzip", "zstd", "identity", "br"])
    | st.text("abz,", max_size=9),
    key=st.none()
    | st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=9),
)
def test_any_bytes_are_answered(
    caller: Caller, path: str, raw: bytes, encoding: str, key: str | None
) -> None:
    headers = {
        "Content-Encoding": encoding,
        **({"Idempotency-Key": key} if key else {}),
    }

    reply = caller.send("POST", path, raw=raw, headers=headers)

    assert 400 <= reply.status < 500


@each_post
@fuzzed
@given(data=st.data())
def test_a_request_with_any_bytes_changed_is_answered(
    caller: Caller, path: str, data: st.DataObject
) -> None:
    whole = (MAKERS | ASKS)[path](clock.now())
    raw = bytearray(json.dumps({path: [whole]} if path in MAKERS else whole).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        # The length varies with ids and times; the drawn values must not.
        place = data.draw(st.integers(0, 2**16)) % len(raw)
        raw[place : place + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=4)
        )

    assert caller.post(path, bytes(raw)).status < 500


@pytest.mark.parametrize("path", ["poisons", "problems", "operations", "audit"])
@fuzzed
@given(
    query=st.dictionaries(
        st.sampled_from(["q", "cursor", "limit", "actor", "action", "from", "to", "x"]),
        text.filter(str.isprintable) | st.from_regex(r"\A!?[a-z]{1,7}:.{0,9}\Z"),
    )
)
def test_any_parameters_are_answered(
    caller: Caller, path: str, query: dict[str, str]
) -> None:
    assert caller.get(path, **query).status < 500


@fuzzed
@given(token=text)
def test_any_token_of_a_preview_is_answered(caller: Caller, token: str) -> None:
    assert (
        caller.get("operations/preview", token=token.encode("utf-8", "replace")).status
        < 500
    )


def test_a_session_may_not_post_without_its_token_in_any_content_type() -> None:
    bare = Caller(client=person(Role.ADMIN).client)

    replies = [
        bare.send("POST", "operations", raw=raw, content_type=kind)
        for raw, kind in [
            (b"{}", "application/json"),
            (b"token=1", "application/x-www-form-urlencoded"),
            (b"{}", "text/plain"),
            (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x"),
        ]
    ]

    assert [each.status for each in replies] == [403, 415, 415, 415]


@pytest.mark.parametrize("path", ["poisons", "problems"])
def test_a_search_that_takes_too_long_is_a_422_with_a_remedy(
    caller: Caller, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisons(clock.now(), 1)
    monkeypatch.setattr(statement_timeouts, "SEARCH_MS", 50)

    def slow(execute, sql, params, many, context):  # type: ignore[no-untyped-def] # as Django calls it
        crawls = 'FROM "poison_p' in sql
        return execute(
            "SELECT pg_sleep(30)" if crawls else sql,
            None if crawls else params,
            many,
            context,
        )

    with connection.execute_wrapper(slow):
        reply = caller.get(path, q="error:x")

    assert (reply.status, reply.pointers) == (422, ["/q"])
    assert "too long" in reply.detail


@pytest.mark.django_db(transaction=True)
def test_the_search_timeout_ends_with_its_block() -> None:
    with statement_timeouts.search_timeout():
        pass

    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",)


def test_the_search_timeout_does_not_translate_other_errors() -> None:
    with pytest.raises(Invalid), statement_timeouts.search_timeout():
        raise Invalid("x", "y")
