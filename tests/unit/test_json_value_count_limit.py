"""JSON of too many values is refused before any of them is made."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor, wait
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings

from apps.api import bounded_json_parser
from apps.api.bounded_json_parser import LARGE, MOST_VALUES, BoundedJSONParser
from apps.api.request_exceptions import TooLarge, Unreadable

MIB = 1024 * 1024


def parse(raw: bytes) -> Any:
    request = SimpleNamespace(META={})
    return BoundedJSONParser().parse(BytesIO(raw), None, {"request": request})


@pytest.mark.parametrize("value", [b"[]", b"{}", b"1", b'""', b"null", b'{"a":1}'])
def test_too_many_values_of_any_kind_are_refused(value: bytes) -> None:
    raw = b"[" + b",".join([value] * (MOST_VALUES + 1)) + b"]"

    with pytest.raises(TooLarge, match="more than 1000000 values"):
        parse(raw)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * (8 * MIB),
        b"{," * (4 * MIB),
        b'\\"[' * (3 * MIB),
        b"\\\\," * (3 * MIB),
        b'\\n,\\"' * MIB,
        b"\\u005b," * MIB,
    ],
)
def test_signs_within_a_text_are_no_values(text: bytes) -> None:
    read = parse(b'{"message": "' + text + b'", "n": [1, 2]}')

    assert read["n"] == [1, 2]
    assert len(read["message"]) > MIB


def test_as_many_values_as_there_may_be_are_read() -> None:
    # The list itself begins one, too.
    assert len(parse(b"[" + b",".join([b"1"] * MOST_VALUES) + b"]")) == MOST_VALUES


def test_a_text_that_ends_within_a_string_is_bounded_as_well() -> None:
    with pytest.raises(TooLarge):
        parse(b"[" * (MOST_VALUES + 1) + b'"' + b"[" * MIB)


def test_a_message_of_the_largest_size_fits() -> None:
    largest = settings.POISONWEB_REQUEST_LIMIT

    assert len(parse(b'"' + b"," * (largest - 2) + b'"')) == largest - 2


def test_the_collector_rests_while_a_large_body_is_read_and_not_afterwards() -> None:
    collections = []

    def note(phase: str, _: object) -> None:
        collections.append(phase)

    gc.callbacks.append(note)
    try:
        parse(b"[" + b",".join([b"[]"] * (MOST_VALUES // 2 - 1)) + b"]")
        noted = list(collections)
    finally:
        gc.callbacks.remove(note)

    # One look afterwards, at all that is new; it would be hundreds.
    assert noted.count("start") <= 1
    assert gc.isenabled()
    with pytest.raises(Unreadable):
        parse(b"[" + b" " * LARGE)
    assert gc.isenabled()


def test_a_large_body_waits_for_another_one_and_a_small_body_does_not() -> None:
    large = b"[" + b" " * LARGE + b"]"
    with ThreadPoolExecutor(2) as threads:
        with bounded_json_parser._large_bodies:
            waiting = threads.submit(parse, large)

            assert threads.submit(parse, b"[]").result(30) == []
            assert not wait([waiting], 0.2).done

        assert waiting.result(30) == []
