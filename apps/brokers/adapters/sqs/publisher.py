"""Publish to queues in batches and return the outcome of each message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.brokers.adapter_contract import Outbound, OutcomeKind, PublishOutcome
from apps.brokers.adapters.sqs.messages import FIFO, LARGEST, SqsEntry, entry_of
from apps.brokers.adapters.sqs.sqs_calls import (
    MOST_AT_ONCE,
    SqsAddress,
    SqsRejected,
    SqsWire,
    is_final,
    is_throttled,
    words_of,
)
from apps.brokers.errors import MaybeSent
from apps.core.errors import Refused, Unavailable

# The largest total size of the messages of one call.
MOST_BYTES = LARGEST

_COMES_AGAIN = (OutcomeKind.UNKNOWN, OutcomeKind.UNSENT)


class SqsPublisher:
    """Publisher by SendMessageBatch; a message's id in the reply confirms it."""

    def __init__(self, address: SqsAddress) -> None:
        self._wire = SqsWire(address)

    def publish(self, messages: Sequence[Outbound]) -> list[PublishOutcome]:
        """Send messages to SQS in batches; return outcomes in order."""
        outcomes: dict[int, PublishOutcome] = {}
        try:
            for topic, parcels in _by_topic(messages, outcomes).items():
                self._send_all(topic, parcels, outcomes)
        except Unavailable as away:
            if not _any_sent(outcomes):
                raise
            # A call without an answer has set its outcomes; the others were never made.
            _leave_unsent(range(len(messages)), outcomes, reason=str(away))
        return [outcomes[index] for index in range(len(messages))]

    def close(self) -> None:
        """Close the connection to SQS."""
        self._wire.close()

    def _send_all(
        self,
        topic: str,
        parcels: Sequence[_Parcel],
        outcomes: dict[int, PublishOutcome],
    ) -> None:
        """Send a topic's messages to SQS; stop where later ones would overtake others.

        Those after that become unsent.
        """
        for call in _split_into_calls(parcels):
            self._send(topic, call, outcomes)
            if _must_rest_wait(topic, call, outcomes):
                indexes = [parcel.index for parcel in parcels]
                reason = "Not sent: a message before it may have to be sent again."
                _leave_unsent(indexes, outcomes, reason=reason)
                return

    def _send(
        self, topic: str, call: Sequence[_Parcel], outcomes: dict[int, PublishOutcome]
    ) -> None:
        """Send a batch of messages to SQS; halve it while SQS refuses it whole."""
        try:
            reply = self._call_batch(topic, call, outcomes)
        except SqsRejected as refusal:
            if len(call) == 1 or refusal.concerns_queue:
                refused = _refused_outcome(str(refusal))
                outcomes.update((parcel.index, refused) for parcel in call)
                return
            half = len(call) // 2
            self._send(topic, call[:half], outcomes)
            if not _must_rest_wait(topic, call[:half], outcomes):
                self._send(topic, call[half:], outcomes)
            return
        by_id = _outcomes_by_id(reply)
        silent = PublishOutcome(
            kind=OutcomeKind.UNKNOWN, detail="The answer of SQS does not mention it."
        )
        for number, parcel in enumerate(call):
            outcomes[parcel.index] = by_id.get(str(number), silent)

    def _call_batch(
        self, topic: str, call: Sequence[_Parcel], outcomes: dict[int, PublishOutcome]
    ) -> Mapping[str, Any]:
        """Send a batch to SQS; on a lost answer, set outcomes and raise `MaybeSent`."""
        # A separate call: if its answer is lost, every message is unsent.
        self._wire.queue_url(topic)
        entries = [parcel.entry.to_wire(n) for n, parcel in enumerate(call)]
        try:
            return self._wire.call_queue(topic, "send_message_batch", Entries=entries)
        except MaybeSent as error:
            unknown = PublishOutcome(kind=OutcomeKind.UNKNOWN, detail=str(error))
            outcomes.update((parcel.index, unknown) for parcel in call)
            raise


@dataclass(frozen=True, kw_only=True, slots=True)
class _Parcel:
    """One message of a window, and its index there."""

    index: int
    entry: SqsEntry


def _by_topic(
    messages: Sequence[Outbound], outcomes: dict[int, PublishOutcome]
) -> dict[str, list[_Parcel]]:
    """Group the messages by topic, in order; set the outcomes of invalid ones."""
    topics: dict[str, list[_Parcel]] = {}
    for index, message in enumerate(messages):
        try:
            parcel = _Parcel(index=index, entry=entry_of(message))
        except Refused as refusal:
            outcomes[index] = _refused_outcome(str(refusal))
        else:
            topics.setdefault(message.topic, []).append(parcel)
    return topics


def _split_into_calls(parcels: Sequence[_Parcel]) -> Iterator[list[_Parcel]]:
    """Divide messages into calls that SQS accepts, in order."""
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


def _outcomes_by_id(reply: Mapping[str, Any]) -> dict[str, PublishOutcome]:
    """Map the id of each entry of SQS' reply to its message's outcome."""
    outcomes = {
        done["Id"]: PublishOutcome(kind=OutcomeKind.SENT, bookmark=done["MessageId"])
        for done in reply.get("Successful", [])
    }
    for failed in reply.get("Failed", []):
        outcomes[failed["Id"]] = PublishOutcome(
            kind=_kind_of_failure(failed), detail=words_of(failed)
        )
    return outcomes


def _kind_of_failure(failed: Mapping[str, Any]) -> OutcomeKind:
    """Return the outcome of a failed SQS entry: unsent, refused or unknown."""
    if is_throttled(failed):
        return OutcomeKind.UNSENT
    return OutcomeKind.REFUSED if is_final(failed) else OutcomeKind.UNKNOWN


def _any_sent(outcomes: Mapping[int, PublishOutcome]) -> bool:
    """Tell whether SQS took any message of this publish, or may have taken one."""
    surely_not = (OutcomeKind.REFUSED, OutcomeKind.UNSENT)
    return any(one.kind not in surely_not for one in outcomes.values())


def _must_rest_wait(
    topic: str, call: Sequence[_Parcel], outcomes: Mapping[int, PublishOutcome]
) -> bool:
    """Tell whether a FIFO queue's later messages must wait for one to be sent again."""
    became = (outcomes.get(parcel.index) for parcel in call)
    comes_again = any(one and one.kind in _COMES_AGAIN for one in became)
    return comes_again and topic.endswith(FIFO)


def _leave_unsent(
    indexes: Sequence[int], outcomes: dict[int, PublishOutcome], *, reason: str
) -> None:
    """Set to unsent the messages for SQS that have no outcome."""
    for index in indexes:
        outcomes.setdefault(
            index, PublishOutcome(kind=OutcomeKind.UNSENT, detail=reason)
        )


def _refused_outcome(reason: str) -> PublishOutcome:
    """Return the outcome of a message that SQS does not take."""
    return PublishOutcome(kind=OutcomeKind.REFUSED, detail=reason)
