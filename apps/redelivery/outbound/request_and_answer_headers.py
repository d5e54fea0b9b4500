"""Headers on their way through the gateway: to the back end, and back to the caller.

Names and values stay as they came, in their order, with duplicates. Hop-by-hop headers
(RFC 9110, 7.6.1) end here, and so do those that `Connection` names, the framing, which
each connection writes for itself, and the credentials of Poisonweb.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from django.conf import settings

from apps.brokers.adapter_contract import Header
from apps.core.errors import Invalid
from apps.redelivery.outbound.errors import GatewayLoop

MOST_HEADERS = 200
MOST_HEADER_BYTES = 100_000
MOST_HOPS = 5

IDEMPOTENCY_KEY = b"Idempotency-Key"
OWN_PREFIX = b"x-poisonweb-"
# A key is accepted here, so that `Authorization` can be the back end's.
KEY = OWN_PREFIX + b"key"
DELIVERY = OWN_PREFIX + b"delivery"
HOPS = OWN_PREFIX + b"hops"

HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer"),
        *(b"proxy-authenticate", b"proxy-authorization"),
        *(b"transfer-encoding", b"upgrade"),
    }
)
FRAMING = frozenset({b"host", b"content-length", b"expect"})
_ENDING = HOP_BY_HOP | FRAMING

_NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_NAME_CHARACTERS = bytes(each for each in range(256) if _NAME.fullmatch(bytes([each])))
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_OWN_KEY = re.compile(rb"\s*bearer\s+pw_", re.IGNORECASE)


def request_headers(inbound: Iterable[Header], *, delivery_id: str) -> list[Header]:
    """Return the headers that every attempt of a delivery sends.

    `Host` and `Content-Length` are not among them: `HttpCaller` writes these. Raises
    Invalid for what is no header or too much, and GatewayLoop for a request that came
    through too many gateways.
    """
    headers = checked_headers(inbound)
    hops = hop_count(headers) + 1
    if hops > MOST_HOPS:
        raise GatewayLoop
    removed = _ENDING | _named_by_connection(headers)
    outbound = [
        (name, value)
        for name, value in _without_own_cookies(headers, b"cookie")
        if not _ends_here(name.lower(), value, removed)
    ]
    if not idempotency_key(outbound):
        outbound = [pair for pair in outbound if not _is_named(pair, IDEMPOTENCY_KEY)]
        outbound.append((IDEMPOTENCY_KEY, delivery_id.encode("ascii")))
    outbound.append((DELIVERY, delivery_id.encode("ascii")))
    outbound.append((HOPS, b"%d" % hops))
    return outbound


def answer_headers(headers: Iterable[Header]) -> list[Header]:
    """Return the headers of a back end's answer that its caller gets.

    `Content-Length` is among them: the body is passed on byte for byte. Beside
    `Transfer-Encoding` it says nothing (RFC 9112, 6.3), and ends here. A back end
    cannot set the cookies of our pages.
    """
    headers = list(headers)
    removed = HOP_BY_HOP | _named_by_connection(headers)
    if any(_is_named(header, b"transfer-encoding") for header in headers):
        removed |= {b"content-length"}
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in removed
        and not (
            name.lower() == b"set-cookie" and _cookie_name(value) in _own_cookies()
        )
    ]


def checked_headers(headers: Iterable[Header]) -> list[Header]:
    """Return headers without blanks around their values; raise Invalid for others."""
    checked = [(name, value.strip(b" \t")) for name, value in headers]
    names = b"".join([name for name, _ in checked])
    values = b"".join([value for _, value in checked])
    size = len(names) + len(values) + 4 * len(checked)
    if len(checked) > MOST_HEADERS or size > MOST_HEADER_BYTES:
        raise Invalid(
            "headers",
            f"there are {len(checked)} of {size} bytes: send at most {MOST_HEADERS} of "
            f"{MOST_HEADER_BYTES} bytes in all.",
        )
    # All at once: each of them is looked at only where one is wrong.
    if names.translate(None, _NAME_CHARACTERS) or _CONTROL.search(values):
        _refuse(checked)
    if not all(name for name, _ in checked):
        _refuse(checked)
    return checked


def _refuse(headers: Iterable[Header]) -> None:
    """Raise Invalid for the first header whose name or value HTTP does not allow."""
    for name, value in headers:
        if not _NAME.fullmatch(name):
            raise Invalid("headers", f"{name[:40]!r} is not the name of a header.")
        if _CONTROL.search(value):
            raise Invalid(
                "headers",
                f"{name[:40].decode()} has a control character: remove CR, LF, NUL and "
                "the like.",
            )


def hop_count(headers: Iterable[Header]) -> int:
    """Return how many gateways the request has passed, by its header of ours.

    Raises Invalid if that is no number.
    """
    values = [value for name, value in headers if name.lower() == HOPS]
    if not values:
        return 0
    # Two digits are more than any limit.
    if len(values) > 1 or not re.fullmatch(rb"[0-9]{1,2}", values[0]):
        raise Invalid("headers", f"{HOPS.decode()} is not one number from 0 to 99.")
    return int(values[0])


def idempotency_key(headers: Iterable[Header]) -> bytes:
    """Return the caller's `Idempotency-Key`, or b""; raise Invalid for two."""
    values = [
        value for name, value in headers if _is_named((name, value), IDEMPOTENCY_KEY)
    ]
    if len(values) > 1:
        raise Invalid("headers", f"send one {IDEMPOTENCY_KEY.decode()}, not several.")
    return values[0] if values else b""


def callers_key(inbound: Iterable[Header]) -> bytes:
    """Return the `Idempotency-Key` that goes on to the back end; b"" without one.

    One that `Connection` names ends here.
    """
    inbound = list(inbound)
    is_removed = IDEMPOTENCY_KEY.lower() in _named_by_connection(inbound)
    return b"" if is_removed else idempotency_key(inbound)


def _is_named(header: Header, name: bytes) -> bool:
    return header[0].lower() == name.lower()


def _ends_here(name: bytes, value: bytes, removed: Collection[bytes]) -> bool:
    """Tell whether a header is not passed on: it is for this hop, or for Poisonweb."""
    is_own_key = name == b"authorization" and _OWN_KEY.match(value)
    return name in removed or name.startswith(OWN_PREFIX) or bool(is_own_key)


def _named_by_connection(headers: Sequence[Header]) -> frozenset[bytes]:
    """Return the header names, in small letters, that `Connection` lists."""
    values = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(
        option.strip(b" \t").lower() for value in values for option in value.split(b",")
    )


def _own_cookies() -> set[bytes]:
    names = (settings.SESSION_COOKIE_NAME, settings.CSRF_COOKIE_NAME)
    return {name.encode("ascii") for name in names}


def _cookie_name(pair: bytes) -> bytes:
    return pair.partition(b"=")[0].strip()


def _without_own_cookies(headers: Iterable[Header], header: bytes) -> Iterable[Header]:
    """Yield headers; cut our pages' session cookies out of those of this name."""
    for name, value in headers:
        if name.lower() != header:
            yield name, value
            continue
        own = _own_cookies()
        if own.isdisjoint(map(_cookie_name, value.split(b";"))):
            yield name, value
            continue
        others = [part for part in value.split(b";") if _cookie_name(part) not in own]
        if others:
            yield name, b";".join(others).strip()
