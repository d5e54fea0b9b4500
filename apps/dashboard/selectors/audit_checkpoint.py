"""The newest checkpoint of the audit trail, and how many entries it leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.audit.checkpoints import Checkpoint
from apps.audit.models import Head, LastCheckpoint

# A checkpoint is taken in each minute that has new entries.
LATE = timedelta(minutes=5)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointStatus:
    last: Checkpoint | None
    uncovered: int
    trouble: str
    now: datetime

    @property
    def is_late(self) -> bool:
        """Tell whether audit entries wait, and the last checkpoint is 5 minutes old.

        False before the first checkpoint.
        """
        if self.last is None:
            return False
        return self.uncovered > 0 and self.now - self.last.at > LATE


def status(*, now: datetime) -> CheckpointStatus:
    """Load the audit's newest checkpoint, and count the entries after it."""
    row = LastCheckpoint.objects.first()
    head = Head.objects.values_list("seq", flat=True).first() or 0
    return CheckpointStatus(
        last=_checkpoint(row) if row else None,
        uncovered=max(0, head - (row.seq if row else 0)),
        trouble=row.trouble if row else "",
        now=now,
    )


def _checkpoint(row: LastCheckpoint) -> Checkpoint:
    """Rebuild the audit's signed checkpoint from its row."""
    return Checkpoint(
        at=row.at,
        seq=row.seq,
        hash=bytes(row.hash),
        contradicts=row.contradicts,
        signature=row.signature,
    )
