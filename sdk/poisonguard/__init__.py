"""Keep a consumer running when it gets messages that it cannot process.

`Guard` wraps a handler you already have: it retries, finds messages that kill the
process, reports poison to Poisonweb, and skips what other consumers reported.
`Journal` remembers messages in flight, `BookmarkStore` positions; `RetryPolicy` and
`BreakerPolicy` configure retries and pauses; every error is a `GuardError`.

`poisonguard.contract` is the wire format between a consumer and Poisonweb, and
`poisonguard.fingerprint` decides which failures are one problem. Neither needs the
rest of the package, so the names below are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poisonguard.bookmarks import BookmarkStore
    from poisonguard.errors import (
        Away,
        Fenced,
        Full,
        GuardError,
        MessageIdTaken,
        Misconfigured,
        OutboxFull,
        Refused,
        ResourceLockLost,
        StartTimeout,
        Stopping,
    )
    from poisonguard.guard import Guard
    from poisonguard.handling.circuit_breaker import BreakerPolicy
    from poisonguard.journal.in_flight_journal import Journal
    from poisonguard.outcome import Outcome
    from poisonguard.policy import RetryPolicy

__all__ = [
    "Away",
    "BookmarkStore",
    "BreakerPolicy",
    "Fenced",
    "Full",
    "Guard",
    "GuardError",
    "Journal",
    "MessageIdTaken",
    "Misconfigured",
    "OutboxFull",
    "Outcome",
    "Refused",
    "ResourceLockLost",
    "RetryPolicy",
    "StartTimeout",
    "Stopping",
]

_HOMES = {
    "BookmarkStore": "bookmarks",
    "BreakerPolicy": "handling.circuit_breaker",
    "Guard": "guard",
    "Journal": "journal.in_flight_journal",
    "Outcome": "outcome",
    "RetryPolicy": "policy",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    return getattr(home, name)
