"""Bodies become text of Azure's messages and leave as they came."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.brokers.adapter_contract import Header
from apps.brokers.adapters.azure_queue import message_text
from apps.brokers.adapters.azure_queue.adapter import ADAPTER
from apps.brokers.adapters.azure_queue.message_text import (
    LARGEST_BODY,
    LARGEST_TEXT,
    Encoding,
)
from apps.core.errors import Refused

BASE64, PLAIN = Encoding.BASE64, Encoding.NONE
MARKED_PLAIN = ((b"x-azure-message-encoding", b"none"),)
MARKED_BASE64 = ((b"x-azure-message-encoding", b"base64"),)
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=50)
ENCODINGS = st.sampled_from(Encoding)


@given(text=TEXTS, expected=ENCODINGS, usual=ENCODINGS)
def test_a_text_leaves_as_it_came(
    text: str, expected: Encoding, usual: Encoding
) -> None:
    content = message_text.read(text, expected=expected, usual=usual)

    assert message_text.write(content.body, content.headers, usual=usual) == text


@given(body=st.binary(max_size=50), expected=ENCODINGS, usual=ENCODINGS)
def test_base64_leaves_as_it_came(
    body: bytes, expected: Encoding, usual: Encoding
) -> None:
    text = base64.b64encode(body).decode()

    content = message_text.read(text, expected=expected, usual=usual)

    assert content.body == (body if expected is BASE64 else text.encode())
    assert message_text.write(content.body, content.headers, usual=usual) == text


@given(body=st.binary(max_size=50))
def test_a_body_without_a_mark_comes_back_without_one(body: bytes) -> None:
    text = message_text.write(body, (), usual=BASE64)

    content = message_text.read(text, expected=BASE64, usual=BASE64)

    assert (content.body, content.headers) == (body, ())


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "Grüße",
        "aGVsbG8",  # no padding
        "aGVsbG9=",  # bits that no encoder sets
        "aGVs\nbG8=",
        " aGVsbG8=",
        "aGVs-_8=",
    ],
)
def test_text_that_base64_would_not_restore_is_plain(text: str) -> None:
    content = message_text.read(text, expected=BASE64, usual=BASE64)

    assert (content.body, content.headers) == (text.encode(), MARKED_PLAIN)


def test_a_message_is_marked_only_where_its_encoding_is_unusual() -> None:
    read = {
        (expected, usual): message_text.read("dGVzdA==", expected=expected, usual=usual)
        for expected in Encoding
        for usual in Encoding
    }

    assert read[BASE64, BASE64].headers == ()
    assert read[BASE64, PLAIN].headers == MARKED_BASE64
    assert read[PLAIN, BASE64].headers == read[PLAIN, PLAIN].headers == MARKED_PLAIN


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"a\0b", r"U\+0000 at 1"),
        (b"\x1b[31m", r"U\+001B at 0"),
        ("ab\ufffe".encode(), r"U\+FFFE at 2"),
        (b"\xff", "not UTF-8"),
        (b"\xed\xa0\x80", "not UTF-8"),
    ],
)
def test_plain_text_that_xml_cannot_carry_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why):
        message_text.write(body, MARKED_PLAIN, usual=BASE64)
    with pytest.raises(Refused, match=why):
        message_text.write(body, (), usual=PLAIN)

    written = message_text.write(body, (), usual=BASE64)

    assert base64.b64decode(written) == body


@pytest.mark.parametrize(
    ("largest", "headers"),
    [
        (b"x" * LARGEST_BODY, ()),
        (b"x" * LARGEST_TEXT, MARKED_PLAIN),
    ],
)
def test_the_limit_is_of_the_text(largest: bytes, headers: tuple[Header, ...]) -> None:
    text = message_text.write(largest, headers, usual=BASE64)

    assert len(text) == LARGEST_TEXT
    with pytest.raises(Refused, match="65,536 bytes"):
        message_text.write(largest + b"x", headers, usual=BASE64)


def test_the_limit_counts_bytes_and_not_letters() -> None:
    with pytest.raises(Refused, match="makes 65,538 of"):
        message_text.write("é".encode() * 32_769, MARKED_PLAIN, usual=BASE64)


def test_headers_are_refused_by_name() -> None:
    headers = tuple((b"h%d" % n, b"v") for n in range(7))

    with pytest.raises(Refused, match="'h0', 'h1', 'h2', 'h3', 'h4' and 2 more"):
        message_text.write(b"body", headers, usual=BASE64)
    with pytest.raises(Refused) as refused:
        message_text.write(b"body", ((b"a\r\nb: \xff", b"v"),), usual=BASE64)

    assert "\n" not in str(refused.value)
    assert r"'a\r\nb: " in str(refused.value)


def test_our_own_redrive_mark_is_left_out() -> None:
    mark = (b"X-PoisonWeb-Redrive", b"1.abc")

    text = message_text.write(b"body", (*MARKED_PLAIN, mark), usual=BASE64)

    assert text == "body"


def test_an_unknown_mark_is_refused() -> None:
    for value in (b"utf-16", b"\xff", b""):
        with pytest.raises(Refused, match="base64 or none"):
            headers = ((b"x-azure-message-encoding", value),)
            message_text.write(b"body", headers, usual=BASE64)


def test_the_largest_body_of_the_adapter_is_that_of_plain_text() -> None:
    largest = ADAPTER.capabilities.largest_body

    assert message_text.write(b"x" * largest, MARKED_PLAIN, usual=BASE64)
    for mark in (MARKED_PLAIN, MARKED_BASE64):
        with pytest.raises(Refused):
            message_text.write(b"x" * (largest + 1), mark, usual=BASE64)
