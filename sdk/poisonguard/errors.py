"""The error tree; each message says what to do about it.

GuardError
├── Away           the server is not reachable, or cannot answer just now
├── Refused        the server will not take this, however often it is asked
├── StartTimeout   the skip list could not be loaded in time
├── Misconfigured  a setting is unknown, unusable, or at odds with another
├── Fenced         another holder has taken over this position
├── ResourceLockLost  a ResourceLock was lost while its block ran
├── Full           the disk under the spool or the journal is full
├── OutboxFull     too much waits in an outbox to put more into it
├── MessageIdTaken  an outbox has a message under this id already
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


class OutboxFull(GuardError):
    """Too much waits in the outbox: see whether its sweeper runs.

    `measure` is rows, bytes or age (in seconds), `topic` is None for the whole outbox.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        topic: str | None = None,
        measure: str = "",
        figure: float = 0,
        limit: float = 0,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.measure = measure
        self.figure = figure
        self.limit = limit


class MessageIdTaken(GuardError):
    """The outbox has a message under this id; `is_same` tells whether it is this one.

    Nothing was written, and the transaction can go on.
    """

    def __init__(
        self, message: str | None = None, *, message_id: str = "", is_same: bool = False
    ) -> None:
        super().__init__(message)
        self.message_id = message_id
        self.is_same = is_same


class Stopping(GuardError):
    """The guard is not running: start it, or give the message back."""
