"""Messages of Azure Storage Queues as `azure-storage-queue` receives them.

A message there is text and nothing else: it has no headers, so what Poisonweb requeues
bears no mark. It comes as a new message with a new id. Handled, it cannot be confirmed;
when it fails again, Poisonweb knows it by the digest of its body.

Producers write base64 of their bytes, as Azure Functions expect, or plain text. Both
are read as Poisonweb's lanes read them, and a header says which it was, so that a
requeue writes the same text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Container
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from poisonguard.errors import Misconfigured
from poisonguard.readers import Headers, Reader, number_of, to_bytes

if TYPE_CHECKING:
    from azure.storage.queue import QueueMessage

ENCODING_HEADER = b"x-azure-message-encoding"


class AzureQueueReader(Reader):
    """Read a `QueueMessage`; `encoding` is what producers write.

    With `base64`, text that is base64 is decoded and all else is plain; with `none` all
    text is plain. With `decoded` the client has decoded already, for it was given a
    `message_decode_policy`: then the encoding is not known here, and a requeue writes
    what the broker's `messageEncoding` says.
    """

    bookmarks_are_places = True

    def __init__(
        self, encoding: Literal["base64", "none", "decoded"] = "base64"
    ) -> None:
        if encoding not in {"base64", "none", "decoded"}:
            remedy = "make it base64, none or decoded."
            raise Misconfigured(f"The encoding of a queue is no {encoding!r}: {remedy}")
        self._encoding = encoding

    def numbering(self, skipped: Container[str]) -> Callable[[QueueMessage], int]:
        """Return a fast numbering by Azure's message ids, 0 for skipped messages."""

        def number(message: QueueMessage) -> int:
            bookmark = message.id
            if not bookmark or bookmark in skipped:
                return 0
            return number_of(bookmark)

        return number

    def bookmark(self, message: QueueMessage) -> str:
        """Return the id that the Azure queue gave the message."""
        return str(message.id)

    def body(self, message: QueueMessage) -> bytes:
        """Return an Azure message's body, decoded from base64, or its text as is."""
        decoded = self._decoded(message)
        return to_bytes(message.content) if decoded is None else decoded

    def headers(self, message: QueueMessage) -> Headers:
        """Return a header that says how an Azure message's text was encoded.

        There is no header where the client has decoded it: then that is unknown.
        """
        if self._encoding == "decoded":
            return ()
        is_plain = self._decoded(message) is None
        return ((ENCODING_HEADER, b"none" if is_plain else b"base64"),)

    def redrive(self, message: QueueMessage) -> str | None:
        """Return None: a message of an Azure queue bears no redrive mark."""
        return None

    def enqueued_at(self, message: QueueMessage) -> datetime | None:
        """Return when the message was put into the Azure queue."""
        return message.inserted_on

    def dequeue_count(self, message: QueueMessage) -> int | None:
        """Return how often the Azure queue delivered the message."""
        return message.dequeue_count

    def _decoded(self, message: QueueMessage) -> bytes | None:
        """Decode a text of base64; return None unless it encodes to the same."""
        text = message.content
        if self._encoding != "base64" or not isinstance(text, str):
            return None
        try:
            body = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return None
        return body if base64.b64encode(body).decode() == text else None
