"""Windows: how a guard knows a copy of a message that it has handled already.

`Guard(dedupe=MemoryWindow())` remembers the last messages of this process. A
`poisonguard.dedupe.postgres.PostgresWindow` marks a message in the transaction of its
handler, so that the effect and the mark are there together or not at all.

Copies have one message id. What was requeued is no copy of the original, but of what
the same redrive has sent.
"""

from __future__ import annotations

from poisonguard.dedupe.memory import MemoryWindow
from poisonguard.dedupe.once import Window

__all__ = ["MemoryWindow", "Window"]
