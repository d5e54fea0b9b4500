"""Where an address that people enter may lead (SSRF): a guard in front of every broker.

Never to a link-local address, nor to one where a cloud tells a machine its secrets.
Where `POISONWEB_BROKER_HOSTS` names hosts, to no others. The address itself may stand
in the environment (`env:NAME`): it was given by who runs the server, and only its
options are checked. A broker's allow-list names what it used before these rules.
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

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    def is_named_by(self, pattern: str) -> bool:
        """Tell whether `host` or `host:port` stands for it; `*` is any text."""
        host, colon, port = pattern.rpartition(":")
        if not colon or pattern.endswith("]"):
            host, port = pattern, "*"
        named = matches(host.strip("[]").lower(), self.host)
        return named and port in {"*", str(self.port)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """All that one broker's address and options lead to.

    `is_trusted` tells that the address stands in the environment. `keeps_to_address`
    tells that options may name another host only with the operator's word: where a
    password goes with them, or whoever enters an option did not enter the address.
    """

    of_address: tuple[Place, ...]
    of_options: Mapping[str, Place]
    is_trusted: bool = False
    keeps_to_address: bool = False
    allowed: frozenset[str] = frozenset()

    @classmethod
    def read(
        cls,
        url: str,
        options: Mapping[str, object],
        *,
        is_trusted: bool = False,
        keeps_to_address: bool = False,
        allowed: Iterable[str] = (),
    ) -> Self:
        """Read an address in the clear; raises Invalid where it names no place."""
        return cls(
            of_address=tuple(places(url)),
            of_options=places_of_options(options),
            is_trusted=is_trusted,
            keeps_to_address=is_trusted or keeps_to_address,
            allowed=frozenset(allowed),
        )

    @property
    def places(self) -> list[Place]:
        return [*self.of_address, *self.of_options.values()]

    def check(self, *, resolve: bool) -> None:
        """Raise Invalid where an address or an option must not lead.

        To `resolve` asks for the address behind each name, so never in a transaction.
        What has none leads nowhere: its client will say so.
        """
        for place in () if self.is_trusted else self.of_address:
            self._check(place, "url", resolve=resolve)
        known = {place.host for place in self.of_address}
        for option, place in self.of_options.items():
            if place.host in known and self.is_trusted:
                continue
            if place.host not in known and self.keeps_to_address:
                self._require_word(place, option)
            self._check(place, "options", resolve=resolve)

    def _check(self, place: Place, field: str, *, resolve: bool) -> None:
        if settings.POISONWEB_BROKER_HOSTS and not self._has_word(place):
            raise Invalid(field, _not_allowed(place))
        if any(map(is_forbidden, addresses_of(place.host, resolve=resolve))):
            raise Invalid(field, f"{place.host} leads to where no broker is.")

    def _require_word(self, place: Place, option: str) -> None:
        if not self._has_word(place):
            raise Invalid(
                "options",
                f"{option} names {place.host}, which is another host than that of the "
                "address: name that host in POISONWEB_BROKER_HOSTS, or leave the "
                "option out.",
            )

    def _has_word(self, place: Place) -> bool:
        named: Iterable[str] = settings.POISONWEB_BROKER_HOSTS
        return str(place) in self.allowed or any(map(place.is_named_by, named))


def places(url: str) -> list[Place]:
    """List every place that an address leads to; raises Invalid where it names none."""
    found = list(_of_address(url))
    if not found:
        raise _unreadable()
    return found


def places_of_options(options: Mapping[str, object]) -> dict[str, Place]:
    """Give the place of each option that is an address, by the option's name."""
    urls = {name: str(value) for name, value in options.items() if "://" in str(value)}
    return {name: Place.of(url) for name, url in urls.items()}


def is_forbidden(address: IPAddress) -> bool:
    """Tell whether no broker may lead there, however the address is written."""
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


def addresses_of(host: str, *, resolve: bool) -> set[IPAddress]:
    """Give the addresses of a host; of a name only if they may be asked for."""
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


def _not_allowed(place: Place) -> str:
    return (
        f"{place.host} is not among the hosts of POISONWEB_BROKER_HOSTS: add it there, "
        "or put the address into the environment and enter env:BROKER_NAME."
    )
