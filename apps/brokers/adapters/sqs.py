"""Amazon SQS: queues whose redrive policy names their dead-letter queue.

SQS counts every receive, ours too: there is no looking without changing. What a message
is made of is in `sqs_messages`, what an answer is worth in `sqs_wire`.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.sqs_messages import (
    FIFO,
    LARGEST,
    MOST_ATTRIBUTES,
    Entry,
    entry,
    stored,
)
from apps.brokers.adapters.sqs_wire import (
    LONGEST_POLL,
    THROTTLED,
    Answered,
    Lost,
    Place,
    Wire,
    code_of,
    said,
)
from apps.brokers.ports import (
    BATCH_BYTES,
    Capabilities,
    ConsumerPosition,
    Counting,
    DeadLetter,
    Delivered,
    Durability,
    FoundTopic,
    Headers,
    Ordering,
    Outbound,
    Outcome,
    OutcomeKind,
)
from apps.core.errors import Invalid, Refused, Unavailable

# What one call takes: so many messages, and so many bytes of them.
MOST_AT_ONCE = 10
MOST_BYTES = LARGEST
LONGEST_HIDDEN = 12 * 60 * 60
QUEUES_PAGE = 1_000
MOST_QUEUES = 10_000
# Calls under way at once while queues are looked at one by one.
LOOKS = 8

DEPTHS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_LOG = logging.getLogger(__name__)

CAPABILITIES = Capabilities(
    max_message=LARGEST,
    counts_headers=True,
    headers=Headers.TEXT,
    most_headers=MOST_ATTRIBUTES,
    # FIFO queues keep the order of a group and know a send again for five minutes; the
    # others do neither, and this is what every queue does.
    ordering=Ordering.NONE,
    dedupe_window=0,
    durability=Durability.REPLICATED,
    delay=900,
    peeks=False,
    extends=True,
    counting=Counting.BROKER,
    dead_letters_itself=True,
    delivered=False,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RedrivePolicy:
    """Where a queue's dead letters go, and after how many receives."""

    dead_letter_queue: str
    max_receive_count: int

    @classmethod
    def of(cls, attributes: Mapping[str, str]) -> RedrivePolicy | None:
        told = attributes.get("RedrivePolicy")
        if not told:
            return None
        policy = json.loads(told)
        return cls(
            dead_letter_queue=_name_of(policy["deadLetterTargetArn"]),
            max_receive_count=int(policy["maxReceiveCount"]),
        )


class SqsAdapter:
    """Speaks to SQS through `sqs_wire`."""

    capabilities = CAPABILITIES

    def publisher(self, broker: BrokerSettings) -> SqsPublisher:
        return SqsPublisher(_place(broker))

    def dead_letter_reader(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> SqsDeadLetterReader:
        return SqsDeadLetterReader(_place(broker), _checked(topic))

    def topic_admin(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> SqsTopicAdmin:
        return SqsTopicAdmin(_place(broker), _checked(topic))

    def broker_admin(self, broker: BrokerSettings) -> SqsBrokerAdmin:
        return SqsBrokerAdmin(_place(broker))

    def ordering(self, topic: str) -> Ordering:
        return Ordering.KEY if topic.endswith(FIFO) else CAPABILITIES.ordering


ADAPTER = SqsAdapter()


def _place(broker: BrokerSettings) -> Place:
    return Place.of(broker.url, broker.options)


def _checked(topic: TopicSettings) -> TopicSettings:
    if topic.options:
        raise Invalid("options", "a topic of sqs has none.")
    if topic.topic == topic.dead_letter_queue:
        raise Invalid("dead_letter_queue", "must be another queue than the topic.")
    if not 0 < topic.visibility_timeout <= LONGEST_HIDDEN:
        remedy = f"SQS hides a message for more than 0 and {LONGEST_HIDDEN} s at most."
        raise Invalid("visibility_timeout", remedy)
    return topic


class SqsPublisher:
    """Publishes with SendMessageBatch; a message's id in the reply confirms it."""

    def __init__(self, place: Place) -> None:
        self._wire = Wire(place)

    def publish(self, messages: Sequence[Outbound]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        try:
            for topic, parcels in _by_topic(messages, outcomes).items():
                self._send_all(topic, parcels, outcomes)
        except Unavailable as away:
            if not isinstance(away, Lost) and not _any_sent(outcomes):
                raise
            _leave_unknown(range(len(messages)), outcomes, reason=str(away))
        return [outcomes[place] for place in range(len(messages))]

    def close(self) -> None:
        self._wire.close()

    def _send_all(
        self, topic: str, parcels: Sequence[_Parcel], outcomes: dict[int, Outcome]
    ) -> None:
        for call in _calls(parcels):
            self._send(topic, call, outcomes)
            if _is_held_up(topic, call, outcomes):
                places = [parcel.place for parcel in parcels]
                reason = "Not sent: a message before it may have to be sent again."
                _leave_unknown(places, outcomes, reason=reason)
                return

    def _send(
        self, topic: str, call: Sequence[_Parcel], outcomes: dict[int, Outcome]
    ) -> None:
        """Send what fits into one call; if that is refused, by halves, to the last."""
        entries = [parcel.entry.to_wire(n) for n, parcel in enumerate(call)]
        try:
            reply = self._wire.on(topic, "send_message_batch", Entries=entries)
        except Answered as refusal:
            if len(call) == 1 or refusal.of_a_queue:
                refused = _refused(str(refusal))
                outcomes.update((parcel.place, refused) for parcel in call)
                return
            half = len(call) // 2
            self._send(topic, call[:half], outcomes)
            if not _is_held_up(topic, call[:half], outcomes):
                self._send(topic, call[half:], outcomes)
            return
        told = _told(reply)
        silent = Outcome(kind=OutcomeKind.UNKNOWN, detail="SQS said nothing of it.")
        for number, parcel in enumerate(call):
            outcomes[parcel.place] = told.get(str(number), silent)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Parcel:
    """One message of a window, and its place there."""

    place: int
    entry: Entry


def _by_topic(
    messages: Sequence[Outbound], outcomes: dict[int, Outcome]
) -> dict[str, list[_Parcel]]:
    """Sort the messages by topic, in their order; note those that cannot go."""
    topics: dict[str, list[_Parcel]] = {}
    for place, message in enumerate(messages):
        try:
            parcel = _Parcel(place=place, entry=entry(message))
        except Refused as refusal:
            outcomes[place] = _refused(str(refusal))
        else:
            topics.setdefault(message.topic, []).append(parcel)
    return topics


def _calls(parcels: Sequence[_Parcel]) -> Iterator[list[_Parcel]]:
    """Fill one call after the other, in order."""
    call: list[_Parcel] = []
    size = 0
    for parcel in parcels:
        full = len(call) == MOST_AT_ONCE or size + parcel.entry.size > MOST_BYTES
        if call and full:
            yield call
            call, size = [], 0
        call.append(parcel)
        size += parcel.entry.size
    if call:
        yield call


def _told(reply: Mapping[str, Any]) -> dict[str, Outcome]:
    told = {
        done["Id"]: Outcome(kind=OutcomeKind.SENT, bookmark=done["MessageId"])
        for done in reply.get("Successful", [])
    }
    for failed in reply.get("Failed", []):
        kind = OutcomeKind.REFUSED if _is_final(failed) else OutcomeKind.UNKNOWN
        told[failed["Id"]] = Outcome(kind=kind, detail=_words(failed))
    return told


def _any_sent(outcomes: Mapping[int, Outcome]) -> bool:
    return any(one.kind is not OutcomeKind.REFUSED for one in outcomes.values())


def _is_held_up(
    topic: str, call: Sequence[_Parcel], outcomes: Mapping[int, Outcome]
) -> bool:
    """Tell whether what comes behind these would overtake one that is unknown."""
    became = (outcomes.get(parcel.place) for parcel in call)
    unknown = any(one and one.kind is OutcomeKind.UNKNOWN for one in became)
    return unknown and topic.endswith(FIFO)


def _leave_unknown(
    places: Sequence[int], outcomes: dict[int, Outcome], *, reason: str
) -> None:
    for place in places:
        outcomes.setdefault(place, Outcome(kind=OutcomeKind.UNKNOWN, detail=reason))


def _refused(reason: str) -> Outcome:
    return Outcome(kind=OutcomeKind.REFUSED, detail=reason)


class SqsDeadLetterReader:
    """Reads a dead-letter queue, and remembers what it handed out by message id.

    A message that is not settled in time comes again, with another receipt: it is known
    and stays held. In a FIFO queue what is held keeps the rest of its group waiting.
    """

    def __init__(self, place: Place, settings: TopicSettings) -> None:
        self._wire = Wire(place)
        self._settings = settings
        self._hidden = math.ceil(settings.visibility_timeout)
        self._source: _Source | None = None
        self._receipts: dict[str, str] = {}
        self._handed_out: set[str] = set()
        self._strangers: set[str] = set()

    def read(self, *, limit: int, wait: float) -> list[DeadLetter]:
        try:
            return self._batch(limit, wait)
        except Unavailable:
            self._handed_out.clear()
            raise

    def peek(self, *, limit: int) -> list[DeadLetter]:
        return []

    def acknowledge(self, handles: Sequence[str]) -> None:
        self._settle(handles, "delete_message_batch")

    def extend(self, handles: Sequence[str]) -> None:
        action = "change_message_visibility_batch"
        for _ in self._each(handles, action, VisibilityTimeout=self._hidden):
            pass

    def release(self, handles: Sequence[str]) -> None:
        self._settle(handles, "change_message_visibility_batch", VisibilityTimeout=0)

    def dead_letter_exhausted(self) -> int:
        """SQS does it with the next receive."""
        return 0

    def close(self) -> None:
        self._wire.close()

    def _batch(self, limit: int, wait: float) -> list[DeadLetter]:
        source = self._source = self._source or _source(self._wire, self._settings)
        letters: list[DeadLetter] = []
        seen: set[str] = set()
        size = 0
        while len(letters) < limit and size < BATCH_BYTES:
            count = min(MOST_AT_ONCE, limit - len(letters))
            found = self._receive(source, count, 0 if seen else wait)
            # What comes twice within one batch is no longer hidden: so is the rest.
            if not {message["MessageId"] for message in found} - seen:
                break
            seen |= {message["MessageId"] for message in found}
            fresh = [_letter(m, source) for m in found if self._is_ours(m, source)]
            letters += fresh
            size += sum(letter.size for letter in fresh)
        return letters

    def _receive(self, source: _Source, count: int, wait: float) -> list[Any]:
        reply = self._wire.on(
            source.queue,
            "receive_message",
            MaxNumberOfMessages=count,
            WaitTimeSeconds=int(min(wait, LONGEST_POLL)),
            VisibilityTimeout=self._hidden,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        found: list[Any] = reply.get("Messages", [])
        return found

    def _is_ours(self, message: Mapping[str, Any], source: _Source) -> bool:
        """Note the receipt; tell whether this is new, and of our topic.

        A dead-letter queue may serve several queues. What came from another one is left
        to its own topic: sent back as ours, it would go astray.
        """
        bookmark = message["MessageId"]
        came_from = _name_of(message["Attributes"].get("DeadLetterQueueSourceArn", ""))
        if came_from not in {"", self._settings.topic}:
            self._warn_of(came_from, source.queue)
            return False
        self._receipts[bookmark] = message["ReceiptHandle"]
        known = bookmark in self._handed_out
        self._handed_out.add(bookmark)
        return not known

    def _warn_of(self, stranger: str, queue: str) -> None:
        if stranger not in self._strangers:
            self._strangers.add(stranger)
            what = "%s holds dead letters of %s too: they are left to that topic"
            _LOG.warning(what, queue, stranger)

    def _settle(self, handles: Sequence[str], action: str, **parameters: int) -> None:
        for done in self._each(handles, action, **parameters):
            self._forget(done)

    def _each(
        self, handles: Sequence[str], action: str, **parameters: int
    ) -> Iterator[str]:
        """Do one thing with each of these and yield the ones it was done with.

        A receipt that SQS no longer takes is forgotten: the message is gone, or comes
        again and is handed out again.
        """
        known = [one for one in dict.fromkeys(handles) if one in self._receipts]
        failed: list[str] = []
        for start in range(0, len(known), MOST_AT_ONCE):
            call = known[start : start + MOST_AT_ONCE]
            reply = self._change(call, action, parameters)
            yield from (call[int(done["Id"])] for done in reply.get("Successful", []))
            for refusal in reply.get("Failed", []):
                if _is_final(refusal):
                    _LOG.warning("a receipt is void: %s", _words(refusal))
                    self._forget(call[int(refusal["Id"])])
                else:
                    failed.append(_words(refusal))
        if failed:
            what = f"{self._wire.place} did not do {action} for {len(failed)} messages"
            raise Unavailable(f"{what}: {failed[0]}")

    def _change(
        self, bookmarks: Sequence[str], action: str, parameters: Mapping[str, int]
    ) -> dict[str, Any]:
        source = self._source = self._source or _source(self._wire, self._settings)
        entries = [
            {"Id": str(n), "ReceiptHandle": self._receipts[bookmark], **parameters}
            for n, bookmark in enumerate(bookmarks)
        ]
        return self._wire.on(source.queue, action, Entries=entries)

    def _forget(self, bookmark: str) -> None:
        self._receipts.pop(bookmark, None)
        self._handed_out.discard(bookmark)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """A topic's dead-letter queue, and how many receives lead into it, if one knows."""

    queue: str
    max_receive_count: int | None = None


def _source(wire: Wire, topic: TopicSettings) -> _Source:
    """Find the dead-letter queue: the one that was named, or that of the policy."""
    named = topic.dead_letter_queue
    try:
        policy = RedrivePolicy.of(wire.attributes(topic.topic, "RedrivePolicy"))
    except Answered:
        # A queue that only its dead letters are left of.
        if not named:
            raise
        policy = None
    if policy is None and not named:
        raise Refused(
            f"SQS knows no redrive policy of {topic.topic}: give it one, or name its "
            "dead-letter queue."
        )
    if policy is not None and named in {"", policy.dead_letter_queue}:
        return _Source(
            queue=policy.dead_letter_queue, max_receive_count=policy.max_receive_count
        )
    return _Source(queue=named)


def _letter(message: Mapping[str, Any], source: _Source) -> DeadLetter:
    body, headers = stored(message)
    sent = message["Attributes"].get("SentTimestamp")
    return DeadLetter(
        queue=source.queue,
        bookmark=message["MessageId"],
        body=body,
        headers=headers,
        size=len(body) + sum(len(part) for header in headers for part in header),
        dequeue_count=_dequeue_count(message, source),
        enqueued_at=EPOCH + timedelta(milliseconds=int(sent)) if sent else None,
    )


def _dequeue_count(message: Mapping[str, Any], source: _Source) -> int | None:
    """Tell how often consumers had the message: SQS counts our receives with theirs.

    Its policy says how many lead into the queue, which ours must not exceed. None for
    a message that no consumer had: somebody put it there.
    """
    count = int(message["Attributes"].get("ApproximateReceiveCount", 1)) - 1
    if source.max_receive_count is not None:
        count = min(count, source.max_receive_count)
    return count or None


def _is_final(failed: Mapping[str, Any]) -> bool:
    return bool(failed["SenderFault"]) and code_of(failed["Code"]) not in THROTTLED


def _words(failed: Mapping[str, Any]) -> str:
    return said(failed["Code"], failed.get("Message", ""))


def _name_of(arn: str) -> str:
    return arn.rpartition(":")[2]


class SqsTopicAdmin:
    """Looks at the dead-letter queue of one topic; SQS' numbers are approximate."""

    def __init__(self, place: Place, settings: TopicSettings) -> None:
        self._wire = Wire(place)
        self._settings = settings
        self._source: _Source | None = None

    def consumers(self) -> list[ConsumerPosition]:
        """SQS knows no consumers: what they settle is gone."""
        return []

    def depth(self) -> int | None:
        self._source = self._source or _source(self._wire, self._settings)
        return _depth(self._wire.attributes(self._source.queue, *DEPTHS))

    def oldest_at(self) -> datetime | None:
        """Another service, CloudWatch, would know."""
        return None

    def delivered(self) -> Delivered | None:
        """Another service, CloudWatch, would know."""
        return None

    def close(self) -> None:
        self._wire.close()


class SqsBrokerAdmin:
    """Lists the queues of one region."""

    def __init__(self, place: Place) -> None:
        self._wire = Wire(place)

    def ping(self) -> str:
        self._wire.call("list_queues", about="ListQueues", MaxResults=1)
        return str(self._wire.place)

    def discover(self) -> list[FoundTopic]:
        urls = self._queue_urls()
        with ThreadPoolExecutor(LOOKS) as pool:
            looked_at = zip(urls, pool.map(self._look, urls), strict=True)
            queues = {_queue_of(url): seen for url, seen in looked_at if seen}
        policies = {name: RedrivePolicy.of(queues[name]) for name in queues}
        partners = {p.dead_letter_queue for p in policies.values() if p}
        return [
            _found(name, policies[name], queues)
            for name in sorted(queues)
            if name not in partners
        ]

    def close(self) -> None:
        self._wire.close()

    def _queue_urls(self) -> list[str]:
        urls: list[str] = []
        more: dict[str, str] = {}
        while len(urls) < MOST_QUEUES:
            reply = self._wire.call(
                "list_queues", about="ListQueues", MaxResults=QUEUES_PAGE, **more
            )
            urls += reply.get("QueueUrls", [])
            if not reply.get("NextToken"):
                break
            more = {"NextToken": reply["NextToken"]}
        return urls[:MOST_QUEUES]

    def _look(self, url: str) -> dict[str, str]:
        """Return a queue's attributes; none for one that is gone or closed to us."""
        wanted = ["QueueArn", "RedrivePolicy", *DEPTHS]
        about = f"GetQueueAttributes {_queue_of(url)}"
        try:
            reply = self._wire.call(
                "get_queue_attributes", about=about, QueueUrl=url, AttributeNames=wanted
            )
        except Answered as refusal:
            _LOG.warning("left out of what is found: %s", refusal)
            return {}
        found: dict[str, str] = reply.get("Attributes", {})
        return found


def _found(
    name: str, policy: RedrivePolicy | None, queues: Mapping[str, Mapping[str, str]]
) -> FoundTopic:
    partner = policy.dead_letter_queue if policy else ""
    return FoundTopic(
        name=name,
        depth=_depth(queues[name]),
        dead_letter_queue=partner,
        dead_letters=_depth(queues.get(partner, {})),
    )


def _depth(attributes: Mapping[str, str]) -> int | None:
    counts = [int(attributes[name]) for name in DEPTHS if name in attributes]
    return sum(counts) if counts else None


def _queue_of(url: str) -> str:
    return url.rpartition("/")[2]
