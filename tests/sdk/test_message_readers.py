from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import AMPS
import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.brokers.adapters.redis_streams.entries import join_body
from poisonguard.readers import Reader, header_pairs, number_of
from poisonguard.readers.amps import AmpsReader
from poisonguard.readers.pika import PikaReader
from poisonguard.readers.plain import BytesReader, PlainReader
from poisonguard.readers.redis_streams import RedisStreamsReader

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
REDRIVE = "123e4567-e89b-12d3-a456-426614174000.0a1b"
SDK = Path(__file__).parents[2] / "sdk"


class LeastReader(Reader):
    """As few lines as a reader can be."""

    def bookmark(self, message: Any) -> str:
        return str(message[0])

    def body(self, message: Any) -> bytes:
        return bytes(message[1])


def test_a_reader_needs_only_two_methods() -> None:
    reader, message = LeastReader(), (7, b"body")

    assert reader.glance(message) == ("7", number_of("7"), False)
    assert (reader.body(message), reader.headers(message)) == (b"body", ())
    assert (reader.redrive(message), reader.enqueued_at(message)) == (None, None)


def test_a_number_is_the_same_in_every_process() -> None:
    code = "from poisonguard.readers import number_of; print(number_of('b-1'))"

    numbers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(SDK), "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert numbers == {str(number_of("b-1"))}


@given(st.text())
def test_a_number_fits_a_slot_and_is_never_the_empty_one(text: str) -> None:
    assert 0 < number_of(text) < 2**64


def test_names_that_differ_in_a_digit_or_two_have_numbers_of_their_own() -> None:
    names = [f"orders-{n:07d}" for n in range(20_000)]

    assert len({number_of(name) for name in names}) == len(names)


def test_half_a_surrogate_pair_has_a_number_too() -> None:
    assert number_of("\ud800") > 0


def test_header_values_of_any_kind_become_bytes() -> None:
    headers = {"a": "ä", b"b": b"\xff", "c": 7, "d": None, "e": {"x": [1]}, "f": NOON}

    pairs = dict(header_pairs(headers))

    assert pairs == {
        b"a": "ä".encode(),
        b"b": b"\xff",
        b"c": b"7",
        b"d": b"",
        b"e": b'{"x":[1]}',
        b"f": f'"{NOON}"'.encode(),
    }


# Plain


def test_reads_a_mapping() -> None:
    reader = PlainReader(bookmark="id", seq="offset", enqueued_at="at")
    message = {
        "id": 7,
        "offset": 0,
        "at": NOON.timestamp(),
        "body": "ä",
        "message_id": "m-1",
        "publisher": "p",
        "content_type": "text/plain",
        "headers": [("a", "1"), ("a", "2")],
    }

    assert reader.glance(message) == ("7", 1, False)
    assert (reader.bookmark(message), reader.number(message)) == ("7", 1)
    assert reader.body(message) == "ä".encode()
    assert reader.headers(message) == ((b"a", b"1"), (b"a", b"2"))
    assert reader.enqueued_at(message) == NOON
    assert (reader.publisher(message), reader.seq(message)) == ("p", 0)
    assert reader.message_id(message) == "m-1"
    assert reader.content_type(message) == "text/plain"


def test_a_mapping_without_a_body_is_its_own_body() -> None:
    assert PlainReader().body({"bookmark": "b", "n": 1}) == b'{"bookmark":"b","n":1}'


@pytest.mark.parametrize(
    "headers",
    [
        {"x-poisonweb-redrive": REDRIVE},
        {b"x-poisonweb-redrive": REDRIVE.encode()},
        [("other", "x"), ("x-poisonweb-redrive", REDRIVE)],
    ],
)
def test_finds_the_redrive_header_however_headers_are_given(headers: Any) -> None:
    reader, message = PlainReader(), {"bookmark": "b", "headers": headers}

    assert reader.redrive(message) == REDRIVE
    assert reader.glance(message)[2]


def test_glance_agrees_with_the_methods() -> None:
    message = {"bookmark": "b", "message_id": "m", "headers": {"a": "b"}}
    reader = PlainReader()

    assert reader.glance(message) == Reader.glance(reader, message)


def test_bytes_are_known_by_their_digest() -> None:
    reader = BytesReader()

    assert reader.bookmark(b"a") == reader.bookmark(b"a") != reader.bookmark(b"b")
    assert reader.body(b"a") == b"a"


# Redis Streams


def test_reads_an_entry_as_redis_py_returns_it() -> None:
    reader = RedisStreamsReader()
    entry = (b"1700000000000-3", {b"body": b"\xff", b"tag": b"a"})
    decoded = ("1700000000000-3", {"body": "x", "x-poisonweb-redrive": REDRIVE})

    assert reader.glance(entry) == (
        "1700000000000-3",
        (1700000000000 << 20 | 3) + 1,
        False,
    )
    assert (reader.body(entry), reader.headers(entry)) == (b"\xff", ((b"tag", b"a"),))
    assert reader.enqueued_at(entry) == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (reader.body(decoded), reader.redrive(decoded)) == (b"x", REDRIVE)


@pytest.mark.parametrize(
    ("fields", "message_id"),
    [
        ({b"message_id": "m-ü".encode()}, "m-ü"),
        ({"message_id": "m-7"}, "m-7"),
        ([(b"body", b"x"), (b"message_id", b"m-7")], "m-7"),
        ({b"message_id": b""}, None),
        ({b"message_id": b"\xff"}, None),
        ({b"body": b"x"}, None),
    ],
    ids=str,
)
def test_an_entry_has_its_message_id_in_a_field(
    fields: Any, message_id: str | None
) -> None:
    entry = (b"1700000000000-3", fields)

    assert RedisStreamsReader().message_id(entry) == message_id
    assert RedisStreamsReader(id_field=None).message_id(entry) is None
    # Copies are entries of their own.
    assert RedisStreamsReader().number(entry) == (1700000000000 << 20 | 3) + 1


def test_the_field_of_the_message_id_can_be_another() -> None:
    entry = (b"1-0", {b"message_id": b"m-7", b"order": b"o-7"})

    assert RedisStreamsReader(id_field="order").message_id(entry) == "o-7"


def test_a_producer_s_own_entry_id_has_a_number_and_no_time() -> None:
    reader = RedisStreamsReader()
    entry = (b"18446744073709551615-18446744073709551615", {b"a": b"b"})

    assert reader.seq(entry) == 2**63 - 2
    assert reader.enqueued_at(entry) is None


_NAMES = st.sampled_from([b"body", b"tag", b""])
_VALUES = st.sampled_from([b"", b"x", b"\xff"])


@given(st.lists(st.tuples(_NAMES, _VALUES), max_size=6))
def test_an_entry_can_be_put_together_again_as_it_was(
    fields: list[tuple[bytes, bytes]],
) -> None:
    reader, entry = RedisStreamsReader(), (b"1-0", fields)

    whole = join_body(reader.body(entry), reader.headers(entry), body_field=b"body")

    assert whole == tuple(fields)


# pika


def delivery(**properties: Any) -> tuple[Any, Any, bytes]:
    method = pika.spec.Basic.Deliver(consumer_tag="ctag1.a", delivery_tag=7)
    return method, pika.BasicProperties(**properties), b"body"


def test_reads_a_pika_delivery() -> None:
    reader = PikaReader()
    message = delivery(
        message_id="m-1",
        content_type="text/plain",
        timestamp=int(NOON.timestamp()),
        headers={"x-delivery-count": 2, "x-poisonweb-redrive": REDRIVE},
    )

    assert reader.glance(message) == ("m-1", number_of("m-1"), True)
    assert (reader.message_id(message), reader.body(message)) == ("m-1", b"body")
    assert reader.headers(message)[:2] == (
        (b"amqp.content_type", b"text/plain"),
        (b"amqp.message_id", b"m-1"),
    )
    assert (reader.redrive(message), reader.dequeue_count(message)) == (REDRIVE, 3)
    assert reader.enqueued_at(message) == NOON
    assert reader.content_type(message) == "text/plain"


def test_without_an_id_a_delivery_is_known_by_its_place_and_its_body() -> None:
    reader, message = PikaReader(), delivery()
    other = (SimpleNamespace(delivery_tag=8), message[1], message[2])

    assert reader.bookmark(message) == "ctag1.a/7/230d8358dc8e8890"
    assert reader.bookmark(other) == "get/8/230d8358dc8e8890"
    assert reader.number(message) == reader.number(other)
    assert (reader.message_id(message), reader.redrive(message)) == (None, None)
    assert (reader.dequeue_count(message), reader.enqueued_at(message)) == (None, None)


@pytest.mark.parametrize("timestamp", [2**63, -(2**62)])
def test_an_invalid_timestamp_is_none(timestamp: int) -> None:
    assert PikaReader().enqueued_at(delivery(timestamp=timestamp)) is None


# AMPS


def test_reads_an_amps_message() -> None:
    message = AMPS.Message()
    message.set_bookmark("13948331409633568391|7|")
    message.set_data('{"id": 13}')
    reader = AmpsReader()

    assert reader.bookmark(message) == "13948331409633568391|7|"
    assert reader.body(message) == b'{"id": 13}'
    assert (reader.publisher(message), reader.seq(message)) == (
        "13948331409633568391",
        7,
    )


@pytest.mark.parametrize("bookmark", ["", "0", "recent", "p|x|"])
def test_a_bookmark_without_a_sequence_has_none(bookmark: str) -> None:
    message = SimpleNamespace(
        get_bookmark=lambda: bookmark, get_data_raw=lambda: b"body"
    )

    reader = AmpsReader()
    assert (reader.publisher(message), reader.seq(message)) == (None, None)
    assert reader.bookmark(message)
