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
    "skipped by skip": Definition(
        "Skipped, by a skip",
        "messages that consumers passed over because of this entry of the skip list",
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
    "queue messages": Definition(
        "Messages, at the broker", "messages that the broker has in the queue now"
    ),
    "minute": Definition(
        "A minute",
        "messages that consumers received in a minute, on average over the last ten",
    ),
    "broker topics": Definition(
        "Topics, of a broker", "topics of this broker that are registered here"
    ),
    "left at broker": Definition(
        "Held at the broker",
        "dead letters that the lane leaves in their queue, each for the reason given",
    ),
}
OPERATIONS = {
    "progress": Definition(
        "Progress",
        "finished messages, out of those that the operation acts on; skipped messages"
        " are in neither number",
    ),
    "waiting": Definition("Waiting", "these messages were not sent to a broker yet"),
    "untouched": Definition(
        "Untouched", "the operation was cancelled before it acted on these messages"
    ),
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
    "unanswered": Definition(
        "Messages, beside a skip",
        "messages that were sent, have no answer yet and match the rule of this skip"
        " before that of another one",
    ),
    "running": Definition(
        "Running", "operations that are confirmed, and not finished yet"
    ),
    "selected": Definition(
        "Messages or deliveries, in a preview",
        "how many of the selected ones the row is about",
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
    "at first": Definition("Succeeded at first", "requests whose first call succeeded"),
    "later": Definition("Succeeded later", "deliveries that succeeded at a later call"),
    "given up": Definition(
        "Not delivered",
        "deliveries that ended without a success: in triage, dropped or forwarded",
    ),
    "oldest delivery": Definition(
        "Oldest, of an endpoint", "how long ago the oldest waiting request was accepted"
    ),
}
OUTBOXES = {
    "rows waiting": Definition(
        "Rows waiting",
        "messages in a producer's table that are to be sent, as the sweeper counted"
        " them last: a moment ago unless it says when; — before the first count",
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
    "oldest row": Definition(
        "Oldest, of an outbox", "how long ago the oldest waiting row was written"
    ),
    "row attempts": Definition(
        "Attempts, of a row", "how often the sweeper tried to send this row"
    ),
    "sweeper errors": Definition(
        "Times, of an error", "how often this error came since the outbox was added"
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
    "report delivered": Definition(
        "Delivered, in a report",
        "handled + failed of that UTC day, as the consumers counted them, or else as"
        " the broker counted them",
    ),
    "report interval": Definition(
        "95 %, in a report",
        "Wilson's interval of the failure rate: with few messages it is wide",
    ),
    "report usual": Definition(
        "Usual, in a report", "the mean of the same weekday in the weeks before"
    ),
    "report times": Definition(
        "Times, in a report", "the value of that day, divided by the usual one"
    ),
    "report failures": Definition(
        "Failures of a problem, in a report", "failures of the problem on that UTC day"
    ),
    "report poisoned": Definition(
        "Poisoned", "messages that failed for the first time on that UTC day"
    ),
    "report skipped": Definition(
        "Skipped, in a report",
        "messages that consumers passed over because of the skip list",
    ),
    "report retried": Definition(
        "Retried", "further attempts that consumers made before they gave up or managed"
    ),
    "report requeued": Definition(
        "Requeued", "messages that operations sent, on the UTC day of the send"
    ),
    "report confirmed": Definition(
        "Confirmed", "requeued messages that consumers confirmed on that UTC day"
    ),
    "report came back": Definition(
        "Came back, in a report", "requeued messages that failed again on that UTC day"
    ),
    "report dropped": Definition(
        "Dropped, in a report", "messages whose drop ended on that UTC day"
    ),
    "report p50": Definition(
        "p50, in a report", "half of the messages or deliveries took less than this"
    ),
    "report p95": Definition(
        "p95, in a report", "95 % of the messages or deliveries took less than this"
    ),
    "report p99": Definition(
        "p99, in a report", "99 % of the messages took less than this"
    ),
    "report retries": Definition(
        "After 1 retry, 2, 3, 4 to 10, more",
        "deliveries that succeeded after so many retries",
    ),
    "report triage": Definition(
        "To triage", "deliveries that were given to triage on that UTC day"
    ),
    "report deliveries dropped": Definition(
        "Dropped, of an endpoint", "deliveries that were dropped on that UTC day"
    ),
    "report forwarded": Definition(
        "Forwarded",
        "deliveries that went to a topic or to another endpoint on that UTC day",
    ),
    "report timed": Definition(
        "Timed", "deliveries that succeeded: p50, p95 and the longest are of these"
    ),
    "report longest": Definition(
        "Longest", "the longest time from the request to the success of its delivery"
    ),
    "report rows": Definition("Rows in", "rows of Postgres that the run read"),
    "report late rows": Definition(
        "Late rows", "rows of these days that the report before had not seen"
    ),
}
CONSUMERS = {
    "position lag": Definition(
        "Lag, of a position",
        "messages that wait behind the position, as its consumer or broker counted",
    ),
    "position rate": Definition(
        "Rate, of a position",
        "messages a minute that the consumer handled, failed or skipped, on average"
        " over the last ten minutes",
    ),
    "position eta": Definition(
        "ETA",
        "how long the lag takes at this rate, if no new messages come",
    ),
    "skip list": Definition(
        "Skip list, of a guard", "how old the guard's copy of the skip list is"
    ),
    "spooled": Definition(
        "Spooled", "reports that wait on the guard's disk until Poisonweb answers"
    ),
    "suspected": Definition(
        "Suspected",
        "messages that failed once, and that the guard withholds until another"
        " consumer has tried them",
    ),
}
PEOPLE = {
    "open sessions": Definition(
        "Open sessions", "browsers in which the person is signed in now"
    ),
}
CHAPTERS = (
    Chapter("Messages and failures", MESSAGES),
    Chapter("Topics", TRAFFIC),
    Chapter("Consumers", CONSUMERS),
    Chapter("Operations", OPERATIONS),
    Chapter("Endpoints and deliveries", DELIVERIES),
    Chapter("Outboxes", OUTBOXES),
    Chapter("Reports", REPORTS),
    Chapter("People", PEOPLE),
)
DEFINITIONS = {
    **MESSAGES,
    **TRAFFIC,
    **CONSUMERS,
    **OPERATIONS,
    **DELIVERIES,
    **OUTBOXES,
    **REPORTS,
    **PEOPLE,
}
