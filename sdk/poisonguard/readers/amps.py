"""Messages as the AMPS Python client hands them to a handler.

The client uses one message object for all of them: everything is copied out of it at
once, and nothing of it is kept.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

from poisonguard.readers import Reader

SEQ_LIMIT = 2**63 - 2
_BOOKMARK = re.compile("([0-9]+)[|]([0-9]{1,20})[|]")


class AmpsReader(Reader):
    """Reads messages of a bookmark subscription: `publisher|sequence|`."""

    replays = True

    def bookmark(self, message: Any) -> str:
        told = message.get_bookmark()
        # Outside of a bookmark subscription nothing but its body tells a message apart.
        return str(told) if told else f"sha256:{sha256(self.body(message)).hexdigest()}"

    def body(self, message: Any) -> bytes:
        return bytes(message.get_data_raw())

    def publisher(self, message: Any) -> str | None:
        found = _BOOKMARK.match(self.bookmark(message))
        return found[1] if found else None

    def seq(self, message: Any) -> int | None:
        found = _BOOKMARK.match(self.bookmark(message))
        return min(int(found[2]), SEQ_LIMIT) if found else None
