"""Windows: they let a guard recognise copies of handled messages.

`Guard(dedupe=MemoryWindow())` remembers the last messages of this process. A
`poisonguard.dedupe.postgres.PostgresWindow` marks a message in the transaction of its
handler, so that the effect and the mark are committed together or not at all.

Copies have the same message id. A requeued message is no copy of the original, but only
of messages that the same redrive sent.
"""

from __future__ import annotations

from poisonguard.dedupe.memory import MemoryWindow
from poisonguard.dedupe.once import Window

__all__ = ["MemoryWindow", "Window"]
