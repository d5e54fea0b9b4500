"""What the senders of all endpoints of a process share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime

from apps.core.bounded_threads import BoundedThreads
from apps.redelivery.outbound.http_caller import HttpCaller
from apps.redelivery.sending.database_threads import RunsWork
from poisonguard.locks import LockServer


@dataclass(kw_only=True, slots=True)
class SharedSenderResources:
    """What the senders of all endpoints of a process share.

    `waits` has a thread for each endpoint that waits for its lock, and `errands` the
    few that ask for locks and return them. A broker may hang a thread of `publishers`.
    """

    threads: RunsWork
    caller: HttpCaller
    locks: LockServer
    waits: Executor
    errands: Executor
    publishers: BoundedThreads
    clock: Callable[[], datetime]
    bytes_in_flight: int = field(default=0)
