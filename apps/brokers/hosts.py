"""Where an address that people enter may lead (SSRF): a guard in front of every broker.

Never to a link-local address, nor to one where a cloud tells a machine its secrets;
and where `POISONWEB_BROKER_HOSTS` names hosts, to no others. An address that stands in
the environment (`env:NAME`) was given by who runs the server, and is not asked.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

from django.conf import settings

from apps.core.errors import Invalid
from apps.core.patterns import matches

IPAddress = IPv4Address | IPv6Address

USUAL_PORTS = {"redis": 6379, "rediss": 6379, "amqp": 5672, "amqps": 5671}
USUAL_PORTS |= {"http": 80, "https": 443, "sqs": 443}
# Beside what is link-local: where clouds answer for any machine of theirs.
METADATA = frozenset(
    map(
        ip_address,
        (
            *("100.100.100.200", "168.63.129.16", "192.0.0.192"),
            *("fd00:ec2::254", "fd20:ce::254"),
        ),
    )
)
# IPv6 addresses whose last four bytes are an IPv4 one.
NAT64 = ip_network("64:ff9b::/96")
AZURE_SUFFIX = "core.windows.net"


@dataclass(frozen=True, slots=True)
class Place:
    """A host as it is written, and a port; None where nothing says which."""

    host: str
    port: int | None

    @classmethod
    def of(cls, url: str) -> Self:
        """Read it as the clients do; raises Invalid for what names no host."""
        try:
            parts = urlsplit(url)
            host, port = unquote(parts.hostname or ""), parts.port
        except ValueError:
            raise _unreadable() from None
        if parts.scheme == "sqs":  # its host is a region of Amazon
            host = f"sqs.{host}.amazonaws.com"
        return cls(_plain(host), port or USUAL_PORTS.get(parts.scheme))

    def is_named_by(self, pattern: str) -> bool:
        """Tell whether `host` or `host:port` stands for it; `*` is any text."""
        host, colon, port = pattern.rpartition(":")
        if not colon or pattern.endswith("]"):
            host, port = pattern, "*"
        named = matches(host.strip("[]").lower(), self.host)
        return named and port in {"*", str(self.port)}


def places(url: str, options: Mapping[str, object]) -> list[Place]:
    """List every place that an address with its options leads to."""
    named = [str(value) for value in options.values() if "://" in str(value)]
    found = [*_of_address(url), *map(Place.of, named)]
    if not found:
        raise _unreadable()
    return found


def check(url: str, options: Mapping[str, object], *, resolve: bool) -> None:
    """Raise Invalid where an address must not lead.

    To `resolve` asks for the address behind each name, so never in a transaction. What
    has none leads nowhere: its client will say so.
    """
    for place in places(url, options):
        if not _is_allowed(place):
            raise Invalid("url", _not_allowed(place.host))
        if any(map(is_forbidden, _addresses(place.host, resolve=resolve))):
            raise Invalid("url", f"{place.host} leads to where no broker is.")


def is_forbidden(address: IPAddress) -> bool:
    """Tell whether nobody may be led there, however the address is written."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            inner = IPv4Address(address.packed[-4:])
        if inner is not None:
            return is_forbidden(inner)
    return (
        address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address in METADATA
    )


def _is_allowed(place: Place) -> bool:
    allowed: Iterable[str] = settings.POISONWEB_BROKER_HOSTS
    return not allowed or any(place.is_named_by(pattern) for pattern in allowed)


def _addresses(host: str, *, resolve: bool) -> set[IPAddress]:
    # The resolver reads 0xA9FEA9FE and 2852039166 as addresses, too.
    flags = 0 if resolve else socket.AI_NUMERICHOST
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):
        return set()
    return {ip_address(str(where[0]).partition("%")[0]) for *_, where in found}


def _of_address(url: str) -> Iterator[Place]:
    """Read a URL, with those in its query, or a string of `Name=Value;` pairs."""
    head = url.partition("://")[0]
    if "=" not in head and "://" in url:
        yield Place.of(url)
        values = [value for _, value in parse_qsl(urlsplit(url).query)]
        yield from (Place.of(value) for value in values if "://" in value)
    else:
        yield from _of_pairs(dict(_pairs(url)))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for pair in text.split(";"):
        name, equals, value = pair.partition("=")
        if equals:
            yield name.strip().lower(), value.strip()


def _of_pairs(told: Mapping[str, str]) -> Iterator[Place]:
    yield from (Place.of(value) for value in told.values() if "://" in value)
    if told.get("usedevelopmentstorage", "").lower() == "true":
        yield Place("127.0.0.1", None)
    if "accountname" in told and "queueendpoint" not in told:
        suffix = told.get("endpointsuffix") or AZURE_SUFFIX
        yield Place(_plain(f"{told['accountname']}.queue.{suffix}"), 443)


def _plain(host: str) -> str:
    """Give a host in one spelling; raises Invalid for what only looks like one."""
    plain = host.lower().rstrip(".")
    if not plain or not plain.isascii() or set(plain) - set(_IN_A_HOST):
        raise _unreadable()
    return plain


_IN_A_HOST = "abcdefghijklmnopqrstuvwxyz0123456789-._:%"


def _unreadable() -> Invalid:
    # It is not quoted: it may hold a password.
    return Invalid("url", "it names no host that can be read, in plain ASCII.")


def _not_allowed(host: str) -> str:
    return (
        f"{host} is not among the hosts of POISONWEB_BROKER_HOSTS: add it there, "
        "or put the address into the environment and enter env:NAME."
    )
