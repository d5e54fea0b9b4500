"""Find the topics whose queue is too long, or whose consumers are too far behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from time import monotonic

from apps.brokers.adapter_contract import TopicAdmin
from apps.brokers.errors import QueueMissing
from apps.brokers.models import Topic
from apps.brokers.services.topics_and_routing_publisher import admin_of
from apps.core.errors import PoisonwebError
from apps.outbox.models import Outbox
from poisonguard.outbox.sweeping.error_log import ErrorLog, LoggedError, Stage

LOOK_SECONDS = 5.0
# A figure that is older slows nothing: the broker does not answer, or too late.
FRESH_SECONDS = 15.0
TICK_SECONDS = 0.5
# An outbox may have any number of topics: those that were sent to last.
MOST_TOPICS = 100


@dataclass(frozen=True, slots=True)
class _Figure:
    """Why a topic is slowed, "" where it is not, and when the broker was asked."""

    reason: str
    asked_at: float


class TopicBacklogWatch:
    """Ask the broker about the topics of an outbox, in a thread of its own.

    It knows the topics that were sent to; one that nothing was sent to yet is not
    slowed. What the broker cannot count, refuses to say, or does not say in time slows
    nothing: it would stop messages that the broker takes. Such errors are counted.
    """

    def __init__(
        self, outbox: Outbox, *, timer: Callable[[], float] = monotonic
    ) -> None:
        self._outbox = outbox
        self._timer = timer
        self._mutex = threading.Lock()
        self._topics: dict[str, None] = {}
        self._figures: dict[str, _Figure] = {}
        self._errors = ErrorLog()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"broker watch of {outbox.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread that asks the broker of an outbox for its topics' backlogs.

        Does nothing for an outbox without a limit on them.
        """
        if (self._outbox.most_lag, self._outbox.most_depth) != (None, None):
            self._thread.start()

    def stop(self) -> None:
        """Stop asking the broker of a swept outbox for topic backlogs.

        It waits for nothing: a hung call ends by itself.
        """
        self._stop.set()

    @property
    def errors(self) -> list[LoggedError]:
        """Return why a swept outbox's broker could not be asked for topic backlogs.

        The latest error is first.
        """
        with self._mutex:
            return self._errors.errors

    def note_topics(self, topics: Iterable[str]) -> None:
        """Remember the topics that an outbox's sweeper sent to, the latest hundred."""
        with self._mutex:
            for topic in topics:
                self._topics.pop(topic, None)
                self._topics[topic] = None
            while len(self._topics) > MOST_TOPICS:
                topic = next(iter(self._topics))
                del self._topics[topic]
                self._figures.pop(topic, None)

    def slowed(self) -> Mapping[str, str]:
        """Return topics that an outbox's sweeper must not send to now, and why.

        Their backlog is long, as the broker last said. Answers that are too old do not
        count. It waits for no broker.
        """
        with self._mutex:
            since = self._timer() - FRESH_SECONDS
            return {
                topic: figure.reason
                for topic, figure in self._figures.items()
                if figure.reason and figure.asked_at >= since
            }

    def _run(self) -> None:
        while not self._stop.wait(TICK_SECONDS):
            while (topic := self.next_due()) and not self._stop.is_set():
                self.ask(topic)

    def next_due(self) -> str | None:
        """Return the outbox's topic whose backlog is to be asked for next, or None.

        It is the one asked about longest ago, if that is long enough.
        """
        with self._mutex:
            asked_at = {
                topic: self._figures[topic].asked_at
                if topic in self._figures
                else float("-inf")
                for topic in self._topics
            }
            topic = min(asked_at, key=lambda name: asked_at[name], default=None)
            if topic is None or self._timer() - asked_at[topic] < LOOK_SECONDS:
                return None
            return topic

    def ask(self, topic: str) -> None:
        """Ask a swept outbox's broker for one topic's backlog, and note the answer.

        It is the one place of the thread where errors are caught, and counted.
        """
        asked_at, reason = self._timer(), ""
        try:
            reason = self._reason(topic)
        except Exception as error:  # noqa: BLE001 - the one place: see above
            with self._mutex:
                if isinstance(error, PoisonwebError):
                    kind = f"the broker: {type(error).__name__}"
                    self._errors.note_event(Stage.FIGURES, kind, f"{topic}: {error}")
                else:
                    self._errors.note(Stage.FIGURES, error)
        with self._mutex:
            if topic in self._topics:
                self._figures[topic] = _Figure(reason, asked_at)

    def _reason(self, topic: str) -> str:
        """Ask an outbox's broker why the sweeper should not send to a topic now.

        Returns its lag or its depth as a text, "" if neither is above the outbox's
        limit.
        """
        # As a topic that is read itself, its own queue is the one that is counted.
        itself = Topic(
            broker=self._outbox.broker,
            name=topic,
            native_name=topic,
            dead_letter_queue=topic,
            request_endpoints=["*"],
        )
        with closing(admin_of(itself)) as admin:
            return self._lag_reason(admin) or self._depth_reason(admin)

    def _lag_reason(self, admin: TopicAdmin) -> str:
        most = self._outbox.most_lag
        if most is None:
            return ""
        lags = [(each.lag, each.consumer_group) for each in admin.consumers()]
        lag, group = max(
            ((lag, group) for lag, group in lags if lag is not None), default=(0, "")
        )
        if lag < most:
            return ""
        who = f"consumer {group} is" if group else "its consumers are"
        return f"{who} {lag:,} messages behind"

    def _depth_reason(self, admin: TopicAdmin) -> str:
        most = self._outbox.most_depth
        if most is None:
            return ""
        try:
            depth = admin.depth()
        except QueueMissing:  # nothing is in it
            return ""
        if depth is None or depth < most:
            return ""
        return f"the broker has {depth:,} messages in its queue"
