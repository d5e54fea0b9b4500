"""How long a page may wait for Celery's broker; each transport has words of its own."""

from __future__ import annotations

SECONDS = 1

_REDIS = {"socket_connect_timeout": SECONDS, "socket_timeout": SECONDS}
_AMQP = {"connect_timeout": SECONDS, "read_timeout": SECONDS, "write_timeout": SECONDS}
_BY_SCHEME = {"redis": _REDIS, "rediss": _REDIS, "amqp": _AMQP, "amqps": _AMQP}


def impatient(url: str) -> dict[str, int]:
    """Give the transport options that end a wait after a second, for a broker's URL."""
    return dict(_BY_SCHEME.get(url.partition(":")[0], {}))
