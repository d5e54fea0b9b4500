"""Headers both ways through the gateway: to the back end, and back to the caller."""

from __future__ import annotations

import pytest
from django.conf import settings

from apps.brokers.adapter_contract import Header
from apps.core.errors import Invalid
from apps.redelivery.outbound import request_and_answer_headers
from apps.redelivery.outbound.errors import GatewayLoop
from apps.redelivery.outbound.request_and_answer_headers import (
    MOST_HEADER_BYTES,
    MOST_HEADERS,
    answer_headers,
    request_headers,
)

ID = "0f6e3c9a-9d3f-4a53-8f0e-3f6a3d1c2b10"
OWN = [
    (b"Idempotency-Key", ID.encode()),
    (b"x-poisonweb-delivery", ID.encode()),
    (b"x-poisonweb-hops", b"1"),
]


def outbound(*inbound: Header) -> list[Header]:
    return request_headers(inbound, delivery_id=ID)[0]


def test_headers_are_passed_on_raw_in_order_with_duplicates() -> None:
    inbound = [
        (b"X-Trace", b"2"),
        (b"accept", b"text/xml;q=0.9"),
        (b"X-Trace", b"1"),
        (b"x_under", b"a, b"),
        (b"SOAPAction", b'"urn:quote"'),
        (b"X-Empty", b""),
        (b"X-Latin", b"caf\xe9\ttab"),
        (b"User-Agent", b"caller/1"),
    ]

    assert outbound(*inbound) == [*inbound, *OWN]


@pytest.mark.parametrize(
    "header",
    [
        *(
            (b"Connection", b"close"),
            (b"Keep-Alive", b"timeout=5"),
            (b"TE", b"trailers"),
        ),
        *((b"Proxy-Connection", b"x"), (b"Proxy-Authorization", b"Basic YTpi")),
        *((b"Trailer", b"Expires"), (b"Transfer-Encoding", b"chunked")),
        *((b"UPGRADE", b"websocket"), (b"Proxy-Authenticate", b"Basic")),
        *(
            (b"Host", b"gateway"),
            (b"content-length", b"7"),
            (b"Expect", b"100-continue"),
        ),
        *((b"X-Poisonweb-Key", b"pw_local_x"), (b"x-poisonweb-redrive", b"1.f")),
        *((b"x-poisonweb-delivery", b"forged"), (b"X-POISONWEB-anything", b"")),
        *(
            (b"Authorization", b"Bearer pw_local_x"),
            (b"authorization", b" bearer  pw_"),
        ),
    ],
)
def test_what_is_for_this_hop_or_for_poisonweb_ends_here(header: Header) -> None:
    assert outbound(header, (b"A", b"b")) == [(b"A", b"b"), *OWN]


def test_the_back_ends_own_authorization_is_passed_on() -> None:
    headers = [(b"Authorization", b"Bearer eyJ"), (b"Authorization", b"Basic cHdfOng=")]

    assert outbound(*headers) == [*headers, *OWN]


def test_headers_that_connection_names_end_here() -> None:
    headers = outbound(
        (b"X-Hop", b"1"),
        (b"Connection", b"close, x-HOP ,,"),
        (b"x-other", b"2"),
        (b"connection", b"X-Other"),
        (b"X-End", b"3"),
    )

    assert headers == [(b"X-End", b"3"), *OWN]


def test_connection_cannot_take_away_what_the_gateway_adds() -> None:
    named = b"idempotency-key, x-poisonweb-delivery, x-poisonweb-hops"

    assert outbound((b"Connection", named)) == OWN


def test_the_callers_idempotency_key_is_kept() -> None:
    key = (b"idempotency-KEY", b'"a1"')

    assert outbound(key) == [key, *OWN[1:]]
    assert outbound((b"Idempotency-Key", b" ")) == OWN
    with pytest.raises(Invalid, match="send one Idempotency-Key"):
        outbound(key, (b"Idempotency-Key", b"b"))


def test_a_callers_key_that_connection_names_ends_here() -> None:
    key, connection = (b"Idempotency-Key", b"a1"), (b"Connection", b"idempotency-key")

    assert request_headers([key], delivery_id=ID)[1] == b"a1"
    assert request_headers([connection, key], delivery_id=ID)[1] == b""


def test_hops_are_counted_and_a_loop_is_refused() -> None:
    assert outbound((b"X-Poisonweb-Hops", b"4"))[-1] == (b"x-poisonweb-hops", b"5")
    with pytest.raises(GatewayLoop, match="passed through gateways too often"):
        outbound((b"X-Poisonweb-Hops", b"5"))


@pytest.mark.parametrize("values", [[b""], [b"-1"], [b"x"], [b"1" * 3], [b"1", b"1"]])
def test_an_unreadable_hop_count_is_refused(values: list[bytes]) -> None:
    with pytest.raises(Invalid, match="not one number from 0 to 99"):
        outbound(*((request_and_answer_headers.HOPS, value) for value in values))


@pytest.mark.parametrize(
    "header",
    [
        *(
            (b"", b"x"),
            (b"a b", b"x"),
            (b"a:", b"x"),
            (b"a\r\nb", b"x"),
            (b"\xe4", b"x"),
        ),
        *((b"a\0", b"x"), (b" a", b"x"), (b"a\n", b"x"), (b"(a)", b"x")),
        *((b"a", b"x\r\nb: c"), (b"a", b"x\rb"), (b"a", b"x\nb"), (b"a", b"\0")),
        *((b"a", b"x\x0bb"), (b"a", b"\x7f"), (b"a", b"b\n")),
    ],
)
def test_what_is_no_header_is_refused(header: Header) -> None:
    with pytest.raises(Invalid, match="control character|name of a header") as refusal:
        outbound(header)

    assert refusal.value.field == "headers"


def test_number_and_size_of_headers_are_bounded() -> None:
    outbound(*[(b"a", b"b")] * MOST_HEADERS)
    outbound((b"a", b"b" * (MOST_HEADER_BYTES - 5)))

    with pytest.raises(Invalid, match="send at most 200 of 100000 bytes"):
        outbound(*[(b"a", b"b")] * (MOST_HEADERS + 1))
    with pytest.raises(Invalid, match="send at most 200 of 100000 bytes"):
        outbound((b"a", b"b" * (MOST_HEADER_BYTES - 4)))


def test_the_session_of_our_pages_is_cut_out_of_cookies() -> None:
    session = settings.SESSION_COOKIE_NAME.encode()
    csrf = settings.CSRF_COOKIE_NAME.encode()

    headers = outbound(
        (b"Cookie", b"a=1;  b=2 ; c"),
        (b"cookie", b"a=1; " + session + b"=s3cret; b=2"),
        (b"Cookie", csrf + b"=t"),
    )

    assert headers == [(b"Cookie", b"a=1;  b=2 ; c"), (b"cookie", b"a=1; b=2"), *OWN]


def test_an_answer_comes_back_raw_but_for_hop_by_hop_headers() -> None:
    session = settings.SESSION_COOKIE_NAME.encode()
    passed_on = [
        (b"Set-Cookie", b"a=1; Path=/"),
        (b"Set-Cookie", b"b=2"),
        (b"Content-Encoding", b"gzip"),
        (b"WWW-Authenticate", b"Basic"),
    ]

    assert (
        answer_headers(
            [
                (b"Connection", b"X-Hop"),
                (b"Keep-Alive", b"timeout=5"),
                *passed_on,
                (b"Transfer-Encoding", b"chunked"),
                (b"content-length", b"3"),
                (b"x-hop", b"1"),
                (b"Set-Cookie", session + b"=fixed; Path=/"),
            ]
        )
        == passed_on
    )


def test_the_length_of_an_answer_is_passed_on_unless_it_is_chunked() -> None:
    length, chunked = (b"Content-Length", b"3"), (b"Transfer-Encoding", b"chunked")

    assert answer_headers([length]) == [length]
    assert answer_headers([length, chunked]) == []
