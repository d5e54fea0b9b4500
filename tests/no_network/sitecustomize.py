"""Python loads this by itself: what it runs dials no other machine, nor asks for one.

What installs packages may. The hook is asked before each connection of Python's own;
what a library in C dials (libpq, say) it cannot see.
"""

from __future__ import annotations

import errno
import socket
import sys
from ipaddress import ip_address
from typing import Any

NAMES = frozenset({"", "localhost", "localhost.localdomain", "ip6-localhost"})
DIALLING = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
ASKING = frozenset({"socket.getaddrinfo", "socket.gethostbyname"})


def hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in DIALLING:
        address = arguments[1]
        if isinstance(address, tuple) and not is_here(address[0]):
            raise PermissionError(errno.EACCES, f"a test dials {address[0]}")
    elif event in ASKING and not is_known(arguments[0]):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def is_here(host: Any) -> bool:
    """Tell whether an address, or the name of one, is this machine's."""
    name = text(host).partition("%")[0]
    if is_number(name) and ":" not in name:
        name = socket.inet_ntoa(socket.inet_aton(name))
    try:
        address = ip_address(name)
    except ValueError:
        return name.lower() in NAMES or name == socket.gethostname()
    return address.is_loopback or address.is_unspecified


def is_known(host: Any) -> bool:
    """Tell whether a name is resolved without another machine."""
    return host is None or is_number(text(host)) or is_here(host)


def is_number(name: str) -> bool:
    """Tell whether a text is an IP address, also short or hexadecimal."""
    try:
        socket.inet_aton(name)
    except OSError:
        return ":" in name
    return True


def text(host: Any) -> str:
    return host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)


def is_installing(words: list[str]) -> bool:
    """Tell whether this process is pip, wherever it lies."""
    parts = {part for word in words[:4] for part in word.split("/")}
    return bool({"pip", "pip3", "__pip-runner__.py"} & parts)


if __name__ == "sitecustomize" and not is_installing(sys.orig_argv):
    sys.addaudithook(hook)
