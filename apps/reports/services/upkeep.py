"""Find runs that no worker works on."""

from __future__ import annotations

from apps.core import lock
from apps.reports.models import Run
from apps.reports.services.running import LOCK


def next_to_run() -> int | None:
    """Return the oldest run that waits or whose worker died; None while one runs."""
    if lock.names_locked([LOCK]):
        return None
    waiting = Run.objects.unfinished().order_by("id")
    return waiting.values_list("pk", flat=True).first()
