"""Refuse Celery's own broker as a message broker.

A stream under the name of Celery's queue would stop our worker, and Celery would take a
requeued message for a task. Another database or virtual host of the same server is
fine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit

from django.conf import settings

from apps.brokers.address_policy import HostPort, addresses_of
from apps.core.errors import Invalid

FAMILIES = {"redis": "redis", "rediss": "redis"}
# Celery also accepts the last name.
FAMILIES |= dict.fromkeys(("amqp", "amqps", "pyamqp"), "amqp")
LOOPBACK_NAME = "localhost"


@dataclass(frozen=True, slots=True)
class Store:
    """A database of a Redis, by its number, or a virtual host of a RabbitMQ."""

    host_port: HostPort
    family: str
    name: str

    @classmethod
    def of(cls, url: str) -> Self | None:
        """Parse which Redis database or RabbitMQ virtual host an address leads to.

        None for an unreadable address, or one of another kind.
        """
        try:
            parts = urlsplit(url)
            family = FAMILIES.get(parts.scheme)
            if family is None:
                return None
            return cls(
                HostPort.of(url), family, _store_name(family, unquote(parts.path))
            )
        except (ValueError, Invalid):
            return None


def refuse(url: str, *, resolve: bool) -> None:
    """Raise Invalid for the address of Celery's own broker, however it is written.

    `resolve` looks up the addresses of names: never use it in a transaction.
    """
    store = Store.of(url)
    if store is None:
        return
    for own in (settings.CELERY_BROKER_URL or "").split(";"):
        own_store = Store.of(own)
        if own_store is not None and _is_celerys_store(
            store, own_store, resolve=resolve
        ):
            another = "database" if own_store.family == "redis" else "virtual host"
            raise Invalid(
                "url",
                f"Poisonweb keeps its own tasks there: choose another {another}.",
            )


def _store_name(family: str, path: str) -> str:
    """Return the database or virtual host that the path of an address names."""
    if family == "redis":
        return str(int(path.strip("/") or 0))
    return path[1:] or "/"


def _is_celerys_store(one: Store, other: Store, *, resolve: bool) -> bool:
    """Tell whether a broker's address leads to Celery's own server and database."""
    beside = (one.family, one.name, one.host_port.port)
    if beside != (other.family, other.name, other.host_port.port):
        return False
    here, there = one.host_port.host, other.host_port.host
    if here == there:
        return True
    reached = [_addresses(host, resolve=resolve) for host in (here, there)]
    return bool(reached[0] & reached[1])


def _addresses(host: str, *, resolve: bool) -> set[str]:
    """List the network addresses of a host; all loopback addresses count as one."""
    # This name needs no lookup: it is loopback everywhere.
    host = "127.0.0.1" if host == LOOPBACK_NAME else host
    addresses = addresses_of(host, resolve=resolve)
    return {LOOPBACK_NAME if each.is_loopback else str(each) for each in addresses}
