from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.brokers.adapter_contract import Header
from apps.brokers.adapters.redis_streams.entries import join_body, split_body
from apps.brokers.redis_stream_ids import seq_of

BODY = b"body"

names = st.sampled_from([BODY, b"a", b""]) | st.binary(max_size=3)
values = st.sampled_from([b"", b"x"]) | st.binary(max_size=3)
entries = st.lists(st.tuples(names, values), max_size=6).map(tuple)


@given(entries)
def test_join_undoes_split_for_every_entry(fields: tuple[Header, ...]) -> None:
    body, headers = split_body(fields, body_field=BODY)

    assert join_body(body, headers, body_field=BODY) == fields


def test_a_body_in_first_place_needs_no_mark() -> None:
    body, headers = split_body(((BODY, b"x"), (b"a", b"1")), body_field=BODY)

    assert (body, headers) == (b"x", ((b"a", b"1"),))


def test_an_empty_header_of_its_name_marks_the_place_of_the_body() -> None:
    body, headers = split_body(((b"a", b"1"), (BODY, b"x")), body_field=BODY)

    assert (body, headers) == (b"x", ((b"a", b"1"), (BODY, b"")))


@pytest.mark.parametrize(
    ("bookmark", "seq"),
    [
        (b"0-0", 0),
        (b"0-1", 1),
        (b"1-0", 2**20),
        (b"1700000000000-7", (1700000000000 << 20) + 7),
        # With more entries in a millisecond than the bits count, it stays below the
        # next.
        (b"1-99999999", 2**21 - 1),
        (b"18446744073709551615-18446744073709551615", 2**63 - 2),
    ],
)
def test_a_stream_id_becomes_one_number(bookmark: bytes, seq: int) -> None:
    assert seq_of(bookmark) == seq
