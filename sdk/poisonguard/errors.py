"""The error tree; each message says what to do about it.

GuardError
├── Away           the server is not reachable, or cannot answer just now
├── Refused        the server will not take this, however often it is asked
├── StartTimeout   the skip list could not be loaded in time
├── Misconfigured  a setting is unknown, unusable, or at odds with another
├── Fenced         another holder has taken over this position
├── ResourceLockLost  a ResourceLock was lost while its block ran
├── Full           the disk under the spool or the journal is full
└── Stopping       this guard is being stopped, or was never started
"""

from __future__ import annotations

import inspect


class GuardError(Exception):
    """Something went wrong between this consumer and Poisonweb."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))


class Away(GuardError):
    """Poisonweb is not reachable: check the address and that it runs."""


class Refused(GuardError):
    """Poisonweb refused the request."""

    def __init__(self, message: str | None = None, *, status: int | None = None):
        super().__init__(message)
        self.status = status


class StartTimeout(GuardError):
    """The skip list was not loaded in time: see whether Poisonweb runs."""


class Misconfigured(GuardError):
    """A setting cannot be used."""


class Fenced(GuardError):
    """Another holder has opened this position since: stop, or open it again."""


class ResourceLockLost(GuardError):
    """The lock was lost: another holder may have worked at the same time."""


class Full(GuardError):
    """The disk is full: make room."""


class Stopping(GuardError):
    """The guard is not running: start it, or give the message back."""
