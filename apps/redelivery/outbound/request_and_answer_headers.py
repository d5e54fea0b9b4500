"""Headers on their way through the gateway: to the back end, and back to the caller.

Names and values stay as they came, in their order, with duplicates. Hop-by-hop headers
(RFC 9110, 7.6.1) end here, and so do those that `Connection` names, the framing, which
each connection writes for itself, and the credentials of Poisonweb.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
_KEY_NAME = IDEMPOTENCY_KEY.lower()

_NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_NAME_CHARACTERS = bytes(each for each in range(256) if _NAME.fullmatch(bytes([each])))
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_OWN_KEY = re.compile(rb"\s*bearer\s+pw_", re.IGNORECASE)


def request_headers(
    inbound: Iterable[Header], *, delivery_id: str
) -> tuple[list[Header], bytes]:
    """Return the headers that every attempt of a delivery sends.

    Beside them the caller's `Idempotency-Key`; b"" without one that goes on. `Host` and
    `Content-Length` are not among them: `HttpCaller` writes these. Raises Invalid for
    what is no header or too much, and GatewayLoop for a request that came through too
    many gateways.
    """
    headers = checked_headers(inbound)
    values = _values_by_name(headers)
    hops = _hop_count(values) + 1
    if hops > MOST_HOPS:
        raise GatewayLoop
    removed = _named_by_connection(values)
    callers_key = b"" if _KEY_NAME in removed else _idempotency_key(values)
    if not callers_key:
        removed.add(_KEY_NAME)
    ending = {
        name
        for name in values
        if name in _ENDING or name in removed or name.startswith(OWN_PREFIX)
    }
    outbound = [header for header in headers if header[0].lower() not in ending]
    if b"cookie" in values:
        outbound = list(_without_own_cookies(outbound))
    if b"authorization" in values:
        outbound = [header for header in outbound if not _has_own_key(header)]
    id_ = delivery_id.encode("ascii")
    if not callers_key:
        outbound.append((IDEMPOTENCY_KEY, id_))
    outbound.append((DELIVERY, id_))
    outbound.append((HOPS, b"%d" % hops))
    return outbound, callers_key


def answer_headers(headers: Sequence[Header]) -> list[Header]:
    """Return the headers of a back end's answer that its caller gets.

    `Content-Length` is among them: the body is passed on byte for byte. Beside
    `Transfer-Encoding` it says nothing (RFC 9112, 6.3), and ends here. A back end
    cannot set the cookies of our pages.
    """
    values = _values_by_name(headers)
    removed = HOP_BY_HOP | _named_by_connection(values)
    if b"transfer-encoding" in values:
        removed |= {b"content-length"}
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in removed and not _sets_own_cookie(name, value)
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


def _values_by_name(headers: Iterable[Header]) -> dict[bytes, list[bytes]]:
    """Return the values of headers, in their order, by the name in small letters."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name.lower(), []).append(value)
    return values


def _hop_count(headers: Mapping[bytes, Sequence[bytes]]) -> int:
    """Return how many gateways the request has passed, by its header of ours.

    Raises Invalid if that is no number.
    """
    values = headers.get(HOPS)
    if not values:
        return 0
    # Two digits are more than any limit.
    if len(values) > 1 or not re.fullmatch(rb"[0-9]{1,2}", values[0]):
        raise Invalid("headers", f"{HOPS.decode()} is not one number from 0 to 99.")
    return int(values[0])


def _idempotency_key(headers: Mapping[bytes, Sequence[bytes]]) -> bytes:
    """Return the caller's `Idempotency-Key`, or b""; raise Invalid for two."""
    values = headers.get(_KEY_NAME, [b""])
    if len(values) > 1:
        raise Invalid("headers", f"send one {IDEMPOTENCY_KEY.decode()}, not several.")
    return values[0]


def _has_own_key(header: Header) -> bool:
    """Tell whether a header is an `Authorization` with a key of Poisonweb."""
    name, value = header
    return name.lower() == b"authorization" and _OWN_KEY.match(value) is not None


def _named_by_connection(headers: Mapping[bytes, Sequence[bytes]]) -> set[bytes]:
    """Return the header names, in small letters, that `Connection` lists."""
    return {
        option.strip(b" \t").lower()
        for value in headers.get(b"connection", ())
        for option in value.split(b",")
    }


def _own_cookies() -> set[bytes]:
    names = (settings.SESSION_COOKIE_NAME, settings.CSRF_COOKIE_NAME)
    return {name.encode("ascii") for name in names}


def _cookie_name(pair: bytes) -> bytes:
    return pair.partition(b"=")[0].strip()


def _sets_own_cookie(name: bytes, value: bytes) -> bool:
    return name.lower() == b"set-cookie" and _cookie_name(value) in _own_cookies()


def _without_own_cookies(headers: Iterable[Header]) -> Iterator[Header]:
    """Yield headers; cut our pages' session cookies out of those of `Cookie`."""
    for name, value in headers:
        if name.lower() != b"cookie":
            yield name, value
            continue
        own = _own_cookies()
        if own.isdisjoint(map(_cookie_name, value.split(b";"))):
            yield name, value
            continue
        others = [part for part in value.split(b";") if _cookie_name(part) not in own]
        if others:
            yield name, b";".join(others).strip()
