from __future__ import annotations

import random
import socket

from poisonweb.embedded.errors import CannotStart

LOOPBACK = "127.0.0.1"

# Below Linux's ephemeral ports: from those, any outgoing connection could take the port
# of a server that is just being restarted.
CANDIDATES = range(20_000, 32_768)


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    for port in random.sample(CANDIDATES, k=100):
        if is_free(port):
            return port
    raise CannotStart("There is no free port between 20000 and 32767 on 127.0.0.1.")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do, so that a connection in TIME_WAIT does not count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
