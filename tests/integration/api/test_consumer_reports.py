"""The three POSTs of capture: a bad member does not affect the others."""

from __future__ import annotations

import base64
import gzip
import json
import uuid
import zlib
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256

import pytest
import zstandard
from pytest_django import Settings

from apps.capture.intake import messages_too_large_to_capture
from apps.capture.models import Counter, OversizeMessage
from apps.poison.models import Body, Poison
from apps.team.rights import Scope
from tests.failure_report_builders import failure
from tests.integration.api.schema_checking_client import Caller, program

pytestmark = pytest.mark.django_db

Member = dict[str, object]


@pytest.fixture
def guard() -> Caller:
    return program(Scope.CAPTURE_WRITE)


def confirmation(now: datetime, **changes: object) -> Member:
    return {
        "redrive": f"{uuid.uuid4()}.forged",
        "topic": "orders",
        "consumer_group": "billing",
        "client_name": "billing-1",
        "at": now.isoformat(),
        **changes,
    }


def counter(now: datetime, **changes: object) -> Member:
    return {
        "reporter": str(uuid.uuid4()),
        "sequence": 1,
        "topic": "orders",
        "consumer_group": "billing",
        "client_name": "billing-1",
        "minute": now.replace(second=0, microsecond=0).isoformat(),
        "handled": 7,
        "failed": 1,
        "skipped": 0,
        "retried": 2,
        "duration_ms_hist": {"3": 7},
        **changes,
    }


MAKERS: dict[str, Callable[..., Member]] = {
    "failures": failure,
    "confirmations": confirmation,
    "counters": counter,
}
each_post = pytest.mark.parametrize("path", MAKERS)


def test_a_failure_becomes_a_poison_once(guard: Caller, now: datetime) -> None:
    member = failure(now, body=b"\0\xff", headers=[("a", b"\0")])

    first = guard.post("failures", {"failures": [member]}).results
    again = guard.post("failures", {"failures": [member]}).results
    later = {**member, "report_id": str(uuid.uuid4())}
    third = guard.post("failures", {"failures": [later]}).results

    poison = Poison.objects.get()
    assert [first, again, third] == [
        [{"status": status, "poison": poison.pk}]
        for status in ("created", "duplicate", "updated")
    ]
    assert bytes(Body.objects.get().content) == b"\0\xff"


def test_a_counter_counts_once(guard: Caller, now: datetime) -> None:
    member = counter(now)

    answers = [
        guard.post("counters", {"counters": [member]}).results[0]["status"]
        for _ in range(2)
    ]

    assert answers == ["counted", "duplicate"]
    assert Counter.objects.get().handled == 7


def test_a_forged_confirmation_is_rejected(guard: Caller, now: datetime) -> None:
    reply = guard.post("confirmations", {"confirmations": [confirmation(now)]})

    [answer] = reply.results
    assert (answer["status"], answer["pointer"]) == ("rejected", "/redrive")


# Invalid members of a failure, and the pointer of the answer.
BAD: dict[str, tuple[object, str]] = {
    "no object": (13, ""),
    "null": (None, ""),
    "a list": ([], ""),
    "no member": ({}, "/report_id"),
    "a wrong type": ({"topic": 13}, "/topic"),
    "no uuid": ({"report_id": "x"}, "/report_id"),
    "no topic": ({"topic": ""}, "/topic"),
    "NUL in a name": ({"topic": "a\0b"}, "/topic"),
    "half a surrogate in a name": ({"consumer_group": "\ud800"}, "/consumer_group"),
    "base64 that is not": ({"body": "%%%"}, "/body"),
    "a body that is no text": ({"body": {"a": 1}}, "/body"),
    "headers that are no list": ({"headers": {"a": "b"}}, "/headers"),
    "a header that is no pair": ({"headers": [["a"]]}, "/headers/0"),
    "a header that is not base64": ({"headers": [["a", "%"]]}, "/headers/0/1"),
    "an unknown cause": ({"cause": "bad luck"}, "/cause"),
    "half an exception": ({"exception": {"type": "X"}}, "/exception/message"),
    "a negative count": ({"attempts": -1}, "/attempts"),
    "a count with a fraction": ({"attempts": 1.5}, "/attempts"),
    "a count that is a bool": ({"attempts": True}, "/attempts"),
    "a count beyond 2^31": ({"attempts": 2**31}, "/attempts"),
    "a count that is no number": ({"attempts": float("nan")}, "/attempts"),
    "a count without end": ({"attempts": float("inf")}, "/attempts"),
    "no time": ({"failed_at": "yesterday"}, "/failed_at"),
    "a time without a zone": ({"failed_at": "2026-11-20T12:00:00"}, "/failed_at"),
    "the year 99999": ({"failed_at": "99999-01-01T00:00:00Z"}, "/failed_at"),
    "a time as a number": ({"failed_at": 1763640000}, "/failed_at"),
    "too long a bookmark": ({"bookmark": "b" * 200_000}, "/bookmark"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_member_is_rejected_and_the_others_are_captured(
    guard: Caller, now: datetime, case: str
) -> None:
    change, pointer = BAD[case]
    bad = {**failure(now), **change} if change and isinstance(change, dict) else change
    members = [failure(now), bad, failure(now)]

    answers = guard.post("failures", {"failures": members}).results

    assert [answer["status"] for answer in answers] == [
        "created",
        "rejected",
        "created",
    ]
    assert answers[1].get("pointer") == pointer
    assert answers[1]["detail"]


# Hostile values that are valid in a message.
GOOD: dict[str, Member] = {
    "a thousand headers": {"headers": [(f"h{n}", b"\0\xff") for n in range(1000)]},
    "a bookmark of 100 KB": {"bookmark": "b" * 100_000},
    "a bookmark with NUL and half a surrogate": {"bookmark": "\0\ud800"},
    "a message id with NUL": {"message_id": "\0\udfff"},
    "a forged redrive header": {"redrive": f"{uuid.uuid4()}.{'A' * 43}"},
    "a redrive header of 100 KB": {"redrive": "x" * 100_000},
    "hostile texts": {
        "exception": {
            "type": "\0\ud800\u202e<script>",
            "message": "\x1b[2J\r\n" * 100,
            "traceback": "\0" * 10_000,
        }
    },
    "the year 1": {"failed_at": "0001-01-01T00:00:00Z"},
    "the year 9999": {"failed_at": "9999-12-31T23:59:59Z"},
    "unknown members": {"zebra": {"deep": [[[[]]]]}},
    "an empty body": {"body": b""},
    "a header name that is no UTF-8": {"headers": [("\udcff\0", b"")]},
}


@pytest.mark.parametrize("case", GOOD)
def test_any_message_is_captured(guard: Caller, now: datetime, case: str) -> None:
    members = [failure(now, **GOOD[case])]

    [answer] = guard.post("failures", {"failures": members}).results
    reader = program(Scope.POISONS_READ)

    assert answer["status"] == "created"
    assert reader.get(f"poisons/{answer['poison']}").status == 200
    assert len(reader.get("poisons").results) == 1


def test_a_number_of_5000_digits_rejects_only_its_member(
    guard: Caller, now: datetime
) -> None:
    good, bad = json.dumps(failure(now)), json.dumps(failure(now, attempts=12345))
    raw = f'{{"failures": [{good}, {bad.replace("12345", "9" * 5_000)}]}}'

    answers = guard.post("failures", raw.encode()).results

    assert [answer["status"] for answer in answers] == ["created", "rejected"]


def test_an_oversize_body_is_rejected_and_says_what_to_do(
    guard: Caller, now: datetime, settings: Settings
) -> None:
    settings.POISONWEB_BODY_LIMIT = 10
    members = [failure(now, body=b"x" * size) for size in (9, 10, 11)]

    answers = guard.post("failures", {"failures": members}).results

    assert [a["status"] for a in answers] == ["created", "created", "rejected"]
    assert "oversize" in answers[2]["detail"]


def without_body(member: dict[str, object], size: int) -> dict[str, object]:
    rest = {name: value for name, value in member.items() if name != "body"}
    return {**rest, "oversize_body": {"size": size, "sha256": "ab" * 32}}


def test_a_message_without_its_body_is_counted_as_oversize_and_rejected(
    guard: Caller, now: datetime
) -> None:
    member = failure(now, bookmark="7-0", message_id="m-7", host="h", cause="crash")
    report = without_body(member, 90 * 2**20)

    answers = [guard.post("failures", {"failures": [report]}).results for _ in range(2)]

    noted = OversizeMessage.objects.get()
    assert [(a["status"], a["pointer"]) for (a,) in answers] == [
        ("rejected", "/body")
    ] * 2
    assert "noted on the page of its topic" in answers[0][0]["detail"]
    assert (noted.topic.name, noted.bookmark_text, noted.size, noted.digest_text) == (
        "orders",
        "7-0",
        90 * 2**20,
        "ab" * 32,
    )
    assert (noted.consumer_group, noted.client_name, noted.host, noted.message_id) == (
        "billing",
        "billing-1",
        "h",
        "m-7",
    )
    assert (noted.cause, noted.error, noted.times) == (
        "crash",
        "ValueError: I'm superstitious...",
        2,
    )
    assert Poison.objects.count() == 0


def test_an_oversize_message_is_listed_until_its_body_is_reported(
    guard: Caller, now: datetime, settings: Settings
) -> None:
    settings.POISONWEB_BODY_LIMIT = 10
    member = failure(now, body=b"x" * 11)
    guard.post("failures", {"failures": [member]})
    noted = OversizeMessage.objects.get()

    settings.POISONWEB_BODY_LIMIT = 11
    (answer,) = guard.post("failures", {"failures": [member]}).results

    assert (noted.size, noted.digest_text) == (11, sha256(b"x" * 11).hexdigest())
    assert answer["status"] == "created"
    assert OversizeMessage.objects.count() == 0


@pytest.mark.parametrize(
    ("oversize_body", "pointer"),
    [
        ({"size": -1, "sha256": "ab" * 32}, "/oversize_body/size"),
        ({"size": 1, "sha256": "ab"}, "/oversize_body/sha256"),
        ({"size": 1}, "/oversize_body/sha256"),
        ([], "/oversize_body"),
        (None, "/body"),
    ],
)
def test_an_incomplete_oversize_body_is_rejected(
    guard: Caller, now: datetime, oversize_body: object, pointer: str
) -> None:
    report = {**without_body(failure(now), 1), "oversize_body": oversize_body}

    (answer,) = guard.post("failures", {"failures": [report]}).results

    assert (answer["status"], answer["pointer"]) == ("rejected", pointer)
    assert OversizeMessage.objects.count() == 0


def test_oversize_messages_of_a_topic_are_limited_and_expire(
    guard: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_too_large_to_capture, "MOST", 2)
    reports = [without_body(failure(now), 1) for _ in range(3)]
    guard.post("failures", {"failures": reports})
    number = OversizeMessage.objects.count()

    noted_at = OversizeMessage.objects.latest("seen_at").seen_at
    messages_too_large_to_capture.prune(
        now=noted_at + messages_too_large_to_capture.LIVES
    )
    still_there = OversizeMessage.objects.count()
    messages_too_large_to_capture.prune(
        now=noted_at + messages_too_large_to_capture.LIVES + timedelta(seconds=1)
    )

    assert (number, still_there, OversizeMessage.objects.count()) == (2, 2, 0)


@each_post
def test_a_topic_outside_the_key_is_rejected_per_member(
    path: str, now: datetime
) -> None:
    guard = program(Scope.CAPTURE_WRITE, topics=["orders.*"])
    members = [MAKERS[path](now, topic=topic) for topic in ("orders", "orders.eu")]

    answers = guard.post(path, {path: members}).results

    assert (answers[0]["status"], answers[0]["pointer"]) == ("rejected", "/topic")
    assert answers[1].get("pointer") != "/topic"


@each_post
@pytest.mark.parametrize(
    "body", [[], 13, "x", None, {}, {"other": []}, {"failures": 1, "counters": "x"}]
)
def test_a_body_of_another_shape_is_a_400_that_names_the_member(
    guard: Caller, path: str, body: object
) -> None:
    reply = guard.post(path, body)

    assert reply.status == 400
    # RFC 6901: the empty text points at the whole document.
    assert reply.pointers == ([f"/{path}"] if isinstance(body, dict) else [""])


@each_post
def test_an_empty_list_is_answered_with_an_empty_list(guard: Caller, path: str) -> None:
    assert guard.post(path, {path: []}).results == []


@each_post
def test_more_than_1000_members_are_a_413(guard: Caller, path: str) -> None:
    reply = guard.post(path, {path: [{}] * 1_001})

    assert (reply.status, "at most 1000" in reply.detail) == (413, True)
    assert len(guard.post(path, {path: [{}] * 1_000}).results) == 1_000


# Not JSON, or JSON that breaks careless parsers.
BROKEN: dict[str, bytes] = {
    "nothing": b" ",
    "no JSON": b'{"failures": [',
    "invalid UTF-8": b'{"failures": ["\xff"]}',
    "UTF-16": '{"failures": []}'.encode("utf-16"),
    "a depth of 100,000": b"[" * 100_000,
    "a depth of 100,000 in a member": b'{"failures": ' + b"[" * 100_000,
    "a depth of 100,000 objects": b'{"a":' * 100_000,
    "NUL": b"\0",
}


@each_post
@pytest.mark.parametrize("case", BROKEN)
def test_a_body_that_is_not_json_is_a_400(guard: Caller, path: str, case: str) -> None:
    reply = guard.post(path, BROKEN[case])

    assert reply.status == 400
    assert reply.detail


@each_post
def test_an_empty_body_is_a_400_that_names_the_member(guard: Caller, path: str) -> None:
    assert guard.post(path, b"").pointers == [f"/{path}"]


def test_of_duplicate_members_the_last_one_counts(guard: Caller, now: datetime) -> None:
    member = json.dumps(failure(now))
    raw = f'{{"failures": 13, "failures": [{member}]}}'

    assert guard.post("failures", raw.encode()).results[0]["status"] == "created"


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "GZIP": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "identity": bytes,
}


@pytest.mark.parametrize("encoding", COMPRESSED)
def test_a_body_may_be_compressed(guard: Caller, now: datetime, encoding: str) -> None:
    raw = json.dumps({"failures": [failure(now, body=b"x" * 300_000)]}).encode()

    reply = guard.post("failures", COMPRESSED[encoding](raw), Content_Encoding=encoding)

    assert reply.results[0]["status"] == "created"
    assert Poison.objects.get().size == 300_000


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "x", "zstd,gzip"])
def test_an_unknown_encoding_is_a_415(guard: Caller, encoding: str) -> None:
    reply = guard.post("failures", b"{}", Content_Encoding=encoding)

    assert (reply.status, "gzip, zstd" in reply.detail) == (415, True)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_broken_stream_is_a_400(guard: Caller, encoding: str) -> None:
    whole = COMPRESSED[encoding](b'{"failures": []}' + b" " * 100_000)

    replies = [
        guard.post("failures", broken, Content_Encoding=encoding)
        for broken in (b"", b"x", b"not compressed at all", whole[:-9], whole[5:])
    ]

    assert [each.status for each in replies] == [400] * 5


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_decompression_bomb_is_refused_by_its_size(
    guard: Caller, encoding: str, settings: Settings
) -> None:
    settings.POISONWEB_REQUEST_LIMIT = 1_000_000
    reply = guard.post(
        "failures", COMPRESSED[encoding](bytes(1_000_001)), Content_Encoding=encoding
    )

    assert (reply.status, "more than 1000000 bytes" in reply.detail) == (413, True)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_decompression_bomb_is_refused_by_its_ratio(
    guard: Caller, encoding: str
) -> None:
    reply = guard.post("failures", _bomb(encoding), Content_Encoding=encoding)

    assert (reply.status, "200-fold" in reply.detail) == (413, True)


def _bomb(encoding: str) -> bytes:
    zeros = bytes(2**20)
    if encoding == "gzip":
        packer = zlib.compressobj(wbits=31)
        return b"".join([*(packer.compress(zeros) for _ in range(64)), packer.flush()])
    writer = zstandard.ZstdCompressor().compressobj()
    return b"".join([*(writer.compress(zeros) for _ in range(64)), writer.flush()])


def test_a_request_at_the_limit_passes_and_one_above_does_not(
    guard: Caller, now: datetime, settings: Settings
) -> None:
    raw = json.dumps({"failures": [failure(now)]}).encode()
    settings.POISONWEB_REQUEST_LIMIT = len(raw)

    replies = [guard.post("failures", raw + b" " * more) for more in (0, 1)]

    assert [each.status for each in replies] == [200, 413]


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "x/y/z"]
)
def test_another_content_type_than_json_is_a_415(
    guard: Caller, content_type: str
) -> None:
    reply = guard.send("POST", "failures", raw=b"{}", content_type=content_type)

    assert reply.status == 415


def test_base64_of_every_padding_is_the_same_bytes(
    guard: Caller, now: datetime
) -> None:
    bodies = [bytes(range(size)) for size in range(5)]
    members = [failure(now, body=body) for body in bodies]

    answers = guard.post("failures", {"failures": members}).results

    stored = dict(Body.objects.values_list("poison_id", "content"))
    assert [bytes(stored[answer["poison"]]) for answer in answers] == bodies
    assert base64.b64encode(bodies[1]) == b"AA=="
