"""HTTP over connections that a `Dial` makes, which checks the address that it dials."""

from __future__ import annotations

import socket
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    NameResolutionError,
    NewConnectionError,
)

from apps.brokers.address_policy import Dial


def pools(dial: Dial) -> dict[str, type[HTTPConnectionPool]]:
    """Give urllib3's pools for http and https, whose connections `dial` makes."""
    return {
        "http": derived(HTTPConnectionPool, dial),
        "https": derived(HTTPSConnectionPool, dial),
    }


def derived(pool: type[HTTPConnectionPool], dial: Dial) -> type[HTTPConnectionPool]:
    """Derive a kind of pool, urllib3's or one made from it, that leaves dialling."""

    def connect(connection: HTTPConnection) -> socket.socket:
        """Raise what urllib3's own would, so that who calls need not know."""
        host, timeout = connection.host, connection.timeout
        seconds = timeout if isinstance(timeout, int | float) else None
        try:
            return dial(host, connection.port, seconds=seconds)
        except socket.gaierror as error:
            raise NameResolutionError(host, connection, error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(connection, f"{host} did not answer") from error
        except OSError as error:
            raise NewConnectionError(connection, f"no connection: {error}") from error

    changed: dict[str, Any] = {"_new_conn": connect}
    connection = type("Checked", (pool.ConnectionCls,), changed)
    return type("CheckedPool", (pool,), {"ConnectionCls": connection})
