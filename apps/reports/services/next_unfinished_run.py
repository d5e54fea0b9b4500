"""Find runs that no worker works on."""

from __future__ import annotations

from apps.core import advisory_locks
from apps.reports.models import Run
from apps.reports.services.report_run_execution import LOCK


def next_to_run() -> int | None:
    """Return the oldest report run that waits or lost its worker, or None."""
    if advisory_locks.names_locked([LOCK]):
        return None
    waiting = Run.objects.unfinished().order_by("id")
    return waiting.values_list("pk", flat=True).first()
