"""Whether a worker is alive."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class WorkerBeat(models.Model):
    """The time at which a worker last answered: one row, updated every two seconds."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    at = models.DateTimeField()

    class Meta:
        db_table = "triage_worker_beat"
        constraints = [
            models.CheckConstraint(
                name="triage_worker_beat_is_one_row", condition=Q(id=1)
            ),
        ]

    def __str__(self) -> str:
        return f"a worker at {self.at}"
