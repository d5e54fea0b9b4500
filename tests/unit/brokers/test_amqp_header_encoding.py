"""AMQP messages leave with their properties, less those that steer the broker."""

from __future__ import annotations

import random
import struct

import pytest

from apps.brokers.adapter_contract import Header
from apps.brokers.adapters.rabbitmq import amqp_properties as properties
from apps.brokers.adapters.rabbitmq import amqp_table as tables
from apps.brokers.adapters.rabbitmq.amqp_table import AmqpMalformed


def named(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


def sized(letter: bytes, content: bytes) -> bytes:
    return letter + struct.pack(">I", len(content)) + content


VALUES = {
    "a long string": (sized(b"S", b"text"), b"text"),
    "an empty long string": (sized(b"S", b""), b""),
    "a long string that is not UTF-8": (sized(b"S", b"\xff\0"), b"\xff\0"),
    "a long string of digits": (sized(b"S", b"5"), b"5"),
    "a long string of other JSON": (sized(b"S", b'{"a":1}'), b'{"a":1}'),
    "a long string like a number": (
        sized(b"S", b'{"$I": 5}'),
        rb'{"$S": "{\"$I\": 5}"}',
    ),
    "a long string like an escape": (
        sized(b"S", rb'{"$S": "{\"$I\": 5}"}'),
        rb'{"$S": "{\"$S\": \"{\\\"$I\\\": 5}\"}"}',
    ),
    "a byte": (b"b\xff", b'{"$b": -1}'),
    "an unsigned byte": (b"B\xff", b'{"$B": 255}'),
    "a short": (b"s\xff\xff", b'{"$s": -1}'),
    "an unsigned short": (b"u\xff\xff", b'{"$u": 65535}'),
    "an integer": (b"I\0\0\0\5", b'{"$I": 5}'),
    "an unsigned integer": (b"i\xff\xff\xff\xff", b'{"$i": 4294967295}'),
    "a long": (b"l" + struct.pack(">q", -(2**63)), b'{"$l": -9223372036854775808}'),
    "a float": (b"f" + struct.pack(">f", 0.1), b'{"$f": 0.10000000149011612}'),
    "a double": (b"d" + struct.pack(">d", 0.1), b'{"$d": 0.1}'),
    "minus nothing": (b"d" + struct.pack(">d", -0.0), b'{"$d": -0.0}'),
    "no number": (b"d\x7f\xf8\0\0\0\0\0\1", b'{"$raw": "ZH/4AAAAAAAB"}'),
    "a decimal": (b"D\2\0\0\1\x3a", b'{"$D": [2, 314]}'),
    "a moment": (b"T" + struct.pack(">Q", 2**64 - 1), b'{"$T": 18446744073709551615}'),
    "bytes": (sized(b"x", b"\xff\0"), b'{"$x": "/wA="}'),
    "yes": (b"t\1", b'{"$t": true}'),
    "yes, oddly": (b"t\2", b'{"$raw": "dAI="}'),
    "nothing": (b"V", b'{"$V": null}'),
    "an empty array": (sized(b"A", b""), b'{"$A": []}'),
    "an empty table": (sized(b"F", b""), b'{"$F": {}}'),
    "a dead letter's story": (
        sized(
            b"A",
            sized(
                b"F",
                named(b"count", b"l" + struct.pack(">q", 1))
                + named(b"reason", sized(b"S", b"rejected"))
                + named(b"time", b"T" + struct.pack(">Q", 1_700_000_000)),
            ),
        ),
        b'[{"count": 1, "reason": "rejected", "time": {"$T": 1700000000}}]',
    ),
    "a table with a name twice": (
        sized(b"F", named(b"a", b"t\1") + named(b"a", b"t\0")),
        b'{"$raw": "RgAAAAgBYXQBAWF0AA=="}',
    ),
    "a table like a type": (
        sized(b"F", named(b"$I", b"l" + struct.pack(">q", 5))),
        b'{"$raw": "RgAAAAwCJElsAAAAAAAAAAU="}',
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_any_type_is_decoded_and_encoded_back(name: str) -> None:
    value, text = VALUES[name]
    table = named(b"h", value)

    headers = tables.decode(table)

    assert headers == [(b"h", text)]
    assert tables.encode((b"h", text)) == table


@pytest.mark.parametrize("name", VALUES)
def test_a_text_that_looks_like_a_value_stays_a_text(name: str) -> None:
    value, json = VALUES[name]

    for text in (json, json + b" ", b" " + json, json.replace(b" ", b""), value):
        assert tables.decode(tables.encode((b"h", text))) == [(b"h", text)]


@pytest.mark.parametrize("depth", [10, 100, 20_000])
def test_a_table_of_any_depth_is_encoded_back(depth: int) -> None:
    value = b"t\1"
    for _ in range(depth):
        value = sized(b"A", value)
    table = named(b"h", value)

    (header,) = tables.decode(table)

    assert tables.encode(header) == table
    assert header[1].startswith(b'{"$raw"') is (depth > tables.DEEPEST)


@pytest.mark.parametrize(
    "table", [b"\1hZ", b"\1hS\0\0\0\5text", b"\1hI\0", b"\5h", b"\1hA\0\0\0\1Z"]
)
def test_malformed_tables_are_refused(table: bytes) -> None:
    if table == b"\1hA\0\0\0\1Z":
        # The array differs from what follows it, so it is kept as it is.
        assert tables.encode(*tables.decode(table)) == table
        return
    with pytest.raises(AmqpMalformed):
        tables.decode(table)


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(AmqpMalformed, match="255"):
        properties.encode([(b"n" * 256, b"v")])


EVERY_PROPERTY: tuple[Header, ...] = (
    (b"amqp.content_type", b"application/json"),
    (b"amqp.content_encoding", b"gzip"),
    (b"amqp.priority", b"7"),
    (b"amqp.correlation_id", b"\xff"),
    (b"amqp.reply_to", b""),
    (b"amqp.message_id", b"m-1"),
    (b"amqp.timestamp", b"18446744073709551615"),
    (b"amqp.type", b"order placed"),
    (b"amqp.app_id", b"shop"),
    (b"amqp.cluster_id", b"c"),
)
MARK = properties.MARK
OWN = (b"tenant", b"a")
LISTS: dict[str, tuple[Header, ...]] = {
    "nothing": (),
    "headers of its own": (OWN, OWN),
    "every property": EVERY_PROPERTY,
    "every property and headers": (*EVERY_PROPERTY, OWN),
    "properties out of order": tuple(reversed(EVERY_PROPERTY)),
    "a property behind a header": (OWN, EVERY_PROPERTY[0]),
    "a property twice": (EVERY_PROPERTY[0], EVERY_PROPERTY[0]),
    "a number that is none": ((b"amqp.priority", b"high"),),
    "a number that is too large": ((b"amqp.priority", b"256"),),
    "a number written oddly": ((b"amqp.priority", b"07"),),
    "a long property": ((b"amqp.type", b"t" * 256),),
    "a property that AMQP has not": ((b"amqp.x", b"y"),),
    "its delivery mode": ((b"amqp.delivery_mode", b"1"),),
    "an empty table": (MARK,),
    "marks": (MARK, MARK, MARK),
    "marks before a header": (MARK, MARK, OWN),
    "marks before a property": (MARK, MARK, EVERY_PROPERTY[3]),
    "a marked property": (EVERY_PROPERTY[0], MARK, EVERY_PROPERTY[3], OWN),
    "names as other brokers have them": ((b"user_id", b"7"), (b"expiration", b"0")),
    "what could be unread properties": ((b"amqp.properties", b"\0\0"),),
}


@pytest.mark.parametrize("name", LISTS)
def test_headers_come_back_as_they_were_sent(name: str) -> None:
    encoded = properties.encode(LISTS[name])

    assert properties.decode(encoded) == LISTS[name]


@pytest.mark.parametrize("seed", range(200))
def test_a_message_goes_out_as_it_came(seed: int) -> None:
    chance = random.Random(seed)
    names = [name for name, _ in EVERY_PROPERTY] + [MARK[0], b"h"]
    entries = [(chance.choice(names), chance.choice((b"", b"5"))) for _ in range(3)]
    flags, pieces = 1 << 12, [b"\2"]
    if chance.random() < 0.8:
        table = b"".join(map(tables.encode, entries[: chance.randrange(4)]))
        flags, pieces = flags | 1 << 13, [struct.pack(">I", len(table)) + table, b"\2"]
    if chance.random() < 0.5:
        flags, pieces = flags | 1 << 15, [b"\1t", *pieces]
    if chance.random() < 0.5:
        flags, pieces = flags | 1 << 7, [*pieces, b"\1m"]
    came = struct.pack(">H", flags) + b"".join(pieces)

    assert properties.encode(properties.decode(came)) == came


def test_headers_that_steer_the_broker_are_decoded_but_never_sent() -> None:
    headers: list[Header] = [
        (b"amqp.expiration", b"0"),
        (b"amqp.message_id", b"m-1"),
        (b"amqp.user_id", b"anna"),
        (b"CC", b'["victim"]'),
        (b"BCC", b'["victim"]'),
        (b"cc", b"me"),
        (b"x-delivery-count", b'{"$l": 3}'),
    ]

    decoded = properties.decode(properties.encode(headers))

    assert decoded == ((b"amqp.message_id", b"m-1"), (b"cc", b"me"))
    assert properties.decode(properties.encode(headers[3:5])) == ()


def test_a_transient_message_leaves_persistent() -> None:
    assert properties.encode(properties.decode(b"\x10\0\1")) == b"\x10\0\2"


def test_the_delivery_count_is_no_header_of_the_message() -> None:
    count = tables.encode((b"x-delivery-count", b'{"$l": 3}'))
    came = struct.pack(">HI", 1 << 13, len(count)) + count

    assert properties.decode(came) == ()


@pytest.mark.parametrize("broken", [b"", b"\x80\0", b"\x80\0\5abc", b"\0\0x", b"\0\1"])
def test_unreadable_properties_are_kept_and_not_sent(broken: bytes) -> None:
    headers = properties.decode(broken)

    assert headers == ((b"amqp.properties", broken),)
    with pytest.raises(AmqpMalformed):
        properties.encode(headers)


def test_the_message_id_is_the_property_and_no_header_of_that_name() -> None:
    real = (b"amqp.message_id", b"m-1")

    assert properties.message_id([EVERY_PROPERTY[0], real]) == b"m-1"
    assert properties.message_id([OWN, real]) == b""
    assert properties.message_id([MARK, real]) == b""


def test_a_message_id_is_a_property_wherever_the_others_stand() -> None:
    headers = (
        (b"name", b"v"),
        (b"amqp.priority", b"high"),  # no number: AMQP cannot carry it
        (b"amqp.app_id", b"shop"),
        (b"amqp.message_id", b"m-6"),
        (b"amqp.content_type", b"text/x"),
        (b"amqp.content_type", b"text/y"),
    )

    arranged = properties.with_message_id(headers, b"m-7")

    assert properties.message_id(arranged) == b"m-7"
    assert arranged == (
        (b"amqp.content_type", b"text/x"),
        (b"amqp.message_id", b"m-7"),
        (b"amqp.app_id", b"shop"),
        (b"name", b"v"),
        (b"amqp.priority", b"high"),
        (b"amqp.content_type", b"text/y"),
    )
    assert properties.decode(properties.encode(arranged)) == arranged
