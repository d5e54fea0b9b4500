"""Headers with a message's id or type: to read them needs no right to bodies.

The list of messages already shows the message id that a consumer reports, and a problem
shows the message type. Brokers and frameworks write the same two facts into headers of
these names. Every other header may hold the same data as a body.
"""

from __future__ import annotations

from collections.abc import Sequence

from apps.brokers.adapter_contract import Header
from apps.core.text_cleaning import readable

MESSAGE_ID_NAMES = frozenset(
    {
        *(b"message-id", b"message_id", b"messageid", b"ce-id", b"ce_id"),
        *(b"amqp.message_id", b"nservicebus.messageid", b"rbs2-msg-id"),
    }
)
MESSAGE_TYPE_NAMES = frozenset(
    {
        *(b"content-type", b"content_type", b"amqp.content_type"),
        *(b"content-encoding", b"content_encoding", b"amqp.content_encoding"),
        *(b"type", b"message-type", b"message_type", b"ce-type", b"amqp.type"),
        *(b"nservicebus.enclosedmessagetypes", b"rbs2-msg-type"),
    }
)


def is_public(name: bytes) -> bool:
    """Tell whether everyone who may list messages may read this header's value."""
    return name.lower() in MESSAGE_ID_NAMES | MESSAGE_TYPE_NAMES


def message_id(headers: Sequence[Header]) -> str:
    """Return the message id that the headers hold, or ""."""
    ids = (value for name, value in headers if name.lower() in MESSAGE_ID_NAMES)
    return next((readable(value) for value in ids if value), "")
