"""One message of an outbox, and the digest that tells two messages of one id apart."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

Header = tuple[bytes, bytes]

DIGEST_BYTES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxMessage:
    """A message as it is written and sent; `key` is "" where order does not matter.

    A consumer that gets it twice recognises the copy by `message_id`, which is unique
    among the messages of one `producer`. Names have at most 255 characters.
    """

    producer: str
    message_id: str
    topic: str
    body: bytes
    headers: tuple[Header, ...] = ()
    key: str = ""


def digest(message: OutboxMessage) -> bytes:
    """Return 16 bytes, equal for equal topics, keys, headers and bodies of messages."""
    hashed = blake2b(digest_size=DIGEST_BYTES)
    for part in (
        message.topic.encode(),
        message.key.encode(),
        *(part for header in message.headers for part in header),
        message.body,
    ):
        hashed.update(len(part).to_bytes(8, "big"))
        hashed.update(part)
    return hashed.digest()
