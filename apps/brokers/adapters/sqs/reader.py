"""Read a dead-letter queue, and return what is not settled."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from apps.brokers.adapter_contract import BATCH_BYTES, DeadLetter
from apps.brokers.adapters.adapter import TopicSettings
from apps.brokers.adapters.sqs.messages import content_of
from apps.brokers.adapters.sqs.redrive_policy import (
    SqsDeadLetterQueue,
    dead_letter_queue_of,
    name_of,
)
from apps.brokers.adapters.sqs.sqs_calls import (
    LONGEST_POLL,
    MOST_AT_ONCE,
    SqsAddress,
    SqsWire,
    is_final,
    words_of,
)
from apps.core.errors import Unavailable

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_LOG = logging.getLogger(__name__)


class SqsDeadLetterReader:
    """Reader of a dead-letter queue, which remembers received messages by id.

    An unsettled message comes again after its time-out, with another receipt: the
    reader recognizes it and keeps holding it. In a FIFO queue a held message makes the
    rest of its group wait.
    """

    def __init__(self, address: SqsAddress, settings: TopicSettings) -> None:
        self._wire = SqsWire(address)
        self._settings = settings
        self._hidden = math.ceil(settings.visibility_timeout)
        self._queue: SqsDeadLetterQueue | None = None
        self._receipts: dict[str, str] = {}
        self._handed_out: set[str] = set()
        self._strangers: set[str] = set()

    def read(self, *, limit: int, wait: float) -> list[DeadLetter]:
        """Return SQS' next dead letters, hidden; wait `wait` seconds for the first."""
        try:
            return self._read_batch(limit, wait)
        except Unavailable:
            self._handed_out.clear()
            raise

    def peek(self, *, limit: int) -> list[DeadLetter]:
        """Return []: SQS cannot show a message without receiving it."""
        return []

    def acknowledge(self, handles: Sequence[str]) -> None:
        """Delete these dead letters from their SQS queue."""
        self._settle(handles, "delete_message_batch")

    def extend(self, handles: Sequence[str]) -> None:
        """Hide these dead letters for another visibility timeout."""
        action = "change_message_visibility_batch"
        for _ in self._call_for_each(handles, action, VisibilityTimeout=self._hidden):
            pass

    def release(self, handles: Sequence[str]) -> None:
        """Show these dead letters of SQS to all readers again at once."""
        self._settle(handles, "change_message_visibility_batch", VisibilityTimeout=0)

    def dead_letter_exhausted(self) -> int:
        """Return 0: SQS moves them itself with the next receive."""
        return 0

    def close(self) -> None:
        """Close the connection to SQS."""
        self._wire.close()

    def _read_batch(self, limit: int, wait: float) -> list[DeadLetter]:
        """Receive SQS' dead letters until they are enough; return the new ones."""
        queue = self._queue = self._queue or dead_letter_queue_of(
            self._wire, self._settings
        )
        letters: list[DeadLetter] = []
        message_ids: set[str] = set()
        size = 0
        while len(letters) < limit and size < BATCH_BYTES:
            count = min(MOST_AT_ONCE, limit - len(letters))
            messages = self._receive(queue, count, 0 if message_ids else wait)
            # A message twice in one batch is no longer hidden: nor are the others.
            if not {message["MessageId"] for message in messages} - message_ids:
                break
            message_ids |= {message["MessageId"] for message in messages}
            new_letters = [
                _letter(m, queue)
                for m in messages
                if self._note_receipt_if_ours(m, queue)
            ]
            letters += new_letters
            size += sum(letter.size for letter in new_letters)
        return letters

    def _receive(self, queue: SqsDeadLetterQueue, count: int, wait: float) -> list[Any]:
        """Take and hide up to ten messages of SQS; wait at most `wait` seconds."""
        reply = self._wire.call_queue(
            queue.name,
            "receive_message",
            MaxNumberOfMessages=count,
            WaitTimeSeconds=int(min(wait, LONGEST_POLL)),
            VisibilityTimeout=self._hidden,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        messages: list[Any] = reply.get("Messages", [])
        return messages

    def _note_receipt_if_ours(
        self, message: Mapping[str, Any], queue: SqsDeadLetterQueue
    ) -> bool:
        """Store a letter's receipt; tell whether it is new, and of our topic.

        A dead-letter queue may serve several queues. Messages of another one are left
        to its own topic: redriven as ours, they would reach the wrong queue.
        """
        bookmark = message["MessageId"]
        came_from = name_of(message["Attributes"].get("DeadLetterQueueSourceArn", ""))
        if came_from not in {"", self._settings.topic}:
            self._warn_of(came_from, queue.name)
            return False
        self._receipts[bookmark] = message["ReceiptHandle"]
        is_known = bookmark in self._handed_out
        self._handed_out.add(bookmark)
        return not is_known

    def _warn_of(self, stranger: str, queue: str) -> None:
        """Log once that the queue holds another topic's dead letters."""
        if stranger not in self._strangers:
            self._strangers.add(stranger)
            what = "%s holds dead letters of %s too: they are left to that topic"
            _LOG.warning(what, queue, stranger)

    def _settle(self, handles: Sequence[str], action: str, **parameters: int) -> None:
        """Call an SQS action for dead letters; forget the receipts it took."""
        for done in self._call_for_each(handles, action, **parameters):
            self._forget(done)

    def _call_for_each(
        self, handles: Sequence[str], action: str, **parameters: int
    ) -> Iterator[str]:
        """Call an SQS action for dead letters; yield those it succeeded for.

        A receipt that SQS no longer accepts is forgotten: the message is gone, or comes
        again and is handed out again.
        """
        bookmarks = [one for one in dict.fromkeys(handles) if one in self._receipts]
        failed: list[str] = []
        for start in range(0, len(bookmarks), MOST_AT_ONCE):
            call = bookmarks[start : start + MOST_AT_ONCE]
            reply = self._call_batch(call, action, parameters)
            yield from (call[int(done["Id"])] for done in reply.get("Successful", []))
            for refusal in reply.get("Failed", []):
                if is_final(refusal):
                    _LOG.warning(
                        "SQS no longer accepts a receipt: %s", words_of(refusal)
                    )
                    self._forget(call[int(refusal["Id"])])
                else:
                    failed.append(words_of(refusal))
        if failed:
            what = (
                f"{self._wire.address} did not do {action} for {len(failed)} messages"
            )
            raise Unavailable(f"{what}: {failed[0]}")

    def _call_batch(
        self, bookmarks: Sequence[str], action: str, parameters: Mapping[str, int]
    ) -> dict[str, Any]:
        """Call an SQS action for a batch of dead letters, by their receipts."""
        queue = self._queue = self._queue or dead_letter_queue_of(
            self._wire, self._settings
        )
        entries = [
            {"Id": str(n), "ReceiptHandle": self._receipts[bookmark], **parameters}
            for n, bookmark in enumerate(bookmarks)
        ]
        return self._wire.call_queue(queue.name, action, Entries=entries)

    def _forget(self, bookmark: str) -> None:
        """Forget the receipt of a dead letter of SQS."""
        self._receipts.pop(bookmark, None)
        self._handed_out.discard(bookmark)


def _letter(message: Mapping[str, Any], queue: SqsDeadLetterQueue) -> DeadLetter:
    """Decode a message of SQS as a dead letter."""
    body, headers = content_of(message)
    sent_at = message["Attributes"].get("SentTimestamp")
    return DeadLetter(
        queue=queue.name,
        bookmark=message["MessageId"],
        body=body,
        headers=headers,
        size=len(body) + sum(len(part) for header in headers for part in header),
        dequeue_count=_dequeue_count(message, queue),
        enqueued_at=EPOCH + timedelta(milliseconds=int(sent_at)) if sent_at else None,
    )


def _dequeue_count(message: Mapping[str, Any], queue: SqsDeadLetterQueue) -> int | None:
    """Return how often consumers received a dead letter, as SQS counted.

    Our own receives never raise it beyond the maximum of the redrive policy. None for a
    message that no consumer received: a producer put it there.
    """
    count = int(message["Attributes"].get("ApproximateReceiveCount", 1)) - 1
    if queue.max_receive_count is not None:
        count = min(count, queue.max_receive_count)
    return count or None
