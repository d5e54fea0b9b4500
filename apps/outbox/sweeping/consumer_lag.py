"""Finds the topics whose consumers are too far behind to get more messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from time import monotonic

from apps.brokers.models import Broker, Topic
from apps.brokers.services.topics_and_routing_publisher import admin_of
from apps.core.errors import PoisonwebError

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
# Of each look: an outbox may have any number of topics.
MOST_TOPICS = 100


class LagWatch:
    """Looks at the consumers of an outbox's topics, and says which topics to slow.

    It knows the topics that were sent to; a topic that nothing was sent to yet is not
    slowed. Where the broker cannot count what is unread, nothing is slowed.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        most_lag: int | None,
        timer: Callable[[], float] = monotonic,
    ) -> None:
        self._broker = broker
        self._most_lag = most_lag
        self._timer = timer
        self._looked_at = float("-inf")
        self._topics: dict[str, None] = {}
        self.slowed: Mapping[str, str] = {}

    def note(self, topics: Iterable[str]) -> None:
        """Remember topics that messages were sent to, the latest ones."""
        for topic in topics:
            self._topics.pop(topic, None)
            self._topics[topic] = None
        while len(self._topics) > MOST_TOPICS:
            del self._topics[next(iter(self._topics))]

    def look(self) -> Mapping[str, str]:
        """Return the topics to slow, each with its reason; ask at most every 5 s."""
        if self._most_lag is None:
            return {}
        now = self._timer()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            reasons = {topic: self._reason(topic) for topic in self._topics}
            self.slowed = {topic: why for topic, why in reasons.items() if why}
        return self.slowed

    def _reason(self, topic: str) -> str:
        """Say why a topic gets nothing more just now; "" where it does."""
        admin = admin_of(Topic(broker=self._broker, name=topic, native_name=topic))
        try:
            groups = [each for each in admin.consumers() if each.lag is not None]
        except PoisonwebError as away:
            log.warning("the consumers of %s cannot be counted: %s", topic, away)
            return ""
        finally:
            admin.close()
        slowest = max(groups, key=lambda each: each.lag or 0, default=None)
        if slowest is None or (slowest.lag or 0) < (self._most_lag or 0):
            return ""
        group = slowest.consumer_group
        return f"consumer {group} is {slowest.lag:,} messages behind"
