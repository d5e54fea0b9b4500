"""Conversion between a body and the text of a message of Azure Storage Queues.

A message is text that XML can carry. Most producers write base64 of their bytes, as
Azure Functions expect by default; others write plain text. A message leaves with the
encoding that it came with, to the letter: one that did not come as base64 bears a mark,
which stands for the headers that this broker does not have.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from apps.brokers.adapter_contract import Header
from apps.core.errors import Refused
from poisonguard import contract

# In bytes of UTF-8.
LARGEST_TEXT = 64 * 2**10
# The most bytes whose base64 fits into the largest text.
LARGEST_BODY = LARGEST_TEXT // 4 * 3
NAMED_HEADERS = 5

ENCODING_HEADER = b"x-azure-message-encoding"
_REDRIVE_HEADER = contract.REDRIVE_HEADER.encode()
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Encoding(StrEnum):
    """Encoding of a message's text, in the words of `messageEncoding`."""

    BASE64 = "base64"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageContent:
    """Content of a message: its body, and the mark that names its encoding."""

    body: bytes
    headers: tuple[Header, ...]


def read(text: str, *, expected: Encoding, usual: Encoding) -> MessageContent:
    """Decode the text of a message, so that `write` restores the very same text.

    `expected` is what the queue's producers write, `usual` what `write` makes of a body
    without a mark. Text that should be base64 and is not counts as plain.
    """
    body = _decode_base64(text) if expected is Encoding.BASE64 else None
    if body is None:
        return MessageContent(
            body=text.encode(), headers=(_encoding_mark(Encoding.NONE),)
        )
    marked = () if usual is Encoding.BASE64 else (_encoding_mark(Encoding.BASE64),)
    return MessageContent(body=body, headers=marked)


def write(body: bytes, headers: Sequence[Header], *, usual: Encoding) -> str:
    """Encode a body as text; raise `Refused` where that would lose or change it.

    Our redrive mark is left out, since this broker carries no headers.
    """
    if _encoding_of(headers, usual=usual) is Encoding.BASE64:
        text = base64.b64encode(body).decode()
    else:
        text = _decode_plain(body)
    size = len(text.encode())
    if size > LARGEST_TEXT:
        raise Refused(
            f"Azure Storage Queues take {LARGEST_TEXT:,} bytes of text in a message, "
            f"and this one makes {size:,} of its {len(body):,} bytes."
        )
    return text


def _decode_base64(text: str) -> bytes | None:
    """Decode base64 of Azure's text; None unless encoding that gives the same text."""
    try:
        body = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return body if base64.b64encode(body).decode() == text else None


def _decode_plain(body: bytes) -> str:
    """Decode a body as UTF-8; raise Refused for text that Azure's XML cannot carry."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise Refused("This message must be plain text, but is not UTF-8.") from None
    if illegal := _ILLEGAL.search(text):
        raise Refused(
            f"This message must be plain text, but holds U+{ord(illegal[0]):04X} at "
            f"{illegal.start():,}, which Azure's XML cannot carry."
        )
    return text


def _encoding_of(headers: Sequence[Header], *, usual: Encoding) -> Encoding:
    """Return the encoding of Azure's text that headers ask for: base64 or none.

    Raises Refused for another encoding, and for headers that would be lost.
    """
    lost = [name for name, _ in headers if not _stays_behind(name)]
    if lost:
        raise Refused(
            "Azure Storage Queues carry no headers, and these would be lost: "
            f"{_list_names(lost)}."
        )
    marks = [value for name, value in headers if name.lower() == ENCODING_HEADER]
    try:
        return Encoding(marks[-1].decode()) if marks else usual
    except ValueError:
        raise Refused(
            f"The header {ENCODING_HEADER.decode()} is base64 or none."
        ) from None


def _stays_behind(name: bytes) -> bool:
    """Tell whether a header need not travel with a message, since its meaning remains.

    So an encoding mark, or our mark of the previous redrive.
    """
    return name.lower() in {ENCODING_HEADER, _REDRIVE_HEADER}


def _list_names(names: Sequence[bytes]) -> str:
    """Join the first names of headers that Azure would lose, and count the others."""
    legible = [ascii(name.decode(errors="replace"))[:80] for name in names]
    more = len(legible) - NAMED_HEADERS
    return ", ".join(legible[:NAMED_HEADERS]) + (
        f" and {more} more" if more > 0 else ""
    )


def _encoding_mark(encoding: Encoding) -> Header:
    """Return the header that says how a message's text was encoded."""
    return ENCODING_HEADER, encoding.encode()
