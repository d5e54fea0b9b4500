"""Messages as the AMPS Python client hands them to a handler.

The client uses one message object for all messages, on its receiving thread; there the
reader copies everything at once. To pass a message to another thread, or to keep it,
take a `copy.deepcopy(message)` first; the object itself is refused there.
"""

from __future__ import annotations

import copy
import ctypes
import re
import threading
from collections.abc import Callable, Container
from functools import cache
from hashlib import sha256
from typing import Any

from poisonguard.errors import Misconfigured
from poisonguard.readers import Reader, number_of

SEQ_LIMIT = 2**63 - 2
_BOOKMARK = re.compile("([0-9]+)[|]([0-9]{1,20})[|]")


class AmpsReader(Reader):
    """Read messages of a bookmark subscription: `publisher|sequence|`."""

    replays = True

    def numbering(self, skipped: Container[str]) -> Callable[[Any], int]:
        """Return a fast numbering by bookmark; 0 for skipped and borrowed messages."""
        thread = _thread

        def number(message: Any) -> int:
            if not thread.is_clients and is_clients_own(message):
                return 0
            bookmark = self.bookmark(message)
            return 0 if bookmark in skipped else number_of(bookmark)

        return number

    def number(self, message: Any) -> int:
        """Return a hash of the bookmark; raise Misconfigured for a borrowed message."""
        refuse_borrowed(message)
        return super().number(message)

    def bookmark(self, message: Any) -> str:
        """Return an AMPS message's bookmark; without one, the digest of its body."""
        try:
            bookmark = text_of(message.get_bookmark)
        except AttributeError:
            raise TypeError(
                f"An AmpsReader reads messages of the AMPS client, not {type(message)}:"
                " give the guard the reader of your client."
            ) from None
        # Outside of a bookmark subscription only its body identifies a message.
        return bookmark or f"sha256:{sha256(self.body(message)).hexdigest()}"

    def body(self, message: Any) -> bytes:
        return bytes(message.get_data_raw())

    def copy(self, message: Any) -> Any:
        """Return a deep copy of the AMPS message: the client uses its object again."""
        return copy.deepcopy(message)

    def publisher(self, message: Any) -> str | None:
        """Return the publisher's number in the message's bookmark, or None."""
        match = _BOOKMARK.match(self.bookmark(message))
        return match[1] if match else None

    def seq(self, message: Any) -> int | None:
        """Return the sequence number in the message's bookmark, or None."""
        match = _BOOKMARK.match(self.bookmark(message))
        return min(int(match[2]), SEQ_LIMIT) if match else None


def text_of(get: Callable[[], Any]) -> str:
    """Read a header of an AMPS message; return "" where missing or no UTF-8."""
    try:
        return str(get() or "")
    except UnicodeDecodeError:  # the client cannot return it otherwise
        return ""


def refuse_borrowed(message: Any) -> None:
    """Raise Misconfigured for AMPS's reused message object on another thread."""
    if not _thread.is_clients and is_clients_own(message):
        raise Misconfigured(
            "The AMPS client uses this message object for the next message, too: hand"
            " another thread a copy.deepcopy(message) of it, made in the handler."
        )


def is_clients_own(message: Any) -> bool:
    """Tell whether an AMPS message is the object that the client reuses."""
    kind: Any = type(message)
    return _says_whose(kind) and not _owns(message)


class _Thread(threading.local):
    """Whether the current thread is a client's, not started by Python."""

    def __init__(self) -> None:
        # Python creates a _DummyThread for a thread that calls in from C.
        self.is_clients = isinstance(
            threading.current_thread(),
            threading._DummyThread,  # noqa: SLF001
        )


_thread = _Thread()

# A message object holds a pointer, and a flag whether it owns what that points to. No
# method of the client returns the flag, so it is read from memory.
_MESSAGE_SIZE, _OWNS_AT = 32, 24
_byte_at = ctypes.c_uint8.from_address


def _owns(message: Any) -> bool:
    """Tell whether an AMPS message owns its memory, as a copy does."""
    return bool(_byte_at(id(message) + _OWNS_AT).value)


@cache
def _says_whose(kind: Any) -> bool:
    """Tell whether an AMPS message type has the memory layout we know."""
    if kind.__module__ != "AMPS" or kind.__basicsize__ != _MESSAGE_SIZE:
        return False
    message = kind()
    return _owns(message) and _owns(copy.deepcopy(message))
