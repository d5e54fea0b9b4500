from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.brokers.adapter_contract import Header, Outbound
from apps.brokers.adapters.sqs.messages import LARGEST, SqsEntry, content_of, entry_of
from apps.core.errors import Refused

NAMES = st.from_regex(
    r"[a-z][a-z0-9_-]{0,8}(\.[a-z0-9_-]{1,4})?", fullmatch=True
).filter(lambda name: not name.startswith(("aws.", "amazon.")))
KEPT = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
TEXT = st.text(KEPT | st.sampled_from("\t\n\r\x7f\x85"), min_size=1, max_size=40)


def message(
    body: bytes = b"x",
    headers: tuple[Header, ...] = (),
    *,
    topic: str = "orders",
    dedupe: str = "",
    key: str = "",
) -> Outbound:
    return Outbound(topic=topic, body=body, headers=headers, dedupe=dedupe, key=key)


def received(entry: SqsEntry) -> dict[str, Any]:
    """Return the message that SQS would hand out for this entry."""
    wire = entry.to_wire(0)
    group = wire.get("MessageGroupId")
    return {
        "Body": wire["MessageBody"],
        "MessageAttributes": wire.get("MessageAttributes", {}),
        "Attributes": {"MessageGroupId": group} if group else {},
    }


@given(st.binary(min_size=1, max_size=200))
def test_every_body_comes_back_and_goes_out_the_same_again(body: bytes) -> None:
    entry = entry_of(message(body))

    came, headers = content_of(received(entry))
    again = entry_of(message(came, headers))

    assert (came, headers) == (body, ())
    assert (again.body, again.attributes) == (entry.body, entry.attributes)


@given(
    TEXT | st.binary(min_size=1).map(lambda some: b64encode(some).decode()),
    st.sampled_from(["base64", "Base64", ""]),
    st.dictionaries(NAMES, TEXT, max_size=5),
)
def test_any_message_of_sqs_is_sent_back_unchanged(
    body: str, mark: str, texts: dict[str, str]
) -> None:
    attributes = {n: {"DataType": "String", "StringValue": t} for n, t in texts.items()}
    if mark:
        attribute = {"DataType": "String", "StringValue": mark}
        attributes["x-poisonweb-body"] = attribute
    stored = {"Body": body, "MessageAttributes": attributes}

    came, headers = content_of(stored)
    wire = entry_of(message(came, headers)).to_wire(0)

    assert wire["MessageBody"] == body
    assert wire.get("MessageAttributes", {}) == attributes


def test_a_type_belongs_to_the_message_and_not_to_its_headers_name() -> None:
    attributes = {
        "count": {"DataType": "Number", "StringValue": "1.50"},
        "zip": {"DataType": "Binary.gzip", "BinaryValue": b"\0"},
        "name": {"DataType": "String", "StringValue": "x"},
    }

    _, headers = content_of({"Body": "x", "MessageAttributes": attributes})

    assert headers == (
        (b"count", b"1.50"),
        (b"name", b"x"),
        (b"zip", b"\0"),
        (b"sqs:types", b'{"count":"Number","zip":"Binary.gzip"}'),
    )
    assert (
        entry_of(message(b"x", headers)).to_wire(0)["MessageAttributes"] == attributes
    )


def test_a_type_without_its_header_is_forgotten() -> None:
    entry = entry_of(message(b"x", ((b"sqs:types", b'{"x-attempts":"Number"}'),)))

    assert entry.attributes == {}


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b'{"a":1}', b"\xff", b"[" * 99_999]
)
def test_invalid_types_are_refused(value: bytes) -> None:
    with pytest.raises(Refused, match="sqs:types"):
        entry_of(message(b"x", ((b"sqs:types", value),)))


def test_the_size_is_what_sqs_counts() -> None:
    types = (b"sqs:types", b'{"n":"Number"}')
    entry = entry_of(message("ü".encode(), ((b"n", b"12"), (b"name", b"v"), types)))

    assert entry.size == 2 + len("n" + "Number" + "12") + len("name" + "String" + "v")


def test_the_size_of_a_base64_body_is_that_of_its_text() -> None:
    with pytest.raises(Refused, match=str(LARGEST)):
        entry_of(message(b"\0" * (LARGEST * 3 // 4)))


def test_the_trace_is_sent_along() -> None:
    trace = b"Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"
    system = {"AWSTraceHeader": trace.decode()}

    _, headers = content_of({"Body": "x", "Attributes": system})
    wire = entry_of(message(b"x", headers)).to_wire(0)

    assert wire["MessageSystemAttributes"] == {
        "AWSTraceHeader": {"DataType": "String", "StringValue": trace.decode()}
    }
    assert "MessageAttributes" not in wire


@pytest.mark.parametrize(
    ("header", "key", "dedupe", "group"),
    [
        ("tenant", "key", "poisonweb-1-1", "tenant"),
        ("", "key", "poisonweb-1-1", "key"),
        ("", "", "poisonweb-1-1", "poisonweb-1-1"),
    ],
)
def test_in_a_fifo_queue_every_message_has_a_group(
    header: str, key: str, dedupe: str, group: str
) -> None:
    headers = ((b"sqs:MessageGroupId", header.encode()),) if header else ()

    entry = entry_of(message(b"x", headers, topic="a.fifo", key=key, dedupe=dedupe))

    assert (entry.group, entry.dedupe) == (group, dedupe)


def test_an_invalid_group_or_dedupe_id_is_replaced_by_its_hash() -> None:
    odd = [
        entry_of(message(topic="a.fifo", key=k)).group for k in ("ü", "a b", "x" * 129)
    ]

    assert {len(group) for group in odd} == {64}
    assert len(set(odd)) == 3
    assert odd[0] == entry_of(message(topic="a.fifo", key="ü")).group


def test_each_message_without_a_dedupe_id_gets_its_own() -> None:
    one, two = (entry_of(message(topic="a.fifo")) for _ in "ab")

    assert one.dedupe != two.dedupe
    assert one.group != two.group


def test_a_standard_queue_gets_neither_a_dedupe_id_nor_a_key_for_a_group() -> None:
    entry = entry_of(message(dedupe="poisonweb-1-1", key="key"))

    assert (entry.group, entry.dedupe) == ("", "")
