"""What can happen to a topic, or to its queue, while somebody is at work with it."""

from __future__ import annotations

from apps.core.errors import Refused, Unavailable


class Removed(Unavailable):
    """A topic was removed just now; ask again, and what is told of it makes it anew."""


class QueueMissing(Refused):
    """The broker answers, and has no queue of this name: make it, or name another."""


class QueueExpected(QueueMissing):
    """There is no such queue yet: it is made with the first dead letter."""
