"""The resolver of the tests: it knows this machine, and no other.

So no test asks another machine for a name; pytest-socket stops what would dial one.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

HERE = frozenset({"", "localhost", "localhost.localdomain", "ip6-localhost"})
_usual: Any = socket.getaddrinfo


def install() -> None:
    socket.getaddrinfo = resolve


def resolve(host: Any, *rest: Any, **options: Any) -> Any:
    """Give the addresses of this machine, or of a number; raise gaierror for others."""
    if host is None or _is_known(_text(host)):
        return _usual(host, *rest, **options)
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def _is_known(name: str) -> bool:
    return name.lower() in HERE or name == socket.gethostname() or _is_number(name)


def _is_number(name: str) -> bool:
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return _is_odd_number(name)
    return True


def _is_odd_number(name: str) -> bool:
    """Tell whether a text is an IPv4 address, short or hexadecimal."""
    try:
        socket.inet_aton(name)
    except (OSError, ValueError):
        return False
    return True


def _text(host: str | bytes) -> str:
    return host.decode("ascii", "replace") if isinstance(host, bytes) else host
