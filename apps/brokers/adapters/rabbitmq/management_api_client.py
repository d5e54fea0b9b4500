"""Client of RabbitMQ's management plugin: queues, their arguments, and counts.

The plugin updates counts every few seconds, so exact counts come by AMQP.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, ProtocolError
from urllib3.exceptions import TimeoutError as NoAnswer

from apps.brokers.adapters import http_pools_to_checked_addresses
from apps.brokers.adapters.rabbitmq.address_and_queues import RabbitAddress
from apps.brokers.adapters.rabbitmq.transport import reason_of
from apps.core.errors import Refused, Unavailable

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 20.0
PAGE = 500

_COLUMNS = "name,type,arguments,effective_policy_definition,exclusive"
_FORBIDDEN = frozenset({401, 403})
_NOT_FOUND = 404


class RabbitManagement:
    """The HTTP API of one broker, of which only reading calls are used."""

    def __init__(self, address: RabbitAddress) -> None:
        self._url = address.management_url
        self._dial = address.dial
        self._vhost = address.vhost
        self._user = f"{address.user}:{address.password}"
        self._pool: urllib3.PoolManager | None = None

    def try_out(self) -> None:
        """Try out RabbitMQ's management plugin by the call that discovery makes.

        Raises Unavailable or Refused as discovery would.
        """
        self._get("queues", self._vhost, page=1, page_size=1, columns="name")

    def queues(self) -> Iterator[Mapping[str, Any]]:
        """Yield every queue of the virtual host, with its arguments and policy."""
        page, pages = 1, 1
        while page <= pages:
            listing = self._get(
                "queues", self._vhost, page=page, page_size=PAGE, columns=_COLUMNS
            )
            yield from listing["items"]
            page, pages = page + 1, listing["page_count"]

    def queue(self, name: str) -> Mapping[str, Any] | None:
        """Return the details of a queue; None if it does not exist."""
        queue: Mapping[str, Any] | None = self._get("queues", self._vhost, name)
        return queue

    def exchange(self, name: str) -> Mapping[str, Any] | None:
        """Return the details of an exchange; None if it does not exist."""
        exchange: Mapping[str, Any] | None = self._get("exchanges", self._vhost, name)
        return exchange

    def bindings_of(self, exchange: str) -> list[Mapping[str, Any]]:
        """Return the bindings from an exchange to its destinations."""
        path = ("exchanges", self._vhost, exchange, "bindings", "source")
        return self._get(*path) or []

    def close(self) -> None:
        """Close the connections to RabbitMQ's plugin; the next call opens others."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    def _open_pool(self) -> urllib3.PoolManager:
        """Return the HTTP pool for RabbitMQ's plugin, made with the first call."""
        if self._pool is None:
            is_tls = self._url.startswith("https")
            self._pool = urllib3.PoolManager(
                retries=False,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=REPLY_SECONDS),
                ssl_context=ssl.create_default_context() if is_tls else None,
                headers=urllib3.make_headers(basic_auth=self._user),
            )
            self._pool.pool_classes_by_scheme = http_pools_to_checked_addresses.pools(
                self._dial
            )
        return self._pool

    def _get(self, *path: str, **query: object) -> Any:
        """Ask RabbitMQ's management plugin for an object; None if it does not exist."""
        where = "/".join(quote(part, safe="") for part in path)
        url = f"{self._url}/api/{where}?{urlencode(query)}"
        try:
            reply = self._open_pool().request("GET", url, redirect=False)
            return self._parse_reply(reply.status, reply.data)
        except (HTTPError, OSError, ValueError) as error:
            raise Unavailable(self._describe_outage(_describe_error(error))) from error

    def _parse_reply(self, status: int, data: bytes) -> Any:
        """Parse an answer of RabbitMQ's management plugin; None for a 404 of its own.

        Raises Refused where it refuses the user, and Unavailable for any other status.
        """
        if status == _NOT_FOUND and _is_own_404(data):
            return None
        if status in _FORBIDDEN:
            raise Refused(f"RabbitMQ's management at {self._url} {_login_remedy(data)}")
        if status != 200:
            raise Unavailable(self._describe_outage(f"it answers {status}"))
        return json.loads(data)

    def _describe_outage(self, why: str) -> str:
        """Say that RabbitMQ's plugin does not answer, why, and what to do."""
        return (
            f"RabbitMQ's management plugin does not answer at {self._url}: {why}. "
            "Enable it (rabbitmq-plugins enable rabbitmq_management), or say where it "
            "is by the broker's option management_url."
        )


def _describe_error(error: Exception) -> str:
    """Say why a call of RabbitMQ's plugin failed, as urllib3 names only a class."""
    # The operating system's own error is the cause of urllib3's.
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.strerror:
        return reason_of(cause)
    if isinstance(error, NoAnswer):
        is_connecting = isinstance(error, ConnectTimeoutError)
        waited = CONNECT_SECONDS if is_connecting else REPLY_SECONDS
        return f"no answer in {waited:g} seconds"
    if isinstance(error, ProtocolError):
        return "the connection broke"
    return reason_of(error)


def _login_remedy(data: bytes) -> str:
    """Return what to do if RabbitMQ's plugin refuses: a wrong login, or no right."""
    if _reason(data).lower().startswith("login"):
        return (
            "refused the login: check the user and the password in the broker's "
            "address, which are used there, too."
        )
    return (
        "refuses this user: give it the tag monitoring and rights on the virtual host."
    )


def _is_own_404(data: bytes) -> bool:
    """Tell the plugin's own 404 from that of any web server."""
    return bool(_reason(data))


def _reason(data: bytes) -> str:
    """Return why RabbitMQ's plugin refused a call; "" for another server's answer."""
    try:
        answer = json.loads(data)
    except ValueError:
        return ""
    return str(answer.get("reason", "")) if isinstance(answer, dict) else ""
