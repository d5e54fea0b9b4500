from __future__ import annotations

import os
import random
import socket

from poisonweb.embedded.errors import CannotStart

LOOPBACK = "127.0.0.1"

# Below Linux's ephemeral ports, of which an outgoing connection could take the port of
# a server that is being restarted.
CANDIDATES = range(20_000, 32_768)


# The newest of these are enough: a server binds its port in seconds. They are file
# descriptors, which the kernel closes when the process ends.
RESERVED = 64
_reserved: list[int] = []


def free_port() -> int:
    """Return a free port of the loopback interface, reserved against other callers.

    A socket stays bound to the port without listening. The server can still bind it,
    because both set SO_REUSEADDR; another caller of this function cannot.
    """
    # Tests seed the global generator: two of them would get the same ports.
    for port in random.SystemRandom().sample(CANDIDATES, k=100):
        if (reservation := _reserve(port)) is not None:
            _reserved.append(reservation)
            if len(_reserved) > RESERVED:
                os.close(_reserved.pop(0))
            return port
    raise CannotStart("There is no free port between 20000 and 32767 on 127.0.0.1.")


def _reserve(port: int) -> int | None:
    """Bind a socket to a free loopback port; return its file number.

    Return None if another socket is bound to the port.
    """
    reservation = socket.socket()
    try:
        reservation.bind((LOOPBACK, port))
    except OSError:
        reservation.close()
        return None
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reservation.detach()


def is_free(port: int) -> bool:
    """Check that no server listens at a port of the loopback interface."""
    with socket.socket() as probe:
        # As servers do, so that a connection in TIME_WAIT does not count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
