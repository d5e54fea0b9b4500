"""Timeouts for Celery's broker, in the options of each transport."""

from __future__ import annotations

SECONDS = 1

_REDIS = {"socket_connect_timeout": SECONDS, "socket_timeout": SECONDS}
_AMQP = {"connect_timeout": SECONDS, "read_timeout": SECONDS, "write_timeout": SECONDS}
_BY_SCHEME = {"redis": _REDIS, "rediss": _REDIS, "amqp": _AMQP, "amqps": _AMQP}


def timeouts(url: str) -> dict[str, int]:
    """Return transport options of Celery's broker that limit waits to a second."""
    return dict(_BY_SCHEME.get(url.partition(":")[0], {}))
