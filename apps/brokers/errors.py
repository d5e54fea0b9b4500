"""What can go wrong with a topic, with its queue, and with one call to a broker.

Adapters translate what their clients raise into `NotSent`, `MaybeSent` and `Rejected`,
once, where they call their broker.
"""

from __future__ import annotations

from apps.core.errors import Refused, Unavailable


class NotSent(Unavailable):
    """The broker was not reached, or turned the call away: it has done nothing."""


class MaybeSent(Unavailable):
    """The broker did not answer: it may have done what was asked, or not."""


class Rejected(Refused):
    """The broker answered that it will not do what was asked."""


class Removed(Unavailable):
    """The topic was just removed; ask again, and its next report registers it again."""


class QueueMissing(Refused):
    """The broker has no queue of this name: create it, or name another."""


class QueueExpected(QueueMissing):
    """The queue does not exist yet: it is created with the first dead letter."""
