from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.brokers.adapter_contract import Header
from apps.brokers.failure_headers import own_documented_headers as vocabulary
from apps.brokers.failure_headers.story_type_and_header_values import Story
from poisonguard import contract
from poisonguard.contract import Cause

WHOLE: tuple[Header, ...] = (
    (b"x-poison-cause", b"exhausted"),
    (b"x-exception-type", b"ValueError"),
    (b"x-exception-message", "I'm superstitious…".encode()),
    (b"x-exception-traceback", b"Traceback\n  \xff"),
    (b"x-original-bookmark", b"1700000000000-7"),
    (b"x-consumer-group", b"billing"),
    (b"x-client-name", b"billing-1"),
    (b"x-attempts", b"3"),
    (b"x-failed-at", b"2026-11-20T13:30:00+01:00"),
    (b"x-handler-version", b"2026.11"),
    (b"x-poisonweb-redrive", b"id.signature"),
)
OWN = ((b"content-type", b"text/plain"), (b"x-attempt", b"1"), (b"\xff", b""))

headers = st.lists(
    st.tuples(
        st.sampled_from([name for name, _ in WHOLE]) | st.binary(max_size=5),
        st.binary(max_size=40),
    )
)


def test_reads_the_whole_story() -> None:
    assert vocabulary.read(WHOLE) == Story(
        cause=Cause.EXHAUSTED,
        exception_type="ValueError",
        exception_message="I'm superstitious…",
        exception_traceback="Traceback\n  \N{REPLACEMENT CHARACTER}",
        original_bookmark="1700000000000-7",
        consumer_group="billing",
        client_name="billing-1",
        attempts=3,
        failed_at=datetime(2026, 11, 20, 12, 30, tzinfo=UTC),
        handler_version="2026.11",
        redrive="id.signature",
    )


def test_a_dead_letter_without_a_story_was_rejected() -> None:
    story = vocabulary.read(OWN)

    assert story.cause is Cause.REJECTED
    assert (story.original_bookmark, story.attempts, story.redrive) == (
        None,
        None,
        None,
    )
    assert (story.exception_type, story.consumer_group) == ("", "")


def test_header_names_ignore_case_and_the_last_one_counts() -> None:
    story = vocabulary.read(
        ((b"X-Attempts", b"1"), (b"x-attempts", b"2"), (b"X-POISON-CAUSE", b"Crash "))
    )

    assert (story.attempts, story.cause) == (2, Cause.CRASH)


@pytest.mark.parametrize(
    ("value", "attempts"),
    [
        (b"0", 0),
        (b" 12 ", 12),
        (b"2147483648", 2**31 - 1),
        (b"-1", None),
        (b"1.5", None),
        (b"1_0", None),
        ("٣".encode(), None),
        (b"9" * 5_000, None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_an_unreadable_number_is_none(value: bytes, attempts: int | None) -> None:
    assert vocabulary.read([(b"x-attempts", value)]).attempts == attempts


@pytest.mark.parametrize(
    "value",
    [
        b"yesterday",
        b"2026-11-20T12:00:00",
        b"99999-01-01T00:00:00Z",
        b"0000-01-01T00:00:00Z",
        b"0001-01-01T00:00:00+14:00",
        b"1700000000",
        b"\xff",
    ],
)
def test_an_unreadable_date_is_none(value: bytes) -> None:
    assert vocabulary.read([(b"x-failed-at", value)]).failed_at is None


@given(headers)
def test_reading_never_fails(headers: list[Header]) -> None:
    vocabulary.read(headers)
    vocabulary.content_type(headers)
    vocabulary.message_type(headers)
    vocabulary.leaving(headers)


def test_a_redrive_leaves_out_the_story_and_keeps_the_other_headers() -> None:
    leaving = vocabulary.leaving((*OWN, *WHOLE, (b"X-POISON-CAUSE", b""), *OWN))

    assert leaving == (*OWN, *OWN)


def test_a_redrive_leaves_out_every_documented_header() -> None:
    documented = (*contract.DEAD_LETTER_HEADERS, contract.REDRIVE_HEADER)

    assert {name for name, _ in WHOLE} == {name.encode() for name in documented}
    assert vocabulary.leaving(WHOLE) == ()


def test_what_is_written_of_an_exhausted_message_is_read_back() -> None:
    moment = datetime(2026, 11, 20, 12, tzinfo=UTC)

    written = vocabulary.headers_of_exhausted(
        bookmark=b"1-0",
        consumer_group=b"billing",
        client_name=b"",
        attempts=5,
        failed_at=moment,
    )

    story = vocabulary.read(written)
    assert b"x-client-name" not in dict(written)
    assert (story.cause, story.attempts) == (Cause.MAX_DEQUEUE_COUNT, 5)
    assert (story.original_bookmark, story.failed_at) == ("1-0", moment)


def test_content_type_and_message_type_come_from_the_producer() -> None:
    kind = (b"Content-Type", b""), (b"content_type", b"text/plain")
    headers = (*kind, (b"type", b"T"))

    assert vocabulary.content_type(headers) == "text/plain"
    assert vocabulary.message_type(headers) == "T"
    assert vocabulary.content_type(()) is None
