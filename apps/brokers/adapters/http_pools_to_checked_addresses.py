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
    """Return urllib3's pools for broker adapters, http and https, that use `dial`."""
    return {
        "http": derive_pool_class(HTTPConnectionPool, dial),
        "https": derive_pool_class(HTTPSConnectionPool, dial),
    }


def derive_pool_class(
    pool: type[HTTPConnectionPool], dial: Dial
) -> type[HTTPConnectionPool]:
    """Derive a broker adapter's class of HTTP pools, which connect by `dial`."""

    def connect(connection: HTTPConnection) -> socket.socket:
        """Connect a broker adapter's socket by `dial`; raise urllib3's own errors."""
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
