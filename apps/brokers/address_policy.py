"""Rules for the hosts that an entered broker address may name (protection from SSRF).

No broker may lead to a link-local address or to a cloud's metadata service. A private
network or this machine needs the operator's permission. Where `POISONWEB_BROKER_HOSTS`
names hosts, no others are allowed. An address from the environment (`env:NAME`) was set
by the operator: only the options beside it are checked. A broker's allow-list names the
hosts that it used before these rules.

`Target.dial` checks the very address that it dials, so a name that later resolves to
another address (DNS rebinding) is checked again.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Protocol, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from django.conf import settings

from apps.core.errors import Invalid
from apps.core.wildcard_patterns import matches

IPAddress = IPv4Address | IPv6Address

# A cloud gives a machine the keys of its role here.
METADATA = "169.254.169.254:80"
USUAL_PORTS = {"redis": 6379, "rediss": 6379, "amqp": 5672, "amqps": 5671}
USUAL_PORTS |= {"pyamqp": 5672, "http": 80, "https": 443, "sqs": 443}
USUAL_PORTS |= {"postgres": 5432, "postgresql": 5432}
# Networks without brokers: link-local, and the metadata services of clouds;
LINK_LOCAL = tuple(
    map(
        ip_network,
        (
            *("169.254.0.0/16", "fe80::/10", "fec0::/10"),
            *("100.100.100.200/32", "168.63.129.16/32"),
            *("fd00:ec2::/32", "fd20:ce::254/128"),
        ),
    )
)
# and reserved, and multicast.
RESERVED = tuple(
    map(
        ip_network,
        (
            *("0.0.0.0/8", "192.0.0.0/24", "224.0.0.0/3", "::/128", "ff00::/8"),
            # Tunnels and translations whose other end cannot be told (RFC 4380, 8215).
            *("2001::/32", "64:ff9b:1::/48"),
        ),
    )
)
FORBIDDEN = (*LINK_LOCAL, *RESERVED)
NO_OTHERS = "which then allows no others"
PRIVATE = tuple(
    map(
        ip_network,
        (
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
            "fc00::/7",
        ),
    )
)
# IPv6 addresses whose last four bytes are an IPv4 one (RFC 6052, 4291).
ENDING_IN_IPV4 = (ip_network("64:ff9b::/96"), ip_network("::/96"))
NO_ADDRESS = IPv6Address(0)
THIS_MACHINE = IPv6Address(1)
AZURE_SUFFIX = "core.windows.net"
LONGEST_CONNECT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host as it is written, and a port; None where the address names no port."""

    host: str
    port: int | None

    @classmethod
    def of(cls, url: str) -> Self:
        """Parse an address's host and port; raise Invalid where it names no host."""
        try:
            parts = urlsplit(url)
            host, port = unquote(parts.hostname or ""), parts.port
        except ValueError:
            raise _invalid_address_error() from None
        if parts.scheme == "sqs":  # its host is a region of Amazon
            host = f"sqs.{host}.amazonaws.com"
        return cls(_normalized_host(host), port or USUAL_PORTS.get(parts.scheme))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    def is_named_by(self, pattern: str) -> bool:
        """Tell whether a pattern `host` or `host:port` matches this host and port.

        A pattern without a port matches any; `*` is any text.
        """
        port = _split_pattern(pattern)[1]
        ours = "" if self.port is None else str(self.port)
        return self.has_host_matching(pattern) and matches(port, ours)

    def has_host_matching(self, pattern: str) -> bool:
        """Tell whether this host matches a pattern's host, whatever the port."""
        return matches(_split_pattern(pattern)[0].strip("[]").lower(), self.host)


def _split_pattern(pattern: str) -> tuple[str, str]:
    """Split a pattern of broker hosts, `host` or `host:port`; no port becomes `*`."""
    host, colon, port = pattern.rpartition(":")
    return (pattern, "*") if not colon or pattern.endswith("]") else (host, port)


class Dial(Protocol):
    """Function that connects to a host and a port; raises OSError or `NotAllowed`."""

    def __call__(
        self, host: str, port: int, *, seconds: float | None
    ) -> socket.socket: ...


class NotAllowed(PermissionError):
    """The name resolves to an address that our clients must not connect to."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EACCES, why)

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """All hosts that a broker's address and options lead to.

    `is_trusted`: the address comes from the environment. `keeps_to_address`: options
    may name another host only with the operator's permission. That holds where a
    password is sent along, and where the person who enters an option did not enter the
    credentials: those come from the environment, or are the rights of this machine.
    """

    of_address: tuple[HostPort, ...] = ()
    of_options: Mapping[str, HostPort] = field(default_factory=dict)
    is_trusted: bool = False
    keeps_to_address: bool = False
    allowed: frozenset[str] = frozenset()

    @classmethod
    def of_broker(
        cls,
        url: str,
        options: Mapping[str, object],
        *,
        is_trusted: bool = False,
        keeps_to_address: bool = False,
        allowed: Iterable[str] = (),
    ) -> Self:
        """Collect the hosts that a broker's clear address and its options lead to.

        Raises Invalid where one of them names no host.
        """
        return cls(
            of_address=tuple(host_ports_in_url(url)),
            of_options=host_ports_in_options(options),
            is_trusted=is_trusted,
            keeps_to_address=is_trusted or keeps_to_address,
            allowed=frozenset(allowed),
        )

    @property
    def may_ask_metadata(self) -> bool:
        """Tell whether the operator lets this broker call as the machine's own role."""
        return self.is_trusted or METADATA in self.allowed

    @property
    def host_ports(self) -> list[HostPort]:
        """List the hosts and ports of a broker's address and options."""
        return [*self.of_address, *self.of_options.values()]

    def check(self, *, resolve: bool) -> None:
        """Raise Invalid where a broker's address or option leads to a forbidden host.

        `resolve` looks up the address of each name: never use it in a transaction. A
        name without an address passes, since its client will report it.
        """
        for host_port in () if self.is_trusted else self.of_address:
            self._check_host(host_port, "url", resolve=resolve)
        hosts = {host_port.host for host_port in self.of_address}
        for option, host_port in self.of_options.items():
            if host_port.host in hosts and self.is_trusted:
                continue
            if host_port.host not in hosts and self.keeps_to_address:
                self._require_allowed(host_port, option)
            self._check_host(host_port, "options", resolve=resolve)

    def dial(self, host: str, port: int, *, seconds: float | None) -> socket.socket:
        """Connect to the first allowed network address of a broker's host.

        Resolves the name once and checks each address before dialling it. Raises
        OSError as `socket.create_connection` does, `NotAllowed` among others.
        """
        host_port = HostPort(host.lower().rstrip("."), port)
        trouble: OSError = NotAllowed(f"{host} leads nowhere.")
        for family, kind, protocol, _, sockaddr in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            if why := self._reason_against(host_port, _address_in(sockaddr)):
                trouble = NotAllowed(why)
                continue
            try:
                return _connect(family, kind, protocol, sockaddr, seconds=seconds)
            except OSError as error:
                trouble = error
        raise trouble

    def allowed_addresses(self, host: str, port: int) -> list[IPAddress]:
        """Look up a broker's host; return the addresses that may be dialled.

        For clients that connect by themselves. Raises OSError for a name without an
        address, and `NotAllowed` where none of its addresses may be dialled.
        """
        host_port = HostPort(host.lower().rstrip("."), port)
        results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = dict.fromkeys(_address_in(sockaddr) for *_, sockaddr in results)
        reasons = {each: self._reason_against(host_port, each) for each in addresses}
        allowed = [each for each, why in reasons.items() if not why]
        if not allowed:
            raise NotAllowed(next(iter(reasons.values()), f"{host} leads nowhere."))
        return allowed

    def _check_host(self, host_port: HostPort, field: str, *, resolve: bool) -> None:
        """Raise Invalid where a broker's host is forbidden or not allowed."""
        if settings.POISONWEB_BROKER_HOSTS and not self._is_allowed(host_port):
            raise Invalid(field, _refusal_of_host(host_port))
        for address in addresses_of(host_port.host, resolve=resolve):
            if why := self._reason_against(host_port, address):
                raise Invalid(field, why)

    def _reason_against(self, host_port: HostPort, address: IPAddress) -> str:
        """Return why a network address may not be dialled; "" where it may."""
        address = embedded_ipv4_or_itself(address)
        if self.is_trusted and host_port.host in {
            address.host for address in self.of_address
        }:
            return ""
        if is_forbidden(address):
            kind = "reserved"
            if any(address in network for network in LINK_LOCAL):
                kind = "link-local or cloud metadata"
            reason = f"the host {host_port.host} leads to where no broker is"
            return f"{reason}: {address} is {kind}."
        if self._is_allowed(host_port):
            return ""
        if address.is_loopback and not settings.POISONWEB_LOOPBACK_BROKERS:
            return (
                f"the host {host_port.host} leads to this machine itself: set "
                "POISONWEB_LOOPBACK_BROKERS=1, or name it in POISONWEB_BROKER_HOSTS, "
                f"{NO_OTHERS}."
            )
        if any(address in network for network in PRIVATE):
            return (
                f"the host {host_port.host} leads into a private network: put the "
                "address into the environment and enter env:BROKER_NAME, or name the "
                f"host in POISONWEB_BROKER_HOSTS, {NO_OTHERS}."
            )
        return ""

    def _require_allowed(self, host_port: HostPort, option: str) -> None:
        """Raise Invalid where an option names a host that is not allowed."""
        if not self._is_allowed(host_port):
            raise Invalid(
                "options",
                f"the option {option} names {host_port.host}, which is another host "
                "than that of the address: leave the option out, or name that host in "
                f"POISONWEB_BROKER_HOSTS, {NO_OTHERS}.",
            )

    def _is_allowed(self, host_port: HostPort) -> bool:
        """Tell whether the operator, or the broker's own list, allows the host."""
        named: Iterable[str] = settings.POISONWEB_BROKER_HOSTS
        return str(host_port) in self.allowed or any(map(host_port.is_named_by, named))


# Dials only what is allowed by default: for addresses without a `Target`.
usual_dial: Dial = Target().dial


def host_ports_in_url(url: str) -> list[HostPort]:
    """List the hosts that a broker's address names; raise Invalid without one."""
    listed = list(_host_ports_of_address(url))
    if not listed:
        raise _invalid_address_error()
    return listed


def host_ports_in_options(options: Mapping[str, object]) -> dict[str, HostPort]:
    """Map the name of each broker option that is an address to its host and port."""
    urls = {name: str(value) for name, value in options.items() if "://" in str(value)}
    return {name: HostPort.of(url) for name, url in urls.items()}


def has_user(url: str) -> bool:
    """Tell whether a broker's address names a user, as in user@host."""
    try:
        return bool(urlsplit(url).username)
    except ValueError:
        return False


def embedded_ipv4_or_itself(address: IPAddress) -> IPAddress:
    """Return the IPv4 address inside an IPv6 one, or else the address itself.

    The rules for hosts of brokers and of the gateway's endpoints judge that address.
    """
    if isinstance(address, IPv4Address) or address in {NO_ADDRESS, THIS_MACHINE}:
        return address
    if any(address in network for network in ENDING_IN_IPV4):
        return IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


def is_forbidden(address: IPAddress) -> bool:
    """Tell whether no broker may lead to a network address, however it is written."""
    return any(embedded_ipv4_or_itself(address) in network for network in FORBIDDEN)


def addresses_of(host: str, *, resolve: bool) -> set[IPAddress]:
    """List the network addresses of a broker's or endpoint's host.

    Looks a name up only to `resolve`.
    """
    # The resolver also reads 0xA9FEA9FE and 2852039166 as addresses.
    flags = 0 if resolve else socket.AI_NUMERICHOST
    try:
        results = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):
        return set()
    return {_address_in(sockaddr) for *_, sockaddr in results}


def _address_in(sockaddr: tuple[str | int, ...] | tuple[int, bytes]) -> IPAddress:
    """Parse the IP address of a socket address, without its zone."""
    return ip_address(str(sockaddr[0]).partition("%")[0])


def _connect(
    family: int,
    kind: int,
    protocol: int,
    sockaddr: tuple[str | int, ...] | tuple[int, bytes],
    *,
    seconds: float | None,
) -> socket.socket:
    """Connect a socket to one address of a broker, with keepalive and without delay."""
    connection = socket.socket(family, kind, protocol)
    try:
        connection.settimeout(LONGEST_CONNECT_SECONDS if seconds is None else seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.connect(sockaddr)
    except BaseException:
        connection.close()
        raise
    return connection


def _host_ports_of_address(url: str) -> Iterator[HostPort]:
    """List hosts of a URL and its query, or of a string of `Name=Value;` pairs."""
    head = url.partition("://")[0]
    if "=" not in head and "://" in url:
        yield HostPort.of(url)
        values = [value for _, value in parse_qsl(urlsplit(url).query)]
        yield from (HostPort.of(value) for value in values if "://" in value)
    else:
        yield from _host_ports_of_pairs(dict(_pairs(url)))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a string of `name=value;`, names in small letters."""
    for pair in text.split(";"):
        name, equals, value = pair.partition("=")
        if equals:
            yield name.strip().lower(), value.strip()


def _host_ports_of_pairs(pairs: Mapping[str, str]) -> Iterator[HostPort]:
    """Yield the hosts that a connection string of Azure names or implies."""
    yield from (HostPort.of(value) for value in pairs.values() if "://" in value)
    if pairs.get("usedevelopmentstorage", "").lower() == "true":
        yield HostPort("127.0.0.1", None)
    if "accountname" in pairs and "queueendpoint" not in pairs:
        suffix = pairs.get("endpointsuffix") or AZURE_SUFFIX
        yield HostPort(_normalized_host(f"{pairs['accountname']}.queue.{suffix}"), 443)


def _normalized_host(host: str) -> str:
    """Normalize the spelling of a host; raise Invalid for what is no host name."""
    plain = host.lower().rstrip(".")
    if not plain or not plain.isascii() or set(plain) - set(_IN_A_HOST):
        raise _invalid_address_error()
    return plain


_IN_A_HOST = "abcdefghijklmnopqrstuvwxyz0123456789-._:%"


def _invalid_address_error() -> Invalid:
    """Build the error of a broker's address without a readable host."""
    # The address is not quoted: it may hold a password.
    return Invalid("url", "it names no readable host in plain ASCII.")


def _refusal_of_host(host_port: HostPort) -> str:
    """Say why a broker's host is not allowed, and how to allow it."""
    reason = f"{host_port} is not among the hosts of POISONWEB_BROKER_HOSTS"
    if any(map(host_port.has_host_matching, settings.POISONWEB_BROKER_HOSTS)):
        reason = f"{host_port} is in POISONWEB_BROKER_HOSTS with another port"
    return (
        f"the host {reason}: add it there, or put the address into the environment and "
        "enter env:BROKER_NAME."
    )
