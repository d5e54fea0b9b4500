"""The calls about skips: scopes, refusals, and exact values."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.brokers.models import Topic
from apps.capture.intake import guard_heartbeats
from apps.poison import skip_list_for_consumers
from apps.poison.models import Skip
from apps.team.rights import Role, Scope
from poisonguard import contract
from poisonguard.server.skip_stream import _read_json, _read_lines
from poisonguard.skipping.skip_list import Doubt
from poisonguard.skipping.skip_list_line_format import (
    ACCEPT,
    MEDIA_TYPE,
    SkipListVersion,
)
from poisonguard.skipping.skip_table import SkipTable
from tests.failure_report_builders import GUARD, capture, failure, guard_word, poisons
from tests.integration.api.schema_checking_client import Caller, Reply, person, program
from tests.skip_builders_and_list_mirror import added, suspected, topic_named

pytestmark = pytest.mark.django_db

Member = dict[str, object]


@pytest.fixture
def guard() -> Caller:
    return program(Scope.SKIPS_READ, Scope.SKIPS_WRITE, Scope.CAPTURE_WRITE)


def new(value: object = "7-0", **changes: object) -> Member:
    return {
        "topic": "orders",
        "matcher": {"kind": "bookmark", "value": value},
        **changes,
    }


def test_a_skip_is_added_listed_and_removed(guard: Caller, now: datetime) -> None:
    later = (now + timedelta(days=1)).isoformat()
    request = new(consumer_group="billing", expires_at=later, reason="kills the parser")

    added = guard.post("skips", request)
    listed = guard.get("skips", topic="orders", consumer_group="billing").json
    path = added.response["Location"]
    removed = guard.send("DELETE", path, raw=b'{"reason": "fixed"}')
    after = guard.get("skips", topic="orders").json

    assert (added.status, removed.status) == (201, 200)
    assert added.json == {**listed["skips"][0], "renews": None}
    assert len(listed["skips"]) == 1
    assert added.json["matcher"] == request["matcher"]
    assert (listed["revision"], after["revision"], after["skips"]) == (1, 2, [])
    assert listed["epoch"] == after["epoch"]
    assert removed.json["id"] == added.json["id"]
    assert Skip.objects.get().removed_reason == "fixed"


def test_a_renewed_skip_is_answered_with_what_it_was(
    guard: Caller, now: datetime
) -> None:
    later = (now + timedelta(days=1)).isoformat()
    first = guard.post("skips", new(expires_at=later, reason="it kills")).json

    second = guard.post("skips", new(reason="for good")).json

    assert first["renews"] is None
    assert (second["id"], second["reason"], second["expires_at"]) == (
        first["id"],
        "for good",
        None,
    )
    of_first = ("by", "at", "expires_at", "reason", "handler_version", "poison")
    assert second["renews"] == {
        **{name: first[name] for name in of_first},
        "automatic": False,
    }


def test_a_key_that_may_not_read_skips_is_not_told_what_a_renewed_one_was() -> None:
    writer = program(Scope.SKIPS_WRITE)
    first = writer.post("skips", new(reason="it kills")).json

    second = writer.post("skips", new(reason="for good")).json

    assert (second["id"], second["reason"]) == (first["id"], "for good")
    assert second["renews"] is None


@pytest.mark.parametrize("value", ["a\0b", "\ud800", "b" * 100_000, "é/ %", "{}"])
def test_a_bookmark_of_any_characters_is_returned_as_it_was(
    guard: Caller, value: str
) -> None:
    added = guard.post("skips", new(value))

    listed = guard.get("skips", topic="orders").json["skips"]

    assert [skip["matcher"]["value"] for skip in (added.json, *listed)] == [value] * 2


def test_a_rule_is_returned_as_an_object(guard: Caller) -> None:
    rule = {"pointer": "/order/id", "equals": 12345678901234567890}

    reply = guard.post("skips", new(matcher={"kind": "rule", "value": rule}))

    assert reply.json["matcher"] == {"kind": "rule", "value": rule}


def test_removing_needs_no_body_and_twice_is_once(guard: Caller) -> None:
    path = guard.post("skips", new()).response["Location"]

    answers = [guard.send("DELETE", path) for _ in range(2)]

    assert [answer.status for answer in answers] == [200, 200]
    assert skip_list_for_consumers.list_head(topic="orders").revision == 2


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"topic": None}, "/topic"),
        ({"topic": "a\0b"}, "/topic"),
        ({"topic": "x" * 256}, "/topic"),
        ({"consumer_group": ""}, "/consumer_group"),
        ({"consumer_group": 13}, "/consumer_group"),
        ({"handler_version": "\ud800"}, "/handler_version"),
        ({"matcher": None}, "/matcher"),
        ({"matcher": {"kind": "offset", "value": "1"}}, "/matcher/kind"),
        ({"matcher": {"kind": "rule", "value": {"pointer": "a"}}}, "/matcher/value"),
        ({"expires_at": "tomorrow"}, "/expires_at"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
        ({"expires_at": "2999-01-01T00:00:00"}, "/expires_at"),
        ({"reason": 13}, "/reason"),
        ({"poison": 10**30}, "/poison"),
        ({"poison": 13}, "/poison"),
        ({"everything": "yes"}, "/everything"),
        ({"consumer-group": "billing"}, "/consumer-group"),
    ],
)
def test_an_invalid_skip_is_a_422_that_names_the_member(
    guard: Caller, change: Member, pointer: str
) -> None:
    reply = guard.post("skips", new(**change))

    assert (reply.status, reply.pointers) == (422, [pointer])
    assert Skip.objects.count() == 0


def test_all_members_that_are_wrong_are_named_at_once(guard: Caller) -> None:
    rule = {"kind": "rule", "value": {"pointer": "a", "equals": 1}}

    reply = guard.post("skips", new(topic="", matcher=rule, expires_at=3, everything=1))

    assert reply.status == 422
    assert set(reply.pointers) == {
        *("/topic", "/matcher/value/pointer", "/expires_at", "/everything")
    }


@pytest.mark.parametrize("body", [[], 13, "x", None])
def test_a_body_of_another_shape_is_a_400(guard: Caller, body: object) -> None:
    assert guard.post("skips", body).status == 400


def test_a_rule_that_matches_everything_needs_the_flag(
    guard: Caller, now: datetime
) -> None:
    poisons(now, 200)
    rule = {"kind": "rule", "value": {"pointer": "/id", "equals": 13}}

    refused = guard.post("skips", new(matcher=rule))
    meant = guard.post("skips", new(matcher=rule, everything=True))

    assert (refused.status, refused.pointers) == (422, ["/matcher/value"])
    assert "everything" in refused.detail
    assert meant.status == 201


def test_a_key_is_limited_to_its_topics_known_or_not(now: datetime) -> None:
    mine = program(topics=["orders.*"])
    theirs = added(now, "1-0")

    answers = [
        mine.get("skips", topic="orders"),
        mine.get("skips", topic="never heard of"),
        mine.get("skips/stream", topic="orders"),
        mine.post("skips", new()),
    ]
    removed = mine.send("DELETE", f"skips/{theirs.pk}")

    assert [answer.status for answer in answers] == [403] * 4
    assert removed.status == 404
    assert mine.get("skips", topic="orders.eu").json["skips"] == []
    assert not Topic.objects.filter(name="orders.eu").exists()


def test_each_call_needs_its_scope(now: datetime) -> None:
    skip = added(now)
    reader, writer = program(Scope.SKIPS_READ), program(Scope.SKIPS_WRITE)
    viewer, operator = person(Role.VIEWER), person(Role.OPERATOR)

    def answers(caller: Caller) -> list[int]:
        return [
            caller.get("skips", topic="orders").status,
            caller.post("skips", new()).status,
            caller.send("DELETE", f"skips/{skip.pk}").status,
            caller.post("skips/applied", {"applied": []}).status,
            caller.get("skips/stream").status,
        ]

    assert answers(reader) == [200, 403, 403, 403, 422]
    assert answers(writer) == [403, 201, 200, 403, 403]
    assert answers(viewer) == [200, 403, 403, 403, 422]
    assert answers(operator) == [200, 201, 200, 403, 422]


def test_applied_skips_are_counted_member_by_member(
    guard: Caller, now: datetime
) -> None:
    skip = added(now)
    hidden = added(now, topic=topic_named("payments"))
    mine = program(Scope.CAPTURE_WRITE, topics=["orders"])
    good = {
        "skip": skip.pk, "consumer_group": "billing", "client_name": "billing-1",
        "count": 3, "last_at": now.isoformat(), "report": str(uuid.uuid4()),
    }  # fmt: skip
    bad: list[tuple[object, str]] = [
        (13, ""),
        ({**good, "skip": True}, "/skip"),
        ({**good, "skip": 2**63}, "/skip"),
        ({**good, "skip": hidden.pk}, "/skip"),
        ({**good, "count": -1}, "/count"),
        ({**good, "count": 2**31}, "/count"),
        ({**good, "client_name": ""}, "/client_name"),
        ({**good, "last_at": "now"}, "/last_at"),
        ({**good, "report": "x"}, "/report"),
        ({**good, "report": uuid.uuid4().hex}, "/report"),
    ]

    members = [good, *(member for member, _ in bad), good]
    answers = mine.post("skips/applied", {"applied": members}).results

    assert [a.get("pointer") for a in answers] == [None, *(p for _, p in bad), None]
    assert {a["status"] for a in answers[1:-1]} == {"rejected"}
    skip.refresh_from_db()
    assert skip.applied == 3


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"topic": ""},
        {"topic": ["a", "a"]},
        {"topic": [str(n) for n in range(101)]},
        {"topic": "a", "consumer_group": "\0"},
    ],
)
def test_a_stream_with_invalid_topics_is_refused(
    guard: Caller, query: dict[str, object]
) -> None:
    reply = guard.send("GET", "skips/stream", query=query)

    assert reply.status == 422


def test_a_server_without_asgi_answers_503_to_a_stream(guard: Caller) -> None:
    reply = guard.get("skips/stream", topic="orders")

    assert (reply.status, "ASGI" in reply.detail) == (503, True)


def test_a_list_is_rendered_again_after_each_change(
    guard: Caller, now: datetime
) -> None:
    def ids(**query: object) -> list[int]:
        return [
            s["id"] for s in guard.get("skips", topic="orders", **query).json["skips"]
        ]

    first = added(now, "1-0", consumer_group="billing")
    lists = [ids(), ids(), ids(consumer_group="shipping")]
    second = added(now, "2-0")

    assert lists == [[first.pk], [first.pk], []]
    assert ids() == [first.pk, second.pk]
    assert ids(consumer_group="shipping") == [second.pk]


def test_a_suspected_report_is_captured_and_cleared_over_http(
    guard: Caller, now: datetime
) -> None:
    report = failure(now, bookmark="1-0", replays=True)

    first = guard.post("failures", {"failures": [{**report, "suspected": True}]})
    before = guard.get("skips", topic="orders").json["skips"]
    cleared = guard.post("failures", {"failures": [report]})
    after = guard.get("skips", topic="orders").json["skips"]

    assert [t.results[0]["status"] for t in (first, cleared)] == ["created", "updated"]
    assert (before, [s["matcher"]["value"] for s in after]) == ([], ["1-0"])


# In lines


LINES = {"Accept": ACCEPT, "Accept-Encoding": "gzip"}


class Answered:
    """An answer as the SDK reads it."""

    def __init__(self, reply: Reply) -> None:
        whole = reply.response.content
        if reply.response.get("Content-Encoding") == "gzip":
            whole = gzip.decompress(whole)
        self._lines = whole.splitlines()

    def lines(self, *, longest: int) -> Iterator[bytes]:
        assert max(map(len, self._lines)) <= longest
        return iter(self._lines)


def in_force(
    now: datetime, read: Callable[[SkipTable], list[Doubt]]
) -> tuple[list[contract.Skip], list[Any]]:
    """Give what a consumer of any group and of version 2 reads from a snapshot."""
    table = SkipTable(topic="orders", applies=lambda _: True, now=now)
    suspects = [
        (each.skip, each.message_id, each.seq)
        for each in read(table)  # without the time of its arrival
    ]
    table.close()
    return [table.skip(row) for row, _ in table.ids()], suspects


def test_the_list_in_lines_equals_the_list_in_json(
    guard: Caller, now: datetime
) -> None:
    odd = ["a\0b", "\ud800", "b" * 100_000, "é/ %", "{}"]
    for n, value in enumerate(odd):
        guard.post("skips", new(value, consumer_group="billing" if n % 2 else None))
    digest = {"kind": "body_digest", "value": "0a" * 32}
    rule = {"kind": "rule", "value": {"pointer": "/id", "equals": 13}}
    later = (now + timedelta(days=1)).isoformat()
    guard.post("skips", new(matcher=digest, expires_at=later, reason="é\n"))
    guard.post("skips", new(matcher=rule, handler_version="2"))
    added(now, "of audit", consumer_group="audit")
    replaying = topic_named(replays=True)
    word = guard_word(now, client_name="billing-2", host="web-4")
    guard_heartbeats.record_heartbeats(members=[word], principal=GUARD, now=now)
    capture(now, failure(now, bookmark="9-0", message_id="m-9", seq=9))
    assert suspected(replaying.name) == ["9-0"]

    for group in ({}, {"consumer_group": "billing"}):
        query = {"topic": "orders", **group}
        reply = guard.send("GET", "skips", query=query, headers=LINES)
        json_body = guard.get("skips", **query).json
        lines: Any = Answered(reply)
        heads = set[SkipListVersion]()

        def from_lines(table: SkipTable, lines: Any = lines) -> list[Doubt]:
            head, suspects = _read_lines(lines, "orders", [table])
            heads.add(head)  # noqa: B023
            return suspects

        def from_json(table: SkipTable, body: Any = json_body) -> list[Doubt]:
            head, suspects = _read_json(body, [table])
            heads.add(head)  # noqa: B023
            return suspects

        skips, suspects = in_force(now, from_lines)
        assert reply.response["Content-Type"] == MEDIA_TYPE
        assert (skips, suspects) == in_force(now, from_json)
        assert len(skips) == (7 if group else 8)
        assert [(each[1], each[2]) for each in suspects] == [("m-9", 9)]
        assert len(heads) == 1


@pytest.mark.parametrize(
    ("accept", "encoding", "media_type", "is_gzip"),
    [
        (ACCEPT, "gzip", MEDIA_TYPE, True),
        (ACCEPT, "br, GZIP;q=0.8", MEDIA_TYPE, True),
        (ACCEPT, "gzip;q=0", MEDIA_TYPE, False),
        (ACCEPT, "identity", MEDIA_TYPE, False),
        ("application/json", "identity", "application/json", False),
        ("application/json", "gzip", "application/json", False),
        ("*/*", "gzip", "application/json", False),
    ],
)
def test_a_list_is_sent_in_the_media_type_and_encoding_that_accept_names(
    accept: str,
    encoding: str,
    media_type: str,
    is_gzip: bool,
    guard: Caller,
    now: datetime,
) -> None:
    added(now)
    headers = {"Accept": accept, "Accept-Encoding": encoding}

    reply = guard.send("GET", "skips", query={"topic": "orders"}, headers=headers)

    assert reply.response["Content-Type"] == media_type
    assert reply.response.has_header("Content-Encoding") is is_gzip
    assert {"Accept", "Accept-Encoding"} <= set(reply.response["Vary"].split(", "))


def test_a_key_gets_no_lines_of_a_topic_that_it_does_not_see(now: datetime) -> None:
    added(now)
    everybody, mine = program(), program(topics=["orders.*"])
    everybody.send("GET", "skips", query={"topic": "orders"}, headers=LINES)

    reply = mine.send("GET", "skips", query={"topic": "orders"}, headers=LINES)

    assert reply.status == 403


def test_a_change_is_in_the_next_lines(guard: Caller, now: datetime) -> None:
    polls = []
    for number in range(3):
        reply = guard.send("GET", "skips", query={"topic": "orders"}, headers=LINES)
        whole = gzip.decompress(reply.response.content)
        lines = [json.loads(line) for line in whole.splitlines()]
        ids = [number for line in lines for number in line.get("id", ())]
        polls.append((lines[0]["revision"], ids))
        added(now, f"{number}-0")

    assert [revision for revision, _ in polls] == [0, 1, 2]
    assert [len(ids) for _, ids in polls] == [0, 1, 2]
