"""Definitions of all numbers and states: pages show them on hover, Help lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Definition:
    """The label of a number, and what that number counts."""

    label: str
    means: str


@dataclass(frozen=True, slots=True)
class Chapter:
    title: str
    definitions: Mapping[str, Definition]


MESSAGES = {
    "messages": Definition(
        "Messages", "different messages, however often each of them failed"
    ),
    "open": Definition("Open", "messages that wait for you to decide"),
    "sent": Definition(
        "Sent",
        "messages that were requeued, sent to another topic, or given back to their"
        " dead-letter queue, and that no consumer has confirmed yet",
    ),
    "handled": Definition(
        "Handled", "messages that were requeued, and whose consumer confirmed"
    ),
    "dropped": Definition(
        "Dropped", "messages that were given up on; they are kept and can be restored"
    ),
    "given back": Definition(
        "Given back",
        "messages that were returned to their dead-letter queue unchanged; they are"
        " part of Sent",
    ),
    "failures": Definition(
        "Failures",
        "how often messages failed, by the time of each failure: a message that failed"
        " twice counts twice",
    ),
    "oldest": Definition(
        "Oldest open", "how long ago the open message that waits longest last failed"
    ),
}
TRAFFIC = {
    "delivered": Definition(
        "Delivered",
        "messages that consumers received in the last 24 hours: handled + failed, as"
        " the consumers counted them, or else as the broker counted them",
    ),
    "failed": Definition(
        "Failed",
        "the part of the delivered messages that consumers gave up on. Consumers"
        " count both, over the same 24 hours; where they do not, there is no share",
    ),
    "captured": Definition(
        "Captured",
        "all dead letters that the lane took out of the queue. One that returns counts"
        " again; failures reported by the API do not count",
    ),
    "dead letters": Definition(
        "Dead letters",
        "messages in the dead-letter queue at the broker, as its lane last counted",
    ),
    "lag": Definition(
        "Consumer lag", "messages of the topic that its consumers have not read yet"
    ),
}
OPERATIONS = {
    "progress": Definition(
        "Progress",
        "finished messages, out of those that the operation acts on; skipped messages"
        " are in neither number",
    ),
    "waiting": Definition("Waiting", "these messages were not sent to a broker yet"),
    "sending": Definition("Sending", "messages on their way to the broker now"),
    "unknown": Definition(
        "Unknown",
        "messages that may have reached the broker, which did not answer; they are sent"
        " again under the same redrive id",
    ),
    "confirmed": Definition("Handled", "a consumer confirmed these messages"),
    "recurred": Definition("Came back", "messages that were sent, and failed again"),
    "refused": Definition("Refused", "messages that the broker will not take"),
    "skipped": Definition(
        "Skipped", "messages that were selected, and passed over for the given reason"
    ),
    "restored": Definition("Restored", "dropped messages that are open again"),
    "moved": Definition("Moved", "messages sent to another topic on purpose"),
    "captured again": Definition(
        "Captured again",
        "messages that were given back, and taken out of the dead-letter queue again",
    ),
    "running": Definition(
        "Running", "operations that are confirmed, and not finished yet"
    ),
}
DELIVERIES = {
    "succeeded": Definition(
        "Succeeded", "the part of the calls to a back end that it answered well"
    ),
    "failed attempts": Definition(
        "Failed attempts",
        "calls to a back end that failed, or whose outcome is unknown; one delivery"
        " may have several",
    ),
    "deliveries waiting": Definition(
        "Deliveries waiting", "requests that are stored, and wait for their next try"
    ),
    "next due": Definition(
        "Next due", "when the next of the waiting deliveries is tried again"
    ),
    "retry count": Definition(
        "Retry count",
        "the failures of a delivery, the first one included: with N retries, a delivery"
        " whose count is greater than N ends, after N + 1 calls",
    ),
}
OUTBOXES = {
    "rows waiting": Definition(
        "Rows waiting",
        "messages in a producer's table that are to be sent, as the sweeper counted"
        " them a moment ago",
    ),
    "rows quarantined": Definition(
        "Rows quarantined",
        "rows that are not sent, because they cannot be read, the broker refuses them,"
        " or another message has their id",
    ),
    "outbox breaker": Definition(
        "Breaker, of a sweeper",
        "open after one error came several times in a row: the sweeper tries less often"
        " until a try works",
    ),
    "sent a second": Definition(
        "Sent a second", "messages that the sweeper sent in the last second or so"
    ),
}
REPORTS = {
    "report failed": Definition(
        "Failed, in a report",
        "failures of that UTC day: as the consumers counted them, or else the failures"
        " that are kept here",
    ),
    "report rate": Definition(
        "Failure rate, in a report",
        "failed / delivered of the same UTC day. There is no rate where nothing was"
        " delivered, or where more failed than its broker says it delivered",
    ),
    "report day": Definition(
        "A day of a report, as a link",
        "leads to the messages that last failed on that day. It lists fewer messages"
        " than failed where one failed twice, or failed again on a later day",
    ),
    "report calls": Definition(
        "Calls, in a report",
        "calls of an endpoint that were answered or failed on that UTC day, retries"
        " included",
    ),
    "report at first": Definition(
        "Succeeded at first, in a report",
        "requests whose first call succeeded. Where the caller waited for it, it left"
        " no delivery",
    ),
    "report after retries": Definition(
        "Succeeded after retries, in a report",
        "deliveries that a later call ended well, on the UTC day of that call",
    ),
    "report unknown": Definition(
        "Unknown, in a report",
        "those of the deliveries in triage, dropped and forwarded that were not tried"
        " again because the back end may have done what was asked",
    ),
    "report waiting": Definition(
        "Waiting, in a report",
        "deliveries that had not ended at the end of the last of these days that was"
        " counted",
    ),
}
CHAPTERS = (
    Chapter("Messages and failures", MESSAGES),
    Chapter("Topics", TRAFFIC),
    Chapter("Operations", OPERATIONS),
    Chapter("Endpoints and deliveries", DELIVERIES),
    Chapter("Outboxes", OUTBOXES),
    Chapter("Reports", REPORTS),
)
DEFINITIONS = {
    **MESSAGES,
    **TRAFFIC,
    **OPERATIONS,
    **DELIVERIES,
    **OUTBOXES,
    **REPORTS,
}
