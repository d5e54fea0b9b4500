"""Keeps a consumer going through messages that it cannot process.

`Guard` guards a handler you already have: it retries, notices what kills the process,
hands what cannot be processed to Poisonweb, and passes over what others found.
`Journal` and `BookmarkStore` are two memories, `RetryPolicy` and `BreakerPolicy` two
judgements, and every error is a `GuardError`.

Apart from that, `poisonguard.contract` is the wire between a consumer and Poisonweb,
and `poisonguard.fingerprint` decides which failures are one problem; both need nothing
of the rest, so what is named here is loaded when it is asked for.
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
        Misconfigured,
        Refused,
        StartTimeout,
        Stopping,
    )
    from poisonguard.guard import Guard
    from poisonguard.handling.breaker import BreakerPolicy
    from poisonguard.journal.process_journal import Journal
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
    "Misconfigured",
    "Outcome",
    "Refused",
    "RetryPolicy",
    "StartTimeout",
    "Stopping",
]

_HOMES = {
    "BookmarkStore": "bookmarks",
    "BreakerPolicy": "handling.breaker",
    "Guard": "guard",
    "Journal": "journal.process_journal",
    "Outcome": "outcome",
    "RetryPolicy": "policy",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    return getattr(home, name)
