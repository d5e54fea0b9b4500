"""Which addresses an endpoint may lead to (protection from SSRF).

Link-local addresses, the metadata services of clouds, and reserved and multicast
networks are refused, whatever the operator says. A private network, or this machine
itself, needs a host in `POISONWEB_ENDPOINT_HOSTS`. Public hosts are allowed in any
case: unlike `POISONWEB_BROKER_HOSTS`, the list adds hosts and forbids no others, since
callers cannot choose a host; only who may change endpoints can.

`HostLookUps` checks every address of a name, and returns those to be dialled: the
caller connects to one of these, and does not look the name up again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network

from django.conf import settings

from apps.brokers.address_policy import (
    LINK_LOCAL,
    PRIVATE,
    HostPort,
    IPAddress,
    addresses_of,
    embedded_ipv4_or_itself,
    is_forbidden,
)
from apps.core.bounded_threads import BoundedThreads
from apps.core.errors import Invalid
from apps.redelivery.outbound.errors import RequestNotSent
from apps.redelivery.outbound.target_url import EndpointTarget

# All of IPv6 that is assigned to the public; brokers may be elsewhere.
PUBLIC_IPV6 = ip_network("2000::/3")
# More than there are endpoints: only callers who have left wait for others.
MOST_LOOK_UPS = 1_000
# For measurements between networks (RFC 2544); inside some companies it is in use.
NOT_PUBLIC = (*PRIVATE, ip_network("198.18.0.0/15"))


def check_target(target: EndpointTarget, *, field: str = "target") -> None:
    """Raise Invalid where the target leads to a forbidden address now.

    It looks the name up, so never call it in a transaction. A name without an address
    passes: calls will report it.
    """
    for address in sorted(addresses_of(target.host, resolve=True), key=str):
        if why := reason_against(target, address):
            raise Invalid(field, why)


class HostLookUps:
    """Look a host up once for all calls that wait for its addresses.

    A look-up takes as long as its server of names hangs, which is longer than a call
    waits. So it has a thread of its own, and each host one look-up at a time: those of
    other endpoints go on.
    """

    def __init__(self) -> None:
        self._threads = BoundedThreads(MOST_LOOK_UPS, name="look-up of a host")
        self._tasks: dict[tuple[str, int], asyncio.Task[list[str]]] = {}

    async def resolve(self, target: EndpointTarget) -> list[IPAddress]:
        """Return the host's allowed addresses, or raise RequestNotSent."""
        if _is_address(target.host):
            return allowed_addresses(target, [target.host])
        try:
            addresses = await asyncio.shield(self._task_for(target))
        except (OSError, UnicodeError) as error:
            raise RequestNotSent(f"{target.host} does not resolve: {error}.") from error
        return allowed_addresses(target, addresses)

    def _task_for(self, target: EndpointTarget) -> asyncio.Task[list[str]]:
        key = (target.host, target.port)
        if key not in self._tasks:
            task = self._tasks[key] = asyncio.create_task(self._look_up(*key))
            task.add_done_callback(partial(self._forget, key))
        return self._tasks[key]

    def _forget(self, key: tuple[str, int], task: asyncio.Task[list[str]]) -> None:
        """Remove a finished DNS look-up from those that calls share."""
        del self._tasks[key]
        if not task.cancelled():
            task.exception()

    async def _look_up(self, host: str, port: int) -> list[str]:
        answer = self._threads.start(
            partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        )
        if answer is None:
            raise RequestNotSent(
                f"{host} is not looked up: too many other hosts do not answer."
            )
        results = await asyncio.wrap_future(answer)
        return [str(sockaddr[0]).partition("%")[0] for *_, sockaddr in results]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def allowed_addresses(
    target: EndpointTarget, addresses: Iterable[str]
) -> list[IPAddress]:
    """Return the addresses that may be dialled; raise RequestNotSent for none."""
    reasons = []
    allowed = []
    for address in dict.fromkeys(map(ip_address, addresses)):
        if why := reason_against(target, address):
            reasons.append(why)
        else:
            allowed.append(address)
    if not allowed:
        raise RequestNotSent(reasons[0] if reasons else f"{target.host} leads nowhere.")
    return allowed


def reason_against(target: EndpointTarget, address: IPAddress) -> str:
    """Return why the target may not lead to an address; "" where it may."""
    address = embedded_ipv4_or_itself(address)
    if is_forbidden(address) or _is_unassigned(address):
        is_link_local = any(address in network for network in LINK_LOCAL)
        kind = "link-local or cloud metadata" if is_link_local else "reserved"
        return f"{target.host} leads to {address}, which is {kind}: use another host."
    if address.is_loopback:
        where = "to this machine itself"
    elif any(address in network for network in NOT_PUBLIC):
        where = "into a private network"
    else:
        return ""
    host_port = HostPort(target.host, target.port)
    if any(map(host_port.is_named_by, settings.POISONWEB_ENDPOINT_HOSTS)):
        return ""
    return (
        f"{target.host} leads {where}: the operator allows that by naming {host_port} "
        "in POISONWEB_ENDPOINT_HOSTS."
    )


def _is_unassigned(address: IPAddress) -> bool:
    """Tell whether an IPv6 address is neither public, nor private, nor this machine."""
    if not isinstance(address, IPv6Address) or address.is_loopback:
        return False
    return not any(address in network for network in (PUBLIC_IPV6, *NOT_PUBLIC))
