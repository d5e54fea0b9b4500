"""Show bodies as JSON, text and hex without changing them."""

from __future__ import annotations

import json

import pytest

from apps.dashboard.presentation.message_body import hexdump, view


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": [1, {"c": []}, {}], "d": 'x, {y}: "z"'},
        [[[]], [{}], [1, [2, [3]]]],
        "only text",
        None,
    ],
)
def test_lays_json_out_as_the_standard_library_does(value: object) -> None:
    text = json.dumps(value)

    body_view = view(text.encode(), size=len(text))

    assert body_view.pretty == json.dumps(value, indent=2)


def test_keeps_numbers_escapes_and_repeated_names_as_they_were_written() -> None:
    body = rb'{"n": 12345678901234567890123, "n": 1e400, "f": 2.50, "e": "\u202e\/"}'

    body_view = view(body, size=len(body))

    assert body_view.pretty == (
        '{\n  "n": 12345678901234567890123,\n  "n": 1e400,\n  "f": 2.50,\n'
        '  "e": "\\u202e\\/"\n}'
    )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"plain text", "not JSON"),
        (b'{"a": }', "not JSON"),
        (b"[" * 101 + b"]" * 101, "nested deeper than 100"),
        (b"[" * 60_000, "nested deeper than 100"),
        (b"ab\xff", "not UTF-8 at byte 2"),
    ],
)
def test_says_why_a_body_is_not_laid_out(body: bytes, why: str) -> None:
    body_view = view(body, size=len(body))

    assert (body_view.pretty, body_view.why) == (None, why)


def test_a_cut_through_a_character_is_no_fault_of_the_body() -> None:
    body = "ééé".encode()

    body_view = view(body[:5], size=len(body))

    assert (body_view.text, body_view.truncated) == ("éé", True)


def test_hex_shows_place_bytes_and_what_can_be_read() -> None:
    dump = hexdump(b"poison\x00\xff" + b"." * 8 + b"!")

    assert dump.splitlines() == [
        "00000000  70 6f 69 73 6f 6e 00 ff 2e 2e 2e 2e 2e 2e 2e 2e  poison..........",
        "00000010  21                                               !",
    ]
