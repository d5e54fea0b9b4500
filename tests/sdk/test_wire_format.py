from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poisonguard.contract import (
    Cause,
    Confirmation,
    CounterReport,
    FailureReport,
    GuardHeartbeat,
    GuardState,
    Invalid,
    Raised,
    parse_confirmation,
    parse_counter,
    parse_failure,
    parse_heartbeat,
    uuid_of,
)

ID = "123e4567-e89b-12d3-a456-426614174000"
NOON = "2026-11-20T12:00:00Z"

FAILURE: dict[str, object] = {
    "report_id": ID,
    "topic": "/sample/bookmarkStore 50 %",
    "consumer_group": "billing",
    "client_name": "billing-1",
    "sub_id": "7",
    "bookmark": "13948331409633568391|1|",
    "publisher": "13948331409633568391",
    "seq": 2**62,
    "message_id": "m-1",
    "body": "AP8=",
    "content_type": "application/json",
    "headers": [["tag", "YQ=="], ["tag", "Yg=="], ["", ""]],
    "cause": "exhausted",
    "exception": {"type": "ValueError", "message": "no", "traceback": "..."},
    "attempts": 3,
    "failures": 3,
    "crashes": 0,
    "dequeue_count": 1,
    "first_failed_at": "2026-11-20T12:00:00+01:00",
    "failed_at": NOON,
    "handler_version": "2026.11.20",
    "host": "host-1",
    "redrive": "id.signature",
}
CONFIRMATION: dict[str, object] = {
    "redrive": "id.signature",
    "topic": "orders",
    "consumer_group": "billing",
    "client_name": "billing-1",
    "at": NOON,
}
COUNTER: dict[str, object] = {
    "reporter": ID,
    "sequence": 0,
    "topic": "orders",
    "consumer_group": "billing",
    "client_name": "billing-1",
    "minute": NOON,
    "handled": 10,
    "failed": 1,
    "skipped": 0,
    "retried": 2,
    "duration_ms_hist": {"10": 3, "0": 7, "63": 1},
}
HEARTBEAT: dict[str, object] = {
    "reporter": ID,
    "topic": "orders",
    "consumer_group": "billing",
    "client_name": "billing-1",
    "host": "web-3",
    "version": "1.0.0",
    "handler_version": "2026.11.20",
    "state": "paused",
    "detail": "50 failures in a row",
    "skips_age_s": 0.5,
    "spooled": 1,
    "suspected": 2,
    "journal": True,
    "failing_since": NOON,
    "at": NOON,
}
OPTIONAL = {
    "sub_id",
    "publisher",
    "seq",
    "message_id",
    "content_type",
    "exception",
    "dequeue_count",
    "handler_version",
    "host",
    "redrive",
    # Of heartbeats alone.
    "version",
    "detail",
    "skips_age_s",
    "failing_since",
}

any_text = st.text(st.characters(exclude_categories=()))
names = st.text(
    st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=255
).filter(str.strip)
counts = st.integers(0, 2**31 - 1)
moments = st.datetimes(timezones=st.just(UTC))
exceptions = st.builds(Raised, type=any_text, message=any_text, traceback=any_text)
failures = st.builds(
    FailureReport,
    report_id=st.uuids(),
    topic=names,
    consumer_group=names,
    client_name=names,
    sub_id=st.none() | names,
    bookmark=any_text.filter(bool),
    publisher=st.none() | names,
    seq=st.none() | st.integers(0, 2**62),
    message_id=st.none() | any_text,
    body=st.binary(),
    content_type=st.none() | any_text,
    headers=st.lists(st.tuples(st.binary(), st.binary())).map(tuple),
    cause=st.sampled_from(Cause),
    exception=st.none() | exceptions,
    attempts=counts,
    failures=counts,
    crashes=counts,
    dequeue_count=st.none() | counts,
    first_failed_at=moments,
    failed_at=moments,
    handler_version=st.none() | names,
    host=st.none() | names,
    redrive=st.none() | any_text,
)
heartbeats = st.builds(
    GuardHeartbeat,
    reporter=st.uuids(),
    topic=names,
    consumer_group=names,
    client_name=names,
    host=st.none() | names,
    version=st.none() | names,
    handler_version=st.none() | names,
    state=st.sampled_from(GuardState),
    detail=names,
    skips_age_s=st.none() | st.floats(0, 2**31 - 1),
    spooled=counts,
    suspected=counts,
    journal=st.booleans(),
    failing_since=st.none() | moments,
    at=moments,
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner) | st.dictionaries(any_text, inner),
)


def test_a_failure_is_read_member_by_member() -> None:
    report = parse_failure(FAILURE)

    assert report == FailureReport(
        report_id=UUID(ID),
        topic="/sample/bookmarkStore 50 %",
        consumer_group="billing",
        client_name="billing-1",
        sub_id="7",
        bookmark="13948331409633568391|1|",
        publisher="13948331409633568391",
        seq=2**62,
        message_id="m-1",
        body=b"\x00\xff",
        content_type="application/json",
        headers=((b"tag", b"a"), (b"tag", b"b"), (b"", b"")),
        cause=Cause.EXHAUSTED,
        exception=Raised(type="ValueError", message="no", traceback="..."),
        attempts=3,
        failures=3,
        crashes=0,
        dequeue_count=1,
        first_failed_at=datetime(2026, 11, 20, 11, tzinfo=UTC),
        failed_at=datetime(2026, 11, 20, 12, tzinfo=UTC),
        handler_version="2026.11.20",
        host="host-1",
        redrive="id.signature",
    )


@given(failures)
def test_a_failure_survives_the_wire(report: FailureReport) -> None:
    received = json.loads(json.dumps(report.to_wire()))

    assert parse_failure(received) == report


def test_a_confirmation_survives_the_wire() -> None:
    report = parse_confirmation(CONFIRMATION)

    assert report.at == datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert isinstance(report, Confirmation)
    assert parse_confirmation(json.loads(json.dumps(report.to_wire()))) == report


def test_a_counter_survives_the_wire() -> None:
    report = parse_counter(COUNTER)

    assert report.duration_ms_hist == ((0, 7), (10, 3), (63, 1))
    assert isinstance(report, CounterReport)
    assert parse_counter(json.loads(json.dumps(report.to_wire()))) == report


@given(heartbeats)
def test_a_heartbeat_survives_the_wire(heartbeat: GuardHeartbeat) -> None:
    received = json.loads(json.dumps(heartbeat.to_wire()))

    assert parse_heartbeat(received) == heartbeat


def test_a_heartbeat_has_every_member_on_the_wire_also_the_empty_ones() -> None:
    whole = parse_heartbeat(HEARTBEAT).to_wire()
    empty = parse_heartbeat(HEARTBEAT | dict.fromkeys(OPTIONAL)).to_wire()

    at = "2026-11-20T12:00:00+00:00"
    assert whole == HEARTBEAT | {"failing_since": at, "at": at}
    assert empty.keys() == HEARTBEAT.keys()
    assert (empty["detail"], empty["skips_age_s"], empty["host"]) == ("", None, None)


def test_an_oversize_body_is_described_by_size_and_digest() -> None:
    whole = parse_failure(FAILURE)

    report = whole.without_body()

    wire = report.to_wire()
    assert parse_failure(wire) == report
    assert (report.body, "body" in wire) == (b"", False)
    assert wire["oversize_body"] == {
        "size": 2,
        "sha256": hashlib.sha256(b"\x00\xff").hexdigest(),
    }


def test_unknown_members_are_ignored() -> None:
    assert parse_failure(FAILURE | {"colour": "red"}) == parse_failure(FAILURE)


@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_an_optional_member_may_be_absent_or_null(name: str) -> None:
    without = {key: value for key, value in FAILURE.items() if key != name}

    report = parse_failure(without)

    assert parse_failure(FAILURE | {name: None}) == report
    assert name not in report.to_wire()


def required() -> Iterator[tuple[Callable[[object], object], dict[str, object], str]]:
    yield from ((parse_failure, FAILURE, name) for name in FAILURE.keys() - OPTIONAL)
    yield from ((parse_confirmation, CONFIRMATION, name) for name in CONFIRMATION)
    yield from ((parse_counter, COUNTER, name) for name in COUNTER)
    yield from (
        (parse_heartbeat, HEARTBEAT, name) for name in HEARTBEAT.keys() - OPTIONAL
    )


@pytest.mark.parametrize(("parse", "item", "name"), sorted(required(), key=str))
def test_a_missing_member_is_named(
    parse: Callable[[object], object], item: dict[str, object], name: str
) -> None:
    with pytest.raises(Invalid) as refused:
        parse({key: value for key, value in item.items() if key != name})

    assert refused.value.pointer == f"/{name}"
    assert refused.value.detail == f"{name} is missing: send it."


BAD: list[tuple[str, object, str]] = [
    ("report_id", 7, "/report_id"),
    ("report_id", ID[:-1], "/report_id"),
    ("report_id", ID.replace("-", ""), "/report_id"),
    ("report_id", f"{{{ID}}}", "/report_id"),
    ("topic", "", "/topic"),
    ("topic", "  ", "/topic"),
    ("topic", "x" * 256, "/topic"),
    ("topic", "a\0b", "/topic"),
    ("topic", "a\nb", "/topic"),
    ("topic", "a\x85b", "/topic"),
    ("topic", "a\ud800b", "/topic"),
    ("topic", ["orders"], "/topic"),
    ("client_name", "a\x7fb", "/client_name"),
    ("sub_id", "", "/sub_id"),
    ("host", "a\tb", "/host"),
    ("handler_version", 1.5, "/handler_version"),
    ("bookmark", "", "/bookmark"),
    ("bookmark", 17, "/bookmark"),
    ("bookmark", "x" * 131_073, "/bookmark"),
    ("message_id", b"x", "/message_id"),
    ("body", "AP8", "/body"),
    ("body", "AP8=\n", "/body"),
    ("body", "A P8=", "/body"),
    ("body", "-_8=", "/body"),
    ("body", "Ü===", "/body"),
    ("body", {"a": 1}, "/body"),
    ("headers", {"a": "b"}, "/headers"),
    ("headers", [["a", "YQ=="], ["b"]], "/headers/1"),
    ("headers", [["a", "YQ=="], "bc"], "/headers/1"),
    ("headers", [[1, "YQ=="]], "/headers/0/0"),
    ("headers", [["a", "!"]], "/headers/0/1"),
    ("headers", [["a", None]], "/headers/0/1"),
    ("cause", "bad luck", "/cause"),
    ("cause", "EXHAUSTED", "/cause"),
    ("cause", [], "/cause"),
    ("exception", "ValueError", "/exception"),
    ("exception", {"type": "x", "message": "y"}, "/exception/traceback"),
    ("exception", {"type": 1, "message": "", "traceback": ""}, "/exception/type"),
    ("attempts", -1, "/attempts"),
    ("attempts", 2**31, "/attempts"),
    ("attempts", True, "/attempts"),
    ("attempts", 1.0, "/attempts"),
    ("attempts", "1", "/attempts"),
    ("seq", 2**62 + 1, "/seq"),
    ("failed_at", "2026-11-20T12:00:00", "/failed_at"),
    ("failed_at", "2026-11-20", "/failed_at"),
    ("failed_at", "0000-01-01T00:00:00Z", "/failed_at"),
    ("failed_at", "99999-01-01T00:00:00Z", "/failed_at"),
    ("failed_at", "0001-01-01T00:00:00+14:00", "/failed_at"),
    ("failed_at", "9999-12-31T23:00:00-14:00", "/failed_at"),
    ("failed_at", "noon\ud800", "/failed_at"),
    ("failed_at", 1_700_000_000, "/failed_at"),
    ("redrive", 7, "/redrive"),
]


@pytest.mark.parametrize(("name", "value", "pointer"), BAD)
def test_a_bad_member_is_refused_with_its_place(
    name: str, value: object, pointer: str
) -> None:
    with pytest.raises(Invalid) as refused:
        parse_failure(FAILURE | {name: value})

    assert refused.value.pointer == pointer
    assert refused.value.detail.startswith(pointer[1:].replace("/", "."))


@pytest.mark.parametrize(
    ("name", "value", "pointer"),
    [
        ("minute", "2026-11-20T12:00:01Z", "/minute"),
        ("minute", "2026-11-20T12:00:00.000001Z", "/minute"),
        ("minute", "2026-11-20T12:00:00", "/minute"),
        ("sequence", -1, "/sequence"),
        ("handled", -1, "/handled"),
        ("failed", True, "/failed"),
        ("duration_ms_hist", [1, 2], "/duration_ms_hist"),
        ("duration_ms_hist", {"64": 1}, "/duration_ms_hist"),
        ("duration_ms_hist", {"-1": 1}, "/duration_ms_hist"),
        ("duration_ms_hist", {"01": 1}, "/duration_ms_hist"),
        ("duration_ms_hist", {"1": -1}, "/duration_ms_hist/1"),
        ("duration_ms_hist", {"1": None}, "/duration_ms_hist/1"),
    ],
)
def test_a_bad_counter_is_refused_with_its_place(
    name: str, value: object, pointer: str
) -> None:
    with pytest.raises(Invalid) as refused:
        parse_counter(COUNTER | {name: value})

    assert refused.value.pointer == pointer


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reporter", f"{{{ID}}}"),
        ("state", "fine"),
        ("state", ["running"]),
        ("detail", 7),
        ("detail", "x" * 131_073),
        ("host", ""),
        ("skips_age_s", -1),
        ("skips_age_s", "soon"),
        ("skips_age_s", True),
        ("skips_age_s", float("inf")),
        ("skips_age_s", float("nan")),
        ("skips_age_s", 10**400),
        ("spooled", -1),
        ("suspected", True),
        ("journal", 1),
        ("failing_since", "today"),
        ("at", "9999-12-31T23:59:59-01:00"),
    ],
)
def test_a_bad_heartbeat_is_refused_with_its_place(name: str, value: object) -> None:
    with pytest.raises(Invalid) as refused:
        parse_heartbeat(HEARTBEAT | {name: value})

    assert refused.value.pointer == f"/{name}"


@pytest.mark.parametrize("name", sorted(HEARTBEAT.keys() & OPTIONAL))
def test_an_optional_member_of_a_heartbeat_may_be_null_or_left_out(name: str) -> None:
    without = {key: value for key, value in HEARTBEAT.items() if key != name}

    assert parse_heartbeat(without) == parse_heartbeat(HEARTBEAT | {name: None})


@pytest.mark.parametrize(
    "text",
    ["", f"{{{ID}}}", f"urn:uuid:{ID}", ID.replace("-", ""), f" {ID}", ID[:-1] + "٣"],
)
def test_a_uuid_of_another_spelling_is_none(text: str) -> None:
    assert uuid_of(text) is None


def test_a_uuid_may_have_capitals() -> None:
    assert uuid_of(ID.upper()) == UUID(ID)


def test_a_confirmation_needs_a_redrive_that_can_be_one() -> None:
    parse_confirmation(CONFIRMATION | {"redrive": "x" * 200})

    with pytest.raises(Invalid) as refused:
        parse_confirmation(CONFIRMATION | {"redrive": "x" * 201})

    assert refused.value.pointer == "/redrive"


@pytest.mark.parametrize("value", [None, [], "text", 7, True])
@pytest.mark.parametrize(
    "parse", [parse_failure, parse_confirmation, parse_counter, parse_heartbeat]
)
def test_an_item_that_is_no_object_is_refused(
    parse: Callable[[object], object], value: object
) -> None:
    with pytest.raises(Invalid) as refused:
        parse(value)

    assert refused.value.pointer == ""
    assert refused.value.detail == "the item must be a JSON object."


def test_hostile_texts_of_a_message_are_accepted() -> None:
    nasty = "\0\r\n\ud800\u202e" + "x" * 100_000

    report = parse_failure(
        FAILURE
        | {
            "bookmark": nasty,
            "message_id": nasty,
            "content_type": nasty,
            "redrive": nasty,
            "exception": {"type": nasty, "message": nasty, "traceback": nasty},
            "headers": [[nasty, ""]] * 1_000,
        }
    )

    assert (report.bookmark, report.message_id, report.redrive) == (nasty,) * 3
    assert report.exception == Raised(type=nasty, message=nasty, traceback=nasty)
    assert len(report.headers) == 1_000


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("über", "über".encode()),
        ("\udcff", b"\xff"),
        ("\ud800", b"\xed\xa0\x80"),
        ("\udcff\ud800", b"\xed\xb3\xbf\xed\xa0\x80"),
    ],
)
def test_a_header_name_of_any_bytes_has_a_text(text: str, name: bytes) -> None:
    report = parse_failure(FAILURE | {"headers": [[text, ""]]})

    assert report.headers == ((name, b""),)


@given(
    anything,
    st.dictionaries(st.sampled_from([*FAILURE, *COUNTER, *HEARTBEAT]), anything),
)
def test_any_input_is_parsed_or_raises_invalid(
    value: object, members: dict[str, object]
) -> None:
    results = [
        refusal(parse_failure, value),
        refusal(parse_failure, FAILURE | members),
        refusal(parse_confirmation, CONFIRMATION | members),
        refusal(parse_counter, COUNTER | members),
        refusal(parse_heartbeat, HEARTBEAT | members),
    ]

    for refused in filter(None, results):
        assert not refused.pointer or refused.pointer.startswith("/")
        assert refused.detail.endswith(".")


def refusal(parse: Callable[[object], object], item: object) -> Invalid | None:
    try:
        parse(item)
    except Invalid as refused:
        return refused
    return None
