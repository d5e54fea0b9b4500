"""The client that reads the list of a `MisterYuck`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import AMPS

from poisonguard.errors import Misconfigured

log = logging.getLogger(__name__)


class MonitorServers:
    """The server chooser of the monitor.

    It reads the client's own chooser but never reports to it: the client decides which
    server is next, and the list belongs to the server of its messages.
    """

    def __init__(
        self, chooser: tuple[Any, bool], *, authenticator: Any, topic: str
    ) -> None:
        self._chooser, self._is_ours = chooser
        self._authenticator = authenticator
        self._topic = topic
        self._is_live = True

    def get_current_uri(self) -> str:
        """Return the AMPS address that the chooser names now to the list's monitor."""
        return str(self._chooser.get_current_uri() or "")

    def get_current_authenticator(self) -> Any:
        """Return our authenticator for the poison list's monitor, or the chooser's.

        The chooser's is only used where we were given none.
        """
        return self._authenticator or self._chooser.get_current_authenticator()

    def report_failure(self, error: Any, info: Any) -> None:
        """Log a disconnect of the poison list's monitor from AMPS, once.

        Report it to the chooser, unless that is the guarded client's own.
        """
        if self._is_live:  # one line for each disconnect
            self._is_live = False
            log.warning("%s is not live until it is back: %s", self._topic, error)
        if self._is_ours:
            self._chooser.report_failure(error, info)

    def report_success(self, info: Any) -> None:
        """Note that the poison list is live: its monitor is connected to AMPS.

        Report it to the chooser, unless that is the guarded client's own.
        """
        self._is_live = True
        if self._is_ours:
            self._chooser.report_success(info)

    def get_error(self) -> str:
        """Return the last error of the chooser of the poison list's monitor."""
        return str(self._chooser.get_error())


def chooser_of(client: Any, servers: Any) -> tuple[Any, bool]:
    """Return the chooser of AMPS servers for the poison list's monitor, and a flag.

    The flag is True unless it is the guarded client's own chooser. Raise Misconfigured
    if no servers are given and that client has none yet.
    """
    uri, theirs = client.get_uri(), None
    if uri and hasattr(client, "get_server_chooser"):
        # An HAClient without a chooser ends the process here.
        theirs = client.get_server_chooser()
    if servers is None:
        if theirs is not None:
            return theirs, False
        if not uri:
            raise Misconfigured("The AMPS client has no server yet: connect it first.")
        servers = uri
    if not isinstance(servers, str | Sequence):
        return servers, servers is not theirs
    chooser = AMPS.DefaultServerChooser()
    for url in [servers] if isinstance(servers, str) else servers:
        chooser.add(url)
    return chooser, True


def monitor_client(chooser: MonitorServers, timeout: float) -> Any:
    """Create the AMPS client that reads the poison list.

    A client that waits for an answer in its own handler waits for ever, so the monitor
    must be another client than the guarded one.
    """
    client = AMPS.HAClient(f"poison_monitor-{uuid4()}", no_store=True)
    client.set_server_chooser(chooser)
    client.set_retry_on_disconnect(False)  # a handler must not wait for a server
    client.set_timeout(int(timeout * 1000))
    delay_strategy = AMPS.ExponentialDelayStrategy(
        maximum_retry_time=int(timeout * 1000)
    )
    client.set_reconnect_delay_strategy(delay_strategy)
    return client
